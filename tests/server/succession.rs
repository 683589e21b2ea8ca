//! Promise: a sequence, shard or clone that is created again repeats no id that its predecessor gave out.

use postgres::{Client, NoTls};
use std::time::Duration;
use support::shards::{PHOTOS, add};
use support::{Cluster, clock_ahead, count, duplicates, ids, within};

/// Makes, mints and drops several times, and checks that all ids differ.
fn repeat(client: &mut Client, make: &str, mint: &str, drop: &str) {
    let rounds: Vec<_> = (0..3)
        .map(|_| {
            client.batch_execute(make).unwrap();
            let minted = ids(client, mint);
            client.batch_execute(drop).unwrap();
            minted
        })
        .collect();
    assert_eq!(duplicates(&rounds), 0, "{make}; {mint}; {drop}");
}

/// The same of a sequence `s` of the schema `a`, in each of these layouts.
fn repeat_in(client: &mut Client, layouts: &[&str], make: &str, drop: &str) {
    for layout in layouts {
        let mint = format!("SELECT next_id(5, 'a.s', '{layout}') FROM generate_series(1, 20)");
        repeat(client, make, &mint, drop);
    }
}

const LONG: [&str; 3] =
    ["sonyflake", "time:36 shard:9 seq:8 epoch:0 unit:100ms", "time:34 shard:16 seq:8 epoch:0 unit:1s"];

/// Within a unit of time, with each way to drop the sequence, and each role that creates it again.
#[test]
fn a_sequence_that_is_created_again_repeats_no_id() {
    let cluster = Cluster::start("again");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA a; CREATE ROLE owner; GRANT CREATE ON SCHEMA a TO owner").unwrap();
    let table = "CREATE TABLE a.t (id bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME a.s), n int)";
    for (make, drop) in [
        ("CREATE SEQUENCE a.s", "DROP SEQUENCE a.s"),
        ("BEGIN; CREATE SEQUENCE a.s", "COMMIT; DROP SEQUENCE a.s"),
        ("CREATE SEQUENCE a.s", "BEGIN; DROP SEQUENCE a.s; ROLLBACK; DROP SEQUENCE a.s"),
        ("CREATE SEQUENCE a.s", "ALTER SEQUENCE a.s RENAME TO old; DROP SEQUENCE a.old"),
        (
            "SET ROLE owner; CREATE SEQUENCE a.s; RESET ROLE",
            "DROP OWNED BY owner CASCADE; GRANT CREATE ON SCHEMA a TO owner",
        ),
        (table, "DROP TABLE a.t"),
        (table, "ALTER TABLE a.t DROP id; DROP TABLE a.t"),
        (table, "ALTER TABLE a.t ALTER id DROP IDENTITY; DROP TABLE a.t"),
        ("CREATE SEQUENCE a.s", "DROP SCHEMA a CASCADE; CREATE SCHEMA a; GRANT CREATE ON SCHEMA a TO owner"),
    ] {
        repeat_in(&mut client, &LONG[1..2], make, drop);
    }
    repeat_in(&mut client, &LONG, "CREATE SEQUENCE a.s", "DROP SEQUENCE a.s");
    // Temporary sequences end with their session.
    for layout in LONG {
        let mint =
            format!("CREATE TEMP SEQUENCE s; SELECT next_id(5, 's', '{layout}') FROM generate_series(1, 20)");
        let (make, mint) = mint.split_once(';').unwrap();
        let rounds: Vec<_> = (0..3)
            .map(|_| {
                let mut session = cluster.connect();
                session.batch_execute(make).unwrap();
                let minted = ids(&mut session, mint);
                drop(session);
                within(Duration::from_mins(1), || {
                    count(
                        &mut client,
                        "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'S'",
                    ) == 0
                });
                minted
            })
            .collect();
        assert_eq!(duplicates(&rounds), 0, "{layout}");
    }
    // One session mints, another drops, and a third creates.
    client.batch_execute("CREATE SEQUENCE a.s").unwrap();
    let mint = format!("SELECT next_id(5, 'a.s', '{}')", LONG[1]);
    let first = ids(&mut client, &mint);
    cluster.connect().batch_execute("DROP SEQUENCE a.s").unwrap();
    cluster.connect().batch_execute("CREATE SEQUENCE a.s").unwrap();
    assert_ne!(ids(&mut client, &mint), first);
}

