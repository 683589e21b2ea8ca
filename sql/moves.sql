-- Moves: shards go to another server, by PostgreSQL's logical replication, one subscription for all shards of a move.
--
-- The server that shards leave is the source, the one that they come to the target. Each step is a function of its own, on
-- one of the two; it can be repeated, and finds what is done already. Whatever is made for a move is written down in
-- insta_ids_internal.move in the same transaction, or before.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Refuses what a move of one of these shards is in the way of.
CREATE FUNCTION insta_ids.check_moves(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other insta_ids_internal.move;
BEGIN
    SELECT * INTO other FROM insta_ids_internal.move m WHERE m.first <= check_moves.last AND m.last >= check_moves.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards from %s to %s are moving', other.first, other.last),
            DETAIL = format('They go from node "%s" to node "%s": %s.', other.from_node, other.to_node, other.step),
            HINT = CASE other.step
                WHEN 'handed over'
                    THEN format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', other.first, other.last, other.from_node)
                ELSE format('Wait until they have moved, or on node "%s": CALL insta_ids.move_abort(%s, %s, %L).',
                    other.to_node, other.first, other.last, other.from_node) END;
    END IF;
END
$$;

-- What the two servers agree on is on disk before the other hears of it, also on a synchronous standby.
CREATE FUNCTION insta_ids.commit_durably() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
    WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write');
END;

-- How a move has ended here, NULL if it has not.
CREATE FUNCTION insta_ids.move_outcome(id uuid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT e.outcome FROM insta_ids_internal.ended_move e WHERE e.id = move_outcome.id);

-- The subscriptions of this database.
CREATE VIEW insta_ids_internal.subscription AS
SELECT s.oid, s.subname AS name, s.subenabled AS is_enabled, s.subconninfo AS dsn
FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database();

-- Refuses a move that is of other nodes than this server, whose name was changed then.
CREATE FUNCTION insta_ids_internal.check_own_move(moving insta_ids_internal.move) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT text := insta_ids.this_node();
BEGIN
    IF here IS NULL OR here NOT IN (moving.from_node, moving.to_node) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this server is neither of the nodes of move "%s"', moving.name),
            DETAIL = format('The move is from node "%s" to node "%s"; this is %s.', moving.from_node, moving.to_node,
                coalesce('node "' || here || '"', 'no node')),
            HINT = 'Set insta_ids.node to the name of before in postgresql.conf, and restart the server.';
    END IF;
END
$$;

-- The replication slot of a move on its source. It is made of the row, so that no row can name another slot; and it has the
-- id, so that a target whose move was withdrawn does not take the slot of the next one.
CREATE FUNCTION insta_ids_internal.slot_of(moving insta_ids_internal.move) RETURNS name
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('insta_ids_%s_%s_%s', moving.first, moving.last,
        pg_catalog."left"(pg_catalog.replace(moving.id::text, '-', ''), 16))::name;

-- What ends a move, as its errors say it.
CREATE FUNCTION insta_ids_internal.hint_to_abort(moving insta_ids_internal.move) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('End the move, and begin it again: CALL insta_ids.move_abort(%s, %s, %L) on node "%s".',
        moving.first, moving.last, moving.from_node, moving.to_node);

-- The move of this name, locked.
CREATE FUNCTION insta_ids.open_move(move name) RETURNS insta_ids_internal.move
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_move insta_ids_internal.move;
BEGIN
    PERFORM insta_ids.check_isolation('a move cannot go on'), insta_ids.commit_durably();
    SELECT * INTO found_move FROM insta_ids_internal.move m WHERE m.name = move FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('move "%s" does not exist', move),
            HINT = 'It has ended, or was never begun here: see insta_ids.moves.';
    END IF;
    PERFORM insta_ids_internal.check_own_move(found_move);
    RETURN found_move;
END
$$;

-- On the source

-- Refuses shards that could not be moved whole.
CREATE FUNCTION insta_ids.check_movable(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    obstacle record;
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards cannot leave this server',
            DETAIL = format('"wal_level" is %s.', current_setting('wal_level')),
            HINT = 'Set wal_level = logical in postgresql.conf, and restart the server.';
    ELSIF (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::integer THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = 'all replication slots of this server are in use',
            HINT = 'Drop one that is not needed, or raise "max_replication_slots".';
    END IF;
    PERFORM insta_ids.check_inheritance(shards);

    SELECT o.* INTO obstacle FROM (
        SELECT s.shard, 1, format('Schema "%s" is missing.', s.schema), 'Restore it, or drop the shard.'
        FROM insta_ids_internal.shard_schema s WHERE s.oid IS NULL
        UNION ALL
        SELECT s.shard, 2, CASE s.is_closed WHEN true THEN 'It is fenced.' ELSE 'It is moving.' END,
               format('Open it: SELECT insta_ids.unfence(%s).', s.shard)
        FROM insta_ids_internal.fence s
        UNION ALL
        SELECT m.shard, 3, format('Migration "%s" is %s there.', m.name, m.state), 'Apply it: CALL insta_ids.migrate().'
        FROM insta_ids.migration_status m WHERE m.state <> 'applied'
        UNION ALL
        SELECT r.shard, 4, format('Table %s is %s.', r.relation, CASE r.kind WHEN 'f' THEN 'foreign' ELSE 'unlogged' END),
               'Only rows of logged tables go with it.'
        FROM insta_ids_internal.shard_relation r WHERE r.kind = 'f' OR r.kind <> 'S' AND r.persistence = 'u'
        UNION ALL
        SELECT t.shard, 5, format('Table %s has no primary key, by which its rows could be told apart.', t.relation),
               format('Add a primary key, or: ALTER TABLE %s REPLICA IDENTITY FULL.', t.relation)
        FROM insta_ids.unidentified_tables(shards) t
        UNION ALL
        SELECT r.shard, 6, format('Index %s is invalid.', i.indexrelid::regclass),
               format('Drop it: DROP INDEX %s.', i.indexrelid::regclass)
        FROM insta_ids_internal.shard_relation r JOIN pg_index i ON i.indrelid = r.relation AND NOT i.indisvalid
        WHERE r.kind IN ('r', 'm')
        UNION ALL
        SELECT r.shard, 7, format('Partition %s has the partition key %s.', r.relation, pg_get_partkeydef(r.relation)),
               'Only columns of PostgreSQL''s own types can be one, with their own collations and default operator classes.'
        FROM insta_ids_internal.shard_relation r
        WHERE r.kind = 'p' AND r.is_partition AND insta_ids_internal.partition_key(r.relation) IS NULL
        UNION ALL
        SELECT r.shard, 8, r.object || ': ' || r.detail, r.hint
        FROM insta_ids.check_references(shards) r WHERE r.severity = 'error'
    ) o (shard, place, detail, hint)
    WHERE o.shard = ANY (shards) ORDER BY o.place, o.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s cannot be moved', obstacle.shard),
            DETAIL = obstacle.detail, HINT = obstacle.hint;
    END IF;
END
$$;

-- What is in a shard, in words that are the same in each.
CREATE FUNCTION insta_ids.objects_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(o.kind, o.relation, o.name, o.definition)
        ORDER BY o.kind, o.relation, o.name, o.definition)
    FROM insta_ids.objects_of(ARRAY[shard], true) o;
END;

-- The partition key of a table, which is made of nothing but PostgreSQL's own: its strategy, and then its columns. NULL if it
-- has another one, which could call what somebody has put there.
CREATE FUNCTION insta_ids_internal.partition_key(relation oid) RETURNS text[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE p.partstrat WHEN 'r' THEN 'RANGE' WHEN 'l' THEN 'LIST' WHEN 'h' THEN 'HASH' END
        || pg_catalog.array_agg(a.attname::text ORDER BY k.place)
    FROM pg_catalog.pg_partitioned_table p
    CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.unnest(p.partattrs::smallint[]), pg_catalog.unnest(p.partclass::oid[]), pg_catalog.unnest(p.partcollation::oid[])
    ) WITH ORDINALITY k (column_number, class, collation_of, place)
    JOIN pg_catalog.pg_opclass o ON o.oid = k.class
    -- An expression is no column.
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.column_number AND k.column_number > 0
    LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE p.partrelid = partition_key.relation
    GROUP BY p.partrelid, p.partstrat
    HAVING pg_catalog.bool_and(coalesce(
        t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace
        AND o.opcdefault AND k.collation_of = a.attcollation, false));
END;

-- The partitions of a shard, those of others before those of theirs.
CREATE FUNCTION insta_ids.partitions_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(p.relname, c.relname,
            pg_catalog.pg_get_expr(c.relpartbound, c.oid),
            CASE c.relkind WHEN 'p' THEN insta_ids_internal.partition_key(c.oid) END)
        ORDER BY t.level, c.relname), '[]')
    FROM insta_ids_internal.shard_schema s
    JOIN pg_catalog.pg_class r ON r.relnamespace = s.oid AND r.relkind = 'p' AND NOT r.relispartition
    CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t
    JOIN pg_catalog.pg_class c ON c.oid = t.relid AND c.relispartition
    JOIN pg_catalog.pg_class p ON p.oid = t.parentrelid
    WHERE s.shard = partitions_json.shard;
END;

