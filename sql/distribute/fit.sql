-- From one table to many shards: rows that the shards would refuse, found before anything is copied.

-- Returns why rows of a source do not fit into the shards, with one row for each reason: an ID that the CHECK of the shards refuses, NULL
-- in a column that is NOT NULL there, or a key that refers to no row. Reads the table only for what its own constraints do not ensure.
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
            HINT = 'Correct the rows. For IDs, drop the shards, add the migration again with a later ids_since, and create the shards again.';
    END IF;
END
$$;
