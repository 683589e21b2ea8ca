//! A schema of 29 tables goes to the shards and back by what `distribute_plan` returns, while clients write and the server is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, NoTls};
use support::{Chance, Cluster, count, texts};

use crate::moves::FENCED;

const SHARDS: i32 = 32;

/// A server with the application's tables, which belong to `app`, and no shard.
pub(super) fn application(name: &str) -> Cluster {
    let cluster = Cluster::start(name);
    cluster
        .connect()
        .batch_execute(&format!(
            "CREATE ROLE app LOGIN; CREATE ROLE reader; GRANT CREATE, TEMPORARY ON DATABASE postgres TO app;
             CREATE SCHEMA app AUTHORIZATION app;
             SELECT insta_ids.init({SHARDS}), insta_ids.grant_provisioning('app')"
        ))
        .unwrap();
    let mut app = session(&cluster);
    app.batch_execute(include_str!("application.sql")).unwrap();
    app.batch_execute(
        "GRANT SELECT ON users TO reader; GRANT SELECT (id, caption), INSERT ON photos TO reader",
    )
    .unwrap();
    cluster
}

/// A session of the owner of the tables, as soon as the server takes one.
pub(super) fn session(cluster: &Cluster) -> Client {
    loop {
        cluster.reconnect();
        // The server can be killed again meanwhile.
        if let Ok(client) = cluster.config().user("app").connect(NoTls) {
            return client;
        }
    }
}

/// The statements of a plan with their kinds.
pub(super) fn plan(app: &mut Client) -> Vec<(String, String)> {
    let rows = app
        .query("SELECT action, statement, why FROM insta_ids.distribute_plan(schema => 'app', key => 'user_id') ORDER BY step", &[])
        .unwrap();
    let is = |row: &postgres::Row, action: &str| row.get::<_, &str>(0) == action;
    let obstacles: Vec<String> =
        rows.iter().filter(|row| is(row, "obstacle")).map(|row| row.get(2)).collect();
    assert_eq!(obstacles, [""; 0]);
    rows.iter().filter_map(|row| Some((row.get(0), row.get::<_, Option<String>>(1)?))).collect()
}

/// The tables that go to the shards, with all their rows as texts.
type Tables = BTreeMap<String, Vec<String>>;

fn rows(client: &mut Client, tables: &[String], schemas: &[String]) -> Tables {
    let of = |client: &mut Client, table: &str| {
        let union: Vec<_> = schemas.iter().map(|s| format!("SELECT t::text FROM {s}.{table} t")).collect();
        texts(client, &format!("{} ORDER BY 1", union.join(" UNION ALL ")))
    };
    tables.iter().map(|table| (table.clone(), of(client, table))).collect()
}

/// Makes one statement of a plan happen, although the server is killed so often while it runs.
fn insist(cluster: &Cluster, statement: &str, kills: usize, is_done: &str) {
    for n in 0..20 {
        let mut app = session(cluster);
        if n > 0 && count(&mut app, is_done) == 1 {
            return;
        }
        let ended = thread::scope(|scope| {
            let call = scope.spawn(|| app.batch_execute(statement));
            if n < kills {
                thread::sleep(Duration::from_millis(400 * (n as u64 + 1)));
                cluster.signal("KILL");
                let ended = call.join().unwrap();
                cluster.up_again();
                return ended;
            }
            call.join().unwrap()
        });
        match ended {
            Ok(()) => return,
            Err(error) => assert!(
                n < kills || error.code().is_some_and(|code| code.code() == "55P03"),
                "{statement}: {error:?}"
            ),
        }
    }
    panic!("{statement} does not end");
}

/// A row of a client. The server may have it in one of these states: the number of its last change, or `None` if it is deleted.
struct Row {
    kind: usize,
    user: usize,
    id: i64,
    states: Vec<Option<usize>>,
}

/// A client that writes rows of ten users, first to the old tables and then to the shards, and remembers what it was told.
struct Writer {
    chance: Chance,
    users: Vec<i32>,
    shards: Vec<String>,
    photos: Vec<i64>,
    rows: BTreeMap<String, Row>,
    is_in_shards: bool,
    written: [usize; 2],
}

impl Writer {
    fn new(app: &mut Client, name: i32) -> Self {
        let users: Vec<i32> = (name * 10 + 1..=name * 10 + 10).collect();
        let of = |app: &mut Client, query: &str, user: i32| {
            app.query_one(query, &[&user]).unwrap().get::<_, String>(0)
        };
        let shard = format!("SELECT 'insta' || insta_ids.shard_of($1, {SHARDS})");
        let photo = "SELECT min(id)::text FROM photos WHERE user_id = $1::integer";
        Self {
            chance: Chance::from_seed(u64::try_from(name).unwrap()),
            shards: users.iter().map(|&user| of(app, &shard.replace("$1", "$1::integer"), user)).collect(),
            photos: users.iter().map(|&user| of(app, photo, user).parse().unwrap()).collect(),
            users,
            rows: BTreeMap::new(),
            is_in_shards: false,
            written: [0; 2],
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.chance.below(limit as u64)).unwrap()
    }

