//! The minting of ids: one loop over small pieces of state.
//!
//! | state | kept in | promise |
//! |---|---|---|
//! | [`Guard`]: the milliseconds of each residue | shared memory | never the same id twice |
//! | [`SharedTime`]: the greatest clock reading | shared memory | time never goes back on a server |
//! | [`Leases`]: a time that ids do not reach | shared memory and WAL | nor over a crash, restart or promotion |
//! | [`SessionOrder`]: each sequence's last id | the session | a session's ids strictly increase |
//!
//! Clocks and the place where leases are written come in as arguments, so all of it is tested without a
//! server; this module knows nothing of PostgreSQL.

// The atomics by one name, so that the model checker can put its own in their place (tests/loom).
use std::sync::atomic;

mod claim;
mod guard;
mod lease;
mod session;
mod stats;
mod time;

pub use claim::{Clock, Event, Mint, MintError, Minted};
pub use guard::{Guard, Key, Slot};
pub use lease::{LEASE_MS, LeaseKey, LeaseStore, Leases, Lock};
pub use session::{Last, SessionOrder};
pub use stats::{Statistics, Stats};
pub use time::{Reading, SharedTime, Stamp};

/// The most that ids may be allowed to run ahead of the server's time, in milliseconds.
pub const MAX_AHEAD_MS: i32 = 1000;

/// How many databases can hold a lease at once.
const LEASES: usize = 1024;
