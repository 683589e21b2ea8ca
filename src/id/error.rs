//! Why a value cannot be part of an id.

use std::fmt;

use super::{Millis, WriterSlot};

/// A part that no id of its layout can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A shard below 0 or above the last.
    ShardOutOfRange {
        /// The shard asked for.
        shard: i32,
        /// The last that there is.
        last: u32,
    },
    /// A negative value from a sequence. The published function makes a corrupt id of it: `-5 % 1024`
    /// is -5 in SQL, and its sign bits overwrite time and shard.
    NegativeSequence(i64),
    /// More writer slots than values of the sequence field.
    TooManyWriters {
        /// The slot of this server.
        writer: WriterSlot,
        /// How many values the field has.
        residues: u32,
    },
    /// An instant before the first id or after the last.
    TimeOutOfRange {
        /// The instant asked for.
        at: Millis,
        /// When ids can be.
        times: Times,
    },
}

/// The times that ids can have, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first millisecond: the epoch.
    pub first: Millis,
    /// The last millisecond whose ids are positive.
    pub last: Millis,
}

impl Times {
    /// Those of all layouts together.
    pub const ALL: Self = Self { first: Millis::new(0), last: Millis::LAST };

    /// That an instant is one of them.
    ///
    /// # Errors
    /// [`Error::TimeOutOfRange`] (SQLSTATE 22008).
    pub fn check(self, at: Millis) -> Result<(), Error> {
        if (self.first..=self.last).contains(&at) {
            Ok(())
        } else {
            Err(Error::TimeOutOfRange { at, times: self })
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShardOutOfRange { shard, last } => write!(f, "shard {shard} is out of range 0 to {last}"),
            Self::NegativeSequence(value) => write!(f, "sequence value {value} is negative"),
            Self::TooManyWriters { writer, residues } => {
                write!(f, "writer slot {writer} of {residues} residues")
            }
            Self::TimeOutOfRange { at, times } => write!(
                f,
                "{} ms is out of range {} ms to {} ms",
                at.get(),
                times.first.get(),
                times.last.get()
            ),
        }
    }
}

impl std::error::Error for Error {}
