//! Plans of a fleet: what each of them keeps, and how far from the best they are.

use std::collections::BTreeSet;

use insta_ids::shard::balance::{Node, Shard, Step, plan};
use proptest::prelude::*;

/// How full the fullest node is, of those that take shards.
fn fullest(nodes: &[Node], loads: &[f64]) -> f64 {
    let takers = nodes.iter().zip(loads).filter(|(node, _)| !node.is_drained && node.weight > 0.0);
    takers.map(|(node, load)| load / node.weight).fold(0.0, f64::max)
}

fn loads(nodes: &[Node], shards: &[Shard], steps: &[Step]) -> Vec<f64> {
    let mut loads = vec![0.0; nodes.len()];
    for shard in shards {
        let step = steps.iter().find(|step| step.shard == shard.shard);
        loads[step.map_or(shard.node, |step| step.to)] += shard.load;
    }
    loads
}

fn fleet(nodes: usize, shards: usize) -> impl Strategy<Value = (Vec<Node>, Vec<Shard>)> {
    let node = (prop::sample::select(vec![0.0, 0.5, 1.0, 1.0, 1.0, 2.0]), prop::bool::weighted(0.15))
        .prop_map(|(weight, is_drained)| Node { weight, is_drained });
    prop::collection::vec(node, 1..=nodes).prop_flat_map(move |nodes| {
        let shard =
            (0..nodes.len(), prop_oneof![Just(0.0), 0.0..10.0, 0.0..1000.0], prop::bool::weighted(0.1));
        let shards = prop::collection::vec(shard, 0..=shards).prop_map(|shards| {
            let numbered = (0..).zip(shards);
            let shard = |(shard, (node, load, is_pinned))| Shard { shard, node, load, is_pinned };
            numbered.map(shard).collect()
        });
        (Just(nodes), shards)
    })
}

proptest! {
    #[test]
    fn a_plan_keeps_what_it_must(
        (nodes, shards) in fleet(8, 60),
        remains in prop::collection::btree_set((0..60, 0..8_usize), 0..60),
        threshold in 0.0..0.5,
    ) {
        let steps = plan(&nodes, &shards, &remains, threshold);
        let mut moved = std::collections::BTreeSet::new();
        for step in &steps {
            let shard = shards.iter().find(|shard| shard.shard == step.shard).unwrap();
            prop_assert!(moved.insert(step.shard), "{} moves twice", step.shard);
            prop_assert_eq!(step.from, shard.node);
            prop_assert_ne!(step.from, step.to);
            prop_assert!(!shard.is_pinned, "{} is pinned", step.shard);
            prop_assert!(!remains.contains(&(step.shard, step.to)), "remains of {} are on {}", step.shard, step.to);
            prop_assert!(nodes[step.to].weight > 0.0 && !nodes[step.to].is_drained, "{step:?}");
        }
        let takes = |node: &Node| node.weight > 0.0 && !node.is_drained;
        for shard in &shards {
            let has_taker = (0..).zip(&nodes).any(|(n, node)| takes(node) && !remains.contains(&(shard.shard, n)));
            let stays = shard.is_pinned || !has_taker || !nodes[shard.node].is_drained;
            prop_assert!(stays || moved.contains(&shard.shard), "{} stays", shard.shard);
        }
        // The same again changes nothing.
        let mut after = shards.clone();
        for shard in &mut after {
            if let Some(step) = steps.iter().find(|step| step.shard == shard.shard) {
                shard.node = step.to;
            }
        }
        let before = fullest(&nodes, &loads(&nodes, &shards, &[]));
        let drained: Vec<_> = steps.iter().copied().filter(|step| nodes[step.from].is_drained).collect();
        let after_drain = fullest(&nodes, &loads(&nodes, &shards, &drained));
        let end = fullest(&nodes, &loads(&nodes, &shards, &steps));
        prop_assert!(end <= after_drain.max(before) * (1.0 + 1e-9), "{end} after {after_drain}, {before}");
        let again = plan(&nodes, &after, &remains, threshold);
        prop_assert!(again.len() <= shards.len());
        prop_assert!(fullest(&nodes, &loads(&nodes, &after, &again)) <= end * (1.0 + 1e-9));
    }

    #[test]
    fn a_balanced_fleet_stays_as_it_is(load in 0.1..100.0, nodes in 1..10_usize, each in 0..20_usize) {
        let fleet = vec![Node { weight: 1.0, is_drained: false }; nodes];
        let shards: Vec<_> = (0..nodes * each)
            .map(|n| Shard { shard: i32::try_from(n).unwrap(), node: n % nodes, load, is_pinned: false })
            .collect();
        prop_assert_eq!(plan(&fleet, &shards, &BTreeSet::new(), 0.01), []);
    }
}

