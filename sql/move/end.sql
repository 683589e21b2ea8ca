-- Moves, on the source: the end of a move.

-- Drops the slot of a move, and those of `table_slots` by which a subscription copied tables. Slots of other databases or of
-- other origin stay. Ends processes that still read a slot.
CREATE OR REPLACE FUNCTION insta_ids_internal.drop_slots(moving insta_ids_internal.move, table_slots jsonb) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot name;
BEGIN
    FOR slot IN
        SELECT s.slot_name FROM pg_replication_slots s
        WHERE s.database = current_database() AND s.slot_type = 'logical' AND s.plugin = 'pgoutput'
            AND (s.slot_name = insta_ids_internal.slot_of(moving)
                OR s.slot_name ~ '^pg_[0-9]+_sync_[0-9]+_[0-9]+$' AND table_slots ? s.slot_name::text)
    LOOP
        FOR attempt IN 1 .. 100 LOOP
            BEGIN
                PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s WHERE s.slot_name = slot;
                EXIT;
            EXCEPTION
                WHEN object_in_use THEN
                    IF attempt = 100 THEN
                        RAISE;
                    END IF;
                    -- The process that reads the slot has nothing left to do.
                    PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots s WHERE s.slot_name = slot;
                    PERFORM insta_ids_internal.wait_ms(100);
            END;
        END LOOP;
    END LOOP;
END
$$;

