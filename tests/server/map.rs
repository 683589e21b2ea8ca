//! The map: which server has which shards, and what a server does for those it does not have.

use std::process::Command;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;

use support::pair::{MIGRATION, Pair, settings, shard_map};
use support::shards::Running;
use support::{Cluster, checkout, count, major, refused, texts};

const RANGES: &str = "SELECT string_agg(node || ranges, ', ' ORDER BY node)
    FROM (SELECT node, range_agg(int4range(first, last, '[]')) AS ranges FROM insta_ids_internal.assignment GROUP BY node) n";
const VERSION: &str = "SELECT coalesce(max(version), 0) FROM insta_ids_internal.map";

/// A server that is node `a`, of 100 shards.
fn node_a(name: &str) -> Cluster {
    let cluster = Cluster::with(name, &["insta_ids.node = 'a'"]);
    cluster
        .connect()
        .batch_execute(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(100); CREATE SEQUENCE s;
             SELECT insta_ids.add_node('a', 'host=a'), insta_ids.add_node('b', 'host=b', 7)",
        )
        .unwrap();
    cluster
}

/// Each change of the map has a higher version.
#[test]
fn assigning_shards_changes_the_map_and_its_version() {
    let cluster = node_a("assigned");
    let mut client = cluster.connect();
    let mut version = count(&mut client, VERSION);
    for (assign, ranges) in [
        ("0, 99, 'a'", "a{[0,100)}"),
        ("50, 99, 'b'", "a{[0,50)}, b{[50,100)}"),
        ("10, 10, 'b'", "a{[0,10),[11,50)}, b{[10,11),[50,100)}"),
        ("11, 49, 'b'", "a{[0,10)}, b{[10,100)}"),
        ("5, 60, 'a'", "a{[0,61)}, b{[61,100)}"),
    ] {
        client.batch_execute(&format!("SELECT insta_ids.assign({assign})")).unwrap();
        assert_eq!(texts(&mut client, RANGES), [ranges], "{assign}");
        // The same again changes nothing.
        let next = count(&mut client, VERSION);
        client.batch_execute(&format!("SELECT insta_ids.assign({assign})")).unwrap();
        assert_eq!((next > version, count(&mut client, VERSION)), (true, next), "{assign}");
        version = next;
    }
    let placement = [(0, true), (60, true), (61, false), (99, false)];
    for (shard, here) in placement {
        let mint = format!("SELECT next_id({shard}, 's')");
        assert_eq!(client.batch_execute(&mint).is_ok(), here, "{shard}");
    }
    let error = refused(&mut client, "SELECT next_id(61, 's')");
    assert_eq!(error.code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
    assert_eq!(error.message(), "shard 61 is not on this node");
    let detail = format!("By version {version} of the map it is on node \"b\"; this is node \"a\".");
    assert_eq!(error.detail(), Some(&*detail));
    // Another layout's shard 61 is another one; and what is no shard is nobody's.
    client.batch_execute("SELECT next_id(61, 's', 'twitter'), next_id(100, 's')").unwrap();

    // Nor is a shard made here that is there; and what is here is not given away.
    assert_eq!(
        refused(&mut client, "SELECT insta_ids.create_shard(61)").message(),
        "shard 61 is not on this node"
    );
    client.batch_execute("CALL insta_ids.create_shards(58, 63)").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards WHERE node = 'a'"), 3);
    let error = refused(&mut client, "SELECT insta_ids.assign(60, 60, 'b')");
    assert_eq!(
        (error.code(), error.message()),
        (&SqlState::OBJECT_IN_USE, "shard 60 is here, and open to writers")
    );
    client.batch_execute("SELECT insta_ids.fence(60), insta_ids.assign(60, 60, 'b')").unwrap();
    assert_eq!(
        refused(&mut client, "SELECT insta_ids.unfence(60)").message(),
        "shard 60 is not on this node"
    );
}

/// What would spoil the map is an error that says why.
#[test]
fn changes_that_would_spoil_the_map_are_refused() {
    const ELSEWHERE: &str = "connection string says twice where the server is";
    let cluster = node_a("map_refused");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.assign(0, 99, 'a')").unwrap();
    for (command, code, message) in [
        ("assign(0, 100, 'a')", "22003", "shard 100 is out of range"),
        ("assign(5, 4, 'a')", "22023", "first shard 5 is greater than last shard 4"),
        ("assign(5, 5, 'c')", "42704", "node \"c\" does not exist"),
        ("add_node('', 'host=c')", "22023", "name of a node is empty"),
        ("add_node('c', 'host=c', 7)", "23505", "another node has the number 7"),
        ("add_node('c', 'host=c password=x')", "22023", "connection string has a password"),
        ("add_node('c', 'host=c  PassWord = x')", "22023", "connection string has a password"),
        ("add_node('c', 'host=c sslpassword=x')", "22023", "connection string has a password"),
        ("add_node('c', 'postgresql://me:x@c/db')", "22023", "connection string has a password"),
        ("add_node('c', 'postgres://me@c/db?password=x')", "22023", "connection string has a password"),
        ("add_node('c', 'postgres://me@c/db?a=b&%70assword=x')", "22023", "connection string has a password"),
        ("add_node('c', 'host=''x''password=secret')", "22023", "connection string has a password"),
        ("add_node('c', 'postgresql://user:sec?ret@host/db')", "22023", "connection string has a password"),
        ("add_node('c', 'host=c oauth_client_secret=x')", "22023", "connection string has a password"),
        ("add_node('c', 'host=c hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'hostaddr = 10.0.0.9 host = c')", "22023", ELSEWHERE),
        ("add_node('c', 'dbname=''x''hostaddr=10.0.0.9 host=c')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://c/db?hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://me@c:5432,d/db?hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://[::1]/db?hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql:///db?host=c&hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'service=c hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql:///db?service=c&hostaddr=10.0.0.9')", "22023", ELSEWHERE),
        ("add_node('c', 'host=c service=c')", "22023", ELSEWHERE),
        ("add_node('c', 'service=c port = 5433')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://c/db?service=c')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://me@c/db?service=c')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql://:5433/db?service=c')", "22023", ELSEWHERE),
        ("add_node('c', 'postgresql:///db?port=5433&service=c')", "22023", ELSEWHERE),
        (
            "add_node('c', 'postgres://c/db?a=b&host%61ddr=10.0.0.9')",
            "22023",
            "connection string has a password",
        ),
        ("drop_node('a')", "2BP01", "node \"a\" has shards"),
        ("drop_node('c')", "42704", "node \"c\" does not exist"),
        ("apply_map('{}')", "22023", "map is not of format 1"),
        ("apply_map(insta_ids.shard_map() - 'ranges')", "22023", "map is not complete"),
        ("apply_map(insta_ids.shard_map() || '{\"version\": null}')", "22023", "map is not complete"),
        (
            "apply_map(insta_ids.shard_map() || '{\"ranges\": [[1, 1, \"a\"]]}')",
            "22023",
            "map is not complete",
        ),
        (
            "apply_map(insta_ids.shard_map() || '{\"version\": 99, \"ranges\": [[1, 1, \"c\", 99]]}')",
            "42704",
            "node \"c\" does not exist",
        ),
        (
            "apply_map(jsonb_set(insta_ids.shard_map(), '{ranges,0,2}', '\"b\"'))",
            "55000",
            "maps contradict each other about shard 0",
        ),
        (
            "apply_map(jsonb_set(insta_ids.shard_map(), '{nodes,0,dsn}', '\"host=z\"'))",
            "55000",
            "maps contradict each other about node \"a\"",
        ),
        (
            "apply_map(insta_ids.shard_map() || '{\"version\": 99, \"ranges\": []}')",
            "22023",
            "map has no shard on any node",
        ),
        (
            "apply_map(insta_ids.shard_map() || '{\"version\": 99, \"shards\": 50}')",
            "55000",
            "map is of other shards than this database's",
        ),
    ] {
        let error = refused(&mut client, &format!("SELECT insta_ids.{command}"));
        assert_eq!((error.code().code(), error.message()), (code, message), "{command}");
    }
    for write in [
        "INSERT INTO insta_ids_internal.node VALUES ('c', 'host=c hostaddr=10.0.0.9', 8)",
        "UPDATE insta_ids_internal.node SET dsn = dsn || ' hostaddr=10.0.0.9' WHERE node = 'b'",
        "SELECT insta_ids.apply_map(jsonb_set(insta_ids.shard_map() || '{\"version\": 99}', '{nodes,0}', '{\"node\": \"a\", \"dsn\": \"host=a hostaddr=10.0.0.9\", \"ord\": 0, \"weight\": 1, \"version\": 99}'))",
    ] {
        assert_eq!(refused(&mut client, write).message(), ELSEWHERE, "{write}");
    }
    for dsn in [
        "postgresql://me@c:5432,[::1]:5433/db?passfile=/etc/pass",
        "postgresql:///db?service=x&user=me",
        "postgresql://me@/db?service=x",
        "service=x dbname=db user=port",
        "host=c passfile=/etc/pass user=password",
        "hostaddr=10.0.0.9 dbname=db",
        "postgresql:///db?hostaddr=10.0.0.9",
    ] {
        client.batch_execute(&format!("SELECT insta_ids.add_node('c', '{dsn}')")).unwrap();
    }
    // Names are only names.
    let hostile = "a\"; DROP TABLE insta_ids_internal.node; --'";
    client.execute("SELECT insta_ids.add_node($1::text, 'host=x')", &[&hostile]).unwrap();
    client.batch_execute("SELECT insta_ids.drop_node('c')").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.node"), 3);
}

/// A map that was changed by hand is refused if its versions or its nodes are not those of a map.
#[test]
fn a_map_that_is_none_is_refused() {
    let cluster = node_a("map_by_hand");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.assign(0, 99, 'a')").unwrap();
    for (place, value, message) in [
        ("{nodes,0,version}", "900000", "map has a newer version inside than its own"),
        ("{ranges,0,3}", "900000", "map has a newer version inside than its own"),
        ("{nodes,0,weight}", "null", "map is not complete"),
        ("{ranges,0,2}", "null", "map is not complete"),
    ] {
        let apply =
            format!("SELECT insta_ids.apply_map(jsonb_set(insta_ids.shard_map(), '{place}', '{value}'))");
        let error = refused(&mut client, &apply);
        assert_eq!((error.code().code(), error.message()), ("22023", message), "{place}");
    }
}

/// A transaction whose snapshot is old does not see where shards are now.
#[test]
fn a_transaction_with_an_old_snapshot_makes_no_shard() {
    let cluster = node_a("old_snapshot");
    let mut client = cluster.connect();
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.create_shard(1)");
    assert_eq!(
        (error.code(), error.message()),
        (
            &SqlState::ACTIVE_SQL_TRANSACTION,
            "command cannot run in a transaction of isolation level \"repeatable read\""
        )
    );
}

/// A session that waited for a lock looks again once it has the lock.
#[test]
fn a_session_that_waited_for_a_lock_sees_what_others_did() {
    let settings = settings("a");
    let cluster = Cluster::with("waited", &settings);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(100);
             SELECT insta_ids.add_node('a', 'host=a'), insta_ids.add_node('b', 'host=b'), insta_ids.assign(0, 99, 'a')",
        )
        .unwrap();
    client.batch_execute(MIGRATION).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(1, 4)").unwrap();
    client.batch_execute("CREATE TABLE public.part (LIKE insta4.photos INCLUDING ALL)").unwrap();
    let mut wrong = Vec::new();
    for (meanwhile, call, message) in [
        (
            "SELECT insta_ids.assign(6, 6, 'b')",
            "SELECT insta_ids.create_shard(6)",
            "shard 6 is not on this node",
        ),
        (
            "SELECT insta_ids_internal.move_offer(1, 1, 'b')",
            "SELECT insta_ids.fence(1)",
            "shards from 1 to 1 are moving",
        ),
        (
            "SELECT insta_ids_internal.move_offer(2, 2, 'b')",
            "SELECT insta_ids.unfence(2)",
            "shards from 2 to 2 are moving",
        ),
        (
            "SELECT insta_ids_internal.move_offer(3, 3, 'b')",
            "SELECT insta_ids.drop_shard(3, force => true)",
            "shards from 3 to 3 are moving",
        ),
        (
            "ALTER TABLE public.part INHERIT insta4.photos",
            "SELECT insta_ids.fence(4, '1min')",
            "shard 4 shares rows with another schema",
        ),
        (
            "SELECT insta_ids.assign(5, 5, 'b')",
            "CALL insta_ids.create_shards(5, 5)",
            "shard 5 is not on this node",
        ),
    ] {
        let mut other = cluster.connect();
        other.batch_execute("BEGIN").unwrap();
        other.batch_execute(meanwhile).unwrap();
        let waiting = Running::start(cluster.connect(), call);
        waiting.await_waiting(&mut client);
        other.batch_execute("COMMIT").unwrap();
        let said = waiting.end().err().and_then(|error| Some(error.as_db_error()?.message().to_owned()));
        if said.as_deref() != Some(message) {
            wrong.push((call, said));
        }
    }
    assert_eq!(wrong, []);
    let shards = "SELECT string_agg(shard || state, ' ' ORDER BY shard) FROM insta_ids.shards";
    assert_eq!(texts(&mut client, shards), ["1moving 2moving 3moving 4active"]);
}

