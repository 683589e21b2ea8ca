//! Whoever makes shards, or migrates them, is killed in the middle: what is there is never half made, and a call of
//! the same does the rest.

use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Error};

use crate::crash::kill;
use support::Chance;
use support::fault::{chance, times};
use support::{Cluster, texts, within};

/// What is half made: a schema that is no shard, a shard without its schema or what belongs to it, and a migration of
/// which there is one part only, or which is not recorded as it is.
const HALF_MADE: &str = "
    SELECT concat_ws(' ', coalesce(n.nspname, s.schema), 'schema', n.nspname IS NOT NULL, 'shard', s.shard IS NOT NULL)
    FROM (SELECT nspname FROM pg_namespace WHERE nspname ~ '^insta\\d+$') n
    FULL JOIN insta_ids.shards s ON s.schema = n.nspname
    WHERE n.nspname IS NULL OR s.shard IS NULL
    UNION ALL
    SELECT s.schema || ' has no ' || o.name
    FROM insta_ids.shards s, unnest('{table_id_seq,next_id(),next_id(regclass)}'::text[]) o (name)
    WHERE coalesce(to_regclass(s.schema || '.' || o.name)::oid, to_regprocedure(s.schema || '.' || o.name)) IS NULL
    UNION ALL
    SELECT concat_ws(' ', m.schema, m.name, m.state, o.made)
    FROM insta_ids.migration_status m
    CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid AND relname IN (m.name || 'a', m.name || 'b'))
            + (SELECT count(*) FROM pg_constraint
               WHERE connamespace = n.oid AND conname = m.name || 'b_id_check'
                   AND pg_get_constraintdef(oid) = format('CHECK ((id_shard(id) = %s))', m.shard)) AS made
        FROM pg_namespace n WHERE n.nspname = m.schema
    ) o
    WHERE o.made <> CASE m.state WHEN 'applied' THEN 3 ELSE 0 END";

const REST: &str = "SELECT schema || ' ' || name FROM insta_ids.migration_status WHERE state <> 'applied'";

const RUNNING: &str = "SELECT command FROM insta_ids.progress";

fn add_migration(client: &mut Client, number: u64) {
    let migration = format!(
        "SELECT insta_ids.add_migration('m{number}', 'CREATE TABLE m{number}a (); CREATE TABLE m{number}b (id bigint DEFAULT next_id())')"
    );
    client.batch_execute(&migration).unwrap();
}

/// Has them called at once, and one of them end after a while: whether it was still at it.
fn end_one(cluster: &Cluster, calls: &[String], hard: bool, chance: &mut Chance) -> bool {
    let reinitialized = || cluster.log().matches("all server processes terminated; reinitializing").count();
    let before = reinitialized();
    let mut clients: Vec<Client> = calls.iter().map(|_| cluster.connect()).collect();
    let pids =
        clients.iter_mut().map(|client| client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0));
    let pid = chance.of(&pids.collect::<Vec<i32>>());
    let mut terminator = cluster.connect();
    let moment = Instant::now() + Duration::from_millis(chance.below(150));
    let ended: Vec<Result<(), Error>> = thread::scope(|scope| {
        let calls: Vec<_> = clients
            .iter_mut()
            .zip(calls)
            .map(|(client, call)| scope.spawn(move || client.batch_execute(call)))
            .collect();
        // Any moment will do.
        thread::sleep(moment.saturating_duration_since(Instant::now()));
        if hard {
            kill(pid);
        } else {
            terminator.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
        }
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let errors: Vec<Error> = ended.into_iter().filter_map(Result::err).collect();
    for error in &errors {
        // Of the end of the session, or of the connection.
        assert!(error.code().is_none_or(|code| code.code().starts_with("57")), "{error}");
    }
    if hard {
        within(Duration::from_mins(1), || reinitialized() > before);
    } else {
        let lives = format!("SELECT query FROM pg_stat_activity WHERE pid = {pid}");
        within(Duration::from_mins(1), || texts(&mut terminator, &lives).is_empty());
    }
    !errors.is_empty()
}

/// Sessions that make and migrate shards are killed, and the next call completes their work.
#[test]
fn shards_are_whole_after_a_kill_in_the_middle() {
    let mut chance = chance();
    let cluster = Cluster::start("provisioning");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(8192)").unwrap();
    add_migration(&mut client, 0);
    client.batch_execute("CALL insta_ids.create_shards(0, 19)").unwrap();
    let (mut ended, mut kills) = (0, 0);
    for round in 1..=4 * times() {
        let last = 19 + 20 * round;
        add_migration(&mut client, round);
        for _ in 0..3 {
            let batch = 1 + chance.below(10);
            let calls = [
                format!("CALL insta_ids.create_shards(0, {last}, batch => {batch})"),
                format!("CALL insta_ids.migrate(batch => {batch})"),
            ];
            ended += u64::from(end_one(&cluster, &calls, kills % 2 == 0, &mut chance));
            kills += 1;
            client = cluster.reconnect();
            assert_eq!(texts(&mut client, HALF_MADE), [""; 0], "round {round}");
            within(Duration::from_secs(10), || texts(&mut client, RUNNING).is_empty());
        }
        client.batch_execute(&format!("CALL insta_ids.create_shards(0, {last})")).unwrap();
        client.batch_execute("CALL insta_ids.migrate()").unwrap();
        assert_eq!(texts(&mut client, HALF_MADE), [""; 0], "round {round}");
        assert_eq!(texts(&mut client, REST), [""; 0], "round {round}");
        let shards =
            texts(&mut client, "SELECT count(*)::text FROM insta_ids.shards WHERE tables = 2 * applied");
        assert_eq!(shards, [(last + 1).to_string()], "round {round}");
    }
    println!("{kills} kills, {ended} of them in the middle");
    assert!(ended > 0);
}
