//! Tickets. Their SQL is in sql/tickets.sql, as they live in the schema of administration.

use pgrx::prelude::*;

use crate::pg::sequence::Sequence;
use crate::report::{NoTicketServer, SqlResult};

/// The name as bytes: in a database whose encoding is not UTF-8 it may be no `str`.
#[pg_extern(sql = false)]
fn next_ticket(name: &[u8]) -> SqlResult<i64> {
    let sequence = Sequence::of_ticket_server(name).ok_or(NoTicketServer(name))?;
    // Another session may have dropped it since it was looked up.
    let ticket = sequence.next().map_err(|_| NoTicketServer(name))?;
    sequence.flush();
    Ok(ticket)
}
