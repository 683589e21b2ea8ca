CREATE SEQUENCE photos_id_seq;
CREATE TABLE photos (
    id bigint PRIMARY KEY DEFAULT next_id(5, 'photos_id_seq') CHECK (id_shard(id) = 5),
    user_id bigint NOT NULL
);