-- Ends a move after the hand-over. On the source, it renames the schemas of the shards and drops the slot; `handed_over` is
-- what move_hand_over returned. On the target, it then drops the subscription and deletes the row of the move. Without a move of
-- this name, it does nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    schema name;
    kept name;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move) THEN
        RETURN;
    END IF;
    -- This table is locked before the move, as by all sessions that offer, create or assign shards.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids_internal.open_move(move);
    IF moving.step = 'handed over' THEN
        PERFORM insta_ids_internal.drop_subscription(move);
        DELETE FROM insta_ids_internal.move m WHERE m.name = move;
        RETURN;
    ELSIF moving.step NOT IN ('fenced', 'released') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s have not left', moving.first, moving.last),
            DETAIL = format('The move is %s here.', moving.step);
    ELSIF handed_over ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s may not be on node "%s" yet', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not handed over there.',
            HINT = format('On node "%s": CALL insta_ids.move_shards(%s, %s, %L).',
                moving.to_node, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, NULL::jsonb), insta_ids_internal.assign_moved(moving, (handed_over ->> 'version')::bigint);
    INSERT INTO insta_ids_internal.move_outcome VALUES (moving.id, 'handed over', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOR schema, kept IN
        SELECT insta_ids.schema_of(s), insta_ids_internal.departed_schema(s, (insta_ids_internal.require_config()).prefix)
        FROM unnest(moving.shards) s
    LOOP
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
    END LOOP;
    INSERT INTO insta_ids_internal.departed_shard (shard, schema, to_node, version, created_at, is_pinned, migrations)
    SELECT s.shard, insta_ids_internal.departed_schema(s.shard, (insta_ids_internal.require_config()).prefix), moving.to_node,
           (SELECT a.version FROM insta_ids_internal.assignment a WHERE s.shard BETWEEN a.first AND a.last), s.created_at, s.is_pinned,
           ARRAY(SELECT m.migration FROM insta_ids_internal.shard_migration m WHERE m.shard = s.shard AND m.message IS NULL ORDER BY 1)
    FROM insta_ids_internal.shard s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Withdraws an offer, and opens the shards to writers again. If they are fenced, or this server was promoted, the target must
-- have cancelled the move: `cancellation` is what move_cancel returned there. Raises an error otherwise.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_withdraw(move name, cancellation jsonb DEFAULT '{}') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    may_be_there boolean;
    elsewhere integer;
BEGIN
    -- Waits for a session that withdraws the move.
    PERFORM FROM insta_ids_internal.move m WHERE m.name = move FOR UPDATE;
    IF insta_ids_internal.outcome_of_move((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    moving := insta_ids_internal.open_move(move);
    PERFORM insta_ids_internal.hold_map();
    -- A promotion may have lost the fence.
    may_be_there := moving.step IN ('fenced', 'released') OR insta_ids_internal.is_in_doubt(moving.shards);
    IF moving.step NOT IN ('offered', 'fenced', 'released') THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('End the move here: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
    ELSIF (may_be_there OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- A target that does not know the move cannot promise that it will not take the shards over.
        OR may_be_there
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not cancelled there.',
            HINT = CASE WHEN cancellation ->> 'was_known' = 'false' AND moving.step = 'offered'
                THEN format('The move is unknown there. If no database of that node has these shards, on node "%s":'
                    || ' SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m WHERE name = %L.',
                    moving.from_node, move)
                ELSE format('Call insta_ids.move_abort(%s, %s, %L) on that node.', moving.first, moving.last, moving.from_node) END;
    END IF;
    elsewhere := (SELECT min(s) FROM unnest(moving.shards) s WHERE NOT insta_ids_internal.is_placed_here(s));
    IF elsewhere IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('the map does not have shard %s on this node', elsewhere),
            DETAIL = 'It would be opened to writers here.',
            HINT = format('On node "%1$s": SELECT insta_ids.assign(%2$s, %2$s, %1$L).'
                || ' Then call insta_ids.move_abort(%3$s, %4$s, %5$L) again where it was called.',
                insta_ids.this_node(), elsewhere, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, cancellation -> 'table_slots');
    PERFORM insta_ids_internal.open_shards(moving.shards);
    INSERT INTO insta_ids_internal.move_outcome VALUES (moving.id, 'withdrawn', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
END
$$;

-- Takes back the shards of this range that have moved to a node, with the rows of the hand-over. The target, which has lost them,
-- calls it. `until` is the time that ids have reached there; `ranges` and `version` are of the maps of all nodes. Returns the map, how
-- many shards came back, and which of the range are present. Raises an error if what is left of a shard was dropped, or if the shard
-- was assigned again since it left.
CREATE OR REPLACE FUNCTION insta_ids_internal.take_back(
        first integer, last integer, from_node name, until timestamptz, ranges jsonb, version bigint)
    RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    returned insta_ids_internal.departed_shard[];
    next record;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.commit_durably();
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    -- Waits for a session that drops what is left of a shard.
    PERFORM FROM insta_ids_internal.departed_shard d WHERE d.shard BETWEEN first AND last ORDER BY d.shard FOR UPDATE;
    returned := ARRAY(
        SELECT d FROM insta_ids_internal.departed_shard d
        WHERE d.shard BETWEEN first AND last AND d.to_node = from_node ORDER BY d.shard);
    IF returned = '{}' THEN
        RETURN insta_ids_internal.taken_back(first, last, 0);
    END IF;
    PERFORM insta_ids_internal.require_not_moving(first, last), insta_ids_internal.require_map_version(version);
    FOR next IN
        SELECT r.shard, r.schema, p.node, (p.node, p.version) IS NOT DISTINCT FROM (from_node, r.version) AS is_last
        FROM unnest(returned) r LEFT JOIN insta_ids_internal.placements(ranges) p ON p.shard = r.shard
    LOOP
        IF NOT next.is_last THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('shard %s was assigned again since it left node "%s"', next.shard, here),
                DETAIL = format('The maps of all nodes have it on %s, and other nodes may have newer rows.',
                    coalesce('node "' || next.node || '"', 'no node'));
        ELSIF to_regnamespace(quote_ident(next.schema)) IS NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('what node "%s" had of shard %s was dropped', here, next.shard),
                HINT = 'Restore the shard from a backup, or from a copy of the node that has lost it.';
        END IF;
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', next.schema, insta_ids.schema_of(next.shard));
    END LOOP;
    DELETE FROM insta_ids_internal.departed_shard d WHERE d.shard IN (SELECT r.shard FROM unnest(returned) r);
    version := greatest(version + 1, insta_ids_internal.next_map_version());
    PERFORM insta_ids_internal.set_assignments(insta_ids_internal.merge_assignments(insta_ids_internal.assignments_json(),
        (SELECT jsonb_agg(jsonb_build_array(r.shard, r.shard, here, take_back.version)) FROM unnest(returned) r)));
    UPDATE insta_ids_internal.map m SET version = take_back.version WHERE m.version < take_back.version;
    INSERT INTO insta_ids_internal.shard (shard, created_at, is_pinned)
    SELECT r.shard, r.created_at, r.is_pinned FROM unnest(returned) r;
    INSERT INTO insta_ids_internal.shard_migration (shard, migration)
    SELECT r.shard, m.number FROM unnest(returned) r CROSS JOIN unnest(r.migrations) m (number);
    -- Ids that the target issued after the hand-over are not issued again.
    IF has_function_privilege('insta_ids.advance_clock(timestamptz)', 'EXECUTE') THEN
        PERFORM insta_ids.advance_clock(until);
    ELSE
        PERFORM insta_ids_internal.await_clock(until);
    END IF;
    RETURN insta_ids_internal.taken_back(first, last, cardinality(returned));
END
$$;

-- Returns the answer of take_back().
CREATE OR REPLACE FUNCTION insta_ids_internal.taken_back(first integer, last integer, shards integer) RETURNS jsonb
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN jsonb_build_object('map', insta_ids.shard_map(), 'shards', shards, 'present', (
        SELECT coalesce(jsonb_agg(s.shard), '[]') FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last));
