//! What tests of real servers share: servers to throw away, sessions that mint, moves step by step, faults.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::should_implement_trait,
    reason = "only the tests call it"
)]

mod chance;
mod cluster;
mod documents;
pub mod fault;
pub mod minters;
pub mod pair;
mod poison;
mod session;
pub mod shards;

pub use chance::Chance;
pub use cluster::*;
pub use documents::blocks;
pub use poison::*;
pub use session::*;
