//! Locks, settings and commands of others neither keep a fence shut nor lose a row.

use std::thread;
use std::time::Duration;

use postgres::Client;
use support::pair::{Move, Pair, STEPS, before};
use support::{Cluster, count, refused, texts, within};

use super::{CALL, INSERT, check_ended};

const FENCE: &str = "SELECT insta_ids_internal.move_fence('insta_ids_2_2', '2s', '1 s')";
const LOCK: &str = "BEGIN; LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE";

/// A writer is refused, and after the second that the fence lasts it is not.
fn opens(writer: &mut Client) {
    assert_eq!(refused(writer, INSERT).code().code(), "25006");
    thread::sleep(Duration::from_secs(1));
    within(Duration::from_secs(4), || writer.batch_execute(INSERT).is_ok());
}

/// No session would learn of the fence, if the trigger that tells them of it did not fire.
#[test]
fn the_source_may_have_the_role_of_a_replica() {
    let pair = Pair::start("replica_role");
    let mut writer = pair.a.connect();
    writer.batch_execute(INSERT).unwrap();
    writer.batch_execute("ALTER DATABASE postgres SET session_replication_role = replica").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("drained"));
    for write in [INSERT, "SELECT next_id(2, 'insta2.table_id_seq')"] {
        assert_eq!(refused(&mut writer, write).code().code(), "25006");
        assert_eq!(refused(&mut pair.a.connect(), write).code().code(), "25006");
    }
    moving.steps(&STEPS[6..]);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// Who holds what a hand-over locks is waited for before the fence, not after the release.
#[test]
fn the_target_is_waited_for_before_the_fence() {
    let pair = Pair::start("held");
    let (mut a, mut b, mut other) = (pair.a.connect(), pair.b.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    Move::of(&pair, 2, 2).steps(before("fence"));
    other.batch_execute(LOCK).unwrap();
    for verify in ["snapshot", "none"] {
        let call =
            format!("CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '300ms', verify => '{verify}')");
        let error = refused(&mut b, &call);
        assert_eq!(error.message(), "could not lock the tables and sequences of the map");
        assert!(error.detail().unwrap().starts_with("insta_ids_internal.assignment is in use by process "));
        assert_eq!(
            texts(&mut a, "SELECT concat_ws(' ', step, fences) FROM insta_ids_internal.move"),
            ["offered 0"]
        );
    }
    other.batch_execute("ROLLBACK").unwrap();
    b.batch_execute(CALL).unwrap();
    check_ended(&pair);
}

/// A dump of any database reads the catalog of subscriptions to its end, and VACUUM locks a table.
#[test]
fn a_hand_over_waits_for_no_dump_and_no_vacuum() {
    let pair = Pair::start("dumping");
    let (mut b, mut other) = (pair.b.connect(), pair.b.connect());
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("hand over"));
    other
        .batch_execute("BEGIN; SELECT count(*) FROM pg_subscription; LOCK TABLE insta2.photos IN SHARE UPDATE EXCLUSIVE MODE")
        .unwrap();
    moving.steps(&["hand over"]);
    b.batch_execute(INSERT).unwrap();
    other.batch_execute("ROLLBACK").unwrap();
    moving.steps(&["finish"]);
    check_ended(&pair);
}

/// A fence whose time is over opens, whatever else cannot.
#[test]
fn a_fence_opens_by_itself_beside_other_sessions() {
    let pair = Pair::start("beside");
    let (mut a, mut other) = (pair.a.connect(), pair.a.connect());
    Move::of(&pair, 2, 2).steps(before("fence"));
    // A session that locks the map, as one does that offers shards.
    a.batch_execute(FENCE).unwrap();
    other.batch_execute(LOCK).unwrap();
    opens(&mut a);
    other.batch_execute("ROLLBACK").unwrap();
    // Another move cannot be opened: its shard is on another node, or its row is locked.
    a.batch_execute(
        "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
         VALUES ('insta_ids_0_0', gen_random_uuid(), 0, 0, '{0}', 'a', 'b', 0, 'fenced');
         INSERT INTO insta_ids_internal.fence (shard, is_closed, to_node, timeline, closed_ms, opens_ms)
         VALUES (0, true, 'b', insta_ids_internal.timeline(), 0, 1);
         UPDATE insta_ids_internal.assignment SET first = 1;
         INSERT INTO insta_ids_internal.assignment VALUES (0, 0, 'b')",
    )
    .unwrap();
    for lock in [";", "BEGIN; SELECT FROM insta_ids_internal.move WHERE first = 0 FOR UPDATE"] {
        a.batch_execute(FENCE).unwrap();
        other.batch_execute(lock).unwrap();
        opens(&mut a);
        let _ = other.batch_execute("ROLLBACK");
        assert_eq!(texts(&mut a, "SELECT step FROM insta_ids.moves ORDER BY first"), ["fenced", "offered"]);
    }
    // The database takes no writes by itself, and no sessions.
    a.batch_execute(FENCE).unwrap();
    a.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").unwrap();
    let mut elsewhere = pair.a.connect_to("template1");
    elsewhere.batch_execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false").unwrap();
    opens(&mut a);
    elsewhere.batch_execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true").unwrap();
}

