//! The succession of sequences: a sequence that is created repeats no id of one that was dropped.
//!
//! The guard knows a sequence by its OID, so it knows nothing of one that is created again. While the server's time stands
//! still, or within a unit of its layout's time, such a sequence would repeat the ids of its predecessor. So the server
//! remembers when the last id of each sequence ends. If a sequence is dropped, all that are created later begin after that.
//! The others are not affected, and the server's time does not change.
//!
//! All of this may be lost in a crash: the lease covers it.

use super::Stamp;
use super::atomic::{AtomicU64, Ordering};
use crate::id::hash::GOLDEN;

/// The binary logarithm of the number of entries. Sequences that share an entry can delay each other by a unit of time if one
/// of them is created or dropped.
const BITS: u32 = 12;

/// What is remembered of all sequences, in shared memory. All zeroes is a valid start.
///
/// The server's locks order all accesses: a session that takes a value locks the sequence until its transaction ends, and a
/// session that drops the sequence waits for that.
#[repr(C)]
pub struct Succession {
    /// When the last id of all dropped sequences ends: a [`Stamp`].
    dropped: AtomicU64,
    entries: [Entry; 1 << BITS],
}

/// What is remembered of a sequence.
#[repr(C)]
#[derive(Default)]
pub struct Entry {
    /// When its last id ends: a [`Stamp`].
    last: AtomicU64,
    /// When its first id can begin: a [`Stamp`].
    earliest: AtomicU64,
}

impl Default for Succession {
    fn default() -> Self {
        Self { dropped: AtomicU64::new(0), entries: std::array::from_fn(|_| Entry::default()) }
    }
}

impl Succession {
    /// The entry of a sequence, by its OID and that of its database.
    #[must_use]
    pub fn of(&self, database: u32, sequence: u32) -> &Entry {
        let relation = u64::from(database) << 32 | u64::from(sequence);
        &self.entries[(relation.wrapping_mul(GOLDEN) >> (u64::BITS - BITS)) as usize]
    }

    /// A sequence is dropped, perhaps by a transaction that is rolled back.
    pub fn dropped(&self, entry: &Entry) {
        self.dropped.fetch_max(entry.last.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A sequence is created. It comes after all that were dropped.
    pub fn created(&self, entry: &Entry) {
        entry.follow(Stamp::from_bits(self.dropped.load(Ordering::Relaxed)).plus(1));
    }
}

impl Entry {
    /// The first millisecond that an id of the sequence may have.
    #[must_use]
    pub fn earliest(&self) -> Stamp {
        Stamp::from_bits(self.earliest.load(Ordering::Relaxed))
    }

    /// Records the last millisecond of an id's unit of time.
    pub fn record(&self, until: Stamp) {
        if self.last.load(Ordering::Relaxed) < until.bits() {
            self.last.fetch_max(until.bits(), Ordering::Relaxed);
        }
    }

    /// Later ids of the sequence come after all that another one has given, and after those that the other one comes after.
    pub fn succeed(&self, other: &Self) {
        self.follow(Stamp::from_bits(other.last.load(Ordering::Relaxed)).plus(1).max(other.earliest()));
    }

    fn follow(&self, earliest: Stamp) {
        self.earliest.fetch_max(earliest.bits(), Ordering::Relaxed);
    }
}
