//! Promise: several servers that mint for one shard, each with a writer slot, never make the same id; also while slots are
//! split, and whatever their clocks do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use postgres::error::SqlState;

use support::{Cluster, clock_ahead, count, disorders, duplicates, ids, refused, texts};

const NOT_YET: &SqlState = &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
const MINT: &str = "SELECT next_id(5, 's') FROM generate_series(1, 10000)";
const TAKEN: &str = "SELECT insta_ids.acquire_writer_slot('-infinity')";

/// A server with this slot set, and not taken yet.
fn server(name: &str, slot: &str, seconds_ahead: i32) -> Cluster {
    let slot = format!("insta_ids.writer_slot = '{slot}'");
    let mut cluster = Cluster::made(name, &["make", &slot]);
    cluster.environment = clock_ahead(seconds_ahead);
    cluster.up();
    cluster.connect().batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s").unwrap();
    cluster
}

/// Sets another slot, which holds from the restart on.
fn set(cluster: &Cluster, slot: &str) {
    cluster.connect().batch_execute(&format!("ALTER SYSTEM SET insta_ids.writer_slot = '{slot}'")).unwrap();
    cluster.stop();
    cluster.up();
}

/// What two sessions on each server were given, so many ids each, all at once.
fn minted(servers: &[&Cluster], rounds: usize) -> Vec<Vec<i64>> {
    thread::scope(|scope| {
        let sessions: Vec<_> = servers
            .iter()
            .flat_map(|server| [server, server])
            .map(|server| {
                scope.spawn(move || {
                    let mut client = server.connect();
                    (0..rounds).flat_map(|_| ids(&mut client, MINT)).collect::<Vec<_>>()
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    })
}

/// Two servers with sequences of their own mint for one shard, each by its slot.
#[test]
fn writers_with_slots_of_their_own_share_no_id() {
    let servers = [server("even", "0/2", 0), server("odd", "1/2", 0)];
    for server in &servers {
        let refusal = refused(&mut server.connect(), MINT);
        assert_eq!(refusal.code(), NOT_YET);
        assert!(refusal.message().contains("has not been taken in this database"), "{}", refusal.message());
        server.connect().batch_execute(TAKEN).unwrap();
    }
    let all = minted(&[&servers[0], &servers[1]], 50);
    assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 2_000_000);
    assert_eq!(duplicates(&all), 0);
    for (slot, of_session) in [0, 0, 1, 1].into_iter().zip(&all) {
        assert_eq!(disorders(of_session), 0);
        assert!(of_session.iter().all(|id| id % 2 == slot));
    }
    // The low bits are the value's, bit for bit.
    let mut odd = servers[1].connect();
    let seq = "SELECT (id_seq(next_id(5, 's')) - (currval('s') * 2 + 1) % 1024)::bigint FROM generate_series(1, 5000)";
    assert!(ids(&mut odd, seq).iter().all(|&difference| difference == 0));
}

/// Otherwise the test above would show nothing.
#[test]
fn without_writer_slots_ids_come_twice() {
    let servers = [server("alone_a", "0/1", 0), server("alone_b", "0/1", 0)];
    let all = minted(&[&servers[0], &servers[1]], 50);
    let duplicates = duplicates(&all);
    println!("{duplicates} of {}", all.iter().map(Vec::len).sum::<usize>());
    assert!(duplicates > 0);
}

/// Stops the sessions of other threads, also when the test fails.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// 1/2 becomes 1/4 and 3/4 while all mint. The new server's clock is a minute behind, so by that alone it would mint of the time
/// before the split.
#[test]
fn a_slot_is_split_while_sessions_mint() {
    let (even, old) = (server("split_even", "0/2", 0), server("split_old", "1/2", 0));
    even.connect().batch_execute(TAKEN).unwrap();
    old.connect().batch_execute(TAKEN).unwrap();
    let stop = AtomicBool::new(false);
    let all: Vec<Vec<i64>> = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut all = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                all.extend(minted(&[&even], 1));
            }
            all
        });
        let stopping = Stop(&stop);
        let new = server("split_new", "3/4", -60);
        let mut all = minted(&[&old], 20);
        let take = "SELECT insta_ids.acquire_writer_slot()";
        // As long as the old server has it.
        assert_eq!(refused(&mut new.connect(), MINT).code(), NOT_YET);
        let asked = refused(&mut new.connect(), take);
        assert_eq!(asked.code(), &SqlState::NULL_VALUE_NOT_ALLOWED);
        assert!(asked.hint().unwrap().contains("insta_ids.release_writer_slot('3/4')"));
        let left = "SELECT insta_ids.release_writer_slot('3/4')";
        assert_eq!(refused(&mut old.connect(), left).code(), &SqlState::OBJECT_IN_USE);
        set(&old, "1/4");
        // Set is not enough: in this database it is 1/2 still.
        assert_eq!(refused(&mut old.connect(), left).code(), &SqlState::OBJECT_IN_USE);
        assert_eq!(refused(&mut old.connect(), MINT).code(), NOT_YET);
        assert_eq!(texts(&mut old.connect(), take), ["1/4"]);
        let until = texts(&mut old.connect(), &format!("{left}::text")).remove(0);
        new.connect().batch_execute(&format!("SELECT insta_ids.acquire_writer_slot('{until}')")).unwrap();
        let split = count(&mut new.connect(), &format!("SELECT id_min('{until}')"));
        let since = minted(&[&old, &new], 20);
        assert!(since[2..].iter().flatten().all(|&id| id >= split));
        all.extend(since);
        // And after a crash.
        new.stop_immediately();
        new.up();
        all.extend(minted(&[&old, &new], 5));
        drop(stopping);
        all.extend(others.join().unwrap());
        all
    });
    println!("{} ids", all.iter().map(Vec::len).sum::<usize>());
    assert_eq!(duplicates(&all), 0);
}

