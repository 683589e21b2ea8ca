//! DDL, parsed by the server's own grammar: what each statement needs of its transaction, and which names it uses.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, NodeTag};
use pgrx::prelude::PgSqlErrorCode;

use super::allowed::is_allowed;
use super::nodes::{elements, node, text};
use super::targets::{What, owned, parts, targets};
use crate::shard::dump::SHARD;

/// One statement of a text.
pub(crate) struct Statement {
    /// The statement as it was written, without the semicolon.
    pub(crate) text: Vec<u8>,
    pub(crate) kind: Kind,
    /// The statement's command, like CREATE TABLE.
    pub(crate) command: &'static CStr,
    /// The schema that the statement names for something that it creates or alters, unless it is that of any shard.
    pub(crate) schema: Option<Vec<u8>>,
    /// The names, without schemas, of the existing relations that the statement alters.
    pub(crate) alters: Vec<Vec<u8>>,
    /// The names of other existing objects that the statement alters and names without a schema.
    pub(crate) others: Vec<Vec<u8>>,
    /// The name of the table that the statement creates. `None` for a partition or a temporary table.
    pub(crate) makes: Option<Vec<u8>>,
}

/// What a statement needs of its transaction and session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The statement can run in a transaction block and has no effect on the session.
    Ordinary,
    /// The statement is BEGIN, COMMIT, SAVEPOINT or another one that controls transactions.
    TransactionControl,
    /// The statement is SET, RESET, DISCARD or another one whose effect outlives the transaction.
    SessionSetting,
    /// The statement has CONCURRENTLY, so it cannot run in a transaction block.
    Concurrent,
    /// The statement is REINDEX CONCURRENTLY. A new shard does not need it.
    ConcurrentReindex,
    /// The statement is SET CONSTRAINTS ALL IMMEDIATE.
    AllImmediate,
    /// The statement is SET CONSTRAINTS ALL DEFERRED.
    AllDeferred,
    /// The statement is one that a migration cannot contain.
    NotAllowed,
}

/// Why a text is not SQL.
pub(crate) struct SyntaxError {
    pub(crate) code: PgSqlErrorCode,
    pub(crate) message: String,
    /// How many bytes of the text are before the error, if the grammar says so.
    pub(crate) before: Option<usize>,
}

/// The statements of a text, in its order.
///
/// # Errors
/// [`SyntaxError`].
pub(crate) fn statements(text: &CStr) -> Result<Vec<Statement>, SyntaxError> {
    let bytes = text.to_bytes();
    let list = raw_parse(text)?;
    // SAFETY: the parser returns a list of RawStmt. Each has a statement and its place in the text.
    unsafe {
        let statements = elements::<pg_sys::RawStmt>(list).map(|raw| {
            let from = usize::try_from((*raw).stmt_location).unwrap_or(0);
            let until = match usize::try_from((*raw).stmt_len) {
                Ok(length @ 1..) => from + length,
                // The last statement, if it has no semicolon.
                _ => bytes.len(),
            };
            let targets = targets((*raw).stmt);
            Statement {
                text: bytes[from..until].trim_ascii().to_vec(),
                kind: kind((*raw).stmt),
                // The server has a static name for each command.
                command: CStr::from_ptr(pg_sys::GetCommandTagName(pg_sys::CreateCommandTag((*raw).stmt))),
                schema: targets
                    .iter()
                    .find_map(|target| target.schema.clone().filter(|schema| schema != SHARD)),
                others: targets
                    .iter()
                    .filter(|target| target.what == What::Object && target.schema.is_none())
                    .map(|target| target.name.clone())
                    .collect(),
                alters: targets
                    .into_iter()
                    .filter(|target| target.what == What::Relation)
                    .map(|target| target.name)
                    .collect(),
                makes: made_table((*raw).stmt),
            }
        });
        Ok(statements.collect())
    }
}

fn raw_parse(text: &CStr) -> Result<*mut pg_sys::List, SyntaxError> {
    /// The server calls this while it makes the error. The bindings do not pass the error's position on.
    unsafe extern "C-unwind" fn note_position(position: *mut c_void) {
        // SAFETY: called while an error is made, with the address of the cell below.
        unsafe { (*position.cast::<Cell<i32>>()).set(pg_sys::geterrposition()) };
    }

    let position = Cell::new(0_i32);
    // SAFETY: the process has one thread, which owns the stack of callbacks. This restores the stack. The bindings turn an
    // error of the parser into an unwind, which is caught here.
    unsafe {
        let previous = pg_sys::error_context_stack;
        let mut callback = pg_sys::ErrorContextCallback {
            previous,
            callback: Some(note_position),
            arg: ptr::from_ref(&position).cast_mut().cast(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            pg_sys::raw_parser(text.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT)
        }));
        pg_sys::error_context_stack = previous;
        parsed.or_else(|cause| match cause.downcast_ref() {
            Some(CaughtError::PostgresError(error)) => {
                // The error was copied to `cause`, and is not raised again.
                pg_sys::FlushErrorState();
                Err(SyntaxError {
                    code: error.sql_error_code(),
                    message: error.message().to_owned(),
                    before: (position.get() > 0).then(|| bytes_of(text, position.get() - 1)),
                })
            }
            _ => resume_unwind(cause),
        })
    }
}

