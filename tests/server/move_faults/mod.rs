//! Promise: a move that goes wrong says what happened, and one statement goes on with it or ends it.

mod errors;
mod failover;
mod holding;
mod meanwhile;
mod opening;
mod pauses;

use postgres::Client;
use std::thread;
use std::time::Duration;
use support::pair::Pair;
use support::{Cluster, count, within};

pub(crate) const CALL: &str = "CALL insta_ids.move_shards(2, 2, 'a')";
pub(crate) const ABORT: &str = "CALL insta_ids.move_abort(2, 2, 'a')";
pub(crate) const INSERT: &str = "INSERT INTO insta2.photos DEFAULT VALUES";

/// Waits until sessions of a server wait for so many locks.
pub(crate) fn await_lock(cluster: &Cluster, waiting: i64) {
    let mut client = cluster.connect();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    within(Duration::from_secs(20), || count(&mut client, waits) >= waiting);
}

/// Holds the fence of shard 2 back, so that the call has done all before it, until `then` has been called.
pub(crate) fn before_the_fence<T: Send>(
    pair: &Pair,
    call: impl FnOnce() -> T + Send,
    then: impl FnOnce(&mut Client),
) -> T {
    let mut holder = pair.a.connect();
    holder.batch_execute("BEGIN; LOCK TABLE insta2.photos IN ROW EXCLUSIVE MODE").unwrap();
    thread::scope(|scope| {
        let calling = scope.spawn(call);
        await_lock(&pair.a, 1);
        then(&mut holder);
        calling.join().unwrap()
    })
}

/// That nothing is left of a move, on either server.
pub(crate) fn check_ended(pair: &Pair) {
    for cluster in [&pair.a, &pair.b] {
        let mut client = cluster.connect();
        for left in ["insta_ids.moves", "pg_replication_slots", "pg_publication", "pg_subscription"] {
            assert_eq!(count(&mut client, &format!("SELECT count(*) FROM {left}")), 0, "{left}");
        }
    }
}
