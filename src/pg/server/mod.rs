//! The server and its processes: clocks, settings, shared memory, the log, invalidations, and the state of a session.

pub(crate) mod clock;
pub(crate) mod errors;
pub(crate) mod invalidation;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod pauses;
pub(crate) mod process;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod transactions;
