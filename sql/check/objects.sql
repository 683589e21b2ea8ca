-- The objects of shards, in words that are the same in each shard.

-- Returns a stored expression in a form that is the same in all shards where the expression is the same. It has names instead
-- of `oids`, and calls of `minting` lack the shard. NULL if it contains an OID without a name.
CREATE OR REPLACE FUNCTION insta_ids_internal.normalized_expression(tree text, oids oid[], names text[], minting oid[], shard integer) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'normalized_expression_wrapper';
-- Returns the shards that a stored expression passes to these functions as the first argument.
CREATE OR REPLACE FUNCTION insta_ids_internal.minted_shards(tree text, functions oid[]) RETURNS integer[]
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'minted_shards_wrapper';

-- Returns a name as a literal, as PostgreSQL writes out stored literals: backslashes are not doubled.
CREATE OR REPLACE FUNCTION insta_ids_internal.literal_of(name name) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN '''' OPERATOR(pg_catalog.||) pg_catalog.replace(name::text, '''', '''''') OPERATOR(pg_catalog.||) '''';

-- objects_of() calls this function and the next two, with the settings that their words and plans depend on. This one returns
-- tables, columns, and what belongs to a table. With `written_out`, the CHECKs of ids are left out, because they follow from
-- defaults.
CREATE OR REPLACE FUNCTION insta_ids_internal.objects_of_tables(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM insta_ids_internal.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE s.shard = ANY (shards) AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'c') AND NOT c.relispartition
    )
    SELECT r.shard, 'table', NULL, r.relname::text,
           concat_ws(' ', CASE r.relpersistence WHEN 'u' THEN 'unlogged' END,
               CASE r.relkind WHEN 'f' THEN 'foreign' WHEN 'p' THEN 'partitioned' END, 'table',
               CASE r.relkind WHEN 'p' THEN 'by ' || pg_get_partkeydef(r.oid) END,
               CASE WHEN r.relrowsecurity THEN 'with row security' END,
               CASE WHEN r.relforcerowsecurity THEN 'forced' END,
               CASE WHEN r.relreplident <> 'd' THEN 'with replica identity ' || r.relreplident::text END)
    FROM relations r WHERE r.relkind IN ('r', 'p', 'f')
    UNION ALL
    SELECT r.shard, CASE r.relkind WHEN 'c' THEN 'attribute' ELSE 'column' END, r.relname, a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attcollation NOT IN (0, t.typcollation) THEN 'COLLATE ' || a.attcollation::regcollation END)
    FROM relations r
    JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE r.relkind IN ('r', 'p', 'f', 'c')
    UNION ALL
    SELECT r.shard, 'NOT NULL', r.relname, a.attname, 'NOT NULL'
    FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE r.relkind IN ('r', 'p', 'f') AND a.attnotnull
    UNION ALL
    SELECT r.shard, 'index', r.relname, i.relname, pg_get_indexdef(x.indexrelid)
    FROM relations r
    JOIN pg_index x ON x.indrelid = r.oid
    JOIN pg_class i ON i.oid = x.indexrelid
    WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = r.oid AND k.conindid = i.oid)
    UNION ALL
    SELECT r.shard, 'constraint', r.relname, CASE WHEN NOT i.is_of_ids THEN k.conname ELSE '' END,
           CASE WHEN i.is_of_ids THEN replace(k.definition, format('= %s))', r.shard), '= ' || chr(2) || '))')
               ELSE k.definition END
    FROM relations r
    CROSS JOIN LATERAL (
        SELECT k.conname, regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') AS definition
        -- A foreign key to a partitioned table has one more constraint for each partition. These come and go with the
        -- partitions.
        FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype <> 'n' AND k.conparentid = 0
    ) k
    CROSS JOIN LATERAL (
        SELECT k.definition LIKE ANY (ARRAY[
            format($re$CHECK ((%%id\_shard(%%) = %s))$re$, r.shard),
            format($re$CHECK (((%% < %%) OR (%%id\_shard(%%) = %s)))$re$, r.shard)])
    ) i (is_of_ids)
    WHERE NOT (i.is_of_ids AND written_out)
    UNION ALL
    SELECT r.shard, 'trigger', r.relname, g.tgname,
           concat_ws(' ', pg_get_triggerdef(g.oid), CASE WHEN g.tgenabled <> 'O' THEN '(' || g.tgenabled::text || ')' END)
    FROM relations r JOIN pg_trigger g ON g.tgrelid = r.oid AND NOT g.tgisinternal AND g.tgname NOT IN ('insta_ids_fence', 'insta_ids_fence_rows')
    UNION ALL
    SELECT r.shard, 'policy', r.relname, p.polname,
           concat_ws(' ', p.polcmd::text, p.polpermissive, p.polroles::regrole[],
               pg_get_expr(p.polqual, p.polrelid), 'CHECK ' || pg_get_expr(p.polwithcheck, p.polrelid))
    FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
    UNION ALL
    SELECT r.shard, 'rule', r.relname, u.rulename, pg_get_ruledef(u.oid)
    FROM relations r JOIN pg_rewrite u ON u.ev_class = r.oid AND u.rulename <> '_RETURN';
