//! What cannot go to the shards is refused by name, before anything starts.

use std::thread;
use std::time::Duration;

use support::{Cluster, count, refused, within};

use super::{MIGRATION, REGISTERED, TABLES, tables};

/// What is done to the tables before, a migration that the shards get, and the reason that is given.
const OBSTACLES: [(&str, &str, &str); 28] = [
    ("ALTER TABLE users DROP CONSTRAINT users_pkey CASCADE", "", "It has no primary key."),
    (
        "ALTER TABLE users DROP CONSTRAINT users_pkey CASCADE; ALTER TABLE users ADD PRIMARY KEY (id) DEFERRABLE",
        "",
        "Its primary key is DEFERRABLE.",
    ),
    (
        "",
        "ALTER TABLE likes DROP CONSTRAINT likes_photo_id_fkey;
            ALTER TABLE likes ADD FOREIGN KEY (photo_id) REFERENCES photos ON DELETE CASCADE",
        "Foreign key \"likes_photo_id_fkey\" of table insta0.likes deletes or changes rows by itself.",
    ),
    ("ALTER TABLE likes SET UNLOGGED", "", "It is unlogged or temporary."),
    ("ALTER TABLE users ENABLE ROW LEVEL SECURITY", "", "It has row security."),
    ("CREATE TABLE child () INHERITS (users)", "", "It has a parent or child table."),
    (
        "ALTER TABLE photos ALTER user_id DROP NOT NULL",
        "",
        "Column \"user_id\" can be NULL, and then says no shard.",
    ),
    ("ALTER TABLE photos RENAME user_id TO owner", "", "It has no column \"user_id\"."),
    (
        "ALTER TABLE photos RENAME title TO insta_ids_key",
        "ALTER TABLE photos RENAME title TO insta_ids_key",
        "It has a column whose name begins with \"insta_ids_\", as those that distribute() adds to rows.",
    ),
    ("ALTER TABLE users ADD mobile text", "", "Table insta0.users lacks column \"mobile\" of the source."),
    (
        "ALTER TABLE users ALTER bio TYPE json USING NULL",
        "",
        "Table insta0.users has column \"bio\" of type text, and in the source it is json.",
    ),
    (
        "ALTER TABLE insta5.users ALTER bio TYPE json USING NULL",
        "",
        "Table insta5.users is not like that of shard 0.",
    ),
    ("ALTER TABLE insta5.likes RENAME TO liked", "", "Table insta5.likes does not exist."),
    ("SELECT insta_ids.drop_shard(6)", "", "The shard of table insta6.likes is not on this server."),
    ("INSERT INTO insta4.users (email) VALUES ('first')", "", "Table insta4.users has rows."),
    ("SELECT insta_ids.fence(3)", "", "The shard of table insta3.likes is fenced or moves."),
    (
        "",
        "ALTER TABLE users ADD born date NOT NULL",
        "Table insta0.users has column \"born\" that is NOT NULL without a default, and that the source lacks.",
    ),
    (
        "",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER audit BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION f()",
        "Table insta0.users has the trigger \"audit\", which would fire for each row that is copied.",
    ),
    ("", "CREATE RULE r AS ON DELETE TO users DO INSTEAD NOTHING", "Table insta0.users has the rule \"r\"."),
    (
        "",
        "ALTER TABLE users ENABLE ROW LEVEL SECURITY",
        "Table insta0.users is not an ordinary, logged table without row security.",
    ),
    (
        "",
        "ALTER TABLE likes DROP CONSTRAINT likes_pkey, ADD PRIMARY KEY (photo_id)",
        "Table insta0.likes has another primary key than the source.",
    ),
    (
        "ALTER TABLE users ADD n int",
        "ALTER TABLE users ADD n int GENERATED ALWAYS AS IDENTITY",
        "Table insta0.users has column \"n\" that is GENERATED ALWAYS AS IDENTITY and not in the primary key.",
    ),
    (
        "CREATE TABLE albums (id int PRIMARY KEY, photo_id bigint REFERENCES photos)",
        "",
        "Foreign key \"albums_photo_id_fkey\" of table public.albums refers to table public.photos, and only one of the two is distributed.",
    ),
    (
        "CREATE TABLE countries (id int PRIMARY KEY); ALTER TABLE users ADD country int REFERENCES countries",
        "ALTER TABLE users ADD country int",
        "Foreign key \"users_country_fkey\" of table public.users refers to table public.countries, and only one of the two is distributed.",
    ),
    (
        "ALTER TABLE users ADD country int",
        "CREATE TABLE countries (id int PRIMARY KEY); ALTER TABLE users ADD country int REFERENCES countries",
        "Foreign key \"users_country_fkey\" of table insta0.users refers to table insta0.countries, and only one of the two gets rows.",
    ),
    (
        "ALTER TABLE photos ADD cover bigint",
        "ALTER TABLE photos ADD cover bigint REFERENCES photos",
        "Foreign key \"photos_cover_fkey\" of table insta0.photos refers to a table that is copied later, or to itself.",
    ),
    (
        "ALTER TABLE photos DROP CONSTRAINT photos_user_id_fkey; ALTER TABLE photos ALTER user_id TYPE numeric",
        "",
        "Column \"user_id\" has the type numeric, for which there is no shard_of().",
    ),
    (
        "ALTER TABLE photos ADD mail text",
        "ALTER TABLE users ADD UNIQUE (id, email);
            ALTER TABLE photos ADD mail text, ADD FOREIGN KEY (user_id, mail) REFERENCES users (id, email)",
        "refers to other columns than the primary key. Add it by a later migration.",
    ),
];

