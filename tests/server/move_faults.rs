//! Promise: a move that goes wrong says what happened, and one statement goes on with it or ends it.

use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::error::DbError;

use crate::cluster::{Cluster, becomes, count, refused, texts, within};
use crate::pair::{Move, Pair, STEPS, settings, shard_map};

const CALL: &str = "CALL insta_ids.move_shards(2, 2, 'a')";
const ABORT: &str = "CALL insta_ids.move_abort(2, 2, 'a')";
const INSERT: &str = "INSERT INTO insta2.photos DEFAULT VALUES";

fn steps(moving: &mut Move, steps: &[&str]) {
    for step in steps {
        moving.step(step).unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }
}

/// Waits until sessions of a server wait for so many locks.
fn await_lock(cluster: &Cluster, waiting: i64) {
    let mut client = cluster.connect();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    within(Duration::from_secs(20), || count(&mut client, waits) >= waiting);
}

/// That nothing is left of a move, on either server.
fn check_ended(pair: &Pair) {
    for cluster in [&pair.a, &pair.b] {
        let mut client = cluster.connect();
        for left in ["insta_ids.moves", "pg_replication_slots", "pg_publication", "pg_subscription"] {
            assert_eq!(count(&mut client, &format!("SELECT count(*) FROM {left}")), 0, "{left}");
        }
    }
}

/// Shards of another node between those that move stay where they are.
#[test]
fn around_a_shard_of_another_node() {
    let pair = Pair::start("around_other");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.drop_shard(2), insta_ids.add_node('c', 'host=c')").unwrap();
    a.batch_execute("SELECT insta_ids.assign(2, 2, 'c')").unwrap();
    steps(&mut Move::of(&pair, 1, 3), &STEPS);
    let map = "SELECT string_agg(concat_ws(' ', first, last, node), ', ' ORDER BY first) FROM insta_ids.map";
    for client in [&mut a, &mut b] {
        assert_eq!(texts(client, map), ["0 0 a, 1 1 b, 2 2 c, 3 3 b, 4 63 a"]);
    }
    b.batch_execute("INSERT INTO insta1.photos DEFAULT VALUES; INSERT INTO insta3.photos DEFAULT VALUES")
        .unwrap();
}

/// Whoever moves, assigns or makes shards locks in one order, so that none is told of a deadlock.
#[test]
fn locks_have_one_order() {
    let pair = Pair::start("order");
    let mut moving = Move::of(&pair, 2, 2);
    steps(&mut moving, &STEPS[..7]);
    let mut other = pair.b.connect();
    other
        .batch_execute("BEGIN; LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE")
        .unwrap();
    thread::scope(|scope| {
        let handing_over = scope.spawn(|| moving.step("hand over"));
        await_lock(&pair.b, 1);
        let locked = other.batch_execute("SELECT FROM insta_ids_internal.move FOR UPDATE; COMMIT");
        assert!(locked.is_ok() & handing_over.join().unwrap().is_ok(), "{locked:?}");
    });
}

/// Two servers of a move that has ended by a call that came while the target made the shards.
fn called_while_it_is_prepared(name: &str, call: &str) -> Option<Pair> {
    let pair = Pair::start(name);
    if !pair.have_dblink() {
        return None;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let offer = texts(&mut a, "SELECT insta_ids_internal.move_offer(2, 2, 'b')::text").remove(0);
    let mut preparing = b.transaction().unwrap();
    preparing.execute("SELECT insta_ids_internal.move_prepare($1::text::jsonb)", &[&offer]).unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(|| pair.b.connect().batch_execute(call));
        becomes(Duration::from_secs(2), || calling.is_finished());
        preparing.commit().unwrap();
        calling.join().unwrap().unwrap();
    });
    check_ended(&pair);
    Some(pair)
}

/// A move is ended while its target makes the shards: it has ended then, on both servers.
#[test]
fn aborted_while_it_is_prepared() {
    let Some(pair) = called_while_it_is_prepared("abort_prepared", ABORT) else { return };
    pair.a.connect().batch_execute(INSERT).unwrap();
    assert_eq!(texts(&mut pair.b.connect(), "SELECT schema::text FROM insta_ids.shards"), [""; 0]);
}

