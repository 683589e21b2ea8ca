//! Texts in whatever encoding the database has.

use std::ffi::CString;

use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::{Datum, IntoDatum};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::impl_sql_translatable;

/// A result of type `text`, by its bytes: in a database whose encoding is not UTF-8 they may be no `str`.
pub(crate) struct Text(pub(crate) Vec<u8>);

impl_sql_translatable!(Text, "text");

impl IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        // A `bytea` and a `text` are both bytes with their length before them.
        self.0.into_datum()
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

// SAFETY: the result is a `bytea`, which is a `text`: the bytes are of the database's own encoding.
unsafe impl BoxRet for Text {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: the caller keeps what `BoxRet` asks of it.
        unsafe { self.0.box_into(fcinfo) }
    }
}

/// A text as the server's functions take it. A text of SQL has no NULs.
pub(crate) fn c_string(text: &[u8]) -> CString {
    CString::new(text).unwrap_or_default()
}
