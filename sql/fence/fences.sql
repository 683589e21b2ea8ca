-- Fences: they close shards to writers.

-- Has all sessions read the fences again.
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

-- The fence of a table. It stops everybody, but no subscription that brings the rows of a shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.refuse_shard(TG_ARGV[0]::integer);
    RETURN NULL;
END
$$;

-- Locks tables, in this mode, and sequences until the transaction ends, when nobody is using them. Who comes meanwhile
-- waits for a tenth of a second at most, and then goes on while this waits: so nobody waits long; and of two that wait for
-- each other it is this that gives way, before the other is told of a deadlock. Autovacuum gives way to this.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_relations(tables regclass[], mode text, sequences regclass[], what text, lock_timeout text)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    patience CONSTANT bigint := (SELECT s.setting::bigint FROM pg_settings s WHERE s.name = 'deadlock_timeout');
    longest CONSTANT bigint := least(100, patience / 2);
    -- By the steady clock, as all times here; NULL if it never does.
    gives_up_at bigint;
    attempt_ends_at bigint;
    wanted regclass;
    -- Where autovacuum is.
    vacuumed regclass;
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout, true);
    gives_up_at := (
        SELECT insta_ids_internal.steady_ms() + nullif(s.setting, '0')::bigint
        FROM pg_settings s WHERE s.name = 'lock_timeout');
    LOOP
        BEGIN
            -- Autovacuum gives way to who has waited for deadlock_timeout: so this does, in a mode that keeps no writer
            -- waiting; but not for twice as long, or of two that wait for each other the other could have to give way.
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
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('could not lock the tables and sequences of %s', what),
                DETAIL = format('%s is in use%s.', wanted, (
                    SELECT ' by ' || string_agg(DISTINCT coalesce('process ' || l.pid,
                        format('prepared transaction "%s"', x.gid)), ', ')
                    FROM pg_locks l
                    -- A transaction that is prepared has no process, and holds its own number.
                    LEFT JOIN pg_locks t
                        ON l.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
                    LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                    WHERE l.locktype = 'relation' AND l.relation = wanted AND l.granted
                        AND l.pid IS DISTINCT FROM pg_backend_pid()
                        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))),
                HINT = 'Call again when long transactions have ended, or with a longer lock_timeout.';
        END IF;
        -- Of all who are in a database, autovacuum alone has no user. Its backend_type not everybody sees.
        PERFORM pg_stat_clear_snapshot();
        vacuumed := (
            SELECT l.relation FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.usesysid IS NULL
            WHERE l.locktype = 'relation' AND l.relation = wanted AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
                AND a.datname = current_database() LIMIT 1);
        PERFORM insta_ids_internal.wait_ms((20 + 80 * random())::integer);
    END LOOP;
END
$$;

-- Tables that a statement on another one writes to, where only one of the two is of these shards: a fence stops that one
-- only.
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
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s shares rows with another schema', shared.shard),
            DETAIL = format('Table %s is a partition or child of %s.', shared.child, shared.parent),
            HINT = 'Detach the partition, or end the inheritance.';
    END IF;
END
$$;

-- Closes shards to all who write, when those who do have ended. Whoever calls it has refused old snapshots.
CREATE OR REPLACE FUNCTION insta_ids_internal.close_shards(shards integer[], to_node name, lock_timeout text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids_internal.shard_relation;
BEGIN
    PERFORM insta_ids_internal.require_no_outside_children(shards), insta_ids_internal.commit_durably();
    PERFORM insta_ids_internal.lock_relations(
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        CASE cardinality(shards) WHEN 1 THEN format('shard %s', shards[1])
            ELSE format('shards from %s to %s', shards[1], shards[cardinality(shards)]) END,
        lock_timeout);
    -- Other sessions may have attached a table while this one waited for the locks.
    PERFORM insta_ids_internal.require_no_outside_children(shards);
    -- While it is not there, its own DDL is not refused.
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
    LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence') THEN
            EXECUTE format('CREATE TRIGGER insta_ids_fence BEFORE INSERT OR UPDATE OR DELETE%s ON %s'
                || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_write(%s)',
                -- Before PostgreSQL 16, foreign tables have no triggers for it.
                CASE WHEN next.kind <> 'f' OR current_setting('server_version_num')::integer >= 160000 THEN ' OR TRUNCATE' END,
                next.relation, next.shard);
        END IF;
        -- Where shards come to, the subscription that brings their rows goes past it; elsewhere none does.
        EXECUTE format('ALTER TABLE ONLY %s ENABLE %s TRIGGER insta_ids_fence', next.relation,
            CASE WHEN to_node = insta_ids.this_node() THEN '' ELSE 'ALWAYS' END);
        -- What a subscription applies fires triggers of rows alone.
        IF next.kind <> 'p' AND to_node IS DISTINCT FROM insta_ids.this_node() THEN
            IF NOT EXISTS (
                SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence_rows')
            THEN
                EXECUTE format('CREATE TRIGGER insta_ids_fence_rows BEFORE INSERT OR UPDATE OR DELETE ON %s'
                    || ' FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.refuse_write(%s)', next.relation, next.shard);
            END IF;
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER insta_ids_fence_rows', next.relation);
        END IF;
    END LOOP;
    INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node) SELECT s, true, to_node FROM unnest(shards) s;
END
$$;

-- Opens shards again. The triggers stay, disabled: to drop them would wait for all who read the tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
BEGIN
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT r.relation, t.tgname FROM insta_ids_internal.shard_relation r
        JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
            AND t.tgenabled <> 'D'
        WHERE r.shard = ANY (shards) ORDER BY r.relation
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER %I', next.relation, next.tgname);
    END LOOP;
END
$$;

-- Locks a shard that is here until the transaction ends, so that nobody else alters or moves it.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing integer;
BEGIN
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = ANY (shards) ORDER BY s.shard FOR UPDATE;
    missing := (SELECT min(n) FROM unnest(shards) n WHERE NOT EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = n));
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', missing);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.fence(shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), set_config('lock_timeout', lock_timeout, true);
    PERFORM insta_ids_internal.lock_shards(ARRAY[shard]);
    -- What others did before they let go of the shard is seen by the next statement.
    PERFORM insta_ids_internal.require_not_moving(shard, shard);
    -- What is being made in it now is seen afterwards.
    PERFORM insta_ids_internal.lock_schema(s.oid) FROM insta_ids_internal.shard_schema s WHERE s.shard = fence.shard AND s.oid IS NOT NULL;
    PERFORM insta_ids_internal.close_shards(ARRAY[shard], NULL, lock_timeout);
END
$$;
COMMENT ON FUNCTION insta_ids.fence(integer, text) IS 'closes a shard to all who write, when those who do have ended';

CREATE OR REPLACE FUNCTION insta_ids.unfence(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.lock_shards(ARRAY[shard]);
    PERFORM insta_ids_internal.require_not_moving(shard, shard), insta_ids_internal.require_placed_here(shard);
    PERFORM insta_ids_internal.open_shards(ARRAY[shard]);
END
$$;
COMMENT ON FUNCTION insta_ids.unfence(integer) IS 'opens a shard again';

-- As of a fence.
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.writer
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.forget_map_on_change();
