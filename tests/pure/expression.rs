//! Expressions as the catalog stores them.

use insta_ids::shard::expression::{minted_shards, normalized_expression};
use proptest::prelude::*;

/// The default `next_id(3, 'insta3.table_id_seq')`, as PostgreSQL 15 stores it, with these OIDs and at this place.
fn next_id(function: u32, sequence: u32, shard: i32, location: i32) -> String {
    let bytes = |datum: i64| datum.to_ne_bytes().map(|byte| byte.cast_signed().to_string()).join(" ");
    format!(
        "{{FUNCEXPR :funcid {function} :funcresulttype 20 :funcretset false :funcvariadic false :funcformat 0 \
         :funccollid 0 :inputcollid 0 :args ({{CONST :consttype 23 :consttypmod -1 :constcollid 0 :constlen 4 \
         :constbyval true :constisnull false :location {} :constvalue 4 [ {} ]}} {{CONST :consttype 2205 \
         :consttypmod -1 :constcollid 0 :constlen 4 :constbyval true :constisnull false :location {} \
         :constvalue 4 [ {} ]}}) :location {location}}}",
        location + 8,
        bytes(shard.into()),
        location + 11,
        bytes(sequence.into()),
    )
}

/// Of a tree with the names of a function that mints and a sequence.
fn of_shard(tree: &str, [function, sequence]: [u32; 2], shard: i32) -> Option<Vec<u8>> {
    let name_of = |oid| match oid {
        _ if oid == function => Some(&b"next_id"[..]),
        _ if oid == sequence => Some(&b"table_id_seq"[..]),
        _ => None,
    };
    normalized_expression(tree.as_bytes(), name_of, &[function], shard)
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>, shard: i32) {
        let _ = normalized_expression(&bytes, |_| None, &[], shard);
        let _ = minted_shards(&bytes, &[99_999]);
    }

    /// Bytes that look like nodes, cut off and mixed up.
    #[test]
    fn broken_trees_are_read(pieces in proptest::collection::vec(0..12_usize, 0..30), shard: i32) {
        const PIECES: [&str; 12] = [
            "{", "}", " :", "{CONST :consttype 23 ", "{CONST :consttype 2205 ", ":constvalue 4 [ ", "-1 ", "300 ", "]",
            " :location 5", "{FUNCEXPR :funcid 99999 ", "\u{e9}",
        ];
        let tree: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        let _ = of_shard(&tree, [99_999, 300], shard);
        let _ = minted_shards(tree.as_bytes(), &[99_999]);
    }

    #[test]
    fn oids_places_and_own_number_make_no_difference(
        functions in [16_384..u32::MAX, 16_384..u32::MAX],
        sequences in [16_384..u32::MAX, 16_384..u32::MAX],
        shards: [i32; 2],
        locations in [-1..100_000, -1..100_000],
    ) {
        prop_assume!((0..2).all(|n| functions[n] != sequences[n]));
        let [one, other] = [0, 1].map(|n| next_id(functions[n], sequences[n], shards[n], locations[n]));
        let kept = of_shard(&one, [functions[0], sequences[0]], shards[0]);
        prop_assert!(kept.is_some());
        prop_assert_eq!(&kept, &of_shard(&other, [functions[1], sequences[1]], shards[1]));
        prop_assert_ne!(kept, of_shard(&other, [sequences[1], functions[1]], shards[1]));
        prop_assert_eq!(minted_shards(one.as_bytes(), &functions[..1]), [shards[0]]);
        prop_assert_eq!(minted_shards(one.as_bytes(), &[7]), [0; 0]);
    }

    /// Another number is, where it is not its own, and behind the first argument.
    #[test]
    fn other_numbers_make_a_difference(shards: [i32; 2]) {
        prop_assume!(shards[0] != shards[1]);
        let [one, other] = shards.map(|shard| next_id(20_000, 20_001, shard, 7));
        prop_assert_ne!(of_shard(&one, [20_000, 20_001], shards[0]), of_shard(&other, [20_000, 20_001], shards[0]));
        let [one, other] = shards.map(|shard| {
            let tree = next_id(20_000, 20_001, shard, 7).replace(":args (", ":args ({VAR :varno 1} ");
            of_shard(&tree, [20_000, 20_001], shard)
        });
        prop_assert_ne!(one, other);
    }
}

/// An OID that has no name may be anything: of a constant's type, in a list, of what a constant stands for.
#[test]
fn objects_without_names_are_not_compared() {
    let tree = next_id(20_000, 20_001, 3, 7);
    assert!(of_shard(&tree, [20_000, 20_001], 3).is_some());
    assert_eq!(of_shard(&tree, [20_000, 20_002], 3), None);
    for (words, others) in [
        (":consttype 23", ":consttype 16400"),
        (":args (", ":opnos (o 16400 16401) :args ("),
        (":funccollid 0", ":funccollid 12345"),
    ] {
        assert_eq!(of_shard(&tree.replacen(words, others, 1), [20_000, 20_001], 3), None, "{others}");
    }
    // Modifiers of types are as large, and no OIDs.
    let modified = tree.replacen(":consttypmod -1", ":consttypmod 655366", 1);
    assert!(of_shard(&modified, [20_000, 20_001], 4).is_some());
    assert_ne!(of_shard(&modified, [20_000, 20_001], 4), of_shard(&tree, [20_000, 20_001], 4));
}

/// What any of these words is in one shard and not in another is a difference.
#[test]
fn each_word_makes_a_difference() {
    let tree = next_id(20_000, 20_001, 3, 7);
    let kept = of_shard(&tree, [20_000, 20_001], 3);
    for (word, another) in [
        ("FUNCEXPR", "OPEXPR"),
        (":funcid 20000", ":funcid 20001"),
        (":funcresulttype 20", ":funcresulttype 23"),
        (":funcretset false", ":funcretset true"),
        (":funcformat 0", ":funcformat 1"),
        (":inputcollid 0", ":inputcollid 950"),
        (":consttype 23", ":consttype 21"),
    ] {
        assert!(tree.contains(word));
        assert_ne!(of_shard(&tree.replacen(word, another, 1), [20_000, 20_001], 3), kept, "{another}");
    }
}
