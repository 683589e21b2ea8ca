-- From 0.7.0 to 0.8.0: writer slots, and engines that route.

-- Writer slots: several servers mint for one shard, each the ids of its slot.

-- In force on this server: it is the setting's, from when the server started.
CREATE FUNCTION insta_ids.writer_slot() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'writer_slot_wrapper';

-- What this database has taken, one row; without it, slot 0 of 1. Sessions read it with the map.
CREATE TABLE insta_ids.writer (
    slot integer NOT NULL CHECK (slot >= 0),
    slots integer NOT NULL CHECK (slots > slot),
    taken_by xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
);
CREATE UNIQUE INDEX writer_once ON insta_ids.writer ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids.writer', '');

-- As of a fence.
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids.writer
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.fence_changed();

CREATE FUNCTION insta_ids.slot_of(writer_slot text, OUT slot integer, OUT slots integer)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF writer_slot ~ '^\d{1,5}/\d{1,5}$' THEN
        slot := split_part(writer_slot, '/', 1);
        slots := split_part(writer_slot, '/', 2);
        IF slot < slots AND slots <= 65536 AND slots & slots - 1 = 0 THEN
            RETURN;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('"%s" is not a writer slot', writer_slot),
        DETAIL = 'It must be like 0/2: a number from 0, and a power of two up to 65536 that is greater.';
END
$$;

-- Whether an id can be of both.
CREATE FUNCTION insta_ids.slots_meet(one text, other text) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT a.slot % LEAST(a.slots, b.slots) = b.slot % LEAST(a.slots, b.slots)
    FROM insta_ids.slot_of(one) a, insta_ids.slot_of(other) b;
END;

-- Refuses a server that mints nothing here, as its slot has not been taken.
CREATE FUNCTION insta_ids.check_writer() RETURNS void
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF insta_ids.writer_slot() <> insta_ids.taken_slot() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('writer slot %s has not been taken in this database', insta_ids.writer_slot()),
            DETAIL = format('The server has it by "insta_ids.writer_slot"; the database has %s.', insta_ids.taken_slot()),
            HINT = 'Take it with insta_ids.take_writer_slot().';
    END IF;
END
$$;

CREATE FUNCTION insta_ids.taken_slot() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((SELECT pg_catalog.format('%s/%s', w.slot, w.slots) FROM insta_ids.writer w), '0/1');

-- A part of what the database has taken already needs no time: it is the server's own ids that were minted of it.
CREATE FUNCTION insta_ids.take_writer_slot(until timestamptz DEFAULT NULL) RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot CONSTANT text := insta_ids.writer_slot();
    taken text;
BEGIN
    PERFORM insta_ids.check_isolation('a writer slot cannot be taken'), insta_ids.commit_durably();
    LOCK TABLE insta_ids.writer IN SHARE ROW EXCLUSIVE MODE;
    taken := insta_ids.taken_slot();
    IF until IS NULL AND slot <> taken
        AND (NOT EXISTS (SELECT FROM insta_ids.writer) OR NOT insta_ids.slots_meet(slot, taken)
            OR (insta_ids.slot_of(slot)).slots < (insta_ids.slot_of(taken)).slots)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = format('until when ids of writer slot %s were minted must be given', slot),
            DETAIL = format('This database has slot %s, so other servers may have minted them.', taken),
            HINT = format('On each that did, when it has another slot: SELECT insta_ids.left_writer_slot(%L). Where it will not'
                || ' mint again: SELECT lease + ''1 ms'' FROM insta_ids.clock(). Give the greatest; if none did, ''-infinity''.', slot);
    END IF;
    -- Also of a slot that was taken before: this may be a copy of a database that went on elsewhere.
    PERFORM insta_ids.advance_clock(until) WHERE until > '-infinity';
    IF slot <> taken THEN
        DELETE FROM insta_ids.writer;
        INSERT INTO insta_ids.writer SELECT s.slot, s.slots FROM insta_ids.slot_of(slot) s;
    END IF;
    RETURN slot;
