//! Sequences: the SQL argument that names one, `nextval`, and the flush that makes a value final.

use std::ffi::{CStr, CString};
use std::panic::{catch_unwind, resume_unwind};

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;

use super::held;
use super::relation::NoSuchRelation;
use crate::pg::server::invalidation;
use crate::pg::types::argument::Plain;

/// A sequence, given as an argument of type `regclass`. The relation may be of another kind; [`Sequence::next`] checks that.
#[derive(Clone, Copy)]
pub(crate) struct Sequence(pg_sys::Oid);

impl Sequence {
    pub(crate) fn oid(self) -> u32 {
        self.0.to_u32()
    }

    /// The sequence of the ticket server of this name, in the database's encoding. Returns `None` if no ticket server has the
    /// name. A name that is too long is not truncated.
    pub(crate) fn of_ticket_server(name: &[u8]) -> Option<Self> {
        const PREFIX: &[u8] = b"ticket_";
        if PREFIX.len() + name.len() >= pg_sys::NAMEDATALEN as usize {
            return None;
        }
        let name = CString::new([PREFIX, name].concat()).ok()?;
        // SAFETY: called in a transaction. The strings outlive the calls.
        let oid = unsafe {
            let schema = pg_sys::get_namespace_oid(c"insta_ids".as_ptr(), true);
            pg_sys::get_relname_relid(name.as_ptr(), schema)
        };
        (oid != pg_sys::Oid::INVALID).then_some(Self(oid))
    }

    /// The name of the sequence's schema. Returns `None` if the sequence does not exist any more.
    pub(crate) fn schema(self) -> Option<Vec<u8>> {
        // SAFETY: both functions take any OID. The second one returns NULL or a string in the server's memory.
        unsafe {
            let name = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(self.0));
            (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes().to_vec())
        }
    }

    /// The sequence's next value, by `nextval` with all its checks: of kind, privileges and range. Locks the sequence as
    /// `nextval` does. From then on the session holds the sequence ([`held`]).
    ///
    /// Raises PostgreSQL's own error in a read-only transaction and on a standby. `nextval` itself would allow a temporary
    /// sequence there, but an id changes the state of the whole server.
    ///
    /// # Errors
    /// [`NoSuchRelation`].
    pub(crate) fn next(self) -> Result<i64, NoSuchRelation> {
        refuse_if_read_only(c"nextval()");
        invalidation::watch();
        let known = invalidation::known();
        // SAFETY: takes any OID, and raises an error if it is no sequence's. The binding turns the error's longjmp into an
        // unwind. Nothing in the closure needs dropping.
        let nextval = || unsafe { pg_sys::nextval_internal(self.0, true) };
        let value = catch_unwind(nextval).or_else(|cause| {
            if is_no_relation(cause.downcast_ref()) {
                // SAFETY: the error was copied to `cause`, and is not raised again.
                unsafe { pg_sys::FlushErrorState() };
                return Err(NoSuchRelation(self.oid()));
            }
            resume_unwind(cause)
        })?;
        held::hold(self.0, known);
        Ok(value)
    }

    /// Makes the value that [`Sequence::next`] returned final: after a crash the sequence does not return it again.
    ///
    /// `nextval` leaves this to the commit. But a client may use the value without waiting for a commit, and another session
    /// that has not committed may have logged the values that include this one. So this flushes the WAL up to the last
    /// change of the sequence's page.
    pub(crate) fn flush(self) {
        let no_lock = pg_sys::NoLock.cast_signed();
        #[cfg(not(feature = "pg19"))]
        let share = pg_sys::BUFFER_LOCK_SHARE.cast_signed();
        #[cfg(feature = "pg19")]
        let share = pg_sys::BufferLockMode::BUFFER_LOCK_SHARE;
        // SAFETY: `next` has locked the sequence until the transaction ends, so it exists and has its one page. The page is
        // locked while its position in the WAL is read, because that is written in two halves. After an error, the end of
        // the transaction or subtransaction releases all of this.
        unsafe {
            let relation = pg_sys::relation_open(self.0, no_lock);
            let page = pg_sys::ReadBuffer(relation, 0);
            pg_sys::LockBuffer(page, share);
            // An unlogged or temporary sequence has no position in the WAL.
            let logged = pg_sys::BufferIsPermanent(page).then(|| pg_sys::BufferGetLSNAtomic(page));
            pg_sys::UnlockReleaseBuffer(page);
            pg_sys::relation_close(relation, no_lock);
            if let Some(logged) = logged {
                pg_sys::XLogFlush(logged);
            }
        }
    }
}

/// Raises PostgreSQL's own error in a read-only transaction and on a standby. The error names `command`.
pub(crate) fn refuse_if_read_only(command: &'static CStr) {
    // SAFETY: reads a global of this single-threaded process. The string is static.
    unsafe {
        if pg_sys::XactReadOnly {
            pg_sys::PreventCommandIfReadOnly(command.as_ptr());
        }
    }
}

/// Whether `nextval` failed because no relation has the OID. Core reports that as an internal error, whose message it does not
/// translate. To look the OID up before each call would cost more than the id does.
fn is_no_relation(cause: Option<&CaughtError>) -> bool {
    matches!(cause, Some(CaughtError::PostgresError(error))
        if error.message().starts_with("could not open relation with OID"))
}

impl_sql_translatable!(Sequence, "regclass");

impl From<pg_sys::Oid> for Sequence {
    fn from(oid: pg_sys::Oid) -> Self {
        Self(oid)
    }
}

impl Plain for Sequence {
    unsafe fn of(datum: pg_sys::Datum) -> Self {
        // SAFETY: the caller keeps what `Plain::of` asks for.
        Self(unsafe { u32::of(datum) }.into())
    }
}

// SAFETY: a `regclass` is passed as an OID.
unsafe impl<'fcx> ArgAbi<'fcx> for Sequence {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller keeps what `ArgAbi` asks for. No relation has the OID in the place of a NULL.
        Self(unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(pg_sys::Oid::INVALID))
    }
}
