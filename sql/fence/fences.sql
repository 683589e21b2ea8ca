-- Fences: they close shards to writers.

-- Makes all sessions read the map, the fences and the writer slot again.
CREATE OR REPLACE FUNCTION insta_ids_internal.forget_map_on_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.forget_map();
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.fence
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.forget_map_on_change();
ALTER TABLE insta_ids_internal.fence ENABLE ALWAYS TRIGGER changed;

-- The trigger of a fence. While the shard is closed, it makes each writer wait for `insta_ids.fence_wait`, and then raises an
-- error. It passes writers when the shard is open again, because disabling it would wait for all of them.
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_write() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'guard_write_wrapper';

-- Returns how messages name a session: its process ID and, as far as the caller may see them, its role, its application and how long its
-- transaction has lasted.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_session(pid integer) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT 'process ' || pid || coalesce(' (' || nullif(concat_ws(', ', 'role ' || quote_ident(a.usename),
        'application ' || quote_literal(nullif(a.application_name, '')),
        'transaction of ' || date_trunc('second', clock_timestamp() - a.xact_start)), '') || ')', '')
    FROM (SELECT) one LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = named_session.pid;
END;

-- Returns who holds a lock on a relation, as in " by process 7", or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_holders(relation regclass) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT ' by ' || string_agg(DISTINCT coalesce(insta_ids_internal.named_session(l.pid), format('prepared transaction "%s"', x.gid)), ', ')
    FROM pg_catalog.pg_locks l
    -- A prepared transaction has no process. It is known by its lock on its own transaction id.
    LEFT JOIN pg_catalog.pg_locks t ON l.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = t.transactionid
    WHERE l.locktype = 'relation' AND l.relation = named_holders.relation AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database());
END;

-- Locks tables in `mode`, and sequences, until the transaction ends. It waits until no session uses them, at most
-- `lock_timeout`. It waits in short attempts, so another session waits at most as long as an `attempt` for it, and never gets a
-- deadlock error because of it: an attempt lasts at most half of deadlock_timeout. After 2 seconds, a NOTICE says for whom it waits. `what`
-- names the relations in the error.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_relations(
        tables regclass[], mode text, sequences regclass[], what text, lock_timeout interval, attempt interval DEFAULT '100ms')
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    patience CONSTANT bigint := (SELECT s.setting::bigint FROM pg_settings s WHERE s.name = 'deadlock_timeout');
    longest CONSTANT bigint := least(extract(epoch FROM attempt) * 1000, patience / 2);
    -- All times here are by the steady clock. NULL stands for no limit.
    gives_up_at bigint;
    attempt_ends_at bigint;
    reports_at bigint := insta_ids_internal.steady_ms() + 2000;
    wanted regclass;
    -- The table that autovacuum works on.
    vacuumed regclass;
BEGIN
    IF attempt < interval '1ms' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('attempt of %s is out of range', attempt),
            DETAIL = 'An attempt lasts at least 1 ms.';
    END IF;
    PERFORM insta_ids_internal.set_lock_timeout(lock_timeout);
    gives_up_at := (
        SELECT insta_ids_internal.steady_ms() + nullif(s.setting, '0')::bigint
        FROM pg_settings s WHERE s.name = 'lock_timeout');
    LOOP
        BEGIN
            -- Autovacuum gives way to a lock request that has waited for deadlock_timeout. This mode lets writers go on
            -- meanwhile. The wait ends before twice deadlock_timeout, because later another session could get a deadlock error.
            IF vacuumed IS NOT NULL THEN
                PERFORM set_config('lock_timeout',
                    greatest(1, least(patience * 3 / 2, gives_up_at - insta_ids_internal.steady_ms()))::text, true);
                PERFORM insta_ids_internal.lock_relation(vacuumed, 'SHARE UPDATE EXCLUSIVE');
            END IF;
            attempt_ends_at := insta_ids_internal.steady_ms() + longest;
            FOREACH wanted IN ARRAY tables || sequences LOOP
                PERFORM set_config('lock_timeout',
                    greatest(1, least(longest, attempt_ends_at - insta_ids_internal.steady_ms()))::text, true);
                PERFORM insta_ids_internal.lock_relation(
                    wanted, CASE WHEN wanted = ANY (sequences) THEN 'SHARE ROW EXCLUSIVE' ELSE mode END);
            END LOOP;
            RETURN;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
        IF insta_ids_internal.steady_ms() > gives_up_at THEN
            RAISE lock_not_available USING MESSAGE = format('could not lock the tables and sequences of %s', what),
                DETAIL = format('%s is in use%s.', wanted, insta_ids_internal.named_holders(wanted)),
                HINT = 'Call again when long transactions have ended, or with a longer lock_timeout.';
        END IF;
        PERFORM pg_stat_clear_snapshot();
        IF insta_ids_internal.steady_ms() > reports_at THEN
            reports_at := NULL;
            RAISE NOTICE '% is in use%, and is waited for', wanted, insta_ids_internal.named_holders(wanted);
        END IF;
        -- Only autovacuum has no user among the processes of a database. Not all roles see backend_type.
        vacuumed := (
            SELECT l.relation FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.usesysid IS NULL
            WHERE l.locktype = 'relation' AND l.relation = wanted AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
                AND a.datname = current_database() LIMIT 1);
        PERFORM insta_ids_internal.wait_ms((20 + 80 * random())::integer);
    END LOOP;
