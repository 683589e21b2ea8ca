-- Coming from elsewhere, and leaving: schemas that run the published function.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Whether the text of a function in PL/pgSQL is the published one for this layout, or a known variant of it. All that such a
-- text calls is PostgreSQL's own.
CREATE FUNCTION insta_ids.is_published(source text, arguments text[], result text, layout @extschema@.id_layout) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'is_published_wrapper';
-- The call of next_id in this layout that a function's body or a default consists of; no row if it is anything else. The
-- shard and the sequence are each a constant, or the number of an argument.
CREATE FUNCTION insta_ids.read_call(expression text, arguments text[], layout @extschema@.id_layout)
    RETURNS TABLE (shard integer, shard_argument integer, sequence text, sequence_argument integer)
    IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'read_call_wrapper';
-- The published function, as a body in PL/pgSQL with an argument OUT result.
CREATE FUNCTION insta_ids.write_function(layout @extschema@.id_layout, shard text, sequence text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'write_function_wrapper';
-- What a function returns when a role calls it with these arguments. The role's rights are all that it has; the caller must
-- be able to become that role, and undoes what the function does, by a subtransaction.
CREATE FUNCTION insta_ids.call_function(function oid, role oid, arguments text[]) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'call_function_wrapper';
CREATE FUNCTION insta_ids_internal.id_seq(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_seq_layout_wrapper';

-- What mints in a schema

-- The functions of a schema that mint, or look as if they did: that call next_id, or make something of nextval and the time,
-- or are the default of a primary key. `native` ones call next_id, for a shard and a sequence that are known; `known` ones have
-- a text that needs no confirmation; `evident` ones mint by their text. `reason` says why the function is not adopted.
CREATE FUNCTION insta_ids.minting_functions(schema regnamespace)
    RETURNS TABLE (
        function regprocedure, owner oid, text text, native boolean, known boolean, evident boolean,
        shard integer, shard_argument integer, sequence regclass, sequence_argument integer, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- By it PostgreSQL writes literals of what is stored.
    SET standard_conforming_strings = on
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    SELECT p.oid::regprocedure, p.proowner, CASE WHEN p.prokind = 'f' THEN pg_get_functiondef(p.oid) END, k.native,
           l.lanname = 'plpgsql' AND insta_ids.is_published(p.prosrc, n.names, n.result, layout),
           k.native OR k.is_like, r.shard, r.shard_argument, to_regclass(r.sequence), r.sequence_argument,
           CASE
               WHEN p.prorettype <> 'bigint'::regtype THEN format('It returns %s.', format_type(p.prorettype, NULL))
               WHEN p.proretset OR p.prokind <> 'f' OR n.is_odd THEN 'It does not return one number.'
               WHEN k.native AND r IS NULL THEN 'It does something else than to call next_id in the layout of this database.'
               -- Where pg_catalog is not named, it comes first; and of pg_temp, no functions are called.
               WHEN c.path ~* $re$,\s*"?pg_catalog"?\s*(,|$)$re$
                   AND c.path !~* $re$^("?pg_temp"?\s*,\s*)?"?pg_catalog"?\s*(,|$)$re$
               THEN 'Its search_path has another schema before pg_catalog, whose functions it may call.'
               WHEN strpos(c.path, '$user') > 0 THEN 'Its search_path depends on who calls it.'
           END
    FROM pg_proc p
    JOIN pg_language l ON l.oid = p.prolang
    CROSS JOIN LATERAL coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) s (source)
    CROSS JOIN LATERAL (
        SELECT s.source ~* 'nextval' AND s.source ~* '<<|epoch' AS is_like,
               EXISTS (
                   SELECT FROM pg_depend d
                   WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                       AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (minting)) AS native,
               EXISTS (
                   SELECT FROM pg_depend d
                   JOIN pg_attrdef x ON d.classid = 'pg_attrdef'::regclass AND x.oid = d.objid
                   JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum AND a.atttypid = 'bigint'::regtype
                   JOIN pg_constraint c ON c.conrelid = x.adrelid AND c.contype = 'p' AND c.conkey = ARRAY[x.adnum]
                   WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
                       AND p.prorettype = 'bigint'::regtype) AS fills_key
    ) k
    CROSS JOIN LATERAL (
        SELECT coalesce(
                   array_agg(coalesce(p.proargnames[i.place], '') ORDER BY i.place)
                       FILTER (WHERE p.proargmodes IS NULL OR p.proargmodes[i.place] <> 'o'), '{}') AS names,
               min(p.proargnames[i.place]) FILTER (WHERE p.proargmodes[i.place] = 'o') AS result,
               -- One OUT argument at most, and that the last.
               bool_or(p.proargmodes[i.place] NOT IN ('i', 'o')
                   OR p.proargmodes[i.place] = 'o' AND i.place < cardinality(p.proargmodes)) AS is_odd
        FROM generate_series(1, coalesce(cardinality(p.proargmodes), p.pronargs)) i (place)
    ) n
    LEFT JOIN LATERAL (
        SELECT substr(e.entry, length('search_path=') + 1) FROM unnest(p.proconfig) e (entry)
        WHERE starts_with(e.entry, 'search_path=')
    ) c (path) ON true
    LEFT JOIN LATERAL insta_ids.read_call(s.source, n.names, layout) r ON k.native
    WHERE p.pronamespace = schema AND (k.native OR k.is_like OR k.fills_key)
    ORDER BY p.oid;
END
$$;

-- Columns of ids: those whose default calls what mints in this schema; or, in it, next_id itself. An heir's are read, and
-- get their CHECK, with its parent's.
CREATE FUNCTION insta_ids.filled_columns(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, is_heir boolean)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.function::oid AS oid, p.proargtypes[0] = 'integer'::regtype AS is_told_shard
        FROM insta_ids.minting_functions(schema) f JOIN pg_proc p ON p.oid = f.function
        UNION
        SELECT n.oid, true FROM unnest(insta_ids.id_functions()) n (oid)
        UNION
        SELECT p.oid, false FROM minting m
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_proc'::regclass
        JOIN pg_proc p ON p.oid = d.objid AND p.pronamespace = schema
    ), filled AS (
        SELECT c.oid, a.attname, max(s.shard) AS shard
        FROM minting m
        JOIN pg_proc p ON p.oid = m.oid
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_attrdef'::regclass
        JOIN pg_attrdef x ON x.oid = d.objid
        JOIN pg_class c ON c.oid = x.adrelid AND c.relkind IN ('r', 'p')
        JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        LEFT JOIN LATERAL unnest(insta_ids.minted_shards(x.adbin::text, ARRAY[m.oid])) s (shard) ON m.is_told_shard
        WHERE schema IN (p.pronamespace, c.relnamespace)
        GROUP BY c.oid, a.attname
    )
    SELECT f.oid::regclass, f.attname, f.shard, EXISTS (
        SELECT FROM pg_inherits i JOIN filled p ON p.oid = i.inhparent AND p.attname = f.attname WHERE i.inhrelid = f.oid)
    FROM filled f
    ORDER BY f.oid, f.attname;
END
$$;

-- The sequences of a schema, and others that what mints in it takes values of, as far as the catalog knows.
CREATE FUNCTION insta_ids.minting_sequences(schema regnamespace) RETURNS SETOF regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT f.sequence FROM insta_ids.minting_functions(schema) f WHERE f.sequence IS NOT NULL
    UNION
    SELECT c.oid::pg_catalog.regclass
    FROM insta_ids.filled_columns(schema) f
    JOIN pg_catalog.pg_attribute a ON a.attrelid = f.relation AND a.attname = f."column"
    JOIN pg_catalog.pg_attrdef x ON x.adrelid = a.attrelid AND x.adnum = a.attnum
    JOIN pg_catalog.pg_depend d
        ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = x.oid
        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
    UNION
    SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c WHERE c.relnamespace = schema AND c.relkind = 'S';
END;

-- All that adopt and release go by, to tell whether somebody has changed it.
CREATE FUNCTION insta_ids.minting_state(schema regnamespace) RETURNS text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.concat(
        (SELECT pg_catalog.array_agg(f ORDER BY f.function) FROM insta_ids.minting_functions(schema) f),
        (SELECT pg_catalog.array_agg(c ORDER BY c.relation, c."column") FROM insta_ids.filled_columns(schema) c));
END;

-- Asking

-- The text of a function without what differs between shards of one class: the name of its schema and its number. Anything
-- else that is the number is left out, too.
CREATE FUNCTION insta_ids.function_class(text text, schema regnamespace, shard integer) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT text := (
        SELECT regexp_replace(n.nspname, $re$[][(){}.*+?^$|\\]$re$, $re$\\\&$re$, 'g') FROM pg_namespace n WHERE n.oid = schema);
BEGIN
    RETURN regexp_replace(
        regexp_replace(text, $re$(?<![\w$])$re$ || name || $re$(?![\w$])$re$, '{schema}', 'g'),
        $re$(?<![\w$.])$re$ || shard || $re$(?![\w$.])$re$, '{shard}', 'g');
END
$$;

-- The role that a function is called as. A known text calls nothing but PostgreSQL's own functions, so its owner does. Any
-- other can call what somebody else owns: so never a superuser, but a role that is made for it, and that the caller's
-- subtransaction takes away again; or its owner, where everything in the schema is the owner's or a superuser's.
CREATE FUNCTION insta_ids.calling_role(function regprocedure, schema regnamespace, known boolean) RETURNS oid
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
                called.proowner::regrole::name, another.rolname),
            HINT = format('Let all of schema %s belong to one role, apart from superusers.', schema);
    END IF;
    RETURN called.proowner;
