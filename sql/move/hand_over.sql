-- Moves, on the target: the shards are taken over, or the move is cancelled.

-- Returns whether the subscription of a move runs, and has confirmed to the source that it applied everything before `lsn`.
-- What it confirmed before a restart does not count.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_applied(move name, lsn pg_lsn) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.subscription u
        JOIN pg_catalog.pg_stat_subscription s ON s.subid = u.oid AND s.relid IS NULL AND s.pid IS NOT NULL
        WHERE u.name = move AND coalesce(s.latest_end_lsn, '0/0') >= lsn);

-- Returns whether all rows that the source wrote before the WAL position of `mark` are here.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_drained(move name, mark jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.move_copied(move) AND insta_ids_internal.has_applied(move, (mark ->> 'lsn')::pg_catalog.pg_lsn);

-- Takes the shards over. `mark` is what move_release returned on the source. Until this commits, they are closed on both servers;
-- afterwards, they are open here. Returns what move_finish needs on the source, also if the shards were taken over before.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_hand_over(move name, mark jsonb DEFAULT NULL) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    unknown text;
BEGIN
    -- This table is locked before the move, as by all sessions that offer, create or assign shards.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids_internal.open_move(move);
    IF moving.step = 'handed over' THEN
        RETURN jsonb_build_object('id', moving.id, 'version', (SELECT m.version FROM insta_ids_internal.map m));
    ELSIF mark ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE invalid_parameter_value USING MESSAGE = format('mark is not of move "%s"', move),
            HINT = format('Call insta_ids.move_shards(%s, %s, %L) again.', moving.first, moving.last, moving.from_node);
    ELSIF mark ->> 'released' IS DISTINCT FROM 'true' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('node "%s" has not released shards from %s to %s', moving.from_node, moving.first, moving.last),
            HINT = format('Call insta_ids.move_shards(%s, %s, %L) again.', moving.first, moving.last, moving.from_node);
    ELSIF (mark ->> 'fence')::integer <= moving.fences THEN
        RAISE invalid_parameter_value USING MESSAGE = format('mark of move "%s" is of a fence that was given up', move),
            HINT = format('Call insta_ids.move_shards(%s, %s, %L) again.', moving.first, moving.last, moving.from_node);
    ELSIF moving.step <> 'copying' OR NOT insta_ids_internal.move_drained(move, mark) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are not all here yet', moving.first, moving.last),
            HINT = format('Call insta_ids.move_shards(%s, %s, %L) again.', moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.require_not_promoted(moving), insta_ids_internal.require_roles(mark -> 'privileges', moving.from_node),
        insta_ids_internal.require_near_time((mark ->> 'until')::timestamptz, moving.from_node),
        insta_ids_internal.require_map_version((mark ->> 'version')::bigint);
    SELECT format('%I.%I', s ->> 0, s ->> 1) INTO unknown FROM jsonb_array_elements(mark -> 'sequences') s
    WHERE NOT EXISTS (
        SELECT FROM insta_ids_internal.shard_relation r
        WHERE r.shard = ANY (moving.shards) AND r.kind = 'S' AND r.schema = s ->> 0 AND r.name = s ->> 1)
    LIMIT 1;
    IF FOUND THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('mark of move "%s" names %s, which is no sequence of its shards', move, unknown);
    END IF;
    PERFORM setval(format('%I.%I', s ->> 0, s ->> 1)::regclass, (s ->> 2)::bigint, (s ->> 3)::boolean)
    FROM jsonb_array_elements(mark -> 'sequences') s;
    PERFORM insta_ids.advance_clock((mark ->> 'until')::timestamptz) WHERE mark ->> 'until' IS NOT NULL;
    DELETE FROM insta_ids_internal.departed_shard d WHERE d.shard = ANY (moving.shards);
    PERFORM insta_ids_internal.open_shards(moving.shards);
    -- The event triggers pass what alters shards that are open.
    EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', move);
    PERFORM insta_ids_internal.restore_privileges(moving.shards, mark -> 'privileges'),
        -- Higher than all that the two nodes know.
        insta_ids_internal.assign_moved(moving,
            greatest((mark ->> 'version')::bigint + 1, insta_ids_internal.next_map_version()));
    UPDATE insta_ids_internal.move m SET step = 'handed over', step_at = now() WHERE m.name = move;
    INSERT INTO insta_ids_internal.move_outcome VALUES (moving.id, 'handed over', moving.shards);
    RETURN insta_ids_internal.move_hand_over(move);
END
$$;

-- Returns whether this server was promoted since a move to it began.
CREATE OR REPLACE FUNCTION insta_ids_internal.was_target_promoted(moving insta_ids_internal.move) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.fence f
        WHERE f.shard = ANY (moving.shards) AND f.timeline <> insta_ids_internal.timeline());

-- Raises an error if this server was promoted since the move began. The server that it replaces told the source which rows it
-- had, and the source does not send those again, but they may not have come here.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_promoted(moving insta_ids_internal.move) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF insta_ids_internal.was_target_promoted(moving) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s may not all be here', moving.first, moving.last),
            DETAIL = 'This server was promoted since the move began, and may lack rows that its predecessor had.',
            HINT = insta_ids_internal.hint_to_abort(moving);
    END IF;
END
$$;

-- Gives up a fence of the source: hand-overs by the mark of this fence, or of an earlier one, are refused. Returns what
-- open_fence needs on the source. Raises an error if the shards were handed over.
CREATE OR REPLACE FUNCTION insta_ids_internal.give_up_fence(move name, fence integer) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move AND m.fences >= fence AND m.step <> 'handed over';
    IF FOUND THEN
        RETURN jsonb_build_object('id', moving.id, 'fence', fence);
    END IF;
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids_internal.open_move(move);
    IF moving.step = 'handed over' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are already on this node', moving.first, moving.last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', moving.first, moving.last, moving.from_node);
    END IF;
    UPDATE insta_ids_internal.move m SET fences = greatest(m.fences, fence) WHERE m.name = move;
    RETURN jsonb_build_object('id', moving.id, 'fence', fence);
