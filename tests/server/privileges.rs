//! Promise: `next_id` asks for the privileges that `nextval` asks for, and refuses in the same statement as `nextval`, though it
//! does not look them up at each call.

use postgres::Client;
use postgres::error::SqlState;

use support::{Cluster, refused};

const ALLOWED: Option<&SqlState> = None;
const DENIED: Option<&SqlState> = Some(&SqlState::INSUFFICIENT_PRIVILEGE);

/// The ways to take a value. `nextval` comes last, because it makes the session learn of changes, too.
const WAYS: [&str; 5] = [
    "next_id(5, 's')",
    "next_id(5, 's', 'twitter')",
    "(SELECT count(*) FROM next_ids(5, 's', 3))",
    "insta5.next_id('s')",
    "nextval('s')",
];

/// Roles, a shard, a sequence of the role `owner` that `minter` may use, and an administrator's session.
fn server(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::bare(name);
    let mut admin = cluster.connect();
    admin.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(10)").unwrap();
    admin.batch_execute("CALL insta_ids.create_shards(5, 5)").unwrap();
    admin
        .batch_execute(
            "CREATE ROLE owner LOGIN; CREATE ROLE minter LOGIN; CREATE ROLE other LOGIN; CREATE ROLE members;
             GRANT USAGE ON SCHEMA insta5 TO PUBLIC; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA insta5 TO PUBLIC;
             CREATE SEQUENCE s; ALTER SEQUENCE s OWNER TO owner; GRANT USAGE ON SEQUENCE s TO minter;
             CREATE FUNCTION as_owner() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$SELECT next_id(5, 's')$$;
             ALTER FUNCTION as_owner() OWNER TO owner",
        )
        .unwrap();
    (cluster, admin)
}

fn session(cluster: &Cluster, role: &str) -> Client {
    let mut session = cluster.connect();
    session.batch_execute(&format!("SET SESSION AUTHORIZATION {role}")).unwrap();
    session
}

/// Asks for a value in each way, in the session's transaction, and sees that all of them end as `expected`.
#[track_caller]
fn all_are(expected: Option<&SqlState>, session: &mut Client) {
    for way in WAYS {
        session.batch_execute("SAVEPOINT before").unwrap();
        let ended = session.batch_execute(&format!("SELECT {way} FROM generate_series(1, 3)"));
        let code = ended.err().map(|error| error.code().unwrap().clone());
        session.batch_execute("ROLLBACK TO before").unwrap();
        assert_eq!(code.as_ref(), expected, "{way}");
    }
}

/// A session learns of others' changes when it takes a lock that it does not have.
fn learn(session: &mut Client) {
    session.batch_execute("LOCK TABLE pg_catalog.pg_aggregate IN ACCESS SHARE MODE").unwrap();
}

/// A transaction in which ids were minted, what another session changes meanwhile, and how the next calls end.
#[track_caller]
fn another_session(name: &str, before: &str, change: &str) {
    let (cluster, mut admin) = server(name);
    admin.batch_execute(before).unwrap();
    let mut session = session(&cluster, "minter");
    session.batch_execute("BEGIN").unwrap();
    all_are(ALLOWED, &mut session);
    admin.batch_execute(change).unwrap();
    learn(&mut session);
    all_are(DENIED, &mut session);
    session.batch_execute("ROLLBACK; BEGIN").unwrap();
    all_are(DENIED, &mut session);
}

#[test]
fn another_session_revokes() {
    another_session("held_revoked", "", "REVOKE USAGE ON SEQUENCE s FROM minter");
}

#[test]
fn a_group_is_left() {
    another_session(
        "held_group",
        "REVOKE USAGE ON SEQUENCE s FROM minter; GRANT USAGE ON SEQUENCE s TO members; GRANT members TO minter",
        "REVOKE members FROM minter",
    );
}

#[test]
fn a_superuser_is_none_any_more() {
    another_session(
        "held_superuser",
        "REVOKE USAGE ON SEQUENCE s FROM minter; ALTER ROLE minter SUPERUSER",
        "ALTER ROLE minter NOSUPERUSER",
    );
}

