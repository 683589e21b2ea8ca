//! The renewal of a lease, by the session that needs it or is the first to see that it ends soon.

use super::lease::lasts;
use super::{Clock, Event, LEASE_MS, LeaseStore, Lock, Mint, MintError, Stamp};
use crate::id::{Layout, Millis, Times};

impl<C: Clock, S: LeaseStore> Mint<'_, C, S> {
    /// Whether `lease`, as it was read, covers the millisecond `wanted`. If it does not, or ends soon and it is this
    /// session's turn, this renews the lease and returns `false`: the caller then reads the lease again.
    ///
    /// # Errors
    /// As [`Mint::claim`].
    pub(super) fn leased(
        &self,
        lease: Stamp,
        wanted: Stamp,
        now: Stamp,
        layout: Layout,
    ) -> Result<bool, MintError> {
        let renew = |wait| {
            // The new lease covers the next unit, too. So no session waits for a lease when that unit begins.
            let wanted = wanted.at().plus(layout.fields().unit_ms.into());
            self.renew(wait, Renewal::Of { lease, wanted }, layout.times())
        };
        if lease <= wanted {
            renew(true)?;
            return Ok(false);
        }
        if !lasts(lease, wanted) && self.leases.turn(self.database, now) {
            renew(false)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Raises the server's time to `until`, because ids up to there were minted elsewhere, and writes a lease that covers it.
    /// When this returns, no crash can undo it.
    ///
    /// # Errors
    /// [`MintError::TooFarAhead`] if `until` is ahead of the clock by more than the tolerance, otherwise as [`Mint::claim`].
    pub fn advance(&self, until: Millis) -> Result<(), MintError> {
        let clock = self.clock.now();
        if until > clock.plus(self.tolerance_ms) {
            return Err(MintError::TooFarAhead { until, clock });
        }
        self.renew(true, Renewal::From(until), Times::ALL)
    }

    /// Sets the server's time and the database's lease back to the clock. This gives up the leases of the server's other
    /// databases. Returns the time up to which ids may have been minted. If that is after the clock, ids of the times between
    /// can be minted again.
    ///
    /// # Errors
    /// [`MintError::TooManyResets`], [`MintError::TooManyLeases`], [`MintError::LeaseGone`].
    pub fn reset(&self) -> Result<Millis, MintError> {
        if self.store.lock(true) != Lock::Held {
            return Err(MintError::LeaseGone);
        }
        let done = self.reset_locked();
        self.store.unlock();
        done
    }

    fn reset_locked(&self) -> Result<Millis, MintError> {
        let (held, written) = (self.leases.until(self.database), self.store.read());
        let (now, clock) = (self.time.stamp(), self.clock.both());
        let known = held.generation() == now.generation() && written <= held.at();
        if known && now.at() <= clock.system() {
            // Neither the time nor the lease is ahead of the clock.
            return Ok(now.at());
        }
        let new = if now.at() > clock.system() {
            self.time.reset(clock).ok_or(MintError::TooManyResets)?
        } else {
            now
        };
        self.write(new.with(clock.system()))?;
        Ok(written.max(now.at().plus(self.max_ahead_ms)))
    }

    fn renew(&self, wait: bool, renewal: Renewal, times: Times) -> Result<(), MintError> {
        match self.store.lock(wait) {
            Lock::Held => {}
            // Another session renews the lease, which still holds.
            Lock::Busy => return Ok(()),
            Lock::Gone => return Err(MintError::LeaseGone),
        }
        let done = self.renew_locked(renewal, times);
        self.store.unlock();
        done
    }

    fn renew_locked(&self, renewal: Renewal, times: Times) -> Result<(), MintError> {
        loop {
            let held = self.leases.until(self.database);
            let now = self.now(times)?.stamp;
            if matches!(renewal, Renewal::Of { lease, .. } if held > lease) {
                // Another session renewed the lease while this one waited for the lock.
                return Ok(());
            }
            // The lease is read again. A session that was held up and wrote from memory would set the lease back.
            let mut written = self.store.read();
            if written > held.at() {
                self.adopt(written, now)?;
            } else if held.generation() < now.generation() {
                // This server wrote it in a time that was given up.
                written = Millis::new(0);
            }
            if let Renewal::From(at) = renewal {
                self.time.raise_to(at, self.clock);
            }
            let raised = self.time.stamp();
            if raised.generation() != now.generation() {
                // The server's time was reset meanwhile.
                continue;
            }
            return match renewal {
                Renewal::Of { wanted, .. } => {
                    // Where units are long, the end of the next one can be further ahead than a lease reaches.
                    let least = written.max(wanted.plus(1)).plus(-LEASE_MS);
                    self.write(raised.with(raised.at().max(least)))
                }
                Renewal::From(_) => {
                    // The lease is not published. The next session that mints reads the store, and so it also finds what
                    // a restore may write meanwhile.
                    let before = self.leases.drop_others(self.database);
                    let mut until = written.max(raised.at().plus(self.max_ahead_ms + 1));
                    if before.generation() == raised.generation() {
                        // Ids of a long unit reach further, and the lease that was dropped covered them.
                        until = until.max(before.at());
                    }
                    self.store.write(until);
                    Ok(())
                }
            };
        }
    }

    /// Raises the server's time to a lease that another server wrote before, or a restore. Notifies the operator if the clock
    /// is behind it by more than a restart explains.
    ///
    /// # Errors
    /// [`MintError::LeaseAhead`].
    fn adopt(&self, written: Millis, now: Stamp) -> Result<(), MintError> {
        let clock = self.clock.now();
        let behind_ms = written.get() - clock.get();
        if behind_ms > self.max_behind_ms() {
            return Err(MintError::LeaseAhead { until: written, clock });
        }
        if behind_ms > LEASE_MS && written > now.at() {
            self.clock.notify(Event::StartedBehind { ms: behind_ms });
        }
        self.time.raise_to(written, self.clock);
        Ok(())
    }

    /// Writes and publishes a lease of [`LEASE_MS`] from `now` on. The caller holds the store's lock.
    ///
    /// # Errors
    /// [`MintError::TooManyLeases`].
    fn write(&self, now: Stamp) -> Result<(), MintError> {
        // This comes before the write: the next session would adopt a lease that was written and not published.
        if !self.leases.has_room(self.database, now) {
            return Err(MintError::TooManyLeases);
        }
        let until = now.with(now.at().plus(LEASE_MS));
        self.store.write(until.at());
        if self.leases.publish(self.database, until, now) { Ok(()) } else { Err(MintError::TooManyLeases) }
    }
}

/// Why a lease is written.
#[derive(Clone, Copy)]
enum Renewal {
    /// A lease has ended, or ends soon.
    Of {
        /// The lease that the session saw.
        lease: Stamp,
        /// The millisecond that the new lease must cover.
        wanted: Millis,
    },
    /// Ids shall not come before this time any more.
    From(Millis),
}
