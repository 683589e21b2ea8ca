-- A copy of a shard under another number.

-- Raises an error if a shard has code of a role that lacks rights of the caller. To plan a statement, PostgreSQL already runs functions
-- of the tables' indexes and CHECKs.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_trusted_shard(shard integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_own_code(ARRAY(
        SELECT r.relation FROM insta_ids_internal.shard_relation r WHERE r.shard = require_trusted_shard.shard)::oid[]);
END
$$;

-- Returns the columns that hold ids of a shard's rows: those whose default mints them, those of `columns`, each named like
-- comments.parent_id, and those that refer to one of these by a foreign key or inherit one. Raises an error for a name that is no bigint column.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_columns(shard integer, columns text[]) RETURNS TABLE (relation regclass, "column" name)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
BEGIN
    SELECT c INTO wrong
    FROM unnest(columns) c
    WHERE NOT EXISTS (
        SELECT FROM insta_ids_internal.shard_relation r JOIN pg_attribute a ON a.attrelid = r.relation
        WHERE r.shard = id_columns.shard AND format('%I.%I', r.name, a.attname) = c AND a.atttypid = 'bigint'::regtype);
    IF FOUND THEN
        RAISE undefined_column USING MESSAGE = format('shard %s has no bigint column %s', shard, wrong),
            HINT = 'Write it like photos.parent_id.';
    END IF;
    RETURN QUERY
    WITH RECURSIVE holding AS (
        SELECT a.attrelid, a.attnum
        FROM insta_ids_internal.shard_relation r
        JOIN pg_attribute a ON a.attrelid = r.relation
        WHERE r.shard = id_columns.shard
            AND (format('%I.%I', r.name, a.attname) = ANY (columns)
                OR EXISTS (
                    SELECT FROM insta_ids_internal.minting_columns(ARRAY[id_columns.shard]) m
                    WHERE (m.relation, m."column") = (a.attrelid, a.attname)))
        UNION
        SELECT f.attrelid, f.attnum
        FROM holding h
        CROSS JOIN LATERAL (
            SELECT k.conrelid, p.referring
            FROM pg_constraint k CROSS JOIN LATERAL unnest(k.conkey, k.confkey) p (referring, referred)
            WHERE k.contype = 'f' AND k.confrelid = h.attrelid AND p.referred = h.attnum
            UNION ALL
            SELECT i.inhrelid, c.attnum
            FROM pg_attribute a
            JOIN pg_inherits i ON i.inhparent = a.attrelid
            JOIN pg_attribute c ON c.attrelid = i.inhrelid AND c.attname = a.attname
            WHERE a.attrelid = h.attrelid AND a.attnum = h.attnum
        ) f (attrelid, attnum)
        JOIN insta_ids_internal.shard_relation r ON r.shard = id_columns.shard AND r.relation = f.attrelid
    )
    SELECT a.attrelid::regclass, a.attname FROM holding h JOIN pg_attribute a ON (a.attrelid, a.attnum) = (h.attrelid, h.attnum);
END
$$;

-- Raises a NOTICE for each bigint column of a shard that is none of `known`, and holds a number that reads as an id of the shard, not
-- below `first`.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_other_ids(shard integer, known jsonb, first bigint) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    next record;
    has_ids boolean;
BEGIN
    PERFORM insta_ids_internal.require_trusted_shard(shard);
    FOR next IN
        SELECT r.relation, r.name, a.attname AS "column"
        FROM insta_ids_internal.shard_relation r
        JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = 'bigint'::regtype
        WHERE r.shard = report_other_ids.shard AND r.kind IN ('r', 'p') AND NOT r.is_partition AND a.attgenerated = ''
            AND NOT known @> jsonb_build_array(jsonb_build_array(r.name, a.attname))
        ORDER BY r.name, a.attnum
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE %I >= $1 AND insta_ids_internal.id_shard(%2$I, $2) = $3)',
            next.relation, next."column") INTO has_ids USING first, layout, shard;
        IF has_ids THEN
            RAISE NOTICE USING
                MESSAGE = format('column %I.%I keeps its values, though some are ids of shard %s', next.name, next."column", shard),
                HINT = format('If they refer to rows of the shard, name it: columns => ARRAY[%L].', format('%I.%I', next.name, next."column"));
        END IF;
    END LOOP;
END
$$;

