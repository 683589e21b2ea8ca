-- From one table to many shards: what hinders a plan, what users should know, and how tables are prepared.

-- Returns why columns that get IDs of the shards, or refer to such columns, cannot be altered to bigint.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_obstacles_to_widen(planned insta_ids_internal.distribution[]) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT format('Column "%s" of table %s is a smaller integer than the IDs of shards, and cannot be altered: %s', a.attname, n.relation, o.reason)
    FROM insta_ids_internal.narrow_columns(planned) n
    JOIN pg_class c ON c.oid = n.relation
    JOIN pg_attribute a ON a.attrelid = n.relation AND a.attnum = n.number
    CROSS JOIN LATERAL (
        SELECT 'it is in a partition key. Create the table again with a bigint.'
        FROM pg_partitioned_table t
        WHERE t.partrelid = ANY (insta_ids_internal.with_partitions(n.relation)::oid[])
            AND a.attname = ANY (insta_ids_internal.names_of_columns(t.partrelid, t.partattrs::smallint[]))
        UNION ALL
        SELECT format('its type is the domain %s. Give it one over bigint.', format_type(a.atttypid, NULL))
        FROM pg_type t WHERE t.oid = a.atttypid AND t.typtype = 'd'
        UNION ALL
        SELECT format('%s depends on it. Drop that, and create it again when the type is altered.', pg_describe_object(
            CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass END, coalesce(r.ev_class, d.objid), 0))
        FROM pg_depend d
        LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid AND r.ev_class <> n.relation
        LEFT JOIN pg_attrdef e ON d.classid = 'pg_attrdef'::regclass AND e.oid = d.objid
        LEFT JOIN pg_attribute g ON g.attrelid = e.adrelid AND g.attnum = e.adnum AND g.attgenerated <> ''
        WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = n.relation AND d.refobjsubid = n.number
            AND (g.attnum IS NOT NULL OR d.classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass, 'pg_trigger'::regclass,
                'pg_policy'::regclass, 'pg_publication_rel'::regclass))
        UNION ALL
        SELECT format('%s has the row type of the table.', pg_describe_object(d.classid, d.objid, d.objsubid))
        FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_type'::regclass AND d.objid <> n.relation AND d.objsubid > 0
            AND d.refobjid IN (c.reltype, (SELECT t.typarray FROM pg_type t WHERE t.oid = c.reltype))
    ) o (reason);
END;

