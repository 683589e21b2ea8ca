//! Locks that no SQL statement takes: on relations by OID, on the names of relations, and on schemas.
//!
//! Each lock is held until the transaction ends. A function that waits for a lock raises PostgreSQL's own error if the wait
//! is cancelled or exceeds `lock_timeout`.

use std::ffi::CStr;

use pgrx::pg_sys;

use super::owner::{NotRun, as_superuser, execute};
use super::relation::{NoSuchRelation, open_owned};
use crate::pg::types::text::c_string;

/// The mode of a lock on a relation.
#[derive(Clone, Copy)]
pub(crate) struct LockMode(u32);

impl LockMode {
    /// Reads one of the modes that the extension uses, as SQL writes it. Returns `None` for other text.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"SHARE UPDATE EXCLUSIVE" => Some(Self(pg_sys::ShareUpdateExclusiveLock)),
            b"SHARE ROW EXCLUSIVE" => Some(Self(pg_sys::ShareRowExclusiveLock)),
            b"ACCESS EXCLUSIVE" => Some(Self(pg_sys::AccessExclusiveLock)),
            _ => None,
        }
    }
}

/// Why a relation was not locked.
pub(crate) enum NotLocked {
    /// The relation does not exist, or was dropped while the session waited for the lock.
    NoRelation(NoSuchRelation),
    /// The relation of this name is neither a table, a foreign table nor a sequence.
    OtherKind(Vec<u8>),
}

/// Locks a table, foreign table or sequence.
///
/// `LOCK TABLE` takes a name, which may come to mean another relation before the lock is granted. It also refuses sequences
/// and foreign tables.
///
/// # Errors
/// [`NotLocked`]. Raises PostgreSQL's own error if the user has no privilege to change the relation's rows or value.
pub(crate) fn lock(relation: pg_sys::Oid, mode: LockMode) -> Result<(), NotLocked> {
    let missing = || NotLocked::NoRelation(NoSuchRelation(relation.to_u32()));
    // SAFETY: each function takes any OID. A name is NULL or a string in the server's memory.
    unsafe {
        let name = pg_sys::get_rel_name(relation);
        if name.is_null() {
            return Err(missing());
        }
        let kind = pg_sys::get_rel_relkind(relation);
        let any_of = match kind.to_ne_bytes()[0] {
            pg_sys::RELKIND_SEQUENCE => pg_sys::ACL_USAGE | pg_sys::ACL_UPDATE,
            pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE | pg_sys::RELKIND_FOREIGN_TABLE => {
                pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE | pg_sys::ACL_TRUNCATE
            }
            _ => return Err(NotLocked::OtherKind(CStr::from_ptr(name).to_bytes().to_vec())),
        };
        let privilege =
            pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), pg_sys::AclMode::from(any_of));
        // Returns if the user has one of the privileges.
        pg_sys::aclcheck_error(privilege, pg_sys::get_relkind_objtype(kind), name);
        pg_sys::LockRelationOid(relation, mode.0.cast_signed());
        if pg_sys::get_rel_name(relation).is_null() {
            return Err(missing());
        }
    }
    Ok(())
}

/// Keeps other sessions from renaming a relation, from moving it to another schema, and from dropping it. Does nothing if the
/// user has no privilege on the relation: a statement of that user cannot change it.
pub(crate) fn hold_name(relation: pg_sys::Oid) {
    let any = pg_sys::ACL_SELECT
        | pg_sys::ACL_INSERT
        | pg_sys::ACL_UPDATE
        | pg_sys::ACL_DELETE
        | pg_sys::ACL_TRUNCATE
        | pg_sys::ACL_REFERENCES
        | pg_sys::ACL_TRIGGER;
    // SAFETY: these functions take any OID. `pg_class_aclcheck` raises an error if the relation is dropped meanwhile.
    unsafe {
        if pg_sys::get_rel_name(relation).is_null()
            || pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), pg_sys::AclMode::from(any))
                != pg_sys::AclResult::ACLCHECK_OK
        {
            return;
        }
        let mode = match pg_sys::get_rel_relkind(relation).to_ne_bytes() {
            // ALTER INDEX RENAME takes SHARE UPDATE EXCLUSIVE only, which does not conflict with ACCESS SHARE.
            [pg_sys::RELKIND_INDEX | pg_sys::RELKIND_PARTITIONED_INDEX] => pg_sys::ShareUpdateExclusiveLock,
            _ => pg_sys::AccessShareLock,
        };
        pg_sys::LockRelationOid(relation, mode.cast_signed());
    }
}

/// Keeps other sessions from renaming a relation's schema. This locks the schema's row in `pg_namespace`, because
/// `ALTER SCHEMA` takes no other lock that could conflict.
///
/// # Errors
/// [`NotRun::NoRelation`]. Raises PostgreSQL's own error if the user is no member of the role that owns the relation.
pub(crate) fn hold_schema_of(relation: pg_sys::Oid) -> Result<(), NotRun> {
    let opened = open_owned(relation).map_err(NotRun::NoRelation)?;
    // SAFETY: the relation is open.
    let schema = unsafe {
        let schema = (*(*opened).rd_rel).relnamespace;
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
        schema
    };
    let row = format!(
        "SELECT FROM pg_catalog.pg_namespace WHERE oid OPERATOR(pg_catalog.=) {}::pg_catalog.oid FOR SHARE",
        schema.to_u32()
    );
    as_superuser(|| execute(&c_string(row.as_bytes())))
}

/// Locks a schema exclusively: no other session can create anything in it, or drop it. Does nothing if no schema has this
/// OID.
///
/// Raises PostgreSQL's own error if the user may not create objects in the schema.
pub(crate) fn lock_schema(schema: pg_sys::Oid) {
    // SAFETY: each function takes the OID of a schema, which the first one looks up.
    unsafe {
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() {
            return;
        }
        let (user, create) = (pg_sys::GetUserId(), pg_sys::AclMode::from(pg_sys::ACL_CREATE));
        #[cfg(feature = "pg15")]
        let privilege = pg_sys::pg_namespace_aclcheck(schema, user, create);
        #[cfg(not(feature = "pg15"))]
        let privilege = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, user, create);
        // Returns if the user has the privilege.
        pg_sys::aclcheck_error(privilege, pg_sys::ObjectType::OBJECT_SCHEMA, name);
        let exclusive = pg_sys::AccessExclusiveLock.cast_signed();
        pg_sys::LockDatabaseObject(pg_sys::NamespaceRelationId, schema, 0, exclusive);
    }
}
