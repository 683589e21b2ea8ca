//! Every SQL text of the extension is resolved in a context that the extension controls.
//!
//! A function pins its search path. A procedure that commits cannot, so it qualifies every name, and operators with them. The
//! server's own parser finds the names that are not: every function is checked by `plpgsql_check` with a search path in which
//! each name of `pg_catalog` is an error (`support::poison`).
//!
//! What this cannot see:
//! - The text of an EXECUTE. So no function with the caller's search path has one.
//! - Texts that are read as names when the statement runs, as by `to_regclass` and casts to `regclass`.
//! - Casts and collations. No statement can name the schema of a cast; a cast from or to a type of another role can be that
//!   role's. plpgsql's own casts, such as those of an assignment, are looked up by type and not by the search path.
//! - Texts that the library makes of others. `pg::owner` runs them with a pinned search path.

use std::collections::BTreeSet;
use std::fs;

use postgres::Client;
use support::{Cluster, POISONED_PATH, checkout, has, poison, texts};

/// Those functions of the extension that look names up when they run, with the search path of the caller. Names in the library
/// and in the body of a function that begins with BEGIN ATOMIC or RETURN are already bound.
const UNPINNED: &str = "
    FROM pg_depend d
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'insta_ids'
    JOIN pg_proc p ON p.oid = d.objid
    JOIN pg_language l ON l.oid = p.prolang
    WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
        AND l.lanname <> 'c' AND p.prosqlbody IS NULL
        AND coalesce('search_path=pg_catalog, pg_temp' <> ALL (p.proconfig), true)";

/// A server with the extension and the functions that check functions, if this PostgreSQL has them.
fn checking(name: &str) -> Option<(Cluster, Client)> {
    if !has("plpgsql_check") {
        return None;
    }
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(10); CREATE SCHEMA checks; CREATE EXTENSION plpgsql_check SCHEMA checks",
        )
        .unwrap();
    poison(&mut client);
    Some((cluster, client))
}

/// What a function finds by the search path, and whatever else is wrong with it. The session has the poisoned path from its
/// beginning, because types of variables are looked up once in a session.
fn unqualified(cluster: &Cluster, function: u32) -> Vec<String> {
    let mut client = cluster.connect();
    client.batch_execute(&format!("SET search_path = {POISONED_PATH}")).unwrap();
    let check = format!(
        "SELECT pg_catalog.concat_ws(' ', 'line', c.lineno, c.statement, c.message, c.query)
         FROM checks.plpgsql_check_function_tb({function}::pg_catalog.oid, fatal_errors => false,
             other_warnings => false, extra_warnings => false, performance_warnings => false) c"
    );
    texts(&mut client, &check)
}

/// A new function of the extension pins its search path, or it is in a language whose names the next test looks at.
#[test]
fn functions_without_a_pinned_path_are_in_plpgsql_and_no_triggers_on_tables() {
    let cluster = Cluster::start("unpinned");
    let mut client = cluster.connect();
    let others = format!(
        "SELECT p.oid::regprocedure::text {UNPINNED}
         AND (l.lanname <> 'plpgsql' OR p.prorettype = 'trigger'::regtype OR array_to_string(p.proconfig, ' ') ~ 'search_path')"
    );
    assert_eq!(texts(&mut client, &others), [""; 0]);
}

