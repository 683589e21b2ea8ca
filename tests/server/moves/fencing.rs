//! The fence of a shard, which no writer gets past.

use super::FENCED;
use postgres::NoTls;
use postgres::error::SqlState;
use std::thread;
use std::time::Duration;
use support::pair::{MIGRATION, Move, Pair, STEPS, before};
use support::{Cluster, count, refused, texts, within};

/// A wait of more than two seconds names the session that is waited for.
#[test]
fn a_fence_says_for_whom_it_waits() {
    let pair = Pair::start("named");
    let mut holder = pair.a.connect();
    holder
        .batch_execute("SET application_name = 'batch job'; BEGIN; UPDATE insta2.likes SET photo = NULL")
        .unwrap();
    let pid = count(&mut holder, "SELECT pg_backend_pid()::bigint");
    let (send, heard) = std::sync::mpsc::channel();
    let mut config = pair.a.config();
    config.notice_callback(move |notice| drop(send.send(notice.message().to_owned())));
    let mut client = config.connect(NoTls).unwrap();
    let error = refused(&mut client, "SELECT insta_ids.fence(2, lock_timeout => '4 s')");
    let named = format!(
        "insta2.likes is in use by process {pid} (role postgres, application 'batch job', transaction of 00:00:0"
    );
    assert!(error.detail().unwrap().starts_with(&named), "{error:?}");
    drop((client, config));
    assert_eq!(heard.iter().filter(|message| message.starts_with(&named)).count(), 1);
}

/// Sessions that are past the check when the fence comes are waited for: none mints or writes after the mark.
#[test]
fn no_session_mints_or_writes_after_the_mark() {
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
        let detail = error.detail().unwrap();
        assert!(
            detail.contains("is in use by process ") && detail.contains(" (role postgres, "),
            "{error:?}"
        );
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

/// Autovacuum that works on a table for long ends its work there, and writers do not wait for that.
#[test]
fn autovacuum_gives_way_to_a_fence() {
    let cluster = Cluster::with("autovacuum", &["autovacuum_naptime = 1s"]);
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

/// Rows of a subscription do not pass a fence. They wait at the other server.
#[test]
fn a_subscription_waits_at_a_fence() {
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

/// A fence waits for a session that makes a table in the shard, and then covers that table too.
#[test]
fn a_table_made_meanwhile_is_fenced() {
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

/// A fence stops sessions that set `session_replication_role`. An object that was taken out of a shard is found.
#[test]
fn session_replication_role_does_not_get_past_a_fence() {
    let pair = Pair::start("around");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("SELECT insta_ids.add_migration('0002', 'CREATE SEQUENCE plain')").unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    a.batch_execute(
        "SET session_replication_role = replica; ALTER SEQUENCE insta2.plain SET SCHEMA public;
         RESET session_replication_role",
    )
    .unwrap();
    let changed = moving.step("fence").unwrap_err();
    assert_eq!(
        changed.as_db_error().unwrap().message(),
        "tables or sequences of shards from 2 to 2 have changed since the move began"
    );
    moving.abort().unwrap();
    a.batch_execute("ALTER SEQUENCE plain SET SCHEMA insta2").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("drained"));
    for (client, write) in [
        (&mut a, "SET session_replication_role = replica; INSERT INTO insta2.photos (id) VALUES (2 << 10)"),
        (&mut b, "INSERT INTO insta2.photos DEFAULT VALUES"),
    ] {
        assert_eq!(refused(client, write).code(), FENCED);
    }
    moving.steps(&STEPS[6..]);
    let late =
        "SET session_replication_role = replica; INSERT INTO insta2__moved.photos (id) VALUES (2 << 10)";
    assert_eq!(refused(&mut a, late).code(), FENCED);
    // A cancellation that was lost is the same when it is asked for again.
    let mut moving = Move::of(&pair, 3, 3);
    moving.steps(before("copied"));
    let id = texts(&mut a, "SELECT id::text FROM insta_ids_internal.move").remove(0);
    let cancel = format!("SELECT insta_ids_internal.move_cancel('insta_ids_3_3', '{id}')::text");
    let first = texts(&mut b, &cancel);
    assert_eq!(texts(&mut b, &cancel), first);
    a.batch_execute(&format!("SELECT insta_ids_internal.move_withdraw('insta_ids_3_3', '{}')", first[0]))
        .unwrap();
    // Foreign tables have no lock of this kind, and can be fenced nevertheless.
    a.batch_execute(
        "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none;
         CREATE FOREIGN TABLE insta0.remote (id bigint) SERVER none; SELECT insta_ids.fence(0), insta_ids.unfence(0)",
    )
    .unwrap();
}

/// A trigger that only has the name of the fence's, or is of another shard, is replaced.
#[test]
fn a_trigger_of_the_name_alone_is_no_fence() {
    let cluster = Cluster::start("namesake");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(8)").unwrap();
    client.batch_execute(MIGRATION).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 2)").unwrap();
    client
        .batch_execute(
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER insta_ids_fence BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON insta0.photos
                 FOR EACH STATEMENT EXECUTE FUNCTION nothing('0');
             CREATE TRIGGER insta_ids_fence BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON insta0.likes
                 FOR EACH STATEMENT WHEN (current_user = 'nobody') EXECUTE FUNCTION insta_ids_internal.guard_write('0');
             SELECT insta_ids.fence(1), insta_ids.unfence(1);
             ALTER TABLE insta1.likes DROP CONSTRAINT likes_pkey;
             ALTER TABLE insta1.likes RENAME TO moved;
             ALTER TABLE insta1.moved SET SCHEMA insta0;
             SELECT insta_ids.fence(0)",
        )
        .unwrap();
    for table in ["photos", "likes", "moved"] {
        let error = refused(&mut client, &format!("DELETE FROM insta0.{table}"));
        assert_eq!(error.message(), "shard 0 is fenced", "{table}");
    }
    client.batch_execute("SELECT insta_ids.unfence(0), insta_ids.fence(1)").unwrap();
    client.batch_execute("DELETE FROM insta0.moved; DELETE FROM insta0.photos").unwrap();
}
