//! Which shards this server mints ids of: those that the map assigns to its node and that are not fenced.

/// A range of shards that the map assigns to a node.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The first shard.
    pub first: i32,
    /// The last shard, included.
    pub last: i32,
    /// The name of the node.
    pub node: Vec<u8>,
}

/// A shard that nothing may be written to on this server.
#[derive(Clone, Debug)]
pub struct Fence {
    /// The shard.
    pub shard: i32,
    /// The node that the shard moves to, if it moves.
    pub to: Option<Vec<u8>>,
    /// Whether the shard was open when this server was promoted, in a move that may have gone on without this server.
    pub is_in_doubt: bool,
}

/// Where the shards of a database are.
#[derive(Debug)]
pub struct Placement {
    here: Vec<u8>,
    version: i64,
    shards: i32,
    /// In the order of their shards.
    assignments: Vec<Assignment>,
    /// In the order of their shards.
    fences: Vec<Fence>,
}

/// Why ids of a shard are not minted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHere {
    /// The shard.
    pub shard: i32,
    /// Whether the shard is fenced here.
    pub is_fenced: bool,
    /// Whether this server was promoted while the shard moved.
    pub is_in_doubt: bool,
    /// The node that the shard moves to.
    pub to: Option<Vec<u8>>,
    /// The node that the map assigns the shard to.
    pub node: Option<Vec<u8>>,
    /// This server's node; empty if it has no name.
    pub here: Vec<u8>,
    /// The version of the map.
    pub version: i64,
}

impl Placement {
    /// A map without shards.
    pub const NOWHERE: Self =
        Self { here: Vec::new(), version: 0, shards: 0, assignments: Vec::new(), fences: Vec::new() };

    /// The placement of shards 0 to `shards` - 1, by version `version` of the map.
    ///
    /// `here` is the name of this server's node. If it is empty, or if there are no assignments, all shards are here but the
    /// fenced ones. Otherwise a shard that no range contains is not here.
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

    /// Whether all shards are here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let is_shard = |fence: &Fence| (0..self.shards).contains(&fence.shard);
        !self.fences.iter().any(is_shard) && (!self.has_map() || self.own_shards() == i64::from(self.shards))
    }

    /// Whether ids of a shard are minted here. `true` for a number that no shard has, because the map says nothing about it.
    #[must_use]
    pub fn is_here(&self, shard: i32) -> bool {
        let is_mapped_here = || {
            !self.has_map() || self.assignment(shard).is_some_and(|assignment| assignment.node == self.here)
        };
        !(0..self.shards).contains(&shard) || self.fence(shard).is_none() && is_mapped_here()
    }

    fn has_map(&self) -> bool {
        !self.here.is_empty() && !self.assignments.is_empty()
    }

    /// How many shards the map assigns to this node.
    fn own_shards(&self) -> i64 {
        let length = |on: &Assignment| i64::from(on.last.min(self.shards - 1)) - i64::from(on.first) + 1;
        self.assignments.iter().filter(|on| on.node == self.here).map(|on| length(on).max(0)).sum()
    }

    fn assignment(&self, shard: i32) -> Option<&Assignment> {
        let after = self.assignments.partition_point(|on| on.first <= shard);
        self.assignments[..after].last().filter(|on| shard <= on.last)
    }

    fn fence(&self, shard: i32) -> Option<&Fence> {
        self.fences.binary_search_by_key(&shard, |fence| fence.shard).ok().map(|at| &self.fences[at])
    }

    /// What an error says about a shard that is not here.
    #[must_use]
    pub fn why_not_here(&self, shard: i32) -> NotHere {
        let (fence, assignment) = (self.fence(shard), self.assignment(shard));
        NotHere {
            shard,
            is_fenced: fence.is_some(),
            is_in_doubt: fence.is_some_and(|fence| fence.is_in_doubt),
            to: fence.and_then(|fence| fence.to.clone()),
            node: assignment.map(|assignment| assignment.node.clone()),
            here: self.here.clone(),
            version: self.version,
        }
    }
}

const LONGEST_NAME: usize = 63;
const MOVED: &[u8] = b"__moved";
/// Where the schema's name and [`MOVED`] are longer than a name can be.
const MOVED_BEFORE: &[u8] = b"moved__";

/// The shard that a schema belongs to, by the prefix of the shards' schemas. Returns `None` if it belongs to no shard.
///
/// The schema of shard 5 is `insta5`, or [`departed_schema`] after the shard has moved away.
#[must_use]
pub fn shard_of_schema(schema: &[u8], prefix: &[u8]) -> Option<i32> {
    let own = schema.strip_suffix(MOVED).unwrap_or(schema);
    let before = || schema.strip_prefix(MOVED_BEFORE).filter(|&digits| is_too_long(prefix, digits));
    number_of(own.strip_prefix(prefix).or_else(before)?)
}

/// The name of a shard's schema after the shard has moved away: `insta5__moved`, or `moved__5` where that is longer than a
/// name can be.
#[must_use]
pub fn departed_schema(shard: i32, prefix: &[u8]) -> Vec<u8> {
    let digits = shard.to_string().into_bytes();
    if is_too_long(prefix, &digits) {
        [MOVED_BEFORE, &digits].concat()
    } else {
        [prefix, &digits, MOVED].concat()
    }
}

fn is_too_long(prefix: &[u8], digits: &[u8]) -> bool {
    prefix.len() + digits.len() + MOVED.len() > LONGEST_NAME
}

/// The shard's number from the digits in a name: without a sign, and without leading zeroes.
fn number_of(digits: &[u8]) -> Option<i32> {
    let number: i32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == digits && number >= 0).then_some(number)
}
