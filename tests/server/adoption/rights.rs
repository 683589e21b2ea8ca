//! Promise: no code of a schema's owner runs with the rights of the role that calls adopt. An owner needs no superuser to adopt.

use postgres::NoTls;
use postgres::error::SqlState;

use super::{ADOPT, ARTICLE, CANNOT, UNADOPT, anew, confirming, owned_by, run, said, unchanged};
use crate::migrations::PLANT;
use support::{Cluster, count, disorders, ids, refused, texts};

#[test]
fn an_owner_needs_no_superuser() {
    let cluster = Cluster::start("owner");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE owner LOGIN; SELECT insta_ids.grant_provisioning('owner'); CREATE ROLE app LOGIN",
    );
    anew(
        &mut client,
        "GRANT USAGE ON SCHEMA insta5 TO app; GRANT INSERT ON insta5.photos TO app; GRANT USAGE ON SEQUENCE insta5.table_id_seq TO app",
    );
    owned_by(&mut client, "owner");
    let mut owner = cluster.config().user("owner").connect(NoTls).unwrap();
    let mut app = cluster.config().user("app").connect(NoTls).unwrap();
    for _ in 0..2 {
        for call in [ADOPT, UNADOPT] {
            run(&mut owner, call);
            run(&mut app, "INSERT INTO insta5.photos DEFAULT VALUES");
        }
    }
    let owners =
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'insta5'::regnamespace";
    assert_eq!(texts(&mut client, owners), ["owner"]);
}

#[test]
fn nothing_planted_is_called() {
    let cluster = Cluster::start("planted_adopt");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(&mut client, "");
    run(
        &mut client,
        &ARTICLE
            .replace("next_id", "by_path")
            .replace("insta5.table_id_seq", "table_id_seq")
            .replace("PLPGSQL", "PLPGSQL SET search_path = insta5"),
    );
    run(&mut client, PLANT);
    for call in [ADOPT, UNADOPT, ADOPT] {
        run(&mut client, "SET search_path = planted, public, pg_catalog");
        run(&mut client, call);
        run(&mut client, "RESET search_path; INSERT INTO insta5.photos SELECT FROM generate_series(1, 10)");
    }
}

/// An owner's code never runs with the rights of the superuser who adopts or unadopts the schema.
#[test]
fn nothing_of_the_owners_is_called() {
    let cluster = Cluster::start("owners_code");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE owner LOGIN; SELECT insta_ids.grant_provisioning('owner')",
    );
    anew(&mut client, "GRANT ALL ON SCHEMA public TO owner");
    owned_by(&mut client, "owner");
    run(
        &mut client,
        "SET ROLE owner;
         CREATE FUNCTION insta5.ran() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             IF current_user <> 'owner' THEN RAISE 'ran as %', current_user; END IF;
             RETURN true;
         END $$;
         CREATE FUNCTION insta5.same(n bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
             IF current_user <> 'owner' THEN RAISE 'ran as %', current_user; END IF;
             RETURN n;
         END $$;
         CREATE FUNCTION insta5.filled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM insta5.ran();
             RETURN NEW;
         END $$;
         CREATE DOMAIN insta5.d AS bigint CHECK (insta5.ran());
         CREATE TYPE insta5.e AS ENUM ('a');
         CREATE FUNCTION insta5.to_number(e insta5.e) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint WHERE insta5.ran()';
         CREATE FUNCTION insta5.to_e(n bigint) RETURNS insta5.e LANGUAGE sql AS $$ SELECT 'a'::insta5.e WHERE insta5.ran() $$;
         CREATE CAST (insta5.e AS bigint) WITH FUNCTION insta5.to_number AS IMPLICIT;
         CREATE CAST (bigint AS insta5.e) WITH FUNCTION insta5.to_e AS ASSIGNMENT;
         CREATE TABLE insta5.typed (
             id insta5.d PRIMARY KEY DEFAULT insta5.next_id(), e insta5.e DEFAULT insta5.next_id(), b boolean DEFAULT insta5.ran());
         CREATE INDEX ON insta5.typed (insta5.same(id));
         CREATE INDEX ON insta5.typed (id) WHERE insta5.same(id) > 0;
         CREATE STATISTICS insta5.s ON insta5.same(id), e FROM insta5.typed;
         ALTER TABLE insta5.typed ADD CHECK (insta5.same(id) > 0);
         CREATE TRIGGER filled BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta5.typed EXECUTE FUNCTION insta5.filled();
         CREATE FUNCTION insta5.next_id(seq_name name) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint WHERE insta5.ran()';
         INSERT INTO insta5.typed SELECT FROM generate_series(1, 10);
         RESET ROLE",
    );
    assert!(refused(&mut client, "INSERT INTO insta5.typed DEFAULT VALUES").message().starts_with("ran as "));
    run(&mut client, &ARTICLE.replace("next_id(OUT", "of_now(b boolean DEFAULT insta5.ran(), OUT"));
    for call in [ADOPT, UNADOPT, ADOPT, UNADOPT] {
        run(&mut client, call);
        run(&mut client, "SET ROLE owner; INSERT INTO insta5.typed DEFAULT VALUES; RESET ROLE");
    }
    let all = ids(&mut client, "SELECT id::bigint FROM insta5.typed ORDER BY ctid");
    assert_eq!((all.len(), disorders(&all)), (14, 0));
}