/// A second caller while the first one makes the shards goes on with the same move.
#[test]
fn two_callers() {
    called_while_it_is_prepared("callers", CALL);
}

/// The map does not give a shard that moves to a third node, which would leave it without writers.
#[test]
fn assigned_while_it_moves() {
    let pair = Pair::start("assigned");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.add_node('c', 'host=c')").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    steps(&mut moving, &STEPS[..7]);
    for client in [&mut a, &mut b] {
        let error = refused(client, "SELECT insta_ids.assign(2, 2, 'c')");
        assert_eq!(error.message(), "shards from 2 to 2 are moving");
        assert_eq!(
            error.hint(),
            Some("Wait until they have moved, or on node \"b\": CALL insta_ids.move_abort(2, 2, 'a').")
        );
        assert_eq!(
            refused(client, "SELECT insta_ids.assign(2, 2, 'b')").message(),
            "shards from 2 to 2 are moving"
        );
    }
    // Nor does the map of another node.
    let elsewhere = "SELECT insta_ids.apply_map(jsonb_set(jsonb_set(insta_ids.shard_map(), '{version}', '1000'), '{ranges}', '[[0, 63, \"c\"]]'))";
    assert_eq!(refused(&mut b, elsewhere).message(), "shards from 2 to 2 are moving");
    steps(&mut moving, &STEPS[7..]);
    b.batch_execute(INSERT).unwrap();
}

/// A target that comes back after its move was withdrawn leaves the slot of the next move alone.
#[test]
fn a_lost_target_comes_back() {
    let pair = Pair::start("comes_back");
    if !pair.have_dblink() {
        return;
    }
    let c = Cluster::bare("comes_back_c", &settings("c").iter().map(String::as_str).collect::<Vec<_>>());
    let (mut a, mut third) = (pair.a.connect(), c.connect());
    let dsn = format!("host={} user=postgres dbname=postgres", c.socket.display());
    a.execute("SELECT insta_ids.add_node('c', $1)", &[&dsn]).unwrap();
    third.batch_execute("CREATE EXTENSION insta_ids; CREATE EXTENSION dblink").unwrap();
    third.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    steps(&mut Move::of(&pair, 2, 2), &STEPS[..5]);
    pair.b.stop();
    a.batch_execute("SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m")
        .unwrap();
    a.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 1000)").unwrap();
    let offer = texts(&mut a, "SELECT insta_ids_internal.move_offer(2, 2, 'c')::text").remove(0);
    a.batch_execute("SELECT insta_ids_internal.move_slot('insta_ids_2_2')").unwrap();
    pair.b.up();
    let mut b = pair.b.connect();
    // Its subscription asks for the slot of the old move.
    pair.b.await_log("does not exist");
    let used = "SELECT count(*) FROM pg_replication_slots WHERE active";
    assert_eq!(count(&mut a, used), 0);
    let error = refused(&mut b, CALL);
    assert_eq!(error.message(), "move of shards from 2 to 2 has ended on node \"a\"");
    assert_eq!(error.hint(), Some("End it here, too: CALL insta_ids.move_abort(2, 2, 'a')."));
    b.batch_execute(ABORT).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM pg_subscription"), 0);
    // The other one goes on.
    third.execute("SELECT insta_ids_internal.move_prepare($1::text::jsonb)", &[&offer]).unwrap();
    third.batch_execute(CALL).unwrap();
    assert_eq!(count(&mut third, "SELECT count(*) FROM insta2.photos"), 1000);
}