/// A statement with CONCURRENTLY commits before it ends. It is refused before it begins, or the shard could be opened no more.
#[test]
fn nothing_is_half_done_in_a_fenced_shard() {
    let cluster = node_a("half_done");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.assign(0, 99, 'a');
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint) PARTITION BY RANGE (id);
                 CREATE TABLE part PARTITION OF photos FOR VALUES FROM (0) TO (MAXVALUE); CREATE INDEX i ON part (id)')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(1, 2)").unwrap();
    client.batch_execute("SELECT insta_ids.fence(1)").unwrap();
    let half_done = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending UNION ALL SELECT count(*) FROM pg_index WHERE NOT indisvalid OR NOT indislive";
    for path in ["public", "insta1, public"] {
        client.batch_execute(&format!("SET search_path = {path}")).unwrap();
        for statement in [
            "ALTER TABLE insta1.photos DETACH PARTITION insta1.part CONCURRENTLY",
            "CREATE INDEX CONCURRENTLY ON insta1.part (id)",
            "DROP INDEX CONCURRENTLY insta1.i",
            "/* also */ ALTER TABLE ONLY insta1.photos DETACH PARTITION insta1.part CONCURRENTLY;",
        ] {
            let statement =
                if path == "public" { statement.into() } else { statement.replace("insta1.", "") };
            let error = refused(&mut client, &statement);
            assert_eq!(error.message(), "shard 1 moves or is fenced, and cannot be altered", "{statement}");
            let rows = client.query(half_done, &[]).unwrap();
            assert!(rows.iter().all(|row| row.get::<_, i64>(0) == 0), "{statement}");
        }
    }
    // Other shards are altered, and other statements are not taken for these.
    if major() < 19 {
        client.batch_execute("SET standard_conforming_strings = off").unwrap();
        client.batch_execute("SELECT 'a\\'b'; ALTER TABLE insta2.photos ADD n int").unwrap();
    }
    client.batch_execute("ALTER TABLE insta2.photos DETACH PARTITION insta2.part CONCURRENTLY").unwrap();
    client.batch_execute("CREATE INDEX CONCURRENTLY ON insta2.part (id)").unwrap();
    client.batch_execute("SELECT insta_ids.unfence(1)").unwrap();
    client.batch_execute("ALTER TABLE insta1.photos DETACH PARTITION insta1.part CONCURRENTLY").unwrap();
}

