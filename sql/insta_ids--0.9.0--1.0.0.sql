-- From 0.9.0 to 1.0.0: names, bad cases, and words of errors.

DO $$
BEGIN
    IF insta_ids.is_older(insta_ids.library_version(), '1.0.0') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'the server still runs an older library of insta_ids',
            HINT = 'Restart the server.';
    END IF;
END
$$;

ALTER FUNCTION insta_ids.check_heirs(integer[]) RENAME TO check_inheritance;
ALTER FUNCTION insta_ids.prepare_move(jsonb, text) RENAME TO prepare_shards;
ALTER FUNCTION insta_ids.mending(text, text, text, text, text, name, integer) RENAME TO repair_statement;
-- What a literal is depends on standard_conforming_strings.
ALTER FUNCTION insta_ids.statements(text) STABLE;

-- Partitions

CREATE OR REPLACE FUNCTION insta_ids.create_partitions(
        parent regclass, every interval, first timestamptz, last timestamptz,
        timezone text DEFAULT current_setting('TimeZone'), layout @extschema@.id_layout DEFAULT NULL)
    RETURNS SETOF regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From PostgreSQL 17 on there are infinite ones, without parts.
    finite interval := CASE WHEN isfinite(every) THEN every END;
    months integer := extract(year FROM finite) * 12 + extract(month FROM finite);
    days integer := extract(day FROM finite);
    ms numeric := extract(epoch FROM finite - make_interval(months => months, days => days)) * 1000;
    remembered insta_ids.partitioned;
    epoch timestamptz;
    facts record;
    there int8range[];
    pending record;
    zone text;
    origin timestamp := '2001-01-01';
    passed integer;
    local timestamp;
    lo timestamptz;
    hi timestamptz;
    bounds int8range;
    suffix text;
    name text;
    partition text;
    other record;
BEGIN
    -- Not STRICT, for the layout.
    IF num_nulls(parent, every, first, last, timezone) > 0 THEN
        RETURN;
    END IF;
    PERFORM insta_ids.check_isolation('partitions cannot be created');
    IF (CASE
            WHEN months > 0 THEN days = 0 AND ms = 0
            WHEN days > 0 THEN months = 0 AND ms = 0
            ELSE months = 0 AND days = 0 AND ms > 0 AND ms < 86400000 AND ms = trunc(ms)
        END) IS NOT TRUE
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('interval "%s" is not a length of partitions', every),
            DETAIL = 'Partitions are whole months long, or whole days, or less than a day and whole milliseconds.';
    ELSIF first > last THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'first is later than last',
            DETAIL = format('They are %s and %s.', first, last);
    END IF;
    -- Refuses what is no such parent.
    PERFORM insta_ids.partitions(parent);

    -- What ATTACH PARTITION takes: writers and readers go on, other calls wait, and find the partitions.
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent);

    SELECT c.relname, n.nspname, t.spcname, m.amname, k.attname AS key,
           p.partdefid::regclass AS rest, d.relname AS rest_name, pg_get_userbyid(c.relowner) AS owner
    INTO facts
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_partitioned_table p ON p.partrelid = c.oid
    JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = p.partattrs[0]
    LEFT JOIN pg_class d ON d.oid = p.partdefid
    LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
    LEFT JOIN pg_am m ON m.oid = c.relam
    WHERE c.oid = parent;

    SELECT * INTO remembered FROM insta_ids.partitioned p WHERE p.parent = create_partitions.parent;
    IF NOT FOUND THEN
        IF upper(timezone) NOT IN ('UTC', 'UCT', 'GMT', 'ZULU')
            AND EXISTS (SELECT FROM pg_timezone_abbrevs a WHERE a.abbrev = upper(timezone))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('time zone "%s" is an abbreviation', timezone),
                DETAIL = 'As the TimeZone of a session it can be a region, but here it would always be the same offset.',
                HINT = 'Name a region, such as Europe/Berlin.';
        END IF;
        DELETE FROM insta_ids.partitioned p WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.parent);
        INSERT INTO insta_ids.partitioned VALUES (parent, timezone, coalesce(layout, 'instagram'))
        RETURNING * INTO remembered;
    ELSIF lower(timezone) NOT IN (lower(remembered.timezone), lower(current_setting('TimeZone'))) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('partitions of "%s" are made in time zone "%s", not in "%s"',
                facts.relname, remembered.timezone, timezone),
            DETAIL = 'The time zone of the first call holds for all later ones.',
            HINT = 'Leave the time zone out.';
    ELSIF layout OPERATOR(@extschema@.<>) remembered.layout THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('ids of "%s" have the layout "%s", not "%s"', facts.relname, remembered.layout, layout),
            DETAIL = 'The layout of the first call holds for all later ones.',
            HINT = 'Leave the layout out.';
    END IF;
    timezone := remembered.timezone;
    layout := remembered.layout;

    epoch := @extschema@.id_time(0::bigint, layout);
    IF ms > 0 AND @extschema@.id_min(epoch + every, layout) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('interval "%s" is shorter than the unit of layout "%s"', every, layout);
    END IF;
    -- Refuses what ids do not hold, before anything is made.
    PERFORM @extschema@.id_min(first, layout), @extschema@.id_min(last, layout);
    there := ARRAY(SELECT p.ids FROM insta_ids.partitions(parent) p);
    -- There can be one at most.
    SELECT c.relname, p.ids INTO pending
    FROM insta_ids.partitions(parent) p
    JOIN pg_inherits h ON h.inhrelid = p.partition AND h.inhdetachpending
    JOIN pg_class c ON c.oid = p.partition;

    -- Months and days are counted in local time, what is shorter in time that passes.
    IF ms > 0 THEN
        zone := 'UTC';
        origin := origin AT TIME ZONE timezone AT TIME ZONE zone;
    ELSE
        zone := timezone;
    END IF;
    local := first AT TIME ZONE zone;
    IF months > 0 THEN
        passed := (extract(year FROM local) - 2001) * 12 + extract(month FROM local) - 1;
        local := origin + make_interval(months => passed - passed % months);
    ELSE
        local := date_bin(every, local, origin);
    END IF;

    -- One early: where clocks show a midnight twice, the day begins at the second.
    local := local - every;
    LOOP
        lo := greatest(local AT TIME ZONE zone, epoch);
        EXIT WHEN lo >= last;
        suffix := to_char(local, CASE
            WHEN months > 0 THEN '_YYYY_MM'
            WHEN days > 0 THEN '_YYYY_MM_DD'
            WHEN ms % 60000 = 0 THEN '_YYYY_MM_DD_HH24MI"z"'
            ELSE '_YYYY_MM_DD_HH24MISSMS"z"'
        END);
        local := local + every;
        hi := local AT TIME ZONE zone;
        CONTINUE WHEN hi <= first;
        bounds := int8range(@extschema@.id_min(lo, layout), @extschema@.id_min(hi, layout));
        IF bounds && pending.ids THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('partition "%s" is being detached', pending.relname),
                HINT = 'Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.';
        END IF;
        -- Empty is a day that a zone left out when it went over the date line, and what is within a unit of the layout.
        CONTINUE WHEN isempty(bounds) OR bounds = ANY (there);

        -- A cast to name cuts between characters.
        name := substr((suffix || facts.relname)::name, length(suffix) + 1) || suffix;
        IF bounds && ANY (there) THEN
            SELECT c.relname, p.times INTO other
            FROM insta_ids.partitions(parent) p JOIN pg_class c ON c.oid = p.partition
            WHERE p.ids && bounds ORDER BY p.ids LIMIT 1;
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_object_definition',
                MESSAGE = format('partition "%s" would overlap partition "%s"', name, other.relname),
                DETAIL = format('The new one is from %s to %s, the other from %s to %s.', lo, hi,
                    coalesce(lower(other.times)::text, 'MINVALUE'), coalesce(upper(other.times)::text, 'MAXVALUE')),
                HINT = 'Give the length that the partitions there have, or begin where they end.';
        END IF;
        partition := format('%I.%I', facts.nspname, name);
        -- Not PARTITION OF, for which nobody else could use the parent. Identity and indexes come with ATTACH.
        EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED', partition, parent)
            || ' INCLUDING STORAGE INCLUDING COMPRESSION)'
            || coalesce(' USING ' || quote_ident(facts.amname), '')
            || coalesce(' TABLESPACE ' || quote_ident(facts.spcname), '');
        IF facts.owner <> current_user THEN
            EXECUTE format('ALTER TABLE %s OWNER TO %I', partition, facts.owner);
        END IF;
        BEGIN
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
                parent, partition, lower(bounds), upper(bounds));
        EXCEPTION WHEN check_violation THEN
            EXECUTE format('SELECT count(*) AS rows, min(%1$I) AS id FROM %2$s WHERE %1$I >= $1 AND %1$I < $2',
                facts.key, facts.rest)
            INTO other USING lower(bounds), upper(bounds);
            IF other.rows = 0 THEN
                -- Row security hides them.
                RAISE;
            END IF;
            RAISE EXCEPTION USING
                ERRCODE = 'check_violation',
                MESSAGE = format('default partition "%s" has rows of the new partition "%s"', facts.rest_name, name),
                DETAIL = format('It has %s of them; the first has the id %s, of %s.',
                    other.rows, other.id, @extschema@.id_time(other.id, layout)),
                HINT = 'Move them out of it, create the partition, and insert them anew.';
        END;
        RETURN NEXT partition::regclass;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.drop_partitions(parent regclass, before timestamptz) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout @extschema@.id_layout;
    bound bigint;
    referred boolean;
    dropped record;
BEGIN
    PERFORM insta_ids.check_isolation('partitions cannot be dropped');
    -- Refuses what is no such parent.
    PERFORM insta_ids.partitions(parent);
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent);
    SELECT p.layout INTO layout FROM insta_ids.partitioned p WHERE p.parent = drop_partitions.parent;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format(
                'time zone and layout of "%s" are not known', (SELECT c.relname FROM pg_class c WHERE c.oid = parent)),
            HINT = 'Call insta_ids.create_partitions first, with the layout of its ids.';
    END IF;
    -- Before the first id there is nothing to drop.
    bound := @extschema@.id_min(greatest(before, @extschema@.id_time(0::bigint, layout)), layout);
    referred := EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'f' AND k.confrelid = parent);
    FOR dropped IN
        SELECT p.partition::text AS name, c.relname, c.relkind, h.inhdetachpending AS pending
        FROM insta_ids.partitions(parent) p
        JOIN pg_class c ON c.oid = p.partition
        JOIN pg_inherits h ON h.inhrelid = p.partition
        WHERE NOT lower_inf(p.ids) AND upper(p.ids) <= bound
        ORDER BY p.ids
    LOOP
        IF dropped.pending THEN
            -- Who detaches it may want to keep it.
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('partition "%s" is being detached', dropped.relname),
                HINT = 'Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.';
        END IF;
        IF referred THEN
            -- Foreign keys depend on each partition; detaching checks that no row does.
            EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', parent, dropped.name);
        END IF;
        EXECUTE format('DROP %s %s', CASE dropped.relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, dropped.name);
        RETURN NEXT dropped.name;
    END LOOP;
END
$$;

-- Long work, migrations and shards

-- How many locks the server has for sure, as it reckons: for each process that can have a transaction, and each prepared
-- transaction, so many.
CREATE FUNCTION insta_ids.lock_capacity() RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.current_setting('max_locks_per_transaction')::bigint * pg_catalog.sum(s.setting::bigint)::bigint
    FROM pg_catalog.pg_settings s
    WHERE s.name = ANY (ARRAY[
        'max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
        -- Its slots, from PostgreSQL 18 on.
        CASE WHEN pg_catalog.current_setting('server_version_num')::integer < 180000 THEN 'autovacuum_max_workers'
            ELSE 'autovacuum_worker_slots' END]);
END;

