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
            "Column \"user_id\" of table bad.viewed is a smaller integer than the IDs of shards, and cannot be altered: view bad.seen depends on it. Drop that, and create it again when the type is altered.",
            "The default of column \"id\" of table bad.texts takes values of sequence bad.numbers in an expression. Give the column another default.",
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
        ("'{users}', 'id', keys => '[]'", "keys is no JSON object of texts"),
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

/// What dates, statistics and partitions of their own are like, and what a plan prepares.
const KINDS: &str = "CREATE SCHEMA k;
    CREATE TABLE k.users (id bigint PRIMARY KEY, d date DEFAULT '2020-02-01' CHECK (d < '2031-02-01'), n integer);
    CREATE STATISTICS k.doubled ON (n * 2) FROM k.users;
    CREATE TABLE k.events (
        id bigint, user_id bigint REFERENCES k.users ON DELETE SET NULL, at date, v integer DEFAULT 1, w text,
        PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE k.events1 PARTITION OF k.events (v DEFAULT 9, w NOT NULL, CONSTRAINT own CHECK (v <> 5))
        FOR VALUES FROM ('2020-02-01') TO ('2020-03-01');
    ALTER TABLE k.events1 ADD UNIQUE (id);
    CREATE STATISTICS k.parts (ndistinct) ON v, w FROM k.events1;
    GRANT SELECT ON k.events1 TO PUBLIC;
    CREATE TABLE k.posts (id integer PRIMARY KEY, user_id integer NOT NULL, no integer GENERATED ALWAYS AS IDENTITY);
    ALTER TABLE k.posts ADD FOREIGN KEY (user_id) REFERENCES k.users NOT VALID;
    INSERT INTO k.users SELECT n FROM generate_series(1, 50) n;
    INSERT INTO k.events SELECT n, n, '2020-02-03', 1, 'w' FROM generate_series(1, 50) n;
    INSERT INTO k.posts SELECT n, n FROM generate_series(1, 50) n;";

/// Constraints, defaults and statistics of a schema's tables, as they are written without its name.
fn definitions(client: &mut Client, schema: &str) -> Vec<String> {
    let all = format!(
        "WITH t AS (SELECT oid, relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind IN ('r', 'p'))
         SELECT replace(d, '{schema}.', '') FROM (
             SELECT concat_ws(' ', t.relname, c.conname, pg_get_constraintdef(c.oid)) FROM t JOIN pg_constraint c ON c.conrelid = t.oid
             WHERE c.contype IN ('c', 'u', 'p') AND c.conname !~ '_id_check$|_no_check$'
             UNION ALL SELECT concat_ws(' ', t.relname, a.attname, a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
             FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
             WHERE a.attname <> 'no'
             UNION ALL SELECT concat_ws(' ', t.relname, pg_get_expr(c.relpartbound, c.oid), c.relacl IS NOT NULL) FROM t JOIN pg_class c USING (oid)
             UNION ALL SELECT pg_get_statisticsobjdef(s.oid) FROM t JOIN pg_statistic_ext s ON s.stxrelid = t.oid) x (d) ORDER BY 1"
    );
    texts(client, &all)
}

#[test]
fn the_tables_of_the_shards_are_as_the_old_ones() {
    let cluster = Cluster::start("plan_kinds");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(4)").unwrap();
    client.batch_execute(KINDS).unwrap();
    client.batch_execute("SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kolkata'").unwrap();
    let plan = "SELECT statement FROM insta_ids.distribute_plan(schema => 'k', key => 'user_id') WHERE statement <> '' AND action <> 'finish' ORDER BY step";
    let statements = texts(&mut client, plan);
    client.batch_execute("RESET ALL").unwrap();
    for statement in statements {
        client.batch_execute(&statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    assert_eq!(definitions(&mut client, "insta2"), definitions(&mut client, "k"));
    let error =
        refused(&mut client, "SELECT * FROM insta_ids.distribute_plan(schema => 'k', key => 'user_id')");
    assert_eq!(error.message(), "tables are being distributed already");
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(count(&mut client, "SELECT count(DISTINCT no) FROM k.posts"), 50);

    // A second plan notices what has changed since.
    client.batch_execute("ALTER TABLE k.posts ADD z integer; ALTER TABLE k.events RENAME CONSTRAINT events_user_id_fkey TO key").unwrap();
    let again = "schema => 'k', key => 'user_id'";
    assert_eq!(
        reasons(&mut client, again, "obstacle"),
        ["k.posts: Table insta0.posts lacks column \"z\" of the source."]
    );
    client.batch_execute("ALTER TABLE k.posts DROP z").unwrap();
    for statement in texts(&mut client, plan) {
        client.batch_execute(&statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

/// What keeps a column of IDs from becoming a bigint, and what would depend on an old table.
#[test]
fn a_plan_names_what_depends_on_a_column() {
    let cluster = Cluster::start("plan_widening");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(8); CREATE ROLE other; CREATE SCHEMA w; SET search_path = w, public;
             CREATE DOMAIN uid AS integer CHECK (VALUE > 0);
             CREATE TABLE users (id serial PRIMARY KEY, twice integer GENERATED ALWAYS AS (id * 2) STORED);
             CREATE TABLE posts (id serial PRIMARY KEY, user_id integer NOT NULL REFERENCES users, r regclass DEFAULT 'users'::regclass,
                 k numeric DEFAULT nextval('users_id_seq'));
             CREATE TABLE domains (user_id uid PRIMARY KEY REFERENCES users);
             CREATE TABLE log (uid integer REFERENCES users);
             CREATE TABLE others (r posts, k integer);
             CREATE FUNCTION counts() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM posts WHERE user_id > 5; END;
             CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER tg BEFORE UPDATE OF user_id ON posts FOR EACH ROW EXECUTE FUNCTION tf();
             CREATE RULE r AS ON INSERT TO users DO ALSO SELECT 1;
             RESET search_path",
        )
        .unwrap();
    client.batch_execute("ALTER TABLE w.log OWNER TO other").unwrap();
    let error = refused(&mut client, "SELECT * FROM insta_ids.distribute_plan('{w.users}', 'id')");
    assert_eq!((error.code().code(), error.message()), ("42501", "table w.log belongs to role other"));
    client.batch_execute("ALTER TABLE w.log OWNER TO postgres").unwrap();
    let mut found = reasons(&mut client, "'{w.users, w.posts, w.domains}', 'user_id'", "obstacle");
    found.sort();
    assert_eq!(
        found,
        [
            "Column \"id\" of table w.posts is a smaller integer than the IDs of shards, and cannot be altered: column r of table w.others has the row type of the table.",
            "Column \"id\" of table w.users is a smaller integer than the IDs of shards, and cannot be altered: default value for column twice of table w.users depends on it. Drop that, and create it again when the type is altered.",
            "Column \"user_id\" of table w.domains is a smaller integer than the IDs of shards, and cannot be altered: its type is the domain w.uid. Give it one over bigint.",
            "Column \"user_id\" of table w.posts is a smaller integer than the IDs of shards, and cannot be altered: column r of table w.others has the row type of the table.",
            "Column \"user_id\" of table w.posts is a smaller integer than the IDs of shards, and cannot be altered: function w.counts() depends on it. Drop that, and create it again when the type is altered.",
            "Column \"user_id\" of table w.posts is a smaller integer than the IDs of shards, and cannot be altered: trigger tg on table w.posts depends on it. Drop that, and create it again when the type is altered.",
            "Table w.users has a rule, with which there would be no way back. Drop the rule.",
            "The default of column \"k\" of table w.posts takes values of sequence w.users_id_seq in an expression. Give the column another default.",
            "default value for column r of table w.posts would be in the shards, and depends on table w.users.",
        ]
    );
}
