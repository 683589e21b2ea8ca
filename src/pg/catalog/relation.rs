//! Relations of users, opened by OID after a check of the user's rights.
//!
//! An OID names the same relation for the whole transaction. A name may come to mean another relation.

use std::ptr;

use pgrx::pg_sys;

/// No relation has this OID, perhaps because it was dropped meanwhile.
pub(crate) struct NoSuchRelation(pub(crate) u32);

/// Opens a relation that the user may SELECT from, with an ACCESS SHARE lock. The caller closes it.
///
/// Raises PostgreSQL's own error if the user lacks the privilege.
///
/// # Errors
/// [`NoSuchRelation`].
pub(crate) fn open_readable(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
    let relation = open(oid)?;
    // SAFETY: the relation is open. `aclcheck_error` returns if the check succeeded.
    unsafe {
        let form = &*(*relation).rd_rel;
        let privilege =
            pg_sys::pg_class_aclcheck(oid, pg_sys::GetUserId(), pg_sys::AclMode::from(pg_sys::ACL_SELECT));
        let kind = pg_sys::get_relkind_objtype(form.relkind);
        pg_sys::aclcheck_error(privilege, kind, form.relname.data.as_ptr());
    }
    Ok(relation)
}

/// Opens a relation whose owner's role the user is a member of, with an ACCESS SHARE lock. The caller closes it.
///
/// Raises PostgreSQL's own error if the user is no such member.
///
/// # Errors
/// [`NoSuchRelation`].
pub(crate) fn open_owned(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
    let relation = open(oid)?;
    // SAFETY: the relation is open.
    unsafe {
        let form = &*(*relation).rd_rel;
        if !pg_sys::has_privs_of_role(pg_sys::GetUserId(), form.relowner) {
            let kind = pg_sys::get_relkind_objtype(form.relkind);
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NOT_OWNER, kind, form.relname.data.as_ptr());
        }
    }
    Ok(relation)
}

/// Raises PostgreSQL's own error unless the user is a member of the role that owns a relation.
///
/// # Errors
/// [`NoSuchRelation`].
pub(crate) fn require_owned(oid: pg_sys::Oid) -> Result<(), NoSuchRelation> {
    let relation = open_owned(oid)?;
    // SAFETY: the relation is open, and not used any more.
    unsafe { pg_sys::relation_close(relation, pg_sys::AccessShareLock.cast_signed()) };
    Ok(())
}

fn open(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
    // SAFETY: takes any OID, and returns NULL if no relation has it. After an error, the end of the transaction or
    // subtransaction closes the relation.
    let relation = unsafe { pg_sys::try_relation_open(oid, pg_sys::AccessShareLock.cast_signed()) };
    if relation.is_null() { Err(NoSuchRelation(oid.to_u32())) } else { Ok(relation) }
}

/// What a relation of this kind and access method is if its rows are not in its own heap, where scans read them and locks keep
/// writers out. `None` if they are there, or if the relation has no rows.
pub(crate) fn not_in_heap(oid: pg_sys::Oid, kind: u8, method: pg_sys::Oid) -> Option<&'static str> {
    match kind {
        pg_sys::RELKIND_FOREIGN_TABLE => Some("foreign table"),
        pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE if is_of_citus(oid) => {
            Some("Citus table")
        }
        pg_sys::RELKIND_RELATION if method != pg_sys::HEAP_TABLE_AM_OID => {
            Some("table with another access method than heap")
        }
        _ => None,
    }
}

/// The strategy of `=` in a B-tree.
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
pub(crate) const EQUAL: pg_sys::StrategyNumber = pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber;

/// Whether Citus has a table in its catalog: it keeps the rows in other tables, here or on other nodes.
fn is_of_citus(table: pg_sys::Oid) -> bool {
    let schema = pg_sys::Oid::from(pg_sys::PG_CATALOG_NAMESPACE);
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: only superusers create relations in this schema. The catalog is open until it is closed here, and the key has the
    // number of one of its columns.
    unsafe {
        let catalog = pg_sys::get_relname_relid(c"pg_dist_partition".as_ptr(), schema);
        if catalog == pg_sys::Oid::INVALID {
            return false;
        }
        let opened = pg_sys::table_open(catalog, lock);
        let index = pg_sys::get_relname_relid(c"pg_dist_partition_logical_relid_index".as_ptr(), schema);
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &raw mut key,
            pg_sys::get_attnum(catalog, c"logicalrelid".as_ptr()),
            EQUAL,
            pg_sys::Oid::from(pg_sys::F_OIDEQ),
            table.into(),
        );
        let has_index = index != pg_sys::Oid::INVALID;
        let scan = pg_sys::systable_beginscan(opened, index, has_index, ptr::null_mut(), 1, &raw mut key);
        let is_found = !pg_sys::systable_getnext(scan).is_null();
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(opened, lock);
        is_found
    }
}
