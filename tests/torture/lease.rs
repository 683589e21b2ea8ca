//! The lease: who writes it, who adopts it, and databases that come and go.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use postgres::error::SqlState;

use support::fault::now_ms;
use support::minters::{AHEAD_MS, Given, Minters, mint};
use support::{Cluster, disorders, duplicates, ids, refused, within};

const MINT: &str = "SELECT next_id(5, 's') FROM generate_series(1, 1000)";

/// Fifty sessions make the first call after a start, with the clock behind.
#[test]
fn first_calls_at_once() {
    let cluster = Cluster::with_clock("first_calls");
    let before = mint(&cluster, "postgres", 8, 100_000);
    cluster.stop_immediately();
    cluster.set_clock(-300_000);
    cluster.up();
    let start = Barrier::new(50);
    let sessions: Vec<Vec<i64>> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..50)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = cluster.connect();
                    start.wait();
                    ids(&mut client, MINT)
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    assert_eq!(duplicates(sessions.iter().chain([&before.ids])), 0);
    assert!(sessions.iter().all(|session| disorders(session) == 0));
    let oldest = Given::time_of(*sessions.iter().flatten().min().unwrap());
    assert!(oldest >= before.newest_ms() - AHEAD_MS, "time went back");
}

/// Each database has a lease of its own, also one that was made from a template.
#[test]
fn several_databases() {
    let cluster = Cluster::with_clock("databases");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE a").unwrap();
    cluster.prepare("a");
    // What ids of the template had reached is in the copy, too.
    let template = ids(&mut cluster.connect_to("a"), MINT);
    client.batch_execute("CREATE DATABASE b TEMPLATE a").unwrap();
    let minters = ["postgres", "a", "b"].map(|database| Minters::start(&cluster, database, 4));
    for minters in &minters {
        minters.await_more(50_000);
    }
    let given = minters.map(Minters::stop);
    for given in &given {
        given.check(0);
    }
    cluster.stop_immediately();
    cluster.set_clock(-300_000);
    cluster.up();
    let leases = "SELECT lease FROM insta_ids.clock()";
    for (database, before) in ["postgres", "a", "b"].iter().zip(given) {
        assert!(cluster.connect_to(database).query_one(leases, &[]).is_ok());
        let after = mint(&cluster, database, 4, 20_000);
        assert!(after.oldest_ms() >= before.newest_ms() - AHEAD_MS, "time went back in {database}");
        assert!(after.oldest_ms() > Given::time_of(*template.last().unwrap()));
        before.and(after).check(1);
    }
}

/// The extension goes and comes again, while tables with ids remain and sessions mint.
#[test]
fn the_extension_is_dropped_and_made_again() {
    let cluster = Cluster::with_clock("dropped");
    let mut client = cluster.connect();
    let mut all: Vec<Vec<i64>> = Vec::new();
    let mut other = cluster.connect();
    for round in 0..5 {
        all.push(ids(&mut other, MINT));
        client.batch_execute("DROP EXTENSION insta_ids; CREATE EXTENSION insta_ids").unwrap();
        cluster.set_clock(-1000 * round);
        // The session goes on with the new lease: what is written down covers what it mints.
        all.push(ids(&mut other, MINT));
        let lease: i64 =
            client.query_one("SELECT max(ms) FROM insta_ids_internal.lease", &[]).unwrap().get(0);
        assert!(lease >= Given::time_of(*all.last().unwrap().last().unwrap()));
    }
    assert_eq!(duplicates(&all), 0);
    let one_session: Vec<i64> = all.iter().flatten().copied().collect();
    assert_eq!(disorders(&one_session), 0);
    cluster.stop_immediately();
    cluster.set_clock(-600_000);
    cluster.up();
    all.push(ids(&mut cluster.connect(), MINT));
    assert_eq!(duplicates(&all), 0);
}

/// The server stops right after the extension was made again, before anybody mints.
#[test]
fn the_extension_is_made_again_and_the_server_stops() {
    let cluster = Cluster::with_clock("made_again");
    let before = mint(&cluster, "postgres", 4, 50_000);
    cluster.connect().batch_execute("DROP EXTENSION insta_ids; CREATE EXTENSION insta_ids").unwrap();
    cluster.stop();
    cluster.set_clock(-300_000);
    cluster.up();
    let after = mint(&cluster, "postgres", 4, 50_000);
    before.check_going_on(after);
}

/// Not only written, but flushed, before a time under it is used.
#[test]
fn the_lease_is_flushed_first() {
    let settings = ["synchronous_commit = off", "wal_writer_delay = '10s'", "bgwriter_delay = '10s'"];
    let cluster = Cluster::timed_with("flushed", &settings);
    cluster.prepare("postgres");
    let mut client = cluster.connect();
    client.batch_execute("CHECKPOINT; SELECT pg_sleep(2)").unwrap();
    // The lease has run out, so what is flushed after the call was flushed by it.
    let position = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
                           pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()";
    let before: i64 = client.query_one(position, &[]).unwrap().get(0);
    let mut transaction = client.transaction().unwrap();
    transaction.query_one("SELECT next_id(5, 's')", &[]).unwrap();
    let row = transaction.query_one(position, &[]).unwrap();
    assert!(row.get::<_, i64>(0) > before, "nothing was written");
    assert!(row.get::<_, bool>(1), "not flushed");
}

