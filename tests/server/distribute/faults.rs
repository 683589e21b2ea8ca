//! Whatever ends a call, the next one goes on where it was, and until the switch an abort leaves nothing behind.

use std::thread;
use std::time::Duration;

use postgres::Client;
use support::{Chance, Cluster, count, refused, texts, within};

use super::writing::Writer;
use super::{REGISTERED, Rows, remains, tables};

/// What ends the call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Terminated,
    TimedOut,
    ServerKilled,
}

/// Calls the procedure, lets the fault happen after so long, and returns whether the call ended by it.
fn interrupted(cluster: &Cluster, fault: Fault, after: Duration) -> bool {
    let mut caller = cluster.reconnect();
    let pid: i32 = caller.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    if matches!(fault, Fault::TimedOut) {
        caller.batch_execute(&format!("SET statement_timeout = {}", after.as_millis().max(1))).unwrap();
    }
    let call = thread::spawn(move || {
        caller.batch_execute("CALL insta_ids.distribute(batch => 100, pause => '2 ms')").is_err()
    });
    if !matches!(fault, Fault::TimedOut) {
        thread::sleep(after);
    }
    match fault {
        Fault::TimedOut => {}
        Fault::Terminated => {
            cluster.connect().execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
        }
        Fault::ServerKilled => {
            cluster.signal("KILL");
            let _ = call.join();
            cluster.up_again();
            return true;
        }
    }
    call.join().unwrap()
}

/// Some changes of a client between the faults.
fn change(cluster: &Cluster, writer: &mut Writer) {
    let mut client = cluster.reconnect();
    for _ in 0..10 {
        assert!(writer.once(&mut client));
    }
}

#[test]
fn a_call_goes_on_after_whatever_ended_it() {
    let cluster = tables("distribute_faults");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    let mut expected = Rows::of_sources(&mut client);
    let mut chance = Chance::from_seed(1);
    let mut writer = Writer::new(0);
    let mut ended = 0;
    for fault in [Fault::Terminated, Fault::TimedOut, Fault::ServerKilled].into_iter().cycle().take(12) {
        change(&cluster, &mut writer);
        ended += usize::from(interrupted(&cluster, fault, Duration::from_millis(chance.below(250))));
    }
    assert!(ended >= 4, "only {ended} calls were interrupted");
    change(&cluster, &mut writer);
    expected.extend(&writer.rows);
    let mut client = cluster.reconnect();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    assert_eq!(Rows::of_shards(&mut client), expected);

    // The switch happens entirely or not at all.
    client.batch_execute("BEGIN; SELECT insta_ids.distribute_switch(); ROLLBACK").unwrap();
    change(&cluster, &mut writer);
    client.batch_execute("CALL insta_ids.distribute(); SELECT insta_ids.distribute_switch()").unwrap_err();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    cluster.signal("KILL");
    cluster.up_again();
    let mut client = cluster.reconnect();
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
    client.batch_execute("SELECT insta_ids.distribute_finish()").unwrap();
    assert_eq!(remains(&mut client), Vec::<String>::new());
}

#[test]
fn an_abort_leaves_nothing_behind() {
    let cluster = tables("distribute_abort");
    let mut client = cluster.connect();
    let before = Rows::of_sources(&mut client);
    for after in [5, 60, 120, 180, 2000] {
        client.batch_execute(REGISTERED).unwrap();
        interrupted(&cluster, Fault::TimedOut, Duration::from_millis(after));
        client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
        assert_eq!(remains(&mut client), Vec::<String>::new());
        assert_eq!(Rows::of_shards(&mut client), Rows::default());
        assert_eq!(Rows::of_sources(&mut client), before);
    }
    // Without a distribution, there is nothing to do.
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
}

