//! Shards, migrations and checks, as far as they are not written in SQL.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]

use std::collections::HashMap;

use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::pg::catalog::locks::{self, LockMode};
use crate::pg::catalog::parser::{self, Kind};
use crate::pg::catalog::{owner, relation, rows};
use crate::pg::server::{memory, transactions};
use crate::pg::types::text::{Text, c_string};
use crate::report::{NoLockMode, NoShards, NotOfAShard, NotSql, SqlResult};
use crate::shard::ddl::without_concurrently;
use crate::shard::placement::shard_of_schema;
use crate::shard::{dump, expression};

/// Returns the shard of a key: its remainder by `shards`, which is not negative for a negative key either.
#[pg_extern(sql = false)]
fn shard_of(key: i64, shards: i32) -> SqlResult<i32> {
    if shards < 1 {
        return Err(NoShards(shards).into());
    }
    #[expect(clippy::cast_possible_truncation, reason = "less than the divisor")]
    Ok(key.rem_euclid(shards.into()) as i32)
}

/// Returns the statements of a text of DDL. `for_new_shard` is the text of a concurrent statement in the transaction that
/// creates a shard: without CONCURRENTLY, or empty if there is nothing to do.
#[pg_extern(sql = false)]
fn statements(
    ddl: &[u8],
) -> Result<
    TableIterator<
        'static,
        (
            name!(statement, Text),
            name!(kind, &'static str),
            name!(command, Text),
            name!(for_new_shard, Option<Text>),
            name!(schema, Option<Text>),
            name!(alters, Vec<Text>),
            name!(makes, Option<Text>),
            name!(others, Vec<Text>),
        ),
    >,
    ErrorReport,
> {
    let text = c_string(ddl);
    let statements = parser::statements(&text).map_err(|error| NotSql { ddl, error })?;
    Ok(TableIterator::new(statements.into_iter().map(|statement| {
        let (kind, for_new_shard) = match statement.kind {
            Kind::Ordinary => ("ordinary", None),
            Kind::TransactionControl => ("transaction control", None),
            Kind::SessionSetting => ("session setting", None),
            Kind::Concurrent => ("concurrent", Some(without_concurrently(&statement.text))),
            Kind::ConcurrentReindex => ("concurrent", Some(Vec::new())),
            Kind::AllImmediate => ("all immediate", None),
            Kind::AllDeferred => ("all deferred", None),
            Kind::NotAllowed => ("not allowed", None),
        };
        let command = Text(statement.command.to_bytes().to_vec());
        let alters = statement.alters.into_iter().map(Text).collect();
        let (schema, makes) = (statement.schema.map(Text), statement.makes.map(Text));
        let others = statement.others.into_iter().map(Text).collect();
        (Text(statement.text), kind, command, for_new_shard.map(Text), schema, alters, makes, others)
    })))
}

/// Returns a text of DDL as a migration: that of a dump of a shard with [`dump::SHARD`] for the shard's schema, and any other text as it
/// is. A text is a dump of a shard if it creates the shard's schema. Other dumps are refused.
#[pg_extern(sql = false)]
fn migration_text(ddl: &[u8], prefix: &[u8], shards: i32) -> SqlResult<Text> {
    let text = c_string(&dump::without_restrict(ddl));
    // The caller reports what is no SQL.
    let statements = parser::statements(&text).unwrap_or_default();
    let dumped =
        statements.iter().filter(|statement| statement.command == c"CREATE SCHEMA").find_map(|statement| {
            let schema = statement.schema.clone()?;
            let shard = shard_of_schema(&schema, prefix)?;
            (shard < shards).then_some((schema, shard))
        });
    let Some((schema, shard)) = dumped else {
        return if dump::is_dump(ddl) { Err(NotOfAShard { prefix }.into()) } else { Ok(Text(ddl.to_vec())) };
    };
    let defaults: Vec<_> =
        statements.iter().filter_map(|statement| dump::default_of(&statement.text)).collect();
    let migration = statements.iter().filter_map(|statement| {
        let text = if statement.kind == Kind::SessionSetting {
            dump::setting(&statement.text)
        } else {
            dump::migration_of(&statement.text, &schema, shard, &defaults)
        };
        Some([&text?[..], b";\n\n"].concat())
    });
    Ok(Text(migration.collect::<Vec<_>>().concat()))
}

/// Returns the text of a migration for the shard that has this schema.
#[pg_extern(sql = false)]
fn ddl_in_shard(ddl: &[u8], schema: &[u8]) -> Text {
    Text(dump::in_shard(ddl, schema))
}

/// Notes from now on how the session's transactions end.
#[pg_extern(sql = false)]
fn note_transactions(failed: bool) {
    transactions::note_transactions(failed);
}

/// Returns whether all transactions since `note_transactions` committed, or NULL if that was not called.
#[pg_extern(sql = false)]
fn transactions_committed() -> Option<bool> {
    transactions::transactions_committed()
}

/// Locks a schema until the transaction ends: no other session can create anything in it, or drop it.
#[pg_extern(sql = false)]
fn lock_schema(schema: pg_sys::Oid) {
    locks::lock_schema(schema);
}

/// Locks a table, foreign table or sequence until the transaction ends. `mode` is like `ACCESS EXCLUSIVE`.
#[pg_extern(sql = false)]
fn lock_relation(relation: pg_sys::Oid, mode: &[u8]) -> SqlResult<()> {
    let mode = LockMode::parse(mode).ok_or(NoLockMode(mode))?;
    Ok(locks::lock(relation, mode)?)
}

/// Keeps a relation's name, schema and existence until the transaction ends.
#[pg_extern(sql = false)]
fn hold_name(relation: pg_sys::Oid) {
    locks::hold_name(relation);
}

/// Keeps the name of a relation's schema until the transaction ends.
#[pg_extern(sql = false)]
fn hold_schema_of(relation: pg_sys::Oid) -> SqlResult<()> {
    Ok(locks::hold_schema_of(relation)?)
}

/// Returns what a relation of this kind and access method is if its rows are not in its own heap, or NULL.
#[pg_extern(sql = false)]
fn not_in_heap(relation: pg_sys::Oid, kind: i8, method: pg_sys::Oid) -> Option<&'static str> {
    relation::not_in_heap(relation, kind.cast_unsigned(), method)
}

