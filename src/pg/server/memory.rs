//! The memory of a session.

use pgrx::pg_sys;

/// How many bytes a session may keep cached about tables and functions. One table takes about 12 KB.
const CACHE_LIMIT: usize = 32 * 1024 * 1024;

/// Frees what the session has cached about tables and functions, if that exceeds [`CACHE_LIMIT`]. The server does the same
/// to a session that has missed too many messages about changes.
pub(crate) fn limit_catalog_cache() {
    // SAFETY: called in a transaction. Entries in use stay, and are read again.
    unsafe {
        if pg_sys::MemoryContextMemAllocated(pg_sys::CacheMemoryContext, true) > CACHE_LIMIT {
            pg_sys::InvalidateSystemCaches();
        }
    }
}
