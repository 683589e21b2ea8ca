-- Questions to other nodes. See src/pg/placement/remote.c for who may ask.

-- Begins to connect this session to another server. It replaces a connection of the same name. `node` is for messages. The
-- connection string decides about timeouts, where it names them.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_connect(connection text, node text, dsn text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_begin_to_connect';

-- Sends statements to a connected node, without waiting for the answer. rows_from_node() or await_node() returns the answer.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_ask_node(question text, connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_begin_to_ask_node';

-- Waits for the answer to begin_to_ask_node(), and returns the first column of its rows. Raises an error if the answer is not
-- complete after `timeout_ms`; 0 is no limit.
CREATE OR REPLACE FUNCTION insta_ids_internal.rows_from_node(connection text DEFAULT 'insta_ids', timeout_ms integer DEFAULT 0)
    RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_rows_from_node';

-- Closes the connection to another node, if there is one.
CREATE OR REPLACE FUNCTION insta_ids_internal.disconnect_node(connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_disconnect_node';

-- Waits for the one value that the statements of begin_to_ask_node() return, and returns it. NULL if they return no row.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_node(connection text DEFAULT 'insta_ids', timeout_ms integer DEFAULT 0) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
    RETURN (SELECT r FROM insta_ids_internal.rows_from_node(connection, timeout_ms) r);

-- Begins to connect this session to a node. Raises an error unless the node is on the map.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_connect_node(node name, connection text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_node(node);
    PERFORM insta_ids_internal.begin_to_connect(connection, n.node::text, n.dsn)
    FROM insta_ids_internal.node n WHERE n.node = begin_to_connect_node.node;
END
$$;

-- Begins to ask a connected node for its name. A connection string can lead to a wrong database, so no function is called before it
-- is known to be the extension's. The role may have settings of its own there.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_greet_node(connection text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_ask_node($question$
        SET search_path = pg_catalog, pg_temp;
        SET default_transaction_isolation = 'read committed';
        SET statement_timeout = 0;
        DO $do$
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'insta_ids') THEN
                RAISE object_not_in_prerequisite_state USING
                    MESSAGE = 'database of the node does not have the extension insta_ids',
                    HINT = 'Correct the connection string by insta_ids.add_node(), or CREATE EXTENSION insta_ids there.';
            END IF;
        END
        $do$;
        SELECT insta_ids.this_node() $question$, connection);
END
$$;

-- Reads the answer to begin_to_greet_node(). Raises an error unless the node has the extension and this name.
CREATE OR REPLACE FUNCTION insta_ids_internal.greet_node(node name, connection text, timeout_ms integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    there CONSTANT text := insta_ids_internal.await_node(connection, timeout_ms);
BEGIN
    IF there IS DISTINCT FROM node::text THEN
        PERFORM insta_ids_internal.disconnect_node(connection);
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('connection string of node "%s" leads to another server', node),
            DETAIL = coalesce(format('That server is node "%s".', there), 'That server has no name.'),
            HINT = 'Correct the connection string by insta_ids.add_node(), or insta_ids.node in postgresql.conf there.';
    END IF;
END
$$;

-- Connects this session to another node. Raises an error unless the node is on the map, has the extension, and is the one that it
-- is taken for. A session can have more than one connection, each with a name.
CREATE OR REPLACE FUNCTION insta_ids_internal.connect_node(node name, connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_connect_node(node, connection), insta_ids_internal.begin_to_greet_node(connection);
    PERFORM insta_ids_internal.greet_node(node, connection, insta_ids_internal.node_timeout_ms());
END
$$;

-- Returns the name of a session's connection to this node, where the session has one to each node.
CREATE OR REPLACE FUNCTION insta_ids_internal.connection_to(node name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT format('insta_ids %s', n.ord) FROM insta_ids_internal.node n WHERE n.node = connection_to.node;
END;

-- Returns how long a node may take to answer a question about itself, in milliseconds. 0 is no limit.
CREATE OR REPLACE FUNCTION insta_ids_internal.node_timeout_ms() RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN (extract(epoch FROM insta_ids_internal.setting('insta_ids.node_timeout')::interval) * 1000)::integer;

-- Returns how many milliseconds are left until a time of the steady clock, at least 1. NULL is no limit, and 0 stands for it.
CREATE OR REPLACE FUNCTION insta_ids_internal.ms_until(until bigint) RETURNS integer
    VOLATILE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce(greatest(until - insta_ids_internal.steady_ms(), 1), 0);

-- Runs statements on the connected node, and returns the one value that they return. Raises an error if they have not ended after
-- `timeout_ms`; 0 is no limit.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_node(question text, connection text DEFAULT 'insta_ids', timeout_ms integer DEFAULT 0)
    RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_ask_node(question, connection);
    RETURN insta_ids_internal.await_node(connection, timeout_ms)::jsonb;
END
$$;

-- Calls a function of insta_ids_internal on the connected node, which returns nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.call_node(call text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.ask_node('SELECT to_jsonb(true) FROM insta_ids_internal.' || call);
END
$$;

-- Gives the map of this server to all other nodes, which take over what is newer. A node that does not take it is a notice: it
-- gets the map when shards move again.
CREATE OR REPLACE FUNCTION insta_ids_internal.share_map() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    map CONSTANT jsonb := insta_ids.shard_map();
    node name;
BEGIN
    FOR node IN SELECT n.node FROM insta_ids_internal.node n WHERE n.node <> insta_ids.this_node() ORDER BY n.ord LOOP
        BEGIN
            PERFORM insta_ids_internal.connect_node(node);
            -- A session there may hold the map's lock for long.
            PERFORM insta_ids_internal.ask_node(
                format('SET lock_timeout = ''2s''; SELECT to_jsonb(true) FROM insta_ids.apply_map(%L)', map),
                timeout_ms => insta_ids_internal.node_timeout_ms());
        EXCEPTION WHEN OTHERS THEN
            RAISE NOTICE 'node "%" has not taken the map: %', node, SQLERRM;
        END;
    END LOOP;
END
$$;

-- Asks all nodes of the map, including this one, at the same time. The answer of each is one JSON object, and is returned as a row
-- of the type of `shape`. A node has a reason instead if it does not answer within insta_ids.node_timeout, if it waits for a lock for
-- 5 s, or if its answer is no such row. `clock_offset` is how far the clock there is ahead of the clock here.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_fleet(question text, shape anyelement)
    RETURNS TABLE (node name, is_connected boolean, answer anyelement, reason text, clock_offset interval)
    VOLATILE PARALLEL UNSAFE ROWS 10 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    nodes CONSTANT name[] := ARRAY(SELECT n.node FROM insta_ids_internal.node n ORDER BY n.ord);
    -- All nodes have the same time. NULL is no limit.
    until CONSTANT bigint := insta_ids_internal.steady_ms() + nullif(insta_ids_internal.node_timeout_ms(), 0);
    reasons jsonb := '{}';
    task text;
    connection text;
    answered jsonb;
    detail text;
    asked_at timestamptz;
BEGIN
    IF NOT insta_ids_internal.is_superuser() THEN
        RAISE insufficient_privilege USING MESSAGE = 'must be superuser to ask the nodes of the map';
    END IF;
    -- Each task only begins something in all nodes, so that they work at the same time.
    FOREACH task IN ARRAY '{connect,greet,ask,answer}'::text[] LOOP
        FOREACH node IN ARRAY nodes LOOP
            connection := insta_ids_internal.connection_to(node);
            is_connected := NOT reasons ? node::text;
            answer := NULL;
            clock_offset := NULL;
            BEGIN
                IF NOT is_connected THEN
                    NULL;
                ELSIF task = 'connect' THEN
                    PERFORM insta_ids_internal.begin_to_connect_node(node, connection);
                ELSIF task = 'greet' THEN
                    PERFORM insta_ids_internal.begin_to_greet_node(connection);
                ELSIF task = 'ask' THEN
                    PERFORM insta_ids_internal.greet_node(node, connection, insta_ids_internal.ms_until(until));
                    PERFORM insta_ids_internal.begin_to_ask_node('SET lock_timeout = ''5s''; ' || question, connection);
                ELSE
                    answered := insta_ids_internal.await_node(connection, insta_ids_internal.ms_until(until))::jsonb;
                    IF jsonb_typeof(answered) IS DISTINCT FROM 'object' THEN
                        RAISE invalid_parameter_value USING MESSAGE = 'answer is not a JSON object';
                    END IF;
                    answer := jsonb_populate_record(shape, answered);
                    asked_at := clock_timestamp();
                    PERFORM insta_ids_internal.begin_to_ask_node('SELECT clock_timestamp()', connection);
                    clock_offset := insta_ids_internal.await_node(connection, insta_ids_internal.ms_until(until))::timestamptz
                        - asked_at - (clock_timestamp() - asked_at) / 2;
                END IF;
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
                reasons := reasons || jsonb_build_object(node, concat_ws(': ', SQLERRM, nullif(trim(detail), '')));
            END;
            IF task = 'answer' THEN
                reason := reasons ->> node;
                RETURN NEXT;
            END IF;
            IF task = 'answer' OR reasons ? node::text THEN
                PERFORM insta_ids_internal.disconnect_node(connection);
            END IF;
        END LOOP;
    END LOOP;
END
$$;
