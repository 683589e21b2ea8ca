//! Promise: each variant of functions, names and tables can be adopted and unadopted.

use std::sync::{Arc, Mutex};

use postgres::error::SqlState;
use postgres::{Client, NoTls};

use super::{
    ADOPT, ARTICLE, CANNOT, CHECKS, FINDINGS, INSTAGRAM, KEPT, STATE, UNADOPT, Variant, anew, confirming,
    database, goes_on, run, said, unchanged,
};
use support::shards::{PHOTOS, add};
use support::{Cluster, count, disorders, ids, refused, texts};

#[test]
fn every_variant_there_and_back() {
    let cluster = Cluster::start("variants");
    cluster.connect().batch_execute("CREATE ROLE app LOGIN").unwrap();
    for variant in Variant::all() {
        println!("{}", variant.name);
        let mut client = database(&cluster, variant.name, variant.layout);
        run(&mut client, &variant.sql());
        run(
            &mut client,
            "GRANT USAGE ON SCHEMA insta5 TO app; GRANT INSERT, SELECT ON insta5.photos TO app; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA insta5 TO app",
        );
        there_and_back(&cluster, &mut client, &variant);
    }
}

fn there_and_back(cluster: &Cluster, client: &mut Client, variant: &Variant) {
    let definitions = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'insta5'::regnamespace AND prosrc ~ '1314220021721' ORDER BY oid";
    let kept = texts(client, KEPT);
    let published = texts(client, definitions);
    let privileges = privileges_of_app(cluster, variant);
    add(client, "0000", "SELECT 'is there already'");
    let adopt = confirming(client);
    let has_known_text =
        !matches!(variant.name, "text_by_path" | "slow" | "sql" | "sql_body") && !adopt.contains("'{}'");
    assert!(!has_known_text, "{}: {adopt}", variant.name);
    run(client, &adopt);
    assert_eq!(texts(client, KEPT), kept, "{}", variant.name);
    assert_eq!(texts(client, "SELECT shard || state || applied FROM insta_ids.shards"), ["5active1"]);
    let wrappers =
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'insta5'::regnamespace AND prosqlbody IS NULL";
    assert_eq!(count(client, wrappers), 0);
    goes_on(client, variant);
    assert_eq!(privileges_of_app(cluster, variant), privileges);

    // After the operator validates the CHECKs, insta_ids.check() finds nothing.
    assert_eq!(texts(client, CHECKS), ["insta5.likes false", "insta5.photos false"]);
    let wrong = "INSERT INTO insta5.photos VALUES (1)";
    assert_eq!(refused(client, wrong).code(), &SqlState::CHECK_VIOLATION);
    let findings = texts(client, "SELECT code FROM insta_ids.check()");
    assert_eq!(findings, ["unvalidated_constraint"; 2], "{}: {:?}", variant.name, texts(client, FINDINGS));
    for hint in texts(client, "SELECT hint FROM insta_ids.check()") {
        run(client, &hint);
    }
    assert_eq!(texts(client, FINDINGS), [""; 0], "{}", variant.name);
    assert_eq!(texts(client, CHECKS), ["insta5.likes true", "insta5.photos true"]);
    run(client, "CALL insta_ids.check_rows()");

    // Migrations create more tables in the schema.
    add(client, "0001", "CREATE TABLE albums (id bigint PRIMARY KEY DEFAULT next_id())");
    run(client, "CALL insta_ids.migrate()");
    run(
        client,
        "SELECT insta_ids.create_shard(6); INSERT INTO insta5.albums DEFAULT VALUES; INSERT INTO insta6.albums DEFAULT VALUES",
    );
    assert_eq!(
        texts(client, "SELECT shard || state || applied FROM insta_ids.shards ORDER BY 1"),
        ["5active2", "6active2"]
    );
    goes_on(client, variant);

    run(client, UNADOPT);
    assert_eq!(texts(client, KEPT), kept, "{}", variant.name);
    let own =
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'insta5'::regnamespace AND prosqlbody IS NOT NULL";
    assert_eq!(count(client, own), 0);
    if matches!(variant.name, "article" | "definer" | "own_path") {
        let now = texts(client, definitions)[..1].to_vec();
        match variant.name {
            "article" => assert_eq!(now, published),
            "definer" => assert!(
                now[0].contains(" SECURITY DEFINER\n SET search_path TO 'pg_catalog', 'pg_temp'\n"),
                "{now:?}"
            ),
            _ => {}
        }
    }
    assert_eq!(texts(client, CHECKS), [""; 0]);
    assert_eq!(texts(client, "SELECT shard::text FROM insta_ids_internal.shard"), ["6"]);
    goes_on(client, variant);
    assert_eq!(privileges_of_app(cluster, variant), privileges);

    // Adopt knows the text that unadopt wrote.
    run(client, ADOPT);
    goes_on(client, variant);
    assert_eq!(texts(client, KEPT), kept, "{}", variant.name);
    run(client, UNADOPT);
    run(
        client,
        "SET client_min_messages = warning; SELECT insta_ids.drop_shard(6, force => true); DROP EXTENSION insta_ids",
    );
    goes_on(client, variant);
    assert_eq!(privileges_of_app(cluster, variant), privileges);
}

