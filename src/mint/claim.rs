//! The mint loop: finds the millisecond of an id and claims it.

use super::{SharedTime, Slot};
use crate::id::{Error, Id, LAST, Millis, Seq, Shard};

/// The clock that ids are minted by, and the way to let it go on.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Millis;

    /// Waits for about `ms` milliseconds, at least one. May return early. May not return at all, when
    /// the session is told to stop: the caller holds nothing across this call.
    fn wait(&self, ms: i64);
}

/// What all ids of a server are minted by.
pub struct Mint<'a, C> {
    /// The session's view of the server's clock.
    pub clock: &'a C,
    /// The server's time for ids.
    pub time: &'a SharedTime,
    /// How far an id's time may be ahead of the server's, in milliseconds, not negative.
    pub max_ahead_ms: i64,
}

impl<C: Clock> Mint<'_, C> {
    /// Claims the next id of a residue, not before `earliest`.
    ///
    /// With R the server's time and D `max_ahead_ms`, each id claimed has R <= its time <= R + D, and R
    /// never falls: so an id asked for after another was returned is at most D older. Where that leaves no
    /// millisecond, which is how a sequence is held to the format's 1024 ids per millisecond, this waits,
    /// and claims nothing before it waits: a session that is stopped meanwhile leaves no mark.
    ///
    /// # Errors
    /// [`Error::BeforeEpoch`] and [`Error::PastLast`] when the clock is outside the format (SQLSTATE 22008).
    pub fn claim(&self, slot: Slot<'_>, earliest: Millis, shard: Shard, seq: Seq) -> Result<Id, Error> {
        loop {
            // The slot before the clock: then what others did to it is within their time, so within ours,
            // and a session that was held up here does not wait for what is past.
            let used = slot.used();
            let reading = self.clock.now();
            if reading > LAST {
                // Not taken into account: the shared time could never come back from there.
                return Err(Error::PastLast(reading));
            }
            let now = self.time.advance(reading);
            let at = used.first_free(now.max(earliest));
            if at > now.plus(self.max_ahead_ms) {
                self.clock.wait(at.get() - self.max_ahead_ms - reading.get());
                continue;
            }
            let id = Id::new(at, shard, seq)?;
            if slot.claim(used, at) {
                return Ok(id);
            }
        }
    }
}
