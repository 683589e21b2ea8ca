//! A schema goes from portable.sql to the extension, and back, while sessions write.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use support::{Cluster, checkout, count, disorders, duplicates, ids, refused, texts};

use crate::writers::Stop;

/// The functions in the schema `portable`, and a schema that mints by them: by a default, and by a function of its own.
fn plain(client: &mut Client) {
    let sql = fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    client
        .batch_execute(&format!(
            "CREATE SCHEMA portable; SET search_path = portable; {sql}; RESET search_path"
        ))
        .unwrap();
    client
        .batch_execute(
            "CREATE SCHEMA insta5;
             CREATE SEQUENCE insta5.table_id_seq; CREATE SEQUENCE insta5.\"Likes\";
             SELECT portable.guard_sequence('insta5.table_id_seq'), portable.guard_sequence('insta5.\"Likes\"');
             CREATE FUNCTION insta5.next_id() RETURNS bigint LANGUAGE sql RETURN portable.next_id(5, 'insta5.table_id_seq');
             CREATE TABLE insta5.photos (id bigint PRIMARY KEY DEFAULT insta5.next_id());
             CREATE TABLE insta5.users (id bigint PRIMARY KEY DEFAULT portable.next_id(5, 'insta5.table_id_seq'));
             CREATE TABLE insta5.likes (id bigint PRIMARY KEY DEFAULT portable.next_id(5, 'insta5.\"Likes\"'));
             INSERT INTO insta5.photos DEFAULT VALUES; INSERT INTO insta5.likes DEFAULT VALUES",
        )
        .unwrap();
}

const ADOPT: &str = "SELECT insta_ids.adopt('insta5', 5, '30s')";
const UNADOPT: &str = "SELECT insta_ids.unadopt('insta5', '30s', 'portable.next_id(integer,regclass)')";
const DEFAULTS: &str =
    "SELECT concat_ws(' ', d.adrelid::regclass, pg_get_expr(d.adbin, d.adrelid)) FROM pg_attrdef d
    WHERE d.adrelid::regclass::text LIKE 'insta5.%' ORDER BY 1";

/// No writer sees an error, and no id comes twice: the two tables of one sequence have no id in common.
#[test]
fn a_schema_goes_from_portable_functions_to_the_extension_and_back() {
    let cluster = Cluster::start("portable_adopted");
    let mut client = cluster.connect();
    plain(&mut client);
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    let portable = texts(&mut client, DEFAULTS);
    let stop = AtomicBool::new(false);
    let written: Vec<Vec<i64>> = thread::scope(|scope| {
        let stop = &stop;
        // Before a test fails, too.
        let _stopped = Stop(stop);
        let writers: Vec<_> = (0..6)
            .map(|session| {
                let mut client = cluster.connect();
                let table = ["photos", "users", "likes"][session % 3];
                scope.spawn(move || {
                    let mut written = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let row = client.query_one(
                            &format!("INSERT INTO insta5.{table} DEFAULT VALUES RETURNING id"),
                            &[],
                        );
                        written.push(row.unwrap().get::<_, i64>(0));
                    }
                    written
                })
            })
            .collect();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(200));
            client.batch_execute(ADOPT).unwrap();
            assert_eq!(
                texts(&mut client, DEFAULTS),
                [
                    "insta5.likes next_id(5, 'insta5.\"Likes\"'::regclass)",
                    "insta5.photos insta5.next_id()",
                    "insta5.users next_id(5, 'insta5.table_id_seq'::regclass)"
                ]
            );
            let found = "SELECT code FROM insta_ids.check() WHERE code <> 'unvalidated_constraint'";
            assert_eq!(texts(&mut client, found), [""; 0]);
            // What still calls the other function is refused.
            for sequence in ["table_id_seq", "\"Likes\""] {
                let error = refused(&mut client, &format!("SELECT portable.next_id(5, 'insta5.{sequence}')"));
                assert_eq!(error.message(), format!("sequence insta5.{sequence} is not guarded"));
            }
            thread::sleep(Duration::from_millis(200));
            client.batch_execute(UNADOPT).unwrap();
            assert_eq!(texts(&mut client, DEFAULTS), portable);
        }
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let of_one_sequence = [&written[0], &written[1], &written[3], &written[4]];
    assert!(
        written.iter().all(|ids| ids.len() > 100),
        "{:?}",
        written.iter().map(Vec::len).collect::<Vec<_>>()
    );
    assert_eq!(duplicates(of_one_sequence), 0);
    assert!(written.iter().all(|ids| disorders(ids) == 0));
    // The next id is greater than all.
    let newest =
        ids(&mut client, "SELECT max(id) FROM (TABLE insta5.photos UNION ALL TABLE insta5.users) i")[0];
    assert!(count(&mut client, "SELECT insta5.next_id()") > newest);
}

