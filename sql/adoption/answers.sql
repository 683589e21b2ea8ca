-- Adoption: what a function mints, found out by calling it.

-- Waits until just before a unit of time of the layout begins, and returns when it begins.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_next_unit(layout @extschema@.id_layout) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    begins CONSTANT timestamptz := insta_ids_internal.id_time(
        insta_ids_internal.id_max(clock_timestamp() + interval '2 ms', layout) + 1, layout);
BEGIN
    PERFORM insta_ids_internal.wait_ms(floor(extract(epoch FROM begins - clock_timestamp()) * 1000 - 1)::integer);
    WHILE clock_timestamp() < begins - interval '0.2 ms' LOOP
        NULL;
    END LOOP;
    RETURN begins;
END
$$;

-- Returns whether ids of this time, in seconds, come from the time at which the transaction or the statement began.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_begin_time(seconds numeric, unit numeric) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM unnest(ARRAY[transaction_timestamp(), statement_timestamp()]) t (fixed)
        CROSS JOIN unnest(ARRAY[0, 0.0005]) a (ahead)
        WHERE extract(epoch FROM t.fixed) + a.ahead - seconds BETWEEN -0.000001 AND unit);
END
$$;

-- Calls a function some tens of times, and compares its ids with the clock and with the values of its sequence. `fits` is true
-- if its epoch can be the layout's. `is_exact` is true if no epoch a millisecond away can be. Functions may round milliseconds
-- down or to the nearest. `fits_sequence` is true if each id has its value's residue. `shards` has the shards of all ids.
-- Raises the function's errors. The caller must roll back what the function does with a subtransaction.
CREATE OR REPLACE FUNCTION insta_ids_internal.measure_clock(
        function oid, role oid, arguments text[], sequence regclass,
        OUT fits boolean, OUT is_exact boolean, OUT fits_sequence boolean, OUT shards integer[])
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    -- All times here are in seconds.
    unit CONSTANT numeric := extract(epoch FROM insta_ids_internal.id_time(insta_ids_internal.id_max(now(), layout) + 1, layout)
        - insta_ids_internal.id_time(insta_ids_internal.id_min(now(), layout), layout));
    -- The function's clock is ahead of the server's by at least `low` and less than `high`.
    low numeric := '-infinity';
    high numeric := 'infinity';
    oldest numeric;
    newest numeric;
    began timestamptz;
    ended timestamptz;
    started timestamptz := clock_timestamp();
    tries integer := 0;
    id bigint;
    at numeric;
BEGIN
    fits_sequence := true;
    shards := '{}';
    -- 1000 calls take longer than a millisecond, so a clock that stands still shows.
    FOR turn IN 1..1000 LOOP
        -- Ids show the millisecond of a longer unit's beginning only around that beginning. A busy machine can miss it, so there
        -- are five tries.
        IF unit > 0.001 AND (turn = 1 OR ended > started + interval '0.5 ms') THEN
            EXIT WHEN tries = 5;
            tries := tries + 1;
            started := insta_ids_internal.await_next_unit(layout);
        END IF;
        began := clock_timestamp();
        id := insta_ids_internal.call_function(function, role, arguments);
        ended := clock_timestamp();
        at := extract(epoch FROM insta_ids_internal.id_time(id, layout));
        -- A function that computes in floating point can be wrong by a microsecond.
        low := greatest(low, at - extract(epoch FROM ended) - 0.000001);
        high := least(high, at + unit - extract(epoch FROM began) + 0.000001);
        oldest := least(oldest, at);
        newest := greatest(newest, at);
        fits_sequence := fits_sequence AND insta_ids_internal.id_seq(id, layout) = currval(sequence) % residues;
        IF insta_ids_internal.id_shard(id, layout) <> ALL (shards) THEN
            shards := shards || insta_ids_internal.id_shard(id, layout);
        END IF;
        -- The bounds leave one multiple of half a millisecond, and that is 0 or 1.
        is_exact := ceil(low / 0.0005) = ceil(high / 0.0005) - 1 AND ceil(low / 0.0005) IN (0, 1);
        EXIT WHEN turn >= 8 AND (is_exact OR low >= high OR unit <= 0.001 AND ended > started + interval '100 ms');
    END LOOP;
    fits := low < high AND (low <= 0 AND high > 0 OR low <= 0.0005 AND high > 0.0005)
        OR low >= high AND oldest = newest AND insta_ids_internal.is_begin_time(oldest, unit);
END
$$;

-- Returns the layout of an id that was minted at this time, among the named layouts and those with an epoch that the text
-- contains. Returns NULL if none fits.
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

