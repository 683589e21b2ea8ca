//! Where the fields of an id are. The only place with bit widths.
//!
//! ```text
//! bit  63            22        9         0
//!      |  time, ms    |  shard  |   seq   |
//!      |   41 bits    | 13 bits | 10 bits |
//! ```
//!
//! The published function fills all 64 bits of a signed `bigint`, so the top bit of its time is the
//! sign: [`LAST`] is the last instant whose ids are positive, 2^40 ms after [`EPOCH`].

use super::Millis;

const SHARD_BITS: u32 = 13;
const SEQ_BITS: u32 = 10;

/// Bits below the time.
const TIME_SHIFT: u32 = SHARD_BITS + SEQ_BITS;

/// Number of the last shard; the first is 0.
pub const MAX_SHARD: u16 = (1 << SHARD_BITS) - 1;

/// How many values the sequence field takes: `nextval % 1024`.
pub const RESIDUES: u16 = 1 << SEQ_BITS;

/// The instant of time 0: 2011-08-24T21:07:01.721Z, the `our_epoch` of the published function.
pub const EPOCH: Millis = Millis(1_314_220_021_721);

/// The last instant an id can hold: 2046-06-27T17:00:49.496Z. One millisecond later the published
/// function returns negative ids.
pub const LAST: Millis = Millis(EPOCH.0 + (i64::MAX >> TIME_SHIFT));

/// Puts the fields in their places. `since_epoch` is in milliseconds, 0 to 2^40 - 1.
pub(super) const fn pack(since_epoch: i64, shard: u16, seq: u16) -> i64 {
    since_epoch << TIME_SHIFT | (shard as i64) << SEQ_BITS | seq as i64
}

/// Milliseconds since the epoch; negative for a negative id, as in SQL's `id >> 23`.
pub(super) const fn time_of(bits: i64) -> i64 {
    bits >> TIME_SHIFT
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "masked to 13 bits")]
pub(super) const fn shard_of(bits: i64) -> u16 {
    (bits >> SEQ_BITS) as u16 & MAX_SHARD
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "masked to 10 bits")]
pub(super) const fn seq_of(bits: i64) -> u16 {
    bits as u16 & (RESIDUES - 1)
}
