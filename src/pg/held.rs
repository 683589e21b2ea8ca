//! The sequences that the session holds: `nextval` has checked its privileges in this transaction, and nothing has changed
//! since that they rest on. For those, `nextval` need not look privileges up again.
//!
//! docs/design.md has the argument (The short way of an id).

use std::cell::Cell;

use pgrx::pg_sys;

use super::changes::{self, Known};
use super::memory::OneThread;

/// How many sequences are remembered at most. The last digits of a sequence's OID choose its place.
const PLACES: usize = 64;

/// A sequence, and when and for whom its privileges were checked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Held {
    sequence: u32,
    user: u32,
    /// Counts the session's transactions; 0 outside of them.
    transaction: u32,
    known: Known,
}

impl Held {
    const NONE: Self = Self { sequence: 0, user: 0, transaction: 0, known: Known::NOTHING };
}

static HELD: OneThread<[Cell<Held>; PLACES]> = OneThread::new([const { Cell::new(Held::NONE) }; PLACES]);

// SAFETY: declared as in miscadmin.h. It reads a global and raises no error, so it needs no guard.
unsafe extern "C" {
    fn GetUserId() -> pg_sys::Oid;
}

/// Whether the session holds the sequence, and may write.
pub(crate) fn is_held(sequence: pg_sys::Oid) -> bool {
    // SAFETY: reads a global of this single-threaded process.
    let may_write = unsafe { !pg_sys::XactReadOnly };
    let now = now(sequence, changes::known());
    may_write && now.transaction != 0 && place(sequence, Cell::get) == now
}

/// Remembers that `nextval` has checked its privileges on the sequence, after the session knew what [`changes::known`] said.
pub(crate) fn hold(sequence: pg_sys::Oid, known: Known) {
    place(sequence, |place| place.set(now(sequence, known)));
}

fn place<T>(sequence: pg_sys::Oid, act: impl FnOnce(&Cell<Held>) -> T) -> T {
    act(&HELD[sequence.to_u32() as usize % PLACES])
}

fn now(sequence: pg_sys::Oid, known: Known) -> Held {
    // SAFETY: the server sets `MyProc` before any function runs, and keeps it until the process ends.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    let transaction = unsafe { (*pg_sys::MyProc).lxid };
    // SAFETY: as above.
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    let transaction = unsafe { (*pg_sys::MyProc).vxid.lxid };
    // SAFETY: called in a transaction.
    let user = unsafe { GetUserId() };
    Held { sequence: sequence.to_u32(), user: user.to_u32(), transaction, known }
}
