-- What a row costs: a million of two columns, into UNLOGGED tables without an index. To stay below the cap of a sequence
-- they go to 16 shards in turn, 10,000 at a time, which is less than a sequence has in the 10 ms it may run ahead.
-- The cases in turn in each round, medians over the rounds; ratios are of one run.
\set QUIET on
SET jit = off;

CREATE TABLE cases (ord int, name text, "table" text, base text);
INSERT INTO cases VALUES
    (1, 'next_id(5, ''insta5.table_id_seq'')', 'direct', NULL),
    (2, 'insta5.next_id()', 'wrapped', 'direct'),
    (3, 'insta5.next_id(), CHECK', 'checked', 'wrapped');
CREATE TABLE timings ("table" text, ns float);

SELECT format('
    CREATE SCHEMA insta%1$s;
    CREATE SEQUENCE insta%1$s.table_id_seq;
    CREATE FUNCTION insta%1$s.next_id() RETURNS bigint LANGUAGE sql RETURN next_id(%1$s, ''insta%1$s.table_id_seq'');
    CREATE UNLOGGED TABLE insta%1$s.direct (
        id bigint NOT NULL DEFAULT next_id(%1$s, ''insta%1$s.table_id_seq''), user_id bigint NOT NULL);
    CREATE UNLOGGED TABLE insta%1$s.wrapped (
        id bigint NOT NULL DEFAULT insta%1$s.next_id(), user_id bigint NOT NULL);
    CREATE UNLOGGED TABLE insta%1$s.checked (
        id bigint NOT NULL DEFAULT insta%1$s.next_id() CHECK (id_shard(id) = %1$s), user_id bigint NOT NULL)', n)
FROM generate_series(0, 15) n
\gexec

CREATE PROCEDURE measure(rounds int, rows int) LANGUAGE plpgsql AS $$
DECLARE
    one cases;
    started timestamptz;
BEGIN
    FOR round IN 1..rounds LOOP
        FOR one IN SELECT * FROM cases ORDER BY ord LOOP
            FOR shard IN 0..15 LOOP
                EXECUTE format('TRUNCATE insta%s.%I', shard, one."table");
            END LOOP;
            COMMIT;
            started := clock_timestamp();
            FOR n IN 1 .. rows / 10000 LOOP
                EXECUTE format('INSERT INTO insta%s.%I (user_id) SELECT generate_series(1, 10000)', n % 16, one."table");
            END LOOP;
            INSERT INTO timings VALUES (one."table", extract(epoch FROM clock_timestamp() - started) * 1e9 / rows);
            COMMIT;
        END LOOP;
    END LOOP;
END
$$;
-- Once to warm up.
CALL measure(1, 160000);
TRUNCATE timings;
CALL measure(:rounds, 1000000);

WITH medians AS (
    SELECT "table", percentile_cont(0.5) WITHIN GROUP (ORDER BY ns) AS ns, max(ns) - min(ns) AS spread
    FROM timings GROUP BY "table"
)
SELECT c.name AS "default", round(n.ns::numeric, 1) AS "ns per row", round(n.spread::numeric, 1) AS "max - min",
       round((n.ns - b.ns)::numeric, 1) AS more, round((n.ns / b.ns)::numeric, 3) AS ratio, o.name AS "of"
FROM cases c JOIN medians n USING ("table")
LEFT JOIN cases o ON o."table" = c.base LEFT JOIN medians b ON b."table" = c.base
ORDER BY c.ord;
