-- The findings of all nodes, and whether the nodes agree.

-- Returns findings about shards that are open to writers on several nodes, or on none. `answers` has the answer of each node, and
-- `newest_on` is the node with the newest map.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_places(answers jsonb, newest_on text, all_answered boolean)
    RETURNS TABLE (node name, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT min(a.key)::name, 'error', 'open_twice', format('shard %s', o.shard),
           format('It is open to writers on the nodes %s.', string_agg(quote_ident(a.key), ', ' ORDER BY a.key)),
           format('On the node that it does not belong to: SELECT insta_ids.fence(%s)', o.shard)
    FROM jsonb_each(answers) a, jsonb_array_elements_text(nullif(a.value -> 'open', 'null')) o (shard)
    GROUP BY o.shard HAVING count(*) > 1 ORDER BY o.shard::integer;
    -- A node that did not answer, or that this map does not have, may have the shard open.
    RETURN QUERY
    SELECT min(c.node)::name, 'warning', 'open_nowhere', format('shard %s', c.shard),
           'No node accepts writes to it.' || concat(
               ' It is fenced on ' || string_agg(quote_ident(c.node), ' and ' ORDER BY c.node) FILTER (WHERE c.is_fenced) || '.',
               ' It has left ' || string_agg(quote_ident(c.node), ' and ' ORDER BY c.node) FILTER (WHERE NOT c.is_fenced) || '.'),
           'See insta_ids.moves there.' || CASE
               WHEN bool_and(c.is_fenced) THEN format(' Without a move: SELECT insta_ids.unfence(%s)', c.shard)
               ELSE format(' If node %1$I has lost it, there: CALL insta_ids.move_abort(%2$s, %2$s, <node that it has left>, take_back => true),'
                   || ' or the same for all shards of the move', coalesce(min(p.node), min(c.node)), c.shard) END
    FROM (
        SELECT a.key AS node, s.shard::integer AS shard, k.list = 'closed' AS is_fenced
        FROM jsonb_each(answers) a CROSS JOIN unnest('{closed,departed}'::text[]) k (list),
            jsonb_array_elements_text(nullif(a.value -> k.list, 'null')) s (shard)
    ) c
    LEFT JOIN insta_ids_internal.placements(answers -> newest_on -> 'map' -> 'ranges') p ON p.shard = c.shard
    WHERE all_answered AND answers ? coalesce(p.node::text, c.node) AND c.shard < (SELECT g.shards FROM insta_ids_internal.config g)
        AND NOT EXISTS (
            SELECT FROM jsonb_each(answers) a, jsonb_array_elements_text(nullif(a.value -> 'open', 'null')) o (shard)
            WHERE o.shard::integer = c.shard)
    GROUP BY c.shard ORDER BY c.shard;
END
$$;

-- Returns findings about nodes with other migrations, with another map than the newest one, and with writer slots that mint the
-- same ids.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_agreement(answers jsonb, newest_on text)
    RETURNS TABLE (node name, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Each node is compared with the first one.
    RETURN QUERY
    WITH migrations AS (
        SELECT a.key::name AS node, m.name, string_agg(m.digest, ' ' ORDER BY m.digest) AS digest
        FROM jsonb_each(answers) a, jsonb_populate_recordset(NULL::insta_ids_internal.migration_digest, nullif(a.value -> 'migrations', 'null')) m
        GROUP BY 1, 2
    )
    SELECT n.node::name, CASE WHEN 0 IN (count(m.here), count(m.there)) THEN 'warning' ELSE 'error' END, 'other_migrations',
           quote_ident(n.node),
           format('%s of its migrations are missing on node "%s" or differ there, and it lacks %s of that node, for example "%s".',
               count(m.name) FILTER (WHERE m.here IS NOT NULL), f.node, count(m.name) FILTER (WHERE m.here IS NULL), "left"(min(m.name), 100)),
           CASE WHEN count(m.here) = 0 THEN format('On node %I: CALL insta_ids.migrate_fleet()', f.node)
               WHEN count(m.there) = 0 THEN format('On node %I: CALL insta_ids.migrate_fleet()', n.node)
               ELSE 'Compare insta_ids.migration_status of both nodes.' END
    FROM jsonb_object_keys(answers) n (node)
    CROSS JOIN (SELECT min(k) FROM jsonb_object_keys(answers) k) f (node)
    CROSS JOIN LATERAL (
        SELECT name, h.digest AS here, t.digest AS there
        FROM (SELECT * FROM migrations o WHERE o.node = n.node) h
        FULL JOIN (SELECT * FROM migrations o WHERE o.node = f.node) t USING (name)
        WHERE h.digest IS DISTINCT FROM t.digest
    ) m
    WHERE n.node <> f.node
    GROUP BY n.node, f.node ORDER BY n.node;

    RETURN QUERY
    SELECT a.key::name, CASE v.version WHEN n.newest THEN 'error' ELSE 'warning' END,
           CASE v.version WHEN n.newest THEN 'other_map' ELSE 'old_map' END, quote_ident(a.key),
           format('Its map has version %s, and version %s on node "%s".', v.version, n.newest, newest_on)
               || CASE v.version WHEN n.newest THEN ' They differ.' ELSE '' END,
           CASE v.version WHEN n.newest
               THEN 'Apply the map of each on the other by insta_ids.apply_map().'
               ELSE format('Apply there what insta_ids.shard_map() returns on node "%s": SELECT insta_ids.apply_map(...)', newest_on) END
    FROM jsonb_each(answers) a
    CROSS JOIN LATERAL (SELECT (a.value -> 'version')::bigint AS version) v
    CROSS JOIN (SELECT (answers -> newest_on -> 'version')::bigint AS newest) n
    -- A node that merged two maps has a higher version than one that got the result, and the same map.
    WHERE a.value -> 'map' <> answers -> newest_on -> 'map'
    ORDER BY a.key;

    -- Two servers may both have slot 0/1, because then only one of them mints for each shard.
    RETURN QUERY
    WITH writers AS (
        SELECT a.key::name AS node, (a.value -> 'slot')::bigint AS slot, (a.value -> 'slots')::bigint AS slots FROM jsonb_each(answers) a
        WHERE (a.value -> 'slots')::bigint > 0
    )
    SELECT a.node, 'error', 'same_writer_slot', quote_ident(a.node),
           format('Its writer slot is %s/%s, and that of node "%s" %s/%s: they mint the same ids for a shard that both write to.',
               a.slot, a.slots, b.node, b.slot, b.slots),
           'Set insta_ids.writer_slot in postgresql.conf on one of them, restart it, and take that: '
               || 'SELECT insta_ids.acquire_writer_slot(...)'
    FROM writers a
    -- Numbers of slots are powers of two, so each slot of the smaller number consists of slots of the greater one.
    JOIN writers b ON a.node < b.node AND a.slot % least(a.slots, b.slots) = b.slot % least(a.slots, b.slots)
    WHERE (a.slots, b.slots) <> (1, 1)
    ORDER BY a.node, b.node;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_fleet()
    RETURNS TABLE (node name, severity text, code text, object text, detail text, hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answers jsonb := '{}';
    asked record;
    newest_on text;
    all_answered boolean := true;
BEGIN
    FOR asked IN
        SELECT * FROM insta_ids_internal.ask_fleet('SELECT jsonb_build_object(''map'', m.map - ''version'', ''version'', m.map -> ''version'','
            || ' ''slot'', split_part(insta_ids.writer_slot(), ''/'', 1), ''slots'', split_part(insta_ids.writer_slot(), ''/'', 2),'
            || ' ''findings'', (SELECT jsonb_agg(f) FROM insta_ids.check() f),'
            || ' ''open'', (SELECT jsonb_agg(s.shard) FROM insta_ids_internal.shards s WHERE s.state IN (''active'', ''moving'')),'
            || ' ''closed'', (SELECT jsonb_agg(s.shard) FROM insta_ids_internal.shards s WHERE s.state IN (''fenced'', ''arriving'')),'
            || ' ''departed'', (SELECT jsonb_agg(d.shard) FROM insta_ids_internal.departed_shard d),'
            || ' ''migrations'', (SELECT jsonb_agg(jsonb_build_object(''name'', m.name, ''digest'', encode(sha256(convert_to('
            || 'ROW(m.number, m.ddl, m.transactional, m.check_ids, extract(epoch FROM m.ids_since))::text, ''UTF8'')), ''hex'')))'
            || ' FROM insta_ids_internal.migration m))'
            || ' FROM (SELECT insta_ids.shard_map() - ''moving'') m (map)', NULL::insta_ids_internal.node_check)
    LOOP
        IF asked.reason IS NULL THEN
            answers := answers || jsonb_build_object(asked.node, asked.answer);
        ELSE
            all_answered := false;
            RETURN QUERY SELECT asked.node, 'error', CASE WHEN asked.is_connected THEN 'other_answer' ELSE 'no_answer' END,
                quote_ident(asked.node), asked.reason,
                CASE WHEN asked.is_connected THEN 'Correct that there.'
                    ELSE 'Correct its connection string; or if the server is gone for good, promote its standby under the same'
                        || format(' name, and say where that is: SELECT insta_ids.add_node(%L, ...)', asked.node) END;
        END IF;
    END LOOP;
    -- What to do is said where it is to be done: another server does not write statements for this one.
    RETURN QUERY
    SELECT a.key::name, f.severity, f.code, f.object, f.detail,
           CASE WHEN a.key = insta_ids.this_node() THEN f.hint
               WHEN f.hint IS NOT NULL THEN format('On node %I, call insta_ids.check().', a.key) END
    FROM jsonb_each(answers) a, jsonb_populate_recordset(NULL::insta_ids.finding, nullif(a.value -> 'findings', 'null')) f;

    newest_on := (SELECT a.key FROM jsonb_each(answers) a ORDER BY (a.value -> 'version')::bigint DESC, a.key LIMIT 1);
    RETURN QUERY
    SELECT * FROM insta_ids_internal.check_places(answers, newest_on, all_answered)
    UNION ALL SELECT * FROM insta_ids_internal.check_agreement(answers, newest_on);
END
$$;
COMMENT ON FUNCTION insta_ids.check_fleet() IS
    'finds what is wrong on all nodes of the map, and in what they disagree';
