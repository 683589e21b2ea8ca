-- Moves, on the target: the rows of both servers are compared.

-- Returns the tables of shards that contain rows.
CREATE OR REPLACE FUNCTION insta_ids_internal.tables_of(shards integer[]) RETURNS text[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT r.relation::text FROM insta_ids_internal.shard_relation r
        WHERE r.shard = ANY (shards) AND r.kind = 'r' ORDER BY r.relation);

-- Compares all rows of a move with those of the snapshot on the source, and ends that snapshot. Each server reads by the snapshot of
-- its transaction, and both read the same table at the same time. Reports its progress at most once a second. Raises an error if a
-- table differs.
CREATE OR REPLACE FUNCTION insta_ids_internal.compare_snapshots(move name, fenced_ms bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := (SELECT m FROM insta_ids_internal.move m WHERE m.name = move);
    tables CONSTANT text[] := insta_ids_internal.tables_of(moving.shards);
    relation text;
    ours record;
    connection CONSTANT text := 'insta_ids_snapshot';
    rows bigint := 0;
    compared integer := 0;
    different record;
    reported_at bigint := insta_ids_internal.steady_ms();
BEGIN
    RAISE NOTICE 'move_shards: compares all rows; node "%" was fenced for % ms', moving.from_node, fenced_ms;
    PERFORM insta_ids_internal.limit_statement(NULL::integer);
    FOREACH relation IN ARRAY tables LOOP
        PERFORM insta_ids_internal.begin_to_ask_node(
            format('SELECT to_jsonb(s) FROM insta_ids_internal.survey_rows(%L::regclass) s', relation), connection);
        SELECT * INTO ours FROM insta_ids_internal.survey_rows(relation::regclass);
        IF to_jsonb(ours) <> insta_ids_internal.await_node(connection)::jsonb THEN
            different := insta_ids_internal.different_hashes(relation, connection);
            RAISE data_corrupted USING MESSAGE = format('rows of table %s are not the same on both servers', relation),
                DETAIL = concat(
                    format('On node "%s" are %s rows that are not here or not the same, and here are %s that are not there.',
                        moving.from_node, different.there, different.here),
                    insta_ids_internal.named_differences(relation, connection, different.hashes_there, different.hashes_here)),
                HINT = insta_ids_internal.hint_to_abort(moving);
        END IF;
        rows := rows + ours.rows;
        compared := compared + 1;
        IF insta_ids_internal.steady_ms() > reported_at + 1000 OR compared = cardinality(tables) THEN
            reported_at := insta_ids_internal.steady_ms();
            RAISE NOTICE 'move_shards: % of % tables compared, % rows', compared, cardinality(tables), rows;
            -- This server cannot record it, because its transaction has to keep the snapshot.
            PERFORM insta_ids_internal.call_node(format('move_compared(%L, %s)', move, compared));
        END IF;
    END LOOP;
    PERFORM insta_ids_internal.disconnect_node(connection);
EXCEPTION WHEN query_canceled OR OTHERS THEN
    -- The other server would keep its snapshot, and all rows that it sees.
    PERFORM insta_ids_internal.disconnect_node(connection);
    RAISE;
END
$$;

-- Gives up the source's next fence before the source makes it, so that it cannot lead to a hand-over. Returns what open_fence needs
-- on the source, and connects the session of the snapshot.
CREATE OR REPLACE FUNCTION insta_ids_internal.give_up_next_fence(move name, from_node name, lock_timeout interval) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given_up jsonb;
BEGIN
    PERFORM insta_ids_internal.lock_relations(
        '{insta_ids_internal.assignment}', 'SHARE ROW EXCLUSIVE', '{}', 'the map', lock_timeout);
    given_up := insta_ids_internal.give_up_fence(move,
        (insta_ids_internal.state_there(move, NULL::uuid) ->> 'fences')::integer + 1);
    PERFORM insta_ids_internal.connect_node(from_node, 'insta_ids_snapshot');
    -- The session there may wait for long between two tables.
    PERFORM insta_ids_internal.ask_node('SELECT to_jsonb(count(set_config(s.name, ''0'', false))) FROM pg_settings s'
        || ' WHERE s.name IN (''idle_in_transaction_session_timeout'', ''transaction_timeout'')', 'insta_ids_snapshot');
    RETURN given_up;
END
$$;

-- Fences the source until all its rows are here, and takes the snapshot there. Returns when it was fenced, and the error that has
-- ended the attempt.
CREATE OR REPLACE FUNCTION insta_ids_internal.try_snapshot_there(move name, lock_timeout interval, max_pause interval)
    RETURNS insta_ids_internal.pause
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    there jsonb;
    fenced_at bigint;
    failure insta_ids_internal.failure;
BEGIN
    BEGIN
        PERFORM insta_ids_internal.call_node(format('move_fence(%L, %L, %L)', move, lock_timeout, max_pause));
        fenced_at := insta_ids_internal.steady_ms();
        PERFORM insta_ids_internal.limit_statement((extract(epoch FROM max_pause) * 1000)::integer);
        there := insta_ids_internal.state_there(move, NULL::uuid);
        WHILE NOT insta_ids_internal.move_drained(move, there) LOOP
            PERFORM insta_ids_internal.wait_ms(2);
        END LOOP;
        PERFORM insta_ids_internal.ask_node(
            'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT to_jsonb(true)', 'insta_ids_snapshot');
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        GET STACKED DIAGNOSTICS failure.code = RETURNED_SQLSTATE, failure.message = MESSAGE_TEXT,
            failure.detail = PG_EXCEPTION_DETAIL, failure.hint = PG_EXCEPTION_HINT;
    END;
    RETURN ROW(fenced_at, failure, 'Rows that were written before the fence had not arrived.')::insta_ids_internal.pause;
END
$$;

-- Opens the fence of try_snapshot_there(). The statement that calls this has taken the snapshot here. Returns the pause, with the
-- error that has ended the attempt.
CREATE OR REPLACE FUNCTION insta_ids_internal.try_open_there(move name, given_up jsonb, paused insta_ids_internal.pause)
    RETURNS insta_ids_internal.pause
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    failure insta_ids_internal.failure;
BEGIN
    BEGIN
        -- Each fence has a number of its own. If this one is still there, no writer came before the snapshots.
        IF insta_ids_internal.ask_node(
            format('SELECT to_jsonb(insta_ids_internal.open_fence(%L::name, %L::jsonb))', move, given_up)) = 'false'
        THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('another session has opened the fence of move "%s"', move),
                DETAIL = 'The rows could not be compared as of one moment.';
        END IF;
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        GET STACKED DIAGNOSTICS failure.code = RETURNED_SQLSTATE, failure.message = MESSAGE_TEXT,
            failure.detail = PG_EXCEPTION_DETAIL, failure.hint = PG_EXCEPTION_HINT;
    END;
    RETURN ROW(paused.fenced_at, failure, paused.state)::insta_ids_internal.pause;
END
$$;

-- Verifies a copy while writers go on, unless `verify` is none. A short fence makes both servers have the same
-- rows. Under it, each server takes a snapshot, and the snapshots are compared after the fence has opened.
CREATE OR REPLACE PROCEDURE insta_ids_internal.verify_snapshots(
        move name, from_node name, verify text, lock_timeout interval, max_pause interval)
    LANGUAGE plpgsql
AS $$
DECLARE
    given_up pg_catalog.jsonb;
    paused insta_ids_internal.pause;
BEGIN
    IF verify OPERATOR(pg_catalog.<>) 'snapshot' THEN
        RETURN;
    END IF;
    -- A worker that died may have left its fence.
    IF insta_ids_internal.state_there(move, NULL::pg_catalog.uuid) OPERATOR(pg_catalog.->>) 'step' OPERATOR(pg_catalog.=) 'fenced' THEN
        CALL insta_ids_internal.open_again(move, from_node);
    END IF;
    given_up := insta_ids_internal.give_up_next_fence(move, from_node, lock_timeout);
    CALL insta_ids_internal.new_transaction();
    paused := insta_ids_internal.try_snapshot_there(move, lock_timeout, max_pause);
    IF (paused.failure).code IS NULL THEN
        CALL insta_ids_internal.new_snapshot();
        paused := insta_ids_internal.try_open_there(move, given_up, paused);
    END IF;
    IF (paused.failure).code IS NOT NULL THEN
        CALL insta_ids_internal.new_transaction();
        CALL insta_ids_internal.fail_pause(move, from_node, max_pause, paused);
    END IF;
    PERFORM insta_ids_internal.compare_snapshots(move, insta_ids_internal.steady_ms() OPERATOR(pg_catalog.-) paused.fenced_at);
    CALL insta_ids_internal.new_transaction();
END
$$;

-- Begins a transaction here whose statements all see the rows that the first one sees.
CREATE OR REPLACE PROCEDURE insta_ids_internal.new_snapshot()
    LANGUAGE plpgsql
AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    SET LOCAL search_path = pg_catalog, pg_temp;
END
$$;