/// A server mints nothing in a database in which its slot was not taken, and a slot is not taken without saying from when.
#[test]
fn nothing_is_minted_with_a_slot_that_was_not_taken() {
    let cluster = server("slots", "1/128", 0);
    let mut client = cluster.connect();
    // Nobody else may have them without a word.
    assert_eq!(
        refused(&mut client, "SELECT insta_ids.acquire_writer_slot()").code(),
        &SqlState::NULL_VALUE_NOT_ALLOWED
    );
    client.batch_execute("SELECT insta_ids.init(16)").unwrap();
    let found = "SELECT concat_ws(' ', code, detail) FROM insta_ids.check() WHERE severity = 'error'";
    assert_eq!(
        texts(&mut client, found),
        ["writer_slot No id can be minted here: writer slot 1/128 has not been taken in this database."]
    );
    client.batch_execute(TAKEN).unwrap();
    assert_eq!(texts(&mut client, found), [""; 0]);
    client.batch_execute(MINT).unwrap();
    let narrow = refused(&mut client, "SELECT next_id(5, 's', 'js53')");
    assert_eq!(
        (narrow.code(), narrow.message(), narrow.detail()),
        (NOT_YET, "layout has no room for writer slot 1/128", Some("Its sequence field has 64 values."))
    );
    for slot in ["1/3", "2/2", "-1/2", "", "x", "0/131072"] {
        set(&cluster, slot);
        let none = refused(&mut cluster.connect(), MINT);
        assert_eq!((none.code(), none.message()), (NOT_YET, "this server has no writer slot"), "{slot}");
        assert!(none.detail().unwrap().contains(&format!("\"insta_ids.writer_slot\" is \"{slot}\"")));
        let found = texts(&mut cluster.connect(), found);
        assert_eq!(found, ["writer_slot No id can be minted here: this server has no writer slot."]);
    }
    // A session's setting changes nothing.
    set(&cluster, "1/128");
    let mut client = cluster.connect();
    client.batch_execute(MINT).unwrap();
    assert_eq!(
        refused(&mut client, "SET insta_ids.writer_slot = '0/1'").code(),
        &SqlState::CANT_CHANGE_RUNTIME_PARAM
    );
    client.batch_execute("ALTER SYSTEM SET insta_ids.writer_slot = '0/1'").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    client.batch_execute(MINT).unwrap();
    assert_eq!(texts(&mut client, "SELECT insta_ids.writer_slot()"), ["1/128"]);
    // More than it had was another's.
    set(&cluster, "1/64");
    assert_eq!(
        refused(&mut cluster.connect(), "SELECT insta_ids.acquire_writer_slot()").code(),
        &SqlState::NULL_VALUE_NOT_ALLOWED
    );
}

/// A copy of a database that went on elsewhere, with the slot of both: it goes on from the time that is given.
#[test]
fn a_copy_goes_on_from_the_time_its_slot_was_left_at() {
    let lost = server("slot_lost", "1/2", 0);
    lost.connect().batch_execute(TAKEN).unwrap();
    lost.connect().batch_execute("CREATE DATABASE copy").unwrap();
    lost.restore("postgres", "postgres", "copy");
    let mut copy = lost.connect_to("copy");
    let until = texts(&mut copy, "SELECT (now() + interval '10 s')::text").remove(0);
    copy.batch_execute(&format!("SELECT insta_ids.acquire_writer_slot('{until}')")).unwrap();
    // To the millisecond that ids have.
    let goes_on =
        format!("SELECT (id_time(next_id(5, 's')) > timestamptz '{until}' - interval '1 ms')::int::bigint");
    assert_eq!(count(&mut copy, &goes_on), 1);
    assert_eq!(
        refused(&mut copy, "SELECT insta_ids.acquire_writer_slot('infinity')").code(),
        &SqlState::INVALID_PARAMETER_VALUE
    );
    // What may be rolled back is not relied upon.
    set(&lost, "3/4");
    let mut client = lost.connect();
    client.batch_execute("BEGIN; SELECT insta_ids.acquire_writer_slot()").unwrap();
    let left = "SELECT insta_ids.release_writer_slot('1/4')";
    assert_eq!(refused(&mut client, left).code(), &SqlState::OBJECT_IN_USE);
    client.batch_execute("ROLLBACK; SELECT insta_ids.acquire_writer_slot()").unwrap();
    client.batch_execute(left).unwrap();
    // By hand, past all functions: open sessions hear of it.
    client.batch_execute(MINT).unwrap();
    lost.connect().batch_execute("UPDATE insta_ids_internal.writer SET slots = 8").unwrap();
    assert_eq!(refused(&mut client, MINT).code(), NOT_YET);
}

/// Each database has taken its own; a dump takes that with it.
#[test]
fn each_database_has_a_writer_slot_of_its_own() {
    let cluster = server("databases", "0/2", 0);
    cluster.connect().batch_execute(TAKEN).unwrap();
    cluster.connect().batch_execute("CREATE DATABASE other").unwrap();
    let mut other = cluster.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s").unwrap();
    assert_eq!(refused(&mut other, MINT).code(), NOT_YET);
    cluster.connect().batch_execute("CREATE DATABASE copy").unwrap();
    cluster.restore("postgres", "postgres", "copy");
    cluster.connect_to("copy").batch_execute(MINT).unwrap();
    let mut client = cluster.connect();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.writer"), 1);
}
