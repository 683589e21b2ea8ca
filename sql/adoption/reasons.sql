-- Adoption: why a schema cannot be adopted.

-- Returns why a schema cannot be adopted, as far as the catalog shows it. Locks nothing.
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
    FROM insta_ids_internal.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard
    UNION ALL
    SELECT format('Default of %s.%I: %s', d.relation, d."column", d.reason)
    FROM insta_ids_internal.minting_defaults(schema, insta_ids_internal.portable_functions('next_id')) d WHERE d.reason IS NOT NULL;

    RETURN QUERY
    SELECT format('Sequence %s: It also fills another schema, by next_id of portable.sql: %s.', min(s.refobjid)::regclass,
               pg_describe_object(f.classid, f.objid, 0))
    FROM pg_depend f
    JOIN pg_depend s ON (s.classid, s.objid) = (f.classid, f.objid) AND s.refclassid = 'pg_class'::regclass
    JOIN pg_class c ON c.oid = s.refobjid AND c.relkind = 'S' AND c.relnamespace = schema
    LEFT JOIN pg_attrdef d ON f.classid = 'pg_attrdef'::regclass AND d.oid = f.objid
    LEFT JOIN pg_class t ON t.oid = d.adrelid
    LEFT JOIN pg_proc p ON f.classid = 'pg_proc'::regclass AND p.oid = f.objid
    WHERE f.refclassid = 'pg_proc'::regclass AND f.refobjid = ANY (insta_ids_internal.portable_functions('next_id'))
        AND coalesce(t.relnamespace, p.pronamespace) <> schema
    GROUP BY f.classid, f.objid;

    IF NOT EXISTS (SELECT FROM insta_ids_internal.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids_internal.filled_columns(schema))
    THEN
        RETURN NEXT format('No function in schema %s looks like one that mints ids.', schema);
    END IF;

    RETURN QUERY
    SELECT format('This server has writer slot %s, but the functions mint the ids of all slots.', s.slot)
    FROM unnest(ARRAY[insta_ids_internal.acquired_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1;

    RETURN QUERY
    SELECT format('Relation %s is not a sequence, but each shard has a sequence of this name.', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = schema AND c.relname = 'table_id_seq' AND c.relkind <> 'S';

    RETURN QUERY
    SELECT format('Function %s: Calls of it would be ambiguous, because each shard has %s.next_id(%s).', p.oid::regprocedure,
               schema, CASE WHEN p.pronargs > p.pronargdefaults THEN 'regclass' END)
    FROM pg_proc p
    JOIN pg_type t ON t.oid = p.proargtypes[0]
    WHERE p.pronamespace = schema AND p.proname = 'next_id'
        AND (p.pronargs = p.pronargdefaults
            OR p.pronargs = p.pronargdefaults + 1 AND t.typcategory = 'N'
                AND t.oid NOT IN ('integer'::regtype, 'regclass'::regtype));
END
$$;

-- Raises an error if the schema does not have the name of this shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_shard_name(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := insta_ids.schema_of(shard);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = schema AND n.nspname = name) THEN
        RAISE invalid_schema_name USING MESSAGE = format('schema %s does not have the name of shard %s', schema, shard),
            DETAIL = format('The schema of shard %s is called %I.', shard, name),
            HINT = format('Rename it: ALTER SCHEMA %s RENAME TO %I.', schema, name);
    END IF;
END
$$;

-- Returns why functions of the schema cannot be adopted, and what helps. Calls the functions whose texts are not known but confirmed,
-- and adds what they mint to `answers`, by their OIDs. If `is_locked`, the caller's transaction has locked the schema with
-- lock_against_minting. Raises an error if the caller is no member of a function's owner.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_functions(
        schema regnamespace, shard integer, confirm text[], is_locked boolean,
        INOUT answers jsonb, OUT reasons text[], OUT hints text[])
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
    class text;
    digest text;
    answer record;
BEGIN
    FOR next IN SELECT * FROM insta_ids_internal.minting_functions(schema) f WHERE NOT f.native AND f.reason IS NULL LOOP
        IF NOT pg_has_role(next.owner, 'MEMBER') THEN
            RAISE insufficient_privilege USING MESSAGE = format('must be owner of function %s', next.function);
        END IF;
        CONTINUE WHEN next.known;
        class := insta_ids_internal.function_class(next.text, schema, shard);
        digest := encode(sha256(convert_to(class, getdatabaseencoding())), 'hex');
        IF digest <> ALL (confirm) THEN
            reasons := reasons || format(E'Function %s: Its text is not a known one. It has digest %s:\n%s',
                next.function, digest, class);
            hints := hints || format('Read the text. If adopt may call function %s and replace it, confirm the text: confirm => ARRAY[%L].', next.function, digest);
        ELSE
            answer := insta_ids_internal.ask_function(next.function, schema, shard, is_locked,
                (answers -> next.function::oid::text ->> 'sequence')::oid::regclass);
            reasons := reasons || ('Function ' || next.function || ': ' || answer.reason);
            hints := hints || nullif(answer.hint, '');
            answers := answers || jsonb_build_object(next.function::oid::text,
                jsonb_build_object('shard', answer.shard_argument, 'sequence', answer.sequence::oid,
                    'sequence_argument', answer.sequence_argument));
        END IF;
    END LOOP;
END
$$;

-- Returns why the rows of the schema cannot be adopted, what helps, and the oldest and newest id. A CHECK of the shard's ids may
-- allow ids that are older than the shard. Reads all rows or, if `is_locked`, the ends of indexes.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_schema_rows(
        schema regnamespace, shard integer, is_locked boolean,
        OUT reasons text[], OUT hints text[], OUT oldest bigint, OUT newest bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tolerance CONSTANT text := insta_ids_internal.setting('insta_ids.clock_tolerance'::text);
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    next record;
    finding insta_ids.finding;
    ids record;
BEGIN
    -- Reading all rows of a table reads its child tables. A partitioned index is read whole, too, but other child tables are
    -- read by their own indexes.
    FOR next IN
        SELECT f.relation, f."column", coalesce(k.since, 0) AS since
        FROM insta_ids_internal.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        JOIN pg_attribute a ON a.attrelid = f.relation AND a.attname = f."column"
        CROSS JOIN LATERAL insta_ids_internal.text_of_column(f."column", a.atttypid <> 'bigint'::regtype) v (text)
        CROSS JOIN LATERAL insta_ids_internal.check_of_ids(f.relation, v.text, insta_ids_internal.condition_of_ids(v.text,
            check_schema_rows.shard, insta_ids_internal.extension_schema(),
            insta_ids_internal.layout_argument((insta_ids_internal.require_config()).layout))) k
        WHERE NOT f.is_child OR is_locked AND NOT c.relispartition
    LOOP
        ids := insta_ids_internal.check_ids_of(next.relation, next."column", shard, next.since, until, NOT is_locked);
        FOREACH finding IN ARRAY ids.findings LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until the clock is at most %s behind the newest id.', tolerance)
                ELSE finding.hint END;
        END LOOP;
        oldest := least(oldest, ids.oldest);
        newest := greatest(newest, ids.newest);
    END LOOP;
END
$$;

-- Raises an error with all reasons if the schema cannot be adopted. Returns what its functions mint, and the oldest and newest id
-- that it read. The arguments are those of check_functions.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_adoptable(
        schema regnamespace, shard integer, confirm text[], is_locked boolean, INOUT answers jsonb, OUT oldest bigint, OUT newest bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    functions record;
    rows record;
    reasons text[];
    hints text[];
BEGIN
    PERFORM insta_ids_internal.require_shard_name(schema, shard);
    reasons := ARRAY(SELECT r FROM insta_ids_internal.adoption_reasons(schema, shard) r);
    functions := insta_ids_internal.check_functions(schema, shard, confirm, is_locked, answers);
    rows := insta_ids_internal.check_schema_rows(schema, shard, is_locked);
    answers := functions.answers;
    oldest := rows.oldest;
    newest := rows.newest;
    reasons := array_remove(reasons || functions.reasons || rows.reasons, NULL);
    hints := array_remove(functions.hints || rows.hints, NULL);
    IF reasons <> '{}' AND hints <> '{}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n'),
            HINT = array_to_string(hints, E'\n');
    ELSIF reasons <> '{}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Returns whether the clock must be advanced, because the newest id is ahead of it by more than ids are while writers go on. Raises
-- an error if the caller may not advance the clock.
CREATE OR REPLACE FUNCTION insta_ids_internal.must_advance_clock(newest timestamptz) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF newest IS NULL OR newest < clock_timestamp() + interval '100 ms' THEN
        RETURN false;
    ELSIF NOT has_function_privilege('insta_ids.advance_clock(timestamptz)', 'EXECUTE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'newest id is of the future',
            DETAIL = format('Its time is %s.', newest),
            HINT = 'Wait until then, or let a superuser adopt the schema.';
    END IF;
    RETURN true;
END
$$;
