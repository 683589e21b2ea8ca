-- Migrations: DDL that is recorded once, and run in each shard. The shards are those of the test before.
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;

-- What cannot be recorded.
SELECT insta_ids.add_migration('', 'CREATE TABLE t ()');
SELECT insta_ids.add_migration(repeat('x', 256), 'CREATE TABLE t ()');
SELECT insta_ids.add_migration('0001', repeat('-', 1000001));
SELECT insta_ids.add_migration('0001', '');
SELECT insta_ids.add_migration('0001', '-- nothing' || E'\n;;');
SELECT insta_ids.add_migration('0001', E'CREATE TABLE t ();\n-- größer\nCREATE TABEL u ()');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (');
SELECT insta_ids.add_migration('0001', 'BEGIN; CREATE TABLE t (); COMMIT');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (); SAVEPOINT s');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (); CREATE INDEX CONCURRENTLY ON t (a)');
SELECT insta_ids.add_migration('0001', 'DROP INDEX CONCURRENTLY t');
SELECT insta_ids.add_migration('0001', 'REINDEX (CONCURRENTLY, VERBOSE) TABLE t');
SELECT insta_ids.add_migration('0001', 'REINDEX (CONCURRENTLY false) TABLE t', transactional => false);
SELECT insta_ids.add_migration('0001', 'SET LOCAL a.b = 1; SET search_path = s');
SELECT insta_ids.add_migration('0001', $$SELECT pg_catalog.set_config('search_path', '', false)$$);
SELECT insta_ids.add_migration('0001', 'RESET ROLE');
SELECT insta_ids.add_migration('0001', 'SET LOCAL SESSION AUTHORIZATION postgres');
SELECT insta_ids.add_migration('0001', 'DISCARD PLANS');
SELECT insta_ids.add_migration('0001', 'ALTER TABLE t DETACH PARTITION u CONCURRENTLY');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t ()', transactional => false);
SELECT insta_ids.add_migration('0001', 'CREATE INDEX CONCURRENTLY ON t (a); SELECT 1', transactional => false);
-- What belongs to the whole database.
DO $$
DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY ARRAY[
        'CREATE DATABASE d', 'ALTER DATABASE d SET a.b = 1', 'DROP DATABASE d', 'CREATE ROLE r', 'ALTER ROLE r SET a.b = 1', 'DROP ROLE r',
        'GRANT r TO s', 'CREATE SCHEMA s', 'ALTER SCHEMA s RENAME TO t', 'ALTER SCHEMA s OWNER TO r', 'DROP SCHEMA s', 'GRANT USAGE ON SCHEMA s TO r',
        'COMMENT ON SCHEMA s IS NULL', 'CREATE EXTENSION e', 'ALTER EXTENSION e UPDATE', 'ALTER EXTENSION e SET SCHEMA s', 'DROP EXTENSION e',
        'CREATE PUBLICATION p', 'DROP PUBLICATION p', 'CREATE SUBSCRIPTION s CONNECTION ''c'' PUBLICATION p', 'DROP SUBSCRIPTION s',
        'CREATE FOREIGN DATA WRAPPER w', 'CREATE SERVER s FOREIGN DATA WRAPPER w', 'DROP SERVER s', 'CREATE USER MAPPING FOR r SERVER s',
        'IMPORT FOREIGN SCHEMA s FROM SERVER t INTO u', 'CREATE EVENT TRIGGER t ON sql_drop EXECUTE FUNCTION f()', 'DROP EVENT TRIGGER t',
        'CREATE CAST (a AS b) WITHOUT FUNCTION', 'DROP CAST (a AS b)', 'CREATE LANGUAGE l', 'DROP LANGUAGE l',
        'CREATE TRANSFORM FOR a LANGUAGE l (FROM SQL WITH FUNCTION f(a))', 'CREATE TABLESPACE t LOCATION $q$/t$q$', 'DROP TABLESPACE t',
        'ALTER TABLE ALL IN TABLESPACE t SET TABLESPACE u', 'CREATE ACCESS METHOD m TYPE TABLE HANDLER f', 'DROP ACCESS METHOD m',
        'ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO r', 'GRANT SELECT ON ALL TABLES IN SCHEMA s TO r', 'GRANT USAGE ON FOREIGN SERVER s TO r',
        'GRANT CONNECT ON DATABASE d TO r', 'REASSIGN OWNED BY r TO s', 'DROP OWNED BY r', 'ALTER SYSTEM SET a = 1', 'VACUUM t', 'VACUUM', 'ANALYZE',
        'CLUSTER', 'REINDEX SCHEMA s', 'REINDEX SCHEMA CONCURRENTLY s', 'CHECKPOINT', 'LOAD $q$l$q$', 'COPY t FROM STDIN', 'LISTEN c', 'NOTIFY c',
        'PREPARE p AS SELECT 1', 'EXECUTE p', 'DEALLOCATE p', 'DECLARE c CURSOR FOR SELECT 1', 'FETCH c', 'EXPLAIN SELECT 1', 'SHOW a',
        'SECURITY LABEL ON ROLE r IS NULL']
    LOOP
        BEGIN
            PERFORM insta_ids.add_migration('0001', statement);
            RAISE WARNING 'accepted: %', statement;
        EXCEPTION WHEN invalid_parameter_value THEN
            NULL;
        END;
    END LOOP;
