//! Promise: one sequence and shard never yield the same id twice, whatever the sequence does.

use std::thread;

use support::{Cluster, disorders, duplicates, ids};

/// Mints in 8 sessions at once, each running its query `rounds` times while the first also runs `meanwhile`
/// in between, and checks what they were given.
pub(crate) fn mint(
    cluster: &Cluster,
    rounds: usize,
    query: impl Fn(usize) -> String + Sync,
    meanwhile: &str,
) {
    let sessions: Vec<Vec<i64>> = thread::scope(|scope| {
        let query = &query;
        let sessions: Vec<_> = (0..8)
            .map(|session| {
                scope.spawn(move || {
                    let mut client = cluster.connect();
                    let mut minted = Vec::new();
                    for _ in 0..rounds {
                        minted.extend(ids(&mut client, &query(session)));
                        if session == 0 {
                            client.batch_execute(meanwhile).unwrap();
                        }
                    }
                    minted
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    let minted: usize = sessions.iter().map(Vec::len).sum();
    let duplicates = duplicates(&sessions);
    println!("{minted} ids, {duplicates} duplicates");
    assert_eq!(duplicates, 0, "of {minted} ids");
    for session in &sessions {
        assert_eq!(disorders(session), 0, "in a session of {}", session.len());
    }
}

fn next_ids(shard: usize, count: u32) -> String {
    format!("SELECT next_id({shard}, 's') FROM generate_series(1, {count})")
}

/// Sessions mint from one sequence at once.
#[test]
fn sessions_on_one_sequence_share_no_id() {
    let cluster = Cluster::start("plain");
    cluster.connect().batch_execute("CREATE SEQUENCE s").unwrap();
    mint(&cluster, 1, |_| next_ids(5, 500_000), "");
}

/// The same, with a CACHE.
#[test]
fn sessions_with_cached_values_share_no_id() {
    let cluster = Cluster::start("cached");
    cluster.connect().batch_execute("CREATE SEQUENCE s CACHE 50").unwrap();
    mint(&cluster, 1, |_| next_ids(5, 500_000), "");
}

/// Two shards mint from one sequence.
#[test]
fn two_shards_on_one_sequence_share_no_id() {
    let cluster = Cluster::start("shards");
    cluster.connect().batch_execute("CREATE SEQUENCE s").unwrap();
    mint(&cluster, 1, |session| next_ids(session % 2, 500_000), "");
}

/// Sessions ask `next_ids` for 100,000 ids at once.
#[test]
fn next_ids_shares_no_id() {
    let cluster = Cluster::start("many");
    cluster.connect().batch_execute("CREATE SEQUENCE s").unwrap();
    mint(&cluster, 1, |_| "SELECT next_ids(5, 's', 100000)".into(), "");
}

/// `setval` and RESTART bring values back, and no ids.
#[test]
fn a_sequence_that_is_set_back_repeats_no_id() {
    let cluster = Cluster::start("setval");
    cluster
        .connect()
        .batch_execute(
            "CREATE SEQUENCE s;
             CREATE TABLE t (id bigint DEFAULT next_id(5, 's'));
             ALTER SEQUENCE s OWNED BY t.id",
        )
        .unwrap();
    mint(&cluster, 50, |_| next_ids(5, 10_000), "SELECT setval('s', 1); TRUNCATE t RESTART IDENTITY");
}

/// Values come again at once, and ids do not.
#[test]
fn a_sequence_with_a_short_cycle_repeats_no_id() {
    let cluster = Cluster::start("cycle");
    cluster.connect().batch_execute("CREATE SEQUENCE s MAXVALUE 100 CYCLE").unwrap();
    mint(&cluster, 1, |_| next_ids(5, 20_000), "");
}

/// Every value has the same residue, so there is one id per millisecond.
#[test]
fn a_sequence_of_one_residue_gives_an_id_per_millisecond() {
    let cluster = Cluster::start("residue");
    cluster.connect().batch_execute("CREATE SEQUENCE s INCREMENT 1024").unwrap();
    mint(&cluster, 1, |_| next_ids(5, 2_000), "");
}

/// Each layout by itself: also where it has few ids in a unit of time, or more residues than Instagram's.
#[test]
fn no_id_comes_twice_in_other_layouts() {
    let cluster = Cluster::start("layouts");
    for (layout, count) in [
        ("twitter", 250_000),
        ("sonyflake", 10_000),
        ("js53", 20_000),
        ("mastodon", 250_000),
        ("time:32 seq:14 shard:9 epoch:0 unit:1s", 5_000),
        ("time:41 epoch:0", 200),
    ] {
        cluster.connect().batch_execute("DROP SEQUENCE IF EXISTS s; CREATE SEQUENCE s CACHE 8").unwrap();
        let query = format!("SELECT next_id(0, 's', '{layout}') FROM generate_series(1, {count})");
        mint(&cluster, 2, |_| query.clone(), "SELECT setval('s', 1)");
    }
}

/// All at once, on one sequence: ids of one layout are unique, whatever is minted in the others.
#[test]
fn layouts_on_one_sequence_do_not_disturb_each_other() {
    const LAYOUTS: [&str; 4] = [
        "instagram",
        "time:41 shard:13 seq:10 epoch:2014-09-01",
        "sonyflake",
        "time:32 seq:20 epoch:0 unit:1s",
    ];
    let cluster = Cluster::start("beside");
    cluster.connect().batch_execute("CREATE SEQUENCE s").unwrap();
    let sessions: Vec<Vec<i64>> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..8)
            .map(|session| {
                let mut client = cluster.connect();
                let layout = LAYOUTS[session % LAYOUTS.len()];
                let query = format!("SELECT next_id(0, 's', '{layout}') FROM generate_series(1, 50000)");
                scope.spawn(move || ids(&mut client, &query))
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    for first in 0..LAYOUTS.len() {
        let of_one = [&sessions[first], &sessions[first + LAYOUTS.len()]];
        assert_eq!(duplicates(of_one), 0, "{}", LAYOUTS[first]);
        assert!(of_one.iter().all(|ids| disorders(ids) == 0), "{}", LAYOUTS[first]);
    }
}

/// Temporary sequences are reached by their OID alone, which a later one may get again.
#[test]
fn temporary_sequences_with_the_same_oid_share_no_id() {
    let cluster = Cluster::start("temporary");
    let mut client = cluster.connect();
    client.batch_execute("CREATE TEMPORARY SEQUENCE s").unwrap();
    let minted = ids(&mut client, &next_ids(5, 10_000));
    assert_eq!((duplicates([&minted]), disorders(&minted)), (0, 0));
}

/// A session that mints from many sequences and shards keeps the order of each.
#[test]
fn a_session_keeps_the_order_of_each_of_many_sequences() {
    let cluster = Cluster::start("sequences");
    let mut client = cluster.connect();
    for n in 0..50 {
        client.batch_execute(&format!("CREATE SEQUENCE s{n} CACHE 10")).unwrap();
    }
    let minted = ids(
        &mut client,
        "SELECT next_id(shard, ('s' || n)::regclass)
         FROM generate_series(1, 100), generate_series(0, 49) n, generate_series(0, 19) shard",
    );
    for sequence in 0..50 {
        for shard in 0..20 {
            let one: Vec<i64> = minted.iter().copied().skip(sequence * 20 + shard).step_by(1000).collect();
            assert_eq!(one.len(), 100);
            assert_eq!(disorders(&one), 0);
        }
    }
}
