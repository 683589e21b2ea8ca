//! From all kinds of keys and columns that tables have.

use postgres::Client;
use support::{Cluster, count, refused, texts};

use super::remains;

/// A table that users start with, and what is tried on it.
struct Kind {
    /// The source, with rows.
    source: &'static str,
    /// The table in the shards.
    target: &'static str,
    /// What is written after the first rows are copied.
    changes: &'static str,
    /// The calls of `distribute_table`.
    registered: &'static str,
    /// The tables, and the expression of the shard of a row there.
    tables: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 8] = [
    // A serial key of integers; columns in another order, of wider types, of types of a shard's own, and generated.
    Kind {
        source: "CREATE TYPE mood AS ENUM ('sad', 'happy');
            CREATE DOMAIN short AS varchar(20);
            CREATE TABLE t (id serial PRIMARY KEY, mood mood, moods mood[], tags text[], price numeric(8,2), name short,
                twice integer GENERATED ALWAYS AS (id * 2) STORED, at timestamptz, raw bytea, doc jsonb, \"Odd %I\" real);
            INSERT INTO t (mood, moods, tags, price, name, at, raw, doc, \"Odd %I\")
            SELECT 'happy', '{sad,happy}', ARRAY['a,\"b', NULL, n::text], n * 0.01, 'n' || n, '2026-01-01'::timestamptz + n * '1 s 1 us'::interval,
                decode(md5(n::text), 'hex'), jsonb_build_object('n', n), n / 3.0 FROM generate_series(1, 999) n",
        target: "CREATE TYPE mood AS ENUM ('sad', 'happy');
            CREATE TABLE t (\"Odd %I\" real, doc jsonb, raw bytea, at timestamptz, name varchar, price numeric, tags text[], moods mood[],
                mood mood, id bigint PRIMARY KEY DEFAULT next_id(), twice bigint GENERATED ALWAYS AS (id * 2) STORED, extra text DEFAULT 'x')",
        changes: "UPDATE t SET mood = NULL, \"Odd %I\" = 'NaN' WHERE id = 7; UPDATE t SET id = 5000 WHERE id = 8; DELETE FROM t WHERE id = 9;
            INSERT INTO t (name) VALUES ('new')",
        registered: "SELECT insta_ids.distribute_table('t', 'id')",
        tables: &[("t", "insta_ids.shard_of(id)")],
    },
    // A key of UUIDs, under another name in the shards.
    Kind {
        source: "CREATE TABLE t (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), n integer);
            INSERT INTO t (n) SELECT generate_series(1, 999)",
        target: "CREATE TABLE target (id uuid PRIMARY KEY, n integer)",
        changes: "UPDATE t SET n = -n WHERE n % 10 = 3; DELETE FROM t WHERE n = 5; UPDATE t SET id = gen_random_uuid() WHERE n = 6",
        registered: "SELECT insta_ids.distribute_table('t', 'id', 'target')",
        tables: &[("target", "insta_ids.shard_of_uuid(id)")],
    },
    // A partitioned table, by another key than the primary one, into partitioned tables.
    Kind {
        source: "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, day date, owner text NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
            CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
            CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01') PARTITION BY HASH (id);
            CREATE TABLE t_3 PARTITION OF t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
            CREATE TABLE t_4 PARTITION OF t_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
            INSERT INTO t (day, owner) SELECT '2026-01-01'::date + n % 59, 'owner ' || n % 50 FROM generate_series(1, 999) n",
        target: "CREATE TABLE t (owner text NOT NULL, id bigint DEFAULT next_id(), day date, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
            CREATE TABLE t_all PARTITION OF t DEFAULT",
        changes: "UPDATE t SET day = '2026-02-11' WHERE owner = 'owner 3'; UPDATE t_3 SET owner = 'owner 9' WHERE id % 5 = 0;
            DELETE FROM t_1 WHERE id % 7 = 0; INSERT INTO t (day, owner) VALUES ('2026-01-15', 'new')",
        registered: "SELECT insta_ids.distribute_table('t', 'owner')",
        tables: &[("t", "insta_ids.shard_of_text(owner)")],
    },
    // A chain: each row goes with its parent, and a parent that changes takes all that belongs to it along.
    Kind {
        source: "CREATE TABLE orgs (id integer PRIMARY KEY, region smallint NOT NULL);
            CREATE TABLE teams (id text PRIMARY KEY, org integer NOT NULL REFERENCES orgs ON UPDATE CASCADE ON DELETE CASCADE);
            CREATE TABLE people (team text NOT NULL REFERENCES teams ON UPDATE CASCADE ON DELETE CASCADE, n integer, PRIMARY KEY (n, team));
            INSERT INTO orgs SELECT n, n % 7 FROM generate_series(1, 50) n;
            INSERT INTO teams SELECT 'team ' || n, 1 + n % 50 FROM generate_series(1, 300) n;
            INSERT INTO people SELECT 'team ' || 1 + n % 300, n FROM generate_series(1, 2000) n",
        target: "CREATE TABLE orgs (id integer PRIMARY KEY, region smallint NOT NULL);
            CREATE TABLE teams (id text PRIMARY KEY, org integer NOT NULL REFERENCES orgs);
            CREATE TABLE people (team text NOT NULL REFERENCES teams, n integer, PRIMARY KEY (team, n))",
        changes: "UPDATE orgs SET region = 6 WHERE id = 3; UPDATE orgs SET id = 100 WHERE id = 4; DELETE FROM orgs WHERE id = 5;
            UPDATE teams SET org = 7 WHERE id = 'team 7'; UPDATE teams SET id = 'other' WHERE id = 'team 8';
            UPDATE people SET team = 'team 10' WHERE team = 'team 11' AND n % 2 = 0;
            BEGIN; UPDATE orgs SET region = 1 WHERE id = 9; INSERT INTO teams VALUES ('late', 9); INSERT INTO people VALUES ('late', 1);
            UPDATE orgs SET region = 2 WHERE id = 9; UPDATE teams SET org = 10 WHERE org = 9; DELETE FROM orgs WHERE id = 9; COMMIT",
        registered: "SELECT insta_ids.distribute_table('people', 'team'); SELECT insta_ids.distribute_table('teams', 'org');
            SELECT insta_ids.distribute_table('orgs', 'region')",
        tables: &[
            ("orgs", "insta_ids.shard_of(region)"),
            ("teams", "insta_ids.shard_of((SELECT o.region FROM orgs o WHERE o.id = t.org))"),
            ("people", "insta_ids.shard_of((SELECT o.region FROM orgs o JOIN teams s ON s.org = o.id WHERE s.id = t.team))"),
        ],
    },
    // A key with a length, and columns with names that statements have. All tables are published, and PUBLIC may use new ones.
    Kind {
        source: "CREATE TABLE t (place char(10) PRIMARY KEY, s bigint NOT NULL, was bit(8), c text, p text, shard text);
            INSERT INTO t SELECT 'place ' || n, n, n::bit(8), 'c', 'p', 's' FROM generate_series(1, 99) n;
            CREATE PUBLICATION everything FOR ALL TABLES; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC",
        target: "CREATE TABLE t (shard text, p text, c text, was bit(8), s bigint NOT NULL, place char(10) PRIMARY KEY)",
        changes: "UPDATE t SET s = s + 1 WHERE s % 3 = 0; DELETE FROM t WHERE s = 7; UPDATE t SET place = 'other' WHERE s = 8",
        registered: "SELECT insta_ids.distribute_table('t', 's')",
        tables: &[("t", "insta_ids.shard_of(s)")],
    },
    // A trigger changes rows again that the same statement has changed, and a key has an odd name.
    Kind {
        source: "CREATE TABLE t (\"%1$I 'id\" bigint PRIMARY KEY, owner bigint NOT NULL, n int);
            INSERT INTO t SELECT n, n, 0 FROM generate_series(1, 99) n;
            CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
                IF pg_trigger_depth() = 1 THEN UPDATE t SET owner = owner + 1, n = n + 1; END IF; RETURN NULL; END';
            CREATE TRIGGER again AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION again();
            CREATE TRIGGER \"0\" AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION again()",
        target: "CREATE TABLE t (n int, owner bigint NOT NULL, \"%1$I 'id\" bigint PRIMARY KEY)",
        changes: "UPDATE t SET owner = owner + 3 WHERE n < 10; INSERT INTO t VALUES (5, 5, 5) ON CONFLICT (\"%1$I 'id\") DO UPDATE SET owner = 77;
            INSERT INTO t VALUES (6, 6, 6) ON CONFLICT DO NOTHING; INSERT INTO t VALUES (100, 1, 1)",
        registered: "SELECT insta_ids.distribute_table('t', 'owner')",
        tables: &[("t", "insta_ids.shard_of(owner)")],
    },
    // A row that refers to a row that is deleted while its unique value goes to another one.
    Kind {
        source: "CREATE TABLE a (id bigint PRIMARY KEY, name text UNIQUE);
            CREATE TABLE b (id bigint PRIMARY KEY, a bigint NOT NULL REFERENCES a);
            INSERT INTO a SELECT n, n FROM generate_series(0, 79) n; INSERT INTO b SELECT n, n FROM generate_series(0, 79) n",
        target: "CREATE TABLE a (id bigint PRIMARY KEY, name text UNIQUE); CREATE TABLE b (id bigint PRIMARY KEY, a bigint NOT NULL REFERENCES a)",
        changes: "BEGIN; UPDATE b SET a = 8 WHERE a = 0; UPDATE b SET a = 16 WHERE a = 8; DELETE FROM a WHERE id IN (0, 8);
            UPDATE a SET name = '0' WHERE id = 24; UPDATE a SET name = 'x' WHERE id = 32; UPDATE a SET name = '32' WHERE id = 40;
            UPDATE a SET name = '40' WHERE id = 32; INSERT INTO a VALUES (0, 'new'); COMMIT",
        registered: "SELECT insta_ids.distribute_table('a', 'id'); SELECT insta_ids.distribute_table('b', 'a')",
        tables: &[("a", "insta_ids.shard_of(id)"), ("b", "insta_ids.shard_of(a)")],
    },
    // Keys whose texts differ with the settings of the session that writes.
    Kind {
        source: "CREATE TABLE t (at timestamptz, day date, part double precision, span interval, raw bytea, n int NOT NULL,
                PRIMARY KEY (at, day, part, span, raw));
            INSERT INTO t SELECT '2026-02-03 04:05:06.000001Z'::timestamptz + n * '1 day'::interval, '2026-01-02'::date + n, n / 3.0, n * '-1 h 1 us'::interval,
                decode(md5(n::text), 'hex'), n FROM generate_series(1, 99) n",
        target: "CREATE TABLE t (at timestamptz, day date, part double precision, span interval, raw bytea, n int NOT NULL,
                PRIMARY KEY (raw, span, part, day, at))",
        changes: "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET extra_float_digits = -10; SET bytea_output = 'escape';
            SET timezone = 'Asia/Kolkata'; UPDATE t SET n = n + 1 WHERE n % 2 = 0; DELETE FROM t WHERE n = 7; UPDATE t SET part = 1 / 7.0 WHERE n = 9;
            INSERT INTO t VALUES (now(), now(), pi(), '1 mon 2 d -3 h', decode('00ff', 'hex'), 4); RESET ALL",
        registered: "SELECT insta_ids.distribute_table('t', 'n')",
        tables: &[("t", "insta_ids.shard_of(n)")],
    },
];

