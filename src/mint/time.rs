//! The shared time: the greatest clock reading that any session of the server made.

use super::atomic::{AtomicI64, Ordering};
use crate::id::Millis;

/// The server's time for ids. It never goes back, though the clock may. All zeroes is a valid start.
#[repr(C)]
pub struct SharedTime(AtomicI64);

impl SharedTime {
    /// A time that starts at the Unix epoch; the server's own lies in shared memory.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Takes a reading of the clock into account, and returns the server's time: at least `now`, and at
    /// least what it returned to any session before.
    pub(super) fn advance(&self, now: Millis) -> Millis {
        let seen = self.0.load(Ordering::Relaxed);
        if seen >= now.get() {
            // Nearly always: the cell is written once a millisecond, not once an id.
            return Millis::new(seen);
        }
        Millis::new(self.0.fetch_max(now.get(), Ordering::Relaxed).max(now.get()))
    }
}

impl Default for SharedTime {
    fn default() -> Self {
        Self::new()
    }
}
