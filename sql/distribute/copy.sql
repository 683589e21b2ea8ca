-- From one table to many shards: rows are copied and compared.

-- Returns the values after which copy_rows() continues, for a comparison with the columns of the primary key, or NULL before the first
-- row. Without a type, they take those of the columns.
CREATE OR REPLACE FUNCTION insta_ids_internal.last_copied(going insta_ids_internal.distribution) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(v), ', ' ORDER BY place)
            FROM pg_catalog.unnest(going.copied_to) WITH ORDINALITY c (v, place));

-- Copies the next rows of a source, in the order of its primary key, into the shards. Returns how many rows were read. The
-- transaction is REPEATABLE READ, and apply_changes() was called in it. That leaves these rows to this call.
CREATE OR REPLACE FUNCTION insta_ids_internal.copy_rows(going insta_ids_internal.distribution, batch integer) RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    template CONSTANT text := insta_ids_internal.insert_template(
        going, 'pg_temp.insta_ids_page s WHERE s.insta_ids_shard = @shard@', false);
    after CONSTANT text := insta_ids_internal.last_copied(going);
    rows bigint;
    shard integer;
    last text[];
BEGIN
    EXECUTE format('CREATE TEMPORARY TABLE insta_ids_page ON COMMIT DROP AS SELECT %s AS insta_ids_shard, s.* FROM %s s %s ORDER BY %s LIMIT %s',
        insta_ids_internal.shard_expression(going.source, 's'), going.source,
        CASE WHEN after IS NOT NULL THEN format('WHERE (%s) > (%s)', insta_ids_internal.column_list(key, 's.'), after) END,
        insta_ids_internal.column_list(key, 's.'), batch);
    GET DIAGNOSTICS rows = ROW_COUNT;
    CREATE INDEX ON pg_temp.insta_ids_page (insta_ids_shard);
    PERFORM insta_ids_internal.require_shard_of_rows(going, format(
        'SELECT ROW(%s)::text FROM pg_temp.insta_ids_page p WHERE p.insta_ids_shard IS NULL LIMIT 1', insta_ids_internal.column_list(key, 'p.')));
    FOR shard IN EXECUTE 'SELECT DISTINCT p.insta_ids_shard FROM pg_temp.insta_ids_page p' LOOP
        EXECUTE format(replace(template, '@shard@', shard::text), insta_ids.schema_of(shard));
    END LOOP;
    EXECUTE format('SELECT ARRAY[%s] FROM pg_temp.insta_ids_page p ORDER BY %s LIMIT 1',
        (SELECT string_agg(format('p.%I::text', k.name), ', ' ORDER BY k.place) FROM unnest(key) WITH ORDINALITY k (name, place)),
        (SELECT string_agg(format('p.%I DESC', k.name), ', ' ORDER BY k.place) FROM unnest(key) WITH ORDINALITY k (name, place)))
    INTO last;
    DROP TABLE pg_temp.insta_ids_page;
    UPDATE insta_ids_internal.distribution d
    SET copied_to = coalesce(last, d.copied_to), rows_copied = d.rows_copied + rows, step_at = clock_timestamp(),
        step = CASE WHEN rows < batch THEN 'copied' ELSE d.step END
    WHERE d.source = going.source;
    RETURN rows;
END
$$;

-- Returns the query of the number of rows of a table and the sum of their hashes. A row is hashed by the texts of the columns
-- that the target has.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_query(going insta_ids_internal.distribution, shard text, relation text)
    RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN format('SELECT %s AS shard, count(*) AS rows, sum(hashtextextended(ROW(%s)::text, 0)) AS hash FROM %s s',
        shard, (SELECT string_agg(format('s.%I', c."column"), ', ') FROM insta_ids_internal.copied_columns(going) c), relation);
END
$$;

-- Brings changes to the shards, and compares the rows of a source with those in the shards. Raises an error if they are not the same.
-- The transaction is REPEATABLE READ.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_rows_in_shards(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    here record;
    there record;
    different text[] := '{}';
    differing integer := 0;
BEGIN
    RAISE NOTICE 'distribute: compares table %, % rows copied', going.source, going.rows_copied;
    PERFORM insta_ids_internal.apply_changes();
    EXECUTE format('CREATE TEMPORARY TABLE insta_ids_survey ON COMMIT DROP AS %s GROUP BY 1',
        insta_ids_internal.survey_query(going, insta_ids_internal.shard_expression(going.source, 's'), going.source::text));
    PERFORM insta_ids_internal.require_shard_of_rows(going, format('SELECT ROW(%s)::text FROM %s s WHERE %s IS NULL LIMIT 1',
        insta_ids_internal.column_list(insta_ids_internal.primary_key_of(going.source), 's.'), going.source,
        insta_ids_internal.shard_expression(going.source, 's'))) WHERE EXISTS (SELECT FROM pg_temp.insta_ids_survey s WHERE s.shard IS NULL);
    FOR number IN SELECT s FROM generate_series(0, (insta_ids_internal.require_config()).shards - 1) s LOOP
        EXECUTE format('SELECT s.rows, s.hash FROM pg_temp.insta_ids_survey s WHERE s.shard = %s', number) INTO here;
        EXECUTE insta_ids_internal.survey_query(going, number::text, insta_ids_internal.target_in(going.target, number)) INTO there;
        IF (coalesce(here.rows, 0), here.hash) IS DISTINCT FROM (there.rows, there.hash) THEN
            differing := differing + 1;
            IF differing <= 5 THEN
                different := different || format('Table %s has %s rows, of %s in the source that belong there.',
                    insta_ids_internal.target_in(going.target, number), there.rows, coalesce(here.rows, 0));
            END IF;
        END IF;
    END LOOP;
    DROP TABLE pg_temp.insta_ids_survey;
    IF differing > 0 THEN
        RAISE data_corrupted USING MESSAGE = format('rows of table %s are not the same in %s shards', going.source, differing),
            DETAIL = array_to_string(different, E'\n'),
            HINT = 'Another session has written to tables of the shards, or a trigger or partition of the source was dropped. Begin again after insta_ids.distribute_abort().';
    END IF;
    UPDATE insta_ids_internal.distribution d SET verified_at = transaction_timestamp() WHERE d.source = going.source;
END
$$;
