-- From 0.8.0 to 0.9.0: the version of the library, and what a publication of all tables needs.

-- While a server, or a session, still runs the library that was installed before this version, nothing is made.
DO $$
BEGIN
    CREATE FUNCTION insta_ids.library_version() RETURNS text
        STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'library_version_wrapper';
EXCEPTION
    WHEN undefined_function THEN
        -- Not that of somebody's event trigger.
        IF SQLERRM NOT LIKE '%library_version_wrapper%' THEN
            RAISE;
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
END
$$;

-- Sessions that read the map for their first id wait behind these, so these do not wait long for others.
SELECT pg_catalog.set_config('lock_timeout', '2s', true) WHERE pg_catalog.current_setting('lock_timeout') = '0';
ALTER TABLE insta_ids.map REPLICA IDENTITY FULL;
ALTER TABLE insta_ids.writer REPLICA IDENTITY FULL;

-- The map, fences, shards and moves

CREATE OR REPLACE FUNCTION insta_ids.drop_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    assigned record;
BEGIN
    PERFORM insta_ids.check_isolation('a node cannot be dropped');
    LOCK TABLE insta_ids.node, insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    SELECT a.first, a.last INTO assigned FROM insta_ids.assignment a WHERE a.node = drop_node.node ORDER BY a.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('node "%s" has shards', node),
            DETAIL = format('It has those from %s to %s.', assigned.first, assigned.last),
            HINT = 'Move them first, or assign them to another node if they are there.';
    ELSIF EXISTS (SELECT FROM insta_ids.move m WHERE drop_node.node IN (m.from_node, m.to_node)) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards move from or to node "%s"', node),
            HINT = 'See insta_ids.moves.';
    END IF;
    DELETE FROM insta_ids.node n WHERE n.node = drop_node.node;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_node(node);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.assign(first integer, last integer, node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be assigned');
    PERFORM insta_ids.check_range(first, last, 1);
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(node);
    IF EXISTS (
        SELECT FROM insta_ids.assignment a
        WHERE a.first <= assign.first AND a.last >= assign.last AND a.node = assign.node)
    THEN
        RETURN;
    END IF;
    PERFORM insta_ids.set_assignments(array_agg(p.first), array_agg(p.last), array_agg(p.node))
    FROM (
        SELECT a.first, least(a.last, assign.first - 1), a.node FROM insta_ids.assignment a WHERE a.first < assign.first
        UNION ALL
        SELECT greatest(a.first, assign.last + 1), a.last, a.node FROM insta_ids.assignment a WHERE a.last > assign.last
        UNION ALL
        VALUES (assign.first, assign.last, assign.node)
    ) p (first, last, node);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.unfence(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be opened');
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.claim(ARRAY[shard]), insta_ids.check_moves(shard, shard), insta_ids.check_placement(shard);
    PERFORM insta_ids.open_shards(ARRAY[shard]);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    remains name;
    dropped oid;
    relation regclass;
    has_rows boolean;
BEGIN
    PERFORM insta_ids.check_moves(shard, shard);
    SELECT d.schema INTO remains FROM insta_ids.moved d WHERE d.shard = drop_shard.shard FOR UPDATE;
    IF remains IS NOT NULL THEN
        UPDATE insta_ids.moved d SET schema = NULL WHERE d.shard = drop_shard.shard;
        IF NOT force THEN
            PERFORM insta_ids.check_dependents(shard, to_regnamespace(quote_ident(remains)));
        END IF;
        EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', remains);
        RETURN;
    END IF;
    DELETE FROM insta_ids.fence f WHERE f.shard = drop_shard.shard;
    DELETE FROM insta_ids.shard s WHERE s.shard = drop_shard.shard;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = drop_shard.shard;
    -- Only now: who had its row before may have dropped it, and made it anew.
    dropped := to_regnamespace(quote_ident(schema));
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        PERFORM insta_ids.check_isolation('whether a shard is empty cannot be told');
        -- Nothing is made in it from here on.
        PERFORM insta_ids.lock_schema(dropped);
        FOR relation IN
            SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped AND c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', relation);
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', relation) INTO has_rows;
            IF has_rows THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not empty', shard),
                    DETAIL = format('Table %s has rows.', relation),
                    HINT = 'Use force => true to drop it with all that is in it.';
            END IF;
        END LOOP;
        PERFORM insta_ids.check_dependents(shard, dropped);
    END IF;
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.move_shards(
        first integer, last integer, from_node name, verify text DEFAULT 'full', lock_timeout text DEFAULT '2s',
        max_lag bigint DEFAULT 1048576)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    here pg_catalog.name;
    step pg_catalog.text;
    offer pg_catalog.jsonb;
    mark pg_catalog.jsonb;
    ours pg_catalog.jsonb;
    theirs pg_catalog.jsonb;
    relation pg_catalog.text;
    handed_over pg_catalog.jsonb;
    fenced_at pg_catalog.timestamptz;
    told_at pg_catalog.timestamptz := '-infinity';
    lag bigint;
    lead interval;
    table_slots pg_catalog.name[] := '{}';
    progress pg_catalog.record;
BEGIN
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last, from_node, lock_timeout, max_lag) > 0 OR verify IS NULL
        OR verify NOT IN ('full', 'count', 'none')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'arguments of move_shards are not complete',
            DETAIL = 'First and last shard, the node that they come from, and verify => ''full'', ''count'' or ''none''.';
    END IF;
    here := insta_ids.own_node();
    SELECT m.step INTO step FROM insta_ids.move m
    WHERE (m.name, m.from_node, m.to_node) = (move, move_shards.from_node, here);
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last), insta_ids.check_absent(first, last);
    END IF;
    PERFORM insta_ids.connect_node(from_node);

    IF step IS NULL THEN
        offer := insta_ids.ask_node(format('SELECT insta_ids.move_offer(%s, %s, %L)', first, last, here));
        BEGIN
            PERFORM insta_ids.prepare_move(offer, path);
        EXCEPTION WHEN OTHERS THEN
            -- What another session has offered is its own.
            IF (offer ->> 'is_new')::boolean THEN
                PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L)', move));
            END IF;
            RAISE;
        END;
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: prepared, % shards, % here', jsonb_array_length(offer -> 'shards'),
            pg_size_pretty((offer ->> 'bytes')::bigint);
    END IF;
    IF step IS DISTINCT FROM 'handed over' THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_slot(%L)', move));
        PERFORM insta_ids.move_subscribe(move);
        CALL insta_ids.new_transaction();
        LOOP
            lag := insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_lag(%L))', move));
            EXIT WHEN insta_ids.move_copied(move) AND lag <= max_lag;
            IF clock_timestamp() > told_at + interval '1 s' THEN
                told_at := clock_timestamp();
                SELECT * INTO progress FROM insta_ids.moves p WHERE p.name = move;
                RAISE NOTICE 'move_shards: % of % tables copied, % rows, % of %, % behind', progress.tables_copied,
                    progress.tables, progress.rows, pg_size_pretty(progress.bytes), pg_size_pretty(progress.bytes_total),
                    pg_size_pretty(lag);
                -- Of those that were there a second ago.
                table_slots := ARRAY(
                    SELECT unnest(table_slots) INTERSECT SELECT unnest(insta_ids.move_table_slots(move)));
                IF insta_ids.ask_node(format('SELECT to_jsonb(insta_ids.move_slots_lost(%L))', table_slots)) = 'true' THEN
                    RAISE NOTICE 'move_shards: begins to copy again, as a server died while a table was at its end';
                    PERFORM insta_ids.move_recopy(move);
                END IF;
                table_slots := insta_ids.move_table_slots(move);
            END IF;
            PERFORM pg_sleep(0.02);
            CALL insta_ids.new_transaction();
        END LOOP;
        -- So that the first queries here are planned as they should be.
        FOR relation IN
            SELECT r.relation FROM insta_ids.move m
            JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
            WHERE m.name = move
        LOOP
            EXECUTE format('ANALYZE %s', relation);
        END LOOP;
        CALL insta_ids.new_transaction();

        -- Not only after it.
        lead := (insta_ids.ask_node('SELECT to_jsonb(c.id_time) FROM insta_ids.clock() c') #>> '{}')::timestamptz
            - clock_timestamp();
        IF lead > current_setting('insta_ids.clock_tolerance')::interval THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('clock of this server is %s behind the time of ids on node "%s"', lead, from_node),
                DETAIL = format('"insta_ids.clock_tolerance" is %s.', current_setting('insta_ids.clock_tolerance')),
                HINT = 'Correct the clock, and call again.';
        END IF;
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_fence(%L, %L)', move, lock_timeout));
        fenced_at := clock_timestamp();
        mark := insta_ids.ask_node(format('SELECT insta_ids.move_mark(%L)', move));
        RAISE NOTICE 'move_shards: fenced on node "%"', from_node;
        LOOP
            EXIT WHEN insta_ids.move_drained(move, mark);
            PERFORM pg_sleep(0.01);
            CALL insta_ids.new_transaction();
        END LOOP;
        IF verify <> 'none' THEN
            PERFORM insta_ids.begin_to_ask_node(format('SELECT insta_ids.move_hashes(%L, %L)', move, verify));
            ours := insta_ids.move_hashes(move, verify);
            theirs := insta_ids.await_node();
        END IF;
        handed_over := insta_ids.move_hand_over(move, mark, theirs, ours);
        CALL insta_ids.new_transaction();
        RAISE NOTICE 'move_shards: handed over, % ms after the fence',
            round(extract(epoch FROM clock_timestamp() - fenced_at) * 1000);
    END IF;

    handed_over := coalesce(handed_over, insta_ids.move_hand_over(move));
    PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_finish(%L, %L)', move, handed_over));
    PERFORM insta_ids.move_finish(move);
    CALL insta_ids.new_transaction();
    RAISE NOTICE 'move_shards: finished; the map has version %', handed_over ->> 'version';
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.move_abort(first integer, last integer, from_node name DEFAULT NULL)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    move CONSTANT pg_catalog.text := pg_catalog.format('insta_ids_%s_%s', first, last);
    moving insta_ids.move;
    there pg_catalog.jsonb;
    cancellation pg_catalog.jsonb;
BEGIN
    CALL insta_ids.new_transaction();
    SELECT * INTO moving FROM insta_ids.move m WHERE m.name = move;
    IF NOT FOUND AND from_node IS NULL THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    PERFORM insta_ids.connect_node(coalesce(moving.from_node, from_node));
    there := insta_ids.ask_node(format('SELECT jsonb_build_object(''id'', max(m.id::text), ''to_node'', max(m.to_node::text),'
        || ' ''outcome'', insta_ids.move_outcome(%L)) FROM insta_ids.move m WHERE m.name = %L', moving.id, move));
    IF there ->> 'to_node' <> insta_ids.own_node() THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', first, last),
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on node "%s".', first, last,
                coalesce(moving.from_node, from_node), there ->> 'to_node');
    END IF;
    -- Whatever is here of them may be all that there is.
    IF there ->> 'outcome' = 'handed over' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('node "%s" has let go of shards from %s to %s', moving.from_node, first, last),
            DETAIL = format('They were handed over, which this server has lost: here the move is %s.', moving.step);
    END IF;
    IF moving.id IS NOT NULL OR there ->> 'id' IS NOT NULL THEN
        cancellation := insta_ids.move_cancel(move, coalesce(moving.id, (there ->> 'id')::uuid));
        -- From here on the shards cannot be taken over any more.
        CALL insta_ids.new_transaction();
    END IF;
    IF there ->> 'id' IS NOT NULL THEN
        PERFORM insta_ids.ask_node(format('SELECT to_jsonb(true) FROM insta_ids.move_withdraw(%L, %L)', move, cancellation));
    END IF;
    PERFORM insta_ids.disconnect_node(), set_config('search_path', path, true);
