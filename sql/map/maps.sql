-- Maps as JSON: how they travel, and how two of them become one.

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

-- Returns the node of each shard, and in which version of the map the shard was assigned to it.
CREATE OR REPLACE FUNCTION insta_ids_internal.placements(ranges jsonb) RETURNS TABLE (shard integer, node name, version bigint)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT s.shard, a.node, a.version
    FROM insta_ids_internal.read_assignments(ranges) a CROSS JOIN LATERAL pg_catalog.generate_series(a.first, a.last) s (shard);
END;

-- Returns the assignments of two maps as one: each shard is where the map has it that assigned it in the higher version. So maps
-- that were changed on different servers become the same map, in whatever order they are merged. The caller sees
-- to it that no two nodes have a shard in the same version.
CREATE OR REPLACE FUNCTION insta_ids_internal.merge_assignments(ranges jsonb, others jsonb) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH newest AS (
        SELECT DISTINCT ON (p.shard) p.shard, p.node, p.version FROM insta_ids_internal.placements(ranges || others) p
        ORDER BY p.shard, p.version DESC, p.node DESC
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

-- Returns the nodes of two maps as those of one: each node is as the map has it that changed it in the higher version, and so are
-- nodes that were dropped.
CREATE OR REPLACE FUNCTION insta_ids_internal.merge_nodes(map jsonb, other jsonb) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH newest AS (
        SELECT DISTINCT ON (n.node) n.*
        FROM pg_catalog.jsonb_to_recordset(
            (map -> 'nodes') || (map -> 'dropped_nodes') || (other -> 'nodes') || (other -> 'dropped_nodes'))
            n (node name, dsn text, ord integer, weight double precision, version bigint)
        ORDER BY n.node, n.version DESC, n.dsn, n.ord, n.weight
    )
    SELECT pg_catalog.jsonb_build_object(
        'nodes', coalesce(pg_catalog.jsonb_agg(n ORDER BY n.ord, n.node) FILTER (WHERE n.dsn IS NOT NULL), '[]'),
        'dropped_nodes', coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('node', n.node, 'version', n.version) ORDER BY n.node)
            FILTER (WHERE n.dsn IS NULL), '[]'))
    FROM newest n;
END;