-- Raises an error if a shard has a table or a column that another one lacks.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_columns_of(source integer, target integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lacking text;
BEGIN
    SELECT format(CASE WHEN t.relation IS NULL THEN 'table %s' ELSE 'column %s.%s' END, r.name, a.attname) INTO lacking
    FROM insta_ids_internal.shard_relation r
    JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN insta_ids_internal.shard_relation t ON t.shard = target AND t.name = r.name AND t.kind = r.kind
    WHERE r.shard = source AND r.kind IN ('r', 'p')
        AND NOT EXISTS (SELECT FROM pg_attribute c WHERE c.attrelid = t.relation AND c.attname = a.attname AND NOT c.attisdropped)
    ORDER BY r.name, a.attnum LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('migrations do not make %s of shard %s', lacking, source),
            HINT = 'Add what was done by hand as a migration, which does nothing where it is done.';
    END IF;
END
$$;

-- Copies the rows of a shard to another one. One statement copies all tables, so their rows are of one moment, and foreign keys are
-- checked when all are there. In the columns of `known`, ids of the source from `first` on get the number of the target.
CREATE OR REPLACE FUNCTION insta_ids_internal.clone_rows(source integer, target integer, known jsonb, first bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    -- How much greater an id is than that of the shard before, if all else is the same.
    unit CONSTANT bigint := (
        SELECT 1::bigint << n FROM generate_series(0, 62) n WHERE insta_ids_internal.id_shard(1::bigint << n, layout) = 1);
    statement CONSTANT text := (
        SELECT 'WITH ' || string_agg(
            format('c%s AS (INSERT INTO %I.%I (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s %s)', t.relation::oid,
                insta_ids.schema_of(target), t.name, t.names, t.expressions, CASE t.kind WHEN 'r' THEN 'ONLY' END, t.relation),
            ', ') || ' SELECT'
        FROM (
            SELECT r.relation, r.name, r.kind, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS names,
                   string_agg(format(
                       CASE
                           WHEN known @> jsonb_build_array(jsonb_build_array(r.name, a.attname))
                               THEN 'CASE WHEN %1$I::bigint >= %2$s AND %3$s.id_shard(%1$I::bigint%4$s) = %5$s THEN %1$I::bigint + %6$s ELSE %1$I END'
                           -- The target has the type of the same name.
                           WHEN t.typnamespace = s.oid THEN '%1$I::text::%7$s'
                           ELSE '%1$I' END,
                       a.attname, first, insta_ids_internal.extension_schema(), insta_ids_internal.layout_argument(layout), source,
                       (target - source) * unit, format_type(b.atttypid, b.atttypmod)), ', ' ORDER BY a.attnum) AS expressions
            FROM insta_ids_internal.shard_relation r
            JOIN insta_ids_internal.shard_schema s ON s.shard = r.shard
            JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            JOIN pg_type t ON t.oid = a.atttypid
            JOIN insta_ids_internal.shard_relation u ON u.shard = target AND u.name = r.name
            JOIN pg_attribute b ON b.attrelid = u.relation AND b.attname = a.attname
            WHERE r.shard = source AND r.kind IN ('r', 'p') AND NOT r.is_partition
            GROUP BY r.relation, r.name, r.kind
        ) t);
    next record;
BEGIN
    PERFORM insta_ids_internal.require_trusted_shard(source), insta_ids_internal.require_trusted_shard(target);
    IF statement IS NOT NULL THEN
        -- Rows that migrations inserted also come from the source.
        EXECUTE 'TRUNCATE ' || insta_ids_internal.published_tables(ARRAY[target]);
        EXECUTE statement;
        -- No table with events of deferred constraints can be altered.
        SET CONSTRAINTS ALL IMMEDIATE;
    END IF;
    FOR next IN
        SELECT s.relation AS source, t.relation AS target
        FROM insta_ids_internal.shard_relation s JOIN insta_ids_internal.shard_relation t ON t.name = s.name AND t.kind = s.kind
        WHERE s.shard = clone_rows.source AND t.shard = clone_rows.target AND s.kind = 'S'
    LOOP
        EXECUTE format('SELECT setval(%L::regclass, s.last_value, s.is_called) FROM %s s', next.target, next.source);
    END LOOP;
    -- The sequences have the same values, and perhaps the same times ahead of them.
    PERFORM insta_ids_internal.succeed(t, s)
    FROM insta_ids_internal.minting_sequences(to_regnamespace(quote_ident(insta_ids.schema_of(target)))) t,
        insta_ids_internal.minting_sequences(to_regnamespace(quote_ident(insta_ids.schema_of(source)))) s;
END
$$;

-- Gives a new shard the rows of another one. Triggers and rules do nothing, because what they do for a row was done in the source. Numbers of
-- the layout's first day, and those that were keys before the ids, are no ids.
CREATE OR REPLACE FUNCTION insta_ids_internal.fill_shard(source integer, target integer, columns text[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    known CONSTANT jsonb := (
        SELECT coalesce(jsonb_agg(jsonb_build_array(c.relname, i."column")), '[]')
        FROM insta_ids_internal.id_columns(source, columns) i JOIN pg_class c ON c.oid = i.relation);
    first CONSTANT bigint := greatest(
        insta_ids_internal.id_min(insta_ids_internal.id_time(0, layout) + interval '1 day', layout),
        (SELECT min(m.since) FROM insta_ids_internal.minting_columns(ARRAY[source]) m));
    -- Triggers and rules.
    active jsonb;
    next record;
BEGIN
    PERFORM insta_ids_internal.require_trusted_shard(source), insta_ids_internal.require_trusted_shard(target);
    PERFORM insta_ids_internal.make_partitions(target, insta_ids_internal.partitions_json(source));
    -- This is a statement of its own, because it must see these partitions.
    PERFORM insta_ids_internal.require_columns_of(source, target), insta_ids_internal.report_other_ids(source, known, first);
    active := (
        SELECT jsonb_agg(jsonb_build_object('relation', r.relation, 'kind', a.kind, 'name', a.name,
            'always', CASE a.enabled WHEN 'A' THEN 'ALWAYS' END))
        FROM insta_ids_internal.shard_relation r
        JOIN (
            SELECT t.tgrelid, 'TRIGGER', t.tgname, t.tgenabled FROM pg_trigger t WHERE NOT t.tgisinternal
            UNION ALL SELECT w.ev_class, 'RULE', w.rulename, w.ev_enabled FROM pg_rewrite w
        ) a (relation, kind, name, enabled) ON a.relation = r.relation
        WHERE r.shard = target AND r.kind IN ('r', 'p') AND a.enabled IN ('O', 'A'));
    SET CONSTRAINTS ALL IMMEDIATE;
    FOR next IN SELECT * FROM jsonb_to_recordset(active) a (relation text, kind text, name name) LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE %s %I', next.relation, next.kind, next.name);
    END LOOP;
    PERFORM insta_ids_internal.clone_rows(source, target, known, first);
    FOR next IN SELECT * FROM jsonb_to_recordset(active) a (relation text, kind text, name name, always text) LOOP
        EXECUTE format('ALTER TABLE ONLY %s ENABLE %s %s %I', next.relation, next.always, next.kind, next.name);
    END LOOP;
END
$$;

-- Raises an error if a shard lacks a migration. A clone would get it with no rows, and then rows that it has not changed.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_migrated(shard integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lacking text := (
        SELECT m.name FROM insta_ids_internal.migration_status m WHERE m.shard = require_migrated.shard AND m.state <> 'applied'
        ORDER BY m.number LIMIT 1);
BEGIN
    IF lacking IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s lacks migration "%s"', shard, lacking),
            HINT = format('Apply it first: CALL insta_ids.migrate(%s, %1$s).', shard);
    END IF;
END
$$;

-- create_shard needs the caller's search_path.
CREATE OR REPLACE FUNCTION insta_ids.clone_shard(source integer, target integer, columns text[] DEFAULT '{}') RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    schema pg_catalog.name;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.lock_shards(ARRAY[source]);
    PERFORM insta_ids_internal.require_heaps(insta_ids_internal.schemas_of(ARRAY[source]), false);
    PERFORM insta_ids_internal.require_not_moving(source, source), insta_ids_internal.require_trusted_shard(source),
        insta_ids_internal.require_migrated(source);
    schema := insta_ids.create_shard(target);
    PERFORM insta_ids_internal.fill_shard(source, target, columns);
    RETURN schema;
END
$$;
COMMENT ON FUNCTION insta_ids.clone_shard(integer, integer, text[]) IS
    'creates a shard with the rows of another one, with ids of its own, and returns its schema';