/// What a text of a key depends on is not changed meanwhile, and a key that would have none is refused.
#[test]
fn texts_of_keys_stay_the_same() {
    let cluster = Cluster::start("distribute_texts");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(4)").unwrap();
    let table = "CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE TYPE other AS ENUM ('a'); CREATE TABLE t (id mood PRIMARY KEY, k int NOT NULL, o other)";
    client.execute("SELECT insta_ids.add_migration('t', $1)", &[&table]).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client.batch_execute(table).unwrap();
    client.batch_execute("INSERT INTO t VALUES ('calm', 1)").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_table('t', 'k')").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("INSERT INTO t VALUES ('wild', 2)").unwrap();
    let rename = "ALTER TYPE mood RENAME VALUE 'wild' TO 'mad'";
    assert_eq!(refused(&mut client, rename).code().code(), "55006");
    client.batch_execute("ALTER TYPE other RENAME VALUE 'a' TO 'b'").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    client.batch_execute("INSERT INTO insta1.t VALUES ('wild', 1); ROLLBACK").unwrap();
    assert_eq!(
        refused(&mut client, "ALTER TYPE insta1.mood RENAME VALUE 'wild' TO 'mad'").code().code(),
        "55006"
    );
    client
        .batch_execute("DELETE FROM insta1.t WHERE id = 'wild'; SELECT insta_ids.distribute_abort()")
        .unwrap();
    client.batch_execute(rename).unwrap();

    let wide = (1..=32).map(|n| format!("c{n}")).collect::<Vec<_>>();
    let typed = "CREATE TYPE ct AS (id bigint); CREATE TABLE typed OF ct (PRIMARY KEY (id))";
    let domain = "CREATE DOMAIN d AS mood; CREATE TABLE of_domain (id d PRIMARY KEY, k int NOT NULL)";
    client.batch_execute(&format!("{typed}; {domain}")).unwrap();
    for (table, key) in [("typed", "id"), ("of_domain", "k")] {
        let error =
            refused(&mut client, &format!("SELECT insta_ids.distribute_table('{table}', '{key}', 't')"));
        assert_eq!(error.code().code(), "55000");
    }
    // A key of as many columns as an index can have.
    let columns = format!("{} int, PRIMARY KEY ({})", wide.join(" int, "), wide.join(", "));
    client.batch_execute("SELECT insta_ids.unfence(s.shard) FROM insta_ids.shards s").unwrap();
    client
        .execute("SELECT insta_ids.add_migration('wide', $1)", &[&format!("CREATE TABLE wide ({columns})")])
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client
        .batch_execute(&format!(
            "CREATE TABLE wide ({columns}); INSERT INTO wide SELECT {}",
            vec!["1"; 32].join(", ")
        ))
        .unwrap();
    client.batch_execute("SELECT insta_ids.distribute_table('wide', 'c1')").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("UPDATE wide SET c32 = 2; SELECT insta_ids.distribute_switch()").unwrap();
    assert_eq!(count(&mut client, "SELECT sum(c32) FROM insta1.wide"), 2);
}

