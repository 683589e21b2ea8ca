//! What an id is: 41 bits of time, 13 of shard, 10 of sequence.
//!
//! Pure arithmetic over values: this module knows no server, no clock and no sequence.
//!
//! # References
//! Mike Krieger, "Sharding & IDs at Instagram", Instagram Engineering, 2011.

mod error;
mod layout;
mod parts;

pub use error::Error;
pub use layout::{EPOCH, LAST, MAX_SHARD, RESIDUES};
pub use parts::{Id, Millis, Seq, Shard};
