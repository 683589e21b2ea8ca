//! What others do while shards move.

use super::{ABORT, CALL, INSERT, await_lock, check_ended};
use postgres::Client;
use std::thread;
use std::time::Duration;
use support::pair::{Move, Pair, STEPS, before, settings, shard_map};
use support::{Cluster, becomes, count, refused, texts};

/// Shards of another node between those that move stay where they are.
#[test]
fn shards_of_other_nodes_within_the_range_stay() {
    let pair = Pair::start("around_other");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.drop_shard(2), insta_ids.add_node('c', 'host=c')").unwrap();
    a.batch_execute("SELECT insta_ids.assign(2, 2, 'c')").unwrap();
    Move::of(&pair, 1, 3).steps(&STEPS);
    let map = "SELECT string_agg(concat_ws(' ', first, last, node), ', ' ORDER BY first) FROM insta_ids.map";
    for client in [&mut a, &mut b] {
        assert_eq!(texts(client, map), ["0 0 a, 1 1 b, 2 2 c, 3 3 b, 4 63 a"]);
    }
    b.batch_execute("INSERT INTO insta1.photos DEFAULT VALUES; INSERT INTO insta3.photos DEFAULT VALUES")
        .unwrap();
}

/// All three take their locks in one order.
#[test]
fn moving_assigning_and_making_shards_cannot_deadlock() {
    let pair = Pair::start("order");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("hand over"));
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
fn called_while_it_is_prepared(name: &str, call: &str) -> Pair {
    let pair = Pair::start(name);
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let offer = texts(&mut a, "SELECT insta_ids_internal.move_offer(2, 2, 'b')::text").remove(0);
    let mut preparing = b.transaction().unwrap();
    preparing
        .execute(
            "SELECT insta_ids_internal.prepare_shards($1::text::jsonb, current_setting('search_path'))",
            &[&offer],
        )
        .unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(|| pair.b.connect().batch_execute(call));
        becomes(Duration::from_secs(2), || calling.is_finished());
        preparing.commit().unwrap();
        calling.join().unwrap().unwrap();
    });
    check_ended(&pair);
    pair
}

/// The move has then ended on both servers.
#[test]
fn a_move_can_be_aborted_while_the_target_makes_the_shards() {
    let pair = called_while_it_is_prepared("abort_prepared", ABORT);
    pair.a.connect().batch_execute(INSERT).unwrap();
    assert_eq!(texts(&mut pair.b.connect(), "SELECT schema::text FROM insta_ids.shards"), [""; 0]);
}

/// The second caller comes while the first one makes the shards.
#[test]
fn a_second_caller_goes_on_with_the_same_move() {
    called_while_it_is_prepared("callers", CALL);
}

/// That would leave the shard without writers.
#[test]
fn a_shard_that_moves_is_not_assigned_to_a_third_node() {
    let pair = Pair::start("assigned");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.add_node('c', 'host=c')").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("release"));
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
    let elsewhere = "SELECT insta_ids.apply_map(jsonb_set(jsonb_set(insta_ids.shard_map(), '{version}', '1000'), '{ranges}', '[[0, 63, \"c\", 1000]]'))";
    assert_eq!(refused(&mut b, elsewhere).message(), "shards from 2 to 2 are moving");
    moving.steps(&STEPS[7..]);
    b.batch_execute(INSERT).unwrap();
}

/// The target comes back after its move was withdrawn.
#[test]
fn a_target_that_comes_back_leaves_the_next_moves_slot_alone() {
    let pair = Pair::start("comes_back");
    let c = Cluster::with("comes_back_c", &settings("c"));
    let (mut a, mut third) = (pair.a.connect(), c.connect());
    let dsn = format!("host={} user=postgres dbname=postgres", c.socket.display());
    a.execute("SELECT insta_ids.add_node('c', $1)", &[&dsn]).unwrap();
    third.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    third.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    Move::of(&pair, 2, 2).steps(before("fence"));
    pair.b.stop();
    a.batch_execute(
        "SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m",
    )
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
    third
        .execute(
            "SELECT insta_ids_internal.prepare_shards($1::text::jsonb, current_setting('search_path'))",
            &[&offer],
        )
        .unwrap();
    third.batch_execute(CALL).unwrap();
    assert_eq!(count(&mut third, "SELECT count(*) FROM insta2.photos"), 1000);
}

/// Slots of another database or with another name stay, whatever the row of a move or a cancellation says.
#[test]
fn slots_that_are_not_the_moves_are_not_dropped() {
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
    Move::of(&pair, 2, 2).steps(before("subscribe"));
    a.batch_execute(
        "SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)
            || '{\"table_slots\": [\"pg_1_sync_2_3\", \"pg_1_sync_mine\", \"pg_4_sync_5_6\"]}') FROM insta_ids_internal.move m",
    )
    .unwrap();
    let slots = "SELECT slot_name::text FROM pg_replication_slots ORDER BY 1";
    assert_eq!(texts(&mut a, slots), ["pg_1_sync_2_3", "pg_1_sync_mine"]);
    pair.b.connect().batch_execute("SELECT insta_ids_internal.move_cancel('insta_ids_2_2')").unwrap();
    Move::of(&pair, 2, 2).steps(before("subscribe"));
    let is_named = "SELECT count(*) FROM insta_ids_internal.move m JOIN pg_replication_slots s
        ON s.slot_name = 'insta_ids_' || m.first || '_' || m.last || '_' || left(replace(m.id::text, '-', ''), 16)";
    assert_eq!(count(&mut a, is_named), 1);
    Move::of(&pair, 2, 2).abort().unwrap();
}
