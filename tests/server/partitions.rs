//! Partitions by time, among other sessions, on other servers, and by the schedulers of others.

use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;

use support::blocks;
use support::{Cluster, count, has, major, since, texts, within};

const DOCUMENT: &str = "docs/partitions.md";

const TABLE: &str = "
    CREATE SEQUENCE s;
    CREATE TABLE users (id int PRIMARY KEY);
    INSERT INTO users VALUES (7);
    CREATE TABLE t (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), user_id int REFERENCES users) PARTITION BY RANGE (id);
    CREATE TABLE likes (id bigint REFERENCES t);
    SELECT insta_ids.create_partitions('t', '1 day', now(), now() + interval '1 day', 'UTC')";

/// Who has written and read before the call does not hold it up, and who comes while its transaction is open is not
/// held up by it.
#[test]
fn creating_partitions_waits_for_nobody_and_nobody_waits_for_it() {
    const CALL: &str =
        "SELECT insta_ids.create_partitions('t', '1 day', now(), now() + interval '9 days')::text";
    const INSERT: &str = "INSERT INTO t (user_id) VALUES (7)";
    let cluster = Cluster::start("nobody_waits");
    cluster.connect().batch_execute(TABLE).unwrap();
    let [mut before, mut caller, mut after] = [(); 3].map(|()| {
        let mut client = cluster.connect();
        client.batch_execute("SET lock_timeout = '5s'; BEGIN").unwrap();
        client
    });
    before.batch_execute(INSERT).unwrap();
    assert_eq!(count(&mut before, "SELECT count(*) FROM t"), 1);
    assert_eq!(texts(&mut caller, CALL).len(), 8);
    let locks = "SELECT relation::regclass || ' ' || string_agg(mode, ' ' ORDER BY mode) FROM pg_locks
                 WHERE relation IN ('t'::regclass, 'users'::regclass, 'likes'::regclass) AND pid = pg_backend_pid()
                 GROUP BY relation ORDER BY 1";
    let held = [
        "likes AccessShareLock ShareRowExclusiveLock",
        "t AccessShareLock ShareUpdateExclusiveLock",
        "users AccessShareLock RowShareLock ShareRowExclusiveLock",
    ];
    assert_eq!(texts(&mut caller, locks), held);
    assert_eq!(count(&mut after, "SELECT count(*) FROM t"), 0);
    caller.batch_execute("COMMIT").unwrap();
    after.batch_execute(INSERT).unwrap();
    for mut client in [before, after] {
        client.batch_execute("COMMIT").unwrap();
    }
    assert_eq!(count(&mut caller, "SELECT count(*) FROM t"), 2);
}

/// Calls at once make each partition once, and drop it once; none of them fails.
#[test]
fn calls_at_once_make_each_partition_once() {
    const SESSIONS: usize = 4;
    let cluster = Cluster::start("calls_at_once");
    cluster.connect().batch_execute(TABLE).unwrap();
    let at_once = |call: &str| -> Vec<String> {
        let mut all: Vec<String> = thread::scope(|scope| {
            // All are connected before the first of them calls.
            let clients: Vec<Client> = (0..SESSIONS).map(|_| cluster.connect()).collect();
            let sessions: Vec<_> =
                clients.into_iter().map(|mut client| scope.spawn(move || texts(&mut client, call))).collect();
            sessions.into_iter().flat_map(|session| session.join().unwrap()).collect()
        });
        all.sort();
        all
    };
    let made = at_once("SELECT insta_ids.create_partitions('t', '1 hour', '2026-01-01', '2026-01-05')::text");
    assert_eq!((made.len(), made[0].as_str()), (96, "t_2026_01_01_0000z"));
    let dropped = at_once("SELECT insta_ids.drop_partitions('t', '2026-01-04 12:00')");
    assert_eq!((dropped.len(), dropped[83].as_str()), (84, "public.t_2026_01_04_1100z"));
    let mut once = [made, dropped].concat();
    once.dedup();
    assert_eq!(once.len(), 96 + 84);
}

