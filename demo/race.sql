-- What each function of the race gave.
SELECT function, count(*) AS ids, round(count(*) / max(seconds)) AS ids_per_second,
       count(*) - count(DISTINCT id) AS duplicates
FROM race JOIN race_time USING (function)
GROUP BY function ORDER BY ids_per_second;
