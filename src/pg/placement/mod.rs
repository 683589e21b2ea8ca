//! Which shards are on this server and open: the map, the fences, and connections to other nodes.

pub(crate) mod fence;
pub(crate) mod map;
