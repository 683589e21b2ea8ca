//! What holds for every id.

use insta_ids::id::{EPOCH, Id, LAST, MAX_SHARD, Millis, RESIDUES, Seq, Shard};
use proptest::prelude::*;

fn instant() -> impl Strategy<Value = Millis> {
    (EPOCH.get()..=LAST.get()).prop_map(Millis::new)
}

fn shard() -> impl Strategy<Value = Shard> {
    (0..=i32::from(MAX_SHARD)).prop_map(|number| Shard::new(number).unwrap())
}

fn seq() -> impl Strategy<Value = Seq> {
    (0..i64::from(RESIDUES)).prop_map(|value| Seq::of(value).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn what_is_put_in_comes_out(at in instant(), shard in shard(), seq in seq()) {
        let id = Id::new(at, shard, seq).unwrap();
        prop_assert_eq!((id.at(), id.shard(), id.seq()), (at, shard, seq));
        prop_assert!(id.bits() >= 0);
    }

    #[test]
    fn every_bigint_is_its_parts(bits: i64) {
        let id = Id::from_bits(bits);
        let since = i128::from(id.at().get()) - i128::from(EPOCH.get());
        let parts = since * 8192 * 1024 + i128::from(id.shard().get()) * 1024 + i128::from(id.seq().get());
        prop_assert_eq!(parts, i128::from(bits));
    }

    #[test]
    fn the_order_of_ids_is_the_order_of_their_parts(a: i64, b: i64) {
        let parts = |bits| {
            let id = Id::from_bits(bits);
            (id.at(), id.shard(), id.seq())
        };
        prop_assert_eq!(a.cmp(&b), parts(a).cmp(&parts(b)));
    }

    #[test]
    fn bounds_of_a_millisecond_are_tight(at in instant(), shard in shard(), seq in seq()) {
        let (min, max) = (Id::min(at).unwrap(), Id::max(at).unwrap());
        let id = Id::new(at, shard, seq).unwrap();
        prop_assert!(min <= id && id <= max);
        prop_assert_eq!((min.at(), max.at()), (at, at));
        prop_assert_eq!(Id::from_bits(min.bits() - 1).at(), at.plus(-1));
        if at < LAST {
            prop_assert_eq!(max.bits() + 1, Id::min(at.plus(1)).unwrap().bits());
        }
    }

    #[test]
    fn a_sequence_leaves_its_remainder(value in 0..=i64::MAX) {
        prop_assert_eq!(i64::from(Seq::of(value).unwrap().get()), value % 1024);
    }

    #[test]
    fn times_outside_are_refused(ms: i64) {
        let id = Id::new(Millis::new(ms), Shard::new(0).unwrap(), Seq::of(0).unwrap());
        prop_assert_eq!(id.is_ok(), (EPOCH.get()..=LAST.get()).contains(&ms));
    }
}
