-- Applies migrations to shards.

-- Notes from now on how the session's transactions end. `failed` says whether something has failed before.
CREATE OR REPLACE FUNCTION insta_ids_internal.note_transactions(failed boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'note_transactions_wrapper';

-- Returns whether a transaction committed after note_transactions, and none failed. NULL if note_transactions was not called.
CREATE OR REPLACE FUNCTION insta_ids_internal.transactions_committed() RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'transactions_committed_wrapper';

-- Returns the search_path of a migration: the shard's schema, the extension's schema, and the caller's path. The extension's
-- schema is left out if other roles may create functions in it.
CREATE OR REPLACE FUNCTION insta_ids_internal.path_of(schema name, path text) RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT concat_ws(', ', quote_ident(schema),
            CASE WHEN insta_ids_internal.creators(n.nspname) IS NULL THEN quote_ident(n.nspname) END, nullif(path, ''))
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'insta_ids');
END
$$;

-- Raises an error if a statement would miss the shard. This happens if the role lacks USAGE on its schema, which search_path
-- then skips, or if a temporary relation of the session hides one of the shard. It also happens if only another schema of the
-- path has a relation of `alters`. Locks the names of these relations until the transaction ends.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_path(schema name, path text, alters text[]) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation text;
    hiding name;
    held oid;
    elsewhere record;
BEGIN
    IF NOT has_schema_privilege(schema, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for schema %s', schema);
    END IF;
    -- PostgreSQL looks for a relation among the session's temporary ones first.
    IF pg_my_temp_schema() <> 0 THEN
        SELECT t.relname INTO hiding
        FROM pg_class t JOIN pg_class c ON c.relname = t.relname AND c.relnamespace = to_regnamespace(quote_ident(schema))
        WHERE t.relnamespace = pg_my_temp_schema() ORDER BY t.relname LIMIT 1;
        IF FOUND THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('temporary relation "%s" hides that of schema "%s"', hiding, schema),
                HINT = 'Drop the temporary relation, or call in another session.';
        END IF;
    END IF;
    FOREACH relation IN ARRAY alters LOOP
        held := to_regclass(format('%I.%I', schema, relation));
        WHILE held IS NOT NULL LOOP
            PERFORM insta_ids_internal.hold_name(held);
            -- Another session may have renamed the relation while this one waited for the lock.
            EXIT WHEN held = to_regclass(format('%I.%I', schema, relation));
            held := to_regclass(format('%I.%I', schema, relation));
        END LOOP;
        CONTINUE WHEN held IS NOT NULL;
        PERFORM set_config('search_path', path, true);
        SELECT n.nspname INTO elsewhere
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.quote_ident(relation))::pg_catalog.oid
            AND c.relpersistence OPERATOR(pg_catalog.<>) 't';
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        IF elsewhere.nspname IS NOT NULL THEN
            RAISE undefined_table USING
                MESSAGE = format('relation "%s" does not exist in schema "%s"', relation, schema),
                DETAIL = format('There is one in schema "%s", which every shard would alter.', elsewhere.nspname);
        END IF;
    END LOOP;
END
$$;

-- Applies to a shard the migrations that it lacks, in their order, each entirely or not at all. It stops at one that fails, and
-- returns the error. It also stops at one that only a script can apply, unless the shard is `new`. Raises an error for an
-- author without the caller's rights.
CREATE OR REPLACE FUNCTION insta_ids_internal.apply_migrations(
        shard integer, path text, new boolean,
        OUT failed integer, OUT name text, OUT statement integer,
        OUT code text, OUT message text, OUT detail text, OUT hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    shard_path text := insta_ids_internal.path_of(schema, path);
    role CONSTANT text := current_setting('role');
    acting text;
    migration insta_ids_internal.migration;
    next record;
    applying xid;
    defaults bigint;
    unchecked record;
BEGIN
    -- The rows are locked, so that no session replaces a migration while it is applied.
    FOR migration IN
        SELECT * FROM insta_ids_internal.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
        ORDER BY m.number FOR SHARE OF m
    LOOP
        EXIT WHEN NOT (migration.transactional OR new);
        PERFORM insta_ids_internal.require_trusted_author(migration);
        statement := 1;
        BEGIN
            INSERT INTO insta_ids_internal.shard_migration (shard, migration) VALUES (apply_migrations.shard, migration.number)
            ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
            SET at = excluded.at, statement = NULL, sqlstate = NULL, message = NULL
            RETURNING xmin INTO applying;
            acting := role;
            defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass);
            FOR next IN
                SELECT s.number, coalesce(s.at_once, s.statement) AS statement, s.alters
                FROM insta_ids_internal.statements(migration.ddl) WITH ORDINALITY
                    s (statement, kind, at_once, schema, alters, makes, number)
                ORDER BY s.number
            LOOP
                statement := next.number;
                IF next.number = 1 OR cardinality(next.alters) > 0 THEN
                    PERFORM insta_ids_internal.require_own_path(schema, shard_path, next.alters);
                END IF;
                IF acting <> role THEN
                    PERFORM set_config('role', acting, true);
                END IF;
                -- Until search_path is set back, all names here must be qualified.
                PERFORM set_config('search_path', shard_path, true);
                EXECUTE next.statement;
                PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
                -- A role that the migration sets applies only to the migration's own statements.
                acting := current_setting('role');
                IF acting <> role THEN
                    PERFORM set_config('role', role, true);
                END IF;
            END LOOP;
            statement := NULL;
            -- A CHECK can be missing only for a new default. Without track_counts, PostgreSQL does not count new defaults.
            IF migration.check_ids AND (
                pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass) > defaults
                OR current_setting('track_counts') = 'off')
            THEN
                FOR unchecked IN
                    SELECT * FROM insta_ids_internal.minting_columns(ARRAY[shard], applying) m WHERE m."check" IS NULL
                LOOP
                    EXECUTE format('ALTER TABLE %s ADD CHECK (%s)', unchecked.relation, unchecked.expression);
                END LOOP;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            failed := migration.number;
            name := migration.name;
            RETURN;
        END;
    END LOOP;
