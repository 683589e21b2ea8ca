//! The source fails over to a standby.

use super::errors::said;
use super::{ABORT, CALL, INSERT, check_ended};
use postgres::Client;
use std::thread;
use std::time::Duration;
use support::pair::{Move, Pair, STEPS, before, settings, shard_map};
use support::{Cluster, count, refused, texts, within};

/// A standby without the fence could take writes when it is promoted, so the move waits for it.
#[test]
fn a_move_waits_until_standbys_have_the_fence() {
    let pair = Pair::start("standbys");
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
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a', max_pause => '3 s')");
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

/// A source that is lost before the step `next`, and its standby, which has what came before the step `known`.
fn failed_over(name: &str, known: &str, next: &str, after: impl FnOnce(&Pair)) -> (Pair, Client, Client) {
    let mut pair = Pair::start(name);
    let mut a = pair.a.connect();
    let standby = pair.a.standby(&format!("{name}_of_a"));
    let mut moving = Move::of(&pair, 2, 2);
    a.batch_execute(INSERT).unwrap();
    moving.steps(before(known));
    pair.a.replayed_by(&standby);
    standby.stop();
    if before(known).contains(&"fence") {
        // It was connected at the fence, so its loss must be accepted.
        a.batch_execute("SELECT insta_ids_internal.move_mark('insta_ids_2_2', NULL)").unwrap();
    }
    moving.steps(&before(next)[before(known).len()..]);
    after(&pair);
    pair.a.stop_immediately();
    standby.up();
    standby.promote();
    let dsn = format!("host={} user=postgres dbname=postgres", standby.socket.display());
    pair.a = standby;
    let mut b = pair.b.connect();
    b.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
    let promoted = pair.a.connect();
    (pair, promoted, b)
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

/// The source fails over to a standby that has the offer but not the fence, after the move has ended on the target. It mints
/// nothing for the shard, and the next call ends the move there too.
#[test]
fn a_promoted_source_without_the_fence_mints_nothing_for_the_shard() {
    for (name, target_finished) in [("lacks_fence", true), ("lacks_fence_open", false)] {
        let finish = |pair: &Pair| {
            if target_finished {
                pair.b
                    .connect()
                    .batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')")
                    .unwrap();
            }
        };
        let (pair, mut a, mut b) = failed_over(name, "prepare", "finish", finish);
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

/// The standby has the fence, but not the end of the move.
#[test]
fn a_promoted_source_with_the_fence_ends_the_move() {
    let finish = |pair: &Pair| {
        pair.b.connect().batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    };
    let (pair, mut a, mut b) = failed_over("has_fence", "drained", "finish", finish);
    assert_eq!(refused(&mut a, INSERT).message(), "shard 2 is fenced");
    b.batch_execute(INSERT).unwrap();
    b.batch_execute(CALL).unwrap();
    check_resolved(&pair);
}

/// A promoted source without the fence takes rows whose ids are not minted by the extension. The next call fences it, and says
/// that both servers have rows.
#[test]
fn rows_that_both_servers_took_are_reported() {
    let (pair, mut a, mut b) = failed_over("both", "prepare", "finish", |_| ());
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

/// The source fails over while rows are copied. The worker ends the move, and the shard is open again, also if its session does not wait.
#[test]
fn a_failover_during_the_copy_ends_the_move() {
    for background in ["false", "true"] {
        let (pair, mut a, mut b) = failed_over(&format!("copying_{background}"), "fence", "fence", |_| ());
        assert_eq!(refused(&mut a, INSERT).message(), "shard 2 is fenced");
        let call = format!("CALL insta_ids.move_shards(2, 2, 'a', background => {background})");
        if background == "true" {
            b.batch_execute(&call).unwrap();
            within(Duration::from_secs(30), || count(&mut b, "SELECT count(*) FROM insta_ids.moves") == 0);
            pair.b.await_log(
                "move_shards: aborted, because node \"a\" has lost its replication slot or publication",
            );
        } else {
            let error = refused(&mut b, &call);
            assert_eq!(said(&error).0, "replication slot of move \"insta_ids_2_2\" is lost");
        }
        check_ended(&pair);
        a.batch_execute(INSERT).unwrap();
        b.batch_execute(CALL).unwrap();
        check_resolved(&pair);
    }
}

/// The target's worker tries again and again while the source is away, and ends the move when a standby without it takes its place.
#[test]
fn the_worker_waits_for_the_source_and_ends_what_it_has_lost() {
    let mut pair = Pair::start("away");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let standby = pair.a.standby("away_of_a");
    pair.a.replayed_by(&standby);
    standby.stop();
    a.batch_execute(INSERT).unwrap();
    Move::of(&pair, 2, 2).steps(before("fence"));
    pair.a.stop_immediately();
    b.batch_execute("UPDATE insta_ids_internal.move SET driver = '{\"verify\": \"snapshot\", \"lock_timeout\": \"10 s\", \"max_lag\": 1,
        \"max_pause\": \"10 s\", \"await_standbys\": false, \"call\": \"00000000-0000-0000-0000-000000000001\"}'").unwrap();
    assert_eq!(texts(&mut b, "SELECT insta_ids_internal.start_driver(2, 2, false)::text"), ["true"]);
    within(Duration::from_mins(1), || {
        count(&mut b, "SELECT max(failed_attempts)::bigint FROM insta_ids.moves") >= 2
    });
    standby.up();
    standby.promote();
    let dsn = format!("host={} user=postgres dbname=postgres", standby.socket.display());
    pair.a = standby;
    b.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
    within(Duration::from_mins(1), || count(&mut b, "SELECT count(*) FROM insta_ids.moves") == 0);
    check_ended(&pair);
    pair.a.connect().batch_execute(INSERT).unwrap();
}

/// The call ends the move, or the worker aborts it, and the next call begins it again.
fn end(b: &mut Client, what: &str) {
    for _ in 0..3 {
        let Err(error) = b.batch_execute(CALL) else { return };
        let error = error.as_db_error().unwrap();
        let (message, hint) = said(error);
        assert!(hint.is_some_and(|hint| hint.contains("move_abort")), "{what}: {message}, {hint:?}");
        println!("{what}: {message}");
    }
    panic!("{what}: the move does not end");
}

/// The source fails over before each step, to a standby that has all before it.
#[test]
fn the_source_fails_over_at_every_step() {
    for (n, step) in STEPS.into_iter().enumerate().skip(1) {
        let (pair, mut a, mut b) = failed_over(&format!("source{n}"), step, step, |_| ());
        end(&mut b, step);
        check_resolved(&pair);
        let [there, left] =
            ["insta2", "insta2__moved"].map(|schema| format!("SELECT count(*) FROM {schema}.photos"));
        assert_eq!((count(&mut b, &there), count(&mut a, &left)), (2, 1), "{step}");
    }
}

/// The target does, too.
#[test]
fn the_target_fails_over_at_every_step() {
    for (n, step) in STEPS.into_iter().enumerate().skip(1) {
        let mut pair = Pair::start(&format!("target{n}"));
        let standby = pair.b.standby(&format!("target{n}_of_b"));
        pair.a.connect().batch_execute(INSERT).unwrap();
        Move::of(&pair, 2, 2).steps(before(step));
        pair.b.replayed_by(&standby);
        pair.b.stop_immediately();
        standby.promote();
        pair.b = standby;
        let mut b = pair.b.connect();
        end(&mut b, step);
        check_resolved(&pair);
        assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 2, "{step}");
    }
}

/// A target that is lost after the move, and its promoted standby, which has what came before the step `known`. Also returns the
/// last id that the target gave.
fn lost_target(name: &str, known: &str) -> (Pair, Client, Client, i64) {
    let mut pair = Pair::start(name);
    let standby = pair.b.standby(&format!("{name}_of_b"));
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before(known));
    pair.b.replayed_by(&standby);
    standby.stop();
    moving.steps(&STEPS[before(known).len()..]);
    b.batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    let lost = count(&mut b, "INSERT INTO insta2.photos DEFAULT VALUES RETURNING id");
    pair.b.stop_immediately();
    standby.up();
    standby.promote();
    let dsn = format!("host={} user=postgres dbname=postgres", standby.socket.display());
    pair.b = standby;
    let mut b = pair.b.connect();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    b.execute("SELECT insta_ids.add_node('b', $1)", &[&dsn]).unwrap();
    a.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut b)]).unwrap();
    (pair, a, b, lost)
}

