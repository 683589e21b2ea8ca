-- Moves: shards go to another server, by PostgreSQL's logical replication, one subscription for all shards of a move.
--
-- The server that shards leave is the source, the one that they come to the target. Each step is a function of its own, on
-- one of the two; it can be repeated, and finds what is done already. Whatever is made for a move is written down in
-- insta_ids.move in the same transaction, or before.

-- Refuses what a move of one of these shards is in the way of.
CREATE FUNCTION insta_ids.check_moves(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other insta_ids.move;
BEGIN
    SELECT * INTO other FROM insta_ids.move m WHERE m.first <= check_moves.last AND m.last >= check_moves.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards from %s to %s are moving', other.first, other.last),
            DETAIL = format('They go from node "%s" to node "%s": %s.', other.from_node, other.to_node, other.step),
            HINT = format('Let that end, or end it: CALL insta_ids.move_abort(%s, %s).', other.first, other.last);
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
    RETURN (SELECT e.outcome FROM insta_ids.ended_move e WHERE e.id = move_outcome.id);

-- The subscriptions of this database.
CREATE VIEW insta_ids.subscription AS
SELECT s.oid, s.subname AS name, s.subenabled AS is_enabled, s.subconninfo AS dsn
FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database();

-- The move of this name, locked.
CREATE FUNCTION insta_ids.open_move(move name) RETURNS insta_ids.move
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_move insta_ids.move;
BEGIN
    PERFORM insta_ids.check_isolation('a move cannot go on'), insta_ids.commit_durably();
    SELECT * INTO found_move FROM insta_ids.move m WHERE m.name = move FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('move "%s" does not exist', move),
            HINT = 'It has ended, or was never begun here: see insta_ids.moves.';
    END IF;
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
        FROM insta_ids.shard_schema s WHERE s.oid IS NULL
        UNION ALL
        SELECT s.shard, 2, CASE s.is_closed WHEN true THEN 'It is fenced.' ELSE 'It is moving.' END,
               format('Open it: SELECT insta_ids.unfence(%s).', s.shard)
        FROM insta_ids.fence s
        UNION ALL
        SELECT m.shard, 3, format('Migration "%s" is %s there.', m.name, m.state), 'Apply it: CALL insta_ids.migrate().'
        FROM insta_ids.migration_status m WHERE m.state <> 'applied'
        UNION ALL
        SELECT r.shard, 4, format('Table %s is %s.', r.relation, CASE r.kind WHEN 'f' THEN 'foreign' ELSE 'unlogged' END),
               'Only rows of logged tables go with it.'
        FROM insta_ids.shard_relation r WHERE r.kind = 'f' OR r.kind <> 'S' AND r.persistence = 'u'
        UNION ALL
        SELECT t.shard, 5, format('Table %s has no primary key, by which its rows could be told apart.', t.relation),
               format('Add a primary key, or: ALTER TABLE %s REPLICA IDENTITY FULL.', t.relation)
        FROM insta_ids.unidentified_tables(shards) t
        UNION ALL
        SELECT r.shard, 6, r.object || ': ' || r.detail, r.hint
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

-- The partitions of a shard, those of others before those of theirs.
CREATE FUNCTION insta_ids.partitions_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(p.relname, c.relname,
            pg_catalog.pg_get_expr(c.relpartbound, c.oid),
            CASE c.relkind WHEN 'p' THEN pg_catalog.pg_get_partkeydef(c.oid) END)
        ORDER BY t.level, c.relname), '[]')
    FROM insta_ids.shard_schema s
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
    move insta_ids.move;
    is_new boolean := false;
    objects jsonb;
    shard integer;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be offered'), insta_ids.check_range(first, last, 1),
        insta_ids.commit_durably();
    -- Nobody else offers, makes or assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(here), insta_ids.check_node(to_node);
    SELECT * INTO move FROM insta_ids.move m WHERE m.name = offered FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last);
        move.shards := ARRAY(SELECT s.shard FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard);
        IF move.shards = '{}' OR to_node = here THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('no shard from %s to %s can move from node "%s" to node "%s"', first, last, here, to_node),
                DETAIL = CASE WHEN to_node = here THEN 'That is this node.' ELSE 'None of them is here.' END;
        END IF;
        FOREACH shard IN ARRAY move.shards LOOP
            IF NOT EXISTS (SELECT FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last AND a.node = here) THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('the map does not have shard %s on this node', shard),
                    HINT = format('Assign it: SELECT insta_ids.assign(%s, %s, %L).', first, last, here);
            END IF;
        END LOOP;
        PERFORM insta_ids.claim(move.shards), insta_ids.check_movable(move.shards);
        -- What is being made in them now is seen afterwards.
        PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids.shard_schema s WHERE s.shard = ANY (move.shards);
        EXECUTE format('CREATE PUBLICATION %I%s', offered, ' FOR TABLE ' || insta_ids.published_tables(move.shards));
        INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, false, to_node FROM unnest(move.shards) s;
        INSERT INTO insta_ids.move AS m (name, id, first, last, shards, relations, from_node, to_node, slot, bytes, step)
        SELECT offered, gen_random_uuid(), first, last, move.shards, insta_ids.relations_of(move.shards), here, to_node,
               format('insta_ids_%s_%s_%s', (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), first, last),
               (SELECT coalesce(sum(pg_table_size(r.relation)), 0) FROM insta_ids.shard_relation r
                WHERE r.shard = ANY (move.shards) AND r.kind = 'r'),
               'offered'
        RETURNING m.* INTO move;
        is_new := true;
    ELSIF move.from_node <> here OR move.to_node <> move_offer.to_node THEN
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
        'from_node', here, 'to_node', to_node, 'slot', move.slot, 'bytes', move.bytes,
        'map', insta_ids.shard_map(),
        'migrations', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
                'transactional', m.transactional, 'check_ids', m.check_ids) ORDER BY m.number), '[]')
            FROM insta_ids.migration m),
        'objects', objects,
        'partitions', (SELECT jsonb_object_agg(s, insta_ids.partitions_json(s)) FROM unnest(move.shards) s));
