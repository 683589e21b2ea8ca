//! Roles act within their own rights.

use postgres::Client;
use postgres::error::SqlState;
use support::{Cluster, count, refused, texts};

/// A worker runs as a superuser. Only superusers start one.
#[test]
fn a_provisioner_starts_no_worker() {
    let cluster = Cluster::start("workers");
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE ROLE guest; SELECT insta_ids.grant_provisioning('guest'); SET ROLE guest")
        .unwrap();
    for call in ["start_driver(1, 2, false)", "await_driver()", "end_pauses()"] {
        let error = refused(&mut client, &format!("SELECT insta_ids_internal.{call}"));
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{call}");
    }
}

/// Functions that read a table or alter it with its owner's rights refuse callers who could not become that owner.
#[test]
fn no_role_reads_or_alters_tables_of_a_role_it_cannot_become() {
    let cluster = Cluster::start("as_owner");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE guest; CREATE ROLE owner; CREATE ROLE member IN ROLE owner; CREATE TABLE t (id bigint);
             ALTER TABLE t OWNER TO owner; SELECT insta_ids.grant_provisioning('guest'), insta_ids.grant_provisioning('member')",
        )
        .unwrap();
    let as_owner =
        |command: &str| format!("SELECT insta_ids_internal.as_owner('t'::regclass, $_${command}$_$)");
    let whoami = as_owner("SELECT (current_user || ' ' || current_setting('search_path'))::integer");
    let owner = "invalid input syntax for type integer: \"owner pg_catalog, pg_temp\"";
    let surveys = [
        "SELECT * FROM insta_ids_internal.survey_ids('t'::regclass, 'id', 1, 'instagram', 0, 1, true)",
        "SELECT * FROM insta_ids_internal.survey_rows('t'::regclass)",
        "SELECT insta_ids_internal.row_hashes('t'::regclass)",
    ];
    for role in ["postgres", "member"] {
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        assert_eq!(refused(&mut client, &whoami).message(), owner, "{role}");
        for survey in surveys {
            client.batch_execute(survey).unwrap();
        }
    }
    client.batch_execute("SET ROLE guest").unwrap();
    for call in surveys.into_iter().chain([whoami.as_str()]) {
        assert_eq!(refused(&mut client, call).message(), "must be owner of table t", "{call}");
    }
    client.batch_execute("RESET ROLE").unwrap();
    // The rights and settings of before are there again, also after an error, and nothing gets around them.
    for (command, message) in [
        ("SELECT 1/0", "division by zero"),
        ("SET ROLE postgres", "cannot set parameter \"role\" within security-restricted operation"),
        ("CREATE TEMP TABLE x ()", "cannot create temporary table within security-restricted operation"),
        ("SELECT nothing()", "function nothing() does not exist"),
    ] {
        let call = as_owner(command);
        assert_eq!(refused(&mut client, &format!("BEGIN; SAVEPOINT s; {call}")).message(), message);
        client.batch_execute("ROLLBACK TO s").unwrap();
        let now = texts(&mut client, "SELECT concat_ws(' ', current_user, current_setting('search_path'))");
        assert_eq!(now, ["postgres \"$user\", public"], "{command}");
        client.batch_execute("COMMIT").unwrap();
    }
    client.batch_execute(&as_owner("SELECT 1")).unwrap();
    let now = texts(&mut client, "SELECT concat_ws(' ', current_user, current_setting('search_path'))");
    assert_eq!(now, ["postgres \"$user\", public"]);
}

