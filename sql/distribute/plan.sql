-- From one table to many shards: the plan, which changes nothing.

-- Returns the foreign keys between these tables that can say where a row goes: those with one column, to the primary key of another table.
CREATE OR REPLACE FUNCTION insta_ids_internal.links_between(tables regclass[])
    RETURNS SETOF insta_ids_internal.planned_link
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT c.conrelid::regclass, a.attname, a.attnum, a.attnotnull, c.confrelid::regclass
    FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
    WHERE c.contype = 'f' AND c.conparentid = 0 AND pg_catalog.cardinality(c.conkey) = 1 AND c.conrelid <> c.confrelid
        AND c.conrelid = ANY (tables::oid[]) AND c.confrelid = ANY (tables::oid[])
        AND insta_ids_internal.names_of_columns(c.confrelid, c.confkey) = insta_ids_internal.primary_key_of(c.confrelid)
        AND NOT insta_ids_internal.is_special_key(c.oid);
END;

-- Returns a table as it will be registered.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_source(source regclass, key name, parent regclass, number integer)
    RETURNS insta_ids_internal.distribution
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT ROW(source, c.relname, key, parent, number, 'registered', NULL, 0, NULL, transaction_timestamp(), NULL, NULL, false, NULL, NULL)::insta_ids_internal.distribution
    FROM pg_catalog.pg_class c WHERE c.oid = source;
END;

-- Returns the tables that go to the shards, in their order. `keys` has the column of a table by the table's name. A table to whose
-- primary key the column `key` of another one refers goes by its primary key. Any other table with this column goes by the column. A table
-- without it goes by its first foreign key to a table that goes, or the first one that is NOT NULL if it has one.
CREATE OR REPLACE FUNCTION insta_ids_internal.planned_sources(tables regclass[], key name, keys jsonb)
    RETURNS insta_ids_internal.distribution[]
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    planned insta_ids_internal.distribution[];
    before insta_ids_internal.distribution[];
    links CONSTANT insta_ids_internal.planned_link[] := ARRAY(SELECT insta_ids_internal.links_between(tables));
    reachable regclass[];
BEGIN
    planned := ARRAY(
        SELECT insta_ids_internal.planned_source(t.relation, k.name, NULL, 0)
        FROM unnest(tables) t (relation)
        JOIN pg_class c ON c.oid = t.relation
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = key AND a.attnum > 0 AND NOT a.attisdropped
        CROSS JOIN LATERAL (SELECT coalesce((keys ->> c.relname)::name, CASE WHEN EXISTS (
                SELECT FROM unnest(links) l WHERE l.parent = t.relation AND l."column" = key)
            THEN (insta_ids_internal.primary_key_of(t.relation))[1] ELSE a.attname END)) k (name)
        WHERE k.name IS NOT NULL);
    reachable := ARRAY(
        WITH RECURSIVE reached AS (
            SELECT p.source FROM unnest(planned) p
            UNION SELECT l.source FROM reached r JOIN unnest(links) l ON l.parent = r.source
        )
        SELECT r.source FROM reached r);
    LOOP
        before := planned;
        planned := planned || ARRAY(
            -- Where tables refer to each other, one of them cannot go by its first column.
            SELECT insta_ids_internal.planned_source(o.source, o."column", NULL, 0)
            FROM (
                SELECT l.*, row_number() OVER (PARTITION BY l.source ORDER BY l.is_not_null DESC, l.number) AS place
                FROM unnest(links) l WHERE l.parent = ANY (reachable)
            ) o
            CROSS JOIN LATERAL (SELECT ARRAY(SELECT p.source FROM unnest(planned) p)) p (sources)
            WHERE o.source <> ALL (p.sources) AND o.parent = ANY (p.sources)
            ORDER BY o.place, o.source LIMIT 1);
        EXIT WHEN planned = before;
    END LOOP;
    -- As order_distribution() finds them.
    LOOP
        before := planned;
        planned := ARRAY(
            SELECT insta_ids_internal.planned_source(p.source, p.key, (
                SELECT min(q.source::oid)::regclass
                FROM unnest(links) l JOIN unnest(before) q ON q.source = l.parent
                WHERE l.source = p.source AND l."column" = p.key
                    AND (insta_ids_internal.primary_key_of(q.source) <> ARRAY[q.key] OR q.parent IS NOT NULL)), 0)
            FROM unnest(before) p);
        EXIT WHEN planned = before;
    END LOOP;
    RETURN ARRAY(
        WITH parts AS MATERIALIZED (
            SELECT p.source, t.relation
            FROM unnest(planned) p CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(p.source)) t (relation)
        ), ordered AS (
            SELECT insta_ids_internal.tables_in_order(ARRAY(SELECT p.source FROM unnest(planned) p), array_agg(f.source), array_agg(r.source),
                array_agg(p.parent = r.source)) AS sources
            FROM pg_constraint c
            JOIN parts f ON f.relation = c.conrelid
            JOIN parts r ON r.relation = c.confrelid
            JOIN unnest(planned) p ON p.source = f.source
            WHERE c.contype = 'f' AND c.conparentid = 0
        )
        SELECT insta_ids_internal.planned_source(p.source, p.key, p.parent, array_position(o.sources, p.source))
        FROM ordered o CROSS JOIN unnest(planned) p ORDER BY array_position(o.sources, p.source));
