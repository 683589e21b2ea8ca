//! Promise: a shard is there entirely or not at all, and is like all the others; whoever else makes shards, whatever
//! they are called, and wherever the extension is.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, Error, NoTls, SimpleQueryMessage};

use crate::chance::Chance;
use crate::cluster::{Cluster, PRELOAD, count, duplicates, ids, refused, texts, within};

/// A call that runs while the test goes on.
pub struct Running {
    /// The session that runs it.
    pub pid: i32,
    ends: JoinHandle<(Client, Result<(), Error>)>,
}

impl Running {
    pub fn start(mut client: Client, call: &str) -> Self {
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let call = call.to_owned();
        let ends = thread::spawn(move || {
            let ended = client.batch_execute(&call);
            (client, ended)
        });
        Self { pid, ends }
    }

    /// Waits until it waits for a lock.
    pub fn await_waiting(&self, client: &mut Client) {
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {} AND NOT granted", self.pid);
        within(Duration::from_secs(30), || count(client, &waits) == 1 || self.ends.is_finished());
        assert!(!self.ends.is_finished(), "it ended, and did not wait");
    }

    pub fn has_ended(&self) -> bool {
        self.ends.is_finished()
    }

    /// How it ended.
    pub fn end(self) -> Result<(), Error> {
        self.session().1
    }

    /// The session, and how it ended.
    pub fn session(self) -> (Client, Result<(), Error>) {
        self.ends.join().unwrap()
    }
}

/// Calls in sessions of their own, at once.
pub fn at_once(cluster: &Cluster, calls: &[&str]) -> Vec<Result<(), Error>> {
    // All are connected before the first of them calls.
    let clients: Vec<Client> = calls.iter().map(|_| cluster.connect()).collect();
    let running: Vec<Running> =
        clients.into_iter().zip(calls).map(|(client, call)| Running::start(client, call)).collect();
    running.into_iter().map(Running::end).collect()
}

/// A server of so many shards, of which none is made yet.
pub fn set_up(name: &str, shards: i32) -> (Cluster, Client) {
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client.batch_execute(&format!("SELECT insta_ids.init({shards})")).unwrap();
    (cluster, client)
}

/// Records a migration.
pub fn add(client: &mut Client, name: &str, ddl: &str) {
    client.execute("SELECT insta_ids.add_migration($1, $2)", &[&name, &ddl]).unwrap();
}

/// Tables of ids, by both forms of `next_id`.
pub const PHOTOS: &str = "
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text);
    CREATE SEQUENCE likes_id_seq;
    CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id('likes_id_seq'), photo bigint REFERENCES photos);
    CREATE INDEX ON likes (photo)";

/// A migration that waits in shard 12 as long as another session holds [`HOLD`].
pub const WAITS_IN_12: &str = "SELECT CASE current_schema WHEN 'insta12' THEN pg_advisory_xact_lock_shared(12) END; CREATE TABLE waited ()";
pub const HOLD: &str = "SELECT pg_advisory_lock(12), pg_advisory_lock(20)";
pub const RELEASE: &str = "SELECT pg_advisory_unlock_all()";

/// Each way in which shards differ, of what is in their schemas: one, if they are all the same.
pub const KINDS: &str = "
    SELECT count(*) || ' ' || objects FROM (
        SELECT s.shard, string_agg(replace(o.line, s.schema || '.', ''), E'\\n' ORDER BY o.line) AS objects
        FROM insta_ids.shards s
        LEFT JOIN pg_namespace n ON n.nspname = s.schema
        LEFT JOIN LATERAL (
            SELECT format('%s %s', relkind, relname) FROM pg_class WHERE relnamespace = n.oid
            UNION ALL
            SELECT replace(pg_get_functiondef(oid), 'next_id(' || s.shard, 'next_id(N') FROM pg_proc WHERE pronamespace = n.oid
            UNION ALL
            SELECT format('%s %s %s', conname, conrelid::regclass, replace(pg_get_constraintdef(oid), '= ' || s.shard || ')', '= N)'))
            FROM pg_constraint WHERE connamespace = n.oid
            UNION ALL
            SELECT format('%s %s', adrelid::regclass, pg_get_expr(adbin, adrelid))
            FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid WHERE c.relnamespace = n.oid
            UNION ALL
            SELECT m.name || ' ' || m.state FROM insta_ids.migration_status m WHERE m.shard = s.shard
        ) o (line) ON true
        GROUP BY s.shard
    ) s GROUP BY objects ORDER BY 1";

