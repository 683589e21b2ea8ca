//! The layout of an id: where its fields are. No other file knows bit widths.
//!
//! ```text
//! bit  63                22          9         0
//!      |  time: 41 bits  |  shard: 13 |  seq: 10 |   Instagram's
//! ```
//!
//! The time is the most significant field. The shard and the sequence field follow in either order, and each can be absent.
//! If the fields need fewer than 64 bits, the top bits are 0. A `bigint` is signed. So where the fields fill all 64 bits,
//! the top bit of the time is the sign, and the layout ends before ids would become negative.

use std::fmt;

use super::{Error, Id, Millis, Seq, Shard, Times, WriterSlot, instant};

/// How an id is composed: the widths and the order of its fields, when its time begins, and the unit of its time.
///
/// # Examples
/// The id of Instagram's reel `DIalB2kxeGO`:
/// ```
/// use insta_ids::id::{Id, Layout, Millis};
///
/// let layout = Layout::INSTAGRAM;
/// let id = Id::from_bits(3_610_360_906_330_268_046);
/// assert_eq!(layout.time_of(id), Millis::new(1_744_608_580_386)); // 2025-04-14T05:29:40.386Z
/// assert_eq!((layout.shard_of(id), layout.seq_of(id)), (4472, 398));
///
/// let (shard, seq) = (layout.shard(4472)?, layout.seq(398)?);
/// assert_eq!(layout.id(layout.time_of(id), shard, seq)?, id);
/// assert!(layout.id(Millis::new(0), shard, seq).is_err()); // before the epoch
/// # Ok::<(), insta_ids::id::Error>(())
/// ```
///
/// # References
/// Mike Krieger, "Sharding & IDs at Instagram": `(now_millis - our_epoch) << 23 | (shard_id << 10) | seq_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout(Fields);

/// The values that define a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fields {
    /// The instant of time 0.
    pub epoch: Millis,
    /// The unit of time, in milliseconds: 1 to 1000.
    pub unit_ms: u32,
    /// Bits of the time: 1 to 64.
    pub time_bits: u32,
    /// Bits of the shard: 1 to 31, or 0 if it is absent.
    pub shard_bits: u32,
    /// Bits of the sequence field: 1 to 31, or 0 if it is absent.
    pub seq_bits: u32,
    /// Whether the sequence field is more significant than the shard. `false` in a layout where one of them is absent.
    pub seq_above_shard: bool,
}

/// Why fields define no layout. Its text is a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidLayout {
    /// The fields need this many bits.
    TooWide(u32),
    /// The time has no bits, or more than 64.
    TimeBits(u32),
    /// A shard or sequence field of more than 31 bits.
    FieldBits(u32),
    /// A unit of 0, or of more than 1000 ms.
    Unit(u32),
    /// An epoch before 1970 or after [`Millis::LAST`].
    Epoch,
    /// An epoch in the future.
    Future(Millis),
}

impl fmt::Display for InvalidLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooWide(bits) => write!(f, "The fields have {bits} bits together, and an id has 64."),
            Self::TimeBits(bits) => write!(f, "The time has {bits} bits; it can have 1 to 64."),
            Self::FieldBits(bits) => {
                write!(f, "A field has {bits} bits; \"shard\" and \"seq\" can have 1 to 31, or be absent.")
            }
            Self::Unit(ms) => write!(f, "The unit is {ms} ms; it can be 1 to 1000 ms."),
            Self::Epoch => f.write_str("The epoch is before 1970 or after the year 10888."),
            Self::Future(epoch) => write!(f, "The epoch {} is in the future.", instant::format(*epoch)),
        }
    }
}

const fn milliseconds(time_bits: u32, shard_bits: u32, seq_bits: u32, epoch: i64) -> Layout {
    Layout(Fields {
        epoch: Millis(epoch),
        unit_ms: 1,
        time_bits,
        shard_bits,
        seq_bits,
        seq_above_shard: false,
    })
}

/// Instagram's layout as a type. Functions that are generic over layouts are compiled for it with all numbers known.
#[derive(Clone, Copy, Debug)]
pub struct Instagram;

impl From<Instagram> for Layout {
    fn from(Instagram: Instagram) -> Self {
        Self::INSTAGRAM
    }
}

impl Layout {
    /// The layout of Instagram's published function: 41 bits of milliseconds since 2011-08-24T21:07:01.721Z, 13 bits of shard,
    /// 10 bits of sequence. Its last instant is 2046-06-27T17:00:49.496Z.
    pub const INSTAGRAM: Self = milliseconds(41, 13, 10, 1_314_220_021_721);

