//! Promise: any operation may follow any other. One history has all pairs; after each operation, the application's role, which is no
//! superuser, finds all rows that it wrote, and writes more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use postgres::Client;
use support::pair::{settings, shard_map};
use support::{Cluster, count, refused, scratch, texts, within};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Distribute,
    Adopt,
    Clone,
    Replace,
    Archive,
    Move,
    Rebalance,
    Drain,
    Migrate,
    Failover,
    DumpAndRestore,
}

const OPERATIONS: [Operation; 11] = [
    Operation::Distribute,
    Operation::Adopt,
    Operation::Clone,
    Operation::Replace,
    Operation::Archive,
    Operation::Move,
    Operation::Rebalance,
    Operation::Drain,
    Operation::Migrate,
    Operation::Failover,
    Operation::DumpAndRestore,
];

/// A sequence in which each operation follows each one once, itself too.
fn history() -> Vec<Operation> {
    let mut history = Vec::new();
    for (place, one) in OPERATIONS.iter().enumerate() {
        history.push(*one);
        for other in &OPERATIONS[place + 1..] {
            history.extend([*one, *other]);
        }
    }
    history.push(OPERATIONS[0]);
    history
}

/// The shard of each operation on one shard, and its clone.
const SHARD: i32 = 1;
const CLONE: i32 = 4;
const SHARDS: i32 = 5;

/// Rows of a table by their IDs.
type Rows = BTreeMap<i64, String>;

/// Two nodes with database `app`, and what the application wrote.
struct World {
    name: String,
    nodes: [(&'static str, Cluster); 2],
    /// By shard and table.
    rows: BTreeMap<(i32, String), Rows>,
    issued: BTreeSet<i64>,
    /// How many operations there were: it numbers what they create.
    time: usize,
}

impl World {
    fn start(name: String) -> Self {
        let start = |node| {
            let cluster = Cluster::with(&format!("{name}_{node}"), &settings(node));
            for statement in ["CREATE DATABASE app", "CREATE ROLE app LOGIN"] {
                cluster.connect().batch_execute(statement).unwrap();
            }
            cluster.connect_to("app").batch_execute("CREATE EXTENSION insta_ids").unwrap();
            (node, cluster)
        };
        let nodes = [start("a"), start("b")];
        let mut world = Self { name, nodes, rows: BTreeMap::new(), issued: BTreeSet::new(), time: 0 };
        let mut a = world.admin("a");
        a.batch_execute(&format!("SELECT insta_ids.init({SHARDS})")).unwrap();
        world.migrate("photos (id bigint PRIMARY KEY DEFAULT next_id(), body text)", &mut a);
        for node in ["a", "b"] {
            a.execute("SELECT insta_ids.add_node($1::text, $2)", &[&node, &world.dsn(node)]).unwrap();
        }
        a.batch_execute(&format!("SELECT insta_ids.assign(0, {}, 'a')", SHARDS - 1)).unwrap();
        a.batch_execute(&format!("CALL insta_ids.create_shards(0, {})", SHARDS - 1)).unwrap();
        for shard in 0..SHARDS {
            world.rows.insert((shard, "photos".into()), Rows::new());
        }
        world.share_map("a");
        world
    }

    fn cluster(&self, node: &str) -> &Cluster {
        &self.nodes[usize::from(node == "b")].1
    }

    fn dsn(&self, node: &str) -> String {
        format!("host={} user=postgres dbname=app", self.cluster(node).socket.display())
    }

    fn admin(&self, node: &str) -> Client {
        self.cluster(node).connect_to("app")
    }

    fn application(&self, node: &str) -> Client {
        self.cluster(node).config().user("app").dbname("app").connect(postgres::NoTls).unwrap()
    }

    /// The node of each shard, by the map of both nodes.
    fn places(&self) -> Vec<&'static str> {
        let on = "SELECT node::text FROM insta_ids.map, generate_series(first, last) shard ORDER BY shard";
        let [one, other] = ["a", "b"].map(|node| texts(&mut self.admin(node), on));
        assert_eq!(one, other);
        assert_eq!(one.len(), usize::try_from(SHARDS).unwrap());
        one.iter().map(|node| if node == "a" { "a" } else { "b" }).collect()
    }

    fn node_of(&self, shard: i32) -> &'static str {
        self.places()[usize::try_from(shard).unwrap()]
    }

