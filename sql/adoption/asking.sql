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
        RAISE insufficient_privilege USING
            MESSAGE = format('it belongs to %I, and other objects of its schema to %I, whose code it could run',
                pg_get_userbyid(owner), other),
            HINT = format('Let all of schema %s belong to one role, apart from superusers.', schema);
    END IF;
END
$$;

-- Returns the role that calls a function. The function may call code of other roles, so no superuser calls it. Raises an error if no
-- role may call it. The caller must roll back what this function creates with a subtransaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.calling_role(function regprocedure, schema regnamespace) RETURNS oid
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    called CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    is_super CONSTANT boolean := (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = called.proowner);
BEGIN
    IF is_super AND called.prosecdef THEN
        RAISE insufficient_privilege USING MESSAGE = 'it is SECURITY DEFINER and belongs to a superuser',
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
        RAISE null_value_not_allowed USING MESSAGE = 'it returned NULL';
    END IF;
    SELECT coalesce(array_agg(t.sequence ORDER BY t.sequence), '{}'), max(t.value) INTO sequences, value
    FROM insta_ids_internal.taken_values() t
    WHERE t.value IS DISTINCT FROM (before ->> t.sequence::oid::text)::bigint;
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

-- Returns why a call of a function for this shard shows that it cannot be adopted, or NULL. The other arguments are what ask() has
-- returned.
CREATE OR REPLACE FUNCTION insta_ids_internal.answer_reason(
        shard integer, id bigint, ended timestamptz, sequences regclass[], value bigint)
    RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    -- A function may use the time of the transaction.
    oldest CONSTANT timestamptz := insta_ids_internal.id_time(insta_ids_internal.id_min(now() - interval '2 s', layout), layout);
BEGIN
    RETURN CASE
        WHEN sequences = '{}' THEN 'It takes no value of a sequence.'
        WHEN cardinality(sequences) > 1 THEN format('It takes values of more than one sequence: %s.', array_to_string(sequences, ', '))
        WHEN insta_ids_internal.id_time(id, layout) NOT BETWEEN oldest AND ended + interval '1 ms' THEN
            format('Its ids are not of the layout "%s": %s would be of %s.', layout, id, insta_ids_internal.id_time(id, layout))
        WHEN insta_ids_internal.id_seq(id, layout) <> value % residues THEN
            format('Of value %s of its sequence, it made id %s, which does not have the value modulo %s.', value, id, residues)
        WHEN insta_ids_internal.id_shard(id, layout) <> shard THEN
            format('It mints for shard %s.', insta_ids_internal.id_shard(id, layout))
    END;
END
$$;

-- Returns whether a function mints an id with these arguments.
CREATE OR REPLACE FUNCTION insta_ids_internal.mints_with(function oid, role oid, arguments text[]) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN insta_ids_internal.call_function(function, role, arguments) IS NOT NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END
$$;

-- Calls a function of the schema, and rolls back what it does. Only values of sequences stay taken. Returns what it mints: the number
-- of the argument that names its shard, if one does, and its sequence or the number of the argument that names it; or a reason why it
-- cannot be adopted, and what helps. Calls a function that takes a number for another shard, too, and without each argument.
--
-- If `is_locked`, the caller's transaction has locked `sequence`, which an earlier call has returned. Then the sequence is far ahead for
-- this call, because % 1000 and % 1024 are the same for small values. Otherwise this locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_function(
        function regprocedure, schema regnamespace, shard integer, is_locked boolean, INOUT sequence regclass,
        OUT shard_argument integer, OUT sequence_argument integer, OUT reason text, OUT hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last_shard CONSTANT integer := insta_ids_internal.id_shard(-1, (insta_ids_internal.require_config()).layout);
    other_shard CONSTANT integer := CASE shard WHEN last_shard THEN 0 ELSE last_shard END;
    first_number CONSTANT integer := array_position(insta_ids_internal.call_arguments(function, 0, NULL), '0');
    first_name CONSTANT integer := array_position(insta_ids_internal.call_arguments(function, NULL, ''), '');
    before CONSTANT regclass := sequence;
    role oid;
    probe regclass;
    asked record;
    other record;
    is_done boolean := false;
BEGIN
    BEGIN
        role := insta_ids_internal.calling_role(function, schema);
        IF first_name IS NOT NULL THEN
            probe := insta_ids_internal.create_probe(schema, role);
        END IF;
        IF is_locked AND sequence IS NOT NULL THEN
            PERFORM insta_ids_internal.as_owner(sequence, format('ALTER SEQUENCE %s RESTART %s', sequence,
                (SELECT greatest(s.seqmin, least(s.seqmax, (1::bigint << 40) - 1)) FROM pg_sequence s WHERE s.seqrelid = sequence)));
        END IF;
        asked := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, shard, probe::text));
        reason := insta_ids_internal.answer_reason(shard, asked.id, asked.ended, asked.sequences, asked.value);
        sequence := nullif(asked.sequences[1], probe);
        IF sequence IS NULL THEN
            sequence_argument := first_name;
        END IF;
        IF first_number IS NOT NULL AND reason IS NULL THEN
            other := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, other_shard, probe::text));
            IF insta_ids_internal.answer_reason(shard, other.id, other.ended, other.sequences, other.value) IS NOT NULL THEN
                shard_argument := first_number;
                reason := insta_ids_internal.answer_reason(other_shard, other.id, other.ended, other.sequences, other.value);
            END IF;
        END IF;
        IF shard_argument IS NOT NULL
                AND insta_ids_internal.mints_with(function, role, insta_ids_internal.call_arguments(function, NULL, probe::text))
            OR sequence_argument IS NOT NULL
                AND insta_ids_internal.mints_with(function, role, insta_ids_internal.call_arguments(function, shard, NULL))
        THEN
            reason := coalesce(reason, 'It mints an id for a NULL, where next_id returns NULL.');
        END IF;
        is_done := true;
        RAISE triggered_action_exception;
    EXCEPTION
        WHEN OTHERS THEN
            IF NOT is_done THEN
                GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
                reason := format('It cannot be called: %s.', SQLERRM);
            END IF;
    END;
    -- What the call created is gone now.
    IF reason IS NULL AND sequence_argument IS NULL
        AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence AND c.relpersistence <> 't')
    THEN
        reason := 'It takes values of a sequence that it creates, or of a temporary one.';
    ELSIF reason IS NULL AND is_locked AND sequence IS DISTINCT FROM before THEN
        reason := format('It takes values of more than one sequence: %s, %s.', before, sequence);
    END IF;
END
$$;
