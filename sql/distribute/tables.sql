-- From one table to many shards: the tables, and where their rows go.
--
-- The tables that users start with are the sources. In each shard, the table that gets rows of a source is its target. Triggers
-- note the primary keys of rows that change in a source. Each batch has one snapshot: it brings the changes that the snapshot
-- shows to the targets, and then copies more rows. So after each batch, the targets are as the sources were at one moment, and
-- no batch locks a row of a source.

-- A forged row about a table of another role could make a superuser's call drop this table.
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.distribution
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_table_owner('source', 'view');
ALTER TABLE insta_ids_internal.distribution ENABLE ALWAYS TRIGGER require_owner;

-- Returns the columns of the primary key of a table, in their order. It is empty if the table has none.
CREATE OR REPLACE FUNCTION insta_ids_internal.primary_key_of(relation oid) RETURNS name[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.array_agg(a.attname ORDER BY k.place), '{}')
    FROM pg_catalog.pg_constraint c
    CROSS JOIN LATERAL pg_catalog.unnest(c.conkey) WITH ORDINALITY k (attnum, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
    WHERE c.conrelid = relation AND c.contype = 'p';
END;

-- Returns a sequence that a default uses, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.sequence_of_default(attrdef oid) RETURNS regclass
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT min(q.oid)::regclass
    FROM pg_catalog.pg_depend u JOIN pg_catalog.pg_class q ON q.oid = u.refobjid AND q.relkind = 'S'
    WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = attrdef AND u.refclassid = 'pg_class'::regclass;
END;

-- Returns whether a default is the next value of a sequence, and nothing else.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_next_value(attrdef oid) RETURNS boolean
    STABLE PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
    RETURN coalesce((
        SELECT pg_get_expr(d.adbin, d.adrelid) = format('nextval(%L::regclass)', insta_ids_internal.sequence_of_default(d.oid)::text)
        FROM pg_attrdef d WHERE d.oid = attrdef), false);

-- Returns whether a foreign key is temporal or not enforced, as it can be from PostgreSQL 18 on.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_special_key("constraint" oid) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT coalesce(j ->> 'conperiod' = 'true', false) OR coalesce(j ->> 'conenforced' = 'false', false)
    FROM pg_catalog.pg_constraint c CROSS JOIN LATERAL pg_catalog.to_jsonb(c) j WHERE c.oid = "constraint";
END;

-- Returns the names of columns by their numbers, in this order.
CREATE OR REPLACE FUNCTION insta_ids_internal.names_of_columns(relation oid, numbers smallint[]) RETURNS name[]
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT a.attname FROM pg_catalog.unnest(numbers) WITH ORDINALITY k (number, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = relation AND a.attnum = k.number ORDER BY k.place);

-- Returns columns as a list, each after `prefix`, as in `t.a, t.b`.
CREATE OR REPLACE FUNCTION insta_ids_internal.column_list(columns name[], prefix text DEFAULT '') RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT pg_catalog.string_agg(prefix || pg_catalog.quote_ident(c.name), ', ' ORDER BY c.place)
            FROM pg_catalog.unnest(columns) WITH ORDINALITY c (name, place));

-- Returns the type below a domain, or a domain over one, and that type's modifier. Of another type, it returns both as they are.
CREATE OR REPLACE FUNCTION insta_ids_internal.base_of(INOUT type oid, INOUT modifier integer)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH RECURSIVE types AS (
        SELECT base_of.type, base_of.modifier
        UNION ALL
        SELECT t.typbasetype, t.typtypmod FROM types b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
    )
    SELECT b.type, b.modifier FROM types b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd';
END;