-- All roles may call this function, but few may read the map's tables. So it runs with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids.shard_map() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
BEGIN
    RETURN jsonb_build_object(
        'format', 1,
        'version', coalesce((SELECT m.version FROM insta_ids_internal.map m), 0),
        'shards', config.shards,
        'prefix', config.prefix,
        'layout', config.layout::text,
        'nodes', (
            SELECT coalesce(jsonb_agg(n ORDER BY n.ord), '[]') FROM insta_ids_internal.node n),
        'dropped_nodes', (
            SELECT coalesce(jsonb_agg(d ORDER BY d.node), '[]') FROM insta_ids_internal.dropped_node d),
        'ranges', insta_ids_internal.assignments_json(),
        'moving', (
            SELECT coalesce(jsonb_agg(jsonb_build_array(m.first, m.last, m.from_node, m.to_node) ORDER BY m.first), '[]')
            FROM insta_ids_internal.move m),
        'known_answers', jsonb_build_object(
            'shard_of', (
                SELECT jsonb_agg(jsonb_build_object('type', k.type, 'key', k.key, 'shard', CASE k.type
                    WHEN 'bigint' THEN insta_ids.shard_of(k.key::bigint, config.shards)
                    WHEN 'uuid' THEN insta_ids.shard_of_uuid(k.key::uuid, config.shards)
                    ELSE insta_ids.shard_of_text(k.key, config.shards) END))
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

-- Raises an error if another server's version of the map is too high for a map that has changed step by step. A map of the highest
-- possible version could never change again.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_map_version(version bigint) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT bigint := coalesce((SELECT m.version FROM insta_ids_internal.map m), 0);
BEGIN
    IF version NOT BETWEEN 0 AND own + 1000000000 THEN
        RAISE numeric_value_out_of_range USING MESSAGE = format('version %s of the map is out of range', version),
            DETAIL = format('The map here has version %s. Another one can be up to 1000000000 versions ahead.', own);
    END IF;
END
$$;

-- Raises an error unless this is a map of the shards of this database.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_map(map jsonb) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
    versions bigint[];
BEGIN
    IF (config.shards, config.prefix, config.layout::text)
        IS DISTINCT FROM ((map ->> 'shards')::integer, (map ->> 'prefix')::name, map ->> 'layout')
    THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'map is of other shards than this database''s',
            DETAIL = format('It has %s, with the prefix "%s" and the layout "%s"; here are %s, with "%s" and "%s".',
                map ->> 'shards', map ->> 'prefix', map ->> 'layout', config.shards, config.prefix, config.layout);
    ELSIF map -> 'ranges' = '[]' THEN
        -- Without any assignment, each server would have all shards.
        RAISE invalid_parameter_value USING MESSAGE = 'map has no shard on any node',
            HINT = 'Say where they are, on the server that it comes from: SELECT insta_ids.assign(first, last, node).';
    END IF;
    IF EXISTS (SELECT FROM insta_ids_internal.read_assignments(map -> 'ranges') r WHERE num_nulls(r.first, r.last, r.node, r.version) > 0)
        OR EXISTS (
            SELECT FROM jsonb_to_recordset(map -> 'nodes') n (node text, dsn text, ord integer, weight float8, version bigint)
            WHERE num_nulls(n.node, n.dsn, n.ord, n.weight, n.version) > 0)
        OR EXISTS (
            SELECT FROM jsonb_to_recordset(map -> 'dropped_nodes') n (node text, version bigint) WHERE num_nulls(n.node, n.version) > 0)
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'map is not complete',
            DETAIL = 'Each range must have a first and a last shard, a node and a version; each node a name, a connection string,'
                || ' a number, a weight and a version; each dropped node a name and a version.';
    END IF;
    PERFORM insta_ids_internal.require_range(r.first, r.last, 1) FROM insta_ids_internal.read_assignments(map -> 'ranges') r;
    versions := ARRAY(
        SELECT (map -> 'version')::bigint
        UNION SELECT (n -> 'version')::bigint FROM jsonb_array_elements((map -> 'nodes') || (map -> 'dropped_nodes')) n
        UNION SELECT r.version FROM insta_ids_internal.read_assignments(map -> 'ranges') r);
    PERFORM insta_ids_internal.require_map_version(v) FROM unnest(versions) v;
    IF (map -> 'version')::bigint < ANY (versions) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'map has a newer version inside than its own',
            HINT = 'Take it from insta_ids.shard_map().';
    END IF;
END
$$;

-- Returns the nodes and the assignments that two maps have together.
CREATE OR REPLACE FUNCTION insta_ids_internal.merge_maps(map jsonb, other jsonb) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.merge_nodes(map, other)
        || pg_catalog.jsonb_build_object('ranges', insta_ids_internal.merge_assignments(map -> 'ranges', other -> 'ranges'));
END;

-- Returns the statement by which a server gets a node as a map has it.
CREATE OR REPLACE FUNCTION insta_ids_internal.statement_of_node(node jsonb) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE
        WHEN node ? 'dsn' THEN pg_catalog.format('SELECT insta_ids.add_node(%L, %L, %s, %s)',
            node ->> 'node', node ->> 'dsn', node ->> 'ord', node ->> 'weight')
        ELSE pg_catalog.format('SELECT insta_ids.drop_node(%L)', node ->> 'node') END;

-- Raises an error if two maps contradict each other: if both assigned a shard in the same version, but to different nodes, or
-- both changed a node in the same version, or gave two nodes one number. `merged` has both maps as one.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_conflict(ours jsonb, theirs jsonb, merged jsonb) RETURNS void
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
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('maps contradict each other about shard %s', conflict.shard),
            DETAIL = format('Since version %s, it is on node "%s" here, and on node "%s" there.',
                conflict.version, conflict.our_node, conflict.their_node),
            HINT = format('If it is on node "%1$s", here: SELECT insta_ids.assign(%2$s, %2$s, %1$L). If not, there: SELECT'
                || ' insta_ids.assign(%2$s, %2$s, %3$L).', conflict.their_node, conflict.shard, conflict.our_node);
    END IF;
    SELECT o.node ->> 'node' AS node, o.node ->> 'version' AS version,
           insta_ids_internal.statement_of_node(o.node) AS ours, insta_ids_internal.statement_of_node(t.node) AS theirs INTO conflict
    FROM jsonb_array_elements((ours -> 'nodes') || (ours -> 'dropped_nodes')) o (node)
    JOIN jsonb_array_elements((theirs -> 'nodes') || (theirs -> 'dropped_nodes')) t (node)
        ON t.node -> 'node' = o.node -> 'node' AND t.node -> 'version' = o.node -> 'version' AND t.node <> o.node
    ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('maps contradict each other about node "%s"', conflict.node),
            DETAIL = format('Both changed it in version %s.', conflict.version),
            HINT = format('If it is as here, there: %s. If not, here: %s.', conflict.ours, conflict.theirs);
    END IF;
    SELECT n.ord, min(n.node) AS node, max(n.node) AS other INTO conflict
    FROM jsonb_to_recordset(merged -> 'nodes') n (node text, ord integer)
    GROUP BY n.ord HAVING count(*) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('nodes "%s" and "%s" have the same number %s', conflict.node, conflict.other, conflict.ord),
            DETAIL = 'They were added on different servers.',
            HINT = 'Give one of them another number, where it was added: SELECT insta_ids.add_node(node, dsn, ord => ...).';
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
    layout insta_ids_internal.config.layout%TYPE;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    IF map -> 'format' IS DISTINCT FROM '1' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'map is not of format 1',
            HINT = 'Take it from insta_ids.shard_map() of a server with this version of insta_ids.';
    ELSIF (
        SELECT count(*) FROM (VALUES
            ('version', 'number'), ('shards', 'number'), ('prefix', 'string'), ('layout', 'string'), ('nodes', 'array'),
            ('dropped_nodes', 'array'), ('ranges', 'array')) k (key, type)
        WHERE jsonb_typeof(map -> k.key) = k.type) < 7
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'map is not complete',
            DETAIL = 'It must have a version, shards, prefix, layout, nodes, dropped_nodes and ranges.';
    END IF;
    LOCK TABLE insta_ids_internal.node, insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids_internal.config) THEN
        layout := map ->> 'layout';
        PERFORM insta_ids.init((map ->> 'shards')::integer, (map ->> 'prefix')::name, layout);
    END IF;
    PERFORM insta_ids_internal.require_own_map(map);
    ours := insta_ids.shard_map();
    own := ours -> 'version';
    their := map -> 'version';
    ours := insta_ids_internal.merge_maps(ours, ours);
    theirs := insta_ids_internal.merge_maps(map, map);
    merged := insta_ids_internal.merge_maps(ours, theirs);
    PERFORM insta_ids_internal.require_no_conflict(ours, theirs, merged);
    IF merged -> 'nodes' <> ours -> 'nodes' OR merged -> 'dropped_nodes' <> ours -> 'dropped_nodes' THEN
        DELETE FROM insta_ids_internal.node;
        INSERT INTO insta_ids_internal.node
        SELECT n.* FROM jsonb_populate_recordset(NULL::insta_ids_internal.node, merged -> 'nodes') n;
        DELETE FROM insta_ids_internal.dropped_node;
        INSERT INTO insta_ids_internal.dropped_node
        SELECT d.* FROM jsonb_populate_recordset(NULL::insta_ids_internal.dropped_node, merged -> 'dropped_nodes') d;
    END IF;
    IF merged <> ours THEN
        PERFORM insta_ids_internal.require_node(r.node) FROM insta_ids_internal.read_assignments(merged -> 'ranges') r;
        PERFORM insta_ids_internal.require_node(n.node)
        FROM insta_ids_internal.move m CROSS JOIN LATERAL (VALUES (m.from_node), (m.to_node)) n (node);
    END IF;
    IF merged -> 'ranges' <> ours -> 'ranges' THEN
        PERFORM insta_ids_internal.set_assignments(merged -> 'ranges');
    END IF;
    INSERT INTO insta_ids_internal.map AS m (version)
    VALUES (
        CASE WHEN merged = ours AND merged <> theirs THEN own
            -- The same map has the same version on all servers.
            WHEN merged = theirs AND (merged = ours OR their > own) THEN greatest(own, their)
            ELSE greatest(own, their) + 1 END)
    ON CONFLICT ((true)) DO UPDATE SET version = excluded.version WHERE m.version <> excluded.version;
END
$$;
COMMENT ON FUNCTION insta_ids.apply_map(jsonb) IS 'takes over what a map of another server has newer';
