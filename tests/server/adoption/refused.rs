//! Promise: adopt and unadopt refuse a schema with the reason, and change nothing then.

use postgres::error::{DbError, SqlState};
use postgres::{Client, NoTls};

use super::{ADOPT, ARTICLE, CANNOT, STATE, UNADOPT, anew, confirming, owned_by, run, said, unchanged};
use support::shards::Running;
use support::{Cluster, NOT_PRELOADED, count, refused, texts};

/// A session has no settings of the extension before it calls a function of the library.
#[test]
fn looked_at_first_of_all() {
    let cluster = Cluster::with("adopted_first", &[NOT_PRELOADED]);
    run(
        &mut cluster.connect(),
        "CREATE EXTENSION insta_ids; SELECT insta_ids.init(8); CREATE SCHEMA insta5; CREATE SEQUENCE insta5.table_id_seq",
    );
    run(&mut cluster.connect(), ARTICLE);
    run(&mut cluster.connect(), "SELECT insta_ids.adopt('insta5', 5, dry_run => true)");
}

/// Returns the published function with one text replaced.
fn replaced(from: &str, to: &str) -> String {
    let changed = ARTICLE.replace(from, to);
    assert_ne!(changed, ARTICLE, "{from}");
    changed
}

#[test]
fn what_mints_no_ids_of_the_shard_is_refused() {
    let cluster = Cluster::start("no_published");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    let function = "Function insta5.next_id(): ";
    for (change, detail) in [
        (
            replaced("1314220021721", "1420070400000"),
            "Its epoch is 1420070400000, and that of the layout is 1314220021721.",
        ),
        (
            replaced("1314220021721", "1314220021722"),
            "Its epoch is 1314220021722, and that of the layout is 1314220021721.",
        ),
        (
            replaced("- our_epoch", "- our_epoch + 60000"),
            "Its ids are not of the layout \"time:41 shard:13 seq:10 epoch:1314220021721\": ",
        ),
        (replaced("% 1024", "% 1000"), "Of value "),
        (replaced(" % 1024", ""), "Its ids are not of the layout "),
        (
            replaced(
                "nextval('insta5.table_id_seq') % 1024",
                "(random() * 1023)::bigint + 0 * nextval('insta5.table_id_seq')",
            ),
            "Of value ",
        ),
        (replaced("nextval('insta5.table_id_seq')", "17"), "It takes no value of a sequence."),
        (
            replaced("BEGIN", "BEGIN PERFORM nextval('insta5.likes_id_seq');"),
            "It takes values of more than one sequence: ",
        ),
        (replaced(":= 5", ":= 6"), "It mints for shard 6."),
        (replaced("result | (seq_id)", "result | seq_id | NULL"), "It cannot be called: it returned NULL."),
        (replaced("BEGIN", "BEGIN RAISE 'no id';"), "It cannot be called: no id."),
        (
            replaced("insta5.table_id_seq", "insta5.missing_seq"),
            "Its sequence \"insta5.missing_seq\" is not found.",
        ),
        (replaced("insta5.table_id_seq", "a.b.c.d"), "Its sequence \"a.b.c.d\" is not found."),
        (replaced("insta5.table_id_seq", "a.b.c"), "Its sequence \"a.b.c\" is not found."),
        (replaced("insta5.table_id_seq", "insta5."), "Its sequence \"insta5.\" is not found."),
        (replaced("insta5.table_id_seq", "a b"), "Its sequence \"a b\" is not found."),
        (replaced("insta5.table_id_seq", "insta5.photos"), "Its sequence \"insta5.photos\" is not found."),
        (replaced("insta5.table_id_seq", "table_id_seq"), "Its sequence \"table_id_seq\" is not found."),
        (
            replaced("insta5.table_id_seq", "table_id_seq")
                .replace("PLPGSQL", "PLPGSQL SET search_path = \"$user\", insta5"),
            "Its search_path depends on who calls it.",
        ),
        (
            replaced("PLPGSQL", "PLPGSQL SET search_path = insta5, pg_catalog"),
            "Its search_path has another schema before pg_catalog, whose functions it may call.",
        ),
    ] {
        anew(&mut client, &change);
        let call = confirming(&mut client);
        let error = unchanged(&mut client, &call);
        let [code, message, said, _] = said(&error);
        assert_eq!([code, message], ["55000", CANNOT], "{change}");
        assert!(said.starts_with(&format!("{function}{detail}")), "{change}: {said}");
    }
}

