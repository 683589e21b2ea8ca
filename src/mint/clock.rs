//! Clocks, as minting sees them.

use crate::id::Millis;

/// The clocks that ids are minted by, and the way to wait for them.
pub trait Clock {
    /// The system clock.
    fn now(&self) -> Millis;

    /// The system clock and the steady clock, read together.
    fn both(&self) -> Reading;

    /// Waits for about `ms` milliseconds, and for at least one. It may return early. It does not return if the session is
    /// told to stop, so the caller must hold nothing across this call.
    fn wait(&self, ms: i64);

    /// Passes an event on to the operator.
    fn notify(&self, event: Event);
}

/// What an operator should know about the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The clock was set back while the server ran.
    SteppedBack {
        /// How far, in microseconds.
        us: i64,
    },
    /// The clock is behind the lease that was written before the server started, by more than a restart explains.
    StartedBehind {
        /// How far, in milliseconds.
        ms: i64,
    },
}

/// The system clock and the steady clock, read at the same moment, in microseconds. The steady clock starts anywhere and
/// cannot be set.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The system clock, since the Unix epoch.
    pub system_us: i64,
    /// The steady clock.
    pub steady_us: i64,
}

impl Reading {
    pub(super) const fn system(self) -> Millis {
        Millis::new(self.system_us.div_euclid(1000))
    }

    pub(super) const fn offset_us(self) -> i64 {
        self.system_us - self.steady_us
    }
}
