//! Promise: the dump of a shard is a migration that makes other shards like it.

use insta_ids::shard::dump::{default_of, in_shard, is_dump, migration_of, setting, without_restrict};

fn of(statement: &str) -> Option<String> {
    Some(String::from_utf8(migration_of(statement.as_bytes(), b"insta5", 5, &[])?).unwrap())
}

fn in_schema(migration: &str, schema: &str) -> String {
    String::from_utf8(in_shard(migration.as_bytes(), schema.as_bytes())).unwrap()
}

#[test]
fn names_of_the_schema_become_those_of_any_shard() {
    for (statement, expected) in [
        (
            "CREATE VIEW insta5.v AS SELECT insta5.f(p.id) FROM insta5.photos p",
            "CREATE VIEW S.v AS SELECT S.f(p.id) FROM S.photos p",
        ),
        ("ALTER TABLE ONLY \"insta5\".\"Photos\" ADD n int", "ALTER TABLE ONLY S.\"Photos\" ADD n int"),
        (
            "CREATE TABLE insta5.t (id bigint DEFAULT insta5.next_id('insta5.q'::regclass))",
            "CREATE TABLE S.t (id bigint DEFAULT S.next_id('S.q'::regclass))",
        ),
        // Text of users stays as it is.
        (
            "-- Name: t; Schema: insta5\n\nCREATE TABLE insta5.t (n text DEFAULT 'see insta5.t', insta50.x)",
            "CREATE TABLE S.t (n text DEFAULT 'see insta5.t', insta50.x)",
        ),
        (
            "CREATE TABLE insta5.t (n text DEFAULT 'insta5.example.com'::text CHECK (n <> 'insta5'))",
            "CREATE TABLE S.t (n text DEFAULT 'insta5.example.com'::text CHECK (n <> 'insta5'))",
        ),
        (
            "CREATE FUNCTION insta5.f() RETURNS trigger\n    LANGUAGE plpgsql\n    SET search_path TO 'insta5', 'pg_temp'\n    AS $$ BEGIN insta5.f(); END $$",
            "CREATE FUNCTION S.f() RETURNS trigger\n    LANGUAGE plpgsql\n    SET search_path TO 'S', 'pg_temp'\n    AS $$ BEGIN insta5.f(); END $$",
        ),
        (
            "CREATE FUNCTION insta5.f() RETURNS text SET search_path TO 'public', insta5 RETURN 'insta5'",
            "CREATE FUNCTION S.f() RETURNS text SET search_path TO 'public', S RETURN 'insta5'",
        ),
        (
            "GRANT USAGE ON SCHEMA insta5 TO insta5, \"a$sql$b\"",
            "GRANT USAGE ON SCHEMA S TO insta5, \"a$sql$b\"",
        ),
        ("GRANT ALL ON SEQUENCE insta5.table_id_seq TO app", "GRANT ALL ON SEQUENCE S.table_id_seq TO app"),
        (
            "CREATE OPERATOR CLASS insta5.o FOR TYPE int4 USING btree AS OPERATOR 1 insta5.<(int4,int4)",
            "CREATE OPERATOR CLASS S.o FOR TYPE int4 USING btree AS OPERATOR 1 S.<(int4,int4)",
        ),
        // These are refused afterwards.
        (
            "ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA insta5 GRANT SELECT ON TABLES TO app",
            "ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA S GRANT SELECT ON TABLES TO app",
        ),
        ("CREATE SCHEMA insta5 CREATE TABLE t (n int)", "CREATE SCHEMA S CREATE TABLE t (n int)"),
    ] {
        assert_eq!(
            of(statement),
            Some(
                expected
                    .replace("S.", "insta_ids_shard.")
                    .replace("'S'", "'insta_ids_shard'")
                    .replace(" S ", " insta_ids_shard ")
            )
        );
    }
}

