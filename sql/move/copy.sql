-- Moves, on the target: a subscription to the source copies the rows.

-- Creates the subscription of a move, which does not run yet. From now on, a server that restarts finds the move.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_subscription(moving insta_ids_internal.move) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_trusted_owners(moving.shards);
    EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %1$I'
        || ' WITH (enabled = false, create_slot = false, slot_name = %3$L, streaming = off, disable_on_error = true)', moving.name,
        (SELECT n.dsn FROM insta_ids_internal.node n WHERE n.node = moving.from_node), insta_ids_internal.slot_of(moving));
END
$$;

-- Begins to copy, or goes on after an error. Raises an error if the subscription of a running copy is lost.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_subscribe(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
    dsn CONSTANT text := (SELECT n.dsn FROM insta_ids_internal.node n WHERE n.node = moving.from_node);
    subscription insta_ids_internal.subscription;
BEGIN
    IF moving.step NOT IN ('prepared', 'copying') THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.require_trusted_owners(moving.shards);
    SELECT * INTO subscription FROM insta_ids_internal.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        -- The tables have rows already, and a new subscription would copy them again.
        IF moving.step = 'copying' THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('subscription of move "%s" is lost', move),
                HINT = insta_ids_internal.hint_to_abort(moving);
        END IF;
        PERFORM insta_ids_internal.make_subscription(moving);
    ELSIF dsn <> (SELECT s.subconninfo FROM pg_subscription s WHERE s.oid = subscription.oid) THEN
        EXECUTE format('ALTER SUBSCRIPTION %I CONNECTION %L', move, dsn);
    END IF;
    IF subscription.is_enabled IS NOT TRUE THEN
        EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', move);
    END IF;
    UPDATE insta_ids_internal.move m SET step = 'copying', step_at = now() WHERE m.name = move AND m.step = 'prepared';
END
$$;

-- Returns whether all tables are copied and follow the source. Raises an error if the subscription is lost or has stopped.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_copied(move name) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscription insta_ids_internal.subscription;
BEGIN
    SELECT * INTO subscription FROM insta_ids_internal.subscription s WHERE s.name = move;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('subscription of move "%s" is lost', move),
            HINT = insta_ids_internal.hint_to_abort(insta_ids_internal.open_move(move));
    ELSIF NOT subscription.is_enabled THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('subscription of move "%s" has stopped at an error', move),
            HINT = 'The error is in the log of this server. Mend its cause, and call insta_ids.move_shards() again.';
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM pg_subscription_rel r WHERE r.srsubid = subscription.oid AND r.srsubstate <> 'r');
END
$$;

-- Returns the slots on the source for tables in one of `states`. By default, these tables are copied but have not caught up. If
-- a server dies while a slot is dropped, the target may wait for that slot forever.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_table_slots(move name, states "char"[] DEFAULT '{f}') RETURNS name[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT pg_catalog.format('pg_%s_sync_%s_%s', s.oid, r.srrelid, c.system_identifier)::pg_catalog.name
        FROM insta_ids_internal.subscription s
        JOIN pg_catalog.pg_subscription_rel r ON r.srsubid = s.oid AND r.srsubstate = ANY (states)
        CROSS JOIN pg_catalog.pg_control_system() c
        WHERE s.name = move);

