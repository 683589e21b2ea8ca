//! Errors on their way to the user, without backtraces.

use std::panic;

use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};

/// Replaces pgrx's panic hook, which adds a backtrace to the DETAIL of each error if `RUST_BACKTRACE` is set in the server's
/// environment. PostgreSQL's own errors pass through Rust code as panics, too. A panic that is no error is a defect of the
/// extension, and its place is written to the server's log.
pub(crate) fn hide_backtraces() {
    drop(panic::take_hook());
    // Without pgrx's hook, `take_hook` returns the default one, which writes to standard error.
    let write_to_log = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        let payload = panicked.payload();
        let is_error = payload.is::<CaughtError>()
            || payload.is::<ErrorReportWithLevel>()
            || payload.is::<ErrorReport>();
        if !is_error {
            write_to_log(panicked);
        }
    }));
}
