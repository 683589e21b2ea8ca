//! Rows of users' tables, read without the planner and the executor.
//!
//! The scans here run code of PostgreSQL and its superusers only: the access methods of heaps and of B-trees over `bigint`,
//! and the output functions of types. The planner and the executor would also run code of the table's owner: expressions of
//! indexes and statistics, and policies.

use std::ffi::{CStr, CString};
use std::ptr;

use pgrx::check_for_interrupts;
use pgrx::datum::FromDatum;
use pgrx::memcxt::PgMemoryContexts;
use pgrx::{PgTupleDesc, pg_sys};

use super::relation::{EQUAL, NoSuchRelation, not_in_heap, open_owned, open_readable};

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

/// Calls `visit` with each row that a snapshot sees, until `visit` returns `false`. A NULL means the newest snapshot. With `key`, a
/// column of type `integer` and its value, it reads the rows that have this value, from an index if there is one on the column.
///
/// # Safety
/// The relation is open and has storage. The column has the type.
pub(super) unsafe fn each_row(
    relation: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    key: Option<(pg_sys::AttrNumber, i32)>,
    mut visit: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc) -> bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut index, mut condition) = (pg_sys::Oid::INVALID, pg_sys::ScanKeyData::default());
        if let Some((column, value)) = key {
            let value = pg_sys::Datum::from(value);
            pg_sys::ScanKeyInit(&raw mut condition, column, EQUAL, pg_sys::F_INT4EQ.into(), value);
            if let Some(found) = index_on(relation, column) {
                index = (*found).rd_id;
                pg_sys::index_close(found, pg_sys::AccessShareLock.cast_signed());
            }
        }
        let has_index = index != pg_sys::Oid::INVALID;
        let keys = i32::from(key.is_some());
        let scan = pg_sys::systable_beginscan(relation, index, has_index, snapshot, keys, &raw mut condition);
        loop {
            check_for_interrupts!();
            let row = pg_sys::systable_getnext(scan);
            if row.is_null() || !visit(row, (*relation).rd_att) {
                break;
            }
        }
        pg_sys::systable_endscan(scan);
    }
}

