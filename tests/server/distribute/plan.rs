//! What `distribute_plan` returns: obstacles, notes, and statements that run as they are.

use super::application::{application, session};
use postgres::Client;
use support::{Cluster, count, refused, texts};

/// The reasons of one kind of steps.
fn reasons(client: &mut Client, arguments: &str, action: &str) -> Vec<String> {
    texts(
        client,
        &format!(
            "SELECT why FROM insta_ids.distribute_plan({arguments}) WHERE action = '{action}' ORDER BY step"
        ),
    )
}

/// What hinders each table, in the schema `bad`.
const HINDERED: &str = "CREATE SCHEMA bad;
    CREATE TABLE bad.users (id serial PRIMARY KEY, code text UNIQUE);
    CREATE TABLE bad.by_code (id serial PRIMARY KEY, code text NOT NULL REFERENCES bad.users (code));
    CREATE TABLE bad.loose (id serial PRIMARY KEY, user_id integer REFERENCES bad.users);
    INSERT INTO bad.loose VALUES (1), (2);
    CREATE TABLE bad.parts (user_id integer REFERENCES bad.users, n integer, PRIMARY KEY (user_id, n)) PARTITION BY HASH (user_id);
    CREATE TABLE bad.viewed (user_id integer PRIMARY KEY REFERENCES bad.users);
    CREATE VIEW bad.seen AS SELECT user_id FROM bad.viewed;
    CREATE SEQUENCE bad.numbers;
    CREATE TABLE bad.texts (id text DEFAULT 't' || nextval('bad.numbers') PRIMARY KEY, user_id integer NOT NULL);
    CREATE TABLE bad.policies (id integer PRIMARY KEY, user_id integer NOT NULL);
    ALTER TABLE bad.policies ENABLE ROW LEVEL SECURITY;
    CREATE TABLE bad.keyless (user_id integer NOT NULL);
    CREATE TABLE bad.late (id bigserial PRIMARY KEY, user_id integer NOT NULL);
    INSERT INTO bad.late VALUES (8000000000000000000, 1);";

#[test]
fn a_plan_names_each_obstacle() {
    let cluster = Cluster::start("plan_obstacles");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(8)").unwrap();
    client.batch_execute(HINDERED).unwrap();
    let all = "schema => 'bad', key => 'user_id', keys => '{\"by_code\": \"code\"}'";
    assert_eq!(
        reasons(&mut client, all, "obstacle"),
        [
            "bad.keyless: It has no primary key.",
            "bad.policies: It has row security.",
            "bad.loose: Column \"user_id\" is NULL in 2 rows, and says no shard for them. Give it values, or delete these rows.",
            "Column \"user_id\" of table bad.parts is a smaller integer than the IDs of shards, and cannot be altered: it is in a partition key. Create the table again with a bigint.",
            "Column \"user_id\" of table bad.viewed is a smaller integer than the IDs of shards, and cannot be altered: view bad.seen reads it. Drop the view, and create it again when the type is altered.",
            "Column \"id\" of table bad.texts is in the primary key, and its default takes values of sequence bad.numbers, which other shards would repeat. Let it be an integer, or have another default.",
            "Foreign key \"by_code_code_fkey\" of table bad.by_code refers to other columns of table bad.users than the primary key, so its rows would go to other shards. Let `keys` name a column that refers to the primary key, or drop the foreign key.",
            "IDs are as large as those of 2041-11-13 00:00:00+00, and ids_since cannot be later than today. Give the rows with the largest IDs other ones.",
        ]
    );
}

#[test]
fn arguments_are_checked() {
    let cluster = application("plan_arguments");
    let mut app = session(&cluster);
    for (call, message) in [
        ("NULL", "key, and either tables or schema, must be given"),
        ("'{users}', NULL", "key, and either tables or schema, must be given"),
        ("'{users, NULL}', 'id'", "key, and either tables or schema, must be given"),
        ("'{users}', 'id', 'app'", "key, and either tables or schema, must be given"),
        ("'{users}', 'id', keys => NULL", "key, and either tables or schema, must be given"),
        ("'{users}', 'other'", "no table has column \"other\""),
        (
            "'{users}', 'id', keys => '{\"photos\": \"id\"}'",
            "keys has table \"photos\", which is none of the tables",
        ),
        ("'{users}', 'id', keys => '[]'", "keys is no JSON object"),
    ] {
        let error = refused(&mut app, &format!("SELECT * FROM insta_ids.distribute_plan({call})"));
        assert_eq!(error.message(), message, "{call}");
    }
    // A plan changes nothing, and its arguments need no types.
    app.batch_execute("SET default_transaction_read_only = on").unwrap();
    let registered = "SELECT statement FROM insta_ids.distribute_plan('{users, likes, photos, photos}', 'user_id', keys => '{\"likes\": \"liker_id\"}') WHERE action = 'register' ORDER BY step";
    assert_eq!(
        texts(&mut app, registered),
        [
            "SELECT insta_ids.distribute_table('app.users', 'id')",
            "SELECT insta_ids.distribute_table('app.photos', 'user_id')",
            "SELECT insta_ids.distribute_table('app.likes', 'liker_id')",
        ]
    );
    let stays = "SELECT why FROM insta_ids.distribute_plan('{users, tags}', 'id') WHERE action = 'stays'";
    assert_eq!(texts(&mut app, stays), [""; 0]);
    let mut superuser = cluster.connect();
    let error = refused(&mut superuser, "SELECT * FROM insta_ids.distribute_plan('{app.users}', 'id')");
    assert_eq!(error.code().code(), "42501");
}

