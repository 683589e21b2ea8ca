//! Migrations are skipped, dropped, replaced by a baseline, and tried without being applied.

use postgres::Client;
use postgres::error::SqlState;

use support::pair::Pair;
use support::shards::{Running, add};
use support::{Cluster, count, refused, texts};

use super::check;

const STATUS: &str = "SELECT concat_ws(' ', name, shard, state, changed_by, message) FROM insta_ids.migration_status ORDER BY number, name, shard";

/// A server with shards 0 and 1.
fn with_shards(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(2)").unwrap();
    add(&mut client, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)");
    client.batch_execute("SELECT insta_ids.create_shard(n) FROM generate_series(0, 1) n").unwrap();
    (cluster, client)
}

fn migrate(client: &mut Client) {
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
}

/// What was done by hand is recorded, with the role that says so; the other shards get the migration.
#[test]
fn a_migration_that_was_done_by_hand_is_skipped() {
    let (_cluster, mut client) = with_shards("skip");
    client.batch_execute("ALTER TABLE insta1.photos ADD caption text").unwrap();
    add(&mut client, "0002", "ALTER TABLE photos ADD caption text");
    let error = refused(&mut client, "CALL insta_ids.migrate()");
    assert_eq!(error.message(), "1 of 2 shards could not be migrated");
    for (call, code, message) in [
        (
            "SELECT insta_ids.skip_migration('0003', 1, 1)",
            SqlState::UNDEFINED_OBJECT,
            "migration \"0003\" does not exist",
        ),
        (
            "SELECT insta_ids.skip_migration('0002', 1, 0)",
            SqlState::INVALID_PARAMETER_VALUE,
            "first shard 1 is greater than last shard 0",
        ),
        (
            "SELECT insta_ids.skip_migration('0002', 0, 2)",
            SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
            "shard 2 is out of range",
        ),
        (
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT insta_ids.skip_migration('0002', 1, 1)",
            SqlState::ACTIVE_SQL_TRANSACTION,
            "command cannot run in a transaction of isolation level \"repeatable read\"",
        ),
    ] {
        let error = refused(&mut client, call);
        assert_eq!((error.code(), error.message()), (&code, message));
        client.batch_execute("ROLLBACK").unwrap();
    }
    // Drivers send arguments without types.
    assert_eq!(texts(&mut client, "SELECT insta_ids.skip_migration('0002', '0', '1')::text"), ["1"]);
    assert_eq!(
        texts(&mut client, STATUS),
        ["0001 0 applied", "0001 1 applied", "0002 0 applied", "0002 1 applied postgres"]
    );
    migrate(&mut client);
    check(&mut client, "skipped", [0, 1]);
}

/// A migration that no shard has is dropped, and its number is free for another one.
#[test]
fn a_migration_that_no_shard_has_is_dropped() {
    let (_cluster, mut client) = with_shards("dropped");
    add(&mut client, "0002", "ALTER TABLE no_table ADD n int");
    refused(&mut client, "CALL insta_ids.migrate()");
    client.batch_execute("SELECT insta_ids.drop_migration('0002')").unwrap();
    assert_eq!(texts(&mut client, STATUS), ["0001 0 applied", "0001 1 applied", "0002 dropped postgres"]);
    let error = refused(&mut client, "SELECT insta_ids.drop_migration('0002')");
    assert!(error.detail().unwrap().starts_with("Role postgres dropped it at "), "{error:?}");
    migrate(&mut client);
    add(&mut client, "0002", "ALTER TABLE photos ADD caption text");
    migrate(&mut client);
    check(&mut client, "dropped", [0, 1]);
}