/// The rows of a table, as text, whatever the order of its columns is and the columns that only one side has are.
fn rows(client: &mut Client, table: &str) -> Vec<String> {
    texts(
        client,
        &format!(
            "SELECT e.r FROM {table} t, LATERAL (
                 SELECT string_agg(key || '=' || value, ' ' ORDER BY key) FROM jsonb_each_text(to_jsonb(t)) WHERE key <> 'extra') e (r)
             ORDER BY e.r COLLATE \"C\""
        ),
    )
}

#[test]
fn tables_of_all_kinds_go_to_the_shards() {
    let cluster = Cluster::bare("distribute_kinds");
    for (n, kind) in KINDS.iter().enumerate() {
        cluster.connect().batch_execute(&format!("CREATE DATABASE kind{n}")).unwrap();
        let mut client = cluster.connect_to(&format!("kind{n}"));
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        client.batch_execute("SELECT insta_ids.init(8)").unwrap();
        client
            .execute("SELECT insta_ids.add_migration('0001', $1, ids_since => '2011-08-25')", &[&kind.target])
            .unwrap();
        client.batch_execute("CALL insta_ids.create_shards(0, 7)").unwrap();
        client.batch_execute(kind.source).unwrap();
        client.batch_execute(kind.registered).unwrap();
        client.batch_execute("CALL insta_ids.distribute(batch => 70)").unwrap();
        client.batch_execute(kind.changes).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
        // What is written now is brought by the switch.
        client.batch_execute("CREATE TABLE before AS SELECT 1; DROP TABLE before").unwrap();
        // A publication of all tables of the schema would publish a table that is made there.
        let own = "SELECT count(*) FROM pg_class WHERE relname LIKE 'insta%' AND relnamespace = 'public'::regnamespace";
        assert_eq!(count(&mut client, own), 0);
        client.batch_execute("SELECT insta_ids.distribute_switch(way_back => false)").unwrap();
        for (table, shard) in kind.tables {
            let source = if *table == "target" { "t" } else { table };
            let mut everywhere = Vec::new();
            for number in 0..8 {
                client.batch_execute(&format!("SET search_path = insta{number}, public")).unwrap();
                let strays = count(
                    &mut client,
                    &format!("SELECT count(*) FROM insta{number}.{table} t WHERE {shard} <> {number}"),
                );
                assert_eq!(strays, 0, "kind {n}, table {table}, shard {number}");
                everywhere.extend(rows(&mut client, &format!("insta{number}.{table}")));
            }
            everywhere.sort_unstable();
            let mut expected = rows(&mut client, &format!("public.{source}"));
            expected.sort_unstable();
            assert!(expected.len() > 40);
            assert_eq!(everywhere, expected, "kind {n}, table {table}");
        }
        client.batch_execute("RESET search_path; SELECT insta_ids.distribute_finish()").unwrap();
        assert_eq!(remains(&mut client), Vec::<String>::new());
        let found = texts(
            &mut client,
            "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check() WHERE severity = 'error'",
        );
        assert_eq!(found, Vec::<String>::new());
        client.batch_execute("CALL insta_ids.check_rows()").unwrap();
    }
}

