-- Shards: setting up, creating and dropping them.
\set VERBOSITY default
\set SHOW_CONTEXT never

-- Nothing before init.
SELECT insta_ids.shard_of(31341);
SELECT insta_ids.schema_of(5);
SELECT insta_ids.create_shard(5);
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t ()');
CALL insta_ids.create_shards(0, 1);
CALL insta_ids.migrate();
-- But with the number of shards: floor modulo, and PostgreSQL's own hashes.
SELECT insta_ids.shard_of(31341, 2000), insta_ids.shard_of(-5, 2000), insta_ids.shard_of(-9223372036854775808, 2000),
       insta_ids.shard_of(9223372036854775807, 8192), insta_ids.shard_of(7, 1);
SELECT insta_ids.shard_of_text('abc', 2000), hashtextextended('abc', 0), insta_ids.shard_of_text('', 2000),
       insta_ids.shard_of_uuid('550e8400-e29b-41d4-a716-446655440000'::uuid, 2000),
       uuid_hash_extended('550e8400-e29b-41d4-a716-446655440000', 0);
SELECT insta_ids.shard_of(5, 0);
SELECT insta_ids.shard_of_text('abc', -1);
SELECT insta_ids.shard_of(NULL::bigint, 5), insta_ids.shard_of_text('abc', NULL);

-- What cannot be set up.
SELECT insta_ids.init(0);
SELECT insta_ids.init(8193);
SELECT insta_ids.init(65, layout => 'js53');
SELECT insta_ids.init(2, layout => 'mastodon');
SELECT insta_ids.init(2000, '');
SELECT insta_ids.init(2000, 'pg_');
SELECT insta_ids.init(2000, repeat('x', 60));
CREATE SCHEMA shard007;
CREATE SCHEMA shard2000;
CREATE SCHEMA shard5_old;
CREATE SCHEMA shard99999999999;
CREATE SCHEMA shard1999;
-- One of these could be a shard; the others look like one, and are none.
SELECT insta_ids.init(2000, 'shard');
DROP SCHEMA shard1999;
SELECT insta_ids.init(2000, 'shard');
SELECT insta_ids.init(1000);
SELECT * FROM insta_ids.config;
UPDATE insta_ids_internal.config SET shards = 4000;
DELETE FROM insta_ids_internal.config;
TRUNCATE insta_ids_internal.config;

SELECT insta_ids.shard_of(31341), insta_ids.shard_of(-5), insta_ids.shard_of_text('abc'),
       insta_ids.shard_of_uuid('550e8400-e29b-41d4-a716-446655440000'::uuid);
SELECT insta_ids.schema_of(0), insta_ids.schema_of(1999), insta_ids.schema_of(NULL);
SELECT insta_ids.schema_of(2000);
SELECT insta_ids.schema_of(-1);

-- The published surface.
SELECT insta_ids.create_shard(5);
SELECT insta_ids.create_shard(5);
SELECT insta_ids.create_shard(2000);
CREATE TABLE shard5.our_table ("id" bigint NOT NULL DEFAULT shard5.next_id());
EXPLAIN (VERBOSE, COSTS OFF) INSERT INTO shard5.our_table DEFAULT VALUES;
INSERT INTO shard5.our_table DEFAULT VALUES RETURNING id_shard(id), id_seq(id), currval('shard5.table_id_seq');
SELECT id_shard(shard5.next_id('shard5.table_id_seq')), shard5.next_id(NULL);
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'shard5'::regnamespace ORDER BY oid;

-- In the way of a shard.
CREATE SCHEMA shard8;
CREATE TABLE shard8.kept ();
SELECT insta_ids.create_shard(8);
CALL insta_ids.create_shards(6, 9);
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'shard%' ORDER BY 1;
SELECT shard FROM insta_ids_internal.shard;
DROP SCHEMA shard8 CASCADE;

-- What cannot be a range.
CALL insta_ids.create_shards(9, 6);
CALL insta_ids.create_shards(0, 2000);
CALL insta_ids.create_shards(-1, 5);
CALL insta_ids.create_shards(NULL, 5);
CALL insta_ids.create_shards(0, 5, 0);
-- Not in a transaction.
BEGIN;
CALL insta_ids.create_shards(0, 9);
ROLLBACK;

-- What is there is left alone.
SET client_min_messages = warning;
CALL insta_ids.create_shards(4, 9, batch => 2);
CALL insta_ids.create_shards(4, 9);
RESET client_min_messages;
SELECT shard, schema, state, applied, pending, failed, tables FROM insta_ids.shards ORDER BY shard;
SELECT * FROM insta_ids.progress;
SHOW search_path;

-- Dropping.
SELECT insta_ids.drop_shard(5);
TRUNCATE shard5.our_table;
CREATE VIEW ids AS SELECT id FROM shard5.our_table;
SELECT insta_ids.drop_shard(5);
DROP VIEW ids;
CREATE TABLE refers (id bigint REFERENCES shard6.nothing);
CREATE TABLE shard6.target (id bigint PRIMARY KEY);
CREATE TABLE refers (id bigint REFERENCES shard6.target);
SELECT insta_ids.drop_shard(6);
CREATE TABLE defaults (id bigint DEFAULT shard7.next_id());
SELECT insta_ids.drop_shard(7);
CREATE TYPE shard9.mood AS ENUM ('good', 'bad');
CREATE TABLE moods (mood shard9.mood[]);
SELECT insta_ids.drop_shard(9);
DROP TABLE moods;
CREATE TABLE shard9.t (a int);
CREATE TABLE rowtypes (t shard9.t);
SELECT insta_ids.drop_shard(9);
DROP TABLE rowtypes;
CREATE FUNCTION shard9.f(int) RETURNS text LANGUAGE sql RETURN $1::text || shard9.next_id();
CREATE INDEX ON shard9.t (a);
CREATE VIEW shard9.v AS SELECT shard9.f(a) FROM shard9.t;
CREATE TABLE shard9.parts (a int PRIMARY KEY, b int REFERENCES shard9.parts, c shard9.mood) PARTITION BY RANGE (a);
CREATE TABLE part PARTITION OF shard9.parts FOR VALUES FROM (1) TO (2);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT insta_ids.drop_shard(9);
ROLLBACK;
INSERT INTO part VALUES (1);
SELECT insta_ids.drop_shard(9);
TRUNCATE shard9.parts;
SET client_min_messages = warning;
SELECT insta_ids.drop_shard(9);
SELECT insta_ids.create_shard(9);
RESET client_min_messages;
SELECT insta_ids.drop_shard(5);
SELECT insta_ids.drop_shard(5);
SELECT insta_ids.grant_provisioning('-');
SET client_min_messages = warning;
SELECT insta_ids.drop_shard(6, force => true);
SELECT insta_ids.drop_shard(7, force => true);
RESET client_min_messages;
\d refers
-- One whose schema is gone is known as missing until it is forgotten.
DROP SCHEMA shard4 CASCADE;
SELECT shard, schema, state FROM insta_ids.shards WHERE state <> 'active';
SELECT insta_ids.create_shard(4);
SELECT insta_ids.drop_shard(4);
SELECT insta_ids.create_shard(4);
SELECT shard, state FROM insta_ids.shards ORDER BY shard;
DROP TABLE refers, defaults;
