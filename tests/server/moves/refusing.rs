//! What a move refuses, and what others do meanwhile.

use super::FENCED;
use postgres::error::SqlState;
use std::time::Duration;
use support::fault::SmallDisk;
use support::pair::{Move, Pair, STEPS, before};
use support::shards::Running;
use support::{count, refused, texts, within};

/// Statements that alter shard 2.
const ALTERING: [&str; 8] = [
    "ALTER TABLE insta2.photos ADD COLUMN x integer",
    "CREATE TABLE insta2.later (id bigint PRIMARY KEY)",
    "CREATE INDEX ON insta2.photos (caption)",
    "DROP TABLE insta2.likes",
    "ALTER SCHEMA insta2 RENAME TO other",
    "DROP SCHEMA insta2 CASCADE",
    "ALTER TABLE insta2.likes SET SCHEMA insta2; CREATE VIEW insta2.v AS SELECT 1",
    "CREATE RULE nothing AS ON DELETE TO insta2.photos DO INSTEAD NOTHING",
];

/// What keeps shard 2 from moving, what removes that, and what the error says.
const UNMOVABLE: &[(&str, &str, &str)] = &[
    ("CREATE TABLE insta2.keyless (x integer)", "DROP TABLE insta2.keyless", "has no primary key"),
    (
        "CREATE UNLOGGED TABLE insta2.fast (x integer PRIMARY KEY)",
        "DROP TABLE insta2.fast",
        "is unlogged",
    ),
    (
        "CREATE TABLE public.child () INHERITS (insta2.photos)",
        "DROP TABLE public.child",
        "child of insta2.photos",
    ),
    (
        "SELECT insta_ids.add_migration('0002', 'CREATE TABLE more (id bigint PRIMARY KEY)')",
        "DELETE FROM insta_ids_internal.migration WHERE number = 2",
        "Migration \"0002\" is pending there.",
    ),
    // The target would run it as who calls move_shards.
    (
        "SET ROLE guest; SELECT insta_ids.add_migration('0002', 'SELECT 1'); RESET ROLE;
         INSERT INTO insta_ids_internal.shard_migration SELECT s.shard, 2 FROM insta_ids_internal.shard s",
        "DELETE FROM insta_ids_internal.shard_migration WHERE migration = 2;
         DELETE FROM insta_ids_internal.migration WHERE number = 2",
        "Its statements would run with your rights.",
    ),
    ("SELECT insta_ids.fence(2)", "SELECT insta_ids.unfence(2)", "It is fenced."),
    (
        "CREATE TABLE insta2.deferred (x integer PRIMARY KEY DEFERRABLE)",
        "DROP TABLE insta2.deferred",
        "Its primary key is deferrable.",
    ),
    (
        "CREATE TABLE insta2.made (x integer, y integer GENERATED ALWAYS AS (x + 1) STORED PRIMARY KEY)",
        "DROP TABLE insta2.made",
        "Column y of its key is generated",
    ),
    (
        "CREATE TABLE insta2.noted (id integer, note varchar(9)[], \"some Json\" json); ALTER TABLE insta2.noted REPLICA IDENTITY FULL",
        "DROP TABLE insta2.noted",
        "the type of column \"some Json\" has no equality operator",
    ),
    (
        "CREATE DOMAIN insta2.places AS point[]; CREATE TABLE insta2.noted (x insta2.places);
         ALTER TABLE insta2.noted REPLICA IDENTITY FULL",
        "DROP TABLE insta2.noted; DROP DOMAIN insta2.places",
        "the type of column x has no equality operator",
    ),
    (
        "CREATE TRIGGER twice AFTER INSERT ON insta2.photos EXECUTE FUNCTION tsvector_update_trigger();
         ALTER TABLE insta2.photos ENABLE ALWAYS TRIGGER twice",
        "DROP TRIGGER twice ON insta2.photos",
        "Trigger \"twice\" of table insta2.photos also fires for rows that are copied.",
    ),
    (
        "CREATE SEQUENCE public.s; ALTER TABLE insta2.likes ALTER COLUMN id SET DEFAULT next_id(2, 'public.s')",
        "ALTER TABLE insta2.likes ALTER COLUMN id SET DEFAULT insta2.next_id(); DROP SEQUENCE public.s",
        "which is not of this shard",
    ),
    // It would be made on the target, and PostgreSQL would run what it calls.
    (
        "CREATE TABLE insta2.parts (id bigint, x integer) PARTITION BY RANGE (id);
         CREATE TABLE insta2.half PARTITION OF insta2.parts DEFAULT PARTITION BY RANGE (id, abs(x));
         ALTER TABLE insta2.parts REPLICA IDENTITY FULL; ALTER TABLE insta2.half REPLICA IDENTITY FULL",
        "DROP TABLE insta2.parts",
        "Partition insta2.half has the partition key RANGE (id, abs(x)).",
    ),
    (
        "CREATE TYPE insta2.mood AS ENUM ('fair'); CREATE TABLE insta2.parts (x insta2.mood PRIMARY KEY) PARTITION BY LIST (x);
         CREATE TABLE insta2.half PARTITION OF insta2.parts DEFAULT PARTITION BY LIST (x)",
        "DROP TABLE insta2.parts; DROP TYPE insta2.mood",
        "has the partition key LIST (x).",
    ),
];

