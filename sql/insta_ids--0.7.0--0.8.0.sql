-- From 0.7.0 to 0.8.0: writer slots, and engines that route.

-- Writer slots: several servers mint for one shard, each the ids of its slot.

-- In force on this server: it is the setting's, from when the server started.
CREATE FUNCTION insta_ids.writer_slot() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'writer_slot_wrapper';

-- What this database has taken, one row; without it, slot 0 of 1. Sessions read it with the map.
CREATE TABLE insta_ids.writer (
    slot integer NOT NULL CHECK (slot >= 0),
    slots integer NOT NULL CHECK (slots > slot)
);
CREATE UNIQUE INDEX writer_once ON insta_ids.writer ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids.writer', '');

CREATE FUNCTION insta_ids.slot_of(writer_slot text) RETURNS insta_ids.writer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writer insta_ids.writer;
BEGIN
    IF writer_slot ~ '^\d{1,9}/\d{1,9}$' THEN
        writer := (split_part(writer_slot, '/', 1)::integer, split_part(writer_slot, '/', 2)::integer);
        IF writer.slot < writer.slots AND writer.slots & writer.slots - 1 = 0 THEN
            RETURN writer;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('"%s" is not a writer slot', writer_slot),
        DETAIL = 'It must be like 0/2: a number from 0, and a power of two that is greater.';
END
$$;

-- Whether an id can be of both.
CREATE FUNCTION insta_ids.slots_meet(one insta_ids.writer, other insta_ids.writer) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (one).slot % LEAST((one).slots, (other).slots) = (other).slot % LEAST((one).slots, (other).slots);

CREATE FUNCTION insta_ids.taken_slot() RETURNS insta_ids.writer
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((SELECT w FROM insta_ids.writer w), ROW(0, 1)::insta_ids.writer);

-- A part of what the database has taken already needs no time: it is the server's own ids that were minted of it.
CREATE FUNCTION insta_ids.take_writer_slot(until timestamptz DEFAULT NULL) RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot CONSTANT insta_ids.writer := insta_ids.slot_of(insta_ids.writer_slot());
    taken insta_ids.writer;
BEGIN
    PERFORM insta_ids.check_isolation('a writer slot cannot be taken');
    LOCK TABLE insta_ids.writer IN SHARE ROW EXCLUSIVE MODE;
    taken := insta_ids.taken_slot();
    IF slot <> taken THEN
        IF until IS NULL
            AND (NOT EXISTS (SELECT FROM insta_ids.writer) OR slot.slots < taken.slots OR NOT insta_ids.slots_meet(slot, taken))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'null_value_not_allowed',
                MESSAGE = format('until when ids of writer slot %s were minted must be given', insta_ids.writer_slot()),
                DETAIL = format('This database has slot %s/%s, so another server may have minted them.', taken.slot, taken.slots),
                HINT = format('On the server that did, when it has another slot: SELECT insta_ids.left_writer_slot(%L).'
                    || ' If none did: ''-infinity''.', insta_ids.writer_slot());
        END IF;
        PERFORM insta_ids.advance_clock(until) WHERE until > '-infinity';
        DELETE FROM insta_ids.writer;
        INSERT INTO insta_ids.writer SELECT (slot).*;
        PERFORM insta_ids.forget_map();
    END IF;
    RETURN insta_ids.writer_slot();
END
$$;

