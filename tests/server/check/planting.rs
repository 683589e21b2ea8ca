//! Code of one role, which no hint brings to another role or shard.

use super::{ALL_KINDS, findings, found, run, statement, with_shards};
use crate::attacks::planting::{plant, planted_tables};
use crate::attacks::ran;
use crate::migrations::PLANT;
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use support::shards::{PHOTOS, add, set_up};
use support::{Cluster, refused};

fn hint_of(client: &mut Client, code: &str, object: &str) -> String {
    let all = findings(client);
    let hint = all.iter().find(|finding| finding[1..3] == [code, object]).map(|finding| finding[4].clone());
    hint.unwrap_or_else(|| panic!("no {code} {object} in {all:?}"))
}

/// What is done in shard 3, what is found, and its hint.
const HINTS: &[(&str, &str, &str, &str)] = &[
    (
        "DROP COLUMN likes",
        "missing_object",
        "photos.likes",
        "ALTER TABLE insta3.photos ADD COLUMN likes pg_catalog.int4",
    ),
    (
        "DROP COLUMN price",
        "missing_object",
        "photos.price",
        "ALTER TABLE insta3.photos ADD COLUMN price numeric(10,2)",
    ),
    (
        r#"DROP COLUMN "it's 100%\""#,
        "missing_object",
        r#"photos."it's 100%\""#,
        r#"ALTER TABLE insta3.photos ADD COLUMN "it's 100%\" pg_catalog._text"#,
    ),
    (
        "ADD more int",
        "extra_object",
        "photos.more",
        "If it is not needed: ALTER TABLE insta3.photos DROP COLUMN more",
    ),
    (
        "ALTER caption DROP NOT NULL",
        "missing_object",
        "photos.caption",
        "Others wait while all rows are read: ALTER TABLE insta3.photos ALTER COLUMN caption SET NOT NULL",
    ),
    (
        "ALTER likes SET NOT NULL",
        "extra_object",
        "photos.likes",
        "ALTER TABLE insta3.photos ALTER COLUMN likes DROP NOT NULL",
    ),
    (
        "ALTER likes SET DEFAULT 1",
        "extra_object",
        "photos.likes",
        "ALTER TABLE insta3.photos ALTER COLUMN likes DROP DEFAULT",
    ),
    (
        "DROP CONSTRAINT photos_id_check",
        "missing_check",
        "photos.id",
        "ALTER TABLE insta3.photos ADD CHECK (public.id_shard(id::pg_catalog.int8) OPERATOR(pg_catalog.=) 3) NOT VALID",
    ),
    (
        "ADD CONSTRAINT \"a\"\"b\" CHECK (likes > 0) NOT VALID",
        "unvalidated_constraint",
        "photos.\"a\"\"b\"",
        "ALTER TABLE insta3.photos VALIDATE CONSTRAINT \"a\"\"b\"",
    ),
];