END
$$;

-- Returns defaults, generated columns, functions and aggregates. Without `written_out`, expressions are not written out but
-- compared as stored trees, with the names of what they use. To write out a function's name, PostgreSQL reads all functions of
-- that name, and each shard has its own next_id.
CREATE OR REPLACE FUNCTION insta_ids_internal.objects_with_expressions(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids_internal.id_functions();
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid, quote_ident(s.schema) || '.' AS own
        FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('r', 'p', 'f', 'v') AND NOT c.relispartition
    ), functions AS MATERIALIZED (
        SELECT s.shard, p.*, s.schema, format('%I(%s)', p.proname, replace(oidvectortypes(p.proargtypes), s.own, chr(1))) AS signature
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        -- Functions that belong to a type come and go with it.
        WHERE NOT EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
    ), expressions AS (
        SELECT r.shard, r.relnamespace AS schema, CASE a.attgenerated WHEN '' THEN 'default' ELSE 'expression' END AS kind,
               r.relname AS relation, a.attname::text AS name, 'pg_attrdef'::regclass AS classid, d.oid, d.adrelid,
               d.adbin AS tree,
               CASE a.attgenerated WHEN 's' THEN 'STORED' WHEN 'v' THEN 'VIRTUAL' END AS attributes
        FROM relations r
        JOIN pg_attrdef d ON d.adrelid = r.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        UNION ALL
        SELECT f.shard, f.pronamespace, 'function', NULL, f.signature, 'pg_proc'::regclass, f.oid, NULL, f.prosqlbody,
               concat_ws(' ', f.prokind, f.provolatile, f.proisstrict, f.prosecdef, f.proleakproof, f.proparallel,
                   f.procost, f.prorows, f.proretset, format_type(f.prorettype, NULL),
                   replace(f.proconfig::text, f.schema, chr(5)),
                   pg_get_expr(f.proargdefaults, 0), a.names)
        FROM functions f
        CROSS JOIN LATERAL (
            SELECT string_agg(n.name, ' ' ORDER BY n.place)
            FROM unnest(f.proargnames, f.proargmodes) WITH ORDINALITY n (name, mode, place)
            WHERE n.mode IS DISTINCT FROM 'o'
        ) a (names)
        WHERE f.prokind <> 'a'
    )
    SELECT e.shard, e.kind, e.relation, e.name,
           CASE WHEN x.normalized IS NOT NULL THEN concat_ws(' ', x.normalized, e.attributes)
               WHEN e.kind = 'default' THEN pg_get_expr(e.tree, e.adrelid)
               WHEN e.kind = 'expression'
                   THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(e.tree, e.adrelid), e.attributes)
               -- The name of a result makes no difference to callers, and functions of adopted shards may have one.
               ELSE regexp_replace(pg_get_functiondef(e.oid),
                   $re$(, )?OUT ("([^"]|"")+"|\w+) bigint\)\n RETURNS bigint$re$, E')\n RETURNS bigint') END
    FROM expressions e
    CROSS JOIN LATERAL (
        SELECT CASE WHEN NOT written_out AND e.kind <> 'expression' THEN
            insta_ids_internal.normalized_expression(e.tree::text, coalesce(array_agg(d.refobjid), '{}'), coalesce(array_agg(n.name), '{}'),
                minting, e.shard) END AS normalized
        FROM pg_depend d
        LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
        LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
        LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN p.oid IS NOT NULL
                    THEN format('%s.%s(%s)', nullif(p.pronamespace, e.schema), p.proname, oidvectortypes(p.proargtypes))
                WHEN c.oid IS NOT NULL THEN concat_ws('.', nullif(c.relnamespace, e.schema), c.relname)
                -- Constants of other types may contain OIDs, so expressions with them are written out.
                WHEN t.oid IS NULL OR t.typtype IN ('b', 'd') AND t.typelem = 0
                    THEN pg_describe_object(d.refclassid, d.refobjid, 0)
            END
        ) n (name)
        WHERE d.classid = e.classid AND d.objid = e.oid
    ) x
    UNION ALL
    SELECT f.shard, 'aggregate', NULL, f.signature,
           concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, format_type(a.aggtranstype, NULL), a.agginitval)
    FROM functions f JOIN pg_aggregate a ON a.aggfnoid = f.oid;