-- Returns the name of the type of a column with its length. Of a domain, it returns the base type.
CREATE OR REPLACE FUNCTION insta_ids_internal.base_type_name(relation oid, "column" name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.format_type(b.type, b.modifier)
    FROM pg_catalog.pg_attribute a CROSS JOIN LATERAL insta_ids_internal.base_of(a.atttypid, a.atttypmod) b
    WHERE a.attrelid = relation AND a.attname = "column";
END;

-- Returns the same type without its length.
CREATE OR REPLACE FUNCTION insta_ids_internal.base_type(relation oid, "column" name) RETURNS regtype
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids_internal.base_type_name(relation, "column")::regtype;

-- Returns the call that computes the shard for a key of this type, with placeholders for the key and the number of shards, or NULL
-- if there is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.shard_call(type regtype) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE
        WHEN type = ANY (ARRAY['smallint', 'integer', 'bigint']::regtype[]) THEN 'insta_ids.shard_of(%s::pg_catalog.int8, %s)'
        WHEN type = ANY (ARRAY['text', 'character varying']::regtype[]) THEN 'insta_ids.shard_of_text(%s::pg_catalog.text, %s)'
        WHEN type = 'uuid'::regtype THEN 'insta_ids.shard_of_uuid(%s::pg_catalog.uuid, %s)' END;

-- Returns the expression of the shard of a row of a source, whose alias is `alias`.
CREATE OR REPLACE FUNCTION insta_ids_internal.shard_expression(source regclass, alias text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
BEGIN
    SELECT * INTO going FROM insta_ids_internal.distribution d WHERE d.source = shard_expression.source;
    RETURN CASE
        WHEN going.parent IS NULL THEN insta_ids_internal.shard_of_key(going, format('%s.%I', alias, going.key))
        ELSE format('(SELECT %s FROM %s %sp WHERE %3$sp.%4$s = %3$s.%5$I)',
            insta_ids_internal.shard_expression(going.parent, alias || 'p'), going.parent, alias,
            quote_ident((insta_ids_internal.primary_key_of(going.parent))[1]), going.key) END;
END
$$;

-- Returns the expression of the shard for a value of the key.
CREATE OR REPLACE FUNCTION insta_ids_internal.shard_of_key(going insta_ids_internal.distribution, value text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN format(insta_ids_internal.shard_call(insta_ids_internal.base_type(going.source, going.key)),
        value, (insta_ids_internal.require_config()).shards);

-- Returns the name of the target in a shard, whether or not it exists.
CREATE OR REPLACE FUNCTION insta_ids_internal.target_in(target name, shard integer) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN format('%I.%I', insta_ids.schema_of(shard), target);
END
$$;

-- Returns a table and all its partitions.
CREATE OR REPLACE FUNCTION insta_ids_internal.with_partitions(source regclass) RETURNS regclass[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(SELECT p.relid FROM pg_catalog.pg_partition_tree(source) p UNION SELECT source ORDER BY 1);

-- Returns what a table or one of its partitions is if its rows are not in its own heap.
CREATE OR REPLACE FUNCTION insta_ids_internal.part_not_in_heap(source regclass) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT min(insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam)) FROM pg_catalog.pg_class c
            WHERE c.oid = ANY (insta_ids_internal.with_partitions(source)::oid[]));

-- Returns the targets of a source in all shards of this server.
CREATE OR REPLACE FUNCTION insta_ids_internal.targets_of(going insta_ids_internal.distribution)
    RETURNS TABLE (shard integer, relation regclass)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT s.shard, c.oid::regclass
    FROM insta_ids_internal.shard_schema s JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = going.target
    ORDER BY s.shard;
END;

-- Returns the name of a type for format(). A type of the schema is named as one of %1$I, and so is its array.
CREATE OR REPLACE FUNCTION insta_ids_internal.type_in_shard(type oid, modifier integer, schema name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE WHEN n.nspname = schema
        THEN '%1$I.' || pg_catalog.replace(pg_catalog.quote_ident(e.typname), '%', '%%') || CASE WHEN e.oid <> type THEN '[]' ELSE '' END
        ELSE pg_catalog.replace(pg_catalog.format_type(type, modifier), '%', '%%') END
    FROM pg_catalog.pg_type t
    JOIN pg_catalog.pg_type e ON e.oid = CASE WHEN t.typelem <> 0 AND t.typlen = -1 THEN t.typelem ELSE t.oid END
    JOIN pg_catalog.pg_namespace n ON n.oid = e.typnamespace
    WHERE t.oid = type;
END;

-- Returns the columns of the target that are copied, and the expression of each one's value. `cast_to` is the type to which the
-- value's text is cast, or NULL if the source has the same type. A type of a shard's own has the schema %1$I. The targets of all
-- shards are alike, so the first one stands for all.
CREATE OR REPLACE FUNCTION insta_ids_internal.copied_columns(going insta_ids_internal.distribution)
    RETURNS TABLE ("column" name, cast_to text)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT t.attname, CASE WHEN (t.atttypid, t.atttypmod) IS DISTINCT FROM (s.atttypid, s.atttypmod) THEN
        insta_ids_internal.type_in_shard(t.atttypid, t.atttypmod, insta_ids.schema_of(0)) END
    FROM pg_attribute t
    JOIN pg_attribute s ON s.attrelid = going.source AND s.attname = t.attname AND s.attnum > 0
    WHERE t.attrelid = insta_ids_internal.target_in(going.target, 0)::regclass AND t.attnum > 0
        AND NOT t.attisdropped AND t.attgenerated = ''
    ORDER BY t.attnum;
END;

-- Returns the statement that inserts rows into the target of a shard, for format() with the shard's schema. `rows` is the rest
-- of the query: its table or join, in which the source's columns have the alias s. With `over`, it writes over rows that are there.
CREATE OR REPLACE FUNCTION insta_ids_internal.insert_template(
        going insta_ids_internal.distribution, rows text, over boolean) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT name[] := insta_ids_internal.primary_key_of(going.source);
    columns CONSTANT name[] := ARRAY(SELECT c."column" FROM insta_ids_internal.copied_columns(going) c);
    names CONSTANT text := replace(insta_ids_internal.column_list(columns), '%', '%%');
    vals CONSTANT text := (
        SELECT string_agg(replace(format('s.%I', c."column"), '%', '%%') || coalesce('::pg_catalog.text::' || c.cast_to, ''), ', ')
        FROM insta_ids_internal.copied_columns(going) c);
    -- The key is written, too: its value can be equal to the old one and have another text.
    changes CONSTANT text := (SELECT string_agg(replace(format('%I = excluded.%1$I', c), '%', '%%'), ', ') FROM unnest(columns) c);
BEGIN
    RETURN format('INSERT INTO %%1$I.%s (%s) SELECT %s FROM %s', replace(quote_ident(going.target), '%', '%%'), names, vals,
            replace(rows, '%', '%%'))
        || CASE WHEN over THEN format(' ON CONFLICT (%s) DO UPDATE SET %s',
            replace(insta_ids_internal.column_list(key), '%', '%%'), changes) ELSE '' END;
END
$$;

-- Returns whether a foreign key between two tables always refers to a row of the same shard: the table goes with the other one by it, or both
-- go by the same values.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_within_shard(
        referring insta_ids_internal.distribution, referred insta_ids_internal.distribution, columns name[], referred_columns name[])
    RETURNS boolean
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce(
        referring.parent = referred.source AND columns = ARRAY[referring.key]
            AND referred_columns = insta_ids_internal.primary_key_of(referred.source)
        OR referring.parent IS NOT DISTINCT FROM referred.parent
            AND referred.key = referred_columns[array_position(columns, referring.key)], false);

-- Returns tables in an order in which each comes after those to which it refers. The foreign keys are given by their tables. Where they are
-- a cycle, those that must be in this order are, which `musts` says.
CREATE OR REPLACE FUNCTION insta_ids_internal.tables_in_order(tables regclass[], referring regclass[], referred regclass[], musts boolean[])
    RETURNS regclass[]
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ordered regclass[] := '{}';
BEGIN
    WHILE cardinality(ordered) < cardinality(tables) LOOP
        ordered := ordered || (
            SELECT t.relation
            FROM unnest(tables) t (relation)
            LEFT JOIN unnest(referring, referred, musts) k (referring, referred, must)
                ON k.referring = t.relation AND k.referred <> t.relation AND k.referred <> ALL (ordered)
            WHERE t.relation <> ALL (ordered)
            GROUP BY t.relation
            ORDER BY coalesce(bool_or(k.must), false), count(k.referred), t.relation::text LIMIT 1);
    END LOOP;
    RETURN ordered;
END
$$;

-- Finds the parents of the registered tables, and orders the tables so that each comes after those to which it refers.
CREATE OR REPLACE FUNCTION insta_ids_internal.order_distribution() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE insta_ids_internal.distribution d SET parent = NULL;
    LOOP
        UPDATE insta_ids_internal.distribution d SET parent = f.parent
        FROM (
            SELECT r.referring, min(p.source::oid)::regclass AS parent
            FROM insta_ids_internal.references_of_distribution() r
            JOIN insta_ids_internal.distribution s ON s.source = r.referring AND r.columns = ARRAY[s.key]
            JOIN insta_ids_internal.distribution p ON p.source = r.referred AND p.source <> s.source
            WHERE r.referred_columns = insta_ids_internal.primary_key_of(p.source)
                -- If the parent goes by this column itself, shard_of() says the same without looking at the parent.
                AND (r.referred_columns <> ARRAY[p.key] OR p.parent IS NOT NULL)
            GROUP BY r.referring
        ) f
        WHERE f.referring = d.source AND d.parent IS DISTINCT FROM f.parent;
        -- A table for which a parent was found may be one itself.
        EXIT WHEN NOT FOUND;
    END LOOP;
    UPDATE insta_ids_internal.distribution d SET number = array_position(o.sources, d.source)
    FROM (
        SELECT insta_ids_internal.tables_in_order(insta_ids_internal.distribution_sources(), array_agg(r.source), array_agg(r.referred_source),
            array_agg(NOT r.is_of_source OR f.parent = r.referred_source)) AS sources
        FROM insta_ids_internal.references_of_distribution() r JOIN insta_ids_internal.distribution f ON f.source = r.source
        WHERE r.referred_source IS NOT NULL
    ) o;
END
$$;

-- Returns the tables of the distribution.
CREATE OR REPLACE FUNCTION insta_ids_internal.distribution_sources() RETURNS regclass[]
    STABLE PARALLEL UNSAFE LANGUAGE sql
    RETURN ARRAY(SELECT d.source FROM insta_ids_internal.distribution d ORDER BY d.source);