/// The least that the fullest node can be loaded with, by trying everything.
fn optimum(nodes: &[Node], shards: &[Shard]) -> f64 {
    let ways = nodes.len().pow(u32::try_from(shards.len()).unwrap());
    (0..ways)
        .map(|mut way| {
            let mut loads = vec![0.0; nodes.len()];
            for shard in shards {
                loads[way % nodes.len()] += shard.load;
                way /= nodes.len();
            }
            fullest(nodes, &loads)
        })
        .fold(f64::INFINITY, f64::min)
}

/// Deterministic, so that the figures can be quoted.
fn chance(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 33).unwrap()) / f64::from(1_u32 << 31)
    }
}

/// Of small fleets, the best is known.
#[test]
fn plans_are_near_the_optimum() {
    let mut next = chance(7);
    let mut ratios = Vec::new();
    for _ in 0..200 {
        let nodes = vec![Node { weight: 1.0, is_drained: false }; 3];
        let shards: Vec<_> = (0..9)
            .map(|shard| {
                let node = usize::from(next() < 0.3) + usize::from(next() < 0.2);
                Shard { shard, node, load: 1.0 + 9.0 * next(), is_pinned: false }
            })
            .collect();
        let steps = plan(&nodes, &shards, &BTreeSet::new(), 0.0);
        ratios.push(fullest(&nodes, &loads(&nodes, &shards, &steps)) / optimum(&nodes, &shards));
    }
    ratios.sort_by(f64::total_cmp);
    println!("median {:.3}, worst {:.3}", ratios[100], ratios[199]);
    assert!(ratios[100] < 1.05 && ratios[199] < 1.4, "{:?}", &ratios[180..]);
}

/// Shards that are next to each other go together: a node that has far too much gives each other node one range.
#[test]
fn neighbours_move_together() {
    for is_drained in [false, true] {
        let mut nodes = vec![Node { weight: 1.0, is_drained: false }; 9];
        nodes[0].is_drained = is_drained;
        let shards: Vec<_> =
            (0..720).map(|shard| Shard { shard, node: 0, load: 1.0, is_pinned: false }).collect();
        let steps = plan(&nodes, &shards, &BTreeSet::new(), 0.0);
        let ranges = steps.chunk_by(|a, b| a.to == b.to && a.shard + 1 == b.shard).count();
        assert_eq!((steps.len(), ranges), (if is_drained { 720 } else { 640 }, 8));
    }
}

/// Of a fleet of many shards, no plan is better than the average.
#[test]
fn large_fleets_are_planned_at_once_and_balanced() {
    let mut next = chance(8);
    let nodes: Vec<_> = (0..50).map(|n| Node { weight: f64::from(1 + n % 3), is_drained: n == 17 }).collect();
    let shards: Vec<_> = (0..8192)
        .map(|shard| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let node = (next() * next() * 50.0) as usize;
            Shard { shard, node, load: 1.0 / (0.02 + next()), is_pinned: false }
        })
        .collect();
    let began = std::time::Instant::now();
    let steps = plan(&nodes, &shards, &BTreeSet::new(), 0.01);
    let took = began.elapsed();
    let after = loads(&nodes, &shards, &steps);
    let average =
        after.iter().sum::<f64>() / nodes.iter().filter(|n| !n.is_drained).map(|n| n.weight).sum::<f64>();
    let ratio = fullest(&nodes, &after) / average;
    println!("{} steps in {took:?}, fullest {ratio:.4} of the average", steps.len());
    assert!(ratio < 1.05, "{ratio}");
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
}
