-- From one table to many shards: the procedure, and how far it is.

-- Raises an error, with all reasons, if these tables cannot be distributed, or not with the others.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_obstacles(sources regclass[]) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reasons text[];
BEGIN
    reasons := ARRAY(
        SELECT format('%s: %s', d.source, o.reason)
        FROM insta_ids_internal.distribution d CROSS JOIN LATERAL insta_ids_internal.obstacles_of(d) o (reason)
        WHERE d.source = ANY (sources) ORDER BY d.number) || ARRAY(SELECT insta_ids_internal.obstacles_between());
    IF cardinality(reasons) > 0 THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'the registered tables cannot be distributed together',
            DETAIL = array_to_string(reasons, E'\n');
    END IF;
END
$$;

-- Returns how many locks a batch needs at most, if each shard has tables like these. A transaction locks each target with its indexes and
-- TOAST table.
CREATE OR REPLACE FUNCTION insta_ids_internal.locks_to_distribute(tables regclass[]) RETURNS bigint
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT 1000 + sum(4 + (SELECT count(*) FROM pg_index i WHERE i.indrelid = t.relation)) * c.shards
        FROM unnest(tables) t (relation) CROSS JOIN insta_ids_internal.require_config() c GROUP BY c.shards)::bigint;

-- Raises an error unless the registered tables and their rows can be distributed together, and the server has enough locks for it.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_distribution() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room CONSTANT bigint := insta_ids_internal.lock_capacity();
    needed bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.distribution) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'no table is registered',
            HINT = 'Call insta_ids.distribute_table() for each table.';
    END IF;
    PERFORM insta_ids_internal.require_distributable(ARRAY(SELECT d FROM insta_ids_internal.distribution d));
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'registered') THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.order_distribution(), insta_ids_internal.require_no_obstacles(insta_ids_internal.distribution_sources());
    -- distribute_abort() fences all shards.
    PERFORM insta_ids_internal.require_heaps(insta_ids_internal.schemas_of(ARRAY(SELECT s.shard FROM insta_ids_internal.shard s)), true);
    needed := insta_ids_internal.locks_to_distribute(ARRAY(
        SELECT to_regclass(insta_ids_internal.target_in(d.target, 0)) FROM insta_ids_internal.distribution d));
    IF needed > room THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'distributing these tables needs more locks than the server has',
            DETAIL = format('It needs %s, and the server has %s.', needed, room),
            HINT = format('Set max_locks_per_transaction = %s in postgresql.conf, and restart the server.',
                ceil(current_setting('max_locks_per_transaction')::numeric * needed / room));
    END IF;
    PERFORM insta_ids_internal.require_rows_that_fit();
END
$$;

-- Commits, and begins a transaction whose statements all have one snapshot. Values have the same texts in all sessions. Locks the
-- distribution, and raises an error if it is_taken_over().
CREATE OR REPLACE PROCEDURE insta_ids_internal.begin_batch(sources regclass[], is_switched boolean, is_background boolean)
    LANGUAGE plpgsql
AS $$
BEGIN
    CALL insta_ids_internal.new_snapshot();
    -- Estimates of temporary tables are high, and compiling would take longer than running.
    SET LOCAL jit = off;
    SET LOCAL datestyle = 'ISO';
    SET LOCAL intervalstyle = 'postgres';
    SET LOCAL extra_float_digits = 1;
    -- The lock comes before the snapshot. No other session applies changes, switches or aborts meanwhile.
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    -- Between two batches, other sessions can switch or abort, and other roles can write rows about their own tables.
    IF insta_ids_internal.is_taken_over(sources, is_switched, is_background) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'another session has switched or ended this distribution, continues it, or has begun another one';
    END IF;
    PERFORM insta_ids_internal.require_distributable(ARRAY(SELECT d FROM insta_ids_internal.distribution d));
    PERFORM insta_ids_internal.limit_catalog_cache();
END
$$;

-- Returns the pause in milliseconds. Raises an error unless all arguments of distribute() are given and in range.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_pace(
        batch integer, pause interval, lock_timeout interval, attempt interval, background boolean)
    RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pause_ms CONSTANT bigint := extract(epoch FROM pause) * 1000;
BEGIN
    IF num_nulls(batch, pause, lock_timeout, attempt, background) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'no argument of distribute can be NULL';
    ELSIF batch < 1 OR pause_ms NOT BETWEEN 0 AND 3600000 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('batch of %s rows or pause of %s is out of range', batch, pause),
            DETAIL = 'A batch has at least 1 row, and a pause is from 0 to 1 hour.';
    END IF;
    RETURN pause_ms;
END
$$;

