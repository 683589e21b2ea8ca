//! One shard is restored, cloned, archived and brought back, by the commands of docs/shards.md.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;

use crate::writers::Stop;
use support::{Cluster, blocks, count, disorders, duplicates, ids, pg_config, refused, scratch, texts};

const DOCUMENT: &str = "docs/shards.md";

/// A server with the database of the document, and a directory for its dumps.
struct Server(Cluster, std::path::PathBuf);

const MIGRATION: &str = "
    CREATE TABLE photos (
        id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL, parent_id bigint REFERENCES photos,
        cover_id bigint);
    CREATE SEQUENCE likes_id_seq;
    CREATE TABLE likes (
        id bigint PRIMARY KEY DEFAULT next_id('likes_id_seq'), photo_id bigint NOT NULL REFERENCES photos,
        twice bigint GENERATED ALWAYS AS (photo_id - id) STORED);
    CREATE TABLE notes (
        photo_id bigint REFERENCES photos, number integer GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (photo_id, number));
    CREATE TABLE marks (photo_id bigint, number integer, PRIMARY KEY (photo_id, number), FOREIGN KEY (photo_id, number) REFERENCES notes);
    CREATE TYPE mood AS ENUM ('calm', 'wild');
    CREATE TABLE kinds (kind text PRIMARY KEY, mood mood, moods mood[]);
    CREATE TABLE of_kinds (kind text PRIMARY KEY REFERENCES kinds DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO kinds VALUES ('portrait', 'calm', '{calm,wild}');
    INSERT INTO of_kinds VALUES ('portrait');
    CREATE TRIGGER noted AFTER INSERT ON of_kinds FOR EACH ROW WHEN (false) EXECUTE FUNCTION suppress_redundant_updates_trigger();
    CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
        EXECUTE format('INSERT INTO %I.notes VALUES ($1)', TG_TABLE_SCHEMA) USING NEW.id;
        RETURN NULL;
    END $f$;
    CREATE TRIGGER noted AFTER INSERT ON photos FOR EACH ROW EXECUTE FUNCTION noted();
    ALTER TABLE photos ENABLE ALWAYS TRIGGER noted;
    CREATE RULE twice AS ON INSERT TO kinds DO ALSO INSERT INTO of_kinds VALUES (NEW.kind);
    CREATE DOMAIN photo AS bigint;
    CREATE TABLE shown_in (photo photo REFERENCES photos, place text);
    CREATE TABLE shown_abroad () INHERITS (shown_in);
    ALTER TABLE shown_in ADD CONSTRAINT own CHECK (photo >> 23 > 0);
    CREATE VIEW shown AS TABLE photos;
    DO $f$ BEGIN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO app', current_schema);
        EXECUTE format('GRANT SELECT, INSERT ON photos, shown, notes TO app; GRANT USAGE ON SEQUENCE %I.table_id_seq TO app', current_schema);
    END $f$";

impl Server {
    /// With shards 5 and 6, and rows in shard 5.
    fn start(name: &str) -> Self {
        let cluster = Cluster::bare(name);
        cluster.connect().batch_execute("CREATE DATABASE app").unwrap();
        let directory = scratch().join(name);
        fs::create_dir_all(&directory).unwrap();
        let server = Self(cluster, directory);
        let mut client = server.connect();
        client
            .batch_execute(
                "CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids; CREATE ROLE app LOGIN;
                 GRANT USAGE ON SCHEMA ids TO app; ALTER DATABASE app SET search_path = public, ids",
            )
            .unwrap();
        let mut client = server.connect();
        client.batch_execute("SELECT insta_ids.init(200)").unwrap();
        client.query("SELECT insta_ids.add_migration('0001 photos and likes', $1)", &[&MIGRATION]).unwrap();
        for statement in [
            "CALL insta_ids.create_shards(5, 6)",
            "INSERT INTO insta5.photos (user_id) SELECT n FROM generate_series(1, 500) n",
            "UPDATE insta5.photos SET parent_id = (SELECT min(id) FROM insta5.photos), cover_id = id",
            "INSERT INTO insta5.likes (photo_id) SELECT id FROM insta5.photos, generate_series(1, 2)",
            "INSERT INTO insta5.marks SELECT photo_id, number FROM insta5.notes",
        ] {
            client.batch_execute(statement).unwrap();
        }
        server
    }

    fn connect(&self) -> Client {
        self.0.connect_to("app")
    }

    /// Runs the commands of the document that are named so.
    fn run(&self, name: &str) {
        let commands = blocks(DOCUMENT, &format!("sh {name}")).concat();
        assert!(!commands.is_empty(), "{name}");
        self.command(&commands);
    }

    fn command(&self, commands: &str) {
        let path = format!("{}:{}", pg_config("--bindir"), std::env::var("PATH").unwrap());
        let done = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", commands])
            .current_dir(&self.1)
            .env("PATH", path)
            .env("PGHOST", &self.0.socket)
            .env("PGUSER", "postgres")
            .output()
            .unwrap();
        assert!(done.status.success(), "{commands}{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// What `check` finds, and `check_rows`.
fn findings(client: &mut Client) -> Vec<String> {
    client.batch_execute("CALL insta_ids.check_rows()").unwrap();
    texts(
        client,
        "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check() WHERE code NOT IN ('pg_dump_locks', 'no_replica_identity')",
    )
}

fn statements(kind: &str) -> Vec<String> {
    let block = blocks(DOCUMENT, &format!("sql {kind}")).concat();
    block
        .split_inclusive(";\n")
        .map(str::to_owned)
        .chain(block.is_empty().then(|| panic!("{kind}")))
        .collect()
}

const ALL: &str = "SELECT id FROM insta5.photos UNION ALL SELECT id FROM insta5.likes";

#[test]
fn rows_come_back_from_a_dump_beside_the_shard() {
    let server = Server::start("restored_beside");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    let before = ids(&mut client, &format!("{ALL} ORDER BY 1"));
    client
        .batch_execute("DELETE FROM insta5.marks; DELETE FROM insta5.notes; DELETE FROM insta5.likes; DELETE FROM insta5.photos WHERE user_id > 1")
        .unwrap();
    server.run("restore");
    for statement in statements("restored") {
        client.batch_execute(&statement).unwrap();
    }
    client
        .batch_execute(
            "INSERT INTO insta5.likes (id, photo_id) SELECT id, photo_id FROM restored_insta5.likes",
        )
        .unwrap();
    assert_eq!(ids(&mut client, &format!("{ALL} ORDER BY 1")), before);
    assert_eq!(findings(&mut client), [""; 0]);
    assert_eq!(
        texts(&mut client, "SELECT datname::text FROM pg_database WHERE datname = 'scratch'"),
        [""; 0]
    );
}

/// None of what clients wrote is lost, and no id comes twice.
#[test]
fn a_dump_takes_the_place_of_a_shard_while_clients_write() {
    let server = Server::start("restored_in_place");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    let dumped = ids(&mut client, "SELECT id FROM insta5.photos ORDER BY 1");
    client.batch_execute("DELETE FROM insta5.likes").unwrap();
    server.run("restore");
    let stop = AtomicBool::new(false);
    let written: Vec<Vec<i64>> = thread::scope(|scope| {
        let stop = &stop;
        let _stopped = Stop(stop);
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                // A view of the schema is bound to its table, so what waits for that is told to try again.
                let table = ["photos", "shown"][writer % 2];
                let mut client =
                    server.0.config().dbname("app").user("app").connect(postgres::NoTls).unwrap();
                scope.spawn(move || {
                    let mut written = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let insert = format!("INSERT INTO insta5.{table} (user_id) VALUES (7) RETURNING id");
                        match client.query_one(&insert, &[]) {
                            Ok(row) => written.push(row.get::<_, i64>(0)),
                            Err(error) => {
                                assert!(
                                    table == "shown"
                                        && error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION),
                                    "{error:?}"
                                );
                            }
                        }
                    }
                    written
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(300));
        for statement in statements("replace") {
            client.batch_execute(&statement).unwrap();
        }
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(written.iter().all(|ids| disorders(ids) == 0));
    assert_eq!(duplicates(written.iter().chain([&dumped])), 0);
    let (new, old) = (
        ids(&mut client, "SELECT id FROM insta5.photos ORDER BY 1"),
        ids(&mut client, "SELECT id FROM replaced_insta5.photos ORDER BY 1"),
    );
    assert!(new.starts_with(&dumped) && old.starts_with(&dumped));
    assert!(new.len() > dumped.len() && old.len() > dumped.len());
    assert_eq!(
        new.len() + old.len(),
        2 * dumped.len() + written.iter().map(Vec::len).sum::<usize>(),
        "each row is in one of the two"
    );
    assert!(new[dumped.len()] > old[old.len() - 1]);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.likes"), 1000);
    assert_eq!(findings(&mut client), [""; 0]);
    // Nobody writes to it any more. What is newer than the dump can be taken over.
    for write in ["INSERT INTO replaced_insta5.photos (user_id) VALUES (1)", "TRUNCATE replaced_insta5.marks"]
    {
        assert_eq!(refused(&mut client, write).code().code(), "25006");
    }
    client.batch_execute("DROP TRIGGER noted ON replaced_insta5.photos").unwrap();
    client
        .batch_execute(
            "INSERT INTO insta5.photos SELECT r.* FROM replaced_insta5.photos r
             WHERE NOT EXISTS (SELECT FROM insta5.photos p WHERE p.id = r.id);
             SET ROLE app",
        )
        .unwrap();
    assert_eq!(refused(&mut client, "SELECT FROM replaced_insta5.photos").code().code(), "42501");
    client
        .batch_execute("SELECT FROM insta5.photos; RESET ROLE; DROP SCHEMA replaced_insta5 CASCADE")
        .unwrap();
    assert_eq!(findings(&mut client), [""; 0]);
}

/// The time of ids may be ahead of the clock, and then only the sequence tells ids of one time apart.
#[test]
fn ids_are_greater_if_their_time_is_ahead() {
    let server = Server::start("restored_ahead");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    server.run("restore");
    client.batch_execute("SELECT insta_ids.advance_clock(now() + interval '10 min')").unwrap();
    client
        .batch_execute("INSERT INTO insta5.photos (user_id) SELECT 1 FROM generate_series(1, 300)")
        .unwrap();
    client.batch_execute("SELECT insta_ids.replace_shard(5, 'restored_insta5')").unwrap();
    let newest = count(&mut client, "SELECT max(id) FROM replaced_insta5.photos");
    let new = ids(
        &mut client,
        "INSERT INTO insta5.photos (user_id) SELECT 1 FROM generate_series(1, 300) RETURNING id",
    );
    assert!(new.iter().all(|&id| id > newest));
    assert_eq!(refused(&mut client, "SELECT replaced_insta5.next_id()").code().code(), "2200H");
}

/// A shard that was fenced is fenced afterwards, too.
#[test]
fn a_fence_stays() {
    let server = Server::start("restored_fenced");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    server.run("restore");
    client.batch_execute("SELECT insta_ids.fence(5)").unwrap();
    client.batch_execute("SELECT insta_ids.replace_shard(5, 'restored_insta5')").unwrap();
    let insert = "INSERT INTO insta5.photos (user_id) VALUES (1)";
    assert_eq!(refused(&mut client, insert).code().code(), "25006");
    client.batch_execute("SELECT insta_ids.unfence(5)").unwrap();
    client.batch_execute(insert).unwrap();
    assert_eq!(findings(&mut client), [""; 0]);
}

/// Somebody has dropped the schema.
#[test]
fn a_dump_takes_the_place_of_a_schema_that_is_gone() {
    let server = Server::start("restored_missing");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    server.run("restore");
    client.batch_execute("DROP SCHEMA insta5 CASCADE").unwrap();
    let kept: Option<String> =
        client.query_one("SELECT insta_ids.replace_shard(5, 'restored_insta5')::text", &[]).unwrap().get(0);
    assert_eq!(kept, None);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.photos"), 500);
    assert_eq!(findings(&mut client), [""; 0]);
}

/// What was migrated since the dump is migrated again.
#[test]
fn an_older_dump_is_migrated() {
    let server = Server::start("restored_older");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0002 captions', 'ALTER TABLE photos ADD COLUMN caption text')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    server.run("restore");
    for statement in statements("replace-migrated") {
        client.batch_execute(&statement).unwrap();
    }
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.photos WHERE caption IS NULL"), 500);
    assert_eq!(findings(&mut client), [""; 0]);
    client.batch_execute("ALTER SCHEMA replaced_insta5 RENAME TO other").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.replace_shard(5, 'other', '0003')");
    assert_eq!((error.code().code(), error.message()), ("42704", "migration \"0003\" does not exist"));
}

#[test]
fn a_schema_that_cannot_take_the_place_changes_nothing() {
    let server = Server::start("not_replaced");
    let mut client = server.connect();
    client.batch_execute("CREATE SCHEMA empty").unwrap();
    let state =
        "SELECT string_agg(n.nspname, ' ' ORDER BY n.oid) FROM pg_namespace n WHERE n.nspname !~ '^pg_'";
    let before = texts(&mut client, state);
    client.batch_execute("CREATE SCHEMA replaced_insta5").unwrap();
    for (arguments, code, message) in [
        ("7, 'empty'", "42704", "shard 7 does not exist"),
        ("5, 'insta6'", "22023", "schema insta6 cannot replace shard 5"),
        ("5, 'insta5'", "22023", "schema insta5 cannot replace shard 5"),
        ("5, 0", "22023", "schema - cannot replace shard 5"),
        ("5, 'empty'", "42P06", "schema \"replaced_insta5\" already exists"),
    ] {
        let error = refused(&mut client, &format!("SELECT insta_ids.replace_shard({arguments})"));
        assert_eq!((error.code().code(), error.message()), (code, message));
    }
    client.batch_execute("DROP SCHEMA replaced_insta5; CREATE VIEW outside AS TABLE insta5.photos").unwrap();
    assert_eq!(refused(&mut client, "SELECT insta_ids.replace_shard(5, 'empty')").code().code(), "2BP01");
    client.batch_execute("DROP VIEW outside; CREATE PUBLICATION outside FOR TABLE insta5.photos").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.replace_shard(5, 'empty')");
    assert_eq!(error.message(), "publication \"outside\" has tables of schema insta5");
    client.batch_execute("DROP PUBLICATION outside").unwrap();
    assert_eq!(
        refused(&mut client, "SELECT insta_ids.replace_shard(5, 'empty')").message(),
        "schema insta5 cannot be adopted as shard 5"
    );
    let mut writer = server.connect();
    writer.batch_execute("BEGIN; INSERT INTO insta5.photos (user_id) VALUES (1)").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.replace_shard(5, 'empty', lock_timeout => '100ms')");
    assert_eq!(error.code().code(), "55P03");
    writer.batch_execute("COMMIT").unwrap();
    assert_eq!(texts(&mut client, state), before);
    client.batch_execute("DROP SCHEMA empty").unwrap();
    assert_eq!(findings(&mut client), [""; 0]);
    client.batch_execute("INSERT INTO insta5.photos (user_id) VALUES (1)").unwrap();
}

/// A view that another session creates meanwhile would stay with the old schema.
#[test]
fn what_is_created_meanwhile_is_waited_for_and_seen() {
    let server = Server::start("replaced_meanwhile");
    let mut client = server.connect();
    server.command("pg_dump -Fc -f app.dump app");
    server.run("restore");
    client.batch_execute("BEGIN; CREATE VIEW outside AS TABLE insta5.photos").unwrap();
    let mut replacing = server.connect();
    let replace = "SELECT insta_ids.replace_shard(5, 'restored_insta5', lock_timeout => '30s')";
    thread::scope(|scope| {
        let replaced = scope.spawn(|| refused(&mut replacing, replace));
        thread::sleep(Duration::from_secs(1));
        assert!(!replaced.is_finished());
        client.batch_execute("COMMIT").unwrap();
        assert_eq!(replaced.join().unwrap().code().code(), "2BP01");
    });
    client.batch_execute("DROP VIEW outside").unwrap();
    client.batch_execute(replace).unwrap();
}

/// Every id of the shard becomes the one of the clone that differs by the shard alone, and so do all references.
#[test]
fn a_clone_has_ids_of_its_own() {
    let server = Server::start("cloned");
    let mut client = server.connect();
    // What is no id of the shard: an id of another shard, and a key from before the ids.
    client
        .batch_execute(
            "INSERT INTO insta5.photos (user_id, cover_id) VALUES (1, (SELECT ids.make_id(now(), 6, 1))), (2, 5 << 10), (3, NULL);
             INSERT INTO insta5.kinds VALUES ('landscape');
             CREATE FUNCTION ids.id_shard(insta5.photo) RETURNS integer LANGUAGE plpgsql
                 AS 'BEGIN RAISE ''of others''; END';
             INSERT INTO insta5.shown_in SELECT id, 'here' FROM insta5.photos;
             INSERT INTO insta5.shown_abroad SELECT id, 'there' FROM insta5.photos",
        )
        .unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let _stopped = Stop(stop);
        let mut writer = server.connect();
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let insert = "WITH p AS (INSERT INTO insta5.photos (user_id) VALUES (9) RETURNING id)
                    INSERT INTO insta5.likes (photo_id) SELECT id FROM p";
                // The photo is not there yet for the statement's own foreign key until it ends.
                writer.batch_execute(insert).unwrap();
            }
        });
        thread::sleep(Duration::from_millis(100));
        client.batch_execute("SELECT insta_ids.clone_shard(5, 105, '{photos.cover_id}')").unwrap();
    });
    assert_eq!(findings(&mut client), [""; 0]);
    let to_5 = "(SELECT ids.make_id('2020-01-01', 5, 0) - ids.make_id('2020-01-01', 105, 0))";
    for (table, columns) in [
        (
            "photos",
            format!(
                "id + {to_5}, user_id, parent_id + {to_5}, cover_id + CASE WHEN ids.id_shard(cover_id) = 105 THEN {to_5} ELSE 0 END"
            ),
        ),
        ("likes", format!("id + {to_5}, photo_id + {to_5}, twice")),
        ("notes", format!("photo_id + {to_5}, number")),
        ("marks", format!("photo_id + {to_5}, number")),
        ("kinds", "kind, mood, moods".to_owned()),
        ("of_kinds", "kind".to_owned()),
        ("shown_in", format!("photo + {to_5}, place")),
        ("shown_abroad", format!("photo + {to_5}, place")),
    ] {
        let missing = format!(
            "SELECT count(*) FROM (SELECT ROW({columns})::text FROM ONLY insta105.{table} EXCEPT ALL SELECT t::text FROM ONLY insta5.{table} t) m"
        );
        assert_eq!(count(&mut client, &missing), 0, "{table}");
        assert!(count(&mut client, &format!("SELECT count(*) FROM insta105.{table}")) > 0);
    }
    assert!(count(&mut client, "SELECT count(*) FROM insta105.photos") >= 503);
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM insta105.notes"),
        count(&mut client, "SELECT count(*) FROM insta105.photos")
    );
    // It is a shard like the others: new ids are greater, and triggers fire.
    let newest = count(&mut client, "SELECT max(id) FROM insta105.photos");
    assert!(count(&mut client, "INSERT INTO insta105.photos (user_id) VALUES (1) RETURNING id") > newest);
    assert_eq!(
        count(&mut client, "SELECT count(*) - (SELECT count(*) FROM insta105.photos) FROM insta105.notes"),
        0
    );
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM pg_trigger WHERE tgname = 'noted' AND tgenabled = 'A'"),
        3
    );
    let noted = "SELECT count(*) FROM insta105.of_kinds";
    let before = count(&mut client, noted);
    client.batch_execute("INSERT INTO insta105.kinds VALUES ('new')").unwrap();
    assert_eq!(count(&mut client, noted), before + 1);
}

