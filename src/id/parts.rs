//! Ids and their parts, each a type of its own.

/// An instant in milliseconds since 1970-01-01T00:00:00Z, without leap seconds. Signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Millis(pub(super) i64);

impl Millis {
    /// The last millisecond that ids of any layout can have: 10889-08-02T05:31:50.655Z, the greatest that 48 bits hold.
    pub const LAST: Self = Self((1 << 48) - 1);

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

    /// The instant `ms` later, or the nearest end of `i64`.
    #[must_use]
    pub const fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// The number of a logical shard, checked by [`super::Layout::shard`] to fit into its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub(super) u32);

impl Shard {
    /// The shard's number: 0 to 2^31 - 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The sequence field of an id: a sequence's value modulo the number of values that the field has, by
/// [`super::Layout::seq`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub(super) u32);

impl Seq {
    /// The value 0.
    pub const FIRST: Self = Self(0);

    /// The field's value: 0 to 2^31 - 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A 64-bit id. Ids of one layout are ordered by time, then by the other fields. [`super::Layout`] reads the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Id(pub(super) i64);

impl Id {
    /// The id with the value of a `bigint`.
    #[must_use]
    pub const fn from_bits(bits: i64) -> Self {
        Self(bits)
    }

    /// The value as a `bigint`.
    #[must_use]
    pub const fn bits(self) -> i64 {
        self.0
    }
}
