//! Shards are copied and dumped.

use postgres::error::SqlState;
use postgres::{Client, NoTls};
use support::shards::{PHOTOS, add, set_up};
use support::{Cluster, count, refused, texts};

/// A copied table mints ids of the shard that it was copied from. The CHECK of a table that was made here refuses them.
#[test]
fn a_table_refuses_ids_of_the_shard_it_was_copied_from() {
    let (_cluster, mut client) = set_up("copied", 10);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(5, 6)").unwrap();
    client.batch_execute("CREATE TABLE insta6.copy (LIKE insta5.photos INCLUDING ALL)").unwrap();
    client.batch_execute("INSERT INTO insta6.copy DEFAULT VALUES").unwrap();
    assert_eq!(count(&mut client, "SELECT id_shard(id)::bigint FROM insta6.copy"), 5);
    for wrong in [
        "INSERT INTO insta6.copy VALUES (insta6.next_id())",
        "INSERT INTO insta6.photos VALUES (insta5.next_id())",
        "INSERT INTO insta6.photos SELECT * FROM insta6.copy",
        "ALTER TABLE insta6.photos ALTER id SET DEFAULT insta5.next_id(); INSERT INTO insta6.photos DEFAULT VALUES",
    ] {
        assert_eq!(refused(&mut client, wrong).code(), &SqlState::CHECK_VIOLATION, "{wrong}");
    }
    // As a migration, it is the shard's own.
    add(&mut client, "0002", "CREATE TABLE copied (LIKE photos INCLUDING ALL EXCLUDING DEFAULTS)");
    add(&mut client, "0003", "ALTER TABLE copied ALTER id SET DEFAULT next_id()");
    client.batch_execute("CALL insta_ids.migrate(); INSERT INTO insta6.copied DEFAULT VALUES").unwrap_err();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute("INSERT INTO insta6.copied DEFAULT VALUES").unwrap();
    assert_eq!(count(&mut client, "SELECT id_shard(id)::bigint FROM insta6.copied"), 6);
}

/// A dump has shards and migrations, applied or not, and the restored database goes on from there. The owner of the database
/// can make the dump.
#[test]
fn a_dump_restores_shards_and_migrations() {
    let cluster = Cluster::start("dump_shards");
    let mut client = cluster.connect();
    for make in ["CREATE ROLE owner LOGIN", "CREATE DATABASE one OWNER owner"] {
        client.batch_execute(make).unwrap();
    }
    let mut one = cluster.connect_to("one");
    one.batch_execute("CREATE SCHEMA \"Ids\"; CREATE EXTENSION insta_ids SCHEMA \"Ids\"; SELECT insta_ids.grant_provisioning('owner');
         GRANT USAGE ON SCHEMA \"Ids\" TO owner").unwrap();
    let mut one = cluster.config().dbname("one").user("owner").connect(NoTls).unwrap();
    one.batch_execute("SELECT insta_ids.init(200, 'Fotos ', 'twitter')").unwrap();
    add(&mut one, "0001", PHOTOS);
    one.batch_execute("CALL insta_ids.create_shards(0, 19)").unwrap();
    one.batch_execute("ALTER TABLE \"Fotos 7\".photos ADD failing int; INSERT INTO \"Fotos 5\".photos SELECT FROM generate_series(1, 100)").unwrap();
    add(&mut one, "0002", "ALTER TABLE photos ADD failing int");
    refused(&mut one, "CALL insta_ids.migrate(0, 9)");
    one.batch_execute("DROP SCHEMA \"Fotos 9\" CASCADE").unwrap();
    // As its owner, not by what was granted.
    let revoke = "REVOKE ALL ON ALL TABLES IN SCHEMA insta_ids FROM owner";
    cluster.connect_to("one").batch_execute(revoke).unwrap();
    let state = |client: &mut Client| {
        [
            texts(
                client,
                "SELECT concat_ws('|', number, name, shard, schema, state, at, statement, sqlstate, message) FROM insta_ids.migration_status ORDER BY number, shard",
            ),
            texts(
                client,
                "SELECT concat_ws('|', shard, schema, state, applied, pending, failed, tables) FROM insta_ids.shards ORDER BY shard",
            ),
            texts(client, "SELECT m::text FROM insta_ids_internal.migration m ORDER BY number"),
            texts(
                client,
                "SELECT concat(s, c) FROM insta_ids_internal.shard s, insta_ids.config c ORDER BY shard",
            ),
        ]
    };
    let before = state(&mut cluster.connect_to("one"));
    assert!(
        ["applied", "failed", "pending"].iter().all(|state| before[0].iter().any(|row| row.contains(state)))
    );
    for (form, restore) in [("plain", "psql"), ("custom", "pg_restore")] {
        client.batch_execute(&format!("CREATE DATABASE {form}")).unwrap();
        let file = cluster.socket.join(form);
        let dump = cluster
            .program("pg_dump", "owner")
            .arg(format!("--format={form}"))
            .arg("-f")
            .arg(&file)
            .arg("one")
            .status();
        assert!(dump.unwrap().success());
        let mut program = cluster.program(restore, "postgres");
        match restore {
            "psql" => program.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).arg(form),
            _ => program.args(["--exit-on-error", "--jobs=4", "-d", form]).arg(&file),
        };
        let restored = program.output().unwrap();
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        goes_on(&mut cluster.connect_to(form), &before, state);
    }
}

