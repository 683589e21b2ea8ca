//! The map, the fences and the writer slot, as far as they are not written in SQL.

use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::id::WriterSlot;
use crate::pg::placement::fence;
use crate::pg::placement::map;
use crate::pg::server::shared;
use crate::pg::types::text::Text;
use crate::report::{InvalidWriterSlot, NotAWriterSlot, SqlResult};
use crate::shard::placement;

/// Returns the name of this server's node, or NULL if it has none.
#[pg_extern(sql = false)]
fn this_node() -> SqlResult<Option<Text>> {
    let node = shared::this_node()?;
    Ok((!node.is_empty()).then_some(Text(node)))
}

/// Returns the writer slot of this server, like `0/2`. An invalid setting is an error.
#[pg_extern(sql = false)]
fn writer_slot() -> SqlResult<String> {
    Ok(shared::writer_slot()?.ok_or(InvalidWriterSlot)?.to_string())
}

/// Returns whether every residue of a writer slot is one of another slot's.
#[pg_extern(sql = false)]
fn is_part_of_slot(slot: &[u8], other: &[u8]) -> SqlResult<bool> {
    Ok(parse_slot(slot)?.is_part_of(parse_slot(other)?))
}

fn parse_slot(text: &[u8]) -> Result<WriterSlot, NotAWriterSlot<'_>> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(NotAWriterSlot(text))
}

/// Makes all sessions of the database read the map again, once the transaction has committed.
#[pg_extern(sql = false)]
fn forget_map() {
    map::invalidate_everywhere();
}

/// Returns the system identifier and the timeline of the server, and the OID of this database, or NULL on a standby.
#[pg_extern(sql = false)]
fn timeline() -> Option<Text> {
    map::timeline().map(Text)
}

/// Returns the shards that are fenced, or offered to another node, with the names of their schemas. It sees what other
/// sessions have committed, whatever the transaction's snapshot is.
#[pg_extern(sql = false)]
fn fenced_schemas() -> Result<TableIterator<'static, (name!(shard, i32), name!(schema, Text))>, ErrorReport> {
    Ok(TableIterator::new(map::fenced_schemas()?.into_iter().map(|(shard, schema)| (shard, Text(schema)))))
}

/// The trigger of a fence: lets a writer pass, now or within `insta_ids.fence_wait`, or raises an error. `pg_trigger` would
/// report that error as a panic.
#[pg_extern(sql = false)]
fn guard_write(fcinfo: pg_sys::FunctionCallInfo) -> SqlResult<()> {
    Ok(fence::pass_trigger(fcinfo)?)
}

/// Raises the error for a shard that is fenced here, or on another node. Never returns.
#[pg_extern(sql = false)]
fn refuse_shard(shard: i32, is_fenced: bool) -> SqlResult<()> {
    Err(map::why_not_here(shared::this_node()?, shard, is_fenced)?.into())
}

/// Returns the name of a shard's schema after the shard has moved away.
#[pg_extern(sql = false)]
fn departed_schema(shard: i32, prefix: &[u8]) -> Text {
    Text(placement::departed_schema(shard, prefix))
}
