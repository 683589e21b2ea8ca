-- Migrations of all nodes.

-- Returns the migrations of this node, as other nodes take them, with who added each of them where.
CREATE OR REPLACE FUNCTION insta_ids_internal.migrations_json() RETURNS jsonb
    STABLE PARALLEL UNSAFE LANGUAGE sql
    RETURN (
        SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
            'transactional', m.transactional, 'check_ids', m.check_ids, 'ids_since', m.ids_since, 'added_by', m.added_by,
            'is_by_superuser', m.is_by_superuser, 'added_on', coalesce(m.added_on, insta_ids.this_node()::pg_catalog.name))
            ORDER BY m.number), '[]')
        FROM insta_ids_internal.migration m);

-- Returns the name of the first migration of `first_ones` that is not at its place in `all_of_them`, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.first_difference(all_of_them jsonb, first_ones jsonb) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT m.migration ->> 'name' FROM jsonb_array_elements(first_ones) WITH ORDINALITY m (migration, place)
    WHERE m.migration - '{added_by,is_by_superuser,added_on}'::text[]
        IS DISTINCT FROM (all_of_them -> (m.place - 1)::integer) - '{added_by,is_by_superuser,added_on}'::text[]
    ORDER BY m.place LIMIT 1;
END;

-- Returns the nodes that answer, and why each of the others does not. Raises an error if a node has a migration that is not at its
-- place in `migrations`.
CREATE OR REPLACE FUNCTION insta_ids_internal.nodes_to_migrate(migrations jsonb) RETURNS TABLE (node name, reason text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    asked record;
    different text;
BEGIN
    FOR asked IN
        SELECT * FROM insta_ids_internal.ask_fleet('SELECT jsonb_build_object(''migrations'', insta_ids_internal.migrations_json())',
            NULL::insta_ids_internal.node_migrations)
    LOOP
        different := insta_ids_internal.first_difference(migrations, (asked.answer).migrations);
        IF different IS NOT NULL THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('migrations of node "%s" are not those of this node', asked.node),
                DETAIL = format('The first that differs is "%s".', different),
                HINT = 'Add, drop and squash the same migrations in the same order on all nodes. Call this on the node that has most of them.';
        END IF;
        node := asked.node;
        reason := asked.reason;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Gives all nodes the migrations of this one, and has them applied there at the same time. No node receives a migration unless this
-- one has checked the authors of all of them, and all nodes that answer can take them. Raises an error if a node is not migrated.
CREATE OR REPLACE FUNCTION insta_ids_internal.migrate_nodes(batch integer, lock_timeout interval) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migrations CONSTANT jsonb := insta_ids_internal.migrations_json();
    failures jsonb;
    nodes name[];
    node name;
    connection text;
BEGIN
    PERFORM insta_ids_internal.require_trusted_author(m) FROM insta_ids_internal.migration m ORDER BY m.number;
    SELECT array_agg(n.node) FILTER (WHERE n.reason IS NULL),
           coalesce(jsonb_object_agg(n.node, n.reason) FILTER (WHERE n.reason IS NOT NULL), '{}')
    INTO nodes, failures FROM insta_ids_internal.nodes_to_migrate(migrations) n;
    FOREACH node IN ARRAY coalesce(nodes, '{}') LOOP
        connection := insta_ids_internal.connection_to(node);
        BEGIN
            PERFORM insta_ids_internal.connect_node(node, connection);
            PERFORM insta_ids_internal.ask_node(format('SELECT to_jsonb(true) FROM insta_ids_internal.take_migrations(%L, %L)',
                migrations, insta_ids.this_node()), connection);
            PERFORM insta_ids_internal.begin_to_ask_node(
                format('CALL insta_ids.migrate(batch => %s, lock_timeout => %L)', batch, lock_timeout), connection);
        EXCEPTION WHEN OTHERS THEN
            failures := failures || jsonb_build_object(node, SQLERRM);
        END;
    END LOOP;
    FOREACH node IN ARRAY coalesce(nodes, '{}') LOOP
        connection := insta_ids_internal.connection_to(node);
        BEGIN
            IF NOT failures ? node::text THEN
                PERFORM insta_ids_internal.await_node(connection);
                RAISE NOTICE 'migrate_fleet: node "%" is done', node;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            failures := failures || jsonb_build_object(node, SQLERRM);
        END;
        PERFORM insta_ids_internal.disconnect_node(connection);
    END LOOP;
    IF failures <> '{}' THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('%s of %s nodes are not migrated', (SELECT count(*) FROM jsonb_object_keys(failures)),
                (SELECT count(*) FROM insta_ids_internal.node)),
            DETAIL = (SELECT string_agg(format('Node "%s": %s.', f.key, rtrim(f.value, '.')), ' ' ORDER BY f.key) FROM jsonb_each_text(failures) f),
            HINT = 'See insta_ids.migration_status there, correct that, and call insta_ids.migrate_fleet() again.';
    END IF;
END
$$;

-- Each node is asked in a transaction that begins now, so this one has no older snapshot.
CREATE OR REPLACE PROCEDURE insta_ids.migrate_fleet(batch integer DEFAULT 50, lock_timeout interval DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
BEGIN
    CALL insta_ids_internal.new_transaction();
    PERFORM insta_ids_internal.migrate_nodes(batch, lock_timeout);
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.migrate_fleet(integer, interval) IS
    'gives all nodes of the map the migrations of this one, and applies them there';
