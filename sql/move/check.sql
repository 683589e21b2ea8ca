-- Moves, on the target: what a move would do, without doing it.

-- Tries the first steps of a move. The source really offers the shards, and this server really creates them, in transactions that
-- are rolled back. So a finding is what the move itself would raise. `path` is the search_path of the migrations.
CREATE OR REPLACE FUNCTION insta_ids_internal.check_move(
        first integer, last integer, from_node name, path text, ignore_dependents boolean)
    RETURNS SETOF insta_ids.finding
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT name := insta_ids_internal.require_own_node();
    offer jsonb;
    tables bigint;
    standby jsonb;
    lead interval;
    failure insta_ids_internal.failure;
BEGIN
    BEGIN
        PERFORM insta_ids_internal.connect_node(from_node);
        offer := insta_ids_internal.ask_node(format(
            'BEGIN; SELECT insta_ids_internal.move_offer(%s, %s, %L, ignore_dependents => %L)', first, last, here, ignore_dependents));
        lead := (insta_ids_internal.ask_node('SELECT to_jsonb(c.id_time) FROM insta_ids.clock() c') #>> '{}')::timestamptz
            - clock_timestamp();
        standby := insta_ids_internal.ask_node('SELECT insta_ids_internal.standby_behind(0, ''{}'')');
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS failure.message = MESSAGE_TEXT, failure.detail = PG_EXCEPTION_DETAIL,
            failure.hint = PG_EXCEPTION_HINT;
    END;
    IF offer IS NULL THEN
        PERFORM insta_ids_internal.disconnect_node();
        RETURN NEXT ROW('error', 'cannot_leave', quote_ident(from_node), concat_ws(': ', failure.message, nullif(failure.detail, '')),
            failure.hint)::insta_ids.finding;
        RETURN;
    END IF;
    BEGIN
        PERFORM insta_ids_internal.prepare_offered(offer, path);
        tables := (
            SELECT count(*) FROM jsonb_array_elements_text(offer -> 'shards') s (shard)
            JOIN insta_ids_internal.shard_relation r ON r.shard = s.shard::integer AND r.kind = 'r');
        RAISE EXCEPTION 'rolled back';
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS failure.message = MESSAGE_TEXT, failure.detail = PG_EXCEPTION_DETAIL,
            failure.hint = PG_EXCEPTION_HINT;
    END;
    -- The source forgets the offer when the connection ends.
    PERFORM insta_ids_internal.disconnect_node();
    RETURN QUERY
    SELECT f.severity, f.code, f.object, f.detail, f.hint FROM (VALUES
        ('error', 'cannot_come', quote_ident(here), concat_ws(': ', failure.message, nullif(failure.detail, '')), failure.hint,
            tables IS NULL),
        ('error', 'clock_behind', quote_ident(here), format('Its clock is %s behind the time of ids on node "%s".', lead, from_node),
            'Correct the clock.', lead > current_setting('insta_ids.clock_tolerance')::interval),
        ('warning', 'standby_behind', quote_ident(from_node), format('Its %s does not have all of its WAL.', standby ->> 'name'),
            'Start the standby, or drop its slot.', standby IS NOT NULL),
        ('notice', 'would_move', offer ->> 'name', format('Shards from %s to %s with %s tables and %s would come from node "%s".',
            first, last, tables, pg_size_pretty((offer ->> 'bytes')::bigint), from_node),
            format('CALL insta_ids.move_shards(%s, %s, %L%s)', first, last, from_node,
                CASE WHEN ignore_dependents THEN ', ignore_dependents => true' END), tables IS NOT NULL)
    ) f (severity, code, object, detail, hint, is_so) WHERE f.is_so;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.check_move(
        first integer, last integer, from_node name, ignore_dependents boolean DEFAULT false)
    RETURNS SETOF insta_ids.finding
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM insta_ids_internal.check_move(first, last, from_node, pg_catalog.current_setting('search_path'), ignore_dependents);
END;
COMMENT ON FUNCTION insta_ids.check_move(integer, integer, name, boolean) IS
    'tries the first steps of a move on both servers, and takes them back';