/// SET ... FROM CURRENT can store any text in a function's settings. Adopt and unadopt never run that text.
#[test]
fn what_is_in_a_path_is_not_run() {
    let cluster = Cluster::start("owners_path");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE owner LOGIN; SELECT insta_ids.grant_provisioning('owner')",
    );
    for (path, kept) in [
        (
            "x/**/RETURN/**/1;ALTER/**/ROLE/**/owner/**/SUPERUSER;--",
            "x/**/return/**/1;alter/**/role/**/owner/**/superuser;--",
        ),
        (
            "x/**/AS/**/'';ALTER/**/ROLE/**/owner/**/SUPERUSER;--",
            "x/**/as/**/'';alter/**/role/**/owner/**/superuser;--",
        ),
        ("\"A, \"\"b\"\"\", c", "A, \"b\""),
    ] {
        anew(&mut client, "GRANT ALL ON SCHEMA public TO owner");
        owned_by(&mut client, "owner");
        run(&mut client, "SET ROLE owner");
        client.query("SELECT set_config('search_path', $1, false)", &[&path]).unwrap();
        run(
            &mut client,
            "ALTER FUNCTION insta5.next_id() SECURITY DEFINER; ALTER FUNCTION insta5.next_id() SET search_path FROM CURRENT;
             RESET search_path; RESET ROLE",
        );
        for call in [ADOPT, UNADOPT] {
            run(&mut client, call);
            run(&mut client, "INSERT INTO insta5.photos DEFAULT VALUES");
            let setting = "SELECT proconfig[1] FROM pg_proc WHERE oid = 'insta5.next_id()'::regprocedure";
            let quoted = format!("search_path=\"{}\"", kept.replace('"', "\"\""));
            assert!(texts(&mut client, setting)[0].starts_with(&quoted), "{:?}", texts(&mut client, setting));
        }
        assert_eq!(
            count(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname = 'owner' AND rolsuper"),
            0
        );
    }
}

/// Only a role that may take values of a sequence may lock it.
#[test]
fn only_sequences_of_ones_own_are_locked() {
    let cluster = Cluster::start("lock_sequence");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE ROLE other; GRANT USAGE ON SCHEMA insta_ids_internal TO other;
         CREATE SEQUENCE none; CREATE SEQUENCE readable; CREATE SEQUENCE usable; CREATE SEQUENCE changeable; CREATE TABLE t ();
         GRANT SELECT ON SEQUENCE readable TO other; GRANT USAGE ON SEQUENCE usable TO other;
         GRANT UPDATE ON SEQUENCE changeable TO other; GRANT ALL ON TABLE t TO other; SET ROLE other",
    );
    for (what, code, message) in [
        ("'none'::regclass", "42501", "permission denied for sequence none"),
        ("'readable'::regclass", "42501", "permission denied for sequence readable"),
        ("'pg_class'::regclass", "42501", "permission denied for table pg_class"),
        ("'pg_class_oid_index'::regclass", "42809", "\"pg_class_oid_index\" is not a table or sequence"),
        ("4294967295", "42P01", "relation with OID 4294967295 does not exist"),
        ("0", "42P01", "relation with OID 0 does not exist"),
    ] {
        let error = refused(
            &mut client,
            &format!("SELECT insta_ids_internal.lock_relation({what}, 'SHARE ROW EXCLUSIVE')"),
        );
        assert_eq!(said(&error), [code, message, "", ""], "{what}");
    }
    for sequence in ["usable", "changeable"] {
        run(
            &mut client,
            &format!(
                "BEGIN; SELECT insta_ids_internal.lock_relation('{sequence}'::regclass, 'SHARE ROW EXCLUSIVE')"
            ),
        );
        let mut waits = cluster.connect();
        let nextval = format!("SET lock_timeout = '50ms'; SELECT nextval('{sequence}')");
        assert_eq!(refused(&mut waits, &nextval).code(), &SqlState::LOCK_NOT_AVAILABLE);
        run(&mut client, "COMMIT");
        run(&mut waits, &nextval);
    }
}

