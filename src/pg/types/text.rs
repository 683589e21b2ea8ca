//! Texts in the database's encoding, which need not be UTF-8.

use std::ffi::CString;

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::{Datum, IntoDatum};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;

/// A result of type `text`, given by its bytes. A Rust `str` would have to be UTF-8.
pub(crate) struct Text(pub(crate) Vec<u8>);

impl_sql_translatable!(Text, "text");

impl IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        // A `text` is stored as a `bytea` is.
        self.0.into_datum()
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

// SAFETY: the result is a `bytea`, which is stored as a `text` is. Its bytes are in the database's encoding.
unsafe impl BoxRet for Text {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the caller keeps what `BoxRet` asks for.
        unsafe { self.0.box_into(fcinfo) }
    }
}

/// A text as the server's functions take it, with a zero at its end. Text from SQL contains no zero.
pub(crate) fn c_string(text: &[u8]) -> CString {
    CString::new(text).unwrap_or_default()
}
