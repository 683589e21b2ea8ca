//! Promise: at the cap of 1024 ids per millisecond and sequence, a session waits; it is never far ahead of
//! the clock, and can be stopped at any moment.

use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;

use support::{Cluster, count, within};

/// As far as `insta_ids.max_ahead` lets ids run ahead when it is not set.
const AHEAD_MS: i64 = 10;

/// A sequence that has one id per millisecond.
const ONE_PER_MS: &str = "CREATE SEQUENCE s INCREMENT 1024";

/// Mints `count` ids in one query, and returns how far the newest was ahead of the clock.
fn ahead_ms(client: &mut postgres::Client, mint: &str, count: u32) -> i64 {
    let query = format!(
        "SELECT (extract(epoch FROM max(id_time(id) - at)) * 1000)::bigint
         FROM (SELECT {mint} AS id, clock_timestamp() AS at FROM generate_series(1, {count}) OFFSET 0) m"
    );
    client.query_one(&query, &[]).unwrap().get(0)
}

/// A server whose time is the clock's. A new one may begin at the end of its first lease, a few milliseconds
/// ahead, and stays there as long as ids are minted at full speed.
fn on_time(name: &str) -> Cluster {
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client.batch_execute("CREATE SEQUENCE first").unwrap();
    client.query_one("SELECT next_id(5, 'first')", &[]).unwrap();
    let ahead = "SELECT ahead > interval '0' FROM insta_ids.clock()";
    within(Duration::from_mins(1), || !client.query_one(ahead, &[]).unwrap().get::<_, bool>(0));
    cluster
}

/// How fast it is, `make bench` says: a test of that would depend on the machine's other work.
#[test]
fn full_speed_is_never_far_ahead() {
    let cluster = on_time("speed");
    cluster.connect().batch_execute("CREATE SEQUENCE s; CREATE SEQUENCE c CACHE 32").unwrap();
    for sequence in ["s", "c"] {
        for sessions in [1, 8] {
            thread::scope(|scope| {
                for _ in 0..sessions {
                    scope.spawn(|| {
                        let mint = format!("next_id(5, '{sequence}')");
                        let ahead = ahead_ms(&mut cluster.connect(), &mint, 2_000_000 / sessions);
                        assert!(ahead <= AHEAD_MS, "{ahead} ms ahead");
                    });
                }
            });
        }
    }
}

/// Sequences that were just made have the same values; they seldom push each other all the same.
#[test]
fn new_sequences_are_not_in_each_others_way() {
    let cluster = Cluster::start("fresh");
    let mut client = cluster.connect();
    for layout in ["instagram", "sonyflake", "time:34 shard:16 seq:8 epoch:0 unit:1s"] {
        client
            .batch_execute(
                "DO $$ BEGIN FOR n IN 1..300 LOOP
                     EXECUTE format('DROP SEQUENCE IF EXISTS s%1$s; CREATE SEQUENCE s%1$s', n);
                 END LOOP; END $$;
                 SELECT insta_ids.stat_reset()",
            )
            .unwrap();
        let query = "SELECT count(next_id(1, ('s' || n)::regclass, $1::text::id_layout)) FROM generate_series(1, 300) n";
        client.query_one(query, &[&layout]).unwrap();
        let pushed: i64 = client.query_one("SELECT pushed FROM insta_ids.stat_ids", &[]).unwrap().get(0);
        assert!(pushed <= 5, "{layout}: {pushed} of 300");
    }
}

fn set_max_ahead(client: &mut postgres::Client, ms: i64) {
    let query = format!("ALTER SYSTEM SET insta_ids.max_ahead = {ms}");
    client.batch_execute(&query).unwrap();
    client.batch_execute("SELECT pg_reload_conf(); LOAD 'insta_ids'").unwrap();
    let in_force = "SELECT setting::bigint FROM pg_settings WHERE name = 'insta_ids.max_ahead'";
    within(Duration::from_mins(1), || count(client, in_force) == ms);
}

#[test]
fn how_far_ahead_is_a_setting_of_the_server() {
    let cluster = on_time("ahead");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SEQUENCE s").unwrap();
    set_max_ahead(&mut client, 3);
    assert!(ahead_ms(&mut client, "next_id(5, 's')", 100_000) <= 3);
}