/// A superuser can alter the tables of an extension. The library refuses to read what it would misread.
#[test]
fn tables_of_the_extension_that_a_superuser_altered_are_not_misread() {
    let cluster = node_a("altered");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.assign(0, 99, 'a'); INSERT INTO insta_ids_internal.fence VALUES (50, true, 'b')",
        )
        .unwrap();
    client.batch_execute("ALTER TABLE insta_ids_internal.fence ALTER to_node TYPE text").unwrap();
    let mut other = cluster.connect();
    let error = refused(&mut other, "SELECT next_id(5, 's')");
    assert_eq!(
        (error.code().code(), error.message()),
        ("55000", "table insta_ids_internal.fence is not as the extension made it")
    );
    client.batch_execute("ALTER TABLE insta_ids_internal.fence DROP to_node").unwrap();
    let error = refused(&mut other, "SELECT next_id(5, 's')");
    assert_eq!(error.detail(), Some("Column \"to_node\" is missing, has another type, or holds a NULL."));
    // The column is found by its name, wherever it is.
    client.batch_execute("ALTER TABLE insta_ids_internal.fence ADD to_node name").unwrap();
    client.batch_execute("UPDATE insta_ids_internal.fence SET to_node = 'b'").unwrap();
    let error = refused(&mut other, "SELECT next_id(50, 's')");
    assert_eq!(error.message(), "shard 50 is fenced");
    assert!(error.detail().is_some_and(|detail| detail.starts_with("It moves to node \"b\".")), "{error:?}");
    other.batch_execute("SELECT next_id(5, 's')").unwrap();
}

