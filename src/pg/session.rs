//! The session: what it has cached, how its transactions end, and the schemas it locks.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

/// The session's number among the server's processes: no other has it at the same time. There are as many as the
/// settings let there be processes, and they are dealt out in any order.
pub(crate) fn number() -> usize {
    // SAFETY: set before any function runs, until the process ends.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let number = unsafe { (*pg_sys::MyProc).pgprocno };
    // SAFETY: as above.
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    let number = unsafe { pg_sys::MyProcNumber };
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// How the transactions of this session ended since [`note_transactions`]: none in an error, and how many committed.
static ENDED: Mutex<Option<Ended>> = Mutex::new(None);

/// Whether the session is told how its transactions end.
static TOLD: AtomicBool = AtomicBool::new(false);

struct Ended {
    failed: bool,
    committed: u32,
}

/// Notes from now on how the transactions of this session end. Refused in a transaction block, where errors can end
/// less than the transaction.
pub(crate) fn note_transactions(failed: bool) {
    unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _: *mut c_void) {
        if let Ok(mut ended) = ENDED.lock()
            && let Some(ended) = ended.as_mut()
        {
            match event {
                pg_sys::XactEvent::XACT_EVENT_ABORT => ended.failed = true,
                pg_sys::XactEvent::XACT_EVENT_COMMIT => ended.committed = ended.committed.saturating_add(1),
                _ => {}
            }
        }
    }

    // SAFETY: raises an error in a transaction block; the string is static. The callback is static, and registered once.
    unsafe {
        pg_sys::PreventInTransactionBlock(true, c"a migration with CONCURRENTLY".as_ptr());
        if !TOLD.swap(true, Ordering::Relaxed) {
            pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        }
    }
    if let Ok(mut ended) = ENDED.lock() {
        *ended = Some(Ended { failed, committed: 0 });
    }
}

/// Whether the transaction that called [`note_transactions`], and at least one more, were committed since, and none
/// failed; `None` if that was not called. It ends the noting.
pub(crate) fn transactions_committed() -> Option<bool> {
    let ended = ENDED.lock().ok()?.take()?;
    Some(!ended.failed && ended.committed >= 2)
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

/// Lets nobody make anything in a schema, nor drop it, until the transaction ends. It is one in which the user may make
/// something; for one that was dropped, nothing happens.
pub(crate) fn lock_schema(schema: pg_sys::Oid) {
    // SAFETY: they take the OID of a schema, which is looked up first. The lock waits, and raises an error if it is
    // cancelled; so does what reports a missing privilege.
    unsafe {
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() {
            return;
        }
        let (user, create) = (pg_sys::GetUserId(), pg_sys::AclMode::from(pg_sys::ACL_CREATE));
        #[cfg(feature = "pg15")]
        let privilege = pg_sys::pg_namespace_aclcheck(schema, user, create);
        #[cfg(not(feature = "pg15"))]
        let privilege = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, user, create);
        if privilege != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(privilege, pg_sys::ObjectType::OBJECT_SCHEMA, name);
        }
        let exclusive = pg_sys::AccessExclusiveLock.cast_signed();
        pg_sys::LockDatabaseObject(pg_sys::NamespaceRelationId, schema, 0, exclusive);
    }
}