END
$$;
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (); CREATE EXTENSION IF NOT EXISTS e');
SELECT insta_ids.add_migration('0001', 'CREATE SERVER s FOREIGN DATA WRAPPER w');
-- A schema of its own.
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (); CREATE TABLE shard5.t ()');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE public.t ()');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE s.t AS SELECT 1');
SELECT insta_ids.add_migration('0001', 'CREATE INDEX ON s.t (a)');
SELECT insta_ids.add_migration('0001', 'ALTER TABLE s.t ADD a int');
SELECT insta_ids.add_migration('0001', 'ALTER TABLE s.t RENAME a TO b');
SELECT insta_ids.add_migration('0001', 'CREATE VIEW s.v AS SELECT 1');
SELECT insta_ids.add_migration('0001', 'CREATE SEQUENCE s.q');
SELECT insta_ids.add_migration('0001', 'CREATE TYPE s.c AS (a int)');
SELECT insta_ids.add_migration('0001', 'CREATE TYPE s.e AS ENUM ()');
SELECT insta_ids.add_migration('0001', 'CREATE DOMAIN s.d AS int');
SELECT insta_ids.add_migration('0001', 'CREATE FUNCTION s.f() RETURNS int LANGUAGE sql RETURN 1');
SELECT insta_ids.add_migration('0001', 'CREATE TRIGGER g BEFORE INSERT ON s.t EXECUTE FUNCTION f()');
SELECT insta_ids.add_migration('0001', 'CREATE FOREIGN TABLE s.t () SERVER x');
SELECT insta_ids.add_migration('0001', 'SELECT 1 AS a INTO s.t');
SELECT insta_ids.add_migration('0001', 'ALTER TABLE t SET SCHEMA s');
SELECT insta_ids.add_migration('0001', 'CREATE TYPE s.r AS RANGE (subtype = int)');
SELECT insta_ids.add_migration('0001', 'CREATE POLICY p ON s.t');
SELECT insta_ids.add_migration('0001', 'CREATE RULE r AS ON INSERT TO s.t DO NOTHING');
SELECT insta_ids.add_migration('0001', 'CREATE AGGREGATE s.a (int) (sfunc = f, stype = int)');
SELECT insta_ids.add_migration('0001', 'CREATE STATISTICS s.x ON a, b FROM t');
SELECT insta_ids.add_migration('0001', 'ALTER SEQUENCE s.q CACHE 5');
SELECT insta_ids.add_migration('0001', 'TRUNCATE t, s.t');
SELECT insta_ids.add_migration('0001', 'DROP TABLE t, s.t');
-- Of all other objects, each is known by its schema, and has none without it.
SELECT written, with_schema.schema, with_schema.kind, without.schema AS without
FROM unnest(ARRAY[
    'DROP FUNCTION f(), s.f()', 'DROP PROCEDURE s.p', 'DROP ROUTINE s.f', 'DROP AGGREGATE s.a(int)', 'DROP TYPE t, s.t', 'DROP DOMAIN s.d',
    'DROP VIEW s.v', 'DROP MATERIALIZED VIEW s.m', 'DROP FOREIGN TABLE s.t', 'DROP SEQUENCE s.q', 'DROP INDEX s.i', 'DROP COLLATION s.c',
    'DROP STATISTICS s.x', 'DROP TRIGGER g ON s.t', 'DROP RULE r ON s.t', 'DROP POLICY p ON s.t', 'DROP OPERATOR s.+ (int, int)',
    'DROP OPERATOR CLASS s.o USING btree', 'DROP OPERATOR FAMILY s.o USING btree', 'DROP TEXT SEARCH CONFIGURATION s.c',
    'ALTER FUNCTION s.f() STABLE', 'ALTER FUNCTION s.f() OWNER TO r', 'ALTER FUNCTION s.f() RENAME TO g', 'ALTER FUNCTION s.f() SET SCHEMA t',
    'ALTER FUNCTION s.f() DEPENDS ON EXTENSION e', 'ALTER TYPE s.e ADD VALUE $q$a$q$', 'ALTER TYPE s.e RENAME VALUE $q$a$q$ TO $q$b$q$',
    'ALTER TYPE s.c ADD ATTRIBUTE a int', 'ALTER TYPE s.c OWNER TO r', 'ALTER TYPE s.c SET (analyze = f)', 'ALTER TYPE s.c RENAME TO d',
    'ALTER DOMAIN s.d SET NOT NULL', 'ALTER DOMAIN s.d RENAME TO e', 'ALTER DOMAIN s.d RENAME CONSTRAINT a TO b', 'ALTER VIEW s.v RENAME TO w',
    'ALTER INDEX s.i RENAME TO j', 'ALTER TRIGGER g ON s.t RENAME TO h', 'ALTER POLICY p ON s.t USING (true)', 'ALTER POLICY p ON s.t RENAME TO q',
    'ALTER RULE r ON s.t RENAME TO q', 'ALTER STATISTICS s.x SET STATISTICS 5', 'ALTER STATISTICS s.x OWNER TO r', 'ALTER COLLATION s.c REFRESH VERSION',
    'ALTER OPERATOR s.+ (int, int) SET (RESTRICT = f)', 'ALTER OPERATOR FAMILY s.o USING btree ADD FUNCTION 1 f(int)',
    'ALTER OPERATOR CLASS s.o USING btree OWNER TO r', 'ALTER TEXT SEARCH CONFIGURATION s.c DROP MAPPING FOR a',
    'ALTER TEXT SEARCH DICTIONARY s.d (a = 1)', 'CREATE OPERATOR FAMILY s.o USING btree',
    'CREATE OPERATOR CLASS s.o FOR TYPE int USING btree AS OPERATOR 1 <', 'REFRESH MATERIALIZED VIEW s.m',
    'COMMENT ON TABLE s.t IS NULL', 'COMMENT ON COLUMN s.t.a IS NULL', 'COMMENT ON FUNCTION s.f() IS NULL', 'COMMENT ON TYPE s.e IS NULL',
    'COMMENT ON CONSTRAINT c ON s.t IS NULL', 'COMMENT ON CONSTRAINT c ON DOMAIN s.d IS NULL', 'COMMENT ON TRIGGER g ON s.t IS NULL',
    'COMMENT ON POLICY p ON s.t IS NULL', 'COMMENT ON RULE r ON s.t IS NULL', 'COMMENT ON INDEX s.i IS NULL', 'COMMENT ON SEQUENCE s.q IS NULL',
    'COMMENT ON OPERATOR CLASS s.o USING btree IS NULL', 'SECURITY LABEL ON COLUMN s.t.a IS NULL', 'SECURITY LABEL ON FUNCTION s.f() IS NULL',
    'GRANT SELECT ON t, s.t TO r', 'GRANT USAGE ON SEQUENCE s.q TO r', 'GRANT EXECUTE ON FUNCTION f(), s.f() TO r', 'GRANT USAGE ON TYPE s.e TO r',
    'REVOKE SELECT (a) ON s.t FROM r']) written
