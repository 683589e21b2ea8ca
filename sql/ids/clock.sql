-- The clock, and the server's statistics about its ids.

-- Refuses changes of the lease, which only the library writes. A superuser may insert a row, as a restored dump does.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_lease_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP <> 'INSERT' OR NOT insta_ids_internal.is_superuser() THEN
        RAISE insufficient_privilege USING MESSAGE = 'lease cannot be changed',
            DETAIL = 'Without it, ids could be generated again after a crash.',
            HINT = 'To raise the time of ids, as a superuser: SELECT insta_ids.advance_clock(...).';
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER keep BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.lease
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_lease_change();
ALTER TABLE insta_ids_internal.lease ENABLE ALWAYS TRIGGER keep;

CREATE OR REPLACE FUNCTION insta_ids.clock()
    RETURNS TABLE (system_time timestamptz, id_time timestamptz, ahead interval, lease timestamptz)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'clock_wrapper';
COMMENT ON FUNCTION insta_ids.clock() IS 'the clock, the time of ids, how far that is ahead, and the lease';

CREATE OR REPLACE FUNCTION insta_ids.advance_clock(until timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'advance_clock_wrapper';
COMMENT ON FUNCTION insta_ids.advance_clock(timestamptz) IS 'lets no later id of the server be older than until';

CREATE OR REPLACE FUNCTION insta_ids.reset_clock() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'reset_clock_wrapper';
COMMENT ON FUNCTION insta_ids.reset_clock() IS 'sets the time of ids back to the clock, after that had run ahead';

-- Returns the statistics that the view stat_ids shows.
CREATE OR REPLACE FUNCTION insta_ids_internal.stat_get_ids()
    RETURNS TABLE (
        ids bigint, pushed bigint, waits bigint, wait_time interval,
        step_backs bigint, largest_step_back interval, stats_reset timestamptz
    )
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_ids_wrapper';

CREATE OR REPLACE FUNCTION insta_ids.stat_reset() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'stat_reset_wrapper';
COMMENT ON FUNCTION insta_ids.stat_reset() IS 'begins the figures of stat_ids anew';

-- Waits for `ms` milliseconds of the steady clock, which cannot be set.
CREATE OR REPLACE FUNCTION insta_ids_internal.wait_ms(ms integer) RETURNS void
    VOLATILE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'wait_ms_wrapper';

-- Returns the steady clock in milliseconds. It is the same in all sessions of the server.
CREATE OR REPLACE FUNCTION insta_ids_internal.steady_ms() RETURNS bigint
    VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'steady_ms_wrapper';

-- Limits the running statement to `ms` milliseconds from now. 0 removes all limits, and NULL restores statement_timeout.
CREATE OR REPLACE FUNCTION insta_ids_internal.limit_statement(ms integer) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'limit_statement_wrapper';

-- Makes later ids of a sequence come after all that another one has given, and all that dropped sequences have.
CREATE OR REPLACE FUNCTION insta_ids_internal.succeed(successor regclass, predecessor regclass) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'succeed_wrapper';

CREATE OR REPLACE VIEW insta_ids.stat_ids AS SELECT * FROM insta_ids_internal.stat_get_ids();
COMMENT ON VIEW insta_ids.stat_ids IS 'what the server counted about its ids';
