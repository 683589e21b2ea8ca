//! Which version of the library a session runs. Its SQL is in sql/before.sql, as all else relies on it.

use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn library_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