END
$$;

-- Raises an error if a table of these shards has a parent, partition or child table in another schema. A statement on the
-- parent also writes to the child, and a fence would stop statements on only one of the two.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_outside_children(shards integer[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shared record;
BEGIN
    SELECT coalesce(c.shard, p.shard) AS shard, i.inhrelid::regclass AS child, i.inhparent::regclass AS parent INTO shared
    FROM pg_inherits i
    JOIN pg_class cc ON cc.oid = i.inhrelid AND cc.relkind IN ('r', 'p', 'f')
    JOIN pg_class pc ON pc.oid = i.inhparent
    LEFT JOIN insta_ids_internal.shard_schema c ON c.oid = cc.relnamespace AND c.shard = ANY (shards)
    LEFT JOIN insta_ids_internal.shard_schema p ON p.oid = pc.relnamespace AND p.shard = ANY (shards)
    WHERE c.shard IS DISTINCT FROM p.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s shares rows with another schema', shared.shard),
            DETAIL = format('Table %s is a partition or child of %s.', shared.child, shared.parent),
            HINT = 'Detach the partition, or end the inheritance.';
    END IF;
END
$$;

-- Raises an error if a table of these schemas, or a partition or child table of one, does not have its rows in its own heap. With
-- `is_fence`, foreign tables are allowed, because triggers stop those who write through them.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_heaps(
        schemas oid[], is_fence boolean,
        hint text DEFAULT 'Take it out of the schema, or make it an ordinary table. undistribute_table() of Citus does that.')
    RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    strange record;
BEGIN
    WITH RECURSIVE tree AS (
        SELECT c.oid FROM pg_class c WHERE c.relnamespace = ANY (schemas)
        UNION
        SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
    )
    SELECT c.oid::regclass AS relation, n.what INTO strange
    FROM tree t JOIN pg_class c ON c.oid = t.oid CROSS JOIN LATERAL insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam) n (what)
    WHERE n.what IS NOT NULL AND NOT (is_fence AND n.what = 'foreign table') ORDER BY c.oid LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('rows of table %s are not in its heap', strange.relation),
            DETAIL = format('It is a %s. Its rows cannot be read or locked here.', strange.what),
            HINT = hint;
    END IF;
END
$$;

-- Returns the schemas of shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.schemas_of(shards integer[]) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT s.oid FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (shards) AND s.oid IS NOT NULL);

-- Closes shards to all writers, after their transactions have ended. `to_node` is the node that they move to, or NULL. The
-- caller has called require_read_committed(). Locks all tables and sequences of the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.close_shards(
        shards integer[], to_node name, lock_timeout interval, attempt interval DEFAULT '100ms')
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids_internal.shard_relation;
    -- On the target of a move, the triggers must not fire for the subscription. Elsewhere, they also stop subscriptions, for
    -- which PostgreSQL fires only triggers for rows.
    is_target CONSTANT boolean := coalesce(to_node = insta_ids.this_node(), false);
