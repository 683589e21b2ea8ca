//! Engines that route by the map, as docs/engines.md has them.

use std::fs;
use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;

use support::blocks;
use support::pair::{Move, Pair, settings, shard_map};
use support::{Cluster, checkout, count, duplicates, has, ids, refused, texts, within};

const DOCUMENT: &str = "docs/engines.md";

const USERS: &str = "SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD user_id bigint')";

/// Shards 0 and 1 on node `a`, 2 and 3 on node `b`.
fn two_nodes(name: &str) -> Pair {
    let pair = Pair::start(name);
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.drop_shard(2), insta_ids.drop_shard(3)").unwrap();
    a.batch_execute("SELECT insta_ids.assign(2, 3, 'b')").unwrap();
    a.batch_execute(USERS).unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    b.batch_execute(support::pair::MIGRATION).unwrap();
    b.batch_execute(USERS).unwrap();
    b.batch_execute("CALL insta_ids.create_shards(2, 3)").unwrap();
    pair
}

/// PL/Proxy routes by the map, as docs/engines.md says.
#[test]
fn plproxy_routes_by_the_map() {
    if !has("plproxy") {
        return;
    }
    let pair = two_nodes("plproxy");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let router = Cluster::start("plproxy_router");
    let map = blocks(DOCUMENT, "sql plproxy-map").concat();
    router
        .connect()
        .batch_execute(&map.replace(":'map'", &format!("$map${}$map$", shard_map(&mut a))))
        .unwrap();
    for node in [&mut a, &mut b] {
        node.batch_execute(&blocks(DOCUMENT, "sql plproxy-node").concat()).unwrap();
    }
    // Whoever calls is who connects, not who moves shards.
    for node in [&mut a, &mut b, &mut router.connect()] {
        node.batch_execute(
            "CREATE ROLE app LOGIN;
             DO $$ BEGIN
                 EXECUTE (SELECT string_agg(format('GRANT USAGE ON SCHEMA %1$I TO app; GRANT ALL ON ALL TABLES IN SCHEMA %1$I TO app;'
                              || ' GRANT ALL ON ALL SEQUENCES IN SCHEMA %1$I TO app', schema), '; ')
                          FROM insta_ids.shards WHERE tables > 0);
             EXCEPTION WHEN null_value_not_allowed THEN NULL;
             END $$",
        )
        .unwrap();
    }
    router.connect().batch_execute(&blocks(DOCUMENT, "sql plproxy-router").concat()).unwrap();
    let mut client = router.config().user("app").connect(postgres::NoTls).unwrap();
    let mut add =
        |user: i64| client.query_one("SELECT add_photo($1)", &[&user]).map(|row| row.get::<_, i64>(0));
    let by_key: Vec<_> =
        (0..64).filter(|user| user % 64 < 4).map(|user| (user, add(user).unwrap())).collect();
    for &(user, id) in &by_key {
        assert_eq!(id >> 10 & 8191, user);
        let on = if user < 2 { &mut a } else { &mut b };
        assert_eq!(count(on, &format!("SELECT user_id FROM insta{user}.photos WHERE id = {id}")), user);
        assert_eq!(count(&mut client, &format!("SELECT user_of_photo({id})")), user);
    }

    // After a move, the map is old here until the new one is applied; the same session then goes to the other server.
    let (user, id) = by_key[1];
    pair.b.connect().batch_execute("CALL insta_ids.move_shards(1, 1, 'a')").unwrap();
    let stale = refused(&mut client, &format!("SELECT add_photo({user})"));
    assert_eq!(stale.code(), &SqlState::UNDEFINED_TABLE);
    a.batch_execute("SELECT insta_ids.fence(0)").unwrap();
    assert_eq!(refused(&mut client, "SELECT add_photo(0)").code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
    a.batch_execute("SELECT insta_ids.unfence(0)").unwrap();
    router.connect().execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut b)]).unwrap();
    b.batch_execute("GRANT USAGE ON SCHEMA insta1 TO app; GRANT ALL ON ALL TABLES IN SCHEMA insta1 TO app")
        .unwrap();
    assert_eq!(count(&mut client, &format!("SELECT user_of_photo({id})")), user);

    // Functions of other clusters are not written over; a second call changes nothing.
    let mut owner = router.connect();
    owner.batch_execute("SELECT insta_ids.install_plproxy('insta')").unwrap();
    let unknown = "CREATE FUNCTION other(int) RETURNS int LANGUAGE plproxy AS $$ CLUSTER 'other'; RUN ON $1; $$; SELECT other(1)";
    let unknown = refused(&mut owner, unknown);
    assert!(unknown.message().contains("got NULL"), "{}", unknown.message());
    owner.batch_execute("DROP EXTENSION insta_ids CASCADE; CREATE EXTENSION insta_ids").unwrap();
    owner.batch_execute("SELECT insta_ids.init(4)").unwrap();
    let foreign = "CREATE FUNCTION plproxy.get_cluster_version(text) RETURNS integer RETURN 1";
    owner.batch_execute(foreign).unwrap();
    assert_eq!(
        refused(&mut owner, "SELECT insta_ids.install_plproxy('insta')").code(),
        &SqlState::DUPLICATE_FUNCTION
    );
    // Nor is anything made where somebody else could put his own in its place.
    owner
        .batch_execute(
            "DROP SCHEMA plproxy CASCADE; CREATE ROLE bob; GRANT CREATE ON DATABASE postgres TO bob; SET ROLE bob;
             CREATE SCHEMA plproxy; RESET ROLE",
        )
        .unwrap();
    let planted = refused(&mut owner, "SELECT insta_ids.install_plproxy('insta')");
    assert_eq!(
        (planted.code(), planted.message()),
        (&SqlState::INSUFFICIENT_PRIVILEGE, "schema plproxy is of role bob")
    );
    owner.batch_execute("DROP SCHEMA plproxy CASCADE; SELECT insta_ids.install_plproxy('insta')").unwrap();
    owner.batch_execute("ALTER FUNCTION plproxy.get_cluster_version OWNER TO bob").unwrap();
    assert_eq!(
        refused(&mut owner, "SELECT insta_ids.install_plproxy('insta')").code(),
        &SqlState::INSUFFICIENT_PRIVILEGE
    );
    owner.batch_execute("DROP SCHEMA plproxy CASCADE; DROP EXTENSION plproxy CASCADE").unwrap();
    let missing = refused(&mut owner, "SELECT insta_ids.install_plproxy('insta')");
    assert_eq!(missing.hint(), Some("Create it: CREATE EXTENSION plproxy."));
}

