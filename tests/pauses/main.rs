//! Promise: never the same id twice, wherever a session is held up, while the others go on and the server
//! then dies. The library under test is a build with the feature `pauses`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::minters::{AHEAD_MS, Given, Minters};
use support::{Cluster, clock_ahead, within};

const MINTER: [&str; 3] = ["after nextval", "before the clock", "claimed"];
const RENEWER: [&str; 7] =
    ["before both clocks", "locked", "read", "before writing", "written", "flushed", "before unlocking"];

/// A session that stands still at a point of its first call.
struct Paused {
    pid: i32,
    given: Receiver<Vec<i64>>,
}

/// The short way of an id, which a session takes from its second call in a transaction on.
const SHORT_WAY: &str = "BEGIN; SELECT next_id(5, 's')";

impl Paused {
    fn at(cluster: &Cluster, point: &str) -> Self {
        Self::after("", cluster, point)
    }

    fn after(prepare: &str, cluster: &Cluster, point: &str) -> Self {
        let mut client = cluster.connect();
        client.batch_execute(prepare).unwrap();
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        client
            .batch_execute(&format!(
                "LOAD 'insta_ids'; SET insta_ids.pause_at = '{point}'; SET statement_timeout = 0"
            ))
            .unwrap();
        let (sender, given) = channel();
        thread::spawn(move || {
            // If the server dies, the session was given nothing.
            let query = "COPY (SELECT next_id(5, 's')) TO STDOUT (FORMAT binary)";
            let mut id = Vec::new();
            let _ = support::minters::copy(&mut client, query, |given| id.push(given));
            let _ = sender.send(id);
        });
        let paused = Self { pid, given };
        paused.await_state('T');
        paused
    }

    /// Waits until the process is in a state, as `ps` shows it.
    fn await_state(&self, state: char) {
        within(Duration::from_secs(10), || {
            let status = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
            status.rsplit_once(") ").unwrap().1.starts_with(state)
        });
    }

    fn signal_to_go_on(&self) {
        let kill = format!("kill -CONT {} 2>&1", self.pid);
        Command::new("bash").args(["-c", &kill]).output().unwrap();
    }

    /// Goes on, through all the points there are, and returns the id.
    fn go_on(&self) -> Vec<i64> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            self.signal_to_go_on();
            if let Ok(ids) = self.given.recv_timeout(Duration::from_millis(20)) {
                return ids;
            }
            assert!(Instant::now() < deadline, "the session does not go on");
        }
    }
}

/// Sessions that mint for some seconds. They may have to wait for one that stands still: then they give up.
fn others(cluster: &Cluster, time: Duration) -> Given {
    let minters = Minters::start(cluster, "postgres", 4);
    thread::sleep(time);
    minters.stop()
}

/// Dies, and comes back five minutes behind.
fn die(cluster: &mut Cluster) {
    cluster.stop_immediately();
    cluster.environment = clock_ahead(-300);
    cluster.up();
}

fn check(cluster: &Cluster, point: &str, before: Given, id: Vec<i64>) {
    let before = before.and(Given { ids: id, ..Given::default() });
    let after = others(cluster, Duration::from_secs(1));
    println!("paused {point:?}:");
    assert!(after.ids.len() > 1_000, "only {} ids after the restart", after.ids.len());
    let went_back_ms = if before.ids.is_empty() { 0 } else { before.newest_ms() - after.oldest_ms() };
    before.and(after).check(1);
    assert!(went_back_ms <= AHEAD_MS, "time went back by {went_back_ms} ms, paused {point:?}");
}

fn server(name: &str) -> Cluster {
    let cluster = Cluster::with(name, &["autovacuum = off", "statement_timeout = '1s'"]);
    cluster.prepare("postgres");
    cluster
}

/// Each point on a server of its own, all at once: they mostly wait.
fn each_of(points: &[&str], test: impl Fn(&str, &str) + Sync) {
    thread::scope(|scope| {
        for (n, point) in points.iter().enumerate() {
            let test = &test;
            scope.spawn(move || test(&format!("paused_{n}"), point));
        }
    });
}

/// Some ids, and then the lease runs out, so that the first to come has to renew it.
fn a_lease_that_ran_out(cluster: &Cluster) -> Given {
    let given = others(cluster, Duration::from_millis(500));
    thread::sleep(Duration::from_millis(1600));
    given
}

/// Held up for seconds, and then going on as if nothing had been; the server dies after that.
fn then_goes_on(points: &[&str], fresh: bool, prepare: &str) {
    each_of(points, |name, point| {
        let mut cluster = server(name);
        let before = if fresh { Given::default() } else { a_lease_that_ran_out(&cluster) };
        let paused = Paused::after(prepare, &cluster, point);
        let before = before.and(others(&cluster, Duration::from_millis(2500)));
        let id = paused.go_on();
        assert_eq!(id.len(), 1);
        die(&mut cluster);
        check(&cluster, point, before, id);
    });
}

