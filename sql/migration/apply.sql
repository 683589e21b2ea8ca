-- Applies migrations to a shard.

-- Notes from now on how the session's transactions end. `failed` says whether something has failed before.
CREATE OR REPLACE FUNCTION insta_ids_internal.note_transactions(failed boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'note_transactions_wrapper';

-- Returns whether a transaction committed after note_transactions, and none failed. NULL if note_transactions was not called.
CREATE OR REPLACE FUNCTION insta_ids_internal.transactions_committed() RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'transactions_committed_wrapper';

-- Returns what follows the shard's schema in the search_path of a migration, with the comma before it: the extension's schema, and the
-- caller's path. The extension's schema is left out if other roles may create functions in it.
CREATE OR REPLACE FUNCTION insta_ids_internal.path_after_schema(path text) RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT concat(
            CASE WHEN insta_ids_internal.creators(e.extnamespace) IS NULL THEN ', ' || e.extnamespace::regnamespace END, ', ' || nullif(path, ''))
        FROM pg_extension e WHERE e.extname = 'insta_ids');
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

-- Returns whether a schema has an object of this name that is no relation: a function, a type, an operator and so on.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_object(schema oid, name text) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (SELECT FROM pg_catalog.pg_proc o WHERE o.proname = name AND o.pronamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_type o WHERE o.typname = name AND o.typnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_operator o WHERE o.oprname = name AND o.oprnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_collation o WHERE o.collname = name AND o.collnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_conversion o WHERE o.conname = name AND o.connamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_opclass o WHERE o.opcname = name AND o.opcnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_opfamily o WHERE o.opfname = name AND o.opfnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_statistic_ext o WHERE o.stxname = name AND o.stxnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_ts_config o WHERE o.cfgname = name AND o.cfgnamespace = schema)
        OR EXISTS (SELECT FROM pg_catalog.pg_ts_dict o WHERE o.dictname = name AND o.dictnamespace = schema);

-- Raises an error if a statement could alter or drop a function, a type or another object of another schema: one that the shard does
-- not have, or one of pg_catalog, in which PostgreSQL looks first.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_objects(schema name, path text, names text[]) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schemas name[];
    elsewhere record;
BEGIN
    PERFORM set_config('search_path', path, true);
    schemas := pg_catalog.current_schemas(true);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT n.name, s.schema INTO elsewhere
    FROM unnest(names) n (name) CROSS JOIN LATERAL unnest(schemas) s (schema)
    WHERE insta_ids_internal.has_object(to_regnamespace(quote_ident(s.schema)), n.name)
        AND (s.schema = 'pg_catalog'
            OR NOT insta_ids_internal.has_object(to_regnamespace(quote_ident(require_own_objects.schema)), n.name))
    LIMIT 1;
    IF FOUND THEN
        RAISE undefined_object USING
            MESSAGE = format('object "%s" is in schema "%s", and every shard would alter it', elsewhere.name, elsewhere.schema),
            HINT = format('If the statement is about an object of the shard, name it insta_ids_shard.%I.', elsewhere.name);
    END IF;
END
$$;

