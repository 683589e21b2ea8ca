//! The ways in which a move is driven.

use super::{check, written};
use postgres::NoTls;
use postgres::error::SqlState;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::thread;
use std::time::Duration;
use support::pair::{Move, Pair, STEPS, before, shard_map};
use support::{Cluster, checkout, count, ids, major, refused, texts, within};

const CALL: &str = "CALL insta_ids.move_shards(2, 2, 'a')";

/// Each committed row is there once, on the server that has the shard.
#[test]
fn writers_follow_a_move_that_is_driven_step_by_step() {
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

/// Each committed row is there once, on the server that has the shard.
#[test]
fn writers_follow_a_move_of_one_call() {
    let pair = Pair::start("call");
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

/// Rows that were written last arrive, and the target goes on from a time later than any id of the source.
#[test]
fn rows_written_last_arrive_before_the_hand_over() {
    let pair = Pair::start("mark");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    let mut a = pair.a.connect();
    // So many that they are on their way when the fence comes.
    let insert = "INSERT INTO insta2.photos SELECT FROM generate_series(1, 50000) RETURNING id";
    let newest = ids(&mut a, insert);
    moving.steps(&STEPS[5..]);
    let first =
        ids(&mut pair.b.connect(), "SELECT next_id(2, 'insta2.table_id_seq') FROM generate_series(1, 2000)");
    assert!(first.iter().min() > newest.iter().max());
    let used = count(&mut pair.b.connect(), "SELECT last_value FROM insta2.table_id_seq");
    assert_eq!(used, 52_000);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 50_000);
}

/// PostgreSQL 19 turns logical decoding on for the move. Earlier versions refuse, and say what to set.
#[test]
fn shards_leave_a_server_of_wal_level_replica_from_postgresql_19_on() {
    let pair = Pair::start("replica");
    pair.a.connect().batch_execute("ALTER SYSTEM SET wal_level = replica").unwrap();
    pair.a.stop();
    pair.a.up();
    let mut a = pair.a.connect();
    a.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 1000)").unwrap();
    if major() < 19 {
        let error = refused(&mut a, "SELECT insta_ids_internal.move_offer(2, 2, 'b')");
        assert_eq!(error.hint(), Some("Set wal_level = logical in postgresql.conf, and restart the server."));
        return;
    }
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(&STEPS);
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 1000);
}

/// Partitions are not made by migrations, and move with their shard.
#[test]
fn partitions_go_with_their_shard() {
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
        let prepare = format!(
            "SELECT insta_ids_internal.prepare_shards($offer${offer}$offer$, current_setting('search_path'))"
        );
        // From PostgreSQL 19 on, there is no other way to read strings.
        for strings in if major() < 19 { &["on", "off"][..] } else { &["on"] } {
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

/// A role that owns the shards suffices on the server that they leave.
#[test]
fn a_move_needs_no_superuser_on_the_source() {
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
        "move_withdraw('insta_ids_4_4', (SELECT to_jsonb(m) FROM insta_ids_internal.move m))",
    ] {
        mover
            .batch_execute(&format!("SELECT insta_ids_internal.{step}"))
            .unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }
    mover.batch_execute("INSERT INTO insta4.photos DEFAULT VALUES").unwrap();
    within(Duration::from_secs(5), || count(&mut mover, "SELECT count(*) FROM pg_replication_slots") == 0);
}

/// Servers that demand passwords are reached by a passfile, or by one that a service file names. No password is kept.
#[test]
fn a_move_finds_passwords_in_a_passfile_and_keeps_none() {
    let pair = Pair::start("passwords");
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
    b.batch_execute("CREATE ROLE mover").unwrap();
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

/// Two sessions that make the same call at the same time create one subscription.
#[test]
fn equal_calls_create_one_subscription() {
    let pair = Pair::start("equal_calls");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(&["offer", "prepare"]);
    let mut first = pair.b.connect();
    let subscribe = "SELECT insta_ids_internal.subscribe_prepared('insta_ids_2_2')";
    first.batch_execute(&format!("BEGIN; {subscribe}")).unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| pair.b.connect().batch_execute(subscribe));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%subscribe_prepared%'";
        within(Duration::from_secs(20), || count(&mut pair.b.connect(), waits) == 1);
        first.batch_execute("COMMIT").unwrap();
        second.join().unwrap().unwrap();
    });
    pair.b.connect().batch_execute(CALL).unwrap();
}