/// Slots of another database, or with another name, are not dropped, whatever the row of a move or a cancellation says.
#[test]
fn slots_of_others() {
    let pair = Pair::start("other_slots");
    let mut a = pair.a.connect();
    a.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = pair.a.connect_to("other");
    let make = |client: &mut Client, slot: &str| {
        client
            .execute("SELECT pg_create_logical_replication_slot($1::text::name, 'pgoutput')", &[&slot])
            .unwrap();
    };
    make(&mut other, "pg_1_sync_2_3");
    make(&mut a, "pg_1_sync_mine");
    make(&mut a, "pg_4_sync_5_6");
    steps(&mut Move::of(&pair, 2, 2), &STEPS[..3]);
    a.batch_execute(
        "SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)
            || '{\"table_slots\": [\"pg_1_sync_2_3\", \"pg_1_sync_mine\", \"pg_4_sync_5_6\"]}') FROM insta_ids_internal.move m",
    )
    .unwrap();
    let slots = "SELECT slot_name::text FROM pg_replication_slots ORDER BY 1";
    assert_eq!(texts(&mut a, slots), ["pg_1_sync_2_3", "pg_1_sync_mine"]);
    pair.b.connect().batch_execute("SELECT insta_ids_internal.move_cancel('insta_ids_2_2')").unwrap();
    steps(&mut Move::of(&pair, 2, 2), &STEPS[..3]);
    let is_named = "SELECT count(*) FROM insta_ids_internal.move m JOIN pg_replication_slots s
        ON s.slot_name = 'insta_ids_' || m.first || '_' || m.last || '_' || left(replace(m.id::text, '-', ''), 16)";
    assert_eq!(count(&mut a, is_named), 1);
    Move::of(&pair, 2, 2).abort().unwrap();
}

fn said(error: &DbError) -> (&str, Option<&str>) {
    (error.message(), error.hint())
}

/// What a move cannot do without was dropped: the error has the statement that ends it.
#[test]
fn dropped_by_hand() {
    let pair = Pair::start("dropped");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let unset = "ALTER SUBSCRIPTION insta_ids_2_2 DISABLE; ALTER SUBSCRIPTION insta_ids_2_2 SET (slot_name = NONE); DROP SUBSCRIPTION insta_ids_2_2";
    let drop_slot =
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL;
        SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    for (what, on_b) in [("slot", false), ("publication", false), ("subscription", true)] {
        for come in [3, 5, 6] {
            if on_b && come < 4 {
                continue;
            }
            let mut moving = Move::of(&pair, 2, 2);
            steps(&mut moving, &STEPS[..come]);
            match what {
                "slot" => {
                    let _ = b.batch_execute("ALTER SUBSCRIPTION insta_ids_2_2 DISABLE");
                    within(Duration::from_secs(20), || a.batch_execute(drop_slot).is_ok());
                }
                "publication" => a.batch_execute("DROP PUBLICATION insta_ids_2_2").unwrap(),
                _ => unset.split(';').for_each(|command| b.batch_execute(command).unwrap()),
            }
            let error = refused(&mut b, CALL);
            let message = match what {
                "slot" => "replication slot of move \"insta_ids_2_2\" is lost",
                "publication" => "publication of move \"insta_ids_2_2\" is lost",
                _ => "subscription of move \"insta_ids_2_2\" is lost",
            };
            let hint =
                "End the move, and begin it again: CALL insta_ids.move_abort(2, 2, 'a') on node \"b\".";
            assert_eq!(said(&error), (message, Some(hint)), "{what} after {come} steps");
            b.batch_execute(ABORT).unwrap();
            a.batch_execute(INSERT).unwrap();
            check_ended(&pair);
        }
    }
}

