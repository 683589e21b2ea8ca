//! A move ends in one way, on both servers.

use std::thread;

use super::FENCED;
use support::pair::{Move, Pair, STEPS, before, shard_map};
use support::{count, refused, texts};

/// Whatever the order of calls, a cancelled move is not taken over, and a shard that was taken over is not opened again
/// where it came from.
#[test]
fn a_move_is_either_cancelled_or_taken_over() {
    let pair = Pair::start("ends");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let message = |error: postgres::Error| error.as_db_error().unwrap().message().to_owned();

    // Two drivers: one cancels, the other goes on with the same offer.
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("drained"));
    let cancelled = texts(&mut b, "SELECT insta_ids_internal.move_cancel('insta_ids_2_2')::text");
    moving.step("offer").unwrap();
    assert_eq!(message(moving.step("prepare").unwrap_err()), "offer of shards from 2 to 2 is void");
    let withdraw = |cancellation: &str| {
        format!("SELECT insta_ids_internal.move_withdraw('insta_ids_2_2', '{cancellation}')")
    };
    for other in ["{}", r#"{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}"#] {
        assert_eq!(
            refused(&mut a, &withdraw(other)).message(),
            "shards from 2 to 2 may already be on node \"b\""
        );
    }
    for _ in 0..2 {
        a.batch_execute(&withdraw(&cancelled[0])).unwrap();
    }
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();

    // Handed over, and then cancelled: too late, also when the target has forgotten it.
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("finish"));
    assert_eq!(message(moving.abort().unwrap_err()), "shards of move \"insta_ids_2_2\" are already here");
    b.batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    assert_eq!(message(moving.abort().unwrap_err()), "shards of move \"insta_ids_2_2\" are already here");
    assert_eq!(refused(&mut a, "INSERT INTO insta2.photos DEFAULT VALUES").code(), FENCED);
    moving.step("finish").unwrap();

    // A copy whose hand-over its server has lost is not dropped: the other one has let go.
    let mut moving = Move::of(&pair, 3, 3);
    moving.steps(&STEPS);
    let lost = "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
        SELECT 'insta_ids_3_3', id, 3, 3, '{3}', 'a', 'b', 0, 'copying' FROM insta_ids_internal.move_outcome ORDER BY at DESC LIMIT 1";
    b.batch_execute(lost).unwrap();
    let error = refused(&mut b, "CALL insta_ids.move_abort(3, 3)");
    assert_eq!(error.message(), "node \"a\" has let go of shards from 3 to 3");
}

/// A role that may provision cannot write on the target that a move has ended. Such a row does not make the source let go of
/// rows that the target lacks.
#[test]
fn a_forged_outcome_does_not_end_a_move() {
    let pair = Pair::start("outcome");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 100)").unwrap();
    let mut forger = pair.b.connect();
    b.batch_execute(
        "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger')",
    )
    .unwrap();
    forger.batch_execute("SET ROLE forger; CREATE SCHEMA insta7").unwrap();
    let id_of = |name: &str| {
        texts(
            &mut pair.a.connect(),
            &format!("SELECT id::text FROM insta_ids_internal.move WHERE name = '{name}'"),
        )
        .remove(0)
    };
    let ended = |id: &str, values: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move_outcome (id, outcome, shards, table_slots) VALUES ('{id}', {values})"
        )
    };
    Move::of(&pair, 3, 3).step("offer").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("slot"));
    for id in [id_of("insta_ids_2_2"), id_of("insta_ids_3_3")] {
        for values in [
            "'handed over', '{2}', NULL",
            "'handed over', '{7}', NULL",
            "'withdrawn', '{3}', NULL",
            "'cancelled', NULL, NULL",
            "'cancelled', '{2}', '{pg_1_sync_1_1}'",
        ] {
            assert_eq!(refused(&mut forger, &ended(&id, values)).code().code(), "42501", "{values}");
        }
    }
    for change in [
        "DELETE FROM insta_ids_internal.move_outcome",
        "UPDATE insta_ids_internal.move_outcome SET at = now()",
    ] {
        assert_eq!(refused(&mut forger, change).code().code(), "42501");
    }

    // Where it is there nevertheless, the move's own row counts, and what the source says.
    b.batch_execute(&ended(&id_of("insta_ids_2_2"), "'handed over', '{2}', NULL")).unwrap();
    assert_eq!(refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')").code().code(), "23505");
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    b.batch_execute("DELETE FROM insta_ids_internal.move_outcome").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 101);
    for (shards, message) in
        [("{2}", "offer of shards from 3 to 3 is void"), ("{3}", "shards from 3 to 3 have not left")]
    {
        let values = format!("'handed over', '{shards}', NULL");
        b.batch_execute(&ended(&id_of("insta_ids_3_3"), &values)).unwrap();
        assert_eq!(refused(&mut b, "CALL insta_ids.move_shards(3, 3, 'a')").message(), message);
        b.batch_execute("DELETE FROM insta_ids_internal.move_outcome").unwrap();
    }
    a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
}

