-- Adoption: what a function mints, found out by calling it.

-- The text of a function without what differs between shards of one class: the name of its schema and its number. Anything
-- else that is the number is left out, too. What looks like a place of them is told from one by its two braces.
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

-- The role that a function is called as. A known text that is bound calls nothing but PostgreSQL's own, so its owner does. Any
-- other can call what somebody else owns: so never a superuser, but a role that is made for it, and that the caller's
-- subtransaction takes away again; or its owner, where everything in the schema is the owner's or a superuser's.
CREATE OR REPLACE FUNCTION insta_ids_internal.calling_role(function regprocedure, schema regnamespace, known boolean) RETURNS oid
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    called CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    is_super CONSTANT boolean := (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = called.proowner);
    stand_in CONSTANT name := 'insta_ids_' || pg_backend_pid();
    another record;
BEGIN
    IF known THEN
        RETURN called.proowner;
    ELSIF is_super AND called.prosecdef THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'it is SECURITY DEFINER and belongs to a superuser',
            HINT = format('Give it to another role: ALTER FUNCTION %s OWNER TO ...', function);
    ELSIF is_super THEN
        EXECUTE format('CREATE ROLE %I', stand_in);
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', schema, stand_in);
        EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %s TO %I', schema, stand_in);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO %I', schema, stand_in);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', function, stand_in);
        RETURN stand_in::regrole;
    END IF;
    SELECT format('schema %s', schema) AS object, r.rolname INTO another
    FROM pg_roles r
    WHERE NOT r.rolsuper AND r.oid <> called.proowner AND r.oid IN (
        SELECT n.nspowner FROM pg_namespace n WHERE n.oid = schema
        UNION SELECT c.relowner FROM pg_class c WHERE c.relnamespace = schema
        UNION SELECT p.proowner FROM pg_proc p WHERE p.pronamespace = schema
        UNION SELECT t.typowner FROM pg_type t WHERE t.typnamespace = schema)
    ORDER BY r.rolname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('it belongs to %I, and other objects of its schema to %I, whose code it could run',
                pg_get_userbyid(called.proowner), another.rolname),
            HINT = format('Let all of schema %s belong to one role, apart from superusers.', schema);
    END IF;
    RETURN called.proowner;
END
$$;

-- The last values that sequences gave this session, of those that its transaction has taken values of: nextval locks them
-- until its end.
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

-- One call of a function: its id, when it was made, the sequences that gave a value meanwhile, and that value.
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

-- The arguments of a call that tell a function this shard, by the first number that it takes, and this sequence, by the first
-- text or regclass. Others are NULL.
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

-- Whether a function mints an id where this argument is NULL. An error is no id.
CREATE OR REPLACE FUNCTION insta_ids_internal.mints_for_null(function oid, role oid, arguments text[], argument integer) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    arguments[argument] := NULL;
    RETURN insta_ids_internal.call_function(function, role, arguments) IS NOT NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END
$$;

-- The session's advisory locks.
CREATE OR REPLACE FUNCTION insta_ids_internal.advisory_locks()
    RETURNS TABLE (classid oid, objid oid, objsubid smallint, mode text)
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT l.classid, l.objid, l.objsubid, l.mode FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'advisory' AND l.granted
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database());
END;

