//! A background worker that opens the shards of moves whose pause is over.
//!
//! The session that moves them may be gone, and a restart may have ended all that waited for the time. A writer that is refused
//! is the one who is always there: it starts the worker. The worker opens the shards in a transaction of its own, whatever
//! becomes of the writer's.

use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering;

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, SignalWakeFlags};
use pgrx::datum::IntoDatum;
use pgrx::{Spi, pg_guard, pg_sys};

use super::clock::steady_ms;
use super::session;
use super::shared::Shared;

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
        .set_argument(pg_sys::Oid::from(session::database()).into_datum())
        .enable_spi_access()
        .load_dynamic();
}

/// The server calls this in the worker. `database` is an OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_end_pauses(database: pg_sys::Datum) {
    begin();
    connect(database);
    BackgroundWorker::transaction(|| Spi::run("SELECT insta_ids_internal.end_pauses()")).ok();
}

/// Connects this worker to a database, also to one that allows no connections, as the superuser who created the cluster.
/// `database` is an OID. The settings of the database do not keep the worker from writing, triggers from firing, or statements
/// from their end.
pub(super) fn connect(database: pg_sys::Datum) {
    let database = pg_sys::Oid::from(u32::try_from(database.value()).unwrap_or_default());
    // SAFETY: this is a worker that has not connected yet.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            database,
            pg_sys::InvalidOid,
            pg_sys::BGWORKER_BYPASS_ALLOWCONN,
        );
    }
    set(c"default_transaction_read_only", c"off");
    set(c"session_replication_role", c"origin");
    set(c"statement_timeout", c"0");
    set(c"lock_timeout", c"0");
    set(c"idle_in_transaction_session_timeout", c"0");
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    set(c"transaction_timeout", c"0");
}

/// Sets a setting for the rest of this worker.
fn set(name: &CStr, value: &CStr) {
    let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
    // SAFETY: the server copies the value.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source) };
}

// SAFETY: declared as in tcop/tcopprot.h.
unsafe extern "C-unwind" {
    #[cfg(not(feature = "pg19"))]
    fn die(signal: c_int);
    #[cfg(feature = "pg19")]
    fn die(signal: c_int, info: *const pg_sys::pg_signal_info);
}

/// What each worker does first: from now on, it ends as a session does, at the next safe point. The server's own handler for workers
/// ends it at once, also where that makes the whole server restart.
pub(super) fn begin() {
    let term = pg_sys::SIGTERM.cast_signed();
    // SAFETY: this is a worker that has begun. The handler is the one of sessions.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
        pg_sys::pqsignal(term, Some(die));
        #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
        pg_sys::pqsignal_be(term, Some(die));
    }
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::empty());
}
