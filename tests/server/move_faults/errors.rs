//! What was dropped or comes too late is an error that says what to do.

use super::{ABORT, CALL, INSERT, check_ended};
use postgres::error::DbError;
use std::time::Duration;
use support::pair::{Move, Pair, before};
use support::{count, refused, texts, within};

pub(crate) fn said(error: &DbError) -> (&str, Option<&str>) {
    (error.message(), error.hint())
}

/// An object without which the move cannot go on was dropped. The error has the statement that ends the move.
#[test]
fn a_move_without_its_slot_or_subscription_says_how_to_end_it() {
    let pair = Pair::start("dropped");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let unset = "ALTER SUBSCRIPTION insta_ids_2_2 DISABLE; ALTER SUBSCRIPTION insta_ids_2_2 SET (slot_name = NONE); DROP SUBSCRIPTION insta_ids_2_2";
    let drop_slot =
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL;
        SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    for (what, on_b) in [("slot", false), ("publication", false), ("subscription", true)] {
        for next in ["subscribe", "fence", "drained"] {
            if on_b && next == "subscribe" {
                continue;
            }
            let mut moving = Move::of(&pair, 2, 2);
            moving.steps(before(next));
            match what {
                "slot" => {
                    let _ = b.batch_execute("ALTER SUBSCRIPTION insta_ids_2_2 DISABLE");
                    within(Duration::from_secs(20), || a.batch_execute(drop_slot).is_ok());
                }
                "publication" => a
                    .batch_execute("SET session_replication_role = replica; DROP PUBLICATION insta_ids_2_2; RESET session_replication_role")
                    .unwrap(),
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
            assert_eq!(said(&error), (message, Some(hint)), "{what} before {next}");
            // The worker has aborted it.
            a.batch_execute(INSERT).unwrap();
            check_ended(&pair);
        }
    }
}

/// It is too late, or a server has another name: the error says so.
#[test]
fn a_move_that_cannot_be_aborted_says_why() {
    let pair = Pair::start("abort_errors");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("finish"));
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let too_late = (
        "shards from 2 to 2 are already on this node",
        Some("Finish the move: CALL insta_ids.move_shards(2, 2, 'a')."),
    );
    assert_eq!(said(&refused(&mut b, ABORT)), too_late);
    let handed_over =
        texts(&mut b, "SELECT insta_ids_internal.move_hand_over('insta_ids_2_2')::text").remove(0);
    a.batch_execute(&format!("SELECT insta_ids_internal.move_finish('insta_ids_2_2', '{handed_over}')"))
        .unwrap();
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
    Move::of(&pair, 3, 3).steps(before("fence"));
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

/// A subscription that cannot run is found before the fence.
#[test]
fn no_writer_is_stopped_while_the_subscription_cannot_run() {
    let pair = Pair::start("no_worker");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    Move::of(&pair, 2, 2).steps(before("fence"));
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
            "subscription of move \"insta_ids_2_2\" does not run",
            Some(
                "See the log of this server; \"max_logical_replication_workers\" or \"max_worker_processes\" may be too low."
            )
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