/// A fenced shard may be given to another node by hand. Withdrawing the offer then does not open it here.
#[test]
fn a_withdrawn_shard_is_where_the_map_says() {
    let pair = Pair::start("withdrawn");
    let mut a = pair.a.connect();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("drained"));
    let by_map = "SELECT insta_ids.apply_map(insta_ids.shard_map()
        || '{\"version\": 1000, \"ranges\": [[2, 2, \"b\", 1000]]}')";
    a.batch_execute(by_map).unwrap();
    let error = moving.abort().unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "the map does not have shard 2 on this node");
    assert_eq!(
        error.hint(),
        Some(
            "On node \"a\": SELECT insta_ids.assign(2, 2, 'a'). Then call insta_ids.move_abort(2, 2, 'a') again where it was called."
        )
    );
    assert_eq!(refused(&mut a, "INSERT INTO insta2.photos DEFAULT VALUES").code().code(), "25006");
    a.batch_execute("SELECT insta_ids.assign(2, 2, 'a')").unwrap();
    moving.abort().unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// Each server acts only on the other's own proof of what it has done.
#[test]
fn neither_server_believes_what_the_other_did_not_confirm() {
    let pair = Pair::start("word");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("hand over"));
    // Before it was handed over, the source does not let go.
    for proof in
        ["NULL", r#"'{"version": 9}'"#, r#"'{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "version": 9}'"#]
    {
        let finish = format!("SELECT insta_ids_internal.move_finish('insta_ids_2_2', {proof})");
        assert_eq!(refused(&mut a, &finish).message(), "shards from 2 to 2 may not be on node \"b\" yet");
    }
    assert_eq!(
        refused(&mut a, "SELECT insta_ids.drop_node('b')").message(),
        "shards move from or to node \"b\""
    );
    // Nor does the target set whatever sequence the mark names.
    b.batch_execute("CREATE SEQUENCE public.other").unwrap();
    let mark =
        texts(&mut a, "SELECT (mark || '{\"released\": true}')::text FROM insta_ids_internal.move").remove(0);
    for other in ["[\"public\", \"other\", 99, true]", "[\"insta2\", \"photos\", 99, true]"] {
        let hand_over = format!(
            "SELECT insta_ids_internal.move_hand_over('insta_ids_2_2', jsonb_insert('{mark}', '{{sequences, 0}}', '{other}'))"
        );
        let error = refused(&mut b, &hand_over);
        assert_eq!(error.code().code(), "22023");
        assert!(error.message().ends_with("which is no sequence of its shards"), "{error:?}");
    }
    moving.step("hand over").unwrap();

    // Another database of the target's server has its name, and nothing of the move.
    b.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = pair.b.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    other.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    let id = texts(&mut a, "SELECT id::text FROM insta_ids_internal.move").remove(0);
    let cancel = format!("SELECT insta_ids_internal.move_cancel('insta_ids_2_2', '{id}')::text");
    let cancellation = texts(&mut other, &cancel).remove(0);
    // Asked again, it has heard of it, from itself.
    assert_eq!(texts(&mut other, &cancel), [&*cancellation]);
    let withdraw = format!("SELECT insta_ids_internal.move_withdraw('insta_ids_2_2', '{cancellation}')");
    assert_eq!(refused(&mut a, &withdraw).message(), "shards from 2 to 2 may already be on node \"b\"");
    assert_eq!(
        refused(&mut other, "CALL insta_ids.move_abort(2, 2, 'a')").message(),
        "shards from 2 to 2 may already be on node \"b\""
    );
    moving.step("finish").unwrap();

    // A map from before does not bring it back, also when nothing is left of it.
    a.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    for back in [
        "SELECT insta_ids.assign(0, 63, 'a')",
        "DELETE FROM insta_ids_internal.assignment; SELECT insta_ids.create_shard(2)",
    ] {
        assert_eq!(refused(&mut a, back).message(), "shard 2 has moved to node \"b\"");
    }
    // But a move does.
    a.batch_execute("SELECT insta_ids.assign(2, 2, 'b')").unwrap();
    a.batch_execute("CALL insta_ids.move_shards(2, 2, 'b')").unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// A server without its name has no map, but still knows which shards have left it.
#[test]
fn a_source_without_its_name_still_refuses_what_has_left() {
    let pair = Pair::start("nameless");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(&STEPS);
    pair.a.connect().batch_execute("ALTER SYSTEM SET insta_ids.node = ''").unwrap();
    pair.a.stop();
    pair.a.up();
    let mut a = pair.a.connect();
    assert_eq!(refused(&mut a, "SELECT insta2__moved.next_id()").code(), FENCED);
    a.batch_execute("SELECT insta3.next_id()").unwrap();
}

/// Sessions that abort a move at the same time all succeed. Then the move can begin again.
#[test]
fn aborts_at_the_same_time_end_a_move() {
    let pair = Pair::start("aborts");
    for round in 0..6 {
        Move::of(&pair, 2, 2).steps(before(["fence", "copied", "slot"][round % 3]));
        thread::scope(|scope| {
            let abort = || pair.b.connect().batch_execute("CALL insta_ids.move_abort(2, 2, 'a')");
            let calls = [(); 4].map(|()| scope.spawn(abort));
            for call in calls {
                call.join().unwrap().unwrap();
            }
        });
        assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta_ids.moves"), 0);
        pair.a.connect().batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    }
}
