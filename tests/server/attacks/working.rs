//! Background workers have the rights of a superuser, and nothing that the owner of a database sets for its sessions.

use std::thread;
use std::time::Duration;

use postgres::Client;
use support::pair::Pair;
use support::{Cluster, count, texts, within};

/// The owner of a database plants operators that the worker's statements could use, puts them first in the path of the database,
/// and sets all else that an owner can set for the sessions of a database.
fn plant(client: &mut Client, database: &str) {
    let settings = SETTINGS.map(|setting| format!("ALTER DATABASE {database} SET {setting};")).concat();
    client
        .batch_execute(&format!(
            "CREATE ROLE app; ALTER DATABASE {database} OWNER TO app; SET ROLE app; CREATE SCHEMA evil;
             CREATE FUNCTION evil.grab() RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
                 IF (SELECT rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user) THEN
                     ALTER ROLE app SUPERUSER;
                 END IF;
                 RETURN true;
             END $$;
             DO $do$
             DECLARE
                 type text;
                 name text;
             BEGIN
                 FOREACH type IN ARRAY '{{name,text,int4,int8,oid,bool,jsonb,uuid,interval,timestamptz,\"char\"}}'::text[] LOOP
                     FOREACH name IN ARRAY '{{=,<>,<,>,<=,>=}}'::text[] LOOP
                         EXECUTE format('CREATE FUNCTION evil.%I(%s, %2$s) RETURNS boolean LANGUAGE plpgsql AS
                             $$BEGIN PERFORM evil.grab(); RETURN $1 OPERATOR(pg_catalog.%s) $2; END$$', name || type, type, name);
                         EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %2$s, FUNCTION = evil.%I)', name, type, name || type);
                     END LOOP;
                 END LOOP;
             END $do$;
             ALTER DATABASE {database} SET search_path = evil, pg_catalog;
             {settings}
             RESET ROLE"
        ))
        .unwrap();
}

/// What an owner can set for a database, so that statements mean something else or end early.
const SETTINGS: [&str; 9] = [
    "transform_null_equals = on",
    "standard_conforming_strings = off",
    "exit_on_error = on",
    "statement_timeout = 1",
    "lock_timeout = 1",
    "default_transaction_isolation = serializable",
    "default_transaction_read_only = on",
    "datestyle = 'sql, dmy'",
    "intervalstyle = sql_standard",
];

/// PostgreSQL's own workers would act as this role, too.
const ROLE: &str =
    "ALTER DATABASE postgres SET role = app; ALTER DATABASE postgres SET session_authorization = app";

/// A session of the administrator, who has set a safe path.
fn administrator(cluster: &Cluster) -> Client {
    let mut config = cluster.config();
    config.options("-c search_path=pg_catalog -c role=none -c statement_timeout=0 -c lock_timeout=0 -c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed -c transform_null_equals=off -c exit_on_error=off -c standard_conforming_strings=on");
    config.connect(postgres::NoTls).unwrap()
}

const SUPERUSERS: &str = "SELECT rolname::text FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'";

/// The worker of a move ends it, and the owner of the database is not a superuser afterwards.
#[test]
fn the_worker_of_a_move_takes_nothing_from_its_database() {
    let pair = Pair::start("worked");
    plant(&mut pair.b.connect(), "postgres");
    let mut b = administrator(&pair.b);
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a', background => true)").unwrap();
    within(Duration::from_mins(1), || count(&mut b, "SELECT count(*) FROM insta_ids.moves") == 0);
    assert_eq!(texts(&mut b, SUPERUSERS), [""; 0]);
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta_ids.shards WHERE shard = 2"), 1);
}

/// So does the worker that opens a fence whose time is over.
#[test]
fn the_worker_of_a_fence_takes_nothing_from_its_database() {
    let pair = Pair::start("unfenced");
    let mut moving = support::pair::Move::of(&pair, 2, 2);
    moving.steps(support::pair::before("fence"));
    plant(&mut pair.a.connect(), "postgres");
    let mut a = administrator(&pair.a);
    a.batch_execute(ROLE).unwrap();
    a.batch_execute("SELECT insta_ids_internal.move_fence('insta_ids_2_2', '2s', '10 ms')").unwrap();
    // Each refused writer starts the worker.
    within(Duration::from_secs(20), || a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").is_ok());
    assert_eq!(texts(&mut a, SUPERUSERS), [""; 0]);
}

/// A database without the extension has a subscription that is called like a move's, and a path in which everything is planted.
#[test]
fn the_worker_that_starts_with_the_server_runs_nothing_in_other_databases() {
    let cluster = Cluster::start("trapped");
    cluster.connect().batch_execute("CREATE DATABASE trap").unwrap();
    let mut trap = cluster.connect_to("trap");
    trap.batch_execute(
        "CREATE SUBSCRIPTION insta_ids_1_1 CONNECTION 'host=/nowhere' PUBLICATION p WITH (connect = false)",
    )
    .unwrap();
    plant(&mut trap, "trap");
    cluster.connect().batch_execute("ALTER SYSTEM SET shared_preload_libraries = 'insta_ids'").unwrap();
    cluster.stop();
    cluster.up();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(texts(&mut cluster.connect(), SUPERUSERS), [""; 0]);
    let running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'insta_ids: %'";
    assert_eq!(count(&mut cluster.connect(), running), 0);
}
