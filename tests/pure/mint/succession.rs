//! A sequence that is created again, under clocks that stand still.

use super::{AHEAD_MS, LAYOUT, Paper, START, Server, Still, shard};
use insta_ids::id::{Id, Layout};
use insta_ids::mint::{Slot, Stamp, Succession};
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

/// The first ids of a new sequence: each has a slot of its own, in which nothing was used.
fn mint(server: &Server, clock: &Still, succession: &Succession, layout: Layout, sequence: u32) -> Vec<Id> {
    let entry = succession.of(1, sequence);
    (0..20)
        .map(|value| {
            let cell = AtomicU64::new(0);
            let seq = layout.seq(value).unwrap();
            let (slot, paper) = (Slot::new(&cell, layout), Paper::default());
            let minted =
                server.with(clock, &paper).claim(layout, slot, entry.earliest(), shard(5), seq).unwrap();
            entry.record(minted.until);
            minted.id
        })
        .collect()
}

#[test]
fn a_sequence_comes_after_those_that_were_dropped() {
    for layout in ["instagram", "sonyflake", "time:34 shard:16 seq:8 epoch:0 unit:1s"] {
        let layout = Layout::parse(layout.as_bytes(), START).unwrap();
        let (server, clock, succession) = (Server::new(), Still::at(START), Succession::default());
        let unit = i64::from(layout.fields().unit_ms);
        let mut minted = HashSet::new();
        for sequence in 1..=30 {
            succession.created(succession.of(1, sequence));
            for id in mint(&server, &clock, &succession, layout, sequence) {
                assert!(minted.insert(id), "{id:?} again");
            }
            assert!(server.time.stamp().at() <= START.plus(30 * unit), "the time runs ahead");
            // Sequences of which nothing was minted change nothing, and those that were there before lose no time.
            succession.dropped(succession.of(1, 1000 + sequence));
            assert_eq!(succession.of(1, 2000 + sequence).earliest(), Stamp::default());
            succession.dropped(succession.of(1, sequence));
        }
        assert!(clock.waited_ms() <= 30 * unit, "{} ms", clock.waited_ms());
    }
}

/// One that follows another comes after what that has given or comes after itself.
#[test]
fn a_copy_comes_after_its_source() {
    let (server, clock, succession) = (Server::new(), Still::at(START), Succession::default());
    let [first, second, third] = [1, 2, 3].map(|sequence| succession.of(1, sequence));
    let minted = mint(&server, &clock, &succession, LAYOUT, 1);
    second.succeed(first);
    third.succeed(second);
    let copied = mint(&server, &clock, &succession, LAYOUT, 3);
    assert!(minted.last() < copied.first());
    assert_eq!((first.earliest(), clock.waited_ms()), (Stamp::default(), 0));
}

/// After a reset, what came before does not count.
#[test]
fn a_reset_ends_the_succession() {
    let (server, clock, succession) = (Server::new(), Still::at(START), Succession::default());
    mint(&server, &clock, &succession, LAYOUT, 1);
    clock.step(-100 * AHEAD_MS);
    server.with(&clock, &Paper::default()).reset().unwrap();
    succession.dropped(succession.of(1, 1));
    succession.created(succession.of(1, 2));
    let minted = mint(&server, &clock, &succession, LAYOUT, 2);
    assert_eq!(LAYOUT.time_of(minted[0]), START.plus(-100 * AHEAD_MS));
}
