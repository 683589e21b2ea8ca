-- From one table to many shards: what hinders a plan, what users should know, and how tables are prepared.

-- Returns what keeps the tables from being distributed as planned, and what to do about it. `since` is NULL if the shards have the tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_obstacles(planned insta_ids_internal.distribution[], since timestamptz) RETURNS SETOF text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
    going insta_ids_internal.distribution;
    nulls bigint;
    needed bigint := 1000;
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
        needed := needed + config.shards * (4 + (SELECT count(*) FROM pg_index i WHERE i.indrelid = going.source));
    END LOOP;
    RETURN QUERY
    SELECT format('Table %s has the same name as table %s, and a shard has one table of this name. Rename it.', p.source, q.source)
    FROM unnest(planned) p JOIN unnest(planned) q ON q.target = p.target AND q.source < p.source
    UNION ALL
    SELECT format('Table %s exists, and not all other tables do. Drop it by a migration.', insta_ids_internal.target_in(p.target, 0))
    FROM unnest(planned) p WHERE since IS NOT NULL AND to_regclass(insta_ids_internal.target_in(p.target, 0)) IS NOT NULL
    UNION ALL
    SELECT format('Column "%s" of table %s is a smaller integer than the IDs of shards, and cannot be altered: %s', a.attname, n.relation, o.reason)
    FROM insta_ids_internal.narrow_columns(planned) n
    JOIN pg_attribute a ON a.attrelid = n.relation AND a.attnum = n.number
    CROSS JOIN LATERAL (
        SELECT 'it is in a partition key. Create the table again with a bigint.'
        FROM pg_partitioned_table t WHERE t.partrelid = n.relation AND n.number = ANY (t.partattrs::smallint[])
        UNION ALL
        SELECT format('view %s reads it. Drop the view, and create it again when the type is altered.', r.ev_class::regclass)
        FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = n.relation AND d.refobjsubid = n.number
    ) o (reason)
    UNION ALL
    SELECT format('Column "%s" of table %s is in the primary key, and its default takes values of sequence %s, which other shards would repeat. Let it be an integer, or have another default.',
        a.attname, p.source, insta_ids_internal.sequence_of_default(d.oid))
    FROM unnest(planned) p
    JOIN pg_attribute a ON a.attrelid = p.source AND a.attname = ANY (insta_ids_internal.primary_key_of(p.source))
    JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE insta_ids_internal.sequence_of_default(d.oid) IS NOT NULL AND a.attnum NOT IN (SELECT insta_ids_internal.numbered_columns(p.source))
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
        SELECT FROM pg_class c WHERE c.oid IN ((k.key).relation, (k.key).referred) AND NOT pg_has_role(c.relowner, 'USAGE'))
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
    SELECT 'stays', format('Table %s: no column says where its rows go, and it refers to no table that goes.', t.relation)
    FROM unnest(tables) t (relation) WHERE t.relation NOT IN (SELECT p.source FROM unnest(planned) p)
    UNION ALL
    SELECT 'ends', format('Foreign key "%s" of table %s %s: %s', (k.key).name, (k.key).relation, CASE k.fate
            WHEN 'stays' THEN 'ends with the switch, because only one of the two tables goes to the shards'
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
    SELECT 'note', format('Table %s has a rule, so there is no way back after the switch.', p.source)
    FROM unnest(planned) p WHERE EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = p.source)
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
    SELECT format('ALTER TABLE %s VALIDATE CONSTRAINT %I', p.source, c.conname), 'Rows that violate it would be refused by the shards.'
    FROM unnest(planned) p JOIN pg_constraint c ON c.conrelid = p.source AND NOT c.convalidated
    WHERE c.contype = 'c' OR c.contype = 'f' AND c.confrelid = p.parent
    UNION ALL
    (SELECT s.statement, s.why
    FROM unnest(planned) p
    JOIN pg_attribute a ON a.attrelid = p.source AND a.attname = p.key AND NOT a.attnotnull
    CROSS JOIN LATERAL (
        SELECT v.place, format(v.statement, p.source, c.conname, insta_ids_internal.definition_of_key(k, k.referred::text)), v.why
        FROM pg_constraint c
        CROSS JOIN LATERAL insta_ids_internal.prepared_key(c.oid, p.key) k
        CROSS JOIN (VALUES
            (1, 'ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %3$s NOT VALID',
                'The key says the shard, so deleting the row to which it refers cannot set it to NULL. This foreign key refuses that.'),
            (2, 'ALTER TABLE %s VALIDATE CONSTRAINT %I', 'This reads the table, and blocks no writer.')) v (place, statement, why)
        WHERE c.conrelid = p.source AND c.contype = 'f' AND (k.on_delete, k.on_update) <> (c.confdeltype, c.confupdtype)
        UNION ALL
        SELECT 3, format('ALTER TABLE %s ADD CONSTRAINT insta_ids_not_null CHECK (%I IS NOT NULL) NOT VALID', p.source, p.key),
            'The key says the shard, so it cannot be NULL.'
        UNION ALL
        SELECT 4, format('ALTER TABLE %s VALIDATE CONSTRAINT insta_ids_not_null', p.source), 'This reads the table, and blocks no writer.'
        UNION ALL
        SELECT 5, format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', p.source, p.key), 'With the CHECK, this does not read the table.'
        UNION ALL
        SELECT 6, format('ALTER TABLE %s DROP CONSTRAINT insta_ids_not_null', p.source), 'It has done its work.'
    ) s (place, statement, why)
    ORDER BY p.number, s.place);
END;
