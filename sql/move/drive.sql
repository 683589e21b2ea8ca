-- Drives a move, on the target: the steps of both servers, in their order.

CREATE OR REPLACE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'snapshot', lock_timeout text DEFAULT '10s',
        max_lag bigint DEFAULT 1048576, max_pause interval DEFAULT '10 s', await_standbys boolean DEFAULT true,
        background boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    here pg_catalog.name;
    moving insta_ids_internal.move;
    there pg_catalog.jsonb;
    is_released pg_catalog.bool;
BEGIN
    CALL insta_ids_internal.new_transaction();
    IF num_nulls(first, last, from_node, verify, lock_timeout, max_lag, max_pause, await_standbys, background) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'no argument of move_shards can be NULL';
    ELSIF verify NOT IN ('snapshot', 'fenced', 'none') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "snapshot", "fenced" or "none".';
    ELSIF max_pause NOT BETWEEN interval '1 ms' AND interval '7 days' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('max_pause cannot be %s', max_pause),
            DETAIL = 'It can be from 1 ms to 7 days.';
    END IF;
    here := insta_ids_internal.require_own_node();
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF FOUND THEN
        PERFORM insta_ids_internal.require_own_move(moving);
    END IF;
    IF (moving.from_node, moving.to_node) IS DISTINCT FROM (move_shards.from_node, here) THEN
        PERFORM insta_ids_internal.require_not_moving(first, last);
    END IF;
    PERFORM insta_ids_internal.connect_node(from_node);
    there := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, %L::uuid)', move, moving.id));
    -- The row here says how far an open move is. Without a row, only an outcome with the source's id and shards counts.
    IF moving.step IS DISTINCT FROM 'handed over' AND (moving.id IS NOT NULL OR NOT EXISTS (
        SELECT FROM insta_ids_internal.move_outcome e
        WHERE e.id = (there ->> 'id')::uuid AND e.outcome = 'handed over' AND to_jsonb(e.shards) = there -> 'shards'))
    THEN
        IF moving.id <> coalesce((there ->> 'id')::uuid, gen_random_uuid()) THEN
            PERFORM insta_ids_internal.require_not_left(moving, there);
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('move of shards from %s to %s has ended on node "%s"', first, last, from_node),
                HINT = format('End it here, too: CALL insta_ids.move_abort(%s, %s, %L).', first, last, from_node);
        ELSIF moving.id IS NULL THEN
            CALL insta_ids_internal.begin_move(move, first, last, path, lock_timeout);
        END IF;
        IF background THEN
            CALL insta_ids_internal.go_on_in_background(move, jsonb_build_object('verify', verify, 'lock_timeout', lock_timeout,
                'max_lag', max_lag, 'max_pause', max_pause, 'await_standbys', await_standbys));
            PERFORM insta_ids_internal.disconnect_node(), set_config('search_path', path, true);
            RETURN;
        END IF;
        CALL insta_ids_internal.begin_copy(move);
        -- Before the source released the shards, its standbys had the fence and all rows were compared, and writers wait now.
        is_released := coalesce(there ->> 'step' = 'released', false);
        IF NOT is_released THEN
            CALL insta_ids_internal.await_copy(move, from_node, max_lag, await_standbys);
            IF verify = 'snapshot' THEN
                CALL insta_ids_internal.verify_snapshots(move, from_node, lock_timeout, max_pause);
            END IF;
            CALL insta_ids_internal.prepare_hand_over(move, from_node);
            CALL insta_ids_internal.await_copy(move, from_node, max_lag, await_standbys);
        END IF;
        CALL insta_ids_internal.hand_over(
            move, from_node, verify = 'fenced' AND NOT is_released, lock_timeout, max_pause, await_standbys);
        there := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, NULL::uuid)', move));
    END IF;
    CALL insta_ids_internal.finish_move(move, from_node, there, verify, lock_timeout, await_standbys);
    PERFORM insta_ids_internal.disconnect_node(), set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_shards(integer, integer, name, text, text, bigint, interval, boolean, boolean) IS
    'brings a range of shards here from another node, or goes on with that';

-- The first step of a move: the source offers the shards, and this server creates them, empty and closed. `path` is the
-- search_path of their migrations. If this server cannot create them, it withdraws a new offer.
CREATE OR REPLACE PROCEDURE insta_ids_internal.begin_move(
        move name, first integer, last integer, path text, lock_timeout text)
    LANGUAGE plpgsql
AS $$
DECLARE
    offer pg_catalog.jsonb;
