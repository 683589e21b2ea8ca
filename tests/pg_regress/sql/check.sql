-- Checking: findings, and what their hints do.
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;

-- Shards of a database of their own, all alike.
CREATE DATABASE checked;
\c checked
SET client_min_messages = warning;
CREATE EXTENSION insta_ids;
SELECT * FROM insta_ids.check();
SELECT insta_ids.init(10);
SELECT * FROM insta_ids.check();
SELECT insta_ids.add_migration('0001 photos', $$
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text NOT NULL DEFAULT '');
    CREATE INDEX ON photos (caption)
$$);
CALL insta_ids.create_shards(0, 4);
SELECT * FROM insta_ids.check();

-- What is other than in most.
ALTER TABLE insta1.photos DROP COLUMN caption;
DROP INDEX insta2.photos_caption_idx;
ALTER TABLE insta3.photos ALTER id SET DEFAULT insta4.next_id(), DROP CONSTRAINT photos_id_check;
CREATE SCHEMA insta007;
\x
SELECT * FROM insta_ids.check();
\x
-- The hints without a statement are followed by hand.
ALTER TABLE insta1.photos ADD caption text NOT NULL DEFAULT '';
CREATE INDEX ON insta1.photos (caption);
CREATE INDEX ON insta2.photos (caption);
ALTER TABLE insta3.photos ALTER id SET DEFAULT insta3.next_id();
SELECT hint FROM insta_ids.check() WHERE code = 'missing_check' \gexec
DROP SCHEMA insta007;
SELECT code, object, hint FROM insta_ids.check();
SELECT hint FROM insta_ids.check() WHERE code = 'unvalidated_constraint' \gexec
SELECT * FROM insta_ids.check();

-- Every row.
ALTER TABLE insta3.photos DROP CONSTRAINT photos_id_check;
INSERT INTO insta3.photos VALUES (make_id('2026-01-01', 3, 1)), (make_id('2026-01-02', 4, 1)), (make_id('2026-01-03', 3, 1));
ALTER TABLE insta3.photos ADD CHECK (id_shard(id) = 3) NOT VALID;
CALL insta_ids.check_rows(0, 2);
CALL insta_ids.check_rows();
CALL insta_ids.check_rows(5);
CALL insta_ids.check_rows(3, 2);

-- What there is a limit to.
SELECT name, available, runs_out AT TIME ZONE 'UTC' AS runs_out FROM insta_ids_internal.sequence_budget() ORDER BY name;
SELECT resource, object, used > 0 AS used, available > 0 AS available, runs_out AT TIME ZONE 'UTC' AS runs_out
FROM insta_ids_internal.server_budget() ORDER BY resource;
