//! A background worker that opens the shards of moves whose pause is over.
//!
//! The session that moves them may be gone, and a restart may have ended all that waited for the time. A writer that is refused
//! is the one who is always there: it starts the worker. The worker opens the shards in a transaction of its own, whatever
//! becomes of the writer's.

use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::ptr;
use std::sync::atomic::Ordering;

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder};
use pgrx::datum::IntoDatum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{Spi, pg_guard, pg_sys};

use crate::pg::server::clock::steady_ms;
use crate::pg::server::process;
use crate::pg::server::shared::Shared;
use crate::pg::types::text::c_string;

/// Writers of one server start a worker at most so often, in milliseconds, because all extensions share a few workers.
const EVERY_MS: i64 = 200;

/// Starts the worker for this database, unless one was started a moment ago. If the server has no worker left, the next
/// writer tries again.
pub(crate) fn end_pauses(server: &Shared) {
    let (now, before) = (steady_ms(), server.worker_ms.load(Ordering::Relaxed));
    if (before..before.saturating_add(EVERY_MS)).contains(&now)
        || server.worker_ms.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    // Without a worker, the fence stays until the next try.
    let _ = BackgroundWorkerBuilder::new("insta_ids: end pauses")
        .set_library("insta_ids")
        .set_function("insta_ids_end_pauses")
        .set_argument(pg_sys::Oid::from(process::database()).into_datum())
        .enable_spi_access()
        .load_dynamic();
}

/// The server calls this in the worker. `database` is an OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_end_pauses(database: pg_sys::Datum) {
    begin();
    connect(pg_sys::Oid::from(halves(database).0));
    let statement = "SELECT insta_ids_internal.end_pauses()";
    in_extension(statement, || Spi::run(statement));
}

// SAFETY: declared as in worker.c.
unsafe extern "C-unwind" {
    fn insta_ids_begin_worker();
    fn insta_ids_connect_worker(database: pg_sys::Oid);
    fn insta_ids_connect_worker_as(database: pg_sys::Oid, role: pg_sys::Oid);
    fn insta_ids_reload_settings();
}

/// What each worker does first. See worker.c.
pub(crate) fn begin() {
    // SAFETY: this is a worker that has begun.
    unsafe { insta_ids_begin_worker() };
}

/// Connects this worker to a database as a superuser. Nothing that the database or a role has set is in force. See worker.c.
pub(crate) fn connect(database: pg_sys::Oid) {
    // SAFETY: this is a worker that has not connected yet. The boundary turns a longjmp into an unwind.
    unsafe { pg_guard_ffi_boundary(|| insta_ids_connect_worker(database)) };
}

/// Connects this worker to a database as a session of this role.
pub(crate) fn connect_as(database: pg_sys::Oid, role: pg_sys::Oid) {
    // SAFETY: as above.
    unsafe { pg_guard_ffi_boundary(|| insta_ids_connect_worker_as(database, role)) };
}

/// The two numbers of 32 bits in the argument of a worker, the lower one first.
pub(crate) fn halves(argument: pg_sys::Datum) -> (u32, u32) {
    let half = |value: usize| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    (half(argument.value()), half(argument.value() >> 32))
}

/// Shows in `pg_stat_activity` that this worker runs a statement, or is idle.
pub(crate) fn show(statement: Option<&CStr>) {
    let state = match statement {
        Some(_) => pg_sys::BackendState::STATE_RUNNING,
        None => pg_sys::BackendState::STATE_IDLE,
    };
    // SAFETY: the worker is connected. The server copies the text.
    unsafe { pg_sys::pgstat_report_activity(state, statement.map_or(ptr::null(), CStr::as_ptr)) };
}

/// Runs a statement in a transaction of its own if the database has the extension, and returns its value. A worker may be started
/// for a database that never had it, or has it no more. Returns `None` without the extension, and after an error. First takes up
/// changes of the server's configuration.
pub(crate) fn in_extension<T, E>(statement: &str, run: impl FnOnce() -> Result<T, E>) -> Option<T> {
    // SAFETY: the worker is in no transaction. The boundary turns a longjmp into an unwind.
    unsafe { pg_guard_ffi_boundary(|| insta_ids_reload_settings()) };
    show(Some(&c_string(statement.as_bytes())));
    let value = BackgroundWorker::transaction(AssertUnwindSafe(|| {
        // SAFETY: reads the catalog in a transaction; the string is static.
        let extension = unsafe { pg_sys::get_extension_oid(c"insta_ids".as_ptr(), true) };
        if extension == pg_sys::Oid::INVALID { None } else { run().ok() }
    }));
    show(None);
    value
}