/// Of migrations that shards have, only those are dropped without which the shards would be the same.
#[test]
fn a_migration_is_dropped_only_if_it_changes_nothing() {
    let (_cluster, mut client) = with_shards("drop_noop");
    add(&mut client, "0002", "ALTER TABLE photos ADD COLUMN IF NOT EXISTS n int");
    add(&mut client, "0003", "CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1)");
    add(&mut client, "0004", "INSERT INTO kinds VALUES (2)");
    add(&mut client, "0005", "CREATE TABLE mistakes (id int PRIMARY KEY)");
    migrate(&mut client);
    client.batch_execute("INSERT INTO insta1.photos (n) VALUES (5)").unwrap();
    for (name, message, detail) in [
        ("0003", "new migrations cannot be applied to a new shard", "Relation \"kinds\" does not exist."),
        (
            "0004",
            "new shards would have other rows in table \"kinds\"",
            "Migrations inserted 2 rows into it, and would insert 1.",
        ),
        (
            "0005",
            "shards would not be alike: NOT NULL mistakes.id",
            "The shards have NOT NULL. A new shard would have nothing.",
        ),
    ] {
        let error = refused(&mut client, &format!("SELECT insta_ids.drop_migration('{name}')"));
        assert_eq!((error.message(), error.detail()), (message, Some(detail)), "{name}");
    }
    // The shards are as they were.
    check(&mut client, "refused", [0, 0]);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta1.photos"), 1);
    client.batch_execute("SELECT insta_ids.drop_migration('0002')").unwrap();
    // Undone by hand in all shards, it changes nothing, either.
    client.batch_execute("DROP TABLE insta0.mistakes, insta1.mistakes").unwrap();
    client.batch_execute("SELECT insta_ids.drop_migration('0005')").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta1.photos"), 1);
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'insta_ids_aside%'"),
        0
    );
    client.batch_execute("SELECT insta_ids.drop_shard(0, force => true)").unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(0)").unwrap();
    check(&mut client, "dropped", [0, 0]);
}

/// A baseline replaces a history, also one that new shards cannot get any more. Later migrations follow it.
#[test]
fn a_baseline_replaces_a_history() {
    let (cluster, mut client) = with_shards("squash");
    client.batch_execute("CREATE TABLE public.gone (id int PRIMARY KEY)").unwrap();
    add(&mut client, "0002", "CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1)");
    add(&mut client, "0003", "CREATE TABLE copies AS SELECT * FROM gone; DROP TABLE copies");
    add(&mut client, "0004", "ALTER TABLE photos ADD caption text");
    let baseline = "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int);
        CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1)";
    let squash = |up_to: &str, text: &str| {
        format!("SELECT insta_ids.squash_migrations('{up_to}', 'baseline', '{text}')::text")
    };
    let error = refused(&mut client, &squash("0003", baseline));
    assert_eq!(error.message(), "shard 0 lacks migration \"0002\"");
    migrate(&mut client);
    for (text, message) in [
        (
            "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id())",
            "shards would not be alike: NOT NULL kinds.id",
        ),
        (&*baseline.replace("n int", "n bigint"), "shards would not be alike: column photos.n"),
        (
            &*baseline.replace("VALUES (1)", "SELECT 1 WHERE false"),
            "new shards would have other rows in table \"kinds\"",
        ),
        ("SELECT 1/0", "new migrations cannot be applied to a new shard"),
        (
            "CREATE SCHEMA s",
            "statement 1 of migration \"baseline\" is CREATE SCHEMA, which a migration cannot contain",
        ),
    ] {
        assert_eq!(refused(&mut client, &squash("0003", text)).message(), message);
    }
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.former_migration"), 0);
    // The history is not legal any more.
    client.batch_execute("DROP TABLE public.gone").unwrap();
    client.batch_execute("INSERT INTO insta1.photos (caption) VALUES ('mine')").unwrap();
    let dump = support::scratch().join("squash.dump");
    let run = cluster.program("pg_dump", "postgres").args(["-Fc", "-n", "insta1", "-f"]).arg(&dump).status();
    assert!(run.unwrap().success());
    client.batch_execute("SELECT insta_ids.drop_shard(1, force => true)").unwrap();
    refused(&mut client, "SELECT insta_ids.create_shard(1)");
    assert_eq!(texts(&mut client, &squash("0003", baseline)), ["3"]);
    assert_eq!(
        texts(&mut client, STATUS),
        [
            "0001 squashed postgres replaced by migration \"baseline\"",
            "0002 squashed postgres replaced by migration \"baseline\"",
            "0003 squashed postgres replaced by migration \"baseline\"",
            "baseline 0 applied",
            "0004 0 applied",
        ]
    );
    // A shard that was archived under the old history comes back.
    let mut restore = cluster.program("pg_restore", "postgres");
    assert!(restore.args(["-d", "postgres"]).arg(&dump).status().unwrap().success());
    let error = refused(&mut client, "SELECT insta_ids.adopt('insta1', 1, migrated_to => '0002')");
    assert_eq!(error.detail(), Some("It was replaced by migration \"baseline\"."));
    client.batch_execute("SELECT insta_ids.adopt('insta1', 1, migrated_to => '0003')").unwrap();
    migrate_after(&mut client);
    client.batch_execute("SELECT insta_ids.drop_shard(0, force => true)").unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(0)").unwrap();
    check(&mut client, "squashed", [0, 0]);
    assert_eq!(texts(&mut client, "SELECT caption FROM insta1.photos"), ["mine"]);
    // Again, all of it.
    add(&mut client, "0005", "ALTER TABLE photos DROP n");
    migrate(&mut client);
    let second = "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text);
        CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1)";
    let call = squash("0005", second).replace("'baseline'", "'second'");
    assert_eq!(texts(&mut client, &call), ["3"]);
    check(&mut client, "squashed again", [0, 0]);
}