/// Returns whether a role without privileges on sequences can insert. It can if the functions are SECURITY DEFINER, and adopt
/// must not change that.
fn privileges_of_app(cluster: &Cluster, variant: &Variant) -> bool {
    let mut app = cluster.config().user("app").dbname(variant.name).connect(NoTls).unwrap();
    let inserted = app.batch_execute("INSERT INTO insta5.photos DEFAULT VALUES");
    match inserted {
        Ok(()) => assert_eq!(variant.name, "definer"),
        Err(ref error) => assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{error}"),
    }
    inserted.is_ok()
}

#[test]
fn names_that_need_quotes() {
    let cluster = Cluster::start("quoted_adopt");
    for (encoding, prefix) in
        [("UTF8", "In\"s'ta %s "), ("UTF8", "größe/尺寸 $$"), ("LATIN1", "größe%L"), ("SQL_ASCII", "é")]
    {
        println!("{encoding} {prefix}");
        let mut client = cluster.connect();
        run(&mut client, "DROP DATABASE IF EXISTS quoted WITH (FORCE)");
        run(
            &mut client,
            &format!("CREATE DATABASE quoted ENCODING {encoding} LOCALE 'C' TEMPLATE template0"),
        );
        let mut client = cluster.connect_to("quoted");
        run(&mut client, "CREATE EXTENSION insta_ids");
        client.execute("SELECT insta_ids.init(2000, $1::text::name)", &[&prefix]).unwrap();
        let name = format!("{prefix}5");
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        let literal = format!("'{}'", quoted.replace('\'', "''"));
        let sequence = format!("'{0}.{0}'", quoted.replace('\'', "''"));
        let function = ARTICLE
            .replace("$$", "$body$")
            .replace("insta5.next_id", &format!("{quoted}.{quoted}"))
            .replace("'insta5.table_id_seq'", &sequence);
        let column = format!("\"{}id\"", prefix.replace('"', "\"\""));
        run(
            &mut client,
            &format!(
                "CREATE SCHEMA {quoted}; CREATE SEQUENCE {quoted}.{quoted}; {function}
                 CREATE TABLE {quoted}.{column} ({column} bigint PRIMARY KEY DEFAULT {quoted}.{quoted}());
                 INSERT INTO {quoted}.{column} SELECT FROM generate_series(1, 10)"
            ),
        );
        for call in ["adopt({}, 5)", "unadopt({})", "adopt({}, 5)"] {
            run(&mut client, &format!("SELECT insta_ids.{}", call.replace("{}", &literal)));
            run(&mut client, &format!("INSERT INTO {quoted}.{column} SELECT FROM generate_series(1, 10)"));
        }
        let all = ids(&mut client, &format!("SELECT {column} FROM {quoted}.{column} ORDER BY ctid"));
        assert_eq!((all.len(), disorders(&all)), (40, 0));
        assert!(count(&mut client, &format!("SELECT last_value FROM {quoted}.{quoted}")) >= 40);
        run(&mut client, "SELECT insta_ids.create_shard(6)");
    }
}