END
$$;

CREATE FUNCTION insta_ids.left_writer_slot(slot text) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT text := insta_ids.writer_slot();
    taken CONSTANT text := insta_ids.taken_slot();
BEGIN
    IF insta_ids.slots_meet(slot, own) OR insta_ids.slots_meet(slot, taken)
        -- Nor by a transaction that may be rolled back.
        OR EXISTS (SELECT FROM insta_ids.writer w WHERE w.taken_by = pg_current_xact_id_if_assigned())
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('ids of writer slot %s are minted here', slot),
            DETAIL = format('This server has slot %s, and this database has taken %s.', own, taken),
            HINT = 'Set another insta_ids.writer_slot in postgresql.conf, restart the server, and take that, in a transaction'
                || ' before: SELECT insta_ids.take_writer_slot().';
    END IF;
    -- Every id of this database is of a time that its lease covers.
    RETURN coalesce((SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c), '-infinity');
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT SELECT, INSERT ON insta_ids.config TO %s', role);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE'
        || ' ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.work, insta_ids.node,'
        || ' insta_ids.assignment, insta_ids.map, insta_ids.fence, insta_ids.move, insta_ids.ended_move,'
        || ' insta_ids.moved TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.shard_schema, insta_ids.shard_relation, insta_ids.migration_status,'
        || ' insta_ids.progress, insta_ids.moves TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON PROCEDURE insta_ids.create_shards, insta_ids.migrate, insta_ids.check_rows,'
        || ' insta_ids.commit_batch, insta_ids.new_transaction TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION insta_ids.init, insta_ids.create_shard, insta_ids.make_shard,'
        || ' insta_ids.drop_shard, insta_ids.lock_schema, insta_ids.add_migration, insta_ids.apply_migrations,'
        || ' insta_ids.path_of, insta_ids.check_path, insta_ids.statements, insta_ids.minting_columns,'
        || ' insta_ids.migration_script, insta_ids.migration_by_script, insta_ids.start_migration,'
        || ' insta_ids.finish_migration, insta_ids.note_transactions, insta_ids.transactions_committed,'
        || ' insta_ids.check_range, insta_ids.check_locks, insta_ids.limit_catalog_cache, insta_ids.check,'
        || ' insta_ids.check_server, insta_ids.check_schemas, insta_ids.check_migrations, insta_ids.check_objects,'
        || ' insta_ids.check_references, insta_ids.check_sequences, insta_ids.check_ids, insta_ids.check_ids_of,'
        || ' insta_ids.objects_of, insta_ids.mending, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.check_isolation, insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.read_function, insta_ids.write_function, insta_ids.rewrite_function,'
        || ' insta_ids.lock_sequence, insta_ids.named_sequence, insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_adoption, insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.claim_shard, insta_ids.tell_of_dependents, insta_ids.unidentified_tables, insta_ids.check_map,'
        || ' insta_ids.check_dependents, insta_ids.check_left, insta_ids.is_placed_here, insta_ids.check_placement,'
        || ' insta_ids.own_node, insta_ids.forget_map, insta_ids.check_dsn, insta_ids.add_node, insta_ids.drop_node,'
        || ' insta_ids.check_node, insta_ids.set_assignments, insta_ids.assign, insta_ids.apply_map,'
        || ' insta_ids.taken_slot, insta_ids.check_writer,'
        || ' insta_ids.refuse_write, insta_ids.lock_all, insta_ids.check_heirs, insta_ids.close_shards,'
        || ' insta_ids.open_shards, insta_ids.claim, insta_ids.fence, insta_ids.unfence, insta_ids.check_moves,'
        || ' insta_ids.open_move, insta_ids.move_outcome, insta_ids.commit_durably, insta_ids.check_movable,'
        || ' insta_ids.objects_json, insta_ids.partitions_json, insta_ids.relations_of, insta_ids.published_tables,'
        || ' insta_ids.move_offer, insta_ids.move_slot, insta_ids.move_lag, insta_ids.move_slots_lost,'
        || ' insta_ids.move_fence, insta_ids.move_mark, insta_ids.drop_slot, insta_ids.assign_moved,'
        || ' insta_ids.move_finish, insta_ids.move_withdraw, insta_ids.move_hashes TO %s', role);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids.shard_schema s
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids.fence f
    JOIN insta_ids.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND NOT EXISTS (
            SELECT FROM pg_trigger t WHERE t.tgrelid = r.relation AND t.tgname = 'insta_ids_fence' AND t.tgenabled <> 'D')
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM),
                'Add insta_ids to "shared_preload_libraries" in postgresql.conf, and restart the server.')::insta_ids.finding;
    END;

    BEGIN
        PERFORM insta_ids.check_writer();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.take_writer_slot(...)'
                )::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT CASE WHEN b.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END, f.code, b.object, f.detail, f.hint
    FROM insta_ids.server_budget() b
    CROSS JOIN LATERAL (SELECT format('"max_locks_per_transaction" = %s',
        ceil(1.25 * b.used / nullif(b.available, 0) * current_setting('max_locks_per_transaction')::integer)) AS setting) s
    CROSS JOIN LATERAL (VALUES
        ('locks of pg_dump', b.used > b.available, 'locks_of_pg_dump',
            format('It needs %s locks, and the server has %s for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server.', s.setting)),
        ('locks of migrate', b.used > b.available, 'locks_of_migrate',
            format('50 shards like this one have %s relations, and the server has %s locks for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server; or call migrate with a smaller batch.', s.setting)),
        ('milliseconds of the layout', b.runs_out < now() + interval '5 years', 'end_of_layout',
            format('The last instant of the layout is %s.', b.runs_out),
            'Plan for ids of another layout in a new database: no id can be minted after that.')
    ) f (resource, is_found, code, detail, hint)
    WHERE f.resource = b.resource AND f.is_found;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.adoption_reasons(schema regnamespace, shard integer) RETURNS SETOF text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT format('Function %s: %s', f.function, coalesce(f.reason, format('It mints for shard %s.', f.shard)))
    FROM insta_ids.minting_functions(schema) f
    WHERE f.reason IS NOT NULL OR f.shard <> adoption_reasons.shard;

    RETURN QUERY
    SELECT format('Default of %s.%I: It mints for shard %s.', c.relation, c."column", c.shard)
    FROM insta_ids.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard;

    IF NOT EXISTS (SELECT FROM insta_ids.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids.filled_columns(schema))
    THEN
        RETURN NEXT 'It has no function like the published one.';
    END IF;

    RETURN QUERY
    SELECT format('This server has a writer slot, %s, and the function has minted the ids of all.', s.slot)
    FROM unnest(ARRAY[insta_ids.taken_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1;

    -- Each shard has table_id_seq, next_id() and next_id(regclass).
    RETURN QUERY
    SELECT format('Relation %s: It is no sequence, and each shard has one of this name.', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = schema AND c.relname = 'table_id_seq' AND c.relkind <> 'S';

    RETURN QUERY
    SELECT format('Function %s: With %s.next_id(%s) beside it, its calls would be ambiguous.', p.oid::regprocedure,
               schema, CASE WHEN p.pronargs > p.pronargdefaults THEN 'regclass' END)
    FROM pg_proc p
    JOIN pg_type t ON t.oid = p.proargtypes[0]
    WHERE p.pronamespace = schema AND p.proname = 'next_id'
        AND (p.pronargs = p.pronargdefaults
            OR p.pronargs = p.pronargdefaults + 1 AND t.typcategory = 'N'
                AND t.oid NOT IN ('integer'::regtype, 'regclass'::regtype));
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_release(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN format('It mints for shard %s.', f.shard)
                   ELSE coalesce(f.reason, 'It is not one of insta_ids.') END)
        FROM insta_ids.minting_functions(schema) f
        WHERE f.reason IS NOT NULL OR NOT f.native OR f.shard <> check_release.shard
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that it is told, and the default of %s.%I'
                    || ' would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids.native_defaults(schema) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR NOT f.native OR f.reason IS NOT NULL))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids.native_defaults(schema) d
        WHERE d.reason IS NOT NULL OR d.shard <> check_release.shard
        UNION ALL
        (SELECT format('This server has a writer slot, %s, and the published function would mint the ids of all.', s.slot)
         FROM unnest(ARRAY[insta_ids.taken_slot(), insta_ids.writer_slot()]) s (slot) WHERE s.slot <> '0/1' LIMIT 1));
BEGIN
    IF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be released', schema),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.prepare_move(offer jsonb, path text) RETURNS void
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
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L)', moving.from_node,
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

CREATE OR REPLACE FUNCTION insta_ids.connect_node(node name) RETURNS void
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
-- What routes by the map, and whether the servers agree on it.

-- The parameters of a connection string of libpq: of pairs, or of a URI.
CREATE FUNCTION insta_ids.dsn_parameters(dsn text) RETURNS TABLE (keyword text, value text)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    uri CONSTANT text[] := regexp_match(dsn, '^postgres(?:ql)?://(?:([^/@]*)@)?([^/?]*)(?:/([^?]*))?(?:\?(.*))?$');
    hosts text[];
    ports text[];
BEGIN
    IF uri IS NULL THEN
        RETURN QUERY
        SELECT p[1], regexp_replace(coalesce(p[2], p[3]), '\\(.)', '\1', 'g')
        FROM regexp_matches(dsn, '([a-z_]+)\s*=\s*(?:''((?:[^''\\]|\\.)*)''|((?:[^\s\\]|\\.)*))', 'g') p;
        RETURN;
    END IF;
    SELECT array_agg(trim(BOTH '[]' FROM h[1])), array_agg(coalesce(h[2], '')) INTO hosts, ports
    FROM regexp_split_to_table(uri[2], ',') host, regexp_match(host, '^(\[[^]]*\]|[^:]*)(?::(\d*))?$') h;
    RETURN QUERY
    SELECT p.keyword, insta_ids.percent_decoded(p.value)
    FROM (
        VALUES ('user', uri[1]), ('host', array_to_string(hosts, ',')),
            ('port', CASE WHEN ports <> array_fill(''::text, ARRAY[cardinality(ports)]) THEN array_to_string(ports, ',') END),
            ('dbname', uri[3])
        UNION ALL
        SELECT split_part(parameter, '=', 1), substr(parameter, strpos(parameter, '=') + 1)
        FROM regexp_split_to_table(uri[4], '&') parameter
        UNION ALL
        SELECT 'sslmode', 'require' WHERE uri[4] ~ '(^|&)ssl=true(&|$)'
    ) p (keyword, value)
    WHERE p.value <> '' AND p.keyword <> 'ssl';
END
$$;

CREATE FUNCTION insta_ids.percent_decoded(encoded text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.convert_from(pg_catalog.decode(pg_catalog.string_agg(
        CASE WHEN p.part[1] IS NULL THEN pg_catalog.encode(pg_catalog.convert_to(p.part[2], 'UTF8'), 'hex') ELSE p.part[1] END,
        '' ORDER BY p.place), 'hex'), 'UTF8')
    FROM pg_catalog.regexp_matches(encoded, '%([0-9A-Fa-f]{2})|(.)', 'g') WITH ORDINALITY p (part, place);
END;

-- Whether the servers agree

-- Asks every node of the map, also this one.
CREATE FUNCTION insta_ids.check_nodes() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    question CONSTANT text := 'SELECT jsonb_build_object(''node'', insta_ids.this_node(), ''map'', insta_ids.shard_map() - ''moving'','
        || ' ''writer_slot'', insta_ids.writer_slot())';
    node name;
    is_connected boolean;
    answers jsonb := '{}';
    reason text;
    newest bigint;
    newest_on text;
BEGIN
    PERFORM insta_ids.dblink_schema();
    FOR node IN SELECT n.node FROM insta_ids.node n ORDER BY n.ord LOOP
        is_connected := false;
        BEGIN
            PERFORM insta_ids.connect_node(node);
            is_connected := true;
            answers := answers || jsonb_build_object(node, insta_ids.ask_node(question));
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
            RETURN NEXT ROW('error', CASE WHEN is_connected THEN 'other_answer' ELSE 'no_answer' END, quote_ident(node),
                concat_ws(': ', SQLERRM, nullif(trim(reason), '')),
                CASE WHEN is_connected THEN 'Mend that there.'
                    ELSE 'Correct its connection string; or if the server is gone for good, promote its standby under the same'
                        || format(' name, and say where that is: SELECT insta_ids.add_node(%L, ...)', node) END
                )::insta_ids.finding;
        END;
    END LOOP;
    PERFORM insta_ids.disconnect_node();

    RETURN QUERY
    SELECT 'error', 'other_node', quote_ident(a.key),
           format('The server that its connection string leads to is %s.', coalesce('node "' || (a.value ->> 'node') || '"', 'no node')),
           'Correct the connection string by insta_ids.add_node(), or insta_ids.node in postgresql.conf there.'
    FROM jsonb_each(answers) a WHERE a.value ->> 'node' IS DISTINCT FROM a.key ORDER BY a.key;

    SELECT (a.value #>> '{map,version}')::bigint, a.key INTO newest, newest_on
    FROM jsonb_each(answers) a ORDER BY 1 DESC, a.key LIMIT 1;
    RETURN QUERY
    SELECT CASE v.version WHEN newest THEN 'error' ELSE 'warning' END,
           CASE v.version WHEN newest THEN 'other_map' ELSE 'old_map' END, quote_ident(a.key),
           format('Its map has version %s, and version %s on node "%s".', v.version, newest, newest_on)
               || CASE v.version WHEN newest THEN ' They differ.' ELSE '' END,
           CASE v.version WHEN newest
               THEN 'Assign on one of them what the other has, and apply that map on the other by insta_ids.apply_map().'
               ELSE format('Apply there what insta_ids.shard_map() returns on node "%s": SELECT insta_ids.apply_map(...)', newest_on) END
    FROM jsonb_each(answers) a
    CROSS JOIN LATERAL (SELECT (a.value #>> '{map,version}')::bigint AS version) v
    WHERE v.version < newest OR a.value -> 'map' <> answers -> newest_on -> 'map'
    ORDER BY a.key;

    -- Where none of the two has one, each shard is minted for on one server.
    RETURN QUERY
    SELECT 'error', 'same_writer_slot', quote_ident(a.key),
           format('Its writer slot is %s, and that of node "%s" %s: they mint the same ids for a shard that both write to.',
               a.value ->> 'writer_slot', b.key, b.value ->> 'writer_slot'),
           'Set insta_ids.writer_slot in postgresql.conf on one of them, restart it, and take that: '
               || 'SELECT insta_ids.take_writer_slot(...)'
    FROM jsonb_each(answers) a
    JOIN jsonb_each(answers) b ON a.key < b.key
    WHERE insta_ids.slots_meet(a.value ->> 'writer_slot', b.value ->> 'writer_slot')
        AND (a.value ->> 'writer_slot', b.value ->> 'writer_slot') <> ('0/1', '0/1')
    ORDER BY a.key, b.key;
END
$$;

-- PL/Proxy

-- How it connects to each shard's server, in their order: as the role that asks, not as who moves shards. A shard on no node
-- is said to be on the first: that refuses it, and says why.
CREATE FUNCTION insta_ids.plproxy_partitions() RETURNS SETOF text
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH target AS (
        SELECT n.node, n.ord, (
            SELECT pg_catalog.string_agg(
                pg_catalog.format('%s=''%s''', p.keyword, pg_catalog.regexp_replace(p.value, '([''\\=])', '\\\1', 'g')), ' ')
            FROM insta_ids.dsn_parameters(n.dsn) p WHERE p.keyword <> 'user') AS dsn
        FROM insta_ids.node n
    )
    SELECT t.dsn
    FROM pg_catalog.generate_series(0, (SELECT c.shards - 1 FROM insta_ids.config c)) s (shard)
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    JOIN target t ON t.node = coalesce(a.node, (SELECT n.node FROM insta_ids.node n ORDER BY n.ord LIMIT 1))
    ORDER BY s.shard;
END;

CREATE FUNCTION insta_ids.install_plproxy(cluster text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made CONSTANT text := 'made by insta_ids.install_plproxy()';
    other record;
BEGIN
    PERFORM insta_ids.configured();
    IF NOT EXISTS (SELECT FROM pg_language l WHERE l.lanname = 'plproxy') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "plproxy" is not installed in this database',
            HINT = 'CREATE EXTENSION plproxy';
    END IF;
    IF to_regnamespace('plproxy') IS NULL THEN
        CREATE SCHEMA plproxy;
        GRANT USAGE ON SCHEMA plproxy TO PUBLIC;
    END IF;
    SELECT f.* INTO other
    FROM (
        SELECT 'schema plproxy', n.nspowner, made FROM pg_namespace n WHERE n.nspname = 'plproxy'
        UNION ALL
        SELECT 'function ' || p.oid::regprocedure, p.proowner, obj_description(p.oid, 'pg_proc')
        FROM pg_proc p
        WHERE p.pronamespace = to_regnamespace('plproxy')
            AND p.proname IN ('get_cluster_version', 'get_cluster_partitions', 'get_cluster_config')
    ) f (object, owner, description)
    WHERE f.description IS DISTINCT FROM made
        OR NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = f.owner) AND f.owner <> current_user::regrole
    ORDER BY f.description IS DISTINCT FROM made DESC LIMIT 1;
    IF FOUND AND other.description IS DISTINCT FROM made THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_function',
            MESSAGE = format('%s exists already', other.object),
            DETAIL = 'It says what other clusters are.',
            HINT = 'Let it return what insta_ids.map and insta_ids.plproxy_partitions() have for this cluster.';
    ELSIF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s is of role %s', other.object, other.owner::regrole),
            DETAIL = 'That role could have others call what it likes.',
            HINT = 'Make it your own by ALTER ... OWNER TO, or drop it.';
    END IF;
    -- Of another cluster they return nothing, which PL/Proxy reports.
    EXECUTE format($f$
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_version(cluster_name text) RETURNS integer
            STABLE LANGUAGE sql
            RETURN (SELECT coalesce(max(m.version), 0)::integer FROM insta_ids.map m HAVING cluster_name = %1$L);
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text) RETURNS SETOF text
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT p FROM insta_ids.plproxy_partitions() p WHERE cluster_name = %1$L; END;
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(cluster_name text, OUT key text, OUT val text) RETURNS SETOF record
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT 'modular_mapping', '1' WHERE cluster_name = %1$L; END;
        COMMENT ON FUNCTION plproxy.get_cluster_version(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_partitions(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_config(text) IS %2$L;
    $f$, cluster, made);
END
$$;

-- PgDog

-- A node's lines are its server's; a schema's lead there. JSON's strings are TOML's.
CREATE FUNCTION insta_ids.export_pgdog(database text, id_columns text[] DEFAULT '{}', key_columns text[] DEFAULT '{}')
    RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
    nodes CONSTANT name[] := ARRAY(SELECT n.node FROM insta_ids.node n ORDER BY n.ord);
    lookup CONSTANT text :=
        'SELECT n.ord FROM insta_ids.assignment a JOIN insta_ids.node n ON n.node = a.node WHERE %s BETWEEN a.first AND a.last';
    next record;
    entries text[];
BEGIN
    IF (SELECT count(*) <> max(n.ord) + 1 FROM insta_ids.node n) OR nodes = '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'nodes are not numbered from 0 without a gap',
            DETAIL = 'PgDog numbers its servers like that.',
            HINT = 'Give them other numbers: insta_ids.add_node(node, dsn, ord).';
    END IF;
    entries := ARRAY[format('# Version %s of the map of insta_ids.', (SELECT coalesce(max(m.version), 0) FROM insta_ids.map m))];
    FOR next IN
        SELECT n.node, n.ord, jsonb_object_agg(p.keyword, p.value) FILTER (WHERE p.keyword IS NOT NULL) AS parameters
        FROM insta_ids.node n LEFT JOIN LATERAL insta_ids.dsn_parameters(n.dsn) p ON true
        GROUP BY n.node, n.ord ORDER BY n.ord
    LOOP
        IF coalesce(next.parameters ->> 'host', ',') ~ '[,/]' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('connection string of node "%s" does not name one host', next.node),
                DETAIL = 'PgDog connects to one host by TCP, and reads no service file.';
        END IF;
        entries := entries || concat_ws(E'\n', '[[databases]]',
            format('name = %s', to_json(database)),
            format('host = %s', next.parameters -> 'host'),
            'port = ' || (next.parameters ->> 'port')::integer,
            'database_name = ' || (next.parameters -> 'dbname')::text,
            format('shard = %s', next.ord));
    END LOOP;
    IF id_columns || key_columns = '{}' THEN
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_schemas]]', format('database = %s', to_json(database)),
                format('name = %s', to_json(insta_ids.schema_of(s))), format('shard = %s', n.ord))
            FROM insta_ids.assignment a
            JOIN insta_ids.node n ON n.node = a.node
            CROSS JOIN generate_series(a.first, a.last) s
            ORDER BY s);
    ELSE
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_tables]]', format('database = %s', to_json(database)),
                format('column = %s', to_json(l.name)), 'data_type = "bigint"',
                format('lookup_query = %s', to_json(format(lookup, l.shard))), 'lookup_result = "shard"')
            FROM (
                SELECT i.name, format('@extschema@.id_shard($1%s)', insta_ids.layout_argument(config.layout)), i.place
                FROM unnest(id_columns) WITH ORDINALITY i (name, place) WHERE i.name IS NOT NULL
                UNION ALL
                SELECT k.name, 'insta_ids.shard_of($1)', cardinality(id_columns) + k.place
                FROM unnest(key_columns) WITH ORDINALITY k (name, place) WHERE k.name IS NOT NULL
            ) l (name, shard, place)
            ORDER BY l.place);
    END IF;
    RETURN array_to_string(entries, E'\n\n') || E'\n';
