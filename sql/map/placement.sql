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
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If its rows are lost for good:'
                || ' DELETE FROM insta_ids_internal.departed_shard WHERE shard = %s.', shard);
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
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('what is left of shard %s is still here', remains.shard),
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
    -- Neighbours of one node and version become one range, so that equal maps are stored alike on all servers.
    ranges := insta_ids_internal.merge_assignments(ranges, '[]');
    -- A fence that hold_map() protects is opened before or after, not meanwhile.
    PERFORM FROM insta_ids_internal.map FOR UPDATE;
    SELECT d.* INTO left_here
    FROM insta_ids_internal.departed_shard d
    JOIN insta_ids_internal.placements(ranges) p ON p.shard = d.shard AND p.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = CASE
                WHEN left_here.schema IS NULL THEN format('It comes back by a move. If its rows are lost for good:'
                    || ' DELETE FROM insta_ids_internal.departed_shard WHERE shard = %s.', left_here.shard)
                ELSE format('It comes back by a move. If node "%1$s" has lost it, there:'
                    || ' CALL insta_ids.move_abort(%2$s, %2$s, %3$L, take_back => true).', left_here.to_node, left_here.shard, here) END;
    END IF;
    SELECT s.shard, p.node INTO taken
    FROM insta_ids_internal.shard s LEFT JOIN insta_ids_internal.placements(ranges) p ON p.shard = s.shard
    WHERE p.node IS DISTINCT FROM here AND here IS NOT NULL
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_in_use USING MESSAGE = format('shard %s is here, and open to writers', taken.shard),
            DETAIL = format('The map would have it on %s; this is node "%s".',
                coalesce('node "' || taken.node || '"', 'no node'), here),
            HINT = 'Move it with insta_ids.move_shards(), or fence it first: insta_ids.fence().';
    END IF;
    -- Only the two nodes of a move have the rows of its shards.
    PERFORM insta_ids_internal.require_not_moving(m.first, m.last)
    FROM insta_ids_internal.move m CROSS JOIN unnest(m.shards) s (shard)
    LEFT JOIN insta_ids_internal.placements(ranges) p ON p.shard = s.shard
    WHERE p.node IS NULL OR p.node NOT IN (m.from_node, m.to_node);
    -- Writers wait for a hand-over, so rows that stay as they are are left alone.
    DELETE FROM insta_ids_internal.assignment a
    WHERE NOT EXISTS (
        SELECT FROM insta_ids_internal.read_assignments(ranges) r
        WHERE (r.first, r.last, r.node, r.version) = (a.first, a.last, a.node, a.version));
    INSERT INTO insta_ids_internal.assignment (first, last, node, version)
    SELECT r.first, r.last, r.node, r.version FROM insta_ids_internal.read_assignments(ranges) r
    WHERE NOT EXISTS (SELECT FROM insta_ids_internal.assignment a WHERE a.first = r.first);
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
        jsonb_build_array(jsonb_build_array(first, last, node, insta_ids_internal.next_map_version()))));
END
$$;
COMMENT ON FUNCTION insta_ids.assign(integer, integer, name) IS 'says which node has a range of shards';
