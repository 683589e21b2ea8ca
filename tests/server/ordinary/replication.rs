//! Logical replication of tables of ids, and of the extension's own tables.

use super::{MINT, MORE, PHOTOS, make_shards, sound};
use postgres::Client;
use postgres::error::SqlState;
use std::time::Duration;
use support::shards::add;
use support::{Cluster, blocks, clock_ahead, count, duplicates, ids, refused, texts, within};

/// A server with logical replication, whose clock is behind by so many seconds.
fn replicating(name: &str, behind: i32) -> Cluster {
    let settings = [
        "make",
        "wal_level = logical",
        // So that tables that cannot be copied keep none waiting that can, and DROP SUBSCRIPTION gets through.
        "max_wal_senders = 40",
        "max_replication_slots = 40",
        "max_worker_processes = 40",
        "max_logical_replication_workers = 30",
        "max_sync_workers_per_subscription = 8",
    ];
    let mut cluster = Cluster::made(name, &settings);
    if behind > 0 {
        cluster.environment = clock_ahead(-behind);
    }
    cluster.up();
    cluster
}

fn subscribe(
    client: &mut Client,
    publisher: &Cluster,
    subscription: &str,
    publication: &str,
) -> Result<(), postgres::Error> {
    client.batch_execute(&format!(
        "CREATE SUBSCRIPTION {subscription} CONNECTION 'host={} user=postgres dbname=postgres' PUBLICATION {publication}",
        publisher.socket.display()
    ))
}

/// Rows of a subscription come with their ids, to tables with the default and without. When writers go over to the subscriber,
/// no id comes again, though its clock is behind.
#[test]
fn replicated_rows_keep_their_ids() {
    let publisher = replicating("publisher", 0);
    let subscriber = replicating("subscriber", 600);
    let mut source = publisher.connect();
    source.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    source.batch_execute(PHOTOS).unwrap();
    source.batch_execute(MORE).unwrap();
    source.batch_execute("CREATE PUBLICATION photos FOR TABLE photos").unwrap();
    subscriber.connect().batch_execute("CREATE DATABASE bare").unwrap();
    let (mut alike, mut bare) = (subscriber.connect(), subscriber.connect_to("bare"));
    alike.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    alike.batch_execute(PHOTOS).unwrap();
    bare.batch_execute("CREATE TABLE photos (id bigint PRIMARY KEY, n int)").unwrap();
    subscribe(&mut alike, &publisher, "alike", "photos").unwrap();
    subscribe(&mut bare, &publisher, "bare", "photos").unwrap();
    source.batch_execute(MORE).unwrap();
    source
        .batch_execute(
            "UPDATE photos SET n = -n WHERE n % 10 = 0; DELETE FROM photos WHERE n % 10 = 1;
             UPDATE photos SET id = DEFAULT WHERE n % 10 = 2",
        )
        .unwrap();
    let rows = "SELECT concat_ws(' ', id, n) FROM photos ORDER BY id";
    let expected = texts(&mut source, rows);
    for client in [&mut alike, &mut bare] {
        within(Duration::from_mins(1), || texts(client, rows) == expected);
    }
    // The default was not called for them.
    assert_eq!(count(&mut alike, "SELECT count(*) FROM s WHERE is_called"), 0);
    let arrived = sound(&mut alike);
    // The time that the rows have reached did not come with them.
    assert!(ids(&mut alike, MINT)[999] < arrived[0]);

    alike.batch_execute("DROP SUBSCRIPTION alike").unwrap();
    bare.batch_execute("DROP SUBSCRIPTION bare").unwrap();
    for client in [&mut alike, &mut bare] {
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS insta_ids").unwrap();
        client.batch_execute(&blocks("docs/operations.md", "sql")[0]).unwrap();
    }
    bare.batch_execute("CREATE SEQUENCE s; ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 's')").unwrap();
    let insert = format!("{MORE} RETURNING id");
    let minted = |client: &mut Client| {
        client.query(&insert, &[]).unwrap().iter().map(|row| row.get(0)).collect::<Vec<i64>>()
    };
    let before = [minted(&mut alike), minted(&mut bare)];
    subscriber.stop_immediately();
    subscriber.up();
    for (database, before) in ["postgres", "bare"].iter().zip(before) {
        let after = minted(&mut subscriber.connect_to(database));
        assert_eq!(duplicates([&arrived, &before, &after]), 0, "{database}");
        assert!(arrived.last() < before.first() && before.last() < after.first(), "{database}");
    }
    sound(&mut subscriber.connect());
}

