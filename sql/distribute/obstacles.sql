-- From one table to many shards: what is refused before anything starts.

-- Returns whether each value of a column of the source fits into a column of the target, without a change of its text.
CREATE OR REPLACE FUNCTION insta_ids_internal.fits(from_type oid, from_modifier integer, to_type oid, to_modifier integer, schema name)
    RETURNS boolean
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE
        WHEN from_type = to_type THEN to_modifier IN (-1, from_modifier)
        WHEN to_modifier <> -1 THEN false
        WHEN to_type = 'bigint'::regtype THEN base.type IN ('smallint'::regtype, 'integer'::regtype, to_type)
        WHEN to_type = 'integer'::regtype THEN base.type IN ('smallint'::regtype, to_type)
        WHEN to_type = 'text'::regtype THEN base.type IN ('character varying'::regtype, to_type)
        WHEN base.type = to_type THEN true
        -- Types of a shard's own, such as an enum, have the name of the source's.
        ELSE t.typname = f.typname AND n.nspname = schema
    END
    FROM pg_catalog.pg_type f, pg_catalog.pg_type t, pg_catalog.pg_namespace n,
        LATERAL insta_ids_internal.base_of(from_type, from_modifier) base
    WHERE f.oid = from_type AND t.oid = to_type AND n.oid = t.typnamespace;
END;

-- Returns why rows of a source cannot go to shards by this key. With `may_be_null`, the key need not be NOT NULL yet.
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacles_in_source(
        going insta_ids_internal.distribution, may_be_null boolean DEFAULT false) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT o.reason
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (SELECT insta_ids_internal.primary_key_of(c.oid)) p (key)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = going.key AND a.attnum > 0 AND NOT a.attisdropped
    CROSS JOIN LATERAL (SELECT insta_ids_internal.part_not_in_heap(c.oid)) h (part)
    CROSS JOIN LATERAL (VALUES
        (c.relkind <> ALL ('{r,p}'), 'It is not a table.'),
        (h.part IS NOT NULL, pg_catalog.format('It, or a partition of it, is a %s.', h.part)),
        (c.relpersistence <> 'p', 'It is unlogged or temporary.'),
        (c.reloftype <> 0, 'It is a table of a type.'),
        (c.relispartition, 'It is a partition. Distribute the partitioned table.'),
        (c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)),
            'It has a parent or child table.'),
        (c.relrowsecurity, 'It has row security.'),
        (n.nspname = ANY (ARRAY['pg_catalog', 'insta_ids_internal'])
            OR EXISTS (SELECT FROM insta_ids_internal.shard_schema s WHERE s.oid = n.oid), 'It belongs to a shard.'),
        (pg_catalog.cardinality(p.key) = 0, 'It has no primary key.'),
        (EXISTS (
            SELECT FROM pg_catalog.unnest(p.key) k (name)
            JOIN pg_catalog.pg_type t ON t.oid = insta_ids_internal.base_type(c.oid, k.name)
            JOIN pg_catalog.pg_attribute ka ON ka.attrelid = c.oid AND ka.attname = k.name
            WHERE t.typnamespace <> 'pg_catalog'::regnamespace AND (t.typtype <> 'e' OR ka.atttypid <> t.oid)
                -- Sessions can print a value of these types in different ways, and not all of them can be read back.
                OR coalesce(nullif(t.typelem, 0::pg_catalog.oid), t.oid) = ANY (ARRAY['money', 'regclass', 'regcollation', 'regconfig',
                    'regdictionary', 'regnamespace', 'regoper', 'regoperator', 'regproc', 'regprocedure', 'regrole', 'regtype']::regtype[])),
            'Its primary key has a type that is not PostgreSQL''s own, or that sessions print in different ways.'),
        (EXISTS (
            SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p' AND k.condeferrable),
            'Its primary key is DEFERRABLE.'),
        (EXISTS (
            SELECT FROM pg_catalog.pg_attribute k
            LEFT JOIN pg_catalog.pg_collation l ON l.oid = k.attcollation
            WHERE k.attrelid = c.oid AND (k.attname = going.key OR k.attname = ANY (p.key))
                AND (l.collisdeterministic IS FALSE OR k.attgenerated = 'v')),
            'Its key is a virtual column, or has a collation in which different texts are equal.'),
        (EXISTS (SELECT FROM pg_catalog.pg_attribute x WHERE x.attrelid = c.oid AND pg_catalog.starts_with(x.attname, 'insta_ids_')),
            'It has a column whose name begins with "insta_ids_", as those that distribute() adds to rows.'),
        (a.attname IS NULL, pg_catalog.format('It has no column "%s".', going.key)),
        (NOT a.attnotnull AND NOT may_be_null, pg_catalog.format('Column "%s" can be NULL, and then says no shard.', going.key)),
        (going.parent IS NULL AND a.attname IS NOT NULL AND insta_ids_internal.shard_call(insta_ids_internal.base_type(c.oid, a.attname)) IS NULL,
            pg_catalog.format('Column "%s" has the type %s, for which there is no shard_of().', going.key,
                pg_catalog.format_type(a.atttypid, a.atttypmod)))
    ) o (is_found, reason)
    WHERE c.oid = going.source AND o.is_found;