/// Partitions are made by name with the rights of the parent's owner. Until that transaction ends, an owner of the schema
/// cannot put another relation in the parent's place.
#[test]
fn a_schema_keeps_its_name_while_partitions_are_made() {
    let cluster = Cluster::start("held_schema");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE tenant LOGIN; GRANT CREATE ON DATABASE postgres TO tenant; CREATE SCHEMA theirs AUTHORIZATION tenant;
             CREATE TABLE theirs.notes (id bigint) PARTITION BY RANGE (id)",
        )
        .unwrap();
    let mut tenant = cluster.connect();
    tenant.batch_execute("SET ROLE tenant; SET lock_timeout = '300ms'").unwrap();
    let rename = "ALTER SCHEMA theirs RENAME TO gone";
    for call in [
        "SELECT insta_ids.create_partitions('theirs.notes', '1 day', now(), now() + '2 days')",
        "SELECT insta_ids.drop_partitions('theirs.notes', now() + '1 day')",
    ] {
        client.batch_execute(&format!("BEGIN; {call}")).unwrap();
        assert_eq!(refused(&mut tenant, rename).code(), &SqlState::LOCK_NOT_AVAILABLE, "{call}");
        client.batch_execute("COMMIT").unwrap();
    }
    tenant.batch_execute(rename).unwrap();
}

/// Members of a shared role migrate as that role. A superuser does not, as a statement could take the superuser's role back.
#[test]
fn members_of_a_shared_role_apply_its_migrations() {
    let cluster = Cluster::start("shared_role");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE deployer; CREATE ROLE member IN ROLE deployer; GRANT CREATE ON DATABASE postgres TO deployer;
             SELECT insta_ids.grant_provisioning('deployer'); SELECT insta_ids.init(10);
             SET SESSION AUTHORIZATION member; SET ROLE deployer;
             SELECT insta_ids.add_migration('0001', 'SELECT 1'); SELECT insta_ids.create_shard(1);
             RESET SESSION AUTHORIZATION; SET ROLE deployer",
        )
        .unwrap();
    let error = refused(&mut client, "SELECT insta_ids.create_shard(2)");
    assert_eq!(error.message(), "migration \"0001\" was added by role \"deployer\"");
    client
        .batch_execute("RESET ROLE; SELECT insta_ids.add_migration('0001', 'SELECT 1'); SET ROLE deployer")
        .unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(2)").unwrap();
}

/// Which migration each shard has.
const STATES: &str =
    "SELECT concat_ws(' ', shard, name, state) FROM insta_ids.migration_status ORDER BY shard, number";

/// Adds what only a superuser may do.
const ADD: &str = "SELECT insta_ids.add_migration('0002', 'DO $a$BEGIN ALTER ROLE guest CREATEDB; END$a$')";

