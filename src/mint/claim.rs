//! The mint loop: it finds a free unit of time for an id, and claims it.

use super::guard::Used;
use super::lease::lasts;
use super::time::Now;
use super::{Clock, LeaseStore, Mint, MintError, Slot, Stamp};
use crate::id::{Id, Layout, Millis, Seq, Shard};

/// An id and its time.
#[derive(Clone, Copy, Debug)]
pub struct Minted {
    /// The id.
    pub id: Id,
    /// The last millisecond of the id's unit of time.
    pub until: Stamp,
}

/// What [`Mint::claim_now`] has claimed.
#[derive(Clone, Copy, Debug)]
pub enum Claimed {
    /// An id.
    Id(Minted),
    /// Nothing: no unit is free yet.
    Nothing {
        /// For how long a session would wait, in milliseconds, before it tries again.
        wait_ms: i64,
        /// Whether the residue is used already; otherwise the session's order asks for a later unit.
        is_used: bool,
    },
}

/// The first unit of time that is free for an id.
#[derive(Clone, Copy)]
struct Free {
    used: Used,
    /// Its first millisecond.
    at: Millis,
    /// Its last millisecond. The lease must cover it: after a crash, ids go on from the end of the lease.
    until: Stamp,
    /// Whether it comes after the first unit that the id could have had.
    is_pushed: bool,
}

impl Free {
    /// `read` is the slot's value, and was read before `now`, the server's time.
    #[inline]
    fn find(layout: impl Into<Layout>, slot: Slot<'_>, read: u64, earliest: Stamp, now: Stamp) -> Self {
        let layout = layout.into();
        let used = slot.used(read, now.at());
        let first = if earliest.generation() == now.generation() { now.max(earliest) } else { now };
        let at = slot.first_free(used, layout, first.at());
        let until = now.with(at.plus(i64::from(layout.fields().unit_ms) - 1));
        Self { used, at, until, is_pushed: at > first.at() }
    }
}

impl<C: Clock, S: LeaseStore> Mint<'_, C, S> {
    /// Claims the next id with this shard and sequence field, with a time not before `earliest`.
    ///
    /// Let R be the server's time and D `max_ahead_ms`. The id's unit of time holds R or is a later one that begins at R + D
    /// at the latest, and R never falls. So an id that is asked for after another was returned is older by at most D, rounded
    /// to the layout's unit.
    ///
    /// If all units up to R + D are used, this waits. That holds a sequence to the rate of its layout (Instagram's: 1024 ids
    /// per millisecond). Nothing is claimed before a wait, so a session that is stopped while it waits leaves no mark.
    ///
    /// # Errors
    /// [`MintError`]: SQLSTATE 22008 if the layout cannot hold the clock's time, 54000 if there is no room for the lease,
    /// otherwise 55000.
    pub fn claim(
        &self,
        typed: impl Into<Layout> + Copy,
        slot: Slot<'_>,
        earliest: Stamp,
        shard: Shard,
        seq: Seq,
    ) -> Result<Minted, MintError> {
        if let Some(minted) = self.attempt(typed, slot, earliest, shard, seq) {
            return Ok(minted);
        }
        loop {
            match self.claim_now(typed, slot, earliest, shard, seq)? {
                Claimed::Id(minted) => return Ok(minted),
                Claimed::Nothing { wait_ms, .. } => {
                    let begun = self.clock.both();
                    self.clock.wait(wait_ms);
                    self.stats.waited(self.clock.both().steady_us - begun.steady_us);
                }
            }
        }
    }

    /// The same, but claims nothing where [`Mint::claim`] would wait.
    ///
    /// # Errors
    /// As [`Mint::claim`].
    pub fn claim_now(
        &self,
        typed: impl Into<Layout> + Copy,
        slot: Slot<'_>,
        earliest: Stamp,
        shard: Shard,
        seq: Seq,
    ) -> Result<Claimed, MintError> {
        let layout = typed.into();
        let times = layout.times();
        loop {
            // The lease is read before the time. Whoever published this lease had first raised the time to what the lease
            // follows.
            let lease = self.leases.until(self.database);
            // The slot is read before the time, too. So what other sessions did to the slot is within the time read here. A
            // mark that is further ahead belongs to a time that was given up, and a session that was held up at this point
            // does not wait for it.
            let read = slot.read();
            let now = self.now(times)?;
            let free = Free::find(typed, slot, read, earliest, now.stamp);
            let due = free.at.plus(-self.max_ahead_ms);
            if due > now.stamp.at() {
                let reached = self.reached(&now, due);
                if reached < due {
                    let wait_ms = due.get() - reached.get();
                    return Ok(Claimed::Nothing { wait_ms, is_used: free.is_pushed });
                }
                continue;
            }
            let id = layout.id(free.at, shard, seq)?;
            if self.leased(lease, free.until, now.stamp, layout)? && self.take(slot, free, now.stamp) {
                return Ok(Claimed::Id(Minted { id, until: free.until }));
            }
        }
    }

    /// The first step of [`Mint::claim`]. It is enough where nothing stands in the way: the clock is in the server's
    /// millisecond, the lease does not end soon, and no other session takes the slot meanwhile. Otherwise returns `None`.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "else `self` is built in memory for each id: 100 instructions (callgrind)"
    )]
    pub fn attempt(
        &self,
        typed: impl Into<Layout> + Copy,
        slot: Slot<'_>,
        earliest: Stamp,
        shard: Shard,
        seq: Seq,
    ) -> Option<Minted> {
        // The order in which these are read is that of `claim_now`.
        let lease = self.leases.until(self.database);
        let read = slot.read();
        let now = self.time.stamp();
        if self.clock.now() != now.at() {
            return None;
        }
        let free = Free::find(typed, slot, read, earliest, now);
        let id = typed.into().id(free.at, shard, seq).ok()?;
        let is_due = free.at.plus(-self.max_ahead_ms) <= now.at();
        (is_due && lasts(lease, free.until) && self.take(slot, free, now))
            .then_some(Minted { id, until: free.until })
    }

    /// Takes a free unit. Returns `false` if another session has changed the slot meanwhile, or if the server's time was reset:
    /// the unit then belongs to a time that was given up.
    #[inline]
    fn take(&self, slot: Slot<'_>, free: Free, now: Stamp) -> bool {
        let is_taken =
            slot.claim(free.used, free.at, now) && self.time.stamp().generation() == free.until.generation();
        if is_taken {
            self.stats.minted(self.session, free.is_pushed);
        }
        is_taken
    }

    /// How far the server's time can come towards `due` now. While the clock is behind, it follows the steady clock.
    fn reached(&self, now: &Now, due: Millis) -> Millis {
        match now.behind {
            Some(reading) => self.time.go_on(now.stamp, due, reading),
            None => now.stamp.at(),
        }
    }
}
