//! The minting of ids: one loop over three small pieces of state.
//!
//! | state | kept in | promise |
//! |---|---|---|
//! | [`Guard`]: the milliseconds of each residue | shared memory | never the same id twice |
//! | [`SharedTime`]: the greatest clock reading | shared memory | time never goes back on a server |
//! | [`SessionOrder`]: each sequence's last id | the session | a session's ids strictly increase |
//!
//! The clock comes in as an argument, so all of it is tested without a server; this module knows
//! nothing of PostgreSQL.

// The atomics by one name, so that the model checker can put its own in their place (tests/loom).
use std::sync::atomic;

mod claim;
mod guard;
mod session;
mod time;

pub use claim::{Clock, Mint};
pub use guard::{Guard, Key, Slot};
pub use session::SessionOrder;
pub use time::SharedTime;
