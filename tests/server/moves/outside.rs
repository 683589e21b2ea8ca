//! What shards share with the rest of their servers: rows, objects, roles and settings. A move keeps it whole, or is refused.

use postgres::NoTls;
use postgres::error::SqlState;
use support::pair::{Move, Pair, before, shard_map};
use support::{count, refused, texts};

fn findings(b: &mut postgres::Client, arguments: &str) -> Vec<String> {
    let check = "SELECT concat_ws(' | ', severity, code, object, detail, hint) FROM insta_ids.check_move";
    texts(b, &format!("{check}({arguments})"))
}

fn nothing_is_left(pair: &Pair) {
    for node in [&pair.a, &pair.b] {
        let left =
            "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM insta_ids_internal.move)
            + (SELECT count(*) FROM insta_ids_internal.fence) + (SELECT count(*) FROM pg_subscription)";
        assert_eq!(count(&mut node.connect(), left), 0);
    }
}

/// A subscription does not check foreign keys. So a move looks for the rows of other schemas to which a shard's rows refer,
/// before the copy, again before the fence, and after the hand-over.
#[test]
fn rows_to_which_a_shard_refers_must_be_on_the_target() {
    let pair = Pair::start("referenced");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client
            .batch_execute(
                "CREATE TABLE users (id bigint PRIMARY KEY);
                 CREATE TABLE prices (currency text, price numeric, PRIMARY KEY (currency, price)) PARTITION BY LIST (currency);
                 CREATE TABLE euros PARTITION OF prices FOR VALUES IN ('EUR');
                 CREATE TABLE rates (rate numeric PRIMARY KEY); INSERT INTO rates VALUES (1.0)",
            )
            .unwrap();
    }
    // Keys of other types and other texts can be equal.
    a.batch_execute(
        "INSERT INTO users SELECT generate_series(1, 20); INSERT INTO prices VALUES ('EUR', 1.0);
         SELECT insta_ids.add_migration('0002', 'ALTER TABLE photos ADD COLUMN author integer REFERENCES public.users,
            ADD COLUMN currency text, ADD COLUMN price numeric, ADD FOREIGN KEY (currency, price) REFERENCES public.prices,
            ADD COLUMN rate integer REFERENCES public.rates DEFAULT 1')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute(
        "INSERT INTO insta2.photos (author, currency, price) SELECT 1 + g % 3, 'EUR', 1.00 FROM generate_series(1, 30) g;
         INSERT INTO insta2.photos DEFAULT VALUES",
    )
    .unwrap();
    b.batch_execute("INSERT INTO prices VALUES ('EUR', 1)").unwrap();

    let message = "rows of table insta2.photos refer to rows of table public.users that are not on this node";
    let detail = "Foreign key \"photos_author_fkey\" finds no row for (author) = (1), (2), (3), for example.";
    assert_eq!(
        findings(&mut b, "2, 2, 'a'"),
        [format!(
            "error | cannot_come | b | {message}: {detail} | Copy the rows of table public.users to this node, and call again."
        )]
    );
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
    assert_eq!(error.code(), &SqlState::FOREIGN_KEY_VIOLATION);
    assert_eq!((error.message(), error.detail()), (message, Some(detail)));
    nothing_is_left(&pair);
    b.batch_execute("INSERT INTO users SELECT generate_series(1, 3); DELETE FROM prices").unwrap();
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
    assert!(error.detail().unwrap().contains("(currency, price) = (EUR, 1.00), for example."), "{error:?}");
    b.batch_execute("INSERT INTO prices VALUES ('EUR', 1)").unwrap();

    // A row that is written during the copy is found before the source is fenced. One that is written after that is reported.
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("fence"));
    a.batch_execute("INSERT INTO insta2.photos (author) VALUES (4)").unwrap();
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
    let detail = "Foreign key \"photos_author_fkey\" finds no row for (author) = (4), for example.";
    assert_eq!(error.detail(), Some(detail));
    a.batch_execute("INSERT INTO insta3.photos DEFAULT VALUES").unwrap();
    moving.steps(&["fence", "drained", "release", "hand over"]);
    let (send, heard) = std::sync::mpsc::channel();
    let mut config = pair.b.config();
    config.notice_callback(move |notice| {
        let detail = notice.detail().map(str::to_owned);
        drop(send.send((notice.message().to_owned(), detail)));
    });
    let warn = "SELECT insta_ids_internal.warn_of_unreferenced('insta_ids_2_2')";
    config.connect(NoTls).unwrap().batch_execute(warn).unwrap();
    drop(config);
    assert_eq!(heard.iter().collect::<Vec<_>>(), [(message.to_owned(), Some(detail.to_owned()))]);
    b.batch_execute("INSERT INTO users VALUES (4)").unwrap();
    moving.steps(&["finish"]);
    let orphans = "SELECT count(*) FROM insta2.photos p WHERE author IS NOT NULL AND author NOT IN (SELECT id FROM users)";
    assert_eq!(count(&mut b, orphans), 0);
    b.batch_execute("INSERT INTO insta2.photos (author) VALUES (1)").unwrap();
    assert_eq!(refused(&mut b, "DELETE FROM users WHERE id = 4").code(), &SqlState::FOREIGN_KEY_VIOLATION);
}

