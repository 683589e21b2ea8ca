//! Promise: whatever else a database does with tables of ids, it does as with any others: no id comes twice, and what
//! hangs on ids stays right.

mod databases;
mod dropping;
mod event_triggers;
mod rebuilding;
mod replication;
mod statements;

use postgres::Client;
use support::shards::add;
use support::{count, duplicates, ids, texts};

/// A table of ids, with all that can hang on them.
pub(crate) const PHOTOS: &str = "
    CREATE SEQUENCE s;
    CREATE TABLE photos (
        id bigint PRIMARY KEY DEFAULT next_id(5, 's'),
        n int,
        shard int GENERATED ALWAYS AS (id_shard(id)) STORED,
        CHECK (id_shard(id) = 5)
    );
    CREATE INDEX photos_time ON photos (id_time(id));
    CREATE INDEX photos_seq ON photos (id_seq(id), n);
    CREATE STATISTICS photos_parts ON (id_time(id)), (id_shard(id)) FROM photos";

pub(crate) const MORE: &str = "INSERT INTO photos (n) SELECT n FROM generate_series(1, 1000) n";
pub(crate) const MINT: &str = "SELECT next_id(5, 's') FROM generate_series(1, 1000)";
pub(crate) const FINDINGS: &str =
    "SELECT concat_ws('|', severity, code, object, detail, hint) FROM insta_ids.check()";

pub(crate) const MIGRATION: &str =
    "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int); CREATE INDEX ON photos (n)";

/// Four shards with rows, and a map that has them here.
pub(crate) fn make_shards(client: &mut Client) {
    provision_shards(client);
    add_nodes(client);
}

/// Four shards with rows.
pub(crate) fn provision_shards(client: &mut Client) {
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(client, "0001", MIGRATION);
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client.batch_execute("INSERT INTO insta1.photos (n) SELECT n FROM generate_series(1, 100) n").unwrap();
}

/// A map of the shards of [`provision_shards`], which only a superuser may make.
pub(crate) fn add_nodes(client: &mut Client) {
    client
        .batch_execute(
            "SELECT insta_ids.add_node('a', 'host=/nowhere'), insta_ids.add_node('b', 'host=/elsewhere'),
                    insta_ids.assign(0, 8, 'a'), insta_ids.assign(9, 9, 'b')",
        )
        .unwrap();
}

/// That each index of `photos` leads to the rows that are there, and what hangs on the ids is right. Returns them.
pub(crate) fn sound(client: &mut Client) -> Vec<i64> {
    let minted = ids(client, "SELECT id FROM photos ORDER BY id");
    let wrong = "SELECT count(*) FROM photos WHERE shard IS DISTINCT FROM id_shard(id) OR id_shard(id) <> 5";
    assert_eq!((duplicates([&minted]), count(client, wrong)), (0, 0));
    client
        .batch_execute(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
        )
        .unwrap();
    for (index, condition) in [
        ("photos_pkey", "id > 0"),
        ("photos_time", "id_time(id) > '2011-08-24'"),
        ("photos_seq", "id_seq(id) >= 0"),
    ] {
        let found = format!("SELECT id FROM photos WHERE {condition}");
        let plan = texts(client, &format!("EXPLAIN (COSTS OFF) {found}"));
        assert!(plan[0].contains(index), "{plan:?}");
        let mut found = ids(client, &found);
        found.sort_unstable();
        assert!(found == minted, "{index} leads to {} of {} rows", found.len(), minted.len());
    }
    client
        .batch_execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")
        .unwrap();
    let broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT (indisvalid AND indisready)
                  UNION ALL SELECT conname::text FROM pg_constraint WHERE NOT convalidated";
    assert_eq!(texts(client, broken), [""; 0]);
    minted
}
