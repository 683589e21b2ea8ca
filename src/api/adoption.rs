//! Adoption: the published function, read and written.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]

use pgrx::datum::Array;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::pg::layout::StoredLayout;
use crate::pg::text::Text;
use crate::published::{Function, Language, Operand, read, write};

/// The texts as bytes: in a database whose encoding is not UTF-8 they may be no `str`. An array says itself what is
/// in it, and a `text` is read as a `bytea` is. No array is none of arguments, as `pg_proc` has it; without one of the
/// others, there is nothing to read.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn read_function(
    source: Option<&[u8]>,
    plpgsql: Option<bool>,
    arguments: Option<Array<'_, &[u8]>>,
    result: Option<&[u8]>,
    layout: Option<StoredLayout>,
) -> Result<
    TableIterator<
        'static,
        (
            name!(shard, Option<i32>),
            name!(shard_argument, Option<i32>),
            name!(sequence, Option<Text>),
            name!(sequence_argument, Option<i32>),
            name!(native, Option<bool>),
            name!(reason, Option<Text>),
        ),
    >,
    ErrorReport,
> {
    let (Some(source), Some(plpgsql), Some(layout)) = (source, plpgsql, layout) else {
        return Ok(TableIterator::empty());
    };
    let language = if plpgsql { Language::PlPgSql } else { Language::Sql };
    let arguments: Vec<_> =
        arguments.iter().flat_map(Array::iter).map(|name| name.unwrap_or_default().to_vec()).collect();
    let function = Function { language, source, arguments: &arguments, result };
    let row = match read(&function, layout.try_into()?) {
        Ok(minting) => {
            let (shard, shard_argument) = columns(minting.shard);
            let (sequence, sequence_argument) = columns(minting.sequence);
            (shard, shard_argument, sequence.map(Text), sequence_argument, Some(minting.native), None)
        }
        Err(reason) => (None, None, None, None, None, Some(Text(reason.to_string().into_bytes()))),
    };
    Ok(TableIterator::once(row))
}

#[pg_extern(sql = false)]
fn write_function(layout: StoredLayout, shard: &[u8], sequence: &[u8]) -> Result<Text, ErrorReport> {
    Ok(Text(write(layout.try_into()?, shard, sequence)))
}

/// The constant, or the number of the argument.
fn columns<T>(operand: Operand<T>) -> (Option<T>, Option<i32>) {
    match operand {
        Operand::Constant(value) => (Some(value), None),
        // A function has 100 arguments at most.
        Operand::Argument(number) => (None, i32::try_from(number).ok()),
    }
}
