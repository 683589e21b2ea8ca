//! Rows are compared while writers go on, and a copy that differs is never handed over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;

use support::pair::{Move, Pair, before};
use support::{Cluster, count, refused, texts, within};

use crate::move_faults::{INSERT, await_lock, before_the_fence};

const CALL: &str = "CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '20s')";

/// A statement that a session runs as a subscription does, past the fence.
fn as_applied(client: &mut Client, statement: &str) {
    client
        .batch_execute(&format!(
            "SET session_replication_role = replica; {statement}; RESET session_replication_role"
        ))
        .unwrap();
}

/// Makes the comparison wait, and whatever the subscription applies, until this session commits.
fn keep_from_reading(pair: &Pair) -> Client {
    let mut reader = pair.b.connect();
    reader.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ACCESS EXCLUSIVE MODE").unwrap();
    reader
}

/// That no session of a server keeps a snapshot.
fn none_is_held(cluster: &Cluster) {
    let held = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    let mut client = cluster.connect();
    within(Duration::from_secs(5), || count(&mut client, held) == 0);
}

/// Each way in which a row can differ is found before the shard leaves, and names the table and how many rows differ.
#[test]
fn a_row_that_differs_is_found() {
    let pair = Pair::start("differs");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for statement in [
        "SELECT insta_ids.add_migration('0002', 'CREATE TABLE facts (id bigint PRIMARY KEY DEFAULT next_id(), n numeric,
             f float8, j json, t text)')",
        "CALL insta_ids.migrate()",
        r#"INSERT INTO insta2.facts (n, f, j, t)
           SELECT 1.0, g, '{"a": 1, "b": 2}', 'straße' FROM generate_series(1, 1000) g"#,
    ] {
        a.batch_execute(statement).unwrap();
    }
    let one = "WHERE f = (SELECT min(f) FROM insta2.facts)";
    for (change, there, here) in [
        (format!("UPDATE insta2.facts SET t = 'strasse' {one}"), 1, 1),
        (format!("UPDATE insta2.facts SET n = 1.00 {one}"), 1, 1),
        (format!("UPDATE insta2.facts SET n = 'NaN' {one}"), 1, 1),
        (format!("UPDATE insta2.facts SET f = NULL {one}"), 1, 1),
        (format!(r#"UPDATE insta2.facts SET j = '{{"b": 2, "a": 1}}' {one}"#), 1, 1),
        (format!("DELETE FROM insta2.facts {one}"), 1, 0),
        (format!("INSERT INTO insta2.facts SELECT 2 << 10, n, f, j, t FROM insta2.facts {one}"), 0, 1),
        ("UPDATE insta2.facts SET t = 'STRASSE' WHERE f <= 7".into(), 7, 7),
    ] {
        let call = || pair.b.connect().batch_execute(CALL).unwrap_err();
        let error = before_the_fence(&pair, call, |holder| {
            as_applied(&mut b, &format!("CREATE TABLE copied AS TABLE insta2.facts; {change}"));
            holder.batch_execute("COMMIT").unwrap();
        });
        let error = error.as_db_error().unwrap_or_else(|| panic!("{change}: {error:?}"));
        assert_eq!(
            error.message(),
            "rows of table insta2.facts are not the same on both servers",
            "{change}"
        );
        let detail = format!(
            "On node \"a\" are {there} rows that are not here or not the same, and here are {here} that are not there."
        );
        let said = error.detail().unwrap();
        let kind = match (there, here) {
            (1, 0) => "only there",
            (0, 1) => "only here",
            _ => "different",
        };
        assert!(said.starts_with(&format!("{detail} For example, {kind}: (id) = (")), "{change}: {said}");
        assert_eq!(said.matches("(id) = (").count(), there.max(here), "{change}: {said}");
        // Writers were not stopped for longer than the fence, and no snapshot is kept on either server.
        a.batch_execute(INSERT).unwrap();
        none_is_held(&pair.a);
        none_is_held(&pair.b);
        as_applied(&mut b, "TRUNCATE insta2.facts; INSERT INTO insta2.facts TABLE copied; DROP TABLE copied");
    }
    b.batch_execute(CALL).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.facts WHERE t = 'straße'"), 1000);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 8);
}

/// The differences of all tables, while writers go on. Rows that are on their way are no differences.
#[test]
fn differences_are_shown_while_writers_go_on() {
    let pair = Pair::start("shown");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(
        "INSERT INTO insta2.photos SELECT n << 33 | 2048, n FROM generate_series(1::bigint, 20) n;
         INSERT INTO insta2.likes SELECT n << 33 | 2048, n << 33 | 2048 FROM generate_series(1::bigint, 20) n",
    )
    .unwrap();
    let diff = "SELECT concat_ws(' ', relation, key, difference) FROM insta_ids.move_diff(2, 2)";
    let error = refused(&mut b, diff);
    assert_eq!(
        (error.code().code(), error.message()),
        ("42704", "no move \"insta_ids_2_2\" copies rows to this node")
    );
    before_the_fence(
        &pair,
        || pair.b.connect().batch_execute(CALL).unwrap(),
        |holder| {
            assert_eq!(texts(&mut b, diff), [""; 0]);
            as_applied(
                &mut b,
                "CREATE TABLE copied AS TABLE insta2.photos; UPDATE insta2.photos SET caption = 'mine' WHERE caption = '3';
                 DELETE FROM insta2.photos WHERE caption IN ('4', '5'); INSERT INTO insta2.likes VALUES (838862848)",
            );
            let stop = AtomicBool::new(false);
            let mut keeper = pair.b.connect();
            keeper.batch_execute("BEGIN; LOCK TABLE insta2.photos IN SHARE MODE").unwrap();
            a.batch_execute("UPDATE insta2.photos SET caption = 'on its way' WHERE id > 10::bigint << 33")
                .unwrap();
            let found = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(500));
                    keeper.batch_execute("COMMIT").unwrap();
                });
                scope.spawn(|| {
                    let mut writer = pair.a.connect();
                    while !stop.load(Ordering::Relaxed) {
                        writer.batch_execute("UPDATE insta2.photos SET caption = clock_timestamp()::text WHERE id > 10::bigint << 33; INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
                    }
                });
                let found = texts(&mut b, diff);
                stop.store(true, Ordering::Relaxed);
                found
            });
            assert_eq!(
                found,
                [
                    "insta2.photos (id) = (25769805824) different",
                    "insta2.photos (id) = (34359740416) only there",
                    "insta2.photos (id) = (42949675008) only there",
                    "insta2.likes (id) = (838862848) only here",
                ]
            );
            as_applied(
                &mut b,
                "UPDATE insta2.photos p SET caption = c.caption FROM copied c WHERE c.id = p.id AND c.caption = '3';
                 INSERT INTO insta2.photos SELECT * FROM copied WHERE caption IN ('4', '5'); DELETE FROM insta2.likes WHERE photo IS NULL; DROP TABLE copied",
            );
            assert_eq!(texts(&mut b, diff), [""; 0]);
            holder.batch_execute("COMMIT").unwrap();
        },
    );
    none_is_held(&pair.a);
}

