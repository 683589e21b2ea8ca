//! Adoption: the published function, recognised and written, and what stands in its place.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]
#![expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]

use pgrx::datum::Array;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::pg::catalog::function::call_as;
use crate::pg::types::layout::StoredLayout;
use crate::pg::types::text::{Text, c_string};
use crate::published::{self, Function, Operand};
use crate::report::SqlResult;

/// The texts as bytes: in a database whose encoding is not UTF-8 they may be no `str`. An array says itself what is
/// in it, and a `text` is read as a `bytea` is. An absent array means that there are no arguments, as in `pg_proc`.
#[pg_extern(sql = false)]
fn read_published(
    source: Option<&[u8]>,
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
            name!(epoch, i64),
        ),
    >,
    ErrorReport,
> {
    let (Some(source), Some(layout)) = (source, layout) else { return Ok(TableIterator::empty()) };
    let arguments = names(arguments.as_ref());
    let function = Function { source, arguments: &arguments, result };
    let published = published::read_published(&function, layout.try_into()?);
    Ok(TableIterator::new(published.into_iter().map(|published| {
        let (shard, shard_argument) = columns(published.call.shard);
        let (sequence, sequence_argument) = columns(published.call.sequence);
        (shard, shard_argument, sequence.map(Text), sequence_argument, published.epoch)
    })))
}

#[pg_extern(sql = false)]
fn portable_text(name: &[u8]) -> Option<&'static str> {
    published::portable_text(std::str::from_utf8(name).ok()?)
}

#[pg_extern(sql = false)]
fn read_call(
    expression: Option<&[u8]>,
    arguments: Option<Array<'_, &[u8]>>,
    layout: Option<StoredLayout>,
) -> Result<
    TableIterator<
        'static,
        (
            name!(shard, Option<i32>),
            name!(shard_argument, Option<i32>),
            name!(sequence, Option<Text>),
            name!(sequence_argument, Option<i32>),
        ),
    >,
    ErrorReport,
> {
    let (Some(expression), Some(layout)) = (expression, layout) else { return Ok(TableIterator::empty()) };
    let call = published::read_call(expression, &names(arguments.as_ref()), layout.try_into()?);
    Ok(TableIterator::new(call.into_iter().map(|call| {
        let (shard, shard_argument) = columns(call.shard);
        let (sequence, sequence_argument) = columns(call.sequence);
        (shard, shard_argument, sequence.map(Text), sequence_argument)
    })))
}

#[pg_extern(sql = false)]
fn write_function(layout: StoredLayout, shard: &[u8], sequence: &[u8]) -> SqlResult<Text> {
    Ok(Text(published::write(layout.try_into()?, shard, sequence)))
}

#[pg_extern(sql = false)]
fn call_function(
    function: pg_sys::Oid,
    role: pg_sys::Oid,
    arguments: Array<'_, &[u8]>,
) -> SqlResult<Option<i64>> {
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.map(c_string)).collect();
    Ok(call_as(function, role, &arguments)?)
}

fn names(arguments: Option<&Array<'_, &[u8]>>) -> Vec<Vec<u8>> {
    arguments.into_iter().flat_map(Array::iter).map(|name| name.unwrap_or_default().to_vec()).collect()
}

/// The constant, or the number of the argument.
fn columns<T>(operand: Operand<T>) -> (Option<T>, Option<i32>) {
    match operand {
        Operand::Constant(value) => (Some(value), None),
        // A function has 100 arguments at most.
        Operand::Argument(number) => (None, i32::try_from(number).ok()),
    }
}