/// A confirmed function calls code that another role has planted. That code runs neither as a superuser nor as the owner of
/// other objects.
#[test]
fn what_a_confirmed_function_calls_has_nobody_elses_rights() {
    let cluster = Cluster::start("planted_calls");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE guest; CREATE ROLE other; CREATE TABLE public.secret (); REVOKE ALL ON public.secret FROM PUBLIC;
         CREATE SCHEMA planted AUTHORIZATION guest; GRANT USAGE ON SCHEMA planted TO PUBLIC; SET ROLE guest;
         CREATE FUNCTION planted.shard() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
             RAISE LOG 'PLANTED RAN AS %', (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE left(rolname, 10) END FROM pg_roles WHERE rolname = current_user);
             BEGIN
                 EXECUTE 'ALTER ROLE guest SUPERUSER';
                 RAISE LOG 'PLANTED GAINED';
             EXCEPTION WHEN insufficient_privilege THEN NULL;
             END;
             BEGIN
                 EXECUTE 'RESET ROLE';
                 RAISE LOG 'PLANTED GAINED';
             EXCEPTION WHEN insufficient_privilege THEN NULL;
             END;
             BEGIN
                 PERFORM FROM public.secret;
                 RAISE LOG 'PLANTED GAINED';
             EXCEPTION WHEN insufficient_privilege THEN NULL;
             END;
             RETURN 5;
         END $$;
         CREATE VIEW planted.shards AS SELECT planted.shard() AS shard; GRANT SELECT ON planted.shards TO PUBLIC; RESET ROLE",
    );
    let calls = ARTICLE.replace("int := 5", "int := (SELECT shard FROM planted.shards)");
    let ran = |as_whom: &str| cluster.log().contains(&format!("PLANTED RAN AS {as_whom}"));
    // Adopt calls a superuser's function as a role that it creates for the call.
    anew(&mut client, &calls);
    assert!(!ran(""));
    let call = confirming(&mut client);
    assert!(!ran(""), "called before it was confirmed");
    run(&mut client, &call);
    assert!(ran("insta_ids_"));
    assert!(!ran("SUPERUSER"));
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname ~ 'insta_ids'"), 0);
    // A superuser's SECURITY DEFINER function would run as that superuser.
    anew(&mut client, &calls);
    run(&mut client, "ALTER FUNCTION insta5.next_id() SECURITY DEFINER");
    let call = confirming(&mut client);
    let error = unchanged(&mut client, &call);
    let detail =
        "Function insta5.next_id(): It cannot be called: it is SECURITY DEFINER and belongs to a superuser.";
    let hint = "Give it to another role: ALTER FUNCTION insta5.next_id() OWNER TO ...";
    assert_eq!(said(&error), ["55000", CANNOT, detail, hint]);
    // With two owners in a schema, each could run the other's code.
    anew(&mut client, &calls);
    owned_by(&mut client, "other");
    run(&mut client, "ALTER TABLE insta5.likes OWNER TO guest");
    let call = confirming(&mut client);
    let error = unchanged(&mut client, &call);
    let detail = "Function insta5.next_id(): It cannot be called: it belongs to other, and other objects of its schema to guest, whose code it could run.";
    let hint = "Let all of schema insta5 belong to one role, apart from superusers.";
    assert_eq!(said(&error), ["55000", CANNOT, detail, hint]);
    assert!(!ran("other") && !ran("SUPERUSER") && !cluster.log().contains("PLANTED GAINED"));
    // With one owner, adopt calls the function as that owner.
    run(&mut client, "ALTER TABLE insta5.likes OWNER TO other");
    run(&mut client, &call);
    assert!(ran("other") && !ran("SUPERUSER") && !cluster.log().contains("PLANTED GAINED"));
}

