//! The boundary to PostgreSQL, and all the unsafe code there is.
#![allow(unsafe_code)]

pub(crate) mod argument;
pub(crate) mod catalog;
pub(crate) mod clock;
pub(crate) mod errors;
pub(crate) mod function;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod map;
pub(crate) mod parser;
pub(crate) mod pauses;
pub(crate) mod relation;
pub(crate) mod rows;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod text;
pub(crate) mod timestamp;

/// Keeps others from making settings under the extension's prefix, and tells of misspelt ones.
pub(crate) fn reserve_setting_prefix() {
    // SAFETY: the string is static; called from `_PG_init`, after the settings were defined.
    unsafe { pgrx::pg_sys::MarkGUCPrefixReserved(c"insta_ids".as_ptr()) };
}
