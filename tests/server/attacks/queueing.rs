//! A role that may only connect holds nobody up.

use std::thread;
use std::time::Duration;

use support::{Cluster, count, refused, texts, within};

/// CREATE RULE waits for its lock before PostgreSQL checks whether the role owns the view. Behind it, everybody waits who reads the
/// view.
#[test]
fn a_lock_on_a_view_of_users_stops_no_function() {
    let cluster = Cluster::start("queued");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE guest LOGIN; CREATE ROLE deployer; GRANT CREATE ON DATABASE postgres TO deployer;
             SELECT insta_ids.grant_provisioning('deployer'), insta_ids.init(10);
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id())');
             SELECT insta_ids.create_shard(1)",
        )
        .unwrap();
    let views = texts(
        &mut client,
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace AND relkind = 'v'",
    );
    assert!(views.len() >= 9, "{views:?}");
    let mut reading = cluster.connect();
    reading.batch_execute("BEGIN").unwrap();
    for view in &views {
        reading.batch_execute(&format!("LOCK TABLE {view} IN ACCESS SHARE MODE")).unwrap();
    }
    // Nor does a role lock the type of what check() returns.
    client.batch_execute("SET ROLE guest").unwrap();
    let of_type = "CREATE TEMPORARY TABLE findings OF insta_ids.finding";
    assert_eq!(refused(&mut client, of_type).code().code(), "42501");
    client.batch_execute("RESET ROLE").unwrap();
    thread::scope(|scope| {
        let rules: Vec<_> = views
            .iter()
            .map(|view| {
                let mut guest = cluster.connect();
                scope.spawn(move || {
                    guest.batch_execute("SET ROLE guest; SET statement_timeout = '30s'").unwrap();
                    let _ = guest
                        .batch_execute(&format!("CREATE RULE r AS ON INSERT TO {view} DO INSTEAD NOTHING"));
                })
            })
            .collect();
        let waiting = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted";
        within(Duration::from_secs(20), || count(&mut client, waiting) >= 8);
        for (role, call) in [
            (
                "guest",
                "SELECT insta_ids.shard_of(5::bigint), insta_ids.schema_of(5), insta_ids.shard_map(), insta_ids.version()",
            ),
            ("postgres", "INSERT INTO insta1.photos DEFAULT VALUES"),
            ("postgres", "SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD n int')"),
            ("postgres", "CALL insta_ids.migrate()"),
            ("postgres", "SELECT insta_ids.create_shard(2), insta_ids.fence(2), insta_ids.unfence(2)"),
            ("postgres", "CALL insta_ids.create_shards(3, 4)"),
            ("postgres", "SELECT * FROM insta_ids.check()"),
            ("postgres", "CALL insta_ids.check_rows()"),
            ("postgres", "SELECT insta_ids.drop_shard(3), insta_ids.clone_shard(4, 5)"),
            ("postgres", "SELECT insta_ids.add_node('a', 'host=a'), insta_ids.assign(0, 9, 'a')"),
        ] {
            let mut other = cluster.connect();
            other.batch_execute(&format!("SET ROLE {role}; SET statement_timeout = '10s'")).unwrap();
            other.batch_execute(call).unwrap_or_else(|error| panic!("{call}: {error:?}"));
        }
        reading.batch_execute("ROLLBACK").unwrap();
        for rule in rules {
            rule.join().unwrap();
        }
    });
}