/// A database that was restored is what it was, and goes on.
fn goes_on(
    restored: &mut Client,
    before: &[Vec<String>; 4],
    state: impl Fn(&mut Client) -> [Vec<String>; 4],
) {
    assert_eq!(&state(restored), before);
    let error = refused(restored, "SELECT insta_ids.init(200, 'Fotos ', 'twitter')");
    assert_eq!(error.message(), "shards are already set up");
    for write in [
        "UPDATE insta_ids_internal.config SET shards = 1",
        "UPDATE insta_ids_internal.migration SET ddl = ''",
    ] {
        assert_eq!(refused(restored, write).code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    }
    restored.batch_execute("INSERT INTO \"Fotos 5\".photos SELECT FROM generate_series(1, 100)").unwrap();
    assert_eq!(
        count(
            restored,
            "SELECT count(DISTINCT id) FROM \"Fotos 5\".photos WHERE \"Ids\".id_shard(id, 'twitter') = 5"
        ),
        200
    );
    let wrong = "INSERT INTO \"Fotos 5\".photos VALUES (\"Fotos 6\".next_id())";
    assert_eq!(refused(restored, wrong).code(), &SqlState::CHECK_VIOLATION);
    // What the owner added is still the owner's.
    let create = "SELECT insta_ids.create_shard(100)";
    assert_eq!(refused(restored, create).message(), "migration \"0001\" was added by role \"owner\"");
    let take_over = "SELECT insta_ids.add_migration(name, ddl, transactional, check_ids, ids_since) FROM insta_ids_internal.migration";
    restored.batch_execute(take_over).unwrap();
    restored.batch_execute(create).unwrap();
    restored
        .batch_execute("ALTER TABLE \"Fotos 7\".photos DROP failing; SELECT insta_ids.drop_shard(9)")
        .unwrap();
    restored.batch_execute("CALL insta_ids.create_shards(0, 24)").unwrap();
    restored.batch_execute("CALL insta_ids.migrate()").unwrap();
    let complete =
        "SELECT count(*) FROM insta_ids.shards WHERE state = 'active' AND applied = 2 AND tables = 2";
    assert_eq!(count(restored, complete), 26);
}

/// A dump of a shard's schema alone has its tables, which need the extension. It does not say that the schema is a shard.
#[test]
fn a_dump_of_one_schema_has_its_tables() {
    let (cluster, mut client) = set_up("dump_schema", 100);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(5, 6)").unwrap();
    client.batch_execute("INSERT INTO insta5.photos SELECT FROM generate_series(1, 100)").unwrap();
    client.batch_execute("CREATE DATABASE other").unwrap();
    let file = cluster.socket.join("insta5.sql");
    let dump = cluster
        .program("pg_dump", "postgres")
        .args(["-n", "insta5", "-f"])
        .arg(&file)
        .arg("postgres")
        .status();
    assert!(dump.unwrap().success());
    let restore = || {
        let mut psql = cluster.program("psql", "postgres");
        psql.args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).arg("other").output().unwrap()
    };
    let failed = restore();
    assert!(!failed.status.success());
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(error.contains("function public.next_id(integer, regclass) does not exist"), "{error}");
    let mut other = cluster.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(100)").unwrap();
    let restored = restore();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    other.batch_execute("INSERT INTO insta5.photos DEFAULT VALUES").unwrap();
    assert_eq!(count(&mut other, "SELECT count(DISTINCT id) FROM insta5.photos"), 101);
    assert_eq!(count(&mut other, "SELECT count(*) FROM insta_ids.shards"), 0);
    assert_eq!(refused(&mut other, "SELECT insta_ids.create_shard(5)").code(), &SqlState::DUPLICATE_SCHEMA);
}
