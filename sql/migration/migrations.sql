-- Migrations: DDL that every shard gets.

CREATE OR REPLACE VIEW insta_ids_internal.migration_status AS
SELECT m.number, m.name, s.shard, ((SELECT c.prefix FROM insta_ids_internal.config c) || s.shard::text)::name AS schema,
       CASE WHEN a.shard IS NULL THEN 'pending' WHEN a.message IS NULL THEN 'applied' ELSE 'failed' END AS state,
       a.at, a.statement, a.sqlstate, a.message, a.skipped_by
FROM insta_ids_internal.shard s
CROSS JOIN insta_ids_internal.migration m
LEFT JOIN insta_ids_internal.shard_migration a ON a.shard = s.shard AND a.migration = m.number;
CREATE OR REPLACE VIEW insta_ids.migration_status AS
SELECT s.number, s.name, s.shard, s.schema, s.state, s.at, s.statement, s.sqlstate, s.message, s.skipped_by AS changed_by
FROM insta_ids_internal.migration_status s
UNION ALL
SELECT f.number, f.name, NULL, NULL, CASE WHEN f.squashed_into IS NULL THEN 'dropped' ELSE 'squashed' END, f.ended_at, NULL, NULL,
       'replaced by migration "' || f.squashed_into || '"', f.ended_by
FROM insta_ids_internal.former_migration f;
COMMENT ON VIEW insta_ids.migration_status IS
    'each migration in each shard: applied, pending, or failed and with what; and migrations that were dropped or squashed';

-- Refuses changes of a migration that a shard already has. A change of another migration deletes its recorded failures.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_migration_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    applied record;
BEGIN
    -- Another role may take a migration over, because its statements stay the same.
    IF (NEW.number, NEW.name, NEW.ddl, NEW.transactional, NEW.check_ids, NEW.ids_since)
        = (OLD.number, OLD.name, OLD.ddl, OLD.transactional, OLD.check_ids, OLD.ids_since)
    THEN
        RETURN NEW;
    END IF;
    PERFORM insta_ids_internal.require_read_committed();
    SELECT count(*) AS shards, min(s.shard) AS first INTO applied
    FROM insta_ids_internal.shard_migration s WHERE s.migration = OLD.number AND s.message IS NULL;
    IF applied.shards > 0 THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('migration "%s" is already applied', OLD.name),
            DETAIL = format('Shards that have it: %s. The first is shard %s.', applied.shards, applied.first),
            HINT = 'Add another one that changes what this one made.';
    END IF;
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.migration = OLD.number;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE OR REPLACE TRIGGER keep BEFORE UPDATE OR DELETE ON insta_ids_internal.migration
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.refuse_migration_change();

-- Makes the current role the author of a migration that it writes. Raises an error unless the role has the rights of the old
-- author. The rights with which a migration runs depend on its author.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_author() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_superuser CONSTANT boolean := insta_ids_internal.is_superuser();
BEGIN
    IF TG_OP <> 'INSERT' AND NOT is_superuser AND (OLD.is_by_superuser OR OLD.added_on IS NOT NULL
        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = OLD.added_by AND NOT pg_has_role(r.oid, 'USAGE')))
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('migration "%s" was added by role "%s"', OLD.name, OLD.added_by),
            DETAIL = 'Only roles that have the rights of that role can replace it, take it over or remove it.';
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    -- Superusers may keep the author, because they restore migrations of other roles, and take those of other nodes over.
    IF NOT is_superuser THEN
        NEW.added_by := current_user;
        NEW.added_on := NULL;
        NEW.number := CASE TG_OP WHEN 'UPDATE' THEN OLD.number ELSE (
            SELECT coalesce(max(m.number), 0) + 1 FROM insta_ids_internal.migration m) END;
    END IF;
    NEW.is_by_superuser := is_superuser AND coalesce(NEW.is_by_superuser, true);
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER require_author BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.migration
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_author();
ALTER TABLE insta_ids_internal.migration ENABLE ALWAYS TRIGGER require_author;

-- Returns whether code of `author` may run with the caller's rights: `author` must have all of them. A statement can
-- reset the role, so `author` must be a superuser if the session began as one.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_trusted(author name) RETURNS boolean
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

