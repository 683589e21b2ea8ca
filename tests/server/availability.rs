//! Where ids can be minted, and what is said where they cannot.

use std::process::Command;

use postgres::error::{DbError, SqlState};

use support::{Cluster, NOT_PRELOADED, duplicates, ids, major, preload_needed, since};

fn refusal(client: &mut postgres::Client, query: &str) -> DbError {
    client.query(query, &[]).unwrap_err().as_db_error().unwrap().clone()
}

/// An error shows the server's users no backtrace, even where the environment asks Rust for one.
#[test]
fn users_see_no_rust_backtrace() {
    let mut cluster = Cluster::made("no_backtrace", &["make"]);
    cluster.environment = vec!["RUST_BACKTRACE=1".into(), "RUST_LIB_BACKTRACE=1".into()];
    cluster.up();
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s; CREATE TABLE e ()").unwrap();
    // PostgreSQL 17 and 18 have other words for it.
    let not_a_sequence =
        if matches!(major(), 17 | 18) { "cannot open relation \"e\"" } else { "\"e\" is not a sequence" };
    for (query, message, detail) in [
        ("SELECT next_id(5, 'e')", not_a_sequence, None),
        ("SELECT next_id(5, 1)", "relation with OID 1 does not exist", None),
        ("SELECT * FROM insta_ids_internal.statements('SELEC')", "syntax error at or near \"SELEC\"", None),
        ("SELECT id_shard(-1, 'none')", "invalid input syntax for type id_layout: \"none\"", None),
        ("SELECT next_id(-1, 's')", "shard -1 is out of range", Some("Shards are numbered from 0 to 8191.")),
        ("SELECT next_id(5, 's')", "cannot execute nextval() in a read-only transaction", None),
    ] {
        let read_only = if message.contains("read-only") { "on" } else { "off" };
        client.batch_execute(&format!("SET default_transaction_read_only = {read_only}")).unwrap();
        let error = refusal(&mut client, query);
        assert_eq!((error.message(), detail.or(error.detail())), (message, error.detail()), "{query}");
        assert!(!error.detail().unwrap_or_default().contains("stack backtrace"), "{error}");
        assert_eq!(
            error.detail().unwrap_or_default().lines().count().max(1),
            1,
            "{query}: {:?}",
            error.detail()
        );
    }
    assert!(!cluster.log().contains("   0: "));
}

