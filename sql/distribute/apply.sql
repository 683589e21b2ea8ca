-- From one table to many shards: changes of the sources are brought to the shards.

-- Raises an error if a query returns the primary key of a row of a source that has no shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_shard_of_rows(going insta_ids_internal.distribution, query text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lost text;
BEGIN
    EXECUTE query INTO lost;
    IF lost IS NOT NULL THEN
        RAISE data_exception USING MESSAGE = format('a row of table %s has no shard', going.source),
            DETAIL = format('The row with the primary key %s refers to no row of table %s.', lost, going.parent),
            HINT = 'Mend or delete the row, and call again.';
    END IF;
END
$$;

-- Returns the name of the temporary table of rows that apply_changes() brings to the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.affected_name(number integer) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('pg_temp.insta_ids_affected_%s', number);

-- Moves the noted changes of the sources or, if `of_targets` is true, of the targets, to a temporary table of this transaction. Returns
-- whether there are any. Without any, there is no such table.
CREATE OR REPLACE FUNCTION insta_ids_internal.take_changes(of_targets boolean) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.write_noted_changes();
    CREATE TEMPORARY TABLE insta_ids_taken (source regclass, key text[], placed_by text) ON COMMIT DROP;
    WITH taken AS (
        DELETE FROM insta_ids_internal.change c USING insta_ids_internal.noted_tables() t
        WHERE t.relation = c.relation AND t.is_target = of_targets
        RETURNING t.source, c.keys, c.placed_by, cardinality(c.keys) / cardinality(c.placed_by) AS width
    )
    INSERT INTO pg_temp.insta_ids_taken
    SELECT DISTINCT t.source, t.keys[(n - 1) * t.width + 1:n * t.width], t.placed_by[n]
    FROM taken t CROSS JOIN LATERAL generate_subscripts(t.placed_by, 1) n;
    IF NOT FOUND THEN
        DROP TABLE pg_temp.insta_ids_taken;
        RETURN false;
    END IF;
    RETURN true;
END
$$;

-- Returns the relations whose changes are noted, and the source of each one.
CREATE OR REPLACE FUNCTION insta_ids_internal.noted_tables() RETURNS TABLE (source regclass, relation regclass, is_target boolean)
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT d.source, p.relation, false
    FROM insta_ids_internal.distribution d CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(d.source)) p (relation)
    UNION ALL
    SELECT d.source, p.relation, true
    FROM insta_ids_internal.distribution d
    CROSS JOIN LATERAL insta_ids_internal.targets_of(d) t
    CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(t.relation)) p (relation);
END;

-- Deletes all noted changes.
CREATE OR REPLACE FUNCTION insta_ids_internal.forget_changes() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.write_noted_changes();
    DELETE FROM insta_ids_internal.change c USING insta_ids_internal.noted_tables() t WHERE t.relation = c.relation;
END;

-- Returns what goes into a FROM clause for the changes of a source that take_changes() took: their primary keys, and the values
-- `insta_ids_key` of the column that says the shard, in their types.
CREATE OR REPLACE FUNCTION insta_ids_internal.taken_rows(going insta_ids_internal.distribution, alias text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT pg_catalog.format('(SELECT %s, c.placed_by::%s AS insta_ids_key FROM pg_temp.insta_ids_taken c WHERE c.source = %s::pg_catalog.oid) %s',
            pg_catalog.string_agg(pg_catalog.format('c.key[%s]::%s AS %I', k.place,
                insta_ids_internal.base_type_name(going.source, k.name), k.name), ', ' ORDER BY k.place),
            insta_ids_internal.base_type_name(going.source, going.key), going.source::pg_catalog.oid, alias)
        FROM pg_catalog.unnest(insta_ids_internal.primary_key_of(going.source)) WITH ORDINALITY k (name, place));