END
$$;

-- What rows and values of shards are in.
CREATE FUNCTION insta_ids.relations_of(shards integer[]) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT r.relation::oid FROM insta_ids.shard_relation r WHERE r.shard = ANY (shards) ORDER BY r.relation::oid);

-- The tables of shards, as a publication names them: partitions go with what they are of.
CREATE FUNCTION insta_ids.published_tables(shards integer[]) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.string_agg(r.relation::text, ', ' ORDER BY r.relation)
    FROM insta_ids.shard_relation r
    WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') AND NOT r.is_partition;
END;

-- Makes the slot that the subscription reads, once: what was written after one that is lost would not come. No transaction
-- that has written something can make one, so that is written down afterwards.
CREATE FUNCTION insta_ids.move_slot(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
BEGIN
    SELECT * INTO moving FROM insta_ids.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids.open_move(move);
    ELSIF NOT moving.has_slot THEN
        IF NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = moving.slot) THEN
            PERFORM pg_create_logical_replication_slot(moving.slot, 'pgoutput');
        ELSIF EXISTS (
            SELECT FROM pg_replication_slots s WHERE s.slot_name = moving.slot AND s.confirmed_flush_lsn IS NULL)
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_in_use',
                MESSAGE = format('replication slot of move "%s" is being made', move),
                DETAIL = 'Another session waits for the transactions that were open when it began.',
                HINT = 'Call again when they have ended.';
        END IF;
        UPDATE insta_ids.move m SET has_slot = true WHERE m.name = move;
    ELSE
        PERFORM insta_ids.move_lag(move);
    END IF;
END
$$;

-- How many bytes of WAL the target has not confirmed yet.
CREATE FUNCTION insta_ids.move_lag(move name) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot record;
BEGIN
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn) AS lag, s.wal_status INTO slot
    FROM insta_ids.move m JOIN pg_replication_slots s ON s.slot_name = m.slot WHERE m.name = move;
    IF NOT FOUND OR slot.wal_status = 'lost' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('replication slot of move "%s" is lost', move),
            HINT = 'End the move with insta_ids.move_abort(), and begin it again.';
    END IF;
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
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
BEGIN
    IF moving.step = 'offered' THEN
        PERFORM insta_ids.close_shards(moving.shards, moving.to_node, lock_timeout);
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
        UPDATE insta_ids.move m SET step = 'fenced', step_at = now(), fenced_by = pg_current_xact_id() WHERE m.name = move;
    END IF;
