-- Setting up

-- Refuses a transaction whose snapshot is older than the locks it takes: it does not see what others wrote before.
CREATE FUNCTION insta_ids.check_isolation(what text) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'active_sql_transaction',
            MESSAGE = format('%s in a transaction that is %s', what, current_setting('transaction_isolation')),
            HINT = 'Begin it with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;

-- The functions that all ids come from.
CREATE FUNCTION insta_ids.id_functions() RETURNS oid[]
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY[
        '@extschema@.next_id(integer, regclass)'::regprocedure,
        '@extschema@.next_id(integer, regclass, @extschema@.id_layout)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer, @extschema@.id_layout)'::regprocedure];
END
$$;

-- The last argument of next_id, where it is not the default.
CREATE FUNCTION insta_ids.layout_argument(layout @extschema@.id_layout) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN layout OPERATOR(@extschema@.=) 'instagram' THEN ''
        ELSE pg_catalog.format(', %L::@extschema@.id_layout', layout) END;

CREATE OR REPLACE FUNCTION insta_ids.init(
        shards integer, prefix name DEFAULT 'insta', layout @extschema@.id_layout DEFAULT 'instagram')
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
    -- An id of ones has the last shard.
    last integer := @extschema@.id_shard((-1)::bigint, layout);
    longest integer := current_setting('max_identifier_length');
    taken record;
BEGIN
    IF shards < 1 OR shards - 1 > last THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = format('number of shards %s is out of range', shards),
            DETAIL = format('Ids of the layout "%s" have 1 to %s.', layout, last::bigint + 1);
    ELSIF prefix = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'prefix of schemas is empty';
    ELSIF starts_with(prefix, 'pg_') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'reserved_name',
            MESSAGE = format('prefix "%s" is reserved', prefix),
            DETAIL = 'Schemas whose names begin with "pg_" are PostgreSQL''s own.';
    ELSIF octet_length(prefix || (shards - 1)::text) > longest THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('prefix "%s" is too long', prefix),
            DETAIL = format('With the number of the last shard it has %s bytes, and a schema''s name can have %s.',
                octet_length(prefix || (shards - 1)::text), longest);
    END IF;

    INSERT INTO insta_ids.config VALUES (shards, prefix, layout);
    SELECT count(*) AS schemas, min(n.nspname) AS one INTO taken
    FROM generate_series(0, shards - 1) s JOIN pg_namespace n ON n.nspname = (prefix || s::text)::name;
    IF taken.schemas > 0 THEN
        RAISE NOTICE USING
            MESSAGE = 'some schemas are already called like shards',
            DETAIL = format('There are %s, "%s" for one.', taken.schemas, taken.one),
            HINT = 'Call insta_ids.adopt() for those that run the published function.';
    END IF;
EXCEPTION
    WHEN unique_violation THEN
        SELECT * INTO config FROM insta_ids.configured();
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards are already set up',
            DETAIL = format('There are %s, with the prefix "%s" and the layout "%s".',
                config.shards, config.prefix, config.layout);
END
$$;

-- Migrations

CREATE OR REPLACE FUNCTION insta_ids.keep_migration() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    applied record;
BEGIN
    PERFORM insta_ids.check_isolation('a migration cannot be replaced');
    SELECT count(*) AS shards, min(s.shard) AS first INTO applied
    FROM insta_ids.shard_migration s WHERE s.migration = OLD.number AND s.message IS NULL;
    IF applied.shards > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" is already applied', OLD.name),
            DETAIL = format('Shards that have it: %s. The first is shard %s.', applied.shards, applied.first),
            HINT = 'Add another one that changes what this one made.';
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.migration = OLD.number;
    RETURN coalesce(NEW, OLD);
END
$$;

