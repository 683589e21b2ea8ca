//! The settings, all under the prefix `insta_ids`.

use std::ffi::CString;

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, pg_sys};

use super::pauses;
use crate::mint;

static MAX_AHEAD_MS: GucSetting<i32> = GucSetting::<i32>::new(10);
static CLOCK_TOLERANCE_S: GucSetting<i32> = GucSetting::<i32>::new(3600);
static FENCE_WAIT_MS: GucSetting<i32> = GucSetting::<i32>::new(0);
static NODE_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);
static NODE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static WRITER_SLOT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"0/1"));

/// Defines the settings. Called once, when the library is loaded.
pub(crate) fn define() {
    GucRegistry::define_int_guc(
        c"insta_ids.max_ahead",
        c"Sets how far ids may run ahead of the clock.",
        c"If a sequence is asked for more than 1024 ids in a millisecond, it takes ids of up to so many later milliseconds, and then waits.",
        &MAX_AHEAD_MS,
        0,
        mint::MAX_AHEAD_MS,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"insta_ids.clock_tolerance",
        c"Sets how far the clock may be behind the time of ids.",
        c"If the clock is behind by less, ids go on from the last time used. If it is behind by more, next_id fails until the clock is right again.",
        &CLOCK_TOLERANCE_S,
        10,
        366 * 24 * 3600,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"insta_ids.fence_wait",
        c"Sets how long a writer of a fenced shard waits before it fails.",
        c"It goes on when the shard is open again. With 0 it fails at once.",
        &FENCE_WAIT_MS,
        0,
        3600 * 1000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    // Only SQL reads it.
    GucRegistry::define_int_guc(
        c"insta_ids.node_timeout",
        c"Sets how long the nodes of the map may take to answer a question about themselves.",
        c"A node that takes longer is reported, and the others are not affected. With 0 there is no limit.",
        &NODE_TIMEOUT_MS,
        0,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"insta_ids.node",
        c"Sets the name of this server in the shard map.",
        c"A change takes effect when the server is restarted. Without a name, all shards are on this server.",
        &NODE,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"insta_ids.writer_slot",
        c"Sets which ids this server mints, where several servers mint for one shard.",
        c"Like 0/2 and 1/2 on two servers: the number of the slot, and how many slots there are, a power of two. A change takes effect when the server is restarted. Each database takes the slot by insta_ids.acquire_writer_slot().",
        &WRITER_SLOT,
        GucContext::Sighup,
        GucFlags::default(),
    );
    pauses::define();
    // SAFETY: the string is static. The server then refuses other settings of this prefix, such as misspelt ones.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"insta_ids".as_ptr()) };
}

/// How far ids may run ahead of the clock, in milliseconds: 0 to 1000.
pub(crate) fn max_ahead_ms() -> i64 {
    i64::from(value(&MAX_AHEAD_MS))
}

/// How far the clock may be behind the server's time, in milliseconds: 10 seconds to 366 days.
pub(crate) fn clock_tolerance_ms() -> i64 {
    i64::from(value(&CLOCK_TOLERANCE_S)) * 1000
}

/// How long a writer of a fenced shard waits, in milliseconds: 0 to an hour.
pub(crate) fn fence_wait_ms() -> i64 {
    i64::from(value(&FENCE_WAIT_MS))
}

/// The name of this server's node as it is set now; empty if it has none. [`super::shared::this_node`] is the name in force.
pub(crate) fn node() -> Vec<u8> {
    NODE.get().unwrap_or_default().into_bytes()
}

/// The text of the writer slot as it is set now. [`super::shared::writer_slot`] is the slot in force.
pub(crate) fn writer_slot() -> String {
    WRITER_SLOT.get().unwrap_or_default().to_string_lossy().into_owned()
}

/// The value of a setting of type integer. [`GucSetting::get`] also checks on each call which thread asks, which costs
/// time on the way of an id.
fn value(setting: &GucSetting<i32>) -> i32 {
    // SAFETY: the server writes the value between calls, in the session's only thread.
    unsafe { *setting.as_ptr() }
}
