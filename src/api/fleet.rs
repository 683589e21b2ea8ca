//! The fleet, as far as it is not written in SQL.

use pgrx::iter::TableIterator;
use pgrx::prelude::*;

use crate::shard::balance::{self, Node, Shard};

/// Returns the shards that should move, in their order, with the numbers of their nodes, which count from 1. What is NULL, or on
/// a node that does not exist, is left out.
#[expect(clippy::too_many_arguments, reason = "SQL gives the columns of its tables as arrays")]
#[pg_extern(sql = false)]
fn plan_moves(
    weights: Vec<Option<f64>>,
    drained: Vec<Option<bool>>,
    shards: Vec<Option<i32>>,
    nodes: Vec<Option<i32>>,
    loads: Vec<Option<f64>>,
    pinned: Vec<Option<bool>>,
    left_shards: Vec<Option<i32>>,
    left_nodes: Vec<Option<i32>>,
    threshold: f64,
) -> TableIterator<'static, (name!(shard, i32), name!(from_node, i32), name!(to_node, i32))> {
    let fleet: Vec<_> = weights
        .into_iter()
        .zip(drained)
        .map(|(weight, is_drained)| Node {
            weight: weight.unwrap_or(0.0),
            is_drained: is_drained == Some(true),
        })
        .collect();
    let place = |number: i32| usize::try_from(number).ok()?.checked_sub(1).filter(|&node| node < fleet.len());
    let known = shards.into_iter().zip(nodes).zip(loads).zip(pinned);
    let placed: Vec<_> = known
        .filter_map(|(((shard, node), load), is_pinned)| {
            Some(Shard {
                shard: shard?,
                node: place(node?)?,
                load: load?,
                is_pinned: is_pinned == Some(true),
            })
        })
        .collect();
    let remains = left_shards
        .into_iter()
        .zip(left_nodes)
        .filter_map(|(shard, node)| Some((shard?, place(node?)?)))
        .collect();
    let number = |node: usize| i32::try_from(node).unwrap_or(i32::MAX).saturating_add(1);
    let steps = balance::plan(&fleet, &placed, &remains, threshold);
    TableIterator::new(steps.into_iter().map(move |step| (step.shard, number(step.from), number(step.to))))
}