END
$$;

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT oid::regclass::text, relname, relowner, relacl
            FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proname, proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'insta_ids'::regnamespace
        ) o (object, name, owner, acl), aclexplode(acl)
        WHERE grantee <> owner AND name IN (
            'check_nodes', 'check_writer', 'dsn_parameters', 'export_pgdog', 'install_plproxy', 'left_writer_slot', 'percent_decoded',
            'plproxy_partitions', 'slot_of', 'slots_meet', 'take_writer_slot', 'taken_slot', 'writer', 'writer_slot')
    LOOP
        EXECUTE command;
    END LOOP;
    -- Who could make shards still can.
    PERFORM insta_ids.grant_provisioning(a.grantee::regrole)
    FROM pg_proc p, aclexplode(p.proacl) a
    WHERE p.oid = 'insta_ids.make_shard(integer, text)'::regprocedure AND a.grantee <> p.proowner;
END
$$;
GRANT EXECUTE ON FUNCTION
    insta_ids.writer_slot(), insta_ids.plproxy_partitions(), insta_ids.dsn_parameters(text), insta_ids.percent_decoded(text)
    TO PUBLIC;
GRANT SELECT ON insta_ids.writer TO PUBLIC;

-- Comments
COMMENT ON TABLE insta_ids.writer IS
    'the writer slot that this database has taken';