/// An offer that waits for a table gives up, and lets others make and assign shards again.
#[test]
fn an_offer_does_not_wait_without_limit() {
    let pair = Pair::start("patient");
    let (mut a, mut other) = (pair.a.connect(), pair.a.connect());
    other.batch_execute("BEGIN; LOCK TABLE insta2.photos IN SHARE UPDATE EXCLUSIVE MODE").unwrap();
    let error = refused(&mut a, "SELECT insta_ids_internal.move_offer(2, 2, 'b', '300ms')");
    assert_eq!(error.message(), "could not lock the tables and sequences of shards from 2 to 2");
    other.batch_execute("ROLLBACK").unwrap();
    Move::of(&pair, 2, 2).steps(&STEPS);
    check_ended(&pair);
}

/// Rows would be missing on the target, or come too often.
#[test]
fn the_publication_of_a_move_cannot_be_altered() {
    let pair = Pair::start("published");
    let mut a = pair.a.connect();
    let mut moving = Move::of(&pair, 2, 2);
    a.batch_execute("CREATE ROLE other; CREATE TABLE things (); CREATE PUBLICATION others FOR TABLE things")
        .unwrap();
    moving.steps(before("fence"));
    for command in [
        "ALTER PUBLICATION insta_ids_2_2 SET (publish = 'insert')",
        "ALTER PUBLICATION insta_ids_2_2 SET TABLE insta2.photos WHERE (id > 0), insta2.likes",
        "ALTER PUBLICATION insta_ids_2_2 DROP TABLE insta2.photos",
        "ALTER PUBLICATION insta_ids_2_2 ADD TABLE insta0.photos",
        "ALTER PUBLICATION insta_ids_2_2 ADD TABLES IN SCHEMA insta0",
        "ALTER PUBLICATION insta_ids_2_2 OWNER TO other",
        "ALTER PUBLICATION insta_ids_2_2 RENAME TO mine",
        "DROP PUBLICATION insta_ids_2_2",
        "DROP PUBLICATION others, insta_ids_2_2",
    ] {
        let error = refused(&mut a, command);
        let message = "publication \"insta_ids_2_2\" is of a move, and cannot be altered";
        assert_eq!((error.code().code(), error.message()), ("55006", message), "{command}");
    }
    a.batch_execute("ALTER PUBLICATION others SET (publish = 'insert'); DROP PUBLICATION others").unwrap();
    a.batch_execute(INSERT).unwrap();
    moving.steps(&STEPS[5..]);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// The copy may be older than the release, so it opens nothing by itself and mints nothing.
#[test]
fn a_restored_dump_does_not_open_a_fence() {
    let pair = Pair::start("dumped");
    let mut a = pair.a.connect();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    let dump = |cluster: &Cluster, into: &str, name: &str| {
        let file = cluster.socket.join(name);
        let dumped = pair.a.program("pg_dump", "postgres").arg("-f").arg(&file).arg("postgres").status();
        assert!(dumped.unwrap().success());
        cluster.connect().batch_execute(&format!("CREATE DATABASE {into}")).unwrap();
        let restored = cluster
            .program("psql", "postgres")
            .args(["-q", "-v", "ON_ERROR_STOP=1", "-f"])
            .arg(&file)
            .arg(into)
            .status();
        assert!(restored.unwrap().success());
        cluster.connect_to(into)
    };
    let mut offered = dump(&pair.a, "offered", "offered.sql");
    assert_eq!(refused(&mut offered, INSERT).code().code(), "25006");
    a.batch_execute(FENCE).unwrap();
    let other = Cluster::with("dumped_c", &support::pair::settings("a"));
    let mut copies = [dump(&pair.a, "same", "fenced.sql"), dump(&other, "copy", "fenced.sql")];
    thread::sleep(Duration::from_secs(1));
    for copy in &mut copies {
        for _ in 0..3 {
            assert_eq!(refused(copy, INSERT).code().code(), "25006");
            copy.batch_execute("SELECT insta_ids_internal.end_pauses()").unwrap();
        }
    }
    within(Duration::from_secs(4), || a.batch_execute(INSERT).is_ok());
}
