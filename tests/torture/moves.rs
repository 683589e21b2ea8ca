//! Shards move under writers to a server whose clock is behind, and something dies in each of the steps: the rest is done
//! afterwards, or the move is ended. Nothing is lost, no id comes twice, and there are never two servers that take rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, sync::Arc};

use postgres::error::SqlState;
use postgres::{Client, Config, Error, NoTls};

use support::Chance;
use support::fault::{TIMED, chance, times};
use support::pair::{Move, Pair, STEPS, before, settings};
use support::{Cluster, count, duplicates, ids, within};

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Who drives the move dies.
    Driver,
    /// The server that the shard leaves.
    Source,
    /// The server that it comes to.
    Target,
    /// The connection between the two.
    Link,
}

const FAULTS: [Fault; 4] = [Fault::Driver, Fault::Source, Fault::Target, Fault::Link];

fn pair(name: &str, behind_ms: i64) -> Pair {
    let start = |node: &str, offset_ms| {
        let mut settings = settings(node);
        settings.extend(TIMED.map(str::to_owned));
        settings.push("wal_retrieve_retry_interval = '100ms'".into());
        let lines: Vec<&str> = ["make"].into_iter().chain(settings.iter().map(String::as_str)).collect();
        let cluster = Cluster::timed(&format!("{name}_{node}"), &lines);
        cluster.set_clock(offset_ms);
        cluster.up();
        cluster
    };
    let pair = Pair { a: start("a", 0), b: start("b", -behind_ms) };
    pair.prepare();
    pair
}

/// Sessions that write to a shard, on whichever of the two servers takes it.
struct Writers {
    stop: Arc<AtomicBool>,
    sessions: Vec<JoinHandle<Written>>,
}

/// What a session was given.
#[derive(Default)]
struct Written {
    committed: Vec<i64>,
    rolled_back: Vec<i64>,
    /// Those of the committed rows that were changed afterwards, in a transaction of its own.
    changed: Vec<i64>,
}

impl Writers {
    fn start(pair: &Pair, shard: i32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let configs = [pair.a.config(), pair.b.config()];
        let session = || {
            let (stop, configs) = (stop.clone(), configs.clone());
            thread::spawn(move || {
                let mut written = Written::default();
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    write(&configs[turn % 2], shard, &stop, &mut written);
                    turn += 1;
                    thread::sleep(Duration::from_millis(5));
                }
                written
            })
        };
        let sessions = (0..4).map(|_| session()).collect();
        Self { stop, sessions }
    }

    fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.sessions.into_iter().map(|session| session.join().unwrap()).collect()
    }
}

/// Writes to one server until that does not take the shard's rows, or is not there.
fn write(config: &Config, shard: i32, stop: &AtomicBool, written: &mut Written) {
    let Ok(mut client) = config.connect(NoTls) else { return };
    let change = format!("UPDATE insta{shard}.photos SET caption = id::text WHERE id = ANY ($1)");
    let insert = format!("INSERT INTO insta{shard}.photos SELECT FROM generate_series(1, 5) RETURNING id");
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (end, given) = if round % 4 == 3 {
            ("ROLLBACK", &mut written.rolled_back)
        } else {
            ("COMMIT", &mut written.committed)
        };
        let rows = client.batch_execute("BEGIN").and_then(|()| client.query(&insert, &[])).and_then(|rows| {
            client.batch_execute(end)?;
            Ok(rows)
        });
        let ids: Result<Vec<i64>, Error> = rows.map(|rows| rows.iter().map(|row| row.get(0)).collect());
        let changed = ids.and_then(|ids| {
            given.extend(&ids);
            client.execute(&change, &[&ids])?;
            Ok(ids)
        });
        match changed {
            Ok(ids) if end == "COMMIT" => written.changed.extend(ids),
            Ok(_) => {}
            Err(error) => {
                let elsewhere = [&SqlState::READ_ONLY_SQL_TRANSACTION, &SqlState::UNDEFINED_TABLE];
                let is_expected =
                    |code: &SqlState| elsewhere.contains(&code) || code.code().starts_with("57");
                assert!(error.code().is_none_or(is_expected), "{error:?}");
                return;
            }
        }
        thread::sleep(Duration::from_millis(3));
    }
}

fn inject(pair: &Pair, fault: Fault) {
    let terminate = |cluster: &Cluster, which: &str| {
        if let Ok(mut client) = cluster.config().connect(NoTls) {
            let _ = client.batch_execute(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {which}"
            ));
        }
    };
    let kill = |cluster: &Cluster| {
        cluster.signal("KILL");
        // Until its process is gone from the process table.
        within(Duration::from_secs(10), || cluster.try_up());
    };
    match fault {
        Fault::Driver => {
            for cluster in [&pair.a, &pair.b] {
                terminate(cluster, "query LIKE '%insta_ids_internal.move%'");
            }
        }
        Fault::Source => kill(&pair.a),
        Fault::Target => kill(&pair.b),
        Fault::Link => terminate(&pair.a, "backend_type = 'walsender'"),
    }
}

