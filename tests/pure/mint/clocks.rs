//! Ids under clocks that stand still, step back and run ahead.

use super::{AHEAD_MS, EPOCH, LAST, LAYOUT, Paper, START, Server, Still, TOLERANCE_MS, seq, shard, time};
use insta_ids::id::{Id, Millis};
use insta_ids::mint::{Clock, Event, Key, LeaseKey, Mint, MintError, Reading, SessionOrder, Slot, Stamp};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

#[test]
fn one_session_uses_every_residue_of_every_millisecond() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    let ids: Vec<Id> = (0..1024 * 1000).map(|value| server.mint(&clock, &paper, &mut order, value)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    // The first 11 milliseconds are the present one and those it may run ahead.
    assert_eq!(time(*ids.last().unwrap()), START.plus(999));
    assert_eq!(clock.waited_ms(), 999 - AHEAD_MS);
}

#[test]
fn a_stopped_wait_leaves_nothing_claimed() {
    struct Stopping(Still);
    impl Clock for Stopping {
        fn now(&self) -> Millis {
            self.0.now()
        }
        fn both(&self) -> Reading {
            self.0.both()
        }
        fn wait(&self, _: i64) {
            std::panic::resume_unwind(Box::new("stopped"));
        }
        fn notify(&self, _: Event) {}
    }
    let (server, paper, mut order) = (Server::new(), Paper::default(), SessionOrder::default());
    let clock = Stopping(Still::at(START));
    let mut minted = 0;
    // The same residue again and again: one id per millisecond.
    while catch_unwind(AssertUnwindSafe(|| server.mint(&clock, &paper, &mut order, 7))).is_ok() {
        minted += 1;
    }
    assert_eq!(minted, AHEAD_MS + 1);
    let slot = server.slot(7);
    for _ in 0..100 {
        assert!(catch_unwind(AssertUnwindSafe(|| server.mint(&clock, &paper, &mut order, 7))).is_err());
    }
    assert_eq!(server.slot(7), slot);
}

#[test]
fn a_clock_outside_the_format_is_an_error() {
    let paper = Paper::default();
    let mut server = Server::new();
    let mint_at = |server: &Server, now: Millis| {
        server.try_mint(&Still::at(now), &paper, &mut SessionOrder::default(), 0)
    };
    assert!(mint_at(&server, EPOCH.plus(-1)).is_err());
    assert!(mint_at(&server, Millis::new(-5)).is_err());
    assert!(mint_at(&server, LAST.plus(1)).is_err());
    assert_eq!((server.slot(0), paper.writes.get()), (0, 0));
    assert!(mint_at(&server, EPOCH).is_ok());
    server = Server::new();
    assert!(mint_at(&server, LAST).is_ok());
    // The last millisecond is used; the next is beyond the format.
    assert!(mint_at(&server, LAST).is_err());
}

#[test]
fn one_reading_beyond_the_format_spoils_nothing() {
    let (server, paper, mut order) = (Server::new(), Paper::default(), SessionOrder::default());
    assert!(server.try_mint(&Still::at(LAST.plus(1)), &paper, &mut order, 0).is_err());
    assert_eq!(time(server.mint(&Still::at(START), &paper, &mut order, 0)), START);
}

#[test]
fn a_session_forgets_what_says_nothing_any_more() {
    let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
    let mut order = SessionOrder::default();
    let seq = seq(0);
    let mint = server.with(&clock, &paper);
    let cell = AtomicU64::new(0);
    let start = mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq).unwrap().until;
    for n in 0..1_000_000_u32 {
        let at = start.plus(i64::from(n / 10));
        order.last(Key::new(1, 1, n, shard(0), LAYOUT), at.plus(-AHEAD_MS)).record(at, seq);
    }
    assert!(order.older() < 1000, "{} are remembered", order.older());
}

/// A session that was held up with its value, while another went round all residues.
#[test]
fn a_session_that_was_overtaken_finds_its_millisecond() {
    let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
    let (mut held_up, mut other) = (SessionOrder::default(), SessionOrder::default());
    let ids: Vec<Id> = (1..3 * 1024).map(|value| server.mint(&clock, &paper, &mut other, value)).collect();
    assert_eq!(time(*ids.last().unwrap()), START.plus(2));
    // Value 0 was the other session's first; its slot was used at START + 1 and + 2 by values 1024 and 2048.
    assert_eq!(time(server.mint(&clock, &paper, &mut held_up, 0)), START);
}