#[test]
fn a_role_does_not_inherit_any_more() {
    let change = if support::major() < 16 {
        "ALTER ROLE minter NOINHERIT"
    } else {
        "GRANT members TO minter WITH INHERIT FALSE"
    };
    another_session(
        "held_inherit",
        "REVOKE USAGE ON SEQUENCE s FROM minter; GRANT USAGE ON SEQUENCE s TO members; GRANT members TO minter",
        change,
    );
}

#[test]
fn the_database_gets_another_owner() {
    another_session(
        "held_database",
        "REVOKE USAGE ON SEQUENCE s FROM minter; GRANT USAGE ON SEQUENCE s TO pg_database_owner;
         ALTER DATABASE postgres OWNER TO minter",
        "ALTER DATABASE postgres OWNER TO other",
    );
}

#[test]
fn the_session_itself_changes_what_it_may() {
    let (cluster, mut admin) = server("held_own");
    let mut session = cluster.connect();
    session.batch_execute("BEGIN; SET LOCAL ROLE owner").unwrap();
    all_are(ALLOWED, &mut session);

    // Its own privileges, and what a savepoint gives back.
    session.batch_execute("SAVEPOINT revoked; REVOKE ALL ON SEQUENCE s FROM owner").unwrap();
    all_are(DENIED, &mut session);
    session.batch_execute("ROLLBACK TO revoked").unwrap();
    all_are(ALLOWED, &mut session);

    // The user.
    session.batch_execute("SET LOCAL ROLE other").unwrap();
    all_are(DENIED, &mut session);
    session.batch_execute("SET LOCAL ROLE minter").unwrap();
    all_are(ALLOWED, &mut session);

    // The owner.
    session.batch_execute("SET LOCAL ROLE owner; SELECT next_id(5, 's'); RESET ROLE").unwrap();
    session.batch_execute("ALTER SEQUENCE s OWNER TO other; SET LOCAL ROLE owner").unwrap();
    all_are(DENIED, &mut session);
    session.batch_execute("ROLLBACK; BEGIN; SET LOCAL ROLE owner").unwrap();
    all_are(ALLOWED, &mut session);

    // Whether it may write.
    session.batch_execute("SET LOCAL transaction_read_only = on").unwrap();
    all_are(Some(&SqlState::READ_ONLY_SQL_TRANSACTION), &mut session);
    session.batch_execute("ROLLBACK").unwrap();
    admin.batch_execute("DROP SEQUENCE s").unwrap();
}

/// `nextval` reads the sequence's definition again, learns of a REVOKE while it does, and only then would check.
#[test]
fn a_change_that_is_learnt_within_nextval_counts() {
    let (cluster, mut admin) = server("held_within");
    admin
        .batch_execute("CREATE ROLE reader; GRANT SELECT ON SEQUENCE s TO minter WITH GRANT OPTION")
        .unwrap();
    let mut session = session(&cluster, "minter");
    for way in WAYS.map(|way| way.replace("next_ids(5, 's', 3)", "next_ids(5, 's', 1)")) {
        admin
            .batch_execute("REVOKE USAGE ON SEQUENCE s FROM minter; GRANT members TO minter; GRANT USAGE ON SEQUENCE s TO members")
            .unwrap();
        let mint = format!("SELECT {way}");
        session
            .batch_execute(&format!("BEGIN; {mint}; {mint}; PREPARE again AS {mint}; EXECUTE again"))
            .unwrap();
        session.batch_execute("GRANT SELECT (last_value) ON s TO reader").unwrap();
        admin.batch_execute("REVOKE members FROM minter").unwrap();
        let error = refused(&mut session, "EXECUTE again");
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{way}");
        assert_eq!(error.message(), "permission denied for sequence s", "{way}");
        session.batch_execute("ROLLBACK; DEALLOCATE again").unwrap();
    }
}

/// What is refused takes no value, in the short way either.
#[test]
fn a_shard_that_is_out_of_range_takes_no_value() {
    let (cluster, _) = server("held_range");
    let mut session = cluster.connect();
    session.batch_execute("BEGIN; SELECT next_id(5, 's') FROM generate_series(1, 3)").unwrap();
    for call in ["next_id(8192, 's')", "next_id(-1, 's')", "next_id(1024, 's', 'twitter')"] {
        session.batch_execute("SAVEPOINT before").unwrap();
        let error = refused(&mut session, &format!("SELECT {call}"));
        assert_eq!(error.code(), &SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "{call}");
        session.batch_execute("ROLLBACK TO before").unwrap();
    }
    assert_eq!(support::count(&mut session, "SELECT nextval('s')"), 4);
}

