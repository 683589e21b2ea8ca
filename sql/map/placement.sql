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

-- Returns the assignments of the map as JSON, in order: first and last shard, node, and version.
CREATE OR REPLACE FUNCTION insta_ids_internal.assignments_json() RETURNS jsonb
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.first, a.last, a.node, a.version) ORDER BY a.first), '[]')
        FROM insta_ids_internal.assignment a);

-- Returns the rows of what assignments_json() has returned.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_assignments(ranges jsonb)
    RETURNS TABLE (first integer, last integer, node name, version bigint)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT (r ->> 0)::integer, (r ->> 1)::integer, (r ->> 2)::name, (r ->> 3)::bigint FROM pg_catalog.jsonb_array_elements(ranges) r;
END;

-- Returns the assignments of two maps as one: each shard is where the map has it that assigned it in the higher version. So maps
-- that were changed on different servers become the same map, in whatever order they are merged. The caller sees
-- to it that no two nodes have a shard in the same version.
CREATE OR REPLACE FUNCTION insta_ids_internal.merge_assignments(ranges jsonb, others jsonb) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH newest AS (
        SELECT DISTINCT ON (s.shard) s.shard, a.node, a.version
        FROM insta_ids_internal.read_assignments(ranges || others) a
        CROSS JOIN LATERAL pg_catalog.generate_series(a.first, a.last) s (shard)
        ORDER BY s.shard, a.version DESC, a.node DESC
    ), islands AS (
        SELECT pg_catalog.min(n.shard) AS first, pg_catalog.max(n.shard) AS last, n.node, n.version
        FROM (
            SELECT n.*, n.shard - pg_catalog.row_number() OVER (PARTITION BY n.node, n.version ORDER BY n.shard) AS island
            FROM newest n
        ) n
        GROUP BY n.node, n.version, n.island
    )
    SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(i.first, i.last, i.node, i.version) ORDER BY i.first), '[]')
    FROM islands i;
END;

-- Replaces all assignments of the map by these, which are in the form of assignments_json(). Raises an error if a shard that is
-- open to writers here would leave this node. The same holds if a departed shard would return, or if a moving shard would go to a
-- third node.
CREATE OR REPLACE FUNCTION insta_ids_internal.set_assignments(ranges jsonb) RETURNS void
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
    JOIN insta_ids_internal.read_assignments(ranges) a ON d.shard BETWEEN a.first AND a.last AND a.node = here
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
    LEFT JOIN insta_ids_internal.read_assignments(ranges) a ON s.shard BETWEEN a.first AND a.last
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
    LEFT JOIN insta_ids_internal.read_assignments(ranges) a ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS NULL OR a.node NOT IN (m.from_node, m.to_node);
    DELETE FROM insta_ids_internal.assignment;
    INSERT INTO insta_ids_internal.assignment (first, last, node, version)
    SELECT a.first, a.last, a.node, a.version FROM insta_ids_internal.read_assignments(ranges) a;
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
    IF int4multirange(int4range(first, last, '[]')) <@ (
        SELECT range_agg(int4range(a.first, a.last, '[]')) FROM insta_ids_internal.assignment a WHERE a.node = assign.node)
    THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.set_assignments(insta_ids_internal.merge_assignments(
        insta_ids_internal.assignments_json(),
        jsonb_build_array(jsonb_build_array(first, last, node, 1 + coalesce((SELECT m.version FROM insta_ids_internal.map m), 0)))));
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
            SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.node, 'dsn', n.dsn, 'ord', n.ord, 'weight', n.weight) ORDER BY n.ord), '[]')
            FROM insta_ids_internal.node n),
        'nodes_version', coalesce((SELECT m.nodes_version FROM insta_ids_internal.map m), 0),
        'ranges', insta_ids_internal.assignments_json(),
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

-- Raises an error unless this is a map of the shards of this database.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_map(map jsonb) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids_internal.require_config();
BEGIN
    IF (config.shards, config.prefix, config.layout::text)
        IS DISTINCT FROM ((map ->> 'shards')::integer, (map ->> 'prefix')::name, map ->> 'layout')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'map is of other shards than this database''s',
            DETAIL = format('It has %s, with the prefix "%s" and the layout "%s"; here are %s, with "%s" and "%s".',
                map ->> 'shards', map ->> 'prefix', map ->> 'layout', config.shards, config.prefix, config.layout);
    ELSIF map -> 'ranges' = '[]' THEN
        -- Without any assignment, each server would have all shards.
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map has no shard on any node',
            HINT = 'Say where they are, on the server that it comes from: SELECT insta_ids.assign(first, last, node).';
    END IF;
    IF EXISTS (SELECT FROM insta_ids_internal.read_assignments(map -> 'ranges') r WHERE num_nulls(r.first, r.last, r.node, r.version) > 0) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not complete',
            DETAIL = 'Each range must have a first and a last shard, a node and a version.';
    END IF;
    PERFORM insta_ids_internal.require_range(r.first, r.last, 1) FROM insta_ids_internal.read_assignments(map -> 'ranges') r;