#[test]
fn partitions_and_children() {
    let cluster = Cluster::start("tree_adopt");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(
        &mut client,
        "CREATE TABLE insta5.events (id bigint PRIMARY KEY DEFAULT insta5.next_id(), a text) PARTITION BY RANGE (id);
         CREATE TABLE insta5.old PARTITION OF insta5.events FOR VALUES FROM (MINVALUE) TO (1000);
         CREATE TABLE insta5.new PARTITION OF insta5.events FOR VALUES FROM (1000) TO (MAXVALUE);
         CREATE TABLE insta5.child (b text) INHERITS (insta5.photos)",
    );
    let insert = "INSERT INTO insta5.events SELECT FROM generate_series(1, 10); INSERT INTO insta5.child SELECT FROM generate_series(1, 10)";
    run(&mut client, insert);
    // Adopt reads the rows of child tables, and waits for partitions that are in use.
    run(&mut client, "INSERT INTO insta5.child VALUES (make_id(now(), 6, 1))");
    let error = unchanged(&mut client, ADOPT);
    assert!(
        error.detail().unwrap().starts_with("Column insta5.photos.id: Of 61 ids, 1 are of other shards"),
        "{error:?}"
    );
    assert_eq!(error.detail().unwrap().lines().count(), 1);
    run(&mut client, "DELETE FROM insta5.child WHERE id_shard(id) = 6");
    // It reads the defaults of child tables, too.
    for table in ["new", "child"] {
        let of_shard = |shard| {
            format!(
                "ALTER TABLE insta5.{table} ALTER id SET DEFAULT next_id({shard}, 'insta5.photos_id_seq')"
            )
        };
        run(&mut client, &of_shard(6));
        let error = unchanged(&mut client, ADOPT);
        let detail = format!("Default of insta5.{table}.id: It mints for shard 6.");
        assert_eq!(said(&error), ["55000", CANNOT, &detail, ""]);
        run(&mut client, &of_shard(5));
    }
    let mut holder = cluster.connect();
    for table in ["old", "child"] {
        run(&mut holder, &format!("BEGIN; LOCK TABLE ONLY insta5.{table} IN ROW EXCLUSIVE MODE"));
        let error = unchanged(&mut client, "SELECT insta_ids.adopt('insta5', 5, '200ms')");
        assert!(
            error.detail().unwrap().starts_with(&format!("insta5.{table} is in use by process ")),
            "{error:?}"
        );
        run(&mut holder, "COMMIT");
    }
    let kept = texts(&mut client, STATE);
    for _ in 0..2 {
        run(&mut client, ADOPT);
        run(&mut client, insert);
        let checks = "SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'c' AND connamespace = 'insta5'::regnamespace ORDER BY 1";
        let tables =
            ["insta5.child", "insta5.events", "insta5.likes", "insta5.new", "insta5.old", "insta5.photos"];
        assert_eq!(texts(&mut client, checks), tables);
        let findings = texts(
            &mut client,
            "SELECT DISTINCT code FROM insta_ids.check() WHERE object NOT LIKE 'insta5.child%'",
        );
        assert_eq!(findings, ["unvalidated_constraint"]);
        run(&mut client, UNADOPT);
        run(&mut client, insert);
        assert_eq!(texts(&mut client, checks), [""; 0]);
    }
    let added = texts(&mut client, STATE).into_iter().filter(|line| !kept.contains(line));
    // Unadopt also replaces next_id(regclass) and the defaults that call it.
    assert_eq!(added.count(), 3);
    run(&mut client, "DROP EXTENSION insta_ids");
    run(&mut client, insert);
}

