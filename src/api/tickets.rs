//! Ticket servers.

use pgrx::prelude::*;

use crate::pg::catalog::sequence::Sequence;
use crate::report::{NoTicketServer, SqlResult};

/// Returns the next ticket of a ticket server. Once returned, the ticket is final: no crash returns it again.
#[pg_extern(sql = false)]
fn next_ticket(name: &[u8]) -> SqlResult<i64> {
    let sequence = Sequence::of_ticket_server(name).ok_or(NoTicketServer(name))?;
    // Another session may have dropped the sequence since it was looked up.
    let ticket = sequence.next().map_err(|_| NoTicketServer(name))?;
    sequence.flush();
    Ok(ticket)
}
