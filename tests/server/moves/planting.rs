//! Code that others planted on a server of the move.

use std::collections::BTreeSet;

use support::pair::Pair;
use support::{count, major, refused};

/// A role that may make functions on the source gains nothing of the mover's rights, even if its schema comes first in the
/// path of every session there.
#[test]
fn code_planted_on_the_source_does_not_run_as_the_mover() {
    let pair = Pair::start("planted");
    pair.a
        .connect()
        .batch_execute(
            "CREATE FUNCTION public.to_jsonb(boolean) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
             CREATE FUNCTION public.to_jsonb(bigint) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
             CREATE FUNCTION public.to_jsonb(timestamptz) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
             ALTER DATABASE postgres SET search_path = public, pg_catalog",
        )
        .unwrap();
    pair.b.connect().batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
}

/// The owner of a table on the target runs nothing as the superuser who moves shards there. PostgreSQL 15 does not see to
/// that, so there the superuser must own what runs.
#[test]
fn code_planted_on_the_target_does_not_run_as_the_mover() {
    let pair = Pair::start("owners");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client
            .batch_execute(
                "CREATE ROLE guest; CREATE FUNCTION public.canary(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
                    $$BEGIN RAISE LOG 'canary of %', current_user; RETURN $1; END$$;
                 CREATE TYPE public.mood AS ENUM ('fine'); ALTER TYPE public.mood OWNER TO guest;
                 ALTER FUNCTION public.canary OWNER TO guest; GRANT USAGE ON SCHEMA public TO guest",
            )
            .unwrap();
    }
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002', 'CREATE INDEX ON likes (public.canary(id)); CREATE SEQUENCE s OWNED BY likes.id;
            ALTER TABLE likes ADD moods public.mood[];
            ALTER TABLE likes OWNER TO guest;
            DO $$BEGIN EXECUTE format(''GRANT USAGE ON SCHEMA %I TO guest'', current_schema()); END$$')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute("INSERT INTO insta2.likes VALUES (2 << 10)").unwrap();
    let mut messages = Vec::new();
    while let Err(error) = b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a', verify => 'none')") {
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "55000", "{error:?}");
        assert!(!pair.b.log().contains("canary of"), "{}", pair.b.log());
        messages.push(error.message().to_owned());
        let hint = error.hint().unwrap().strip_prefix("If you trust that code: ").unwrap();
        b.batch_execute(hint.split_once(". Then").unwrap().0).unwrap();
    }
    // The hint is about the function and the type, too.
    let owned = ["table insta2.likes belongs to role \"guest\""];
    assert_eq!(messages, if major() == 15 { &owned[..] } else { &[] });
    b.batch_execute("ALTER TABLE insta2.likes OWNER TO guest").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.likes"), 1);
}

/// A move empties the tables that it has made. A trigger that would run then, with code of another role, is refused.
#[test]
fn a_trigger_for_truncate_does_not_run_as_the_mover() {
    let pair = Pair::start("truncated");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client
            .batch_execute(
                "CREATE ROLE guest; CREATE FUNCTION public.evil() RETURNS trigger LANGUAGE plpgsql AS
                    $$BEGIN RAISE LOG 'canary of %', current_user; RETURN NULL; END$$;
                 CREATE FUNCTION public.is_evil() RETURNS boolean LANGUAGE plpgsql AS
                    $$BEGIN RAISE LOG 'canary of %', current_user; RETURN true; END$$;
                 ALTER FUNCTION public.evil OWNER TO guest; ALTER FUNCTION public.is_evil OWNER TO guest;
                 GRANT USAGE ON SCHEMA public TO guest",
            )
            .unwrap();
    }
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002',
            'CREATE TRIGGER evil BEFORE TRUNCATE ON likes WHEN (public.is_evil()) EXECUTE FUNCTION public.evil();
             ALTER TABLE likes ENABLE ALWAYS TRIGGER evil')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    let mut messages = BTreeSet::new();
    for _ in 0..2 {
        let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
        assert_eq!(error.code().code(), "42501", "{error:?}");
        let used = if error.message().contains("is_evil") { "is_evil" } else { "evil" };
        messages.insert(error.message().to_owned());
        b.batch_execute(&format!("ALTER FUNCTION public.{used} OWNER TO postgres")).unwrap();
    }
    let expected = ["evil", "is_evil"].map(|function| {
        format!("trigger \"evil\" of table insta2.likes uses function public.{function}() of role \"guest\"")
    });
    assert_eq!(messages, expected.into());
    assert!(!pair.b.log().contains("canary of"), "{}", pair.b.log());
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
}

/// A move makes the partitions that the source has. PostgreSQL converts their bounds to the types of the key.
#[test]
fn a_domain_of_a_partition_key_does_not_run_as_the_mover() {
    let pair = Pair::start("bounds");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    for client in [&mut a, &mut b] {
        client
            .batch_execute(
                "CREATE ROLE guest; CREATE FUNCTION public.canary(integer) RETURNS boolean LANGUAGE plpgsql AS
                    $$BEGIN RAISE LOG 'canary of %', current_user; RETURN true; END$$;
                 CREATE DOMAIN public.kind AS integer CHECK (public.canary(VALUE));
                 ALTER DOMAIN public.kind OWNER TO guest; GRANT USAGE ON SCHEMA public TO guest",
            )
            .unwrap();
    }
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002', 'CREATE TABLE kinds (id bigint, kind public.kind, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind)')",
    )
    .unwrap();
    a.batch_execute("CALL insta_ids.migrate()").unwrap();
    a.batch_execute("CREATE TABLE insta2.kinds_1 PARTITION OF insta2.kinds FOR VALUES IN (1)").unwrap();
    let error = refused(&mut b, "CALL insta_ids.move_shards(2, 2, 'a')");
    assert_eq!((error.code().code(), error.message()), ("42501", "type public.kind belongs to role guest"));
    assert!(!pair.b.log().contains("canary of"), "{}", pair.b.log());
    b.batch_execute("ALTER DOMAIN public.kind OWNER TO CURRENT_USER").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
}