CREATE FUNCTION insta_ids.move_offer(first integer, last integer, to_node name) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.own_node();
    offered CONSTANT name := format('insta_ids_%s_%s', first, last);
    move insta_ids_internal.move;
    is_new boolean := false;
    objects jsonb;
    shard integer;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be offered'), insta_ids.check_range(first, last, 1),
        insta_ids.commit_durably();
    -- Nobody else offers, makes or assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(here), insta_ids.check_node(to_node);
    -- The target runs them with the rights of who calls it.
    PERFORM insta_ids_internal.check_author(m) FROM insta_ids_internal.migration m ORDER BY m.number;
    SELECT * INTO move FROM insta_ids_internal.move m WHERE m.name = offered FOR UPDATE;
    IF FOUND THEN
        PERFORM insta_ids_internal.check_own_move(move);
    ELSE
        PERFORM insta_ids.check_moves(first, last);
        move.shards := ARRAY(SELECT s.shard FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard);
        IF move.shards = '{}' OR to_node = here THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('no shard from %s to %s can move from node "%s" to node "%s"', first, last, here, to_node),
                DETAIL = CASE WHEN to_node = here THEN 'That is this node.' ELSE 'None of them is here.' END;
        END IF;
        FOREACH shard IN ARRAY move.shards LOOP
            IF NOT EXISTS (SELECT FROM insta_ids_internal.assignment a WHERE shard BETWEEN a.first AND a.last AND a.node = here) THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('the map does not have shard %s on this node', shard),
                    HINT = format('Assign it: SELECT insta_ids.assign(%s, %s, %L).', first, last, here);
            END IF;
        END LOOP;
        PERFORM insta_ids.claim(move.shards);
        PERFORM insta_ids.check_movable(move.shards);
        -- What is being made in them now is seen afterwards.
        PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (move.shards);
        EXECUTE format('CREATE PUBLICATION %I%s', offered, ' FOR TABLE ' || insta_ids.published_tables(move.shards));
        PERFORM insta_ids_internal.fence_offer(move.shards, to_node);
        INSERT INTO insta_ids_internal.move AS m (name, id, first, last, shards, relations, from_node, to_node, bytes, step)
        SELECT offered, gen_random_uuid(), first, last, move.shards, insta_ids.relations_of(move.shards), here, to_node,
               (SELECT coalesce(sum(pg_table_size(r.relation)), 0) FROM insta_ids_internal.shard_relation r
                WHERE r.shard = ANY (move.shards) AND r.kind = 'r'),
               'offered'
        RETURNING m.* INTO move;
        is_new := true;
    END IF;
    IF move.from_node <> here OR move.to_node <> move_offer.to_node THEN
        PERFORM insta_ids.check_moves(first, last);
    END IF;
    -- What differs between them cannot come of the same migrations.
    objects := insta_ids.objects_json(move.shards[1]);
    FOREACH shard IN ARRAY move.shards[2:] LOOP
        IF insta_ids.objects_json(shard) <> objects THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('shard %s cannot be moved', shard),
                DETAIL = format('What is in it differs from what is in shard %s.', move.shards[1]),
                HINT = 'See insta_ids.check().';
        END IF;
    END LOOP;
    RETURN jsonb_build_object(
        'name', move.name, 'id', move.id, 'is_new', is_new, 'first', first, 'last', last, 'shards', to_jsonb(move.shards),
        'from_node', here, 'to_node', to_node, 'bytes', move.bytes,
        'map', insta_ids.shard_map(),
        'migrations', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
                'transactional', m.transactional, 'check_ids', m.check_ids) ORDER BY m.number), '[]')
            FROM insta_ids_internal.migration m),
        'objects', objects,
        'partitions', (SELECT jsonb_object_agg(s, insta_ids.partitions_json(s)) FROM unnest(move.shards) s));
END
$$;

-- Lets nobody alter these shards, while they are written to. A server that is promoted meanwhile mints no ids for them.
CREATE FUNCTION insta_ids_internal.fence_offer(shards integer[], to_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node, timeline)
    SELECT s, false, to_node, insta_ids_internal.timeline() FROM unnest(shards) s;
END
$$;

-- What rows and values of shards are in.
CREATE FUNCTION insta_ids.relations_of(shards integer[]) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT r.relation::oid FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards) ORDER BY r.relation::oid);

-- The tables of shards, as a publication names them: partitions go with what they are of.
CREATE FUNCTION insta_ids.published_tables(shards integer[]) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.string_agg(r.relation::text, ', ' ORDER BY r.relation)
    FROM insta_ids_internal.shard_relation r
    WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') AND NOT r.is_partition;
END;

-- Makes the slot that the subscription reads, once: what was written after one that is lost would not come. No transaction
-- that has written something can make one, so that is written down afterwards.
CREATE FUNCTION insta_ids.move_slot(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids.open_move(move);
    ELSIF NOT moving.has_slot THEN
        PERFORM insta_ids_internal.check_publication(moving);
        IF NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = insta_ids_internal.slot_of(moving)) THEN
            PERFORM pg_create_logical_replication_slot(insta_ids_internal.slot_of(moving), 'pgoutput');
        ELSIF EXISTS (
            SELECT FROM pg_replication_slots s
            WHERE s.slot_name = insta_ids_internal.slot_of(moving) AND s.confirmed_flush_lsn IS NULL)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = format('replication slot of move "%s" is being made', move),
                DETAIL = 'Another session waits for the transactions that were open when it began.',
                HINT = 'Call again when they have ended.';
        END IF;
        UPDATE insta_ids_internal.move m SET has_slot = true WHERE m.name = move;
    ELSE
        PERFORM insta_ids.move_lag(move);
    END IF;
END
$$;

-- Refuses a move whose publication was dropped: one that is made anew would lack what was written meanwhile.
CREATE FUNCTION insta_ids_internal.check_publication(moving insta_ids_internal.move) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = moving.name) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('publication of move "%s" is lost', moving.name),
            HINT = insta_ids_internal.hint_to_abort(moving);
    END IF;
END
$$;

-- How many bytes of WAL the target has not confirmed yet.
CREATE FUNCTION insta_ids.move_lag(move name) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    slot record;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn) AS lag, s.wal_status INTO slot
    FROM pg_replication_slots s WHERE s.slot_name = insta_ids_internal.slot_of(moving);
    IF NOT FOUND OR slot.wal_status = 'lost' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('replication slot of move "%s" is lost', move),
            HINT = insta_ids_internal.hint_to_abort(moving);
    END IF;
    PERFORM insta_ids_internal.check_publication(moving);
    RETURN slot.lag;
END
$$;

-- Whether one of these slots is not there.
CREATE FUNCTION insta_ids.move_slots_lost(table_slots name[]) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM pg_catalog.unnest(table_slots) t WHERE t NOT IN (SELECT s.slot_name FROM pg_catalog.pg_replication_slots s));

CREATE FUNCTION insta_ids.move_fence(move name, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids.open_move(move);
    -- Where this server was promoted since the offer: the timeline of before.
    before integer;
BEGIN
    IF moving.step = 'offered' THEN
        before := (
            SELECT min(f.timeline) FROM insta_ids_internal.fence f
            WHERE f.shard = ANY (moving.shards) AND f.timeline <> insta_ids_internal.timeline());
        PERFORM insta_ids.close_shards(moving.shards, moving.to_node, lock_timeout);
        -- It is kept, as writes may have come before this fence and after the hand-over.
        UPDATE insta_ids_internal.fence f SET timeline = before WHERE f.shard = ANY (moving.shards) AND before IS NOT NULL;
        -- What was taken out of a schema is in it no more when event triggers see it.
        IF insta_ids.relations_of(moving.shards) <> moving.relations
            OR insta_ids.published_tables(moving.shards) IS DISTINCT FROM (
                SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid)
                FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = move)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('tables or sequences of shards from %s to %s have changed since the move began',
                    moving.first, moving.last),
                HINT = format('End the move with insta_ids.move_abort(%s, %s), and begin it again.', moving.first, moving.last);
        END IF;
        UPDATE insta_ids_internal.move m
        SET step = 'fenced', step_at = now(), fenced_by = pg_current_xact_id(), fences = m.fences + 1,
            standbys = ARRAY(SELECT c.standby FROM insta_ids_internal.connected_standbys() c)
        WHERE m.name = move;
    END IF;
END
$$;

-- The standbys that are connected to this server, by their names and addresses, and how much of the WAL each has flushed.
-- Neither subscriptions nor base backups are among them. Not everybody may see what this reads.
CREATE FUNCTION insta_ids_internal.connected_standbys() RETURNS TABLE (standby text, flushed pg_lsn)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A transaction keeps what it has seen of sessions.
    PERFORM pg_stat_clear_snapshot();
    RETURN QUERY
    SELECT format('standby "%s"%s', r.application_name, ' at ' || host(r.client_addr)), coalesce(r.flush_lsn, '0/0')
    FROM pg_stat_replication r LEFT JOIN pg_replication_slots t ON t.active_pid = r.pid
    WHERE r.state IN ('catchup', 'streaming') AND t.slot_type IS DISTINCT FROM 'logical' AND t.temporary IS NOT true;
END
$$;

