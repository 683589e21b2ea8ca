//! Shards and migrations: what of them is not SQL. The rest is in sql/shards.sql and sql/migrations.sql.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]

use std::ffi::CString;

use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::ddl::without_concurrently;
use crate::pg::parser::{self, Kind};
use crate::pg::session;
use crate::report::{NoShards, NotSql, SqlResult};

/// Floor modulo: the remainder of a negative key is none.
#[pg_extern(sql = false)]
fn shard_of(key: i64, shards: i32) -> SqlResult<i32> {
    if shards < 1 {
        return Err(NoShards(shards).into());
    }
    #[expect(clippy::cast_possible_truncation, reason = "less than the divisor")]
    Ok(key.rem_euclid(shards.into()) as i32)
}

/// Texts as bytes: in a database whose encoding is not UTF-8 they may be no `str`.
#[pg_extern(sql = false)]
fn statements(
    ddl: &[u8],
) -> Result<
    TableIterator<
        'static,
        (
            name!(statement, Vec<u8>),
            name!(transaction_control, bool),
            name!(concurrent, bool),
            name!(at_once, Option<Vec<u8>>),
            name!(schema, Option<Vec<u8>>),
        ),
    >,
    ErrorReport,
> {
    // A text of SQL has no NULs.
    let text = CString::new(ddl).unwrap_or_default();
    let statements = parser::statements(&text).map_err(|error| NotSql { ddl, error })?;
    Ok(TableIterator::new(statements.into_iter().map(|statement| {
        let at_once = match statement.kind {
            Kind::Concurrent => Some(without_concurrently(&statement.text)),
            Kind::ConcurrentReindex => Some(Vec::new()),
            Kind::Ordinary | Kind::TransactionControl => None,
        };
        let transaction_control = statement.kind == Kind::TransactionControl;
        (statement.text, transaction_control, at_once.is_some(), at_once, statement.schema)
    })))
}

#[pg_extern(sql = false)]
fn start_migration() {
    session::note_failures();
}

#[pg_extern(sql = false)]
fn migration_failed() -> Option<bool> {
    session::failed()
}

#[pg_extern(sql = false)]
fn limit_catalog_cache() {
    session::limit_catalog_cache();
}
