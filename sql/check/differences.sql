-- Checks for objects that differ between shards, or that use another schema.

-- Returns columns of ids without their CHECK, and defaults and functions that use objects of another schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_references(shards integer[])
    RETURNS TABLE (shard integer, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan
    -- The reason is the same as in objects_of.
    SET standard_conforming_strings = on
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids_internal.id_functions();
    prefix CONSTANT name := (insta_ids_internal.require_config()).prefix;
BEGIN
    RETURN QUERY
    SELECT m.shard, 'warning', 'missing_check', format('%s.%I', m.relation, m."column"),
           'next_id fills it, and nothing keeps ids of other shards out.',
           insta_ids_internal.for_owner(c.relowner, format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', m.relation, m.expression))
    FROM insta_ids_internal.minting_columns(shards) m JOIN pg_class c ON c.oid = m.relation WHERE m."check" IS NULL;

    RETURN QUERY
    WITH users AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid AS namespace, 'default' AS kind, 'pg_attrdef'::regclass AS classid, d.oid,
               c.oid::regclass AS relation, a.attname, d.adbin AS tree
        FROM insta_ids_internal.shard_schema s
        JOIN pg_class c ON s.shard = ANY (shards) AND c.relnamespace = s.oid
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT s.shard, s.schema, s.oid, 'function', 'pg_proc'::regclass, p.oid, NULL, NULL, p.prosqlbody
        FROM insta_ids_internal.shard_schema s
        JOIN pg_proc p ON s.shard = ANY (shards) AND p.pronamespace = s.oid AND p.prokind <> 'a'
    ), uses AS (
        SELECT u.*, p.oid = ANY (minting) AS mints, p.prosrc, p.proargtypes, d.refclassid, d.refobjid,
               coalesce(c.relnamespace, p.pronamespace) AS elsewhere, coalesce(c.relname, p.proname) AS used
        FROM users u
        JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.oid
        LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid AND c.relkind = 'S'
        LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
    ), foreign_uses AS (
        SELECT u.*, format('It mints for shard %s.', n.number) AS detail, NULL AS wrong, false AS is_lacking
        FROM uses u
        CROSS JOIN LATERAL unnest(insta_ids_internal.minted_shards(u.tree::text, minting)) n (number)
        WHERE u.mints AND n.number <> u.shard
        UNION ALL
        SELECT u.*, format('It uses %s, which is not of this shard.', pg_describe_object(u.refclassid, u.refobjid, 0)),
               -- Matches the other schema before the name of the object.
               format($re$%s\.(?=%s)$re$, regexp_replace(quote_ident(n.nspname), $re$(\W)$re$, $re$\\\1$re$, 'g'),
                   regexp_replace(quote_ident(u.used), $re$(\W)$re$, $re$\\\1$re$, 'g')),
               NOT EXISTS (
                   -- The function itself does not count, because it would call itself without end.
                   SELECT FROM pg_proc p
                   WHERE p.pronamespace = u.namespace AND p.proname = u.used AND p.proargtypes = u.proargtypes
                       AND (p.oid <> u.oid OR u.kind <> 'function')
                   UNION ALL
                   SELECT FROM pg_class c WHERE c.relnamespace = u.namespace AND c.relname = u.used)
        FROM uses u
        JOIN pg_namespace n ON n.oid = u.elsewhere
        WHERE u.elsewhere <> u.namespace
            AND (u.refclassid = 'pg_class'::regclass
                -- Shards may share functions of other schemas, unless these make ids like the published function.
                OR starts_with(n.nspname, prefix) AND substr(n.nspname, length(prefix) + 1) ~ '^[0-9]'
                OR u.prosrc ~* 'nextval' AND u.prosrc ~* '<<|epoch')
    ), wrong AS (
        SELECT f.shard, f.schema, f.kind, f.relation, f.attname, f.oid,
               string_agg(DISTINCT f.detail, ' ' ORDER BY f.detail) AS detail,
               string_agg(DISTINCT f.wrong, '|') AS schemas, bool_or(f.is_lacking) AS is_lacking
        FROM foreign_uses f GROUP BY f.shard, f.schema, f.kind, f.relation, f.attname, f.oid
    )
    SELECT w.shard, 'error', 'foreign_' || w.kind,
           CASE w.kind WHEN 'default' THEN format('%s.%I', w.relation, w.attname) ELSE w.oid::regprocedure::text END,
           w.detail,
           CASE
               WHEN w.kind = 'default' AND NOT w.is_lacking
                   AND insta_ids_internal.is_plain(replace(o.own, quote_ident(w.schema) || '.', ''), true)
               THEN insta_ids_internal.for_owner(c.relowner,
                   format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', w.relation, w.attname, o.own))
               ELSE format('Use what is in schema %I.', w.schema)
           END
    FROM wrong w
    LEFT JOIN pg_class c ON c.oid = w.relation
    CROSS JOIN LATERAL (
        SELECT CASE w.kind WHEN 'default'
            THEN (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE d.oid = w.oid) ELSE '' END
    ) e (text)
    CROSS JOIN LATERAL (SELECT replace(quote_ident(w.schema), $re$\$re$, $re$\\$re$) || '.' AS plain) s
    CROSS JOIN LATERAL regexp_replace(
        -- In a literal, quotes are doubled.
        coalesce(regexp_replace(regexp_replace(e.text, w.schemas, s.plain, 'g'),
            replace(w.schemas, $re$\'$re$, $re$\'\'$re$), replace(s.plain, '''', ''''''), 'g'), e.text),
        $re$\m(next_ids?)\(\d+$re$, format($re$\1(%s$re$, w.shard), 'g') o (own)
    ORDER BY w.shard, w.relation, w.oid;
END
$$;

-- Returns a finding about what could not be read. Each element of `unread` is a name, a colon and the reason.
CREATE OR REPLACE FUNCTION insta_ids_internal.unread_finding(what text, unread text[]) RETURNS SETOF insta_ids.finding
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT 'notice', 'not_read', pg_catalog.left(unread[1], pg_catalog.strpos(unread[1], ': ') - 1),
           pg_catalog.format('%s could not be read: %s. The first with: %s.', what, pg_catalog.cardinality(unread),
               pg_catalog.substr(unread[1], pg_catalog.strpos(unread[1], ': ') + 2)),
           'Check again when no session locks or changes it, as a member of the role that owns it.'
    WHERE pg_catalog.cardinality(unread) > 0;
END;

-- Runs a query for all shards, in parts: the query gets the shards of a part as $1. Returns its lines, which are arrays of
-- texts, or the reason why a shard could not be read.
--
-- To write out expressions, PostgreSQL locks the tables that they name. So each part is read in a subtransaction that is rolled
-- back. If it fails because other sessions have locked or dropped something, smaller parts are read.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_parts(shards integer[], query text)
    RETURNS TABLE (line text[], unread text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Each part has about 8000 tables and views. After it, the session frees their cached definitions.
    at_once CONSTANT integer := 1 + 8000 * (SELECT count(*) FROM insta_ids_internal.shard)
        / (1 + (SELECT count(*) FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm')));
    size integer := at_once;
    place integer := 1;
    part integer[];
    lines text[];
BEGIN
    WHILE place <= cardinality(shards) LOOP
        part := shards[place : place + size - 1];
        BEGIN
            -- array_agg requires that all lines have the same number of texts.
            EXECUTE format('SELECT array_agg(q.line) FROM (%s) q (line)', query) INTO lines USING part;
            RAISE triggered_action_exception;
        EXCEPTION
            WHEN triggered_action_exception THEN
                IF lines IS NOT NULL THEN
                    FOREACH line SLICE 1 IN ARRAY lines LOOP
                        RETURN NEXT;
                    END LOOP;
                END IF;
                place := place + size;
                size := least(2 * size, at_once);
            WHEN OTHERS THEN
                IF size = 1 THEN
                    RETURN QUERY SELECT NULL::text[], format('%I: %s', insta_ids.schema_of(part[1]), SQLERRM);
                    place := place + 1;
                END IF;
                size := greatest(1, size / 2);
        END;
        IF place <= cardinality(shards) THEN
            PERFORM insta_ids_internal.limit_catalog_cache();
        END IF;
    END LOOP;
END
$$;

-- Returns findings about objects that differ between shards with the same migrations. Of the shards with the same fingerprint,
-- only one is read.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_differences(shards integer[], fingerprints bigint[]) RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- These kinds of objects belong to a column.
    of_column CONSTANT text[] := ARRAY['NOT NULL', 'default', 'expression', 'identity'];
BEGIN
    RETURN QUERY
    WITH shards AS (
        SELECT f.shard, f.fingerprint,
               coalesce((SELECT array_agg(m.migration ORDER BY m.migration) FROM insta_ids_internal.shard_migration m
                         WHERE m.shard = f.shard AND m.message IS NULL), '{}') AS applied
        FROM unnest(shards, fingerprints) f (shard, fingerprint)
    ), classes AS MATERIALIZED (
        SELECT s.applied, min(s.shard) AS first, array_agg(s.shard) AS members, count(*) AS weight,
               sum(count(*)) OVER (PARTITION BY s.applied) AS total
        FROM shards s GROUP BY s.applied, s.fingerprint
    ), objects AS MATERIALIZED (
        SELECT c.applied, c.weight, c.total, o.*
        FROM classes c
        JOIN insta_ids_internal.objects_of(
            ARRAY(SELECT c.first FROM classes c WHERE c.weight < c.total), written_out => true) o ON o.shard = c.first
    ), variants AS (
        SELECT o.applied, o.kind, o.relation, o.name, o.definition, sum(o.weight) AS weight, min(o.shard) AS first
        FROM objects o GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT o.applied, o.kind, o.relation, o.name, NULL, min(o.total) - sum(o.weight), NULL
        FROM objects o GROUP BY 1, 2, 3, 4
    ), norms AS (
        -- The norm is what most shards have. If as many shards have an object as lack it, the norm is to have it.
        SELECT DISTINCT ON (v.applied, v.kind, v.relation, v.name) v.*
        FROM variants v
        ORDER BY v.applied, v.kind, v.relation, v.name, v.weight DESC, v.definition IS NULL, v.first
    ), differences AS (
        SELECT c.members, c.total, n.kind, n.relation, n.name, n.weight, o.definition AS here, n.definition AS elsewhere,
               CASE WHEN o.definition IS NULL THEN 'missing' WHEN n.definition IS NULL THEN 'extra' ELSE 'different' END
               AS difference,
               -- A missing column needs these besides its type.
               CASE WHEN n.kind = 'column' THEN (
                   SELECT string_agg(CASE d.kind WHEN 'default' THEN ' DEFAULT ' ELSE ' ' END || d.definition, ''
                              ORDER BY d.kind COLLATE "C")
                   FROM norms d
                   WHERE d.kind = ANY (of_column) AND d.definition IS NOT NULL
                       AND (d.applied, d.relation, d.name) = (n.applied, n.relation, n.name)) END AS besides
        FROM classes c
        JOIN norms n ON n.applied = c.applied
        LEFT JOIN objects o
            ON o.shard = c.first AND o.kind = n.kind AND o.relation IS NOT DISTINCT FROM n.relation AND o.name = n.name
        WHERE o.definition IS DISTINCT FROM n.definition
    )
    SELECT 'warning', d.difference || '_object',
           format('%I.%s', s.schema, CASE
               WHEN d.kind IN ('function', 'aggregate') THEN insta_ids_internal.in_shard(d.name, s.schema, s.shard)
               ELSE concat_ws('.', quote_ident(d.relation), quote_ident(d.name)) END),
           format('%s: %s.', concat_ws(' ', upper(left(d.kind, 1)) || substr(d.kind, 2)),
               CASE d.difference
                   WHEN 'missing' THEN format('%s of %s shards have it', d.weight, d.total)
                   WHEN 'extra' THEN format('%s of %s shards do not have it', d.weight, d.total)
                   ELSE format('here %s, in %s of %s shards %s', insta_ids_internal.in_shard(d.here, s.schema, s.shard),
                       d.weight, d.total, insta_ids_internal.in_shard(d.elsewhere, s.schema, s.shard))
               END),
           coalesce(
               -- If the definitions differ, there is a statement only if more than half of the shards have the same one.
               CASE WHEN d.difference <> 'different' OR 2 * d.weight > d.total THEN
                   insta_ids_internal.for_owner(
                       coalesce((SELECT c.relowner FROM pg_class c WHERE c.relnamespace = s.oid
                            AND c.relname = coalesce(d.relation, d.name)), (SELECT n.nspowner FROM pg_namespace n WHERE n.oid = s.oid)),
                       insta_ids_internal.repair_statement(d.difference, d.kind, d.relation, d.name,
                           d.elsewhere || CASE WHEN d.difference = 'missing' THEN coalesce(d.besides, '') ELSE '' END,
                           s.schema, s.shard))
               END,
               'Make it as in the other shards; pg_dump --schema-only shows how it is there.')
    FROM differences d
    JOIN insta_ids_internal.shard_schema s ON s.shard = ANY (d.members)
    -- There are no findings about parts of a table, type or column that is missing or extra itself.
    WHERE NOT EXISTS (
        SELECT FROM differences t
        WHERE t.members = d.members AND t.difference <> 'different'
            AND (t.kind IN ('table', 'type', 'materialized view') AND t.name = d.relation
                OR t.kind = 'column' AND d.kind = ANY (of_column) AND (t.relation, t.name) = (d.relation, d.name)))
    -- Types and sequences come first, because other objects need them.
    ORDER BY s.shard, d.kind NOT IN ('type', 'sequence'), d.kind, d.relation, d.name;
END
$$;

-- Returns findings about objects that differ between shards or use another schema, and about columns of ids without a CHECK.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_objects() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    shards CONSTANT integer[] := ARRAY(SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid IS NOT NULL ORDER BY 1);
    -- The fingerprint is one number for all objects of a shard. Equal shards have the same fingerprint.
    fingerprints CONSTANT text := $query$
        SELECT ARRAY[s.shard, bit_xor(hashtextextended(
                   concat_ws(chr(3), o.kind, coalesce(o.relation, ''), o.name, o.definition), 0))]::text[]
        FROM unnest($1) s (shard)
        LEFT JOIN insta_ids_internal.objects_of($1, written_out => false) o ON o.shard = s.shard
        GROUP BY s.shard $query$;
    read record;
BEGIN
    SELECT array_agg(p.line[1]::integer) FILTER (WHERE p.line IS NOT NULL) AS shards,
           array_agg(p.line[2]::bigint) FILTER (WHERE p.line IS NOT NULL) AS fingerprints,
           array_agg(p.unread) FILTER (WHERE p.unread IS NOT NULL) AS unread
    INTO read FROM insta_ids_internal.read_parts(shards, fingerprints) p;
    RETURN QUERY SELECT f.* FROM insta_ids_internal.check_differences(read.shards, read.fingerprints) f;

    -- Of equal shards, one is checked first. If it has findings, the others are checked, too.
    RETURN QUERY
    WITH shards AS (
        SELECT s.shard, min(s.shard) OVER (PARTITION BY s.fingerprint) AS first
        FROM unnest(read.shards, read.fingerprints) s (shard, fingerprint)
    ), wrong AS (
        SELECT DISTINCT r.shard
        FROM insta_ids_internal.check_references(ARRAY(SELECT DISTINCT s.first FROM shards s)) r
    )
    SELECT r.severity, r.code, r.object, r.detail, r.hint
    FROM insta_ids_internal.check_references(ARRAY(SELECT s.shard FROM shards s JOIN wrong w ON w.shard = s.first)) r;

    RETURN QUERY SELECT f.* FROM insta_ids_internal.unread_finding('Shards whose objects', read.unread) f;
END
$$;

-- Returns the tables whose rows logical replication cannot identify.
CREATE OR REPLACE FUNCTION insta_ids_internal.unidentified_tables(shards integer[]) RETURNS TABLE (shard integer, relation regclass)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT s.shard, c.oid::regclass
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p')
    WHERE s.shard = ANY (shards)
        AND (c.relreplident = 'n'
            OR c.relreplident IN ('d', 'i') AND NOT EXISTS (
                SELECT FROM pg_index i
                WHERE i.indrelid = c.oid AND i.indisvalid
                    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate ELSE i.indisreplident END))
    ORDER BY s.shard, c.relname;
END
$$;

-- Returns findings about tables without a replica identity, and about indexes and constraints that are not valid.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_tables() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'no_replica_identity', t.relation::text,
           'It has no primary key, or the index chosen for it is gone: its rows cannot be told apart when the shard moves.',
           'Add a primary key, or: ' || insta_ids_internal.for_owner(c.relowner, format('ALTER TABLE %s REPLICA IDENTITY FULL', t.relation))
    FROM insta_ids_internal.unidentified_tables(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s)) t JOIN pg_class c ON c.oid = t.relation;

    RETURN QUERY
    SELECT 'warning', 'invalid_index', i.indexrelid::regclass::text,
           format('It is left from a command that failed, and is of no use to %s.', i.indrelid::regclass),
           format(CASE WHEN c.relkind = 'I' THEN 'Attach an index of each partition to it, or: DROP INDEX %s'
                   WHEN c.relname ~ '_cc(new|old)[0-9]*$' THEN 'DROP INDEX CONCURRENTLY %s'
                   ELSE 'REINDEX INDEX CONCURRENTLY %s' END, i.indexrelid::regclass)
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
           insta_ids_internal.for_owner(c.relowner, format('ALTER TABLE %s VALIDATE CONSTRAINT %I', k.conrelid::regclass, k.conname))
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND NOT c.relispartition
    JOIN pg_constraint k ON k.conrelid = c.oid AND NOT k.convalidated AND k.coninhcount = 0
    ORDER BY s.shard, c.relname, k.conname;
END
$$;
