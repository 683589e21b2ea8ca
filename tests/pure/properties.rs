//! What holds for every id, of every layout. What a layout says is told by a model beside it, which knows no
//! bits: only products and remainders of 128-bit integers.

use insta_ids::id::{Fields, Id, Layout, Millis, ShortcodeError, instant, shortcode};
use proptest::prelude::*;

const NOW: Millis = Millis::new(1_800_000_000_000);

/// Any layout, and often one that has a name.
pub(crate) fn layout() -> impl Strategy<Value = Layout> {
    let unit = prop_oneof![3 => Just(1), 2 => Just(10), 1 => 1..=1000_u32];
    let bits = (0..=31_u32, 0..=31_u32, any::<prop::sample::Index>(), any::<bool>());
    let any = (0..=NOW.get(), unit, bits).prop_map(|(epoch, unit_ms, bits)| {
        let (shard_bits, seq_bits, time, seq_above_shard) = bits;
        let time_bits = 1 + u32::try_from(time.index(64 - (shard_bits + seq_bits) as usize)).unwrap();
        let epoch = Millis::new(epoch);
        Layout::new(Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard }).unwrap()
    });
    let named = (0..Layout::PRESETS.len()).prop_map(|n| Layout::PRESETS[n].1);
    prop_oneof![3 => any, 1 => named]
}

/// What an id is made of, as the layout's text has it.
fn model(layout: Layout, at: i64, shard: i64, seq: i64) -> i128 {
    let mut id = 0;
    for word in layout.to_string().split(' ') {
        let (name, value) = word.split_once(':').unwrap();
        let size = |bits: &str| 2_i128.pow(bits.parse().unwrap());
        let since = i128::from(at) - i128::from(layout.fields().epoch.get());
        match name {
            "time" => id = since.div_euclid(layout.fields().unit_ms.into()),
            "shard" => id = id * size(value) + i128::from(shard),
            "seq" => id = id * size(value) + i128::from(seq).rem_euclid(size(value)),
            _ => {}
        }
    }
    id
}

/// Whether the model's id is one of the layout: not negative, within the width of its fields and of a `bigint`,
/// and not beyond what the server's time can hold.
fn fits(layout: Layout, at: i64, id: i128) -> bool {
    let Fields { time_bits, shard_bits, seq_bits, .. } = layout.fields();
    let width = time_bits + shard_bits + seq_bits;
    (0..1 << width.min(63)).contains(&id) && at < 1 << 48
}

