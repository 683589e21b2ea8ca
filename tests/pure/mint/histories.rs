//! Random histories of sessions, clocks and crashes.

use super::{
    AHEAD_MS, EPOCH, LAYOUT, Paper, START, Server, Step, Still, TOLERANCE_MS, seq, shard, step, time,
};
use insta_ids::id::{Id, Millis};
use insta_ids::mint::{Clock, Mint, SessionOrder, Slot, Stamp};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// A slot against a set of all the milliseconds in which it was used.
    #[test]
    fn a_slot_gives_the_first_free_millisecond(starts in prop::collection::vec(0..60_i64, 1..200)) {
        let cell = AtomicU64::new(0);
        let (shard, seq) = (shard(0), seq(0));
        let mut used = HashSet::new();
        let mut last = 0;
        for start in starts {
            let (server, clock, paper) = (Server::new(), Still::at(START.plus(start)), Paper::default());
            let mint = Mint { max_ahead_ms: 1000, ..server.with(&clock, &paper) };
            let id = mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard, seq).unwrap().id;
            let at = time(id).get() - START.get();
            // 16 milliseconds before the last one are remembered; those before them count as used.
            let expected = (start..1000).find(|ms| !used.contains(ms) && *ms >= last - 16).unwrap();
            prop_assert_eq!(at, expected);
            used.insert(at);
            last = last.max(at);
        }
    }

    /// Whatever the values of the sequence, wherever the clock goes, and whenever the server dies.
    #[test]
    fn promises_hold(steps in prop::collection::vec(step(), 1..300)) {
        let (mut server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
        let mut orders: [SessionOrder; 3] = Default::default();
        let mut last = [Id::from_bits(0); 3];
        let mut minted = HashSet::new();
        let mut newest = EPOCH;
        // How far the steady clock could have brought ids, if it ran on from the greatest reading or lease.
        let mut furthest_us = START.get() * 1000;
        for step in steps {
            match step {
                Step::Pass { us } => clock.pass(us),
                Step::Set { ms } => clock.step(ms),
                Step::Busy(busy) => paper.busy.set(busy),
                Step::Crash => {
                    server = Server::new();
                    orders = Default::default();
                    furthest_us = furthest_us.max(paper.until.get() * 1000 - clock.steady_us.get());
                }
                Step::Mint { session, value } => {
                    furthest_us = furthest_us.max(clock.system_us.get() - clock.steady_us.get());
                    let Ok(id) = server.try_mint(&clock, &paper, &mut orders[session], value) else {
                        prop_assert!(newest.get().max(paper.until.get()) > clock.now().get() + TOLERANCE_MS);
                        continue;
                    };
                    prop_assert!(minted.insert(id), "{id:?} again");
                    prop_assert!(id > last[session], "order in a session");
                    prop_assert!(time(id) >= newest.plus(-AHEAD_MS), "order across sessions");
                    prop_assert!(time(id).get() < paper.until.get(), "beyond the lease");
                    let come = Millis::new((clock.steady_us.get() + furthest_us) / 1000);
                    prop_assert!(time(id) <= come.plus(AHEAD_MS), "faster than time");
                    last[session] = id;
                    newest = newest.max(time(id));
                }
            }
        }
    }
}