-- Returns what of the tables cannot be in shards, or would not do there what it does now.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_obstacles_in_objects(planned insta_ids_internal.distribution[]) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('A shard would have several objects called "%s", of tables %s. Rename all but one.', n.name, string_agg(n.relation::text, ' and '))
    FROM (
        SELECT c.relname AS name, t.relation FROM unnest(planned) p, unnest(insta_ids_internal.with_partitions(p.source)) t (relation)
        JOIN pg_class c ON c.oid = t.relation
        UNION ALL
        SELECT c.relname, i.indrelid::regclass
        FROM unnest(planned) p, unnest(insta_ids_internal.with_partitions(p.source)) t (relation)
        JOIN pg_index i ON i.indrelid = t.relation
        JOIN pg_class c ON c.oid = i.indexrelid
        UNION ALL
        SELECT 'table_id_seq', 'insta_ids_internal.shard'::regclass
    ) n
    GROUP BY n.name HAVING count(*) > 1
    UNION ALL
    SELECT insta_ids_internal.plan_obstacles_to_widen(planned)
    UNION ALL
    SELECT format('The default of column "%s" of table %s takes values of sequence %s in an expression. Give the column another default.',
        a.attname, p.source, insta_ids_internal.sequence_of_default(d.oid))
    FROM unnest(planned) p
    JOIN pg_attribute a ON a.attrelid = p.source
    JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE insta_ids_internal.sequence_of_default(d.oid) IS NOT NULL AND a.attnum NOT IN (SELECT insta_ids_internal.numbered_columns(p.source))
    UNION ALL
    SELECT DISTINCT format('%s would be in the shards, and depends on %s.', pg_describe_object(d.classid, d.objid, d.objsubid),
        pg_describe_object(d.refclassid, d.refobjid, 0))
    FROM unnest(planned) p
    JOIN pg_class r ON r.oid = p.source
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = r.oid
        OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (r.reltype, (SELECT t.typarray FROM pg_type t WHERE t.oid = r.reltype))
    LEFT JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
    JOIN unnest(planned) o ON o.source = CASE WHEN d.classid = 'pg_class'::regclass AND d.objsubid > 0 THEN d.objid ELSE f.adrelid END
    WHERE d.deptype = 'n' AND (o.source <> p.source OR d.refclassid <> 'pg_class'::regclass OR f.oid IS NOT NULL AND d.refobjsubid = 0)
    UNION ALL
    SELECT format('Table %s has a rule, with which there would be no way back. Drop the rule.', p.source)
    FROM unnest(planned) p WHERE EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = p.source)
    UNION ALL
    SELECT format('Partition %s of table %s is unlogged.', c.oid::regclass, p.source)
    FROM unnest(planned) p JOIN pg_class c ON c.oid = ANY (insta_ids_internal.with_partitions(p.source)::oid[]) AND c.relpersistence = 'u'
    WHERE c.oid <> p.source
    UNION ALL
    SELECT format('Foreign key "%s" of table %s refers to other columns of table %s than the primary key, so its rows would go to other shards. Let `keys` name a column that refers to the primary key, or drop the foreign key.',
        (k.key).name, (k.key).relation, (k.key).referred)
    FROM insta_ids_internal.planned_keys(planned) k JOIN unnest(planned) p ON p.source = (k.key).relation
    WHERE k.fate = 'crosses shards' AND p.parent IS NULL AND p.key = ANY ((k.key).columns) AND (k.key).referred <> p.source
        AND (k.key).referred_columns <> insta_ids_internal.primary_key_of((k.key).referred)
    UNION ALL
    SELECT format('Foreign key "%s" of table %s ends with the switch, and only the owner of both tables can drop it.', (k.key).name, (k.key).relation)
    FROM insta_ids_internal.planned_keys(planned) k
    WHERE k.fate = 'stays' AND EXISTS (
        SELECT FROM pg_class c WHERE c.oid IN ((k.key).relation, (k.key).referred) AND NOT pg_has_role(c.relowner, 'USAGE'));
END;

-- Returns what keeps the tables from being distributed as planned, and what to do about it. `since` is NULL if the shards have the tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_obstacles(planned insta_ids_internal.distribution[], since timestamptz) RETURNS SETOF text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
    nulls bigint;
    needed CONSTANT bigint := insta_ids_internal.locks_to_distribute(ARRAY(SELECT p.source FROM unnest(planned) p));