END;

-- Returns why a target cannot get the rows of a source. The target is that of shard 0, in this schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacles_in_target(source regclass, target regclass, schema name) RETURNS SETOF text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    source_key CONSTANT name[] := insta_ids_internal.primary_key_of(source);
    target_key CONSTANT name[] := insta_ids_internal.primary_key_of(target);
BEGIN
    RETURN QUERY
    WITH s AS (
        SELECT a.* FROM pg_attribute a WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
    ), t AS (
        SELECT a.* FROM pg_attribute a WHERE a.attrelid = target AND a.attnum > 0 AND NOT a.attisdropped
    )
    SELECT format('Table %s lacks column "%s" of the source.', target, s.attname)
    FROM s WHERE s.attname NOT IN (SELECT t.attname FROM t)
    UNION ALL
    SELECT format('Table %s has column "%s" of type %s, and in the source it is %s.', target, t.attname,
        format_type(t.atttypid, t.atttypmod), format_type(s.atttypid, s.atttypmod))
    FROM s JOIN t ON t.attname = s.attname
    WHERE t.attgenerated = '' AND NOT insta_ids_internal.fits(s.atttypid, s.atttypmod, t.atttypid, t.atttypmod, schema)
    UNION ALL
    SELECT format('Table %s has column "%s" that is NOT NULL without a default, and that the source lacks.', target, t.attname)
    FROM t
    WHERE t.attnotnull AND NOT t.atthasdef AND t.attidentity = '' AND t.attname NOT IN (SELECT s.attname FROM s)
    UNION ALL
    SELECT format('Table %s has column "%s" that is GENERATED ALWAYS AS IDENTITY and not in the primary key.', target, t.attname)
    FROM t WHERE t.attidentity = 'a' AND t.attname <> ALL (target_key)
    UNION ALL
    SELECT format('Table %s fills column "%s" of its primary key from a sequence, so other shards would have the same values.', target, t.attname)
    FROM t LEFT JOIN pg_attrdef d ON d.adrelid = target AND d.adnum = t.attnum
    WHERE t.attname = ANY (target_key) AND (t.attidentity <> '' OR insta_ids_internal.sequence_of_default(d.oid) IS NOT NULL)
        AND t.attname NOT IN (SELECT m."column" FROM insta_ids_internal.minting_columns(ARRAY[0]) m WHERE m.relation = target)
    UNION ALL
    SELECT format('Table %s has another primary key than the source.', target)
    WHERE NOT (source_key <@ target_key AND source_key @> target_key)
    UNION ALL
    SELECT format('Table %s has a primary key that is DEFERRABLE.', target)
    WHERE EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = target AND k.contype = 'p' AND k.condeferrable)
    UNION ALL
    SELECT format('Table %s has the trigger "%s", which would fire for each row that is copied.', target, g.tgname)
    FROM pg_trigger g
    WHERE g.tgrelid = ANY (insta_ids_internal.with_partitions(target)::oid[]) AND g.tgparentid = 0 AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND NOT starts_with(g.tgname, 'insta_ids_fence')
    UNION ALL
    SELECT format('Table %s has the rule "%s".', target, r.rulename) FROM pg_rewrite r WHERE r.ev_class = target;
END
$$;

-- Returns why the targets cannot get the rows of a source: of each kind of reason the first one, by shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacles_in_targets(going insta_ids_internal.distribution) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = going.source);
    first CONSTANT regclass := to_regclass(insta_ids_internal.target_in(going.target, 0));
