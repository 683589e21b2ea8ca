//! Promise: whatever migrations were legal for the shards when they ran, new shards, clones, moves and restored shards get them.

mod changes;
mod dumps;
mod orders;

use std::fs;

use postgres::Client;

use support::pair::{Pair, shard_map};
use support::{Cluster, scratch, texts};

/// A migration of `app.sql`.
struct Migration {
    name: String,
    ddl: String,
    transactional: bool,
}

/// The migrations of `app.sql`, in their order.
fn history() -> Vec<Migration> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/server/history/app.sql")).unwrap();
    let (_, migrations) = text.split_once("\n--- ").unwrap();
    migrations
        .split("\n--- ")
        .map(|migration| {
            let (title, ddl) = migration.split_once('\n').unwrap();
            let name = title.trim_end_matches(" (concurrently)");
            Migration { name: name.to_owned(), ddl: ddl.to_owned(), transactional: name == title }
        })
        .collect()
}

impl Migration {
    fn add(&self, client: &mut Client) {
        client
            .execute(
                "SELECT insta_ids.add_migration($1, $2, transactional => $3)",
                &[&self.name, &self.ddl, &self.transactional],
            )
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
    }

    /// Applies it to the shards of a server.
    fn apply(&self, cluster: &Cluster) {
        let script = format!(
            "CALL insta_ids.migrate();\nSELECT * FROM insta_ids.migration_script('{}') \\gexec\n",
            self.name
        );
        let script = if self.transactional { "CALL insta_ids.migrate();\n" } else { &script };
        let run = cluster.psql(&["-v", "ON_ERROR_STOP=1"], script).wait_with_output().unwrap();
        let errors = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.success() && !errors.contains("WARNING"), "{}: {errors}", self.name);
    }
}

/// Checks that the shards of a server are alike, and that these have the same numbers of rows in their tables.
fn check(client: &mut Client, name: &str, shards: [i32; 2]) {
    let findings = texts(
        client,
        "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check()
         WHERE severity <> 'notice' AND code NOT IN ('pg_dump_locks', 'no_replica_identity', 'unvalidated_constraint')",
    );
    assert_eq!(findings, [""; 0], "{name}");
    let lacking =
        "SELECT count(*)::text FROM insta_ids.migration_status WHERE state IN ('pending', 'failed')";
    assert_eq!(texts(client, lacking), ["0"], "{name}");
    let rows = shards.map(|shard| {
        let rows = format!(
            "SELECT format('%s: %s', c.relname, (xpath('/row/n/text()', query_to_xml(
                 format('SELECT count(*) AS n FROM %s', c.oid::regclass), false, true, '')))[1])
             FROM pg_class c WHERE c.relnamespace = 'insta{shard}'::regnamespace AND c.relkind IN ('r', 'm') ORDER BY 1"
        );
        texts(client, &rows)
    });
    assert_eq!(rows[0], rows[1], "{name}");
}

/// Each prefix of the history gives new shards and clones that are like the older ones, and shards can be archived and restored.
#[test]
fn new_shards_clones_and_archived_shards_have_every_prefix_of_a_history() {
    let cluster = Cluster::start("history");
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE ROLE app; SELECT insta_ids.init(64); SELECT insta_ids.create_shard(n) FROM generate_series(0, 1) n")
        .unwrap();
    let dump = scratch().join("history.dump");
    for migration in history() {
        let name = &migration.name;
        migration.add(&mut client);
        migration.apply(&cluster);
        client.batch_execute("SELECT insta_ids.create_shard(2)").unwrap_or_else(|e| panic!("{name}: {e:?}"));
        check(&mut client, name, [0, 2]);
        client
            .batch_execute("SELECT insta_ids.clone_shard(0, 3)")
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        check(&mut client, name, [0, 3]);

        let run =
            cluster.program("pg_dump", "postgres").args(["-Fc", "-n", "insta3", "-f"]).arg(&dump).status();
        assert!(run.unwrap().success(), "{name}");
        client.batch_execute("SELECT insta_ids.drop_shard(3, force => true)").unwrap();
        let mut restore = cluster.program("pg_restore", "postgres");
        let run =
            restore.args(["--exit-on-error", "--single-transaction", "-d", "postgres"]).arg(&dump).status();
        assert!(run.unwrap().success(), "{name}");
        client
            .execute("SELECT insta_ids.adopt('insta3', 3, migrated_to => $1)", &[name])
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        check(&mut client, name, [0, 3]);
        client
            .batch_execute(
                "SELECT insta_ids.drop_shard(2, force => true), insta_ids.drop_shard(3, force => true)",
            )
            .unwrap();
    }
}

/// Shards with each prefix of the history move to another server and back.
#[test]
fn shards_with_every_prefix_of_a_history_can_move() {
    let pair = Pair::start("history");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client.batch_execute("CREATE ROLE app").unwrap();
    }
    // The pair's own migration is none of this history.
    a.batch_execute(
        "SELECT insta_ids.drop_shard(s, force => true) FROM generate_series(0, 3) s; DELETE FROM insta_ids_internal.migration;
         SELECT insta_ids.create_shard(n) FROM generate_series(0, 1) n",
    )
    .unwrap();
    for migration in history() {
        let name = &migration.name;
        migration.add(&mut a);
        migration.apply(&pair.a);
        b.batch_execute("CALL insta_ids.move_shards(1, 1, 'a')").unwrap_or_else(|e| panic!("{name}: {e:?}"));
        a.batch_execute("SELECT insta_ids.drop_shard(1, force => true)").unwrap();
        a.batch_execute("CALL insta_ids.move_shards(1, 1, 'b')").unwrap_or_else(|e| panic!("{name}: {e:?}"));
        b.batch_execute("SELECT insta_ids.drop_shard(1, force => true)").unwrap();
        check(&mut a, name, [0, 1]);
    }
    assert_eq!(shard_map(&mut a), shard_map(&mut b));
}

