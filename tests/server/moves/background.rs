//! A move in the background ends without its caller.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use support::pair::Pair;
use support::{Cluster, count, refused, texts, within};

use super::{check, written};
use crate::move_faults::{self, ABORT, INSERT, check_ended};

const CALL: &str = "CALL insta_ids.move_shards(2, 2, 'a', background => true, max_pause => '5 s')";

const CALL_AND_WAIT: &str = "CALL insta_ids.move_shards(2, 2, 'a', max_pause => '5 s')";

fn ends(b: &mut Client) {
    within(Duration::from_mins(1), || count(b, "SELECT count(*) FROM insta_ids.moves") == 0);
}

/// How often the worker has failed; that there is a worker, or none any more.
fn failed(b: &mut Client, times: i64) {
    within(Duration::from_mins(1), || {
        count(b, "SELECT coalesce(max(failed_attempts), -1)::bigint FROM insta_ids.moves") >= times
    });
}

/// A standby that is not connected keeps the source from releasing the shards.
const KEEP: &str = "SELECT pg_create_physical_replication_slot('kept', true)";
const LET_GO: &str = "SELECT pg_drop_replication_slot('kept')";

const WORKERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'insta_ids: insta_ids_%'";

/// From PostgreSQL 17 on, a server goes on with its moves after a restart only if it preloads the library.
fn preload(cluster: &Cluster) {
    cluster.connect().batch_execute("ALTER SYSTEM SET shared_preload_libraries = 'insta_ids'").unwrap();
}

fn restart(cluster: &Cluster) -> Client {
    cluster.stop_immediately();
    cluster.up();
    cluster.connect()
}

/// Its caller goes away, and each row is there once, on the server that has the shard.
#[test]
fn a_move_goes_on_without_its_caller() {
    let pair = Pair::start("alone");
    let mut b = pair.b.connect();
    let (committed, _) = written(&pair, 4, || {
        let mut caller = pair.b.connect();
        caller.batch_execute(CALL).unwrap();
        drop(caller);
        ends(&mut b);
        thread::sleep(Duration::from_millis(100));
    });
    check(&pair, &committed);
    check_ended(&pair);
    within(Duration::from_secs(10), || count(&mut b, WORKERS) == 0);
    // What cannot begin says so to the caller.
    assert_eq!(refused(&mut b, CALL).message(), "shard 2 is already on this node");
}