/// The archived shard had migration 0004, but was restored as of 0003: it is recorded where it was done.
fn migrate_after(client: &mut Client) {
    refused(client, "CALL insta_ids.migrate()");
    assert_eq!(texts(client, "SELECT insta_ids.skip_migration('0004', 1, 1)::text"), ["1"]);
    migrate(client);
}

/// Two nodes that squashed alike can exchange shards.
#[test]
fn shards_move_between_nodes_that_have_the_same_baseline() {
    let pair = Pair::start("squash_move");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    add(&mut a, "0002", "ALTER TABLE photos ADD n int");
    migrate(&mut a);
    b.batch_execute("CALL insta_ids.move_shards(1, 1, 'a')").unwrap();
    let squash = "SELECT insta_ids.squash_migrations('0002', 'baseline',
        'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text, n int);
         CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), photo bigint REFERENCES photos)')";
    a.batch_execute(squash).unwrap();
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
    assert_eq!(error.message(), "migration \"0001\" is not the same on node \"a\"");
    assert!(error.hint().unwrap().contains("squash_migrations"), "{error:?}");
    b.batch_execute("CALL insta_ids.move_abort(2, 2, 'a')").unwrap();
    b.batch_execute(squash).unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    check(&mut b, "moved", [1, 2]);
}

/// A migration is tried in one shard, and nothing of it stays.
#[test]
fn a_migration_is_tried_before_any_shard_has_it() {
    let (cluster, mut client) = with_shards("tried");
    client.batch_execute("INSERT INTO insta0.photos (n) SELECT generate_series(1, 1000)").unwrap();
    add(
        &mut client,
        "0002",
        "ALTER TABLE photos ADD caption text; CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id())",
    );
    add(&mut client, "0003", "ALTER TABLE photos ALTER n TYPE bigint; CREATE INDEX ON likes (id)");
    let tried = |name: &str| {
        format!(
            "SELECT concat_ws(' ', severity, code, object, detail) FROM insta_ids.check_migration('{name}') ORDER BY code DESC, object"
        )
    };
    let lock = |table: &str, mode: &str| {
        format!("notice lock {table} Locked in mode {mode} until the shard's batch commits.")
    };
    assert_eq!(texts(&mut client, &tried("0002")), [lock("insta0.photos", "ACCESS EXCLUSIVE")]);
    // Nobody waits for a table that the migration before has just made.
    let findings = texts(&mut client, &tried("0003"));
    assert!(
        matches!(&findings[..], [one] if one.starts_with("warning rewrite insta0.photos All its rows are written again, or removed: ")),
        "{findings:?}"
    );
    assert_eq!(
        count(
            &mut client,
            "SELECT count(*) FROM insta_ids.migration_status WHERE state <> 'pending' AND number > 1"
        ),
        0
    );
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_class WHERE relname = 'likes'"), 0);

    add(&mut client, "0003", "ALTER TABLE photos ADD m int; ALTER TABLE photos ADD n int");
    let fails = "error fails migration \"0003\" In shard 0, statement 2 fails with SQLSTATE 42701: column \"n\" of relation \"photos\" already exists";
    assert_eq!(texts(&mut client, &tried("0003")), [fails]);
    client.batch_execute("SELECT insta_ids.drop_migration('0003')").unwrap();
    add(&mut client, "0004", "CREATE SEQUENCE s");
    client
        .batch_execute("SELECT insta_ids.add_migration('0005', 'CREATE INDEX CONCURRENTLY ON photos (n)', transactional => false)")
        .unwrap();
    let untried = "notice not_tried migration \"0005\" It cannot run in a transaction, so neither it nor what follows it was tried. Its text was checked when it was added.";
    assert_eq!(texts(&mut client, &tried("0005")), [untried]);
    // Another session has the table: the dry run waits no longer than it may.
    let mut holder = cluster.connect();
    holder.batch_execute("BEGIN; LOCK TABLE insta0.photos").unwrap();
    let waits =
        "SELECT concat_ws(' ', code, detail) FROM insta_ids.check_migration('0002', lock_timeout => '10ms')";
    assert_eq!(
        texts(&mut client, waits),
        ["fails In shard 0, statement 1 fails with SQLSTATE 55P03: canceling statement due to lock timeout"]
    );
    assert_eq!(texts(&mut client, &waits.replace("'0002'", "'0002', 1")).len(), 1);
    holder.batch_execute("COMMIT").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.check_migration('0001')");
    assert_eq!(error.message(), "no shard can try migration \"0001\"");
    // The session's own limit is what it was.
    assert_eq!(texts(&mut client, "SHOW lock_timeout"), ["0"]);
}