#[test]
fn what_cannot_go_is_refused_by_name() {
    let cluster = Cluster::start("distribute_refusing");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE start").unwrap();
    let mut start = cluster.connect_to("start");
    start.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    start.batch_execute("SELECT insta_ids.init(8)").unwrap();
    start.batch_execute(MIGRATION).unwrap();
    start.batch_execute(TABLES).unwrap();
    drop(start);
    let no_session = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'start')";
    for (n, (before, migration, reason)) in OBSTACLES.iter().enumerate() {
        within(Duration::from_mins(1), || client.query_one(no_session, &[]).unwrap().get(0));
        client.batch_execute(&format!("CREATE DATABASE d{n} TEMPLATE start")).unwrap();
        let mut client = cluster.connect_to(&format!("d{n}"));
        if !migration.is_empty() {
            client.execute("SELECT insta_ids.add_migration('0002', $1)", &[migration]).unwrap();
        }
        client.batch_execute("CALL insta_ids.create_shards(0, 7)").unwrap();
        client.batch_execute(before).unwrap();
        let refusal = client
            .batch_execute(REGISTERED)
            .and_then(|()| client.batch_execute("CALL insta_ids.distribute()"));
        let refusal = refusal.expect_err(reason);
        let error = refusal.as_db_error().unwrap();
        assert!(error.detail().is_some_and(|detail| detail.contains(reason)), "{error:?}");
        assert_eq!(error.code().code(), "55000");
        assert!(client.batch_execute("DELETE FROM likes").is_ok());
        client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    }
}

fn is_refused(client: &mut postgres::Client, call: &str, code: &str, message: &str) {
    let error = refused(client, call);
    assert_eq!((error.code().code(), error.message()), (code, message), "{call}: {error:?}");
}

/// Calls that come too early, too late or with nonsense.
#[test]
fn steps_out_of_order_are_refused() {
    let cluster = tables("distribute_order");
    let mut client = cluster.connect();
    is_refused(&mut client, "CALL insta_ids.distribute()", "55000", "no table is registered");
    is_refused(&mut client, "SELECT insta_ids.distribute_switch()", "55000", "no table is registered");
    is_refused(&mut client, "SELECT insta_ids.distribute_finish()", "55000", "no table is registered");
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_table(NULL, 'id')",
        "22004",
        "table and key must be given",
    );
    client.batch_execute(REGISTERED).unwrap();
    let twice = "SELECT insta_ids.distribute_table('likes', 'photo_id', 'photos')";
    is_refused(
        &mut client,
        twice,
        "42710",
        "table \"photos\" of the shards gets rows of another table already",
    );
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_switch()",
        "55000",
        "table public.users is not copied and compared yet",
    );
    is_refused(
        &mut client,
        "CALL insta_ids.distribute(batch => 0)",
        "22023",
        "batch of 0 rows or pause of 00:00:00 is out of range",
    );
    is_refused(
        &mut client,
        "CALL insta_ids.distribute(pause => '2 h')",
        "22023",
        "batch of 20000 rows or pause of 02:00:00 is out of range",
    );
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_table('users', 'id')",
        "55000",
        "table public.users comes too late",
    );
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_finish()",
        "55000",
        "writers have not been switched to the shards",
    );
    is_refused(
        &mut client,
        "TRUNCATE likes",
        "55006",
        "table public.likes is being distributed, and cannot be truncated",
    );
    for statement in
        ["ALTER TABLE likes ADD at date", "DROP TABLE likes", "DROP TRIGGER insta_ids_capture ON likes"]
    {
        assert_eq!(refused(&mut client, statement).code().code(), "55006");
    }
    client.batch_execute("CREATE INDEX ON likes (photo_id); ANALYZE likes").unwrap();
}

