//! What cannot be minted is an error, after which nothing is locked.

use std::thread;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, NoTls};
use support::{Cluster, count, refused, texts, within};

use super::plain;

const MINT: &str = "SELECT ids.next_id(5, 's')";

/// The advisory locks of all sessions.
const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";

/// Another session can mint at once.
fn is_free(cluster: &Cluster, client: &mut Client) {
    assert_eq!(count(client, LOCKS), 0);
    cluster.connect().batch_execute(&format!("SET statement_timeout = '5s'; {MINT}")).unwrap();
}

/// Each refusal says what and why, and leaves nothing behind in its session.
#[test]
fn refusals_lock_nothing() {
    let (cluster, mut client) = plain("portable_refused", "");
    client
        .batch_execute(
            "CREATE SEQUENCE unguarded; CREATE SEQUENCE small MAXVALUE 2 START 2; SELECT ids.guard_sequence('small');
             SELECT ids.next_id(5, 'small');
             CREATE SEQUENCE negative MINVALUE -5 START -5; SELECT ids.guard_sequence('negative');
             CREATE SEQUENCE forgotten; SELECT ids.guard_sequence('forgotten');
             ALTER SEQUENCE forgotten_newest RESTART;
             CREATE TABLE t (); CREATE SEQUENCE t_newest; CREATE TEMPORARY SEQUENCE passing",
        )
        .unwrap();
    let longest = "a".repeat(63);
    client.batch_execute(&format!("CREATE SEQUENCE {longest}")).unwrap();
    for (call, code, message) in [
        ("next_id(-1, 's')", "22003", "shard -1 is out of range"),
        ("next_id(8192, 's')", "22003", "shard 8192 is out of range"),
        ("next_id(5, 'missing')", "42P01", "relation \"missing\" does not exist"),
        ("next_id(5, 0)", "55000", "sequence - is not guarded"),
        ("next_id(5, 'unguarded')", "55000", "sequence public.unguarded is not guarded"),
        (&format!("next_id(5, '{longest}')"), "55000", &format!("sequence public.{longest} is not guarded")),
        ("next_id(5, 'small')", "2200H", "nextval: reached maximum value of sequence \"small\" (2)"),
        ("next_id(5, 'negative')", "22003", "sequence value -5 is negative"),
        ("next_id(5, 'forgotten')", "55000", "sequence public.forgotten_newest does not have the newest id"),
        ("guard_sequence('s')", "42P07", "relation \"s_newest\" already exists"),
        ("guard_sequence('t')", "42809", "\"public.t\" is not a sequence"),
        ("guard_sequence('passing')", "42809", "sequence passing is temporary"),
        (
            &format!("guard_sequence('{longest}')"),
            "42622",
            &format!("name of sequence public.{longest} is too long"),
        ),
    ] {
        let error = refused(&mut client, &format!("SELECT ids.{call}"));
        assert_eq!((error.code().code(), error.message()), (code, message), "{call}");
        is_free(&cluster, &mut client);
    }
    // PostgreSQL 18 words this in another way.
    assert_eq!(refused(&mut client, "SELECT ids.next_id(5, 't')").code().code(), "42809");
    let nulls = "SELECT num_nulls(ids.next_id(NULL, 's'), ids.next_id(5, NULL))::bigint";
    assert_eq!(count(&mut client, nulls), 2);
}

/// A session that waits for another is cancelled, ended, or out of time.
#[test]
fn sessions_that_are_stopped_lock_nothing() {
    let (cluster, mut client) = plain("portable_stopped", "");
    client.batch_execute("SELECT pg_advisory_lock(1768190720, 's'::regclass::oid::integer)").unwrap();
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%next_id%' AND pid <> pg_backend_pid()
        AND wait_event IN ('advisory', 'PgSleep') AND state = 'active'";
    // First it sleeps, later it queues.
    for (pause, code) in [(20, "57014"), (400, "57014"), (20, "57P01"), (400, "57P01")] {
        let mut other = cluster.connect();
        let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let cancel = other.cancel_token();
        thread::scope(|scope| {
            let minting = scope.spawn(|| other.batch_execute(&format!("{MINT}, 1")).unwrap_err());
            within(Duration::from_secs(20), || count(&mut client, waiting) == 1);
            thread::sleep(Duration::from_millis(pause));
            if code == "57014" {
                cancel.cancel_query(NoTls).unwrap();
            } else {
                client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
            }
            // A session that is ended may lose its connection before it hears why.
            let error = minting.join().unwrap();
            assert!(error.is_closed() || error.code().is_some_and(|told| told.code() == code), "{error:?}");
        });
        assert_eq!(count(&mut client, LOCKS), 1);
    }
    for setting in ["statement_timeout", "lock_timeout"] {
        let mut other = cluster.connect();
        other.batch_execute(&format!("SET {setting} = '300ms'")).unwrap();
        refused(&mut other, MINT);
        assert_eq!(count(&mut client, LOCKS), 1, "{setting}");
    }
    client.batch_execute("SELECT pg_advisory_unlock_all()").unwrap();
    is_free(&cluster, &mut client);
}

/// Two sessions that wait for each other are told so by the server.
#[test]
fn a_deadlock_ends() {
    let (cluster, mut client) = plain("portable_deadlock", "");
    client.batch_execute("BEGIN; ALTER SEQUENCE s INCREMENT 2").unwrap();
    let mut other = cluster.connect();
    thread::scope(|scope| {
        let minting = scope.spawn(move || other.batch_execute(MINT));
        within(Duration::from_secs(20), || count(&mut client, LOCKS) == 1);
        let mine = client.batch_execute(&format!("{MINT}; COMMIT"));
        client.batch_execute("ROLLBACK").unwrap();
        let theirs = minting.join().unwrap();
        let failed: Vec<_> = [mine, theirs].into_iter().filter_map(Result::err).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].code().unwrap().code(), "40P01");
    });
    is_free(&cluster, &mut client);
}

