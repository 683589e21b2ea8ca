-- Clock and figures.

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

CREATE VIEW insta_ids.stat_ids AS SELECT * FROM insta_ids.stat_get_ids();

REVOKE ALL ON FUNCTION
    insta_ids.advance_clock(timestamptz), insta_ids.reset_clock(), insta_ids.stat_get_ids(), insta_ids.stat_reset()
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.stat_get_ids() TO pg_monitor;
GRANT SELECT ON insta_ids.stat_ids TO pg_monitor;
