//! The lease: a time that ids of a database do not reach. It is written to the WAL before ids come near it.
//!
//! A crash loses what shared memory holds, and a standby never has it. So each database keeps in its own WAL a time up to
//! which ids may have been minted. A server that starts, or is promoted, takes all times before the lease for used, and goes
//! on from there. A lease is renewed about once a second, early enough that no session waits for it.

use super::atomic::{AtomicU64, Ordering};
use super::{Clock, Event, MAX_AHEAD_MS, Mint, MintError, Stamp};
use crate::id::hash::GOLDEN;
use crate::id::{Layout, Millis, Times};

/// How far a lease reaches beyond the server's time when it is written, in milliseconds. After a crash, ids can be so far
/// ahead of the clock. Crashes in quick succession add up.
pub const LEASE_MS: i64 = 1500;

/// A lease with less time left is renewed while it still holds, in milliseconds.
const EARLY_MS: i64 = 500;

// A new lease covers all times that ids may have in units of a millisecond, and does not count as one that ends soon.
const _: () = assert!(LEASE_MS - EARLY_MS >= MAX_AHEAD_MS as i64);

/// Whether a lease covers `wanted`, and does not end soon after it.
#[inline]
pub(super) fn lasts(lease: Stamp, wanted: Stamp) -> bool {
    lease >= wanted.plus(EARLY_MS)
}

/// If a session began to renew early within this time, other sessions leave the renewal to it, in milliseconds.
const TURN_MS: i64 = 100;

/// Where a database's lease is stored.
pub trait LeaseStore {
    /// Makes this session the only one that may write. Waits for another session's lock only if `wait` is true.
    fn lock(&self, wait: bool) -> Lock;

    /// Releases the lock.
    fn unlock(&self);

    /// The lease that any server wrote last; 1970-01-01 if none was written.
    fn read(&self) -> Millis;

    /// Writes a lease. When this returns, no crash can undo the write.
    fn write(&self, until: Millis);
}

/// The result of [`LeaseStore::lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// This session has the lock.
    Held,
    /// Another session has the lock.
    Busy,
    /// The store was dropped.
    Gone,
}

/// The identity of a database's lease: the OIDs of the database and of its store. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseKey(u64);

impl LeaseKey {
    /// The key of a database and its store, given by their OIDs.
    #[must_use]
    pub fn new(database: u32, store: u32) -> Self {
        Self(u64::from(database) << 32 | u64::from(store))
    }

    /// The entry at which the search for the key begins. Databases with consecutive OIDs begin far apart.
    fn start(self) -> usize {
        (self.0.wrapping_mul(GOLDEN) >> 48) as usize
    }
}

/// The leases of the databases that mint, in shared memory. All zeroes is a valid start without leases.
///
/// A database may take the entry of another one whose lease has ended. So there is room for as many databases as mint
/// within [`LEASE_MS`] of the server's time.
#[repr(C)]
pub struct Leases([Entry; super::LEASES]);

#[repr(C)]
#[derive(Default)]
struct Entry {
    key: AtomicU64,
    /// A [`Stamp`], or `TAKEN` while another database takes the entry.
    until: AtomicU64,
    /// The server's time when a session last began to renew this lease early.
    turn: AtomicU64,
}

const TAKEN: u64 = u64::MAX;

impl Default for Leases {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Entry::default()))
    }
}

impl Leases {
    /// The end of a database's lease, itself not included; [`Stamp::default`] if the database has none.
    ///
    /// The caller reads this before the server's time. A lease is published after the time was raised to what it follows.
    pub(super) fn until(&self, key: LeaseKey) -> Stamp {
        self.find(key).map_or(Stamp::default(), |(_, until)| until)
    }

    /// Whether this session shall renew the lease early. At most one session gets `true` within [`TURN_MS`].
    fn turn(&self, key: LeaseKey, now: Stamp) -> bool {
        let Some((entry, _)) = self.find(key) else { return false };
        let last = Stamp::from_bits(entry.turn.load(Ordering::Relaxed));
        now >= last.plus(TURN_MS)
            && entry
                .turn
                .compare_exchange(last.bits(), now.bits(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Publishes a lease that was written to the store. The caller holds the store's lock. Returns `false` if there is no
    /// room.
    fn publish(&self, key: LeaseKey, until: Stamp, now: Stamp) -> bool {
        loop {
            if let Some((entry, seen)) = self.find(key) {
                if entry.change(seen.bits(), until.bits()) {
                    return true;
                }
                // The lease had ended, and another database took the entry.
                continue;
            }
            let taken = |entry: &&Entry| entry.free(now).is_some_and(|until| entry.change(until, TAKEN));
            let Some(entry) = self.from(key).find(taken) else { return false };
            entry.key.store(key.0, Ordering::Relaxed);
            entry.until.store(until.bits(), Ordering::Release);
            return true;
        }
    }

    /// Drops a database's leases from other stores, which it had before the extension was dropped and created again. Returns
    /// the latest end among them.
    fn drop_others(&self, key: LeaseKey) -> Stamp {
        let mut latest = Stamp::default();
        for entry in &self.0 {
            let until = entry.until.load(Ordering::Acquire);
            let owner = entry.key.load(Ordering::Relaxed);
            // `change` fails if another database has taken the entry meanwhile.
            if owner != key.0 && owner >> 32 == key.0 >> 32 && until != TAKEN && entry.change(until, 0) {
                latest = latest.max(Stamp::from_bits(until));
            }
        }
        latest
    }

    fn has_room(&self, key: LeaseKey, now: Stamp) -> bool {
        self.find(key).is_some() || self.from(key).any(|entry| entry.free(now).is_some())
    }

    fn find(&self, key: LeaseKey) -> Option<(&Entry, Stamp)> {
        for entry in self.from(key) {
            // `until` is read first. A session that sees what a new owner published then sees the new owner's key.
            let until = entry.until.load(Ordering::Acquire);
            let owner = entry.key.load(Ordering::Relaxed);
            if owner == key.0 && until != TAKEN {
                return Some((entry, Stamp::from_bits(until)));
            }
            if owner == 0 && until != TAKEN {
                return None;
            }
        }
        None
    }

    fn from(&self, key: LeaseKey) -> impl Iterator<Item = &Entry> {
        (key.start()..).take(super::LEASES).map(|n| &self.0[n % super::LEASES])
    }
}

impl Entry {
    /// The end of the entry's lease, if that is before `now`.
    fn free(&self, now: Stamp) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        (until != TAKEN && Stamp::from_bits(until) < now).then_some(until)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.until.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

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

    /// How far the clock may be behind the server's time, in milliseconds. The server's time can be a lease ahead of the last
    /// id.
    pub(super) fn max_behind_ms(&self) -> i64 {
        self.tolerance_ms + LEASE_MS
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