/// Tries again until it is done: the servers are coming back, and reconnect.
fn insist(what: impl fmt::Display, mut act: impl FnMut() -> Result<(), Error>) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while let Err(error) = act() {
        assert!(Instant::now() < deadline, "{what}: {error:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Moves a shard, with a fault in one of the steps.
fn moved(pair: &Pair, shard: i32, step: usize, fault: Fault, abort: bool, chance: &mut Chance) {
    let what = format!("shard {shard}, {fault:?} in {:?}, abort: {abort}", STEPS[step]);
    pair.a.connect().batch_execute(&format!("CALL insta_ids.create_shards({shard}, {shard})")).unwrap();
    let writers = Writers::start(pair, shard);
    thread::sleep(Duration::from_millis(50));
    let mut moving = Move::of(pair, shard, shard);
    for step in &STEPS[..step] {
        insist(&what, || moving.step(step));
    }
    let delay = Duration::from_millis(chance.below(25));
    thread::scope(|scope| {
        let dying = scope.spawn(|| moving.step(STEPS[step]).is_ok());
        thread::sleep(delay);
        inject(pair, fault);
        // Done before the fault or not: both are right.
        dying.join().unwrap();
    });
    if abort {
        // Too late, if the shard has been handed over.
        let handed_over = "SELECT count(*) FROM insta_ids.shards WHERE shard = $1 AND state = 'active'";
        let is_late = pair.b.reconnect().query_one(handed_over, &[&shard]).unwrap().get::<_, i64>(0) > 0;
        if !is_late {
            insist(&what, || moving.abort());
            let mut a = pair.a.reconnect();
            a.batch_execute(&format!("INSERT INTO insta{shard}.photos DEFAULT VALUES")).unwrap();
            assert_eq!(count(&mut a, "SELECT count(*) FROM pg_replication_slots"), 0, "{what}");
        }
    }
    let by_call = shard % 2 == 0;
    insist(&what, || {
        if by_call && !moving.has_ended()? {
            let call = format!("CALL insta_ids.move_shards({shard}, {shard}, 'a')");
            return pair.b.config().connect(NoTls)?.batch_execute(&call);
        }
        moving.resume()
    });
    // Written there, too.
    thread::sleep(Duration::from_millis(100));
    check(pair, shard, &writers.stop(), &what);
}

fn check(pair: &Pair, shard: i32, written: &[Written], what: &str) {
    let (mut a, mut b) = (pair.a.reconnect(), pair.b.reconnect());
    let there = ids(&mut b, &format!("SELECT id FROM insta{shard}.photos ORDER BY id"));
    let given = written.iter().flat_map(|session| [&session.committed, &session.rolled_back]);
    assert_eq!(duplicates(given.clone()), 0, "{what}");
    let (mut committed, mut lost) = (0, 0);
    for id in written.iter().flat_map(|session| &session.committed) {
        committed += 1;
        lost += usize::from(there.binary_search(id).is_err());
    }
    println!("{what}: {committed} rows, {} there", there.len());
    assert_eq!(lost, 0, "of {committed}: {what}");
    let changed: Vec<i64> = written.iter().flat_map(|session| session.changed.iter().copied()).collect();
    let unchanged = format!(
        "SELECT count(*) FROM insta{shard}.photos WHERE id = ANY ($1) AND caption IS DISTINCT FROM id::text"
    );
    assert_eq!(b.query_one(&unchanged, &[&changed]).unwrap().get::<_, i64>(0), 0, "{what}");
    let rolled_back = written.iter().flat_map(|session| &session.rolled_back);
    assert_eq!(rolled_back.filter(|id| there.binary_search(id).is_ok()).count(), 0, "{what}");
    // What the target mints is later than all that the source had given.
    let left = ids(&mut a, &format!("SELECT id FROM insta{shard}__moved.photos ORDER BY id"));
    let next: i64 = b.query_one(&format!("SELECT insta{shard}.next_id()"), &[]).unwrap().get(0);
    assert!(left.last().is_none_or(|last| *last < next), "{what}");
    for client in [&mut a, &mut b] {
        for left in [
            "insta_ids.moves",
            "pg_replication_slots",
            "pg_publication",
            "pg_subscription",
            "insta_ids_internal.fence",
        ] {
            assert_eq!(count(client, &format!("SELECT count(*) FROM {left}")), 0, "{what}: {left}");
        }
    }
    let refused = |client: &mut Client, command: &str| {
        let error = client.batch_execute(command).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION), "{what}: {error:?}");
    };
    refused(&mut a, &format!("INSERT INTO insta{shard}__moved.photos DEFAULT VALUES"));
    refused(&mut a, &format!("SELECT insta{shard}__moved.next_id()"));
    a.batch_execute(&format!("SELECT insta_ids.drop_shard({shard})")).unwrap();
}

/// Each step with each fault; of those, in a short run, one fault of each step.
#[test]
fn something_dies_in_each_step() {
    let mut chance = chance();
    let long = times() > 1;
    for behind_ms in [200, 300_000] {
        let pair = pair("moves", behind_ms);
        let mut shard = 4;
        for step in 0..STEPS.len() {
            for (n, fault) in FAULTS.into_iter().enumerate() {
                // Half of the steps with each clock, when it is to be short.
                let turn = usize::from(behind_ms > 1000);
                if !long && (n != (step / 2 + 2 * turn) % FAULTS.len() || step % 2 != turn) {
                    continue;
                }
                let abort = chance.below(3) == 0;
                moved(&pair, shard, step, fault, abort, &mut chance);
                shard += 1;
            }
        }
    }
}

/// The target's clock steps back while the caller waits: a wait does not last longer by that.
#[test]
fn the_clock_steps_back_while_it_waits() {
    let pair = pair("waits", 0);
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("slot"));
    let mut holder = pair.b.connect();
    // The copy waits for this, and the caller for the copy.
    holder.batch_execute("BEGIN; LOCK TABLE insta2.photos IN EXCLUSIVE MODE").unwrap();
    let config = pair.b.config();
    let calling = thread::spawn(move || {
        config.connect(NoTls).unwrap().batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    });
    thread::sleep(Duration::from_secs(2));
    pair.b.set_clock(-30_000);
    thread::sleep(Duration::from_secs(1));
    holder.batch_execute("COMMIT").unwrap();
    let released = Instant::now();
    calling.join().unwrap();
    println!("{:?}", released.elapsed());
    assert!(released.elapsed() < Duration::from_secs(15), "{:?}", released.elapsed());
}
