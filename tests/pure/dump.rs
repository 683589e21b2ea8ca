//! Promise: the dump of a shard is a migration that makes other shards like it.

use insta_ids::shard::dump::{migration_of, setting, without_restrict};

fn of(command: &str, statement: &str) -> Option<String> {
    let text = migration_of(statement.as_bytes(), command.as_bytes(), b"insta5", 5)?;
    Some(String::from_utf8(text).unwrap())
}

#[test]
fn names_of_the_schema_are_left_out() {
    for (statement, expected) in [
        (
            "CREATE VIEW insta5.v AS SELECT insta5.f(p.id) FROM insta5.photos p",
            "CREATE VIEW v AS SELECT f(p.id) FROM photos p",
        ),
        ("ALTER TABLE ONLY \"insta5\".\"Photos\" ADD n int", "ALTER TABLE ONLY \"Photos\" ADD n int"),
        (
            "CREATE TABLE insta5.t (id bigint DEFAULT insta5.next_id('insta5.q'::regclass))",
            "CREATE TABLE t (id bigint DEFAULT next_id('q'::regclass))",
        ),
        (
            "-- Name: t; Schema: insta5\n\nCREATE TABLE insta5.t (n text DEFAULT 'see insta5.t', insta50.x)",
            "CREATE TABLE t (n text DEFAULT 'see insta5.t', insta50.x)",
        ),
        (
            "CREATE FUNCTION insta5.f() RETURNS trigger\n    LANGUAGE plpgsql\n    SET search_path TO 'insta5', 'public'\n    AS $$ BEGIN insta5.f(); END $$",
            "CREATE FUNCTION f() RETURNS trigger\n    LANGUAGE plpgsql\n    SET search_path FROM CURRENT\n    AS $$ BEGIN insta5.f(); END $$",
        ),
        (
            "CREATE FUNCTION insta5.f() RETURNS int SET search_path TO 'public' RETURN 1",
            "CREATE FUNCTION f() RETURNS int SET search_path TO 'public' RETURN 1",
        ),
    ] {
        let command = statement.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        assert_eq!(of(&command, statement).as_deref(), Some(expected));
    }
}

#[test]
fn checks_of_ids_are_left_out() {
    let check = "CONSTRAINT photos_id_check CHECK ((public.id_shard(id) = 5))";
    let since = "CONSTRAINT photos_id_check CHECK (((id < 1000) OR (public.id_shard(id) = 5)))";
    for check in [check, since] {
        for (statement, expected) in [
            (
                format!("CREATE TABLE insta5.t (\n    id bigint,\n    {check}\n)"),
                "CREATE TABLE t (\n    id bigint\n)",
            ),
            (format!("CREATE TABLE insta5.t ({check}, n int)"), "CREATE TABLE t ( n int)"),
            (
                format!("CREATE TABLE insta5.t (n int, {check}, CONSTRAINT a CHECK ((n > 5)))"),
                "CREATE TABLE t (n int, CONSTRAINT a CHECK ((n > 5)))",
            ),
        ] {
            assert_eq!(of("CREATE TABLE", &statement).as_deref(), Some(expected));
        }
        assert_eq!(of("ALTER TABLE", &format!("ALTER TABLE insta5.t\n    ADD {check} NOT VALID")), None);
    }
    let other = "ALTER TABLE insta5.t ADD CONSTRAINT c CHECK ((public.id_shard(id) = 6))";
    assert_eq!(of("ALTER TABLE", other).as_deref(), Some(&*other.replace("insta5.", "")));
}

#[test]
fn what_each_shard_has_is_left_out() {
    for (command, statement) in [
        ("CREATE SCHEMA", "CREATE SCHEMA insta5"),
        ("ALTER SCHEMA", "ALTER SCHEMA insta5 OWNER TO keeper"),
        ("COMMENT", "COMMENT ON SCHEMA insta5 IS 'x'"),
        ("CREATE SEQUENCE", "CREATE SEQUENCE insta5.table_id_seq START WITH 1"),
        ("ALTER TABLE", "ALTER TABLE insta5.table_id_seq OWNER TO keeper"),
        (
            "CREATE FUNCTION",
            "CREATE FUNCTION insta5.next_id() RETURNS bigint RETURN public.next_id(5, 'insta5.table_id_seq'::regclass)",
        ),
        (
            "CREATE TRIGGER",
            "CREATE TRIGGER insta_ids_fence BEFORE INSERT ON insta5.t EXECUTE FUNCTION insta_ids_internal.guard('5')",
        ),
    ] {
        assert_eq!(of(command, statement), None, "{statement}");
    }
    let grant = of("GRANT", "GRANT USAGE ON SCHEMA insta5 TO \"a%b\"").unwrap();
    assert_eq!(
        grant,
        "DO $do$ BEGIN EXECUTE format($sql$GRANT USAGE ON SCHEMA %I TO \"a%%b\"$sql$, current_schema); END $do$"
    );
    assert_eq!(
        of("GRANT", "GRANT ALL ON SEQUENCE insta5.table_id_seq TO app").as_deref(),
        Some("GRANT ALL ON SEQUENCE table_id_seq TO app")
    );
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
    assert_eq!(of("SELECT pg_catalog.set_config('search_path', '', false)"), None);
    let text = b"--\n\\restrict x\n\nSELECT '\\restrict'\n\\unrestrict x\n";
    assert_eq!(without_restrict(text), b"--\n\n\nSELECT '\\restrict'\n\n");
}

#[test]
fn a_schema_can_have_any_name() {
    let schema = br#"My "shard$5"#;
    let statement =
        br#"CREATE TABLE "My ""shard$5".t (id bigint DEFAULT "My ""shard$5".next_id('"My ""shard$5".q'::regclass), a text DEFAULT 'it''s "My ""shard$5".t')"#;
    let expected =
        br#"CREATE TABLE t (id bigint DEFAULT next_id('q'::regclass), a text DEFAULT 'it''s "My ""shard$5".t')"#;
    assert_eq!(migration_of(statement, b"CREATE TABLE", schema, 5).as_deref(), Some(&expected[..]));
    assert_eq!(migration_of(br#"CREATE SCHEMA "My ""shard$5""#, b"CREATE SCHEMA", schema, 5), None);
}
