//! What shards share with the rest of their servers: rows, objects, roles and settings. A move keeps it whole, or is refused.

use support::pair::Pair;
use support::refused;

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
