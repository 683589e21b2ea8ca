//! The minting of ids: one loop ([`Mint::claim`]) over five pieces of state.
//!
//! | state | kept in | promise |
//! |---|---|---|
//! | [`Guard`]: in which milliseconds each residue was used | shared memory | no id is minted twice |
//! | [`SharedTime`]: the greatest reading of the clock | shared memory | the time of ids never goes back on a server |
//! | [`Leases`]: a time that ids do not reach | shared memory and WAL | both hold after a crash, restart or promotion |
//! | [`Succession`]: when the last id of each sequence ends | shared memory | a sequence that is created again repeats no id |
//! | [`SessionOrder`]: each sequence's last id | the session | a session's ids strictly increase |
//!
//! The clocks and the lease's store are arguments, so tests need no server. This module knows nothing of PostgreSQL.

// All files here use the atomics by this name. The model checker puts its own in their place (tests/loom).
use std::sync::atomic;

mod claim;
mod clock;
mod guard;
mod lease;
mod renewal;
mod session;
mod state;
mod stats;
mod succession;
mod time;

pub use claim::{Claimed, Minted};
pub use clock::{Clock, Event, Reading};
pub use guard::{Guard, Key, Slot};
pub use lease::{LEASE_MS, LeaseKey, LeaseStore, Leases, Lock};
pub use session::{Last, SessionOrder};
pub use state::{Mint, MintError};
pub use stats::{Statistics, Stats};
pub use succession::Succession;
pub use time::{SharedTime, Stamp};

/// The upper limit of the setting `insta_ids.max_ahead`.
pub const MAX_AHEAD_MS: i32 = 1000;

/// How many databases can hold a lease at once.
const LEASES: usize = 1024;