DROP FUNCTION insta_ids.unchecked_columns(integer, xid);
-- Columns of shards whose default calls next_id, itself or through other functions, with the CHECK that keeps them to the
-- shard, if there is one: all, or those that this transaction gave that default, not before its (sub)transaction
-- `since`. What an heir has from a parent that is among them is left out.
CREATE FUNCTION insta_ids.minting_columns(shards integer[], since xid DEFAULT NULL)
    RETURNS TABLE (shard integer, relation regclass, "column" name, expression text, "check" name)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Planning takes longer than running, so it is kept short: joined as it is written, once for all shards.
    SET join_collapse_limit = 1 SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
    layout_argument CONSTANT text := insta_ids.layout_argument(config.layout);
    minting CONSTANT oid[] := insta_ids.id_functions();
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
        CROSS JOIN LATERAL format('(@extschema@.id_shard(%s%s) = %s)',
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

-- Applies to a shard what it lacks, in order, each migration entirely or not at all, until one fails. To a new shard,
-- where there is nobody to wait for, also what says CONCURRENTLY.
CREATE OR REPLACE FUNCTION insta_ids.apply_migrations(
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
    migration insta_ids.migration;
    next record;
    applying xid;
    defaults bigint;
    unchecked record;
BEGIN
    -- Locked, so that what is applied is what is recorded: nobody replaces it meanwhile.
    FOR migration IN
        SELECT * FROM insta_ids.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
        ORDER BY m.number FOR SHARE OF m
    LOOP
        EXIT WHEN NOT (migration.transactional OR new);
        BEGIN
            INSERT INTO insta_ids.shard_migration (shard, migration) VALUES (apply_migrations.shard, migration.number)
            ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
            SET at = excluded.at, statement = NULL, sqlstate = NULL, message = NULL
            RETURNING xmin INTO applying;
            acting := role;
            defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass);
            FOR next IN
                SELECT s.number, coalesce(s.at_once, s.statement) AS statement, s.alters
                FROM insta_ids.statements(migration.ddl) WITH ORDINALITY
                    s (statement, kind, at_once, schema, alters, number)
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

-- Shards

-- Makes what every shard has besides its migrations, as far as it is not there.
CREATE FUNCTION insta_ids.make_surface(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    layout_argument text := insta_ids.layout_argument((insta_ids.configured()).layout);
BEGIN
    IF to_regclass(format('%I.table_id_seq', schema)) IS NULL THEN
        EXECUTE format('CREATE SEQUENCE %I.table_id_seq', schema);
    END IF;
    IF to_regprocedure(format('%I.next_id()', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id() RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql'
            || ' RETURN @extschema@.next_id(%2$s, %3$L%4$s)',
            schema, shard, format('%I.table_id_seq', schema), layout_argument);
    END IF;
    IF to_regprocedure(format('%I.next_id(regclass)', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id(seq_name regclass) RETURNS bigint'
            || ' VOLATILE PARALLEL UNSAFE LANGUAGE sql RETURN @extschema@.next_id(%2$s, seq_name%3$s)',
            schema, shard, layout_argument);
    END IF;
END
$$;

-- Makes a shard, or returns NULL if it is there. `path` is the search_path of who asked for it.
CREATE OR REPLACE FUNCTION insta_ids.make_shard(shard integer, path text) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    outcome record;
BEGIN
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (make_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF to_regnamespace(quote_ident(schema)) IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END IF;
    EXECUTE format('CREATE SCHEMA %I', schema);
    PERFORM insta_ids.make_surface(shard);
    SELECT * INTO outcome FROM insta_ids.apply_migrations(shard, path, true);
    IF outcome.failed IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = outcome.code,
            MESSAGE = outcome.message,
            DETAIL = concat_ws(E'\n', nullif(outcome.detail, ''), nullif(outcome.hint, ''),
                format('It is %s of migration "%s", in shard %s.',
                    coalesce('statement ' || outcome.statement, 'a CHECK'), outcome.name, shard));
    END IF;
    RETURN schema;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.create_shards(first integer, last integer, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    taken pg_catalog.record;
    done integer := 0;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF num_nulls(first, last) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'first and last shard must be given';
    END IF;
    PERFORM insta_ids.check_range(first, last, batch);
    todo := ARRAY(
        SELECT n FROM generate_series(first, last) n
        WHERE NOT EXISTS (SELECT FROM insta_ids.shard s WHERE s.shard = n)
        ORDER BY n);
    SELECT n AS shard, s.nspname AS schema INTO taken
    FROM insta_ids.config c, unnest(todo) n, pg_namespace s
    WHERE s.nspname = (c.prefix || n::text)::name
        -- Another session may have made it since.
        AND NOT EXISTS (SELECT FROM insta_ids.shard x WHERE x.shard = n)
    ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', taken.schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', taken.shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END IF;

    CALL insta_ids.commit_batch('create_shards', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        PERFORM insta_ids.make_shard(number, path);
        done := done + 1;
        IF done = 1 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
        END IF;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('create_shards', cardinality(todo), done, 0);
        END IF;
    END LOOP;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    dropped oid := to_regnamespace(quote_ident(schema));
    relation regclass;
    has_rows boolean;
    outside text;
BEGIN
    DELETE FROM insta_ids.shard s WHERE s.shard = drop_shard.shard;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = drop_shard.shard;
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        PERFORM insta_ids.check_isolation('whether a shard is empty cannot be told');
        -- Nothing is made in it from here on.
        PERFORM insta_ids.lock_schema(dropped);
        FOR relation IN
            SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped AND c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', relation);
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', relation) INTO has_rows;
            IF has_rows THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not empty', shard),
                    DETAIL = format('Table %s has rows.', relation),
                    HINT = 'Use force => true to drop it with all that is in it.';
            END IF;
        END LOOP;
        -- What depends on a part of it, and is none: as DROP ... RESTRICT would tell, if the schema were one object.
        WITH RECURSIVE parts AS (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = dropped
                AND d.classid <> 'pg_extension'::regclass
            UNION
            SELECT d.classid, d.objid
            FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
            WHERE d.deptype <> 'n'
        )
        SELECT pg_describe_object(d.classid, d.objid, d.objsubid) INTO outside
        FROM (SELECT 'pg_namespace'::regclass, dropped UNION ALL SELECT * FROM parts) p (classid, objid)
        JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype = 'n'
        WHERE (d.classid, d.objid) NOT IN (SELECT * FROM parts)
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'dependent_objects_still_exist',
                MESSAGE = format('cannot drop shard %s because other objects depend on it', shard),
                DETAIL = format('One is %s.', outside),
                HINT = 'Drop them first, or use force => true to drop them with it.';
        END IF;
    END IF;
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
END
$$;

-- Privileges on the database, to make schemas in it, are not among them.
CREATE OR REPLACE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT SELECT, INSERT ON insta_ids.config TO %s', role);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE'
        || ' ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.work TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.shard_schema, insta_ids.migration_status, insta_ids.progress TO %s',
        role);
    EXECUTE format(
        'GRANT EXECUTE ON PROCEDURE insta_ids.create_shards, insta_ids.migrate, insta_ids.check_rows,'
        || ' insta_ids.commit_batch TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION insta_ids.init, insta_ids.create_shard, insta_ids.make_shard,'
        || ' insta_ids.drop_shard, insta_ids.lock_schema, insta_ids.add_migration, insta_ids.apply_migrations,'
        || ' insta_ids.path_of, insta_ids.check_path, insta_ids.statements, insta_ids.minting_columns,'
        || ' insta_ids.migration_script, insta_ids.migration_by_script, insta_ids.start_migration,'
        || ' insta_ids.finish_migration, insta_ids.note_transactions, insta_ids.transactions_committed,'
        || ' insta_ids.check_range, insta_ids.check_locks, insta_ids.limit_catalog_cache, insta_ids.check,'
        || ' insta_ids.check_server, insta_ids.check_schemas, insta_ids.check_migrations, insta_ids.check_objects,'
        || ' insta_ids.check_references, insta_ids.check_sequences, insta_ids.check_ids, insta_ids.check_ids_of,'
        || ' insta_ids.objects_of, insta_ids.mending, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.check_isolation, insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.read_function, insta_ids.write_function, insta_ids.rewrite_function,'
        || ' insta_ids.lock_sequence, insta_ids.named_sequence, insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_adoption, insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.claim_shard, insta_ids.tell_of_dependents TO %s', role);
END
$$;

-- Checking: what is wrong with shards, or will be. Reads only, and holds no lock on what it has read.

CREATE TYPE insta_ids.finding AS (severity text, code text, object text, detail text, hint text);

CREATE VIEW insta_ids.shard_schema AS
SELECT s.shard, p.schema, n.oid
FROM insta_ids.shard s
CROSS JOIN LATERAL (SELECT ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema) p
LEFT JOIN pg_namespace n ON n.nspname = p.schema;

-- Shards, migrations

-- Schemas that are missing, or in the way.
CREATE FUNCTION insta_ids.check_schemas() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- The planner knows nothing of how many shards there are until they are analyzed.
    SET enable_nestloop = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
BEGIN
    RETURN QUERY
    SELECT 'error', 'missing_schema', quote_ident(s.schema),
           format('Shard %s has lost its schema.', s.shard),
           format('Restore it, or forget the shard: SELECT insta_ids.drop_shard(%s)', s.shard)
    FROM insta_ids.shard_schema s WHERE s.oid IS NULL ORDER BY s.shard;

    RETURN QUERY
    SELECT 'warning', 'unmanaged_schema', quote_ident(n.nspname),
           CASE WHEN number = shard::text AND shard < config.shards
               THEN format('It is called like shard %s, which is not there.', shard)
               ELSE 'It is called almost like a shard, and is none.' END,
           format('%s: ALTER SCHEMA %I RENAME TO %I',
               CASE WHEN number = shard::text AND shard < config.shards
                   THEN 'Call insta_ids.adopt(), or rename it' ELSE 'Rename it' END,
               n.nspname, 'not_' || n.nspname)
    FROM pg_namespace n
    CROSS JOIN LATERAL substr(n.nspname, length(config.prefix) + 1) number
    CROSS JOIN LATERAL (SELECT CASE WHEN number ~ '^[0-9]{1,9}$' THEN number::integer END) s (shard)
    WHERE starts_with(n.nspname, config.prefix) AND number ~ '^[0-9]'
        AND NOT EXISTS (SELECT FROM insta_ids.shard_schema m WHERE m.oid = n.oid)
    ORDER BY length(n.nspname), n.nspname;
END
$$;

-- Migrations that some shards lack.
CREATE FUNCTION insta_ids.check_migrations() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT CASE s.state WHEN 'failed' THEN 'error' ELSE 'warning' END, s.state || '_migration', m.name,
           CASE s.state
               WHEN 'failed' THEN format('Shards in which it failed: %s. The first is shard %s: %s',
                   count(*), min(s.shard), (array_agg(s.message ORDER BY s.shard))[1])
               ELSE format('Shards that lack it: %s. The first is shard %s.', count(*), min(s.shard))
           END,
           CASE WHEN s.state = 'failed' THEN 'Mend what it failed with, then: ' ELSE '' END
           || CASE WHEN m.transactional THEN 'CALL insta_ids.migrate()'
               ELSE format('In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec', m.name) END
    FROM insta_ids.migration_status s
    JOIN insta_ids.migration m ON m.number = s.number
    WHERE s.state <> 'applied'
    GROUP BY s.state, m.number ORDER BY m.number, s.state;
END
$$;

-- Objects of shards

-- A stored expression with names for the OIDs of these objects, and without the shard where that is the first argument of
-- a call of what mints: the same in each shard in which the same words were stored. NULL if it has an OID without a name.
CREATE FUNCTION insta_ids.essence(tree text, oids oid[], names text[], minting oid[], shard integer) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'essence_wrapper';
-- The shards that a stored expression mints for, as the first arguments of its calls of these functions say.
CREATE FUNCTION insta_ids.minted_shards(tree text, functions oid[]) RETURNS integer[]
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'minted_shards_wrapper';

-- A name as a literal, as PostgreSQL writes out what is stored: with backslashes as they are.
CREATE FUNCTION insta_ids.literal_of(name name) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN '''' OPERATOR(pg_catalog.||) pg_catalog.replace(name::text, '''', '''''') OPERATOR(pg_catalog.||) '''';

-- What is in shards, one line for each thing that can differ, in words that are the same in each shard: chr(1) stands
-- for its schema and a dot, chr(4) for the same in a literal where that has quotes, chr(5) for a literal that is its
-- schema, chr(2) for its number. Without partitions, of which older shards may have more; without owners and privileges;
-- and written out without the CHECKs of ids, which depend on defaults.
--
-- If it is only to be compared, expressions are not written out: to name a function, PostgreSQL looks at all that are
-- called like it, and each shard has its next_id. In their place is the stored tree, with the names of what it depends on.
CREATE FUNCTION insta_ids.objects_of(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- By how many shards are asked for.
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid, o.own, replace(o.own, '''', '''''') AS own_in_literal,
               insta_ids.literal_of(s.schema) AS literal
        FROM insta_ids.shard_schema s
        CROSS JOIN LATERAL (SELECT quote_ident(s.schema) || '.') o (own)
        WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S', 'c') AND NOT c.relispartition
    ), functions AS MATERIALIZED (
        SELECT s.shard, p.*, format('%I(%s)', p.proname, replace(oidvectortypes(p.proargtypes), s.own, chr(1))) AS signature
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        -- Those of a type come and go with it.
        WHERE NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
    ), expressions AS (
        SELECT r.shard, r.relnamespace AS schema, CASE a.attgenerated WHEN '' THEN 'default' ELSE 'expression' END AS kind,
               r.relname AS relation, a.attname::text AS name, 'pg_attrdef'::regclass AS classid, d.oid, d.adrelid,
               d.adbin AS tree,
               CASE a.attgenerated WHEN 's' THEN 'STORED' WHEN 'v' THEN 'VIRTUAL' END AS attributes
        FROM relations r
        JOIN pg_attrdef d ON d.adrelid = r.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT f.shard, f.pronamespace, 'function', NULL, f.signature, 'pg_proc'::regclass, f.oid, NULL, f.prosqlbody,
               concat_ws(' ', f.prokind, f.provolatile, f.proisstrict, f.prosecdef, f.proleakproof, f.proparallel,
                   f.procost, f.prorows, f.proretset, format_type(f.prorettype, NULL),
                   replace(f.proconfig::text, s.schema, chr(5)),
                   pg_get_expr(f.proargdefaults, 0), a.names)
        FROM functions f
        JOIN schemas s ON s.shard = f.shard
        CROSS JOIN LATERAL (
            SELECT string_agg(n.name, ' ' ORDER BY n.place)
            FROM unnest(f.proargnames, f.proargmodes) WITH ORDINALITY n (name, mode, place)
            WHERE n.mode IS DISTINCT FROM 'o'
        ) a (names)
        WHERE f.prokind <> 'a'
    ), objects (shard, kind, relation, name, definition) AS (
        SELECT r.shard, 'table', NULL, r.relname,
               concat_ws(' ', CASE r.relpersistence WHEN 'u' THEN 'unlogged' END,
                   CASE r.relkind WHEN 'f' THEN 'foreign' WHEN 'p' THEN 'partitioned' END, 'table',
                   CASE r.relkind WHEN 'p' THEN 'by ' || pg_get_partkeydef(r.oid) END,
                   CASE WHEN r.relrowsecurity THEN 'with row security' END,
                   CASE WHEN r.relforcerowsecurity THEN 'forced' END,
                   CASE WHEN r.relreplident <> 'd' THEN 'with replica identity ' || r.relreplident::text END)
        FROM relations r WHERE r.relkind IN ('r', 'p', 'f')
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'c' THEN 'attribute' ELSE 'column' END, r.relname, a.attname,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                   CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'COLLATE ' || a.attcollation::regcollation END)
        FROM relations r
        JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN pg_type t ON t.oid = a.atttypid
        WHERE r.relkind IN ('r', 'p', 'f', 'c')
        UNION ALL
        SELECT r.shard, 'NOT NULL', r.relname, a.attname, 'NOT NULL'
        FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE r.relkind IN ('r', 'p', 'f') AND a.attnotnull
        UNION ALL
        SELECT e.shard, e.kind, e.relation, e.name,
               CASE WHEN x.essence IS NOT NULL THEN concat_ws(' ', x.essence, e.attributes)
                   WHEN e.kind = 'default' THEN pg_get_expr(e.tree, e.adrelid)
                   WHEN e.kind = 'expression'
                       THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(e.tree, e.adrelid), e.attributes)
                   -- Whether a result has a name makes no difference to who calls it; of what was adopted it may have one.
                   ELSE regexp_replace(pg_get_functiondef(e.oid),
                       '(, )?OUT ("([^"]|"")+"|\w+) bigint\)\n RETURNS bigint', E')\n RETURNS bigint') END
        FROM expressions e
        CROSS JOIN LATERAL (
            SELECT CASE WHEN NOT written_out AND e.kind <> 'expression' THEN
                insta_ids.essence(e.tree::text, coalesce(array_agg(d.refobjid), '{}'), coalesce(array_agg(n.name), '{}'),
                    minting, e.shard) END AS essence
            FROM pg_depend d
            LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
            LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
            LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN p.oid IS NOT NULL
                        THEN format('%s.%s(%s)', nullif(p.pronamespace, e.schema), p.proname, oidvectortypes(p.proargtypes))
                    WHEN c.oid IS NOT NULL THEN concat_ws('.', nullif(c.relnamespace, e.schema), c.relname)
                    -- Constants of others have OIDs in them.
                    WHEN t.oid IS NULL OR t.typtype IN ('b', 'd') AND t.typelem = 0
                        THEN pg_describe_object(d.refclassid, d.refobjid, 0)
                END
            ) n (name)
            WHERE d.classid = e.classid AND d.objid = e.oid
        ) x
        UNION ALL
        SELECT f.shard, 'aggregate', NULL, f.signature,
               concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, format_type(a.aggtranstype, NULL), a.agginitval)
        FROM functions f JOIN pg_aggregate a ON a.aggfnoid = f.oid
        UNION ALL
        SELECT r.shard, 'index', r.relname, i.relname, pg_get_indexdef(x.indexrelid)
        FROM relations r
        JOIN pg_index x ON x.indrelid = r.oid
        JOIN pg_class i ON i.oid = x.indexrelid
        WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = r.oid AND k.conindid = i.oid)
        UNION ALL
        SELECT r.shard, 'constraint', r.relname, CASE WHEN NOT i.is_of_ids THEN k.conname ELSE '' END,
               CASE WHEN i.is_of_ids THEN replace(k.definition, format('= %s))', r.shard), '= ' || chr(2) || '))')
                   ELSE k.definition END
        FROM relations r
        CROSS JOIN LATERAL (
            SELECT k.conname, regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') AS definition
            -- One of a foreign key for each partition of what it refers to comes and goes with that.
            FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype <> 'n' AND k.conparentid = 0
        ) k
        CROSS JOIN LATERAL (SELECT k.definition LIKE format('CHECK ((%%id\_shard(%%) = %s))', r.shard)) i (is_of_ids)
        WHERE NOT (i.is_of_ids AND written_out)
        UNION ALL
        SELECT r.shard, 'trigger', r.relname, g.tgname,
               concat_ws(' ', pg_get_triggerdef(g.oid), CASE WHEN g.tgenabled <> 'O' THEN '(' || g.tgenabled::text || ')' END)
        FROM relations r JOIN pg_trigger g ON g.tgrelid = r.oid AND NOT g.tgisinternal
        UNION ALL
        SELECT r.shard, 'policy', r.relname, p.polname,
               concat_ws(' ', p.polcmd::text, p.polpermissive, p.polroles::regrole[],
                   pg_get_expr(p.polqual, p.polrelid), 'CHECK ' || pg_get_expr(p.polwithcheck, p.polrelid))
        FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
        UNION ALL
        SELECT r.shard, 'rule', r.relname, u.rulename, pg_get_ruledef(u.oid)
        FROM relations r JOIN pg_rewrite u ON u.ev_class = r.oid AND u.rulename <> '_RETURN'
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END, NULL, r.relname,
               concat('WITH (' || nullif(o.options, '') || ') ', 'AS', pg_get_viewdef(r.oid))
        FROM relations r
        CROSS JOIN LATERAL (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(r.reloptions) o) o (options)
        WHERE r.relkind IN ('v', 'm')
        UNION ALL
        SELECT r.shard, CASE WHEN i.attname IS NULL THEN 'sequence' ELSE 'identity' END, i.relname,
               coalesce(i.attname, r.relname),
               CASE i.attidentity WHEN 'a' THEN format('GENERATED ALWAYS AS IDENTITY (%s)', q.options)
                   WHEN 'd' THEN format('GENERATED BY DEFAULT AS IDENTITY (%s)', q.options)
                   ELSE format('AS %s %s', s.seqtypid::regtype, q.options) END
        FROM relations r
        JOIN pg_sequence s ON s.seqrelid = r.oid
        CROSS JOIN LATERAL format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement,
            s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) q (options)
        -- At most one, as the planner does not know: else it reads all columns that there are.
        LEFT JOIN LATERAL (
            SELECT t.relname, a.attname, a.attidentity
            FROM pg_depend d
            JOIN pg_class t ON t.oid = d.refobjid
            JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i'
                AND d.refclassid = 'pg_class'::regclass
            LIMIT 1
        ) i ON true
        UNION ALL
        SELECT s.shard, 'type', NULL, t.typname,
               concat_ws(' ', t.typtype::text, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
                   (SELECT format_type(g.rngsubtype, NULL) FROM pg_range g WHERE g.rngtypid = t.oid),
                   CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
                   (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                    FROM pg_enum e WHERE e.enumtypid = t.oid),
                   (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname)
                    FROM pg_constraint k WHERE k.contypid = t.oid))
        FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid AND t.typtype IN ('d', 'e', 'r')
        UNION ALL
        SELECT r.shard, 'type', NULL, r.relname, 'c' FROM relations r WHERE r.relkind = 'c'
        UNION ALL
        -- Not in the order of the columns, which may have been added in another one.
        SELECT s.shard, 'statistics', NULL, x.stxname,
               format('%s ON %s FROM %s', split_part(pg_get_statisticsobjdef(x.oid), ' ON ', 1), k.columns,
                   x.stxrelid::regclass)
        FROM schemas s
        JOIN pg_statistic_ext x ON x.stxnamespace = s.oid
        CROSS JOIN LATERAL (
            SELECT string_agg(e.name, ', ' ORDER BY e.name)
            FROM (
                SELECT quote_ident(a.attname) FROM pg_attribute a
                WHERE a.attrelid = x.stxrelid AND a.attnum = ANY (x.stxkeys)
                UNION ALL
                SELECT format('(%s)', e) FROM unnest(pg_get_statisticsobjdef_expressions(x.oid)) e
            ) e (name)
        ) k (columns)
    )
    SELECT o.shard, o.kind, o.relation, o.name::text,
           CASE WHEN n.definition LIKE '%next\_id%'
               THEN regexp_replace(n.definition, format('\m(next_ids?)\(%s\M', o.shard), '\1(' || chr(2), 'g')
               ELSE n.definition END
    FROM objects o
    JOIN schemas s ON s.shard = o.shard
    CROSS JOIN LATERAL (
        SELECT replace(replace(replace(coalesce(o.definition, ''), s.own, chr(1)), s.own_in_literal, chr(4)), s.literal,
            chr(5))
    ) r (definition)
    -- Not where a longer name ends like it; to look for that everywhere takes too long.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN strpos(r.definition, chr(1)) > 0 AND r.definition ~ ('[\w$]' || chr(1))
            THEN regexp_replace(o.definition, '(?<![\w$])' || regexp_replace(s.own, '(\W)', '\\\1', 'g'), chr(1), 'g')
            ELSE r.definition END
    ) n (definition);
END
$$;

-- The words of objects_of as they are in a shard.
CREATE FUNCTION insta_ids.in_shard(words text, schema name, shard integer) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(words,
        pg_catalog.chr(1), pg_catalog.quote_ident(schema::text) || '.'),
        pg_catalog.chr(4), pg_catalog.replace(pg_catalog.quote_ident(schema::text), '''', '''''') || '.'),
        pg_catalog.chr(5), insta_ids.literal_of(schema)),
        pg_catalog.chr(2), shard::text);

-- The statement that makes an object of a shard as its definition says, if there is one. If it could lose something, or
-- keeps others waiting for as long as the table is large, that is said before it, and a colon.
CREATE FUNCTION insta_ids.mending(
        difference text, kind text, relation text, name text, definition text, schema name, shard integer)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    while_others_wait CONSTANT text := 'Others wait while all rows are read: ';
    prefix CONSTANT text := left(schema, - length(shard::text));
    own CONSTANT text := insta_ids.in_shard(definition, schema, shard);
    object CONSTANT text := format('%I.', schema) || CASE
        -- These have arguments behind their names, which are quoted already.
        WHEN kind IN ('function', 'aggregate') THEN insta_ids.in_shard(name, schema, shard)
        ELSE quote_ident(name) END;
    -- NULL of what is of no relation.
    owner CONSTANT text := format('%I.', schema) || quote_ident(relation);
    alter_table CONSTANT text := 'ALTER TABLE ' || owner;
    is_partitioned CONSTANT boolean := EXISTS (
        SELECT FROM pg_class c WHERE c.oid = to_regclass(owner) AND c.relkind = 'p');
BEGIN
    -- What most say of one other shard is not to be said here, too.
    IF definition ~ ('(?<![\w$])' || regexp_replace(prefix, '(\W)', '\\\1', 'g') || '[0-9]') THEN
        RETURN NULL;
    END IF;
    RETURN CASE difference || ' ' || kind
        WHEN 'missing column' THEN
            CASE
                WHEN own ~ ' NOT NULL$' AND own !~ ' (DEFAULT|GENERATED) ' THEN 'If the table has no rows: '
                -- As for domains, of which this may be one.
                WHEN own ~ ' (DEFAULT .*\(|GENERATED )' OR starts_with(definition, chr(1))
                    THEN 'Others wait while the table is rewritten: '
            ELSE '' END || format('%s ADD COLUMN %I %s', alter_table, name, own)
        WHEN 'different column' THEN
            format('If no value is lost by it: %s ALTER COLUMN %I TYPE %s USING %2$I%4$s::%3$s', alter_table, name, own,
                -- Between types of different shards there is no cast.
                CASE WHEN starts_with(definition, chr(1)) THEN '::text' END)
        WHEN 'missing identity' THEN format('%s ALTER COLUMN %I ADD %s', alter_table, name, own)
        WHEN 'different identity' THEN format('%s ALTER COLUMN %I SET %s', alter_table, name,
            regexp_replace(regexp_replace(own, ' AS IDENTITY \(|\)$', ' ', 'g'),
                '(INCREMENT|MINVALUE|MAXVALUE|START|CACHE|NO CYCLE|CYCLE)', 'SET \1', 'g'))
        WHEN 'extra identity' THEN format('If it is not needed: %s ALTER COLUMN %I DROP IDENTITY', alter_table, name)
        WHEN 'extra expression' THEN format('If it is not needed: %s ALTER COLUMN %I DROP EXPRESSION', alter_table, name)
        WHEN 'missing attribute' THEN format('ALTER TYPE %s ADD ATTRIBUTE %I %s', owner, name, own)
        WHEN 'extra attribute' THEN format('If it is not needed: ALTER TYPE %s DROP ATTRIBUTE %I', owner, name)
        WHEN 'missing NOT NULL' THEN while_others_wait || format('%s ALTER COLUMN %I SET NOT NULL', alter_table, name)
        WHEN 'extra NOT NULL' THEN format('%s ALTER COLUMN %I DROP NOT NULL', alter_table, name)
        WHEN 'extra default' THEN format('%s ALTER COLUMN %I DROP DEFAULT', alter_table, name)
        WHEN 'missing index' THEN CASE WHEN is_partitioned
            THEN while_others_wait || replace(own, ' ON ONLY ', ' ON ')
            ELSE regexp_replace(own, ' INDEX ', ' INDEX CONCURRENTLY ') END
        WHEN 'missing constraint' THEN CASE WHEN own ~ '^(CHECK|FOREIGN KEY) ' AND NOT is_partitioned
            THEN format('%s ADD CONSTRAINT %I %s NOT VALID', alter_table, name, own)
            ELSE while_others_wait || format('%s ADD CONSTRAINT %I %s', alter_table, name, own) END
        WHEN 'different constraint' THEN
            while_others_wait || format('%s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s', alter_table, name, own)
        WHEN 'extra constraint' THEN format('If it is not needed: %s DROP CONSTRAINT %I', alter_table, name)
        WHEN 'extra column' THEN format('If it is not needed: %s DROP COLUMN %I', alter_table, name)
        -- One that is disabled is not made so by one statement.
        WHEN 'missing trigger' THEN CASE WHEN own !~ ' \([A-Z]\)$' THEN own END
        WHEN 'missing view' THEN format('CREATE VIEW %s %s', object, own)
        WHEN 'different view' THEN format('CREATE OR REPLACE VIEW %s %s', object, own)
        WHEN 'missing materialized view' THEN format('CREATE MATERIALIZED VIEW %s %s', object, own)
        WHEN 'missing sequence' THEN format('CREATE SEQUENCE %s %s', object, own)
        WHEN 'different sequence' THEN format('ALTER SEQUENCE %s %s', object, own)
        ELSE CASE
            WHEN kind = 'default' THEN format('%s ALTER COLUMN %I SET DEFAULT %s', alter_table, name, own)
            WHEN difference = 'extra' THEN format('If it is not needed: DROP %s %s',
                CASE WHEN kind IN ('function', 'aggregate') THEN 'ROUTINE' ELSE upper(kind) END,
                CASE WHEN kind IN ('trigger', 'policy', 'rule') THEN format('%I ON %s', name, owner) ELSE object END)
            WHEN kind = 'function' OR difference = 'missing' AND kind IN ('rule', 'statistics') THEN own
        END
    END;
END
$$;

-- Columns of ids of these shards without their CHECK; defaults and functions that use what belongs to another schema.
CREATE FUNCTION insta_ids.check_references(shards integer[])
    RETURNS TABLE (shard integer, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
    prefix CONSTANT name := (insta_ids.configured()).prefix;
BEGIN
    RETURN QUERY
    SELECT m.shard, 'warning', 'missing_check', format('%s.%I', m.relation, m."column"),
           'next_id fills it, and nothing keeps ids of other shards out.',
           format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', m.relation, m.expression)
    FROM insta_ids.minting_columns(shards) m WHERE m."check" IS NULL;

    RETURN QUERY
    WITH users AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid AS namespace, 'default' AS kind, 'pg_attrdef'::regclass AS classid, d.oid,
               c.oid::regclass AS relation, a.attname, d.adbin AS tree
        FROM insta_ids.shard_schema s
        JOIN pg_class c ON s.shard = ANY (shards) AND c.relnamespace = s.oid
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT s.shard, s.schema, s.oid, 'function', 'pg_proc'::regclass, p.oid, NULL, NULL, p.prosqlbody
        FROM insta_ids.shard_schema s
        JOIN pg_proc p ON s.shard = ANY (shards) AND p.pronamespace = s.oid AND p.prokind <> 'a'
    ), uses AS (
        SELECT u.*, p.oid = ANY (minting) AS mints, p.prosrc, p.proargtypes, d.refclassid, d.refobjid,
               coalesce(c.relnamespace, p.pronamespace) AS elsewhere, coalesce(c.relname, p.proname) AS used
        FROM users u
        JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.oid
        LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid AND c.relkind = 'S'
        LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
    ), foreign_uses AS (
        SELECT u.*, format('It mints for shard %s.', n.number) AS detail, NULL AS wrong, false AS is_lacking
        FROM uses u
        CROSS JOIN LATERAL unnest(insta_ids.minted_shards(u.tree::text, minting)) n (number)
        WHERE u.mints AND n.number <> u.shard
        UNION ALL
        SELECT u.*, format('It uses %s, which is not of this shard.', pg_describe_object(u.refclassid, u.refobjid, 0)),
               -- The schema before its name.
               format('%s\.(?=%s)', regexp_replace(quote_ident(n.nspname), '(\W)', '\\\1', 'g'),
                   regexp_replace(quote_ident(u.used), '(\W)', '\\\1', 'g')),
               NOT EXISTS (
                   -- Not the function itself, which would call itself without end.
                   SELECT FROM pg_proc p
                   WHERE p.pronamespace = u.namespace AND p.proname = u.used AND p.proargtypes = u.proargtypes
                       AND (p.oid <> u.oid OR u.kind <> 'function')
                   UNION ALL
                   SELECT FROM pg_class c WHERE c.relnamespace = u.namespace AND c.relname = u.used)
        FROM uses u
        JOIN pg_namespace n ON n.oid = u.elsewhere
        WHERE u.elsewhere <> u.namespace
            AND (u.refclassid = 'pg_class'::regclass
                -- Functions that all shards share are as good as any, unless they make ids as the published one does.
                OR starts_with(n.nspname, prefix) AND substr(n.nspname, length(prefix) + 1) ~ '^[0-9]'
                OR u.prosrc ~* 'nextval' AND u.prosrc ~* '<<|epoch')
    ), wrong AS (
        SELECT f.shard, f.schema, f.kind, f.relation, f.attname, f.oid,
               string_agg(DISTINCT f.detail, ' ' ORDER BY f.detail) AS detail,
               string_agg(DISTINCT f.wrong, '|') AS schemas, bool_or(f.is_lacking) AS is_lacking
        FROM foreign_uses f GROUP BY f.shard, f.schema, f.kind, f.relation, f.attname, f.oid
    )
    SELECT w.shard, 'error', 'foreign_' || w.kind,
           CASE w.kind WHEN 'default' THEN format('%s.%I', w.relation, w.attname) ELSE w.oid::regprocedure::text END,
           w.detail,
           CASE
               WHEN w.is_lacking THEN format('Use what is in schema %I.', w.schema)
               WHEN w.kind = 'default'
                   THEN format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', w.relation, w.attname, o.own)
               ELSE o.own
           END
    FROM wrong w
    CROSS JOIN LATERAL (
        SELECT CASE w.kind WHEN 'function' THEN pg_get_functiondef(w.oid)
            ELSE (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE d.oid = w.oid) END
    ) e (text)
    CROSS JOIN LATERAL (SELECT replace(quote_ident(w.schema), '\', '\\') || '.' AS plain) s
    CROSS JOIN LATERAL regexp_replace(
        -- In a literal, quotes are doubled.
        coalesce(regexp_replace(regexp_replace(e.text, w.schemas, s.plain, 'g'),
            replace(w.schemas, '\''', '\''\'''), replace(s.plain, '''', ''''''), 'g'), e.text),
        '\m(next_ids?)\(\d+', format('\1(%s', w.shard), 'g') o (own)
    ORDER BY w.shard, w.relation, w.oid;
END
$$;

-- Tells of what could not be read, each as its name, a colon and why.
CREATE FUNCTION insta_ids.not_read(what text, unread text[]) RETURNS SETOF insta_ids.finding
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT 'notice', 'not_read', pg_catalog.left(unread[1], pg_catalog.strpos(unread[1], ': ') - 1),
           pg_catalog.format('%s could not be read: %s. The first with: %s.', what, pg_catalog.cardinality(unread),
               pg_catalog.substr(unread[1], pg_catalog.strpos(unread[1], ': ') + 2)),
           'Check again when nobody locks or changes what is in it, as a role that may read it.'
    WHERE pg_catalog.cardinality(unread) > 0;
END;

-- What a query finds in shards, which it is told as $1: lines of texts. Or why one could not be read.
--
-- To write out what is stored, PostgreSQL locks the tables it speaks of. So each part is read in a subtransaction that
-- is rolled back; and one that cannot be read, as others have locked or dropped something of it, in smaller parts.
CREATE FUNCTION insta_ids.read_parts(shards integer[], query text)
    RETURNS TABLE (line text[], unread text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- About 8000 tables and views at a time, and then their cached definitions are given back.
    at_once CONSTANT integer := 1 + 8000 * (SELECT count(*) FROM insta_ids.shard)
        / (1 + (SELECT count(*) FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm')));
    size integer := at_once;
    place integer := 1;
    part integer[];
    lines text[];
BEGIN
    WHILE place <= cardinality(shards) LOOP
        part := shards[place : place + size - 1];
        BEGIN
            -- Of as many texts each.
            EXECUTE format('SELECT array_agg(q.line) FROM (%s) q (line)', query) INTO lines USING part;
            RAISE triggered_action_exception;
        EXCEPTION
            WHEN triggered_action_exception THEN
                IF lines IS NOT NULL THEN
                    FOREACH line SLICE 1 IN ARRAY lines LOOP
                        RETURN NEXT;
                    END LOOP;
                END IF;
                place := place + size;
                size := least(2 * size, at_once);
            WHEN OTHERS THEN
                IF size = 1 THEN
                    RETURN QUERY SELECT NULL::text[], format('%I: %s', insta_ids.schema_of(part[1]), SQLERRM);
                    place := place + 1;
                END IF;
                size := greatest(1, size / 2);
        END;
        IF place <= cardinality(shards) THEN
            PERFORM insta_ids.limit_catalog_cache();
        END IF;
    END LOOP;
END
$$;

-- What differs between shards that have the same migrations. Those that are equal are looked at once.
CREATE FUNCTION insta_ids.check_differences(shards integer[], fingerprints bigint[]) RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Kinds of what goes with a column.
    of_column CONSTANT text[] := ARRAY['NOT NULL', 'default', 'expression', 'identity'];
BEGIN
    RETURN QUERY
    WITH shards AS (
        SELECT f.shard, f.fingerprint,
               coalesce((SELECT array_agg(m.migration ORDER BY m.migration) FROM insta_ids.shard_migration m
                         WHERE m.shard = f.shard AND m.message IS NULL), '{}') AS applied
        FROM unnest(shards, fingerprints) f (shard, fingerprint)
    ), classes AS MATERIALIZED (
        SELECT s.applied, min(s.shard) AS first, array_agg(s.shard) AS members, count(*) AS weight,
               sum(count(*)) OVER (PARTITION BY s.applied) AS total
        FROM shards s GROUP BY s.applied, s.fingerprint
    ), objects AS MATERIALIZED (
        SELECT c.applied, c.weight, c.total, o.*
        FROM classes c
        JOIN insta_ids.objects_of(
            ARRAY(SELECT c.first FROM classes c WHERE c.weight < c.total), written_out => true) o ON o.shard = c.first
    ), variants AS (
        SELECT o.applied, o.kind, o.relation, o.name, o.definition, sum(o.weight) AS weight, min(o.shard) AS first
        FROM objects o GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT o.applied, o.kind, o.relation, o.name, NULL, min(o.total) - sum(o.weight), NULL
        FROM objects o GROUP BY 1, 2, 3, 4
    ), norms AS (
        -- What most have; if as many have it as have it not, it is to be there.
        SELECT DISTINCT ON (v.applied, v.kind, v.relation, v.name) v.*
        FROM variants v
        ORDER BY v.applied, v.kind, v.relation, v.name, v.weight DESC, v.definition IS NULL, v.first
    ), differences AS (
        SELECT c.members, c.total, n.kind, n.relation, n.name, n.weight, o.definition AS here, n.definition AS elsewhere,
               CASE WHEN o.definition IS NULL THEN 'missing' WHEN n.definition IS NULL THEN 'extra' ELSE 'different' END
               AS difference,
               -- What a column that is missing needs besides its type.
               CASE WHEN n.kind = 'column' THEN (
                   SELECT string_agg(CASE d.kind WHEN 'default' THEN ' DEFAULT ' ELSE ' ' END || d.definition, ''
                              ORDER BY d.kind COLLATE "C")
                   FROM norms d
                   WHERE d.kind = ANY (of_column) AND d.definition IS NOT NULL
                       AND (d.applied, d.relation, d.name) = (n.applied, n.relation, n.name)) END AS besides
        FROM classes c
        JOIN norms n ON n.applied = c.applied
        LEFT JOIN objects o
            ON o.shard = c.first AND o.kind = n.kind AND o.relation IS NOT DISTINCT FROM n.relation AND o.name = n.name
        WHERE o.definition IS DISTINCT FROM n.definition
    )
    SELECT 'warning', d.difference || '_object',
           format('%I.%s', s.schema, CASE
               WHEN d.kind IN ('function', 'aggregate') THEN insta_ids.in_shard(d.name, s.schema, s.shard)
               ELSE concat_ws('.', quote_ident(d.relation), quote_ident(d.name)) END),
           format('%s: %s.', concat_ws(' ', upper(left(d.kind, 1)) || substr(d.kind, 2)),
               CASE d.difference
                   WHEN 'missing' THEN format('%s of %s shards have it', d.weight, d.total)
                   WHEN 'extra' THEN format('%s of %s shards do not have it', d.weight, d.total)
                   ELSE format('here %s, in %s of %s shards %s', insta_ids.in_shard(d.here, s.schema, s.shard),
                       d.weight, d.total, insta_ids.in_shard(d.elsewhere, s.schema, s.shard))
               END),
           coalesce(
               -- As in most, not in the first of many that all differ.
               CASE WHEN d.difference <> 'different' OR 2 * d.weight > d.total THEN
                   insta_ids.mending(d.difference, d.kind, d.relation, d.name,
                       d.elsewhere || CASE WHEN d.difference = 'missing' THEN coalesce(d.besides, '') ELSE '' END,
                       s.schema, s.shard)
               END,
               'Make it as in the other shards; pg_dump --schema-only shows how it is there.')
    FROM differences d
    JOIN insta_ids.shard_schema s ON s.shard = ANY (d.members)
    -- What is of a table or column that is missing itself, or should be, goes without saying.
    WHERE NOT EXISTS (
        SELECT FROM differences t
        WHERE t.members = d.members AND t.difference <> 'different'
            AND (t.kind IN ('table', 'type', 'materialized view') AND t.name = d.relation
                OR t.kind = 'column' AND d.kind = ANY (of_column) AND (t.relation, t.name) = (d.relation, d.name)))
    -- What others need comes first.
    ORDER BY s.shard, d.kind NOT IN ('type', 'sequence'), d.kind, d.relation, d.name;
END
$$;

-- What differs between shards, what is another's, and columns of ids without their CHECK.
CREATE FUNCTION insta_ids.check_objects() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    shards CONSTANT integer[] := ARRAY(SELECT s.shard FROM insta_ids.shard_schema s WHERE s.oid IS NOT NULL ORDER BY 1);
    -- One number for all that is in a shard: shards that are equal have the same.
    fingerprints CONSTANT text := $query$
        SELECT ARRAY[s.shard, bit_xor(hashtextextended(
                   concat_ws(chr(3), o.kind, coalesce(o.relation, ''), o.name, o.definition), 0))]::text[]
        FROM unnest($1) s (shard)
        LEFT JOIN insta_ids.objects_of($1, written_out => false) o ON o.shard = s.shard
        GROUP BY s.shard $query$;
    read record;
BEGIN
    SELECT array_agg(p.line[1]::integer) FILTER (WHERE p.line IS NOT NULL) AS shards,
           array_agg(p.line[2]::bigint) FILTER (WHERE p.line IS NOT NULL) AS fingerprints,
           array_agg(p.unread) FILTER (WHERE p.unread IS NOT NULL) AS unread
    INTO read FROM insta_ids.read_parts(shards, fingerprints) p;
    RETURN QUERY SELECT f.* FROM insta_ids.check_differences(read.shards, read.fingerprints) f;

    -- Of shards that are equal one is looked at; and all, if anything is found in that.
    RETURN QUERY
    WITH shards AS (
        SELECT s.shard, min(s.shard) OVER (PARTITION BY s.fingerprint) AS first
        FROM unnest(read.shards, read.fingerprints) s (shard, fingerprint)
    ), wrong AS (
        SELECT DISTINCT r.shard
        FROM insta_ids.check_references(ARRAY(SELECT DISTINCT s.first FROM shards s)) r
    )
    SELECT r.severity, r.code, r.object, r.detail, r.hint
    FROM insta_ids.check_references(ARRAY(SELECT s.shard FROM shards s JOIN wrong w ON w.shard = s.first)) r;

    RETURN QUERY SELECT f.* FROM insta_ids.not_read('Shards whose objects', read.unread) f;
END
$$;

-- Tables without a replica identity; indexes and constraints that are not valid.
CREATE FUNCTION insta_ids.check_tables() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'no_replica_identity', c.oid::regclass::text,
           'It has no primary key, or the index chosen for it is gone: its rows cannot be told apart when the shard moves.',
           'Add a primary key, or: ' || format('ALTER TABLE %s REPLICA IDENTITY FULL', c.oid::regclass)
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p')
    WHERE c.relreplident = 'n'
        OR c.relreplident IN ('d', 'i') AND NOT EXISTS (
            SELECT FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisvalid
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
    ORDER BY s.shard, c.relname;

    RETURN QUERY
    SELECT 'warning', 'invalid_index', i.indexrelid::regclass::text,
           format('It is left from a command that failed, and is of no use to %s.', i.indrelid::regclass),
           format(CASE WHEN c.relkind = 'I' THEN 'Attach an index of each partition to it, or: DROP INDEX %s'
                   WHEN c.relname ~ '_cc(new|old)[0-9]*$' THEN 'DROP INDEX CONCURRENTLY %s'
                   ELSE 'REINDEX INDEX CONCURRENTLY %s' END, i.indexrelid::regclass)
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('i', 'I')
    JOIN pg_index i ON i.indexrelid = c.oid AND NOT i.indisvalid
    -- One that is being made now, under this lock, is not valid yet.
    WHERE NOT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    ORDER BY s.shard, c.relname;

    RETURN QUERY
    SELECT 'warning', 'unvalidated_constraint', format('%s.%I', k.conrelid::regclass, k.conname),
           'Rows that were there before it may violate it.',
           format('ALTER TABLE %s VALIDATE CONSTRAINT %I', k.conrelid::regclass, k.conname)
    FROM insta_ids.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND NOT c.relispartition
    JOIN pg_constraint k ON k.conrelid = c.oid AND NOT k.convalidated AND k.coninhcount = 0
    ORDER BY s.shard, c.relname, k.conname;
END
$$;

-- Sequences

-- The sequences that next_id takes ids of shards from, in defaults and in functions of the shards.
CREATE FUNCTION insta_ids.id_sequences() RETURNS TABLE (shard integer, sequence oid)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.oid FROM unnest(insta_ids.id_functions()) f (oid)
        UNION
        SELECT d.objid FROM minting m
        JOIN pg_depend d
            ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_proc'::regclass
    ), users AS (
        SELECT p.pronamespace AS schema, 'pg_proc'::regclass AS classid, p.oid
        FROM minting m JOIN pg_proc p ON p.oid = m.oid
        UNION ALL
        SELECT c.relnamespace, 'pg_attrdef'::regclass, a.oid
        FROM minting m
        JOIN pg_depend d
            ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_attrdef'::regclass
        JOIN pg_attrdef a ON a.oid = d.objid
        JOIN pg_class c ON c.oid = a.adrelid
    )
    SELECT DISTINCT s.shard, c.oid
    FROM users u
    JOIN insta_ids.shard_schema s ON s.oid = u.schema
    JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'S';
END
$$;

-- The last values of sequences, NULL of those that may not be read. No lock is held afterwards: each part is read in a
-- subtransaction that is rolled back.
CREATE FUNCTION insta_ids.last_values(sequences oid[]) RETURNS TABLE (sequence oid, last_value bigint)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    part oid[];
    last_values bigint[];
BEGIN
    FOR part IN
        SELECT array_agg(s.oid ORDER BY s.place)
        FROM unnest(sequences) WITH ORDINALITY s (oid, place)
        JOIN pg_class c ON c.oid = s.oid
        WHERE has_sequence_privilege(s.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE')
            AND NOT (c.relpersistence = 'u' AND pg_is_in_recovery())
        GROUP BY s.place / 100
    LOOP
        last_values := NULL;
        BEGIN
            EXECUTE (
                SELECT 'SELECT ARRAY[' || string_agg(format('(SELECT s.last_value FROM %s s)', s::regclass), ', ') || ']'
                FROM unnest(part) s) INTO last_values;
            RAISE triggered_action_exception;
        EXCEPTION
            WHEN OTHERS THEN NULL;
        END;
        RETURN QUERY SELECT s.* FROM unnest(part, last_values) s;
    END LOOP;
END
$$;

-- What ids of shards are minted from: for which shards, how many values are used of how many, and when the last one is, if
-- it goes on as fast as it did on average since its shard was made, a day at least.
CREATE FUNCTION insta_ids.sequence_budget()
    RETURNS TABLE (sequence oid, name text, shards integer[], used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET enable_nestloop = off
AS $$
BEGIN
    RETURN QUERY
    WITH sequences AS MATERIALIZED (
        SELECT i.sequence, min(h.created_at) AS created_at, array_agg(i.shard ORDER BY i.shard) AS shards
        FROM insta_ids.id_sequences() i JOIN insta_ids.shard h ON h.shard = i.shard GROUP BY i.sequence
    )
    SELECT i.sequence, i.sequence::regclass::text, i.shards, u.used, a.available,
           CASE WHEN u.used > 0 AND r.seconds < 1e11 THEN now() + make_interval(secs => r.seconds::float8) END
    FROM sequences i
    JOIN pg_sequence q ON q.seqrelid = i.sequence
    LEFT JOIN insta_ids.last_values(ARRAY(SELECT s.sequence FROM sequences s)) v ON v.sequence = i.sequence
    CROSS JOIN LATERAL (
        SELECT floor(abs(v.last_value::numeric - q.seqstart) / abs(q.seqincrement::numeric)) AS used
    ) u
    CROSS JOIN LATERAL (
        -- A negative value is an error: what is below 0 is not there to be used.
        SELECT floor(abs(CASE WHEN q.seqincrement > 0 THEN q.seqmax ELSE greatest(q.seqmin, 0) END::numeric - q.seqstart)
            / abs(q.seqincrement::numeric)) AS available
    ) a
    CROSS JOIN LATERAL (
        SELECT (a.available - u.used) * greatest(extract(epoch FROM now() - i.created_at), 86400) / nullif(u.used, 0)
            AS seconds
    ) r;
END
$$;

-- The same of the server and the layout.
CREATE FUNCTION insta_ids.server_budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    last_instant CONSTANT timestamptz := @extschema@.id_time(9223372036854775807, config.layout);
    -- As the server reckons: each process that can have a transaction, and each prepared transaction, so many.
    locks CONSTANT bigint := current_setting('max_locks_per_transaction')::bigint
        * (SELECT sum(setting::bigint) FROM pg_settings
           WHERE name IN ('max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
               'autovacuum_max_workers'));
BEGIN
    RETURN QUERY
    SELECT 'locks of pg_dump', current_database()::text, count(*)::numeric, locks::numeric, NULL::timestamptz
    FROM pg_class c
    -- From PostgreSQL 18 on, sequences are read without.
    WHERE (c.relkind IN ('r', 'p', 'v', 'm') OR c.relkind = 'S' AND current_setting('server_version_num')::integer < 180000)
        AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace);

    RETURN QUERY
    SELECT 'locks of migrate', s.schema::text, 50 * c.relations::numeric, locks::numeric, NULL::timestamptz
    FROM (SELECT c.relnamespace, count(*) AS relations FROM pg_class c GROUP BY 1) c
    JOIN insta_ids.shard_schema s ON s.oid = c.relnamespace
    ORDER BY c.relations DESC, s.shard LIMIT 1;

    RETURN QUERY
    SELECT 'memory of a session that visits all shards', NULL, 12000 * count(*)::numeric, NULL::numeric, NULL::timestamptz
    FROM insta_ids.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f');

    RETURN QUERY
    SELECT 'milliseconds of the layout', config.layout::text,
           round(1000 * extract(epoch FROM now() - epoch)), round(1000 * extract(epoch FROM last_instant - epoch)), last_instant
    FROM @extschema@.id_time(0::bigint, config.layout) epoch;
END
$$;

-- What there is a limit to.
CREATE FUNCTION insta_ids.budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM insta_ids.server_budget()
    UNION ALL
    SELECT 'values of a sequence', s.name, s.used, s.available, s.runs_out FROM insta_ids.sequence_budget() s;
END;

CREATE FUNCTION insta_ids.check_sequences() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT f.severity, f.code, s.name, f.detail, f.hint
    FROM insta_ids.sequence_budget() s
    JOIN pg_sequence q ON q.seqrelid = s.sequence
    JOIN pg_class c ON c.oid = s.sequence
    CROSS JOIN LATERAL (VALUES
        ('warning', cardinality(s.shards) > 1, 'shared_sequence',
            format('Shards that use it: %s.', array_to_string(s.shards[:10], ', ')
                || CASE WHEN cardinality(s.shards) > 10 THEN format(' and %s more', cardinality(s.shards) - 10) ELSE '' END),
            'Give each shard a sequence of its own, else no shard can be moved without the others.'),
        ('warning', q.seqtypid <> 'bigint'::regtype, 'sequence_type', format('It is a sequence of %s.', q.seqtypid::regtype),
            format('ALTER SEQUENCE %s AS bigint', s.name)),
        ('warning', q.seqcycle, 'sequence_cycle',
            'At its end it begins anew, and some of its remainders then come twice as often as others.',
            format('ALTER SEQUENCE %s NO CYCLE', s.name)),
        ('warning', c.relpersistence = 'u', 'sequence_unlogged',
            'After a crash it begins anew, and on a standby it is not there.', format('ALTER SEQUENCE %s SET LOGGED', s.name)),
        (CASE WHEN s.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END,
            s.runs_out < now() + interval '1 year', 'end_of_sequence',
            format('%s of %s values are used; as fast as until now, the last one is at %s.', s.used, s.available, s.runs_out),
            format('Begin it anew, which repeats no id: ALTER SEQUENCE %s RESTART', s.name))
    ) f (severity, is_found, code, detail, hint)
    WHERE f.is_found
    ORDER BY s.shards, s.name, f.code;
END
$$;

-- Ids

-- Of the ids in a column: those of other shards, of the future and of no time at all. Of all rows, or of the oldest and
-- newest only. `until` is a time that ids have not reached.
CREATE FUNCTION insta_ids.check_ids_of(
        relation regclass, "column" name, shard integer, until timestamptz, every_row boolean)
    RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    -- Heirs may lack the index.
    source CONSTANT text := CASE
        WHEN every_row OR (SELECT c.relkind FROM pg_class c WHERE c.oid = relation) = 'p' THEN '' ELSE 'ONLY ' END || relation;
    object CONSTANT text := format('%s.%I', relation, "column");
    first_beyond CONSTANT bigint := @extschema@.id_min(until, layout);
    what CONSTANT text := CASE WHEN every_row THEN 'ids' ELSE 'ids at the ends of its index' END;
    own text;
    found record;
BEGIN
    -- One that was dropped has no name.
    IF relation::text ~ '^[0-9]+$' THEN
        RETURN;
    END IF;
    own := format('@extschema@.id_shard(id, %L)', layout);
    EXECUTE format($query$
        WITH ids (id) AS (%1$s)
        SELECT count(*) AS ids,
               count(*) FILTER (WHERE id < 0) AS negative, max(id) FILTER (WHERE id < 0) AS a_negative,
               count(*) FILTER (WHERE id >= 0 AND %2$s <> %3$s) AS strange,
               min(id) FILTER (WHERE id >= 0 AND %2$s <> %3$s) AS a_strange,
               count(*) FILTER (WHERE id >= %4$s AND %2$s = %3$s) AS future,
               max(id) FILTER (WHERE id >= %4$s AND %2$s = %3$s) AS newest
        FROM ids $query$,
        format(CASE WHEN every_row THEN 'SELECT %I::bigint FROM %s WHERE %1$I IS NOT NULL'
            ELSE '(SELECT %I::bigint FROM %s WHERE %1$I IS NOT NULL ORDER BY %1$I LIMIT 1) UNION ALL'
                || ' (SELECT %1$I::bigint FROM %2$s WHERE %1$I IS NOT NULL ORDER BY %1$I DESC LIMIT 1)' END,
            "column", source),
        own, shard, first_beyond) INTO found;
    IF found.negative > 0 THEN
        RETURN NEXT ROW('error', 'negative_ids', object,
            format('Of %s %s, %s are negative, as %s is.', found.ids, what, found.negative, found.a_negative),
            format('Give them new ids: UPDATE %s SET %I = DEFAULT WHERE %2$I < 0', source, "column"))::insta_ids.finding;
    END IF;
    IF found.strange > 0 THEN
        RETURN NEXT ROW('error', 'foreign_ids', object,
            format('Of %s %s, %s are of other shards, as %s is, of shard %s.', found.ids, what, found.strange,
                found.a_strange, @extschema@.id_shard(found.a_strange, layout)),
            format('Move them to their shards, or give them new ids: UPDATE %s SET %I = DEFAULT WHERE %s <> %s',
                source, "column", replace(own, '(id,', format('(%I,', "column")), shard))::insta_ids.finding;
    END IF;
    IF found.future > 0 THEN
        RETURN NEXT ROW('error', 'future_ids', object,
            format('Of %s %s, %s are of the future, to %s; they can be minted again when that time comes.',
                found.ids, what, found.future, @extschema@.id_time(found.newest, layout)),
            CASE WHEN @extschema@.id_time(found.newest, layout) + interval '2 s'
                    < clock_timestamp() + current_setting('insta_ids.clock_tolerance')::interval
                THEN format('As a superuser: SELECT insta_ids.advance_clock(%L)',
                    @extschema@.id_time(found.newest, layout) + interval '2 s')
                ELSE format('Give them new ids: UPDATE %s SET %I = DEFAULT WHERE %2$I >= %s', source, "column", first_beyond)
            END)::insta_ids.finding;
    END IF;
END
$$;

-- A time that ids of this server have not reached.
CREATE FUNCTION insta_ids.time_not_reached() RETURNS timestamptz
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- They are ahead of the time of ids by `insta_ids.max_ahead_ms` at most, which is at most a second.
    RETURN (SELECT greatest(c.system_time, c.id_time) + interval '1 s' FROM insta_ids.clock() c);
EXCEPTION
    -- Where they cannot be minted, those that are there came from elsewhere, by another clock.
    WHEN object_not_in_prerequisite_state THEN RETURN clock_timestamp() + interval '2 s';
END
$$;

-- The oldest and newest id of 200 columns, by chance. Reading them is rolled back, too, so that no lock is held.
CREATE FUNCTION insta_ids.check_ids() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    until CONSTANT timestamptz := insta_ids.time_not_reached();
    sample CONSTANT integer := 200;
    shards CONSTANT integer[] := ARRAY(
        SELECT s.shard FROM insta_ids.shard_schema s WHERE s.oid IS NOT NULL ORDER BY random() LIMIT sample);
    -- Without an index, its ends cannot be found.
    columns CONSTANT text := $query$
        SELECT ARRAY[m.relation::oid::text, m."column", m.shard::text]
        FROM insta_ids.minting_columns($1) m
        JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        JOIN pg_attribute a ON a.attrelid = m.relation AND a.attname = m."column"
        WHERE EXISTS (
            SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
            JOIN pg_am b ON b.oid = x.relam AND b.amname = 'btree'
            WHERE i.indrelid = m.relation AND i.indkey[0] = a.attnum AND i.indpred IS NULL AND i.indisvalid) $query$;
    minting record;
    findings insta_ids.finding[];
    unread text[] := '{}';
BEGIN
    FOR minting IN
        SELECT p.line[1]::oid::regclass AS relation, p.line[2]::name AS "column", p.line[3]::integer AS shard
        FROM insta_ids.read_parts(shards, columns) p WHERE p.line IS NOT NULL ORDER BY random() LIMIT sample
    LOOP
        findings := NULL;
        BEGIN
            findings := ARRAY(
                SELECT f FROM insta_ids.check_ids_of(minting.relation, minting."column", minting.shard, until, false) f);
            RAISE triggered_action_exception;
        EXCEPTION
            -- Also of what its owner has made to be run when it is read.
            WHEN OTHERS THEN
                IF findings IS NULL THEN
                    unread := unread || format('%s: %s', minting.relation, SQLERRM);
                END IF;
        END;
        RETURN QUERY SELECT f.* FROM unnest(findings) f;
    END LOOP;
    RETURN QUERY SELECT f.* FROM insta_ids.not_read('Tables whose ids', unread) f;
END
$$;

-- The server

CREATE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM),
                'Add insta_ids to "shared_preload_libraries" in postgresql.conf, and restart the server.')::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT CASE WHEN b.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END, f.code, b.object, f.detail, f.hint
    FROM insta_ids.server_budget() b
    CROSS JOIN LATERAL (SELECT format('"max_locks_per_transaction" = %s',
        ceil(1.25 * b.used / nullif(b.available, 0) * current_setting('max_locks_per_transaction')::integer)) AS setting) s
    CROSS JOIN LATERAL (VALUES
        ('locks of pg_dump', b.used > b.available, 'locks_of_pg_dump',
            format('It needs %s locks, and the server has %s for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server.', s.setting)),
        ('locks of migrate', b.used > b.available, 'locks_of_migrate',
            format('50 shards like this one have %s relations, and the server has %s locks for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server; or call migrate with a smaller batch.', s.setting)),
        ('milliseconds of the layout', b.runs_out < now() + interval '5 years', 'end_of_layout',
            format('The last instant of the layout is %s.', b.runs_out),
            'Plan for ids of another layout in a new database: no id can be minted after that.')
    ) f (resource, is_found, code, detail, hint)
    WHERE f.resource = b.resource AND f.is_found;
END
$$;

-- All of it

-- Each part in a subtransaction that is rolled back, so that no lock is held; and again if others have changed what it was
-- looking at.
CREATE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
    -- For what is read of thousands of shards at once.
    SET work_mem = '64MB'
AS $$
DECLARE
    attempts CONSTANT integer := 3;
    part text;
    findings insta_ids.finding[];
BEGIN
    PERFORM insta_ids.configured();
    FOREACH part IN ARRAY ARRAY['server', 'schemas', 'migrations', 'objects', 'tables', 'sequences', 'ids'] LOOP
        FOR attempt IN 1 .. attempts LOOP
            BEGIN
                EXECUTE format('SELECT array_agg(f) FROM insta_ids.%I() f', 'check_' || part) INTO findings;
                RAISE triggered_action_exception;
            EXCEPTION
                WHEN triggered_action_exception THEN
                    RETURN QUERY SELECT f.* FROM unnest(findings) f;
                    EXIT;
                WHEN OTHERS THEN
                    IF attempt = attempts THEN
                        RETURN QUERY
                        SELECT f.*
                        FROM insta_ids.not_read('Parts of this', ARRAY[format('check_%s: %s', part, SQLERRM)]) f;
                    END IF;
            END;
        END LOOP;
    END LOOP;
    PERFORM insta_ids.limit_catalog_cache();
END
$$;

CREATE PROCEDURE insta_ids.check_rows(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    minting pg_catalog.record;
    wrong pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    until pg_catalog.timestamptz;
    is_sound boolean;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM insta_ids.check_range(first, last, batch);
    until := insta_ids.time_not_reached();
    todo := ARRAY(
        SELECT s.shard FROM insta_ids.shard_schema s
        WHERE s.oid IS NOT NULL AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('check_rows', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        -- To the end of the transaction, which ends with each batch.
        PERFORM set_config('row_security', 'off', true);
        is_sound := true;
        FOR minting IN
            SELECT m.* FROM insta_ids.minting_columns(ARRAY[number]) m
            JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        LOOP
            FOR wrong IN
                SELECT * FROM insta_ids.check_ids_of(minting.relation, minting."column", number,
                    greatest(until, clock_timestamp() + interval '2 s'), true)
            LOOP
                is_sound := false;
                RAISE WARNING USING
                    MESSAGE = format('%s in %s', replace(wrong.code, '_', ' '), wrong.object),
                    DETAIL = wrong.detail, HINT = wrong.hint;
            END LOOP;
        END LOOP;
        done := done + 1;
        failed := failed + (NOT is_sound)::integer;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('check_rows', cardinality(todo), done, failed);
        END IF;
    END LOOP;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation',
            MESSAGE = format('%s of %s shards have ids that should not be there', failed, cardinality(todo)),
            DETAIL = 'A warning tells of each column that has.';
    END IF;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

-- Coming from elsewhere, and leaving: schemas that run the published function.

-- What a function mints, from its source; `reason` says why it is none that mints ids of this layout. An operand is a
-- constant, or the number of an argument. `native` is one that calls next_id.
CREATE FUNCTION insta_ids.read_function(
        source text, plpgsql boolean, arguments text[], result text, layout @extschema@.id_layout)
    RETURNS TABLE (
        shard integer, shard_argument integer, sequence text, sequence_argument integer, native boolean, reason text)
    IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'read_function_wrapper';
-- The published function, as a body in PL/pgSQL with an argument OUT result.
CREATE FUNCTION insta_ids.write_function(layout @extschema@.id_layout, shard text, sequence text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'write_function_wrapper';

CREATE FUNCTION insta_ids.lock_sequence(sequence oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_sequence_wrapper';

-- What mints in a schema

-- The sequence that a function with these settings means by a name; `reason` says why it is none.
CREATE FUNCTION insta_ids.named_sequence(name text, settings text[], OUT sequence regclass, OUT reason text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    path CONSTANT text := (
        SELECT substr(s, length('search_path=') + 1) FROM unnest(settings) s WHERE starts_with(s, 'search_path='));
BEGIN
    IF cardinality(parse_ident(name)) = 1 AND (path IS NULL OR path LIKE '%$user%') THEN
        reason := format('Which sequence "%s" is, depends on who calls it.', left(name, 63));
        RETURN;
    END IF;
    -- Last, as a temporary sequence is of who calls this.
    PERFORM set_config('search_path', concat_ws(', ', path, 'pg_temp'), true);
    sequence := pg_catalog.to_regclass(name);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence AND c.relkind = 'S') THEN
        sequence := NULL;
        reason := format('There is no sequence %s.', left(name, 127));
    END IF;
EXCEPTION
    -- What is no name at all.
    WHEN invalid_parameter_value OR invalid_name OR syntax_error OR feature_not_supported THEN
        reason := format('There is no sequence %s.', left(name, 127));
END
$$;

-- The functions of a schema that mint, or look as if they did: that call next_id, or that make something of nextval and
-- the time.
CREATE FUNCTION insta_ids.minting_functions(schema regnamespace)
    RETURNS TABLE (
        function regprocedure, shard integer, shard_argument integer, sequence regclass, sequence_argument integer,
        native boolean, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    minting CONSTANT oid[] := insta_ids.id_functions();
    candidate record;
    found record;
    named record;
BEGIN
    FOR candidate IN
        SELECT p.oid::regprocedure AS function, l.lanname = 'plpgsql' AS plpgsql, s.source, p.proconfig,
               coalesce(nullif(a.names, '{}'), array_fill(''::text, ARRAY[p.pronargs::integer])) AS arguments, a.result,
               CASE
                   WHEN p.prorettype <> 'bigint'::regtype THEN format('It returns %s.', format_type(p.prorettype, NULL))
                   WHEN p.proretset OR p.prokind <> 'f' OR a.is_odd THEN 'It does not return one number.'
                   -- Where pg_catalog is not named, it comes first; and of pg_temp, no functions are called.
                   WHEN EXISTS (
                       SELECT FROM unnest(p.proconfig) c
                       WHERE c ~* '^search_path=.*,\s*"?pg_catalog"?\s*(,|$)'
                           AND c !~* '^search_path=\s*("?pg_temp"?\s*,\s*)?"?pg_catalog"?\s*(,|$)')
                   THEN 'Its search_path has another schema before pg_catalog, whose functions it may call.'
               END AS reason
        FROM pg_proc p
        JOIN pg_language l ON l.oid = p.prolang AND l.lanname IN ('plpgsql', 'sql')
        CROSS JOIN LATERAL coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) s (source)
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(n.name ORDER BY n.place) FILTER (WHERE n.mode IS NULL OR n.mode <> 'o'), '{}') AS names,
                   min(n.name) FILTER (WHERE n.mode = 'o') AS result,
                   -- One OUT argument at most, and that the last.
                   bool_or(n.mode NOT IN ('i', 'o') OR n.mode = 'o' AND n.place < cardinality(p.proargmodes)) AS is_odd
            FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY n (name, mode, place)
        ) a
        WHERE p.pronamespace = schema
            AND (s.source ~* 'nextval' AND s.source ~* '<<|epoch'
                OR EXISTS (
                    SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                        AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (minting)))
        ORDER BY p.oid
    LOOP
        SELECT * INTO found
        FROM insta_ids.read_function(
            candidate.source, candidate.plpgsql, candidate.arguments, candidate.result, layout);
        SELECT * INTO named
        FROM insta_ids.named_sequence(found.sequence, candidate.proconfig) WHERE found.sequence IS NOT NULL;
        function := candidate.function;
        shard := found.shard;
        shard_argument := found.shard_argument;
        sequence := named.sequence;
        sequence_argument := found.sequence_argument;
        native := found.native;
        reason := coalesce(candidate.reason, found.reason, named.reason);
        RETURN NEXT;
    END LOOP;
END
$$;

-- Columns of ids: those whose default calls what mints in this schema; or, in it, next_id itself. An heir's are read, and
-- get their CHECK, with its parent's.
CREATE FUNCTION insta_ids.filled_columns(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, is_heir boolean)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.function::oid AS oid, f.shard_argument IS NOT NULL AS is_told_shard
        FROM insta_ids.minting_functions(schema) f
        UNION
        SELECT n.oid, true FROM unnest(insta_ids.id_functions()) n (oid)
        UNION
        SELECT p.oid, false FROM minting m
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_proc'::regclass
        JOIN pg_proc p ON p.oid = d.objid AND p.pronamespace = schema
    ), filled AS (
        SELECT c.oid, a.attname, max(s.shard) AS shard
        FROM minting m
        JOIN pg_proc p ON p.oid = m.oid
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_attrdef'::regclass
        JOIN pg_attrdef x ON x.oid = d.objid
        JOIN pg_class c ON c.oid = x.adrelid AND c.relkind IN ('r', 'p')
        JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        LEFT JOIN LATERAL unnest(insta_ids.minted_shards(x.adbin::text, ARRAY[m.oid])) s (shard) ON m.is_told_shard
        WHERE schema IN (p.pronamespace, c.relnamespace)
        GROUP BY c.oid, a.attname
    )
    SELECT f.oid::regclass, f.attname, f.shard, EXISTS (
        SELECT FROM pg_inherits i JOIN filled p ON p.oid = i.inhparent AND p.attname = f.attname WHERE i.inhrelid = f.oid)
    FROM filled f
    ORDER BY f.oid, f.attname;
END
$$;

-- The sequences that what mints in a schema takes values of: all of its own, if one of its functions can be told any.
CREATE FUNCTION insta_ids.minting_sequences(schema regnamespace) RETURNS SETOF regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT f.sequence FROM insta_ids.minting_functions(schema) f WHERE f.sequence IS NOT NULL
    UNION
    SELECT c.oid::pg_catalog.regclass
    FROM insta_ids.filled_columns(schema) f
    JOIN pg_catalog.pg_attribute a ON a.attrelid = f.relation AND a.attname = f."column"
    JOIN pg_catalog.pg_attrdef x ON x.adrelid = a.attrelid AND x.adnum = a.attnum
    JOIN pg_catalog.pg_depend d
        ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = x.oid
        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
    UNION
    SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c
    WHERE c.relnamespace = schema AND c.relkind = 'S'
        AND EXISTS (SELECT FROM insta_ids.minting_functions(schema) f WHERE f.sequence_argument IS NOT NULL);
END;

-- All that adopt and release go by, to tell whether somebody has changed it.
CREATE FUNCTION insta_ids.minting_state(schema regnamespace) RETURNS text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.concat(
        (SELECT pg_catalog.array_agg(f ORDER BY f.function) FROM insta_ids.minting_functions(schema) f),
        (SELECT pg_catalog.array_agg(c ORDER BY c.relation, c."column") FROM insta_ids.filled_columns(schema) c));
END;

-- Stopping, and going on

-- Locks the tables of the schema, others that are filled in it, with all their partitions and heirs, and the sequences
-- until the transaction ends, when nobody is using them. Also tables that nothing fills: a statement that calls a function
-- for rows of theirs is planned before the function is changed, or after that. Who comes meanwhile waits for a tenth of a
-- second at most, and then goes on while this waits: so nobody waits long; and of two that wait for each other it is this
-- that gives way, before the other is told of a deadlock.
CREATE FUNCTION insta_ids.stop_minting(schema regnamespace, lock_timeout text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    longest CONSTANT interval := least(interval '100 ms', current_setting('deadlock_timeout')::interval / 2);
    tables CONSTANT regclass[] := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT c.relation::oid FROM insta_ids.filled_columns(schema) c
            UNION SELECT c.oid FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
        )
        SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.relation AND c.relkind IN ('r', 'p') ORDER BY c.oid);
    sequences CONSTANT regclass[] := ARRAY(SELECT s FROM insta_ids.minting_sequences(schema) s ORDER BY s);
    limit_ms integer;
    next_attempt timestamptz;
    wanted regclass;
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout, true);
    limit_ms := (SELECT s.setting FROM pg_settings s WHERE s.name = 'lock_timeout');
    LOOP
        next_attempt := clock_timestamp() + longest;
        BEGIN
            FOREACH wanted IN ARRAY tables || sequences LOOP
                PERFORM set_config('lock_timeout',
                    greatest(1, extract(epoch FROM next_attempt - clock_timestamp()) * 1000)::integer::text, true);
                IF wanted = ANY (tables) THEN
                    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', wanted);
                ELSE
                    PERFORM insta_ids.lock_sequence(wanted);
                END IF;
            END LOOP;
            RETURN;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
        IF limit_ms > 0 AND clock_timestamp() > began + limit_ms * interval '1 ms' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('could not lock the tables and sequences of schema %s', schema),
                DETAIL = format('%s is in use%s.', wanted, (
                    SELECT ' by ' || string_agg(DISTINCT coalesce('process ' || l.pid,
                        format('prepared transaction "%s"', x.gid)), ', ')
                    FROM pg_locks l
                    -- A transaction that is prepared has no process, and holds its own number.
                    LEFT JOIN pg_locks t
                        ON l.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
                    LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                    WHERE l.locktype = 'relation' AND l.relation = wanted AND l.granted
                        AND l.pid IS DISTINCT FROM pg_backend_pid()
                        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))),
                HINT = 'Call again when long transactions have ended, or with a longer lock_timeout.';
        END IF;
        PERFORM pg_sleep(0.02 + 0.08 * random());
    END LOOP;
END
$$;

-- Waits until the clock has come to where ids are greater than all of this instant: not for long, as others wait for the
-- locks. It is farther only when the clock was set back since that was looked at.
CREATE FUNCTION insta_ids.await_clock(past timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    until CONSTANT timestamptz := @extschema@.id_time(@extschema@.id_max(past, layout) + 1, layout);
    ahead interval;
BEGIN
    LOOP
        ahead := until - clock_timestamp();
        EXIT WHEN ahead <= interval '0';
        IF ahead > interval '5 s' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('clock is %s behind the newest id', ahead),
                HINT = 'Call again when the clock has come there.';
        END IF;
        PERFORM pg_sleep(extract(epoch FROM ahead));
    END LOOP;
END
$$;

-- Gives a function another body. What else is known of it stays: its arguments, owner and privileges, and its settings
-- where they mean something to this body.
CREATE FUNCTION insta_ids.rewrite_function(function regprocedure, language text, body text, has_settings boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    arguments text := pg_get_function_arguments(function);
    result text;
    settings text;
BEGIN
    -- The result has the name that the published function assigns to.
    IF language = 'plpgsql' THEN
        IF 'o' = ANY (old.proargmodes) THEN
            result := old.proargnames[cardinality(old.proargmodes)];
            arguments := left(arguments, - length(concat_ws(' ', 'OUT', quote_ident(nullif(result, '')), 'bigint')));
        ELSIF arguments <> '' THEN
            arguments := arguments || ', ';
        END IF;
        arguments := arguments || 'OUT result bigint';
    END IF;
    IF has_settings THEN
        settings := (
            SELECT string_agg(format(' SET %s = %s', s.name,
                -- A list is kept as it is written, but for an empty one.
                CASE WHEN s.name NOT IN ('search_path', 'temp_tablespaces') OR s.value IN ('', '""')
                    THEN quote_literal(nullif(s.value, '""')) ELSE s.value END), '')
            FROM unnest(old.proconfig) c
            CROSS JOIN LATERAL (SELECT split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)) s (name, value));
    END IF;
    -- What runs as its owner runs nothing of its caller's; where an argument names a sequence, that is by the caller's path.
    IF old.prosecdef AND language = 'plpgsql' AND 'text'::regtype <> ALL (old.proargtypes)
        AND coalesce(settings NOT LIKE '% SET search_path = %', true)
    THEN
        settings := concat(settings, ' SET search_path = pg_catalog, pg_temp');
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE %s%s%s %s',
        old.pronamespace::regnamespace, old.proname, arguments, language,
        CASE WHEN old.prosecdef THEN ' SECURITY DEFINER' END, settings, body);
END
$$;

-- Adopting

-- What is against a schema's adoption, apart from its rows.
CREATE FUNCTION insta_ids.adoption_reasons(schema regnamespace, shard integer) RETURNS SETOF text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT format('Function %s: %s', f.function, coalesce(f.reason, format('It mints for shard %s.', f.shard)))
    FROM insta_ids.minting_functions(schema) f
    WHERE f.reason IS NOT NULL OR f.shard <> adoption_reasons.shard;

    RETURN QUERY
    SELECT format('Default of %s.%I: It mints for shard %s.', c.relation, c."column", c.shard)
    FROM insta_ids.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard;

    IF NOT EXISTS (SELECT FROM insta_ids.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids.filled_columns(schema))
    THEN
        RETURN NEXT 'It has no function like the published one.';
    END IF;

    -- Each shard has table_id_seq, next_id() and next_id(regclass).
    RETURN QUERY
    SELECT format('Relation %s: It is no sequence, and each shard has one of this name.', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = schema AND c.relname = 'table_id_seq' AND c.relkind <> 'S';

    RETURN QUERY
    SELECT format('Function %s: With %s.next_id(%s) beside it, its calls would be ambiguous.', p.oid::regprocedure,
               schema, CASE WHEN p.pronargs > p.pronargdefaults THEN 'regclass' END)
    FROM pg_proc p
    JOIN pg_type t ON t.oid = p.proargtypes[0]
    WHERE p.pronamespace = schema AND p.proname = 'next_id'
        AND (p.pronargs = p.pronargdefaults
            OR p.pronargs = p.pronargdefaults + 1 AND t.typcategory = 'N'
                AND t.oid NOT IN ('integer'::regtype, 'regclass'::regtype));
END
$$;

-- Refuses what cannot be adopted. Reads all rows, or the ends of indexes only; the oldest and newest id that it has seen.
CREATE FUNCTION insta_ids.check_adoption(
        schema regnamespace, shard integer, every_row boolean, OUT oldest bigint, OUT newest bigint)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    tolerance CONSTANT text := current_setting('insta_ids.clock_tolerance');
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    reasons text[] := ARRAY(SELECT r FROM insta_ids.adoption_reasons(schema, shard) r);
    hints text[] := '{}';
    filled record;
    finding insta_ids.finding;
    ends record;
BEGIN
    FOR filled IN
        SELECT f.relation, f."column", CASE WHEN every_row OR c.relkind = 'p' THEN '' ELSE 'ONLY ' END AS only
        FROM insta_ids.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        WHERE CASE WHEN every_row OR c.relispartition THEN NOT f.is_heir ELSE true END
            AND (every_row OR EXISTS (
                SELECT FROM pg_index i
                JOIN pg_class x ON x.oid = i.indexrelid
                JOIN pg_am b ON b.oid = x.relam AND b.amname = 'btree'
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = f."column"
                WHERE i.indrelid = f.relation AND i.indpred IS NULL AND i.indisvalid))
    LOOP
        FOR finding IN
            SELECT * FROM insta_ids.check_ids_of(filled.relation, filled."column", shard, until, every_row)
        LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until none is ahead of the clock by more than %s.', tolerance)
                ELSE finding.hint END;
        END LOOP;
        EXECUTE format('SELECT min(%I)::bigint AS oldest, max(%1$I)::bigint AS newest FROM %s%s',
            filled."column", filled.only, filled.relation) INTO ends;
        oldest := least(oldest, ends.oldest);
        newest := greatest(newest, ends.newest);
    END LOOP;
    IF hints <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n'),
            HINT = array_to_string(hints, E'\n');
    ELSIF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Makes the shard known, and all migrations as ones that it has.
CREATE FUNCTION insta_ids.claim_shard(schema regnamespace, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := insta_ids.schema_of(shard);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = schema AND n.nspname = name) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_schema_name',
            MESSAGE = format('schema %s is not called like shard %s', schema, shard),
            DETAIL = format('The schema of shard %s is called %I.', shard, name),
            HINT = format('Rename it: ALTER SCHEMA %s RENAME TO %I', schema, name);
    END IF;
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (claim_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- Locked, so that nobody replaces meanwhile what is recorded here.
    INSERT INTO insta_ids.shard_migration (shard, migration)
    SELECT claim_shard.shard, m.number FROM insta_ids.migration m FOR SHARE;
END
$$;

-- Refuses ids of the future to who may not raise the time of ids to them. Those that come while one looks are waited for.
CREATE FUNCTION insta_ids.check_future(newest timestamptz) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF newest IS NULL OR newest < clock_timestamp() + interval '100 ms' THEN
        RETURN false;
    ELSIF NOT has_function_privilege('insta_ids.advance_clock(timestamptz)', 'EXECUTE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'newest id is of the future',
            DETAIL = format('It is of %s.', newest),
            HINT = 'Wait until then, or have a superuser adopt the schema.';
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION insta_ids.adopt(schema regnamespace, shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    layout_argument CONSTANT text := insta_ids.layout_argument(layout);
    state text;
    ids record;
    ends record;
    newest timestamptz;
    stopped_at timestamptz;
    next record;
BEGIN
    PERFORM insta_ids.check_isolation('a schema cannot be adopted'), set_config('lock_timeout', lock_timeout, true);
    PERFORM insta_ids.claim_shard(schema, shard);

    -- What is against it is found out while everybody goes on; and, as far as that is quick, that it is so still.
    state := insta_ids.minting_state(schema);
    BEGIN
        SELECT * INTO ids FROM insta_ids.check_adoption(schema, shard, true);
        -- Rolled back, so that nobody waits for having been looked at.
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN NULL;
    END;
    PERFORM insta_ids.check_future(@extschema@.id_time(ids.newest, layout));
    PERFORM insta_ids.stop_minting(schema, lock_timeout);
    stopped_at := clock_timestamp();
    IF insta_ids.minting_state(schema) IS DISTINCT FROM state THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('schema %s was changed while it was looked at', schema),
            HINT = 'Call again.';
    END IF;
    SELECT * INTO ends FROM insta_ids.check_adoption(schema, shard, false);
    newest := @extschema@.id_time(greatest(ids.newest, ends.newest), layout);

    FOR next IN
        SELECT f.function, coalesce(f.shard::text, format('($%s)::integer', f.shard_argument)) AS shard,
               coalesce(quote_literal(f.sequence), format('($%s)::regclass', f.sequence_argument)) AS sequence,
               -- Else it has none, so that calls of it are those of next_id.
               p.prosecdef OR p.proargtypes[f.sequence_argument - 1] <> 'regclass'::regtype AS has_settings
        FROM insta_ids.minting_functions(schema) f
        JOIN pg_proc p ON p.oid = f.function
        WHERE NOT f.native
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'sql',
            format('RETURN @extschema@.next_id(%s, %s%s)', next.shard, next.sequence, layout_argument),
            coalesce(next.has_settings, false));
    END LOOP;
    UPDATE insta_ids.shard s SET created_at = least(now(), @extschema@.id_time(least(ids.oldest, ends.oldest), layout))
    WHERE s.shard = adopt.shard;
    PERFORM insta_ids.make_surface(shard);
    FOR next IN SELECT * FROM insta_ids.minting_columns(ARRAY[shard]) m WHERE m."check" IS NULL LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', next.relation, next.expression);
    END LOOP;

    -- Ids begin after all that the function gave out, which may have rounded its milliseconds up. By one id, their time is
    -- set, and written down.
    IF insta_ids.check_future(newest) THEN
        PERFORM insta_ids.advance_clock(@extschema@.id_time(@extschema@.id_max(newest, layout) + 1, layout));
    ELSE
        PERFORM insta_ids.await_clock(greatest(stopped_at + interval '1 ms', newest));
    END IF;
    EXECUTE format('SELECT @extschema@.next_id($1, $2%s)', layout_argument)
    USING shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass;
END
$$;

-- Releasing

-- Columns whose default calls next_id itself, and what it mints for and from.
CREATE FUNCTION insta_ids.native_defaults(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, sequence regclass, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass, a.attname, r.shard, to_regclass(r.sequence),
           coalesce(r.reason, CASE WHEN r.sequence IS NULL OR NOT r.native THEN 'It is not one of insta_ids.' END)
    FROM pg_class c
    JOIN pg_attrdef x ON x.adrelid = c.oid
    JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = x.oid AND d.refclassid = 'pg_proc'::regclass
    CROSS JOIN LATERAL insta_ids.read_function(
        'RETURN ' || pg_get_expr(x.adbin, x.adrelid), false, '{}', NULL, (insta_ids.configured()).layout) r
    WHERE c.relnamespace = schema
        AND d.refobjid = ANY (insta_ids.id_functions());
END
$$;

-- Refuses what cannot be released.
CREATE FUNCTION insta_ids.check_release(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN format('It mints for shard %s.', f.shard)
                   ELSE coalesce(f.reason, 'It is not one of insta_ids.') END)
        FROM insta_ids.minting_functions(schema) f
        WHERE f.reason IS NOT NULL OR NOT f.native OR f.shard <> check_release.shard
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that it is told, and the default of %s.%I'
                    || ' would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids.native_defaults(schema) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR NOT f.native OR f.reason IS NOT NULL))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids.native_defaults(schema) d
        WHERE d.reason IS NOT NULL OR d.shard <> check_release.shard);
BEGIN
    IF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be released', schema),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Waits until the clock is where ids are, if that is soon.
CREATE FUNCTION insta_ids.await_ids(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ahead interval;
BEGIN
    -- After a start of the server, the time of ids is not known before the first of them.
    EXECUTE format('SELECT @extschema@.next_id($1, $2%s)', insta_ids.layout_argument((insta_ids.configured()).layout))
    USING shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass;
    ahead := (SELECT c.ahead FROM insta_ids.clock() c);
    IF ahead > interval '2 s' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('time of ids is ahead of the clock by %s', ahead),
            DETAIL = 'The published function goes by the clock, and could repeat ids.',
            HINT = 'Call again when the clock has come there.';
    END IF;
    PERFORM pg_sleep(extract(epoch FROM ahead));
END
$$;

CREATE FUNCTION insta_ids.release(schema regnamespace, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    PERFORM insta_ids.check_isolation('a schema cannot be released'), set_config('lock_timeout', lock_timeout, true);
    -- What another session migrates or releases is waited for.
    SELECT s.shard INTO number
    FROM insta_ids.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids.shard_schema h WHERE h.oid = release.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids.check_release(schema, number);
    PERFORM insta_ids.make_surface(number);
    PERFORM insta_ids.await_ids(number);
    PERFORM insta_ids.stop_minting(schema, lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + current_setting('insta_ids.max_ahead_ms')::interval;
    PERFORM insta_ids.check_release(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND pg_get_expr(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids.native_defaults(schema) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%L::regclass)',
            next.relation, next."column", schema, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids.minting_functions(schema) f
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'plpgsql',
            format('AS %L', insta_ids.write_function(layout, next.shard, next.sequence)), true);
    END LOOP;
    PERFORM insta_ids.tell_of_dependents(schema);
    DELETE FROM insta_ids.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids.shard s WHERE s.shard = number;

    -- What the function gives out comes after every id that was minted here.
    PERFORM insta_ids.await_clock(last_ids);
END
$$;

-- Tells of what in a shard's schema still depends on the extension, and of what elsewhere still mints for the shard, or
-- from its sequences.
CREATE FUNCTION insta_ids.tell_of_dependents(schema regnamespace) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := (SELECT s.shard FROM insta_ids.shard_schema s WHERE s.oid = tell_of_dependents.schema);
    told record;
BEGIN
    FOR told IN
        WITH RECURSIVE parts AS (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema
            UNION
            SELECT d.classid, d.objid
            FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
            WHERE d.deptype <> 'n'
        ), dependents AS (
            SELECT d.classid, d.objid, d.objsubid,
                   (d.classid, d.objid) IN (SELECT * FROM parts) AS is_inside,
                   bool_or(d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (insta_ids.id_functions())) AS mints
            FROM pg_extension x
            JOIN pg_depend e ON e.refclassid = 'pg_extension'::regclass AND e.refobjid = x.oid AND e.deptype = 'e'
            JOIN pg_depend d ON d.refclassid = e.classid AND d.refobjid = e.objid AND d.deptype IN ('n', 'a')
            WHERE x.extname = 'insta_ids'
            GROUP BY 1, 2, 3
        )
        SELECT 'schema %s still depends on the extension' AS message,
               'Change or drop them before the extension is dropped.' AS hint,
               count(*) AS objects, min(pg_describe_object(d.classid, d.objid, d.objsubid)) AS one
        FROM dependents d WHERE d.is_inside
        UNION ALL
        SELECT 'ids of shard %2$s are still minted outside of schema %1$s',
               'They can repeat ids of the schema. Let them call its next_id().',
               count(*), min(pg_describe_object(d.classid, d.objid, d.objsubid))
        FROM dependents d
        LEFT JOIN pg_attrdef x ON d.classid = 'pg_attrdef'::regclass AND x.oid = d.objid
        LEFT JOIN pg_proc f ON d.classid = 'pg_proc'::regclass AND f.oid = d.objid
        WHERE d.mints AND NOT d.is_inside
            AND (number = ANY (
                    insta_ids.minted_shards(coalesce(x.adbin::text, f.prosqlbody::text), insta_ids.id_functions()))
                OR EXISTS (
                    SELECT FROM pg_depend s JOIN pg_class c ON c.oid = s.refobjid
                    WHERE s.classid = d.classid AND s.objid = d.objid AND s.refclassid = 'pg_class'::regclass
                        AND c.relkind = 'S' AND c.relnamespace = schema))
    LOOP
        CONTINUE WHEN told.objects = 0;
        RAISE NOTICE USING
            MESSAGE = format(told.message, schema, number),
            DETAIL = format('Objects that do: %s. One is %s.', told.objects, told.one),
            HINT = told.hint;
    END LOOP;
END
$$;

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT oid::regclass::text, relname, relowner, relacl
            FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proname, proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'insta_ids'::regnamespace
        ) o (object, name, owner, acl), aclexplode(acl)
        WHERE grantee <> owner AND name IN (
            'adopt', 'adoption_reasons', 'await_clock', 'await_ids', 'budget', 'check', 'check_adoption',
            'check_differences', 'check_future', 'check_ids', 'check_ids_of', 'check_isolation',
            'check_migrations', 'check_objects', 'check_references', 'check_release', 'check_rows',
            'check_schemas', 'check_sequences', 'check_server', 'check_tables', 'claim_shard', 'essence',
            'filled_columns', 'id_functions', 'id_sequences', 'in_shard', 'last_values', 'layout_argument',
            'literal_of', 'lock_sequence', 'make_surface', 'mending', 'minted_shards', 'minting_columns',
            'minting_functions', 'minting_sequences', 'minting_state', 'named_sequence', 'native_defaults',
            'not_read', 'objects_of', 'read_function', 'read_parts', 'release', 'rewrite_function',
            'sequence_budget', 'server_budget', 'shard_schema', 'stop_minting', 'tell_of_dependents',
            'time_not_reached', 'write_function')
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;

-- Comments
COMMENT ON FUNCTION insta_ids.minting_columns(integer[], xid) IS
    'columns of shards that next_id fills, and the CHECKs that keep them to the shard';
COMMENT ON FUNCTION insta_ids.check_isolation(text) IS
    'refuses a transaction that does not see what others wrote before it took a lock';
COMMENT ON FUNCTION insta_ids.layout_argument(@extschema@.id_layout) IS
    'last argument of next_id, where it is not the default';
COMMENT ON FUNCTION insta_ids.make_surface(integer) IS
    'makes what every shard has besides its migrations';
COMMENT ON FUNCTION insta_ids.check() IS
    'what is wrong with the shards of this database, or will be';
COMMENT ON PROCEDURE insta_ids.check_rows(integer, integer, integer) IS
    'reads every id of a range of shards, and warns of those that should not be there';
COMMENT ON FUNCTION insta_ids.budget() IS
    'what there is a limit to: how much of it is used, and when it runs out';
COMMENT ON FUNCTION insta_ids.server_budget() IS
    'the part of budget about the server and the layout';
COMMENT ON FUNCTION insta_ids.sequence_budget() IS
    'the part of budget about sequences';
COMMENT ON FUNCTION insta_ids.check_server() IS
    'the part of check about the server and the layout';
COMMENT ON FUNCTION insta_ids.check_schemas() IS
    'the part of check about schemas that are missing, or look like shards';
COMMENT ON FUNCTION insta_ids.check_migrations() IS
    'the part of check about migrations that shards lack';
COMMENT ON FUNCTION insta_ids.check_objects() IS
    'the part of check about what differs between shards, and what check_references finds';
COMMENT ON FUNCTION insta_ids.check_differences(integer[], bigint[]) IS
    'the part of check_objects about what differs between shards';
COMMENT ON FUNCTION insta_ids.check_references(integer[]) IS
    'the part of check_objects about what is of another schema, and CHECKs that are missing';
COMMENT ON FUNCTION insta_ids.read_parts(integer[], text) IS
    'what a query finds in shards, part by part, so that a lock in one of them is in nobody''s way';
COMMENT ON FUNCTION insta_ids.check_tables() IS
    'the part of check about replica identities that are missing, and what is not valid';
COMMENT ON FUNCTION insta_ids.check_sequences() IS
    'the part of check about sequences';
COMMENT ON FUNCTION insta_ids.check_ids() IS
    'the part of check about ids, of 200 columns by chance';
COMMENT ON FUNCTION insta_ids.check_ids_of(regclass, name, integer, timestamptz, boolean) IS
    'the part that check_ids and check_rows share';
COMMENT ON FUNCTION insta_ids.objects_of(integer[], boolean) IS
    'what is in shards, in words that are the same in each of them';
COMMENT ON FUNCTION insta_ids.in_shard(text, name, integer) IS
    'words of objects_of as they are in a shard';
COMMENT ON FUNCTION insta_ids.mending(text, text, text, text, text, name, integer) IS
    'statement that makes an object of a shard like those of others';
COMMENT ON FUNCTION insta_ids.essence(text, oid[], text[], oid[], integer) IS
    'a stored expression without what differs from shard to shard';
COMMENT ON FUNCTION insta_ids.literal_of(name) IS
    'name as a literal';
COMMENT ON FUNCTION insta_ids.minted_shards(text, oid[]) IS
    'shards that a stored expression mints for';
COMMENT ON FUNCTION insta_ids.not_read(text, text[]) IS
    'finding that something could not be read';
COMMENT ON FUNCTION insta_ids.id_functions() IS
    'functions that all ids come from';
COMMENT ON FUNCTION insta_ids.id_sequences() IS
    'sequences that ids of shards are minted from';
COMMENT ON FUNCTION insta_ids.last_values(oid[]) IS
    'last values of sequences';
COMMENT ON FUNCTION insta_ids.time_not_reached() IS
    'a time that ids of this server have not reached';
COMMENT ON TYPE insta_ids.finding IS
    'what check returns';
COMMENT ON VIEW insta_ids.shard_schema IS
    'the shards of this database, and their schemas';
COMMENT ON FUNCTION insta_ids.adopt(regnamespace, integer, text) IS
    'makes a shard of a schema that runs the published function';
COMMENT ON FUNCTION insta_ids.release(regnamespace, text) IS
    'gives a shard''s schema the published function again, and forgets it';
COMMENT ON FUNCTION insta_ids.minting_functions(regnamespace) IS
    'functions of a schema that mint ids, or look as if they did';
COMMENT ON FUNCTION insta_ids.named_sequence(text, text[]) IS
    'sequence that a function means by a name, or why it is none';
COMMENT ON FUNCTION insta_ids.filled_columns(regnamespace) IS
    'columns whose default calls what mints in a schema';
COMMENT ON FUNCTION insta_ids.native_defaults(regnamespace) IS
    'columns whose default calls next_id itself';
COMMENT ON FUNCTION insta_ids.minting_sequences(regnamespace) IS
    'sequences that what mints in a schema takes values of';
COMMENT ON FUNCTION insta_ids.minting_state(regnamespace) IS
    'all that mints in a schema, to be compared with what it is later';
COMMENT ON FUNCTION insta_ids.read_function(text, boolean, text[], text, @extschema@.id_layout) IS
    'what a function mints, or why it is none that does';
COMMENT ON FUNCTION insta_ids.write_function(@extschema@.id_layout, text, text) IS
    'source of the published function';
COMMENT ON FUNCTION insta_ids.rewrite_function(regprocedure, text, text, boolean) IS
    'gives a function another body, and leaves what else is known of it';
COMMENT ON FUNCTION insta_ids.lock_sequence(oid) IS
    'lets nobody take a value of a sequence until the transaction ends; of who may use it';
COMMENT ON FUNCTION insta_ids.stop_minting(regnamespace, text) IS
    'locks tables and sequences of a schema when nobody is using them';
COMMENT ON FUNCTION insta_ids.await_clock(timestamptz) IS
    'waits until the clock is past where ids of an instant are';
COMMENT ON FUNCTION insta_ids.await_ids(integer) IS
    'waits until the clock is where ids are, if that is soon';
COMMENT ON FUNCTION insta_ids.adoption_reasons(regnamespace, integer) IS
    'what is against a schema''s adoption, apart from its rows';
COMMENT ON FUNCTION insta_ids.check_adoption(regnamespace, integer, boolean) IS
    'refuses what cannot be adopted; the oldest and newest id';
COMMENT ON FUNCTION insta_ids.check_future(timestamptz) IS
    'whether the time of ids is to be raised to ids of the future';
COMMENT ON FUNCTION insta_ids.check_release(regnamespace, integer) IS
    'refuses what cannot be released';
COMMENT ON FUNCTION insta_ids.claim_shard(regnamespace, integer) IS
    'makes a schema known as a shard that has all migrations';
COMMENT ON FUNCTION insta_ids.tell_of_dependents(regnamespace) IS
    'tells of what in a shard''s schema still depends on the extension, and of what elsewhere mints for the shard';
