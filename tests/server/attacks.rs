//! What others plant is never run with the rights of whoever administers: not by any function of the extension, whose
//! list is read from the catalog.

use std::collections::BTreeSet;

use postgres::Client;
use postgres::error::SqlState;

use crate::cluster::{Cluster, PRELOAD, count, refused, texts};

/// A guest may create in the schema of shard 2, and owns a schema that could be adopted as shard 3. In each place where
/// PostgreSQL runs code of a table's owner, the guest has a function that tells the log as whom it runs.
const PLANTED: &str = r"
    CREATE ROLE guest LOGIN;
    SELECT insta_ids.init(10), insta_ids.create_shard(2), insta_ids.create_shard(4);
    CREATE SCHEMA insta3 AUTHORIZATION guest;
    GRANT USAGE, CREATE ON SCHEMA insta2 TO guest;
    SET ROLE guest;
    CREATE FUNCTION insta2.canary(planted text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        RAISE LOG '% RAN AS %', planted,
            (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'guest' END FROM pg_catalog.pg_roles WHERE rolname = current_user);
        RETURN true;
    END $$;
    -- The planner runs it, as it says to be immutable.
    CREATE FUNCTION insta2.evil(planted text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN RETURN insta2.canary(planted); END$$;
    CREATE FUNCTION insta2.evil_trigger() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN PERFORM insta2.canary('a trigger'); RETURN coalesce(NEW, OLD); END$$;
    CREATE FUNCTION insta2.evil_comparison(bigint, bigint) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN PERFORM insta2.canary('an operator class'); RETURN pg_catalog.btint8cmp($1, $2); END$$;
    CREATE SEQUENCE insta2.mine;
    CREATE SEQUENCE insta3.table_id_seq;
    CREATE FUNCTION insta3.next_id(OUT result bigint) LANGUAGE plpgsql AS $$
    DECLARE
        our_epoch bigint := 1314220021721; seq_id bigint; now_millis bigint; shard_id int := 3;
    BEGIN
        SELECT nextval('insta3.table_id_seq') % 1024 INTO seq_id;
        SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
        result := (now_millis - our_epoch) << 23;
        result := result | (shard_id << 10);
        result := result | (seq_id);
    END $$;
    CREATE FUNCTION insta2.own_id() RETURNS bigint LANGUAGE sql RETURN public.next_id(2, 'insta2.mine'::regclass);
    CREATE DOMAIN insta2.evil_text AS text CHECK (insta2.evil('a domain'));
    CREATE DOMAIN insta2.evil_id AS bigint CHECK (insta2.evil('a domain of ids'));
    CREATE TYPE insta2.pair AS (a text, b text);
    CREATE FUNCTION insta2.pair_text(insta2.pair) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
        $$BEGIN PERFORM insta2.canary('a cast'); RETURN 'x'; END$$;
    CREATE CAST (insta2.pair AS text) WITH FUNCTION insta2.pair_text AS ASSIGNMENT;
    RESET ROLE;
    -- Only superusers make these; the function is the guest's all the same.
    CREATE OPERATOR CLASS insta2.evil_order FOR TYPE bigint USING btree AS
        OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 insta2.evil_comparison(bigint, bigint);
    CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
    GRANT USAGE ON FOREIGN SERVER nowhere TO guest;
    SET ROLE guest";

/// The tables of a schema, for the default that its ids have.
fn planted_tables(schema: &str, id: &str) -> String {
    format!(
        r"
    CREATE TABLE {schema}.indexed (id bigint PRIMARY KEY DEFAULT {id}, x text);
    CREATE INDEX ON {schema}.indexed (x) WHERE insta2.evil('an index predicate');
    CREATE INDEX ON {schema}.indexed ((CASE WHEN insta2.evil('an index expression') THEN x END));
    CREATE INDEX ON {schema}.indexed (id insta2.evil_order);
    CREATE TABLE {schema}.counted (id bigint PRIMARY KEY DEFAULT {id}, x text, p insta2.pair);
    CREATE STATISTICS {schema}.evil ON (CASE WHEN insta2.evil('statistics') THEN x END), x FROM {schema}.counted;
    CREATE TABLE {schema}.checked (id bigint PRIMARY KEY DEFAULT {id}, x insta2.evil_text,
        d boolean DEFAULT insta2.evil('a default'), g boolean GENERATED ALWAYS AS (insta2.evil('a generated column')) STORED,
        CHECK (insta2.evil('a check')));
    CREATE TABLE {schema}.heir () INHERITS ({schema}.checked);
    CREATE TABLE {schema}.domained (id insta2.evil_id PRIMARY KEY DEFAULT {id});
    CREATE TABLE {schema}.guarded (id bigint PRIMARY KEY DEFAULT {id});
    ALTER TABLE {schema}.guarded ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {schema}.guarded FORCE ROW LEVEL SECURITY;
    CREATE POLICY evil ON {schema}.guarded USING (insta2.evil('a policy')) WITH CHECK (true);
    CREATE TABLE {schema}.triggered (id bigint PRIMARY KEY DEFAULT {id});
    CREATE TRIGGER evil BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {schema}.triggered
        FOR EACH STATEMENT EXECUTE FUNCTION insta2.evil_trigger();
    CREATE TRIGGER evil_row BEFORE INSERT OR UPDATE OR DELETE ON {schema}.triggered
        FOR EACH ROW EXECUTE FUNCTION insta2.evil_trigger();
    CREATE TABLE {schema}.ruled (id bigint PRIMARY KEY DEFAULT {id});
    CREATE RULE evil AS ON INSERT TO {schema}.ruled DO ALSO SELECT insta2.evil('a rule');
    CREATE VIEW {schema}.seen AS SELECT id FROM {schema}.indexed WHERE insta2.evil('a view');
    CREATE MATERIALIZED VIEW {schema}.kept AS SELECT 1 AS id WHERE insta2.evil('a materialized view');
    CREATE FOREIGN TABLE {schema}.far (id bigint NOT NULL DEFAULT {id}, CHECK (insta2.evil('a check of a foreign table')))
        SERVER nowhere;
    CREATE TABLE {schema}.split (id bigint DEFAULT {id}, x text)
        PARTITION BY RANGE ((CASE WHEN insta2.evil('a partition key') THEN id END));
    CREATE TABLE {schema}.half PARTITION OF {schema}.split FOR VALUES FROM (0) TO (9223372036854775807) PARTITION BY RANGE (id);
    CREATE TABLE {schema}.rest PARTITION OF {schema}.half DEFAULT;
    CREATE INDEX ON {schema}.rest (x) WHERE insta2.evil('an index of a partition');"
    )
}

/// What each kind of table is for: whether what was planted is alive, the guest's own statements show.
const ALIVE: [&str; 16] = [
    "an index predicate",
    "an index expression",
    "an index of a partition",
    "an operator class",
    "statistics",
    "a check",
    "a default",
    "a generated column",
    "a domain",
    "a domain of ids",
    "a policy",
    "a trigger",
    "a rule",
    "a view",
    "a materialized view",
    "a partition key",
];

fn plant(client: &mut Client) {
    client.batch_execute(PLANTED).unwrap();
    for (schema, id) in
        [("insta2", "public.next_id(2, 'insta2.mine'::regclass)"), ("insta3", "insta3.next_id()")]
    {
        client.batch_execute(&planted_tables(schema, id)).unwrap();
        for table in
            ["indexed", "indexed", "counted", "checked", "heir", "guarded", "triggered", "ruled", "split"]
        {
            client.batch_execute(&format!("INSERT INTO {schema}.{table} DEFAULT VALUES")).unwrap();
        }
    }
    client
        .batch_execute(
            "INSERT INTO insta2.domained VALUES (public.next_id(2, 'insta2.mine'::regclass)::insta2.evil_id);
             TABLE insta2.seen; SELECT count(*) FROM insta2.counted; SELECT count(*) FROM insta2.guarded;
             SELECT FROM insta2.indexed WHERE x = 'a'; RESET ROLE",
        )
        .unwrap();
}

/// What of the planted was run, as this one.
fn ran(cluster: &Cluster, who: &str) -> BTreeSet<String> {
    let mark = format!(" RAN AS {who}");
    let log = cluster.log();
    let lines = log.lines().filter_map(|line| line.strip_suffix(&mark));
    lines.filter_map(|line| line.split_once("LOG:  ")).map(|(_, planted)| planted.to_owned()).collect()
}

/// Calls of all functions and procedures of the extension, with each of the guest's relations where one is asked for.
fn calls(client: &mut Client) -> Vec<String> {
    let relations = texts(
        client,
        "SELECT quote_literal(oid::regclass) FROM pg_class
         WHERE relnamespace IN ('insta2'::regnamespace, 'insta3'::regnamespace) AND relkind IN ('r', 'p', 'f', 'v', 'm', 'S')",
    );
    calls_of(client, &relations)
}

/// Calls of all functions and procedures of the extension, with each of these relations where one is asked for.
fn calls_of(client: &mut Client, relations: &[String]) -> Vec<String> {
    let functions = "
        SELECT p.prokind = 'p', p.oid::regproc::text, ARRAY(
            SELECT coalesce(p.proargnames[n], '') FROM generate_subscripts(p.proargtypes, 1) i, LATERAL (SELECT i + 1) s (n) ORDER BY n),
            p.proargtypes::regtype[]::text[]
        FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
            AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'insta_ids')
            AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
            AND 'internal'::regtype <> ALL (p.proargtypes)
        ORDER BY p.oid";
    let mut calls = Vec::new();
    for function in client.query(functions, &[]).unwrap() {
        let (is_procedure, name): (bool, String) = (function.get(0), function.get(1));
        let (names, types): (Vec<String>, Vec<String>) = (function.get(2), function.get(3));
        let takes_relation = types.iter().any(|kind| kind == "regclass" || kind == "oid");
        for relation in if takes_relation { relations } else { &relations[..1] } {
            let values = names.iter().zip(&types).map(|(name, kind)| value(name, kind, relation));
            let call = format!("{name}({})", values.collect::<Vec<_>>().join(", "));
            calls.push(if is_procedure { format!("CALL {call}") } else { format!("SELECT * FROM {call}") });
        }
    }
    calls
}

/// An argument with which a function finds the guest's shard.
#[expect(clippy::match_same_arms, reason = "the first that fits counts")]
fn value(name: &str, kind: &str, relation: &str) -> String {
    let literal = match (name, kind) {
        ("last_values" | "sequences", "oid[]") => "ARRAY['insta2.mine'::regclass::oid]".into(),
        ("schema", "regnamespace") => "'insta3'".into(),
        ("schema", "oid") => "'insta2'::regnamespace".into(),
        ("schema", "name") => "'insta2'".into(),
        ("schema", _) | ("shards", "bigint") => "2".into(),
        ("shards", "integer") => "10".into(),
        ("shards" | "firsts" | "lasts", "integer[]") => "'{2}'".into(),
        ("count" | "batch" | "servers", _) => "2".into(),
        ("column", _) => "'id'".into(),
        ("every", "interval") => "'1 day'".into(),
        ("every_row" | "force" | "written_out" | "new" | "dry_run", _) => "true".into(),
        ("verify", _) => "'full'".into(),
        ("path", _) => "'insta2'".into(),
        ("lock_timeout", _) => "'1s'".into(),
        ("move", "name" | "text") => "'insta_ids_2_2'".into(),
        ("role", _) => "'guest'".into(),
        ("query", _) => "'SELECT ARRAY[s.shard::text] FROM unnest($1) s (shard)'".into(),
        ("command", _) => format!("'SELECT count(*) FROM ' || {relation}"),
        ("mode", _) => "'ACCESS EXCLUSIVE'".into(),
        ("part", _) => "'ids'".into(),
        (_, "integer") => "2".into(),
        (_, "bigint") => "387141979217152906".into(),
        (_, "regclass") => relation.into(),
        (_, "oid") => format!("{relation}::regclass"),
        (_, "timestamp with time zone") => "now()".into(),
        (_, "jsonb") => "'{}'".into(),
        (_, "boolean") => "true".into(),
        (_, "id_layout") => "'instagram'".into(),
        (_, "uuid") => "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'".into(),
        (_, kind) if kind.ends_with("[]") => "'{}'".into(),
        (_, "name" | "text") => "'a'".into(),
        _ => "NULL".to_owned(),
    };
    format!("{literal}::{kind}")
}

/// A superuser calls every function of the extension over what a guest has planted.
#[test]
fn what_a_guest_plants_never_runs_as_a_superuser() {
    let cluster = Cluster::start("planted");
    let mut client = cluster.connect();
    plant(&mut client);
    let alive = ran(&cluster, "guest");
    for planted in ALIVE {
        assert!(alive.contains(planted), "{planted} is not alive: {alive:?}");
    }
    assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new(), "before anything was called");
    // As the slow ones are, only those that wait for something that never comes are cut short.
    client
        .batch_execute(
            "SET statement_timeout = '20s'; SET client_min_messages = error; SET constraint_exclusion = on",
        )
        .unwrap();

    let all = calls(&mut client);
    let moving = "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
        VALUES ('insta_ids_2_2', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 2, 2, '{2}', 'a', 'b', 0, 'copying')";
    for before in ["", moving] {
        for call in &all {
            if call.starts_with("SELECT") {
                let before = format!("BEGIN; {before}");
                client.batch_execute(&before).unwrap();
                let _ = client.batch_execute(call);
                client.batch_execute("ROLLBACK").unwrap();
                assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new(), "{call}");
            }
        }
    }
    // What commits comes last.
    client.batch_execute("SELECT insta_ids.add_migration('0001', 'CREATE TABLE plain (id bigint PRIMARY KEY DEFAULT next_id())')").unwrap();
    for call in all.iter().filter(|call| call.starts_with("CALL")).map(String::as_str).chain([
        "CALL insta_ids.create_shards(5, 6)",
        "CALL insta_ids.migrate()",
        "CALL insta_ids.check_rows()",
        "SELECT insta_ids.adopt('insta3', 3)",
        "SELECT * FROM insta_ids.check()",
        "CALL insta_ids.check_rows()",
        "SELECT insta_ids.create_partitions('insta2.half', '1 day', now(), now() + '2 days')",
        "SELECT insta_ids.drop_partitions('insta2.half', now() + '3 days')",
        "SELECT insta_ids.drop_shard(2)",
        "SELECT insta_ids.fence(2)",
        "SELECT insta_ids.unfence(2)",
        "SELECT insta_ids.release('insta3')",
        "SELECT insta_ids.drop_shard(2, force => true)",
    ]) {
        let _ = client.batch_execute(call);
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new(), "{call}");
    }
    // They came as far as to what they are for.
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards WHERE shard IN (2, 3)"), 0);
}

