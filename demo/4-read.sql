-- What was inserted: every id in its shard, none twice, and when it was
VACUUM ANALYZE;
SELECT 'photos' AS kind, count(*) AS rows, count(DISTINCT shard) AS shards, count(DISTINCT id) AS distinct_ids,
       count(*) FILTER (WHERE id_shard(id) <> shard OR shard <> user_id % 16) AS in_the_wrong_shard,
       min(id_time(id)) AS first, max(id_time(id)) AS last
FROM photos
UNION ALL
SELECT 'likes', count(*), count(DISTINCT shard), count(DISTINCT id),
       count(*) FILTER (WHERE id_shard(id) <> shard OR shard <> user_id % 16),
       min(id_time(id)), max(id_time(id))
FROM likes;

\echo 'The photos of a tenth of a second, found by their ids alone:'
SELECT id_time(id) AS from, id_time(id) + interval '100 ms' AS to FROM insta5.photos ORDER BY id OFFSET 1000 LIMIT 1 \gset
SELECT count(*), min(id_time(id)), max(id_time(id)) FROM insta5.photos WHERE id BETWEEN id_min(:'from') AND id_max(:'to');
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
SELECT * FROM insta5.photos WHERE id BETWEEN id_min(:'from') AND id_max(:'to');
