-- State: the schemas, types and tables of the extension. This file, ids/layouts.sql, created.sql and privileges.sql run once.
-- All other files only have definitions that can be replaced; an update runs them again. What is here changes by a step that is written by hand.
DO $$
DECLARE
    taken CONSTANT pg_catalog.name := (
        SELECT min(n.nspname) FROM pg_catalog.pg_namespace n
        WHERE n.nspname OPERATOR(pg_catalog.=) ANY (ARRAY['insta_ids', 'insta_ids_internal']::pg_catalog.name[]));
BEGIN
    IF taken IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = pg_catalog.format('schema "%s" already exists', taken),
            DETAIL = 'The extension creates the schemas insta_ids and insta_ids_internal.',
            HINT = CASE '@extschema@'
                WHEN pg_catalog.quote_ident(taken) THEN 'Drop it, and create the extension in another one.'
                ELSE 'Drop or rename it.'
            END;
    END IF;
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 170000
        AND 'insta_ids' <> ALL (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), $re$[\s,"/]+$re$))
    THEN
        RAISE WARNING USING
            MESSAGE = 'insta_ids is not loaded by the server yet, so next_id will fail',
            DETAIL = 'Before PostgreSQL 17, shared memory is given out at server start only.',
            HINT = 'Set shared_preload_libraries = ''insta_ids'' in postgresql.conf, beside what is listed there, and restart the server.';
    END IF;
END
$$;

-- What users call. Its owner is who creates the extension, and nobody else can create anything in it.
CREATE SCHEMA insta_ids;
COMMENT ON SCHEMA insta_ids IS 'administration of insta_ids';
-- The extension's own tables. Nobody without USAGE on it can name one of them, so nobody can queue for a lock on it:
-- a statement such as CREATE TRIGGER waits for its lock before PostgreSQL looks at privileges.
CREATE SCHEMA insta_ids_internal;
COMMENT ON SCHEMA insta_ids_internal IS 'what the extension alone uses';

-- Written by the library alone, and dumped with its value.
CREATE SEQUENCE insta_ids_internal.lease;
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.lease', '');

-- One row, from init on.
CREATE TABLE insta_ids_internal.config (
    shards integer NOT NULL,
    prefix name NOT NULL,
    layout @extschema@.id_layout NOT NULL
);
CREATE UNIQUE INDEX config_once ON insta_ids_internal.config ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.config', '');

-- The shards of this database.
CREATE TABLE insta_ids_internal.shard (
    shard integer PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.shard', '');

-- The zone in which each parent's partitions begin and end, and the layout of its ids.
CREATE TABLE insta_ids_internal.partitioned_table (
    parent regclass PRIMARY KEY,
    timezone text NOT NULL,
    layout @extschema@.id_layout NOT NULL
);
-- A parent that was dropped is dumped as a number, and that can be another table's where it is restored; a temporary
-- one is not there.
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.partitioned_table',
    $$WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = parent AND c.relpersistence <> 't')$$);

