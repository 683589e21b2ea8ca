//! Keys have shards.

use postgres::Client;
use postgres::error::SqlState;
use support::Chance;
use support::shards::set_up;
use support::{refused, texts};

/// The shard of a key is its remainder, that of a negative key too. Texts and uuids have shards as well.
#[test]
fn every_key_has_a_shard() {
    let (_cluster, mut client) = set_up("keys", 2000);
    let mut chance = Chance::from_seed(1);
    let (mut keys, mut numbers) = (
        vec![i64::MIN, i64::MIN, i64::MAX, i64::MAX, 0, -1, -1],
        vec![1, i32::MAX, 1, i32::MAX, 7, 1, i32::MAX],
    );
    for _ in 0..20_000 {
        let key = chance.next().cast_signed() >> chance.below(64);
        let number = i32::try_from(chance.below(1 << 31) >> chance.below(31)).unwrap().max(1);
        keys.push(key);
        numbers.push(number);
    }
    let rows = client
        .query(
            "SELECT insta_ids.shard_of(key, n), insta_ids.shard_of(key),
                    insta_ids.shard_of_text(key::text, n) = insta_ids.shard_of(hashtextextended(key::text, 0), n),
                    insta_ids.shard_of_uuid(md5(key::text)::uuid, n) = insta_ids.shard_of(uuid_hash_extended(md5(key::text)::uuid, 0), n)
             FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY k (key, n, place) ORDER BY place",
            &[&keys, &numbers],
        )
        .unwrap();
    for ((row, &key), &number) in rows.iter().zip(&keys).zip(&numbers) {
        let of = |shards: i32| i32::try_from(key.rem_euclid(shards.into())).unwrap();
        assert_eq!((row.get(0), row.get(1)), (of(number), of(2000)), "{key} of {number}");
        assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3), "{key}");
    }
    assert_eq!(rows.len(), keys.len());
    are_indexed(&mut client);
}

/// With the number of shards in the call, they can be indexed and partitioned by.
fn are_indexed(client: &mut Client) {
    client
        .batch_execute(
            "CREATE TABLE users (id bigint, name text COLLATE \"POSIX\", code uuid);
             INSERT INTO users SELECT n, n::text, md5(n::text)::uuid FROM generate_series(1, 20000) n;
             CREATE INDEX ON users (insta_ids.shard_of(id, 2000));
             CREATE INDEX ON users (insta_ids.shard_of_text(name, 2000));
             CREATE INDEX ON users (insta_ids.shard_of_uuid(code, 2000));
             CREATE TABLE parts (id bigint) PARTITION BY LIST (insta_ids.shard_of(id, 4));
             CREATE TABLE part PARTITION OF parts FOR VALUES IN (1, 2);
             INSERT INTO parts VALUES (5), (-2);
             ANALYZE users",
        )
        .unwrap();
    for (function, key) in [("shard_of", "id"), ("shard_of_text", "name"), ("shard_of_uuid", "code")] {
        let plan = texts(
            client,
            &format!("EXPLAIN SELECT * FROM users WHERE insta_ids.{function}({key}, 2000) = 1341"),
        );
        assert!(
            plan.iter().any(|line| line.contains(&format!("Index Scan on users_{function}_idx"))),
            "{plan:?}"
        );
    }
    // That of one argument may change with the configuration of another database.
    let error = refused(client, "CREATE INDEX ON users (insta_ids.shard_of(id))");
    assert_eq!(error.code(), &SqlState::INVALID_OBJECT_DEFINITION);
}
