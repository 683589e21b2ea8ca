//! Which shards' ids this server mints: those that the map has on its node, and no fence stops.

/// Shards from `first` to `last`, inclusive, that the map has on a node.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The first of them.
    pub first: i32,
    /// The last of them.
    pub last: i32,
    /// The name of the node.
    pub node: Vec<u8>,
}

/// A shard that nothing is written to here.
#[derive(Clone, Debug)]
pub struct Fence {
    /// The shard.
    pub shard: i32,
    /// The node that it moves to.
    pub to: Option<Vec<u8>>,
}

/// Where the shards of a database are.
#[derive(Debug, Default)]
pub struct Placement {
    /// The name of this server's node; without one, all shards are here.
    here: Vec<u8>,
    /// The version of the map.
    version: i64,
    assignments: Vec<Assignment>,
    fences: Vec<Fence>,
    /// For each shard, whether its ids are not to be minted here.
    away: Vec<bool>,
}

/// Why ids of a shard are not minted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The shard.
    pub shard: i32,
    /// Whether it is fenced here.
    pub is_fenced: bool,
    /// The node that it moves to.
    pub to: Option<Vec<u8>>,
    /// The node that the map has it on.
    pub node: Option<Vec<u8>>,
    /// This server's node.
    pub here: Vec<u8>,
    /// The version of the map.
    pub version: i64,
}

impl Placement {
    /// The shards from 0 to `shards`, exclusive. With a map, a shard that it has on no node is not here either.
    #[must_use]
    pub fn new(
        shards: i32,
        here: Vec<u8>,
        version: i64,
        assignments: Vec<Assignment>,
        fences: Vec<Fence>,
    ) -> Self {
        let has_map = !here.is_empty() && !assignments.is_empty();
        let mut away = vec![has_map; usize::try_from(shards).unwrap_or(0)];
        if has_map {
            for own in assignments.iter().filter(|assignment| assignment.node == here) {
                (own.first..=own.last).for_each(|shard| set(&mut away, shard, false));
            }
        }
        for fence in &fences {
            set(&mut away, fence.shard, true);
        }
        Self { here, version, assignments, fences, away }
    }

    /// Whether all are here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.away.contains(&true)
    }

    /// Whether ids of a shard are minted here. Numbers that are no shard's are nobody's.
    #[inline]
    #[must_use]
    pub fn is_here(&self, shard: i32) -> bool {
        !usize::try_from(shard).ok().and_then(|shard| self.away.get(shard)).is_some_and(|&away| away)
    }

    /// Why a shard is not here, or would not be.
    #[must_use]
    pub fn why(&self, shard: i32) -> Elsewhere {
        let fence = self.fences.iter().find(|fence| fence.shard == shard);
        let on = self.assignments.iter().find(|on| (on.first..=on.last).contains(&shard));
        Elsewhere {
            shard,
            is_fenced: fence.is_some(),
            to: fence.and_then(|fence| fence.to.clone()),
            node: on.map(|on| on.node.clone()),
            here: self.here.clone(),
            version: self.version,
        }
    }
}

fn set(away: &mut [bool], shard: i32, is_away: bool) {
    if let Some(known) = usize::try_from(shard).ok().and_then(|shard| away.get_mut(shard)) {
        *known = is_away;
    }
}

/// What follows the name of a shard's schema when the shard has moved away.
pub const MOVED: &[u8] = b"__moved";

/// The number of the shard whose schema this is, also when it has moved away; by the prefix of all.
#[must_use]
pub fn shard_of_schema(schema: &[u8], prefix: &[u8]) -> Option<i32> {
    let number = schema.strip_prefix(prefix)?;
    std::str::from_utf8(number.strip_suffix(MOVED).unwrap_or(number)).ok()?.parse().ok()
}