END
$$;

-- The last values that sequences gave this session, of those that its transaction has taken values of: nextval locks them
-- until its end.
CREATE FUNCTION insta_ids.taken_values() RETURNS TABLE (sequence regclass, value bigint)
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
CREATE FUNCTION insta_ids.ask(
        function oid, role oid, arguments text[],
        OUT id bigint, OUT began timestamptz, OUT ended timestamptz, OUT sequences regclass[], OUT value bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before CONSTANT jsonb := (SELECT jsonb_object_agg(t.sequence::oid, t.value) FROM insta_ids.taken_values() t);
BEGIN
    began := clock_timestamp();
    id := insta_ids.call_function(function, role, arguments);
    ended := clock_timestamp();
    IF id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'it returned NULL';
    END IF;
    SELECT coalesce(array_agg(t.sequence ORDER BY t.sequence), '{}'), max(t.value) INTO sequences, value
    FROM insta_ids.taken_values() t
    WHERE t.value IS DISTINCT FROM (before ->> t.sequence::oid::text)::bigint;
END
$$;

-- The arguments of a call that tell a function this shard, by the first number that it takes, and this sequence, by the first
-- text or regclass. Others are NULL.
CREATE FUNCTION insta_ids.call_arguments(function regprocedure, shard integer, sequence text) RETURNS text[]
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

-- How a function's clock and sequence fit ids of this database's layout, by some calls. `fits` says whether its epoch can be the
-- layout's, and `is_exact` whether no epoch another millisecond away can be: milliseconds are rounded down, or to the
-- nearest.
CREATE FUNCTION insta_ids.measure_clock(
        function oid, role oid, arguments text[], sequence regclass,
        OUT fits boolean, OUT is_exact boolean, OUT fits_sequence boolean, OUT shards integer[])
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
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
        id := insta_ids.call_function(function, role, arguments);
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
CREATE FUNCTION insta_ids.layout_of(id bigint, at timestamptz, text text) RETURNS text
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
            AND insta_ids_internal.layout(l.layout)::text <> (insta_ids.configured()).layout::text
        LIMIT 1);
