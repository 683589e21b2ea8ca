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
    /// Whether it was open when this server was promoted, in a move that may have gone on without it.
    pub is_in_doubt: bool,
}

/// Where the shards of a database are.
#[derive(Debug, Default)]
pub struct Placement {
    /// The name of this server's node; without one, all shards are here.
    here: Vec<u8>,
    /// The version of the map.
    version: i64,
    /// How many shards there are.
    shards: i32,
    /// By their shards.
    assignments: Vec<Assignment>,
    /// By their shards, too.
    fences: Vec<Fence>,
}

/// Why ids of a shard are not minted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The shard.
    pub shard: i32,
    /// Whether it is fenced here.
    pub is_fenced: bool,
    /// Whether the server was promoted while the shard moved.
    pub is_in_doubt: bool,
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
        mut assignments: Vec<Assignment>,
        mut fences: Vec<Fence>,
    ) -> Self {
        assignments.sort_unstable_by_key(|on| on.first);
        fences.sort_unstable_by_key(|fence| fence.shard);
        Self { here, version, shards, assignments, fences }
    }

    /// Whether all are here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let is_shard = |fence: &Fence| (0..self.shards).contains(&fence.shard);
        !self.fences.iter().any(is_shard) && (!self.has_map() || self.own_shards() == i64::from(self.shards))
    }

    /// Whether ids of a shard are minted here. Numbers that are no shard's are nobody's.
    #[must_use]
    pub fn is_here(&self, shard: i32) -> bool {
        let is_mapped_here = || !self.has_map() || self.on(shard).is_some_and(|on| on.node == self.here);
        !(0..self.shards).contains(&shard) || self.fence(shard).is_none() && is_mapped_here()
    }

    /// Without a name or without assignments, nothing is elsewhere.
    fn has_map(&self) -> bool {
        !self.here.is_empty() && !self.assignments.is_empty()
    }

    /// How many shards the map has on this node.
    fn own_shards(&self) -> i64 {
        let length = |on: &Assignment| i64::from(on.last.min(self.shards - 1)) - i64::from(on.first) + 1;
        self.assignments.iter().filter(|on| on.node == self.here).map(|on| length(on).max(0)).sum()
    }

    fn on(&self, shard: i32) -> Option<&Assignment> {
        let after = self.assignments.partition_point(|on| on.first <= shard);
        self.assignments[..after].last().filter(|on| shard <= on.last)
    }

    fn fence(&self, shard: i32) -> Option<&Fence> {
        self.fences.binary_search_by_key(&shard, |fence| fence.shard).ok().map(|at| &self.fences[at])
    }

    /// Why a shard is not here, or would not be.
    #[must_use]
    pub fn why(&self, shard: i32) -> Elsewhere {
        let (fence, on) = (self.fence(shard), self.on(shard));
        Elsewhere {
            shard,
            is_fenced: fence.is_some(),
            is_in_doubt: fence.is_some_and(|fence| fence.is_in_doubt),
            to: fence.and_then(|fence| fence.to.clone()),
            node: on.map(|on| on.node.clone()),
            here: self.here.clone(),
            version: self.version,
        }
    }
}

/// The number of the shard whose schema this is, also when it has moved away; by the prefix of all.
#[must_use]
pub fn shard_of_schema(schema: &[u8], prefix: &[u8]) -> Option<i32> {
    // As sql/moves.sql calls what has left.
    const LONGEST: usize = 63;
    const MOVED: &[u8] = b"__moved";
    let own = schema.strip_suffix(MOVED).unwrap_or(schema);
    let too_long = |digits: &[u8]| prefix.len() + digits.len() + MOVED.len() > LONGEST;
    let digits = own
        .strip_prefix(prefix)
        .or_else(|| schema.strip_prefix(b"moved__").filter(|&digits| too_long(digits)))?;
    number_of(digits)
}

/// The number of a shard as it is in names: neither a sign nor a zero before it.
fn number_of(digits: &[u8]) -> Option<i32> {
    let number: i32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == digits && number >= 0).then_some(number)
}