#[test]
fn what_cannot_be_cloned_is_refused_and_leaves_nothing() {
    let server = Server::start("not_cloned");
    let mut client = server.connect();
    client.batch_execute("SELECT insta_ids.clone_shard(5, 105)").unwrap();
    for (arguments, code, message) in [
        ("5, 105", "42710", "shard 105 already exists"),
        ("7, 8", "42704", "shard 7 does not exist"),
        ("5, 200", "22003", "shard 200 is out of range"),
        ("5, 107, '{photos.at}'", "42703", "shard 5 has no bigint column photos.at"),
        ("5, 107, '{notes.number}'", "42703", "shard 5 has no bigint column notes.number"),
    ] {
        let error = refused(&mut client, &format!("SELECT insta_ids.clone_shard({arguments})"));
        assert_eq!((error.code().code(), error.message()), (code, message));
    }
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards"), 3);
    client
        .batch_execute("SELECT insta_ids.add_migration('0002', 'CREATE TABLE by_day (id bigint PRIMARY KEY DEFAULT next_id()) PARTITION BY RANGE (id)')")
        .unwrap();
    assert_eq!(
        refused(&mut client, "SELECT insta_ids.clone_shard(5, 107)").message(),
        "shard 5 lacks migration \"0002\""
    );
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client
        .batch_execute(
            "SELECT insta_ids.create_partitions('insta5.by_day', '1 day', now(), now() + interval '2 days', 'UTC');
             INSERT INTO insta5.by_day DEFAULT VALUES;
             SELECT insta_ids.clone_shard(5, 4, '{photos.cover_id}')",
        )
        .unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta4.by_day WHERE ids.id_shard(id) = 4"), 1);
    client.batch_execute("SELECT insta_ids.drop_shard(4, force => true)").unwrap();
    for (made, message) in [
        (
            "ALTER TABLE insta5.kinds ADD COLUMN more text",
            "migrations do not make column kinds.more of shard 5",
        ),
        ("CREATE TABLE insta5.by_hand (id bigint)", "migrations do not make table by_hand of shard 5"),
    ] {
        client.batch_execute(made).unwrap();
        assert_eq!(refused(&mut client, "SELECT insta_ids.clone_shard(5, 107)").message(), message);
    }
    client.batch_execute("DROP TABLE insta5.by_hand; ALTER TABLE insta5.kinds DROP COLUMN more").unwrap();
    // Code of an owner with fewer rights would run as the caller.
    client.batch_execute("ALTER TABLE insta5.kinds OWNER TO app").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.clone_shard(5, 107)");
    assert_eq!((error.code().code(), error.message()), ("42501", "table insta5.kinds belongs to role app"));
}