BEGIN
    RETURN QUERY
    WITH targets AS MATERIALIZED (
        SELECT s.shard, n.schema, format('%I.%I', n.schema, going.target) AS name, h.shard IS NOT NULL AS is_here, c.oid
        FROM insta_ids_internal.config g
        CROSS JOIN LATERAL generate_series(0, g.shards - 1) s (shard)
        CROSS JOIN LATERAL (SELECT (g.prefix || s.shard::text)::name) n (schema)
        LEFT JOIN insta_ids_internal.shard h ON h.shard = s.shard
        LEFT JOIN pg_namespace x ON x.nspname = n.schema
        LEFT JOIN pg_class c ON c.relnamespace = x.oid AND c.relname = going.target
    ), parts AS (
        -- What a table consists of, in words that are the same for each shard.
        SELECT t.shard, concat_ws(' ', 'column', a.attname, CASE WHEN n.nspname <> t.schema THEN n.nspname END, y.typname,
            a.atttypmod, a.attnotnull, a.atthasdef, a.attidentity, a.attgenerated) AS part
        FROM targets t
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN pg_type y ON y.oid = a.atttypid
        JOIN pg_namespace n ON n.oid = y.typnamespace
        UNION ALL
        SELECT t.shard, concat_ws(' ', 'constraint', k.contype, k.conname, k.conkey::text)
        FROM targets t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype IN ('p', 'f', 'u', 'c')
        UNION ALL
        SELECT t.shard, concat_ws(' ', 'trigger', g.tgname, g.tgenabled)
        FROM targets t
        JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal AND NOT starts_with(g.tgname, 'insta_ids_fence')
        UNION ALL
        SELECT t.shard, 'rule ' || r.rulename FROM targets t JOIN pg_rewrite r ON r.ev_class = t.oid
    ), shapes AS (
        SELECT p.shard, array_agg(p.part ORDER BY p.part COLLATE "C") AS shape FROM parts p GROUP BY p.shard
    ), reasons AS (
        SELECT t.shard, o.place, format(o.reason, t.name) AS reason
        FROM targets t
        LEFT JOIN pg_class c ON c.oid = t.oid
        LEFT JOIN shapes h ON h.shard = t.shard
        CROSS JOIN LATERAL (SELECT insta_ids_internal.part_not_in_heap(c.oid)) x (part)
        CROSS JOIN LATERAL (VALUES
            (1, NOT t.is_here, 'The shard of table %s is not on this server.'),
            (2, t.is_here AND c.oid IS NULL, 'Table %s does not exist.'),
            (3, c.relkind <> ALL ('{r,p}') OR c.relpersistence <> 'p' OR c.relrowsecurity,
                'Table %s is not an ordinary, logged table without row security.'),
            (4, h.shape <> (SELECT f.shape FROM shapes f WHERE f.shard = 0), 'Table %s is not like that of shard 0.'),
            (5, EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = t.shard), 'The shard of table %s is fenced or moves.'),
            (6, CASE WHEN going.step = 'registered' AND c.relowner = owner AND x.part IS NULL THEN EXISTS (
                SELECT FROM unnest(insta_ids_internal.with_partitions(c.oid::regclass)) p (part)
                WHERE CASE (SELECT l.relkind FROM pg_class l WHERE l.oid = p.part)
                    WHEN 'r' THEN insta_ids_internal.has_rows(p.part) END) END, 'Table %s has rows.'),
            (7, x.part IS NOT NULL, format('Table %%s, or a partition of it, is a %s.', x.part))
        ) o (place, is_found, reason)
        WHERE o.is_found
    )
    SELECT (array_agg(r.reason ORDER BY r.shard))[1] FROM reasons r GROUP BY r.place;
    IF first IS NOT NULL THEN
        RETURN QUERY SELECT insta_ids_internal.obstacles_in_target(going.source, first, insta_ids.schema_of(0));
    END IF;
END
$$;

-- Returns why one table cannot be distributed. What hinders several together is in obstacles_between().
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacles_of(going insta_ids_internal.distribution) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.obstacles_in_source(going)
    UNION ALL
    SELECT insta_ids_internal.obstacles_in_targets(going);
END;

