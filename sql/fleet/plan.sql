-- Which shards should move where.

CREATE OR REPLACE FUNCTION insta_ids.pin_shards(first integer, last integer, is_pinned boolean DEFAULT true) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_range(first, last, 1);
    PERFORM insta_ids_internal.lock_shards(ARRAY(
        SELECT s.shard FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard));
    UPDATE insta_ids_internal.shard s SET is_pinned = pin_shards.is_pinned WHERE s.shard BETWEEN first AND last;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('no shard from %s to %s is here', first, last),
            HINT = 'Call this on the node that has the shards.';
    END IF;
END
$$;
COMMENT ON FUNCTION insta_ids.pin_shards(integer, integer, boolean) IS
    'keeps shards of this node from being moved by rebalance, or no longer';

-- Returns the shards that should move, in their order, with the numbers of their nodes. Nodes are numbered from 1, in the order of
-- `weights`. The nodes of `left_nodes` still have what is left of the shards of `left_shards`. See src/shard/balance.rs.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_moves(
        weights float8[], drained boolean[], shards integer[], nodes integer[], loads float8[], pinned boolean[],
        left_shards integer[], left_nodes integer[], threshold float8)
    RETURNS TABLE (shard integer, from_node integer, to_node integer)
    IMMUTABLE STRICT PARALLEL SAFE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'plan_moves_wrapper';

-- Returns the load of each shard of the fleet by one measure. Raises an error if a node that is not excluded does not answer. What
-- is counted is measured for the time of `sample`. A row that `is_left` is what is left of a shard on a node that it has left.
CREATE OR REPLACE FUNCTION insta_ids_internal.loads_of_fleet(by text, exclude name[], sample interval)
    RETURNS TABLE (node name, shard integer, load float8, rows bigint, bytes bigint, is_pinned boolean, is_left boolean)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    question CONSTANT text := 'SELECT insta_ids_internal.node_report(true)';
    is_rate CONSTANT boolean := by IN ('ids', 'inserted', 'updated', 'deleted', 'read');
    before jsonb := '{}';
    asked record;
BEGIN
    IF NOT is_rate AND by NOT IN ('bytes', 'rows', 'shards') THEN
        RAISE invalid_parameter_value USING MESSAGE = format('shards cannot be balanced by "%s"', by),
            DETAIL = 'They can be by bytes, rows, shards, ids, inserted, updated, deleted or read.';
    END IF;
    IF is_rate THEN
        PERFORM insta_ids_internal.require_sample(sample);
        before := (
            SELECT jsonb_object_agg(l.shard, to_jsonb(l) -> by)
            FROM insta_ids_internal.ask_fleet(question, NULL::insta_ids_internal.node_report) a, unnest((a.answer).load) l);
        PERFORM insta_ids_internal.wait_ms((extract(epoch FROM sample) * 1000)::integer);
    END IF;
    FOR asked IN SELECT * FROM insta_ids_internal.ask_fleet(question, NULL::insta_ids_internal.node_report) LOOP
        CONTINUE WHEN asked.node = ANY (exclude);
        IF asked.reason IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('node "%s" does not answer', asked.node),
                DETAIL = asked.reason,
                HINT = format('Mend that, or leave the node as it is: exclude => ARRAY[%L].', asked.node);
        END IF;
        RETURN QUERY
        -- A shard that moves counts for the node that it goes to.
        SELECT CASE WHEN l.to_node IS NULL OR l.to_node = ANY (exclude) THEN asked.node ELSE l.to_node END, l.shard::integer,
               CASE by WHEN 'shards' THEN 1 WHEN 'bytes' THEN l.bytes WHEN 'rows' THEN l.rows
                   -- Of a shard that was not here before, nothing is known.
                   ELSE greatest(0, coalesce((to_jsonb(l) ->> by)::float8 - (before ->> l.shard::text)::float8, 0)) END::float8,
               l.rows::bigint, l.bytes::bigint, l.is_pinned OR l.is_fenced, false
        FROM unnest((asked.answer).load) l;
        RETURN QUERY
        SELECT asked.node, r.shard::integer, 0::float8, 0::bigint, 0::bigint, true, true FROM unnest((asked.answer).remains) r (shard);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.rebalance_plan(
        by text DEFAULT 'bytes', threshold float8 DEFAULT 0.05, drain name[] DEFAULT '{}', exclude name[] DEFAULT '{}',
        sample interval DEFAULT '10 s')
    RETURNS TABLE (
        step integer, first integer, last integer, from_node name, to_node name, rows bigint, bytes bigint,
        balance_before float8, balance_after float8
    )
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    nodes CONSTANT name[] := ARRAY(
        SELECT n.node FROM insta_ids_internal.node n WHERE n.node <> ALL (exclude) ORDER BY n.ord);
    weights CONSTANT float8[] := ARRAY(
        SELECT n.weight FROM insta_ids_internal.node n WHERE n.node <> ALL (exclude) ORDER BY n.ord);
    -- What each node has, of what `by` measures.
    loads float8[];
    shards jsonb;
    moved record;
