-- Moves, on the target: a background worker drives one, whatever becomes of the session that began it.

-- Starts the worker for an open move. If one drives it already, the new one ends soon. Returns false if the server has no
-- worker left.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_driver(first integer, last integer) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'start_driver_wrapper';

-- Records with what arguments of move_shards() a background worker is to drive a move. The time tells apart what was asked for twice.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_for_driver(
        move name, verify text, lock_timeout interval, max_lag bigint, max_pause interval, await_standbys boolean)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE insta_ids_internal.move m
    SET driver = jsonb_build_object('verify', verify, 'lock_timeout', lock_timeout, 'max_lag', max_lag, 'max_pause', max_pause,
            'await_standbys', await_standbys, 'asked_at', clock_timestamp()),
        failed_attempts = 0, last_error = NULL
    WHERE m.name = move;
END
$$;

-- Starts the worker of a move, unless it has one. If the server has no worker left, records that none is to drive the move, and
-- returns false.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_driver_of(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF insta_ids_internal.start_driver(moving.first, moving.last) OR insta_ids_internal.has_driver(move) THEN
        RETURN true;
    END IF;
    UPDATE insta_ids_internal.move m SET driver = NULL WHERE m.name = move;
    RETURN false;
END
$$;

-- Has a background worker continue a move.
CREATE OR REPLACE PROCEDURE insta_ids_internal.go_on_in_background(
        move name, verify text, lock_timeout interval, max_lag bigint, max_pause interval, await_standbys boolean)
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids_internal.ask_for_driver(move, verify, lock_timeout, max_lag, max_pause, await_standbys);
    -- The worker reads what is committed.
    CALL insta_ids_internal.new_transaction();
    IF NOT insta_ids_internal.start_driver_of(move) THEN
        CALL insta_ids_internal.new_transaction();
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = 'no background worker is free',
            DETAIL = 'The shards are prepared here.',
            HINT = 'Raise "max_worker_processes" in postgresql.conf and restart the server. Or call again without background.';
    END IF;
    RAISE NOTICE 'move_shards: goes on in the background; see insta_ids.moves';
END
$$;

-- Returns whether a worker drives this move. A worker asks for one that began before it. Only a worker has the type of a
-- worker, while every role can take an advisory lock.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_driver(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity other JOIN pg_catalog.pg_stat_activity own ON own.pid = pg_catalog.pg_backend_pid()
        WHERE other.backend_type = 'insta_ids: ' || move AND other.datid = own.datid
            AND (other.backend_type <> own.backend_type OR (other.backend_start, other.pid) < (own.backend_start, own.pid)));

-- Returns with what arguments a worker is to drive the move, or NULL if none is to.
CREATE OR REPLACE FUNCTION insta_ids_internal.driver_of(move name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT m.driver::text FROM insta_ids_internal.move m WHERE m.name = move);

-- What the worker calls: goes on with a move as its row says. Does nothing if the move has ended, or nobody wants it driven.
CREATE OR REPLACE PROCEDURE insta_ids_internal.drive_move(move name)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name OPERATOR(pg_catalog.=) move;
    IF moving.driver IS NOT NULL THEN
        CALL insta_ids.move_shards(moving.first, moving.last, moving.from_node,
            moving.driver OPERATOR(pg_catalog.->>) 'verify', (moving.driver OPERATOR(pg_catalog.->>) 'lock_timeout')::pg_catalog.interval,
            (moving.driver OPERATOR(pg_catalog.->>) 'max_lag')::pg_catalog.int8,
            (moving.driver OPERATOR(pg_catalog.->>) 'max_pause')::pg_catalog.interval,
            (moving.driver OPERATOR(pg_catalog.->>) 'await_standbys')::pg_catalog.bool);
    END IF;
END
$$;

-- Records that the worker's call by these arguments has failed. Returns after how many milliseconds it is to call again: 2
-- seconds, and each time twice as long, up to 5 minutes. If the rows differ, no worker is to call again. Returns NULL if the move
-- has ended, or was asked for again with other arguments.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_failed(move name, driver text, code text, message text) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    UPDATE insta_ids_internal.move m
    SET failed_attempts = m.failed_attempts + 1, last_error = message,
        driver = CASE WHEN code <> 'XX001' THEN m.driver END
    WHERE m.name = move AND m.driver::text = move_failed.driver
    RETURNING 1000 * least(power(2, least(m.failed_attempts, 9)), 300)::bigint;
END;

-- Returns whether the worker is still to wait: the move has not ended, and nobody has called move_shards with background since.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_waits(move name) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.move m WHERE m.name = move AND m.driver IS NOT NULL AND m.failed_attempts > 0);