/// No function of the extension needs STRICT for its safety: an owner can take it away.
#[test]
fn a_layout_that_is_null_is_an_error() {
    let (cluster, mut admin) = server("held_null");
    admin
        .batch_execute(
            "ALTER FUNCTION next_id(integer, regclass, id_layout) CALLED ON NULL INPUT;
             ALTER FUNCTION next_ids(integer, regclass, integer, id_layout) CALLED ON NULL INPUT",
        )
        .unwrap();
    let mut session = cluster.connect();
    for way in ["next_id(5, 's', NULL::id_layout)", "next_ids(5, 's', 3, NULL::id_layout)"] {
        session.batch_execute("BEGIN; SELECT next_id(5, 's') FROM generate_series(1, 3)").unwrap();
        let error = refused(&mut session, &format!("SELECT {way}"));
        assert_eq!(error.code(), &SqlState::INVALID_BINARY_REPRESENTATION, "{way}");
        session.batch_execute("ROLLBACK").unwrap();
    }
    assert_eq!(support::count(&mut session, "SELECT nextval('s')"), 7);
}

#[test]
fn a_function_mints_with_its_owners_rights_and_its_caller_does_not() {
    let (cluster, mut admin) = server("held_definer");
    admin.batch_execute("GRANT EXECUTE ON FUNCTION as_owner() TO PUBLIC").unwrap();
    let mut session = session(&cluster, "other");
    session.batch_execute("BEGIN").unwrap();
    for _ in 0..3 {
        session.batch_execute("SELECT as_owner() FROM generate_series(1, 3)").unwrap();
        all_are(DENIED, &mut session);
    }
}

#[test]
fn a_procedure_commits() {
    let (cluster, mut admin) = server("held_commits");
    let mut session = session(&cluster, "minter");
    admin.batch_execute("SELECT pg_advisory_lock(1)").unwrap();
    let calls = std::thread::spawn(move || {
        // The REVOKE comes between COMMIT and the next call.
        let call = "DO $$ BEGIN
                        PERFORM next_id(5, 's') FROM generate_series(1, 3);
                        COMMIT;
                        PERFORM pg_advisory_lock(1);
                        PERFORM next_id(5, 's');
                    END $$";
        refused(&mut session, call)
    });
    support::within(std::time::Duration::from_secs(10), || {
        support::count(
            &mut admin,
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
        ) == 1
    });
    // Committed before the other session goes on.
    admin.batch_execute("REVOKE USAGE ON SEQUENCE s FROM minter").unwrap();
    admin.batch_execute("SELECT pg_advisory_unlock(1)").unwrap();
    assert_eq!(calls.join().unwrap().code(), &SqlState::INSUFFICIENT_PRIVILEGE);
}

#[test]
fn a_sequence_is_dropped_in_the_transaction_that_used_it() {
    let (cluster, _) = server("held_dropped");
    let mut session = cluster.connect();
    session.batch_execute("BEGIN; SELECT next_id(5, 's') FROM generate_series(1, 3)").unwrap();
    let oid: u32 = session.query_one("SELECT 's'::regclass::oid", &[]).unwrap().get(0);
    session.batch_execute("SAVEPOINT dropped; DROP SEQUENCE s").unwrap();
    let error = refused(&mut session, &format!("SELECT next_id(5, {oid}::regclass)"));
    assert_eq!(error.code(), &SqlState::UNDEFINED_TABLE);
    session.batch_execute("ROLLBACK TO dropped").unwrap();
    session.batch_execute("SELECT next_id(5, 's') FROM generate_series(1, 3)").unwrap();
    // Another sequence by the same name is another one.
    session.batch_execute("DROP SEQUENCE s; CREATE SEQUENCE s START 7").unwrap();
    assert_eq!(support::count(&mut session, "SELECT next_id(5, 's') & 1023"), 7);
}
