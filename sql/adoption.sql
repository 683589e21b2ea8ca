-- From the published function, and back.

-- What a function mints, from its source; `reason` says why it is none that mints ids of this layout. An operand is a
-- constant, or the number of an argument. `native` is one that calls next_id.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_function(
        source text, plpgsql boolean, arguments text[], result text, layout @extschema@.id_layout)
    RETURNS TABLE (
        shard integer, shard_argument integer, sequence text, sequence_argument integer, native boolean, reason text)
    IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'read_function_wrapper';
-- The published function, as a body in PL/pgSQL with an argument OUT result.
CREATE OR REPLACE FUNCTION insta_ids_internal.write_function(layout @extschema@.id_layout, shard text, sequence text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'write_function_wrapper';

-- What mints in a schema

-- The sequence that a function with these settings means by a name; `reason` says why it is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_sequence(name text, settings text[], OUT sequence regclass, OUT reason text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    path CONSTANT text := (
        SELECT substr(s, length('search_path=') + 1) FROM unnest(settings) s WHERE starts_with(s, 'search_path='));
BEGIN
    IF cardinality(parse_ident(name)) = 1 AND (path IS NULL OR path LIKE '%$user%') THEN
        reason := format('Which sequence "%s" is, depends on who calls it.', left(name, 63));
        RETURN;
    END IF;
    -- Last, as a temporary sequence is of who calls this.
    PERFORM set_config('search_path', concat_ws(', ', path, 'pg_temp'), true);
    sequence := pg_catalog.to_regclass(name);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = sequence AND c.relkind = 'S') THEN
        sequence := NULL;
        reason := format('There is no sequence %s.', left(name, 127));
    END IF;
EXCEPTION
    -- What is no name at all.
    WHEN invalid_parameter_value OR invalid_name OR syntax_error OR feature_not_supported THEN
        reason := format('There is no sequence %s.', left(name, 127));
END
$$;

-- The functions of a schema that mint, or look as if they did: that call next_id, or that make something of nextval and
-- the time.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_functions(schema regnamespace)
    RETURNS TABLE (
        function regprocedure, shard integer, shard_argument integer, sequence regclass, sequence_argument integer,
        native boolean, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- By it PostgreSQL writes literals of what is stored.
    SET standard_conforming_strings = on
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    minting CONSTANT oid[] := insta_ids_internal.id_functions();
    candidate record;
    found record;
    named record;
BEGIN
    FOR candidate IN
        SELECT p.oid::regprocedure AS function, l.lanname = 'plpgsql' AS plpgsql, s.source, p.proconfig,
               coalesce(nullif(a.names, '{}'), array_fill(''::text, ARRAY[p.pronargs::integer])) AS arguments, a.result,
               CASE
                   WHEN p.prorettype <> 'bigint'::regtype THEN format('It returns %s.', format_type(p.prorettype, NULL))
                   WHEN p.proretset OR p.prokind <> 'f' OR a.is_odd THEN 'It does not return one number.'
                   -- Where pg_catalog is not named, it comes first; and of pg_temp, no functions are called.
                   WHEN EXISTS (
                       SELECT FROM unnest(p.proconfig) c
                       WHERE c ~* $re$^search_path=.*,\s*"?pg_catalog"?\s*(,|$)$re$
                           AND c !~* $re$^search_path=\s*("?pg_temp"?\s*,\s*)?"?pg_catalog"?\s*(,|$)$re$)
                   THEN 'Its search_path has another schema before pg_catalog, whose functions it may call.'
               END AS reason
        FROM pg_proc p
        JOIN pg_language l ON l.oid = p.prolang AND l.lanname IN ('plpgsql', 'sql')
        CROSS JOIN LATERAL coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) s (source)
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(n.name ORDER BY n.place) FILTER (WHERE n.mode IS NULL OR n.mode <> 'o'), '{}') AS names,
                   min(n.name) FILTER (WHERE n.mode = 'o') AS result,
                   -- One OUT argument at most, and that the last.
                   bool_or(n.mode NOT IN ('i', 'o') OR n.mode = 'o' AND n.place < cardinality(p.proargmodes)) AS is_odd
            FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY n (name, mode, place)
        ) a
        WHERE p.pronamespace = schema
            AND (s.source ~* 'nextval' AND s.source ~* '<<|epoch'
                OR EXISTS (
                    SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                        AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (minting)))
        ORDER BY p.oid
    LOOP
        SELECT * INTO found
        FROM insta_ids_internal.read_function(
            candidate.source, candidate.plpgsql, candidate.arguments, candidate.result, layout);
        SELECT * INTO named
        FROM insta_ids_internal.named_sequence(found.sequence, candidate.proconfig) WHERE found.sequence IS NOT NULL;
        function := candidate.function;
        shard := found.shard;
        shard_argument := found.shard_argument;
        sequence := named.sequence;
        sequence_argument := found.sequence_argument;
        native := found.native;
        reason := coalesce(candidate.reason, found.reason, named.reason);
        RETURN NEXT;
    END LOOP;
