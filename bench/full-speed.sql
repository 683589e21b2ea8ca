-- One session's part of the full speed of a sequence: how many ids, in which milliseconds, in what order.
-- All sessions start at once, when the lock that bench/speed.sh holds is released.
SELECT pg_advisory_lock_shared(1) \g /dev/null
INSERT INTO full_speed
SELECT :sessions, count(*), min(id), max(id), count(*) FILTER (WHERE id <= previous), max(id_time(id) - at)
FROM (
    SELECT id, at, lag(id) OVER () AS previous
    FROM (SELECT next_id(5, 'full') AS id, clock_timestamp() AS at FROM (SELECT generate_series(1, :ids)) n OFFSET 0) minted
) m;
