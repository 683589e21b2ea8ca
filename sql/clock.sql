-- Clock and figures.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION insta_ids.clock()
    RETURNS TABLE (system_time timestamptz, id_time timestamptz, ahead interval, lease timestamptz)
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'clock_wrapper';

CREATE FUNCTION insta_ids.advance_clock(until timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'advance_clock_wrapper';

CREATE FUNCTION insta_ids.reset_clock() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'reset_clock_wrapper';

CREATE FUNCTION insta_ids.stat_get_ids()
    RETURNS TABLE (
        ids bigint, pushed bigint, waits bigint, wait_time interval,
        step_backs bigint, largest_step_back interval, stats_reset timestamptz
    )
    VOLATILE PARALLEL UNSAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_ids_wrapper';

CREATE FUNCTION insta_ids.stat_reset() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'stat_reset_wrapper';

-- Waits by a clock that nobody sets.
CREATE FUNCTION insta_ids_internal.wait_ms(ms integer) RETURNS void
    VOLATILE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'wait_ms_wrapper';

-- Milliseconds of a clock that nobody sets, the same in all sessions of the server.
CREATE FUNCTION insta_ids_internal.steady_ms() RETURNS bigint
    VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'steady_ms_wrapper';

-- Cancels the statement that runs after so many milliseconds, but with 0 never. With NULL, statement_timeout holds again.
CREATE FUNCTION insta_ids_internal.limit_statement(ms integer) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'limit_statement_wrapper';

CREATE VIEW insta_ids.stat_ids AS SELECT * FROM insta_ids.stat_get_ids();

-- The first lease: what other databases of the server, or this extension before it was dropped, had reached
-- is written down before anybody mints.
DO $$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 170000
        OR 'insta_ids' = ANY (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), $re$[\s,"/]+$re$))
    THEN
        PERFORM insta_ids.advance_clock('1970-01-01');
    END IF;
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;