/// A map of names that need quoting, in all that is made of it.
fn quoted(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::bare(name);
    let mut client = cluster.connect();
    client
        .batch_execute(
            r#"CREATE EXTENSION insta_ids; SELECT insta_ids.init(4, 'In"st''a\_');
               SELECT insta_ids.add_node('No"de''a', 'postgresql://mover@db-a.example:5433/my%20app?sslmode=require');
               SELECT insta_ids.add_node('b', E'host=db-b.example dbname=\'a\\\'b\' user = mover');
               SELECT insta_ids.assign(0, 1, 'No"de''a'), insta_ids.assign(2, 2, 'b')"#,
        )
        .unwrap();
    (cluster, client)
}

/// The map is exported as a configuration of `PgDog`.
#[test]
fn pgdog_is_configured_by_the_map() {
    let (_cluster, mut client) = quoted("pgdog");
    for (arguments, file) in
        [("", "schemas"), (", '{id,photo_id}', ARRAY['user \"id\"'], '{email}', '{device}'", "lookups")]
    {
        let exported =
            texts(&mut client, &format!("SELECT insta_ids.export_pgdog('my \"app\"'{arguments})")).remove(0);
        let golden = checkout().join(format!("tests/vectors/pgdog-{file}.toml"));
        assert_eq!(exported, fs::read_to_string(&golden).unwrap(), "{}", golden.display());
    }
    // What the lookups ask is answered by the map.
    let lookups = fs::read_to_string(checkout().join("tests/vectors/pgdog-lookups.toml")).unwrap();
    for line in lookups.lines().filter_map(|line| line.strip_prefix("lookup_query = ")) {
        let query: String =
            texts(&mut client, &format!("SELECT $json${line}$json$::json #>> '{{}}'")).remove(0);
        // As PgDog asks: with a text, without its type.
        let mut server = |key: &str| {
            let asked = query.replace("$1", &format!("'{key}'"));
            client.query_opt(&asked, &[]).unwrap().map(|row| row.get::<_, i32>(0))
        };
        let keys = if query.contains("id_shard") {
            ["0", "1024", "2048", "3072"]
        } else if query.contains("shard_of_text") {
            ["user1", "user10", "user0", "user6"]
        } else if query.contains("shard_of_uuid") {
            [
                "00000000-0000-0000-0000-000000000005",
                "00000000-0000-0000-0000-000000000001",
                "00000000-0000-0000-0000-000000000004",
                "00000000-0000-0000-0000-000000000000",
            ]
        } else {
            ["0", "1", "2", "3"]
        };
        assert_eq!(keys.map(&mut server), [Some(0), Some(0), Some(1), None], "{query}");
    }

    let export = "SELECT insta_ids.export_pgdog('app')";
    for (dsn, ord, message) in [
        ("service=b", 1, "connection string of node \"b\" does not name one host"),
        ("host=x,y", 1, "connection string of node \"b\" does not name one host"),
        ("host=/tmp", 1, "connection string of node \"b\" does not name one host"),
        ("host=x", 2, "nodes are not numbered from 0 without a gap"),
    ] {
        client.execute("SELECT insta_ids.add_node('b', $1, $2)", &[&dsn, &ord]).unwrap();
        assert_eq!(refused(&mut client, export).message(), message, "{dsn}");
    }
}

