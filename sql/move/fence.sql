-- Moves, on the source: the fence, and the end of a move.

-- Closes the shards of an offered move to writers. Raises an error if their tables or sequences have changed since the offer.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_fence(move name, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
    -- The timeline at the offer, if this server was promoted since.
    before integer;
BEGIN
    IF moving.step = 'offered' THEN
        before := (
            SELECT min(f.timeline) FROM insta_ids_internal.fence f
            WHERE f.shard = ANY (moving.shards) AND f.timeline <> insta_ids_internal.timeline());
        PERFORM insta_ids_internal.close_shards(moving.shards, moving.to_node, lock_timeout);
        -- The old timeline stays: this server may have taken writes after a hand-over and before this fence.
        UPDATE insta_ids_internal.fence f SET timeline = before WHERE f.shard = ANY (moving.shards) AND before IS NOT NULL;
        -- Event triggers may miss a relation that was moved out of its schema.
        IF insta_ids_internal.relations_of(moving.shards) <> moving.relations
            OR insta_ids_internal.published_tables(moving.shards) IS DISTINCT FROM (
                SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid)
                FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = move)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('tables or sequences of shards from %s to %s have changed since the move began',
                    moving.first, moving.last),
                HINT = format('End the move with insta_ids.move_abort(%s, %s), and begin it again.', moving.first, moving.last);
        END IF;
        UPDATE insta_ids_internal.move m
        SET step = 'fenced', step_at = now(), fenced_by = pg_current_xact_id(), fences = m.fences + 1,
            standbys = ARRAY(SELECT c.standby FROM insta_ids_internal.connected_standbys() c)
        WHERE m.name = move;
    END IF;
END
$$;

-- Returns the names and addresses of the standbys that are connected to this server, and how much WAL each has flushed. It
-- leaves subscriptions and base backups out. It runs with the rights of its owner, because not all roles see these columns.
CREATE OR REPLACE FUNCTION insta_ids_internal.connected_standbys() RETURNS TABLE (standby text, flushed pg_lsn)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A transaction caches what it has read about sessions.
    PERFORM pg_stat_clear_snapshot();
    RETURN QUERY
    SELECT format('standby "%s"%s', r.application_name, ' at ' || host(r.client_addr)), coalesce(r.flush_lsn, '0/0')
    FROM pg_stat_replication r LEFT JOIN pg_replication_slots t ON t.active_pid = r.pid
    WHERE r.state IN ('catchup', 'streaming') AND t.slot_type IS DISTINCT FROM 'logical' AND t.temporary IS NOT true;
END
$$;

-- Returns the standby that is farthest behind: its name, whether it is connected, and how many bytes of WAL it has not flushed.
-- NULL if none lacks more than `max_lag`. A standby that is not connected counts if it has a slot or is in `known`, and comes
-- first.
CREATE OR REPLACE FUNCTION insta_ids_internal.standby_behind(max_lag bigint, known text[]) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT pg_lsn := pg_current_wal_flush_lsn();
BEGIN
    RETURN (
        WITH connected AS (SELECT * FROM insta_ids_internal.connected_standbys())
        SELECT jsonb_build_object('name', s.name, 'is_connected', s.is_connected, 'lag', s.lag)
        FROM (
            SELECT c.standby, true, pg_wal_lsn_diff(own, c.flushed)::bigint FROM connected c
            UNION ALL
            -- A slot that was never used has no position.
            SELECT format('standby of slot "%s"', t.slot_name), false, pg_wal_lsn_diff(own, t.restart_lsn)::bigint
            FROM pg_replication_slots t WHERE t.slot_type = 'physical' AND NOT t.active AND t.restart_lsn IS NOT NULL
            UNION ALL
            SELECT k, false, NULL FROM unnest(known) k WHERE k NOT IN (SELECT c.standby FROM connected c)
        ) s (name, is_connected, lag)
        WHERE coalesce(s.lag > CASE WHEN s.is_connected THEN max_lag ELSE 0 END, true)
        ORDER BY s.is_connected, s.lag DESC LIMIT 1);
END
$$;

-- Returns the mark of a committed fence: the WAL position that the target must reach, a time later than all ids, and the
-- sequences. It waits up to `await_standbys` until all standbys have the fence on disk. A standby that is promoted without the
-- fence would take writes that are lost. With NULL, it ignores standbys.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_mark(move name, await_standbys interval DEFAULT '5 s') RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move := insta_ids_internal.open_move(move);
    sequences jsonb := '[]';
    sequence insta_ids_internal.shard_relation;
    value record;
    -- Everything that was committed before is flushed up to here, and the target receives only flushed WAL.
    fenced CONSTANT pg_lsn := pg_current_wal_flush_lsn();
    gives_up_at CONSTANT numeric := insta_ids_internal.steady_ms() + extract(epoch FROM await_standbys) * 1000;
    standby jsonb;
