//! Ids and the parts they are made of, each a type of its own.

use super::Error;
use super::layout::{self, EPOCH, LAST, MAX_SHARD, RESIDUES};

/// An instant in milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted. Signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Millis(pub(super) i64);

impl Millis {
    /// An instant from its Unix time in milliseconds.
    #[must_use]
    pub const fn new(unix_ms: i64) -> Self {
        Self(unix_ms)
    }

    /// The Unix time in milliseconds.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The instant `ms` later; at the ends of `i64` it stays there.
    #[must_use]
    pub const fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// The number of a logical shard: 0 to 8191.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

impl Shard {
    /// A shard from its number.
    ///
    /// # Errors
    /// [`Error::ShardOutOfRange`] below 0 and above 8191 (SQLSTATE 22003).
    pub fn new(number: i32) -> Result<Self, Error> {
        match u16::try_from(number) {
            Ok(shard) if shard <= MAX_SHARD => Ok(Self(shard)),
            _ => Err(Error::ShardOutOfRange(number)),
        }
    }

    /// The shard's number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The sequence field of an id: `nextval % 1024`, so 0 to 1023.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u16);

impl Seq {
    /// The field that a sequence's value leaves in an id.
    ///
    /// # Errors
    /// [`Error::NegativeSequence`] below 0 (SQLSTATE 22003).
    pub fn of(value: i64) -> Result<Self, Error> {
        match u64::try_from(value) {
            #[expect(clippy::cast_possible_truncation, reason = "below 1024")]
            Ok(value) => Ok(Self((value % u64::from(RESIDUES)) as u16)),
            Err(_) => Err(Error::NegativeSequence(value)),
        }
    }

    /// The field's value.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A 64-bit id. Ids are ordered by time, then shard, then sequence field.
///
/// # Examples
/// The id that Instagram's reel `DIalB2kxeGO` carries:
/// ```
/// use insta_ids::id::{Id, Millis, Seq, Shard};
///
/// let id = Id::from_bits(3_610_360_906_330_268_046);
/// assert_eq!(id.at(), Millis::new(1_744_608_580_386)); // 2025-04-14T05:29:40.386Z
/// assert_eq!((id.shard().get(), id.seq().get()), (4472, 398));
///
/// assert_eq!(Id::new(id.at(), Shard::new(4472)?, Seq::of(398)?)?, id);
/// assert!(Id::new(Millis::new(0), Shard::new(4472)?, Seq::of(398)?).is_err()); // before the epoch
/// # Ok::<(), insta_ids::id::Error>(())
/// ```
///
/// # References
/// Mike Krieger, "Sharding & IDs at Instagram": `(now_millis - our_epoch) << 23 | (shard_id << 10) | seq_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Id(i64);

impl Id {
    /// The id of an instant, a shard and a sequence field. Never negative.
    ///
    /// # Errors
    /// [`Error::BeforeEpoch`] and [`Error::PastLast`] for an instant outside [`EPOCH`] to [`LAST`]
    /// (SQLSTATE 22008).
    pub fn new(at: Millis, shard: Shard, seq: Seq) -> Result<Self, Error> {
        Self::pack(at, shard.0, seq.0)
    }

    /// The smallest id of a millisecond.
    ///
    /// # Errors
    /// As [`Id::new`].
    pub fn min(at: Millis) -> Result<Self, Error> {
        Self::pack(at, 0, 0)
    }

    /// The greatest id of a millisecond.
    ///
    /// # Errors
    /// As [`Id::new`].
    pub fn max(at: Millis) -> Result<Self, Error> {
        Self::pack(at, MAX_SHARD, RESIDUES - 1)
    }

    fn pack(at: Millis, shard: u16, seq: u16) -> Result<Self, Error> {
        if at < EPOCH {
            return Err(Error::BeforeEpoch(at));
        }
        if at > LAST {
            return Err(Error::PastLast(at));
        }
        Ok(Self(layout::pack(at.0 - EPOCH.0, shard, seq)))
    }

    /// The id that a `bigint` is. Every `bigint` can be read; a negative one has a time before
    /// [`EPOCH`], down to 1976-10-21, so that the order of ids is the order of their times throughout.
    #[must_use]
    pub const fn from_bits(bits: i64) -> Self {
        Self(bits)
    }

    /// The `bigint` that an id is.
    #[must_use]
    pub const fn bits(self) -> i64 {
        self.0
    }

    /// The millisecond of the id.
    #[must_use]
    pub const fn at(self) -> Millis {
        Millis(EPOCH.0 + layout::time_of(self.0))
    }

    /// The shard of the id.
    #[must_use]
    pub const fn shard(self) -> Shard {
        Shard(layout::shard_of(self.0))
    }

    /// The sequence field of the id.
    #[must_use]
    pub const fn seq(self) -> Seq {
        Seq(layout::seq_of(self.0))
    }
}