/// By sessions that come and go at once, where each has a counter of its own and where they share some.
#[test]
fn every_id_is_counted() {
    for connections in [20, 400] {
        let settings = format!("max_connections = {connections}");
        let cluster = Cluster::with(&format!("counted_{connections}"), &[&settings]);
        let mut client = cluster.connect();
        client
            .batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s; SELECT next_id(5, 's')")
            .unwrap();
        client.batch_execute("SELECT insta_ids.stat_reset()").unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        cluster.reconnect().query("SELECT next_ids(5, 's', 1000)", &[]).unwrap();
                    }
                });
            }
        });
        assert_eq!(count(&mut client, "SELECT ids FROM insta_ids.stat_ids"), 80_000);
    }
}

/// Claiming first and waiting after would push the sequence seconds ahead here.
#[test]
fn timeouts_leave_nothing_claimed() {
    let cluster = on_time("timeouts");
    let mut client = cluster.connect();
    client.batch_execute(ONE_PER_MS).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let cancelled: usize = thread::scope(|scope| {
        let sessions: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = cluster.connect();
                    client.batch_execute("SET statement_timeout = '3ms'").unwrap();
                    let mut cancelled = 0;
                    while Instant::now() < end {
                        if let Err(error) = client.query("SELECT next_ids(5, 's', 100)", &[]) {
                            assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
                            cancelled += 1;
                        }
                    }
                    cancelled
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum()
    });
    // A slot that was pushed far ahead would hold this call up until the clock has come there.
    client.batch_execute("SET statement_timeout = '5s'").unwrap();
    let ahead: i64 = client
        .query_one(
            "SELECT (extract(epoch FROM id_time(next_id(5, 's')) - clock_timestamp()) * 1000)::bigint",
            &[],
        )
        .unwrap()
        .get(0);
    println!("{cancelled} calls cancelled, then {ahead} ms ahead");
    assert!(cancelled > 1000, "only {cancelled} were cancelled");
    assert!(ahead <= AHEAD_MS, "{ahead} ms ahead");
}

/// Starts a call that waits, as ids are a second ahead; stops it from another session, and returns how long it took to
/// stop.
fn stopped_by(cluster: &Cluster, stop: &str) -> Duration {
    let mut other = cluster.connect();
    let mut client = cluster.connect();
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    set_max_ahead(&mut other, 1000);
    other.batch_execute("SELECT next_ids(5, 's', 1000)").unwrap();
    set_max_ahead(&mut other, 0);
    thread::scope(|scope| {
        let call = scope.spawn(move || client.query("SELECT next_id(5, 's')", &[]).is_err());
        let waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Extension'";
        within(Duration::from_mins(1), || {
            assert!(!call.is_finished(), "the call did not wait");
            other.query_opt(waiting, &[&pid]).unwrap().is_some()
        });
        let asked = Instant::now();
        other.query(&format!("SELECT {stop}({pid})"), &[]).unwrap();
        assert!(call.join().unwrap(), "the call went on");
        asked.elapsed()
    })
}

/// Not only between two short waits: ids that ran a second ahead make the next call wait for a second.
#[test]
fn a_waiting_call_stops_at_once() {
    let cluster = Cluster::start("stop");
    let mut client = cluster.connect();
    client.batch_execute(ONE_PER_MS).unwrap();
    for (stop, said) in [
        ("pg_cancel_backend", "canceling statement due to user request"),
        ("pg_terminate_backend", "terminating connection due to administrator command"),
    ] {
        let took = stopped_by(&cluster, stop);
        // The log, as a client whose connection ends may not get to read why.
        cluster.await_log(said);
        assert!(took < Duration::from_millis(500), "{stop} took {took:?}");
    }
    client.query_one("SELECT next_id(5, 's')", &[]).unwrap();
}

/// An id of a long unit keeps its slot for the whole unit, and 1000 sequences share the slots.
#[test]
fn many_sequences_with_long_units_do_not_wait() {
    const SEQUENCES: usize = 1000;
    let cluster = on_time("long_units");
    let mut client = cluster.connect();
    client
        .batch_execute(&format!(
            "DO $$ BEGIN FOR n IN 1..{SEQUENCES} LOOP EXECUTE format('CREATE SEQUENCE s%s', n); END LOOP; END $$;
             SELECT insta_ids.stat_reset()"
        ))
        .unwrap();
    let round = format!(
        "SELECT count(next_id(1, ('s' || n)::regclass, 'time:34 shard:16 seq:10 epoch:0 unit:1s'))
         FROM generate_series(1, {SEQUENCES}) n"
    );
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = cluster.connect();
                let begun = Instant::now();
                for n in 1..=6 {
                    client.query_one(&round, &[]).unwrap();
                    thread::sleep((Duration::from_millis(850) * n).saturating_sub(begun.elapsed()));
                }
            });
        }
    });
    let waits = count(&mut client, "SELECT waits FROM insta_ids.stat_ids");
    assert_eq!(waits, 0);
}
