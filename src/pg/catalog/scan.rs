//! Scans of tables and indexes, without the planner.

use std::ptr;

use pgrx::{check_for_interrupts, pg_sys};

use super::relation::EQUAL;

/// Calls `visit` with each row that a snapshot sees, until `visit` returns `false`. A NULL means the newest snapshot. With `key`, a
/// column of type `integer` and its value, it reads the rows that have this value, from an index if there is one on the column.
///
/// # Safety
/// The relation is open and has storage. The column has the type.
pub(crate) unsafe fn each_row(
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
pub(crate) unsafe fn first_in_order(
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
pub(crate) unsafe fn index_on(
    table: pg_sys::Relation,
    column: pg_sys::AttrNumber,
) -> Option<pg_sys::Relation> {
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
