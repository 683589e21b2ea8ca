//! Where shards are: against a plain walk through the map.

use insta_ids::shard::placement::{Assignment, Fence, Placement, departed_schema, shard_of_schema};
use proptest::prelude::*;

fn node(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn assignments() -> impl Strategy<Value = Vec<Assignment>> {
    // Ranges one after the other, some of them left out.
    prop::collection::vec((1..20_i32, prop::sample::select(vec!["a", "b", "c", ""])), 0..8).prop_map(
        |parts| {
            let mut next = 0;
            let mut all = Vec::new();
            for (length, name) in parts {
                if !name.is_empty() {
                    all.push(Assignment { first: next, last: next + length - 1, node: node(name) });
                }
                next += length;
            }
            all
        },
    )
}

proptest! {
    #[test]
    fn is_here_as_the_map_says(
        assignments in assignments(), fenced in prop::collection::btree_set(0..120_i32, 0..5), here in "[abd]?"
    ) {
        let fences: Vec<_> = fenced.iter().map(|&shard| Fence { shard, to: None, is_in_doubt: false }).collect();
        let placement = Placement::new(100, node(&here), 7, assignments.clone(), fences);
        let mut all_here = true;
        for shard in -1..130 {
            let on = assignments.iter().find(|on| on.first <= shard && shard <= on.last).map(|on| &on.node);
            let is_shard = (0..100).contains(&shard);
            let by_map = here.is_empty() || assignments.is_empty() || on == Some(&node(&here));
            let is_here = !is_shard || by_map && !fenced.contains(&shard);
            prop_assert_eq!(placement.is_here(shard), is_here, "shard {}", shard);
            all_here &= is_here;
            let why = placement.why_not_here(shard);
            prop_assert_eq!((why.node.as_ref(), why.is_fenced, why.version), (on, fenced.contains(&shard), 7));
        }
        prop_assert_eq!(placement.is_complete(), all_here);
    }
}

#[test]
fn schemas_have_numbers() {
    for (schema, shard) in [
        ("insta5", Some(5)),
        ("insta0", Some(0)),
        ("insta8191", Some(8191)),
        ("insta5__moved", Some(5)),
        ("moved__5", None),
        ("insta+5", None),
        ("insta05", None),
        ("insta-5", None),
        ("moved__insta5", None),
        ("insta", None),
        ("insta5_old", None),
        ("public", None),
        ("insta99999999999", None),
        ("insta__moved", None),
    ] {
        assert_eq!(shard_of_schema(schema.as_bytes(), b"insta"), shard, "{schema}");
    }
    // Where that and the name are longer than a name can be.
    let (long, longer) = ("x".repeat(55), "x".repeat(56));
    for (schema, prefix, shard) in [
        (format!("{long}5__moved"), &long, Some(5)),
        ("moved__5".into(), &long, None),
        ("moved__55".into(), &long, Some(55)),
        ("moved__5".into(), &longer, Some(5)),
        (format!("{longer}5"), &longer, Some(5)),
    ] {
        assert_eq!(shard_of_schema(schema.as_bytes(), prefix.as_bytes()), shard, "{schema}");
    }
    // A schema is renamed to a name that still says whose it was.
    for prefix in ["insta", &long, &longer] {
        for shard in [0, 5, 55, 8191, i32::MAX] {
            let schema = departed_schema(shard, prefix.as_bytes());
            assert!(schema.len() < 64);
            assert_eq!(shard_of_schema(&schema, prefix.as_bytes()), Some(shard), "{shard} of {prefix}");
        }
    }
}