/// A daily partition is the day of its name: every half hour of it has that date, in its zone, and there is no gap.
#[test]
fn days_are_local_days() {
    let cluster = Cluster::start("local_days");
    let mut client = cluster.connect();
    for zone in [
        "Europe/Berlin",
        "America/Sao_Paulo",
        "America/St_Johns",
        "Asia/Beirut",
        "Asia/Kathmandu",
        "Asia/Tehran",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Auckland",
    ] {
        client
            .batch_execute(&format!(
                "CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
                 SELECT insta_ids.create_partitions('t', '1 day', '2011-09-20', '2012-11-20', '{zone}')"
            ))
            .unwrap();
        let [days, half_hours, wrong, gaps] = {
            let row = client
                .query_one(
                    "WITH days AS (SELECT *, lead(lower(times)) OVER (ORDER BY times) AS next FROM insta_ids.partitions('t'))
                     SELECT count(DISTINCT partition), count(*),
                            count(*) FILTER (WHERE to_char(at AT TIME ZONE $1, '\"t\"_YYYY_MM_DD') <> partition::text),
                            count(*) FILTER (WHERE next <> upper(times))
                     FROM days, generate_series(lower(times), upper(times) - interval '1 ms', '30 min') at",
                    &[&zone],
                )
                .unwrap();
            [0, 1, 2, 3].map(|column| row.get::<_, i64>(column))
        };
        assert!(days >= 426 && half_hours >= days * 47, "{zone}: {days} days, {half_hours} half hours");
        assert_eq!((wrong, gaps), (0, 0), "{zone}");
        client.batch_execute("DROP TABLE t").unwrap();
    }
}

/// The owner of a database can dump what is remembered, and it is what it was where that is restored; in whatever
/// schema the extension is.
#[test]
fn a_dump_restores_what_is_remembered_of_partitions() {
    let cluster = Cluster::start("dump_partitions");
    let mut client = cluster.connect();
    for make in ["CREATE ROLE owner LOGIN", "CREATE DATABASE one OWNER owner", "CREATE DATABASE other"] {
        client.batch_execute(make).unwrap();
    }
    let mut client = cluster.connect_to("one");
    client
        .batch_execute(
            "CREATE SCHEMA \"Ids\";
             CREATE EXTENSION insta_ids SCHEMA \"Ids\";
             SET ROLE owner;
             CREATE SCHEMA \"Fotos\";
             CREATE TABLE \"Fotos\".t (id bigint) PARTITION BY RANGE (id);
             CREATE TABLE \"Fotos\".gone (id bigint) PARTITION BY RANGE (id);
             RESET ROLE;
             SELECT insta_ids.create_partitions('\"Fotos\".t', '1 day', '2026-01-01', '2026-01-03', 'Asia/Tokyo', 'twitter');
             SELECT insta_ids.create_partitions('\"Fotos\".gone', '1 day', '2026-01-01', '2026-01-03', 'UTC');
             DROP TABLE \"Fotos\".gone;
             CREATE TEMPORARY TABLE fleeting (id bigint) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('fleeting', '1 day', '2026-01-01', '2026-01-03', 'UTC')",
        )
        .unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.partitioned_table"), 2);
    cluster.restore("owner", "one", "other");
    let mut other = cluster.connect_to("other");
    other.batch_execute("SET timezone = 'UTC'").unwrap();
    let remembered =
        "SELECT concat_ws(' ', parent, timezone, layout) FROM insta_ids_internal.partitioned_table";
    let twitter = "time:41 shard:10 seq:12 epoch:1288834974657";
    assert_eq!(texts(&mut other, remembered), [format!("\"Fotos\".t Asia/Tokyo {twitter}")]);
    let call = "SELECT insta_ids.create_partitions('\"Fotos\".t', '1 day', '2026-01-01', '2026-01-04')::text";
    assert_eq!(texts(&mut other, call), ["\"Fotos\".t_2026_01_04"]);
}

/// A partitioned table has had an access method to hand on since PostgreSQL 17.
#[test]
fn partitions_get_the_access_method_of_their_table() {
    if !since(17) {
        return;
    }
    let cluster = Cluster::start("access_method");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ACCESS METHOD \"Heap\" TYPE TABLE HANDLER heap_tableam_handler;
             CREATE TABLE t (id bigint) PARTITION BY RANGE (id) USING \"Heap\";
             SELECT insta_ids.create_partitions('t', '1 day', '2026-01-01', '2026-01-02')",
        )
        .unwrap();
    let method =
        "SELECT amname::text FROM pg_am JOIN pg_class c ON relam = pg_am.oid WHERE relname LIKE 't\\_%'";
    assert_eq!(texts(&mut client, method), ["Heap"]);
}

