//! The SQL surface, by PostgreSQL's own `pg_regress`, over `tests/pg_regress`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cluster::{Cluster, checkout, pg_config};

#[test]
fn pg_regress() {
    let cluster = Cluster::start("regress");
    let program = pg_config("--pgxs").replace("makefiles/pgxs.mk", "test/regress/pg_regress");
    let input = checkout().join("tests/pg_regress");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pg_regress");
    fs::create_dir_all(&output).unwrap();
    let run = Command::new(program)
        .arg("--use-existing")
        .args(["--dbname=postgres", "--user=postgres"])
        .arg(format!("--bindir={}", pg_config("--bindir")))
        .arg(format!("--host={}", cluster.socket.display()))
        .arg(format!("--inputdir={}", input.display()))
        .arg(format!("--outputdir={}", output.display()))
        .arg(format!("--schedule={}", input.join("schedule").display()))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&run.stdout));
    let differences = fs::read_to_string(output.join("regression.diffs")).unwrap_or_default();
    assert!(run.status.success(), "{}{differences}", String::from_utf8_lossy(&run.stderr));
}
