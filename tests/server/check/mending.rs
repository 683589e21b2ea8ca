//! Findings that take more than one statement to make or to mend.

use super::{check_clean, findings, follow_hints, found, run, statement, with_shards};
use postgres::Client;
use postgres::error::SqlState;
use support::shards::{PHOTOS, add, set_up};
use support::{Cluster, NOT_PRELOADED, VERSION, count, major, preload_needed, refused, texts};

/// A migration that some shards lack, and one that fails, are findings until they are applied.
#[test]
fn migrations_are_found_until_they_are_applied() {
    let (cluster, mut client) = set_up("check_migrations", 10);
    run(&mut client, &["CALL insta_ids.create_shards(0, 5)", "CREATE TABLE insta3.photos ()"]);
    add(&mut client, "0001", PHOTOS);
    assert_eq!(
        found(&mut client),
        ["extra_object insta3.photos", "no_replica_identity insta3.photos", "pending_migration 0001"]
    );
    refused(&mut client, "CALL insta_ids.migrate()");
    // It has no shard to be compared with.
    assert_eq!(found(&mut client), ["failed_migration 0001", "no_replica_identity insta3.photos"]);
    let [failed, _] = findings(&mut client).try_into().unwrap();
    assert_eq!(failed[0], "error");
    assert_eq!(
        failed[3],
        "Shards in which it failed: 1. The first is shard 3: relation \"photos\" already exists"
    );
    client.batch_execute("DROP TABLE insta3.photos").unwrap();
    follow_hints(&mut client, "failed");

    client
        .batch_execute("SELECT insta_ids.add_migration('it''s', 'CREATE INDEX CONCURRENTLY captions ON photos (caption)', false)")
        .unwrap();
    let [pending] = findings(&mut client).try_into().unwrap();
    let in_psql = pending[4].strip_prefix("In psql: ").unwrap();
    assert!(cluster.psql(&[], &format!("{in_psql}\n")).wait_with_output().unwrap().status.success());
    check_clean(&mut client);
}

/// A shard whose schema is gone is found until the schema comes back or the shard is forgotten.
#[test]
fn a_shard_whose_schema_is_gone_is_found() {
    let (_cluster, mut client) = with_shards("check_schema", PHOTOS, 2);
    run(&mut client, &["ALTER SCHEMA insta2 RENAME TO insta02"]);
    let missed = ["missing_schema insta2", "unmanaged_schema insta02"];
    assert_eq!(found(&mut client), missed);
    client.batch_execute("ALTER SCHEMA insta02 RENAME TO insta2").unwrap();
    check_clean(&mut client);
    client.batch_execute("ALTER SCHEMA insta2 RENAME TO insta02").unwrap();
    follow_hints(&mut client, "missed");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards"), 2);
    // One that has come back empty.
    client.batch_execute("DROP SCHEMA insta1 CASCADE; CREATE SCHEMA insta1").unwrap();
    let found = found(&mut client);
    assert!(found.contains(&"missing_object insta1.photos".to_owned()), "{found:?}");
    assert!(found.iter().all(|object| object.starts_with("missing_object insta1.")), "{found:?}");
}

/// A function that calls its like of another shard is found. Its hint does not turn that into a call of itself.
#[test]
fn no_hint_makes_a_function_call_itself() {
    let (_cluster, mut client) = with_shards("check_itself", PHOTOS, 2);
    run(
        &mut client,
        &["CREATE OR REPLACE FUNCTION insta1.next_id() RETURNS bigint LANGUAGE sql RETURN insta2.next_id()"],
    );
    let [different, foreign] = findings(&mut client).try_into().unwrap();
    assert_eq!(foreign[1..3], ["foreign_function", "insta1.next_id()"]);
    assert_eq!(foreign[4], "Use what is in schema insta1.");
    assert_eq!(different[1..3], ["different_object", "insta1.next_id()"]);
    assert_eq!(statement(&different[4]), None);
}

/// An index that could not be built, and one that could not be rebuilt, are found.
#[test]
fn invalid_indexes_are_found() {
    let (_cluster, mut client) = with_shards("check_index", PHOTOS, 2);
    run(&mut client, &["INSERT INTO insta1.photos (caption) VALUES ('a'), ('a')"]);
    refused(&mut client, "CREATE UNIQUE INDEX CONCURRENTLY captions ON insta1.photos (caption)");
    assert_eq!(found(&mut client), ["extra_object insta1.photos.captions", "invalid_index insta1.captions"]);
    refused(&mut client, "REINDEX INDEX CONCURRENTLY insta1.captions");
    let left = ["captions", "captions_ccnew"].map(|index| format!("invalid_index insta1.{index}"));
    assert_eq!(found(&mut client)[2..], left);
    client.batch_execute("DELETE FROM insta1.photos WHERE id = (SELECT min(id) FROM insta1.photos)").unwrap();
    let hints: Vec<String> = findings(&mut client)
        .into_iter()
        .filter(|finding| finding[1] == "invalid_index")
        .map(|[.., hint]| hint)
        .collect();
    for hint in hints {
        client.batch_execute(&hint).unwrap();
    }
    assert_eq!(found(&mut client), ["extra_object insta1.photos.captions"]);
}

