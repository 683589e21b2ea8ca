-- Reading ids.
SET timezone = 'UTC';
SET datestyle = 'ISO';
\set VERBOSITY default

-- Ids of Instagram's own.
SELECT id, p.* FROM (VALUES (482584233761418119), (1455920561485265648), (3610360906330268046)) v(id), id_parts(id) p;
SELECT id_time(id), id_shard(id), id_seq(id) FROM (VALUES (3610360906330268046)) v(id);

-- The ends.
SELECT id, p.* FROM (VALUES (0), (9223372036854775807), (-1), (-9223372036854775808)) v(id), id_parts(id) p;

-- The bounds of a millisecond; finer instants fall to theirs.
SELECT id_min('2026-01-01'), id_max('2026-01-01');
SELECT id_parts(id_min('2026-01-01 00:00:00.000999')), id_parts(id_max('2026-01-01 00:00:00.000999'));
SELECT id_max('2026-01-01') + 1 = id_min('2026-01-01 00:00:00.001') AS adjacent;
SELECT id_min('2011-08-24 21:07:01.721'), id_max('2046-06-27 17:00:49.496999');

-- NULL in, NULL out, and one row of them.
SELECT id_time(NULL), id_shard(NULL), id_seq(NULL), id_min(NULL), id_max(NULL), id_between(NULL, now(), now());
SELECT * FROM id_parts(NULL);

-- Instants that no id holds.
SELECT id_min('2011-08-24 21:07:01.720999');
SELECT id_max('2046-06-27 17:00:49.497');
SELECT id_min('infinity');
SELECT id_max('-infinity');
SELECT id_min('0001-01-01 BC');
SELECT id_max('294276-12-31');
SELECT id_between(0, '2000-01-01', '2027-01-01');
\set VERBOSITY sqlstate
SELECT id_min('2000-01-01');
SELECT id_max('2050-01-01');
