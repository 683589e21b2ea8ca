//! The server's clock, and waiting for it.

use std::time::{SystemTime, UNIX_EPOCH};

use pgrx::pg_sys;

use crate::id::Millis;
use crate::mint::Clock;

/// A wait goes back to the loop after this long at the latest, so that a clock that was set meanwhile
/// is noticed. In milliseconds.
const LONGEST_WAIT_MS: i64 = 1000;

/// The system clock, waited for on the session's latch.
pub(crate) struct ServerClock;

impl Clock for ServerClock {
    /// The system clock. The only place that reads it.
    fn now(&self) -> Millis {
        let now = SystemTime::now();
        let (sign, since) = match now.duration_since(UNIX_EPOCH) {
            Ok(since) => (1, since),
            Err(before) => (-1, before.duration()),
        };
        Millis::new(sign * i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Waits on the latch, so that a cancel, a timeout or a terminate ends the wait at once: it comes
    /// back from here as PostgreSQL's error.
    fn wait(&self, ms: i64) {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: `MyLatch` is the session's own latch, set before any function runs; the binding turns
        // an error raised inside into an unwind.
        unsafe {
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                events.cast_signed(),
                ms.clamp(1, LONGEST_WAIT_MS),
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }
}
