-- Migrations: DDL that is recorded once, and run in each shard.
SET LOCAL search_path = pg_catalog, pg_temp;

-- In the order of their numbers.
CREATE TABLE insta_ids_internal.migration (
    number integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ddl text NOT NULL,
    transactional boolean NOT NULL,
    check_ids boolean NOT NULL,
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- A name, which is the same role in another server that a dump is restored to.
    added_by name NOT NULL DEFAULT current_user
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.migration', '');

-- What was applied to which shard, and what failed there when it was tried last. Without foreign keys, as a restore by
-- several jobs loads the tables in any order.
CREATE TABLE insta_ids_internal.shard_migration (
    shard integer NOT NULL,
    migration integer NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Of a failure.
    statement integer,
    sqlstate text,
    message text,
    PRIMARY KEY (shard, migration),
    CHECK (message IS NOT NULL OR statement IS NULL AND sqlstate IS NULL)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.shard_migration', '');
-- A failure is also noted of shards of others.
CREATE TRIGGER require_owner BEFORE INSERT ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (NEW.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
CREATE TRIGGER require_owner_before BEFORE UPDATE OR DELETE ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (OLD.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
CREATE TRIGGER require_owner_after BEFORE UPDATE ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (NEW.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner;
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner_before;
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner_after;

CREATE VIEW insta_ids.migration_status AS
SELECT m.number, m.name, s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema,
       CASE WHEN a.shard IS NULL THEN 'pending' WHEN a.message IS NULL THEN 'applied' ELSE 'failed' END AS state,
       a.at, a.statement, a.sqlstate, a.message
FROM insta_ids_internal.shard s
CROSS JOIN insta_ids_internal.migration m
LEFT JOIN insta_ids_internal.shard_migration a ON a.shard = s.shard AND a.migration = m.number;

CREATE FUNCTION insta_ids.keep_migration() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    applied record;
BEGIN
    -- Taken over by another role, it is what it was.
    IF to_jsonb(NEW) - '{added_at,added_by}'::text[] = to_jsonb(OLD) - '{added_at,added_by}'::text[] THEN
        RETURN NEW;
    END IF;
    PERFORM insta_ids.check_isolation('a migration cannot be replaced');
    SELECT count(*) AS shards, min(s.shard) AS first INTO applied
    FROM insta_ids_internal.shard_migration s WHERE s.migration = OLD.number AND s.message IS NULL;
    IF applied.shards > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" is already applied', OLD.name),
            DETAIL = format('Shards that have it: %s. The first is shard %s.', applied.shards, applied.first),
            HINT = 'Add another one that changes what this one made.';
    END IF;
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.migration = OLD.number;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON insta_ids_internal.migration
    FOR EACH ROW EXECUTE FUNCTION insta_ids.keep_migration();

-- Makes who writes a migration its author, and lets nobody write one of a role that the writer cannot act as. The rights
-- that a migration runs with depend on it.
CREATE FUNCTION insta_ids_internal.require_author() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = OLD.added_by AND NOT pg_has_role(r.oid, 'USAGE')) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('migration "%s" was added by role "%s"', OLD.name, OLD.added_by),
            DETAIL = 'Only roles that have the rights of that role can replace it, take it over or remove it.';
    -- A superuser restores what others added.
    ELSIF TG_OP <> 'DELETE' AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        NEW.added_by := current_user;
        NEW.number := CASE TG_OP WHEN 'UPDATE' THEN OLD.number ELSE (
            SELECT coalesce(max(m.number), 0) + 1 FROM insta_ids_internal.migration m) END;
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER require_author BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.migration
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_author();
ALTER TABLE insta_ids_internal.migration ENABLE ALWAYS TRIGGER require_author;

-- Whether a migration that this role added may run with the caller's rights: if the role has them all anyway. Statements can
-- go back from the role that a session has set to the one that it began with, so that one counts, too, if it is a superuser.
CREATE FUNCTION insta_ids_internal.is_trusted(author name) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_roles r
        WHERE r.rolname = author AND NOT EXISTS (
            SELECT FROM pg_roles c
            WHERE c.rolname = current_user AND NOT pg_has_role(r.oid, c.oid, 'USAGE')
                OR c.rolname IN (current_user, session_user) AND c.rolsuper AND NOT r.rolsuper));
END
$$;

CREATE FUNCTION insta_ids_internal.check_author(migration insta_ids_internal.migration) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.is_trusted(migration.added_by) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('migration "%s" was added by role "%s"', migration.name, migration.added_by),
            DETAIL = 'Its statements would run with your rights.',
            HINT = format('Read it in insta_ids_internal.migration. Then add it with the same text as a superuser: SELECT insta_ids.add_migration(%L, ...).',
                migration.name);
    END IF;
END
$$;

-- `kind` is ordinary, transaction control, session setting or concurrent; `at_once` is a concurrent statement as it can
-- run in a transaction, where nobody else is; `schema` one that it names for what it makes or alters; `alters` has the
-- relations, named without a schema, that it alters; `makes` is a table that it makes, if that is neither a partition nor
-- temporary.
CREATE FUNCTION insta_ids.statements(ddl text)
    RETURNS TABLE (statement text, kind text, at_once text, schema text, alters text[], makes text)
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'statements_wrapper';
CREATE FUNCTION insta_ids.note_transactions(failed boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'note_transactions_wrapper';
CREATE FUNCTION insta_ids.transactions_committed() RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'transactions_committed_wrapper';

CREATE FUNCTION insta_ids.add_migration(
        name text, ddl text, transactional boolean DEFAULT true, check_ids boolean DEFAULT true)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    most CONSTANT integer := 1000000;
    -- A shard's schema before a dot, wherever it stands.
    shard_schema text := format($re$(?<![\w$])(%s(0|[1-9][0-9]{0,8}))"?\s*\.$re$,
        regexp_replace(replace(config.prefix, '"', '""'), $re$(\W)$re$, $re$\\\1$re$, 'g'));
    next record;
    statements integer := 0;
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

    FOR next IN
        SELECT s.kind, coalesce(s.schema, m.schema) AS schema
        FROM insta_ids.statements(ddl) s
        LEFT JOIN LATERAL (
            SELECT replace(r[1], '""', '"') AS schema
            FROM regexp_matches(s.statement, shard_schema, 'gi') r
            WHERE r[2]::integer < config.shards LIMIT 1
        ) m ON true
    LOOP
        statements := statements + 1;
        IF next.kind = 'transaction control' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" begins or ends a transaction', statements, name),
                HINT = 'Leave it out: a migration is applied to a shard entirely or not at all.';
        ELSIF next.kind = 'session setting' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" sets something for the session', statements, name),
                HINT = 'Use SET LOCAL, or leave it out: search_path is set for each statement.';
        ELSIF next.kind = 'concurrent' AND transactional THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" cannot run in a transaction', statements, name),
                HINT = 'Leave out CONCURRENTLY, or add the statement by itself with transactional => false.';
        ELSIF NOT transactional AND (next.kind <> 'concurrent' OR statements > 1) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('migration "%s" can run in a transaction', name),
                DETAIL = 'With transactional => false, a migration is one statement with CONCURRENTLY.';
        ELSIF next.schema IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" names schema "%s"', statements, name, next.schema),
                DETAIL = 'It would be run again for each shard.',
                HINT = 'Leave the schema out: search_path begins with the shard''s.';
        END IF;
    END LOOP;
    IF statements = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('migration "%s" has no statement', name);
    END IF;

    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.name = add_migration.name) THEN
        INSERT INTO insta_ids_internal.migration
        SELECT coalesce(max(m.number) + 1, 1), add_migration.name, add_migration.ddl,
               add_migration.transactional, add_migration.check_ids
        FROM insta_ids_internal.migration m;
    ELSE
        UPDATE insta_ids_internal.migration m
        SET ddl = add_migration.ddl, transactional = add_migration.transactional,
            check_ids = add_migration.check_ids, added_at = now(), added_by = current_user
        WHERE m.name = add_migration.name
            AND ((m.ddl, m.transactional, m.check_ids)
                    <> (add_migration.ddl, add_migration.transactional, add_migration.check_ids)
                OR NOT insta_ids_internal.is_trusted(m.added_by));
    END IF;
END
$$;

-- Columns of shards whose default calls next_id, itself or through other functions, with the CHECK that keeps them to the
-- shard, if there is one: all, or those that this transaction gave that default, not before its (sub)transaction
-- `since`. What an heir has from a parent that is among them is left out.
CREATE FUNCTION insta_ids.minting_columns(shards integer[], since xid DEFAULT NULL)
    RETURNS TABLE (shard integer, relation regclass, "column" name, expression text, "check" name)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Planning takes longer than running, so it is kept short: joined as it is written, once for all shards.
    SET join_collapse_limit = 1 SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
    layout_argument CONSTANT text := insta_ids.layout_argument(config.layout);
    minting CONSTANT oid[] := insta_ids.id_functions();
    extension_schema CONSTANT text := insta_ids_internal.extension_schema();
BEGIN
    RETURN QUERY
    WITH minting_columns AS (
        SELECT s.shard, c.oid AS relation, a.attname, e.expression, k.conname
        FROM unnest(shards) s (shard)
        JOIN pg_namespace n ON n.nspname = (config.prefix || s.shard::text)::name
        JOIN pg_depend m
            ON m.refclassid = 'pg_namespace'::regclass AND m.refobjid = n.oid AND m.classid = 'pg_class'::regclass
        JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'p', 'f')
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        -- Aggregates, as the planner cannot begin with them: while shards are made, it knows nothing of how many
        -- columns there are.
        CROSS JOIN LATERAL (
            WITH RECURSIVE used AS (
                SELECT 'pg_attrdef'::regclass::oid AS classid, d.oid AS objid
                UNION
                SELECT f.refclassid, f.refobjid FROM used u
                JOIN pg_depend f ON f.classid = u.classid AND f.objid = u.objid AND f.refclassid = 'pg_proc'::regclass
            )
            SELECT bool_or(u.classid = 'pg_proc'::regclass AND u.objid = ANY (minting)) AS mints FROM used u
        ) f
        CROSS JOIN LATERAL format('(%s.id_shard(%s%s) = %s)', extension_schema,
            format(CASE t.typtype WHEN 'd' THEN '(%I)::bigint' ELSE '%I' END, a.attname), layout_argument, s.shard)
            e (expression)
        CROSS JOIN LATERAL (
            SELECT min(k.conname)::name AS conname FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'c' AND pg_get_expr(k.conbin, k.conrelid) = e.expression
        ) k
        -- The row is of this transaction if that is in progress and it can be seen nevertheless.
        WHERE CASE
                WHEN since IS NULL THEN true
                WHEN age(d.xmin) <= age(since)
                THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(d.xmin))::text::xid8) = 'in progress'
                ELSE false
            END
            AND f.mints
    )
    SELECT m.shard, m.relation::regclass, m.attname, m.expression, m.conname
    FROM minting_columns m
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits h JOIN minting_columns p ON p.relation = h.inhparent AND p.attname = m.attname
        WHERE h.inhrelid = m.relation);
