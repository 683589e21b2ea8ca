-- Before the functions: what the server still needs, the extension's two schemas, the library, and the lease.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
    taken CONSTANT pg_catalog.name := (
        SELECT min(n.nspname) FROM pg_catalog.pg_namespace n
        WHERE n.nspname OPERATOR(pg_catalog.=) ANY (ARRAY['insta_ids', 'insta_ids_internal']::pg_catalog.name[]));
BEGIN
    IF taken IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = pg_catalog.format('schema "%s" already exists', taken),
            DETAIL = 'The extension creates the schemas insta_ids and insta_ids_internal.',
            HINT = CASE '@extschema@'
                WHEN pg_catalog.quote_ident(taken) THEN 'Drop it, and create the extension in another one.'
                ELSE 'Drop or rename it.'
            END;
    END IF;
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 170000
        AND 'insta_ids' <> ALL (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), $re$[\s,"/]+$re$))
    THEN
        RAISE WARNING USING
            MESSAGE = 'insta_ids is not loaded by the server yet, so next_id will fail',
            DETAIL = 'Before PostgreSQL 17, shared memory is given out at server start only.',
            HINT = 'Set shared_preload_libraries = ''insta_ids'' in postgresql.conf, beside what is listed there, and restart the server.';
    END IF;
END
$$;

-- What users call. Its owner is who creates the extension, and nobody else can create anything in it.
CREATE SCHEMA insta_ids;
-- The extension's own tables. Nobody without USAGE on it can name one of them, so nobody can queue for a lock on it:
-- a statement such as CREATE TRIGGER waits for its lock before PostgreSQL looks at privileges.
CREATE SCHEMA insta_ids_internal;

CREATE FUNCTION insta_ids.library_version() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'library_version_wrapper';

-- Whether a version comes before another one; NULL if one is no number.
CREATE FUNCTION insta_ids.is_older(version text, other text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN version ~ '^[0-9]{1,8}([.][0-9]{1,8})*$' AND other ~ '^[0-9]{1,8}([.][0-9]{1,8})*$'
    THEN string_to_array(version, '.')::integer[] < string_to_array(other, '.')::integer[]
END;

-- Functions of this version can need a library of this version, and a server keeps the library it was started with.
DO $$
BEGIN
    IF (SELECT insta_ids.is_older(insta_ids.library_version(), extversion)
        FROM pg_catalog.pg_extension WHERE extname = 'insta_ids')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
    END IF;
END
$$;

-- Written by the library alone, and dumped with its value.
CREATE SEQUENCE insta_ids_internal.lease;
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.lease', '');
SET LOCAL search_path = @extschema@, pg_temp;
