-- Moves, on the source: what is in a shard, and its offer.

-- Raises an error unless this server can publish the tables of one more move.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_replication() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- One is for the changes, and one at a time for the table that is copied.
    free_slots CONSTANT integer := current_setting('max_replication_slots')::integer - (SELECT count(*) FROM pg_replication_slots);
    free_senders CONSTANT integer := current_setting('max_wal_senders')::integer - (SELECT count(*) FROM pg_stat_replication);
BEGIN
    -- From PostgreSQL 19 on, the first slot turns logical decoding on where "wal_level" is replica.
    IF current_setting('wal_level') <> 'logical'
        AND (current_setting('wal_level') = 'minimal' OR current_setting('server_version_num')::integer < 190000) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'shards cannot leave this server',
            DETAIL = format('"wal_level" is %s.', current_setting('wal_level')),
            HINT = 'Set wal_level = logical in postgresql.conf, and restart the server.';
    ELSIF free_slots < 2 THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('a move needs two free replication slots, and this server has %s', free_slots),
            HINT = 'Drop slots that are not needed, or raise "max_replication_slots".';
    ELSIF free_senders < 2 THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('a move needs two free WAL senders, and this server has %s', free_senders),
            HINT = 'Raise "max_wal_senders" in postgresql.conf, and restart the server.';
    END IF;
END
$$;

-- Raises an error unless all of these shards can be moved completely. With `ignore_dependents`, other objects may depend on them.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_movable(shards integer[], ignore_dependents boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    obstacle record;
BEGIN
    PERFORM insta_ids_internal.require_replication(), insta_ids_internal.require_no_outside_children(shards),
        insta_ids_internal.require_heaps(insta_ids_internal.schemas_of(shards), true);
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'registered') THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'shards cannot move while tables are distributed to them',
            DETAIL = 'Rows would go to shards that are on another server.',
            HINT = 'Try again after insta_ids.distribute_finish(). See insta_ids.distributions.';
    END IF;

    SELECT o.* INTO obstacle FROM (
        SELECT s.shard, 1, format('Schema "%s" is missing.', s.schema), 'Restore it, or drop the shard.'
        FROM insta_ids_internal.shard_schema s WHERE s.oid IS NULL
        UNION ALL
        SELECT s.shard, 2, CASE s.is_closed WHEN true THEN 'It is fenced.' ELSE 'It is moving.' END,
               format('Open it: SELECT insta_ids.unfence(%s).', s.shard)
        FROM insta_ids_internal.fence s
        UNION ALL
        SELECT m.shard, 3, format('Migration "%s" is %s there.', m.name, m.state), 'Apply it: CALL insta_ids.migrate().'
        FROM insta_ids_internal.migration_status m WHERE m.state <> 'applied'
        UNION ALL
        SELECT r.shard, 4, format('Table %s is %s.', r.relation, CASE r.kind WHEN 'f' THEN 'foreign' ELSE 'unlogged' END),
               'Only rows of logged tables go with it.'
        FROM insta_ids_internal.shard_relation r WHERE r.kind = 'f' OR r.kind <> 'S' AND r.persistence = 'u'
        UNION ALL
        SELECT t.shard, 5, format('Rows of table %s cannot be told apart. %s', t.relation, t.reason), t.hint || '.'
        FROM insta_ids_internal.unidentified_tables(shards) t
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
        FROM insta_ids_internal.check_references(shards) r WHERE r.severity = 'error'
        UNION ALL
        SELECT r.shard, 9, format('Trigger "%s" of table %s also fires for rows that are copied.', t.tgname, r.relation),
               format('Add a migration that does: ALTER TABLE %s ENABLE TRIGGER %I.', r.name, t.tgname)
        FROM insta_ids_internal.shard_relation r
        -- The bits of TRIGGER_TYPE_INSERT, DELETE and UPDATE in catalog/pg_trigger.h.
        JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgenabled IN ('A', 'R') AND t.tgtype & 28 <> 0
            AND t.tgname NOT IN ('insta_ids_fence', 'insta_ids_fence_rows')
        UNION ALL
        SELECT s.shard, 10, format('Other objects depend on it: %s.', d.dependents),
               'Drop them, or call with ignore_dependents => true: then they stay with the schema that the shard leaves.'
        FROM insta_ids_internal.shard_schema s
        CROSS JOIN LATERAL insta_ids_internal.named_dependents(s.oid) d (dependents)
        WHERE NOT ignore_dependents AND s.shard = ANY (shards) AND d.dependents IS NOT NULL
    ) o (shard, place, detail, hint)
    WHERE o.shard = ANY (shards) ORDER BY o.place, o.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s cannot be moved', obstacle.shard),
            DETAIL = obstacle.detail,
            HINT = obstacle.hint;
    END IF;
END
$$;

-- Returns the objects of a shard, in words that are the same for each shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.objects_json(shard integer) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(o.kind, o.relation, o.name, o.definition)
        ORDER BY o.kind, o.relation, o.name, o.definition)
    FROM insta_ids_internal.objects_of(ARRAY[shard], true) o;
END;

