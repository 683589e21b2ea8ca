//! Statements, transactions, cursors and plans by which ids get into rows.

use super::{MORE, PHOTOS, sound};
use postgres::Client;
use postgres::error::SqlState;
use std::io::{Read, Write};
use support::{Cluster, clock_ahead, count, disorders, duplicates, ids, major, refused, texts};

/// The ids in the first column of what a statement returns.
pub(crate) fn returned(client: &mut Client, statement: &str) -> Vec<i64> {
    client.query(statement, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// By statements of all kinds. Returns ids that are in no table any more.
fn by_statements(client: &mut Client) -> Vec<i64> {
    let mut gone = Vec::new();
    returned(client, "INSERT INTO photos (n) VALUES (1), (2), (3) RETURNING id");
    returned(client, "INSERT INTO photos (id, n) VALUES (DEFAULT, 4), (DEFAULT, 5) RETURNING id");
    client.batch_execute(MORE).unwrap();
    let mut copied = client.copy_in("COPY photos (n) FROM STDIN").unwrap();
    copied.write_all("7\n".repeat(1000).as_bytes()).unwrap();
    assert_eq!(copied.finish().unwrap(), 1000);
    if major() >= 16 {
        let mut copied = client.copy_in("COPY photos (id, n) FROM STDIN (DEFAULT '-')").unwrap();
        copied.write_all("-\t8\n".repeat(1000).as_bytes()).unwrap();
        assert_eq!(copied.finish().unwrap(), 1000);
    }

    // A row that is there keeps its id; the one that was minted for it is nobody's.
    let visit = "INSERT INTO users (name) VALUES ('a'), ('b')
                 ON CONFLICT (name) DO UPDATE SET visits = users.visits + 1 RETURNING id";
    let came = returned(client, visit);
    assert_eq!(returned(client, visit), came);
    let renewed = returned(client, &visit.replace("visits = users.visits + 1", "id = excluded.id"));
    assert_eq!(duplicates([&came, &renewed]), 0);
    gone.extend(came);
    let merge = "MERGE INTO users USING (VALUES ('b'), ('c')) v (name) ON users.name = v.name
                 WHEN MATCHED THEN UPDATE SET visits = visits + 1
                 WHEN NOT MATCHED THEN INSERT (name) VALUES (v.name)";
    if major() < 17 {
        client.batch_execute(merge).unwrap();
    } else {
        let merged = returned(client, &format!("{merge} RETURNING id"));
        assert_eq!(merged, ids(client, "SELECT id FROM users WHERE name IN ('b', 'c') ORDER BY name"));
    }
    assert_eq!(
        texts(client, "SELECT concat_ws(' ', name, visits, id_shard(id)) FROM users ORDER BY name"),
        ["a 2 5", "b 3 5", "c 1 5"]
    );

    // New ids for rows that are there, which others refer to.
    let photo = returned(client, "SELECT id FROM photos WHERE n <= 5 ORDER BY n");
    client.execute("INSERT INTO likes (photo) SELECT unnest($1::bigint[])", &[&photo]).unwrap();
    let photo_now = returned(client, "UPDATE photos SET id = DEFAULT WHERE n <= 5 RETURNING id");
    assert_eq!(photo_now.len(), photo.len());
    let mut referred = returned(client, "SELECT photo FROM likes");
    referred.sort_unstable();
    assert_eq!(referred, photo_now);
    gone.extend(photo);
    let moved = returned(
        client,
        "WITH gone AS (DELETE FROM photos WHERE n = 6 RETURNING n),
              new AS (INSERT INTO photos (n) SELECT n FROM gone RETURNING id)
         INSERT INTO likes (photo) SELECT id FROM new RETURNING photo",
    );
    assert_eq!(moved, returned(client, "SELECT id FROM photos WHERE n = 6"));
    gone
}

/// Through partitions, views, triggers, rules and domains, into tables of each persistence.
fn through_relations(client: &mut Client) {
    client
        .batch_execute(
            "CREATE TABLE parts (id bigint PRIMARY KEY DEFAULT next_id(5, 's')) PARTITION BY HASH (id);
             CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
             CREATE VIEW negative AS SELECT id, n FROM photos WHERE n < 0;
             CREATE VIEW named AS SELECT id, name FROM users;
             ALTER VIEW named ALTER id SET DEFAULT next_id(5, 's');
             CREATE FUNCTION named() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO users VALUES (NEW.id, NEW.name); RETURN NEW; END $$;
             CREATE TRIGGER named INSTEAD OF INSERT ON named FOR EACH ROW EXECUTE FUNCTION named();
             CREATE TABLE links (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), link text);
             CREATE FUNCTION link() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN NEW.link := id_shortcode(NEW.id); RETURN NEW; END $$;
             CREATE TRIGGER link BEFORE INSERT ON links FOR EACH ROW EXECUTE FUNCTION link();
             CREATE DOMAIN user_id AS bigint DEFAULT next_id(5, 's');
             CREATE TABLE of_domain (id user_id PRIMARY KEY, n int);
             CREATE UNLOGGED TABLE unlogged (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), n int);
             CREATE TEMPORARY TABLE temporary (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), n int);
             INSERT INTO parts SELECT FROM generate_series(1, 1000);
             INSERT INTO of_domain (n) SELECT generate_series(1, 100);
             INSERT INTO unlogged (n) SELECT generate_series(1, 100);
             INSERT INTO temporary (n) SELECT generate_series(1, 100);
             CREATE TABLE made AS SELECT next_id(5, 's') AS id FROM generate_series(1, 1000)",
        )
        .unwrap();
    assert_eq!(
        returned(client, "INSERT INTO negative (n) VALUES (-1) RETURNING id"),
        returned(client, "SELECT id FROM negative")
    );
    let named = returned(client, "INSERT INTO named (name) VALUES ('d'), ('e') RETURNING id");
    assert_eq!(named, ids(client, "SELECT id FROM users WHERE name IN ('d', 'e') ORDER BY name"));
    let linked = returned(client, "INSERT INTO links SELECT FROM generate_series(1, 10) RETURNING id");
    assert_eq!(linked, returned(client, "SELECT shortcode_id(link) FROM links"));
    // A rule writes the expression out twice, as it does with nextval: it is no way to learn a row's id.
    client
        .batch_execute(
            "CREATE TABLE logged (id bigint);
             CREATE RULE log AS ON INSERT TO links DO ALSO INSERT INTO logged VALUES (NEW.id);
             INSERT INTO links SELECT FROM generate_series(1, 10)",
        )
        .unwrap();
    assert_eq!(count(client, "SELECT count(*) FROM links JOIN logged USING (id)"), 0);
}

