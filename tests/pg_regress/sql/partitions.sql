-- Partitions by time.
SET timezone = 'Europe/Berlin';
SET datestyle = 'ISO';
\set VERBOSITY default
\set SHOW_CONTEXT never

-- Months, from the one that holds first on; a second call makes what is missing.
CREATE TABLE photos (id bigint PRIMARY KEY, user_id int) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('photos', '1 month', '2026-03-15', '2026-05-01');
SELECT insta_ids.create_partitions('photos', '1 month', '2026-03-15', '2026-05-01');
SELECT insta_ids.create_partitions('photos', '1 month', '2026-03-15', '2026-05-02');
SELECT * FROM insta_ids.partitions('photos');
SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'photos_2026_05';
SELECT id_min('2026-05-01'), id_min('2026-06-01');
SELECT * FROM insta_ids_internal.partitioned_table;
-- The one that begins at last is not made.
SELECT insta_ids.create_partitions('photos', '1 month', '2026-06-01', '2026-06-01');
-- Whatever its name is.
ALTER TABLE photos_2026_05 RENAME TO may;
SELECT insta_ids.create_partitions('photos', '1 month', '2026-05-01', '2026-06-01');

-- Rows go there.
INSERT INTO photos VALUES (make_id('2026-03-31 23:59:59.999', 5, 1)), (make_id('2026-04-01', 5, 1));
SELECT tableoid::regclass, id_time(id) FROM photos ORDER BY id;
INSERT INTO photos VALUES (make_id('2026-06-01', 5, 1));

-- The time zone of the first call holds, also in sessions of another one.
SET timezone = 'UTC';
SELECT insta_ids.create_partitions('photos', '1 month', '2026-07-01', '2026-08-01');
SELECT insta_ids.create_partitions('photos', '1 month', '2026-07-01', '2026-08-01', 'europe/berlin');
SELECT insta_ids.create_partitions('photos', '1 month', '2026-07-01', '2026-08-01', 'Asia/Tokyo');
SELECT partition, times FROM insta_ids.partitions('photos') WHERE lower(times) > '2026-06-15';

-- Whole ones only: lower bound inclusive, upper exclusive.
SELECT insta_ids.drop_partitions('photos', '2026-04-30 21:59:59.999');
SELECT insta_ids.drop_partitions('photos', '2026-04-30 22:00');
SELECT insta_ids.drop_partitions('photos', '2026-04-30 22:00');
SELECT insta_ids.drop_partitions('photos', '2000-01-01');
SELECT insta_ids.drop_partitions('photos', '-infinity');
SELECT partition FROM insta_ids.partitions('photos');
DROP TABLE photos;

-- Other lengths.
SET timezone = 'Europe/Berlin';
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '3 months', '2026-03-15', '2026-04-02');
SELECT insta_ids.create_partitions('t', '1 year', '2027-03-15', '2027-03-15');
SELECT insta_ids.create_partitions('t', '1 week', '2028-03-01', '2028-03-07');
SELECT insta_ids.create_partitions('t', '10 days', '2029-03-01', '2029-03-07');
SELECT insta_ids.create_partitions('t', '6 hours', '2030-07-01', '2030-07-01 12:00');
SELECT insta_ids.create_partitions('t', '00:00:00.5', '2031-07-01', '2031-07-01 00:00:01');
SELECT partition, times, to_char(lower(times), 'Dy') FROM insta_ids.partitions('t');
-- What is remembered of a table goes with it, by the next call for a new one.
DROP TABLE t;
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '1 day', '2026-01-01', '2026-01-01', 'UTC');
SELECT parent, timezone FROM insta_ids_internal.partitioned_table;
DROP TABLE t;

