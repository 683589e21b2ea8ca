//! The SQL functions that are written in Rust, in one file per chapter of docs/reference.md.
//!
//! Each function converts its arguments, calls another module, and converts the error by [`crate::report`]. A function with
//! `sql = false` is declared in `sql/`: its chapter needs it in another schema or place than pgrx would give it.
//!
//! In a database whose encoding is not UTF-8, a `text` may be no `str`. So an argument of type `text` is declared as `&[u8]`
//! and a result as [`crate::pg::types::text::Text`].

mod adoption;
mod clock;
mod fleet;
mod layouts;
mod map;
mod minting;
mod reading;
mod rows;
mod shards;
mod tickets;
mod version;

use crate::mint::{Mint, MintError};
use crate::pg::minting::lease::LeaseTable;
use crate::pg::minting::order;
use crate::pg::server::clock::ServerClock;
use crate::pg::server::shared::Shared;
use crate::report::Failure;

/// Calls `act` with what a session mints ids with ([`order::mint`]). If the extension was dropped and created again
/// meanwhile, `act` is called again with the new lease.
///
/// # Errors
/// The errors of `act`, and [`crate::pg::minting::lease::NoLease`].
fn with_mint<T>(
    server: &Shared,
    act: impl Fn(&Mint<'_, ServerClock, LeaseTable>) -> Result<T, MintError>,
) -> Result<T, Failure> {
    loop {
        let store = LeaseTable::find()?;
        match act(&order::mint(server, &store)) {
            Err(MintError::LeaseGone) => {}
            done => return Ok(done?),
        }
    }
}
