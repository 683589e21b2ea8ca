-- From one table to many shards: rows that the shards would refuse, found before anything is copied.

-- Returns, for each CHECK of a target that the source does not have, or that is not validated there, a row that violates it. CHECKs of IDs
-- are left out, and so are those of columns that the shards fill by themselves.
CREATE OR REPLACE FUNCTION insta_ids_internal.rows_that_violate(going insta_ids_internal.distribution, row_key text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    target CONSTANT regclass := insta_ids_internal.target_in(going.target, 0)::regclass;
    columns CONSTANT text := (
        SELECT string_agg(format('s.%I%s AS %1$I', c."column", '::pg_catalog.text::' || format(c.cast_to, insta_ids.schema_of(0))), ', ')
        FROM insta_ids_internal.copied_columns(going) c);
    next record;
    found text;
BEGIN
    FOR next IN
        SELECT k.conname AS name, pg_get_expr(k.conbin, k.conrelid) AS condition
        FROM pg_constraint k
        WHERE k.conrelid = target AND k.contype = 'c'
            AND k.conname NOT IN (SELECT m."check" FROM insta_ids_internal.minting_columns(ARRAY[0]) m WHERE m.relation = target AND m."check" IS NOT NULL)
            AND insta_ids_internal.names_of_columns(target, k.conkey) <@ ARRAY(SELECT c."column" FROM insta_ids_internal.copied_columns(going) c)
            AND NOT EXISTS (
                SELECT FROM pg_constraint s
                WHERE s.conrelid = going.source AND s.contype = 'c' AND s.convalidated
                    AND pg_get_expr(s.conbin, s.conrelid) = pg_get_expr(k.conbin, k.conrelid))
    LOOP
        BEGIN
            -- The condition can name the whole row by the name of its table.
            EXECUTE format('SELECT %5$I.insta_ids_key FROM (SELECT %1$s AS insta_ids_key, %2$s FROM %3$s s) %5$I WHERE NOT (%4$s) LIMIT 1',
                row_key, columns, going.source, next.condition, going.target) INTO found;
            IF found IS NOT NULL THEN
                RETURN NEXT format('The row with the primary key %s violates CHECK "%s" of the shards.', found, next.name);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT format('CHECK "%s" of the shards fails for a row: %s', next.name, SQLERRM);
        END;
    END LOOP;
END
$$;

-- Returns, for each foreign key of a target that can refer to a row of another shard, a row that does. For each that no validated foreign
-- key of the source ensures, it returns a row that refers to no row.
CREATE OR REPLACE FUNCTION insta_ids_internal.rows_that_cross(going insta_ids_internal.distribution, row_key text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    next record;
    found text;
BEGIN
    FOR next IN
        SELECT r.name, r.referred_source AS referred, insta_ids_internal.column_list(r.columns, 's.') AS columns,
               insta_ids_internal.column_list(r.referred_columns, 'r.') AS referred_columns,
               NOT insta_ids_internal.is_within_shard(going, d, r.columns, r.referred_columns) AS can_cross,
               NOT EXISTS (
                   SELECT FROM pg_constraint c
                   WHERE c.conrelid = going.source AND c.confrelid = r.referred_source AND c.contype = 'f' AND c.convalidated
                       AND insta_ids_internal.names_of_columns(c.conrelid, c.conkey) = r.columns
                       AND insta_ids_internal.names_of_columns(c.confrelid, c.confkey) = r.referred_columns
                       AND NOT insta_ids_internal.is_special_key(c.oid)) AS can_be_lost
        FROM insta_ids_internal.references_of_distribution() r
        JOIN insta_ids_internal.distribution d ON d.source = r.referred_source
        WHERE r.source = going.source AND NOT r.is_of_source
            AND (going.parent = r.referred_source AND r.columns = ARRAY[going.key]) IS NOT TRUE
    LOOP
        IF next.can_be_lost THEN
            EXECUTE format('SELECT %s FROM %s s WHERE (%s) IS NOT NULL AND NOT EXISTS (SELECT FROM %s r WHERE (%3$s) = (%5$s)) LIMIT 1', row_key,
                going.source, next.columns, next.referred, next.referred_columns) INTO found;
            IF found IS NOT NULL THEN
                RETURN NEXT format('The row with the primary key %s refers to no row of table %s.', found, next.referred);
            END IF;
        END IF;
        CONTINUE WHEN NOT next.can_cross;
        EXECUTE format('SELECT %s FROM %s s JOIN %s r ON (%s) = (%s) WHERE %s <> %s LIMIT 1', row_key, going.source, next.referred,
            next.columns, next.referred_columns, insta_ids_internal.shard_expression(going.source, 's'),
            insta_ids_internal.shard_expression(next.referred, 'r')) INTO found;
        IF found IS NOT NULL THEN
            RETURN NEXT format('The row with the primary key %s refers to a row of table %s in another shard, and foreign key "%s" of the shards does not allow that.',
                found, next.referred, next.name);
        END IF;
    END LOOP;
END
$$;

-- Returns why rows of a source do not fit into the shards, with one row for each reason. Reads the table only for what its own constraints
-- do not ensure.
CREATE OR REPLACE FUNCTION insta_ids_internal.misfits_of(going insta_ids_internal.distribution) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
    target CONSTANT regclass := insta_ids_internal.target_in(going.target, 0)::regclass;
    row_key CONSTANT text := format('ROW(%s)::text', insta_ids_internal.column_list(insta_ids_internal.primary_key_of(going.source), 's.'));
    next record;
    found text;
BEGIN
    FOR next IN
        SELECT m."column" AS name, m.since
        FROM insta_ids_internal.minting_columns(ARRAY[0]) m
        JOIN pg_attribute a ON a.attrelid = going.source AND a.attname = m."column" AND a.attnum > 0
        WHERE m.relation = target AND m."check" IS NOT NULL
    LOOP
        EXECUTE format('SELECT s.%1$I::text FROM %2$s s WHERE s.%1$I >= %3$s AND insta_ids_internal.id_shard(s.%1$I, %4$L) <> %5$s LIMIT 1',
            next.name, going.source, next.since, config.layout, insta_ids_internal.shard_expression(going.source, 's')) INTO found;
        IF found IS NOT NULL THEN
            RETURN NEXT format('Column "%s" has the value %s, which is no ID of the row''s shard. The shards accept other IDs below %s.',
                next.name, found, next.since);
        END IF;
    END LOOP;
    FOR next IN
        SELECT s.attname AS name
        FROM pg_attribute t JOIN pg_attribute s ON s.attrelid = going.source AND s.attname = t.attname AND s.attnum > 0
        WHERE t.attrelid = target AND t.attnum > 0 AND NOT t.attisdropped AND t.attnotnull AND t.attgenerated = '' AND NOT s.attnotnull
        ORDER BY t.attnum
    LOOP
        EXECUTE format('SELECT %s FROM %s s WHERE s.%I IS NULL LIMIT 1', row_key, going.source, next.name) INTO found;
        IF found IS NOT NULL THEN
            RETURN NEXT format('Column "%s" is NULL in the row with the primary key %s, and NOT NULL in the shards.', next.name, found);
        END IF;
    END LOOP;
    IF going.parent IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_constraint c
        WHERE c.conrelid = going.source AND c.confrelid = going.parent AND c.contype = 'f' AND c.convalidated
            AND insta_ids_internal.names_of_columns(c.conrelid, c.conkey) = ARRAY[going.key])
    THEN
        EXECUTE format('SELECT %s FROM %s s WHERE NOT EXISTS (SELECT FROM %s p WHERE p.%I = s.%I) LIMIT 1', row_key, going.source,
            going.parent, (insta_ids_internal.primary_key_of(going.parent))[1], going.key) INTO found;
        IF found IS NOT NULL THEN
            RETURN NEXT format('The row with the primary key %s refers to no row of table %s.', found, going.parent);
        END IF;
    END IF;
    RETURN QUERY
    SELECT insta_ids_internal.rows_that_violate(going, row_key) UNION ALL SELECT insta_ids_internal.rows_that_cross(going, row_key);
END
$$;

-- Raises an error, with all reasons, if rows of the registered tables do not fit into the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_rows_that_fit() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('%s: %s', d.source, m.reason)
        FROM insta_ids_internal.distribution d CROSS JOIN LATERAL insta_ids_internal.misfits_of(d) m (reason) ORDER BY d.number);
BEGIN
    IF cardinality(reasons) > 0 THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'rows of the registered tables do not fit into the shards',
            DETAIL = array_to_string(reasons, E'\n'),
            HINT = 'Correct the rows. Give new IDs to rows that shards have made before. If other IDs are too large, drop the shards, add the migration again with a later ids_since, and create the shards again.';
    END IF;
END
$$;
