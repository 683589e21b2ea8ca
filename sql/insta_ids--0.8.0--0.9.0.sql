-- While a server, or a session, still runs the library that was installed before this version, nothing is made.
DO $$
BEGIN
    CREATE FUNCTION insta_ids.library_version() RETURNS text
        STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'library_version_wrapper';
EXCEPTION
    WHEN undefined_function THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
END
$$;
REVOKE ALL ON FUNCTION insta_ids.library_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.library_version() TO PUBLIC;
COMMENT ON FUNCTION insta_ids.library_version() IS
    'version of the library that this session runs';

CREATE OR REPLACE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
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

    BEGIN
        PERFORM insta_ids.check_writer();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.take_writer_slot(...)'
                )::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT 'warning', f.code, 'insta_ids', f.detail, f.hint
    FROM (SELECT insta_ids.library_version(), e.extversion, a.default_version
          FROM pg_extension e JOIN pg_available_extensions a ON a.name = e.extname
          WHERE e.extname = 'insta_ids') v (library, extension, installed)
    CROSS JOIN LATERAL (VALUES
        ('old_library', v.library, v.installed,
            format('Version %s is installed, and the server still runs the library of version %s.', v.installed, v.library),
            'Restart the server.'),
        ('old_extension', v.extension, v.library,
            format('The library is of version %s, and this database still has the functions of version %s.', v.library, v.extension),
            'ALTER EXTENSION insta_ids UPDATE')
    ) f (code, older, newer, detail, hint)
    WHERE string_to_array(f.older, '.')::integer[] < string_to_array(f.newer, '.')::integer[];

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
