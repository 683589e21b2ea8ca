-- Types of what functions pass to each other, and of what nodes answer.

-- An error that a procedure has caught, and will raise again.
CREATE TYPE insta_ids_internal.failure AS (code text, message text, detail text, hint text);

-- A pause of a move's source: when it began, in milliseconds of the steady clock, or NULL if it did not begin; the error that has
-- ended it, if one has; and what was still to be done.
CREATE TYPE insta_ids_internal.pause AS (fenced_at bigint, failure insta_ids_internal.failure, state text);
-- How far the copy of a move is, as await_copy() sees it. Times are milliseconds of the steady clock: when the subscription was last
-- seen running, and when progress was last reported. If the subscription has applied `begun`, it has run since the call began.
CREATE TYPE insta_ids_internal.copying AS (
    begun pg_lsn, ran_at bigint, reported_at bigint, standby jsonb, standbys text[], table_slots name[], is_done boolean);
-- How far the moves of a plan are: the moves, as the plan has them; the state of each, waiting, running, done or failed; why moves of
-- a node are left; and how many are done.
CREATE TYPE insta_ids_internal.carrying AS (steps jsonb, states text[], failed jsonb, done integer);

CREATE TYPE insta_ids.finding AS (severity text, code text, object text, detail text, hint text);
COMMENT ON TYPE insta_ids.finding IS 'what check returns';
-- With this privilege, a table of the type could be created, which locks the type.
REVOKE USAGE ON TYPE insta_ids.finding FROM PUBLIC;

-- Of the plan of a distribution: a foreign key with one column to the primary key of another table; a foreign key and what becomes of it;
-- a column.
CREATE TYPE insta_ids_internal.planned_link AS (
    source regclass, "column" name, number smallint, is_not_null boolean, parent regclass);
CREATE TYPE insta_ids_internal.planned_key AS (key insta_ids_internal.ended_key, fate text);
CREATE TYPE insta_ids_internal.planned_column AS (relation regclass, number smallint);

-- What other nodes answer. An answer that does not fit its type is no answer. See ask_fleet.
-- Sums over all shards of all nodes stay within bigint.
CREATE DOMAIN insta_ids_internal.count AS bigint NOT NULL CHECK (VALUE BETWEEN 0 AND 100000000000000);
CREATE DOMAIN insta_ids_internal.shard_number AS integer NOT NULL CHECK (VALUE >= 0);
CREATE TYPE insta_ids_internal.shard_report AS (
    shard insta_ids_internal.shard_number, rows insta_ids_internal.count, bytes insta_ids_internal.count, ids bigint,
    inserted insta_ids_internal.count, updated insta_ids_internal.count, deleted insta_ids_internal.count,
    read insta_ids_internal.count, is_pinned boolean, is_fenced boolean, to_node name);
CREATE TYPE insta_ids_internal.node_total AS (
    rows bigint, bytes bigint, ids numeric, inserted numeric, updated numeric, deleted numeric, read numeric);
CREATE TYPE insta_ids_internal.node_report AS (
    library text, extension text, map insta_ids_internal.count, "time" numeric, pending bigint, moves integer, standbys text[],
    shards integer, held text, remains insta_ids_internal.shard_number[], total insta_ids_internal.node_total,
    load insta_ids_internal.shard_report[]);
CREATE TYPE insta_ids_internal.migration_digest AS (name text, digest text);
CREATE TYPE insta_ids_internal.node_check AS (
    map jsonb, version insta_ids_internal.count, slot insta_ids_internal.count, slots insta_ids_internal.count, findings insta_ids.finding[],
    open insta_ids_internal.shard_number[], closed insta_ids_internal.shard_number[], departed insta_ids_internal.shard_number[],
    migrations insta_ids_internal.migration_digest[]);
CREATE TYPE insta_ids_internal.node_move AS (first integer, last integer, from_node name, to_node name);
CREATE TYPE insta_ids_internal.node_moves AS (moves insta_ids_internal.node_move[]);
CREATE TYPE insta_ids_internal.node_shards AS (
    map jsonb, open insta_ids_internal.shard_number[], arriving insta_ids_internal.shard_number[],
    departed insta_ids_internal.shard_number[]);
CREATE TYPE insta_ids_internal.node_departed AS (shards insta_ids_internal.shard_number[]);
CREATE TYPE insta_ids_internal.node_migrations AS (migrations jsonb);