-- Returns the foreign keys from and to the sources, and from and to their targets in shard 0, also of partitions. `is_ordered` is whether
-- the table that refers is copied after the other one. `is_of_source` is whether a source refers, or is referred to by another table than
-- these, and `is_mixed` whether one of the tables is a source and the other one a target. `ends` is whether the key ends with the switch,
-- because one of its tables is a source, and the other one neither a source nor in a shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.references_of_distribution()
    RETURNS TABLE (name name, referring regclass, referred regclass, columns name[], referred_columns name[], source regclass,
        referred_source regclass, is_ordered boolean, acts boolean, is_of_source boolean, is_mixed boolean, ends boolean)
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH tables AS (
        SELECT d.source, d.number, t.relation, t.relation = d.source AS is_source, p.part
        FROM insta_ids_internal.distribution d
        CROSS JOIN LATERAL (
            VALUES (d.source), (pg_catalog.to_regclass(insta_ids_internal.target_in(d.target, 0)))
        ) t (relation)
        CROSS JOIN LATERAL pg_catalog.unnest(insta_ids_internal.with_partitions(t.relation)) p (part)
    )
    SELECT c.conname, c.conrelid::regclass, c.confrelid::regclass, insta_ids_internal.names_of_columns(c.conrelid, c.conkey),
           insta_ids_internal.names_of_columns(c.confrelid, c.confkey), f.source, r.source, f.number > r.number,
           c.confdeltype <> ALL ('{a,r}') OR c.confupdtype <> ALL ('{a,r}'), coalesce(f.is_source, r.is_source),
           coalesce(f.is_source <> r.is_source, false),
           CASE WHEN f.source IS NULL OR r.source IS NULL THEN coalesce(f.is_source, r.is_source) AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_class t JOIN insta_ids_internal.shard_schema s ON s.oid = t.relnamespace
               WHERE t.oid IN (c.conrelid, c.confrelid)) ELSE false END
    FROM pg_catalog.pg_constraint c
    LEFT JOIN tables f ON f.part = c.conrelid
    LEFT JOIN tables r ON r.part = c.confrelid
    WHERE c.contype = 'f' AND c.conparentid = 0 AND (f.source IS NOT NULL OR r.source IS NOT NULL);
END;

-- Returns why the registered tables cannot be distributed together.
CREATE OR REPLACE FUNCTION insta_ids_internal.obstacles_between() RETURNS SETOF text
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    WITH refs AS MATERIALIZED (SELECT * FROM insta_ids_internal.references_of_distribution())
    SELECT CASE
        WHEN r.ends AND k.is_special THEN
            pg_catalog.format('Foreign key "%s" of table %s is temporal or not enforced, so it could not be restored. Drop it.', r.name,
                r.referring)
        WHEN r.ends THEN
            pg_catalog.format('Foreign key "%s" of table %s ends with the switch, and only the owner of both tables can drop it.', r.name,
                r.referring)
        WHEN r.is_of_source OR r.is_mixed THEN
            pg_catalog.format('Foreign key "%s" of table %s refers to table %s, and only one of the two is distributed.', r.name,
                r.referring, r.referred)
        WHEN r.referred_source IS NULL OR r.source IS NULL THEN
            pg_catalog.format('Foreign key "%s" of table %s refers to table %s, and only one of the two gets rows.', r.name,
                r.referring, r.referred)
        WHEN NOT r.is_ordered THEN
            pg_catalog.format('Foreign key "%s" of table %s refers to a table that is copied later, or to itself. Add it by a later migration.',
                r.name, r.referring)
        WHEN r.acts THEN
            pg_catalog.format('Foreign key "%s" of table %s deletes or changes rows by itself. Add it by a later migration.', r.name,
                r.referring)
        ELSE pg_catalog.format('Foreign key "%s" of table %s refers to other columns than the primary key. Add it by a later migration.',
            r.name, r.referring)
        END
    FROM refs r
    JOIN pg_catalog.pg_constraint c ON c.conrelid = r.referring AND c.conname = r.name AND c.contype = 'f'
    CROSS JOIN LATERAL (SELECT insta_ids_internal.is_special_key(c.oid)) k (is_special)
    WHERE CASE
        WHEN r.ends THEN k.is_special
            OR EXISTS (SELECT FROM pg_catalog.pg_class t WHERE t.oid IN (r.referring, r.referred) AND NOT pg_catalog.pg_has_role(t.relowner, 'USAGE'))
        WHEN r.source IS NULL OR r.referred_source IS NULL OR r.is_mixed THEN true
        ELSE NOT r.is_of_source AND (r.acts OR NOT r.is_ordered OR NOT (
            r.referred_columns <@ insta_ids_internal.primary_key_of(r.referred)
            AND r.referred_columns @> insta_ids_internal.primary_key_of(r.referred))) END
    UNION ALL
    -- The key is part of a foreign key, but no foreign key says with which row this one goes.
    SELECT pg_catalog.format('Foreign key "%s" of table %s refers to other columns of table %s than the primary key, so its rows would go to other shards.',
        r.name, d.source, p.source)
    FROM refs r
    JOIN insta_ids_internal.distribution d ON d.source = r.referring AND d.parent IS NULL AND d.key = ANY (r.columns)
    JOIN insta_ids_internal.distribution p ON p.source = r.referred AND p.source <> d.source
    WHERE NOT EXISTS (
        SELECT FROM refs o
        JOIN insta_ids_internal.distribution q ON q.source = o.referred AND q.source <> d.source AND q.parent IS NULL
        WHERE o.referring = d.source
            AND q.key = o.referred_columns[pg_catalog.array_position(o.columns, d.key)])
    UNION ALL
    SELECT pg_catalog.format('Table %s goes with table %s, and that goes with it.', d.source, p.source)
    FROM insta_ids_internal.distribution d
    JOIN insta_ids_internal.distribution p ON p.source = d.parent AND p.number >= d.number;
