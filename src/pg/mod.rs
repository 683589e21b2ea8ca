//! The boundary to PostgreSQL. All unsafe code is here, and all that knows the server.
//!
//! This module knows no SQLSTATE: its errors are types that [`crate::report`] converts.
#![allow(unsafe_code)]

pub(crate) mod catalog;
pub(crate) mod minting;
pub(crate) mod placement;
pub(crate) mod server;
pub(crate) mod types;
pub(crate) mod workers;