END
$$;

-- Raises an error if the source says that the shards were handed over. This server has lost that, and must not drop its copy.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_left(moving insta_ids_internal.move, there jsonb) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF there ->> 'outcome' = 'handed over' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('node "%s" has let go of shards from %s to %s', moving.from_node, moving.first, moving.last),
            DETAIL = format('This server has lost that they were handed over to it: here the move is %s.', moving.step),
            HINT = format('If the rows that were written since are lost for good, node "%s" can take the shards back as it handed'
                || ' them over: CALL insta_ids.move_abort(%s, %s, %L, take_back => true).',
                moving.from_node, moving.first, moving.last, moving.from_node);
    END IF;
END
$$;

-- Raises an error if the source has rows that are not here. Callers use it when the source may have taken writes after the
-- hand-over.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_nothing_left_behind(move name, from_node name, shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation text;
    rows bigint;
BEGIN
    FOREACH relation IN ARRAY insta_ids_internal.tables_of(shards) LOOP
        rows := (insta_ids_internal.different_hashes(relation, 'insta_ids')).there;
        IF rows > 0 THEN
            RAISE data_corrupted USING
                MESSAGE = format('node "%s" has rows of table %s that this node does not have', from_node, relation),
                DETAIL = format('Of its rows, %s are not here or not the same. They were written there after the hand-over, or'
                    || ' changed or deleted here since. Both nodes could take writes; now node "%s" is fenced.', rows, from_node),
                HINT = 'Copy here what is missing. Then call again with verify => ''none'': the node keeps its rows in'
                    || ' schemas that are called as the shards, with __moved.';
        END IF;
    END LOOP;
END
$$;

-- Drops the subscription of a move. The source drops its slot. This waits until no session of the server reads pg_subscription, as
-- pg_dump does for long.
CREATE OR REPLACE FUNCTION insta_ids_internal.drop_subscription(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM insta_ids_internal.subscription s WHERE s.name = move) THEN
        EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', move);
        EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', move);
        EXECUTE format('DROP SUBSCRIPTION %I', move);
    END IF;
END
$$;

-- Cancels a move before the hand-over, and drops its shards here. Its offer cannot be used here any more. If this server does
-- not know the move, `id` says which one it is. Returns what move_withdraw needs on the source, with the slots by which tables
-- were copied. Raises an error if the shards were handed over.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_cancel(move name, id uuid DEFAULT NULL) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    -- Waits for a session that prepares or hands over this move. Afterwards, its row is here or it can no longer be prepared.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF id IS NULL OR EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move) THEN
        moving := insta_ids_internal.open_move(move);
    END IF;
    IF moving.step NOT IN ('prepared', 'copying', 'handed over') OR moving.id <> id THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s do not come to this server by that move', moving.first, moving.last),
            HINT = format('Call insta_ids.move_abort(%s, %s) on node "%s".', moving.first, moving.last, moving.to_node);
    END IF;
    PERFORM insta_ids_internal.commit_durably();
    id := coalesce(moving.id, id);
    -- Waits for a session that hands the move over.
    INSERT INTO insta_ids_internal.move_outcome VALUES (id, 'cancelled', moving.shards,
        CASE WHEN moving.name IS NOT NULL THEN insta_ids_internal.move_table_slots(move, '{i,d,f,s}') END)
    ON CONFLICT DO NOTHING;
    IF insta_ids_internal.outcome_of_move(id) <> 'cancelled' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shards of move "%s" are already here', move),
            HINT = 'Finish the move by calling insta_ids.move_shards() again.';
    END IF;
    IF moving.name IS NOT NULL THEN
        PERFORM insta_ids_internal.drop_subscription(move);
        DELETE FROM insta_ids_internal.move m WHERE m.name = move;
        DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (moving.shards);
        PERFORM insta_ids.drop_shard(s, force => true) FROM unnest(moving.shards) s;
    END IF;
    RETURN (
        SELECT jsonb_build_object('id', e.id, 'to_node', insta_ids.this_node(), 'was_known', e.table_slots IS NOT NULL,
            'table_slots', e.table_slots)
        FROM insta_ids_internal.move_outcome e WHERE e.id = move_cancel.id);
END
$$;