-- Days are local days: of 23 and 25 hours when clocks change.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('t', '1 day', '2026-03-28', '2026-03-31');
SELECT count(*) FROM insta_ids.create_partitions('t', '1 day', '2026-10-24', '2026-10-27');
SELECT partition, times, upper(times) - lower(times) AS long FROM insta_ids.partitions('t');
DROP TABLE t;
-- Where the midnight is left out, it begins an hour later; where it comes twice, at the second.
CREATE TABLE sao_paulo (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('sao_paulo', '1 day', '2018-11-03 12:00-03', '2018-11-05 12:00-02', 'America/Sao_Paulo');
CREATE TABLE beirut (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('beirut', '1 day', '2022-03-26 12:00+02', '2022-03-28 12:00+03', 'Asia/Beirut');
CREATE TABLE havana (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('havana', '1 day', '2024-11-03 00:30-04', '2024-11-04 12:00-05', 'America/Havana');
-- A zone that went over the date line left a day out.
CREATE TABLE apia (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('apia', '1 day', '2011-12-29 12:00-10', '2011-12-31 12:00+14', 'Pacific/Apia');
SET timezone = 'UTC';
SELECT partition, times, upper(times) - lower(times) AS long
FROM unnest('{sao_paulo, beirut, havana, apia}'::regclass[]) parent, insta_ids.partitions(parent);
DROP TABLE sao_paulo, beirut, havana, apia;

-- The first ids, and the last.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '1 month', '2011-08-24 21:07:01.721', '2011-09-02');
SELECT insta_ids.create_partitions('t', '1 month', '2011-08-24 21:07:01.721', '2011-09-02');
SELECT insta_ids.create_partitions('t', '1 hour', '2046-06-27 15:59:59', '2046-06-27 17:00:00');
SELECT * FROM insta_ids.partitions('t');
SELECT insta_ids.create_partitions('t', '1 month', '2011-08-24 21:07:01.720999', '2012-01-01');
SELECT insta_ids.create_partitions('t', '1 hour', '2046-06-27 12:00', '2046-06-27 17:00:49.496');
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', 'infinity');
SELECT insta_ids.create_partitions('t', '1 month', '-infinity', '2026-01-01');
SELECT insta_ids.drop_partitions('t', 'infinity');
SELECT count(*) FROM insta_ids.partitions('t');

-- All others that a table can have; of these none is dropped.
CREATE TABLE t_old PARTITION OF t FOR VALUES FROM (MINVALUE) TO (-5);
CREATE TABLE t_new PARTITION OF t FOR VALUES FROM (9223372036854775807) TO (MAXVALUE);
CREATE TABLE t_rest PARTITION OF t DEFAULT;
SELECT * FROM insta_ids.partitions('t');
SELECT insta_ids.drop_partitions('t', '2046-06-27 17:00:49');

-- The layout of the first call holds, too.
CREATE TABLE tweets (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('tweets', '1 month', '2026-01-15', '2026-02-15', layout => 'twitter');
SELECT insta_ids.create_partitions('tweets', '1 month', '2026-01-15', '2026-03-15');
SELECT insta_ids.create_partitions('tweets', '1 month', '2010-11-04 01:42:54.657', '2010-11-15', layout => 'time:41 shard:10 seq:12 epoch:1288834974657');
SELECT insta_ids.create_partitions('tweets', '1 month', '2026-01-15', '2026-02-15', layout => 'discord');
SELECT insta_ids.create_partitions('tweets', '1 month', '2010-11-04 01:42:54.656', '2010-11-15');
SELECT * FROM insta_ids.partitions('tweets');
SELECT id_min('2026-01-01', 'twitter'), id_min('2026-02-01', 'twitter');
INSERT INTO tweets VALUES (make_id('2026-02-28 23:59', 5, 1, 'twitter'));
SELECT tableoid::regclass FROM tweets;
EXPLAIN (COSTS OFF) SELECT * FROM tweets WHERE id_between(id, '2026-02-01', '2026-02-02', 'twitter');
SELECT insta_ids.drop_partitions('tweets', '2010-11-04');
SELECT insta_ids.drop_partitions('tweets', '2026-02-28');
SELECT parent, timezone, layout FROM insta_ids_internal.partitioned_table;
DROP TABLE tweets;
-- One whose unit is 10 ms.
CREATE TABLE flakes (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('flakes', '00:00:00.009', '2026-01-01', '2026-01-01 00:00:00.03', 'UTC', 'sonyflake');
SELECT insta_ids.create_partitions('flakes', '15 ms', '2026-01-01', '2026-01-01 00:00:00.03', 'UTC', 'sonyflake');
SELECT * FROM insta_ids.partitions('flakes');
DROP TABLE flakes;

-- NULL in, nothing out; a layout of NULL is the one that is remembered.
SELECT insta_ids.create_partitions('t', '1 month', NULL, '2026-01-01');
SELECT insta_ids.create_partitions(NULL, '1 month', '2026-01-01', '2026-01-02');
SELECT insta_ids.create_partitions('t', NULL, '2026-01-01', '2026-01-02');
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', NULL);
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02', NULL);
SELECT insta_ids.drop_partitions('t', NULL);
SELECT insta_ids.partitions(NULL);

-- Rows of the default partition can be in the way.
INSERT INTO t VALUES (make_id('2026-01-09', 5, 1)), (make_id('2026-01-10', 5, 1)), (make_id('2026-02-01', 5, 1));
SELECT insta_ids.create_partitions('t', '1 month', '2025-12-01', '2026-01-15');
SELECT insta_ids.create_partitions('t', '1 month', '2025-11-01', '2025-12-15');

-- Other partitions, too.
SELECT insta_ids.create_partitions('t', '1 day', '2025-11-30', '2025-12-02');
CREATE TABLE newest PARTITION OF t FOR VALUES FROM (5000000000000000000) TO (MAXVALUE);
DROP TABLE t_new;
CREATE TABLE newest PARTITION OF t FOR VALUES FROM (5000000000000000000) TO (MAXVALUE);
SELECT insta_ids.create_partitions('t', '1 month', '2040-01-01', '2040-01-01');
SELECT insta_ids.create_partitions('t', '1 month', '2010-01-01', '2040-01-01');
DROP TABLE t;

-- What is no length, no range of time, no zone.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '0', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '-1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '1 month 1 day', '2026-01-01', '2026-01-01');
\set VERBOSITY sqlstate
SELECT insta_ids.create_partitions('t', '1 day 1 hour', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '1 month -1 hour', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '1 month 1 day -24 hours', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '24 hours', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '0.0005 s', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '100000 years', '2026-01-01', '2026-01-01');
\set VERBOSITY default
SELECT insta_ids.create_partitions('t', '1 month', '2026-02-01', '2026-01-01');
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-01', 'Europe/Atlantis');
-- Abbreviations: SET timezone takes them for regions with summer time, AT TIME ZONE for offsets.
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-01', 'CET');
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-01', 'wet');
CREATE TABLE zulu (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('zulu', '1 month', '2026-01-01', '2026-01-02', 'Zulu');
SELECT insta_ids.create_partitions('zulu', '1 month', '2026-02-02', '2026-02-03');
DROP TABLE zulu;
SELECT * FROM insta_ids.partitions('t');

-- What is no such table.
CREATE TABLE plain (id bigint PRIMARY KEY);
CREATE TABLE by_list (id bigint) PARTITION BY LIST (id_shard(id));
CREATE TABLE by_int (id int) PARTITION BY RANGE (id);
CREATE TABLE by_two (id bigint, n int) PARTITION BY RANGE (id, n);
CREATE TABLE by_time (id bigint) PARTITION BY RANGE (id_time(id));
SELECT insta_ids.create_partitions('plain', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('by_list', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('by_int', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('by_two', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('by_time', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions('plain_pkey', '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.create_partitions(4294967295::oid, '1 month', '2026-01-01', '2026-01-01');
SELECT insta_ids.drop_partitions('plain', '2026-01-01');
SELECT insta_ids.partitions('plain');
DROP TABLE t, plain, by_list, by_int, by_two, by_time;

-- What is not known of a table is not guessed, where it is dropped.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
CREATE TABLE t_old PARTITION OF t FOR VALUES FROM (0) TO (1);
SELECT insta_ids.drop_partitions('t', '2026-01-01');
SELECT * FROM insta_ids.partitions('t');

-- A snapshot from before the lock does not show what others did to the table.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT insta_ids.drop_partitions('t', '2026-01-01');
ROLLBACK;
BEGIN ISOLATION LEVEL READ UNCOMMITTED;
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
SELECT insta_ids.drop_partitions('t', '2026-02-01');
COMMIT;

-- A function that somebody puts beside the extension's is not called.
CREATE FUNCTION id_time(integer, id_layout) RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$;
DISCARD PLANS;
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
SELECT insta_ids.drop_partitions('t', '2026-02-01');
DROP FUNCTION id_time(integer, id_layout);

-- Foreign tables are partitions, too.
CREATE FOREIGN DATA WRAPPER regress_wrapper;
CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_wrapper;
CREATE FOREIGN TABLE "Far" PARTITION OF t FOR VALUES FROM (1) TO (2) SERVER regress_server;
SELECT insta_ids.drop_partitions('t', '2026-01-01');
DROP SERVER regress_server;
DROP FOREIGN DATA WRAPPER regress_wrapper;
DROP TABLE t;

-- Foreign keys that refer to the table are in the way only if a row does.
CREATE TABLE t (id bigint PRIMARY KEY, answers bigint REFERENCES t) PARTITION BY RANGE (id);
CREATE TABLE likes (id bigint REFERENCES t);
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-04-01');
INSERT INTO t VALUES (make_id('2026-01-09', 5, 1), NULL), (make_id('2026-02-09', 5, 1), NULL), (make_id('2026-03-09', 5, 1), make_id('2026-02-09', 5, 1));
INSERT INTO likes VALUES (make_id('2026-03-09', 5, 1));
SELECT insta_ids.drop_partitions('t', '2026-02-01');
\set VERBOSITY sqlstate
SELECT insta_ids.drop_partitions('t', '2026-03-01');
UPDATE t SET answers = NULL;
SELECT insta_ids.drop_partitions('t', '2026-04-01');
\set VERBOSITY default
TRUNCATE likes;
SELECT insta_ids.drop_partitions('t', '2026-04-01');
DROP TABLE likes, t;

-- Names are cut between characters, and quoted.
CREATE SCHEMA "Über";
CREATE TABLE "Über"."Straßen und Plätze und Häuser und Gärten und Höfe 'n'" (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('"Über"."Straßen und Plätze und Häuser und Gärten und Höfe ''n''"', '1 hour', '2026-01-01', '2026-01-01 01:30');
SELECT octet_length(relname), count(*) FROM pg_class WHERE relnamespace = '"Über"'::regnamespace GROUP BY 1 ORDER BY 1;
SELECT insta_ids.drop_partitions('"Über"."Straßen und Plätze und Häuser und Gärten und Höfe ''n''"', '2027-01-01');
DROP SCHEMA "Über" CASCADE;
-- One that is taken.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
CREATE TABLE t_2026_01 ();
SELECT insta_ids.create_partitions('t', '1 month', '2025-12-01', '2026-01-15');
SELECT insta_ids.partitions('t');
DROP TABLE t, t_2026_01;
-- Of a temporary table.
CREATE TEMP TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '1 month', '2025-12-01', '2025-12-02');
SELECT relpersistence FROM pg_class WHERE oid = 't_2025_12'::regclass;
DROP TABLE t;

-- They are what PARTITION OF makes, in all that the catalog has of them.
CREATE TABLE users (id int PRIMARY KEY);
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_disk LOCATION '';
CREATE TABLE t (
    id bigint PRIMARY KEY,
    gone text,
    user_id int NOT NULL REFERENCES users ON DELETE CASCADE,
    title text COLLATE "C" DEFAULT 'none' CHECK (title <> ''),
    body text COMPRESSION pglz,
    shard int GENERATED ALWAYS AS (id_shard(id)) STORED,
    CONSTRAINT owned CHECK (user_id > 0),
    UNIQUE (id, title)
) PARTITION BY RANGE (id) TABLESPACE regress_disk;
ALTER TABLE t DROP COLUMN gone;
ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE t ADD CONSTRAINT later CHECK (user_id < 1000) NOT VALID;
CREATE INDEX ON t (user_id, id_time(id));
CREATE TRIGGER stamp BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE TABLE t_2026_02 PARTITION OF t FOR VALUES FROM (id_min('2026-02-01')) TO (id_min('2026-03-01'));
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
CREATE VIEW catalog AS
SELECT c.oid::regclass AS partition, line
FROM pg_class c, LATERAL (
    SELECT concat_ws(' ', 'table', relkind, relam, reltablespace, relowner, relacl, relnatts, relchecks, relhasindex, relhastriggers, relispartition, relreplident)
    UNION ALL
    -- Options of columns are not handed on, and servers put stamps of their own there.
    SELECT (to_jsonb(a) - 'attrelid' - 'attcacheoff' - 'attoptions')::text FROM pg_attribute a WHERE attrelid = c.oid
    UNION ALL
    SELECT concat_ws(' ', 'default', adnum, pg_get_expr(adbin, adrelid)) FROM pg_attrdef WHERE adrelid = c.oid
    UNION ALL
    SELECT concat_ws(' ', replace(conname, c.relname, 't'), pg_get_constraintdef(k.oid), convalidated, conislocal, coninhcount, connoinherit, conparentid)
    FROM pg_constraint k WHERE conrelid = c.oid AND conparentid NOT IN (SELECT oid FROM pg_constraint WHERE conrelid = c.oid)
    UNION ALL
    SELECT replace(pg_get_indexdef(indexrelid), c.relname, 't') || (SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = indexrelid)
    FROM pg_index WHERE indrelid = c.oid
    UNION ALL
    SELECT concat_ws(' ', replace(pg_get_triggerdef(g.oid), c.relname, 't'), tgenabled, tgparentid) FROM pg_trigger g WHERE tgrelid = c.oid AND NOT tgisinternal
    UNION ALL
    SELECT concat_ws(' ', 'depends on', refclassid, CASE WHEN refobjid = 't'::regclass THEN 't' END, refobjsubid, deptype) FROM pg_depend WHERE objid = c.oid
) lines (line)
WHERE relname IN ('t_2026_01', 't_2026_02');
SELECT partition, count(*) > 20 AS lines FROM catalog GROUP BY 1 ORDER BY 1;
SELECT line FROM catalog WHERE partition = 't_2026_01'::regclass EXCEPT ALL SELECT line FROM catalog WHERE partition = 't_2026_02'::regclass;
SELECT line FROM catalog WHERE partition = 't_2026_02'::regclass EXCEPT ALL SELECT line FROM catalog WHERE partition = 't_2026_01'::regclass;
DROP VIEW catalog;
DROP TABLE t, users;
DROP FUNCTION stamp;
DROP TABLESPACE regress_disk;

-- Who may: who owns the table, and was granted the calls and what they remember.
CREATE ROLE regress_app;
CREATE ROLE "regress Owner";
CREATE TABLE plain ();
GRANT CREATE ON SCHEMA public TO "regress Owner", regress_app;
SET ROLE "regress Owner";
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
SELECT insta_ids.drop_partitions('t', '2026-01-01');
SELECT insta_ids.partitions('t');
SELECT count(*) > 0 AS readable FROM insta_ids_internal.partitioned_table;
DELETE FROM insta_ids_internal.partitioned_table;
RESET ROLE;
SELECT insta_ids.grant_provisioning('"regress Owner"'), insta_ids.grant_provisioning('regress_app');
SET ROLE regress_app;
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
RESET ROLE;
SET ROLE "regress Owner";
SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-01-02');
RESET ROLE;
-- Whoever makes them, they are its owner's.
SELECT insta_ids.create_partitions('t', '1 month', '2026-02-01', '2026-02-02');
GRANT "regress Owner" TO regress_app;
SET ROLE regress_app;
SELECT insta_ids.create_partitions('t', '1 month', '2026-03-01', '2026-03-02');
RESET ROLE;
SELECT oid::regclass, relowner::regrole FROM pg_class JOIN insta_ids.partitions('t') ON oid = partition ORDER BY ids;
-- What is remembered of a table is its owner's to change, whatever others were granted.
REVOKE "regress Owner" FROM regress_app;
GRANT UPDATE ON insta_ids_internal.partitioned_table TO regress_app;
SET ROLE regress_app;
CREATE TABLE mine (id bigint) PARTITION BY RANGE (id);
SELECT insta_ids.create_partitions('mine', '1 month', '2026-01-01', '2026-01-02');
DELETE FROM insta_ids_internal.partitioned_table WHERE parent = 't'::regclass;
UPDATE insta_ids_internal.partitioned_table SET layout = 'twitter' WHERE parent = 't'::regclass;
UPDATE insta_ids_internal.partitioned_table SET parent = 'plain' WHERE parent = 'mine'::regclass;
INSERT INTO insta_ids_internal.partitioned_table VALUES ('plain', 'UTC', 'twitter');
\set VERBOSITY sqlstate
INSERT INTO insta_ids_internal.partitioned_table VALUES ('4294967295', 'UTC', 'twitter');
\set VERBOSITY default
UPDATE insta_ids_internal.partitioned_table SET timezone = 'Asia/Tokyo' WHERE parent = 'mine'::regclass;
DROP TABLE mine;
DELETE FROM insta_ids_internal.partitioned_table p WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.parent);
RESET ROLE;
SELECT parent, timezone FROM insta_ids_internal.partitioned_table;
DROP TABLE plain;
-- Rows of the default partition that the owner may not see are not counted.
SET ROLE "regress Owner";
CREATE TABLE t_rest PARTITION OF t DEFAULT;
INSERT INTO t VALUES (id_min('2027-01-09'));
ALTER TABLE t_rest ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
SELECT insta_ids.create_partitions('t', '1 month', '2027-01-01', '2027-01-02');
RESET ROLE;
DROP OWNED BY "regress Owner", regress_app;
DROP ROLE "regress Owner", regress_app;

-- What is known of the id is known of the partitions: only those of the time are scanned.
CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
SELECT count(*) FROM insta_ids.create_partitions('t', '1 month', '2013-01-01', '2013-12-31');
CREATE TABLE t_newer PARTITION OF t FOR VALUES FROM (id_min('2014-01-01')) TO (MAXVALUE);
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE id_between(id, '2013-03-01', '2013-03-08');
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE id_between(id, '2013-03-25', '2013-04-01 00:00:00.001');
EXPLAIN (COSTS OFF) SELECT * FROM t WHERE id_between(id, now() - interval '1 day', now());
PREPARE week(timestamptz) AS SELECT * FROM t WHERE id_between(id, $1, $1 + interval '1 week');
EXPLAIN (COSTS OFF) EXECUTE week('2013-03-01');
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE week('2013-03-01');
EXPLAIN (COSTS OFF) EXECUTE week('2013-03-28');
PREPARE one(bigint) AS SELECT * FROM t WHERE id = $1;
EXPLAIN (COSTS OFF) EXECUTE one(make_id('2013-05-05', 5, 1));
RESET plan_cache_mode;
DEALLOCATE ALL;
DROP TABLE t;