/// A migration runs with the rights of the caller. It runs only if its author has them too, or if the caller has added it as
/// well. Only a superuser can say who the author is.
#[test]
fn a_migration_runs_only_with_rights_its_author_has() {
    let cluster = Cluster::start("migrations_of_others");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE guest; CREATE ROLE peer; CREATE ROLE deployer; CREATE ROLE member IN ROLE deployer;
             SELECT insta_ids.grant_provisioning(r::regrole) FROM unnest('{guest,peer,deployer,member}'::text[]) r;
             SELECT insta_ids.init(10), insta_ids.create_shard(1), insta_ids.create_shard(2);
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)');
             SET ROLE guest; SELECT insta_ids.add_migration('0002', 'DO $a$BEGIN ALTER ROLE guest CREATEDB; END$a$'); RESET ROLE",
        )
        .unwrap();
    let of_guest = |client: &mut Client, call: &str| {
        let error = refused(client, call);
        let expected = ("42501", "migration \"0002\" was added by role \"guest\"");
        assert_eq!((error.code().code(), error.message()), expected, "{call}");
    };
    let apply = [
        "CALL insta_ids.migrate()",
        "SELECT insta_ids.create_shard(5)",
        "CALL insta_ids.create_shards(3, 8)",
    ];
    for call in apply {
        of_guest(&mut client, call);
    }
    // A statement could go back to the role that the session began with.
    client.batch_execute("SET ROLE guest").unwrap();
    of_guest(&mut client, "CALL insta_ids.migrate()");
    client.batch_execute("RESET ROLE").unwrap();
    assert_eq!(
        texts(&mut client, STATES),
        ["1 0001 pending", "1 0002 pending", "2 0001 pending", "2 0002 pending"]
    );

    // Whatever guests write to the table, it is theirs; and what others added they do not write.
    client.batch_execute("SET ROLE guest").unwrap();
    for write in [
        "UPDATE insta_ids_internal.migration SET added_by = 'postgres' WHERE name = '0002'",
        "DELETE FROM insta_ids_internal.migration WHERE name = '0002';
         INSERT INTO insta_ids_internal.migration (number, name, ddl, transactional, check_ids, added_by)
         VALUES (2, '0002', 'DO $a$BEGIN ALTER ROLE guest CREATEDB; END$a$', true, true, 'postgres')",
    ] {
        client.batch_execute(write).unwrap();
    }
    for write in [
        "UPDATE insta_ids_internal.migration SET ddl = 'DO $a$BEGIN ALTER ROLE guest CREATEDB; END$a$' WHERE name = '0001'",
        "UPDATE insta_ids_internal.migration SET added_by = 'guest' WHERE name = '0001'",
        "DELETE FROM insta_ids_internal.migration WHERE name = '0001'",
        "SELECT insta_ids.add_migration('0001', 'DO $a$BEGIN ALTER ROLE guest CREATEDB; END$a$')",
    ] {
        let error = refused(&mut client, write);
        let expected = ("42501", "migration \"0001\" was added by role \"postgres\"");
        assert_eq!((error.code().code(), error.message()), expected, "{write}");
    }
    // The superuser could act as the guest: that the same is added again changes nothing.
    client
        .batch_execute("SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)')")
        .unwrap();
    client.batch_execute("SET ROLE peer").unwrap();
    of_guest(&mut client, ADD);
    client.batch_execute("RESET ROLE").unwrap();
    for call in apply {
        of_guest(&mut client, call);
    }

    // Who has read it takes it over, also where it was applied before.
    client.batch_execute("INSERT INTO insta_ids_internal.shard_migration VALUES (1, 2)").unwrap();
    client.batch_execute(ADD).unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname = 'guest' AND rolcreatedb"),
        1
    );
    client.batch_execute("ALTER ROLE guest NOCREATEDB").unwrap();

    // So it is with those that run outside of transactions, and where their author is gone.
    let index = "'CREATE INDEX CONCURRENTLY ON photos (id)', transactional => false";
    for (role, gone) in [("guest", ""), ("member", "DROP OWNED BY member; DROP ROLE member")] {
        client
            .batch_execute(&format!("SET ROLE {role}; SELECT insta_ids.add_migration('index of {role}', {index}); RESET ROLE; {gone}"))
            .unwrap();
        for call in [
            &*format!("SELECT insta_ids.migration_script('index of {role}')"),
            "CALL insta_ids.migrate()",
            "SELECT insta_ids.create_shard(6)",
        ] {
            let error = refused(&mut client, call);
            assert_eq!(
                error.message(),
                format!("migration \"index of {role}\" was added by role \"{role}\""),
                "{call}"
            );
        }
        client
            .batch_execute(&format!("SELECT insta_ids_internal.start_migration('index of {role}', 1, '')"))
            .unwrap();
        assert_eq!(texts(&mut client, "SELECT pg_catalog.current_setting('search_path')"), ["pg_catalog"]);
        client
            .batch_execute(&format!(
                "RESET search_path; SELECT insta_ids.add_migration('index of {role}', {index})"
            ))
            .unwrap();
        for line in texts(&mut client, &format!("SELECT insta_ids.migration_script('index of {role}')")) {
            client.batch_execute(&line).unwrap();
        }
    }
    assert_eq!(texts(&mut client, &STATES.replace("ORDER", "WHERE state <> 'applied' ORDER")), [""; 0]);
}
