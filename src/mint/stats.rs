//! The server's counters, cheap enough to be always on.

use super::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::id::Millis;

/// How many sessions count in a cache line of their own, which takes no locked instruction: those with lower numbers.
const OWN: usize = 256;

/// How many cache lines the other sessions share.
const SHARED: usize = 32;

/// The counters, in shared memory. All zeroes is a valid start.
#[repr(C)]
pub struct Stats {
    own: [Stripe; OWN],
    shared: [Stripe; SHARED],
    /// The sums of the other stripes at the last reset.
    before: Stripe,
    waits: AtomicU64,
    waited_us: AtomicI64,
    step_backs: AtomicU64,
    largest_step_back_us: AtomicI64,
    since: AtomicI64,
}

#[repr(C, align(128))]
#[derive(Default)]
struct Stripe {
    minted: AtomicU64,
    pushed: AtomicU64,
}

/// What was counted since the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Ids minted.
    pub minted: u64,
    /// Ids that took a later unit of time, because another id had used the first one.
    pub pushed: u64,
    /// Waits for the clock.
    pub waits: u64,
    /// The length of all waits, in microseconds.
    pub waited_us: i64,
    /// How often the clock was set back.
    pub step_backs: u64,
    /// The largest step back, in microseconds.
    pub largest_step_back_us: i64,
    /// The time of the last reset.
    pub since: Millis,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            own: std::array::from_fn(|_| Stripe::default()),
            shared: std::array::from_fn(|_| Stripe::default()),
            before: Stripe::default(),
            waits: AtomicU64::new(0),
            waited_us: AtomicI64::new(0),
            step_backs: AtomicU64::new(0),
            largest_step_back_us: AtomicI64::new(0),
            since: AtomicI64::new(0),
        }
    }
}

impl Stats {
    /// The counters now. Ids that sessions mint meanwhile may be counted or not.
    #[must_use]
    pub fn read(&self) -> Statistics {
        let since = |counter: fn(&Stripe) -> &AtomicU64| {
            self.total(counter).saturating_sub(counter(&self.before).load(Ordering::Relaxed))
        };
        Statistics {
            minted: since(|stripe| &stripe.minted),
            pushed: since(|stripe| &stripe.pushed),
            waits: self.waits.load(Ordering::Relaxed),
            waited_us: self.waited_us.load(Ordering::Relaxed),
            step_backs: self.step_backs.load(Ordering::Relaxed),
            largest_step_back_us: self.largest_step_back_us.load(Ordering::Relaxed),
            since: Millis::new(self.since.load(Ordering::Relaxed)),
        }
    }

    /// Sets all counters to 0. `since` is the time of this reset.
    pub fn reset(&self, since: Millis) {
        // The stripes keep their values, because a session that mints would overwrite a zero in its own stripe.
        self.before.minted.store(self.total(|stripe| &stripe.minted), Ordering::Relaxed);
        self.before.pushed.store(self.total(|stripe| &stripe.pushed), Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.waited_us.store(0, Ordering::Relaxed);
        self.step_backs.store(0, Ordering::Relaxed);
        self.largest_step_back_us.store(0, Ordering::Relaxed);
        self.since.store(since.get(), Ordering::Relaxed);
    }

    fn total(&self, counter: fn(&Stripe) -> &AtomicU64) -> u64 {
        self.own.iter().chain(&self.shared).map(|stripe| counter(stripe).load(Ordering::Relaxed)).sum()
    }

    /// Counts an id of a session, by the session's number.
    pub(super) fn minted(&self, session: usize, pushed: bool) {
        let Some(own) = self.own.get(session) else {
            let shared = &self.shared[session % SHARED];
            shared.minted.fetch_add(1, Ordering::Relaxed);
            if pushed {
                shared.pushed.fetch_add(1, Ordering::Relaxed);
            }
            return;
        };
        let count = |counter: &AtomicU64| {
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        count(&own.minted);
        if pushed {
            count(&own.pushed);
        }
    }

    pub(super) fn waited(&self, us: i64) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(super) fn stepped_back(&self, us: i64) {
        self.step_backs.fetch_add(1, Ordering::Relaxed);
        self.largest_step_back_us.fetch_max(us, Ordering::Relaxed);
    }
}
