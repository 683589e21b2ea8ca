//! The functions of the type `id_layout`: input, output, equality and hashes. CREATE TYPE comes before all functions that use
//! the type, so SQL declares these.

use std::ffi::{CStr, CString};

use pgrx::datum::Internal;
use pgrx::prelude::*;

use crate::id::Layout;
use crate::id::hash::mix;
use crate::mint::Clock;
use crate::pg::server::clock::ServerClock;
use crate::pg::types::layout::StoredLayout;
use crate::report::{NotALayout, SqlResult};

#[pg_extern(sql = false)]
fn id_layout_in(text: &CStr) -> SqlResult<StoredLayout> {
    let text = text.to_bytes();
    let layout = Layout::parse(text, ServerClock.now()).map_err(|why| NotALayout { text, why })?;
    Ok(layout.into())
}

#[pg_extern(sql = false)]
fn id_layout_out(layout: StoredLayout) -> SqlResult<CString> {
    // A layout's text contains no zero, so this does not fail.
    Ok(CString::new(Layout::try_from(layout)?.to_string()).unwrap_or_default())
}

#[pg_extern(sql = false)]
fn id_layout_recv(message: Internal) -> SqlResult<StoredLayout> {
    let layout = Layout::try_from(StoredLayout::receive(message))?;
    Ok(layout.begun(ServerClock.now())?.into())
}

#[pg_extern(sql = false)]
fn id_layout_send(layout: StoredLayout) -> Vec<u8> {
    layout.send()
}

#[pg_extern(sql = false)]
fn id_layout_eq(a: StoredLayout, b: StoredLayout) -> bool {
    a == b
}

#[pg_extern(sql = false)]
fn id_layout_ne(a: StoredLayout, b: StoredLayout) -> bool {
    a != b
}

#[pg_extern(sql = false)]
fn id_layout_hash(layout: StoredLayout) -> SqlResult<i32> {
    // PostgreSQL requires the lower half of the extended hash with seed 0.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    id_layout_hash_extended(layout, 0).map(|hash| hash as i32)
}

#[pg_extern(sql = false)]
fn id_layout_hash_extended(layout: StoredLayout, seed: i64) -> SqlResult<i64> {
    Ok(mix(Layout::try_from(layout)?.hash64().wrapping_add(seed.cast_unsigned())).cast_signed())
}
