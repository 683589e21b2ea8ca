//! What checks and moves read from the rows of users' tables.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]

use std::collections::HashSet;
use std::ffi::CString;

use pgrx::iter::{SetOfIterator, TableIterator};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::id::{Id, Layout};
use crate::pg::catalog::rows::{self, NotRead, Which};
use crate::pg::types::layout::StoredLayout;
use crate::pg::types::text::{Text, c_string};
use crate::report::SqlResult;

/// How many ids have a fault, and one of them.
#[derive(Clone, Copy, Default)]
struct Fault {
    count: i64,
    example: Option<i64>,
}

impl Fault {
    /// Counts an id. `pick` chooses between it and the example so far.
    fn add(&mut self, id: i64, pick: impl Fn(i64, i64) -> i64) {
        self.count += 1;
        self.example = Some(self.example.map_or(id, |other| pick(id, other)));
    }
}

/// Counts the ids in a column, and those with a fault: ids that are negative, `foreign_ids` of another shard than `shard`,
/// and `future` ids of `beyond` or more. An id counts for the first of these faults only, and one below `since` for none, if
/// that is not 0. The oldest id is not below `since`, and the newest one is of the shard if it is below. Unless `every_row` is set, only
/// the least and the greatest id are read, from an index.
#[pg_extern(sql = false)]
fn survey_ids(
    table: pg_sys::Oid,
    column: &[u8],
    shard: i32,
    layout: StoredLayout,
    since: i64,
    beyond: i64,
    every_row: bool,
) -> Result<
    TableIterator<
        'static,
        (
            name!(ids, i64),
            name!(oldest, Option<i64>),
            name!(newest, Option<i64>),
            name!(negative, i64),
            name!(a_negative, Option<i64>),
            name!(foreign_ids, i64),
            name!(a_foreign_id, Option<i64>),
            name!(future, i64),
            name!(newest_future, Option<i64>),
        ),
    >,
    ErrorReport,
> {
    let layout = Layout::try_from(layout)?;
    let (mut ids, mut oldest, mut newest) = (0, None, None);
    let [mut negative, mut foreign_ids, mut future] = [Fault::default(); 3];
    let which = if every_row { Which::All } else { Which::Ends };
    let read = rows::visit_ids(table, &c_string(column), which, |id| {
        ids += 1;
        if id >= since {
            oldest = Some(oldest.map_or(id, |other: i64| other.min(id)));
        }
        if id >= since || id >= 0 && layout.shard_of(Id::from_bits(id)) == shard {
            newest = newest.max(Some(id));
        }
        if since > 0 && id < since {
            // It is of a time before ids had shards.
        } else if id < 0 {
            negative.add(id, Ord::max);
        } else if layout.shard_of(Id::from_bits(id)) != shard {
            foreign_ids.add(id, Ord::min);
        } else if id >= beyond {
            future.add(id, Ord::max);
        }
    });
    // A table that was dropped meanwhile has no ids.
    if let Err(error @ NotRead::NotInHeap { .. }) = read {
        return Err(error.into());
    }
    Ok(TableIterator::once((
        ids,
        oldest,
        newest,
        negative.count,
        negative.example,
        foreign_ids.count,
        foreign_ids.example,
        future.count,
        future.example,
    )))
}

/// Returns how many rows a table has and the sum of their hashes, which wraps.
#[pg_extern(sql = false)]
fn survey_rows(
    table: pg_sys::Oid,
) -> Result<TableIterator<'static, (name!(rows, i64), name!(hash, i64))>, ErrorReport> {
    let (mut rows, mut sum) = (0, 0_i64);
    rows::visit_hashes(table, &[], |hash, _| {
        rows += 1;
        sum = sum.wrapping_add(hash);
    })?;
    Ok(TableIterator::once((rows, sum)))
}

/// Returns the hash of each row of a table, in no particular order.
#[pg_extern(sql = false)]
fn row_hashes(table: pg_sys::Oid, call: pg_sys::FunctionCallInfo) -> SqlResult<()> {
    Ok(rows::return_hashes(table, call)?)
}

/// Returns the values in columns of the rows of a table that have one of these hashes, as a text for each row.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn rows_of_hashes(
    table: pg_sys::Oid,
    columns: Array<'_, &[u8]>,
    hashes: Array<'_, i64>,
) -> Result<SetOfIterator<'static, Text>, ErrorReport> {
    let wanted: HashSet<i64> = hashes.iter().flatten().collect();
    let mut found = Vec::new();
    rows::visit_hashes(table, &c_strings(&columns), |hash, write| {
        if wanted.contains(&hash) {
            found.push(Text(write()));
        }
    })?;
    Ok(SetOfIterator::new(found))
}

/// Returns the hashes of the different keys in columns of a table.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn hashes_in_table(
    table: pg_sys::Oid,
    columns: Array<'_, &[u8]>,
) -> Result<SetOfIterator<'static, i64>, ErrorReport> {
    let mut hashes = HashSet::new();
    rows::visit_keys(table, &c_strings(&columns), |hash, _| {
        hashes.insert(hash);
    })?;
    Ok(SetOfIterator::new(hashes))
}

/// Returns the different keys in columns of a table that have one of these hashes, as texts.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn keys_in_table(
    table: pg_sys::Oid,
    columns: Array<'_, &[u8]>,
    hashes: Array<'_, i64>,
) -> Result<SetOfIterator<'static, Text>, ErrorReport> {
    let mut wanted: HashSet<i64> = hashes.iter().flatten().collect();
    let mut keys = Vec::new();
    rows::visit_keys(table, &c_strings(&columns), |hash, write| {
        if wanted.remove(&hash) {
            keys.push(Text(write()));
        }
    })?;
    Ok(SetOfIterator::new(keys))
}

fn c_strings(texts: &Array<'_, &[u8]>) -> Vec<CString> {
    texts.iter().flatten().map(c_string).collect()
}