/// Neither an operator, nor a function, a type or a relation is found by the caller's search path.
#[test]
fn functions_without_a_pinned_path_qualify_every_name() {
    let Some((cluster, mut client)) = checking("qualified") else { return };
    let mut found = BTreeSet::new();
    let functions = format!("SELECT p.oid, p.oid::regproc::text {UNPINNED} ORDER BY p.oid");
    for function in client.query(&functions, &[]).unwrap() {
        let (oid, name): (u32, String) = (function.get(0), function.get(1));
        let violations = unqualified(&cluster, oid);
        if !violations.is_empty() {
            found.insert((name, violations));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The text of an EXECUTE is not checked, so no function with the caller's search path has one. The statements RETURN QUERY and
/// OPEN can be followed by EXECUTE.
#[test]
fn functions_without_a_pinned_path_run_no_text() {
    let Some((_cluster, mut client)) = checking("dynamic") else { return };
    let running = format!(
        "SELECT p.oid::regproc::text
         FROM (SELECT p.oid {UNPINNED}) p, checks.plpgsql_profiler_function_statements_tb(p.oid) s
         WHERE s.stmtname ~ 'EXECUTE|RETURN QUERY|OPEN'"
    );
    assert_eq!(texts(&mut client, &running), [""; 0]);
}

/// The check finds whatever the search path decides, and nothing else.
#[test]
fn each_construct_that_looks_a_name_up_is_found() {
    let Some((cluster, mut client)) = checking("constructs") else { return };
    let mut found = |statement: &str| {
        client
            .batch_execute(&format!(
                "CREATE OR REPLACE FUNCTION checks.probe(n integer, t text) RETURNS void LANGUAGE plpgsql AS $_$
                 DECLARE r pg_catalog.record; BEGIN {statement}; END $_$"
            ))
            .unwrap();
        let probe = client.query_one("SELECT 'checks.probe'::regproc::oid", &[]).unwrap();
        !unqualified(&cluster, probe.get(0)).is_empty()
    };
    for statement in [
        "PERFORM n + 1",
        "PERFORM -n",
        "PERFORM n IN (1, 2)",
        "PERFORM n BETWEEN 0 AND 2",
        "PERFORM n IS DISTINCT FROM 1",
        "PERFORM nullif(n, 1)",
        "PERFORM CASE n WHEN 1 THEN 2 END",
        "PERFORM t LIKE 'a'",
        "PERFORM (n, n) < (1, 2)",
        "PERFORM n = ANY (ARRAY[1])",
        "PERFORM n IN (SELECT 1)",
        "PERFORM FROM (SELECT n AS x) a JOIN (SELECT n AS x) b USING (x)",
        "PERFORM t || 'a'",
        "PERFORM lower(t)",
        "PERFORM format('%s', n)",
        "PERFORM count(*)",
        "PERFORM row_number() OVER ()",
        "PERFORM FROM generate_series(1, n)",
        "PERFORM FROM pg_class",
        "PERFORM n::text",
        "PERFORM NULL::pg_class",
        "DECLARE v text; BEGIN END",
        "DECLARE v integer := 1 + n; BEGIN END",
        "DECLARE v pg_class; BEGIN END",
        "t := lower(t)",
        "IF n > 0 THEN END IF",
        "WHILE n > 0 LOOP END LOOP",
        "LOOP EXIT WHEN n > 0; END LOOP",
        "FOR i IN 1 .. n + 1 LOOP END LOOP",
        "FOR r IN SELECT n + 1 LOOP END LOOP",
        "CASE n WHEN 1 THEN NULL; ELSE NULL; END CASE",
        "RAISE NOTICE '%', n + 1",
        "RAISE EXCEPTION USING MESSAGE = lower(t)",
        "CALL insta_ids_internal.commit_batch(t, n + 1, 0, 0)",
        "UPDATE insta_ids_internal.work w SET done = 0 WHERE w.pid = 1",
        "EXECUTE 'SELECT 1 + 1'",
    ] {
        assert!(found(statement), "{statement} is not found");
    }
    for statement in [
        "PERFORM n OPERATOR(pg_catalog.+) 1, n OPERATOR(pg_catalog.=) ANY (ARRAY[1]), n::pg_catalog.text",
        "PERFORM coalesce(n, 1), greatest(n, 1), current_user, pg_catalog.lower(t), pg_catalog.format('%s', n), n IS NULL",
        "PERFORM pg_catalog.count(*) FROM pg_catalog.pg_class c WHERE EXISTS (SELECT FROM insta_ids_internal.work)",
        "DECLARE v pg_catalog.text; w integer[] := ARRAY[n]; BEGIN v := n; w[1] := 2; FOR i IN 1 .. n LOOP END LOOP; END",
        "UPDATE insta_ids_internal.work SET done = 0",
    ] {
        assert!(!found(statement), "{statement} is found");
    }
}

/// The script of the extension pins the search path with its first statement, and keeps it.
#[test]
fn statements_of_the_script_run_with_a_pinned_path() {
    let cluster = Cluster::bare("script_path");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE SCHEMA ids; CREATE TABLE public.statement (tag text, path text);
             CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql AS
                 $$BEGIN INSERT INTO public.statement VALUES (TG_TAG, pg_catalog.current_setting('search_path')); END$$;
             CREATE EVENT TRIGGER note ON ddl_command_start EXECUTE FUNCTION public.note();
             CREATE EXTENSION insta_ids SCHEMA ids; ALTER EVENT TRIGGER note DISABLE",
        )
        .unwrap();
    let paths = "SELECT DISTINCT path FROM public.statement WHERE tag <> 'CREATE EXTENSION'";
    assert_eq!(texts(&mut client, paths), ["pg_catalog, pg_temp"]);
    let tags = texts(&mut client, "SELECT DISTINCT tag FROM public.statement ORDER BY 1");
    for tag in ["CREATE FUNCTION", "CREATE TABLE", "CREATE VIEW", "GRANT"] {
        assert!(tags.iter().any(|other| other == tag), "{tag} is not in {tags:?}");
    }
}

/// The statements that begin in the library qualify their names, too: those of its workers, and one for the caller's search path.
#[test]
fn statements_of_the_library_qualify_every_name() {
    let cluster = Cluster::start("library");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(10); CREATE TABLE t ()").unwrap();
    poison(&mut client);
    client.batch_execute(&format!("SET search_path = {POISONED_PATH}")).unwrap();
    let mut statements = BTreeSet::new();
    let pg = fs::read_dir(checkout().join("src/pg")).unwrap().map(|folder| folder.unwrap().path());
    for folder in pg.filter(|path| path.is_dir()).chain([checkout().join("src/api")]) {
        let texts =
            fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
        let text: String = texts.collect();
        let literals =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| line.split('"'));
        let sql = ["SELECT ", "CALL ", "INSERT ", "UPDATE ", "DELETE "];
        statements.extend(literals.filter(|literal| sql.iter().any(|verb| literal.starts_with(verb))).map(
            |literal| {
                literal
                    .replace("{name}", "insta_ids_1_1")
                    .replace("{id}", "00000000-0000-0000-0000-000000000000")
                    .replace("{}", "1")
            },
        ));
    }
    assert!(statements.len() >= 5, "{statements:?}");
    for statement in &statements {
        // A CALL cannot be prepared. No move has this name, so it does nothing.
        let prepared = if statement.starts_with("CALL ") {
            statement.clone()
        } else {
            format!("PREPARE s AS {statement}; DEALLOCATE s")
        };
        client.batch_execute(&prepared).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    client
        .batch_execute("SELECT insta_ids_internal.hold_schema_of('public.t'::pg_catalog.regclass)")
        .unwrap();
}