/// That there are so many shards, all of them the same, with all migrations.
pub fn check_complete(client: &mut Client, shards: usize) {
    let kinds = texts(client, KINDS);
    assert_eq!(kinds.len(), 1, "{kinds:#?}");
    let number = format!("{shards} ");
    assert!(kinds[0].starts_with(&number), "{}", kinds[0]);
    assert_eq!(count(client, "SELECT count(*) FROM insta_ids.migration_status WHERE state <> 'applied'"), 0);
    let half_made = "
        SELECT coalesce(n.nspname, s.schema)::text
        FROM (SELECT nspname FROM pg_namespace WHERE nspname ~ '^insta\\d+$') n
        FULL JOIN insta_ids.shards s ON s.schema = n.nspname
        WHERE s.schema IS NULL OR n.nspname IS NULL";
    assert_eq!(texts(client, half_made), [""; 0]);
}

const PROGRESS: &str =
    "SELECT concat_ws(' ', command, total, done, failed, remaining) FROM insta_ids.progress";

#[test]
fn notices_say_how_far_it_is() {
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

/// Whoever asks; and what was ended is not shown as if it ran.
#[test]
fn others_see_how_far_it_is() {
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

#[test]
fn operators_at_once() {
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

/// A batch is refused before the server runs out of locks, and the one that is proposed works.
#[test]
fn too_few_locks() {
    let small = [
        PRELOAD,
        #[cfg(feature = "pg18")]
        "autovacuum_worker_slots = 3",
        "max_locks_per_transaction = 10",
        "max_connections = 10",
        "autovacuum = off",
    ];
    let cluster = Cluster::bare("few_locks", &small);
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

/// Where the name of a schema is more than a word.
#[test]
fn hostile_names() {
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

/// A session, or a role, that reads backslashes in strings as it was before PostgreSQL 9.1.
#[test]
fn backslashes_of_old() {
    let cluster = Cluster::bare("backslashes", &[PRELOAD]);
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
        config.dbname(database).options("-c client_min_messages=warning");
        config.notice_callback(move |notice| heard.lock().unwrap().push(notice.message().to_owned()));
        let said = said_in_all_calls(&mut config.connect(NoTls).unwrap());
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
        format!(
            "CREATE SEQUENCE {0}.table_id_seq;
             CREATE FUNCTION {0}.next_id(OUT result bigint) LANGUAGE plpgsql SET search_path = {0}, pg_catalog AS $$
             DECLARE our_epoch bigint := 1314220021721; seq_id bigint; now_millis bigint; shard_id int := 7;
             BEGIN
                 SELECT nextval('table_id_seq') % 1024 INTO seq_id;
                 SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
                 result := (now_millis - our_epoch) << 23;
                 result := result | (shard_id << 10);
                 result := result | (seq_id);
             END $$",
            schema(7)
        ),
        format!("CREATE TABLE {0}.photos (id bigint PRIMARY KEY DEFAULT {0}.next_id())", schema(7)),
        format!("SELECT insta_ids.adopt($${}$$, 7)", schema(7)),
        format!("ALTER FUNCTION {0}.next_id() SET search_path = pg_catalog, {0}", schema(7)),
        format!("SELECT insta_ids.adopt($${}$$, 7)", schema(7)),
        format!("INSERT INTO {}.photos DEFAULT VALUES", schema(7)),
        format!("SELECT insta_ids.release($${}$$)", schema(7)),
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

/// The number of shards, and the ids, are the layout's.
#[test]
fn in_other_layouts() {
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

/// A copy of a table makes the ids of where it was copied from. Into what was made here, they do not get.
#[test]
fn what_is_copied_is_refused() {
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

/// A key's shard is its remainder, that of a negative key too; any text and uuid has one.
#[test]
fn keys_have_shards() {
    let (_cluster, mut client) = set_up("keys", 2000);
    let mut chance = Chance::from_seed(1);
    let (mut keys, mut numbers) = (
        vec![i64::MIN, i64::MIN, i64::MAX, i64::MAX, 0, -1, -1],
        vec![1, i32::MAX, 1, i32::MAX, 7, 1, i32::MAX],
    );
    for _ in 0..20_000 {
        let key = chance.next().cast_signed() >> chance.below(64);
        let number = i32::try_from(chance.below(1 << 31) >> chance.below(31)).unwrap().max(1);
        keys.push(key);
        numbers.push(number);
    }
    let rows = client
        .query(
            "SELECT insta_ids.shard_of(key, n), insta_ids.shard_of(key),
                    insta_ids.shard_of(key::text, n) = insta_ids.shard_of(hashtextextended(key::text, 0), n),
                    insta_ids.shard_of(md5(key::text)::uuid, n) = insta_ids.shard_of(uuid_hash_extended(md5(key::text)::uuid, 0), n)
             FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY k (key, n, place) ORDER BY place",
            &[&keys, &numbers],
        )
        .unwrap();
    for ((row, &key), &number) in rows.iter().zip(&keys).zip(&numbers) {
        let of = |shards: i32| i32::try_from(key.rem_euclid(shards.into())).unwrap();
        assert_eq!((row.get(0), row.get(1)), (of(number), of(2000)), "{key} of {number}");
        assert!(row.get::<_, bool>(2) && row.get::<_, bool>(3), "{key}");
    }
    assert_eq!(rows.len(), keys.len());
    are_indexed(&mut client);
}

/// With the number of shards in the call, they can be indexed and partitioned by.
fn are_indexed(client: &mut Client) {
    client
        .batch_execute(
            "CREATE TABLE users (id bigint, name text COLLATE \"POSIX\", code uuid);
             INSERT INTO users SELECT n, n::text, md5(n::text)::uuid FROM generate_series(1, 20000) n;
             CREATE INDEX ON users (insta_ids.shard_of(id, 2000));
             CREATE INDEX ON users (insta_ids.shard_of(name, 2000));
             CREATE INDEX ON users (insta_ids.shard_of(code, 2000));
             CREATE TABLE parts (id bigint) PARTITION BY LIST (insta_ids.shard_of(id, 4));
             CREATE TABLE part PARTITION OF parts FOR VALUES IN (1, 2);
             INSERT INTO parts VALUES (5), (-2);
             ANALYZE users",
        )
        .unwrap();
    for key in ["id", "name", "code"] {
        let plan = texts(
            client,
            &format!("EXPLAIN SELECT * FROM users WHERE insta_ids.shard_of({key}, 2000) = 1341"),
        );
        assert!(plan.iter().any(|line| line.contains("Index Scan on users_shard_of_idx")), "{plan:?}");
    }
    // That of one argument may change with the configuration of another database.
    let error = refused(client, "CREATE INDEX ON users (insta_ids.shard_of(id))");
    assert_eq!(error.code(), &SqlState::INVALID_OBJECT_DEFINITION);
}

/// A dump has shards and migrations, applied or not, and what it is restored to goes on from there. An owner of the
/// database can make it.
#[test]
fn dump_and_restore() {
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
    let take_over = "SELECT insta_ids.add_migration(name, ddl, transactional, check_ids) FROM insta_ids_internal.migration";
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

/// A dump of a shard's schema alone has its tables, which need the extension. That it is a shard is not in it.
#[test]
fn a_dump_of_one_schema() {
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

/// What may be done is what was granted.
#[test]
fn privileges() {
    let cluster = Cluster::bare("provisioning", &[PRELOAD]);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE \"Provisioner 1\" LOGIN; CREATE ROLE nobody LOGIN;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO nobody;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO nobody;
             CREATE EXTENSION insta_ids;
             SELECT insta_ids.grant_provisioning('\"Provisioner 1\"')",
        )
        .unwrap();
    let mut provisioner = cluster.config().user("Provisioner 1").connect(NoTls).unwrap();
    let mut nobody = cluster.config().user("nobody").connect(NoTls).unwrap();
    provisioner.batch_execute("SELECT insta_ids.init(100)").unwrap();
    // Schemas are made by who may make them in the database.
    for call in ["SELECT insta_ids.create_shard(5)", "CALL insta_ids.create_shards(0, 9)"] {
        let error = refused(&mut provisioner, call);
        assert_eq!(error.message(), "permission denied for database postgres");
    }
    client.batch_execute("GRANT CREATE ON DATABASE postgres TO \"Provisioner 1\"").unwrap();
    provisioner.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    provisioner.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
    add(&mut provisioner, "0001", PHOTOS);
    add(&mut provisioner, "0001", &PHOTOS.replace("caption", "title"));
    provisioner.batch_execute("CALL insta_ids.migrate()").unwrap();
    let script = "SELECT insta_ids.add_migration('0002', 'CREATE INDEX CONCURRENTLY ON photos (title)', transactional => false)";
    provisioner.batch_execute(script).unwrap();
    for line in texts(&mut provisioner, "SELECT insta_ids.migration_script('0002')") {
        provisioner.batch_execute(&line).unwrap();
    }
    provisioner
        .batch_execute("SELECT insta_ids.drop_shard(9); INSERT INTO insta5.photos DEFAULT VALUES")
        .unwrap();
    check_complete(&mut provisioner, 9);
    assert_eq!(texts(&mut provisioner, PROGRESS), [""; 0]);
    let owners = "
        SELECT DISTINCT owner::regrole::text FROM (
            SELECT nspowner FROM pg_namespace WHERE nspname ~ '^insta\\d'
            UNION ALL SELECT relowner FROM pg_class WHERE relnamespace::regnamespace::text ~ '^insta\\d'
            UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^insta\\d'
        ) o (owner)";
    assert_eq!(texts(&mut provisioner, owners), ["\"Provisioner 1\""]);

    // Nobody else can name what the functions are made of, and some functions are for superusers.
    let internal = "SELECT has_schema_privilege('insta_ids_internal', 'USAGE')::text";
    assert_eq!(texts(&mut nobody, internal), ["false"]);
    let withheld = "SELECT oid::regprocedure::text FROM pg_proc
                    WHERE pronamespace = 'insta_ids'::regnamespace AND NOT has_function_privilege(oid, 'EXECUTE') ORDER BY 1";
    assert_eq!(
        texts(&mut nobody, withheld),
        [
            "insta_ids.acquire_writer_slot(timestamp with time zone)",
            "insta_ids.advance_clock(timestamp with time zone)",
            "insta_ids.create_ticket_server(text,integer,integer,integer)",
            "insta_ids.grant_provisioning(regrole)",
            "insta_ids.install_plproxy(text)",
            "insta_ids.move_abort(integer,integer,name)",
            "insta_ids.move_shards(integer,integer,name,text,text,bigint,interval,boolean)",
            "insta_ids.reset_clock()",
            "insta_ids.stat_reset()",
        ]
    );
    assert_eq!(texts(&mut provisioner, withheld), texts(&mut nobody, withheld));
    let places = "SELECT insta_ids.schema_of(insta_ids.shard_of(205))::text || insta_ids.shard_of('a') || insta_ids.shard_of(md5('a')::uuid)";
    assert_eq!(texts(&mut nobody, places), texts(&mut client, places));
    for call in [
        "SELECT insta_ids.init(5)",
        "SELECT insta_ids.create_shard(50)",
        "CALL insta_ids.create_shards(50, 51)",
        "SELECT insta_ids.drop_shard(5, force => true)",
        "SELECT insta_ids.add_migration('0003', 'SELECT 1')",
        "CALL insta_ids.migrate()",
        "SELECT insta_ids.migration_script('0002')",
        "SELECT insta_ids_internal.start_migration('0002', 5, '')",
        "SELECT insta_ids_internal.finish_migration('0002', 5, '')",
        "SELECT insta_ids.grant_provisioning('nobody')",
        "SELECT insta_ids.add_node('a', 'host=a dbname=a')",
        "SELECT insta_ids.drop_node('a')",
        "SELECT insta_ids.assign(0, 1, 'a')",
        "SELECT insta_ids.apply_map(insta_ids.shard_map())",
        "SELECT insta_ids.fence(5)",
        "SELECT insta_ids.unfence(5)",
        "SELECT insta_ids.check()",
        "CALL insta_ids.check_rows()",
        "SELECT insta_ids.check_fleet()",
        "SELECT insta_ids.adopt('public', 50)",
        "SELECT insta_ids.release('insta5')",
        "SELECT insta_ids.create_partitions('insta5.photos', '1 day', now(), now())",
        "SELECT insta_ids.drop_partitions('insta5.photos', now())",
        "SELECT insta_ids.release_writer_slot('1/2')",
        "SELECT insta_ids.export_pgdog('a')",
        "SELECT insta_ids_internal.make_shard(50, '')",
        "SELECT insta_ids_internal.apply_migrations(5, '', false)",
        "CALL insta_ids_internal.commit_batch('migrate', 5, 0, 0)",
        "TABLE insta_ids.shards",
        "TABLE insta_ids_internal.shard",
        "TABLE insta_ids.migration_status",
        "TABLE insta_ids_internal.migration",
        "TABLE insta_ids_internal.shard_migration",
        "TABLE insta_ids.progress",
        "TABLE insta_ids_internal.work",
        "INSERT INTO insta_ids_internal.config VALUES (1, 'a', 'instagram')",
        "DELETE FROM insta_ids_internal.config",
    ] {
        assert_eq!(refused(&mut nobody, call).code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{call}");
    }
    let error = refused(&mut provisioner, "SELECT insta_ids.grant_provisioning('nobody')");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
}

/// Who may not use a shard's schema makes nothing elsewhere instead, though that is next in the path.
#[test]
fn no_shard_of_others() {
    let (cluster, mut client) = set_up("of_others", 100);
    client
        .batch_execute(
            "CREATE ROLE provisioner LOGIN; GRANT CREATE ON DATABASE postgres TO provisioner;
             GRANT CREATE ON SCHEMA public TO provisioner; SELECT insta_ids.grant_provisioning('provisioner');
             SELECT insta_ids.create_shard(0), insta_ids.create_shard(1); GRANT USAGE ON SCHEMA insta1 TO provisioner",
        )
        .unwrap();
    let mut provisioner = cluster.config().user("provisioner").connect(NoTls).unwrap();
    provisioner.batch_execute("SELECT insta_ids.create_shard(2)").unwrap();
    add(&mut provisioner, "0001", PHOTOS);
    let error = refused(&mut provisioner, "CALL insta_ids.migrate()");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(error.message(), "2 of 3 shards could not be migrated");
    let states = "SELECT concat_ws(' ', shard, state, sqlstate, message) FROM insta_ids.migration_status ORDER BY shard";
    let expected = [
        "0 failed 42501 must be owner of schema insta0",
        "1 failed 42501 must be owner of schema insta1",
        "2 applied",
    ];
    assert_eq!(texts(&mut client, states), expected);
    let made = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname IN ('photos', 'likes', 'likes_id_seq')";
    assert_eq!(texts(&mut client, made), ["insta2"; 3]);
    // Nor is what is theirs dropped.
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(0)");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(0, force => true)");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    // Rows that are hidden from who asks are rows.
    provisioner
        .batch_execute(
            "INSERT INTO insta2.photos DEFAULT VALUES;
             ALTER TABLE insta2.photos ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
        .unwrap();
    assert_eq!(count(&mut provisioner, "SELECT count(*) FROM insta2.photos"), 0);
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(2)");
    assert_eq!(error.message(), "shard 2 is not empty");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta2.photos"), 1);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard"), 3);
}

/// What another session has dropped, made anew and filled meanwhile is a shard with rows.
#[test]
fn dropped_and_made_anew_meanwhile() {
    let (cluster, mut client) = set_up("anew", 10);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("SELECT insta_ids.create_shard(5); SELECT insta_ids.fence(5)").unwrap();
    client
        .batch_execute(
            "BEGIN; SELECT insta_ids.drop_shard(5); SELECT insta_ids.create_shard(5);
             INSERT INTO insta5.photos DEFAULT VALUES",
        )
        .unwrap();
    let dropping = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    dropping.await_waiting(&mut cluster.connect());
    client.batch_execute("COMMIT").unwrap();
    let error = dropping.end().unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "shard 5 is not empty");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.photos"), 1);
}

/// Nobody inserts between the look and the drop, also not into a table that was made meanwhile.
#[test]
fn dropped_only_if_empty() {
    let (cluster, mut client) = set_up("drop_shard", 10);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    let mut writer = cluster.connect();
    writer.batch_execute("BEGIN; INSERT INTO insta5.likes DEFAULT VALUES").unwrap();
    let drop = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    drop.await_waiting(&mut client);
    writer.batch_execute("COMMIT").unwrap();
    let error = drop.end().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error}");
    check_complete(&mut client, 1);
    let minted = ids(
        &mut client,
        "SELECT id FROM insta5.likes UNION ALL SELECT insta5.next_id('insta5.likes_id_seq')",
    );
    assert_eq!(duplicates([&minted]), 0);
    writer.batch_execute("TRUNCATE insta5.likes; BEGIN; CREATE TABLE insta5.more AS SELECT 1 AS a").unwrap();
    let drop = Running::start(cluster.connect(), "SELECT insta_ids.drop_shard(5)");
    drop.await_waiting(&mut client);
    writer.batch_execute("COMMIT").unwrap();
    let error = drop.end().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error}");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta5.more"), 1);
}