BEGIN
    IF moving.step <> 'fenced' OR moving.fenced_by = pg_current_xact_id() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not fenced', moving.first, moving.last),
            HINT = format('On node "%s": CALL insta_ids.move_shards(%s, %s, %L).',
                moving.to_node, moving.first, moving.last, moving.from_node);
    ELSIF moving.mark IS NULL THEN
        WHILE await_standbys IS NOT NULL LOOP
            standby := insta_ids_internal.standby_behind(
                pg_wal_lsn_diff(pg_current_wal_flush_lsn(), fenced)::bigint, moving.standbys);
            EXIT WHEN standby IS NULL;
            IF insta_ids_internal.steady_ms() > gives_up_at THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('%s of node "%s" does not have the fence yet', standby ->> 'name', moving.from_node),
                    DETAIL = format('It %s. Promoted without the fence, it would take writes that are lost.',
                        CASE WHEN (standby ->> 'is_connected')::boolean
                            THEN 'lacks ' || pg_size_pretty((standby ->> 'lag')::bigint) || ' of WAL'
                            ELSE 'is not connected' END),
                    HINT = 'Wait until the standby has caught up, or call insta_ids.move_shards() with await_standbys => false.';
            END IF;
            PERFORM insta_ids_internal.wait_ms(5);
        END LOOP;
        FOR sequence IN
            SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (moving.shards) AND r.kind = 'S'
        LOOP
            EXECUTE format('SELECT last_value, is_called FROM %s', sequence.relation) INTO value;
            sequences := sequences
                || jsonb_build_array(jsonb_build_array(sequence.schema, sequence.name, value.last_value, value.is_called));
        END LOOP;
        UPDATE insta_ids_internal.move m
        SET mark = jsonb_build_object('id', m.id, 'fence', m.fences, 'lsn', fenced, 'sequences', sequences,
            -- The lease covers the time of every id of this database.
            'until', (SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c),
            'version', (SELECT coalesce(max(p.version), 0) FROM insta_ids_internal.map p))
        WHERE m.name = move
        RETURNING m.mark INTO moving.mark;
    END IF;
    RETURN moving.mark;
END
$$;

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
-- what move_hand_over returned. On the target, it then deletes the row of the move. Without a move of this name, it does
-- nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    shard integer;
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
        DELETE FROM insta_ids_internal.move m WHERE m.name = move;
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
            HINT = format('On node "%s": CALL insta_ids.move_shards(%s, %s, %L).',
                moving.to_node, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, NULL::jsonb), insta_ids_internal.assign_moved(moving, (handed_over ->> 'version')::bigint);
    INSERT INTO insta_ids_internal.move_outcome VALUES (moving.id, 'handed over', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOREACH shard IN ARRAY moving.shards LOOP
        schema := insta_ids.schema_of(shard);
        kept := insta_ids_internal.departed_schema(shard, (insta_ids_internal.require_config()).prefix);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
        INSERT INTO insta_ids_internal.departed_shard VALUES (shard, kept, moving.to_node);
    END LOOP;
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Opens the shards of a fenced move to writers again; the move goes on. `given_up` is what give_up_fence returned on the
-- target. Returns true if this was the current fence, and false if the shards are open already. Raises an error otherwise.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_fence(move name, given_up jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    -- No other session assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids_internal.open_move(move);
    IF moving.step = 'offered' THEN
        RETURN false;
    ELSIF moving.step <> 'fenced'
        OR (given_up ->> 'id', given_up ->> 'fence') IS DISTINCT FROM (moving.id::text, moving.fences::text)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'Their fence was not given up there.',
            HINT = format('On that node: CALL insta_ids.move_abort(%s, %s, %L).', moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.require_placed_here(s) FROM unnest(moving.shards) s;
    PERFORM insta_ids_internal.open_shards(moving.shards);
    PERFORM insta_ids_internal.fence_offer(moving.shards, moving.to_node);
    UPDATE insta_ids_internal.move m SET step = 'offered', step_at = now(), fenced_by = NULL, mark = NULL WHERE m.name = move;
    RETURN true;
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
    IF insta_ids_internal.outcome_of_move((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    -- No other session assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids_internal.open_move(move);
    -- A promotion may have lost the fence.
    may_be_there := moving.step = 'fenced' OR insta_ids_internal.is_in_doubt(moving.shards);
    IF moving.step NOT IN ('offered', 'fenced') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('End the move here: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
    ELSIF (may_be_there OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- A target that does not know the move cannot promise that it will not take the shards over.
        OR may_be_there
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
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
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map does not have shard %s on this node', elsewhere),
            DETAIL = 'It would be opened to writers here.',
            HINT = format('On node "%1$s": SELECT insta_ids.assign(%2$s, %2$s, %1$L).'
                || ' Then call insta_ids.move_abort(%3$s, %4$s, %5$L) again where it was called.',
                insta_ids.this_node(), elsewhere, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, cancellation -> 'table_slots');
    PERFORM insta_ids_internal.open_shards(moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    INSERT INTO insta_ids_internal.move_outcome VALUES (moving.id, 'withdrawn', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
END
$$;
