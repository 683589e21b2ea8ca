//! What a session mints ids with.

use super::time::Now;
use super::{Clock, Event, LEASE_MS, LeaseKey, Leases, SharedTime, Stats};
use crate::id::{self, Millis, Times};

/// Why no id is minted, or why the time is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MintError {
    /// The layout cannot hold the clock's time.
    Id(id::Error),
    /// The clock is behind the server's time by more than the tolerance.
    ClockBehind {
        /// The server's time.
        time: Millis,
        /// The clock.
        clock: Millis,
    },
    /// The database's lease is ahead of the clock by more than the tolerance.
    LeaseAhead {
        /// The end of the lease.
        until: Millis,
        /// The clock.
        clock: Millis,
    },
    /// The time that the server's time is to be advanced to is ahead of the clock by more than the tolerance.
    TooFarAhead {
        /// That time.
        until: Millis,
        /// The clock.
        clock: Millis,
    },
    /// The store of the database's lease was dropped. There may be a new one.
    LeaseGone,
    /// More databases mint at once than shared memory has room for.
    TooManyLeases,
    /// The server's time was reset more often than generations can tell apart.
    TooManyResets,
}

impl From<id::Error> for MintError {
    fn from(error: id::Error) -> Self {
        Self::Id(error)
    }
}

/// What a session mints ids with.
pub struct Mint<'a, C, S> {
    /// The server's clocks.
    pub clock: &'a C,
    /// Where the database's lease is stored.
    pub store: &'a S,
    /// The server's time for ids.
    pub time: &'a SharedTime,
    /// The leases of the server's databases.
    pub leases: &'a Leases,
    /// The server's counters.
    pub stats: &'a Stats,
    /// The key of the session's database among the leases.
    pub database: LeaseKey,
    /// The session's number, by which it counts. No other session has the same number at the same time.
    pub session: usize,
    /// How far an id's time may be ahead of the server's time, in milliseconds: 0 to [`super::MAX_AHEAD_MS`].
    pub max_ahead_ms: i64,
    /// How far the clock may be behind the server's time, in milliseconds; not negative.
    pub tolerance_ms: i64,
}

impl<C: Clock, S> Mint<'_, C, S> {
    /// The server's time, after a look at the clock. Notifies the operator if the clock was set back.
    ///
    /// # Errors
    /// [`MintError::ClockBehind`], and [`MintError::Id`] for a clock past `times`.
    pub(super) fn now(&self, times: Times) -> Result<Now, MintError> {
        let now = self.time.now(self.clock, times)?;
        if let Some(us) = now.stepped_back_us {
            self.stats.stepped_back(us);
            self.clock.notify(Event::SteppedBack { us });
        }
        if let Some(reading) = now.behind {
            let (time, clock) = (now.stamp.at(), reading.system());
            if time.get() - clock.get() > self.max_behind_ms() {
                return Err(MintError::ClockBehind { time, clock });
            }
        }
        Ok(now)
    }

    /// How far the clock may be behind the server's time, in milliseconds. The server's time can be a lease ahead of the last
    /// id.
    pub(super) fn max_behind_ms(&self) -> i64 {
        self.tolerance_ms + LEASE_MS
    }
}