-- Begins to apply a migration to a shard, in this subtransaction. If the shard `is_new`, it can issue IDs, also where the map assigns it
-- to another node.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_migration(shard integer, is_new boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_begin_migration';

-- Sets all settings back to what they were when the migration began. In a new shard, the next migration can use enum values that this
-- one has added.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_migration() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_end_migration';

-- Returns the tables of a schema whose deferred triggers are still to be fired.
CREATE OR REPLACE FUNCTION insta_ids_internal.tables_with_events(schema oid) RETURNS oid[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_tables_with_events';

-- Returns the names of a schema's deferrable constraints, as SET CONSTRAINTS takes them: all, those that can be deferred, and those of
-- these that are initially deferred. A name can only be deferred if all constraints with this name can. NULL if there is none. Unless
-- `tables` is NULL, only constraints of these tables count.
CREATE OR REPLACE FUNCTION insta_ids_internal.deferrable_constraints(
        schema oid, tables oid[], OUT names text, OUT can_defer text, OUT initially_deferred text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT string_agg(k.name, ', '), string_agg(k.name, ', ') FILTER (WHERE k.can_defer),
           string_agg(k.name, ', ') FILTER (WHERE k.can_defer AND k.is_deferred)
    INTO names, can_defer, initially_deferred
    FROM (
        SELECT format('%s.%I', schema::regnamespace, k.conname) AS name, bool_and(k.condeferred) AS is_deferred,
               NOT EXISTS (SELECT FROM pg_constraint o WHERE (o.conname, o.connamespace) = (k.conname, schema) AND NOT o.condeferrable)
               AS can_defer
        -- PostgreSQL has no index of constraints by their schema.
        FROM pg_depend d JOIN pg_constraint k ON k.conrelid = d.objid AND k.condeferrable
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema AND d.classid = 'pg_class'::regclass
        GROUP BY k.conname
        HAVING tables IS NULL OR bool_or(k.conrelid = ANY (tables) OR k.confrelid = ANY (tables))
    ) k;
END
$$;

-- Runs a statement of a migration with this search_path and role. Returns the role that the statement has set. SET CONSTRAINTS ALL
-- applies to the schema's constraints alone: otherwise it would last for later migrations, and for the caller's transaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.run_statement(statement text, kind text, schema oid, path text, role text) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_role CONSTANT text := current_setting('role');
    constraints record;
BEGIN
    IF kind IN ('all immediate', 'all deferred') THEN
        constraints := insta_ids_internal.deferrable_constraints(schema, NULL);
        statement := coalesce(CASE kind
            WHEN 'all immediate' THEN 'SET CONSTRAINTS ' || constraints.names || ' IMMEDIATE'
            WHEN 'all deferred' THEN 'SET CONSTRAINTS ' || constraints.can_defer || ' DEFERRED' END, 'SELECT');
    END IF;
    IF role <> own_role THEN
        PERFORM set_config('role', role, true);
    END IF;
    PERFORM set_config('search_path', path, true);
    -- Until search_path is set back, all names here must be qualified.
    EXECUTE statement;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    role := current_setting('role');
    IF role <> own_role THEN
        PERFORM set_config('role', own_role, true);
    END IF;
    RETURN role;
END
$$;

-- Fires the deferred triggers of a schema's tables, as COMMIT would, with this search_path and role. Otherwise no later migration of
-- the transaction could alter these tables. Constraints that are initially deferred are deferred again, if their names allow it. With
-- `whole`, also the constraints of tables without events are as they are initially.
CREATE OR REPLACE FUNCTION insta_ids_internal.fire_deferred(schema oid, path text, role text, whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT oid[] := insta_ids_internal.tables_with_events(schema);
    constraints record;
BEGIN
    IF tables = '{}' AND NOT whole THEN
        RETURN;
    END IF;
    constraints := insta_ids_internal.deferrable_constraints(schema, CASE WHEN NOT whole THEN tables END);
    IF constraints.names IS NOT NULL THEN
        PERFORM insta_ids_internal.run_statement(format('SET CONSTRAINTS %s IMMEDIATE', constraints.names), 'ordinary', schema, path, role);
    END IF;
    IF constraints.initially_deferred IS NOT NULL THEN
        EXECUTE format('SET CONSTRAINTS %s DEFERRED', constraints.initially_deferred);
    END IF;
END
$$;

-- Gives the columns of a shard that mint ids by defaults of this transaction their CHECKs. Ids before `since` need not be of the shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.add_checks(shard integer, applying xid, since timestamptz) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first_id CONSTANT bigint := insta_ids_internal.first_id_since(since);
    unchecked record;
BEGIN
    FOR unchecked IN
        SELECT * FROM insta_ids_internal.minting_columns(ARRAY[shard], applying) m WHERE m."check" IS NULL
    LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s%s)', unchecked.relation,
            CASE WHEN first_id > 0 THEN format('%I < %s OR ', unchecked."column", first_id) END, unchecked.expression);
    END LOOP;
END
$$;

-- Applies to a shard the migrations that it lacks, in their order, each entirely or not at all. It stops at one that fails, and
-- returns the error. It also stops at one that only a script can apply, unless the shard is `new`. Returns how many it has applied.
-- Raises an error for an author without the caller's rights. Migrations after number `last` are left out, unless that is NULL.
-- `after_schema` is that of path_after_schema().
CREATE OR REPLACE FUNCTION insta_ids_internal.apply_migrations(
        shard integer, after_schema text, new boolean, last integer,
        OUT applied integer, OUT failed integer, OUT name text, OUT statement integer,
        OUT code text, OUT message text, OUT detail text, OUT hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema CONSTANT name := insta_ids.schema_of(shard);
    namespace CONSTANT oid := to_regnamespace(quote_ident(schema));
    shard_path CONSTANT text := quote_ident(schema) || after_schema;
    -- The role that the migration's statements have.
    role text;
    migration insta_ids_internal.migration;
    next record;
    applying xid;
    defaults bigint;
    has_defaults boolean;
    sets_constraints boolean;
BEGIN
    applied := 0;
    -- The rows are locked, so that no session replaces a migration while it is applied.
    FOR migration IN
        SELECT * FROM insta_ids_internal.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
            AND (m.number <= last OR last IS NULL)
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
            PERFORM insta_ids_internal.begin_migration(shard, new);
            role := current_setting('role');
            sets_constraints := false;
            defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass);
            FOR next IN
                SELECT s.number, s.kind, s.command, coalesce(s.for_new_shard, s.statement) AS statement, s.alters, s.others
                FROM insta_ids_internal.statements(insta_ids_internal.ddl_in_shard(migration.ddl, schema)) WITH ORDINALITY
                    s (statement, kind, command, for_new_shard, schema, alters, makes, others, number)
                ORDER BY s.number
            LOOP
                statement := next.number;
                IF next.number = 1 OR cardinality(next.alters) > 0 THEN
                    PERFORM insta_ids_internal.require_own_path(schema, shard_path, next.alters);
                END IF;
                IF cardinality(next.others) > 0 THEN
                    PERFORM insta_ids_internal.require_own_objects(schema, shard_path, next.others);
                END IF;
                sets_constraints := sets_constraints OR next.command = 'SET CONSTRAINTS';
                role := insta_ids_internal.run_statement(next.statement, next.kind, namespace, shard_path, role);
            END LOOP;
            statement := NULL;
            PERFORM insta_ids_internal.fire_deferred(namespace, shard_path, role, sets_constraints);
            -- A CHECK can be missing only for a new default. Without track_counts, PostgreSQL does not count new defaults.
            has_defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass) > defaults
                OR current_setting('track_counts') = 'off';
            PERFORM insta_ids_internal.end_migration();
            IF migration.check_ids AND has_defaults THEN
                PERFORM insta_ids_internal.add_checks(shard, applying, migration.ids_since);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            failed := migration.number;
            name := migration.name;
            RETURN;
        END;
        applied := applied + 1;
    END LOOP;
END
$$;