/// The switch needs equal rows, few changes that are not in the shards yet, and no foreign key of another table.
#[test]
fn the_switch_is_refused_until_the_shards_have_every_row() {
    let cluster = tables("distribute_switch_refused");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();

    // A row that another session has put into a shard is found, and what was compared before counts no more.
    client.batch_execute("INSERT INTO insta3.users (email) VALUES ('stray')").unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(
        (error.code().code(), error.message()),
        ("XX001", "rows of table public.users are not the same in 1 shards")
    );
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_switch()",
        "55000",
        "table public.users is not copied and compared yet",
    );
    client.batch_execute("DELETE FROM insta3.users WHERE email = 'stray'").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();

    client
        .batch_execute("UPDATE likes SET user_id = user_id + 500; UPDATE likes SET user_id = user_id - 500")
        .unwrap_err();
    client.batch_execute("UPDATE photos SET title = title || '!'; UPDATE photos SET title = 'x'; UPDATE photos SET title = 'y'").unwrap();
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_switch()",
        "55000",
        "more than 10000 changes of table public.photos are not in the shards yet",
    );
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("CREATE TABLE late (photo_id bigint REFERENCES photos)").unwrap();
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_switch()",
        "55000",
        "the registered tables cannot be distributed together",
    );
    client.batch_execute("DROP TABLE late").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch(way_back => false)").unwrap();
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_switch()",
        "55000",
        "writers have been switched to the shards already",
    );
    is_refused(
        &mut client,
        "SELECT insta_ids.distribute_abort()",
        "55000",
        "writers were switched to the shards without a way back",
    );
}

