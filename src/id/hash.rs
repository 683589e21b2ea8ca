//! Hashing. What it returns must never change: hash partitions are kept by it.

use super::Layout;
use super::layout::Fields;

/// 2^64 by the golden ratio: multiplied with it, numbers in a row lie far apart.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of `SplitMix64`: a bijection in which each bit of the input reaches every bit.
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
    /// The layout in 64 bits: hardly ever the same for two.
    #[must_use]
    pub const fn hash64(self) -> u64 {
        let Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = self.fields();
        // The widths have 7, 5 and 5 bits, the unit 10.
        let rest = unit_ms << 18 | time_bits << 11 | shard_bits << 6 | seq_bits << 1 | seq_above_shard as u32;
        mix(epoch.get().cast_unsigned() ^ mix(rest as u64))
    }
}
