-- Moves, on the source: the fence.

-- Closes the shards of an offered move to writers, for `max_pause`: then the source opens them by itself, unless it has released
-- them, or was promoted since the offer. Raises an error if their tables or sequences have changed since the offer.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_fence(
        move name, lock_timeout interval DEFAULT '2s', max_pause interval DEFAULT '10 s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
    is_in_doubt CONSTANT boolean := insta_ids_internal.is_in_doubt(moving.shards);
BEGIN
    IF moving.step = 'offered' THEN
        PERFORM insta_ids_internal.close_shards(moving.shards, moving.to_node, lock_timeout);
        UPDATE insta_ids_internal.fence f
        SET closed_ms = s.now, opens_ms = s.now + extract(epoch FROM max_pause) * 1000
        FROM (SELECT insta_ids_internal.steady_ms()) s (now)
        WHERE f.shard = ANY (moving.shards) AND NOT is_in_doubt;
        -- Event triggers may miss a relation that was moved out of its schema.
        IF insta_ids_internal.relations_of(moving.shards) <> moving.relations
            OR insta_ids_internal.published_tables(moving.shards) IS DISTINCT FROM (
                SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid)
                FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = move)
        THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('tables or sequences of shards from %s to %s have changed since the move began',
                    moving.first, moving.last),
                HINT = format('End the move with insta_ids.move_abort(%s, %s), and begin it again.', moving.first, moving.last);
        END IF;
        -- The position is the end of a record that this commit flushes. What is flushed now may end within a record of others,
        -- and such a position is confirmed only when the rest follows. Subscriptions do not receive the message.
        UPDATE insta_ids_internal.move m
        SET step = 'fenced', step_at = now(), fenced_by = pg_current_xact_id(), fences = m.fences + 1,
            fenced_lsn = pg_logical_emit_message(true, 'insta_ids', ''), was_promoted = is_in_doubt, tables_compared = 0,
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

-- Waits up to `patience` until all standbys, and those in `known`, have what this server has flushed. Returns the standby that is then
-- farthest behind, as standby_behind() does, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_standbys(patience interval, known text[]) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    flushed CONSTANT pg_lsn := pg_current_wal_flush_lsn();
    gives_up_at CONSTANT numeric := insta_ids_internal.steady_ms() + extract(epoch FROM patience) * 1000;
    standby jsonb;
BEGIN
    LOOP
        standby := insta_ids_internal.standby_behind(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flushed)::bigint, known);
        IF standby IS NULL OR insta_ids_internal.steady_ms() > gives_up_at THEN
            RETURN standby;
        END IF;
        PERFORM insta_ids_internal.wait_ms(5);
    END LOOP;
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
    standby jsonb;
BEGIN
    IF moving.mark IS NULL AND (moving.step <> 'fenced' OR moving.fenced_by = pg_current_xact_id()) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are not fenced', moving.first, moving.last),
            HINT = format('On node "%s": CALL insta_ids.move_shards(%s, %s, %L).',
                moving.to_node, moving.first, moving.last, moving.from_node);
    ELSIF moving.mark IS NULL THEN
        standby := insta_ids_internal.await_standbys(await_standbys, moving.standbys);
        IF standby IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('%s of node "%s" does not have the fence yet', standby ->> 'name', moving.from_node),
                DETAIL = format('It %s. Promoted without the fence, it would take writes that are lost.',
                    CASE WHEN (standby ->> 'is_connected')::boolean
                        THEN 'lacks ' || pg_size_pretty((standby ->> 'lag')::bigint) || ' of WAL'
                        ELSE 'is not connected' END),
                HINT = 'Wait until the standby has caught up, or call insta_ids.move_shards() with await_standbys => false.';
        END IF;
        FOR sequence IN
            SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (moving.shards) AND r.kind = 'S'
        LOOP
            EXECUTE format('SELECT last_value, is_called FROM %s', sequence.relation) INTO value;
            sequences := sequences
                || jsonb_build_array(jsonb_build_array(sequence.schema, sequence.name, value.last_value, value.is_called));
        END LOOP;
        UPDATE insta_ids_internal.move m
        SET mark = jsonb_build_object('id', m.id, 'fence', m.fences, 'lsn', m.fenced_lsn, 'sequences', sequences,
            -- The lease covers the time of every id of this database.
            'until', (SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c),
            'privileges', insta_ids_internal.privileges_json(m.shards),
            'version', (SELECT coalesce(max(p.version), 0) FROM insta_ids_internal.map p))
        WHERE m.name = move
        RETURNING m.mark INTO moving.mark;
        -- Writers wait, and a mark that is lost is made again. The release makes it durable.
        SET LOCAL synchronous_commit = off;
    END IF;
    RETURN moving.mark;
