-- From one table to many shards: triggers note which rows of the sources change.

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

-- Makes TRUNCATE of a table and of its partitions fail. This trigger, and the named one, also fire for what a subscription
-- applies. All partitions get the trigger before any of them is altered, because ALTER TABLE calls guard_new_partitions().
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_captured(relation regclass, trigger name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts CONSTANT regclass[] := insta_ids_internal.with_partitions(relation);
    part regclass;
BEGIN
    FOREACH part IN ARRAY parts LOOP
        PERFORM insta_ids_internal.make_refuse_truncate(part);
    END LOOP;
    FOREACH part IN ARRAY parts LOOP
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I, ENABLE ALWAYS TRIGGER insta_ids_refuse_truncate', part, trigger);
    END LOOP;
END
$$;

-- Ends what guard_captured() began, and drops the named trigger.
CREATE OR REPLACE FUNCTION insta_ids_internal.drop_captured(relation regclass, trigger name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part regclass;
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', trigger, relation);
    FOREACH part IN ARRAY insta_ids_internal.with_partitions(relation) LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS insta_ids_refuse_truncate ON %s', part);
    END LOOP;
END
$$;

-- Raises an error if the caller deletes notes about tables of other roles. A note about a dropped table may be deleted by all roles.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_changes() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other regclass;
BEGIN
    SELECT c.oid::regclass INTO other
    FROM (SELECT DISTINCT d.relation FROM deleted d) d JOIN pg_class c ON c.oid = d.relation
    WHERE NOT pg_has_role(c.relowner, 'USAGE') LIMIT 1;
    IF FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('must be owner of table %s', other);
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER require_owner AFTER DELETE ON insta_ids_internal.change REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.require_own_changes();
ALTER TABLE insta_ids_internal.change ENABLE ALWAYS TRIGGER require_owner;

-- The trigger that notes in insta_ids_internal.change which row has changed. The arguments are the name of the column that says
-- the shard, or '', and the names of the columns of the primary key. It is C because bulk statements of users pay for it.
CREATE OR REPLACE FUNCTION insta_ids_internal.note_change() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_note_change';

-- Writes what note_change() has noted in this transaction and not written yet. Call it before reading insta_ids_internal.change in a
-- transaction that may have written to sources.
CREATE OR REPLACE FUNCTION insta_ids_internal.write_noted_changes() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_write_changes';

-- Returns the arguments of note_change() for a source or, if `is_target`, for its targets.
CREATE OR REPLACE FUNCTION insta_ids_internal.noted_columns(going insta_ids_internal.distribution, is_target boolean) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT pg_catalog.string_agg(pg_catalog.quote_literal(c), ', ' ORDER BY place)
        FROM pg_catalog.unnest(CASE WHEN is_target THEN name '' ELSE going.key END || insta_ids_internal.primary_key_of(going.source))
            WITH ORDINALITY c (c, place));

-- Makes the changes of a source noted from now on, in the transactions that make them: the primary key of each row, and the key
-- that it had before. Waits for writers in short attempts.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_capture(going insta_ids_internal.distribution, lock_timeout interval, attempt interval)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.lock_relations(insta_ids_internal.with_partitions(going.source), 'SHARE ROW EXCLUSIVE', '{}',
        format('table %s', going.source), lock_timeout, attempt);
    -- A transaction that has written, and then aborted an earlier distribution, may have left changes.
    DELETE FROM insta_ids_internal.change c WHERE c.relation = ANY (insta_ids_internal.with_partitions(going.source));
    EXECUTE format('CREATE TRIGGER insta_ids_capture AFTER INSERT OR UPDATE OR DELETE ON %s'
        || ' FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.note_change(%s)', going.source,
        insta_ids_internal.noted_columns(going, false));
    PERFORM insta_ids_internal.guard_captured(going.source, 'insta_ids_capture');
    UPDATE insta_ids_internal.distribution d SET step = 'copying', step_at = clock_timestamp(), started_at = clock_timestamp()
    WHERE d.source = going.source;
END
$$;

-- Returns whether a statement is an ALTER TABLE that keeps the names and types of columns, the rows and the triggers of a distribution:
-- it adds columns, constraints and partitions, or changes other triggers or settings.
CREATE OR REPLACE FUNCTION insta_ids_internal.keeps_rows(command pg_ddl_command) RETURNS boolean
    STABLE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_keeps_rows';

-- Raises an error if a statement has altered a source or renamed its schema, or dropped something that a distribution needs. A
-- dropped partition is known by its trigger. Changes of the tables of the shards are recorded from the switch on, so these must
-- keep their rows, too. The texts of recorded keys have labels of enums.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_ddl_on_sources(event text, tag text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered text;
BEGIN
    IF event = 'sql_drop' THEN
        altered := (
            SELECT coalesce(d.object_identity, '') FROM pg_event_trigger_dropped_objects() d
            WHERE d.object_type = 'trigger' AND d.address_names[3] IN ('insta_ids_capture', 'insta_ids_refuse_truncate',
                    'insta_ids_return', 'insta_ids_distributed', 'insta_ids_distributed_row')
                OR d.classid = 'pg_class'::regclass AND EXISTS (SELECT FROM insta_ids_internal.distribution n WHERE n.view = d.objid)
            LIMIT 1);
    ELSIF starts_with(tag, 'ALTER ') THEN
        altered := (
            SELECT c.object_identity
            FROM pg_event_trigger_ddl_commands() c
            LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
            CROSS JOIN LATERAL (VALUES (CASE WHEN c.classid IN ('pg_class'::regclass, 'pg_trigger'::regclass) THEN coalesce(t.tgrelid, c.objid) END)) r (relation)
            WHERE EXISTS (
                    SELECT FROM insta_ids_internal.distribution d
                    WHERE d.step IN ('copying', 'copied') AND (r.relation = ANY (insta_ids_internal.with_partitions(d.source)::oid[])
                        OR c.classid = 'pg_namespace'::regclass AND c.objid = (SELECT s.relnamespace FROM pg_class s WHERE s.oid = d.source)))
                OR EXISTS (SELECT FROM pg_trigger b WHERE b.tgrelid = r.relation AND b.tgname = 'insta_ids_return')
                    AND NOT insta_ids_internal.keeps_rows(c.command)
                OR c.classid = 'pg_type'::regclass AND EXISTS (
                    SELECT FROM pg_attribute a JOIN pg_trigger b ON b.tgrelid = a.attrelid AND b.tgname IN ('insta_ids_capture', 'insta_ids_return')
                    WHERE a.atttypid = c.objid AND position(convert_to(a.attname, getdatabaseencoding()) || decode('00', 'hex') IN b.tgargs) > 0)
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
            AND NOT EXISTS (SELECT FROM pg_trigger r WHERE r.tgrelid = t.tgrelid AND r.tgname = 'insta_ids_refuse_truncate')
    LOOP
        PERFORM insta_ids_internal.make_refuse_truncate(part);
    END LOOP;
END
$$;

-- Ends what begin_capture began.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_capture(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF going.step <> 'registered' THEN
        PERFORM insta_ids_internal.drop_captured(going.source, 'insta_ids_capture');
    END IF;
END
$$;
