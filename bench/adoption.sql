-- What the writers saw, from bench/adoption.sh.
SELECT s.call, round((1000 * extract(epoch FROM s.ended - s.began))::numeric, 1) AS "ms, the call",
       (SELECT round(max(w.us) / 1000.0, 1) FROM written w
        WHERE w.ended BETWEEN extract(epoch FROM s.began) AND extract(epoch FROM s.ended) + 0.5) AS "ms, longest insert around it"
FROM switches s ORDER BY s.began;
SELECT count(*) AS inserts, round(percentile_cont(0.5) WITHIN GROUP (ORDER BY w.us)::numeric / 1000, 2) AS "ms, median",
       round(max(w.us) FILTER (WHERE NOT EXISTS (
           SELECT FROM switches s
           WHERE w.ended BETWEEN extract(epoch FROM s.began) AND extract(epoch FROM s.ended) + 0.5)) / 1000.0, 1) AS "ms, longest at other times",
       (SELECT count(DISTINCT p.id) FROM insta5.photos p) AS "different ids"
FROM written w;