/// A setting of a migration ends with it, as if each had run in a transaction of its own.
#[test]
fn a_setting_of_a_migration_ends_with_it() {
    let cluster = Cluster::start("history_settings");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(64);
             SELECT insta_ids.add_migration('0001', 'SET LOCAL app.lane = ''fast''; SET LOCAL check_function_bodies = off;
                 CREATE TABLE lanes AS SELECT current_setting(''app.lane'', true) AS lane'),
                 insta_ids.add_migration('0002', 'INSERT INTO lanes VALUES (current_setting(''app.lane'', true));
                     INSERT INTO lanes VALUES (current_setting(''check_function_bodies''))');
             SELECT insta_ids.create_shard(n) FROM generate_series(0, 1) n",
        )
        .unwrap();
    let lanes = "SELECT string_agg(coalesce(nullif(lane, ''), 'none'), ' ') FROM insta";
    for shard in 0..2 {
        assert_eq!(texts(&mut client, &format!("{lanes}{shard}.lanes")), ["fast none on"]);
    }
}

/// Histories of constraints, settings and defaults that are legal one by one, and what is special about them.
const HISTORIES: [(&str, &[&str]); 7] = [
    (
        "a name shared with a constraint that cannot be deferred",
        &[
            "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE a (p int CONSTRAINT fk REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TABLE b (p int CONSTRAINT fk REFERENCES p); CREATE DOMAIN d AS int CONSTRAINT fk CHECK (VALUE > 0)",
            "INSERT INTO a VALUES (1); INSERT INTO p VALUES (1)",
            "ALTER TABLE a ADD n int",
        ],
    ),
    (
        "a name shared by constraints of both kinds",
        &[
            "CREATE TABLE r (id int PRIMARY KEY); CREATE TABLE x (a int CONSTRAINT dup REFERENCES r DEFERRABLE)",
            "CREATE TABLE y (a int CONSTRAINT dup REFERENCES r DEFERRABLE INITIALLY DEFERRED); INSERT INTO r VALUES (1)",
            "INSERT INTO x VALUES (1); ALTER TABLE x ADD z int",
        ],
    ),
    (
        "constraints that a migration makes immediate",
        &[
            "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO d VALUES (1); INSERT INTO p VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE d ADD x int",
            "CREATE TABLE a (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED); INSERT INTO a VALUES (7); INSERT INTO p VALUES (7)",
        ],
    ),
    (
        "constraints that a migration defers",
        &[
            "CREATE TABLE p (id int PRIMARY KEY); SET CONSTRAINTS ALL DEFERRED",
            "CREATE TABLE a (p int REFERENCES p DEFERRABLE); INSERT INTO p VALUES (1); INSERT INTO a VALUES (1); ALTER TABLE a ADD x int",
            "SET CONSTRAINTS ALL DEFERRED; INSERT INTO a VALUES (2); INSERT INTO p VALUES (2)",
        ],
    ),
    (
        "a default that is not counted",
        &[
            "SET LOCAL track_counts = off; CREATE TABLE c (id bigint DEFAULT next_id())",
            "ALTER TABLE c ADD PRIMARY KEY (id)",
        ],
    ),
    (
        "a temporary table that is dropped",
        &[
            "CREATE TEMP TABLE seen AS SELECT 1 AS n; CREATE TABLE t AS SELECT * FROM seen; DROP TABLE seen",
            "ALTER TABLE t ADD m int",
        ],
    ),
    (
        "rows for an enum of another schema",
        &[
            "CREATE TABLE t (m public.mood)",
            "INSERT INTO t VALUES ('calm')",
            "ALTER TABLE t ADD PRIMARY KEY (m)",
        ],
    ),
];

/// Each of [`HISTORIES`] is applied to several shards of one batch, and gives new shards that are like them.
#[test]
fn what_is_legal_step_by_step_is_legal_at_once() {
    let cluster = Cluster::start("history_legal");
    cluster.connect().batch_execute("CREATE ROLE app").unwrap();
    for (number, (name, migrations)) in HISTORIES.iter().enumerate() {
        let database = format!("h{number}");
        cluster.connect().batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
        let mut client = cluster.connect_to(&database);
        client
            .batch_execute(
                "CREATE EXTENSION insta_ids; CREATE TYPE public.mood AS ENUM ('calm'); SELECT insta_ids.init(64);
                 SELECT insta_ids.create_shard(n) FROM generate_series(0, 3) n",
            )
            .unwrap();
        for (number, ddl) in migrations.iter().enumerate() {
            client.execute("SELECT insta_ids.add_migration($1, $2)", &[&number.to_string(), ddl]).unwrap();
            client
                .batch_execute("CALL insta_ids.migrate()")
                .unwrap_or_else(|e| panic!("{name}, {number}: {e:?}"));
            // A transaction of the caller has the constraints that it had.
            client
                .batch_execute(
                    "BEGIN; SELECT insta_ids.create_shard(9);
                     CREATE TEMP TABLE u (id int PRIMARY KEY, of int REFERENCES u DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP;
                     INSERT INTO u VALUES (1, 2); INSERT INTO u VALUES (2, 1); COMMIT",
                )
                .unwrap_or_else(|e| panic!("{name}, {number}: {e:?}"));
            check(&mut client, name, [0, 9]);
            client.batch_execute("SELECT insta_ids.drop_shard(9, force => true)").unwrap();
        }
    }
}
