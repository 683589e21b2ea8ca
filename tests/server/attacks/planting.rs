//! A guest plants code wherever PostgreSQL runs code of a table's owner.

use super::{calls_of, ran};
use postgres::Client;
use std::collections::BTreeSet;
use support::shards::published_function;
use support::{Cluster, count, texts};

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
    {published_function};
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
pub(crate) fn planted_tables(schema: &str, id: &str) -> String {
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

pub(crate) fn plant(client: &mut Client) {
    let function = published_function("insta3", "", "insta3.table_id_seq", 3);
    client.batch_execute(&PLANTED.replace("{published_function}", &function)).unwrap();
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

/// Calls of all functions and procedures of the extension, with each of the guest's relations where one is asked for.
pub(crate) fn calls(client: &mut Client) -> Vec<String> {
    let relations = texts(
        client,
        "SELECT quote_literal(oid::regclass) FROM pg_class
         WHERE relnamespace IN ('insta2'::regnamespace, 'insta3'::regnamespace) AND relkind IN ('r', 'p', 'f', 'v', 'm', 'S')",
    );
    calls_of(client, &relations)
}

/// A superuser calls every function of the extension over relations in which a guest has planted code.
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
        "SELECT insta_ids.clone_shard(2, 8)",
        "SELECT insta_ids.replace_shard(2, 'insta3')",
        "SELECT insta_ids.drop_shard(2)",
        "SELECT insta_ids.fence(2)",
        "SELECT insta_ids.unfence(2)",
        "SELECT insta_ids.unadopt('insta3')",
        "SELECT insta_ids.drop_shard(2, force => true)",
    ]) {
        let _ = client.batch_execute(call);
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new(), "{call}");
    }
    // They came as far as to what they are for.
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards WHERE shard IN (2, 3)"), 0);
}
