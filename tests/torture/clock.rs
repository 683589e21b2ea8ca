//! The clock is set while sessions mint.

use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;

use support::fault::{now_ms, quiet, times};
use support::minters::{AHEAD_MS, Given, Minters, mint};
use support::{Cluster, within};

/// By 1 ms, 1.5 s, 5 min, 59 min: no stall, no repetition, no step back in any session, one line in the log.
fn steps_back(name: &str, increment: u64) {
    let _quiet = quiet();
    let cluster = Cluster::with_clock(name);
    cluster.connect().batch_execute(&format!("ALTER SEQUENCE s INCREMENT {increment}")).unwrap();
    let minters = Minters::start(&cluster, "postgres", 8);
    let mut faults = 0;
    for step_ms in [1, 1500, 300_000, 3_540_000].repeat(usize::try_from(times()).unwrap()) {
        // Each from a clock that has caught up.
        cluster.set_clock(0);
        thread::sleep(Duration::from_millis(500));
        minters.longest_gap();
        let before = first_id_ms(&cluster);
        cluster.set_clock(-step_ms);
        faults += 1;
        let after = first_id_ms(&cluster);
        assert!(after >= before - AHEAD_MS, "a new session's id is {} ms older", before - after);
        let (given, begun) = (minters.given(), Instant::now());
        thread::sleep(Duration::from_secs(1));
        let rate = u128::from(minters.given() - given) / begun.elapsed().as_millis();
        assert!(rate > 0, "{rate} ids/ms, {step_ms} ms behind");
        let gap = minters.longest_gap();
        println!("{step_ms} ms behind: {rate} ids/ms, none to a session for {gap:?} at most");
        assert!(gap < Duration::from_millis(900), "a session got no id for {gap:?}, {step_ms} ms behind");
    }
    let given = minters.stop();
    given.check(faults);
    assert!(given.newest_ms() <= now_ms() + AHEAD_MS, "ids ran faster than time");
    let seen = cluster.log().matches("LOG:  clock stepped back by").count();
    assert_eq!(seen as u64, faults, "lines in the log");
    let row = cluster
        .connect()
        .query_one(
            "SELECT step_backs, largest_step_back BETWEEN '58 min 59 s' AND '59 min 1 s' FROM insta_ids.stat_ids",
            &[],
        )
        .unwrap();
    assert_eq!((row.get::<_, i64>(0).cast_unsigned(), row.get(1)), (faults, true));
}

/// The time of a new session's first id.
fn first_id_ms(cluster: &Cluster) -> i64 {
    Given::time_of(cluster.connect().query_one("SELECT next_id(5, 's')", &[]).unwrap().get(0))
}

/// The clock steps back while sessions ask for fewer ids than there are.
#[test]
fn steps_back_below_full_speed() {
    steps_back("steps_back", 1);
}

/// At most 64 ids per millisecond, which is less than the sessions ask for.
#[test]
fn steps_back_at_full_speed() {
    steps_back("steps_back_full", 16);
}

/// By 2 h: an error from every call; when the clock is right again, ids go on with no restart.
#[test]
fn a_step_beyond_the_tolerance() {
    let cluster = Cluster::with_clock("tolerance");
    let minters = Minters::start(&cluster, "postgres", 8);
    minters.await_more(50_000);
    cluster.set_clock(-7_200_000);
    let mut client = cluster.connect();
    // Whoever read the clock before it was set may still return.
    thread::sleep(Duration::from_millis(100));
    for _ in 0..100 {
        let error = client.query("SELECT next_id(5, 's')", &[]).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert!(error.message().starts_with("clock is 1 h 59 min "), "{}", error.message());
        assert!(error.message().ends_with(" s behind the time of ids"), "{}", error.message());
        assert!(error.detail().unwrap().contains("\"insta_ids.clock_tolerance\" is 1 h 0 min 0.000 s"));
        assert!(error.hint().unwrap().contains("insta_ids.reset_clock()"));
    }
    // Their clients may take a while to read what was given before.
    within(Duration::from_secs(10), || {
        let given = minters.given();
        thread::sleep(Duration::from_millis(300));
        minters.given() == given
    });
    cluster.set_clock(0);
    minters.await_more(50_000);
    minters.stop().check(1);
}

/// A year forward and back: the error, `reset_clock()`, and what it gives up.
#[test]
fn a_clock_that_ran_a_year_ahead() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let cluster = Cluster::with_clock("year");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = cluster.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s").unwrap();
    let before = mint(&cluster, "postgres", 4, 50_000);
    cluster.set_clock(YEAR_MS);
    let ahead = mint(&cluster, "postgres", 4, 50_000);
    other.query_one("SELECT next_id(5, 's')", &[]).unwrap();
    assert!(ahead.oldest_ms() > now_ms() + YEAR_MS - 60_000);
    cluster.set_clock(0);
    let on_time = "SELECT id_time(next_id(5, 's')) BETWEEN now() - interval '1 ms' AND clock_timestamp() + interval '10 ms'";
    for session in [&mut client, &mut other] {
        let error = session.query(on_time, &[]).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert!(error.message().starts_with("clock is 87"), "{}", error.message());
    }
    client.batch_execute("SELECT insta_ids.reset_clock()").unwrap();
    assert!(cluster.log().contains("WARNING:  ids of times from"));
    assert!(client.query_one(on_time, &[]).unwrap().get::<_, bool>(0));
    // The other database had leased a year ahead, too.
    assert!(other.query_one(on_time, &[]).unwrap().get::<_, bool>(0));
    // What was minted before the clock was wrong, and while it was, does not come again now.
    let after = mint(&cluster, "postgres", 8, 200_000);
    assert!(after.newest_ms() <= now_ms() + AHEAD_MS);
    before.and(ahead).and(after).check(2);
}