BEGIN
    PERFORM insta_ids_internal.require_node(d.node) FROM unnest(drain || exclude) d (node);
    IF drain && exclude THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a node cannot be drained and excluded';
    ELSIF threshold NOT BETWEEN 0 AND 10 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('threshold cannot be %s', threshold),
            DETAIL = 'It can be from 0 to 10: by how much of the average a node may have more or less than that.';
    END IF;
    shards := (SELECT coalesce(jsonb_agg(l), '[]') FROM insta_ids_internal.loads_of_fleet(by, exclude, sample) l);
    PERFORM insta_ids_internal.require_drainable(shards, nodes, weights, drain);
    loads := ARRAY(
        SELECT coalesce((SELECT sum(l.load) FROM jsonb_to_recordset(shards) l (node name, load float8) WHERE l.node = n.node), 0)
        FROM unnest(nodes) WITH ORDINALITY n (node, place) ORDER BY n.place);
    step := 0;
    balance_after := insta_ids_internal.balance(loads, weights, nodes, drain);
    FOR moved IN
        WITH known AS (
            SELECT l.*, array_position(nodes, l.node) AS place
            FROM jsonb_to_recordset(shards) l (
                node name, shard integer, load float8, rows bigint, bytes bigint, is_pinned boolean, is_left boolean)
            WHERE NOT l.is_left
        ), remains AS (
            SELECT l.shard, array_position(nodes, l.node) AS place
            FROM jsonb_to_recordset(shards) l (node name, shard integer, is_left boolean) WHERE l.is_left
        ), planned AS (
            SELECT p.shard, p.from_node, p.to_node, row_number() OVER () AS place
            FROM insta_ids_internal.plan_moves(weights, ARRAY(SELECT n = ANY (drain) FROM unnest(nodes) n),
                ARRAY(SELECT k.shard FROM known k ORDER BY k.shard), ARRAY(SELECT k.place FROM known k ORDER BY k.shard),
                ARRAY(SELECT k.load FROM known k ORDER BY k.shard), ARRAY(SELECT k.is_pinned FROM known k ORDER BY k.shard),
                ARRAY(SELECT r.shard FROM remains r ORDER BY r), ARRAY(SELECT r.place FROM remains r ORDER BY r), threshold) p
        ), numbered AS (
            SELECT p.*, p.shard - row_number() OVER (PARTITION BY p.from_node, p.to_node ORDER BY p.shard) AS island FROM planned p
        ), parts AS (
            -- Shards that are next to each other and go the same way move together, 32 of them at most.
            SELECT n.*, (row_number() OVER (PARTITION BY n.from_node, n.to_node, n.island ORDER BY n.shard) - 1) / 32 AS part
            FROM numbered n
        )
        SELECT min(p.shard) AS first, max(p.shard) AS last, p.from_node, p.to_node, sum(k.rows)::bigint AS rows,
               sum(k.bytes)::bigint AS bytes, sum(k.load) AS load
        FROM parts p JOIN known k ON k.shard = p.shard
        GROUP BY p.from_node, p.to_node, p.island, p.part ORDER BY min(p.place)
    LOOP
        step := step + 1;
        first := moved.first;
        last := moved.last;
        from_node := nodes[moved.from_node];
        to_node := nodes[moved.to_node];
        rows := moved.rows;
        bytes := moved.bytes;
        balance_before := balance_after;
        loads[moved.from_node] := loads[moved.from_node] - moved.load;
        loads[moved.to_node] := loads[moved.to_node] + moved.load;
        balance_after := insta_ids_internal.balance(loads, weights, nodes, drain);
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION insta_ids.rebalance_plan(text, float8, name[], name[], interval) IS
    'which shards should move where, so that all nodes are loaded alike';

-- Returns how full the fullest node is, as a multiple of the average. Nodes that are drained, or have no weight, do not count
-- unless they have a load: then the average is what the others would have.
CREATE OR REPLACE FUNCTION insta_ids_internal.balance(loads float8[], weights float8[], nodes name[], drain name[]) RETURNS float8
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT round((max(n.load / n.weight) FILTER (WHERE n.takes)
        / nullif(sum(n.load) / nullif(sum(n.weight) FILTER (WHERE n.takes), 0), 0))::numeric, 3)::float8
    FROM (
        SELECT u.load, u.weight, u.weight > 0 AND u.node <> ALL (drain) AS takes
        FROM ROWS FROM (unnest(loads), unnest(weights), unnest(nodes)) u (load, weight, node)
    ) n;
END;

-- Raises an error if shards are to leave a node and cannot: if they are pinned there, or if no other node takes them.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_drainable(shards jsonb, nodes name[], weights float8[], drain name[])
    RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    takers CONSTANT name[] := ARRAY(
        SELECT n.node FROM ROWS FROM (unnest(nodes), unnest(weights)) n (node, weight)
        WHERE n.weight > 0 AND n.node <> ALL (drain));
    stuck record;
BEGIN
    IF cardinality(drain) > 0 AND takers = '{}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'no node takes the shards',
            HINT = 'Add one by insta_ids.add_node(), or give one a weight.';
    END IF;
    WITH known AS (
        SELECT * FROM jsonb_to_recordset(shards) l (node name, shard integer, is_pinned boolean, is_left boolean)
    )
    SELECT k.shard, k.node, k.is_pinned INTO stuck
    FROM known k
    WHERE NOT k.is_left AND k.node = ANY (drain)
        AND (k.is_pinned OR takers <@ ARRAY(SELECT r.node FROM known r WHERE r.is_left AND r.shard = k.shard))
    ORDER BY k.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s cannot leave node "%s"', stuck.shard, stuck.node),
            DETAIL = CASE
                WHEN stuck.is_pinned THEN 'It is pinned there, or it is fenced or moving.'
                ELSE 'Each other node still has the schema that the shard left there.' END,
            HINT = CASE
                WHEN stuck.is_pinned THEN format('On node "%s", see insta_ids.shards, or call insta_ids.pin_shards(%s, %2$s, false).',
                    stuck.node, stuck.shard)
                ELSE format('On another node: SELECT insta_ids.drop_shard(%s).', stuck.shard) END;
    END IF;
END
$$;
