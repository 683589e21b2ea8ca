//! Shards with which nothing is wrong: nothing is found.

use super::{ALL_KINDS, check_clean, follow_hints, found, run};
use support::shards::add;
use support::{Cluster, count, texts};

/// Nothing is found in new shards, whatever prefix, layout and encoding a database has and whatever its tables are called.
#[test]
fn nothing_is_found_in_fresh_shards() {
    let cluster = Cluster::start("check_fresh");
    let mut client = cluster.connect();
    for (number, (prefix, layout, encoding)) in [
        // What ends like a schema is none.
        ("a", "instagram", "UTF8"),
        ("A b", "instagram", "UTF8"),
        ("it's \"q\" %I\\", "twitter", "UTF8"),
        ("a.b", "discord", "UTF8"),
        ("next_id", "js53", "UTF8"),
        ("1", "sonyflake", "UTF8"),
        ("é", "pgedge", "LATIN1"),
        ("x$", "time:41 seq:10 shard:12 epoch:1314220021721", "SQL_ASCII"),
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("fresh{number}");
        client
            .batch_execute(&format!(
                "CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
            ))
            .unwrap();
        let mut client = cluster.connect_to(&database);
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        let layout = layout.to_owned();
        let init = "SELECT insta_ids.init(13, $1::text::name, $2::text::id_layout)";
        client.execute(init, &[&prefix, &layout]).unwrap();
        add(&mut client, "0001", &format!("{ALL_KINDS}; {HOSTILE}"));
        client.batch_execute("CALL insta_ids.create_shards(0, 12)").unwrap();
        client
            .execute(
                "SELECT insta_ids.create_partitions(format('%I.days', insta_ids.schema_of(s))::regclass, '1 month',
                     '2026-01-01', '2026-06-01', 'UTC', $1::text::id_layout) FROM generate_series(0, 2) s",
                &[&layout],
            )
            .unwrap();
        for shard in [1, 7] {
            let schema =
                texts(&mut client, &format!("SELECT quote_ident(insta_ids.schema_of({shard}))")).remove(0);
            client
                .batch_execute(&format!(
                    "INSERT INTO {schema}.\"Quo\"\"ted %I\" DEFAULT VALUES; INSERT INTO {schema}.parent DEFAULT VALUES"
                ))
                .unwrap();
        }
        check_clean(&mut client);
        client.batch_execute("CALL insta_ids.check_rows()").unwrap();
        // And what is wrong can be mended there, too.
        let [one, another] = [3, 4].map(|shard| {
            texts(&mut client, &format!("SELECT quote_ident(insta_ids.schema_of({shard}))")).remove(0)
        });
        client
            .batch_execute(&format!(
                "ALTER TABLE {one}.parent ALTER id SET DEFAULT {another}.next_id('{}.likes_id_seq');
                 ALTER TABLE {one}.photos DROP COLUMN caption CASCADE",
                another.replace('\'', "''")
            ))
            .unwrap();
        assert!(found(&mut client).len() > 4, "{prefix}");
        follow_hints(&mut client, prefix);
    }
}

pub(crate) const HOSTILE: &str = r#"
    CREATE TABLE "Quo""ted %I" (
        "Id\" bigint PRIMARY KEY DEFAULT next_id(), "x y" text DEFAULT 'xa1.b, %s' CHECK ("x y" <> 'xa1.b'));
    CREATE FUNCTION "F ()"(photos) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN RETURN 'xa1.y'; END $f$;
    CREATE TABLE days (id bigint NOT NULL DEFAULT next_id(), PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE parent (id bigint PRIMARY KEY DEFAULT next_id());
    CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)"#;

/// `check()` finds nothing in 500 shards of 4 tables, and its memory does not grow. `make bench` does it over 2000.
#[test]
fn checking_500_shards_takes_bounded_memory() {
    let cluster = Cluster::with("check_many", &["max_locks_per_transaction = 512", "fsync = off"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(2000)").unwrap();
    add(
        &mut client,
        "0001",
        "CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), name text UNIQUE);
         CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), owner bigint NOT NULL REFERENCES users);
         CREATE INDEX ON photos (owner);
         CREATE SEQUENCE likes_id_seq;
         CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id('likes_id_seq'), photo bigint REFERENCES photos);
         CREATE TABLE tags (id bigint PRIMARY KEY DEFAULT next_id(), photo bigint, tag text);
         CREATE INDEX ON users (name, id); CREATE INDEX ON photos (owner, id); CREATE INDEX ON likes (photo);
         CREATE INDEX ON tags (photo)",
    );
    run(&mut client, &["CALL insta_ids.create_shards(0, 499)", "ANALYZE"]);
    let mut client = cluster.connect();
    let memory = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts";
    // What is cached of the catalog is given back from 32 MB on; else it is 40 MB after 4 to 12 calls. Each call reads ids of
    // other shards, so it is chance which call needs the next block of 8 MB.
    for call in 1..=16 {
        check_clean(&mut client);
        let used = count(&mut client, memory);
        assert!(used < 40 << 20, "{used} bytes after call {call}");
    }

    client
        .batch_execute(
            "ALTER TABLE insta7.tags DROP COLUMN tag; DROP INDEX insta321.photos_owner_idx;
             ALTER TABLE insta499.likes ALTER id SET DEFAULT insta498.next_id()",
        )
        .unwrap();
    let wrong = [
        "different_object insta499.likes.id",
        "foreign_default insta499.likes.id",
        "missing_object insta321.photos.photos_owner_idx",
        "missing_object insta7.tags.tag",
    ];
    assert_eq!(found(&mut client), wrong);
    follow_hints(&mut client, "many");
}
