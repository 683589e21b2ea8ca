-- Moves, on the target: a background worker drives one, whatever becomes of the session that began it.

-- Starts the worker for an open move. If one drives it already, the new one ends at once. Returns false if the server has no
-- worker left.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_driver(move text) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'start_driver_wrapper';

-- Has a background worker go on with a move. `driver` has the other arguments of move_shards, by their names.
CREATE OR REPLACE PROCEDURE insta_ids_internal.go_on_in_background(move name, driver jsonb)
    LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE insta_ids_internal.move m SET driver = go_on_in_background.driver, failed_attempts = 0, last_error = NULL
    WHERE m.name = move;
    -- The worker reads what is committed.
    CALL insta_ids_internal.new_transaction();
    IF NOT insta_ids_internal.start_driver(move) THEN
        UPDATE insta_ids_internal.move m SET driver = NULL WHERE m.name = move;
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

-- Returns whether another worker drove this move before this one. A worker's application_name is its move, and only a worker has
-- this backend_type. An advisory lock could be taken by every role.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_driver(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity other JOIN pg_catalog.pg_stat_activity own ON own.pid = pg_catalog.pg_backend_pid()
        WHERE other.backend_type = 'insta_ids: move' AND other.application_name = move AND other.datid = own.datid
            AND (other.backend_start, other.pid) < (own.backend_start, own.pid));

-- What the worker calls: goes on with a move as its row says. Does nothing if the move has ended, nobody wants it driven, or
-- another worker drives it.
CREATE OR REPLACE PROCEDURE insta_ids_internal.drive_move(move name)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name OPERATOR(pg_catalog.=) move;
    IF moving.driver IS NOT NULL AND NOT insta_ids_internal.has_driver(move) THEN
        CALL insta_ids.move_shards(moving.first, moving.last, moving.from_node,
            moving.driver OPERATOR(pg_catalog.->>) 'verify', moving.driver OPERATOR(pg_catalog.->>) 'lock_timeout',
            (moving.driver OPERATOR(pg_catalog.->>) 'max_lag')::pg_catalog.int8,
            (moving.driver OPERATOR(pg_catalog.->>) 'max_pause')::pg_catalog.interval,
            (moving.driver OPERATOR(pg_catalog.->>) 'await_standbys')::pg_catalog.bool);
    END IF;
END
$$;

-- Records that the worker's call has failed. Returns after how many milliseconds it is to call again: 2 seconds, and each time
-- twice as long, up to 5 minutes. Returns NULL if it is not to call again, because the move has ended or the rows differ.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_failed(move name, code text, message text) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    UPDATE insta_ids_internal.move m
    SET failed_attempts = m.failed_attempts + 1, last_error = message,
        driver = CASE WHEN code <> 'XX001' THEN m.driver END
    WHERE m.name = move AND m.driver IS NOT NULL
    RETURNING CASE WHEN m.driver IS NOT NULL THEN 1000 * least(power(2, m.failed_attempts), 300)::bigint END;
END;

-- Returns whether the worker is still to wait: the move has not ended, and nobody has called move_shards with background since.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_waits(move name) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.move m WHERE m.name = move AND m.driver IS NOT NULL AND m.failed_attempts > 0);
