-- Fences: shards that nothing is written to here, and that nobody alters.
SET LOCAL search_path = pg_catalog, pg_temp;

-- A shard that moves is altered by nobody from the first step on; and nothing is written to it once it is closed.
CREATE TABLE insta_ids_internal.fence (
    shard integer PRIMARY KEY,
    is_closed boolean NOT NULL,
    -- Where it moves to.
    to_node name,
    since timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- Of a shard that was offered: the server's timeline then.
    timeline integer
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.fence', '');
CREATE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.fence
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.fence ENABLE ALWAYS TRIGGER require_owner;

CREATE FUNCTION insta_ids.fence_changed() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.forget_map();
    RETURN NULL;
END
$$;
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.fence
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.fence_changed();

-- The fence of a table. It stops everybody, but no subscription that brings the rows of a shard.
CREATE FUNCTION insta_ids.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.refuse(TG_ARGV[0]::integer);
    RETURN NULL;
END
$$;

-- Locks tables, in this mode, and sequences until the transaction ends, when nobody is using them. Who comes meanwhile
-- waits for a tenth of a second at most, and then goes on while this waits: so nobody waits long; and of two that wait for
-- each other it is this that gives way, before the other is told of a deadlock. Autovacuum gives way to this.
CREATE FUNCTION insta_ids.lock_all(tables regclass[], mode text, sequences regclass[], what text, lock_timeout text)
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
CREATE FUNCTION insta_ids.check_inheritance(shards integer[]) RETURNS void
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
CREATE FUNCTION insta_ids.close_shards(shards integer[], to_node name, lock_timeout text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids_internal.shard_relation;
BEGIN
    PERFORM insta_ids.check_inheritance(shards), insta_ids.commit_durably();
    PERFORM insta_ids.lock_all(
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        CASE cardinality(shards) WHEN 1 THEN format('shard %s', shards[1])
            ELSE format('shards from %s to %s', shards[1], shards[cardinality(shards)]) END,
        lock_timeout);
    -- Other sessions may have attached a table while this one waited for the locks.
    PERFORM insta_ids.check_inheritance(shards);
    -- While it is not there, its own DDL is not refused.
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
    LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence') THEN
            EXECUTE format('CREATE TRIGGER insta_ids_fence BEFORE INSERT OR UPDATE OR DELETE%s ON %s'
                || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.refuse_write(%s)',
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
                    || ' FOR EACH ROW EXECUTE FUNCTION insta_ids.refuse_write(%s)', next.relation, next.shard);
            END IF;
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER insta_ids_fence_rows', next.relation);
        END IF;
    END LOOP;
    INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node) SELECT s, true, to_node FROM unnest(shards) s;
END
$$;

-- Opens shards again. The triggers stay, disabled: to drop them would wait for all who read the tables.
CREATE FUNCTION insta_ids.open_shards(shards integer[]) RETURNS void
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
CREATE FUNCTION insta_ids.claim(shards integer[]) RETURNS void
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

CREATE FUNCTION insta_ids.fence(shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be fenced'), set_config('lock_timeout', lock_timeout, true);
    PERFORM insta_ids.claim(ARRAY[shard]);
    -- What others did before they let go of the shard is seen by the next statement.
    PERFORM insta_ids.check_moves(shard, shard);
    -- What is being made in it now is seen afterwards.
    PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids_internal.shard_schema s WHERE s.shard = fence.shard AND s.oid IS NOT NULL;
    PERFORM insta_ids.close_shards(ARRAY[shard], NULL, lock_timeout);
END
$$;

CREATE FUNCTION insta_ids.unfence(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be opened');
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.claim(ARRAY[shard]);
    PERFORM insta_ids.check_moves(shard, shard), insta_ids.check_placement(shard);
    PERFORM insta_ids.open_shards(ARRAY[shard]);
END
$$;

-- The schemas of shards that move or are fenced, as they are now, whatever the transaction's snapshot is.
CREATE FUNCTION insta_ids.fenced_schemas() RETURNS TABLE (shard integer, schema text)
    VOLATILE PARALLEL UNSAFE ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'fenced_schemas_wrapper';

-- Refuses whoever alters what is in a shard that moves or is fenced.
CREATE FUNCTION insta_ids.keep_fenced() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards integer[];
    schemas text[];
    altered record;
BEGIN
    -- Most DDL ends here, and does not need the library.
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence)
    THEN
        RETURN;
    END IF;
    -- Before PostgreSQL 16, a superuser may have to become the owner of what has come, as check_owners says.
    SELECT array_agg(f.shard), array_agg(f.schema) INTO shards, schemas FROM insta_ids.fenced_schemas() f
    WHERE current_setting('server_version_num')::integer >= 160000
        OR NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE f.shard = ANY (m.shards) AND m.step = 'prepared')
        OR NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user);
    -- A dump that is restored brings the fences before the last of what is in the shards; its scripts say this.
    IF shards IS NULL OR current_setting('check_function_bodies') = 'off'
        AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
    THEN
        RETURN;
    END IF;
    IF TG_EVENT = 'sql_drop' THEN
        SELECT f.shard, d.object_type || ' ' || d.object_identity AS object INTO altered
        FROM pg_event_trigger_dropped_objects() d
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema
            = coalesce(d.schema_name, CASE d.object_type WHEN 'schema' THEN d.object_name ELSE d.address_names[1] END)
        WHERE NOT d.is_temporary AND d.object_type <> 'publication relation' LIMIT 1;
    ELSE
        SELECT f.shard, c.object_type || ' ' || c.object_identity AS object INTO altered
        FROM pg_event_trigger_ddl_commands() c
        -- What has no schema of its own.
        LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
        LEFT JOIN pg_rewrite r ON c.classid = 'pg_rewrite'::regclass AND r.oid = c.objid
        LEFT JOIN pg_policy p ON c.classid = 'pg_policy'::regclass AND p.oid = c.objid
        LEFT JOIN pg_class o ON o.oid = coalesce(t.tgrelid, r.ev_class, p.polrelid)
        LEFT JOIN pg_namespace n ON n.oid = o.relnamespace
        -- A table that is in another schema now.
        LEFT JOIN pg_trigger g
            ON c.classid = 'pg_class'::regclass AND g.tgrelid = c.objid AND g.tgname = 'insta_ids_fence' AND g.tgenabled <> 'D'
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema = coalesce(c.schema_name, n.nspname)
            OR c.command_tag = 'ALTER SCHEMA' AND to_regnamespace(quote_ident(f.schema)) IS NULL
            OR encode(g.tgargs, 'escape') = f.shard || $end$\000$end$
        WHERE c.command_tag NOT IN ('COMMENT', 'REINDEX', 'REFRESH MATERIALIZED VIEW')
            AND c.object_type <> 'publication relation' LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered.shard),
            DETAIL = format('%s is of it.', upper(left(altered.object, 1)) || substr(altered.object, 2)),
            HINT = CASE
                WHEN EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = altered.shard AND f.to_node IS NULL)
                    THEN format('Open it first: SELECT insta_ids.unfence(%s).', altered.shard)
                ELSE 'Try again when it has moved: see insta_ids.moves.' END;
    ELSIF TG_TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE') THEN
        PERFORM insta_ids.check_inheritance(shards);
    END IF;
