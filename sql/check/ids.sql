-- Checks of sequences and ids.

-- Sequences

-- Returns the sequences from which next_id mints ids of shards, in defaults and in functions of the shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_sequences() RETURNS TABLE (shard integer, sequence oid)
    STABLE PARALLEL SAFE LANGUAGE sql SET jit = off
BEGIN ATOMIC
    WITH RECURSIVE minting AS (
        SELECT f.oid FROM unnest(insta_ids_internal.id_functions()) f (oid)
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
END;

-- Returns the last values of the sequences that the role may read. They are NULL if reading failed. Each part is read in a
-- subtransaction that is rolled back, so no lock remains.
CREATE OR REPLACE FUNCTION insta_ids_internal.last_values(sequences oid[]) RETURNS TABLE (sequence oid, last_value bigint)
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

-- Returns the sequences from which ids of shards are minted: their shards, and how many of their values are used and available.
-- `runs_out` assumes the average speed since the first of the shards was created, or for one day.
CREATE OR REPLACE FUNCTION insta_ids_internal.sequence_budget()
    RETURNS TABLE (sequence oid, name text, shards integer[], used numeric, available numeric, runs_out timestamptz)
    STABLE PARALLEL UNSAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp SET jit = off
    SET enable_nestloop = off
BEGIN ATOMIC
    WITH sequences AS MATERIALIZED (
        SELECT i.sequence, min(h.created_at) AS created_at, array_agg(i.shard ORDER BY i.shard) AS shards
        FROM insta_ids_internal.id_sequences() i JOIN insta_ids_internal.shard h ON h.shard = i.shard GROUP BY i.sequence
    )
    SELECT i.sequence, i.sequence::regclass::text, i.shards, u.used, a.available,
           CASE WHEN u.used > 0 AND r.seconds < 1e11 THEN now() + make_interval(secs => r.seconds::float8) END
    FROM sequences i
    JOIN pg_sequence q ON q.seqrelid = i.sequence
    LEFT JOIN insta_ids_internal.last_values(ARRAY(SELECT s.sequence FROM sequences s)) v ON v.sequence = i.sequence
    CROSS JOIN LATERAL (
        SELECT floor(abs(v.last_value::numeric - q.seqstart) / abs(q.seqincrement::numeric)) AS used
    ) u
    CROSS JOIN LATERAL (
        -- Negative values would be errors, so the values below 0 are not available.
        SELECT floor(abs(CASE WHEN q.seqincrement > 0 THEN q.seqmax ELSE greatest(q.seqmin, 0) END::numeric - q.seqstart)
            / abs(q.seqincrement::numeric)) AS available
    ) a
    CROSS JOIN LATERAL (
        SELECT (a.available - u.used) * greatest(extract(epoch FROM now() - i.created_at), 86400) / nullif(u.used, 0)
            AS seconds
    ) r;
END;

-- Returns findings about sequences of ids.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_sequences() RETURNS SETOF insta_ids.finding
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT f.severity, f.code, s.name, f.detail, f.hint
    FROM insta_ids_internal.sequence_budget() s
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

-- Returns the sum of survey_ids over a table and its partitions. If every row is read, it includes child tables. `unread` says
-- which one does not have its rows in its own heap, and why.
CREATE OR REPLACE FUNCTION insta_ids_internal.survey_column(
        relation oid, "column" name, shard integer, layout @extschema@.id_layout, since bigint, beyond bigint, every_row boolean,
        OUT ids bigint, OUT oldest bigint, OUT newest bigint, OUT negative bigint, OUT a_negative bigint,
        OUT foreign_ids bigint, OUT a_foreign_id bigint, OUT future bigint, OUT newest_future bigint, OUT unread text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH RECURSIVE tree AS (
        SELECT c.oid, every_row OR c.relkind = 'p' AS has_children, insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam) AS what
        FROM pg_class c WHERE c.oid = relation
        UNION
        SELECT c.oid, true, insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam)
        FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid
        -- A session cannot read temporary tables of other sessions.
        WHERE t.has_children AND (c.relpersistence <> 't' OR c.relnamespace = pg_my_temp_schema())
    )
    SELECT sum(s.ids), min(s.oldest), max(s.newest), sum(s.negative), max(s.a_negative), sum(s.foreign_ids), min(s.a_foreign_id),
           sum(s.future), max(s.newest_future),
           (array_agg(format('%s is a %s', t.oid::regclass, t.what) ORDER BY t.oid) FILTER (WHERE t.what IS NOT NULL))[1]
    INTO ids, oldest, newest, negative, a_negative, foreign_ids, a_foreign_id, future, newest_future, unread
    FROM tree t
    -- Without a table, it returns no row.
    LEFT JOIN LATERAL insta_ids_internal.survey_ids(CASE WHEN t.what IS NULL THEN t.oid END, "column"::text, shard, layout, since, beyond, every_row) s ON true;
END
$$;

-- Returns the oldest and newest id of a column, and findings about ids that are negative, of other shards, of the future, or not read.
-- Ids below `since` may be of any shard. `until` is a time that ids have not reached. Unless `every_row` is true, it reads only
-- the oldest and newest id, from an index. Raises an error unless the caller is a member of the role that owns the table.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_ids_of(
        relation regclass, "column" name, shard integer, since bigint, until timestamptz, every_row boolean,
        OUT oldest bigint, OUT newest bigint, OUT findings insta_ids.finding[])
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    first_beyond CONSTANT bigint := insta_ids_internal.id_min(until, layout);
    what CONSTANT text := CASE WHEN every_row THEN 'ids' ELSE 'ids at the ends of its index' END;
    found CONSTANT record := insta_ids_internal.survey_column(relation, "column", shard, layout, since, first_beyond, every_row);
    object CONSTANT text := format('%s.%I', relation, "column");
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = relation);
    -- Child tables may lack the index.
    source CONSTANT text := CASE
        WHEN every_row OR (SELECT c.relkind FROM pg_class c WHERE c.oid = relation) = 'p' THEN '' ELSE 'ONLY ' END || relation;
