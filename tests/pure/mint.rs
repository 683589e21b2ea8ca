//! The mint loop under a clock of the test's own, which does what clocks do.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use insta_ids::id::{Id, Layout, Millis, Seq, Shard};
use insta_ids::mint::{
    Clock, Event, Key, LEASE_MS, LeaseKey, LeaseStore, Leases, Lock, Mint, MintError, Reading, SessionOrder,
    SharedTime, Slot, Stamp, Stats,
};
use proptest::prelude::*;

pub(crate) const START: Millis = Millis::new(1_800_000_000_000);
const LAYOUT: Layout = Layout::INSTAGRAM;
const EPOCH: Millis = LAYOUT.times().first;
const LAST: Millis = LAYOUT.times().last;
pub(crate) const AHEAD_MS: i64 = 10;
pub(crate) const TOLERANCE_MS: i64 = 3_600_000;

fn shard(number: i32) -> Shard {
    LAYOUT.shard(number).unwrap()
}

fn seq(value: i64) -> Seq {
    LAYOUT.seq(value).unwrap()
}

fn time(id: Id) -> Millis {
    LAYOUT.time_of(id)
}

/// Clocks that stand still, but for what a wait adds.
#[derive(Default)]
pub(crate) struct Still {
    pub(crate) system_us: Cell<i64>,
    pub(crate) steady_us: Cell<i64>,
    told: RefCell<Vec<Event>>,
}

impl Still {
    pub(crate) fn at(now: Millis) -> Self {
        Self { system_us: Cell::new(now.get() * 1000), ..Self::default() }
    }

    /// Time passes.
    pub(crate) fn pass(&self, us: i64) {
        self.system_us.set(self.system_us.get() + us);
        self.steady_us.set(self.steady_us.get() + us);
    }

    /// The system clock is set.
    pub(crate) fn step(&self, ms: i64) {
        self.system_us.set(self.system_us.get() + ms * 1000);
    }

    fn waited_ms(&self) -> i64 {
        self.steady_us.get() / 1000
    }
}

impl Clock for Still {
    fn now(&self) -> Millis {
        Millis::new(self.system_us.get().div_euclid(1000))
    }

    fn both(&self) -> Reading {
        Reading { system_us: self.system_us.get(), steady_us: self.steady_us.get() }
    }

    fn wait(&self, ms: i64) {
        assert!(ms > 0, "a wait of {ms} ms is a busy loop");
        self.pass(ms * 1000);
    }

    fn notify(&self, event: Event) {
        self.told.borrow_mut().push(event);
    }
}

/// What is written down, and how often it was.
#[derive(Default)]
pub(crate) struct Paper {
    pub(crate) until: Cell<i64>,
    writes: Cell<u32>,
    held: Cell<bool>,
    /// Another session is writing, and takes its time.
    pub(crate) busy: Cell<bool>,
    /// Nobody may need the lease so much as to wait for it.
    pub(crate) must_not_wait: Cell<bool>,
}

impl LeaseStore for Paper {
    fn lock(&self, wait: bool) -> Lock {
        assert!(!(wait && self.must_not_wait.get()), "the lease had run out");
        if self.busy.get() && !wait {
            return Lock::Busy;
        }
        assert!(!self.held.replace(true), "locked twice");
        Lock::Held
    }

    fn unlock(&self) {
        assert!(self.held.replace(false), "unlocked without a lock");
    }

    fn read(&self) -> Millis {
        assert!(self.held.get(), "read without the lock");
        Millis::new(self.until.get())
    }

    fn write(&self, until: Millis) {
        assert!(self.held.get(), "written without the lock");
        self.until.set(until.get());
        self.writes.set(self.writes.get() + 1);
        assert!(self.writes.get() < 100_000, "written again and again");
    }
}

/// A server's memory, for one sequence and shard.
struct Server {
    time: SharedTime,
    leases: Leases,
    stats: Stats,
    slots: Vec<AtomicU64>,
    key: Key,
}