/// A server with what docs/partitions.md has made before its recipes.
fn documented(name: &str, settings: &[&str]) -> (Cluster, Client) {
    let cluster = Cluster::with(name, settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    for example in blocks(DOCUMENT, "sql") {
        client.simple_query(&example).unwrap();
    }
    (cluster, client)
}

/// It waits for a transaction that has used the table, but nobody waits for it.
#[test]
fn detaching_concurrently_blocks_nobody() {
    const INSERT: &str = "INSERT INTO insta5.photos (user_id) VALUES (1)";
    const COUNT: &str = "SELECT count(*) FROM insta_ids.partitions('insta5.photos')";
    let (cluster, mut client) = documented("detaching", &[]);
    client
        .batch_execute(
            "DROP TABLE insta5.photos_rest;
             SELECT insta_ids.create_partitions('insta5.photos', '1 month', '2024-03-02', '2024-05-31');
             SET lock_timeout = '5s'",
        )
        .unwrap();
    let before = count(&mut client, COUNT);
    let mut writer = cluster.connect();
    writer.batch_execute(&format!("BEGIN; {INSERT}")).unwrap();
    let mut psql = cluster.psql(&[], &blocks(DOCUMENT, "psql")[0]);
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%CONCURRENTLY'";
    within(Duration::from_secs(30), || count(&mut client, waits) == 1);
    client.batch_execute(INSERT).unwrap();
    writer.batch_execute("COMMIT").unwrap();
    assert!(psql.wait().unwrap().success());
    assert_eq!(count(&mut client, COUNT), before - 3);
}

/// One whose detaching was broken off still has its bounds, but gets no rows; who detaches it may want to keep it.
#[test]
fn a_pending_detach_is_no_partition() {
    let cluster = Cluster::start("pending");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE TABLE t (id bigint) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-03-01', 'UTC')",
        )
        .unwrap();
    let mut reader = cluster.connect();
    reader.batch_execute("BEGIN; SELECT * FROM t").unwrap();
    client.batch_execute("SET lock_timeout = '100ms'").unwrap();
    client.batch_execute("ALTER TABLE t DETACH PARTITION t_2026_01 CONCURRENTLY").unwrap_err();
    reader.batch_execute("COMMIT").unwrap();
    for call in [
        "SELECT insta_ids.create_partitions('t', '1 month', '2026-01-01', '2026-03-01')::text",
        "SELECT insta_ids.create_partitions('t', '1 day', '2026-01-31', '2026-02-01')::text",
        "SELECT insta_ids.drop_partitions('t', '2026-03-01')",
    ] {
        let error = client.query(call, &[]).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{call}: {error}");
        assert_eq!(error.message(), "partition \"t_2026_01\" is being detached", "{call}");
        assert!(error.hint().unwrap().contains("FINALIZE"));
    }
    let later = "SELECT insta_ids.create_partitions('t', '1 month', '2026-02-01', '2026-04-01')::text";
    assert_eq!(texts(&mut client, later), ["t_2026_03"]);
    client.batch_execute("ALTER TABLE t DETACH PARTITION t_2026_01 FINALIZE").unwrap();
    let dropped = texts(&mut client, "SELECT insta_ids.drop_partitions('t', '2026-03-01')");
    assert_eq!(dropped, ["public.t_2026_02"]);
    assert_eq!(count(&mut client, "SELECT count(*) FROM t_2026_01"), 0);
}

/// Intervals can be infinite since PostgreSQL 17.
#[test]
fn no_partition_is_infinite() {
    if !since(17) {
        return;
    }
    let cluster = Cluster::start("infinite");
    let mut client = cluster.connect();
    client.batch_execute("CREATE TABLE t (id bigint) PARTITION BY RANGE (id)").unwrap();
    for every in ["infinity", "-infinity"] {
        let call = format!("SELECT insta_ids.create_partitions('t', '{every}', '2026-01-01', '2026-01-02')");
        let error = client.batch_execute(&call).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(error.message(), format!("interval \"{every}\" is not a length of partitions"));
    }
}

