//! Relations of users: locked and read by OID, and altered with the rights of the role that owns them.

use std::ffi::{CStr, CString};
use std::ptr;

use pgrx::datum::FromDatum;
use pgrx::pg_sys;

use super::rows::each_row;
use super::sequence::NoSuchRelation;

/// How a relation is locked. Named as in SQL.
#[derive(Clone, Copy)]
#[expect(clippy::enum_variant_names, reason = "as SQL names them")]
pub(crate) enum LockMode {
    ShareUpdateExclusive,
    ShareRowExclusive,
    AccessExclusive,
}

impl LockMode {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"SHARE UPDATE EXCLUSIVE" => Some(Self::ShareUpdateExclusive),
            b"SHARE ROW EXCLUSIVE" => Some(Self::ShareRowExclusive),
            b"ACCESS EXCLUSIVE" => Some(Self::AccessExclusive),
            _ => None,
        }
    }

    fn mode(self) -> pg_sys::LOCKMODE {
        let mode = match self {
            Self::ShareUpdateExclusive => pg_sys::ShareUpdateExclusiveLock,
            Self::ShareRowExclusive => pg_sys::ShareRowExclusiveLock,
            Self::AccessExclusive => pg_sys::AccessExclusiveLock,
        };
        mode.cast_signed()
    }
}

/// Why a relation is not locked.
pub(crate) enum NotLocked {
    /// There is none of this OID, or it was dropped while the lock was waited for.
    NoRelation(NoSuchRelation),
    /// It is an index, a view or something else that neither rows nor values are written to.
    OtherKind(Vec<u8>),
}

/// Locks a table, foreign table or sequence until the transaction ends: what `LOCK TABLE` does by name, which another
/// session may give to another relation before the lock is there, and not for sequences and foreign tables. The user
/// must have a privilege to change what is in it.
pub(crate) fn lock(relation: pg_sys::Oid, mode: LockMode) -> Result<(), NotLocked> {
    let missing = || NotLocked::NoRelation(NoSuchRelation(relation.to_u32()));
    // SAFETY: each takes any OID; a name is NULL or a string of the server's memory. The lock waits, and raises an error if
    // it is cancelled or waits too long; so does what reports a missing privilege.
    unsafe {
        let name = pg_sys::get_rel_name(relation);
        if name.is_null() {
            return Err(missing());
        }
        let kind = pg_sys::get_rel_relkind(relation);
        let privileges = match kind.to_ne_bytes()[0] {
            pg_sys::RELKIND_SEQUENCE => pg_sys::ACL_USAGE | pg_sys::ACL_UPDATE,
            pg_sys::RELKIND_RELATION | pg_sys::RELKIND_PARTITIONED_TABLE | pg_sys::RELKIND_FOREIGN_TABLE => {
                pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE | pg_sys::ACL_TRUNCATE
            }
            _ => return Err(NotLocked::OtherKind(CStr::from_ptr(name).to_bytes().to_vec())),
        };
        // One of them is enough.
        let privilege =
            pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), pg_sys::AclMode::from(privileges));
        if privilege != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(privilege, pg_sys::get_relkind_objtype(kind), name);
        }
        pg_sys::LockRelationOid(relation, mode.mode());
        if pg_sys::get_rel_name(relation).is_null() {
            return Err(missing());
        }
    }
    Ok(())
}

/// Keeps others from renaming a relation, from moving it to another schema and from dropping it until the transaction ends.
/// Of the modes that do, it takes the weakest, for which the user needs no privilege.
pub(crate) fn hold_name(relation: pg_sys::Oid) {
    // SAFETY: they take any OID. The lock waits, and raises an error if it is cancelled or waits too long.
    unsafe {
        let mode = match pg_sys::get_rel_relkind(relation).to_ne_bytes() {
            // An index is renamed under a lock that its readers and writers do not notice.
            [pg_sys::RELKIND_INDEX | pg_sys::RELKIND_PARTITIONED_INDEX] => pg_sys::ShareUpdateExclusiveLock,
            _ => pg_sys::AccessShareLock,
        };
        pg_sys::LockRelationOid(relation, mode.cast_signed());
    }
}

/// Keeps others from renaming a relation's schema until the transaction ends: `ALTER SCHEMA` takes no lock that could be in
/// its way but that on the schema's row. The user must be a member of the role that owns the relation.
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
    as_user(pg_sys::BOOTSTRAP_SUPERUSERID.into(), pg_sys::SECURITY_LOCAL_USERID_CHANGE, || {
        execute(&c_string(row.as_bytes()))
    })
}

/// Whether a table has a row that the newest snapshot sees; `false` for one without rows of its own, as a partitioned one.
pub(crate) fn has_rows(table: pg_sys::Oid) -> Result<bool, NoSuchRelation> {
    Ok(first_row(table, pg_sys::RELKIND_RELATION, |_, _| ())?.is_some())
}

/// The last value that a sequence gave out, or its first before it gave out any; `None` if the OID is no sequence's.
pub(crate) fn last_value(sequence: pg_sys::Oid) -> Result<Option<i64>, NoSuchRelation> {
    const LAST_VALUE: i32 = 1;
    let value = first_row(sequence, pg_sys::RELKIND_SEQUENCE, |row, columns| {
        let mut is_null = false;
        // SAFETY: the row of a sequence begins with its last value, a `bigint`.
        unsafe { i64::from_datum(pg_sys::heap_getattr(row, LAST_VALUE, columns, &mut is_null), is_null) }
    });
    Ok(value?.flatten())
}

