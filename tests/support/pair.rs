//! Two servers that shards move between, and a move step by step, as by hand.

use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Error, NoTls};

use crate::Cluster;

/// What a server needs that shards leave or come to.
pub fn settings(node: &str) -> Vec<String> {
    let node = format!("insta_ids.node = '{node}'");
    ["wal_level = logical", "max_prepared_transactions = 4", &node].map(str::to_owned).to_vec()
}

pub const MIGRATION: &str = "
    SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text);
        CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(), photo bigint REFERENCES photos)')";

/// Node `a`, which has all shards, and node `b`, which has the map.
pub struct Pair {
    pub a: Cluster,
    pub b: Cluster,
}

impl Pair {
    /// With the shards 0 to 3.
    pub fn start(name: &str) -> Self {
        let start = |node: &str| {
            let settings = settings(node);
            Cluster::with(&format!("{name}_{node}"), &settings)
        };
        let pair = Self { a: start("a"), b: start("b") };
        pair.prepare();
        pair
    }

    pub fn prepare(&self) {
        let dsn =
            |cluster: &Cluster| format!("host={} user=postgres dbname=postgres", cluster.socket.display());
        let mut a = self.a.connect();
        a.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(64)").unwrap();
        a.batch_execute(MIGRATION).unwrap();
        for (node, cluster) in [("a", &self.a), ("b", &self.b)] {
            a.execute("SELECT insta_ids.add_node($1::text, $2)", &[&node, &dsn(cluster)]).unwrap();
        }
        a.batch_execute("SELECT insta_ids.assign(0, 63, 'a')").unwrap();
        a.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
        let mut b = self.b.connect();
        b.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    }
}

pub fn shard_map(client: &mut Client) -> String {
    client.query_one("SELECT insta_ids.shard_map()::text", &[]).unwrap().get(0)
}

/// The steps of a move, in their order.
pub const STEPS: [&str; 10] =
    ["offer", "prepare", "slot", "subscribe", "copied", "fence", "drained", "release", "hand over", "finish"];

/// The steps that come before this one.
pub fn before(step: &str) -> &'static [&'static str] {
    let place = STEPS.iter().position(|other| *other == step).expect("no such step");
    &STEPS[..place]
}

/// A move from node `a` to node `b`, driven from here.
pub struct Move<'a> {
    pair: &'a Pair,
    name: String,
    range: [i32; 2],
    offer: String,
    mark: String,
    released: String,
    handed_over: String,
}

impl<'a> Move<'a> {
    pub fn of(pair: &'a Pair, first: i32, last: i32) -> Self {
        let name = format!("insta_ids_{first}_{last}");
        Self {
            pair,
            name,
            range: [first, last],
            offer: String::new(),
            mark: String::new(),
            released: String::new(),
            handed_over: String::new(),
        }
    }

    /// Does some of [`STEPS`], all of which must succeed.
    ///
    /// # Panics
    /// If one fails.
    pub fn steps(&mut self, steps: &[&str]) {
        for step in steps {
            self.step(step).unwrap_or_else(|error| panic!("{step}: {error:?}"));
        }
    }