/// Ids of the future are overtaken by advancing the clock as far as that is allowed. Beyond that they are replaced.
#[test]
fn ids_of_the_future_are_overtaken_or_replaced() {
    let (_cluster, mut client) = with_shards("check_future", PHOTOS, 2);
    for (ahead, hint) in [
        ("59 min", "As a superuser"),
        ("59:59", "Give them"),
        ("1:00:01", "Give them"),
        ("10 years", "Give them"),
    ] {
        client
            .batch_execute(&format!(
                "INSERT INTO insta1.photos (id) VALUES (make_id(now() + '{ahead}', 1, 5))"
            ))
            .unwrap();
        let [[severity, code, object, _, said]] = findings(&mut client).try_into().unwrap();
        assert_eq!([&severity, &code, &object], ["error", "future_ids", "insta1.photos.id"], "{ahead}");
        assert!(said.starts_with(hint), "{ahead}: {said}");
        follow_hints(&mut client, ahead);
    }
}

/// `check()` warns of locks that `pg_dump` and `migrate` will need and the server does not have.
#[test]
fn a_server_with_too_few_locks_is_found() {
    const FEW: [&str; 5] = [
        "max_locks_per_transaction = 16",
        "max_connections = 10",
        "max_worker_processes = 1",
        "max_wal_senders = 1",
        "autovacuum_max_workers = 1",
    ];
    let slots = (major() >= 18).then_some("autovacuum_worker_slots = 1");
    // Too few to make the extension with.
    let cluster = Cluster::start("check_few_locks");
    for setting in FEW.into_iter().chain(slots) {
        cluster.connect().batch_execute(&format!("ALTER SYSTEM SET {setting}")).unwrap();
    }
    cluster.stop();
    cluster.up();
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(400)").unwrap();
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 399, batch => 1)").unwrap();
    assert_eq!(found(&mut client), ["locks_of_migrate insta0", "locks_of_pg_dump postgres"]);
    let dumped = || cluster.program("pg_dump", "postgres").arg("postgres").output().unwrap().status.success();
    assert!(!dumped());
    add(
        &mut client,
        "0002",
        "ALTER TABLE photos ADD a int; ALTER TABLE likes ADD a int; DROP INDEX likes_photo_idx; CREATE INDEX ON photos (a)",
    );
    assert_eq!(
        refused(&mut client, "CALL insta_ids.migrate()").code(),
        &SqlState::CONFIGURATION_LIMIT_EXCEEDED
    );
    let mut settings = Vec::new();
    for [_, code, _, _, hint] in findings(&mut client) {
        if let Some((_, setting)) = hint.split_once("max_locks_per_transaction\" = ") {
            assert!(code.starts_with("locks_of_"));
            settings.push(setting.split([' ', ';']).next().unwrap().parse::<u32>().unwrap());
        }
    }
    assert_eq!(settings.len(), 2);
    let most = settings.into_iter().max().unwrap();
    client.batch_execute(&format!("ALTER SYSTEM SET max_locks_per_transaction = {most}")).unwrap();
    cluster.stop();
    cluster.up();
    let mut client = cluster.reconnect();
    assert_eq!(found(&mut client), ["pending_migration 0002"]);
    follow_hints(&mut client, "locks");
    assert!(dumped());
}

/// An extension and a library of different versions are a finding.
#[test]
fn a_half_done_update_is_found() {
    let (_cluster, mut client) = set_up("half_updated", 10);
    let version = VERSION.as_str();
    assert_eq!(texts(&mut client, "SELECT insta_ids_internal.library_version()"), [version]);
    check_clean(&mut client);

    let is_of = |client: &mut Client, version: &str| {
        client
            .execute("UPDATE pg_extension SET extversion = $1 WHERE extname = 'insta_ids'", &[&version])
            .unwrap();
    };
    is_of(&mut client, "0.8.10");
    let [severity, code, object, detail, hint] = &findings(&mut client)[0];
    assert_eq!([&severity[..], code, object], ["warning", "old_extension", "insta_ids"]);
    assert!(detail.contains(version) && detail.contains("0.8.10"), "{detail}");
    assert_eq!(hint, "ALTER EXTENSION insta_ids UPDATE");

    // As on a standby that was not updated.
    is_of(&mut client, "99.10.0");
    let [severity, code, _, detail, _] = &findings(&mut client)[0];
    assert_eq!([&severity[..], code], ["warning", "old_library"]);
    assert!(detail.contains(version) && detail.contains("99.10.0"), "{detail}");
    is_of(&mut client, "mine");
    check_clean(&mut client);
    is_of(&mut client, version);
    check_clean(&mut client);

    // As in a server that was not restarted.
    client
        .batch_execute(
            "CREATE OR REPLACE FUNCTION insta_ids_internal.library_version() RETURNS text
             STABLE LANGUAGE sql AS $$SELECT '0.8.10'$$",
        )
        .unwrap();
    assert_eq!(found(&mut client), ["old_library insta_ids"]);
}

/// Before PostgreSQL 17 a server that does not preload the library is a finding.
#[test]
fn a_server_that_cannot_mint_is_found() {
    let cluster = Cluster::with("check_not_preloaded", &[NOT_PRELOADED]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(10)").unwrap();
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 2)").unwrap();
    let expected: &[&str] = if preload_needed() { &["no_ids insta_ids"] } else { &[] };
    assert_eq!(found(&mut client), expected);
    client.batch_execute("ALTER SYSTEM SET shared_preload_libraries = insta_ids").unwrap();
    cluster.stop();
    cluster.up();
    check_clean(&mut cluster.reconnect());
}
