//! Promise: a shard is written to on one server at a time, and takes its ids with it.

mod background;
mod driving;
mod ending;
mod fencing;
mod outside;
mod planting;
mod refusing;
mod snapshots;
mod verifying;

use postgres::error::SqlState;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::pair::{Pair, shard_map};
use support::{count, duplicates, ids, refused, texts};

pub(crate) const FENCED: &SqlState = &SqlState::READ_ONLY_SQL_TRANSACTION;

/// Writers of a shard: each goes to the other node when the one it is on refuses, and returns the ids of the rows that
/// were committed, with the longest time between two.
pub(crate) fn written(pair: &Pair, sessions: usize, during: impl FnOnce()) -> (Vec<Vec<i64>>, Duration) {
    let stop = AtomicBool::new(false);
    let longest = Mutex::new(Duration::ZERO);
    let all = thread::scope(|scope| {
        let writers: Vec<_> = (0..sessions)
            .map(|_| {
                scope.spawn(|| {
                    let mut nodes = [&pair.a, &pair.b].into_iter().cycle();
                    let mut client = nodes.next().unwrap().connect();
                    let mut committed = Vec::new();
                    let mut last = Instant::now();
                    while !stop.load(Ordering::Relaxed) {
                        let insert =
                            "INSERT INTO insta2.photos SELECT FROM generate_series(1, 10) RETURNING id";
                        match client.query(insert, &[]) {
                            Ok(rows) => {
                                committed.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                                let mut longest = longest.lock().unwrap();
                                *longest = (*longest).max(last.elapsed());
                                last = Instant::now();
                                // At full speed they would outrun what one session applies on the other node.
                                thread::sleep(Duration::from_millis(5));
                            }
                            Err(error) => {
                                let moved = [FENCED, &SqlState::UNDEFINED_TABLE];
                                assert!(error.code().is_some_and(|code| moved.contains(&code)), "{error:?}");
                                thread::sleep(Duration::from_millis(2));
                                client = nodes.next().unwrap().connect();
                            }
                        }
                    }
                    committed
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    (all, longest.into_inner().unwrap())
}

/// Nothing lost, nothing twice, and nothing written but where the shards are now.
pub(crate) fn check(pair: &Pair, committed: &[Vec<i64>]) {
    let there = ids(&mut pair.b.connect(), "SELECT id FROM insta2.photos ORDER BY id");
    assert_eq!(duplicates(committed), 0);
    let lost = committed.iter().flatten().filter(|id| there.binary_search(id).is_err()).count();
    assert_eq!(lost, 0, "of {}", there.len());
    let mut a = pair.a.connect();
    for write in ["INSERT INTO insta2__moved.photos DEFAULT VALUES", "TRUNCATE insta2__moved.photos CASCADE"]
    {
        assert_eq!(refused(&mut a, write).code(), FENCED);
    }
    assert_eq!(refused(&mut a, "SELECT next_id(2, 'insta2__moved.table_id_seq')").code(), FENCED);
    for client in [&mut a, &mut pair.b.connect()] {
        assert_eq!(count(client, "SELECT count(*) FROM insta_ids.moves"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_replication_slots"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_publication"), 0);
        assert_eq!(count(client, "SELECT count(*) FROM pg_subscription"), 0);
        assert_eq!(
            texts(client, "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check()"),
            [""; 0]
        );
    }
    let [map, other] = [&pair.a, &pair.b].map(|node| shard_map(&mut node.connect()));
    assert_eq!(map, other);
}