const TAKE_BACK: &str = "CALL insta_ids.move_abort(2, 2, 'a', take_back => true)";

/// A target that has lost a shard gives it back, whatever its standby has of the move. The source has the rows of the hand-over, and
/// repeats no id that the target gave.
#[test]
fn the_source_takes_back_what_the_target_has_lost() {
    for (n, known) in ["offer", "slot", "hand over"].into_iter().enumerate() {
        let (pair, mut a, mut b, lost) = lost_target(&format!("lost{n}"), known);
        let found = "SELECT object FROM insta_ids.check_fleet() WHERE code = 'open_nowhere'";
        assert_eq!(texts(&mut a, found), ["shard 2"], "{known}");
        if known != "offer" {
            for call in [CALL, ABORT] {
                let error = refused(&mut b, call);
                let hint = format!(
                    "If the rows that were written since are lost for good, node \"a\" can take the shards back as it handed them over: {TAKE_BACK}."
                );
                assert_eq!(
                    said(&error),
                    ("node \"a\" has let go of shards from 2 to 2", Some(&*hint)),
                    "{known}"
                );
            }
        }
        b.batch_execute(TAKE_BACK).unwrap();
        b.batch_execute(TAKE_BACK).unwrap();
        check_ended(&pair);
        // The ids of the target were ahead of its clock, because the hand-over raises them above the lease of the source.
        assert!(count(&mut a, "INSERT INTO insta2.photos DEFAULT VALUES RETURNING id") > lost, "{known}");
        assert_eq!(count(&mut a, "SELECT count(*) FROM insta2.photos"), 2, "{known}");
        assert_eq!(
            texts(&mut a, "SELECT state || ' ' || applied FROM insta_ids.shards WHERE shard = 2"),
            ["active 1"]
        );
        let on = "SELECT node::text FROM insta_ids.map WHERE 2 BETWEEN first AND last";
        assert_eq!(texts(&mut b, on), ["a"], "{known}");
        let errors =
            "SELECT code FROM insta_ids.check_fleet() WHERE severity = 'error' OR code = 'open_nowhere'";
        assert_eq!(texts(&mut a, errors), [""; 0], "{known}");
        b.batch_execute(CALL).unwrap();
        check_resolved(&pair);
        assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 3, "{known}");
    }
}