END
$$;

-- What the target goes on from: the WAL that it must have, the time that ids have not reached, and the sequences. Asked
-- for when the fence is there for all to see.
CREATE FUNCTION insta_ids.move_mark(move name) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move := insta_ids.open_move(move);
    sequences jsonb := '[]';
    sequence insta_ids.shard_relation;
    value record;
BEGIN
    IF moving.step <> 'fenced' OR moving.fenced_by = pg_current_xact_id() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not fenced', moving.first, moving.last),
            HINT = 'Call insta_ids.move_fence() in a transaction before.';
    ELSIF moving.mark IS NULL THEN
        FOR sequence IN
            SELECT * FROM insta_ids.shard_relation r WHERE r.shard = ANY (moving.shards) AND r.kind = 'S'
        LOOP
            EXECUTE format('SELECT last_value, is_called FROM %s', sequence.relation) INTO value;
            sequences := sequences
                || jsonb_build_array(jsonb_build_array(sequence.schema, sequence.name, value.last_value, value.is_called));
        END LOOP;
        UPDATE insta_ids.move m
        SET mark = jsonb_build_object('id', m.id, 'lsn', pg_current_wal_insert_lsn(), 'sequences', sequences,
            -- Every id of this database is of a time that its lease covers.
            'until', (SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c),
            'version', (SELECT coalesce(max(p.version), 0) FROM insta_ids.map p))
        WHERE m.name = move
        RETURNING m.mark INTO moving.mark;
    END IF;
    RETURN moving.mark;
END
$$;