END
$$;

-- Returns the first midnight whose IDs are larger than twice the largest number in a column that gets IDs of the shards, in UTC. If that is
-- not past yet, returns the first midnight whose IDs are larger than this number.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_since(planned insta_ids_internal.distribution[]) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    next record;
    found bigint;
    largest bigint := 0;
    since timestamptz;
BEGIN
    FOR next IN
        SELECT p.source, a.attname AS name
        FROM unnest(planned) p
        JOIN pg_attribute a ON a.attrelid = p.source AND a.attnum IN (SELECT insta_ids_internal.numbered_columns(p.source))
    LOOP
        EXECUTE format('SELECT max(s.%I)::bigint FROM %s s', next.name, next.source) INTO found;
        largest := greatest(largest, found);
    END LOOP;
    since := date_trunc('day', insta_ids_internal.id_time(least(largest, 4611686018427387903) * 2, layout), 'UTC') + interval '24 hours';
    IF since > clock_timestamp() THEN
        since := date_trunc('day', insta_ids_internal.id_time(largest, layout), 'UTC') + interval '24 hours';
    END IF;
    RETURN since;
END
$$;

-- Returns a call of add_migration(). `suffix` is the end of the migration's name, and `ahead` how many migrations come before it.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_of_migration(ddl text, suffix text, ahead integer, arguments text DEFAULT '') RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN format(E'SELECT insta_ids.add_migration(%L, %s%s)',
        lpad((ahead + 1 + (SELECT coalesce(max(m.number), 0) FROM insta_ids_internal.migration m))::text, 4, '0') || ' ' || suffix,
        CASE WHEN position('$ddl$' IN ddl) > 0 THEN quote_literal(ddl) ELSE format(E'$ddl$\n%s\n$ddl$', ddl) END, arguments);

-- Returns how many shards create_shards() and migrate() can take at once. A shard takes fewer locks than this while it is made, and other
-- sessions need some, too.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_batch(planned insta_ids_internal.distribution[]) RETURNS integer
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN greatest(1, least(50, insta_ids_internal.lock_capacity() / 2 / (
        SELECT sum(8 + 4 * (SELECT count(*) FROM pg_catalog.pg_index i WHERE i.indrelid = t.relation))
        FROM unnest(planned) p CROSS JOIN LATERAL unnest(insta_ids_internal.with_partitions(p.source)) t (relation))));

-- Returns the steps that make the tables of the shards ready for rows. `since` is NULL if the shards have the tables, of an earlier
-- distribution: then its foreign keys go away that would act while rows are copied.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_of_shards(planned insta_ids_internal.distribution[], since timestamptz)
    RETURNS TABLE (action text, statement text, why text)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards CONSTANT integer := (insta_ids_internal.require_config()).shards;
    batch CONSTANT integer := insta_ids_internal.plan_batch(planned);
    tables CONSTANT text := CASE WHEN since IS NOT NULL THEN insta_ids_internal.planned_migration(planned) END;
    former text;
