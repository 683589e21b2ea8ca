//! A distribution in the background ends without its caller, as the role that has called it.

use std::time::Duration;

use postgres::{Client, NoTls};
use support::{Cluster, count, refused, texts, within};

use super::{REGISTERED, Rows, fill, tables};

const CALL: &str = "CALL insta_ids.distribute(batch => 500, background => true)";

const SLOW: &str = "CALL insta_ids.distribute(batch => 100, pause => '50 ms', background => true)";

const WORKERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'insta_ids: distribute'";

/// What is to be done next; as long as there is a worker, to wait.
fn next(client: &mut Client) -> Vec<String> {
    texts(
        client,
        "SELECT DISTINCT next FROM insta_ids.distributions WHERE is_in_background = (next = 'wait')",
    )
}

fn ends(client: &mut Client) {
    within(Duration::from_mins(1), || next(client) == ["SELECT insta_ids.distribute_switch()"]);
}

/// An application role that owns its tables, and administers shards.
fn application(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::start(name);
    let set_up = "CREATE ROLE app LOGIN; SELECT insta_ids.grant_provisioning('app');
        GRANT CREATE ON SCHEMA public TO app; GRANT CREATE ON DATABASE postgres TO app";
    cluster.connect().batch_execute(set_up).unwrap();
    let mut app = cluster.config().user("app").connect(NoTls).unwrap();
    fill(&mut app);
    (cluster, app)
}

#[test]
fn tables_are_distributed_without_the_caller() {
    let (cluster, mut app) = application("distribute_background");
    let mut client = cluster.connect();
    app.batch_execute(REGISTERED).unwrap();
    // The code of a table's owner runs with the owner's rights.
    app.batch_execute(
            "CREATE TABLE seen (who text);
             CREATE FUNCTION see() RETURNS boolean LANGUAGE plpgsql AS
                 'BEGIN INSERT INTO public.seen VALUES (session_user || '' '' || current_user); RETURN true; END';
             DO $$ BEGIN FOR n IN 0..7 LOOP EXECUTE format('ALTER TABLE insta%s.users ADD CHECK (public.see())', n); END LOOP; END $$",
        )
        .unwrap();
    // What the role has set for its sessions does not keep the worker from its work.
    client
        .batch_execute(
            "ALTER ROLE app SET default_transaction_isolation = 'serializable'; ALTER ROLE app SET default_transaction_read_only = on;
             ALTER ROLE app SET role = pg_monitor; ALTER ROLE app SET lock_timeout = '1 ms'",
        )
        .unwrap();
    app.batch_execute(SLOW).unwrap();
    within(Duration::from_secs(20), || {
        count(&mut client, "SELECT count(*) FROM insta_ids.distributions WHERE rows_copied > 0") > 0
    });
    client.batch_execute("ALTER ROLE app RESET ALL").unwrap();
    assert_eq!(next(&mut client), ["wait"]);
    assert_eq!(next(&mut app), ["wait"]);
    drop(app);
    // Another call takes it over, and the worker of the first one ends.
    let mut app = cluster.config().user("app").connect(NoTls).unwrap();
    app.batch_execute(CALL).unwrap();
    app.batch_execute("UPDATE photos SET title = 'meanwhile' WHERE id % 3 = 0").unwrap();
    ends(&mut app);
    within(Duration::from_secs(20), || count(&mut client, WORKERS) == 0);
    assert_eq!(texts(&mut client, "SELECT DISTINCT who FROM seen"), ["app app"]);
    app.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    let rows = Rows::of_sources(&mut client);
    assert_eq!(Rows::of_shards(&mut client), rows);
    // And back.
    client.batch_execute("UPDATE insta1.users SET bio = 'later'").unwrap();
    app.batch_execute(CALL).unwrap();
    within(Duration::from_secs(20), || {
        count(&mut client, "SELECT count(*) FROM users WHERE bio = 'later'") > 0
    });
    within(Duration::from_secs(20), || count(&mut client, WORKERS) == 0);
    app.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM users WHERE bio = 'later'"), 63);
}