-- Releases the session's advisory locks that are not in `held`. A rolled-back subtransaction does not.
CREATE OR REPLACE FUNCTION insta_ids_internal.release_advisory_locks(held text[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lock record;
    key bigint;
BEGIN
    -- The session can hold each of them several times.
    LOOP
        SELECT * INTO lock FROM insta_ids_internal.advisory_locks() l WHERE l::text <> ALL (held) LIMIT 1;
        EXIT WHEN NOT FOUND;
        key := (lock.classid::bigint << 32) | lock.objid::bigint;
        CASE
            WHEN lock.objsubid = 1 AND lock.mode = 'ExclusiveLock' THEN PERFORM pg_advisory_unlock(key);
            WHEN lock.objsubid = 1 THEN PERFORM pg_advisory_unlock_shared(key);
            WHEN lock.mode = 'ExclusiveLock' THEN PERFORM pg_advisory_unlock(lock.classid::integer, lock.objid::integer);
            ELSE PERFORM pg_advisory_unlock_shared(lock.classid::integer, lock.objid::integer);
        END CASE;
    END LOOP;
END
$$;

-- How a function's clock and sequence fit ids of this database's layout, by some calls. `fits` says whether its epoch can be the
-- layout's, and `is_exact` whether no epoch another millisecond away can be: milliseconds are rounded down, or to the
-- nearest.
CREATE OR REPLACE FUNCTION insta_ids_internal.measure_clock(
        function oid, role oid, arguments text[], sequence regclass,
        OUT fits boolean, OUT is_exact boolean, OUT fits_sequence boolean, OUT shards integer[])
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    -- In seconds, as all times here.
    unit CONSTANT numeric := extract(epoch FROM insta_ids_internal.id_time(insta_ids_internal.id_max(now(), layout) + 1, layout)
        - insta_ids_internal.id_time(insta_ids_internal.id_min(now(), layout), layout));
    -- By how much the function's clock is ahead of the server's: from `low`, and less than `high`.
    low numeric := '-infinity';
    high numeric := 'infinity';
    oldest numeric;
    newest numeric;
    began timestamptz;
    ended timestamptz;
    started timestamptz;
    id bigint;
    at numeric;
BEGIN
    fits_sequence := true;
    shards := '{}';
    started := clock_timestamp();
    FOR turn IN 1..CASE WHEN unit > 0.001 THEN 1000 ELSE 200 END LOOP
        -- Only where a unit of time ends is its beginning seen to the millisecond. A busy machine can miss it.
        IF unit > 0.001 AND turn % 200 = 1 THEN
            started := insta_ids_internal.id_time(insta_ids_internal.id_max(clock_timestamp() + interval '2 ms', layout) + 1, layout);
            PERFORM insta_ids_internal.wait_ms(floor(extract(epoch FROM started - clock_timestamp()) * 1000 - 1)::integer);
        END IF;
        began := clock_timestamp();
        id := insta_ids_internal.call_function(function, role, arguments);
        ended := clock_timestamp();
        at := extract(epoch FROM insta_ids_internal.id_time(id, layout));
        -- Of a time in floating point, the last microsecond is not certain.
        low := greatest(low, at - extract(epoch FROM ended) - 0.000001);
        high := least(high, at + unit - extract(epoch FROM began) + 0.000001);
        oldest := least(oldest, at);
        newest := greatest(newest, at);
        fits_sequence := fits_sequence AND insta_ids_internal.id_seq(id, layout) = currval(sequence) % residues;
        IF insta_ids_internal.id_shard(id, layout) <> ALL (shards) THEN
            shards := shards || insta_ids_internal.id_shard(id, layout);
        END IF;
        -- Of what a clock can be ahead by, 0 or half a millisecond is left, or nothing.
        is_exact := ceil(low / 0.0005) = ceil(high / 0.0005) - 1 AND ceil(low / 0.0005) IN (0, 1);
        EXIT WHEN turn >= 8 AND (is_exact OR low >= high OR ended > started + interval '100 ms');
    END LOOP;
    fits := low < high AND (low <= 0 AND high > 0 OR low <= 0.0005 AND high > 0.0005);
    IF low >= high AND oldest = newest THEN
        -- It goes by the time at which the transaction or the statement began.
        fits := EXISTS (
            SELECT FROM unnest(ARRAY[transaction_timestamp(), statement_timestamp()]) t (fixed)
            CROSS JOIN unnest(ARRAY[0, 0.0005]) a (ahead)
            WHERE extract(epoch FROM t.fixed) + a.ahead - oldest BETWEEN -0.000001 AND unit);
    END IF;
END
$$;

-- The layout that an id of this instant is of, among those with a name and those with an epoch that the text has.
CREATE OR REPLACE FUNCTION insta_ids_internal.layout_of(id bigint, at timestamptz, text text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT l.layout
        FROM (
            SELECT 'time:41 shard:13 seq:10 epoch:' || m[1] FROM regexp_matches(text, $re$\m\d{12,13}\M$re$, 'g') m
            WHERE m[1]::bigint / 1000 < extract(epoch FROM at)
            UNION ALL
            SELECT unnest(ARRAY['instagram', 'twitter', 'discord', 'pgedge', 'pgdog', 'mastodon', 'sonyflake', 'js53'])
        ) l (layout)
        WHERE insta_ids_internal.id_time(id, insta_ids_internal.layout(l.layout))
            BETWEEN at - interval '2 s' AND at + interval '2 s'
            AND insta_ids_internal.layout(l.layout)::text <> (insta_ids_internal.require_config()).layout::text
        LIMIT 1);
END
$$;

-- What a function mints, by what it answers: for the shard or for the one that an argument tells it, and from which sequence.
-- Or the reason why it is not adopted. What it does is undone, but that it takes values of sequences.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_function(
        function regprocedure, schema regnamespace, shard integer, known boolean, is_epoch_told boolean,
        OUT shard_argument integer, OUT sequence regclass, OUT sequence_argument integer, OUT reason text, OUT hint text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    last_shard CONSTANT integer := insta_ids_internal.id_shard(-1, layout);
    other_shard CONSTANT integer := CASE shard WHEN last_shard THEN 0 ELSE last_shard END;
    epoch CONSTANT numeric := extract(epoch FROM insta_ids_internal.id_time(0, layout)) * 1000;
    numbers CONSTANT numeric[] := ARRAY(
        SELECT m[1]::numeric FROM regexp_matches(pg_get_functiondef(function), $re$\m\d{9,15}\M$re$, 'g') m);
    role oid;
    probe regclass;
    first record;
    second record;
    measured record;
    sequence_name text;
    null_argument integer;
    locks CONSTANT text[] := ARRAY(SELECT l::text FROM insta_ids_internal.advisory_locks() l);
    is_done boolean := false;
BEGIN
    shard_argument := array_position(insta_ids_internal.call_arguments(function, 0, NULL), '0');
    sequence_argument := array_position(insta_ids_internal.call_arguments(function, NULL, ''), '');
    BEGIN
        role := insta_ids_internal.calling_role(function, schema, known);
        IF sequence_argument IS NOT NULL THEN
            probe := insta_ids_internal.probe_sequence(schema, role);
        END IF;
        first := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, shard, probe::text));
        second := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, other_shard, probe::text));
        sequence := first.sequences[1];
        sequence_name := sequence;
        IF cardinality(first.sequences) <> 1 OR first.sequences <> second.sequences THEN
            reason := CASE
                WHEN cardinality(first.sequences) = 0 THEN 'It takes no value of a sequence.'
                WHEN cardinality(first.sequences) = 1 AND first.sequences @> second.sequences THEN
                    format('Its calls do not take a new value of the same sequence each: %s.', sequence)
                ELSE format('It takes values of more than one sequence: %s.',
                    array_to_string(first.sequences || second.sequences, ', ')) END;
        ELSIF second.ended - second.began > interval '1 s' THEN
            reason := format('A call takes %s, and once the tables would be locked meanwhile.', second.ended - second.began);
        ELSIF EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence AND c.relpersistence = 't') THEN
            reason := format('It took a value of the temporary sequence %s of this session.', sequence);
            hint := 'Call adopt in another session.';
        ELSE
            measured := insta_ids_internal.measure_clock(
                function, role, insta_ids_internal.call_arguments(function, shard, probe::text), sequence);
            null_argument := (
                SELECT a.place
                FROM unnest(ARRAY[
                    CASE WHEN insta_ids_internal.id_shard(second.id, layout) = other_shard THEN shard_argument END,
                    CASE WHEN sequence = probe THEN sequence_argument END]) a (place)
                WHERE NOT known AND insta_ids_internal.mints_for_null(
                    function, role, insta_ids_internal.call_arguments(function, shard, probe::text), a.place)
                LIMIT 1);
        END IF;
        is_done := true;
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN OTHERS THEN
            IF NOT is_done THEN
                GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
                reason := format('It cannot be called: %s.', SQLERRM);
            END IF;
    END;
    PERFORM insta_ids_internal.release_advisory_locks(locks);
    IF reason IS NOT NULL THEN
        RETURN;
    ELSIF sequence <> probe IS NOT FALSE AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence) THEN
        reason := format('It creates sequence %s when it is called.', sequence_name);
        hint := 'Create the sequence first.';
        RETURN;
    END IF;

    IF sequence = probe THEN
        sequence := NULL;
    ELSE
        sequence_argument := NULL;
    END IF;
    IF insta_ids_internal.id_shard(second.id, layout) <> other_shard THEN
        shard_argument := NULL;
    END IF;
    IF NOT measured.fits THEN
        reason := coalesce(
            'It mints in layout "' || insta_ids_internal.layout_of(first.id, first.ended, pg_get_functiondef(function)) || '".',
            format('Its ids are not of the layout "%s": %s would be of %s.', layout, first.id,
                insta_ids_internal.id_time(first.id, layout)));
    ELSIF NOT measured.fits_sequence THEN
        reason := format('Its ids do not have the values of sequence %s modulo %s.',
            sequence, insta_ids_internal.id_seq(-1, layout) + 1);
    ELSIF measured.shards <> ARRAY[shard]
        OR insta_ids_internal.id_shard(second.id, layout) NOT IN (shard, CASE WHEN shard_argument IS NULL THEN shard ELSE other_shard END)
    THEN
        reason := format('It mints for shard %s.',
            array_to_string(ARRAY(
                SELECT DISTINCT s FROM unnest(measured.shards || insta_ids_internal.id_shard(second.id, layout)) s
                WHERE s <> shard ORDER BY s), ', '));
    ELSIF null_argument IS NOT NULL THEN
        reason := format('It mints an id if its argument %s is NULL, where next_id returns NULL.', null_argument);
    ELSIF NOT (measured.is_exact OR is_epoch_told OR epoch = ANY (numbers) AND NOT EXISTS (
        -- No other number in the text can be the epoch.
        SELECT FROM unnest(numbers) n (number) WHERE number <> epoch AND abs(number - epoch) < 60000))
    THEN
        reason := 'Its calls do not show its epoch to the millisecond.';
        hint := format('If function %s mints in the layout of this database, say so: layout => %L.', function, layout);
    END IF;