/// Calls `visit` with the first row, in the order of an index, whose column is not NULL.
///
/// # Safety
/// The table and the index are open. The index is a B-tree that begins with the column.
unsafe fn first_in_order(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    column: pg_sys::AttrNumber,
    direction: pg_sys::ScanDirection::Type,
    visit: impl FnOnce(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    const NONE: pg_sys::Oid = pg_sys::Oid::INVALID;
    let is_not_null = (pg_sys::SK_ISNULL | pg_sys::SK_SEARCHNOTNULL).cast_signed();
    // SAFETY: the caller's promise. A key for values that are not NULL has neither a strategy nor an operator.
    unsafe {
        let mut key = pg_sys::ScanKeyData::default();
        let argument = pg_sys::Datum::null();
        pg_sys::ScanKeyEntryInitialize(&raw mut key, is_not_null, column, 0, NONE, NONE, NONE, argument);
        let snapshot = pg_sys::GetActiveSnapshot();
        let scan = pg_sys::systable_beginscan_ordered(table, index, snapshot, 1, &raw mut key);
        let row = pg_sys::systable_getnext_ordered(scan, direction);
        if !row.is_null() {
            visit(row, (*table).rd_att);
        }
        pg_sys::systable_endscan_ordered(scan);
    }
}

/// An index on a column of type `integer` or `bigint`, opened. The index orders the column by PostgreSQL's own operator class,
/// because another operator class could call a function of the owner.
///
/// # Safety
/// The table is open.
unsafe fn index_on(table: pg_sys::Relation, column: pg_sys::AttrNumber) -> Option<pg_sys::Relation> {
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: the list holds the indexes of an open table. Their fields are valid while they are open.
    unsafe {
        let indexes = pgrx::PgList::<pg_sys::Oid>::from_pg(pg_sys::RelationGetIndexList(table));
        for oid in indexes.iter_oid() {
            let index = pg_sys::try_index_open(oid, lock);
            if index.is_null() {
                continue;
            }
            let form = &*(*index).rd_index;
            if (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
                && form.indisvalid
                && is_complete(index)
                && form.indkey.values.as_slice(1) == [column]
                && *(*index).rd_opfamily == pg_sys::INTEGER_BTREE_FAM_OID
                && pg_sys::heap_attisnull(
                    (*index).rd_indextuple,
                    pg_sys::Anum_pg_index_indpred.cast_signed(),
                    ptr::null_mut(),
                )
            {
                return Some(index);
            }
            pg_sys::index_close(index, lock);
        }
    }
    None
}

/// Whether an index has all rows that snapshots of this transaction see. An index may lack rows that are older than itself.
///
/// # Safety
/// The index is open.
unsafe fn is_complete(index: pg_sys::Relation) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        // PostgreSQL 19 has a function of this name, too.
        let made_by = pg_sys::htup::HeapTupleHeaderGetXmin((*(*index).rd_indextuple).t_data);
        !(*(*index).rd_index).indcheckxmin || pg_sys::TransactionIdPrecedes(made_by, pg_sys::TransactionXmin)
    }
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

/// A column of a key.
struct KeyColumn {
    number: pg_sys::AttrNumber,
    /// The hash function of the type's default operator class, if it has one.
    hash: Option<pg_sys::FmgrInfo>,
    collation: pg_sys::Oid,
    /// The output function of the column's type.
    output: pg_sys::FmgrInfo,
}

impl KeyColumn {
    /// The hash of a row's value, or `None` if it is NULL or has no hash.
    ///
    /// # Safety
    /// The row is one of the column's table.
    unsafe fn hash(&mut self, row: pg_sys::HeapTuple, columns: pg_sys::TupleDesc, seed: i64) -> Option<i64> {
        let function = self.hash.as_mut()?;
        let mut is_null = false;
        // SAFETY: the caller's promise. The value has the type whose function is called.
        unsafe {
            let value = pg_sys::heap_getattr(row, self.number.into(), columns, &mut is_null);
            let seed = pg_sys::Datum::from(seed);
            if is_null {
                return None;
            }
            i64::from_datum(pg_sys::FunctionCall2Coll(function, self.collation, value, seed), false)
        }
    }
}

/// The values of a row in some columns, as one text.
///
/// # Safety
/// The row is one of the columns' table.
unsafe fn text_of(key: &mut [KeyColumn], row: pg_sys::HeapTuple, columns: pg_sys::TupleDesc) -> Vec<u8> {
    let texts: Vec<_> = key
        .iter_mut()
        .map(|column| {
            let mut is_null = false;
            // SAFETY: the caller's promise. The value has the type whose output function is called.
            unsafe {
                let value = pg_sys::heap_getattr(row, column.number.into(), columns, &mut is_null);
                if is_null {
                    &b"NULL"[..]
                } else {
                    CStr::from_ptr(pg_sys::OutputFunctionCall(&raw mut column.output, value)).to_bytes()
                }
            }
        })
        .collect();
    texts.join(&b", "[..])
}

/// A column of a key, or `None` if it does not exist.
///
/// # Safety
/// The relation is open.
unsafe fn key_column(relation: pg_sys::Relation, name: &CStr) -> Option<KeyColumn> {
    // SAFETY: the caller's promise. The cache has an entry for each type, and each type an output function.
    unsafe {
        let number = pg_sys::get_attnum((*relation).rd_id, name.as_ptr());
        let columns = PgTupleDesc::from_pg_unchecked((*relation).rd_att);
        let column = columns.iter().find(|a| a.attnum == number && number > 0)?;
        let wanted = pg_sys::TYPECACHE_HASH_EXTENDED_PROC.cast_signed();
        let hash = (*pg_sys::lookup_type_cache(column.atttypid, wanted)).hash_extended_proc;
        Some(KeyColumn {
            number,
            hash: (hash != pg_sys::Oid::INVALID).then(|| function(hash)),
            collation: column.attcollation,
            output: output_of(column.atttypid),
        })
    }
}

/// The output function of a type.
///
/// # Safety
/// The type exists.
unsafe fn output_of(of: pg_sys::Oid) -> pg_sys::FmgrInfo {
    let (mut output, mut is_varlena) = (pg_sys::Oid::INVALID, false);
    // SAFETY: the caller's promise. Each type has an output function.
    unsafe {
        pg_sys::getTypeOutputInfo(of, &raw mut output, &raw mut is_varlena);
        function(output)
    }
}

/// A function that can be called.
///
/// # Safety
/// The function exists.
unsafe fn function(oid: pg_sys::Oid) -> pg_sys::FmgrInfo {
    let mut function = pg_sys::FmgrInfo::default();
    // SAFETY: the caller's promise.
    unsafe { pg_sys::fmgr_info(oid, &raw mut function) };
    function
}

/// A column whose values are hashed.
struct HashedColumn {
    /// The column's place in a row, counted from 0.
    place: usize,
    /// The output function of the column's type.
    output: pg_sys::FmgrInfo,
}

/// The columns that a table stores, in the order of their names.
///
/// # Safety
/// The relation is open.
unsafe fn columns_by_name(relation: pg_sys::Relation) -> Vec<HashedColumn> {
    /// `pg_attribute.attgenerated` of a virtual column. To read it would run an expression of the owner.
    const VIRTUAL: u8 = b'v';
    // SAFETY: the caller's promise. Each column has a type, and each type an output function.
    unsafe {
        let columns = PgTupleDesc::from_pg_unchecked((*relation).rd_att);
        let mut stored: Vec<_> = columns
            .iter()
            .enumerate()
            .filter(|(_, a)| !a.attisdropped && a.attgenerated.to_ne_bytes() != [VIRTUAL])
            .collect();
        stored.sort_by_key(|(_, a)| CStr::from_ptr(a.attname.data.as_ptr()));
        stored.into_iter().map(|(place, a)| HashedColumn { place, output: output_of(a.atttypid) }).collect()
    }
}

/// A hash of a row: PostgreSQL's hash of the texts of its values, each after its length.
///
/// # Safety
/// The values and NULLs are a row's. The current memory context can be reset after the call.
unsafe fn hash_of(
    columns: &mut [HashedColumn],
    values: &[pg_sys::Datum],
    nulls: &[bool],
    bytes: &mut Vec<u8>,
) -> i64 {
    /// After so many bytes, the hash of the bytes becomes the seed for those that follow.
    const BLOCK: usize = 1 << 20;
    let mut hash = 0;
    bytes.clear();
    for HashedColumn { place, output } in columns {
        if nulls[*place] {
            bytes.push(0);
        } else {
            // SAFETY: the value has the type whose output function is called. The text ends with a zero.
            let text =
                unsafe { CStr::from_ptr(pg_sys::OutputFunctionCall(output, values[*place])) }.to_bytes();
            bytes.push(1);
            bytes.extend_from_slice(&text.len().to_le_bytes());
            bytes.extend_from_slice(text);
        }
        if bytes.len() >= BLOCK {
            hash = hash_bytes(bytes, hash);
            bytes.clear();
        }
    }
    hash_bytes(bytes, hash)
}

fn hash_bytes(bytes: &[u8], seed: i64) -> i64 {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: reads no more bytes than there are.
    unsafe { pg_sys::hash_bytes_extended(bytes.as_ptr(), length, seed.cast_unsigned()) }.cast_signed()
}