/// The time of ids stands still after a start, and while the clock is behind.
#[test]
fn nothing_that_is_created_again_repeats_an_id_while_the_clock_is_behind() {
    let mut cluster = Cluster::start("again_behind");
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE SCHEMA a; CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        .unwrap();
    client.batch_execute("SELECT insta_ids.grant_provisioning('app'); SELECT insta_ids.init(200)").unwrap();
    client.batch_execute("CREATE SEQUENCE first; SELECT next_id(5, 'first')").unwrap();
    for behind in [0, 600] {
        drop(client);
        cluster.stop();
        cluster.environment = clock_ahead(-behind);
        cluster.up();
        client = cluster.connect();
        repeat_in(&mut client, &["instagram", LONG[0], LONG[2]], "CREATE SEQUENCE a.s", "DROP SEQUENCE a.s");

        // Shards, by a role that is no superuser.
        let mut app = cluster.config().user("app").connect(NoTls).unwrap();
        if behind == 0 {
            add(&mut app, "0001", PHOTOS);
        }
        let insert = "INSERT INTO insta7.photos SELECT FROM generate_series(1, 100) RETURNING id";
        repeat(
            &mut app,
            "SELECT insta_ids.create_shard(7)",
            insert,
            "SELECT insta_ids.drop_shard(7, force => true)",
        );
        app.batch_execute("SELECT insta_ids.create_shard(7)").unwrap();
        ids(&mut app, "INSERT INTO insta7.photos SELECT FROM generate_series(1, 2000) RETURNING id");
        let clone = "SELECT insta_ids.clone_shard(7, 107), insta_ids.clone_shard(107, 108)";
        app.batch_execute(clone).unwrap();
        for shard in [7, 107, 108] {
            let insert = format!("INSERT INTO insta{shard}.photos SELECT FROM generate_series(1, 2000)");
            app.batch_execute(&insert).unwrap();
        }
        app.batch_execute(
            "SELECT insta_ids.drop_shard(s, force => true) FROM unnest('{7, 107, 108}'::int[]) s",
        )
        .unwrap();
    }
}

/// A schema that was restored before the shard's own was dropped.
#[test]
fn a_schema_that_becomes_a_shard_again_repeats_no_id() {
    let mut cluster = Cluster::start("again_adopted");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(200)").unwrap();
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("SELECT insta_ids.create_shard(7)").unwrap();
    client.batch_execute("SELECT insta7.next_id()").unwrap();
    drop(client);
    cluster.stop();
    cluster.environment = clock_ahead(-600);
    cluster.up();
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta7.next_id()").unwrap();
    let insert = "INSERT INTO insta7.photos SELECT FROM generate_series(1, 100) RETURNING id";
    let before = ids(&mut client, insert);
    client
        .batch_execute(
            "CREATE SCHEMA restored; CREATE SEQUENCE restored.table_id_seq;
             CREATE TABLE restored.photos (id bigint PRIMARY KEY, caption text);
             CREATE FUNCTION restored.next_id() RETURNS bigint LANGUAGE sql
                 RETURN next_id(7, 'restored.table_id_seq');
             ALTER TABLE restored.photos ALTER id SET DEFAULT restored.next_id();
             DROP SCHEMA insta7 CASCADE;
             SELECT insta_ids.replace_shard(7, 'restored')",
        )
        .unwrap();
    let after = ids(&mut client, insert);
    assert_eq!(duplicates([&before, &after]), 0);
}

/// Drops in a loop move the time of ids no further than ids were minted, and no drop of another sequence moves it.
#[test]
fn drops_do_not_move_the_time_of_ids() {
    let cluster = Cluster::start("drops");
    let mut client = cluster.connect();
    for (mint, times) in [("", 3000), ("PERFORM next_id(5, 's', 'sonyflake');", 300)] {
        client
            .batch_execute(&format!(
                "DO $$ BEGIN FOR n IN 1..{times} LOOP CREATE SEQUENCE s; {mint} DROP SEQUENCE s; END LOOP; END $$"
            ))
            .unwrap();
        client.batch_execute("CREATE SEQUENCE t").unwrap();
        let ahead = "SELECT (extract(epoch FROM id_time(id, 'sonyflake') - at) * 1000)::bigint
             FROM (SELECT next_id(5, 't', 'sonyflake') AS id, clock_timestamp() AS at OFFSET 0) m";
        let ahead = count(&mut client, ahead);
        assert!(ahead <= 20, "{ahead} ms ahead after {mint}");
        client.batch_execute("DROP SEQUENCE t").unwrap();
    }
}
