-- Moves, on the target: a move is aborted.

-- Connects to the source, and returns the move of a range that move_abort() can end: its id, and whether it is open on the source. The
-- id is NULL if neither server has such a move. Raises an error if the move cannot be ended here any more. With `take_back`, this
-- server may have lost that the shards were handed over to it, and `has_left` says whether they may have left the source.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_move_to_abort(
        first integer, last integer, from_node name, take_back boolean,
        OUT name name, OUT id uuid, OUT source name, OUT is_open_there boolean, OUT has_left boolean)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    moving insta_ids_internal.move;
    is_here boolean;
    there jsonb;
BEGIN
    IF num_nulls(first, last, take_back) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'no argument of move_abort but from_node can be NULL';
    END IF;
    name := format('insta_ids_%s_%s', first, last);
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = find_move_to_abort.name;
    is_here := FOUND;
    IF is_here THEN
        PERFORM insta_ids_internal.require_own_move(moving);
    ELSIF from_node IS NULL THEN
        PERFORM insta_ids_internal.open_move(name);
    ELSIF take_back THEN
        PERFORM insta_ids_internal.require_not_moving(first, last);
    END IF;
    source := coalesce(moving.from_node, from_node);
    IF source <> here AND moving.step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids_internal.connect_node(source);
        there := insta_ids_internal.state_there(name, moving.id);
        id := coalesce(moving.id, (there ->> 'id')::uuid);
    END IF;
    IF coalesce(moving.to_node, there ->> 'to_node') <> here OR source = here AND take_back THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last, source,
                coalesce(moving.to_node, there ->> 'to_node', '...'));
    ELSIF moving.step = 'handed over' OR insta_ids_internal.outcome_of_move(id) = 'handed over' AND NOT is_here THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('shards from %s to %s are already on this node', first, last),
            HINT = format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', first, last, source);
    END IF;
    -- The source may have withdrawn the move already, and may have a new one of this name.
    is_open_there := coalesce(there ->> 'id' = id::text, false);
    has_left := take_back AND NOT is_open_there AND (NOT is_here OR there ->> 'outcome' = 'handed over');
    IF is_here AND NOT has_left THEN
        PERFORM insta_ids_internal.require_not_left(moving, there);
    ELSIF take_back AND is_open_there AND NOT is_here THEN
        -- The source waits for the word of a target that does not know the move.
        PERFORM insta_ids_internal.require_lost(first, last, source,
            ARRAY(SELECT s::integer FROM jsonb_array_elements_text(there -> 'shards') s));
    END IF;
END
$$;

-- Asks all nodes, and raises an error unless all answer and none but the source has one of these shards: those of a range that have left
-- the source for this server, by default. This server may have copies. Returns the ranges of all their maps as one, and the
-- highest of their versions.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_lost(
        first integer, last integer, source name, shards integer[] DEFAULT NULL, OUT ranges jsonb, OUT version bigint)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answers jsonb := '{}';
    merged jsonb;
    asked record;
    other record;
BEGIN
    FOR asked IN
        SELECT * FROM insta_ids_internal.ask_fleet(format('SELECT jsonb_build_object(''map'', insta_ids.shard_map(),'
            || ' ''open'', (SELECT jsonb_agg(s.shard) FROM insta_ids_internal.shards s'
            || ' WHERE s.shard BETWEEN %1$s AND %2$s AND s.state IN (''active'', ''moving'', ''fenced'')),'
            || ' ''arriving'', (SELECT jsonb_agg(s.shard) FROM insta_ids_internal.shards s'
            || ' WHERE s.shard BETWEEN %1$s AND %2$s AND s.state = ''arriving'' AND insta_ids.this_node() <> %3$L),'
            || ' ''departed'', (SELECT jsonb_agg(d.shard) FROM insta_ids_internal.departed_shard d'
            || ' WHERE d.shard BETWEEN %1$s AND %2$s AND d.to_node = %3$L))', first, last, insta_ids_internal.require_own_node()),
            NULL::insta_ids_internal.node_shards)
    LOOP
        IF asked.reason IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('node "%s" does not say whether it has shards from %s to %s', asked.node, first, last),
                DETAIL = asked.reason,
                HINT = 'Each node must answer. Correct that, or take the node from the map by insta_ids.drop_node() if it is gone for good.';
        END IF;
        PERFORM insta_ids_internal.require_own_map((asked.answer).map);
        answers := answers || jsonb_build_object(asked.node, asked.answer);
        merged := insta_ids_internal.merge_maps(coalesce(merged, (asked.answer).map), (asked.answer).map);
        version := greatest(version, ((asked.answer).map ->> 'version')::bigint);
    END LOOP;
    SELECT n.node INTO other FROM jsonb_to_recordset(merged -> 'nodes') n (node text) WHERE NOT answers ? n.node LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('node "%s" is not on the map of this server', other.node),
            DETAIL = 'It was not asked whether it has the shards.',
            HINT = 'Apply the map of another node here, and call again.';
    END IF;
    SELECT a.key AS node, o.shard INTO other
    FROM jsonb_each(answers) a CROSS JOIN unnest('{open,arriving}'::text[]) k (list)
    CROSS JOIN jsonb_array_elements(nullif(a.value -> k.list, 'null')) o (shard)
    WHERE a.key <> source AND o.shard <@ coalesce(to_jsonb(shards), nullif(answers -> source::text -> 'departed', 'null'), '[]')
    ORDER BY o.shard LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s is on node "%s"', other.shard, other.node),
            DETAIL = format('Node "%s" takes back only what is lost.', source),
            HINT = format('To bring it to node "%1$s", there: CALL insta_ids.move_shards(%2$s, %2$s, %3$L).', source, other.shard, other.node);
    END IF;
    ranges := merged -> 'ranges';