/// A role's own tables are distributed by this role, and by nobody with more rights.
#[test]
fn a_superuser_does_not_run_code_of_a_tables_owner() {
    let cluster = Cluster::start("distribute_owner");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE app LOGIN; CREATE ROLE writer LOGIN; CREATE ROLE reader LOGIN; GRANT CREATE ON DATABASE postgres TO app;
             GRANT CREATE ON SCHEMA public TO app; SELECT insta_ids.grant_provisioning('app')",
        )
        .unwrap();
    let mut app = cluster.config().user("app").connect(postgres::NoTls).unwrap();
    app.batch_execute("SELECT insta_ids.init(4)").unwrap();
    app.batch_execute(
        "SELECT insta_ids.add_migration('1', 'CREATE TABLE t (id bigint PRIMARY KEY, n integer)')",
    )
    .unwrap();
    app.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    app.batch_execute("CREATE TABLE t (id bigint PRIMARY KEY, n integer); INSERT INTO t SELECT n FROM generate_series(1, 99) n").unwrap();
    app.batch_execute("GRANT INSERT, SELECT, UPDATE ON t TO writer; GRANT SELECT (id) ON t TO reader")
        .unwrap();
    let refusal = refused(&mut client, "SELECT insta_ids.distribute_table('t', 'id')");
    assert_eq!((refusal.code().code(), refusal.message()), ("42501", "table insta0.t belongs to role app"));
    client.batch_execute("ALTER TABLE insta2.t OWNER TO postgres").unwrap();
    let refusal = refused(&mut app, "SELECT insta_ids.distribute_table('t', 'id')");
    assert_eq!(
        (refusal.code().code(), refusal.message()),
        ("42501", "table insta2.t belongs to role postgres")
    );
    client.batch_execute("ALTER TABLE insta2.t OWNER TO app").unwrap();
    app.batch_execute("SELECT insta_ids.distribute_table('t', 'id')").unwrap();
    assert_eq!(refused(&mut client, "CALL insta_ids.distribute()").code().code(), "42501");
    // Nor does an operator of another role run, and a row that another role adds meanwhile ends the call.
    client
        .batch_execute(
            "CREATE ROLE other LOGIN; GRANT CREATE ON SCHEMA public TO other; SELECT insta_ids.grant_provisioning('other');
             GRANT CREATE ON DATABASE postgres TO other",
        )
        .unwrap();
    let mut other = cluster.config().user("other").connect(postgres::NoTls).unwrap();
    other
        .batch_execute(
            "CREATE FUNCTION public.evil(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS
                 'BEGIN RAISE EXCEPTION ''evil runs as %'', current_user; END';
             CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.evil);
             CREATE TABLE public.theirs (id bigint PRIMARY KEY)",
        )
        .unwrap();
    other.batch_execute("CREATE TEMPORARY TABLE \"99999999\" ()").unwrap();
    for source in ["t", "99999999"] {
        let row = format!(
            "INSERT INTO insta_ids_internal.distribution (source, target, key) VALUES ('{source}', 'x', 'id')"
        );
        assert_eq!(refused(&mut other, &row).message(), format!("must be owner of table {source}"));
    }
    let call = thread::spawn(move || {
        let ended = refused(&mut app, "CALL insta_ids.distribute(batch => 5, pause => '200 ms')");
        (app, ended)
    });
    within(Duration::from_mins(1), || {
        count(&mut client, "SELECT count(*) FROM insta_ids.distributions WHERE rows_copied > 0") > 0
    });
    other
        .batch_execute("INSERT INTO insta_ids_internal.distribution (source, target, key, step) VALUES ('theirs', 'x', 'id', 'copying')")
        .unwrap();
    let (mut app, ended) = call.join().unwrap();
    assert_eq!(ended.message(), "another session has ended this distribution, or begun another one");
    other.batch_execute("DELETE FROM insta_ids_internal.distribution WHERE target = 'x'").unwrap();
    app.batch_execute("CALL insta_ids.distribute()").unwrap();
    // Whoever may write to the table goes on to do so, and has no rights on the table of changes or on the function.
    let mut writer = cluster.config().user("writer").connect(postgres::NoTls).unwrap();
    writer.batch_execute("INSERT INTO t VALUES (1000, 1)").unwrap();
    writer.batch_execute("CREATE TEMP TABLE mine (id bigint, insta_ids_key bigint)").unwrap();
    let forged =
        "CREATE TRIGGER x AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION public.insta_ids_capture_t()";
    assert_eq!(refused(&mut writer, forged).code().code(), "42501");
    assert_eq!(refused(&mut writer, "SELECT FROM public.insta_ids_changes_t").code().code(), "42501");
    for call in [
        "SELECT insta_ids.distribute_switch()",
        "SELECT insta_ids.distribute_abort()",
        "SELECT insta_ids.distribute_finish()",
    ] {
        assert_eq!(refused(&mut writer, call).code().code(), "42501");
        assert_eq!(refused(&mut client, call).code().code(), "42501");
    }
    app.batch_execute("SELECT insta_ids.distribute_switch(views => true)").unwrap();
    let mut reader = cluster.config().user("reader").connect(postgres::NoTls).unwrap();
    assert_eq!(count(&mut reader, "SELECT count(id) FROM t"), 100);
    assert_eq!(refused(&mut reader, "SELECT n FROM t").code().code(), "42501");
    app.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
}

/// Without the extension, nothing is noted any more, and writers go on.
#[test]
fn writers_go_on_when_the_extension_is_dropped() {
    for switched in [false, true] {
        let cluster = tables("distribute_dropped");
        let mut client = cluster.connect();
        client.batch_execute(REGISTERED).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
        if switched {
            client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
        }
        client.batch_execute("DROP EXTENSION insta_ids CASCADE").unwrap();
        client
            .batch_execute("UPDATE photos SET title = 'new'; UPDATE insta3.photos SET title = 'new'")
            .unwrap();
        client
            .batch_execute("DELETE FROM likes; TRUNCATE photos, likes, insta3.photos, insta3.likes")
            .unwrap();
        assert_eq!(count(&mut client, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'insta\\_ids%'"), 0);
    }
}
