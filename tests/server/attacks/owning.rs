//! Code of another role that the statements of a distribution, a clone or a move would run, wherever it is: types, casts,
//! operator classes and functions count like tables.

use super::ran;
use postgres::Client;
use std::collections::BTreeSet;
use support::{Cluster, count, major, refused};

/// A guest's functions tell the log as whom they run, in sessions that ask for it. The guest can log in nowhere else.
const GUEST: &str = r"
    CREATE ROLE guest; CREATE SCHEMA g AUTHORIZATION guest; GRANT USAGE ON SCHEMA g TO PUBLIC; SELECT insta_ids.init(2);
    SET ROLE guest;
    CREATE FUNCTION g.canary(planted text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF pg_catalog.current_setting('test.armed', true) OPERATOR(pg_catalog.=) 'on' THEN
            RAISE LOG '% RAN AS %', planted,
                (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'guest' END FROM pg_catalog.pg_roles WHERE rolname = current_user);
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION g.evil(planted text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN g.canary(planted); END$$;
    CREATE FUNCTION g.compare(bigint, bigint) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN PERFORM g.canary('an operator class'); RETURN pg_catalog.btint8cmp($1, $2); END$$;
    CREATE FUNCTION g.less(bigint, bigint) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN RETURN g.canary('an operator'); END$$;
    CREATE FUNCTION g.fires() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN PERFORM g.canary('a trigger'); RETURN coalesce(NEW, OLD); END$$;
    CREATE TYPE g.mood AS ENUM ('sad', 'ok');
    CREATE FUNCTION g.mood_text(g.mood) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN PERFORM g.canary('a cast'); RETURN 'ok'; END$$;
    CREATE CAST (g.mood AS text) WITH FUNCTION g.mood_text(g.mood) AS ASSIGNMENT;
    CREATE DOMAIN g.checked AS text CHECK (g.evil('a domain'));
    RESET ROLE;
    CREATE DOMAIN again AS g.checked;
    CREATE TYPE pair AS (name again, n integer);
    CREATE OPERATOR <<< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = g.less);
    CREATE OPERATOR CLASS odd FOR TYPE bigint USING btree AS
        OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 g.compare(bigint, bigint);
    CREATE FUNCTION wraps(bigint) RETURNS boolean IMMUTABLE BEGIN ATOMIC SELECT g.evil('a function of a function'); END";

/// The column of a superuser's table, what else the table has, and the first object of the guest's that it needs. In
/// statements, @ is the table.
const PLANTED: [(&str, &str, &str); 14] = [
    ("x g.checked", "", "function g.evil(text)"),
    ("x again", "", "function g.evil(text)"),
    ("x again[]", "", "function g.evil(text)"),
    ("x pair", "", "function g.evil(text)"),
    ("x g.mood[]", "", "function g.mood_text(g.mood)"),
    ("x text DEFAULT g.evil('a default')::text", "", "function g.evil(text)"),
    ("x boolean GENERATED ALWAYS AS (g.evil('a generated column')) STORED", "", "function g.evil(text)"),
    ("x text CHECK (g.evil('a check'))", "", "function g.evil(text)"),
    ("x text", "CREATE INDEX ON @ ((CASE WHEN g.evil('an index') THEN x END))", "function g.evil(text)"),
    ("x text", "CREATE INDEX ON @ (x) WHERE g.evil('a predicate')", "function g.evil(text)"),
    ("x text", "CREATE INDEX ON @ (id) WHERE public.wraps(id)", "function g.evil(text)"),
    ("x text", "CREATE INDEX ON @ (id public.odd)", "function g.compare(bigint,bigint)"),
    ("x text", "ALTER TABLE @ ADD CHECK (id OPERATOR(public.<<<) 1)", "function g.less(bigint,bigint)"),
    (
        "x text",
        "CREATE STATISTICS s ON (CASE WHEN g.evil('statistics') THEN x END), id FROM @",
        "function g.evil(text)",
    ),
];

/// A server with a guest, and a database for each case.
fn databases(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE start").unwrap();
    let mut start = cluster.connect_to("start");
    start.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    start.batch_execute(GUEST).unwrap();
    drop(start);
    (cluster, client)
}

/// Connects to a new database, in which the guest's functions tell as whom they run from now on.
fn new_database(cluster: &Cluster, client: &mut Client, name: &str) -> Client {
    support::within(std::time::Duration::from_mins(1), || {
        count(client, "SELECT count(*) FROM pg_stat_activity WHERE datname = 'start'") == 0
    });
    client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE start")).unwrap();
    cluster.connect_to(name)
}

fn add(client: &mut Client, ddl: &str) {
    client.execute("SELECT insta_ids.add_migration('0001', $1)", &[&ddl]).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 1)").unwrap();
}