COMMENT ON FUNCTION insta_ids.writer_slot() IS
    'writer slot of this server: which ids are its, where several servers mint for one shard';
COMMENT ON FUNCTION insta_ids.take_writer_slot(timestamptz) IS
    'lets this database mint by the writer slot of its server, after a time up to which another server did';
COMMENT ON FUNCTION insta_ids.left_writer_slot(text) IS
    'time that ids of another writer slot, minted here before, have not reached';
COMMENT ON FUNCTION insta_ids.slot_of(text) IS
    'a writer slot from its text';
COMMENT ON FUNCTION insta_ids.check_writer() IS
    'refuses a server whose writer slot this database has not taken';
COMMENT ON FUNCTION insta_ids.slots_meet(text, text) IS
    'whether an id can be of both writer slots';
COMMENT ON FUNCTION insta_ids.taken_slot() IS
    'the writer slot that this database has taken, or the only one there is';
COMMENT ON FUNCTION insta_ids.check_nodes() IS
    'asks all nodes of the map, by dblink, whether they agree: on their names, the map and writer slots';
COMMENT ON FUNCTION insta_ids.dsn_parameters(text) IS
    'the parameters of a connection string of libpq';
COMMENT ON FUNCTION insta_ids.percent_decoded(text) IS
    'a part of a URI, decoded';