BEGIN
    oldest := found.oldest;
    newest := found.newest;
    findings := '{}';
    IF found.negative > 0 THEN
        findings := findings || ROW('error', 'negative_ids', object,
            format('Of %s %s, %s are negative, as %s is.', found.ids, what, found.negative, found.a_negative),
            insta_ids_internal.for_owner(owner, relation,
                format('Give them new ids: UPDATE %s SET %I = DEFAULT WHERE %2$I OPERATOR(pg_catalog.<) 0', source, "column"))
            )::insta_ids.finding;
    END IF;
    IF found.foreign_ids > 0 THEN
        findings := findings || ROW('error', 'foreign_ids', object,
            format('Of %s %s, %s are of other shards, as %s is, of shard %s.', found.ids, what, found.foreign_ids,
                found.a_foreign_id, insta_ids_internal.id_shard(found.a_foreign_id, layout)),
            insta_ids_internal.for_owner(owner, relation, format(
                'Move them to their shards, or give them new ids: UPDATE %1$s SET %2$I = DEFAULT'
                    || ' WHERE %6$s%3$s.id_shard(%2$I::pg_catalog.int8%4$s) OPERATOR(pg_catalog.<>) %5$s', source, "column",
                insta_ids_internal.extension_schema(), insta_ids_internal.layout_argument(layout), shard,
                CASE WHEN since > 0 THEN format('%I OPERATOR(pg_catalog.>=) %s AND ', "column", since) END)))::insta_ids.finding;
    END IF;
    IF found.future > 0 THEN
        findings := findings || ROW('error', 'future_ids', object,
            format('Of %s %s, %s are of the future, to %s; they can be minted again when that time comes.',
                found.ids, what, found.future, insta_ids_internal.id_time(found.newest_future, layout)),
            CASE WHEN insta_ids_internal.id_time(found.newest_future, layout) + interval '2 s'
                    < clock_timestamp() + current_setting('insta_ids.clock_tolerance')::interval
                THEN format('As a superuser: SELECT insta_ids.advance_clock(%L)',
                    insta_ids_internal.id_time(found.newest_future, layout) + interval '2 s')
                ELSE insta_ids_internal.for_owner(owner, relation, format(
                    'Give them new ids: UPDATE %s SET %I = DEFAULT WHERE %2$I OPERATOR(pg_catalog.>=) %s', source, "column", first_beyond))
            END)::insta_ids.finding;
    END IF;
    IF found.unread IS NOT NULL THEN
        findings := findings || ROW('notice', 'not_read', object, format('Not all ids were read, because %s.', found.unread),
            'Read them by a query.')::insta_ids.finding;
    END IF;
END
$$;

-- Returns a time that ids of this server have not reached.
CREATE OR REPLACE FUNCTION insta_ids_internal.time_not_reached() RETURNS timestamptz
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Ids are ahead of this time by at most insta_ids.max_ahead, and that is at most a second.
    RETURN (SELECT greatest(c.system_time, c.id_time) + interval '1 s' FROM insta_ids.clock() c);
EXCEPTION
    -- If this server cannot mint, its ids came from another server, with another clock.
    WHEN object_not_in_prerequisite_state THEN RETURN clock_timestamp() + interval '2 s';
END
$$;

-- Returns findings about the oldest and newest ids of up to 200 random columns.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_ids() RETURNS SETOF insta_ids.finding
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until CONSTANT timestamptz := insta_ids_internal.time_not_reached();
    sample CONSTANT integer := 200;
    shards CONSTANT integer[] := ARRAY(
        SELECT s.shard FROM insta_ids_internal.shard_schema s WHERE s.oid IS NOT NULL ORDER BY random() LIMIT sample);
    columns CONSTANT text := $query$
        SELECT ARRAY[m.relation::oid::text, m."column", m.shard::text, m.since::text]
        FROM insta_ids_internal.minting_columns($1) m
        JOIN pg_class c ON c.oid = m.relation AND c.relkind IN ('r', 'p') AND NOT c.relispartition $query$;
    minting record;
    unread text[] := '{}';
BEGIN
    FOR minting IN
        SELECT p.line[1]::oid::regclass AS relation, p.line[2]::name AS "column", p.line[3]::integer AS shard, p.line[4]::bigint AS since
        FROM insta_ids_internal.read_parts(shards, columns) p WHERE p.line IS NOT NULL ORDER BY random() LIMIT sample
    LOOP
        BEGIN
            RETURN QUERY
            SELECT f.*
            FROM insta_ids_internal.check_ids_of(minting.relation, minting."column", minting.shard, minting.since, until, false) c,
                unnest(c.findings) f
            -- check_tables() reports these once for all shards.
            WHERE f.code <> 'not_read';
        EXCEPTION WHEN OTHERS THEN
            unread := unread || format('%s: %s', minting.relation, SQLERRM);
        END;
    END LOOP;
    RETURN QUERY SELECT f.* FROM insta_ids_internal.unread_finding('Tables whose ids', unread) f;
END
$$;
