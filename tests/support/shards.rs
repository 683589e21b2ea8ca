//! Shards that are made, and calls that run at once.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, Error};

use crate::{Cluster, count, texts, within};

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

/// The function that Instagram published, of a schema, with attributes such as a search path.
pub fn published_function(schema: &str, attributes: &str, sequence: &str, shard: i32) -> String {
    format!(
        "CREATE FUNCTION {schema}.next_id(OUT result bigint) LANGUAGE plpgsql {attributes} AS $$
         DECLARE our_epoch bigint := 1314220021721; seq_id bigint; now_millis bigint; shard_id int := {shard};
         BEGIN
             SELECT nextval('{sequence}') % 1024 INTO seq_id;
             SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
             result := (now_millis - our_epoch) << 23;
             result := result | (shard_id << 10);
             result := result | (seq_id);
         END $$"
    )
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