CREATE FUNCTION insta_ids.left_writer_slot(slot text) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT text := insta_ids.writer_slot();
BEGIN
    IF insta_ids.slots_meet(insta_ids.slot_of(slot), insta_ids.slot_of(own))
        OR insta_ids.slots_meet(insta_ids.slot_of(slot), insta_ids.taken_slot())
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('ids of writer slot %s are minted here', slot),
            DETAIL = (SELECT format('This server has slot %s, and this database has taken %s/%s.', own, t.slot, t.slots)
                      FROM insta_ids.taken_slot() t),
            HINT = 'Set another insta_ids.writer_slot in postgresql.conf, restart the server, and take that:'
                || ' SELECT insta_ids.take_writer_slot().';
    END IF;
    -- Every id of this database is of a time that its lease covers.
    RETURN coalesce((SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c), '-infinity');
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT SELECT, INSERT ON insta_ids.config TO %s', role);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE'
        || ' ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.work, insta_ids.node,'
        || ' insta_ids.assignment, insta_ids.map, insta_ids.fence, insta_ids.move, insta_ids.ended_move,'
        || ' insta_ids.moved TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.shard_schema, insta_ids.shard_relation, insta_ids.migration_status,'
        || ' insta_ids.progress, insta_ids.moves TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON PROCEDURE insta_ids.create_shards, insta_ids.migrate, insta_ids.check_rows,'
        || ' insta_ids.commit_batch, insta_ids.new_transaction TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION insta_ids.init, insta_ids.create_shard, insta_ids.make_shard,'
        || ' insta_ids.drop_shard, insta_ids.lock_schema, insta_ids.add_migration, insta_ids.apply_migrations,'
        || ' insta_ids.path_of, insta_ids.check_path, insta_ids.statements, insta_ids.minting_columns,'
        || ' insta_ids.migration_script, insta_ids.migration_by_script, insta_ids.start_migration,'
        || ' insta_ids.finish_migration, insta_ids.note_transactions, insta_ids.transactions_committed,'
        || ' insta_ids.check_range, insta_ids.check_locks, insta_ids.limit_catalog_cache, insta_ids.check,'
        || ' insta_ids.check_server, insta_ids.check_schemas, insta_ids.check_migrations, insta_ids.check_objects,'
        || ' insta_ids.check_references, insta_ids.check_sequences, insta_ids.check_ids, insta_ids.check_ids_of,'
        || ' insta_ids.objects_of, insta_ids.mending, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.check_isolation, insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.read_function, insta_ids.write_function, insta_ids.rewrite_function,'
        || ' insta_ids.lock_sequence, insta_ids.named_sequence, insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_adoption, insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.claim_shard, insta_ids.tell_of_dependents, insta_ids.unidentified_tables, insta_ids.check_map,'
        || ' insta_ids.check_dependents, insta_ids.check_left, insta_ids.is_placed_here, insta_ids.check_placement,'
        || ' insta_ids.own_node, insta_ids.forget_map, insta_ids.check_dsn, insta_ids.add_node,'
        || ' insta_ids.taken_slot, insta_ids.drop_node, insta_ids.check_node, insta_ids.set_assignments, insta_ids.assign, insta_ids.apply_map,'
        || ' insta_ids.refuse_write, insta_ids.lock_all, insta_ids.check_heirs, insta_ids.close_shards,'
        || ' insta_ids.open_shards, insta_ids.claim, insta_ids.fence, insta_ids.unfence, insta_ids.check_moves,'
        || ' insta_ids.open_move, insta_ids.move_outcome, insta_ids.commit_durably, insta_ids.check_movable,'
        || ' insta_ids.objects_json, insta_ids.partitions_json, insta_ids.relations_of, insta_ids.published_tables,'
        || ' insta_ids.move_offer, insta_ids.move_slot, insta_ids.move_lag, insta_ids.move_slots_lost,'
        || ' insta_ids.move_fence, insta_ids.move_mark, insta_ids.drop_slot, insta_ids.assign_moved,'
        || ' insta_ids.move_finish, insta_ids.move_withdraw, insta_ids.move_hashes TO %s', role);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM),
                'Add insta_ids to "shared_preload_libraries" in postgresql.conf, and restart the server.')::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT 'error', 'writer_slot', 'insta_ids.writer_slot',
           format('No id can be minted here: the server has slot %s, and the database %s/%s.', insta_ids.writer_slot(), t.slot, t.slots),
           'Take it: SELECT insta_ids.take_writer_slot(...)'
    FROM insta_ids.taken_slot() t WHERE insta_ids.writer_slot() <> format('%s/%s', t.slot, t.slots);

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

