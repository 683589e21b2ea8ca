-- Versions. This file comes before all that needs a library of this version.

-- Returns the version of the library that this session runs.
CREATE OR REPLACE FUNCTION insta_ids_internal.library_version() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'library_version_wrapper';

-- Returns whether a version is older than another one. NULL if one of them does not consist of numbers.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_older(version text, other text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN version ~ '^[0-9]{1,8}([.][0-9]{1,8})*$' AND other ~ '^[0-9]{1,8}([.][0-9]{1,8})*$'
    THEN string_to_array(version, '.')::integer[] < string_to_array(other, '.')::integer[]
END;

-- Functions of this version may need a library of this version. A server keeps the library with which it was started.
DO $$
BEGIN
    IF (SELECT insta_ids_internal.is_older(insta_ids_internal.library_version(), extversion)
        FROM pg_catalog.pg_extension WHERE extname = 'insta_ids')
    THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
    END IF;
END
$$;

-- All roles may call this function, but few may read the map's tables. So it runs with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids.version(OUT library text, OUT extension text, OUT map bigint)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    library := insta_ids_internal.library_version();
    extension := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'insta_ids');
    map := (SELECT m.version FROM insta_ids_internal.map m);
END
$$;
COMMENT ON FUNCTION insta_ids.version() IS
    'versions of the library that this session runs, of the extension in this database, and of its map';
