-- From 0.1.0 to 0.2.0: the lease, clock and figures.

DO $$
BEGIN
    IF pg_catalog.to_regnamespace('insta_ids') IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = 'schema "insta_ids" already exists',
            DETAIL = 'The extension makes it for its administration.',
            HINT = 'Rename it.';
    END IF;
END
$$;

CREATE SCHEMA insta_ids;
GRANT USAGE ON SCHEMA insta_ids TO PUBLIC;

-- Written by the library alone, and dumped with its value.
CREATE SEQUENCE insta_ids.lease;
SELECT pg_catalog.pg_extension_config_dump('insta_ids.lease', '');

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

-- Clock and figures
COMMENT ON FUNCTION insta_ids.clock() IS
    'the clock, the time of the next id, how far that is ahead, and the lease';
COMMENT ON FUNCTION insta_ids.advance_clock(timestamptz) IS
    'lets no later id of the server be older than until';
COMMENT ON FUNCTION insta_ids.reset_clock() IS
    'sets the time of ids back to the clock, after that had run ahead';
COMMENT ON FUNCTION insta_ids.stat_get_ids() IS
    'figures behind the view stat_ids';
COMMENT ON FUNCTION insta_ids.stat_reset() IS
    'begins the figures of stat_ids anew';
COMMENT ON VIEW insta_ids.stat_ids IS
    'what the server counted about its ids';
COMMENT ON SEQUENCE insta_ids.lease IS
    'a time that ids of this database have not reached, in Unix milliseconds; written by the extension alone';
COMMENT ON SCHEMA insta_ids IS
    'administration of insta_ids';