/// Reading a table, and altering it with its owner's rights, is for who could become that owner.
#[test]
fn nobody_acts_as_another() {
    let cluster = Cluster::start("as_owner");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE guest; CREATE ROLE owner; CREATE ROLE member IN ROLE owner; CREATE TABLE t (id bigint);
             ALTER TABLE t OWNER TO owner; SELECT insta_ids.grant_provisioning('guest'), insta_ids.grant_provisioning('member')",
        )
        .unwrap();
    let as_owner =
        |command: &str| format!("SELECT insta_ids_internal.as_owner('t'::regclass, $_${command}$_$)");
    let whoami = as_owner("SELECT (current_user || ' ' || current_setting('search_path'))::integer");
    let owner = "invalid input syntax for type integer: \"owner pg_catalog, pg_temp\"";
    let surveys = [
        "SELECT * FROM insta_ids_internal.survey_ids('t'::regclass, 'id', 1, 'instagram', 1, true)",
        "SELECT * FROM insta_ids_internal.survey_rows('t'::regclass, true)",
        "SELECT * FROM insta_ids_internal.survey_rows('t'::regclass, false)",
        "SELECT insta_ids_internal.row_hashes('t'::regclass)",
    ];
    for role in ["postgres", "member"] {
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        assert_eq!(refused(&mut client, &whoami).message(), owner, "{role}");
        for survey in surveys {
            client.batch_execute(survey).unwrap();
        }
    }
    client.batch_execute("SET ROLE guest").unwrap();
    for call in surveys.into_iter().chain([whoami.as_str()]) {
        assert_eq!(refused(&mut client, call).message(), "must be owner of table t", "{call}");
    }
    client.batch_execute("RESET ROLE").unwrap();
    // The rights and settings of before are there again, also after an error, and nothing gets around them.
    for (command, message) in [
        ("SELECT 1/0", "division by zero"),
        ("SET ROLE postgres", "cannot set parameter \"role\" within security-restricted operation"),
        ("CREATE TEMP TABLE x ()", "cannot create temporary table within security-restricted operation"),
        ("SELECT nothing()", "function nothing() does not exist"),
    ] {
        let call = as_owner(command);
        assert_eq!(refused(&mut client, &format!("BEGIN; SAVEPOINT s; {call}")).message(), message);
        client.batch_execute("ROLLBACK TO s").unwrap();
        let now = texts(&mut client, "SELECT concat_ws(' ', current_user, current_setting('search_path'))");
        assert_eq!(now, ["postgres \"$user\", public"], "{command}");
        client.batch_execute("COMMIT").unwrap();
    }
    client.batch_execute(&as_owner("SELECT 1")).unwrap();
    let now = texts(&mut client, "SELECT concat_ws(' ', current_user, current_setting('search_path'))");
    assert_eq!(now, ["postgres \"$user\", public"]);
}

