-- Checks of tables: whether logical replication can identify their rows, and whether indexes and constraints are valid.

-- Returns whether replication can compare values of a type: whether PostgreSQL finds an operator class with an equality operator.
CREATE OR REPLACE FUNCTION insta_ids_internal.has_equality(type oid) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN NOT EXISTS (
        -- A domain is compared as its base type is, an array and a composite type as their elements are.
        WITH RECURSIVE compared AS (
            SELECT type AS oid
            UNION
            SELECT p.oid
            FROM compared c
            JOIN pg_type t ON t.oid = c.oid
            CROSS JOIN LATERAL (
                SELECT t.typbasetype WHERE t.typtype = 'd'
                UNION ALL
                SELECT t.typelem WHERE t.typcategory = 'A'
                UNION ALL
                SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            ) p (oid)
        )
        SELECT FROM compared c JOIN pg_type t ON t.oid = c.oid
        WHERE t.typtype = 'b' AND t.typcategory <> 'A' AND NOT EXISTS (
            SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
            WHERE m.amname IN ('btree', 'hash') AND o.opcdefault AND (o.opcintype = t.oid OR EXISTS (
                SELECT FROM pg_cast k
                WHERE k.castsource = t.oid AND k.casttarget = o.opcintype AND k.castmethod = 'b' AND k.castcontext = 'i'))));

-- Returns the tables whose rows logical replication cannot identify.
CREATE OR REPLACE FUNCTION insta_ids_internal.unidentified_tables(shards integer[])
    RETURNS TABLE (shard integer, relation regclass, reason text, hint text)
    STABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT s.shard, c.oid::regclass, r.reason,
           CASE WHEN c.relreplident = 'f'
               THEN format('Add a primary key, and: ALTER TABLE %s REPLICA IDENTITY DEFAULT', c.oid::regclass)
               ELSE format('Add a primary key, or: ALTER TABLE %s REPLICA IDENTITY FULL', c.oid::regclass) END
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p')
    LEFT JOIN pg_index i ON i.indrelid = c.oid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
    LEFT JOIN LATERAL (
        SELECT min(a.attname) FILTER (WHERE a.attnum = ANY (i.indkey::smallint[]) AND a.attgenerated <> '') AS generated,
               min(a.attname) FILTER (WHERE a.attgenerated = '' AND c.relreplident = 'f' AND NOT insta_ids_internal.has_equality(a.atttypid))
                   AS incomparable
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) a ON true
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN c.relreplident = 'f' THEN
                'Its REPLICA IDENTITY is FULL, and the type of column ' || quote_ident(a.incomparable) || ' has no equality operator.'
            WHEN c.relreplident = 'n' THEN 'Its REPLICA IDENTITY is NOTHING.'
            WHEN i.indexrelid IS NULL OR NOT i.indisvalid THEN CASE c.relreplident
                WHEN 'd' THEN 'It has no primary key.' ELSE 'The index of its REPLICA IDENTITY is gone or invalid.' END
            WHEN NOT i.indimmediate THEN 'Its primary key is deferrable.'
            WHEN a.generated IS NOT NULL THEN format('Column %I of its key is generated, and replication leaves it out.', a.generated)
        END
    ) r (reason)
    WHERE s.shard = ANY (shards) AND r.reason IS NOT NULL
    ORDER BY s.shard, c.relname;
END;

-- Returns findings about tables whose rows are not in their heaps, tables without a replica identity, and indexes and constraints that
-- are not valid.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_tables() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT f.severity, f.code, f.object, f.detail, 'Read them by queries. drop_shard() and move_shards() refuse these shards.'
    FROM insta_ids_internal.unread_finding('Tables whose rows', ARRAY(
        SELECT format('%s: It is a %s', c.oid::regclass, n.what)
        FROM insta_ids_internal.shard_schema s
        JOIN pg_class c ON c.relnamespace = s.oid
        CROSS JOIN LATERAL insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam) n (what)
        WHERE n.what IS NOT NULL ORDER BY s.shard, c.relname)) f;

    RETURN QUERY
    SELECT 'warning', 'no_replica_identity', t.relation::text,
           t.reason || ' Its rows cannot be told apart when the shard moves.',
           insta_ids_internal.for_owner(c.relowner, c.oid, t.hint)
    FROM insta_ids_internal.unidentified_tables(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s)) t JOIN pg_class c ON c.oid = t.relation;

    RETURN QUERY
    SELECT 'warning', 'invalid_index', i.indexrelid::regclass::text,
           format('It is left from a command that failed, and is of no use to %s.', i.indrelid::regclass),
           insta_ids_internal.for_owner(c.relowner, i.indrelid, format(
               CASE WHEN c.relkind = 'I' THEN 'Attach an index of each partition to it, or: DROP INDEX %s'
                   WHEN c.relname ~ '_cc(new|old)[0-9]*$' THEN 'DROP INDEX CONCURRENTLY %s'
                   ELSE 'REINDEX INDEX CONCURRENTLY %s' END, i.indexrelid::regclass))
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('i', 'I')
    JOIN pg_index i ON i.indexrelid = c.oid AND NOT i.indisvalid
    -- An index that is being created now, under this lock, is not valid yet.
    WHERE NOT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock' AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    ORDER BY s.shard, c.relname;

    RETURN QUERY
    SELECT 'warning', 'unvalidated_constraint', format('%s.%I', k.conrelid::regclass, k.conname),
           'Rows that were there before it may violate it.',
           insta_ids_internal.for_owner(c.relowner, c.oid,
               format('ALTER TABLE %s VALIDATE CONSTRAINT %I', k.conrelid::regclass, k.conname))
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND NOT c.relispartition
    JOIN pg_constraint k ON k.conrelid = c.oid AND NOT k.convalidated AND k.coninhcount = 0
    ORDER BY s.shard, c.relname, k.conname;
END
$$;
