//! Ids as JSON, for clients.

use serde::Serialize;
use serde_json::Value;

use crate::id::{Id, Layout, instant};

/// The parts of an id. The id itself is text, as JavaScript's numbers lose digits beyond 2^53.
#[derive(Serialize)]
struct Parts {
    id: String,
    /// As `2013-06-20T17:15:45.376Z`: the same in every session, whatever its time zone.
    at: String,
    shard: i32,
    seq: i32,
}

/// The parts of an id in that layout.
pub(crate) fn parts(layout: Layout, id: Id) -> Value {
    let parts = Parts {
        id: id.bits().to_string(),
        at: instant::format(layout.time_of(id)),
        shard: layout.shard_of(id),
        seq: layout.seq_of(id),
    };
    // Strings and numbers only, so it cannot fail.
    serde_json::to_value(parts).unwrap_or_default()
}
