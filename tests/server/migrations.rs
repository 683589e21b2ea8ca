//! Promise: a migration is applied to a shard entirely or not at all, once, and what is recorded of it is so; what
//! fails in one shard, or waits there, keeps no other from it.

use std::process::Child;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};

use support::shards::{HOLD, PHOTOS, RELEASE, Running, WAITS_IN_12, add, at_once, check_complete, set_up};
use support::{Cluster, count, refused, texts, within};

/// What of a migration is not applied.
const REST: &str = "SELECT concat_ws(' ', name, shard, state, statement, sqlstate, message)
                    FROM insta_ids.migration_status WHERE state <> 'applied' ORDER BY number, shard";

/// A server with shards 0 to 19, which have [`PHOTOS`].
fn with_shards(name: &str) -> (Cluster, Client) {
    let (cluster, mut client) = set_up(name, 1000);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 19)").unwrap();
    (cluster, client)
}

/// A migration that waits for a table of one shard keeps no session from the tables of the others.
#[test]
fn a_migration_that_waits_in_one_shard_blocks_no_other() {
    let (cluster, mut client) = with_shards("locked");
    let [mut holder, mut writer] = [(); 2].map(|()| cluster.connect());
    holder.batch_execute("BEGIN; LOCK TABLE insta12.photos").unwrap();
    writer.batch_execute("SET lock_timeout = '1s'").unwrap();
    add(&mut client, "0002", "ALTER TABLE likes ADD at timestamptz; ALTER TABLE photos ADD at timestamptz");
    let call = Running::start(cluster.connect(), "CALL insta_ids.migrate(lock_timeout => '1min')");
    let long = format!(
        "SELECT count(*) FROM pg_locks
         WHERE pid = {} AND NOT granted AND relation = 'insta12.photos'::regclass AND waitstart < clock_timestamp() - interval '100 ms'",
        call.pid
    );
    within(Duration::from_secs(30), || count(&mut client, &long) == 1);
    for shard in (0..20).filter(|&shard| shard != 12) {
        writer.batch_execute(&format!("INSERT INTO insta{shard}.likes (photo) VALUES (NULL)")).unwrap();
    }
    let held = format!(
        "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_locks JOIN pg_class c ON c.oid = relation
         WHERE pid = {} AND relnamespace::regnamespace::text ~ '^insta\\d'",
        call.pid
    );
    assert_eq!(texts(&mut client, &held), ["insta12"]);
    // What came before it in the batch stays, whatever comes of this one.
    let applied = "SELECT count(*) FROM insta_ids.migration_status WHERE name = '0002' AND state = 'applied'";
    assert_eq!(count(&mut client, applied), 12);
    client.execute("SELECT pg_cancel_backend($1)", &[&call.pid]).unwrap();
    assert_eq!(call.end().unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!(count(&mut client, applied), 12);

    // Less than a millisecond is not 0, which is no limit.
    let error = refused(&mut client, "CALL insta_ids.migrate(lock_timeout => '400us')");
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    let failed = "0002 12 failed 2 55P03 canceling statement due to lock timeout";
    assert_eq!(texts(&mut client, REST), [failed]);
    // What the statement before it made in this shard is gone with it.
    let columns =
        "SELECT count(*) FROM pg_attribute WHERE attname = 'at' AND attrelid::regclass::text ~ '^insta\\d'";
    assert_eq!(count(&mut client, columns), 2 * 19);
    holder.batch_execute("COMMIT").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    check_complete(&mut client, 20);

    // However many are locked, and in whichever place of a batch.
    holder.batch_execute("BEGIN").unwrap();
    for shard in (0..20).step_by(3) {
        holder.batch_execute(&format!("LOCK TABLE insta{shard}.photos IN ROW EXCLUSIVE MODE")).unwrap();
    }
    add(&mut client, "0003", "ALTER TABLE photos ADD place text");
    let error = refused(&mut client, "CALL insta_ids.migrate(batch => 5, lock_timeout => '50ms')");
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE);
    assert_eq!(error.message(), "7 of 20 shards could not be migrated");
    let rest = texts(&mut client, REST);
    assert!(rest.len() == 7 && rest.iter().all(|row| row.contains(" failed 1 55P03 ")), "{rest:?}");
    holder.batch_execute("COMMIT").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    check_complete(&mut client, 20);
    // The session's own limit is what it was.
    assert_eq!(texts(&mut client, "SHOW lock_timeout"), ["0"]);
}

