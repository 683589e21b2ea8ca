//! The guard: no residue of a sequence is used twice in one unit of its layout's time.
//!
//! Ids of one sequence, shard and layout differ in their sequence field, or in their time. So it is
//! enough to keep, for each residue, in which milliseconds it was used, and to let the next use find a free
//! unit. That holds whatever the sequence does: any CACHE, INCREMENT, CYCLE, `setval`, RESTART.
//!
//! A sequence, shard and layout hash to a place among a million slots, 8 MB in all whatever the number of
//! sequences, and use as many from there on as there are residues. Two that share slots can push each other on;
//! they cannot repeat an id. There is nothing to evict, and no lock: a slot is claimed by one
//! compare-and-swap. Uniqueness needs no ordering beyond it; release and acquire let who reads a slot see at
//! least the shared time it was claimed under.

use super::atomic::{AtomicU64, Ordering};
use super::{MAX_AHEAD_MS, Stamp};
use crate::id::hash::{GOLDEN, mix};
use crate::id::{Layout, Millis, Seq, Shard};

/// Of so many bits' residues each has a slot of its own; beyond, they share them. More than are used up in a
/// millisecond.
const MAX_BITS: u32 = 16;

/// A stretch of the guard, for layouts of similar units.
///
/// They are kept apart because a slot remembers little of what was before its last use: a unit of 1 s would
/// hardly ever find its beginning free beside a sequence that uses the slot every millisecond.
struct Stretch {
    /// Slots count time in grains of 2^this milliseconds.
    grain: u32,
    slots: std::ops::Range<usize>,
}

/// From the finest grain on, each 8 times as long as the one before: so a unit has less than 8 of the 16 grains
/// that a slot remembers. Most slots are for the unit that most layouts have.
const STRETCHES: [Stretch; 4] = [
    Stretch { grain: 0, slots: 0..640 << 10 },
    Stretch { grain: 3, slots: 640 << 10..768 << 10 },
    Stretch { grain: 6, slots: 768 << 10..896 << 10 },
    Stretch { grain: 9, slots: 896 << 10..1024 << 10 },
];

/// In which milliseconds every residue was used, in shared memory. All zeroes is a valid guard: nothing was
/// used yet.
#[repr(C)]
pub struct Guard {
    slots: [AtomicU64; 1024 << 10],
}

impl Guard {
    /// The slot of a residue of a sequence, shard and layout.
    #[must_use]
    pub fn slot(&self, key: Key, layout: Layout, seq: Seq) -> Slot<'_> {
        let Stretch { grain, slots, .. } = Stretch::of(layout);
        let bits = layout.fields().seq_bits.min(MAX_BITS);
        // Anywhere: if all began at multiples of their number of residues, many would share the slots of their
        // first values.
        let place = key.place(slots.len()) + (seq.get() & ((1 << bits) - 1)) as usize;
        // Those that begin near the end go on at the beginning.
        let place = if place < slots.len() { place } else { place - slots.len() };
        Slot { cell: &self.slots[slots.start + place], grain: *grain }
    }
}

impl Stretch {
    /// The one whose grain is the longest that is not longer than the unit: no two units begin in the same grain.
    fn of(layout: Layout) -> &'static Self {
        let [finest, longer @ ..] = &STRETCHES;
        longer.iter().rfind(|stretch| layout.fields().unit_ms >> stretch.grain > 0).unwrap_or(finest)
    }
}

/// The milliseconds of one residue.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    cell: &'a AtomicU64,
    grain: u32,
}

impl<'a> Slot<'a> {
    /// A slot over a cell of one's own, for ids of that layout; the server's slots come from [`Guard::slot`].
    #[must_use]
    pub fn new(cell: &'a AtomicU64, layout: Layout) -> Self {
        Self { cell, grain: Stretch::of(layout).grain }
    }

    /// What the slot holds; [`Slot::used`] says what that means.
    pub(super) fn read(self) -> u64 {
        self.cell.load(Ordering::Acquire)
    }

    /// In which milliseconds the residue was used, by what was read before `now`, the server's time.
    pub(super) fn used(self, read: u64, now: Millis) -> Used {
        Used::new(read, self.grain(now.plus(MAX_AHEAD_MS.into())))
    }

    /// The beginning of the first unit of time from the one of `earliest` on in which the residue is free, as
    /// far as is remembered.
    // Where the layout is known, the loop over units becomes one step: 42 instructions less for each id (callgrind).
    #[inline]
    pub(super) fn first_free(self, used: Used, layout: Layout, earliest: Millis) -> Millis {
        let mut at = layout.floor(earliest);
        loop {
            let grain = self.grain(at);
            let free = used.first_free(grain);
            if free <= grain {
                return at;
            }
            at = layout.ceil(Millis::new(free << self.grain));
        }
    }

