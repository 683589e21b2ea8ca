-- Migrations: DDL that is recorded once, and run in each shard.

-- In the order of their numbers.
CREATE TABLE insta_ids.migration (
    number integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ddl text NOT NULL,
    transactional boolean NOT NULL,
    check_ids boolean NOT NULL,
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.migration', '');

-- What was applied to which shard, and what failed there when it was tried last.
CREATE TABLE insta_ids.shard_migration (
    shard integer NOT NULL REFERENCES insta_ids.shard ON DELETE CASCADE,
    -- RESTRICT, for which a row of the same number is not the same migration.
    migration integer NOT NULL REFERENCES insta_ids.migration ON DELETE RESTRICT,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Of a failure.
    statement integer,
    sqlstate text,
    message text,
    PRIMARY KEY (shard, migration),
    CHECK (message IS NOT NULL OR statement IS NULL AND sqlstate IS NULL)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.shard_migration', '');

CREATE VIEW insta_ids.migration_status AS
SELECT m.number, m.name, s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema,
       CASE WHEN a.shard IS NULL THEN 'pending' WHEN a.message IS NULL THEN 'applied' ELSE 'failed' END AS state,
       a.at, a.statement, a.sqlstate, a.message
FROM insta_ids.shard s
CROSS JOIN insta_ids.migration m
LEFT JOIN insta_ids.shard_migration a ON a.shard = s.shard AND a.migration = m.number;

CREATE FUNCTION insta_ids.keep_migration() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = 'migrations cannot be updated',
        HINT = 'Call insta_ids.add_migration(), which replaces one that was applied nowhere.';
END
$$;
CREATE TRIGGER keep BEFORE UPDATE ON insta_ids.migration
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.keep_migration();

CREATE FUNCTION insta_ids.statements(ddl text)
    RETURNS TABLE (statement text, transaction_control boolean, concurrent boolean, at_once text, schema text)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'statements_wrapper';
CREATE FUNCTION insta_ids.start_migration() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'start_migration_wrapper';
CREATE FUNCTION insta_ids.migration_failed() RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'migration_failed_wrapper';

CREATE FUNCTION insta_ids.add_migration(
        name text, ddl text, transactional boolean DEFAULT true, check_ids boolean DEFAULT true)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    most CONSTANT integer := 1000000;
    old insta_ids.migration;
    facts record;
    applied record;
BEGIN
    IF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'name of a migration is empty or too long',
            DETAIL = format('It has %s bytes, and can have 1 to 255.', octet_length(name));
    ELSIF octet_length(ddl) > most THEN
        RAISE EXCEPTION USING
            ERRCODE = 'program_limit_exceeded',
            MESSAGE = format('migration "%s" is too long', name),
            DETAIL = format('It has %s bytes, and can have %s.', octet_length(ddl), most),
            HINT = 'Add it as several.';
    END IF;

    SELECT count(*) AS statements,
           min(s.number) FILTER (WHERE s.transaction_control) AS transaction_control,
           min(s.number) FILTER (WHERE s.concurrent) AS concurrent
    INTO facts
    FROM insta_ids.statements(ddl) WITH ORDINALITY s (statement, transaction_control, concurrent, at_once, schema, number);
    IF facts.statements = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('migration "%s" has no statement', name);
    ELSIF facts.transaction_control IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('statement %s of migration "%s" begins or ends a transaction', facts.transaction_control, name),
            HINT = 'Leave it out: a migration is applied to a shard entirely or not at all.';
    ELSIF transactional AND facts.concurrent IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('statement %s of migration "%s" cannot run in a transaction', facts.concurrent, name),
            HINT = 'Leave out CONCURRENTLY, or add the statement by itself with transactional => false.';
    ELSIF NOT transactional AND (facts.statements > 1 OR facts.concurrent IS NULL) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('migration "%s" can run in a transaction', name),
            DETAIL = 'With transactional => false, a migration is one statement with CONCURRENTLY.';
    END IF;

    -- What a statement makes or alters in a schema of its own, and any mention of a shard's.
    SELECT s.number, coalesce(s.schema, m.schema) AS schema INTO facts
    FROM insta_ids.statements(ddl) WITH ORDINALITY s (statement, transaction_control, concurrent, at_once, schema, number)
    LEFT JOIN LATERAL (
        SELECT r[1] AS schema
        FROM regexp_matches(
            s.statement,
            format('(?<![\w$])(%s(0|[1-9][0-9]{0,8}))"?\s*\.',
                regexp_replace(replace(config.prefix, '"', '""'), '(\W)', '\\\1', 'g')),
            'gi') r
        WHERE r[2]::integer < config.shards
    ) m ON true
    WHERE coalesce(s.schema, m.schema) IS NOT NULL
    ORDER BY s.number LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('statement %s of migration "%s" names schema "%s"', facts.number, name, facts.schema),
            DETAIL = 'It would be run again for each shard.',
            HINT = 'Leave the schema out: each shard''s comes first in search_path when its turn comes.';
    END IF;

    LOCK TABLE insta_ids.migration IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO old FROM insta_ids.migration m WHERE m.name = add_migration.name;
    IF FOUND THEN
        IF (old.ddl, old.transactional, old.check_ids) = (ddl, transactional, check_ids) THEN
            RETURN;
        END IF;
        -- Waits for who is applying it.
        PERFORM FROM insta_ids.migration m WHERE m.number = old.number FOR UPDATE;
        SELECT count(*) AS shards, min(s.shard) AS first INTO applied
        FROM insta_ids.shard_migration s WHERE s.migration = old.number AND s.message IS NULL;
        IF applied.shards > 0 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('migration "%s" is already applied', name),
                DETAIL = format('Shards that have it: %s. The first is shard %s.', applied.shards, applied.first),
                HINT = 'Add another one that changes what this one made.';
        END IF;
        DELETE FROM insta_ids.shard_migration s WHERE s.migration = old.number;
        DELETE FROM insta_ids.migration m WHERE m.number = old.number;
    END IF;
    INSERT INTO insta_ids.migration
    SELECT coalesce(old.number, max(m.number) + 1, 1), add_migration.name, add_migration.ddl,
           add_migration.transactional, add_migration.check_ids
    FROM insta_ids.migration m;
END
$$;

-- Columns of a shard whose default calls next_id, itself or through a wrapper, and which no CHECK keeps to the shard;
-- of those, the ones that were given it by this transaction or a later one.
CREATE FUNCTION insta_ids.unchecked_columns(shard integer, since xid)
    RETURNS TABLE (relation regclass, "column" name, expression text)
    -- Planning it takes ten times as long as running it.
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    layout @extschema@.id_layout := (insta_ids.configured()).layout;
    schema regnamespace := quote_ident(insta_ids.schema_of(shard));
    minting CONSTANT regprocedure[] := ARRAY[
        '@extschema@.next_id(integer, regclass)'::regprocedure,
        '@extschema@.next_id(integer, regclass, @extschema@.id_layout)'::regprocedure];
BEGIN
    RETURN QUERY
    WITH unchecked AS (
        SELECT c.oid AS relation, a.attname, e.expression
        FROM pg_depend m
        JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'p', 'f')
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        -- Aggregates, as the planner cannot begin with them: while shards are made, it knows nothing of how many
        -- columns there are.
        CROSS JOIN LATERAL (
            SELECT bool_or(f.refobjid = ANY (minting) OR w.refobjid = ANY (minting)) AS mints
            FROM pg_depend f
            LEFT JOIN pg_depend w ON w.classid = f.refclassid AND w.objid = f.refobjid AND w.refclassid = f.refclassid
            WHERE f.classid = 'pg_attrdef'::regclass AND f.objid = d.oid AND f.refclassid = 'pg_proc'::regclass
        ) f
        CROSS JOIN LATERAL format('(@extschema@.id_shard(%I%s) = %s)', a.attname,
            CASE WHEN layout OPERATOR(@extschema@.<>) 'instagram' THEN format(', %L::@extschema@.id_layout', layout) END,
            shard) e (expression)
        CROSS JOIN LATERAL (
            SELECT count(*) AS checks FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'c' AND pg_get_expr(k.conbin, k.conrelid) = e.expression
        ) k
        WHERE m.refclassid = 'pg_namespace'::regclass AND m.refobjid = schema AND m.classid = 'pg_class'::regclass
            AND age(d.xmin) <= age(since) AND f.mints AND k.checks = 0
    )
    SELECT u.relation::regclass, u.attname, u.expression
    FROM unchecked u
    -- Where a parent lacks it, too, it comes from there.
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits h JOIN unchecked p ON p.relation = h.inhparent AND p.attname = u.attname
        WHERE h.inhrelid = u.relation);