/// What is not lost is not taken back: the target has the shard, or the rows of the source are gone. Then the copy of the target
/// stays.
#[test]
fn only_what_is_lost_is_taken_back() {
    let pair = Pair::start("not_lost");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("finish"));
    let error = refused(&mut b, TAKE_BACK);
    assert_eq!(error.message(), "shards from 2 to 2 are already on this node");
    b.batch_execute(CALL).unwrap();
    assert_eq!(refused(&mut b, TAKE_BACK).message(), "shard 2 is on node \"b\"");
    let error = refused(&mut a, "CALL insta_ids.move_abort(2, 2, 'a', take_back => true)");
    assert_eq!(error.message(), "shards from 2 to 2 do not come to this server by that move");
    let error = refused(&mut b, "CALL insta_ids.move_abort(2, NULL, 'a', take_back => true)");
    assert_eq!(error.code().code(), "22004");
    for back in ["SELECT insta_ids.drop_shard(2)", "CALL insta_ids.move_shards(2, 2, 'b')"] {
        a.batch_execute(back).unwrap();
    }
    // Nothing has left for this server, and nothing is done.
    b.batch_execute(TAKE_BACK).unwrap();
    a.batch_execute(INSERT).unwrap();

    // A move that is open is aborted, as without the argument.
    b.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    Move::of(&pair, 2, 2).steps(before("copied"));
    b.batch_execute(TAKE_BACK).unwrap();
    a.batch_execute(INSERT).unwrap();
    check_ended(&pair);

    let drops = [
        "SELECT insta_ids.drop_shard(2)",
        "DROP SCHEMA insta2__moved CASCADE",
        "DELETE FROM insta_ids_internal.departed_shard",
    ];
    for (n, drop) in drops.into_iter().enumerate() {
        let (_pair, mut a, mut b, _) = lost_target(&format!("dropped_there{n}"), "hand over");
        a.batch_execute(drop).unwrap();
        let reason = if drop.contains("DELETE") {
            "node \"a\" has nothing of shards from 2 to 2 to take back"
        } else {
            "what node \"a\" had of shard 2 was dropped"
        };
        assert_eq!(refused(&mut b, TAKE_BACK).message(), reason, "{drop}");
        assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
        let found = "SELECT object FROM insta_ids.check_fleet() WHERE code = 'open_nowhere'";
        assert_eq!(texts(&mut a, found), ["shard 2"]);
    }
}

