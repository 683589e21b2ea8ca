-- Changes to the list of migrations: a migration is skipped, dropped, or replaced by a baseline.

-- Returns the migration of this name. Raises an error if there is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_migration_named(name text) RETURNS insta_ids_internal.migration
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
    former insta_ids_internal.former_migration;
BEGIN
    SELECT * INTO migration FROM insta_ids_internal.migration m WHERE m.name = require_migration_named.name;
    IF migration.name IS NOT NULL THEN
        RETURN migration;
    END IF;
    SELECT * INTO former FROM insta_ids_internal.former_migration f WHERE f.name = require_migration_named.name ORDER BY f.ended_at DESC LIMIT 1;
    IF former.name IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('migration "%s" does not exist', left(name, 255));
    END IF;
    RAISE undefined_object USING MESSAGE = format('migration "%s" does not exist', left(name, 255)),
        DETAIL = CASE WHEN former.squashed_into IS NOT NULL THEN format('It was replaced by migration "%s".', former.squashed_into)
            ELSE format('Role %I dropped it at %s.', former.ended_by, former.ended_at) END;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.skip_migration(name text, first integer, last integer) RETURNS integer
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
    skipped integer;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.require_range(first, last, 1);
    -- No session replaces, drops or applies the migration meanwhile.
    LOCK TABLE insta_ids_internal.migration IN SHARE MODE;
    PERFORM insta_ids_internal.lock_shards(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last));
    PERFORM insta_ids_internal.require_not_moving(first, last);
    migration := insta_ids_internal.require_migration_named(name);
    INSERT INTO insta_ids_internal.shard_migration AS a (shard, migration, skipped_by)
    SELECT s.shard, migration.number, current_user FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last
    ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
    SET at = excluded.at, statement = NULL, sqlstate = NULL, message = NULL, skipped_by = excluded.skipped_by
    WHERE a.message IS NOT NULL;
    GET DIAGNOSTICS skipped = ROW_COUNT;
    RETURN skipped;
END
$$;
COMMENT ON FUNCTION insta_ids.skip_migration(text, integer, integer) IS
    'records a migration as applied to the shards of a range that lack it, and returns their number';

-- Creates a shard by the recorded migrations, as a new shard would be, and rolls it back. Returns its objects, and how many rows the
-- migrations have inserted into each table. If it cannot be created, returns the error. The shard is to be compared with `reference`,
-- and has another number, so that what the migrations say of one shard alone makes a difference: preferably one that has no schema
-- here. An existing shard of this number is put aside meanwhile, which no other session sees. `path` is the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids_internal.scratch_shard(
        reference integer, path text, OUT objects jsonb, OUT rows jsonb, OUT failure text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := coalesce((
        SELECT n FROM generate_series(0, (insta_ids_internal.require_config()).shards - 1) n
        WHERE n <> reference ORDER BY to_regnamespace(quote_ident(insta_ids.schema_of(n))) IS NOT NULL, n DESC LIMIT 1), reference);
    schema CONSTANT name := insta_ids.schema_of(number);
    counts jsonb := '{}';
    relation regclass;
    count bigint;
BEGIN
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = number;
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = number;
    IF to_regnamespace(quote_ident(schema)) IS NOT NULL THEN
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, 'insta_ids_aside_' || pg_backend_pid());
    END IF;
    PERFORM insta_ids_internal.make_shards(ARRAY[number], path);
    FOR relation IN
        SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(schema)) AND c.relkind = 'r' ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT count(*) FROM %s', relation) INTO count;
        counts := counts || jsonb_build_object((SELECT c.relname FROM pg_class c WHERE c.oid = relation), count);
    END LOOP;
    objects := insta_ids_internal.objects_json(number);
    rows := counts;
    RAISE triggered_action_exception;
EXCEPTION WHEN OTHERS THEN
    IF rows IS NULL THEN
        failure := SQLERRM;
    END IF;
END
$$;

