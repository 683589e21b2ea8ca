-- Ids that Instagram itself minted, and the times they were published with
CREATE TABLE known (layout text, id bigint, shortcode text, time_utc timestamptz, shard int, seq int, source text);
\copy known FROM 'tests/vectors/known-answers.csv' (FORMAT csv, HEADER)
SELECT id, id_time(id), id_shard(id), id_seq(id),
       (id_time(id), id_shard(id), id_seq(id)) = (time_utc, shard, seq) AS as_published
FROM known WHERE layout = 'instagram' AND shortcode IS NOT NULL ORDER BY id;