/// A table that another session makes in a shard meanwhile is left as it is.
#[test]
fn a_migration_leaves_tables_of_other_sessions_alone() {
    let (cluster, mut client) = with_shards("others_tables");
    client.batch_execute(HOLD).unwrap();
    let mine = "CREATE TABLE mine (id bigint DEFAULT next_id())";
    add(&mut client, "0002", &format!("{WAITS_IN_12}; {mine}"));
    let call = Running::start(cluster.connect(), "CALL insta_ids.migrate(12, 12, lock_timeout => '0')");
    call.await_waiting(&mut client);
    client
        .batch_execute("CREATE TABLE insta12.theirs (id bigint DEFAULT insta12.next_id()); INSERT INTO insta12.theirs VALUES (1)")
        .unwrap();
    client.batch_execute(RELEASE).unwrap();
    call.end().unwrap();
    let checks = "SELECT conrelid::regclass::text FROM pg_constraint
                  WHERE conrelid IN ('insta12.mine'::regclass, 'insta12.theirs'::regclass)";
    assert_eq!(texts(&mut client, checks), ["insta12.mine"]);
}

/// The owner of a table of a shard renames it while the migration waits for it. The migration must not find the next table
/// of that name in the search path.
#[test]
fn a_renamed_table_is_not_mistaken_for_another() {
    let (cluster, mut client) = with_shards("renamed");
    let objects = |schema: &str| {
        format!(
            "CREATE TABLE {schema}.a_table (n int, m int); CREATE INDEX an_index ON {schema}.a_table (n);
             CREATE VIEW {schema}.a_view AS SELECT 1 AS n;
             CREATE MATERIALIZED VIEW {schema}.a_materialized_view AS SELECT 1 AS n;
             CREATE SEQUENCE {schema}.a_sequence; CREATE FOREIGN TABLE {schema}.a_foreign_table (n int) SERVER nowhere;
             CREATE TABLE {schema}.a_partitioned_table (n int) PARTITION BY LIST (n)"
        )
    };
    client
        .batch_execute(
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing; CREATE ROLE guest LOGIN",
        )
        .unwrap();
    client.batch_execute(&objects("public")).unwrap();
    for (number, (kind, statement)) in [
        ("table", "ALTER TABLE a_table ADD planted int"),
        ("table", "ALTER TABLE IF EXISTS a_table ADD planted int"),
        ("table", "CREATE INDEX planted ON a_table (n)"),
        ("table", "TRUNCATE a_table"),
        ("table", "CREATE TABLE other (); ALTER TABLE other ADD n int; DROP TABLE other, a_table CASCADE"),
        ("index", "ALTER INDEX an_index SET (fillfactor = 50)"),
        ("index", "DROP INDEX an_index"),
        ("view", "ALTER VIEW a_view SET (security_barrier)"),
        ("materialized view", "DROP MATERIALIZED VIEW a_materialized_view"),
        ("sequence", "ALTER SEQUENCE a_sequence INCREMENT 2"),
        ("foreign table", "ALTER FOREIGN TABLE a_foreign_table ADD planted int"),
        ("partitioned table", "ALTER TABLE a_partitioned_table ADD planted int"),
    ]
    .into_iter()
    .enumerate()
    {
        client
            .batch_execute("DROP OWNED BY guest; GRANT ALL ON SCHEMA insta2 TO guest; GRANT ALL ON FOREIGN SERVER nowhere TO guest")
            .unwrap();
        let mut guest = cluster.config().user("guest").connect(NoTls).unwrap();
        guest.batch_execute(&objects("insta2")).unwrap();
        let name = format!("a{}_{}", if kind == "index" { "n" } else { "" }, kind.replace(' ', "_"));
        let alter = format!("ALTER {} insta2", kind.replace("partitioned ", ""));
        add(&mut client, &format!("planted {number}"), statement);
        let before = texts(&mut client, IN_PUBLIC);

        guest.batch_execute(&format!("BEGIN; {alter}.{name} RENAME TO renamed")).unwrap();
        let migrating =
            Running::start(cluster.connect(), "CALL insta_ids.migrate(2, 2, lock_timeout => '1min')");
        migrating.await_waiting(&mut client);
        guest.batch_execute("COMMIT").unwrap();
        let error = migrating.end().expect_err(statement);
        let detail = error.as_db_error().unwrap().detail().unwrap().to_owned();
        let missing = format!("relation \"{name}\" does not exist in schema \"insta2\"");
        assert!(detail.ends_with(&missing), "{statement}: {detail}");

        // It waits no longer than migrate may.
        guest.batch_execute(&format!("{alter}.renamed RENAME TO {name}")).unwrap();
        guest.batch_execute(&format!("BEGIN; {alter}.{name} RENAME TO renamed")).unwrap();
        let error = refused(&mut client, "CALL insta_ids.migrate(2, 2, lock_timeout => '50ms')");
        assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{statement}");
        guest.batch_execute("ROLLBACK").unwrap();
        client.batch_execute("CALL insta_ids.migrate(2, 2)").unwrap();
        assert_eq!(texts(&mut client, IN_PUBLIC), before, "{statement}");
    }
}

