//! The dump of a shard is a baseline, as `pg_dump` prints it.

use postgres::Client;

use support::{Cluster, texts};

use super::{Migration, check, history};

/// The dump of a shard, without its rows.
fn dump(cluster: &Cluster, schema: &str) -> String {
    let mut dump = cluster.program("pg_dump", "postgres");
    let run = dump.args(["--schema-only", "-n", schema, "postgres"]).output().unwrap();
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
