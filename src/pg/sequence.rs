//! Sequences: the argument that names one, `nextval` on it, and the flush that makes a value final.

use std::ffi::{CStr, CString};
use std::panic::{catch_unwind, resume_unwind};

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;

use super::argument::ByValue;
use super::relation::NoSuchRelation;

// SAFETY: declared as in commands/sequence.h, the same in PostgreSQL 15 to 18; pgrx's bindings leave it out.
unsafe extern "C-unwind" {
    fn nextval_internal(relid: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// A sequence as an argument of type `regclass`. Whether it is one, `nextval` says.
#[derive(Clone, Copy)]
pub(crate) struct Sequence(pg_sys::Oid);

impl Sequence {
    pub(crate) fn oid(self) -> u32 {
        self.0.to_u32()
    }

    /// The sequence of a ticket server, by its name in the database's encoding. A name that is too long has
    /// none, and is not cut off.
    pub(crate) fn of_ticket_server(name: &[u8]) -> Option<Self> {
        const PREFIX: &[u8] = b"ticket_";
        if PREFIX.len() + name.len() >= pg_sys::NAMEDATALEN as usize {
            return None;
        }
        let name = CString::new([PREFIX, name].concat()).ok()?;
        // SAFETY: called in a transaction, and the strings outlive the calls.
        let oid = unsafe {
            let schema = pg_sys::get_namespace_oid(c"insta_ids".as_ptr(), true);
            pg_sys::get_relname_relid(name.as_ptr(), schema)
        };
        (oid != pg_sys::Oid::INVALID).then_some(Self(oid))
    }

    /// The name of its schema, while it is there.
    pub(crate) fn schema(self) -> Option<Vec<u8>> {
        // SAFETY: they take any OID; the second returns NULL or a string of the server's memory.
        unsafe {
            let name = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(self.0));
            (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes().to_vec())
        }
    }

    /// The sequence's next value, with all that `nextval` checks: kind, privileges, range.
    ///
    /// Refused in a read-only transaction and on a standby before anything else, also on a temporary
    /// sequence, where `nextval` itself is not: an id takes its time from the whole server's state.
    pub(crate) fn next(self) -> Result<i64, NoSuchRelation> {
        refuse_if_read_only(c"nextval()");
        // SAFETY: takes any OID, and raises an error if it is no sequence's. The boundary turns its longjmp
        // into an unwind; nothing in the closure needs dropping.
        let nextval = || unsafe { pg_guard_ffi_boundary(|| nextval_internal(self.0, true)) };
        catch_unwind(nextval).or_else(|cause| {
            if is_no_relation(cause.downcast_ref()) {
                return Err(NoSuchRelation(self.oid()));
            }
            resume_unwind(cause)
        })
    }

    /// Makes the value that [`Sequence::next`] returned final: no crash gives it out again. `nextval` leaves
    /// that to the commit, and whoever keeps the value elsewhere may not wait for one; what covers it may also
    /// have been logged by another session, which has not committed. So all is flushed that the sequence's
    /// page was logged with.
    pub(crate) fn flush(self) {
        let (no_lock, share) = (pg_sys::NoLock.cast_signed(), pg_sys::BUFFER_LOCK_SHARE.cast_signed());
        // SAFETY: `next` locked the sequence until the transaction's end, so it is there, with its one page.
        // That is locked, as its position is written in two halves. The end of the transaction or
        // subtransaction gives back what an error leaves behind.
        unsafe {
            let relation = pg_sys::relation_open(self.0, no_lock);
            let page = pg_sys::ReadBuffer(relation, 0);
            pg_sys::LockBuffer(page, share);
            // What is not permanent has no position in the WAL.
            let logged = pg_sys::BufferIsPermanent(page).then(|| pg_sys::BufferGetLSNAtomic(page));
            pg_sys::UnlockReleaseBuffer(page);
            pg_sys::relation_close(relation, no_lock);
            if let Some(logged) = logged {
                pg_sys::XLogFlush(logged);
            }
        }
    }
}

/// Raises PostgreSQL's own error in a read-only transaction and on a standby.
pub(crate) fn refuse_if_read_only(command: &'static CStr) {
    // SAFETY: reads a global of this single-threaded process; the string is static.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(command.as_ptr());
        }
    }
}

/// Whether `nextval` failed because its OID is no relation's, which core reports as an internal error
/// that it does not translate. Looking the OID up before each call would cost more than the id does.
fn is_no_relation(cause: Option<&CaughtError>) -> bool {
    matches!(cause, Some(CaughtError::PostgresError(error))
        if error.message().starts_with("could not open relation with OID"))
}

impl_sql_translatable!(Sequence, "regclass");

impl ByValue for Sequence {
    fn of(datum: pg_sys::Datum) -> Self {
        Self(u32::of(datum).into())
    }
}

// SAFETY: a `regclass` is passed as the OID it holds.
unsafe impl<'fcx> ArgAbi<'fcx> for Sequence {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller keeps what `ArgAbi` asks of it. No relation has the OID that stands for NULL.
        Self(unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(pg_sys::Oid::INVALID))
    }
}