CROSS JOIN LATERAL insta_ids_internal.statements(written) with_schema
CROSS JOIN LATERAL (SELECT s.schema FROM insta_ids_internal.statements(replace(replace(written, 's.', ''), 'SET SCHEMA t', 'RENAME TO t')) s) without
WHERE with_schema.schema IS DISTINCT FROM 's' OR without.schema IS NOT NULL OR with_schema.kind <> 'ordinary';
SELECT insta_ids.add_migration('0001', 'DROP FUNCTION public.f()');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (id bigint DEFAULT nextval(''Shard1999 . q''))');
SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (id bigint DEFAULT "shard0".next_id())');
SELECT count(*) FROM insta_ids_internal.migration;

-- Other schemas can be referred to, and so can what only looks like a shard.
CREATE TABLE countries (code text PRIMARY KEY);
SELECT insta_ids.add_migration('0001', $$
    CREATE TABLE photos (
        id bigint PRIMARY KEY DEFAULT next_id(),
        country text REFERENCES public.countries,
        note text DEFAULT 'shard2000.x myshard5.x shard05.x'
    );
    CREATE INDEX ON photos (country);
    CREATE SEQUENCE likes_id_seq;
    CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id('likes_id_seq'), photo_id bigint REFERENCES photos);
    CREATE FUNCTION likes_of(bigint) RETURNS bigint STABLE
        BEGIN ATOMIC SELECT count(*) FROM likes WHERE photo_id = $1; END;