END
$$;

-- Checking

-- What the map, the fences and the moves do not agree in with this server.
CREATE OR REPLACE FUNCTION insta_ids.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids.shard_schema s
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids.fence f
    JOIN insta_ids.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND NOT EXISTS (
            SELECT FROM pg_trigger t
            WHERE t.tgrelid = r.relation AND t.tgname = 'insta_ids_fence'
                -- As insta_ids.close_shards left it.
                AND t.tgenabled = CASE WHEN f.to_node = here THEN 'O' ELSE 'A' END)
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- Whether a version comes before another one. Of what is no number nothing is known, but that it was before there were any here.
CREATE FUNCTION insta_ids.is_older(version text, other text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN version ~ '^\d{1,8}(\.\d{1,8})*$' AND other ~ '^\d{1,8}(\.\d{1,8})*$'
    THEN string_to_array(version, '.')::integer[] < string_to_array(other, '.')::integer[]
    ELSE coalesce(version = 'before 0.9.0', false)
END;

CREATE OR REPLACE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    extension CONSTANT text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'insta_ids');
    library text;
    installed text;
    hint text;
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM), hint)::insta_ids.finding;
    END;

    BEGIN
        PERFORM insta_ids.check_writer();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.take_writer_slot(...)'
                )::insta_ids.finding;
    END;

    BEGIN
        library := insta_ids.library_version();
    EXCEPTION
        WHEN undefined_function THEN
            library := 'before 0.9.0';
    END;
    BEGIN
        installed := (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'insta_ids');
    EXCEPTION
        -- It reads what is installed of all extensions, and fails where one of them is not right.
        WHEN OTHERS THEN
            installed := NULL;
    END;
    RETURN QUERY
    SELECT 'warning', 'old_library', 'insta_ids',
           format('The library that this session runs is of version %s, and version %s is installed.', library,
               CASE WHEN insta_ids.is_older(extension, installed) THEN installed ELSE extension END),
           'Install the newest version, and restart the server.'
    WHERE insta_ids.is_older(library, extension) OR insta_ids.is_older(library, installed);
    RETURN QUERY
    SELECT 'warning', 'old_extension', 'insta_ids',
           format('The library is of version %s, and this database still has the functions of version %s.', library, extension),
           'ALTER EXTENSION insta_ids UPDATE'
    WHERE insta_ids.is_older(extension, library);

    RETURN QUERY
    SELECT CASE WHEN b.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END, f.code, b.object, f.detail, f.hint
    FROM insta_ids.server_budget() b
    CROSS JOIN LATERAL (SELECT format('"max_locks_per_transaction" = %s',
        ceil(1.25 * b.used / nullif(b.available, 0) * current_setting('max_locks_per_transaction')::integer)) AS setting) s
    CROSS JOIN LATERAL (VALUES
        ('locks of pg_dump', b.used > b.available, 'locks_of_pg_dump',
            format('It needs %s locks, and the server has %s for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server.', s.setting)),
        ('locks of migrate', b.used > b.available, 'locks_of_migrate',
            format('50 shards like this one have %s relations, and the server has %s locks for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server; or call migrate with a smaller batch.', s.setting)),
        ('milliseconds of the layout', b.runs_out < now() + interval '5 years', 'end_of_layout',
            format('The last instant of the layout is %s.', b.runs_out),
            'Plan for ids of another layout in a new database: no id can be minted after that.')
    ) f (resource, is_found, code, detail, hint)
    WHERE f.resource = b.resource AND f.is_found;
END
$$;

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON FUNCTION %s FROM %s', p.oid::regprocedure,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner)))
        WHERE p.pronamespace = 'insta_ids'::regnamespace AND p.proname IN ('library_version', 'is_older') AND grantee <> p.proowner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION insta_ids.library_version(), insta_ids.is_older(text, text) TO PUBLIC;

-- Comments
COMMENT ON FUNCTION insta_ids.library_version() IS
    'version of the library that this session runs';
COMMENT ON FUNCTION insta_ids.is_older(text, text) IS
    'whether a version comes before another one';
