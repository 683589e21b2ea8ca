//! Promise: adopt calls a function with any text if the operator confirms the text, judges it by its ids, and rolls back what
//! the calls do.

use std::time::{Duration, Instant};

use postgres::error::SqlState;

use super::{ADOPT, ARTICLE, CANNOT, anew, confirming, database, digests, owned_by, run, said, unchanged};
use support::shards::Running;
use support::{Cluster, count, refused, texts};

/// The article's function as one expression, which reads the shard from a table.
const LOOKS_UP: &str = "
CREATE TABLE insta5.this_shard (shard int);
INSERT INTO insta5.this_shard VALUES (5);
CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) LANGUAGE plpgsql AS $$
BEGIN
    result := (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23;
    result := result | ((SELECT t.shard FROM insta5.this_shard t) << 10);
    result := result | (nextval('insta5.table_id_seq') % 1024);
END
$$;";

/// Inserts a row, and asserts that its id has shard 5, the current time and this sequence's value.
fn mints(client: &mut postgres::Client, sequence: &str) {
    let id = "INSERT INTO insta5.photos DEFAULT VALUES RETURNING id";
    let id = client.query_one(id, &[]).unwrap().get::<_, i64>(0);
    let value = count(client, &format!("SELECT last_value FROM insta5.{sequence}"));
    let seen = format!(
        "SELECT count(*) FROM insta_ids.config c
         WHERE insta_ids_internal.id_shard({id}, c.layout) = 5 AND insta_ids_internal.id_seq({id}, c.layout) = {value} % 1024
             AND insta_ids_internal.id_time({id}, c.layout) BETWEEN now() - interval '1 s' AND now() + interval '1 s'"
    );
    assert_eq!(count(client, &seen), 1, "{id}");
}

#[test]
fn a_text_is_confirmed_by_its_digest() {
    let cluster = Cluster::start("confirmed");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(&mut client, LOOKS_UP);
    let error = unchanged(&mut client, ADOPT);
    let [code, message, detail, hint] = said(&error);
    assert_eq!([code, message], ["55000", CANNOT]);
    let [digest] = &digests(&error)[..] else { panic!("{detail}") };
    let text = detail.split_once(":\n").unwrap().1;
    assert!(text.starts_with("CREATE OR REPLACE FUNCTION {schema}.next_id(OUT result bigint)\n"), "{text}");
    assert!(text.contains("FROM {schema}.this_shard t) << 10);"), "{text}");
    let expected = format!(
        "Read the text. If adopt may call function insta5.next_id() and replace it, confirm the text: confirm => ARRAY['{digest}']."
    );
    assert_eq!(hint, expected);
    // No function is called before its text is confirmed.
    assert_eq!(count(&mut client, "SELECT last_value FROM insta5.table_id_seq"), 100);
    let wrong = unchanged(&mut client, "SELECT insta_ids.adopt('insta5', 5, confirm => '{0,f}')");
    assert_eq!(&digests(&wrong)[..], std::slice::from_ref(digest));
    let adopt = format!("SELECT insta_ids.adopt('insta5', 5, confirm => ARRAY['f', '{digest}'])");
    let rehearse = adopt.replace("confirm", "dry_run => true, confirm");
    for _ in 0..2 {
        run(&mut client, &rehearse);
        assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards"), 0);
    }
    run(&mut client, &adopt);
    mints(&mut client, "table_id_seq");
    // The role and the sequence that adopt creates are gone.
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'insta\\_ids%'"), 0);
    assert_eq!(
        count(
            &mut client,
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'insta\\_ids\\_%' AND relkind = 'S' AND relnamespace = 'insta5'::regnamespace"
        ),
        0
    );

    // The same text in another schema, for another shard, has the same digest. Another text does not.
    let sixth = |sql: &str| sql.replace("insta5", "insta6").replace("(5)", "(6)");
    run(
        &mut client,
        &format!("CREATE SCHEMA insta6; CREATE SEQUENCE insta6.table_id_seq; {}", sixth(LOOKS_UP)),
    );
    run(&mut client, "CREATE TABLE insta6.photos (id bigint PRIMARY KEY DEFAULT insta6.next_id())");
    let adopt = adopt.replace("'insta5', 5", "'insta6', 6");
    for (change, refused_as) in [
        (sixth(LOOKS_UP).replace("now_", "later_").replace('%', "/* */ %"), "Its text is not a known one."),
        (
            sixth(LOOKS_UP)
                .replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
                .replace("VALUES (6)", "VALUES (7)"),
            "It cannot be called: more than one row returned by a subquery used as an expression.",
        ),
    ] {
        let change = change
            .replace("CREATE TABLE insta6.this_shard (shard int)", "SELECT")
            .replace("INSERT INTO insta6.this_shard VALUES (6)", "SELECT");
        run(&mut client, &change);
        let error = refused(&mut client, &adopt);
        assert!(error.detail().unwrap().contains(refused_as), "{error:?}");
    }
    run(&mut client, "DELETE FROM insta6.this_shard WHERE shard = 6");
    let error = refused(&mut client, &adopt);
    assert_eq!(error.detail(), Some("Function insta6.next_id(): It mints for shard 7."));
    run(&mut client, "UPDATE insta6.this_shard SET shard = 6");
    run(&mut client, &adopt);
}

/// A function may get its shard, its sequence and its time in any way, if its ids are right.
#[test]
fn any_text_that_answers_right_is_adopted() {
    let cluster = Cluster::start("any_text");
    for (name, layout, function, sequence) in [
        ("looks_up", "instagram", LOOKS_UP.to_owned(), "table_id_seq"),
        (
            "helper",
            "instagram",
            ARTICLE.replace("next_id", "make")
                + "CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) LANGUAGE sql AS 'SELECT insta5.make()'",
            "table_id_seq",
        ),
        (
            "dynamic",
            "instagram",
            ARTICLE.replace(
                "SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id",
                "EXECUTE format('SELECT nextval(%L) %% 1024', 'insta5.' || 'photos_id_seq') INTO seq_id",
            ),
            "photos_id_seq",
        ),
        (
            "epoch_in_seconds",
            "instagram",
            ARTICLE.replace("our_epoch bigint := 1314220021721", "our_epoch bigint := 1314220021.721 * 1000"),
            "table_id_seq",
        ),
        (
            "sonyflake",
            "sonyflake",
            "CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) LANGUAGE plpgsql AS $$ BEGIN
                 result := (floor(extract(epoch FROM clock_timestamp()) * 100)::bigint - 140952960000) << 24
                     | nextval('insta5.table_id_seq') % 256 << 16 | 5;
             END $$;"
                .replace(
                    "nextval('insta5.table_id_seq') % 256 << 16",
                    "(nextval('insta5.table_id_seq') % 256 << 16)",
                ),
            "table_id_seq",
        ),
        (
            "half_seconds",
            "time:41 shard:13 seq:10 epoch:1314220021721 unit:500ms",
            ARTICLE.replace("our_epoch) <<", "our_epoch) / 500 <<"),
            "table_id_seq",
        ),
    ] {
        println!("{name}");
        let mut client = database(&cluster, name, layout);
        // The existing ids have Instagram's layout.
        let change =
            if layout == "instagram" { "" } else { "DELETE FROM insta5.likes; DELETE FROM insta5.photos;" };
        anew(&mut client, &format!("{function}{change}"));
        let adopt = confirming(&mut client);
        assert!(!adopt.contains("'{}'"), "{name}: {adopt}");
        run(&mut client, &adopt);
        let written = texts(&mut client, "SELECT pg_get_function_sqlbody('insta5.next_id()'::regprocedure)");
        assert!(written[0].contains(&format!("next_id(5, 'insta5.{sequence}'::regclass")), "{written:?}");
        if layout != "sonyflake" {
            mints(&mut client, sequence);
        }
    }
}

/// What a function does besides minting is rolled back. Only values of sequences stay taken.
#[test]
fn what_it_does_besides_is_undone() {
    let cluster = Cluster::start("besides");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    let besides = |what: &str| {
        format!("CREATE TABLE insta5.log (who text); {}", ARTICLE.replace("BEGIN", &format!("BEGIN {what};")))
    };
    anew(
        &mut client,
        "SET client_min_messages = warning; DROP ROLE IF EXISTS minter; CREATE ROLE minter; GRANT ALL ON SCHEMA public TO minter",
    );
    for (what, kept) in [
        ("INSERT INTO insta5.log VALUES (current_user)", true),
        ("PERFORM set_config('work_mem', '64kB', false)", true),
        ("PERFORM pg_notify('ids', 'minted')", true),
        // PostgreSQL refuses these in a security-restricted operation.
        ("SET ROLE postgres", false),
        ("RESET ROLE", false),
        ("SET SESSION AUTHORIZATION postgres", false),
        ("EXECUTE 'PREPARE left_over AS SELECT 1'", false),
        ("LISTEN ids", false),
        ("CREATE TEMP TABLE left_over ()", false),
        ("EXECUTE 'DECLARE left_over CURSOR WITH HOLD FOR SELECT 1'", false),
        ("COMMIT", false),
    ] {
        anew(&mut client, &besides(what));
        owned_by(&mut client, "minter");
        run(&mut client, "ALTER TABLE insta5.log OWNER TO minter");
        let call = confirming(&mut client);
        if kept {
            run(&mut client, &call);
        } else {
            let error = unchanged(&mut client, &call);
            assert!(error.detail().unwrap().contains("It cannot be called: "), "{what}: {error:?}");
        }
        let left = "SELECT (SELECT count(*) FROM insta5.log WHERE who = 'postgres')
            + (SELECT count(*) FROM insta5.log WHERE who = 'minter' AND xmin::text::bigint > (SELECT max(xmin::text::bigint) FROM insta5.photos))
            + (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_over') + (SELECT count(*) FROM pg_cursors WHERE name = 'left_over')
            + (SELECT count(*) FROM pg_listening_channels()) + (current_setting('work_mem') = '64kB')::int
            + (current_user <> 'postgres')::int";
        assert_eq!(count(&mut client, left), 0, "{what}");
    }
    // A deferred trigger does not fire.
    anew(
        &mut client,
        &(besides("INSERT INTO insta5.log VALUES ('deferred')")
            + "CREATE FUNCTION insta5.fires() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   RAISE EXCEPTION 'fired as %', current_user; END $$;
               CREATE CONSTRAINT TRIGGER later AFTER INSERT ON insta5.log DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW WHEN (NEW.who = 'deferred' AND current_setting('application_name') = 'asked')
                   EXECUTE FUNCTION insta5.fires()"),
    );
    owned_by(&mut client, "minter");
    run(&mut client, "ALTER TABLE insta5.log OWNER TO minter; ALTER FUNCTION insta5.fires() OWNER TO minter");
    run(&mut client, "SET application_name = 'asked'");
    let call = confirming(&mut client);
    let error = unchanged(&mut client, &call);
    let reason = "It cannot be called: cannot fire deferred trigger within security-restricted operation.";
    assert!(error.detail().unwrap().contains(reason), "{error:?}");
}

/// A timeout or a cancel ends a function that never returns.
#[test]
fn a_function_that_sleeps_is_cancelled() {
    let cluster = Cluster::start("sleeps");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(&mut client, "");
    let asleep = ARTICLE.replace("BEGIN", "BEGIN PERFORM pg_sleep(600);");
    run(&mut client, &asleep);
    let error = unchanged(&mut client, ADOPT);
    let call = format!("SELECT insta_ids.adopt('insta5', 5, confirm => '{{{}}}')", digests(&error).join(","));
    run(&mut client, "SET statement_timeout = '500ms'");
    let began = Instant::now();
    let error = unchanged(&mut client, &call);
    assert_eq!(error.code(), &SqlState::QUERY_CANCELED);
    assert!(began.elapsed() < Duration::from_secs(10));
    run(&mut client, "RESET statement_timeout");
    let adopt = Running::start(cluster.connect(), &call);
    let sleeps =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND wait_event = 'PgSleep'", adopt.pid);
    support::within(Duration::from_secs(30), || count(&mut client, &sleeps) == 1);
    // Meanwhile, adopt holds no lock on the tables.
    run(&mut client, &ARTICLE.replace("next_id", "other_id"));
    run(&mut client, "INSERT INTO insta5.photos VALUES (insta5.other_id())");
    client.execute("SELECT pg_cancel_backend($1)", &[&adopt.pid]).unwrap();
    let error = adopt.end().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    // The lock_timeout of adopt ends a function that waits for a lock.
    run(&mut client, "DROP FUNCTION insta5.other_id()");
    run(&mut client, &ARTICLE.replace("BEGIN", "BEGIN LOCK TABLE insta5.likes;"));
    run(&mut client, "CREATE ROLE minter");
    owned_by(&mut client, "minter");
    let mut holder = cluster.connect();
    run(&mut holder, "BEGIN; SELECT FROM insta5.likes");
    let error = unchanged(&mut client, ADOPT);
    let call = format!("SELECT insta_ids.adopt('insta5', 5, '500ms', '{{{}}}')", digests(&error).join(","));
    let error = unchanged(&mut client, &call);
    assert!(
        error.detail().unwrap().contains("It cannot be called: canceling statement due to lock timeout."),
        "{error:?}"
    );
}

/// Adopt does not change the values that sessions have cached from a sequence.
#[test]
fn a_sequence_with_a_cache() {
    let cluster = Cluster::start("asked_cache");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(&mut client, LOOKS_UP);
    run(&mut client, "ALTER SEQUENCE insta5.table_id_seq CACHE 20");
    let mut other = cluster.connect();
    run(&mut other, "INSERT INTO insta5.photos DEFAULT VALUES");
    let before = count(&mut other, "SELECT currval('insta5.table_id_seq')");
    let call = confirming(&mut client);
    run(&mut client, &call);
    for client in [&mut client, &mut other] {
        run(client, "INSERT INTO insta5.photos SELECT FROM generate_series(1, 30)");
    }
    // While adopt calls the function, the sequence is at 2^40.
    assert!(count(&mut client, "SELECT last_value FROM insta5.table_id_seq") < before + 1000);
    let values = "SELECT count(*) FROM insta5.photos WHERE id_seq(id) = 1023";
    assert_eq!(count(&mut client, values), 0);
    assert!(count(&mut other, "SELECT currval('insta5.table_id_seq')") < before + 1000);
}
