//! The extension's own relations: their OIDs and their rows.

use std::ffi::CStr;

use pgrx::datum::{FromDatum, TimestampWithTimeZone};
use pgrx::pg_sys;

use super::scan::each_row;
use crate::pg::types::layout::StoredLayout;

const SCHEMA: &CStr = c"insta_ids_internal";

/// The OID of the extension's relation of this name. Returns `None` if no relation has the name, or if the relation belongs
/// to no extension.
pub(crate) fn relation(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: called in a transaction; the strings are static.
    unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
        // Where there is no such relation, the caches of the server know that.
        if oid == pg_sys::Oid::INVALID {
            return None;
        }
        let extension = pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid);
        (extension != pg_sys::Oid::INVALID).then_some(oid)
    }
}

/// A superuser has altered a table of the extension: a column that the library reads is missing, has another type, or is
/// NULL where it must not be.
pub(crate) struct Altered {
    pub(crate) table: Vec<u8>,
    pub(crate) column: &'static CStr,
}

/// A column that cannot be read as what the library expects.
pub(crate) struct NotReadable(&'static CStr);

/// A row of a table of the extension, while it is read.
pub(crate) struct Row {
    tuple: pg_sys::HeapTuple,
    columns: pg_sys::TupleDesc,
}

impl Row {
    /// The value of a column that is never NULL.
    ///
    /// # Errors
    /// [`NotReadable`] if the column is missing, has another type than `T`, or is NULL.
    pub(crate) fn get<T: Column>(&self, column: &'static CStr) -> Result<T, NotReadable> {
        self.find(column)?.ok_or(NotReadable(column))
    }

    /// The value of a column, or `None` for NULL.
    ///
    /// # Errors
    /// [`NotReadable`] if the column is missing, or has another type than `T`.
    pub(crate) fn find<T: Column>(&self, column: &'static CStr) -> Result<Option<T>, NotReadable> {
        // SAFETY: `rows_with` has the table open. The column has the type that `T` reads.
        unsafe {
            let number = number_of::<T>(self.columns, column)?;
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(self.tuple, number.into(), self.columns, &mut is_null);
            Ok(T::read(datum, is_null))
        }
    }
}

/// A Rust type that columns are read as.
pub(crate) trait Column: Sized {
    /// Whether values of this PostgreSQL type can be read as `Self`.
    fn is_of_type(oid: pg_sys::Oid) -> bool;

    /// The value, or `None` for NULL.
    ///
    /// # Safety
    /// The datum is of a type that [`Column::is_of_type`] accepts.
    unsafe fn read(datum: pg_sys::Datum, is_null: bool) -> Option<Self>;
}

macro_rules! columns {
    ($($rust:ty: $is_of_type:expr;)*) => {
        $(impl Column for $rust {
            fn is_of_type(oid: pg_sys::Oid) -> bool {
                $is_of_type(oid)
            }

            unsafe fn read(datum: pg_sys::Datum, is_null: bool) -> Option<Self> {
                // SAFETY: the caller keeps what `Column::read` asks for.
                unsafe { Self::from_datum(datum, is_null) }
            }
        })*
    };
}

columns! {
    i32: |oid| oid == pg_sys::INT4OID;
    i64: |oid| oid == pg_sys::INT8OID;
    bool: |oid| oid == pg_sys::BOOLOID;
    TimestampWithTimeZone: |oid| oid == pg_sys::TIMESTAMPTZOID;
    StoredLayout: StoredLayout::is_like;
}

/// A `name`, by its bytes in the database's encoding.
impl Column for Vec<u8> {
    fn is_of_type(oid: pg_sys::Oid) -> bool {
        oid == pg_sys::NAMEOID
    }

    unsafe fn read(datum: pg_sys::Datum, is_null: bool) -> Option<Self> {
        // SAFETY: the caller keeps what `Column::read` asks for. A `name` ends with a zero.
        unsafe { <&CStr>::from_datum(datum, is_null) }.map(|name| name.to_bytes().to_vec())
    }
}

/// The transactions whose rows are read.
#[derive(Clone, Copy)]
pub(crate) enum AsOf {
    /// All that are committed now, whatever the transaction's snapshot is.
    Now,
    /// Those that the running statement sees.
    Statement,
}

/// What `read` makes of each row that a table of the extension has now. Takes an ACCESS SHARE lock for the time of the call.
///
/// # Errors
/// [`Altered`] if `read` could not read a column.
pub(crate) fn rows<T>(
    table: pg_sys::Oid,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Vec<T>, Altered> {
    rows_with(table, None, AsOf::Now, read)
}

/// What `read` makes of the row that a table of the extension has for a shard, in its column `shard`. Otherwise as [`rows`].
///
/// # Errors
/// [`Altered`] if the table has no such column, or if `read` could not read a column.
pub(crate) fn row_of<T>(
    table: pg_sys::Oid,
    shard: i32,
    as_of: AsOf,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Option<T>, Altered> {
    Ok(rows_with(table, Some(shard), as_of, read)?.pop())
}

fn rows_with<T>(
    table: pg_sys::Oid,
    shard: Option<i32>,
    as_of: AsOf,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Vec<T>, Altered> {
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: called in a transaction with the OID of a table. After an error, the end of the transaction or subtransaction
    // closes the table. The function of a statement has a snapshot; without any, the newest rows are read.
    unsafe {
        let relation = pg_sys::table_open(table, lock);
        let snapshot = match as_of {
            AsOf::Statement if pg_sys::ActiveSnapshotSet() => pg_sys::GetActiveSnapshot(),
            _ => std::ptr::null_mut(),
        };
        let key = shard.map(|shard| Ok((number_of::<i32>((*relation).rd_att, c"shard")?, shard))).transpose();
        let values: Result<Vec<T>, _> = key.and_then(|key| {
            let mut values = Vec::new();
            each_row(relation, snapshot, key, |tuple, columns| {
                let value = read(&Row { tuple, columns });
                let is_readable = value.is_ok();
                values.push(value);
                is_readable
            });
            values.into_iter().collect()
        });
        let values = values.map_err(|NotReadable(column)| Altered {
            table: CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr()).to_bytes().to_vec(),
            column,
        });
        pg_sys::table_close(relation, lock);
        values
    }
}

/// The number of a column that is read as `T`.
///
/// # Safety
/// The description is of an open table.
unsafe fn number_of<T: Column>(
    columns: pg_sys::TupleDesc,
    column: &'static CStr,
) -> Result<pg_sys::AttrNumber, NotReadable> {
    // SAFETY: the caller's promise.
    let number = unsafe { pg_sys::SPI_fnumber(columns, column.as_ptr()) };
    // SAFETY: as above.
    let is_readable = number > 0 && T::is_of_type(unsafe { pg_sys::SPI_gettypeid(columns, number) });
    is_readable.then(|| i16::try_from(number).ok()).flatten().ok_or(NotReadable(column))
}
