-- Where the decoders serve as keys.
SET timezone = 'UTC';
SET datestyle = 'ISO';
CREATE TABLE photos (
    id bigint PRIMARY KEY,
    user_id int,
    at timestamptz GENERATED ALWAYS AS (id_time(id)) STORED,
    shard int GENERATED ALWAYS AS (id_shard(id)) STORED
);
INSERT INTO photos
SELECT make_id('2026-01-01'::timestamptz + n * interval '1 minute', n % 1000, n), n
FROM generate_series(0, 99999) n;

-- Generated columns.
SELECT * FROM photos WHERE user_id = 77777;
SELECT count(*) FROM photos WHERE at <> id_time(id) OR shard <> id_shard(id);

-- Indexes of expressions.
CREATE INDEX photos_shard ON photos (id_shard(id));
CREATE INDEX photos_time ON photos (id_time(id));
VACUUM ANALYZE photos;
EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id_shard(id) = 777;
SELECT count(*) FROM photos WHERE id_shard(id) = 777;
EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id_time(id) >= '2026-02-01' AND id_time(id) < '2026-02-02' ORDER BY id_time(id);
SELECT count(*) FROM photos WHERE id_time(id) >= '2026-02-01' AND id_time(id) < '2026-02-02';

-- A range of time by the primary key needs none of them.
DROP INDEX photos_time, photos_shard;
EXPLAIN (COSTS OFF) SELECT * FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02') ORDER BY id DESC LIMIT 20;
SELECT count(*) FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02');

-- Nor does a BRIN index, in a thousandth of the space.
ALTER TABLE photos DROP CONSTRAINT photos_pkey;
CREATE INDEX photos_brin ON photos USING brin (id) WITH (pages_per_range = 16);
EXPLAIN (COSTS OFF) SELECT count(*) FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02');
SELECT count(*) FROM photos WHERE id_between(id, '2026-02-01', '2026-02-02');
DROP TABLE photos;

-- Partitions by shard.
CREATE TABLE by_shard (id bigint) PARTITION BY LIST (id_shard(id));
CREATE TABLE shard_5 PARTITION OF by_shard FOR VALUES IN (5);
CREATE TABLE shard_6_7 PARTITION OF by_shard FOR VALUES IN (6, 7);
INSERT INTO by_shard SELECT make_id('2026-01-01', shard, 1) FROM generate_series(5, 7) shard;
SELECT tableoid::regclass, id_shard(id) FROM by_shard ORDER BY id;
EXPLAIN (COSTS OFF) SELECT * FROM by_shard WHERE id_shard(id) = 7;
INSERT INTO by_shard VALUES (make_id('2026-01-01', 8, 1));

-- Partitions by the time itself: their bounds are readable, but there can be no primary key, and only conditions
-- on id_time prune.
CREATE TABLE by_time (id bigint) PARTITION BY RANGE (id_time(id));
CREATE TABLE january PARTITION OF by_time FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE february PARTITION OF by_time FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO by_time VALUES (make_id('2026-01-31 23:59:59.999', 5, 1)), (make_id('2026-02-01', 5, 1));
SELECT tableoid::regclass, id_time(id) FROM by_time ORDER BY id;
EXPLAIN (COSTS OFF) SELECT * FROM by_time WHERE id_time(id) >= '2026-02-05' AND id_time(id) < '2026-02-06';
EXPLAIN (COSTS OFF) SELECT * FROM by_time WHERE id_between(id, '2026-02-05', '2026-02-06');
ALTER TABLE by_time ADD PRIMARY KEY (id);
DROP TABLE by_shard, by_time;