/// The parts of a connection string are those that libpq finds in it.
#[test]
fn connection_strings_are_read_as_libpq_reads_them() {
    let (_cluster, mut client) = quoted("dsn");
    let partitions = texts(&mut client, "SELECT insta_ids_internal.plproxy_partitions()");
    let a = "host='db-a.example' port='5433' dbname='my app' sslmode='require'";
    let b = r"host='db-b.example' dbname='a\'b'";
    // The last is on no node.
    assert_eq!(partitions, [a, a, b, a]);
    // PL/Proxy adds no role where it reads `user=`.
    client
        .batch_execute("SELECT insta_ids.add_node('b', 'host=h application_name=''from user=x''')")
        .unwrap();
    let partitions = texts(
        &mut client,
        "SELECT DISTINCT p FROM insta_ids_internal.plproxy_partitions() p WHERE p ~ 'from'",
    );
    assert_eq!(partitions, [r"host='h' application_name='from user\=x'"]);
    for (dsn, parameters) in [
        ("", ""),
        (
            r"host = a user='x y'  application_name='a\\\'b' port=5",
            r"host:a user:x y application_name:a\'b port:5",
        ),
        ("postgres:///db", "dbname:db"),
        ("postgresql://h", "host:h"),
        (
            "postgresql://u%40x@[::1]:5432,h:77/d%20b?connect_timeout=3&application_name=%C3%A4",
            "user:u@x host:::1,h port:5432,77 dbname:d b connect_timeout:3 application_name:ä",
        ),
        ("postgresql:///d?host=/tmp&port=6", "dbname:d host:/tmp port:6"),
        ("postgresql://h/d?ssl=true", "host:h dbname:d sslmode:require"),
        ("application_name=x'y host=b", "application_name:x'y host:b"),
    ] {
        let parts = "SELECT coalesce(string_agg(keyword || ':' || value, ' '), '') FROM insta_ids_internal.dsn_parameters($1)";
        assert_eq!(client.query_one(parts, &[&dsn]).unwrap().get::<_, &str>(0), parameters, "{dsn}");
    }
}