/// A value of so many bits.
fn of(bits: u32, chance: u64) -> i64 {
    i64::try_from(chance % (1 << bits)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000_000))]

    #[test]
    fn ids_are_the_models(
        layout in layout(),
        at in prop_oneof![any::<i64>(), 0..=NOW.get() * 2, 0..1_i64 << 49],
        shard: u64,
        seq in 0..=i64::MAX,
    ) {
        let shard = of(layout.fields().shard_bits, shard);
        let expected = model(layout, at, shard, seq);
        let made = layout.id(
            Millis::new(at),
            layout.shard(i32::try_from(shard).unwrap()).unwrap(),
            layout.seq(seq).unwrap(),
        );
        prop_assert_eq!(made.is_ok(), fits(layout, at, expected));
        let Ok(id) = made else { return Ok(()) };
        prop_assert_eq!(i128::from(id.bits()), expected);
        // And back.
        prop_assert_eq!(i64::from(layout.shard_of(id)), shard);
        prop_assert_eq!(i64::from(layout.seq_of(id)), seq % (1 << layout.fields().seq_bits));
        let unit = i64::from(layout.fields().unit_ms);
        let time = layout.time_of(id).get();
        prop_assert!(time <= at && at < time + unit);
        // The unit's own ids lie between its bounds, and those of its neighbours do not.
        let (min, max) = (layout.min(Millis::new(at)).unwrap(), layout.max(Millis::new(at)).unwrap());
        prop_assert!(min <= id && id <= max);
        prop_assert_eq!(layout.time_of(Id::from_bits(min.bits() - 1)).get(), time - unit);
        if let Ok(next) = layout.min(Millis::new(time + unit)) {
            prop_assert_eq!(max.bits() + 1, next.bits());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn every_bigint_is_its_parts(layout in layout(), bits: i64) {
        let id = Id::from_bits(bits);
        let at = layout.time_of(id).get();
        // At the ends of an i64 the time stays there.
        if at.unsigned_abs() < 1 << 62 {
            let (shard, seq) = (layout.shard_of(id).into(), layout.seq_of(id).into());
            prop_assert_eq!(model(layout, at, shard, seq), i128::from(bits));
        }
    }

    #[test]
    fn the_order_of_ids_is_the_order_of_their_times(layout in layout(), a: i64, b: i64) {
        let (earlier, later) = (Id::from_bits(a.min(b)), Id::from_bits(a.max(b)));
        prop_assert!(layout.time_of(earlier) <= layout.time_of(later));
    }

    #[test]
    fn shards_outside_are_refused(layout in layout(), number: i32) {
        let last = (1_i64 << layout.fields().shard_bits) - 1;
        prop_assert_eq!(layout.shard(number).is_ok(), (0..=last).contains(&number.into()));
    }

    #[test]
    fn a_unit_begins_where_it_is_said(layout in layout(), at in 0..1_i64 << 48) {
        let at = Millis::new(layout.fields().epoch.get().max(at));
        let (floor, ceil) = (layout.floor(at), layout.ceil(at));
        let unit = i64::from(layout.fields().unit_ms);
        prop_assert!(floor <= at && at <= ceil && ceil.get() - floor.get() <= unit);
        prop_assert_eq!((floor.get() - layout.fields().epoch.get()) % unit, 0);
        prop_assert_eq!((ceil == floor, layout.floor(ceil)), (at == floor, ceil));
    }

    #[test]
    fn a_layouts_text_is_read_as_it(layout in layout()) {
        prop_assert_eq!(Layout::parse(layout.to_string().as_bytes(), NOW), Ok(layout));
    }

    #[test]
    fn fields_in_any_order_are_read(layout in layout(), order: prop::sample::Index) {
        // `epoch` stands anywhere.
        let text = layout.to_string();
        let mut words: Vec<_> = text.split(' ').collect();
        let epoch = words.iter().position(|word| word.starts_with("epoch")).unwrap();
        let epoch = words.remove(epoch);
        words.insert(order.index(words.len() + 1), epoch);
        prop_assert_eq!(Layout::parse(format!("  {}\t", words.join("  ")).as_bytes(), NOW), Ok(layout));
    }

    /// What can be read at all is read back as itself; nothing else happens to it.
    #[test]
    fn any_text_is_a_layout_or_an_error(
        text in prop_oneof![
            any::<String>(),
            "((time|shard|seq|epoch|unit|x)?:?-?[0-9]{0,20}(ms|s|Z)? ?){0,7}",
        ]
    ) {
        if let Ok(layout) = Layout::parse(text.as_bytes(), NOW) {
            prop_assert_eq!(Layout::parse(layout.to_string().as_bytes(), NOW), Ok(layout));
        }
    }

    #[test]
    fn short_codes_come_back(id: i64, private in "[A-Za-z0-9_-]{28}") {
        let id = Id::from_bits(id);
        let code = shortcode::encode(id);
        prop_assert!(code.len() <= 11 && !code.starts_with('A'));
        prop_assert_eq!(shortcode::decode(code.as_bytes()), Ok(id));
        prop_assert_eq!(shortcode::decode((code + &private).as_bytes()), Ok(id));
    }

    #[test]
    fn any_text_is_a_short_code_or_an_error(code in prop_oneof![any::<String>(), "[A-Za-z0-9_-]{0,45}"]) {
        match shortcode::decode(code.as_bytes()) {
            Ok(id) => {
                let own = if code.len() > 28 { &code[..code.len() - 28] } else { &code };
                let shortest = own.trim_start_matches('A');
                let shortest = if shortest.is_empty() { "A" } else { shortest };
                prop_assert_eq!(shortcode::encode(id), shortest);
            }
            Err(ShortcodeError::NotADigit(place)) => {
                let byte = code.as_bytes()[place - 1];
                prop_assert!(!byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'_');
            }
            Err(ShortcodeError::Length(length)) => {
                prop_assert!(length == code.len() && !(1..=11).contains(&length) && !(29..=39).contains(&length));
            }
            Err(ShortcodeError::TooLarge) => {
                prop_assert!((code.len() == 11 || code.len() == 39) && !(b'A'..=b'P').contains(&code.as_bytes()[0]));
            }
        }
    }

    #[test]
    fn instants_come_back(ms in 0..=253_402_300_799_999_i64) {
        let text = instant::format(Millis::new(ms));
        prop_assert_eq!(text.len(), 24);
        prop_assert_eq!(instant::parse(&text), Some(Millis::new(ms)));
    }

    #[test]
    fn any_text_is_an_instant_or_none(
        text in prop_oneof![any::<String>(), "[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\\.[0-9]{0,4})?)?Z?)?"]
    ) {
        if let Some(at) = instant::parse(&text) {
            prop_assert!(instant::format(at).starts_with(text.trim_end_matches('Z')));
        }
    }
}
