-- From one table to many shards: a background worker distributes, whatever becomes of the session that began it.

-- Starts a worker for this database, which is a session of the current role. Returns its process ID, or NULL if the server has no
-- worker left.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_distributor() RETURNS integer
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_start_distributor';

-- Has a worker call distribute() with these arguments, from the commit on. The worker of another call ends with its batch.
CREATE OR REPLACE FUNCTION insta_ids_internal.distribute_in_background(
        batch integer, pause_ms integer, lock_timeout interval, attempt interval)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pid integer;
BEGIN
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_distribution();
    IF NOT (SELECT r.rolcanlogin AND has_database_privilege(current_database(), 'CONNECT') FROM pg_roles r WHERE r.rolname = current_user)
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('role "%s" cannot connect to this database, so no background worker can act as it', current_user),
            HINT = 'Call as a role that can, and that has the privileges of the owner.';
    END IF;
    pid := insta_ids_internal.start_distributor();
    IF pid IS NULL THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'no background worker is free',
            HINT = 'Raise "max_worker_processes" in postgresql.conf and restart the server. Or call without background => true.';
    END IF;
    UPDATE insta_ids_internal.distribution d
    SET last_error = NULL, driver = jsonb_build_object('pid', pid, 'role', current_user, 'failed', 0, 'batch', batch, 'pause_ms', pause_ms,
            'lock_timeout', lock_timeout, 'attempt', attempt);
    RAISE NOTICE 'distribute: goes on in the background; see insta_ids.distributions';
END
$$;

-- Returns whether the worker of a call runs. It does not survive the server, which can give its process ID to another process. Some roles
-- do not see what kind of process it is.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_distributing(driver jsonb) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_stat_activity other
        WHERE other.pid::text = driver ->> 'pid' AND other.usename = driver ->> 'role'
            AND other.datname = current_database() AND coalesce(other.backend_type, 'insta_ids: distribute') = 'insta_ids: distribute');
END;

-- Returns the arguments that this worker has, or NULL if another call has taken the distribution over, or it has ended.
CREATE OR REPLACE FUNCTION insta_ids_internal.own_distribution() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE sql
    RETURN (SELECT d.driver FROM insta_ids_internal.distribution d WHERE d.driver -> 'pid' = to_jsonb(pg_backend_pid()) LIMIT 1);

-- Returns whether the distribution is not that of a call any more: its tables are not `sources`, it was switched or brought back, or
-- another call has it. A table that was just registered has no driver.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_taken_over(sources regclass[], is_switched boolean, is_background boolean) RETURNS boolean
    STABLE PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.distribution_sources() <> sources
        OR EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step = 'switched') <> is_switched
        OR CASE WHEN is_background THEN insta_ids_internal.own_distribution() IS NULL
            ELSE EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.driver IS NOT NULL) END;

-- Returns after how many milliseconds this worker is to try, or NULL if it is to end. Waits for the session that has started it.
CREATE OR REPLACE FUNCTION insta_ids_internal.next_distribution(OUT wait_ms bigint)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own jsonb;
BEGIN
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    own := insta_ids_internal.own_distribution();
    wait_ms := CASE WHEN own IS NOT NULL
        THEN greatest(extract(epoch FROM (own ->> 'not_before')::timestamptz - clock_timestamp()) * 1000, 0) END;
END
$$;

-- What the worker calls.
CREATE OR REPLACE PROCEDURE insta_ids_internal.drive_distribution()
    LANGUAGE plpgsql
AS $$
DECLARE
    own pg_catalog.jsonb;
BEGIN
    own := insta_ids_internal.own_distribution();
    IF own IS NULL THEN
        RETURN;
    END IF;
    CALL insta_ids_internal.distribute_all((own OPERATOR(pg_catalog.->>) 'batch')::pg_catalog.int4,
        (own OPERATOR(pg_catalog.->>) 'pause_ms')::pg_catalog.int4, (own OPERATOR(pg_catalog.->>) 'lock_timeout')::pg_catalog.interval,
        (own OPERATOR(pg_catalog.->>) 'attempt')::pg_catalog.interval, true);
    UPDATE insta_ids_internal.distribution d SET driver = NULL, last_error = NULL
    WHERE d.driver OPERATOR(pg_catalog.->) 'pid' OPERATOR(pg_catalog.=) pg_catalog.to_jsonb(pg_catalog.pg_backend_pid());
END
$$;

-- Records that this worker's attempt has failed. The next one is as after a failed attempt of a move. There is none if the rows differ.
CREATE OR REPLACE FUNCTION insta_ids_internal.distribution_failed(code text, message text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    UPDATE insta_ids_internal.distribution d
    SET last_error = message,
        driver = CASE WHEN code <> 'XX001' THEN d.driver || jsonb_build_object('failed', f.failed,
            'not_before', insta_ids_internal.next_attempt_at(f.failed)) END
    FROM (SELECT (insta_ids_internal.own_distribution() ->> 'failed')::integer + 1 AS failed) f
    WHERE d.driver -> 'pid' = to_jsonb(pg_backend_pid());
END;
