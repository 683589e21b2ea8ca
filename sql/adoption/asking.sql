-- Adoption: one call of a user's function, the role that makes it, and what the call leaves behind.

-- Returns the text of a function with {schema} in place of its schema's name and {shard} in place of its shard's number, so that
-- the functions of many shards have one text and one digest. A brace in the text is doubled. Locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.function_class(text text, schema regnamespace, shard integer) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT text := (
        SELECT regexp_replace(n.nspname, $re$[][(){}.*+?^$|\\]$re$, $re$\\\&$re$, 'g') FROM pg_namespace n WHERE n.oid = schema);
BEGIN
    RETURN regexp_replace(
        regexp_replace(replace(text, '{', '{{'), $re$(?<![\w$])$re$ || name || $re$(?![\w$])$re$, '{schema}', 'g'),
        $re$(?<![\w$.])$re$ || shard || $re$(?![\w$.])$re$, '{shard}', 'g');
END
$$;

-- Creates a role for calling a superuser's function, and returns it. The role can use the schema, its sequences and this
-- function, and read its tables. The caller must be a superuser, and must roll the role back with a subtransaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.create_stand_in(function regprocedure, schema regnamespace) RETURNS oid
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := 'insta_ids_' || pg_backend_pid();
BEGIN
    EXECUTE format('CREATE ROLE %I', name);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', schema, name);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %s TO %I', schema, name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO %I', schema, name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', function, name);
    RETURN name::regrole;
END
$$;

-- Raises an error if the schema, or an object in it, belongs to a role that is neither `owner` nor a superuser. Called as
-- `owner`, a function could run code of that role.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_one_owner(schema regnamespace, owner oid) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other CONSTANT name := (
        SELECT r.rolname
        FROM pg_roles r
        WHERE NOT r.rolsuper AND r.oid <> owner AND r.oid IN (
            SELECT n.nspowner FROM pg_namespace n WHERE n.oid = schema
            UNION SELECT c.relowner FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT p.proowner FROM pg_proc p WHERE p.pronamespace = schema
            UNION SELECT t.typowner FROM pg_type t WHERE t.typnamespace = schema)
        ORDER BY r.rolname LIMIT 1);
BEGIN
    IF other IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('it belongs to %I, and other objects of its schema to %I, whose code it could run',
                pg_get_userbyid(owner), other),
            HINT = format('Let all of schema %s belong to one role, apart from superusers.', schema);
    END IF;
END
$$;

-- Returns the role that calls a function. A function that is `safe` calls nothing but PostgreSQL's own functions, so its owner
-- calls it. Any other function may call code of other roles, so no superuser calls it. Raises an error if no role may call it.
-- The caller must roll back what this function creates with a subtransaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.calling_role(function regprocedure, schema regnamespace, safe boolean) RETURNS oid
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    called CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    is_super CONSTANT boolean := (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = called.proowner);
BEGIN
    IF safe THEN
        RETURN called.proowner;
    ELSIF is_super AND called.prosecdef THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'it is SECURITY DEFINER and belongs to a superuser',
            HINT = format('Give it to another role: ALTER FUNCTION %s OWNER TO ...', function);
    ELSIF is_super THEN
        RETURN insta_ids_internal.create_stand_in(function, schema);
    END IF;
    PERFORM insta_ids_internal.require_one_owner(schema, called.proowner);
    RETURN called.proowner;
END
$$;

-- Creates a sequence for functions that take a sequence as an argument, and returns it. The role can use it. Its first value has
-- all its 40 low bits set, so a function that takes too many or too few bits of it is noticed. The caller must roll the sequence
-- back with a subtransaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.create_probe(schema regnamespace, role oid) RETURNS regclass
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT text := format('%s.%I', schema, 'insta_ids_' || pg_backend_pid());
BEGIN
    EXECUTE format('CREATE SEQUENCE %s START %s', name, (1::bigint << 40) - 1);
    EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', name, pg_get_userbyid(role));
    RETURN name::regclass;
END
$$;

-- Returns the sequences from which this transaction took values, with the last value of each. nextval locks a sequence until the
-- transaction ends, so the sequences are found by their locks.
CREATE OR REPLACE FUNCTION insta_ids_internal.taken_values() RETURNS TABLE (sequence regclass, value bigint)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    FOR sequence IN
        SELECT l.relation FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'S'
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    LOOP
        BEGIN
            value := currval(sequence);
            RETURN NEXT;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN
            NULL;
        END;
    END LOOP;
