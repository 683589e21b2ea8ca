//! Names and settings with characters that have to be quoted.

use postgres::error::SqlState;
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::sync::{Arc, Mutex};
use support::shards::{PHOTOS, add, published_function};
use support::{Cluster, count, major, refused, texts};

/// The prefix of the schemas can have any characters.
#[test]
fn shards_with_any_prefix_work() {
    let long = "x".repeat(61);
    let long_too = "é".repeat(30) + "x";
    let names = [
        "Insta",
        "my shards",
        "\"",
        "it's \"quoted\"",
        "\"; drop schema public; --",
        "100%s %I %1$s ",
        "back\\slash\\",
        "$$ $do$ ",
        "a.b",
        "(.*)[x]+?^",
        "größe/尺寸",
        "line\nbreak",
        "select",
        "7",
        &long,
        &long_too,
    ];
    let cluster = Cluster::start("hostile");
    let mut client = cluster.connect();
    // PostgreSQL takes no other schema of an extension than one without quotes.
    let error = refused(
        &mut client,
        "CREATE SCHEMA \"My \"\"Schema\"; DROP EXTENSION insta_ids; CREATE EXTENSION insta_ids SCHEMA \"My \"\"Schema\"",
    );
    assert!(error.message().starts_with("invalid character in extension \"insta_ids\" schema"), "{error}");
    client.batch_execute("CREATE DATABASE template").unwrap();
    cluster
        .connect_to("template")
        .batch_execute("CREATE SCHEMA \"My Schema\"; CREATE EXTENSION insta_ids SCHEMA \"My Schema\"")
        .unwrap();
    for (number, name) in names.into_iter().enumerate() {
        let database = format!("hostile{number}");
        client.batch_execute(&format!("CREATE DATABASE {database} TEMPLATE template")).unwrap();
        println!("{name}");
        of_this_name(&mut cluster.connect_to(&database), name);
        client.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).unwrap();
    }
}

/// A database that reads backslashes in strings as before PostgreSQL 9.1 gives the same answers. PostgreSQL 19 cannot do that any
/// more.
#[test]
fn nothing_depends_on_standard_conforming_strings() {
    if major() >= 19 {
        return;
    }
    let cluster = Cluster::bare("backslashes");
    let ways = [("by_standard", "on"), ("as_of_old", "off")].map(|(database, conforming)| {
        let mut client = cluster.connect();
        client.batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
        client
            .batch_execute(&format!(
                "ALTER DATABASE {database} SET standard_conforming_strings = {conforming}"
            ))
            .unwrap();
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&warnings);
        let mut config = cluster.config();
        config.dbname(database);
        config.notice_callback(move |notice| heard.lock().unwrap().push(notice.message().to_owned()));
        let mut client = config.connect(NoTls).unwrap();
        client.batch_execute("SET client_min_messages = warning").unwrap();
        let said = said_in_all_calls(&mut client);
        (said, std::mem::take(&mut *warnings.lock().unwrap()))
    });
    for (standard, old) in ways[0].0.iter().zip(&ways[1].0) {
        assert_eq!(standard, old);
    }
    assert_eq!(ways[0], ways[1]);
    assert!(!ways[1].1.iter().any(|warning| warning.contains("nonstandard")), "{:?}", ways[1].1);
}

