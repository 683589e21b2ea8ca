//! What a session mints with: what tells it from others, and its last ids.

use std::cell::RefCell;

use super::lease::LeaseTable;
use crate::id::{Id, Layout, Seq, Shard};
use crate::mint::{Key, Mint, Minted, SessionOrder, Slot, Stamp};
use crate::pg::catalog::sequence::Sequence;
use crate::pg::server::clock::ServerClock;
use crate::pg::server::process::{SessionLocal, database, number};
use crate::pg::server::shared::Shared;
use crate::pg::server::{pauses, settings};

/// The session's last ids.
static ORDER: SessionLocal<RefCell<SessionOrder>> = SessionLocal::new(RefCell::new(SessionOrder::new()));

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
