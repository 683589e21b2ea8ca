//! Shards are made by several operators at once, and say how far they are.

use postgres::error::SqlState;
use postgres::{Client, NoTls};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::shards::{HOLD, PHOTOS, RELEASE, Running, WAITS_IN_12, add, at_once, check_complete, set_up};
use support::{Cluster, count, major, refused, texts, within};

pub(crate) const PROGRESS: &str =
    "SELECT concat_ws(' ', command, total, done, failed, remaining) FROM insta_ids.progress";

/// Procedures report progress at most once a second, and once at the end.
#[test]
fn notices_report_progress_once_a_second() {
    let (cluster, mut client) = set_up("notices", 100);
    add(&mut client, "0001", PHOTOS);
    let notices = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&notices);
    let mut config = cluster.config();
    config.notice_callback(move |notice| heard.lock().unwrap().push(notice.message().to_owned()));
    let mut client = config.connect(NoTls).unwrap();
    let mut told = |call: &str| {
        client.batch_execute(call).unwrap();
        std::mem::take(&mut *notices.lock().unwrap())
    };
    let said = told("CALL insta_ids.create_shards(0, 19)");
    assert!(said.last().unwrap().starts_with("create_shards: 20 of 20 shards in "), "{said:?}");
    let said = told("CALL insta_ids.create_shards(10, 29, batch => 3)");
    assert!(said.last().unwrap().starts_with("create_shards: 10 of 10 shards in "), "{said:?}");
    // As soon as the machine has time for them.
    for (call, said) in [
        ("CALL insta_ids.create_shards(10, 29)", "create_shards: 0 of 0 shards in 0.0 s"),
        ("CALL insta_ids.migrate()", "migrate: 0 of 0 shards in 0.0 s"),
    ] {
        within(Duration::from_secs(10), || told(call) == [said]);
    }
    // Half a second each, and one message a second at most: as long as the machine has time for them.
    told("SELECT insta_ids.add_migration('0002', 'SELECT pg_sleep(0.5)')");
    let said = told("CALL insta_ids.migrate(0, 4, batch => 1)");
    assert!((2..=6).contains(&said.len()), "{said:?}");
    let (end, before) = said.split_last().unwrap();
    assert!(end.starts_with("migrate: 5 of 5 shards in "), "{said:?}");
    for said in before {
        let (done, rest) = said.strip_prefix("migrate: ").unwrap().split_once(" of 5 shards, ").unwrap();
        assert!((1..=4).contains(&done.parse().unwrap()), "{said}");
        assert!(rest.ends_with(" s left") && rest.contains(" per second, "), "{said}");
    }
}

