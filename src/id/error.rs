//! Why a value cannot be part of an id.

use std::fmt;

use super::{EPOCH, LAST, MAX_SHARD, Millis};

/// A part that no id can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A shard below 0 or above [`MAX_SHARD`].
    ShardOutOfRange(i32),
    /// A negative value from a sequence. The published function makes a corrupt id of it: `-5 % 1024`
    /// is -5 in SQL, and its sign bits overwrite time and shard.
    NegativeSequence(i64),
    /// An instant before [`EPOCH`].
    BeforeEpoch(Millis),
    /// An instant after [`LAST`].
    PastLast(Millis),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShardOutOfRange(shard) => {
                write!(f, "shard {shard} is out of range 0 to {MAX_SHARD}")
            }
            Self::NegativeSequence(value) => write!(f, "sequence value {value} is negative"),
            Self::BeforeEpoch(at) => {
                write!(f, "{} ms is before the epoch {} ms", at.get(), EPOCH.get())
            }
            Self::PastLast(at) => write!(f, "{} ms is past the last instant {} ms", at.get(), LAST.get()),
        }
    }
}

impl std::error::Error for Error {}