impl Server {
    fn new() -> Self {
        Self {
            time: SharedTime::default(),
            leases: Leases::default(),
            stats: Stats::default(),
            slots: (0..1024).map(|_| AtomicU64::new(0)).collect(),
            key: Key::new(42, 1, 2, shard(5), LAYOUT),
        }
    }

    fn with<'a, C: Clock>(&'a self, clock: &'a C, store: &'a Paper) -> Mint<'a, C, Paper> {
        Mint {
            clock,
            store,
            time: &self.time,
            leases: &self.leases,
            stats: &self.stats,
            database: LeaseKey::new(1, 3),
            session: 0,
            max_ahead_ms: AHEAD_MS,
            tolerance_ms: TOLERANCE_MS,
        }
    }

    fn try_mint(
        &self,
        clock: &impl Clock,
        store: &Paper,
        order: &mut SessionOrder,
        value: i64,
    ) -> Result<Id, MintError> {
        let seq = seq(value);
        let slot = Slot::new(&self.slots[seq.get() as usize], LAYOUT);
        let last = order.last(self.key, self.time.stamp());
        let minted = self.with(clock, store).claim(LAYOUT, slot, last.earliest(seq), shard(5), seq)?;
        last.record(minted.until, seq);
        Ok(minted.id)
    }

    fn mint(&self, clock: &impl Clock, store: &Paper, order: &mut SessionOrder, value: i64) -> Id {
        self.try_mint(clock, store, order, value).unwrap()
    }

    fn slot(&self, residue: usize) -> u64 {
        self.slots[residue].load(Ordering::Relaxed)
    }
}

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
    assert!(order.len() < 1000, "{} are remembered", order.len());
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

/// With the furthest lead that can be set, ids come as near to the end of a lease as they can.
#[test]
fn the_furthest_lead_beside_a_lease() {
    for step_ms in [0, 300_000] {
        let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
        let cell = AtomicU64::new(0);
        let seq = seq(0);
        server.mint(&clock, &paper, &mut SessionOrder::default(), 0);
        clock.step(-step_ms);
        for n in 0..10_000 {
            let mint = Mint { max_ahead_ms: 1000, ..server.with(&clock, &paper) };
            let minted =
                mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(5), seq).unwrap();
            assert_eq!(minted.until.at(), START.plus(n));
        }
        // Always near its end, it is renewed whenever somebody may.
        assert!(paper.writes.get() <= 101, "{} writes in 10 s", paper.writes.get());
    }
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

/// About once a second while ids are minted, and not at all while none are.
#[test]
fn a_lease_is_written_once_a_second() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    for value in 0..10_000 {
        clock.pass(1000);
        server.mint(&clock, &paper, &mut order, value);
        assert!(paper.until.get() > clock.now().get(), "an id beyond the lease");
    }
    assert!((9..=11).contains(&paper.writes.get()), "{} writes in 10 s", paper.writes.get());
    assert!(paper.until.get() <= clock.now().get() + LEASE_MS);
    clock.pass(3_600_000_000);
    server.mint(&clock, &paper, &mut order, 1);
    server.mint(&clock, &paper, &mut order, 2);
    assert!(paper.writes.get() <= 12);
}

/// Nobody renews early, and the server dies when the lease has run out to its last millisecond.
#[test]
fn the_end_of_a_lease_is_not_used() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.mint(&clock, &paper, &mut order, 0);
    paper.busy.set(true);
    clock.pass((LEASE_MS - 1) * 1000);
    let last = server.mint(&clock, &paper, &mut order, 7);
    assert_eq!((time(last).get(), paper.writes.get()), (paper.until.get() - 1, 1));
    let (dead, behind) = (Paper::default(), Still::at(START.plus(-60_000)));
    dead.until.set(paper.until.get());
    assert!(Server::new().mint(&behind, &dead, &mut SessionOrder::default(), 7) > last);
    clock.pass(1000);
    server.mint(&clock, &paper, &mut order, 8);
    assert_eq!(paper.writes.get(), 2);
}