/// A role that is no superuser, as which the target connects, takes shards back, too. The source has released them, and the target has
/// never heard of the move.
#[test]
fn a_target_that_lost_all_of_a_move_gives_it_back() {
    let pair = Pair::start("lost_all");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let dsn = format!("host={} user=keeper dbname=postgres", pair.a.socket.display());
    a.batch_execute(
        "CREATE ROLE keeper LOGIN REPLICATION; GRANT CREATE ON DATABASE postgres TO keeper;
         SELECT insta_ids.grant_provisioning('keeper');
         ALTER SCHEMA insta2 OWNER TO keeper; ALTER TABLE insta2.photos OWNER TO keeper; ALTER TABLE insta2.likes OWNER TO keeper;
         ALTER SEQUENCE insta2.table_id_seq OWNER TO keeper; ALTER FUNCTION insta2.next_id() OWNER TO keeper;
         ALTER FUNCTION insta2.next_id(regclass) OWNER TO keeper",
    )
    .unwrap();
    b.batch_execute("CREATE ROLE keeper").unwrap();
    b.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
    a.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut b)]).unwrap();
    a.batch_execute(INSERT).unwrap();
    let lose = |a: &mut Client, b: &mut Client| {
        b.batch_execute(
            "SELECT insta_ids.drop_shard(shard, force => true) FROM insta_ids.shards WHERE state = 'active'",
        )
        .unwrap();
        b.batch_execute("DROP SUBSCRIPTION IF EXISTS insta_ids_2_2").unwrap_or(());
        b.batch_execute("DROP EXTENSION insta_ids CASCADE; CREATE EXTENSION insta_ids").unwrap();
        b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(a)]).unwrap();
    };
    b.batch_execute(CALL).unwrap();
    lose(&mut a, &mut b);
    b.batch_execute(TAKE_BACK).unwrap();
    a.batch_execute(INSERT).unwrap();
    assert_eq!(count(&mut a, "SELECT count(*) FROM insta2.photos"), 2);

    // Before the source has heard of the hand-over. The steps are a superuser's.
    a.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn.replace("keeper", "postgres")]).unwrap();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    Move::of(&pair, 2, 2).steps(before("finish"));
    b.batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    lose(&mut a, &mut b);
    assert_eq!(refused(&mut b, ABORT).message(), "shards from 2 to 2 may already be on node \"b\"");
    b.batch_execute(TAKE_BACK).unwrap();
    a.batch_execute(INSERT).unwrap();
    check_ended(&pair);
}

/// A source gives back only the last move of a shard, and only if every node says that it has nothing of it.
#[test]
fn a_shard_that_has_moved_on_is_not_taken_back() {
    let pair = Pair::start("moved_on");
    let c = Cluster::with("moved_on_c", &settings("c"));
    let (mut a, mut b, mut third) = (pair.a.connect(), pair.b.connect(), c.connect());
    let dsn = format!("host={} user=postgres dbname=postgres", c.socket.display());
    a.execute("SELECT insta_ids.add_node('c', $1)", &[&dsn]).unwrap();
    third.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    let tell = |client: &mut Client, map: &str| {
        client.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
    };
    for client in [&mut b, &mut third] {
        tell(client, &shard_map(&mut a));
    }
    // From a to b, to c, and back to b, which loses it. Only c has the last rows.
    let insert = |client: &mut Client| client.batch_execute(INSERT).unwrap();
    insert(&mut a);
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    insert(&mut b);
    third.batch_execute("CALL insta_ids.move_shards(2, 2, 'b')").unwrap();
    insert(&mut third);
    b.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'c')").unwrap();
    let map = shard_map(&mut a);
    b.batch_execute(
        "DROP EXTENSION insta_ids CASCADE; DROP SCHEMA insta2 CASCADE; CREATE EXTENSION insta_ids",
    )
    .unwrap();
    tell(&mut b, &map);
    let error = refused(&mut b, TAKE_BACK);
    assert_eq!(error.message(), "shard 2 was assigned again since it left node \"a\"");
    c.stop();
    assert!(refused(&mut b, TAKE_BACK).message().starts_with("node \"c\" does not say"));
    c.up();
    let mut third = c.connect();
    b.batch_execute("CALL insta_ids.move_abort(2, 2, 'c', take_back => true)").unwrap();
    assert_eq!(count(&mut third, "SELECT count(*) FROM insta2.photos"), 3);
    insert(&mut third);
    assert_eq!(shard_map(&mut third), shard_map(&mut a));
}
