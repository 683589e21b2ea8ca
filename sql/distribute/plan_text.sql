-- From one table to many shards: the text of the migration that a plan proposes. What it creates has no schema. What it uses is named with
-- its schema, because these functions run with an empty search_path.

-- Returns the columns of a source that get IDs of the shards: integers that nextval() or an identity fills.
CREATE OR REPLACE FUNCTION insta_ids_internal.numbered_columns(source regclass) RETURNS SETOF smallint
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT a.attnum
    FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
        AND a.atttypid = ANY (ARRAY['smallint', 'integer', 'bigint']::regtype[])
        AND (a.attidentity <> '' OR insta_ids_internal.is_next_value(d.oid));
END;

-- Returns the columns that have to be a bigint, because they get IDs of the shards or refer to such a column, and are a smaller integer.
-- The tables that stay have such columns, too.
CREATE OR REPLACE FUNCTION insta_ids_internal.narrow_columns(planned insta_ids_internal.distribution[])
    RETURNS SETOF insta_ids_internal.planned_column
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH RECURSIVE ids AS (
        SELECT p.source::oid AS relation, n.number
        FROM unnest(planned) p CROSS JOIN LATERAL insta_ids_internal.numbered_columns(p.source) n (number)
        UNION
        SELECT c.conrelid, k.number
        FROM ids i
        JOIN pg_catalog.pg_constraint c ON c.contype = 'f' AND c.confrelid = i.relation AND c.conparentid = 0
        CROSS JOIN LATERAL unnest(c.conkey, c.confkey) k (number, referred)
        WHERE k.referred = i.number
    )
    SELECT i.relation::regclass, i.number
    FROM ids i
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.relation AND a.attnum = i.number
    CROSS JOIN LATERAL insta_ids_internal.base_of(a.atttypid, a.atttypmod) b
    WHERE b.type = ANY (ARRAY['smallint', 'integer']::regtype[]);
END;

-- Returns the columns of a source as CREATE TABLE has them. Those that are `narrow` become a bigint.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_columns(
        going insta_ids_internal.distribution, narrow insta_ids_internal.planned_column[]) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT concat_ws(' ',
        quote_ident(a.attname),
        CASE WHEN n.number IS NULL THEN format_type(a.atttypid, a.atttypmod) ELSE 'bigint' END,
        CASE WHEN a.attcollation <> t.typcollation THEN 'COLLATE ' || a.attcollation::regcollation END,
        CASE
            WHEN a.attnum IN (SELECT insta_ids_internal.numbered_columns(going.source)) THEN 'DEFAULT next_id()'
            WHEN a.attgenerated = '' THEN 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)
            ELSE format('GENERATED ALWAYS AS (%s) %s', pg_get_expr(d.adbin, d.adrelid),
                CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END) END,
        CASE WHEN a.attnotnull OR a.attname = going.key THEN 'NOT NULL' END)
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN unnest(narrow) n ON n.relation = a.attrelid AND n.number = a.attnum
    WHERE a.attrelid = going.source AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum;
END;

-- Returns a foreign key. If it sets the column `key` to NULL or its default, and that can be NULL now, it is returned without this action:
-- the column says the shard, and so becomes NOT NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.prepared_key("constraint" oid, key name) RETURNS insta_ids_internal.ended_key
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_populate_record(k, CASE WHEN key = ANY (k.columns) AND NOT a.attnotnull THEN pg_catalog.jsonb_build_object(
        'on_delete', CASE WHEN k.on_delete = ANY ('{n,d}') THEN 'a' ELSE k.on_delete END,
        'on_update', CASE WHEN k.on_update = ANY ('{n,d}') THEN 'a' ELSE k.on_update END, 'set_columns', '{}') ELSE '{}' END)
    FROM insta_ids_internal.key_of("constraint") k
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = k.relation AND a.attname = key;
END;

