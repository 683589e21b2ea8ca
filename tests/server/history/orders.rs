//! Property: in whatever order shards are made, migrated, moved and squashed, they end alike.

use std::fmt::Write;

use postgres::Client;

use support::fault::{chance, times};
use support::pair::{MIGRATION, Pair};
use support::{count, texts};

/// The text of a migration. The first is that of the pair, with the tables photos and likes.
fn migration(number: usize) -> String {
    let before = number - 1;
    match (number, number % 3) {
        (2, _) => "CREATE TYPE mood AS ENUM ('calm');
             CREATE TABLE kinds (id bigint PRIMARY KEY DEFAULT next_id(), name text NOT NULL)"
            .to_owned(),
        (_, 0) => {
            format!("ALTER TYPE mood ADD VALUE 'm{number}'; INSERT INTO kinds (name) VALUES ('k{number}')")
        }
        (_, 1) => format!(
            "ALTER TABLE photos ADD c{number} mood DEFAULT 'm{before}',
                 ADD UNIQUE (id, c{number}) DEFERRABLE INITIALLY DEFERRED"
        ),
        _ => format!("CREATE INDEX i{number} ON photos (c{before})"),
    }
}

/// All migrations up to one as one text. An enum value that a text adds cannot be used in it, so the type has all from the beginning.
fn baseline(last: usize) -> String {
    let mut labels = "'calm'".to_owned();
    let mut rest = String::new();
    for number in 3..=last {
        if number % 3 == 0 {
            write!(labels, ", 'm{number}'").unwrap();
            write!(rest, "; INSERT INTO kinds (name) VALUES ('k{number}')").unwrap();
        } else {
            write!(rest, "; {}", migration(number)).unwrap();
        }
    }
    format!(
        "CREATE TYPE mood AS ENUM ({labels});
         CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text);
         CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), photo bigint REFERENCES photos);
         CREATE TABLE kinds (id bigint PRIMARY KEY DEFAULT next_id(), name text NOT NULL) {rest}"
    )
}

/// Two nodes, and what was called on them.
struct Fleet {
    nodes: [Client; 2],
    /// The node of each shard.
    homes: Vec<usize>,
    migrations: usize,
    /// The name of the last migration, which may be a baseline.
    last: String,
    calls: Vec<String>,
}

impl Fleet {
    fn of(pair: &Pair) -> Self {
        let mut nodes = [pair.a.connect(), pair.b.connect()];
        nodes[1].batch_execute(MIGRATION).unwrap();
        let calls = Vec::new();
        let mut fleet = Self { nodes, homes: vec![0; 4], migrations: 1, last: "0001".to_owned(), calls };
        fleet.add();
        fleet
    }

    fn call(&mut self, node: usize, call: &str) {
        self.calls.push(format!("{node}: {call}"));
        self.nodes[node].batch_execute(call).unwrap_or_else(|error| panic!("{:#?}: {error:?}", self.calls));
    }

    fn add(&mut self) {
        self.migrations += 1;
        self.last = format!("{:04}", self.migrations);
        let add =
            format!("SELECT insta_ids.add_migration('{}', $${}$$)", self.last, migration(self.migrations));
        for node in [0, 1] {
            self.call(node, &add);
        }
    }

    fn create(&mut self) {
        self.call(0, &format!("SELECT insta_ids.create_shard({})", self.homes.len()));
        self.homes.push(0);
    }

    fn take(&mut self, shard: usize) {
        let (from, to) = (self.homes[shard], 1 - self.homes[shard]);
        let source = ["a", "b"][from];
        self.call(from, &format!("CALL insta_ids.migrate({shard}, {shard})"));
        self.call(to, &format!("CALL insta_ids.move_shards({shard}, {shard}, '{source}')"));
        self.call(from, &format!("SELECT insta_ids.drop_shard({shard}, force => true)"));
        self.homes[shard] = to;
    }

    fn squash(&mut self) {
        let name = format!("baseline {}", self.calls.len());
        let squash = format!(
            "SELECT insta_ids.squash_migrations('{}', '{name}', $${}$$)",
            self.last,
            baseline(self.migrations)
        );
        for node in [0, 1] {
            self.call(node, "CALL insta_ids.migrate()");
            self.call(node, &squash);
        }
        self.last = name;
    }

    /// What the active shards have, in words that name no shard: objects, and the rows of migrations.
    fn shapes(&mut self) -> Vec<String> {
        let shapes = "SELECT DISTINCT objects || coalesce((xpath('/row/n/text()', query_to_xml(
                 format('SELECT string_agg(name, '','' ORDER BY name) AS n FROM %I.kinds', s.schema), false, true, '')))[1]::text, '')
             FROM insta_ids.shards s CROSS JOIN LATERAL (SELECT insta_ids_internal.objects_json(s.shard)::text) o (objects)
             WHERE s.state = 'active'";
        let mut all = self.nodes.each_mut().map(|node| texts(node, shapes)).concat();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[test]
fn shards_end_alike_whatever_the_order_of_calls() {
    let mut chance = chance();
    for _ in 0..times().max(2) {
        let pair = Pair::start("orders");
        let mut fleet = Fleet::of(&pair);
        for _ in 0..25 {
            match chance.below(8) {
                0..=2 => fleet.add(),
                3 => {
                    let node = chance.of(&[0, 1]);
                    fleet.call(node, "CALL insta_ids.migrate()");
                }
                4 if fleet.homes.len() < 12 => fleet.create(),
                5 | 6 => {
                    let shard = chance.of(&(0..fleet.homes.len()).collect::<Vec<_>>());
                    fleet.take(shard);
                }
                _ => fleet.squash(),
            }
        }
        for node in [0, 1] {
            fleet.call(node, "CALL insta_ids.migrate()");
        }
        let shapes = fleet.shapes();
        assert_eq!(shapes.len(), 1, "{:#?}: {shapes:#?}", fleet.calls);
        let active = "SELECT count(*) FROM insta_ids.shards WHERE state = 'active' AND pending + failed = 0";
        let shards: i64 = fleet.nodes.iter_mut().map(|node| count(node, active)).sum();
        assert_eq!(shards, i64::try_from(fleet.homes.len()).unwrap(), "{:#?}", fleet.calls);
    }
}
