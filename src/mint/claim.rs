//! The mint loop: finds the millisecond of an id and claims it.

use super::time::Now;
use super::{LeaseKey, LeaseStore, Leases, Reading, SharedTime, Slot, Stamp, Stats};
use crate::id::{self, Id, Layout, Millis, Seq, Shard, Times};

/// The clocks that ids are minted by, and the way to let them go on.
pub trait Clock {
    /// The system clock.
    fn now(&self) -> Millis;

    /// The system clock and the steady one, read together.
    fn both(&self) -> Reading;

    /// Waits for about `ms` milliseconds, at least one. May return early. May not return at all, when
    /// the session is told to stop: the caller holds nothing across this call.
    fn wait(&self, ms: i64);

    /// Is told what should be known of the clock.
    fn notify(&self, event: Event);
}

/// What an operator should know of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The clock was set back while the server ran, by so many microseconds.
    SteppedBack {
        /// How far.
        us: i64,
    },
    /// The clock is behind what was leased before the server started, by so many milliseconds, and more
    /// than a restart explains.
    StartedBehind {
        /// How far.
        ms: i64,
    },
}

/// Why no id is minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MintError {
    /// The clock is outside what ids can hold.
    Id(id::Error),
    /// The clock is further behind the server's time than is tolerated.
    ClockBehind {
        /// The server's time.
        time: Millis,
        /// The clock.
        clock: Millis,
    },
    /// The database's lease is further ahead of the clock than is tolerated.
    LeaseAhead {
        /// The end of the lease.
        until: Millis,
        /// The clock.
        clock: Millis,
    },
    /// A time that the server's is to be raised to is further ahead of the clock than is tolerated.
    TooFarAhead {
        /// That time.
        until: Millis,
        /// The clock.
        clock: Millis,
    },
    /// The store of the database's lease is gone; there may be a new one.
    LeaseGone,
    /// More databases mint at once than there is room for.
    TooManyLeases,
    /// The server's time was reset more often than can be told apart.
    TooManyResets,
}

impl From<id::Error> for MintError {
    fn from(error: id::Error) -> Self {
        Self::Id(error)
    }
}

/// What all ids of a session are minted by.
pub struct Mint<'a, C, S> {
    /// The server's clocks.
    pub clock: &'a C,
    /// Where the database's lease is written down.
    pub store: &'a S,
    /// The server's time for ids.
    pub time: &'a SharedTime,
    /// The leases of the server's databases.
    pub leases: &'a Leases,
    /// The server's counters.
    pub stats: &'a Stats,
    /// The session's database, among the leases.
    pub database: LeaseKey,
    /// The session's number, by which it counts; no other has it at the same time.
    pub session: usize,
    /// How far an id's time may be ahead of the server's, in milliseconds: 0 to [`super::MAX_AHEAD_MS`].
    pub max_ahead_ms: i64,
    /// How far the clock may be behind the server's time, in milliseconds, not negative.
    pub tolerance_ms: i64,
}

/// An id, and the server's view of its time.
#[derive(Clone, Copy, Debug)]
pub struct Minted {
    /// The id.
    pub id: Id,
    /// The last millisecond of its unit of time.
    pub until: Stamp,
}

impl<C: Clock, S: LeaseStore> Mint<'_, C, S> {
    /// Claims the next id of a residue, not before `earliest`.
    ///
    /// With R the server's time and D `max_ahead_ms`, each id claimed is of the unit of time that holds R, or of
    /// a later one that begins at R + D at the latest, and R never falls: so an id asked for after another was
    /// returned is at most D older, to the layout's unit. Where that leaves no unit, which is how a sequence
    /// is held to what its layout has (Instagram's: 1024 ids per millisecond), this waits, and claims nothing
    /// before it waits: a session that is stopped meanwhile leaves no mark.
    ///
    /// # Errors
    /// [`MintError`]: SQLSTATE 22008 when the clock is outside the format, 54000 when there is no room for the
    /// lease, 55000 else.
    pub fn claim(
        &self,
        layout: impl Into<Layout>,
        slot: Slot<'_>,
        earliest: Stamp,
        shard: Shard,
        seq: Seq,
    ) -> Result<Minted, MintError> {
        let layout = layout.into();
        let times = layout.times();
        let rest_ms = i64::from(layout.fields().unit_ms) - 1;
        loop {
            // The lease before the time: whoever published it has raised the time to what it follows.
            let lease = self.leases.until(self.database);
            // The slot before the time: then what others did to it is within their time, so within ours.
            // What is further ahead is of a time that was given up, and a session that was held up here does
            // not wait for what is past.
            let read = slot.read();
            let now = self.now(times)?;
            let used = slot.used(read, now.stamp.at());
            let first = if earliest.generation() == now.stamp.generation() {
                now.stamp.max(earliest)
            } else {
                now.stamp
            };
            let at = slot.first_free(used, layout, first.at());
            let due = at.plus(-self.max_ahead_ms);
            if due > now.stamp.at() {
                self.wait(&now, due);
                continue;
            }
            let id = layout.id(at, shard, seq)?;
            // The whole unit: after a crash, ids go on from the end of the lease, and that must not be in it.
            let until = now.stamp.with(at.plus(rest_ms));
            if !self.leased(lease, until, now.stamp, layout)? {
                continue;
            }
            // If the server's time was reset meanwhile, the id is of a time that is no more.
            if slot.claim(used, at, now.stamp) && self.time.stamp().generation() == until.generation() {
                self.stats.minted(self.session, at > first.at());
                return Ok(Minted { id, until });
            }
        }
    }

    /// The server's time, after a look at the clock.
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

    /// Lets the server's time come nearer to `due`, by the clock or, while that is behind, by the steady one.
    fn wait(&self, now: &Now, due: Millis) {
        let come = match now.behind {
            Some(reading) => self.time.go_on(now.stamp, due, reading),
            None => now.stamp.at(),
        };
        if come < due {
            let begun = self.clock.both();
            self.clock.wait(due.get() - come.get());
            self.stats.waited(self.clock.both().steady_us - begun.steady_us);
        }
    }
}
