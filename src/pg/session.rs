//! What tells a session from others: its number and its database.

use pgrx::pg_sys;

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