-- Drops the slot, when the target has let go of it.
CREATE FUNCTION insta_ids.drop_slot(slot name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    FOR attempt IN 1 .. 100 LOOP
        BEGIN
            PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots s WHERE s.slot_name = slot;
            RETURN;
        EXCEPTION
            WHEN object_in_use THEN
                -- What reads it has nothing to do any more.
                PERFORM pg_terminate_backend(s.active_pid) FROM pg_replication_slots s WHERE s.slot_name = slot;
                PERFORM pg_sleep(0.1);
        END;
    END LOOP;
    PERFORM pg_drop_replication_slot(slot);
END
$$;

-- Gives the map the shards of a move, as far as it has them on the source, and a version that is no older than this.
CREATE FUNCTION insta_ids.assign_moved(moving insta_ids.move, version bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.assign(greatest(a.first, moving.first), least(a.last, moving.last), moving.to_node)
    FROM insta_ids.assignment a
    WHERE a.node = moving.from_node AND a.first <= moving.last AND a.last >= moving.first;
    UPDATE insta_ids.map m SET version = assign_moved.version WHERE m.version < assign_moved.version;
END
$$;

-- Lets go of what the target has taken over: `handed_over` is what move_hand_over returned there. Then, on the target, ends
-- the move there, too.
CREATE FUNCTION insta_ids.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
    shard integer;
    schema name;
    kept name;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        RETURN;
    END IF;
    -- As who offers, makes or assigns shards: this table first, and then the move.
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        DELETE FROM insta_ids.move m WHERE m.name = move;
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
    PERFORM insta_ids.drop_slot(moving.slot), insta_ids.assign_moved(moving, (handed_over ->> 'version')::bigint);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOREACH shard IN ARRAY moving.shards LOOP
        schema := insta_ids.schema_of(shard);
        kept := CASE WHEN octet_length(schema || '__moved') < 64 THEN schema || '__moved' ELSE 'moved__' || shard END;
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
        INSERT INTO insta_ids.moved VALUES (shard, kept, moving.to_node);
    END LOOP;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Takes the offer back, and opens the shards again. Once they are fenced, the target must have cancelled the move:
-- `cancellation` is what move_cancel returned.
CREATE FUNCTION insta_ids.move_withdraw(move name, cancellation jsonb DEFAULT '{}') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
    elsewhere integer;
BEGIN
    IF insta_ids.move_outcome((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step NOT IN ('offered', 'fenced') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('End the move here: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
    ELSIF (moving.step = 'fenced' OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- Who has never heard of the move cannot say that it will not take the shards over.
        OR moving.step = 'fenced'
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not cancelled there.',
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on that node.', moving.first, moving.last, moving.from_node);
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
    PERFORM insta_ids.drop_slot(s.slot_name) FROM pg_replication_slots s
    WHERE s.slot_name = moving.slot
        OR s.slot_name ~ '^pg_[0-9]+_sync_' AND cancellation -> 'table_slots' ? s.slot_name;
    PERFORM insta_ids.open_shards(moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'withdrawn');
END
$$;

-- On both

-- For each table the number of its rows and, if all of them are compared, a number that is the same for the same rows.
CREATE FUNCTION insta_ids.move_hashes(move name, verify text DEFAULT 'full') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Rows are compared as texts.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64' SET row_security = off
AS $$
DECLARE
    hashes jsonb := '{}';
    relation record;
    hash jsonb;
BEGIN
    IF verify NOT IN ('full', 'count') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full" or "count".';
    END IF;
    IF NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    FOR relation IN
        SELECT r.relation AS name, (
            SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attname) FROM pg_attribute a
            WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped) AS columns
        FROM insta_ids.move m
        JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
        WHERE m.name = move
    LOOP
        EXECUTE format('SELECT jsonb_build_array(count(*)%s) FROM ONLY %s', CASE verify WHEN 'full' THEN
            format(', coalesce(sum(hashtextextended(ROW(%s)::text, 0)), 0)::text', relation.columns) END, relation.name)
        INTO hash;
        hashes := hashes || jsonb_build_object(relation.name, hash);
    END LOOP;
    RETURN hashes;
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
    moving CONSTANT insta_ids.move := jsonb_populate_record(NULL::insta_ids.move, offer);
    here CONSTANT name := insta_ids.this_node();
    outcome CONSTANT text := insta_ids.move_outcome(moving.id);
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
    ELSIF EXISTS (SELECT FROM insta_ids.move m WHERE (m.name, m.id) = (moving.name, moving.id)) THEN
        RETURN;
    END IF;
    IF outcome IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('offer of shards from %s to %s is void', moving.first, moving.last),
            DETAIL = format('It was %s here.', outcome),
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L).', moving.from_node,
                moving.first, moving.last);
    END IF;
    PERFORM insta_ids.check_moves(moving.first, moving.last);
    IF (offer #>> '{map,version}')::bigint > coalesce((SELECT m.version FROM insta_ids.map m), 0) THEN
        PERFORM insta_ids.apply_map(offer -> 'map');
    END IF;
    PERFORM insta_ids.check_node(moving.from_node), insta_ids.check_range(moving.first, moving.last, 1),
        insta_ids.take_migrations(offer -> 'migrations', moving.from_node);
    PERFORM insta_ids.check_absent(moving.first, moving.last);
    shard := (
        SELECT min(s) FROM unnest(moving.shards) s
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = moving.from_node));
    IF shard IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map here does not have shard %s on node "%s"', shard, moving.from_node),
            DETAIL = format('Its version is %s, and %s there.', (SELECT m.version FROM insta_ids.map m), offer #>> '{map,version}'),
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
    INSERT INTO insta_ids.move (name, id, first, last, shards, from_node, to_node, slot, bytes, step)
    VALUES (moving.name, moving.id, moving.first, moving.last, moving.shards, moving.from_node, moving.to_node, moving.slot,
        moving.bytes, 'prepared');
END
$$;

-- Refuses shards of which something is here.
CREATE FUNCTION insta_ids.check_absent(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here integer := (SELECT min(s.shard) FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last);
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
    LOCK TABLE insta_ids.migration IN SHARE ROW EXCLUSIVE MODE;
    SELECT m.name INTO different
    FROM insta_ids.migration m
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
    INSERT INTO insta_ids.migration
    SELECT t.number, t.name, t.ddl, t.transactional, t.check_ids
    FROM jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean)
    WHERE NOT EXISTS (SELECT FROM insta_ids.migration m WHERE m.number = t.number);
END
$$;

-- Gives the partitioned tables of a shard these partitions, and no others.
CREATE FUNCTION insta_ids.make_partitions(shard integer, partitions jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema CONSTANT name := insta_ids.schema_of(shard);
    own CONSTANT jsonb := insta_ids.partitions_json(shard);
    partition jsonb;
BEGIN
    FOR partition IN
        SELECT p FROM jsonb_array_elements(own) WITH ORDINALITY p (p, n)
        WHERE NOT partitions @> jsonb_build_array(p) ORDER BY n DESC
    LOOP
        EXECUTE format('DROP TABLE %I.%I', schema, partition ->> 1);
    END LOOP;
    FOR partition IN
        SELECT p FROM jsonb_array_elements(partitions) WITH ORDINALITY p (p, n)
        WHERE NOT own @> jsonb_build_array(p) ORDER BY n
    LOOP
        EXECUTE format('CREATE TABLE %I.%I PARTITION OF %1$I.%3$I %s%s', schema, partition ->> 1, partition ->> 0,
            partition ->> 2, ' PARTITION BY ' || (partition ->> 3));
    END LOOP;
END
$$;

CREATE FUNCTION insta_ids.move_subscribe(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    dsn CONSTANT text := (SELECT n.dsn FROM insta_ids.node n WHERE n.node = moving.from_node);
    subscription insta_ids.subscription;
BEGIN
    IF moving.step NOT IN ('prepared', 'copying') THEN
        RETURN;
    END IF;
    SELECT * INTO subscription FROM insta_ids.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %1$I'
            || ' WITH (create_slot = false, slot_name = %3$L, streaming = off, disable_on_error = true)', move, dsn, moving.slot);
    ELSIF subscription.dsn <> dsn THEN
        EXECUTE format('ALTER SUBSCRIPTION %I CONNECTION %L', move, dsn);
    END IF;
    IF NOT subscription.is_enabled THEN
        EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', move);
    END IF;
    UPDATE insta_ids.move m SET step = 'copying', step_at = now() WHERE m.name = move AND m.step = 'prepared';
END
$$;

-- Whether all tables are copied, and follow the source.
CREATE FUNCTION insta_ids.move_copied(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscription insta_ids.subscription;
BEGIN
    SELECT * INTO subscription FROM insta_ids.subscription s WHERE s.name = move;
    IF NOT FOUND OR NOT subscription.is_enabled THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('subscription of move "%s" %s', move,
                CASE WHEN subscription.oid IS NULL THEN 'does not exist' ELSE 'has stopped at an error' END),
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
        FROM insta_ids.subscription s
        JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid AND r.srsubstate = ANY (states)
        CROSS JOIN pg_catalog.pg_control_system() c
        WHERE s.name = move);

-- Begins to copy again, when such a slot is lost.
CREATE FUNCTION insta_ids.move_recopy(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
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
    PERFORM insta_ids.move_subscribe(move);
END
$$;

-- Whether all that was written on the source before its mark is here.
CREATE FUNCTION insta_ids.move_drained(move name, mark jsonb) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    -- It is reported to the source when all before it is applied.
    RETURN insta_ids.move_copied(move) AND EXISTS (
        SELECT FROM pg_catalog.pg_stat_subscription s
        WHERE s.subname = move AND s.relid IS NULL AND s.latest_end_lsn >= (mark ->> 'lsn')::pg_catalog.pg_lsn);

-- Takes the shards over: before its end they are closed on both servers, afterwards they are open here. `theirs` are the
-- hashes of the source, `ours` those of this server; without, nothing is compared. Returns what the source must see to let
-- go of them, also when it was done before.
CREATE FUNCTION insta_ids.move_hand_over(
        move name, mark jsonb DEFAULT NULL, theirs jsonb DEFAULT NULL, ours jsonb DEFAULT NULL)
    RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    different record;
BEGIN
    IF moving.step = 'handed over' THEN
        RETURN jsonb_build_object('id', moving.id, 'version', (SELECT m.version FROM insta_ids.map m));
    ELSIF mark ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark is not of move "%s"', move),
            HINT = 'Ask insta_ids.move_mark() on the source for it.';
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

    PERFORM setval(format('%I.%I', s ->> 0, s ->> 1)::regclass, (s ->> 2)::bigint, (s ->> 3)::boolean)
    FROM jsonb_array_elements(mark -> 'sequences') s;
    PERFORM insta_ids.advance_clock((mark ->> 'until')::timestamptz) WHERE mark ->> 'until' IS NOT NULL;
    DELETE FROM insta_ids.moved d WHERE d.shard = ANY (moving.shards);
    PERFORM insta_ids.drop_subscription(move), insta_ids.open_shards(moving.shards),
        insta_ids.assign_moved(moving, (mark ->> 'version')::bigint + 1);
    UPDATE insta_ids.move m SET step = 'handed over', step_at = now() WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    RETURN insta_ids.move_hand_over(move);
END
$$;

-- Without its slot, which the source drops.
CREATE FUNCTION insta_ids.drop_subscription(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM insta_ids.subscription s WHERE s.name = move) THEN
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
    moving insta_ids.move;
BEGIN
    IF id IS NULL OR EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
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
    INSERT INTO insta_ids.ended_move VALUES (id, 'cancelled',
        CASE WHEN moving.name IS NOT NULL THEN insta_ids.move_table_slots(move, '{i,d,f,s}') END)
    ON CONFLICT DO NOTHING;
    IF insta_ids.move_outcome(id) <> 'cancelled' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards of move "%s" are already here', move),
            HINT = 'Finish it by calling insta_ids.move_shards() again.';
    END IF;
    IF moving.name IS NOT NULL THEN
        PERFORM insta_ids.drop_subscription(move);
        DELETE FROM insta_ids.move m WHERE m.name = move;
        DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
        PERFORM insta_ids.drop_shard(s, force => true) FROM unnest(moving.shards) s;
    END IF;
    RETURN (
        SELECT jsonb_build_object('id', e.id, 'to_node', insta_ids.this_node(), 'was_known', e.table_slots IS NOT NULL,
            'table_slots', e.table_slots)
        FROM insta_ids.ended_move e WHERE e.id = move_cancel.id);
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
        SELECT n.dsn FROM insta_ids.node n WHERE n.node = connect_node.node));
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
BEGIN
    EXECUTE get_result INTO answer;
    -- With the end of the results, the connection is free again.
    EXECUTE get_result;
    RETURN answer;
END
$$;

CREATE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'full', lock_timeout text DEFAULT '2s',
        max_lag bigint DEFAULT 1048576)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    here pg_catalog.name;
    step pg_catalog.text;
    offer pg_catalog.jsonb;
    mark pg_catalog.jsonb;
    ours pg_catalog.jsonb;
    theirs pg_catalog.jsonb;
    relation pg_catalog.text;
    handed_over pg_catalog.jsonb;
    fenced_at pg_catalog.timestamptz;
    told_at pg_catalog.timestamptz := '-infinity';
    lag bigint;
    lead interval;
    table_slots pg_catalog.name[] := '{}';
    progress pg_catalog.record;
BEGIN
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last, from_node, verify, lock_timeout, max_lag) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'no argument of move_shards can be NULL';
    ELSIF verify NOT IN ('full', 'count', 'none') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full", "count" or "none".';
    END IF;
    here := insta_ids.own_node();
    SELECT m.step INTO step FROM insta_ids.move m
    WHERE (m.name, m.from_node, m.to_node) = (move, move_shards.from_node, here);
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last), insta_ids.check_absent(first, last);
    END IF;
    PERFORM insta_ids.connect_node(from_node);

    IF step IS NULL THEN
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
    IF step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_slot(%L)', move));
        PERFORM insta_ids.move_subscribe(move);
        CALL insta_ids.new_transaction();
        LOOP
            lag := insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_lag(%L))', move));
            EXIT WHEN insta_ids.move_copied(move) AND lag <= max_lag;
            IF clock_timestamp() > told_at + interval '1 s' THEN
                told_at := clock_timestamp();
                SELECT * INTO progress FROM insta_ids.moves p WHERE p.name = move;
                RAISE NOTICE 'move_shards: % of % tables copied, % rows, % of %, % behind', progress.tables_copied,
                    progress.tables, progress.rows, pg_size_pretty(progress.bytes), pg_size_pretty(progress.bytes_total),
                    pg_size_pretty(lag);
                -- Of those that were there a second ago.
                table_slots := ARRAY(
                    SELECT unnest(table_slots) INTERSECT SELECT unnest(insta_ids.move_table_slots(move)));
                IF insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_slots_lost(%L))', table_slots)) = 'true' THEN
                    RAISE NOTICE 'move_shards: begins to copy again, as a server died while a table was at its end';
                    PERFORM insta_ids.move_recopy(move);
                END IF;
                table_slots := insta_ids.move_table_slots(move);
            END IF;
            PERFORM pg_sleep(0.02);
            CALL insta_ids.new_transaction();
        END LOOP;
        -- So that the first queries here are planned as they should be.
        FOR relation IN
            SELECT r.relation FROM insta_ids.move m
            JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
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
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_fence(%L, %L)', move, lock_timeout));
        fenced_at := clock_timestamp();
        mark := insta_ids.ask_node(format('SELECT insta_ids.move_mark(%L)', move));
        RAISE NOTICE 'move_shards: fenced on node "%"', from_node;
        LOOP
            EXIT WHEN insta_ids.move_drained(move, mark);
            PERFORM pg_sleep(0.01);
            CALL insta_ids.new_transaction();
        END LOOP;
        IF verify <> 'none' THEN
            PERFORM insta_ids.begin_to_ask_node(format('SELECT insta_ids.move_hashes(%L, %L)', move, verify));
            ours := insta_ids.move_hashes(move, verify);
            theirs := insta_ids.await_node();
        END IF;
        handed_over := insta_ids.move_hand_over(move, mark, theirs, ours);
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: handed over, % ms after the fence',
            round(extract(epoch FROM clock_timestamp() - fenced_at) * 1000);
    END IF;

    handed_over := coalesce(handed_over, insta_ids.move_hand_over(move));
    PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_finish(%L, %L)', move, handed_over));
    PERFORM insta_ids.move_finish(move);
    CALL insta_ids.new_transaction();
    RAISE NOTICE 'move_shards: finished; the map has version %', handed_over ->> 'version';
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