/// `clock()` waits for a DROP EXTENSION, and says so plainly.
#[test]
fn the_clock_of_an_extension_that_is_dropped() {
    let cluster = Cluster::with_clock("clock_dropped");
    let mut client = cluster.connect();
    let mut other = cluster.connect();
    other.query_one("SELECT * FROM insta_ids.clock()", &[]).unwrap();
    let mut transaction = client.transaction().unwrap();
    transaction.batch_execute("DROP EXTENSION insta_ids").unwrap();
    thread::scope(|scope| {
        let looking = scope.spawn(|| other.query("SELECT * FROM insta_ids.clock()", &[]).unwrap_err());
        let waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let mut third = cluster.connect();
        within(Duration::from_secs(10), || third.query_opt(waits, &[]).unwrap().is_some());
        transaction.commit().unwrap();
        let error = looking.join().unwrap();
        assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    });
}

/// One that lies a year ahead stops its own database, and no other.
#[test]
fn a_lease_a_year_ahead() {
    let cluster = Cluster::with_clock("year_ahead");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE other").unwrap();
    cluster.prepare("other");
    let mut other = cluster.connect_to("other");
    // As a restored dump does.
    let year = "INSERT INTO insta_ids_internal.lease VALUES (((extract(epoch FROM now()) + 365 * 86400) * 1000)::bigint)";
    other.batch_execute(year).unwrap();
    for _ in 0..3 {
        let error =
            other.query_one("SELECT count(next_id(5, 's')) FROM generate_series(1, 10)", &[]).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert!(error.message().ends_with(" s behind the lease of this database"), "{}", error.message());
        let minted = ids(&mut client, MINT);
        assert!(Given::time_of(*minted.last().unwrap()) <= now_ms() + AHEAD_MS);
    }
    other.batch_execute("SELECT insta_ids.reset_clock()").unwrap();
    assert_eq!(ids(&mut other, MINT).len(), 1000);
}

/// The lease is written by the extension alone, whoever mints, and nothing of its rights is left to them.
#[test]
fn only_the_extension_writes_it() {
    let cluster = Cluster::with_clock("writes");
    let mut client = cluster.connect();
    // Also where the extension is made by one who gives away whatever they make.
    client
        .batch_execute(
            "CREATE ROLE app; DROP EXTENSION insta_ids;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO app;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO app;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO app;
             CREATE EXTENSION insta_ids",
        )
        .unwrap();
    client
        .batch_execute("GRANT USAGE ON SEQUENCE s TO app; GRANT CREATE ON SCHEMA public TO app; SET ROLE app")
        .unwrap();
    for attempt in [
        "GRANT ALL ON insta_ids_internal.lease TO app",
        "UPDATE insta_ids_internal.lease SET ms = 1",
        "INSERT INTO insta_ids_internal.lease VALUES (1)",
        "DELETE FROM insta_ids_internal.lease",
        "TRUNCATE insta_ids_internal.lease",
        "DROP TABLE insta_ids_internal.lease",
        "CREATE TABLE insta_ids.t ()",
        "ALTER SCHEMA insta_ids RENAME TO x",
        "SELECT insta_ids.reset_clock()",
        "SELECT insta_ids.advance_clock(now())",
        "SELECT insta_ids.stat_reset()",
        "SELECT * FROM insta_ids.stat_ids",
    ] {
        let error = refused(&mut client, attempt);
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{attempt}");
    }
    // What a user puts in the way is not looked at.
    client
        .batch_execute(
            "CREATE TABLE public.lease (ms bigint); CREATE FUNCTION public.setval(regclass, bigint) RETURNS bigint LANGUAGE sql RETURN 1 / 0;
             SET search_path = public, pg_catalog; SET timezone = 'Asia/Kathmandu'",
        )
        .unwrap();
    assert_eq!(ids(&mut client, MINT).len(), 1000);
    let row = client.query_one("SELECT current_user::text, lastval() = currval('s')", &[]).unwrap();
    assert_eq!((row.get(0), row.get(1)), ("app", true));
    // Also when what it was called by fails, and is caught.
    client
        .batch_execute(
            "DO $$ BEGIN
                 FOR i IN 1..100 LOOP
                     BEGIN PERFORM next_id(5, 's'); PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
                 END LOOP;
                 IF current_user <> 'app' THEN RAISE 'user %', current_user; END IF;
             END $$",
        )
        .unwrap();
    // Nor do roles that may write all data, nor the owner of the database.
    client
        .batch_execute("RESET ROLE; CREATE ROLE writer IN ROLE pg_write_all_data, pg_read_all_data; ALTER DATABASE postgres OWNER TO app")
        .unwrap();
    for role in ["app", "writer"] {
        for table in ["lease", "writer"] {
            let write = match table {
                "lease" => "(ms) VALUES (1)",
                _ => "(slot, slots) VALUES (0, 1)",
            };
            for attempt in [
                format!("INSERT INTO insta_ids_internal.{table} {write}"),
                format!("DELETE FROM insta_ids_internal.{table}"),
                format!("COPY insta_ids_internal.{table} FROM '/dev/null'"),
                format!(
                    "UPDATE insta_ids_internal.{table} SET {} = 1",
                    write[1..].split([',', ')']).next().unwrap()
                ),
            ] {
                client.batch_execute(&format!("SET ROLE {role}")).unwrap();
                assert_eq!(
                    refused(&mut client, &attempt).code(),
                    &SqlState::INSUFFICIENT_PRIVILEGE,
                    "{role}: {attempt}"
                );
                client.batch_execute("RESET ROLE").unwrap();
            }
        }
    }
    // Superusers restore it, and do nothing else to it.
    for attempt in [
        "UPDATE insta_ids_internal.lease SET ms = 1",
        "DELETE FROM insta_ids_internal.lease",
        "TRUNCATE insta_ids_internal.lease",
    ] {
        assert_eq!(refused(&mut client, attempt).message(), "lease cannot be changed", "{attempt}");
    }
}