/// How many bytes the first `characters` of a text have.
fn bytes_of(text: &CStr, characters: i32) -> usize {
    let bytes = i32::try_from(text.to_bytes().len()).unwrap_or(i32::MAX);
    // SAFETY: reads at most `bytes` bytes.
    let clipped = unsafe { pg_sys::pg_mbcharcliplen(text.as_ptr(), bytes, characters) };
    usize::try_from(clipped).unwrap_or(0)
}

/// The kind of a statement.
///
/// # Safety
/// The parser returned the statement.
unsafe fn kind(statement: *mut pg_sys::Node) -> Kind {
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        let concurrent = match (*statement).type_ {
            NodeTag::T_TransactionStmt => return Kind::TransactionControl,
            NodeTag::T_DiscardStmt => return Kind::SessionSetting,
            NodeTag::T_VariableSetStmt => {
                let set = node::<pg_sys::VariableSetStmt>(statement);
                if !set.is_local || text(set.name) == Some(c"session_authorization") {
                    return Kind::SessionSetting;
                }
                false
            }
            NodeTag::T_SelectStmt if calls_set_config(statement) => return Kind::SessionSetting,
            NodeTag::T_ConstraintsSetStmt => {
                let set = node::<pg_sys::ConstraintsSetStmt>(statement);
                match (set.constraints.is_null(), set.deferred) {
                    (true, true) => return Kind::AllDeferred,
                    (true, false) => return Kind::AllImmediate,
                    _ => false,
                }
            }
            NodeTag::T_IndexStmt => node::<pg_sys::IndexStmt>(statement).concurrent,
            NodeTag::T_DropStmt => node::<pg_sys::DropStmt>(statement).concurrent,
            NodeTag::T_AlterTableStmt => {
                let mut commands =
                    elements::<pg_sys::AlterTableCmd>(node::<pg_sys::AlterTableStmt>(statement).cmds);
                commands.any(|command| {
                    (*command).subtype == pg_sys::AlterTableType::AT_DetachPartition
                        && node::<pg_sys::PartitionCmd>((*command).def).concurrent
                })
            }
            NodeTag::T_ReindexStmt => {
                let mut options = elements::<pg_sys::DefElem>(node::<pg_sys::ReindexStmt>(statement).params);
                let concurrently = |option: *mut pg_sys::DefElem| {
                    text((*option).defname) == Some(c"concurrently") && pg_sys::defGetBoolean(option)
                };
                if options.any(concurrently) && is_allowed(statement) {
                    return Kind::ConcurrentReindex;
                }
                false
            }
            _ => false,
        };
        match (concurrent, is_allowed(statement)) {
            (_, false) => Kind::NotAllowed,
            (true, true) => Kind::Concurrent,
            (false, true) => Kind::Ordinary,
        }
    }
}

/// Whether a query calls `set_config` for one of its columns. Dumps begin with such a query.
///
/// # Safety
/// The statement is a SELECT that the parser returned.
unsafe fn calls_set_config(statement: *mut pg_sys::Node) -> bool {
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        let mut columns = elements::<pg_sys::ResTarget>(node::<pg_sys::SelectStmt>(statement).targetList);
        columns.any(|column| {
            let value = (*column).val;
            !value.is_null()
                && (*value).type_ == NodeTag::T_FuncCall
                && parts(node::<pg_sys::FuncCall>(value).funcname, What::Object)
                    .is_some_and(|function| function.name == b"set_config")
        })
    }
}

/// The name of the table that a statement creates. Returns `None` if it creates no table, a partition or a temporary table.
///
/// # Safety
/// The parser returned the statement.
unsafe fn made_table(statement: *mut pg_sys::Node) -> Option<Vec<u8>> {
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        let of_create = |create: &pg_sys::CreateStmt| create.partbound.is_null().then_some(create.relation);
        let relation = match (*statement).type_ {
            NodeTag::T_CreateStmt => of_create(node(statement)),
            NodeTag::T_CreateForeignTableStmt => {
                of_create(&node::<pg_sys::CreateForeignTableStmt>(statement).base)
            }
            NodeTag::T_CreateTableAsStmt => {
                let create = node::<pg_sys::CreateTableAsStmt>(statement);
                (create.objtype == pg_sys::ObjectType::OBJECT_TABLE).then(|| (*create.into).rel)
            }
            NodeTag::T_SelectStmt => {
                node::<pg_sys::SelectStmt>(statement).intoClause.as_ref().map(|into| into.rel)
            }
            _ => None,
        };
        let relation = relation?.as_ref()?;
        if relation.relpersistence.to_ne_bytes() == [pg_sys::RELPERSISTENCE_TEMP] {
            return None;
        }
        text(relation.relname).map(owned)
    }
}