/// What depends on a shard from outside would read and write the schema that the shard leaves.
#[test]
fn objects_that_depend_on_a_shard_keep_it_from_moving() {
    let pair = Pair::start("dependents");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let objects = [
        (
            "CREATE VIEW all2 AS SELECT * FROM insta2.photos",
            "DROP VIEW all2",
            "rule _RETURN on view public.all2",
        ),
        (
            "CREATE FUNCTION last2() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT max(id) FROM insta2.photos; END",
            "DROP FUNCTION last2",
            "function public.last2()",
        ),
        (
            "CREATE TABLE albums (photo bigint REFERENCES insta2.photos)",
            "DROP TABLE albums",
            "constraint albums_photo_fkey on table public.albums",
        ),
        (
            "CREATE PUBLICATION changes FOR TABLE insta2.photos",
            "DROP PUBLICATION changes",
            "publication changes",
        ),
        (
            "CREATE PUBLICATION changes FOR TABLES IN SCHEMA insta2",
            "DROP PUBLICATION changes",
            "publication changes",
        ),
        (
            "CREATE TABLE drafts (id bigint DEFAULT nextval('insta2.table_id_seq'))",
            "DROP TABLE drafts",
            "default value for column id of table public.drafts",
        ),
        (
            "CREATE MATERIALIZED VIEW some2 AS SELECT FROM insta2.photos",
            "DROP MATERIALIZED VIEW some2",
            "rule _RETURN on materialized view public.some2",
        ),
    ];
    for (create, drop, name) in objects {
        a.batch_execute(create).unwrap();
        let found = findings(&mut b, "2, 2, 'a'");
        let expected = format!(
            "error | cannot_leave | a | shard 2 cannot be moved: Other objects depend on it: {name}. | Drop them, or call with \
             ignore_dependents => true: then they stay with the schema that the shard leaves."
        );
        assert_eq!(found, [expected], "{create}");
        let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
        assert_eq!(error.detail(), Some(&*format!("Other objects depend on it: {name}.")));
        a.batch_execute(drop).unwrap();
    }
    nothing_is_left(&pair);

    for number in 1..=7 {
        a.batch_execute(&format!("CREATE VIEW v{number} AS SELECT FROM insta2.photos")).unwrap();
    }
    let error = refused(&mut b, "CALL insta_ids.drain_node('a')");
    assert!(error.detail().unwrap().contains("rule _RETURN on view public.v5 and 2 more"), "{error:?}");
    assert!(findings(&mut b, "2, 2, 'a', ignore_dependents => true")[0].starts_with("notice | would_move"));
    // A driver sends texts of no type.
    let call = "PREPARE moved AS SELECT count(*) FROM insta_ids.check_move($1, $2, $3, $4)";
    b.batch_execute(call).unwrap();
    b.batch_execute("EXECUTE moved('2', '2', 'a', 'true')").unwrap();
    b.batch_execute("CALL insta_ids.drain_node('a', ignore_dependents => true)").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta_ids.shards"), 4);
    assert_eq!(count(&mut a, "SELECT count(*) FROM pg_views WHERE definition LIKE '%insta2\\_\\_moved%'"), 7);
    b.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
}