END
$$;

-- Returns the parameters of a sequence without its type, as CREATE SEQUENCE and ALTER SEQUENCE accept them.
CREATE OR REPLACE FUNCTION insta_ids_internal.sequence_options(s pg_catalog.pg_sequence) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement, s.seqmin, s.seqmax,
        s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END);

-- Returns views, sequences, types and statistics.
CREATE OR REPLACE FUNCTION insta_ids_internal.objects_beside_tables(shards integer[])
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.oid FROM insta_ids_internal.shard_schema s WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('v', 'm', 'S', 'c') AND NOT c.relispartition
    )
    SELECT r.shard, CASE r.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END, NULL, r.relname::text,
           concat('WITH (' || nullif(o.options, '') || ') ', 'AS', pg_get_viewdef(r.oid))
    FROM relations r
    CROSS JOIN LATERAL (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(r.reloptions) o) o (options)
    WHERE r.relkind IN ('v', 'm')
    UNION ALL
    SELECT r.shard, CASE WHEN i.attname IS NULL THEN 'sequence' ELSE 'identity' END, i.relname,
           coalesce(i.attname, r.relname),
           CASE i.attidentity WHEN 'a' THEN format('GENERATED ALWAYS AS IDENTITY (%s)', q.options)
               WHEN 'd' THEN format('GENERATED BY DEFAULT AS IDENTITY (%s)', q.options)
               ELSE format('AS %s %s', s.seqtypid::regtype, q.options) END
    FROM relations r
    JOIN pg_sequence s ON s.seqrelid = r.oid
    CROSS JOIN LATERAL insta_ids_internal.sequence_options(s) q (options)
    -- The LIMIT tells the planner that there is at most one row. Otherwise it would read all columns of the database.
    LEFT JOIN LATERAL (
        SELECT t.relname, a.attname, a.attidentity
        FROM pg_depend d
        JOIN pg_class t ON t.oid = d.refobjid
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.deptype = 'i'
            AND d.refclassid = 'pg_class'::regclass
        LIMIT 1
    ) i ON true
    UNION ALL
    SELECT s.shard, 'type', NULL, t.typname,
           concat_ws(' ', t.typtype::text, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
               (SELECT format_type(g.rngsubtype, NULL) FROM pg_range g WHERE g.rngtypid = t.oid),
               CASE WHEN t.typnotnull THEN 'NOT NULL' END, t.typdefault,
               (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                FROM pg_enum e WHERE e.enumtypid = t.oid),
               (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname)
                FROM pg_constraint k WHERE k.contypid = t.oid))
    FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid AND t.typtype IN ('d', 'e', 'r')
    UNION ALL
    SELECT r.shard, 'type', NULL, r.relname, 'c' FROM relations r WHERE r.relkind = 'c'
    UNION ALL
    -- The columns are sorted by name, because shards may have got them in different orders.
    SELECT s.shard, 'statistics', NULL, x.stxname,
           format('%s ON %s FROM %s', split_part(pg_get_statisticsobjdef(x.oid), ' ON ', 1), k.columns,
               x.stxrelid::regclass)
    FROM schemas s
    JOIN pg_statistic_ext x ON x.stxnamespace = s.oid
    CROSS JOIN LATERAL (
        SELECT string_agg(e.name, ', ' ORDER BY e.name)
        FROM (
            SELECT quote_ident(a.attname) FROM pg_attribute a
            WHERE a.attrelid = x.stxrelid AND a.attnum = ANY (x.stxkeys)
            UNION ALL
            SELECT format('(%s)', e) FROM unnest(pg_get_statisticsobjdef_expressions(x.oid)) e
        ) e (name)
    ) k (columns);
