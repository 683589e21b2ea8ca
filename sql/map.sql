-- The map: the servers that shards are on. A hint for who looks for a shard; what stops writers is a fence.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION insta_ids.this_node() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'this_node_wrapper';
CREATE FUNCTION insta_ids.forget_map() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'forget_map_wrapper';
CREATE FUNCTION insta_ids.refuse(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'refuse_wrapper';

-- The timeline that this server writes, NULL on a standby: a promotion begins a new one.
CREATE FUNCTION insta_ids_internal.timeline() RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'timeline_wrapper';

-- The name of this server's node.
CREATE FUNCTION insta_ids.own_node() RETURNS name
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name := insta_ids.this_node();
BEGIN
    IF node IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'this server has no name among the nodes',
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server.';
    END IF;
    RETURN node;
END
$$;

CREATE TABLE insta_ids_internal.node (
    node name PRIMARY KEY,
    dsn text NOT NULL,
    ord integer NOT NULL UNIQUE CHECK (ord >= 0)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.node', '');

-- Without a foreign key, as a restore by several jobs loads the tables in any order.
CREATE TABLE insta_ids_internal.assignment (
    first integer PRIMARY KEY CHECK (first >= 0),
    last integer NOT NULL CHECK (last >= first),
    node name NOT NULL,
    EXCLUDE USING gist (pg_catalog.int4range(first, last, '[]') WITH &&)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.assignment', '');

-- One row, from the first change on. Sessions read all of the map again when this table is said to have changed.
CREATE TABLE insta_ids_internal.map (
    version bigint NOT NULL
);
CREATE UNIQUE INDEX map_once ON insta_ids_internal.map ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.map', '');
-- It has no primary key, without which a publication of all tables would let nobody change it.
ALTER TABLE insta_ids_internal.map REPLICA IDENTITY FULL;

-- Moves, on both servers, until they have ended. On the source the step is offered, then fenced; on the target it is prepared,
-- copying, handed over.
CREATE TABLE insta_ids_internal.move (
    -- Of the publication and the subscription, too.
    name name PRIMARY KEY CHECK (name = concat('insta_ids_', first, '_', last)),
    id uuid NOT NULL,
    first integer NOT NULL,
    last integer NOT NULL,
    shards integer[] NOT NULL
        CHECK (coalesce(array_ndims(shards), 0) = 1 AND array_position(shards, NULL) IS NULL)
        CHECK (0 <= first AND first <= ALL (shards) AND last >= ALL (shards)),
    from_node name NOT NULL,
    to_node name NOT NULL,
    has_slot boolean NOT NULL DEFAULT false,
    -- On the source, how often it was fenced; on the target, up to which of these fences a hand-over is refused.
    fences integer NOT NULL DEFAULT 0,
    bytes bigint NOT NULL,
    step text NOT NULL CHECK (step IN ('offered', 'fenced', 'prepared', 'copying', 'handed over')),
    -- On the source, what rows and values were in when the move began.
    relations oid[],
    -- On the source, the transaction of the fence, and then what the target goes on from.
    fenced_by xid8,
    -- And the standbys that were connected then.
    standbys text[],
    mark jsonb,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    step_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.move', '');
CREATE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.move ENABLE ALWAYS TRIGGER require_owner;

-- Lets roles that are no superusers write down only what the source of a move does, under an id that is of no other move.
CREATE FUNCTION insta_ids_internal.require_source() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        IF NEW.step NOT IN ('offered', 'fenced') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('must be superuser to take over shards from %s to %s', NEW.first, NEW.last);
        END IF;
        NEW.id := CASE TG_OP WHEN 'UPDATE' THEN OLD.id ELSE gen_random_uuid() END;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER require_source BEFORE INSERT OR UPDATE ON insta_ids_internal.move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_source();
ALTER TABLE insta_ids_internal.move ENABLE ALWAYS TRIGGER require_source;

-- How moves have ended: on the target handed over or cancelled, on the source handed over or withdrawn. Only one of the two
-- can come of a move on the target, whoever drives it. Never forgotten: who has slept through it may come at any time.
CREATE TABLE insta_ids_internal.ended_move (
    id uuid PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('handed over', 'withdrawn', 'cancelled')),
    -- The shards of the move; NULL if it was cancelled where it was not known.
    shards integer[] CHECK (shards IS NOT NULL OR outcome = 'cancelled'),
    -- Of one that was cancelled: what the source has to drop; NULL if it was not known here.
    table_slots name[] CHECK (table_slots IS NULL OR shards IS NOT NULL),
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.ended_move', '');
CREATE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.ended_move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.ended_move ENABLE ALWAYS TRIGGER require_owner;

-- Keeps roles that are no superusers from writing down how a move has ended that is not the one in insta_ids_internal.move.
-- Only a target has slots to name, and only a superuser can be the mover there.
CREATE FUNCTION insta_ids_internal.require_open_move() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
        AND (NEW.table_slots IS NOT NULL
            OR NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE (m.id, m.shards) = (NEW.id, NEW.shards)))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('must be superuser to write down how move %s has ended', NEW.id),
            DETAIL = 'No move with this id and these shards is open here, or the row names replication slots.';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER require_open_move BEFORE INSERT ON insta_ids_internal.ended_move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_open_move();
ALTER TABLE insta_ids_internal.ended_move ENABLE ALWAYS TRIGGER require_open_move;

-- Shards that have left, and what is still here of them, until it is dropped. They come back by a move alone, not by a map
-- from before.
CREATE TABLE insta_ids_internal.moved (
    shard integer PRIMARY KEY,
    schema name,
    to_node name NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.moved', '');
CREATE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.moved
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.moved ENABLE ALWAYS TRIGGER require_owner;

CREATE FUNCTION insta_ids.map_changed() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map();
    IF TG_TABLE_NAME = 'node' THEN
        PERFORM insta_ids.check_dsn(n.dsn) FROM insta_ids_internal.node n;
    END IF;
    -- Rows that come alone are a dump's, which brings the version, too.
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO insta_ids_internal.map VALUES (1) ON CONFLICT ((true)) DO UPDATE SET version = map.version + 1;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.node
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.map_changed();
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.assignment
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.map_changed();

-- For routers, which look up a shard's node as an ordinary role.
CREATE VIEW insta_ids.map AS
SELECT a.first, a.last, a.node, n.ord, n.dsn, (SELECT m.version FROM insta_ids_internal.map m) AS version
FROM insta_ids_internal.assignment a LEFT JOIN insta_ids_internal.node n ON n.node = a.node;

-- Notifies of the version that the transaction leaves. Listeners are told once, as equal notifications of a transaction are
-- one. By the time that a transaction commits, its role may be another one than the role that changed the map.
CREATE FUNCTION insta_ids.tell_of_map() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map(), pg_notify('insta_ids_map', m.version::text) FROM insta_ids_internal.map m;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER tell AFTER INSERT OR UPDATE ON insta_ids_internal.map
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION insta_ids.tell_of_map();

-- Whether the map has a shard on this node, or this server all of them.
CREATE FUNCTION insta_ids.is_placed_here(shard integer) RETURNS boolean
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids.this_node() IS NULL OR NOT EXISTS (SELECT FROM insta_ids_internal.assignment)
        OR EXISTS (
            SELECT FROM insta_ids_internal.assignment a
            WHERE shard BETWEEN a.first AND a.last AND a.node = insta_ids.this_node()::name);

-- Refuses a shard that the map has on another node.
CREATE FUNCTION insta_ids.check_placement(shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name;
BEGIN
    IF NOT insta_ids.is_placed_here(shard) THEN
        SELECT a.node INTO node FROM insta_ids_internal.assignment a WHERE shard BETWEEN a.first AND a.last;
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = format('shard %s is not on this node', shard),
            DETAIL = format('By version %s of the map it is on %s; this is node "%s".',
                (SELECT m.version FROM insta_ids_internal.map m), coalesce('node "' || node || '"', 'no node'),
                insta_ids.this_node());
    END IF;
    SELECT d.to_node INTO node FROM insta_ids_internal.moved d WHERE d.shard = check_placement.shard AND d.schema IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids_internal.moved WHERE shard = %s.', shard);
    END IF;
END
$$;

-- Refuses shards that have moved away, and of which something is still here.
CREATE FUNCTION insta_ids.check_left(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remains insta_ids_internal.moved;
BEGIN
    SELECT * INTO remains FROM insta_ids_internal.moved d
    WHERE d.shard BETWEEN first AND last AND d.schema IS NOT NULL ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('what is left of shard %s is still here', remains.shard),
            DETAIL = format('It is in schema "%s", from when the shard moved to node "%s".', remains.schema, remains.to_node),
            HINT = format('Drop it: SELECT insta_ids.drop_shard(%s).', remains.shard);
    END IF;
END
$$;

-- What a node's connection string must not be.
CREATE FUNCTION insta_ids.check_dsn(dsn text) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Or a port, in a URI.
    names_host CONSTANT boolean := dsn ~* $re$(^|[^a-z_])host\s*=$re$ OR dsn ~ '^postgres(ql)?://([^/@]*@)?[^/?@]+([/?]|$)';
BEGIN
    -- Wherever libpq would take one from: a parameter, also behind a quote or of a URI, where its name could be in an escape;
    -- or what is behind the user's name there.
    IF dsn ~* $re$(^|[^a-z_])(password|sslpassword|scram_client_key|scram_server_key|oauth_client_secret)\s*=$re$
        OR dsn ~ '^postgres(ql)?://' AND (dsn ~ '^[^:]*://[^/@]*:[^/@]*@' OR dsn ~ '[?&][^=&]*%[^=&]*=')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'connection string has a password',
            DETAIL = 'The map is read by everybody.',
            HINT = 'Name a passfile or a service in it, which the servers'' own user can read, or use another way to authenticate.';
    ELSIF dsn ~* $re$(^|[^a-z_])hostaddr\s*=$re$ AND (names_host OR dsn ~* $re$(^|[^a-z_])service\s*=$re$)
        OR dsn ~* $re$(^|[^a-z_])service\s*=$re$ AND (names_host OR dsn ~* $re$(^|[^a-z_])port\s*=$re$)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'connection string says twice where the server is',
            DETAIL = 'libpq would send the password that a passfile or the service has for the one to the other.',
            HINT = 'Name a host, a hostaddr or a service, and beside a service no port.';
    END IF;
END
$$;

CREATE FUNCTION insta_ids.add_node(node name, dsn text, ord integer DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(node, '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'name of a node is empty';
    ELSIF dsn IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'connection string must be given';
    END IF;
    LOCK TABLE insta_ids_internal.node IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (
        SELECT FROM insta_ids_internal.node n
        WHERE (n.node, n.dsn, n.ord) = (add_node.node, add_node.dsn, coalesce(add_node.ord, n.ord)))
    THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM insta_ids_internal.node n WHERE n.ord = add_node.ord AND n.node <> add_node.node) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'unique_violation',
            MESSAGE = format('another node has the number %s', ord);
    END IF;
    INSERT INTO insta_ids_internal.node AS n
    VALUES (add_node.node, add_node.dsn,
        coalesce(add_node.ord, (SELECT m.ord FROM insta_ids_internal.node m WHERE m.node = add_node.node),
            (SELECT coalesce(max(m.ord) + 1, 0) FROM insta_ids_internal.node m)))
    ON CONFLICT ON CONSTRAINT node_pkey DO UPDATE SET dsn = excluded.dsn, ord = excluded.ord;
END
$$;

CREATE FUNCTION insta_ids.drop_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    assigned record;
BEGIN
    PERFORM insta_ids.check_isolation('a node cannot be dropped');
    LOCK TABLE insta_ids_internal.node, insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    SELECT a.first, a.last INTO assigned FROM insta_ids_internal.assignment a WHERE a.node = drop_node.node ORDER BY a.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('node "%s" has shards', node),
            DETAIL = format('It has those from %s to %s.', assigned.first, assigned.last),
            HINT = 'Move them first, or assign them to another node if they are there.';
    ELSIF EXISTS (SELECT FROM insta_ids_internal.move m WHERE drop_node.node IN (m.from_node, m.to_node)) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards move from or to node "%s"', node),
            HINT = 'See insta_ids.moves.';
    END IF;
    DELETE FROM insta_ids_internal.node n WHERE n.node = drop_node.node;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_node(node);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.check_node(node name) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.node n WHERE n.node = check_node.node) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('node "%s" does not exist', node),
            HINT = 'Add it with insta_ids.add_node().';
    END IF;
END
$$;

-- Gives the map these assignments instead of its own. What is open to writers here stays on this node: another one may
-- have it after it was moved there.
CREATE FUNCTION insta_ids.set_assignments(firsts integer[], lasts integer[], nodes name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
    taken record;
    left_here insta_ids_internal.moved;
BEGIN
    SELECT d.* INTO left_here
    FROM insta_ids_internal.moved d
    JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON d.shard BETWEEN a.first AND a.last AND a.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids_internal.moved WHERE shard = %s.',
                left_here.shard);
    END IF;
    SELECT s.shard, a.node INTO taken
    FROM insta_ids_internal.shard s
    LEFT JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS DISTINCT FROM here AND here IS NOT NULL
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s is here, and open to writers', taken.shard),
            DETAIL = format('The map would have it on %s; this is node "%s".',
                coalesce('node "' || taken.node || '"', 'no node'), here),
            HINT = 'Move it with insta_ids.move_shards(), or fence it first: insta_ids.fence().';
    END IF;
    -- What is handed over goes from the one node to the other: a third one would get what it does not have.
    PERFORM insta_ids.check_moves(m.first, m.last)
    FROM insta_ids_internal.move m CROSS JOIN unnest(m.shards) s (shard)
    LEFT JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS NULL OR a.node NOT IN (m.from_node, m.to_node);
    DELETE FROM insta_ids_internal.assignment;
    INSERT INTO insta_ids_internal.assignment
    WITH ranges AS (
        SELECT a.first, a.last, a.node,
               lag(a.node) OVER n IS NOT DISTINCT FROM a.node AND lag(a.last) OVER n = a.first - 1 AS goes_on
        FROM unnest(firsts, lasts, nodes) a (first, last, node)
        WINDOW n AS (ORDER BY a.first)
    ), numbered AS (
        SELECT r.*, count(*) FILTER (WHERE NOT coalesce(r.goes_on, false)) OVER (ORDER BY r.first) AS number FROM ranges r
    )
    SELECT min(n.first), max(n.last), n.node FROM numbered n GROUP BY n.number, n.node;
END
$$;

CREATE FUNCTION insta_ids.assign(first integer, last integer, node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be assigned');
    PERFORM insta_ids.check_range(first, last, 1);
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(node);
    -- Whatever the map says, a move may be taken back to where it began.
    PERFORM insta_ids.check_moves(greatest(m.first, assign.first), least(m.last, assign.last))
    FROM insta_ids_internal.move m
    WHERE m.first <= assign.last AND m.last >= assign.first AND m.from_node <> assign.node;
    IF EXISTS (
        SELECT FROM insta_ids_internal.assignment a
        WHERE a.first <= assign.first AND a.last >= assign.last AND a.node = assign.node)
    THEN
        RETURN;
    END IF;
    PERFORM insta_ids.set_assignments(array_agg(p.first), array_agg(p.last), array_agg(p.node))
    FROM (
        SELECT a.first, least(a.last, assign.first - 1), a.node FROM insta_ids_internal.assignment a WHERE a.first < assign.first
        UNION ALL
        SELECT greatest(a.first, assign.last + 1), a.last, a.node FROM insta_ids_internal.assignment a WHERE a.last > assign.last
        UNION ALL
        VALUES (assign.first, assign.last, assign.node)
    ) p (first, last, node);
END
$$;

-- For all roles, which have no privileges on the tables.
CREATE FUNCTION insta_ids.shard_map() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
BEGIN
    RETURN jsonb_build_object(
        'format', 1,
        'version', coalesce((SELECT m.version FROM insta_ids_internal.map m), 0),
        'shards', config.shards,
        'prefix', config.prefix,
        'layout', config.layout::text,
        'nodes', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'dsn', n.dsn, 'ord', n.ord) ORDER BY n.ord), '[]')
            FROM insta_ids_internal.node n),
        'ranges', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(a.first, a.last, a.node) ORDER BY a.first), '[]')
            FROM insta_ids_internal.assignment a),
        'moving', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(m.first, m.last, m.from_node, m.to_node) ORDER BY m.first), '[]')
            FROM insta_ids_internal.move m),
        'known_answers', jsonb_build_object(
            'shard_of', (
                SELECT jsonb_agg(jsonb_build_object('type', k.type, 'key', k.key, 'shard', CASE k.type
                    WHEN 'bigint' THEN insta_ids.shard_of(k.key::bigint, config.shards)
                    WHEN 'uuid' THEN insta_ids.shard_of(k.key::uuid, config.shards)
                    ELSE insta_ids.shard_of(k.key, config.shards) END))
                FROM (VALUES
                    ('bigint', '0'), ('bigint', '31341'), ('bigint', '-5'), ('bigint', '9223372036854775807'),
                    ('bigint', '-9223372036854775808'), ('text', ''), ('text', 'kevin'), ('text', 'user@example.com'),
                    ('uuid', '00000000-0000-0000-0000-000000000000'), ('uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')
                ) k (type, key)),
            'id_shard', (
                SELECT jsonb_agg(jsonb_build_object('id', k.id::text, 'shard', insta_ids_internal.id_shard(k.id, config.layout)))
                FROM (VALUES (387141979217152906), (1455920561485265648), (9223372036854775807), (0)) k (id))));