/// Foreign tables of `postgres_fdw` route by the map, as docs/engines.md says.
#[test]
fn a_router_reaches_all_shards_by_postgres_fdw() {
    let pair = two_nodes("fdw");
    if !has("postgres_fdw") {
        return;
    }
    let router = Cluster::bare("fdw_router");
    let mut client = router.connect();
    let mut recipe = blocks(DOCUMENT, "sql fdw").concat();
    for (address, node) in [("10.0.0.1", &pair.a), ("10.0.0.2", &pair.b)] {
        recipe = recipe.replace(address, &node.socket.display().to_string());
    }
    client.batch_execute(&recipe.replace("dbname 'app'", "dbname 'postgres'")).unwrap();
    for (node, shard) in [(&pair.a, 1), (&pair.b, 2)] {
        let mut node = node.connect();
        node.batch_execute(&format!(
            "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA insta{shard} TO reader;
             GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA insta{shard} TO reader;
             INSERT INTO insta{shard}.photos (user_id) SELECT {shard} FROM generate_series(1, 100)"
        ))
        .unwrap();
    }
    client.batch_execute(&blocks(DOCUMENT, "sql fdw-shards").concat()).unwrap();
    let of_each = "SELECT format('%s %s %s', shard, count(*), count(DISTINCT id)) FROM photos GROUP BY shard ORDER BY shard";
    assert_eq!(texts(&mut client, of_each), ["1 100 100", "2 100 100"]);
    let plan = texts(&mut client, "EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM photos WHERE shard = 2");
    assert!(!plan.iter().any(|line| line.contains("insta1")), "{plan:?}");
    let plan = texts(&mut client, "EXPLAIN (COSTS OFF) SELECT * FROM photos");
    assert!(plan.iter().any(|line| line.contains("Async Foreign Scan")), "{plan:?}");
    assert_eq!(
        refused(&mut client, "INSERT INTO insta2.photos (user_id) VALUES (1)").code(),
        &SqlState::NOT_NULL_VIOLATION
    );
    // After a move, not the rows that were left behind.
    pair.b.connect().batch_execute("CALL insta_ids.move_shards(1, 1, 'a')").unwrap();
    assert_eq!(refused(&mut client, "SELECT * FROM photos").code(), &SqlState::UNDEFINED_TABLE);
}

