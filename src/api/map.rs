//! The map and fences: what of them is not SQL. The rest is in sql/map.sql and sql/fences.sql.

use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::pg::map;
use crate::pg::shared;
use crate::pg::text::Text;
use crate::report::{self, SqlResult};

#[pg_extern(sql = false)]
fn this_node() -> SqlResult<Option<Text>> {
    let node = shared::this_node()?;
    Ok((!node.is_empty()).then_some(Text(node)))
}

#[pg_extern(sql = false)]
fn writer_slot() -> SqlResult<String> {
    Ok(shared::writer_slot()?.ok_or_else(report::no_writer_slot)?.to_string())
}

#[pg_extern(sql = false)]
fn forget_map() {
    map::invalidate_everywhere();
}

#[pg_extern(sql = false)]
fn timeline() -> Option<i32> {
    map::timeline()
}

/// By the newest snapshot.
#[pg_extern(sql = false)]
fn fenced_schemas() -> Result<TableIterator<'static, (name!(shard, i32), name!(schema, Text))>, ErrorReport> {
    Ok(TableIterator::new(map::fenced_schemas()?.into_iter().map(|(shard, schema)| (shard, Text(schema)))))
}

/// Never returns.
#[pg_extern(sql = false)]
fn refuse(shard: i32) -> SqlResult<()> {
    Err(map::fenced(shared::this_node()?, shard)?.into())
}
