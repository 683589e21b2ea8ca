-- Checks of the server, and the functions that run the checks.

-- Returns the Citus group of this node, which is 0 on the coordinator, and the number of workers that take writes. Both are
-- NULL without Citus.
CREATE OR REPLACE FUNCTION insta_ids_internal.citus(OUT own_group integer, OUT writing_workers bigint)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF num_nulls(to_regclass('pg_catalog.pg_dist_local_group'), to_regclass('pg_catalog.pg_dist_node')) = 0 THEN
        EXECUTE $query$
            SELECT (SELECT g.groupid FROM pg_catalog.pg_dist_local_group g),
                   (SELECT count(*) FROM pg_catalog.pg_dist_node n
                    WHERE n.groupid <> 0 AND n.isactive AND n.hasmetadata AND n.noderole::text = 'primary') $query$
        INTO own_group, writing_workers;
    END IF;
END
$$;

-- Returns findings about what keeps this server from minting, or lets other nodes mint the same ids.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    hint text;
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM), hint)::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT 'warning', 'open_schema', insta_ids_internal.extension_schema(),
           format('The extension is in this schema, and other roles may create functions in it: %s.', c.roles),
           format('REVOKE CREATE ON SCHEMA %s FROM %s, or let a superuser own it: who creates a function there can have it'
               || ' taken for one of the extension.', insta_ids_internal.extension_schema(), c.roles)
    FROM pg_extension e CROSS JOIN LATERAL insta_ids_internal.creators(e.extnamespace) c (roles)
    WHERE e.extname = 'insta_ids' AND c.roles IS NOT NULL;

    BEGIN
        PERFORM insta_ids_internal.require_writer_slot();
        RETURN QUERY
        SELECT 'error', 'citus_without_writer_slot', 'insta_ids.writer_slot',
               format('It is 0/1, and Citus has workers that take writes: %s. Two nodes can mint the same id.', c.writing_workers),
               'Set another insta_ids.writer_slot in postgresql.conf on each node, restart it, and take it: '
                   || 'SELECT insta_ids.acquire_writer_slot(...)'
        FROM insta_ids_internal.citus() c WHERE c.writing_workers > 0 AND insta_ids.writer_slot() = '0/1';
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.acquire_writer_slot(...)'
                )::insta_ids.finding;
    END;
END
$$;

-- Returns findings about versions of the library and the extension that differ.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_versions() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    extension CONSTANT text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'insta_ids');
    library CONSTANT text := insta_ids_internal.library_version();
    installed text;
BEGIN
    BEGIN
        installed := (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'insta_ids');
    EXCEPTION
        -- The view reads the files of all extensions, and fails if one of them is not valid.
        WHEN OTHERS THEN
            installed := NULL;
    END;
    RETURN QUERY
    SELECT 'warning', 'old_library', 'insta_ids',
           format('The library that this session runs is of version %s, and version %s is installed.',
               library, CASE WHEN insta_ids_internal.is_older(extension, installed) THEN installed ELSE extension END),
           'Install the newest version, and restart the server.'
    WHERE insta_ids_internal.is_older(library, extension) OR insta_ids_internal.is_older(library, installed);
    RETURN QUERY
    SELECT 'warning', 'old_extension', 'insta_ids',
           format('The library is of version %s, and this database still has the functions of version %s.', library, extension),
           'ALTER EXTENSION insta_ids UPDATE'
    WHERE insta_ids_internal.is_older(extension, library);
END
$$;

-- Returns how much of each resource of the server and the layout is used and available, and when it runs out.
CREATE OR REPLACE FUNCTION insta_ids_internal.server_budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    config insta_ids_internal.config := insta_ids_internal.require_config();
    last_instant CONSTANT timestamptz := insta_ids_internal.id_time(9223372036854775807, config.layout);
    locks CONSTANT bigint := insta_ids_internal.lock_capacity();
BEGIN
    RETURN QUERY
    SELECT 'locks of pg_dump', current_database()::text, count(*)::numeric, locks::numeric, NULL::timestamptz
    FROM pg_class c
    -- From PostgreSQL 18 on, pg_dump reads sequences without locks.
    WHERE (c.relkind IN ('r', 'p', 'v', 'm') OR c.relkind = 'S' AND current_setting('server_version_num')::integer < 180000)
        AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace);

    RETURN QUERY
    SELECT 'locks of migrate', s.schema::text, 50 * c.relations::numeric, locks::numeric, NULL::timestamptz
    FROM (SELECT c.relnamespace, count(*) AS relations FROM pg_class c GROUP BY 1) c
    JOIN insta_ids_internal.shard_schema s ON s.oid = c.relnamespace
    ORDER BY c.relations DESC, s.shard LIMIT 1;

    RETURN QUERY
    SELECT 'memory of a session that visits all shards', NULL, 12000 * count(*)::numeric, NULL::numeric, NULL::timestamptz
    FROM insta_ids_internal.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f');

    RETURN QUERY
    SELECT 'milliseconds of the layout', config.layout::text,
           round(1000 * extract(epoch FROM now() - epoch)), round(1000 * extract(epoch FROM last_instant - epoch)), last_instant
    FROM insta_ids_internal.id_time(0::bigint, config.layout) epoch;
END
$$;

-- Returns findings about resources of the server and the layout that run out.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_budget() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN b.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END, f.code, b.object, f.detail, f.hint
    FROM insta_ids_internal.server_budget() b
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

