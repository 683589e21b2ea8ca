//! Which shards go to which nodes, so that all nodes of a fleet are loaded alike.
//!
//! The plan is greedy, as the one of Citus is: again and again, one shard goes from the fullest node to the emptiest. Loads are
//! numbers of any unit.

use std::cmp::Ordering;

/// A node of the fleet. Its place in the list is its number.
#[derive(Clone, Debug)]
pub struct Node {
    /// How much it can take, beside the other nodes: twice the weight takes twice the load. Nothing comes to a node without
    /// weight.
    pub weight: f64,
    /// Whether all its shards are to leave.
    pub is_drained: bool,
}

/// A shard, and where it is.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Its number.
    pub shard: i32,
    /// The number of its node.
    pub node: usize,
    /// Its share of the node's load.
    pub load: f64,
    /// Whether it stays where it is.
    pub is_pinned: bool,
}

/// A shard goes from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The shard.
    pub shard: i32,
    /// The number of the node that it leaves.
    pub from: usize,
    /// The number of the node that it comes to.
    pub to: usize,
}

/// The steps after which no node is loaded by more than `threshold` above or below the average, as far as that can be reached.
///
/// Each shard moves at most once. Shards first leave the nodes that are drained, the largest first, each to the node that is then
/// the emptiest. Then no step makes the fuller of its two nodes as full as before, so the fullest node never gets fuller. If no
/// node can take anything, there is no step.
#[must_use]
pub fn plan(nodes: &[Node], shards: &[Shard], threshold: f64) -> Vec<Step> {
    let mut fleet = Fleet::new(nodes, shards);
    fleet.drain(nodes);
    while fleet.step(threshold) {}
    fleet.steps
}

struct Fleet {
    /// The weight of each node. It is 0 for nodes that nothing comes to.
    weights: Vec<f64>,
    loads: Vec<f64>,
    /// For each node, the loads of the shards that may leave it, in their order, with the shards.
    movable: Vec<Vec<(f64, i32)>>,
    steps: Vec<Step>,
}

impl Fleet {
    fn new(nodes: &[Node], shards: &[Shard]) -> Self {
        let mut loads = vec![0.0; nodes.len()];
        let mut movable = vec![Vec::new(); nodes.len()];
        for shard in shards {
            loads[shard.node] += shard.load;
            if !shard.is_pinned {
                movable[shard.node].push((shard.load, shard.shard));
            }
        }
        for shards in &mut movable {
            shards.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        let weights =
            nodes.iter().map(|node| if node.is_drained { 0.0 } else { node.weight.max(0.0) }).collect();
        Self { weights, loads, movable, steps: Vec::new() }
    }

    /// How full a node is, with so much more load.
    fn fullness(&self, node: usize, more: f64) -> f64 {
        (self.loads[node] + more) / self.weights[node]
    }

    /// The nodes that take shards, the emptiest first.
    fn takers(&self) -> Vec<usize> {
        let mut takers: Vec<_> = (0..self.weights.len()).filter(|&node| self.weights[node] > 0.0).collect();
        takers.sort_by(|&a, &b| self.fullness(a, 0.0).total_cmp(&self.fullness(b, 0.0)));
        takers
    }

    fn drain(&mut self, nodes: &[Node]) {
        let mut leaving = Vec::new();
        for (from, _) in nodes.iter().enumerate().filter(|(_, node)| node.is_drained) {
            leaving.extend(
                std::mem::take(&mut self.movable[from]).into_iter().map(|(load, shard)| (load, shard, from)),
            );
        }
        leaving.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut taken = vec![0_u32; nodes.len()];
        for (load, shard, from) in leaving {
            // Shards without any load go to all nodes in turn.
            let emptiest = self.takers().into_iter().min_by(|&a, &b| {
                let by_load = self.fullness(a, load).total_cmp(&self.fullness(b, load));
                by_load.then(taken[a].cmp(&taken[b]))
            });
            let Some(to) = emptiest else { return };
            taken[to] += 1;
            self.go(Step { shard, from, to }, load);
        }
    }

    /// Takes one step, if there is one.
    fn step(&mut self, threshold: f64) -> bool {
        let takers = self.takers();
        let (load, weight) = takers
            .iter()
            .fold((0.0, 0.0), |(load, weight), &node| (load + self.loads[node], weight + self.weights[node]));
        let average: f64 = load / weight;
        for &from in takers.iter().rev() {
            let is_full = self.fullness(from, 0.0) > average * (1.0 + threshold);
            for &to in &takers {
                let is_empty = self.fullness(to, 0.0) < average * (1.0 - threshold);
                if !(is_full || is_empty) || self.fullness(to, 0.0) >= self.fullness(from, 0.0) {
                    break;
                }
                if let Some(place) = self.best(from, to) {
                    let (load, shard) = self.movable[from].remove(place);
                    self.go(Step { shard, from, to }, load);
                    return true;
                }
            }
        }
        false
    }

    /// The place of the shard whose move leaves the fuller of the two nodes least full, and less full than it is now.
    fn best(&self, from: usize, to: usize) -> Option<usize> {
        let fullest = |load: f64| self.fullness(from, -load).max(self.fullness(to, load));
        // With so much load, both would be equally full.
        let ideal = (self.fullness(from, 0.0) - self.fullness(to, 0.0))
            / (1.0 / self.weights[from] + 1.0 / self.weights[to]);
        let shards = &self.movable[from];
        let above = shards.partition_point(|(load, _)| *load < ideal);
        let near =
            [above.checked_sub(1), Some(above)].into_iter().flatten().filter(|&place| place < shards.len());
        let (left, place) =
            near.map(|place| (fullest(shards[place].0), place)).min_by(|a, b| a.0.total_cmp(&b.0))?;
        (left.total_cmp(&self.fullness(from, 0.0)) == Ordering::Less).then_some(place)
    }

    fn go(&mut self, step: Step, load: f64) {
        self.loads[step.from] -= load;
        self.loads[step.to] += load;
        self.steps.push(step);
    }
}