/// A call that waits ends because of its worker, a cancel, or its session. The worker goes on. A call with other arguments takes the
/// move over, and one with the same waits for the worker.
#[test]
fn a_move_goes_on_without_the_call_that_waited() {
    let pair = Pair::start("deserted");
    let (mut a, mut b, mut holder) = (pair.a.connect(), pair.b.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    let mut open = pair.a.connect();
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
    b.batch_execute(CALL).unwrap();
    within(Duration::from_secs(20), || count(&mut a, "SELECT count(*) FROM pg_replication_slots") == 1);
    // The table is not copied.
    holder.batch_execute("BEGIN; LOCK TABLE insta2.photos IN SHARE MODE").unwrap();
    open.batch_execute("COMMIT").unwrap();
    within(Duration::from_secs(20), || {
        count(&mut b, "SELECT count(*) FROM insta_ids.moves WHERE step = 'copying'") == 1
    });
    let (send, heard) = mpsc::channel();
    let call = |arguments: &'static str| {
        let (mut config, send) = (pair.b.config(), send.clone());
        config.notice_callback(move |notice| drop(send.send(notice.message().to_owned())));
        move || config.connect(NoTls).unwrap().batch_execute(arguments)
    };
    let told = |text: &str| while !heard.recv_timeout(Duration::from_secs(20)).unwrap().contains(text) {};
    let caller = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'CALL insta_ids.move_shards%'";
    let last = "CALL insta_ids.move_shards(2, 2, 'a', max_lag => 1)";
    for (command, signal, code) in [
        (move_faults::CALL, WORKERS.replace('*', "pg_terminate_backend(pid)"), Some("57P01")),
        (CALL_AND_WAIT, caller.to_owned(), Some("57014")),
        (last, caller.replace("cancel", "terminate"), None),
    ] {
        thread::scope(|scope| {
            let calling = scope.spawn(call(command));
            told("of 2 tables copied");
            assert_eq!(count(&mut b, &signal), 1, "{signal}");
            // The client may not read what ends its session.
            let error = calling.join().unwrap().unwrap_err();
            assert!(code.is_none_or(|code| error.code().is_some_and(|is| is.code() == code)), "{error:?}");
        });
        if signal == caller {
            told("move_shards: goes on in the background; see insta_ids.moves");
        }
        assert_eq!(texts(&mut b, "SELECT left(next, 4) FROM insta_ids.moves"), ["wait"]);
    }
    thread::scope(|scope| {
        let calling = scope.spawn(call(last));
        told("move_shards: waits for the worker of another call; see insta_ids.moves");
        holder.batch_execute("COMMIT").unwrap();
        calling.join().unwrap().unwrap();
    });
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// The call that waits raises the first error of its worker. Nobody drives the move then, until the next call.
#[test]
fn an_error_ends_the_attempt_of_a_call_that_waits() {
    let pair = Pair::start("impatient");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    a.batch_execute(KEEP).unwrap();
    let error = refused(&mut b, move_faults::CALL);
    assert_eq!(count(&mut b, WORKERS), 0);
    assert_eq!(error.code().code(), "55000");
    assert_eq!(error.message(), "standby of slot \"kept\" of node \"a\" is not connected");
    assert!(error.detail().is_some_and(|detail| detail.starts_with("It would not have the fence.")));
    assert!(error.hint().is_some_and(|hint| hint.starts_with("Start the standby and call again")));
    assert_eq!(
        texts(
            &mut b,
            "SELECT concat_ws(', ', is_in_background, failed_attempts, last_error, left(next, 4)) FROM insta_ids.moves"
        ),
        ["f, 0, CALL"]
    );
    a.batch_execute(LET_GO).unwrap();
    b.batch_execute(move_faults::CALL).unwrap();
    check_ended(&pair);
}

/// While a call asks the source about a move, another session prepares it.
#[test]
fn a_call_joins_a_move_that_was_prepared_meanwhile() {
    let pair = Pair::start("joined");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    let begin = || pair.b.connect().batch_execute(CALL).unwrap();
    b.batch_execute("BEGIN; LOCK TABLE insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE").unwrap();
    thread::scope(|scope| {
        scope.spawn(begin);
        within(Duration::from_secs(20), || count(&mut a, "SELECT count(*) FROM insta_ids.moves") == 1);
        a.batch_execute("BEGIN; LOCK TABLE insta_ids_internal.move").unwrap();
        scope.spawn(begin);
        let asking = "SELECT count(*) FROM pg_locks
            WHERE relation = 'insta_ids_internal.move'::regclass AND NOT granted";
        within(Duration::from_secs(20), || count(&mut a, asking) > 0);
        b.batch_execute("COMMIT").unwrap();
        within(Duration::from_secs(20), || count(&mut b, "SELECT count(*) FROM insta_ids.moves") == 1);
        a.batch_execute("COMMIT").unwrap();
    });
    ends(&mut b);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// Its worker is cancelled and terminated, and each server is restarted, while the hand-over waits for a standby.
#[test]
fn a_move_survives_restarts() {
    let pair = Pair::start("restarted");
    preload(&pair.b);
    pair.a.connect().batch_execute(INSERT).unwrap();
    for disturbance in ["pg_cancel_backend", "pg_terminate_backend", "a", "b"] {
        let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
        a.batch_execute(KEEP).unwrap();
        b.batch_execute(CALL).unwrap();
        failed(&mut b, 1);
        match disturbance {
            "a" => a = restart(&pair.a),
            "b" => b = restart(&pair.b),
            signal => assert_eq!(count(&mut b, &WORKERS.replace('*', &format!("{signal}(pid)"))), 1),
        }
        a.batch_execute(LET_GO).unwrap();
        ends(&mut b);
        assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1, "{disturbance}");
        check_ended(&pair);
        // And back, so that it can go again.
        a.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
        a.batch_execute("CALL insta_ids.move_shards(2, 2, 'b', background => true)").unwrap();
        ends(&mut a);
        b.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    }
}

/// The view has the error and how often it came, and an abort ends all of it.
#[test]
fn errors_are_shown_and_tried_again() {
    let pair = Pair::start("patience");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    a.batch_execute(KEEP).unwrap();
    // The worker does not end with a statement of a session.
    let set = "ALTER DATABASE postgres SET statement_timeout = '500ms'";
    b.batch_execute(set).unwrap();
    b.batch_execute(CALL).unwrap();
    failed(&mut b, 2);
    b.batch_execute("ALTER DATABASE postgres RESET statement_timeout").unwrap();
    assert_eq!(
        texts(&mut b, "SELECT concat_ws(', ', is_in_background, last_error) FROM insta_ids.moves"),
        ["t, standby of slot \"kept\" of node \"a\" is not connected"]
    );
    b.batch_execute("UPDATE insta_ids_internal.move SET failed_attempts = 2000").unwrap();
    let patient = "SELECT count(*) FROM insta_ids_internal.move WHERE failed_attempts = 2001
        AND (driver ->> 'not_before')::timestamptz BETWEEN now() + interval '280 s' AND now() + interval '300 s'";
    within(Duration::from_secs(20), || count(&mut b, patient) == 1);
    a.batch_execute(INSERT).unwrap();
    // A new call tries again at once.
    b.batch_execute(CALL).unwrap();
    let few = "SELECT count(*) FROM insta_ids.moves WHERE failed_attempts BETWEEN 1 AND 2";
    within(Duration::from_secs(5), || count(&mut b, few) == 1);
    within(Duration::from_secs(15), || count(&mut b, WORKERS) == 1);
    b.batch_execute(ABORT).unwrap();
    check_abort(&mut b);
    b.batch_execute(CALL).unwrap();
    failed(&mut b, 1);
    a.batch_execute(LET_GO).unwrap();
    pair.a.stop_immediately();
    thread::sleep(Duration::from_secs(3));
    pair.a.up();
    ends(&mut b);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 2);
    check_ended(&pair);
}