-- Makes the temporary table of rows of a source that have to be brought to the shards: their primary keys, the shards in which
-- each row `was` since changes were last applied, and the shard in which it is `now`. NULL stands for no shard. The rows are those
-- that have changed, and those whose parent has gone to another shard. If `whole` is true, they are also all that refer to a row
-- of another such table. Of a row that changed several times, `was` also has shards to which it was on its way. Rows that copy_rows()
-- has not reached are left to it.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_affected(going insta_ids_internal.distribution, whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    keys CONSTANT text := insta_ids_internal.column_list(key);
    affected CONSTANT text := insta_ids_internal.affected_name(going.number);
    parent insta_ids_internal.distribution;
    parent_key text;
    -- Before: the shard of the row in the changes c, whose parent in its own affected table is p.
    was text := format('ARRAY[%s]', insta_ids_internal.shard_of_key(going, 'c.insta_ids_key'));
    parents text := '';
    reached CONSTANT text := CASE WHEN going.step <> 'copying' THEN 'true' WHEN going.copied_to IS NULL THEN 'false'
        ELSE format('(%s) <= (%s)', insta_ids_internal.column_list(key, 's.'), insta_ids_internal.last_copied(going)) END;
    reference record;
    query text;
BEGIN
    IF going.parent IS NOT NULL THEN
        SELECT * INTO parent FROM insta_ids_internal.distribution d WHERE d.source = going.parent;
        parent_key := quote_ident((insta_ids_internal.primary_key_of(parent.source))[1]);
        parents := format('LEFT JOIN %s p ON p.%s = c.insta_ids_key', insta_ids_internal.affected_name(parent.number), parent_key);
        -- A parent that has not changed is in the shard in which it was.
        was := format('CASE WHEN p.%1$s IS NOT NULL THEN p.insta_ids_was ELSE ARRAY[(SELECT %2$s FROM %3$s x WHERE x.%1$s = c.insta_ids_key)] END',
            parent_key, insta_ids_internal.shard_expression(parent.source, 'x'), parent.source);
    END IF;
    query := format('SELECT %1$s, CASE WHEN c.insta_ids_key IS NOT NULL THEN %2$s END AS insta_ids_was,'
        || ' CASE WHEN s.%3$I IS NOT NULL THEN %4$s END AS insta_ids_now FROM %5$s LEFT JOIN %6$s s ON (%7$s) = (%1$s) %8$s'
        || ' WHERE s.%3$I IS NULL OR %9$s',
        insta_ids_internal.column_list(key, 'c.'), was, key[1], insta_ids_internal.shard_expression(going.source, 's'),
        insta_ids_internal.taken_rows(going, 'c'), going.source, insta_ids_internal.column_list(key, 's.'), parents, reached);
    IF going.parent IS NOT NULL THEN
        query := query || format(' UNION ALL SELECT %s, p.insta_ids_was, p.insta_ids_now FROM %s p JOIN %s s ON s.%I = p.%s WHERE %s%s',
            insta_ids_internal.column_list(key, 's.'), insta_ids_internal.affected_name(parent.number), going.source, going.key,
            parent_key, reached, CASE WHEN NOT whole THEN ' AND p.insta_ids_was IS DISTINCT FROM ARRAY[p.insta_ids_now]' ELSE '' END);
    END IF;
    IF whole THEN
        FOR reference IN
            SELECT r.columns, r.referred_columns, d.number
            FROM insta_ids_internal.references_of_distribution() r
            JOIN insta_ids_internal.distribution d ON d.source = r.referred_source AND d.step <> 'registered'
            WHERE r.source = going.source AND NOT r.is_of_source AND r.is_ordered
        LOOP
            query := query || format(' UNION ALL SELECT %1$s, ARRAY[s.insta_ids_shard], s.insta_ids_shard FROM %2$s p'
                || ' JOIN (SELECT s.*, %3$s AS insta_ids_shard FROM %4$s s) s ON (%5$s) = (%6$s) WHERE %7$s',
                insta_ids_internal.column_list(key, 's.'), insta_ids_internal.affected_name(reference.number),
                insta_ids_internal.shard_expression(going.source, 's'), going.source,
                insta_ids_internal.column_list(reference.columns, 's.'),
                insta_ids_internal.column_list(reference.referred_columns, 'p.'), reached);
        END LOOP;
    END IF;
    EXECUTE format('CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT %s,'
        || ' coalesce(array_agg(DISTINCT w.w) FILTER (WHERE w.w IS NOT NULL), ''{}'') AS insta_ids_was, max(a.insta_ids_now) AS insta_ids_now'
        || ' FROM (%s) a LEFT JOIN LATERAL unnest(a.insta_ids_was) w (w) ON true GROUP BY %2$s',
        split_part(affected, '.', 2), keys, query);
    -- Without statistics, joins with the tables of the shards would read these as a whole.
    EXECUTE format('ANALYZE %s', affected);
    PERFORM insta_ids_internal.require_shard_of_rows(going, format('SELECT ROW(%s)::text FROM %s s JOIN %s a ON (%1$s) = (%4$s)'
        || ' WHERE a.insta_ids_now IS NULL LIMIT 1', insta_ids_internal.column_list(key, 's.'), going.source, affected,
        insta_ids_internal.column_list(key, 'a.')));
END
$$;

-- Deletes affected rows of a source from the shards in which they were: those that are in another shard now or nowhere. If
-- `whole` is true, it deletes all affected rows.
CREATE OR REPLACE FUNCTION insta_ids_internal.delete_affected(going insta_ids_internal.distribution, whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    affected CONSTANT text := insta_ids_internal.affected_name(going.number);
    shard integer;
BEGIN
    FOR shard IN
        EXECUTE format('SELECT DISTINCT w.shard FROM %s a, unnest(a.insta_ids_was) w (shard) WHERE %L OR w.shard IS DISTINCT FROM a.insta_ids_now',
            affected, whole)
    LOOP
        EXECUTE format('DELETE FROM %1$s t USING %2$s a WHERE %3$s = ANY (a.insta_ids_was)'
            || ' AND (%4$L OR %3$s IS DISTINCT FROM a.insta_ids_now) AND (%5$s) = (%6$s)',
            insta_ids_internal.target_in(going.target, shard), affected, shard, whole,
            insta_ids_internal.column_list(key, 't.'), insta_ids_internal.column_list(key, 'a.'));
    END LOOP;
END
$$;

-- Writes affected rows of a source into the shards in which they are now.
CREATE OR REPLACE FUNCTION insta_ids_internal.write_affected(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    affected CONSTANT text := insta_ids_internal.affected_name(going.number);
    template CONSTANT text := insta_ids_internal.insert_template(going, format('%s a JOIN %s s ON (%s) = (%s) WHERE a.insta_ids_now = @shard@',
        affected, going.source, insta_ids_internal.column_list(key, 's.'), insta_ids_internal.column_list(key, 'a.')), true);
    shard integer;
BEGIN
    FOR shard IN EXECUTE format('SELECT DISTINCT a.insta_ids_now FROM %s a WHERE a.insta_ids_now IS NOT NULL', affected) LOOP
        EXECUTE format(replace(template, '@shard@', shard::text), insta_ids.schema_of(shard));
    END LOOP;
END
$$;

-- Brings all noted changes to the shards. The statements of one call must have one snapshot, or no session may write to the
-- sources. So the caller's transaction is REPEATABLE READ, or has locked the sources.
CREATE OR REPLACE FUNCTION insta_ids_internal.apply_all_changes(whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
BEGIN
    FOR going IN SELECT * FROM insta_ids_internal.distribution d WHERE d.step <> 'registered' ORDER BY d.number LOOP
        PERFORM insta_ids_internal.find_affected(going, whole);
    END LOOP;
    -- A row that others refer to comes before them and goes after them, so nothing refers to a row that goes. If all rows are
    -- written anew, they must go first.
    PERFORM insta_ids_internal.delete_affected(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.step <> 'registered' ORDER BY d.number DESC) o WHERE whole;
    PERFORM insta_ids_internal.write_affected(o.d)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.step <> 'registered' ORDER BY d.number) o;
    PERFORM insta_ids_internal.delete_affected(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.step <> 'registered' ORDER BY d.number DESC) o WHERE NOT whole;
    FOR going IN SELECT * FROM insta_ids_internal.distribution d WHERE d.step <> 'registered' LOOP
        EXECUTE format('DROP TABLE %s', insta_ids_internal.affected_name(going.number));
    END LOOP;
END
$$;

-- Does what apply_all_changes() does, if there are changes. A row is usually written over. This fails, for example, if a row has
-- got a unique value that another row had before. Then all affected rows, and all that refer to them, are deleted and inserted.
CREATE OR REPLACE FUNCTION insta_ids_internal.apply_changes() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.take_changes(false) THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM insta_ids_internal.apply_all_changes(false);
    EXCEPTION WHEN unique_violation OR foreign_key_violation OR exclusion_violation THEN
        PERFORM insta_ids_internal.apply_all_changes(true);
    END;
    DROP TABLE pg_temp.insta_ids_taken;
END
$$;
