//! The server dies and comes back, with its clock behind.

use std::process::Command;

use support::Chance;
use support::Cluster;
use support::fault::{chance, times};
use support::minters::{Minters, mint};

/// How far the clock is behind when the server comes back, in milliseconds.
const BEHIND_MS: [i64; 4] = [0, 500, 300_000, 3_540_000];

pub fn kill(pid: i32) {
    Command::new("bash").args(["-c", &format!("kill -KILL {pid}")]).status().unwrap();
}

/// One of eight sessions is killed in the middle: a crash restart.
pub fn kill_a_backend(cluster: &Cluster, behind_ms: i64, chance: &mut Chance) {
    let pids =
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let pids: Vec<i32> = cluster.reconnect().query(pids, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    cluster.set_clock(-behind_ms);
    kill(chance.of(&pids));
}

fn postmaster(cluster: &Cluster) -> i32 {
    // The pid file is the server's user's own.
    let query = "SELECT pg_read_file('postmaster.pid')";
    let file: String = cluster.reconnect().query_one(query, &[]).unwrap().get(0);
    file.lines().next().unwrap().parse().unwrap()
}

pub fn kill_the_postmaster(cluster: &Cluster, behind_ms: i64) {
    kill(postmaster(cluster));
    cluster.set_clock(-behind_ms);
    // Its children end when they find out.
    cluster.up_again();
}

pub fn stop_immediately(cluster: &Cluster, behind_ms: i64) {
    cluster.stop_immediately();
    cluster.set_clock(-behind_ms);
    cluster.up();
}

/// Backends and servers are killed under load, and come back with their clock behind.
#[test]
fn crashes_under_load() {
    let mut chance = chance();
    let cluster = Cluster::with_clock("crashes");
    let minters = Minters::start(&cluster, "postgres", 8);
    let cycles = 24 * times();
    for cycle in 0..cycles {
        minters.await_more(10_000 + chance.below(20_000));
        let behind_ms = BEHIND_MS[usize::try_from(cycle / 3 % 4).unwrap()];
        match cycle % 3 {
            0 => kill_a_backend(&cluster, behind_ms, &mut chance),
            1 => kill_the_postmaster(&cluster, behind_ms),
            _ => stop_immediately(&cluster, behind_ms),
        }
    }
    minters.await_more(50_000);
    minters.stop().check(cycles);
}

/// After a crash, ids go on in a later unit of time, however long that is.
#[test]
fn crashes_in_other_layouts() {
    for layout in ["sonyflake", "time:32 seq:16 epoch:0 unit:1s"] {
        let cluster = Cluster::with_clock("layouts");
        let call = format!("next_id(0, 's', '{layout}')");
        let minters = Minters::start_by(&cluster, "postgres", 8, &call);
        let cycles = 4 * times();
        for cycle in 0..cycles {
            minters.await_more(10_000);
            let behind_ms = BEHIND_MS[usize::try_from(cycle / 2 % 4).unwrap()];
            if cycle % 2 == 0 {
                kill_the_postmaster(&cluster, behind_ms);
            } else {
                stop_immediately(&cluster, behind_ms);
            }
        }
        minters.await_more(10_000);
        minters.stop().check(cycles);
    }
}

/// All processes stand still while they mint, the data directory is copied, and its WAL cut to what had been
/// flushed: what a machine finds whose power failed.
#[test]
fn power_fails() {
    let mut chance = chance();
    for round in 0..2 * times() {
        let cluster = Cluster::with_clock("power");
        let mut client = cluster.connect();
        // Nothing but a flush of the WAL changes the files.
        client.batch_execute("ALTER SYSTEM SET bgwriter_lru_maxpages = 0").unwrap();
        client.batch_execute("SELECT pg_reload_conf(); CHECKPOINT").unwrap();
        let minters = Minters::start(&cluster, "postgres", 8);
        minters.await_more(100_000 + chance.below(50_000));
        let given = minters.given_to_each();
        let flushed = client
            .query_one(
                "SELECT pg_walfile_name(lsn), (pg_walfile_name_offset(lsn)).file_offset FROM pg_current_wal_flush_lsn() lsn",
                &[],
            )
            .unwrap();
        cluster.signal("STOP");
        let copy = Cluster::timed("power_copy", &["copy", &cluster.name]);
        cut_wal(&copy, flushed.get(0), flushed.get::<_, i32>(1).try_into().unwrap());
        cluster.signal("KILL");
        let before = minters.stop_and_take(&given);
        copy.set_clock(-BEHIND_MS[usize::try_from(2 + round % 2).unwrap()]);
        copy.up();
        let after = mint(&copy, "postgres", 8, 100_000);
        before.check_going_on(after);
    }
}

/// Drops all of the server's WAL from this byte of this file on.
fn cut_wal(cluster: &Cluster, file: &str, offset: u64) {
    let directory = cluster.socket.join("data/pg_wal");
    for entry in std::fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name.len() == file.len() && name.as_str() > file {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    // The same file, so that it stays the server's: zeroes instead of what was not flushed.
    let segment = std::fs::File::options().write(true).open(directory.join(file)).unwrap();
    let size = segment.metadata().unwrap().len();
    segment.set_len(offset).unwrap();
    segment.set_len(size).unwrap();
}
