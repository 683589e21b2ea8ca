-- The migrations of an application of five years, in their order. Each begins with a line like the next one.
--- 0001 users
CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), name text NOT NULL);
CREATE UNIQUE INDEX users_name ON users (lower(name));
--- 0002 photos
CREATE TABLE photos (
    id bigint PRIMARY KEY DEFAULT next_id(),
    user_id bigint NOT NULL CONSTRAINT photos_of_user REFERENCES users DEFERRABLE INITIALLY DEFERRED,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX photos_by_user ON photos (user_id, created_at DESC);
--- 0003 states of photos
CREATE TYPE photo_state AS ENUM ('draft');
ALTER TABLE photos ADD COLUMN state photo_state NOT NULL DEFAULT 'draft';
--- 0004 a state more
ALTER TYPE photo_state ADD VALUE 'public';
--- 0005 photos are public
ALTER TABLE photos ALTER COLUMN state SET DEFAULT 'public';
CREATE INDEX photos_public ON photos (created_at) WHERE state = 'public';
--- 0006 the account of the support, before its photo
WITH support AS (SELECT next_id() AS id), photo AS (INSERT INTO photos (user_id) SELECT id FROM support)
INSERT INTO users (id, name) SELECT id, 'support' FROM support;
--- 0007 captions
ALTER TABLE photos ADD COLUMN caption text;
ALTER TABLE users ADD COLUMN email text;
--- 0008 kinds of notifications
CREATE TABLE kinds (id integer PRIMARY KEY, name text NOT NULL UNIQUE);
INSERT INTO kinds VALUES (1, 'like'), (2, 'comment');
CREATE TABLE notifications (
    id bigint PRIMARY KEY DEFAULT next_id(),
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE DEFERRABLE,
    kind integer NOT NULL REFERENCES kinds DEFERRABLE INITIALLY DEFERRED
);
--- 0009 a first notification
INSERT INTO notifications (user_id, kind) SELECT id, 3 FROM users WHERE name = 'support';
INSERT INTO kinds VALUES (3, 'welcome');
--- 0010 notifications are read
ALTER TABLE notifications ADD COLUMN read_at timestamptz;
--- 0011 captions are searched (concurrently)
CREATE INDEX CONCURRENTLY photos_caption ON photos (caption text_pattern_ops);
--- 0012 no email twice
ALTER TABLE users ADD CONSTRAINT users_email UNIQUE (email) DEFERRABLE INITIALLY DEFERRED;
--- 0013 emails are lower case
CREATE DOMAIN email AS text CHECK (VALUE = lower(VALUE));
ALTER TABLE users ALTER COLUMN email TYPE email USING lower(email);
--- 0014 a fast lane for large tables
SET LOCAL lock_timeout = '5s';
SET LOCAL default_statistics_target = 50;
ALTER TABLE photos ALTER COLUMN caption SET STATISTICS 500;
ANALYZE photos;
--- 0015 times of changes
ALTER TABLE photos ADD COLUMN changed_at timestamptz;
CREATE FUNCTION set_changed_at() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.changed_at := now();
    RETURN NEW;
END
$$;
CREATE TRIGGER set_changed_at BEFORE UPDATE ON photos FOR EACH ROW EXECUTE FUNCTION set_changed_at();
--- 0016 counts
CREATE TABLE counts (user_id bigint PRIMARY KEY REFERENCES users, photos integer NOT NULL DEFAULT 0);
INSERT INTO counts SELECT user_id, count(*) FROM photos GROUP BY 1;
CREATE FUNCTION count_photo() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO counts VALUES (NEW.user_id, 1)
    ON CONFLICT (user_id) DO UPDATE SET photos = counts.photos + 1;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER count_photo AFTER INSERT ON photos DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION count_photo();
--- 0017 a photo of the support
INSERT INTO photos (user_id, caption) SELECT id, 'Hello' FROM users WHERE name = 'support';
--- 0018 photos have a place
CREATE TYPE place AS (lat float8, lon float8);
ALTER TABLE photos ADD COLUMN place place;
--- 0019 more states
ALTER TYPE photo_state ADD VALUE IF NOT EXISTS 'private' BEFORE 'public';
ALTER TYPE photo_state ADD VALUE 'deleted';
ALTER TYPE photo_state RENAME VALUE 'draft' TO 'new';
--- 0020 deleted photos go
DELETE FROM photos WHERE state = 'deleted';
CREATE VIEW visible_photos WITH (security_barrier) AS SELECT * FROM photos WHERE state <> 'deleted';
--- 0021 events by month
CREATE TABLE events (
    id bigint NOT NULL DEFAULT next_id(),
    at timestamptz NOT NULL DEFAULT now(),
    data jsonb,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE TABLE events_before PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2024-01-01Z');
CREATE TABLE events_rest PARTITION OF events DEFAULT;
--- 0022 an event
INSERT INTO events (data) VALUES ('{"kind": "created"}');
--- 0023 events of 2024 apart
CREATE TABLE events_2024 (LIKE events INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
ALTER TABLE events_2024 ADD CONSTRAINT in_2024 CHECK (at >= '2024-01-01Z' AND at < '2025-01-01Z');
ALTER TABLE events ATTACH PARTITION events_2024 FOR VALUES FROM ('2024-01-01Z') TO ('2025-01-01Z');
ALTER TABLE events_2024 DROP CONSTRAINT in_2024;
--- 0024 the photos of a day
CREATE MATERIALIZED VIEW daily AS SELECT created_at::date AS day, count(*) AS photos FROM photos GROUP BY 1;
CREATE UNIQUE INDEX daily_day ON daily (day);
--- 0025 the photos of a day, again
REFRESH MATERIALIZED VIEW CONCURRENTLY daily;
--- 0026 old invitations
CREATE TABLE invitations (id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY, email email NOT NULL);
INSERT INTO invitations (email) VALUES ('a@example.com'), ('b@example.com');
--- 0027 captions have a length
ALTER TABLE photos ADD CONSTRAINT caption_length CHECK (length(caption) < 2000) NOT VALID;
--- 0028 all captions have it
ALTER TABLE photos VALIDATE CONSTRAINT caption_length;
--- 0029 comments
CREATE TABLE comments (
    id bigint PRIMARY KEY DEFAULT next_id(),
    photo_id bigint NOT NULL REFERENCES photos ON DELETE CASCADE,
    parent_id bigint REFERENCES comments DEFERRABLE INITIALLY DEFERRED,
    body text NOT NULL,
    length integer GENERATED ALWAYS AS (length(body)) STORED
);
COMMENT ON TABLE comments IS 'of photos';
COMMENT ON COLUMN comments.parent_id IS 'the comment that it answers';
--- 0030 a first comment, under itself
WITH first AS (SELECT next_id() AS id)
INSERT INTO comments (id, photo_id, parent_id, body) SELECT first.id, p.id, first.id, 'Welcome' FROM first, photos p WHERE p.caption = 'Hello';
--- 0031 comments are searched
ALTER TABLE comments ADD COLUMN words tsvector GENERATED ALWAYS AS (to_tsvector('simple', body)) STORED;
CREATE INDEX comments_words ON comments USING gin (words);
--- 0032 stories have a sequence of their own
CREATE SEQUENCE stories_id_seq;
CREATE TABLE stories (id bigint PRIMARY KEY DEFAULT next_id('stories_id_seq'), during tstzrange NOT NULL);
ALTER SEQUENCE stories_id_seq OWNED BY stories.id;
--- 0033 stories do not overlap
ALTER TABLE stories ADD CONSTRAINT stories_apart EXCLUDE USING gist (during WITH &&) DEFERRABLE;
--- 0034 names have a history
CREATE TABLE names (user_id bigint REFERENCES users, since timestamptz DEFAULT now(), name text NOT NULL, PRIMARY KEY (user_id, since));
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM users LOOP
        INSERT INTO names (user_id, name) VALUES (one.id, one.name);
    END LOOP;
END
$$;
--- 0035 users are members
ALTER TABLE users RENAME TO members;
ALTER TABLE members RENAME COLUMN name TO handle;
ALTER INDEX users_name RENAME TO members_handle;
--- 0036 a plan for each member
CREATE TYPE plan AS ENUM ('free', 'paid');
ALTER TABLE members ADD COLUMN plan plan NOT NULL DEFAULT 'free', ADD COLUMN since date;
CREATE STATISTICS members_plan (dependencies) ON plan, since FROM members;
--- 0037 invitations are over
DROP TABLE invitations;
DROP INDEX IF EXISTS photos_caption;
--- 0038 a plan more
ALTER TYPE plan ADD VALUE 'team' AFTER 'free';
--- 0039 the support is a team
UPDATE members SET plan = 'team' WHERE handle = 'support';
CREATE INDEX members_team ON members (id) WHERE plan = 'team';
--- 0040 rows of members are seen by the application alone
ALTER TABLE members ENABLE ROW LEVEL SECURITY;
CREATE POLICY by_app ON members USING (true);
GRANT SELECT (id, handle) ON members TO app;
--- 0041 totals
CREATE FUNCTION add_lengths(bigint, comments) RETURNS bigint IMMUTABLE LANGUAGE sql RETURN $1 + ($2).length;
CREATE AGGREGATE total_length (comments) (sfunc = add_lengths, stype = bigint, initcond = '0');
CREATE FUNCTION lengths_of(photo bigint) RETURNS bigint STABLE LANGUAGE sql
    BEGIN ATOMIC SELECT total_length(c) FROM comments c WHERE c.photo_id = photo; END;
--- 0042 events of 2024 are archived
ALTER TABLE events DETACH PARTITION events_2024;
DROP TABLE events_2024;
--- 0043 comments again (concurrently)
REINDEX TABLE CONCURRENTLY comments;
--- 0044 comments keep their order
ALTER TABLE comments CLUSTER ON comments_pkey, SET (fillfactor = 80);
