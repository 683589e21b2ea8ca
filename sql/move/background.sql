-- Moves, on the target: a background worker drives one, whatever becomes of the session that began it.

-- Starts the worker for an open move. Returns false if the server has no worker left.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_driver(first integer, last integer, is_awaited boolean) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_start_driver';

-- Raises the messages of the worker that this session has started. Returns whether it still runs, or raises the error that has ended it.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_driver() RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_await_driver';

-- Returns the other workers of a move, and whether each began before this one. Only a worker has the type of a worker, while every
-- role can take an advisory lock.
CREATE OR REPLACE FUNCTION insta_ids_internal.other_drivers(move name) RETURNS TABLE (pid integer, is_running boolean, is_older boolean)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT other.pid, other.state = 'active', (other.backend_start, other.pid) < (own.backend_start, own.pid)
    FROM pg_catalog.pg_stat_activity other JOIN pg_catalog.pg_stat_activity own ON own.pid = pg_catalog.pg_backend_pid()
    WHERE other.backend_type = 'insta_ids: ' || move AND other.datid = own.datid AND other.pid <> own.pid;
END;

-- Has a worker drive an open move with these arguments of move_shards(), from the commit on. An older worker of the move ends with
-- its attempt, which is cancelled if the arguments have changed. The move's row tells this call from others, so what comes of an older
-- one does not count. With `is_awaited`, this session waits for the worker. Returns the id of the move. Raises an error if the server
-- has no worker left.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_drive(
        move name, verify text, lock_timeout interval, max_lag bigint, max_pause interval, await_standbys boolean, is_awaited boolean)
    RETURNS uuid
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
    older CONSTANT integer[] := ARRAY(SELECT o.pid FROM insta_ids_internal.other_drivers(move) o WHERE o.is_running);
    arguments CONSTANT jsonb := jsonb_build_object('verify', verify, 'lock_timeout', lock_timeout, 'max_lag', max_lag,
        'max_pause', max_pause, 'await_standbys', await_standbys);
BEGIN
    UPDATE insta_ids_internal.move m
    SET driver = arguments || jsonb_build_object('call', gen_random_uuid()), failed_attempts = 0, last_error = NULL WHERE m.name = move;
    IF NOT insta_ids_internal.start_driver(moving.first, moving.last, is_awaited) THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'no background worker is free',
            DETAIL = 'The shards are prepared here.',
            HINT = 'Raise "max_worker_processes" in postgresql.conf and restart the server. Then call again.';
    END IF;
    PERFORM pg_cancel_backend(pid) FROM unnest(older) pid WHERE moving.driver - '{call,not_before}'::text[] <> arguments;
    IF NOT is_awaited THEN
        RAISE NOTICE 'move_shards: goes on in the background; see insta_ids.moves';
    ELSIF older <> '{}' THEN
        RAISE NOTICE 'move_shards: waits for the worker of another call; see insta_ids.moves';
    END IF;
    RETURN moving.id;
END
$$;

-- Raises an error unless a move has ended by the hand-over. Its worker may have ended because of another session.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_moved(move name, id uuid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF insta_ids_internal.outcome_of_move(id) IS DISTINCT FROM 'handed over'
        OR EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.id = require_moved.id)
    THEN
        RAISE object_in_use USING MESSAGE = format('another session continues move "%s" or has ended it', move),
            HINT = 'See insta_ids.moves.';
    END IF;
END
$$;