$$);
-- The same again is nothing new; another text, as long as it was applied nowhere.
SELECT insta_ids.add_migration('0002', 'CREATE TABLE wrong ()');
SELECT insta_ids.add_migration('0002', 'CREATE TABLE wrong ()');
SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD caption text');
SELECT number, name, ddl, transactional, check_ids FROM insta_ids_internal.migration WHERE number > 1;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT insta_ids.add_migration('0002', 'SELECT 1');
ROLLBACK;

CREATE SCHEMA app;
SET search_path = app, public;
CALL insta_ids.migrate();
SHOW search_path;
SELECT shard, applied, pending, failed, tables FROM insta_ids.shards ORDER BY shard;
\d shard8.photos
\d shard8.likes
EXPLAIN (VERBOSE, COSTS OFF) INSERT INTO shard8.likes DEFAULT VALUES;
INSERT INTO shard8.photos VALUES (make_id('2026-01-01', 9, 1));
INSERT INTO shard8.photos DEFAULT VALUES RETURNING id_shard(id), caption;
SELECT shard8.likes_of(5);
SELECT insta_ids.add_migration('0002', 'SELECT 1');
SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD caption text', check_ids => false);
DELETE FROM insta_ids_internal.migration WHERE name = '0002';
UPDATE insta_ids_internal.migration SET ddl = 'DROP TABLE photos';

-- New shards get them all.
SELECT insta_ids.create_shard(10);
SELECT name, state FROM insta_ids.migration_status WHERE shard = 10;

-- One that fails in a shard: entirely or not at all, the others go on, a second call does what is missing.
ALTER TABLE shard8.photos ADD likes int;
SELECT insta_ids.add_migration('0003', 'CREATE TABLE half (); ALTER TABLE photos ADD likes int; CREATE TABLE rest ()');
SELECT insta_ids.add_migration('0004', 'ALTER TABLE likes ADD at timestamptz');
CALL insta_ids.migrate();
SELECT name, shard, state, statement, sqlstate, message FROM insta_ids.migration_status WHERE state <> 'applied' ORDER BY number;
SELECT shard, schema, applied, pending, failed FROM insta_ids.shards ORDER BY shard;
SELECT to_regclass('shard8.half'), to_regclass('shard9.rest');
CALL insta_ids.migrate(9);
CALL insta_ids.migrate();
ALTER TABLE shard8.photos DROP likes;
CALL insta_ids.migrate(last => 8);
SELECT count(*) FROM insta_ids.migration_status WHERE state <> 'applied';

-- A new shard for which one fails is not made.
CREATE TABLE app.once ();
SELECT insta_ids.add_migration('0005', 'ALTER TABLE app.once ADD a int');
SELECT insta_ids.add_migration('0005', 'SELECT 1; DO $do$ BEGIN IF current_schema = ''shard12'' THEN RAISE division_by_zero USING DETAIL = ''Here.'', HINT = ''There.''; END IF; END $do$');
CALL insta_ids.migrate();
SELECT insta_ids.create_shard(12);
CALL insta_ids.create_shards(11, 14, batch => 10);
SELECT shard FROM insta_ids_internal.shard ORDER BY shard;
SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard1' ORDER BY 1;
SELECT * FROM insta_ids.progress;