    /// The layouts that have a name.
    ///
    /// # References
    /// Twitter: snowflake, tag snowflake-2010, `IdWorker.scala` (datacenter and worker read as one shard).
    /// Discord: API reference, "Snowflakes" (worker and process read as one shard). `pgEdge`: snowflake.
    /// `PgDog`: `unique_id.rs`. Mastodon: `lib/mastodon/snowflake.rb`. Sonyflake: `sonyflake.go`.
    /// `js53` is our own. Its ids fit into the 53 bits of JavaScript's integers.
    pub const PRESETS: [(&'static str, Self); 8] = [
        ("instagram", Self::INSTAGRAM),
        ("twitter", milliseconds(41, 10, 12, 1_288_834_974_657)),
        ("discord", milliseconds(42, 10, 12, 1_420_070_400_000)),
        ("pgedge", Self(Fields { seq_above_shard: true, ..milliseconds(41, 10, 12, 1_672_531_200_000).0 })),
        ("pgdog", milliseconds(41, 10, 12, 1_764_184_395_000)),
        ("mastodon", milliseconds(48, 0, 16, 0)),
        (
            "sonyflake",
            Self(Fields {
                seq_above_shard: true,
                unit_ms: 10,
                ..milliseconds(39, 16, 8, 1_409_529_600_000).0
            }),
        ),
        ("js53", milliseconds(41, 6, 6, 1_314_220_021_721)),
    ];

    /// The layout of these fields.
    ///
    /// # Errors
    /// [`InvalidLayout`] (SQLSTATE 22P02 for a text, 22P03 in binary).
    pub const fn new(fields: Fields) -> Result<Self, InvalidLayout> {
        let Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, .. } = fields;
        if time_bits < 1 || time_bits > 64 {
            return Err(InvalidLayout::TimeBits(time_bits));
        }
        if shard_bits > 31 {
            return Err(InvalidLayout::FieldBits(shard_bits));
        }
        if seq_bits > 31 {
            return Err(InvalidLayout::FieldBits(seq_bits));
        }
        if time_bits + shard_bits + seq_bits > 64 {
            return Err(InvalidLayout::TooWide(time_bits + shard_bits + seq_bits));
        }
        if unit_ms < 1 || unit_ms > 1000 {
            return Err(InvalidLayout::Unit(unit_ms));
        }
        if epoch.0 < 0 || epoch.0 > Millis::LAST.0 {
            return Err(InvalidLayout::Epoch);
        }
        // This makes equal layouts equal field by field.
        let seq_above_shard = fields.seq_above_shard && shard_bits > 0 && seq_bits > 0;
        Ok(Self(Fields { seq_above_shard, ..fields }))
    }

    /// The layout itself, after a check that its epoch is not after `now`.
    ///
    /// # Errors
    /// [`InvalidLayout::Future`] (SQLSTATE as for [`Layout::new`]).
    pub fn begun(self, now: Millis) -> Result<Self, InvalidLayout> {
        if self.0.epoch > now { Err(InvalidLayout::Future(self.0.epoch)) } else { Ok(self) }
    }

    /// The values that define the layout.
    #[must_use]
    pub const fn fields(self) -> Fields {
        self.0
    }

    /// The number of the last shard; the first is 0.
    #[must_use]
    pub const fn last_shard(self) -> u32 {
        (1 << self.0.shard_bits) - 1
    }

    /// How many values the sequence field has; 1 if it is absent.
    #[must_use]
    pub const fn residues(self) -> u32 {
        1 << self.0.seq_bits
    }

    /// The times that ids of this layout can have.
    #[must_use]
    pub const fn times(self) -> Times {
        let unit = self.0.unit_ms as i64;
        let positive = i64::MAX >> self.time_shift();
        let field = if self.0.time_bits < 63 { (1 << self.0.time_bits) - 1 } else { i64::MAX };
        let last = if positive < field { positive } else { field };
        let last = self.0.epoch.plus(last.saturating_mul(unit)).plus(unit - 1);
        Times { first: self.0.epoch, last: if last.0 < Millis::LAST.0 { last } else { Millis::LAST } }
    }

    /// A shard from its number.
    ///
    /// # Errors
    /// [`Error::ShardOutOfRange`] below 0 and above the last (SQLSTATE 22003).
    pub fn shard(self, number: i32) -> Result<Shard, Error> {
        let last = self.last_shard();
        match u32::try_from(number) {
            Ok(shard) if shard <= last => Ok(Shard(shard)),
            _ => Err(Error::ShardOutOfRange { shard: number, last }),
        }
    }