/// What cannot be adopted or unadopted that way is refused, and stays as it is.
#[test]
fn what_is_not_a_call_of_portable_next_id_stays() {
    let cluster = Cluster::start("portable_unlike");
    let mut client = cluster.connect();
    plain(&mut client);
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    client
        .batch_execute(
            "ALTER TABLE insta5.users ALTER id SET DEFAULT portable.next_id(6, 'insta5.table_id_seq')",
        )
        .unwrap();
    assert_eq!(
        refused(&mut client, ADOPT).detail(),
        Some("Default of insta5.users.id: It mints for shard 6.")
    );
    client
        .batch_execute(
            "ALTER TABLE insta5.users ALTER id SET DEFAULT 1 + portable.next_id(5, 'insta5.table_id_seq')",
        )
        .unwrap();
    assert_eq!(
        refused(&mut client, ADOPT).detail(),
        Some(
            "Default of insta5.users.id: It is not a single call of next_id in the layout of this database."
        )
    );
    client
        .batch_execute(
            "ALTER TABLE insta5.users ALTER id SET DEFAULT portable.next_id(5, 'insta5.table_id_seq')",
        )
        .unwrap();
    let before = texts(&mut client, DEFAULTS);
    client.batch_execute(&format!("BEGIN; {ADOPT}; ROLLBACK")).unwrap();
    assert_eq!(texts(&mut client, DEFAULTS), before);
    client.batch_execute(ADOPT).unwrap();
    // A function that only looks like it.
    client
        .batch_execute(
            "CREATE SCHEMA other; CREATE FUNCTION other.next_id(integer, regclass) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
        )
        .unwrap();
    let error =
        refused(&mut client, "SELECT insta_ids.unadopt('insta5', '2s', 'other.next_id(integer,regclass)')");
    assert_eq!(error.message(), "function other.next_id(integer,regclass) is not next_id of portable.sql");
    client
        .batch_execute("ALTER FUNCTION portable.next_id(integer, regclass) SET search_path = other")
        .unwrap();
    assert_eq!(refused(&mut client, UNADOPT).code().code(), "22023");
    // Without it, the published function comes back, as ever.
    client.batch_execute("SELECT insta_ids.unadopt('insta5')").unwrap();
    assert!(
        texts(&mut client, "SELECT prosrc FROM pg_proc WHERE oid = 'insta5.next_id()'::regprocedure")[0]
            .contains("our_epoch")
    );
}

/// What mints from the schema's sequences elsewhere could not mint any more.
#[test]
fn what_mints_elsewhere_is_named() {
    let cluster = Cluster::start("portable_elsewhere");
    let mut client = cluster.connect();
    plain(&mut client);
    client
        .batch_execute(
            "SELECT insta_ids.init(10);
             CREATE TABLE outside (id bigint DEFAULT portable.next_id(5, 'insta5.table_id_seq'));
             CREATE FUNCTION outsider() RETURNS bigint LANGUAGE sql RETURN portable.next_id(5, 'insta5.table_id_seq')",
        )
        .unwrap();
    let detail = refused(&mut client, ADOPT).detail().unwrap().to_owned();
    for object in ["default value for column id of table public.outside", "function public.outsider()"] {
        let reason = format!(
            "Sequence insta5.table_id_seq: It also fills another schema, by next_id of portable.sql: {object}."
        );
        assert!(detail.lines().any(|line| line == reason), "{detail}");
    }
    client.batch_execute("DROP FUNCTION outsider(); DROP TABLE outside").unwrap();
    client.batch_execute(ADOPT).unwrap();
}