/// Two calls at once share the work, and a call waits for transactions that write.
#[test]
fn two_calls_and_long_transactions_are_waited_for() {
    let cluster = tables("distribute_waiting");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    let mut holder = cluster.connect();
    holder.batch_execute("BEGIN; UPDATE users SET bio = 'held' WHERE id = 1").unwrap();
    let held = refused(&mut client, "CALL insta_ids.distribute(lock_timeout => '300 ms')");
    assert_eq!(held.code().code(), "55P03", "{held:?}");
    // Meanwhile, others write.
    cluster.connect().batch_execute("UPDATE users SET bio = 'free' WHERE id = 2").unwrap();
    let call = |cluster: &Cluster| {
        let mut client: Client = cluster.connect();
        thread::spawn(move || client.batch_execute("CALL insta_ids.distribute(batch => 50)"))
    };
    let calls = [call(&cluster), call(&cluster)];
    thread::sleep(Duration::from_millis(300));
    holder.batch_execute("COMMIT").unwrap();
    for call in calls {
        call.join().unwrap().unwrap();
    }
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
    within(Duration::from_secs(1), || {
        texts(&mut client, "SELECT DISTINCT next FROM insta_ids.distributions")
            == ["SELECT insta_ids.distribute_switch()"]
    });
}

/// How far the tables are, what there is beside them, and the rows of the shards.
fn state(cluster: &Cluster) -> (Vec<String>, Vec<String>, Rows) {
    let mut client = cluster.reconnect();
    let steps = "SELECT concat_ws(' ', d.source, d.step, d.next) FROM insta_ids.distributions d ORDER BY 1";
    let mut remains = remains(&mut client);
    remains.sort();
    (texts(&mut client, steps), remains, Rows::of_shards(&mut client))
}

/// Makes a call until it is done: it runs into ever longer timeouts, and then the server is killed meanwhile. Returns how often it
/// ended without effect.
fn insist(cluster: &Cluster, call: &'static str) -> usize {
    let before = state(cluster);
    let mut ended = 0;
    for timeout in [1, 2, 5, 10, 20, 40] {
        let mut client = cluster.reconnect();
        client.batch_execute(&format!("SET statement_timeout = {timeout}")).unwrap();
        if client.batch_execute(call).is_ok() {
            return ended;
        }
        assert_eq!(state(cluster), before);
        ended += 1;
    }
    let mut client = cluster.reconnect();
    let running = thread::spawn(move || client.batch_execute(call).is_ok());
    cluster.signal("KILL");
    let done = running.join().unwrap();
    cluster.up_again();
    if state(cluster) == before {
        assert!(!done, "what was done is gone");
        cluster.reconnect().batch_execute(call).unwrap();
        ended += 1;
    }
    ended
}

#[test]
fn each_step_happens_entirely_or_not_at_all() {
    let cluster = tables("distribute_entirely");
    let rows = Rows::of_sources(&mut cluster.connect());
    let copied = |cluster: &Cluster| {
        let mut client = cluster.reconnect();
        client.batch_execute(REGISTERED).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
    };
    copied(&cluster);
    let mut ended = insist(&cluster, "SELECT insta_ids.distribute_switch(views => true)");
    ended += insist(&cluster, "SELECT insta_ids.distribute_abort()");
    let mut client = cluster.reconnect();
    assert_eq!(remains(&mut client), Vec::<String>::new());
    assert_eq!(
        (Rows::of_sources(&mut client), Rows::of_shards(&mut client)),
        (rows.clone(), Rows::default())
    );
    client.batch_execute("SELECT insta_ids.unfence(s.shard) FROM insta_ids.shards s").unwrap();
    copied(&cluster);
    ended += insist(&cluster, "SELECT insta_ids.distribute_switch()");
    ended += insist(&cluster, "SELECT insta_ids.distribute_finish()");
    assert!(ended >= 8, "only {ended} calls ended without effect");
    let mut client = cluster.reconnect();
    assert_eq!(remains(&mut client), Vec::<String>::new());
    assert_eq!(Rows::of_shards(&mut client), rows);
}