/// The map and all other tables of the extension can be changed as ever, and subscribers get shards and fences. Publications
/// of schemas have what is asked for.
#[test]
fn a_publication_of_all_tables_has_the_extensions_tables() {
    let publisher = replicating("publisher", 0);
    let subscriber = replicating("subscriber", 0);
    let mut source = publisher.connect();
    source.batch_execute("CREATE EXTENSION insta_ids; CREATE PUBLICATION everything FOR ALL TABLES").unwrap();
    make_shards(&mut source);
    source.batch_execute("CREATE PUBLICATION one FOR TABLES IN SCHEMA insta1").unwrap();
    let schemas = |client: &mut Client, publication: &str| {
        texts(
            client,
            &format!(
                "SELECT DISTINCT schemaname::text FROM pg_publication_tables WHERE pubname = '{publication}' ORDER BY 1"
            ),
        )
    };
    assert_eq!(
        schemas(&mut source, "everything"),
        ["insta0", "insta1", "insta2", "insta3", "insta_ids_internal"]
    );
    assert_eq!(schemas(&mut source, "one"), ["insta1"]);
    for database in ["bare", "all_of_it", "own"] {
        subscriber.connect().batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
    }
    let [mut bare, mut all, mut own] =
        ["bare", "all_of_it", "own"].map(|database| subscriber.connect_to(database));
    // Where the extension is not, neither are its tables.
    bare.batch_execute("CREATE SCHEMA insta1; CREATE TABLE insta1.photos (id bigint PRIMARY KEY, n int)")
        .unwrap();
    let error = subscribe(&mut bare, &publisher, "everything", "everything").unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_SCHEMA_NAME));
    subscribe(&mut bare, &publisher, "one", "one").unwrap();
    within(Duration::from_mins(1), || count(&mut bare, "SELECT count(*) FROM insta1.photos") == 100);
    // Where it is, and nothing is set up, shards arrive; and fences, as soon as somebody connects.
    let dump = publisher
        .program("pg_dump", "postgres")
        .args(["--schema-only", "--no-publications", "postgres"])
        .output()
        .unwrap();
    let file = subscriber.socket.join("schema.sql");
    std::fs::write(&file, dump.stdout).unwrap();
    let made = subscriber
        .program("psql", "postgres")
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-d", "all_of_it", "-f"])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    subscribe(&mut all, &publisher, "all_of_it", "everything").unwrap();
    let state = "SELECT concat_ws(' ', s.schema, s.node, s.state, s.applied, m.version)
                 FROM insta_ids.shards s, insta_ids_internal.map m ORDER BY s.shard";
    source.batch_execute("SELECT insta_ids.fence(1), insta_ids.assign(8, 8, 'b')").unwrap();
    let expected = texts(&mut source, state);
    assert!(expected[1].starts_with("insta1 a fenced 1"), "{expected:?}");
    within(Duration::from_mins(1), || texts(&mut all, state) == expected);
    let mut all = subscriber.connect_to("all_of_it");
    assert_eq!(
        refused(&mut all, "INSERT INTO insta1.photos DEFAULT VALUES").code(),
        &SqlState::READ_ONLY_SQL_TRANSACTION
    );
    all.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    // Where shards are set up, their configuration is in the way of what would arrive. A column of the subscriber's
    // own is filled by its own default.
    own.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    own.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(&mut own, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)");
    own.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    own.batch_execute(
        "CREATE SEQUENCE own; ALTER TABLE insta1.photos ADD own bigint DEFAULT next_id(6, 'own')",
    )
    .unwrap();
    subscribe(&mut own, &publisher, "own", "everything").unwrap();
    subscriber.await_log("duplicate key value violates unique constraint \"config_once\"");
    let filled = "SELECT count(DISTINCT own) FROM insta1.photos WHERE id_shard(own) = 6 AND id_shard(id) = 1";
    within(Duration::from_mins(1), || count(&mut own, filled) == 100);
    for (client, subscription) in [(&mut bare, "one"), (&mut all, "all_of_it"), (&mut own, "own")] {
        client.batch_execute(&format!("DROP SUBSCRIPTION {subscription}")).unwrap();
    }
}