-- Each default of next_id has its CHECK, however it came to be.
SELECT insta_ids.add_migration('0006', $$
    CREATE TABLE copy (LIKE photos INCLUDING DEFAULTS);
    DO $do$ BEGIN
        BEGIN
            EXECUTE 'CREATE TABLE dynamic (a bigint, "Ä B" bigint DEFAULT coalesce(next_id(), 1))';
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END $do$;
    CREATE TABLE parts (id bigint DEFAULT next_id(), at date) PARTITION BY RANGE (at);
    CREATE TABLE part PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
    CREATE TABLE own (id bigint DEFAULT next_id() CHECK (id_shard(id) = split_part(current_schema, 'd', 2)::int));
    CREATE TABLE native (id bigint DEFAULT public.next_id(9, 'table_id_seq'));
    CREATE TABLE none (id bigint DEFAULT nextval('table_id_seq'), name text DEFAULT next_id());
    CREATE FUNCTION wrapped() RETURNS bigint LANGUAGE sql RETURN next_id();
    CREATE DOMAIN id AS bigint;
    CREATE TABLE wraps (id id DEFAULT wrapped());
    ALTER TABLE wraps ALTER id SET DEFAULT next_id();
    CREATE VIEW v AS SELECT id FROM photos;
    ALTER VIEW v ALTER id SET DEFAULT next_id();
    ALTER TABLE likes ADD other bigint DEFAULT next_id();
$$);
CALL insta_ids.migrate();
SELECT conrelid::regclass, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'shard9'::regnamespace AND contype = 'c' ORDER BY conrelid::regclass::text, 2;
-- But not where that is not wanted, and later migrations do not bring it either.
SELECT insta_ids.add_migration('0007', 'CREATE TABLE unchecked (id bigint DEFAULT next_id())', check_ids => false);
SELECT insta_ids.add_migration('0008', 'CREATE TABLE checked (id bigint DEFAULT next_id())');
CALL insta_ids.migrate();
SELECT conrelid::regclass FROM pg_constraint
WHERE connamespace = 'shard9'::regnamespace AND contype = 'c' AND conrelid::regclass::text ~ 'checked';
-- Nor does it need the statistics.
SET track_counts = off;
SELECT insta_ids.add_migration('0009', 'CREATE TABLE uncounted (id bigint DEFAULT next_id())');
CALL insta_ids.migrate();
RESET track_counts;
SELECT conrelid::regclass FROM pg_constraint WHERE connamespace = 'shard9'::regnamespace AND conname ~ 'uncounted';

-- search_path is the shard's for each statement, and the caller's afterwards.
SELECT insta_ids.add_migration('0010', $$
    SET LOCAL search_path = '';
    CREATE TABLE here (path text DEFAULT current_setting('search_path'))
$$);
CREATE TABLE app.of_the_caller ();
SELECT insta_ids.add_migration('0011', 'CREATE TABLE like_it (LIKE of_the_caller)');
CALL insta_ids.migrate();
SELECT to_regclass('shard9.here'), to_regclass('shard9.like_it');
SHOW search_path;

-- What a shard lacks is not altered elsewhere. A role that is taken on is given back.
CREATE TABLE app.elsewhere (a int);
SELECT insta_ids.add_migration('0011b', 'CREATE INDEX ON elsewhere (a)');
CALL insta_ids.migrate(9, 9);
SELECT insta_ids.add_migration('0011b', 'DROP TABLE IF EXISTS here, elsewhere');
CALL insta_ids.migrate(9, 9);
CREATE FUNCTION app.elsewhere() RETURNS int LANGUAGE sql RETURN 1;
CREATE TYPE app.state AS ENUM ('new');
SELECT insta_ids.add_migration('0011b', 'DROP FUNCTION IF EXISTS elsewhere()');
CALL insta_ids.migrate(9, 9);
SELECT insta_ids.add_migration('0011b', $$ALTER TYPE state ADD VALUE 'old'$$);
CALL insta_ids.migrate(9, 9);
SELECT insta_ids.add_migration('0011b', 'REVOKE ALL ON FUNCTION lower(text) FROM PUBLIC');
CALL insta_ids.migrate(9, 9);
DROP FUNCTION app.elsewhere();
DROP TYPE app.state;
SELECT insta_ids.add_migration('0011b', $$
    CREATE TEMPORARY TABLE made (a int) ON COMMIT DROP;
    CREATE INDEX ON made (a);
    DROP TABLE made;
    ALTER TABLE here ADD a int;
    CREATE FUNCTION lower(text) RETURNS text LANGUAGE sql RETURN $1;
    REVOKE ALL ON FUNCTION insta_ids_shard.lower(text) FROM PUBLIC;
    DROP FUNCTION IF EXISTS insta_ids_shard.lower(text), nowhere(text);
    DO $do$ BEGIN EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO maker', current_schema); END $do$;
    SET LOCAL ROLE maker;
    CREATE TABLE made (a int);
    ALTER TABLE made ADD id bigint DEFAULT next_id()
$$);
CREATE ROLE maker;
CALL insta_ids.migrate();
SELECT relname, pg_get_userbyid(relowner) FROM pg_class
WHERE relnamespace = 'shard9'::regnamespace AND relname IN ('made', 'here') ORDER BY 1;
\d app.elsewhere
SHOW role;

