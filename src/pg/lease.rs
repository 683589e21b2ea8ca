//! Where a database's lease is written down: in a sequence that belongs to the extension.
//!
//! A sequence, as it is written to WAL at once and outside of transactions, follows to standbys and
//! backups, and is dumped with its value. `setval` writes it, never `nextval`: `lastval()` is the user's.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::catalog::{notify_of_changes, relation};
use super::owner::as_superuser;
use super::pauses;
use super::session::database;
use crate::id::Millis;
use crate::mint::{LeaseKey, Lock, Record};

/// The lock of who writes. It conflicts with itself, and with no reader or `nextval`.
const WRITE: u32 = pg_sys::ShareUpdateExclusiveLock;

/// The sequence in which the lease of this session's database is written down.
pub(crate) struct LeaseSequence(pg_sys::Oid);

/// The database has no such sequence: a superuser has taken it from the extension.
pub(crate) struct NoLease;

/// The sequence's OID, as this session knows it; 0 when it has to be looked up.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// Whether this session is told of changes to relations.
static REGISTERED: AtomicBool = AtomicBool::new(false);

impl LeaseSequence {
    /// The sequence of this session's database. Looked up once, and again after the extension was made anew.
    pub(crate) fn find() -> Result<Self, NoLease> {
        match KNOWN.load(Ordering::Relaxed) {
            0 => Self::look_up(),
            known => Ok(Self(known.into())),
        }
    }

    fn look_up() -> Result<Self, NoLease> {
        notify_of_changes(&REGISTERED, forget);
        let oid = relation(c"lease").ok_or(NoLease)?;
        KNOWN.store(oid.to_u32(), Ordering::Relaxed);
        Ok(Self(oid))
    }

    /// Its name among the leases of the server.
    pub(crate) fn key(&self) -> LeaseKey {
        LeaseKey::new(database(), self.0.to_u32())
    }

    /// What was written last, also by a server that this one is a standby of; `None` when nothing was yet.
    pub(crate) fn last() -> Result<Option<Millis>, NoLease> {
        loop {
            let this = Self::find()?;
            // SAFETY: as in `lock`.
            unsafe { pg_sys::LockRelationOid(this.0, pg_sys::AccessShareLock.cast_signed()) };
            if this.is_there() {
                return Ok(this.value());
            }
        }
    }

    /// Whether it still is the lease, after a lock on it: it may have been dropped before.
    fn is_there(&self) -> bool {
        let there = relation(c"lease") == Some(self.0);
        if !there {
            KNOWN.store(0, Ordering::Relaxed);
        }
        there
    }

    fn value(&self) -> Option<Millis> {
        as_superuser(|| {
            // SAFETY: takes the OID of a sequence, which the caller has locked.
            unsafe {
                pgrx::direct_function_call::<i64>(pg_sys::pg_sequence_last_value, &[Some(self.0.into())])
            }
        })
        .map(Millis::new)
    }
}

impl Record for LeaseSequence {
    /// The first lock keeps the sequence from being dropped, and is held to the transaction's end, as `nextval`
    /// and `setval` do. The second is the one that only one session has.
    fn lock(&self, patience: bool) -> Lock {
        pgrx::check_for_interrupts!();
        let [keep, write] = [pg_sys::RowExclusiveLock, WRITE].map(u32::cast_signed);
        // SAFETY: locks take any OID; an error or a cancel while waiting comes back as an unwind, and the end
        // of the transaction releases what was locked.
        let locked = unsafe {
            if patience {
                pg_sys::LockRelationOid(self.0, keep);
                pg_sys::LockRelationOid(self.0, write);
            }
            patience
                || pg_sys::ConditionalLockRelationOid(self.0, keep)
                    && pg_sys::ConditionalLockRelationOid(self.0, write)
        };
        if !locked {
            return Lock::Busy;
        }
        pauses::at("locked");
        if self.is_there() {
            return Lock::Held;
        }
        self.unlock();
        Lock::Gone
    }

    fn unlock(&self) {
        pauses::at("before unlocking");
        // SAFETY: called by who has the lock.
        unsafe { pg_sys::UnlockRelationOid(self.0, WRITE.cast_signed()) };
    }

    fn read(&self) -> Millis {
        let last = self.value().unwrap_or(Millis::new(0));
        pauses::at("read");
        last
    }

    fn write(&self, until: Millis) {
        pauses::at("before writing");
        as_superuser(|| {
            let arguments = [Some(self.0.into()), Some(until.get().into())];
            // SAFETY: takes the OID of a sequence and a value. The WAL position is this process's own.
            unsafe {
                pgrx::direct_function_call::<i64>(pg_sys::setval_oid, &arguments);
                pauses::at("written");
                pg_sys::XLogFlush(pg_sys::XactLastRecEnd);
            }
        });
        pauses::at("flushed");
    }
}

/// Called by the server when a relation has changed, or all may have.
extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::Oid::INVALID || relation.to_u32() == KNOWN.load(Ordering::Relaxed) {
        KNOWN.store(0, Ordering::Relaxed);
    }
}