-- Returns after how many milliseconds a worker is to try a move, and for which call. `wait_ms` is NULL if it is to end: nobody wants the
-- move driven, a younger worker drives it, or the call is not `own_call`, which has another worker. `own_call` is empty until the worker
-- knows it. Waits for older workers, and for a session that has started the worker and not committed.
CREATE OR REPLACE FUNCTION insta_ids_internal.next_attempt(move name, own_call text, OUT wait_ms bigint, OUT call text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    has_younger boolean;
    driver jsonb;
BEGIN
    SELECT NOT o.is_older INTO has_younger FROM insta_ids_internal.other_drivers(move) o ORDER BY o.is_older LIMIT 1;
    IF FOUND AND has_younger THEN
        RETURN;
    END IF;
    wait_ms := CASE WHEN FOUND THEN 1000 ELSE 0 END;
    PERFORM FROM insta_ids_internal.move m WHERE m.name = move AND m.driver ->> 'not_before' IS NULL FOR SHARE;
    SELECT m.driver INTO driver FROM insta_ids_internal.move m WHERE m.name = move;
    call := (driver ->> 'call')::uuid;
    wait_ms := CASE WHEN driver IS NOT NULL AND own_call IN ('', call)
        THEN greatest(extract(epoch FROM (driver ->> 'not_before')::timestamptz - clock_timestamp()) * 1000, wait_ms) END;
END
$$;

-- What the worker calls: the steps of a move, from where it is. Does nothing if the move has ended, or another call is to be served.
CREATE OR REPLACE PROCEDURE insta_ids_internal.drive_move(move name, call uuid)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
    asked pg_catalog.record;
    is_released pg_catalog.bool;
    is_handed_over pg_catalog.bool;
    paused insta_ids_internal.pause;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name OPERATOR(pg_catalog.=) move;
    IF NOT coalesce((moving.driver OPERATOR(pg_catalog.->>) 'call')::pg_catalog.uuid OPERATOR(pg_catalog.=) call, false) THEN
        RETURN;
    END IF;
    SELECT * INTO asked FROM pg_catalog.jsonb_to_record(moving.driver) d (verify pg_catalog.text, lock_timeout pg_catalog.interval,
        max_lag pg_catalog.int8, max_pause pg_catalog.interval, await_standbys pg_catalog.bool);
    SELECT f.is_released, f.is_handed_over INTO is_released, is_handed_over
    FROM insta_ids_internal.find_move(moving.first, moving.last, moving.from_node) f;
    IF NOT is_handed_over THEN
        PERFORM insta_ids_internal.start_copy(move);
        CALL insta_ids_internal.new_transaction();
        IF NOT is_released THEN
            CALL insta_ids_internal.await_copy(move, moving.from_node, asked.max_lag, asked.await_standbys);
            CALL insta_ids_internal.verify_snapshots(move, moving.from_node, asked.verify, asked.lock_timeout, asked.max_pause);
            PERFORM insta_ids_internal.prepare_hand_over(move, moving.from_node);
            CALL insta_ids_internal.new_transaction();
            CALL insta_ids_internal.await_copy(move, moving.from_node, asked.max_lag, asked.await_standbys);
        END IF;
        paused := insta_ids_internal.try_hand_over(move, moving.from_node, asked.lock_timeout, asked.max_pause, asked.await_standbys);
        IF (paused.failure).code IS NOT NULL THEN
            CALL insta_ids_internal.fail_pause(move, moving.from_node, asked.max_pause, paused);
        END IF;
        CALL insta_ids_internal.new_transaction();
        RAISE NOTICE 'move_shards: handed over, % ms after the fence',
            insta_ids_internal.steady_ms() OPERATOR(pg_catalog.-) paused.fenced_at;
        PERFORM insta_ids_internal.warn_of_unreferenced(move);
    END IF;
    CALL insta_ids_internal.finish_move(move, moving.from_node, asked.verify, asked.lock_timeout, asked.await_standbys);
    PERFORM insta_ids_internal.disconnect_node();
END
$$;

-- Returns when a worker tries again that has failed so often: after 2 seconds, and each time after twice as long, up to 5 minutes.
CREATE OR REPLACE FUNCTION insta_ids_internal.next_attempt_at(failed integer) RETURNS timestamptz
    VOLATILE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN clock_timestamp() + make_interval(secs => least(power(2, least(failed, 9)), 300));

-- Records that the worker's attempt for a call has failed, unless another call came since. There is no next one if a session waits for
-- the worker, or the rows differ.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_failed(move name, call text, code text, message text, is_awaited boolean)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    UPDATE insta_ids_internal.move m
    SET failed_attempts = m.failed_attempts + CASE WHEN is_awaited THEN 0 ELSE 1 END,
        last_error = CASE WHEN NOT is_awaited THEN message END,
        driver = CASE WHEN NOT is_awaited AND code <> 'XX001' THEN m.driver
            || jsonb_build_object('not_before', insta_ids_internal.next_attempt_at(m.failed_attempts + 1)) END
    WHERE m.name = move AND m.driver ->> 'call' = call;
END;