-- Returns whether a text has the layout's epoch in milliseconds, and no other number that could be meant.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_epoch(text text, layout @extschema@.id_layout) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    epoch CONSTANT numeric := extract(epoch FROM insta_ids_internal.id_time(0, layout)) * 1000;
    numbers CONSTANT numeric[] := ARRAY(SELECT m[1]::numeric FROM regexp_matches(text, $re$\m\d{9,15}\M$re$, 'g') m);
BEGIN
    RETURN epoch = ANY (numbers)
        AND NOT EXISTS (SELECT FROM unnest(numbers) n (number) WHERE number <> epoch AND abs(number - epoch) < 60000);
END
$$;

-- Returns why two calls of a function do not show the sequence of its ids, and what helps; NULL if they do. `first` and `second`
-- are the sequences that gave values during the calls, and `took` is how long the second call took.
CREATE OR REPLACE FUNCTION insta_ids_internal.sequence_reason(
        first regclass[], second regclass[], took interval, OUT reason text, OUT hint text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF first = '{}' THEN
        reason := 'It takes no value of a sequence.';
    ELSIF cardinality(first) = 1 AND second = '{}' THEN
        reason := format('Its calls do not take a new value of the same sequence each: %s.', first[1]);
    ELSIF cardinality(first) > 1 OR first <> second THEN
        reason := format('It takes values of more than one sequence: %s.', array_to_string(first || second, ', '));
    ELSIF took > interval '1 s' THEN
        reason := format('A call takes %s, and adopt has to call it once while the tables are locked.', took);
    ELSIF (SELECT c.relpersistence FROM pg_class c WHERE c.oid = first[1]) = 't' THEN
        reason := format('It took a value of the temporary sequence %s of this session.', first[1]);
        hint := 'Call adopt in another session.';
    END IF;
END
$$;

-- Calls a function for `shard` and for `other_shard`, and rolls back what the calls do. Only values of sequences stay taken.
-- Returns an id of each call, the time after the second call, the sequence, and what measure_clock returns. `takes_sequence` is
-- true if the function goes by the sequence that it is given, and `null_argument` is the number of an argument without which it
-- mints, too. Returns a reason instead if the function cannot be called or its sequence is not found. Locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.collect_answers(
        function regprocedure, schema regnamespace, shard integer, other_shard integer, safe boolean,
        OUT id bigint, OUT other_id bigint, OUT ended timestamptz, OUT sequence regclass, OUT takes_sequence boolean,
        OUT null_argument integer, OUT fits boolean, OUT is_exact boolean, OUT fits_sequence boolean, OUT shards integer[],
        OUT reason text, OUT hint text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    shard_argument CONSTANT integer := array_position(insta_ids_internal.call_arguments(function, 0, NULL), '0');
    sequence_argument CONSTANT integer := array_position(insta_ids_internal.call_arguments(function, NULL, ''), '');
    locks CONSTANT text[] := ARRAY(SELECT l::text FROM insta_ids_internal.advisory_locks() l);
    role oid;
    probe regclass;
    arguments text[];
    first record;
    second record;
    sequence_name text;
    is_done boolean := false;
BEGIN
    BEGIN
        role := insta_ids_internal.calling_role(function, schema, safe);
        IF sequence_argument IS NOT NULL THEN
            probe := insta_ids_internal.create_probe(schema, role);
        END IF;
        arguments := insta_ids_internal.call_arguments(function, shard, probe::text);
        first := insta_ids_internal.ask(function, role, arguments);
        second := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, other_shard, probe::text));
        SELECT * INTO reason, hint
        FROM insta_ids_internal.sequence_reason(first.sequences, second.sequences, second.ended - second.began);
        IF reason IS NULL THEN
            id := first.id;
            other_id := second.id;
            ended := second.ended;
            sequence := first.sequences[1];
            sequence_name := sequence;
            takes_sequence := sequence = probe IS TRUE;
            SELECT * INTO fits, is_exact, fits_sequence, shards
            FROM insta_ids_internal.measure_clock(function, role, arguments, sequence);
            null_argument := insta_ids_internal.optional_argument(function, role, arguments, ARRAY[
                CASE WHEN NOT safe AND insta_ids_internal.id_shard(other_id, layout) = other_shard THEN shard_argument END,
                CASE WHEN NOT safe AND takes_sequence THEN sequence_argument END]);
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
    -- What the calls created is gone now.
    IF reason IS NULL AND NOT takes_sequence AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence) THEN
        reason := format('It creates sequence %s when it is called.', sequence_name);
        hint := 'Create the sequence first.';
    END IF;
END
$$;

