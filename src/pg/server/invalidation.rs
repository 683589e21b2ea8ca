//! Changes of the catalog, as the server tells sessions of them. There is one callback for all relations whose changes the
//! library follows, because the server has ten places for such callbacks of all extensions.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID, RELOID};

use super::process::SessionLocal;

/// How often a cache on which privileges rest was invalidated in this session.
static INVALIDATED: SessionLocal<Cell<u64>> = SessionLocal::new(Cell::new(0));

/// Is called when a relation has changed, with its OID, or with an invalid OID if any may have.
type OnChange = fn(pg_sys::Oid);

/// Those who follow changes of relations: the map and the lease.
static FOLLOWERS: SessionLocal<[Cell<Option<OnChange>>; 2]> =
    SessionLocal::new([const { Cell::new(None) }; 2]);

static IS_WATCHING: SessionLocal<Cell<bool>> = SessionLocal::new(Cell::new(false));

/// A moment in the session's knowledge of the catalog. While it is the same, what the server would say of a user's privileges
/// is the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Changes of this transaction, which no message reports, and those that a rollback takes back.
    invalidated: u64,
    /// Messages of other sessions. The server counts a message before it does what the message says, which may fail.
    messages: u64,
}

impl Known {
    pub(crate) const NOTHING: Self = Self { invalidated: 0, messages: 0 };
}

/// What the session knows now.
pub(crate) fn known() -> Known {
    // SAFETY: reads a global of this single-threaded process.
    let messages = unsafe { pg_sys::SharedInvalidMessageCounter };
    Known { invalidated: INVALIDATED.get(), messages }
}

/// Makes the server tell this session of changes from now on, and calls `follower` for each relation that changes. What the session
/// has read before may be out of date.
pub(crate) fn follow(follower: OnChange) {
    let has_it =
        |place: &&Cell<Option<OnChange>>| place.get().is_none_or(|one| ptr::fn_addr_eq(one, follower));
    if let Some(place) = FOLLOWERS.iter().find(has_it) {
        place.set(Some(follower));
    }
    watch();
}

/// Makes the server tell this session of changes from now on.
pub(crate) fn watch() {
    if IS_WATCHING.replace(true) {
        return;
    }
    let none = pg_sys::Datum::null();
    // SAFETY: the functions stay for the rest of the process, and are registered once.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), none);
        // The caches that a check of privileges reads: pg_class, and what the server's own caches of memberships and of
        // superusers listen to (initialize_acl in acl.c and superuser.c).
        for cache in [RELOID, AUTHMEMROLEMEM, AUTHOID, DATABASEOID] {
            #[allow(
                clippy::cast_possible_wrap,
                reason = "a small number; from PostgreSQL 19 on, it is signed"
            )]
            pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(privileges_changed), none);
        }
    }
}

/// The server calls this when a relation has changed, with its OID, or with an invalid OID if any may have.
extern "C-unwind" fn relation_changed(_: pg_sys::Datum, relation: pg_sys::Oid) {
    for follower in FOLLOWERS.iter().filter_map(Cell::get) {
        follower(relation);
    }
}

extern "C-unwind" fn privileges_changed(_: pg_sys::Datum, _: c_int, _: u32) {
    INVALIDATED.set(INVALIDATED.get().wrapping_add(1));
}
