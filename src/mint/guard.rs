//! The guard: it lets no residue of a sequence be used twice in one unit of its layout's time.
//!
//! Ids of one sequence, shard and layout differ in their sequence field or in their time. So the guard remembers for each
//! residue in which milliseconds it was used, and the next use takes a free unit. This holds whatever the sequence does:
//! any CACHE, INCREMENT, CYCLE, `setval` or RESTART.
//!
//! The guard has a million slots, 8 MB for any number of sequences. A sequence, shard and layout hash to a place among the
//! slots, and use one slot per residue from there on. Two of them that share slots can push each other to later units, but
//! they cannot repeat an id. Nothing is ever evicted.
//!
//! There is no lock: a slot is claimed by one compare-and-swap, which is enough for uniqueness. Release and acquire make a
//! session that reads a slot see at least the shared time under which the slot was claimed.

use super::atomic::{AtomicU64, Ordering};
use super::{MAX_AHEAD_MS, Stamp};
use crate::id::hash::{GOLDEN, mix};
use crate::id::{Layout, Millis, Seq, Shard};

/// A layout has at most 2^16 slots; where it has more residues, they share these. No sequence uses up so many in a
/// millisecond.
const MAX_BITS: u32 = 16;

/// A part of the guard, for layouts with units of similar length.
///
/// Layouts with longer units have slots of their own, because a slot remembers little from before its last use. A unit of
/// 1 s would hardly ever find its beginning free in a slot that another sequence uses every millisecond.
struct Stretch {
    /// The binary logarithm of a grain in milliseconds. Slots count time in grains.
    grain: u32,
    slots: std::ops::Range<usize>,
}

/// Each grain is 8 times as long as the one before. So a unit has less than 8 of the 16 grains that a slot remembers. The
/// first stretch is the largest, because most layouts have a unit of 1 ms.
const STRETCHES: [Stretch; 4] = [
    Stretch { grain: 0, slots: 0..640 << 10 },
    Stretch { grain: 3, slots: 640 << 10..768 << 10 },
    Stretch { grain: 6, slots: 768 << 10..896 << 10 },
    Stretch { grain: 9, slots: 896 << 10..1024 << 10 },
];

/// In which milliseconds each residue was used, in shared memory. All zeroes is a valid guard, in which nothing was used.
#[repr(C)]
pub struct Guard {
    slots: [AtomicU64; 1024 << 10],
}

impl Guard {
    /// Whether a layout's units are so long that a session rather passes by a residue than waits for its next unit.
    #[must_use]
    pub fn passes_by(layout: Layout) -> bool {
        Stretch::of(layout).grain > 0 && layout.residues() > 1
    }

    /// The slot of a residue of a sequence, shard and layout.
    #[must_use]
    pub fn slot(&self, key: Key, layout: impl Into<Layout>, seq: Seq) -> Slot<'_> {
        let layout = layout.into();
        let Stretch { grain, slots } = Stretch::of(layout);
        let bits = layout.fields().seq_bits.min(MAX_BITS);
        // In a long unit, a sequence uses consecutive residues. These are scattered, so that another sequence shares single
        // ones of them, and can pass by. In units of a millisecond, it is worth more that they share cache lines.
        let step = if *grain == 0 { 1 } else { key.low() | 1 };
        let residue = (seq.get() as usize).wrapping_mul(step) & ((1 << bits) - 1);
        // The first slot can be any. If it were a multiple of the number of residues, many sequences would share the
        // slots of their first values.
        let place = key.place(slots.len()) + residue;
        // A sequence that begins near the end of the stretch goes on at its beginning.
        let place = if place < slots.len() { place } else { place - slots.len() };
        Slot { cell: &self.slots[slots.start + place], grain: *grain }
    }
}

impl Stretch {
    /// The stretch with the longest grain that is not longer than the layout's unit. So no two units begin in one grain.
    fn of(layout: Layout) -> &'static Self {
        let [finest, longer @ ..] = &STRETCHES;
        longer.iter().rfind(|stretch| layout.fields().unit_ms >> stretch.grain > 0).unwrap_or(finest)
    }
}

/// The slot of one residue.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    cell: &'a AtomicU64,
    grain: u32,
}

impl<'a> Slot<'a> {
    /// A slot outside of a guard, for ids of this layout. Tests use it.
    #[must_use]
    pub fn new(cell: &'a AtomicU64, layout: Layout) -> Self {
        Self { cell, grain: Stretch::of(layout).grain }
    }

    /// The slot's value, for [`Slot::used`].
    pub(super) fn read(self) -> u64 {
        self.cell.load(Ordering::Acquire)
    }

    /// In which milliseconds the residue was used, by a value that was read before `now`, the server's time.
    pub(super) fn used(self, read: u64, now: Millis) -> Used {
        Used::new(read, self.grain(now.plus(MAX_AHEAD_MS.into())))
    }