END
$$;

-- What a function mints, by what it answers: for the shard or for the one that an argument tells it, and from which sequence.
-- Or the reason why it is not adopted. What it does is undone, but that it takes values of sequences.
CREATE FUNCTION insta_ids.ask_function(
        function regprocedure, schema regnamespace, shard integer, known boolean, is_epoch_told boolean,
        OUT shard_argument integer, OUT sequence regclass, OUT sequence_argument integer, OUT reason text, OUT hint text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    last_shard CONSTANT integer := insta_ids_internal.id_shard(-1, layout);
    other_shard CONSTANT integer := CASE shard WHEN last_shard THEN 0 ELSE last_shard END;
    epoch CONSTANT numeric := extract(epoch FROM insta_ids_internal.id_time(0, layout)) * 1000;
    numbers CONSTANT numeric[] := ARRAY(
        SELECT m[1]::numeric FROM regexp_matches(pg_get_functiondef(function), $re$\d+$re$, 'g') m);
    role oid;
    probe regclass;
    first record;
    second record;
    measured record;
    is_done boolean := false;
BEGIN
    shard_argument := array_position(insta_ids.call_arguments(function, 0, NULL), '0');
    sequence_argument := array_position(insta_ids.call_arguments(function, NULL, ''), '');
    BEGIN
        role := insta_ids.calling_role(function, schema, known);
        IF sequence_argument IS NOT NULL THEN
            probe := insta_ids.probe_sequence(schema, role);
        END IF;
        first := insta_ids.ask(function, role, insta_ids.call_arguments(function, shard, probe::text));
        second := insta_ids.ask(function, role, insta_ids.call_arguments(function, other_shard, probe::text));
        sequence := first.sequences[1];
        IF cardinality(first.sequences) <> 1 OR first.sequences <> second.sequences THEN
            reason := CASE cardinality(first.sequences) WHEN 0 THEN 'It takes no value of a sequence.'
                ELSE format('It takes values of more than one sequence: %s.',
                    array_to_string(first.sequences || second.sequences, ', ')) END;
        ELSIF EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence AND c.relpersistence = 't') THEN
            reason := format('It took a value of the temporary sequence %s of this session.', sequence);
            hint := 'Call adopt in another session.';
        ELSE
            measured := insta_ids.measure_clock(
                function, role, insta_ids.call_arguments(function, shard, probe::text), sequence);
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
    IF reason IS NOT NULL THEN
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
            'It mints in layout "' || insta_ids.layout_of(first.id, first.ended, pg_get_functiondef(function)) || '".',
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
CREATE FUNCTION insta_ids.probe_sequence(schema regnamespace, role oid) RETURNS regclass
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT text := format('%s.%I', schema, 'insta_ids_' || pg_backend_pid());
BEGIN
    EXECUTE format('CREATE SEQUENCE %s START %s', name, (1::bigint << 40) - 1);
    EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', name, role::regrole::name);
    RETURN name::regclass;
