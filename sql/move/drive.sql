-- Moves, on the target: a move begins and ends. Procedures that commit only call functions with a pinned search_path.

-- Raises an error unless all arguments of move_shards() are given and in range.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_move_arguments(
        first integer, last integer, from_node name, verify text, lock_timeout interval, max_lag bigint, max_pause interval,
        await_standbys boolean, background boolean, ignore_dependents boolean)
    RETURNS void
    IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF num_nulls(first, last, from_node, verify, lock_timeout, max_lag, max_pause, await_standbys, background, ignore_dependents) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'no argument of move_shards can be NULL';
    ELSIF verify NOT IN ('snapshot', 'none') THEN
        RAISE invalid_parameter_value USING MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "snapshot" or "none".';
    ELSIF max_pause NOT BETWEEN interval '1 ms' AND interval '7 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('max_pause cannot be %s', max_pause),
            DETAIL = 'It can be from 1 ms to 7 days.';
    END IF;
END
$$;

-- Connects to the source, and returns how far a move of this range is. Raises an error if another move is in its way, or if this
-- one has ended on the source alone.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_move(
        first integer, last integer, from_node name,
        OUT name name, OUT is_new boolean, OUT is_released boolean, OUT is_handed_over boolean)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    moving insta_ids_internal.move;
    there jsonb;
BEGIN
    name := format('insta_ids_%s_%s', first, last);
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = find_move.name;
    IF FOUND THEN
        PERFORM insta_ids_internal.require_own_move(moving);
    END IF;
    IF (moving.from_node, moving.to_node) IS DISTINCT FROM (find_move.from_node, here) THEN
        PERFORM insta_ids_internal.require_not_moving(first, last);
    END IF;
    PERFORM insta_ids_internal.connect_node(from_node);
    there := insta_ids_internal.state_there(name, moving.id);
    -- The row here says how far an open move is. Without a row, only an outcome with the source's id and shards counts.
    is_handed_over := moving.step IS NOT DISTINCT FROM 'handed over' OR moving.id IS NULL AND EXISTS (
        SELECT FROM insta_ids_internal.move_outcome e
        WHERE e.id = (there ->> 'id')::uuid AND e.outcome = 'handed over' AND to_jsonb(e.shards) = there -> 'shards');
    IF NOT is_handed_over AND moving.id <> coalesce((there ->> 'id')::uuid, gen_random_uuid()) THEN
        PERFORM insta_ids_internal.require_not_left(moving, there);
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('move of shards from %s to %s has ended on node "%s"', first, last, from_node),
            HINT = format('End it here, too: CALL insta_ids.move_abort(%s, %s, %L).', first, last, from_node);
    END IF;
    is_new := NOT is_handed_over AND moving.id IS NULL;
    -- Before the source released the shards, its standbys had the fence and all rows were compared, and writers wait now.
    is_released := coalesce(there ->> 'step' = 'released', false);
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'snapshot', lock_timeout interval DEFAULT '10s',
        max_lag bigint DEFAULT 1048576, max_pause interval DEFAULT '10 s', await_standbys boolean DEFAULT true,
        background boolean DEFAULT false, ignore_dependents boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move pg_catalog.name;
    id pg_catalog.uuid;
    is_new boolean;
    is_handed_over boolean;
BEGIN
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.require_move_arguments(
        first, last, from_node, verify, lock_timeout, max_lag, max_pause, await_standbys, background, ignore_dependents);
    SELECT f.name, f.is_new, f.is_handed_over INTO move, is_new, is_handed_over
    FROM insta_ids_internal.find_move(first, last, from_node) f;
    IF is_new THEN
        PERFORM insta_ids_internal.prepare_move(move, first, last, path, lock_timeout, ignore_dependents);
        CALL insta_ids_internal.new_transaction();
        PERFORM insta_ids_internal.subscribe_prepared(move);
        CALL insta_ids_internal.new_transaction();
    END IF;
    IF is_handed_over THEN
        CALL insta_ids_internal.finish_move(move, from_node, verify, lock_timeout, await_standbys);
        PERFORM insta_ids_internal.disconnect_node();
    ELSE
        PERFORM insta_ids_internal.disconnect_node();
        id := insta_ids_internal.begin_to_drive(move, verify, lock_timeout, max_lag, max_pause, await_standbys, NOT background);
        CALL insta_ids_internal.new_transaction();
        IF NOT background THEN
            WHILE insta_ids_internal.await_driver() LOOP
                PERFORM insta_ids_internal.wait_ms(20);
                CALL insta_ids_internal.new_transaction();
            END LOOP;
            PERFORM insta_ids_internal.require_moved(move, id);
        END IF;
    END IF;
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_shards(integer, integer, name, text, interval, bigint, interval, boolean, boolean, boolean) IS
    'brings a range of shards here from another node, or goes on with that';

-- Returns what the connected source knows of a move: its row there, and how the move with this id has ended.
CREATE OR REPLACE FUNCTION insta_ids_internal.state_there(move name, id uuid) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
    RETURN insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_state(%L::name, %L::uuid)', move, id));

