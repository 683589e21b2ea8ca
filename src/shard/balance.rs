//! Which shards go to which nodes, so that all nodes of a fleet are loaded alike.
//!
//! The plan is greedy, as the one of Citus is: again and again, shards go from the fullest node to the emptiest. At first these are
//! neighbours, which one move can take together. Loads are numbers of any unit.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

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
/// `remains` has shards, each with the number of a node that still has what is left of it from before it moved. The shard cannot
/// come back to that node.
///
/// Each shard moves at most once. Drained nodes lose all shards that have a node to go to. Apart from these, no step makes the
/// fuller of its two nodes as full as before, so the fullest node never gets fuller. If no node can take anything, there is no step.
#[must_use]
pub fn plan(nodes: &[Node], shards: &[Shard], remains: &BTreeSet<(i32, usize)>, threshold: f64) -> Vec<Step> {
    let mut fleet = Fleet::new(nodes, shards, remains);
    while fleet.run(threshold) {}
    fleet.drain();
    while fleet.run(threshold) {}
    for shards in &mut fleet.movable {
        shards.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    while fleet.step(threshold) {}
    fleet.steps
}

/// A node has many shards if it has this many of their size. Then it hardly matters which of them go.
const MANY: f64 = 16.0;

struct Fleet<'a> {
    remains: &'a BTreeSet<(i32, usize)>,
    /// The weight of each node. It is 0 for nodes that nothing comes to.
    weights: Vec<f64>,
    is_drained: Vec<bool>,
    loads: Vec<f64>,
    /// For each node, the loads of the shards that may leave it, with the shards: in the order of the shards while neighbours
    /// leave, and in the order of the loads afterwards.
    movable: Vec<Vec<(f64, i32)>>,
    steps: Vec<Step>,
}

impl<'a> Fleet<'a> {
    fn new(nodes: &[Node], shards: &[Shard], remains: &'a BTreeSet<(i32, usize)>) -> Self {
        let mut loads = vec![0.0; nodes.len()];
        let mut movable = vec![Vec::new(); nodes.len()];
        for shard in shards {
            loads[shard.node] += shard.load;
            if !shard.is_pinned {
                movable[shard.node].push((shard.load, shard.shard));
            }
        }
        for shards in &mut movable {
            shards.sort_unstable_by_key(|(_, shard)| *shard);
        }
        let weights =
            nodes.iter().map(|node| if node.is_drained { 0.0 } else { node.weight.max(0.0) }).collect();
        let is_drained = nodes.iter().map(|node| node.is_drained).collect();
        Self { remains, weights, is_drained, loads, movable, steps: Vec::new() }
    }

    /// How full a node is, with so much more load.
    fn fullness(&self, node: usize, more: f64) -> f64 {
        (self.loads[node] + more) / self.weights[node]
    }

    /// How full the takers would be if all were alike and had the load of the drained nodes, too.
    fn average(&self, takers: &[usize], drained: &[usize]) -> f64 {
        let load: f64 = takers.iter().chain(drained).map(|&node| self.loads[node]).sum();
        load / takers.iter().map(|&node| self.weights[node]).sum::<f64>()
    }

    /// The nodes that take shards, the emptiest first.
    fn takers(&self) -> Vec<usize> {
        let mut takers: Vec<_> = (0..self.weights.len()).filter(|&node| self.weights[node] > 0.0).collect();
        takers.sort_by(|&a, &b| self.fullness(a, 0.0).total_cmp(&self.fullness(b, 0.0)));
        takers
    }

    /// Moves neighbours from a drained node or, when these are empty, from one that has too much, to a node that has too little,
    /// so that neither of the two passes the average. Does nothing if there are no such neighbours.
    fn run(&mut self, threshold: f64) -> bool {
        let takers = self.takers();
        let drained: Vec<_> = (0..self.loads.len())
            .filter(|&node| self.is_drained[node] && !self.movable[node].is_empty())
            .collect();
        let average = self.average(&takers, &drained);
        let full: Vec<_> = if drained.is_empty() { takers.iter().rev().copied().collect() } else { drained };
        for from in full {
            let is_full = self.is_drained[from] || self.fullness(from, 0.0) > average * (1.0 + threshold);
            let surplus =
                self.loads[from] - if self.is_drained[from] { 0.0 } else { average * self.weights[from] };
            for &to in &takers {
                let is_empty = self.fullness(to, 0.0) < average * (1.0 - threshold);
                let room = surplus.min(average * self.weights[to] - self.loads[to]);
                if !(is_full || is_empty) || room <= 0.0 {
                    break;
                }
                let neighbours = self.neighbours(from, to, room, average * self.weights[to] / MANY);
                if !neighbours.is_empty() {
                    for (load, shard) in self.movable[from].drain(neighbours).collect::<Vec<_>>() {
                        self.go(Step { shard, from, to }, load);
                    }
                    return true;
                }
            }
        }
        false
    }

    /// The places of the first shards that are next to each other on one node, can go to another, and together have no more load
    /// than `room`. Shards with more load than `small` are not among them: of these, the best is to be chosen.
    fn neighbours(&self, from: usize, to: usize, room: f64, small: f64) -> Range<usize> {
        let shards = &self.movable[from];
        let goes = |place: usize| {
            shards[place].0 > 0.0 && shards[place].0 <= small && self.can_go(shards[place].1, to)
        };
        let Some(first) = (0..shards.len()).find(|&place| goes(place) && shards[place].0 <= room) else {
            return 0..0;
        };
        let mut sum = shards[first].0;
        let more = (first + 1..shards.len()).take_while(|&place| {
            sum += shards[place].0;
            shards[place - 1].1 + 1 == shards[place].1 && goes(place) && sum <= room
        });
        first..first + 1 + more.count()
    }

    fn can_go(&self, shard: i32, to: usize) -> bool {
        !self.remains.contains(&(shard, to))
    }

    /// Moves what has remained on drained nodes, the largest first, each to the node that is then the emptiest.
    fn drain(&mut self) {
        let mut leaving = Vec::new();
        for from in (0..self.loads.len()).filter(|&node| self.is_drained[node]) {
            leaving.extend(
                std::mem::take(&mut self.movable[from]).into_iter().map(|(load, shard)| (load, shard, from)),
            );
        }
        leaving.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut taken = vec![0_u32; self.loads.len()];
        for (load, shard, from) in leaving {
            // Shards without any load go to all nodes in turn.
            let takers = self.takers().into_iter().filter(|&to| self.can_go(shard, to));
            let emptiest = takers.min_by(|&a, &b| {
                let by_load = self.fullness(a, load).total_cmp(&self.fullness(b, load));
                by_load.then(taken[a].cmp(&taken[b]))
            });
            let Some(to) = emptiest else { continue };
            taken[to] += 1;
            self.go(Step { shard, from, to }, load);
        }
    }

    /// Takes one step, if there is one.
    fn step(&mut self, threshold: f64) -> bool {
        let takers = self.takers();
        let average = self.average(&takers, &[]);
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
        let goes = |place: &usize| self.can_go(shards[*place].1, to);
        let near = [(0..above).rev().find(goes), (above..shards.len()).find(goes)].into_iter().flatten();
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
