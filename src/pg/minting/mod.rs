//! Ids from sequences of the server: the short way, the order of a session, the stored lease, and dropped sequences.

mod entry;
pub(crate) mod lease;
pub(crate) mod order;
pub(crate) mod succession;
