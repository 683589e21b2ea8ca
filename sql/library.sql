-- The library: what it offers to the extension's own SQL, and what is asked of the server in many places.

-- The readers and next_id under names of the extension's own schema. The schema that users chose for them may have other
-- functions of these names, and may be renamed: bodies in PL/pgSQL look functions up by name.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_time(id bigint, layout @extschema@.id_layout) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_shard(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_min(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_max(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.next_id(shard integer, sequence regclass, layout @extschema@.id_layout) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_id_layout_wrapper';

-- A layout from its text.
CREATE OR REPLACE FUNCTION insta_ids_internal.layout(layout text) RETURNS @extschema@.id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN layout::@extschema@.id_layout;

-- The name of the schema that next_id is in, quoted: for statements that name its functions. In PL/pgSQL, as the next one, as
-- they are called for each shard: in PL/pgSQL expressions, functions in SQL are planned anew each time, and keep the memory
-- of that until the transaction ends.
CREATE OR REPLACE FUNCTION insta_ids_internal.extension_schema() RETURNS text
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
CREATE OR REPLACE FUNCTION insta_ids_internal.creators(schema name) RETURNS text
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
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_relation(relation oid, mode text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_relation_wrapper';

-- Whether a table has rows of its own. Runs nothing of its owner's.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_rows("table" oid) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'has_rows_wrapper';

-- The last value that a sequence gave out, or its first. Runs nothing of its owner's, and keeps no lock of a statement that
-- failed, as nextval and pg_sequence_last_value do.
CREATE OR REPLACE FUNCTION insta_ids_internal.last_value(sequence oid) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'last_value_wrapper';

-- Of the ids in a column of one table, not of its children: how many there are, the oldest and the newest, and those that are
-- negative, of another shard, or at least `beyond`. Of all rows, or of the two at the ends of an index, if there is one.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_ids(
        "table" oid, "column" text, shard integer, layout @extschema@.id_layout, beyond bigint, every_row boolean)
    RETURNS TABLE (ids bigint, oldest bigint, newest bigint, negative bigint, a_negative bigint, strange bigint, a_strange bigint,
        future bigint, newest_future bigint)
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_ids_wrapper';

-- The number of rows that a table has, without its children, and if `hashed` the sum of their hashes: the same for the same
-- rows, on each server.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_rows("table" oid, hashed boolean, OUT rows bigint, OUT hash bigint) RETURNS SETOF record
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_rows_wrapper'
    -- Rows are compared as texts.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- The hash of each row of a table.
CREATE OR REPLACE FUNCTION insta_ids_internal.row_hashes("table" oid) RETURNS bigint[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'row_hashes_wrapper'
    -- As survey_rows.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- Keeps others from renaming the schema of a relation until the transaction ends. With a lock on the relation, nobody gives
-- its qualified name to another one. For members of the role that owns the relation.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_schema_of(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_schema_of_wrapper';

-- Runs a command with the rights of the role that owns a relation, and nobody else's: for what makes PostgreSQL run code that
-- the role has put into its tables. For members of that role, who hold the names in the command.
CREATE OR REPLACE FUNCTION insta_ids_internal.as_owner(relation oid, command text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'as_owner_wrapper';

-- The value of one of the extension's settings. PostgreSQL does not know them before the session has loaded the library,
-- which a call of one of its functions does.
CREATE OR REPLACE FUNCTION insta_ids_internal.setting(name text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.library_version();
    RETURN current_setting(name);
END
$$;

-- Refuses a transaction whose snapshot is older than the locks it takes: it does not see what others wrote before.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_read_committed() RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'active_sql_transaction',
            MESSAGE = format('command cannot run in a transaction of isolation level "%s"', current_setting('transaction_isolation')),
            DETAIL = 'The snapshot of the transaction is older than the locks that the command takes.',
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;

-- The functions that all ids come from.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_functions() RETURNS oid[]
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY[
        '@extschema@.next_id(integer, regclass)'::regprocedure,
        '@extschema@.next_id(integer, regclass, @extschema@.id_layout)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer, @extschema@.id_layout)'::regprocedure]::oid[];

-- The last argument of next_id, where it is not the default.
CREATE OR REPLACE FUNCTION insta_ids_internal.layout_argument(layout @extschema@.id_layout) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN layout OPERATOR(@extschema@.=) 'instagram'::@extschema@.id_layout THEN ''
        ELSE pg_catalog.format(', %L::%s.id_layout', layout, insta_ids_internal.extension_schema()) END;

-- Gives back the memory of what the session has cached of the catalog, if that is much.
CREATE OR REPLACE FUNCTION insta_ids_internal.limit_catalog_cache() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'limit_catalog_cache_wrapper';

-- Locks a relation until the transaction ends, in the weakest mode that keeps others from renaming it, from moving it to
-- another schema and from dropping it.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_name(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_name_wrapper';

-- Lets nobody make anything in a schema until the transaction ends; of who may make something in it.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_schema(schema oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_schema_wrapper';

-- What the two servers agree on is on disk before the other hears of it, also on a synchronous standby.
CREATE OR REPLACE FUNCTION insta_ids_internal.commit_durably() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
END;