-- Runs each check in a subtransaction that is rolled back, so no lock remains. A check that fails runs again, because other
-- sessions may have changed what it was reading.
CREATE OR REPLACE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
    -- Some checks read catalog rows of thousands of shards.
    SET work_mem = '64MB'
AS $$
DECLARE
    attempts CONSTANT integer := 3;
    parts text[] := ARRAY['server', 'versions', 'budget', 'map', 'schemas', 'migrations', 'objects', 'tables', 'sequences', 'ids'];
    part text;
    findings insta_ids.finding[];
BEGIN
    -- A node of Citus where init was not called has no shards of its own.
    IF NOT EXISTS (SELECT FROM insta_ids_internal.config) AND (SELECT c.own_group FROM insta_ids_internal.citus() c) IS NOT NULL THEN
        parts := ARRAY['server', 'versions'];
    ELSE
        PERFORM insta_ids_internal.require_config();
    END IF;
    FOREACH part IN ARRAY parts LOOP
        FOR attempt IN 1 .. attempts LOOP
            BEGIN
                EXECUTE format('SELECT array_agg(f) FROM insta_ids_internal.%I() f', 'check_' || part) INTO findings;
                RAISE triggered_action_exception;
            EXCEPTION
                WHEN triggered_action_exception THEN
                    RETURN QUERY SELECT f.* FROM unnest(findings) f;
                    EXIT;
                WHEN OTHERS THEN
                    IF attempt = attempts THEN
                        RETURN QUERY
                        SELECT f.*
                        FROM insta_ids_internal.unread_finding('Parts of this', ARRAY[format('check_%s: %s', part, SQLERRM)]) f;
                    END IF;
            END;
        END LOOP;
    END LOOP;
    PERFORM insta_ids_internal.limit_catalog_cache();
END
$$;
COMMENT ON FUNCTION insta_ids.check() IS 'what is wrong with the shards of this database, or will be';

-- Returns the shards of a range that have a schema. A NULL bound is no limit.
CREATE OR REPLACE FUNCTION insta_ids_internal.shards_to_check(first integer, last integer) RETURNS integer[]
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT s.shard FROM insta_ids_internal.shard_schema s
        WHERE s.oid IS NOT NULL AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);

-- Reads every ID of a shard, and reports those that should not be there, and tables that cannot be read. Returns whether there
-- are none. No ID is expected to have reached `until`.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_sound_rows(shard integer, until timestamptz) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    minting record;
    wrong record;
    is_sound boolean := true;
BEGIN
    BEGIN
        FOR minting IN
            SELECT m.* FROM insta_ids_internal.minting_columns(ARRAY[shard]) m
            JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        LOOP
            BEGIN
                FOR wrong IN
                    SELECT f.*
                    FROM insta_ids_internal.check_ids_of(minting.relation, minting."column", shard, minting.since,
                        greatest(until, clock_timestamp() + interval '2 s'), true) c, unnest(c.findings) f
                LOOP
                    is_sound := false;
                    RAISE WARNING USING
                        MESSAGE = format('%s in %s', replace(wrong.code, '_', ' '), wrong.object),
                        DETAIL = wrong.detail, HINT = wrong.hint;
                END LOOP;
            EXCEPTION WHEN OTHERS THEN
                is_sound := false;
                RAISE WARNING USING
                    MESSAGE = format('could not read table %s', minting.relation), DETAIL = SQLERRM;
            END;
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        is_sound := false;
        RAISE WARNING USING
            MESSAGE = format('could not read the columns of shard %s', shard), DETAIL = SQLERRM;
    END;
    RETURN is_sound;
END
$$;

-- Checks the next shards of `todo`, of which `done` are done, up to a multiple of `batch`. Adds to both counts.
CREATE OR REPLACE PROCEDURE insta_ids_internal.check_batch(
        todo integer[], batch integer, until timestamptz, INOUT done integer, INOUT failed integer)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOOP
        failed := failed + (NOT insta_ids_internal.has_sound_rows(todo[done + 1], until))::integer;
        done := done + 1;
        EXIT WHEN done % batch = 0 OR done = cardinality(todo);
    END LOOP;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.check_rows(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    until pg_catalog.timestamptz;
    todo integer[];
    total integer;
    done integer := 0;
    failed integer := 0;
BEGIN
    -- The session's default isolation level may be stricter, and then the first transaction would not see new commits.
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.require_range(first, last, batch);
    until := insta_ids_internal.time_not_reached();
    todo := insta_ids_internal.shards_to_check(first, last);
    total := pg_catalog.cardinality(todo);
    CALL insta_ids_internal.commit_batch('check_rows', total, done, failed);
    WHILE done OPERATOR(pg_catalog.<) total LOOP
        CALL insta_ids_internal.check_batch(todo, batch, until, done, failed);
        CALL insta_ids_internal.commit_batch('check_rows', total, done, failed);
    END LOOP;
    IF failed OPERATOR(pg_catalog.>) 0 THEN
        RAISE check_violation USING
            MESSAGE = pg_catalog.format('%s of %s shards have ids that should not be there, or could not be read', failed, total),
            DETAIL = 'A warning tells of each column or table.';
    END IF;
    -- If a procedure called this one, its transaction goes on with the caller's search_path.
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.check_rows(integer, integer, integer) IS
    'reads every id of a range of shards, and warns of those that should not be there';
