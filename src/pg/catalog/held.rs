//! The sequences that the session holds: `nextval` has checked its privileges in this transaction, and nothing has changed
//! since that they rest on. For those, `nextval` need not look privileges up again.
//!
//! docs/design.md has the argument (The short way of an id).

use std::cell::Cell;

use pgrx::pg_sys;

use crate::pg::server::invalidation::{self, Known};
use crate::pg::server::process::{self, SessionLocal};

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

static HELD: SessionLocal<[Cell<Held>; PLACES]> =
    SessionLocal::new([const { Cell::new(Held::NONE) }; PLACES]);

/// Whether the session holds the sequence, and may write.
pub(crate) fn is_held(sequence: pg_sys::Oid) -> bool {
    // SAFETY: reads a global of this single-threaded process.
    let may_write = unsafe { !pg_sys::XactReadOnly };
    let now = now(sequence, invalidation::known());
    may_write && now.transaction != 0 && place(sequence, Cell::get) == now
}

/// Remembers that `nextval` has checked its privileges on the sequence, after the session knew what [`invalidation::known`] said.
pub(crate) fn hold(sequence: pg_sys::Oid, known: Known) {
    place(sequence, |place| place.set(now(sequence, known)));
}

fn place<T>(sequence: pg_sys::Oid, act: impl FnOnce(&Cell<Held>) -> T) -> T {
    act(&HELD[sequence.to_u32() as usize % PLACES])
}

fn now(sequence: pg_sys::Oid, known: Known) -> Held {
    Held { sequence: sequence.to_u32(), user: process::user(), transaction: process::transaction(), known }
}