END
$$;

-- A sequence that is only there until the subtransaction is undone, for functions that are told one. Its values have all the
-- bits that could be mistaken for others.
CREATE OR REPLACE FUNCTION insta_ids_internal.probe_sequence(schema regnamespace, role oid) RETURNS regclass
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

-- Asks a function once more, with its sequence locked, and far ahead for as long as that takes: only there the bits that it
-- takes of a value are all seen. Returns the reason why it is not adopted. Nothing of it stays.
CREATE OR REPLACE FUNCTION insta_ids_internal.try_function(function regprocedure, schema regnamespace, shard integer, sequence regclass)
    RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    value CONSTANT bigint := (
        SELECT greatest(s.seqmin, least(s.seqmax, (1::bigint << 40) - 1)) FROM pg_sequence s WHERE s.seqrelid = sequence);
    role oid;
    told regclass := sequence;
    asked record;
    locks CONSTANT text[] := ARRAY(SELECT l::text FROM insta_ids_internal.advisory_locks() l);
    problem text;
    is_done boolean := false;
BEGIN
    BEGIN
        role := insta_ids_internal.calling_role(function, schema, false);
        IF sequence IS NULL THEN
            told := insta_ids_internal.probe_sequence(schema, role);
        ELSE
            PERFORM insta_ids_internal.as_owner(sequence, format('ALTER SEQUENCE %s RESTART %s', sequence, value));
        END IF;
        asked := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, shard, told::text));
        is_done := true;
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN OTHERS THEN
            IF NOT is_done THEN
                problem := format('It cannot be called: %s.', SQLERRM);
            END IF;
    END;
    PERFORM insta_ids_internal.release_advisory_locks(locks);
    IF problem IS NOT NULL THEN
        RETURN problem;
    END IF;
    IF asked.sequences <> ARRAY[told] OR insta_ids_internal.id_seq(asked.id, layout) <> asked.value % residues
        OR insta_ids_internal.id_shard(asked.id, layout) <> shard
        OR insta_ids_internal.id_time(asked.id, layout) NOT BETWEEN now() - interval '2 s' AND asked.ended + interval '1 ms'
    THEN
        RETURN format('It made id %s of value %s of its sequence, which are not of shard %s and modulo %s.',
            asked.id, asked.value, shard, residues);
    END IF;
    RETURN NULL;
END
$$;
