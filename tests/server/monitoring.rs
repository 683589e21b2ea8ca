//! Promise: Prometheus watches servers by the files of docs/monitoring/.

use std::fs;
use std::process::{Command, Output};

use support::{Cluster, blocks, checkout, lacks};

/// Runs a program. None if this machine lacks it.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).current_dir(checkout()).output().ok();
    if output.is_none() {
        lacks(program, &format!("this machine has no {program}"));
    }
    output
}

/// Each alert comes from what it is for, and none comes from a fleet that is well.
#[test]
fn alerts_come_from_what_they_are_for() {
    for arguments in [
        ["check", "rules", "docs/monitoring/alerts.yaml"],
        ["test", "rules", "tests/monitoring/alerts_test.yaml"],
    ] {
        let Some(output) = run("promtool", &arguments) else { return };
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        );
    }
}

/// Each alert of the file is in the tests of alerts, and on the page with what to do.
#[test]
fn each_alert_is_tested_and_described() {
    let read = |file: &str| fs::read_to_string(checkout().join(file)).unwrap();
    let tests = read("tests/monitoring/alerts_test.yaml");
    let page = read("docs/monitoring.md");
    let rules = read("docs/monitoring/alerts.yaml");
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} is not tested");
        assert!(page.contains(&format!("`{alert}`")), "{alert} is not described");
    }
}

/// A role that the page creates sees what the dashboard shows, and a shard whose schema is gone is an alert.
#[test]
fn prometheus_watches_a_server() {
    if run("prometheus", &["--version"]).is_none() {
        return;
    }
    let cluster = Cluster::start("watched");
    let mut client = cluster.connect();
    for example in blocks("docs/monitoring.md", "sql") {
        client.batch_execute(&example).unwrap();
    }
    client
        .batch_execute(
            "SELECT insta_ids.init(10);
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id())')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
    client.batch_execute("INSERT INTO insta5.photos DEFAULT VALUES; DROP SCHEMA insta6 CASCADE").unwrap();
    let results = cluster.socket.with_extension("prometheus");
    fs::create_dir_all(&results).unwrap();
    let [socket, directory] = [&cluster.socket, &results].map(|path| path.to_str().unwrap().to_owned());
    let output = run("/usr/bin/python3", &["tests/monitoring/watch.py", &socket, &directory]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    fs::remove_dir_all(results).unwrap();
}

/// A member of `pg_monitor` reads all views, and need not administer shards for that.
#[test]
fn pg_monitor_reads_all_views() {
    let cluster = Cluster::start("monitors");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(10); SELECT insta_ids.create_shard(5); CREATE ROLE monitor IN ROLE pg_monitor;
             SET ROLE monitor",
        )
        .unwrap();
    let views = client
        .query(
            "SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.relkind = 'v' AND c.relnamespace = 'insta_ids'::regnamespace",
            &[],
        )
        .unwrap();
    assert!(!views.is_empty());
    for view in views.iter().map(|row| row.get::<_, String>(0)) {
        client.batch_execute(&format!("SELECT * FROM {view}")).unwrap();
    }
    client.batch_execute("SELECT * FROM insta_ids.clock(), insta_ids.version()").unwrap();
}