/// What there is in schema `public`, and what of it a migration could have changed.
const IN_PUBLIC: &str = "
    SELECT concat_ws(' ', c.relname, c.relkind, c.relnatts, c.reloptions, c.relfilenode, s.seqincrement)
    FROM pg_class c LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace ORDER BY c.oid";

/// A failure in one shard is recorded, and keeps the others from nothing.
#[test]
fn a_migration_that_fails_in_one_shard_is_applied_in_the_others() {
    let (_cluster, mut client) = set_up("one_fails", 200);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 199)").unwrap();
    client.batch_execute("CREATE TABLE insta37.albums ()").unwrap();
    add(&mut client, "0002", "ALTER TABLE photos ADD a int; CREATE TABLE albums (); CREATE TABLE tags ()");
    add(&mut client, "0003", "ALTER TABLE photos ADD b int");
    let error = refused(&mut client, "CALL insta_ids.migrate()");
    assert_eq!(error.code(), &SqlState::DUPLICATE_TABLE);
    assert_eq!(error.message(), "1 of 200 shards could not be migrated");
    let detail =
        "The first is shard 37, at statement 2 of migration \"0002\": relation \"albums\" already exists";
    assert_eq!(error.detail(), Some(detail));
    let rest = ["0002 37 failed 2 42P07 relation \"albums\" already exists", "0003 37 pending"];
    assert_eq!(texts(&mut client, REST), rest);
    client.batch_execute("DROP TABLE insta37.albums").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    check_complete(&mut client, 200);
}