END
$$;

-- Returns the nodes and the assignments that two maps have together.
CREATE OR REPLACE FUNCTION insta_ids_internal.merge_maps(map jsonb, other jsonb) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_build_object('nodes', newer.map -> 'nodes', 'nodes_version', newer.map -> 'nodes_version',
        'ranges', insta_ids_internal.merge_assignments(merge_maps.map -> 'ranges', other -> 'ranges'))
    FROM (
        SELECT CASE WHEN (merge_maps.map -> 'nodes_version')::bigint >= (other -> 'nodes_version')::bigint
            THEN merge_maps.map ELSE other END
    ) newer (map);
END;

-- Raises an error if two maps contradict each other: if both assigned a shard in the same version, but to different nodes, or
-- both changed the nodes in the same version.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_conflict(ours jsonb, theirs jsonb) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    conflict record;
BEGIN
    SELECT greatest(o.first, t.first) AS shard, o.node AS our_node, t.node AS their_node, o.version INTO conflict
    FROM insta_ids_internal.read_assignments(ours -> 'ranges') o
    JOIN insta_ids_internal.read_assignments(theirs -> 'ranges') t USING (version)
    WHERE o.node <> t.node AND o.first <= t.last AND t.first <= o.last
    ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('maps contradict each other about shard %s', conflict.shard),
            DETAIL = format('Since version %s, it is on node "%s" here, and on node "%s" there.',
                conflict.version, conflict.our_node, conflict.their_node),
            HINT = format('If it is on node "%1$s", here: SELECT insta_ids.assign(%2$s, %2$s, %1$L). If not, there: SELECT'
                || ' insta_ids.assign(%2$s, %2$s, %3$L).', conflict.their_node, conflict.shard, conflict.our_node);
    ELSIF ours -> 'nodes_version' = theirs -> 'nodes_version' AND ours -> 'nodes' <> theirs -> 'nodes' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'maps contradict each other about the nodes',
            DETAIL = format('Both changed them in version %s.', ours -> 'nodes_version'),
            HINT = 'Add on one server by insta_ids.add_node() what the other has, and apply that map.';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.apply_map(map jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ours jsonb;
    theirs jsonb;
    merged jsonb;
    own bigint;
    their bigint;
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
            ('nodes_version', 'number'), ('ranges', 'array')) k (key, type)
        WHERE jsonb_typeof(map -> k.key) = k.type) < 7
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not complete',
            DETAIL = 'It must have a version, shards, prefix, layout, nodes, nodes_version and ranges.';
    END IF;
    LOCK TABLE insta_ids_internal.node, insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids.config) THEN
        PERFORM insta_ids.init((map ->> 'shards')::integer, (map ->> 'prefix')::name, insta_ids_internal.layout(map ->> 'layout'));
    END IF;
    PERFORM insta_ids_internal.require_own_map(map);
    ours := insta_ids.shard_map();
    PERFORM insta_ids_internal.require_no_conflict(ours, map);
    own := ours -> 'version';
    their := map -> 'version';
    ours := insta_ids_internal.merge_maps(ours, ours);
    theirs := insta_ids_internal.merge_maps(map, map);
    merged := insta_ids_internal.merge_maps(ours, theirs);
    IF merged -> 'nodes' <> ours -> 'nodes' THEN
        DELETE FROM insta_ids_internal.node;
        INSERT INTO insta_ids_internal.node
        SELECT n.node, n.dsn, n.ord, n.weight
        FROM jsonb_to_recordset(merged -> 'nodes') n (node name, dsn text, ord integer, weight float8);
    END IF;
    IF merged -> 'ranges' <> ours -> 'ranges' THEN
        PERFORM insta_ids_internal.require_node(r.node) FROM insta_ids_internal.read_assignments(merged -> 'ranges') r;
        PERFORM insta_ids_internal.set_assignments(merged -> 'ranges');
    END IF;
    INSERT INTO insta_ids_internal.map AS m (version, nodes_version)
    VALUES (
        CASE WHEN merged = ours AND merged <> theirs THEN own
            -- The same map has the same version on all servers.
            WHEN merged = theirs AND (merged = ours OR their > own) THEN greatest(own, their)
            ELSE greatest(own, their) + 1 END,
        (merged -> 'nodes_version')::bigint)
    ON CONFLICT ((true)) DO UPDATE SET version = excluded.version, nodes_version = excluded.nodes_version
    WHERE (m.version, m.nodes_version) <> (excluded.version, excluded.nodes_version);
END
$$;
COMMENT ON FUNCTION insta_ids.apply_map(jsonb) IS 'takes over what a map of another server has newer';