fn check_abort(b: &mut Client) {
    within(Duration::from_secs(10), || count(b, WORKERS) == 0);
    assert_eq!(count(b, "SELECT count(*) FROM insta_ids.moves"), 0);
}

/// Rows that differ are no matter of patience.
#[test]
fn rows_that_differ_end_the_attempts() {
    let pair = Pair::start("hopeless");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    a.batch_execute(KEEP).unwrap();
    b.batch_execute(CALL).unwrap();
    failed(&mut b, 1);
    b.batch_execute("SET session_replication_role = replica; DELETE FROM insta2.photos").unwrap();
    a.batch_execute(LET_GO).unwrap();
    within(Duration::from_mins(1), || {
        texts(&mut b, "SELECT concat_ws(', ', is_in_background, last_error) FROM insta_ids.moves")
            == ["f, rows of table insta2.photos are not the same on both servers"]
    });
    within(Duration::from_secs(10), || count(&mut b, WORKERS) == 0);
    b.batch_execute(ABORT).unwrap();
    check_ended(&pair);
}

/// The target restarts while it waits for a transaction of the source, before anything is copied.
#[test]
fn a_move_that_has_hardly_begun_survives_a_restart() {
    let pair = Pair::start("early");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(INSERT).unwrap();
    preload(&pair.b);
    let mut open = pair.a.connect();
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
    b.batch_execute(CALL).unwrap();
    within(Duration::from_secs(20), || count(&mut a, "SELECT count(*) FROM pg_replication_slots") == 1);
    let stopped = Instant::now();
    pair.b.stop();
    assert!(stopped.elapsed() < Duration::from_secs(20), "{:?}", stopped.elapsed());
    pair.b.up();
    b = pair.b.connect();
    within(Duration::from_secs(20), || count(&mut b, WORKERS) == 1);
    open.batch_execute("COMMIT").unwrap();
    ends(&mut b);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// A subscription of another origin, with a name like a move's, has nothing run as a superuser when the server starts.
#[test]
fn a_planted_subscription_runs_nothing() {
    let cluster = Cluster::start("planted_move");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE trap").unwrap();
    let mut trap = cluster.connect_to("trap");
    trap.batch_execute(
        "CREATE TABLE ran (as_role name); CREATE SCHEMA insta_ids_internal;
         CREATE FUNCTION insta_ids_internal.next_attempt(name, text, OUT wait_ms bigint, OUT call text) LANGUAGE sql
            AS 'INSERT INTO public.ran VALUES (current_user) RETURNING 0, gen_random_uuid()::text';
         CREATE PROCEDURE insta_ids_internal.drive_move(name, uuid) LANGUAGE sql
            AS 'INSERT INTO public.ran VALUES (current_user)'",
    )
    .unwrap();
    for name in ["insta_ids_1_1", "insta_ids_1'); INSERT INTO ran VALUES ('1'); --", "insta_ids_1_é"] {
        let subscribe = format!(
            "CREATE SUBSCRIPTION \"{name}\" CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false)"
        );
        trap.batch_execute(&subscribe).unwrap();
    }
    preload(&cluster);
    cluster.stop();
    cluster.up();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(texts(&mut cluster.connect_to("trap"), "SELECT as_role::text FROM ran"), [""; 0]);
    assert_eq!(count(&mut cluster.connect(), WORKERS), 0);
}

/// The extension is dropped while its worker waits for the next try.
#[test]
fn the_worker_ends_with_the_extension() {
    let pair = Pair::start("uninstalled");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(KEEP).unwrap();
    b.batch_execute(CALL).unwrap();
    failed(&mut b, 1);
    b.batch_execute("DROP EXTENSION insta_ids CASCADE").unwrap();
    within(Duration::from_secs(20), || count(&mut b, WORKERS) == 0);
    // The server starts a worker again that has failed.
    thread::sleep(Duration::from_secs(11));
    assert_eq!(count(&mut b, WORKERS), 0);
}

/// The caller is told, and nobody waits for a worker that is not there.
#[test]
fn without_a_worker_the_call_says_so() {
    let pair = Pair::start("unworked");
    pair.a.connect().batch_execute(INSERT).unwrap();
    // The replication launcher takes one.
    pair.b.connect().batch_execute("ALTER SYSTEM SET max_worker_processes = 1").unwrap();
    let mut b = restart(&pair.b);
    for call in [CALL, move_faults::CALL] {
        assert_eq!(refused(&mut b, call).message(), "no background worker is free");
        assert_eq!(
            texts(&mut b, "SELECT concat_ws(' ', step, is_in_background) FROM insta_ids.moves"),
            ["prepared f"]
        );
    }
    b.batch_execute("ALTER SYSTEM RESET max_worker_processes").unwrap();
    b = restart(&pair.b);
    b.batch_execute(CALL).unwrap();
    ends(&mut b);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
    check_ended(&pair);
}

/// The worker follows the server's configuration, and shows and logs how it is.
#[test]
fn a_worker_takes_up_new_settings() {
    let pair = Pair::start("reloaded");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let tolerate = |client: &mut Client, time: &str| {
        client.batch_execute(&format!("ALTER SYSTEM SET insta_ids.clock_tolerance = '{time}'")).unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
        within(Duration::from_secs(10), || texts(client, "SHOW insta_ids.clock_tolerance") == [time]);
    };
    tolerate(&mut a, "1d");
    a.batch_execute("SELECT insta_ids.advance_clock(now() + interval '2 hours')").unwrap();
    b.batch_execute(CALL).unwrap();
    failed(&mut b, 2);
    let state = "SELECT state FROM pg_stat_activity WHERE backend_type LIKE 'insta_ids: insta_ids_%'";
    within(Duration::from_secs(10), || texts(&mut b, state) == ["idle"]);
    let log = pair.b.log();
    for told in [
        "ERROR:  clock of this server",
        "DETAIL:  \"insta_ids.clock_tolerance\" is ",
        "HINT:  Correct the clock, and call again.",
        "STATEMENT:  CALL insta_ids_internal.drive_move('insta_ids_2_2'",
    ] {
        assert!(log.contains(told), "{told}");
    }
    tolerate(&mut b, "1d");
    ends(&mut b);
    check_ended(&pair);
}

/// The server does not start a worker again whose database is gone.
#[test]
fn a_worker_ends_for_good_with_its_database() {
    let cluster = Cluster::start("dropped_with_worker");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = cluster.config().dbname("other").connect(postgres::NoTls).unwrap();
    other
        .batch_execute(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(8);
             INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step, driver)
             VALUES ('insta_ids_2_2', gen_random_uuid(), 2, 2, '{2}', 'a', 'b', 0, 'copying',
                 jsonb_build_object('call', gen_random_uuid()))",
        )
        .unwrap();
    // The worker reads what is committed.
    other.batch_execute("SELECT insta_ids_internal.start_driver(2, 2, false)").unwrap();
    failed(&mut other, 1);
    drop(other);
    client.batch_execute("DROP DATABASE other WITH (FORCE)").unwrap();
    // The server starts it after 10 seconds.
    thread::sleep(Duration::from_secs(12));
    let log = cluster.log();
    assert!(log.contains("background worker \"insta_ids: insta_ids_2_2\""), "{log}");
    assert!(!log.contains("FATAL:  database"), "{log}");
}
