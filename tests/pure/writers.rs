//! Writer slots: the residues of several writers are apart, and together all that there are.

use std::collections::BTreeSet;

use insta_ids::id::{Error, Fields, Layout, WriterSlot};
use proptest::prelude::*;

proptest! {
    #[test]
    fn alone_it_is_the_remainder(value: i64) {
        let layout = Layout::INSTAGRAM;
        prop_assert_eq!(layout.seq_of_writer(value, WriterSlot::ALONE), layout.seq(value));
    }

    #[test]
    fn of_several_it_is_the_product(value: i64, slot in 0..1024_u32, bits in 0..=10_u32) {
        let slots = 1 << bits;
        let writer = WriterSlot::new(slot % slots, slots).unwrap();
        let expected = (i128::from(value) * i128::from(slots) + i128::from(slot % slots)).rem_euclid(1024);
        match Layout::INSTAGRAM.seq_of_writer(value, writer) {
            Ok(seq) => prop_assert_eq!(i128::from(seq.get()), expected),
            Err(error) => prop_assert_eq!((value < 0, error), (true, Error::NegativeSequence(value))),
        }
    }

    #[test]
    fn texts(slot: u32, slots: u32) {
        let text = format!("{slot}/{slots}");
        let slot = WriterSlot::new(slot, slots);
        prop_assert_eq!(text.parse().ok(), slot);
        prop_assert_eq!(slot.map(|slot| slot.to_string()), slot.map(|_| text));
    }

    #[test]
    fn any_text_is_a_slot_or_none(text in "[ +0-9/-]{0,9}") {
        if let Ok(slot) = text.parse::<WriterSlot>() {
            prop_assert_eq!(slot.to_string().parse(), Ok(slot));
        }
    }
}

/// The residues of a slot that a sequence of 5 bits has.
fn residues(writer: WriterSlot) -> BTreeSet<u32> {
    let layout = Layout::new(Fields { seq_bits: 5, ..Layout::INSTAGRAM.fields() }).unwrap();
    (0..32).map(|value| layout.seq_of_writer(value, writer).unwrap().get()).collect()
}

#[test]
fn two_slots_are_apart_or_one_is_a_part() {
    let slots: Vec<_> = (0..=5)
        .flat_map(|bits| (0..1 << bits).filter_map(move |slot| WriterSlot::new(slot, 1 << bits)))
        .collect();
    for (&one, &other) in slots.iter().flat_map(|one| slots.iter().map(move |other| (one, other))) {
        let (of_one, of_other) = (residues(one), residues(other));
        assert_eq!(one.is_part_of(other), of_one.is_subset(&of_other), "{one} of {other}");
        assert_eq!(
            one.is_part_of(other) || other.is_part_of(one),
            !of_one.is_disjoint(&of_other),
            "{one} and {other}"
        );
    }
}

#[test]
fn all_residues_are_someones() {
    for bits in 0..=10 {
        let slots = 1 << bits;
        let mut all = BTreeSet::new();
        for slot in 0..slots {
            let writer = WriterSlot::new(slot, slots).unwrap();
            for value in 0..1024 / i64::from(slots) {
                let seq = Layout::INSTAGRAM.seq_of_writer(value, writer).unwrap();
                assert!(all.insert(seq.get()), "{seq:?} is of {writer} and of another");
            }
        }
        assert_eq!(all.len(), 1024);
    }
}

#[test]
fn no_more_slots_than_residues() {
    let fields = Layout::INSTAGRAM.fields();
    let narrow = Layout::new(Fields { seq_bits: 3, ..fields }).unwrap();
    assert_eq!(narrow.seq_of_writer(1, WriterSlot::new(5, 8).unwrap()).unwrap().get(), 5);
    let writer = WriterSlot::new(5, 16).unwrap();
    assert_eq!(narrow.seq_of_writer(1, writer), Err(Error::TooManyWriters { writer, residues: 8 }));
}

#[test]
fn known_answers() {
    for (text, slot) in [("0/1", Some((0, 1))), ("1/2", Some((1, 2))), ("7/1024", Some((7, 1024)))] {
        assert_eq!(text.parse().ok(), slot.and_then(|(slot, slots)| WriterSlot::new(slot, slots)), "{text}");
    }
    for text in
        ["", "1", "/", "1/", "/2", "2/2", "1/3", "0/0", "-1/2", "+1/2", "1 /2", "0/4294967296", "1/2/4"]
    {
        assert!(text.parse::<WriterSlot>().is_err(), "{text}");
    }
}