END
$$;

-- Columns of ids: those whose default calls what mints in this schema; or, in it, next_id itself. An heir's are read, and
-- get their CHECK, with its parent's.
CREATE OR REPLACE FUNCTION insta_ids_internal.filled_columns(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, is_heir boolean)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.function::oid AS oid, f.shard_argument IS NOT NULL AS is_told_shard
        FROM insta_ids_internal.minting_functions(schema) f
        UNION
        SELECT n.oid, true FROM unnest(insta_ids_internal.id_functions()) n (oid)
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
        LEFT JOIN LATERAL unnest(insta_ids_internal.minted_shards(x.adbin::text, ARRAY[m.oid])) s (shard) ON m.is_told_shard
        WHERE schema IN (p.pronamespace, c.relnamespace)
        GROUP BY c.oid, a.attname
    )
    SELECT f.oid::regclass, f.attname, f.shard, EXISTS (
        SELECT FROM pg_inherits i JOIN filled p ON p.oid = i.inhparent AND p.attname = f.attname WHERE i.inhrelid = f.oid)
    FROM filled f
    ORDER BY f.oid, f.attname;
END
$$;

-- The sequences that what mints in a schema takes values of: all of its own, if one of its functions can be told any.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_sequences(schema regnamespace) RETURNS SETOF regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT f.sequence FROM insta_ids_internal.minting_functions(schema) f WHERE f.sequence IS NOT NULL
    UNION
    SELECT c.oid::pg_catalog.regclass
    FROM insta_ids_internal.filled_columns(schema) f
    JOIN pg_catalog.pg_attribute a ON a.attrelid = f.relation AND a.attname = f."column"
    JOIN pg_catalog.pg_attrdef x ON x.adrelid = a.attrelid AND x.adnum = a.attnum
    JOIN pg_catalog.pg_depend d
        ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = x.oid
        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
    UNION
    SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c
    WHERE c.relnamespace = schema AND c.relkind = 'S'
        AND EXISTS (SELECT FROM insta_ids_internal.minting_functions(schema) f WHERE f.sequence_argument IS NOT NULL);
END;

-- All that adopt and release go by, to tell whether somebody has changed it.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_state(schema regnamespace) RETURNS text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.concat(
        (SELECT pg_catalog.array_agg(f ORDER BY f.function) FROM insta_ids_internal.minting_functions(schema) f),
        (SELECT pg_catalog.array_agg(c ORDER BY c.relation, c."column") FROM insta_ids_internal.filled_columns(schema) c));
END;

-- Stopping, and going on

-- Locks the tables of the schema, others that are filled in it, with all their partitions and heirs, and the sequences
-- until the transaction ends, when nobody is using them. Also tables that nothing fills: a statement that calls a function
-- for rows of theirs is planned before the function is changed, or after that.
CREATE OR REPLACE FUNCTION insta_ids_internal.stop_minting(schema regnamespace, lock_timeout text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT regclass[] := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT c.relation::oid FROM insta_ids_internal.filled_columns(schema) c
            UNION SELECT c.oid FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
        )
        SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.relation AND c.relkind IN ('r', 'p') ORDER BY c.oid);