/// Each cause has its error, and `check` shows it.
#[test]
fn shards_that_cannot_move_are_refused_before_anything_is_made() {
    let pair = Pair::start("unmovable");
    let mut a = pair.a.connect();
    a.batch_execute("CREATE ROLE guest; SELECT insta_ids.grant_provisioning('guest')").unwrap();
    let offer = "SELECT insta_ids_internal.move_offer(2, 2, 'b')";
    for &(cause, removal, said) in UNMOVABLE {
        a.batch_execute(cause).unwrap();
        let error = refused(&mut a, offer);
        assert!(error.detail().unwrap().contains(said), "{cause}: {error:?}");
        assert_eq!(count(&mut a, "SELECT count(*) FROM insta_ids_internal.move"), 0);
        assert_eq!(count(&mut a, "SELECT count(*) FROM pg_publication"), 0);
        a.batch_execute(removal).unwrap();
    }

    let mut moving = Move::of(&pair, 2, 2);
    moving.step("offer").unwrap();
    // From here on nobody alters it.
    for ddl in ALTERING {
        let error = refused(&mut a, ddl);
        assert_eq!(error.code(), &SqlState::OBJECT_IN_USE, "{ddl}: {error:?}");
        assert_eq!(error.message(), "shard 2 moves or is fenced, and cannot be altered");
    }
    a.batch_execute("ALTER TABLE insta3.photos ADD COLUMN x integer; REINDEX TABLE insta2.photos").unwrap();
    a.batch_execute("ALTER TABLE insta3.photos DROP COLUMN x").unwrap();
    for command in
        ["SELECT insta_ids.drop_shard(2)", "SELECT insta_ids.fence(2)", "SELECT insta_ids.unfence(2)"]
    {
        assert_eq!(refused(&mut a, command).message(), "shards from 2 to 2 are moving");
    }

    // And the target refuses what is not the same there.
    let mut b = pair.b.connect();
    b.batch_execute("SELECT insta_ids.add_migration('other', 'CREATE TABLE t ()')").unwrap();
    let error = moving.step("prepare").unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "migration \"other\" is not the same on node \"a\"");
    b.batch_execute("DELETE FROM insta_ids_internal.migration").unwrap();
    moving.step("prepare").unwrap();
    assert_eq!(refused(&mut b, "INSERT INTO insta2.photos DEFAULT VALUES").code(), FENCED);
    moving.abort().unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    assert_eq!(texts(&mut b, "SELECT schema::text FROM insta_ids.shards"), [""; 0]);

    // What was made by hand is not made by migrations.
    a.batch_execute("ALTER TABLE insta2.photos ADD COLUMN by_hand integer").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.step("offer").unwrap();
    let error = moving.step("prepare").unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "shard 2 is not what its migrations make");
    assert_eq!(error.detail().unwrap(), "Column photos.by_hand: here nothing, on node \"a\" integer.");
    moving.abort().unwrap();
}