-- Returns the foreign keys from and to these tables, and what becomes of each: it is `in the shards`, because it is between rows of one
-- shard and nothing prevents that rows are copied; it can be added `after the switch`; it `crosses shards`; it refers to, or is of, a table
-- that `stays`; or it is of a kind that is `not carried`.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_keys(planned insta_ids_internal.distribution[])
    RETURNS SETOF insta_ids_internal.planned_key
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH parts AS MATERIALIZED (
        SELECT p AS going, p.source, p.number, p.key, t.relation
        FROM pg_catalog.unnest(planned) p CROSS JOIN LATERAL pg_catalog.unnest(insta_ids_internal.with_partitions(p.source)) t (relation)
    )
    SELECT p, CASE
        WHEN f.key IS NULL OR r.key IS NULL THEN 'stays'
        WHEN insta_ids_internal.is_special_key(c.oid) OR c.conrelid <> f.source OR c.confrelid <> r.source THEN 'not carried'
        WHEN NOT insta_ids_internal.is_within_shard(f.going, r.going, k.columns, k.referred) THEN 'crosses shards'
        WHEN p.on_delete = ANY ('{a,r}') AND p.on_update = ANY ('{a,r}') AND f.number > r.number
            AND k.referred <@ insta_ids_internal.primary_key_of(r.source) AND k.referred @> insta_ids_internal.primary_key_of(r.source)
            THEN 'in the shards'
        ELSE 'after the switch' END
    FROM pg_catalog.pg_constraint c
    LEFT JOIN parts f ON f.relation = c.conrelid
    LEFT JOIN parts r ON r.relation = c.confrelid
    CROSS JOIN LATERAL (
        SELECT insta_ids_internal.names_of_columns(c.conrelid, c.conkey), insta_ids_internal.names_of_columns(c.confrelid, c.confkey)
    ) k (columns, referred)
    CROSS JOIN LATERAL insta_ids_internal.prepared_key(c.oid, f.key) p
    WHERE c.contype = 'f' AND c.conparentid = 0 AND (f.key IS NOT NULL OR r.key IS NOT NULL)
    ORDER BY c.conrelid::regclass::text, c.conname;
END;

-- Returns a foreign key as CREATE TABLE and ALTER TABLE have it, in a shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_key(key insta_ids_internal.ended_key) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('CONSTRAINT %I %s', key.name, insta_ids_internal.definition_of_key(key, (
        SELECT pg_catalog.quote_ident(c.relname) FROM pg_catalog.pg_class c WHERE c.oid = key.referred)));

-- Returns the statements that create what the indexes, statistics and privileges of a source are in a shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_extras(going insta_ids_internal.distribution) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- The text of an index begins with its own name and the table's, and the rest needs no change.
    SELECT format('CREATE %sINDEX %I ON %I %s', u.text, i.relname, p.relname, substr(pg_get_indexdef(i.oid), 1 + length(
        format('CREATE %sINDEX %I ON %s%I.%I ', u.text, i.relname, CASE i.relkind WHEN 'I' THEN 'ONLY ' ELSE '' END, n.nspname, p.relname))))
    FROM unnest(insta_ids_internal.with_partitions(going.source)) t (relation)
    JOIN pg_index x ON x.indrelid = t.relation AND x.indisvalid
    JOIN pg_class i ON i.oid = x.indexrelid AND NOT i.relispartition
    JOIN pg_class p ON p.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = p.relnamespace
    CROSS JOIN LATERAL (SELECT CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END) u (text)
    WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.oid AND c.conrelid = p.oid)
    UNION ALL
    SELECT format('CREATE STATISTICS %I%s ON %s FROM %I', s.stxname,
        (SELECT ' (' || string_agg(CASE k WHEN 'd' THEN 'ndistinct' WHEN 'f' THEN 'dependencies' ELSE 'mcv' END, ', ') || ')'
         FROM unnest(s.stxkind) k WHERE k <> 'e'),
        pg_get_statisticsobjdef_columns(s.oid), p.relname)
    FROM unnest(insta_ids_internal.with_partitions(going.source)) t (relation)
    JOIN pg_class p ON p.oid = t.relation
    JOIN pg_statistic_ext s ON s.stxrelid = t.relation
    UNION ALL
    SELECT format('GRANT %s ON %I TO %s', g.privileges, p.relname, g.role)
    FROM unnest(insta_ids_internal.with_partitions(going.source)) t (relation)
    JOIN pg_class p ON p.oid = t.relation
    CROSS JOIN LATERAL insta_ids_internal.privileges_on(t.relation) g;
END;