/// Adopt refuses a trigger function and a schema that also mints for another shard.
#[test]
fn what_mints_in_another_way_is_refused() {
    let cluster = Cluster::start("minted_otherwise");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    let trigger = "
        CREATE FUNCTION insta5.fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            NEW.id := (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23
                | 5 << 10 | nextval('insta5.table_id_seq') % 1024;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fill BEFORE INSERT ON insta5.photos FOR EACH ROW EXECUTE FUNCTION insta5.fill();";
    anew(&mut client, trigger);
    let error = unchanged(&mut client, ADOPT);
    assert_eq!(said(&error), ["55000", CANNOT, "Function insta5.fill(): It returns trigger.", ""]);
    let temporary =
        replaced("insta5.table_id_seq", "mine").replace("PLPGSQL", "PLPGSQL SET search_path = insta5");
    anew(&mut client, &format!("{temporary} CREATE TEMP SEQUENCE mine; CREATE SEQUENCE insta5.mine"));
    run(&mut client, ADOPT);
    run(&mut client, "DROP SEQUENCE pg_temp.mine");
    let minted = "SELECT insta5.next_id(); SELECT insta5.next_id()";
    run(&mut client, minted);
    let value = count(&mut client, "SELECT last_value FROM insta5.mine");
    run(&mut client, minted);
    assert_eq!(count(&mut client, "SELECT last_value FROM insta5.mine"), value + 2);
    // In these paths, PostgreSQL's own functions come first.
    for path in
        ["insta5", "pg_catalog", "pg_temp, pg_catalog, insta5", "\"pg_catalog\", \"a, pg_catalog\"", "''"]
    {
        anew(&mut client, &ARTICLE.replace("PLPGSQL", &format!("PLPGSQL SET search_path = {path}")));
        run(&mut client, ADOPT);
    }
    // A default can name another shard.
    let default = "ALTER TABLE insta5.photos ALTER id SET DEFAULT insta5.of_shard(6)";
    let of_shard = ARTICLE.replace("next_id(OUT", "of_shard(shard int, OUT").replace(":= 5", ":= shard");
    anew(&mut client, &format!("{of_shard} {default}"));
    let error = unchanged(&mut client, ADOPT);
    assert_eq!(said(&error), ["55000", CANNOT, "Default of insta5.photos.id: It mints for shard 6.", ""]);
    anew(
        &mut client,
        "DROP TABLE insta5.likes; ALTER TABLE insta5.photos ALTER id DROP DEFAULT; DROP FUNCTION insta5.next_id()",
    );
    let error = unchanged(&mut client, ADOPT);
    assert_eq!(
        said(&error),
        ["55000", CANNOT, "No function in schema insta5 looks like one that mints ids.", ""]
    );
}

/// Adopt refuses a schema in which another object has the name of an object that each shard has.
#[test]
fn what_is_in_the_way_is_refused() {
    let cluster = Cluster::start("in_the_way");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    // Calls of these functions would become ambiguous.
    for (arguments, other) in [("n bigint", "regclass"), ("n int DEFAULT 5", "")] {
        let own = ARTICLE.replace("(OUT", &format!("({arguments}, OUT"));
        anew(&mut client, &own);
        let error = unchanged(&mut client, ADOPT);
        let kind = if other.is_empty() { "integer" } else { "bigint" };
        let detail = format!(
            "Function insta5.next_id({kind}): Calls of it would be ambiguous, because each shard has insta5.next_id({other})."
        );
        assert_eq!(said(&error), ["55000", CANNOT, &detail, ""]);
    }
    // A table has the name of the shard's sequence.
    anew(
        &mut client,
        &format!(
            "{} DROP SEQUENCE insta5.table_id_seq; CREATE TABLE insta5.table_id_seq ()",
            ARTICLE.replace("table_id_seq", "photos_id_seq")
        ),
    );
    let error = unchanged(&mut client, ADOPT);
    let detail =
        "Relation insta5.table_id_seq is not a sequence, but each shard has a sequence of this name.";
    assert_eq!(said(&error), ["55000", CANNOT, detail, ""]);
}

#[test]
fn rows_that_are_not_the_shards_are_refused() {
    let cluster = Cluster::start("wrong_rows");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(
        &mut client,
        "INSERT INTO insta5.photos VALUES (make_id('2024-01-01', 7, 3)), (make_id('2024-01-01', 7, 4)), (-2), (-1)",
    );
    let error = unchanged(&mut client, ADOPT);
    let id = count(&mut client, "SELECT make_id('2024-01-01', 7, 3)");
    let detail = format!(
        "Column insta5.photos.id: Of 54 ids, 2 are negative, as -1 is.\n\
         Column insta5.photos.id: Of 54 ids, 2 are of other shards, as {id} is, of shard 7."
    );
    let hint = "Give them new ids: UPDATE insta5.photos SET id = DEFAULT WHERE id OPERATOR(pg_catalog.<) 0\n\
         Move them to their shards, or give them new ids: UPDATE insta5.photos SET id = DEFAULT \
         WHERE public.id_shard(id::pg_catalog.int8) OPERATOR(pg_catalog.<>) 5";
    assert_eq!(said(&error), ["55000", CANNOT, &detail, hint]);
    for statement in hint.lines().map(|line| line.rsplit(": ").next().unwrap()) {
        run(&mut client, statement);
    }
    run(&mut client, ADOPT);

    // Within the tolerance, adopt waits for ids of the future, or a superuser advances the clock to them.
    anew(&mut client, "INSERT INTO insta5.photos VALUES (make_id(now() + '61 min', 5, 3))");
    let error = unchanged(&mut client, ADOPT);
    let at = texts(&mut client, "SELECT id_time(max(id))::text FROM insta5.photos")[0].clone();
    let detail = format!(
        "Column insta5.photos.id: Of 51 ids, 1 are of the future, to {at}; they can be minted again when that time comes."
    );
    let hint = "Wait until the clock is at most 1h behind the newest id.";
    assert_eq!(said(&error), ["55000", CANNOT, &detail, hint]);
    run(&mut client, "CREATE ROLE owner LOGIN; SELECT insta_ids.grant_provisioning('owner')");
    anew(&mut client, "INSERT INTO insta5.photos VALUES (make_id(now() + '1 min', 5, 3))");
    owned_by(&mut client, "owner");
    let mut owner = cluster.config().user("owner").connect(NoTls).unwrap();
    let error = unchanged(&mut client, "SET ROLE owner; SELECT insta_ids.adopt('insta5', 5)");
    run(&mut client, "RESET ROLE");
    let at = texts(&mut client, "SELECT id_time(max(id))::text FROM insta5.photos")[0].clone();
    let hint = "Wait until then, or let a superuser adopt the schema.";
    assert_eq!(said(&error), ["42501", "newest id is of the future", &format!("Its time is {at}."), hint]);
    let ahead = "SELECT (extract(epoch FROM c.ahead) * 1000)::bigint FROM insta_ids.clock() c";
    assert!(count(&mut client, ahead) < 1000);
    run(&mut client, ADOPT);
    run(&mut client, "INSERT INTO insta5.photos SELECT FROM generate_series(1, 5)");
    let newer = "SELECT count(*) FROM insta5.photos WHERE id > (SELECT id FROM insta5.photos ORDER BY id DESC OFFSET 5 LIMIT 1)";
    assert_eq!(count(&mut client, newer), 5);
    assert!(count(&mut client, ahead) > 50_000);
    // Unadopt is refused while ids are ahead of the clock, also after a restart.
    for _ in 0..2 {
        let error = unchanged(&mut client, UNADOPT);
        let [code, message, detail, hint] = said(&error);
        assert!(message.starts_with("time of ids is ahead of the clock by 00:0"), "{message}");
        assert_eq!(code, "55000");
        assert_eq!(detail, "The published function uses the clock, so it could repeat ids.");
        assert_eq!(hint, "Call again when the clock has reached the time of ids.");
        drop((client, owner));
        cluster.stop();
        cluster.up();
        (client, owner) = (cluster.connect(), cluster.config().user("owner").connect(NoTls).unwrap());
    }
    drop(owner);
}

/// Adopt notices what changes after it examined the schema and before it has the locks.
#[test]
fn it_is_looked_at_again_when_all_stand_still() {
    let cluster = Cluster::start("again");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    let meanwhile = |client: &mut Client, change: &str| {
        anew(client, "");
        let mut writer = cluster.connect();
        run(&mut writer, "BEGIN; LOCK TABLE insta5.photos IN ROW EXCLUSIVE MODE");
        let adopt = Running::start(cluster.connect(), "SELECT insta_ids.adopt('insta5', 5, '1min')");
        adopt.await_waiting(client);
        run(&mut writer, change);
        run(&mut writer, "COMMIT");
        let error = adopt.end().unwrap_err();
        error.as_db_error().unwrap().clone()
    };
    let error = meanwhile(&mut client, "INSERT INTO insta5.photos VALUES (-1)");
    let detail = "Column insta5.photos.id: Of 2 ids at the ends of its index, 1 are negative, as -1 is.";
    assert_eq!(said(&error)[..3], ["55000", CANNOT, detail]);
    for change in [
        &ARTICLE.replace("next_id", "another")[..],
        &ARTICLE.replace(":= 5", ":= 6"),
        "CREATE TABLE insta5.more (id bigint DEFAULT insta5.next_id())",
        "ALTER TABLE insta5.photos ADD more bigint DEFAULT insta5.next_id()",
    ] {
        let error = meanwhile(&mut client, change);
        assert_eq!(
            said(&error),
            ["40001", "schema insta5 was changed while adopt examined it", "", "Call again."],
            "{change}"
        );
    }
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard"), 0);
}

#[test]
fn what_is_no_schema_for_it_is_refused() {
    let cluster = Cluster::start("no_schema");
    let mut client = cluster.connect();
    let error = refused(&mut client, "SELECT insta_ids.adopt('public', 5)");
    assert_eq!(said(&error)[..2], ["55000", "shards are not set up"]);
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE nobody LOGIN; CREATE ROLE other LOGIN; SELECT insta_ids.grant_provisioning('other')",
    );
    anew(&mut client, "CREATE SCHEMA \"insta5 old\"; GRANT USAGE ON SCHEMA insta5 TO nobody, other");
    for (call, expected) in [
        (
            "SELECT insta_ids.adopt('insta5', 6)",
            [
                "3F000",
                "schema insta5 does not have the name of shard 6",
                "The schema of shard 6 is called insta6.",
                "Rename it: ALTER SCHEMA insta5 RENAME TO insta6.",
            ],
        ),
        // A dry run refuses it, too.
        (
            "SELECT insta_ids.adopt('insta5', 6, dry_run => true)",
            [
                "3F000",
                "schema insta5 does not have the name of shard 6",
                "The schema of shard 6 is called insta6.",
                "Rename it: ALTER SCHEMA insta5 RENAME TO insta6.",
            ],
        ),
        (
            "SELECT insta_ids.adopt('\"insta5 old\"', 5)",
            [
                "3F000",
                "schema \"insta5 old\" does not have the name of shard 5",
                "The schema of shard 5 is called insta5.",
                "Rename it: ALTER SCHEMA \"insta5 old\" RENAME TO insta5.",
            ],
        ),
        (
            "SELECT insta_ids.adopt('insta5', 2000)",
            ["22003", "shard 2000 is out of range", "Shards are numbered from 0 to 1999.", ""],
        ),
        ("SELECT insta_ids.adopt('insta7', 7)", ["3F000", "schema \"insta7\" does not exist", "", ""]),
        (UNADOPT, ["42704", "schema insta5 is not a shard", "", ""]),
        ("SELECT insta_ids.unadopt('public')", ["42704", "schema public is not a shard", "", ""]),
        (
            "SET ROLE nobody; SELECT insta_ids.adopt('insta5', 5)",
            ["42501", "permission denied for schema insta_ids_internal", "", ""],
        ),
        (
            "SET ROLE nobody; SELECT insta_ids.unadopt('insta5')",
            ["42501", "permission denied for view shard_schema", "", ""],
        ),
        (
            "SET ROLE other; SELECT insta_ids.adopt('insta5', 5)",
            ["42501", "must be owner of schema insta5", "", ""],
        ),
        (
            "SELECT insta_ids.adopt('insta5', 5, '1 month')",
            [
                "22023",
                "invalid value for parameter \"lock_timeout\": \"2592000000ms\"",
                "",
                "Value exceeds integer range.",
            ],
        ),
    ] {
        let error = unchanged_as_superuser(&mut client, call);
        assert_eq!(said(&error), expected, "{call}");
    }
    // A role that may read the schema may not unadopt it.
    run(&mut client, "GRANT SELECT ON ALL TABLES IN SCHEMA insta5 TO other");
    let error = unchanged_as_superuser(&mut client, "SET ROLE other; SELECT insta_ids.adopt('insta5', 5)");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{error}");
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = format!("BEGIN ISOLATION LEVEL {isolation};");
        for call in [ADOPT, UNADOPT] {
            run(&mut client, &begin);
            let error = refused(&mut client, call);
            run(&mut client, "ROLLBACK");
            assert_eq!(error.code(), &SqlState::ACTIVE_SQL_TRANSACTION, "{error}");
        }
    }
    run(&mut client, ADOPT);
    let error = unchanged(&mut client, ADOPT);
    assert_eq!(said(&error), ["42710", "shard 5 already exists", "", ""]);
    let error = unchanged_as_superuser(&mut client, "SET ROLE other; SELECT insta_ids.unadopt('insta5')");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{error}");
}