CREATE OR REPLACE FUNCTION insta_ids.adoption_reasons(schema regnamespace, shard integer) RETURNS SETOF text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT format('Function %s: %s', f.function, coalesce(f.reason, format('It mints for shard %s.', f.shard)))
    FROM insta_ids.minting_functions(schema) f
    WHERE f.reason IS NOT NULL OR f.shard <> adoption_reasons.shard;

    RETURN QUERY
    SELECT format('Default of %s.%I: It mints for shard %s.', c.relation, c."column", c.shard)
    FROM insta_ids.filled_columns(schema) c WHERE c.shard <> adoption_reasons.shard;

    IF NOT EXISTS (SELECT FROM insta_ids.minting_functions(schema))
        AND NOT EXISTS (SELECT FROM insta_ids.filled_columns(schema))
    THEN
        RETURN NEXT 'It has no function like the published one.';
    END IF;

    RETURN QUERY
    SELECT format('This server has writer slot %s, and the function has minted the ids of all.', insta_ids.writer_slot())
    WHERE insta_ids.writer_slot() <> '0/1';

    -- Each shard has table_id_seq, next_id() and next_id(regclass).
    RETURN QUERY
    SELECT format('Relation %s: It is no sequence, and each shard has one of this name.', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = schema AND c.relname = 'table_id_seq' AND c.relkind <> 'S';

    RETURN QUERY
    SELECT format('Function %s: With %s.next_id(%s) beside it, its calls would be ambiguous.', p.oid::regprocedure,
               schema, CASE WHEN p.pronargs > p.pronargdefaults THEN 'regclass' END)
    FROM pg_proc p
    JOIN pg_type t ON t.oid = p.proargtypes[0]
    WHERE p.pronamespace = schema AND p.proname = 'next_id'
        AND (p.pronargs = p.pronargdefaults
            OR p.pronargs = p.pronargdefaults + 1 AND t.typcategory = 'N'
                AND t.oid NOT IN ('integer'::regtype, 'regclass'::regtype));
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_release(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY(
        SELECT format('Function %s: %s', f.function, CASE
                   WHEN f.native THEN format('It mints for shard %s.', f.shard)
                   ELSE coalesce(f.reason, 'It is not one of insta_ids.') END)
        FROM insta_ids.minting_functions(schema) f
        WHERE f.reason IS NOT NULL OR NOT f.native OR f.shard <> check_release.shard
        UNION ALL
        (SELECT format('Function %s: It does not mint from the sequence that it is told, and the default of %s.%I'
                    || ' would call it.', p.function, d.relation, d."column")
         FROM to_regprocedure(format('%s.next_id(regclass)', schema)) p (function)
         CROSS JOIN insta_ids.native_defaults(schema) d
         WHERE p.function IS NOT NULL AND NOT EXISTS (
             SELECT FROM insta_ids.minting_functions(schema) f
             WHERE f.function = p.function AND (f.sequence_argument = 1 OR NOT f.native OR f.reason IS NOT NULL))
         LIMIT 1)
        UNION ALL
        SELECT format('Default of %s.%I: %s', d.relation, d."column",
                   coalesce(d.reason, format('It mints for shard %s.', d.shard)))
        FROM insta_ids.native_defaults(schema) d
        WHERE d.reason IS NOT NULL OR d.shard <> check_release.shard
        UNION ALL
        SELECT format('This server has writer slot %s, and the published function would mint the ids of all.',
            insta_ids.writer_slot())
        WHERE insta_ids.writer_slot() <> '0/1');
BEGIN
    IF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be released', schema),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;
-- What routes by the map, and whether the servers agree on it.

-- The parameters of a connection string of libpq: of pairs, or of a URI.
CREATE FUNCTION insta_ids.dsn_parameters(dsn text) RETURNS TABLE (keyword text, value text)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    uri CONSTANT text[] := regexp_match(dsn, '^postgres(?:ql)?://(?:([^/@]*)@)?([^/?]*)(?:/([^?]*))?(?:\?(.*))?$');
    hosts text[];
    ports text[];
BEGIN
    IF uri IS NULL THEN
        RETURN QUERY
        SELECT p[1], regexp_replace(coalesce(p[2], p[3]), '\\(.)', '\1', 'g')
        FROM regexp_matches(dsn, '([a-z_]+)\s*=\s*(?:''((?:[^''\\]|\\.)*)''|((?:[^\s''\\]|\\.)*))', 'g') p;
        RETURN;
    END IF;
    SELECT array_agg(trim(BOTH '[]' FROM h[1])), array_agg(coalesce(h[2], '')) INTO hosts, ports
    FROM regexp_split_to_table(uri[2], ',') host, regexp_match(host, '^(\[[^]]*\]|[^:]*)(?::(\d*))?$') h;
    RETURN QUERY
    SELECT p.keyword, insta_ids.percent_decoded(p.value)
    FROM (
        VALUES ('user', uri[1]), ('host', array_to_string(hosts, ',')),
            ('port', CASE WHEN ports <> array_fill(''::text, ARRAY[cardinality(ports)]) THEN array_to_string(ports, ',') END),
            ('dbname', uri[3])
        UNION ALL
        SELECT split_part(parameter, '=', 1), substr(parameter, strpos(parameter, '=') + 1)
        FROM regexp_split_to_table(uri[4], '&') parameter
    ) p (keyword, value)
    WHERE p.value <> '';
END
$$;

CREATE FUNCTION insta_ids.percent_decoded(encoded text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.convert_from(pg_catalog.decode(pg_catalog.string_agg(
        CASE WHEN p.part[1] IS NULL THEN pg_catalog.encode(pg_catalog.convert_to(p.part[2], 'UTF8'), 'hex') ELSE p.part[1] END,
        '' ORDER BY p.place), 'hex'), 'UTF8')
    FROM pg_catalog.regexp_matches(encoded, '%([0-9A-Fa-f]{2})|(.)', 'g') WITH ORDINALITY p (part, place);
END;

-- Whether the servers agree

-- Asks every node of the map, also this one.
CREATE FUNCTION insta_ids.check_nodes() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    question CONSTANT text := 'SELECT jsonb_build_object(''node'', insta_ids.this_node(), ''map'', insta_ids.shard_map() - ''moving'','
        || ' ''writer_slot'', insta_ids.writer_slot())';
    node name;
    answer jsonb;
    answers jsonb := '{}';
    reason text;
    newest bigint;
    newest_on text;
BEGIN
    PERFORM insta_ids.dblink_schema();
    FOR node IN SELECT n.node FROM insta_ids.node n ORDER BY n.ord LOOP
        BEGIN
            PERFORM insta_ids.connect_node(node);
            answer := insta_ids.ask_node(question);
            PERFORM insta_ids.disconnect_node();
            answers := answers || jsonb_build_object(node, answer);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
            RETURN NEXT ROW('error', 'no_answer', quote_ident(node),
                format('%s: %s', SQLERRM, trim(reason)),
                'If the server is gone for good, promote its standby under the same name, and say where that is:'
                    || format(' SELECT insta_ids.add_node(%L, ...)', node))::insta_ids.finding;
        END;
    END LOOP;

    RETURN QUERY
    SELECT 'error', 'other_node', quote_ident(a.key),
           format('The server that its connection string leads to is %s.', coalesce(format('node "%s"', a.value ->> 'node'), 'no node')),
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
               THEN 'Assign on one of them what the other has, and apply that map on the other by insta_ids.apply_map().'
               ELSE format('Apply there what insta_ids.shard_map() returns on node "%s": SELECT insta_ids.apply_map(...)', newest_on) END
    FROM jsonb_each(answers) a
    CROSS JOIN LATERAL (SELECT (a.value #>> '{map,version}')::bigint AS version) v
    WHERE v.version < newest OR a.value -> 'map' <> answers -> newest_on -> 'map'
    ORDER BY a.key;

    -- Where none of the two has one, each shard is minted for on one server.
    RETURN QUERY
    SELECT 'error', 'same_writer_slot', quote_ident(a.key),
           format('Its writer slot is %s, and that of node "%s" %s: they mint the same ids for a shard that both write to.',
               a.value ->> 'writer_slot', b.key, b.value ->> 'writer_slot'),
           'Set insta_ids.writer_slot in postgresql.conf on one of them, restart it, and take that: '
               || 'SELECT insta_ids.take_writer_slot(...)'
    FROM jsonb_each(answers) a
    JOIN jsonb_each(answers) b ON a.key < b.key
    WHERE insta_ids.slots_meet(insta_ids.slot_of(a.value ->> 'writer_slot'), insta_ids.slot_of(b.value ->> 'writer_slot'))
        AND (a.value ->> 'writer_slot', b.value ->> 'writer_slot') <> ('0/1', '0/1')
    ORDER BY a.key, b.key;
END
$$;

-- PL/Proxy

-- How it connects to each shard's server, in their order: as the role that asks, not as who moves shards. A shard on no node
-- is said to be on the first: that refuses it, and says why.
CREATE FUNCTION insta_ids.plproxy_partitions() RETURNS SETOF text
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH target AS (
        SELECT n.node, n.ord, (
            SELECT pg_catalog.string_agg(
                pg_catalog.format('%s=''%s''', p.keyword, pg_catalog.regexp_replace(p.value, '([''\\])', '\\\1', 'g')), ' ')
            FROM insta_ids.dsn_parameters(n.dsn) p WHERE p.keyword <> 'user') AS dsn
        FROM insta_ids.node n
    )
    SELECT t.dsn
    FROM pg_catalog.generate_series(0, (SELECT c.shards - 1 FROM insta_ids.config c)) s (shard)
    LEFT JOIN insta_ids.assignment a ON s.shard BETWEEN a.first AND a.last
    JOIN target t ON t.node = coalesce(a.node, (SELECT n.node FROM insta_ids.node n ORDER BY n.ord LIMIT 1))
    ORDER BY s.shard;
END;

CREATE FUNCTION insta_ids.install_plproxy(cluster text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made CONSTANT text := 'made by insta_ids.install_plproxy()';
    other regprocedure;
BEGIN
    PERFORM insta_ids.configured();
    IF NOT EXISTS (SELECT FROM pg_language l WHERE l.lanname = 'plproxy') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "plproxy" is not installed in this database',
            HINT = 'CREATE EXTENSION plproxy';
    END IF;
    SELECT p.oid INTO other
    FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace('plproxy')
        AND p.proname IN ('get_cluster_version', 'get_cluster_partitions', 'get_cluster_config')
        AND obj_description(p.oid, 'pg_proc') IS DISTINCT FROM made
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_function',
            MESSAGE = format('function %s exists already', other),
            DETAIL = 'It says what other clusters are.',
            HINT = 'Let it return what insta_ids.map and insta_ids.plproxy_partitions() have for this cluster.';
    END IF;
    IF to_regnamespace('plproxy') IS NULL THEN
        CREATE SCHEMA plproxy;
        GRANT USAGE ON SCHEMA plproxy TO PUBLIC;
    END IF;
    -- Of another cluster they return nothing, which PL/Proxy reports.
    EXECUTE format($f$
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_version(cluster_name text) RETURNS integer
            STABLE LANGUAGE sql
            RETURN (SELECT coalesce(max(m.version), 0)::integer FROM insta_ids.map m HAVING cluster_name = %1$L);
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text) RETURNS SETOF text
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT p FROM insta_ids.plproxy_partitions() p WHERE cluster_name = %1$L; END;
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(cluster_name text, OUT key text, OUT val text) RETURNS SETOF record
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT 'modular_mapping', '1' WHERE cluster_name = %1$L; END;
        COMMENT ON FUNCTION plproxy.get_cluster_version(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_partitions(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_config(text) IS %2$L;
    $f$, cluster, made);
END
$$;

-- PgDog

-- A node's lines are its server's; a schema's lead there. JSON's strings are TOML's.
CREATE FUNCTION insta_ids.export_pgdog(database text, id_columns text[] DEFAULT '{}', key_columns text[] DEFAULT '{}')
    RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
    nodes CONSTANT name[] := ARRAY(SELECT n.node FROM insta_ids.node n ORDER BY n.ord);
    lookup CONSTANT text :=
        'SELECT n.ord FROM insta_ids.assignment a JOIN insta_ids.node n ON n.node = a.node WHERE %s BETWEEN a.first AND a.last';
    next record;
    entries text[];
BEGIN
    IF (SELECT count(*) <> max(n.ord) + 1 FROM insta_ids.node n) OR nodes = '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'nodes are not numbered from 0 without a gap',
            DETAIL = 'PgDog numbers its servers like that.',
            HINT = 'Give them other numbers: insta_ids.add_node(node, dsn, ord).';
    END IF;
    entries := ARRAY[format('# Version %s of the map of insta_ids.', (SELECT coalesce(max(m.version), 0) FROM insta_ids.map m))];
    FOR next IN
        SELECT n.node, n.ord, jsonb_object_agg(p.keyword, p.value) FILTER (WHERE p.keyword IS NOT NULL) AS parameters
        FROM insta_ids.node n LEFT JOIN LATERAL insta_ids.dsn_parameters(n.dsn) p ON true
        GROUP BY n.node, n.ord ORDER BY n.ord
    LOOP
        IF coalesce(next.parameters ->> 'host', ',') ~ '[,/]' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('connection string of node "%s" does not name one host', next.node),
                DETAIL = 'PgDog connects to one host by TCP, and reads no service file.';
        END IF;
        entries := entries || concat_ws(E'\n', '[[databases]]',
            format('name = %s', to_json(database)),
            format('host = %s', next.parameters -> 'host'),
            'port = ' || (next.parameters ->> 'port'),
            'database_name = ' || (next.parameters -> 'dbname')::text,
            format('shard = %s', next.ord));
    END LOOP;
    IF id_columns || key_columns = '{}' THEN
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_schemas]]', format('database = %s', to_json(database)),
                format('name = %s', to_json(insta_ids.schema_of(s))), format('shard = %s', n.ord))
            FROM insta_ids.assignment a
            JOIN insta_ids.node n ON n.node = a.node
            CROSS JOIN generate_series(a.first, a.last) s
            ORDER BY s);
    ELSE
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_tables]]', format('database = %s', to_json(database)),
                format('column = %s', to_json(l.name)), 'data_type = "bigint"',
                format('lookup_query = %s', to_json(format(lookup, l.shard))), 'lookup_result = "shard"')
            FROM (
                SELECT i.name, format('@extschema@.id_shard($1%s)', insta_ids.layout_argument(config.layout)), i.place
                FROM unnest(id_columns) WITH ORDINALITY i (name, place)
                UNION ALL
                SELECT k.name, 'insta_ids.shard_of($1)', cardinality(id_columns) + k.place
                FROM unnest(key_columns) WITH ORDINALITY k (name, place)
            ) l (name, shard, place)
            ORDER BY l.place);
    END IF;
    RETURN array_to_string(entries, E'\n\n') || E'\n';
