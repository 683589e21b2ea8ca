//! What the faults share: a clock that can be set, chance that can be repeated, and how long to go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Chance;
use crate::{Cluster, lacks, libfaketime};

/// How many times as long as `make test` does it: `TORTURE`, 1 by default.
pub fn times() -> u64 {
    std::env::var("TORTURE").map_or(1, |times| times.parse().expect("TORTURE is a number"))
}

/// Chance that can be repeated: `TORTURE_SEED` chooses it.
pub fn chance() -> Chance {
    let seed =
        std::env::var("TORTURE_SEED").map_or(1, |seed| seed.parse().expect("TORTURE_SEED is a number"));
    println!("TORTURE={} TORTURE_SEED={seed}", times());
    Chance::from_seed(seed)
}

/// The clock of this machine, in Unix milliseconds: the one that servers have until theirs is set.
pub fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Held by tests that look at how long sessions wait, and by what loads all cores for long.
pub fn quiet() -> MutexGuard<'static, ()> {
    static QUIET: Mutex<()> = Mutex::new(());
    QUIET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// libfaketime reads its file in ways that must not be interrupted by a handler that reads the clock, too: no
/// timer of the server may ring.
pub const TIMED: [&str; 4] = [
    "autovacuum = off",
    "deadlock_timeout = '1h'",
    "authentication_timeout = '10min'",
    "log_startup_progress_interval = 0",
];

impl Cluster {
    /// A server whose clock can be set, made by an action of scripts/cluster and not started yet.
    pub fn timed(name: &str, action: &[&str]) -> Self {
        Self::made(name, action).and_timed()
    }

    /// The same, of a cluster that was made.
    pub fn and_timed(mut self) -> Self {
        self.set_clock(0);
        self.environment = vec![
            format!("LD_PRELOAD={}", libfaketime().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.socket.join("clock").display()),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            "FAKETIME_NO_CACHE=1".into(),
        ];
        self
    }

    /// A server whose clock can be set, running, with nothing in it.
    pub fn timed_with(name: &str, settings: &[&str]) -> Self {
        let cluster = Self::timed(name, &[&["make"], &TIMED[..], settings].concat());
        cluster.up();
        cluster
    }

    /// A server whose clock can be set, running, with the extension and what [`crate::minters`] need.
    pub fn with_clock(name: &str) -> Self {
        let cluster = Self::timed_with(name, &[]);
        cluster.prepare("postgres");
        cluster
    }

    /// Makes what [`crate::minters`] need in a database.
    pub fn prepare(&self, database: &str) {
        // Ten servers prepared at once are slow, whatever time their sessions are given.
        let objects = "SET statement_timeout = 0; CREATE EXTENSION insta_ids; \
             CREATE SEQUENCE s; CREATE TABLE ids (id bigint PRIMARY KEY)";
        self.connect_to(database).batch_execute(objects).unwrap();
    }

    /// Sets the clock to so many milliseconds before or after this machine's.
    pub fn set_clock(&self, offset_ms: i64) {
        let file = self.socket.join("clock");
        let part = self.socket.join("clock.part");
        let sign = if offset_ms < 0 { '-' } else { '+' };
        let ms = offset_ms.abs();
        fs::write(&part, format!("{sign}{}.{:03}\n", ms / 1000, ms % 1000)).unwrap();
        fs::rename(part, file).unwrap();
    }
}

/// A small file system for a server's tablespace, mounted until this is dropped.
pub struct SmallDisk {
    directory: PathBuf,
    owner: PathBuf,
}

impl SmallDisk {
    /// None, if nothing can be mounted here.
    pub fn of(cluster: &Cluster, size: &str) -> Option<Self> {
        let disk = Self { directory: cluster.socket.join("small"), owner: cluster.socket.clone() };
        let mounted = disk.mount(&format!("size={size},mode=700"));
        if !mounted.status.success() {
            lacks(
                "mount",
                &format!("nothing can be mounted here: {}", String::from_utf8_lossy(&mounted.stderr)),
            );
            return None;
        }
        Some(disk)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Gives it another size.
    pub fn grow(&self, size: &str) {
        assert!(self.mount(&format!("remount,size={size}")).status.success());
    }

    fn mount(&self, options: &str) -> Output {
        let (directory, owner) = (self.directory.display(), self.owner.display());
        let mount = format!(
            "mkdir -p {directory} && mount -t tmpfs -o {options} tmpfs {directory} && chown --reference={owner} {directory}"
        );
        Command::new("bash").args(["-c", &mount]).output().unwrap()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.directory).status();
    }
}