/// Others alter shards, drop slots and change maps during a move.
#[test]
fn a_move_survives_what_others_do_to_shards_slots_and_maps() {
    let pair = Pair::start("meanwhile");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.drop_shard(1)").unwrap();
    let mut old = pair.a.connect();
    old.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1").unwrap();
    let mut moving = Move::of(&pair, 0, 3);
    moving.steps(before("fence"));

    // A shard in a gap of the range is not made.
    for create in ["SELECT insta_ids.create_shard(1)", "CALL insta_ids.create_shards(0, 3)"] {
        assert_eq!(refused(&mut a, create).message(), "shards from 0 to 3 are moving", "{create}");
    }
    // Nor is DDL let through by an old snapshot.
    assert_eq!(
        refused(&mut old, "ALTER TABLE insta2.photos ADD COLUMN x integer").code(),
        &SqlState::OBJECT_IN_USE
    );
    // A slot that is lost is not made anew, as what was written meanwhile would not come.
    b.batch_execute("ALTER SUBSCRIPTION insta_ids_0_3 DISABLE").unwrap();
    within(Duration::from_secs(10), || {
        a.batch_execute(
            "SELECT pg_drop_replication_slot(insta_ids_internal.slot_of(m)) FROM insta_ids_internal.move m",
        )
        .is_ok()
    });
    assert!(moving.step("slot").unwrap_err().as_db_error().unwrap().message().ends_with("is lost"));
    moving.abort().unwrap();

    // A fence is not gone around.
    a.batch_execute(
        "SELECT insta_ids.fence(2); CREATE TABLE parent (LIKE insta3.photos) PARTITION BY RANGE (id)",
    )
    .unwrap();
    for (ddl, code) in [
        ("ALTER TABLE insta2.likes SET SCHEMA public", "55006"),
        ("ALTER TABLE parent ATTACH PARTITION insta2.photos DEFAULT", "55000"),
        ("ALTER TABLE insta2.photos DISABLE TRIGGER ALL", "55006"),
        ("DROP TRIGGER insta_ids_fence ON insta2.photos", "55006"),
    ] {
        assert_eq!(refused(&mut a, ddl).code().code(), code, "{ddl}");
    }
    // A reader keeps nobody from opening it.
    let mut reader = pair.a.connect();
    reader.batch_execute("BEGIN; SELECT count(*) FROM insta2.photos").unwrap();
    a.batch_execute("SET statement_timeout = '5s'; SELECT insta_ids.unfence(2); RESET statement_timeout")
        .unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    reader.batch_execute("COMMIT").unwrap();

    // Without a map, or with another one there, nothing moves.
    a.batch_execute("DELETE FROM insta_ids_internal.assignment").unwrap();
    let error = Move::of(&pair, 2, 2).step("offer").unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "the map does not have shard 2 on this node");
    a.batch_execute("SELECT insta_ids.assign(0, 63, 'a')").unwrap();
    b.batch_execute("UPDATE insta_ids_internal.map SET version = 1000; SELECT insta_ids.add_node('c', ''), insta_ids.assign(2, 2, 'c')").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.step("offer").unwrap();
    let error = moving.step("prepare").unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "the map here does not have shard 2 on node \"a\"");
    moving.abort().unwrap();
    b.batch_execute("SELECT insta_ids.assign(2, 2, 'a')").unwrap();

    // What has left is not made again beside what is left of it, which is not dropped under others.
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(&STEPS);
    a.batch_execute("DELETE FROM insta_ids_internal.assignment").unwrap();
    a.batch_execute("BEGIN; CREATE VIEW seen AS SELECT * FROM insta2__moved.photos").unwrap();
    // Who drops it waits for whoever is making something that depends on it.
    let dropping = Running::start(pair.a.connect(), "SELECT insta_ids.drop_shard(2)");
    dropping.await_waiting(&mut pair.a.connect());
    a.batch_execute("COMMIT").unwrap();
    assert_eq!(dropping.end().unwrap_err().code().unwrap().code(), "2BP01");
    assert_eq!(
        refused(&mut a, "CALL insta_ids.create_shards(2, 2)").message(),
        "what is left of shard 2 is still here"
    );
    assert_eq!(refused(&mut a, "SELECT insta_ids.drop_shard(2)").code().code(), "2BP01");
    a.batch_execute("SELECT insta_ids.drop_shard(2, force => true)").unwrap();
}