/// Partitions are made by names, with the rights of the parent's owner: until that transaction ends, an owner of the schema
/// cannot put another relation in the parent's place.
#[test]
fn a_schema_keeps_its_name_while_partitions_are_made() {
    let cluster = Cluster::start("held_schema");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE tenant LOGIN; GRANT CREATE ON DATABASE postgres TO tenant; CREATE SCHEMA theirs AUTHORIZATION tenant;
             CREATE TABLE theirs.notes (id bigint) PARTITION BY RANGE (id)",
        )
        .unwrap();
    let mut tenant = cluster.connect();
    tenant.batch_execute("SET ROLE tenant; SET lock_timeout = '300ms'").unwrap();
    let rename = "ALTER SCHEMA theirs RENAME TO gone";
    for call in [
        "SELECT insta_ids.create_partitions('theirs.notes', '1 day', now(), now() + '2 days')",
        "SELECT insta_ids.drop_partitions('theirs.notes', now() + '1 day')",
    ] {
        client.batch_execute(&format!("BEGIN; {call}")).unwrap();
        assert_eq!(refused(&mut tenant, rename).code(), &SqlState::LOCK_NOT_AVAILABLE, "{call}");
        client.batch_execute("COMMIT").unwrap();
    }
    tenant.batch_execute(rename).unwrap();
}

