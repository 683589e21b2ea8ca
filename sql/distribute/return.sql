-- From one table to many shards: the way back.

-- Makes changes of the targets of a source noted from now on.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_return(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    columns CONSTANT text := insta_ids_internal.noted_columns(going, true);
    target regclass;
BEGIN
    -- As in begin_capture().
    DELETE FROM insta_ids_internal.change c USING insta_ids_internal.noted_tables() t
    WHERE t.relation = c.relation AND t.source = going.source AND t.is_target;
    FOR target IN SELECT t.relation FROM insta_ids_internal.targets_of(going) t LOOP
        EXECUTE format('CREATE TRIGGER insta_ids_return AFTER INSERT OR UPDATE OR DELETE ON %s'
            || ' FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.note_change(%s)', target, columns);
        PERFORM insta_ids_internal.guard_captured(target, 'insta_ids_return');
    END LOOP;
END
$$;

-- Ends what begin_return began. The caller has locked the targets.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_return(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF going.has_way_back THEN
        PERFORM insta_ids_internal.drop_captured(t.relation, 'insta_ids_return') FROM insta_ids_internal.targets_of(going) t;
    END IF;
END
$$;

-- Returns the columns of a source that can be written, and that the shards have.
CREATE OR REPLACE FUNCTION insta_ids_internal.returned_columns(going insta_ids_internal.distribution) RETURNS name[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT a.attname FROM pg_attribute a
        JOIN pg_attribute b ON b.attrelid = insta_ids_internal.target_in(going.target, 0)::regclass AND b.attname = a.attname
            AND NOT b.attisdropped
        WHERE a.attrelid = going.source AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum);

-- Makes the temporary table of changed rows as they are in the shards, in the columns of the source. Each key is looked for in
-- all shards, as a row with it may have gone from one to another.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_returned(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    returned CONSTANT text := insta_ids_internal.affected_name(going.number);
    columns CONSTANT name[] := insta_ids_internal.returned_columns(going);
    vals CONSTANT text := (
        SELECT string_agg(format(CASE WHEN a.atttypid = b.atttypid THEN 't.%I' ELSE 't.%I::pg_catalog.text::%s' END, c.name,
            format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY c.place)
        FROM unnest(columns) WITH ORDINALITY c (name, place)
        JOIN pg_attribute a ON a.attrelid = going.source AND a.attname = c.name
        JOIN pg_attribute b ON b.attrelid = insta_ids_internal.target_in(going.target, 0)::regclass AND b.attname = c.name);
    target record;
    twice record;
BEGIN
    EXECUTE format('CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT %s, 0 AS insta_ids_shard FROM %s s LIMIT 0',
        split_part(returned, '.', 2), insta_ids_internal.column_list(columns, 's.'), going.source);
    FOR target IN SELECT * FROM insta_ids_internal.targets_of(going) LOOP
        EXECUTE format('INSERT INTO %s (%s, insta_ids_shard) SELECT %s, %s FROM %s t WHERE (%s) IN (SELECT %s FROM %s)', returned,
            insta_ids_internal.column_list(columns), vals, target.shard, target.relation, insta_ids_internal.column_list(key, 't.'),
            insta_ids_internal.column_list(key, 'c.'), insta_ids_internal.taken_rows(going, 'c'));
    END LOOP;
    EXECUTE format('SELECT ROW(%s)::text AS key, array_agg(r.insta_ids_shard ORDER BY r.insta_ids_shard) AS shards FROM %s r'
        || ' GROUP BY %1$s HAVING count(*) > 1 LIMIT 1', insta_ids_internal.column_list(key, 'r.'), returned) INTO twice;
    IF twice.shards IS NOT NULL THEN
        RAISE unique_violation USING MESSAGE = format('table %s cannot have the primary key %s twice', going.source, twice.key),
            DETAIL = format('Shards %s have a row with it.', array_to_string(twice.shards, ' and ')),
            HINT = 'Give one of the rows another key, or delete it, and call again.';
    END IF;
END
$$;

-- Notes all rows of a source that refer to noted rows of other sources, as if they had changed.
CREATE OR REPLACE FUNCTION insta_ids_internal.note_referring(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT text := (
        SELECT string_agg(format('%I::text', k.name), ', ' ORDER BY k.place)
        FROM unnest(insta_ids_internal.primary_key_of(going.source)) WITH ORDINALITY k (name, place));
    reference record;
BEGIN
    FOR reference IN
        SELECT r.columns, r.referred_columns, d.source, insta_ids_internal.taken_rows(d, 'c') AS taken,
               insta_ids_internal.primary_key_of(d.source) AS referred_key
        FROM insta_ids_internal.references_of_distribution() r
        JOIN insta_ids_internal.distribution d ON d.source = r.referred AND d.source <> going.source
        WHERE r.referring = going.source
    LOOP
        EXECUTE format('INSERT INTO pg_temp.insta_ids_taken (source, key) SELECT %L::regclass, ARRAY[%s] FROM %s WHERE (%s) IN ('
            || 'SELECT %s FROM %s r JOIN %s ON (%s) = (%s))', going.source, key, going.source,
            insta_ids_internal.column_list(reference.columns), insta_ids_internal.column_list(reference.referred_columns, 'r.'),
            reference.source, reference.taken, insta_ids_internal.column_list(reference.referred_key, 'r.'),
            insta_ids_internal.column_list(reference.referred_key, 'c.'));
    END LOOP;
END
$$;

-- Deletes noted rows of a source. Unless `whole` is true, those that are in a shard stay.
CREATE OR REPLACE FUNCTION insta_ids_internal.delete_returned(going insta_ids_internal.distribution, whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
BEGIN
    EXECUTE format('DELETE FROM %s s WHERE (%s) IN (SELECT %s FROM %s)'
        || ' AND (%L OR NOT EXISTS (SELECT FROM %s r WHERE (%s) = (%2$s)))', going.source, insta_ids_internal.column_list(key, 's.'),
        insta_ids_internal.column_list(key, 'c.'), insta_ids_internal.taken_rows(going, 'c'), whole, insta_ids_internal.affected_name(going.number),
        insta_ids_internal.column_list(key, 'r.'));
END
$$;

-- Writes noted rows, as they are in the shards, into a source.
CREATE OR REPLACE FUNCTION insta_ids_internal.write_returned(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    columns CONSTANT name[] := insta_ids_internal.returned_columns(going);
    -- The key is written, too: its value can be equal to the old one and have another text.
    changes CONSTANT text := (
        SELECT string_agg(format('%I = excluded.%1$I', c), ', ')
        FROM unnest(columns) c JOIN pg_attribute a ON a.attrelid = going.source AND a.attname = c WHERE a.attidentity <> 'a');
BEGIN
    EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM %s ON CONFLICT (%s) DO %s', going.source,
        insta_ids_internal.column_list(columns), insta_ids_internal.affected_name(going.number), insta_ids_internal.column_list(key),
        coalesce('UPDATE SET ' || changes, 'NOTHING'));
END
$$;

-- Brings the noted changes of the shards to the sources, in the order of apply_all_changes().
CREATE OR REPLACE FUNCTION insta_ids_internal.return_all_changes(whole boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
BEGIN
    FOR going IN SELECT * FROM insta_ids_internal.distribution d ORDER BY d.number LOOP
        IF whole THEN
            PERFORM insta_ids_internal.note_referring(going);
        END IF;
        PERFORM insta_ids_internal.find_returned(going);
    END LOOP;
    PERFORM insta_ids_internal.delete_returned(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d ORDER BY d.number DESC) o WHERE whole;
    PERFORM insta_ids_internal.write_returned(o.d) FROM (SELECT d FROM insta_ids_internal.distribution d ORDER BY d.number) o;
    PERFORM insta_ids_internal.delete_returned(o.d, whole)
    FROM (SELECT d FROM insta_ids_internal.distribution d ORDER BY d.number DESC) o WHERE NOT whole;
    FOR going IN SELECT * FROM insta_ids_internal.distribution d LOOP
        EXECUTE format('DROP TABLE %s', insta_ids_internal.affected_name(going.number));
    END LOOP;
    -- Before triggers are enabled again.
    SET CONSTRAINTS ALL IMMEDIATE;
END
$$;

-- Does what return_all_changes() does. The transaction is as for apply_all_changes(), with regard to the targets. No trigger of the
-- sources fires, as those of the shards have fired. A foreign key that the shards do not have acts again.
CREATE OR REPLACE FUNCTION insta_ids_internal.return_changes() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
    undo text[] := '{}';
    statement text;
BEGIN
    IF NOT insta_ids_internal.take_changes(true) THEN
        RETURN;
    END IF;
    FOR next IN
        SELECT p.relation, t.tgname, CASE t.tgenabled WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE' END AS state
        FROM insta_ids_internal.distribution d
        CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(d.source)) p (relation)
        JOIN pg_trigger t ON t.tgrelid = p.relation AND NOT t.tgisinternal AND t.tgenabled <> 'D'
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER %I', next.relation, next.tgname);
        undo := undo || format('ALTER TABLE ONLY %s %s TRIGGER %I', next.relation, next.state, next.tgname);
    END LOOP;
    BEGIN
        PERFORM insta_ids_internal.return_all_changes(false);
    EXCEPTION WHEN unique_violation OR foreign_key_violation OR exclusion_violation THEN
        PERFORM insta_ids_internal.return_all_changes(true);
    END;
    FOREACH statement IN ARRAY undo LOOP
        EXECUTE statement;
    END LOOP;
    DROP TABLE pg_temp.insta_ids_taken;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.distribute_abort(lock_timeout interval DEFAULT '10s', attempt interval DEFAULT '100ms') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET lock_timeout = 0 SET jit = off SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET extra_float_digits = 1
AS $$
DECLARE
    going insta_ids_internal.distribution[];
    one insta_ids_internal.distribution;
    shards CONSTANT integer[] := ARRAY(SELECT s.shard FROM insta_ids_internal.shard s ORDER BY s.shard);
    tables text[];
    is_switched boolean;
    table_names text;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids_internal.distribution) THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.require_distributable(ARRAY(SELECT d FROM insta_ids_internal.distribution d));
    is_switched := EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step = 'switched');
    IF is_switched AND EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE NOT d.has_way_back) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'writers were switched to the shards without a way back',
            HINT = 'Call insta_ids.distribute_finish().';
    END IF;
    -- A table of which nothing was copied yet stays unlocked.
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(
            SELECT p FROM insta_ids_internal.distribution d, unnest(insta_ids_internal.with_partitions(d.source)) p WHERE d.step <> 'registered'
            UNION SELECT t.relation FROM insta_ids_internal.distribution d, insta_ids_internal.targets_of(d) t WHERE d.step <> 'registered'
            UNION SELECT insta_ids_internal.tables_of_keys() WHERE is_switched
            ORDER BY 1),
        'ACCESS EXCLUSIVE', '{}', 'the distribution', lock_timeout, attempt);
    IF is_switched THEN
        PERFORM insta_ids_internal.return_changes();
    END IF;
    tables := ARRAY(
        SELECT string_agg(t.relation::text, ', ') FROM insta_ids_internal.distribution d
        CROSS JOIN LATERAL insta_ids_internal.targets_of(d) t
        JOIN pg_class c ON c.oid = t.relation
        -- An empty table of which nothing was copied yet can refer to one of the others.
        WHERE CASE WHEN d.step <> 'registered' THEN true
            WHEN c.relkind = 'r' AND EXISTS (SELECT FROM insta_ids_internal.distribution o WHERE o.step <> 'registered')
            THEN NOT insta_ids_internal.has_rows(c.oid) END GROUP BY t.shard ORDER BY t.shard);
    going := ARRAY(SELECT d FROM insta_ids_internal.distribution d ORDER BY d.number DESC);
    PERFORM insta_ids_internal.forget_changes();
    -- Without these rows, the event triggers allow the statements below.
    DELETE FROM insta_ids_internal.distribution;
    FOREACH one IN ARRAY going LOOP
        PERFORM insta_ids_internal.end_return(one), insta_ids_internal.undo_switch(one), insta_ids_internal.end_capture(one);
    END LOOP;
    PERFORM insta_ids_internal.restore_keys();
    FOREACH table_names IN ARRAY tables LOOP
        EXECUTE 'TRUNCATE ' || table_names;
    END LOOP;
    -- Clients that still write to the shards get an error.
    IF is_switched THEN
        PERFORM insta_ids_internal.close_shards(shards, NULL, lock_timeout, attempt);
        RAISE NOTICE USING
            MESSAGE = 'all shards are fenced',
            HINT = 'When no client writes to the shards any more, open them: SELECT insta_ids.unfence(s.shard) FROM insta_ids.shards s.';
    END IF;
END
$$;
COMMENT ON FUNCTION insta_ids.distribute_abort(interval, interval) IS
    'goes back to the registered tables, with all that was written to the shards meanwhile, and empties those of the shards';

-- Lets writers write to a source again, under its old name.
CREATE OR REPLACE FUNCTION insta_ids_internal.undo_switch(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part regclass;
    name name;
BEGIN
    IF going.step = 'switched' THEN
        EXECUTE format('DROP TRIGGER insta_ids_distributed_row ON %s', going.source);
        FOREACH part IN ARRAY insta_ids_internal.with_partitions(going.source) LOOP
            -- A partition that was made since the switch does not have it.
            EXECUTE format('DROP TRIGGER IF EXISTS insta_ids_distributed ON %s', part);
        END LOOP;
    END IF;
    IF going.view IS NOT NULL THEN
        name := (SELECT c.relname FROM pg_class c WHERE c.oid = going.view);
        EXECUTE format('DROP VIEW %s', going.view);
        EXECUTE format('ALTER TABLE %s RENAME TO %I', going.source, name);
    END IF;
END
$$;