END
$$;

-- Privileges

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT oid::regclass::text, relname, relowner, relacl
            FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proname, proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'insta_ids'::regnamespace
        ) o (object, name, owner, acl), aclexplode(acl)
        WHERE grantee <> owner AND name IN (
            'check_nodes', 'dsn_parameters', 'export_pgdog', 'install_plproxy', 'left_writer_slot', 'percent_decoded',
            'plproxy_partitions', 'slot_of', 'slots_meet', 'take_writer_slot', 'taken_slot', 'writer', 'writer_slot')
    LOOP
        EXECUTE command;
    END LOOP;
    -- Who could make shards still can.
    PERFORM insta_ids.grant_provisioning(a.grantee::regrole)
    FROM pg_proc p, aclexplode(p.proacl) a
    WHERE p.oid = 'insta_ids.make_shard(integer, text)'::regprocedure AND a.grantee <> p.proowner;
END
$$;
GRANT EXECUTE ON FUNCTION
    insta_ids.writer_slot(), insta_ids.plproxy_partitions(), insta_ids.dsn_parameters(text), insta_ids.percent_decoded(text)
    TO PUBLIC;
GRANT SELECT ON insta_ids.writer TO PUBLIC;

-- Comments
COMMENT ON TABLE insta_ids.writer IS
    'the writer slot that this database has taken';
