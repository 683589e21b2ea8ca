//! Databases are renamed, copied, dumped and dropped.

use super::statements::returned;
use super::{FINDINGS, MORE, PHOTOS, make_shards, sound};
use postgres::Client;
use postgres::error::SqlState;

use std::time::Duration;
use support::{Cluster, clock_ahead, count, duplicates, major, refused, texts, within};

/// A database keeps its ids whatever name it has, what it was copied from, and what disk it is on.
#[test]
fn databases_are_renamed_copied_moved_and_dropped() {
    let mut cluster = Cluster::with("databases", &["allow_in_place_tablespaces = on"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE one").unwrap();
    let mut one = cluster.connect_to("one");
    one.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    one.batch_execute(PHOTOS).unwrap();
    make_shards(&mut one);
    let insert = format!("{MORE} RETURNING id");
    let mut minted = vec![returned(&mut one, &insert)];
    let findings = texts(&mut one, FINDINGS);
    drop(one);
    client.batch_execute("CREATE TABLESPACE disk LOCATION ''").unwrap();
    for (change, database) in [
        ("ALTER DATABASE one RENAME TO two", "two"),
        ("ALTER DATABASE two SET TABLESPACE disk", "two"),
        ("ALTER DATABASE two SET TABLESPACE pg_default", "two"),
    ] {
        // The sessions that were there may be going still.
        within(Duration::from_secs(10), || client.batch_execute(change).is_ok());
        let mut client = cluster.connect_to(database);
        minted.push(returned(&mut client, &insert));
        assert_eq!(texts(&mut client, FINDINGS), findings, "{change}");
    }
    // A copy goes on from where the template was, and so does the template: each by itself never repeats.
    for copy in [
        "CREATE DATABASE wal TEMPLATE two STRATEGY wal_log",
        "CREATE DATABASE file TEMPLATE two STRATEGY file_copy",
    ] {
        within(Duration::from_secs(10), || client.batch_execute(copy).is_ok());
    }
    drop(client);
    cluster.stop_immediately();
    cluster.environment = clock_ahead(-300);
    cluster.up();
    for database in ["two", "wal", "file"] {
        let mut client = cluster.connect_to(database);
        let more = returned(&mut client, &insert);
        assert_eq!(duplicates(minted.iter().chain([&more])), 0, "{database}");
        assert!(minted.iter().flatten().max() < more.first(), "time went back in {database}");
        assert_eq!(sound(&mut client).len(), 5000);
        assert_eq!(texts(&mut client, FINDINGS), findings, "{database}");
        client.batch_execute("INSERT INTO insta1.photos (n) SELECT generate_series(1, 100)").unwrap();
        assert_eq!(count(&mut client, "SELECT count(DISTINCT id) FROM insta1.photos"), 200);
    }
    let mut client = cluster.connect();
    for database in ["two", "file"] {
        within(Duration::from_secs(10), || {
            client.batch_execute(&format!("DROP DATABASE {database}")).is_ok()
        });
    }
    assert_eq!(returned(&mut cluster.connect_to("wal"), &insert).len(), 1000);
}

/// All that a dump of [`kinds_of_dumps`] has.
pub(crate) fn state(client: &mut Client) -> Vec<String> {
    client.batch_execute("SET search_path = public, ids").unwrap();
    let mut state = texts(client, FINDINGS);
    for query in [
        "SELECT insta_ids.shard_map()::text",
        "SELECT concat_ws(' ', schema, node, state, applied, pending, failed, tables) FROM insta_ids.shards
         ORDER BY shard",
        "SELECT m::text FROM insta_ids_internal.migration m",
        "SELECT p::text FROM insta_ids_internal.partitioned_table p",
        "SELECT concat_ws(' ', id, n, shard) FROM photos ORDER BY id",
        "SELECT concat_ws(' ', id, n) FROM insta1.photos ORDER BY id",
        "SELECT concat_ws(' ', id, at) FROM times ORDER BY id",
        "SELECT layout::text FROM layouts",
        "SELECT last_value::text FROM insta_ids.ticket_t",
        "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
         WHERE connamespace <> 'insta_ids_internal'::regnamespace ORDER BY 1",
        "SELECT concat_ws(' ', adrelid::regclass, pg_get_expr(adbin, adrelid)) FROM pg_attrdef ORDER BY 1",
        "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('public', 'insta1') ORDER BY 1",
        "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext",
        "SELECT concat_ws(' ', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
         WHERE NOT tgisinternal ORDER BY 1",
    ] {
        state.extend(texts(client, query));
    }
    state
}

/// In each of its forms a dump restores the database, and ids go on.
#[test]
fn every_form_of_dump_restores_the_database() {
    let cluster = Cluster::start("dumps");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE source").unwrap();
    let mut source = cluster.connect_to("source");
    source
        .batch_execute(
            "CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids; SET search_path = public, ids",
        )
        .unwrap();
    source.batch_execute(PHOTOS).unwrap();
    source.batch_execute(MORE).unwrap();
    make_shards(&mut source);
    source
        .batch_execute(
            "SELECT insta_ids.create_ticket_server('t', 1, 1), insta_ids.next_ticket('t');
             CREATE TABLE likes (id bigint NOT NULL) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('likes', '1 month', now(), now());
             CREATE TABLE layouts (layout ids.id_layout DEFAULT 'twitter'); INSERT INTO layouts DEFAULT VALUES;
             CREATE MATERIALIZED VIEW times AS SELECT id, id_time(id) AS at FROM photos",
        )
        .unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = cluster.program(program, "postgres").args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let file = |name: &str| cluster.socket.join(name).to_str().unwrap().to_owned();
    let psql = |database: &str, name: &str| {
        run("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-d", database, "-f", &file(name)]);
    };
    let dump =
        |name: &str, options: &[&str]| run("pg_dump", &[options, &["-f", &file(name), "source"]].concat());
    // The two halves, before a shard is fenced: no rows come into a table that is. A whole dump has them before that.
    let unfenced = state(&mut source);
    dump("schema", &["--schema-only"]);
    dump("rows", &["--data-only"]);
    source.batch_execute("SELECT insta_ids.fence(1)").unwrap();
    let fenced = state(&mut source);
    source.batch_execute("ANALYZE").unwrap();
    dump("inserts", &["--inserts"]);
    dump("columns", &["--column-inserts", "--quote-all-identifiers", "--no-owner"]);
    dump("clean", &["--clean", "--if-exists"]);
    let statistics: &[&str] = if major() >= 18 { &["--statistics"] } else { &[] };
    dump("directory", &[&["-Fd", "-j", "2"], statistics].concat());
    dump("photos", &["-t", "photos", "-t", "s"]);
    for database in ["parts", "inserts", "columns", "directory", "photos"] {
        client.batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
    }
    psql("parts", "schema");
    let mut parts = cluster.connect_to("parts");
    // No shards, and no lease: it is one of its own.
    assert_eq!(
        refused(&mut parts, "SELECT insta_ids.create_shard(5)").code(),
        &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
    );
    // With the data of the whole database, the lease comes, and all that is recorded.
    let lease = count(&mut source, "SELECT max(ms) FROM insta_ids_internal.lease");
    psql("parts", "rows");
    parts.batch_execute("SET search_path = public, ids; REFRESH MATERIALIZED VIEW times").unwrap();
    let restored = format!("SELECT count(*) FROM insta_ids_internal.lease WHERE ms = {lease}");
    assert_eq!(count(&mut parts, &restored), 1);
    assert_eq!(state(&mut parts), unfenced);
    psql("inserts", "inserts");
    psql("columns", "columns");
    run("pg_restore", &["--exit-on-error", "-j", "2", "-d", "directory", &file("directory")]);
    for database in ["inserts", "columns", "directory"] {
        assert_eq!(state(&mut cluster.connect_to(database)), fenced, "{database}");
    }
    // Over what is there.
    run("pg_restore", &["--exit-on-error", "--clean", "--if-exists", "-d", "directory", &file("directory")]);
    psql("inserts", "clean");
    for database in ["inserts", "directory"] {
        assert_eq!(state(&mut cluster.connect_to(database)), fenced, "{database}, over what is there");
    }
    // One table, where the extension is.
    let mut photos = cluster.connect_to("photos");
    photos.batch_execute("CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids").unwrap();
    psql("photos", "photos");
    let rows = sound(&mut source);
    for database in ["parts", "inserts", "columns", "directory", "photos"] {
        let mut client = cluster.connect_to(database);
        client.batch_execute("SET search_path = public, ids").unwrap();
        client.batch_execute(MORE).unwrap();
        let more = sound(&mut client);
        assert_eq!((more.len(), more.starts_with(&rows)), (2000, true), "{database}");
        if database != "photos" {
            assert_eq!(count(&mut client, "SELECT insta_ids.next_ticket('t')"), 2);
            client
                .batch_execute("INSERT INTO insta2.photos DEFAULT VALUES; SELECT insta_ids.create_shard(5)")
                .unwrap();
            let write = client.batch_execute("INSERT INTO insta1.photos DEFAULT VALUES");
            assert_eq!(write.is_ok(), database == "parts", "{database}");
        }
    }
    // The schema that the extension is in takes it along.
    assert_eq!(refused(&mut photos, "DROP SCHEMA ids").code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    photos.batch_execute("DROP SCHEMA ids CASCADE").unwrap();
    assert_eq!(texts(&mut photos, "SELECT extname::text FROM pg_extension"), ["plpgsql"]);
    assert_eq!(count(&mut photos, "SELECT count(*) FROM photos"), 2000);
}