END
$$;

-- Raises an error if shards lack a migration that creates a table, and Citus distributes their schemas. If a function creates a
-- table, Citus leaves it on this node: it distributes a table only if the client itself sends CREATE TABLE.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_distributed(shards integer[], hint text) RETURNS void
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
    JOIN insta_ids.migration_status a ON a.shard = s.shard AND a.state <> 'applied'
    JOIN made m ON m.number = a.number
    WHERE s.shard = ANY (shards) AND s.oid = ANY (distributed)
        AND to_regclass(format('%I.%I', s.schema, m.makes)) IS NULL
    ORDER BY s.shard, m.number LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
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
            SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
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

CREATE OR REPLACE PROCEDURE insta_ids.migrate(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50, lock_timeout text DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    outcome pg_catalog.record;
    first_failed integer;
    first_failure pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    -- The number of shards in the current batch.
    held integer := 0;
    budget_known boolean := false;
BEGIN
    -- The session's default isolation level may be stricter, and then the first transaction would not see new commits.
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.require_range(first, last, batch), set_config('lock_timeout', lock_timeout, true);
    todo := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    PERFORM insta_ids_internal.require_trusted_author(m)
    FROM insta_ids_internal.migration m
    WHERE m.number IN (SELECT s.number FROM insta_ids.migration_status s WHERE s.state <> 'applied' AND s.shard = ANY (todo))
    ORDER BY m.number;
    PERFORM insta_ids_internal.require_not_distributed(todo,
        'Create it first in each shard''s schema by CREATE TABLE IF NOT EXISTS, sent by the client itself.'::text);
    CALL insta_ids_internal.commit_batch('migrate', cardinality(todo), done, failed);

    FOREACH number IN ARRAY todo LOOP
        LOOP
            -- Shards that another session migrates, and shards that move or are fenced, are skipped.
            PERFORM FROM insta_ids_internal.shard s
            WHERE s.shard = number AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard)
            FOR NO KEY UPDATE SKIP LOCKED;
            -- The statement above may have begun before the shard was fenced.
            IF NOT FOUND OR EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = number) THEN
                busy := busy + 1;
                EXIT;
            END IF;
            PERFORM set_config('lock_timeout', CASE held WHEN 0 THEN lock_timeout ELSE '10ms' END, true);
            SELECT * INTO outcome FROM insta_ids_internal.apply_migrations(number, path, false);
            IF outcome.failed IS NULL THEN
                held := held + 1;
                EXIT;
            ELSIF outcome.code <> '55P03' OR held = 0 THEN
                failed := failed + 1;
                IF failed = 1 THEN
                    first_failed := number;
                    first_failure := outcome;
                END IF;
                held := held + 1;
                INSERT INTO insta_ids_internal.shard_migration
                VALUES (number, outcome.failed, clock_timestamp(), outcome.statement, outcome.code, outcome.message)
                ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
                SET at = excluded.at, statement = excluded.statement,
                    sqlstate = excluded.sqlstate, message = excluded.message;
                EXIT;
            END IF;
            -- The shard waits for its lock in a new batch, so that no session waits for the locks of this batch meanwhile.
            CALL insta_ids_internal.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END LOOP;
        done := done + 1;
        IF NOT budget_known AND held > 0 THEN
            PERFORM insta_ids_internal.require_locks(least(batch, cardinality(todo)));
            budget_known := true;
        END IF;
        IF held >= batch AND done < cardinality(todo) THEN
            CALL insta_ids_internal.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END IF;
    END LOOP;
    IF cardinality(todo) > 0 THEN
        CALL insta_ids_internal.commit_batch('migrate', cardinality(todo), done, failed);
    END IF;

    PERFORM insta_ids_internal.report_scripts(first, last);
    IF busy > 0 THEN
        RAISE NOTICE 'shards left to another session, or fenced: %', busy;
    END IF;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = first_failure.code,
            MESSAGE = format('%s of %s shards could not be migrated', failed, cardinality(todo)),
            DETAIL = format('The first is shard %s, at %s of migration "%s": %s', first_failed,
                coalesce('statement ' || first_failure.statement, 'the CHECKs'), first_failure.name,
                first_failure.message),
            HINT = 'The others are migrated. See insta_ids.migration_status, and call again to migrate the rest.';
    END IF;
    -- If a procedure called this one, its transaction goes on with the caller's search_path.
    PERFORM set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.migrate(integer, integer, integer, text) IS
    'applies to each shard of a range the migrations that it lacks';