-- The standby of this server that is farthest behind, with its name, whether it is connected and how many bytes of WAL it has
-- not flushed; NULL if none lacks more than `max_lag`. One that is not connected has a slot, or is one of those in `known`.
CREATE FUNCTION insta_ids_internal.standby_behind(max_lag bigint, known text[]) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT pg_lsn := pg_current_wal_flush_lsn();
BEGIN
    RETURN (
        WITH connected AS (SELECT * FROM insta_ids_internal.connected_standbys())
        SELECT jsonb_build_object('name', s.name, 'is_connected', s.is_connected, 'lag', s.lag)
        FROM (
            SELECT c.standby, true, pg_wal_lsn_diff(own, c.flushed)::bigint FROM connected c
            UNION ALL
            -- One that was never used has no position.
            SELECT format('standby of slot "%s"', t.slot_name), false, pg_wal_lsn_diff(own, t.restart_lsn)::bigint
            FROM pg_replication_slots t WHERE t.slot_type = 'physical' AND NOT t.active AND t.restart_lsn IS NOT NULL
            UNION ALL
            SELECT k, false, NULL FROM unnest(known) k WHERE k NOT IN (SELECT c.standby FROM connected c)
        ) s (name, is_connected, lag)
        WHERE coalesce(s.lag > CASE WHEN s.is_connected THEN max_lag ELSE 0 END, true)
        ORDER BY s.is_connected, s.lag DESC LIMIT 1);
END
$$;

-- What the target goes on from: the WAL that it must have, the time that ids have not reached, and the sequences. Asked
-- for when the fence is there for all to see. It waits so long for all standbys to have the fence on disk, as one that is
-- promoted without it would take writes; with NULL, it does not look at standbys.
CREATE FUNCTION insta_ids.move_mark(move name, await_standbys interval DEFAULT '5 s') RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move := insta_ids.open_move(move);
    sequences jsonb := '[]';
    sequence insta_ids_internal.shard_relation;
    value record;
    -- What is flushed with the fence: all that was committed before. The target is sent nothing else.
    fenced CONSTANT pg_lsn := pg_current_wal_flush_lsn();
    gives_up_at CONSTANT numeric := insta_ids_internal.steady_ms() + extract(epoch FROM await_standbys) * 1000;
    standby jsonb;
BEGIN
    IF moving.step <> 'fenced' OR moving.fenced_by = pg_current_xact_id() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not fenced', moving.first, moving.last),
            HINT = 'Call insta_ids.move_fence() in a transaction before.';
    ELSIF moving.mark IS NULL THEN
        WHILE await_standbys IS NOT NULL LOOP
            standby := insta_ids_internal.standby_behind(
                pg_wal_lsn_diff(pg_current_wal_flush_lsn(), fenced)::bigint, moving.standbys);
            EXIT WHEN standby IS NULL;
            IF insta_ids_internal.steady_ms() > gives_up_at THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('%s of node "%s" does not have the fence yet', standby ->> 'name', moving.from_node),
                    DETAIL = format('It %s. Promoted without the fence, it would take writes that are lost.',
                        CASE WHEN (standby ->> 'is_connected')::boolean
                            THEN 'lacks ' || pg_size_pretty((standby ->> 'lag')::bigint) || ' of WAL'
                            ELSE 'is not connected' END),
                    HINT = 'Wait until the standby has caught up, or do not wait for standbys: see await_standbys of'
                        || ' insta_ids.move_shards() and insta_ids.move_mark().';
            END IF;
            PERFORM insta_ids_internal.wait_ms(5);
        END LOOP;
        FOR sequence IN
            SELECT * FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (moving.shards) AND r.kind = 'S'
        LOOP
            EXECUTE format('SELECT last_value, is_called FROM %s', sequence.relation) INTO value;
            sequences := sequences
                || jsonb_build_array(jsonb_build_array(sequence.schema, sequence.name, value.last_value, value.is_called));
        END LOOP;
        UPDATE insta_ids_internal.move m
        SET mark = jsonb_build_object('id', m.id, 'fence', m.fences, 'lsn', fenced, 'sequences', sequences,
            -- Every id of this database is of a time that its lease covers.
            'until', (SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c),
            'version', (SELECT coalesce(max(p.version), 0) FROM insta_ids_internal.map p))
        WHERE m.name = move
        RETURNING m.mark INTO moving.mark;
    END IF;
    RETURN moving.mark;
END
$$;

-- Drops the slot of a move and those by which its tables were copied, when the target has let go of them. A slot of another
-- database, or one that neither a move nor a subscription's copy has made, stays, whatever `table_slots` says.
CREATE FUNCTION insta_ids_internal.drop_slots(moving insta_ids_internal.move, table_slots jsonb) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot name;
BEGIN
    FOR slot IN
        SELECT s.slot_name FROM pg_replication_slots s
        WHERE s.database = current_database() AND s.slot_type = 'logical' AND s.plugin = 'pgoutput'
            AND (s.slot_name = insta_ids_internal.slot_of(moving)
                OR s.slot_name ~ '^pg_[0-9]+_sync_[0-9]+_[0-9]+$' AND table_slots ? s.slot_name::text)
    LOOP
        FOR attempt IN 1 .. 100 LOOP
            BEGIN
                PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s WHERE s.slot_name = slot;
                EXIT;
            EXCEPTION
                WHEN object_in_use THEN
                    IF attempt = 100 THEN
                        RAISE;
                    END IF;
                    -- What reads it has nothing to do any more.
                    PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots s WHERE s.slot_name = slot;
                    PERFORM insta_ids_internal.wait_ms(100);
            END;
        END LOOP;
    END LOOP;
END
$$;

-- Gives the map the shards of a move, as far as it has them on the source, and a version that is no older than this. All at
-- once: while the map is between, it would have some of them where they are not.
CREATE FUNCTION insta_ids.assign_moved(moving insta_ids_internal.move, version bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM insta_ids_internal.assignment a
        WHERE a.node = moving.from_node AND a.first <= moving.last AND a.last >= moving.first)
    THEN
        PERFORM insta_ids.set_assignments(array_agg(p.first), array_agg(p.last), array_agg(p.node))
        FROM insta_ids_internal.assignment a
        CROSS JOIN LATERAL (VALUES
            (a.first, least(a.last, moving.first - 1), a.node),
            (greatest(a.first, moving.first), least(a.last, moving.last),
                CASE a.node WHEN moving.from_node THEN moving.to_node ELSE a.node END),
            (greatest(a.first, moving.last + 1), a.last, a.node)
        ) p (first, last, node)
        WHERE p.first <= p.last;
    END IF;
    UPDATE insta_ids_internal.map m SET version = assign_moved.version WHERE m.version < assign_moved.version;
END
$$;

-- Lets go of what the target has taken over: `handed_over` is what move_hand_over returned there. Then, on the target, ends
-- the move there, too.
CREATE FUNCTION insta_ids.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    shard integer;
    schema name;
    kept name;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move) THEN
        RETURN;
    END IF;
    -- As who offers, makes or assigns shards: this table first, and then the move.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        DELETE FROM insta_ids_internal.move m WHERE m.name = move;
        RETURN;
    ELSIF moving.step <> 'fenced' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s have not left', moving.first, moving.last),
            DETAIL = format('The move is %s here.', moving.step);
    ELSIF handed_over ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may not be on node "%s" yet', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not handed over there.',
            HINT = 'Give what insta_ids.move_hand_over() returns there.';
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, NULL::jsonb), insta_ids.assign_moved(moving, (handed_over ->> 'version')::bigint);
    INSERT INTO insta_ids_internal.ended_move VALUES (moving.id, 'handed over', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
    DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOREACH shard IN ARRAY moving.shards LOOP
        schema := insta_ids.schema_of(shard);
        kept := CASE WHEN octet_length(schema || '__moved') < 64 THEN schema || '__moved' ELSE 'moved__' || shard END;
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
        INSERT INTO insta_ids_internal.moved VALUES (shard, kept, moving.to_node);
    END LOOP;
    DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Whether this server was promoted since it offered these shards. Then it may lack the fence, after which they were handed
-- over.
CREATE FUNCTION insta_ids_internal.is_in_doubt(shards integer[]) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.fence f
        WHERE f.shard = ANY (shards) AND NOT f.is_closed AND f.timeline <> insta_ids_internal.timeline());