/// LOCK TABLE cannot lock a foreign table, and yet its users are waited for.
#[test]
fn a_fence_waits_for_users_of_a_foreign_table() {
    let cluster = node_a("foreign");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.create_shard(3);
             CREATE FOREIGN DATA WRAPPER none; CREATE SERVER nowhere FOREIGN DATA WRAPPER none;
             CREATE FOREIGN TABLE insta3.far (a integer) SERVER nowhere",
        )
        .unwrap();
    let mut other = cluster.connect();
    other.batch_execute("BEGIN; ALTER FOREIGN TABLE insta3.far OPTIONS (ADD a 'b')").unwrap();
    client.batch_execute("SET statement_timeout = '20s'").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.fence(3, '200ms')");
    assert_eq!(
        (error.code(), error.message()),
        (&SqlState::LOCK_NOT_AVAILABLE, "could not lock the tables and sequences of shard 3")
    );
    assert!(error.detail().unwrap().starts_with("insta3.far is in use by process "), "{error:?}");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.fence"), 0);
    other.batch_execute("COMMIT").unwrap();
    client.batch_execute("SELECT insta_ids.fence(3, '200ms')").unwrap();
    assert_eq!(texts(&mut client, "SELECT current_setting('lock_timeout')"), ["0"]);

    // The lock itself is for who may write to it.
    client
        .batch_execute(
            "CREATE ROLE other; GRANT USAGE ON SCHEMA insta_ids_internal, insta3 TO other;
             GRANT SELECT ON insta3.far TO other;
             SET ROLE other",
        )
        .unwrap();
    for (table, code, message) in [
        ("'insta3.far'::regclass", "42501", "permission denied for foreign table far"),
        ("0", "42P01", "relation with OID 0 does not exist"),
    ] {
        let error = refused(
            &mut client,
            &format!("SELECT insta_ids_internal.lock_relation({table}, 'SHARE ROW EXCLUSIVE')"),
        );
        assert_eq!((error.code().code(), error.message()), (code, message), "{table}");
    }
}

