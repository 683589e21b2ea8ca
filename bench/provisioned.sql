-- How long making shards took, and what memory of its own the backend had: medians over the rounds.
WITH medians AS (
    SELECT way, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds, max(seconds) - min(seconds) AS spread,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY kb[1]) AS start,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY kb[(cardinality(kb) + 1) / 2]) AS middle,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY kb[cardinality(kb)]) AS "end",
           max((SELECT max(k) FROM unnest(kb) k)) AS most
    FROM provisioned GROUP BY way
)
SELECT CASE m.way WHEN 'raw' THEN 'DDL by hand' ELSE 'create_shards' END AS way,
       round(m.seconds::numeric, 2) AS s, round(m.spread::numeric, 2) AS "max - min",
       round((m.seconds * 1000 / :shards)::numeric, 2) AS "ms per shard",
       CASE m.way WHEN 'ours' THEN round((m.seconds / r.seconds)::numeric, 2) END AS ratio,
       round(m.start / 1024) AS "MB at the start", round(m.middle / 1024) AS "in the middle",
       round(m."end" / 1024) AS "at the end", round(m.most / 1024) AS "at most"
FROM medians m JOIN medians r ON r.way = 'raw'
ORDER BY m.way DESC;
DROP TABLE provisioned;