#[test]
fn a_migration_gets_the_name_of_each_shard() {
    let migration = "CREATE VIEW insta_ids_shard.v AS SELECT 'insta_ids_shard.v'::regclass, 'insta_ids_shards', $$insta_ids_shard.v$$";
    assert_eq!(
        in_schema(migration, "insta7"),
        "CREATE VIEW insta7.v AS SELECT 'insta7.v'::regclass, 'insta_ids_shards', $$insta_ids_shard.v$$"
    );
    assert_eq!(
        in_schema(
            "SET search_path TO 'insta_ids_shard', Insta_Ids_Shard; SELECT '\"insta_ids_shard\".v'::regclass",
            "It's \"7"
        ),
        "SET search_path TO 'It''s \"7', \"It's \"\"7\"; SELECT '\"It''s \"\"7\".v'::regclass"
    );
    for (migration, expected) in [
        ("SELECT 'insta_ids_shard'::regnamespace", "SELECT 'insta7'::regnamespace"),
        // Literals that are no names stay, whatever comes before them.
        (
            "SELECT 'insta_ids_shard', 'insta_ids_shard.t is a name'",
            "SELECT 'insta_ids_shard', 'insta_ids_shard.t is a name'",
        ),
        (
            r"SELECT E'it\'s insta_ids_shard.t', insta_ids_shard.f()",
            r"SELECT E'it\'s insta_ids_shard.t', insta7.f()",
        ),
        (
            r"SELECT e'\\', insta_ids_shard.f('E', insta_ids_shard.g())",
            r"SELECT e'\\', insta7.f('E', insta7.g())",
        ),
        ("SELECT 1", "SELECT 1"),
    ] {
        assert_eq!(in_schema(migration, "insta7"), expected);
    }
}

#[test]
fn checks_of_ids_are_left_out() {
    for check in [
        "CONSTRAINT photos_id_check CHECK ((public.id_shard(id) = 5))",
        "CONSTRAINT photos_id_check CHECK (((id < 1000) OR (public.id_shard(id) = 5)))",
        "CONSTRAINT photos_id_check CHECK ((id_shard((id)::bigint, 'time:41 shard:13 seq:10'::insta_ids.id_layout) = 5))",
        "CONSTRAINT photos_id_check CHECK (((id < '1000'::bigint) OR (\"public\".\"id_shard\"(\"id\") = 5)))",
    ] {
        for (statement, expected) in [
            (
                format!("CREATE TABLE insta5.t (\n    id bigint DEFAULT f(1, 2),\n    {check}\n)"),
                "CREATE TABLE insta_ids_shard.t (\n    id bigint DEFAULT f(1, 2)\n)",
            ),
            (
                format!("CREATE TABLE insta5.t ({check}, n int, id bigint DEFAULT f() NOT NULL)"),
                "CREATE TABLE insta_ids_shard.t ( n int, id bigint DEFAULT f() NOT NULL)",
            ),
            (
                format!(
                    "CREATE UNLOGGED TABLE insta5.t (n numeric(3,1), id bigint NOT NULL DEFAULT f(), {check}, CONSTRAINT a CHECK ((n > 5)))"
                ),
                "CREATE UNLOGGED TABLE insta_ids_shard.t (n numeric(3,1), id bigint NOT NULL DEFAULT f(), CONSTRAINT a CHECK ((n > 5)))",
            ),
        ] {
            assert_eq!(of(&statement).as_deref(), Some(expected));
        }
        assert_eq!(of(&format!("ALTER TABLE insta5.t\n    ADD {check} NOT VALID")), None);
    }
    // CHECKs of users stay.
    for check in [
        "CHECK ((public.id_shard(id) = 6))",
        "CHECK (((public.id_shard(photo_id) = public.id_shard(id)) OR (state = 5)))",
        "CHECK (((public.id_shard(id) < 7) OR (public.id_shard(id) = 5)))",
        "CHECK ((public.id_shard(id) = 5)) NO INHERIT",
        "CHECK (((n < 3) OR (public.id_shard(id) = 5) OR (n > 7)))",
    ] {
        let statement = format!("ALTER TABLE insta5.t ADD CONSTRAINT c {check}");
        assert_eq!(of(&statement), Some(statement.replace("insta5", "insta_ids_shard")));
    }
    let of_no_default =
        "CREATE TABLE insta5.t (id bigint, n int DEFAULT 5, CONSTRAINT c CHECK ((public.id_shard(id) = 5)))";
    assert_eq!(of(of_no_default), Some(of_no_default.replace("insta5", "insta_ids_shard")));
    let default =
        default_of(b"ALTER TABLE ONLY insta5.t ALTER COLUMN \"id\" SET DEFAULT insta5.next_id()").unwrap();
    assert_eq!(default, (b"t".to_vec(), b"id".to_vec()));
    let migration = migration_of(of_no_default.as_bytes(), b"insta5", 5, &[default]).unwrap();
    assert_eq!(migration, b"CREATE TABLE insta_ids_shard.t (id bigint, n int DEFAULT 5)");
    let domain = "CREATE DOMAIN insta5.d AS bigint CONSTRAINT c CHECK ((public.id_shard(VALUE) = 5))";
    assert_eq!(of(domain), Some(domain.replace("insta5", "insta_ids_shard")));
}