#[test]
fn the_clones_of_the_document_have_the_columns_that_are_named() {
    let server = Server::start("cloned_twice");
    let mut client = server.connect();
    for statement in statements("clone") {
        client.batch_execute(&statement).unwrap();
    }
    for (clone, shard_of_covers) in [("insta105", 5), ("insta106", 106)] {
        let others =
            format!("SELECT count(*) FROM {clone}.photos WHERE ids.id_shard(cover_id) <> {shard_of_covers}");
        assert_eq!(count(&mut client, &others), 0);
        assert_eq!(count(&mut client, &format!("SELECT count(*) FROM {clone}.photos")), 500);
    }
}

/// Nothing of it is lost, and its ids do not come again.
#[test]
fn a_shard_is_archived_and_brought_back() {
    let server = Server::start("archived");
    let mut client = server.connect();
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0002 captions', 'ALTER TABLE photos ADD COLUMN caption text')",
        )
        .unwrap();
    let before = ids(&mut client, &format!("{ALL} ORDER BY 1"));
    server.run("archive");
    assert_eq!(texts(&mut client, "SELECT schema::text FROM insta_ids.shards"), ["insta6"]);
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0003 places', 'ALTER TABLE photos ADD COLUMN place text')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    server.run("bring-back");
    assert_eq!(ids(&mut client, &format!("{ALL} ORDER BY 1")), before);
    assert_eq!(findings(&mut client), [""; 0]);
    let insert = "INSERT INTO insta5.photos (user_id, place) VALUES (1, 'here') RETURNING id";
    assert!(count(&mut client, insert) > before[before.len() - 1]);
    // The role goes on, too.
    client.batch_execute("SET ROLE app; INSERT INTO insta5.photos (user_id) VALUES (2)").unwrap();
}

