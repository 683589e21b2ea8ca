//! The SQL surface, by PostgreSQL's own `pg_regress`, over `tests/pg_regress`.

use std::process::Command;

use support::{Cluster, checkout};

/// The SQL surface gives the expected output.
#[test]
fn the_sql_surface_is_as_expected() {
    let cluster = Cluster::bare("regress");
    let run = Command::new(checkout().join("scripts/installcheck"))
        .env("PGHOST", &cluster.socket)
        .env("PGUSER", "postgres")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
