//! Messages to the server's log. Errors are [`crate::report`]'s.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::mint::Event;
use crate::pg::types::timestamp::duration;

/// Logs an event of the clock for the operator, at level LOG.
pub(super) fn clock_event(event: Event) {
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