/// A shard whose rows have ids from before there were shards is archived, unadopted and replaced like any other.
#[test]
fn a_shard_with_older_ids_comes_back() {
    let server = Server::start("archived_older");
    let mut client = server.connect();
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0002 captions', $$
                 ALTER TABLE photos ADD COLUMN caption text;
                 CREATE DOMAIN post AS bigint;
                 CREATE TABLE posts (id post PRIMARY KEY DEFAULT next_id(), body text);
                 DO $f$ BEGIN EXECUTE format('GRANT SELECT, INSERT ON %I.posts TO app', current_schema); END $f$; $$,
                 ids_since => '2011-08-26Z')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client
        .batch_execute(
            "INSERT INTO insta5.posts SELECT n * 200 + 5, 'post ' || n FROM generate_series(1, 300) n",
        )
        .unwrap();
    let mut writer = server.connect();
    writer.batch_execute("SET ROLE app").unwrap();
    let mut write = || count(&mut writer, "INSERT INTO insta5.posts (body) VALUES ('new') RETURNING id");
    let posts = "SELECT id::bigint FROM insta5.posts UNION ALL SELECT id FROM insta5.photos ORDER BY 1";
    let mut expected = ids(&mut client, posts);
    let mut continues = |client: &mut Client, way: &str| {
        // adopt() adds CHECKs without reading the rows once more.
        let mut found = findings(client);
        found.retain(|finding| !finding.starts_with("unvalidated_constraint"));
        assert_eq!(found, [""; 0], "{way}");
        expected.push(write());
        assert_eq!(ids(client, posts), expected, "{way}");
        assert!(expected.is_sorted_by(|one, next| one < next), "{way}");
        let error = refused(client, "INSERT INTO insta5.posts VALUES (ids.id_min(now()))");
        assert_eq!(error.code(), &SqlState::CHECK_VIOLATION, "{way}");
        // The age of the shard is not that of the older ids.
        assert_eq!(
            texts(
                client,
                "SELECT (created_at > now() - interval '1 day')::text FROM insta_ids_internal.shard WHERE shard = 5"
            ),
            ["true"],
            "{way}"
        );
    };
    continues(&mut client, "migrated");

    server.run("archive");
    server.run("bring-back");
    continues(&mut client, "archived");

    client.batch_execute("SELECT insta_ids.unadopt('insta5')").unwrap();
    client.batch_execute("SELECT insta_ids.adopt('insta5', 5)").unwrap();
    continues(&mut client, "unadopted");

    server.command("pg_dump -Fc -f app.dump app");
    server.run("restore");
    for statement in statements("replace") {
        client.batch_execute(&statement).unwrap();
    }
    client.batch_execute("DROP SCHEMA replaced_insta5 CASCADE").unwrap();
    continues(&mut client, "replaced");

    // What the CHECK does not allow is refused, and so is what a CHECK of another column allows.
    client.batch_execute("SELECT insta_ids.unadopt('insta5')").unwrap();
    client
        .batch_execute(
            "ALTER TABLE insta5.photos ADD CONSTRAINT other CHECK (user_id < 9000000000000000000 OR ids.id_shard(id) = 5);
             INSERT INTO insta5.photos (id, user_id) VALUES (ids.id_min(now()), 1)",
        )
        .unwrap();
    let error = refused(&mut client, "SELECT insta_ids.adopt('insta5', 5)");
    assert!(error.detail().unwrap().starts_with("Column insta5.photos.id: "), "{error:?}");
    for (table, column) in [("notes", "photo_id"), ("photos", "id")] {
        let delete = format!("DELETE FROM insta5.{table} WHERE ids.id_shard({column}) <> 5");
        client.batch_execute(&delete).unwrap();
    }
    client
        .batch_execute(
            "ALTER TABLE insta5.posts DROP CONSTRAINT posts_id_check; INSERT INTO insta5.posts VALUES (ids.id_min(now()))",
        )
        .unwrap();
    let error = refused(&mut client, "SELECT insta_ids.adopt('insta5', 5)");
    assert_eq!(error.message(), "schema insta5 cannot be adopted as shard 5");
}