COMMENT ON FUNCTION insta_ids.writer_slot() IS
    'writer slot of this server: which ids are its, where several servers mint for one shard';
COMMENT ON FUNCTION insta_ids.take_writer_slot(timestamptz) IS
    'lets this database mint by the writer slot of its server, after a time up to which another server did';
COMMENT ON FUNCTION insta_ids.left_writer_slot(text) IS
    'time that ids of another writer slot, minted here before, have not reached';
COMMENT ON FUNCTION insta_ids.slot_of(text) IS
    'a writer slot from its text';
COMMENT ON FUNCTION insta_ids.slots_meet(insta_ids.writer, insta_ids.writer) IS
    'whether an id can be of both writer slots';
COMMENT ON FUNCTION insta_ids.taken_slot() IS
    'the writer slot that this database has taken, or the only one there is';
COMMENT ON FUNCTION insta_ids.check_nodes() IS
    'asks all nodes of the map, by dblink, whether they agree: on their names, the map and writer slots';
COMMENT ON FUNCTION insta_ids.dsn_parameters(text) IS
    'the parameters of a connection string of libpq';
COMMENT ON FUNCTION insta_ids.percent_decoded(text) IS
    'a part of a URI, decoded';
COMMENT ON FUNCTION insta_ids.plproxy_partitions() IS
    'how PL/Proxy connects to the server of each shard, in their order';
COMMENT ON FUNCTION insta_ids.install_plproxy(text) IS
    'makes the functions by which PL/Proxy routes a cluster by the map';
COMMENT ON FUNCTION insta_ids.export_pgdog(text, text[], text[]) IS
    'the part of PgDog''s configuration that follows the map';
