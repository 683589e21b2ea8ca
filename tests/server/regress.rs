//! The SQL surface, by PostgreSQL's own `pg_regress`, over `tests/pg_regress`.

use std::process::Command;

use crate::cluster::{Cluster, PRELOAD, checkout};

#[test]
fn pg_regress() {
    let cluster = Cluster::bare("regress", &[PRELOAD]);
    let run = Command::new(checkout().join("scripts/installcheck"))
        .env("PGHOST", &cluster.socket)
        .env("PGUSER", "postgres")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