END
$$;

-- Asks a function once more, with its sequence locked, and far ahead for as long as that takes: only there the bits that it
-- takes of a value are all seen. Returns the reason why it is not adopted. Nothing of it stays.
CREATE FUNCTION insta_ids.try_function(function regprocedure, schema regnamespace, shard integer, sequence regclass)
    RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    value CONSTANT bigint := (
        SELECT greatest(s.seqmin, least(s.seqmax, (1::bigint << 40) - 1)) FROM pg_sequence s WHERE s.seqrelid = sequence);
    role oid;
    told regclass := sequence;
    asked record;
    is_done boolean := false;
BEGIN
    BEGIN
        role := insta_ids.calling_role(function, schema, false);
        IF sequence IS NULL THEN
            told := insta_ids.probe_sequence(schema, role);
        ELSE
            PERFORM insta_ids_internal.as_owner(sequence, format('ALTER SEQUENCE %s RESTART %s', sequence, value));
        END IF;
        asked := insta_ids.ask(function, role, insta_ids.call_arguments(function, shard, told::text));
        is_done := true;
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN OTHERS THEN
            IF NOT is_done THEN
                RETURN format('It cannot be called: %s.', SQLERRM);
            END IF;
    END;
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

-- Stopping, and going on

-- Locks the tables of the schema, others that are filled in it, with all their partitions and heirs, and the sequences
-- until the transaction ends, when nobody is using them. Also tables that nothing fills: a statement that calls a function
-- for rows of theirs is planned before the function is changed, or after that. `others` are more sequences.
CREATE FUNCTION insta_ids.stop_minting(schema regnamespace, others regclass[], lock_timeout text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT regclass[] := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT c.relation::oid FROM insta_ids.filled_columns(schema) c
            UNION SELECT c.oid FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
        )
        SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.relation AND c.relkind IN ('r', 'p') ORDER BY c.oid);
BEGIN
    PERFORM insta_ids.lock_all(tables, 'ACCESS EXCLUSIVE',
        ARRAY(SELECT s FROM insta_ids.minting_sequences(schema) s UNION SELECT s FROM unnest(others) s ORDER BY 1), format('schema %s', schema), lock_timeout);
END
$$;