CREATE TABLE insta_ids_internal.node (
    node name PRIMARY KEY,
    dsn text NOT NULL,
    ord integer NOT NULL UNIQUE CHECK (ord >= 0)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.node', '');

-- Without a foreign key, as a restore by several jobs loads the tables in any order.
CREATE TABLE insta_ids_internal.assignment (
    first integer PRIMARY KEY CHECK (first >= 0),
    last integer NOT NULL CHECK (last >= first),
    node name NOT NULL,
    EXCLUDE USING gist (pg_catalog.int4range(first, last, '[]') WITH &&)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.assignment', '');

-- One row, from the first change on. Sessions read all of the map again when this table is said to have changed.
CREATE TABLE insta_ids_internal.map (
    version bigint NOT NULL
);
CREATE UNIQUE INDEX map_once ON insta_ids_internal.map ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.map', '');
-- It has no primary key, without which a publication of all tables would let nobody change it.
ALTER TABLE insta_ids_internal.map REPLICA IDENTITY FULL;

-- Moves, on both servers, until they have ended. On the source the step is offered, then fenced; on the target it is prepared,
-- copying, handed over.
CREATE TABLE insta_ids_internal.move (
    -- Of the publication and the subscription, too.
    name name PRIMARY KEY CHECK (name = concat('insta_ids_', first, '_', last)),
    id uuid NOT NULL,
    first integer NOT NULL,
    last integer NOT NULL,
    shards integer[] NOT NULL
        CHECK (coalesce(array_ndims(shards), 0) = 1 AND array_position(shards, NULL) IS NULL)
        CHECK (0 <= first AND first <= ALL (shards) AND last >= ALL (shards)),
    from_node name NOT NULL,
    to_node name NOT NULL,
    has_slot boolean NOT NULL DEFAULT false,
    -- On the source, how often it was fenced; on the target, up to which of these fences a hand-over is refused.
    fences integer NOT NULL DEFAULT 0,
    bytes bigint NOT NULL,
    step text NOT NULL CHECK (step IN ('offered', 'fenced', 'prepared', 'copying', 'handed over')),
    -- On the source, what rows and values were in when the move began.
    relations oid[],
    -- On the source, the transaction of the fence, and then what the target goes on from.
    fenced_by xid8,
    -- And the standbys that were connected then.
    standbys text[],
    mark jsonb,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    step_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.move', '');

-- How moves have ended: on the target handed over or cancelled, on the source handed over or withdrawn. Only one of the two
-- can come of a move on the target, whoever drives it. Never forgotten: who has slept through it may come at any time.
CREATE TABLE insta_ids_internal.move_outcome (
    id uuid PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('handed over', 'withdrawn', 'cancelled')),
    -- The shards of the move; NULL if it was cancelled where it was not known.
    shards integer[] CHECK (shards IS NOT NULL OR outcome = 'cancelled'),
    -- Of one that was cancelled: what the source has to drop; NULL if it was not known here.
    table_slots name[] CHECK (table_slots IS NULL OR shards IS NOT NULL),
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.move_outcome', '');

-- Shards that have left, and what is still here of them, until it is dropped. They come back by a move alone, not by a map
-- from before.
CREATE TABLE insta_ids_internal.departed_shard (
    shard integer PRIMARY KEY,
    schema name,
    to_node name NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.departed_shard', '');

-- A shard that moves is altered by nobody from the first step on; and nothing is written to it once it is closed.
CREATE TABLE insta_ids_internal.fence (
    shard integer PRIMARY KEY,
    is_closed boolean NOT NULL,
    -- Where it moves to.
    to_node name,
    since timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- Of a shard that was offered: the server's timeline then.
    timeline integer
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.fence', '');

-- What this database has taken, one row; without it, slot 0 of 1. Sessions read it with the map.
CREATE TABLE insta_ids_internal.writer (
    slot integer NOT NULL CHECK (slot >= 0),
    slots integer NOT NULL CHECK (slots > slot),
    taken_by xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
);
CREATE UNIQUE INDEX writer_once ON insta_ids_internal.writer ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.writer', '');
-- As the map.
ALTER TABLE insta_ids_internal.writer REPLICA IDENTITY FULL;

-- What runs, and what was ended before it could say so.
CREATE TABLE insta_ids_internal.work (
    pid integer PRIMARY KEY,
    command text NOT NULL,
    total integer NOT NULL,
    done integer NOT NULL,
    failed integer NOT NULL,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    told_at timestamptz NOT NULL
);

-- In the order of their numbers.
CREATE TABLE insta_ids_internal.migration (
    number integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ddl text NOT NULL,
    transactional boolean NOT NULL,
    check_ids boolean NOT NULL,
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- A name, which is the same role in another server that a dump is restored to.
    added_by name NOT NULL DEFAULT current_user
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.migration', '');

-- What was applied to which shard, and what failed there when it was tried last. Without foreign keys, as a restore by
-- several jobs loads the tables in any order.
CREATE TABLE insta_ids_internal.shard_migration (
    shard integer NOT NULL,
    migration integer NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Of a failure.
    statement integer,
    sqlstate text,
    message text,
    PRIMARY KEY (shard, migration),
    CHECK (message IS NOT NULL OR statement IS NULL AND sqlstate IS NULL)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.shard_migration', '');

CREATE TYPE insta_ids.finding AS (severity text, code text, object text, detail text, hint text);
COMMENT ON TYPE insta_ids.finding IS 'what check returns';
