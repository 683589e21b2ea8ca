-- Clock and figures.
SET timezone = 'UTC';
\set VERBOSITY default
CREATE SEQUENCE s;
SELECT id_shard(next_id(5, 's'));

-- The clock, the time of ids, and the lease, which covers it.
SELECT abs(extract(epoch FROM system_time - clock_timestamp())) < 1 AS now, id_time >= system_time AS not_behind,
       ahead = id_time - system_time AS ahead, lease > id_time AND lease <= id_time + interval '1.5 s' AS leased
FROM insta_ids.clock();

-- No later id is older.
SELECT clock_timestamp() + interval '20 s' AS until \gset
SELECT insta_ids.advance_clock(:'until');
SELECT id_time(next_id(5, 's')) >= date_trunc('milliseconds', timestamptz :'until') AS advanced, ahead > interval '19 s' AS ahead, lease >= :'until' AS leased
FROM insta_ids.clock();
SELECT insta_ids.advance_clock('2020-01-01');
SELECT id_time(next_id(5, 's')) >= date_trunc('milliseconds', timestamptz :'until') AS still;
SELECT insta_ids.advance_clock(NULL);

-- Not beyond what is tolerated. The messages hold the time, so here the code alone.
\set VERBOSITY sqlstate
SELECT insta_ids.advance_clock(clock_timestamp() + interval '61 min');
SELECT insta_ids.advance_clock('infinity');
SELECT insta_ids.advance_clock('-infinity');

-- Back to the clock.
SET client_min_messages = error;
SELECT insta_ids.reset_clock();
RESET client_min_messages;
SELECT id_time(next_id(5, 's')) < clock_timestamp() + interval '1 s' AS back, ahead < interval '1 s' AS not_ahead FROM insta_ids.clock();

-- Figures.
SELECT insta_ids.stat_reset();
SELECT count(*) FROM next_ids(5, 's', 100);
SELECT ids, step_backs, largest_step_back, wait_time >= interval '0' AS waited, stats_reset <= clock_timestamp() AS since FROM insta_ids.stat_ids;

-- Who may.
CREATE ROLE regress_app;
GRANT USAGE ON SEQUENCE s TO regress_app;
SET ROLE regress_app;
\set VERBOSITY default
SELECT id_shard(next_id(5, 's')), ahead < interval '1 s' AS looked FROM insta_ids.clock();
SELECT insta_ids.advance_clock(now());
SELECT insta_ids.reset_clock();
SELECT insta_ids.stat_reset();
SELECT * FROM insta_ids.stat_ids;
INSERT INTO insta_ids_internal.lease VALUES (1);
DELETE FROM insta_ids_internal.lease;
DROP TABLE insta_ids_internal.lease;
GRANT ALL ON insta_ids_internal.lease TO PUBLIC;
RESET ROLE;
GRANT pg_monitor TO regress_app;
SET ROLE regress_app;
SELECT ids FROM insta_ids.stat_ids;
RESET ROLE;
DROP OWNED BY regress_app;
DROP ROLE regress_app;

-- Nothing is written in a read-only transaction.
BEGIN READ ONLY;
SELECT insta_ids.advance_clock(now());
ROLLBACK;
BEGIN READ ONLY;
SELECT insta_ids.reset_clock();
ROLLBACK;
BEGIN READ ONLY;
SELECT lease IS NOT NULL AS looked FROM insta_ids.clock();
ROLLBACK;

-- The lease belongs to the extension, and so does its schema.
DROP TABLE insta_ids_internal.lease;
DROP SCHEMA insta_ids;
DROP SEQUENCE s;