-- Returns the partition key of a table: its strategy, then its columns. NULL unless it consists of columns of PostgreSQL's own
-- types, with their own collations and default operator classes. Other keys could call code of other roles.
CREATE OR REPLACE FUNCTION insta_ids_internal.partition_key(relation oid) RETURNS text[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE p.partstrat WHEN 'r' THEN 'RANGE' WHEN 'l' THEN 'LIST' WHEN 'h' THEN 'HASH' END
        || pg_catalog.array_agg(a.attname::text ORDER BY k.place)
    FROM pg_catalog.pg_partitioned_table p
    CROSS JOIN LATERAL ROWS FROM (
        pg_catalog.unnest(p.partattrs::smallint[]), pg_catalog.unnest(p.partclass::oid[]), pg_catalog.unnest(p.partcollation::oid[])
    ) WITH ORDINALITY k (column_number, class, collation_of, place)
    JOIN pg_catalog.pg_opclass o ON o.oid = k.class
    -- An expression has no column.
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.column_number AND k.column_number > 0
    LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE p.partrelid = partition_key.relation
    GROUP BY p.partrelid, p.partstrat
    HAVING pg_catalog.bool_and(coalesce(
        t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace
        AND o.opcdefault AND k.collation_of = a.attcollation, false));
END;

-- Returns the partitions of a shard, each after its parent.
CREATE OR REPLACE FUNCTION insta_ids_internal.partitions_json(shard integer) RETURNS jsonb
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

-- Offers a range of shards: publishes their tables, and keeps their objects from being altered. Returns the offer, and the same
-- one if it is called again. Raises an error unless the shards can be moved, or if it waits longer than `lock_timeout` for a lock.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_offer(
        first integer, last integer, to_node name, lock_timeout interval DEFAULT '10s', ignore_dependents boolean DEFAULT false)
    RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    offered CONSTANT name := format('insta_ids_%s_%s', first, last);
    move insta_ids_internal.move;
    is_new boolean := false;
    objects jsonb;
    shard integer;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.require_range(first, last, 1),
        insta_ids_internal.commit_durably(), insta_ids_internal.set_lock_timeout(lock_timeout);
    -- No other session offers, creates or assigns shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_node(here), insta_ids_internal.require_node(to_node);
    -- The target runs the migrations with the rights of the role that calls it.
    PERFORM insta_ids_internal.require_trusted_author(m) FROM insta_ids_internal.migration m ORDER BY m.number;
    SELECT * INTO move FROM insta_ids_internal.move m WHERE m.name = offered FOR UPDATE;
    IF FOUND THEN
        PERFORM insta_ids_internal.require_own_move(move);
    ELSE
        PERFORM insta_ids_internal.require_not_moving(first, last);
        move.shards := ARRAY(SELECT s.shard FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard);
        IF move.shards = '{}' OR to_node = here THEN
            RAISE undefined_object USING
                MESSAGE = format('no shard from %s to %s can move from node "%s" to node "%s"', first, last, here, to_node),
                DETAIL = CASE WHEN to_node = here THEN 'That is this node.' ELSE 'None of them is here.' END;
        END IF;
        shard := (SELECT min(s) FROM unnest(move.shards) s WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = here));
        IF shard IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('the map does not have shard %s on this node', shard),
                HINT = format('Assign it: SELECT insta_ids.assign(%s, %s, %L).', first, last, here);
        END IF;
        PERFORM insta_ids_internal.lock_shards(move.shards);
        PERFORM insta_ids_internal.require_movable(move.shards, ignore_dependents);
        -- This waits for sessions that create objects in the schemas, so that the next statements see these objects.
        PERFORM insta_ids_internal.lock_schema(s.oid) FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (move.shards);
        PERFORM insta_ids_internal.lock_relations(
            ARRAY(SELECT r.relation FROM insta_ids_internal.shard_relation r
                  WHERE r.shard = ANY (move.shards) AND r.kind IN ('r', 'p') ORDER BY r.relation),
            'SHARE UPDATE EXCLUSIVE', '{}', format('shards from %s to %s', first, last), lock_timeout);
        EXECUTE format('CREATE PUBLICATION %I%s', offered, ' FOR TABLE ' || insta_ids_internal.published_tables(move.shards));
        PERFORM insta_ids_internal.fence_offer(move.shards, to_node);
        INSERT INTO insta_ids_internal.move AS m (name, id, first, last, shards, relations, from_node, to_node, bytes, step)
        SELECT offered, gen_random_uuid(), first, last, move.shards, insta_ids_internal.relations_of(move.shards), here, to_node,
               (SELECT coalesce(sum(pg_table_size(r.relation)), 0) FROM insta_ids_internal.shard_relation r
                WHERE r.shard = ANY (move.shards) AND r.kind = 'r'),
               'offered'
        RETURNING m.* INTO move;
        is_new := true;
    END IF;
    IF move.from_node <> here OR move.to_node <> move_offer.to_node THEN
        PERFORM insta_ids_internal.require_not_moving(first, last);
    END IF;
    -- The target creates all shards by the same migrations, so they must have the same objects.
    objects := insta_ids_internal.objects_json(move.shards[1]);
    FOREACH shard IN ARRAY move.shards[2:] LOOP
        IF insta_ids_internal.objects_json(shard) <> objects THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s cannot be moved', shard),
                DETAIL = format('What is in it differs from what is in shard %s.', move.shards[1]),
                HINT = 'See insta_ids.check().';
        END IF;
    END LOOP;
    RETURN jsonb_build_object(
        'name', move.name, 'id', move.id, 'is_new', is_new, 'first', first, 'last', last, 'shards', to_jsonb(move.shards),
        'from_node', here, 'to_node', to_node, 'bytes', move.bytes,
        'map', insta_ids.shard_map(), 'migrations', insta_ids_internal.migrations_json(), 'objects', objects,
        'encoding', getdatabaseencoding(), 'privileges', insta_ids_internal.privileges_json(move.shards),
        'partitions', (SELECT jsonb_object_agg(s, insta_ids_internal.partitions_json(s)) FROM unnest(move.shards) s));
