//! The mint loop under a clock of the test's own, which does what clocks do.

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

use insta_ids::id::{EPOCH, Id, LAST, Millis, Seq, Shard};
use insta_ids::mint::{Clock, Key, Mint, SessionOrder, SharedTime, Slot};
use proptest::prelude::*;

const START: Millis = Millis::new(1_800_000_000_000);
const AHEAD_MS: i64 = 10;

/// A clock that stands still, but for what a wait adds.
struct Still {
    now: Cell<i64>,
    waited: Cell<i64>,
}

impl Still {
    fn at(now: Millis) -> Self {
        Self { now: Cell::new(now.get()), waited: Cell::new(0) }
    }
}

impl Clock for Still {
    fn now(&self) -> Millis {
        Millis::new(self.now.get())
    }

    fn wait(&self, ms: i64) {
        assert!(ms > 0, "a wait of {ms} ms is a busy loop");
        self.now.set(self.now.get() + ms);
        self.waited.set(self.waited.get() + ms);
    }
}

fn mint<'a, C: Clock>(clock: &'a C, time: &'a SharedTime, max_ahead_ms: i64) -> Mint<'a, C> {
    Mint { clock, time, max_ahead_ms }
}

/// The server's state for one sequence and shard.
struct Server {
    time: SharedTime,
    slots: Vec<AtomicU64>,
    key: Key,
}

impl Server {
    fn new() -> Self {
        let key = Key::new(42, 1, 2, Shard::new(5).unwrap());
        Self { time: SharedTime::new(), slots: (0..1024).map(|_| AtomicU64::new(0)).collect(), key }
    }

    fn mint(&self, clock: &impl Clock, order: &mut SessionOrder, value: i64) -> Id {
        let seq = Seq::of(value).unwrap();
        let slot = Slot::new(&self.slots[usize::from(seq.get())]);
        let earliest = order.earliest(self.key, seq);
        let id =
            mint(clock, &self.time, AHEAD_MS).claim(slot, earliest, Shard::new(5).unwrap(), seq).unwrap();
        order.record(self.key, id.at(), seq, id.at().plus(-AHEAD_MS));
        id
    }
}

