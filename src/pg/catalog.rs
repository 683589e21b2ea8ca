//! The extension's own relations: where they are, and what is in them now.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::datum::FromDatum;
use pgrx::pg_sys;

use super::layout::StoredLayout;
use super::rows::each_row;

const SCHEMA: &CStr = c"insta_ids_internal";

/// The OID of a relation of this name, if there is one and it is an extension's: no user's in its place.
pub(crate) fn relation(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: called in a transaction; the strings are static.
    unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
        let extension = pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid);
        (extension != pg_sys::Oid::INVALID).then_some(oid)
    }
}

/// Has `changed` called from now on when a relation has changed, or, for an invalid OID, all may have; `told` is whether
/// it is already.
pub(crate) fn tell_of_changes(told: &AtomicBool, changed: extern "C-unwind" fn(pg_sys::Datum, pg_sys::Oid)) {
    if !told.swap(true, Ordering::Relaxed) {
        // SAFETY: a function is there for the rest of the process; registered once.
        unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), pg_sys::Datum::null()) };
    }
}

/// A row of a table, while it is read. What its columns hold is `None` for NULL.
pub(crate) struct Row<'a> {
    tuple: pg_sys::HeapTuple,
    columns: pg_sys::TupleDesc,
    /// Whether a column was not of the type that it was read as.
    is_altered: &'a Cell<bool>,
}

impl Row<'_> {
    /// A column, numbered from 1, of a type that `is_type` says is right.
    fn column<T: FromDatum>(&self, number: i32, is_type: impl Fn(pg_sys::Oid) -> bool) -> Option<T> {
        // SAFETY: made by `rows`, which has the table open. Of a column that is not there, the type is none. Those that
        // are have been found to be what they are read as.
        unsafe {
            let of = pg_sys::SPI_gettypeid(self.columns, number);
            if of == pg_sys::Oid::INVALID || !is_type(of) {
                self.is_altered.set(true);
                return None;
            }
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(self.tuple, number, self.columns, &mut is_null);
            T::from_datum(datum, is_null)
        }
    }

    pub(crate) fn integer(&self, number: i32) -> Option<i32> {
        self.column(number, |of| of == pg_sys::INT4OID)
    }

    pub(crate) fn bigint(&self, number: i32) -> Option<i64> {
        self.column(number, |of| of == pg_sys::INT8OID)
    }

    pub(crate) fn boolean(&self, number: i32) -> Option<bool> {
        self.column(number, |of| of == pg_sys::BOOLOID)
    }

    pub(crate) fn layout(&self, number: i32) -> Option<StoredLayout> {
        self.column(number, StoredLayout::is_like)
    }

    /// A `name`, in the database's encoding.
    pub(crate) fn name(&self, number: i32) -> Option<Vec<u8>> {
        let name = self.column::<&CStr>(number, |of| of == pg_sys::NAMEOID);
        name.map(|name| name.to_bytes().to_vec())
    }
}

/// A table of the extension, of this name, is not as the extension made it: a superuser has altered it.
pub(crate) struct Altered(pub(crate) Vec<u8>);

/// The rows of a table as they are now, whatever the transaction's snapshot is: each as `read` makes it.
pub(crate) fn rows<T>(table: pg_sys::Oid, mut read: impl FnMut(&Row<'_>) -> T) -> Result<Vec<T>, Altered> {
    let is_altered = Cell::new(false);
    let mut all = Vec::new();
    let name;
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: called in a transaction with the OID of a table. What an error leaves behind, the end of the
    // transaction or subtransaction gives back.
    unsafe {
        let relation = pg_sys::table_open(table, lock);
        name = CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr()).to_bytes().to_vec();
        each_row(relation, std::ptr::null_mut(), |tuple, columns| {
            all.push(read(&Row { tuple, columns, is_altered: &is_altered }));
            true
        });
        pg_sys::table_close(relation, lock);
    }
    if is_altered.get() { Err(Altered(name)) } else { Ok(all) }
}