/// With a `search_path` of its own, the published text can call functions and operators of another role. Adopt calls none.
#[test]
fn what_a_known_text_means_by_a_path_is_not_called() {
    let cluster = Cluster::start("planted_path");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE ROLE guest; CREATE SCHEMA planted AUTHORIZATION guest; GRANT USAGE ON SCHEMA planted TO PUBLIC; SET ROLE guest;
         CREATE FUNCTION planted.nextval(name text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
             RAISE LOG 'PLANTED RAN AS %', (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE rolname END FROM pg_roles WHERE rolname = current_user);
             RETURN pg_catalog.nextval(name::regclass);
         END $$;
         CREATE FUNCTION planted.times(a numeric, b integer) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN
             RAISE LOG 'PLANTED RAN AS %', (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE rolname END FROM pg_roles WHERE rolname = current_user);
             RETURN a OPERATOR(pg_catalog.*) b;
         END $$;
         CREATE OPERATOR planted.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = planted.times); RESET ROLE",
    );
    for options in ["", " SECURITY DEFINER"] {
        anew(
            &mut client,
            &ARTICLE.replace("PLPGSQL", &format!("PLPGSQL SET search_path = planted{options}")),
        );
        client.batch_execute(ADOPT).unwrap();
        run(&mut client, "SELECT insta5.next_id()");
        assert!(!cluster.log().contains("PLANTED RAN"));
    }
}

/// A role with `grant_provisioning` cannot call functions as a role of which it is no member.
#[test]
fn functions_are_called_by_who_can_become_the_role() {
    let cluster = Cluster::start("call_function");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE ROLE guest; CREATE ROLE owner; CREATE ROLE member IN ROLE owner;
         SELECT insta_ids.grant_provisioning('guest'), insta_ids.grant_provisioning('member');
         CREATE FUNCTION one(n integer, d name) RETURNS bigint LANGUAGE sql AS 'SELECT n::bigint';
         CREATE FUNCTION hidden() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; REVOKE ALL ON FUNCTION hidden FROM PUBLIC;
         CREATE FUNCTION many() RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint';
         CREATE DOMAIN own AS integer; CREATE FUNCTION of_domain(n own) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    );
    let call = |function: &str, role: &str, arguments: &str| {
        format!(
            "SELECT insta_ids_internal.call_function('{function}'::regprocedure, '{role}'::regrole, {arguments})"
        )
    };
    let one = |role: &str| call("one(integer,name)", role, "'{7,NULL}'");
    run(&mut client, "SET ROLE member");
    assert_eq!(count(&mut client, &one("owner")), 7);
    run(&mut client, "RESET ROLE");
    let kind = "function does not return one bigint for these arguments";
    for (user, call, code, message) in [
        ("guest", one("owner"), "42501", "must be "),
        ("guest", one("postgres"), "42501", "must be "),
        ("member", one("postgres"), "42501", "must be "),
        ("member", call("hidden()", "owner", "'{}'"), "42501", "permission denied for function hidden"),
        ("postgres", call("many()", "owner", "'{}'"), "42809", kind),
        ("postgres", call("one(integer,name)", "owner", "'{7}'"), "42809", kind),
        ("postgres", call("of_domain(own)", "owner", "'{7}'"), "42809", kind),
        ("postgres", call("now()", "owner", "'{}'"), "42809", kind),
        (
            "postgres",
            call("one(integer,name)", "owner", "'{a,NULL}'"),
            "22P02",
            "invalid input syntax for type integer: \"a\"",
        ),
        ("postgres", call("0", "owner", "'{}'"), "42883", "function with OID 0 does not exist"),
    ] {
        run(&mut client, &format!("SET ROLE {user}"));
        let error = refused(&mut client, &call);
        run(&mut client, "RESET ROLE");
        assert_eq!(error.code().code(), code, "{call}: {error}");
        assert!(error.message().starts_with(message), "{call}: {error}");
    }
}