    /// Uses the residue in the unit that begins at `at`, which is free in `used`, if nobody came between. `now` is the
    /// server's time by which that was found.
    pub(super) fn claim(self, used: Used, at: Millis, now: Stamp) -> bool {
        let new = used.with(self.grain(at), now.generation());
        self.cell.compare_exchange_weak(used.read, new, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    const fn grain(self, at: Millis) -> i64 {
        at.get() >> self.grain
    }
}

/// The value of a slot, and the last grain of time in which the residue was used. All zeroes: never.
///
/// ```text
/// bit  63            52                  16            0
///      |  generation  |    last grain     |  16 before  |
/// ```
///
/// The bits of the grains before the last one, the nearest lowest, are for a session that was held up between `nextval` and
/// its claim, while others went round all residues and claimed a later millisecond in its slot: the earlier one is still
/// there for it. Without them it would run ahead of the others, and leave slots unused as it goes: 8 sessions on one
/// sequence then reached 91 % of its full speed, with them 99.8 % (`make bench`).
///
/// The generation is that of the server's time when the slot was claimed, counted from 1. With it, a slot only grows:
///
/// - A claim goes forward or adds a bit to what was claimed in its generation. A session reads the slot before it reads
///   the server's time, so it never takes a claim of its own generation for one that was given up.
/// - A claim replaces those of earlier generations alone: a session that reads a claim reads the generation of that claim,
///   or a later one, with the server's time.
///
/// So a slot that still holds what a session has read was not claimed meanwhile. Without the generation, the slot could
/// come back to an old value: when a session is held up after a reset until time has come to where it was before, the
/// session would use a millisecond in which others have used the residue since the reset.
///
/// The last grain is kept modulo 2^36, which is two years of milliseconds. It stands for the latest grain that is not
/// after the furthest that an id can have. A grain that is further ahead is of a time that was given up, and becomes one
/// of two years ago, which no id asks for. If the residue was really used two years ago, to the second, it counts as
/// used now, and an id of it waits for a second at most.
#[derive(Clone, Copy)]
pub(super) struct Used {
    read: u64,
    last: i64,
}

impl Used {
    const BEFORE: u32 = 16;
    const LAST: u32 = 36;

    /// What was read in a slot, when no id could be later than `furthest`.
    fn new(read: u64, furthest: i64) -> Self {
        const LONG_AGO: i64 = (1 << Used::LAST) - 1;
        let last = (read >> Self::BEFORE).cast_signed();
        let back = if read == 0 { LONG_AGO } else { furthest.wrapping_sub(last) & LONG_AGO };
        Self { read, last: furthest.wrapping_sub(back) }
    }

    /// The first grain from `earliest` on in which the residue is free, as far as is remembered.
    fn first_free(self, earliest: i64) -> i64 {
        let back = self.last - earliest;
        if back < 0 {
            return earliest;
        }
        let remembered = (1 << back.min(Self::BEFORE.into())) - 1;
        match (!self.read & remembered).checked_ilog2() {
            Some(bit) => self.last - 1 - i64::from(bit),
            None => self.last + 1,
        }
    }

    /// The value of the slot when the residue is used at `at`, too.
    fn with(self, at: i64, generation: u64) -> u64 {
        let all = (1 << Self::BEFORE) - 1;
        let before = self.read & all;
        let (last, before) = match at.wrapping_sub(self.last) {
            // The last grain becomes one of those before, the oldest are forgotten.
            forward @ 1..=16 => (at, (before << 1 | 1) << (forward - 1) & all),
            back @ -16..=-1 => (self.last, before | 1 << (-1 - back)),
            _ => (at, 0),
        };
        let last = last.cast_unsigned() & ((1 << Self::LAST) - 1);
        ((generation + 1) << Self::LAST | last) << Self::BEFORE | before
    }
}

const _: () = assert!(Used::BEFORE == 16 && (Stamp::MAX_RESETS + 1) >> (u64::BITS - 16 - Used::LAST) == 0);

/// The identity of a sequence, shard and layout in a server, hashed to 64 bits.
///
/// The seed is the server's and changes at each start, so that two hot sequences that share slots do not
/// share them for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The key of a sequence (by the OIDs of its database and itself), a shard and a layout.
    #[must_use]
    pub fn new(seed: u64, database: u32, sequence: u32, shard: Shard, layout: Layout) -> Self {
        let relation = u64::from(database) << 32 | u64::from(sequence);
        let kind = (layout.hash64() ^ u64::from(shard.get())).wrapping_mul(GOLDEN);
        Self(mix(seed ^ relation ^ kind))
    }

    /// One of so many places.
    #[expect(clippy::cast_possible_truncation, reason = "below `places`")]
    fn place(self, places: usize) -> usize {
        // By the top bits; the session's map uses the lower ones.
        ((u128::from(self.0) * places as u128) >> u64::BITS) as usize
    }
}
