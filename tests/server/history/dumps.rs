//! The dump of a shard is a baseline, as `pg_dump` prints it.

use postgres::Client;

use support::{Cluster, count, refused, texts};

use super::{Migration, check, history};

/// The dump of a shard, without its rows.
fn dump(cluster: &Cluster, schema: &str) -> String {
    dump_of(cluster, "postgres", &["-n", schema])
}

fn dump_of(cluster: &Cluster, database: &str, arguments: &[&str]) -> String {
    let mut dump = cluster.program("pg_dump", "postgres");
    let run = dump.args(["--schema-only", database]).args(arguments).output().unwrap();
    assert!(run.status.success());
    String::from_utf8(run.stdout).unwrap()
}

/// The migration without its INSERTs: a dump of the schema has no rows. Returns `None` if nothing else is in it.
fn without_rows(client: &mut Client, migration: Migration) -> Option<Migration> {
    let ddl: Option<String> = client
        .query_one(
            "SELECT string_agg(statement, '; ') FROM insta_ids_internal.statements($1) WHERE command <> 'INSERT'",
            &[&migration.ddl],
        )
        .unwrap()
        .get(0);
    Some(Migration { ddl: ddl?, ..migration })
}

#[test]
fn the_dump_of_a_shard_replaces_its_history() {
    let cluster = Cluster::start("dumped");
    let mut client = cluster.connect();
    client.batch_execute("CREATE ROLE app; SELECT insta_ids.init(64), insta_ids.create_shard(5)").unwrap();
    let mut last = String::new();
    for migration in history() {
        let Some(migration) = without_rows(&mut client, migration) else { continue };
        migration.add(&mut client);
        migration.apply(&cluster);
        last = migration.name;
    }
    client.batch_execute("GRANT USAGE ON SCHEMA insta5 TO app").unwrap();
    // A dump has no rows of materialized views either.
    let text = dump(&cluster, "insta5") + "REFRESH MATERIALIZED VIEW daily;\n";
    client
        .execute("SELECT insta_ids.squash_migrations($1, 'baseline', $2)", &[&last, &text])
        .unwrap_or_else(|error| panic!("{error:?}"));
    client.batch_execute("SELECT insta_ids.create_shard(6)").unwrap();
    check(&mut client, "baseline", [5, 6]);
    let privileges = "SELECT has_schema_privilege('app', 'insta6', 'USAGE')::text";
    assert_eq!(texts(&mut client, privileges), ["true"]);

    // In another database, the dump is the first migration.
    client.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = cluster.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(64)").unwrap();
    other.execute("SELECT insta_ids.add_migration('baseline', $1)", &[&text]).unwrap();
    other.batch_execute("SELECT insta_ids.create_shard(n) FROM generate_series(1, 2) n").unwrap();
    let shape = |shard: i32| format!("SELECT insta_ids_internal.objects_json({shard})::text");
    assert_eq!(texts(&mut other, &shape(1)), texts(&mut client, &shape(5)));
    check(&mut other, "in another database", [1, 2]);
}

/// Objects that have the names of others: of `pg_catalog`, of an alias, of a CTE, of what each shard has.
const NAMESAKES: &str = r#"
    CREATE TYPE path AS ENUM ('left', 'right');
    CREATE DOMAIN money AS numeric CHECK (VALUE > 0);
    CREATE FUNCTION lower(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN 'mine';
    REVOKE ALL ON FUNCTION insta0.lower(text) FROM PUBLIC;
    CREATE FUNCTION next_id(kind text, n integer) RETURNS bigint LANGUAGE sql RETURN n;
    CREATE TABLE roads (id bigint PRIMARY KEY DEFAULT next_id(), path insta0.path, price insta0.money, host text DEFAULT 'insta0.example.com',
        other bigint, state integer, CHECK (id_shard(other) = id_shard(id) OR state = 0));
    CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), road bigint REFERENCES roads);
    CREATE VIEW lowered AS SELECT insta0.lower(host) FROM roads;
    CREATE VIEW counted AS WITH likes AS (SELECT 1 AS one) SELECT (SELECT count(*) FROM insta0.likes) FROM likes;
    CREATE FUNCTION safe() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, insta0, pg_temp AS 'SELECT count(*) FROM roads';
    CREATE TABLE insta_ids_fences (n integer PRIMARY KEY);
    GRANT USAGE ON SCHEMA insta0 TO app, "$sql$%I";"#;