END
$$;

-- Refuses a statement with CONCURRENTLY in a shard that moves or is fenced before it begins: it commits before it ends, so
-- what keep_fenced refuses of it stays half done. There is no transaction block around it, and no function: it is what the
-- client has sent.
CREATE FUNCTION insta_ids_internal.keep_fenced_from_start() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    schemas pg_catalog.text[];
    altered pg_catalog.int4;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.fence) THEN
        RETURN;
    END IF;
    -- From here on to the next such line, nothing may be called that is not qualified.
    BEGIN
        schemas := ARRAY(
            SELECT coalesce(s.schema, n.nspname::pg_catalog.text)
            FROM insta_ids.statements(pg_catalog.current_query()) s
            CROSS JOIN LATERAL pg_catalog.unnest(s.alters) a (name)
            LEFT JOIN pg_catalog.pg_class c
                ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.quote_ident(a.name))::pg_catalog.oid
            LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
            WHERE s.kind OPERATOR(pg_catalog.=) 'concurrent');
    EXCEPTION
        -- The text may have changed how it is read, and then it is none of these statements.
        WHEN OTHERS THEN RETURN;
    END;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    altered := (SELECT min(f.shard) FROM insta_ids.fenced_schemas() f WHERE f.schema = ANY (schemas));
    IF altered IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered),
            HINT = CASE
                WHEN EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = altered AND f.to_node IS NULL)
                    THEN format('Open it first: SELECT insta_ids.unfence(%s).', altered)
                ELSE 'Try again when it has moved: see insta_ids.moves.' END;
    END IF;
    PERFORM set_config('search_path', path, true);
END
$$;
CREATE EVENT TRIGGER insta_ids_keep_fenced_from_start ON ddl_command_start
    WHEN TAG IN ('ALTER TABLE', 'CREATE INDEX', 'DROP INDEX') EXECUTE FUNCTION insta_ids_internal.keep_fenced_from_start();
CREATE EVENT TRIGGER insta_ids_keep_fenced ON ddl_command_end EXECUTE FUNCTION insta_ids.keep_fenced();
CREATE EVENT TRIGGER insta_ids_keep_fenced_from_drop ON sql_drop EXECUTE FUNCTION insta_ids.keep_fenced();
SET LOCAL search_path = @extschema@, pg_temp;