/// After a crash only what was written down is known.
#[test]
fn a_new_server_goes_on_from_the_lease() {
    for behind_ms in [0, 500, 300_000, 3_540_000] {
        let (paper, mut order) = (Paper::default(), SessionOrder::default());
        let clock = Still::at(START);
        let last = Server::new().mint(&clock, &paper, &mut order, 7);
        let restarted = Still::at(START.plus(-behind_ms));
        let server = Server::new();
        let next = server.mint(&restarted, &paper, &mut SessionOrder::default(), 7);
        assert!(next > last);
        assert_eq!(time(next), START.plus(LEASE_MS));
        assert_eq!(restarted.told.borrow().len(), usize::from(behind_ms > 0));
    }
}

#[test]
fn a_lease_far_ahead_is_refused_and_spoils_nothing() {
    let (server, clock) = (Server::new(), Still::at(START));
    let (far, near) = (Paper::default(), Paper::default());
    far.until.set(START.get() + 10 * TOLERANCE_MS);
    let refused = server.try_mint(&clock, &far, &mut SessionOrder::default(), 0);
    assert_eq!(refused, Err(MintError::LeaseAhead { until: Millis::new(far.until.get()), clock: START }));
    assert_eq!(far.writes.get(), 0);
    assert_eq!(time(server.mint(&clock, &near, &mut SessionOrder::default(), 0)), START);
}

/// A dump that is restored under sessions that mint: it raises what is written.
#[test]
fn a_lease_that_was_raised_is_adopted() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.mint(&clock, &paper, &mut order, 0);
    paper.until.set(START.get() + 60_000);
    clock.pass(LEASE_MS * 1000);
    assert_eq!(time(server.mint(&clock, &paper, &mut order, 1)), START.plus(60_000));
    assert!(paper.until.get() > START.get() + 60_000);
}

#[test]
fn a_clock_that_had_run_ahead_is_reset() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    clock.step(YEAR_MS);
    // Some residues are used a year ahead, the others never.
    for value in 0..500 {
        server.mint(&clock, &paper, &mut order, value);
    }
    clock.step(-YEAR_MS);
    assert!(server.try_mint(&clock, &paper, &mut order, 500).is_err());
    assert_eq!(server.with(&clock, &paper).reset(), Ok(START.plus(YEAR_MS + LEASE_MS)));
    assert_eq!(paper.until.get(), START.get() + LEASE_MS);
    let ids: Vec<Id> = (0..3000).map(|value| server.mint(&clock, &paper, &mut order, value)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(time(*ids.last().unwrap()), START.plus(2));
    // Another session that had minted then, and its order, are of a time that is no more.
    assert_eq!(time(server.mint(&clock, &paper, &mut SessionOrder::default(), 0)), START.plus(3));
    assert_eq!(
        server.with(&clock, &paper).reset().map(|used| used <= clock.now()),
        Ok(true),
        "nothing is ahead"
    );
}

/// One call is enough for all databases that had leased in the time that was given up, near or far; one that
/// holds a lease of another server refuses, or is adopted, as before.
#[test]
fn a_reset_is_for_all_databases() {
    for ahead_ms in [1_800_000, 365 * 86_400_000] {
        let (server, clock) = (Server::new(), Still::at(START));
        let papers = [Paper::default(), Paper::default(), Paper::default()];
        papers[2].until.set(START.get() + 600_000);
        let mint = |n: usize| {
            let mint = Mint {
                database: LeaseKey::new(1 + u32::try_from(n).unwrap(), 3),
                ..server.with(&clock, &papers[n])
            };
            let cell = AtomicU64::new(0);
            mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0))
                .map(|minted| minted.until.at())
        };
        clock.step(ahead_ms);
        assert_eq!((mint(0), mint(1)), (Ok(clock.now()), Ok(clock.now())));
        clock.step(-ahead_ms);
        server.with(&clock, &papers[0]).reset().unwrap();
        for n in [1, 0, 1] {
            assert_eq!(mint(n), Ok(START));
            assert_eq!(papers[n].until.get(), START.get() + LEASE_MS);
        }
        assert_eq!(mint(2), Ok(START.plus(600_000)));
    }
}