-- Refuses a batch for which the server has too few locks, after the first shard of it.
CREATE OR REPLACE FUNCTION insta_ids.check_locks(batch integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room CONSTANT bigint := insta_ids.lock_capacity();
    own bigint;
    others bigint;
BEGIN
    SELECT count(*) FILTER (WHERE pid = pg_backend_pid()), count(*) FILTER (WHERE pid IS DISTINCT FROM pg_backend_pid())
    INTO own, others
    FROM pg_locks WHERE NOT fastpath;
    -- One by itself has just been done.
    IF batch > 1 AND own * batch > room - others THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = format('batch of %s shards needs more locks than the server has', batch),
            DETAIL = format('The first took %s; the server has %s, of which others hold %s.', own, room, others),
            HINT = format('Use a batch of at most %s, or raise "max_locks_per_transaction".',
                greatest(1, (room - others) / own));
    END IF;
END
$$;

-- Columns of shards whose default calls next_id, itself or through other functions, with the CHECK that keeps them to the
-- shard, if there is one: all, or those that this transaction gave that default, not before its (sub)transaction
-- `since`. What an heir has from a parent that is among them is left out.
CREATE OR REPLACE FUNCTION insta_ids.minting_columns(shards integer[], since xid DEFAULT NULL)
    RETURNS TABLE (shard integer, relation regclass, "column" name, expression text, "check" name)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Planning takes longer than running, so it is kept short: joined as it is written, once for all shards.
    SET join_collapse_limit = 1 SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    config CONSTANT insta_ids.config := insta_ids.configured();
    layout_argument CONSTANT text := insta_ids.layout_argument(config.layout);
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    WITH minting_columns AS (
        SELECT s.shard, c.oid AS relation, a.attname, e.expression, k.conname
        FROM unnest(shards) s (shard)
        JOIN pg_namespace n ON n.nspname = (config.prefix || s.shard::text)::name
        JOIN pg_depend m
            ON m.refclassid = 'pg_namespace'::regclass AND m.refobjid = n.oid AND m.classid = 'pg_class'::regclass
        JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'p', 'f')
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        -- Aggregates, as the planner cannot begin with them: while shards are made, it knows nothing of how many
        -- columns there are.
        CROSS JOIN LATERAL (
            WITH RECURSIVE used AS (
                SELECT 'pg_attrdef'::regclass::oid AS classid, d.oid AS objid
                UNION
                SELECT f.refclassid, f.refobjid FROM used u
                JOIN pg_depend f ON f.classid = u.classid AND f.objid = u.objid AND f.refclassid = 'pg_proc'::regclass
            )
            SELECT bool_or(u.classid = 'pg_proc'::regclass AND u.objid = ANY (minting)) AS mints FROM used u
        ) f
        CROSS JOIN LATERAL format('(@extschema@.id_shard(%s%s) = %s)',
            format(CASE t.typtype WHEN 'd' THEN '(%I)::bigint' ELSE '%I' END, a.attname), layout_argument, s.shard)
            e (expression)
        CROSS JOIN LATERAL (
            SELECT min(k.conname)::name AS conname FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'c' AND pg_get_expr(k.conbin, k.conrelid) = e.expression
        ) k
        -- The row is of this transaction if that is in progress and it can be seen nevertheless.
        WHERE CASE
                WHEN since IS NULL THEN true
                WHEN age(d.xmin) <= age(since)
                THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(d.xmin))::text::xid8) = 'in progress'
                ELSE false
            END
            AND f.mints
    )
    SELECT m.shard, m.relation::regclass, m.attname, m.expression, m.conname
    FROM minting_columns m
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits h JOIN minting_columns p ON p.relation = h.inhparent AND p.attname = m.attname
        WHERE h.inhrelid = m.relation);
END
$$;

-- The migration of this name, which must be one that cannot run in a transaction.
CREATE OR REPLACE FUNCTION insta_ids.migration_by_script(name text) RETURNS insta_ids.migration
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids.migration;
BEGIN
    SELECT * INTO migration FROM insta_ids.migration m WHERE m.name = migration_by_script.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('migration "%s" does not exist', left(name, 255));
    ELSIF migration.transactional THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" runs in transactions', name),
            HINT = 'Apply it: CALL insta_ids.migrate().';
    END IF;
    RETURN migration;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.create_shard(shard integer) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    schema pg_catalog.name;
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be made');
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
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

-- Privileges on the database, to make schemas in it, are not among them.
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
        || ' insta_ids.objects_of, insta_ids.repair_statement, insta_ids.in_shard, insta_ids.essence,'
        || ' insta_ids.minted_shards, insta_ids.literal_of, insta_ids.not_read, insta_ids.id_functions, insta_ids.id_sequences,'
        || ' insta_ids.last_values, insta_ids.budget, insta_ids.server_budget, insta_ids.sequence_budget,'
        || ' insta_ids.read_parts, insta_ids.check_differences, insta_ids.check_tables, insta_ids.time_not_reached,'
        || ' insta_ids.layout_argument, insta_ids.make_surface, insta_ids.adopt,'
        || ' insta_ids.release, insta_ids.read_function, insta_ids.write_function, insta_ids.quoted_list,'
        || ' insta_ids.rewrite_function, insta_ids.lock_sequence, insta_ids.lock_foreign_table,'
        || ' insta_ids.named_sequence, insta_ids.minting_functions,'
        || ' insta_ids.filled_columns, insta_ids.native_defaults, insta_ids.minting_sequences,'
        || ' insta_ids.minting_state, insta_ids.stop_minting, insta_ids.await_clock, insta_ids.await_ids,'
        || ' insta_ids.adoption_reasons, insta_ids.check_schema_name, insta_ids.check_adoption,'
        || ' insta_ids.check_future, insta_ids.check_release,'
        || ' insta_ids.claim_shard, insta_ids.tell_of_dependents, insta_ids.unidentified_tables, insta_ids.check_map,'
        || ' insta_ids.check_dependents, insta_ids.check_left, insta_ids.is_placed_here, insta_ids.check_placement,'
        || ' insta_ids.own_node, insta_ids.forget_map, insta_ids.check_dsn, insta_ids.add_node, insta_ids.drop_node,'
        || ' insta_ids.check_node, insta_ids.set_assignments, insta_ids.assign, insta_ids.apply_map,'
        || ' insta_ids.taken_slot, insta_ids.check_writer,'
        || ' insta_ids.refuse_write, insta_ids.lock_all, insta_ids.check_inheritance, insta_ids.close_shards,'
        || ' insta_ids.open_shards, insta_ids.claim, insta_ids.fence, insta_ids.unfence, insta_ids.check_moves,'
        || ' insta_ids.open_move, insta_ids.move_outcome, insta_ids.commit_durably, insta_ids.check_movable,'
        || ' insta_ids.objects_json, insta_ids.partitions_json, insta_ids.relations_of, insta_ids.published_tables,'
        || ' insta_ids.move_offer, insta_ids.move_slot, insta_ids.move_lag, insta_ids.move_slots_lost,'
        || ' insta_ids.move_fence, insta_ids.move_mark, insta_ids.drop_slot, insta_ids.assign_moved,'
        || ' insta_ids.move_finish, insta_ids.move_withdraw, insta_ids.move_hashes TO %s', role);
END
$$;

-- The map, fences, moves and engines

-- Refuses a shard that the map has on another node.
CREATE OR REPLACE FUNCTION insta_ids.check_placement(shard integer) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name;
BEGIN
    IF NOT insta_ids.is_placed_here(shard) THEN
        SELECT a.node INTO node FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last;
        RAISE EXCEPTION USING
            ERRCODE = 'read_only_sql_transaction',
            MESSAGE = format('shard %s is not on this node', shard),
            DETAIL = format('By version %s of the map it is on %s; this is node "%s".',
                (SELECT m.version FROM insta_ids.map m), coalesce('node "' || node || '"', 'no node'),
                insta_ids.this_node());
    END IF;
    SELECT d.to_node INTO node FROM insta_ids.moved d WHERE d.shard = check_placement.shard AND d.schema IS NULL;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', shard, node),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s.', shard);
    END IF;
END
$$;

