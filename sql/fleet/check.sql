-- The findings of all nodes, and whether the nodes agree.

CREATE OR REPLACE FUNCTION insta_ids.check_fleet()
    RETURNS TABLE (node name, severity text, code text, object text, detail text, hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answers jsonb := '{}';
    asked record;
    newest bigint;
    newest_on text;
BEGIN
    FOR asked IN
        SELECT * FROM insta_ids_internal.ask_fleet('SELECT jsonb_build_object(''map'', insta_ids.shard_map() - ''moving'', ''writer_slot'', insta_ids.writer_slot(),'
            || ' ''findings'', (SELECT jsonb_agg(f) FROM insta_ids.check() f),'
            || ' ''open'', (SELECT coalesce(jsonb_agg(s.shard), ''[]'') FROM insta_ids.shards s WHERE s.state = ''active''))')
    LOOP
        IF asked.reason IS NULL THEN
            answers := answers || jsonb_build_object(asked.node, asked.answer);
        ELSE
            RETURN QUERY SELECT asked.node, 'error', CASE WHEN asked.is_connected THEN 'other_answer' ELSE 'no_answer' END,
                quote_ident(asked.node), asked.reason,
                CASE WHEN asked.is_connected THEN 'Mend that there.'
                    ELSE 'Correct its connection string; or if the server is gone for good, promote its standby under the same'
                        || format(' name, and say where that is: SELECT insta_ids.add_node(%L, ...)', asked.node) END;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT a.key::name, f.severity, f.code, f.object, f.detail, f.hint
    FROM jsonb_each(answers) a, jsonb_populate_recordset(NULL::insta_ids.finding, nullif(a.value -> 'findings', 'null')) f;

    RETURN QUERY
    SELECT min(a.key)::name, 'error', 'open_twice', format('shard %s', o.shard),
           format('It is open to writers on the nodes %s.', string_agg(quote_ident(a.key), ', ' ORDER BY a.key)),
           format('On the node that it does not belong to: SELECT insta_ids.fence(%s)', o.shard)
    FROM jsonb_each(answers) a, jsonb_array_elements_text(a.value -> 'open') o (shard)
    GROUP BY o.shard HAVING count(*) > 1 ORDER BY o.shard::integer;

    SELECT (a.value #>> '{map,version}')::bigint, a.key INTO newest, newest_on
    FROM jsonb_each(answers) a ORDER BY 1 DESC, a.key LIMIT 1;
    RETURN QUERY
    SELECT a.key::name, CASE v.version WHEN newest THEN 'error' ELSE 'warning' END,
           CASE v.version WHEN newest THEN 'other_map' ELSE 'old_map' END, quote_ident(a.key),
           format('Its map has version %s, and version %s on node "%s".', v.version, newest, newest_on)
               || CASE v.version WHEN newest THEN ' They differ.' ELSE '' END,
           CASE v.version WHEN newest
               THEN 'Apply the map of each on the other by insta_ids.apply_map().'
               ELSE format('Apply there what insta_ids.shard_map() returns on node "%s": SELECT insta_ids.apply_map(...)', newest_on) END
    FROM jsonb_each(answers) a
    CROSS JOIN LATERAL (SELECT (a.value #>> '{map,version}')::bigint AS version) v
    -- A node that merged two maps has a higher version than one that got the result, and the same map.
    WHERE (a.value -> 'map') - 'version' <> (answers -> newest_on -> 'map') - 'version'
    ORDER BY a.key;

    -- Two servers may both have slot 0/1, because then only one of them mints for each shard.
    RETURN QUERY
    SELECT a.key::name, 'error', 'same_writer_slot', quote_ident(a.key),
           format('Its writer slot is %s, and that of node "%s" %s: they mint the same ids for a shard that both write to.',
               a.value ->> 'writer_slot', b.key, b.value ->> 'writer_slot'),
           'Set insta_ids.writer_slot in postgresql.conf on one of them, restart it, and take that: '
               || 'SELECT insta_ids.acquire_writer_slot(...)'
    FROM jsonb_each(answers) a
    JOIN jsonb_each(answers) b ON a.key < b.key
    WHERE insta_ids_internal.slots_overlap(a.value ->> 'writer_slot', b.value ->> 'writer_slot')
        AND (a.value ->> 'writer_slot', b.value ->> 'writer_slot') <> ('0/1', '0/1')
    ORDER BY a.key, b.key;
END
$$;
COMMENT ON FUNCTION insta_ids.check_fleet() IS
    'finds what is wrong on all nodes of the map, and in what they disagree';