/// Names that have to be quoted, two tables that refer to each other, and what only the text of a migration can show.
const ODD: &str = "CREATE SCHEMA \"My \"\"%Shop\";
    SET search_path = \"My \"\"%Shop\", public;
    CREATE TYPE \"Kind %\" AS ENUM ('a', 'b''c');
    CREATE DOMAIN cents AS bigint CHECK (VALUE >= 0);
    CREATE FUNCTION \"f %\"(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN upper($1);
    CREATE TABLE \"Customer %I\" (\"Id\" serial PRIMARY KEY, kind \"Kind %\" NOT NULL DEFAULT 'b''c', \"$ddl$\" text, address_id integer);
    CREATE TABLE \"Order\" (
        \"Customer Id\" integer NOT NULL REFERENCES \"Customer %I\" ON UPDATE CASCADE, number integer GENERATED ALWAYS AS IDENTITY,
        total cents DEFAULT 5, label text GENERATED ALWAYS AS (\"f %\"(note)) STORED, note text COLLATE \"C\" DEFAULT '%s $ddl$',
        spans int4range[], PRIMARY KEY (\"Customer Id\", number), EXCLUDE USING btree (number WITH =, \"Customer Id\" WITH =)
    ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.5);
    CREATE TABLE \"Line\" (
        \"Customer Id\" integer, number integer, \"no\" smallint, parent smallint, price numeric(9, 2) CHECK (price > 0 AND '%' <> ''),
        PRIMARY KEY (\"Customer Id\", number, \"no\"), FOREIGN KEY (\"Customer Id\", number) REFERENCES \"Order\",
        FOREIGN KEY (\"Customer Id\", number, parent) REFERENCES \"Line\" ON DELETE SET NULL (parent));
    CREATE TABLE address (id serial PRIMARY KEY, customer_id integer REFERENCES \"Customer %I\" ON DELETE SET NULL, city text);
    ALTER TABLE \"Customer %I\" ADD FOREIGN KEY (address_id) REFERENCES address DEFERRABLE;
    CREATE UNIQUE INDEX \"on %\" ON \"Order\" (\"Customer Id\", lower(note) DESC NULLS LAST) INCLUDE (total) WHERE note <> '%';
    INSERT INTO \"Customer %I\" (\"$ddl$\") SELECT n FROM generate_series(1, 50) n;
    INSERT INTO \"Order\" (\"Customer Id\", note) SELECT n, 'note ' || n FROM generate_series(1, 50) n;
    INSERT INTO \"Line\" SELECT \"Customer Id\", number, k, nullif(k - 1, 0), k FROM \"Order\", generate_series(1, 3) k;
    INSERT INTO address (customer_id) SELECT n FROM generate_series(1, 50) n;
    UPDATE \"Customer %I\" SET address_id = \"Id\";
    RESET search_path;";

#[test]
fn a_plan_of_odd_names_runs_as_it_is() {
    let cluster = Cluster::start("plan_names");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(4, prefix => 'My Shard %')").unwrap();
    client.batch_execute(ODD).unwrap();
    let plan = "SELECT statement FROM insta_ids.distribute_plan(schema => '\"My \"\"%Shop\"', key => 'Customer Id', keys => '{\"address\": \"customer_id\"}')
        WHERE statement <> '' AND action <> 'finish' ORDER BY step";
    for _ in 0..2 {
        for statement in texts(&mut client, plan) {
            client.batch_execute(&statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        let counts = "SELECT string_agg(source::text || ' ' || rows_copied, ', ' ORDER BY number) FROM insta_ids_internal.distribution";
        assert_eq!(
            texts(&mut client, counts),
            [
                "\"My \"\"%Shop\".\"Customer %I\" 50, \"My \"\"%Shop\".\"Order\" 50, \"My \"\"%Shop\".\"Line\" 150, \"My \"\"%Shop\".address 50"
            ]
        );
        let keys = "SELECT concat(c.conname, ' ', c.confdeltype, c.confupdtype) FROM pg_constraint c
            WHERE c.contype = 'f' AND c.connamespace = '\"My Shard %3\"'::regnamespace ORDER BY 1";
        assert_eq!(
            texts(&mut client, keys),
            [
                "Line_Customer Id_number_fkey aa",
                "Line_Customer Id_number_parent_fkey na",
                "Order_Customer Id_fkey ac",
                "address_customer_id_fkey aa"
            ]
        );
        client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    }
    assert_eq!(count(&mut client, "SELECT count(*) FROM \"My \"\"%Shop\".\"Line\""), 150);
}
