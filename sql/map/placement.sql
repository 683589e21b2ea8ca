-- The placement of shards on nodes.

-- Routers look up a shard's node here, as an ordinary role.
CREATE OR REPLACE VIEW insta_ids.map AS
SELECT a.first, a.last, a.node, n.ord, n.dsn, (SELECT m.version FROM insta_ids_internal.map m) AS version
FROM insta_ids_internal.assignment a LEFT JOIN insta_ids_internal.node n ON n.node = a.node;
COMMENT ON VIEW insta_ids.map IS 'the map: which node has which shards, and how to connect to it';

-- Returns whether a shard belongs on this server: by the map, or because the map is empty or this server has no node.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_placed_here(shard integer) RETURNS boolean
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids.this_node() IS NULL OR NOT EXISTS (SELECT FROM insta_ids_internal.assignment)
        OR EXISTS (
            SELECT FROM insta_ids_internal.assignment a
            WHERE shard BETWEEN a.first AND a.last AND a.node = insta_ids.this_node()::name);

-- Raises an error if the map has a shard on another node, or if the shard has moved away and was dropped here.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_placed_here(shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name;
BEGIN
    IF NOT insta_ids_internal.is_placed_here(shard) THEN
        PERFORM insta_ids_internal.refuse_shard(shard, is_fenced => false);
    END IF;
    SELECT d.to_node INTO node FROM insta_ids_internal.departed_shard d WHERE d.shard = require_placed_here.shard AND d.schema IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids_internal.departed_shard WHERE shard = %s.', shard);
    END IF;
END
$$;

-- Raises an error if a departed shard of this range has left a schema here.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_remains(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remains insta_ids_internal.departed_shard;
BEGIN
    SELECT * INTO remains FROM insta_ids_internal.departed_shard d
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

-- Keeps other sessions from changing the map until the transaction ends. It waits for one that has changed it, but not for one
-- that has locked the table of assignments and waits itself. A session that also locks a move locks the move first.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_map() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM insta_ids_internal.map FOR SHARE;
END
$$;

-- Replaces all assignments of the map by these. Raises an error if a shard that is open to writers here would leave this node.
-- The same holds if a departed shard would return, or if a moving shard would go to a third node.
CREATE OR REPLACE FUNCTION insta_ids_internal.set_assignments(firsts integer[], lasts integer[], nodes name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
    taken record;
    left_here insta_ids_internal.departed_shard;
BEGIN
    -- A fence that hold_map() protects is opened before or after, not meanwhile.
    PERFORM FROM insta_ids_internal.map FOR UPDATE;
    SELECT d.* INTO left_here
    FROM insta_ids_internal.departed_shard d
    JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON d.shard BETWEEN a.first AND a.last AND a.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids_internal.departed_shard WHERE shard = %s.',
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
    -- Only the two nodes of a move have the rows of its shards.
    PERFORM insta_ids_internal.require_not_moving(m.first, m.last)
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

CREATE OR REPLACE FUNCTION insta_ids.assign(first integer, last integer, node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    PERFORM insta_ids_internal.require_range(first, last, 1);
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_node(node);
    -- Assigning shards to the source of their move is allowed, because the move can be withdrawn.
    PERFORM insta_ids_internal.require_not_moving(greatest(m.first, assign.first), least(m.last, assign.last))
    FROM insta_ids_internal.move m
    WHERE m.first <= assign.last AND m.last >= assign.first AND m.from_node <> assign.node;
    IF EXISTS (
        SELECT FROM insta_ids_internal.assignment a
        WHERE a.first <= assign.first AND a.last >= assign.last AND a.node = assign.node)
    THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.set_assignments(array_agg(p.first), array_agg(p.last), array_agg(p.node))
    FROM (
        SELECT a.first, least(a.last, assign.first - 1), a.node FROM insta_ids_internal.assignment a WHERE a.first < assign.first
        UNION ALL
        SELECT greatest(a.first, assign.last + 1), a.last, a.node FROM insta_ids_internal.assignment a WHERE a.last > assign.last
        UNION ALL
        VALUES (assign.first, assign.last, assign.node)
    ) p (first, last, node);
END
$$;
COMMENT ON FUNCTION insta_ids.assign(integer, integer, name) IS 'says which node has a range of shards';

-- All roles may call this function, but few may read the map's tables. So it runs with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids.shard_map() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids_internal.require_config();
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
COMMENT ON FUNCTION insta_ids.shard_map() IS 'the map as JSON, with known answers for clients in other languages';

CREATE OR REPLACE FUNCTION insta_ids.apply_map(map jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
    own bigint;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
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
    config := insta_ids_internal.require_config();
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
        -- Without any assignment, each server would have all shards.
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map has no shard on any node',
            HINT = 'Say where they are, on the server that it comes from: SELECT insta_ids.assign(first, last, node).';
    END IF;

    DELETE FROM insta_ids_internal.node;
    INSERT INTO insta_ids_internal.node
    SELECT n.node, n.dsn, n.ord FROM jsonb_to_recordset(map -> 'nodes') n (node name, dsn text, ord integer);
    PERFORM insta_ids_internal.require_range((r ->> 0)::integer, (r ->> 1)::integer, 1), insta_ids_internal.require_node(r ->> 2)
    FROM jsonb_array_elements(map -> 'ranges') r;
    PERFORM insta_ids_internal.set_assignments(
        coalesce(array_agg((r ->> 0)::integer), '{}'), coalesce(array_agg((r ->> 1)::integer), '{}'),
        coalesce(array_agg((r ->> 2)::name), '{}'))
    FROM jsonb_array_elements(map -> 'ranges') r;
    UPDATE insta_ids_internal.map m SET version = (apply_map.map ->> 'version')::bigint;
END
$$;
COMMENT ON FUNCTION insta_ids.apply_map(jsonb) IS 'takes a newer map of another server over';
