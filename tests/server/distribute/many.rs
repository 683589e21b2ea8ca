//! Many shards, and a full disk.

use support::fault::SmallDisk;
use support::{Cluster, count, refused};

use super::{REGISTERED, Rows, tables};

/// With 2000 shards, the server must have locks for all of them, and says so before it starts.
#[test]
fn rows_go_to_two_thousand_shards() {
    let cluster = Cluster::with("distribute_many", &["fsync = off", "max_locks_per_transaction = 40"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(2000)").unwrap();
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0001', 'CREATE TABLE t (id bigint PRIMARY KEY DEFAULT next_id(), n int)',
                 ids_since => '2011-08-25')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 1999)").unwrap();
    client
        .batch_execute(
            "CREATE TABLE t (id bigserial PRIMARY KEY, n int); INSERT INTO t (n) SELECT generate_series(1, 20000);
             SELECT insta_ids.distribute_table('t', 'id')",
        )
        .unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(error.code().code(), "53400");
    let hint = error.hint().unwrap();
    let needed = hint.split(' ').nth(3).unwrap();
    client.batch_execute(&format!("ALTER SYSTEM SET max_locks_per_transaction = {needed}")).unwrap();
    cluster.stop();
    cluster.up();
    let mut client = cluster.connect();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("UPDATE t SET n = 0").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch(views => true)").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM t WHERE n = 0"), 20_000);
    client.batch_execute("UPDATE insta7.t SET n = 7").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM t WHERE n = 7"), 10);
}

/// A batch that finds no room is rolled back, and the call goes on when there is room.
#[test]
fn a_call_goes_on_when_a_full_disk_has_room_again() {
    let cluster = tables("distribute_full");
    let Some(disk) = SmallDisk::of(&cluster, "512k") else { return };
    let mut client = cluster.connect();
    let space = format!("CREATE TABLESPACE small LOCATION '{}'", disk.directory().display());
    client.batch_execute(&space).unwrap();
    for table in ["photos", "likes"] {
        client.batch_execute(&format!("ALTER TABLE insta3.{table} SET TABLESPACE small")).unwrap();
    }
    client.batch_execute("UPDATE photos SET title = (SELECT string_agg(md5(id || ' ' || n), '') FROM generate_series(1, 80) n)").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute(batch => 500)");
    assert_eq!(error.code().code(), "53100", "{error:?}");
    client.batch_execute("DELETE FROM photos WHERE id % 3 = 0").unwrap();
    disk.grow("64m");
    client.batch_execute("CALL insta_ids.distribute(batch => 500)").unwrap();
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
}
