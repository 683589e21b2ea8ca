//! The database is copied to where the clock is behind: by dumps, and by `pg_upgrade`.

use std::process::Command;

use support::fault::{TIMED, quiet};
use support::minters::{Given, Minters, mint};
use support::{Cluster, checkout, lacks, pg_config, since};

/// A server with ids in it that are five minutes ahead of the clock of the servers to come.
fn source(name: &str) -> (Cluster, Given) {
    let source = Cluster::with_clock(name);
    let given = mint(&source, "postgres", 8, 100_000);
    (source, given)
}

fn shell(line: &str) {
    let run = Command::new("bash").args(["-o", "pipefail", "-c", line]).output().unwrap();
    assert!(run.status.success(), "{line}: {}", String::from_utf8_lossy(&run.stderr));
}

fn client(program: &str, cluster: &Cluster) -> String {
    format!("{}/{program} -h {} -U postgres", pg_config("--bindir"), cluster.socket.display())
}

/// Mints in the copy, and compares with what was given before.
fn go_on(copy: &Cluster, database: &str, before: Given) {
    let after = mint(copy, database, 8, 100_000);
    before.check_going_on(after);
}

/// A dump is restored where the clock is behind.
#[test]
fn pg_dump_and_restore() {
    let (source, before) = source("dumped_from");
    let copy = Cluster::timed_with("dumped", &[]);
    copy.set_clock(-300_000);
    shell(&format!(
        "{} -Fc postgres | {} -d postgres",
        client("pg_dump", &source),
        client("pg_restore --exit-on-error", &copy)
    ));
    go_on(&copy, "postgres", before);
}

/// The same, of the whole server.
#[test]
fn pg_dumpall() {
    let (source, before) = source("dumped_all_from");
    let copy = Cluster::timed_with("dumped_all", &[]);
    copy.set_clock(-300_000);
    // The role of both servers exists there.
    shell(&format!(
        "{} | grep -v '^CREATE ROLE postgres;' | {} -q -v ON_ERROR_STOP=1 postgres",
        client("pg_dumpall", &source),
        client("psql", &copy)
    ));
    go_on(&copy, "postgres", before);
}

/// Into a server that runs and mints in another database.
#[test]
fn restored_beside_others() {
    let (source, before) = source("restored_beside_from");
    let copy = Cluster::with_clock("restored_beside");
    copy.set_clock(-300_000);
    let others = Minters::start(&copy, "postgres", 4);
    others.await_more(20_000);
    copy.connect().batch_execute("CREATE DATABASE restored").unwrap();
    shell(&format!(
        "{} -Fc postgres | {} -d restored",
        client("pg_dump", &source),
        client("pg_restore --exit-on-error", &copy)
    ));
    // At once: nothing that was minted before the dump's lease was there is in the way.
    go_on(&copy, "restored", before);
    others.await_more(20_000);
    others.stop().check(1);
}

/// From PostgreSQL 16 to 18 and newer ones.
#[test]
fn pg_upgrade() {
    if !since(18) {
        return;
    }
    let setup =
        Command::new(checkout().join("scripts/setup")).env("PG", "16").env("PG_CONFIG", "").output().unwrap();
    if !setup.status.success() {
        lacks(
            "postgresql-16",
            &format!("there is no PostgreSQL 16 here: {}", String::from_utf8_lossy(&setup.stderr)),
        );
        return;
    }
    let old = String::from_utf8(setup.stdout).unwrap().trim().to_owned();
    let install = checkout().join("scripts/install");
    {
        let _quiet = quiet();
        shell(&format!("PG_CONFIG={old} {}", install.display()));
    }
    let settings = [&["make"], &TIMED[..]].concat();
    let source = Cluster::made_by(&old, "upgraded_from", &settings).and_timed();
    source.up();
    source.prepare("postgres");
    let before = mint(&source, "postgres", 8, 100_000);
    source.stop();
    let copy = Cluster::timed("upgraded", &[&["make"], &TIMED[..]].concat());
    copy.script("upgrade", &[&source.name, old.strip_suffix("/pg_config").unwrap()]);
    copy.set_clock(-300_000);
    copy.up();
    go_on(&copy, "postgres", before);
}
