//! Relations of users, opened by OID after a check of the user's rights.
//!
//! An OID names the same relation for the whole transaction. A name may come to mean another relation.

use pgrx::pg_sys;

/// No relation has this OID, perhaps because it was dropped meanwhile.
pub(crate) struct NoSuchRelation(pub(crate) u32);

/// Opens a relation that the user may SELECT from, with an ACCESS SHARE lock. The caller closes it.
///
/// Raises PostgreSQL's own error if the user lacks the privilege.
///
/// # Errors
/// [`NoSuchRelation`].
pub(super) fn open_readable(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
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
pub(super) fn open_owned(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
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

fn open(oid: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
    // SAFETY: takes any OID, and returns NULL if no relation has it. After an error, the end of the transaction or
    // subtransaction closes the relation.
    let relation = unsafe { pg_sys::try_relation_open(oid, pg_sys::AccessShareLock.cast_signed()) };
    if relation.is_null() { Err(NoSuchRelation(oid.to_u32())) } else { Ok(relation) }
}
