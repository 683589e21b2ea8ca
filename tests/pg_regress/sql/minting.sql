-- Minting: what is refused, and how.
SET timezone = 'UTC';
SET datestyle = 'ISO';
\set VERBOSITY default
CREATE SEQUENCE s;
CREATE TABLE t (id bigint DEFAULT next_id(5, 's'), note text);

-- The way it is used.
INSERT INTO t (note) VALUES ('one') RETURNING id_shard(id), id_seq(id), id_time(id) BETWEEN now() - interval '1 ms' AND clock_timestamp() + interval '10 ms' AS now;
SELECT count(*), count(DISTINCT id) FROM next_ids(5, 's', 5000) id;
SELECT count(*) FROM next_ids(5, 's', 0);
SELECT id_seq(next_id(8191, 's')) = currval('s') % 1024 AS same, id_seq(next_id(0, 's')) = lastval() % 1024 AS same;

-- A default is bound to its sequence, not to the name.
ALTER SEQUENCE s RENAME TO renamed;
INSERT INTO t (note) VALUES ('two') RETURNING id_shard(id);
DROP SEQUENCE renamed;
ALTER SEQUENCE renamed RENAME TO s;

-- make_id: known parts make a known id.
SELECT make_id('2025-04-14 05:29:40.386', 4472, 398);
SELECT make_id('2025-04-14 05:29:40.386999', 4472, 1024 * 1000 + 398);
SELECT make_id('2011-08-24 21:07:01.721', 0, 0), make_id('2046-06-27 17:00:49.496', 8191, 1023);

-- NULL in, NULL out, and no value taken.
SELECT last_value AS before FROM s \gset
SELECT next_id(NULL, 's'), next_id(5, NULL), make_id(NULL, 1, 1);
SELECT count(*) FROM next_ids(5, 's', NULL);
SELECT last_value = :before AS none_taken FROM s;

-- Shards.
SELECT next_id(-1, 's');
SELECT next_id(8192, 's');
SELECT next_ids(-2147483648, 's', 1);
SELECT make_id('2026-01-01', 8192, 1);
SELECT last_value = :before AS none_taken FROM s;

-- Counts.
SELECT next_ids(5, 's', -1);
SELECT next_ids(5, 's', 2147483647) LIMIT 0;
SELECT count(*) FROM (SELECT next_ids(5, 's', 2147483647) LIMIT 10) few;

-- Times.
SELECT make_id('2011-08-24 21:07:01.720', 5, 1);
SELECT make_id('2046-06-27 17:00:49.497', 5, 1);
SELECT make_id('infinity', 5, 1);
SELECT make_id('-infinity', 5, 1);

-- Sequences.
SELECT next_id(5, 'nowhere');
SELECT next_id(5, 4294967295::oid);
SELECT next_id(5, 0::oid);
SELECT make_id('2026-01-01', 5, -1);
CREATE SEQUENCE negative INCREMENT -1;
SELECT next_id(5, 'negative');
CREATE SEQUENCE short MAXVALUE 2;
SELECT count(next_id(5, 'short')) FROM generate_series(1, 2);
SELECT next_id(5, 'short');
\set VERBOSITY sqlstate
SELECT next_id(5, 't');
SELECT next_id(5, 'pg_class_oid_index');
SELECT next_id(8192, 's');
SELECT next_ids(5, 's', -1);
SELECT make_id('infinity', 5, 1);
SELECT make_id('2026-01-01', 5, -1);
SELECT next_id(5, 4294967295::oid);
SELECT next_id(5, 'short');
\set VERBOSITY default

-- Privileges are nextval's: USAGE or UPDATE on the sequence.
CREATE ROLE regress_app;
SET ROLE regress_app;
SELECT next_id(5, 's');
\set VERBOSITY sqlstate
SELECT next_id(5, 's');
\set VERBOSITY default
RESET ROLE;
GRANT SELECT ON SEQUENCE s TO regress_app;
SET ROLE regress_app;
SELECT next_id(5, 's');
RESET ROLE;
GRANT USAGE ON SEQUENCE s TO regress_app;
SET ROLE regress_app;
SELECT id_shard(next_id(5, 's'));
RESET ROLE;
DROP OWNED BY regress_app;
DROP ROLE regress_app;

-- Read-only transactions, also on a temporary sequence.
CREATE TEMPORARY SEQUENCE own;
SELECT id_shard(next_id(5, 'own'));
BEGIN READ ONLY;
SELECT next_id(5, 's');
ROLLBACK;
BEGIN READ ONLY;
SELECT next_id(5, 'own');
ROLLBACK;
BEGIN READ ONLY;
\set VERBOSITY sqlstate
SELECT next_id(5, 's');
\set VERBOSITY default
ROLLBACK;
BEGIN READ ONLY;
SELECT id_time(0), make_id('2026-01-01', 5, 1);
ROLLBACK;

DROP TABLE t;
DROP SEQUENCE s, negative, short;
