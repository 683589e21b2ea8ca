//! Who waits at a fence, and how it opens when nobody opens it.

use super::{CALL, INSERT, check_ended};
use crate::moves::FENCED;
use std::thread;
use std::time::{Duration, Instant};
use support::pair::{Move, Pair, STEPS, before};
use support::{Cluster, count, refused, texts, within};

const MINT: &str = "SELECT next_id(2, 'insta2.table_id_seq')";
const FENCE: &str = "SELECT insta_ids_internal.move_fence('insta_ids_2_2', '2s', '1 s')";
const STEP: &str = "SELECT step FROM insta_ids_internal.move";

fn set(cluster: &Cluster, setting: &str) {
    let mut client = cluster.connect();
    client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let (name, value) = setting.split_once(" = ").unwrap();
    let show = format!("SHOW {name}");
    within(Duration::from_secs(10), || texts(&mut cluster.connect(), &show) == [value.trim_matches('\'')]);
}

/// The caller never comes back, or the source is restarted. The first writer that is refused has the fence opened.
#[test]
fn a_fence_that_nobody_opens_opens_by_itself() {
    let pair = Pair::start("forgotten");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    for (write, restarted) in [(INSERT, false), (MINT, false), (INSERT, true)] {
        let mut a = pair.a.connect();
        a.batch_execute(FENCE).unwrap();
        let fenced = Instant::now();
        moving.steps(&["drained"]);
        if restarted {
            pair.a.stop_immediately();
            pair.a.up();
            a = pair.a.connect();
        }
        assert_eq!(refused(&mut a, write).code().code(), "25006");
        thread::sleep(Duration::from_secs(1).saturating_sub(fenced.elapsed()));
        within(Duration::from_secs(3), || a.batch_execute(write).is_ok());
        // It is the worker that opens it, so a transaction that is rolled back has opened it, too.
        assert_eq!(texts(&mut a, STEP), ["offered"]);
        assert_eq!(refused(&mut a, "DROP TABLE insta2.likes").code().code(), "55006");
        // Its mark is worth nothing now.
        let error = moving.step("release").unwrap_err();
        assert_eq!(
            error.as_db_error().unwrap().message(),
            "shards from 2 to 2 are not fenced any more",
            "{error:?}"
        );
    }
    // The subscription has stopped at the restart.
    moving.steps(&STEPS[3..]);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 2);
    check_ended(&pair);
}

/// What the source has released, the target alone may open: it may have taken it over.
#[test]
fn a_released_shard_is_not_opened_by_its_source() {
    let pair = Pair::start("released");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut moving = Move::of(&pair, 2, 2);
    a.batch_execute(INSERT).unwrap();
    moving.steps(before("fence"));
    a.batch_execute(FENCE).unwrap();
    moving.steps(&["drained"]);
    // Without the release, the target does not take the shard over.
    let mark = texts(&mut a, "SELECT mark::text FROM insta_ids_internal.move").remove(0);
    let error =
        refused(&mut b, &format!("SELECT insta_ids_internal.move_hand_over('insta_ids_2_2', '{mark}')"));
    assert_eq!(error.message(), "node \"a\" has not released shards from 2 to 2");
    moving.steps(&["release", "release"]);
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(1200));
        for write in [INSERT, MINT] {
            assert_eq!(refused(&mut a, write).message(), "shard 2 is fenced");
        }
        assert_eq!(texts(&mut a, "SELECT state FROM insta_ids.shards WHERE shard = 2"), ["fenced"]);
        assert_eq!(texts(&mut a, "SELECT code FROM insta_ids.check() WHERE severity = 'error'"), [""; 0]);
        a.batch_execute("SELECT insta_ids_internal.end_pauses()").unwrap();
        pair.a.stop_immediately();
        pair.a.up();
        a = pair.a.connect();
    }
    assert_eq!(texts(&mut a, STEP), ["released"]);
    // The source's standbys had the fence before the release.
    a.batch_execute("SELECT pg_create_physical_replication_slot('kept', true)").unwrap();
    b.batch_execute(CALL).unwrap();
    a.batch_execute("SELECT pg_drop_replication_slot('kept')").unwrap();
    check_ended(&pair);
}