/// Each session sees the progress of a call that runs, and none of one that was cancelled or terminated.
#[test]
fn progress_is_shown_to_other_sessions() {
    const CREATE: &str = "CALL insta_ids.create_shards(0, 19, batch => 5)";
    let (cluster, mut client) = set_up("progress", 100);
    client
        .batch_execute(&format!(
            "CREATE ROLE provisioner LOGIN; GRANT CREATE ON DATABASE postgres TO provisioner;
             SELECT insta_ids.grant_provisioning('provisioner');
             CREATE ROLE other LOGIN; SELECT insta_ids.grant_provisioning('other'); {HOLD}"
        ))
        .unwrap();
    add(&mut client, "0001", WAITS_IN_12);
    let as_role = |role: &str| cluster.config().user(role).connect(NoTls).unwrap();
    let (mut own, mut other) = (as_role("provisioner"), as_role("other"));
    let in_12 = |client: Client, viewers: &mut [&mut Client], call: &str, progress: &str| {
        let running = Running::start(client, call);
        running.await_waiting(viewers[0]);
        for viewer in viewers {
            // It may have waited shortly before, as a batch does not wait long.
            within(Duration::from_secs(10), || texts(viewer, PROGRESS) == [progress]);
        }
        running
    };
    let create =
        |who: Client, viewers: &mut [&mut Client], progress: &str| in_12(who, viewers, CREATE, progress);
    let viewers = &mut [&mut client, &mut own, &mut other];

    let call = create(as_role("provisioner"), viewers, "create_shards 20 10 0 10");
    viewers[0].execute("SELECT pg_cancel_backend($1)", &[&call.pid]).unwrap();
    // Its session lives on.
    let (cancelled, ended) = call.session();
    assert_eq!(ended.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    for viewer in viewers.iter_mut() {
        // The error is told before the session is idle.
        within(Duration::from_secs(10), || texts(viewer, PROGRESS).is_empty());
    }
    cancelled.close().unwrap();
    let call = create(as_role("provisioner"), viewers, "create_shards 10 0 0 10");
    viewers[0].execute("SELECT pg_terminate_backend($1)", &[&call.pid]).unwrap();
    assert!(call.end().is_err());
    for viewer in viewers.iter_mut() {
        within(Duration::from_secs(10), || texts(viewer, PROGRESS).is_empty());
    }
    let call = create(as_role("provisioner"), viewers, "create_shards 10 0 0 10");
    viewers[0].batch_execute(RELEASE).unwrap();
    call.end().unwrap();
    for viewer in viewers.iter_mut() {
        assert_eq!(texts(viewer, PROGRESS), [""; 0]);
    }

    // Where it waits in a migration, it has made its batch so far the others'.
    add(viewers[0], "0002", WAITS_IN_12.replace("waited", "again").as_str());
    viewers[0].batch_execute(HOLD).unwrap();
    let migrate = "CALL insta_ids.migrate(lock_timeout => '0')";
    let call = in_12(as_role("provisioner"), viewers, migrate, "migrate 20 12 0 8");
    viewers[0].batch_execute(RELEASE).unwrap();
    call.end().unwrap();
    for viewer in viewers.iter_mut() {
        assert_eq!(texts(viewer, PROGRESS), [""; 0]);
    }
    check_complete(&mut client, 20);
}

/// Operators who make and migrate the same shards at once do each of them once.
#[test]
fn operators_that_work_at_once_do_each_shard_once() {
    let (cluster, mut client) = set_up("operators", 1000);
    add(&mut client, "0001", PHOTOS);
    add(&mut client, "0002", "ALTER TABLE photos ADD at timestamptz");
    for call in at_once(
        &cluster,
        &[
            "CALL insta_ids.create_shards(0, 99, batch => 7)",
            "CALL insta_ids.create_shards(0, 99, batch => 7)",
            "CALL insta_ids.create_shards(0, 99)",
            "CALL insta_ids.create_shards(30, 60, batch => 1)",
        ],
    ) {
        call.unwrap();
    }
    check_complete(&mut client, 100);
    // Each once: a second time fails.
    add(&mut client, "0003", "ALTER TABLE likes ADD at timestamptz");
    add(&mut client, "0004", "CREATE TABLE comments (id bigint PRIMARY KEY DEFAULT next_id())");
    for call in at_once(
        &cluster,
        &[
            "CALL insta_ids.migrate(batch => 7)",
            "CALL insta_ids.migrate(batch => 7)",
            "CALL insta_ids.migrate()",
            "CALL insta_ids.migrate(30, 60, batch => 1)",
            "CALL insta_ids.create_shards(80, 119, batch => 7)",
        ],
    ) {
        call.unwrap();
    }
    // What another session had in hand was left to it, and is done.
    check_complete(&mut client, 120);
    // By itself, for one of them.
    for shard in 120..125 {
        let made = at_once(&cluster, &[&*format!("SELECT insta_ids.create_shard({shard})"); 4]);
        let failed: Vec<_> = made.into_iter().filter_map(Result::err).collect();
        assert_eq!(failed.len(), 3);
        assert!(failed.iter().all(|error| error.code() == Some(&SqlState::DUPLICATE_OBJECT)), "{failed:?}");
    }
    check_complete(&mut client, 125);
}

/// The error proposes a batch, which works.
#[test]
fn a_batch_that_needs_too_many_locks_is_refused() {
    let small = [
        if major() >= 18 { "autovacuum_worker_slots = 3" } else { "" },
        // PostgreSQL 19 has no room for locks beside what it reserves by this setting. Too few for CREATE EXTENSION are no test.
        if major() >= 19 { "max_locks_per_transaction = 20" } else { "max_locks_per_transaction = 10" },
        "max_connections = 10",
        "autovacuum = off",
    ];
    let cluster = Cluster::with("few_locks", &small);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(1000)").unwrap();
    add(&mut client, "0001", "CREATE TABLE photos (id bigint DEFAULT next_id())");
    let batch_of = |client: &mut Client, call: &str| -> i64 {
        let error = refused(client, call);
        assert_eq!(error.code(), &SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{error}");
        assert_eq!(error.message(), "batch of 50 shards needs more locks than the server has");
        let hint = error.hint().unwrap().strip_prefix("Use a batch of at most ").unwrap();
        hint.split_once(", or raise \"max_locks_per_transaction\"").unwrap().0.parse().unwrap()
    };
    let batch = batch_of(&mut client, "CALL insta_ids.create_shards(0, 199)");
    println!("create_shards: {batch}");
    assert!((2..50).contains(&batch));
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard"), 0);
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^insta\\d'"), 0);
    client.batch_execute(&format!("CALL insta_ids.create_shards(0, 199, batch => {batch})")).unwrap();
    check_complete(&mut client, 200);

    add(
        &mut client,
        "0002",
        "CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id()); ALTER TABLE photos ADD a int",
    );
    let batch = batch_of(&mut client, "CALL insta_ids.migrate()");
    println!("migrate: {batch}");
    assert!((2..50).contains(&batch));
    let pending = "SELECT count(*) FROM insta_ids.migration_status WHERE name = '0002' AND state = 'pending'";
    assert_eq!(count(&mut client, pending), 200);
    client.batch_execute(&format!("CALL insta_ids.migrate(batch => {batch})")).unwrap();
    check_complete(&mut client, 200);
    // Where two are too many.
    let tables: Vec<String> = (0..70).map(|n| format!("CREATE TABLE t{n} (id bigint PRIMARY KEY)")).collect();
    add(&mut client, "0003", &tables.join(";"));
    assert_eq!(batch_of(&mut client, "CALL insta_ids.migrate(0, 49)"), 1);
    client.batch_execute("CALL insta_ids.migrate(0, 4, batch => 1)").unwrap();
    client.batch_execute("CALL insta_ids.create_shards(200, 204, batch => 1)").unwrap();
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM insta_ids.shards WHERE applied = 3 AND tables = 72"),
        10
    );
}

/// The number of shards and the ids are those of the layout.
#[test]
fn shards_have_the_numbers_and_ids_of_their_layout() {
    let cluster = Cluster::start("shard_layouts");
    let mut client = cluster.connect();
    for (layout, shards) in [("twitter", 1024), ("js53", 64), ("sonyflake", 65536), ("time:41 epoch:0", 1)] {
        client.batch_execute("DROP DATABASE IF EXISTS of_layout").unwrap();
        client.batch_execute("CREATE DATABASE of_layout").unwrap();
        let mut client = cluster.connect_to("of_layout");
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        let init = |shards| format!("SELECT insta_ids.init({shards}, layout => '{layout}')");
        assert_eq!(refused(&mut client, &init(shards + 1)).code(), &SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
        client.batch_execute(&init(shards)).unwrap();
        add(&mut client, "0001", PHOTOS);
        let last = shards - 1;
        let first = (last - 5).max(0);
        client.batch_execute(&format!("CALL insta_ids.create_shards({first}, {last})")).unwrap();
        client
            .batch_execute(&format!("INSERT INTO insta{last}.photos SELECT FROM generate_series(1, 50)"))
            .unwrap();
        client
            .batch_execute(&format!("INSERT INTO insta{last}.likes SELECT FROM generate_series(1, 50)"))
            .unwrap();
        let decoded = format!(
            "SELECT count(*) FROM (TABLE insta{last}.likes UNION ALL SELECT id, NULL FROM insta{last}.photos) r
             WHERE id_shard(id, '{layout}') = {last} AND abs(extract(epoch FROM now() - id_time(id, '{layout}'))) < 60"
        );
        assert_eq!(count(&mut client, &decoded), 100, "{layout}");
        let checks = format!(
            "SELECT count(*) FROM pg_constraint WHERE connamespace = 'insta{last}'::regnamespace AND contype = 'c'"
        );
        assert_eq!(count(&mut client, &checks), 2, "{layout}");
        if last > 0 {
            let wrong =
                format!("INSERT INTO insta{last}.photos VALUES (make_id(now(), {first}, 1, '{layout}'))");
            assert_eq!(refused(&mut client, &wrong).code(), &SqlState::CHECK_VIOLATION, "{layout}");
        }
    }
}
