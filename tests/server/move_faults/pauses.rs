//! Writers are stopped for a time that has an end.

use super::{CALL, INSERT, await_lock, before_the_fence, check_ended};
use std::thread;
use std::time::{Duration, Instant};
use support::pair::{self, Move, Pair, before};
use support::{Cluster, count, refused, texts, within};

/// Rows that do not arrive end the pause. The copy is kept.
#[test]
fn writers_wait_no_longer_than_max_pause() {
    let pair = Pair::start("pause");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut blocking = pair.b.connect();
    let call =
        "CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '20s', max_pause => '1 s', verify => 'none')";
    let mut fenced = None;
    let error = before_the_fence(
        &pair,
        || pair.b.connect().batch_execute(call),
        |holder| {
            blocking.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ACCESS EXCLUSIVE MODE").unwrap();
            holder.batch_execute(&format!("{INSERT}; COMMIT")).unwrap();
            within(Duration::from_secs(20), || a.batch_execute(INSERT).is_err());
            fenced = Some(Instant::now());
            within(Duration::from_secs(20), || a.batch_execute(INSERT).is_ok());
        },
    )
    .unwrap_err();
    let paused = fenced.unwrap().elapsed();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "shards of move \"insta_ids_2_2\" were not handed over within 00:00:01");
    assert_eq!(error.detail(), Some("Rows that were written before the fence had not arrived."));
    assert!(paused < Duration::from_secs(4), "{paused:?}");
    assert_eq!(texts(&mut b, "SELECT step FROM insta_ids_internal.move"), ["copying"]);
    blocking.batch_execute("COMMIT").unwrap();
    // A mark of a fence that was given up is worth nothing.
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(&["fence", "drained", "release"]);
    let state =
        texts(&mut a, "SELECT insta_ids_internal.move_state('insta_ids_2_2', NULL) ->> 'fences'").remove(0);
    let given_up = format!("SELECT insta_ids_internal.give_up_fence('insta_ids_2_2', {state})::text");
    let given_up = texts(&mut b, &given_up).remove(0);
    let error = moving.step("hand over").unwrap_err();
    assert_eq!(
        error.as_db_error().unwrap().message(),
        "mark of move \"insta_ids_2_2\" is of a fence that was given up"
    );
    for other in [r#"{"fence": 1}"#, r#"{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "fence": 3}"#] {
        let open = format!("SELECT insta_ids_internal.open_fence('insta_ids_2_2', '{other}')");
        assert_eq!(refused(&mut a, &open).message(), "shards from 2 to 2 may already be on node \"b\"");
    }
    a.batch_execute(&format!("SELECT insta_ids_internal.open_fence('insta_ids_2_2', '{given_up}')")).unwrap();
    a.batch_execute(INSERT).unwrap();
    assert_eq!(refused(&mut a, "DROP TABLE insta2.likes").code().code(), "55006");
    b.batch_execute(CALL).unwrap();
    check_ended(&pair);
    let left = count(&mut a, "SELECT count(*) FROM insta2__moved.photos");
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), left);
}

/// The worker restarts between the last row and the hand-over.
#[test]
fn a_worker_that_restarts_before_the_hand_over_is_waited_for() {
    let pair = Pair::start("worker");
    let mut b = pair.b.connect();
    b.batch_execute("ALTER SYSTEM SET wal_retrieve_retry_interval = '2s'").unwrap();
    b.batch_execute("SELECT pg_reload_conf()").unwrap();
    let mut blocking = pair.b.connect();
    let call = "CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '20s', verify => 'none')";
    before_the_fence(
        &pair,
        || pair.b.connect().batch_execute(call),
        |holder| {
            blocking.batch_execute("BEGIN; SELECT FROM insta_ids_internal.move FOR UPDATE").unwrap();
            holder.batch_execute("COMMIT").unwrap();
            await_lock(&pair.b, 1);
            // The next one may begin at once.
            let worker = count(&mut b, "SELECT pid::bigint FROM pg_stat_subscription WHERE pid IS NOT NULL");
            b.batch_execute(&format!("SELECT pg_terminate_backend({worker})")).unwrap();
            let is_there = format!("SELECT count(*) FROM pg_stat_subscription WHERE pid = {worker}");
            within(Duration::from_secs(10), || count(&mut b, &is_there) == 0);
            blocking.batch_execute("COMMIT").unwrap();
        },
    )
    .unwrap();
    check_ended(&pair);
}

/// The walwriter flushes whole pages, so flushed WAL can end within a record. The target confirms such a position only when the
/// rest of the record is flushed, which here takes longer than the default `max_pause`.
#[test]
fn writers_do_not_wait_for_a_record_that_is_flushed_in_part() {
    let start = |node: &str| {
        let mut settings = pair::settings(node);
        settings.push("bgwriter_delay = '10s'".to_owned());
        Cluster::with(&format!("record_{node}"), &settings)
    };
    let pair = Pair { a: start("a"), b: start("b") };
    pair.prepare();
    Move::of(&pair, 2, 2).steps(before("drained"));
    let (mut a, mut b, mut other) = (pair.a.connect(), pair.b.connect(), pair.a.connect());
    // The record ends at the beginning of a page: others would have to fill that page before the record is flushed to its end.
    let in_page = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint % 8192";
    let length = 3 * 8192 - count(&mut a, in_page);
    other
        .batch_execute(&format!(
            "BEGIN; SELECT pg_logical_emit_message(false, 'other', repeat('x', {length}))"
        ))
        .unwrap();
    let in_page = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint % 8192";
    within(Duration::from_secs(10), || count(&mut a, in_page) == 0);
    let flushed = texts(&mut a, "SELECT pg_current_wal_flush_lsn()::text").remove(0);
    let fenced =
        texts(&mut a, "SELECT insta_ids_internal.move_state('insta_ids_2_2', NULL) ->> 'lsn'").remove(0);
    let mut has_applied = |lsn: &str| {
        count(
            &mut b,
            &format!("SELECT insta_ids_internal.has_applied('insta_ids_2_2', '{lsn}')::int::bigint"),
        ) == 1
    };
    within(Duration::from_secs(2), || has_applied(&fenced));
    thread::sleep(Duration::from_secs(2));
    assert!(!has_applied(&flushed));
}