/// What `read` makes of the first row of a relation of this kind that the newest snapshot sees. The user must be allowed to
/// read it.
fn first_row<T>(
    relation: pg_sys::Oid,
    kind: u8,
    read: impl FnOnce(pg_sys::HeapTuple, pg_sys::TupleDesc) -> T,
) -> Result<Option<T>, NoSuchRelation> {
    // SAFETY: takes any OID, and returns NULL where nothing is. What an error leaves behind, the end of the transaction or
    // subtransaction gives back.
    unsafe {
        let opened = pg_sys::try_relation_open(relation, pg_sys::AccessShareLock.cast_signed());
        if opened.is_null() {
            return Err(NoSuchRelation(relation.to_u32()));
        }
        let form = &*(*opened).rd_rel;
        let select = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
        let privilege = pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), select);
        if privilege != pg_sys::AclResult::ACLCHECK_OK {
            let object = pg_sys::get_relkind_objtype(form.relkind);
            pg_sys::aclcheck_error(privilege, object, form.relname.data.as_ptr());
        }
        let (mut value, mut read) = (None, Some(read));
        if form.relkind.to_ne_bytes() == [kind] {
            each_row(opened, ptr::null_mut(), |row, columns| {
                value = read.take().map(|read| read(row, columns));
                false
            });
        }
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
        Ok(value)
    }
}

/// Opens a relation, locked until it is closed, for a user who is a member of the role that owns it.
pub(super) fn open_owned(relation: pg_sys::Oid) -> Result<pg_sys::Relation, NoSuchRelation> {
    // SAFETY: as in `first_row`.
    unsafe {
        let opened = pg_sys::try_relation_open(relation, pg_sys::AccessShareLock.cast_signed());
        if opened.is_null() {
            return Err(NoSuchRelation(relation.to_u32()));
        }
        let form = &*(*opened).rd_rel;
        if !pg_sys::has_privs_of_role(pg_sys::GetUserId(), form.relowner) {
            let (not_owner, kind) =
                (pg_sys::AclResult::ACLCHECK_NOT_OWNER, pg_sys::get_relkind_objtype(form.relkind));
            pg_sys::aclcheck_error(not_owner, kind, form.relname.data.as_ptr());
        }
        Ok(opened)
    }
}

/// Why a command was not run as a relation's owner.
pub(crate) enum NotRun {
    NoRelation(NoSuchRelation),
    /// It begins or ends a transaction, or copies from or to the client.
    Refused,
}

/// Runs a command as the role that owns a relation. All that the command makes PostgreSQL run has that role's rights alone,
/// with `search_path` pinned, and cannot get others: as in core's own maintenance commands. The user must be a member of
/// that role; else nobody's rights are gained by it. Names in the command are looked up when it runs, so the caller holds
/// them.
pub(crate) fn run_as_owner(relation: pg_sys::Oid, command: &CStr) -> Result<(), NotRun> {
    let opened = open_owned(relation).map_err(NotRun::NoRelation)?;
    // SAFETY: the relation is open; the lock keeps the owner until the transaction ends.
    let owner = unsafe {
        let owner = (*(*opened).rd_rel).relowner;
        #[cfg(not(feature = "pg15"))]
        pg_sys::check_can_set_role(pg_sys::GetUserId(), owner);
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
        owner
    };
    restricted(owner, || execute(command))
}

/// Does something with the rights of a role alone, which it cannot exchange for others, with `search_path` pinned. What it
/// sets is undone.
pub(super) fn restricted<T>(role: pg_sys::Oid, act: impl FnOnce() -> T) -> T {
    as_user(role, pg_sys::SECURITY_RESTRICTED_OPERATION, || {
        // SAFETY: the level is closed before the user is as before; an error closes it with the transaction or
        // subtransaction.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            let done = act();
            pg_sys::AtEOXact_GUC(false, level);
            done
        }
    })
}

fn execute(command: &CStr) -> Result<(), NotRun> {
    // SAFETY: the string outlives the call; an error finishes SPI with the transaction or subtransaction.
    unsafe {
        pg_sys::SPI_connect();
        let done = pg_sys::SPI_execute(command.as_ptr(), false, 0);
        pg_sys::SPI_finish();
        if done < 0 { Err(NotRun::Refused) } else { Ok(()) }
    }
}

/// Does something as another user, with what [`pg_sys::GetUserIdAndSecContext`] calls a security context besides the one
/// there is. The only place that switches, and switches back.
pub(super) fn as_user<T>(user: pg_sys::Oid, restriction: u32, act: impl FnOnce() -> T) -> T {
    let mut before = pg_sys::Oid::INVALID;
    let mut context = 0;
    // SAFETY: the two are written by the first call. If `act` raises an error, the end of the transaction or
    // subtransaction sets both back.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&raw mut before, &raw mut context);
        pg_sys::SetUserIdAndSecContext(user, context | restriction.cast_signed());
        let result = act();
        pg_sys::SetUserIdAndSecContext(before, context);
        result
    }
}

/// A text as the server's functions take it. A text of SQL has no NULs.
pub(crate) fn c_string(text: &[u8]) -> CString {
    CString::new(text).unwrap_or_default()
}