-- What cannot run in a transaction, by a script; what comes after it waits, but not in new shards.
SELECT insta_ids.add_migration('0012', 'CREATE INDEX /* /* not here: */ CONCURRENTLY */ concurrently caption ON photos (caption)', transactional => false);
SELECT insta_ids.add_migration('0013', 'ALTER TABLE photos ADD width int');
CALL insta_ids.migrate(9, 9);
SELECT name, state FROM insta_ids.migration_status WHERE shard = 9 AND state <> 'applied' ORDER BY number;
SELECT insta_ids.migration_script('0012') LIMIT 3;
SELECT insta_ids.migration_script('0013');
SELECT insta_ids.migration_script('none');
SELECT insta_ids.create_shard(15);
SELECT indexdef FROM pg_indexes WHERE schemaname = 'shard15' AND indexname = 'caption';
SELECT name, state FROM insta_ids.migration_status WHERE shard = 15 AND state <> 'applied';
-- Row by row, as \gexec sends them. In one shard it fails, and nothing is taken to be done there.
SELECT insta_ids_internal.finish_migration('0012', 9, '');
BEGIN;
SELECT insta_ids_internal.start_migration('0012', 9, 'app');
ROLLBACK;
CREATE INDEX caption ON shard9.photos (id);
SELECT line FROM insta_ids.migration_script('0012') line \gexec
SHOW search_path;
SELECT shard, state, sqlstate, message FROM insta_ids.migration_status WHERE name = '0012' ORDER BY shard;
DROP INDEX shard9.caption;
SELECT line FROM insta_ids.migration_script('0012') line \gexec
SELECT insta_ids_internal.finish_migration('0013', 9, '');
SELECT insta_ids_internal.finish_migration('0012', 1000, '');
CALL insta_ids.migrate();
-- Nor is what did not run, what was replaced, or what left an invalid index.
SELECT insta_ids.add_migration('0013b', 'CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS twice ON likes (photo_id)', transactional => false);
INSERT INTO shard4.photos DEFAULT VALUES;
INSERT INTO shard4.likes (photo_id) SELECT id FROM shard4.photos, generate_series(1, 2);
SELECT insta_ids_internal.start_migration('0013b', 4, 'app, public');
SELECT insta_ids_internal.finish_migration('0013b', 4, md5('another text'));
SELECT insta_ids_internal.start_migration('0013b', 4, 'app, public');
SELECT 1;
SELECT insta_ids_internal.finish_migration('0013b', 4, md5('another text'));
SET search_path = app, public;
\set VERBOSITY terse
SELECT line FROM insta_ids.migration_script('0013b') line LIMIT 3 \gexec
\set VERBOSITY default
SELECT line FROM insta_ids.migration_script('0013b') line LIMIT 3 \gexec
DROP INDEX shard4.twice;
TRUNCATE shard4.likes;
SELECT line FROM insta_ids.migration_script('0013b') line \gexec
SHOW search_path;
CALL insta_ids.migrate();
SELECT count(*) FROM insta_ids.migration_status WHERE state <> 'applied';

-- What cannot be asked.
CALL insta_ids.migrate(5, 4);
CALL insta_ids.migrate(2000);
CALL insta_ids.migrate(batch => 0);
CALL insta_ids.migrate(lock_timeout => 'soon');
CALL insta_ids.migrate(lock_timeout => interval '1 month');

-- A shard that is missing fails, and is not made up for elsewhere.
DROP SCHEMA shard9 CASCADE;
SELECT insta_ids.add_migration('0014', 'CREATE TABLE stray ()');
CALL insta_ids.migrate();
SELECT shard, state, sqlstate, message FROM insta_ids.migration_status WHERE name = '0014' AND state <> 'applied';
SELECT count(*) FROM pg_class WHERE relname = 'stray';
SELECT insta_ids.drop_shard(9);
SELECT insta_ids.add_migration('0015', 'CREATE INDEX CONCURRENTLY stray_index ON photos (id)', transactional => false);
CREATE TABLE app.photos (id bigint);
DROP TABLE shard8.photos CASCADE;
DROP SCHEMA shard10 CASCADE;
SELECT line FROM insta_ids.migration_script('0015') line \gexec
SELECT shard, state, message FROM insta_ids.migration_status WHERE name = '0015' ORDER BY shard;
\d app.photos
RESET client_min_messages;
DROP OWNED BY maker;
DROP ROLE maker;

-- Without a lock_timeout, a call would wait without a limit.
CALL insta_ids.migrate(lock_timeout => NULL);
SELECT insta_ids.check_migration('0001', lock_timeout => NULL);