/// The calls are refused because of this object of the guest, and run nothing of the guest's.
fn are_refused(cluster: &Cluster, client: &mut Client, calls: &[&str], object: &str) {
    client.batch_execute("SET test.armed = on").unwrap();
    for call in calls {
        let refusal = client.batch_execute(call);
        assert_eq!(ran(cluster, "SUPERUSER"), BTreeSet::new(), "{call} with {object}");
        let refusal = refusal.expect_err(object);
        let error = refusal.as_db_error().unwrap();
        assert_eq!(
            (error.code().code(), error.message()),
            ("42501", format!("{object} belongs to role guest").as_str()),
            "{call}: {error:?}"
        );
    }
    client.batch_execute("SET test.armed = off").unwrap();
}

/// Has the superuser distribute, and end, as far as it goes.
const DISTRIBUTE: [&str; 2] = ["SELECT insta_ids.distribute_table('t', 'id')", "CALL insta_ids.distribute()"];

#[test]
fn a_distribution_runs_no_code_of_a_role_with_fewer_rights() {
    let (cluster, mut client) = databases("owning_distribution");
    // The column of the source, that of the shards, what is done to the source, and the object.
    let own = "CREATE TYPE mood AS ENUM ('sad', 'ok'); ";
    let mut cases = vec![
        (
            "x g.mood",
            own.to_owned() + "CREATE TABLE t (id bigint PRIMARY KEY, x mood)",
            "",
            "function g.mood_text(g.mood)",
        ),
        (
            "x text",
            "CREATE TABLE t (id bigint PRIMARY KEY, x text)".to_owned(),
            "CREATE TRIGGER fires BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION g.fires()",
            "function g.fires()",
        ),
        (
            "x text",
            "CREATE TABLE t (id bigint PRIMARY KEY, x text)".to_owned(),
            "ALTER SCHEMA insta1 OWNER TO guest",
            "schema insta1",
        ),
        (
            "x text",
            "CREATE TABLE t (id bigint PRIMARY KEY, x text)".to_owned(),
            "ALTER TABLE insta1.t OWNER TO guest",
            "table insta1.t",
        ),
    ];
    for (column, more, object) in PLANTED {
        let table = format!("CREATE TABLE t (id bigint PRIMARY KEY, {column}); ");
        cases.push((column, table + &more.replace('@', "t"), more, object));
    }
    for (n, (column, migration, more, object)) in cases.into_iter().enumerate() {
        let mut client = new_database(&cluster, &mut client, &format!("d{n}"));
        add(&mut client, &migration);
        client
            .batch_execute(&format!(
                "CREATE TABLE t (id bigint PRIMARY KEY, {column}); INSERT INTO t (id) VALUES (1)"
            ))
            .unwrap();
        client.batch_execute(&more.replace('@', "t")).unwrap();
        are_refused(&cluster, &mut client, &DISTRIBUTE[..1], object);
        // A distribution that began before is refused, too.
        client
            .batch_execute(
                "INSERT INTO insta_ids_internal.distribution (source, target, key) VALUES ('t', 't', 'id')",
            )
            .unwrap();
        let calls = [
            DISTRIBUTE[1],
            "SELECT insta_ids.distribute_switch()",
            "SELECT insta_ids.distribute_abort()",
            "SELECT insta_ids.distribute_finish()",
        ];
        are_refused(&cluster, &mut client, &calls, object);
    }
}