/// A migration is replaced while another session applies it, or is about to.
#[test]
fn what_is_recorded_is_what_was_applied() {
    const MIGRATE: &str = "CALL insta_ids.migrate(12, 12, lock_timeout => '0')";
    const CREATE: &str = "CALL insta_ids.create_shards(20, 20)";
    let waits = WAITS_IN_12.replace("12", "20");
    let cluster = Cluster::start("replaced");
    let replaced = |of: &[&str], failed_before: bool, call: &str, ddl: &str| {
        let mut client = cluster.connect();
        client.batch_execute("DROP DATABASE IF EXISTS replaced WITH (FORCE)").unwrap();
        client.batch_execute("CREATE DATABASE replaced").unwrap();
        let mut client = cluster.connect_to("replaced");
        client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(100)").unwrap();
        client.batch_execute("CALL insta_ids.create_shards(0, 19)").unwrap();
        for (number, ddl) in (1..).zip(of) {
            add(&mut client, &format!("000{number}"), ddl);
        }
        if failed_before {
            client.batch_execute("CREATE TABLE insta12.waited ()").unwrap();
            refused(&mut client, "CALL insta_ids.migrate(12, 12)");
            client.batch_execute("DROP TABLE insta12.waited").unwrap();
        }
        client.batch_execute(HOLD).unwrap();
        let call = Running::start(cluster.connect_to("replaced"), call);
        call.await_waiting(&mut client);
        let replace = format!("SELECT insta_ids.add_migration('000{}', '{ddl}')", of.len());
        let replaced = Running::start(cluster.connect_to("replaced"), &replace);
        // It waits for the call, or is done before it.
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {} AND NOT granted", replaced.pid);
        within(Duration::from_secs(30), || replaced.has_ended() || count(&mut client, &waits) == 1);
        client.batch_execute(RELEASE).unwrap();
        let refused = replaced.end().err().map(|error| error.code().unwrap().clone());
        call.end().unwrap();
        client.batch_execute("CALL insta_ids.migrate()").unwrap();
        client.batch_execute("CALL insta_ids.create_shards(0, 21)").unwrap();
        check_complete(&mut client, 22);
        refused
    };
    let applied = Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    for (failed_before, of, call) in
        [(false, WAITS_IN_12, MIGRATE), (true, WAITS_IN_12, MIGRATE), (false, &*waits, CREATE)]
    {
        assert_eq!(replaced(&[of], failed_before, call, "CREATE TABLE other ()"), applied);
    }
    // Those behind the one that waits are in hand, too.
    for (of, call) in [(WAITS_IN_12, MIGRATE), (&*waits, CREATE)] {
        assert_eq!(replaced(&[of, "CREATE TABLE old ()"], false, call, "CREATE TABLE new ()"), applied);
    }
}

/// Functions and operators that the caller's path has in place of PostgreSQL's own are never called.
#[test]
fn nothing_in_the_callers_search_path_is_called() {
    let (_cluster, mut client) = set_up("planted", 100);
    client.batch_execute(PLANT).unwrap();
    assert!(
        count(
            &mut client,
            "SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace = 'planted'::regnamespace"
        ) > 1500
    );
    assert!(
        count(
            &mut client,
            "SELECT count(*) FROM pg_catalog.pg_operator WHERE oprnamespace = 'planted'::regnamespace"
        ) > 500
    );
    client
        .batch_execute("CREATE TABLE planted.seen (); SET search_path = planted, public, pg_catalog")
        .unwrap();
    let planted = refused(&mut client, "SELECT 1 OPERATOR(planted.=) 1");
    assert_eq!(planted.message(), "planted");
    assert_eq!(refused(&mut client, "SELECT format('')").message(), "planted");
    let path = |client: &mut Client| {
        let shown = client.simple_query("SHOW search_path").unwrap();
        let path = shown.iter().find_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(path.as_deref(), Some("planted, public, pg_catalog"));
    };
    for call in [
        "SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id()); CREATE TABLE likes (id bigint DEFAULT next_id(), a int); CREATE TABLE copy (LIKE seen)')",
        "SELECT insta_ids.create_shard(0)",
        "SELECT insta_ids.create_shard(5)",
        "CALL insta_ids.create_shards(0, 9, batch => 3)",
        "SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD b bigint DEFAULT next_id(); CREATE TABLE albums ()')",
        "SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD c bigint DEFAULT next_id(); CREATE TABLE albums ()')",
        "CALL insta_ids.migrate(batch => 3)",
        "SELECT insta_ids.add_migration('0003', 'CREATE INDEX CONCURRENTLY ON likes (a)', transactional => false)",
        "SELECT insta_ids.migration_script('0003')",
        "CALL insta_ids.migrate()",
        "SELECT insta_ids.shard_of(5), insta_ids.shard_of_text('a'), insta_ids.schema_of(5)",
        "SELECT FROM insta_ids.shards, insta_ids.migration_status, insta_ids.progress",
        "SELECT insta_ids.drop_shard(5)",
        "INSERT INTO insta6.photos DEFAULT VALUES",
    ] {
        // By the simple protocol: drivers look up types of others.
        client
            .batch_execute(call)
            .unwrap_or_else(|error| panic!("{call}: {error}: {:?}", error.as_db_error()));
        path(&mut client);
    }
    for message in client.simple_query("SELECT insta_ids.migration_script('0003')").unwrap() {
        if let postgres::SimpleQueryMessage::Row(row) = message {
            client.batch_execute(row.get(0).unwrap()).unwrap();
        }
    }
    path(&mut client);
    // A failure is recorded with the statement that failed, and nothing else.
    client.batch_execute("CREATE TABLE insta7.tags (); RESET search_path").unwrap();
    add(&mut client, "0004", "CREATE TABLE more (); CREATE TABLE tags ()");
    client.batch_execute("SET search_path = planted, public, pg_catalog").unwrap();
    let error = refused(&mut client, "CALL insta_ids.migrate(7, 7)");
    assert_eq!(error.message(), "1 of 1 shards could not be migrated");
    client.batch_execute("RESET search_path").unwrap();
    assert_eq!(texts(&mut client, REST)[..2], ["0004 0 pending", "0004 1 pending"]);
    let failed = "0004 7 failed 2 42P07 relation \"tags\" already exists";
    assert!(texts(&mut client, REST).contains(&failed.to_owned()));
}

