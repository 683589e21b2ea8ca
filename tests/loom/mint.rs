//! src/mint, file by file, with loom's atomics in the place of the real ones.

use crate::id::Millis;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
}

#[path = "../../src/mint/claim.rs"]
mod claim;
#[path = "../../src/mint/clock.rs"]
mod clock;
#[path = "../../src/mint/guard.rs"]
mod guard;
#[path = "../../src/mint/lease.rs"]
mod lease;
#[path = "../../src/mint/renewal.rs"]
mod renewal;
#[path = "../../src/mint/state.rs"]
mod state;
#[path = "../../src/mint/time.rs"]
mod time;

pub(crate) use claim::Claimed;
pub(crate) use clock::{Clock, Event, Reading};
pub(crate) use guard::Slot;
pub(crate) use lease::{LEASE_MS, LeaseKey, LeaseStore, Leases, Lock};
pub(crate) use state::{Mint, MintError};
pub(crate) use time::{SharedTime, Stamp};

pub(crate) const MAX_AHEAD_MS: i32 = 1000;
const LEASES: usize = 3;

/// Counts nothing: counters would only multiply the interleavings.
pub(crate) struct Stats;

#[allow(clippy::unused_self, reason = "as the real ones have it")]
impl Stats {
    pub(super) fn minted(&self, _session: usize, _pushed: bool) {}
    pub(super) fn waited(&self, _us: i64) {}
    pub(super) fn stepped_back(&self, _us: i64) {}
}