/// Too late, or on a server with another name: the errors say so.
#[test]
fn errors_of_abort() {
    let pair = Pair::start("abort_errors");
    if !pair.have_dblink() {
        return;
    }
    let mut moving = Move::of(&pair, 2, 2);
    steps(&mut moving, &STEPS[..8]);
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let too_late = (
        "shards from 2 to 2 are already on this node",
        Some("Finish the move: CALL insta_ids.move_shards(2, 2, 'a')."),
    );
    assert_eq!(said(&refused(&mut b, ABORT)), too_late);
    let handed_over = texts(&mut b, "SELECT insta_ids_internal.move_hand_over('insta_ids_2_2')::text").remove(0);
    a.batch_execute(&format!("SELECT insta_ids_internal.move_finish('insta_ids_2_2', '{handed_over}')")).unwrap();
    assert_eq!(said(&refused(&mut b, ABORT)), too_late);
    b.batch_execute(CALL).unwrap();
    a.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();

    // A leftover of CREATE INDEX CONCURRENTLY is of no migration.
    a.batch_execute("INSERT INTO insta3.photos (caption) SELECT 'same' FROM generate_series(1, 2)").unwrap();
    a.batch_execute("CREATE UNIQUE INDEX CONCURRENTLY leftover ON insta3.photos (caption)").unwrap_err();
    let error = refused(&mut b, "CALL insta_ids.move_shards(3, 3, 'a')");
    assert_eq!(said(&error), ("shard 3 cannot be moved", Some("Drop it: DROP INDEX insta3.leftover.")));
    assert_eq!(error.detail(), Some("Index insta3.leftover is invalid."));
    a.batch_execute("DROP INDEX insta3.leftover").unwrap();

    // The target has another name after a restart.
    steps(&mut Move::of(&pair, 3, 3), &STEPS[..5]);
    b.batch_execute("ALTER SYSTEM SET insta_ids.node = 'bb'").unwrap();
    pair.b.stop();
    pair.b.up();
    let mut b = pair.b.connect();
    for call in ["CALL insta_ids.move_shards(3, 3, 'a')", "CALL insta_ids.move_abort(3, 3, 'a')"] {
        let error = refused(&mut b, call);
        let hint = "Set insta_ids.node to the name of before in postgresql.conf, and restart the server.";
        assert_eq!(
            said(&error),
            ("this server is neither of the nodes of move \"insta_ids_3_3\"", Some(hint)),
            "{call}"
        );
        assert_eq!(error.detail(), Some("The move is from node \"a\" to node \"b\"; this is node \"bb\"."));
    }
}

/// Holds the fence back, so that all before it is done, until `then` has been called.
fn before_the_fence(pair: &Pair, call: &str, then: impl FnOnce(&mut Client)) -> Result<(), postgres::Error> {
    let mut holder = pair.a.connect();
    holder.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ROW EXCLUSIVE MODE").unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(|| pair.b.connect().batch_execute(call));
        await_lock(&pair.a, 1);
        then(&mut holder);
        calling.join().unwrap()
    })
}

/// Rows that do not arrive, or are compared for too long, do not keep writers waiting; the copy is kept.
#[test]
fn a_pause_has_an_end() {
    let pair = Pair::start("pause");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for (write, detail) in [
        (INSERT, "Rows that were written before the fence had not arrived."),
        ("SELECT", "Rows were still being compared."),
    ] {
        let mut blocking = pair.b.connect();
        let call = "CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '20s', max_pause => '1 s')";
        let mut fenced = None;
        let error = before_the_fence(&pair, call, |holder| {
            blocking.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ACCESS EXCLUSIVE MODE").unwrap();
            holder.batch_execute(&format!("{write}; COMMIT")).unwrap();
            within(Duration::from_secs(20), || a.batch_execute(INSERT).is_err());
            fenced = Some(Instant::now());
            within(Duration::from_secs(20), || a.batch_execute(INSERT).is_ok());
        })
        .unwrap_err();
        let paused = fenced.unwrap().elapsed();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.message(), "shards from 2 to 2 were not handed over within 00:00:01");
        assert_eq!(error.detail(), Some(detail));
        assert!(paused < Duration::from_secs(4), "{paused:?}");
        assert_eq!(texts(&mut b, "SELECT step FROM insta_ids_internal.move"), ["copying"]);
        blocking.batch_execute("COMMIT").unwrap();
    }
    // A mark of a fence that was given up is worth nothing.
    let mut moving = Move::of(&pair, 2, 2);
    steps(&mut moving, &["fence", "drained"]);
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

