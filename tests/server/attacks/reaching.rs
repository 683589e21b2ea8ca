//! Nobody reaches another node with the rights of the administrator who is connected to it.

use support::pair::{Move, Pair, before};
use support::{count, refused, texts};

/// Code of a guest that asks the connected node for more, and tells the log what came of it.
const REACH: &str = "
    CREATE ROLE guest;
    SELECT insta_ids.grant_provisioning('guest');
    CREATE FUNCTION public.reach(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$
    DECLARE
        question text;
    BEGIN
        FOREACH question IN ARRAY '{insta_ids,insta_ids_snapshot,insta_ids 0,insta_ids 1}'::text[] LOOP
            BEGIN
                PERFORM insta_ids_internal.begin_to_ask_node('CREATE ROLE taken SUPERUSER', question);
                PERFORM insta_ids_internal.await_node(question);
                RAISE LOG 'REACHED BY % AS %', question, current_user;
            EXCEPTION WHEN OTHERS THEN
                RAISE LOG 'NOT REACHED AS %: %', current_user, SQLERRM;
            END;
        END LOOP;
        BEGIN
            PERFORM insta_ids_internal.begin_to_connect('mine', 'a', 'dbname=postgres');
            RAISE LOG 'REACHED AS %', current_user;
        EXCEPTION WHEN OTHERS THEN
            RAISE LOG 'NOT REACHED AS %: %', current_user, SQLERRM;
        END;
        RETURN $1;
    END $$;
    ALTER FUNCTION public.reach OWNER TO guest; GRANT USAGE ON SCHEMA public TO guest";

const TAKEN: &str = "SELECT rolname::text FROM pg_roles WHERE rolname = 'taken'";

/// A migration's index calls a function of a guest: when the shard is made, when rows arrive, and when the table is analyzed.
#[test]
fn code_of_a_table_does_not_reach_the_other_node_of_a_move() {
    let pair = Pair::start("reaching");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client.batch_execute(REACH).unwrap();
    }
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002', 'CREATE INDEX ON likes (id) WHERE public.reach(1::bigint) = 1;
            CREATE INDEX ON likes (public.reach(id)); ALTER TABLE likes OWNER TO guest')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute("INSERT INTO insta2.likes VALUES (2 << 10)").unwrap();
    // Before PostgreSQL 16, the target refuses code of others in what it subscribes to.
    let _ = b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')");
    let log = pair.b.log();
    assert!(log.contains("NOT REACHED AS"), "{log}");
    assert!(!log.contains("LOG:  REACHED"), "{log}");
    for client in [&mut a, &mut b] {
        assert_eq!(texts(client, TAKEN), [""; 0]);
    }
}

/// A connection is closed when its call fails or is cancelled. Until then, it serves the role that opened it.
#[test]
fn a_connection_ends_with_its_call_and_serves_one_role() {
    let pair = Pair::start("connected");
    let mut b = pair.b.connect();
    b.batch_execute(REACH).unwrap();
    let asks = "SELECT insta_ids_internal.begin_to_ask_node('SELECT 1')";
    // The map does not have this shard on node a.
    refused(&mut b, "CALL insta_ids.move_shards(70, 70, 'a')");
    assert_eq!(refused(&mut b, asks).message(), "connection \"insta_ids\" is not open");
    let cancelled = "SET statement_timeout = '200ms'; SELECT insta_ids.fleet('10 s')";
    assert_eq!(refused(&mut b, cancelled).code().code(), "57014");
    for name in ["insta_ids", "insta_ids 0", "insta_ids 1"] {
        let asks = format!(
            "RESET statement_timeout; SELECT insta_ids_internal.begin_to_ask_node('SELECT 1', '{name}')"
        );
        assert_eq!(refused(&mut b, &asks).message(), format!("connection \"{name}\" is not open"));
    }

    b.batch_execute("SELECT insta_ids_internal.connect_node('a')").unwrap();
    for role in ["guest", "pg_monitor"] {
        for ask in [
            asks,
            "SELECT insta_ids_internal.ask_node('SELECT 1')",
            "SELECT * FROM insta_ids_internal.rows_from_node()",
            "SELECT insta_ids_internal.disconnect_node()",
            "SELECT insta_ids_internal.begin_to_connect('insta_ids', 'a', '')",
        ] {
            b.batch_execute(&format!("BEGIN; GRANT USAGE ON SCHEMA insta_ids_internal TO {role}; SAVEPOINT s; SET LOCAL ROLE {role}"))
                .unwrap();
            let error = refused(&mut b, ask);
            let expected = ("42501", "permission denied for the connection to node \"a\"");
            assert_eq!((error.code().code(), error.message()), expected, "{role}: {ask}");
            b.batch_execute("ROLLBACK TO s; COMMIT").unwrap();
        }
    }
    b.batch_execute("SET ROLE guest").unwrap();
    let other = "SELECT insta_ids_internal.begin_to_connect('mine', 'a', '')";
    assert_eq!(refused(&mut b, other).message(), "must be superuser to connect to node \"a\"");
    let error = refused(&mut b, "SELECT * FROM insta_ids.fleet('10 ms')");
    assert_eq!(error.message(), "must be superuser to ask the nodes of the map");
    b.batch_execute("RESET ROLE").unwrap();
    // An error that was raised to the client has closed it.
    assert_eq!(refused(&mut b, asks).message(), "connection \"insta_ids\" is not open");
}

