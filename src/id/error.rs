//! Why a value cannot be part of an id.

use super::{Millis, WriterSlot};

/// A part that no id of a layout can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A shard below 0 or above the layout's last one.
    ShardOutOfRange {
        /// The shard asked for.
        shard: i32,
        /// The layout's last shard.
        last: u32,
    },
    /// A negative value of a sequence. The published function makes a corrupt id of it: `-5 % 1024` is -5 in SQL, and
    /// its sign bits overwrite the time and the shard.
    NegativeSequence(i64),
    /// The sequence field has fewer values than there are writer slots.
    TooManyWriters {
        /// The slot of this server.
        writer: WriterSlot,
        /// How many values the field has.
        residues: u32,
    },
    /// An instant before the first id or after the last one.
    TimeOutOfRange {
        /// The instant asked for.
        at: Millis,
        /// The times that ids can have.
        times: Times,
    },
}

/// A range of times that ids can have, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first millisecond: the epoch.
    pub first: Millis,
    /// The last millisecond whose ids are positive.
    pub last: Millis,
}

impl Times {
    /// The times of all layouts together.
    pub const ALL: Self = Self { first: Millis::new(0), last: Millis::LAST };

    /// Checks that an instant is in the range.
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