/// By those who may no more than that.
fn by_others(client: &mut Client) {
    client
        .batch_execute(
            "CREATE ROLE app;
             CREATE TABLE own (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), owner text DEFAULT current_user);
             GRANT INSERT ON own TO app;
             CREATE SEQUENCE hidden;
             CREATE FUNCTION hidden() RETURNS bigint LANGUAGE sql SECURITY DEFINER RETURN next_id(6, 'hidden');
             SET ROLE app",
        )
        .unwrap();
    let insert = "INSERT INTO own SELECT FROM generate_series(1, 10)";
    assert_eq!(refused(client, insert).code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("RESET ROLE; GRANT USAGE ON SEQUENCE s TO app; SET ROLE app").unwrap();
    client.batch_execute(insert).unwrap();
    assert_eq!(refused(client, "SELECT next_id(6, 'hidden')").code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(count(client, "SELECT count(DISTINCT hidden()) FROM generate_series(1, 1000)"), 1000);
    client
        .batch_execute(
            "RESET ROLE; GRANT SELECT ON own TO app; ALTER TABLE own ENABLE ROW LEVEL SECURITY;
             CREATE POLICY fives ON own USING (owner = current_user) WITH CHECK (id_shard(id) = 5);
             INSERT INTO own SELECT FROM generate_series(1, 10); SET ROLE app",
        )
        .unwrap();
    assert_eq!(returned(client, &format!("{insert} RETURNING id")).len(), 10);
    assert_eq!(count(client, "SELECT count(*) FROM own"), 20);
    let error = refused(client, "INSERT INTO own VALUES (hidden())");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("RESET ROLE").unwrap();
}

/// What is derived from the rows, and what is copied, has their ids. Returns ids that were in a view.
fn derived(client: &mut Client) -> Vec<i64> {
    client
        .batch_execute(
            "CREATE MATERIALIZED VIEW times AS SELECT id, id_time(id) AS at FROM photos;
             CREATE UNIQUE INDEX ON times (id);
             INSERT INTO photos (n) VALUES (9); DELETE FROM photos WHERE n = 10;
             REFRESH MATERIALIZED VIEW CONCURRENTLY times;
             CREATE TABLE copy (id bigint DEFAULT next_id(5, 's'), n int)",
        )
        .unwrap();
    let rows = sound(client);
    assert_eq!(returned(client, "SELECT id FROM times WHERE at = id_time(id) ORDER BY id"), rows);
    // A view that mints has new ones each time.
    let mut gone = Vec::new();
    client
        .batch_execute(
            "CREATE MATERIALIZED VIEW minted AS SELECT next_id(5, 's') AS id FROM generate_series(1, 100)",
        )
        .unwrap();
    for _ in 0..2 {
        gone.extend(returned(client, "SELECT id FROM minted"));
        client.batch_execute("REFRESH MATERIALIZED VIEW minted").unwrap();
    }
    for format in ["text", "csv", "binary"] {
        let mut out = Vec::new();
        let copy = format!("COPY photos (id, n) TO STDOUT (FORMAT {format})");
        client.copy_out(&copy).unwrap().read_to_end(&mut out).unwrap();
        let mut copied = client.copy_in(&format!("COPY copy (id, n) FROM STDIN (FORMAT {format})")).unwrap();
        copied.write_all(&out).unwrap();
        assert_eq!(copied.finish().unwrap(), rows.len() as u64);
        assert_eq!(returned(client, "SELECT id FROM copy ORDER BY id"), rows);
        client.batch_execute("TRUNCATE copy").unwrap();
    }
    gone
}

/// Whatever statement makes a row in whatever table, no other row has its id.
#[test]
fn each_row_gets_an_id_of_its_own_by_every_statement() {
    let cluster = Cluster::start("rows");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client
        .batch_execute(
            "CREATE TABLE users (
                 id bigint PRIMARY KEY DEFAULT next_id(5, 's'), name text UNIQUE, visits int DEFAULT 1);
             CREATE TABLE likes (
                 id bigint PRIMARY KEY DEFAULT next_id(5, 's'), photo bigint REFERENCES photos ON UPDATE CASCADE)",
        )
        .unwrap();
    let mut gone = by_statements(&mut client);
    through_relations(&mut client);
    by_others(&mut client);
    gone.extend(derived(&mut client));
    let of_all = [
        "photos",
        "users",
        "likes",
        "parts",
        "links",
        "logged",
        "of_domain",
        "unlogged",
        "temporary",
        "made",
        "own",
        "minted",
    ]
    .map(|table| ids(&mut client, &format!("SELECT id::bigint FROM {table}")));
    let lengths = of_all.each_ref().map(Vec::len);
    assert_eq!(lengths[1..], [5, 11, 1000, 20, 10, 100, 100, 100, 1000, 30, 100]);
    assert_eq!(duplicates(of_all.iter().chain([&gone])), 0);
    assert!(of_all.iter().flatten().all(|id| id >> 10 & 8191 == 5));
}

