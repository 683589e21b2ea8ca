-- Scripts for psql that apply migrations that cannot run in a transaction.

-- Returns the migration of this name. Raises an error unless it exists and is one that cannot run in a transaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.migration_by_script(name text) RETURNS insta_ids_internal.migration
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration CONSTANT insta_ids_internal.migration := insta_ids_internal.require_migration_named(name);
BEGIN
    IF migration.transactional THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('migration "%s" runs in transactions', name),
            HINT = 'Apply it: CALL insta_ids.migrate().';
    END IF;
    RETURN migration;
END
$$;

-- Returns the statements of migration_script(). `path` is the caller's search_path. Raises an error unless the caller may apply
-- the migration.
CREATE OR REPLACE FUNCTION insta_ids_internal.script_of(name text, path text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration := insta_ids_internal.migration_by_script(name);
BEGIN
    PERFORM insta_ids_internal.require_trusted_author(migration);
    RETURN QUERY
    SELECT line
    FROM (
        SELECT s.shard, min(s.number) AS number FROM insta_ids_internal.migration_status s
        WHERE s.state <> 'applied' GROUP BY s.shard
    ) next
    CROSS JOIN LATERAL unnest(ARRAY[
        format('SELECT insta_ids_internal.start_migration(%L, %s, %L)', name, next.shard, path),
        (SELECT t.statement FROM insta_ids_internal.statements(insta_ids_internal.ddl_in_shard(migration.ddl, insta_ids.schema_of(next.shard))) t),
        format('SELECT insta_ids_internal.finish_migration(%L, %s, %L), pg_catalog.set_config(''search_path'', %L, false)',
            name, next.shard, md5(migration.ddl), path)]) WITH ORDINALITY lines (line, place)
    WHERE next.number = migration.number
    ORDER BY next.shard, lines.place;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.migration_script(name text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT s.line FROM insta_ids_internal.script_of(name, pg_catalog.current_setting('search_path')) s (line);
END;
COMMENT ON FUNCTION insta_ids.migration_script(text) IS
    $$statements, for psql's \gexec, that apply a migration which cannot run in a transaction$$;

-- Sets the search_path for a shard. From here on, notes for finish_migration whether a transaction fails.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_migration(name text, shard integer, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
    schema name;
    shard_path text;
    alters text[];
BEGIN
    PERFORM insta_ids_internal.note_transactions(false);
    BEGIN
        migration := insta_ids_internal.migration_by_script(name);
        PERFORM insta_ids_internal.require_trusted_author(migration);
        schema := insta_ids.schema_of(shard);
        shard_path := quote_ident(schema) || insta_ids_internal.path_after_schema(path);
        SELECT s.alters INTO alters FROM insta_ids_internal.statements(migration.ddl) s;
        PERFORM insta_ids_internal.require_own_path(schema, shard_path, alters);
        PERFORM set_config('search_path', shard_path, false);
    EXCEPTION WHEN OTHERS THEN
        -- An error would not keep the script from running the statement. With this search_path, the statement does not find its
        -- relation.
        RAISE WARNING USING MESSAGE = SQLERRM;
        PERFORM set_config('search_path', 'pg_catalog', false), insta_ids_internal.note_transactions(true);
    END;
END
$$;

-- Records that a shard has a migration, or why it failed. Raises an error unless the shard exists and start_migration was
-- called in this session.
CREATE OR REPLACE FUNCTION insta_ids_internal.finish_migration(name text, shard integer, ddl_md5 text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration := insta_ids_internal.migration_by_script(name);
    committed boolean := insta_ids_internal.transactions_committed();
    invalid text;
    failure text;
BEGIN
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = finish_migration.shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('shard %s does not exist', shard);
    ELSIF committed IS NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'insta_ids_internal.start_migration() was not called in this session';
    END IF;
    -- The row is locked, so that no session replaces the migration before it is recorded.
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
    -- Another session may have applied it first.
    WHERE a.message IS NOT NULL;
    IF failure IS NOT NULL THEN
        -- Not an error, because the script goes on with the next shard.
        RAISE WARNING USING
            MESSAGE = format('migration "%s" failed in shard %s', name, shard),
            DETAIL = upper(left(failure, 1)) || substr(failure, 2) || '.',
            HINT = 'Drop an index that was left invalid, then run the script again for what is missing.';
    END IF;
END
$$;