    /// The statement that inserts a row, or changes or deletes one. `state` is the number of the change.
    fn statement(&self, token: &str, row: &Row, state: Option<usize>) -> String {
        let schema = if self.is_in_shards { &self.shards[row.user] } else { "app" };
        let (user, photo, id) = (self.users[row.user], self.photos[row.user], row.id);
        match (row.kind, state) {
            (0, Some(0)) => format!(
                "INSERT INTO {schema}.photos (user_id, caption) VALUES ({user}, '{token}/0') RETURNING id"
            ),
            (0, Some(n)) => {
                format!("UPDATE {schema}.photos SET caption = '{token}/{n}' WHERE id = {id} RETURNING id")
            }
            (0, None) => format!("DELETE FROM {schema}.photos WHERE id = {id} RETURNING id"),
            (1, Some(0)) => format!(
                "INSERT INTO {schema}.comments (photo_id, author_id, body) VALUES ({photo}, {user}, '{token}/0') RETURNING id::bigint"
            ),
            (1, Some(n)) => format!(
                "MERGE INTO {schema}.comments c USING (VALUES (0)) v ON c.id = {id} WHEN MATCHED THEN UPDATE SET body = '{token}/{n}'"
            ),
            (1, None) => format!("DELETE FROM {schema}.comments WHERE id = {id} RETURNING id::bigint"),
            (_, Some(n)) => format!(
                "INSERT INTO {schema}.settings VALUES ({user}, '{token}', '{n}') ON CONFLICT (user_id, name) DO UPDATE SET value = excluded.value RETURNING 0::bigint"
            ),
            (_, None) => format!(
                "DELETE FROM {schema}.settings WHERE (user_id, name) = ({user}, '{token}') RETURNING 0::bigint"
            ),
        }
    }

    /// One statement. Returns whether the session can be used for the next one.
    fn once(&mut self, app: &mut Client) -> bool {
        let (token, mut row, state) = self.choose();
        let statement = self.statement(&token, &row, state);
        match app.query(&statement, &[]) {
            Ok(found) => {
                row.id = found.first().map_or(row.id, |found| found.get(0));
                row.states = vec![state];
                self.written[usize::from(self.is_in_shards)] += 1;
            }
            Err(error) if error.code() == Some(FENCED) => {
                self.is_in_shards = !self.is_in_shards;
                if row.states.is_empty() {
                    return true;
                }
            }
            Err(error) => {
                let is_lost = error.code().is_none_or(|code| code.code().starts_with("57P"));
                assert!(is_lost, "{statement}: {error:?}");
                if row.states.is_empty() {
                    row.states.push(None);
                }
                row.states.push(state);
                self.rows.insert(token, row);
                return false;
            }
        }
        self.rows.insert(token, row);
        true
    }