/// A worker that restarts between the last row and the hand-over is waited for.
#[test]
fn a_worker_restarts_at_the_end() {
    let pair = Pair::start("worker");
    if !pair.have_dblink() {
        return;
    }
    let mut b = pair.b.connect();
    b.batch_execute("ALTER SYSTEM SET wal_retrieve_retry_interval = '2s'").unwrap();
    b.batch_execute("SELECT pg_reload_conf()").unwrap();
    let mut blocking = pair.b.connect();
    let call = "CALL insta_ids.move_shards(2, 2, 'a', lock_timeout => '20s', verify => 'count')";
    before_the_fence(&pair, call, |holder| {
        blocking.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ACCESS EXCLUSIVE MODE").unwrap();
        holder.batch_execute("COMMIT").unwrap();
        await_lock(&pair.b, 1);
        b.batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE pid IS NOT NULL")
            .unwrap();
        within(Duration::from_secs(10), || {
            count(&mut b, "SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL") == 0
        });
        blocking.batch_execute("COMMIT").unwrap();
    })
    .unwrap();
    check_ended(&pair);
}

/// Where the subscription cannot run, no writer is stopped.
#[test]
fn no_fence_without_a_subscription() {
    let pair = Pair::start("no_worker");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    steps(&mut Move::of(&pair, 2, 2), &STEPS[..5]);
    let restarted = |workers: i32| {
        pair.b
            .connect()
            .batch_execute(&format!("ALTER SYSTEM SET max_logical_replication_workers = {workers}"))
            .unwrap();
        pair.b.stop();
        pair.b.up();
        pair.b.connect()
    };
    b.batch_execute("SELECT 1").unwrap();
    let mut b_without = restarted(0);
    b_without.batch_execute("SET statement_timeout = '20s'").unwrap();
    let error = refused(&mut b_without, CALL);
    assert_eq!(
        said(&error),
        (
            "subscriptions do not run on this server",
            Some("Raise it in postgresql.conf, and restart the server.")
        )
    );
    a.batch_execute(INSERT).unwrap();
    // What the source writes cannot be applied.
    let mut b = restarted(4);
    b.batch_execute("SET session_replication_role = replica; INSERT INTO insta2.photos (id) VALUES (2 << 10); RESET session_replication_role").unwrap();
    a.batch_execute("INSERT INTO insta2.photos (id) VALUES (2 << 10)").unwrap();
    let message = "subscription of move \"insta_ids_2_2\" has stopped at an error";
    within(Duration::from_secs(20), || {
        count(&mut b, "SELECT count(*) FROM pg_subscription WHERE subenabled") == 0
    });
    assert_eq!(refused(&mut b, CALL).message(), message);
    assert_eq!(texts(&mut a, "SELECT step FROM insta_ids.moves"), ["offered"]);
    assert_eq!(count(&mut a, "SELECT fences::bigint FROM insta_ids_internal.move"), 0);
    a.batch_execute(INSERT).unwrap();
    b.batch_execute("SET session_replication_role = replica; DELETE FROM insta2.photos WHERE id = 2 << 10; RESET session_replication_role").unwrap();
    b.batch_execute(CALL).unwrap();
    check_ended(&pair);
}

