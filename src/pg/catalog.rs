//! The extension's own relations: their OIDs and their rows.

use std::ffi::CStr;

use pgrx::datum::FromDatum;
use pgrx::pg_sys;

use super::layout::StoredLayout;
use super::rows::each_row;

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

/// A row of a table of the extension, while [`rows`] reads it.
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
        // SAFETY: `rows` has the table open. The column exists, because its number is positive, and has the type that `T`
        // reads.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.columns, column.as_ptr());
            if number <= 0 || !T::is_of_type(pg_sys::SPI_gettypeid(self.columns, number)) {
                return Err(NotReadable(column));
            }
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(self.tuple, number, self.columns, &mut is_null);
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

/// What `read` makes of each row that a table of the extension has now, whatever the transaction's snapshot is. Takes an
/// ACCESS SHARE lock for the time of the call.
///
/// # Errors
/// [`Altered`] if `read` could not read a column.
pub(crate) fn rows<T>(
    table: pg_sys::Oid,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Vec<T>, Altered> {
    rows_by(std::ptr::null_mut(), table, read)
}

/// The same of the rows that the running statement sees.
///
/// # Errors
/// [`Altered`] if `read` could not read a column.
pub(crate) fn rows_of_statement<T>(
    table: pg_sys::Oid,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Vec<T>, Altered> {
    // SAFETY: reads the stack of snapshots. The function of a statement has one; without any, the newest rows are read.
    let snapshot = unsafe {
        if pg_sys::ActiveSnapshotSet() { pg_sys::GetActiveSnapshot() } else { std::ptr::null_mut() }
    };
    rows_by(snapshot, table, read)
}

fn rows_by<T>(
    snapshot: pg_sys::Snapshot,
    table: pg_sys::Oid,
    read: impl Fn(&Row) -> Result<T, NotReadable>,
) -> Result<Vec<T>, Altered> {
    let mut values = Vec::new();
    let name;
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: called in a transaction with the OID of a table. After an error, the end of the transaction or subtransaction
    // closes the table.
    unsafe {
        let relation = pg_sys::table_open(table, lock);
        each_row(relation, snapshot, |tuple, columns| {
            let value = read(&Row { tuple, columns });
            let is_readable = value.is_ok();
            values.push(value);
            is_readable
        });
        name = CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr()).to_bytes().to_vec();
        pg_sys::table_close(relation, lock);
    }
    let all: Result<_, _> = values.into_iter().collect();
    all.map_err(|NotReadable(column)| Altered { table: name, column })
}
