//! Other sessions, and whoever looks.

use super::{ALL_KINDS, Finding, check_clean, findings, found, run, with_shards};
use crate::migrations::PLANT;
use postgres::NoTls;
use postgres::error::SqlState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::shards::{PHOTOS, Running, add, set_up};
use support::{count, refused, texts, within};

use super::clean::HOSTILE;

/// A table that another session has locked keeps `check()` from no other table. `check()` keeps no session from writing,
/// altering and dropping.
#[test]
fn checking_waits_for_no_lock_and_holds_nobody_up() {
    let (cluster, mut client) = with_shards("check_locks", ALL_KINDS, 5);
    run(&mut client, &["ALTER TABLE insta4.photos DROP COLUMN caption CASCADE"]);
    let all = found(&mut client);
    let mut viewer = cluster.connect();
    viewer.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY").unwrap();
    assert_eq!(found(&mut viewer), all);
    let held = format!(
        "SELECT relation::regclass::text FROM pg_locks JOIN pg_class c ON c.oid = relation
         WHERE pid = {} AND relnamespace::regnamespace::text ~ '^insta\\d'",
        texts(&mut viewer, "SELECT pg_backend_pid()::text")[0]
    );
    assert_eq!(texts(&mut client, &held), [""; 0]);
    client
        .batch_execute("SET lock_timeout = '1s'; DROP SCHEMA insta5 CASCADE; SELECT insta_ids.drop_shard(5)")
        .unwrap();
    viewer.batch_execute("COMMIT").unwrap();

    let mut holder = cluster.connect();
    for locked in ["photos", "happy", "events"] {
        holder.batch_execute(&format!("BEGIN; LOCK TABLE insta3.{locked}")).unwrap();
        viewer.batch_execute("SET statement_timeout = '20s'").unwrap();
        let (unread, read): (Vec<_>, Vec<_>) =
            found(&mut viewer).into_iter().partition(|object| object.starts_with("not_read"));
        assert_eq!(read, all, "{locked}");
        assert!(
            !unread.is_empty() && unread.iter().all(|object| object.starts_with("not_read insta3")),
            "{unread:?}"
        );
        holder.batch_execute("COMMIT").unwrap();
        assert_eq!(self::found(&mut viewer), all, "{locked}");
    }
}