BEGIN
    IF since IS NULL THEN
        former := (
            SELECT string_agg(format('ALTER TABLE %I DROP CONSTRAINT %I', f.target, c.conname), E';\n' ORDER BY f.number, c.conname)
            FROM unnest(planned) f
            JOIN pg_constraint c ON c.conrelid = to_regclass(insta_ids_internal.target_in(f.target, 0)) AND c.contype = 'f'
            LEFT JOIN unnest(planned) r ON c.confrelid = to_regclass(insta_ids_internal.target_in(r.target, 0))
            WHERE c.confdeltype <> ALL ('{a,r}') OR c.confupdtype <> ALL ('{a,r}') OR f.number > r.number IS NOT TRUE
                OR insta_ids_internal.names_of_columns(c.confrelid, c.confkey) <> insta_ids_internal.primary_key_of(c.confrelid));
        RETURN QUERY
        SELECT 'migration', insta_ids_internal.plan_of_migration(former, 'no foreign keys', 0), 'Foreign keys that would act while rows are copied.'
        WHERE former IS NOT NULL;
    ELSE
        RETURN QUERY
        SELECT 'migration', insta_ids_internal.plan_of_migration(tables, 'distributed tables', 0, format(', ids_since => %L', since)),
            'The tables of a shard. Numbers below the IDs of ids_since are accepted as they are.'
        WHERE NOT EXISTS (SELECT FROM insta_ids_internal.migration m WHERE btrim(m.ddl, E'\n') = tables);
    END IF;
    RETURN QUERY
    SELECT 'shards', format('CALL insta_ids.create_shards(0, %s, batch => %s)', shards - 1, batch), format('Creates %s shards on this server.', shards)
    WHERE (SELECT count(*) FROM insta_ids_internal.shard) < shards
    UNION ALL
    SELECT 'shards', 'SELECT insta_ids.unfence(s.shard) FROM insta_ids.shards s', 'distribute_abort() has fenced them.'
    WHERE since IS NULL AND EXISTS (SELECT FROM insta_ids_internal.fence)
    UNION ALL
    SELECT 'shards', format('CALL insta_ids.migrate(batch => %s)', batch), 'Applies the migration to the shards that exist.'
    WHERE EXISTS (SELECT FROM insta_ids_internal.shard) AND (since IS NOT NULL OR former IS NOT NULL);
END
$$;

-- Returns the steps that bring the rows of the planned tables to the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.plan_of_rows(planned insta_ids_internal.distribution[], migrations integer)
    RETURNS TABLE (action text, statement text, why text, rows bigint, bytes bigint)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards CONSTANT integer := (insta_ids_internal.require_config()).shards;
    later CONSTANT text := (
        SELECT string_agg(format('ALTER TABLE %I ADD %s', p.target, insta_ids_internal.planned_key(k.key)), E';\n')
        FROM insta_ids_internal.planned_keys(planned) k JOIN unnest(planned) p ON p.source = (k.key).relation
        WHERE k.fate = 'after the switch');
BEGIN
    RETURN QUERY
    WITH sizes AS MATERIALIZED (
        SELECT p.number, insta_ids_internal.estimated_rows(p.source) AS rows, (
            SELECT sum(pg_total_relation_size(t)) FROM unnest(insta_ids_internal.with_partitions(p.source)) t)::bigint AS bytes
        FROM unnest(planned) p
    )
    (SELECT 'register', format('SELECT insta_ids.distribute_table(%L, %L)', p.source, p.key),
        CASE WHEN p.parent IS NULL
            THEN format('A row goes to the shard ' || replace(insta_ids_internal.shard_call(insta_ids_internal.base_type(p.source, p.key)), 'pg_catalog.', ''), p.key, shards)
            ELSE format('A row goes with the row of table %s to which its column "%s" refers.', p.parent, p.key) END, z.rows, z.bytes
    FROM unnest(planned) p JOIN sizes z ON z.number = p.number ORDER BY p.number)
    UNION ALL
    SELECT 'copy', 'CALL insta_ids.distribute()', format('Copies and compares all rows while clients work: about %s at 100,000 rows/s, with %s of disk until the finish and %s of WAL.',
            make_interval(secs => 1 + ceil(sum(z.rows) / 100000.0)::integer), pg_size_pretty(sum(z.bytes)), pg_size_pretty(4 * sum(z.bytes))),
        sum(z.rows)::bigint, sum(z.bytes)::bigint
    FROM sizes z;
    RETURN QUERY
    SELECT 'switch', 'SELECT insta_ids.distribute_switch()', 'Writers wait for a fraction of a second, and write to the shards from then on.', NULL::bigint, NULL::bigint
    UNION ALL
    SELECT 'keys', insta_ids_internal.plan_of_migration(later, 'foreign keys', migrations), 'Foreign keys that would act while rows are copied.', NULL, NULL
    WHERE later IS NOT NULL
    UNION ALL
    SELECT 'keys', format('CALL insta_ids.migrate(batch => %s)', insta_ids_internal.plan_batch(planned)), 'Adds these foreign keys to the shards.', NULL, NULL
    WHERE later IS NOT NULL
    UNION ALL
    SELECT 'finish', 'SELECT insta_ids.distribute_finish()', 'Drops the old tables. There is no way back after it.', NULL, NULL;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.distribute_plan(
        tables regclass[] DEFAULT NULL, key name DEFAULT NULL, schema regnamespace DEFAULT NULL, keys jsonb DEFAULT '{}')
    RETURNS TABLE (step integer, action text, statement text, why text, rows bigint, bytes bigint)
    -- The texts must mean the same in all sessions.
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO'
    SET intervalstyle = 'postgres' SET extra_float_digits = 1 SET bytea_output = 'hex'
