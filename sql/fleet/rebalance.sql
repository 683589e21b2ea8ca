-- Moves the shards of a plan. The targets do the work in the background, so the session may go, and a later call finds what goes on.

CREATE OR REPLACE PROCEDURE insta_ids.rebalance(
        by text DEFAULT 'bytes', threshold float8 DEFAULT 0.05, exclude name[] DEFAULT '{}', sample interval DEFAULT '10 s',
        at_once integer DEFAULT 1, max_pause interval DEFAULT '10 s', ignore_dependents boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
BEGIN
    CALL insta_ids_internal.carry_out('rebalance', by, threshold, '{}', exclude, sample, at_once, max_pause, ignore_dependents);
END
$$;
COMMENT ON PROCEDURE insta_ids.rebalance(text, float8, name[], interval, integer, interval, boolean) IS
    'moves shards between the nodes of the map until all are loaded alike';

CREATE OR REPLACE PROCEDURE insta_ids.drain_node(
        node name, by text DEFAULT 'bytes', exclude name[] DEFAULT '{}', sample interval DEFAULT '10 s',
        at_once integer DEFAULT 1, max_pause interval DEFAULT '10 s', ignore_dependents boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
BEGIN
    -- The other nodes need not be loaded alike afterwards.
    CALL insta_ids_internal.carry_out('drain_node', by, 10, ARRAY[node], exclude, sample, at_once, max_pause, ignore_dependents);
END
$$;
COMMENT ON PROCEDURE insta_ids.drain_node(name, text, name[], interval, integer, interval, boolean) IS
    'moves all shards of a node to the other nodes of the map';

-- Makes a plan. The moves that have begun already come first.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_plan(
        command text, by text, threshold float8, drain name[], exclude name[], sample interval, at_once integer, max_pause interval,
        ignore_dependents boolean)
    RETURNS insta_ids_internal.carrying
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    steps jsonb;
BEGIN
    IF num_nulls(by, threshold, drain, exclude, sample, at_once, max_pause, ignore_dependents) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = format('no argument of %s can be NULL', command);
    ELSIF at_once < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s moves cannot run at once', at_once),
            DETAIL = 'It must be at least one.';
    END IF;
    -- The source knows a move first, and the target knows it last. Only these two are asked.
    SELECT coalesce(jsonb_agg(DISTINCT to_jsonb(m)), '[]') INTO steps
    FROM insta_ids_internal.ask_fleet('SELECT jsonb_build_object(''moves'', jsonb_agg(jsonb_build_object(''first'', m.first,'
            || ' ''last'', m.last, ''from_node'', m.from_node, ''to_node'', m.to_node))) FROM insta_ids_internal.move m',
            NULL::insta_ids_internal.node_moves) a,
        unnest((a.answer).moves) m
    WHERE a.node IN (m.from_node, m.to_node) AND NOT ARRAY[m.from_node, m.to_node] && exclude;
    SELECT steps || coalesce(jsonb_agg(p ORDER BY p.step), '[]') INTO steps
    FROM insta_ids.rebalance_plan(by, threshold, drain, exclude, sample) p;
    RAISE NOTICE '%: % moves', command, jsonb_array_length(steps);
    RETURN ROW(steps, array_fill('waiting'::text, ARRAY[jsonb_array_length(steps)]), '{}', 0)::insta_ids_internal.carrying;
END
$$;

-- Begins each move of a plan that can begin, and looks how far those are that run. If one fails, or a node does not answer, it raises
-- a warning, and the other moves of that node are left.
CREATE OR REPLACE PROCEDURE insta_ids_internal.carry_on(
        command text, at_once integer, max_pause interval, ignore_dependents boolean, INOUT carrying insta_ids_internal.carrying)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    step jsonb;
    state text;
    reason text;
BEGIN
    FOR number IN 1 .. jsonb_array_length(carrying.steps) LOOP
        step := carrying.steps -> (number - 1);
        state := carrying.states[number];
        reason := NULL;
        IF state = 'waiting' AND carrying.failed ?| ARRAY[step ->> 'from_node', step ->> 'to_node'] THEN
            state := 'failed';
        ELSIF state = 'waiting' AND NOT insta_ids_internal.is_busy(carrying.steps, carrying.states, step, at_once) THEN
            reason := insta_ids_internal.begin_step(step, max_pause, ignore_dependents);
            state := CASE WHEN reason IS NULL THEN 'running' ELSE 'failed' END;
        ELSIF state = 'running' THEN
            state := insta_ids_internal.state_of_step(step);
            IF state = 'done' THEN
                carrying.done := carrying.done + 1;
                RAISE NOTICE '%: % of % moves, shards from % to % are on node "%"', command, carrying.done,
                    jsonb_array_length(carrying.steps), step -> 'first', step -> 'last', step ->> 'to_node';
            ELSIF state <> 'running' THEN
                reason := state;
                state := 'failed';
            END IF;
        END IF;
        carrying.states[number] := state;
        IF reason IS NOT NULL THEN
            carrying.failed := carrying.failed || jsonb_build_object(insta_ids_internal.node_at_fault(step), reason);
            RAISE WARNING USING
                MESSAGE = format('shards from %s to %s were not moved to node "%s"', step -> 'first', step -> 'last', step ->> 'to_node'),
                DETAIL = reason;
        END IF;
    END LOOP;
END
$$;

-- Raises an error if moves of a plan have failed.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_all_moved(command text, carrying insta_ids_internal.carrying) RETURNS void
    IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    total CONSTANT integer := jsonb_array_length(carrying.steps);
BEGIN
    IF carrying.failed <> '{}' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('%s of %s moves were not made', total - carrying.done, total),
            DETAIL = (SELECT string_agg(format('Node "%s": %s.', f.key, rtrim(f.value, '.')), ' ' ORDER BY f.key)
                FROM jsonb_each_text(carrying.failed) f),
            HINT = format('Correct that, and call insta_ids.%s() again.', command);
    END IF;
END
$$;

-- Makes a plan, and moves its shards. `at_once` moves run at the same time, between different nodes.
CREATE OR REPLACE PROCEDURE insta_ids_internal.carry_out(
        command text, by text, threshold float8, drain name[], exclude name[], sample interval, at_once integer, max_pause interval,
        ignore_dependents boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    carrying insta_ids_internal.carrying;
BEGIN
    CALL insta_ids_internal.new_transaction();
    carrying := insta_ids_internal.make_plan(
        command, by, threshold, drain, exclude, sample, at_once, max_pause, ignore_dependents);
    CALL insta_ids_internal.new_transaction();
    WHILE carrying.states OPERATOR(pg_catalog.&&) '{waiting,running}'::pg_catalog.text[] LOOP
        CALL insta_ids_internal.carry_on(command, at_once, max_pause, ignore_dependents, carrying);
        CALL insta_ids_internal.new_transaction();
        PERFORM insta_ids_internal.wait_ms(100);
    END LOOP;
    PERFORM insta_ids_internal.require_all_moved(command, carrying);
    IF drain OPERATOR(pg_catalog.<>) '{}'::pg_catalog.name[] THEN
        -- Each move has told the other nodes of its shards.
        PERFORM insta_ids_internal.give_away_ranges(d, drain OPERATOR(pg_catalog.||) exclude) FROM pg_catalog.unnest(drain) d;
        CALL insta_ids_internal.new_transaction();
        PERFORM insta_ids_internal.share_map(), insta_ids_internal.disconnect_node();
    END IF;
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;

-- Has a drained node assign to other nodes the ranges that it still has on the map, and takes over its map. Raises an error if a
-- shard of them is there by now.
CREATE OR REPLACE FUNCTION insta_ids_internal.give_away_ranges(drained name, exclude name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    takers jsonb;
    map jsonb;
BEGIN
    takers := (
        SELECT coalesce(jsonb_object_agg(a.node, coalesce((a.answer).shards, '{}')), '{}')
        FROM insta_ids_internal.ask_fleet('SELECT jsonb_build_object(''shards'', jsonb_agg(d.shard)) FROM insta_ids_internal.departed_shard d',
            NULL::insta_ids_internal.node_departed) a
        JOIN insta_ids_internal.node n ON n.node = a.node
        WHERE a.reason IS NULL AND n.weight > 0 AND a.node <> ALL (exclude));
    PERFORM insta_ids_internal.connect_node(drained);
    map := insta_ids_internal.ask_node(format('SELECT insta_ids_internal.assign_own_ranges(%L)', takers));
    PERFORM insta_ids_internal.disconnect_node(), insta_ids.apply_map(map);
END
$$;

-- Assigns all ranges of this node to other nodes: each to the one that has the fewest shards for its weight. `takers` has the shards
-- that have left each of these nodes: a node takes them back only by a move. Returns the map. Raises an error if a shard is here, or
-- if no node takes a range.
CREATE OR REPLACE FUNCTION insta_ids_internal.assign_own_ranges(takers jsonb) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT name := insta_ids_internal.require_own_node();
    range record;
    taker name;
BEGIN
    -- No session creates shards of these ranges meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    FOR range IN SELECT a.first, a.last FROM insta_ids_internal.assignment a WHERE a.node = own ORDER BY a.first LOOP
        SELECT n.node INTO taker
        FROM insta_ids_internal.node n
        LEFT JOIN insta_ids_internal.assignment a ON a.node = n.node
        WHERE n.node <> own AND takers ? n.node::text AND NOT EXISTS (
            SELECT FROM jsonb_array_elements_text(takers -> n.node::text) d (shard)
            WHERE d.shard::integer BETWEEN range.first AND range.last)
        GROUP BY n.node, n.ord, n.weight ORDER BY coalesce(sum(a.last - a.first + 1), 0) / nullif(n.weight, 0), n.ord LIMIT 1;
        IF NOT FOUND THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('no node takes the range of shards from %s to %s', range.first, range.last),
                DETAIL = format('Node "%s" has no shard of it, and at least one has left each node that takes shards.', own),
                HINT = format('On node "%s", assign them in parts: insta_ids.assign().', own);
        END IF;
        PERFORM insta_ids.assign(range.first, range.last, taker);
    END LOOP;
    RETURN insta_ids.shard_map();
END
$$;

-- Returns whether a move has to wait: for one of its nodes, or because as many run as may.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_busy(steps jsonb, states text[], step jsonb, at_once integer) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT count(*) >= at_once OR coalesce(bool_or(
        ARRAY[r.step ->> 'from_node', r.step ->> 'to_node'] && ARRAY[is_busy.step ->> 'from_node', is_busy.step ->> 'to_node']), false)
    FROM jsonb_array_elements(steps) WITH ORDINALITY r (step, number) WHERE states[r.number] = 'running';
END;

-- Has the target begin a move, or go on with it, in the background, unless it has ended by now. Returns NULL, or why it does not.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_step(step jsonb, max_pause interval, ignore_dependents boolean) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    detail text;
BEGIN
    IF insta_ids_internal.state_of_step(step) = 'done' THEN
        RETURN NULL;
    END IF;
    PERFORM insta_ids_internal.connect_node((step ->> 'to_node')::name);
    PERFORM insta_ids_internal.begin_to_ask_node(format(
        'CALL insta_ids.move_shards(%s, %s, %L, max_pause => %L, background => true, ignore_dependents => %L)',
        (step ->> 'first')::integer, (step ->> 'last')::integer, step ->> 'from_node', max_pause, ignore_dependents));
    PERFORM insta_ids_internal.await_node(), insta_ids_internal.disconnect_node();
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN concat_ws(': ', SQLERRM, nullif(detail, ''));
END
$$;

-- Returns "running", "done", or why a move does not go on. A move that fails is tried again by its target, five times within a
-- minute; then this does not wait for it any longer.
CREATE OR REPLACE FUNCTION insta_ids_internal.state_of_step(step jsonb) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    there jsonb;
BEGIN
    PERFORM insta_ids_internal.connect_node((step ->> 'to_node')::name);
    there := insta_ids_internal.ask_node(format(
        'SELECT jsonb_build_object(''move'', (SELECT to_jsonb(m) FROM insta_ids_internal.moves m WHERE (m.first, m.last) = (%1$s, %2$s)),'
        || ' ''is_there'', EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = %1$s))', (step ->> 'first')::integer,
        (step ->> 'last')::integer));
    PERFORM insta_ids_internal.disconnect_node();
    RETURN CASE
        WHEN there -> 'move' = 'null' AND (there -> 'is_there')::boolean THEN 'done'
        WHEN there -> 'move' = 'null' THEN 'move was ended by another session'
        WHEN (there #>> '{move,failed_attempts}')::integer < 5 AND (there #>> '{move,is_in_background}')::boolean THEN 'running'
        ELSE coalesce(there #>> '{move,last_error}', 'no session drives the move') END;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END
$$;

-- Returns the node because of which a move has failed: the source if it does not answer, else the target.
CREATE OR REPLACE FUNCTION insta_ids_internal.node_at_fault(step jsonb) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.connect_node((step ->> 'from_node')::name);
    PERFORM insta_ids_internal.disconnect_node();
    RETURN step ->> 'to_node';
EXCEPTION WHEN OTHERS THEN
    RETURN step ->> 'from_node';
END
$$;
