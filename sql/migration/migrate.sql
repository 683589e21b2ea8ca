-- Applies migrations to all shards, in batches that commit.

-- Raises an error if shards lack a migration that creates a table, and Citus distributes their schemas. If a function creates a
-- table, Citus leaves it on this node: it distributes a table only if the client itself sends CREATE TABLE.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_in_citus(shards integer[], hint text) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    distributed oid[];
    stuck record;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_schema') IS NULL THEN
        RETURN;
    END IF;
    EXECUTE 'SELECT array_agg(d.schemaid) FROM pg_catalog.pg_dist_schema d' INTO distributed;
    WITH made AS MATERIALIZED (
        SELECT m.number, m.name, s.makes
        FROM insta_ids_internal.migration m CROSS JOIN LATERAL insta_ids_internal.statements(m.ddl) s
        WHERE s.makes IS NOT NULL
    )
    SELECT m.name, m.makes, s.schema INTO stuck
    FROM insta_ids_internal.shard_schema s
    JOIN insta_ids_internal.migration_status a ON a.shard = s.shard AND a.state <> 'applied'
    JOIN made m ON m.number = a.number
    WHERE s.shard = ANY (shards) AND s.oid = ANY (distributed)
        AND to_regclass(format('%I.%I', s.schema, m.makes)) IS NULL
    ORDER BY s.shard, m.number LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('migration "%s" would create table "%s" on this node only', stuck.name, stuck.makes),
            DETAIL = format('Citus distributes schema "%s", but no table that a function creates in it.', stuck.schema),
            HINT = hint;
    END IF;
END
$$;

-- Reports migrations that only a script can apply, and that come next in some shards of a range. A NULL bound is no limit.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_scripts(first integer, last integer) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    waiting record;
BEGIN
    FOR waiting IN
        SELECT m.name, count(*) AS shards
        FROM (
            SELECT s.shard, min(s.number) AS number FROM insta_ids_internal.migration_status s
            WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
            GROUP BY s.shard
        ) next
        JOIN insta_ids_internal.migration m ON m.number = next.number AND NOT m.transactional
        GROUP BY m.name
    LOOP
        RAISE NOTICE USING
            MESSAGE = format('migration "%s" waits, as it cannot run in a transaction', waiting.name),
            DETAIL = format('Shards for which it is next: %s.', waiting.shards),
            HINT = format($hint$In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec$hint$, waiting.name);
    END LOOP;
END
$$;

-- Returns the shards of a range that lack migrations. A NULL bound is no limit. Raises an error unless the caller may apply
-- these migrations, to tables on this node.
CREATE OR REPLACE FUNCTION insta_ids_internal.shards_to_migrate(first integer, last integer) RETURNS integer[]
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards integer[] := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids_internal.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
BEGIN
    PERFORM insta_ids_internal.require_trusted_author(m)
    FROM insta_ids_internal.migration m
    WHERE m.number IN (SELECT s.number FROM insta_ids_internal.migration_status s WHERE s.state <> 'applied' AND s.shard = ANY (shards))
    ORDER BY m.number;
    PERFORM insta_ids_internal.require_not_in_citus(shards,
        'Create it first in each shard''s schema by CREATE TABLE IF NOT EXISTS, sent by the client itself.'::text);
    RETURN shards;
END
$$;

-- Applies to a shard the migrations that it lacks, and records the one that fails. `held` is how many shards the transaction has
-- locked before, and `after_schema` is that of path_after_schema(). Returns as `state`:
--   applied: the shard lacks none, or only those that a script applies
--   failed: the statement of this name and number raised this error
--   busy: another session migrates the shard, or it moves, or it is fenced
--   again: a new transaction may succeed. A lock was not free, and sessions would wait for the `held` shards meanwhile; or an enum value
--       was used that an earlier migration of the transaction had added
CREATE OR REPLACE FUNCTION insta_ids_internal.migrate_shard(
        shard integer, after_schema text, lock_timeout interval, held integer,
        OUT state text, OUT name text, OUT statement integer, OUT code text, OUT message text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outcome record;
BEGIN
    PERFORM FROM insta_ids_internal.shard s
    WHERE s.shard = migrate_shard.shard
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard)
    FOR NO KEY UPDATE SKIP LOCKED;
    -- The statement above may have begun before the shard was fenced.
    IF NOT FOUND OR EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = migrate_shard.shard) THEN
        state := 'busy';
        RETURN;
    END IF;
    PERFORM insta_ids_internal.set_lock_timeout(CASE held WHEN 0 THEN lock_timeout ELSE interval '10ms' END);
    outcome := insta_ids_internal.apply_migrations(shard, after_schema, false, NULL);
    name := outcome.name;
    statement := outcome.statement;
    code := outcome.code;
    message := outcome.message;
    state := CASE
        WHEN outcome.failed IS NULL THEN 'applied'
        WHEN code = '55P03' AND held > 0 OR code = '55P04' AND outcome.applied > 0 THEN 'again'
        ELSE 'failed' END;
    IF state = 'failed' THEN
        INSERT INTO insta_ids_internal.shard_migration
        VALUES (shard, outcome.failed, clock_timestamp(), statement, code, message)
        ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
        SET at = excluded.at, statement = excluded.statement, sqlstate = excluded.sqlstate, message = excluded.message;
    END IF;