END
$$;

-- Applies to a shard what it lacks, in order, each migration entirely or not at all, until one fails. To a new shard,
-- where there is nobody to wait for, also what says CONCURRENTLY.
CREATE FUNCTION insta_ids.apply_migrations(
        shard integer, path text, new boolean,
        OUT failed integer, OUT name text, OUT statement integer,
        OUT code text, OUT message text, OUT detail text, OUT hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    shard_path text := concat_ws(', ', quote_ident(schema), '@extschema@', nullif(path, ''));
    migration insta_ids.migration;
    statements text[];
    applying xid;
    defaults bigint;
    unchecked record;
BEGIN
    FOR migration IN
        SELECT * FROM insta_ids.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
        ORDER BY m.number
    LOOP
        EXIT WHEN NOT (migration.transactional OR new);
        statements := ARRAY(SELECT coalesce(s.at_once, s.statement) FROM insta_ids.statements(migration.ddl) s);
        BEGIN
            INSERT INTO insta_ids.shard_migration (shard, migration) VALUES (apply_migrations.shard, migration.number)
            ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
            SET at = excluded.at, statement = NULL, sqlstate = NULL, message = NULL
            RETURNING xmin INTO applying;
            defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass);
            FOR number IN 1 .. cardinality(statements) LOOP
                statement := number;
                -- Again for each, as it may have been set by the one before. Between here and the next such line no
                -- operator may be used that is not qualified.
                PERFORM set_config('search_path', shard_path, true);
                -- A schema that is not there, or may not be used, would be passed over for the next.
                IF pg_catalog.to_regnamespace(pg_catalog.quote_ident(schema)) IS NULL THEN
                    RAISE invalid_schema_name USING MESSAGE = pg_catalog.format('schema "%s" does not exist', schema);
                ELSIF pg_catalog.current_schema() OPERATOR(pg_catalog.<>) schema THEN
                    RAISE insufficient_privilege
                        USING MESSAGE = pg_catalog.format('permission denied for schema %s', schema);
                END IF;
                EXECUTE statements[number];
            END LOOP;
            PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
            statement := NULL;
            -- Where no default was made, there is no new one to look for.
            IF migration.check_ids AND (
                pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass) > defaults
                OR current_setting('track_counts') = 'off')
            THEN
                FOR unchecked IN SELECT * FROM insta_ids.unchecked_columns(shard, applying) LOOP
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

