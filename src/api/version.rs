//! The version of the library.

use pgrx::prelude::*;

/// Returns the version of the library that this session has loaded. The extension's scripts compare it with their own.
#[pg_extern(sql = false)]
fn library_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