/// What is returned, or refused, of calls that go by patterns.
fn said_in_all_calls(client: &mut Client) -> Vec<(String, Result<Vec<String>, String>)> {
    const PREFIX: &str = "my\\sh'ard\"";
    let schema = |shard: i32| format!("\"my\\sh'ard\"\"{shard}\"");
    let calls = [
        "CREATE EXTENSION insta_ids".into(),
        format!("SELECT insta_ids.init(16, $${PREFIX}$$)"),
        format!("SELECT insta_ids.add_migration('0001', $${PHOTOS}$$)"),
        format!("SELECT insta_ids.add_migration('0002', $$ALTER TABLE {}.photos ADD n int$$)", schema(3)),
        "CALL insta_ids.create_shards(0, 4)".into(),
        "SELECT insta_ids.add_migration('0002', $$CREATE VIEW of_ids AS SELECT E'a\\\\b' AS b, id FROM photos$$)".into(),
        "CALL insta_ids.migrate()".into(),
        format!("ALTER TABLE {}.photos DROP COLUMN caption", schema(1)),
        format!("ALTER TABLE {0}.likes ALTER id SET DEFAULT next_id(2, $${1}.likes_id_seq$$)", schema(1), schema(2)),
        format!("CREATE INDEX ON {}.photos (caption)", schema(3)),
        format!("CREATE SCHEMA {}", schema(7)),
        "SELECT concat_ws('|', severity, code, object, detail, hint) FROM insta_ids.check()".into(),
        "CALL insta_ids.check_rows()".into(),
        "SELECT insta_ids.fence(4)".into(),
        "CREATE TABLE public.elsewhere (n int)".into(),
        "ALTER TABLE public.elsewhere ADD m int".into(),
        format!("ALTER TABLE {}.photos ADD n int", schema(4)),
        format!("ALTER TABLE {}.photos SET SCHEMA public", schema(4)),
        format!("INSERT INTO {}.photos VALUES (DEFAULT)", schema(4)),
        "SELECT insta_ids.unfence(4)".into(),
        "SELECT insta_ids.add_node('a', 'host=a password=x')".into(),
        "SELECT insta_ids.add_node('a', 'host=a password = x')".into(),
        "SELECT insta_ids.add_node('a', 'host=a hostaddr = 10.0.0.9')".into(),
        "SELECT insta_ids.add_node('a', $$host=a user=u application_name='b\\\\c\\'d'$$, 0)".into(),
        "SELECT insta_ids.add_node('b', 'postgresql://u@b:5433,[::1]/d%20b?application_name=x%5Cy', 1)".into(),
        "SELECT concat_ws('|', n.node, p.keyword, p.value) FROM insta_ids_internal.node n, insta_ids_internal.dsn_parameters(n.dsn) p".into(),
        "SELECT insta_ids_internal.plproxy_partitions()".into(),
        "SELECT insta_ids.add_node('b', 'host=b', 1)".into(),
        "SELECT insta_ids.assign(0, 15, 'a')".into(),
        "SELECT insta_ids.export_pgdog('db')".into(),
        "SELECT insta_ids.release_writer_slot('3/4')".into(),
        "SELECT insta_ids.release_writer_slot('3/5')".into(),
        format!("CREATE SEQUENCE {}.table_id_seq", schema(7)),
        published_function(&schema(7), &format!("SET search_path = {}, pg_catalog", schema(7)), "table_id_seq", 7),
        format!("CREATE TABLE {0}.photos (id bigint PRIMARY KEY DEFAULT {0}.next_id())", schema(7)),
        format!("SELECT insta_ids.adopt($${}$$, 7)", schema(7)),
        format!("ALTER FUNCTION {0}.next_id() SET search_path = pg_catalog, {0}", schema(7)),
        format!("SELECT insta_ids.adopt($${}$$, 7)", schema(7)),
        format!("INSERT INTO {}.photos DEFAULT VALUES", schema(7)),
        format!("SELECT insta_ids.unadopt($${}$$)", schema(7)),
        format!("INSERT INTO {}.photos DEFAULT VALUES", schema(7)),
        "CREATE TABLE by_time (id bigint) PARTITION BY RANGE (id)".into(),
        "SELECT insta_ids.create_partitions('by_time', '1 day', '2020-01-01', '2020-01-03', 'UTC')::text".into(),
        "SELECT insta_ids.drop_partitions('by_time', '2020-01-02')".into(),
        "SELECT insta_ids.create_ticket_server('t', 1, 2)".into(),
        "SELECT id_shortcode(id_min('2020-01-01'))".into(),
        "CREATE ROLE provisioner; SELECT insta_ids.grant_provisioning('provisioner'); DROP OWNED BY provisioner; DROP ROLE provisioner".into(),
        "SELECT insta_ids.drop_shard(n, true) FROM generate_series(0, 4) n".into(),
    ];
    calls
        .into_iter()
        .map(|call: String| {
            let rows = client.simple_query(&call).map_err(|error| {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{call}: {error}"));
                format!("{} {:?} {:?}", error.message(), error.detail(), error.hint())
            });
            let texts = rows.map(|rows| {
                let of_row = |message: SimpleQueryMessage| match message {
                    SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                };
                rows.into_iter().filter_map(of_row).collect()
            });
            println!("{call}: {texts:?}");
            (call, texts)
        })
        .collect()
}