/// A transaction with a snapshot from before does not write to the new rows: it would not see them.
#[test]
fn an_old_snapshot_does_not_write_to_a_replaced_shard() {
    let cluster = Cluster::start("replaced_snapshot");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(8), insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), body text)');
             SELECT insta_ids.create_shard(5); INSERT INTO insta5.photos (body) VALUES ('old')",
        )
        .unwrap();
    // The second one was created as long ago as the first one: with the same id.
    let update = "UPDATE insta5.photos SET body = 'new' RETURNING id";
    let mut writer = cluster.connect();
    for _ in 0..2 {
        writer.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").unwrap();
        client
            .batch_execute(
                "CREATE SCHEMA restored; CREATE SEQUENCE restored.table_id_seq;
                 CREATE TABLE restored.photos (id bigint PRIMARY KEY DEFAULT next_id(5, 'restored.table_id_seq'), body text);
                 INSERT INTO restored.photos SELECT * FROM insta5.photos",
            )
            .unwrap();
        client.batch_execute("SELECT insta_ids.replace_shard(5, 'restored')").unwrap();
        assert_eq!(refused(&mut writer, update).code(), &SqlState::T_R_SERIALIZATION_FAILURE);
        writer.batch_execute("ROLLBACK").unwrap();
        client.batch_execute("DROP SCHEMA replaced_insta5 CASCADE").unwrap();
    }
    assert_eq!(ids(&mut writer, update).len(), 1);
}
