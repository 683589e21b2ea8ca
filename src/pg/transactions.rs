//! Whether the transactions of a session committed. A migration with CONCURRENTLY runs outside of a transaction block, so
//! what runs after it must ask.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

/// What happened since [`note_transactions`] was called. `None` if it was not called.
static NOTED: Mutex<Option<Outcome>> = Mutex::new(None);

/// Whether [`note_transactions`] has registered its callback in this session.
static REGISTERED: AtomicBool = AtomicBool::new(false);

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
        if let Ok(mut noted) = NOTED.lock()
            && let Some(outcome) = noted.as_mut()
        {
            match event {
                pg_sys::XactEvent::XACT_EVENT_ABORT => outcome.has_failed = true,
                pg_sys::XactEvent::XACT_EVENT_COMMIT => {
                    outcome.committed = outcome.committed.saturating_add(1);
                }
                _ => {}
            }
        }
    }

    // SAFETY: the string and the callback are static. The callback is registered once.
    unsafe {
        pg_sys::PreventInTransactionBlock(true, c"a migration with CONCURRENTLY".as_ptr());
        if !REGISTERED.swap(true, Ordering::Relaxed) {
            pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        }
    }
    if let Ok(mut noted) = NOTED.lock() {
        *noted = Some(Outcome { has_failed, committed: 0 });
    }
}

/// Stops noting, and returns whether no transaction failed and at least two committed: the one that called
/// [`note_transactions`], and one after it. Returns `None` if nothing was noted.
pub(crate) fn transactions_committed() -> Option<bool> {
    let outcome = NOTED.lock().ok()?.take()?;
    Some(!outcome.has_failed && outcome.committed >= 2)
}
