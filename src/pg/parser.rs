//! DDL as the server's own grammar reads it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::{ptr, slice};

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, NodeTag};
use pgrx::prelude::PgSqlErrorCode;

/// One of the statements of a text.
pub(crate) struct Statement {
    /// As it was written, without the semicolon.
    pub(crate) text: Vec<u8>,
    pub(crate) kind: Kind,
    /// The schema that it names for what it makes or alters.
    pub(crate) schema: Option<Vec<u8>>,
}

/// What a statement asks of the transaction it runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ordinary,
    /// BEGIN, COMMIT, SAVEPOINT and their like.
    TransactionControl,
    /// With CONCURRENTLY, so it runs in none.
    Concurrent,
    /// REINDEX with CONCURRENTLY: where nothing is indexed yet, there is nothing to do.
    ConcurrentReindex,
}

/// The text is not SQL.
pub(crate) struct SyntaxError {
    pub(crate) code: PgSqlErrorCode,
    pub(crate) message: String,
    /// How many bytes of the text are right, if that is known.
    pub(crate) before: Option<usize>,
}

/// The statements of a text.
pub(crate) fn statements(text: &CStr) -> Result<Vec<Statement>, SyntaxError> {
    let bytes = text.to_bytes();
    let list = raw_parse(text)?;
    // SAFETY: the parser returns a list of RawStmt, each with its statement and where in the text that is.
    unsafe {
        let statements = elements::<pg_sys::RawStmt>(list).map(|raw| {
            let from = usize::try_from((*raw).stmt_location).unwrap_or(0);
            let until = match usize::try_from((*raw).stmt_len) {
                Ok(length @ 1..) => from + length,
                // The last, without a semicolon.
                _ => bytes.len(),
            };
            Statement {
                text: bytes[from..until].trim_ascii().to_vec(),
                kind: kind((*raw).stmt),
                schema: schema((*raw).stmt).map(|name| name.to_bytes().to_vec()),
            }
        });
        Ok(statements.collect())
    }
}

fn raw_parse(text: &CStr) -> Result<*mut pg_sys::List, SyntaxError> {
    /// Called where the error is made, as its position is left out of what the bindings pass on.
    unsafe extern "C-unwind" fn note_position(position: *mut c_void) {
        // SAFETY: called while an error is made, with the cell below.
        unsafe { (*position.cast::<Cell<i32>>()).set(pg_sys::geterrposition()) };
    }

    let position = Cell::new(0_i32);
    // SAFETY: the stack of callbacks is this single-threaded process's own, and is as before when this returns. The
    // bindings turn an error of the parser into an unwind, which is caught.
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
            Some(CaughtError::PostgresError(error)) => Err(SyntaxError {
                code: error.sql_error_code(),
                message: error.message().to_owned(),
                before: position.get().checked_sub(1).map(|characters| bytes_of(text, characters)),
            }),
            _ => resume_unwind(cause),
        })
    }
}

/// How many bytes the first characters of a text have.
fn bytes_of(text: &CStr, characters: i32) -> usize {
    let bytes = i32::try_from(text.to_bytes().len()).unwrap_or(i32::MAX);
    // SAFETY: reads that many bytes at most.
    let clipped = unsafe { pg_sys::pg_mbcharcliplen(text.as_ptr(), bytes, characters) };
    usize::try_from(clipped).unwrap_or(0)
}

/// # Safety
/// The statement is one that the parser returned.
unsafe fn kind(statement: *mut pg_sys::Node) -> Kind {
    // SAFETY: each node is what its tag says; the caller keeps the rest.
    unsafe {
        let concurrent = match (*statement).type_ {
            NodeTag::T_TransactionStmt => return Kind::TransactionControl,
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
                if options.any(|option| CStr::from_ptr((*option).defname) == c"concurrently") {
                    return Kind::ConcurrentReindex;
                }
                false
            }
            _ => false,
        };
        if concurrent { Kind::Concurrent } else { Kind::Ordinary }
    }
}

/// # Safety
/// The statement is one that the parser returned, and what it allocated outlives the result.
unsafe fn schema<'a>(statement: *mut pg_sys::Node) -> Option<&'a CStr> {
    // SAFETY: each node is what its tag says; the caller keeps the rest.
    unsafe {
        let relation = match (*statement).type_ {
            NodeTag::T_CreateStmt => node::<pg_sys::CreateStmt>(statement).relation,
            NodeTag::T_CreateForeignTableStmt => {
                node::<pg_sys::CreateForeignTableStmt>(statement).base.relation
            }
            NodeTag::T_CreateTableAsStmt => (*node::<pg_sys::CreateTableAsStmt>(statement).into).rel,
            NodeTag::T_CreateSeqStmt => node::<pg_sys::CreateSeqStmt>(statement).sequence,
            NodeTag::T_CreateTrigStmt => node::<pg_sys::CreateTrigStmt>(statement).relation,
            NodeTag::T_CompositeTypeStmt => node::<pg_sys::CompositeTypeStmt>(statement).typevar,
            NodeTag::T_ViewStmt => node::<pg_sys::ViewStmt>(statement).view,
            NodeTag::T_IndexStmt => node::<pg_sys::IndexStmt>(statement).relation,
            NodeTag::T_AlterTableStmt => node::<pg_sys::AlterTableStmt>(statement).relation,
            NodeTag::T_RenameStmt => node::<pg_sys::RenameStmt>(statement).relation,
            NodeTag::T_CreateFunctionStmt => {
                return qualifier(node::<pg_sys::CreateFunctionStmt>(statement).funcname);
            }
            NodeTag::T_CreateEnumStmt => {
                return qualifier(node::<pg_sys::CreateEnumStmt>(statement).typeName);
            }
            NodeTag::T_CreateDomainStmt => {
                return qualifier(node::<pg_sys::CreateDomainStmt>(statement).domainname);
            }
            _ => return None,
        };
        let name = relation.as_ref()?.schemaname;
        text(name)
    }
}

/// The schema in a name of several parts.
///
/// # Safety
/// The list is of strings, and outlives the result.
unsafe fn qualifier<'a>(name: *mut pg_sys::List) -> Option<&'a CStr> {
    // SAFETY: kept by the caller.
    unsafe {
        let parts: Vec<_> = elements::<pg_sys::String>(name).collect();
        let schema = parts.len().checked_sub(2)?;
        text((*parts[schema]).sval)
    }
}

/// The node as what it is.
///
/// # Safety
/// Its tag says that it is a `T`, and it outlives the result.
unsafe fn node<'a, T>(node: *mut pg_sys::Node) -> &'a T {
    // SAFETY: kept by the caller.
    unsafe { &*node.cast() }
}

/// # Safety
/// It is null, or a string that outlives the result.
unsafe fn text<'a>(string: *const c_char) -> Option<&'a CStr> {
    // SAFETY: kept by the caller.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
}

/// # Safety
/// The list is null, or of pointers to `T`, and outlives the result.
unsafe fn elements<'a, T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> + 'a {
    // SAFETY: a list holds `length` cells; an empty one is null.
    let cells = unsafe {
        match list.as_ref() {
            Some(list) => slice::from_raw_parts(list.elements, usize::try_from(list.length).unwrap_or(0)),
            None => &[],
        }
    };
    // SAFETY: kept by the caller.
    cells.iter().map(|cell| unsafe { cell.ptr_value.cast() })
}