/// Returns whether a table has rows, whatever the transaction's snapshot is.
#[pg_extern(sql = false)]
fn has_rows(table: pg_sys::Oid) -> SqlResult<bool> {
    Ok(rows::has_rows(table)?)
}

/// Returns the last value of a sequence, or NULL if the relation is no sequence.
#[pg_extern(sql = false)]
fn last_value(sequence: pg_sys::Oid) -> SqlResult<Option<i64>> {
    Ok(rows::last_value(sequence)?)
}

/// Runs a command as the role that owns a relation, with that role's rights alone.
#[pg_extern(sql = false)]
fn as_owner(relation: pg_sys::Oid, command: &[u8]) -> SqlResult<()> {
    Ok(owner::run_as_owner(relation, &c_string(command))?)
}

/// Frees what the session has cached about tables and functions, if that is much.
#[pg_extern(sql = false)]
fn limit_catalog_cache() {
    memory::limit_catalog_cache();
}

/// Returns a stored expression in a form that is the same in all shards if the expression is, or NULL if an OID in it has no
/// name. `oids` and `names` are the objects that it uses, and `minting` are the functions that mint ids.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn normalized_expression(
    tree: &[u8],
    oids: Array<'_, pg_sys::Oid>,
    names: Array<'_, &[u8]>,
    minting: Array<'_, pg_sys::Oid>,
    shard: i32,
) -> Option<Text> {
    let names: HashMap<_, _> =
        oids.iter().zip(names.iter()).filter_map(|(oid, name)| Some((oid?.to_u32(), name?))).collect();
    let minting: Vec<u32> = minting.iter().flatten().map(pg_sys::Oid::to_u32).collect();
    expression::normalized_expression(tree, |oid| names.get(&oid).copied(), &minting, shard).map(Text)
}

/// Returns the shards that a stored expression passes to `functions`, as constants in the first argument.
#[pg_extern(sql = false)]
#[expect(clippy::needless_pass_by_value, reason = "pgrx passes arrays so")]
fn minted_shards(tree: &[u8], functions: Array<'_, pg_sys::Oid>) -> Vec<i32> {
    let functions: Vec<u32> = functions.iter().flatten().map(pg_sys::Oid::to_u32).collect();
    expression::minted_shards(tree, &functions)
}