-- Empties the tables and copies them again, with a new subscription. Raises an error unless the move is copying.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_recopy(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.open_move(move);
    role CONSTANT text := current_setting('session_replication_role');
BEGIN
    IF moving.step <> 'copying' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are not being copied', moving.first, moving.last);
    END IF;
    PERFORM insta_ids_internal.drop_subscription(move);
    -- This setting keeps the fence's triggers from firing, as for the subscription.
    PERFORM set_config('session_replication_role', 'replica', true);
    PERFORM insta_ids_internal.truncate_shards(moving.shards);
    PERFORM set_config('session_replication_role', role, true);
    UPDATE insta_ids_internal.move m SET step = 'prepared', source_files = NULL WHERE m.name = move;
    PERFORM insta_ids_internal.move_subscribe(move);
END
$$;

-- The second step: has the source create the replication slot, and enables the subscription that reads it. Reports which transactions
-- the source waits for before it can create the slot. Copies everything again if the subscription has stopped before all tables were
-- copied, and tables of the source have other files since: TRUNCATE makes new ones. If tables refer to each other, PostgreSQL can never
-- apply it to only some of them.
CREATE OR REPLACE FUNCTION insta_ids_internal.start_copy(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    writers jsonb;
    files jsonb;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    PERFORM insta_ids_internal.require_not_promoted(moving) WHERE moving.name IS NOT NULL;
    writers := insta_ids_internal.ask_node(format($query$
        SELECT to_jsonb(string_agg(w.name, ', ')) FROM (
            SELECT insta_ids_internal.named_session(a.pid) FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
            UNION ALL
            SELECT 'prepared transaction ' || quote_literal(p.gid) FROM pg_prepared_xacts p
        ) w (name)
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.move m JOIN pg_replication_slots s ON s.slot_name = insta_ids_internal.slot_of(m)
            WHERE m.name = %L) $query$, move));
    IF jsonb_typeof(writers) = 'string' THEN
        RAISE NOTICE 'move_shards: waits until these end on node "%": %', moving.from_node, writers #>> '{}';
    END IF;
    -- A TRUNCATE between the two is in the slot.
    files := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_files(%L)', move));
    PERFORM insta_ids_internal.call_node(format('move_slot(%L)', move));
    IF moving.step = 'copying' AND files IS DISTINCT FROM moving.source_files AND EXISTS (
        SELECT FROM insta_ids_internal.subscription s JOIN pg_subscription_rel r ON r.srsubid = s.oid AND r.srsubstate <> 'r'
        WHERE s.name = move AND NOT s.is_enabled)
    THEN
        RAISE NOTICE 'move_shards: begins to copy again, as tables were truncated on node "%" during the copy', moving.from_node;
        PERFORM insta_ids_internal.move_recopy(move);
        moving.step := 'prepared';
    ELSE
        PERFORM insta_ids_internal.move_subscribe(move);
    END IF;
    UPDATE insta_ids_internal.move m SET source_files = files WHERE m.name = move AND moving.step = 'prepared';
END
$$;

-- Looks how far a copy is since the first look. Once a second, it reports that, and copies again if the source has lost the slot of a
-- table that was catching up, for example because a server died. Raises an error if the subscription does not run, or a standby of the
-- source is not connected.
CREATE OR REPLACE PROCEDURE insta_ids_internal.look_at_copy(
        move name, from_node name, max_lag bigint, await_standbys boolean, INOUT copying insta_ids_internal.copying)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now CONSTANT bigint := insta_ids_internal.steady_ms();
    -- The time that the subscription has to start, in milliseconds.
    patience CONSTANT bigint := (
        SELECT greatest(15000, 3 * s.setting::bigint) FROM pg_settings s WHERE s.name = 'wal_retrieve_retry_interval');
    lag CONSTANT bigint := insta_ids_internal.ask_node(format('SELECT to_jsonb(insta_ids_internal.move_lag(%L))', move));
    progress record;
BEGIN
    IF copying IS NULL THEN
        copying := ROW(insta_ids_internal.ask_node('SELECT to_jsonb(pg_logical_emit_message(true, ''insta_ids'', ''''))') #>> '{}',
            now, 0, NULL, '{}', '{}', false)::insta_ids_internal.copying;
    END IF;
    IF insta_ids_internal.move_copied(move) AND lag <= max_lag AND insta_ids_internal.has_applied(move, copying.begun) THEN
        IF await_standbys THEN
            -- A standby that this session waited for still counts after its connection ends.
            IF copying.standby IS NOT NULL AND NOT copying.standby ->> 'name' = ANY (copying.standbys) THEN
                copying.standbys := copying.standbys || (copying.standby ->> 'name');
            END IF;
            copying.standby := insta_ids_internal.ask_node(
                format('SELECT insta_ids_internal.standby_behind(%L::bigint, %L::text[])', max_lag, copying.standbys));
        END IF;
        IF NOT (copying.standby ->> 'is_connected')::boolean THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('%s of node "%s" is not connected', copying.standby ->> 'name', from_node),
                DETAIL = 'It would not have the fence. Promoted later, it would take writes that are lost.',
                HINT = 'Start the standby and call again, or call with await_standbys => false; if it is gone, drop its slot.';
        END IF;
        copying.is_done := copying.standby IS NULL;
    END IF;
    IF copying.is_done THEN
        RETURN;
    ELSIF insta_ids_internal.has_applied(move, '0/0'::pg_lsn) THEN
        copying.ran_at := now;
    ELSIF now > copying.ran_at + patience THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('subscription of move "%s" does not run', move),
            DETAIL = format('It has not started for %s s, and writers were not stopped.', patience / 1000),
            HINT = 'See the log of this server; "max_logical_replication_workers" or "max_worker_processes" may be too low.';
    END IF;
    IF now > copying.reported_at + 1000 THEN
        copying.reported_at := now;
        SELECT * INTO progress FROM insta_ids_internal.moves p WHERE p.name = move;
        RAISE NOTICE 'move_shards: % of % tables copied, % rows, % of %, % behind', progress.tables_copied,
            progress.tables, progress.rows, pg_size_pretty(progress.bytes), pg_size_pretty(progress.bytes_total),
            pg_size_pretty(lag);
        IF copying.standby IS NOT NULL THEN
            RAISE NOTICE 'move_shards: % of node "%" is % behind', copying.standby ->> 'name', from_node,
                pg_size_pretty((copying.standby ->> 'lag')::bigint);
        END IF;
        -- Those of a second ago that are still there.
        copying.table_slots := ARRAY(
            SELECT unnest(copying.table_slots) INTERSECT SELECT unnest(insta_ids_internal.move_table_slots(move)));
        IF insta_ids_internal.ask_node(
            format('SELECT to_jsonb(insta_ids_internal.move_slots_lost(%L))', copying.table_slots)) = 'true'
        THEN
            RAISE NOTICE 'move_shards: begins to copy again, as a server died while a table was at its end';
            PERFORM insta_ids_internal.move_recopy(move);
        END IF;
        copying.table_slots := insta_ids_internal.move_table_slots(move);
    END IF;
END
$$;

-- The third step: waits until the copy is complete and at most `max_lag` bytes of WAL behind. With `await_standbys`, standbys
-- of the source must not be further behind either.
CREATE OR REPLACE PROCEDURE insta_ids_internal.await_copy(move name, from_node name, max_lag bigint, await_standbys boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    copying insta_ids_internal.copying;
BEGIN
    LOOP
        CALL insta_ids_internal.look_at_copy(move, from_node, max_lag, await_standbys, copying);
        EXIT WHEN copying.is_done;
        PERFORM insta_ids_internal.wait_ms(20);
        CALL insta_ids_internal.new_transaction();
    END LOOP;
END
$$;

-- The fourth step, before the shards are fenced for the hand-over: analyzes the tables, because the first queries here need statistics.
-- Compares the clocks, and looks for the rows to which the shards refer, because writers would wait if the next step found a problem.
CREATE OR REPLACE FUNCTION insta_ids_internal.prepare_hand_over(move name, from_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards CONSTANT integer[] := (SELECT m.shards FROM insta_ids_internal.move m WHERE m.name = move);
    relation text;
BEGIN
    FOREACH relation IN ARRAY insta_ids_internal.tables_of(shards) LOOP
        EXECUTE format('ANALYZE %s', relation);
    END LOOP;
    PERFORM insta_ids_internal.require_near_time(
        (insta_ids_internal.ask_node('SELECT to_jsonb(c.id_time) FROM insta_ids.clock() c') #>> '{}')::timestamptz, from_node);
    PERFORM insta_ids_internal.require_referenced(shards);
END
$$;

-- Raises an error if a time of ids of another node is further ahead of this server's clock than it can follow.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_near_time(at timestamptz, node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tolerance CONSTANT text := insta_ids_internal.setting('insta_ids.clock_tolerance');
    lead CONSTANT interval := at - clock_timestamp();
BEGIN
    IF lead > tolerance::interval THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('clock of this server is %s behind the time of ids on node "%s"', lead, node),
            DETAIL = format('"insta_ids.clock_tolerance" is %s.', tolerance),
            HINT = 'Correct the clock, and call again.';
    END IF;
END
$$;
