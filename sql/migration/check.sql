-- A dry run of a migration.

-- Returns the tables, views and sequences that this transaction has locked so that others wait, each with its strongest lock. `known` has
-- the names of those that may be dropped by now, by their OIDs.
CREATE OR REPLACE FUNCTION insta_ids_internal.strong_locks(known jsonb) RETURNS TABLE (relation oid, name text, mode text, strength integer)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT DISTINCT ON (l.relation) l.relation, coalesce(c.oid::regclass::text, known ->> l.relation::text), m.mode, m.strength::integer
    FROM pg_locks l
    LEFT JOIN pg_class c ON c.oid = l.relation
    JOIN unnest('{SHARE UPDATE EXCLUSIVE,SHARE,SHARE ROW EXCLUSIVE,EXCLUSIVE,ACCESS EXCLUSIVE}'::text[]) WITH ORDINALITY m (mode, strength)
        ON lower(replace(m.mode, ' ', '')) || 'lock' = lower(l.mode)
    WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND (c.relkind IN ('r', 'p', 'm', 'f', 'v', 'S') AND c.relnamespace <> ALL ('{pg_catalog,pg_toast,insta_ids_internal}'::regnamespace[])
            OR c.oid IS NULL AND known ? l.relation::text)
    ORDER BY l.relation, m.strength DESC;
END
$$;

-- Returns findings about what a migration does in a shard. Applies it, and the pending ones before it, and rolls them back.
-- `after_schema` is that of path_after_schema().
CREATE OR REPLACE FUNCTION insta_ids_internal.try_migration(number integer, shard integer, after_schema text) RETURNS SETOF insta_ids.finding
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema CONSTANT oid := to_regnamespace(quote_ident(insta_ids.schema_of(shard)));
    earlier record;
    outcome record;
    names jsonb;
    files jsonb;
    locks jsonb;
    findings insta_ids.finding[] := '{}';
BEGIN
    earlier := insta_ids_internal.apply_migrations(shard, after_schema, false, number - 1);
    outcome := earlier;
    SELECT coalesce(jsonb_object_agg(c.oid, c.oid::regclass), '{}'), coalesce(jsonb_object_agg(c.oid, c.relfilenode), '{}')
    INTO names, files FROM pg_class c WHERE c.relnamespace = schema AND c.relkind IN ('r', 'p', 'm', 'f', 'v', 'S');
    SELECT coalesce(jsonb_object_agg(l.relation, l.strength), '{}') INTO locks FROM insta_ids_internal.strong_locks(names) l;
    IF outcome.failed IS NULL THEN
        outcome := insta_ids_internal.apply_migrations(shard, after_schema, false, number);
    END IF;
    IF outcome.code = '55P04' AND earlier.applied + outcome.applied > 0 THEN
        findings := ARRAY[ROW('notice', 'not_tried', format('migration "%s"', outcome.name),
            'It uses an enum value of a pending migration, which PostgreSQL allows in a later transaction only.',
            'Apply the pending migrations before it first: CALL insta_ids.migrate() does so.')::insta_ids.finding];
    ELSIF outcome.failed IS NOT NULL THEN
        findings := ARRAY[ROW('error', 'fails', format('migration "%s"', outcome.name),
            format('In shard %s, %s fails with SQLSTATE %s: %s', shard,
                coalesce('statement ' || outcome.statement, 'the check of its constraints'), outcome.code, outcome.message),
            coalesce(nullif(outcome.hint, ''), nullif(outcome.detail, ''), 'Correct the migration, and add it again under its name.'))::insta_ids.finding];
    ELSE
        findings := ARRAY(
            SELECT ROW('warning', 'rewrite', c.oid::regclass, format('All its rows are written again, or removed: %s in shard %s.',
                       pg_size_pretty(pg_table_size(c.oid)), shard),
                   'Nobody can read or write the table meanwhile.')::insta_ids.finding
            FROM pg_class c WHERE c.relfilenode <> (files ->> c.oid::text)::oid AND c.relkind IN ('r', 'm') ORDER BY c.oid::regclass::text)
            || ARRAY(
            SELECT ROW('notice', 'lock', l.name, format('Locked in mode %s until the shard''s batch commits.', l.mode),
                   CASE WHEN l.mode = 'ACCESS EXCLUSIVE' THEN 'Nobody can read or write it meanwhile.'
                       WHEN l.mode = 'SHARE UPDATE EXCLUSIVE' THEN 'Readers and writers do not wait.'
                       ELSE 'Writers wait meanwhile, readers do not.' END)::insta_ids.finding
            FROM insta_ids_internal.strong_locks(names) l
            LEFT JOIN pg_class c ON c.oid = l.relation
            -- Nobody waits for what the migration itself has created.
            WHERE l.strength > coalesce((locks ->> l.relation::text)::integer, 0) AND (names ? l.relation::text OR c.relnamespace <> schema)
            ORDER BY l.name);
    END IF;
    RAISE triggered_action_exception;
EXCEPTION WHEN triggered_action_exception THEN
    RETURN QUERY SELECT f.* FROM unnest(findings) f;
END
$$;

-- Chooses the shard, and returns what try_migration() does. `path` is the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_migration(name text, shard integer, lock_timeout interval, path text)
    RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    migration CONSTANT insta_ids_internal.migration := insta_ids_internal.require_migration_named(name);
    chosen integer;
    script text;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.set_lock_timeout(lock_timeout),
        insta_ids.schema_of(shard), insta_ids_internal.require_trusted_author(migration);
    SELECT s.shard INTO chosen
    FROM insta_ids_internal.migration_status s
    WHERE s.number = migration.number AND s.state <> 'applied' AND (s.shard = check_migration.shard OR check_migration.shard IS NULL)
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard)
    ORDER BY s.shard LIMIT 1;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('no shard can try migration "%s"', name),
            DETAIL = 'It is tried in a shard that lacks it, and is not fenced.',
            HINT = 'See insta_ids.migration_status.';
    END IF;
    SELECT m.name INTO script
    FROM insta_ids_internal.migration_status s JOIN insta_ids_internal.migration m ON m.number = s.number AND NOT m.transactional
    WHERE s.shard = chosen AND s.state <> 'applied' AND s.number <= migration.number ORDER BY s.number LIMIT 1;
    IF FOUND THEN
        RETURN NEXT ROW('notice', 'not_tried', format('migration "%s"', script),
            'It cannot run in a transaction, so neither it nor what follows it was tried. Its text was checked when it was added.',
            format($hint$In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec$hint$, script))::insta_ids.finding;
        RETURN;
    END IF;
    PERFORM insta_ids_internal.lock_shards(ARRAY[chosen]);
    RETURN QUERY SELECT f.* FROM insta_ids_internal.try_migration(
        migration.number, chosen, insta_ids_internal.path_after_schema(path)) f;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_migration(name text, shard integer DEFAULT NULL, lock_timeout interval DEFAULT '2s')
    RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT f.* FROM insta_ids_internal.check_migration(name, shard, lock_timeout, pg_catalog.current_setting('search_path')) f;
END;
COMMENT ON FUNCTION insta_ids.check_migration(text, integer, interval) IS
    'applies a migration to one shard, rolls it back, and reports errors, locks and rewrites of tables';