BEGIN
    PERFORM insta_ids_internal.require_no_outside_children(shards), insta_ids_internal.commit_durably(),
        insta_ids_internal.require_heaps(insta_ids_internal.schemas_of(shards), true);
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        CASE cardinality(shards) WHEN 1 THEN format('shard %s', shards[1])
            ELSE format('shards from %s to %s', shards[1], shards[cardinality(shards)]) END,
        lock_timeout, attempt);
    -- Other sessions may have attached a table, or given one to Citus, while this one waited for the locks.
    PERFORM insta_ids_internal.require_no_outside_children(shards),
        insta_ids_internal.require_heaps(insta_ids_internal.schemas_of(shards), true);
    -- Without these rows, the event triggers allow the statements below.
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
    LOOP
        PERFORM insta_ids_internal.make_gate(next, CASE WHEN is_target THEN 'ORIGIN' ELSE 'ALWAYS' END);
        IF next.kind <> 'p' AND NOT is_target THEN
            -- COPY would be slower with a trigger before each row, even one that does not fire.
            PERFORM insta_ids_internal.make_trigger(next, 'insta_ids_fence_rows', 'REPLICA',
                format('AFTER INSERT OR DELETE OR UPDATE ON %s FOR EACH ROW', next.relation));
        END IF;
    END LOOP;
    INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node, timeline)
    SELECT s, true, to_node, CASE WHEN to_node IS NOT NULL THEN insta_ids_internal.timeline() END FROM unnest(shards) s;
END
$$;

-- Gives a table of a shard a trigger that calls guard_write(), in place of any other one of this name. `fires` is ORIGIN, ALWAYS
-- or REPLICA. `events` is what the trigger fires for, as pg_get_triggerdef() says it.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_trigger(next insta_ids_internal.shard_relation, name name, fires text, events text)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted CONSTANT text := format('CREATE TRIGGER %I %s EXECUTE FUNCTION insta_ids_internal.guard_write(''%s'')',
        name, events, next.shard);
    existing record;
BEGIN
    SELECT t.tgenabled AS enabled, pg_get_triggerdef(t.oid) AS definition INTO existing
    FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = name;
    IF existing.definition <> wanted THEN
        EXECUTE format('DROP TRIGGER %I ON %s', name, next.relation);
    END IF;
    IF existing.definition IS DISTINCT FROM wanted THEN
        EXECUTE wanted;
        existing.enabled := 'O';
    END IF;
    IF existing.enabled <> left(fires, 1) THEN
        EXECUTE format('ALTER TABLE ONLY %s ENABLE %s TRIGGER %I', next.relation, nullif(fires, 'ORIGIN'), name);
    END IF;
END
$$;

-- Gives a table of a shard the trigger that each statement of a writer has to pass. `fires` is ORIGIN or ALWAYS.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_gate(next insta_ids_internal.shard_relation, fires text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.make_trigger(next, 'insta_ids_fence', fires,
        pg_catalog.format('BEFORE INSERT OR DELETE OR UPDATE%s ON %s FOR EACH STATEMENT',
            -- Before PostgreSQL 16, foreign tables cannot have triggers for TRUNCATE.
            CASE WHEN next.kind <> 'f' OR pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN ' OR TRUNCATE' END,
            next.relation));
END;

-- Opens shards to writers again. It locks no table, because writers that wait for the fence have locked them.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (shards);
END;

-- Locks the rows of shards until the transaction ends, so that no other session alters, drops or moves them. Raises an error
-- unless all of them are here.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing integer;
BEGIN
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = ANY (shards) ORDER BY s.shard FOR UPDATE;
    missing := (SELECT min(n) FROM unnest(shards) n WHERE NOT EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = n));
    IF missing IS NOT NULL THEN
        RAISE undefined_object USING MESSAGE = format('shard %s does not exist', missing);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.fence(shard integer, lock_timeout interval DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.set_lock_timeout(lock_timeout);
    PERFORM insta_ids_internal.lock_shards(ARRAY[shard]);
    -- This is a statement of its own, because it must see what other sessions committed before the lock.
    PERFORM insta_ids_internal.require_not_moving(shard, shard);
    -- This waits for sessions that create objects in the schema, so that the next statement sees these objects.
    PERFORM insta_ids_internal.lock_schema(s.oid) FROM insta_ids_internal.shard_schema s WHERE s.shard = fence.shard AND s.oid IS NOT NULL;
    PERFORM insta_ids_internal.close_shards(ARRAY[shard], NULL, lock_timeout);
END
$$;
COMMENT ON FUNCTION insta_ids.fence(integer, interval) IS 'closes a shard to all who write, when those who do have ended';

CREATE OR REPLACE FUNCTION insta_ids.unfence(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    -- No other session assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.lock_shards(ARRAY[shard]);
    PERFORM insta_ids_internal.require_not_moving(shard, shard), insta_ids_internal.require_placed_here(shard);
    PERFORM insta_ids_internal.open_shards(ARRAY[shard]);
END
$$;
COMMENT ON FUNCTION insta_ids.unfence(integer) IS 'opens a shard again';

-- Sessions read the writer slot together with the fences.
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.writer
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.forget_map_on_change();
ALTER TABLE insta_ids_internal.writer ENABLE ALWAYS TRIGGER changed;