/// The copy stops when the target's disk is full, says what to do, and goes on when there is room.
#[test]
fn a_copy_goes_on_when_a_full_disk_has_room_again() {
    let pair = Pair::start("full");
    let Some(disk) = SmallDisk::of(&pair.b, "4m") else { return };
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(
        "INSERT INTO insta2.photos (caption) SELECT repeat(md5(g::text), 4) FROM generate_series(1, 50000) g",
    )
    .unwrap();
    b.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.directory().display())).unwrap();
    b.batch_execute("ALTER DATABASE postgres SET default_tablespace = small").unwrap();
    let mut b = pair.b.connect();
    let call = "CALL insta_ids.move_shards(2, 2, 'a')";
    let error = refused(&mut b, call);
    assert_eq!(error.message(), "subscription of move \"insta_ids_2_2\" has stopped at an error");
    assert!(pair.b.log().contains("No space left on device"));
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    disk.grow("64m");
    b.batch_execute(call).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 50_001);
}

/// A dry run finds what would stop the move, on either server, and leaves nothing.
#[test]
fn a_dry_run_says_what_stands_in_the_way() {
    let pair = Pair::start("dry");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut findings = || {
        let check = "SELECT concat_ws(' | ', severity, code, object, detail, hint) FROM insta_ids.check_move(2, 2, 'a')";
        let found = texts(&mut b, check);
        let left = [&pair.a, &pair.b].map(|node| count(&mut node.connect(), "SELECT (SELECT count(*) FROM pg_publication)
            + (SELECT count(*) FROM insta_ids_internal.move) + (SELECT count(*) FROM insta_ids_internal.fence)"));
        assert_eq!(left, [0, 0]);
        found
    };
    let expected = "notice | would_move | insta_ids_2_2 | Shards from 2 to 2 with 2 tables and 8192 bytes would come from node \"a\". | CALL insta_ids.move_shards(2, 2, 'a')";
    assert_eq!(findings(), [expected]);
    a.batch_execute("CREATE TABLE insta2.byhand (n int)").unwrap();
    let found = findings();
    assert!(found[0].starts_with("error | cannot_leave | a | shard 2 cannot be moved"), "{found:?}");
    a.batch_execute("ALTER TABLE insta2.byhand ADD PRIMARY KEY (n); SELECT pg_create_physical_replication_slot('kept', true)")
        .unwrap();
    let found = findings();
    assert!(
        found[0].starts_with("error | cannot_come | b | shard 2 is not what its migrations make"),
        "{found:?}"
    );
    assert!(found[1].starts_with("warning | standby_behind | a | Its standby of slot \"kept\""), "{found:?}");
    pair.a.stop();
    let found = findings_of_a_lost_source(&mut pair.b.connect());
    assert!(found[0].starts_with("error | cannot_leave | a | "), "{found:?}");
}

fn findings_of_a_lost_source(b: &mut postgres::Client) -> Vec<String> {
    texts(b, "SELECT concat_ws(' | ', severity, code, object, detail) FROM insta_ids.check_move(2, 2, 'a')")
}

/// Readers with an old map never see the unfinished copy on the target, nor old rows on the source after the finish.
#[test]
fn readers_see_all_rows_or_an_error() {
    let pair = Pair::start("readers");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client.batch_execute("CREATE ROLE app").unwrap();
    }
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    let grants = "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO app WITH GRANT OPTION;
        ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO PUBLIC;
        ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO app";
    b.batch_execute(grants).unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    let read = |node: &support::Cluster| {
        let mut reader = node.connect();
        reader.batch_execute("SET ROLE app").unwrap();
        reader
            .query("SELECT FROM insta2.photos", &[])
            .map(|rows| rows.len())
            .map_err(|error| error.code().cloned())
    };
    a.batch_execute("GRANT USAGE ON SCHEMA insta2 TO app; GRANT SELECT ON insta2.photos TO app").unwrap();
    for step in STEPS {
        moving.step(step).unwrap();
        assert_eq!(read(&pair.a).is_ok(), step != "finish", "a after {step}");
        let is_there = ["hand over", "finish"].contains(&step);
        assert_eq!(read(&pair.b).is_ok(), is_there, "b after {step}");
    }
    assert_eq!(read(&pair.b), Ok(1));
    let acl = "SELECT nspacl::text FROM pg_namespace WHERE nspname = 'insta2'";
    assert_eq!(texts(&mut b, acl), ["{postgres=UC/postgres,app=U/postgres}"]);
}
