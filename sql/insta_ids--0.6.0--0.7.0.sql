-- From 0.6.0 to 0.7.0: the map, fences and moves.

-- The map: the servers that shards are on. A hint for who looks for a shard; what stops writers is a fence.

CREATE FUNCTION insta_ids.this_node() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'this_node_wrapper';
CREATE FUNCTION insta_ids.forget_map() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'forget_map_wrapper';
CREATE FUNCTION insta_ids.refuse(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'refuse_wrapper';

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

CREATE TABLE insta_ids.node (
    node name PRIMARY KEY,
    dsn text NOT NULL,
    ord integer NOT NULL UNIQUE CHECK (ord >= 0)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.node', '');

-- Without a foreign key, as a restore by several jobs loads the tables in any order.
CREATE TABLE insta_ids.assignment (
    first integer PRIMARY KEY CHECK (first >= 0),
    last integer NOT NULL CHECK (last >= first),
    node name NOT NULL,
    EXCLUDE USING gist (pg_catalog.int4range(first, last, '[]') WITH &&)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.assignment', '');

-- One row, from the first change on. Sessions read all of the map again when this table is said to have changed.
CREATE TABLE insta_ids.map (
    version bigint NOT NULL
);
CREATE UNIQUE INDEX map_once ON insta_ids.map ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids.map', '');

-- Moves, on both servers, until they have ended. On the source the step is offered, then fenced; on the target it is prepared,
-- copying, handed over.
CREATE TABLE insta_ids.move (
    -- Of the publication and the subscription, too.
    name name PRIMARY KEY,
    id uuid NOT NULL,
    first integer NOT NULL,
    last integer NOT NULL,
    shards integer[] NOT NULL,
    from_node name NOT NULL,
    to_node name NOT NULL,
    slot name NOT NULL,
    has_slot boolean NOT NULL DEFAULT false,
    bytes bigint NOT NULL,
    step text NOT NULL CHECK (step IN ('offered', 'fenced', 'prepared', 'copying', 'handed over')),
    -- On the source, what rows and values were in when the move began.
    relations oid[],
    -- On the source, the transaction of the fence, and then what the target goes on from.
    fenced_by xid8,
    mark jsonb,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    step_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.move', '');

-- How moves have ended: on the target handed over or cancelled, on the source handed over or withdrawn. Only one of the two
-- can come of a move on the target, whoever drives it.
CREATE TABLE insta_ids.ended_move (
    id uuid PRIMARY KEY,
    outcome text NOT NULL,
    -- Of one that was cancelled: what the source has to drop; NULL if it was not known here.
    table_slots name[],
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.ended_move', '');

-- Shards that have left, and what is still here of them, until it is dropped.
CREATE TABLE insta_ids.moved (
    shard integer PRIMARY KEY,
    schema name,
    to_node name NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.moved', '');

CREATE FUNCTION insta_ids.map_changed() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map();
    IF TG_TABLE_NAME = 'node' THEN
        PERFORM insta_ids.check_dsn(n.dsn) FROM insta_ids.node n;
    END IF;
    -- Rows that come alone are a dump's, which brings the version, too.
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO insta_ids.map VALUES (1) ON CONFLICT ((true)) DO UPDATE SET version = map.version + 1;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids.node
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.map_changed();
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids.assignment
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.map_changed();

CREATE FUNCTION insta_ids.tell_of_map() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map(), pg_notify('insta_ids_map', NEW.version::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER tell AFTER INSERT OR UPDATE ON insta_ids.map FOR EACH ROW EXECUTE FUNCTION insta_ids.tell_of_map();

-- Whether the map has a shard on this node, or this server all of them.
CREATE FUNCTION insta_ids.is_placed_here(shard integer) RETURNS boolean
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids.this_node() IS NULL OR NOT EXISTS (SELECT FROM insta_ids.assignment)
        OR EXISTS (
            SELECT FROM insta_ids.assignment a
            WHERE shard BETWEEN a.first AND a.last AND a.node = insta_ids.this_node()::name);

-- Refuses a shard that the map has on another node.
CREATE FUNCTION insta_ids.check_placement(shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name;
BEGIN
    IF NOT insta_ids.is_placed_here(shard) THEN
        SELECT a.node INTO node FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last;
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = format('shard %s is not on this node', shard),
            DETAIL = format('By version %s of the map it is on %s; this is node "%s".',
                (SELECT m.version FROM insta_ids.map m), coalesce(format('node "%s"', node), 'no node'),
                insta_ids.this_node());
    END IF;
    SELECT d.to_node INTO node FROM insta_ids.moved d WHERE d.shard = check_placement.shard AND d.schema IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s', shard);
    END IF;
END
$$;

-- Refuses shards that have moved away, and of which something is still here.
CREATE FUNCTION insta_ids.check_left(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remains insta_ids.moved;
BEGIN
    SELECT * INTO remains FROM insta_ids.moved d
    WHERE d.shard BETWEEN first AND last AND d.schema IS NOT NULL ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('what is left of shard %s is still here', remains.shard),
            DETAIL = format('It is in schema "%s", from when the shard moved to node "%s".', remains.schema, remains.to_node),
            HINT = format('SELECT insta_ids.drop_shard(%s)', remains.shard);
    END IF;
END
$$;

-- What a node's connection string must not be.
CREATE FUNCTION insta_ids.check_dsn(dsn text) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Wherever libpq would take one from: a parameter, also behind a quote or of a URI, where its name could be in an escape;
    -- or what is behind the user's name there.
    IF dsn ~* '(^|[^a-z_])(password|sslpassword|scram_client_key|scram_server_key|oauth_client_secret)\s*='
        OR dsn ~ '^postgres(ql)?://' AND (dsn ~ '^[^:]*://[^/@]*:[^/@]*@' OR dsn ~ '[?&][^=&]*%[^=&]*=')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'connection string has a password',
            DETAIL = 'The map is read by everybody.',
            HINT = 'Name a passfile or a service in it, which the servers'' own user can read, or use another way to authenticate.';
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
    LOCK TABLE insta_ids.node IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (
        SELECT FROM insta_ids.node n
        WHERE (n.node, n.dsn, n.ord) = (add_node.node, add_node.dsn, coalesce(add_node.ord, n.ord)))
    THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM insta_ids.node n WHERE n.ord = add_node.ord AND n.node <> add_node.node) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'unique_violation',
            MESSAGE = format('another node has the number %s', ord);
    END IF;
    INSERT INTO insta_ids.node AS n
    VALUES (add_node.node, add_node.dsn,
        coalesce(add_node.ord, (SELECT m.ord FROM insta_ids.node m WHERE m.node = add_node.node),
            (SELECT coalesce(max(m.ord) + 1, 0) FROM insta_ids.node m)))
    ON CONFLICT ON CONSTRAINT node_pkey DO UPDATE SET dsn = excluded.dsn, ord = excluded.ord;
END
$$;

CREATE FUNCTION insta_ids.drop_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    assigned record;
BEGIN
    LOCK TABLE insta_ids.node, insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    SELECT a.first, a.last INTO assigned FROM insta_ids.assignment a WHERE a.node = drop_node.node ORDER BY a.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('node "%s" has shards', node),
            DETAIL = format('It has those from %s to %s.', assigned.first, assigned.last),
            HINT = 'Move them first, or assign them to another node if they are there.';
    ELSIF EXISTS (SELECT FROM insta_ids.move m WHERE drop_node.node IN (m.from_node, m.to_node)) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards move from or to node "%s"', node),
            HINT = 'See insta_ids.moves.';
    END IF;
    DELETE FROM insta_ids.node n WHERE n.node = drop_node.node;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_node(node);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.check_node(node name) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids.node n WHERE n.node = check_node.node) THEN
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
    left_here insta_ids.moved;
BEGIN
    SELECT d.* INTO left_here
    FROM insta_ids.moved d
    JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON d.shard BETWEEN a.first AND a.last AND a.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s',
                left_here.shard);
    END IF;
    SELECT s.shard, a.node INTO taken
    FROM insta_ids.shard s
    LEFT JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS DISTINCT FROM here AND here IS NOT NULL
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s is here, and open to writers', taken.shard),
            DETAIL = format('The map would have it on %s; this is node "%s".',
                coalesce(format('node "%s"', taken.node), 'no node'), here),
            HINT = 'Move it with insta_ids.move_shards(), or fence it first: insta_ids.fence().';
    END IF;
    DELETE FROM insta_ids.assignment;
    INSERT INTO insta_ids.assignment
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
    PERFORM insta_ids.check_range(first, last, 1), insta_ids.check_node(node);
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (
        SELECT FROM insta_ids.assignment a
        WHERE a.first <= assign.first AND a.last >= assign.last AND a.node = assign.node)
    THEN
        RETURN;
    END IF;
    PERFORM insta_ids.set_assignments(array_agg(p.first), array_agg(p.last), array_agg(p.node))
    FROM (
        SELECT a.first, least(a.last, assign.first - 1), a.node FROM insta_ids.assignment a WHERE a.first < assign.first
        UNION ALL
        SELECT greatest(a.first, assign.last + 1), a.last, a.node FROM insta_ids.assignment a WHERE a.last > assign.last
        UNION ALL
        VALUES (assign.first, assign.last, assign.node)
    ) p (first, last, node);
END
$$;

CREATE FUNCTION insta_ids.shard_map() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
BEGIN
    RETURN jsonb_build_object(
        'format', 1,
        'version', coalesce((SELECT m.version FROM insta_ids.map m), 0),
        'shards', config.shards,
        'prefix', config.prefix,
        'layout', config.layout::text,
        'nodes', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'dsn', n.dsn, 'ord', n.ord) ORDER BY n.ord), '[]')
            FROM insta_ids.node n),
        'ranges', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(a.first, a.last, a.node) ORDER BY a.first), '[]')
            FROM insta_ids.assignment a),
        'moving', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(m.first, m.last, m.from_node, m.to_node) ORDER BY m.first), '[]')
            FROM insta_ids.move m),
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
                SELECT jsonb_agg(jsonb_build_object('id', k.id::text, 'shard', @extschema@.id_shard(k.id, config.layout)))
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
    END IF;
    LOCK TABLE insta_ids.node, insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids.config) THEN
        PERFORM insta_ids.init((map ->> 'shards')::integer, (map ->> 'prefix')::name, (map ->> 'layout')::@extschema@.id_layout);
    END IF;
    config := insta_ids.configured();
    own := coalesce((SELECT m.version FROM insta_ids.map m), 0);
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

    DELETE FROM insta_ids.node;
    INSERT INTO insta_ids.node
    SELECT n.node, n.dsn, n.ord FROM jsonb_to_recordset(map -> 'nodes') n (node name, dsn text, ord integer);
    PERFORM insta_ids.check_range((r ->> 0)::integer, (r ->> 1)::integer, 1), insta_ids.check_node(r ->> 2)
    FROM jsonb_array_elements(map -> 'ranges') r;
    PERFORM insta_ids.set_assignments(
        coalesce(array_agg((r ->> 0)::integer), '{}'), coalesce(array_agg((r ->> 1)::integer), '{}'),
        coalesce(array_agg((r ->> 2)::name), '{}'))
    FROM jsonb_array_elements(map -> 'ranges') r;
    UPDATE insta_ids.map m SET version = (apply_map.map ->> 'version')::bigint;
END
$$;

-- Fences: shards that nothing is written to here, and that nobody alters.

-- A shard that moves is altered by nobody from the first step on; and nothing is written to it once it is closed.
CREATE TABLE insta_ids.fence (
    shard integer PRIMARY KEY,
    is_closed boolean NOT NULL,
    -- Where it moves to.
    to_node name,
    since timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.fence', '');

CREATE FUNCTION insta_ids.fence_changed() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map();
    RETURN NULL;
END
$$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids.fence
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.fence_changed();

-- The fence of a table. It stops everybody, but no subscription that brings the rows of a shard.
CREATE FUNCTION insta_ids.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.refuse(TG_ARGV[0]::integer);
    RETURN NULL;
END
$$;

-- Locks tables, in this mode, and sequences until the transaction ends, when nobody is using them. Who comes meanwhile
-- waits for a tenth of a second at most, and then goes on while this waits: so nobody waits long; and of two that wait for
-- each other it is this that gives way, before the other is told of a deadlock.
CREATE FUNCTION insta_ids.lock_all(tables regclass[], mode text, sequences regclass[], what text, lock_timeout text)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    longest CONSTANT interval := least(interval '100 ms', current_setting('deadlock_timeout')::interval / 2);
    limit_ms integer;
    next_attempt timestamptz;
    wanted regclass;
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout, true);
    limit_ms := (SELECT s.setting FROM pg_settings s WHERE s.name = 'lock_timeout');
    LOOP
        next_attempt := clock_timestamp() + longest;
        BEGIN
            FOREACH wanted IN ARRAY tables || sequences LOOP
                PERFORM set_config('lock_timeout',
                    greatest(1, extract(epoch FROM next_attempt - clock_timestamp()) * 1000)::integer::text, true);
                IF wanted = ANY (tables) THEN
                    EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', wanted, mode);
                ELSE
                    PERFORM insta_ids.lock_sequence(wanted);
                END IF;
            END LOOP;
            RETURN;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
        IF limit_ms > 0 AND clock_timestamp() > began + limit_ms * interval '1 ms' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('could not lock the tables and sequences of %s', what),
                DETAIL = format('%s is in use%s.', wanted, (
                    SELECT ' by ' || string_agg(DISTINCT coalesce('process ' || l.pid,
                        format('prepared transaction "%s"', x.gid)), ', ')
                    FROM pg_locks l
                    -- A transaction that is prepared has no process, and holds its own number.
                    LEFT JOIN pg_locks t
                        ON l.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
                    LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                    WHERE l.locktype = 'relation' AND l.relation = wanted AND l.granted
                        AND l.pid IS DISTINCT FROM pg_backend_pid()
                        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))),
                HINT = 'Call again when long transactions have ended, or with a longer lock_timeout.';
        END IF;
        PERFORM pg_sleep(0.02 + 0.08 * random());
    END LOOP;
END
$$;