-- Begins to capture the changes of the next table, or brings changes to the shards and copies the next rows. Returns false if
-- all rows are copied.
CREATE OR REPLACE FUNCTION insta_ids_internal.copy_batch(batch integer, lock_timeout interval, attempt interval) RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    going insta_ids_internal.distribution;
BEGIN
    -- A table that refers to another one comes after it.
    SELECT * INTO going FROM insta_ids_internal.distribution d WHERE d.step <> 'copied' ORDER BY d.number LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF going.step = 'registered' THEN
        -- Until here, the table could be altered.
        PERFORM insta_ids_internal.require_no_obstacles(ARRAY[going.source]), insta_ids_internal.begin_capture(going, lock_timeout, attempt),
            insta_ids_internal.report_what_ends(going);
        RAISE NOTICE 'distribute: copies table %', going.source;
    ELSE
        PERFORM insta_ids_internal.apply_changes(), insta_ids_internal.copy_rows(going, batch);
    END IF;
    RETURN true;
END
$$;

-- Returns how many changes of the sources are not in the shards yet.
CREATE OR REPLACE FUNCTION insta_ids_internal.changes_waiting() RETURNS bigint
    VOLATILE PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT insta_ids_internal.write_noted_changes();
    SELECT coalesce(sum(cardinality(c.placed_by)), 0)
    FROM insta_ids_internal.change c JOIN insta_ids_internal.noted_tables() t ON t.relation = c.relation AND NOT t.is_target;
END;

-- Returns how many rounds of apply_changes() in turn have left hardly fewer changes, of which `vain` came before the last one. That began
-- at `began`, by the steady clock, when `waited` changes waited; both are NULL if there was none. `waiting` wait now. Returns NULL if one
-- more round is enough: few changes wait, or three rounds were in vain, which it reports.
CREATE OR REPLACE FUNCTION insta_ids_internal.vain_rounds(waiting bigint, waited bigint, began bigint, vain integer) RETURNS integer
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    few CONSTANT bigint := 1000;
    seconds CONSTANT numeric := greatest(insta_ids_internal.steady_ms() - began, 1) / 1000.0;
BEGIN
    IF waiting <= few THEN
        RETURN NULL;
    ELSIF waited IS NULL OR waiting < waited * 0.9 THEN
        RETURN 0;
    ELSIF vain < 2 THEN
        RETURN vain + 1;
    END IF;
    RAISE NOTICE USING MESSAGE = format('distribute: clients change rows as fast as the changes come to the shards, and %s wait', waiting),
        DETAIL = format('In the last round, %s changes came to the shards each second, and clients made %s.',
            round(waited / seconds), round(waiting / seconds)),
        HINT = 'Call again when clients write less.';
    RETURN NULL;
END
$$;