/// Where nothing can be written, nothing is minted.
#[test]
fn nothing_is_minted_where_nothing_can_be_written() {
    let (cluster, mut client) = plain("portable_read_only", "");
    let mut reader = cluster.connect();
    reader.batch_execute("SET default_transaction_read_only = on").unwrap();
    assert_eq!(refused(&mut reader, MINT).code().code(), "25006");
    let standby = cluster.standby("portable_standby");
    assert_eq!(refused(&mut standby.connect(), MINT).code().code(), "25006");
    is_free(&cluster, &mut client);
}

/// A clock that is a little behind is waited for. One that is far behind is an error, until the newest id is set.
#[test]
fn a_clock_behind_the_newest_id_is_waited_for() {
    let (cluster, mut client) = plain("portable_behind", "");
    let ahead = |by: i64| format!("SELECT setval('s_newest', ids.next_id(5, 's') + ({by}::bigint << 23))");
    client.batch_execute(&ahead(1500)).unwrap();
    let (newest, begun) = (count(&mut client, "SELECT last_value FROM s_newest"), Instant::now());
    assert!(count(&mut client, MINT) > newest);
    assert!(begun.elapsed() > Duration::from_secs(1));
    client.batch_execute(&ahead(3_600_000)).unwrap();
    let error = refused(&mut client, MINT);
    assert_eq!(error.code().code(), "55000");
    assert!(error.message().starts_with("clock is 0"), "{error:?}");
    assert!(error.message().ends_with(" behind the newest id of sequence public.s"), "{error:?}");
    assert_eq!(count(&mut client, LOCKS), 0);
    // The hint is a sentence with a statement at its end.
    let (_, setval) = error.hint().unwrap().rsplit_once("set it: ").unwrap();
    assert!(setval.starts_with("SELECT setval('public.s_newest', "), "{setval}");
    client.batch_execute(setval.trim_end_matches('.')).unwrap();
    is_free(&cluster, &mut client);
}

/// Who may take values of the sequence may mint, and nobody else.
#[test]
fn minting_takes_the_privileges_of_the_sequence() {
    let (cluster, mut client) = plain("portable_roles", "");
    client
        .batch_execute(
            "CREATE ROLE owner LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE updater LOGIN; CREATE ROLE reader LOGIN;
             CREATE SCHEMA insta5 AUTHORIZATION owner; GRANT USAGE ON SCHEMA insta5 TO PUBLIC;
             SET ROLE owner;
             CREATE SEQUENCE insta5.table_id_seq;
             GRANT USAGE ON SEQUENCE insta5.table_id_seq TO writer;
             GRANT UPDATE ON SEQUENCE insta5.table_id_seq TO updater;
             GRANT SELECT ON SEQUENCE insta5.table_id_seq TO reader;
             SELECT ids.guard_sequence('insta5.table_id_seq');
             CREATE SEQUENCE insta5.other;
             RESET ROLE;
             SELECT ids.guard_sequence('insta5.other')",
        )
        .unwrap();
    for (role, code) in [("owner", None), ("writer", None), ("updater", None), ("reader", Some("42501"))] {
        let mut session = cluster.config().user(role).connect(NoTls).unwrap();
        let minted = session.batch_execute("SELECT ids.next_id(5, 'insta5.table_id_seq')");
        assert_eq!(
            minted.err().and_then(|error| error.code().cloned()).as_ref().map(SqlState::code),
            code,
            "{role}"
        );
    }
    // They belong to the owner of the sequence, whoever guards it.
    let owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class
        WHERE relname LIKE '%newest' AND relnamespace = 'insta5'::regnamespace";
    assert_eq!(texts(&mut client, owners), ["owner"]);
    // Without the right to read the newest id, nothing is minted. PostgreSQL 18 gives NULL instead of an error.
    client.batch_execute("REVOKE SELECT ON SEQUENCE insta5.table_id_seq_newest FROM writer").unwrap();
    let mut session = cluster.config().user("writer").connect(NoTls).unwrap();
    let error = refused(&mut session, "SELECT ids.next_id(5, 'insta5.table_id_seq')");
    assert!(["42501", "55000"].contains(&error.code().code()), "{error:?}");
    is_free(&cluster, &mut client);
}

/// Functions and operators in the caller's path are not called.
#[test]
fn the_callers_path_does_not_matter() {
    let (cluster, mut client) = plain("portable_path", "");
    client
        .batch_execute(
            "CREATE SCHEMA evil;
             CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql RETURN 7;
             CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql RETURN '2000-01-01'::timestamptz;
             CREATE FUNCTION evil.pg_sequence_last_value(regclass) RETURNS bigint LANGUAGE sql RETURN 0;
             CREATE FUNCTION evil.less(bigint, bigint) RETURNS boolean LANGUAGE sql RETURN true;
             CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.less);
             SET search_path = evil, pg_catalog, public",
        )
        .unwrap();
    let before = count(&mut client, "SELECT last_value FROM public.s_newest");
    assert!(count(&mut client, MINT) > before);
    assert_eq!(count(&mut client, "SELECT last_value FROM public.s"), 1);
    is_free(&cluster, &mut client);
}
