//! src/mint, file by file, with loom's atomics in the place of the real ones.

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
}

#[path = "../../src/mint/claim.rs"]
mod claim;
#[path = "../../src/mint/guard.rs"]
mod guard;
#[path = "../../src/mint/time.rs"]
mod time;

pub(crate) use claim::{Clock, Mint};
pub(crate) use guard::Slot;
pub(crate) use time::SharedTime;
