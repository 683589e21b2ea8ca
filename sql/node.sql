-- Questions to other nodes, by dblink.

-- Connections

-- Returns a connection string by which a session does not wait long for a server that does not answer. What the string itself
-- says counts.
CREATE OR REPLACE FUNCTION insta_ids_internal.with_timeouts(dsn text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE
        WHEN dsn ~ '(connect_timeout|keepalives)' THEN dsn
        WHEN dsn ~ '^postgres(ql)?://' THEN dsn || CASE WHEN dsn ~ '[?]' THEN '&' ELSE '?' END
            || 'connect_timeout=10&keepalives_idle=10&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=25000'
        ELSE 'connect_timeout=10 keepalives_idle=10 keepalives_interval=5 keepalives_count=3 tcp_user_timeout=25000 ' || dsn END;

-- Connects this session to another node. Raises an error unless the node is on the map and has the extension. A session can
-- have more than one connection, each with a name.
CREATE OR REPLACE FUNCTION insta_ids_internal.connect_node(node name, connection text DEFAULT 'insta_ids') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids_internal.dblink_schema();
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
END
$$;

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
            HINT = 'Create it: CREATE EXTENSION dblink. Moves can also be made by their steps, from psql.';
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
    RETURN insta_ids_internal.await_node(connection);
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

-- Waits for the answer to the query of begin_to_ask_node(), and returns it.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_node(connection text DEFAULT 'insta_ids') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink CONSTANT name := insta_ids_internal.dblink_schema();
    get_result CONSTANT text := format('SELECT a.answer FROM %I.dblink_get_result(%L) a (answer jsonb)', dblink, connection);
    answer jsonb;
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

-- Agreement of the servers

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

-- Asks every node of the map, including this one.
CREATE OR REPLACE FUNCTION insta_ids.check_fleet() RETURNS SETOF insta_ids.finding
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
    PERFORM insta_ids_internal.dblink_schema();
    FOR node IN SELECT n.node FROM insta_ids_internal.node n ORDER BY n.ord LOOP
        is_connected := false;
        BEGIN
            PERFORM insta_ids_internal.connect_node(node);
            is_connected := true;
            answers := answers || jsonb_build_object(node, insta_ids_internal.ask_node(question));
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
    PERFORM insta_ids_internal.disconnect_node();

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
               THEN 'Apply the map of each on the other by insta_ids.apply_map().'
               ELSE format('Apply there what insta_ids.shard_map() returns on node "%s": SELECT insta_ids.apply_map(...)', newest_on) END
    FROM jsonb_each(answers) a
    CROSS JOIN LATERAL (SELECT (a.value #>> '{map,version}')::bigint AS version) v
    WHERE v.version < newest OR a.value -> 'map' <> answers -> newest_on -> 'map'
    ORDER BY a.key;

    -- Two servers may both have slot 0/1, because then only one of them mints for each shard.
    RETURN QUERY
    SELECT 'error', 'same_writer_slot', quote_ident(a.key),
           format('Its writer slot is %s, and that of node "%s" %s: they mint the same ids for a shard that both write to.',
               a.value ->> 'writer_slot', b.key, b.value ->> 'writer_slot'),
           'Set insta_ids.writer_slot in postgresql.conf on one of them, restart it, and take that: '
               || 'SELECT insta_ids.acquire_writer_slot(...)'
    FROM jsonb_each(answers) a
    JOIN jsonb_each(answers) b ON a.key < b.key
    WHERE insta_ids_internal.slots_overlap(a.value ->> 'writer_slot', b.value ->> 'writer_slot')
        AND (a.value ->> 'writer_slot', b.value ->> 'writer_slot') <> ('0/1', '0/1')
    ORDER BY a.key, b.key;
END
$$;
COMMENT ON FUNCTION insta_ids.check_fleet() IS
    'asks all nodes of the map, by dblink, whether they agree: on their names, the map and writer slots';