END
$$;

CREATE FUNCTION insta_ids.apply_map(map jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
    own bigint;
BEGIN
    PERFORM insta_ids.check_isolation('a map cannot be applied');
    IF map -> 'format' IS DISTINCT FROM '1' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not of format 1',
            HINT = 'Take it from insta_ids.shard_map() of a server with this version of insta_ids.';
    ELSIF (
        SELECT count(*) FROM (VALUES
            ('version', 'number'), ('shards', 'number'), ('prefix', 'string'), ('layout', 'string'), ('nodes', 'array'),
            ('ranges', 'array')) k (key, type)
        WHERE jsonb_typeof(map -> k.key) = k.type) < 6
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not complete',
            DETAIL = 'It must have a version, shards, prefix, layout, nodes and ranges.';
    END IF;
    LOCK TABLE insta_ids_internal.node, insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids.config) THEN
        PERFORM insta_ids.init((map ->> 'shards')::integer, (map ->> 'prefix')::name, insta_ids_internal.layout(map ->> 'layout'));
    END IF;
    config := insta_ids.configured();
    own := coalesce((SELECT m.version FROM insta_ids_internal.map m), 0);
    IF (config.shards, config.prefix, config.layout::text)
        IS DISTINCT FROM ((map ->> 'shards')::integer, (map ->> 'prefix')::name, map ->> 'layout')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'map is of other shards than this database''s',
            DETAIL = format('It has %s, with the prefix "%s" and the layout "%s"; here are %s, with "%s" and "%s".',
                map ->> 'shards', map ->> 'prefix', map ->> 'layout', config.shards, config.prefix, config.layout);
    ELSIF (map ->> 'version')::bigint <= own THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'map is not newer than this server''s',
            DETAIL = format('Its version is %s, and here is %s.', map ->> 'version', own);
    ELSIF map -> 'ranges' = '[]' THEN
        -- As without a map, each server would have all of them.
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map has no shard on any node',
            HINT = 'Say where they are, on the server that it comes from: SELECT insta_ids.assign(first, last, node).';
    END IF;

    DELETE FROM insta_ids_internal.node;
    INSERT INTO insta_ids_internal.node
    SELECT n.node, n.dsn, n.ord FROM jsonb_to_recordset(map -> 'nodes') n (node name, dsn text, ord integer);
    PERFORM insta_ids.check_range((r ->> 0)::integer, (r ->> 1)::integer, 1), insta_ids.check_node(r ->> 2)
    FROM jsonb_array_elements(map -> 'ranges') r;
    PERFORM insta_ids.set_assignments(
        coalesce(array_agg((r ->> 0)::integer), '{}'), coalesce(array_agg((r ->> 1)::integer), '{}'),
        coalesce(array_agg((r ->> 2)::name), '{}'))
    FROM jsonb_array_elements(map -> 'ranges') r;
    UPDATE insta_ids_internal.map m SET version = (apply_map.map ->> 'version')::bigint;
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