/// A standby that does not have the fence could take writes when it is promoted: so it is waited for.
#[test]
fn standbys_have_the_fence() {
    let pair = Pair::start("standbys");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT pg_create_physical_replication_slot('kept', true)").unwrap();
    let error = refused(&mut b, CALL);
    assert_eq!(error.message(), "standby of slot \"kept\" of node \"a\" is not connected");
    assert_eq!(
        error.hint(),
        Some(
            "Start the standby and call again, or call with await_standbys => false; if it is gone, drop its slot."
        )
    );
    a.batch_execute(INSERT).unwrap();
    a.batch_execute("SELECT pg_drop_replication_slot('kept')").unwrap();

    let standby = pair.a.standby("standbys_of_a");
    let up_to_date = "SELECT count(*) FROM pg_stat_replication
        WHERE application_name = 'standbys_of_a' AND flush_lsn = pg_current_wal_flush_lsn()";
    within(Duration::from_secs(20), || count(&mut a, up_to_date) == 1);
    standby.signal("STOP");
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a', max_pause => '1 s')");
    assert_eq!(error.message(), "standby \"standbys_of_a\" of node \"a\" does not have the fence yet");
    a.batch_execute(INSERT).unwrap();

    // Its connection ends while it is waited for: before the fence, and after it.
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_replication WHERE application_name = 'standbys_of_a'";
    let missing = [
        ("max_lag => 0", "%standby_behind%", "standby \"standbys_of_a\" of node \"a\" is not connected"),
        (
            "max_pause => '5 s'",
            "%move_mark%",
            "standby \"standbys_of_a\" of node \"a\" does not have the fence yet",
        ),
    ];
    for (option, waits, message) in missing {
        standby.signal("CONT");
        within(Duration::from_secs(20), || count(&mut a, up_to_date) == 1);
        standby.signal("STOP");
        a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
        thread::scope(|scope| {
            let call = format!("CALL insta_ids.move_shards(2, 2, 'a', {option})");
            let begun = texts(&mut a, "SELECT clock_timestamp()::text").remove(0);
            let calling = scope.spawn(|| refused(&mut pair.b.connect(), &{ call }));
            let asked = format!(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE query LIKE '{waits}' AND query_start > '{begun}' AND pid <> pg_backend_pid()"
            );
            within(Duration::from_mins(1), || count(&mut a, &asked) > 0);
            thread::sleep(Duration::from_millis(500));
            assert_eq!(count(&mut a, cut), 1);
            assert_eq!(calling.join().unwrap().message(), message);
        });
        a.batch_execute(INSERT).unwrap();
    }
    standby.signal("CONT");
    within(Duration::from_secs(20), || count(&mut a, up_to_date) == 1);
    b.batch_execute(CALL).unwrap();
    standby.signal("STOP");
    b.batch_execute("CALL insta_ids.move_shards(3, 3, 'a', await_standbys => false)").unwrap();
    standby.signal("CONT");
}

/// A source, and its standby, which has come so far when the source is lost.
fn failed_over(
    name: &str,
    known: usize,
    done: usize,
    after: impl FnOnce(&Pair),
) -> Option<(Pair, Client, Client)> {
    let mut pair = Pair::start(name);
    if !pair.have_dblink() {
        return None;
    }
    let mut a = pair.a.connect();
    let standby = pair.a.standby(&format!("{name}_of_a"));
    let mut moving = Move::of(&pair, 2, 2);
    a.batch_execute(INSERT).unwrap();
    steps(&mut moving, &STEPS[..known]);
    let replayed = texts(&mut a, "SELECT pg_current_wal_flush_lsn()::text").remove(0);
    let replays = format!("SELECT count(*) FROM pg_last_wal_replay_lsn() l WHERE l >= '{replayed}'");
    within(Duration::from_secs(20), || count(&mut standby.connect(), &replays) == 1);
    standby.stop();
    if known > 5 {
        // It was connected at the fence, so its loss must be accepted.
        a.batch_execute("SELECT insta_ids_internal.move_mark('insta_ids_2_2', NULL)").unwrap();
    }
    steps(&mut moving, &STEPS[known..done]);
    after(&pair);
    pair.a.stop_immediately();
    standby.up();
    standby.promote();
    let dsn = format!("host={} user=postgres dbname=postgres", standby.socket.display());
    pair.a = standby;
    let mut b = pair.b.connect();
    b.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
    let promoted = pair.a.connect();
    Some((pair, promoted, b))
}

/// What is so when a move was resolved: the target alone has the shard, and both maps say so.
fn check_resolved(pair: &Pair) {
    check_ended(pair);
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    assert_eq!(refused(&mut a, "INSERT INTO insta2__moved.photos DEFAULT VALUES").code().code(), "25006");
    b.batch_execute(INSERT).unwrap();
    let on = "SELECT node::text FROM insta_ids.map WHERE 2 BETWEEN first AND last";
    for client in [&mut a, &mut b] {
        assert_eq!(texts(client, on), ["b"]);
        assert_eq!(texts(client, "SELECT code FROM insta_ids.check() WHERE severity = 'error'"), [""; 0]);
    }
}