/// A session of another database reads the clock while the time is being raised: ids still go on at full speed.
#[test]
fn the_time_is_raised_under_load() {
    struct Meanwhile<'a>(&'a Still, &'a dyn Fn());
    impl Clock for Meanwhile<'_> {
        fn now(&self) -> Millis {
            self.0.now()
        }
        fn both(&self) -> Reading {
            (self.1)();
            self.0.both()
        }
        fn wait(&self, ms: i64) {
            self.0.wait(ms);
        }
        fn notify(&self, event: Event) {
            self.0.notify(event);
        }
    }
    let (server, clock, paper, others) =
        (Server::new(), Still::at(START), Paper::default(), Paper::default());
    server.mint(&clock, &paper, &mut SessionOrder::default(), 0);
    let other = || {
        clock.pass(1000);
        let mint = Mint { database: LeaseKey::new(2, 3), ..server.with(&clock, &others) };
        let cell = AtomicU64::new(0);
        mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(6), seq(0)).unwrap();
    };
    server.with(&Meanwhile(&clock, &other), &paper).advance(START.plus(300_000)).unwrap();
    let begun = clock.waited_ms();
    let mut order = SessionOrder::default();
    for value in 0..100 * 1024 {
        server.mint(&clock, &paper, &mut order, value);
    }
    assert!(clock.waited_ms() - begun <= 100, "{} ms", clock.waited_ms() - begun);
}

/// While the clock is behind, ids go on at full speed, and no faster than time runs.
#[test]
fn a_clock_that_is_behind_does_not_slow_ids_down() {
    for step_ms in [1, 1500, 300_000, 3_540_000] {
        let (server, clock, paper, mut order) =
            (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
        let mut value = 0;
        let mut mint_ms = |ms: i64| {
            for _ in 0..1024 * ms {
                server.mint(&clock, &paper, &mut order, value);
                value += 1;
            }
            time(server.mint(&clock, &paper, &mut order, value))
        };
        mint_ms(100);
        let before = clock.waited_ms();
        clock.step(-step_ms);
        let reached = mint_ms(1000);
        let took = clock.waited_ms() - before;
        assert!((1000..1003).contains(&took), "{took} ms after a step of {step_ms} ms");
        assert!(reached <= START.plus(clock.waited_ms() + AHEAD_MS + 1), "{reached:?}");
        assert_eq!(*clock.told.borrow(), [Event::SteppedBack { us: step_ms * 1000 }]);
        assert_eq!(server.stats.read().largest_step_back_us, step_ms * 1000);
    }
}

/// Below full speed the clock catches up, and then ids have its time again.
#[test]
fn a_clock_that_was_behind_catches_up() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.mint(&clock, &paper, &mut order, 0);
    clock.step(-5000);
    for value in 1..6000 {
        clock.pass(1000);
        let at = time(server.mint(&clock, &paper, &mut order, value));
        // Until then, a millisecond is added when the sequence has gone round its residues.
        let expected = START.plus(value / 1024).max(clock.now());
        assert_eq!(at, expected);
    }
    assert!(clock.now() > START.plus(900));
}

#[test]
fn a_clock_far_behind_is_refused_until_it_is_right() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    let first = server.mint(&clock, &paper, &mut order, 0);
    clock.step(-2 * TOLERANCE_MS);
    let refusal = MintError::ClockBehind { time: START, clock: clock.now() };
    assert_eq!(server.try_mint(&clock, &paper, &mut order, 1), Err(refusal));
    clock.step(2 * TOLERANCE_MS);
    assert!(server.mint(&clock, &paper, &mut order, 1) > first);
    assert_eq!(*clock.told.borrow(), [Event::SteppedBack { us: 2 * TOLERANCE_MS * 1000 }]);
}

#[test]
fn waits_and_ids_are_counted() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.stats.reset(START);
    for _ in 0..100 {
        server.mint(&clock, &paper, &mut order, 7);
    }
    let mut other = SessionOrder::default();
    server.mint(&clock, &paper, &mut other, 7);
    let statistics = server.stats.read();
    assert_eq!((statistics.minted, statistics.pushed, statistics.since), (101, 1, START));
    assert_eq!(statistics.waited_us, clock.steady_us.get());
    assert_eq!(statistics.waits, 90);
    server.stats.reset(START.plus(1));
    assert_eq!((server.stats.read().minted, server.stats.read().since), (0, START.plus(1)));
}

/// Sessions of high numbers share a counter; a new beginning takes nothing from those that count on.
#[test]
fn each_session_is_counted() {
    let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
    let slot = AtomicU64::new(0);
    let mint = |session, seq| {
        let mint = Mint { session, ..server.with(&clock, &paper) };
        let slot = Slot::new(&slot, LAYOUT);
        mint.claim(LAYOUT, slot, Stamp::default(), shard(5), LAYOUT.seq(seq).unwrap()).unwrap();
    };
    for round in 1..=3 {
        for (n, session) in [0, 1, 255, 256, 1000, usize::MAX].into_iter().enumerate() {
            mint(session, 0);
            clock.pass(1000);
            assert_eq!(server.stats.read().minted, n as u64 + 1, "round {round}, session {session}");
        }
        server.stats.reset(START);
        assert_eq!(server.stats.read().minted, 0);
    }
}