/// A name that has a schema in the dump means the same in each shard.
#[test]
fn names_of_a_dump_keep_their_schema() {
    let cluster = Cluster::start("dumped_names");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE app; CREATE ROLE \"$sql$%I\"; SELECT insta_ids.init(4), insta_ids.create_shard(0)",
        )
        .unwrap();
    client
        .batch_execute(&format!("SET search_path = insta0, public; {NAMESAKES} RESET search_path"))
        .unwrap();
    client
        .batch_execute("ALTER TYPE insta0.path OWNER TO app; ALTER FUNCTION insta0.lower(text) OWNER TO app")
        .unwrap();
    let server = "SELECT (SELECT concat(proowner::regrole, proacl) FROM pg_proc WHERE oid = 'pg_catalog.lower(text)'::regprocedure)
        UNION ALL SELECT typowner::regrole::text FROM pg_type WHERE oid = 'pg_catalog.path'::regtype";
    let before = texts(&mut client, server);
    for (n, options) in
        [&["-n", "insta0"][..], &["-n", "insta0", "--quote-all-identifiers"], &["-n", "insta0", "-O"]]
            .iter()
            .enumerate()
    {
        let text = dump_of(&cluster, "postgres", options);
        let name = format!("other{n}");
        client.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        let mut other = cluster.connect_to(&name);
        other.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(4)").unwrap();
        let error =
            refused(&mut other, &format!("SELECT insta_ids.add_migration('all', $dump${text}$dump$)"));
        // A literal that begins like a name of the schema is the user's.
        assert!(error.message().ends_with("names schema \"insta0\""), "{}", error.message());
        let text = text.replace("insta0.example.com", "example.com");
        other.execute("SELECT insta_ids.add_migration('all', $1)", &[&text]).unwrap();
        other.batch_execute("SELECT insta_ids.create_shard(n) FROM generate_series(2, 3) n").unwrap();
        assert_eq!(texts(&mut other, "SELECT code FROM insta_ids.check()"), [""; 0]);
        assert_eq!(texts(&mut other, server), before);
        let shapes = "SELECT format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = 'insta3.roads'::regclass AND attname IN ('path', 'price')";
        assert_eq!(texts(&mut other, shapes), ["insta3.path", "insta3.money"]);
        other.batch_execute("INSERT INTO insta3.roads (host) VALUES ('A'); INSERT INTO insta3.likes SELECT FROM generate_series(1, 2)").unwrap();
        assert_eq!(texts(&mut other, "SELECT lower FROM insta3.lowered"), ["mine"]);
        assert_eq!(count(&mut other, "SELECT count FROM insta3.counted"), 2);
        assert_eq!(count(&mut other, "SELECT insta3.next_id('x', 7)"), 7);
        assert_eq!(
            texts(&mut other, "SELECT unnest(proconfig) FROM pg_proc WHERE oid = 'insta3.safe'::regproc"),
            ["search_path=pg_catalog, insta3, pg_temp"]
        );
        let same = "SELECT count(*) FROM pg_class WHERE relname = 'insta_ids_fences' AND relnamespace = 'insta3'::regnamespace
            AND has_schema_privilege('app', 'insta3', 'USAGE') AND has_schema_privilege('$sql$%I', 'insta3', 'USAGE')";
        assert_eq!(count(&mut other, same), 1);
        assert_eq!(
            count(
                &mut other,
                "SELECT count(*) FROM pg_constraint WHERE conrelid = 'insta3.roads'::regclass AND contype = 'c'"
            ),
            2
        );
    }
    let other_prefix = dump_of(&cluster, "postgres", &["-n", "public"]);
    let error =
        refused(&mut client, &format!("SELECT insta_ids.add_migration('x', $dump${other_prefix}$dump$)"));
    assert_eq!((error.code().code(), error.message()), ("22023", "dump is not that of a shard"));
}

/// What a text says of one shard alone would be wrong in the others, although that shard has it, too.
#[test]
fn a_baseline_is_compared_in_another_shard() {
    let cluster = Cluster::start("dumped_number");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(3)").unwrap();
    let made = "DO $do$ BEGIN EXECUTE format('CREATE FUNCTION mint() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT next_id(%s, %L); END',
        substr(current_schema, 6), 'table_id_seq'); END $do$";
    client.execute("SELECT insta_ids.add_migration('m', $1)", &[&made]).unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(n) FROM generate_series(0, 1) n").unwrap();
    let text = dump(&cluster, "insta0");
    let error = refused(
        &mut client,
        &format!("SELECT insta_ids.squash_migrations('m', 'baseline', $dump${text}$dump$)"),
    );
    assert_eq!(error.code().code(), "55000");
    assert!(error.message().starts_with("shards would not be alike: function mint"), "{}", error.message());
}
