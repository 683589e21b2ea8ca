//! Errors on their way to the user: without a backtrace, whatever is in the server's environment.

use std::panic;

use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};

/// Replaces pgrx's panic hook, which adds a backtrace to the DETAIL of every error if `RUST_BACKTRACE` is set. An error
/// of PostgreSQL passes through Rust code as a panic, too. A panic that is no error is a defect: where it happened is
/// written to the server's log.
pub(crate) fn hide_backtraces() {
    drop(panic::take_hook());
    // Without pgrx's hook there is the default one.
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
