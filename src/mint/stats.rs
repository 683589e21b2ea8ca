//! What the server counts about its ids: cheap enough to be always on.

use super::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::id::Millis;

/// Sessions of lower numbers count in a cache line of their own, which takes no locked instruction.
const OWN: usize = 256;

/// The others share these.
const SHARED: usize = 32;

/// The counters, in shared memory. All zeroes is a valid start.
#[repr(C)]
pub struct Stats {
    own: [Stripe; OWN],
    shared: [Stripe; SHARED],
    /// What had been counted when counting began.
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

/// The counters at one moment, since they were reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Ids minted.
    pub minted: u64,
    /// Of these, how many took a later millisecond, as another id had used theirs.
    pub pushed: u64,
    /// Waits for the clock to come nearer.
    pub waits: u64,
    /// Time waited, in microseconds.
    pub waited_us: i64,
    /// Times the clock was found to have been set back.
    pub step_backs: u64,
    /// The largest of these, in microseconds.
    pub largest_step_back_us: i64,
    /// When counting began.
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
    /// The counters now. Those of sessions that mint meanwhile may be counted, or not.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
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

    /// Begins to count anew.
    pub fn reset(&self, since: Millis) {
        // Sessions that mint would write over a zero in a stripe of their own.
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

    /// Counts an id of the session with that number, which no other has at the same time.
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