COMMENT ON FUNCTION insta_ids.plproxy_partitions() IS
    'how PL/Proxy connects to the server of each shard, in their order';
COMMENT ON FUNCTION insta_ids.install_plproxy(text) IS
    'makes the functions by which PL/Proxy routes a cluster by the map';
COMMENT ON FUNCTION insta_ids.export_pgdog(text, text[], text[]) IS
    'the part of PgDog''s configuration that follows the map';

CREATE OR REPLACE FUNCTION insta_ids.check_placement(shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name;
BEGIN
    IF NOT insta_ids.is_placed_here(shard) THEN
        SELECT a.node INTO node FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last;
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = format('shard %s is not on this node', shard),
            DETAIL = format('By version %s of the map it is on %s; this is node "%s".',
                (SELECT m.version FROM insta_ids.map m), coalesce('node "' || node || '"', 'no node'),
                insta_ids.this_node());
    END IF;
    SELECT d.to_node INTO node FROM insta_ids.moved d WHERE d.shard = check_placement.shard AND d.schema IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s', shard);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.set_assignments(firsts integer[], lasts integer[], nodes name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
    taken record;
    left_here insta_ids.moved;
BEGIN
    SELECT d.* INTO left_here
    FROM insta_ids.moved d
    JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON d.shard BETWEEN a.first AND a.last AND a.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s',
                left_here.shard);
    END IF;
    SELECT s.shard, a.node INTO taken
    FROM insta_ids.shard s
    LEFT JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS DISTINCT FROM here AND here IS NOT NULL
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s is here, and open to writers', taken.shard),
            DETAIL = format('The map would have it on %s; this is node "%s".',
                coalesce('node "' || taken.node || '"', 'no node'), here),
            HINT = 'Move it with insta_ids.move_shards(), or fence it first: insta_ids.fence().';
    END IF;
    DELETE FROM insta_ids.assignment;
    INSERT INTO insta_ids.assignment
    WITH ranges AS (
        SELECT a.first, a.last, a.node,
               lag(a.node) OVER n IS NOT DISTINCT FROM a.node AND lag(a.last) OVER n = a.first - 1 AS goes_on
        FROM unnest(firsts, lasts, nodes) a (first, last, node)
        WINDOW n AS (ORDER BY a.first)
    ), numbered AS (
        SELECT r.*, count(*) FILTER (WHERE NOT coalesce(r.goes_on, false)) OVER (ORDER BY r.first) AS number FROM ranges r
    )
    SELECT min(n.first), max(n.last), n.node FROM numbered n GROUP BY n.number, n.node;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.close_shards(shards integer[], to_node name, lock_timeout text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids.shard_relation;
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be fenced'), insta_ids.check_heirs(shards), insta_ids.commit_durably();
    PERFORM insta_ids.lock_all(
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        format('%s shards from %s', cardinality(shards), shards[1]), lock_timeout);
    -- While it is not there, its own DDL is not refused.
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
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
    END LOOP;
    INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, true, to_node FROM unnest(shards) s;
END
$$;
