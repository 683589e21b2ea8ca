//! The switch is reached although clients write much, or in transactions that last and overlap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use postgres::Client;
use support::{count, refused};

use super::{REGISTERED, Rows, tables};

/// Makes the shards take rows slowly, so that the speed of the machine does not matter.
const SLOW: &str = "SELECT insta_ids.add_migration('0002', $$
        CREATE FUNCTION is_taken(id bigint) RETURNS boolean LANGUAGE plpgsql
            AS 'BEGIN IF id % 8 = 0 THEN PERFORM pg_catalog.pg_sleep(0.001); END IF; RETURN true; END';
        ALTER TABLE photos ADD CHECK (is_taken(id));
    $$);
    INSERT INTO photos (title, user_id) SELECT 'photo ' || n, 1 + n % 500 FROM generate_series(1, 6000) n;";

/// Changes rows of photos until `stop` is set, fewer than the shards can take. When all is copied, it once changes many.
fn write(mut client: Client, stop: &AtomicBool) {
    let copied = "SELECT count(*) FROM insta_ids.distributions WHERE step = 'copied'";
    let change = "UPDATE photos SET title = 'at ' || clock_timestamp() WHERE id BETWEEN $1 AND $2";
    let mut has_changed_many = false;
    let mut first = 0_i64;
    while !stop.load(Ordering::Relaxed) {
        first = (first + 997) % 9000;
        client.execute(change, &[&first, &(first + 99)]).unwrap();
        if !has_changed_many && count(&mut client, copied) == 3 {
            client.execute(change, &[&1_i64, &10_000_i64]).unwrap();
            has_changed_many = true;
        }
        thread::sleep(Duration::from_millis(70));
    }
    assert!(has_changed_many);
}

#[test]
fn changes_are_brought_in_rounds_until_few_wait() {
    let cluster = tables("distribute_rounds");
    let mut client = cluster.connect();
    client.batch_execute(SLOW).unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    let stop = AtomicBool::new(false);
    let waiting = thread::scope(|scope| {
        scope.spawn(|| write(cluster.connect(), &stop));
        let outcome = client.batch_execute("CALL insta_ids.distribute()");
        let waiting = count(&mut client, "SELECT insta_ids_internal.changes_waiting()");
        stop.store(true, Ordering::Relaxed);
        outcome.map(|()| waiting)
    })
    .unwrap();
    assert!(waiting < 2000, "{waiting} changes wait");
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
}

/// How long a client holds the table.
const HOLD: Duration = Duration::from_millis(1500);

/// Holds a lock as a writer does, again and again. Each time it begins when the other one has had half of its time.
fn hold(mut client: Client, begin: &Receiver<()>, next: &Sender<()>, stop: &AtomicBool) {
    while begin.recv().is_ok() && !stop.load(Ordering::Relaxed) {
        client.batch_execute("BEGIN; LOCK TABLE users IN ROW EXCLUSIVE MODE").unwrap();
        thread::sleep(HOLD / 2);
        // The other one may have ended.
        let _ = next.send(());
        thread::sleep(HOLD / 2);
        client.batch_execute("COMMIT").unwrap();
    }
}

#[test]
fn an_attempt_can_outlast_transactions_that_overlap() {
    let cluster = tables("distribute_attempts");
    let mut client = cluster.connect();
    client.batch_execute("SET deadlock_timeout = '10s'").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    let out_of_range = refused(&mut client, "SELECT insta_ids.distribute_switch(attempt => '-1 s')");
    assert_eq!(out_of_range.message(), "attempt of -00:00:01 is out of range");
    let stop = AtomicBool::new(false);
    let ((one, one_begins), (other, other_begins)) = (channel(), channel());
    one.send(()).unwrap();
    thread::scope(|scope| {
        let (first, second) = (cluster.connect(), cluster.connect());
        let (stop, one) = (&stop, one);
        scope.spawn(move || hold(first, &one_begins, &other, stop));
        scope.spawn(move || hold(second, &other_begins, &one, stop));
        thread::sleep(HOLD / 3);
        let switch = |attempt: &str, timeout: &str| {
            format!("SELECT insta_ids.distribute_switch(attempt => '{attempt}', lock_timeout => '{timeout}')")
        };
        let short = client.batch_execute(&switch("100ms", "4s"));
        let long = client.batch_execute(&switch("2s", "20s"));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(short.unwrap_err().code().unwrap().code(), "55P03");
        long.unwrap();
    });
    assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
}
