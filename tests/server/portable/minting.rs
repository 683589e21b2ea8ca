//! An id is the published function's, and comes once.

use std::fs;
use std::thread;

use support::{checkout, count, disorders, duplicates, ids, texts};

use super::{install, plain};
use crate::uniqueness::mint;

fn next_ids(shard: usize, count: u32) -> String {
    format!("SELECT ids.next_id({shard}, 's') FROM generate_series(1, {count})")
}

/// The clock, the shard and the sequence's value, as the published function puts them together.
#[test]
fn an_id_is_the_published_functions() {
    let (_cluster, mut client) = plain("portable_oracle", "START 1000000000000");
    client
        .batch_execute(
            "DO $$
             DECLARE
                 before bigint;
                 id bigint;
                 after bigint;
             BEGIN
                 FOR shard IN 0..8191 LOOP
                     before := floor(extract(epoch FROM clock_timestamp()) * 1000);
                     id := ids.next_id(shard, 's');
                     after := floor(extract(epoch FROM clock_timestamp()) * 1000);
                     ASSERT id & 1023 = currval('s') % 1024;
                     ASSERT id >> 10 & 8191 = shard;
                     ASSERT (id >> 23) + 1314220021721 BETWEEN before AND after;
                     ASSERT (SELECT last_value FROM s_newest) = id;
                 END LOOP;
             END
             $$",
        )
        .unwrap();
    assert_eq!(count(&mut client, "SELECT lastval() - currval('s')"), 0);
}

/// Sessions mint from one sequence at once.
#[test]
fn sessions_share_no_id() {
    let (cluster, _client) = plain("portable_plain", "");
    mint(&cluster, 3, |_| next_ids(5, 20_000), "");
}

/// Sessions have values of their own in stock.
#[test]
fn cached_values_repeat_no_id() {
    let (cluster, _client) = plain("portable_cached", "CACHE 50");
    mint(&cluster, 1, |_| next_ids(5, 300), "");
}

/// Values come back, and ids do not.
#[test]
fn a_sequence_that_is_set_back_repeats_no_id() {
    let (cluster, mut client) = plain("portable_setval", "");
    client
        .batch_execute(
            "CREATE TABLE t (id bigint DEFAULT ids.next_id(5, 's')); ALTER SEQUENCE s OWNED BY t.id",
        )
        .unwrap();
    mint(&cluster, 10, |_| next_ids(5, 500), "SELECT setval('s', 1); TRUNCATE t RESTART IDENTITY");
}

/// Values come round at once, descend, or all have one residue; two shards share a sequence.
#[test]
fn other_sequences_repeat_no_id() {
    for (name, sequence, each) in [
        ("portable_cycle", "MAXVALUE 100 CYCLE", 2000),
        ("portable_descending", "INCREMENT -1 MINVALUE 0 MAXVALUE 1000000 START 1000000", 200),
        ("portable_residue", "INCREMENT 1024", 200),
    ] {
        let (cluster, _client) = plain(name, sequence);
        mint(&cluster, 1, |_| next_ids(5, each), "");
    }
    let (cluster, _client) = plain("portable_shards", "");
    mint(&cluster, 1, |session| next_ids(session % 2, 300), "");
}