/// A move that waits for transactions of the source names their processes.
#[test]
fn a_move_names_the_processes_that_it_waits_for() {
    let pair = Pair::start("waits_for");
    let mut writer = pair.a.connect();
    writer.batch_execute("BEGIN; INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    let pid = count(&mut writer, "SELECT pg_backend_pid()::bigint");
    let expected = format!(
        "move_shards: waits until these end on node \"a\": process {pid} (role postgres, transaction of 0"
    );
    let (send, heard) = std::sync::mpsc::channel();
    let mut config = pair.b.config();
    config.notice_callback(move |notice| drop(send.send(notice.message().to_owned())));
    thread::scope(|scope| {
        let call = scope.spawn(move || config.connect(NoTls).unwrap().batch_execute(CALL));
        assert!(heard.iter().any(|message| message.starts_with(&expected)), "{expected}");
        writer.batch_execute("COMMIT").unwrap();
        call.join().unwrap().unwrap();
    });
    assert_eq!(count(&mut pair.b.connect(), "SELECT count(*) FROM insta2.photos"), 1);
}

/// An application meets these SQLSTATEs, as the table of docs/clients.md has them.
#[test]
fn clients_meet_the_documented_codes() {
    let pair = Pair::start("codes");
    for cluster in [&pair.a, &pair.b] {
        cluster.connect().batch_execute("CREATE ROLE app LOGIN").unwrap();
    }
    let grant = "DO $$ BEGIN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO app', current_schema);
            GRANT SELECT, INSERT ON photos TO app;
            EXECUTE format('GRANT USAGE ON SEQUENCE %I.table_id_seq TO app', current_schema);
        END $$";
    let mut a = pair.a.connect();
    a.execute("SELECT insta_ids.add_migration('0002', $1)", &[&grant]).unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    let meets = |cluster: &Cluster| {
        [
            "INSERT INTO insta2.photos DEFAULT VALUES",
            "SELECT count(*) FROM insta2.photos",
            "SELECT insta2.next_id()",
        ]
        .map(|statement| {
            let mut client = cluster.config().user("app").connect(NoTls).unwrap();
            match client.batch_execute(statement) {
                Ok(()) => "works".to_owned(),
                Err(error) => error.code().unwrap().code().to_owned(),
            }
        })
    };
    let document = fs::read_to_string(checkout().join("docs/clients.md")).unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    let mut done = 0;
    let mut wrong = Vec::new();
    for (stage, next) in [
        ("before the move", "offer"),
        ("while rows are copied", "fence"),
        ("in the pause", "hand over"),
        ("handed over, not finished", "finish"),
        ("after the move", ""),
    ] {
        let until = STEPS.iter().position(|step| *step == next).unwrap_or(STEPS.len());
        moving.steps(&STEPS[done..until]);
        done = until;
        let line = format!("| {stage} | {} | {} |", meets(&pair.a).join(" | "), meets(&pair.b).join(" | "));
        if !document.contains(&line) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "docs/clients.md lacks\n{}", wrong.join("\n"));
}

/// Tables that refer to each other are truncated while only one of them has been copied. PostgreSQL cannot apply that.
#[test]
fn tables_that_are_truncated_during_the_copy_are_copied_again() {
    let pair = Pair::start("truncated");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client.batch_execute("CREATE TABLE public.users (id bigint PRIMARY KEY)").unwrap();
    }
    for statement in [
        "SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD author bigint REFERENCES public.users')",
        "CALL insta_ids.migrate()",
    ] {
        a.batch_execute(statement).unwrap();
    }
    for (shard, truncate) in (0..).zip([
        // What is left of shards that have moved would refuse this.
        "TRUNCATE public.users CASCADE",
        "TRUNCATE insta1.photos CASCADE",
        "TRUNCATE insta2.likes, insta2.photos RESTART IDENTITY",
    ]) {
        let insert = format!(
            "INSERT INTO insta{shard}.photos DEFAULT VALUES;
             INSERT INTO insta{shard}.likes (photo) SELECT id FROM insta{shard}.photos"
        );
        a.batch_execute(&format!("{insert}; {insert}")).unwrap();
        // No slot is made while a transaction that has written goes on.
        let mut writer = pair.a.connect();
        writer.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
        b.batch_execute(&format!("CALL insta_ids.move_shards({shard}, {shard}, 'a', background => true)"))
            .unwrap();
        let mut holder = pair.b.connect();
        holder.batch_execute(&format!("BEGIN; LOCK TABLE insta{shard}.likes IN SHARE MODE")).unwrap();
        writer.batch_execute("COMMIT").unwrap();
        let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
        within(Duration::from_secs(30), || count(&mut b, copied) == 1);
        a.batch_execute(&format!("{truncate}; {insert}")).unwrap();
        holder.batch_execute("COMMIT").unwrap();
        let failed = "SELECT count(*) FROM insta_ids.moves WHERE last_error LIKE '%has stopped at an error'";
        within(Duration::from_secs(30), || count(&mut b, failed) == 1);
        within(Duration::from_mins(1), || count(&mut b, "SELECT count(*) FROM insta_ids.moves") == 0);
        for table in ["photos", "likes"] {
            let rows = count(&mut b, &format!("SELECT count(*) FROM insta{shard}.{table}"));
            assert_eq!(rows, 1, "{truncate}: {table}");
        }
    }
}