/// Copies of PostgreSQL's own functions and operators, and types of the same names as its, that fail.
pub const PLANT: &str = r"
    CREATE SCHEMA planted;
    DO $do$
    DECLARE
        command text;
    BEGIN
        FOR command IN
            SELECT format(
                'CREATE FUNCTION planted.%I(%s) RETURNS %s LANGUAGE plpgsql AS $$BEGIN RAISE ''planted''; END$$',
                proname, pg_get_function_identity_arguments(oid), pg_get_function_result(oid))
            FROM pg_proc
            WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
                AND pg_get_function_identity_arguments(oid) !~ 'internal|cstring|handler'
                AND pg_get_function_result(oid) !~ 'internal|cstring|handler|trigger'
            UNION ALL
            SELECT format('CREATE OPERATOR planted.%s (FUNCTION = planted.%I%s%s)', oprname, proname,
                ', LEFTARG = ' || nullif(oprleft, 0)::regtype, ', RIGHTARG = ' || oprright::regtype)
            FROM pg_operator o JOIN pg_proc p ON p.oid = oprcode
            WHERE oprnamespace = 'pg_catalog'::regnamespace
        LOOP
            BEGIN
                EXECUTE command;
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END LOOP;
    END
    $do$;
    CREATE FUNCTION planted.fail() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
    CREATE DOMAIN planted.name AS pg_catalog.name CHECK (planted.fail());
    CREATE DOMAIN planted.text AS pg_catalog.text CHECK (planted.fail());
    CREATE DOMAIN planted.regclass AS pg_catalog.regclass CHECK (planted.fail());
    CREATE DOMAIN planted.regnamespace AS pg_catalog.regnamespace CHECK (planted.fail());
    CREATE DOMAIN planted.xid AS pg_catalog.xid CHECK (planted.fail());
    CREATE VIEW planted.pg_namespace AS SELECT n.* FROM pg_catalog.pg_namespace n WHERE planted.fail();
    CREATE VIEW planted.pg_class AS SELECT c.* FROM pg_catalog.pg_class c WHERE planted.fail();
    CREATE VIEW planted.pg_locks AS SELECT l.* FROM pg_catalog.pg_locks l WHERE planted.fail();
    CREATE VIEW planted.pg_stat_activity AS SELECT a.* FROM pg_catalog.pg_stat_activity a WHERE planted.fail()