BEGIN
    RETURN QUERY
    SELECT format('Role "%s" may not create schemas or temporary tables in this database. As its owner: GRANT CREATE, TEMPORARY ON DATABASE %I TO %I.',
        current_user, current_database(), current_user)
    WHERE NOT (has_database_privilege(current_database(), 'CREATE') AND has_database_privilege(current_database(), 'TEMPORARY'));
    FOREACH going IN ARRAY planned LOOP
        RETURN QUERY SELECT format('%s: %s', going.source, o) FROM insta_ids_internal.obstacles_in_source(going, true) o;
        IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = going.source AND a.attname = going.key AND NOT a.attnotnull) THEN
            EXECUTE format('SELECT count(*) FROM %s s WHERE s.%I IS NULL', going.source, going.key) INTO nulls;
            IF nulls > 0 THEN
                RETURN NEXT format('%s: Column "%s" is NULL in %s rows, and says no shard for them. Give it values, or delete these rows.',
                    going.source, going.key, nulls);
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY
    SELECT insta_ids_internal.plan_obstacles_in_objects(planned)
    UNION ALL
    SELECT format('Table %s exists, and not all other tables do. Drop it by a migration.', insta_ids_internal.target_in(p.target, 0))
    FROM unnest(planned) p WHERE since IS NOT NULL AND to_regclass(insta_ids_internal.target_in(p.target, 0)) IS NOT NULL
    UNION ALL
    SELECT format('%s: %s', p.source, o)
    FROM unnest(planned) p
    CROSS JOIN LATERAL insta_ids_internal.obstacles_in_target(p.source, to_regclass(insta_ids_internal.target_in(p.target, 0)),
        insta_ids.schema_of(0)) o
    WHERE since IS NULL
    UNION ALL
    SELECT format('IDs are as large as those of %s, and ids_since cannot be later than today. Give the rows with the largest IDs other ones.', since)
    WHERE since > clock_timestamp()
    UNION ALL
    SELECT format('The server has %s locks, and distributing needs %s. Set max_locks_per_transaction = %s, and restart the server.', l.room, needed,
        ceil(current_setting('max_locks_per_transaction')::numeric * needed / l.room))
    FROM insta_ids_internal.lock_capacity() l (room) WHERE needed > l.room;
END
$$;

-- Returns what else users should know before they begin. `action` is `stays` for a table, `ends` for a foreign key, and `note`.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_notes(tables regclass[], planned insta_ids_internal.distribution[])
    RETURNS TABLE (action text, why text)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'stays', format('Table %s: it has no column for its shard, and no foreign key with one column to the primary key of a distributed table. `keys` can name a column.', t.relation)
    FROM unnest(tables) t (relation) WHERE t.relation NOT IN (SELECT p.source FROM unnest(planned) p)
    UNION ALL
    SELECT 'ends', format('Foreign key "%s" of table %s %s: %s', (k.key).name, (k.key).relation, CASE k.fate
            WHEN 'stays' THEN 'ends with the switch, because only one of the two tables is distributed'
            WHEN 'crosses shards' THEN 'is not in the shards, because it can refer to a row in another shard'
            ELSE 'is not in the shards, because it is temporal, not enforced, or of a partition' END,
        insta_ids_internal.definition_of_key(k.key, (k.key).referred::text))
    FROM insta_ids_internal.planned_keys(planned) k WHERE k.fate IN ('stays', 'crosses shards', 'not carried')
    UNION ALL
    SELECT 'note', format('Index %s is unique within a shard only.', i.indexrelid::regclass)
    FROM unnest(planned) p JOIN pg_index i ON i.indrelid = p.source AND i.indisunique
    WHERE NOT i.indkey::smallint[] && ARRAY(
        SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = p.source AND (a.attname = p.key OR i.indisprimary
            AND a.attnum IN (SELECT insta_ids_internal.numbered_columns(p.source))))
    UNION ALL
    SELECT 'note', format('Trigger "%s" of table %s is not in the shards. Add it by a migration after the switch.', g.tgname, p.source)
    FROM unnest(planned) p JOIN pg_trigger g ON g.tgrelid = p.source AND NOT g.tgisinternal
    UNION ALL
    SELECT DISTINCT 'note', format('%s reads table %s. After the switch it sees old rows, and distribute_finish() fails while it exists.',
        pg_describe_object(x.class, x.oid, 0), p.source)
    FROM unnest(planned) p
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = p.source AND d.deptype = 'n'
    LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid AND r.ev_class <> p.source
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass END, coalesce(r.ev_class, d.objid)) x (class, oid)
    WHERE r.oid IS NOT NULL OR d.classid = 'pg_proc'::regclass
    UNION ALL
    SELECT 'note', format('Publication "%s" publishes table %s. Let it publish the tables of the shards, too.', n, p.source)
    FROM unnest(planned) p CROSS JOIN LATERAL insta_ids_internal.publications_of(p.source) n;
END;

