-- The blog's schema insta5 in its own words, and the direct form beside it
CREATE EXTENSION insta_ids;

CREATE SCHEMA insta5;
CREATE SEQUENCE insta5.table_id_seq;
CREATE FUNCTION insta5.next_id() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN next_id(5, 'insta5.table_id_seq');

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
\echo 'Each table has a sequence of its own, so ids are unique in their table, and two tables may hold the same:'
INSERT INTO insta5.our_likes (user_id) VALUES (31341)
RETURNING id, id_time(id), id_shard(id), id_seq(id);

\echo 'The wrapper costs nothing: it is inlined to the native call.'
EXPLAIN (VERBOSE, COSTS OFF) SELECT insta5.next_id();