/// After the switch, the types of the shards, and tables that refer to the old one, come into play.
#[test]
fn the_way_back_runs_no_code_of_a_role_with_fewer_rights() {
    let (cluster, mut client) = databases("owning_return");
    for (n, (planted, object)) in [
        (
            "ALTER TYPE insta1.mood OWNER TO guest; GRANT USAGE, CREATE ON SCHEMA insta1 TO guest; SET ROLE guest;
             CREATE FUNCTION g.back(insta1.mood) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
                $$BEGIN PERFORM g.canary('a cast back'); RETURN 'ok'; END$$;
             CREATE CAST (insta1.mood AS text) WITH FUNCTION g.back(insta1.mood) AS ASSIGNMENT; RESET ROLE",
            "function g.back(insta1.mood)",
        ),
        (
            "GRANT REFERENCES ON t TO guest; SET ROLE guest; CREATE TABLE g.refers (id bigint REFERENCES t ON DELETE CASCADE);
             CREATE TRIGGER fires AFTER DELETE ON g.refers FOR EACH ROW EXECUTE FUNCTION g.fires();
             INSERT INTO g.refers VALUES (1); RESET ROLE",
            "table g.refers",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = new_database(&cluster, &mut client, &format!("d{n}"));
        add(&mut client, "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id bigint PRIMARY KEY, x mood)");
        client
            .batch_execute(
                "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id bigint PRIMARY KEY, x mood);
                 INSERT INTO t SELECT n, 'sad' FROM generate_series(1, 20) n",
            )
            .unwrap();
        for call in DISTRIBUTE {
            client.batch_execute(call).unwrap();
        }
        client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
        client.batch_execute("UPDATE insta0.t SET x = 'ok'; UPDATE insta1.t SET x = 'ok'").unwrap();
        client.batch_execute("DELETE FROM insta0.t WHERE id = 1; DELETE FROM insta1.t WHERE id = 1").unwrap();
        client.batch_execute(planted).unwrap();
        let calls =
            ["CALL insta_ids.distribute()", "SELECT insta_ids.distribute_abort()", "SELECT insta_ids.distribute_finish()"];
        are_refused(&cluster, &mut client, &calls, object);
    }
}

/// A clone, and PostgreSQL 15's subscription of a move, run code of the tables.
#[test]
fn a_clone_and_a_move_run_no_code_of_a_role_with_fewer_rights() {
    let (cluster, mut client) = databases("owning_clone");
    for (n, (column, more, object)) in PLANTED.into_iter().enumerate() {
        let mut client = new_database(&cluster, &mut client, &format!("d{n}"));
        client
            .execute(
                "SELECT insta_ids.add_migration('0001', $1)",
                &[&format!("CREATE TABLE t (id bigint PRIMARY KEY, {column}); {}", more.replace('@', "t"))],
            )
            .unwrap();
        client
            .batch_execute("SELECT insta_ids.create_shard(0); INSERT INTO insta0.t (id) VALUES (1)")
            .unwrap();
        if major() == 15 {
            let move_check = refused(&mut client, "SELECT insta_ids_internal.require_trusted_owners('{0}')");
            assert_eq!(move_check.message(), format!("{object} belongs to role \"guest\""));
        }
        are_refused(&cluster, &mut client, &["SELECT insta_ids.clone_shard(0, 1)"], object);
    }
    // The catalog does not record that roles such as pg_monitor own something, as it does for other roles.
    let mut client = new_database(&cluster, &mut client, "monitored");
    client.batch_execute("ALTER FUNCTION g.evil OWNER TO pg_monitor").unwrap();
    add(&mut client, "CREATE TABLE t (id bigint PRIMARY KEY, x text CHECK (g.evil('a check')))");
    client.batch_execute("SELECT insta_ids.drop_shard(1)").unwrap();
    let refusal = refused(&mut client, "SELECT insta_ids.clone_shard(0, 1)");
    assert_eq!(
        (refusal.code().code(), refusal.message()),
        ("42501", "function g.evil(text) belongs to role pg_monitor")
    );
}

/// Types of the caller, of superusers and of extensions are used by casts, indexes and CHECKs. A cast from a type of the
/// caller to one of the guest's is not.
#[test]
fn code_of_the_caller_and_of_superusers_runs() {
    if !support::has("citext") {
        return;
    }
    let (cluster, mut client) = databases("owning_own");
    let mut client = new_database(&cluster, &mut client, "own");
    client
        .batch_execute(
            "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE own TO app; GRANT CREATE ON SCHEMA public TO app;
             SELECT insta_ids.grant_provisioning('app'); CREATE EXTENSION citext",
        )
        .unwrap();
    let mut app = cluster.config().user("app").dbname("own").connect(postgres::NoTls).unwrap();
    let table = "CREATE TABLE t (id bigint PRIMARY KEY, x mood, y mail[], z citext UNIQUE, r spans, CHECK (short(z)))";
    app.batch_execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN mail AS citext CHECK (VALUE LIKE '%@%');
         CREATE TYPE spans AS RANGE (SUBTYPE = bigint);
         CREATE FUNCTION short(citext) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT length($1) < 9';
         CREATE FUNCTION mood_text(mood) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT initcap(enum_out($1)::text)';
         CREATE CAST (mood AS text) WITH FUNCTION mood_text AS ASSIGNMENT",
    )
    .unwrap();
    client
        .batch_execute(
            "SET ROLE guest; CREATE TYPE g.color AS ENUM ('red');
             CREATE FUNCTION g.color(mood) RETURNS g.color IMMUTABLE LANGUAGE sql AS $$SELECT 'red'::g.color$$;
             CREATE CAST (mood AS g.color) WITH FUNCTION g.color(mood) AS IMPLICIT; RESET ROLE",
        )
        .unwrap();
    app.execute("SELECT insta_ids.add_migration('0001', $1)", &[&table]).unwrap();
    app.batch_execute("CALL insta_ids.create_shards(0, 1)").unwrap();
    app.batch_execute(table).unwrap();
    app.batch_execute(
        "INSERT INTO t SELECT n, 'ok', '{a@b}', n::text, '[1,3]' FROM generate_series(1, 20) n",
    )
    .unwrap();
    for call in DISTRIBUTE {
        app.batch_execute(call).unwrap();
    }
    app.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    app.batch_execute("CALL insta_ids.distribute()").unwrap();
    app.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(count(&mut app, "SELECT count(*) FROM t"), 20);
    app.batch_execute("SELECT insta_ids.unfence(0), insta_ids.unfence(1)").unwrap();
    app.batch_execute("INSERT INTO insta0.t SELECT * FROM t; SELECT insta_ids.drop_shard(1)").unwrap();
    app.batch_execute("SELECT insta_ids.clone_shard(0, 1)").unwrap();
    assert_eq!(count(&mut app, "SELECT count(*) FROM insta1.t"), 20);
    // The same tables are not the superuser's, and no matter which of app's objects is named, app is.
    let refusal = refused(&mut client, "SELECT insta_ids.distribute_table('t', 'id')");
    assert_eq!((refusal.code().code(), refusal.message()), ("42501", "table insta0.t belongs to role app"));
}

/// A new partition has the expressions of its parent. CREATE TABLE runs functions of a generated column that it names.
#[test]
fn new_partitions_run_no_code_of_a_role_with_fewer_rights() {
    let (cluster, mut client) = databases("owning_partitions");
    let mut client = new_database(&cluster, &mut client, "partitions");
    client
        .batch_execute(
            "SET ROLE guest;
             CREATE TABLE g.split (id bigint, d boolean DEFAULT g.evil('a default'), CHECK (g.evil('a check')),
                x boolean GENERATED ALWAYS AS (g.evil('a generated column')) STORED) PARTITION BY RANGE (id);
             RESET ROLE; SET test.armed = on",
        )
        .unwrap();
    client
        .batch_execute(
            "SELECT insta_ids.create_partitions('g.split', '1 day', now(), now() + interval '2 days', 'UTC')",
        )
        .unwrap();
    assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new());
    let of_guest = "SELECT count(*) FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
        WHERE inhparent = 'g.split'::regclass AND relowner = 'guest'::regrole";
    assert!(count(&mut client, of_guest) >= 2);
}