-- Returns the statements that prepare the tables, each with its reason.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_preparations(planned insta_ids_internal.distribution[])
    RETURNS TABLE (statement text, why text)
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('ALTER TABLE %s %s', n.relation, string_agg(format('ALTER COLUMN %I TYPE bigint', a.attname), ', ' ORDER BY a.attnum)),
           'IDs of shards are a bigint. This rewrites the table, and blocks readers and writers meanwhile.'
    FROM insta_ids_internal.narrow_columns(planned) n JOIN pg_attribute a ON a.attrelid = n.relation AND a.attnum = n.number
    WHERE NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = n.relation)
    GROUP BY n.relation
    UNION ALL
    SELECT format('ALTER TABLE %s ALTER COLUMN %I SET GENERATED BY DEFAULT', p.source, a.attname),
           'Rows that come back from the shards have values for this column.'
    FROM unnest(planned) p JOIN pg_attribute a ON a.attrelid = p.source AND a.attidentity = 'a'
    WHERE a.attname <> ALL (insta_ids_internal.primary_key_of(p.source))
    UNION ALL
    SELECT format('ALTER TABLE %s VALIDATE CONSTRAINT %I', c.conrelid::regclass, c.conname), 'Rows that violate it would be refused by the shards.'
    FROM pg_constraint c
    LEFT JOIN insta_ids_internal.planned_keys(planned) k ON (k.key).relation = c.conrelid AND (k.key).name = c.conname
        AND k.fate IN ('in the shards', 'after the switch')
    WHERE NOT c.convalidated AND CASE c.contype WHEN 'f' THEN k.fate IS NOT NULL
        ELSE c.contype = 'c' AND c.conrelid IN (SELECT t FROM unnest(planned) p, unnest(insta_ids_internal.with_partitions(p.source)) t) END
    UNION ALL
    (SELECT s.statement, s.why
    FROM unnest(planned) p
    JOIN pg_attribute a ON a.attrelid = p.source AND a.attname = p.key AND NOT a.attnotnull
    CROSS JOIN LATERAL (SELECT CASE c.relkind WHEN 'p' THEN '' ELSE ' NOT VALID' END FROM pg_class c WHERE c.oid = p.source) n (not_valid)
    CROSS JOIN LATERAL (
        SELECT v.place, format(v.statement, p.source, c.conname, insta_ids_internal.definition_of_key(k, k.referred::text), not_valid), v.why
        FROM pg_constraint c
        CROSS JOIN LATERAL insta_ids_internal.prepared_key(c.oid, p.key) k
        CROSS JOIN (VALUES
            (1, 'ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %3$s%4$s',
                'The key says the shard, so deleting the row to which it refers cannot set it to NULL. This foreign key refuses that.'),
            (2, 'ALTER TABLE %s VALIDATE CONSTRAINT %I', 'This reads the table, and blocks no writer.')) v (place, statement, why)
        -- Before PostgreSQL 18, a partitioned table has no foreign key that is NOT VALID.
        WHERE (v.place = 1 OR not_valid <> '') AND c.conrelid = p.source AND c.contype = 'f' AND (k.on_delete, k.on_update) <> (c.confdeltype, c.confupdtype)
        UNION ALL
        SELECT 3, format('ALTER TABLE %s ADD CONSTRAINT insta_ids_not_null CHECK (%I IS NOT NULL) NOT VALID', p.source, p.key),
            'The key says the shard, so it cannot be NULL.'
        WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = p.source AND c.conname = 'insta_ids_not_null')
        UNION ALL
        SELECT 4, format('ALTER TABLE %s VALIDATE CONSTRAINT insta_ids_not_null', p.source), 'This reads the table, and blocks no writer.'
        UNION ALL
        SELECT 5, format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', p.source, p.key), 'With the CHECK, this does not read the table.'
        UNION ALL
        SELECT 6, format('ALTER TABLE %s DROP CONSTRAINT insta_ids_not_null', p.source), 'It has done its work.'
    ) s (place, statement, why)
    ORDER BY p.number, s.place);
END;