-- Returns a shard by which a change of the migrations is checked: the first that has all of them and is neither fenced nor moving. If
-- no shard exists, returns a free number. Raises an error if shards exist and none fits, or if a shard lacks what
-- most have. An object that most shards lack makes no difference.
CREATE OR REPLACE FUNCTION insta_ids_internal.reference_shard() RETURNS integer
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reference integer;
    finding insta_ids.finding;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.shard) THEN
        RETURN (
            SELECT min(n) FROM generate_series(0, (insta_ids_internal.require_config()).shards - 1) n
            WHERE to_regnamespace(quote_ident(insta_ids.schema_of(n))) IS NULL);
    END IF;
    reference := (
        SELECT min(s.shard) FROM insta_ids_internal.shard s
        WHERE NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard)
            AND NOT EXISTS (SELECT FROM insta_ids_internal.migration_status m WHERE m.shard = s.shard AND m.state <> 'applied'));
    IF reference IS NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'no shard has all migrations and is open',
            DETAIL = 'The result of the migrations is compared with such a shard.',
            HINT = 'Apply them first: CALL insta_ids.migrate().';
    END IF;
    SELECT * INTO finding FROM insta_ids_internal.check_objects() f
    WHERE f.code IN ('missing_object', 'different_object') LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards differ, for example in %s', finding.object),
            DETAIL = finding.detail,
            HINT = 'Make them alike first. All differences: SELECT * FROM insta_ids.check().';
    END IF;
    RETURN reference;
END
$$;

-- Raises an error unless the migrations now give what they gave before: `before` is what scratch_shard() returned. The objects are
-- compared with those of the shard if it exists. If the former migrations could not be applied to a new shard, rows that migrations
-- insert are not compared, and a NOTICE reports it. `path` is the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_same_result(shard integer, path text, before record) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    after CONSTANT record := insta_ids_internal.scratch_shard(shard, path);
    wanted CONSTANT jsonb := CASE WHEN EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = require_same_result.shard)
        THEN insta_ids_internal.objects_json(shard) ELSE before.objects END;
    difference record;
BEGIN
    IF after.failure IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'new migrations cannot be applied to a new shard',
            DETAIL = format('%s.', upper(left(after.failure, 1)) || substr(after.failure, 2));
    END IF;
    SELECT * INTO difference FROM insta_ids_internal.first_different_object(after.objects, wanted);
    IF FOUND AND wanted IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards would not be alike: %s %s', difference.kind, difference.name),
            DETAIL = format('The shards have %s. A new shard would have %s.',
                coalesce(insta_ids_internal.in_shard(difference.theirs, insta_ids.schema_of(shard), shard), 'nothing'),
                coalesce(insta_ids_internal.in_shard(difference.ours, insta_ids.schema_of(shard), shard), 'nothing'));
    END IF;
    IF before.failure IS NOT NULL THEN
        RAISE NOTICE USING
            MESSAGE = 'rows that migrations insert were not compared',
            DETAIL = format('The former migrations cannot be applied to a new shard: %s.', before.failure);
        RETURN;
    END IF;
    SELECT t.name, coalesce(before.rows ->> t.name, '0') AS was, coalesce(after.rows ->> t.name, '0') AS would INTO difference
    FROM jsonb_object_keys(before.rows || after.rows) t (name)
    WHERE coalesce(before.rows ->> t.name, '0') <> coalesce(after.rows ->> t.name, '0') ORDER BY t.name LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('new shards would have other rows in table "%s"', difference.name),
            DETAIL = format('Migrations inserted %s rows into it, and would insert %s.', difference.was, difference.would);
    END IF;
END
$$;