-- Returns whether a migration may run with the caller's rights. If no superuser added it, its author must be a role of this server
-- that has these rights, and is no superuser now: then it could be another role of this name.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_trusted_migration(migration insta_ids_internal.migration) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN migration.is_by_superuser
        OR migration.added_on IS NULL AND insta_ids_internal.is_trusted(migration.added_by)
            AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = migration.added_by AND r.rolsuper);
END
$$;

-- Raises an error unless a migration may run with the caller's rights.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_trusted_author(migration insta_ids_internal.migration) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.is_trusted_migration(migration) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('migration "%s" was added by role "%s"', migration.name, migration.added_by),
            DETAIL = CASE WHEN migration.added_on IS NULL THEN 'Its statements would run with your rights.'
                ELSE format('The role is one of node "%s". The statements would run with your rights.', migration.added_on) END,
            HINT = format('Read it in insta_ids_internal.migration. Then add it with the same text as a superuser: SELECT insta_ids.add_migration(%L, ...).',
                migration.name);
    END IF;
END
$$;

-- Returns the statements of a text of DDL. `kind` is ordinary, transaction control, session setting, concurrent, not allowed, or for SET
-- CONSTRAINTS ALL, all immediate or all deferred. `command` is like CREATE TABLE. `for_new_shard` is a concurrent statement without
-- CONCURRENTLY, or empty if there is nothing to do. `schema` is a schema that the statement names. `alters` lists the relations that
-- the statement alters and names without a schema. `makes` is a table that it creates, unless that is temporary or a partition.
-- `others` lists the functions, types and other objects that the statement alters and names without a schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.statements(ddl text)
    RETURNS TABLE (statement text, kind text, command text, for_new_shard text, schema text, alters text[], makes text,
        others text[])
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'statements_wrapper';

-- Returns a text as a migration. A dump of a shard by pg_dump --schema-only loses the settings of the session, the CHECKs of IDs, and
-- what each shard has without a migration. It gets the name insta_ids_shard for the shard's schema. Other dumps are refused. Any other
-- text is returned as it is.
CREATE OR REPLACE FUNCTION insta_ids_internal.migration_text(ddl text, prefix text, shards integer) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'migration_text_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.migration_text(ddl text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.migration_text(ddl, c.prefix::pg_catalog.text, c.shards) FROM insta_ids_internal.require_config() c;
END;