CREATE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    moving insta_ids.move;
    there pg_catalog.jsonb;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids.new_transaction();
    SELECT * INTO moving FROM insta_ids.move m WHERE m.name = move;
    IF NOT FOUND AND from_node IS NULL THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    PERFORM insta_ids.connect_node(coalesce(moving.from_node, from_node));
    there := insta_ids.ask_node(format('SELECT jsonb_build_object(''id'', max(m.id::text), ''to_node'', max(m.to_node::text),'
        || ' ''outcome'', insta_ids.move_outcome(%L)) FROM insta_ids.move m WHERE m.name = %L', moving.id, move));
    IF there ->> 'to_node' <> insta_ids.own_node() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last,
                coalesce(moving.from_node, from_node), there ->> 'to_node');
    END IF;
    -- Whatever is here of them may be all that there is.
    IF there ->> 'outcome' = 'handed over' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" has let go of shards from %s to %s', moving.from_node, first, last),
            DETAIL = format('They were handed over, which this server has lost: here the move is %s.', moving.step);
    END IF;
    IF moving.id IS NOT NULL OR there ->> 'id' IS NOT NULL THEN
        cancellation := insta_ids.move_cancel(move, coalesce(moving.id, (there ->> 'id')::uuid));
        -- From here on the shards cannot be taken over any more.
        CALL insta_ids.new_transaction();
    END IF;
    IF there ->> 'id' IS NOT NULL THEN
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
FROM insta_ids.move m
LEFT JOIN pg_replication_slots s ON s.slot_name = m.slot AND m.step IN ('offered', 'fenced')
LEFT JOIN LATERAL (
    SELECT count(*) AS tables, count(*) FILTER (WHERE r.srsubstate = 'r') AS copied
    FROM insta_ids.subscription u
    JOIN pg_subscription_rel r ON r.srsubid = u.oid
    WHERE u.name = m.name
) t ON m.step IN ('prepared', 'copying')
-- Of the tables here; while one is copied, its rows are counted as they come.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_table_size(h.relation)), 0)::bigint AS bytes,
           coalesce(sum(pg_stat_get_tuples_inserted(h.relation) + coalesce(p.tuples_processed, 0)), 0)::bigint AS rows
    FROM insta_ids.shard_relation h
    LEFT JOIN pg_stat_progress_copy p ON p.relid = h.relation AND p.type = 'CALLBACK'
    WHERE h.shard = ANY (m.shards) AND h.kind = 'r'
) r;
