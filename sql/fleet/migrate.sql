-- Migrations of all nodes.

-- Returns the migrations of this node, as the others take them.
CREATE OR REPLACE FUNCTION insta_ids_internal.migrations_json() RETURNS jsonb
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT coalesce(pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('number', m.number, 'name', m.name, 'ddl', m.ddl,
            'transactional', m.transactional, 'check_ids', m.check_ids, 'ids_since', m.ids_since) ORDER BY m.number), '[]')
        FROM insta_ids_internal.migration m);

CREATE OR REPLACE PROCEDURE insta_ids.migrate_fleet(batch integer DEFAULT 50, lock_timeout text DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    migrations pg_catalog.jsonb;
    asked pg_catalog.record;
    failures pg_catalog.jsonb := '{}';
    nodes pg_catalog.name[] := '{}';
    node pg_catalog.name;
    connection pg_catalog.text;
BEGIN
    CALL insta_ids_internal.new_transaction();
    migrations := insta_ids_internal.migrations_json();
    -- No node gets a migration unless all nodes that answer can take all of them.
    FOR asked IN SELECT * FROM insta_ids_internal.ask_fleet('SELECT insta_ids_internal.migrations_json()') LOOP
        IF asked.reason IS NOT NULL THEN
            failures := failures || jsonb_build_object(asked.node, asked.reason);
        ELSIF insta_ids_internal.first_difference(migrations, asked.answer) IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('migrations of node "%s" are not those of this node', asked.node),
                DETAIL = format('The first that differs is "%s".', insta_ids_internal.first_difference(migrations, asked.answer)),
                HINT = 'Add the same migrations in the same order on all nodes. Call this on the node that has most of them.';
        ELSE
            nodes := nodes || asked.node;
        END IF;
    END LOOP;
    FOREACH node IN ARRAY nodes LOOP
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
    FOREACH node IN ARRAY nodes LOOP
        CONTINUE WHEN failures ? node::text;
        connection := insta_ids_internal.connection_to(node);
        BEGIN
            PERFORM insta_ids_internal.await_node(connection);
            RAISE NOTICE 'migrate_fleet: node "%" is done', node;
        EXCEPTION WHEN OTHERS THEN
            failures := failures || jsonb_build_object(node, SQLERRM);
        END;
        PERFORM insta_ids_internal.disconnect_node(connection);
    END LOOP;
    IF failures <> '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('%s of %s nodes are not migrated', (SELECT count(*) FROM jsonb_object_keys(failures)),
                (SELECT count(*) FROM insta_ids_internal.node)),
            DETAIL = (SELECT string_agg(format('Node "%s": %s.', f.key, rtrim(f.value, '.')), ' ' ORDER BY f.key) FROM jsonb_each_text(failures) f),
            HINT = 'See insta_ids.migration_status there, mend that, and call insta_ids.migrate_fleet() again.';
    END IF;
    -- From here on, names would be looked up in schemas of others.
    PERFORM set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.migrate_fleet(integer, text) IS
    'gives all nodes of the map the migrations of this one, and applies them there';

-- Returns the name of the first migration of `first_ones` that is not at its place in `all_of_them`, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.first_difference(all_of_them jsonb, first_ones jsonb) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT m.migration ->> 'name' FROM jsonb_array_elements(first_ones) WITH ORDINALITY m (migration, place)
    WHERE m.migration IS DISTINCT FROM all_of_them -> (m.place - 1)::integer ORDER BY m.place LIMIT 1;
END;
