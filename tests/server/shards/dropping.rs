//! Shards are dropped.

use postgres::error::SqlState;
use support::shards::{PHOTOS, Running, add, check_complete, set_up};
use support::{count, duplicates, ids};

/// A shard that another session has dropped, made anew and filled meanwhile has rows, and stays.
#[test]
fn a_shard_made_anew_meanwhile_is_not_dropped() {
    let (cluster, mut client) = set_up("anew", 10);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("SELECT insta_ids.create_shard(5); SELECT insta_ids.fence(5)").unwrap();
    client
        .batch_execute(
            "BEGIN; SELECT insta_ids.drop_shard(5); SELECT insta_ids.create_shard(5);
             INSERT INTO insta5.photos DEFAULT VALUES",
        )
        .unwrap();
    let dropping = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    dropping.await_waiting(&mut cluster.connect());
    client.batch_execute("COMMIT").unwrap();
    let error = dropping.end().unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "shard 5 is not empty");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.photos"), 1);
}

/// This holds for tables that were made meanwhile too.
#[test]
fn no_row_is_inserted_between_the_look_and_the_drop() {
    let (cluster, mut client) = set_up("drop_shard", 10);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    let mut writer = cluster.connect();
    writer.batch_execute("BEGIN; INSERT INTO insta5.likes DEFAULT VALUES").unwrap();
    let drop = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    drop.await_waiting(&mut client);
    writer.batch_execute("COMMIT").unwrap();
    let error = drop.end().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error}");
    check_complete(&mut client, 1);
    let minted = ids(
        &mut client,
        "SELECT id FROM insta5.likes UNION ALL SELECT insta5.next_id('insta5.likes_id_seq')",
    );
    assert_eq!(duplicates([&minted]), 0);
    writer.batch_execute("TRUNCATE insta5.likes; BEGIN; CREATE TABLE insta5.more AS SELECT 1 AS a").unwrap();
    let drop = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    drop.await_waiting(&mut client);
    writer.batch_execute("COMMIT").unwrap();
    let error = drop.end().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error}");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.more"), 1);
}