/// An attempt that fails is tried again, and what has failed is shown. A call that waits, or the end of the distribution, ends the worker.
#[test]
fn a_worker_tries_again_until_it_is_not_wanted() {
    let cluster = tables("distribute_background_faults");
    let (mut client, mut holder) = (cluster.connect(), cluster.connect());
    client
        .batch_execute(
            "SELECT insta_ids.add_migration('0002', 'CREATE TABLE extra (id bigint PRIMARY KEY)', ids_since => '2011-08-25');
             CREATE TABLE extra (id bigint PRIMARY KEY); INSERT INTO extra VALUES (1)",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    holder.batch_execute("BEGIN; LOCK TABLE users IN ROW EXCLUSIVE MODE").unwrap();
    let impatient = CALL.replace("batch", "lock_timeout => '100 ms', batch");
    client.batch_execute(&impatient).unwrap();
    let error =
        "SELECT DISTINCT coalesce(last_error, '') FROM insta_ids.distributions WHERE is_in_background";
    within(Duration::from_secs(20), || {
        texts(&mut client, error).first().is_some_and(|error| error.starts_with("could not lock"))
    });
    // It also takes a table that is registered meanwhile.
    client.batch_execute("SELECT insta_ids.distribute_table('extra', 'id')").unwrap();
    assert_eq!(next(&mut client), ["wait"]);
    holder.batch_execute("COMMIT").unwrap();
    ends(&mut client);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.distributions WHERE rows_copied > 0"), 4);
    assert_eq!(count(&mut client, "SELECT count(last_error) FROM insta_ids.distributions"), 0);

    // A worker that was ended does not come back, and a call goes on.
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute(SLOW).unwrap();
    assert_eq!(count(&mut client, &WORKERS.replace('*', "pg_terminate_backend(pid, 20000)")), 1);
    assert_eq!(next(&mut client), ["CALL insta_ids.distribute()"]);
    client.batch_execute(SLOW).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    within(Duration::from_secs(20), || count(&mut client, WORKERS) == 0);
    assert_eq!(next(&mut client), ["SELECT insta_ids.distribute_switch()"]);

    // The end of the distribution ends the worker.
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute(&SLOW.replace("50 ms", "50 min")).unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    within(Duration::from_secs(20), || count(&mut client, WORKERS) == 0);
}

#[test]
fn a_worker_that_cannot_be_is_refused() {
    let (cluster, mut app) = application("distribute_background_refused");
    let mut client = cluster.connect();
    let error = refused(&mut client, CALL);
    assert_eq!(error.message(), "no table is registered");
    let error = refused(&mut client, "CALL insta_ids.distribute(background => NULL)");
    assert_eq!((error.code().code(), error.message()), ("22004", "no argument of distribute can be NULL"));
    app.batch_execute(REGISTERED).unwrap();
    client.batch_execute("ALTER ROLE app NOLOGIN").unwrap();
    let error = refused(&mut app, CALL);
    assert_eq!(
        error.message(),
        "role \"app\" cannot connect to this database, so no background worker can act as it"
    );
    client.batch_execute("ALTER ROLE app LOGIN; CREATE ROLE owner LOGIN").unwrap();
    client.batch_execute("ALTER DATABASE postgres OWNER TO owner").unwrap();
    let mut owner = cluster.config().user("owner").connect(NoTls).unwrap();
    assert_eq!(refused(&mut owner, "SELECT insta_ids_internal.start_distributor()").code().code(), "42501");
    client.batch_execute("ALTER SYSTEM SET max_worker_processes = 0").unwrap();
    cluster.stop();
    cluster.up();
    let mut app = cluster.config().user("app").connect(NoTls).unwrap();
    assert_eq!(refused(&mut app, CALL).message(), "no background worker is free");
    assert_eq!(next(&mut app), ["CALL insta_ids.distribute()"]);
}
