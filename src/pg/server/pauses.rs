//! Points at which a test can stop a session, or make it panic. Only a build with the feature `pauses` has them. In other
//! builds they compile to nothing.

#[cfg(not(feature = "pauses"))]
pub(crate) fn define() {}

#[cfg(not(feature = "pauses"))]
#[inline]
pub(crate) fn at(_point: &str) {}

#[cfg(feature = "pauses")]
pub(crate) use stopping::{at, define};

#[cfg(feature = "pauses")]
mod stopping {
    use std::ffi::{CString, c_int};

    use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

    static PAUSE_AT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
    static PANIC_AT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

    /// The number of the signal that stops a process, on Linux.
    const SIGSTOP: c_int = 19;

    // SAFETY: declared as in signal.h.
    unsafe extern "C" {
        fn raise(signal: c_int) -> c_int;
    }

    pub(crate) fn define() {
        GucRegistry::define_string_guc(
            c"insta_ids.pause_at",
            c"Names the points at which the session stops itself, with commas between.",
            c"",
            &PAUSE_AT,
            GucContext::Userset,
            GucFlags::default(),
        );
        GucRegistry::define_string_guc(
            c"insta_ids.panic_at",
            c"Names the points at which the session panics, with commas between.",
            c"",
            &PANIC_AT,
            GucContext::Userset,
            GucFlags::default(),
        );
    }

    fn names(points: &GucSetting<Option<CString>>, point: &str) -> bool {
        let chosen = points.get().unwrap_or_default();
        chosen.to_bytes().split(|&byte| byte == b',').any(|chosen| chosen == point.as_bytes())
    }

    /// Panics if the setting `insta_ids.panic_at` names this point. Stops the process if `insta_ids.pause_at` does; the test
    /// continues it with SIGCONT.
    pub(crate) fn at(point: &str) {
        assert!(!names(&PANIC_AT, point), "panics {point}");
        if names(&PAUSE_AT, point) {
            // The test finds this line in the server's log.
            eprintln!("stands still {point}");
            // SAFETY: stops this process only.
            unsafe { raise(SIGSTOP) };
        }
    }
}
