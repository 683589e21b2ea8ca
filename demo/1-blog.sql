-- Shard 5 of sixteen, and the blog's table in it, in the blog's own words
CREATE SCHEMA ids;
CREATE EXTENSION insta_ids SCHEMA ids;
ALTER DATABASE postgres SET search_path = "$user", public, ids;
\connect
SELECT insta_ids.init(16);
SELECT insta_ids.create_shard(5);

CREATE TABLE insta5.our_table (
    "id" bigint NOT NULL DEFAULT insta5.next_id(),
    caption text
);

CREATE SEQUENCE insta5.our_likes_id_seq;
CREATE TABLE insta5.our_likes (
    id bigint PRIMARY KEY DEFAULT next_id(5, 'insta5.our_likes_id_seq'),
    user_id bigint
);

\echo
\echo 'INSERT ... RETURNING id, and what the id says:'
INSERT INTO insta5.our_table (caption) VALUES ('a photo'), ('another photo')
RETURNING id, id_time(id), id_shard(id), id_seq(id);
\echo 'With a sequence of its own a table''s ids are unique in that table, and two tables may hold the same:'
INSERT INTO insta5.our_likes (user_id) VALUES (31341)
RETURNING id, id_time(id), id_shard(id), id_seq(id);

\echo 'The wrapper costs nothing: it is inlined to the native call.'
EXPLAIN (VERBOSE, COSTS OFF) SELECT insta5.next_id();
