//! The mint loop under a clock of the test's own, which does what clocks do.

mod clocks;
mod histories;
mod leases;
mod succession;

use insta_ids::id::{Id, Layout, Millis, Seq, Shard};
use insta_ids::mint::{
    Clock, Event, Key, LEASE_MS, LeaseKey, LeaseStore, Leases, Lock, Mint, MintError, Reading, SessionOrder,
    SharedTime, Slot, Stats,
};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const START: Millis = Millis::new(1_800_000_000_000);
pub(crate) const LAYOUT: Layout = Layout::INSTAGRAM;
pub(crate) const EPOCH: Millis = LAYOUT.times().first;
pub(crate) const LAST: Millis = LAYOUT.times().last;
pub(crate) const AHEAD_MS: i64 = 10;
pub(crate) const TOLERANCE_MS: i64 = 3_600_000;

pub(crate) fn shard(number: i32) -> Shard {
    LAYOUT.shard(number).unwrap()
}

pub(crate) fn seq(value: i64) -> Seq {
    LAYOUT.seq(value).unwrap()
}

pub(crate) fn time(id: Id) -> Millis {
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

/// The mint of the first session of a server.
pub(crate) fn mint<'a, C: Clock>(
    clock: &'a C,
    store: &'a Paper,
    time: &'a SharedTime,
    leases: &'a Leases,
    stats: &'a Stats,
) -> Mint<'a, C, Paper> {
    Mint {
        clock,
        store,
        time,
        leases,
        stats,
        database: LeaseKey::new(1, 3),
        session: 0,
        max_ahead_ms: AHEAD_MS,
        tolerance_ms: TOLERANCE_MS,
    }
}

/// A server's memory, for one sequence and shard.
pub(crate) struct Server {
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
        mint(clock, store, &self.time, &self.leases, &self.stats)
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
