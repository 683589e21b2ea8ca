//! The boundary to PostgreSQL. All unsafe code is here, and all that knows the server.
//!
//! This module knows no SQLSTATE: its errors are types that [`crate::report`] converts.
#![allow(unsafe_code)]

pub(crate) mod argument;
pub(crate) mod catalog;
mod changes;
pub(crate) mod clock;
pub(crate) mod driver;
mod entry;
pub(crate) mod errors;
pub(crate) mod fence;
pub(crate) mod function;
mod held;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod locks;
mod log;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod owner;
pub(crate) mod parser;
pub(crate) mod pauses;
pub(crate) mod relation;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod succession;
pub(crate) mod text;
pub(crate) mod timestamp;
pub(crate) mod transactions;
mod worker;
