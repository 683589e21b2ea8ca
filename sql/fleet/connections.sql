-- Questions to other nodes, by dblink.

-- Returns a connection string by which a session does not wait long for a server that does not answer. What the string itself
-- says counts.
CREATE OR REPLACE FUNCTION insta_ids_internal.with_timeouts(dsn text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE
        WHEN dsn ~ '(connect_timeout|keepalives)' THEN dsn
        WHEN dsn ~ '^postgres(ql)?://' THEN dsn || CASE WHEN dsn ~ '[?&]$' THEN '' WHEN dsn ~ '[?]' THEN '&' ELSE '?' END
            || 'connect_timeout=10&keepalives_idle=10&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=25000'
        ELSE 'connect_timeout=10 keepalives_idle=10 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=25000 ' || dsn END;

-- Connects this session to another node. Raises an error unless the node is on the map, has the extension, and is the one that it
-- is taken for. A session can have more than one connection, each with a name.
CREATE OR REPLACE FUNCTION insta_ids_internal.connect_node(node name, connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids_internal.dblink_schema();
    there text;
BEGIN
    PERFORM insta_ids_internal.require_node(node), insta_ids_internal.disconnect_node(connection);
    EXECUTE format('SELECT %I.dblink_connect(%L, %L)', dblink, connection, (
        SELECT insta_ids_internal.with_timeouts(n.dsn) FROM insta_ids_internal.node n WHERE n.node = connect_node.node));
    -- The role may have other settings there.
    EXECUTE format('SELECT %I.dblink_exec(%L, %L)', dblink, connection,
        'SET search_path = pg_catalog, pg_temp; SET default_transaction_isolation = ''read committed''; SET statement_timeout = 0');
    -- Roles that write the map choose where a connection string leads. The functions called there must be the extension's.
    IF insta_ids_internal.ask_node('SELECT to_jsonb(count(*)) FROM pg_extension e WHERE e.extname = ''insta_ids''', connection)
        <> '1'
    THEN
        PERFORM insta_ids_internal.disconnect_node(connection);
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" does not have the extension insta_ids', node),
            HINT = 'Correct its connection string by insta_ids.add_node(), or CREATE EXTENSION insta_ids there.';
    END IF;
    there := insta_ids_internal.ask_node('SELECT to_jsonb(insta_ids.this_node())', connection) #>> '{}';
    IF there IS DISTINCT FROM node::text THEN
        PERFORM insta_ids_internal.disconnect_node(connection);
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('connection string of node "%s" leads to another server', node),
            DETAIL = coalesce(format('That server is node "%s".', there), 'That server has no name.'),
            HINT = 'Correct the connection string by insta_ids.add_node(), or insta_ids.node in postgresql.conf there.';
    END IF;
END
$$;

-- Returns the name of a session's connection to this node, where the session has one to each node. It is short, because dblink cuts
-- names off at 63 bytes, and the name of a node can be that long.
CREATE OR REPLACE FUNCTION insta_ids_internal.connection_to(node name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT format('insta_ids %s', n.ord) FROM insta_ids_internal.node n WHERE n.node = connection_to.node;
END;

-- Closes the connection to another node, if there is one.
CREATE OR REPLACE FUNCTION insta_ids_internal.disconnect_node(connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids_internal.dblink_schema();
    is_connected boolean;
BEGIN
    EXECUTE format('SELECT %L = ANY (%I.dblink_get_connections())', connection, dblink) INTO is_connected;
    IF is_connected THEN
        EXECUTE format('SELECT %I.dblink_disconnect(%L)', dblink, connection);
    END IF;
END
$$;

-- Returns the schema of the extension dblink. Raises an error if dblink is not installed.
CREATE OR REPLACE FUNCTION insta_ids_internal.dblink_schema() RETURNS name
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink');
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "dblink" is not installed in this database',
            HINT = 'Create it: CREATE EXTENSION dblink.';
    END IF;
    RETURN schema;
END
$$;

-- Runs a query on the connected node, and returns its one value.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_node(question text, connection text DEFAULT 'insta_ids') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_ask_node(question, connection);
    RETURN insta_ids_internal.await_node(connection)::jsonb;
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

-- Sends a query to the connected node, without waiting for the answer. await_node() returns the answer.
CREATE OR REPLACE FUNCTION insta_ids_internal.begin_to_ask_node(question text, connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('SELECT %I.dblink_send_query(%L, %L)', insta_ids_internal.dblink_schema(), connection, question);
END
$$;

-- Waits for the answer to the statement of begin_to_ask_node(), and returns it. A CALL answers with CALL.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_node(connection text DEFAULT 'insta_ids') RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids_internal.dblink_schema();
    get_result CONSTANT text := format('SELECT a.answer FROM %I.dblink_get_result(%L) a (answer text)', dblink, connection);
    answer text;
    is_busy boolean;
    looks integer := 0;
BEGIN
    -- Before PostgreSQL 17, dblink itself cannot be cancelled while it waits for an answer.
    LOOP
        EXECUTE format('SELECT %I.dblink_is_busy(%L) = 1', dblink, connection) INTO is_busy;
        EXIT WHEN NOT is_busy;
        looks := looks + 1;
        PERFORM insta_ids_internal.wait_ms(least(1 + looks / 100, 10));
    END LOOP;
    EXECUTE get_result INTO answer;
    -- The connection can be used again only after the end of the results.
    EXECUTE get_result;
    RETURN answer;
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
            PERFORM insta_ids_internal.ask_node('SELECT to_jsonb(set_config(''lock_timeout'', ''2s'', false))');
            PERFORM insta_ids_internal.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.apply_map(%L)', map));
        EXCEPTION WHEN OTHERS THEN
            RAISE NOTICE 'node "%" has not taken the map: %', node, SQLERRM;
        END;
    END LOOP;
END
$$;

-- Asks all nodes of the map, including this one, at the same time. A node that does not answer, or that waits for a lock for 5 s,
-- has a reason. `clock_offset` is how far the clock there is ahead of the clock here.
CREATE OR REPLACE FUNCTION insta_ids_internal.ask_fleet(question text)
    RETURNS TABLE (node name, is_connected boolean, answer jsonb, reason text, clock_offset interval)
    VOLATILE STRICT PARALLEL UNSAFE ROWS 10 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    nodes CONSTANT name[] := ARRAY(SELECT n.node FROM insta_ids_internal.node n ORDER BY n.ord);
    connected name[] := '{}';
    reasons jsonb := '{}';
    connection text;
    detail text;
    asked_at timestamptz;
BEGIN
    PERFORM insta_ids_internal.dblink_schema();
    FOREACH node IN ARRAY nodes LOOP
        connection := insta_ids_internal.connection_to(node);
        BEGIN
            PERFORM insta_ids_internal.connect_node(node, connection);
            connected := connected || node;
            PERFORM insta_ids_internal.ask_node('SELECT to_jsonb(set_config(''lock_timeout'', ''5s'', false))', connection);
            PERFORM insta_ids_internal.begin_to_ask_node(question, connection);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            reasons := reasons || jsonb_build_object(node, concat_ws(': ', SQLERRM, nullif(trim(detail), '')));
        END;
    END LOOP;
    FOREACH node IN ARRAY nodes LOOP
        is_connected := node = ANY (connected);
        connection := insta_ids_internal.connection_to(node);
        answer := NULL;
        clock_offset := NULL;
        IF is_connected THEN
            BEGIN
                answer := insta_ids_internal.await_node(connection)::jsonb;
                asked_at := clock_timestamp();
                clock_offset := (insta_ids_internal.ask_node('SELECT to_jsonb(clock_timestamp())', connection) #>> '{}')::timestamptz
                    - asked_at - (clock_timestamp() - asked_at) / 2;
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
                reasons := reasons || jsonb_build_object(node, concat_ws(': ', SQLERRM, nullif(trim(detail), '')));
            END;
            PERFORM insta_ids_internal.disconnect_node(connection);
        END IF;
        reason := reasons ->> node;
        RETURN NEXT;
    END LOOP;
END
$$;