/// The owners and privileges of a shard are the same on both servers, and an application that could write still can.
#[test]
fn owners_and_privileges_move_with_a_shard() {
    let pair = Pair::start("rights");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(
        "CREATE ROLE \"the Mover\" LOGIN REPLICATION; GRANT CREATE ON DATABASE postgres TO \"the Mover\";
         SELECT insta_ids.grant_provisioning('\"the Mover\"'); CREATE ROLE app LOGIN; CREATE ROLE \"it's\";
         SELECT insta_ids.add_migration('0002', 'CREATE TYPE mood AS ENUM (''fair''); CREATE DOMAIN few AS integer;
            CREATE VIEW captions AS SELECT caption FROM photos;
            CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at bigserial, mood mood);
            CREATE FUNCTION half(few) RETURNS integer IMMUTABLE RETURN $1 / 2; CREATE FUNCTION secret() RETURNS integer RETURN 1;
            CREATE TABLE logs (id bigint PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE logs1 PARTITION OF logs DEFAULT')",
    )
    .unwrap();
    let socket = pair.a.socket.display();
    let dsn = format!("host={socket} user='the Mover' dbname=postgres");
    a.execute("SELECT insta_ids.add_node('a', $1)", &[&dsn]).unwrap();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    let mut mover = pair.a.config().user("the Mover").connect(NoTls).unwrap();
    mover.batch_execute("CALL insta_ids.create_shards(4, 4)").unwrap();
    mover
        .batch_execute(
            "GRANT USAGE ON SCHEMA insta4 TO app WITH GRANT OPTION; GRANT SELECT, INSERT ON insta4.photos TO app;
             GRANT SELECT (id), UPDATE (caption) ON insta4.photos TO \"it's\"; GRANT USAGE ON SEQUENCE insta4.table_id_seq TO app;
             REVOKE EXECUTE ON FUNCTION insta4.half FROM PUBLIC; GRANT EXECUTE ON FUNCTION insta4.half TO \"it's\";
             REVOKE ALL ON FUNCTION insta4.secret() FROM PUBLIC, \"the Mover\"; REVOKE USAGE ON TYPE insta4.mood FROM PUBLIC; REVOKE DELETE ON insta4.events FROM \"the Mover\";
             ALTER DEFAULT PRIVILEGES IN SCHEMA insta4 GRANT SELECT ON TABLES TO app",
        )
        .unwrap();
    a.batch_execute("ALTER TABLE insta4.likes OWNER TO app; GRANT app TO \"the Mover\"").unwrap();
    let write = |node: &support::Cluster| {
        let mut app = node.config().user("app").connect(NoTls).unwrap();
        app.batch_execute("INSERT INTO insta4.photos DEFAULT VALUES; SELECT FROM insta4.photos")
    };
    write(&pair.a).unwrap();

    // Nothing is created for a role that this server lacks.
    let call = "CALL insta_ids.move_shards(4, 4, 'a')";
    let error = refused(&mut b, call);
    assert_eq!(error.message(), "role \"app\" does not exist on this node");
    assert_eq!(
        error.detail(),
        Some("On node \"a\" it owns objects of the shards, or has privileges on them.")
    );
    assert_eq!(error.hint(), Some("CREATE ROLE app; CREATE ROLE \"it's\"; CREATE ROLE \"the Mover\";"));
    assert!(
        findings(&mut b, "4, 4, 'a'")[0].starts_with("error | cannot_come | b | role \"app\" does not exist")
    );
    nothing_is_left(&pair);
    b.batch_execute(error.hint().unwrap()).unwrap();
    // What this server would grant, the source has not granted.
    b.batch_execute(
        "ALTER ROLE app LOGIN; CREATE ROLE other; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO other WITH GRANT OPTION;
         ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO PUBLIC",
    )
    .unwrap();
    let privileges = "SELECT jsonb_build_array(kind, identity, part, owner,
            ARRAY(SELECT to_jsonb(g) FROM insta_ids_internal.grants(kind, owner, acl) g ORDER BY g))::text
        FROM insta_ids_internal.owned_objects('{4}') ORDER BY kind, identity, part";
    let there = texts(&mut a, privileges);
    assert!(there.iter().any(|object| object.contains("\"DEFAULT\"")), "{there:?}");
    // A grant of these seconds comes, too.
    let mut moving = Move::of(&pair, 4, 4);
    moving.steps(before("fence"));
    assert_eq!(write(&pair.b).unwrap_err().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    moving.abort().unwrap();
    b.batch_execute(call).unwrap();
    assert_eq!(texts(&mut b, privileges), there);
    write(&pair.b).unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta4.photos"), 2);
}

/// An offer names roles. Whatever else it says, the target quotes it, or does not take it.
#[test]
fn privileges_of_a_source_reach_the_objects_of_its_shards_only() {
    let pair = Pair::start("planted_rights");
    let mut b = pair.b.connect();
    b.batch_execute(
        "CREATE ROLE guest; SELECT insta_ids.assign(9, 9, 'b'); SELECT insta_ids.create_shard(9)",
    )
    .unwrap();
    b.batch_execute(
        "CREATE TABLE public.salaries (); CREATE FUNCTION insta9.others() RETURNS integer RETURN 1;
         ALTER FUNCTION insta9.others() OWNER TO guest",
    )
    .unwrap();
    let acl = "SELECT count(*) FROM pg_class c, aclexplode(relacl) WHERE grantee = 'guest'::regrole";
    for (kind, identity, part, owner, privilege) in [
        ("TABLE", "public.salaries", "", "postgres", "SELECT"),
        ("TABLE", "public.salaries", "", "guest", "SELECT"),
        ("SCHEMA", "public", "", "guest", "CREATE"),
        ("ROUTINE", "insta9.others()", "", "postgres", "EXECUTE"),
        ("COLUMN", "public.salaries", "x", "postgres", "SELECT"),
        ("DEFAULT", "public", "TABLES", "postgres", "SELECT"),
        ("DEFAULT", "insta9", "TABLES TO guest; --", "postgres", "SELECT"),
        ("TABLE public.salaries TO guest; --", "insta9", "", "postgres", "SELECT"),
        ("SEQUENCE", "insta9.table_id_seq", "", "postgres", "ALL ON public.salaries TO guest; --"),
    ] {
        let grants =
            format!(r#"[{{"grantee": "guest", "privilege": "{privilege}", "is_grantable": false}}]"#);
        let object = format!(
            r#"[{{"kind": "{kind}", "identity": "{identity}", "part": "{part}", "owner": "{owner}", "grants": {grants}}}]"#
        );
        b.execute("BEGIN", &[]).unwrap();
        b.execute("SELECT insta_ids_internal.restore_privileges('{9}', $1::text::jsonb)", &[&object])
            .unwrap();
        assert_eq!(count(&mut b, acl), 0, "{object}");
        assert_eq!(count(&mut b, "SELECT count(*) FROM pg_default_acl"), 0, "{object}");
        let owned = "SELECT count(*) FROM pg_class WHERE relowner = 'guest'::regrole";
        assert_eq!(count(&mut b, owned), 0, "{object}");
        let kept = "SELECT count(*) FROM pg_proc WHERE proowner = 'guest'::regrole";
        assert_eq!(count(&mut b, kept), 1, "{object}");
        b.execute("ROLLBACK", &[]).unwrap();
    }
}

/// What is short or different on a server is said before the copy.
#[test]
fn servers_that_cannot_copy_are_found_before_the_copy() {
    let pair = Pair::start("short");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for slots in 1..=9 {
        a.batch_execute(&format!("SELECT pg_create_physical_replication_slot('s{slots}')")).unwrap();
    }
    let found = findings(&mut b, "2, 2, 'a'");
    let short =
        "error | cannot_leave | a | a move needs two free replication slots, and this server has 1 | ";
    assert!(found[0].starts_with(short), "{found:?}");
    a.batch_execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots").unwrap();
    b.batch_execute("ALTER SYSTEM SET max_sync_workers_per_subscription = 0").unwrap();
    b.batch_execute("SELECT pg_reload_conf(), pg_sleep(0.5)").unwrap();
    let found = findings(&mut b, "2, 2, 'a'");
    let short = "error | cannot_come | b | subscriptions cannot copy tables to this server: \
        \"max_sync_workers_per_subscription\" is 0, and 0 of them are in use. | ";
    assert!(found[0].starts_with(short), "{found:?}");
    b.batch_execute("ALTER SYSTEM RESET ALL").unwrap();
    b.batch_execute("SELECT pg_reload_conf()").unwrap();
    b.batch_execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").unwrap();
    let mut latin = pair.b.connect_to("latin");
    latin.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    latin.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    let found = findings(&mut latin, "2, 2, 'a'");
    let short = "error | cannot_come | b | database of node \"a\" has the encoding UTF8, and this one has LATIN1 | \
        Create this database with ENCODING 'UTF8'.";
    assert_eq!(found, [short]);
}

/// An object cannot go out of a shard that is fenced or moves, or into it.
#[test]
fn objects_do_not_change_schemas_under_a_fence() {
    let pair = Pair::start("leaving");
    let mut a = pair.a.connect();
    a.batch_execute(
        "CREATE TYPE insta2.mood AS ENUM ('fair'); CREATE SEQUENCE insta2.s; CREATE VIEW insta2.v AS SELECT 1;
         CREATE TABLE public.t (); CREATE FUNCTION public.f() RETURNS integer RETURN 1; CREATE TYPE public.kind AS ENUM ('big')",
    )
    .unwrap();
    let statements = [
        "ALTER TABLE insta2.likes SET SCHEMA public",
        "ALTER SEQUENCE insta2.s SET SCHEMA public",
        "ALTER VIEW insta2.v SET SCHEMA public",
        "ALTER FUNCTION insta2.next_id() SET SCHEMA public",
        "ALTER TYPE insta2.mood SET SCHEMA public",
        "DO $$BEGIN EXECUTE 'ALTER TABLE insta2.likes SET SCHEMA public'; END$$",
        "ALTER TABLE public.t SET SCHEMA insta2",
        "ALTER FUNCTION public.f SET SCHEMA insta2",
        "ALTER TYPE public.kind SET SCHEMA insta2",
    ];
    for (close, open) in [
        ("SELECT insta_ids.fence(2)", "SELECT insta_ids.unfence(2)"),
        (
            "SELECT insta_ids_internal.move_offer(2, 2, 'b')",
            "SELECT insta_ids_internal.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m",
        ),
    ] {
        a.batch_execute(close).unwrap();
        for statement in statements {
            let error = refused(&mut a, statement);
            assert_eq!(error.message(), "shard 2 moves or is fenced, and cannot be altered", "{statement}");
        }
        a.batch_execute("ALTER TABLE public.t SET SCHEMA insta3; ALTER TABLE insta3.t SET SCHEMA public")
            .unwrap();
        a.batch_execute(open).unwrap();
    }
    for statement in &statements[..5] {
        a.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}