END
$$;

-- Has the connected source take back what it has handed over, and takes over its map. No move begins or ends here meanwhile. If this
-- session ends while the source waits for a lock, the source does nothing. Raises an error if this server has a copy of a shard that
-- the source does not have then.
CREATE OR REPLACE FUNCTION insta_ids_internal.return_lost(move name, first integer, last integer, source name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lost record;
    answer jsonb;
BEGIN
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO lost FROM insta_ids_internal.require_lost(first, last, source);
    answer := insta_ids_internal.ask_node(format('SET lock_timeout = ''10s''; SET client_connection_check_interval = ''1s'';'
        || ' SELECT insta_ids_internal.take_back(%s, %s, %L, %L, %L, %s)', first, last, insta_ids_internal.require_own_node(),
        -- Ids of the server that is lost were ahead of its clock by a lease that came with the move, and by one more if it was restarted.
        (SELECT greatest(clock_timestamp(), c.lease) + interval '3 s' FROM insta_ids.clock() c), lost.ranges, lost.version));
    IF EXISTS (
        SELECT FROM insta_ids_internal.move m CROSS JOIN unnest(m.shards) s
        WHERE m.name = move AND NOT (answer -> 'present') @> to_jsonb(s))
    THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('node "%s" has nothing of shards from %s to %s to take back', source, first, last),
            DETAIL = 'This server may have the only rows, and keeps its copy.';
    END IF;
    RAISE NOTICE 'move_abort: node "%" has taken back % shards', source, answer ->> 'shards';
    PERFORM insta_ids.apply_map(answer -> 'map');
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
    IF has_left THEN
        -- Before the copies are dropped: the source may refuse.
        PERFORM insta_ids_internal.return_lost(move, first, last, source);
        CALL insta_ids_internal.new_transaction();
    END IF;
    IF id IS NOT NULL THEN
        cancellation := insta_ids_internal.move_cancel(move, id);
        -- After this commit, the shards cannot be taken over any more.
        CALL insta_ids_internal.new_transaction();
    END IF;
    IF is_open_there THEN
        -- With take_back, this server need not have known the move.
        PERFORM insta_ids_internal.call_node(pg_catalog.format('move_withdraw(%L, %L)', move, cancellation OPERATOR(pg_catalog.||)
            CASE WHEN take_back THEN '{"was_known": true}' ELSE '{}' END::pg_catalog.jsonb));
    ELSIF has_left THEN
        PERFORM insta_ids_internal.share_map();
    END IF;
    PERFORM insta_ids_internal.disconnect_node(), pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name, boolean) IS
    'ends a move to this node whose shards have not been handed over';

-- Returns why a move can never continue, so that only its abort is left, or NULL: what a server has lost of it shows that, and not the
-- error of an attempt. It is NULL if the source does not answer.
CREATE OR REPLACE FUNCTION insta_ids_internal.why_void(move name) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move;
    there jsonb;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name = move AND m.step IN ('prepared', 'copying');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM insta_ids_internal.connect_node(moving.from_node);
    there := insta_ids_internal.state_there(move, moving.id);
    -- A standby that is not promoted yet has no slots.
    IF there ->> 'outcome' = 'handed over'
        OR insta_ids_internal.ask_node('SELECT to_jsonb(pg_is_in_recovery())') = 'true'
    THEN
        RETURN NULL;
    ELSIF there ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RETURN format('it has ended on node "%s"', moving.from_node);
    END IF;
    RETURN CASE
        WHEN insta_ids_internal.was_target_promoted(moving) THEN 'this server was promoted since it began'
        WHEN moving.step = 'copying' AND NOT EXISTS (SELECT FROM insta_ids_internal.subscription s WHERE s.name = move)
            THEN 'its subscription is lost'
        WHEN insta_ids_internal.ask_node(format('SELECT to_jsonb(insta_ids_internal.is_sent(m)) FROM insta_ids_internal.move m'
            || ' WHERE m.name = %L', move)) = 'false' THEN format('node "%s" has lost its replication slot or publication', moving.from_node)
    END;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;

-- Aborts a move that can never continue. The worker calls it after each attempt that has failed.
CREATE OR REPLACE PROCEDURE insta_ids_internal.end_void_move(move name)
    LANGUAGE plpgsql
AS $$
DECLARE
    moving insta_ids_internal.move;
    reason pg_catalog.text;
BEGIN
    SELECT * INTO moving FROM insta_ids_internal.move m WHERE m.name OPERATOR(pg_catalog.=) move;
    reason := insta_ids_internal.why_void(move);
    IF reason IS NOT NULL THEN
        CALL insta_ids.move_abort(moving.first, moving.last, moving.from_node);
        RAISE WARNING 'move_shards: aborted, because %; the shards are open on node "%"', reason, moving.from_node;
    END IF;
END
$$;