-- Returns the text of a migration for one shard: with its schema for insta_ids_shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.ddl_in_shard(ddl text, schema text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'ddl_in_shard_wrapper';

-- Raises an error unless a migration can be applied to all shards alike. No statement may begin or end a transaction, change a
-- setting of the session, be about the whole database, or name a schema. Statements with CONCURRENTLY need transactional => false.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_migration(name text, ddl text, transactional boolean) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids_internal.config := insta_ids_internal.require_config();
    most CONSTANT integer := 1000000;
    -- Matches the name of a shard's schema before a dot, anywhere in a statement.
    shard_schema text := format($re$(?<![\w$])(%s(0|[1-9][0-9]{0,8}))"?\s*\.$re$,
        regexp_replace(replace(config.prefix, '"', '""'), $re$(\W)$re$, $re$\\\1$re$, 'g'));
    next record;
    statements integer := 0;
BEGIN
    IF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'name of a migration is empty or too long',
            DETAIL = format('It has %s bytes, and can have 1 to 255.', octet_length(name));
    ELSIF octet_length(ddl) > most THEN
        RAISE program_limit_exceeded USING MESSAGE = format('migration "%s" is too long', name),
            DETAIL = format('It has %s bytes, and can have %s.', octet_length(ddl), most),
            HINT = 'Add it as several.';
    END IF;

    FOR next IN
        SELECT s.kind, s.command, coalesce(s.schema, m.schema) AS schema
        FROM insta_ids_internal.statements(ddl) s
        LEFT JOIN LATERAL (
            SELECT replace(r[1], '""', '"') AS schema
            FROM regexp_matches(s.statement, shard_schema, 'gi') r
            WHERE r[2]::integer < config.shards LIMIT 1
        ) m ON true
    LOOP
        statements := statements + 1;
        IF next.kind = 'transaction control' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('statement %s of migration "%s" begins or ends a transaction', statements, name),
                HINT = 'Leave it out: a migration is applied to a shard entirely or not at all.';
        ELSIF next.kind = 'session setting' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('statement %s of migration "%s" sets something for the session', statements, name),
                HINT = 'Use SET LOCAL, or leave it out: search_path is set for each statement.';
        ELSIF next.kind = 'not allowed' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('statement %s of migration "%s" is %s, which a migration cannot contain', statements, name, next.command),
                DETAIL = 'It would run again for each shard. A migration contains statements about rows, and about objects of a shard''s schema.',
                HINT = CASE next.command
                    WHEN 'CREATE EXTENSION' THEN 'Run it once in each database, with a schema that is in the search_path of migrate(): CREATE EXTENSION ... SCHEMA public.'
                    ELSE 'Run it once in each database that needs it, outside of migrations.' END;
        ELSIF next.kind = 'concurrent' AND transactional THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('statement %s of migration "%s" cannot run in a transaction', statements, name),
                HINT = 'Leave out CONCURRENTLY, or add the statement by itself with transactional => false.';
        ELSIF NOT transactional AND (next.kind <> 'concurrent' OR statements > 1) THEN
            RAISE invalid_parameter_value USING MESSAGE = format('migration "%s" can run in a transaction', name),
                DETAIL = 'With transactional => false, a migration is one statement with CONCURRENTLY.';
        ELSIF next.schema IS NOT NULL THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('statement %s of migration "%s" names schema "%s"', statements, name, next.schema),
                DETAIL = 'It would be run again for each shard.',
                HINT = 'Leave the schema out: search_path begins with the shard''s.';
        END IF;
    END LOOP;
    IF statements = 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('migration "%s" has no statement', name);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.add_migration(
        name text, ddl text, transactional boolean DEFAULT true, check_ids boolean DEFAULT true,
        ids_since timestamptz DEFAULT '-infinity')
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    ddl := insta_ids_internal.migration_text(ddl);
    PERFORM insta_ids_internal.require_migration(name, ddl, transactional), insta_ids_internal.first_id_since(ids_since);
    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.name = add_migration.name) THEN
        INSERT INTO insta_ids_internal.migration (number, name, ddl, transactional, check_ids, ids_since)
        SELECT coalesce(max(m.number) + 1, 1), add_migration.name, add_migration.ddl,
               add_migration.transactional, add_migration.check_ids, add_migration.ids_since
        FROM insta_ids_internal.migration m;
    ELSE
        UPDATE insta_ids_internal.migration m
        SET ddl = add_migration.ddl, transactional = add_migration.transactional,
            check_ids = add_migration.check_ids, ids_since = add_migration.ids_since, added_at = now(), added_by = current_user,
            is_by_superuser = true, added_on = NULL
        WHERE m.name = add_migration.name
            AND ((m.ddl, m.transactional, m.check_ids, m.ids_since)
                    <> (add_migration.ddl, add_migration.transactional, add_migration.check_ids, add_migration.ids_since)
                OR NOT insta_ids_internal.is_trusted_migration(m));
    END IF;
END
$$;
COMMENT ON FUNCTION insta_ids.add_migration(text, text, boolean, boolean, timestamptz) IS 'records DDL that every shard is to get';

-- Returns the first id of a time, or 0 for -infinity. Raises an error for a time outside of the layout.
CREATE OR REPLACE FUNCTION insta_ids_internal.first_id_since(at timestamptz) RETURNS bigint
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN at = '-infinity' THEN 0 ELSE insta_ids_internal.id_min(at, (insta_ids_internal.require_config()).layout) END;