/// All nodes of Citus mint for one shard, each by a slot of its own. Where there is no Citus, the first test of `writers` stands
/// in for it: two servers with sequences of their own, and one shard.
#[test]
fn all_nodes_of_citus_mint_for_one_shard() {
    if !has("citus") {
        return;
    }
    let nodes: Vec<_> = (0..3)
        .map(|node| {
            let slot = format!("insta_ids.writer_slot = '{node}/4'");
            let preload = "shared_preload_libraries = 'citus,insta_ids'";
            let node = Cluster::with(&format!("citus_{node}"), &[preload, &slot, "wal_level = logical"]);
            node.connect().batch_execute("CREATE EXTENSION citus").unwrap();
            node
        })
        .collect();
    let mut coordinator = nodes[0].connect();
    for (node, by) in nodes.iter().zip(["citus_set_coordinator_host", "citus_add_node", "citus_add_node"]) {
        coordinator.batch_execute(&format!("SELECT {by}('{}', 5432)", node.socket.display())).unwrap();
    }
    coordinator.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    let recipe = blocks(DOCUMENT, "sql citus").concat();
    // Without a transaction around them, as psql sends them.
    for statement in recipe.split_inclusive(";\n") {
        coordinator.batch_execute(statement).unwrap();
    }
    let insert = "INSERT INTO insta5.photos (user_id) VALUES (1) RETURNING id";
    let all: Vec<Vec<i64>> = thread::scope(|scope| {
        let sessions: Vec<_> = nodes
            .iter()
            .flat_map(|node| [node, node])
            .map(|node| {
                scope.spawn(|| {
                    let mut client = node.connect();
                    (0..2000).map(|_| client.query_one(insert, &[]).unwrap().get(0)).collect::<Vec<i64>>()
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    assert_eq!(duplicates(&all), 0);
    assert_eq!(count(&mut coordinator, "SELECT count(*) FROM insta5.photos"), 12_000);
    for (slot, of_session) in [0, 0, 1, 1, 2, 2].into_iter().zip(&all) {
        assert!(of_session.iter().all(|id| id & 3 == slot), "of node {slot}");
    }
}

/// Citus' catalogs, as far as the extension reads them, in a database without Citus: of one worker that takes writes.
pub(crate) const CATALOGS_OF_CITUS: &str = "
    SET allow_system_table_mods = on;
    CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod \"char\", repmodel \"char\");
    CREATE UNIQUE INDEX pg_dist_partition_logical_relid_index ON pg_catalog.pg_dist_partition (logicalrelid);
    CREATE TABLE pg_catalog.pg_dist_schema (schemaid oid, colocationid int);
    CREATE TABLE pg_catalog.pg_dist_local_group AS SELECT 0 AS groupid;
    CREATE TABLE pg_catalog.pg_dist_node AS
        SELECT 1 AS groupid, true AS isactive, true AS hasmetadata, 'primary'::text AS noderole;
    RESET allow_system_table_mods";

/// Where Citus is installed, `check` says what is wrong with this node.
#[test]
fn check_finds_what_is_wrong_with_a_node_of_citus() {
    const FOUND: &str = "SELECT concat_ws(' ', severity, code, detail) FROM insta_ids.check()";
    let cluster = Cluster::bare("of_citus");
    cluster.connect().batch_execute("CREATE DATABASE worker").unwrap();
    let (mut client, mut worker) = (cluster.connect(), cluster.connect_to("worker"));
    for node in [&mut client, &mut worker] {
        node.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    }
    client.batch_execute("SELECT insta_ids.init(8); CREATE SCHEMA insta1").unwrap();
    let unmanaged = "warning unmanaged_schema It is called like shard 1, which is not there.";
    assert_eq!(texts(&mut client, FOUND), [unmanaged]);
    assert_eq!(refused(&mut worker, FOUND).message(), "shards are not set up");

    for node in [&mut client, &mut worker] {
        node.batch_execute(CATALOGS_OF_CITUS).unwrap();
    }
    // A coordinator does not need shards of its own either.
    assert_eq!(texts(&mut worker, FOUND).len(), 1);
    worker.batch_execute("UPDATE pg_catalog.pg_dist_local_group SET groupid = 1").unwrap();
    let no_slot = "error citus_without_writer_slot \
                   It is 0/1, and Citus has workers that take writes: 1. Two nodes can mint the same id.";
    assert_eq!(texts(&mut client, FOUND), [no_slot, unmanaged]);
    assert_eq!(texts(&mut worker, FOUND), [no_slot]);
    for none in [
        "isactive = false",
        "isactive = true, hasmetadata = false",
        "hasmetadata = true, noderole = 'secondary'",
    ] {
        client.batch_execute(&format!("UPDATE pg_catalog.pg_dist_node SET {none}")).unwrap();
        assert_eq!(texts(&mut client, FOUND), [unmanaged], "{none}");
    }

    // With a slot, it only has to be taken.
    client.batch_execute("ALTER SYSTEM SET insta_ids.writer_slot = '1/4'").unwrap();
    drop((client, worker));
    cluster.stop();
    cluster.up();
    let mut worker = cluster.connect_to("worker");
    let found = texts(&mut worker, FOUND);
    assert!(
        found.len() == 1 && found[0].starts_with("error writer_slot No id can be minted here"),
        "{found:?}"
    );
    worker.batch_execute(&blocks(DOCUMENT, "sql citus-node").concat()).unwrap();
    assert_eq!(texts(&mut worker, FOUND), [""; 0]);
}

/// Citus does not distribute a table that a function makes.
#[test]
fn citus_distributes_no_table_made_by_a_function() {
    let cluster = Cluster::bare("schemas_of_citus");
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(8)").unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 2)").unwrap();
    client.batch_execute(CATALOGS_OF_CITUS).unwrap();
    client.batch_execute("INSERT INTO pg_catalog.pg_dist_schema VALUES ('insta1'::regnamespace, 1)").unwrap();
    let state = "SELECT string_agg(concat_ws(' ', shard, tables, pending), ', ' ORDER BY shard) FROM insta_ids.shards";

    for (ddl, table) in [
        ("CREATE TABLE photos (id bigint)", "photos"),
        ("/* all */ CREATE UNLOGGED TABLE IF NOT EXISTS photos (id bigint)", "photos"),
        ("ALTER SEQUENCE table_id_seq CACHE 1; CREATE TABLE \"My photos\" AS SELECT 1 AS id", "My photos"),
        ("SELECT 1 AS id INTO photos", "photos"),
        ("CREATE FOREIGN TABLE photos (id bigint) SERVER elsewhere", "photos"),
        (
            "CREATE TABLE photos (id bigint) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF photos DEFAULT",
            "photos",
        ),
    ] {
        client.execute("SELECT insta_ids.add_migration('0001', $1)", &[&ddl]).unwrap();
        let error = refused(&mut client, "CALL insta_ids.migrate()");
        let message = format!("migration \"0001\" would create table \"{table}\" on this node only");
        assert_eq!(error.message(), message, "{ddl}");
        assert_eq!(
            error.detail(),
            Some("Citus distributes schema \"insta1\", but no table that a function creates in it.")
        );
        assert_eq!(texts(&mut client, state), ["0 0 1, 1 0 1, 2 0 1"], "{ddl}");
    }
    // Other schemas are not its business.
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0001', 'CREATE TABLE IF NOT EXISTS photos (id bigint)')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate(2, 2)").unwrap();
    // Made by the client first, it is distributed already.
    client.batch_execute("CREATE TABLE insta1.photos (id bigint)").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    for ddl in [
        "ALTER TABLE photos ADD caption text",
        "CREATE TEMP TABLE photos_too () ON COMMIT DROP",
        "CREATE VIEW v AS SELECT 1 AS n",
    ] {
        client.execute("SELECT insta_ids.add_migration($1, $1)", &[&ddl]).unwrap();
        client.batch_execute("CALL insta_ids.migrate(batch => 1)").unwrap();
    }

    // As the document has it, from the client.
    let recipe = blocks(DOCUMENT, "sql citus-table").concat();
    let (creates, records) = recipe.split_once("\\gexec\n").unwrap();
    let creates = texts(&mut client, creates);
    assert_eq!(creates.len(), 3);
    for statement in creates.iter().map(String::as_str).chain(records.split_inclusive(";\n")) {
        client.batch_execute(statement).unwrap();
    }
    assert_eq!(
        texts(
            &mut client,
            "SELECT concat_ws(' ', code, object) FROM insta_ids.check() WHERE object ~ 'likes'"
        ),
        [""; 0]
    );
    // A later shard gets the table from the migration, and is like the others.
    client.batch_execute("SELECT insta_ids.create_shard(3)").unwrap();
    assert_eq!(
        texts(
            &mut client,
            "SELECT concat_ws(' ', code, object) FROM insta_ids.check() WHERE object ~ 'likes'"
        ),
        [""; 0]
    );
    // Without the triggers of a fence, Citus distributes the tables.
    client.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    client.batch_execute("SELECT insta_ids.fence(5)").unwrap();
    let unfence = blocks(DOCUMENT, "sql citus-unfence").concat();
    let (open, drops) = unfence.split_once(";\n").unwrap();
    client.batch_execute(open).unwrap();
    for drop in texts(&mut client, drops.strip_suffix(" \\gexec\n").unwrap()) {
        client.batch_execute(&drop).unwrap();
    }
    let triggers = "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'insta5'::regnamespace";
    assert_eq!(count(&mut client, triggers), 0);
    client.batch_execute("SELECT insta_ids.drop_shard(5)").unwrap();

    // With schema-based sharding, each new schema is one of Citus'.
    client
        .batch_execute(
            "CREATE FUNCTION distribute() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO pg_catalog.pg_dist_schema
                 SELECT oid, 2 FROM pg_namespace WHERE nspname IN ('insta5', 'insta6') AND oid NOT IN (SELECT schemaid FROM pg_catalog.pg_dist_schema);
             END $$;
             CREATE EVENT TRIGGER distribute ON ddl_command_end WHEN TAG IN ('CREATE SCHEMA') EXECUTE FUNCTION distribute()",
        )
        .unwrap();
    for call in ["CALL insta_ids.create_shards(5, 6)", "SELECT insta_ids.create_shard(5)"] {
        let error = refused(&mut client, call);
        assert_eq!(
            error.message(),
            "migration \"0001\" would create table \"photos\" on this node only",
            "{call}"
        );
        assert!(error.hint().unwrap().contains("citus.enable_schema_based_sharding = off"), "{error}");
        assert_eq!(count(&mut client, "SELECT count(*) FROM pg_namespace WHERE nspname ~ 'insta[56]'"), 0);
    }
}

/// `check` finds nodes that have other maps or names, that have overlapping slots, or that do not answer.
#[test]
fn nodes_that_disagree_are_found() {
    let pair = two_nodes("agree");
    let found = |cluster: &Cluster| {
        texts(
            &mut cluster.connect(),
            "SELECT concat_ws(' ', severity, code, object) FROM insta_ids.check_fleet()
             WHERE code ~ '_(answer|node|map|writer_slot)$' ORDER BY code, object",
        )
    };
    assert_eq!(found(&pair.b), [""; 0]);
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.assign(60, 63, 'b')").unwrap();
    assert_eq!(found(&pair.b), ["warning old_map b"]);
    b.batch_execute("SELECT insta_ids.assign(61, 63, 'b')").unwrap();
    assert_eq!(found(&pair.b), ["error other_map b"]);
    a.batch_execute("SELECT insta_ids.assign(59, 63, 'b')").unwrap();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    assert_eq!(found(&pair.b), [""; 0]);
    // By hand, past all functions.
    b.batch_execute("UPDATE insta_ids_internal.assignment SET node = 'a' WHERE first >= 59").unwrap();
    assert_eq!(found(&pair.b), ["warning old_map a"]);
    b.batch_execute(
        "SET session_replication_role = replica; UPDATE insta_ids_internal.map SET version = version - 1",
    )
    .unwrap();
    assert_eq!(found(&pair.b), ["error other_map b"]);

    // Two of one name; then with slots.
    pair.b.connect().batch_execute("ALTER SYSTEM SET insta_ids.node = 'a'").unwrap();
    pair.b.stop();
    pair.b.up();
    assert_eq!(found(&pair.b), ["error no_answer b"]);
    for (cluster, slot) in [(&pair.a, "1/2"), (&pair.b, "3/4")] {
        let mut client = cluster.connect();
        client.batch_execute("ALTER SYSTEM RESET insta_ids.node").unwrap();
        client.batch_execute(&format!("ALTER SYSTEM SET insta_ids.writer_slot = '{slot}'")).unwrap();
        drop(client);
        cluster.stop();
        cluster.up();
    }
    assert_eq!(found(&pair.b), ["error other_map b", "error same_writer_slot a"]);
    // What is called there is the extension's own, or nothing.
    b = pair.b.connect();
    b.batch_execute("CREATE DATABASE trap").unwrap();
    let planted =
        "CREATE SCHEMA insta_ids; CREATE FUNCTION insta_ids.this_node() RETURNS text LANGUAGE plpgsql
        AS $$BEGIN CREATE TABLE public.was_here (); RETURN 'z'; END$$";
    let mut trap = pair.b.connect_to("trap");
    trap.batch_execute(planted).unwrap();
    let dsn = format!("host={} user=postgres dbname=trap", pair.b.socket.display());
    b.execute("SELECT insta_ids.add_node('z', $1)", &[&dsn]).unwrap();
    assert_eq!(found(&pair.b), ["error no_answer z", "warning old_map a", "error same_writer_slot a"]);
    assert_eq!(count(&mut trap, "SELECT count(*) FROM pg_class WHERE relname = 'was_here'"), 0);
    b.batch_execute("SELECT insta_ids.drop_node('z')").unwrap();
    pair.b.connect().batch_execute("ALTER SYSTEM SET insta_ids.writer_slot = 'none'").unwrap();
    pair.b.stop();
    pair.b.up();
    assert_eq!(found(&pair.b), ["error other_answer b"]);
    // A server that could not mint for them takes no shards.
    let mut moving = Move::of(&pair, 0, 0);
    moving.step("offer").unwrap();
    let not_yet = moving.step("prepare").unwrap_err();
    assert_eq!(not_yet.as_db_error().unwrap().message(), "this server has no writer slot");
    pair.a.stop();
    assert_eq!(found(&pair.b), ["error no_answer a", "error other_answer b"]);
}

/// A standby is promoted and keeps half of the shards.
#[test]
fn half_of_the_shards_go_to_a_standby() {
    let name = "half_a";
    let settings = settings("a");
    let a = Cluster::with(name, &settings);
    let mut primary = a.connect();
    primary.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(4)").unwrap();
    primary.batch_execute(support::pair::MIGRATION).unwrap();
    primary.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    primary.batch_execute("SELECT insta_ids.add_node('a', 'host=a'), insta_ids.assign(0, 3, 'a')").unwrap();

    let c = Cluster::made("half_c", &["standby", name]);
    let conf = c.socket.join("data/postgresql.conf");
    let named = fs::read_to_string(&conf).unwrap().replace("insta_ids.node = 'a'", "insta_ids.node = 'c'");
    fs::write(&conf, named).unwrap();
    c.up();

    let insert = |client: &mut Client, shard: i32| {
        ids(
            client,
            &format!(
                "WITH i AS (INSERT INTO insta{shard}.photos SELECT FROM generate_series(1, 1000) RETURNING id) SELECT id FROM i"
            ),
        )
    };
    let before: Vec<_> = (0..4).map(|shard| insert(&mut primary, shard)).collect();
    for step in blocks("docs/servers.md", "sql split-primary") {
        primary.batch_execute(&step).unwrap();
    }
    let fenced = texts(&mut primary, "SELECT pg_current_wal_lsn()::text").remove(0);
    let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{fenced}')::int::bigint");
    within(Duration::from_secs(30), || count(&mut c.connect(), &replayed) == 1);
    let mut standby = c.connect();
    for statement in blocks("docs/servers.md", "sql split-standby").concat().split_inclusive(";\n") {
        standby.batch_execute(statement).unwrap();
    }

    let mut all = before;
    for shard in 0..4 {
        let (here, there) =
            if shard < 2 { (&mut primary, &mut standby) } else { (&mut standby, &mut primary) };
        all.push(insert(here, shard));
        for write in ["INSERT INTO insta{}.photos DEFAULT VALUES", "DELETE FROM insta{}.photos"] {
            let refusal = refused(there, &write.replace("{}", &shard.to_string()));
            assert_eq!(refusal.code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
        }
        assert_eq!(count(here, &format!("SELECT count(*) FROM insta{shard}.photos")), 2000);
    }
    assert_eq!(duplicates(&all), 0);
    assert_eq!(shard_map(&mut primary), shard_map(&mut standby));
    for client in [&mut primary, &mut standby] {
        client.batch_execute(&blocks("docs/servers.md", "sql split-both").concat()).unwrap();
        assert_eq!(texts(client, "SELECT concat_ws(' ', code, detail) FROM insta_ids.check()"), [""; 0]);
    }
    let left = "SELECT string_agg(shard || state, ' ' ORDER BY shard) FROM insta_ids.shards WHERE tables > 0";
    assert_eq!(texts(&mut primary, left), ["0active 1active"]);
    assert_eq!(texts(&mut standby, left), ["2active 3active"]);
}
