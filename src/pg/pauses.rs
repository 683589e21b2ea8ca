//! Points at which a test can stop a session. Only a build with the feature `pauses` has them. In other builds they compile
//! to nothing.

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
    }

    /// Stops the process if the setting `insta_ids.pause_at` names this point. The test continues it with SIGCONT.
    pub(crate) fn at(point: &str) {
        let chosen = PAUSE_AT.get().unwrap_or_default();
        if chosen.to_bytes().split(|&byte| byte == b',').any(|chosen| chosen == point.as_bytes()) {
            // The test finds this line in the server's log.
            eprintln!("stands still {point}");
            // SAFETY: stops this process only.
            unsafe { raise(SIGSTOP) };
        }
    }
}