-- Tables that a statement on another one writes to, where only one of the two is of these shards: a fence stops that one
-- only.
CREATE FUNCTION insta_ids.check_heirs(shards integer[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    heir record;
BEGIN
    SELECT coalesce(c.shard, p.shard) AS shard, i.inhrelid::regclass AS child, i.inhparent::regclass AS parent INTO heir
    FROM pg_inherits i
    JOIN pg_class cc ON cc.oid = i.inhrelid AND cc.relkind IN ('r', 'p', 'f')
    JOIN pg_class pc ON pc.oid = i.inhparent
    LEFT JOIN insta_ids.shard_schema c ON c.oid = cc.relnamespace AND c.shard = ANY (shards)
    LEFT JOIN insta_ids.shard_schema p ON p.oid = pc.relnamespace AND p.shard = ANY (shards)
    WHERE c.shard IS DISTINCT FROM p.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s shares rows with another schema', heir.shard),
            DETAIL = format('Table %s is a partition or heir of %s.', heir.child, heir.parent),
            HINT = 'Detach the partition, or end the inheritance.';
    END IF;
END
$$;

-- Closes shards to all who write, when those who do have ended.
CREATE FUNCTION insta_ids.close_shards(shards integer[], to_node name, lock_timeout text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids.shard_relation;
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be fenced'), insta_ids.check_heirs(shards);
    PERFORM insta_ids.lock_all(
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        format('%s shards from %s', cardinality(shards), shards[1]), lock_timeout);
    -- While it is not there, its own DDL is not refused.
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
    LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence') THEN
            EXECUTE format('CREATE TRIGGER insta_ids_fence BEFORE INSERT OR UPDATE OR DELETE%s ON %s'
                || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.refuse_write(%s)',
                -- Before PostgreSQL 16, foreign tables have no triggers for it.
                CASE WHEN next.kind <> 'f' OR current_setting('server_version_num')::integer >= 160000 THEN ' OR TRUNCATE' END,
                next.relation, next.shard);
        END IF;
        -- Where shards come to, the subscription that brings their rows goes past it; elsewhere none does.
        EXECUTE format('ALTER TABLE ONLY %s ENABLE %s TRIGGER insta_ids_fence', next.relation,
            CASE WHEN to_node = insta_ids.this_node() THEN '' ELSE 'ALWAYS' END);
    END LOOP;
    INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, true, to_node FROM unnest(shards) s;
END
$$;

-- Opens shards again. The triggers stay, disabled: to drop them would wait for all who read the tables.
CREATE FUNCTION insta_ids.open_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation regclass;
BEGIN
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (shards);
    FOR relation IN
        SELECT r.relation FROM insta_ids.shard_relation r
        JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgname = 'insta_ids_fence' AND t.tgenabled <> 'D'
        WHERE r.shard = ANY (shards) ORDER BY r.relation
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER insta_ids_fence', relation);
    END LOOP;
END
$$;

-- Locks a shard that is here until the transaction ends, so that nobody else alters or moves it.
CREATE FUNCTION insta_ids.claim(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing integer;
BEGIN
    PERFORM FROM insta_ids.shard s WHERE s.shard = ANY (shards) ORDER BY s.shard FOR UPDATE;
    missing := (SELECT min(n) FROM unnest(shards) n WHERE NOT EXISTS (SELECT FROM insta_ids.shard s WHERE s.shard = n));
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', missing);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.fence(shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.claim(ARRAY[shard]), insta_ids.check_moves(shard, shard);
    PERFORM insta_ids.close_shards(ARRAY[shard], NULL, lock_timeout);
END
$$;

CREATE FUNCTION insta_ids.unfence(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.claim(ARRAY[shard]), insta_ids.check_moves(shard, shard), insta_ids.check_placement(shard);
    PERFORM insta_ids.open_shards(ARRAY[shard]);
END
$$;

-- The schemas of shards that move or are fenced, as they are now, whatever the transaction's snapshot is.
CREATE FUNCTION insta_ids.fenced_schemas() RETURNS TABLE (shard integer, schema text)
    VOLATILE PARALLEL UNSAFE ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'fenced_schemas_wrapper';

-- Refuses whoever alters what is in a shard that moves or is fenced.
CREATE FUNCTION insta_ids.keep_fenced() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards integer[];
    schemas text[];
    altered record;
BEGIN
    -- Most DDL ends here, and does not need the library.
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
        AND NOT EXISTS (SELECT FROM insta_ids.fence)
    THEN
        RETURN;
    END IF;
    SELECT array_agg(f.shard), array_agg(f.schema) INTO shards, schemas FROM insta_ids.fenced_schemas() f;
    -- A dump that is restored brings the fences before the last of what is in the shards; its scripts say this.
    IF shards IS NULL OR current_setting('check_function_bodies') = 'off'
        AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
    THEN
        RETURN;
    END IF;
    IF TG_EVENT = 'sql_drop' THEN
        SELECT f.shard, d.object_type || ' ' || d.object_identity AS object INTO altered
        FROM pg_event_trigger_dropped_objects() d
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema
            = coalesce(d.schema_name, CASE d.object_type WHEN 'schema' THEN d.object_name ELSE d.address_names[1] END)
        WHERE NOT d.is_temporary AND d.object_type <> 'publication relation' LIMIT 1;
    ELSE
        SELECT f.shard, c.object_type || ' ' || c.object_identity AS object INTO altered
        FROM pg_event_trigger_ddl_commands() c
        -- What has no schema of its own.
        LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
        LEFT JOIN pg_rewrite r ON c.classid = 'pg_rewrite'::regclass AND r.oid = c.objid
        LEFT JOIN pg_policy p ON c.classid = 'pg_policy'::regclass AND p.oid = c.objid
        LEFT JOIN pg_class o ON o.oid = coalesce(t.tgrelid, r.ev_class, p.polrelid)
        LEFT JOIN pg_namespace n ON n.oid = o.relnamespace
        -- A table that is in another schema now.
        LEFT JOIN pg_trigger g
            ON c.classid = 'pg_class'::regclass AND g.tgrelid = c.objid AND g.tgname = 'insta_ids_fence' AND g.tgenabled <> 'D'
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema = coalesce(c.schema_name, n.nspname)
            OR c.command_tag = 'ALTER SCHEMA' AND to_regnamespace(quote_ident(f.schema)) IS NULL
            OR encode(g.tgargs, 'escape') = f.shard || '\000'
        WHERE c.command_tag NOT IN ('COMMENT', 'REINDEX', 'REFRESH MATERIALIZED VIEW')
            AND c.object_type <> 'publication relation' LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered.shard),
            DETAIL = format('%s is of it.', upper(left(altered.object, 1)) || substr(altered.object, 2)),
            HINT = 'Try again when it has moved: see insta_ids.moves.';
    ELSIF TG_TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE') THEN
        PERFORM insta_ids.check_heirs(shards);
    END IF;
END
$$;
CREATE EVENT TRIGGER insta_ids_keep_fenced ON ddl_command_end EXECUTE FUNCTION insta_ids.keep_fenced();
CREATE EVENT TRIGGER insta_ids_keep_fenced_from_drop ON sql_drop EXECUTE FUNCTION insta_ids.keep_fenced();

-- What has changed of progress, migrations, shards, checking and adoption.

-- What rows and values of shards are in: tables, also foreign ones, and sequences.
CREATE VIEW insta_ids.shard_relation AS
SELECT s.shard, s.schema, c.relname AS name, c.oid::regclass AS relation, c.relkind AS kind,
       c.relpersistence AS persistence, c.relispartition AS is_partition
FROM insta_ids.shard_schema s
JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f', 'S');

-- Commits, and begins a transaction that sees what others have done since, with a safe search_path.
CREATE PROCEDURE insta_ids.new_transaction()
    LANGUAGE plpgsql
AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
END
$$;

-- Refuses to drop a shard's schema on which something outside depends: as DROP ... RESTRICT would tell, if the schema were
-- one object.
CREATE FUNCTION insta_ids.check_dependents(shard integer, schema oid) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outside text;
BEGIN
    -- What depends on a part of it, and is none.
    WITH RECURSIVE parts AS (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema
            AND d.classid <> 'pg_extension'::regclass
        UNION
        SELECT d.classid, d.objid
        FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
        WHERE d.deptype <> 'n'
    )
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid) INTO outside
    FROM (SELECT 'pg_namespace'::regclass, schema UNION ALL SELECT * FROM parts) p (classid, objid)
    JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype = 'n'
    WHERE (d.classid, d.objid) NOT IN (SELECT * FROM parts)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('cannot drop shard %s because other objects depend on it', shard),
            DETAIL = format('One is %s.', outside),
            HINT = 'Drop them first, or use force => true to drop them with it.';
    END IF;
END
$$;

-- What the map, the fences and the moves do not agree in with this server.
CREATE FUNCTION insta_ids.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce(format('node "%s"', a.node), 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids.shard_schema s
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids.fence f
    JOIN insta_ids.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND NOT EXISTS (
            SELECT FROM pg_trigger t WHERE t.tgrelid = r.relation AND t.tgname = 'insta_ids_fence' AND t.tgenabled <> 'D')
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- Tables whose rows logical replication cannot tell apart.
CREATE FUNCTION insta_ids.unidentified_tables(shards integer[]) RETURNS TABLE (shard integer, relation regclass)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT s.shard, c.oid::regclass
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p')
    WHERE s.shard = ANY (shards)
        AND (c.relreplident = 'n'
            OR c.relreplident IN ('d', 'i') AND NOT EXISTS (
                SELECT FROM pg_index i
                WHERE i.indrelid = c.oid AND i.indisvalid
                    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate ELSE i.indisreplident END))
    ORDER BY s.shard, c.relname;
END
$$;

-- Ends a batch of who works through `total` shards, of which so many are done; the first call comes before the first
-- shard. Leaves a new transaction with a safe search_path.
CREATE OR REPLACE PROCEDURE insta_ids.commit_batch(command text, total integer, done integer, failed integer)
    LANGUAGE plpgsql
AS $$
DECLARE
    work insta_ids.work;
    seconds numeric;
BEGIN
    UPDATE insta_ids.work w
    SET done = commit_batch.done, failed = commit_batch.failed, updated_at = clock_timestamp(),
        told_at = CASE WHEN clock_timestamp() - w.told_at >= '1 s' THEN clock_timestamp() ELSE w.told_at END
    WHERE w.pid = pg_backend_pid() AND w.started_at = statement_timestamp()
    RETURNING w.* INTO work;
    IF NOT FOUND THEN
        DELETE FROM insta_ids.work w
        WHERE w.pid = pg_backend_pid() OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.pid);
        INSERT INTO insta_ids.work
        SELECT pg_backend_pid(), command, total, done, failed, statement_timestamp(), now, now
        FROM clock_timestamp() now
        RETURNING * INTO work;
    END IF;
    IF done = total THEN
        DELETE FROM insta_ids.work w WHERE w.pid = pg_backend_pid();
    END IF;

    CALL insta_ids.new_transaction();
    PERFORM insta_ids.limit_catalog_cache();
    IF done = total THEN
        RAISE NOTICE '%: % of % shards in % s', command, done, total,
            round(extract(epoch FROM clock_timestamp() - statement_timestamp()), 1);
    ELSIF done > 0 AND work.told_at >= work.updated_at THEN
        seconds := extract(epoch FROM work.updated_at - work.started_at);
        RAISE NOTICE '%: % of % shards, % per second, % s left', command, done, total,
            round(done / seconds, 1), ceil((total - done) * seconds / done);
    END IF;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.migrate(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50, lock_timeout text DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    outcome pg_catalog.record;
    first_failed integer;
    first_failure pg_catalog.record;
    waiting pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    -- Shards of the batch so far.
    held integer := 0;
    budget_known boolean := false;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    PERFORM insta_ids.check_range(first, last, batch), set_config('lock_timeout', lock_timeout, true);
    todo := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);

    FOREACH number IN ARRAY todo LOOP
        LOOP
            -- What another session migrates is left to it, and what moves or is fenced to who opens it.
            PERFORM FROM insta_ids.shard s
            WHERE s.shard = number AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard)
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                busy := busy + 1;
                EXIT;
            END IF;
            PERFORM set_config('lock_timeout', CASE held WHEN 0 THEN lock_timeout ELSE '10ms' END, true);
            SELECT * INTO outcome FROM insta_ids.apply_migrations(number, path, false);
            IF outcome.failed IS NULL THEN
                held := held + 1;
                EXIT;
            ELSIF outcome.code <> '55P03' OR held = 0 THEN
                failed := failed + 1;
                IF failed = 1 THEN
                    first_failed := number;
                    first_failure := outcome;
                END IF;
                held := held + 1;
                INSERT INTO insta_ids.shard_migration
                VALUES (number, outcome.failed, clock_timestamp(), outcome.statement, outcome.code, outcome.message)
                ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
                SET at = excluded.at, statement = excluded.statement,
                    sqlstate = excluded.sqlstate, message = excluded.message;
                EXIT;
            END IF;
            -- It waits for a lock by itself: those who use the shards of this batch do not wait with it.
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END LOOP;
        done := done + 1;
        IF NOT budget_known AND held > 0 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
            budget_known := true;
        END IF;
        IF held >= batch AND done < cardinality(todo) THEN
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END IF;
    END LOOP;
    IF cardinality(todo) > 0 THEN
        CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
    END IF;

    FOR waiting IN
        SELECT m.name, count(*) AS shards
        FROM (
            SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
            WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
            GROUP BY s.shard
        ) next
        JOIN insta_ids.migration m ON m.number = next.number AND NOT m.transactional
        GROUP BY m.name
    LOOP
        RAISE NOTICE USING
            MESSAGE = format('migration "%s" waits, as it cannot run in a transaction', waiting.name),
            DETAIL = format('Shards for which it is next: %s.', waiting.shards),
            HINT = format('In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec', waiting.name);
    END LOOP;
    IF busy > 0 THEN
        RAISE NOTICE 'shards left to another session, or fenced: %', busy;
    END IF;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = first_failure.code,
            MESSAGE = format('%s of %s shards could not be migrated', failed, cardinality(todo)),
            DETAIL = format('The first is shard %s, at %s of migration "%s": %s', first_failed,
                coalesce('statement ' || first_failure.statement, 'the CHECKs'), first_failure.name,
                first_failure.message),
            HINT = 'The others are migrated. See insta_ids.migration_status, and call again to migrate the rest.';
    END IF;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

-- Makes a shard, or returns NULL if it is there. `path` is the search_path of who asked for it.
CREATE OR REPLACE FUNCTION insta_ids.make_shard(shard integer, path text) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    outcome record;
BEGIN
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_moves(shard, shard), insta_ids.check_left(shard, shard);
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (make_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF to_regnamespace(quote_ident(schema)) IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END IF;
    EXECUTE format('CREATE SCHEMA %I', schema);
    PERFORM insta_ids.make_surface(shard);
    SELECT * INTO outcome FROM insta_ids.apply_migrations(shard, path, true);
    IF outcome.failed IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = outcome.code,
            MESSAGE = outcome.message,
            DETAIL = concat_ws(E'\n', nullif(outcome.detail, ''), nullif(outcome.hint, ''),
                format('It is %s of migration "%s", in shard %s.',
                    coalesce('statement ' || outcome.statement, 'a CHECK'), outcome.name, shard));
    END IF;
    RETURN schema;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.create_shard(shard integer) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    schema pg_catalog.name;
BEGIN
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_placement(shard);
    schema := insta_ids.make_shard(shard, pg_catalog.current_setting('search_path'));
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('shard %s already exists', shard),
            HINT = 'If its schema is missing, insta_ids.drop_shard() forgets it.';
    END IF;
    RETURN schema;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.create_shards(first integer, last integer, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    taken pg_catalog.record;
    done integer := 0;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'first and last shard must be given';
    END IF;
    PERFORM insta_ids.check_range(first, last, batch);
    -- Those that the map has on other nodes are theirs.
    todo := ARRAY(
        SELECT n FROM generate_series(first, last) n
        WHERE NOT EXISTS (SELECT FROM insta_ids.shard s WHERE s.shard = n)
            AND insta_ids.is_placed_here(n)
        ORDER BY n);
    SELECT n AS shard, s.nspname AS schema INTO taken
    FROM insta_ids.config c, unnest(todo) n, pg_namespace s
    WHERE s.nspname = (c.prefix || n::text)::name
        -- Another session may have made it since.
        AND NOT EXISTS (SELECT FROM insta_ids.shard x WHERE x.shard = n)
    ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', taken.schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', taken.shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END IF;

    CALL insta_ids.commit_batch('create_shards', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        PERFORM insta_ids.check_placement(number), insta_ids.make_shard(number, path);
        done := done + 1;
        IF done = 1 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
        END IF;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('create_shards', cardinality(todo), done, 0);
        END IF;
    END LOOP;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    remains name;
    dropped oid := to_regnamespace(quote_ident(schema));
    relation regclass;
    has_rows boolean;
BEGIN
    PERFORM insta_ids.check_moves(shard, shard);
    SELECT d.schema INTO remains FROM insta_ids.moved d WHERE d.shard = drop_shard.shard FOR UPDATE;
    IF remains IS NOT NULL THEN
        UPDATE insta_ids.moved d SET schema = NULL WHERE d.shard = drop_shard.shard;
        IF NOT force THEN
            PERFORM insta_ids.check_dependents(shard, to_regnamespace(quote_ident(remains)));
        END IF;
        EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', remains);
        RETURN;
    END IF;
    DELETE FROM insta_ids.fence f WHERE f.shard = drop_shard.shard;
    DELETE FROM insta_ids.shard s WHERE s.shard = drop_shard.shard;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = drop_shard.shard;
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        PERFORM insta_ids.check_isolation('whether a shard is empty cannot be told');
        -- Nothing is made in it from here on.
        PERFORM insta_ids.lock_schema(dropped);
        FOR relation IN
            SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped AND c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', relation);
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', relation) INTO has_rows;
            IF has_rows THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not empty', shard),
                    DETAIL = format('Table %s has rows.', relation),
                    HINT = 'Use force => true to drop it with all that is in it.';
            END IF;
        END LOOP;
        PERFORM insta_ids.check_dependents(shard, dropped);
    END IF;
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
END
$$;

-- Privileges on the database, to make schemas in it, are not among them.
CREATE OR REPLACE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT SELECT, INSERT ON insta_ids.config TO %s', role);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE'
        || ' ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.work, insta_ids.node,'
        || ' insta_ids.assignment, insta_ids.map, insta_ids.fence, insta_ids.move, insta_ids.ended_move,'
        || ' insta_ids.moved TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.shard_schema, insta_ids.shard_relation, insta_ids.migration_status,'
        || ' insta_ids.progress, insta_ids.moves TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON PROCEDURE insta_ids.create_shards, insta_ids.migrate, insta_ids.check_rows,'
        || ' insta_ids.commit_batch, insta_ids.new_transaction TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION insta_ids.init, insta_ids.create_shard, insta_ids.make_shard,'
        || ' insta_ids.drop_shard, insta_ids.lock_schema, insta_ids.add_migration, insta_ids.apply_migrations,'
        || ' insta_ids.path_of, insta_ids.check_path, insta_ids.statements, insta_ids.minting_columns,'
        || ' insta_ids.migration_script, insta_ids.migration_by_script, insta_ids.start_migration,'
        || ' insta_ids.finish_migration, insta_ids.note_transactions, insta_ids.transactions_committed,'
        || ' insta_ids.check_range, insta_ids.check_locks, insta_ids.limit_catalog_cache, insta_ids.check,'
        || ' insta_ids.check_server, insta_ids.check_schemas, insta_ids.check_migrations, insta_ids.check_objects,'
        || ' insta_ids.check_references, insta_ids.check_sequences, insta_ids.check_ids, insta_ids.check_ids_of,'
        || ' insta_ids.objects_of, insta_ids.mending, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.check_isolation, insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.read_function, insta_ids.write_function, insta_ids.rewrite_function,'
        || ' insta_ids.lock_sequence, insta_ids.named_sequence, insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_adoption, insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.claim_shard, insta_ids.tell_of_dependents, insta_ids.unidentified_tables, insta_ids.check_map,'
        || ' insta_ids.check_dependents, insta_ids.check_left, insta_ids.is_placed_here, insta_ids.check_placement,'
        || ' insta_ids.own_node, insta_ids.forget_map, insta_ids.check_dsn, insta_ids.add_node,'
        || ' insta_ids.drop_node, insta_ids.check_node, insta_ids.set_assignments, insta_ids.assign, insta_ids.apply_map,'
        || ' insta_ids.refuse_write, insta_ids.lock_all, insta_ids.check_heirs, insta_ids.close_shards,'
        || ' insta_ids.open_shards, insta_ids.claim, insta_ids.fence, insta_ids.unfence, insta_ids.check_moves,'
        || ' insta_ids.open_move, insta_ids.move_outcome, insta_ids.commit_durably, insta_ids.check_movable,'
        || ' insta_ids.objects_json, insta_ids.partitions_json, insta_ids.relations_of, insta_ids.published_tables,'
        || ' insta_ids.move_offer, insta_ids.move_slot, insta_ids.move_lag, insta_ids.move_slots_lost,'
        || ' insta_ids.move_fence, insta_ids.move_mark, insta_ids.drop_slot, insta_ids.assign_moved,'
        || ' insta_ids.move_finish, insta_ids.move_withdraw, insta_ids.move_hashes TO %s', role);
END
$$;

-- Schemas that are missing, or in the way.
CREATE OR REPLACE FUNCTION insta_ids.check_schemas() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- The planner knows nothing of how many shards there are until they are analyzed.
    SET enable_nestloop = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
BEGIN
    RETURN QUERY
    SELECT 'error', 'missing_schema', quote_ident(s.schema),
           format('Shard %s has lost its schema.', s.shard),
           format('Restore it, or forget the shard: SELECT insta_ids.drop_shard(%s)', s.shard)
    FROM insta_ids.shard_schema s WHERE s.oid IS NULL ORDER BY s.shard;

    RETURN QUERY
    SELECT 'warning', 'unmanaged_schema', quote_ident(n.nspname),
           CASE WHEN number = shard::text AND shard < config.shards
               THEN format('It is called like shard %s, which is not there.', shard)
               ELSE 'It is called almost like a shard, and is none.' END,
           format('%s: ALTER SCHEMA %I RENAME TO %I',
               CASE WHEN number = shard::text AND shard < config.shards
                   THEN 'Call insta_ids.adopt(), or rename it' ELSE 'Rename it' END,
               n.nspname, 'not_' || n.nspname)
    FROM pg_namespace n
    CROSS JOIN LATERAL substr(n.nspname, length(config.prefix) + 1) number
    CROSS JOIN LATERAL (SELECT CASE WHEN number ~ '^[0-9]{1,9}$' THEN number::integer END) s (shard)
    WHERE starts_with(n.nspname, config.prefix) AND number ~ '^[0-9]'
        AND NOT EXISTS (SELECT FROM insta_ids.shard_schema m WHERE m.oid = n.oid)
        AND NOT EXISTS (SELECT FROM insta_ids.moved d WHERE d.schema = n.nspname)
    ORDER BY length(n.nspname), n.nspname;
END
$$;

-- What is in shards, one line for each thing that can differ, in words that are the same in each shard: chr(1) stands
-- for its schema and a dot, chr(4) for the same in a literal where that has quotes, chr(5) for a literal that is its
-- schema, chr(2) for its number. Without partitions, of which older shards may have more; without owners and privileges;
-- and written out without the CHECKs of ids, which depend on defaults.
--
-- If it is only to be compared, expressions are not written out: to name a function, PostgreSQL looks at all that are
-- called like it, and each shard has its next_id. In their place is the stored tree, with the names of what it depends on.
CREATE OR REPLACE FUNCTION insta_ids.objects_of(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- By how many shards are asked for.
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid, o.own, replace(o.own, '''', '''''') AS own_in_literal,
               insta_ids.literal_of(s.schema) AS literal
        FROM insta_ids.shard_schema s
        CROSS JOIN LATERAL (SELECT quote_ident(s.schema) || '.') o (own)
        WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S', 'c') AND NOT c.relispartition
    ), functions AS MATERIALIZED (
        SELECT s.shard, p.*, format('%I(%s)', p.proname, replace(oidvectortypes(p.proargtypes), s.own, chr(1))) AS signature
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        -- Those of a type come and go with it.
        WHERE NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
    ), expressions AS (
        SELECT r.shard, r.relnamespace AS schema, CASE a.attgenerated WHEN '' THEN 'default' ELSE 'expression' END AS kind,
               r.relname AS relation, a.attname::text AS name, 'pg_attrdef'::regclass AS classid, d.oid, d.adrelid,
               d.adbin AS tree,
               CASE a.attgenerated WHEN 's' THEN 'STORED' WHEN 'v' THEN 'VIRTUAL' END AS attributes
        FROM relations r
        JOIN pg_attrdef d ON d.adrelid = r.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT f.shard, f.pronamespace, 'function', NULL, f.signature, 'pg_proc'::regclass, f.oid, NULL, f.prosqlbody,
               concat_ws(' ', f.prokind, f.provolatile, f.proisstrict, f.prosecdef, f.proleakproof, f.proparallel,
                   f.procost, f.prorows, f.proretset, format_type(f.prorettype, NULL),
                   replace(f.proconfig::text, s.schema, chr(5)),
                   pg_get_expr(f.proargdefaults, 0), a.names)
        FROM functions f
        JOIN schemas s ON s.shard = f.shard
        CROSS JOIN LATERAL (
            SELECT string_agg(n.name, ' ' ORDER BY n.place)
            FROM unnest(f.proargnames, f.proargmodes) WITH ORDINALITY n (name, mode, place)
            WHERE n.mode IS DISTINCT FROM 'o'
        ) a (names)
        WHERE f.prokind <> 'a'
    ), objects (shard, kind, relation, name, definition) AS (
        SELECT r.shard, 'table', NULL, r.relname,
               concat_ws(' ', CASE r.relpersistence WHEN 'u' THEN 'unlogged' END,
                   CASE r.relkind WHEN 'f' THEN 'foreign' WHEN 'p' THEN 'partitioned' END, 'table',
                   CASE r.relkind WHEN 'p' THEN 'by ' || pg_get_partkeydef(r.oid) END,
                   CASE WHEN r.relrowsecurity THEN 'with row security' END,
                   CASE WHEN r.relforcerowsecurity THEN 'forced' END,
                   CASE WHEN r.relreplident <> 'd' THEN 'with replica identity ' || r.relreplident::text END)
        FROM relations r WHERE r.relkind IN ('r', 'p', 'f')
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'c' THEN 'attribute' ELSE 'column' END, r.relname, a.attname,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                   CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'COLLATE ' || a.attcollation::regcollation END)
        FROM relations r
        JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN pg_type t ON t.oid = a.atttypid
        WHERE r.relkind IN ('r', 'p', 'f', 'c')
        UNION ALL
        SELECT r.shard, 'NOT NULL', r.relname, a.attname, 'NOT NULL'
        FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE r.relkind IN ('r', 'p', 'f') AND a.attnotnull
        UNION ALL
        SELECT e.shard, e.kind, e.relation, e.name,
               CASE WHEN x.essence IS NOT NULL THEN concat_ws(' ', x.essence, e.attributes)
                   WHEN e.kind = 'default' THEN pg_get_expr(e.tree, e.adrelid)
                   WHEN e.kind = 'expression'
                       THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(e.tree, e.adrelid), e.attributes)
                   -- Whether a result has a name makes no difference to who calls it; of what was adopted it may have one.
                   ELSE regexp_replace(pg_get_functiondef(e.oid),
                       '(, )?OUT ("([^"]|"")+"|\w+) bigint\)\n RETURNS bigint', E')\n RETURNS bigint') END
        FROM expressions e
        CROSS JOIN LATERAL (
            SELECT CASE WHEN NOT written_out AND e.kind <> 'expression' THEN
                insta_ids.essence(e.tree::text, coalesce(array_agg(d.refobjid), '{}'), coalesce(array_agg(n.name), '{}'),
                    minting, e.shard) END AS essence
            FROM pg_depend d
            LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
            LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
            LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN p.oid IS NOT NULL
                        THEN format('%s.%s(%s)', nullif(p.pronamespace, e.schema), p.proname, oidvectortypes(p.proargtypes))
                    WHEN c.oid IS NOT NULL THEN concat_ws('.', nullif(c.relnamespace, e.schema), c.relname)
                    -- Constants of others have OIDs in them.
                    WHEN t.oid IS NULL OR t.typtype IN ('b', 'd') AND t.typelem = 0
                        THEN pg_describe_object(d.refclassid, d.refobjid, 0)
                END
            ) n (name)
            WHERE d.classid = e.classid AND d.objid = e.oid
        ) x
        UNION ALL
        SELECT f.shard, 'aggregate', NULL, f.signature,
               concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, format_type(a.aggtranstype, NULL), a.agginitval)
        FROM functions f JOIN pg_aggregate a ON a.aggfnoid = f.oid
        UNION ALL
        SELECT r.shard, 'index', r.relname, i.relname, pg_get_indexdef(x.indexrelid)
        FROM relations r
        JOIN pg_index x ON x.indrelid = r.oid
        JOIN pg_class i ON i.oid = x.indexrelid
        WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = r.oid AND k.conindid = i.oid)
        UNION ALL
        SELECT r.shard, 'constraint', r.relname, CASE WHEN NOT i.is_of_ids THEN k.conname ELSE '' END,
               CASE WHEN i.is_of_ids THEN replace(k.definition, format('= %s))', r.shard), '= ' || chr(2) || '))')
                   ELSE k.definition END
        FROM relations r
        CROSS JOIN LATERAL (
            SELECT k.conname, regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') AS definition
            -- One of a foreign key for each partition of what it refers to comes and goes with that.
            FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype <> 'n' AND k.conparentid = 0
        ) k
        CROSS JOIN LATERAL (SELECT k.definition LIKE format('CHECK ((%%id\_shard(%%) = %s))', r.shard)) i (is_of_ids)
        WHERE NOT (i.is_of_ids AND written_out)
        UNION ALL
        SELECT r.shard, 'trigger', r.relname, g.tgname,
               concat_ws(' ', pg_get_triggerdef(g.oid), CASE WHEN g.tgenabled <> 'O' THEN '(' || g.tgenabled::text || ')' END)
        FROM relations r JOIN pg_trigger g ON g.tgrelid = r.oid AND NOT g.tgisinternal AND g.tgname <> 'insta_ids_fence'
        UNION ALL
        SELECT r.shard, 'policy', r.relname, p.polname,
               concat_ws(' ', p.polcmd::text, p.polpermissive, p.polroles::regrole[],
                   pg_get_expr(p.polqual, p.polrelid), 'CHECK ' || pg_get_expr(p.polwithcheck, p.polrelid))
        FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
        UNION ALL
        SELECT r.shard, 'rule', r.relname, u.rulename, pg_get_ruledef(u.oid)
        FROM relations r JOIN pg_rewrite u ON u.ev_class = r.oid AND u.rulename <> '_RETURN'
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END, NULL, r.relname,
               concat('WITH (' || nullif(o.options, '') || ') ', 'AS', pg_get_viewdef(r.oid))
        FROM relations r
        CROSS JOIN LATERAL (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(r.reloptions) o) o (options)
        WHERE r.relkind IN ('v', 'm')
        UNION ALL
        SELECT r.shard, CASE WHEN i.attname IS NULL THEN 'sequence' ELSE 'identity' END, i.relname,
               coalesce(i.attname, r.relname),
               CASE i.attidentity WHEN 'a' THEN format('GENERATED ALWAYS AS IDENTITY (%s)', q.options)
                   WHEN 'd' THEN format('GENERATED BY DEFAULT AS IDENTITY (%s)', q.options)
                   ELSE format('AS %s %s', s.seqtypid::regtype, q.options) END
        FROM relations r
        JOIN pg_sequence s ON s.seqrelid = r.oid
        CROSS JOIN LATERAL format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement,
            s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) q (options)
        -- At most one, as the planner does not know: else it reads all columns that there are.
        LEFT JOIN LATERAL (
            SELECT t.relname, a.attname, a.attidentity
            FROM pg_depend d
            JOIN pg_class t ON t.oid = d.refobjid
            JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i'
                AND d.refclassid = 'pg_class'::regclass
            LIMIT 1
        ) i ON true
        UNION ALL
        SELECT s.shard, 'type', NULL, t.typname,
               concat_ws(' ', t.typtype::text, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
                   (SELECT format_type(g.rngsubtype, NULL) FROM pg_range g WHERE g.rngtypid = t.oid),
                   CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
                   (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                    FROM pg_enum e WHERE e.enumtypid = t.oid),
                   (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname)
                    FROM pg_constraint k WHERE k.contypid = t.oid))
        FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid AND t.typtype IN ('d', 'e', 'r')
        UNION ALL
        SELECT r.shard, 'type', NULL, r.relname, 'c' FROM relations r WHERE r.relkind = 'c'
        UNION ALL
        -- Not in the order of the columns, which may have been added in another one.
        SELECT s.shard, 'statistics', NULL, x.stxname,
               format('%s ON %s FROM %s', split_part(pg_get_statisticsobjdef(x.oid), ' ON ', 1), k.columns,
                   x.stxrelid::regclass)
        FROM schemas s
        JOIN pg_statistic_ext x ON x.stxnamespace = s.oid
        CROSS JOIN LATERAL (
            SELECT string_agg(e.name, ', ' ORDER BY e.name)
            FROM (
                SELECT quote_ident(a.attname) FROM pg_attribute a
                WHERE a.attrelid = x.stxrelid AND a.attnum = ANY (x.stxkeys)
                UNION ALL
                SELECT format('(%s)', e) FROM unnest(pg_get_statisticsobjdef_expressions(x.oid)) e
            ) e (name)
        ) k (columns)
    )
    SELECT o.shard, o.kind, o.relation, o.name::text,
           CASE WHEN n.definition LIKE '%next\_id%'
               THEN regexp_replace(n.definition, format('\m(next_ids?)\(%s\M', o.shard), '\1(' || chr(2), 'g')
               ELSE n.definition END
    FROM objects o
    JOIN schemas s ON s.shard = o.shard
    CROSS JOIN LATERAL (
        SELECT replace(replace(replace(coalesce(o.definition, ''), s.own, chr(1)), s.own_in_literal, chr(4)), s.literal,
            chr(5))
    ) r (definition)
    -- Not where a longer name ends like it; to look for that everywhere takes too long.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN strpos(r.definition, chr(1)) > 0 AND r.definition ~ ('[\w$]' || chr(1))
            THEN regexp_replace(o.definition, '(?<![\w$])' || regexp_replace(s.own, '(\W)', '\\\1', 'g'), chr(1), 'g')
            ELSE r.definition END
    ) n (definition);
END
$$;

-- Tables without a replica identity; indexes and constraints that are not valid.
CREATE OR REPLACE FUNCTION insta_ids.check_tables() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'no_replica_identity', t.relation::text,
           'It has no primary key, or the index chosen for it is gone: its rows cannot be told apart when the shard moves.',
           'Add a primary key, or: ' || format('ALTER TABLE %s REPLICA IDENTITY FULL', t.relation)
    FROM insta_ids.unidentified_tables(ARRAY(SELECT s.shard FROM insta_ids.shard s)) t;

    RETURN QUERY
    SELECT 'warning', 'invalid_index', i.indexrelid::regclass::text,
           format('It is left from a command that failed, and is of no use to %s.', i.indrelid::regclass),
           format(CASE WHEN c.relkind = 'I' THEN 'Attach an index of each partition to it, or: DROP INDEX %s'
                   WHEN c.relname ~ '_cc(new|old)[0-9]*$' THEN 'DROP INDEX CONCURRENTLY %s'
                   ELSE 'REINDEX INDEX CONCURRENTLY %s' END, i.indexrelid::regclass)
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('i', 'I')
    JOIN pg_index i ON i.indexrelid = c.oid AND NOT i.indisvalid
    -- One that is being made now, under this lock, is not valid yet.
    WHERE NOT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    ORDER BY s.shard, c.relname;

    RETURN QUERY
    SELECT 'warning', 'unvalidated_constraint', format('%s.%I', k.conrelid::regclass, k.conname),
           'Rows that were there before it may violate it.',
           format('ALTER TABLE %s VALIDATE CONSTRAINT %I', k.conrelid::regclass, k.conname)
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND NOT c.relispartition
    JOIN pg_constraint k ON k.conrelid = c.oid AND NOT k.convalidated AND k.coninhcount = 0
    ORDER BY s.shard, c.relname, k.conname;
END
$$;

-- Each part in a subtransaction that is rolled back, so that no lock is held; and again if others have changed what it was
-- looking at.
CREATE OR REPLACE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
    -- For what is read of thousands of shards at once.
    SET work_mem = '64MB'
AS $$
DECLARE
    attempts CONSTANT integer := 3;
    part text;
    findings insta_ids.finding[];
BEGIN
    PERFORM insta_ids.configured();
    FOREACH part IN ARRAY ARRAY['server', 'map', 'schemas', 'migrations', 'objects', 'tables', 'sequences', 'ids'] LOOP
        FOR attempt IN 1 .. attempts LOOP
            BEGIN
                EXECUTE format('SELECT array_agg(f) FROM insta_ids.%I() f', 'check_' || part) INTO findings;
                RAISE triggered_action_exception;
            EXCEPTION
                WHEN triggered_action_exception THEN
                    RETURN QUERY SELECT f.* FROM unnest(findings) f;
                    EXIT;
                WHEN OTHERS THEN
                    IF attempt = attempts THEN
                        RETURN QUERY
                        SELECT f.*
                        FROM insta_ids.not_read('Parts of this', ARRAY[format('check_%s: %s', part, SQLERRM)]) f;
                    END IF;
            END;
        END LOOP;
    END LOOP;
    PERFORM insta_ids.limit_catalog_cache();
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.check_rows(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    minting pg_catalog.record;
    wrong pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    until pg_catalog.timestamptz;
    is_sound boolean;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    PERFORM insta_ids.check_range(first, last, batch);
    until := insta_ids.time_not_reached();
    todo := ARRAY(
        SELECT s.shard FROM insta_ids.shard_schema s
        WHERE s.oid IS NOT NULL AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('check_rows', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        -- To the end of the transaction, which ends with each batch.
        PERFORM set_config('row_security', 'off', true);
        is_sound := true;
        FOR minting IN
            SELECT m.* FROM insta_ids.minting_columns(ARRAY[number]) m
            JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        LOOP
            FOR wrong IN
                SELECT * FROM insta_ids.check_ids_of(minting.relation, minting."column", number,
                    greatest(until, clock_timestamp() + interval '2 s'), true)
            LOOP
                is_sound := false;
                RAISE WARNING USING
                    MESSAGE = format('%s in %s', replace(wrong.code, '_', ' '), wrong.object),
                    DETAIL = wrong.detail, HINT = wrong.hint;
            END LOOP;
        END LOOP;
        done := done + 1;
        failed := failed + (NOT is_sound)::integer;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('check_rows', cardinality(todo), done, failed);
        END IF;
    END LOOP;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation',
            MESSAGE = format('%s of %s shards have ids that should not be there', failed, cardinality(todo)),
            DETAIL = 'A warning tells of each column that has.';
    END IF;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

-- Locks the tables of the schema, others that are filled in it, with all their partitions and heirs, and the sequences
-- until the transaction ends, when nobody is using them. Also tables that nothing fills: a statement that calls a function
-- for rows of theirs is planned before the function is changed, or after that.
CREATE OR REPLACE FUNCTION insta_ids.stop_minting(schema regnamespace, lock_timeout text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT regclass[] := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT c.relation::oid FROM insta_ids.filled_columns(schema) c
            UNION SELECT c.oid FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
        )
        SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.relation AND c.relkind IN ('r', 'p') ORDER BY c.oid);
BEGIN
    PERFORM insta_ids.lock_all(tables, 'ACCESS EXCLUSIVE',
        ARRAY(SELECT s FROM insta_ids.minting_sequences(schema) s ORDER BY s), format('schema %s', schema), lock_timeout);
END
$$;

-- Makes the shard known, and all migrations as ones that it has.
CREATE OR REPLACE FUNCTION insta_ids.claim_shard(schema regnamespace, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := insta_ids.schema_of(shard);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = schema AND n.nspname = name) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_schema_name',
            MESSAGE = format('schema %s is not called like shard %s', schema, shard),
            DETAIL = format('The schema of shard %s is called %I.', shard, name),
            HINT = format('Rename it: ALTER SCHEMA %s RENAME TO %I', schema, name);
    END IF;
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_placement(shard), insta_ids.check_moves(shard, shard), insta_ids.check_left(shard, shard);
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (claim_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- Locked, so that nobody replaces meanwhile what is recorded here.
    INSERT INTO insta_ids.shard_migration (shard, migration)
    SELECT claim_shard.shard, m.number FROM insta_ids.migration m FOR SHARE;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.release(schema regnamespace, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    PERFORM insta_ids.check_isolation('a schema cannot be released'), set_config('lock_timeout', lock_timeout, true);
    -- What another session migrates or releases is waited for.
    SELECT s.shard INTO number
    FROM insta_ids.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids.shard_schema h WHERE h.oid = release.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids.check_release(schema, number);
    PERFORM insta_ids.make_surface(number);
    PERFORM insta_ids.await_ids(number);
    PERFORM insta_ids.stop_minting(schema, lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + current_setting('insta_ids.max_ahead_ms')::interval;
    PERFORM insta_ids.check_release(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND pg_get_expr(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids.native_defaults(schema) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%L::regclass)',
            next.relation, next."column", schema, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids.minting_functions(schema) f
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'plpgsql',
            format('AS %L', insta_ids.write_function(layout, next.shard, next.sequence)), true);
    END LOOP;
    FOR next IN
        SELECT t.tgrelid::regclass AS relation FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = schema AND t.tgname = 'insta_ids_fence'
    LOOP
        EXECUTE format('DROP TRIGGER insta_ids_fence ON %s', next.relation);
    END LOOP;
    PERFORM insta_ids.tell_of_dependents(schema);
    DELETE FROM insta_ids.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids.shard s WHERE s.shard = number;

    -- What the function gives out comes after every id that was minted here.
    PERFORM insta_ids.await_clock(last_ids);
END
$$;

-- Who could read the view still can.
CREATE TEMPORARY TABLE readers AS
SELECT a.grantee::regrole::text AS reader FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
WHERE c.oid = 'insta_ids.shards'::regclass AND a.grantee <> c.relowner;
DROP VIEW insta_ids.shards;
CREATE VIEW insta_ids.shards AS
SELECT s.shard, s.schema, a.node,
       CASE
           WHEN s.state = 'moved' THEN s.state
           WHEN n.oid IS NULL THEN 'missing'
           WHEN f.shard IS NULL THEN 'active'
           WHEN NOT f.is_closed THEN 'moving'
           WHEN v.step IN ('prepared', 'copying') THEN 'arriving'
           ELSE 'fenced'
       END AS state,
       coalesce(m.applied, 0) AS applied, t.migrations - coalesce(m.tried, 0) AS pending,
       coalesce(m.tried - m.applied, 0) AS failed,
       coalesce(r.tables, 0) AS tables, r.rows, coalesce(r.bytes, 0) AS bytes
FROM (
    SELECT s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema, NULL AS state
    FROM insta_ids.shard s
    UNION ALL
    SELECT d.shard, d.schema, 'moved' FROM insta_ids.moved d WHERE d.schema IS NOT NULL
) s
LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
LEFT JOIN insta_ids.fence f ON f.shard = s.shard
LEFT JOIN insta_ids.move v ON s.shard = ANY (v.shards)
CROSS JOIN (SELECT count(*) AS migrations FROM insta_ids.migration) t
LEFT JOIN (
    SELECT a.shard, count(*) AS tried, count(*) FILTER (WHERE a.message IS NULL) AS applied
    FROM insta_ids.shard_migration a GROUP BY a.shard
) m ON m.shard = s.shard
LEFT JOIN pg_namespace n ON n.nspname = s.schema
-- As of the last VACUUM or ANALYZE of each table, as pg_class has it.
LEFT JOIN (
    SELECT c.relnamespace,
           count(*) FILTER (WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition) AS tables,
           sum(c.reltuples) FILTER (WHERE c.relkind IN ('r', 'f') AND c.reltuples >= 0)::bigint AS rows,
           sum((c.relpages + coalesce(o.relpages, 0))::bigint * current_setting('block_size')::bigint)::bigint AS bytes
    FROM pg_class c
    LEFT JOIN pg_class o ON o.oid = c.reltoastrelid
    GROUP BY c.relnamespace
) r ON r.relnamespace = n.oid;

-- Moves: shards go to another server, by PostgreSQL's logical replication, one subscription for all shards of a move.
--
-- The server that shards leave is the source, the one that they come to the target. Each step is a function of its own, on
-- one of the two; it can be repeated, and finds what is done already. Whatever is made for a move is written down in
-- insta_ids.move in the same transaction, or before.

-- Refuses what a move of one of these shards is in the way of.
CREATE FUNCTION insta_ids.check_moves(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other insta_ids.move;
BEGIN
    SELECT * INTO other FROM insta_ids.move m WHERE m.first <= check_moves.last AND m.last >= check_moves.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards from %s to %s are moving', other.first, other.last),
            DETAIL = format('They go from node "%s" to node "%s": %s.', other.from_node, other.to_node, other.step),
            HINT = format('Let that end, or end it: CALL insta_ids.move_abort(%s, %s)', other.first, other.last);
    END IF;
END
$$;

-- What the two servers agree on is on disk before the other hears of it.
CREATE FUNCTION insta_ids.commit_durably() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
END;

-- How a move has ended here, NULL if it has not.
CREATE FUNCTION insta_ids.move_outcome(id uuid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT e.outcome FROM insta_ids.ended_move e WHERE e.id = move_outcome.id);

-- The subscriptions of this database.
CREATE VIEW insta_ids.subscription AS
SELECT s.oid, s.subname AS name, s.subenabled AS is_enabled, s.subconninfo AS dsn
FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database();

-- The move of this name, locked.
CREATE FUNCTION insta_ids.open_move(move name) RETURNS insta_ids.move
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_move insta_ids.move;
BEGIN
    PERFORM insta_ids.check_isolation('a move cannot go on'), insta_ids.commit_durably();
    SELECT * INTO found_move FROM insta_ids.move m WHERE m.name = move FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('move "%s" does not exist', move),
            HINT = 'It has ended, or was never begun here: see insta_ids.moves.';
    END IF;
    RETURN found_move;
END
$$;

-- On the source

-- Refuses shards that could not be moved whole.
CREATE FUNCTION insta_ids.check_movable(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    obstacle record;
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards cannot leave this server',
            DETAIL = format('"wal_level" is %s.', current_setting('wal_level')),
            HINT = 'Set wal_level = logical in postgresql.conf, and restart the server.';
    ELSIF (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::integer THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = 'all replication slots of this server are in use',
            HINT = 'Drop one that is not needed, or raise "max_replication_slots".';
    END IF;
    PERFORM insta_ids.check_heirs(shards);

    SELECT o.* INTO obstacle FROM (
        SELECT s.shard, 1, format('Schema "%s" is missing.', s.schema), 'Restore it, or drop the shard.'
        FROM insta_ids.shard_schema s WHERE s.oid IS NULL
        UNION ALL
        SELECT s.shard, 2, CASE s.is_closed WHEN true THEN 'It is fenced.' ELSE 'It is moving.' END,
               format('SELECT insta_ids.unfence(%s)', s.shard)
        FROM insta_ids.fence s
        UNION ALL
        SELECT m.shard, 3, format('Migration "%s" is %s there.', m.name, m.state), 'CALL insta_ids.migrate()'
        FROM insta_ids.migration_status m WHERE m.state <> 'applied'
        UNION ALL
        SELECT r.shard, 4, format('Table %s is %s.', r.relation, CASE r.kind WHEN 'f' THEN 'foreign' ELSE 'unlogged' END),
               'Only rows of logged tables go with it.'
        FROM insta_ids.shard_relation r WHERE r.kind = 'f' OR r.kind <> 'S' AND r.persistence = 'u'
        UNION ALL
        SELECT t.shard, 5, format('Table %s has no primary key, by which its rows could be told apart.', t.relation),
               'Add a primary key, or: ' || format('ALTER TABLE %s REPLICA IDENTITY FULL', t.relation)
        FROM insta_ids.unidentified_tables(shards) t
        UNION ALL
        SELECT r.shard, 6, r.object || ': ' || r.detail, r.hint
        FROM insta_ids.check_references(shards) r WHERE r.severity = 'error'
    ) o (shard, place, detail, hint)
    WHERE o.shard = ANY (shards) ORDER BY o.place, o.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s cannot be moved', obstacle.shard),
            DETAIL = obstacle.detail, HINT = obstacle.hint;
    END IF;
END
$$;

-- What is in a shard, in words that are the same in each.
CREATE FUNCTION insta_ids.objects_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(o.kind, o.relation, o.name, o.definition)
        ORDER BY o.kind, o.relation, o.name, o.definition)
    FROM insta_ids.objects_of(ARRAY[shard], true) o;
END;

-- The partitions of a shard, those of others before those of theirs.
CREATE FUNCTION insta_ids.partitions_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(p.relname, c.relname,
            pg_catalog.pg_get_expr(c.relpartbound, c.oid),
            CASE c.relkind WHEN 'p' THEN pg_catalog.pg_get_partkeydef(c.oid) END)
        ORDER BY t.level, c.relname), '[]')
    FROM insta_ids.shard_schema s
    JOIN pg_catalog.pg_class r ON r.relnamespace = s.oid AND r.relkind = 'p' AND NOT r.relispartition
    CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
    JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relispartition
    JOIN pg_catalog.pg_class p ON p.oid = t.parentrelid
    WHERE s.shard = partitions_json.shard;
END;

CREATE FUNCTION insta_ids.move_offer(first integer, last integer, to_node name) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.own_node();
    offered CONSTANT name := format('insta_ids_%s_%s', first, last);
    move insta_ids.move;
    is_new boolean := false;
    objects jsonb;
    shard integer;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be offered'), insta_ids.check_range(first, last, 1),
        insta_ids.commit_durably();
    -- Nobody else offers, makes or assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(here), insta_ids.check_node(to_node);
    SELECT * INTO move FROM insta_ids.move m WHERE m.name = offered FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last);
        move.shards := ARRAY(SELECT s.shard FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard);
        IF move.shards = '{}' OR to_node = here THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('no shard from %s to %s can move from node "%s" to node "%s"', first, last, here, to_node),
                DETAIL = CASE WHEN to_node = here THEN 'That is this node.' ELSE 'None of them is here.' END;
        END IF;
        FOREACH shard IN ARRAY move.shards LOOP
            IF NOT EXISTS (SELECT FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last AND a.node = here) THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('the map does not have shard %s on this node', shard),
                    HINT = format('SELECT insta_ids.assign(%s, %s, %L)', first, last, here);
            END IF;
        END LOOP;
        PERFORM insta_ids.claim(move.shards), insta_ids.check_movable(move.shards);
        -- What is being made in them now is seen afterwards.
        PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids.shard_schema s WHERE s.shard = ANY (move.shards);
        EXECUTE format('CREATE PUBLICATION %I%s', offered, ' FOR TABLE ' || insta_ids.published_tables(move.shards));
        INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, false, to_node FROM unnest(move.shards) s;
        INSERT INTO insta_ids.move AS m (name, id, first, last, shards, relations, from_node, to_node, slot, bytes, step)
        SELECT offered, gen_random_uuid(), first, last, move.shards, insta_ids.relations_of(move.shards), here, to_node,
               format('insta_ids_%s_%s_%s', (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), first, last),
               (SELECT coalesce(sum(pg_table_size(r.relation)), 0) FROM insta_ids.shard_relation r
                WHERE r.shard = ANY (move.shards) AND r.kind = 'r'),
               'offered'
        RETURNING m.* INTO move;
        is_new := true;
    ELSIF move.from_node <> here OR move.to_node <> move_offer.to_node THEN
        PERFORM insta_ids.check_moves(first, last);
    END IF;
    -- What differs between them cannot come of the same migrations.
    objects := insta_ids.objects_json(move.shards[1]);
    FOREACH shard IN ARRAY move.shards[2:] LOOP
        IF insta_ids.objects_json(shard) <> objects THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('shard %s cannot be moved', shard),
                DETAIL = format('What is in it differs from what is in shard %s.', move.shards[1]),
                HINT = 'See insta_ids.check().';
        END IF;
    END LOOP;
    RETURN jsonb_build_object(
        'name', move.name, 'id', move.id, 'is_new', is_new, 'first', first, 'last', last, 'shards', to_jsonb(move.shards),
        'from_node', here, 'to_node', to_node, 'slot', move.slot, 'bytes', move.bytes,
        'map', insta_ids.shard_map(),
        'migrations', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
                'transactional', m.transactional, 'check_ids', m.check_ids) ORDER BY m.number), '[]')
            FROM insta_ids.migration m),
        'objects', objects,
        'partitions', (SELECT jsonb_object_agg(s, insta_ids.partitions_json(s)) FROM unnest(move.shards) s));
END
$$;

-- What rows and values of shards are in.
CREATE FUNCTION insta_ids.relations_of(shards integer[]) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT r.relation::oid FROM insta_ids.shard_relation r WHERE r.shard = ANY (shards) ORDER BY r.relation::oid);

-- The tables of shards, as a publication names them: partitions go with what they are of.
CREATE FUNCTION insta_ids.published_tables(shards integer[]) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.string_agg(r.relation::text, ', ' ORDER BY r.relation)
    FROM insta_ids.shard_relation r
    WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') AND NOT r.is_partition;
END;

-- Makes the slot that the subscription reads, once: what was written after one that is lost would not come. No transaction
-- that has written something can make one, so that is written down afterwards.
CREATE FUNCTION insta_ids.move_slot(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
BEGIN
    SELECT * INTO moving FROM insta_ids.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids.open_move(move);
    ELSIF NOT moving.has_slot THEN
        IF NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = moving.slot) THEN
            PERFORM pg_create_logical_replication_slot(moving.slot, 'pgoutput');
        ELSIF EXISTS (
            SELECT FROM pg_replication_slots s WHERE s.slot_name = moving.slot AND s.confirmed_flush_lsn IS NULL)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = format('replication slot of move "%s" is being made', move),
                DETAIL = 'Another session waits for the transactions that were open when it began.',
                HINT = 'Call again when they have ended.';
        END IF;
        UPDATE insta_ids.move m SET has_slot = true WHERE m.name = move;
    ELSE
        PERFORM insta_ids.move_lag(move);
    END IF;
END
$$;

-- How many bytes of WAL the target has not confirmed yet.
CREATE FUNCTION insta_ids.move_lag(move name) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot record;
BEGIN
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn) AS lag, s.wal_status INTO slot
    FROM insta_ids.move m JOIN pg_replication_slots s ON s.slot_name = m.slot WHERE m.name = move;
    IF NOT FOUND OR slot.wal_status = 'lost' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('replication slot of move "%s" is lost', move),
            HINT = 'End the move with insta_ids.move_abort(), and begin it again.';
    END IF;
    RETURN slot.lag;
END
$$;

-- Whether one of these slots is not there.
CREATE FUNCTION insta_ids.move_slots_lost(table_slots name[]) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM pg_catalog.unnest(table_slots) t WHERE t NOT IN (SELECT s.slot_name FROM pg_catalog.pg_replication_slots s));

CREATE FUNCTION insta_ids.move_fence(move name, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
BEGIN
    IF moving.step = 'offered' THEN
        PERFORM insta_ids.close_shards(moving.shards, moving.to_node, lock_timeout);
        -- What was taken out of a schema is in it no more when event triggers see it.
        IF insta_ids.relations_of(moving.shards) <> moving.relations
            OR insta_ids.published_tables(moving.shards) IS DISTINCT FROM (
                SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid)
                FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = move)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('tables or sequences of shards from %s to %s have changed since the move began',
                    moving.first, moving.last),
                HINT = format('End the move with insta_ids.move_abort(%s, %s), and begin it again.', moving.first, moving.last);
        END IF;
        UPDATE insta_ids.move m SET step = 'fenced', step_at = now(), fenced_by = pg_current_xact_id() WHERE m.name = move;
    END IF;
END
$$;

-- What the target goes on from: the WAL that it must have, the time that ids have not reached, and the sequences. Asked
-- for when the fence is there for all to see.
CREATE FUNCTION insta_ids.move_mark(move name) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move := insta_ids.open_move(move);
    sequences jsonb := '[]';
    sequence insta_ids.shard_relation;
    value record;
BEGIN
    IF moving.step <> 'fenced' OR moving.fenced_by = pg_current_xact_id() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not fenced', moving.first, moving.last),
            HINT = 'Call insta_ids.move_fence() in a transaction before.';
    ELSIF moving.mark IS NULL THEN
        FOR sequence IN
            SELECT * FROM insta_ids.shard_relation r WHERE r.shard = ANY (moving.shards) AND r.kind = 'S'
        LOOP
            EXECUTE format('SELECT last_value, is_called FROM %s', sequence.relation) INTO value;
            sequences := sequences
                || jsonb_build_array(jsonb_build_array(sequence.schema, sequence.name, value.last_value, value.is_called));
        END LOOP;
        UPDATE insta_ids.move m
        SET mark = jsonb_build_object('id', m.id, 'lsn', pg_current_wal_insert_lsn(), 'sequences', sequences,
            -- Every id of this database is of a time that its lease covers.
            'until', (SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c),
            'version', (SELECT coalesce(max(p.version), 0) FROM insta_ids.map p))
        WHERE m.name = move
        RETURNING m.mark INTO moving.mark;
    END IF;
    RETURN moving.mark;
END
$$;

-- Drops the slot, when the target has let go of it.
CREATE FUNCTION insta_ids.drop_slot(slot name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    FOR attempt IN 1 .. 100 LOOP
        BEGIN
            PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s WHERE s.slot_name = slot;
            RETURN;
        EXCEPTION
            WHEN object_in_use THEN
                -- What reads it has nothing to do any more.
                PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots s WHERE s.slot_name = slot;
                PERFORM pg_sleep(0.1);
        END;
    END LOOP;
    PERFORM pg_drop_replication_slot(slot);
END
$$;

-- Gives the map the shards of a move, as far as it has them on the source, and a version that is no older than this.
CREATE FUNCTION insta_ids.assign_moved(moving insta_ids.move, version bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.assign(greatest(a.first, moving.first), least(a.last, moving.last), moving.to_node)
    FROM insta_ids.assignment a
    WHERE a.node = moving.from_node AND a.first <= moving.last AND a.last >= moving.first;
    UPDATE insta_ids.map m SET version = assign_moved.version WHERE m.version < assign_moved.version;
END
$$;

-- Lets go of what has been handed over; then, on the target, ends the move there, too.
CREATE FUNCTION insta_ids.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
    shard integer;
    schema name;
    kept name;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        RETURN;
    END IF;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        DELETE FROM insta_ids.move m WHERE m.name = move;
        RETURN;
    ELSIF moving.step <> 'fenced' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s have not left', moving.first, moving.last),
            DETAIL = format('The move is %s here.', moving.step);
    ELSIF handed_over ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may not be on node "%s" yet', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not handed over there.',
            HINT = 'Give what insta_ids.move_hand_over() returns there.';
    END IF;
    PERFORM insta_ids.drop_slot(moving.slot), insta_ids.assign_moved(moving, (handed_over ->> 'version')::bigint);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOREACH shard IN ARRAY moving.shards LOOP
        schema := insta_ids.schema_of(shard);
        kept := CASE WHEN octet_length(schema || '__moved') < 64 THEN schema || '__moved' ELSE 'moved__' || shard END;
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
        INSERT INTO insta_ids.moved VALUES (shard, kept, moving.to_node);
    END LOOP;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Takes the offer back, and opens the shards again. Once they are fenced, the target must have cancelled the move:
-- `cancellation` is what move_cancel returned.
CREATE FUNCTION insta_ids.move_withdraw(move name, cancellation jsonb DEFAULT '{}') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
BEGIN
    IF insta_ids.move_outcome((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    moving := insta_ids.open_move(move);
    IF moving.step NOT IN ('offered', 'fenced') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('CALL insta_ids.move_abort(%s, %s)', moving.first, moving.last);
    ELSIF (moving.step = 'fenced' OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- Who has never heard of the move cannot say that it will not take the shards over.
        OR moving.step = 'fenced'
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may be on node "%s" already', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not cancelled there.',
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on that node.', moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids.drop_slot(s.slot_name) FROM pg_replication_slots s
    WHERE s.slot_name = moving.slot
        OR s.slot_name ~ '^pg_[0-9]+_sync_' AND cancellation -> 'table_slots' ? s.slot_name;
    PERFORM insta_ids.open_shards(moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'withdrawn');
END
$$;

-- On both

-- For each table the number of its rows and, if all of them are compared, a number that is the same for the same rows.
CREATE FUNCTION insta_ids.move_hashes(move name, verify text DEFAULT 'full') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Rows are compared as texts.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64' SET row_security = off
AS $$
DECLARE
    hashes jsonb := '{}';
    relation record;
    hash jsonb;
BEGIN
    IF verify NOT IN ('full', 'count') OR NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows of move "%s" cannot be told by "%s"', move, verify),
            DETAIL = 'It must be a move of this server, and ''full'' or ''count''.';
    END IF;
    FOR relation IN
        SELECT r.relation AS name, (
            SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attname) FROM pg_attribute a
            WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped) AS columns
        FROM insta_ids.move m
        JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
        WHERE m.name = move
    LOOP
        EXECUTE format('SELECT jsonb_build_array(count(*)%s) FROM ONLY %s', CASE verify WHEN 'full' THEN
            format(', coalesce(sum(hashtextextended(ROW(%s)::text, 0)), 0)::text', relation.columns) END, relation.name)
        INTO hash;
        hashes := hashes || jsonb_build_object(relation.name, hash);
    END LOOP;
    RETURN hashes;
END
$$;

-- On the target

CREATE FUNCTION insta_ids.move_prepare(offer jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids.prepare_move(offer, pg_catalog.current_setting('search_path'));
END
$$;

-- Makes the shards that were offered, empty and closed. `path` is the search_path of who asked for it.
CREATE FUNCTION insta_ids.prepare_move(offer jsonb, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := jsonb_populate_record(NULL::insta_ids.move, offer);
    here CONSTANT name := insta_ids.this_node();
    outcome CONSTANT text := insta_ids.move_outcome(moving.id);
    tables text;
    shard integer;
    difference record;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be prepared'), insta_ids.commit_durably();
    IF here IS DISTINCT FROM moving.to_node THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this server is not node "%s"', moving.to_node),
            DETAIL = format('It is %s.', coalesce(format('node "%s"', here), 'no node')),
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server; or call this on the other one.';
    ELSIF EXISTS (SELECT FROM insta_ids.move m WHERE (m.name, m.id) = (moving.name, moving.id)) THEN
        RETURN;
    END IF;
    IF outcome IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('offer of shards from %s to %s is void', moving.first, moving.last),
            DETAIL = format('It was %s here.', outcome),
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L)', moving.from_node,
                moving.first, moving.last);
    END IF;
    PERFORM insta_ids.check_moves(moving.first, moving.last);
    IF (offer #>> '{map,version}')::bigint > coalesce((SELECT m.version FROM insta_ids.map m), 0) THEN
        PERFORM insta_ids.apply_map(offer -> 'map');
    END IF;
    PERFORM insta_ids.check_node(moving.from_node), insta_ids.check_range(moving.first, moving.last, 1),
        insta_ids.take_migrations(offer -> 'migrations', moving.from_node);
    PERFORM insta_ids.check_absent(moving.first, moving.last);
    shard := (
        SELECT min(s) FROM unnest(moving.shards) s
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = moving.from_node));
    IF shard IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map here does not have shard %s on node "%s"', shard, moving.from_node),
            DETAIL = format('Its version is %s, and %s there.', (SELECT m.version FROM insta_ids.map m), offer #>> '{map,version}'),
            HINT = 'Assign on one of the two nodes what the other has, and apply that map on the other.';
    END IF;

    FOREACH shard IN ARRAY moving.shards LOOP
        PERFORM insta_ids.make_shard(shard, path), insta_ids.make_partitions(shard, offer #> ARRAY['partitions', shard::text]);
        IF shard = moving.shards[1] THEN
            PERFORM insta_ids.check_locks(cardinality(moving.shards));
            SELECT * INTO difference
            FROM (
                SELECT x.object ->> 0 AS kind, concat_ws('.', x.object ->> 1, x.object ->> 2) AS name,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE x.is_ours) AS ours,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE NOT x.is_ours) AS theirs
                FROM (
                    SELECT o, true FROM jsonb_array_elements(insta_ids.objects_json(shard)) o
                    UNION ALL
                    SELECT o, false FROM jsonb_array_elements(offer -> 'objects') o
                ) x (object, is_ours)
                GROUP BY 1, 2
            ) d
            WHERE d.ours IS DISTINCT FROM d.theirs ORDER BY d.kind, d.name LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not what its migrations make', shard),
                    DETAIL = format('%s %s: here %s, on node "%s" %s.',
                        upper(left(difference.kind, 1)) || substr(difference.kind, 2), difference.name,
                        coalesce(insta_ids.in_shard(difference.ours, insta_ids.schema_of(shard), shard), 'nothing'),
                        moving.from_node,
                        coalesce(insta_ids.in_shard(difference.theirs, insta_ids.schema_of(shard), shard), 'nothing')),
                    HINT = 'Add what was done by hand there as a migration, which does nothing where it is done.';
            END IF;
        END IF;
    END LOOP;
    -- Rows that migrations made come from the source, too.
    tables := insta_ids.published_tables(moving.shards);
    IF tables IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || tables;
    END IF;
    PERFORM insta_ids.close_shards(moving.shards, here, '2s');
    INSERT INTO insta_ids.move (name, id, first, last, shards, from_node, to_node, slot, bytes, step)
    VALUES (moving.name, moving.id, moving.first, moving.last, moving.shards, moving.from_node, moving.to_node, moving.slot,
        moving.bytes, 'prepared');
END
$$;

-- Refuses shards of which something is here.
CREATE FUNCTION insta_ids.check_absent(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here integer := (SELECT min(s.shard) FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last);
BEGIN
    IF here IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s is on this node already', here);
    END IF;
    PERFORM insta_ids.check_left(first, last);
END
$$;

-- Adds the migrations of another node that are not here; the others must be the same.
CREATE FUNCTION insta_ids.take_migrations(migrations jsonb, from_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    different text;
BEGIN
    LOCK TABLE insta_ids.migration IN SHARE ROW EXCLUSIVE MODE;
    SELECT m.name INTO different
    FROM insta_ids.migration m
    LEFT JOIN jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean)
        ON t.number = m.number
    WHERE (m.name, m.ddl, m.transactional, m.check_ids) IS DISTINCT FROM (t.name, t.ddl, t.transactional, t.check_ids)
    ORDER BY m.number LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" is not the same on node "%s"', different, from_node),
            HINT = 'Add the same migrations in the same order on all nodes.';
    END IF;
    INSERT INTO insta_ids.migration
    SELECT t.number, t.name, t.ddl, t.transactional, t.check_ids
    FROM jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean)
    WHERE NOT EXISTS (SELECT FROM insta_ids.migration m WHERE m.number = t.number);
END
$$;

-- Gives the partitioned tables of a shard these partitions, and no others.
CREATE FUNCTION insta_ids.make_partitions(shard integer, partitions jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema CONSTANT name := insta_ids.schema_of(shard);
    own CONSTANT jsonb := insta_ids.partitions_json(shard);
    partition jsonb;
BEGIN
    FOR partition IN
        SELECT p FROM jsonb_array_elements(own) WITH ORDINALITY p (p, n)
        WHERE NOT partitions @> jsonb_build_array(p) ORDER BY n DESC
    LOOP
        EXECUTE format('DROP TABLE %I.%I', schema, partition ->> 1);
    END LOOP;
    FOR partition IN
        SELECT p FROM jsonb_array_elements(partitions) WITH ORDINALITY p (p, n)
        WHERE NOT own @> jsonb_build_array(p) ORDER BY n
    LOOP
        EXECUTE format('CREATE TABLE %I.%I PARTITION OF %1$I.%3$I %s%s', schema, partition ->> 1, partition ->> 0,
            partition ->> 2, ' PARTITION BY ' || (partition ->> 3));
    END LOOP;
END
$$;

CREATE FUNCTION insta_ids.move_subscribe(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    dsn CONSTANT text := (SELECT n.dsn FROM insta_ids.node n WHERE n.node = moving.from_node);
    subscription insta_ids.subscription;
BEGIN
    IF moving.step NOT IN ('prepared', 'copying') THEN
        RETURN;
    END IF;
    SELECT * INTO subscription FROM insta_ids.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %1$I'
            || ' WITH (create_slot = false, slot_name = %3$L, streaming = off, disable_on_error = true)', move, dsn, moving.slot);
    ELSIF subscription.dsn <> dsn THEN
        EXECUTE format('ALTER SUBSCRIPTION %I CONNECTION %L', move, dsn);
    END IF;
    IF NOT subscription.is_enabled THEN
        EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', move);
    END IF;
    UPDATE insta_ids.move m SET step = 'copying', step_at = now() WHERE m.name = move AND m.step = 'prepared';
END
$$;

-- Whether all tables are copied, and follow the source.
CREATE FUNCTION insta_ids.move_copied(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscription insta_ids.subscription;
BEGIN
    SELECT * INTO subscription FROM insta_ids.subscription s WHERE s.name = move;
    IF NOT FOUND OR NOT subscription.is_enabled THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('subscription of move "%s" %s', move,
                CASE WHEN subscription.oid IS NULL THEN 'does not exist' ELSE 'has stopped at an error' END),
            HINT = 'The error is in the log of this server. Mend its cause, and call insta_ids.move_shards() again.';
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM pg_subscription_rel r WHERE r.srsubid = subscription.oid AND r.srsubstate <> 'r');
END
$$;

-- The slots on the source of tables that are copied, and have not caught up. If a server dies while one is dropped, the
-- target may go on waiting for it.
CREATE FUNCTION insta_ids.move_table_slots(move name, states "char"[] DEFAULT '{f}') RETURNS name[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT pg_catalog.format('pg_%s_sync_%s_%s', s.oid, r.srrelid, c.system_identifier)::pg_catalog.name
        FROM insta_ids.subscription s
        JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid AND r.srsubstate = ANY (states)
        CROSS JOIN pg_catalog.pg_control_system() c
        WHERE s.name = move);

-- Begins to copy again, when such a slot is lost.
CREATE FUNCTION insta_ids.move_recopy(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    role CONSTANT text := current_setting('session_replication_role');
BEGIN
    IF moving.step <> 'copying' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not being copied', moving.first, moving.last);
    END IF;
    PERFORM insta_ids.drop_subscription(move);
    -- Past the fence, as the subscription goes.
    PERFORM set_config('session_replication_role', 'replica', true);
    EXECUTE 'TRUNCATE ' || insta_ids.published_tables(moving.shards);
    PERFORM set_config('session_replication_role', role, true);
    PERFORM insta_ids.move_subscribe(move);
END
$$;

-- Whether all that was written on the source before its mark is here.
CREATE FUNCTION insta_ids.move_drained(move name, mark jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    -- It is reported to the source when all before it is applied.
    RETURN insta_ids.move_copied(move) AND EXISTS (
        SELECT FROM pg_catalog.pg_stat_subscription s
        WHERE s.subname = move AND s.relid IS NULL AND s.latest_end_lsn >= (mark ->> 'lsn')::pg_catalog.pg_lsn);

-- Takes the shards over: before its end they are closed on both servers, afterwards they are open here. `theirs` are the
-- hashes of the source, `ours` those of this server; without, nothing is compared.
CREATE FUNCTION insta_ids.move_hand_over(
        move name, mark jsonb DEFAULT NULL, theirs jsonb DEFAULT NULL, ours jsonb DEFAULT NULL)
    RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    different record;
BEGIN
    IF moving.step = 'handed over' THEN
        RETURN jsonb_build_object('id', moving.id, 'version', (SELECT m.version FROM insta_ids.map m));
    ELSIF mark ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark is not of move "%s"', move),
            HINT = 'Ask insta_ids.move_mark() on the source for it.';
    ELSIF moving.step <> 'copying' OR NOT insta_ids.move_drained(move, mark) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not all here yet', moving.first, moving.last),
            HINT = 'Wait until insta_ids.move_drained() says so.';
    END IF;
    IF theirs IS NOT NULL THEN
        SELECT coalesce(t.key, o.key) AS relation, t.value AS theirs, o.value AS ours INTO different
        FROM jsonb_each(theirs) t
        FULL JOIN jsonb_each(coalesce(ours, insta_ids.move_hashes(move,
            CASE WHEN theirs @? '$.*[1]' THEN 'full' ELSE 'count' END))) o ON o.key = t.key
        WHERE t.value IS DISTINCT FROM o.value LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'data_corrupted',
                MESSAGE = format('rows of table %s are not the same on both servers', different.relation),
                DETAIL = format('Their number and hash are %s on node "%s", and %s here.', different.theirs, moving.from_node,
                    different.ours),
                HINT = format('The source has all rows: CALL insta_ids.move_abort(%s, %s)', moving.first, moving.last);
        END IF;
    END IF;

    PERFORM setval(format('%I.%I', s ->> 0, s ->> 1)::regclass, (s ->> 2)::bigint, (s ->> 3)::boolean)
    FROM jsonb_array_elements(mark -> 'sequences') s;
    PERFORM insta_ids.advance_clock((mark ->> 'until')::timestamptz) WHERE mark ->> 'until' IS NOT NULL;
    DELETE FROM insta_ids.moved d WHERE d.shard = ANY (moving.shards);
    PERFORM insta_ids.drop_subscription(move), insta_ids.open_shards(moving.shards),
        insta_ids.assign_moved(moving, (mark ->> 'version')::bigint + 1);
    UPDATE insta_ids.move m SET step = 'handed over', step_at = now() WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    RETURN insta_ids.move_hand_over(move);
END
$$;

-- Without its slot, which the source drops.
CREATE FUNCTION insta_ids.drop_subscription(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM insta_ids.subscription s WHERE s.name = move) THEN
        EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', move);
        EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', move);
        EXECUTE format('DROP SUBSCRIPTION %I', move);
    END IF;
END
$$;

-- Forgets what was made here for a move whose shards have not been handed over; no offer of this id is taken up here any more.
-- Without a row of it, `id` says which it was. Returns what the source must see, with the slots there by which tables were
-- copied, and which are still there if it could not be reached.
CREATE FUNCTION insta_ids.move_cancel(move name, id uuid DEFAULT NULL) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
BEGIN
    IF id IS NULL OR EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        moving := insta_ids.open_move(move);
    END IF;
    IF moving.step NOT IN ('prepared', 'copying', 'handed over') OR moving.id <> id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', moving.first, moving.last),
            HINT = format('Call insta_ids.move_abort(%s, %s) on node "%s".', moving.first, moving.last, moving.to_node);
    END IF;
    PERFORM insta_ids.commit_durably();
    id := coalesce(moving.id, id);
    -- Waits for who is handing it over.
    INSERT INTO insta_ids.ended_move VALUES (id, 'cancelled',
        CASE WHEN moving.name IS NOT NULL THEN insta_ids.move_table_slots(move, '{i,d,f,s}') END)
    ON CONFLICT DO NOTHING;
    IF insta_ids.move_outcome(id) <> 'cancelled' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards of move "%s" are here already', move),
            HINT = 'CALL insta_ids.move_shards() again finishes it.';
    END IF;
    IF moving.name IS NOT NULL THEN
        PERFORM insta_ids.drop_subscription(move);
        DELETE FROM insta_ids.move m WHERE m.name = move;
        DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
        PERFORM insta_ids.drop_shard(s, force => true) FROM unnest(moving.shards) s;
    END IF;
    RETURN (
        SELECT jsonb_build_object('id', e.id, 'to_node', insta_ids.this_node(), 'was_known', e.table_slots IS NOT NULL,
            'table_slots', e.table_slots)
        FROM insta_ids.ended_move e WHERE e.id = move_cancel.id);
END
$$;

-- Driving

-- Connects this session to another node, by dblink.
CREATE FUNCTION insta_ids.connect_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids.dblink_schema();
BEGIN
    PERFORM insta_ids.check_node(node), insta_ids.disconnect_node();
    EXECUTE format('SELECT %I.dblink_connect(''insta_ids'', %L)', dblink, (
        SELECT n.dsn FROM insta_ids.node n WHERE n.node = connect_node.node));
    -- Whatever is set for the role there.
    EXECUTE format('SELECT %I.dblink_exec(''insta_ids'', %L)', dblink,
        'SET search_path = pg_catalog, pg_temp; SET default_transaction_isolation = ''read committed''; SET statement_timeout = 0');
END
$$;

CREATE FUNCTION insta_ids.disconnect_node() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids.dblink_schema();
    is_connected boolean;
BEGIN
    EXECUTE format('SELECT ''insta_ids'' = ANY (%I.dblink_get_connections())', dblink) INTO is_connected;
    IF is_connected THEN
        EXECUTE format('SELECT %I.dblink_disconnect(''insta_ids'')', dblink);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.dblink_schema() RETURNS name
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink');
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "dblink" is not installed in this database',
            HINT = 'CREATE EXTENSION dblink; or call the steps of a move from psql.';
    END IF;
    RETURN schema;
END
$$;

-- Asks the node that this session is connected to by a query of one value; or, if the answer takes long, begins to ask and
-- waits later.
CREATE FUNCTION insta_ids.ask_node(question text) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer jsonb;
BEGIN
    EXECUTE format('SELECT a.answer FROM %I.dblink(''insta_ids'', %L) a (answer jsonb)', insta_ids.dblink_schema(), question)
    INTO answer;
    RETURN answer;
END
$$;
CREATE FUNCTION insta_ids.begin_to_ask_node(question text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('SELECT %I.dblink_send_query(''insta_ids'', %L)', insta_ids.dblink_schema(), question);
END
$$;
CREATE FUNCTION insta_ids.await_node() RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    get_result CONSTANT text :=
        format('SELECT a.answer FROM %I.dblink_get_result(''insta_ids'') a (answer jsonb)', insta_ids.dblink_schema());
    answer jsonb;
BEGIN
    EXECUTE get_result INTO answer;
    -- With the end of the results, the connection is free again.
    EXECUTE get_result;
    RETURN answer;
END
$$;

CREATE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'full', lock_timeout text DEFAULT '2s',
        max_lag bigint DEFAULT 1048576)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    here pg_catalog.name;
    step text;
    offer jsonb;
    mark jsonb;
    ours jsonb;
    theirs jsonb;
    relation pg_catalog.text;
    handed_over jsonb;
    fenced_at timestamptz;
    told_at timestamptz := '-infinity';
    lag bigint;
    lead interval;
    table_slots pg_catalog.name[] := '{}';
    progress pg_catalog.record;
BEGIN
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last, from_node, lock_timeout, max_lag) > 0 OR verify IS NULL
        OR verify NOT IN ('full', 'count', 'none')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'arguments of move_shards are not complete',
            DETAIL = 'First and last shard, the node that they come from, and verify => ''full'', ''count'' or ''none''.';
    END IF;
    here := insta_ids.own_node();
    SELECT m.step INTO step FROM insta_ids.move m
    WHERE (m.name, m.from_node, m.to_node) = (move, move_shards.from_node, here);
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last), insta_ids.check_absent(first, last);
    END IF;
    PERFORM insta_ids.connect_node(from_node);

    IF step IS NULL THEN
        offer := insta_ids.ask_node(format('SELECT insta_ids.move_offer(%s, %s, %L)', first, last, here));
        BEGIN
            PERFORM insta_ids.prepare_move(offer, path);
        EXCEPTION WHEN OTHERS THEN
            -- What another session has offered is its own.
            IF (offer ->> 'is_new')::boolean THEN
                PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L)', move));
            END IF;
            RAISE;
        END;
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: prepared, % shards, % here', jsonb_array_length(offer -> 'shards'),
            pg_size_pretty((offer ->> 'bytes')::bigint);
    END IF;
    IF step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_slot(%L)', move));
        PERFORM insta_ids.move_subscribe(move);
        CALL insta_ids.new_transaction();
        LOOP
            lag := insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_lag(%L))', move));
            EXIT WHEN insta_ids.move_copied(move) AND lag <= max_lag;
            IF clock_timestamp() > told_at + interval '1 s' THEN
                told_at := clock_timestamp();
                SELECT * INTO progress FROM insta_ids.moves p WHERE p.name = move;
                RAISE NOTICE 'move_shards: % of % tables copied, % rows, % of %, % behind', progress.tables_copied,
                    progress.tables, progress.rows, pg_size_pretty(progress.bytes), pg_size_pretty(progress.bytes_total),
                    pg_size_pretty(lag);
                -- Of those that were there a second ago.
                table_slots := ARRAY(
                    SELECT unnest(table_slots) INTERSECT SELECT unnest(insta_ids.move_table_slots(move)));
                IF insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_slots_lost(%L))', table_slots)) = 'true' THEN
                    RAISE NOTICE 'move_shards: begins to copy again, as a server died while a table was at its end';
                    PERFORM insta_ids.move_recopy(move);
                END IF;
                table_slots := insta_ids.move_table_slots(move);
            END IF;
            PERFORM pg_sleep(0.02);
            CALL insta_ids.new_transaction();
        END LOOP;
        -- So that the first queries here are planned as they should be.
        FOR relation IN
            SELECT r.relation FROM insta_ids.move m
            JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
            WHERE m.name = move
        LOOP
            EXECUTE format('ANALYZE %s', relation);
        END LOOP;
        CALL insta_ids.new_transaction();

        -- Not only after it.
        lead := (insta_ids.ask_node('SELECT to_jsonb(c.id_time) FROM insta_ids.clock() c') #>> '{}')::timestamptz
            - clock_timestamp();
        IF lead > current_setting('insta_ids.clock_tolerance')::interval THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('clock of this server is %s behind the time of ids on node "%s"', lead, from_node),
                DETAIL = format('"insta_ids.clock_tolerance" is %s.', current_setting('insta_ids.clock_tolerance')),
                HINT = 'Correct the clock, and call again.';
        END IF;
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_fence(%L, %L)', move, lock_timeout));
        fenced_at := clock_timestamp();
        mark := insta_ids.ask_node(format('SELECT insta_ids.move_mark(%L)', move));
        RAISE NOTICE 'move_shards: fenced on node "%"', from_node;
        LOOP
            EXIT WHEN insta_ids.move_drained(move, mark);
            PERFORM pg_sleep(0.01);
            CALL insta_ids.new_transaction();
        END LOOP;
        IF verify <> 'none' THEN
            PERFORM insta_ids.begin_to_ask_node(format('SELECT insta_ids.move_hashes(%L, %L)', move, verify));
            ours := insta_ids.move_hashes(move, verify);
            theirs := insta_ids.await_node();
        END IF;
        handed_over := insta_ids.move_hand_over(move, mark, theirs, ours);
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: handed over, % ms after the fence',
            round(extract(epoch FROM clock_timestamp() - fenced_at) * 1000);
    END IF;

    handed_over := coalesce(handed_over, insta_ids.move_hand_over(move));
    PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_finish(%L, %L)', move, handed_over));
    PERFORM insta_ids.move_finish(move);
    CALL insta_ids.new_transaction();
    RAISE NOTICE 'move_shards: finished; the map has version %', handed_over ->> 'version';
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

CREATE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    moving insta_ids.move;
    there jsonb;
    cancellation jsonb;
BEGIN
    CALL insta_ids.new_transaction();
    SELECT * INTO moving FROM insta_ids.move m WHERE m.name = move;
    IF NOT FOUND AND from_node IS NULL THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    PERFORM insta_ids.connect_node(coalesce(moving.from_node, from_node));
    there := insta_ids.ask_node(format('SELECT jsonb_build_object(''id'', max(m.id::text), ''to_node'', max(m.to_node::text),'
        || ' ''outcome'', insta_ids.move_outcome(%L)) FROM insta_ids.move m WHERE m.name = %L', moving.id, move));
    IF there ->> 'to_node' <> insta_ids.own_node() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last,
                coalesce(moving.from_node, from_node), there ->> 'to_node');
    END IF;
    -- Whatever is here of them may be all that there is.
    IF there ->> 'outcome' = 'handed over' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" has let go of shards from %s to %s', moving.from_node, first, last),
            DETAIL = format('They were handed over, which this server has lost: here the move is %s.', moving.step);
    END IF;
    IF moving.id IS NOT NULL OR there ->> 'id' IS NOT NULL THEN
        cancellation := insta_ids.move_cancel(move, coalesce(moving.id, (there ->> 'id')::uuid));
        -- From here on the shards cannot be taken over any more.
        CALL insta_ids.new_transaction();
    END IF;
    IF there ->> 'id' IS NOT NULL THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L, %L)', move, cancellation));
    END IF;
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

CREATE VIEW insta_ids.moves AS
SELECT m.name, m.first, m.last, m.from_node, m.to_node, m.step, m.started_at, m.step_at,
       t.tables, t.copied AS tables_copied, r.rows, r.bytes, m.bytes AS bytes_total,
       pg_wal_lsn_diff(CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END, s.confirmed_flush_lsn)::bigint AS lag,
       CASE
           WHEN m.step IN ('offered', 'fenced') THEN format('On node %s: CALL insta_ids.move_shards(%s, %s, %L)',
               quote_ident(m.to_node), m.first, m.last, m.from_node)
           ELSE format('CALL insta_ids.move_shards(%s, %s, %L)', m.first, m.last, m.from_node)
       END || CASE WHEN m.step = 'handed over' THEN ''
           ELSE format('; to end it instead, CALL insta_ids.move_abort(%s, %s, %L)', m.first, m.last, m.from_node) END AS next
FROM insta_ids.move m
LEFT JOIN pg_replication_slots s ON s.slot_name = m.slot AND m.step IN ('offered', 'fenced')
LEFT JOIN LATERAL (
    SELECT count(*) AS tables, count(*) FILTER (WHERE r.srsubstate = 'r') AS copied
    FROM insta_ids.subscription u
    JOIN pg_subscription_rel r ON r.srsubid = u.oid
    WHERE u.name = m.name
) t ON m.step IN ('prepared', 'copying')
-- Of the tables here; while one is copied, its rows are counted as they come.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_table_size(h.relation)), 0)::bigint AS bytes,
           coalesce(sum(pg_stat_get_tuples_inserted(h.relation) + coalesce(p.tuples_processed, 0)), 0)::bigint AS rows
    FROM insta_ids.shard_relation h
    LEFT JOIN pg_stat_progress_copy p ON p.relid = h.relation AND p.type = 'CALLBACK'
    WHERE h.shard = ANY (m.shards) AND h.kind = 'r'
) r;

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT oid::regclass::text, relname, relowner, relacl
            FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proname, proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'insta_ids'::regnamespace
        ) o (object, name, owner, acl), aclexplode(acl)
        WHERE grantee <> owner AND name IN (
            'add_node', 'apply_map', 'ask_node', 'assign', 'assign_moved', 'assignment', 'await_node',
            'begin_to_ask_node', 'check_absent', 'check_dependents', 'check_dsn', 'check_heirs', 'check_left',
            'check_map', 'check_movable', 'check_moves', 'check_node', 'check_placement', 'claim',
            'close_shards', 'commit_durably', 'connect_node', 'dblink_schema', 'disconnect_node', 'drop_node',
            'drop_slot', 'drop_subscription', 'ended_move', 'fence', 'fence_changed', 'fenced_schemas',
            'forget_map', 'is_placed_here', 'keep_fenced', 'lock_all', 'make_partitions', 'map', 'map_changed',
            'move', 'move_abort', 'move_cancel', 'move_copied', 'move_drained', 'move_fence', 'move_finish',
            'move_hand_over', 'move_hashes', 'move_lag', 'move_mark', 'move_offer', 'move_outcome',
            'move_prepare', 'move_recopy', 'move_shards', 'move_slot', 'move_slots_lost', 'move_subscribe',
            'move_table_slots', 'move_withdraw', 'moved', 'moves', 'new_transaction', 'node', 'objects_json',
            'open_move', 'open_shards', 'own_node', 'partitions_json', 'prepare_move', 'published_tables', 'relations_of',
            'refuse', 'refuse_write', 'set_assignments', 'shard_map', 'shard_relation', 'shards',
            'subscription', 'take_migrations', 'tell_of_map', 'this_node', 'unfence', 'unidentified_tables')
    LOOP
        EXECUTE command;
    END LOOP;
    FOR command IN SELECT format('GRANT SELECT ON insta_ids.shards TO %s', r.reader) FROM pg_temp.readers r LOOP
        EXECUTE command;
    END LOOP;
    -- Who could make shards still can.
    PERFORM insta_ids.grant_provisioning(a.grantee::regrole)
    FROM pg_proc p, aclexplode(p.proacl) a
    WHERE p.oid = 'insta_ids.make_shard(integer, text)'::regprocedure AND a.grantee <> p.proowner;
END
$$;
DROP TABLE pg_temp.readers;
GRANT EXECUTE ON FUNCTION insta_ids.shard_map(), insta_ids.this_node() TO PUBLIC;
GRANT SELECT ON insta_ids.node, insta_ids.assignment, insta_ids.map, insta_ids.move TO PUBLIC;
GRANT SELECT ON insta_ids.fence, insta_ids.moved, insta_ids.ended_move TO pg_database_owner;

-- Comments
COMMENT ON FUNCTION insta_ids.check_dependents(integer, oid) IS
    'refuses to drop a shard that something outside depends on';
COMMENT ON VIEW insta_ids.shards IS
    'the shards of this database: their schemas, migrations and sizes';
COMMENT ON PROCEDURE insta_ids.new_transaction() IS
    'commits, and begins a transaction that sees what others have done since';
COMMENT ON FUNCTION insta_ids.check_map() IS
    'the part of check about the map, fences and moves';
COMMENT ON FUNCTION insta_ids.unidentified_tables(integer[]) IS
    'tables of shards whose rows logical replication cannot tell apart';
COMMENT ON VIEW insta_ids.shard_relation IS
    'tables and sequences of the shards of this database';
COMMENT ON FUNCTION insta_ids.add_node(name, text, integer) IS
    'adds a server to the map, or changes how to connect to it';
COMMENT ON FUNCTION insta_ids.drop_node(name) IS
    'takes a server that has no shards from the map';
COMMENT ON FUNCTION insta_ids.assign(integer, integer, name) IS
    'says which node has a range of shards';
COMMENT ON FUNCTION insta_ids.shard_map() IS
    'the map as JSON, with known answers for clients in other languages';
COMMENT ON FUNCTION insta_ids.apply_map(jsonb) IS
    'takes a newer map of another server over';
COMMENT ON FUNCTION insta_ids.this_node() IS
    'name of this server''s node, NULL if it has none';
COMMENT ON FUNCTION insta_ids.own_node() IS
    'name of this server''s node, which it must have';
COMMENT ON FUNCTION insta_ids.check_node(name) IS
    'refuses a node that is not on the map';
COMMENT ON FUNCTION insta_ids.check_dsn(text) IS
    'refuses a connection string with a password';
COMMENT ON FUNCTION insta_ids.check_left(integer, integer) IS
    'refuses shards that have moved away, and of which something is still here';
COMMENT ON FUNCTION insta_ids.is_placed_here(integer) IS
    'whether the map has a shard on this node';
COMMENT ON FUNCTION insta_ids.check_placement(integer) IS
    'refuses to have a shard here that the map has elsewhere';
COMMENT ON FUNCTION insta_ids.set_assignments(integer[], integer[], name[]) IS
    'the part that assign and apply_map share';
COMMENT ON FUNCTION insta_ids.map_changed() IS
    'gives the map a new version when its tables change';
COMMENT ON FUNCTION insta_ids.tell_of_map() IS
    'notifies of a new version of the map';
COMMENT ON FUNCTION insta_ids.forget_map() IS
    'has all sessions read the map and the fences again';
COMMENT ON TABLE insta_ids.node IS
    'the servers that shards are on';
COMMENT ON TABLE insta_ids.assignment IS
    'which node has which shards';
COMMENT ON TABLE insta_ids.map IS
    'version of the map';
COMMENT ON FUNCTION insta_ids.fence(integer, text) IS
    'closes a shard to all who write, when those who do have ended';
COMMENT ON FUNCTION insta_ids.unfence(integer) IS
    'opens a shard again';
COMMENT ON FUNCTION insta_ids.close_shards(integer[], name, text) IS
    'the part that fence and moves share';
COMMENT ON FUNCTION insta_ids.open_shards(integer[]) IS
    'the part that unfence and moves share';
COMMENT ON FUNCTION insta_ids.claim(integer[]) IS
    'locks shards that are here, so that nobody else alters or moves them';
COMMENT ON FUNCTION insta_ids.lock_all(regclass[], text, regclass[], text, text) IS
    'locks tables and sequences when nobody is using them';
COMMENT ON FUNCTION insta_ids.check_heirs(integer[]) IS
    'refuses shards that share rows with another schema';
COMMENT ON FUNCTION insta_ids.refuse(integer) IS
    'raises the error of a shard that is not written to here';
COMMENT ON FUNCTION insta_ids.refuse_write() IS
    'the trigger that a fence is made of';
COMMENT ON FUNCTION insta_ids.fenced_schemas() IS
    'schemas of shards that move or are fenced, as they are now';
COMMENT ON FUNCTION insta_ids.keep_fenced() IS
    'refuses who alters what moves or is fenced';
COMMENT ON FUNCTION insta_ids.fence_changed() IS
    'has all sessions read the fences again';
COMMENT ON EVENT TRIGGER insta_ids_keep_fenced IS
    'refuses who alters what moves or is fenced';
COMMENT ON EVENT TRIGGER insta_ids_keep_fenced_from_drop IS
    'refuses who drops what moves or is fenced';
COMMENT ON TABLE insta_ids.fence IS
    'shards that nothing is written to here, or that nobody alters';
COMMENT ON PROCEDURE insta_ids.move_shards(integer, integer, name, text, text, bigint) IS
    'brings a range of shards here from another node, or goes on with that';
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name) IS
    'ends a move to this node whose shards have not been handed over';
COMMENT ON FUNCTION insta_ids.move_offer(integer, integer, name) IS
    'source: publishes a range of shards, which nobody alters from here on';
COMMENT ON FUNCTION insta_ids.move_prepare(jsonb) IS
    'target: makes the shards of an offer, empty and closed';
COMMENT ON FUNCTION insta_ids.move_slot(name) IS
    'source: makes the replication slot of a move';
COMMENT ON FUNCTION insta_ids.move_subscribe(name) IS
    'target: begins to copy, or goes on after an error';
COMMENT ON FUNCTION insta_ids.move_copied(name) IS
    'target: whether all tables are copied, and follow the source';
COMMENT ON FUNCTION insta_ids.move_lag(name) IS
    'source: bytes of WAL that the target has not confirmed yet';
COMMENT ON FUNCTION insta_ids.move_fence(name, text) IS
    'source: closes the shards of a move to all who write';
COMMENT ON FUNCTION insta_ids.move_mark(name) IS
    'source: what the target goes on from, once the fence is committed';
COMMENT ON FUNCTION insta_ids.move_table_slots(name, "char"[]) IS
    'target: the slots that tables are copied by which have not caught up';
COMMENT ON FUNCTION insta_ids.move_slots_lost(name[]) IS
    'source: whether one of these slots is not there';
COMMENT ON FUNCTION insta_ids.move_recopy(name) IS
    'target: begins to copy again, when the slot of a table is lost';
COMMENT ON FUNCTION insta_ids.move_drained(name, jsonb) IS
    'target: whether all that was written before the mark is here';
COMMENT ON FUNCTION insta_ids.move_hashes(name, text) IS
    'both: number and hash of the rows of each table';
COMMENT ON FUNCTION insta_ids.move_hand_over(name, jsonb, jsonb, jsonb) IS
    'target: takes the shards over if all rows are here; what move_finish must see';
COMMENT ON FUNCTION insta_ids.move_finish(name, jsonb) IS
    'source, then target: ends a move whose shards were handed over';
COMMENT ON FUNCTION insta_ids.move_cancel(name, uuid) IS
    'target: forgets what was made for a move whose shards were not handed over';
COMMENT ON FUNCTION insta_ids.move_withdraw(name, jsonb) IS
    'source: takes an offer back that the target has cancelled, and opens the shards';
COMMENT ON FUNCTION insta_ids.prepare_move(jsonb, text) IS
    'the part that move_prepare and move_shards share';
COMMENT ON FUNCTION insta_ids.take_migrations(jsonb, name) IS
    'adds the migrations of another node that are not here';
COMMENT ON FUNCTION insta_ids.make_partitions(integer, jsonb) IS
    'gives the tables of a shard the partitions that they have on another node';
COMMENT ON FUNCTION insta_ids.check_moves(integer, integer) IS
    'refuses shards that are moving';
COMMENT ON FUNCTION insta_ids.check_movable(integer[]) IS
    'refuses shards that could not be moved whole';
COMMENT ON FUNCTION insta_ids.check_absent(integer, integer) IS
    'refuses shards of which something is here';
COMMENT ON FUNCTION insta_ids.move_outcome(uuid) IS
    'how a move has ended here';
COMMENT ON FUNCTION insta_ids.commit_durably() IS
    'has the transaction on disk when it is committed';
COMMENT ON FUNCTION insta_ids.open_move(name) IS
    'the move of a name, locked';
COMMENT ON FUNCTION insta_ids.assign_moved(insta_ids.move, bigint) IS
    'gives the map the shards of a move';
COMMENT ON FUNCTION insta_ids.objects_json(integer) IS
    'what is in a shard, as JSON';
COMMENT ON FUNCTION insta_ids.partitions_json(integer) IS
    'the partitions of a shard, as JSON';
COMMENT ON FUNCTION insta_ids.relations_of(integer[]) IS
    'what rows and values of shards are in';
COMMENT ON FUNCTION insta_ids.published_tables(integer[]) IS
    'the tables of shards, as a publication names them';
COMMENT ON FUNCTION insta_ids.drop_slot(name) IS
    'drops a replication slot when it is free';
COMMENT ON FUNCTION insta_ids.drop_subscription(name) IS
    'drops the subscription of a move, without its slot';
COMMENT ON FUNCTION insta_ids.connect_node(name) IS
    'connects this session to another node, by dblink';
COMMENT ON FUNCTION insta_ids.disconnect_node() IS
    'ends the connection to another node';
COMMENT ON FUNCTION insta_ids.dblink_schema() IS
    'schema of the extension dblink';
COMMENT ON FUNCTION insta_ids.ask_node(text) IS
    'answer of the node that this session is connected to';
COMMENT ON FUNCTION insta_ids.begin_to_ask_node(text) IS
    'asks the node that this session is connected to, without waiting for the answer';
COMMENT ON FUNCTION insta_ids.await_node() IS
    'answer to what begin_to_ask_node asked';
COMMENT ON VIEW insta_ids.subscription IS
    'the subscriptions of this database';
COMMENT ON VIEW insta_ids.moves IS
    'the moves of this server: how far each is, and what to do next';
COMMENT ON TABLE insta_ids.move IS
    'what the view moves shows';
COMMENT ON TABLE insta_ids.ended_move IS
    'how moves have ended here';
COMMENT ON TABLE insta_ids.moved IS
    'shards that have left, and the schemas that are left of them';