#[test]
fn one_session_uses_every_residue_of_every_millisecond() {
    let (server, clock, mut order) = (Server::new(), Still::at(START), SessionOrder::default());
    let ids: Vec<Id> = (0..1024 * 1000).map(|value| server.mint(&clock, &mut order, value)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    // The first 11 milliseconds are the present one and those it may run ahead.
    assert_eq!(ids.last().unwrap().at(), START.plus(999));
    assert_eq!(clock.waited.get(), 999 - AHEAD_MS);
}

#[test]
fn a_stopped_wait_leaves_nothing_claimed() {
    struct Stopping;
    impl Clock for Stopping {
        fn now(&self) -> Millis {
            START
        }
        fn wait(&self, _: i64) {
            std::panic::resume_unwind(Box::new("stopped"));
        }
    }
    let (server, mut order) = (Server::new(), SessionOrder::default());
    let mut minted = 0;
    // The same residue again and again: one id per millisecond.
    while catch_unwind(AssertUnwindSafe(|| server.mint(&Stopping, &mut order, 7))).is_ok() {
        minted += 1;
    }
    assert_eq!(minted, AHEAD_MS + 1);
    let slot = server.slots[7].load(std::sync::atomic::Ordering::Relaxed);
    for _ in 0..100 {
        assert!(catch_unwind(AssertUnwindSafe(|| server.mint(&Stopping, &mut order, 7))).is_err());
    }
    assert_eq!(server.slots[7].load(std::sync::atomic::Ordering::Relaxed), slot);
}

#[test]
fn a_clock_outside_the_format_is_an_error() {
    let slot = AtomicU64::new(0);
    let mint_at = |now: Millis| {
        let (shard, seq) = (Shard::new(0).unwrap(), Seq::of(0).unwrap());
        mint(&Still::at(now), &SharedTime::new(), AHEAD_MS).claim(
            Slot::new(&slot),
            Millis::new(0),
            shard,
            seq,
        )
    };
    assert!(mint_at(EPOCH.plus(-1)).is_err());
    assert!(mint_at(LAST.plus(1)).is_err());
    assert_eq!(slot.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert!(mint_at(EPOCH).is_ok());
    assert!(mint_at(LAST).is_ok());
    // The last millisecond is used; the next is beyond the format.
    assert!(mint_at(LAST).is_err());
}

#[test]
fn one_reading_beyond_the_format_spoils_nothing() {
    let (server, mut order) = (Server::new(), SessionOrder::default());
    let seq = Seq::of(0).unwrap();
    let slot = Slot::new(&server.slots[0]);
    let far = Still::at(LAST.plus(1));
    let shard = Shard::new(5).unwrap();
    assert!(mint(&far, &server.time, AHEAD_MS).claim(slot, Millis::new(0), shard, seq).is_err());
    assert_eq!(server.mint(&Still::at(START), &mut order, 0).at(), START);
}

#[test]
fn a_session_forgets_what_says_nothing_any_more() {
    let mut order = SessionOrder::default();
    let seq = Seq::of(0).unwrap();
    for n in 0..1_000_000_u32 {
        let at = START.plus(i64::from(n / 10));
        order.record(Key::new(1, 1, n, Shard::new(0).unwrap()), at, seq, at.plus(-AHEAD_MS));
    }
    assert!(order.len() < 1000, "{} are remembered", order.len());
}

/// A session that was held up with its value, while another went round all residues.
#[test]
fn a_session_that_was_overtaken_finds_its_millisecond() {
    let (server, clock) = (Server::new(), Still::at(START));
    let (mut held_up, mut other) = (SessionOrder::default(), SessionOrder::default());
    let ids: Vec<Id> = (1..3 * 1024).map(|value| server.mint(&clock, &mut other, value)).collect();
    assert_eq!(ids.last().unwrap().at(), START.plus(2));
    // Value 0 was the other session's first; its slot was used at START + 1 and + 2 by values 1024 and 2048.
    assert_eq!(server.mint(&clock, &mut held_up, 0).at(), START);
}

/// What may happen next in a server with three sessions.
#[derive(Clone, Debug)]
enum Step {
    Mint { session: usize, value: i64 },
    Clock { ms: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..3_usize, prop_oneof![0..4_i64, 0..5000_i64]).prop_map(|(session, value)| Step::Mint { session, value }),
        1 => prop_oneof![-50..50_i64, 0..3_i64].prop_map(|ms| Step::Clock { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A slot against a set of all the milliseconds in which it was used.
    #[test]
    fn a_slot_gives_the_first_free_millisecond(starts in prop::collection::vec(0..60_i64, 1..200)) {
        let cell = AtomicU64::new(0);
        let (shard, seq) = (Shard::new(0).unwrap(), Seq::of(0).unwrap());
        let mut used = HashSet::new();
        let mut last = 0;
        for start in starts {
            let clock = Still::at(START.plus(start));
            let id = mint(&clock, &SharedTime::new(), 1000).claim(Slot::new(&cell), Millis::new(0), shard, seq).unwrap();
            let at = id.at().get() - START.get();
            // 16 milliseconds before the last one are remembered; those before them count as used.
            let expected = (start..1000).find(|ms| !used.contains(ms) && *ms >= last - 16).unwrap();
            prop_assert_eq!(at, expected);
            used.insert(at);
            last = last.max(at);
        }
    }

    /// Whatever the values of the sequence, and wherever the clock goes.
    #[test]
    fn promises_hold(steps in prop::collection::vec(step(), 1..300)) {
        let (server, clock) = (Server::new(), Still::at(START));
        let mut orders: [SessionOrder; 3] = Default::default();
        let mut last = [Id::from_bits(0); 3];
        let mut minted = HashSet::new();
        let mut greatest_reading = START;
        let mut newest = EPOCH;
        for step in steps {
            match step {
                Step::Clock { ms } => clock.now.set(clock.now.get() + ms),
                Step::Mint { session, value } => {
                    greatest_reading = greatest_reading.max(clock.now());
                    let id = server.mint(&clock, &mut orders[session], value);
                    greatest_reading = greatest_reading.max(clock.now());
                    prop_assert!(minted.insert(id), "{id:?} again");
                    prop_assert!(id > last[session], "order in a session");
                    prop_assert!(id.at() >= newest.plus(-AHEAD_MS), "order across sessions");
                    prop_assert!(id.at() <= greatest_reading.plus(AHEAD_MS), "ahead");
                    last[session] = id;
                    newest = newest.max(id.at());
                }
            }
        }
    }
}