/// Unadopt refuses functions and defaults that the published function cannot replace.
#[test]
fn what_cannot_be_released_is_refused() {
    let cluster = Cluster::start("no_release");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(&mut client, ADOPT);
    run(&mut client, "ALTER TABLE insta5.photos ALTER id SET DEFAULT abs(next_id(5, 'insta5.table_id_seq'))");
    let error = unchanged(&mut client, UNADOPT);
    let [code, message, detail, hint] = said(&error);
    assert_eq!([code, message, hint], ["55000", "schema insta5 cannot be unadopted", ""]);
    assert!(detail.starts_with("Default of insta5.photos.id: "), "{detail}");
    run(&mut client, "ALTER TABLE insta5.photos ALTER id SET DEFAULT insta5.next_id()");
    run(&mut client, &ARTICLE.replace("next_id", "another"));
    let error = unchanged(&mut client, UNADOPT);
    let detail = "Function insta5.another(): It does not call next_id.";
    assert_eq!(said(&error), ["55000", "schema insta5 cannot be unadopted", detail, ""]);
    // A default mints for another shard, or would call a function that mints nothing.
    run(
        &mut client,
        "DROP FUNCTION insta5.another(); CREATE FUNCTION insta5.of_six() RETURNS bigint LANGUAGE sql RETURN next_id(6, 'insta5.table_id_seq')",
    );
    let error = unchanged(&mut client, UNADOPT);
    let detail = "Function insta5.of_six(): It mints for shard 6.";
    assert_eq!(said(&error), ["55000", "schema insta5 cannot be unadopted", detail, ""]);
    run(
        &mut client,
        "DROP FUNCTION insta5.of_six(); ALTER TABLE insta5.photos ALTER id SET DEFAULT next_id(5, 'insta5.table_id_seq')",
    );
    for body in ["1", "insta5.next_id()", "public.next_id(5, 'insta5.table_id_seq')"] {
        run(
            &mut client,
            &format!(
                "CREATE OR REPLACE FUNCTION insta5.next_id(seq_name regclass) RETURNS bigint LANGUAGE sql RETURN {body}"
            ),
        );
        let error = unchanged(&mut client, UNADOPT);
        let detail = "Function insta5.next_id(regclass): It does not mint from the sequence that its argument names, and the default of insta5.photos.id would call it.";
        assert_eq!(said(&error), ["55000", "schema insta5 cannot be unadopted", detail, ""]);
    }
    // Without such a default, unadopt accepts that function.
    run(&mut client, "ALTER TABLE insta5.photos ALTER id SET DEFAULT insta5.next_id()");
    run(
        &mut client,
        "CREATE OR REPLACE FUNCTION insta5.next_id(seq_name regclass) RETURNS bigint LANGUAGE sql RETURN 1",
    );
    run(&mut client, UNADOPT);
}

fn unchanged_as_superuser(client: &mut Client, call: &str) -> DbError {
    let before = texts(client, STATE);
    let error = refused(client, call);
    run(client, "RESET ROLE");
    assert_eq!(texts(client, STATE), before, "{call}");
    error
}
