-- Photos and likes in all sixteen shards, a schema each: written down once, and run in every shard
SELECT insta_ids.add_migration('photos and likes', $$
    CREATE SEQUENCE photos_id_seq;
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id('photos_id_seq'), user_id bigint NOT NULL);
    CREATE SEQUENCE likes_id_seq;
    CREATE TABLE likes (
        id bigint PRIMARY KEY DEFAULT next_id('likes_id_seq'),
        photo_id bigint NOT NULL,
        user_id bigint NOT NULL
    )
$$);
CALL insta_ids.create_shards(0, 15);
\echo 'The shard that was there before gets what it lacks:'
CALL insta_ids.migrate();
SELECT shard, schema, state, applied, pending, failed, tables FROM insta_ids.shards ORDER BY shard LIMIT 7;
\d insta6.photos

SET client_min_messages = warning;
SELECT format('CREATE VIEW %s AS %s', kind,
              string_agg(format('SELECT %s AS shard, id, user_id FROM %I.%I', shard, schema, kind), ' UNION ALL '))
FROM insta_ids.shards, unnest('{photos,likes}'::text[]) kind
GROUP BY kind
\gexec
