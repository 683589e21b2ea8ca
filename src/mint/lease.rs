//! The lease: a time that ids of a database do not reach, written down before they come near it.
//!
//! What shared memory holds is gone after a crash, and a standby never had it. So each database
//! keeps, in its own WAL, a time up to which ids may have been minted. A server that starts, or is promoted,
//! takes all before it for used, and goes on from there. A lease is long enough to be renewed once a second only, and
//! early enough that nobody waits for it.

use super::atomic::{AtomicU64, Ordering};
use super::{Clock, Event, MAX_AHEAD_MS, Mint, MintError, Stamp};
use crate::id::hash::GOLDEN;
use crate::id::{Layout, Millis, Times};

/// How far a lease reaches beyond the server's time when it is written, in milliseconds. So far ahead of
/// the clock ids can be after a crash; crashes in quick succession add up.
pub const LEASE_MS: i64 = 1500;

/// A lease with less than this left is renewed while it still holds, in milliseconds.
const EARLY_MS: i64 = 500;

// A lease that was just written covers all that may be asked for in milliseconds, and need not be renewed
// early at once.
const _: () = assert!(LEASE_MS - EARLY_MS >= MAX_AHEAD_MS as i64);

/// Who finds that somebody set about renewing less than this ago leaves it to them, in milliseconds.
const TURN_MS: i64 = 100;

/// Where a database's lease is written down.
pub trait LeaseStore {
    /// Makes this session the only one that may write; without `wait`, only if no other is.
    fn lock(&self, wait: bool) -> Lock;

    /// Lets others write again.
    fn unlock(&self);

    /// What was written last, by any server.
    fn read(&self) -> Millis;

    /// Writes. When it returns, no crash can undo it.
    fn write(&self, until: Millis);
}

/// How it went to lock a [`LeaseStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// This session has it.
    Held,
    /// Another session has it.
    Busy,
    /// There is no such store any more.
    Gone,
}

/// The identity of a database's lease: the OIDs of the database and of its store. Not all zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseKey(u64);

impl LeaseKey {
    /// The key of a database and its store, by their OIDs.
    #[must_use]
    pub fn new(database: u32, store: u32) -> Self {
        Self(u64::from(database) << 32 | u64::from(store))
    }

    /// Where to begin to look; OIDs of databases made in a row begin in different places.
    fn start(self) -> usize {
        (self.0.wrapping_mul(GOLDEN) >> 48) as usize
    }
}

/// The leases of the databases that mint, in shared memory. All zeroes is a valid start: no lease.
///
/// An entry that has run out says nothing any more, so another database may take it. There is room for
/// as many databases as mint within one [`LEASE_MS`] of the server's time.
#[repr(C)]
pub struct Leases([Entry; super::LEASES]);

#[repr(C)]
#[derive(Default)]
struct Entry {
    key: AtomicU64,
    /// A [`Stamp`], or `TAKEN` while the entry changes hands.
    until: AtomicU64,
    /// The server's time when somebody last set about renewing early.
    turn: AtomicU64,
}

const TAKEN: u64 = u64::MAX;

impl Default for Leases {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Entry::default()))
    }
}

impl Leases {
    /// Until when, that millisecond not included, a database has leased; long ago if it has not.
    ///
    /// To be read before the server's time: a lease that is seen was published after the time was raised to
    /// what it follows.
    pub(super) fn until(&self, key: LeaseKey) -> Stamp {
        self.find(key).map_or(Stamp::default(), |(_, until)| until)
    }

