-- From one table to sixteen shards: 100,000 albums of a table as applications begin with it, copied, compared and switched
CREATE TABLE albums (id bigserial PRIMARY KEY, user_id bigint NOT NULL, title text);
INSERT INTO albums (user_id, title) SELECT 1 + n % 5000, 'album ' || n FROM generate_series(1, 100000) n;
SELECT insta_ids.add_migration('albums', $$
    CREATE TABLE albums (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL, title text)
$$, ids_since => '2011-08-26');
SET client_min_messages = warning;
CALL insta_ids.migrate();
RESET client_min_messages;
SELECT insta_ids.distribute_table('albums', 'user_id');
CALL insta_ids.distribute();
SELECT source, step, rows_copied, rows_per_second, next FROM insta_ids.distributions;
SELECT insta_ids.distribute_switch(views => true);
SELECT count(*) AS albums_of_all_shards, count(*) FILTER (WHERE user_id = 71) AS of_user_71 FROM albums;
SELECT insta_ids.distribute_finish();
INSERT INTO insta7.albums (user_id, title) VALUES (71, 'new') RETURNING id, id_shard(id);