    /// Does one of [`STEPS`].
    pub fn step(&mut self, step: &str) -> Result<(), Error> {
        let (mut a, mut b) = (self.pair.a.config().connect(NoTls)?, self.pair.b.config().connect(NoTls)?);
        let name = &self.name;
        let text = |row: postgres::Row| row.get::<_, String>(0);
        match step {
            "offer" => {
                let offer = format!(
                    "SELECT insta_ids_internal.move_offer({}, {}, 'b')::text",
                    self.range[0], self.range[1]
                );
                self.offer = text(a.query_one(&offer, &[])?);
            }
            "prepare" => {
                b.execute("SELECT insta_ids_internal.prepare_shards($1::text::jsonb, current_setting('search_path'))", &[&self.offer])?;
            }
            "slot" => a.batch_execute(&format!("SELECT insta_ids_internal.move_slot('{name}')"))?,
            "subscribe" => b.batch_execute(&format!("SELECT insta_ids_internal.move_subscribe('{name}')"))?,
            "copied" => {
                let slots = "SELECT insta_ids_internal.move_table_slots($1::text::name)::text";
                let mut waited_for = String::new();
                while !b
                    .query_one(&format!("SELECT insta_ids_internal.move_copied('{name}')"), &[])?
                    .get::<_, bool>(0)
                {
                    thread::sleep(Duration::from_millis(200));
                    let now = text(b.query_one(slots, &[name])?);
                    let lost = "SELECT insta_ids_internal.move_slots_lost($1::text::name[])";
                    if now == waited_for && a.query_one(lost, &[&now])?.get(0) {
                        println!("{name} is copied again");
                        b.batch_execute(&format!("SELECT insta_ids_internal.move_recopy('{name}')"))?;
                    }
                    waited_for = now;
                }
            }
            "fence" => a.batch_execute(&format!("SELECT insta_ids_internal.move_fence('{name}')"))?,
            "drained" => {
                self.mark =
                    text(a.query_one(&format!("SELECT insta_ids_internal.move_mark('{name}')::text"), &[])?);
                until(
                    &mut b,
                    &format!("SELECT insta_ids_internal.move_drained('{name}', $mark${}$mark$)", self.mark),
                )?;
            }
            "release" => {
                let release = format!(
                    "SELECT insta_ids_internal.move_release('{name}', ($mark${}$mark$::jsonb ->> 'fence')::integer)::text",
                    self.mark
                );
                self.released = text(a.query_one(&release, &[])?);
            }
            "hand over" => {
                let hand_over = format!(
                    "SELECT insta_ids_internal.move_hand_over('{name}', $mark${}$mark$)::text",
                    self.released
                );
                self.handed_over = text(b.query_one(&hand_over, &[])?);
            }
            _ => {
                for client in [&mut a, &mut b] {
                    client.batch_execute(&format!(
                        "SELECT insta_ids_internal.move_finish('{name}', '{}')",
                        self.handed_over
                    ))?;
                }
            }
        }
        Ok(())
    }

    /// Whether the target has the shards, and nothing is left to do.
    pub fn has_ended(&self) -> Result<bool, Error> {
        let ended = "SELECT NOT EXISTS (SELECT FROM insta_ids_internal.move) AND EXISTS (SELECT FROM insta_ids_internal.shard WHERE shard = $1)";
        Ok(self.pair.b.config().connect(NoTls)?.query_one(ended, &[&self.range[0]])?.get(0))
    }

    /// Does what is left of it, from whatever it has come to.
    pub fn resume(&mut self) -> Result<(), Error> {
        let step = format!("SELECT step FROM insta_ids_internal.move WHERE name = '{}'", self.name);
        let mut b = self.pair.b.config().connect(NoTls)?;
        let come: Option<String> = b.query_opt(&step, &[])?.map(|row| row.get(0));
        if come.as_deref() == Some("handed over") {
            let handed_over = format!("SELECT insta_ids_internal.move_hand_over('{}')::text", self.name);
            self.handed_over = b.query_one(&handed_over, &[])?.get(0);
            return self.step("finish");
        }
        if self.has_ended()? {
            return Ok(());
        }
        STEPS.iter().try_for_each(|step| self.step(step))
    }

    /// Ends it, if it has not come too far.
    pub fn abort(&self) -> Result<(), Error> {
        let name = &self.name;
        let mut b = self.pair.b.config().connect(NoTls)?;
        let open = "SELECT id::text FROM insta_ids_internal.move WHERE name = $1::text::name";
        let mut a = self.pair.a.config().connect(NoTls)?;
        let Some(id) = a.query_opt(open, &[name])?.map(|row| row.get::<_, String>(0)) else {
            // It was taken back already, or never made.
            assert!(b.query_opt(open, &[name])?.is_none(), "{name} is open on the target alone");
            return Ok(());
        };
        let cancel = format!("SELECT insta_ids_internal.move_cancel('{name}', '{id}')::text");
        let cancellation: String = b.query_one(&cancel, &[])?.get(0);
        a.batch_execute(&format!("SELECT insta_ids_internal.move_withdraw('{name}', '{cancellation}')"))
    }
}

fn until(client: &mut Client, query: &str) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !client.query_one(query, &[])?.get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "not so within a minute: {query}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