-- Returns what a function mints: `shard_argument` and `sequence_argument` are the numbers of the arguments that name its shard and
-- its sequence, and `sequence` is a sequence that no argument names. Returns a reason instead, and what helps, if the function
-- cannot be adopted. `safe` is as for calling_role. `is_layout_given` is true if the caller of adopt has named the layout. Calls
-- the function, and rolls back what it does. Locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_function(
        function regprocedure, schema regnamespace, shard integer, safe boolean, is_layout_given boolean,
        OUT shard_argument integer, OUT sequence regclass, OUT sequence_argument integer, OUT reason text, OUT hint text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT integer := insta_ids_internal.id_seq(-1, layout) + 1;
    last_shard CONSTANT integer := insta_ids_internal.id_shard(-1, layout);
    other_shard CONSTANT integer := CASE shard WHEN last_shard THEN 0 ELSE last_shard END;
    text CONSTANT text := pg_get_functiondef(function);
    answers CONSTANT record := insta_ids_internal.collect_answers(function, schema, shard, other_shard, safe);
    minted_for CONSTANT integer := insta_ids_internal.id_shard(answers.other_id, layout);
BEGIN
    reason := answers.reason;
    hint := answers.hint;
    IF reason IS NOT NULL THEN
        RETURN;
    END IF;
    IF minted_for = other_shard THEN
        shard_argument := array_position(insta_ids_internal.call_arguments(function, 0, NULL), '0');
    END IF;
    IF answers.takes_sequence THEN
        sequence_argument := array_position(insta_ids_internal.call_arguments(function, NULL, ''), '');
    ELSE
        sequence := answers.sequence;
    END IF;

    IF NOT answers.fits THEN
        reason := coalesce(
            'It mints in layout "' || insta_ids_internal.layout_of(answers.id, answers.ended, text) || '".',
            format('Its ids are not of the layout "%s": %s would be of %s.', layout, answers.id,
                insta_ids_internal.id_time(answers.id, layout)));
    ELSIF NOT answers.fits_sequence THEN
        reason := CASE WHEN answers.takes_sequence
            THEN format('Its ids do not have the values of the sequence that its argument %s names modulo %s.', sequence_argument, residues)
            ELSE format('Its ids do not have the values of sequence %s modulo %s.', sequence, residues) END;
    ELSIF answers.shards <> ARRAY[shard] OR minted_for NOT IN (shard, CASE WHEN shard_argument IS NULL THEN shard ELSE other_shard END) THEN
        reason := format('It mints for shard %s.',
            array_to_string(ARRAY(SELECT DISTINCT s FROM unnest(answers.shards || minted_for) s WHERE s <> shard ORDER BY s), ', '));
    ELSIF answers.null_argument IS NOT NULL THEN
        reason := format('It mints an id if its argument %s is NULL, where next_id returns NULL.', answers.null_argument);
    ELSIF NOT (answers.is_exact OR is_layout_given OR insta_ids_internal.has_epoch(text, layout)) THEN
        reason := 'Its calls do not show its epoch to the millisecond.';
        hint := format('If function %s mints in the layout of this database, say so: layout => %L.', function, layout);
    END IF;
END
$$;

-- Calls a function once more while the caller's transaction has its sequence locked, and returns why it cannot be adopted, or
-- NULL. The sequence is far ahead for this call, because % 1000 and % 1024 are the same for small values. Rolls everything back.
CREATE OR REPLACE FUNCTION insta_ids_internal.try_function(function regprocedure, schema regnamespace, shard integer, sequence regclass)
    RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    residues CONSTANT bigint := insta_ids_internal.id_seq(-1, layout) + 1;
    value CONSTANT bigint := (
        SELECT greatest(s.seqmin, least(s.seqmax, (1::bigint << 40) - 1)) FROM pg_sequence s WHERE s.seqrelid = sequence);
    locks CONSTANT text[] := ARRAY(SELECT l::text FROM insta_ids_internal.advisory_locks() l);
    role oid;
    given regclass := sequence;
    asked record;
    problem text;
    is_done boolean := false;
BEGIN
    BEGIN
        role := insta_ids_internal.calling_role(function, schema, false);
        IF sequence IS NULL THEN
            given := insta_ids_internal.create_probe(schema, role);
        ELSE
            PERFORM insta_ids_internal.as_owner(sequence, format('ALTER SEQUENCE %s RESTART %s', sequence, value));
        END IF;
        asked := insta_ids_internal.ask(function, role, insta_ids_internal.call_arguments(function, shard, given::text));
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
    ELSIF asked.sequences <> ARRAY[given] OR insta_ids_internal.id_seq(asked.id, layout) <> asked.value % residues
        OR insta_ids_internal.id_shard(asked.id, layout) <> shard
        OR insta_ids_internal.id_time(asked.id, layout) NOT BETWEEN now() - interval '2 s' AND asked.ended + interval '1 ms'
    THEN
        RETURN format('Of value %s of its sequence, it made id %s, which does not have shard %s and the value modulo %s.',
            asked.value, asked.id, shard, residues);
    END IF;
    RETURN NULL;
END
$$;
