-- State: the schemas, types and tables of the extension. An update changes them by a step that is written by hand. Most other
-- files contain only definitions that can be replaced; an update runs these again. ids/layouts.sql, created.sql and
-- privileges.sql run once.
DO $$
DECLARE
    taken CONSTANT pg_catalog.name := (
        SELECT min(n.nspname) FROM pg_catalog.pg_namespace n
        WHERE n.nspname OPERATOR(pg_catalog.=) ANY (ARRAY['insta_ids', 'insta_ids_internal']::pg_catalog.name[]));
BEGIN
    IF taken IS NOT NULL THEN
        RAISE duplicate_schema USING MESSAGE = pg_catalog.format('schema "%s" already exists', taken),
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

-- What users call. The role that creates the extension owns this schema, and other roles have no CREATE privilege on it.
CREATE SCHEMA insta_ids;
COMMENT ON SCHEMA insta_ids IS 'administration of insta_ids';
-- The extension's own tables. A role without USAGE on this schema cannot name them, and so cannot wait for a lock on them.
-- CREATE TRIGGER, for example, waits for its lock before PostgreSQL checks privileges.
CREATE SCHEMA insta_ids_internal;
COMMENT ON SCHEMA insta_ids_internal IS 'what the extension alone uses';

-- The lease, in Unix milliseconds. Only the library writes it, into the rows that are here; a restored dump adds a row, which counts
-- if it is later. See src/pg/minting/lease.c.
CREATE TABLE insta_ids_internal.lease (ms bigint NOT NULL);
INSERT INTO insta_ids_internal.lease VALUES (0);
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.lease', 'WHERE ctid = (SELECT l.ctid FROM insta_ids_internal.lease l ORDER BY l.ms DESC LIMIT 1)');

-- What init set up. The table has no row before init, and one row afterwards.
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
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- When rows that were committed elsewhere came into its tables. A writer with an older snapshot would not see them.
    filled_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Whether it stays on this node when the fleet is balanced.
    is_pinned boolean NOT NULL DEFAULT false
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.shard', '');

-- Tables with partitions by time: the time zone in which the partitions begin and end, and the layout of the ids.
CREATE TABLE insta_ids_internal.partitioned_table (
    parent regclass PRIMARY KEY,
    timezone text NOT NULL,
    layout @extschema@.id_layout NOT NULL
);
-- A dump leaves out dropped and temporary tables. It would contain the OID of a dropped table as a number, and after the
-- restore this OID may belong to another table.
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.partitioned_table',
    $$WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = parent AND c.relpersistence <> 't')$$);

