//! Promise: a shard is written to on one server at a time, and takes its ids with it.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::NoTls;
use postgres::error::SqlState;

use crate::cluster::{Cluster, PRELOAD, checkout, count, duplicates, ids, refused, skipped, texts, within};
use crate::pair::{MIGRATION, Move, Pair, STEPS, shard_map};
use crate::shards::Running;

const FENCED: &SqlState = &SqlState::READ_ONLY_SQL_TRANSACTION;

/// Writers of a shard: each goes to the other node when the one it is on refuses, and returns the ids of the rows that
/// were committed, with the longest time between two.
fn written(pair: &Pair, sessions: usize, during: impl FnOnce()) -> (Vec<Vec<i64>>, Duration) {
    let stop = AtomicBool::new(false);
    let longest = Mutex::new(Duration::ZERO);
    let all = thread::scope(|scope| {
        let writers: Vec<_> = (0..sessions)
            .map(|_| {
                scope.spawn(|| {
                    let mut nodes = [&pair.a, &pair.b].into_iter().cycle();
                    let mut client = nodes.next().unwrap().connect();
                    let mut committed = Vec::new();
                    let mut last = Instant::now();
                    while !stop.load(Ordering::Relaxed) {
                        let insert =
                            "INSERT INTO insta2.photos SELECT FROM generate_series(1, 10) RETURNING id";
                        match client.query(insert, &[]) {
                            Ok(rows) => {
                                committed.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                                let mut longest = longest.lock().unwrap();
                                *longest = (*longest).max(last.elapsed());
                                last = Instant::now();
                                // At full speed they would outrun what one session applies on the other node.
                                thread::sleep(Duration::from_millis(5));
                            }
                            Err(error) => {
                                let moved = [FENCED, &SqlState::UNDEFINED_TABLE];
                                assert!(error.code().is_some_and(|code| moved.contains(&code)), "{error:?}");
                                thread::sleep(Duration::from_millis(2));
                                client = nodes.next().unwrap().connect();
                            }
                        }
                    }
                    committed
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    (all, longest.into_inner().unwrap())
}

/// Nothing lost, nothing twice, and nothing written but where the shards are now.
fn check(pair: &Pair, committed: &[Vec<i64>]) {
    let there = ids(&mut pair.b.connect(), "SELECT id FROM insta2.photos ORDER BY id");
    assert_eq!(duplicates(committed), 0);
    let lost = committed.iter().flatten().filter(|id| there.binary_search(id).is_err()).count();
    assert_eq!(lost, 0, "of {}", there.len());
    let mut a = pair.a.connect();
    for write in ["INSERT INTO insta2__moved.photos DEFAULT VALUES", "TRUNCATE insta2__moved.photos CASCADE"]
    {
        assert_eq!(refused(&mut a, write).code(), FENCED);
    }
    assert_eq!(refused(&mut a, "SELECT next_id(2, 'insta2__moved.table_id_seq')").code(), FENCED);
    for client in [&mut a, &mut pair.b.connect()] {
        assert_eq!(count(client, "SELECT count(*) FROM insta_ids.moves"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_replication_slots"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_publication"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_subscription"), 0);
        assert_eq!(
            texts(client, "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check()"),
            [""; 0]
        );
    }
    let [map, other] = [&pair.a, &pair.b].map(|node| shard_map(&mut node.connect()));
    assert_eq!(map, other);
}

#[test]
fn by_steps_under_writers() {
    let pair = Pair::start("moves");
    pair.a
        .connect()
        .batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 50000)")
        .unwrap();
    let (committed, longest) = written(&pair, 4, || {
        let mut moving = Move::of(&pair, 1, 2);
        for step in STEPS {
            // As after a driver's death: what is done already is found.
            for _ in 0..2 {
                moving.step(step).unwrap_or_else(|error| panic!("{step}: {error:?}"));
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    println!("{} rows, longest pause {longest:?}", committed.iter().map(Vec::len).sum::<usize>());
    check(&pair, &committed);
    let mut b = pair.b.connect();
    let nodes =
        "SELECT string_agg(concat_ws(' ', shard, node, state), ', ' ORDER BY shard) FROM insta_ids.shards";
    assert_eq!(texts(&mut b, nodes), ["1 b active, 2 b active"]);
    let mut a = pair.a.connect();
    assert_eq!(texts(&mut a, nodes), ["0 a active, 1 b moved, 2 b moved, 3 a active"]);
    // And what is left of them goes.
    a.batch_execute("SELECT insta_ids.drop_shard(1), insta_ids.drop_shard(2)").unwrap();
    assert_eq!(texts(&mut a, nodes), ["0 a active, 3 a active"]);
}

#[test]
fn by_one_call_under_writers() {
    let pair = Pair::start("call");
    if !pair.have_dblink() {
        return;
    }
    pair.a
        .connect()
        .batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 50000)")
        .unwrap();
    let (committed, longest) = written(&pair, 4, || {
        thread::sleep(Duration::from_millis(100));
        pair.b.connect().batch_execute("CALL insta_ids.move_shards(0, 3, 'a')").unwrap();
        thread::sleep(Duration::from_millis(100));
    });
    println!("{} rows, longest pause {longest:?}", committed.iter().map(Vec::len).sum::<usize>());
    check(&pair, &committed);
    let mut b = pair.b.connect();
    let again = refused(&mut b, "CALL insta_ids.move_shards(0, 3, 'a')");
    assert_eq!(
        (again.code(), again.message()),
        (&SqlState::DUPLICATE_OBJECT, "shard 0 is already on this node")
    );
}

/// Each on its way past the check when the fence comes: none mints or writes after the mark.
#[test]
fn whoever_is_past_the_check() {
    let pair = Pair::start("races");
    let mut a = pair.a.connect();
    a.batch_execute("CREATE SEQUENCE insta2.cached CACHE 100").unwrap();
    let begin = |commands: &str| {
        let mut client = pair.a.connect();
        client.batch_execute(commands).unwrap();
        client
    };
    let mint = "SELECT next_id(2, 'insta2.table_id_seq')";

    // Who has minted, or written, in an open transaction is waited for.
    for holding in [mint, "INSERT INTO insta2.photos DEFAULT VALUES", "UPDATE insta2.likes SET photo = NULL"]
    {
        let mut holder = begin(&format!("BEGIN; {holding}"));
        let error = refused(&mut a, "SELECT insta_ids.fence(2, lock_timeout => '300ms')");
        assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{holding}");
        assert!(error.detail().unwrap().contains("is in use by process "), "{error:?}");
        holder.batch_execute("COMMIT").unwrap();
    }
    let mut two_phases = begin(&format!("BEGIN; {mint}; PREPARE TRANSACTION 'holding'"));
    let error = refused(&mut a, "SELECT insta_ids.fence(2, lock_timeout => '300ms')");
    assert!(error.detail().unwrap().ends_with("is in use by prepared transaction \"holding\"."), "{error:?}");
    two_phases.batch_execute("COMMIT PREPARED 'holding'").unwrap();

    // Who has not is refused, whatever it has seen, cached or prepared before.
    let prepared = "PREPARE mint AS SELECT next_id(2, 'insta2.table_id_seq'); EXECUTE mint";
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM insta_ids_internal.fence";
    let cursor = "BEGIN; DECLARE minting CURSOR FOR SELECT next_id(2, 'insta2.table_id_seq') FROM generate_series(1, 9)";
    let mut stopped = [
        (begin(prepared), "EXECUTE mint"),
        (begin("SELECT next_id(2, 'insta2.cached')"), "SELECT next_id(2, 'insta2.cached')"),
        (begin(snapshot), mint),
        (begin(snapshot), "INSERT INTO insta2.photos (id) VALUES (4035675246378683394)"),
        (begin(cursor), "FETCH minting"),
        (
            begin("SELECT next_id(2, 'insta2.table_id_seq', 'twitter')"),
            "SELECT next_id(2, 'insta2.table_id_seq', 'twitter')",
        ),
        (begin(""), "SELECT next_ids(2, 'insta2.table_id_seq', 5)"),
        (begin(""), "DELETE FROM insta2.photos"),
        (begin(""), "SELECT insta2.next_id()"),
    ];
    a.batch_execute("SELECT insta_ids.fence(2)").unwrap();
    for (client, command) in &mut stopped {
        assert_eq!(refused(client, command).code(), FENCED, "{command}");
    }
    // Others go on.
    a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES; SELECT insta_ids.unfence(2)").unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// Autovacuum, which is at a table for long, ends its work there; and writers do not wait for that.
#[test]
fn autovacuum_gives_way() {
    let cluster = Cluster::bare("autovacuum", &[PRELOAD, "autovacuum_naptime = 1s"]);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(64); CREATE ROLE owner;
             SELECT insta_ids.grant_provisioning('owner'); GRANT CREATE ON DATABASE postgres TO owner",
        )
        .unwrap();
    client.batch_execute(MIGRATION).unwrap();
    client.batch_execute("SET ROLE owner").unwrap();
    let slow = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_threshold = 0";
    client
        .batch_execute(&format!(
            "SELECT insta_ids.create_shard(2);
             ALTER TABLE insta2.photos SET ({slow});
             INSERT INTO insta2.photos SELECT FROM generate_series(1, 100000);
             DELETE FROM insta2.photos"
        ))
        .unwrap();
    // A transaction keeps what it has seen of sessions; and of autovacuum, not everybody sees all.
    let mut fencing = cluster.connect();
    fencing.batch_execute("SET ROLE owner; BEGIN; SELECT FROM pg_stat_activity").unwrap();
    let at_it = "SELECT count(*) FROM pg_locks
        WHERE relation = 'insta2.photos'::regclass AND mode = 'ShareUpdateExclusiveLock'";
    within(Duration::from_secs(30), || count(&mut client, at_it) == 1);
    let mut writer = cluster.connect();
    writer.batch_execute("SET lock_timeout = '500ms'").unwrap();
    let writer = thread::spawn(move || {
        loop {
            if let Err(error) = writer.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES") {
                return error;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    fencing.batch_execute("SELECT insta_ids.fence(2, lock_timeout => '10s'); COMMIT").unwrap();
    assert_eq!(writer.join().unwrap().code(), Some(FENCED));
    cluster.await_log("canceling autovacuum task");
}

/// What was written last arrives, and the time that the target goes on from is later than that of any id of the source.
#[test]
fn what_was_written_last() {
    let pair = Pair::start("mark");
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..5].iter().for_each(|step| moving.step(step).unwrap());
    let mut a = pair.a.connect();
    // So many that they are on their way when the fence comes.
    let insert = "INSERT INTO insta2.photos SELECT FROM generate_series(1, 50000) RETURNING id";
    let newest = ids(&mut a, insert);
    STEPS[5..].iter().for_each(|step| moving.step(step).unwrap());
    let first =
        ids(&mut pair.b.connect(), "SELECT next_id(2, 'insta2.table_id_seq') FROM generate_series(1, 2000)");
    assert!(first.iter().min() > newest.iter().max());
    let used = count(&mut pair.b.connect(), "SELECT last_value FROM insta2.table_id_seq");
    assert_eq!(used, 52_000);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 50_000);
}

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

/// What is refused before anything is made, and what there is to see then.
#[test]
fn what_cannot_move() {
    let pair = Pair::start("unmovable");
    let mut a = pair.a.connect();
    a.batch_execute("CREATE ROLE guest; SELECT insta_ids.grant_provisioning('guest')").unwrap();
    let offer = "SELECT insta_ids_internal.move_offer(2, 2, 'b')";
    let cases = [
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
            "has no primary key",
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
    for (cause, mended, said) in cases {
        a.batch_execute(cause).unwrap();
        let error = refused(&mut a, offer);
        assert!(error.detail().unwrap().contains(said), "{cause}: {error:?}");
        assert_eq!(count(&mut a, "SELECT count(*) FROM insta_ids_internal.move"), 0);
        assert_eq!(count(&mut a, "SELECT count(*) FROM pg_publication"), 0);
        a.batch_execute(mended).unwrap();
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

/// Partitions are not of migrations, and go with their shard.
#[test]
fn with_partitions() {
    let pair = Pair::start("partitioned");
    let mut a = pair.a.connect();
    let migration =
        "CREATE TABLE events (id bigint PRIMARY KEY DEFAULT next_id(), x integer) PARTITION BY RANGE (id)";
    a.batch_execute(&format!("SELECT insta_ids.add_migration('0002', '{migration}')")).unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute(
        "SELECT insta_ids.create_partitions('insta2.events', '1 day', now(), now() + interval '2 days', 'UTC');
         INSERT INTO insta2.events (x) SELECT generate_series(1, 1000);
         CREATE TABLE insta2.old PARTITION OF insta2.events FOR VALUES FROM (MINVALUE) TO (100) PARTITION BY HASH (id);
         CREATE TABLE insta2.\"old's\" PARTITION OF insta2.old FOR VALUES WITH (modulus 1, remainder 0) PARTITION BY LIST (id);
         CREATE TABLE insta2.oldest PARTITION OF insta2.\"old's\" FOR VALUES IN (-5, 7)",
    )
    .unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.step("offer").unwrap();
    let mut b = pair.b.connect();
    // What comes from the source is bounds and names, and nothing that is run.
    for (partition, code) in [
        (r#"["events", "p", "DEFAULT; CREATE SCHEMA injected", null]"#, "22023"),
        (r#"["events", "p", "FOR VALUES FROM ('0') TO ('5'::evil)", null]"#, "22023"),
        (r#"["events", "p", "FOR VALUES FROM ('0') TO (abs(5))", null]"#, "22023"),
        (r#"["events", "p", "FOR VALUES FROM ('0\\'', abs(5), ''') TO ('1')", null]"#, "22P02"),
        (r#"["events", "p", "DEFAULT", ["RANGE (id); CREATE SCHEMA injected; --", "id"]]"#, "22023"),
        (r#"["events", "p", "DEFAULT", ["RANGE", "abs(id)"]]"#, "42703"),
    ] {
        let offer = texts(
            &mut pair.a.connect(),
            &format!(
                "SELECT jsonb_set(insta_ids_internal.move_offer(2, 2, 'b'), '{{partitions,2}}', '[{}]')::text",
                partition.replace('\'', "''")
            ),
        )
        .remove(0);
        let prepare = format!("SELECT insta_ids_internal.move_prepare($offer${offer}$offer$)");
        for strings in ["on", "off"] {
            b.batch_execute(&format!("SET standard_conforming_strings = {strings}")).unwrap();
            let error = refused(&mut b, &prepare);
            assert_eq!(error.code().code(), code, "{partition}: {error:?}");
        }
    }
    for step in &STEPS[1..] {
        moving.step(step).unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }
    let tree = "SELECT relid::text || ' ' || pg_get_expr(c.relpartbound, c.oid) || coalesce(pg_get_partkeydef(c.oid), '')
        FROM pg_partition_tree('insta2.old') JOIN pg_class c ON c.oid = relid ORDER BY level";
    assert_eq!(
        texts(&mut b, tree),
        [
            "insta2.old FOR VALUES FROM (MINVALUE) TO ('100')HASH (id)",
            "insta2.\"old's\" FOR VALUES WITH (modulus 1, remainder 0)LIST (id)",
            "insta2.oldest FOR VALUES IN ('-5', '7')",
        ]
    );
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.events"), 1000);
    assert!(
        count(&mut b, "SELECT count(*) FROM pg_inherits i WHERE i.inhparent = 'insta2.events'::regclass")
            >= 2
    );
    b.batch_execute("INSERT INTO insta2.events (x) VALUES (1)").unwrap();
}

/// Whoever moves shards needs no superuser on the server that they leave.
#[test]
fn without_a_superuser_on_the_source() {
    let pair = Pair::start("mover");
    let mut a = pair.a.connect();
    a.batch_execute(
        "CREATE ROLE mover LOGIN REPLICATION; GRANT CREATE ON DATABASE postgres TO mover;
         SELECT insta_ids.grant_provisioning('mover')",
    )
    .unwrap();
    let mut mover = pair.a.config().user("mover").connect(NoTls).unwrap();
    mover.batch_execute("CALL insta_ids.create_shards(4, 4)").unwrap();
    mover.batch_execute("INSERT INTO insta4.photos SELECT FROM generate_series(1, 100)").unwrap();
    for step in [
        "move_offer(4, 4, 'b')",
        "move_slot('insta_ids_4_4')",
        "move_fence('insta_ids_4_4')",
        "move_mark('insta_ids_4_4')",
        "move_hashes('insta_ids_4_4')",
        "move_withdraw('insta_ids_4_4', (SELECT to_jsonb(m) FROM insta_ids_internal.move m))",
    ] {
        mover
            .batch_execute(&format!("SELECT insta_ids.{step}"))
            .unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }
    mover.batch_execute("INSERT INTO insta4.photos DEFAULT VALUES").unwrap();
    within(Duration::from_secs(5), || count(&mut mover, "SELECT count(*) FROM pg_replication_slots") == 0);
}

/// Servers that demand passwords find them in a passfile, or in one that a service file names; and nothing keeps them.
#[test]
fn with_passwords() {
    let pair = Pair::start("passwords");
    if !pair.have_dblink() {
        return;
    }
    let mut a = pair.a.connect();
    a.batch_execute(
        "CREATE ROLE mover LOGIN REPLICATION PASSWORD 'open sesame'; GRANT CREATE ON DATABASE postgres TO mover;
         SELECT insta_ids.grant_provisioning('mover')",
    )
    .unwrap();
    let hba = texts(&mut a, "SHOW hba_file").remove(0);
    let rules = fs::read_to_string(&hba).unwrap();
    fs::write(&hba, format!("local all mover scram-sha-256\n{rules}")).unwrap();
    a.batch_execute("SELECT pg_reload_conf()").unwrap();
    let mut mover = pair.a.config().user("mover").password("open sesame").connect(NoTls).unwrap();
    mover.batch_execute("CALL insta_ids.create_shards(4, 5)").unwrap();
    mover.batch_execute("INSERT INTO insta4.photos SELECT FROM generate_series(1, 100)").unwrap();

    // The server reads it as its own user, and nobody else may.
    let directory = pair.b.socket.join("data");
    let keep = |name: &str, text: &str| {
        let file = directory.join(name);
        fs::write(&file, text).unwrap();
        let owner = fs::metadata(&directory).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
        file.display().to_string()
    };
    let socket = pair.a.socket.display();
    let passfile = keep("passfile", &format!("{socket}:*:postgres:mover:open sesame\n"));
    let without = format!("host={socket} user=mover dbname=postgres");
    let with_passfile = format!("{without} passfile={passfile}");
    keep("pg_service.conf", &format!("[shards]\n{}\n", with_passfile.replace(' ', "\n")));
    pair.b.stop();
    pair.b.script("start", &[&format!("PGSERVICEFILE={}", directory.join("pg_service.conf").display())]);
    let mut b = pair.b.connect();
    let known_as = |dsn: &str| {
        let mut a = pair.a.connect();
        a.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
        let map = shard_map(&mut a);
        pair.b.connect().execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
    };

    known_as(&without);
    let refusal = refused(&mut b, "CALL insta_ids.move_shards(4, 4, 'a')");
    assert_eq!(refusal.code(), &SqlState::SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION);
    assert_eq!(count(&mut a, "SELECT count(*) FROM insta_ids_internal.move"), 0);
    for (shard, dsn) in [(4, &*with_passfile), (5, "service=shards")] {
        known_as(dsn);
        b.batch_execute(&format!("CALL insta_ids.move_shards({shard}, {shard}, 'a')")).unwrap();
    }
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta4.photos"), 100);
    for node in [&pair.a, &pair.b] {
        assert!(!node.log().contains("sesame"), "{}", node.log());
    }
}

/// Whoever drives a move, and in whatever order: what was cancelled is not taken over, and what was taken over is not opened
/// again where it came from.
#[test]
fn a_move_ends_in_one_way() {
    let pair = Pair::start("ends");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let message = |error: postgres::Error| error.as_db_error().unwrap().message().to_owned();

    // Two drivers: one cancels, the other goes on with the same offer.
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..6].iter().for_each(|step| moving.step(step).unwrap());
    let cancelled = texts(&mut b, "SELECT insta_ids_internal.move_cancel('insta_ids_2_2')::text");
    moving.step("offer").unwrap();
    assert_eq!(message(moving.step("prepare").unwrap_err()), "offer of shards from 2 to 2 is void");
    let withdraw =
        |cancellation: &str| format!("SELECT insta_ids_internal.move_withdraw('insta_ids_2_2', '{cancellation}')");
    for other in ["{}", r#"{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}"#] {
        assert_eq!(
            refused(&mut a, &withdraw(other)).message(),
            "shards from 2 to 2 may already be on node \"b\""
        );
    }
    for _ in 0..2 {
        a.batch_execute(&withdraw(&cancelled[0])).unwrap();
    }
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();

    // Handed over, and then cancelled: too late, also when the target has forgotten it.
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..8].iter().for_each(|step| moving.step(step).unwrap());
    assert_eq!(message(moving.abort().unwrap_err()), "shards of move \"insta_ids_2_2\" are already here");
    b.batch_execute("SELECT insta_ids_internal.move_finish('insta_ids_2_2')").unwrap();
    assert_eq!(message(moving.abort().unwrap_err()), "shards of move \"insta_ids_2_2\" are already here");
    assert_eq!(refused(&mut a, "INSERT INTO insta2.photos DEFAULT VALUES").code(), FENCED);
    moving.step("finish").unwrap();

    // A copy whose hand-over its server has lost is not dropped: the other one has let go.
    if pair.have_dblink() {
        let mut moving = Move::of(&pair, 3, 3);
        for step in STEPS {
            moving.step(step).unwrap();
        }
        let lost = "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
            SELECT 'insta_ids_3_3', id, 3, 3, '{3}', 'a', 'b', 0, 'copying' FROM insta_ids_internal.move_outcome ORDER BY at DESC LIMIT 1";
        b.batch_execute(lost).unwrap();
        let error = refused(&mut b, "CALL insta_ids.move_abort(3, 3)");
        assert_eq!(error.message(), "node \"a\" has let go of shards from 3 to 3");
    }
}

/// A role that may provision cannot write down on the target that a move has ended; and such a row does not make the source
/// let go of rows that the target lacks.
#[test]
fn a_forged_outcome_is_not_believed() {
    let pair = Pair::start("outcome");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 100)").unwrap();
    let mut forger = pair.b.connect();
    b.batch_execute(
        "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger')",
    )
    .unwrap();
    forger.batch_execute("SET ROLE forger; CREATE SCHEMA insta7").unwrap();
    let id_of = |name: &str| {
        texts(
            &mut pair.a.connect(),
            &format!("SELECT id::text FROM insta_ids_internal.move WHERE name = '{name}'"),
        )
        .remove(0)
    };
    let ended = |id: &str, values: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move_outcome (id, outcome, shards, table_slots) VALUES ('{id}', {values})"
        )
    };
    Move::of(&pair, 3, 3).step("offer").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..2].iter().for_each(|step| moving.step(step).unwrap());
    for id in [id_of("insta_ids_2_2"), id_of("insta_ids_3_3")] {
        for values in [
            "'handed over', '{2}', NULL",
            "'handed over', '{7}', NULL",
            "'withdrawn', '{3}', NULL",
            "'cancelled', NULL, NULL",
            "'cancelled', '{2}', '{pg_1_sync_1_1}'",
        ] {
            assert_eq!(refused(&mut forger, &ended(&id, values)).code().code(), "42501", "{values}");
        }
    }
    for change in
        ["DELETE FROM insta_ids_internal.move_outcome", "UPDATE insta_ids_internal.move_outcome SET at = now()"]
    {
        assert_eq!(refused(&mut forger, change).code().code(), "42501");
    }

    // Where it is there nevertheless, the move's own row counts, and what the source says.
    b.batch_execute(&ended(&id_of("insta_ids_2_2"), "'handed over', '{2}', NULL")).unwrap();
    assert_eq!(refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')").code().code(), "23505");
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    b.batch_execute("DELETE FROM insta_ids_internal.move_outcome").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 101);
    for (shards, message) in
        [("{2}", "offer of shards from 3 to 3 is void"), ("{3}", "shards from 3 to 3 have not left")]
    {
        let values = format!("'handed over', '{shards}', NULL");
        b.batch_execute(&ended(&id_of("insta_ids_3_3"), &values)).unwrap();
        assert_eq!(refused(&mut b, "CALL insta_ids.move_shards(3, 3, 'a')").message(), message);
        b.batch_execute("DELETE FROM insta_ids_internal.move_outcome").unwrap();
    }
    a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
}

/// What others do meanwhile to shards, slots and maps.
#[test]
fn what_others_do_meanwhile() {
    let pair = Pair::start("meanwhile");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.drop_shard(1)").unwrap();
    let mut old = pair.a.connect();
    old.batch_execute("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1").unwrap();
    let mut moving = Move::of(&pair, 0, 3);
    STEPS[..5].iter().for_each(|step| moving.step(step).unwrap());

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
    for step in STEPS {
        moving.step(step).unwrap();
    }
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

/// A fenced shard may be given to another node by hand. Who takes the offer back then does not open it here.
#[test]
fn a_withdrawn_shard_is_where_the_map_says() {
    let pair = Pair::start("withdrawn");
    let mut a = pair.a.connect();
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..6].iter().for_each(|step| moving.step(step).unwrap());
    let by_map = "SELECT insta_ids.apply_map(insta_ids.shard_map()
        || '{\"version\": 1000, \"ranges\": [[0, 1, \"a\"], [2, 2, \"b\"], [3, 63, \"a\"]]}')";
    a.batch_execute(by_map).unwrap();
    let error = moving.abort().unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "the map does not have shard 2 on this node");
    assert_eq!(
        error.hint(),
        Some(
            "On node \"a\": SELECT insta_ids.assign(2, 2, 'a'). Then call insta_ids.move_abort(2, 2, 'a') again where it was called."
        )
    );
    assert_eq!(refused(&mut a, "INSERT INTO insta2.photos DEFAULT VALUES").code().code(), "25006");
    a.batch_execute("SELECT insta_ids.assign(2, 2, 'a')").unwrap();
    moving.abort().unwrap();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// Neither server takes anybody's word for what the other has done.
#[test]
fn who_was_not_asked_has_no_say() {
    let pair = Pair::start("word");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..7].iter().for_each(|step| moving.step(step).unwrap());
    // Before it was handed over, the source does not let go.
    for proof in
        ["NULL", r#"'{"version": 9}'"#, r#"'{"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "version": 9}'"#]
    {
        let finish = format!("SELECT insta_ids_internal.move_finish('insta_ids_2_2', {proof})");
        assert_eq!(refused(&mut a, &finish).message(), "shards from 2 to 2 may not be on node \"b\" yet");
    }
    assert_eq!(
        refused(&mut a, "SELECT insta_ids.drop_node('b')").message(),
        "shards move from or to node \"b\""
    );
    // Nor does the target set whatever sequence the mark names.
    b.batch_execute("CREATE SEQUENCE public.other").unwrap();
    let mark = texts(&mut a, "SELECT mark::text FROM insta_ids_internal.move").remove(0);
    for other in ["[\"public\", \"other\", 99, true]", "[\"insta2\", \"photos\", 99, true]"] {
        let hand_over = format!(
            "SELECT insta_ids_internal.move_hand_over('insta_ids_2_2', jsonb_insert('{mark}', '{{sequences, 0}}', '{other}'))"
        );
        let error = refused(&mut b, &hand_over);
        assert_eq!(error.code().code(), "22023");
        assert!(error.message().ends_with("which is no sequence of its shards"), "{error:?}");
    }
    moving.step("hand over").unwrap();

    // Another database of the target's server has its name, and nothing of the move.
    b.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = pair.b.connect_to("other");
    other.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    other.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    let id = texts(&mut a, "SELECT id::text FROM insta_ids_internal.move").remove(0);
    let cancel = format!("SELECT insta_ids_internal.move_cancel('insta_ids_2_2', '{id}')::text");
    let cancellation = texts(&mut other, &cancel).remove(0);
    // Asked again, it has heard of it, from itself.
    assert_eq!(texts(&mut other, &cancel), [&*cancellation]);
    let withdraw = format!("SELECT insta_ids_internal.move_withdraw('insta_ids_2_2', '{cancellation}')");
    assert_eq!(refused(&mut a, &withdraw).message(), "shards from 2 to 2 may already be on node \"b\"");
    if pair.have_dblink() {
        other.batch_execute("CREATE EXTENSION dblink").unwrap();
        assert_eq!(
            refused(&mut other, "CALL insta_ids.move_abort(2, 2, 'a')").message(),
            "shards from 2 to 2 may already be on node \"b\""
        );
    }
    moving.step("finish").unwrap();

    // A map from before does not bring it back, also when nothing is left of it.
    a.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    for back in [
        "SELECT insta_ids.assign(0, 63, 'a')",
        "DELETE FROM insta_ids_internal.assignment; SELECT insta_ids.create_shard(2)",
    ] {
        assert_eq!(refused(&mut a, back).message(), "shard 2 has moved to node \"b\"");
    }
    // But a move does.
    if pair.have_dblink() {
        a.batch_execute("CREATE EXTENSION dblink; SELECT insta_ids.assign(2, 2, 'b')").unwrap();
        a.batch_execute("CALL insta_ids.move_shards(2, 2, 'b')").unwrap();
        a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    }
}

/// Without its name a server knows of no map, but still of what has left it.
#[test]
fn a_source_that_lost_its_name() {
    let pair = Pair::start("nameless");
    let mut moving = Move::of(&pair, 2, 2);
    for step in STEPS {
        moving.step(step).unwrap();
    }
    pair.a.connect().batch_execute("ALTER SYSTEM SET insta_ids.node = ''").unwrap();
    pair.a.stop();
    pair.a.up();
    let mut a = pair.a.connect();
    assert_eq!(refused(&mut a, "SELECT insta2__moved.next_id()").code(), FENCED);
    a.batch_execute("SELECT insta3.next_id()").unwrap();
}

/// What a subscription brings does not go past a fence: it waits at the other server.
#[test]
fn a_subscription_to_a_fenced_shard() {
    let pair = Pair::start("subscribed");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    b.batch_execute(
        "CREATE SCHEMA insta2; CREATE TABLE insta2.photos (id bigint PRIMARY KEY, caption text);
         CREATE PUBLICATION photos FOR TABLE insta2.photos",
    )
    .unwrap();
    a.batch_execute("ALTER SYSTEM SET wal_retrieve_retry_interval = '100ms'").unwrap();
    a.batch_execute("SELECT pg_reload_conf()").unwrap();
    let subscribe = format!(
        "CREATE SUBSCRIPTION photos CONNECTION 'host={} user=postgres dbname=postgres' PUBLICATION photos",
        pair.b.socket.display()
    );
    a.batch_execute(&subscribe).unwrap();
    let insert = |b: &mut postgres::Client, seq: i64| {
        b.batch_execute(&format!("INSERT INTO insta2.photos VALUES ((2 << 10) + {seq})")).unwrap();
    };
    let rows = "SELECT count(*) FROM insta2.photos";
    insert(&mut b, 1);
    within(Duration::from_secs(30), || count(&mut a, rows) == 1);
    a.batch_execute("SELECT insta_ids.fence(2)").unwrap();
    insert(&mut b, 2);
    b.batch_execute("UPDATE insta2.photos SET caption = 'a'").unwrap();
    within(Duration::from_secs(30), || pair.a.log().contains("shard 2 is fenced"));
    assert_eq!(count(&mut a, rows), 1);
    a.batch_execute("SELECT insta_ids.unfence(2)").unwrap();
    within(Duration::from_secs(30), || count(&mut a, "SELECT count(caption) FROM insta2.photos") == 2);
    a.batch_execute("DROP SUBSCRIPTION photos").unwrap();
}

/// A fence waits for who makes something in the shard, which it then closes, too.
#[test]
fn what_is_made_meanwhile_is_fenced() {
    let pair = Pair::start("made_meanwhile");
    let (mut a, mut maker) = (pair.a.connect(), pair.a.connect());
    maker.batch_execute("BEGIN; CREATE TABLE insta2.late (a integer)").unwrap();
    assert_eq!(refused(&mut a, "SELECT insta_ids.fence(2, '100ms')").code().code(), "55P03");
    thread::scope(|scope| {
        let fencing = scope.spawn(|| a.batch_execute("SELECT insta_ids.fence(2, '20s')"));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let mut other = pair.a.connect();
        within(Duration::from_secs(10), || count(&mut other, waits) == 1);
        maker.batch_execute("COMMIT").unwrap();
        fencing.join().unwrap().unwrap();
    });
    assert_eq!(refused(&mut maker, "INSERT INTO insta2.late VALUES (1)").code(), FENCED);
}

/// A fence stops whoever sets `session_replication_role`; what was taken out of a shard is missed.
#[test]
fn around_the_fence() {
    let pair = Pair::start("around");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.add_migration('0002', 'CREATE SEQUENCE plain')").unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..5].iter().for_each(|step| moving.step(step).unwrap());
    a.batch_execute("ALTER SEQUENCE insta2.plain SET SCHEMA public").unwrap();
    let changed = moving.step("fence").unwrap_err();
    assert_eq!(
        changed.as_db_error().unwrap().message(),
        "tables or sequences of shards from 2 to 2 have changed since the move began"
    );
    moving.abort().unwrap();
    a.batch_execute("ALTER SEQUENCE plain SET SCHEMA insta2").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    STEPS[..6].iter().for_each(|step| moving.step(step).unwrap());
    for (client, write) in [
        (&mut a, "SET session_replication_role = replica; INSERT INTO insta2.photos (id) VALUES (2 << 10)"),
        (&mut b, "INSERT INTO insta2.photos DEFAULT VALUES"),
    ] {
        assert_eq!(refused(client, write).code(), FENCED);
    }
    moving.step("drained").unwrap();
    moving.step("hand over").unwrap();
    moving.step("finish").unwrap();
    let late =
        "SET session_replication_role = replica; INSERT INTO insta2__moved.photos (id) VALUES (2 << 10)";
    assert_eq!(refused(&mut a, late).code(), FENCED);
    // A cancellation that was lost is the same when it is asked for again.
    let mut moving = Move::of(&pair, 3, 3);
    STEPS[..4].iter().for_each(|step| moving.step(step).unwrap());
    let id = texts(&mut a, "SELECT id::text FROM insta_ids_internal.move").remove(0);
    let cancel = format!("SELECT insta_ids_internal.move_cancel('insta_ids_3_3', '{id}')::text");
    let first = texts(&mut b, &cancel);
    assert_eq!(texts(&mut b, &cancel), first);
    a.batch_execute(&format!("SELECT insta_ids_internal.move_withdraw('insta_ids_3_3', '{}')", first[0])).unwrap();
    // Foreign tables have no lock of this kind, and can be fenced nevertheless.
    a.batch_execute(
        "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none;
         CREATE FOREIGN TABLE insta0.remote (id bigint) SERVER none; SELECT insta_ids.fence(0), insta_ids.unfence(0)",
    )
    .unwrap();
}

/// Who may make functions on the source does nothing with the mover's rights.
#[test]
fn planted_on_the_source() {
    let pair = Pair::start("planted");
    if !pair.have_dblink() {
        return;
    }
    pair.a
        .connect()
        .batch_execute(
            "CREATE FUNCTION public.to_jsonb(boolean) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
             CREATE FUNCTION public.to_jsonb(bigint) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
             CREATE FUNCTION public.to_jsonb(timestamptz) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$",
        )
        .unwrap();
    pair.b.connect().batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
}

/// The owner of a table on the target runs nothing as the superuser who moves shards there. PostgreSQL 15 does not see to
/// that: there the superuser must own what runs.
#[test]
fn planted_on_the_target() {
    let pair = Pair::start("owners");
    if !pair.have_dblink() {
        return;
    }
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client
            .batch_execute(
                "CREATE ROLE guest; CREATE FUNCTION public.canary(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
                    $$BEGIN RAISE LOG 'canary of %', current_user; RETURN $1; END$$;
                 ALTER FUNCTION public.canary OWNER TO guest; GRANT USAGE ON SCHEMA public TO guest",
            )
            .unwrap();
    }
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002', 'CREATE INDEX ON likes (public.canary(id)); CREATE SEQUENCE s OWNED BY likes.id;
            ALTER TABLE likes OWNER TO guest;
            DO $$BEGIN EXECUTE format(''GRANT USAGE ON SCHEMA %I TO guest'', current_schema()); END$$')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute("INSERT INTO insta2.likes VALUES (2 << 10)").unwrap();
    let mut messages = Vec::new();
    while let Err(error) = b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a', verify => 'none')") {
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "55000", "{error:?}");
        assert!(!pair.b.log().contains("canary of"), "{}", pair.b.log());
        messages.push(error.message().to_owned());
        let hint = error.hint().unwrap().strip_prefix("If you trust that code: ").unwrap();
        b.batch_execute(hint.split_once(". Then").unwrap().0).unwrap();
    }
    let owned = [
        "function public.canary(bigint) belongs to role \"guest\"",
        "table insta2.likes belongs to role \"guest\"",
    ];
    assert_eq!(messages, if cfg!(feature = "pg15") { &owned[..] } else { &[] });
    b.batch_execute("ALTER TABLE insta2.likes OWNER TO guest").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.likes"), 1);
}

/// A file system that is mounted until this is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The target's disk is full: the copy stops with a word of what to do, and goes on when there is room.
#[test]
fn a_full_disk() {
    let pair = Pair::start("full");
    if !pair.have_dblink() {
        return;
    }
    let small = pair.b.socket.join("small");
    let mount = |options: &str| {
        let directory = small.display();
        let mount = format!(
            "mkdir -p {directory} && mount -t tmpfs -o {options} tmpfs {directory} && chown --reference={} {directory}",
            pair.b.socket.display()
        );
        Command::new("bash").args(["-c", &mount]).output().unwrap()
    };
    let mounted = mount("size=4m,mode=700");
    if !mounted.status.success() {
        skipped(&format!("nothing can be mounted here: {}", String::from_utf8_lossy(&mounted.stderr)));
        return;
    }
    let _mounted = Mounted(small.clone());
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(
        "INSERT INTO insta2.photos (caption) SELECT repeat(md5(g::text), 4) FROM generate_series(1, 50000) g",
    )
    .unwrap();
    b.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{}'", small.display())).unwrap();
    b.batch_execute("ALTER DATABASE postgres SET default_tablespace = small").unwrap();
    let mut b = pair.b.connect();
    let call = "CALL insta_ids.move_shards(2, 2, 'a')";
    let error = refused(&mut b, call);
    assert_eq!(error.message(), "subscription of move \"insta_ids_2_2\" has stopped at an error");
    assert!(pair.b.log().contains("No space left on device"));
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    assert!(mount("remount,size=64m").status.success());
    b.batch_execute(call).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 50_001);
}