/// Before PostgreSQL 17 a server that does not preload the library refuses to mint, and says what to set.
#[test]
fn without_preloading_ids_are_refused_before_17_and_minted_since() {
    let cluster = Cluster::with("not_preloaded", &[NOT_PRELOADED, "log_min_messages = warning"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s").unwrap();
    if preload_needed() {
        let error = refusal(&mut client, "SELECT next_id(5, 's')");
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert_eq!(error.message(), "insta_ids must be loaded via \"shared_preload_libraries\"");
        assert!(error.hint().unwrap().contains("shared_preload_libraries = 'insta_ids'"));
        assert!(cluster.log().contains("WARNING:  insta_ids is not loaded by the server yet"));
        // What needs no server state works, and no value of the sequence was lost.
        client.query_one("SELECT id_time(1), make_id(now(), 5, 1)", &[]).unwrap();
        assert!(!client.query_one("SELECT is_called FROM s", &[]).unwrap().get::<_, bool>(0));
    } else {
        assert!(!cluster.log().contains("WARNING"));
        let first = ids(&mut client, "SELECT next_id(5, 's') FROM generate_series(1, 100000)");
        // The segment outlives the session that made it.
        client.close().unwrap();
        let mut client = cluster.connect();
        client.batch_execute("SELECT setval('s', 1, false)").unwrap();
        let second = ids(&mut client, "SELECT next_id(5, 's') FROM generate_series(1, 100000)");
        assert_eq!(duplicates([&first, &second]), 0);
    }
}

/// A standby decodes ids and mints none.
#[test]
fn a_standby_decodes_ids_and_mints_none() {
    let primary = Cluster::start("primary");
    let mut client = primary.connect();
    client.batch_execute("CREATE SEQUENCE s; CREATE TABLE t AS SELECT next_id(5, 's') AS id").unwrap();
    let standby = primary.standby("standby");
    let mut reader = standby.connect();
    assert_eq!(reader.query_one("SELECT id_shard(id) FROM t", &[]).unwrap().get::<_, i32>(0), 5);
    for mint in ["next_id(5, 's')", "next_ids(5, 's', 2)"] {
        let error = refusal(&mut reader, &format!("SELECT {mint}"));
        assert_eq!(error.code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
        assert_eq!(error.message(), "cannot execute nextval() in a read-only transaction");
    }
}

/// A backend that is killed takes the server's memory down with it. The next sessions find that memory made anew.
#[test]
fn minting_goes_on_after_a_backend_was_killed() {
    let cluster = Cluster::start("crash");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SEQUENCE s").unwrap();
    let before = ids(&mut client, "SELECT next_id(5, 's') FROM generate_series(1, 100000)");
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    Command::new("bash").args(["-c", &format!("kill -9 {pid}")]).status().unwrap();
    cluster.await_log("all server processes terminated; reinitializing");
    let mut client = cluster.reconnect();
    let after = ids(&mut client, "SELECT next_id(5, 's') FROM generate_series(1, 100000)");
    assert_eq!(duplicates([&before, &after]), 0);
    assert!(before.last() < after.first());
}

/// A session cannot change the settings of the server, even before it has loaded the library that knows them.
#[test]
fn no_session_can_change_a_setting_of_the_server() {
    let cluster = Cluster::with("settings", &[NOT_PRELOADED]);
    let mut client = cluster.connect();
    client.batch_execute("SET insta_ids.max_ahead = 1000; LOAD 'insta_ids'").unwrap();
    let in_force: String = client.query_one("SHOW insta_ids.max_ahead", &[]).unwrap().get(0);
    assert_eq!(in_force, "10ms");
}

/// Users of older servers keep the setting when they upgrade.
#[test]
fn preloading_does_no_harm_where_it_is_not_needed() {
    let cluster = Cluster::with("preloaded", &["shared_preload_libraries = 'insta_ids'"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s").unwrap();
    assert!(!cluster.log().contains("WARNING"));
    client.query_one("SELECT next_id(5, 's')", &[]).unwrap();
}

/// Ids go on in a database that was dumped and restored, whatever schema the extension is in.
#[test]
fn ids_go_on_after_dump_and_restore_in_any_schema() {
    let cluster = Cluster::start("dump");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE other").unwrap();
    client
        .batch_execute(
            "DROP EXTENSION insta_ids;
             CREATE SCHEMA ids;
             CREATE EXTENSION insta_ids SCHEMA ids;
             CREATE SEQUENCE s;
             CREATE FUNCTION wrapper() RETURNS bigint LANGUAGE sql VOLATILE RETURN ids.next_id(7, 's');
             CREATE TABLE t (
                 id bigint PRIMARY KEY DEFAULT ids.next_id(5, 's'),
                 wrapped bigint DEFAULT wrapper(),
                 shard int GENERATED ALWAYS AS (ids.id_shard(id)) STORED,
                 CHECK (ids.id_shard(id) = 5)
             );
             CREATE INDEX ON t (ids.id_time(id));
             INSERT INTO t SELECT FROM generate_series(1, 100)",
        )
        .unwrap();
    cluster.restore("postgres", "postgres", "other");
    let mut other = cluster.connect_to("other");
    other.batch_execute("INSERT INTO t SELECT FROM generate_series(1, 100)").unwrap();
    let row = other
        .query_one(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE shard = 5 AND ids.id_shard(wrapped) = 7),
                    (SELECT count(*) FROM t WHERE ids.id_between(id, now() - interval '1 hour', now() + interval '1 hour'))
             FROM t",
            &[],
        )
        .unwrap();
    assert_eq!([0, 1, 2, 3].map(|column| row.get::<_, i64>(column)), [200; 4]);
}

/// A library that finds the memory of another version refuses to mint: two guards would guard nothing.
#[test]
fn a_library_refuses_the_memory_of_another_version() {
    if !since(17) {
        return;
    }
    let cluster = Cluster::start("versions");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SEQUENCE s; SELECT next_id(5, 's')").unwrap();
    // The same library, but for the number by which it knows its memory.
    let library = std::fs::read(format!("{}/insta_ids.so", support::pg_config("--pkglibdir"))).unwrap();
    let mark = u64::from_be_bytes(*b"insta_id").to_le_bytes();
    let mut other = library.clone();
    for at in 0..library.len() - mark.len() {
        if library[at..].starts_with(&mark) {
            other[at] ^= 1;
        }
    }
    assert_ne!(library, other);
    let path = cluster.socket.join("other_version.so");
    std::fs::write(&path, other).unwrap();
    // In a session of its own, without event triggers: both libraries would define the same settings.
    let mut client = cluster.connect();
    client
        .batch_execute(&format!(
            "SET event_triggers = off;
             CREATE FUNCTION other(int, regclass) RETURNS bigint STRICT LANGUAGE c AS '{}', 'next_id_wrapper'",
            path.display()
        ))
        .unwrap();
    let error = refusal(&mut client, "SELECT other(5, 's')");
    assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(error.message(), "another version of insta_ids is in use by this server");
    assert_eq!(error.hint(), Some("Restart the server."));
}

/// CREATE EXTENSION refuses a database in which the schema of administration exists already.
#[test]
fn the_extension_refuses_a_schema_that_exists() {
    let cluster = Cluster::bare("schema");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA insta_ids").unwrap();
    for (create, hint) in [
        ("CREATE EXTENSION insta_ids SCHEMA insta_ids", "Drop it, and create the extension in another one."),
        ("CREATE EXTENSION insta_ids", "Drop or rename it."),
    ] {
        let error = client.batch_execute(create).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::DUPLICATE_SCHEMA);
        assert_eq!(error.message(), "schema \"insta_ids\" already exists");
        assert_eq!(error.hint(), Some(hint));
    }
    client.batch_execute("DROP SCHEMA insta_ids; CREATE EXTENSION insta_ids").unwrap();
}
