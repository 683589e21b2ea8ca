//! The process of a session: what tells it from others, and values that it keeps.

use std::ops::Deref;

use pgrx::pg_sys;

/// A value of this process. It is read without the look for the thread that a `thread_local` takes, which is a call.
pub(crate) struct SessionLocal<T>(T);

// SAFETY: a process of the server runs this library in its only thread.
unsafe impl<T> Sync for SessionLocal<T> {}

impl<T> SessionLocal<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for SessionLocal<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The session's number among the server's processes, from 0 on. No other process has the same number at the same time.
/// The settings that limit the number of processes limit it.
pub(crate) fn number() -> usize {
    // SAFETY: the server sets it before any function runs, and keeps it until the process ends.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let number = unsafe { (*pg_sys::MyProc).pgprocno };
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let number = unsafe { pg_sys::MyProcNumber };
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The OID of the database that the session is connected to.
pub(crate) fn database() -> u32 {
    // SAFETY: the server sets this global before any function runs, and never changes it.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The number of the session's transaction, or 0 outside of transactions. It counts those of a process.
pub(crate) fn transaction() -> u32 {
    // SAFETY: the server sets `MyProc` before any function runs, and keeps it until the process ends.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let transaction = unsafe { (*pg_sys::MyProc).lxid };
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let transaction = unsafe { (*pg_sys::MyProc).vxid.lxid };
    transaction
}

// SAFETY: declared as in process.c and migration.c. They read globals and raise no error, so they need no guard.
unsafe extern "C" {
    fn insta_ids_user() -> pg_sys::Oid;
    fn insta_ids_is_being_created(shard: i32) -> bool;
}

/// Whether the session applies a migration to a shard that this transaction creates. Called in a transaction.
pub(crate) fn is_being_created(shard: i32) -> bool {
    // SAFETY: nothing is asked of the caller but a transaction.
    unsafe { insta_ids_is_being_created(shard) }
}

/// The role whose rights the session has now. Called in a transaction.
pub(crate) fn user() -> u32 {
    // SAFETY: nothing is asked of the caller but a transaction.
    unsafe { insta_ids_user() }.to_u32()
}