/// However a transaction ends, no id that was minted in it comes again.
#[test]
fn ids_of_transactions_that_end_in_any_way_come_once() {
    let mut cluster = Cluster::with("transactions", &["max_prepared_transactions = 4"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![sound(&mut client)];
    // Savepoints and exceptions give nothing back.
    client.batch_execute("BEGIN; SAVEPOINT a").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    client.batch_execute("ROLLBACK TO a").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    client.batch_execute("RELEASE a; COMMIT").unwrap();
    client
        .batch_execute(
            "CREATE TABLE taken (id bigint, kept boolean); CREATE UNIQUE INDEX ON taken (kept) WHERE kept;
             CREATE FUNCTION try(out id bigint) LANGUAGE plpgsql AS $$
             BEGIN
                 id := next_id(5, 's');
                 BEGIN
                     INSERT INTO taken VALUES (next_id(5, 's'), true);
                 EXCEPTION WHEN unique_violation THEN
                     INSERT INTO taken VALUES (next_id(5, 's'), false);
                 END;
             END $$",
        )
        .unwrap();
    minted.push(ids(&mut client, "SELECT try() FROM generate_series(1, 1000)"));
    minted.push(ids(&mut client, "SELECT id FROM taken"));
    assert_eq!(minted[4].len(), 1000);

    client
        .batch_execute(
            "DO $$ BEGIN
                 FOR i IN 1..100 LOOP
                     INSERT INTO taken VALUES (next_id(5, 's'), NULL);
                     IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
                 END LOOP;
             END $$",
        )
        .unwrap();
    minted.push(ids(&mut client, "SELECT id FROM taken WHERE kept IS NULL"));
    assert_eq!(minted[5].len(), 50);
    // At the end of the transaction, by a trigger that was put off till then.
    client
        .batch_execute(
            "CREATE TABLE followed (id bigint DEFAULT next_id(5, 's'), of bigint);
             CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO followed (of) VALUES (NEW.id); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER follow AFTER INSERT ON photos DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW WHEN (NEW.n = -1) EXECUTE FUNCTION follow();
             BEGIN; INSERT INTO photos (n) SELECT -1 FROM generate_series(1, 100); COMMIT;
             BEGIN; INSERT INTO photos (n) SELECT -1 FROM generate_series(1, 100); PREPARE TRANSACTION 'q'",
        )
        .unwrap();
    client.batch_execute("COMMIT PREPARED 'q'").unwrap();
    minted.push(ids(&mut client, "SELECT id FROM followed UNION ALL SELECT id FROM photos WHERE n = -1"));
    assert_eq!(minted[6].len(), 400);

    // What is prepared commits after a crash, with the clock behind; who minted meanwhile has other ids.
    client.batch_execute("BEGIN").unwrap();
    let prepared = returned(&mut client, &format!("{MORE} RETURNING id"));
    client.batch_execute("PREPARE TRANSACTION 'p'").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    drop(client);
    cluster.stop_immediately();
    cluster.environment = clock_ahead(-300);
    cluster.up();
    let mut client = cluster.connect();
    let after = returned(&mut client, &format!("{MORE} RETURNING id"));
    assert!(minted.iter().flatten().max() < after.first(), "time went back");
    minted.push(after);
    client.batch_execute("COMMIT PREPARED 'p'").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    let rows = sound(&mut client);
    assert!(prepared.iter().all(|id| rows.binary_search(id).is_ok()));
    minted.push(prepared);
    assert_eq!(duplicates(&minted), 0);
}

/// A cursor or a prepared plan gives the ids that its statement gives.
#[test]
fn cursors_and_prepared_plans_mint_as_their_statements_do() {
    let cluster = Cluster::start("plans");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![sound(&mut client)];
    // Cursors that are held have each id once, whenever it is read. (One that is scrolled before it is held calls
    // again, as it does with nextval.)
    let mint = "SELECT next_id(5, 's') FROM generate_series(1, 100)";
    client.batch_execute(&format!("BEGIN; DECLARE c NO SCROLL CURSOR WITH HOLD FOR {mint}")).unwrap();
    let mut held = returned(&mut client, "FETCH 50 FROM c");
    client.batch_execute("COMMIT").unwrap();
    held.extend(returned(&mut client, "FETCH ALL FROM c"));
    assert_eq!((held.len(), disorders(&held)), (100, 0));
    minted.push(held);
    client
        .batch_execute(&format!("CLOSE c; BEGIN; DECLARE c SCROLL CURSOR WITH HOLD FOR {mint}; COMMIT"))
        .unwrap();
    let forward = returned(&mut client, "FETCH ALL FROM c");
    let mut backward = returned(&mut client, "FETCH BACKWARD ALL FROM c");
    backward.reverse();
    assert_eq!((forward.len(), &backward), (100, &forward));
    minted.push(forward);

    // Plans follow the default and the sequence.
    client.batch_execute("SET plan_cache_mode = force_generic_plan").unwrap();
    client.batch_execute("PREPARE put AS INSERT INTO photos (n) VALUES ($1) RETURNING id").unwrap();
    let mut executed = Vec::new();
    for change in [
        "SELECT",
        "ALTER SEQUENCE s RENAME TO q",
        "CREATE SEQUENCE r START 7; ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 'r')",
        "ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 'q'); DROP SEQUENCE r; ALTER SEQUENCE q RENAME TO s",
        "DISCARD SEQUENCES",
        "REINDEX TABLE photos",
    ] {
        client.batch_execute(change).unwrap();
        for _ in 0..20 {
            executed.extend(returned(&mut client, "EXECUTE put (1)"));
        }
    }
    assert_eq!(executed.len(), 120);
    client.batch_execute("RESET plan_cache_mode").unwrap();
    // Those of the other sequence could be the same.
    executed.drain(40..60);
    minted.push(executed);
    client.batch_execute("DEALLOCATE ALL").unwrap();
    assert_eq!(duplicates(&minted), 0);
}

/// Decoding runs in parallel workers and in read-only transactions. Minting does not.
#[test]
fn decoding_runs_in_parallel_and_minting_does_not() {
    let cluster = Cluster::start("parallel");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let forced = if major() == 15 { "force_parallel_mode" } else { "debug_parallel_query" };
    client
        .batch_execute(&format!(
            "INSERT INTO photos (n) SELECT generate_series(1, 100000); ANALYZE photos; SET {forced} = on;
             SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0"
        ))
        .unwrap();
    let read = "SELECT count(*) FROM photos
                WHERE id_shard(id) = 5 AND id_parts(id) IS NOT NULL AND length(id_shortcode(id)) = 11
                AND id_between(id, now() - interval '1 hour', now() + interval '1 hour')
                AND id_time(id, 'instagram') = id_time(id)
                AND make_id(id_time(id), id_shard(id), id_seq(id)) = id";
    let plan = texts(&mut client, &format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {read}")).join("\n");
    assert!(plan.contains("Workers Launched: ") && !plan.contains("Workers Launched: 0"), "{plan}");
    let rows = count(&mut client, "SELECT count(*) FROM photos");
    assert_eq!(count(&mut client, read), rows);
    for mint in ["SELECT next_id(5, 's') FROM photos", "SELECT id FROM photos WHERE next_id(5, 's') > id"] {
        let plan = texts(&mut client, &format!("EXPLAIN (COSTS OFF) {mint}"));
        assert!(!plan.iter().any(|line| line.contains("Gather")), "{plan:?}");
    }
    client
        .batch_execute(
            "CREATE INDEX in_parallel ON photos (id_time(id)); DROP INDEX photos_time;
             ALTER INDEX in_parallel RENAME TO photos_time; RESET ALL",
        )
        .unwrap();
    sound(&mut client);

    // Nothing is minted in a transaction that may only read.
    client.batch_execute("BEGIN READ ONLY").unwrap();
    assert_eq!(count(&mut client, read), rows);
    assert_eq!(refused(&mut client, MORE).code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
    client.batch_execute("ROLLBACK").unwrap();
}
