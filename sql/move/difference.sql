-- Moves, on the target: which rows differ.

-- Returns how many rows of a table are only on the connected node, how many are only here, and the hashes of both. A row that is
-- different counts for both. The hashes are NULL if there are more than a million.
CREATE OR REPLACE FUNCTION insta_ids_internal.different_hashes(
        relation text, connection text, OUT there bigint, OUT here bigint, OUT hashes_there bigint[], OUT hashes_here bigint[])
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_ask_node(
        format('SELECT insta_ids_internal.row_hashes(%L::regclass)', relation), connection);
    -- Groups of more hashes than memory holds go to disk. EXCEPT would keep all of them in memory.
    WITH different AS MATERIALIZED (
        SELECT r.hash, sum(r.more) AS more
        FROM (
            SELECT r::bigint, 1 FROM insta_ids_internal.rows_from_node(connection) r
            UNION ALL
            SELECT r, -1 FROM insta_ids_internal.row_hashes(relation::regclass) r
        ) r (hash, more)
        GROUP BY r.hash HAVING sum(r.more) <> 0
    )
    SELECT coalesce(sum(d.more) FILTER (WHERE d.more > 0), 0), coalesce(-sum(d.more) FILTER (WHERE d.more < 0), 0),
           CASE WHEN count(*) <= 1000000 THEN ARRAY(SELECT d.hash FROM different d WHERE d.more > 0) END,
           CASE WHEN count(*) <= 1000000 THEN ARRAY(SELECT d.hash FROM different d WHERE d.more < 0) END
    INTO there, here, hashes_there, hashes_here
    FROM different d;
END
$$;

-- Returns the columns of a table's replica identity, or none.
CREATE OR REPLACE FUNCTION insta_ids_internal.key_columns(relation regclass) RETURNS text[]
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN ARRAY(
        SELECT a.attname::text
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k (number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = relation AND i.indexrelid = pg_get_replica_identity_index(relation) ORDER BY k.place);

-- Returns the keys of the rows of a table that have one of these hashes, such as "(id) = (5)". A row without a key has NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.keys_of_hashes(relation regclass, hashes bigint[]) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key CONSTANT text[] := insta_ids_internal.key_columns(relation);
BEGIN
    RETURN QUERY
    SELECT CASE WHEN key <> '{}' THEN format('(%s) = (%s)', array_to_string(key, ', '), r) END
    FROM insta_ids_internal.rows_of_hashes(relation, key, hashes) r;
END
$$;

-- Returns the keys of the rows with these hashes, and whether each is "only there", "only here" or "different".
CREATE OR REPLACE FUNCTION insta_ids_internal.different_keys(
        relation text, connection text, hashes_there bigint[], hashes_here bigint[])
    RETURNS TABLE (key text, difference text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.begin_to_ask_node(
        format('SELECT insta_ids_internal.keys_of_hashes(%L::regclass, %L::bigint[])', relation, hashes_there), connection);
    RETURN QUERY
    SELECT coalesce(t.key, h.key),
           CASE WHEN h.is_here AND t.is_there THEN 'different' WHEN h.is_here THEN 'only here' ELSE 'only there' END
    FROM (SELECT r, true FROM insta_ids_internal.rows_from_node(connection) r) t (key, is_there)
    FULL JOIN (SELECT r, true FROM insta_ids_internal.keys_of_hashes(relation::regclass, hashes_here) r) h (key, is_here) ON h.key = t.key
    ORDER BY 1, 2;
END
$$;

-- Returns up to ten of these keys as a sentence for an error, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_differences(
        relation text, connection text, hashes_there bigint[], hashes_here bigint[])
    RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT ' For example, ' || string_agg(k.difference || ': ' || k.keys, '; ' ORDER BY k.difference) || '.'
    FROM (
        SELECT d.difference, string_agg("left"(d.key, 100), ', ' ORDER BY d.key) AS keys
        FROM (SELECT * FROM insta_ids_internal.different_keys(relation, connection, hashes_there, hashes_here) LIMIT 10) d
        GROUP BY d.difference
    ) k;
END;

-- Returns an open move of this server whose rows are all copied. Raises an error if there is none.
CREATE OR REPLACE FUNCTION insta_ids_internal.copied_move(move name) RETURNS insta_ids_internal.move
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := (SELECT m FROM insta_ids_internal.move m WHERE m.name = move AND m.step = 'copying');
BEGIN
    IF moving.name IS NULL THEN
        RAISE undefined_object USING MESSAGE = format('no move "%s" copies rows to this node', move), HINT = 'See insta_ids.moves.';
    END IF;
    PERFORM insta_ids_internal.require_own_move(moving);
    IF NOT insta_ids_internal.move_copied(move) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('move "%s" still copies rows', move),
            HINT = 'Call again when insta_ids.moves says that all tables are copied.';
    END IF;
    RETURN moving;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.move_diff(first integer, last integer) RETURNS TABLE (relation regclass, key text, difference text)
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moving CONSTANT insta_ids_internal.move := insta_ids_internal.copied_move(format('insta_ids_%s_%s', first, last));
    connection CONSTANT text := 'insta_ids_difference';
    next text;
    once record;
    again record;
    lsn pg_lsn;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.connect_node(moving.from_node, connection);
    FOREACH next IN ARRAY insta_ids_internal.tables_of(moving.shards) LOOP
        SELECT * INTO once FROM insta_ids_internal.different_hashes(next, connection);
        CONTINUE WHEN (once.there, once.here) = (0, 0);
        -- Some rows are only on their way. Those that are the same later, and still differ, are not.
        lsn := insta_ids_internal.ask_node('SELECT to_jsonb(pg_current_wal_lsn())', connection) #>> '{}';
        WHILE NOT insta_ids_internal.has_applied(moving.name, lsn) LOOP
            PERFORM insta_ids_internal.move_copied(moving.name), insta_ids_internal.wait_ms(20);
        END LOOP;
        SELECT * INTO again FROM insta_ids_internal.different_hashes(next, connection);
        IF once.hashes_there IS NULL OR again.hashes_there IS NULL THEN
            RAISE program_limit_exceeded USING MESSAGE = format('more than 1000000 rows of table %s differ', next),
                HINT = insta_ids_internal.hint_to_abort(moving);
        END IF;
        RETURN QUERY
        SELECT next::regclass, k.key, k.difference
        FROM insta_ids_internal.different_keys(next, connection,
            ARRAY(SELECT unnest(once.hashes_there) INTERSECT SELECT unnest(again.hashes_there)),
            ARRAY(SELECT unnest(once.hashes_here) INTERSECT SELECT unnest(again.hashes_here))) k;
    END LOOP;
    PERFORM insta_ids_internal.disconnect_node(connection);
EXCEPTION WHEN query_canceled OR OTHERS THEN
    PERFORM insta_ids_internal.disconnect_node(connection);
    RAISE;
END
$$;
COMMENT ON FUNCTION insta_ids.move_diff(integer, integer) IS
    'compares the rows of a move on both servers while writers go on, and returns the keys of those that differ';
