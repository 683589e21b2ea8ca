//! What a session mints with: what tells it from others, and its last ids.

use std::cell::RefCell;

use pgrx::pg_sys;

use super::clock::ServerClock;
use super::lease::LeaseTable;
use super::memory::OneThread;
use super::sequence::Sequence;
use super::shared::Shared;
use super::{pauses, settings};
use crate::id::{Id, Layout, Seq, Shard};
use crate::mint::{Key, Mint, Minted, SessionOrder, Slot, Stamp};

/// The session's last ids.
static ORDER: OneThread<RefCell<SessionOrder>> = OneThread::new(RefCell::new(SessionOrder::new()));

/// The server's state, its clocks and settings, and the lease of the session's database.
pub(crate) fn mint<'a>(server: &'a Shared, store: &'a LeaseTable) -> Mint<'a, ServerClock, LeaseTable> {
    Mint {
        clock: &ServerClock,
        time: &server.time.0,
        leases: &server.leases.0,
        stats: &server.stats.0,
        database: store.key(),
        store,
        session: number(),
        max_ahead_ms: settings::max_ahead_ms(),
        tolerance_ms: settings::clock_tolerance_ms(),
    }
}

/// The id that `claim` mints, in the session's order: it comes after the last id of this sequence, shard and layout, and after
/// those of sequences that were dropped before this one was created. `claim` is given the slot of the sequence field, and the
/// first millisecond that the id may have.
///
/// # Errors
/// Those of `claim`.
#[inline]
pub(crate) fn in_order<E>(
    server: &Shared,
    typed: impl Into<Layout> + Copy,
    shard: Shard,
    sequence: Sequence,
    seq: Seq,
    claim: impl FnOnce(Slot<'_>, Stamp) -> Result<Minted, E>,
) -> Result<Id, E> {
    let key = Key::new(server.seed, database(), sequence.oid(), shard, typed.into());
    let slot = server.guard.0.slot(key, typed, seq);
    let mut order = ORDER.borrow_mut();
    let last = order.last(key, server.time.0.stamp());
    let entry = server.succession.0.of(database(), sequence.oid());
    let minted = claim(slot, last.earliest(seq).max(entry.earliest()))?;
    last.record(minted.until, seq);
    entry.record(minted.until);
    pauses::at("claimed");
    Ok(minted.id)
}

/// Whether a residue is free now. Other sessions may take it.
pub(crate) fn is_free(server: &Shared, layout: Layout, shard: Shard, sequence: Sequence, seq: Seq) -> bool {
    let key = Key::new(server.seed, database(), sequence.oid(), shard, layout);
    server.guard.0.slot(key, layout, seq).is_free(layout, server.time.0.stamp())
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
