-- Checking: what is wrong with shards, or will be. Reads only, and holds no lock on what it has read.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TYPE insta_ids.finding AS (severity text, code text, object text, detail text, hint text);

-- The map, shards, migrations

-- What the map, the fences and the moves do not agree in with this server.
CREATE FUNCTION insta_ids.check_map() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids.this_node();
BEGIN
    RETURN QUERY
    SELECT 'warning', 'unnamed_server', 'insta_ids.node',
           'The map has nodes, and this server does not know which it is: all shards are here.',
           'Set insta_ids.node in postgresql.conf, and restart the server.'
    WHERE here IS NULL AND EXISTS (SELECT FROM insta_ids_internal.assignment);

    RETURN QUERY
    SELECT 'warning', 'other_name', 'insta_ids.node',
           format('It is set to "%s", and "%s" is in force.', current_setting('insta_ids.node', true), coalesce(here, '')),
           'Restart the server, or set it back.'
    WHERE current_setting('insta_ids.node', true) <> coalesce(here, '');

    RETURN QUERY
    SELECT 'error', 'unknown_node', quote_ident(a.node), format('The map has shards from %s to %s on it.', a.first, a.last),
           format('Say how to connect to it: SELECT insta_ids.add_node(%L, ''host=...'')', a.node)
    FROM insta_ids_internal.assignment a WHERE a.node NOT IN (SELECT n.node FROM insta_ids_internal.node n) ORDER BY a.first;

    RETURN QUERY
    SELECT 'error', 'misplaced_shard', quote_ident(s.schema),
           format('It is open to writers here, and the map has shard %s on %s.', s.shard,
               coalesce('node "' || a.node || '"', 'no node')),
           format('If it is written to there: SELECT insta_ids.fence(%s)', s.shard)
    FROM insta_ids_internal.shard_schema s
    LEFT JOIN insta_ids_internal.assignment a ON s.shard BETWEEN a.first AND a.last
    WHERE here IS NOT NULL AND a.node IS DISTINCT FROM here AND s.oid IS NOT NULL
        AND EXISTS (SELECT FROM insta_ids_internal.assignment)
        AND NOT EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = s.shard AND f.is_closed)
    ORDER BY s.shard;

    RETURN QUERY
    SELECT 'error', 'gap_in_fence', r.relation::text, format('Shard %s is fenced, and this table is not.', f.shard),
           format('SELECT insta_ids.fence(%s)', f.shard)
    FROM insta_ids_internal.fence f
    JOIN insta_ids_internal.shard_relation r ON r.shard = f.shard AND r.kind IN ('r', 'p')
    WHERE f.is_closed
        AND EXISTS (
            -- As insta_ids.close_shards left them.
            SELECT FROM (VALUES
                ('insta_ids_fence', true, CASE WHEN f.to_node = here THEN 'O' ELSE 'A' END),
                ('insta_ids_fence_rows', r.kind = 'r' AND f.to_node IS DISTINCT FROM here, 'A')
            ) n (name, is_needed, enabled)
            WHERE n.is_needed AND NOT EXISTS (
                SELECT FROM pg_trigger t
                WHERE t.tgrelid = r.relation AND t.tgname = n.name AND t.tgenabled = n.enabled))
    ORDER BY f.shard, r.name;

    RETURN QUERY
    SELECT 'error', 'move_in_doubt', m.name::text,
           format('This server was promoted while shards from %s to %s were moving; they may be open to writers on node "%s".',
               m.first, m.last, m.to_node), v.next
    FROM insta_ids_internal.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE insta_ids_internal.is_in_doubt(m.shards) ORDER BY m.name;

    RETURN QUERY
    SELECT 'warning', 'old_move', m.name::text,
           format('It is %s since %s, and its slot keeps all WAL on node "%s".', m.step, m.step_at, m.from_node), v.next
    FROM insta_ids_internal.move m JOIN insta_ids.moves v ON v.name = m.name
    WHERE m.step_at < now() - interval '1 day' ORDER BY m.name;
END
$$;

-- Schemas that are missing, or in the way.
CREATE FUNCTION insta_ids.check_schemas() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- The planner knows nothing of how many shards there are until they are analyzed.
    SET enable_nestloop = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
BEGIN
    RETURN QUERY
    SELECT 'error', 'missing_schema', quote_ident(s.schema),
           format('Shard %s has lost its schema.', s.shard),
           format('Restore it, or forget the shard: SELECT insta_ids.drop_shard(%s)', s.shard)
    FROM insta_ids_internal.shard_schema s WHERE s.oid IS NULL ORDER BY s.shard;

    RETURN QUERY
    SELECT 'warning', 'unmanaged_schema', quote_ident(n.nspname),
           CASE WHEN number = shard::text AND shard < config.shards
               THEN format('It is called like shard %s, which is not there.', shard)
               ELSE 'It is called almost like a shard, and is none.' END,
           format('%s: ALTER SCHEMA %I RENAME TO %I',
               CASE WHEN number = shard::text AND shard < config.shards
                   THEN 'Call insta_ids.adopt(), or rename it' ELSE 'Rename it' END,
               n.nspname, 'not_' || n.nspname)
    FROM pg_namespace n
    CROSS JOIN LATERAL substr(n.nspname, length(config.prefix) + 1) number
    CROSS JOIN LATERAL (SELECT CASE WHEN number ~ '^[0-9]{1,9}$' THEN number::integer END) s (shard)
    WHERE starts_with(n.nspname, config.prefix) AND number ~ '^[0-9]'
        AND NOT EXISTS (SELECT FROM insta_ids_internal.shard_schema m WHERE m.oid = n.oid)
        AND NOT EXISTS (SELECT FROM insta_ids_internal.moved d WHERE d.schema = n.nspname)
    ORDER BY length(n.nspname), n.nspname;
END
$$;

-- Migrations that some shards lack.
CREATE FUNCTION insta_ids.check_migrations() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT CASE s.state WHEN 'failed' THEN 'error' ELSE 'warning' END, s.state || '_migration', m.name,
           CASE s.state
               WHEN 'failed' THEN format('Shards in which it failed: %s. The first is shard %s: %s',
                   count(*), min(s.shard), (array_agg(s.message ORDER BY s.shard))[1])
               ELSE format('Shards that lack it: %s. The first is shard %s.', count(*), min(s.shard))
           END,
           CASE WHEN s.state = 'failed' THEN 'Mend what it failed with, then: ' ELSE '' END
           || CASE WHEN m.transactional THEN 'CALL insta_ids.migrate()'
               ELSE format($hint$In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec$hint$, m.name) END
    FROM insta_ids.migration_status s
    JOIN insta_ids_internal.migration m ON m.number = s.number
    WHERE s.state <> 'applied'
    GROUP BY s.state, m.number ORDER BY m.number, s.state;
END
$$;

-- Objects of shards

