//! The guard: no residue of a sequence is used twice in one millisecond.
//!
//! Ids of one sequence and shard differ in their sequence field, or in their millisecond. So it is
//! enough to keep, for each of the 1024 residues, in which milliseconds it was used, and to let the next
//! use find a free one. That holds whatever the sequence does: any CACHE, INCREMENT, CYCLE, `setval`,
//! RESTART.
//!
//! A sequence and shard hash to one of 1024 windows of 1024 slots, 8 MB in all whatever the number of
//! sequences. Two that share a window can push each other a millisecond on; they cannot repeat an id.
//! There is nothing to evict, and no lock: a slot is claimed by one compare-and-swap. Uniqueness needs no
//! ordering beyond it; release and acquire let who reads a slot see at least the shared time it was
//! claimed under.

use super::MOST_AHEAD_MS;
use super::atomic::{AtomicU64, Ordering};
use crate::id::{Millis, RESIDUES, Seq, Shard};

const WINDOW_BITS: u32 = 10;

/// In which milliseconds every residue of every window was used, in shared memory. All zeroes is a valid
/// guard: nothing was used yet.
#[repr(C)]
pub struct Guard {
    windows: [[AtomicU64; RESIDUES as usize]; 1 << WINDOW_BITS],
}

impl Guard {
    /// The slot of a residue in the window of a sequence and shard.
    pub fn slot(&self, key: Key, seq: Seq) -> Slot<'_> {
        Slot(&self.windows[key.window()][usize::from(seq.get())])
    }
}

/// The milliseconds of one residue.
#[derive(Clone, Copy)]
pub struct Slot<'a>(&'a AtomicU64);

impl<'a> Slot<'a> {
    /// A slot over a cell of one's own; the server's slots come from [`Guard::slot`].
    pub fn new(cell: &'a AtomicU64) -> Self {
        Self(cell)
    }

    pub(super) fn used(self) -> Used {
        Used(self.0.load(Ordering::Acquire))
    }

    /// Uses the residue at `at`, a millisecond that is free in `used`, if nobody came between.
    pub(super) fn claim(self, used: Used, at: Millis) -> bool {
        self.0.compare_exchange_weak(used.0, used.with(at).0, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

/// The value of a slot: the last millisecond in which the residue was used, and below it a bit for each of
/// the 16 milliseconds before, the nearest lowest.
///
/// The bits are for a session that was held up between `nextval` and its claim, while others went round
/// all residues and claimed a later millisecond in its slot: the earlier one is still there for it. Without
/// them it would run ahead of the others, and leave slots unused as it goes: 8 sessions on one sequence
/// then reached 91 % of its full speed, with them 99.9 % (`make bench`).
#[derive(Clone, Copy)]
pub(super) struct Used(u64);

impl Used {
    const BEFORE: u32 = 16;

    fn last(self) -> i64 {
        (self.0 >> Self::BEFORE).cast_signed()
    }

    /// The first millisecond from `earliest` on in which the residue is free, as far as is remembered.
    /// `now` is the server's time.
    pub(super) fn first_free(self, now: Millis, earliest: Millis) -> Millis {
        if self.last() > now.get() + i64::from(MOST_AHEAD_MS) {
            // No id of this time is so far ahead: it is from before the server's time was reset.
            return earliest;
        }
        let back = self.last() - earliest.get();
        if back < 0 {
            return earliest;
        }
        let remembered = (1 << back.min(Self::BEFORE.into())) - 1;
        match (!self.0 & remembered).checked_ilog2() {
            Some(bit) => Millis::new(self.last() - 1 - i64::from(bit)),
            None => Millis::new(self.last() + 1),
        }
    }

    fn with(self, at: Millis) -> Self {
        let forward = at.get() - self.last();
        if (-i64::from(Self::BEFORE)..0).contains(&forward) {
            return Self(self.0 | 1 << (-forward - 1));
        }
        // The last millisecond becomes one of those before, the oldest are forgotten.
        let before = match u32::try_from(forward) {
            Ok(forward @ 1..=Self::BEFORE) => (self.0 << 1 | 1) << (forward - 1) & ((1 << Self::BEFORE) - 1),
            _ => 0,
        };
        Self(at.get().cast_unsigned() << Self::BEFORE | before)
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