-- Waits until the clock has come to where ids are greater than all of this instant: not for long, as others wait for the
-- locks. It is farther only when the clock was set back since that was looked at.
CREATE FUNCTION insta_ids.await_clock(past timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    until CONSTANT timestamptz := insta_ids_internal.id_time(insta_ids_internal.id_max(past, layout) + 1, layout);
    ahead interval;
BEGIN
    LOOP
        ahead := until - clock_timestamp();
        EXIT WHEN ahead <= interval '0';
        IF ahead > interval '5 s' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('clock is %s behind the newest id', ahead),
                HINT = 'Call again when the clock has come there.';
        END IF;
        -- Looked at again soon, as the clock may be set meanwhile.
        PERFORM insta_ids_internal.wait_ms(least(100, ceil(extract(epoch FROM ahead) * 1000))::integer);
    END LOOP;
END
$$;

-- A list of names in a setting's value, as literals: what is not quoted there can be anything but blanks and commas, as
-- SET ... FROM CURRENT takes it over.
CREATE FUNCTION insta_ids.quoted_list(value text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((
        SELECT pg_catalog.string_agg(
            pg_catalog.quote_literal(coalesce(pg_catalog.replace(n.name[1], '""', '"'), pg_catalog.lower(n.name[2]))), ', '
            ORDER BY n.place)
        FROM pg_catalog.regexp_matches(value, $re$"((?:[^"]|"")*)"|([^\s,]+)$re$, 'g') WITH ORDINALITY n (name, place)), '''''');

-- Gives a function another body. What else is known of it stays: its arguments, owner and privileges, and its settings
-- where they mean something to this body.
CREATE FUNCTION insta_ids.rewrite_function(function regprocedure, language text, body text, has_settings boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    arguments text := pg_get_function_arguments(function);
    result text;
    settings text;
BEGIN
    -- The result has the name that the published function assigns to.
    IF language = 'plpgsql' THEN
        IF 'o' = ANY (old.proargmodes) THEN
            result := old.proargnames[cardinality(old.proargmodes)];
            arguments := left(arguments, - length(concat_ws(' ', 'OUT', quote_ident(nullif(result, '')), 'bigint')));
        ELSIF arguments <> '' THEN
            arguments := arguments || ', ';
        END IF;
        arguments := arguments || 'OUT result bigint';
    END IF;
    IF has_settings THEN
        settings := (
            SELECT string_agg(format(' SET %s = %s', s.name,
                CASE WHEN s.name IN ('search_path', 'temp_tablespaces', 'local_preload_libraries', 'session_preload_libraries')
                    THEN insta_ids.quoted_list(s.value) ELSE quote_literal(s.value) END), '')
            FROM unnest(old.proconfig) c
            CROSS JOIN LATERAL (SELECT split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)) s (name, value));
    END IF;
    -- What runs as its owner runs nothing of its caller's; where an argument names a sequence, that is by the caller's path.
    IF old.prosecdef AND language = 'plpgsql' AND 'text'::regtype <> ALL (old.proargtypes)
        AND coalesce(settings NOT LIKE '% SET search_path = %', true)
    THEN
        settings := concat(settings, ' SET search_path = pg_catalog, pg_temp');
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE %s%s%s %s',
        old.pronamespace::regnamespace, old.proname, arguments, language,
        CASE WHEN old.prosecdef THEN ' SECURITY DEFINER' END, settings, body);
END
$$;

-- Adopting

-- What is against a schema's adoption, apart from its rows.
CREATE FUNCTION insta_ids.adoption_reasons(schema regnamespace, shard integer) RETURNS SETOF text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT format('Function %s: %s', f.function, coalesce(f.reason, format('It mints for shard %s.', f.shard)))
    FROM insta_ids.minting_functions(schema) f
    WHERE f.reason IS NOT NULL OR f.shard <> adoption_reasons.shard;

    RETURN QUERY
    SELECT format('Default of %s.%I: It mints for shard %s.', c.relation, c."column", c.shard)
    FROM insta_ids.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard;

    IF NOT EXISTS (SELECT FROM insta_ids.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids.filled_columns(schema))
    THEN
        RETURN NEXT 'It has no function like the published one.';
    END IF;

    RETURN QUERY
    SELECT format('This server has a writer slot, %s, and the function has minted the ids of all.', s.slot)
    FROM unnest(ARRAY[insta_ids.taken_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1;

    -- Each shard has table_id_seq, next_id() and next_id(regclass).
    RETURN QUERY
    SELECT format('Relation %s: It is no sequence, and each shard has one of this name.', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = schema AND c.relname = 'table_id_seq' AND c.relkind <> 'S';

    RETURN QUERY
    SELECT format('Function %s: With %s.next_id(%s) beside it, its calls would be ambiguous.', p.oid::regprocedure,
               schema, CASE WHEN p.pronargs > p.pronargdefaults THEN 'regclass' END)
    FROM pg_proc p
    JOIN pg_type t ON t.oid = p.proargtypes[0]
    WHERE p.pronamespace = schema AND p.proname = 'next_id'
        AND (p.pronargs = p.pronargdefaults
            OR p.pronargs = p.pronargdefaults + 1 AND t.typcategory = 'N'
                AND t.oid NOT IN ('integer'::regtype, 'regclass'::regtype));
END
$$;

-- Refuses a schema that is not called as init says.
CREATE FUNCTION insta_ids.check_schema_name(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := insta_ids.schema_of(shard);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = schema AND n.nspname = name) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_schema_name',
            MESSAGE = format('schema %s is not called like shard %s', schema, shard),
            DETAIL = format('The schema of shard %s is called %I.', shard, name),
            HINT = format('Rename it: ALTER SCHEMA %s RENAME TO %I.', schema, name);
    END IF;
END
$$;

-- Refuses what cannot be adopted: what is in the schema and, if its functions are known or confirmed, what they answer. Reads
-- all rows; or, if all is locked, the ends of indexes. Returns the answers, and the oldest and newest id that it has seen.
CREATE FUNCTION insta_ids.require_adoptable(
        schema regnamespace, shard integer, confirm text[], is_epoch_told boolean, is_locked boolean,
        INOUT answers jsonb, OUT oldest bigint, OUT newest bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    tolerance CONSTANT text := insta_ids_internal.setting('insta_ids.clock_tolerance'::text);
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    reasons text[] := ARRAY(SELECT r FROM insta_ids.adoption_reasons(schema, shard) r);
    hints text[] := '{}';
    next record;
    class text;
    digest text;
    answer record;
    finding insta_ids.finding;
    ids record;
BEGIN
    PERFORM insta_ids.check_schema_name(schema, shard);
    FOR next IN SELECT * FROM insta_ids.minting_functions(schema) f WHERE NOT f.native AND f.reason IS NULL LOOP
        IF NOT pg_has_role(next.owner, 'MEMBER') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('must be owner of function %s', next.function);
        END IF;
        class := insta_ids.function_class(next.text, schema, shard);
        digest := encode(sha256(convert_to(class, getdatabaseencoding())), 'hex');
        IF NOT next.known AND digest <> ALL (confirm) THEN
            reasons := reasons || format(E'Function %s: Its text is not a known one. It has digest %s:\n%s',
                next.function, digest, class);
            hints := hints || format('Read the text. If adopt may call function %s and replace it, confirm the text:'
                || ' confirm => ARRAY[%L].', next.function, digest);
        ELSIF NOT is_locked THEN
            answer := insta_ids.ask_function(next.function, schema, shard, next.known, is_epoch_told);
            reasons := reasons || ('Function ' || next.function || ': ' || answer.reason);
            hints := hints || nullif(answer.hint, '');
            answers := answers || jsonb_build_object(next.function::oid::text,
                jsonb_build_object('shard', answer.shard_argument, 'sequence', answer.sequence::oid,
                    'sequence_argument', answer.sequence_argument));
        ELSIF NOT next.known THEN
            reasons := reasons || ('Function ' || next.function || ': ' || insta_ids.try_function(
                next.function, schema, shard, (answers -> next.function::oid::text ->> 'sequence')::oid::regclass));
        END IF;
    END LOOP;

    FOR next IN
        SELECT f.relation, f."column"
        FROM insta_ids.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        WHERE CASE WHEN c.relispartition OR NOT is_locked THEN NOT f.is_heir ELSE true END
    LOOP
        FOR finding IN
            SELECT * FROM insta_ids.check_ids_of(next.relation, next."column", shard, until, NOT is_locked)
        LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until none is ahead of the clock by more than %s.', tolerance)
                ELSE finding.hint END;
        END LOOP;
        ids := insta_ids_internal.survey_column(next.relation, next."column", shard, layout, 0::bigint, NOT is_locked);
        oldest := least(oldest, ids.oldest);
        newest := greatest(newest, ids.newest);
    END LOOP;
    reasons := array_remove(reasons, NULL);
    hints := array_remove(hints, NULL);
    IF reasons <> '{}' AND hints <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n'),
            HINT = array_to_string(hints, E'\n');
    ELSIF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Makes the shard known, and all migrations as ones that it has.
CREATE FUNCTION insta_ids.claim_shard(schema regnamespace, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_schema_name(schema, shard);
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_placement(shard), insta_ids.check_moves(shard, shard), insta_ids.check_left(shard, shard);
    -- Waits for another session that is making it.
    INSERT INTO insta_ids_internal.shard (shard) VALUES (claim_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- Locked, so that nobody replaces meanwhile what is recorded here.
    INSERT INTO insta_ids_internal.shard_migration (shard, migration)
    SELECT claim_shard.shard, m.number FROM insta_ids_internal.migration m FOR SHARE;
END
$$;

-- Refuses ids of the future to who may not raise the time of ids to them. Those that come while one looks are waited for.
CREATE FUNCTION insta_ids.check_future(newest timestamptz) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF newest IS NULL OR newest < clock_timestamp() + interval '100 ms' THEN
        RETURN false;
    ELSIF NOT has_function_privilege('insta_ids.advance_clock(timestamptz)', 'EXECUTE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'newest id is of the future',
            DETAIL = format('It is of %s.', newest),
            HINT = 'Wait until then, or have a superuser adopt the schema.';
    END IF;
    RETURN true;
END
$$;

-- Makes a shard of a schema whose functions mint ids. Functions whose text is not known have to be confirmed by the digests of
-- their texts; `layout` says which layout they mint in, where their calls do not show it. With `dry_run` it refuses the same,
-- and changes nothing. Locks the schema's tables and sequences, each attempt for a tenth of a second at most.
CREATE FUNCTION insta_ids.adopt(
        schema regnamespace, shard integer, lock_timeout text DEFAULT '2s', confirm text[] DEFAULT '{}',
        layout @extschema@.id_layout DEFAULT NULL, dry_run boolean DEFAULT false)
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    own_layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    layout_argument CONSTANT text := insta_ids.layout_argument(own_layout);
    state text;
    ids record;
    ends record;
    newest timestamptz;
    stopped_at timestamptz;
    next record;
    is_found boolean := false;
BEGIN
    IF schema IS NULL OR shard IS NULL OR lock_timeout IS NULL OR confirm IS NULL OR dry_run IS NULL THEN
        RETURN;
    ELSIF layout::text <> own_layout::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('layout "%s" is not that of the shards of this database', layout),
            DETAIL = format('Their layout is "%s".', own_layout);
    END IF;
    PERFORM insta_ids.check_isolation('a schema cannot be adopted'), set_config('lock_timeout', lock_timeout, true);
    IF NOT dry_run THEN
        PERFORM insta_ids.claim_shard(schema, shard);
    END IF;
    BEGIN
        IF dry_run THEN
            PERFORM insta_ids.claim_shard(schema, shard);
        END IF;
        -- What is against it is found out while everybody goes on; and, as far as that is quick, that it is so still.
        state := insta_ids.minting_state(schema);
        ids := insta_ids.require_adoptable(schema, shard, confirm, layout IS NOT NULL, false, '{}');
        PERFORM insta_ids.check_future(insta_ids_internal.id_time(ids.newest, own_layout));
        is_found := true;
        -- Rolled back, so that nobody waits for having been looked at.
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN
            IF NOT is_found THEN
                RAISE;
            END IF;
    END;
    IF dry_run THEN
        RETURN;
    END IF;
    PERFORM insta_ids.stop_minting(schema,
        ARRAY(SELECT (a.value ->> 'sequence')::oid::regclass FROM jsonb_each(ids.answers) a
              WHERE a.value ->> 'sequence' IS NOT NULL),
        lock_timeout);
    stopped_at := clock_timestamp();
    IF insta_ids.minting_state(schema) IS DISTINCT FROM state THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('schema %s was changed while it was looked at', schema),
            HINT = 'Call again.';
    END IF;
    ends := insta_ids.require_adoptable(schema, shard, confirm, layout IS NOT NULL, true, ids.answers);
    newest := insta_ids_internal.id_time(greatest(ids.newest, ends.newest), own_layout);

    FOR next IN
        SELECT f.function, coalesce('($' || a.shard || ')::integer', adopt.shard::text) AS shard,
               coalesce(quote_literal(a.sequence::regclass), format('($%s)', a.sequence_argument)) || '::pg_catalog.regclass' AS sequence,
               -- Else it has none, so that calls of it are those of next_id.
               p.prosecdef OR p.proargtypes[a.sequence_argument - 1] <> 'regclass'::regtype AS has_settings
        FROM insta_ids.minting_functions(schema) f
        JOIN pg_proc p ON p.oid = f.function
        CROSS JOIN LATERAL jsonb_to_record(ids.answers -> f.function::oid::text)
            a (shard integer, sequence oid, sequence_argument integer)
        WHERE NOT f.native
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'sql',
            format('RETURN %s.next_id(%s, %s%s)', insta_ids_internal.extension_schema(), next.shard, next.sequence,
                layout_argument),
            coalesce(next.has_settings, false));
    END LOOP;
    UPDATE insta_ids_internal.shard s SET created_at = least(now(), insta_ids_internal.id_time(least(ids.oldest, ends.oldest), own_layout))
    WHERE s.shard = adopt.shard;
    PERFORM insta_ids.make_surface(shard);
    FOR next IN SELECT * FROM insta_ids.minting_columns(ARRAY[shard]) m WHERE m."check" IS NULL LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', next.relation, next.expression);
    END LOOP;

    -- Ids begin after all that the function gave out, which may have rounded its milliseconds up. By one id, their time is
    -- set, and written down.
    IF insta_ids.check_future(newest) THEN
        PERFORM insta_ids.advance_clock(insta_ids_internal.id_time(insta_ids_internal.id_max(newest, own_layout) + 1, own_layout));
    ELSE
        PERFORM insta_ids.await_clock(greatest(stopped_at + interval '1 ms', newest));
    END IF;
    PERFORM insta_ids_internal.next_id(shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, own_layout);
END
$$;

-- Releasing

-- Columns whose default calls next_id itself, and what it mints for and from.
CREATE FUNCTION insta_ids.native_defaults(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, sequence regclass, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- As for minting_functions.
    SET standard_conforming_strings = on
AS $$
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass, a.attname, r.shard, to_regclass(r.sequence),
           CASE WHEN to_regclass(r.sequence) IS NULL THEN 'It does something else than to call next_id in the layout of this database.' END
    FROM pg_class c
    JOIN pg_attrdef x ON x.adrelid = c.oid
    JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = x.oid AND d.refclassid = 'pg_proc'::regclass
    LEFT JOIN LATERAL insta_ids.read_call(
        pg_get_expr(x.adbin, x.adrelid), '{}', (insta_ids.configured()).layout) r ON true
    WHERE c.relnamespace = schema
        AND d.refobjid = ANY (insta_ids.id_functions());
END
$$;

-- Refuses what cannot be released.
CREATE FUNCTION insta_ids.check_release(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN coalesce(f.reason, format('It mints for shard %s.', f.shard))
                   ELSE 'It is not one of insta_ids.' END)
        FROM insta_ids.minting_functions(schema) f
        WHERE f.evident AND (f.reason IS NOT NULL OR NOT f.native OR f.shard <> check_release.shard)
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that it is told, and the default of %s.%I'
                    || ' would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids.native_defaults(schema) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR NOT f.native OR f.reason IS NOT NULL))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids.native_defaults(schema) d
        WHERE d.reason IS NOT NULL OR d.shard <> check_release.shard
        UNION ALL
        (SELECT format('This server has a writer slot, %s, and the published function would mint the ids of all.', s.slot)
         FROM unnest(ARRAY[insta_ids.taken_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1));
BEGIN
    IF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be released', schema),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Waits until the clock is where ids are, if that is soon.
CREATE FUNCTION insta_ids.await_ids(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ahead interval;
BEGIN
    -- After a start of the server, the time of ids is not known before the first of them.
    PERFORM insta_ids_internal.next_id(
        shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, (insta_ids.configured()).layout);
    ahead := (SELECT c.ahead FROM insta_ids.clock() c);
    IF ahead > interval '2 s' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('time of ids is ahead of the clock by %s', ahead),
            DETAIL = 'The published function goes by the clock, and could repeat ids.',
            HINT = 'Call again when the clock has come there.';
    END IF;
    PERFORM insta_ids_internal.wait_ms(ceil(extract(epoch FROM ahead) * 1000)::integer);
END
$$;

CREATE FUNCTION insta_ids.release(schema regnamespace, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    PERFORM insta_ids.check_isolation('a schema cannot be released'), set_config('lock_timeout', lock_timeout, true);
    -- What another session migrates or releases is waited for.
    SELECT s.shard INTO number
    FROM insta_ids_internal.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids_internal.shard_schema h WHERE h.oid = release.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids.check_release(schema, number);
    PERFORM insta_ids.make_surface(number);
    PERFORM insta_ids.await_ids(number);
    PERFORM insta_ids.stop_minting(schema, '{}', lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + insta_ids_internal.setting('insta_ids.max_ahead_ms'::text)::interval;
    PERFORM insta_ids.check_release(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND pg_get_expr(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids.native_defaults(schema) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%L::regclass)',
            next.relation, next."column", schema, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids.minting_functions(schema) f WHERE f.native
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'plpgsql',
            format('AS %L', insta_ids.write_function(layout, next.shard, next.sequence)), true);
    END LOOP;
    FOR next IN
        SELECT t.tgrelid::regclass AS relation, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = schema AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', next.tgname, next.relation);
    END LOOP;
    PERFORM insta_ids.tell_of_dependents(schema);
    DELETE FROM insta_ids_internal.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = number;

    -- What the function gives out comes after every id that was minted here.
    PERFORM insta_ids.await_clock(last_ids);
END
$$;

-- Tells of what in a shard's schema still depends on the extension, and of what elsewhere still mints for the shard, or
-- from its sequences.
CREATE FUNCTION insta_ids.tell_of_dependents(schema regnamespace) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := (SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid = tell_of_dependents.schema);
    told record;
BEGIN
    FOR told IN
        WITH RECURSIVE parts AS (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema
            UNION
            SELECT d.classid, d.objid
            FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
            WHERE d.deptype <> 'n'
        ), dependents AS (
            SELECT d.classid, d.objid, d.objsubid,
                   (d.classid, d.objid) IN (SELECT * FROM parts) AS is_inside,
                   bool_or(d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (insta_ids.id_functions())) AS mints
            FROM pg_extension x
            JOIN pg_depend e ON e.refclassid = 'pg_extension'::regclass AND e.refobjid = x.oid AND e.deptype = 'e'
            JOIN pg_depend d ON d.refclassid = e.classid AND d.refobjid = e.objid AND d.deptype IN ('n', 'a')
            WHERE x.extname = 'insta_ids'
            GROUP BY 1, 2, 3
        )
        SELECT 'schema %s still depends on the extension' AS message,
               'Change or drop them before the extension is dropped.' AS hint,
               count(*) AS objects, min(pg_describe_object(d.classid, d.objid, d.objsubid)) AS one
        FROM dependents d WHERE d.is_inside
        UNION ALL
        SELECT 'ids of shard %2$s are still minted outside of schema %1$s',
               'They can repeat ids of the schema. Let them call its next_id().',
               count(*), min(pg_describe_object(d.classid, d.objid, d.objsubid))
        FROM dependents d
        LEFT JOIN pg_attrdef x ON d.classid = 'pg_attrdef'::regclass AND x.oid = d.objid
        LEFT JOIN pg_proc f ON d.classid = 'pg_proc'::regclass AND f.oid = d.objid
        WHERE d.mints AND NOT d.is_inside
            AND (number = ANY (
                    insta_ids.minted_shards(coalesce(x.adbin::text, f.prosqlbody::text), insta_ids.id_functions()))
                OR EXISTS (
                    SELECT FROM pg_depend s JOIN pg_class c ON c.oid = s.refobjid
                    WHERE s.classid = d.classid AND s.objid = d.objid AND s.refclassid = 'pg_class'::regclass
                        AND c.relkind = 'S' AND c.relnamespace = schema))
    LOOP
        CONTINUE WHEN told.objects = 0;
        RAISE NOTICE USING
            MESSAGE = format(told.message, schema, number),
            DETAIL = format('Objects that do: %s. One is %s.', told.objects, told.one),
            HINT = told.hint;
    END LOOP;
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