    /// A row whose state is known, and its next state.
    fn choose(&mut self) -> (String, Row, Option<usize>) {
        let known: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| matches!(row.states[..], [Some(_)]))
            .map(|(token, _)| token.clone())
            .collect();
        if known.len() < 20 || self.below(3) == 0 {
            let (kind, user) = (self.below(3), self.below(10));
            let token = format!("w{}-{}", self.users[0], self.rows.len());
            return (token, Row { kind, user, id: 0, states: Vec::new() }, Some(0));
        }
        let token = known[self.below(known.len())].clone();
        let row = self.rows.remove(&token).unwrap();
        let next = row.states[0].map(|n| n + 1).filter(|_| self.chance.below(4) > 0);
        (token, row, next)
    }

    fn write(&mut self, cluster: &Cluster, stop: &AtomicBool) {
        let mut app = session(cluster);
        while !stop.load(Ordering::Relaxed) {
            if !self.once(&mut app) {
                app = session(cluster);
            }
            // With more than 10,000 changes that wait, the switch is refused.
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Compares what the server has with what the client was told.
    fn judge(&self, found: &BTreeMap<String, usize>) {
        for (token, row) in &self.rows {
            let state = found.get(token).copied();
            assert!(
                row.states.contains(&state),
                "{token} of kind {}: {state:?} is none of {:?}",
                row.kind,
                row.states
            );
        }
    }
}

/// Lets clients write while something happens.
fn under_writers(cluster: &Cluster, writers: &mut [Writer], during: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in &mut *writers {
            let stop = &stop;
            scope.spawn(move || writer.write(cluster, stop));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Judges all clients by the rows that have a token. No token may be found twice.
fn judge(client: &mut Client, schemas: &[String], writers: &[Writer]) {
    let mut found = BTreeMap::new();
    for schema in schemas {
        let all = format!(
            "SELECT caption FROM {schema}.photos WHERE caption ~ '^w' UNION ALL SELECT body FROM {schema}.comments WHERE body ~ '^w'
             UNION ALL SELECT name || '/' || value FROM {schema}.settings WHERE name ~ '^w'"
        );
        for text in texts(client, &all) {
            let (token, state) = text.split_once('/').unwrap();
            assert_eq!(
                found.insert(token.to_owned(), state.parse().unwrap()),
                None,
                "{token} is found twice"
            );
        }
    }
    assert!(found.len() > 100, "only {} rows", found.len());
    for writer in writers {
        writer.judge(&found);
    }
}

const SWITCHED: &str =
    "SELECT (count(*) > 0 AND bool_and(step = 'switched'))::integer::bigint FROM insta_ids.distributions";
const ENDED: &str = "SELECT (count(*) = 0)::integer::bigint FROM insta_ids.distributions";

/// Runs the statements of a plan up to the switch, with what follows it.
fn forward(cluster: &Cluster, plan: &[(String, String)], writers: &mut [Writer], kills: usize) {
    let run = |cluster: &Cluster, actions: &[&str]| {
        let mut app = session(cluster);
        for (_, statement) in plan.iter().filter(|(action, _)| actions.contains(&action.as_str())) {
            app.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    };
    run(cluster, &["prepare", "migration", "shards", "register"]);
    under_writers(cluster, writers, || {
        insist(
            cluster,
            "CALL insta_ids.distribute(batch => 500, lock_timeout => '1min')",
            kills,
            "SELECT 0::bigint",
        );
        insist(cluster, "CALL insta_ids.distribute(lock_timeout => '1min')", 0, "SELECT 0::bigint");
        insist(cluster, "SELECT insta_ids.distribute_switch(lock_timeout => '1min')", kills, SWITCHED);
        run(cluster, &["keys"]);
        thread::sleep(Duration::from_secs(1));
    });
}

#[test]
fn an_application_goes_to_the_shards_and_back_by_its_plan() {
    let cluster = application("distribute_application");
    let mut app = session(&cluster);
    let first = plan(&mut app);
    let mut client = cluster.connect();
    let mut writers: Vec<_> = (0..4).map(|name| Writer::new(&mut app, name)).collect();
    forward(&cluster, &first, &mut writers, 2);
    drop((app, client));
    client = cluster.reconnect();
    let tables = texts(&mut client, "SELECT target::text FROM insta_ids.distributions ORDER BY 1");
    assert_eq!(tables.len(), 22);
    let shards: Vec<_> = (0..SHARDS).map(|shard| format!("insta{shard}")).collect();
    let old = ["app".to_owned()];
    judge(&mut client, &shards, &writers);
    assert_eq!(
        texts(&mut client, "SELECT code || ' ' || object FROM insta_ids.check() WHERE severity <> 'notice'"),
        [""; 0]
    );
    for writer in &writers {
        assert!(writer.written.iter().all(|&n| n > 50), "{:?}", writer.written);
    }

    // Back, with all that was written to the shards.
    let in_shards = rows(&mut client, &tables, &shards);
    insist(&cluster, "SELECT insta_ids.distribute_abort()", 1, ENDED);
    client = cluster.reconnect();
    assert_eq!(rows(&mut client, &tables, &old), in_shards);

    // And forward again, by a new plan.
    let mut app = session(&cluster);
    let second = plan(&mut app);
    for writer in &mut writers {
        writer.is_in_shards = false;
    }
    forward(&cluster, &second, &mut writers, 1);
    client = cluster.reconnect();
    judge(&mut client, &shards, &writers);
    insist(&cluster, &second.last().unwrap().1, 0, ENDED);
    assert_eq!(
        texts(&mut client, "SELECT code || ' ' || object FROM insta_ids.check() WHERE severity <> 'notice'"),
        [""; 0]
    );
    let keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND connamespace = 'insta5'::regnamespace";
    assert_eq!(count(&mut client, keys), 21);
    let mut reader = cluster.connect();
    reader.batch_execute("SET ROLE reader; SELECT id, email FROM insta5.users; INSERT INTO insta5.photos (user_id, caption) VALUES (-1, '')").unwrap_err();
    reader.batch_execute("SELECT id, caption FROM insta5.photos").unwrap();
}