/// The hints that are statements, word by word. Each repairs what was found, also where other operators and types come first
/// in the `search_path`.
#[test]
fn statements_have_only_names_and_numbers() {
    let tables = r#"
        CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), caption text NOT NULL, likes int, price numeric(10,2),
            "it's 100%\" text[]);
        CREATE INDEX "i'" ON photos (caption); CREATE SEQUENCE "my %I" INCREMENT BY 2 CACHE 3"#;
    let (_cluster, mut client) = with_shards("check_statements", tables, 4);
    client.batch_execute(PLANT).unwrap();
    let statements = HINTS
        .iter()
        .map(|&(done, code, object, hint)| (format!("ALTER TABLE insta3.photos {done}"), code, object, hint));
    let others = [
        (
            r#"CREATE INDEX "j'" ON insta3.photos (likes)"#,
            "extra_object",
            r#"photos."j'""#,
            r#"If it is not needed: DROP INDEX insta3."j'""#,
        ),
        (
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'insta3.\"i''\"'::regclass",
            "invalid_index",
            r#""i'""#,
            r#"REINDEX INDEX CONCURRENTLY insta3."i'""#,
        ),
        (
            r#"DROP SEQUENCE insta3."my %I""#,
            "missing_object",
            r#""my %I""#,
            r#"CREATE SEQUENCE insta3."my %I" AS bigint INCREMENT BY 2 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 3 NO CYCLE"#,
        ),
        (
            r#"ALTER SEQUENCE insta3."my %I" AS integer CYCLE"#,
            "different_object",
            r#""my %I""#,
            r#"ALTER SEQUENCE insta3."my %I" AS bigint INCREMENT BY 2 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 3 NO CYCLE"#,
        ),
        (
            "CREATE DOMAIN insta3.mine AS text; CREATE FUNCTION insta3.f(text, insta3.mine[]) RETURNS int LANGUAGE sql RETURN 1",
            "extra_object",
            "f(text, insta3.mine[])",
            "If it is not needed: DROP ROUTINE insta3.f(pg_catalog.text, insta3._mine)",
        ),
        (
            "CREATE PROCEDURE insta3.rest() LANGUAGE sql BEGIN ATOMIC END",
            "extra_object",
            "rest()",
            "If it is not needed: DROP ROUTINE insta3.rest()",
        ),
        ("SELECT 1", "extra_object", "mine", "If it is not needed: DROP TYPE insta3.mine"),
        (
            "INSERT INTO insta3.photos (id, caption) VALUES (-9223372036854775808 + (3 << 10), 'a')",
            "negative_ids",
            "photos.id",
            "Give them new ids: UPDATE ONLY insta3.photos SET id = DEFAULT WHERE id OPERATOR(pg_catalog.<) 0",
        ),
    ];
    let others = others.map(|(done, code, object, hint)| (done.to_owned(), code, object, hint));
    for (done, code, object, hint) in statements.chain(others) {
        client.batch_execute(&done).unwrap_or_else(|error| panic!("{done}: {error:?}"));
        let object = format!("insta3.{object}");
        assert_eq!(hint_of(&mut client, code, &object), hint, "{done}");
        client.batch_execute("SET search_path = planted, pg_catalog").unwrap();
        let repaired = client.batch_execute(statement(hint).unwrap());
        client.batch_execute("RESET search_path").unwrap();
        repaired.unwrap_or_else(|error| panic!("{hint}: {error:?}"));
        let left = findings(&mut client);
        assert!(!left.iter().any(|finding| finding[1..3] == [code, &*object]), "{hint}: {left:?}");
        // The new CHECK is the one that is looked for.
        if code == "missing_check" {
            assert_eq!(left.len(), 1, "{left:?}");
            client.batch_execute("ALTER TABLE insta3.photos VALIDATE CONSTRAINT photos_id_check").unwrap();
        }
    }
}

