//! The functions of SQL, one file per chapter of docs/reference.md, where each is described. Thin: each turns
//! its arguments into the types of [`crate::id`], and errors into [`crate::report`]'s.

mod adoption;
mod clock;
mod layouts;
mod map;
mod minting;
mod reading;
mod rows;
mod shards;
mod tickets;
mod version;

use crate::mint::{Mint, MintError};
use crate::pg::clock::ServerClock;
use crate::pg::lease::LeaseSequence;
use crate::pg::shared::Shared;
use crate::pg::{session, settings};
use crate::report::Failure;

/// Does what only a session that may mint can do: with the server's state, its clocks and settings, and the
/// lease of the session's database.
fn with_mint<T>(
    server: &Shared,
    act: impl Fn(&Mint<'_, ServerClock, LeaseSequence>) -> Result<T, MintError>,
) -> Result<T, Failure> {
    loop {
        let store = LeaseSequence::find()?;
        let mint = Mint {
            clock: &ServerClock,
            time: &server.time.0,
            leases: &server.leases.0,
            stats: &server.stats.0,
            database: store.key(),
            store: &store,
            session: session::number(),
            max_ahead_ms: settings::max_ahead_ms(),
            tolerance_ms: settings::clock_tolerance_ms(),
        };
        match act(&mint) {
            // The extension was dropped and made anew while this session waited.
            Err(MintError::LeaseGone) => {}
            done => return Ok(done?),
        }
    }
}