/// The job runs as a role that was granted what docs/partitions.md says, makes what is missing, and fails not when
/// nothing is.
#[test]
fn a_job_of_pg_cron_makes_partitions() {
    const COUNT: &str = "SELECT count(*) FROM insta_ids.partitions('insta5.photos')";
    if !has("pg_cron") {
        return;
    }
    // Seconds can be given since pg_cron 1.5.
    let schedule = if major() == 15 { "* * * * *" } else { "2 seconds" };
    let libraries = "shared_preload_libraries = 'insta_ids,pg_cron'";
    let settings = [libraries, "cron.use_background_workers = on", "cron.database_name = 'postgres'"];
    let (_cluster, mut client) = documented("pg_cron", &settings);
    client
        .batch_execute("SELECT insta_ids.drop_partitions('insta5.photos', now() + interval '1 year')")
        .unwrap();
    assert_eq!(count(&mut client, COUNT), 1, "the default partition is left");
    let recipe = &blocks(DOCUMENT, "sql pg_cron")[0];
    assert!(recipe.contains("'0 3 * * *'"));
    client.batch_execute(&recipe.replace("0 3 * * *", schedule)).unwrap();
    let runs = "SELECT concat_ws(' ', username, status, return_message) FROM cron.job_run_details
                WHERE status NOT IN ('starting', 'running') ORDER BY runid LIMIT 2";
    within(Duration::from_secs(150), || texts(&mut client, runs).len() == 2);
    let runs = texts(&mut client, runs);
    assert!(runs[0].starts_with("photographer succeeded"), "{runs:?}");
    // Of this month and three more, or of one more if a month ends meanwhile where the partitions begin.
    let made = if runs[0].ends_with('5') { 5 } else { 4 };
    assert_eq!(runs[0].replace(&made.to_string(), "0"), runs[1]);
    assert_eq!(count(&mut client, COUNT), 1 + made);
}

/// What docs/partitions.md says of `pg_partman`.
#[test]
fn pg_partman_manages_partitions_of_ids() {
    const COUNT: &str = "SELECT count(*) FROM insta_ids.partitions('insta5.likes')";
    const REST: &str = "SELECT count(*) FROM insta5.likes_default";
    const INSERT: &str = "INSERT INTO insta5.likes SELECT FROM generate_series(1, 100)";
    const MAINTAIN: &str = "CALL partman.run_maintenance_proc()";
    if !has("pg_partman") {
        return;
    }
    let (_cluster, mut client) = documented("pg_partman", &[]);
    let version = if major() == 15 { 4 } else { 5 };
    let recipe = &blocks(DOCUMENT, &format!("sql pg_partman {version}"))[0];
    client.batch_execute(recipe).unwrap();
    client.batch_execute(INSERT).unwrap();
    assert_eq!(count(&mut client, REST), 0);
    // This week's, the default partition, and four made beforehand.
    client.batch_execute(MAINTAIN).unwrap();
    assert_eq!(count(&mut client, COUNT), 6);
    let weeks = "SELECT count(*) FROM insta_ids.partitions('insta5.likes')
                 WHERE to_char(lower(times) AT TIME ZONE 'UTC', 'DY HH24:MI:SS.MS') = 'WED 21:07:01.721'
                     AND upper(times) - lower(times) = interval '168 hours'";
    assert_eq!(count(&mut client, weeks), 5);
    let plan = "EXPLAIN SELECT * FROM insta5.likes WHERE id_between(id, now(), now() + interval '1 ms')";
    let plan = texts(&mut client, plan);
    assert!(plan.iter().any(|line| line.ends_with("Subplans Removed: 5")), "{plan:?}");
    let error = client
        .batch_execute(
            "SELECT insta_ids.create_partitions('insta5.likes', '1 month', now(), now() + interval '1 day')",
        )
        .unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_OBJECT_DEFINITION));

    // Not without a start; and a table that was idle for longer than what was made beforehand lasts.
    for start in ["", ", p_start_partition => id_min(now() - interval '20 weeks')::text"] {
        client
            .batch_execute(
                "DROP TABLE insta5.likes; DELETE FROM partman.part_config; DROP TABLE partman.template_insta5_likes",
            )
            .unwrap();
        let (definition, _) = recipe[recipe.find("CREATE TABLE").unwrap()..].split_once(",\n").unwrap();
        client.batch_execute(&format!("{definition}{start})")).unwrap();
        let made = count(&mut client, COUNT);
        client.batch_execute(INSERT).unwrap();
        client.batch_execute(MAINTAIN).unwrap();
        assert_eq!(count(&mut client, REST), 100, "{start}");
        assert_eq!(count(&mut client, COUNT), made, "{start}");
    }
}