/// Most shards have code in this object. The hint for shard 3, which lacks it, names a schema to look at and has no statement.
#[test]
fn no_hint_has_code_of_another_shard() {
    let (_cluster, mut client) = with_shards("check_carried", PHOTOS, 4);
    client
        .batch_execute(
            "CREATE SCHEMA evil;
             CREATE FUNCTION evil.f(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN $1;
             CREATE FUNCTION evil.eq(text, text) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN true;
             CREATE OPERATOR evil.=== (FUNCTION = evil.eq, LEFTARG = text, RIGHTARG = text);
             CREATE OPERATOR CLASS evil.ordered FOR TYPE text USING btree AS
                 OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 bttextcmp(text, text);
             CREATE COLLATION evil.plain (provider = libc, locale = 'C');
             CREATE TYPE evil.mood AS ENUM ('sad');
             CREATE DOMAIN evil.checked AS text CHECK (evil.eq(VALUE, ''))",
        )
        .unwrap();
    for (object, created, dropped) in [
        (
            "photos.\"i'\"",
            "CREATE INDEX \"i'\" ON %1$I.photos (evil.f(caption)) WHERE caption <> ''",
            "DROP INDEX %1$I.\"i'\"",
        ),
        (
            "photos.i",
            "CREATE INDEX i ON %1$I.photos (id) WHERE caption OPERATOR(evil.===) ''",
            "DROP INDEX %1$I.i",
        ),
        ("photos.i", "CREATE INDEX i ON %1$I.photos (caption evil.ordered)", "DROP INDEX %1$I.i"),
        ("photos.i", "CREATE INDEX i ON %1$I.photos (caption COLLATE evil.plain)", "DROP INDEX %1$I.i"),
        ("photos.i", "CREATE INDEX i ON %1$I.photos (caption)", "DROP INDEX %1$I.i"),
        (
            "photos.c",
            "ALTER TABLE %1$I.photos ADD CONSTRAINT c CHECK (caption OPERATOR(evil.===) '')",
            "ALTER TABLE %1$I.photos DROP CONSTRAINT c",
        ),
        (
            "photos.d",
            "ALTER TABLE %1$I.photos ADD d boolean DEFAULT 'a' OPERATOR(evil.===) 'b'",
            "ALTER TABLE %1$I.photos ALTER d DROP DEFAULT",
        ),
        (
            "photos.d",
            "ALTER TABLE %1$I.photos ADD d text GENERATED ALWAYS AS (evil.f(caption)) STORED",
            "ALTER TABLE %1$I.photos DROP COLUMN d",
        ),
        (
            "photos.d",
            "ALTER TABLE %1$I.photos ADD d text DEFAULT 'a'",
            "ALTER TABLE %1$I.photos DROP COLUMN d",
        ),
        (
            "photos.d",
            "ALTER TABLE %1$I.photos ADD d text COLLATE evil.plain",
            "ALTER TABLE %1$I.photos DROP COLUMN d",
        ),
        ("photos.d", "ALTER TABLE %1$I.photos ADD d evil.mood", "ALTER TABLE %1$I.photos DROP COLUMN d"),
        ("photos.d", "ALTER TABLE %1$I.photos ADD d evil.checked", "ALTER TABLE %1$I.photos DROP COLUMN d"),
        ("photos.d", "ALTER TABLE %1$I.photos ADD d evil.mood[]", "ALTER TABLE %1$I.photos DROP COLUMN d"),
        (
            "photos.d",
            "ALTER TABLE %1$I.photos ADD d text",
            "ALTER TABLE %1$I.photos ALTER d TYPE evil.mood USING NULL",
        ),
        ("s", "CREATE STATISTICS %1$I.s ON evil.f(caption), id FROM %1$I.photos", "DROP STATISTICS %1$I.s"),
        (
            "photos.p",
            "CREATE POLICY p ON %1$I.photos USING (caption OPERATOR(evil.===) '')",
            "DROP POLICY p ON %1$I.photos",
        ),
    ] {
        let everywhere = |statement: &str, shards: &[i32]| {
            let in_shard = |shard: &i32| statement.replace("%1$I", &format!("insta{shard}")) + ";";
            shards.iter().map(in_shard).collect::<String>()
        };
        client.batch_execute("BEGIN").unwrap();
        client
            .batch_execute(&(everywhere(created, &[0, 1, 2, 3, 4]) + &everywhere(dropped, &[3])))
            .unwrap_or_else(|error| panic!("{created}: {error:?}"));
        let all = findings(&mut client);
        let object = format!("insta3.{object}");
        let hints: Vec<_> =
            all.iter().filter(|finding| finding[2] == object).map(|finding| &finding[4]).collect();
        let [hint] = hints[..] else { panic!("{created}: {all:?}") };
        assert_eq!(statement(hint), None, "{created}");
        assert!(hint.contains("schema insta0") && !hint.contains("evil"), "{created}: {hint}");
        client.batch_execute("ROLLBACK").unwrap();
    }
}

/// A superuser follows all hints in a database where a guest planted code in each kind of object of the superuser's tables and
/// of the guest's own.
#[test]
fn hints_run_nothing_of_a_guest_as_a_superuser() {
    let cluster = Cluster::start("check_planted");
    let mut client = cluster.connect();
    plant(&mut client);
    run(&mut client, &["CALL insta_ids.create_shards(5, 7)"]);
    for shard in [4, 5, 6, 7] {
        client
            .batch_execute(&planted_tables(&format!("insta{shard}"), &format!("insta{shard}.next_id()")))
            .unwrap();
        client
            .batch_execute(&format!(
                "INSERT INTO insta{shard}.indexed DEFAULT VALUES;
                 CREATE TABLE insta{shard}.plain (id bigint PRIMARY KEY DEFAULT insta{shard}.next_id(), a int, b text);
                 CREATE TABLE insta{shard}.referred (id bigint PRIMARY KEY DEFAULT insta{shard}.next_id())"
            ))
            .unwrap();
    }
    // In shard 7, something of each kind is missing, extra or different.
    client
        .batch_execute(
            "ALTER TABLE insta7.indexed DROP COLUMN x, ADD y int DEFAULT 1, ADD z int NOT NULL DEFAULT 1;
             ALTER TABLE insta7.checked ALTER g DROP EXPRESSION;
             ALTER TABLE insta7.counted DROP CONSTRAINT counted_pkey, ALTER id DROP NOT NULL, ADD CHECK (x <> '') NOT VALID;
             ALTER TABLE insta7.split ADD more int, ADD CHECK (insta2.evil('an extra check')) NOT VALID, ALTER x SET NOT NULL;
             INSERT INTO insta7.triggered VALUES (-5), (insta4.next_id()), (make_id(now() + '2 days', 7, 1));
             ALTER TABLE insta7.triggered DISABLE TRIGGER evil;
             ALTER TABLE insta7.plain DROP COLUMN a, ALTER b SET NOT NULL, ADD CHECK (b <> '') NOT VALID;
             INSERT INTO insta7.plain VALUES (-5, 'b');
             -- An AFTER trigger of a table that refers to another one runs as the role that updates the other one.
             INSERT INTO insta7.referred VALUES (-5);
             GRANT USAGE ON SCHEMA insta7 TO guest;
             GRANT REFERENCES ON insta7.referred TO guest;
             SET ROLE guest;
             CREATE TABLE insta2.referring (id bigint PRIMARY KEY);
             CREATE TRIGGER evil AFTER UPDATE ON insta2.referring FOR EACH ROW EXECUTE FUNCTION insta2.evil_trigger();
             INSERT INTO insta2.referring VALUES (-5);
             ALTER TABLE insta2.referring ADD FOREIGN KEY (id) REFERENCES insta7.referred ON UPDATE CASCADE;
             RESET ROLE;
             ALTER TABLE insta7.checked ADD CHECK (insta2.evil('a check that is not valid')) NOT VALID;
             CREATE TABLE insta7.more (id bigint CHECK (insta2.evil('a check of an extra table')));
             CREATE VIEW insta7.more_seen AS SELECT 1 AS a WHERE insta2.evil('an extra view');
             CREATE SEQUENCE insta7.more_ids CYCLE;
             UPDATE pg_index SET indisvalid = false
             WHERE indrelid IN ('insta7.indexed'::regclass, 'insta7.counted'::regclass) AND NOT indisprimary;
             SET ROLE guest;
             CREATE OR REPLACE FUNCTION insta2.canary(planted text) RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE LOG '% RAN AS FOLLOWER %', planted,
                     (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'guest' END FROM pg_catalog.pg_roles
                      WHERE rolname = current_user);
                 RETURN true;
             END $$;
             RESET ROLE",
        )
        .unwrap();
    let mut followed = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for _ in 0..4 {
        let all = findings(&mut client);
        assert_eq!(ran(&cluster, "FOLLOWER SUPERUSER"), BTreeSet::new());
        for [_, code, _, detail, hint] in &all {
            assert!(code != "not_read" || detail.ends_with("It is a foreign table."), "{detail}");
            // Without the guest's function, nothing would be noticed.
            if hint.contains("DROP ROUTINE insta2.canary") {
                continue;
            }
            if let (Some(statement), false) = (statement(hint), hint.starts_with("As role ")) {
                let _ = client.batch_execute(statement);
                followed.insert(hint.clone());
                assert_eq!(ran(&cluster, "FOLLOWER SUPERUSER"), BTreeSet::new(), "{hint}");
            } else {
                refused.insert(hint.clone());
            }
        }
    }
    for table in
        ["ADD COLUMN a", "ALTER COLUMN b DROP NOT NULL", "VALIDATE CONSTRAINT", "ADD CHECK", "UPDATE ONLY"]
    {
        let is_followed = |hint: &String| hint.contains("insta7.plain ") && hint.contains(table);
        assert!(followed.iter().any(is_followed), "{table}: {followed:?}, {refused:?}");
    }
    assert!(refused.iter().any(|hint| hint.contains("can run code of role guest")), "{refused:?}");
    // The planted code is alive.
    client.batch_execute("INSERT INTO insta7.checked DEFAULT VALUES").unwrap();
    assert!(ran(&cluster, "FOLLOWER SUPERUSER").contains("a check"));
}

/// An expression that PostgreSQL accepts and cannot write out costs one finding for its shard. The other shards are checked.
#[test]
fn an_expression_that_is_too_deep_costs_one_shard_only() {
    let (cluster, mut client) = set_up("check_deep", 10);
    add(&mut client, "0001", ALL_KINDS);
    client.batch_execute("CALL insta_ids.create_shards(0, 5)").unwrap();
    // PostgreSQL accepts these calls, and the stack is full when it writes them out.
    let calls = format!("{}true{}", "public.same(".repeat(4000), ")".repeat(4000));
    client
        .batch_execute(&format!(
            "CREATE FUNCTION public.same(boolean) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
             ALTER TABLE insta1.photos ADD CHECK ({calls});
             ALTER TABLE insta2.photos ALTER likes SET DEFAULT {calls}::int"
        ))
        .unwrap();
    client
        .batch_execute(
            "ALTER TABLE insta4.photos ADD more int;
             ALTER TABLE insta4.likes DROP CONSTRAINT likes_id_check;
             INSERT INTO insta4.likes (id) VALUES (insta5.next_id())",
        )
        .unwrap();
    assert_eq!(
        found(&mut client),
        [
            "extra_object insta4.photos.more",
            "foreign_ids insta4.likes.id",
            "missing_check insta4.likes.id",
            "not_read insta1",
            "not_read insta2"
        ]
    );
    for [_, code, _, detail, hint] in &findings(&mut client) {
        if code == "not_read" {
            assert!(detail.contains("stack depth limit exceeded"), "{detail}");
            assert!(hint.contains("max_stack_depth"), "{hint}");
        }
    }

    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    let mut config = cluster.config();
    config.notice_callback(move |notice| {
        if notice.severity() == "WARNING" {
            heard.lock().unwrap().push(notice.message().to_owned());
        }
    });
    let mut caller = config.connect(NoTls).unwrap();
    let error = refused(&mut caller, "CALL insta_ids.check_rows()");
    assert_eq!(error.code(), &SqlState::CHECK_VIOLATION);
    assert_eq!(
        error.message(),
        "1 of 6 shards have ids that should not be there, or could not be read",
        "{:?}",
        warnings.lock()
    );
    assert_eq!(*warnings.lock().unwrap(), ["foreign ids in insta4.likes.id"]);

    // A migration with a new default of ids looks for its CHECK.
    add(&mut client, "0002", "ALTER TABLE photos ADD other bigint DEFAULT next_id()");
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
}