BEGIN
    -- One snapshot has both. Another session may have prepared this move since the caller looked.
    PERFORM insta_ids_internal.require_absent(first, last)
    WHERE NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move);
    offer := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_offer(%s, %s, %L, %L)', first, last,
        insta_ids_internal.require_own_node(), lock_timeout));
    BEGIN
        PERFORM insta_ids_internal.prepare_shards(offer, path);
    EXCEPTION WHEN OTHERS THEN
        -- An older offer may be in use by another session.
        IF (offer ->> 'is_new')::boolean THEN
            PERFORM insta_ids_internal.call_node(format('move_withdraw(%L)', move));
        END IF;
        RAISE;
    END;
    CALL insta_ids_internal.new_transaction();
    RAISE NOTICE 'move_shards: prepared, % shards, % here', jsonb_array_length(offer -> 'shards'),
        pg_size_pretty((offer ->> 'bytes')::bigint);
    PERFORM insta_ids_internal.make_subscription(m) FROM insta_ids_internal.move m WHERE (m.name, m.step) = (move, 'prepared')
        AND NOT EXISTS (SELECT FROM insta_ids_internal.subscription s WHERE s.name = move);
    CALL insta_ids_internal.new_transaction();
END
$$;

-- Takes the lock that a hand-over needs, before the source is fenced: no writer waits for it.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_assignments(lock_timeout text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.lock_relations(
        '{insta_ids_internal.assignment}', 'SHARE ROW EXCLUSIVE', '{}', 'the map', lock_timeout);

-- The last step but one, in which writers wait: the source fences the shards. When this server has all rows, the source releases
-- the shards, and this server takes them over. With `verify`, it first compares the rows. If the step fails or is cancelled, the
-- source opens the shards again. `max_pause` limits the time from the fence on. Until the source has released the shards, it
-- opens them by itself when that time is over.
CREATE OR REPLACE PROCEDURE insta_ids_internal.hand_over(
        move name, from_node name, verify boolean, lock_timeout text, max_pause interval, await_standbys boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
    mark pg_catalog.jsonb;
    released pg_catalog.jsonb;
    is_drained pg_catalog.bool := false;
    is_verified pg_catalog.bool := NOT verify;
    is_handed_over pg_catalog.bool := false;
    -- Milliseconds of the steady clock.
    fenced_at pg_catalog.int8;
    failure insta_ids_internal.failure;
BEGIN
    -- If the rest fails, this session still has the lock, by which it gives up the fence.
    PERFORM insta_ids_internal.lock_assignments(lock_timeout);
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
            IF NOT is_verified THEN
                SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
                PERFORM insta_ids_internal.require_same_rows(moving, 'insta_ids');
                is_verified := true;
            END IF;
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
    IF failure.code IS NOT NULL THEN
        CALL insta_ids_internal.fail_pause(move, from_node, fenced_at, max_pause,
            CASE WHEN is_drained THEN 'Rows were still being compared.'
                ELSE 'Rows that were written before the fence had not arrived.' END, failure);
    END IF;
    CALL insta_ids_internal.new_transaction();
    RAISE NOTICE 'move_shards: handed over, % ms after the fence', insta_ids_internal.steady_ms() - fenced_at;
END
$$;

-- Ends a pause in which an error came, and raises the error: the source opens the shards again. `fenced_at` is when the pause
-- began, or NULL if it did not. If `max_pause` is over, the error says so, with `state` as its detail.
CREATE OR REPLACE PROCEDURE insta_ids_internal.fail_pause(
        move name, from_node name, fenced_at bigint, max_pause interval, state text, failure insta_ids_internal.failure)
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids_internal.limit_statement(0), insta_ids_internal.disconnect_node('insta_ids_snapshot');
    CALL insta_ids_internal.open_again(move, from_node);
    IF insta_ids_internal.steady_ms() >= fenced_at + extract(epoch FROM max_pause) * 1000 AND failure.code = '57014' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'query_canceled',
            MESSAGE = format('shards of move "%s" were not handed over within %s', move, max_pause),
            DETAIL = state,
            HINT = 'Call again at a quieter time, or with a longer max_pause.';
    END IF;
    RAISE EXCEPTION USING ERRCODE = failure.code, MESSAGE = failure.message,
        DETAIL = coalesce(nullif(failure.detail, ''), 'The shards were not handed over.'),
        HINT = coalesce(nullif(failure.hint, ''), 'Call insta_ids.move_shards() again.');
END
$$;

-- Opens the shards of a move on the source again, after this server has given up the source's fence. The copy stays and follows
-- the source, so the next call goes on with it. If the shards may still be fenced, it raises a warning.
CREATE OR REPLACE PROCEDURE insta_ids_internal.open_again(move name, from_node name)
    LANGUAGE plpgsql
AS $$
DECLARE
    there pg_catalog.jsonb;
    given_up pg_catalog.jsonb;
BEGIN
    BEGIN
        -- The old connection may still wait for an answer.
        PERFORM insta_ids_internal.connect_node(from_node);
        there := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, NULL::uuid)', move));
    EXCEPTION WHEN OTHERS THEN
        there := '{"step": "unknown"}';
    END;
    IF there ->> 'step' IN ('fenced', 'released') THEN
        given_up := insta_ids_internal.give_up_fence(move, (there ->> 'fences')::integer);
        -- After this commit, this fence cannot lead to a hand-over.
        CALL insta_ids_internal.new_transaction();
        BEGIN
            PERFORM insta_ids_internal.call_node(format('open_fence(%L::name, %L::jsonb)', move, given_up));
            RAISE NOTICE 'move_shards: open to writers on node "%" again', from_node;
            there := '{"step": "offered"}';
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END IF;
    IF there ->> 'step' IN ('fenced', 'released', 'unknown') THEN
        RAISE WARNING USING
            MESSAGE = format('shards of move "%s" may still be fenced on node "%s"', move, from_node),
            HINT = 'Call insta_ids.move_shards() again, or insta_ids.move_abort().';
    END IF;
END
$$;

-- Ends a move on both servers after the hand-over. `there` is its state on the source. A promotion may have lost the source's
-- fence. Then the source is fenced first, and unless `verify` is none, all its rows must be here, too. With `await_standbys`,
-- the source keeps the move until the standbys of this server have the hand-over: after a promotion of one that lacks it,
-- nobody could end the move.
CREATE OR REPLACE PROCEDURE insta_ids_internal.finish_move(
        move name, from_node name, there jsonb, verify text, lock_timeout text, await_standbys boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
    handed_over pg_catalog.jsonb;
BEGIN
    IF await_standbys THEN
        PERFORM insta_ids_internal.require_standbys_have_hand_over(move);
    END IF;
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    handed_over := jsonb_build_object('id', coalesce(moving.id, (there ->> 'id')::uuid),
        'version', (SELECT m.version FROM insta_ids_internal.map m));
    IF there ->> 'id' IS NOT DISTINCT FROM handed_over ->> 'id' THEN
        IF there ->> 'step' = 'offered' AND (there ->> 'was_promoted')::boolean THEN
            PERFORM insta_ids_internal.call_node(format('move_fence(%L, %L)', move, lock_timeout));
            RAISE NOTICE 'move_shards: fenced on node "%", which had lost its fence', from_node;
        END IF;
        IF (there ->> 'was_promoted')::boolean AND verify <> 'none' THEN
            PERFORM insta_ids_internal.require_nothing_left_behind(
                move, from_node, ARRAY(SELECT s::integer FROM jsonb_array_elements_text(there -> 'shards') s));
        END IF;
        PERFORM insta_ids_internal.call_node(format('move_finish(%L, %L)', move, handed_over));
    ELSIF there ->> 'outcome' IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" knows nothing of move "%s"', from_node, move),
            DETAIL = format('Shards from %s to %s were handed over to this node, and may be open to writers there as well.',
                moving.first, moving.last),
            HINT = format('On node "%s", fence these shards and apply the map of this node; then here: SELECT insta_ids_internal.move_finish(%L).',
                from_node, move);
    END IF;
    IF moving.id IS NOT NULL THEN
        PERFORM insta_ids_internal.move_finish(move);
    END IF;
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.share_map();
    RAISE NOTICE 'move_shards: finished; the map has version %', handed_over ->> 'version';
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    moving insta_ids_internal.move;
    id pg_catalog.uuid;
    there pg_catalog.jsonb;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids_internal.new_transaction();
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF FOUND THEN
        PERFORM insta_ids_internal.require_own_move(moving);
    ELSIF from_node IS NULL THEN
        PERFORM insta_ids_internal.open_move(move);
    END IF;
    from_node := coalesce(moving.from_node, from_node);
    IF from_node <> insta_ids_internal.require_own_node() AND moving.step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids_internal.connect_node(from_node);
        there := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, %L::uuid)', move, moving.id));
        id := coalesce(moving.id, (there ->> 'id')::uuid);
    END IF;
    IF coalesce(moving.to_node, there ->> 'to_node') <> insta_ids_internal.require_own_node() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last, from_node,
                coalesce(moving.to_node, there ->> 'to_node'));
    ELSIF moving.step = 'handed over' OR insta_ids_internal.outcome_of_move(id) = 'handed over' AND moving.id IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are already on this node', first, last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', first, last, from_node);
    END IF;
    PERFORM insta_ids_internal.require_not_left(moving, there) WHERE moving.id IS NOT NULL;
    IF id IS NOT NULL THEN
        cancellation := insta_ids_internal.move_cancel(move, id);
        -- After this commit, the shards cannot be taken over any more.
        CALL insta_ids_internal.new_transaction();
    END IF;
    -- The source may have withdrawn the move already, and may have a new one of this name.
    IF there ->> 'id' = id::text THEN
        PERFORM insta_ids_internal.call_node(format('move_withdraw(%L, %L)', move, cancellation));
    END IF;
    PERFORM insta_ids_internal.disconnect_node(), set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name) IS
    'ends a move to this node whose shards have not been handed over';