/// Whoever owns the functions of portable.sql can change them, and unadopt runs as a superuser.
#[test]
fn release_runs_no_function_of_others() {
    let cluster = Cluster::start("portable_hostile");
    let mut client = cluster.connect();
    plain(&mut client);
    client.batch_execute(&format!("SELECT insta_ids.init(10); {ADOPT}")).unwrap();
    client
        .batch_execute(
            "CREATE TABLE ran (by name);
             CREATE OR REPLACE FUNCTION portable.guard_sequence(seq_name regclass) RETURNS regclass STRICT LANGUAGE plpgsql
             AS 'BEGIN INSERT INTO public.ran VALUES (current_user); RETURN seq_name; END';
             CREATE FUNCTION portable.next_id(integer, oid) RETURNS bigint LANGUAGE sql
             AS 'INSERT INTO public.ran VALUES (current_user) RETURNING 1'",
        )
        .unwrap();
    client.batch_execute(UNADOPT).unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM ran"), 0);
    assert_eq!(count(&mut client, "SELECT count(portable.next_id(5, 'insta5.table_id_seq'::regclass))"), 1);
}

/// Only what `guard_sequence` made is dropped, and a sequence of another schema stays guarded.
#[test]
fn sequences_of_others_stay_as_they_are() {
    let cluster = Cluster::start("portable_sequences");
    let mut client = cluster.connect();
    plain(&mut client);
    client
        .batch_execute(
            "CREATE SEQUENCE insta5.orders; CREATE SEQUENCE insta5.orders_newest START 7;
             CREATE SEQUENCE shared; SELECT portable.guard_sequence('shared');
             CREATE TABLE insta5.comments (id bigint PRIMARY KEY DEFAULT portable.next_id(5, 'shared'));
             INSERT INTO insta5.comments DEFAULT VALUES;
             SELECT insta_ids.init(10)",
        )
        .unwrap();
    client.batch_execute(ADOPT).unwrap();
    assert_eq!(count(&mut client, "SELECT nextval('insta5.orders_newest')"), 7);
    // Other schemas go on.
    client
        .batch_execute("SELECT portable.next_id(6, 'shared'); INSERT INTO insta5.comments DEFAULT VALUES")
        .unwrap();
    let newest = ids(&mut client, "SELECT max(id) FROM insta5.comments")[0];
    // Someone has set it ahead: it is not set back.
    let ahead = newest + (5_000 << 23);
    client.batch_execute(&format!("SELECT setval('shared_newest', {ahead})")).unwrap();
    client.batch_execute("ALTER SEQUENCE insta5.orders_newest RENAME TO other").unwrap();
    client.batch_execute(UNADOPT).unwrap();
    assert!(count(&mut client, "INSERT INTO insta5.comments DEFAULT VALUES RETURNING id") > ahead);
    let guards = "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'insta5'::regnamespace AND c.relname ~ '_newest$' ORDER BY 1";
    assert_eq!(
        texts(&mut client, guards),
        ["Likes_newest", "orders_newest", "other_newest", "table_id_seq_newest"]
    );
}

/// The name of a sequence must leave room for that of the one beside it.
#[test]
fn a_sequence_with_a_long_name_is_renamed_first() {
    let cluster = Cluster::start("portable_long");
    let mut client = cluster.connect();
    plain(&mut client);
    let (fits, long) = ("s".repeat(56), "s".repeat(57));
    client.batch_execute(&format!("CREATE SEQUENCE insta5.{long}")).unwrap();
    let guard = format!("SELECT portable.guard_sequence('insta5.{long}')");
    let error = refused(&mut client, &guard);
    assert_eq!(error.code().code(), "42622");
    assert_eq!(error.message(), format!("name of sequence insta5.{long} is too long"));
    client.batch_execute(&format!("SELECT insta_ids.init(10); {ADOPT}")).unwrap();
    assert_eq!(refused(&mut client, UNADOPT).code().code(), "42622");
    client.batch_execute(&format!("ALTER SEQUENCE insta5.{long} RENAME TO {fits}; {UNADOPT}")).unwrap();
    client.batch_execute(&format!("SELECT portable.next_id(5, 'insta5.{fits}'); {ADOPT}")).unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_class WHERE relname ~ '_newest$'"), 0);
}