AS $$
DECLARE
    chosen CONSTANT regclass[] := ARRAY(
        SELECT c.oid::regclass FROM pg_class c
        WHERE c.oid = ANY (tables::oid[]) OR c.relnamespace = schema AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        ORDER BY c.oid::regclass::text);
    planned insta_ids_internal.distribution[];
    since timestamptz;
    unknown text;
BEGIN
    IF num_nulls(key, keys) > 0 OR num_nonnulls(tables, schema) <> 1
        OR EXISTS (SELECT FROM unnest(tables) t WHERE t IS NULL)
    THEN
        RAISE null_value_not_allowed USING MESSAGE = 'key, and either tables or schema, must be given';
    ELSIF jsonb_typeof(keys) <> 'object' OR jsonb_path_exists(keys, 'strict $.* ? (@.type() != "string")') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys is no JSON object of texts',
            DETAIL = 'It has the column of a table by the table''s name: {"likes": "photo_id"}.';
    ELSIF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'registered') THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'tables are being distributed already',
            HINT = 'See insta_ids.distributions.';
    END IF;
    PERFORM insta_ids_internal.require_config();
    unknown := (SELECT min(c.oid::regclass::text) FROM pg_class c WHERE c.oid = ANY (chosen::oid[]) AND c.relkind <> ALL ('{r,p}'));
    IF unknown IS NOT NULL THEN
        RAISE wrong_object_type USING MESSAGE = format('%s is no ordinary or partitioned table', unknown);
    END IF;
    unknown := (
        SELECT min(k.name) FROM jsonb_object_keys(keys) k (name)
        WHERE k.name NOT IN (SELECT c.relname FROM pg_class c WHERE c.oid = ANY (chosen::oid[])));
    IF unknown IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('keys has table "%s", which is none of the tables', unknown);
    END IF;
    planned := insta_ids_internal.planned_sources(chosen, key, keys);
    IF planned = '{}' THEN
        RAISE undefined_column USING MESSAGE = format('no table has column "%s"', key);
    END IF;
    PERFORM insta_ids_internal.require_distributable(planned),
        -- The plan alters these tables, too.
        insta_ids_internal.require_own_code(ARRAY(SELECT n.relation FROM insta_ids_internal.narrow_columns(planned) n)::oid[]);
    IF EXISTS (SELECT FROM unnest(planned) p WHERE to_regclass(insta_ids_internal.target_in(p.target, 0)) IS NULL) THEN
        since := insta_ids_internal.plan_since(planned);
    END IF;
    RETURN QUERY
    WITH before AS MATERIALIZED (
        SELECT * FROM insta_ids_internal.plan_of_shards(planned, since) WITH ORDINALITY s (action, statement, why, place)
    )
    SELECT row_number() OVER (ORDER BY r.part, r.place)::integer, r.action, r.statement, r.why, r.rows, r.bytes
    FROM (
        SELECT 1 AS part, o.place, 'obstacle' AS action, NULL AS statement, o.reason AS why, NULL::bigint AS rows, NULL::bigint AS bytes
        FROM insta_ids_internal.plan_obstacles(planned, since) WITH ORDINALITY o (reason, place)
        UNION ALL
        SELECT 2, n.place, n.action, NULL, n.why, NULL, NULL
        FROM insta_ids_internal.plan_notes(chosen, planned) WITH ORDINALITY n (action, why, place)
        UNION ALL
        SELECT 3, p.place, 'prepare', p.statement, p.why, NULL, NULL
        FROM insta_ids_internal.plan_preparations(planned) WITH ORDINALITY p (statement, why, place)
        UNION ALL
        SELECT 4, b.place, b.action, b.statement, b.why, NULL, NULL FROM before b
        UNION ALL
        SELECT 5, s.place, s.action, s.statement, s.why, s.rows, s.bytes
        FROM insta_ids_internal.plan_of_rows(planned, (SELECT count(*) FROM before b WHERE b.action = 'migration')::integer)
            WITH ORDINALITY s (action, statement, why, rows, bytes, place)
    ) r;
END
$$;
COMMENT ON FUNCTION insta_ids.distribute_plan(regclass[], name, regnamespace, jsonb) IS
    'the steps that distribute tables by a key, as statements to run in this order; changes nothing';
