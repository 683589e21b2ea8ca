-- Moves, on the target: the pauses in which the source's shards are fenced and writers wait.

-- The last step but one, in which writers wait: the source fences the shards. When this server has all rows, the source releases
-- the shards, and this server takes them over. `max_pause` limits the time from the fence on. Until the source has released the shards,
-- it opens them by itself when that time is over. Returns when the source was fenced, and the error that has ended the attempt: then
-- this session still has the lock by which it gives up the fence.
CREATE OR REPLACE FUNCTION insta_ids_internal.try_hand_over(
        move name, from_node name, lock_timeout interval, max_pause interval, await_standbys boolean)
    RETURNS insta_ids_internal.pause
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    mark jsonb;
    released jsonb;
    is_drained boolean := false;
    is_handed_over boolean := false;
    fenced_at bigint;
    failure insta_ids_internal.failure;
BEGIN
    -- The lock that the hand-over needs: no writer waits for it.
    PERFORM insta_ids_internal.lock_relations(
        '{insta_ids_internal.assignment}', 'SHARE ROW EXCLUSIVE', '{}', 'the map', lock_timeout);
    BEGIN
        PERFORM insta_ids_internal.call_node(format('move_fence(%L, %L, %L)', move, lock_timeout, max_pause));
        fenced_at := insta_ids_internal.steady_ms();
        PERFORM insta_ids_internal.limit_statement((extract(epoch FROM max_pause) * 1000)::integer);
        -- The source gives up earlier than this session, so that its error says which standby lacks the fence.
        mark := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_mark(%L::name, %L::interval)', move,
            CASE WHEN await_standbys THEN max_pause * 0.8 END));
        RAISE NOTICE 'move_shards: fenced on node "%"', from_node;
        WHILE NOT is_handed_over LOOP
            IF NOT insta_ids_internal.move_drained(move, mark) THEN
                PERFORM insta_ids_internal.wait_ms(2);
                CONTINUE;
            END IF;
            is_drained := true;
            IF released IS NULL THEN
                released := insta_ids_internal.ask_node(
                    format('SELECT insta_ids_internal.move_release(%L, %s)', move, mark ->> 'fence'));
            END IF;
            BEGIN
                PERFORM insta_ids_internal.move_hand_over(move, released);
                is_handed_over := true;
            EXCEPTION WHEN object_not_in_prerequisite_state THEN
                -- After a restart of its worker, the subscription's position is unknown for a moment.
                IF insta_ids_internal.move_drained(move, mark) THEN
                    RAISE;
                END IF;
            END;
        END LOOP;
        PERFORM insta_ids_internal.limit_statement(NULL::integer);
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        GET STACKED DIAGNOSTICS failure.code = RETURNED_SQLSTATE, failure.message = MESSAGE_TEXT,
            failure.detail = PG_EXCEPTION_DETAIL, failure.hint = PG_EXCEPTION_HINT;
    END;
    RETURN ROW(fenced_at, failure, CASE WHEN is_drained THEN 'The shards were being taken over.'
        ELSE 'Rows that were written before the fence had not arrived.' END)::insta_ids_internal.pause;
END
$$;

-- Ends a pause in which an error came, and raises the error: the source opens the shards again.
CREATE OR REPLACE PROCEDURE insta_ids_internal.fail_pause(
        move name, from_node name, max_pause interval, paused insta_ids_internal.pause)
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids_internal.limit_statement(0), insta_ids_internal.disconnect_node('insta_ids_snapshot');
    CALL insta_ids_internal.open_again(move, from_node);
    PERFORM insta_ids_internal.raise_failure(move, max_pause, paused);
END
$$;

-- Raises the error of a pause. If `max_pause` is over, the error says so.
CREATE OR REPLACE FUNCTION insta_ids_internal.raise_failure(move name, max_pause interval, paused insta_ids_internal.pause)
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    failure CONSTANT insta_ids_internal.failure := paused.failure;
BEGIN
    IF insta_ids_internal.steady_ms() >= paused.fenced_at + extract(epoch FROM max_pause) * 1000 AND failure.code = '57014' THEN
        RAISE query_canceled USING MESSAGE = format('shards of move "%s" were not handed over within %s', move, max_pause),
            DETAIL = paused.state,
            HINT = 'Call again at a quieter time, or with a longer max_pause.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = failure.code, MESSAGE = failure.message,
        DETAIL = coalesce(nullif(failure.detail, ''), 'The shards were not handed over.'),
        HINT = coalesce(nullif(failure.hint, ''), 'Call insta_ids.move_shards() again.');
END
$$;

-- Gives up the fence of a move on the source, if there is one, so that it cannot lead to a hand-over after the commit. Returns
-- what open_fence needs on the source. `is_known` is whether the source has said how far the move is there.
CREATE OR REPLACE FUNCTION insta_ids_internal.give_up_there(move name, from_node name, OUT given_up jsonb, OUT is_known boolean)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    there jsonb;
BEGIN
    BEGIN
        -- The old connection may still wait for an answer.
        PERFORM insta_ids_internal.connect_node(from_node);
        there := insta_ids_internal.state_there(move, NULL::uuid);
        is_known := true;
    EXCEPTION WHEN OTHERS THEN
        is_known := false;
    END;
    IF there ->> 'step' IN ('fenced', 'released') THEN
        given_up := insta_ids_internal.give_up_fence(move, (there ->> 'fences')::integer);
    END IF;
END
$$;

-- Has the source open a fence that was given up. If the shards may still be fenced, it raises a warning.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_there(move name, from_node name, given_up jsonb, is_known boolean) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_open boolean := is_known AND given_up IS NULL;
BEGIN
    IF given_up IS NOT NULL THEN
        BEGIN
            PERFORM insta_ids_internal.call_node(format('open_fence(%L::name, %L::jsonb)', move, given_up));
            RAISE NOTICE 'move_shards: open to writers on node "%" again', from_node;
            is_open := true;
        EXCEPTION WHEN OTHERS THEN
            is_open := false;
        END;
    END IF;
    IF NOT is_open THEN
        RAISE WARNING USING
            MESSAGE = format('shards of move "%s" may still be fenced on node "%s"', move, from_node),
            HINT = 'Call insta_ids.move_shards() again, or insta_ids.move_abort().';
    END IF;
END
$$;

-- Opens the shards of a move on the source again, after this server has given up the source's fence. The copy stays and follows
-- the source, so the next call continues it.
CREATE OR REPLACE PROCEDURE insta_ids_internal.open_again(move name, from_node name)
    LANGUAGE plpgsql
AS $$
DECLARE
    given_up pg_catalog.jsonb;
    is_known boolean;
BEGIN
    SELECT * INTO given_up, is_known FROM insta_ids_internal.give_up_there(move, from_node);
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.open_there(move, from_node, given_up, is_known);
END
$$;