/// A shard's schema was dumped alone, and restored in another database.
#[test]
fn a_shard_that_was_restored() {
    let cluster = Cluster::start("adopt_restored");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    add(&mut client, "0001", PHOTOS);
    run(
        &mut client,
        "SELECT insta_ids.create_shard(5); INSERT INTO insta5.photos SELECT FROM generate_series(1, 100)",
    );
    run(
        &mut client,
        "ALTER TABLE insta5.likes ALTER id SET DEFAULT next_id(5, 'insta5.likes_id_seq'); INSERT INTO insta5.likes SELECT FROM generate_series(1, 100)",
    );
    let mut other = database(&cluster, "other", INSTAGRAM);
    let file = cluster.socket.join("insta5.sql");
    let dump = cluster
        .program("pg_dump", "postgres")
        .args(["-n", "insta5", "-f"])
        .arg(&file)
        .arg("postgres")
        .status();
    assert!(dump.unwrap().success());
    let restored = cluster
        .program("psql", "postgres")
        .args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(&file)
        .arg("other")
        .output()
        .unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    add(&mut other, "0001", PHOTOS);
    run(&mut other, ADOPT);
    assert_eq!(texts(&mut other, FINDINGS), [""; 0]);
    run(&mut other, "CALL insta_ids.migrate()");
    run(
        &mut other,
        "INSERT INTO insta5.photos SELECT FROM generate_series(1, 100); INSERT INTO insta5.likes SELECT FROM generate_series(1, 100)",
    );
    run(&mut other, UNADOPT);
    let default =
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'insta5.likes'::regclass";
    assert_eq!(texts(&mut other, default), ["insta5.next_id('insta5.likes_id_seq'::regclass)"]);
    run(
        &mut other,
        "DROP EXTENSION insta_ids; INSERT INTO insta5.photos SELECT FROM generate_series(1, 100); INSERT INTO insta5.likes SELECT FROM generate_series(1, 100)",
    );
    for table in ["photos", "likes"] {
        let all = ids(&mut other, &format!("SELECT id FROM insta5.{table} ORDER BY ctid"));
        assert_eq!((all.len(), disorders(&all)), (300, 0));
    }
}

/// After unadopt, a NOTICE names objects that still mint for the shard, because they could repeat its ids.
#[test]
fn who_still_depends_on_it_is_told() {
    let cluster = Cluster::start("dependents");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE SCHEMA other; CREATE SEQUENCE other.seq; CREATE TABLE other.t (a bigint, b bigint, c bigint)",
    );
    let inside = "schema insta5 still depends on the extension";
    let outside = "ids of shard 5 are still minted outside of schema insta5";
    for (change, told) in [
        ("", None),
        (
            "ALTER TABLE other.t ALTER a SET DEFAULT next_id(6, 'other.seq'), ALTER b SET DEFAULT insta5.next_id()",
            None,
        ),
        (
            "ALTER TABLE insta5.photos ADD b bigint DEFAULT id_shard(5)",
            Some((inside, "default value for column b of table insta5.photos")),
        ),
        (
            "ALTER TABLE other.t ALTER a SET DEFAULT next_id(5, 'other.seq')",
            Some((outside, "default value for column a of table other.t")),
        ),
        (
            "ALTER TABLE other.t ALTER b SET DEFAULT 1 + next_id(6, 'insta5.likes_id_seq')",
            Some((outside, "default value for column b of table other.t")),
        ),
        (
            "CREATE FUNCTION other.f() RETURNS bigint LANGUAGE sql RETURN next_id(5, 'other.seq')",
            Some((outside, "function other.f()")),
        ),
        (
            "CREATE VIEW other.v AS SELECT next_id(6, 'insta5.likes_id_seq')",
            Some((outside, "rule _RETURN on view other.v")),
        ),
    ] {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let mut client = cluster
            .config()
            .notice_callback({
                let notices = Arc::clone(&notices);
                move |notice| notices.lock().unwrap().push(notice)
            })
            .connect(NoTls)
            .unwrap();
        anew(&mut client, "");
        run(&mut client, ADOPT);
        run(&mut client, change);
        run(&mut client, "SET client_min_messages = notice");
        notices.lock().unwrap().clear();
        run(&mut client, UNADOPT);
        let notices = std::mem::take(&mut *notices.lock().unwrap());
        let notices: Vec<_> = notices.iter().map(said).collect();
        let expected = told.map(|(message, one)| {
            let hint = if message == outside {
                "They can repeat ids of the schema. Let them call its next_id()."
            } else {
                "Change or drop them before the extension is dropped."
            };
            (message, format!("Objects that do: 1. One is {one}."), hint)
        });
        let expected: Vec<_> =
            expected.iter().map(|(message, detail, hint)| ["00000", message, &detail[..], hint]).collect();
        assert_eq!(notices, expected, "{change}");
        run(
            &mut client,
            "ALTER TABLE other.t ALTER a DROP DEFAULT, ALTER b DROP DEFAULT; DROP FUNCTION IF EXISTS other.f; DROP VIEW IF EXISTS other.v",
        );
    }
}
