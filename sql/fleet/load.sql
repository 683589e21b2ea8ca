-- What shards and nodes have to do.

-- Returns what the view shard_load shows. It has the rights of its owner, because pg_monitor may not read users' sequences.
-- Reading them runs no code of others.
CREATE OR REPLACE FUNCTION insta_ids_internal.stat_get_shards()
    RETURNS TABLE (
        shard integer, rows bigint, bytes bigint, ids bigint, inserted bigint, updated bigint, deleted bigint, read bigint,
        blocks_hit bigint, blocks_read bigint, since timestamptz
    )
    VOLATILE PARALLEL UNSAFE LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.shard,
           coalesce(sum(pg_catalog.pg_stat_get_live_tuples(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint,
           coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)) FILTER (WHERE c.relkind IN ('r', 'm')), 0)::bigint,
           greatest(-9e18, least(9e18, coalesce(
               sum(trunc((insta_ids_internal.last_value(c.oid)::numeric - q.seqstart) / q.seqincrement)), 0)))::bigint,
           coalesce(sum(pg_catalog.pg_stat_get_tuples_inserted(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint,
           coalesce(sum(pg_catalog.pg_stat_get_tuples_updated(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint,
           coalesce(sum(pg_catalog.pg_stat_get_tuples_deleted(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint,
           -- Rows of a sequential scan are counted for the table, and those found by an index for the index.
           coalesce(sum(CASE c.relkind WHEN 'r' THEN pg_catalog.pg_stat_get_tuples_returned(c.oid) ELSE 0 END
               + pg_catalog.pg_stat_get_tuples_fetched(c.oid)) FILTER (WHERE c.relkind IN ('r', 'i')), 0)::bigint,
           coalesce(sum(b.hit), 0)::bigint, coalesce(sum(b.fetched - b.hit), 0)::bigint,
           pg_catalog.pg_stat_get_db_stat_reset_time(d.oid)
    FROM insta_ids_internal.shard_schema s
    JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
    LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'i', 'm', 'S')
    LEFT JOIN pg_catalog.pg_sequence q ON q.seqrelid = c.oid
    CROSS JOIN LATERAL (
        SELECT sum(pg_catalog.pg_stat_get_blocks_fetched(o)) AS fetched, sum(pg_catalog.pg_stat_get_blocks_hit(o)) AS hit
        FROM (VALUES (c.oid), (c.reltoastrelid)) r (o) WHERE o > 0
    ) b
    GROUP BY s.shard, d.oid;
END;

CREATE OR REPLACE VIEW insta_ids.shard_load AS SELECT * FROM insta_ids_internal.stat_get_shards();
COMMENT ON VIEW insta_ids.shard_load IS 'the size of each shard here, and what its clients have done';

-- Returns what other nodes ask this one about itself. With `with_shards`, it has the load of each shard that is here.
CREATE OR REPLACE FUNCTION insta_ids_internal.node_report(with_shards boolean) RETURNS jsonb
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        WITH load AS MATERIALIZED (
            SELECT l.*, h.is_pinned, f.shard IS NOT NULL AS is_fenced, f.to_node
            FROM insta_ids_internal.stat_get_shards() l
            JOIN insta_ids_internal.shard h ON h.shard = l.shard
            LEFT JOIN insta_ids_internal.fence f ON f.shard = l.shard
            -- What comes here is still on the other node.
            WHERE f.to_node IS DISTINCT FROM insta_ids.this_node()::name
        )
        SELECT to_jsonb(v) || jsonb_build_object(
            'node', insta_ids.this_node(), 'time', extract(epoch FROM clock_timestamp()),
            'pending', (SELECT count(*) FROM insta_ids_internal.shard) * (SELECT count(*) FROM insta_ids_internal.migration)
                - (SELECT count(*) FROM insta_ids_internal.shard_migration a WHERE a.message IS NULL),
            'moves', (SELECT count(*) FROM insta_ids_internal.move),
            'standbys', (SELECT coalesce(jsonb_agg(s.standby), '[]') FROM insta_ids_internal.connected_standbys() s),
            'shards', (SELECT count(*) FROM load),
            -- If shards came or left between two reports, this differs.
            'held', (SELECT md5(string_agg(l.shard::text, ' ' ORDER BY l.shard)) FROM load l),
            'remains', (SELECT coalesce(jsonb_agg(d.shard), '[]') FROM insta_ids_internal.departed_shard d WHERE d.schema IS NOT NULL),
            'total', (
                SELECT to_jsonb(t) FROM (
                    SELECT coalesce(sum(l.rows), 0) AS rows, coalesce(sum(l.bytes), 0) AS bytes, coalesce(sum(l.ids), 0) AS ids,
                           coalesce(sum(l.inserted), 0) AS inserted, coalesce(sum(l.updated), 0) AS updated,
                           coalesce(sum(l.deleted), 0) AS deleted, coalesce(sum(l.read), 0) AS read
                    FROM load l
                ) t),
            'load', (SELECT coalesce(jsonb_agg(to_jsonb(l)), '[]') FROM load l WHERE with_shards))
        FROM insta_ids.version() v);
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.fleet(sample interval DEFAULT '1 s')
    RETURNS TABLE (
        node name, is_reachable boolean, reason text, library text, extension text, map bigint, clock_offset interval,
        shards integer, rows bigint, bytes bigint, ids_per_s float8, inserted_per_s float8, updated_per_s float8,
        deleted_per_s float8, read_per_s float8, pending bigint, moves integer, standbys text[]
    )
    VOLATILE STRICT PARALLEL UNSAFE ROWS 10 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    question CONSTANT text := 'SELECT insta_ids_internal.node_report(false)';
    before jsonb;
BEGIN
    PERFORM insta_ids_internal.require_sample(sample);
    before := (
        SELECT jsonb_object_agg(a.node, a.answer) FROM insta_ids_internal.ask_fleet(question, NULL::insta_ids_internal.node_report) a);
    PERFORM insta_ids_internal.wait_ms((extract(epoch FROM sample) * 1000)::integer);
    RETURN QUERY
    SELECT a.node, a.reason IS NULL, a.reason, (a.answer).library, (a.answer).extension, (a.answer).map::bigint,
           date_trunc('milliseconds', a.clock_offset), (a.answer).shards, (a.answer).total.rows, (a.answer).total.bytes,
           insta_ids_internal.rate(b.was, b.now, 'ids'), insta_ids_internal.rate(b.was, b.now, 'inserted'),
           insta_ids_internal.rate(b.was, b.now, 'updated'), insta_ids_internal.rate(b.was, b.now, 'deleted'),
           insta_ids_internal.rate(b.was, b.now, 'read'), (a.answer).pending, (a.answer).moves,
           coalesce((a.answer).standbys, '{}')
    FROM insta_ids_internal.ask_fleet(question, NULL::insta_ids_internal.node_report) a
    CROSS JOIN LATERAL (SELECT before -> a.node::text, to_jsonb(a.answer)) b (was, now);
END
$$;
COMMENT ON FUNCTION insta_ids.fleet(interval) IS 'how each node of the map is, and how much it has to do';

-- Raises an error unless a sample is a time that a statement can wait.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_sample(sample interval) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF sample NOT BETWEEN interval '10 ms' AND interval '1 day' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('sample cannot take %s', sample),
            DETAIL = 'It can take from 10 ms to 1 day.';
    END IF;
END
$$;

-- Returns by how much a total grew each second between two reports of a node. NULL if one of them is missing, or if shards came or
-- left or counters were reset between them.
CREATE OR REPLACE FUNCTION insta_ids_internal.rate(before jsonb, after jsonb, total text) RETURNS float8
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE WHEN more >= 0 AND before -> 'held' = after -> 'held' THEN pg_catalog.round((more
        / nullif((after ->> 'time')::numeric - (before ->> 'time')::numeric, 0)), 1)::float8 END
    FROM (SELECT (after -> 'total' ->> total)::numeric - (before -> 'total' ->> total)::numeric) m (more);
END;
