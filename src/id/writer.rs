//! Writer slots: they divide the residues of a shard's sequences among several servers that mint for the shard.
//!
//! The server with slot i/n uses the residue `value * n + i`, modulo the layout's residues, for each value of its own
//! sequence. So the ids of n servers differ, whatever their sequences and clocks do. Each server can mint an n-th of the ids
//! per unit of time.
//!
//! # References
//! Flickr's ticket servers, one odd and one even: "Ticket Servers: Distributed Unique Primary Keys on the Cheap", 2010.

use std::fmt;
use std::str::FromStr;

/// The slot of a server among the servers that mint for the same shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct WriterSlot {
    pub(super) number: u32,
    /// The binary logarithm of how many slots there are.
    pub(super) bits: u32,
}

/// A text that is no writer slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASlot;

impl WriterSlot {
    /// The slot 0/1, which has all residues: of a server that mints for its shards alone.
    pub const ALONE: Self = Self { number: 0, bits: 0 };

    /// The greatest number of slots.
    pub const MAX_SLOTS: u32 = 1 << 16;

    /// The slot `number`/`slots`. Returns `None` unless `slots` is a power of two up to [`WriterSlot::MAX_SLOTS`], and
    /// `number` is less.
    #[must_use]
    pub const fn new(number: u32, slots: u32) -> Option<Self> {
        if slots.is_power_of_two() && slots <= Self::MAX_SLOTS && number < slots {
            Some(Self { number, bits: slots.trailing_zeros() })
        } else {
            None
        }
    }

    /// How many slots there are.
    #[must_use]
    pub const fn slots(self) -> u32 {
        1 << self.bits
    }

    /// Whether every residue of this slot is one of `other`'s: `2/4` is a part of `0/2`. Two slots share a residue only where
    /// one is a part of the other.
    #[must_use]
    pub const fn is_part_of(self, other: Self) -> bool {
        self.bits >= other.bits && self.number % other.slots() == other.number
    }
}

/// Reads a slot as the setting has it: `1/2` is the second of two slots.
impl FromStr for WriterSlot {
    type Err = NotASlot;

    fn from_str(text: &str) -> Result<Self, NotASlot> {
        let (number, slots) = text.split_once('/').ok_or(NotASlot)?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let [number, slots] = [number, slots].map(|text| text.parse().ok().filter(|_| digits(text)));
        number.zip(slots).and_then(|(number, slots)| Self::new(number, slots)).ok_or(NotASlot)
    }
}

impl fmt::Display for WriterSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.slots())
    }
}