/// A role that may provision writes nothing down of shards whose schemas are not its own: a superuser's call would act on it.
#[test]
fn nothing_is_forged_of_shards_of_others() {
    let cluster = Cluster::start("forged");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger');
             SELECT insta_ids.init(10), insta_ids.create_shard(2); CREATE SCHEMA victim; CREATE SCHEMA insta3;
             SET ROLE forger; SELECT insta_ids.create_shard(5)",
        )
        .unwrap();
    let moving = |shards: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             VALUES ('insta_ids_5_6', gen_random_uuid(), 5, 6, '{shards}', 'a', 'b', 0, 'copying')"
        )
    };
    for (forged, schema) in [
        (&*moving("{5,2}"), "insta2"),
        (&*moving("{5,6}"), "insta6"),
        // It would be of whoever makes the schema later.
        ("INSERT INTO insta_ids_internal.shard VALUES (6)", "insta6"),
        ("UPDATE insta_ids_internal.shard SET shard = 6 WHERE shard = 5", "insta6"),
        ("INSERT INTO insta_ids_internal.fence VALUES (6, true)", "insta6"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (6, 'insta6__moved', 'b')", "insta6__moved"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'not_yet_there', 'b')", "not_yet_there"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'victim', 'b')", "victim"),
        ("INSERT INTO insta_ids_internal.fence VALUES (2, true)", "insta2"),
        ("INSERT INTO insta_ids_internal.shard VALUES (3)", "insta3"),
        ("UPDATE insta_ids_internal.shard SET shard = 6 WHERE shard = 2", "insta2"),
        ("DELETE FROM insta_ids_internal.shard WHERE shard = 2", "insta2"),
    ] {
        let error = refused(&mut client, forged);
        let expected = ("42501", &*format!("must be owner of schema {schema}"));
        assert_eq!((error.code().code(), error.message()), expected, "{forged}");
    }
    // What a move is called, and its range, are those of its shards.
    client.batch_execute("RESET ROLE; SELECT insta_ids.create_shard(6)").unwrap();
    for (is, wrong) in [
        ("{5}", "{{5,5}}"),
        ("{5}", "{}"),
        ("{5}", "{5,2}"),
        ("5_6", "5_5"),
        ("5_6', gen_random_uuid(), 5", "6_6', gen_random_uuid(), 6"),
    ] {
        let forged = moving("{5}").replace(is, wrong);
        assert_eq!(refused(&mut client, &forged).code().code(), "23514", "{forged}");
    }
    client.batch_execute("SET ROLE forger").unwrap();
    client.batch_execute("SELECT insta_ids.fence(5), insta_ids.unfence(5), insta_ids.drop_shard(5)").unwrap();
}

