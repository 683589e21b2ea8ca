//! What shards share with the rest of their servers: rows, objects, roles and settings. A move keeps it whole, or is refused.

use support::pair::Pair;
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