BEGIN
    PERFORM insta_ids_internal.lock_relations(tables, 'ACCESS EXCLUSIVE',
        ARRAY(SELECT s FROM insta_ids_internal.minting_sequences(schema) s ORDER BY s), format('schema %s', schema), lock_timeout);
END
$$;

-- Waits until the clock has come to where ids are greater than all of this instant: not for long, as others wait for the
-- locks. It is farther only when the clock was set back since that was looked at.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_clock(past timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
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
CREATE OR REPLACE FUNCTION insta_ids_internal.quoted_list(value text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((
        SELECT pg_catalog.string_agg(
            pg_catalog.quote_literal(coalesce(pg_catalog.replace(n.name[1], '""', '"'), pg_catalog.lower(n.name[2]))), ', '
            ORDER BY n.place)
        FROM pg_catalog.regexp_matches(value, $re$"((?:[^"]|"")*)"|([^\s,]+)$re$, 'g') WITH ORDINALITY n (name, place)), '''''');

-- Gives a function another body. What else is known of it stays: its arguments, owner and privileges, and its settings
-- where they mean something to this body.
CREATE OR REPLACE FUNCTION insta_ids_internal.rewrite_function(function regprocedure, language text, body text, has_settings boolean) RETURNS void
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
                    THEN insta_ids_internal.quoted_list(s.value) ELSE quote_literal(s.value) END), '')
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
CREATE OR REPLACE FUNCTION insta_ids_internal.adoption_reasons(schema regnamespace, shard integer) RETURNS SETOF text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT format('Function %s: %s', f.function, coalesce(f.reason, format('It mints for shard %s.', f.shard)))
    FROM insta_ids_internal.minting_functions(schema) f
    WHERE f.reason IS NOT NULL OR f.shard <> adoption_reasons.shard;

    RETURN QUERY
    SELECT format('Default of %s.%I: It mints for shard %s.', c.relation, c."column", c.shard)
    FROM insta_ids_internal.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard;

    IF NOT EXISTS (SELECT FROM insta_ids_internal.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids_internal.filled_columns(schema))
    THEN
        RETURN NEXT 'It has no function like the published one.';
    END IF;

    RETURN QUERY
    SELECT format('This server has a writer slot, %s, and the function has minted the ids of all.', s.slot)
    FROM unnest(ARRAY[insta_ids_internal.acquired_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1;

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
CREATE OR REPLACE FUNCTION insta_ids_internal.require_shard_name(schema regnamespace, shard integer) RETURNS void
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

-- Refuses what cannot be adopted. Reads all rows, or the ends of indexes only; the oldest and newest id that it has seen.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_adoption(
        schema regnamespace, shard integer, every_row boolean, OUT oldest bigint, OUT newest bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    tolerance CONSTANT text := insta_ids_internal.setting('insta_ids.clock_tolerance'::text);
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    reasons text[] := ARRAY(SELECT r FROM insta_ids_internal.adoption_reasons(schema, shard) r);
    hints text[] := '{}';
    filled record;
    finding insta_ids.finding;
    ids record;
BEGIN
    PERFORM insta_ids_internal.require_shard_name(schema, shard);
    FOR filled IN
        SELECT f.relation, f."column"
        FROM insta_ids_internal.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        WHERE CASE WHEN every_row OR c.relispartition THEN NOT f.is_heir ELSE true END
    LOOP
        FOR finding IN
            SELECT * FROM insta_ids_internal.check_ids_of(filled.relation, filled."column", shard, until, every_row)
        LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until none is ahead of the clock by more than %s.', tolerance)
                ELSE finding.hint END;
        END LOOP;
        ids := insta_ids_internal.survey_column(filled.relation, filled."column", shard, layout, 0::bigint, every_row);
        oldest := least(oldest, ids.oldest);
        newest := greatest(newest, ids.newest);
    END LOOP;
    IF hints <> '{}' THEN
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
CREATE OR REPLACE FUNCTION insta_ids_internal.register_shard(schema regnamespace, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_shard_name(schema, shard);
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_placed_here(shard), insta_ids_internal.require_not_moving(shard, shard), insta_ids_internal.require_no_remains(shard, shard);
    -- Waits for another session that is making it.
    INSERT INTO insta_ids_internal.shard (shard) VALUES (register_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- Locked, so that nobody replaces meanwhile what is recorded here.
    INSERT INTO insta_ids_internal.shard_migration (shard, migration)
    SELECT register_shard.shard, m.number FROM insta_ids_internal.migration m FOR SHARE;
END
$$;

-- Refuses ids of the future to who may not raise the time of ids to them. Those that come while one looks are waited for.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_future(newest timestamptz) RETURNS boolean
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

CREATE OR REPLACE FUNCTION insta_ids.adopt(schema regnamespace, shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    layout_argument CONSTANT text := insta_ids_internal.layout_argument(layout);
    state text;
    ids record;
    ends record;
    newest timestamptz;
    stopped_at timestamptz;
    next record;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), set_config('lock_timeout', lock_timeout, true);
    PERFORM insta_ids_internal.register_shard(schema, shard);

    -- What is against it is found out while everybody goes on; and, as far as that is quick, that it is so still.
    state := insta_ids_internal.minting_state(schema);
    BEGIN
        SELECT * INTO ids FROM insta_ids_internal.check_adoption(schema, shard, true);
        -- Rolled back, so that nobody waits for having been looked at.
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN NULL;
    END;
    PERFORM insta_ids_internal.check_future(insta_ids_internal.id_time(ids.newest, layout));
    PERFORM insta_ids_internal.stop_minting(schema, lock_timeout);
    stopped_at := clock_timestamp();
    IF insta_ids_internal.minting_state(schema) IS DISTINCT FROM state THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('schema %s was changed while it was looked at', schema),
            HINT = 'Call again.';
    END IF;
    SELECT * INTO ends FROM insta_ids_internal.check_adoption(schema, shard, false);
    newest := insta_ids_internal.id_time(greatest(ids.newest, ends.newest), layout);

    FOR next IN
        SELECT f.function, coalesce(f.shard::text, format('($%s)::integer', f.shard_argument)) AS shard,
               coalesce(quote_literal(f.sequence), format('($%s)', f.sequence_argument)) || '::pg_catalog.regclass' AS sequence,
               -- Else it has none, so that calls of it are those of next_id.
               p.prosecdef OR p.proargtypes[f.sequence_argument - 1] <> 'regclass'::regtype AS has_settings
        FROM insta_ids_internal.minting_functions(schema) f
        JOIN pg_proc p ON p.oid = f.function
        WHERE NOT f.native
    LOOP
        PERFORM insta_ids_internal.rewrite_function(next.function, 'sql',
            format('RETURN %s.next_id(%s, %s%s)', insta_ids_internal.extension_schema(), next.shard, next.sequence,
                layout_argument),
            coalesce(next.has_settings, false));
    END LOOP;
    UPDATE insta_ids_internal.shard s SET created_at = least(now(), insta_ids_internal.id_time(least(ids.oldest, ends.oldest), layout))
    WHERE s.shard = adopt.shard;
    PERFORM insta_ids_internal.create_shard_functions(shard);
    FOR next IN SELECT * FROM insta_ids_internal.minting_columns(ARRAY[shard]) m WHERE m."check" IS NULL LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', next.relation, next.expression);
    END LOOP;

    -- Ids begin after all that the function gave out, which may have rounded its milliseconds up. By one id, their time is
    -- set, and written down.
    IF insta_ids_internal.check_future(newest) THEN
        PERFORM insta_ids.advance_clock(insta_ids_internal.id_time(insta_ids_internal.id_max(newest, layout) + 1, layout));
    ELSE
        PERFORM insta_ids_internal.await_clock(greatest(stopped_at + interval '1 ms', newest));
    END IF;
    PERFORM insta_ids_internal.next_id(shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, layout);
END
$$;
COMMENT ON FUNCTION insta_ids.adopt(regnamespace, integer, text) IS
    'makes a shard of a schema that runs the published function';

-- Releasing

-- Columns whose default calls next_id itself, and what it mints for and from.
CREATE OR REPLACE FUNCTION insta_ids_internal.native_defaults(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, sequence regclass, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- As for minting_functions.
    SET standard_conforming_strings = on
AS $$
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass, a.attname, r.shard, to_regclass(r.sequence),
           coalesce(r.reason, CASE WHEN r.sequence IS NULL OR NOT r.native THEN 'It is not one of insta_ids.' END)
    FROM pg_class c
    JOIN pg_attrdef x ON x.adrelid = c.oid
    JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = x.oid AND d.refclassid = 'pg_proc'::regclass
    CROSS JOIN LATERAL insta_ids_internal.read_function(
        'RETURN ' || pg_get_expr(x.adbin, x.adrelid), false, '{}', NULL, (insta_ids_internal.require_config()).layout) r
    WHERE c.relnamespace = schema
        AND d.refobjid = ANY (insta_ids_internal.id_functions());
END
$$;

-- Refuses what cannot be released.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_releasable(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN format('It mints for shard %s.', f.shard)
                   ELSE coalesce(f.reason, 'It is not one of insta_ids.') END)
        FROM insta_ids_internal.minting_functions(schema) f
        WHERE f.reason IS NOT NULL OR NOT f.native OR f.shard <> require_releasable.shard
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that it is told, and the default of %s.%I'
                    || ' would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids_internal.native_defaults(schema) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids_internal.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR NOT f.native OR f.reason IS NOT NULL))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids_internal.native_defaults(schema) d
        WHERE d.reason IS NOT NULL OR d.shard <> require_releasable.shard
        UNION ALL
        (SELECT format('This server has a writer slot, %s, and the published function would mint the ids of all.', s.slot)
         FROM unnest(ARRAY[insta_ids_internal.acquired_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1));
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
CREATE OR REPLACE FUNCTION insta_ids_internal.await_ids(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ahead interval;
BEGIN
    -- After a start of the server, the time of ids is not known before the first of them.
    PERFORM insta_ids_internal.next_id(
        shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, (insta_ids_internal.require_config()).layout);
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

CREATE OR REPLACE FUNCTION insta_ids.release(schema regnamespace, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), set_config('lock_timeout', lock_timeout, true);
    -- What another session migrates or releases is waited for.
    SELECT s.shard INTO number
    FROM insta_ids_internal.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids_internal.shard_schema h WHERE h.oid = release.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids_internal.require_releasable(schema, number);
    PERFORM insta_ids_internal.create_shard_functions(number);
    PERFORM insta_ids_internal.await_ids(number);
    PERFORM insta_ids_internal.stop_minting(schema, lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + insta_ids_internal.setting('insta_ids.max_ahead_ms'::text)::interval;
    PERFORM insta_ids_internal.require_releasable(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids_internal.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND pg_get_expr(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids_internal.native_defaults(schema) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%L::regclass)',
            next.relation, next."column", schema, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids_internal.minting_functions(schema) f
    LOOP
        PERFORM insta_ids_internal.rewrite_function(next.function, 'plpgsql',
            format('AS %L', insta_ids_internal.write_function(layout, next.shard, next.sequence)), true);
    END LOOP;
    FOR next IN
        SELECT t.tgrelid::regclass AS relation, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = schema AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', next.tgname, next.relation);
    END LOOP;
    PERFORM insta_ids_internal.report_dependents(schema);
    DELETE FROM insta_ids_internal.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = number;

    -- What the function gives out comes after every id that was minted here.
    PERFORM insta_ids_internal.await_clock(last_ids);
END
$$;
COMMENT ON FUNCTION insta_ids.release(regnamespace, text) IS
    'gives a shard''s schema the published function again, and forgets it';

-- Tells of what in a shard's schema still depends on the extension, and of what elsewhere still mints for the shard, or
-- from its sequences.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_dependents(schema regnamespace) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := (SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid = report_dependents.schema);
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
                   bool_or(d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (insta_ids_internal.id_functions())) AS mints
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
                    insta_ids_internal.minted_shards(coalesce(x.adbin::text, f.prosqlbody::text), insta_ids_internal.id_functions()))
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
