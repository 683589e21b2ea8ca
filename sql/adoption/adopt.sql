-- Adoption: a schema becomes a shard while it is written to.

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

-- Refuses what cannot be adopted: what is in the schema and, if its functions are known or confirmed, what they answer. Reads
-- all rows; or, if all is locked, the ends of indexes. Returns the answers, and the oldest and newest id that it has seen.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_adoptable(
        schema regnamespace, shard integer, confirm text[], is_epoch_told boolean, is_locked boolean,
        INOUT answers jsonb, OUT oldest bigint, OUT newest bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tolerance CONSTANT text := insta_ids_internal.setting('insta_ids.clock_tolerance'::text);
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    reasons text[] := ARRAY(SELECT r FROM insta_ids_internal.adoption_reasons(schema, shard) r);
    hints text[] := '{}';
    next record;
    class text;
    digest text;
    answer record;
    finding insta_ids.finding;
    ids record;
BEGIN
    PERFORM insta_ids_internal.require_shard_name(schema, shard);
    FOR next IN SELECT * FROM insta_ids_internal.minting_functions(schema) f WHERE NOT f.native AND f.reason IS NULL LOOP
        IF NOT pg_has_role(next.owner, 'MEMBER') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format('must be owner of function %s', next.function);
        END IF;
        class := insta_ids_internal.function_class(next.text, schema, shard);
        digest := encode(sha256(convert_to(class, getdatabaseencoding())), 'hex');
        IF NOT next.known AND digest <> ALL (confirm) THEN
            reasons := reasons || format(E'Function %s: Its text is not a known one. It has digest %s:\n%s',
                next.function, digest, class);
            hints := hints || format('Read the text. If adopt may call function %s and replace it, confirm the text:'
                || ' confirm => ARRAY[%L].', next.function, digest);
        ELSIF NOT is_locked THEN
            answer := insta_ids_internal.ask_function(next.function, schema, shard, next.known AND next.bound, is_epoch_told);
            reasons := reasons || ('Function ' || next.function || ': ' || answer.reason);
            hints := hints || nullif(answer.hint, '');
            answers := answers || jsonb_build_object(next.function::oid::text,
                jsonb_build_object('shard', answer.shard_argument, 'sequence', answer.sequence::oid,
                    'sequence_argument', answer.sequence_argument));
        ELSIF NOT (next.known AND next.bound) THEN
            reasons := reasons || ('Function ' || next.function || ': ' || insta_ids_internal.try_function(
                next.function, schema, shard, (answers -> next.function::oid::text ->> 'sequence')::oid::regclass));
        END IF;
    END LOOP;

    FOR next IN
        SELECT f.relation, f."column"
        FROM insta_ids_internal.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        WHERE CASE WHEN c.relispartition OR NOT is_locked THEN NOT f.is_heir ELSE true END
    LOOP
        ids := insta_ids_internal.check_ids_of(next.relation, next."column", shard, until, NOT is_locked);
        FOREACH finding IN ARRAY ids.findings LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until none is ahead of the clock by more than %s.', tolerance)
                ELSE finding.hint END;
        END LOOP;
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

-- Makes a shard of a schema whose functions mint ids. Functions whose text is not known have to be confirmed by the digests of
-- their texts; `layout` says which layout they mint in, where their calls do not show it. With `dry_run` it refuses the same,
-- and changes nothing. Locks the schema's tables and sequences, each attempt for a tenth of a second at most.
CREATE OR REPLACE FUNCTION insta_ids.adopt(
        schema regnamespace, shard integer, lock_timeout text DEFAULT '2s', confirm text[] DEFAULT '{}',
        layout @extschema@.id_layout DEFAULT NULL, dry_run boolean DEFAULT false)
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    own_layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    layout_argument CONSTANT text := insta_ids_internal.layout_argument(own_layout);
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
    PERFORM insta_ids_internal.require_read_committed(), set_config('lock_timeout', lock_timeout, true);
    IF NOT dry_run THEN
        PERFORM insta_ids_internal.register_shard(schema, shard);
    END IF;
    BEGIN
        IF dry_run THEN
            PERFORM insta_ids_internal.register_shard(schema, shard);
        END IF;
        -- What is against it is found out while everybody goes on; and, as far as that is quick, that it is so still.
        state := insta_ids_internal.minting_state(schema);
        ids := insta_ids_internal.require_adoptable(schema, shard, confirm, layout IS NOT NULL, false, '{}');
        PERFORM insta_ids_internal.check_future(insta_ids_internal.id_time(ids.newest, own_layout));
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
    PERFORM insta_ids_internal.stop_minting(schema,
        ARRAY(SELECT (a.value ->> 'sequence')::oid::regclass FROM jsonb_each(ids.answers) a
              WHERE a.value ->> 'sequence' IS NOT NULL),
        lock_timeout);
    stopped_at := clock_timestamp();
    IF insta_ids_internal.minting_state(schema) IS DISTINCT FROM state THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = format('schema %s was changed while it was looked at', schema),
            HINT = 'Call again.';
    END IF;
    ends := insta_ids_internal.require_adoptable(schema, shard, confirm, layout IS NOT NULL, true, ids.answers);
    newest := insta_ids_internal.id_time(greatest(ids.newest, ends.newest), own_layout);

    FOR next IN
        SELECT f.function, coalesce('($' || a.shard || ')::integer', adopt.shard::text) AS shard,
               coalesce(quote_literal(a.sequence::regclass), format('($%s)', a.sequence_argument)) || '::pg_catalog.regclass' AS sequence,
               -- Else it has none, so that calls of it are those of next_id.
               p.prosecdef OR p.proargtypes[a.sequence_argument - 1] <> 'regclass'::regtype AS has_settings
        FROM insta_ids_internal.minting_functions(schema) f
        JOIN pg_proc p ON p.oid = f.function
        CROSS JOIN LATERAL jsonb_to_record(ids.answers -> f.function::oid::text)
            a (shard integer, sequence oid, sequence_argument integer)
        WHERE NOT f.native
    LOOP
        PERFORM insta_ids_internal.rewrite_function(next.function, 'sql',
            format('RETURN %s.next_id(%s, %s%s)', insta_ids_internal.extension_schema(), next.shard, next.sequence,
                layout_argument),
            coalesce(next.has_settings, false));
    END LOOP;
    UPDATE insta_ids_internal.shard s SET created_at = least(now(), insta_ids_internal.id_time(least(ids.oldest, ends.oldest), own_layout))
    WHERE s.shard = adopt.shard;
    PERFORM insta_ids_internal.create_shard_functions(shard);
    FOR next IN SELECT * FROM insta_ids_internal.minting_columns(ARRAY[shard]) m WHERE m."check" IS NULL LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', next.relation, next.expression);
    END LOOP;

    -- Ids begin after all that the function gave out, which may have rounded its milliseconds up. By one id, their time is
    -- set, and written down.
    IF insta_ids_internal.check_future(newest) THEN
        PERFORM insta_ids.advance_clock(insta_ids_internal.id_time(insta_ids_internal.id_max(newest, own_layout) + 1, own_layout));
    ELSE
        PERFORM insta_ids_internal.await_clock(greatest(stopped_at + interval '1 ms', newest));
    END IF;
    PERFORM insta_ids_internal.next_id(shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, own_layout);
END
$$;
COMMENT ON FUNCTION insta_ids.adopt(regnamespace, integer, text, text[], @extschema@.id_layout, boolean) IS
    'makes a shard of a schema whose functions mint ids';