";

/// Sessions whose transactions see an older snapshot can migrate too, and at once.
#[test]
fn migrations_are_applied_in_any_isolation_level() {
    let (cluster, mut client) = set_up("isolation", 1000);
    add(&mut client, "0001", PHOTOS);
    for isolation in ["repeatable read", "serializable"] {
        let set = format!("ALTER DATABASE postgres SET default_transaction_isolation = '{isolation}'");
        client.batch_execute(&set).unwrap();
        let mut shards =
            usize::try_from(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard")).unwrap();
        for round in 0..4 {
            let create = format!("CALL insta_ids.create_shards({shards}, {}, batch => 4)", shards + 9);
            shards += 10;
            add(&mut client, &create, &format!("ALTER TABLE photos ADD \"{isolation} {round}\" int"));
            for call in [&*create, "CALL insta_ids.migrate(batch => 4)"] {
                for call in at_once(&cluster, &[call; 4]) {
                    call.unwrap_or_else(|error| panic!("{isolation}: {:?}", error.as_db_error()));
                }
            }
            check_complete(&mut client, shards);
        }
        // One that does not commit, and so begin anew, refuses.
        let error = refused(&mut cluster.connect(), &format!("SELECT insta_ids.create_shard({shards})"));
        assert_eq!(error.code(), &SqlState::ACTIVE_SQL_TRANSACTION);
    }
}

/// `migrate` can be called from wherever a procedure that commits can, and from nowhere else.
#[test]
fn migrate_is_called_wherever_a_procedure_can_commit() {
    const PATH: &str = "public, pg_temp";
    let (_cluster, mut client) = set_up("anywhere", 1000);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute(&format!("SET search_path = {PATH}")).unwrap();
    for refusal in [
        "BEGIN; CALL insta_ids.create_shards(0, 9)",
        "SELECT 1; CALL insta_ids.create_shards(0, 9)",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS 'BEGIN CALL insta_ids.create_shards(0, 9); END'; SELECT f()",
        "DO $$ BEGIN CALL insta_ids.create_shards(0, 9); EXCEPTION WHEN division_by_zero THEN NULL; END $$",
    ] {
        let error = refused(&mut client, refusal);
        assert_eq!(error.code(), &SqlState::INVALID_TRANSACTION_TERMINATION, "{refusal}: {error}");
        client.batch_execute("ROLLBACK").unwrap();
        assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard"), 0);
    }
    // By the extended protocol.
    client.execute("CALL insta_ids.create_shards($1, $2, batch => 3)", &[&0, &9]).unwrap();
    check_complete(&mut client, 10);
    add(&mut client, "0002", "ALTER TABLE photos ADD a int");
    client.execute("CALL insta_ids.migrate(batch => $1)", &[&3]).unwrap();
    check_complete(&mut client, 10);
    client
        .batch_execute(
            "DO $$ BEGIN
                 CALL insta_ids.create_shards(10, 19, batch => 3);
                 CREATE TABLE of_the_block AS SELECT current_setting('search_path') AS path;
                 CALL insta_ids.migrate();
                 INSERT INTO of_the_block SELECT current_setting('search_path');
             END $$",
        )
        .unwrap();
    add(&mut client, "0003", "ALTER TABLE photos ADD b int");
    client
        .batch_execute(
            "CREATE PROCEDURE grow() LANGUAGE plpgsql AS $$ BEGIN
                 CALL insta_ids.create_shards(10, 29, batch => 3);
                 INSERT INTO of_the_block SELECT current_setting('search_path');
                 CALL insta_ids.migrate(batch => 3);
                 INSERT INTO of_the_block SELECT current_setting('search_path');
             END $$",
        )
        .unwrap();
    client.batch_execute("CALL grow()").unwrap();
    assert_eq!(texts(&mut client, "SELECT path FROM public.of_the_block"), [PATH; 4]);
    // In a transaction that goes on, too.
    let script = "SELECT insta_ids.add_migration('0004', 'CREATE INDEX CONCURRENTLY ON photos (a)', transactional => false)";
    client.batch_execute(script).unwrap();
    client
        .batch_execute("BEGIN; SELECT insta_ids.create_shard(30); SELECT insta_ids.migration_script('0004')")
        .unwrap();
    assert_eq!(texts(&mut client, "SHOW search_path"), [PATH]);
    client.batch_execute("ROLLBACK; DELETE FROM insta_ids_internal.migration WHERE name = '0004'").unwrap();
    assert_eq!(texts(&mut client, "SHOW search_path"), [PATH]);
    assert_eq!(texts(&mut client, "SHOW lock_timeout"), ["0"]);
    check_complete(&mut client, 30);
}

/// Texts are of the database's encoding, also where it is `SQL_ASCII`.
#[test]
fn migrations_are_texts_of_the_databases_encoding() {
    let (cluster, mut client) = set_up("migration_encodings", 1);
    for encoding in ["LATIN1", "SQL_ASCII", "EUC_JP"] {
        let database = encoding.to_lowercase();
        client
            .batch_execute(&format!(
                "CREATE DATABASE {database} ENCODING {encoding} LOCALE 'C' TEMPLATE template0"
            ))
            .unwrap();
        let mut client = cluster.connect_to(&database);
        let word = if encoding == "EUC_JP" { "写真" } else { "größe" };
        client
            .batch_execute(&format!("CREATE EXTENSION insta_ids; SELECT insta_ids.init(100, '{word}')"))
            .unwrap();
        let ddl = format!(
            "CREATE TABLE \"{word}\" (id bigint DEFAULT next_id(), \"{word}\" text DEFAULT '{word}' /* {word} */)"
        );
        add(&mut client, word, &ddl);
        client.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
        add(
            &mut client,
            &format!("{word} 2"),
            &format!("COMMENT ON TABLE \"{word}\" IS '{word}'; ALTER TABLE \"{word}\" ADD \"{word} 2\" int"),
        );
        client.batch_execute("CALL insta_ids.migrate()").unwrap();
        let script = format!(
            "SELECT insta_ids.add_migration('{word} 3', 'CREATE INDEX CONCURRENTLY \"{word} 3\" ON \"{word}\" (id)', transactional => false)"
        );
        client.batch_execute(&script).unwrap();
        for line in texts(&mut client, &format!("SELECT insta_ids.migration_script('{word} 3')")) {
            client.batch_execute(&line).unwrap();
        }
        client.batch_execute("CALL insta_ids.create_shards(0, 10)").unwrap();
        let complete =
            "SELECT count(*) FROM insta_ids.shards WHERE applied = 3 AND state = 'active' AND tables = 1";
        assert_eq!(count(&mut client, complete), 11, "{encoding}");
        let row = format!("INSERT INTO \"{word}10\".\"{word}\" DEFAULT VALUES RETURNING \"{word}\"");
        assert_eq!(texts(&mut client, &row), [word]);
        let error = refused(
            &mut client,
            &format!("SELECT insta_ids.add_migration('4', 'SELECT ''{word}'' FORM \"{word}\"')"),
        );
        assert_eq!(error.code(), &SqlState::SYNTAX_ERROR, "{encoding}: {error}");
        let error = refused(
            &mut client,
            &format!("SELECT insta_ids.add_migration('4', 'SELECT FROM \"{word}10\".t')"),
        );
        assert_eq!(error.message(), format!("statement 1 of migration \"4\" names schema \"{word}10\""));
    }
    // Bytes that are no UTF-8.
    let mut client = cluster.connect_to("sql_ascii");
    client
        .batch_execute(
            r#"SELECT insta_ids.add_migration(E'\xe9', E'CREATE TABLE "\xe9" (id bigint DEFAULT next_id(), "\xe8" text DEFAULT ''\xff'')')"#,
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    let made = r"SELECT count(*) FROM pg_class JOIN insta_ids_internal.shard_migration ON migration = 4 AND message IS NULL
                 WHERE relname = E'\xe9' AND relnamespace::regnamespace::text LIKE '%' || shard || '%'";
    assert!(count(&mut client, made) >= 11);
}

/// psql that runs the script of a migration, as the notice of `migrate` says it.
fn run_script(cluster: &Cluster, name: &str) -> Child {
    cluster.psql(&[], &format!("SELECT * FROM insta_ids.migration_script('{name}') \\gexec\n"))
}

const SCRIPT: &str = "
    SELECT insta_ids.add_migration('0002', 'CREATE INDEX CONCURRENTLY captions ON photos (caption)', transactional => false)";

/// A migration that fails in one shard is applied in the others, and psql says where it failed.
#[test]
fn psql_reports_the_shards_in_which_a_migration_failed() {
    let (cluster, mut client) = with_shards("by_psql");
    client.batch_execute(SCRIPT).unwrap();
    client.batch_execute("ALTER TABLE insta7.photos RENAME caption TO text").unwrap();
    let run = run_script(&cluster, "0002").wait_with_output().unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(said.contains("column \"caption\" does not exist"), "{said}");
    assert!(said.contains("WARNING:  migration \"0002\" failed in shard 7"), "{said}");
    let failed = "0002 7 failed it failed, or did not run, in the session of its script";
    assert_eq!(texts(&mut client, REST), [failed]);
    client.batch_execute("ALTER TABLE insta7.photos RENAME text TO caption").unwrap();
    let run = run_script(&cluster, "0002").wait_with_output().unwrap();
    assert_eq!(String::from_utf8(run.stderr).unwrap(), "");
    check_complete(&mut client, 20);
    assert_eq!(texts(&mut client, "SELECT insta_ids.migration_script('0002')"), [""; 0]);

    // Killed, it has not done the rest, which is done when it is run again.
    client.batch_execute(&SCRIPT.replace("0002", "0003").replace("captions", "again")).unwrap();
    let mut holder = cluster.connect();
    holder.batch_execute("BEGIN; LOCK TABLE insta12.photos IN SHARE UPDATE EXCLUSIVE MODE").unwrap();
    let mut psql = run_script(&cluster, "0003");
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'insta12.photos'::regclass";
    within(Duration::from_secs(30), || count(&mut client, waits) == 1);
    psql.kill().unwrap();
    psql.wait().unwrap();
    holder.batch_execute("COMMIT").unwrap();
    let lives = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql'";
    within(Duration::from_secs(30), || count(&mut client, lives) == 0);
    let pending: Vec<String> = (12..20).map(|shard| format!("0003 {shard} pending")).collect();
    assert_eq!(texts(&mut client, REST), pending);
    // Its session did not know yet that there was nobody to tell.
    client.batch_execute("DROP INDEX IF EXISTS insta12.again").unwrap();
    let run = run_script(&cluster, "0003").wait_with_output().unwrap();
    assert_eq!(String::from_utf8(run.stderr).unwrap(), "");
    check_complete(&mut client, 20);
}

/// A temporary table of the session is not altered instead of a shard's: that would be written down as applied.
#[test]
fn a_temporary_table_does_not_stand_in_for_that_of_a_shard() {
    let (_cluster, mut client) = set_up("hidden", 2);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 1)").unwrap();
    client.batch_execute("CREATE TEMP TABLE photos (x integer)").unwrap();
    add(&mut client, "0002", "ALTER TABLE photos ADD COLUMN height integer");
    let error = refused(&mut client, "CALL insta_ids.migrate()");
    assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(
        error.detail().unwrap().contains("temporary relation \"photos\" hides that of schema \"insta0\"")
    );
    client.batch_execute("DROP TABLE pg_temp.photos").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    let altered = "SELECT attrelid::regclass::text FROM pg_attribute WHERE attname = 'height' ORDER BY 1";
    assert_eq!(texts(&mut client, altered), ["insta0.photos", "insta1.photos"]);
}