-- A stored expression with names for the OIDs of these objects, and without the shard where that is the first argument of
-- a call of what mints: the same in each shard in which the same words were stored. NULL if it has an OID without a name.
CREATE FUNCTION insta_ids.essence(tree text, oids oid[], names text[], minting oid[], shard integer) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'essence_wrapper';
-- The shards that a stored expression mints for, as the first arguments of its calls of these functions say.
CREATE FUNCTION insta_ids.minted_shards(tree text, functions oid[]) RETURNS integer[]
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'minted_shards_wrapper';

-- A name as a literal, as PostgreSQL writes out what is stored: with backslashes as they are.
CREATE FUNCTION insta_ids.literal_of(name name) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN '''' OPERATOR(pg_catalog.||) pg_catalog.replace(name::text, '''', '''''') OPERATOR(pg_catalog.||) '''';

-- What is in shards, one line for each thing that can differ, in words that are the same in each shard: chr(1) stands
-- for its schema and a dot, chr(4) for the same in a literal where that has quotes, chr(5) for a literal that is its
-- schema, chr(2) for its number. Without partitions, of which older shards may have more; without owners and privileges;
-- and written out without the CHECKs of ids, which depend on defaults.
--
-- If it is only to be compared, expressions are not written out: to name a function, PostgreSQL looks at all that are
-- called like it, and each shard has its next_id. In their place is the stored tree, with the names of what it depends on.
CREATE FUNCTION insta_ids.objects_of(shards integer[], written_out boolean)
    RETURNS TABLE (shard integer, kind text, relation name, name text, definition text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    -- By how many shards are asked for.
    SET plan_cache_mode = force_custom_plan
    -- By it PostgreSQL writes literals of what is stored, which are compared with the schema's name.
    SET standard_conforming_strings = on
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
BEGIN
    RETURN QUERY
    WITH schemas AS MATERIALIZED (
        SELECT s.shard, s.schema, s.oid, o.own, replace(o.own, '''', '''''') AS own_in_literal,
               insta_ids.literal_of(s.schema) AS literal
        FROM insta_ids_internal.shard_schema s
        CROSS JOIN LATERAL (SELECT quote_ident(s.schema) || '.') o (own)
        WHERE s.shard = ANY (shards)
    ), relations AS MATERIALIZED (
        SELECT s.shard, c.*
        FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid
        WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S', 'c') AND NOT c.relispartition
    ), functions AS MATERIALIZED (
        SELECT s.shard, p.*, format('%I(%s)', p.proname, replace(oidvectortypes(p.proargtypes), s.own, chr(1))) AS signature
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        -- Those of a type come and go with it.
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
                   replace(f.proconfig::text, s.schema, chr(5)),
                   pg_get_expr(f.proargdefaults, 0), a.names)
        FROM functions f
        JOIN schemas s ON s.shard = f.shard
        CROSS JOIN LATERAL (
            SELECT string_agg(n.name, ' ' ORDER BY n.place)
            FROM unnest(f.proargnames, f.proargmodes) WITH ORDINALITY n (name, mode, place)
            WHERE n.mode IS DISTINCT FROM 'o'
        ) a (names)
        WHERE f.prokind <> 'a'
    ), objects (shard, kind, relation, name, definition) AS (
        SELECT r.shard, 'table', NULL, r.relname,
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
        SELECT e.shard, e.kind, e.relation, e.name,
               CASE WHEN x.essence IS NOT NULL THEN concat_ws(' ', x.essence, e.attributes)
                   WHEN e.kind = 'default' THEN pg_get_expr(e.tree, e.adrelid)
                   WHEN e.kind = 'expression'
                       THEN format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(e.tree, e.adrelid), e.attributes)
                   -- Whether a result has a name makes no difference to who calls it; of what was adopted it may have one.
                   ELSE regexp_replace(pg_get_functiondef(e.oid),
                       $re$(, )?OUT ("([^"]|"")+"|\w+) bigint\)\n RETURNS bigint$re$, E')\n RETURNS bigint') END
        FROM expressions e
        CROSS JOIN LATERAL (
            SELECT CASE WHEN NOT written_out AND e.kind <> 'expression' THEN
                insta_ids.essence(e.tree::text, coalesce(array_agg(d.refobjid), '{}'), coalesce(array_agg(n.name), '{}'),
                    minting, e.shard) END AS essence
            FROM pg_depend d
            LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
            LEFT JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
            LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN p.oid IS NOT NULL
                        THEN format('%s.%s(%s)', nullif(p.pronamespace, e.schema), p.proname, oidvectortypes(p.proargtypes))
                    WHEN c.oid IS NOT NULL THEN concat_ws('.', nullif(c.relnamespace, e.schema), c.relname)
                    -- Constants of others have OIDs in them.
                    WHEN t.oid IS NULL OR t.typtype IN ('b', 'd') AND t.typelem = 0
                        THEN pg_describe_object(d.refclassid, d.refobjid, 0)
                END
            ) n (name)
            WHERE d.classid = e.classid AND d.objid = e.oid
        ) x
        UNION ALL
        SELECT f.shard, 'aggregate', NULL, f.signature,
               concat_ws(' ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, format_type(a.aggtranstype, NULL), a.agginitval)
        FROM functions f JOIN pg_aggregate a ON a.aggfnoid = f.oid
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
            -- One of a foreign key for each partition of what it refers to comes and goes with that.
            FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype <> 'n' AND k.conparentid = 0
        ) k
        CROSS JOIN LATERAL (SELECT k.definition LIKE format($re$CHECK ((%%id\_shard(%%) = %s))$re$, r.shard)) i (is_of_ids)
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
        FROM relations r JOIN pg_rewrite u ON u.ev_class = r.oid AND u.rulename <> '_RETURN'
        UNION ALL
        SELECT r.shard, CASE r.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END, NULL, r.relname,
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
        CROSS JOIN LATERAL format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement,
            s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) q (options)
        -- At most one, as the planner does not know: else it reads all columns that there are.
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
        -- Not in the order of the columns, which may have been added in another one.
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
        ) k (columns)
    )
    SELECT o.shard, o.kind, o.relation, o.name::text,
           CASE WHEN n.definition LIKE $re$%next\_id%$re$
               THEN regexp_replace(n.definition, format($re$\m(next_ids?)\(%s\M$re$, o.shard), $re$\1($re$ || chr(2), 'g')
               ELSE n.definition END
    FROM objects o
    JOIN schemas s ON s.shard = o.shard
    CROSS JOIN LATERAL (
        SELECT replace(replace(replace(coalesce(o.definition, ''), s.own, chr(1)), s.own_in_literal, chr(4)), s.literal,
            chr(5))
    ) r (definition)
    -- Not where a longer name ends like it; to look for that everywhere takes too long.
    CROSS JOIN LATERAL (
        SELECT CASE WHEN strpos(r.definition, chr(1)) > 0 AND r.definition ~ ($re$[\w$]$re$ || chr(1))
            THEN regexp_replace(o.definition, $re$(?<![\w$])$re$ || regexp_replace(s.own, $re$(\W)$re$, $re$\\\1$re$, 'g'), chr(1), 'g')
            ELSE r.definition END
    ) n (definition);
END
$$;

-- The words of objects_of as they are in a shard.
CREATE FUNCTION insta_ids.in_shard(words text, schema name, shard integer) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(words,
        pg_catalog.chr(1), pg_catalog.quote_ident(schema::text) || '.'),
        pg_catalog.chr(4), pg_catalog.replace(pg_catalog.quote_ident(schema::text), '''', '''''') || '.'),
        pg_catalog.chr(5), insta_ids.literal_of(schema)),
        pg_catalog.chr(2), shard::text);

-- Whether a definition of objects_of carries no code of others: what it names is PostgreSQL's, the extension's or the shard's
-- own, whose functions it may call where that only stores the call. PostgreSQL writes the schema of all others out.
CREATE FUNCTION insta_ids_internal.is_plain(definition text, may_call_own boolean) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT own.words !~ $re$[\w$"]\s*\.\s*[[:alpha:]_"]$re$
        AND (may_call_own OR own.words !~ E'\x01("[^"]*"|[\\w$]+)\\(')
    FROM insta_ids_internal.extension_schema() e (schema)
    CROSS JOIN LATERAL pg_catalog.regexp_replace(definition, $re$'([^']|'')*'$re$, '', 'g') literals (removed)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN insta_ids_internal.creators(n.nspname) IS NULL
            THEN pg_catalog.replace(pg_catalog.replace(literals.removed, e.schema || '.next_id', 'next_id'),
                e.schema || '.id_', 'id_')
            ELSE literals.removed END
        FROM pg_catalog.pg_namespace n WHERE pg_catalog.quote_ident(n.nspname) = e.schema
    ) own (words);
END;

-- A statement for the owner of what it changes: told to be run as that role, unless that is a superuser. What somebody else's
-- table has PostgreSQL run, it must not run as who reads this.
CREATE FUNCTION insta_ids_internal.for_owner(owner oid, statement text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = owner) THEN statement
        ELSE pg_catalog.format('As role %s: %s', owner::pg_catalog.regrole, statement) END;

-- The statement that makes an object of a shard as its definition says, if there is one. If it could lose something, or
-- keeps others waiting for as long as the table is large, that is said before it, and a colon. There is none for what would
-- carry one shard's code into another.
CREATE FUNCTION insta_ids.repair_statement(
        difference text, kind text, relation text, name text, definition text, schema name, shard integer)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    while_others_wait CONSTANT text := 'Others wait while all rows are read: ';
    prefix CONSTANT text := left(schema, - length(shard::text));
    own CONSTANT text := insta_ids.in_shard(definition, schema, shard);
    object CONSTANT text := format('%I.', schema) || CASE
        -- These have arguments behind their names, which are quoted already.
        WHEN kind IN ('function', 'aggregate') THEN insta_ids.in_shard(name, schema, shard)
        ELSE quote_ident(name) END;
    -- NULL of what is of no relation.
    owner CONSTANT text := format('%I.', schema) || quote_ident(relation);
    alter_table CONSTANT text := 'ALTER TABLE ' || owner;
    is_partitioned CONSTANT boolean := EXISTS (
        SELECT FROM pg_class c WHERE c.oid = to_regclass(owner) AND c.relkind = 'p');
BEGIN
    IF difference <> 'extra'
        AND (kind IN ('function', 'aggregate', 'trigger', 'rule', 'view', 'materialized view')
            OR NOT insta_ids_internal.is_plain(definition, kind = 'default' OR starts_with(definition, 'FOREIGN KEY ')))
    THEN
        RETURN NULL;
    -- What most say of one other shard is not to be said here, too.
    ELSIF definition ~ ($re$(?<![\w$])$re$ || regexp_replace(prefix, $re$(\W)$re$, $re$\\\1$re$, 'g') || '[0-9]') THEN
        RETURN NULL;
    END IF;
    RETURN CASE difference || ' ' || kind
        WHEN 'missing column' THEN
            CASE
                WHEN own ~ ' NOT NULL$' AND own !~ ' (DEFAULT|GENERATED) ' THEN 'If the table has no rows: '
                -- As for domains, of which this may be one.
                WHEN own ~ $re$ (DEFAULT .*\(|GENERATED )$re$ OR starts_with(definition, chr(1))
                    THEN 'Others wait while the table is rewritten: '
            ELSE '' END || format('%s ADD COLUMN %I %s', alter_table, name, own)
        WHEN 'different column' THEN
            format('If no value is lost by it: %s ALTER COLUMN %I TYPE %s USING %2$I%4$s::%3$s', alter_table, name, own,
                -- Between types of different shards there is no cast.
                CASE WHEN starts_with(definition, chr(1)) THEN '::text' END)
        WHEN 'missing identity' THEN format('%s ALTER COLUMN %I ADD %s', alter_table, name, own)
        WHEN 'different identity' THEN format('%s ALTER COLUMN %I SET %s', alter_table, name,
            regexp_replace(regexp_replace(own, $re$ AS IDENTITY \(|\)\Z$re$, ' ', 'g'),
                '(INCREMENT|MINVALUE|MAXVALUE|START|CACHE|NO CYCLE|CYCLE)', $re$SET \1$re$, 'g'))
        WHEN 'extra identity' THEN format('If it is not needed: %s ALTER COLUMN %I DROP IDENTITY', alter_table, name)
        WHEN 'extra expression' THEN format('If it is not needed: %s ALTER COLUMN %I DROP EXPRESSION', alter_table, name)
        WHEN 'missing attribute' THEN format('ALTER TYPE %s ADD ATTRIBUTE %I %s', owner, name, own)
        WHEN 'extra attribute' THEN format('If it is not needed: ALTER TYPE %s DROP ATTRIBUTE %I', owner, name)
        WHEN 'missing NOT NULL' THEN while_others_wait || format('%s ALTER COLUMN %I SET NOT NULL', alter_table, name)
        WHEN 'extra NOT NULL' THEN format('%s ALTER COLUMN %I DROP NOT NULL', alter_table, name)
        WHEN 'extra default' THEN format('%s ALTER COLUMN %I DROP DEFAULT', alter_table, name)
        WHEN 'missing index' THEN CASE WHEN is_partitioned
            THEN while_others_wait || replace(own, ' ON ONLY ', ' ON ')
            ELSE regexp_replace(own, ' INDEX ', ' INDEX CONCURRENTLY ') END
        WHEN 'missing constraint' THEN CASE WHEN own ~ '^(CHECK|FOREIGN KEY) ' AND NOT is_partitioned
            THEN format('%s ADD CONSTRAINT %I %s NOT VALID', alter_table, name, own)
            ELSE while_others_wait || format('%s ADD CONSTRAINT %I %s', alter_table, name, own) END
        WHEN 'different constraint' THEN
            while_others_wait || format('%s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s', alter_table, name, own)
        WHEN 'extra constraint' THEN format('If it is not needed: %s DROP CONSTRAINT %I', alter_table, name)
        WHEN 'extra column' THEN format('If it is not needed: %s DROP COLUMN %I', alter_table, name)
        WHEN 'missing sequence' THEN format('CREATE SEQUENCE %s %s', object, own)
        WHEN 'different sequence' THEN format('ALTER SEQUENCE %s %s', object, own)
        ELSE CASE
            WHEN kind = 'default' THEN format('%s ALTER COLUMN %I SET DEFAULT %s', alter_table, name, own)
            WHEN difference = 'extra' THEN format('If it is not needed: DROP %s %s',
                CASE WHEN kind IN ('function', 'aggregate') THEN 'ROUTINE' ELSE upper(kind) END,
                CASE WHEN kind IN ('trigger', 'policy', 'rule') THEN format('%I ON %s', name, owner) ELSE object END)
            WHEN difference = 'missing' AND kind = 'statistics' THEN own
        END
    END;
END
$$;

-- Columns of ids of these shards without their CHECK; defaults and functions that use what belongs to another schema.
CREATE FUNCTION insta_ids.check_references(shards integer[])
    RETURNS TABLE (shard integer, severity text, code text, object text, detail text, hint text)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET plan_cache_mode = force_custom_plan
    -- As in objects_of.
    SET standard_conforming_strings = on
AS $$
DECLARE
    minting CONSTANT oid[] := insta_ids.id_functions();
    prefix CONSTANT name := (insta_ids.configured()).prefix;
BEGIN
    RETURN QUERY
    SELECT m.shard, 'warning', 'missing_check', format('%s.%I', m.relation, m."column"),
           'next_id fills it, and nothing keeps ids of other shards out.',
           insta_ids_internal.for_owner(c.relowner, format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', m.relation, m.expression))
    FROM insta_ids.minting_columns(shards) m JOIN pg_class c ON c.oid = m.relation WHERE m."check" IS NULL;

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
        CROSS JOIN LATERAL unnest(insta_ids.minted_shards(u.tree::text, minting)) n (number)
        WHERE u.mints AND n.number <> u.shard
        UNION ALL
        SELECT u.*, format('It uses %s, which is not of this shard.', pg_describe_object(u.refclassid, u.refobjid, 0)),
               -- The schema before its name.
               format($re$%s\.(?=%s)$re$, regexp_replace(quote_ident(n.nspname), $re$(\W)$re$, $re$\\\1$re$, 'g'),
                   regexp_replace(quote_ident(u.used), $re$(\W)$re$, $re$\\\1$re$, 'g')),
               NOT EXISTS (
                   -- Not the function itself, which would call itself without end.
                   SELECT FROM pg_proc p
                   WHERE p.pronamespace = u.namespace AND p.proname = u.used AND p.proargtypes = u.proargtypes
                       AND (p.oid <> u.oid OR u.kind <> 'function')
                   UNION ALL
                   SELECT FROM pg_class c WHERE c.relnamespace = u.namespace AND c.relname = u.used)
        FROM uses u
        JOIN pg_namespace n ON n.oid = u.elsewhere
        WHERE u.elsewhere <> u.namespace
            AND (u.refclassid = 'pg_class'::regclass
                -- Functions that all shards share are as good as any, unless they make ids as the published one does.
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

-- Tells of what could not be read, each as its name, a colon and why.
CREATE FUNCTION insta_ids.not_read(what text, unread text[]) RETURNS SETOF insta_ids.finding
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT 'notice', 'not_read', pg_catalog.left(unread[1], pg_catalog.strpos(unread[1], ': ') - 1),
           pg_catalog.format('%s could not be read: %s. The first with: %s.', what, pg_catalog.cardinality(unread),
               pg_catalog.substr(unread[1], pg_catalog.strpos(unread[1], ': ') + 2)),
           'Check again when nobody locks or changes what is in it, as a member of the role that owns it.'
    WHERE pg_catalog.cardinality(unread) > 0;
END;

-- What a query finds in shards, which it is told as $1: lines of texts. Or why one could not be read.
--
-- To write out what is stored, PostgreSQL locks the tables it speaks of. So each part is read in a subtransaction that
-- is rolled back; and one that cannot be read, as others have locked or dropped something of it, in smaller parts.
CREATE FUNCTION insta_ids.read_parts(shards integer[], query text)
    RETURNS TABLE (line text[], unread text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- About 8000 tables and views at a time, and then their cached definitions are given back.
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
            -- Of as many texts each.
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
            PERFORM insta_ids.limit_catalog_cache();
        END IF;
    END LOOP;
END
$$;

-- What differs between shards that have the same migrations. Those that are equal are looked at once.
CREATE FUNCTION insta_ids.check_differences(shards integer[], fingerprints bigint[]) RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    -- Kinds of what goes with a column.
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
        JOIN insta_ids.objects_of(
            ARRAY(SELECT c.first FROM classes c WHERE c.weight < c.total), written_out => true) o ON o.shard = c.first
    ), variants AS (
        SELECT o.applied, o.kind, o.relation, o.name, o.definition, sum(o.weight) AS weight, min(o.shard) AS first
        FROM objects o GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT o.applied, o.kind, o.relation, o.name, NULL, min(o.total) - sum(o.weight), NULL
        FROM objects o GROUP BY 1, 2, 3, 4
    ), norms AS (
        -- What most have; if as many have it as have it not, it is to be there.
        SELECT DISTINCT ON (v.applied, v.kind, v.relation, v.name) v.*
        FROM variants v
        ORDER BY v.applied, v.kind, v.relation, v.name, v.weight DESC, v.definition IS NULL, v.first
    ), differences AS (
        SELECT c.members, c.total, n.kind, n.relation, n.name, n.weight, o.definition AS here, n.definition AS elsewhere,
               CASE WHEN o.definition IS NULL THEN 'missing' WHEN n.definition IS NULL THEN 'extra' ELSE 'different' END
               AS difference,
               -- What a column that is missing needs besides its type.
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
               WHEN d.kind IN ('function', 'aggregate') THEN insta_ids.in_shard(d.name, s.schema, s.shard)
               ELSE concat_ws('.', quote_ident(d.relation), quote_ident(d.name)) END),
           format('%s: %s.', concat_ws(' ', upper(left(d.kind, 1)) || substr(d.kind, 2)),
               CASE d.difference
                   WHEN 'missing' THEN format('%s of %s shards have it', d.weight, d.total)
                   WHEN 'extra' THEN format('%s of %s shards do not have it', d.weight, d.total)
                   ELSE format('here %s, in %s of %s shards %s', insta_ids.in_shard(d.here, s.schema, s.shard),
                       d.weight, d.total, insta_ids.in_shard(d.elsewhere, s.schema, s.shard))
               END),
           coalesce(
               -- As in most, not in the first of many that all differ.
               CASE WHEN d.difference <> 'different' OR 2 * d.weight > d.total THEN
                   insta_ids_internal.for_owner(
                       coalesce((SELECT c.relowner FROM pg_class c WHERE c.relnamespace = s.oid
                            AND c.relname = coalesce(d.relation, d.name)), (SELECT n.nspowner FROM pg_namespace n WHERE n.oid = s.oid)),
                       insta_ids.repair_statement(d.difference, d.kind, d.relation, d.name,
                           d.elsewhere || CASE WHEN d.difference = 'missing' THEN coalesce(d.besides, '') ELSE '' END,
                           s.schema, s.shard))
               END,
               'Make it as in the other shards; pg_dump --schema-only shows how it is there.')
    FROM differences d
    JOIN insta_ids_internal.shard_schema s ON s.shard = ANY (d.members)
    -- What is of a table or column that is missing itself, or should be, goes without saying.
    WHERE NOT EXISTS (
        SELECT FROM differences t
        WHERE t.members = d.members AND t.difference <> 'different'
            AND (t.kind IN ('table', 'type', 'materialized view') AND t.name = d.relation
                OR t.kind = 'column' AND d.kind = ANY (of_column) AND (t.relation, t.name) = (d.relation, d.name)))
    -- What others need comes first.
    ORDER BY s.shard, d.kind NOT IN ('type', 'sequence'), d.kind, d.relation, d.name;
END
$$;

-- What differs between shards, what is another's, and columns of ids without their CHECK.
CREATE FUNCTION insta_ids.check_objects() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    shards CONSTANT integer[] := ARRAY(SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid IS NOT NULL ORDER BY 1);
    -- One number for all that is in a shard: shards that are equal have the same.
    fingerprints CONSTANT text := $query$
        SELECT ARRAY[s.shard, bit_xor(hashtextextended(
                   concat_ws(chr(3), o.kind, coalesce(o.relation, ''), o.name, o.definition), 0))]::text[]
        FROM unnest($1) s (shard)
        LEFT JOIN insta_ids.objects_of($1, written_out => false) o ON o.shard = s.shard
        GROUP BY s.shard $query$;
    read record;
BEGIN
    SELECT array_agg(p.line[1]::integer) FILTER (WHERE p.line IS NOT NULL) AS shards,
           array_agg(p.line[2]::bigint) FILTER (WHERE p.line IS NOT NULL) AS fingerprints,
           array_agg(p.unread) FILTER (WHERE p.unread IS NOT NULL) AS unread
    INTO read FROM insta_ids.read_parts(shards, fingerprints) p;
    RETURN QUERY SELECT f.* FROM insta_ids.check_differences(read.shards, read.fingerprints) f;

    -- Of shards that are equal one is looked at; and all, if anything is found in that.
    RETURN QUERY
    WITH shards AS (
        SELECT s.shard, min(s.shard) OVER (PARTITION BY s.fingerprint) AS first
        FROM unnest(read.shards, read.fingerprints) s (shard, fingerprint)
    ), wrong AS (
        SELECT DISTINCT r.shard
        FROM insta_ids.check_references(ARRAY(SELECT DISTINCT s.first FROM shards s)) r
    )
    SELECT r.severity, r.code, r.object, r.detail, r.hint
    FROM insta_ids.check_references(ARRAY(SELECT s.shard FROM shards s JOIN wrong w ON w.shard = s.first)) r;

    RETURN QUERY SELECT f.* FROM insta_ids.not_read('Shards whose objects', read.unread) f;
END
$$;

-- Tables whose rows logical replication cannot tell apart.
CREATE FUNCTION insta_ids.unidentified_tables(shards integer[]) RETURNS TABLE (shard integer, relation regclass)
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

-- Tables without a replica identity; indexes and constraints that are not valid.
CREATE FUNCTION insta_ids.check_tables() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'no_replica_identity', t.relation::text,
           'It has no primary key, or the index chosen for it is gone: its rows cannot be told apart when the shard moves.',
           'Add a primary key, or: ' || insta_ids_internal.for_owner(c.relowner, format('ALTER TABLE %s REPLICA IDENTITY FULL', t.relation))
    FROM insta_ids.unidentified_tables(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s)) t JOIN pg_class c ON c.oid = t.relation;

    RETURN QUERY
    SELECT 'warning', 'invalid_index', i.indexrelid::regclass::text,
           format('It is left from a command that failed, and is of no use to %s.', i.indrelid::regclass),
           format(CASE WHEN c.relkind = 'I' THEN 'Attach an index of each partition to it, or: DROP INDEX %s'
                   WHEN c.relname ~ '_cc(new|old)[0-9]*$' THEN 'DROP INDEX CONCURRENTLY %s'
                   ELSE 'REINDEX INDEX CONCURRENTLY %s' END, i.indexrelid::regclass)
    FROM insta_ids_internal.shard_schema s
    JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('i', 'I')
    JOIN pg_index i ON i.indexrelid = c.oid AND NOT i.indisvalid
    -- One that is being made now, under this lock, is not valid yet.
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

-- Sequences

-- The sequences that next_id takes ids of shards from, in defaults and in functions of the shards.
CREATE FUNCTION insta_ids.id_sequences() RETURNS TABLE (shard integer, sequence oid)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.oid FROM unnest(insta_ids.id_functions()) f (oid)
        UNION
        SELECT d.objid FROM minting m
        JOIN pg_depend d
            ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_proc'::regclass
    ), users AS (
        SELECT p.pronamespace AS schema, 'pg_proc'::regclass AS classid, p.oid
        FROM minting m JOIN pg_proc p ON p.oid = m.oid
        UNION ALL
        SELECT c.relnamespace, 'pg_attrdef'::regclass, a.oid
        FROM minting m
        JOIN pg_depend d
            ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_attrdef'::regclass
        JOIN pg_attrdef a ON a.oid = d.objid
        JOIN pg_class c ON c.oid = a.adrelid
    )
    SELECT DISTINCT s.shard, c.oid
    FROM users u
    JOIN insta_ids_internal.shard_schema s ON s.oid = u.schema
    JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.oid AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class c ON c.oid = d.refobjid AND c.relkind = 'S';
END
$$;

-- The last values of sequences, NULL of those that may not be read. No lock is held afterwards: each part is
-- read in a subtransaction that is rolled back.
CREATE FUNCTION insta_ids.last_values(sequences oid[]) RETURNS TABLE (sequence oid, last_value bigint)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    part oid[];
    last_values bigint[];
BEGIN
    FOR part IN
        SELECT array_agg(s.oid ORDER BY s.place)
        FROM unnest(sequences) WITH ORDINALITY s (oid, place)
        JOIN pg_class c ON c.oid = s.oid
        WHERE has_sequence_privilege(s.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE')
            AND NOT (c.relpersistence = 'u' AND pg_is_in_recovery())
        GROUP BY s.place / 100
    LOOP
        last_values := NULL;
        BEGIN
            last_values := ARRAY(SELECT insta_ids_internal.last_value(s) FROM unnest(part) WITH ORDINALITY p (s, place) ORDER BY place);
            RAISE triggered_action_exception;
        EXCEPTION
            WHEN OTHERS THEN NULL;
        END;
        RETURN QUERY SELECT s.* FROM unnest(part, last_values) s;
    END LOOP;
END
$$;

-- What ids of shards are minted from: for which shards, how many values are used of how many, and when the last one is, if
-- it goes on as fast as it did on average since its shard was made, a day at least.
CREATE FUNCTION insta_ids.sequence_budget()
    RETURNS TABLE (sequence oid, name text, shards integer[], used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
    SET enable_nestloop = off
AS $$
BEGIN
    RETURN QUERY
    WITH sequences AS MATERIALIZED (
        SELECT i.sequence, min(h.created_at) AS created_at, array_agg(i.shard ORDER BY i.shard) AS shards
        FROM insta_ids.id_sequences() i JOIN insta_ids_internal.shard h ON h.shard = i.shard GROUP BY i.sequence
    )
    SELECT i.sequence, i.sequence::regclass::text, i.shards, u.used, a.available,
           CASE WHEN u.used > 0 AND r.seconds < 1e11 THEN now() + make_interval(secs => r.seconds::float8) END
    FROM sequences i
    JOIN pg_sequence q ON q.seqrelid = i.sequence
    LEFT JOIN insta_ids.last_values(ARRAY(SELECT s.sequence FROM sequences s)) v ON v.sequence = i.sequence
    CROSS JOIN LATERAL (
        SELECT floor(abs(v.last_value::numeric - q.seqstart) / abs(q.seqincrement::numeric)) AS used
    ) u
    CROSS JOIN LATERAL (
        -- A negative value is an error: what is below 0 is not there to be used.
        SELECT floor(abs(CASE WHEN q.seqincrement > 0 THEN q.seqmax ELSE greatest(q.seqmin, 0) END::numeric - q.seqstart)
            / abs(q.seqincrement::numeric)) AS available
    ) a
    CROSS JOIN LATERAL (
        SELECT (a.available - u.used) * greatest(extract(epoch FROM now() - i.created_at), 86400) / nullif(u.used, 0)
            AS seconds
    ) r;
END
$$;

-- The same of the server and the layout.
CREATE FUNCTION insta_ids.server_budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    last_instant CONSTANT timestamptz := insta_ids_internal.id_time(9223372036854775807, config.layout);
    locks CONSTANT bigint := insta_ids.lock_capacity();
BEGIN
    RETURN QUERY
    SELECT 'locks of pg_dump', current_database()::text, count(*)::numeric, locks::numeric, NULL::timestamptz
    FROM pg_class c
    -- From PostgreSQL 18 on, sequences are read without.
    WHERE (c.relkind IN ('r', 'p', 'v', 'm') OR c.relkind = 'S' AND current_setting('server_version_num')::integer < 180000)
        AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace);

    RETURN QUERY
    SELECT 'locks of migrate', s.schema::text, 50 * c.relations::numeric, locks::numeric, NULL::timestamptz
    FROM (SELECT c.relnamespace, count(*) AS relations FROM pg_class c GROUP BY 1) c
    JOIN insta_ids_internal.shard_schema s ON s.oid = c.relnamespace
    ORDER BY c.relations DESC, s.shard LIMIT 1;

    RETURN QUERY
    SELECT 'memory of a session that visits all shards', NULL, 12000 * count(*)::numeric, NULL::numeric, NULL::timestamptz
    FROM insta_ids_internal.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f');

    RETURN QUERY
    SELECT 'milliseconds of the layout', config.layout::text,
           round(1000 * extract(epoch FROM now() - epoch)), round(1000 * extract(epoch FROM last_instant - epoch)), last_instant
    FROM insta_ids_internal.id_time(0::bigint, config.layout) epoch;
END
$$;

-- What there is a limit to.
CREATE FUNCTION insta_ids.budget()
    RETURNS TABLE (resource text, object text, used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM insta_ids.server_budget()
    UNION ALL
    SELECT 'values of a sequence', s.name, s.used, s.available, s.runs_out FROM insta_ids.sequence_budget() s;
END;

CREATE FUNCTION insta_ids.check_sequences() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT f.severity, f.code, s.name, f.detail, f.hint
    FROM insta_ids.sequence_budget() s
    JOIN pg_sequence q ON q.seqrelid = s.sequence
    JOIN pg_class c ON c.oid = s.sequence
    CROSS JOIN LATERAL (VALUES
        ('warning', cardinality(s.shards) > 1, 'shared_sequence',
            format('Shards that use it: %s.', array_to_string(s.shards[:10], ', ')
                || CASE WHEN cardinality(s.shards) > 10 THEN format(' and %s more', cardinality(s.shards) - 10) ELSE '' END),
            'Give each shard a sequence of its own, else no shard can be moved without the others.'),
        ('warning', q.seqtypid <> 'bigint'::regtype, 'sequence_type', format('It is a sequence of %s.', q.seqtypid::regtype),
            format('ALTER SEQUENCE %s AS bigint', s.name)),
        ('warning', q.seqcycle, 'sequence_cycle',
            'At its end it begins anew, and some of its remainders then come twice as often as others.',
            format('ALTER SEQUENCE %s NO CYCLE', s.name)),
        ('warning', c.relpersistence = 'u', 'sequence_unlogged',
            'After a crash it begins anew, and on a standby it is not there.', format('ALTER SEQUENCE %s SET LOGGED', s.name)),
        (CASE WHEN s.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END,
            s.runs_out < now() + interval '1 year', 'end_of_sequence',
            format('%s of %s values are used; as fast as until now, the last one is at %s.', s.used, s.available, s.runs_out),
            format('Begin it anew, which repeats no id: ALTER SEQUENCE %s RESTART', s.name))
    ) f (severity, is_found, code, detail, hint)
    WHERE f.is_found
    ORDER BY s.shards, s.name, f.code;
END
$$;

-- Ids

-- Of the ids in a column, also in the table's children if every row is read or the table is partitioned: as
-- insta_ids_internal.survey_ids, of which this is the sum.
CREATE FUNCTION insta_ids_internal.survey_column(
        relation oid, "column" name, shard integer, layout @extschema@.id_layout, beyond bigint, every_row boolean,
        OUT ids bigint, OUT oldest bigint, OUT newest bigint, OUT negative bigint, OUT a_negative bigint,
        OUT strange bigint, OUT a_strange bigint, OUT future bigint, OUT newest_future bigint)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH RECURSIVE tree AS (
        SELECT c.oid, every_row OR c.relkind = 'p' AS has_children FROM pg_class c WHERE c.oid = relation
        UNION
        SELECT c.oid, true
        FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
        -- Nobody reads temporary tables of other sessions.
        WHERE t.has_children AND (c.relpersistence <> 't' OR c.relnamespace = pg_my_temp_schema())
    )
    SELECT sum(s.ids), min(s.oldest), max(s.newest), sum(s.negative), max(s.a_negative), sum(s.strange), min(s.a_strange),
           sum(s.future), max(s.newest_future)
    INTO ids, oldest, newest, negative, a_negative, strange, a_strange, future, newest_future
    FROM tree t
    CROSS JOIN LATERAL insta_ids_internal.survey_ids(t.oid, "column"::text, shard, layout, beyond, every_row) s;
END
$$;

-- Of the ids in a column: those of other shards, of the future and of no time at all. Of all rows, or of the oldest and
-- newest only, where an index tells which these are. `until` is a time that ids have not reached. The caller must be a member
-- of the role that owns the table.
CREATE FUNCTION insta_ids.check_ids_of(
        relation regclass, "column" name, shard integer, until timestamptz, every_row boolean)
    RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids.config.layout%TYPE := (insta_ids.configured()).layout;
    first_beyond CONSTANT bigint := insta_ids_internal.id_min(until, layout);
    what CONSTANT text := CASE WHEN every_row THEN 'ids' ELSE 'ids at the ends of its index' END;
    found CONSTANT record := insta_ids_internal.survey_column(relation, "column", shard, layout, first_beyond, every_row);
    object CONSTANT text := format('%s.%I', relation, "column");
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = relation);
    -- Children may lack the index.
    source CONSTANT text := CASE
        WHEN every_row OR (SELECT c.relkind FROM pg_class c WHERE c.oid = relation) = 'p' THEN '' ELSE 'ONLY ' END || relation;
BEGIN
    IF found.negative > 0 THEN
        RETURN NEXT ROW('error', 'negative_ids', object,
            format('Of %s %s, %s are negative, as %s is.', found.ids, what, found.negative, found.a_negative),
            'Give them new ids: ' || insta_ids_internal.for_owner(owner,
                format('UPDATE %s SET %I = DEFAULT WHERE %2$I < 0', source, "column")))::insta_ids.finding;
    END IF;
    IF found.strange > 0 THEN
        RETURN NEXT ROW('error', 'foreign_ids', object,
            format('Of %s %s, %s are of other shards, as %s is, of shard %s.', found.ids, what, found.strange,
                found.a_strange, insta_ids_internal.id_shard(found.a_strange, layout)),
            'Move them to their shards, or give them new ids: ' || insta_ids_internal.for_owner(owner,
                format('UPDATE %1$s SET %2$I = DEFAULT WHERE %3$s.id_shard(%2$I%4$s) <> %5$s', source, "column",
                    insta_ids_internal.extension_schema(), insta_ids.layout_argument(layout), shard)))::insta_ids.finding;
    END IF;
    IF found.future > 0 THEN
        RETURN NEXT ROW('error', 'future_ids', object,
            format('Of %s %s, %s are of the future, to %s; they can be minted again when that time comes.',
                found.ids, what, found.future, insta_ids_internal.id_time(found.newest_future, layout)),
            CASE WHEN insta_ids_internal.id_time(found.newest_future, layout) + interval '2 s'
                    < clock_timestamp() + current_setting('insta_ids.clock_tolerance')::interval
                THEN format('As a superuser: SELECT insta_ids.advance_clock(%L)',
                    insta_ids_internal.id_time(found.newest_future, layout) + interval '2 s')
                ELSE 'Give them new ids: ' || insta_ids_internal.for_owner(owner,
                    format('UPDATE %s SET %I = DEFAULT WHERE %2$I >= %s', source, "column", first_beyond))
            END)::insta_ids.finding;
    END IF;
END
$$;

-- A time that ids of this server have not reached.
CREATE FUNCTION insta_ids.time_not_reached() RETURNS timestamptz
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- They are ahead of the time of ids by `insta_ids.max_ahead_ms` at most, which is at most a second.
    RETURN (SELECT greatest(c.system_time, c.id_time) + interval '1 s' FROM insta_ids.clock() c);
EXCEPTION
    -- Where they cannot be minted, those that are there came from elsewhere, by another clock.
    WHEN object_not_in_prerequisite_state THEN RETURN clock_timestamp() + interval '2 s';
END
$$;

-- The oldest and newest id of 200 columns, by chance.
CREATE FUNCTION insta_ids.check_ids() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until CONSTANT timestamptz := insta_ids.time_not_reached();
    sample CONSTANT integer := 200;
    shards CONSTANT integer[] := ARRAY(
        SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid IS NOT NULL ORDER BY random() LIMIT sample);
    columns CONSTANT text := $query$
        SELECT ARRAY[m.relation::oid::text, m."column", m.shard::text]
        FROM insta_ids.minting_columns($1) m
        JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition $query$;
    minting record;
    unread text[] := '{}';
BEGIN
    FOR minting IN
        SELECT p.line[1]::oid::regclass AS relation, p.line[2]::name AS "column", p.line[3]::integer AS shard
        FROM insta_ids.read_parts(shards, columns) p WHERE p.line IS NOT NULL ORDER BY random() LIMIT sample
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM insta_ids.check_ids_of(minting.relation, minting."column", minting.shard, until, false);
        EXCEPTION WHEN OTHERS THEN
            unread := unread || format('%s: %s', minting.relation, SQLERRM);
        END;
    END LOOP;
    RETURN QUERY SELECT f.* FROM insta_ids.not_read('Tables whose ids', unread) f;
END
$$;

-- The server

-- What Citus knows of its nodes, NULL without Citus: the group of this one, which is 0 on the coordinator, and how many
-- workers take writes.
CREATE FUNCTION insta_ids_internal.citus(OUT own_group integer, OUT writing_workers bigint)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF num_nulls(to_regclass('pg_catalog.pg_dist_local_group'), to_regclass('pg_catalog.pg_dist_node')) = 0 THEN
        EXECUTE $query$
            SELECT (SELECT g.groupid FROM pg_catalog.pg_dist_local_group g),
                   (SELECT count(*) FROM pg_catalog.pg_dist_node n
                    WHERE n.groupid <> 0 AND n.isactive AND n.hasmetadata AND n.noderole::text = 'primary') $query$
        INTO own_group, writing_workers;
    END IF;
END
$$;

CREATE FUNCTION insta_ids.check_server() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    extension CONSTANT text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'insta_ids');
    library CONSTANT text := insta_ids.library_version();
    installed text;
    hint text;
BEGIN
    BEGIN
        PERFORM insta_ids.clock();
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
            RETURN NEXT ROW('error', 'no_ids', 'insta_ids', format('No id can be minted here: %s.', SQLERRM), hint)::insta_ids.finding;
    END;

    RETURN QUERY
    SELECT 'warning', 'open_schema', insta_ids_internal.extension_schema(),
           format('The extension is in this schema, and other roles may create functions in it: %s.', c.roles),
           format('REVOKE CREATE ON SCHEMA %s FROM %s, or let a superuser own it: who creates a function there can have it'
               || ' taken for one of the extension.', insta_ids_internal.extension_schema(), c.roles)
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    CROSS JOIN LATERAL insta_ids_internal.creators(n.nspname) c (roles)
    WHERE e.extname = 'insta_ids' AND c.roles IS NOT NULL;

    BEGIN
        PERFORM insta_ids.check_writer();
        RETURN QUERY
        SELECT 'error', 'citus_without_writer_slot', 'insta_ids.writer_slot',
               format('It is 0/1, and Citus has workers that take writes: %s. Two nodes can mint the same id.', c.writing_workers),
               'Set another insta_ids.writer_slot in postgresql.conf on each node, restart it, and take it: '
                   || 'SELECT insta_ids.take_writer_slot(...)'
        FROM insta_ids_internal.citus() c WHERE c.writing_workers > 0 AND insta_ids.writer_slot() = '0/1';
    EXCEPTION
        WHEN object_not_in_prerequisite_state THEN
            RETURN NEXT ROW('error', 'writer_slot', 'insta_ids.writer_slot', format('No id can be minted here: %s.', SQLERRM),
                'Set insta_ids.writer_slot in postgresql.conf, restart the server, and take it: SELECT insta_ids.take_writer_slot(...)'
                )::insta_ids.finding;
    END;

    BEGIN
        installed := (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'insta_ids');
    EXCEPTION
        -- It reads what is installed of all extensions, and fails where one of them is not right.
        WHEN OTHERS THEN
            installed := NULL;
    END;
    RETURN QUERY
    SELECT 'warning', 'old_library', 'insta_ids',
           format('The library that this session runs is of version %s, and version %s is installed.',
               library, CASE WHEN insta_ids.is_older(extension, installed) THEN installed ELSE extension END),
           'Install the newest version, and restart the server.'
    WHERE insta_ids.is_older(library, extension) OR insta_ids.is_older(library, installed);
    RETURN QUERY
    SELECT 'warning', 'old_extension', 'insta_ids',
           format('The library is of version %s, and this database still has the functions of version %s.', library, extension),
           'ALTER EXTENSION insta_ids UPDATE'
    WHERE insta_ids.is_older(extension, library);

    -- A worker of Citus has no shards of its own.
    IF NOT EXISTS (SELECT FROM insta_ids.config) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT CASE WHEN b.runs_out < now() + interval '90 days' THEN 'error' ELSE 'warning' END, f.code, b.object, f.detail, f.hint
    FROM insta_ids.server_budget() b
    CROSS JOIN LATERAL (SELECT format('"max_locks_per_transaction" = %s',
        ceil(1.25 * b.used / nullif(b.available, 0) * current_setting('max_locks_per_transaction')::integer)) AS setting) s
    CROSS JOIN LATERAL (VALUES
        ('locks of pg_dump', b.used > b.available, 'locks_of_pg_dump',
            format('It needs %s locks, and the server has %s for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server.', s.setting)),
        ('locks of migrate', b.used > b.available, 'locks_of_migrate',
            format('50 shards like this one have %s relations, and the server has %s locks for sure.', b.used, b.available),
            format('Set %s in postgresql.conf, and restart the server; or call migrate with a smaller batch.', s.setting)),
        ('milliseconds of the layout', b.runs_out < now() + interval '5 years', 'end_of_layout',
            format('The last instant of the layout is %s.', b.runs_out),
            'Plan for ids of another layout in a new database: no id can be minted after that.')
    ) f (resource, is_found, code, detail, hint)
    WHERE f.resource = b.resource AND f.is_found;
END
$$;

-- All of it

-- Each part in a subtransaction that is rolled back, so that no lock is held; and again if others have changed what it was
-- looking at.
CREATE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '20ms'
    -- For what is read of thousands of shards at once.
    SET work_mem = '64MB'
AS $$
DECLARE
    attempts CONSTANT integer := 3;
    parts text[] := ARRAY['server', 'map', 'schemas', 'migrations', 'objects', 'tables', 'sequences', 'ids'];
    part text;
    findings insta_ids.finding[];
BEGIN
    -- On a worker of Citus, where nothing is set up, there is the server to be checked.
    IF NOT EXISTS (SELECT FROM insta_ids.config) AND (SELECT c.own_group FROM insta_ids_internal.citus() c) > 0 THEN
        parts := ARRAY['server'];
    ELSE
        PERFORM insta_ids.configured();
    END IF;
    FOREACH part IN ARRAY parts LOOP
        FOR attempt IN 1 .. attempts LOOP
            BEGIN
                EXECUTE format('SELECT array_agg(f) FROM insta_ids.%I() f', 'check_' || part) INTO findings;
                RAISE triggered_action_exception;
            EXCEPTION
                WHEN triggered_action_exception THEN
                    RETURN QUERY SELECT f.* FROM unnest(findings) f;
                    EXIT;
                WHEN OTHERS THEN
                    IF attempt = attempts THEN
                        RETURN QUERY
                        SELECT f.*
                        FROM insta_ids.not_read('Parts of this', ARRAY[format('check_%s: %s', part, SQLERRM)]) f;
                    END IF;
            END;
        END LOOP;
    END LOOP;
    PERFORM insta_ids.limit_catalog_cache();
END
$$;

CREATE PROCEDURE insta_ids.check_rows(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    minting pg_catalog.record;
    wrong pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    until pg_catalog.timestamptz;
    is_sound boolean;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    CALL insta_ids.new_transaction();
    PERFORM insta_ids.check_range(first, last, batch);
    until := insta_ids.time_not_reached();
    todo := ARRAY(
        SELECT s.shard FROM insta_ids_internal.shard_schema s
        WHERE s.oid IS NOT NULL AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('check_rows', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        is_sound := true;
        FOR minting IN
            SELECT m.* FROM insta_ids.minting_columns(ARRAY[number]) m
            JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        LOOP
            BEGIN
                FOR wrong IN
                    SELECT * FROM insta_ids.check_ids_of(minting.relation, minting."column", number,
                        greatest(until, clock_timestamp() + interval '2 s'), true)
                LOOP
                    is_sound := false;
                    RAISE WARNING USING
                        MESSAGE = format('%s in %s', replace(wrong.code, '_', ' '), wrong.object),
                        DETAIL = wrong.detail, HINT = wrong.hint;
                END LOOP;
            EXCEPTION WHEN OTHERS THEN
                is_sound := false;
                RAISE WARNING USING
                    MESSAGE = format('could not read table %s', minting.relation), DETAIL = SQLERRM;
            END;
        END LOOP;
        done := done + 1;
        failed := failed + (NOT is_sound)::integer;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('check_rows', cardinality(todo), done, failed);
        END IF;
    END LOOP;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation',
            MESSAGE = format('%s of %s shards have ids that should not be there, or could not be read', failed, cardinality(todo)),
            DETAIL = 'A warning tells of each column or table.';
    END IF;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