-- Refuses shards that have moved away, and of which something is still here.
CREATE OR REPLACE FUNCTION insta_ids.check_left(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remains insta_ids.moved;
BEGIN
    SELECT * INTO remains FROM insta_ids.moved d
    WHERE d.shard BETWEEN first AND last AND d.schema IS NOT NULL ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('what is left of shard %s is still here', remains.shard),
            DETAIL = format('It is in schema "%s", from when the shard moved to node "%s".', remains.schema, remains.to_node),
            HINT = format('Drop it: SELECT insta_ids.drop_shard(%s).', remains.shard);
    END IF;
END
$$;

-- Gives the map these assignments instead of its own. What is open to writers here stays on this node: another one may
-- have it after it was moved there.
CREATE OR REPLACE FUNCTION insta_ids.set_assignments(firsts integer[], lasts integer[], nodes name[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
    taken record;
    left_here insta_ids.moved;
BEGIN
    SELECT d.* INTO left_here
    FROM insta_ids.moved d
    JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON d.shard BETWEEN a.first AND a.last AND a.node = here
    ORDER BY d.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s has moved to node "%s"', left_here.shard, left_here.to_node),
            DETAIL = format('The map would have it on node "%s" again, which is this one.', here),
            HINT = format('It comes back by a move. If that node is lost for good: DELETE FROM insta_ids.moved WHERE shard = %s.',
                left_here.shard);
    END IF;
    SELECT s.shard, a.node INTO taken
    FROM insta_ids.shard s
    LEFT JOIN unnest(firsts, lasts, nodes) a (first, last, node) ON s.shard BETWEEN a.first AND a.last
    WHERE a.node IS DISTINCT FROM here AND here IS NOT NULL
        AND NOT EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s is here, and open to writers', taken.shard),
            DETAIL = format('The map would have it on %s; this is node "%s".',
                coalesce('node "' || taken.node || '"', 'no node'), here),
            HINT = 'Move it with insta_ids.move_shards(), or fence it first: insta_ids.fence().';
    END IF;
    DELETE FROM insta_ids.assignment;
    INSERT INTO insta_ids.assignment
    WITH ranges AS (
        SELECT a.first, a.last, a.node,
               lag(a.node) OVER n IS NOT DISTINCT FROM a.node AND lag(a.last) OVER n = a.first - 1 AS goes_on
        FROM unnest(firsts, lasts, nodes) a (first, last, node)
        WINDOW n AS (ORDER BY a.first)
    ), numbered AS (
        SELECT r.*, count(*) FILTER (WHERE NOT coalesce(r.goes_on, false)) OVER (ORDER BY r.first) AS number FROM ranges r
    )
    SELECT min(n.first), max(n.last), n.node FROM numbered n GROUP BY n.number, n.node;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.apply_map(map jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
    own bigint;
BEGIN
    PERFORM insta_ids.check_isolation('a map cannot be applied');
    IF map -> 'format' IS DISTINCT FROM '1' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not of format 1',
            HINT = 'Take it from insta_ids.shard_map() of a server with this version of insta_ids.';
    ELSIF (
        SELECT count(*) FROM (VALUES
            ('version', 'number'), ('shards', 'number'), ('prefix', 'string'), ('layout', 'string'), ('nodes', 'array'),
            ('ranges', 'array')) k (key, type)
        WHERE jsonb_typeof(map -> k.key) = k.type) < 6
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map is not complete',
            DETAIL = 'It must have a version, shards, prefix, layout, nodes and ranges.';
    END IF;
    LOCK TABLE insta_ids.node, insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids.config) THEN
        PERFORM insta_ids.init((map ->> 'shards')::integer, (map ->> 'prefix')::name, (map ->> 'layout')::@extschema@.id_layout);
    END IF;
    config := insta_ids.configured();
    own := coalesce((SELECT m.version FROM insta_ids.map m), 0);
    IF (config.shards, config.prefix, config.layout::text)
        IS DISTINCT FROM ((map ->> 'shards')::integer, (map ->> 'prefix')::name, map ->> 'layout')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'map is of other shards than this database''s',
            DETAIL = format('It has %s, with the prefix "%s" and the layout "%s"; here are %s, with "%s" and "%s".',
                map ->> 'shards', map ->> 'prefix', map ->> 'layout', config.shards, config.prefix, config.layout);
    ELSIF (map ->> 'version')::bigint <= own THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'map is not newer than this server''s',
            DETAIL = format('Its version is %s, and here is %s.', map ->> 'version', own);
    ELSIF map -> 'ranges' = '[]' THEN
        -- As without a map, each server would have all of them.
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'map has no shard on any node',
            HINT = 'Say where they are, on the server that it comes from: SELECT insta_ids.assign(first, last, node).';
    END IF;

    DELETE FROM insta_ids.node;
    INSERT INTO insta_ids.node
    SELECT n.node, n.dsn, n.ord FROM jsonb_to_recordset(map -> 'nodes') n (node name, dsn text, ord integer);
    PERFORM insta_ids.check_range((r ->> 0)::integer, (r ->> 1)::integer, 1), insta_ids.check_node(r ->> 2)
    FROM jsonb_array_elements(map -> 'ranges') r;
    PERFORM insta_ids.set_assignments(
        coalesce(array_agg((r ->> 0)::integer), '{}'), coalesce(array_agg((r ->> 1)::integer), '{}'),
        coalesce(array_agg((r ->> 2)::name), '{}'))
    FROM jsonb_array_elements(map -> 'ranges') r;
    UPDATE insta_ids.map m SET version = (apply_map.map ->> 'version')::bigint;
END
$$;

-- What LOCK TABLE refuses to lock, in SHARE ROW EXCLUSIVE MODE.
CREATE FUNCTION insta_ids.lock_foreign_table("table" oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_foreign_table_wrapper';

-- Locks tables, in this mode, and sequences until the transaction ends, when nobody is using them. Who comes meanwhile
-- waits for a tenth of a second at most, and then goes on while this waits: so nobody waits long; and of two that wait for
-- each other it is this that gives way, before the other is told of a deadlock. Autovacuum gives way to this.
CREATE OR REPLACE FUNCTION insta_ids.lock_all(tables regclass[], mode text, sequences regclass[], what text, lock_timeout text)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    patience CONSTANT interval := current_setting('deadlock_timeout');
    longest CONSTANT interval := least(interval '100 ms', patience / 2);
    -- NULL if it never does.
    gives_up_at timestamptz;
    attempt_ends_at timestamptz;
    wanted regclass;
    -- Where autovacuum is.
    vacuumed regclass;
BEGIN
    PERFORM set_config('lock_timeout', lock_timeout, true);
    gives_up_at := (
        SELECT clock_timestamp() + nullif(s.setting, '0')::integer * interval '1 ms'
        FROM pg_settings s WHERE s.name = 'lock_timeout');
    LOOP
        BEGIN
            -- Autovacuum gives way to who has waited for deadlock_timeout: so this does, in a mode that keeps no writer
            -- waiting; but not for twice as long, or of two that wait for each other the other could have to give way.
            IF vacuumed IS NOT NULL THEN
                PERFORM set_config('lock_timeout', extract(epoch FROM
                    greatest('1 ms', least(1.5 * patience, gives_up_at - clock_timestamp()))) || 's', true);
                EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', vacuumed);
            END IF;
            attempt_ends_at := clock_timestamp() + longest;
            FOREACH wanted IN ARRAY tables || sequences LOOP
                PERFORM set_config('lock_timeout', extract(epoch FROM
                    greatest('1 ms', least(longest, attempt_ends_at - clock_timestamp()))) || 's', true);
                IF wanted = ANY (sequences) THEN
                    PERFORM insta_ids.lock_sequence(wanted);
                ELSIF (SELECT c.relkind FROM pg_class c WHERE c.oid = wanted) = 'f' THEN
                    PERFORM insta_ids.lock_foreign_table(wanted);
                ELSE
                    EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', wanted, mode);
                END IF;
            END LOOP;
            RETURN;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN NULL;
        END;
        IF clock_timestamp() > gives_up_at THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('could not lock the tables and sequences of %s', what),
                DETAIL = format('%s is in use%s.', wanted, (
                    SELECT ' by ' || string_agg(DISTINCT coalesce('process ' || l.pid,
                        format('prepared transaction "%s"', x.gid)), ', ')
                    FROM pg_locks l
                    -- A transaction that is prepared has no process, and holds its own number.
                    LEFT JOIN pg_locks t
                        ON l.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction
                    LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                    WHERE l.locktype = 'relation' AND l.relation = wanted AND l.granted
                        AND l.pid IS DISTINCT FROM pg_backend_pid()
                        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))),
                HINT = 'Call again when long transactions have ended, or with a longer lock_timeout.';
        END IF;
        -- Of all who are in a database, autovacuum alone has no user. Its backend_type not everybody sees.
        PERFORM pg_stat_clear_snapshot();
        vacuumed := (
            SELECT l.relation FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.usesysid IS NULL
            WHERE l.locktype = 'relation' AND l.relation = wanted AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
                AND a.datname = current_database() LIMIT 1);
        PERFORM pg_sleep(0.02 + 0.08 * random());
    END LOOP;
END
$$;

-- Tables that a statement on another one writes to, where only one of the two is of these shards: a fence stops that one
-- only.
CREATE OR REPLACE FUNCTION insta_ids.check_inheritance(shards integer[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shared record;
BEGIN
    SELECT coalesce(c.shard, p.shard) AS shard, i.inhrelid::regclass AS child, i.inhparent::regclass AS parent INTO shared
    FROM pg_inherits i
    JOIN pg_class cc ON cc.oid = i.inhrelid AND cc.relkind IN ('r', 'p', 'f')
    JOIN pg_class pc ON pc.oid = i.inhparent
    LEFT JOIN insta_ids.shard_schema c ON c.oid = cc.relnamespace AND c.shard = ANY (shards)
    LEFT JOIN insta_ids.shard_schema p ON p.oid = pc.relnamespace AND p.shard = ANY (shards)
    WHERE c.shard IS DISTINCT FROM p.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s shares rows with another schema', shared.shard),
            DETAIL = format('Table %s is a partition or child of %s.', shared.child, shared.parent),
            HINT = 'Detach the partition, or end the inheritance.';
    END IF;
END
$$;

-- Closes shards to all who write, when those who do have ended. Whoever calls it has refused old snapshots.
CREATE OR REPLACE FUNCTION insta_ids.close_shards(shards integer[], to_node name, lock_timeout text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next insta_ids.shard_relation;
BEGIN
    PERFORM insta_ids.check_inheritance(shards), insta_ids.commit_durably();
    PERFORM insta_ids.lock_all(
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation),
        'SHARE ROW EXCLUSIVE',
        ARRAY(SELECT r.relation FROM insta_ids.shard_relation r
              WHERE r.shard = ANY (shards) AND r.kind = 'S' ORDER BY r.relation),
        CASE cardinality(shards) WHEN 1 THEN format('shard %s', shards[1])
            ELSE format('shards from %s to %s', shards[1], shards[cardinality(shards)]) END,
        lock_timeout);
    -- While it is not there, its own DDL is not refused.
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT * FROM insta_ids.shard_relation r WHERE r.shard = ANY (shards) AND r.kind <> 'S' ORDER BY r.relation
    LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence') THEN
            EXECUTE format('CREATE TRIGGER insta_ids_fence BEFORE INSERT OR UPDATE OR DELETE%s ON %s'
                || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.refuse_write(%s)',
                -- Before PostgreSQL 16, foreign tables have no triggers for it.
                CASE WHEN next.kind <> 'f' OR current_setting('server_version_num')::integer >= 160000 THEN ' OR TRUNCATE' END,
                next.relation, next.shard);
        END IF;
        -- Where shards come to, the subscription that brings their rows goes past it; elsewhere none does.
        EXECUTE format('ALTER TABLE ONLY %s ENABLE %s TRIGGER insta_ids_fence', next.relation,
            CASE WHEN to_node = insta_ids.this_node() THEN '' ELSE 'ALWAYS' END);
        -- What a subscription applies fires triggers of rows alone.
        IF next.kind <> 'p' AND to_node IS DISTINCT FROM insta_ids.this_node() THEN
            IF NOT EXISTS (
                SELECT FROM pg_trigger t WHERE t.tgrelid = next.relation AND t.tgname = 'insta_ids_fence_rows')
            THEN
                EXECUTE format('CREATE TRIGGER insta_ids_fence_rows BEFORE INSERT OR UPDATE OR DELETE ON %s'
                    || ' FOR EACH ROW EXECUTE FUNCTION insta_ids.refuse_write(%s)', next.relation, next.shard);
            END IF;
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER insta_ids_fence_rows', next.relation);
        END IF;
    END LOOP;
    INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, true, to_node FROM unnest(shards) s;
END
$$;

-- Opens shards again. The triggers stay, disabled: to drop them would wait for all who read the tables.
CREATE OR REPLACE FUNCTION insta_ids.open_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
BEGIN
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (shards);
    FOR next IN
        SELECT r.relation, t.tgname FROM insta_ids.shard_relation r
        JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
            AND t.tgenabled <> 'D'
        WHERE r.shard = ANY (shards) ORDER BY r.relation
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER %I', next.relation, next.tgname);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.fence(shard integer, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
BEGIN
    PERFORM insta_ids.check_isolation('a shard cannot be fenced'), set_config('lock_timeout', lock_timeout, true);
    PERFORM insta_ids.claim(ARRAY[shard]), insta_ids.check_moves(shard, shard);
    -- What is being made in it now is seen afterwards.
    PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids.shard_schema s WHERE s.shard = fence.shard AND s.oid IS NOT NULL;
    PERFORM insta_ids.close_shards(ARRAY[shard], NULL, lock_timeout);
END
$$;

-- Refuses whoever alters what is in a shard that moves or is fenced.
CREATE OR REPLACE FUNCTION insta_ids.keep_fenced() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards integer[];
    schemas text[];
    altered record;
BEGIN
    -- Most DDL ends here, and does not need the library.
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
        AND NOT EXISTS (SELECT FROM insta_ids.fence)
    THEN
        RETURN;
    END IF;
    SELECT array_agg(f.shard), array_agg(f.schema) INTO shards, schemas FROM insta_ids.fenced_schemas() f;
    -- A dump that is restored brings the fences before the last of what is in the shards; its scripts say this.
    IF shards IS NULL OR current_setting('check_function_bodies') = 'off'
        AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
    THEN
        RETURN;
    END IF;
    IF TG_EVENT = 'sql_drop' THEN
        SELECT f.shard, d.object_type || ' ' || d.object_identity AS object INTO altered
        FROM pg_event_trigger_dropped_objects() d
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema
            = coalesce(d.schema_name, CASE d.object_type WHEN 'schema' THEN d.object_name ELSE d.address_names[1] END)
        WHERE NOT d.is_temporary AND d.object_type <> 'publication relation' LIMIT 1;
    ELSE
        SELECT f.shard, c.object_type || ' ' || c.object_identity AS object INTO altered
        FROM pg_event_trigger_ddl_commands() c
        -- What has no schema of its own.
        LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
        LEFT JOIN pg_rewrite r ON c.classid = 'pg_rewrite'::regclass AND r.oid = c.objid
        LEFT JOIN pg_policy p ON c.classid = 'pg_policy'::regclass AND p.oid = c.objid
        LEFT JOIN pg_class o ON o.oid = coalesce(t.tgrelid, r.ev_class, p.polrelid)
        LEFT JOIN pg_namespace n ON n.oid = o.relnamespace
        -- A table that is in another schema now.
        LEFT JOIN pg_trigger g
            ON c.classid = 'pg_class'::regclass AND g.tgrelid = c.objid AND g.tgname = 'insta_ids_fence' AND g.tgenabled <> 'D'
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema = coalesce(c.schema_name, n.nspname)
            OR c.command_tag = 'ALTER SCHEMA' AND to_regnamespace(quote_ident(f.schema)) IS NULL
            OR encode(g.tgargs, 'escape') = f.shard || '\000'
        WHERE c.command_tag NOT IN ('COMMENT', 'REINDEX', 'REFRESH MATERIALIZED VIEW')
            AND c.object_type <> 'publication relation' LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered.shard),
            DETAIL = format('%s is of it.', upper(left(altered.object, 1)) || substr(altered.object, 2)),
            HINT = CASE
                WHEN EXISTS (SELECT FROM insta_ids.fence f WHERE f.shard = altered.shard AND f.to_node IS NULL)
                    THEN format('Open it first: SELECT insta_ids.unfence(%s).', altered.shard)
                ELSE 'Try again when it has moved: see insta_ids.moves.' END;
    ELSIF TG_TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE') THEN
        PERFORM insta_ids.check_inheritance(shards);
    END IF;
END
$$;

-- A part of what the database has taken already needs no time: it is the server's own ids that were minted of it.
CREATE OR REPLACE FUNCTION insta_ids.take_writer_slot(until timestamptz DEFAULT NULL) RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot CONSTANT text := insta_ids.writer_slot();
    taken text;
BEGIN
    PERFORM insta_ids.check_isolation('a writer slot cannot be taken'), insta_ids.commit_durably();
    LOCK TABLE insta_ids.writer IN SHARE ROW EXCLUSIVE MODE;
    taken := insta_ids.taken_slot();
    IF until IS NULL AND slot <> taken
        AND (NOT EXISTS (SELECT FROM insta_ids.writer) OR NOT insta_ids.slots_meet(slot, taken)
            OR (insta_ids.slot_of(slot)).slots < (insta_ids.slot_of(taken)).slots)
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'null_value_not_allowed',
            MESSAGE = format('time until which ids of writer slot %s were minted must be given', slot),
            DETAIL = format('This database has slot %s, so other servers may have minted them.', taken),
            HINT = format('On each that did, when it has another slot: SELECT insta_ids.left_writer_slot(%L). Where it will not'
                || ' mint again: SELECT lease + ''1 ms'' FROM insta_ids.clock(). Give the greatest; if none did, ''-infinity''.', slot);
    END IF;
    -- Also of a slot that was taken before: this may be a copy of a database that went on elsewhere.
    PERFORM insta_ids.advance_clock(until) WHERE until > '-infinity';
    IF slot <> taken THEN
        DELETE FROM insta_ids.writer;
        INSERT INTO insta_ids.writer SELECT s.slot, s.slots FROM insta_ids.slot_of(slot) s;
    END IF;
    RETURN slot;
END
$$;

-- Refuses what a move of one of these shards is in the way of.
CREATE OR REPLACE FUNCTION insta_ids.check_moves(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other insta_ids.move;
BEGIN
    SELECT * INTO other FROM insta_ids.move m WHERE m.first <= check_moves.last AND m.last >= check_moves.first LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('shards from %s to %s are moving', other.first, other.last),
            DETAIL = format('They go from node "%s" to node "%s": %s.', other.from_node, other.to_node, other.step),
            HINT = format('Let that end, or end it: CALL insta_ids.move_abort(%s, %s).', other.first, other.last);
    END IF;
END
$$;

-- Refuses shards that could not be moved whole.
CREATE OR REPLACE FUNCTION insta_ids.check_movable(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    obstacle record;
BEGIN
    IF current_setting('wal_level') <> 'logical' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards cannot leave this server',
            DETAIL = format('"wal_level" is %s.', current_setting('wal_level')),
            HINT = 'Set wal_level = logical in postgresql.conf, and restart the server.';
    ELSIF (SELECT count(*) FROM pg_replication_slots) >= current_setting('max_replication_slots')::integer THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = 'all replication slots of this server are in use',
            HINT = 'Drop one that is not needed, or raise "max_replication_slots".';
    END IF;
    PERFORM insta_ids.check_inheritance(shards);

    SELECT o.* INTO obstacle FROM (
        SELECT s.shard, 1, format('Schema "%s" is missing.', s.schema), 'Restore it, or drop the shard.'
        FROM insta_ids.shard_schema s WHERE s.oid IS NULL
        UNION ALL
        SELECT s.shard, 2, CASE s.is_closed WHEN true THEN 'It is fenced.' ELSE 'It is moving.' END,
               format('Open it: SELECT insta_ids.unfence(%s).', s.shard)
        FROM insta_ids.fence s
        UNION ALL
        SELECT m.shard, 3, format('Migration "%s" is %s there.', m.name, m.state), 'Apply it: CALL insta_ids.migrate().'
        FROM insta_ids.migration_status m WHERE m.state <> 'applied'
        UNION ALL
        SELECT r.shard, 4, format('Table %s is %s.', r.relation, CASE r.kind WHEN 'f' THEN 'foreign' ELSE 'unlogged' END),
               'Only rows of logged tables go with it.'
        FROM insta_ids.shard_relation r WHERE r.kind = 'f' OR r.kind <> 'S' AND r.persistence = 'u'
        UNION ALL
        SELECT t.shard, 5, format('Table %s has no primary key, by which its rows could be told apart.', t.relation),
               format('Add a primary key, or: ALTER TABLE %s REPLICA IDENTITY FULL.', t.relation)
        FROM insta_ids.unidentified_tables(shards) t
        UNION ALL
        SELECT r.shard, 6, r.object || ': ' || r.detail, r.hint
        FROM insta_ids.check_references(shards) r WHERE r.severity = 'error'
    ) o (shard, place, detail, hint)
    WHERE o.shard = ANY (shards) ORDER BY o.place, o.shard LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shard %s cannot be moved', obstacle.shard),
            DETAIL = obstacle.detail, HINT = obstacle.hint;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.move_offer(first integer, last integer, to_node name) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.own_node();
    offered CONSTANT name := format('insta_ids_%s_%s', first, last);
    move insta_ids.move;
    is_new boolean := false;
    objects jsonb;
    shard integer;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be offered'), insta_ids.check_range(first, last, 1),
        insta_ids.commit_durably();
    -- Nobody else offers, makes or assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_node(here), insta_ids.check_node(to_node);
    SELECT * INTO move FROM insta_ids.move m WHERE m.name = offered FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM insta_ids.check_moves(first, last);
        move.shards := ARRAY(SELECT s.shard FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last ORDER BY s.shard);
        IF move.shards = '{}' OR to_node = here THEN
            RAISE EXCEPTION USING
                ERRCODE = 'undefined_object',
                MESSAGE = format('no shard from %s to %s can move from node "%s" to node "%s"', first, last, here, to_node),
                DETAIL = CASE WHEN to_node = here THEN 'That is this node.' ELSE 'None of them is here.' END;
        END IF;
        FOREACH shard IN ARRAY move.shards LOOP
            IF NOT EXISTS (SELECT FROM insta_ids.assignment a WHERE shard BETWEEN a.first AND a.last AND a.node = here) THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('the map does not have shard %s on this node', shard),
                    HINT = format('Assign it: SELECT insta_ids.assign(%s, %s, %L).', first, last, here);
            END IF;
        END LOOP;
        PERFORM insta_ids.claim(move.shards), insta_ids.check_movable(move.shards);
        -- What is being made in them now is seen afterwards.
        PERFORM insta_ids.lock_schema(s.oid) FROM insta_ids.shard_schema s WHERE s.shard = ANY (move.shards);
        EXECUTE format('CREATE PUBLICATION %I%s', offered, ' FOR TABLE ' || insta_ids.published_tables(move.shards));
        INSERT INTO insta_ids.fence (shard, is_closed, to_node) SELECT s, false, to_node FROM unnest(move.shards) s;
        INSERT INTO insta_ids.move AS m (name, id, first, last, shards, relations, from_node, to_node, slot, bytes, step)
        SELECT offered, gen_random_uuid(), first, last, move.shards, insta_ids.relations_of(move.shards), here, to_node,
               format('insta_ids_%s_%s_%s', (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), first, last),
               (SELECT coalesce(sum(pg_table_size(r.relation)), 0) FROM insta_ids.shard_relation r
                WHERE r.shard = ANY (move.shards) AND r.kind = 'r'),
               'offered'
        RETURNING m.* INTO move;
        is_new := true;
    ELSIF move.from_node <> here OR move.to_node <> move_offer.to_node THEN
        PERFORM insta_ids.check_moves(first, last);
    END IF;
    -- What differs between them cannot come of the same migrations.
    objects := insta_ids.objects_json(move.shards[1]);
    FOREACH shard IN ARRAY move.shards[2:] LOOP
        IF insta_ids.objects_json(shard) <> objects THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('shard %s cannot be moved', shard),
                DETAIL = format('What is in it differs from what is in shard %s.', move.shards[1]),
                HINT = 'See insta_ids.check().';
        END IF;
    END LOOP;
    RETURN jsonb_build_object(
        'name', move.name, 'id', move.id, 'is_new', is_new, 'first', first, 'last', last, 'shards', to_jsonb(move.shards),
        'from_node', here, 'to_node', to_node, 'slot', move.slot, 'bytes', move.bytes,
        'map', insta_ids.shard_map(),
        'migrations', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
                'transactional', m.transactional, 'check_ids', m.check_ids) ORDER BY m.number), '[]')
            FROM insta_ids.migration m),
        'objects', objects,
        'partitions', (SELECT jsonb_object_agg(s, insta_ids.partitions_json(s)) FROM unnest(move.shards) s));
END
$$;

-- Lets go of what the target has taken over: `handed_over` is what move_hand_over returned there. Then, on the target, ends
-- the move there, too.
CREATE OR REPLACE FUNCTION insta_ids.move_finish(move name, handed_over jsonb DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
    shard integer;
    schema name;
    kept name;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        RETURN;
    END IF;
    -- As who offers, makes or assigns shards: this table first, and then the move.
    LOCK TABLE insta_ids.assignment IN SHARE ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step = 'handed over' THEN
        DELETE FROM insta_ids.move m WHERE m.name = move;
        RETURN;
    ELSIF moving.step <> 'fenced' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s have not left', moving.first, moving.last),
            DETAIL = format('The move is %s here.', moving.step);
    ELSIF handed_over ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may not be on node "%s" yet', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not handed over there.',
            HINT = 'Give what insta_ids.move_hand_over() returns there.';
    END IF;
    PERFORM insta_ids.drop_slot(moving.slot), insta_ids.assign_moved(moving, (handed_over ->> 'version')::bigint);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    FOREACH shard IN ARRAY moving.shards LOOP
        schema := insta_ids.schema_of(shard);
        kept := CASE WHEN octet_length(schema || '__moved') < 64 THEN schema || '__moved' ELSE 'moved__' || shard END;
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', schema, kept);
        INSERT INTO insta_ids.moved VALUES (shard, kept, moving.to_node);
    END LOOP;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = ANY (moving.shards);
    DELETE FROM insta_ids.shard s WHERE s.shard = ANY (moving.shards);
END
$$;

-- Takes the offer back, and opens the shards again. Once they are fenced, the target must have cancelled the move:
-- `cancellation` is what move_cancel returned.
CREATE OR REPLACE FUNCTION insta_ids.move_withdraw(move name, cancellation jsonb DEFAULT '{}') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
    elsewhere integer;
BEGIN
    IF insta_ids.move_outcome((cancellation ->> 'id')::uuid) = 'withdrawn' THEN
        RETURN;
    END IF;
    -- Nobody assigns shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    moving := insta_ids.open_move(move);
    IF moving.step NOT IN ('offered', 'fenced') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not leave this server', moving.first, moving.last),
            HINT = format('End the move here: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
    ELSIF (moving.step = 'fenced' OR cancellation ? 'id') AND cancellation ->> 'id' IS DISTINCT FROM moving.id::text
        -- Who has never heard of the move cannot say that it will not take the shards over.
        OR moving.step = 'fenced'
            AND (cancellation ->> 'to_node' IS DISTINCT FROM moving.to_node OR cancellation ->> 'was_known' = 'false')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s may already be on node "%s"', moving.first, moving.last, moving.to_node),
            DETAIL = 'This move was not cancelled there.',
            HINT = format('Call insta_ids.move_abort(%s, %s, %L) on that node.', moving.first, moving.last, moving.from_node);
    END IF;
    elsewhere := (SELECT min(s) FROM unnest(moving.shards) s WHERE NOT insta_ids.is_placed_here(s));
    IF elsewhere IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map does not have shard %s on this node', elsewhere),
            DETAIL = 'It would be opened to writers here.',
            HINT = format('On node "%1$s": SELECT insta_ids.assign(%2$s, %2$s, %1$L).'
                || ' Then call insta_ids.move_abort(%3$s, %4$s, %5$L) again where it was called.',
                insta_ids.this_node(), elsewhere, moving.first, moving.last, moving.from_node);
    END IF;
    PERFORM insta_ids.drop_slot(s.slot_name) FROM pg_replication_slots s
    WHERE s.slot_name = moving.slot
        OR s.slot_name ~ '^pg_[0-9]+_sync_' AND cancellation -> 'table_slots' ? s.slot_name;
    PERFORM insta_ids.open_shards(moving.shards);
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', move);
    DELETE FROM insta_ids.move m WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'withdrawn');
END
$$;

-- For each table the number of its rows and, if all of them are compared, a number that is the same for the same rows.
CREATE OR REPLACE FUNCTION insta_ids.move_hashes(move name, verify text DEFAULT 'full') RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Rows are compared as texts.
    SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
    SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmlbinary = 'base64' SET row_security = off
AS $$
DECLARE
    hashes jsonb := '{}';
    relation record;
    hash jsonb;
BEGIN
    IF verify NOT IN ('full', 'count') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full" or "count".';
    END IF;
    IF NOT EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        PERFORM insta_ids.open_move(move);
    END IF;
    FOR relation IN
        SELECT r.relation AS name, (
            SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attname) FROM pg_attribute a
            WHERE a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped) AS columns
        FROM insta_ids.move m
        JOIN insta_ids.shard_relation r ON r.shard = ANY (m.shards) AND r.kind = 'r'
        WHERE m.name = move
    LOOP
        EXECUTE format('SELECT jsonb_build_array(count(*)%s) FROM ONLY %s', CASE verify WHEN 'full' THEN
            format(', coalesce(sum(hashtextextended(ROW(%s)::text, 0)), 0)::text', relation.columns) END, relation.name)
        INTO hash;
        hashes := hashes || jsonb_build_object(relation.name, hash);
    END LOOP;
    RETURN hashes;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.move_prepare(offer jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids.prepare_shards(offer, pg_catalog.current_setting('search_path'));
END
$$;

-- Makes the shards that were offered, empty and closed. `path` is the search_path of who asked for it.
CREATE OR REPLACE FUNCTION insta_ids.prepare_shards(offer jsonb, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := jsonb_populate_record(NULL::insta_ids.move, offer);
    here CONSTANT name := insta_ids.this_node();
    outcome CONSTANT text := insta_ids.move_outcome(moving.id);
    tables text;
    shard integer;
    difference record;
BEGIN
    PERFORM insta_ids.check_isolation('shards cannot be prepared'), insta_ids.commit_durably(), insta_ids.check_writer();
    IF here IS DISTINCT FROM moving.to_node THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this server is not node "%s"', moving.to_node),
            DETAIL = format('It is %s.', coalesce('node "' || here || '"', 'no node')),
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server; or call this on the other one.';
    ELSIF EXISTS (SELECT FROM insta_ids.move m WHERE (m.name, m.id) = (moving.name, moving.id)) THEN
        RETURN;
    END IF;
    IF outcome IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('offer of shards from %s to %s is void', moving.first, moving.last),
            DETAIL = format('It was %s here.', outcome),
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L).', moving.from_node,
                moving.first, moving.last);
    END IF;
    PERFORM insta_ids.check_moves(moving.first, moving.last);
    IF (offer #>> '{map,version}')::bigint > coalesce((SELECT m.version FROM insta_ids.map m), 0) THEN
        PERFORM insta_ids.apply_map(offer -> 'map');
    END IF;
    PERFORM insta_ids.check_node(moving.from_node), insta_ids.check_range(moving.first, moving.last, 1),
        insta_ids.take_migrations(offer -> 'migrations', moving.from_node);
    PERFORM insta_ids.check_absent(moving.first, moving.last);
    shard := (
        SELECT min(s) FROM unnest(moving.shards) s
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = moving.from_node));
    IF shard IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the map here does not have shard %s on node "%s"', shard, moving.from_node),
            DETAIL = format('Its version is %s, and %s there.', (SELECT m.version FROM insta_ids.map m), offer #>> '{map,version}'),
            HINT = 'Assign on one of the two nodes what the other has, and apply that map on the other.';
    END IF;

    FOREACH shard IN ARRAY moving.shards LOOP
        PERFORM insta_ids.make_shard(shard, path), insta_ids.make_partitions(shard, offer #> ARRAY['partitions', shard::text]);
        IF shard = moving.shards[1] THEN
            PERFORM insta_ids.check_locks(cardinality(moving.shards));
            SELECT * INTO difference
            FROM (
                SELECT x.object ->> 0 AS kind, concat_ws('.', x.object ->> 1, x.object ->> 2) AS name,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE x.is_ours) AS ours,
                       string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE NOT x.is_ours) AS theirs
                FROM (
                    SELECT o, true FROM jsonb_array_elements(insta_ids.objects_json(shard)) o
                    UNION ALL
                    SELECT o, false FROM jsonb_array_elements(offer -> 'objects') o
                ) x (object, is_ours)
                GROUP BY 1, 2
            ) d
            WHERE d.ours IS DISTINCT FROM d.theirs ORDER BY d.kind, d.name LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not what its migrations make', shard),
                    DETAIL = format('%s %s: here %s, on node "%s" %s.',
                        upper(left(difference.kind, 1)) || substr(difference.kind, 2), difference.name,
                        coalesce(insta_ids.in_shard(difference.ours, insta_ids.schema_of(shard), shard), 'nothing'),
                        moving.from_node,
                        coalesce(insta_ids.in_shard(difference.theirs, insta_ids.schema_of(shard), shard), 'nothing')),
                    HINT = 'Add what was done by hand there as a migration, which does nothing where it is done.';
            END IF;
        END IF;
    END LOOP;
    -- Rows that migrations made come from the source, too.
    tables := insta_ids.published_tables(moving.shards);
    IF tables IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || tables;
    END IF;
    PERFORM insta_ids.close_shards(moving.shards, here, '2s');
    INSERT INTO insta_ids.move (name, id, first, last, shards, from_node, to_node, slot, bytes, step)
    VALUES (moving.name, moving.id, moving.first, moving.last, moving.shards, moving.from_node, moving.to_node, moving.slot,
        moving.bytes, 'prepared');
END
$$;

-- Refuses shards of which something is here.
CREATE OR REPLACE FUNCTION insta_ids.check_absent(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here integer := (SELECT min(s.shard) FROM insta_ids.shard s WHERE s.shard BETWEEN first AND last);
BEGIN
    IF here IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s is already on this node', here);
    END IF;
    PERFORM insta_ids.check_left(first, last);
END
$$;

-- Takes the shards over: before its end they are closed on both servers, afterwards they are open here. `theirs` are the
-- hashes of the source, `ours` those of this server; without, nothing is compared. Returns what the source must see to let
-- go of them, also when it was done before.
CREATE OR REPLACE FUNCTION insta_ids.move_hand_over(
        move name, mark jsonb DEFAULT NULL, theirs jsonb DEFAULT NULL, ours jsonb DEFAULT NULL)
    RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids.move := insta_ids.open_move(move);
    different record;
BEGIN
    IF moving.step = 'handed over' THEN
        RETURN jsonb_build_object('id', moving.id, 'version', (SELECT m.version FROM insta_ids.map m));
    ELSIF mark ->> 'id' IS DISTINCT FROM moving.id::text THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('mark is not of move "%s"', move),
            HINT = 'Ask insta_ids.move_mark() on the source for it.';
    ELSIF moving.step <> 'copying' OR NOT insta_ids.move_drained(move, mark) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s are not all here yet', moving.first, moving.last),
            HINT = 'Wait until insta_ids.move_drained() says so.';
    END IF;
    IF theirs IS NOT NULL THEN
        SELECT coalesce(t.key, o.key) AS relation, t.value AS theirs, o.value AS ours INTO different
        FROM jsonb_each(theirs) t
        FULL JOIN jsonb_each(coalesce(ours, insta_ids.move_hashes(move,
            CASE WHEN theirs @? '$.*[1]' THEN 'full' ELSE 'count' END))) o ON o.key = t.key
        WHERE t.value IS DISTINCT FROM o.value LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'data_corrupted',
                MESSAGE = format('rows of table %s are not the same on both servers', different.relation),
                DETAIL = format('Their number and hash are %s on node "%s", and %s here.', different.theirs, moving.from_node,
                    different.ours),
                HINT = format('The source has all rows: CALL insta_ids.move_abort(%s, %s).', moving.first, moving.last);
        END IF;
    END IF;

    PERFORM setval(format('%I.%I', s ->> 0, s ->> 1)::regclass, (s ->> 2)::bigint, (s ->> 3)::boolean)
    FROM jsonb_array_elements(mark -> 'sequences') s;
    PERFORM insta_ids.advance_clock((mark ->> 'until')::timestamptz) WHERE mark ->> 'until' IS NOT NULL;
    DELETE FROM insta_ids.moved d WHERE d.shard = ANY (moving.shards);
    PERFORM insta_ids.drop_subscription(move), insta_ids.open_shards(moving.shards),
        insta_ids.assign_moved(moving, (mark ->> 'version')::bigint + 1);
    UPDATE insta_ids.move m SET step = 'handed over', step_at = now() WHERE m.name = move;
    INSERT INTO insta_ids.ended_move VALUES (moving.id, 'handed over');
    RETURN insta_ids.move_hand_over(move);
END
$$;

-- Forgets what was made here for a move whose shards have not been handed over; no offer of this id is taken up here any more.
-- Without a row of it, `id` says which it was. Returns what the source must see, with the slots there by which tables were
-- copied, and which are still there if it could not be reached.
CREATE OR REPLACE FUNCTION insta_ids.move_cancel(move name, id uuid DEFAULT NULL) RETURNS jsonb
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids.move;
BEGIN
    IF id IS NULL OR EXISTS (SELECT FROM insta_ids.move m WHERE m.name = move) THEN
        moving := insta_ids.open_move(move);
    END IF;
    IF moving.step NOT IN ('prepared', 'copying', 'handed over') OR moving.id <> id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards from %s to %s do not come to this server by that move', moving.first, moving.last),
            HINT = format('Call insta_ids.move_abort(%s, %s) on node "%s".', moving.first, moving.last, moving.to_node);
    END IF;
    PERFORM insta_ids.commit_durably();
    id := coalesce(moving.id, id);
    -- Waits for who is handing it over.
    INSERT INTO insta_ids.ended_move VALUES (id, 'cancelled',
        CASE WHEN moving.name IS NOT NULL THEN insta_ids.move_table_slots(move, '{i,d,f,s}') END)
    ON CONFLICT DO NOTHING;
    IF insta_ids.move_outcome(id) <> 'cancelled' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('shards of move "%s" are already here', move),
            HINT = 'Finish it by calling insta_ids.move_shards() again.';
    END IF;
    IF moving.name IS NOT NULL THEN
        PERFORM insta_ids.drop_subscription(move);
        DELETE FROM insta_ids.move m WHERE m.name = move;
        DELETE FROM insta_ids.fence f WHERE f.shard = ANY (moving.shards);
        PERFORM insta_ids.drop_shard(s, force => true) FROM unnest(moving.shards) s;
    END IF;
    RETURN (
        SELECT jsonb_build_object('id', e.id, 'to_node', insta_ids.this_node(), 'was_known', e.table_slots IS NOT NULL,
            'table_slots', e.table_slots)
        FROM insta_ids.ended_move e WHERE e.id = move_cancel.id);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.dblink_schema() RETURNS name
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
    IF num_nulls(first, last, from_node, verify, lock_timeout, max_lag) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'no argument of move_shards can be NULL';
    ELSIF verify NOT IN ('full', 'count', 'none') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('rows cannot be verified by "%s"', verify),
            DETAIL = 'It can be "full", "count" or "none".';
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
            PERFORM insta_ids.prepare_shards(offer, path);
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

CREATE OR REPLACE FUNCTION insta_ids.install_plproxy(cluster text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made CONSTANT text := 'made by insta_ids.install_plproxy()';
    other record;
BEGIN
    PERFORM insta_ids.configured();
    IF NOT EXISTS (SELECT FROM pg_language l WHERE l.lanname = 'plproxy') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'extension "plproxy" is not installed in this database',
            HINT = 'Create it: CREATE EXTENSION plproxy.';
    END IF;
    IF to_regnamespace('plproxy') IS NULL THEN
        CREATE SCHEMA plproxy;
        GRANT USAGE ON SCHEMA plproxy TO PUBLIC;
    END IF;
    SELECT f.* INTO other
    FROM (
        SELECT 'schema plproxy', n.nspowner, made FROM pg_namespace n WHERE n.nspname = 'plproxy'
        UNION ALL
        SELECT 'function ' || p.oid::regprocedure, p.proowner, obj_description(p.oid, 'pg_proc')
        FROM pg_proc p
        WHERE p.pronamespace = to_regnamespace('plproxy')
            AND p.proname IN ('get_cluster_version', 'get_cluster_partitions', 'get_cluster_config')
    ) f (object, owner, description)
    WHERE f.description IS DISTINCT FROM made
        OR NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = f.owner) AND f.owner <> current_user::regrole
    ORDER BY f.description IS DISTINCT FROM made DESC LIMIT 1;
    IF FOUND AND other.description IS DISTINCT FROM made THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_function',
            MESSAGE = format('%s already exists', other.object),
            DETAIL = 'It says what other clusters are.',
            HINT = 'Let it return what insta_ids.map and insta_ids.plproxy_partitions() have for this cluster.';
    ELSIF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s is of role %s', other.object, other.owner::regrole),
            DETAIL = 'That role could have others call what it likes.',
            HINT = 'Make it your own by ALTER ... OWNER TO, or drop it.';
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

-- Checking and adoption

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
        AND EXISTS (
            -- As insta_ids.close_shards left them.
            SELECT FROM (VALUES
                ('insta_ids_fence', true, CASE WHEN f.to_node = here THEN 'O' ELSE 'A' END),
                ('insta_ids_fence_rows', r.kind = 'r' AND f.to_node IS DISTINCT FROM here, 'A')
            ) n (name, is_needed, enabled)
            WHERE n.is_needed AND NOT EXISTS (
                SELECT FROM pg_trigger t
                WHERE t.tgrelid = r.relation AND t.tgname = n.name AND t.tgenabled = n.enabled))
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- What is in shards, one line for each thing that can differ, in words that are the same in each shard: chr(1) stands
-- for its schema and a dot, chr(4) for the same in a literal where that has quotes, chr(5) for a literal that is its
-- schema, chr(2) for its number. Without partitions, of which older shards may have more; without owners and privileges;
-- and written out without the CHECKs of ids, which depend on defaults.
--
-- If it is only to be compared, expressions are not written out: to name a function, PostgreSQL looks at all that are
-- called like it, and each shard has its next_id. In their place is the stored tree, with the names of what it depends on.
CREATE OR REPLACE FUNCTION insta_ids.objects_of(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- By how many shards are asked for.
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid, o.own, replace(o.own, '''', '''''') AS own_in_literal,
               insta_ids.literal_of(s.schema) AS literal
        FROM insta_ids.shard_schema s
        CROSS JOIN LATERAL (SELECT quote_ident(s.schema) || '.') o (own)
        WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S', 'c') AND NOT c.relispartition
    ), functions AS MATERIALIZED (
        SELECT s.shard, p.*, format('%I(%s)', p.proname, replace(oidvectortypes(p.proargtypes), s.own, chr(1))) AS signature
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        -- Those of a type come and go with it.
        WHERE NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
    ), expressions AS (
        SELECT r.shard, r.relnamespace AS schema, CASE a.attgenerated WHEN '' THEN 'default' ELSE 'expression' END AS kind,
               r.relname AS relation, a.attname::text AS name, 'pg_attrdef'::regclass AS classid, d.oid, d.adrelid,
               d.adbin AS tree,
               CASE a.attgenerated WHEN 's' THEN 'STORED' WHEN 'v' THEN 'VIRTUAL' END AS attributes
        FROM relations r
        JOIN pg_attrdef d ON d.adrelid = r.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT f.shard, f.pronamespace, 'function', NULL, f.signature, 'pg_proc'::regclass, f.oid, NULL, f.prosqlbody,
               concat_ws(' ', f.prokind, f.provolatile, f.proisstrict, f.prosecdef, f.proleakproof, f.proparallel,
                   f.procost, f.prorows, f.proretset, format_type(f.prorettype, NULL),
                   replace(f.proconfig::text, s.schema, chr(5)),
                   pg_get_expr(f.proargdefaults, 0), a.names)
        FROM functions f
        JOIN schemas s ON s.shard = f.shard
        CROSS JOIN LATERAL (
            SELECT string_agg(n.name, ' ' ORDER BY n.place)
            FROM unnest(f.proargnames, f.proargmodes) WITH ORDINALITY n (name, mode, place)
            WHERE n.mode IS DISTINCT FROM 'o'
        ) a (names)
        WHERE f.prokind <> 'a'
    ), objects (shard, kind, relation, name, definition) AS (
        SELECT r.shard, 'table', NULL, r.relname,
               concat_ws(' ', CASE r.relpersistence WHEN 'u' THEN 'unlogged' END,
                   CASE r.relkind WHEN 'f' THEN 'foreign' WHEN 'p' THEN 'partitioned' END, 'table',
                   CASE r.relkind WHEN 'p' THEN 'by ' || pg_get_partkeydef(r.oid) END,
                   CASE WHEN r.relrowsecurity THEN 'with row security' END,
                   CASE WHEN r.relforcerowsecurity THEN 'forced' END,
                   CASE WHEN r.relreplident <> 'd' THEN 'with replica identity ' || r.relreplident::text END)
        FROM relations r WHERE r.relkind IN ('r', 'p', 'f')
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'c' THEN 'attribute' ELSE 'column' END, r.relname, a.attname,
               concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                   CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'COLLATE ' || a.attcollation::regcollation END)
        FROM relations r
        JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN pg_type t ON t.oid = a.atttypid
        WHERE r.relkind IN ('r', 'p', 'f', 'c')
        UNION ALL
        SELECT r.shard, 'NOT NULL', r.relname, a.attname, 'NOT NULL'
        FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE r.relkind IN ('r', 'p', 'f') AND a.attnotnull
        UNION ALL
        SELECT e.shard, e.kind, e.relation, e.name,
               CASE WHEN x.essence IS NOT NULL THEN concat_ws(' ', x.essence, e.attributes)
                   WHEN e.kind = 'default' THEN pg_get_expr(e.tree, e.adrelid)
                   WHEN e.kind = 'expression'
                       THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(e.tree, e.adrelid), e.attributes)
                   -- Whether a result has a name makes no difference to who calls it; of what was adopted it may have one.
                   ELSE regexp_replace(pg_get_functiondef(e.oid),
                       '(, )?OUT ("([^"]|"")+"|\w+) bigint\)\n RETURNS bigint', E')\n RETURNS bigint') END
        FROM expressions e
        CROSS JOIN LATERAL (
            SELECT CASE WHEN NOT written_out AND e.kind <> 'expression' THEN
                insta_ids.essence(e.tree::text, coalesce(array_agg(d.refobjid), '{}'), coalesce(array_agg(n.name), '{}'),
                    minting, e.shard) END AS essence
            FROM pg_depend d
            LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
            LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
            LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN p.oid IS NOT NULL
                        THEN format('%s.%s(%s)', nullif(p.pronamespace, e.schema), p.proname, oidvectortypes(p.proargtypes))
                    WHEN c.oid IS NOT NULL THEN concat_ws('.', nullif(c.relnamespace, e.schema), c.relname)
                    -- Constants of others have OIDs in them.
                    WHEN t.oid IS NULL OR t.typtype IN ('b', 'd') AND t.typelem = 0
                        THEN pg_describe_object(d.refclassid, d.refobjid, 0)
                END
            ) n (name)
            WHERE d.classid = e.classid AND d.objid = e.oid
        ) x
        UNION ALL
        SELECT f.shard, 'aggregate', NULL, f.signature,
               concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, format_type(a.aggtranstype, NULL), a.agginitval)
        FROM functions f JOIN pg_aggregate a ON a.aggfnoid = f.oid
        UNION ALL
        SELECT r.shard, 'index', r.relname, i.relname, pg_get_indexdef(x.indexrelid)
        FROM relations r
        JOIN pg_index x ON x.indrelid = r.oid
        JOIN pg_class i ON i.oid = x.indexrelid
        WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = r.oid AND k.conindid = i.oid)
        UNION ALL
        SELECT r.shard, 'constraint', r.relname, CASE WHEN NOT i.is_of_ids THEN k.conname ELSE '' END,
               CASE WHEN i.is_of_ids THEN replace(k.definition, format('= %s))', r.shard), '= ' || chr(2) || '))')
                   ELSE k.definition END
        FROM relations r
        CROSS JOIN LATERAL (
            SELECT k.conname, regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') AS definition
            -- One of a foreign key for each partition of what it refers to comes and goes with that.
            FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype <> 'n' AND k.conparentid = 0
        ) k
        CROSS JOIN LATERAL (SELECT k.definition LIKE format('CHECK ((%%id\_shard(%%) = %s))', r.shard)) i (is_of_ids)
        WHERE NOT (i.is_of_ids AND written_out)
        UNION ALL
        SELECT r.shard, 'trigger', r.relname, g.tgname,
               concat_ws(' ', pg_get_triggerdef(g.oid), CASE WHEN g.tgenabled <> 'O' THEN '(' || g.tgenabled::text || ')' END)
        FROM relations r JOIN pg_trigger g ON g.tgrelid = r.oid AND NOT g.tgisinternal AND g.tgname NOT IN ('insta_ids_fence', 'insta_ids_fence_rows')
        UNION ALL
        SELECT r.shard, 'policy', r.relname, p.polname,
               concat_ws(' ', p.polcmd::text, p.polpermissive, p.polroles::regrole[],
                   pg_get_expr(p.polqual, p.polrelid), 'CHECK ' || pg_get_expr(p.polwithcheck, p.polrelid))
        FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
        UNION ALL
        SELECT r.shard, 'rule', r.relname, u.rulename, pg_get_ruledef(u.oid)
        FROM relations r JOIN pg_rewrite u ON u.ev_class = r.oid AND u.rulename <> '_RETURN'
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END, NULL, r.relname,
               concat('WITH (' || nullif(o.options, '') || ') ', 'AS', pg_get_viewdef(r.oid))
        FROM relations r
        CROSS JOIN LATERAL (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(r.reloptions) o) o (options)
        WHERE r.relkind IN ('v', 'm')
        UNION ALL
        SELECT r.shard, CASE WHEN i.attname IS NULL THEN 'sequence' ELSE 'identity' END, i.relname,
               coalesce(i.attname, r.relname),
               CASE i.attidentity WHEN 'a' THEN format('GENERATED ALWAYS AS IDENTITY (%s)', q.options)
                   WHEN 'd' THEN format('GENERATED BY DEFAULT AS IDENTITY (%s)', q.options)
                   ELSE format('AS %s %s', s.seqtypid::regtype, q.options) END
        FROM relations r
        JOIN pg_sequence s ON s.seqrelid = r.oid
        CROSS JOIN LATERAL format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement,
            s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) q (options)
        -- At most one, as the planner does not know: else it reads all columns that there are.
        LEFT JOIN LATERAL (
            SELECT t.relname, a.attname, a.attidentity
            FROM pg_depend d
            JOIN pg_class t ON t.oid = d.refobjid
            JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
            WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i'
                AND d.refclassid = 'pg_class'::regclass
            LIMIT 1
        ) i ON true
        UNION ALL
        SELECT s.shard, 'type', NULL, t.typname,
               concat_ws(' ', t.typtype::text, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
                   (SELECT format_type(g.rngsubtype, NULL) FROM pg_range g WHERE g.rngtypid = t.oid),
                   CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
                   (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                    FROM pg_enum e WHERE e.enumtypid = t.oid),
                   (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname)
                    FROM pg_constraint k WHERE k.contypid = t.oid))
        FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid AND t.typtype IN ('d', 'e', 'r')
        UNION ALL
        SELECT r.shard, 'type', NULL, r.relname, 'c' FROM relations r WHERE r.relkind = 'c'
        UNION ALL
        -- Not in the order of the columns, which may have been added in another one.
        SELECT s.shard, 'statistics', NULL, x.stxname,
               format('%s ON %s FROM %s', split_part(pg_get_statisticsobjdef(x.oid), ' ON ', 1), k.columns,
                   x.stxrelid::regclass)
        FROM schemas s
        JOIN pg_statistic_ext x ON x.stxnamespace = s.oid
        CROSS JOIN LATERAL (
            SELECT string_agg(e.name, ', ' ORDER BY e.name)
            FROM (
                SELECT quote_ident(a.attname) FROM pg_attribute a
                WHERE a.attrelid = x.stxrelid AND a.attnum = ANY (x.stxkeys)
                UNION ALL
                SELECT format('(%s)', e) FROM unnest(pg_get_statisticsobjdef_expressions(x.oid)) e
            ) e (name)
        ) k (columns)
    )
    SELECT o.shard, o.kind, o.relation, o.name::text,
           CASE WHEN n.definition LIKE '%next\_id%'
               THEN regexp_replace(n.definition, format('\m(next_ids?)\(%s\M', o.shard), '\1(' || chr(2), 'g')
               ELSE n.definition END
    FROM objects o
    JOIN schemas s ON s.shard = o.shard
    CROSS JOIN LATERAL (
        SELECT replace(replace(replace(coalesce(o.definition, ''), s.own, chr(1)), s.own_in_literal, chr(4)), s.literal,
            chr(5))
    ) r (definition)
    -- Not where a longer name ends like it; to look for that everywhere takes too long.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN strpos(r.definition, chr(1)) > 0 AND r.definition ~ ('[\w$]' || chr(1))
            THEN regexp_replace(o.definition, '(?<![\w$])' || regexp_replace(s.own, '(\W)', '\\\1', 'g'), chr(1), 'g')
            ELSE r.definition END
    ) n (definition);
END
$$;

-- The statement that makes an object of a shard as its definition says, if there is one. If it could lose something, or
-- keeps others waiting for as long as the table is large, that is said before it, and a colon.
CREATE OR REPLACE FUNCTION insta_ids.repair_statement(
        difference text, kind text, relation text, name text, definition text, schema name, shard integer)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    while_others_wait CONSTANT text := 'Others wait while all rows are read: ';
    prefix CONSTANT text := left(schema, - length(shard::text));
    own CONSTANT text := insta_ids.in_shard(definition, schema, shard);
    object CONSTANT text := format('%I.', schema) || CASE
        -- These have arguments behind their names, which are quoted already.
        WHEN kind IN ('function', 'aggregate') THEN insta_ids.in_shard(name, schema, shard)
        ELSE quote_ident(name) END;
    -- NULL of what is of no relation.
    owner CONSTANT text := format('%I.', schema) || quote_ident(relation);
    alter_table CONSTANT text := 'ALTER TABLE ' || owner;
    is_partitioned CONSTANT boolean := EXISTS (
        SELECT FROM pg_class c WHERE c.oid = to_regclass(owner) AND c.relkind = 'p');
BEGIN
    -- What most say of one other shard is not to be said here, too.
    IF definition ~ ('(?<![\w$])' || regexp_replace(prefix, '(\W)', '\\\1', 'g') || '[0-9]') THEN
        RETURN NULL;
    END IF;
    RETURN CASE difference || ' ' || kind
        WHEN 'missing column' THEN
            CASE
                WHEN own ~ ' NOT NULL$' AND own !~ ' (DEFAULT|GENERATED) ' THEN 'If the table has no rows: '
                -- As for domains, of which this may be one.
                WHEN own ~ ' (DEFAULT .*\(|GENERATED )' OR starts_with(definition, chr(1))
                    THEN 'Others wait while the table is rewritten: '
            ELSE '' END || format('%s ADD COLUMN %I %s', alter_table, name, own)
        WHEN 'different column' THEN
            format('If no value is lost by it: %s ALTER COLUMN %I TYPE %s USING %2$I%4$s::%3$s', alter_table, name, own,
                -- Between types of different shards there is no cast.
                CASE WHEN starts_with(definition, chr(1)) THEN '::text' END)
        WHEN 'missing identity' THEN format('%s ALTER COLUMN %I ADD %s', alter_table, name, own)
        WHEN 'different identity' THEN format('%s ALTER COLUMN %I SET %s', alter_table, name,
            regexp_replace(regexp_replace(own, ' AS IDENTITY \(|\)$', ' ', 'g'),
                '(INCREMENT|MINVALUE|MAXVALUE|START|CACHE|NO CYCLE|CYCLE)', 'SET \1', 'g'))
        WHEN 'extra identity' THEN format('If it is not needed: %s ALTER COLUMN %I DROP IDENTITY', alter_table, name)
        WHEN 'extra expression' THEN format('If it is not needed: %s ALTER COLUMN %I DROP EXPRESSION', alter_table, name)
        WHEN 'missing attribute' THEN format('ALTER TYPE %s ADD ATTRIBUTE %I %s', owner, name, own)
        WHEN 'extra attribute' THEN format('If it is not needed: ALTER TYPE %s DROP ATTRIBUTE %I', owner, name)
        WHEN 'missing NOT NULL' THEN while_others_wait || format('%s ALTER COLUMN %I SET NOT NULL', alter_table, name)
        WHEN 'extra NOT NULL' THEN format('%s ALTER COLUMN %I DROP NOT NULL', alter_table, name)
        WHEN 'extra default' THEN format('%s ALTER COLUMN %I DROP DEFAULT', alter_table, name)
        WHEN 'missing index' THEN CASE WHEN is_partitioned
            THEN while_others_wait || replace(own, ' ON ONLY ', ' ON ')
            ELSE regexp_replace(own, ' INDEX ', ' INDEX CONCURRENTLY ') END
        WHEN 'missing constraint' THEN CASE WHEN own ~ '^(CHECK|FOREIGN KEY) ' AND NOT is_partitioned
            THEN format('%s ADD CONSTRAINT %I %s NOT VALID', alter_table, name, own)
            ELSE while_others_wait || format('%s ADD CONSTRAINT %I %s', alter_table, name, own) END
        WHEN 'different constraint' THEN
            while_others_wait || format('%s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s', alter_table, name, own)
        WHEN 'extra constraint' THEN format('If it is not needed: %s DROP CONSTRAINT %I', alter_table, name)
        WHEN 'extra column' THEN format('If it is not needed: %s DROP COLUMN %I', alter_table, name)
        -- One that is disabled is not made so by one statement.
        WHEN 'missing trigger' THEN CASE WHEN own !~ ' \([A-Z]\)$' THEN own END
        WHEN 'missing view' THEN format('CREATE VIEW %s %s', object, own)
        WHEN 'different view' THEN format('CREATE OR REPLACE VIEW %s %s', object, own)
        WHEN 'missing materialized view' THEN format('CREATE MATERIALIZED VIEW %s %s', object, own)
        WHEN 'missing sequence' THEN format('CREATE SEQUENCE %s %s', object, own)
        WHEN 'different sequence' THEN format('ALTER SEQUENCE %s %s', object, own)
        ELSE CASE
            WHEN kind = 'default' THEN format('%s ALTER COLUMN %I SET DEFAULT %s', alter_table, name, own)
            WHEN difference = 'extra' THEN format('If it is not needed: DROP %s %s',
                CASE WHEN kind IN ('function', 'aggregate') THEN 'ROUTINE' ELSE upper(kind) END,
                CASE WHEN kind IN ('trigger', 'policy', 'rule') THEN format('%I ON %s', name, owner) ELSE object END)
            WHEN kind = 'function' OR difference = 'missing' AND kind IN ('rule', 'statistics') THEN own
        END
    END;
END
$$;

-- What differs between shards that have the same migrations. Those that are equal are looked at once.
CREATE OR REPLACE FUNCTION insta_ids.check_differences(shards integer[], fingerprints bigint[]) RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Kinds of what goes with a column.
    of_column CONSTANT text[] := ARRAY['NOT NULL', 'default', 'expression', 'identity'];
BEGIN
    RETURN QUERY
    WITH shards AS (
        SELECT f.shard, f.fingerprint,
               coalesce((SELECT array_agg(m.migration ORDER BY m.migration) FROM insta_ids.shard_migration m
                         WHERE m.shard = f.shard AND m.message IS NULL), '{}') AS applied
        FROM unnest(shards, fingerprints) f (shard, fingerprint)
    ), classes AS MATERIALIZED (
        SELECT s.applied, min(s.shard) AS first, array_agg(s.shard) AS members, count(*) AS weight,
               sum(count(*)) OVER (PARTITION BY s.applied) AS total
        FROM shards s GROUP BY s.applied, s.fingerprint
    ), objects AS MATERIALIZED (
        SELECT c.applied, c.weight, c.total, o.*
        FROM classes c
        JOIN insta_ids.objects_of(
            ARRAY(SELECT c.first FROM classes c WHERE c.weight < c.total), written_out => true) o ON o.shard = c.first
    ), variants AS (
        SELECT o.applied, o.kind, o.relation, o.name, o.definition, sum(o.weight) AS weight, min(o.shard) AS first
        FROM objects o GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT o.applied, o.kind, o.relation, o.name, NULL, min(o.total) - sum(o.weight), NULL
        FROM objects o GROUP BY 1, 2, 3, 4
    ), norms AS (
        -- What most have; if as many have it as have it not, it is to be there.
        SELECT DISTINCT ON (v.applied, v.kind, v.relation, v.name) v.*
        FROM variants v
        ORDER BY v.applied, v.kind, v.relation, v.name, v.weight DESC, v.definition IS NULL, v.first
    ), differences AS (
        SELECT c.members, c.total, n.kind, n.relation, n.name, n.weight, o.definition AS here, n.definition AS elsewhere,
               CASE WHEN o.definition IS NULL THEN 'missing' WHEN n.definition IS NULL THEN 'extra' ELSE 'different' END
               AS difference,
               -- What a column that is missing needs besides its type.
               CASE WHEN n.kind = 'column' THEN (
                   SELECT string_agg(CASE d.kind WHEN 'default' THEN ' DEFAULT ' ELSE ' ' END || d.definition, ''
                              ORDER BY d.kind COLLATE "C")
                   FROM norms d
                   WHERE d.kind = ANY (of_column) AND d.definition IS NOT NULL
                       AND (d.applied, d.relation, d.name) = (n.applied, n.relation, n.name)) END AS besides
        FROM classes c
        JOIN norms n ON n.applied = c.applied
        LEFT JOIN objects o
            ON o.shard = c.first AND o.kind = n.kind AND o.relation IS NOT DISTINCT FROM n.relation AND o.name = n.name
        WHERE o.definition IS DISTINCT FROM n.definition
    )
    SELECT 'warning', d.difference || '_object',
           format('%I.%s', s.schema, CASE
               WHEN d.kind IN ('function', 'aggregate') THEN insta_ids.in_shard(d.name, s.schema, s.shard)
               ELSE concat_ws('.', quote_ident(d.relation), quote_ident(d.name)) END),
           format('%s: %s.', concat_ws(' ', upper(left(d.kind, 1)) || substr(d.kind, 2)),
               CASE d.difference
                   WHEN 'missing' THEN format('%s of %s shards have it', d.weight, d.total)
                   WHEN 'extra' THEN format('%s of %s shards do not have it', d.weight, d.total)
                   ELSE format('here %s, in %s of %s shards %s', insta_ids.in_shard(d.here, s.schema, s.shard),
                       d.weight, d.total, insta_ids.in_shard(d.elsewhere, s.schema, s.shard))
               END),
           coalesce(
               -- As in most, not in the first of many that all differ.
               CASE WHEN d.difference <> 'different' OR 2 * d.weight > d.total THEN
                   insta_ids.repair_statement(d.difference, d.kind, d.relation, d.name,
                       d.elsewhere || CASE WHEN d.difference = 'missing' THEN coalesce(d.besides, '') ELSE '' END,
                       s.schema, s.shard)
               END,
               'Make it as in the other shards; pg_dump --schema-only shows how it is there.')
    FROM differences d
    JOIN insta_ids.shard_schema s ON s.shard = ANY (d.members)
    -- What is of a table or column that is missing itself, or should be, goes without saying.
    WHERE NOT EXISTS (
        SELECT FROM differences t
        WHERE t.members = d.members AND t.difference <> 'different'
            AND (t.kind IN ('table', 'type', 'materialized view') AND t.name = d.relation
                OR t.kind = 'column' AND d.kind = ANY (of_column) AND (t.relation, t.name) = (d.relation, d.name)))
    -- What others need comes first.
    ORDER BY s.shard, d.kind NOT IN ('type', 'sequence'), d.kind, d.relation, d.name;
END
$$;

-- The same of the server and the layout.
CREATE OR REPLACE FUNCTION insta_ids.server_budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    last_instant CONSTANT timestamptz := @extschema@.id_time(9223372036854775807, config.layout);
    locks CONSTANT bigint := insta_ids.lock_capacity();
BEGIN
    RETURN QUERY
    SELECT 'locks of pg_dump', current_database()::text, count(*)::numeric, locks::numeric, NULL::timestamptz
    FROM pg_class c
    -- From PostgreSQL 18 on, sequences are read without.
    WHERE (c.relkind IN ('r', 'p', 'v', 'm') OR c.relkind = 'S' AND current_setting('server_version_num')::integer < 180000)
        AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace);

    RETURN QUERY
    SELECT 'locks of migrate', s.schema::text, 50 * c.relations::numeric, locks::numeric, NULL::timestamptz
    FROM (SELECT c.relnamespace, count(*) AS relations FROM pg_class c GROUP BY 1) c
    JOIN insta_ids.shard_schema s ON s.oid = c.relnamespace
    ORDER BY c.relations DESC, s.shard LIMIT 1;

    RETURN QUERY
    SELECT 'memory of a session that visits all shards', NULL, 12000 * count(*)::numeric, NULL::numeric, NULL::timestamptz
    FROM insta_ids.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f');

    RETURN QUERY
    SELECT 'milliseconds of the layout', config.layout::text,
           round(1000 * extract(epoch FROM now() - epoch)), round(1000 * extract(epoch FROM last_instant - epoch)), last_instant
    FROM @extschema@.id_time(0::bigint, config.layout) epoch;
END
$$;

-- Whether a version comes before another one; NULL if one is no number.
CREATE OR REPLACE FUNCTION insta_ids.is_older(version text, other text) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN version ~ '^\d{1,8}(\.\d{1,8})*$' AND other ~ '^\d{1,8}(\.\d{1,8})*$'
    THEN string_to_array(version, '.')::integer[] < string_to_array(other, '.')::integer[]
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
            library := NULL;
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
           format('The library that this session runs is of version %s, and version %s is installed.',
               coalesce(library, 'before 0.9.0'),
               CASE WHEN insta_ids.is_older(extension, installed) THEN installed ELSE extension END),
           'Install the newest version, and restart the server.'
    WHERE library IS NULL OR insta_ids.is_older(library, extension) OR insta_ids.is_older(library, installed);
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

-- A list of names in a setting's value, as literals: what is not quoted there can be anything but blanks and commas, as
-- SET ... FROM CURRENT takes it over.
CREATE FUNCTION insta_ids.quoted_list(value text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((
        SELECT pg_catalog.string_agg(
            pg_catalog.quote_literal(coalesce(pg_catalog.replace(n.name[1], '""', '"'), pg_catalog.lower(n.name[2]))), ', '
            ORDER BY n.place)
        FROM pg_catalog.regexp_matches(value, '"((?:[^"]|"")*)"|([^\s,]+)', 'g') WITH ORDINALITY n (name, place)), '''''');

-- Gives a function another body. What else is known of it stays: its arguments, owner and privileges, and its settings
-- where they mean something to this body.
CREATE OR REPLACE FUNCTION insta_ids.rewrite_function(function regprocedure, language text, body text, has_settings boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    arguments text := pg_get_function_arguments(function);
    result text;
    settings text;
BEGIN
    -- The result has the name that the published function assigns to.
    IF language = 'plpgsql' THEN
        IF 'o' = ANY (old.proargmodes) THEN
            result := old.proargnames[cardinality(old.proargmodes)];
            arguments := left(arguments, - length(concat_ws(' ', 'OUT', quote_ident(nullif(result, '')), 'bigint')));
        ELSIF arguments <> '' THEN
            arguments := arguments || ', ';
        END IF;
        arguments := arguments || 'OUT result bigint';
    END IF;
    IF has_settings THEN
        settings := (
            SELECT string_agg(format(' SET %s = %s', s.name,
                CASE WHEN s.name IN ('search_path', 'temp_tablespaces', 'local_preload_libraries', 'session_preload_libraries')
                    THEN insta_ids.quoted_list(s.value) ELSE quote_literal(s.value) END), '')
            FROM unnest(old.proconfig) c
            CROSS JOIN LATERAL (SELECT split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)) s (name, value));
    END IF;
    -- What runs as its owner runs nothing of its caller's; where an argument names a sequence, that is by the caller's path.
    IF old.prosecdef AND language = 'plpgsql' AND 'text'::regtype <> ALL (old.proargtypes)
        AND coalesce(settings NOT LIKE '% SET search_path = %', true)
    THEN
        settings := concat(settings, ' SET search_path = pg_catalog, pg_temp');
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE %s%s%s %s',
        old.pronamespace::regnamespace, old.proname, arguments, language,
        CASE WHEN old.prosecdef THEN ' SECURITY DEFINER' END, settings, body);
END
$$;

-- Refuses a schema that is not called as init says.
CREATE FUNCTION insta_ids.check_schema_name(schema regnamespace, shard integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := insta_ids.schema_of(shard);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = schema AND n.nspname = name) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_schema_name',
            MESSAGE = format('schema %s is not called like shard %s', schema, shard),
            DETAIL = format('The schema of shard %s is called %I.', shard, name),
            HINT = format('Rename it: ALTER SCHEMA %s RENAME TO %I.', schema, name);
    END IF;
END
$$;

-- Refuses what cannot be adopted. Reads all rows, or the ends of indexes only; the oldest and newest id that it has seen.
CREATE OR REPLACE FUNCTION insta_ids.check_adoption(
        schema regnamespace, shard integer, every_row boolean, OUT oldest bigint, OUT newest bigint)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    tolerance CONSTANT text := current_setting('insta_ids.clock_tolerance');
    until CONSTANT timestamptz := clock_timestamp() + tolerance::interval;
    reasons text[] := ARRAY(SELECT r FROM insta_ids.adoption_reasons(schema, shard) r);
    hints text[] := '{}';
    filled record;
    finding insta_ids.finding;
    ends record;
BEGIN
    PERFORM insta_ids.check_schema_name(schema, shard);
    FOR filled IN
        SELECT f.relation, f."column", CASE WHEN every_row OR c.relkind = 'p' THEN '' ELSE 'ONLY ' END AS only
        FROM insta_ids.filled_columns(schema) f
        JOIN pg_class c ON c.oid = f.relation
        WHERE CASE WHEN every_row OR c.relispartition THEN NOT f.is_heir ELSE true END
            AND (every_row OR EXISTS (
                SELECT FROM pg_index i
                JOIN pg_class x ON x.oid = i.indexrelid
                JOIN pg_am b ON b.oid = x.relam AND b.amname = 'btree'
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = f."column"
                WHERE i.indrelid = f.relation AND i.indpred IS NULL AND i.indisvalid))
    LOOP
        FOR finding IN
            SELECT * FROM insta_ids.check_ids_of(filled.relation, filled."column", shard, until, every_row)
        LOOP
            reasons := reasons || format('Column %s: %s', finding.object, finding.detail);
            hints := hints || CASE finding.code
                WHEN 'future_ids' THEN format('Wait until none is ahead of the clock by more than %s.', tolerance)
                ELSE finding.hint END;
        END LOOP;
        EXECUTE format('SELECT min(%I)::bigint AS oldest, max(%1$I)::bigint AS newest FROM %s%s',
            filled."column", filled.only, filled.relation) INTO ends;
        oldest := least(oldest, ends.oldest);
        newest := greatest(newest, ends.newest);
    END LOOP;
    IF hints <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n'),
            HINT = array_to_string(hints, E'\n');
    ELSIF reasons <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('schema %s cannot be adopted as shard %s', schema, shard),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Makes the shard known, and all migrations as ones that it has.
CREATE OR REPLACE FUNCTION insta_ids.claim_shard(schema regnamespace, shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.check_schema_name(schema, shard);
    -- Nobody assigns or offers shards meanwhile.
    LOCK TABLE insta_ids.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids.check_placement(shard), insta_ids.check_moves(shard, shard), insta_ids.check_left(shard, shard);
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (claim_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- Locked, so that nobody replaces meanwhile what is recorded here.
    INSERT INTO insta_ids.shard_migration (shard, migration)
    SELECT claim_shard.shard, m.number FROM insta_ids.migration m FOR SHARE;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.release(schema regnamespace, lock_timeout text DEFAULT '2s') RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT @extschema@.id_layout := (insta_ids.configured()).layout;
    number integer;
    last_ids timestamptz;
    next record;
BEGIN
    PERFORM insta_ids.check_isolation('a schema cannot be released'), set_config('lock_timeout', lock_timeout, true);
    -- What another session migrates or releases is waited for.
    SELECT s.shard INTO number
    FROM insta_ids.shard s
    WHERE s.shard = (SELECT h.shard FROM insta_ids.shard_schema h WHERE h.oid = release.schema) FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('schema %s is not a shard', schema);
    END IF;
    PERFORM insta_ids.check_release(schema, number);
    PERFORM insta_ids.make_surface(number);
    PERFORM insta_ids.await_ids(number);
    PERFORM insta_ids.stop_minting(schema, lock_timeout);
    last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + current_setting('insta_ids.max_ahead_ms')::interval;
    PERFORM insta_ids.check_release(schema, number);

    FOR next IN
        SELECT k.conrelid::regclass AS relation, k.conname
        FROM insta_ids.minting_columns(ARRAY[number]) m
        JOIN pg_constraint k ON k.conrelid = m.relation AND k.contype = 'c' AND k.coninhcount = 0
            AND pg_get_expr(k.conbin, k.conrelid) = m.expression
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', next.relation, next.conname);
    END LOOP;
    FOR next IN SELECT * FROM insta_ids.native_defaults(schema) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%L::regclass)',
            next.relation, next."column", schema, next.sequence);
    END LOOP;
    FOR next IN
        SELECT f.function, coalesce(f.shard::text, '$' || f.shard_argument) AS shard,
               coalesce(quote_literal(f.sequence), '$' || f.sequence_argument) AS sequence
        FROM insta_ids.minting_functions(schema) f
    LOOP
        PERFORM insta_ids.rewrite_function(next.function, 'plpgsql',
            format('AS %L', insta_ids.write_function(layout, next.shard, next.sequence)), true);
    END LOOP;
    FOR next IN
        SELECT t.tgrelid::regclass AS relation, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = schema AND t.tgname IN ('insta_ids_fence', 'insta_ids_fence_rows')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', next.tgname, next.relation);
    END LOOP;
    PERFORM insta_ids.tell_of_dependents(schema);
    DELETE FROM insta_ids.shard_migration m WHERE m.shard = number;
    DELETE FROM insta_ids.shard s WHERE s.shard = number;

    -- What the function gives out comes after every id that was minted here.
    PERFORM insta_ids.await_clock(last_ids);
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
        WHERE p.pronamespace = 'insta_ids'::regnamespace AND p.proname IN ('check_schema_name', 'lock_capacity', 'lock_foreign_table', 'quoted_list') AND grantee <> p.proowner
    LOOP
        EXECUTE command;
    END LOOP;
    -- Who could make shards still can.
    PERFORM insta_ids.grant_provisioning(a.grantee::regrole)
    FROM pg_proc p, aclexplode(p.proacl) a
    WHERE p.oid = 'insta_ids.make_shard(integer, text)'::regprocedure AND a.grantee <> p.proowner;
END
$$;
GRANT EXECUTE ON FUNCTION insta_ids.lock_capacity(), insta_ids.check_isolation(text) TO PUBLIC;

-- Comments
COMMENT ON FUNCTION id_min(timestamptz) IS
    'smallest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_min(timestamptz, id_layout) IS
    'smallest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_max(timestamptz) IS
    'greatest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_max(timestamptz, id_layout) IS
    'greatest id of the unit of time that an instant is in';
COMMENT ON FUNCTION insta_ids.lock_schema(oid) IS
    'lets nobody make anything in a schema until the transaction ends; of who may make something in it';
COMMENT ON FUNCTION insta_ids.grant_provisioning(regrole) IS
    'lets a role do all that has to do with shards: set up, create, migrate, check, adopt, map, fence and drop them, and let them be moved away';
COMMENT ON FUNCTION insta_ids.transactions_committed() IS
    'whether a transaction was committed since note_transactions, and none failed; NULL if it was not called';
COMMENT ON VIEW insta_ids.progress IS
    'how far the calls of create_shards, migrate and check_rows are that run now';
COMMENT ON FUNCTION insta_ids.lock_capacity() IS
    'how many locks the server has for sure, by its settings';
COMMENT ON FUNCTION insta_ids.is_older(text, text) IS
    'whether a version comes before another one; NULL if one is no number';
COMMENT ON FUNCTION insta_ids.quoted_list(text) IS
    'names in the value of a setting that is a list, as literals';
COMMENT ON FUNCTION insta_ids.lock_foreign_table(oid) IS
    'lets nobody write to a foreign table until the transaction ends; of who may write to it';
COMMENT ON FUNCTION insta_ids.check_schema_name(regnamespace, integer) IS
    'refuses a schema that is not called like a shard';
