-- The library: what it offers to the extension's own SQL, and questions to the server that many files ask.

-- Readers of ids and next_id, under names in the extension's own schema. PL/pgSQL looks functions up by name. The schema that
-- users chose for the extension may contain other functions of these names, and it may be renamed.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_time(id bigint, layout @extschema@.id_layout) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_shard(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_min(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.id_max(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_layout_wrapper';
CREATE OR REPLACE FUNCTION insta_ids_internal.next_id(shard integer, sequence regclass, layout @extschema@.id_layout) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_next_id_layout';

-- Returns the quoted name of the schema that contains next_id. This function is in PL/pgSQL, because it is called for each
-- shard. PL/pgSQL plans an SQL function anew at each call, and keeps that memory until the transaction ends.
CREATE OR REPLACE FUNCTION insta_ids_internal.extension_schema() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- With a join, the plan would read all of pg_namespace at each call.
    RETURN (SELECT e.extnamespace::regnamespace::text FROM pg_extension e WHERE e.extname = 'insta_ids');
END
$$;

-- Returns whether the current role is a superuser.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_superuser() RETURNS boolean
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user);
END
$$;

-- Returns the roles that may create objects in a schema and are not superusers, or NULL if there are none. PostgreSQL may call
-- a function of these roles instead of the extension's if a call does not give the full name and types.
CREATE OR REPLACE FUNCTION insta_ids_internal.creators(schema oid) RETURNS text
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
        WHERE n.oid = creators.schema AND o.rolsuper IS NOT TRUE);
END
$$;

-- Locks a table, foreign table or sequence until the transaction ends. `mode` is like `ACCESS EXCLUSIVE`.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_relation(relation oid, mode text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_relation_wrapper';

-- Returns what a relation is if its rows are not in its own heap, where the functions below read them and locks keep writers
-- out: `foreign table`, `Citus table` or `table with another access method than heap`. NULL if they are there, or if it has none.
-- The arguments are from its row of pg_class.
CREATE OR REPLACE FUNCTION insta_ids_internal.not_in_heap(relation oid, kind "char", method oid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'not_in_heap_wrapper';

-- Returns whether a table has rows, without those of its child tables. It runs no code of the table's owner. Like the next functions
-- that read rows, it raises an error if they are not in the table's heap.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_rows("table" oid) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'has_rows_wrapper';

-- Returns the last value that a sequence gave out, or its start value. It runs no code of the sequence's owner. If the
-- statement fails, it keeps no lock; nextval and pg_sequence_last_value would keep one.
CREATE OR REPLACE FUNCTION insta_ids_internal.last_value(sequence oid) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'last_value_wrapper';

-- Counts the ids in a column of one table, without its child tables. `oldest` is not below `since`, and `newest` is of the shard if it
-- is. `negative` ids are below 0, `foreign_ids` are of another shard and not below `since`, and `future` ones are from `beyond` on.
-- Unless `every_row` is true, it reads only the least and greatest id, and only from an index.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_ids(
        "table" oid, "column" text, shard integer, layout @extschema@.id_layout, since bigint, beyond bigint,
        every_row boolean)
    RETURNS TABLE (ids bigint, oldest bigint, newest bigint, negative bigint, a_negative bigint, foreign_ids bigint,
        a_foreign_id bigint, future bigint, newest_future bigint)
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_ids_wrapper';

-- Returns the number of rows of a table, without its child tables, and the sum of their hashes. The same rows give the same sum
-- on each server.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_rows("table" oid, OUT rows bigint, OUT hash bigint) RETURNS SETOF record
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'survey_rows_wrapper'
    -- A row's hash comes from its text, which depends on these settings.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- Returns the hash of each row of a table. More than work_mem holds are on disk.
CREATE OR REPLACE FUNCTION insta_ids_internal.row_hashes("table" oid) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'row_hashes_wrapper'
    -- The settings are those of survey_rows.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- Returns the values in `columns` of the rows that have one of these hashes, as a text for each row.
CREATE OR REPLACE FUNCTION insta_ids_internal.rows_of_hashes("table" oid, columns text[], hashes bigint[]) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'rows_of_hashes_wrapper'
    -- The settings are those of survey_rows.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64';

-- Returns the hashes of the different keys in columns of a table, or none if a column's type has no hashes. Keys that PostgreSQL's own
-- operators take for equal have the same hash on each server. It runs no code of the table's owner.
CREATE OR REPLACE FUNCTION insta_ids_internal.hashes_in_table("table" oid, columns text[]) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hashes_in_table_wrapper';

-- Returns the keys that have one of these hashes, as texts.
CREATE OR REPLACE FUNCTION insta_ids_internal.keys_in_table("table" oid, columns text[], hashes bigint[]) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'keys_in_table_wrapper';

-- Locks the schema of a relation until the transaction ends, so that other sessions cannot rename it. With a lock on the
-- relation, its qualified name stays the same. Only members of the role that owns the relation may call this.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_schema_of(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_schema_of_wrapper';

-- Runs a command with only the rights of the role that owns a relation, because the command may run code of that role. Only
-- members of that role may call this. The caller holds locks on the names in the command.
CREATE OR REPLACE FUNCTION insta_ids_internal.as_owner(relation oid, command text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'as_owner_wrapper';

-- Returns the value of one of the extension's settings. PostgreSQL knows these settings only after the session has loaded the
-- library, so this function calls the library first.
CREATE OR REPLACE FUNCTION insta_ids_internal.setting(name text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.library_version();
    RETURN current_setting(name);
END
$$;

-- Raises an error unless the transaction is READ COMMITTED. An older snapshot misses what others committed before the locks.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_read_committed() RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE active_sql_transaction USING
            MESSAGE = format('command cannot run in a transaction of isolation level "%s"', current_setting('transaction_isolation')),
            DETAIL = 'The snapshot of the transaction is older than the locks that the command takes.',
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;

-- Returns the functions that generate ids.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_functions() RETURNS oid[]
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY[
        '@extschema@.next_id(integer, regclass)'::regprocedure,
        '@extschema@.next_id(integer, regclass, @extschema@.id_layout)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer)'::regprocedure,
        '@extschema@.next_ids(integer, regclass, integer, @extschema@.id_layout)'::regprocedure]::oid[];

-- Returns the last argument of a call of next_id, as text. It is empty for the default layout.
CREATE OR REPLACE FUNCTION insta_ids_internal.layout_argument(layout @extschema@.id_layout) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN layout OPERATOR(@extschema@.=) 'instagram'::@extschema@.id_layout THEN ''
        ELSE pg_catalog.format(', %L::%s.id_layout', layout, insta_ids_internal.extension_schema()) END;

-- Frees what the session has cached of the catalog, if that is much.
CREATE OR REPLACE FUNCTION insta_ids_internal.limit_catalog_cache() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'limit_catalog_cache_wrapper';

-- Locks a relation until the transaction ends, so that other sessions cannot rename or drop it or change its schema. It takes
-- the weakest lock that prevents this.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_name(relation oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'hold_name_wrapper';

-- Locks a schema until the transaction ends, so that other sessions cannot create anything in it. Raises an error unless the
-- caller may create objects in the schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_schema(schema oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_schema_wrapper';

-- Limits how long this transaction waits for each lock, as PostgreSQL's setting does: 0 is no limit. Raises PostgreSQL's error if
-- the setting does not accept the value, and one if there is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.set_lock_timeout(lock_timeout interval) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lock_timeout IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'lock_timeout must be given';
    END IF;
    -- Less than a millisecond must not become 0.
    PERFORM set_config('lock_timeout', ceil(extract(epoch FROM lock_timeout) * 1000) || 'ms', true);
END
$$;

-- Makes the commit wait until it is on disk, here and on synchronous standbys, before another server learns of it.
CREATE OR REPLACE FUNCTION insta_ids_internal.commit_durably() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
END;
