-- Checks for objects that differ between shards, or that use another schema.

-- Returns columns of ids without their CHECK, and defaults and functions that use objects of another schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_references(shards integer[])
    RETURNS TABLE (shard integer, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids_internal.id_functions();
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
BEGIN
    RETURN QUERY
    SELECT m.shard, 'warning', 'missing_check', format('%s.%I', m.relation, m."column"),
           'next_id fills it, and nothing keeps ids of other shards out.',
           insta_ids_internal.for_owner(c.relowner, c.oid, format(
               'ALTER TABLE %s ADD CHECK (%s.id_shard(%I::pg_catalog.int8%s) OPERATOR(pg_catalog.=) %s) NOT VALID', m.relation,
               insta_ids_internal.extension_schema(), m."column", insta_ids_internal.layout_argument(config.layout), m.shard))
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
        SELECT u.*, p.oid = ANY (minting) AS mints, p.prosrc, d.refclassid, d.refobjid,
               coalesce(c.relnamespace, p.pronamespace) AS elsewhere
        FROM users u
        JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.oid
        LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid AND c.relkind = 'S'
        LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
    ), foreign_uses AS (
        SELECT u.*, format('It mints for shard %s.', n.number) AS detail
        FROM uses u
        CROSS JOIN LATERAL unnest(insta_ids_internal.minted_shards(u.tree::text, minting)) n (number)
        WHERE u.mints AND n.number <> u.shard
        UNION ALL
        SELECT u.*, format('It uses %s, which is not of this shard.', pg_describe_object(u.refclassid, u.refobjid, 0))
        FROM uses u
        JOIN pg_namespace n ON n.oid = u.elsewhere
        WHERE u.elsewhere <> u.namespace
            AND (u.refclassid = 'pg_class'::regclass
                -- Shards may share functions of other schemas, unless these make ids like the published function.
                OR starts_with(n.nspname, config.prefix) AND substr(n.nspname, length(config.prefix) + 1) ~ '^[0-9]'
                OR u.prosrc ~* 'nextval' AND u.prosrc ~* '<<|epoch')
    )
    SELECT f.shard, 'error', 'foreign_' || f.kind,
           CASE f.kind WHEN 'default' THEN format('%s.%I', f.relation, f.attname) ELSE f.oid::regprocedure::text END,
           string_agg(DISTINCT f.detail, ' ' ORDER BY f.detail), format('Use what is in schema %I.', f.schema)
    FROM foreign_uses f
    GROUP BY f.shard, f.schema, f.kind, f.relation, f.attname, f.oid ORDER BY f.shard, f.relation, f.oid;
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

-- Returns a finding about a shard that read_parts() could not read.
CREATE OR REPLACE FUNCTION insta_ids_internal.unread_shard(shard integer, reason text, hint text) RETURNS insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN ROW('notice', 'not_read', quote_ident(insta_ids.schema_of(shard)),
        format('The objects of this shard could not be read: %s.', reason),
        coalesce(hint, 'Check again when no session locks or changes it.'))::insta_ids.finding;