    /// Whether it is this session's turn to renew early.
    fn turn(&self, key: LeaseKey, now: Stamp) -> bool {
        let Some((entry, _)) = self.find(key) else { return false };
        let last = Stamp::from_bits(entry.turn.load(Ordering::Relaxed));
        now >= last.plus(TURN_MS)
            && entry
                .turn
                .compare_exchange(last.bits(), now.bits(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Publishes what was written down. Called by who holds the store's lock. Whether there was room.
    fn publish(&self, key: LeaseKey, until: Stamp, now: Stamp) -> bool {
        loop {
            if let Some((entry, seen)) = self.find(key) {
                if entry.change(seen.bits(), until.bits()) {
                    return true;
                }
                // Another database took it, as it had run out.
                continue;
            }
            let taken = |entry: &&Entry| entry.free(now).is_some_and(|until| entry.change(until, TAKEN));
            let Some(entry) = self.from(key).find(taken) else { return false };
            entry.key.store(key.0, Ordering::Relaxed);
            entry.until.store(until.bits(), Ordering::Release);
            return true;
        }
    }

    /// Drops what a database had leased by other records: by the extension before it was made anew. Returns until
    /// when that was.
    fn drop_others(&self, key: LeaseKey) -> Stamp {
        let mut latest = Stamp::default();
        for entry in &self.0 {
            let until = entry.until.load(Ordering::Acquire);
            let owner = entry.key.load(Ordering::Relaxed);
            // If it changed hands meanwhile, it is another's.
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
            // In this order: who sees what a new owner published sees its key.
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
    /// Its end, if it has run out.
    fn free(&self, now: Stamp) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        (until != TAKEN && Stamp::from_bits(until) < now).then_some(until)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.until.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl<C: Clock, S: LeaseStore> Mint<'_, C, S> {
    /// Whether the lease that was read covers a millisecond, which has to come before its end; if not, it does
    /// now, or the caller must look again.
    pub(super) fn leased(
        &self,
        lease: Stamp,
        wanted: Stamp,
        now: Stamp,
        layout: Layout,
    ) -> Result<bool, MintError> {
        let renew = |wait| {
            // With the next unit, so that nobody waits when that begins.
            let wanted = wanted.at().plus(layout.fields().unit_ms.into());
            self.renew(wait, Renewal::Of { lease, wanted }, layout.times())
        };
        if lease <= wanted {
            renew(true)?;
            return Ok(false);
        }
        let left = lease.at().get() - wanted.at().get();
        if left < EARLY_MS && lease.generation() == now.generation() && self.leases.turn(self.database, now) {
            renew(false)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Raises the server's time to `until`, which was used elsewhere, and writes down what it is then. When it
    /// returns, no crash can undo it.
    ///
    /// # Errors
    /// [`MintError::TooFarAhead`] beyond the tolerance, else as [`Mint::claim`].
    pub fn advance(&self, until: Millis) -> Result<(), MintError> {
        let clock = self.clock.now();
        if until > clock.plus(self.tolerance_ms) {
            return Err(MintError::TooFarAhead { until, clock });
        }
        self.renew(true, Renewal::From(until), Times::ALL)
    }

    /// Sets the server's time and the database's lease back to the clock; the leases of the server's other
    /// databases are then given up. Returns until when ids may have been minted: if that is after the clock,
    /// those from there on can come again.
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
            // Nothing is ahead.
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
            // Somebody else is at it, and the lease still holds.
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
                // Somebody renewed it while this session waited for the lock.
                return Ok(());
            }
            // Read, not remembered: who wrote blindly after a pause would put the lease back.
            let mut written = self.store.read();
            if written > held.at() {
                self.adopt(written, now)?;
            } else if held.generation() < now.generation() {
                // Leased by this server in a time that was given up.
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
                    // The end of a long unit, or of the next, can be further ahead than a lease reaches.
                    let least = written.max(wanted.plus(1)).plus(-LEASE_MS);
                    self.write(raised.with(raised.at().max(least)))
                }
                Renewal::From(_) => {
                    // Written down, and left to the next to mint: they find what a restore may write meanwhile.
                    let before = self.leases.drop_others(self.database);
                    let mut until = written.max(raised.at().plus(self.max_ahead_ms + 1));
                    if before.generation() == raised.generation() {
                        // Ids of a long unit reach further; its lease covers them.
                        until = until.max(before.at());
                    }
                    self.store.write(until);
                    Ok(())
                }
            };
        }
    }

    /// Takes what was written by a server before this one, or by a restore, for used.
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

    /// Writes and publishes a lease from `now` on. The caller holds the store's lock.
    fn write(&self, now: Stamp) -> Result<(), MintError> {
        // Before it is written: what is written and not published is adopted by the next to come.
        if !self.leases.has_room(self.database, now) {
            return Err(MintError::TooManyLeases);
        }
        let until = now.with(now.at().plus(LEASE_MS));
        self.store.write(until.at());
        if self.leases.publish(self.database, until, now) { Ok(()) } else { Err(MintError::TooManyLeases) }
    }

    /// How far the clock may be behind the server's time, which can be a lease ahead of the last id.
    pub(super) fn max_behind_ms(&self) -> i64 {
        self.tolerance_ms + LEASE_MS
    }
}

/// Why a lease is written.
#[derive(Clone, Copy)]
enum Renewal {
    /// This one has run out, or soon will.
    Of {
        /// The lease that was seen.
        lease: Stamp,
        /// What the new one has to cover.
        wanted: Millis,
    },
    /// Ids are to go on from this time, if they have not reached it.
    From(Millis),
}
