-- Checks of the map, schemas and migrations.

-- Returns findings about the map, the fences and the moves on this server.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids_internal.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids_internal.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids_internal.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids_internal.shard_schema s
    LEFT JOIN insta_ids_internal.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids_internal.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'citus_with_map', min(r.relation::text),
           format('The map has shard %s on %s, and Citus has rows of this table, on nodes of its own.', r.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('Use one of the two. Without Citus: SELECT undistribute_table(%L)', min(r.relation::text))
    FROM insta_ids_internal.shard_relation r
    JOIN pg_class c ON c.oid = r.relation
    LEFT JOIN insta_ids_internal.assignment a ON r.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam) = 'Citus table'
    GROUP BY r.shard, a.node ORDER BY r.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids_internal.fence f
    JOIN insta_ids_internal.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND EXISTS (
            -- close_shards() makes these triggers.
            SELECT FROM (VALUES
                ('insta_ids_fence', true, CASE WHEN f.to_node = here THEN 'O' ELSE 'A' END),
                ('insta_ids_fence_rows', r.kind = 'r' AND f.to_node IS DISTINCT FROM here, 'R')
            ) n (name, is_needed, enabled)
            WHERE n.is_needed AND NOT EXISTS (
                SELECT FROM pg_trigger t
                WHERE t.tgrelid = r.relation AND t.tgname = n.name AND t.tgenabled = n.enabled))
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'error', 'move_in_doubt', m.name::text,
           format('This server was promoted while shards from %s to %s were moving; they may be open to writers on node "%s".',
               m.first, m.last, m.to_node), v.next
    FROM insta_ids_internal.move m JOIN insta_ids_internal.moves v ON v.name = m.name
    WHERE insta_ids_internal.is_in_doubt(m.shards) ORDER BY m.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids_internal.move m JOIN insta_ids_internal.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- Returns findings about missing schemas, and about schemas that only look like those of shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_schemas() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- The planner does not know the number of shards until the table is analyzed.
    SET enable_nestloop = off
AS $$
DECLARE
    config insta_ids_internal.config := insta_ids_internal.require_config();
BEGIN
    RETURN QUERY
    SELECT 'error', 'missing_schema', quote_ident(s.schema),
           format('Shard %s has lost its schema.', s.shard),
           format('Restore it, or forget the shard: SELECT insta_ids.drop_shard(%s)', s.shard)
    FROM insta_ids_internal.shard_schema s WHERE s.oid IS NULL ORDER BY s.shard;

    RETURN QUERY
    SELECT 'warning', 'unmanaged_schema', quote_ident(n.nspname),
           CASE WHEN number = shard::text AND shard < config.shards
               THEN format('It is called like shard %s, which is not there.', shard)
               ELSE 'Its name is almost that of a shard.' END,
           format('%s: ALTER SCHEMA %I RENAME TO %I',
               CASE WHEN number = shard::text AND shard < config.shards
                   THEN 'Call insta_ids.adopt(), or rename it' ELSE 'Rename it' END,
               n.nspname, 'not_' || n.nspname)
    FROM pg_namespace n
    CROSS JOIN LATERAL substr(n.nspname, length(config.prefix) + 1) number
    CROSS JOIN LATERAL (SELECT CASE WHEN number ~ '^[0-9]{1,9}$' THEN number::integer END) s (shard)
    WHERE starts_with(n.nspname, config.prefix) AND number ~ '^[0-9]'
        AND NOT EXISTS (SELECT FROM insta_ids_internal.shard_schema m WHERE m.oid = n.oid)
        AND NOT EXISTS (SELECT FROM insta_ids_internal.departed_shard d WHERE d.schema = n.nspname)
    ORDER BY length(n.nspname), n.nspname;
END
$$;

-- Returns findings about migrations that some shards lack.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_migrations() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE sql SET jit = off
BEGIN ATOMIC
    SELECT CASE s.state WHEN 'failed' THEN 'error' ELSE 'warning' END, s.state || '_migration', m.name,
           CASE s.state
               WHEN 'failed' THEN format('Shards in which it failed: %s. The first is shard %s: %s',
                   count(*), min(s.shard), (array_agg(s.message ORDER BY s.shard))[1])
               ELSE format('Shards that lack it: %s. The first is shard %s.', count(*), min(s.shard))
           END,
           CASE WHEN s.state = 'failed' THEN 'Mend what it failed with, then: ' ELSE '' END
           || CASE WHEN m.transactional THEN 'CALL insta_ids.migrate()'
               ELSE format($hint$In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec$hint$, m.name) END
    FROM insta_ids_internal.migration_status s
    JOIN insta_ids_internal.migration m ON m.number = s.number
    WHERE s.state <> 'applied'
    GROUP BY s.state, m.number ORDER BY m.number, s.state;
END;