/// With `insta_ids.fence_wait`, a pause is no error. A writer that waits keeps nobody from opening the fence.
#[test]
fn writers_can_wait_for_a_fence() {
    let pair = Pair::start("waiting");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    set(&pair.a, "insta_ids.fence_wait = '1s'");
    a.batch_execute("SELECT insta_ids.fence(2)").unwrap();
    for write in [INSERT, MINT] {
        let asked = Instant::now();
        assert_eq!(refused(&mut pair.a.connect(), write).message(), "shard 2 is fenced");
        let waited = asked.elapsed();
        assert!((1.0..3.0).contains(&waited.as_secs_f64()), "{write} waited {waited:?}");
    }
    set(&pair.a, "insta_ids.fence_wait = '1min'");
    let waits = |write: &str| {
        let cluster = &pair.a;
        let write = write.to_owned();
        move || cluster.connect().batch_execute(&write)
    };
    let is_waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{}%' AND wait_event = 'Extension'",
        "insta2"
    );
    thread::scope(|scope| {
        let writers =
            [INSERT, MINT, "UPDATE insta2.photos SET caption = 'x'"].map(|write| scope.spawn(waits(write)));
        within(Duration::from_secs(10), || count(&mut a, &is_waiting) == 3);
        a.batch_execute("SELECT insta_ids.unfence(2)").unwrap();
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
    // A whole move: writers at the source wait, and learn where the shard is.
    a.batch_execute(INSERT).unwrap();
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut client = pair.a.connect();
            loop {
                if let Err(error) = client.batch_execute(INSERT) {
                    return error.as_db_error().unwrap().clone();
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        b.batch_execute(CALL).unwrap();
        let error = writing.join().unwrap();
        assert_eq!(error.message(), "shard 2 is not on this node");
    });
    check_ended(&pair);
}

/// A statement that began before the target had all rows does not see them. It fails, and is tried again.
#[test]
fn a_statement_that_began_before_the_hand_over_writes_nothing() {
    let pair = Pair::start("early_statement");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    set(&pair.b, "insta_ids.fence_wait = '1min'");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    // A writer does not wait where the rows come to.
    let asked = Instant::now();
    assert_eq!(refused(&mut pair.b.connect(), INSERT).message(), "shard 2 is fenced");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // The UPDATE begins when the lock is there, and sees what was there when the statement began. One session has read the map
    // before, the other one has not.
    let update =
        "WITH u AS (UPDATE insta2.photos SET caption = 'x' RETURNING 1) SELECT pg_advisory_lock_shared(1)";
    b.batch_execute("SELECT pg_advisory_lock(1)").unwrap();
    let (mut knows, knows_not) = (pair.b.connect(), pair.b.connect());
    assert_eq!(refused(&mut knows, MINT).message(), "shard 2 is fenced");
    thread::scope(|scope| {
        let updating = [knows, knows_not].map(|mut client| {
            scope.spawn(move || client.batch_execute(update).map_err(|error| error.code().cloned()))
        });
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        within(Duration::from_secs(10), || count(&mut pair.b.connect(), waits) == 2);
        moving.steps(&STEPS[5..]);
        b.batch_execute("SELECT pg_advisory_unlock(1)").unwrap();
        for update in updating {
            assert_eq!(update.join().unwrap(), Err(Some(FENCED.clone())));
        }
    });
    b.batch_execute("UPDATE insta2.photos SET caption = 'x'").unwrap();
    assert_eq!(texts(&mut b, "SELECT caption FROM insta2.photos"), ["x"]);
    check_ended(&pair);
}

/// The source does not send again what the target has confirmed, and a standby of the target may lack it.
#[test]
fn a_target_that_was_promoted_begins_again() {
    let mut pair = Pair::start("promoted");
    let standby = pair.b.standby("promoted_of_b");
    let mut moving = Move::of(&pair, 2, 2);
    pair.a.connect().batch_execute(INSERT).unwrap();
    moving.steps(before("fence"));
    pair.b.replayed_by(&standby);
    pair.b.stop_immediately();
    standby.promote();
    pair.b = standby;
    let mut b = pair.b.connect();
    let error = refused(&mut b, CALL);
    assert_eq!(error.message(), "shards from 2 to 2 may not all be here");
    pair.a.connect().batch_execute(INSERT).unwrap();
    check_ended(&pair);
    b.batch_execute(CALL).unwrap();
    check_ended(&pair);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 2);
}
