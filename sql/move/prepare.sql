-- Moves, on the target: the shards are created, empty and closed.

-- Creates the shards of an offer, empty and closed, and records the move. `path` is the search_path of their migrations. Raises
-- an error if the offer does not fit the map, the migrations or the shards of this server.
CREATE OR REPLACE FUNCTION insta_ids_internal.prepare_shards(offer jsonb, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving insta_ids_internal.move := jsonb_populate_record(NULL::insta_ids_internal.move, offer);
    here CONSTANT name := insta_ids.this_node();
    outcome text;
    shard integer;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.commit_durably(), insta_ids_internal.require_writer_slot();
    IF here IS DISTINCT FROM moving.to_node THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('this server is not node "%s"', moving.to_node),
            DETAIL = format('It is %s.', coalesce('node "' || here || '"', 'no node')),
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server; or call this on the other one.';
    ELSIF offer ->> 'encoding' <> getdatabaseencoding() THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('database of node "%s" has the encoding %s, and this one has %s', moving.from_node, offer ->> 'encoding',
                getdatabaseencoding()),
            HINT = format('Create this database with ENCODING %L.', offer ->> 'encoding');
    END IF;
    PERFORM insta_ids_internal.require_subscriptions();
    PERFORM insta_ids_internal.require_roles(offer -> 'privileges', moving.from_node);
    -- Sessions that prepare or cancel this move wait until this transaction ends.
    LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM insta_ids_internal.move m WHERE (m.name, m.id) = (moving.name, moving.id)) THEN
        RETURN;
    END IF;
    outcome := insta_ids_internal.outcome_of_move(moving.id);
    IF outcome IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('offer of shards from %s to %s is void', moving.first, moving.last),
            DETAIL = format('It was %s here.', outcome),
            HINT = format('Let node "%s" take it back: CALL insta_ids.move_abort(%s, %s, %1$L).', moving.from_node,
                moving.first, moving.last);
    END IF;
    PERFORM insta_ids_internal.require_not_moving(moving.first, moving.last);
    PERFORM insta_ids.apply_map(offer -> 'map');
    PERFORM insta_ids_internal.require_node(moving.from_node), insta_ids_internal.require_range(moving.first, moving.last, 1),
        insta_ids_internal.take_migrations(offer -> 'migrations', moving.from_node);
    PERFORM insta_ids_internal.require_absent(moving.first, moving.last);
    shard := (
        SELECT min(s) FROM unnest(moving.shards) s
        WHERE NOT EXISTS (
            SELECT FROM insta_ids_internal.assignment a WHERE s BETWEEN a.first AND a.last AND a.node = moving.from_node));
    IF shard IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('the map here does not have shard %s on node "%s"', shard, moving.from_node),
            DETAIL = format('Its version is %s, and %s there.', (SELECT m.version FROM insta_ids_internal.map m), offer #>> '{map,version}'),
            HINT = 'Assign on one of the two nodes what the other has, and apply that map on the other.';
    END IF;

    FOREACH shard IN ARRAY moving.shards LOOP
        PERFORM insta_ids_internal.make_shards(ARRAY[shard], path), insta_ids_internal.make_partitions(shard, offer #> ARRAY['partitions', shard::text]);
        IF shard = moving.shards[1] THEN
            PERFORM insta_ids_internal.require_locks(cardinality(moving.shards));
            PERFORM insta_ids_internal.require_same_objects(shard, offer -> 'objects', moving.from_node);
        END IF;
    END LOOP;
    -- Rows that migrations inserted also come from the source.
    PERFORM insta_ids_internal.truncate_shards(moving.shards);
    -- The event triggers would refuse this on fenced shards.
    PERFORM insta_ids_internal.hold_privileges(moving.shards);
    PERFORM insta_ids_internal.close_shards(moving.shards, here, '2s');
    INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
    VALUES (moving.name, moving.id, moving.first, moving.last, moving.shards, moving.from_node, moving.to_node, moving.bytes,
        'prepared');
END
$$;

-- Raises an error if no subscription could copy tables to this server now.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_subscriptions() RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    short record;
BEGIN
    -- One is for the changes, and one at a time for the table that is copied. From PostgreSQL 18 on, another setting limits origins.
    SELECT * INTO short
    FROM (VALUES
        ('max_logical_replication_workers', 2,
            (SELECT count(*) FROM pg_stat_subscription s WHERE s.pid IS NOT NULL)),
        (CASE WHEN current_setting('server_version_num')::integer < 180000 THEN 'max_replication_slots'
            ELSE 'max_active_replication_origins' END, 2, (SELECT count(*) FROM pg_replication_origin_status)),
        ('max_sync_workers_per_subscription', 1, 0)
    ) l (setting, needed, used)
    WHERE current_setting(l.setting)::integer - l.used < l.needed LIMIT 1;
    IF FOUND THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'subscriptions cannot copy tables to this server',
            DETAIL = format('"%s" is %s, and %s of them are in use.', short.setting, current_setting(short.setting), short.used),
            HINT = 'Raise it in postgresql.conf, and restart the server.';
    END IF;
END
$$;

-- Empties the tables of shards that come here. Raises an error if a trigger for TRUNCATE would run code of a role that lacks the
-- caller's rights. Such triggers can also fire where session_replication_role is replica.
CREATE OR REPLACE FUNCTION insta_ids_internal.truncate_shards(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT text := insta_ids_internal.published_tables(shards);
    -- TRIGGER_TYPE_TRUNCATE of catalog/pg_trigger.h.
    truncates CONSTANT smallint := 32;
    other record;
BEGIN
    SELECT t.tgname, r.relation, pg_describe_object(c.class, c.oid, 0) AS object, pg_get_userbyid(c.owner) AS role INTO other
    FROM insta_ids_internal.shard_relation r
    JOIN pg_trigger t ON t.tgrelid = r.relation AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & truncates <> 0
    -- A trigger uses its function, and what its condition calls.
    JOIN pg_depend d ON d.classid = 'pg_trigger'::regclass AND d.objid = t.oid AND d.refclassid <> 'pg_class'::regclass
    JOIN insta_ids_internal.code() c ON c.class = d.refclassid AND c.oid = d.refobjid
        AND NOT insta_ids_internal.is_trusted(pg_get_userbyid(c.owner))
    WHERE r.shard = ANY (shards) ORDER BY r.relation::text, t.tgname LIMIT 1;
    IF FOUND THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('trigger "%s" of table %s uses %s of role "%s"', other.tgname, other.relation, other.object, other.role),
            DETAIL = 'It fires for TRUNCATE, with which the move empties the table, and would run with your rights.',
            HINT = 'Drop the trigger by a migration, or let a superuser own the function.';
    END IF;
    IF tables IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || tables;
    END IF;
END
$$;

-- Takes all privileges on the schemas of shards from other roles than their owners, so that nobody reads an unfinished copy. The
-- hand-over gives the schemas those of the source. From PostgreSQL 16 on, a subscription writes with the rights of each table's
-- owner, so a schema with tables of another role keeps its privileges.
CREATE OR REPLACE FUNCTION insta_ids_internal.hold_privileges(shards integer[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT s.schema, a.grantee, a.privilege_type AS privilege
        FROM insta_ids_internal.shard_schema s
        JOIN pg_namespace n ON n.oid = s.oid
        CROSS JOIN LATERAL aclexplode(n.nspacl) a
        WHERE s.shard = ANY (shards) AND a.grantee <> n.nspowner
            AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relowner <> n.nspowner)
    LOOP
        EXECUTE format('REVOKE %s ON SCHEMA %I FROM %s CASCADE', granted.privilege, granted.schema,
            CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$$;

-- Returns the first object that differs between two results of objects_json(), with its definitions. Returns no row if they are equal.
CREATE OR REPLACE FUNCTION insta_ids_internal.first_different_object(our_objects jsonb, their_objects jsonb)
    RETURNS TABLE (kind text, name text, ours text, theirs text)
    IMMUTABLE PARALLEL SAFE ROWS 1 LANGUAGE sql
BEGIN ATOMIC
    SELECT d.kind, d.name, d.ours, d.theirs
    FROM (
        SELECT x.object ->> 0 AS kind, pg_catalog.concat_ws('.', x.object ->> 1, x.object ->> 2) AS name,
               pg_catalog.string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE x.is_ours) AS ours,
               pg_catalog.string_agg(x.object ->> 3, '; ' ORDER BY x.object) FILTER (WHERE NOT x.is_ours) AS theirs
        FROM (
            SELECT o, true FROM pg_catalog.jsonb_array_elements($1) o
            UNION ALL
            SELECT o, false FROM pg_catalog.jsonb_array_elements($2) o
        ) x (object, is_ours)
        GROUP BY 1, 2
    ) d
    WHERE d.ours IS DISTINCT FROM d.theirs ORDER BY d.kind, d.name LIMIT 1;
END;

-- Raises an error unless a shard that its migrations have just created has the same objects as those of the offer.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_same_objects(shard integer, objects jsonb, from_node name) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    difference record;
BEGIN
    SELECT * INTO difference FROM insta_ids_internal.first_different_object(insta_ids_internal.objects_json(shard), objects);
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s is not what its migrations make', shard),
            DETAIL = format('%s %s: here %s, on node "%s" %s.',
                upper(left(difference.kind, 1)) || substr(difference.kind, 2), difference.name,
                coalesce(insta_ids_internal.in_shard(difference.ours, insta_ids.schema_of(shard), shard), 'nothing'),
                from_node,
                coalesce(insta_ids_internal.in_shard(difference.theirs, insta_ids.schema_of(shard), shard), 'nothing')),
            HINT = 'Add what was done by hand there as a migration, which does nothing where it is done.';
    END IF;
END
$$;

-- Raises an error if one of these shards is here, or if a departed one has left a schema here.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_absent(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here integer := (SELECT min(s.shard) FROM insta_ids_internal.shard s WHERE s.shard BETWEEN first AND last);
BEGIN
    IF here IS NOT NULL THEN
        RAISE duplicate_object USING MESSAGE = format('shard %s is already on this node', here);
    END IF;
    PERFORM insta_ids_internal.require_no_remains(first, last);
END
$$;

-- Adds the migrations of another node that this one lacks. Each keeps its author, so what no superuser has added there is not
-- trusted here. Raises an error unless the other node has all migrations of this one, unchanged.
CREATE OR REPLACE FUNCTION insta_ids_internal.take_migrations(migrations jsonb, from_node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    different text;
BEGIN
    LOCK TABLE insta_ids_internal.migration IN SHARE ROW EXCLUSIVE MODE;
    SELECT m.name INTO different
    FROM insta_ids_internal.migration m
    LEFT JOIN jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean,
        ids_since timestamptz)
        ON t.number = m.number
    WHERE (m.name, m.ddl, m.transactional, m.check_ids, m.ids_since)
        IS DISTINCT FROM (t.name, t.ddl, t.transactional, t.check_ids, t.ids_since)
    ORDER BY m.number LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('migration "%s" is not the same on node "%s"', different, from_node),
            HINT = 'Add, drop and squash the same migrations on all nodes: by add_migration(), drop_migration() and squash_migrations().';
    END IF;
    INSERT INTO insta_ids_internal.migration (number, name, ddl, transactional, check_ids, ids_since, added_by, is_by_superuser, added_on)
    SELECT t.number, t.name, t.ddl, t.transactional, t.check_ids, t.ids_since, t.added_by, coalesce(t.is_by_superuser, false),
           coalesce(t.added_on, from_node)
    FROM jsonb_to_recordset(migrations) t (number integer, name text, ddl text, transactional boolean, check_ids boolean,
        ids_since timestamptz, added_by name, is_by_superuser boolean, added_on name)
    WHERE NOT EXISTS (SELECT FROM insta_ids_internal.migration m WHERE m.number = t.number);
END
$$;

-- Returns the types of a partition key's columns. If the key has an expression, returns all types that the table uses.
CREATE OR REPLACE FUNCTION insta_ids_internal.key_types(partitioned regclass) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT a.atttypid
        FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::smallint[])
        WHERE p.partrelid = partitioned
        UNION
        SELECT d.refobjid
        FROM pg_partitioned_table p JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = p.partrelid
        WHERE p.partrelid = partitioned AND 0 = ANY (p.partattrs::smallint[]) AND d.refclassid = 'pg_type'::regclass);
END
$$;

-- Gives the partitioned tables of a shard exactly these partitions. From the source, it uses only literals and names of
-- columns, so the source cannot run code here. Raises an error for any other text, or if PostgreSQL would convert the literals to a
-- type of a role that lacks the caller's rights: domains have checks.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_partitions(shard integer, partitions jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on
AS $$
DECLARE
    schema CONSTANT name := insta_ids.schema_of(shard);
    literals CONSTANT text := format($re$\(%1$s(, %1$s)*\)$re$, $re$(NULL|MINVALUE|MAXVALUE|true|false|[0-9.]+|B?'([^']|'')*')$re$);
    bounds CONSTANT text := format(
        $re$^(DEFAULT|FOR VALUES (IN %1$s|FROM %1$s TO %1$s|WITH \(modulus [0-9]+, remainder [0-9]+\)))\Z$re$, literals);
    own CONSTANT jsonb := insta_ids_internal.partitions_json(shard);
    partition jsonb;
    parent regclass;
    judged regclass[] := '{}';
    columns text;
BEGIN
    FOR partition IN
        SELECT p FROM jsonb_array_elements(own) WITH ORDINALITY p (p, n)
        WHERE p NOT IN (SELECT o FROM jsonb_array_elements(partitions) o) ORDER BY n DESC
    LOOP
        EXECUTE format('DROP TABLE %I.%I', schema, partition ->> 1);
    END LOOP;
    FOR partition IN
        SELECT p FROM jsonb_array_elements(partitions) WITH ORDINALITY p (p, n)
        WHERE p NOT IN (SELECT o FROM jsonb_array_elements(own) o) ORDER BY n
    LOOP
        parent := to_regclass(format('%I.%I', schema, partition ->> 0));
        IF parent <> ALL (judged) THEN
            PERFORM insta_ids_internal.require_own_code(insta_ids_internal.key_types(parent), 'pg_type');
            judged := judged || parent;
        END IF;
        columns := (
            SELECT string_agg(quote_ident(k.name), ', ' ORDER BY k.place)
            FROM jsonb_array_elements_text(nullif(partition -> 3, 'null')) WITH ORDINALITY k (name, place) WHERE k.place > 1);
        IF partition ->> 2 !~ bounds OR partition #>> '{3,0}' NOT IN ('RANGE', 'LIST', 'HASH') THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('offer has a partition "%s" that cannot be made', partition ->> 1),
                DETAIL = format('Its bounds are "%s", its partition key is %s.', partition ->> 2, partition -> 3);
        END IF;
        EXECUTE format('CREATE TABLE %I.%I PARTITION OF %1$I.%3$I %s%s', schema, partition ->> 1, partition ->> 0,
            partition ->> 2, ' PARTITION BY ' || (partition #>> '{3,0}') || ' (' || columns || ')');
    END LOOP;
END
$$;

-- Raises an error unless superusers own all code that the subscription could run. Before PostgreSQL 16, the subscription's
-- owner runs it; from 16 on, each table's owner does. Other roles cannot alter what superusers own.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_trusted_owners(shards integer[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    object text;
    role name;
    statements text;
BEGIN
    IF current_setting('server_version_num')::integer >= 160000 THEN
        RETURN;
    END IF;
    SELECT (array_agg(c.object))[1], (array_agg(c.role))[1],
           string_agg(format('ALTER %s %s OWNER TO CURRENT_USER', upper(c.type), c.identity), '; ')
    INTO object, role, statements
    FROM insta_ids_internal.code_of_others(ARRAY(
        SELECT r.relation FROM insta_ids_internal.shard_relation r WHERE r.shard = ANY (shards))::oid[]) c;
    IF statements IS NOT NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('%s belongs to role "%s"', object, role),
            DETAIL = 'PostgreSQL 15 runs the code of tables that a subscription writes to with the rights of the subscription''s owner.',
            HINT = format('If you trust that code: %s. Then call insta_ids.move_shards() again.', statements);
    END IF;
END
$$;