#[test]
fn what_each_shard_has_is_left_out() {
    for statement in [
        "CREATE SCHEMA insta5",
        "ALTER SCHEMA insta5 OWNER TO keeper",
        "COMMENT ON SCHEMA insta5 IS 'x'",
        "CREATE SEQUENCE insta5.table_id_seq START WITH 1",
        "CREATE SEQUENCE \"insta5\".\"table_id_seq\" START WITH 1",
        "ALTER TABLE insta5.table_id_seq OWNER TO keeper",
        "CREATE FUNCTION insta5.next_id() RETURNS bigint RETURN public.next_id(5, 'insta5.table_id_seq'::regclass)",
        "ALTER FUNCTION insta5.next_id(seq_name regclass) OWNER TO keeper",
        "CREATE TRIGGER insta_ids_fence BEFORE INSERT ON insta5.t EXECUTE FUNCTION insta_ids_internal.guard('5')",
        "ALTER TABLE insta5.t ENABLE ALWAYS TRIGGER insta_ids_fence",
    ] {
        assert_eq!(of(statement), None, "{statement}");
    }
    // What users gave the same name is theirs.
    for statement in [
        "CREATE TABLE insta5.next_id (seq_name regclass)",
        "CREATE FUNCTION insta5.next_id(kind text, n integer) RETURNS bigint RETURN 1",
        "CREATE TABLE insta5.insta_ids_fences (n int)",
        "CREATE VIEW insta5.v AS SELECT table_id_seq.last_value FROM insta5.table_id_seq",
    ] {
        assert_eq!(of(statement), Some(statement.replace("insta5", "insta_ids_shard")));
    }
}

#[test]
fn settings_last_for_the_migration() {
    let of = |statement: &str| setting(statement.as_bytes()).map(|text| String::from_utf8(text).unwrap());
    assert_eq!(
        of("--\n-- x\n--\n\nSET check_function_bodies = false").as_deref(),
        Some("SET LOCAL check_function_bodies = false")
    );
    assert_eq!(of("SET default_tablespace = ''").as_deref(), Some("SET LOCAL default_tablespace = ''"));
    assert_eq!(of("SET statement_timeout = 0"), None);
    assert_eq!(of("SET SESSION AUTHORIZATION 'app'").as_deref(), Some("SET SESSION AUTHORIZATION 'app'"));
    assert_eq!(of("SELECT pg_catalog.set_config('search_path', '', false)"), None);
    assert!(is_dump(b"\n--\n-- PostgreSQL database dump\n--\n") && !is_dump(b"-- PostgreSQL database dump"));
    let text = b"--\n\\restrict x\n\nSELECT '\\restrict'\n\\unrestrict x\n";
    assert_eq!(without_restrict(text), b"--\n\n\nSELECT '\\restrict'\n\n");
}

#[test]
fn a_schema_can_have_any_name() {
    let schema = br#"My "shard$5"#;
    let statement =
        br#"CREATE TABLE "My ""shard$5".t (id bigint DEFAULT "My ""shard$5".next_id('"My ""shard$5".q'::regclass), a text DEFAULT 'it''s "My ""shard$5".t')"#;
    let expected =
        br#"CREATE TABLE insta_ids_shard.t (id bigint DEFAULT insta_ids_shard.next_id('insta_ids_shard.q'::regclass), a text DEFAULT 'it''s "My ""shard$5".t')"#;
    assert_eq!(migration_of(statement, schema, 5, &[]).as_deref(), Some(&expected[..]));
    assert_eq!(migration_of(br#"CREATE SCHEMA "My ""shard$5""#, schema, 5, &[]), None);
    let literal = br#"CREATE TABLE "It's5".t (id bigint DEFAULT nextval('"It''s5".q'::regclass))"#;
    let expected =
        b"CREATE TABLE insta_ids_shard.t (id bigint DEFAULT nextval('insta_ids_shard.q'::regclass))";
    assert_eq!(migration_of(literal, b"It's5", 5, &[]).as_deref(), Some(&expected[..]));
}
