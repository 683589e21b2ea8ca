//! The session: what it has cached, and whether anything failed in it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

/// Whether failures are noted, from the first call of [`note_failures`] on.
static NOTING: AtomicBool = AtomicBool::new(false);

/// Whether a transaction of the session ended in an error since the last call of [`note_failures`].
static FAILED: AtomicBool = AtomicBool::new(false);

/// Notes from now on whether anything fails in this session.
pub(crate) fn note_failures() {
    unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _: *mut c_void) {
        if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
            FAILED.store(true, Ordering::Relaxed);
        }
    }

    if !NOTING.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback is static, and registered once.
        unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
    }
    FAILED.store(false, Ordering::Relaxed);
}

/// Whether anything failed since [`note_failures`]; `None` if that was not called.
pub(crate) fn failed() -> Option<bool> {
    NOTING.load(Ordering::Relaxed).then(|| FAILED.load(Ordering::Relaxed))
}

/// What the session may keep cached of tables and functions. A table takes about 12 KB of it.
const CACHE_LIMIT: usize = 32 * 1024 * 1024;

/// Gives back the memory of what the session has cached of tables and functions, if that is much. The server does the
/// same to a session that has missed too many messages of changes.
pub(crate) fn limit_catalog_cache() {
    // SAFETY: called in a transaction. What is in use stays, and is read again.
    unsafe {
        if pg_sys::MemoryContextMemAllocated(pg_sys::CacheMemoryContext, true) > CACHE_LIMIT {
            pg_sys::InvalidateSystemCaches();
        }
    }
}