/// A copied map is notified to listeners, and opens nothing that is fenced.
#[test]
fn a_map_is_copied_from_server_to_server() {
    let pair = Pair::start("applied");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    assert_eq!(shard_map(&mut a), shard_map(&mut b));
    b.batch_execute("LISTEN insta_ids_map").unwrap();
    a.batch_execute("SELECT insta_ids.fence(3); SELECT insta_ids.assign(3, 3, 'b')").unwrap();
    let map = shard_map(&mut a);
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
    let told = b.notifications().timeout_iter(Duration::from_secs(10)).next().unwrap().unwrap();
    assert_eq!(told.payload(), count(&mut b, VERSION).to_string());
    // Not of the versions that the map has on the way there.
    assert!(b.notifications().timeout_iter(Duration::from_millis(500)).next().unwrap().is_none());
    assert_eq!(shard_map(&mut b), map);
    assert_eq!(refused(&mut a, "INSERT INTO insta3.photos DEFAULT VALUES").message(), "shard 3 is fenced");
    b.batch_execute("SELECT insta_ids.assign(3, 3, 'a')").unwrap();
    a.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut b)]).unwrap();
    assert_eq!(refused(&mut a, "INSERT INTO insta3.photos DEFAULT VALUES").message(), "shard 3 is fenced");
    a.batch_execute("SELECT insta_ids.unfence(3); INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
    // What a client in another language makes of it.
    let dsn = format!("host={} user=postgres dbname=postgres", pair.a.socket.display());
    let run = Command::new("/usr/bin/python3")
        .arg(checkout().join("tests/clients/shard_map.py"))
        .arg(dsn)
        .arg(checkout().join("docs/shard-map.schema.json"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Sessions that read the map before a change go by the changed one at once.
#[test]
fn sessions_follow_a_change_of_the_map_at_once() {
    let cluster = node_a("follow");
    let mut client = cluster.connect();
    let mut other = cluster.connect();
    let mint = "SELECT next_id(5, 's')";
    other.batch_execute(mint).unwrap();
    client.batch_execute("SELECT insta_ids.assign(5, 5, 'b')").unwrap();
    assert_eq!(refused(&mut other, mint).message(), "shard 5 is not on this node");
    // By hand, too.
    client.batch_execute("UPDATE insta_ids_internal.assignment SET node = 'a'").unwrap();
    other.batch_execute(mint).unwrap();
    // Not before it is committed, nor if it is rolled back; its own session sees it at once.
    client.batch_execute("BEGIN; SELECT insta_ids.assign(5, 5, 'b')").unwrap();
    other.batch_execute(mint).unwrap();
    assert_eq!(refused(&mut client, mint).code().code(), "25006");
    client.batch_execute("ROLLBACK").unwrap();
    client.batch_execute(mint).unwrap();
    other.batch_execute(mint).unwrap();
    // An old snapshot does not bring an old map back.
    other
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM insta_ids_internal.assignment")
        .unwrap();
    client.batch_execute("SELECT insta_ids.assign(5, 5, 'b')").unwrap();
    assert_eq!(refused(&mut other, mint).code().code(), "25006");
    other.batch_execute("ROLLBACK").unwrap();
    assert_eq!(refused(&mut other, mint).code().code(), "25006");
}

/// The name of a server is a setting and no row, and changes at a restart only.
#[test]
fn a_server_has_the_name_it_was_started_with() {
    let cluster = node_a("named");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.assign(0, 99, 'b')").unwrap();
    let this_node = "SELECT coalesce(insta_ids.this_node(), 'none')";
    assert_eq!(texts(&mut client, this_node), ["a"]);
    assert_eq!(refused(&mut client, "SET insta_ids.node = 'b'").code().code(), "55P02");
    client.batch_execute("ALTER SYSTEM SET insta_ids.node = 'b'").unwrap();
    client.batch_execute("SELECT pg_reload_conf()").unwrap();
    let mut client = cluster.connect();
    assert_eq!(texts(&mut client, this_node), ["a"]);
    assert_eq!(refused(&mut client, "SELECT next_id(5, 's')").code().code(), "25006");
    for (set, name) in [
        ("SET insta_ids.node = 'b'", "b"),
        ("RESET insta_ids.node", "a"),
        ("SET insta_ids.node = ''", "none"),
    ] {
        cluster.connect().batch_execute(&format!("ALTER SYSTEM {set}")).unwrap();
        cluster.stop();
        cluster.up();
        let mut client = cluster.connect();
        assert_eq!(texts(&mut client, this_node), [name]);
        // Without a name, all shards are here.
        assert_eq!(client.batch_execute("SELECT next_id(5, 's')").is_ok(), name != "a", "{name}");
    }
}

/// A dump brings back the map, its version and the fences.
#[test]
fn a_dump_restores_map_version_and_fences() {
    let pair = Pair::start("map_dumped");
    let mut client = pair.a.connect();
    client.batch_execute("SELECT insta_ids.fence(2); SELECT insta_ids.assign(9, 9, 'b')").unwrap();
    client.batch_execute("CREATE DATABASE restored").unwrap();
    pair.a.restore("postgres", "postgres", "restored");
    let mut restored = pair.a.connect_to("restored");
    assert_eq!(shard_map(&mut restored), shard_map(&mut client));
    for (write, code) in [
        ("INSERT INTO insta2.photos DEFAULT VALUES", "25006"),
        ("SELECT insta2.next_id()", "25006"),
        ("DROP TABLE insta2.likes", "55006"),
    ] {
        assert_eq!(refused(&mut restored, write).code().code(), code, "{write}");
    }
    restored.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
    restored.batch_execute("SELECT insta_ids.unfence(2); INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// A publication of all tables has the extension's tables too, and keeps nobody from changing them.
#[test]
fn a_publication_of_all_tables_lets_the_map_be_changed() {
    let cluster = Cluster::with("published", &["wal_level = logical"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; CREATE PUBLICATION everything FOR ALL TABLES").unwrap();
    client
        .batch_execute(
            "SELECT insta_ids.init(10), insta_ids.create_shard(1), insta_ids.add_node('a', 'host=/a'),
                    insta_ids.add_node('b', 'host=/b'), insta_ids.assign(0, 9, 'a'), insta_ids.drop_node('b'),
                    insta_ids.fence(1), insta_ids.unfence(1)",
        )
        .unwrap();
    assert_eq!(texts(&mut client, "SELECT version::text FROM insta_ids_internal.map"), ["4"]);
    // Triggers of their own keep the configuration and the lease.
    let tables = "SELECT oid::regclass::text FROM pg_class
                  WHERE relnamespace = 'insta_ids_internal'::regnamespace AND relkind = 'r' AND relname NOT IN ('config', 'lease')";
    for table in texts(&mut client, tables) {
        client.batch_execute(&format!("DELETE FROM {table} WHERE false")).unwrap();
    }
}

/// Each finding about the map is provoked, and goes when its hint is followed.
#[test]
fn each_finding_about_the_map_is_found_and_mended() {
    const FINDINGS: &str = "SELECT concat_ws('|', severity, code, object, detail) FROM insta_ids.check()";
    let pair = Pair::start("map_checked");
    let mut a = pair.a.connect();
    assert_eq!(texts(&mut a, FINDINGS), [""; 0]);
    let hint = "SELECT regexp_replace(hint, '^If it is written to there: ', '') FROM insta_ids.check()";

    // Made by hand, past what assign looks at.
    a.batch_execute("UPDATE insta_ids_internal.assignment SET node = 'c'").unwrap();
    let found = texts(&mut a, FINDINGS);
    assert_eq!(found[0], "error|unknown_node|c|The map has shards from 0 to 63 on it.");
    assert_eq!(
        found[1],
        "error|misplaced_shard|insta0|It is open to writers here, and the map has shard 0 on node \"c\"."
    );
    assert_eq!(found.len(), 5);
    a.batch_execute("SELECT insta_ids.add_node('c', 'host=c')").unwrap();
    for fence in texts(&mut a, hint) {
        a.batch_execute(&fence).unwrap();
    }
    assert_eq!(texts(&mut a, FINDINGS), [""; 0]);

    a.batch_execute(
        "UPDATE insta_ids_internal.assignment SET node = 'a'; DELETE FROM insta_ids_internal.fence WHERE shard < 2",
    )
    .unwrap();
    // As pg_dump --disable-triggers leaves it: replication would go past it.
    let damages = [
        "DROP TRIGGER insta_ids_fence ON insta1.photos",
        "DROP TRIGGER insta_ids_fence_rows ON insta1.photos",
        "ALTER TABLE insta1.photos ENABLE TRIGGER insta_ids_fence_rows",
        "ALTER TABLE insta1.photos ENABLE TRIGGER insta_ids_fence",
    ];
    for damage in damages {
        a.batch_execute("DELETE FROM insta_ids_internal.fence WHERE shard = 1").unwrap();
        a.batch_execute(&format!("{damage}; INSERT INTO insta_ids_internal.fence VALUES (1, true)")).unwrap();
        assert_eq!(
            texts(&mut a, FINDINGS),
            ["error|gap_in_fence|insta1.photos|Shard 1 is fenced, and this table is not."]
        );
        let mending = texts(&mut a, hint);
        a.batch_execute(&mending[0]).unwrap();
        assert_eq!(texts(&mut a, FINDINGS), [""; 0]);
    }

    a.batch_execute("SELECT insta_ids.unfence(n) FROM unnest('{1, 2, 3}'::integer[]) n; SELECT insta_ids_internal.open_shards('{0}')").unwrap();
    a.batch_execute("SELECT insta_ids_internal.move_offer(0, 1, 'b'); UPDATE insta_ids_internal.move SET step_at = now() - interval '2 days'").unwrap();
    let found = texts(&mut a, "SELECT concat_ws('|', code, object, hint) FROM insta_ids.check()");
    let next = "On node b: CALL insta_ids.move_shards(0, 1, 'a'); to end it instead, CALL insta_ids.move_abort(0, 1, 'a')";
    assert_eq!(found, [format!("old_move|insta_ids_0_1|{next}")]);
    a.batch_execute("SELECT insta_ids_internal.move_withdraw('insta_ids_0_1')").unwrap();

    a.batch_execute("ALTER SYSTEM SET insta_ids.node = ''").unwrap();
    a.batch_execute("SELECT pg_reload_conf()").unwrap();
    let mut a = pair.a.connect();
    a.batch_execute("LOAD 'insta_ids'").unwrap();
    assert_eq!(
        texts(&mut a, FINDINGS),
        ["warning|other_name|insta_ids.node|It is set to \"\", and \"a\" is in force."]
    );
    pair.a.stop();
    pair.a.up();
    let found = texts(&mut pair.a.connect(), "SELECT code FROM insta_ids.check()");
    assert_eq!(found, ["unnamed_server"]);
}
