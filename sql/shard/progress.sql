-- Progress: procedures that commit batch by batch, and report how far they are.

CREATE OR REPLACE VIEW insta_ids.progress AS
SELECT w.pid, w.command, w.total, w.done, w.failed, w.total - w.done AS remaining, w.started_at, r.per_second,
       make_interval(secs => (w.total - w.done) / nullif(r.per_second, 0)) AS time_left
FROM insta_ids_internal.work w
JOIN pg_stat_activity a ON a.pid = w.pid
    -- Roles without the privilege to see other sessions' statements get NULL here. They may see that a transaction is open.
    AND coalesce(
        a.query_start = w.started_at AND a.state = 'active',
        EXISTS (SELECT FROM pg_locks l WHERE l.pid = w.pid AND l.locktype = 'virtualxid'))
CROSS JOIN LATERAL (
    SELECT round(w.done / nullif(extract(epoch FROM w.updated_at - w.started_at), 0), 1)::float8 AS per_second
) r;
COMMENT ON VIEW insta_ids.progress IS 'how far the calls of create_shards, migrate and check_rows are that run now';

-- Raises an error unless both bounds are shards or NULL, the first is not after the last, and `batch` is at least 1.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_range(first integer, last integer, batch integer) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_config(), insta_ids.schema_of(first), insta_ids.schema_of(last);
    IF first > last THEN
        RAISE invalid_parameter_value USING MESSAGE = format('first shard %s is greater than last shard %s', first, last);
    ELSIF batch IS NULL OR batch < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('batch of %s shards is less than 1', coalesce(batch, 0));
    END IF;
END
$$;

-- Commits, and begins a READ COMMITTED transaction with a safe search_path.
CREATE OR REPLACE PROCEDURE insta_ids_internal.new_transaction()
    LANGUAGE plpgsql
AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
END
$$;

-- Records how far this call of a command is, and returns the row. A statement of a client is one call.
CREATE OR REPLACE FUNCTION insta_ids_internal.record_work(command text, total integer, done integer, failed integer)
    RETURNS insta_ids_internal.work
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    work insta_ids_internal.work;
BEGIN
    UPDATE insta_ids_internal.work w
    SET done = record_work.done, failed = record_work.failed, updated_at = clock_timestamp(),
        told_at = CASE WHEN clock_timestamp() - w.told_at >= '1 s' THEN clock_timestamp() ELSE w.told_at END
    WHERE w.pid = pg_backend_pid() AND w.started_at = statement_timestamp()
    RETURNING w.* INTO work;
    IF NOT FOUND THEN
        DELETE FROM insta_ids_internal.work w
        WHERE w.pid = pg_backend_pid() OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.pid);
        INSERT INTO insta_ids_internal.work
        SELECT pg_backend_pid(), command, total, done, failed, statement_timestamp(), now, now
        FROM clock_timestamp() now
        RETURNING * INTO work;
    END IF;
    IF done = total THEN
        DELETE FROM insta_ids_internal.work w WHERE w.pid = pg_backend_pid();
    END IF;
    RETURN work;
END
$$;

-- Reports how far a call of a command is, at most once a second, and its end.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_work(work insta_ids_internal.work) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seconds numeric;
BEGIN
    IF work.done = work.total THEN
        RAISE NOTICE '%: % of % shards in % s', work.command, work.done, work.total,
            round(extract(epoch FROM clock_timestamp() - statement_timestamp()), 1);
    ELSIF work.done > 0 AND work.told_at >= work.updated_at THEN
        seconds := extract(epoch FROM work.updated_at - work.started_at);
        RAISE NOTICE '%: % of % shards, % per second, % s left', work.command, work.done, work.total,
            round(work.done / seconds, 1), ceil((work.total - work.done) * seconds / work.done);
    END IF;
END
$$;

-- Ends a batch: records that `done` of `total` shards are done, commits, and begins a transaction with a safe search_path. The
-- first call comes before the first shard. Reports the progress at most once a second, and the end.
CREATE OR REPLACE PROCEDURE insta_ids_internal.commit_batch(command text, total integer, done integer, failed integer)
    LANGUAGE plpgsql
AS $$
DECLARE
    work insta_ids_internal.work;
BEGIN
    -- That of migrations is for users' tables.
    SET LOCAL lock_timeout = 0;
    work := insta_ids_internal.record_work(command, total, done, failed);
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.limit_catalog_cache(), insta_ids_internal.report_work(work);
END
$$;

-- Returns how many locks the server can hold at least. PostgreSQL reserves "max_locks_per_transaction" for each process that
-- can have a transaction, and for each prepared transaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_capacity() RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.current_setting('max_locks_per_transaction')::bigint * pg_catalog.sum(s.setting::bigint)::bigint
    FROM pg_catalog.pg_settings s
    WHERE s.name = ANY (ARRAY[
        'max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
        -- From PostgreSQL 18 on, this setting determines the number of slots.
        CASE WHEN pg_catalog.current_setting('server_version_num')::integer < 180000 THEN 'autovacuum_max_workers'
            ELSE 'autovacuum_worker_slots' END]);
END;

-- Raises an error unless the server has enough locks for a batch, judged by the locks that its first shard took.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_locks(batch integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room CONSTANT bigint := insta_ids_internal.lock_capacity();
    own bigint;
    others bigint;
BEGIN
    SELECT count(*) FILTER (WHERE pid = pg_backend_pid()), count(*) FILTER (WHERE pid IS DISTINCT FROM pg_backend_pid())
    INTO own, others
    FROM pg_locks WHERE NOT fastpath;
    -- The locks for one shard are already held.
    IF batch > 1 AND own * batch > room - others THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('batch of %s shards needs more locks than the server has', batch),
            DETAIL = format('The first took %s; the server has %s, of which others hold %s.', own, room, others),
            HINT = format('Use a batch of at most %s, or raise "max_locks_per_transaction".',
                greatest(1, (room - others) / own));
    END IF;
END
$$;