/// What a role that may provision writes down of its own shards reaches no others.
#[test]
fn nothing_is_forged_by_way_of_its_own_shards() {
    let cluster = Cluster::start("forged_own");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger');
             SELECT insta_ids.init(10), insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)');
             SELECT insta_ids.create_shard(2), insta_ids.create_shard(6);
             INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             VALUES ('insta_ids_2_2', gen_random_uuid(), 2, 2, '{2}', 'a', 'b', 0, 'copying');
             SET ROLE forger; SELECT insta_ids.create_shard(5)",
        )
        .unwrap();
    let moving = |name: &str, first: i32, last: i32, step: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             SELECT '{name}', id, {first}, {last}, '{{5}}', 'a', 'b', 0, '{step}' FROM insta_ids_internal.move LIMIT 1"
        )
    };
    let must_own = |schema: &str| format!("must be owner of schema {schema}");
    for (forged, message) in [
        // A move would be given up, and with it the schema that is called so by then.
        (
            moving("insta_ids_5_5", 5, 5, "prepared"),
            "must be superuser to take over shards from 5 to 5".into(),
        ),
        // Others' shards in the range could be neither fenced nor dropped.
        (moving("insta_ids_0_9", 0, 9, "offered"), must_own("insta2")),
        ("INSERT INTO insta_ids_internal.shard_migration VALUES (6, 1)".into(), must_own("insta6")),
        ("DELETE FROM insta_ids_internal.shard_migration WHERE shard = 6".into(), must_own("insta6")),
        (
            "UPDATE insta_ids_internal.shard_migration SET message = '' WHERE shard = 6".into(),
            must_own("insta6"),
        ),
        (
            "UPDATE insta_ids_internal.shard_migration SET shard = 6 WHERE shard = 5".into(),
            must_own("insta6"),
        ),
    ] {
        let error = refused(&mut client, &forged);
        assert_eq!((error.code().code(), error.message()), ("42501", &*message), "{forged}");
    }
    // The id is not the one that was taken from the move of others, nor does it become that.
    client.batch_execute(&moving("insta_ids_5_5", 5, 5, "offered")).unwrap();
    client
        .batch_execute("UPDATE insta_ids_internal.move m SET id = (SELECT o.id FROM insta_ids_internal.move o WHERE o.first = 2) WHERE m.first = 5")
        .unwrap();
    assert_eq!(count(&mut client, "SELECT count(DISTINCT id) FROM insta_ids_internal.move"), 2);
    // After the last number there is no other.
    client
        .batch_execute(
            "INSERT INTO insta_ids_internal.migration VALUES (2147483647, 'last', 'SELECT 1', true, true);
             UPDATE insta_ids_internal.migration SET number = 2147483647 WHERE name = 'last'; RESET ROLE;
             SELECT insta_ids.add_migration('0003', 'SELECT 1')",
        )
        .unwrap();
    assert_eq!(
        texts(&mut client, "SELECT number::text FROM insta_ids_internal.migration ORDER BY number"),
        ["1", "2", "3"]
    );
    // As where the changes of another server are applied.
    client.batch_execute("SET session_replication_role = replica; SET ROLE forger").unwrap();
    for forged in [
        "INSERT INTO insta_ids_internal.shard_migration VALUES (6, 2)",
        "DELETE FROM insta_ids_internal.shard WHERE shard = 6",
        "DELETE FROM insta_ids_internal.move WHERE first = 2",
        "INSERT INTO insta_ids_internal.fence VALUES (6, true)",
        "INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'victim', 'b')",
        "INSERT INTO insta_ids_internal.move_outcome SELECT id, 'withdrawn', shards FROM insta_ids_internal.move WHERE first = 2",
        "UPDATE insta_ids_internal.migration SET added_by = 'forger'",
    ] {
        assert_eq!(refused(&mut client, forged).code().code(), "42501", "{forged}");
    }
}