-- Puts migrations into the list of former ones. Shards do not have them any more.
CREATE OR REPLACE FUNCTION insta_ids_internal.retire_migrations(first integer, last integer, squashed_into text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO insta_ids_internal.former_migration (number, name, ddl, added_by, added_at, squashed_into)
    SELECT m.number, m.name, m.ddl, m.added_by, m.added_at, retire_migrations.squashed_into
    FROM insta_ids_internal.migration m WHERE m.number BETWEEN first AND last;
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.migration BETWEEN first AND last;
END
$$;

-- The functions that follow need the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids_internal.drop_migration(name text, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids_internal.migration;
    reference integer;
    before record;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    migration := insta_ids_internal.require_migration_named(name);
    PERFORM insta_ids_internal.require_trusted_author(migration);
    IF EXISTS (SELECT FROM insta_ids_internal.shard_migration s WHERE s.migration = migration.number AND s.message IS NULL) THEN
        reference := insta_ids_internal.reference_shard();
        before := insta_ids_internal.scratch_shard(reference, path);
    END IF;
    UPDATE insta_ids_internal.departed_shard d SET migrations = array_remove(d.migrations, migration.number)
    WHERE migration.number = ANY (d.migrations);
    PERFORM insta_ids_internal.retire_migrations(migration.number, migration.number, NULL);
    DELETE FROM insta_ids_internal.migration m WHERE m.number = migration.number;
    IF reference IS NOT NULL THEN
        PERFORM insta_ids_internal.require_same_result(reference, path, before);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION insta_ids.drop_migration(name text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.drop_migration(name, pg_catalog.current_setting('search_path'));
COMMENT ON FUNCTION insta_ids.drop_migration(text) IS 'drops a migration that no shard has, or without which shards would be the same';

-- Does what squash_migrations() is for. `path` is the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids_internal.squash_migrations(up_to text, name text, ddl text, path text) RETURNS integer
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last integer;
    squashed integer;
    checks boolean;
    since timestamptz;
    lacking record;
    reference integer;
    before record;
BEGIN
    ddl := insta_ids_internal.migration_text(ddl);
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.require_migration(name, ddl, true);
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    last := (insta_ids_internal.require_migration_named(up_to)).number;
    PERFORM insta_ids_internal.require_trusted_author(m) FROM insta_ids_internal.migration m ORDER BY m.number;
    -- No shard is dropped meanwhile, so none is recorded that does not exist.
    PERFORM insta_ids_internal.lock_shards(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s));
    IF EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.name = squash_migrations.name AND m.number > last) THEN
        RAISE duplicate_object USING MESSAGE = format('migration "%s" already exists', name);
    END IF;
    SELECT count(*), bool_or(m.check_ids), max(m.ids_since) INTO squashed, checks, since
    FROM insta_ids_internal.migration m WHERE m.number <= last;
    SELECT s.shard, s.name INTO lacking FROM insta_ids_internal.migration_status s
    WHERE s.number <= last AND s.state <> 'applied' ORDER BY s.shard, s.number LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shard %s lacks migration "%s"', lacking.shard, lacking.name),
            DETAIL = 'A baseline replaces migrations that all shards have.',
            HINT = 'Apply it first: CALL insta_ids.migrate().';
    END IF;
    SELECT d.shard INTO lacking FROM insta_ids_internal.departed_shard d
    WHERE d.schema IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.number <= last AND m.number <> ALL (d.migrations))
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shard %s has moved away, and its old schema lacks migrations', lacking.shard),
            HINT = format('Drop what is left of it: SELECT insta_ids.drop_shard(%s).', lacking.shard);
    END IF;

    reference := insta_ids_internal.reference_shard();
    before := insta_ids_internal.scratch_shard(reference, path);
    PERFORM insta_ids_internal.retire_migrations(0, last, name);
    DELETE FROM insta_ids_internal.migration m WHERE m.number < last;
    -- A trigger gives the number of a new row to roles that are no superusers, so the last row becomes the baseline.
    UPDATE insta_ids_internal.migration m
    SET name = squash_migrations.name, ddl = squash_migrations.ddl, transactional = true, check_ids = checks, ids_since = since,
        added_at = now(), added_by = current_user, is_by_superuser = true, added_on = NULL
    WHERE m.number = last;
    INSERT INTO insta_ids_internal.shard_migration (shard, migration) SELECT s.shard, last FROM insta_ids_internal.shard s;
    UPDATE insta_ids_internal.departed_shard d
    SET migrations = ARRAY(SELECT last UNION ALL SELECT n FROM unnest(d.migrations) n WHERE n > last)
    WHERE d.schema IS NOT NULL;
    PERFORM insta_ids_internal.require_same_result(reference, path, before);
    RETURN squashed;
END
$$;
CREATE OR REPLACE FUNCTION insta_ids.squash_migrations(up_to text, name text, ddl text) RETURNS integer
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.squash_migrations(up_to, name, ddl, pg_catalog.current_setting('search_path'));
COMMENT ON FUNCTION insta_ids.squash_migrations(text, text, text) IS
    'replaces the migrations up to one by a text that gives the same shards, and returns their number';
