//! What an id is: a time, a shard and a sequence field, each at the place that a layout gives it.
//!
//! Pure arithmetic over values. This module knows no server, no clock and no sequence.
//!
//! # References
//! Mike Krieger, "Sharding & IDs at Instagram", Instagram Engineering, 2011.

mod error;
pub mod hash;
pub mod instant;
mod layout;
pub mod mask;
mod parts;
pub mod shortcode;
mod text;
mod writer;

pub use error::{Error, Times};
pub use layout::{Fields, Instagram, InvalidLayout, Layout};
pub use parts::{Id, Millis, Seq, Shard};
pub use shortcode::ShortcodeError;
pub use text::{TextError, readable};
pub use writer::{NotASlot, WriterSlot};