/// What other sessions create, drop and build during `check()` is no finding and does not end it.
#[test]
fn objects_that_come_and_go_meanwhile_are_no_finding() {
    let (cluster, mut client) = with_shards("check_changes", ALL_KINDS, 9);
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = [
        "BEGIN; DROP VIEW insta7.happy; CREATE VIEW insta7.happy AS SELECT id, caption FROM insta7.photos WHERE mood = 'happy'; COMMIT",
        "BEGIN; DROP SEQUENCE insta8.likes_id_seq CASCADE; CREATE SEQUENCE insta8.likes_id_seq; ALTER TABLE insta8.likes ALTER id SET DEFAULT insta8.next_id('insta8.likes_id_seq'); COMMIT",
        "DROP INDEX CONCURRENTLY insta6.captions; CREATE INDEX CONCURRENTLY captions ON insta6.photos (lower(caption)) WHERE likes > 0",
    ]
    .into_iter()
    .map(|changes| {
        let (mut client, stop) = (cluster.connect(), Arc::clone(&stop));
        thread::spawn(move || {
            let changes: Vec<_> = if changes.starts_with("BEGIN") { vec![changes] } else { changes.split("; ").collect() };
            while !stop.load(Ordering::Relaxed) {
                run(&mut client, &changes);
            }
        })
    })
    .collect();
    let mut all = Vec::new();
    for _ in 0..15 {
        all.extend(findings(&mut client));
    }
    stop.store(true, Ordering::Relaxed);
    for other in others {
        other.join().unwrap();
    }
    // Between being dropped and being there again, an index is missed; and what changes may not be read.
    all.retain(|[_, code, object, ..]| match code.as_str() {
        "not_read" => !["insta6", "insta7", "insta8"].iter().any(|schema| object.starts_with(schema)),
        _ => object != "insta6.photos.captions",
    });
    assert_eq!(all, Vec::<Finding>::new());
    check_clean(&mut client);

    client
        .batch_execute(
            "CREATE FUNCTION insta5.refused(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
             CREATE INDEX refused ON insta5.photos (likes) WHERE insta5.refused(1) > 0;
             CREATE OR REPLACE FUNCTION insta5.refused(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RAISE ''not yours''; END'",
        )
        .unwrap();
    // The function is not run.
    let [function, index] = findings(&mut client).try_into().unwrap();
    assert_eq!(function[1..3], ["extra_object", "insta5.refused(integer)"]);
    assert_eq!(index[1..3], ["extra_object", "insta5.photos.refused"]);
}

/// A role that may provision can call `check()`, and so can a session on a standby. Nothing in the caller's path is run.
#[test]
fn a_provisioner_and_a_standby_can_check() {
    let (cluster, mut client) = set_up("check_who", 10);
    client
        .batch_execute(
            "CREATE ROLE deployer LOGIN; GRANT CREATE ON DATABASE postgres TO deployer;
             SELECT insta_ids.grant_provisioning('deployer')",
        )
        .unwrap();
    add(&mut client, "0001", PHOTOS);
    let mut deployer = cluster.config().user("deployer").connect(NoTls).unwrap();
    run(&mut deployer, &["CALL insta_ids.create_shards(0, 2)", "INSERT INTO insta1.photos DEFAULT VALUES"]);
    run(&mut client, &["CALL insta_ids.create_shards(3, 4)", "INSERT INTO insta3.photos DEFAULT VALUES"]);
    check_clean(&mut client);
    // It may not read the rows of others.
    let [notice] = findings(&mut deployer).try_into().unwrap();
    assert_eq!(notice[..2], ["notice", "not_read"]);
    assert!(
        notice[3].ends_with("The first with: must be owner of table photos.")
            || notice[3].ends_with("The first with: must be owner of table likes."),
        "{notice:?}"
    );
    client.batch_execute("GRANT postgres TO deployer").unwrap();
    check_clean(&mut deployer);
    deployer.batch_execute("CALL insta_ids.check_rows()").unwrap();

    client.batch_execute(PLANT).unwrap();
    client.batch_execute("SET search_path = planted, public, pg_catalog").unwrap();
    assert_eq!(count(&mut client, "SELECT pg_catalog.count(*) FROM insta_ids.check()"), 0);
    run(&mut client, &["CALL insta_ids.check_rows()", "RESET search_path"]);

    client.batch_execute("ALTER TABLE insta3.photos DROP COLUMN caption").unwrap();
    let found = found(&mut client);
    assert_eq!(found, ["missing_object insta3.photos.caption"]);
    let standby = cluster.standby("check_standby");
    let mut reader = standby.connect();
    within(Duration::from_secs(30), || self::found(&mut reader) == found);
}

/// `check_rows()` finds ids in the middle of a table, or in one without an index, where `check()` does not look.
#[test]
fn check_rows_finds_what_check_does_not_read() {
    let (cluster, mut client) = set_up("check_rows", 10);
    let tables = "CREATE TABLE unindexed (id bigint DEFAULT next_id(), key integer PRIMARY KEY)";
    add(&mut client, "0001", &format!("{PHOTOS}; {HOSTILE}; {tables}"));
    client.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
    client
        .batch_execute(
            "ALTER TABLE insta2.photos DROP CONSTRAINT photos_id_check;
             INSERT INTO insta2.photos (id)
             SELECT make_id(at, 2, 5) FROM generate_series(now() - interval '9 h', now(), '1 h') at;
             INSERT INTO insta2.photos (id)
             SELECT make_id(now() - interval '30 min', shard, 5) FROM generate_series(3, 4) shard;
             INSERT INTO insta5.unindexed VALUES (make_id(now() + interval '2 days', 5, 1), 1), (-9223372036854775808 + (5 << 10), 2);
             ALTER TABLE insta7.days DROP CONSTRAINT days_id_check;
             CREATE TABLE insta7.rest PARTITION OF insta7.days DEFAULT;
             INSERT INTO insta7.days VALUES (make_id(now(), 7, 1)), (make_id(now() - interval '1 h', 8, 1)),
                 (make_id(now() - interval '2 h', 7, 1));
             INSERT INTO insta8.child VALUES (make_id(now() + interval '1 h', 8, 1))",
        )
        .unwrap();
    assert_eq!(found(&mut client), ["missing_check insta2.photos.id", "missing_check insta7.days.id"]);

    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    let mut config = cluster.config();
    config.notice_callback(move |notice| {
        if notice.severity() == "WARNING" {
            let detail = notice.detail().unwrap().split(',').next().unwrap_or_default().to_owned();
            assert!(notice.hint().is_some());
            heard.lock().unwrap().push(format!("{}. {detail}", notice.message()));
        }
    });
    let mut caller = config.connect(NoTls).unwrap();
    let mut holder = cluster.connect();
    holder.batch_execute("BEGIN; LOCK TABLE insta6.likes").unwrap();
    caller.batch_execute("SET search_path = pg_catalog").unwrap();
    let call = Running::start(caller, "CALL insta_ids.check_rows(batch => 2)");
    call.await_waiting(&mut client);
    let progress = "SELECT concat_ws(' ', command, total, done, failed, remaining) FROM insta_ids.progress";
    assert_eq!(texts(&mut client, progress), ["check_rows 10 6 2 4"]);
    holder.batch_execute("COMMIT").unwrap();
    let (mut caller, ended) = call.session();
    let error = ended.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code(), &SqlState::CHECK_VIOLATION);
    assert_eq!(error.message(), "4 of 10 shards have ids that should not be there, or could not be read");
    let mut said = std::mem::take(&mut *warnings.lock().unwrap());
    said.sort();
    let expected = [
        "foreign ids in insta2.photos.id. Of 12 ids",
        "foreign ids in insta7.days.id. Of 3 ids",
        "future ids in insta5.unindexed.id. Of 2 ids",
        "future ids in insta8.parent.id. Of 1 ids",
        "negative ids in insta5.unindexed.id. Of 2 ids",
    ];
    assert_eq!(said, expected);

    // Ranges, in a session that has been there before.
    run(
        &mut caller,
        &[
            "CALL insta_ids.check_rows(0, 1)",
            "CALL insta_ids.check_rows(3, 4)",
            "CALL insta_ids.check_rows(9)",
        ],
    );
    assert_eq!(warnings.lock().unwrap().len(), 0);
    let error = refused(&mut caller, "CALL insta_ids.check_rows(7, 8)");
    assert_eq!(error.message(), "2 of 2 shards have ids that should not be there, or could not be read");
    for wrong in [
        "CALL insta_ids.check_rows(3, 2)",
        "CALL insta_ids.check_rows(batch => 0)",
        "CALL insta_ids.check_rows(10)",
    ] {
        refused(&mut caller, wrong);
    }
    assert_eq!(texts(&mut client, progress), [""; 0]);
}
