//! The short way of an id, called by `entry.c`: an id of a sequence that the session holds, where nothing stands in the way.
//!
//! No function here raises an error. A panic would be a bug, and must not pass the frames of C: it ends in [`no_panic`], and the
//! long way reports what is wrong.

use std::panic::{UnwindSafe, catch_unwind};

use pgrx::pg_sys;

use super::lease::LeaseTable;
use super::order::{in_order, mint};
use crate::id::{Id, Instagram, Layout};
use crate::pg::catalog::held;
use crate::pg::catalog::sequence::Sequence;
use crate::pg::placement::map;
use crate::pg::server::{pauses, shared};
use crate::pg::types::layout::StoredLayout;

/// No id is negative.
const NONE: i64 = -1;

/// Whether the session holds the sequence, and the layout has the shard. Otherwise the long way must be taken, before a value
/// is: it has the errors.
#[unsafe(no_mangle)]
extern "C" fn insta_ids_may_attempt(shard: i32, sequence: pg_sys::Oid) -> bool {
    no_panic(|| may_attempt(Layout::INSTAGRAM, shard, sequence)).is_some()
}

/// The same in another layout. `None` stands for a NULL, which a strict function is not called with.
#[unsafe(no_mangle)]
extern "C" fn insta_ids_may_attempt_layout(
    shard: i32,
    sequence: pg_sys::Oid,
    layout: Option<&StoredLayout>,
) -> bool {
    no_panic(|| may_attempt(Layout::try_from(*layout?).ok()?, shard, sequence)).is_some()
}

fn may_attempt(layout: Layout, shard: i32, sequence: pg_sys::Oid) -> Option<()> {
    layout.shard(shard).ok()?;
    held::is_held(sequence).then_some(())
}

/// The id of a shard with a value of its sequence, or a negative number if the long way must be taken.
#[unsafe(no_mangle)]
extern "C" fn insta_ids_attempt(shard: i32, sequence: pg_sys::Oid, value: i64) -> i64 {
    no_panic(|| id(Instagram, shard, sequence.into(), value)).map_or(NONE, Id::bits)
}

/// The same in another layout.
#[unsafe(no_mangle)]
extern "C" fn insta_ids_attempt_layout(
    shard: i32,
    sequence: pg_sys::Oid,
    layout: &StoredLayout,
    value: i64,
) -> i64 {
    no_panic(|| id(Layout::try_from(*layout).ok()?, shard, sequence.into(), value)).map_or(NONE, Id::bits)
}

fn no_panic<T>(act: impl FnOnce() -> Option<T> + UnwindSafe) -> Option<T> {
    catch_unwind(act).ok().flatten()
}

fn id<L: Into<Layout> + Copy>(typed: L, shard: i32, sequence: Sequence, value: i64) -> Option<Id> {
    pauses::at("after nextval");
    let server = shared::attached()?;
    let layout = typed.into();
    let shard = layout.shard(shard).ok()?;
    if !map::is_here(layout, shard) {
        return None;
    }
    let seq = layout.seq_of_writer(value, server.writer()).ok()?;
    let store = LeaseTable::known()?;
    in_order(server, typed, shard, sequence, seq, |slot, earliest| {
        mint(server, &store).attempt(typed, slot, earliest, shard, seq).ok_or(())
    })
    .ok()
}
