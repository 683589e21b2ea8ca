//! Rows of users' tables, read without the planner and the executor.
//!
//! The scans here run code of PostgreSQL and its superusers only: the access methods of heaps and of B-trees over `bigint`,
//! and the output functions of types. The planner and the executor would also run code of the table's owner: expressions of
//! indexes and statistics, and policies.

use std::ffi::{CStr, CString};
use std::ptr;

use pgrx::datum::FromDatum;
use pgrx::memcxt::PgMemoryContexts;
use pgrx::{PgTupleDesc, pg_sys};

use super::hashes::{columns_by_name, hash_of, key_column, text_of};
use super::relation::{NoSuchRelation, not_in_heap, open_owned, open_readable};
use super::scan::{each_row, first_in_order, index_on};

/// Why rows were not read.
pub(crate) enum NotRead {
    NoRelation(NoSuchRelation),
    /// The rows of the table of this name are not in its heap, because of what it is.
    NotInHeap {
        table: Vec<u8>,
        is: &'static str,
    },
}

impl From<NoSuchRelation> for NotRead {
    fn from(missing: NoSuchRelation) -> Self {
        Self::NoRelation(missing)
    }
}

/// Which values of a column are read.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// All values.
    All,
    /// The least and the greatest value, from a B-tree index that begins with the column and has no predicate. No values if
    /// the table has no such index.
    Ends,
}

/// Calls `visit` with the values of a column that the active snapshot sees, without NULLs. The column's type must be `bigint`
/// or a domain over it; otherwise `visit` is not called.
///
/// # Errors
/// [`NotRead`]. Raises PostgreSQL's own error if the user is no member of the role that owns the table.
pub(crate) fn visit_ids(
    table: pg_sys::Oid,
    column: &CStr,
    which: Which,
    mut visit: impl FnMut(i64),
) -> Result<(), NotRead> {
    with_table(table, |opened| {
        // SAFETY: the table is open.
        unsafe {
            let attribute = pg_sys::get_attnum(table, column.as_ptr());
            if !is_bigint(opened, attribute) {
                return;
            }
            let mut read = |row, columns| {
                let mut is_null = false;
                let value = pg_sys::heap_getattr(row, attribute.into(), columns, &mut is_null);
                if let Some(id) = i64::from_datum(value, is_null) {
                    visit(id);
                }
            };
            match which {
                Which::All => each_row(opened, pg_sys::GetActiveSnapshot(), None, |row, columns| {
                    read(row, columns);
                    true
                }),
                Which::Ends => {
                    if let Some(index) = index_on(opened, attribute) {
                        for direction in [
                            pg_sys::ScanDirection::ForwardScanDirection,
                            pg_sys::ScanDirection::BackwardScanDirection,
                        ] {
                            first_in_order(opened, index, attribute, direction, &mut read);
                        }
                        pg_sys::index_close(index, pg_sys::AccessShareLock.cast_signed());
                    }
                }
            }
        }
    })
}

/// Calls `visit` with a hash of each row that the active snapshot sees, and a function that writes the row's values in `named`.
/// Equal rows have equal hashes on all servers, whatever the order of their columns is.
///
/// A value is hashed as its type's output function writes it. So settings such as `DateStyle` must be the same on the servers.
///
/// # Errors
/// As [`visit_ids`].
pub(crate) fn visit_hashes(
    table: pg_sys::Oid,
    named: &[CString],
    mut visit: impl FnMut(i64, &mut dyn FnMut() -> Vec<u8>),
) -> Result<(), NotRead> {
    with_table(table, |opened| {
        // SAFETY: the table is open. The arrays have a place for each column.
        unsafe {
            let mut columns = columns_by_name(opened);
            let mut named: Vec<_> = named.iter().filter_map(|name| key_column(opened, name)).collect();
            let count = usize::try_from((*(*opened).rd_att).natts).unwrap_or_default();
            let (mut values, mut nulls) = (vec![pg_sys::Datum::null(); count], vec![true; count]);
            let mut row_memory = PgMemoryContexts::new("insta_ids: a row");
            let mut bytes = Vec::new();
            each_row(opened, pg_sys::GetActiveSnapshot(), None, |row, described| {
                pg_sys::heap_deform_tuple(row, described, values.as_mut_ptr(), nulls.as_mut_ptr());
                row_memory.switch_to(|_| {
                    let hash = hash_of(&mut columns, &values, &nulls, &mut bytes);
                    visit(hash, &mut || text_of(&mut named, row, described));
                });
                row_memory.reset();
                true
            });
        }
    })
}