/// Pending migrations are applied in one transaction where they can be, and in several where a new value of an enum is used.
#[test]
fn pending_migrations_can_use_each_others_enum_values() {
    let (_cluster, mut client) = with_shards("pending_values");
    add(&mut client, "0002", "CREATE TYPE mood AS ENUM ('calm'); CREATE TABLE moods (mood mood PRIMARY KEY)");
    migrate(&mut client);
    add(&mut client, "0003", "ALTER TYPE mood ADD VALUE 'wild'");
    add(&mut client, "0004", "INSERT INTO moods VALUES ('wild')");
    let tried = "SELECT concat_ws(' ', code, object) FROM insta_ids.check_migration('0004')";
    assert_eq!(texts(&mut client, tried), ["not_tried migration \"0004\""]);
    migrate(&mut client);
    check(&mut client, "both", [0, 1]);
}

/// A dry run reports locks outside of the shard, and those of what it drops.
#[test]
fn a_dry_run_reports_each_lock() {
    let (_cluster, mut client) = with_shards("locks");
    client.batch_execute("CREATE TABLE public.users (id int PRIMARY KEY)").unwrap();
    add(
        &mut client,
        "0002",
        "CREATE VIEW seen AS SELECT id FROM photos; CREATE TABLE old (id int PRIMARY KEY)",
    );
    migrate(&mut client);
    add(
        &mut client,
        "0003",
        "ALTER TABLE photos ADD user_id int REFERENCES users; DROP TABLE old; CREATE OR REPLACE VIEW seen AS SELECT id FROM photos WHERE n > 0",
    );
    let locks = "SELECT concat_ws(' ', object, split_part(detail, ' until', 1)) FROM insta_ids.check_migration('0003') WHERE code = 'lock'";
    assert_eq!(
        texts(&mut client, locks),
        [
            "insta0.old Locked in mode ACCESS EXCLUSIVE",
            "insta0.photos Locked in mode ACCESS EXCLUSIVE",
            "insta0.seen Locked in mode ACCESS EXCLUSIVE",
            "public.users Locked in mode SHARE ROW EXCLUSIVE"
        ]
    );
}

/// A shard that is dropped while its migrations are squashed leaves nothing behind.
#[test]
fn a_shard_that_is_dropped_meanwhile_is_not_recorded() {
    let (cluster, mut client) = with_shards("squash_drop");
    let mut squashing = cluster.connect();
    squashing
        .batch_execute("BEGIN; SELECT insta_ids.squash_migrations('0001', 'baseline', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)')")
        .unwrap();
    let dropping = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(1)");
    dropping.await_waiting(&mut client);
    squashing.batch_execute("COMMIT").unwrap();
    dropping.end().unwrap();
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard_migration WHERE shard = 1"),
        0
    );
    client.batch_execute("SELECT insta_ids.create_shard(1)").unwrap();
    check(&mut client, "dropped", [0, 1]);
}

/// A node without shards takes the same baseline as the others.
#[test]
fn a_node_without_shards_can_squash() {
    let pair = Pair::start("squash_empty");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    b.batch_execute(support::pair::MIGRATION).unwrap();
    let squash = "SELECT insta_ids.squash_migrations('0001', 'baseline',
        'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text);
         CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), photo bigint REFERENCES photos)')";
    for node in [&mut a, &mut b] {
        node.batch_execute(squash).unwrap();
    }
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    add(&mut a, "0002", "SELECT 1");
    let error =
        refused(&mut a, &squash.replace("'0001'", "'baseline'").replacen("'baseline',\n", "'0002',\n", 1));
    assert_eq!(error.message(), "migration \"0002\" already exists");
}

