-- What the extension's own SQL calls, in its own schema: bodies in PL/pgSQL name functions, and in the extension's schema
-- somebody else may have others of these names, or may give that name to another schema.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION insta_ids_internal.id_time(id bigint, layout @extschema@.id_layout) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_layout_wrapper';
CREATE FUNCTION insta_ids_internal.id_shard(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_layout_wrapper';
CREATE FUNCTION insta_ids_internal.id_min(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_layout_wrapper';
CREATE FUNCTION insta_ids_internal.id_max(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_layout_wrapper';
CREATE FUNCTION insta_ids_internal.next_id(shard integer, sequence regclass, layout @extschema@.id_layout) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_id_layout_wrapper';

-- A layout from its text.
CREATE FUNCTION insta_ids_internal.layout(layout text) RETURNS @extschema@.id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN layout::@extschema@.id_layout;

-- The name of the schema that next_id is in, quoted: for statements that name its functions. In PL/pgSQL, as the next one, as
-- they are called for each shard: in PL/pgSQL expressions, functions in SQL are planned anew each time, and keep the memory
-- of that until the transaction ends.
CREATE FUNCTION insta_ids_internal.extension_schema() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'insta_ids');
END
$$;

-- The roles that may create objects in a schema though they are no superusers, or NULL if there is none: a function of
-- theirs can be taken for one of the extension's wherever that is not called by its full name and types.
CREATE FUNCTION insta_ids_internal.creators(schema name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT string_agg(DISTINCT coalesce(quote_ident(r.rolname), 'PUBLIC'), ', ')
        FROM pg_namespace n
        CROSS JOIN LATERAL (
            SELECT n.nspowner
            UNION
            SELECT a.grantee FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE'
        ) g (role)
        JOIN pg_database d ON d.datname = current_database()
        LEFT JOIN pg_roles r ON r.oid = g.role
        LEFT JOIN pg_roles o ON o.oid = CASE r.rolname WHEN 'pg_database_owner' THEN d.datdba ELSE g.role END
        WHERE n.nspname = creators.schema AND o.rolsuper IS NOT TRUE);
END
$$;

-- Locks a table, foreign table or sequence, in a mode named as in SQL, until the transaction ends.
CREATE FUNCTION insta_ids_internal.lock_relation(relation oid, mode text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_relation_wrapper';

-- Whether a table has rows of its own. Runs nothing of its owner's.
CREATE FUNCTION insta_ids_internal.has_rows("table" oid) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'has_rows_wrapper';

-- The last value that a sequence gave out, or its first. Runs nothing of its owner's, and keeps no lock of a statement that
-- failed, as nextval and pg_sequence_last_value do.
CREATE FUNCTION insta_ids_internal.last_value(sequence oid) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'last_value_wrapper';

-- Of the ids in a column of one table, not of its children: how many there are, the oldest and the newest, and those that are
-- negative, of another shard, or at least `beyond`. Of all rows, or of the two at the ends of an index, if there is one.
CREATE FUNCTION insta_ids_internal.survey_ids(
        "table" oid, "column" text, shard integer, layout @extschema@.id_layout, beyond bigint, every_row boolean)
    RETURNS TABLE (ids bigint, oldest bigint, newest bigint, negative bigint, a_negative bigint, strange bigint, a_strange bigint,
        future bigint, newest_future bigint)
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_ids_wrapper';

-- The number of rows that a table has, without its children, and if `hashed` the sum of their hashes: the same for the same
-- rows, on each server.
CREATE FUNCTION insta_ids_internal.survey_rows("table" oid, hashed boolean, OUT rows bigint, OUT hash bigint) RETURNS SETOF record
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_rows_wrapper'
    -- Rows are compared as texts.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- The hash of each row of a table.
CREATE FUNCTION insta_ids_internal.row_hashes("table" oid) RETURNS bigint[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'row_hashes_wrapper'
    -- As survey_rows.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- Keeps others from renaming the schema of a relation until the transaction ends. With a lock on the relation, nobody gives
-- its qualified name to another one. For members of the role that owns the relation.
CREATE FUNCTION insta_ids_internal.hold_schema_of(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_schema_of_wrapper';

-- Runs a command with the rights of the role that owns a relation, and nobody else's: for what makes PostgreSQL run code that
-- the role has put into its tables. For members of that role, who hold the names in the command.
CREATE FUNCTION insta_ids_internal.as_owner(relation oid, command text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'as_owner_wrapper';
SET LOCAL search_path = @extschema@, pg_temp;
