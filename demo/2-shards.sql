-- Sixteen shards for photos and likes, a schema each
SET client_min_messages = warning;
SELECT format($$
    CREATE SCHEMA IF NOT EXISTS insta%1$s;
    CREATE SEQUENCE insta%1$s.photos_id_seq;
    CREATE TABLE insta%1$s.photos (
        id bigint PRIMARY KEY DEFAULT next_id(%1$s, 'insta%1$s.photos_id_seq'),
        user_id bigint NOT NULL
    );
    CREATE SEQUENCE insta%1$s.likes_id_seq;
    CREATE TABLE insta%1$s.likes (
        id bigint PRIMARY KEY DEFAULT next_id(%1$s, 'insta%1$s.likes_id_seq'),
        photo_id bigint NOT NULL,
        user_id bigint NOT NULL
    )$$, shard)
FROM generate_series(0, 15) shard
\gexec
SELECT format('CREATE VIEW %s AS %s', kind,
              string_agg(format('SELECT %s AS shard, id, user_id FROM insta%s.%s', shard, shard, kind), ' UNION ALL '))
FROM generate_series(0, 15) shard, unnest('{photos,likes}'::text[]) kind
GROUP BY kind
\gexec