END
$$;

-- Calls a function once as a role. Returns its id, the times before and after the call, the sequences that gave a value during
-- the call, and that value. Raises an error if the function fails or returns NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask(
        function oid, role oid, arguments text[],
        OUT id bigint, OUT began timestamptz, OUT ended timestamptz, OUT sequences regclass[], OUT value bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before CONSTANT jsonb := (SELECT jsonb_object_agg(t.sequence::oid, t.value) FROM insta_ids_internal.taken_values() t);
BEGIN
    began := clock_timestamp();
    id := insta_ids_internal.call_function(function, role, arguments);
    ended := clock_timestamp();
    IF id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'it returned NULL';
    END IF;
    SELECT coalesce(array_agg(t.sequence ORDER BY t.sequence), '{}'), max(t.value) INTO sequences, value
    FROM insta_ids_internal.taken_values() t
    WHERE t.value IS DISTINCT FROM (before ->> t.sequence::oid::text)::bigint;
END
$$;

-- Calls a function with NULL for each of these arguments in turn, and returns the number of the first one without which it mints
-- an id. Returns NULL if there is none, because the function fails or returns NULL. A place that is NULL stands for no argument.
CREATE OR REPLACE FUNCTION insta_ids_internal.optional_argument(function oid, role oid, arguments text[], places integer[]) RETURNS integer
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    others text[];
    place integer;
BEGIN
    FOR place IN SELECT p FROM unnest(places) p WHERE p IS NOT NULL LOOP
        others := arguments;
        others[place] := NULL;
        BEGIN
            IF insta_ids_internal.call_function(function, role, others) IS NOT NULL THEN
                RETURN place;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    RETURN NULL;
END
$$;

-- Returns the arguments of a call: the first number is this shard, the first text or regclass is this sequence, and all others
-- are NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.call_arguments(function regprocedure, shard integer, sequence text) RETURNS text[]
    STABLE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.array_agg(
        CASE a.place
            WHEN a.first_number THEN shard::pg_catalog.text
            WHEN a.first_name THEN sequence
        END ORDER BY a.place), '{}')
    FROM (
        SELECT t.place,
               min(t.place) FILTER (WHERE t.type = ANY ('{smallint,integer,bigint}'::pg_catalog.regtype[])) OVER () AS first_number,
               min(t.place) FILTER (WHERE t.type = ANY ('{name,text,varchar,regclass}'::pg_catalog.regtype[])) OVER () AS first_name
        FROM pg_catalog.pg_proc p
        CROSS JOIN LATERAL pg_catalog.unnest(p.proargtypes) WITH ORDINALITY t (type, place)
        WHERE p.oid = function
    ) a;
END;

-- Returns the advisory locks that this session holds.
CREATE OR REPLACE FUNCTION insta_ids_internal.advisory_locks()
    RETURNS TABLE (classid oid, objid oid, objsubid smallint, mode text)
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT l.classid, l.objid, l.objsubid, l.mode FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'advisory' AND l.granted
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database());
END;

-- Releases the session's advisory locks that are not in `held`, which has the texts of rows of advisory_locks(). PostgreSQL does
-- not release the locks of a session when a subtransaction is rolled back.
CREATE OR REPLACE FUNCTION insta_ids_internal.release_advisory_locks(held text[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lock record;
    key bigint;
    is_released boolean := true;
BEGIN
    -- The session can hold the same lock several times.
    LOOP
        SELECT * INTO lock FROM insta_ids_internal.advisory_locks() l WHERE l::text <> ALL (held) LIMIT 1;
        EXIT WHEN NOT FOUND OR NOT is_released;
        key := (lock.classid::bigint << 32) | lock.objid::bigint;
        is_released := CASE
            WHEN lock.objsubid = 1 AND lock.mode = 'ExclusiveLock' THEN pg_advisory_unlock(key)
            WHEN lock.objsubid = 1 THEN pg_advisory_unlock_shared(key)
            WHEN lock.mode = 'ExclusiveLock' THEN pg_advisory_unlock(lock.classid::integer, lock.objid::integer)
            ELSE pg_advisory_unlock_shared(lock.classid::integer, lock.objid::integer)
        END;
    END LOOP;
END
$$;
