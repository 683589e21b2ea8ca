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

-- Makes the temporary table of rows of a source that have to be brought to the shards: their primary keys, the shard in which
-- each row `was` when changes were last applied, and the shard in which it is `now`. NULL stands for no shard. The rows are
-- those that have changed, and those whose parent has gone to another shard. If `whole` is true, they are also all that refer
-- to a row of another such table.
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
    was text := insta_ids_internal.shard_of_key(going, 'c.insta_ids_key');
    parents text := '';
    reference record;
    query text;
BEGIN
    IF going.parent IS NOT NULL THEN
        SELECT * INTO parent FROM insta_ids_internal.distribution d WHERE d.source = going.parent;
        parent_key := quote_ident((insta_ids_internal.primary_key_of(parent.source))[1]);
        parents := format('LEFT JOIN %s p ON p.%s = c.insta_ids_key', insta_ids_internal.affected_name(parent.number), parent_key);
        -- A parent that has not changed is in the shard in which it was.
        was := format('CASE WHEN p.%1$s IS NOT NULL THEN p.insta_ids_was ELSE (SELECT %2$s FROM %3$s x WHERE x.%1$s = c.insta_ids_key) END',
            parent_key, insta_ids_internal.shard_expression(parent.source, 'x'), parent.source);
    END IF;
    -- Of several changes of a row, the first one has the key that it had before all of them.
    query := format('SELECT 1 AS insta_ids_place, %1$s, CASE WHEN c.insta_ids_key IS NOT NULL THEN %2$s END AS insta_ids_was,'
        || ' CASE WHEN s.%3$I IS NOT NULL THEN %4$s END AS insta_ids_now'
        || ' FROM (SELECT DISTINCT ON (%5$s) %5$s, insta_ids_key FROM %6$s WHERE insta_ids_shard IS NULL ORDER BY %5$s, insta_ids_number) c'
        || ' LEFT JOIN %7$s s ON (%8$s) = (%1$s) %9$s',
        insta_ids_internal.column_list(key, 'c.'), was, key[1], insta_ids_internal.shard_expression(going.source, 's'), keys,
        going.changes, going.source, insta_ids_internal.column_list(key, 's.'), parents);
    IF going.parent IS NOT NULL THEN
        query := query || format(' UNION ALL SELECT 2, %s, p.insta_ids_was, p.insta_ids_now FROM %s p JOIN %s s ON s.%I = p.%s%s',
            insta_ids_internal.column_list(key, 's.'), insta_ids_internal.affected_name(parent.number), going.source, going.key,
            parent_key, CASE WHEN NOT whole THEN ' WHERE p.insta_ids_was IS DISTINCT FROM p.insta_ids_now' ELSE '' END);
    END IF;
    IF whole THEN
        FOR reference IN
            SELECT r.columns, r.referred_columns, d.number
            FROM insta_ids_internal.references_of_distribution() r
            JOIN insta_ids_internal.distribution d ON d.source = r.referred_source AND d.changes IS NOT NULL
            WHERE r.source = going.source AND r.referring <> r.source AND r.is_ordered
        LOOP
            query := query || format(' UNION ALL SELECT 3, %1$s, s.insta_ids_shard, s.insta_ids_shard FROM %2$s p'
                || ' JOIN (SELECT s.*, %3$s AS insta_ids_shard FROM %4$s s) s ON (%5$s) = (%6$s)',
                insta_ids_internal.column_list(key, 's.'), insta_ids_internal.affected_name(reference.number),
                insta_ids_internal.shard_expression(going.source, 's'), going.source,
                insta_ids_internal.column_list(reference.columns, 's.'),
                insta_ids_internal.column_list(reference.referred_columns, 'p.'));
        END LOOP;
    END IF;
    EXECUTE format('CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT DISTINCT ON (%s) %2$s, insta_ids_was, insta_ids_now FROM (%s) a ORDER BY %2$s, insta_ids_place',
        split_part(affected, '.', 2), keys, query);
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
    gone CONSTANT text := CASE WHEN whole THEN 'true' ELSE 'a.insta_ids_was IS DISTINCT FROM a.insta_ids_now' END;
    shard integer;
BEGIN
    FOR shard IN EXECUTE format('SELECT DISTINCT a.insta_ids_was FROM %s a WHERE a.insta_ids_was IS NOT NULL AND %s', affected, gone) LOOP
        EXECUTE format('DELETE FROM %s t USING %s a WHERE a.insta_ids_was = %s AND %s AND (%s) = (%s)',
            insta_ids_internal.target_in(going.target, shard), affected, shard, gone,
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
        affected, going.source, insta_ids_internal.column_list(key, 's.'), insta_ids_internal.column_list(key, 'a.')), 'UPDATE');
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
    FOR going IN SELECT * FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL ORDER BY d.number LOOP
        PERFORM insta_ids_internal.find_affected(going, whole);
    END LOOP;
    -- A row that others refer to comes before them and goes after them, so nothing refers to a row that goes. If all rows are
    -- written anew, they must go first.
    PERFORM insta_ids_internal.delete_affected(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL ORDER BY d.number DESC) o WHERE whole;
    PERFORM insta_ids_internal.write_affected(o.d)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL ORDER BY d.number) o;
    PERFORM insta_ids_internal.delete_affected(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL ORDER BY d.number DESC) o WHERE NOT whole;
    FOR going IN SELECT * FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL ORDER BY d.number LOOP
        EXECUTE format('DELETE FROM %s WHERE insta_ids_shard IS NULL', going.changes);
        EXECUTE format('DROP TABLE %s', insta_ids_internal.affected_name(going.number));
    END LOOP;
END
$$;

-- Does what apply_all_changes() does, if there are changes. A row is usually written over. This fails, for example, if a row has
-- got a unique value that another row had before. Then all affected rows, and all that refer to them, are deleted and inserted.
CREATE OR REPLACE FUNCTION insta_ids_internal.apply_changes() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changes regclass;
    has_changes boolean;
BEGIN
    FOR changes IN SELECT d.changes FROM insta_ids_internal.distribution d WHERE d.changes IS NOT NULL LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', changes) INTO has_changes;
        EXIT WHEN has_changes;
    END LOOP;
    IF has_changes THEN
        BEGIN
            PERFORM insta_ids_internal.apply_all_changes(false);
        EXCEPTION WHEN unique_violation OR foreign_key_violation OR exclusion_violation THEN
            PERFORM insta_ids_internal.apply_all_changes(true);
        END;
    END IF;
END
$$;
