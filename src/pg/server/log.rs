//! Messages to the server's log. Errors are [`crate::report`]'s.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::mint::Event;
use crate::pg::types::timestamp::duration;

/// Logs an event of the clock for the operator, at level LOG.
pub(crate) fn clock_event(event: Event) {
    let message = match event {
        Event::SteppedBack { us } => format!("clock stepped back by {}", duration((us + 999) / 1000)),
        Event::StartedBehind { ms } => {
            format!("clock is {} behind the lease of this database", duration(ms))
        }
    };
    // A message that is no error has SQLSTATE 00000.
    ErrorReport::new(PgSqlErrorCode::from(0_i32), message, "insta_ids")
        .set_detail("Ids go on from the last time that may have been used.")
        .report(PgLogLevel::LOG);
}

/// Logs that an attempt of a background worker to move shards has failed, at level LOG.
pub(crate) fn move_failed(name: &str, message: &str, detail: Option<String>, hint: Option<String>) {
    let message = format!("move \"{name}\" could not go on: {message}");
    let mut report = ErrorReport::new(PgSqlErrorCode::from(0_i32), message, "insta_ids");
    if let Some(detail) = detail {
        report = report.set_detail(detail);
    }
    if let Some(hint) = hint {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::LOG);
}