/// A session that was held up while it mints goes on: no id comes twice.
#[test]
fn a_minter_goes_on() {
    then_goes_on(&MINTER, false, "");
}

/// The same in the short way.
#[test]
fn a_minter_goes_on_in_the_short_way() {
    then_goes_on(&MINTER, false, SHORT_WAY);
}

/// A session that was held up while it renews the lease goes on.
#[test]
fn a_renewer_goes_on() {
    then_goes_on(&RENEWER, false, "");
}

/// A session that was held up while it adopts the lease, after a start, goes on.
#[test]
fn an_adopter_goes_on() {
    then_goes_on(&RENEWER, true, "");
}

/// Held up before it writes the lease, while others go on; it then writes, and the server dies.
#[test]
fn a_lease_written_late_repeats_no_id() {
    let mut cluster = server("paused");
    let before = a_lease_that_ran_out(&cluster);
    let paused = Paused::at(&cluster, "before writing,flushed");
    let before = before.and(others(&cluster, Duration::from_millis(2500)));
    paused.signal_to_go_on();
    within(Duration::from_secs(10), || cluster.log().contains("stands still flushed"));
    paused.await_state('T');
    die(&mut cluster);
    check(&cluster, "flushed", before, Vec::new());
}

/// Held up while it reads the map, of which a shard that is fenced goes to another node: it mints nothing for it.
#[test]
fn a_session_held_up_while_its_shard_leaves_mints_nothing() {
    let cluster = Cluster::with("leaves", &["insta_ids.node = 'a'"]);
    cluster.prepare("postgres");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(10), insta_ids.add_node('a', ''), insta_ids.add_node('b', ''), insta_ids.assign(0, 9, 'a');
             INSERT INTO insta_ids_internal.fence VALUES (5, true, 'b')",
        )
        .unwrap();
    let paused = Paused::at(&cluster, "fences read");
    client
        .batch_execute(
            "BEGIN; DELETE FROM insta_ids_internal.fence; UPDATE insta_ids_internal.assignment SET node = 'b'; COMMIT",
        )
        .unwrap();
    assert_eq!(paused.go_on(), []);
}

/// A panic at any point, in the short way or the long one, ends the statement at most.
#[test]
fn a_panic_ends_the_statement() {
    let cluster = server("panics");
    let mut session = cluster.connect();
    let pid = |session: &mut postgres::Client| support::count(session, "SELECT pg_backend_pid()::bigint");
    let before = pid(&mut session);
    let mint = "SELECT next_id(5, 's') FROM generate_series(1, 3)";
    let mut ids = Vec::new();
    for point in [&MINTER[..], &RENEWER].concat() {
        for prepare in ["BEGIN", SHORT_WAY] {
            // The long way takes over from the short one, and does not come to this point again. Nor does either renew the
            // lease, which the preparation did.
            let is_passed = prepare == SHORT_WAY && (point == "after nextval" || RENEWER.contains(&point));
            let mut minted_or_ended = || {
                ids.extend(support::ids(&mut session, mint));
                // The lease runs out.
                thread::sleep(Duration::from_millis(1600));
                let panic = format!("{prepare}; SAVEPOINT before; SET LOCAL insta_ids.panic_at = '{point}'");
                session.batch_execute(&panic).unwrap();
                let is_minted = session.batch_execute(mint).is_ok();
                session.batch_execute("ROLLBACK TO before").unwrap();
                ids.extend(support::ids(&mut session, mint));
                session.batch_execute("COMMIT").unwrap();
                is_minted
            };
            // A session that is held up renews the lease earlier or later than this test expects.
            let is_as_expected = (0..10).any(|_| minted_or_ended() == is_passed);
            assert!(is_as_expected, "{point:?} after {prepare:?}");
        }
    }
    assert_eq!(pid(&mut session), before);
    assert_eq!((support::duplicates([&ids]), support::disorders(&ids)), (0, 0));
    let mut other = cluster.connect();
    ids.extend(support::ids(&mut other, mint));
    assert_eq!(support::duplicates([&ids]), 0);
}

/// Held up until the server dies, in the middle of others.
#[test]
fn the_server_dies_meanwhile() {
    each_of(&[&MINTER[..], &RENEWER].concat(), |name, point| {
        let mut cluster = server(name);
        let before = a_lease_that_ran_out(&cluster);
        let _paused = Paused::at(&cluster, point);
        let before = before.and(others(&cluster, Duration::from_millis(2500)));
        die(&mut cluster);
        check(&cluster, point, before, Vec::new());
    });
}