/// The source fails over to a standby that has the offer, and not the fence, when the move has ended on the target: it mints
/// nothing for the shard, and the next call ends the move there, too.
#[test]
fn a_promoted_source_lacks_the_fence() {
    for (name, target_finished) in [("lacks_fence", true), ("lacks_fence_open", false)] {
        let finish = |pair: &Pair| {
            if target_finished {
                pair.b.connect().batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
            }
        };
        let Some((pair, mut a, mut b)) = failed_over(name, 1, 8, finish) else { return };
        let error = refused(&mut a, INSERT);
        assert_eq!((error.code().code(), error.message()), ("25006", "shard 2 is fenced"));
        assert!(
            error
                .detail()
                .unwrap()
                .starts_with("It was moving to node \"b\" when this server was promoted, and may be there.")
        );
        a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
        assert_eq!(
            texts(&mut a, "SELECT code FROM insta_ids.check() WHERE severity = 'error'"),
            ["move_in_doubt"]
        );
        let error = refused(&mut a, "SELECT insta_ids_internal.move_withdraw('insta_ids_2_2')");
        assert_eq!(error.message(), "shards from 2 to 2 may already be on node \"b\"");
        let error = refused(&mut b, ABORT);
        assert_eq!(
            said(&error),
            (
                "shards from 2 to 2 are already on this node",
                Some("Finish the move: CALL insta_ids.move_shards(2, 2, 'a').")
            )
        );
        b.batch_execute(CALL).unwrap();
        check_resolved(&pair);
    }
}

/// It has the fence, and not the end.
#[test]
fn a_promoted_source_has_the_fence() {
    let finish = |pair: &Pair| {
        pair.b.connect().batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    };
    let Some((pair, mut a, mut b)) = failed_over("has_fence", 6, 8, finish) else { return };
    assert_eq!(refused(&mut a, INSERT).message(), "shard 2 is fenced");
    b.batch_execute(INSERT).unwrap();
    b.batch_execute(CALL).unwrap();
    check_resolved(&pair);
}

/// Without ids of the extension it takes rows: the next call fences it, and says that there are rows on both.
#[test]
fn both_have_taken_rows() {
    let Some((pair, mut a, mut b)) = failed_over("both", 1, 8, |_| ()) else { return };
    let row = "INSERT INTO insta2.photos (id, caption) VALUES (2 << 10, 'late')";
    a.batch_execute(row).unwrap();
    let error = refused(&mut b, CALL);
    assert_eq!(error.message(), "node \"a\" has rows of table insta2.photos that this node does not have");
    assert!(error.detail().unwrap().starts_with("Of its rows, 1 are not here or not the same."), "{error:?}");
    assert_eq!(refused(&mut a, row).message(), "shard 2 is fenced");
    assert_eq!(refused(&mut b, CALL).message(), error.message());
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a', verify => 'none')").unwrap();
    check_resolved(&pair);
    assert_eq!(count(&mut a, "SELECT count(*) FROM insta2__moved.photos WHERE caption = 'late'"), 1);
}

/// The source fails over while rows are copied: the move is ended from the target, and the shard is open again.
#[test]
fn a_promoted_source_of_a_copy() {
    let Some((pair, mut a, mut b)) = failed_over("copying", 5, 5, |_| ()) else { return };
    assert_eq!(refused(&mut a, INSERT).message(), "shard 2 is fenced");
    let error = refused(&mut b, CALL);
    let hint = "End the move, and begin it again: CALL insta_ids.move_abort(2, 2, 'a') on node \"b\".";
    assert_eq!(said(&error), ("replication slot of move \"insta_ids_2_2\" is lost", Some(hint)));
    b.batch_execute(ABORT).unwrap();
    check_ended(&pair);
    a.batch_execute(INSERT).unwrap();
    b.batch_execute(CALL).unwrap();
    check_resolved(&pair);
}
