-- Coming from the published function, and going back to it.
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE DATABASE adopted;
\c adopted
SET client_min_messages = warning;
CREATE EXTENSION insta_ids;
SELECT insta_ids.init(10);
RESET client_min_messages;

CREATE SCHEMA insta5;
CREATE SEQUENCE insta5.table_id_seq;
CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;

    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
$$ LANGUAGE PLPGSQL;
CREATE TABLE insta5.photos (id bigint PRIMARY KEY DEFAULT insta5.next_id(), caption text);
INSERT INTO insta5.photos (caption) VALUES ('before');

-- What cannot be adopted.
SELECT insta_ids.adopt('insta6', 6);
SELECT insta_ids.adopt('insta5', 6);
SELECT insta_ids.adopt('insta5', 10);
SELECT insta_ids.adopt('public', 5);
CREATE SCHEMA insta6;
SELECT insta_ids.adopt('insta6', 6);
CREATE SEQUENCE insta6.s;
CREATE FUNCTION insta6.next_id() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23 | (5 << 10) | nextval('insta6.s');
END $$;
SELECT insta_ids.adopt('insta6', 6);
DO $$
DECLARE
    digest text;
BEGIN
    PERFORM insta_ids.adopt('insta6', 6);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    GET STACKED DIAGNOSTICS digest = PG_EXCEPTION_HINT;
    PERFORM insta_ids.adopt('insta6', 6, confirm => ARRAY[substring(digest from '[0-9a-f]{64}')]);
END $$;
DROP SCHEMA insta6 CASCADE;
INSERT INTO insta5.photos VALUES (make_id('2026-01-01', 7, 1), 'foreign'), (-1, 'negative');
SELECT insta_ids.adopt('insta5', 5);
DELETE FROM insta5.photos WHERE caption <> 'before';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT insta_ids.adopt('insta5', 5);
ROLLBACK;
SELECT insta_ids.unadopt('insta5');

-- There, and back.
SELECT insta_ids.adopt('insta5', 5, dry_run => true);
SELECT * FROM insta_ids.shards;
SELECT insta_ids.adopt('insta5', 5);
SELECT insta_ids.adopt('insta5', 5);
\d insta5.photos
SELECT pg_get_functiondef('insta5.next_id()'::regprocedure);
INSERT INTO insta5.photos (caption) VALUES ('managed');
SELECT insta_ids.unadopt('insta5');
SELECT insta_ids.unadopt('insta5');
\d insta5.photos
SELECT pg_get_functiondef('insta5.next_id()'::regprocedure);
INSERT INTO insta5.photos (caption) VALUES ('after');
SELECT caption, id_shard(id) AS shard, id_seq(id) > lag(id_seq(id)) OVER (ORDER BY id) AS later FROM insta5.photos ORDER BY id;
-- next_id(regclass) of each shard came with it.
DROP EXTENSION insta_ids;
INSERT INTO insta5.photos DEFAULT VALUES;
SELECT count(*) FROM insta5.photos;
