-- From one table to many shards: triggers note which rows of the sources change.

-- Returns the name of an object for a source, in the source's schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.capture_name(source regclass, what text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT format('%I.%I', n.nspname, format('insta_ids_%s_%s', what,
            CASE WHEN octet_length(c.relname) > 40 THEN c.oid::text ELSE c.relname END))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = source);

-- Raises an error, because a trigger for each row does not see TRUNCATE.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_truncate() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE object_in_use USING
        MESSAGE = format('table %I.%I is being distributed, and cannot be truncated', TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = 'Delete its rows, or call insta_ids.distribute_abort() first.';
END
$$;

-- Gives one table the trigger that makes TRUNCATE fail.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_refuse_truncate(relation regclass) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER insta_ids_refuse_truncate BEFORE TRUNCATE ON %s'
        || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_truncate()', relation);
END
$$;

-- Makes TRUNCATE of a table and of its partitions fail. This trigger, and the named triggers, also fire for what a subscription
-- applies. All partitions get the trigger before any of them is altered, because ALTER TABLE calls guard_new_partitions().
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_captured(relation regclass, triggers name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts CONSTANT regclass[] := insta_ids_internal.with_partitions(relation);
    enable CONSTANT text := (
        SELECT string_agg('ENABLE ALWAYS TRIGGER ' || t, ', ') FROM unnest(triggers || name 'insta_ids_refuse_truncate') t);
    part regclass;
BEGIN
    FOREACH part IN ARRAY parts LOOP
        PERFORM insta_ids_internal.make_refuse_truncate(part);
    END LOOP;
    FOREACH part IN ARRAY parts LOOP
        EXECUTE format('ALTER TABLE ONLY %s %s', part, enable);
    END LOOP;
END
$$;

-- Ends what guard_captured() began, and drops the named triggers.
CREATE OR REPLACE FUNCTION insta_ids_internal.drop_captured(relation regclass, triggers name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
BEGIN
    FOR next IN
        SELECT t AS trigger, relation FROM unnest(triggers) t
        UNION ALL
        SELECT 'insta_ids_refuse_truncate', p FROM unnest(insta_ids_internal.with_partitions(relation)) p
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS %s ON %s', next.trigger, next.relation);
    END LOOP;
END
$$;

-- Revokes what ALTER DEFAULT PRIVILEGES has granted to other roles, and what PUBLIC has, on a relation or a function.
CREATE OR REPLACE FUNCTION insta_ids_internal.keep_to_owner(relation regclass, function regprocedure DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', o.object, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
        FROM (
            SELECT format('TABLE %s', c.oid::regclass), c.relowner, c.relacl FROM pg_class c WHERE c.oid = relation
            UNION ALL
            SELECT format('FUNCTION %s', p.oid::regprocedure), p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
            FROM pg_proc p WHERE p.oid = function
        ) o (object, owner, acl)
        CROSS JOIN LATERAL aclexplode(o.acl) a
        WHERE a.grantee <> o.owner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;

-- Makes the changes of a source noted from now on, in the transactions that make them: the primary key of each row, and the key
-- that it had before. The key is NULL for a row that is new. What a row was is noted before it changes, because after the
-- statement, a trigger of users may change the row once more and be noted first. What is new is noted afterwards, because an
-- INSERT ... ON CONFLICT may find that the row is there. The function of the triggers has the rights of the source's owner, as
-- those who write to the source have none on the table of changes. Waits for writers in short attempts.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_capture(going insta_ids_internal.distribution, lock_timeout interval, attempt interval)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    noted CONSTANT text := insta_ids_internal.capture_name(going.source, 'changes');
    capture CONSTANT text := insta_ids_internal.capture_name(going.source, 'capture');
    owner CONSTANT text := (SELECT c.relowner::regrole::text FROM pg_class c WHERE c.oid = going.source);
    note_old CONSTANT text := format('INSERT INTO %s (%s, insta_ids_key) VALUES (%s, OLD.%I)', noted,
        insta_ids_internal.column_list(key), insta_ids_internal.column_list(key, 'OLD.'), going.key);
    note_new CONSTANT text := format('INSERT INTO %s (%s) VALUES (%s)', noted,
        insta_ids_internal.column_list(key), insta_ids_internal.column_list(key, 'NEW.'));
BEGIN
    EXECUTE format('CREATE TABLE %s (insta_ids_number bigint GENERATED ALWAYS AS IDENTITY, %s, insta_ids_key %s, insta_ids_shard integer)',
        noted,
        (SELECT string_agg(format('%I %s', k, insta_ids_internal.base_type_name(going.source, k)), ', ') FROM unnest(key) k),
        insta_ids_internal.base_type_name(going.source, going.key));
    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        capture, format($function$
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        %1$s;
        RETURN coalesce(NEW, OLD);
    ELSIF TG_OP = 'INSERT' OR %3$s IS DISTINCT FROM %4$s THEN
        %2$s;
    END IF;
    RETURN NULL;
END
$function$, note_old, note_new, 'ROW(' || insta_ids_internal.column_list(key, 'OLD.') || ')',
            'ROW(' || insta_ids_internal.column_list(key, 'NEW.') || ')'));
    EXECUTE format('ALTER TABLE %s OWNER TO %s', noted, owner);
    EXECUTE format('ALTER FUNCTION %s() OWNER TO %s', capture, owner);
    EXECUTE format('ALTER FUNCTION %s() DEPENDS ON EXTENSION insta_ids', capture);
    -- Another role could create a trigger with the function, and so note changes that there are not.
    PERFORM insta_ids_internal.keep_to_owner(noted::regclass, (capture || '()')::regprocedure);
    -- The reason is the same as for insta_ids_internal.map.
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', noted);

    PERFORM insta_ids_internal.lock_relations(insta_ids_internal.with_partitions(going.source), 'SHARE ROW EXCLUSIVE', '{}',
        format('table %s', going.source), lock_timeout, attempt);
    EXECUTE format('CREATE TRIGGER insta_ids_capture BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s()',
        going.source, capture);
    EXECUTE format('CREATE TRIGGER insta_ids_capture_new AFTER INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s()',
        going.source, capture);
    PERFORM insta_ids_internal.guard_captured(going.source, '{insta_ids_capture,insta_ids_capture_new}');
    UPDATE insta_ids_internal.distribution d
    SET changes = noted::regclass, step = 'copying', step_at = clock_timestamp(), started_at = clock_timestamp()
    WHERE d.source = going.source;
END
$$;

-- Returns the function of a trigger, or NULL if there is no such trigger.
CREATE OR REPLACE FUNCTION insta_ids_internal.trigger_function(relation regclass, trigger name) RETURNS regprocedure
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT t.tgfoid::regprocedure FROM pg_catalog.pg_trigger t WHERE t.tgrelid = relation AND t.tgname = trigger);

-- Raises an error if a statement has altered a source or renamed its schema, or dropped something that a distribution needs. A
-- dropped partition is known by its trigger.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_ddl_on_sources(event text, tag text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered text;
BEGIN
    IF event = 'sql_drop' THEN
        altered := (
            SELECT coalesce(d.object_identity, '') FROM pg_event_trigger_dropped_objects() d
            WHERE d.object_type = 'trigger' AND d.address_names[3] IN ('insta_ids_capture', 'insta_ids_capture_new',
                    'insta_ids_refuse_truncate', 'insta_ids_return', 'insta_ids_distributed', 'insta_ids_distributed_row')
                OR d.classid = 'pg_class'::regclass AND EXISTS (
                    SELECT FROM insta_ids_internal.distribution n WHERE d.objid IN (n.changes, n.view))
            LIMIT 1);
    ELSIF tag IN ('ALTER TABLE', 'ALTER TRIGGER', 'ALTER SCHEMA') THEN
        altered := (
            SELECT c.object_identity
            FROM pg_event_trigger_ddl_commands() c
            JOIN insta_ids_internal.distribution d ON d.step IN ('copying', 'copied')
            LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
            WHERE c.classid IN ('pg_class'::regclass, 'pg_trigger'::regclass)
                    AND coalesce(t.tgrelid, c.objid) = ANY (insta_ids_internal.with_partitions(d.source)::oid[])
                OR c.classid = 'pg_namespace'::regclass
                    AND c.objid = (SELECT r.relnamespace FROM pg_class r WHERE r.oid = d.source)
            LIMIT 1);
    END IF;
    IF altered IS NOT NULL THEN
        RAISE object_in_use USING
            MESSAGE = format('%s belongs to a table that is being distributed, and cannot be altered', altered),
            HINT = 'See insta_ids.distributions, or call insta_ids.distribute_abort() first.';
    END IF;
END
$$;

-- Makes TRUNCATE fail on partitions that a statement has created or attached. PostgreSQL gives a new partition the triggers of its
-- table that are for rows, and not those for statements. A TRUNCATE that a subscription applies does not fail there.
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_new_partitions(event text, tag text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part regclass;
BEGIN
    IF event = 'sql_drop' OR tag NOT IN ('CREATE TABLE', 'ALTER TABLE') THEN
        RETURN;
    END IF;
    FOR part IN
        SELECT DISTINCT t.tgrelid::regclass
        FROM pg_event_trigger_ddl_commands() c
        CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(c.objid)) p (relation)
        JOIN pg_trigger t ON t.tgrelid = p.relation AND t.tgname IN ('insta_ids_capture', 'insta_ids_return') AND t.tgparentid <> 0
        WHERE c.classid = 'pg_class'::regclass
            AND insta_ids_internal.trigger_function(t.tgrelid, 'insta_ids_refuse_truncate') IS NULL
    LOOP
        PERFORM insta_ids_internal.make_refuse_truncate(part);
    END LOOP;
END
$$;

-- Ends what begin_capture began. The table of changes is dropped.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_capture(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    function CONSTANT regprocedure := insta_ids_internal.trigger_function(going.source, 'insta_ids_capture');
BEGIN
    IF going.changes IS NULL THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.drop_captured(going.source, '{insta_ids_capture,insta_ids_capture_new}');
    IF function IS NOT NULL THEN
        EXECUTE format('DROP FUNCTION %s', function);
    END IF;
    EXECUTE format('DROP TABLE %s', going.changes);
END
$$;
