//! Promise: after `reset_clock()` ids can come again that were minted before it, and no others.

use std::thread;

use support::{Cluster, disorders, duplicates, ids};

/// Instagram's, and layouts of long and short units, of few residues, and with the sequence above the shard.
const LAYOUTS: [(&str, usize); 6] = [
    ("instagram", 20_000),
    ("js53", 2_000),
    ("time:32 shard:13 seq:8 epoch:0 unit:1s", 350),
    ("time:32 seq:8 shard:13 epoch:0 unit:1s", 350),
    ("time:33 shard:13 seq:8 epoch:0 unit:512ms", 350),
    ("time:41 shard:6 seq:8 epoch:0 unit:700ms", 350),
];

/// Mints in a time that is given up, and then in four sessions at once.
fn mint_after_a_reset(cluster: &Cluster) {
    let mut operator = cluster.connect();
    for (n, (layout, count)) in LAYOUTS.into_iter().enumerate() {
        let query = |count: usize| format!("SELECT next_ids(5, 's{n}', {count}, '{layout}')");
        operator
            .batch_execute(&format!("CREATE SEQUENCE s{n}; SELECT insta_ids.advance_clock(now() + '6 s')"))
            .unwrap();
        let given_up = ids(&mut operator, &query(256));
        operator.batch_execute("SELECT insta_ids.reset_clock()").unwrap();
        let sessions: Vec<Vec<i64>> = thread::scope(|scope| {
            let sessions: Vec<_> = (0..4)
                .map(|_| {
                    let mut client = cluster.connect();
                    scope.spawn(move || ids(&mut client, &query(count)))
                })
                .collect();
            sessions.into_iter().map(|session| session.join().unwrap()).collect()
        });
        let duplicates = duplicates(&sessions);
        println!("{layout}: {} ids, {duplicates} duplicates", 4 * count);
        assert_eq!(duplicates, 0, "{layout}");
        for session in &sessions {
            assert_eq!((session.len(), disorders(session)), (count, 0), "{layout}");
        }
        assert!(sessions.iter().flatten().min() < given_up.iter().min(), "{layout}: nothing was given up");
    }
}

/// Ids that follow a reset of the clock are new.
#[test]
fn no_id_comes_again_after_a_reset_of_the_clock() {
    mint_after_a_reset(&Cluster::start("resets"));
}

/// The same, with the furthest lead that can be set.
#[test]
fn no_id_comes_again_after_a_reset_with_the_furthest_lead() {
    let cluster = Cluster::with("far_resets", &["insta_ids.max_ahead = 1000"]);
    cluster.connect().batch_execute("CREATE EXTENSION insta_ids").unwrap();
    mint_after_a_reset(&cluster);
}
