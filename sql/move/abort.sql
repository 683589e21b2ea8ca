-- Moves, on the target: a move is aborted.

-- Connects to the source, and returns the move of a range that move_abort() can end: its id, and whether it is open on the source.
-- The id is NULL if neither server has such a move. Raises an error if the move cannot be ended here any more.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_move_to_abort(
        first integer, last integer, from_node name, OUT name name, OUT id uuid, OUT is_open_there boolean)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    moving insta_ids_internal.move;
    source name;
    there jsonb;
BEGIN
    name := format('insta_ids_%s_%s', first, last);
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = find_move_to_abort.name;
    IF FOUND THEN
        PERFORM insta_ids_internal.require_own_move(moving);
    ELSIF from_node IS NULL THEN
        PERFORM insta_ids_internal.open_move(name);
    END IF;
    source := coalesce(moving.from_node, from_node);
    IF source <> here AND moving.step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids_internal.connect_node(source);
        there := insta_ids_internal.state_there(name, moving.id);
        id := coalesce(moving.id, (there ->> 'id')::uuid);
    END IF;
    IF coalesce(moving.to_node, there ->> 'to_node') <> here THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last, source,
                coalesce(moving.to_node, there ->> 'to_node'));
    ELSIF moving.step = 'handed over' OR insta_ids_internal.outcome_of_move(id) = 'handed over' AND moving.id IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are already on this node', first, last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', first, last, source);
    END IF;
    PERFORM insta_ids_internal.require_not_left(moving, there) WHERE moving.id IS NOT NULL;
    -- The source may have withdrawn the move already, and may have a new one of this name.
    is_open_there := coalesce(there ->> 'id' = id::text, false);
END
$$;

-- Has the connected source withdraw a move that was cancelled here.
CREATE OR REPLACE FUNCTION insta_ids_internal.withdraw_there(move name, cancellation jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.call_node(format('move_withdraw(%L, %L)', move, cancellation));
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move pg_catalog.name;
    id pg_catalog.uuid;
    is_open_there boolean;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids_internal.new_transaction();
    SELECT * INTO move, id, is_open_there FROM insta_ids_internal.find_move_to_abort(first, last, from_node);
    IF id IS NOT NULL THEN
        cancellation := insta_ids_internal.move_cancel(move, id);
        -- After this commit, the shards cannot be taken over any more.
        CALL insta_ids_internal.new_transaction();
    END IF;
    IF is_open_there THEN
        PERFORM insta_ids_internal.withdraw_there(move, cancellation);
    END IF;
    PERFORM insta_ids_internal.disconnect_node(), pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name) IS
    'ends a move to this node whose shards have not been handed over';