    fn share_map(&self, node: &str) {
        let map = shard_map(&mut self.admin(node));
        self.admin(other(node)).execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
    }

    /// Adds a migration with a table that the application may write to.
    fn migrate(&self, table: &str, client: &mut Client) {
        let name = table.split(' ').next().unwrap();
        let ddl = format!(
            "CREATE TABLE {table};
             DO $$ BEGIN
                 EXECUTE format('GRANT USAGE ON SCHEMA %I TO app', current_schema);
                 EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO app', current_schema);
                 EXECUTE format('GRANT USAGE ON SEQUENCE %I.table_id_seq TO app', current_schema);
             END $$"
        );
        client
            .execute(
                "SELECT insta_ids.add_migration($1, $2, ids_since => '2011-08-26Z')",
                &[&format!("{:04} {name}", self.time), &ddl],
            )
            .unwrap();
    }

    /// Runs a program of the server's as the superuser, in the directory of this test.
    fn run(&self, node: &str, program: &str, arguments: &[&str]) {
        let directory = scratch().join(&self.name);
        fs::create_dir_all(&directory).unwrap();
        let run = self
            .cluster(node)
            .program(program, "postgres")
            .args(arguments)
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(run.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    }

    fn execute(&self, node: &str, statements: &[impl AsRef<str>]) {
        let mut admin = self.admin(node);
        for statement in statements.iter().map(AsRef::as_ref) {
            admin.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    /// The application writes to the tables of each shard, on the node that has it.
    fn write(&mut self) {
        let places = self.places();
        let mut clients = BTreeMap::from(["a", "b"].map(|node| (node, self.application(node))));
        for ((shard, table), rows) in &mut self.rows {
            let client = clients.get_mut(places[usize::try_from(*shard).unwrap()]).unwrap();
            let name = format!("insta{shard}.{table}");
            let body = format!("after {}", self.time);
            for row in client
                .query(
                    &format!("INSERT INTO {name} (body) SELECT $1 FROM generate_series(1, 3) RETURNING id"),
                    &[&body],
                )
                .unwrap()
            {
                let id: i64 = row.get(0);
                assert_eq!(id >> 10 & 8191, i64::from(*shard), "{name}");
                assert!(self.issued.insert(id), "{id} of {name} was issued before");
                assert!(rows.insert(id, body.clone()).is_none(), "{id} is in {name}");
            }
            // An old row is changed, and another one is deleted.
            let ids: Vec<i64> = rows.keys().copied().collect();
            let (changed, deleted) = (ids[self.time % ids.len()], ids[(self.time + 1) % ids.len()]);
            let update = format!("UPDATE {name} SET body = 'changed' WHERE id = $1");
            assert_eq!(client.execute(&update, &[&changed]).unwrap(), 1, "{changed} of {name}");
            rows.insert(changed, "changed".into());
            assert_eq!(client.execute(&format!("DELETE FROM {name} WHERE id = $1"), &[&deleted]).unwrap(), 1);
            rows.remove(&deleted);
        }
    }

    /// Each row is on the node that the map names, and nothing else is; no server finds an error. Then drops what shards have left.
    fn check(&self) {
        let places = self.places();
        let mut clients = BTreeMap::from(["a", "b"].map(|node| (node, self.application(node))));
        for ((shard, table), expected) in &self.rows {
            let rows: Rows = clients
                .get_mut(places[usize::try_from(*shard).unwrap()])
                .unwrap()
                .query(&format!("SELECT id, body FROM insta{shard}.{table}"), &[])
                .unwrap()
                .iter()
                .map(|row| (row.get(0), row.get(1)))
                .collect();
            assert_eq!(&rows, expected, "insta{shard}.{table}");
        }
        let here = "SELECT shard FROM insta_ids.shards WHERE state = 'active' ORDER BY shard";
        let mut open = Vec::new();
        for node in ["a", "b"] {
            open.extend(self.admin(node).query(here, &[]).unwrap().iter().map(|row| row.get::<_, i32>(0)));
        }
        open.sort_unstable();
        assert_eq!(open, (0..SHARDS).collect::<Vec<_>>());
        let findings = "SELECT concat_ws(' ', node, code, object, detail) FROM insta_ids.check_fleet() WHERE severity = 'error'";
        assert_eq!(texts(&mut self.admin("a"), findings), [""; 0]);
        for node in ["a", "b"] {
            let drop = "SELECT insta_ids.drop_shard(shard) FROM insta_ids.shards WHERE state = 'moved'";
            self.admin(node).batch_execute(drop).unwrap();
        }
    }

    fn perform(&mut self, operation: Operation) {
        let node = self.node_of(SHARD);
        let schema = format!("insta{SHARD}");
        let time = self.time;
        match operation {
            Operation::Distribute => self.distribute(node),
            Operation::Adopt => {
                self.execute(node, &[format!("SELECT insta_ids.unadopt('{schema}')")]);
                self.write();
                self.execute(node, &[format!("SELECT insta_ids.adopt('{schema}', {SHARD})")]);
            }
            Operation::Clone => self.clone(node),
            Operation::Replace => self.replace(node),
            Operation::Archive => {
                self.execute(node, &[format!("SELECT insta_ids.fence({SHARD})")]);
                self.run(node, "pg_dump", &["-Fc", "-n", &schema, "-f", "shard.dump", "app"]);
                self.execute(node, &[format!("SELECT insta_ids.drop_shard({SHARD}, force => true)")]);
                self.run(
                    node,
                    "pg_restore",
                    &["--exit-on-error", "--single-transaction", "-d", "app", "shard.dump"],
                );
                self.execute(node, &[format!("SELECT insta_ids.adopt('{schema}', {SHARD})")]);
            }
            Operation::Move => self
                .admin(other(node))
                .batch_execute(&format!("CALL insta_ids.move_shards({SHARD}, {SHARD}, '{node}')"))
                .unwrap(),
            Operation::Rebalance => self.execute(node, &["CALL insta_ids.rebalance('shards')"]),
            Operation::Drain => self
                .admin(other(node))
                .batch_execute(&format!("CALL insta_ids.drain_node('{node}', 'shards')"))
                .unwrap(),
            Operation::Migrate => self.execute(node, &[
                format!(
                    "SELECT insta_ids.add_migration('{time:04}', 'ALTER TABLE photos ADD at{time} timestamptz DEFAULT now()')"
                ),
                "CALL insta_ids.migrate_fleet()".into(),
            ]),
            Operation::Failover => {
                let standby = self.cluster(node).standby(&format!("{}_{node}_{time}", self.name));
                let up_to_date =
                    "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn = pg_current_wal_flush_lsn()";
                within(Duration::from_secs(20), || count(&mut self.admin(node), up_to_date) == 1);
                self.cluster(node).stop_immediately();
                standby.promote();
                self.nodes[usize::from(node == "b")].1 = standby;
                let add = "SELECT insta_ids.add_node($1::text, $2)";
                self.admin(node).execute(add, &[&node, &self.dsn(node)]).unwrap();
                self.share_map(node);
            }
            Operation::DumpAndRestore => {
                self.run(node, "pg_dump", &["-Fc", "-f", "app.dump", "app"]);
                self.run(node, "createdb", &["restored"]);
                self.run(node, "pg_restore", &["--exit-on-error", "-d", "restored", "app.dump"]);
                let rename = "DROP DATABASE app WITH (FORCE); ALTER DATABASE restored RENAME TO app";
                for statement in rename.split("; ") {
                    self.cluster(node).connect().batch_execute(statement).unwrap();
                }
            }
        }
    }

    /// The shard's rows go to another shard as well.
    fn clone(&mut self, node: &'static str) {
        if self.node_of(CLONE) != node {
            self.execute(node, &[format!("CALL insta_ids.move_shards({CLONE}, {CLONE}, '{}')", other(node))]);
        }
        self.execute(
            node,
            &[
                format!("SELECT insta_ids.drop_shard({CLONE}, force => true)"),
                format!("SELECT insta_ids.clone_shard({SHARD}, {CLONE})"),
            ],
        );
        let since = count(&mut self.admin(node), "SELECT id_min('2011-08-26Z')");
        let of_clone = |id: i64| {
            if id < since { id } else { id & !(8191 << 10) | i64::from(CLONE) << 10 }
        };
        let cloned: Vec<_> = self
            .rows
            .iter()
            .filter(|((shard, _), _)| *shard == SHARD)
            .map(|((_, table), rows)| {
                let rows: Rows = rows.iter().map(|(id, body)| (of_clone(*id), body.clone())).collect();
                ((CLONE, table.clone()), rows)
            })
            .collect();
        self.rows.extend(cloned);
    }

    /// The shard's schema is restored from a dump.
    fn replace(&self, node: &'static str) {
        let schema = format!("insta{SHARD}");
        self.run(node, "pg_dump", &["-Fc", "-n", &schema, "-f", "shard.dump", "app"]);
        self.run(node, "createdb", &["scratch"]);
        self.run(node, "psql", &["-Xqd", "scratch", "-c", "CREATE EXTENSION insta_ids"]);
        self.run(node, "pg_restore", &["--exit-on-error", "-d", "scratch", "shard.dump"]);
        let rename = format!("ALTER SCHEMA {schema} RENAME TO restored");
        self.run(node, "psql", &["-Xqd", "scratch", "-c", &rename]);
        self.run(node, "pg_dump", &["-Fc", "-n", "restored", "-f", "restored.dump", "scratch"]);
        self.run(
            node,
            "pg_restore",
            &["--exit-on-error", "--single-transaction", "-d", "app", "restored.dump"],
        );
        self.run(node, "dropdb", &["scratch"]);
        self.execute(
            node,
            &[
                format!("SELECT insta_ids.replace_shard({SHARD}, 'restored')"),
                format!("DROP SCHEMA replaced_{schema} CASCADE"),
            ],
        );
    }

    /// Rows of a new table go to the shards of the node.
    fn distribute(&mut self, node: &str) {
        let mut admin = self.admin(node);
        let table = format!("table{}", self.time);
        self.migrate(&format!("{table} (id bigint PRIMARY KEY DEFAULT next_id(), body text)"), &mut admin);
        admin.batch_execute("CALL insta_ids.migrate_fleet()").unwrap();
        admin.batch_execute(&format!("CREATE TABLE {table} (id bigint PRIMARY KEY, body text)")).unwrap();
        for shard in 0..SHARDS {
            let mut rows = Rows::new();
            for place in 1..20 {
                let id = place * i64::from(SHARDS) + i64::from(shard);
                rows.insert(id, format!("old {id}"));
                let insert = format!("INSERT INTO {table} VALUES ($1, $2)");
                admin.execute(&insert, &[&id, &rows[&id]]).unwrap();
            }
            self.rows.insert((shard, table.clone()), rows);
        }
        let register = format!("SELECT insta_ids.distribute_table('{table}', 'id')");
        if (0..SHARDS).any(|shard| self.node_of(shard) != node) {
            let error = refused(&mut admin, &register);
            assert!(error.detail().unwrap().ends_with("is not on this server."), "{error:?}");
            let drain = format!("CALL insta_ids.drain_node('{}', 'shards')", other(node));
            admin.batch_execute(&drain).unwrap();
        }
        self.execute(
            node,
            &[
                register.as_str(),
                "CALL insta_ids.distribute()",
                "SELECT insta_ids.distribute_switch()",
                "SELECT insta_ids.distribute_finish()",
            ],
        );
    }
}

fn other(node: &str) -> &'static str {
    if node == "a" { "b" } else { "a" }
}

/// One quarter of the history, which begins where the quarter before ends.
fn live(quarter: usize) {
    let history = history();
    let length = history.len().div_ceil(4);
    let mut world = World::start(format!("pairs_{quarter}"));
    let mut before = None;
    for operation in history.into_iter().skip(quarter * length).take(length + 1) {
        world.time += 1;
        println!("{}: {operation:?} after {before:?}", world.time);
        world.perform(operation);
        world.check();
        world.write();
        before = Some(operation);
    }
}

#[test]
fn operations_follow_each_other_first_quarter() {
    live(0);
}

#[test]
fn operations_follow_each_other_second_quarter() {
    live(1);
}

#[test]
fn operations_follow_each_other_third_quarter() {
    live(2);
}

#[test]
fn operations_follow_each_other_last_quarter() {
    live(3);
}
