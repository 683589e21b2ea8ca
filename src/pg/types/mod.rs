//! SQL types as Rust values.

pub(crate) mod argument;
pub(crate) mod layout;
pub(crate) mod text;
pub(crate) mod timestamp;
