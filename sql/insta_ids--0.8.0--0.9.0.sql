-- From 0.8.0 to 0.9.0: the version of the library, and what a publication of all tables needs.

-- While a server, or a session, still runs the library that was installed before this version, nothing is made.
DO $$
BEGIN
    CREATE FUNCTION insta_ids.library_version() RETURNS text
        STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'library_version_wrapper';
EXCEPTION
    WHEN undefined_function THEN
        -- Not that of somebody's event trigger.
        IF SQLERRM NOT LIKE '%library_version_wrapper%' THEN
            RAISE;
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
END
$$;

-- Sessions that read the map for their first id wait behind these, so these do not wait long for others.
SELECT pg_catalog.set_config('lock_timeout', '2s', true) WHERE pg_catalog.current_setting('lock_timeout') = '0';
ALTER TABLE insta_ids.map REPLICA IDENTITY FULL;
ALTER TABLE insta_ids.writer REPLICA IDENTITY FULL;

-- Checking

-- What the map, the fences and the moves do not agree in with this server.
CREATE OR REPLACE FUNCTION insta_ids.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids.shard_schema s
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids.fence f
    JOIN insta_ids.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND NOT EXISTS (
            SELECT FROM pg_trigger t
            WHERE t.tgrelid = r.relation AND t.tgname = 'insta_ids_fence'
                -- As insta_ids.close_shards left it.
                AND t.tgenabled = CASE WHEN f.to_node = here THEN 'O' ELSE 'A' END)
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- Whether a version comes before another one. Of what is no number nothing is known, but that it was before there were any here.
CREATE FUNCTION insta_ids.is_older(version text, other text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN version ~ '^\d{1,8}(\.\d{1,8})*$' AND other ~ '^\d{1,8}(\.\d{1,8})*$'
    THEN string_to_array(version, '.')::integer[] < string_to_array(other, '.')::integer[]
    ELSE coalesce(version = 'before 0.9.0', false)
END;

CREATE OR REPLACE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    extension CONSTANT text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'insta_ids');
    library text;
    installed text;
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM),
                'Add insta_ids to "shared_preload_libraries" in postgresql.conf, and restart the server.')::insta_ids.finding;
    END;

    BEGIN
        PERFORM insta_ids.check_writer();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.take_writer_slot(...)'
                )::insta_ids.finding;
    END;

    BEGIN
        library := insta_ids.library_version();
    EXCEPTION
        WHEN undefined_function THEN
            library := 'before 0.9.0';
    END;
    BEGIN
        installed := (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'insta_ids');
    EXCEPTION
        -- It reads what is installed of all extensions, and fails where one of them is not right.
        WHEN OTHERS THEN
            installed := NULL;
    END;
    RETURN QUERY
    SELECT 'warning', 'old_library', 'insta_ids',
           format('The library that this session runs is of version %s, and version %s is installed.', library,
               CASE WHEN insta_ids.is_older(extension, installed) THEN installed ELSE extension END),
           'Install the newest version, and restart the server.'
    WHERE insta_ids.is_older(library, extension) OR insta_ids.is_older(library, installed);
    RETURN QUERY
    SELECT 'warning', 'old_extension', 'insta_ids',
           format('The library is of version %s, and this database still has the functions of version %s.', library, extension),
           'ALTER EXTENSION insta_ids UPDATE'
    WHERE insta_ids.is_older(extension, library);

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

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON FUNCTION %s FROM %s', p.oid::regprocedure,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner)))
        WHERE p.pronamespace = 'insta_ids'::regnamespace AND p.proname IN ('library_version', 'is_older') AND grantee <> p.proowner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION insta_ids.library_version(), insta_ids.is_older(text, text) TO PUBLIC;

-- Comments
COMMENT ON FUNCTION insta_ids.library_version() IS
    'version of the library that this session runs';
COMMENT ON FUNCTION insta_ids.is_older(text, text) IS
    'whether a version comes before another one';
