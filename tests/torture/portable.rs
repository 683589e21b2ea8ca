//! sql/portable.sql mints where nothing of ours is installed.

use std::fs;
use std::thread;
use std::time::Duration;

use support::fault::{chance, now_ms, times};
use support::minters::{Given, Minters, mint};
use support::{Cluster, NOT_PRELOADED, checkout, within};

use crate::crash::{kill_a_backend, kill_the_postmaster, stop_immediately};

/// A server without the extension whose clock can be set, with what [`support::minters`] need.
fn plain(name: &str) -> Cluster {
    let cluster = Cluster::timed_with(name, &[NOT_PRELOADED]);
    let sql = fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    let objects = "CREATE SEQUENCE s; CREATE TABLE ids (id bigint PRIMARY KEY); SELECT guard_sequence('s')";
    cluster.connect().batch_execute(&format!("{sql}{objects}")).unwrap();
    cluster
}

/// No id came twice. If the clock was behind after a crash, this is promised of ids in committed rows only.
fn check(given: &Given, was_behind: bool) {
    println!("{} ids, {} duplicates, {} in the table", given.ids.len(), given.duplicates(), given.refused);
    assert_eq!((given.refused, given.disorders), (0, 0));
    assert!(was_behind || given.duplicates() == 0);
}

/// Sessions wait for a small step, and are refused after a large one until the clock has come back.
#[test]
fn the_clock_is_set_under_load() {
    let cluster = plain("portable_steps");
    let minters = Minters::start(&cluster, "postgres", 8);
    for step_ms in [1, 1500, 300_000].repeat(usize::try_from(times()).unwrap()) {
        minters.await_more(20_000);
        cluster.set_clock(-step_ms);
        if step_ms > 10_000 {
            within(Duration::from_secs(10), || {
                let given = minters.given();
                thread::sleep(Duration::from_millis(300));
                minters.given() == given
            });
            cluster.set_clock(0);
            // Those that slept when the clock was set back would sleep for so long.
            let asleep = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event IN ('PgSleep', 'advisory')";
            cluster.connect().batch_execute(asleep).unwrap();
        }
        minters.await_more(20_000);
        cluster.set_clock(0);
    }
    let given = minters.stop();
    check(&given, false);
    assert!(given.newest_ms() <= now_ms(), "ids ran faster than time");
}

/// Backends and servers are killed under load, and come back, some with their clock behind.
#[test]
fn crashes_under_load() {
    let mut chance = chance();
    for behind_ms in [0, 500, 5000] {
        let cluster = plain("portable_crashes");
        let minters = Minters::start(&cluster, "postgres", 8);
        for crash in 0..3 * times() {
            minters.await_more(5_000 + chance.below(10_000));
            match crash % 3 {
                0 => kill_a_backend(&cluster, behind_ms, &mut chance),
                1 => kill_the_postmaster(&cluster, behind_ms),
                _ => stop_immediately(&cluster, behind_ms),
            }
            minters.await_more(5_000);
            cluster.set_clock(0);
        }
        check(&minters.stop(), behind_ms > 0);
    }
}

/// A synchronous standby is promoted, once with its clock behind.
#[test]
fn a_standby_takes_over() {
    for behind_ms in [0, 3000].repeat(usize::try_from(times()).unwrap()) {
        let primary = plain("portable_primary");
        let standby = Cluster::timed("portable_standby", &["standby", &primary.name]);
        standby.up();
        let mut client = primary.connect();
        client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
        let synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        within(Duration::from_secs(30), || client.query_opt(synchronous, &[]).unwrap().is_some());
        let minters = Minters::start(&primary, "postgres", 8);
        minters.await_more(30_000);
        primary.signal("KILL");
        let before = minters.stop();
        standby.set_clock(-behind_ms);
        standby.promote();
        let after = mint(&standby, "postgres", 8, 30_000);
        check(&before.and(after), behind_ms > 0);
    }
}