END
$$;

-- Returns the objects of shards, with one row for each thing that can differ. The words are the same in each shard: chr(1)
-- stands for the shard's schema and a dot, and chr(4) for the same inside of a literal. chr(5) is the schema as a literal, and
-- chr(2) is the shard's number. Owners and privileges are left out, and partitions, because older shards may have more.
-- `written_out` is as in the functions above.
CREATE OR REPLACE FUNCTION insta_ids_internal.objects_of(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- The best plan depends on how many shards are asked for.
    SET plan_cache_mode = force_custom_plan
    -- With this setting, PostgreSQL writes literals as literal_of() does.
    SET standard_conforming_strings = on
AS $$
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, o.own, replace(o.own, '''', '''''') AS own_in_literal, insta_ids_internal.literal_of(s.schema) AS literal
        FROM insta_ids_internal.shard_schema s
        CROSS JOIN LATERAL (SELECT quote_ident(s.schema) || '.') o (own)
        WHERE s.shard = ANY (shards)
    ), objects AS (
        SELECT * FROM insta_ids_internal.objects_of_tables(shards, written_out)
        UNION ALL
        SELECT * FROM insta_ids_internal.objects_with_expressions(shards, written_out)
        UNION ALL
        SELECT * FROM insta_ids_internal.objects_beside_tables(shards)
    )
    SELECT o.shard, o.kind, o.relation, o.name,
           CASE WHEN n.definition LIKE $re$%next\_id%$re$
               THEN regexp_replace(n.definition, format($re$\m(next_ids?)\(%s\M$re$, o.shard), $re$\1($re$ || chr(2), 'g')
               ELSE n.definition END
    FROM objects o
    JOIN schemas s ON s.shard = o.shard
    CROSS JOIN LATERAL (
        SELECT replace(replace(replace(coalesce(o.definition, ''), s.own, chr(1)), s.own_in_literal, chr(4)), s.literal,
            chr(5))
    ) r (definition)
    -- A longer name may end like the shard's schema. The exact search is slow, so it runs only for these names.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN strpos(r.definition, chr(1)) > 0 AND r.definition ~ ($re$[\w$]$re$ || chr(1))
            THEN regexp_replace(o.definition, $re$(?<![\w$])$re$ || regexp_replace(s.own, $re$(\W)$re$, $re$\\\1$re$, 'g'), chr(1), 'g')
            ELSE r.definition END
    ) n (definition);
END
$$;

-- Returns the words of objects_of as they are in one shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.in_shard(words text, schema name, shard integer) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(words,
        pg_catalog.chr(1), pg_catalog.quote_ident(schema::text) || '.'),
        pg_catalog.chr(4), pg_catalog.replace(pg_catalog.quote_ident(schema::text), '''', '''''') || '.'),
        pg_catalog.chr(5), insta_ids_internal.literal_of(schema)),
        pg_catalog.chr(2), shard::text);
