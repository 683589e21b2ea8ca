-- What one call costs, below the cap of a sequence: 16 sequences in turn, the cases in turn in each round,
-- the query's own loop subtracted. Medians over the rounds; ratios are of one run.
\set QUIET on
SET jit = off;
SET max_parallel_workers_per_gather = 0;
SET timezone = 'UTC';

SELECT format('CREATE SEQUENCE s%1$s; CREATE SEQUENCE c%1$s CACHE 32', n) FROM generate_series(1, 16) n
\gexec
CREATE TABLE sequences AS
SELECT format('s%s', n)::regclass AS s, format('c%s', n)::regclass AS c, make_id('2026-01-01', n, n) AS id
FROM generate_series(1, 16) n;
ANALYZE sequences;

CREATE TABLE cases (ord serial, name text, expression text, loop text, base text);
INSERT INTO cases (name, expression, loop, base) VALUES
    ('the query''s own loop', 's', NULL, NULL),
    ('clock_timestamp()', 'clock_timestamp()', 's', 'nextval'),
    ('nextval', 'nextval(s)', 's', 'nextval'),
    ('next_id', 'next_id(5, s)', 's', 'nextval'),
    ('next_id, layout', 'next_id(5, s, ''instagram'')', 's', 'next_id'),
    ('next_id, twitter', 'next_id(5, s, ''twitter'')', 's', 'next_id'),
    ('published PL/pgSQL', 'insta5.published_next_id()', 's', 'nextval'),
    ('nextval, CACHE 32', 'nextval(c)', 's', 'nextval, CACHE 32'),
    ('next_id, CACHE 32', 'next_id(5, c)', 's', 'nextval, CACHE 32'),
    ('id >> 23', 'id >> 23', 's', 'id >> 23'),
    ('id_time(id)', 'id_time(id)', 's', 'id >> 23'),
    ('id_time(id), layout', 'id_time(id, ''instagram'')', 's', 'id >> 23'),
    ('id_shard(id)', 'id_shard(id)', 's', 'id >> 23'),
    ('id_between(id)', 'id_between(id, ''2026-01-01'', ''2027-01-01'') OR NULL', 's', 'id >> 23');
CREATE TABLE timings (name text, ns float);

CREATE PROCEDURE measure(rounds int, calls int) LANGUAGE plpgsql AS $$
DECLARE
    one cases;
    started timestamptz;
BEGIN
    FOR round IN 1..rounds LOOP
        FOR one IN SELECT * FROM cases ORDER BY ord LOOP
            started := clock_timestamp();
            EXECUTE format('SELECT count(%s) FROM generate_series(1, %s), sequences', one.expression, calls / 16);
            INSERT INTO timings
            VALUES (one.name, extract(epoch FROM clock_timestamp() - started) * 1e9 / calls);
        END LOOP;
    END LOOP;
END
$$;
-- Once to warm up.
CALL measure(1, 160000);
TRUNCATE timings;
CALL measure(:rounds, 1600000);

WITH medians AS (
    SELECT name, percentile_cont(0.5) WITHIN GROUP (ORDER BY ns) AS ns, min(ns), max(ns)
    FROM timings GROUP BY name
), net AS (
    SELECT ord, c.name, c.base, m.ns - coalesce(l.ns, 0) AS ns, m.max - m.min AS spread
    FROM cases c JOIN medians m USING (name) LEFT JOIN medians l ON l.name = 'the query''s own loop' AND c.loop IS NOT NULL
)
SELECT n.name AS "call", round(n.ns::numeric, 1) AS "ns, net", round(n.spread::numeric, 1) AS "max - min",
       round((n.ns / b.ns)::numeric, 2) AS ratio, n.base AS "of"
FROM net n LEFT JOIN net b ON b.name = n.base
ORDER BY n.ord;
