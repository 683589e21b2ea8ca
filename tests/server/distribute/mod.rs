//! Promise: the rows of the table that users start with go to the shards while clients write, and nothing is lost or doubled.

mod application;
mod background;
mod faults;
mod fit;
mod keys;
mod kinds;
mod load;
mod many;
mod notes;
mod parents;
mod plan;
mod reads;
mod refusing;
mod returning;
mod snapshots;
mod writing;

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;
use support::{Cluster, texts};

/// How many shards the tests have.
const SHARDS: i32 = 8;

/// The tables of a shard. `ids_since` lets the old ids pass.
const MIGRATION: &str = "SELECT insta_ids.add_migration('0001', $$
        CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), email text UNIQUE, bio text);
        CREATE TABLE photos (title text, id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL REFERENCES users);
        CREATE TABLE likes (photo_id bigint REFERENCES photos, user_id bigint, PRIMARY KEY (photo_id, user_id));
        CREATE INDEX ON photos (user_id);
    $$, ids_since => '2011-08-25 00:00+00')";

/// The tables that users start with: photos go to the shard of their user, likes to that of their photo.
const TABLES: &str = "
    CREATE TABLE users (id bigserial PRIMARY KEY, email text UNIQUE, bio text);
    CREATE TABLE photos (id bigserial PRIMARY KEY, title text,
        user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE ON UPDATE CASCADE);
    CREATE TABLE likes (
        photo_id bigint REFERENCES photos ON DELETE CASCADE ON UPDATE CASCADE,
        user_id bigint REFERENCES users ON DELETE CASCADE ON UPDATE CASCADE,
        PRIMARY KEY (photo_id, user_id));
    CREATE INDEX ON photos (user_id);
    CREATE INDEX ON likes (user_id);
    INSERT INTO users (email, bio) SELECT n || '@example.org', 'user ' || n FROM generate_series(1, 500) n;
    INSERT INTO photos (title, user_id) SELECT 'photo ' || n, 1 + n % 500 FROM generate_series(1, 4000) n;
    INSERT INTO likes SELECT 1 + n % 4000, 1 + n * 7 % 500 FROM generate_series(1, 8000) n ON CONFLICT DO NOTHING;";

const REGISTERED: &str = "SELECT insta_ids.distribute_table('likes', 'photo_id');
    SELECT insta_ids.distribute_table('users', 'id');
    SELECT insta_ids.distribute_table('photos', 'user_id');";

/// The rows of the three tables, wherever they are: each table's rows by their primary key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    users: BTreeMap<i64, (String, String)>,
    photos: BTreeMap<i64, (i64, String)>,
    likes: BTreeSet<(i64, i64)>,
}

impl Rows {
    /// Adds the rows of a schema, and returns how many of them were there already.
    fn add(&mut self, client: &mut Client, schema: &str) -> usize {
        let mut twice = 0;
        for row in client.query(&format!("SELECT id, email, bio FROM {schema}.users"), &[]).unwrap() {
            twice += usize::from(self.users.insert(row.get(0), (row.get(1), row.get(2))).is_some());
        }
        for row in client.query(&format!("SELECT id, user_id, title FROM {schema}.photos"), &[]).unwrap() {
            twice += usize::from(self.photos.insert(row.get(0), (row.get(1), row.get(2))).is_some());
        }
        for row in client.query(&format!("SELECT photo_id, user_id FROM {schema}.likes"), &[]).unwrap() {
            twice += usize::from(!self.likes.insert((row.get(0), row.get(1))));
        }
        twice
    }

    /// The rows of the tables that users start with.
    fn of_sources(client: &mut Client) -> Self {
        let mut rows = Self::default();
        assert_eq!(rows.add(client, "public"), 0);
        rows
    }

    /// The rows of all shards. Each must be in one shard, and in the right one.
    fn of_shards(client: &mut Client) -> Self {
        let mut rows = Self::default();
        // New ids have their shard in them.
        let of_user = "CASE WHEN u.id < id_min('2011-08-25 00:00+00') THEN insta_ids.shard_of(u.id) ELSE id_shard(u.id) END";
        for shard in 0..SHARDS {
            assert_eq!(
                rows.add(client, &format!("insta{shard}")),
                0,
                "rows of shard {shard} are also in others"
            );
            let strays = texts(
                client,
                &format!(
                    "SELECT 'user ' || u.id FROM insta{shard}.users u WHERE {of_user} <> {shard}
                     UNION ALL SELECT 'photo ' || p.id FROM insta{shard}.photos p
                         WHERE NOT EXISTS (SELECT FROM insta{shard}.users u WHERE u.id = p.user_id)
                     UNION ALL SELECT 'like of ' || l.photo_id FROM insta{shard}.likes l
                         WHERE NOT EXISTS (SELECT FROM insta{shard}.photos p WHERE p.id = l.photo_id)"
                ),
            );
            assert!(strays.is_empty(), "{strays:?} in shard {shard}");
        }
        rows
    }
}

/// A server with shards, and the tables that users start with.
fn tables(name: &str) -> Cluster {
    tables_with(name, &[])
}

/// Like `tables`, with settings of the server.
fn tables_with(name: &str, settings: &[&str]) -> Cluster {
    let cluster = Cluster::with(name, settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    fill(&mut client);
    cluster
}

/// Makes the shards and the tables in a database with the extension.
fn fill(client: &mut Client) {
    client.batch_execute(&format!("SELECT insta_ids.init({SHARDS})")).unwrap();
    client.batch_execute(MIGRATION).unwrap();
    client.batch_execute(&format!("CALL insta_ids.create_shards(0, {})", SHARDS - 1)).unwrap();
    client.batch_execute(TABLES).unwrap();
}

/// What is left in the database of a distribution: triggers, functions and tables.
fn remains(client: &mut Client) -> Vec<String> {
    texts(
        client,
        "SELECT 'trigger on ' || tgrelid::regclass FROM pg_trigger
         WHERE tgname ~ '^insta_ids_(capture|return|refuse|distributed)'
         UNION ALL SELECT oid::regprocedure::text FROM pg_proc
         WHERE proname ~ '^insta_ids_' AND pronamespace = 'public'::regnamespace
         UNION ALL SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^insta_ids_' AND relnamespace = 'public'::regnamespace
         UNION ALL SELECT source::text FROM insta_ids.distributions",
    )
}