/// Between two batches, rows change before and after the last one that was copied, in an order that is not that of the database.
#[test]
fn changes_of_rows_that_are_not_copied_yet_are_left_to_the_copy() {
    let cluster = Cluster::start("distribute_half");
    let mut client = cluster.connect();
    let table = "CREATE TABLE words (word text COLLATE \"en-x-icu\", n int, owner bigint NOT NULL, seen int DEFAULT 0, PRIMARY KEY (word, n))";
    client.batch_execute("SELECT insta_ids.init(4)").unwrap();
    client.execute("SELECT insta_ids.add_migration('0001', $1)", &[&table]).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client
        .batch_execute(&format!(
            "{table};
             INSERT INTO words SELECT w, n, n FROM unnest('{{a,B,c,D,e,F,g,H}}'::text[]) w, generate_series(1, 5) n;
             SELECT insta_ids.distribute_table('words', 'owner')"
        ))
        .unwrap();
    // It ends while it waits after the first rows: those up to (D, 3).
    let mut caller = cluster.connect();
    let pid: i32 = caller.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let call =
        thread::spawn(move || refused(&mut caller, "CALL insta_ids.distribute(batch => 18, pause => '5 s')"));
    let copied = "SELECT rows_copied FROM insta_ids.distributions";
    within(Duration::from_secs(30), || count(&mut client, copied) == 18);
    client.execute("SELECT pg_cancel_backend($1)", &[&pid]).unwrap();
    assert_eq!(call.join().unwrap().code().code(), "57014");
    assert_eq!(count(&mut client, copied), 18);
    client
        .batch_execute(
            "UPDATE words SET seen = 1 WHERE n % 2 = 1;
             UPDATE words SET owner = owner + 1 WHERE n = 2;
             DELETE FROM words WHERE n = 4;
             INSERT INTO words SELECT w, 6, 6 FROM unnest('{A,b,C,d,E,f,G,h,z}'::text[]) w;
             UPDATE words SET word = 'Z' WHERE (word, n) = ('B', 1);
             UPDATE words SET word = 'Aa' WHERE (word, n) = ('H', 1);
             UPDATE words SET word = 'H' WHERE (word, n) = ('a', 1)",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.distribute(batch => 7)").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    let shards = "SELECT w::text FROM (SELECT * FROM insta0.words UNION ALL SELECT * FROM insta1.words
        UNION ALL SELECT * FROM insta2.words UNION ALL SELECT * FROM insta3.words) w ORDER BY 1";
    assert_eq!(texts(&mut client, shards), texts(&mut client, "SELECT w::text FROM words w ORDER BY 1"));
}

/// A switch that comes between the checks of a call and its first batch is not undone.
#[test]
fn a_call_ends_if_another_session_switches() {
    let cluster = tables("distribute_overtaken");
    let (mut client, mut holder) = (cluster.connect(), cluster.connect());
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("INSERT INTO users (email, bio) SELECT n, n FROM generate_series(1, 50) n").unwrap();
    holder
        .batch_execute("BEGIN; LOCK TABLE insta_ids_internal.distribution IN SHARE ROW EXCLUSIVE MODE")
        .unwrap();
    let waiting = |waits: i64| {
        let mut client = cluster.connect();
        within(Duration::from_secs(20), || {
            count(&mut client, "SELECT count(*) FROM pg_locks WHERE NOT granted") == waits
        });
    };
    thread::scope(|scope| {
        let mut other = cluster.connect();
        let call = scope.spawn(move || refused(&mut other, "CALL insta_ids.distribute()"));
        waiting(1);
        let switch = scope.spawn(|| client.batch_execute("SELECT insta_ids.distribute_switch()"));
        waiting(2);
        holder.batch_execute("COMMIT").unwrap();
        switch.join().unwrap().unwrap();
        let message =
            "another session has switched or ended this distribution, continues it, or has begun another one";
        assert_eq!(call.join().unwrap().message(), message);
    });
    assert_eq!(texts(&mut client, "SELECT DISTINCT step FROM insta_ids.distributions"), ["switched"]);
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    client.batch_execute("INSERT INTO users (email) VALUES ('again')").unwrap();
}