-- Opens the shards of a move again, which goes on: `given_up` is what give_up_fence returned on the target.
CREATE FUNCTION insta_ids_internal.open_fence(move name, given_up jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'offered' THEN
        RETURN;
    ELSIF moving.step <> 'fenced'
        OR (given_up ->> 'id', given_up ->> 'fence') IS DISTINCT FROM (moving.id::text, moving.fences::text)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'Their fence was not given up there.',
            HINT = format('On that node: CALL insta_ids.move_abort(%s, %s, %L).', moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids.check_placement(s) FROM unnest(moving.shards) s;
    PERFORM insta_ids.open_shards(moving.shards);
    PERFORM insta_ids_internal.fence_offer(moving.shards, moving.to_node);
    UPDATE insta_ids_internal.move m SET step = 'offered', step_at = now(), fenced_by = NULL, mark = NULL WHERE m.name = move;
END
$$;

-- What another node must know of a move: its row there, and how the move of this id has ended.
CREATE FUNCTION insta_ids_internal.move_state(move name, id uuid) RETURNS jsonb
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_build_object('outcome', insta_ids.move_outcome(move_state.id))
        || coalesce((
            SELECT pg_catalog.jsonb_build_object('id', m.id, 'to_node', m.to_node, 'step', m.step, 'fences', m.fences,
                'shards', m.shards, 'was_promoted', EXISTS (
                    SELECT FROM insta_ids_internal.fence f
                    WHERE f.shard = ANY (m.shards) AND f.timeline <> insta_ids_internal.timeline()))
            FROM insta_ids_internal.move m WHERE m.name = move), '{}');
END;

-- Takes the offer back, and opens the shards again. Once they are fenced, the target must have cancelled the move:
-- `cancellation` is what move_cancel returned.
CREATE FUNCTION insta_ids.move_withdraw(move name, cancellation jsonb DEFAULT '{}') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    may_be_there boolean;
    elsewhere integer;
BEGIN
    IF insta_ids.move_outcome((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    -- Also where this server was promoted, and may have lost the fence.
    may_be_there := moving.step = 'fenced' OR insta_ids_internal.is_in_doubt(moving.shards);
    IF moving.step NOT IN ('offered', 'fenced') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('End the move here: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
    ELSIF (may_be_there OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- Who has never heard of the move cannot say that it will not take the shards over.
        OR may_be_there
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not cancelled there.',
            HINT = CASE WHEN cancellation ->> 'was_known' = 'false' AND moving.step = 'offered'
                THEN format('The move is unknown there. If no database of that node has these shards, on node "%s":'
                    || ' SELECT insta_ids.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m WHERE name = %L.',
                    moving.from_node, move)
                ELSE format('Call insta_ids.move_abort(%s, %s, %L) on that node.', moving.first, moving.last, moving.from_node) END;
    END IF;
    elsewhere := (SELECT min(s) FROM unnest(moving.shards) s WHERE NOT insta_ids.is_placed_here(s));
    IF elsewhere IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map does not have shard %s on this node', elsewhere),
            DETAIL = 'It would be opened to writers here.',
            HINT = format('On node "%1$s": SELECT insta_ids.assign(%2$s, %2$s, %1$L).'
                || ' Then call insta_ids.move_abort(%3$s, %4$s, %5$L) again where it was called.',
                insta_ids.this_node(), elsewhere, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids_internal.drop_slots(moving, cancellation -> 'table_slots');
    PERFORM insta_ids.open_shards(moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    INSERT INTO insta_ids_internal.ended_move VALUES (moving.id, 'withdrawn', moving.shards);
    DELETE FROM insta_ids_internal.move m WHERE m.name = move;
END
$$;

-- On both

-- For each table the number of its rows and, if all of them are compared, a number that is the same for the same rows.
CREATE FUNCTION insta_ids.move_hashes(move name, verify text DEFAULT 'full') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF verify NOT IN ('full', 'count') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full" or "count".';
    END IF;
    IF NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move) THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    RETURN (
        SELECT coalesce(jsonb_object_agg(r.relation, array_remove(ARRAY[s.rows, s.hash], NULL)), '{}')
        FROM insta_ids_internal.move m
        JOIN insta_ids_internal.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
        CROSS JOIN LATERAL insta_ids_internal.survey_rows(r.relation, verify = 'full') s
        WHERE m.name = move);
END
$$;

-- On the target

CREATE FUNCTION insta_ids.move_prepare(offer jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids.prepare_shards(offer, pg_catalog.current_setting('search_path'));
END
$$;

-- Makes the shards that were offered, empty and closed. `path` is the search_path of who asked for it.
CREATE FUNCTION insta_ids.prepare_shards(offer jsonb, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := jsonb_populate_record(NULL::insta_ids_internal.move, offer);
    here CONSTANT name := insta_ids.this_node();
    outcome text;
    tables text;
    shard integer;
    difference record;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be prepared'), insta_ids.commit_durably(), insta_ids.check_writer();
    IF here IS DISTINCT FROM moving.to_node THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this server is not node "%s"', moving.to_node),
            DETAIL = format('It is %s.', coalesce('node "' || here || '"', 'no node')),
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server; or call this on the other one.';
    END IF;
    -- Whoever cancels the move, or prepares it as well, waits until this has ended.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM insta_ids_internal.move m WHERE (m.name, m.id) = (moving.name, moving.id)) THEN
        RETURN;
    END IF;
    outcome := insta_ids.move_outcome(moving.id);
    IF outcome IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('offer of shards from %s to %s is void', moving.first, moving.last),
            DETAIL = format('It was %s here.', outcome),
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L).', moving.from_node,
                moving.first, moving.last);
    END IF;
    PERFORM insta_ids.check_moves(moving.first, moving.last);
    IF (offer #>> '{map,version}')::bigint > coalesce((SELECT m.version FROM insta_ids_internal.map m), 0) THEN
        PERFORM insta_ids.apply_map(offer -> 'map');
    END IF;
    PERFORM insta_ids.check_node(moving.from_node), insta_ids.check_range(moving.first, moving.last, 1),
        insta_ids.take_migrations(offer -> 'migrations', moving.from_node);
    PERFORM insta_ids.check_absent(moving.first, moving.last);
    shard := (
        SELECT min(s) FROM unnest(moving.shards) s
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = moving.from_node));
    IF shard IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map here does not have shard %s on node "%s"', shard, moving.from_node),
            DETAIL = format('Its version is %s, and %s there.', (SELECT m.version FROM insta_ids_internal.map m), offer #>> '{map,version}'),
            HINT = 'Assign on one of the two nodes what the other has, and apply that map on the other.';
    END IF;

    FOREACH shard IN ARRAY moving.shards LOOP
        PERFORM insta_ids.make_shard(shard, path), insta_ids.make_partitions(shard, offer #> ARRAY['partitions', shard::text]);
        IF shard = moving.shards[1] THEN
            PERFORM insta_ids.check_locks(cardinality(moving.shards));
            SELECT * INTO difference
            FROM (
                SELECT x.object ->> 0 AS kind, concat_ws('.', x.object ->> 1, x.object ->> 2) AS name,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE x.is_ours) AS ours,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE NOT x.is_ours) AS theirs
                FROM (
                    SELECT o, true FROM jsonb_array_elements(insta_ids.objects_json(shard)) o
                    UNION ALL
                    SELECT o, false FROM jsonb_array_elements(offer -> 'objects') o
                ) x (object, is_ours)
                GROUP BY 1, 2
            ) d
            WHERE d.ours IS DISTINCT FROM d.theirs ORDER BY d.kind, d.name LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not what its migrations make', shard),
                    DETAIL = format('%s %s: here %s, on node "%s" %s.',
                        upper(left(difference.kind, 1)) || substr(difference.kind, 2), difference.name,
                        coalesce(insta_ids.in_shard(difference.ours, insta_ids.schema_of(shard), shard), 'nothing'),
                        moving.from_node,
                        coalesce(insta_ids.in_shard(difference.theirs, insta_ids.schema_of(shard), shard), 'nothing')),
                    HINT = 'Add what was done by hand there as a migration, which does nothing where it is done.';
            END IF;
        END IF;
    END LOOP;
    -- Rows that migrations made come from the source, too.
    tables := insta_ids.published_tables(moving.shards);
    IF tables IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || tables;
    END IF;
    PERFORM insta_ids.close_shards(moving.shards, here, '2s');
    INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
    VALUES (moving.name, moving.id, moving.first, moving.last, moving.shards, moving.from_node, moving.to_node, moving.bytes,
        'prepared');
END
$$;

-- Refuses shards of which something is here.
CREATE FUNCTION insta_ids.check_absent(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here integer := (SELECT min(s.shard) FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last);
BEGIN
    IF here IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s is already on this node', here);
    END IF;
    PERFORM insta_ids.check_left(first, last);
END
$$;

-- Adds the migrations of another node that are not here; the others must be the same.
CREATE FUNCTION insta_ids.take_migrations(migrations jsonb, from_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    different text;
BEGIN
    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    SELECT m.name INTO different
    FROM insta_ids_internal.migration m
    LEFT JOIN jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean)
        ON t.number = m.number
    WHERE (m.name, m.ddl, m.transactional, m.check_ids) IS DISTINCT FROM (t.name, t.ddl, t.transactional, t.check_ids)
    ORDER BY m.number LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" is not the same on node "%s"', different, from_node),
            HINT = 'Add the same migrations in the same order on all nodes.';
    END IF;
    INSERT INTO insta_ids_internal.migration
    SELECT t.number, t.name, t.ddl, t.transactional, t.check_ids
    FROM jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean)
    WHERE NOT EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.number = t.number);
END
$$;

-- Gives the partitioned tables of a shard these partitions, and no others. Of what the source says, nothing is run that is
-- more than literals and names of columns.
CREATE FUNCTION insta_ids.make_partitions(shard integer, partitions jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on
AS $$
DECLARE
    schema CONSTANT name := insta_ids.schema_of(shard);
    literals CONSTANT text := format($re$\(%1$s(, %1$s)*\)$re$, $re$(NULL|MINVALUE|MAXVALUE|true|false|[0-9.]+|B?'([^']|'')*')$re$);
    bounds CONSTANT text := format(
        $re$^(DEFAULT|FOR VALUES (IN %1$s|FROM %1$s TO %1$s|WITH \(modulus [0-9]+, remainder [0-9]+\)))\Z$re$, literals);
    own CONSTANT jsonb := insta_ids.partitions_json(shard);
    partition jsonb;
    columns text;
BEGIN
    FOR partition IN
        SELECT p FROM jsonb_array_elements(own) WITH ORDINALITY p (p, n)
        WHERE p NOT IN (SELECT o FROM jsonb_array_elements(partitions) o) ORDER BY n DESC
    LOOP
        EXECUTE format('DROP TABLE %I.%I', schema, partition ->> 1);
    END LOOP;
    FOR partition IN
        SELECT p FROM jsonb_array_elements(partitions) WITH ORDINALITY p (p, n)
        WHERE p NOT IN (SELECT o FROM jsonb_array_elements(own) o) ORDER BY n
    LOOP
        columns := (
            SELECT string_agg(quote_ident(k.name), ', ' ORDER BY k.place)
            FROM jsonb_array_elements_text(nullif(partition -> 3, 'null')) WITH ORDINALITY k (name, place) WHERE k.place > 1);
        IF partition ->> 2 !~ bounds OR partition #>> '{3,0}' NOT IN ('RANGE', 'LIST', 'HASH') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('offer has a partition "%s" that cannot be made', partition ->> 1),
                DETAIL = format('Its bounds are "%s", its partition key is %s.', partition ->> 2, partition -> 3);
        END IF;
        EXECUTE format('CREATE TABLE %I.%I PARTITION OF %1$I.%3$I %s%s', schema, partition ->> 1, partition ->> 0,
            partition ->> 2, ' PARTITION BY ' || (partition #>> '{3,0}') || ' (' || columns || ')');
    END LOOP;
END
$$;

-- Refuses shards in which the subscription would run what a role has put there that is no superuser. Since PostgreSQL 16
-- each table's owner runs it. What belongs to superusers is altered by nobody else afterwards, be it of the shards or not.
CREATE FUNCTION insta_ids_internal.check_owners(shards integer[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owned record;
BEGIN
    IF current_setting('server_version_num')::integer >= 160000 THEN
        RETURN;
    END IF;
    -- What is in the schemas with all its parts, and what these call, in other schemas, too.
    WITH RECURSIVE needed AS (
        SELECT 'pg_namespace'::regclass::oid AS class, s.oid FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (shards)
        UNION
        SELECT d.class, d.oid
        FROM needed n
        CROSS JOIN LATERAL (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = n.class AND d.refobjid = n.oid
                AND (n.class = 'pg_namespace'::regclass OR d.deptype IN ('a', 'i', 'P', 'S'))
            UNION ALL
            SELECT d.refclassid, d.refobjid FROM pg_depend d
            WHERE d.classid = n.class AND d.objid = n.oid
                AND d.refclassid NOT IN ('pg_namespace'::regclass, 'pg_extension'::regclass)
        ) d (class, oid)
    )
    SELECT pg_describe_object(n.class, n.oid, 0) AS object, r.rolname AS role, i.type, i.identity INTO owned
    FROM needed n
    JOIN pg_shdepend d ON d.classid = n.class AND d.objid = n.oid AND d.deptype = 'o'
        AND d.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
    JOIN pg_roles r ON d.refclassid = 'pg_authid'::regclass AND r.oid = d.refobjid AND NOT r.rolsuper
    CROSS JOIN LATERAL pg_identify_object(n.class, n.oid, 0) i
    WHERE n.class IN ('pg_namespace'::regclass, 'pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass,
        'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass)
    -- With a table, the sequences that belong to it get its owner.
    ORDER BY i.type = 'sequence', i.type, i.identity LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('%s belongs to role "%s"', owned.object, owned.role),
            DETAIL = 'PostgreSQL 15 runs the code of tables that a subscription writes to with the rights of the subscription''s owner.',
            HINT = format('If you trust that code: ALTER %s %s OWNER TO CURRENT_USER. Then call insta_ids.move_shards() again.'
                || ' After the move the role can get it back.', upper(owned.type), owned.identity);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.move_subscribe(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids.open_move(move);
    dsn CONSTANT text := (SELECT n.dsn FROM insta_ids_internal.node n WHERE n.node = moving.from_node);
    subscription insta_ids_internal.subscription;
BEGIN
    IF moving.step NOT IN ('prepared', 'copying') THEN
        RETURN;
    ELSIF current_setting('max_logical_replication_workers')::integer = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'subscriptions do not run on this server',
            DETAIL = '"max_logical_replication_workers" is 0.',
            HINT = 'Raise it in postgresql.conf, and restart the server.';
    END IF;
    PERFORM insta_ids_internal.check_owners(moving.shards);
    SELECT * INTO subscription FROM insta_ids_internal.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        -- Its tables have rows, which a new one would copy again.
        IF moving.step = 'copying' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('subscription of move "%s" is lost', move),
                HINT = insta_ids_internal.hint_to_abort(moving);
        END IF;
        EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %1$I'
            || ' WITH (create_slot = false, slot_name = %3$L, streaming = off, disable_on_error = true)', move, dsn,
            insta_ids_internal.slot_of(moving));
    ELSIF subscription.dsn <> dsn THEN
        EXECUTE format('ALTER SUBSCRIPTION %I CONNECTION %L', move, dsn);
    END IF;
    IF NOT subscription.is_enabled THEN
        EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', move);
    END IF;
    UPDATE insta_ids_internal.move m SET step = 'copying', step_at = now() WHERE m.name = move AND m.step = 'prepared';
END
$$;

-- Whether all tables are copied, and follow the source.
CREATE FUNCTION insta_ids.move_copied(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    subscription insta_ids_internal.subscription;
BEGIN
    SELECT * INTO subscription FROM insta_ids_internal.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        moving := insta_ids.open_move(move);
        IF moving.step = 'handed over' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('another session has handed over the shards of move "%s"', move),
                HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', moving.first, moving.last, moving.from_node);
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('subscription of move "%s" is lost', move),
            HINT = insta_ids_internal.hint_to_abort(moving);
    ELSIF NOT subscription.is_enabled THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('subscription of move "%s" has stopped at an error', move),
            HINT = 'The error is in the log of this server. Mend its cause, and call insta_ids.move_shards() again.';
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM pg_subscription_rel r WHERE r.srsubid = subscription.oid AND r.srsubstate <> 'r');
END
$$;

-- The slots on the source of tables that are copied, and have not caught up. If a server dies while one is dropped, the
-- target may go on waiting for it.
CREATE FUNCTION insta_ids.move_table_slots(move name, states "char"[] DEFAULT '{f}') RETURNS name[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT pg_catalog.format('pg_%s_sync_%s_%s', s.oid, r.srrelid, c.system_identifier)::pg_catalog.name
        FROM insta_ids_internal.subscription s
        JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid AND r.srsubstate = ANY (states)
        CROSS JOIN pg_catalog.pg_control_system() c
        WHERE s.name = move);

-- Begins to copy again, when such a slot is lost.
CREATE FUNCTION insta_ids.move_recopy(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids.open_move(move);
    role CONSTANT text := current_setting('session_replication_role');
BEGIN
    IF moving.step <> 'copying' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not being copied', moving.first, moving.last);
    END IF;
    PERFORM insta_ids.drop_subscription(move);
    -- Past the fence, as the subscription goes.
    PERFORM set_config('session_replication_role', 'replica', true);
    EXECUTE 'TRUNCATE ' || insta_ids.published_tables(moving.shards);
    PERFORM set_config('session_replication_role', role, true);
    UPDATE insta_ids_internal.move m SET step = 'prepared' WHERE m.name = move;
    PERFORM insta_ids.move_subscribe(move);
END
$$;

-- Whether the subscription of a move runs, and has told the source that all before this position is applied. What it told
-- before it was started again does not count.
CREATE FUNCTION insta_ids_internal.has_applied(move name, lsn pg_lsn) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.subscription u
        JOIN pg_catalog.pg_stat_subscription s ON s.subid = u.oid AND s.relid IS NULL AND s.pid IS NOT NULL
        WHERE u.name = move AND coalesce(s.latest_end_lsn, '0/0') >= lsn);

-- Whether all that was written on the source before its mark is here.
CREATE FUNCTION insta_ids.move_drained(move name, mark jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids.move_copied(move) AND insta_ids_internal.has_applied(move, (mark ->> 'lsn')::pg_catalog.pg_lsn);

-- Takes the shards over: before its end they are closed on both servers, afterwards they are open here. `theirs` are the
-- hashes of the source, `ours` those of this server; without, nothing is compared. Returns what the source must see to let
-- go of them, also when it was done before.
CREATE FUNCTION insta_ids.move_hand_over(
        move name, mark jsonb DEFAULT NULL, theirs jsonb DEFAULT NULL, ours jsonb DEFAULT NULL)
    RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    different record;
BEGIN
    -- This table first, and then the move, as whoever offers, makes or assigns shards.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        RETURN jsonb_build_object('id', moving.id, 'version', (SELECT m.version FROM insta_ids_internal.map m));
    ELSIF mark ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark is not of move "%s"', move),
            HINT = 'Ask insta_ids.move_mark() on the source for it.';
    ELSIF (mark ->> 'fence')::integer <= moving.fences THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark of move "%s" is of a fence that was given up', move),
            HINT = 'Fence the shards again: insta_ids.move_fence() on the source, and then insta_ids.move_mark().';
    ELSIF moving.step <> 'copying' OR NOT insta_ids.move_drained(move, mark) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not all here yet', moving.first, moving.last),
            HINT = 'Wait until insta_ids.move_drained() says so.';
    END IF;
    IF theirs IS NOT NULL THEN
        SELECT coalesce(t.key, o.key) AS relation, t.value AS theirs, o.value AS ours INTO different
        FROM jsonb_each(theirs) t
        FULL JOIN jsonb_each(coalesce(ours, insta_ids.move_hashes(move,
            CASE WHEN theirs @? '$.*[1]' THEN 'full' ELSE 'count' END))) o ON o.key = t.key
        WHERE t.value IS DISTINCT FROM o.value LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'data_corrupted',
                MESSAGE = format('rows of table %s are not the same on both servers', different.relation),
                DETAIL = format('Their number and hash are %s on node "%s", and %s here.', different.theirs, moving.from_node,
                    different.ours),
                HINT = format('The source has all rows: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
        END IF;
    END IF;

    SELECT format('%I.%I', s ->> 0, s ->> 1) AS name INTO different FROM jsonb_array_elements(mark -> 'sequences') s
    WHERE NOT EXISTS (
        SELECT FROM insta_ids_internal.shard_relation r
        WHERE r.shard = ANY (moving.shards) AND r.kind = 'S' AND r.schema = s ->> 0 AND r.name = s ->> 1)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark of move "%s" names %s, which is no sequence of its shards', move, different.name);
    END IF;
    PERFORM setval(format('%I.%I', s ->> 0, s ->> 1)::regclass, (s ->> 2)::bigint, (s ->> 3)::boolean)
    FROM jsonb_array_elements(mark -> 'sequences') s;
    PERFORM insta_ids.advance_clock((mark ->> 'until')::timestamptz) WHERE mark ->> 'until' IS NOT NULL;
    DELETE FROM insta_ids_internal.moved d WHERE d.shard = ANY (moving.shards);
    PERFORM insta_ids.drop_subscription(move), insta_ids.open_shards(moving.shards),
        insta_ids.assign_moved(moving, (mark ->> 'version')::bigint + 1);
    UPDATE insta_ids_internal.move m SET step = 'handed over', step_at = now() WHERE m.name = move;
    INSERT INTO insta_ids_internal.ended_move VALUES (moving.id, 'handed over', moving.shards);
    RETURN insta_ids.move_hand_over(move);
END
$$;

-- Refuses hand-overs by the mark of this fence, or of an earlier one. Returns what the source must see to open the shards
-- again.
CREATE FUNCTION insta_ids_internal.give_up_fence(move name, fence integer) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are already on this node', moving.first, moving.last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', moving.first, moving.last, moving.from_node);
    END IF;
    UPDATE insta_ids_internal.move m SET fences = greatest(m.fences, fence) WHERE m.name = move;
    RETURN jsonb_build_object('id', moving.id, 'fence', fence);
END
$$;

-- Refuses to give up a copy here whose source says that it was handed over: it may be all that there is.
CREATE FUNCTION insta_ids_internal.check_not_left(moving insta_ids_internal.move, there jsonb) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF there ->> 'outcome' = 'handed over' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" has let go of shards from %s to %s', moving.from_node, moving.first, moving.last),
            DETAIL = format('This server has lost that they were handed over to it: here the move is %s.', moving.step),
            HINT = format('Node "%s" has their rows in schemas that are called as the shards, with __moved.', moving.from_node);
    END IF;
END
$$;

-- Refuses rows of the source that are not here, after shards were handed over to this node without that the source knows.
CREATE FUNCTION insta_ids_internal.check_left_behind(move name, from_node name, shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation text;
    rows bigint;
BEGIN
    FOR relation IN
        SELECT r.relation::text FROM insta_ids_internal.shard_relation r
        WHERE r.shard = ANY (shards) AND r.kind = 'r' ORDER BY r.relation
    LOOP
        EXECUTE format('SELECT count(*) FROM ('
            || 'SELECT a.hash FROM %I.dblink(''insta_ids''::text, %L::text) a (hash bigint) EXCEPT ALL %2$s) d',
            insta_ids.dblink_schema(), format(
                'SELECT h.hash FROM pg_catalog.unnest(insta_ids_internal.row_hashes(%L::pg_catalog.regclass)) h (hash)', relation))
        INTO rows;
        IF rows > 0 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'data_corrupted',
                MESSAGE = format('node "%s" has rows of table %s that this node does not have', from_node, relation),
                DETAIL = format('Of its rows, %s are not here or not the same. They were written there after the hand-over, or'
                    || ' changed or deleted here since. Both nodes could take writes; now node "%s" is fenced.', rows, from_node),
                HINT = 'Copy here what is missing. Then call again with verify => ''none'': the node keeps its rows in'
                    || ' schemas that are called as the shards, with __moved.';
        END IF;
    END LOOP;
END
$$;

-- Without its slot, which the source drops.
CREATE FUNCTION insta_ids.drop_subscription(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM insta_ids_internal.subscription s WHERE s.name = move) THEN
        EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', move);
        EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', move);
        EXECUTE format('DROP SUBSCRIPTION %I', move);
    END IF;
END
$$;

-- Forgets what was made here for a move whose shards have not been handed over; no offer of this id is taken up here any more.
-- Without a row of it, `id` says which it was. Returns what the source must see, with the slots there by which tables were
-- copied, and which are still there if it could not be reached.
CREATE FUNCTION insta_ids.move_cancel(move name, id uuid DEFAULT NULL) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    -- A session that prepares or hands over this move is waited for: then its row is here, or the move cannot be prepared.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF id IS NULL OR EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move) THEN
        moving := insta_ids.open_move(move);
    END IF;
    IF moving.step NOT IN ('prepared', 'copying', 'handed over') OR moving.id <> id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', moving.first, moving.last),
            HINT = format('Call insta_ids.move_abort(%s, %s) on node "%s".', moving.first, moving.last, moving.to_node);
    END IF;
    PERFORM insta_ids.commit_durably();
    id := coalesce(moving.id, id);
    -- Waits for who is handing it over.
    INSERT INTO insta_ids_internal.ended_move VALUES (id, 'cancelled', moving.shards,
        CASE WHEN moving.name IS NOT NULL THEN insta_ids.move_table_slots(move, '{i,d,f,s}') END)
    ON CONFLICT DO NOTHING;
    IF insta_ids.move_outcome(id) <> 'cancelled' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards of move "%s" are already here', move),
            HINT = 'Finish the move by calling insta_ids.move_shards() again.';
    END IF;
    IF moving.name IS NOT NULL THEN
        PERFORM insta_ids.drop_subscription(move);
        DELETE FROM insta_ids_internal.move m WHERE m.name = move;
        DELETE FROM insta_ids_internal.fence f WHERE f.shard = ANY (moving.shards);
        PERFORM insta_ids.drop_shard(s, force => true) FROM unnest(moving.shards) s;
    END IF;
    RETURN (
        SELECT jsonb_build_object('id', e.id, 'to_node', insta_ids.this_node(), 'was_known', e.table_slots IS NOT NULL,
            'table_slots', e.table_slots)
        FROM insta_ids_internal.ended_move e WHERE e.id = move_cancel.id);
END
$$;

-- Driving

-- Connects this session to another node, by dblink.
CREATE FUNCTION insta_ids.connect_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids.dblink_schema();
BEGIN
    PERFORM insta_ids.check_node(node), insta_ids.disconnect_node();
    EXECUTE format('SELECT %I.dblink_connect(''insta_ids'', %L)', dblink, (
        SELECT n.dsn FROM insta_ids_internal.node n WHERE n.node = connect_node.node));
    -- Whatever is set for the role there.
    EXECUTE format('SELECT %I.dblink_exec(''insta_ids'', %L)', dblink,
        'SET search_path = pg_catalog, pg_temp; SET default_transaction_isolation = ''read committed''; SET statement_timeout = 0');
    -- Where a connection string leads is for whom to say who may write the map; what is called there is the extension's.
    IF insta_ids.ask_node('SELECT to_jsonb(count(*)) FROM pg_extension e WHERE e.extname = ''insta_ids''') <> '1' THEN
        PERFORM insta_ids.disconnect_node();
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" does not have the extension insta_ids', node),
            HINT = 'Correct its connection string by insta_ids.add_node(), or CREATE EXTENSION insta_ids there.';
    END IF;
END
$$;

CREATE FUNCTION insta_ids.disconnect_node() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids.dblink_schema();
    is_connected boolean;
BEGIN
    EXECUTE format('SELECT ''insta_ids'' = ANY (%I.dblink_get_connections())', dblink) INTO is_connected;
    IF is_connected THEN
        EXECUTE format('SELECT %I.dblink_disconnect(''insta_ids'')', dblink);
    END IF;
END
$$;

CREATE FUNCTION insta_ids.dblink_schema() RETURNS name
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink');
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "dblink" is not installed in this database',
            HINT = 'Create it: CREATE EXTENSION dblink. Moves can also be made by their steps, from psql.';
    END IF;
    RETURN schema;
END
$$;

-- Asks the node that this session is connected to by a query of one value; or, if the answer takes long, begins to ask and
-- waits later.
CREATE FUNCTION insta_ids.ask_node(question text) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer jsonb;
BEGIN
    EXECUTE format('SELECT a.answer FROM %I.dblink(''insta_ids'', %L) a (answer jsonb)', insta_ids.dblink_schema(), question)
    INTO answer;
    RETURN answer;
END
$$;
CREATE FUNCTION insta_ids.begin_to_ask_node(question text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('SELECT %I.dblink_send_query(''insta_ids'', %L)', insta_ids.dblink_schema(), question);
END
$$;
CREATE FUNCTION insta_ids.await_node() RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    get_result CONSTANT text :=
        format('SELECT a.answer FROM %I.dblink_get_result(''insta_ids'') a (answer jsonb)', insta_ids.dblink_schema());
    answer jsonb;
    is_busy boolean;
BEGIN
    -- Not by dblink, which cannot be cancelled while it waits before PostgreSQL 17.
    LOOP
        EXECUTE format('SELECT %I.dblink_is_busy(''insta_ids''::text) = 1', insta_ids.dblink_schema()) INTO is_busy;
        EXIT WHEN NOT is_busy;
        PERFORM insta_ids_internal.wait_ms(2);
    END LOOP;
    EXECUTE get_result INTO answer;
    -- With the end of the results, the connection is free again.
    EXECUTE get_result;
    RETURN answer;
END
$$;

CREATE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'full', lock_timeout text DEFAULT '2s',
        max_lag bigint DEFAULT 1048576, max_pause interval DEFAULT '10 s', await_standbys boolean DEFAULT true)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    -- How long the subscription may take to start, in milliseconds.
    patience pg_catalog.int8;
    here pg_catalog.name;
    moving insta_ids_internal.move;
    there pg_catalog.jsonb;
    offer pg_catalog.jsonb;
    mark pg_catalog.jsonb;
    ours pg_catalog.jsonb;
    theirs pg_catalog.jsonb;
    relation pg_catalog.text;
    handed_over pg_catalog.jsonb;
    -- Of the steady clock.
    fenced_at pg_catalog.int8;
    told_at pg_catalog.int8 := 0;
    ran_at pg_catalog.int8;
    -- Where the source was when this call began.
    begun pg_catalog.pg_lsn;
    lag pg_catalog.int8;
    lead pg_catalog.interval;
    table_slots pg_catalog.name[] := '{}';
    progress pg_catalog.record;
    code pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    hint pg_catalog.text;
    is_drained pg_catalog.bool := false;
    -- Of the source, the one that is farthest behind.
    standby pg_catalog.jsonb;
    standbys pg_catalog.text[] := '{}';
BEGIN
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last, from_node, verify, lock_timeout, max_lag, max_pause, await_standbys) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'no argument of move_shards can be NULL';
    ELSIF verify NOT IN ('full', 'count', 'none') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full", "count" or "none".';
    ELSIF max_pause NOT BETWEEN interval '1 ms' AND interval '7 days' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('max_pause cannot be %s', max_pause),
            DETAIL = 'It can be from 1 ms to 7 days.';
    END IF;
    here := insta_ids.own_node();
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF FOUND THEN
        PERFORM insta_ids_internal.check_own_move(moving);
    END IF;
    IF (moving.from_node, moving.to_node) IS DISTINCT FROM (move_shards.from_node, here) THEN
        PERFORM insta_ids.check_moves(first, last);
    END IF;
    PERFORM insta_ids.connect_node(from_node);
    there := insta_ids.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, %L::uuid)', move, moving.id));
    -- What is open here says itself how far it is; of what is not, the outcome must be of the source's shards.
    IF moving.step = 'handed over' OR moving.id IS NULL AND EXISTS (
        SELECT FROM insta_ids_internal.ended_move e
        WHERE e.id = (there ->> 'id')::uuid AND e.outcome = 'handed over' AND to_jsonb(e.shards) = there -> 'shards')
    THEN
        CALL insta_ids_internal.finish_move(move, from_node, there, verify, lock_timeout);
        PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
        RETURN;
    ELSIF moving.id <> coalesce((there ->> 'id')::uuid, gen_random_uuid()) THEN
        PERFORM insta_ids_internal.check_not_left(moving, there);
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('move of shards from %s to %s has ended on node "%s"', first, last, from_node),
            HINT = format('End it here, too: CALL insta_ids.move_abort(%s, %s, %L).', first, last, from_node);
    END IF;

    IF moving.id IS NULL THEN
        PERFORM insta_ids.check_absent(first, last);
        offer := insta_ids.ask_node(format('SELECT insta_ids.move_offer(%s, %s, %L)', first, last, here));
        BEGIN
            PERFORM insta_ids.prepare_shards(offer, path);
        EXCEPTION WHEN OTHERS THEN
            -- What another session has offered is its own.
            IF (offer ->> 'is_new')::boolean THEN
                PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L)', move));
            END IF;
            RAISE;
        END;
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: prepared, % shards, % here', jsonb_array_length(offer -> 'shards'),
            pg_size_pretty((offer ->> 'bytes')::bigint);
    END IF;
    PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_slot(%L)', move));
    PERFORM insta_ids.move_subscribe(move);
    CALL insta_ids.new_transaction();
    -- The subscription has come there when it runs, which is known before the fence.
    begun := insta_ids.ask_node('SELECT to_jsonb(pg_current_wal_flush_lsn())') #>> '{}';
    ran_at := insta_ids_internal.steady_ms();
    patience := (
        SELECT greatest(15000, 3 * s.setting::bigint) FROM pg_settings s WHERE s.name = 'wal_retrieve_retry_interval');
    LOOP
        lag := insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_lag(%L))', move));
        IF insta_ids.move_copied(move) AND lag <= max_lag AND insta_ids_internal.has_applied(move, begun) THEN
            EXIT WHEN NOT await_standbys;
            -- One that was waited for must not be forgotten because its connection ends.
            IF standby IS NOT NULL AND NOT standby ->> 'name' = ANY (standbys) THEN
                standbys := standbys || (standby ->> 'name');
            END IF;
            standby := insta_ids.ask_node(
                format('SELECT insta_ids_internal.standby_behind(%L::bigint, %L::text[])', max_lag, standbys));
            EXIT WHEN standby IS NULL;
            IF NOT (standby ->> 'is_connected')::boolean THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('%s of node "%s" is not connected', standby ->> 'name', from_node),
                    DETAIL = 'It would not have the fence. Promoted later, it would take writes that are lost.',
                    HINT = 'Start the standby and call again, or call with await_standbys => false; if it is gone, drop its slot.';
            END IF;
        END IF;
        IF insta_ids_internal.has_applied(move, '0/0'::pg_lsn) THEN
            ran_at := insta_ids_internal.steady_ms();
        ELSIF insta_ids_internal.steady_ms() > ran_at + patience THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('subscription of move "%s" does not run', move),
                DETAIL = format('It has not started for %s s, and writers were not stopped.', patience / 1000),
                HINT = 'See the log of this server; "max_logical_replication_workers" or "max_worker_processes" may be too low.';
        END IF;
        IF insta_ids_internal.steady_ms() > told_at + 1000 THEN
            told_at := insta_ids_internal.steady_ms();
            SELECT * INTO progress FROM insta_ids.moves p WHERE p.name = move;
            RAISE NOTICE 'move_shards: % of % tables copied, % rows, % of %, % behind', progress.tables_copied,
                progress.tables, progress.rows, pg_size_pretty(progress.bytes), pg_size_pretty(progress.bytes_total),
                pg_size_pretty(lag);
            IF standby IS NOT NULL THEN
                RAISE NOTICE 'move_shards: % of node "%" is % behind', standby ->> 'name', from_node,
                    pg_size_pretty((standby ->> 'lag')::bigint);
            END IF;
            -- Of those that were there a second ago.
            table_slots := ARRAY(
                SELECT unnest(table_slots) INTERSECT SELECT unnest(insta_ids.move_table_slots(move)));
            IF insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_slots_lost(%L))', table_slots)) = 'true' THEN
                RAISE NOTICE 'move_shards: begins to copy again, as a server died while a table was at its end';
                PERFORM insta_ids.move_recopy(move);
            END IF;
            table_slots := insta_ids.move_table_slots(move);
        END IF;
        PERFORM insta_ids_internal.wait_ms(20);
        CALL insta_ids.new_transaction();
    END LOOP;
    -- So that the first queries here are planned as they should be.
    FOR relation IN
        SELECT r.relation FROM insta_ids_internal.move m
        JOIN insta_ids_internal.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
        WHERE m.name = move
    LOOP
        EXECUTE format('ANALYZE %s', relation);
    END LOOP;
    CALL insta_ids.new_transaction();

    -- Not only after it.
    lead := (insta_ids.ask_node('SELECT to_jsonb(c.id_time) FROM insta_ids.clock() c') #>> '{}')::timestamptz
        - clock_timestamp();
    IF lead > current_setting('insta_ids.clock_tolerance')::interval THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('clock of this server is %s behind the time of ids on node "%s"', lead, from_node),
            DETAIL = format('"insta_ids.clock_tolerance" is %s.', current_setting('insta_ids.clock_tolerance')),
            HINT = 'Correct the clock, and call again.';
    END IF;
    -- From the fence to the hand-over: whatever ends this block, a cancel, too, writers do not wait for the next call.
    BEGIN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_fence(%L, %L)', move, lock_timeout));
        fenced_at := insta_ids_internal.steady_ms();
        PERFORM insta_ids_internal.limit_statement((extract(epoch FROM max_pause) * 1000)::integer);
        -- The source gives up earlier than this session, which cannot be cancelled while it waits for that.
        mark := insta_ids.ask_node(format('SELECT insta_ids.move_mark(%L::name, %L::interval)', move,
            CASE WHEN await_standbys THEN max_pause * 0.8 END));
        RAISE NOTICE 'move_shards: fenced on node "%"', from_node;
        LOOP
            IF NOT insta_ids.move_drained(move, mark) THEN
                PERFORM insta_ids_internal.wait_ms(10);
                CONTINUE;
            END IF;
            is_drained := true;
            IF verify <> 'none' AND ours IS NULL THEN
                PERFORM insta_ids.begin_to_ask_node(format('SELECT insta_ids.move_hashes(%L, %L)', move, verify));
                ours := insta_ids.move_hashes(move, verify);
                theirs := insta_ids.await_node();
            END IF;
            BEGIN
                handed_over := insta_ids.move_hand_over(move, mark, theirs, ours);
                EXIT;
            EXCEPTION WHEN object_not_in_prerequisite_state THEN
                -- Of a worker that has restarted meanwhile it is not known yet where it is.
                IF insta_ids.move_drained(move, mark) THEN
                    RAISE;
                END IF;
            END;
        END LOOP;
        PERFORM insta_ids_internal.limit_statement(NULL::integer);
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
    END;
    IF code IS NOT NULL THEN
        PERFORM insta_ids_internal.limit_statement(0);
        CALL insta_ids_internal.open_again(move, from_node);
        IF insta_ids_internal.steady_ms() >= fenced_at + extract(epoch FROM max_pause) * 1000 AND code = '57014' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'query_canceled',
                MESSAGE = format('shards from %s to %s were not handed over within %s', first, last, max_pause),
                DETAIL = CASE WHEN is_drained THEN 'Rows were still being compared.'
                    ELSE 'Rows that were written before the fence had not arrived.' END,
                HINT = 'Call again at a quieter time, with a longer max_pause, or with verify => ''count''.';
        END IF;
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message,
            DETAIL = coalesce(nullif(detail, ''), 'The shards were not handed over.'),
            HINT = coalesce(nullif(hint, ''), 'Call insta_ids.move_shards() again.');
    END IF;
    CALL insta_ids.new_transaction();
    RAISE NOTICE 'move_shards: handed over, % ms after the fence', insta_ids_internal.steady_ms() - fenced_at;
    there := insta_ids.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, NULL::uuid)', move));
    CALL insta_ids_internal.finish_move(move, from_node, there, verify, lock_timeout);
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

-- Opens the shards of a move on its source again, when the target has given up the fence that is there. The copy stays, and
-- follows the source: the next call goes on with it.
CREATE PROCEDURE insta_ids_internal.open_again(move name, from_node name)
    LANGUAGE plpgsql
AS $$
DECLARE
    there pg_catalog.jsonb;
    given_up pg_catalog.jsonb;
BEGIN
    BEGIN
        -- The connection may be waiting for an answer.
        PERFORM insta_ids.connect_node(from_node);
        there := insta_ids.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, NULL::uuid)', move));
    EXCEPTION WHEN OTHERS THEN
        there := '{"step": "unknown"}';
    END;
    IF there ->> 'step' = 'fenced' THEN
        given_up := insta_ids_internal.give_up_fence(move, (there ->> 'fences')::integer);
        -- From here on this fence cannot lead to a hand-over.
        CALL insta_ids.new_transaction();
        BEGIN
            PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids_internal.open_fence(%L::name, %L::jsonb)', move, given_up));
            RAISE NOTICE 'move_shards: open to writers on node "%" again', from_node;
            there := '{"step": "offered"}';
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END IF;
    IF there ->> 'step' IN ('fenced', 'unknown') THEN
        RAISE WARNING USING
            MESSAGE = format('shards of move "%s" may still be fenced on node "%s"', move, from_node),
            HINT = 'Call insta_ids.move_shards() again, or insta_ids.move_abort().';
    END IF;
END
$$;

-- Ends a move that was handed over here, on both servers. `there` is its state on the source. A source that was promoted may
-- have lost the fence, and is fenced first: its rows must be here, too, unless nothing is to be verified.
CREATE PROCEDURE insta_ids_internal.finish_move(move name, from_node name, there jsonb, verify text, lock_timeout text)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
    handed_over pg_catalog.jsonb;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    handed_over := jsonb_build_object('id', coalesce(moving.id, (there ->> 'id')::uuid),
        'version', (SELECT m.version FROM insta_ids_internal.map m));
    IF there ->> 'id' IS NOT DISTINCT FROM handed_over ->> 'id' THEN
        IF there ->> 'step' = 'offered' AND (there ->> 'was_promoted')::boolean THEN
            PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_fence(%L, %L)', move, lock_timeout));
            RAISE NOTICE 'move_shards: fenced on node "%", which had lost its fence', from_node;
        END IF;
        IF (there ->> 'was_promoted')::boolean AND verify <> 'none' THEN
            PERFORM insta_ids_internal.check_left_behind(
                move, from_node, ARRAY(SELECT s::integer FROM jsonb_array_elements_text(there -> 'shards') s));
        END IF;
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_finish(%L, %L)', move, handed_over));
    ELSIF there ->> 'outcome' IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" knows nothing of move "%s"', from_node, move),
            DETAIL = format('Shards from %s to %s were handed over to this node, and may be open to writers there as well.',
                moving.first, moving.last),
            HINT = format('On node "%s", fence these shards and apply the map of this node; then here: SELECT insta_ids.move_finish(%L).',
                from_node, move);
    END IF;
    IF moving.id IS NOT NULL THEN
        PERFORM insta_ids.move_finish(move);
    END IF;
    CALL insta_ids.new_transaction();
    RAISE NOTICE 'move_shards: finished; the map has version %', handed_over ->> 'version';
END
$$;

CREATE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    moving insta_ids_internal.move;
    id pg_catalog.uuid;
    there pg_catalog.jsonb;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids.new_transaction();
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF FOUND THEN
        PERFORM insta_ids_internal.check_own_move(moving);
    ELSIF from_node IS NULL THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    from_node := coalesce(moving.from_node, from_node);
    IF from_node <> insta_ids.own_node() AND moving.step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids.connect_node(from_node);
        there := insta_ids.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, %L::uuid)', move, moving.id));
        id := coalesce(moving.id, (there ->> 'id')::uuid);
    END IF;
    IF coalesce(moving.to_node, there ->> 'to_node') <> insta_ids.own_node() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last, from_node,
                coalesce(moving.to_node, there ->> 'to_node'));
    ELSIF moving.step = 'handed over' OR insta_ids.move_outcome(id) = 'handed over' AND moving.id IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are already on this node', first, last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', first, last, from_node);
    END IF;
    PERFORM insta_ids_internal.check_not_left(moving, there) WHERE moving.id IS NOT NULL;
    IF id IS NOT NULL THEN
        cancellation := insta_ids.move_cancel(move, id);
        -- From here on the shards cannot be taken over any more.
        CALL insta_ids.new_transaction();
    END IF;
    -- The source may have taken it back already, and have another one of this name.
    IF there ->> 'id' = id::text THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L, %L)', move, cancellation));
    END IF;
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

CREATE VIEW insta_ids.moves AS
SELECT m.name, m.first, m.last, m.from_node, m.to_node, m.step, m.started_at, m.step_at,
       t.tables, t.copied AS tables_copied, r.rows, r.bytes, m.bytes AS bytes_total,
       pg_wal_lsn_diff(CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END, s.confirmed_flush_lsn)::bigint AS lag,
       CASE
           WHEN m.step IN ('offered', 'fenced') THEN format('On node %s: CALL insta_ids.move_shards(%s, %s, %L)',
               quote_ident(m.to_node), m.first, m.last, m.from_node)
           ELSE format('CALL insta_ids.move_shards(%s, %s, %L)', m.first, m.last, m.from_node)
       END || CASE WHEN m.step = 'handed over' THEN ''
           ELSE format('; to end it instead, CALL insta_ids.move_abort(%s, %s, %L)', m.first, m.last, m.from_node) END AS next
FROM insta_ids_internal.move m
LEFT JOIN pg_replication_slots s ON s.slot_name = insta_ids_internal.slot_of(m) AND m.step IN ('offered', 'fenced')
LEFT JOIN LATERAL (
    SELECT count(*) AS tables, count(*) FILTER (WHERE r.srsubstate = 'r') AS copied
    FROM insta_ids_internal.subscription u
    JOIN pg_subscription_rel r ON r.srsubid = u.oid
    WHERE u.name = m.name
) t ON m.step IN ('prepared', 'copying')
-- Of the tables here; while one is copied, its rows are counted as they come.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_table_size(h.relation)), 0)::bigint AS bytes,
           coalesce(sum(pg_stat_get_tuples_inserted(h.relation) + coalesce(p.tuples_processed, 0)), 0)::bigint AS rows
    FROM insta_ids_internal.shard_relation h
    LEFT JOIN pg_stat_progress_copy p ON p.relid = h.relation AND p.type = 'CALLBACK'
    WHERE h.shard = ANY (m.shards) AND h.kind = 'r'
) r;
SET LOCAL search_path = @extschema@, pg_temp;