-- Returns the text of a CHECK, or NULL if it is longer than any CHECK of ids. PostgreSQL accepts deeper expressions than it can
-- write out, and fails with "stack depth limit exceeded".
CREATE OR REPLACE FUNCTION insta_ids_internal.text_of_check(tree pg_node_tree, relation oid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE WHEN length(tree::text) < 10000 THEN pg_get_expr(tree, relation) END;
END
$$;

-- Returns an id column as the catalog shows it in expressions.
CREATE OR REPLACE FUNCTION insta_ids_internal.text_of_column("column" name, is_domain boolean) RETURNS text
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format(CASE WHEN is_domain THEN '(%I)::bigint' ELSE '%I' END, "column");

-- Returns the condition that a column, as text_of_column() returns it, has ids of the shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.condition_of_ids(
        column_text text, shard integer, extension_schema text, layout_argument text) RETURNS text
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('(%s.id_shard(%s%s) = %s)', extension_schema, column_text, layout_argument, shard);

-- Returns the CHECK of a relation that has this condition for this column. `since` is the first id for which it holds, or 0. Returns
-- one row, of NULLs if there is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_of_ids(relation oid, column_text text, condition text)
    RETURNS TABLE (name name, since bigint)
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    -- A CHECK with ids_since is ((column < since) OR condition).
    SELECT pg_catalog.min(k.conname)::name, pg_catalog.min(coalesce(r.parts[2]::bigint, 0))
    FROM pg_catalog.pg_constraint k
    CROSS JOIN LATERAL insta_ids_internal.text_of_check(k.conbin, k.conrelid) x (text)
    LEFT JOIN LATERAL pg_catalog.regexp_match(pg_catalog.substr(x.text, pg_catalog.length(column_text) + 6),
        $re$^('?([0-9]+)'?(?:::bigint)?\) OR )$re$) r (parts) ON x.text <> condition
    WHERE k.conrelid = relation AND k.contype = 'c'
        AND x.text IN (condition, pg_catalog.concat('((', column_text, ' < ', r.parts[1], condition, ')'));
END;

-- Returns the columns of shards that have next_id in their default, directly or through other functions. `check` is the CHECK
-- that allows only ids of the shard, or NULL. `since` is the first id for which it holds, or 0. With `defaults_since`, only
-- columns that got this default in this transaction, in that subtransaction or later. A column that a child table inherits is
-- left out if the parent's column is listed.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_columns(shards integer[], defaults_since xid DEFAULT NULL)
    RETURNS TABLE (shard integer, relation regclass, "column" name, expression text, "check" name, since bigint)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Planning would take longer than running, so the joins are not reordered, and one plan serves all shards.
    SET join_collapse_limit = 1 SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
    layout_argument CONSTANT text := insta_ids_internal.layout_argument(config.layout);
    minting CONSTANT oid[] := insta_ids_internal.id_functions();
    extension_schema CONSTANT text := insta_ids_internal.extension_schema();
BEGIN
    RETURN QUERY
    WITH minting_columns AS (
        SELECT s.shard, c.oid AS relation, a.attname, e.expression, k.name AS conname, coalesce(k.since, 0) AS since
        FROM unnest(shards) s (shard)
        JOIN pg_depend m
            ON m.refclassid = 'pg_namespace'::regclass AND m.classid = 'pg_class'::regclass
            AND m.refobjid = to_regnamespace(quote_ident((config.prefix || s.shard::text)::name))
        JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'p', 'f')
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        -- An aggregate keeps the planner from beginning here. While shards are created, its estimate of the columns is wrong.
        CROSS JOIN LATERAL (
            WITH RECURSIVE used AS (
                SELECT 'pg_attrdef'::regclass::oid AS classid, d.oid AS objid
                UNION
                SELECT f.refclassid, f.refobjid FROM used u
                JOIN pg_depend f ON f.classid = u.classid AND f.objid = u.objid AND f.refclassid = 'pg_proc'::regclass
            )
            SELECT bool_or(u.classid = 'pg_proc'::regclass AND u.objid = ANY (minting)) AS mints FROM used u
        ) f
        CROSS JOIN LATERAL insta_ids_internal.text_of_column(a.attname, t.typtype = 'd') v (text)
        CROSS JOIN LATERAL insta_ids_internal.condition_of_ids(v.text, s.shard, extension_schema, layout_argument) e (expression)
        CROSS JOIN LATERAL insta_ids_internal.check_of_ids(c.oid, v.text, e.expression) k
        -- If the transaction that wrote a visible default is still in progress, it is this transaction.
        WHERE CASE
                WHEN defaults_since IS NULL THEN true
                WHEN age(d.xmin) <= age(defaults_since)
                THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(d.xmin))::text::xid8) = 'in progress'
                ELSE false
            END
            AND f.mints
    )
    SELECT m.shard, m.relation::regclass, m.attname, m.expression, m.conname, m.since
    FROM minting_columns m
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits h JOIN minting_columns p ON p.relation = h.inhparent AND p.attname = m.attname
        WHERE h.inhrelid = m.relation);
END
$$;