/// A view of subscriptions has those of moves only, and no connection strings, which can contain passwords.
#[test]
fn nobody_reads_subscriptions_of_others() {
    let pair = Pair::start("subscribed");
    Move::of(&pair, 2, 2).steps(before("copied"));
    let mut b = pair.b.connect();
    b.batch_execute(
        "CREATE SUBSCRIPTION theirs CONNECTION 'host=/nowhere password=secret' PUBLICATION p WITH (connect = false);
         CREATE SUBSCRIPTION insta_ids_4_4 CONNECTION 'host=/nowhere password=secret' PUBLICATION p WITH (connect = false);
         CREATE ROLE guest; SELECT insta_ids.grant_provisioning('guest'); CREATE ROLE app; ALTER DATABASE postgres OWNER TO app",
    )
    .unwrap();
    for role in ["guest", "app"] {
        b.batch_execute(&format!("SET ROLE {role}")).unwrap();
        assert_eq!(texts(&mut b, "SELECT s::text FROM insta_ids_internal.subscription s").len(), 1, "{role}");
        // No view of the extension shows the secret.
        let views =
            "SELECT format('SELECT count(*) FROM %s v WHERE v::text LIKE %L', c.oid::regclass, '%secret%')
            FROM pg_class c WHERE c.relkind = 'v' AND c.relnamespace::regnamespace::text LIKE 'insta\\_ids%'
                AND has_table_privilege(c.oid, 'SELECT')";
        for view in texts(&mut b, views) {
            assert_eq!(count(&mut b, &view), 0, "{role}: {view}");
        }
        b.batch_execute("RESET ROLE").unwrap();
    }
}

/// A migration keeps its author. What a role with provisioning adds on one node is refused on each node, whatever the name of a
/// superuser there, until a superuser of that node adds it.
#[test]
fn a_migration_keeps_its_author_on_all_nodes() {
    let pair = Pair::start("authored");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("CREATE ROLE deployer; SELECT insta_ids.grant_provisioning('deployer')").unwrap();
    // The role of the other node that has this name is another one.
    b.batch_execute("CREATE ROLE deployer SUPERUSER").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(0, 1, 'a')").unwrap();
    let migration = "SELECT insta_ids.add_migration('0002', 'DO $$BEGIN CREATE ROLE taken SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END$$')";
    a.batch_execute(&format!("SET ROLE deployer; {migration}; RESET ROLE")).unwrap();
    let message = "migration \"0002\" was added by role \"deployer\"";
    for call in [
        "CALL insta_ids.migrate()",
        "CALL insta_ids.migrate_fleet()",
        "SELECT insta_ids_internal.move_offer(2, 2, 'b')",
    ] {
        let error = refused(&mut a, call);
        assert_eq!((error.code().code(), error.message()), ("42501", message), "{call}");
    }
    // Nothing has come to the other node.
    let known = "SELECT name FROM insta_ids_internal.migration";
    assert_eq!(texts(&mut b, known), ["0001"]);
    assert!(refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')").message().contains(message));
    // Nor is it trusted where it has come by an older version, or by a dump.
    b.batch_execute(
        "INSERT INTO insta_ids_internal.migration (number, name, ddl, transactional, check_ids, added_by, is_by_superuser)
         VALUES (2, '0002', 'CREATE ROLE taken SUPERUSER', true, true, 'deployer', false)",
    )
    .unwrap();
    for role in ["postgres", "deployer"] {
        b.batch_execute(&format!("SET ROLE {role}")).unwrap();
        assert_eq!(refused(&mut b, "CALL insta_ids.migrate()").message(), message, "{role}");
    }
    b.batch_execute("RESET ROLE; DELETE FROM insta_ids_internal.migration WHERE name = '0002'").unwrap();
    let json = texts(&mut a, "SELECT insta_ids_internal.migrations_json()::text").remove(0);
    b.execute("SELECT insta_ids_internal.take_migrations($1::text::jsonb, 'a')", &[&json]).unwrap();
    let error = refused(&mut b, "CALL insta_ids.migrate()");
    let detail = "The role is one of node \"a\". The statements would run with your rights.";
    assert_eq!((error.message(), error.detail()), (message, Some(detail)));
    // One node's superuser has read it, the other one's has not.
    a.batch_execute(migration).unwrap();
    let error = refused(&mut a, "CALL insta_ids.migrate_fleet()");
    assert_eq!(error.detail(), Some(format!("Node \"b\": {message}.").as_str()));
    assert_eq!(texts(&mut b, TAKEN), [""; 0]);
    b.batch_execute(migration).unwrap();
    b.batch_execute("CALL insta_ids.migrate()").unwrap();
    assert_eq!(texts(&mut b, TAKEN), ["taken"]);
}
