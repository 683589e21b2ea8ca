//! Where a database's lease is stored: in the table `insta_ids_internal.lease`.
//!
//! It is written to the WAL immediately and outside of transactions. So the lease reaches standbys and backups, and `pg_dump`
//! keeps its value. It is no sequence, which members of `pg_write_all_data` could set. See lease.c.

use std::cell::Cell;

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

use crate::id::Millis;
use crate::mint::{LeaseKey, LeaseStore, Lock};
use crate::pg::catalog::tables::relation;
use crate::pg::server::process::{SessionLocal, database};
use crate::pg::server::{invalidation, pauses};

/// The lock of the session that writes. It conflicts with itself, but with no reader.
const WRITE: u32 = pg_sys::ShareUpdateExclusiveLock;

// SAFETY: declared as in lease.c.
unsafe extern "C-unwind" {
    fn insta_ids_read_lease(table: pg_sys::Oid) -> i64;
    fn insta_ids_write_lease(table: pg_sys::Oid, until: i64);
}

/// The table that stores the lease of this session's database.
pub(crate) struct LeaseTable(pg_sys::Oid);

/// The database has no such table: the extension was dropped, or a superuser has removed the table from it.
pub(crate) struct NoLease;

/// The table's OID as this session knows it, or 0 if it must be looked up.
static OID: SessionLocal<Cell<u32>> = SessionLocal::new(Cell::new(0));

impl LeaseTable {
    /// The table of this session's database. Looks it up at the first call, and after it has changed.
    ///
    /// # Errors
    /// [`NoLease`].
    pub(crate) fn find() -> Result<Self, NoLease> {
        Self::known().map_or_else(Self::look_up, Ok)
    }

    /// The table of this session's database, if it need not be looked up.
    pub(crate) fn known() -> Option<Self> {
        let oid = OID.get();
        (oid != 0).then(|| Self(oid.into()))
    }

    fn look_up() -> Result<Self, NoLease> {
        invalidation::follow(forget);
        let oid = relation(c"lease").ok_or(NoLease)?;
        OID.set(oid.to_u32());
        Ok(Self(oid))
    }

    /// What identifies the lease in shared memory.
    pub(crate) fn key(&self) -> LeaseKey {
        LeaseKey::new(database(), self.0.to_u32())
    }

    /// The lease that was written last, by this server or by the primary of a standby. Returns `None` if none was written.
    /// Locks the table in ACCESS SHARE mode until the transaction ends.
    ///
    /// # Errors
    /// [`NoLease`].
    pub(crate) fn last() -> Result<Option<Millis>, NoLease> {
        loop {
            let table = Self::find()?;
            // SAFETY: locks any OID. An error while waiting comes back as an unwind.
            unsafe { pg_sys::LockRelationOid(table.0, pg_sys::AccessShareLock.cast_signed()) };
            if table.is_current() {
                return Ok(Some(table.value()).filter(|lease| lease.get() > 0));
            }
        }
    }

    /// Whether this is still the extension's table. Called after a lock: the table may have been dropped before.
    fn is_current(&self) -> bool {
        let is_current = relation(c"lease") == Some(self.0);
        if !is_current {
            OID.set(0);
        }
        is_current
    }

    fn value(&self) -> Millis {
        // SAFETY: takes the OID of a table, which the caller has locked. The boundary turns a longjmp into an unwind.
        Millis::new(unsafe { pg_guard_ffi_boundary(|| insta_ids_read_lease(self.0)) })
    }
}

impl LeaseStore for LeaseTable {
    /// Takes two locks. The first one keeps the table from being dropped; this holds it until the transaction ends. The second one excludes other writers.
    fn lock(&self, wait: bool) -> Lock {
        pgrx::check_for_interrupts!();
        let [keep, write] = [pg_sys::RowExclusiveLock, WRITE].map(u32::cast_signed);
        // SAFETY: locks any OID. An error while waiting comes back as an unwind, and the end of the transaction releases
        // both locks.
        let is_locked = unsafe {
            if wait {
                pg_sys::LockRelationOid(self.0, keep);
                pg_sys::LockRelationOid(self.0, write);
                true
            } else {
                pg_sys::ConditionalLockRelationOid(self.0, keep)
                    && pg_sys::ConditionalLockRelationOid(self.0, write)
            }
        };
        if !is_locked {
            return Lock::Busy;
        }
        pauses::at("locked");
        if self.is_current() {
            return Lock::Held;
        }
        self.unlock();
        Lock::Gone
    }

    fn unlock(&self) {
        pauses::at("before unlocking");
        // SAFETY: the caller holds the lock.
        unsafe { pg_sys::UnlockRelationOid(self.0, WRITE.cast_signed()) };
    }

    fn read(&self) -> Millis {
        let last = self.value();
        pauses::at("read");
        last
    }

    fn write(&self, until: Millis) {
        pauses::at("before writing");
        // SAFETY: takes the OID of a table, which the caller has locked. The boundary turns a longjmp into an unwind. The position
        // in the WAL is this process's own.
        unsafe {
            pg_guard_ffi_boundary(|| insta_ids_write_lease(self.0, until.get()));
            pauses::at("written");
            pg_sys::XLogFlush(pg_sys::XactLastRecEnd);
        }
        pauses::at("flushed");
    }
}

/// Called when a relation has changed, with its OID, or with an invalid OID if any may have.
fn forget(relation: pg_sys::Oid) {
    if relation == pg_sys::Oid::INVALID || relation.to_u32() == OID.get() {
        OID.set(0);
    }
}