/// A slot has room for the number of 4095 generations.
#[test]
fn resets_that_could_not_be_told_apart_are_refused() {
    let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
    let reset = || {
        server.with(&clock, &paper).advance(START.plus(60_000)).unwrap();
        server.with(&clock, &paper).reset()
    };
    for _ in 0..4094 {
        reset().unwrap();
        // Pushed on by those of the generations before, which are not far ahead.
        let id = server.mint(&clock, &paper, &mut SessionOrder::default(), 7);
        assert!(time(id) < START.plus(10_000));
    }
    assert_eq!(reset(), Err(MintError::TooManyResets));
    assert!(time(server.mint(&clock, &paper, &mut SessionOrder::default(), 7)) >= START.plus(60_000));
}

#[test]
fn the_time_can_be_raised_and_outlives_a_crash() {
    let (clock, paper) = (Still::at(START), Paper::default());
    let server = Server::new();
    assert_eq!(
        server.with(&clock, &paper).advance(START.plus(TOLERANCE_MS + 1)),
        Err(MintError::TooFarAhead { until: START.plus(TOLERANCE_MS + 1), clock: START })
    );
    server.with(&clock, &paper).advance(START.plus(60_000)).unwrap();
    assert_eq!(
        time(server.mint(&clock, &paper, &mut SessionOrder::default(), 0)),
        START.plus(60_000 + AHEAD_MS + 1)
    );
    assert!(time(Server::new().mint(&clock, &paper, &mut SessionOrder::default(), 0)) >= START.plus(60_000));
}

/// Databases beyond those that there is room for wait for one that has stopped.
#[test]
fn leases_that_ran_out_make_room() {
    let (server, clock) = (Server::new(), Still::at(START));
    let mint = |database: u32| {
        let paper = Paper::default();
        let cell = AtomicU64::new(0);
        let mint = Mint { database: LeaseKey::new(database, 3), ..server.with(&clock, &paper) };
        mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0))
            .map(|minted| minted.until.at())
    };
    for database in 1..=1024 {
        assert_eq!(mint(database), Ok(START));
    }
    // Refused before anything is written, which would be adopted by the next call.
    let paper = Paper::default();
    let one_more = Mint { database: LeaseKey::new(1025, 3), ..server.with(&clock, &paper) };
    let cell = AtomicU64::new(0);
    for _ in 0..3 {
        let minted = one_more.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0));
        assert_eq!(minted.map(|minted| minted.id), Err(MintError::TooManyLeases));
        assert_eq!((paper.writes.get(), server.time.stamp().at()), (0, START));
    }
    clock.pass((LEASE_MS + 1) * 1000);
    for database in 1025..3000 {
        assert_eq!(mint(database).is_ok(), database < 1025 + 1024, "{database}");
    }
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

/// What may happen next in a server with three sessions.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Mint {
        session: usize,
        value: i64,
    },
    /// Time passes, in microseconds.
    Pass {
        us: i64,
    },
    /// The clock is set, by milliseconds.
    Set {
        ms: i64,
    },
    /// Another session is at renewing the lease, or no longer.
    Busy(bool),
    /// The server dies and starts anew.
    Crash,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..3_usize, prop_oneof![0..4_i64, 0..5000_i64]).prop_map(|(session, value)| Step::Mint { session, value }),
        2 => any::<bool>().prop_map(Step::Busy),
        4 => prop_oneof![0..3_000_i64, 0..3_000_000_i64, Just(LEASE_MS * 1000), Just(LEASE_MS * 1000 - 1000)].prop_map(|us| Step::Pass { us }),
        3 => prop_oneof![-50..50_i64, -3_000..3_000_i64, -500_000..500_000_i64].prop_map(|ms| Step::Set { ms }),
        1 => Just(Step::Crash),
    ]
}

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
