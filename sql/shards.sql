-- Shards: a schema each, with what next_id needs and every migration.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Makes what every shard has besides its migrations, as far as it is not there.
CREATE FUNCTION insta_ids.make_surface(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    layout_argument text := insta_ids.layout_argument((insta_ids.configured()).layout);
BEGIN
    IF to_regclass(format('%I.table_id_seq', schema)) IS NULL THEN
        EXECUTE format('CREATE SEQUENCE %I.table_id_seq', schema);
    END IF;
    IF to_regprocedure(format('%I.next_id()', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id() RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql'
            || ' RETURN %5$s.next_id(%2$s, %3$L::pg_catalog.regclass%4$s)',
            schema, shard, format('%I.table_id_seq', schema), layout_argument, insta_ids_internal.extension_schema());
    END IF;
    IF to_regprocedure(format('%I.next_id(regclass)', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id(seq_name regclass) RETURNS bigint'
            || ' VOLATILE PARALLEL UNSAFE LANGUAGE sql RETURN %4$s.next_id(%2$s, seq_name%3$s)',
            schema, shard, layout_argument, insta_ids_internal.extension_schema());
    END IF;
END
$$;

-- Makes a shard, or returns NULL if it is there. `path` is the search_path of who asked for it.
CREATE FUNCTION insta_ids.make_shard(shard integer, path text) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    outcome record;
BEGIN
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_moves(shard, shard), insta_ids.check_left(shard, shard);
    -- Waits for another session that is dropping it.
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = make_shard.shard FOR KEY SHARE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- The schema comes first: a row about a schema that is not there is refused.
    BEGIN
        -- Waits for another session that is making it.
        EXECUTE format('CREATE SCHEMA %I', schema);
    EXCEPTION WHEN duplicate_schema OR unique_violation THEN
        IF EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = make_shard.shard) THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END;
    INSERT INTO insta_ids_internal.shard (shard) VALUES (make_shard.shard);
    PERFORM insta_ids.make_surface(shard);
    PERFORM insta_ids_internal.check_distributed(ARRAY[shard],
        'Create the shard after SET citus.enable_schema_based_sharding = off, then call citus_schema_distribute().'::text);
    SELECT * INTO outcome FROM insta_ids.apply_migrations(shard, path, true);
    IF outcome.failed IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = outcome.code,
            MESSAGE = outcome.message,
            DETAIL = concat_ws(E'\n', nullif(outcome.detail, ''), nullif(outcome.hint, ''),
                format('It is %s of migration "%s", in shard %s.',
                    coalesce('statement ' || outcome.statement, 'a CHECK'), outcome.name, shard));
    END IF;
    RETURN schema;
END
$$;

CREATE FUNCTION insta_ids.create_shard(shard integer) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    schema pg_catalog.name;
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be made');
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_placement(shard);
    schema := insta_ids.make_shard(shard, pg_catalog.current_setting('search_path'));
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('shard %s already exists', shard),
            HINT = 'If its schema is missing, insta_ids.drop_shard() forgets it.';
    END IF;
    RETURN schema;
END
$$;

CREATE PROCEDURE insta_ids.create_shards(first integer, last integer, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    taken pg_catalog.record;
    done integer := 0;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    IF num_nulls(first, last) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'first and last shard must be given';
    END IF;
    PERFORM insta_ids.check_range(first, last, batch);
    -- Those that the map has on other nodes are theirs.
    todo := ARRAY(
        SELECT n FROM generate_series(first, last) n
        WHERE NOT EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = n)
            AND insta_ids.is_placed_here(n)
        ORDER BY n);
    SELECT n AS shard, s.nspname AS schema INTO taken
    FROM insta_ids.config c, unnest(todo) n, pg_namespace s
    WHERE s.nspname = (c.prefix || n::text)::name
        -- Another session may have made it since.
        AND NOT EXISTS (SELECT FROM insta_ids_internal.shard x WHERE x.shard = n)
    ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', taken.schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', taken.shard),
            HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
    END IF;

    CALL insta_ids.commit_batch('create_shards', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        -- The lock is a statement of its own: a statement does not see what was committed after it began.
        LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
        PERFORM insta_ids.check_placement(number), insta_ids.make_shard(number, path);
        done := done + 1;
        IF done = 1 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
        END IF;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('create_shards', cardinality(todo), done, 0);
        END IF;
    END LOOP;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE FUNCTION insta_ids.lock_schema(schema oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_schema_wrapper';

-- Refuses to drop a shard's schema on which something outside depends: as DROP ... RESTRICT would tell, if the schema were
-- one object.
CREATE FUNCTION insta_ids.check_dependents(shard integer, schema oid) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outside text;
BEGIN
    -- What depends on a part of it, and is none.
    WITH RECURSIVE parts AS (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema
            AND d.classid <> 'pg_extension'::regclass
        UNION
        SELECT d.classid, d.objid
        FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
        WHERE d.deptype <> 'n'
    )
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid) INTO outside
    FROM (SELECT 'pg_namespace'::regclass, schema UNION ALL SELECT * FROM parts) p (classid, objid)
    JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype = 'n'
    WHERE (d.classid, d.objid) NOT IN (SELECT * FROM parts)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = format('cannot drop shard %s because other objects depend on it', shard),
            DETAIL = format('One is %s.', outside),
            HINT = 'Drop them first, or use force => true to drop them with it.';
    END IF;
END
$$;

CREATE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    remains name;
    dropped oid;
    relation regclass;
BEGIN
    PERFORM insta_ids.check_moves(shard, shard);
    SELECT d.schema INTO remains FROM insta_ids_internal.moved d WHERE d.shard = drop_shard.shard FOR UPDATE;
    IF remains IS NOT NULL THEN
        UPDATE insta_ids_internal.moved d SET schema = NULL WHERE d.shard = drop_shard.shard;
        schema := remains;
    ELSE
        DELETE FROM insta_ids_internal.fence f WHERE f.shard = drop_shard.shard;
        DELETE FROM insta_ids_internal.shard s WHERE s.shard = drop_shard.shard;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('shard %s does not exist', shard);
        END IF;
        -- Another session may have offered the shard before this one had its row.
        PERFORM insta_ids.check_moves(shard, shard);
        DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = drop_shard.shard;
    END IF;
    -- Only now: who had its row before may have dropped it, and made it anew.
    dropped := to_regnamespace(quote_ident(schema));
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        PERFORM insta_ids.check_isolation('whether a shard is empty cannot be told');
        -- Nothing is made in it from here on.
        PERFORM insta_ids.lock_schema(dropped);
        -- Partitions and heirs in other schemas go with it, too.
        FOR relation IN
            WITH RECURSIVE tree AS (
                SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped
                UNION
                SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
            )
            SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.oid WHERE c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            PERFORM insta_ids_internal.lock_relation(relation, 'ACCESS EXCLUSIVE');
            IF remains IS NULL AND insta_ids_internal.has_rows(relation) THEN
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

CREATE VIEW insta_ids.shards AS
SELECT s.shard, s.schema, a.node,
       CASE
           WHEN s.state = 'moved' THEN s.state
           WHEN n.oid IS NULL THEN 'missing'
           WHEN f.shard IS NULL THEN 'active'
           WHEN NOT f.is_closed THEN 'moving'
           WHEN v.step IN ('prepared', 'copying') THEN 'arriving'
           ELSE 'fenced'
       END AS state,
       coalesce(m.applied, 0) AS applied, t.migrations - coalesce(m.tried, 0) AS pending,
       coalesce(m.tried - m.applied, 0) AS failed,
       coalesce(r.tables, 0) AS tables, r.rows, coalesce(r.bytes, 0) AS bytes
FROM (
    SELECT s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema, NULL AS state
    FROM insta_ids_internal.shard s
    UNION ALL
    SELECT d.shard, d.schema, 'moved' FROM insta_ids_internal.moved d WHERE d.schema IS NOT NULL
) s
LEFT JOIN insta_ids_internal.assignment a ON s.shard BETWEEN a.first AND a.last
LEFT JOIN insta_ids_internal.fence f ON f.shard = s.shard
LEFT JOIN insta_ids_internal.move v ON s.shard = ANY (v.shards)
CROSS JOIN (SELECT count(*) AS migrations FROM insta_ids_internal.migration) t
LEFT JOIN (
    SELECT a.shard, count(*) AS tried, count(*) FILTER (WHERE a.message IS NULL) AS applied
    FROM insta_ids_internal.shard_migration a GROUP BY a.shard
) m ON m.shard = s.shard
LEFT JOIN pg_namespace n ON n.nspname = s.schema
-- As of the last VACUUM or ANALYZE of each table, as pg_class has it.
LEFT JOIN (
    SELECT c.relnamespace,
           count(*) FILTER (WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition) AS tables,
           sum(c.reltuples) FILTER (WHERE c.relkind IN ('r', 'f') AND c.reltuples >= 0)::bigint AS rows,
           sum((c.relpages + coalesce(o.relpages, 0))::bigint * current_setting('block_size')::bigint)::bigint AS bytes
    FROM pg_class c
    LEFT JOIN pg_class o ON o.oid = c.reltoastrelid
    GROUP BY c.relnamespace
) r ON r.relnamespace = n.oid;

-- Privileges on the database, to make schemas in it, are not among them.
CREATE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA insta_ids_internal TO %s', role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA insta_ids_internal TO %s', role);
    EXECUTE format('GRANT INSERT, DELETE ON insta_ids.partitioned TO %s', role);
    EXECUTE format('GRANT INSERT ON insta_ids_internal.config TO %s', role);
    EXECUTE format(
        'GRANT INSERT, UPDATE, DELETE'
        || ' ON insta_ids_internal.shard, insta_ids_internal.migration, insta_ids_internal.shard_migration,'
        || ' insta_ids_internal.work, insta_ids_internal.node, insta_ids_internal.assignment, insta_ids_internal.map,'
        || ' insta_ids_internal.fence, insta_ids_internal.move, insta_ids_internal.moved TO %s', role);
    EXECUTE format('GRANT INSERT ON insta_ids_internal.ended_move TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.migration_status, insta_ids.progress, insta_ids.moves TO %s', role);
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
        || ' insta_ids.objects_of, insta_ids.repair_statement, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.is_published, insta_ids.read_call, insta_ids.write_function, insta_ids.quoted_list,'
        || ' insta_ids.call_function, insta_ids_internal.id_seq, insta_ids.function_class, insta_ids.calling_role,'
        || ' insta_ids.taken_values, insta_ids.ask, insta_ids.call_arguments, insta_ids.measure_clock,'
        || ' insta_ids.layout_of, insta_ids.ask_function, insta_ids.probe_sequence, insta_ids.try_function,'
        || ' insta_ids.rewrite_function,'
        || ' insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_schema_name, insta_ids.require_adoptable,'
        || ' insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.create_partitions, insta_ids.drop_partitions, insta_ids.partitions, insta_ids.claim_shard, insta_ids.tell_of_dependents, insta_ids.unidentified_tables, insta_ids.check_map,'
        || ' insta_ids.check_dependents, insta_ids.check_left, insta_ids.is_placed_here, insta_ids.check_placement,'
        || ' insta_ids.own_node, insta_ids.forget_map, insta_ids.check_dsn, insta_ids.add_node, insta_ids.drop_node,'
        || ' insta_ids.check_node, insta_ids.set_assignments, insta_ids.assign, insta_ids.apply_map,'
        || ' insta_ids.taken_slot, insta_ids.check_writer,'
        || ' insta_ids.refuse_write, insta_ids.lock_all, insta_ids.check_inheritance, insta_ids.close_shards,'
        || ' insta_ids.open_shards, insta_ids.claim, insta_ids.fence, insta_ids.unfence, insta_ids.check_moves,'
        || ' insta_ids.open_move, insta_ids.move_outcome, insta_ids.commit_durably, insta_ids.check_movable,'
        || ' insta_ids.objects_json, insta_ids.partitions_json, insta_ids.relations_of, insta_ids.published_tables,'
        || ' insta_ids.move_offer, insta_ids.move_slot, insta_ids.move_lag, insta_ids.move_slots_lost,'
        || ' insta_ids.move_fence, insta_ids.move_mark, insta_ids.assign_moved, insta_ids.move_finish,'
        || ' insta_ids.move_withdraw, insta_ids.move_hashes,'
        || ' insta_ids_internal.wait_ms, insta_ids_internal.steady_ms, insta_ids_internal.timeline,'
        || ' insta_ids_internal.check_own_move, insta_ids_internal.slot_of, insta_ids_internal.hint_to_abort,'
        || ' insta_ids_internal.check_publication, insta_ids_internal.drop_slots, insta_ids_internal.fence_offer,'
        || ' insta_ids_internal.move_state, insta_ids_internal.connected_standbys, insta_ids_internal.standby_behind,'
        || ' insta_ids_internal.partition_key, insta_ids_internal.is_in_doubt, insta_ids_internal.open_fence, insta_ids_internal.row_hashes TO %s', role);
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