END
$$;

-- Records how many tables were compared.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_compared(move name, tables integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    UPDATE insta_ids_internal.move m SET tables_compared = tables WHERE m.name = move;
END;

-- Releases the shards of a fenced move, once and for good: from now on, only the target opens them. Returns the mark with which
-- the target can take them over, also if they were released before. Raises an error if this is not the current fence.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_release(move name, fence integer) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
BEGIN
    IF moving.fences <> fence OR moving.mark IS NULL
        -- A promoted server may lack rows that the target has, and the other way around.
        OR moving.step <> 'released' AND EXISTS (
            SELECT FROM insta_ids_internal.fence f
            WHERE f.shard = ANY (moving.shards) AND f.timeline <> insta_ids_internal.timeline())
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are not fenced any more', moving.first, moving.last),
            DETAIL = 'Their fence has opened by itself, or this server was promoted since.',
            HINT = format('On node "%s": CALL insta_ids.move_shards(%s, %s, %L).',
                moving.to_node, moving.first, moving.last, moving.from_node);
    ELSIF moving.step = 'fenced' THEN
        -- The target has not taken the shards over before, whatever happened to this server.
        UPDATE insta_ids_internal.move m SET step = 'released', step_at = now(), was_promoted = false WHERE m.name = move;
        UPDATE insta_ids_internal.fence f SET closed_ms = NULL, opens_ms = NULL WHERE f.shard = ANY (moving.shards);
    END IF;
    RETURN moving.mark || '{"released": true}';
END
$$;

-- Opens the shards of a fenced move. The move goes on.
CREATE OR REPLACE FUNCTION insta_ids_internal.reopen_shards(moving insta_ids_internal.move) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.hold_map();
    PERFORM insta_ids_internal.require_placed_here(s) FROM unnest(moving.shards) s;
    PERFORM insta_ids_internal.open_shards(moving.shards);
    UPDATE insta_ids_internal.move m
    SET step = 'offered', step_at = now(), fenced_by = NULL, fenced_lsn = NULL, mark = NULL, was_promoted = false
    WHERE m.name = moving.name;
    PERFORM insta_ids_internal.fence_offer(moving.shards, moving.to_node);
END
$$;

-- Opens the shards of moves whose max_pause is over, if they are not released. On a promoted server they stay closed: it may
-- have lost the release. A background worker calls this when a writer was refused. What keeps one move's shards closed does not
-- keep those of others closed.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_pauses() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    FOR moving IN SELECT * FROM insta_ids_internal.move m WHERE m.step = 'fenced' ORDER BY m.name FOR UPDATE SKIP LOCKED LOOP
        BEGIN
            IF EXISTS (
                SELECT FROM insta_ids_internal.fence f
                WHERE f.shard = ANY (moving.shards) AND f.timeline = insta_ids_internal.timeline()
                    AND NOT int8range(f.closed_ms, f.opens_ms) @> insta_ids_internal.steady_ms())
            THEN
                PERFORM insta_ids_internal.reopen_shards(moving);
                RAISE LOG 'insta_ids opened shards from % to %: they were not handed over within max_pause',
                    moving.first, moving.last;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'insta_ids could not open shards from % to %: %', moving.first, moving.last, SQLERRM;
        END;
    END LOOP;
END
$$;

-- Opens the shards of a fenced move to writers again; the move goes on. `given_up` is what give_up_fence returned on the
-- target. Returns true if this was the current fence, and false if the shards are open already. Raises an error otherwise.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_fence(move name, given_up jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
BEGIN
    IF moving.step = 'offered' THEN
        RETURN false;
    ELSIF moving.step NOT IN ('fenced', 'released')
        OR (given_up ->> 'id', given_up ->> 'fence') IS DISTINCT FROM (moving.id::text, moving.fences::text)
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'Their fence was not given up there.',
            HINT = format('On that node: CALL insta_ids.move_abort(%s, %s, %L).', moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.reopen_shards(moving);
    RETURN true;
END
$$;