-- Returns the statements that give the partitions of a source, in a shard, what they do not inherit.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_differences(going insta_ids_internal.distribution) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH parts AS (
        SELECT c.oid, c.relname, i.inhparent FROM pg_partition_tree(going.source) t JOIN pg_class c ON c.oid = t.relid JOIN pg_inherits i ON i.inhrelid = c.oid
        ORDER BY t.level, c.relname
    )
    SELECT format('ALTER TABLE %I ADD CONSTRAINT %I %s', p.relname, k.conname, pg_get_constraintdef(k.oid))
    FROM parts p JOIN pg_constraint k ON k.conrelid = p.oid AND k.contype IN ('p', 'u', 'c', 'x') AND k.coninhcount = 0 AND k.conparentid = 0
    UNION ALL
    SELECT format('ALTER TABLE %I ALTER COLUMN %I %s', p.relname, a.attname, x.change)
    FROM parts p
    JOIN pg_attribute a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    JOIN pg_attribute b ON b.attrelid = p.inhparent AND b.attname = a.attname
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_attrdef e ON e.adrelid = b.attrelid AND e.adnum = b.attnum
    CROSS JOIN LATERAL (VALUES
        (a.attnotnull AND NOT b.attnotnull AND a.attname <> going.key, 'SET NOT NULL'),
        (pg_get_expr(d.adbin, d.adrelid) IS DISTINCT FROM pg_get_expr(e.adbin, e.adrelid) AND NOT insta_ids_internal.is_next_value(d.oid),
            coalesce('SET DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'DROP DEFAULT'))) x (is_needed, change)
    WHERE x.is_needed;
END;

-- Returns the statements that create the table of a source in a shard, with its partitions.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_table(
        going insta_ids_internal.distribution, narrow insta_ids_internal.planned_column[], keys insta_ids_internal.planned_key[])
    RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN t.relid = going.source
        THEN format(E'CREATE TABLE %I (\n    %s\n)', going.target, array_to_string(ARRAY(
            SELECT insta_ids_internal.planned_columns(going, narrow)
        ) || ARRAY(
            SELECT format('CONSTRAINT %I %s', k.conname, pg_get_constraintdef(k.oid))
            FROM pg_constraint k WHERE k.conrelid = going.source AND k.contype IN ('p', 'u', 'c', 'x')
            ORDER BY k.contype <> 'p', k.conname
        ) || ARRAY(
            SELECT insta_ids_internal.planned_key(k.key)
            FROM unnest(keys) k WHERE k.fate = 'in the shards' AND (k.key).relation = going.source
        ), E',\n    '))
        ELSE format('CREATE TABLE %I PARTITION OF %I %s', c.relname, p.relname, pg_get_expr(c.relpartbound, c.oid)) END
        || coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '')
        || coalesce((SELECT ' WITH (' || string_agg(format('%s = %L', o.option_name, o.option_value), ', ') || ')'
            FROM pg_options_to_table(c.reloptions) o), '')
    FROM (SELECT t.relid, t.parentrelid, t.level FROM pg_partition_tree(going.source) t
          UNION SELECT going.source, NULL, 0) t
    JOIN pg_class c ON c.oid = t.relid
    LEFT JOIN pg_class p ON p.oid = t.parentrelid
    ORDER BY t.level, c.relname;
END;

-- Returns the statements that let roles use the objects of a shard that have privileges on a source.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_grants(planned insta_ids_internal.distribution[]) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('DO $do$ BEGIN EXECUTE pg_catalog.format(%L, current_schema); END $do$', format('GRANT USAGE ON SCHEMA %%I TO %s', g.role))
        || CASE WHEN bool_or(g.may_insert) THEN format(E';\nGRANT USAGE ON SEQUENCE table_id_seq TO %s', g.role) ELSE '' END
    FROM unnest(planned) p CROSS JOIN LATERAL insta_ids_internal.privileges_on(p.source) g
    GROUP BY g.role ORDER BY g.role;
END;

-- Returns the text of the migration that creates the tables of the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_migration(planned insta_ids_internal.distribution[]) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH whole AS MATERIALIZED (
        SELECT ARRAY(SELECT insta_ids_internal.narrow_columns(planned)) AS narrow, ARRAY(SELECT insta_ids_internal.planned_keys(planned)) AS keys
    )
    SELECT pg_catalog.string_agg(s.statement, E';\n' ORDER BY s.part, s.number, s.place)
    FROM (
        SELECT 1 AS part, p.number, t.place, t.statement
        FROM whole w CROSS JOIN pg_catalog.unnest(planned) p
        CROSS JOIN LATERAL insta_ids_internal.planned_table(p, w.narrow, w.keys) WITH ORDINALITY t (statement, place)
        UNION ALL
        SELECT 2, p.number, d.place, d.statement
        FROM pg_catalog.unnest(planned) p
        CROSS JOIN LATERAL insta_ids_internal.planned_differences(p) WITH ORDINALITY d (statement, place)
        UNION ALL
        SELECT 3, p.number, e.place, e.statement
        FROM pg_catalog.unnest(planned) p
        CROSS JOIN LATERAL insta_ids_internal.planned_extras(p) WITH ORDINALITY e (statement, place)
        UNION ALL
        SELECT 4, 0, g.place, g.statement FROM insta_ids_internal.planned_grants(planned) WITH ORDINALITY g (statement, place)
    ) s;
END;