-- Creates the shards of an offer, empty and closed, if the rows to which they refer are here.
CREATE OR REPLACE FUNCTION insta_ids_internal.prepare_offered(offer jsonb, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.prepare_shards(offer, path);
    PERFORM insta_ids_internal.require_referenced(
        ARRAY(SELECT s::integer FROM jsonb_array_elements_text(offer -> 'shards') s), 'insta_ids');
END
$$;

-- The first step of a move: has the source offer the shards, and creates them here, empty and closed. `path` is the search_path of
-- their migrations. If this server cannot create them, it withdraws a new offer, and raises the error.
CREATE OR REPLACE FUNCTION insta_ids_internal.prepare_move(
        move name, first integer, last integer, path text, lock_timeout interval, ignore_dependents boolean)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    offer jsonb;
BEGIN
    -- One snapshot has both. Another session may have prepared this move since the caller looked.
    PERFORM insta_ids_internal.require_absent(first, last)
    WHERE NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE m.name = move);
    offer := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.move_offer(%s, %s, %L, %L, %L)', first, last,
        insta_ids_internal.require_own_node(), lock_timeout, ignore_dependents));
    BEGIN
        PERFORM insta_ids_internal.prepare_offered(offer, path);
    EXCEPTION WHEN OTHERS THEN
        -- An older offer may be in use by another session.
        IF (offer ->> 'is_new')::boolean THEN
            PERFORM insta_ids_internal.call_node(format('move_withdraw(%L)', move));
        END IF;
        RAISE;
    END;
END
$$;

-- Creates the subscription of a prepared move, unless it exists, and reports that the move is prepared.
CREATE OR REPLACE FUNCTION insta_ids_internal.subscribe_prepared(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
BEGIN
    -- Another session that makes the same call waits here.
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE (m.name, m.step) = (move, 'prepared') FOR UPDATE;
    IF FOUND THEN
        RAISE NOTICE 'move_shards: prepared, % shards, % here', cardinality(moving.shards), pg_size_pretty(moving.bytes);
        PERFORM insta_ids_internal.make_subscription(moving)
        WHERE NOT EXISTS (SELECT FROM insta_ids_internal.subscription s WHERE s.name = move);
    END IF;
END
$$;

-- Ends a move on both servers after the hand-over. A promotion may have lost the source's
-- fence. Then the source is fenced first, and unless `verify` is none, all its rows must be here, too. With `await_standbys`,
-- the source keeps the move until the standbys of this server have the hand-over: after a promotion of one that lacks it,
-- nobody could end the move. Returns the version of the map.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_move(
        move name, from_node name, verify text, lock_timeout interval, await_standbys boolean)
    RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    version CONSTANT bigint := (SELECT m.version FROM insta_ids_internal.map m);
    moving insta_ids_internal.move;
    there jsonb;
    handed_over jsonb;
    standby jsonb;
BEGIN
    IF await_standbys THEN
        standby := insta_ids_internal.await_standbys('10 s', '{}');
        IF standby IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('%s of this node does not have the hand-over of move "%s" yet', standby ->> 'name', move),
                DETAIL = 'Writers go on here. The other node keeps its rows, fenced.',
                HINT = 'Start the standby and call again, or call with await_standbys => false; if it is gone, drop its slot.';
        END IF;
    END IF;
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move;
    there := insta_ids_internal.state_there(move, moving.id);
    handed_over := jsonb_build_object('id', coalesce(moving.id, (there ->> 'id')::uuid), 'version', version);
    IF there ->> 'id' IS NOT DISTINCT FROM handed_over ->> 'id' THEN
        IF there ->> 'step' = 'offered' AND (there ->> 'was_promoted')::boolean THEN
            PERFORM insta_ids_internal.call_node(format('move_fence(%L, %L)', move, lock_timeout));
            RAISE NOTICE 'move_shards: fenced on node "%", which had lost its fence', from_node;
        END IF;
        IF (there ->> 'was_promoted')::boolean AND verify <> 'none' THEN
            PERFORM insta_ids_internal.require_nothing_left_behind(
                move, from_node, ARRAY(SELECT s::integer FROM jsonb_array_elements_text(there -> 'shards') s));
        END IF;
        PERFORM insta_ids_internal.call_node(format('move_finish(%L, %L)', move, handed_over));
    ELSIF there ->> 'outcome' IS NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('node "%s" knows nothing of move "%s"', from_node, move),
            DETAIL = format('Shards from %s to %s were handed over to this node, and may be open to writers there as well.',
                moving.first, moving.last),
            HINT = format('On node "%s", fence these shards and apply the map of this node; then here: SELECT insta_ids_internal.move_finish(%L).',
                from_node, move);
    END IF;
    PERFORM insta_ids_internal.move_finish(move) WHERE moving.id IS NOT NULL;
    RETURN version;
END
$$;

-- The last step of a move: both servers end it, and all nodes receive the map.
CREATE OR REPLACE PROCEDURE insta_ids_internal.finish_move(
        move name, from_node name, verify text, lock_timeout interval, await_standbys boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    version bigint;
BEGIN
    version := insta_ids_internal.end_move(move, from_node, verify, lock_timeout, await_standbys);
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.share_map();
    RAISE NOTICE 'move_shards: finished; the map has version %', version;
END
$$;
