-- From one table to many shards: writers go from the sources to the shards.

-- Raises an error, because rows of the table have gone to the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_distributed_write() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE read_only_sql_transaction USING
        MESSAGE = format('rows of table %I.%I have gone to the shards', TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = format('Write to table "%s" of the row''s shard.', TG_ARGV[0]);
END
$$;

-- Raises an error, because rows of the table have gone to the shards. It is the condition of a view, so it returns a boolean. The server
-- evaluates it once for each scan, before it looks for a row, because it is STABLE and depends on no column.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_distributed_read(source text, target text) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING MESSAGE = format('table %s cannot be read, because its rows have gone to the shards', source),
        HINT = format('Read table "%s" of the row''s shard.', target);
END
$$;

-- Makes all writes to a source or its view fail: each statement, also one that finds no row, and each row that a subscription brings.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_source_writes(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    make CONSTANT text := 'CREATE TRIGGER %I %s INSERT OR UPDATE OR DELETE ON %s FOR EACH %s'
        || replace(format(' EXECUTE FUNCTION insta_ids_internal.refuse_distributed_write(%L)', going.target), '%', '%%');
    part regclass;
BEGIN
    EXECUTE format(make, 'insta_ids_distributed_row', 'BEFORE', going.source, 'ROW');
    FOREACH part IN ARRAY insta_ids_internal.with_partitions(going.source) LOOP
        EXECUTE format(make, 'insta_ids_distributed', 'BEFORE', part, 'STATEMENT');
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER insta_ids_distributed, ENABLE ALWAYS TRIGGER insta_ids_distributed_row', part);
    END LOOP;
    IF going.view IS NOT NULL THEN
        -- Without this one, the server refuses to write to the view with another error.
        EXECUTE format(make, 'insta_ids_distributed_row', 'INSTEAD OF', going.view, 'ROW');
        EXECUTE format(make, 'insta_ids_distributed', 'BEFORE', going.view, 'STATEMENT');
    END IF;
END
$$;

-- Returns the name of the view of a source until it gets the source's own name.
CREATE OR REPLACE FUNCTION insta_ids_internal.view_name(source regclass) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT format('%I.%I', n.nspname, format('insta_ids_view_%s',
            CASE WHEN octet_length(c.relname) > 40 THEN c.oid::text ELSE c.relname END))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = source);

-- Revokes what ALTER DEFAULT PRIVILEGES has granted to other roles on a relation.
CREATE OR REPLACE FUNCTION insta_ids_internal.keep_to_owner(relation regclass) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    role text;
BEGIN
    FOR role IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE c.oid = relation AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', relation, role);
    END LOOP;
END
$$;

-- Returns which of SELECT, INSERT, UPDATE and DELETE other roles may do with a table and its columns.
CREATE OR REPLACE FUNCTION insta_ids_internal.privileges_on(relation regclass)
    RETURNS TABLE (privileges text, role text, may_insert boolean)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(DISTINCT concat(a.privilege_type, p.columns), ', '),
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, bool_or(a.privilege_type = 'INSERT')
    FROM pg_class c
    CROSS JOIN LATERAL (
        SELECT c.relacl, NULL
        UNION ALL
        SELECT a.attacl, format(' (%I)', a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attnum > 0
    ) p (acl, columns)
    CROSS JOIN LATERAL aclexplode(p.acl) a
    WHERE c.oid = relation AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE') AND a.grantee <> c.relowner
    GROUP BY a.grantee;
END;

-- Creates a view of the rows of a source in all shards, under another name than the source's. A type of a shard's own is shown
-- as that of the source. Roles get the privileges that they have on the source and on its columns. With `refuses`, the view has the
-- same columns, and each statement that reads it fails.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_view(going insta_ids_internal.distribution, refuses boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT text := insta_ids_internal.view_name(going.source);
    columns CONSTANT text := (
        SELECT string_agg(format(CASE WHEN t.typname = b.typname AND t.oid <> b.oid THEN 't.%1$I::text::%2$s AS %1$I' ELSE 't.%1$I' END,
            a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
        FROM pg_attribute a
        JOIN pg_attribute o ON o.attrelid = insta_ids_internal.target_in(going.target, 0)::regclass AND o.attname = a.attname
        JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_type b ON b.oid = o.atttypid
        WHERE a.attrelid = going.source AND a.attnum > 0 AND NOT a.attisdropped);
    privileges text;
    role text;
BEGIN
    EXECUTE format('CREATE VIEW %s AS %s', name, CASE
        WHEN refuses THEN format('SELECT %s FROM %s t WHERE insta_ids_internal.refuse_distributed_read(%L, %L)', columns,
            going.source, going.source::text, going.target)
        ELSE (
            SELECT string_agg(format('SELECT %s FROM %s t', columns, t.relation), ' UNION ALL ' ORDER BY t.shard)
            FROM insta_ids_internal.targets_of(going) t) END);
    EXECUTE format('ALTER VIEW %s OWNER TO %s', name, (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = going.source));
    PERFORM insta_ids_internal.keep_to_owner(name::regclass);
    -- Without INSERT, clients that write to the view would get another error than the hint to write to the shards.
    FOR privileges, role IN SELECT p.privileges, p.role FROM insta_ids_internal.privileges_on(going.source) p
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', privileges, name, role);
    END LOOP;
END
$$;

-- Returns why rows of the shards may not fit into a source, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacle_to_return(going insta_ids_internal.distribution) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
BEGIN
    RETURN (
        SELECT min(CASE
            WHEN a.attgenerated <> '' THEN format('Column "%s" of the primary key is generated.', a.attname)
            WHEN a.attidentity = 'a' AND a.attname <> ALL (key)
                THEN format('Column "%s" is GENERATED ALWAYS AS IDENTITY and not in the primary key.', a.attname)
            WHEN r.ev_class IS NOT NULL THEN format('It has the rule "%s".', r.rulename)
            WHEN s.typname = t.typname AND a.atttypmod = b.atttypmod THEN NULL
            ELSE format('Column "%s" is %s, and cannot take all values of the shards, where it is %s.', a.attname,
                format_type(a.atttypid, a.atttypmod), format_type(b.atttypid, b.atttypmod)) END)
        FROM pg_attribute a
        JOIN pg_attribute b ON b.attrelid = insta_ids_internal.target_in(going.target, 0)::regclass AND b.attname = a.attname
        JOIN pg_type s ON s.oid = a.atttypid
        JOIN pg_type t ON t.oid = b.atttypid
        LEFT JOIN pg_rewrite r ON r.ev_class = going.source
        WHERE a.attrelid = going.source AND a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated = '' OR a.attname = ANY (key)));
END
$$;

-- Raises an error unless all tables are copied and compared, few changes are left, and going back is possible if it is wanted.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_switchable(way_back boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most CONSTANT bigint := 10000;
    going insta_ids_internal.distribution;
    reason text;
BEGIN
    FOR going IN SELECT * FROM insta_ids_internal.distribution d ORDER BY d.number LOOP
        IF going.step = 'switched' THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = 'writers have been switched to the shards already',
                HINT = 'Call insta_ids.distribute_finish(), or insta_ids.distribute_abort() to go back.';
        ELSIF going.step <> 'copied' OR going.verified_at IS NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('table %s is not copied and compared yet', going.source),
                HINT = 'CALL insta_ids.distribute().';
        END IF;
        reason := insta_ids_internal.obstacle_to_return(going);
        IF way_back AND reason IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('there is no way back for table %s', going.source),
                DETAIL = reason,
                HINT = 'Switch without a way back: SELECT insta_ids.distribute_switch(way_back => false).';
        END IF;
        reason := (SELECT min(o) FROM insta_ids_internal.obstacles_in_source(going) o);
        IF reason IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('table %s cannot be distributed', going.source),
                DETAIL = reason;
        END IF;
    END LOOP;
    IF insta_ids_internal.changes_waiting() > most THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('more than %s changes are not in the shards yet', most),
            DETAIL = 'Writers would wait until they are.',
            HINT = 'CALL insta_ids.distribute(), and switch soon after.';
    END IF;
    -- A new table of users can refer to one of the sources.
    PERFORM insta_ids_internal.require_no_obstacles('{}');
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.distribute_switch(
        views boolean DEFAULT false, way_back boolean DEFAULT true, lock_timeout interval DEFAULT '10s', attempt interval DEFAULT '100ms',
        refuse_reads boolean DEFAULT false)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET lock_timeout = 0 SET jit = off SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET extra_float_digits = 1
AS $$
DECLARE
    going insta_ids_internal.distribution;
    name name;
    new_view regclass;
    locked_at bigint;
BEGIN
    IF views AND refuse_reads THEN
        RAISE invalid_parameter_value USING MESSAGE = 'views and refuse_reads cannot both be true';
    END IF;
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_distribution(), insta_ids_internal.require_switchable(way_back);
    -- A transaction that has written to a shard ends before. A later one has to lock the table, and so learns of `filled_at`.
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(SELECT p FROM insta_ids_internal.distribution d, insta_ids_internal.targets_of(d) t,
                  unnest(insta_ids_internal.with_partitions(t.relation)) p ORDER BY p),
        'SHARE ROW EXCLUSIVE', '{}', 'the distribution', lock_timeout, attempt);
    FOR going IN SELECT * FROM insta_ids_internal.distribution d ORDER BY d.number LOOP
        IF way_back THEN
            PERFORM insta_ids_internal.begin_return(going);
        END IF;
        IF views OR refuse_reads THEN
            PERFORM insta_ids_internal.make_view(going, refuse_reads);
        END IF;
    END LOOP;
    -- The tables of the shards refuse writers whose snapshot lacks rows that came from the sources.
    PERFORM insta_ids_internal.make_gate(r, 'ALWAYS')
    FROM insta_ids_internal.distribution d
    CROSS JOIN LATERAL insta_ids_internal.targets_of(d) t
    CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(t.relation)) p (relation)
    JOIN insta_ids_internal.shard_relation r ON r.relation = p.relation;
    UPDATE insta_ids_internal.shard SET filled_at = clock_timestamp();
    PERFORM insta_ids_internal.forget_map();
    -- Writers wait from here on until the end of the transaction. Readers wait only if views are wanted, or foreign keys end.
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(
            SELECT p FROM insta_ids_internal.distribution d, unnest(insta_ids_internal.with_partitions(d.source)) p
            UNION SELECT insta_ids_internal.tables_of_keys() ORDER BY 1),
        CASE WHEN views OR refuse_reads OR EXISTS (SELECT FROM insta_ids_internal.ending_keys()) THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END,
        '{}', 'the distribution', lock_timeout, attempt);
    locked_at := insta_ids_internal.steady_ms();
    PERFORM insta_ids_internal.apply_changes();
    -- The way back has noted what was just brought to the shards, too.
    PERFORM insta_ids_internal.forget_changes();
    FOR going IN SELECT * FROM insta_ids_internal.distribution d ORDER BY d.number LOOP
        UPDATE insta_ids_internal.distribution d SET step = 'switched', step_at = clock_timestamp(), has_way_back = way_back
        WHERE d.source = going.source;
        IF views OR refuse_reads THEN
            name := (SELECT c.relname FROM pg_class c WHERE c.oid = going.source);
            new_view := insta_ids_internal.view_name(going.source);
            EXECUTE format('ALTER TABLE %s RENAME TO %I', going.source, CASE
                WHEN octet_length(name) > 40 THEN format('insta_ids_distributed_%s', going.source::oid)
                ELSE name || '__distributed' END);
            EXECUTE format('ALTER VIEW %s RENAME TO %I', new_view, name);
            UPDATE insta_ids_internal.distribution d SET view = new_view WHERE d.source = going.source;
        END IF;
        PERFORM insta_ids_internal.refuse_source_writes(d) FROM insta_ids_internal.distribution d WHERE d.source = going.source;
    END LOOP;
    PERFORM insta_ids_internal.end_keys();
    RAISE NOTICE 'distribute: writers have waited for % ms since the tables were locked', insta_ids_internal.steady_ms() - locked_at;
END
$$;
COMMENT ON FUNCTION insta_ids.distribute_switch(boolean, boolean, interval, interval, boolean) IS
    'lets writers go from the registered tables to the shards, after the last changes were brought there';

CREATE OR REPLACE FUNCTION insta_ids.distribute_finish(lock_timeout interval DEFAULT '10s', attempt interval DEFAULT '100ms') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    going insta_ids_internal.distribution[];
    one insta_ids_internal.distribution;
    dependent text;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_distribution();
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'switched') THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'writers have not been switched to the shards',
            HINT = 'SELECT insta_ids.distribute_switch(), or insta_ids.distribute_abort() to leave the tables as they are.';
    END IF;
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(
            SELECT DISTINCT p FROM insta_ids_internal.distribution d, unnest(insta_ids_internal.with_partitions(d.source)) p
            UNION SELECT t.relation FROM insta_ids_internal.distribution d, insta_ids_internal.targets_of(d) t WHERE d.has_way_back
            ORDER BY 1),
        'ACCESS EXCLUSIVE', '{}', 'the distribution', lock_timeout, attempt);
    going := ARRAY(SELECT d FROM insta_ids_internal.distribution d ORDER BY d.number DESC);
    PERFORM insta_ids_internal.forget_changes();
    -- Without these rows, the event triggers allow the statements below.
    DELETE FROM insta_ids_internal.distribution;
    PERFORM insta_ids_internal.forget_key(k) FROM insta_ids_internal.ended_key k;
    FOREACH one IN ARRAY going LOOP
        IF one.view IS NOT NULL THEN
            EXECUTE format('DROP VIEW %s', one.view);
        END IF;
        PERFORM insta_ids_internal.end_return(one), insta_ids_internal.end_capture(one);
    END LOOP;
    BEGIN
        EXECUTE format('DROP TABLE %s', (SELECT string_agg(g.source::text, ', ') FROM unnest(going) g));
    EXCEPTION WHEN dependent_objects_still_exist THEN
        GET STACKED DIAGNOSTICS dependent = PG_EXCEPTION_DETAIL;
        RAISE dependent_objects_still_exist USING MESSAGE = 'other objects depend on the registered tables', DETAIL = dependent,
            HINT = 'Drop these objects, or let them use the tables of the shards. Then call again.';
    END;
END
$$;
COMMENT ON FUNCTION insta_ids.distribute_finish(interval, interval) IS 'drops the registered tables, whose rows are in the shards';
