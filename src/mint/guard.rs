//! The guard: no residue of a sequence is used twice in one millisecond.
//!
//! Ids of one sequence and shard differ in their sequence field, or in their millisecond. So it is
//! enough to keep, for each of the 1024 residues, the last millisecond in which it was used, and to
//! let the next use come later. That holds whatever the sequence does: any CACHE, INCREMENT, CYCLE,
//! `setval`, RESTART.
//!
//! A sequence and shard hash to one of 1024 windows of 1024 slots, 8 MB in all whatever the number of
//! sequences. Two that share a window can push each other a millisecond on; they cannot repeat an id.
//! There is nothing to evict, and no lock: a slot is claimed by one compare-and-swap. Uniqueness needs no
//! ordering beyond it; release and acquire let who reads a slot see at least the shared time it was
//! claimed under.

use super::atomic::{AtomicI64, Ordering};
use crate::id::{Millis, RESIDUES, Seq, Shard};

const WINDOW_BITS: u32 = 10;

/// The last millisecond of every residue of every window, in shared memory. All zeroes is a valid
/// guard: nothing was used yet.
#[repr(C)]
pub struct Guard {
    windows: [[AtomicI64; RESIDUES as usize]; 1 << WINDOW_BITS],
}

impl Guard {
    /// The slot of a residue in the window of a sequence and shard.
    pub fn slot(&self, key: Key, seq: Seq) -> Slot<'_> {
        Slot(&self.windows[key.window()][usize::from(seq.get())])
    }
}

/// One residue's last millisecond.
#[derive(Clone, Copy)]
pub struct Slot<'a>(&'a AtomicI64);

impl<'a> Slot<'a> {
    /// A slot over a cell of one's own; the server's slots come from [`Guard::slot`].
    pub fn new(cell: &'a AtomicI64) -> Self {
        Self(cell)
    }

    /// The last millisecond in which the residue was used.
    pub(super) fn last(self) -> Millis {
        Millis::new(self.0.load(Ordering::Acquire))
    }

    /// Uses the residue at `at`, if it was last used at `last` and nobody came between.
    pub(super) fn claim(self, last: Millis, at: Millis) -> bool {
        self.0
            .compare_exchange_weak(last.get(), at.get(), Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

/// The identity of a sequence and shard in a server, hashed to 64 bits.
///
/// The seed is the server's and changes at each start, so that two hot sequences that share a window
/// do not share it for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key of a sequence (by the OIDs of its database and itself) and a shard.
    #[must_use]
    pub fn new(seed: u64, database: u32, sequence: u32, shard: Shard) -> Self {
        let relation = u64::from(database) << 32 | u64::from(sequence);
        Self(mix(mix(seed ^ relation) ^ u64::from(shard.get())))
    }

    fn window(self) -> usize {
        // The top bits; the session's map uses the lower ones.
        (self.0 >> (u64::BITS - WINDOW_BITS)) as usize
    }
}

/// The finalizer of `SplitMix64`: a bijection in which each bit of the input reaches every bit.
///
/// # References
/// Sebastiano Vigna, "splitmix64.c", 2015.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