/// Members of a role that they share migrate as that role; a superuser does not, as statements could take the superuser's
/// role back.
#[test]
fn a_shared_role_runs_what_it_added() {
    let cluster = Cluster::start("shared_role");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE deployer; CREATE ROLE member IN ROLE deployer; GRANT CREATE ON DATABASE postgres TO deployer;
             SELECT insta_ids.grant_provisioning('deployer'); SELECT insta_ids.init(10);
             SET SESSION AUTHORIZATION member; SET ROLE deployer;
             SELECT insta_ids.add_migration('0001', 'SELECT 1'); SELECT insta_ids.create_shard(1);
             RESET SESSION AUTHORIZATION; SET ROLE deployer",
        )
        .unwrap();
    let error = refused(&mut client, "SELECT insta_ids.create_shard(2)");
    assert_eq!(error.message(), "migration \"0001\" was added by role \"deployer\"");
    client
        .batch_execute("RESET ROLE; SELECT insta_ids.add_migration('0001', 'SELECT 1'); SET ROLE deployer")
        .unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(2)").unwrap();
}

/// A migration runs with the rights of who applies it: so it does only if its author has them, or who applies it has added it,
/// too. Who the author is, nobody but a superuser says.
#[test]
fn migrations_of_others_do_not_run() {
    let cluster = Cluster::start("migrations_of_others");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE guest; CREATE ROLE peer; CREATE ROLE deployer; CREATE ROLE member IN ROLE deployer;
             SELECT insta_ids.grant_provisioning(r::regrole) FROM unnest('{guest,peer,deployer,member}'::text[]) r;
             SELECT insta_ids.init(10), insta_ids.create_shard(1), insta_ids.create_shard(2);
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)');
             SET ROLE guest; SELECT insta_ids.add_migration('0002', 'ALTER ROLE guest CREATEDB'); RESET ROLE",
        )
        .unwrap();
    let of_guest = |client: &mut Client, call: &str| {
        let error = refused(client, call);
        let expected = ("42501", "migration \"0002\" was added by role \"guest\"");
        assert_eq!((error.code().code(), error.message()), expected, "{call}");
    };
    let apply = [
        "CALL insta_ids.migrate()",
        "SELECT insta_ids.create_shard(5)",
        "CALL insta_ids.create_shards(3, 8)",
    ];
    let state =
        "SELECT concat_ws(' ', shard, name, state) FROM insta_ids.migration_status ORDER BY shard, number";
    for call in apply {
        of_guest(&mut client, call);
    }
    // A statement could go back to the role that the session began with.
    client.batch_execute("SET ROLE guest").unwrap();
    of_guest(&mut client, "CALL insta_ids.migrate()");
    client.batch_execute("RESET ROLE").unwrap();
    assert_eq!(
        texts(&mut client, state),
        ["1 0001 pending", "1 0002 pending", "2 0001 pending", "2 0002 pending"]
    );

    // Whatever guests write to the table, it is theirs; and what others added they do not write.
    client.batch_execute("SET ROLE guest").unwrap();
    for write in [
        "UPDATE insta_ids_internal.migration SET added_by = 'postgres' WHERE name = '0002'",
        "DELETE FROM insta_ids_internal.migration WHERE name = '0002';
         INSERT INTO insta_ids_internal.migration (number, name, ddl, transactional, check_ids, added_by)
         VALUES (2, '0002', 'ALTER ROLE guest CREATEDB', true, true, 'postgres')",
    ] {
        client.batch_execute(write).unwrap();
    }
    for write in [
        "UPDATE insta_ids_internal.migration SET ddl = 'ALTER ROLE guest CREATEDB' WHERE name = '0001'",
        "UPDATE insta_ids_internal.migration SET added_by = 'guest' WHERE name = '0001'",
        "DELETE FROM insta_ids_internal.migration WHERE name = '0001'",
        "SELECT insta_ids.add_migration('0001', 'ALTER ROLE guest CREATEDB')",
    ] {
        let error = refused(&mut client, write);
        let expected = ("42501", "migration \"0001\" was added by role \"postgres\"");
        assert_eq!((error.code().code(), error.message()), expected, "{write}");
    }
    // The superuser could act as the guest: that the same is added again changes nothing.
    client
        .batch_execute("SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)')")
        .unwrap();
    client.batch_execute("SET ROLE peer").unwrap();
    of_guest(&mut client, "SELECT insta_ids.add_migration('0002', 'ALTER ROLE guest CREATEDB')");
    client.batch_execute("RESET ROLE").unwrap();
    for call in apply {
        of_guest(&mut client, call);
    }

    // Who has read it takes it over, also where it was applied before.
    client.batch_execute("INSERT INTO insta_ids_internal.shard_migration VALUES (1, 2)").unwrap();
    client.batch_execute("SELECT insta_ids.add_migration('0002', 'ALTER ROLE guest CREATEDB')").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM pg_roles WHERE rolname = 'guest' AND rolcreatedb"),
        1
    );
    client.batch_execute("ALTER ROLE guest NOCREATEDB").unwrap();

    // So it is with those that run outside of transactions, and where their author is gone.
    let index = "'CREATE INDEX CONCURRENTLY ON photos (id)', transactional => false";
    for (role, gone) in [("guest", ""), ("member", "DROP OWNED BY member; DROP ROLE member")] {
        client
            .batch_execute(&format!("SET ROLE {role}; SELECT insta_ids.add_migration('index of {role}', {index}); RESET ROLE; {gone}"))
            .unwrap();
        for call in [
            &*format!("SELECT insta_ids.migration_script('index of {role}')"),
            "CALL insta_ids.migrate()",
            "SELECT insta_ids.create_shard(6)",
        ] {
            let error = refused(&mut client, call);
            assert_eq!(
                error.message(),
                format!("migration \"index of {role}\" was added by role \"{role}\""),
                "{call}"
            );
        }
        client.batch_execute(&format!("SELECT insta_ids_internal.start_migration('index of {role}', 1, '')")).unwrap();
        assert_eq!(texts(&mut client, "SELECT pg_catalog.current_setting('search_path')"), ["pg_catalog"]);
        client
            .batch_execute(&format!(
                "RESET search_path; SELECT insta_ids.add_migration('index of {role}', {index})"
            ))
            .unwrap();
        for line in texts(&mut client, &format!("SELECT insta_ids.migration_script('index of {role}')")) {
            client.batch_execute(&line).unwrap();
        }
    }
    assert_eq!(texts(&mut client, &state.replace("ORDER", "WHERE state <> 'applied' ORDER")), [""; 0]);
}

