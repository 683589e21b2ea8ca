-- Shards: each is a schema with a sequence, the functions next_id() and the objects of all migrations.

-- Creates the sequence and the next_id functions of a shard, except those that exist.
CREATE OR REPLACE FUNCTION insta_ids_internal.create_shard_functions(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    layout_argument text := insta_ids_internal.layout_argument((insta_ids_internal.require_config()).layout);
BEGIN
    IF to_regclass(format('%I.table_id_seq', schema)) IS NULL THEN
        EXECUTE format('CREATE SEQUENCE %I.table_id_seq', schema);
    END IF;
    IF to_regprocedure(format('%I.next_id()', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id() RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql'
            || ' RETURN %5$s.next_id(%2$s, %3$L::pg_catalog.regclass%4$s)',
            schema, shard, format('%I.table_id_seq', schema), layout_argument, insta_ids_internal.extension_schema());
    END IF;
    IF to_regprocedure(format('%I.next_id(regclass)', schema)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION %1$I.next_id(seq_name regclass) RETURNS bigint'
            || ' VOLATILE PARALLEL UNSAFE LANGUAGE sql RETURN %4$s.next_id(%2$s, seq_name%3$s)',
            schema, shard, layout_argument, insta_ids_internal.extension_schema());
    END IF;
END
$$;

-- Raises the error for a schema that has the name of a shard's and is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_schema(schema name, shard integer) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE duplicate_schema USING MESSAGE = format('schema "%s" already exists', schema),
        DETAIL = format('It is not one that insta_ids made for shard %s.', shard),
        HINT = 'Call insta_ids.adopt() if it runs the published function; else rename or drop it.';
END
$$;

-- Creates the schema of a shard and records the shard. Returns false if the shard exists. Raises an error if the shard moves, if a
-- departed shard has left its schema here, or if a schema of that name is no shard.
CREATE OR REPLACE FUNCTION insta_ids_internal.create_shard_schema(shard integer) RETURNS boolean
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
BEGIN
    PERFORM insta_ids_internal.require_not_moving(shard, shard), insta_ids_internal.require_no_remains(shard, shard);
    -- Waits for another session that drops the shard.
    PERFORM FROM insta_ids_internal.shard s WHERE s.shard = create_shard_schema.shard FOR KEY SHARE;
    IF FOUND THEN
        RETURN false;
    END IF;
    -- The schema comes first, because a trigger refuses a row about a missing schema.
    BEGIN
        -- Waits for another session that creates the shard.
        EXECUTE format('CREATE SCHEMA %I', schema);
    EXCEPTION WHEN duplicate_schema OR unique_violation THEN
        IF EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = create_shard_schema.shard) THEN
            RETURN false;
        END IF;
        PERFORM insta_ids_internal.refuse_schema(schema, shard);
    END;
    INSERT INTO insta_ids_internal.shard (shard) VALUES (create_shard_schema.shard);
    RETURN true;
END
$$;

-- Creates shards and applies all migrations to them. Returns those that did not exist. `path` is the caller's search_path. Raises
-- the errors of create_shard_schema, and an error if a migration fails.
CREATE OR REPLACE FUNCTION insta_ids_internal.make_shards(shards integer[], path text) RETURNS integer[]
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    after_schema CONSTANT text := insta_ids_internal.path_after_schema(path);
    made integer[] := '{}';
    shard integer;
    outcome record;
BEGIN
    -- No other session assigns or offers shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    -- All schemas come first, because after each new schema PostgreSQL plans all statements of the session anew.
    FOREACH shard IN ARRAY shards LOOP
        IF insta_ids_internal.create_shard_schema(shard) THEN
            made := made || shard;
        END IF;
    END LOOP;
    FOREACH shard IN ARRAY made LOOP
        PERFORM insta_ids_internal.create_shard_functions(shard);
        PERFORM insta_ids_internal.require_not_in_citus(ARRAY[shard],
            'Create the shard after SET citus.enable_schema_based_sharding = off, then call citus_schema_distribute().'::text);
        SELECT * INTO outcome FROM insta_ids_internal.apply_migrations(shard, after_schema, true, NULL);
        IF outcome.failed IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = outcome.code,
                MESSAGE = outcome.message,
                DETAIL = concat_ws(E'\n', nullif(outcome.detail, ''), nullif(outcome.hint, ''),
                    format('It is %s of migration "%s", in shard %s.',
                        coalesce('statement ' || outcome.statement, 'the end'), outcome.name, shard));
        END IF;
    END LOOP;
    RETURN made;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.create_shard(shard integer) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_placed_here(shard);
    IF insta_ids_internal.make_shards(ARRAY[shard], pg_catalog.current_setting('search_path')) OPERATOR(pg_catalog.=) '{}' THEN
        RAISE duplicate_object USING MESSAGE = pg_catalog.format('shard %s already exists', shard),
            HINT = 'If its schema is missing, insta_ids.drop_shard() forgets it.';
    END IF;
    RETURN insta_ids.schema_of(shard);
END
$$;
COMMENT ON FUNCTION insta_ids.create_shard(integer) IS 'creates a shard, with every migration, and returns its schema';

-- Returns the shards of a range that do not exist. Leaves out shards that the map assigns to other nodes. Raises an error if a
-- schema has the name of one of them.
CREATE OR REPLACE FUNCTION insta_ids_internal.shards_to_create(first integer, last integer, batch integer) RETURNS integer[]
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    todo integer[];
    taken record;
BEGIN
    IF num_nulls(first, last) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'first and last shard must be given';
    END IF;
    PERFORM insta_ids_internal.require_range(first, last, batch);
    todo := ARRAY(
        SELECT n FROM generate_series(first, last) n
        WHERE NOT EXISTS (SELECT FROM insta_ids_internal.shard s WHERE s.shard = n)
            AND insta_ids_internal.is_placed_here(n)
        ORDER BY n);
    SELECT n AS shard, s.nspname AS schema INTO taken
    FROM insta_ids_internal.config c, unnest(todo) n, pg_namespace s
    WHERE s.nspname = (c.prefix || n::text)::name
        -- Another session may have created the shard after the statement above.
        AND NOT EXISTS (SELECT FROM insta_ids_internal.shard x WHERE x.shard = n)
    ORDER BY n LIMIT 1;
    IF FOUND THEN
        PERFORM insta_ids_internal.refuse_schema(taken.schema, taken.shard);
    END IF;
    RETURN todo;
END
$$;

-- Creates the next shards of `todo`, of which `done` are done, up to a multiple of `batch`, and adds them to `done`. Raises an
-- error if the first shard shows that the server has not enough locks.
CREATE OR REPLACE PROCEDURE insta_ids_internal.create_batch(todo integer[], batch integer, path text, INOUT done integer)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last CONSTANT integer := least((done / batch + 1) * batch, cardinality(todo));
    next integer;
BEGIN
    WHILE done < last LOOP
        -- The first shard is made alone, which shows how many locks a shard takes.
        next := CASE done WHEN 0 THEN 1 ELSE last END;
        -- The lock is a statement of its own, because a statement sees only what was committed before it began.
        LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
        PERFORM insta_ids_internal.require_placed_here(n) FROM unnest(todo[done + 1:next]) n;
        PERFORM insta_ids_internal.make_shards(todo[done + 1:next], path);
        done := next;
        IF done = 1 THEN
            PERFORM insta_ids_internal.require_locks(least(batch, cardinality(todo)));
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.create_shards(first integer, last integer, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    total integer;
    done integer := 0;
BEGIN
    -- The session's default isolation level may be stricter, and then the first transaction would not see new commits.
    CALL insta_ids_internal.new_transaction();
    todo := insta_ids_internal.shards_to_create(first, last, batch);
    total := pg_catalog.cardinality(todo);
    CALL insta_ids_internal.commit_batch('create_shards', total, done, 0);
    WHILE done OPERATOR(pg_catalog.<) total LOOP
        CALL insta_ids_internal.create_batch(todo, batch, path, done);
        CALL insta_ids_internal.commit_batch('create_shards', total, done, 0);
    END LOOP;
    -- If a procedure called this one, its transaction goes on with the caller's search_path.
    PERFORM pg_catalog.set_config('search_path', path, true);
END
$$;
COMMENT ON PROCEDURE insta_ids.create_shards(integer, integer, integer) IS
    'creates the shards of a range that are not there yet';

CREATE OR REPLACE VIEW insta_ids_internal.shards AS
SELECT s.shard, s.schema, a.node,
       CASE
           WHEN s.state = 'moved' THEN s.state
           WHEN n.oid IS NULL THEN 'missing'
           WHEN f.shard IS NULL THEN 'active'
           WHEN NOT f.is_closed THEN 'moving'
           WHEN v.step IN ('prepared', 'copying') THEN 'arriving'
           ELSE 'fenced'
       END AS state,
       coalesce(m.applied, 0) AS applied, t.migrations - coalesce(m.tried, 0) AS pending,
       coalesce(m.tried - m.applied, 0) AS failed,
       coalesce(r.tables, 0) AS tables, r.rows, coalesce(r.bytes, 0) AS bytes
FROM (
    SELECT s.shard, s.schema, NULL AS state FROM insta_ids_internal.shard_schema s
    UNION ALL
    SELECT d.shard, d.schema, 'moved' FROM insta_ids_internal.departed_shard d WHERE d.schema IS NOT NULL
) s
LEFT JOIN insta_ids_internal.assignment a ON s.shard BETWEEN a.first AND a.last
LEFT JOIN insta_ids_internal.fence f ON f.shard = s.shard
LEFT JOIN insta_ids_internal.move v ON s.shard = ANY (v.shards)
CROSS JOIN (SELECT count(*) AS migrations FROM insta_ids_internal.migration) t
LEFT JOIN (
    SELECT a.shard, count(*) AS tried, count(*) FILTER (WHERE a.message IS NULL) AS applied
    FROM insta_ids_internal.shard_migration a GROUP BY a.shard
) m ON m.shard = s.shard
LEFT JOIN pg_namespace n ON n.nspname = s.schema
-- Rows and bytes are estimates of the last VACUUM or ANALYZE of each table, from pg_class. Citus counts rows of other tables.
LEFT JOIN (
    SELECT c.relnamespace,
           count(*) FILTER (WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition) AS tables,
           CASE WHEN bool_or(insta_ids_internal.not_in_heap(c.oid, c.relkind, c.relam) = 'Citus table') IS NOT TRUE
               THEN sum(c.reltuples) FILTER (WHERE c.relkind IN ('r', 'f') AND c.reltuples >= 0)::bigint END AS rows,
           sum((c.relpages + coalesce(o.relpages, 0))::bigint * current_setting('block_size')::bigint)::bigint AS bytes
    FROM pg_class c
    LEFT JOIN pg_class o ON o.oid = c.reltoastrelid
    GROUP BY c.relnamespace
) r ON r.relnamespace = n.oid;
CREATE OR REPLACE VIEW insta_ids.shards AS SELECT * FROM insta_ids_internal.shards;
COMMENT ON VIEW insta_ids.shards IS 'the shards of this database: their schemas, migrations and sizes';