END
$$;

-- Keeps shards from being altered, while they stay open to writers. A standby that is promoted meanwhile mints no ids for them.
CREATE OR REPLACE FUNCTION insta_ids_internal.fence_offer(shards integer[], to_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node, timeline)
    SELECT s, false, to_node, insta_ids_internal.timeline() FROM unnest(shards) s;
END
$$;

-- Returns the relations of shards that contain rows or values.
CREATE OR REPLACE FUNCTION insta_ids_internal.relations_of(shards integer[]) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT r.relation::oid FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards) ORDER BY r.relation::oid);

-- Returns the tables of shards, as a publication names them. A partitioned table includes its partitions.
CREATE OR REPLACE FUNCTION insta_ids_internal.published_tables(shards integer[]) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.string_agg(r.relation::text, ', ' ORDER BY r.relation)
    FROM insta_ids_internal.shard_relation r
    WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') AND NOT r.is_partition;
END;

-- Creates the replication slot of a move once. A lost slot is not replaced, because a new one would lack what was written
-- meanwhile. A transaction that has written cannot create a slot, so the row is updated afterwards.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_slot(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids_internal.open_move(move);
    ELSIF NOT moving.has_slot THEN
        PERFORM insta_ids_internal.require_publication(moving);
        IF NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = insta_ids_internal.slot_of(moving)) THEN
            PERFORM pg_create_logical_replication_slot(insta_ids_internal.slot_of(moving), 'pgoutput');
        ELSIF EXISTS (
            SELECT FROM pg_replication_slots s
            WHERE s.slot_name = insta_ids_internal.slot_of(moving) AND s.confirmed_flush_lsn IS NULL)
        THEN
            RAISE object_in_use USING MESSAGE = format('replication slot of move "%s" is being made', move),
                DETAIL = 'Another session waits for the transactions that were open when it began.',
                HINT = 'Call again when they have ended.';
        END IF;
        UPDATE insta_ids_internal.move m SET has_slot = true WHERE m.name = move;
    ELSE
        PERFORM insta_ids_internal.move_lag(move);
    END IF;
END
$$;

-- Returns the numbers of the files of a move's tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_files(move name) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT pg_catalog.jsonb_agg(c.relfilenode ORDER BY c.oid)
        FROM insta_ids_internal.move m JOIN pg_catalog.pg_class c ON c.oid = ANY (m.relations) AND c.relkind = 'r'
        WHERE m.name = move);

-- Raises an error if the publication of a move was dropped. A new one would lack what was written meanwhile.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_publication(moving insta_ids_internal.move) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = moving.name) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('publication of move "%s" is lost', moving.name),
            HINT = insta_ids_internal.hint_to_abort(moving);
    END IF;
END
$$;

-- Returns whether a move has the publication and, once it was made, the slot by which its rows go to the target.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_sent(moving insta_ids_internal.move) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (NOT moving.has_slot OR EXISTS (
            SELECT FROM pg_catalog.pg_replication_slots s
            WHERE s.slot_name = insta_ids_internal.slot_of(moving) AND s.wal_status IS DISTINCT FROM 'lost'))
        AND EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = moving.name);

-- Returns how many bytes of WAL the target has not confirmed. Raises an error if the slot or the publication is lost.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_lag(move name) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    slot record;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    IF NOT FOUND THEN
        PERFORM insta_ids_internal.open_move(move);
    END IF;
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn) AS lag, s.wal_status INTO slot
    FROM pg_replication_slots s WHERE s.slot_name = insta_ids_internal.slot_of(moving);
    IF NOT FOUND OR slot.wal_status = 'lost' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('replication slot of move "%s" is lost', move),
            HINT = insta_ids_internal.hint_to_abort(moving);
    END IF;
    PERFORM insta_ids_internal.require_publication(moving);
    RETURN slot.lag;
END
$$;

-- Returns whether one of these slots does not exist.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_slots_lost(table_slots name[]) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM pg_catalog.unnest(table_slots) t WHERE t NOT IN (SELECT s.slot_name FROM pg_catalog.pg_replication_slots s));
