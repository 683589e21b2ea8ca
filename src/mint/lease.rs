//! The lease: a time that ids of a database do not reach. It is written to the WAL before ids come near it.
//!
//! A crash loses what shared memory holds, and a standby never has it. So each database keeps in its own WAL a time up to
//! which ids may have been minted. A server that starts, or is promoted, takes all times before the lease for used, and goes
//! on from there. A lease is renewed about once a second, early enough that no session waits for it.

use super::atomic::{AtomicU64, Ordering};
use super::{MAX_AHEAD_MS, Stamp};
use crate::id::Millis;
use crate::id::hash::GOLDEN;

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
    pub(super) fn turn(&self, key: LeaseKey, now: Stamp) -> bool {
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
    pub(super) fn publish(&self, key: LeaseKey, until: Stamp, now: Stamp) -> bool {
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
    pub(super) fn drop_others(&self, key: LeaseKey) -> Stamp {
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

    pub(super) fn has_room(&self, key: LeaseKey, now: Stamp) -> bool {
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