/// How often ids come twice where two values are all that a sequence has, with a part of `next_id` replaced.
fn repeated(name: &str, part: &str, by: &str) -> usize {
    let (cluster, mut client) = plain(name, "MAXVALUE 2 CYCLE");
    let sql = fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    assert_eq!(sql.matches(part).count(), 1, "{part}");
    client.batch_execute("DROP SCHEMA ids CASCADE; CREATE SCHEMA ids").unwrap();
    client.batch_execute(&format!("SET search_path = ids; {}", sql.replace(part, by))).unwrap();
    let sessions: Vec<Vec<i64>> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..8)
            .map(|_| {
                let mut client = cluster.connect();
                scope.spawn(move || {
                    ids(&mut client, "SELECT ids.next_id(5, 'public.s') FROM generate_series(1, 1000)")
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    duplicates(&sessions)
}

/// The test above would find each part missing.
#[test]
fn each_part_of_next_id_is_needed() {
    let lock = "WHILE NOT pg_try_advisory_xact_lock(1768190720, seq_name::oid::integer) LOOP";
    assert_eq!(repeated("portable_whole", lock, lock), 0);
    assert!(repeated("portable_unlocked", lock, "WHILE false LOOP") > 0);
    assert!(repeated("portable_unordered", "EXIT WHEN id > last;", "EXIT;") > 0);
    assert!(repeated("portable_forgetful", "id := setval(newest, id);", "") > 0);
}

/// In any transaction, statement and isolation level, and after a rollback.
#[test]
fn ids_are_minted_wherever_values_are() {
    let (_cluster, mut client) = plain("portable_wherever", "");
    client
        .batch_execute(
            "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT ids.next_id(5, 's'), n int);
             CREATE FUNCTION copied() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN INSERT INTO photos SELECT WHERE new.n = 1; RETURN NULL; END';
             CREATE TRIGGER copied AFTER INSERT ON photos FOR EACH ROW EXECUTE FUNCTION copied()",
        )
        .unwrap();
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL SERIALIZABLE;
             INSERT INTO photos (n) SELECT n FROM generate_series(1, 1000) n;
             SAVEPOINT a; INSERT INTO photos (n) VALUES (2); ROLLBACK TO a;
             INSERT INTO photos (n) VALUES (1);
             COMMIT;
             BEGIN; INSERT INTO photos (n) VALUES (1); ROLLBACK",
        )
        .unwrap();
    client
        .batch_execute(
            "DO 'BEGIN INSERT INTO photos (n) VALUES (3); COMMIT; INSERT INTO photos (n) VALUES (3); END'",
        )
        .unwrap();
    client
        .batch_execute("PREPARE p AS INSERT INTO photos (n) VALUES ($1); EXECUTE p (4); EXECUTE p (5)")
        .unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM photos"), 1000 + 1 + 2 + 2 + 2);
    let in_order = ids(&mut client, "SELECT id FROM photos WHERE n BETWEEN 6 AND 1000 ORDER BY n");
    assert_eq!(disorders(&in_order), 0);
}

/// A dump has the newest id.
#[test]
fn a_restored_database_goes_on() {
    let (cluster, mut client) = plain("portable_dump", "");
    client.batch_execute("CREATE DATABASE other").unwrap();
    client.batch_execute("SELECT ids.next_id(5, 's')").unwrap();
    cluster.restore("postgres", "postgres", "other");
    let newest = "SELECT last_value FROM s_newest";
    let mut other = cluster.connect_to("other");
    assert_eq!(count(&mut client, newest), count(&mut other, newest));
    assert!(count(&mut other, "SELECT ids.next_id(5, 's')") > count(&mut client, newest));
}

/// Sequences whose names need quotes, in schemas whose names do.
#[test]
fn any_name_is_a_name() {
    let (cluster, mut client) = plain("portable_names", "");
    let longest = "é".repeat(28);
    for name in
        ["S", "a\"b", "a'b", "a; DROP TABLE t", "a\\b", "select", "ids.s", "$1", "%s", "\u{feff}", &longest]
    {
        let quoted = name.replace('"', "\"\"");
        client
            .batch_execute(&format!("CREATE SCHEMA \"{quoted}\"; CREATE SEQUENCE \"{quoted}\".\"{quoted}\""))
            .unwrap();
        let sequence = format!("\"{quoted}\".\"{quoted}\"");
        client.execute("SELECT ids.guard_sequence($1::text::regclass)", &[&sequence]).unwrap();
        let minted = client.query_one("SELECT ids.next_id(5, $1::text::regclass)", &[&sequence]).unwrap();
        let newest = format!("SELECT last_value FROM \"{quoted}\".\"{quoted}_newest\"");
        assert_eq!(minted.get::<_, i64>(0), count(&mut client, &newest), "{name}");
    }
    // The schema is found by its OID, whatever is first in a path.
    client
        .batch_execute(
            "CREATE SCHEMA before; CREATE SEQUENCE before.s_newest; SET search_path = before, public;
             SELECT ids.next_id(5, 's')",
        )
        .unwrap();
    assert_eq!(texts(&mut client, "SELECT is_called::text FROM before.s_newest"), ["false"]);
    client.batch_execute("CREATE DATABASE second").unwrap();
    cluster.connect_to("second").batch_execute("CREATE SCHEMA \"Of ids\"").unwrap();
    install(&cluster, "second", "\"Of ids\"");
    cluster
        .connect_to("second")
        .batch_execute("CREATE SEQUENCE s; SELECT \"Of ids\".guard_sequence('s'), \"Of ids\".next_id(0, 's')")
        .unwrap();
}
