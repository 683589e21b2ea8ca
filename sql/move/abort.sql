-- Moves, on the target: a move is aborted.

-- Connects to the source, and returns the move of a range that move_abort() can end: its id, and whether it is open on the source.
-- The id is NULL if neither server has such a move. Raises an error if the move cannot be ended here any more. With `take_back`,
-- this server may have lost that the shards were handed over to it, and `has_left` says whether they have left the source.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_move_to_abort(
        first integer, last integer, from_node name, take_back boolean,
        OUT name name, OUT id uuid, OUT source name, OUT is_open_there boolean, OUT has_left boolean)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    moving insta_ids_internal.move;
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
    -- The source may have withdrawn the move already, and may have a new one of this name.
    is_open_there := coalesce(there ->> 'id' = id::text, false);
    has_left := take_back AND NOT is_open_there AND (moving.id IS NULL OR there ->> 'outcome' = 'handed over');
    IF has_left THEN
        PERFORM insta_ids_internal.require_lost(first, last, source, moving.shards);
    ELSIF moving.id IS NOT NULL THEN
        PERFORM insta_ids_internal.require_not_left(moving, there);
    END IF;
END
$$;

-- Raises an error unless this server has lost the shards of a range that a source has handed over to it: it has no shard but the
-- copies of a move, and none has moved on.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_lost(first integer, last integer, source name, copies integer[]) RETURNS void
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present integer;
BEGIN
    PERFORM insta_ids_internal.require_on_either(first, last, source, insta_ids_internal.require_own_node());
    SELECT min(s.shard) INTO present FROM (
        SELECT shard FROM insta_ids_internal.shard UNION SELECT shard FROM insta_ids_internal.departed_shard
    ) s
    WHERE s.shard BETWEEN first AND last AND s.shard <> ALL (coalesce(copies, '{}'));
    IF present IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this server has shard %s, or had it and gave it away', present),
            DETAIL = format('Node "%s" takes back only what is lost.', source),
            HINT = format('To bring it there, call on that node: CALL insta_ids.move_shards(%1$s, %1$s, %2$L).',
                present, insta_ids.this_node());
    END IF;
END
$$;

-- Has the connected source take back what it has handed over, and takes over its map.
CREATE OR REPLACE FUNCTION insta_ids_internal.return_there(first integer, last integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.apply_map(insta_ids_internal.ask_node(format('SELECT insta_ids_internal.take_back(%s, %s, %L, %L, %s)',
        first, last, insta_ids_internal.require_own_node(),
        (SELECT greatest(clock_timestamp(), c.lease) + interval '1 ms' FROM insta_ids.clock() c),
        insta_ids_internal.next_map_version())));
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

CREATE OR REPLACE PROCEDURE insta_ids.move_abort(
        first integer, last integer, from_node name DEFAULT NULL, take_back boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move pg_catalog.name;
    id pg_catalog.uuid;
    source pg_catalog.name;
    is_open_there boolean;
    has_left boolean;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids_internal.new_transaction();
    SELECT * INTO move, id, source, is_open_there, has_left
    FROM insta_ids_internal.find_move_to_abort(first, last, from_node, take_back);
    IF id IS NOT NULL THEN
        cancellation := insta_ids_internal.move_cancel(move, id);
        -- After this commit, the shards cannot be taken over any more.
        CALL insta_ids_internal.new_transaction();
    END IF;
    IF is_open_there THEN
        PERFORM insta_ids_internal.withdraw_there(move, cancellation);
    ELSIF has_left THEN
        PERFORM insta_ids_internal.return_there(first, last);
        CALL insta_ids_internal.new_transaction();
        PERFORM insta_ids_internal.share_map();
        RAISE NOTICE 'move_abort: node "%" has taken the shards back', source;
    END IF;
    PERFORM insta_ids_internal.disconnect_node(), pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name, boolean) IS
    'ends a move to this node whose shards have not been handed over';
