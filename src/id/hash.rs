//! Hashes of layouts. They must never change, because hash partitions of users' tables rely on them.

use super::Layout;
use super::layout::Fields;

/// 2^64 divided by the golden ratio. Products of it and consecutive numbers lie far apart.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of `SplitMix64`: a bijection in which each bit of the input affects every bit of the output.
///
/// # References
/// Sebastiano Vigna, "splitmix64.c", 2015.
#[must_use]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Layout {
    /// A hash of the layout, with 64 bits.
    #[must_use]
    pub const fn hash64(self) -> u64 {
        let Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = self.fields();
        // The widths need 7, 5 and 5 bits, and the unit needs 10.
        let rest = unit_ms << 18 | time_bits << 11 | shard_bits << 6 | seq_bits << 1 | seq_above_shard as u32;
        mix(epoch.get().cast_unsigned() ^ mix(rest as u64))
    }
}