/// Rows that are written while rows are compared do not disturb the comparison, and go with the shard.
#[test]
fn writers_go_on_while_rows_are_compared() {
    let pair = Pair::start("compared");
    let mut a = pair.a.connect();
    let insert = "INSERT INTO insta2.photos SELECT FROM generate_series(1, 10)";
    a.batch_execute(insert).unwrap();
    before_the_fence(
        &pair,
        || pair.b.connect().batch_execute(CALL).unwrap(),
        |holder| {
            let mut reader = keep_from_reading(&pair);
            holder.batch_execute("COMMIT").unwrap();
            await_lock(&pair.b, 1);
            for _ in 0..20 {
                within(Duration::from_secs(5), || a.batch_execute(insert).is_ok());
            }
            a.batch_execute(
                "UPDATE insta2.photos SET caption = 'late'; DELETE FROM insta2.photos WHERE id % 7 = 0",
            )
            .unwrap();
            let mut late = pair.a.connect();
            late.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ROW EXCLUSIVE MODE").unwrap();
            reader.batch_execute("COMMIT").unwrap();
            let compared = "SELECT count(*) FROM insta_ids.moves WHERE tables_compared = 2";
            within(Duration::from_secs(20), || count(&mut a, compared) == 1);
            late.batch_execute("COMMIT").unwrap();
        },
    );
    let all = "SELECT md5(string_agg(p::text, ' ' ORDER BY p.id)) FROM";
    assert_eq!(
        texts(&mut pair.b.connect(), &format!("{all} insta2.photos p")),
        texts(&mut a, &format!("{all} insta2__moved.photos p"))
    );
    assert_eq!(refused(&mut a, "INSERT INTO insta2__moved.photos DEFAULT VALUES").code(), super::FENCED);
}

/// A worker that is cancelled while it compares leaves the shard open, and nothing held on the other server.
#[test]
fn a_comparison_is_cancelled() {
    let pair = Pair::start("cancelled");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let cancel =
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE backend_type LIKE 'insta_ids: %'";
    let mut reader = None;
    let error = before_the_fence(
        &pair,
        || refused(&mut pair.b.connect(), CALL),
        |holder| {
            reader = Some(keep_from_reading(&pair));
            holder.batch_execute("COMMIT").unwrap();
            await_lock(&pair.b, 1);
            assert_eq!(count(&mut b, cancel), 1);
        },
    );
    assert_eq!(error.code().code(), "57014");
    reader.unwrap().batch_execute("COMMIT").unwrap();
    a.batch_execute(INSERT).unwrap();
    none_is_held(&pair.a);
    b.batch_execute(CALL).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
}

/// If another session opens the fence before the snapshots are taken, the rows of two moments are not compared.
#[test]
fn a_fence_that_another_session_opened_proves_nothing() {
    let pair = Pair::start("opened");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let error = before_the_fence(
        &pair,
        || refused(&mut pair.b.connect(), CALL),
        |holder| {
            // The row does not arrive.
            let mut reader = keep_from_reading(&pair);
            holder.batch_execute(&format!("{INSERT}; COMMIT")).unwrap();
            let fenced = "SELECT count(*) FROM insta_ids_internal.move WHERE step = 'fenced'";
            within(Duration::from_secs(20), || count(&mut a, fenced) == 1);
            let given_up = "SELECT insta_ids_internal.give_up_fence('insta_ids_2_2', 1)::text";
            let given_up = texts(&mut b, given_up).remove(0);
            a.batch_execute(&format!("SELECT insta_ids_internal.open_fence('insta_ids_2_2', '{given_up}')"))
                .unwrap();
            a.batch_execute(INSERT).unwrap();
            reader.batch_execute("COMMIT").unwrap();
        },
    );
    assert_eq!(error.message(), "another session has opened the fence of move \"insta_ids_2_2\"");
    b.batch_execute(CALL).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 2);
}

/// A call that died between fence and hand-over has left its fence. The next call opens it, and begins to verify anew.
#[test]
fn a_fence_that_was_left_is_opened_before_rows_are_compared() {
    let pair = Pair::start("left");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("drained"));
    assert_eq!(refused(&mut pair.a.connect(), INSERT).code(), super::FENCED);
    let mut b = pair.b.connect();
    b.batch_execute(CALL).unwrap();
    b.batch_execute(INSERT).unwrap();
}