CREATE TABLE insta_ids_internal.node (
    node name PRIMARY KEY,
    dsn text NOT NULL,
    ord integer NOT NULL UNIQUE CHECK (ord >= 0),
    -- How much it can take, beside the other nodes.
    weight float8 NOT NULL DEFAULT 1 CHECK (weight >= 0 AND weight < 'Infinity'),
    -- The version of the map in which the row was written.
    version bigint NOT NULL DEFAULT 0
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.node', '');

-- Nodes that were taken from the map, and in which version of it. A map of another server may still have them.
CREATE TABLE insta_ids_internal.dropped_node (
    node name PRIMARY KEY,
    version bigint NOT NULL
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.dropped_node', '');

-- This table has no foreign key, because a parallel restore loads the tables in any order. `version` is that of the map in which
-- the range was assigned to its node.
CREATE TABLE insta_ids_internal.assignment (
    first integer PRIMARY KEY CHECK (first >= 0),
    last integer NOT NULL CHECK (last >= first),
    node name NOT NULL,
    version bigint NOT NULL DEFAULT 0,
    EXCLUDE USING gist (pg_catalog.int4range(first, last, '[]') WITH &&)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.assignment', '');

-- The version of the map, in one row from the first change on. Invalidating this table makes all sessions read the map again.
CREATE TABLE insta_ids_internal.map (version bigint NOT NULL);
CREATE UNIQUE INDEX map_once ON insta_ids_internal.map ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.map', '');
-- The table has no primary key. With a publication of all tables, PostgreSQL would refuse to update it without this setting.
ALTER TABLE insta_ids_internal.map REPLICA IDENTITY FULL;

-- Open moves. On the source, the step is offered, then fenced, then released. On the target, it is prepared, then copying, then
-- handed over.
CREATE TABLE insta_ids_internal.move (
    -- The publication and the subscription have the same name.
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
    -- On the source: how often the move was fenced. On the target: a hand-over by this or an earlier fence is refused.
    fences integer NOT NULL DEFAULT 0,
    bytes bigint NOT NULL,
    step text NOT NULL CHECK (step IN ('offered', 'fenced', 'released', 'prepared', 'copying', 'handed over')),
    -- On the source: the tables and sequences of the shards when the move began.
    relations oid[],
    -- On the source: the transaction that fenced the shards.
    fenced_by xid8,
    -- On the source: a WAL position after all rows that were written before the fence.
    fenced_lsn pg_lsn,
    -- On the source: whether it was promoted since the offer and before the fence, and may have taken writes meanwhile.
    was_promoted boolean NOT NULL DEFAULT false,
    -- On the source: the standbys that were connected when the shards were fenced.
    standbys text[],
    -- On the source: how many tables were compared since the last fence.
    tables_compared integer,
    -- On the source: what the target needs for the hand-over. See move_mark.
    mark jsonb,
    -- On the target: the files of the source's tables when the copy began.
    source_files jsonb,
    -- On the target: with what arguments a background worker drives the move. See begin_to_drive.
    driver jsonb,
    -- On the target: how often the worker has failed, and with what error it did last.
    failed_attempts integer NOT NULL DEFAULT 0,
    last_error text,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    step_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.move', '');

-- How moves have ended: handed over or cancelled on the target, handed over or withdrawn on the source. On the target, each
-- move has one outcome, no matter how many sessions work on it. Rows stay forever, because an old offer can arrive at any time.
CREATE TABLE insta_ids_internal.move_outcome (
    id uuid PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('handed over', 'withdrawn', 'cancelled')),
    -- The shards of the move. NULL if the move was cancelled on a target that did not know it.
    shards integer[] CHECK (shards IS NOT NULL OR outcome = 'cancelled'),
    -- For a cancelled move, the slots that the source must drop. NULL if this server did not know the move.
    table_slots name[] CHECK (table_slots IS NULL OR shards IS NOT NULL),
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.move_outcome', '');

-- Shards that have moved away. `schema` names what is left of the shard, and is NULL after that was dropped. A departed shard
-- returns only by a move, or by move_abort with take_back: an older map must not assign it to this node again.
CREATE TABLE insta_ids_internal.departed_shard (
    shard integer PRIMARY KEY,
    schema name,
    to_node name NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- The version of the map in which it was assigned to that node.
    version bigint,
    -- What take_back needs: of the shard's row, and the migrations that were applied to it.
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    is_pinned boolean NOT NULL DEFAULT false,
    migrations integer[] NOT NULL DEFAULT '{}'
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.departed_shard', '');

-- Shards that move or are fenced. They cannot be altered, and if is_closed is true, they cannot be written to.
CREATE TABLE insta_ids_internal.fence (
    shard integer PRIMARY KEY,
    is_closed boolean NOT NULL,
    -- The node to which the shard moves. NULL if the shard does not move.
    to_node name,
    since timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- The server, timeline and database in which this row was written: see timeline(). NULL if the shard does not move.
    timeline name,
    -- By the steady clock, in milliseconds: when the shard was closed, and when it opens by itself. NULL if it does not. A time
    -- that is not between the two is later, or the machine was restarted.
    closed_ms bigint,
    opens_ms bigint
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.fence', '');

-- The writer slot that this database has taken, in one row. Without the row, it has slot 0 of 1. Sessions read it with the map.
CREATE TABLE insta_ids_internal.writer (
    slot integer NOT NULL CHECK (slot >= 0),
    slots integer NOT NULL CHECK (slots > slot),
    taken_by xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
);
CREATE UNIQUE INDEX writer_once ON insta_ids_internal.writer ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.writer', '');
-- The reason is the same as for insta_ids_internal.map.
ALTER TABLE insta_ids_internal.writer REPLICA IDENTITY FULL;

-- Running calls of procedures that commit in batches. The row of a call that failed stays until a later call deletes it.
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

-- Shards get the migrations in the order of these numbers.
CREATE TABLE insta_ids_internal.migration (
    number integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ddl text NOT NULL,
    transactional boolean NOT NULL,
    check_ids boolean NOT NULL,
    -- The CHECKs of ids let ids of earlier times pass.
    ids_since timestamptz NOT NULL DEFAULT '-infinity',
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- A name and not an OID, because a dump may be restored to a server where the role has another OID.
    added_by name NOT NULL DEFAULT current_user,
    -- Whether a superuser added it, here or on the node that it came from. On another server, a superuser may have the author's name.
    is_by_superuser boolean NOT NULL,
    -- The node that it came from. NULL if it was added here.
    added_on name
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.migration', '');

-- The migrations that were applied to each shard, and those that failed at the last attempt. This table has no foreign keys,
-- because a parallel restore loads the tables in any order.
CREATE TABLE insta_ids_internal.shard_migration (
    shard integer NOT NULL,
    migration integer NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Only a failure has a message. statement and sqlstate can be NULL for a failure, too.
    statement integer,
    sqlstate text,
    message text,
    -- NULL if the migration was applied here.
    skipped_by name,
    PRIMARY KEY (shard, migration),
    CHECK (message IS NOT NULL OR statement IS NULL AND sqlstate IS NULL)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.shard_migration', '');

-- The migrations that were dropped, or replaced by the one named in squashed_into. A name can have several rows.
CREATE TABLE insta_ids_internal.former_migration (
    number integer NOT NULL,
    name text NOT NULL,
    ddl text NOT NULL,
    added_by name NOT NULL,
    added_at timestamptz NOT NULL,
    squashed_into text,
    ended_by name NOT NULL DEFAULT current_user,
    ended_at timestamptz DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (name, ended_at)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids_internal.former_migration', '');

-- Tables whose rows go to the shards, all of them together. See distribute/.
CREATE TABLE insta_ids_internal.distribution (
    source regclass PRIMARY KEY,
    -- The table of this name in each shard gets the rows.
    target name NOT NULL,
    -- The column that says to which shard a row goes: by its value, or as a foreign key to the primary key of the parent, whose
    -- row goes to the same shard.
    key name NOT NULL,
    parent regclass,
    -- Tables are copied in this order. Foreign keys between the targets refer to smaller numbers.
    number integer NOT NULL DEFAULT 0,
    step text NOT NULL DEFAULT 'registered' CHECK (step IN ('registered', 'copying', 'copied', 'switched')),
    -- The primary key of the last row that was copied, as text.
    copied_to text[],
    rows_copied bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    step_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- When the rows of all shards were last the same as those of the source.
    verified_at timestamptz,
    -- After the switch: the view that has the source's name, and whether changes of the shards are noted.
    view regclass,
    has_way_back boolean NOT NULL DEFAULT false,
    -- Of the call that is in the background: its arguments, its worker's process ID, and how often this has failed. It is the same for
    -- all tables. And the error of the last attempt.
    driver jsonb,
    last_error text
);
-- The condition is that of insta_ids_internal.partitioned_table.
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.distribution',
    $$WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = source AND c.relpersistence <> 't')$$);

-- Foreign keys between a source and a table that is not distributed, which the switch has dropped. distribute_abort() restores them.
CREATE TABLE insta_ids_internal.ended_key (
    relation regclass, name name, columns name[] NOT NULL, referred regclass NOT NULL, referred_columns name[] NOT NULL,
    -- The numbers of these columns, which show whether columns were renamed.
    numbers smallint[] NOT NULL, referred_numbers smallint[] NOT NULL,
    -- As in pg_constraint.
    matching "char" NOT NULL, on_update "char" NOT NULL, on_delete "char" NOT NULL, set_columns name[] NOT NULL,
    is_deferrable boolean NOT NULL, is_deferred boolean NOT NULL, is_validated boolean NOT NULL,
    PRIMARY KEY (relation, name)
);
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.ended_key', $$WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation)$$);

-- Rows that have changed, in tables whose changes a distribution has to bring to other tables. note_change() writes here, up to 64
-- changes in a row.
CREATE TABLE insta_ids_internal.change (
    -- The table of the changed rows. If it is partitioned, this is the partition.
    relation regclass NOT NULL,
    -- Their primary keys, one after another, as texts, each in the order of the source's primary key.
    keys text[] NOT NULL,
    -- Of each, the value that the column that says the shard had before, as text. It is NULL for a row that is new, and in a shard.
    placed_by text[] NOT NULL
);
-- The reason is the same as for insta_ids_internal.map.
ALTER TABLE insta_ids_internal.change REPLICA IDENTITY FULL;
SELECT pg_catalog.pg_extension_config_dump(
    'insta_ids_internal.change', $$WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation)$$);