/// Makes these hashes the rows that a function of one column returns. More than `work_mem` holds are on disk.
///
/// # Errors
/// As [`visit_ids`].
pub(crate) fn return_hashes(table: pg_sys::Oid, call: pg_sys::FunctionCallInfo) -> Result<(), NotRead> {
    // SAFETY: the server passes the call of a function that returns rows, and says where they go.
    unsafe {
        pg_sys::InitMaterializedSRF(call, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
        #[expect(clippy::cast_ptr_alignment, reason = "the server has allocated this type")]
        let rows = (*call).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        visit_hashes(table, &[], |hash, _| {
            let (mut value, mut is_null) = (pg_sys::Datum::from(hash), false);
            pg_sys::tuplestore_putvalues(
                (*rows).setResult,
                (*rows).setDesc,
                &raw mut value,
                &raw mut is_null,
            );
        })
    }
}

/// Calls `visit` with a hash of each key in `columns` that the active snapshot sees, and a function that writes the key. Keys with a
/// NULL are left out, because a foreign key does not check them.
///
/// The hashes are those of the types' default operator classes. So keys that a foreign key takes for equal have equal hashes if
/// its operators belong to such a class. `visit` is not called if a column does not exist, or has a type without hashes.
///
/// # Errors
/// As [`visit_ids`].
pub(crate) fn visit_keys(
    table: pg_sys::Oid,
    columns: &[CString],
    mut visit: impl FnMut(i64, &mut dyn FnMut() -> Vec<u8>),
) -> Result<(), NotRead> {
    with_table(table, |opened| {
        // SAFETY: the table is open.
        unsafe {
            let key: Option<Vec<_>> = columns.iter().map(|name| key_column(opened, name)).collect();
            let Some(mut key) = key.filter(|key| key.iter().all(|column| column.hash.is_some())) else {
                return;
            };
            let mut key_memory = PgMemoryContexts::new("insta_ids: a key");
            each_row(opened, pg_sys::GetActiveSnapshot(), None, |row, described| {
                key_memory.switch_to(|_| {
                    let hash = key.iter_mut().try_fold(0, |seed, column| column.hash(row, described, seed));
                    if let Some(hash) = hash {
                        visit(hash, &mut || text_of(&mut key, row, described));
                    }
                });
                key_memory.reset();
                true
            });
        }
    })
}

/// Whether a table has a row that the newest snapshot sees. `false` for a relation without rows of its own, such as a
/// partitioned table.
///
/// # Errors
/// [`NotRead`]. Raises PostgreSQL's own error if the user may not SELECT from the table.
pub(crate) fn has_rows(table: pg_sys::Oid) -> Result<bool, NotRead> {
    Ok(first_row(table, pg_sys::RELKIND_RELATION, |_, _| ())?.is_some())
}

/// The last value that a sequence returned, or its first value if it has returned none. Returns `None` if the relation is no
/// sequence.
///
/// # Errors
/// As [`has_rows`].
pub(crate) fn last_value(sequence: pg_sys::Oid) -> Result<Option<i64>, NotRead> {
    const LAST_VALUE: i32 = 1;
    let value = first_row(sequence, pg_sys::RELKIND_SEQUENCE, |row, columns| {
        let mut is_null = false;
        // SAFETY: the first column of a sequence is its last value, a `bigint`.
        unsafe { i64::from_datum(pg_sys::heap_getattr(row, LAST_VALUE, columns, &mut is_null), is_null) }
    });
    Ok(value?.flatten())
}

/// Calls `act` with a table while it is open, unless the relation has no storage, such as a partitioned table.
fn with_table(table: pg_sys::Oid, act: impl FnOnce(pg_sys::Relation)) -> Result<(), NotRead> {
    let opened = open_owned(table)?;
    require_heap(opened)?;
    // SAFETY: the table is open until it is closed here. After an error, the end of the transaction or subtransaction
    // closes it.
    unsafe {
        if has_storage(opened) {
            act(opened);
        }
        pg_sys::relation_close(opened, pg_sys::AccessShareLock.cast_signed());
    }
    Ok(())
}

/// Closes an open relation if its rows are not in its heap.
fn require_heap(opened: pg_sys::Relation) -> Result<(), NotRead> {
    // SAFETY: the caller has opened the relation, and does not use it after an error.
    unsafe {
        let form = &*(*opened).rd_rel;
        let [kind] = form.relkind.to_ne_bytes();
        let Some(is) = not_in_heap((*opened).rd_id, kind, form.relam) else { return Ok(()) };
        let table = CStr::from_ptr(form.relname.data.as_ptr()).to_bytes().to_vec();
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
        Err(NotRead::NotInHeap { table, is })
    }
}

/// What `read` makes of the first row of a relation that the newest snapshot sees. Returns `None` if there is no row, or if
/// the relation is of another kind. Raises PostgreSQL's own error if the user may not SELECT from the relation.
fn first_row<T>(
    relation: pg_sys::Oid,
    kind: u8,
    read: impl FnOnce(pg_sys::HeapTuple, pg_sys::TupleDesc) -> T,
) -> Result<Option<T>, NotRead> {
    let opened = open_readable(relation)?;
    require_heap(opened)?;
    let (mut value, mut read) = (None, Some(read));
    // SAFETY: the relation is open until it is closed here.
    unsafe {
        if (*(*opened).rd_rel).relkind.to_ne_bytes() == [kind] {
            each_row(opened, ptr::null_mut(), None, |row, columns| {
                value = read.take().map(|read| read(row, columns));
                false
            });
        }
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
    }
    Ok(value)
}

/// Whether a relation is an ordinary table.
///
/// # Safety
/// The relation is open.
unsafe fn has_storage(relation: pg_sys::Relation) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*(*relation).rd_rel).relkind.to_ne_bytes() == [pg_sys::RELKIND_RELATION] }
}

/// Whether a column's type is `bigint` or a domain over it. A column that does not exist has number 0, and a system column has
/// a negative number; for both this is `false`.
///
/// # Safety
/// The relation is open.
unsafe fn is_bigint(relation: pg_sys::Relation, column: pg_sys::AttrNumber) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        PgTupleDesc::from_pg_unchecked((*relation).rd_att)
            .iter()
            .any(|a| a.attnum == column && pg_sys::getBaseType(a.atttypid) == pg_sys::INT8OID)
    }
}