-- Brings changes to the shards in rounds, until few wait or the rounds leave no fewer. Each round is a transaction.
CREATE OR REPLACE PROCEDURE insta_ids_internal.apply_in_rounds(sources regclass[], is_background boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    vain integer := 0;
    waiting bigint;
    waited bigint;
    began bigint;
BEGIN
    WHILE vain IS NOT NULL LOOP
        CALL insta_ids_internal.begin_batch(sources, false, is_background);
        waiting := insta_ids_internal.changes_waiting();
        vain := insta_ids_internal.vain_rounds(waiting, waited, began, vain);
        waited := waiting;
        began := insta_ids_internal.steady_ms();
        PERFORM insta_ids_internal.apply_changes();
    END LOOP;
    CALL insta_ids_internal.new_transaction();
END
$$;

-- Does what distribute() does, in a session or in its background worker.
CREATE OR REPLACE PROCEDURE insta_ids_internal.distribute_all(
        batch integer, pause_ms integer, lock_timeout interval, attempt interval, is_background boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    sources pg_catalog.regclass[];
    next pg_catalog.regclass;
    is_switched boolean;
    rest_ms integer;
BEGIN
    LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_distribution();
    -- The worker of an older call ends.
    UPDATE insta_ids_internal.distribution d SET driver = NULL, last_error = NULL
    WHERE NOT is_background AND (d.driver IS NOT NULL OR d.last_error IS NOT NULL);
    sources := insta_ids_internal.distribution_sources();
    is_switched := EXISTS (
        SELECT FROM insta_ids_internal.distribution d WHERE d.step OPERATOR(pg_catalog.=) 'switched'::pg_catalog.text);
    CALL insta_ids_internal.begin_batch(sources, is_switched, is_background);
    IF is_switched THEN
        PERFORM insta_ids_internal.return_changes();
        CALL insta_ids_internal.new_transaction();
        RETURN;
    END IF;
    WHILE insta_ids_internal.copy_batch(batch, lock_timeout, attempt) LOOP
        CALL insta_ids_internal.new_transaction();
        -- A worker that is not wanted any more ends soon.
        rest_ms := pause_ms;
        WHILE rest_ms OPERATOR(pg_catalog.>) 0 AND NOT insta_ids_internal.is_taken_over(sources, false, is_background) LOOP
            PERFORM insta_ids_internal.wait_ms(CASE WHEN rest_ms OPERATOR(pg_catalog.<) 1000 THEN rest_ms ELSE 1000 END);
            rest_ms := rest_ms OPERATOR(pg_catalog.-) 1000;
            CALL insta_ids_internal.new_transaction();
        END LOOP;
        CALL insta_ids_internal.begin_batch(sources, false, is_background);
    END LOOP;

    -- If the rows are not the same any more, an earlier comparison must not let writers be switched.
    UPDATE insta_ids_internal.distribution d SET verified_at = NULL;
    -- Each table has a transaction of its own, so that VACUUM is held back for one table only, and other sessions see how far it is.
    FOREACH next IN ARRAY ARRAY(SELECT d.source FROM insta_ids_internal.distribution d ORDER BY d.number) LOOP
        CALL insta_ids_internal.begin_batch(sources, false, is_background);
        PERFORM insta_ids_internal.require_rows_in_shards(d)
        FROM insta_ids_internal.distribution d WHERE d.source OPERATOR(pg_catalog.=) next::pg_catalog.oid;
    END LOOP;
    -- Much has changed while all rows were compared.
    CALL insta_ids_internal.apply_in_rounds(sources, is_background);
END
$$;

CREATE OR REPLACE PROCEDURE insta_ids.distribute(
        batch integer DEFAULT 100000, pause interval DEFAULT '0', lock_timeout interval DEFAULT '10s', attempt interval DEFAULT '100ms',
        background boolean DEFAULT false)
    LANGUAGE plpgsql
AS $$
DECLARE
    pause_ms integer;
BEGIN
    CALL insta_ids_internal.new_transaction();
    pause_ms := insta_ids_internal.require_pace(batch, pause, lock_timeout, attempt, background);
    IF background THEN
        PERFORM insta_ids_internal.distribute_in_background(batch, pause_ms, lock_timeout, attempt);
        -- The view shows the worker a moment after it has started. In one transaction, it always shows the same.
        FOR attempts IN 1..100 LOOP
            CALL insta_ids_internal.new_transaction();
            EXIT WHEN NOT EXISTS (
                SELECT FROM insta_ids_internal.distribution d
                WHERE d.driver IS NOT NULL AND NOT insta_ids_internal.is_distributing(d.driver));
            PERFORM insta_ids_internal.wait_ms(10);
        END LOOP;
    ELSE
        CALL insta_ids_internal.distribute_all(batch, pause_ms, lock_timeout, attempt, false);
    END IF;
END
$$;
COMMENT ON PROCEDURE insta_ids.distribute(integer, interval, interval, interval, boolean) IS
    'copies the rows of the registered tables to the shards while writers go on, and compares them; goes on where it was';

-- Returns an estimate of the rows of a table with its partitions. It does not lock the table, so monitoring does not wait for the switch.
CREATE OR REPLACE FUNCTION insta_ids_internal.estimated_rows(source regclass) RETURNS bigint
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT sum(greatest(c.reltuples, 0))::bigint FROM pg_class c
        WHERE c.oid = ANY (insta_ids_internal.with_partitions(source)::oid[]) AND c.relkind = 'r');

CREATE OR REPLACE VIEW insta_ids.distributions AS
SELECT d.source, d.target, d.key, d.parent, d.step, d.rows_copied, e.rows AS rows_estimated, r.per_second AS rows_per_second,
       CASE WHEN d.step = 'copying' THEN make_interval(secs => greatest(e.rows - d.rows_copied, 0) / nullif(r.per_second, 0)) END AS time_left,
       w.changes AS changes_waiting, d.started_at, d.verified_at, b.is_in_background, d.last_error,
       CASE
           WHEN b.is_in_background THEN 'wait'
           WHEN d.step = 'switched' THEN 'SELECT insta_ids.distribute_finish()'
           WHEN bool_and(d.verified_at IS NOT NULL AND d.step = 'copied') OVER () THEN 'SELECT insta_ids.distribute_switch()'
           ELSE 'CALL insta_ids.distribute()'
       END AS next
FROM insta_ids_internal.distribution d
-- A table that was registered meanwhile goes with the others.
CROSS JOIN (
    SELECT coalesce(bool_or(insta_ids_internal.is_distributing(o.driver)), false) AS is_in_background
    FROM (SELECT DISTINCT t.driver FROM insta_ids_internal.distribution t WHERE t.driver IS NOT NULL) o
) b
CROSS JOIN LATERAL (SELECT insta_ids_internal.estimated_rows(d.source) AS rows) e
CROSS JOIN LATERAL (
    SELECT round(d.rows_copied / nullif(extract(epoch FROM d.step_at - d.started_at), 0), 1)::float8 AS per_second
) r
-- After the switch, these are changes of the shards, which the way back has to bring.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(n.placed_by)), 0) AS changes
    FROM insta_ids_internal.change n JOIN pg_class c ON c.oid = coalesce(pg_partition_root(n.relation), n.relation)
    WHERE CASE WHEN d.step = 'switched' THEN c.relname = d.target AND c.oid <> d.source ELSE c.oid = d.source END
) w;
COMMENT ON VIEW insta_ids.distributions IS 'the tables that go to the shards: how far they are, and what to do next';