    /// The beginning of the first unit, from the one that holds `earliest` on, in which the residue is free. A unit that the
    /// slot does not remember counts as used.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "for a layout that is known at compile time, the loop becomes one step"
    )]
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

    /// Whether the residue is free in the unit of `now`, the server's time.
    #[must_use]
    pub fn is_free(self, layout: Layout, now: Stamp) -> bool {
        self.first_free(self.used(self.read(), now.at()), layout, now.at()) <= now.at()
    }

    /// Marks the residue as used in the unit that begins at `at`, which is free by `used`. `now` is the server's time that
    /// was read after `used`. Returns `false` if another session has changed the slot meanwhile.
    pub(super) fn claim(self, used: Used, at: Millis, now: Stamp) -> bool {
        let new = used.with(self.grain(at), now.generation());
        self.cell.compare_exchange_weak(used.read, new, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    const fn grain(self, at: Millis) -> i64 {
        at.get() >> self.grain
    }
}

/// The value of a slot, and the last grain of time in which the residue was used. The value 0 means that it was never used.
///
/// ```text
/// bit  63            52                  16            0
///      |  generation  |    last grain     |  16 before  |
/// ```
///
/// *16 before.* One bit for each of the 16 grains before the last one, the nearest lowest; 1 if the residue was used in it.
/// They serve a session that is held up between `nextval` and its claim while other sessions use all residues and claim a
/// later millisecond in its slot: the earlier millisecond is still free for it. Without these bits the session would have to
/// run ahead and leave slots unused. 8 sessions on one sequence then reached 91 % of its full speed, and 99.8 % with them
/// (`make bench`).
///
/// *Generation.* The generation of the server's time when the slot was claimed, plus 1. It makes the slot's value grow with
/// each claim:
///
/// - Within a generation, a claim moves the last grain forward or adds a bit. A session reads the slot before it reads the
///   server's time. So it never takes a claim of its own generation for one that was given up.
/// - A claim replaces claims of earlier generations only. A session that reads a claim then reads the generation of that
///   claim, or a later one, with the server's time.
///
/// So if a slot still holds what a session has read, no other session has claimed it meanwhile. Without the generation, a
/// slot could return to an old value: a session could be held up after a reset until the time is back where it was before.
/// It would then use a millisecond in which others have used the residue since the reset.
///
/// *Last grain.* It is kept modulo 2^36, which is two years of milliseconds. It means the latest such grain that is not
/// after the furthest one that an id can have. So a grain of a time that was given up, further ahead, counts as one of two
/// years ago, which no id asks for. If the residue was used exactly two years ago, that counts as used now, and an id waits
/// for a second at most.
#[derive(Clone, Copy)]
pub(super) struct Used {
    read: u64,
    last: i64,
}

impl Used {
    /// Bits for the grains before the last one.
    const BEFORE: u32 = 16;
    /// Bits for the last grain.
    const LAST: u32 = 36;

    /// Reads a slot's value at a moment when no id can be later than the grain `furthest`.
    fn new(read: u64, furthest: i64) -> Self {
        const LONG_AGO: i64 = (1 << Used::LAST) - 1;
        let last = (read >> Self::BEFORE).cast_signed();
        let back = if read == 0 { LONG_AGO } else { furthest.wrapping_sub(last) & LONG_AGO };
        Self { read, last: furthest.wrapping_sub(back) }
    }

    /// The first grain from `earliest` on in which the residue is free. A grain that is not remembered counts as used.
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

    /// The slot's value after the residue was used in the grain `at`, too.
    fn with(self, at: i64, generation: u64) -> u64 {
        let all = (1 << Self::BEFORE) - 1;
        let before = self.read & all;
        let (last, before) = match at.wrapping_sub(self.last) {
            // The last grain becomes one of those before it, and the oldest are forgotten.
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
/// The server chooses another seed at each start. So two busy sequences that share slots do not share them for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    pub(super) const FIRST: Self = Self(0);

    /// The key of a sequence, shard and layout. `database` and `sequence` are OIDs.
    #[must_use]
    pub fn new(seed: u64, database: u32, sequence: u32, shard: Shard, layout: Layout) -> Self {
        let relation = u64::from(database) << 32 | u64::from(sequence);
        let kind = (layout.hash64() ^ u64::from(shard.get())).wrapping_mul(GOLDEN);
        Self(mix(seed ^ relation ^ kind))
    }

    /// The key's place among `places`.
    #[expect(clippy::cast_possible_truncation, reason = "below `places`")]
    fn place(self, places: usize) -> usize {
        // This uses the key's top bits, because the session's order uses the lower ones.
        ((u128::from(self.0) * places as u128) >> u64::BITS) as usize
    }

    /// The key's lower bits.
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits are what is asked for")]
    pub(super) const fn low(self) -> usize {
        self.0 as usize
    }
}