END;

-- Raises an error unless each source and its targets belong to one role, and the caller has the rights of that role. Raises an error,
-- too, if they have code of a role that lacks rights of the caller.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_distributable(going insta_ids_internal.distribution[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relations oid[];
    owners oid[];
    owned record;
BEGIN
    WITH RECURSIVE used AS (
        SELECT g.source AS oid, c.relowner AS owner FROM unnest(going) g JOIN pg_class c ON c.oid = g.source
        UNION SELECT t.relation, c.relowner
        FROM unnest(going) g JOIN pg_class c ON c.oid = g.source CROSS JOIN LATERAL insta_ids_internal.targets_of(g) t
    ), parts AS (
        SELECT u.oid, u.owner FROM used u
        UNION SELECT i.inhrelid, p.owner FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid
    )
    SELECT array_agg(p.oid), array_agg(p.owner) INTO relations, owners FROM parts p;
    PERFORM insta_ids_internal.require_own_code(relations);
    SELECT c.oid::regclass AS relation, c.relowner::regrole AS role INTO owned
    FROM unnest(relations, owners) r (oid, owner) JOIN pg_class c ON c.oid = r.oid
    WHERE c.relowner <> r.owner OR NOT pg_has_role(c.relowner, 'USAGE')
    ORDER BY c.oid LIMIT 1;
    IF FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('table %s belongs to role %s', owned.relation, owned.role),
            DETAIL = 'A table and those of the shards that get its rows must belong to one role, whose rights you have.',
            HINT = 'Log in as the role that owns the table and its shards'' tables. It needs insta_ids.grant_provisioning().';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.distribute_table(source regclass, key name, target name DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
    reasons text[];
BEGIN
    IF num_nulls(source, key) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'table and key must be given';
    END IF;
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.require_config();
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'registered') THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('table %s comes too late', source),
            DETAIL = 'Other tables are being distributed already, and all of them go together.',
            HINT = 'Call insta_ids.distribute_abort(), or wait until insta_ids.distribute_finish().';
    END IF;
    DELETE FROM insta_ids_internal.distribution d WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = d.source);
    INSERT INTO insta_ids_internal.distribution (source, target, key)
    VALUES (source, coalesce(distribute_table.target, (SELECT c.relname FROM pg_class c WHERE c.oid = distribute_table.source)), distribute_table.key)
    ON CONFLICT ON CONSTRAINT distribution_pkey DO UPDATE SET target = excluded.target, key = excluded.key, parent = NULL;
    PERFORM insta_ids_internal.order_distribution();
    SELECT * INTO going FROM insta_ids_internal.distribution d WHERE d.source = distribute_table.source;
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.target = going.target AND d.source <> going.source) THEN
        RAISE duplicate_object USING
            MESSAGE = format('table "%s" of the shards gets rows of another table already', going.target),
            HINT = 'Name the target.';
    END IF;
    PERFORM insta_ids_internal.require_distributable(ARRAY[going]);
    reasons := ARRAY(SELECT insta_ids_internal.obstacles_of(going));
    IF cardinality(reasons) > 0 THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('table %s cannot be distributed', source),
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;
COMMENT ON FUNCTION insta_ids.distribute_table(regclass, name, name) IS
    'registers a table whose rows are to go to the shards, by the key or by the row that the key refers to';