END
$$;

-- The search_path of a migration in a shard: the shard's schema, the extension's if nobody else may create functions in it
-- that could be taken for its own, and the caller's.
CREATE FUNCTION insta_ids.path_of(schema name, path text) RETURNS text
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

-- Locks a relation until the transaction ends, in the weakest mode that keeps others from renaming it, from moving it to
-- another schema and from dropping it.
CREATE FUNCTION insta_ids_internal.hold_name(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_name_wrapper';

-- Refuses to run in a shard what would run elsewhere: where its schema cannot be used, so that search_path passes it
-- over; or where it lacks a relation that the path has further down. The relations that are there keep their names until
-- the transaction ends.
CREATE FUNCTION insta_ids.check_path(schema name, path text, alters text[]) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation text;
    held oid;
    elsewhere record;
BEGIN
    IF NOT has_schema_privilege(schema, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for schema %s', schema);
    END IF;
    FOREACH relation IN ARRAY alters LOOP
        held := to_regclass(format('%I.%I', schema, relation));
        WHILE held IS NOT NULL LOOP
            PERFORM insta_ids_internal.hold_name(held);
            -- Another session may have renamed it while this one waited for the lock.
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
    shard_path text := insta_ids.path_of(schema, path);
    role CONSTANT text := current_setting('role');
    acting text;
    migration insta_ids_internal.migration;
    next record;
    applying xid;
    defaults bigint;
    unchecked record;
BEGIN
    -- Locked, so that what is applied is what is recorded: nobody replaces it meanwhile.
    FOR migration IN
        SELECT * FROM insta_ids_internal.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
        ORDER BY m.number FOR SHARE OF m
    LOOP
        EXIT WHEN NOT (migration.transactional OR new);
        PERFORM insta_ids_internal.check_author(migration);
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
                FROM insta_ids.statements(migration.ddl) WITH ORDINALITY
                    s (statement, kind, at_once, schema, alters, makes, number)
                ORDER BY s.number
            LOOP
                statement := next.number;
                IF next.number = 1 OR cardinality(next.alters) > 0 THEN
                    PERFORM insta_ids.check_path(schema, shard_path, next.alters);
                END IF;
                IF acting <> role THEN
                    PERFORM set_config('role', acting, true);
                END IF;
                -- From here on to the next such line, nothing may be called that is not qualified.
                PERFORM set_config('search_path', shard_path, true);
                EXECUTE next.statement;
                PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
                -- A role that it took on is for its own statements.
                acting := current_setting('role');
                IF acting <> role THEN
                    PERFORM set_config('role', role, true);
                END IF;
            END LOOP;
            statement := NULL;
            -- Where no default was made, there is no new one to look for.
            IF migration.check_ids AND (
                pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass) > defaults
                OR current_setting('track_counts') = 'off')
            THEN
                FOR unchecked IN
                    SELECT * FROM insta_ids.minting_columns(ARRAY[shard], applying) m WHERE m."check" IS NULL
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

-- Refuses shards whose schemas Citus distributes, if a migration that they lack makes a table. Citus distributes a table
-- when the client itself sends CREATE TABLE, and leaves on this node what a function creates.
CREATE FUNCTION insta_ids_internal.check_distributed(shards integer[], hint text) RETURNS void
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
        FROM insta_ids_internal.migration m CROSS JOIN LATERAL insta_ids.statements(m.ddl) s
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

CREATE PROCEDURE insta_ids.migrate(
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
    waiting pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    -- Shards of the batch so far.
    held integer := 0;
    budget_known boolean := false;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    PERFORM insta_ids.check_range(first, last, batch), set_config('lock_timeout', lock_timeout, true);
    todo := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    PERFORM insta_ids_internal.check_author(m)
    FROM insta_ids_internal.migration m
    WHERE m.number IN (SELECT s.number FROM insta_ids.migration_status s WHERE s.state <> 'applied' AND s.shard = ANY (todo))
    ORDER BY m.number;
    PERFORM insta_ids_internal.check_distributed(todo,
        'Create it first in each shard''s schema by CREATE TABLE IF NOT EXISTS, sent by the client itself.'::text);
    CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);

    FOREACH number IN ARRAY todo LOOP
        LOOP
            -- What another session migrates is left to it, and what moves or is fenced to who opens it.
            PERFORM FROM insta_ids_internal.shard s
            WHERE s.shard = number AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard)
            FOR NO KEY UPDATE SKIP LOCKED;
            -- The statement above may have begun before the shard was fenced.
            IF NOT FOUND OR EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = number) THEN
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
                INSERT INTO insta_ids_internal.shard_migration
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
        JOIN insta_ids_internal.migration m ON m.number = next.number AND NOT m.transactional
        GROUP BY m.name
    LOOP
        RAISE NOTICE USING
            MESSAGE = format('migration "%s" waits, as it cannot run in a transaction', waiting.name),
            DETAIL = format('Shards for which it is next: %s.', waiting.shards),
            HINT = format($hint$In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec$hint$, waiting.name);
    END LOOP;
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
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE FUNCTION insta_ids.migration_script(name text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    migration insta_ids_internal.migration;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    migration := insta_ids.migration_by_script(name);
    PERFORM insta_ids_internal.check_author(migration);
    RETURN QUERY
    SELECT line
    FROM (
        SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' GROUP BY s.shard
    ) next
    CROSS JOIN LATERAL unnest(ARRAY[
        format('SELECT insta_ids.start_migration(%L, %s, %L)', name, next.shard, path),
        (SELECT t.statement FROM insta_ids.statements(migration.ddl) t),
        format('SELECT insta_ids.finish_migration(%L, %s, %L), pg_catalog.set_config(''search_path'', %L, false)',
            name, next.shard, md5(migration.ddl), path)]) WITH ORDINALITY lines (line, place)
    WHERE next.number = migration.number
    ORDER BY next.shard, lines.place;
    PERFORM set_config('search_path', path, true);
END
$$;

-- The migration of this name, which must be one that cannot run in a transaction.
CREATE FUNCTION insta_ids.migration_by_script(name text) RETURNS insta_ids_internal.migration
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
BEGIN
    SELECT * INTO migration FROM insta_ids_internal.migration m WHERE m.name = migration_by_script.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('migration "%s" does not exist', left(name, 255));
    ELSIF migration.transactional THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" runs in transactions', name),
            HINT = 'Apply it: CALL insta_ids.migrate().';
    END IF;
    RETURN migration;
END
$$;

CREATE FUNCTION insta_ids.start_migration(name text, shard integer, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
    schema name;
    shard_path text;
    alters text[];
BEGIN
    PERFORM insta_ids.note_transactions(false);
    BEGIN
        migration := insta_ids.migration_by_script(name);
        PERFORM insta_ids_internal.check_author(migration);
        schema := insta_ids.schema_of(shard);
        shard_path := insta_ids.path_of(schema, path);
        SELECT s.alters INTO alters FROM insta_ids.statements(migration.ddl) s;
        PERFORM insta_ids.check_path(schema, shard_path, alters);
        PERFORM set_config('search_path', shard_path, false);
    EXCEPTION WHEN OTHERS THEN
        -- No error, as the statement runs after it all the same: now where it finds nothing.
        RAISE WARNING USING MESSAGE = SQLERRM;
        PERFORM set_config('search_path', 'pg_catalog', false), insta_ids.note_transactions(true);
    END;
END
$$;

CREATE FUNCTION insta_ids.finish_migration(name text, shard integer, ddl_md5 text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration := insta_ids.migration_by_script(name);
    committed boolean := insta_ids.transactions_committed();
    invalid text;
    failure text;
BEGIN
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = finish_migration.shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    ELSIF committed IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'insta_ids.start_migration() was not called in this session';
    END IF;
    -- What is applied is what is recorded, and no other session replaces it now.
    SELECT * INTO migration FROM insta_ids_internal.migration m WHERE m.number = migration.number FOR SHARE;
    SELECT i.indexrelid::regclass INTO invalid
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE NOT i.indisvalid AND c.relnamespace = to_regnamespace(quote_ident(insta_ids.schema_of(shard)))
    LIMIT 1;
    failure := CASE
        WHEN NOT committed THEN 'it failed, or did not run, in the session of its script'
        WHEN md5(migration.ddl) IS DISTINCT FROM ddl_md5 THEN 'it was replaced after its script was made'
        WHEN invalid IS NOT NULL THEN format('index %s is invalid', invalid)
    END;
    INSERT INTO insta_ids_internal.shard_migration AS a (shard, migration, message)
    VALUES (finish_migration.shard, migration.number, failure)
    ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
    SET at = excluded.at, statement = NULL, sqlstate = NULL, message = excluded.message
    -- Another session was first.
    WHERE a.message IS NOT NULL;
    IF failure IS NOT NULL THEN
        -- No error: the next shard's turn comes in the same session.
        RAISE WARNING USING
            MESSAGE = format('migration "%s" failed in shard %s', name, shard),
            DETAIL = upper(left(failure, 1)) || substr(failure, 2) || '.',
            HINT = 'Drop an index that was left invalid, then run the script again for what is missing.';
    END IF;
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
