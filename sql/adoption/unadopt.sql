-- Adoption: gives a shard's schema the published function again.

-- Raises an error with all reasons if the schema cannot be unadopted.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_can_unadopt(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN coalesce(f.reason, format('It mints for shard %s.', f.shard))
                   ELSE 'It does not call next_id.' END)
        FROM insta_ids_internal.minting_functions(schema) f
        WHERE f.evident AND (f.reason IS NOT NULL OR NOT f.native OR f.shard <> require_can_unadopt.shard)
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that its argument names, and the default of %s.%I would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids_internal.minting_defaults(schema, insta_ids_internal.id_functions()) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids_internal.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR f.evident AND (NOT f.native OR f.reason IS NOT NULL)))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids_internal.minting_defaults(schema, insta_ids_internal.id_functions()) d
        WHERE d.reason IS NOT NULL OR d.shard <> require_can_unadopt.shard
        UNION ALL
        (SELECT format('This server has writer slot %s, but the published function mints the ids of all slots.', s.slot)
         FROM unnest(ARRAY[insta_ids_internal.acquired_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1));
BEGIN
    IF reasons <> '{}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('schema %s cannot be unadopted', schema),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Waits until the clock reaches the time of ids. Raises an error if that takes more than 2 s.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_ids(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ahead interval;
BEGIN
    -- After a start of the server, the first id sets the time of ids.
    PERFORM insta_ids_internal.next_id(
        shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, (insta_ids_internal.require_config()).layout);
    ahead := (SELECT c.ahead FROM insta_ids.clock() c);
    IF ahead > interval '2 s' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('time of ids is ahead of the clock by %s', ahead),
            DETAIL = 'The published function uses the clock, so it could repeat ids.',
            HINT = 'Call again when the clock has reached the time of ids.';
    END IF;
    PERFORM insta_ids_internal.wait_ms(ceil(extract(epoch FROM ahead) * 1000)::integer);
END
$$;

-- Gives the schema of a shard the published function again, or `portable`, the next_id of sql/portable.sql, and forgets the shard.
-- Locks the schema's tables and sequences until the transaction ends, with attempts as for adopt. Raises an error with all
-- reasons if the schema cannot be unadopted.
CREATE OR REPLACE FUNCTION insta_ids.unadopt(
        schema regnamespace, lock_timeout interval DEFAULT '2s', portable regprocedure DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    called CONSTANT text := (SELECT format('%s.%I', p.pronamespace::regnamespace, p.proname) FROM pg_proc p WHERE p.oid = portable);
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    IF schema IS NULL OR lock_timeout IS NULL THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.require_portable(portable),
        insta_ids_internal.set_lock_timeout(lock_timeout);
    -- Waits for another session that migrates or unadopts the shard.
    SELECT s.shard INTO number
    FROM insta_ids_internal.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids_internal.shard_schema h WHERE h.oid = unadopt.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids_internal.require_can_unadopt(schema, number);
    PERFORM insta_ids_internal.create_shard_functions(number);
    PERFORM insta_ids_internal.await_ids(number);
    PERFORM insta_ids_internal.lock_against_minting(schema, '{}', lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + insta_ids_internal.setting('insta_ids.max_ahead'::text)::interval;
    PERFORM insta_ids_internal.require_can_unadopt(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids_internal.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND insta_ids_internal.text_of_check(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids_internal.minting_defaults(schema, insta_ids_internal.id_functions()) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s(%s%L::regclass)', next.relation, next."column",
            coalesce(called, format('%s.next_id', schema)), CASE WHEN portable IS NOT NULL THEN number || ', ' END, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids_internal.minting_functions(schema) f WHERE f.native
    LOOP
        IF portable IS NULL THEN
            PERFORM insta_ids_internal.rewrite_function(next.function, 'plpgsql',
                format('AS %L', insta_ids_internal.write_function(layout, next.shard, next.sequence)), true);
        ELSE
            PERFORM insta_ids_internal.rewrite_function(next.function, 'sql',
                format('RETURN %s(%s::integer, %s::pg_catalog.regclass)', called, next.shard, next.sequence), true);
        END IF;
    END LOOP;
    IF portable IS NOT NULL THEN
        PERFORM insta_ids_internal.guard_sequences(schema, portable, last_ids);
    END IF;
    FOR next IN
        SELECT t.tgrelid::regclass AS relation, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = schema AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', next.tgname, next.relation);
    END LOOP;
    PERFORM insta_ids_internal.report_dependents(schema);
    DELETE FROM insta_ids_internal.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = number;

    -- The published function's first id must be greater than all ids that were minted here.
    PERFORM insta_ids_internal.await_clock(last_ids);
END
$$;
COMMENT ON FUNCTION insta_ids.unadopt(regnamespace, interval, regprocedure) IS
    'gives a shard''s schema the published function again, or that of portable.sql, and forgets it';

-- Raises a NOTICE if objects of a shard's schema still depend on the extension, and another if objects of other schemas still
-- mint for the shard or from its sequences.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_dependents(schema regnamespace) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number CONSTANT integer := (SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid = report_dependents.schema);
    notice record;
BEGIN
    FOR notice IN
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
        CONTINUE WHEN notice.objects = 0;
        RAISE NOTICE USING
            MESSAGE = format(notice.message, schema, number),
            DETAIL = format('Objects that do: %s. One is %s.', notice.objects, notice.one),
            HINT = notice.hint;
    END LOOP;
END
$$;