/// A function of an index cannot end settings of the server, and so let its own outlast the command.
#[test]
fn code_of_other_roles_cannot_end_a_migration() {
    let (cluster, mut client) = with_shards("change_settings");
    client
        .batch_execute(
            "CREATE ROLE keeper LOGIN; SELECT insta_ids.grant_provisioning('keeper'); GRANT CREATE ON DATABASE postgres TO keeper",
        )
        .unwrap();
    let mut keeper = cluster.config().user("keeper").connect(postgres::NoTls).unwrap();
    let function = |calls: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION evil.f(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
                 BEGIN {calls} EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', SQLERRM; END;
                 PERFORM pg_catalog.set_config('search_path', 'evil, pg_catalog', false); RETURN x; END $$"
        )
    };
    keeper
        .batch_execute("CREATE SCHEMA evil; CREATE TABLE evil.bait (x int); INSERT INTO evil.bait VALUES (1)")
        .unwrap();
    keeper.batch_execute(&function("NULL;")).unwrap();
    keeper
        .batch_execute(
            "CREATE INDEX ON evil.bait (evil.f(x)); CREATE STATISTICS evil.s ON (evil.f(x)) FROM evil.bait",
        )
        .unwrap();
    for calls in [
        "PERFORM insta_ids_internal.end_migration();",
        "PERFORM insta_ids_internal.begin_migration(0, false); PERFORM insta_ids_internal.end_migration();",
        "PERFORM insta_ids_internal.begin_migration(0, true);",
    ] {
        keeper.batch_execute(&function(calls)).unwrap();
        for command in ["REINDEX TABLE evil.bait", "ANALYZE evil.bait", "VACUUM FULL evil.bait"] {
            client.batch_execute(command).unwrap();
            assert_eq!(texts(&mut client, "SHOW search_path"), ["\"$user\", public"], "{calls} {command}");
        }
    }
    let error = refused(&mut keeper, "SELECT insta_ids_internal.end_migration()");
    assert_eq!((error.code(), error.message()), (&SqlState::INTERNAL_ERROR, "no migration has begun here"));
    // An enum of another transaction keeps its unsafe values.
    keeper.batch_execute("CREATE TYPE evil.mood AS ENUM ('calm')").unwrap();
    keeper
        .batch_execute(
            "BEGIN; ALTER TYPE evil.mood ADD VALUE 'wild'; SELECT insta_ids_internal.begin_migration(0, true);
             SELECT insta_ids_internal.end_migration()",
        )
        .unwrap();
    let error = refused(&mut keeper, "SELECT 'wild'::evil.mood");
    assert_eq!(error.code().code(), "55P04");
}

/// A provisioning role may do all of this with its own migrations, and not with those of a superuser.
#[test]
fn a_provisioning_role_changes_its_own_migrations() {
    let (cluster, mut client) = with_shards("change_rights");
    client
        .batch_execute(
            "CREATE ROLE keeper LOGIN; SELECT insta_ids.grant_provisioning('keeper'); GRANT CREATE ON DATABASE postgres TO keeper;
             CREATE ROLE guest LOGIN",
        )
        .unwrap();
    let mut keeper = cluster.config().user("keeper").connect(postgres::NoTls).unwrap();
    for call in [
        "SELECT insta_ids.drop_migration('0001')",
        "SELECT insta_ids.squash_migrations('0001', 'baseline', 'SELECT 1')",
    ] {
        let error = refused(&mut keeper, call);
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{call}: {error:?}");
    }
    let mut guest = cluster.config().user("guest").connect(postgres::NoTls).unwrap();
    for call in [
        "SELECT insta_ids.drop_migration('0001')",
        "SELECT insta_ids.skip_migration('0001', 0, 1)",
        "SELECT insta_ids.check_migration('0001')",
        "SELECT insta_ids.squash_migrations('0001', 'baseline', 'SELECT 1')",
    ] {
        let error = refused(&mut guest, call);
        assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{call}: {error:?}");
    }
    add(&mut keeper, "0002", "SELECT 1");
    assert_eq!(
        refused(&mut keeper, "SELECT insta_ids.skip_migration('0002', 0, 0)").message(),
        "must be owner of schema insta0"
    );
    keeper.batch_execute("SELECT insta_ids.drop_migration('0002')").unwrap();
    client.batch_execute("SELECT insta_ids.drop_shard(n, force => true) FROM generate_series(0, 1) n; SELECT insta_ids.drop_migration('0001')").unwrap();
    add(&mut keeper, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id())");
    keeper.batch_execute("SELECT insta_ids.create_shard(0)").unwrap();
    add(&mut keeper, "0002", "ALTER TABLE photos ADD n int");
    assert_eq!(count(&mut keeper, "SELECT count(*) FROM insta_ids.check_migration('0002')"), 1);
    keeper.batch_execute("CALL insta_ids.migrate()").unwrap();
    keeper
        .batch_execute("SELECT insta_ids.squash_migrations('0002', 'baseline', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)')")
        .unwrap();
    keeper.batch_execute("SELECT insta_ids.create_shard(1)").unwrap();
    check(&mut client, "by a role", [0, 1]);
}
