//! The settings, all under the prefix `insta_ids`.

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

static MAX_AHEAD_MS: GucSetting<i32> = GucSetting::<i32>::new(10);

/// Defines the settings. Called once, when the library is loaded.
pub(crate) fn define() {
    GucRegistry::define_int_guc(
        c"insta_ids.max_ahead_ms",
        c"Sets how far ids may run ahead of the clock.",
        c"A sequence that is asked for more than 1024 ids in a millisecond takes them from the next milliseconds, this many at most, and then waits.",
        &MAX_AHEAD_MS,
        0,
        1000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    crate::pg::reserve_setting_prefix();
}

/// How far ids may run ahead of the clock, in milliseconds: 0 to 1000.
pub(crate) fn max_ahead_ms() -> i64 {
    i64::from(MAX_AHEAD_MS.get())
}