-- Runs a query for all shards, in parts: the query gets the shards of a part as $1. Returns its lines, which are arrays of
-- texts, and for each shard that could not be read, the reason and what helps.
--
-- To write out expressions, PostgreSQL locks the tables that they name. So each part is read in a subtransaction that is rolled
-- back. If it fails, smaller parts are read: other sessions may have locked or dropped something, and an expression may be too
-- deep to write out.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_parts(shards integer[], query text)
    RETURNS TABLE (line text[], shard integer, reason text, hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Each part has about 8000 tables and views. After it, the session frees their cached definitions.
    largest CONSTANT integer := 1 + 8000 * (SELECT count(*) FROM insta_ids_internal.shard)
        / (1 + (SELECT count(*) FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm')));
    size integer := largest;
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
                size := least(2 * size, largest);
            WHEN OTHERS THEN
                IF size = 1 THEN
                    GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
                    RETURN QUERY SELECT NULL::text[], part[1], SQLERRM, nullif(hint, '');
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
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    written_out CONSTANT text := $query$
        SELECT ARRAY[o.shard::text, o.kind, o.relation, o.name, o.definition]
        FROM insta_ids_internal.objects_of($1, written_out => true) o $query$;
BEGIN
    RETURN QUERY
    WITH shards AS (
        SELECT f.shard, f.fingerprint,
               coalesce((SELECT array_agg(m.migration ORDER BY m.migration) FROM insta_ids_internal.shard_migration m
                         WHERE m.shard = f.shard AND m.message IS NULL), '{}') AS applied
        FROM unnest(shards, fingerprints) f (shard, fingerprint)
    ), equal_shards AS MATERIALIZED (
        SELECT s.applied, min(s.shard) AS first, array_agg(s.shard) AS members,
               count(*) OVER (PARTITION BY s.applied) > 1 AS has_others
        FROM shards s GROUP BY s.applied, s.fingerprint
    ), read AS MATERIALIZED (
        SELECT p.* FROM insta_ids_internal.read_parts(
            ARRAY(SELECT e.first FROM equal_shards e WHERE e.has_others ORDER BY 1), written_out) p
    ), classes AS MATERIALIZED (
        SELECT e.*, cardinality(e.members) AS weight, sum(cardinality(e.members)) OVER (PARTITION BY e.applied) AS total
        FROM equal_shards e
        WHERE e.has_others AND e.first NOT IN (SELECT r.shard FROM read r WHERE r.line IS NULL)
    ), objects AS MATERIALIZED (
        SELECT c.applied, c.weight, c.total, c.first AS shard, r.line[2] AS kind, r.line[3] AS relation, r.line[4] AS name,
               r.line[5] AS definition
        FROM read r JOIN classes c ON c.first = r.line[1]::integer
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
    ), differences AS MATERIALIZED (
        SELECT c.members, c.total, n.kind, n.relation, n.name, n.weight, n.first, o.definition AS here, n.definition AS elsewhere,
               CASE WHEN o.definition IS NULL THEN 'missing' WHEN n.definition IS NULL THEN 'extra' ELSE 'different' END
               AS difference
        FROM classes c
        JOIN norms n ON n.applied = c.applied
        LEFT JOIN objects o
            ON o.shard = c.first AND o.kind = n.kind AND o.relation IS NOT DISTINCT FROM n.relation AND o.name = n.name
        WHERE o.definition IS DISTINCT FROM n.definition
    ), findings AS (
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
               insta_ids_internal.repair_hint(d.difference, d.kind, d.relation, d.name, s.schema, s.shard,
                   insta_ids.schema_of(d.first))
        FROM differences d
        JOIN insta_ids_internal.shard_schema s ON s.shard = ANY (d.members)
        -- There are no findings about parts of a table, type or column that is missing or extra itself.
        WHERE NOT EXISTS (
            SELECT FROM differences t
            WHERE t.members = d.members AND t.difference <> 'different'
                AND (t.kind IN ('table', 'type', 'materialized view') AND t.name = d.relation
                    OR t.kind = 'column' AND d.kind IN ('NOT NULL', 'default', 'expression', 'identity')
                        AND (t.relation, t.name) = (d.relation, d.name)))
        -- Types and sequences come first, because other objects need them.
        ORDER BY s.shard, d.kind NOT IN ('type', 'sequence'), d.kind, d.relation, d.name
    )
    SELECT * FROM findings
    UNION ALL
    SELECT u.* FROM read r CROSS JOIN LATERAL insta_ids_internal.unread_shard(r.shard, r.reason, r.hint) u WHERE r.line IS NULL;
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
    refs CONSTANT text := $query$
        SELECT ARRAY[r.shard::text, r.severity, r.code, r.object, r.detail, r.hint]
        FROM insta_ids_internal.check_references($1) r $query$;
    read record;
BEGIN
    SELECT array_agg(p.line[1]::integer) FILTER (WHERE p.line IS NOT NULL) AS shards,
           array_agg(p.line[2]::bigint) FILTER (WHERE p.line IS NOT NULL) AS fingerprints,
           array_agg(insta_ids_internal.unread_shard(p.shard, p.reason, p.hint)) FILTER (WHERE p.line IS NULL) AS unread
    INTO read FROM insta_ids_internal.read_parts(shards, fingerprints) p;
    RETURN QUERY SELECT f.* FROM insta_ids_internal.check_differences(read.shards, read.fingerprints) f;

    -- Of equal shards, one is checked first. If it has findings, the others are checked, too.
    RETURN QUERY
    WITH shards AS (
        SELECT s.shard, min(s.shard) OVER (PARTITION BY s.fingerprint) AS first
        FROM unnest(read.shards, read.fingerprints) s (shard, fingerprint)
    ), first AS MATERIALIZED (
        SELECT p.* FROM insta_ids_internal.read_parts(ARRAY(SELECT DISTINCT s.first FROM shards s ORDER BY 1), refs) p
    ), every AS MATERIALIZED (
        SELECT p.* FROM insta_ids_internal.read_parts(ARRAY(
            SELECT s.shard FROM shards s WHERE s.first IN (SELECT f.line[1]::integer FROM first f) ORDER BY 1), refs) p
    )
    SELECT e.line[2], e.line[3], e.line[4], e.line[5], e.line[6] FROM every e WHERE e.line IS NOT NULL
    UNION ALL
    SELECT u.* FROM first f CROSS JOIN LATERAL insta_ids_internal.unread_shard(f.shard, f.reason, f.hint) u WHERE f.line IS NULL
    UNION ALL
    SELECT u.* FROM every e CROSS JOIN LATERAL insta_ids_internal.unread_shard(e.shard, e.reason, e.hint) u WHERE e.line IS NULL;

    RETURN QUERY SELECT f.* FROM unnest(read.unread) f;
END
$$;