/// All that is done with shards and migrations, where both are called that.
fn of_this_name(client: &mut Client, name: &str) {
    const LAST: &str = "19";
    let schema = format!("{name}{LAST}");
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    let literal = format!("'{}'", name.replace('\'', "''"));
    client.execute("SELECT insta_ids.init(20, $1::text::name)", &[&name]).unwrap();
    // A schema of a shard is found in what would be run for each.
    for ddl in [format!("SELECT FROM {quoted}.photos"), format!("SELECT 1 FROM {quoted} . photos")] {
        let error = client.execute("SELECT insta_ids.add_migration('named', $1)", &[&ddl]).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{ddl}: {error}");
    }
    let ddl = format!(
        "CREATE TABLE {quoted} (id bigint DEFAULT next_id(), {quoted} text); CREATE INDEX i ON {quoted} (id)"
    );
    client.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
    add(client, name, &ddl);
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute("CALL insta_ids.create_shards(5, 19, batch => 3)").unwrap();
    let script = format!("script of {name}");
    let ddl = format!("CREATE INDEX CONCURRENTLY {quoted} ON {quoted} ({quoted})");
    // The index and the table are of one schema.
    let ddl = ddl.replacen(&quoted, "concurrently_made", 1);
    client
        .execute("SELECT insta_ids.add_migration($1, $2, transactional => false)", &[&script, &ddl])
        .unwrap();
    let lines: Vec<String> = client
        .query("SELECT line FROM insta_ids.migration_script($1) line", &[&script])
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(lines.len(), 60);
    for line in lines {
        client.batch_execute(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let complete = "SELECT count(*) FROM insta_ids.shards
                    WHERE state = 'active' AND applied = 2 AND tables = 1 AND pending = 0 AND failed = 0";
    assert_eq!(count(client, complete), 20);
    assert_eq!(
        texts(client, "SELECT schema::text FROM insta_ids.shards WHERE shard = 19"),
        [schema.as_str()]
    );
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, {literal})");
    assert_eq!(count(client, &schemas), 20);

    let table = format!("{quoted}.{quoted}");
    client.batch_execute(&format!("INSERT INTO {table} SELECT FROM generate_series(1, 100)")).unwrap();
    let own = format!("SELECT count(DISTINCT id) FROM {table} WHERE \"My Schema\".id_shard(id) = {LAST}");
    assert_eq!(count(client, &own), 100);
    let error = refused(client, &format!("INSERT INTO {table} VALUES (\"My Schema\".make_id(now(), 18, 1))"));
    assert_eq!(error.code(), &SqlState::CHECK_VIOLATION);
    let error = refused(client, "SELECT insta_ids.drop_shard(19)");
    assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    client.batch_execute(&format!("DELETE FROM {table}; SELECT insta_ids.drop_shard(19)")).unwrap();
    client.batch_execute("SET client_min_messages = warning; SELECT insta_ids.drop_shard(n, true) FROM generate_series(0, 18) n").unwrap();
    assert_eq!(count(client, &schemas), 0);
    assert_eq!(count(client, "SELECT count(*) FROM insta_ids.shards"), 0);
    assert_eq!(count(client, "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'"), 1);
}