    /// The sequence field for a sequence's value: the value modulo [`Layout::residues`].
    ///
    /// # Errors
    /// [`Error::NegativeSequence`] below 0 (SQLSTATE 22003).
    pub fn seq(self, value: i64) -> Result<Seq, Error> {
        match u64::try_from(value) {
            #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
            Ok(value) => Ok(Seq((value & u64::from(self.residues() - 1)) as u32)),
            Err(_) => Err(Error::NegativeSequence(value)),
        }
    }

    /// The sequence field for a sequence's value on the server with this slot. For [`WriterSlot::ALONE`] it is the field that
    /// [`Layout::seq`] returns.
    ///
    /// # Errors
    /// As [`Layout::seq`], and [`Error::TooManyWriters`] if there are more slots than residues (SQLSTATE 55000).
    #[inline]
    pub fn seq_of_writer(self, value: i64, writer: WriterSlot) -> Result<Seq, Error> {
        let seq = self.seq(value)?;
        if writer.bits > self.fields().seq_bits {
            return Err(Error::TooManyWriters { writer, residues: self.residues() });
        }
        Ok(Seq((seq.0 << writer.bits | writer.number) & (self.residues() - 1)))
    }

    /// The id of an instant, a shard and a sequence field. It is never negative. The instant is rounded down to the unit.
    ///
    /// # Errors
    /// [`Error::TimeOutOfRange`] (SQLSTATE 22008).
    #[inline]
    pub fn id(self, at: Millis, shard: Shard, seq: Seq) -> Result<Id, Error> {
        self.pack(at, shard.0, seq.0)
    }

    /// The smallest id of the unit of time that an instant falls into.
    ///
    /// # Errors
    /// As [`Layout::id`].
    pub fn min(self, at: Millis) -> Result<Id, Error> {
        self.pack(at, 0, 0)
    }

    /// The greatest id of the unit of time that an instant falls into.
    ///
    /// # Errors
    /// As [`Layout::id`].
    pub fn max(self, at: Millis) -> Result<Id, Error> {
        self.pack(at, self.last_shard(), self.residues() - 1)
    }

    // Inlined for a layout that is known at compile time, it has no shift by a variable.
    #[inline]
    fn pack(self, at: Millis, shard: u32, seq: u32) -> Result<Id, Error> {
        self.times().check(at)?;
        let shard = i64::from(shard) << self.shard_shift();
        let seq = i64::from(seq) << self.seq_shift();
        Ok(Id(self.units(at) << self.time_shift() | shard | seq))
    }

    /// The time of an id: the beginning of its unit.
    ///
    /// Every `bigint` has a time. A negative one has a time before the epoch (Instagram's: down to 1976-10-21), so the order
    /// of ids is always the order of their times. A time that [`Millis`] cannot hold becomes its nearest end.
    #[must_use]
    pub const fn time_of(self, id: Id) -> Millis {
        self.0.epoch.plus((id.0 >> self.time_shift()).saturating_mul(self.0.unit_ms as i64))
    }

    /// The number of the shard in an id: 0 to [`Layout::last_shard`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 31 bits")]
    pub const fn shard_of(self, id: Id) -> i32 {
        (id.0 >> self.shard_shift()) as i32 & self.last_shard().cast_signed()
    }

    /// The sequence field of an id: 0 to [`Layout::residues`] - 1.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 31 bits")]
    pub const fn seq_of(self, id: Id) -> i32 {
        (id.0 >> self.seq_shift()) as i32 & (self.residues() - 1).cast_signed()
    }

    /// The beginning of the unit that holds an instant.
    #[must_use]
    pub const fn floor(self, at: Millis) -> Millis {
        if self.0.unit_ms == 1 { at } else { self.begin(self.units(at)) }
    }

    /// The beginning of the first unit that does not begin before an instant.
    #[must_use]
    pub const fn ceil(self, at: Millis) -> Millis {
        if self.0.unit_ms == 1 { at } else { self.begin(self.units(at.plus(self.0.unit_ms as i64 - 1))) }
    }

    /// Units of time from the epoch to an instant, rounded down.
    const fn units(self, at: Millis) -> i64 {
        let ms = at.0.saturating_sub(self.0.epoch.0);
        if self.0.unit_ms == 1 { ms } else { ms.div_euclid(self.0.unit_ms as i64) }
    }

    /// The beginning of the unit with this number; unit 0 begins at the epoch.
    const fn begin(self, units: i64) -> Millis {
        self.0.epoch.plus(units.saturating_mul(self.0.unit_ms as i64))
    }

    const fn time_shift(self) -> u32 {
        self.0.shard_bits + self.0.seq_bits
    }

    const fn shard_shift(self) -> u32 {
        if self.0.seq_above_shard { 0 } else { self.0.seq_bits }
    }

    const fn seq_shift(self) -> u32 {
        if self.0.seq_above_shard { self.0.shard_bits } else { 0 }
    }
}
