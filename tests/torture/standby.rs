//! A standby takes over, with its clock behind.

use std::time::Duration;

use support::Chance;
use support::fault::{chance, times};
use support::minters::{AHEAD_MS, Given, Minters, mint};
use support::{Cluster, duplicates, ids, within};

/// For what a standby does in milliseconds.
const LONG: Duration = Duration::from_secs(30);

/// A primary and a standby, each with a clock of its own.
fn pair(synchronous: bool) -> (Cluster, Cluster) {
    let primary = Cluster::with_clock("primary");
    let standby = Cluster::timed("standby", &["standby", &primary.name]);
    standby.up();
    let mut client = primary.connect();
    if synchronous {
        client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
        let synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        within(LONG, || client.query_opt(synchronous, &[]).unwrap().is_some());
    }
    (primary, standby)
}

/// All the ids that are in the table of a server.
fn held(cluster: &Cluster) -> Vec<i64> {
    ids(&mut cluster.connect(), "SELECT id FROM ids")
}

fn promoted(synchronous: bool, behind_ms: i64, chance: &mut Chance) {
    let (primary, standby) = pair(synchronous);
    let minters = Minters::start(&primary, "postgres", 8);
    minters.await_more(30_000 + chance.below(30_000));
    within(LONG, || !held(&standby).is_empty());
    // Looked at before the promotion, which must leave no mark: it knows no time to go on from yet.
    let looked = "SELECT id_time <= now() + interval '1 s', lease IS NOT NULL FROM insta_ids.clock()";
    let row = standby.connect().query_one(looked, &[]).unwrap();
    assert_eq!((row.get(0), row.get(1)), (true, true));
    if !synchronous {
        // What comes from now on is lost with the primary.
        standby.connect().batch_execute("SELECT pg_wal_replay_pause()").unwrap();
        let replaying = "SELECT 1 WHERE pg_get_wal_replay_pause_state() <> 'paused'";
        within(LONG, || standby.connect().query_opt(replaying, &[]).unwrap().is_none());
        primary.connect().batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication").unwrap();
    }
    minters.await_more(30_000);
    primary.signal("KILL");
    let before = minters.stop();
    standby.set_clock(-behind_ms);
    if !synchronous {
        standby.connect().batch_execute("SELECT pg_wal_replay_resume()").unwrap();
    }
    standby.promote();
    // What it holds when nobody has minted there yet.
    let held = held(&standby);
    let after = mint(&standby, "postgres", 8, 100_000);
    after.check(1);
    assert_eq!(duplicates([&held, &after.ids]), 0);
    let newest_held = Given::time_of(*held.iter().max().unwrap());
    assert!(after.oldest_ms() >= newest_held - AHEAD_MS, "time went back");
    if synchronous {
        // Whatever was committed is there; and a lease that is there covers all that was given.
        before.check_going_on(after);
    }
}

/// No id of the lost primary comes again.
#[test]
fn a_synchronous_standby_is_promoted() {
    let mut chance = chance();
    for _ in 0..times() {
        for behind_ms in [500, 300_000] {
            promoted(true, behind_ms, &mut chance);
        }
    }
}

/// No id that it holds comes again.
#[test]
fn an_asynchronous_standby_is_promoted() {
    let mut chance = chance();
    for _ in 0..times() {
        for behind_ms in [500, 3_540_000] {
            promoted(false, behind_ms, &mut chance);
        }
    }
}