/// Old ids pass in all shards, new ones only in their own.
#[test]
fn the_check_of_ids_lets_old_ids_pass_where_the_migration_says_so() {
    let cluster = Cluster::start("distribute_ids");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(4);
             SELECT insta_ids.add_migration('old', 'CREATE TABLE old (\"Id\" bigint PRIMARY KEY DEFAULT next_id())',
                 ids_since => '2011-08-25 00:00+00');
             SELECT insta_ids.add_migration('new', 'CREATE TABLE new (id bigint PRIMARY KEY DEFAULT next_id())')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client
        .batch_execute(
            "INSERT INTO insta2.old VALUES (12345), (DEFAULT); INSERT INTO insta2.new VALUES (DEFAULT)",
        )
        .unwrap();
    assert_eq!(refused(&mut client, "INSERT INTO insta2.new VALUES (12345)").code().code(), "23514");
    assert_eq!(
        refused(&mut client, "INSERT INTO insta2.old VALUES (insta1.next_id())").code().code(),
        "23514"
    );
    let findings =
        "SELECT code FROM insta_ids.check() WHERE severity <> 'notice' AND code NOT LIKE '%preload%'";
    assert_eq!(texts(&mut client, findings), Vec::<String>::new());
    client.batch_execute("CALL insta_ids.check_rows()").unwrap();

    // A CHECK of another form is none that keeps ids of other shards out.
    client
        .batch_execute(
            "ALTER TABLE insta2.old DROP CONSTRAINT \"old_Id_check\",
                 ADD CHECK (\"Id\" > 0 OR id_shard(\"Id\") = 2)",
        )
        .unwrap();
    assert!(texts(&mut client, findings).contains(&"missing_check".to_owned()));
    client.batch_execute("INSERT INTO insta2.old VALUES (insta1.next_id())").unwrap();
    assert_eq!(refused(&mut client, "CALL insta_ids.check_rows()").code().code(), "23514");
    let before =
        "SELECT insta_ids.add_migration('before', 'CREATE TABLE x (id int)', ids_since => '2000-01-01')";
    assert_eq!(refused(&mut client, before).code().code(), "22008");
}

/// Partitions can be made meanwhile. Their rows go the same way, and TRUNCATE, which would not be noted, is refused for them, too.
#[test]
fn partitions_that_are_made_meanwhile_are_as_the_others() {
    const TABLE: &str = "CREATE TABLE t (id bigint, day date, owner bigint NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')";
    let refuses_truncate = |client: &mut Client, table: &str| {
        let error = refused(client, &format!("TRUNCATE {table}"));
        assert_eq!((error.code().code(), error.message().contains(table)), ("55006", true));
    };
    let cluster = Cluster::start("distribute_partitions");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(4)").unwrap();
    client
        .batch_execute(&format!(
            "SELECT insta_ids.add_migration('t', $${TABLE}; CREATE TABLE t_d PARTITION OF t DEFAULT$$)"
        ))
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client.batch_execute(TABLE).unwrap();
    client.batch_execute("INSERT INTO t SELECT n, '2026-01-05', n FROM generate_series(1, 100) n").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_table('t', 'owner')").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();

    client
        .batch_execute(
            "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01') PARTITION BY HASH (id);
             CREATE TABLE t_3 PARTITION OF t_2 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
             INSERT INTO t SELECT n, '2026-02-05', n FROM generate_series(1, 100) n",
        )
        .unwrap();
    refuses_truncate(&mut client, "t_1");
    refuses_truncate(&mut client, "t_2");
    refuses_truncate(&mut client, "t_3");
    // A dump has these triggers as well.
    client.batch_execute("CREATE DATABASE copy").unwrap();
    cluster.restore("postgres", "postgres", "copy");
    refuses_truncate(&mut cluster.connect_to("copy"), "t_3");
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();

    client
        .batch_execute(
            "CREATE TABLE insta1.t_2 PARTITION OF insta1.t FOR VALUES FROM ('2027-02-01') TO ('2027-03-01');
             CREATE TABLE insta1.t_3 (LIKE insta1.t INCLUDING ALL);
             ALTER TABLE insta1.t ATTACH PARTITION insta1.t_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01');
             INSERT INTO insta1.t VALUES (1000, '2026-03-05', 1000)",
        )
        .unwrap();
    refuses_truncate(&mut client, "insta1.t_d");
    refuses_truncate(&mut client, "insta1.t_2");
    refuses_truncate(&mut client, "insta1.t_3");
    // The way back has no partition for this day.
    let error = refused(&mut client, "SELECT insta_ids.distribute_abort()");
    assert_eq!(error.code().code(), "23514");
    client.batch_execute("UPDATE insta1.t SET day = '2026-02-06' WHERE id = 1000").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(texts(&mut client, "SELECT count(*)::text FROM t"), ["201"]);
    client.batch_execute("TRUNCATE t_2").unwrap();
}
