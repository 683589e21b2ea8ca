//! Whether the transactions of a session committed. A migration with CONCURRENTLY runs outside of a transaction block, so
//! what runs after it must ask.

use std::cell::Cell;
use std::ffi::c_void;

use pgrx::pg_sys;

use super::process::SessionLocal;

/// What happened since [`note_transactions`] was called. `None` if it was not called.
static NOTED: SessionLocal<Cell<Option<Outcome>>> = SessionLocal::new(Cell::new(None));

/// Whether [`note_transactions`] has registered its callback in this session.
static IS_REGISTERED: SessionLocal<Cell<bool>> = SessionLocal::new(Cell::new(false));

#[derive(Clone, Copy)]
struct Outcome {
    has_failed: bool,
    committed: u32,
}

/// Notes from now on how each transaction of this session ends. `has_failed` is what [`transactions_committed`] is to know
/// about what ran before.
///
/// Raises PostgreSQL's own error in a transaction block, because an error there may end a subtransaction only.
pub(crate) fn note_transactions(has_failed: bool) {
    unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _: *mut c_void) {
        if let Some(mut outcome) = NOTED.get() {
            match event {
                pg_sys::XactEvent::XACT_EVENT_ABORT => outcome.has_failed = true,
                pg_sys::XactEvent::XACT_EVENT_COMMIT => {
                    outcome.committed = outcome.committed.saturating_add(1);
                }
                _ => {}
            }
            NOTED.set(Some(outcome));
        }
    }

    // SAFETY: the string and the callback are static. The callback is registered once.
    unsafe {
        pg_sys::PreventInTransactionBlock(true, c"a migration with CONCURRENTLY".as_ptr());
        if !IS_REGISTERED.replace(true) {
            pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        }
    }
    NOTED.set(Some(Outcome { has_failed, committed: 0 }));
}

/// Stops noting, and returns whether no transaction failed and at least two committed: the one that called
/// [`note_transactions`], and one after it. Returns `None` if nothing was noted.
pub(crate) fn transactions_committed() -> Option<bool> {
    let outcome = NOTED.take()?;
    Some(!outcome.has_failed && outcome.committed >= 2)
}