END
$$;

-- Migrates shards of `todo`, of which `done` are done, until this transaction has locked `batch` of them, or has to end because a
-- lock was not free. Adds to the counts, and sets `first_failure` for the first shard that fails. Raises an error if the first
-- shard shows that the server has not enough locks.
CREATE OR REPLACE PROCEDURE insta_ids_internal.migrate_batch(
        todo integer[], batch integer, path text, lock_timeout interval,
        INOUT done integer, INOUT failed integer, INOUT busy integer, INOUT first_failure insta_ids_internal.failure)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    after_schema CONSTANT text := insta_ids_internal.path_after_schema(path);
    -- The number of shards that this transaction has locked.
    held integer := 0;
    number integer;
    outcome record;
BEGIN
    WHILE done < cardinality(todo) AND held < batch LOOP
        number := todo[done + 1];
        outcome := insta_ids_internal.migrate_shard(number, after_schema, lock_timeout, held);
        -- The shard is first in the next transaction.
        EXIT WHEN outcome.state = 'again';
        done := done + 1;
        IF outcome.state = 'busy' THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        held := held + 1;
        IF outcome.state = 'failed' THEN
            failed := failed + 1;
            IF failed = 1 THEN
                first_failure.code := outcome.code;
                first_failure.detail := format('The first is shard %s, at %s of migration "%s": %s', number,
                    coalesce('statement ' || outcome.statement, 'the end'), outcome.name, outcome.message);
            END IF;
        END IF;
        IF done - busy = 1 THEN
            PERFORM insta_ids_internal.require_locks(least(batch, cardinality(todo)));
        END IF;
    END LOOP;
END
$$;

-- Reports how many of `total` shards were left out. Raises an error if shards failed.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_all_migrated(
        total integer, failed integer, busy integer, first_failure insta_ids_internal.failure) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF busy > 0 THEN
        RAISE NOTICE 'shards left to another session, or fenced: %', busy;
    END IF;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = first_failure.code,
            MESSAGE = format('%s of %s shards could not be migrated', failed, total),
            DETAIL = first_failure.detail,
            HINT = CASE WHEN failed < total THEN 'The others are migrated. ' ELSE '' END
                || 'See insta_ids.migration_status, and call again to migrate the rest.';
    END IF;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.migrate(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50, lock_timeout interval DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    total integer;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    first_failure insta_ids_internal.failure;
BEGIN
    -- The session's default isolation level may be stricter, and then the first transaction would not see new commits.
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.require_range(first, last, batch), insta_ids_internal.set_lock_timeout(lock_timeout);
    todo := insta_ids_internal.shards_to_migrate(first, last);
    total := pg_catalog.cardinality(todo);
    CALL insta_ids_internal.commit_batch('migrate', total, done, failed);
    WHILE done OPERATOR(pg_catalog.<) total LOOP
        CALL insta_ids_internal.migrate_batch(todo, batch, path, lock_timeout, done, failed, busy, first_failure);
        CALL insta_ids_internal.commit_batch('migrate', total, done, failed);
    END LOOP;
    PERFORM insta_ids_internal.report_scripts(first, last);
    PERFORM insta_ids_internal.require_all_migrated(total, failed, busy, first_failure);
    -- If a procedure called this one, its transaction goes on with the caller's search_path.
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.migrate(integer, integer, integer, interval) IS
    'applies to each shard of a range the migrations that it lacks';
