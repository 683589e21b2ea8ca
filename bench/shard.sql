-- What create_shards makes by itself, then a table each, as a migration has them or, with names and CHECK, as DDL by hand.
CREATE SCHEMA insta{shard};
CREATE SEQUENCE {schema}table_id_seq;
CREATE FUNCTION {schema}next_id() RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql RETURN public.next_id({shard}, '{schema}table_id_seq');
CREATE FUNCTION {schema}next_id(seq_name regclass) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql RETURN public.next_id({shard}, seq_name);

CREATE TABLE {schema}photos (id bigint PRIMARY KEY DEFAULT {schema}next_id(){check}, user_id bigint NOT NULL, caption text);
CREATE INDEX ON {schema}photos (user_id, id);

CREATE SEQUENCE {schema}likes_id_seq;
CREATE TABLE {schema}likes (id bigint PRIMARY KEY DEFAULT {schema}next_id('{schema}likes_id_seq'){check}, photo_id bigint NOT NULL, user_id bigint NOT NULL);
CREATE INDEX ON {schema}likes (photo_id, id);

CREATE SEQUENCE {schema}comments_id_seq;
CREATE TABLE {schema}comments (id bigint PRIMARY KEY DEFAULT {schema}next_id('{schema}comments_id_seq'){check}, photo_id bigint NOT NULL, body text);
CREATE INDEX ON {schema}comments (photo_id, id);

CREATE SEQUENCE {schema}follows_id_seq;
CREATE TABLE {schema}follows (id bigint PRIMARY KEY DEFAULT {schema}next_id('{schema}follows_id_seq'){check}, follower bigint NOT NULL, followed bigint NOT NULL);
CREATE INDEX ON {schema}follows (followed, id);