/// A role that may create in the extension's schema has, before the extension comes, a function of each name that the
/// extension's SQL calls, for texts and whatever else a literal could be taken for, and operators likewise.
const OVERLOADS: &str = r"
    CREATE FUNCTION public.canary(planted text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        RAISE LOG '% RAN AS %', planted,
            (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'guest' END FROM pg_catalog.pg_roles WHERE rolname = current_user);
        RETURN 'evil';
    END $$;
    DO $$
    DECLARE
        name text;
        arguments text;
    BEGIN
        -- They would be taken here, too.
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true);
        FOR name IN
            SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'pg_catalog'::regnamespace
                AND p.proname = ANY ('{format,concat_ws,concat,replace,quote_ident,quote_literal,current_setting,set_config,upper,
                    lower,left,right,substr,length,coalesce,string_agg,array_agg,count,min,max,regexp_replace,regexp_matches,
                    regexp_split_to_array,to_regclass,to_regnamespace,has_function_privilege,pg_notify,now,strpos,starts_with,
                    unnest,octet_length,cardinality,greatest,least,to_json,to_jsonb,md5,floor,abs,round}'::name[])
            UNION SELECT unnest('{next_id,next_ids,id_time,id_shard,id_seq,id_min,id_max,id_json,make_id}'::text[])
        LOOP
            FOREACH arguments IN ARRAY ARRAY['text', 'text, text', 'text, text, text', 'text, integer', 'integer, text', 'bigint, text',
                'text, bigint', 'text, name', 'name, text', 'text, regclass', 'text, text, integer', 'integer, text, text', 'bigint, name',
                'text, text, text, text']
            LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE sql AS %L',
                    name, arguments, format('SELECT public.canary(%L)', name || '(' || arguments || ')'));
            END LOOP;
        END LOOP;
        FOR name IN SELECT unnest('{||,=,<>,~,!~,->,->>,-,+,>=,<=}'::text[]) LOOP
            FOREACH arguments IN ARRAY ARRAY['name, text', 'text, name', 'name, name', 'name, integer', 'integer, name'] LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS boolean LANGUAGE sql AS %L', 'operator ' || name, arguments,
                    format('SELECT public.canary(%L) = ''''', name || ' of ' || arguments));
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)', name,
                    'operator ' || name, split_part(arguments, ', ', 1), split_part(arguments, ', ', 2));
            END LOOP;
        END LOOP;
    END $$";

/// None of them is called, by whatever of the extension is: planted before it was created, and after.
#[test]
fn nothing_planted_in_the_extensions_schema_is_called() {
    for is_before in [true, false] {
        let cluster = Cluster::bare("overloads", &[PRELOAD]);
        let mut client = cluster.connect();
        client.batch_execute("CREATE ROLE guest; GRANT CREATE ON SCHEMA public TO guest").unwrap();
        let plant = format!("SET ROLE guest; {OVERLOADS}; RESET ROLE");
        if is_before {
            client.batch_execute(&plant).unwrap();
        }
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        cluster.await_log("roles that are no superusers may create objects in schema public of insta_ids");
        if !is_before {
            client.batch_execute(&plant).unwrap();
        }
        // The statements of the test are its own, and say what they mean.
        client.batch_execute("SET search_path = pg_catalog").unwrap();
        for statement in [
            "SELECT insta_ids.init(10)",
            "SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), at bigint)')",
            "SELECT insta_ids.create_shard(2)",
            "CALL insta_ids.create_shards(3, 4)",
            "SELECT insta_ids.add_migration('0002', 'CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(''table_id_seq''))')",
            "CALL insta_ids.migrate()",
            "INSERT INTO insta2.photos DEFAULT VALUES; INSERT INTO insta2.likes DEFAULT VALUES",
            "CALL insta_ids.check_rows()",
            "SELECT insta_ids.fence(3), insta_ids.unfence(3)",
            "CREATE TABLE insta4.parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('insta4.parts', '1 day', now(), now() + '1 day'),
                 insta_ids.drop_partitions('insta4.parts', now())",
            "CREATE SCHEMA insta5; CREATE SEQUENCE insta5.table_id_seq;
             CREATE FUNCTION insta5.next_id(OUT result bigint) LANGUAGE plpgsql AS $$
             DECLARE our_epoch bigint := 1314220021721; seq_id bigint; now_millis bigint; shard_id int := 5;
             BEGIN
                 SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;
                 SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
                 result := (now_millis - our_epoch) << 23;
                 result := result | (shard_id << 10);
                 result := result | (seq_id);
             END $$;
             SELECT insta_ids.adopt('insta5', 5)",
            "SELECT insta5.next_id()",
            "SELECT insta_ids.release('insta5')",
            "SELECT insta_ids.add_node('a', 'host=a dbname=a'), insta_ids.assign(0, 9, 'a'), insta_ids.shard_map()",
            "SELECT insta_ids.export_pgdog('app', '{id}')",
            "SELECT insta_ids.drop_shard(3)",
        ] {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        // What the shards' own functions call is bound, for whatever path.
        client
            .batch_execute(
                "RESET search_path; SELECT insta2.next_id(), insta2.next_id('insta2.table_id_seq')",
            )
            .unwrap();
        let open = "SELECT code || ' ' || object FROM insta_ids.check() WHERE code = 'open_schema'";
        assert_eq!(texts(&mut client, open), ["open_schema public"]);
        let calls = calls_of(&mut client, &["'insta2.photos'".into()]);
        for call in calls.iter().filter(|call| call.starts_with("SELECT")) {
            client.batch_execute("BEGIN; SET LOCAL statement_timeout = '20s'").unwrap();
            let _ = client.batch_execute(call);
            client.batch_execute("ROLLBACK").unwrap();
        }
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new());

        // Nor where the extension's schema was renamed, and another one has its name, its functions and its type.
        client
            .batch_execute(&format!(
                "ALTER SCHEMA public RENAME TO renamed; CREATE SCHEMA public AUTHORIZATION guest; {plant}; SET ROLE guest;
                 CREATE FUNCTION public.evil_layout(text) RETURNS boolean LANGUAGE sql AS $$SELECT public.canary('a domain') = 'evil'$$;
                 CREATE DOMAIN public.id_layout AS text CHECK (public.evil_layout(VALUE)); RESET ROLE"
            ))
            .unwrap();
        client
            .batch_execute(
                "SET search_path = pg_catalog; SELECT insta_ids.create_shard(6); SELECT insta6.next_id()",
            )
            .unwrap();
        for call in calls.iter().filter(|call| call.starts_with("SELECT")) {
            client.batch_execute("BEGIN; SET LOCAL statement_timeout = '20s'").unwrap();
            let _ = client.batch_execute(call);
            client.batch_execute("ROLLBACK").unwrap();
        }
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new());
    }
}