CREATE PROCEDURE insta_ids.migrate(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50, lock_timeout text DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    outcome record;
    first_failed integer;
    first_failure record;
    waiting record;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    -- Shards of the batch so far.
    held integer := 0;
    budget_known boolean := false;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM insta_ids.check_range(first, last, batch), set_config('lock_timeout', lock_timeout, true);
    todo := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);

    FOREACH number IN ARRAY todo LOOP
        LOOP
            -- What another session migrates is left to it.
            PERFORM FROM insta_ids.shard s WHERE s.shard = number FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                busy := busy + 1;
                EXIT;
            END IF;
            PERFORM set_config('lock_timeout', CASE held WHEN 0 THEN lock_timeout ELSE '10ms' END, true);
            SELECT * INTO outcome FROM insta_ids.apply_migrations(number, path, false);
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
                INSERT INTO insta_ids.shard_migration
                VALUES (number, outcome.failed, clock_timestamp(), outcome.statement, outcome.code, outcome.message)
                ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
                SET at = excluded.at, statement = excluded.statement,
                    sqlstate = excluded.sqlstate, message = excluded.message;
                EXIT;
            END IF;
            -- It waits for a lock by itself: those who use the shards of this batch do not wait with it.
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END LOOP;
        done := done + 1;
        IF NOT budget_known AND held > 0 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
            budget_known := true;
        END IF;
        IF held >= batch AND done < cardinality(todo) THEN
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END IF;
    END LOOP;
    IF cardinality(todo) > 0 THEN
        CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
    END IF;

    FOR waiting IN
        SELECT m.name, count(*) AS shards
        FROM (
            SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
            WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
            GROUP BY s.shard
        ) next
        JOIN insta_ids.migration m ON m.number = next.number AND NOT m.transactional
        GROUP BY m.name
    LOOP
        RAISE NOTICE USING
            MESSAGE = format('migration "%s" waits, as it cannot run in a transaction', waiting.name),
            DETAIL = format('Shards for which it is next: %s.', waiting.shards),
            HINT = format('In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec', waiting.name);
    END LOOP;
    IF busy > 0 THEN
        RAISE NOTICE 'shards left to another session: %', busy;
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
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE FUNCTION insta_ids.migration_script(name text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    migration insta_ids.migration;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    migration := insta_ids.migration_by_script(name);
    RETURN QUERY
    SELECT line
    FROM (
        SELECT s.shard, s.schema, min(s.number) AS number FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' GROUP BY s.shard, s.schema
    ) next
    CROSS JOIN LATERAL unnest(ARRAY[
        format('SELECT insta_ids.start_migration(), pg_catalog.set_config(''search_path'', %L, false)',
            concat_ws(', ', quote_ident(next.schema), '@extschema@', nullif(path, ''))),
        (SELECT t.statement FROM insta_ids.statements(migration.ddl) t),
        format('SELECT insta_ids.finish_migration(%L, %s), pg_catalog.set_config(''search_path'', %L, false)',
            name, next.shard, path)]) WITH ORDINALITY lines (line, place)
    WHERE next.number = migration.number
    ORDER BY next.shard, lines.place;
    PERFORM set_config('search_path', path, true);
END
$$;

-- The migration of this name, which must be one that cannot run in a transaction.
CREATE FUNCTION insta_ids.migration_by_script(name text) RETURNS insta_ids.migration
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids.migration;
BEGIN
    SELECT * INTO migration FROM insta_ids.migration m WHERE m.name = migration_by_script.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('migration "%s" does not exist', left(name, 255));
    ELSIF migration.transactional THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" runs in transactions', name),
            HINT = 'CALL insta_ids.migrate() applies it.';
    END IF;
    RETURN migration;
END
$$;

CREATE FUNCTION insta_ids.finish_migration(name text, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids.migration := insta_ids.migration_by_script(name);
    failed boolean := insta_ids.migration_failed();
BEGIN
    IF failed IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'insta_ids.start_migration() was not called in this session';
    END IF;
    PERFORM FROM insta_ids.shard s WHERE s.shard = finish_migration.shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    END IF;
    INSERT INTO insta_ids.shard_migration AS a (shard, migration, message)
    VALUES (finish_migration.shard, migration.number,
        CASE WHEN failed THEN 'It failed in the session that ran its script, where the error was shown.' END)
    ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
    SET at = excluded.at, statement = NULL, sqlstate = NULL, message = excluded.message
    -- Another session was first.
    WHERE a.message IS NOT NULL;
    IF failed THEN
        -- No error: the next shard's turn comes in the same session.
        RAISE WARNING USING
            MESSAGE = format('migration "%s" failed in shard %s', name, shard),
            HINT = 'Drop the index that may be left invalid, then run the script again for what is missing.';
    END IF;
END
$$;
