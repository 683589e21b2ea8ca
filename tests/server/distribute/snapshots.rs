//! A transaction whose snapshot is older than the switch does not see all rows of the shards, so it may not write them.

use postgres::Client;
use postgres::error::SqlState;
use support::{Cluster, refused};

use super::{REGISTERED, tables};
use crate::moves::FENCED;

/// A row that is not in the shards before the switch.
const LATE: &str = "INSERT INTO users (id, email) VALUES (1003, 'late')";

fn begin(cluster: &Cluster, level: &str) -> Client {
    let mut client = cluster.connect();
    client
        .batch_execute(&format!("SET lock_timeout = '5s'; BEGIN ISOLATION LEVEL {level}; SELECT 1"))
        .unwrap();
    client
}

#[test]
fn an_old_snapshot_does_not_write_after_the_switch() {
    for switch in ["", "views => true", "way_back => false"] {
        let cluster = tables("distribute_snapshot");
        let mut client = cluster.connect();
        client.batch_execute(REGISTERED).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
        client.batch_execute(LATE).unwrap();
        let mut old = ["REPEATABLE READ", "SERIALIZABLE"].map(|level| begin(&cluster, level));
        let mut committed = begin(&cluster, "READ COMMITTED");
        client.batch_execute(&format!("SELECT insta_ids.distribute_switch({switch})")).unwrap();

        let write = |table| format!("UPDATE {table} SET bio = 'x' WHERE id = 1003");
        for client in &mut old {
            for (table, code) in [("users", FENCED), ("insta3.users", &SqlState::T_R_SERIALIZATION_FAILURE)] {
                client.batch_execute("SAVEPOINT before").unwrap();
                assert_eq!(refused(client, &write(table)).code(), code, "{table}, {switch}");
                client.batch_execute("ROLLBACK TO before").unwrap();
            }
        }
        drop(old);
        assert_eq!(committed.execute(&write("insta3.users"), &[]).unwrap(), 1, "{switch}");
        committed.batch_execute("COMMIT").unwrap();
        // So is a statement for which no row is there, as the row may be in a shard.
        for write in [
            "UPDATE users SET bio = 'x' WHERE false",
            "DELETE FROM users WHERE false",
            "INSERT INTO users SELECT FROM users WHERE false",
        ] {
            assert_eq!(refused(&mut client, write).code(), FENCED, "{write}, {switch}");
        }
        if switch != "way_back => false" {
            client
                .batch_execute(
                    "SELECT insta_ids.distribute_abort(); UPDATE users SET bio = 'y' WHERE id = 1003",
                )
                .unwrap();
        }
    }
}

/// It would hold its locks and never learn of the switch, so the switch waits for it, at most for `lock_timeout`.
#[test]
fn the_switch_waits_for_those_who_have_written_to_a_shard() {
    let cluster = tables("distribute_written");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    let mut writer = begin(&cluster, "REPEATABLE READ");
    writer
        .batch_execute("PREPARE write AS UPDATE insta3.users SET bio = 'x' WHERE false; EXECUTE write")
        .unwrap();
    let switch = "SELECT insta_ids.distribute_switch(lock_timeout => '300ms')";
    assert_eq!(refused(&mut client, switch).code(), &SqlState::LOCK_NOT_AVAILABLE);
    writer.batch_execute("COMMIT").unwrap();
    client.batch_execute(switch).unwrap();
}
