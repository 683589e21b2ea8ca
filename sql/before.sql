-- Before the functions: what the server still needs, the schema of administration, the library, and the lease.
DO $$
BEGIN
    IF pg_catalog.to_regnamespace('insta_ids') IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = 'schema "insta_ids" already exists',
            DETAIL = 'The extension makes it for its administration.',
            HINT = CASE pg_catalog.current_schema()
                WHEN 'insta_ids' THEN 'Drop it, and create the extension in another one.'
                ELSE 'Drop or rename it.'
            END;
    END IF;
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 170000
        AND 'insta_ids' <> ALL (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), '[\s,"/]+'))
    THEN
        RAISE WARNING USING
            MESSAGE = 'insta_ids is not loaded by the server yet, so next_id will fail',
            DETAIL = 'Before PostgreSQL 17, shared memory is given out at server start only.',
            HINT = 'Set shared_preload_libraries = ''insta_ids'' in postgresql.conf, beside what is listed there, and restart the server.';
    END IF;
END
$$;

CREATE SCHEMA insta_ids;

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

-- Written by the library alone, and dumped with its value.
CREATE SEQUENCE insta_ids.lease;
SELECT pg_catalog.pg_extension_config_dump('insta_ids.lease', '');
