-- Ranges of time use the index of the id, and no column for the time is needed.
SET timezone = 'UTC';
SET datestyle = 'ISO';
CREATE TABLE photos (id bigint PRIMARY KEY, user_id int);
INSERT INTO photos
SELECT make_id('2026-01-01'::timestamptz + n * interval '1 minute', n % 16, n), n
FROM generate_series(0, 99999) n;
ANALYZE photos;

EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id >= id_min('2026-02-01') AND id < id_min('2026-02-02');
EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02');
SELECT count(*), min(id_time(id)), max(id_time(id)) FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02');
SELECT count(*) FROM photos WHERE id BETWEEN id_min('2026-02-01') AND id_max('2026-02-01 00:09:00');

-- Also when the instants are known only when the query runs.
PREPARE day(timestamptz) AS SELECT count(*) FROM photos WHERE id_between(id, $1, $1 + interval '1 day');
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE day('2026-02-01');
EXECUTE day('2026-02-01');
RESET plan_cache_mode;

-- Decoders are immutable, so they can be indexed.
CREATE INDEX ON photos (id_shard(id));
ANALYZE photos;
EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id_shard(id) = 3 AND user_id < 50;
SELECT count(*) FROM photos WHERE id_shard(id) = 3;

DROP TABLE photos;
