//! A background worker that drives a move, whatever becomes of the session that began it.
//!
//! It calls `insta_ids.move_shards()` until the move has ended, and waits longer after each error. The server starts it again
//! if it dies. It does not survive a restart of the server, so a server that preloads the library starts one more worker, which
//! starts those of the moves that go on.

use std::ffi::{CStr, CString, c_int};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pgrx::PgTryBuilder;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, SignalWakeFlags};
use pgrx::datum::{DatumWithOid, FromDatum, IntoDatum};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{Spi, pg_guard, pg_sys};

use super::text::c_string;
use super::{clock, log, session, worker};

/// After so long, the server starts a worker again that has died.
const RESTART: Duration = Duration::from_secs(10);

/// A worker that waits looks so often whether it is still to wait, in milliseconds.
const SLICE_MS: i64 = 1000;

/// A move may outlive the extension, because its subscription does.
const HAS_EXTENSION: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'insta_ids')";

/// Starts the worker for an open move of this database. Returns false if the server has no worker left.
pub(crate) fn start(name: &CStr) -> bool {
    start_in(session::database().into(), name)
}

fn start_in(database: pg_sys::Oid, name: &CStr) -> bool {
    // The name of a move is ASCII.
    let name = name.to_string_lossy();
    BackgroundWorkerBuilder::new(&format!("insta_ids: {name}"))
        .set_type("insta_ids: move")
        .set_library("insta_ids")
        .set_function("insta_ids_drive_move")
        .set_argument(database.into_datum())
        .set_extra(&name)
        .set_restart_time(Some(RESTART))
        .enable_spi_access()
        .load_dynamic()
        .is_ok()
}

/// The server calls this in the worker of a move. `database` is an OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_drive_move(database: pg_sys::Datum) {
    handle_signals();
    worker::connect(database);
    let name = BackgroundWorker::get_extra();
    worker::set(c"application_name", &c_string(name.as_bytes()));
    let drive = c_string(format!("CALL insta_ids_internal.drive_move('{name}')").as_bytes());
    while let Err(error) = call(&drive) {
        log::move_failed(name, &error.message);
        // NULL if nobody is to try again.
        let failed = "SELECT insta_ids_internal.move_failed($1::pg_catalog.name, $2, $3)";
        let Some(mut wait) = ask::<i64>(failed, &[name.into(), error.code.into(), error.message.into()])
        else {
            return;
        };
        let waits = "SELECT insta_ids_internal.move_waits($1::pg_catalog.name)";
        while wait > 0 && ask(waits, &[name.into()]) == Some(true) {
            clock::wait_ms(wait.min(SLICE_MS));
            wait -= SLICE_MS;
        }
    }
}

/// The value of a query, or `None` if it is NULL, or if the extension was dropped.
fn ask<T: FromDatum + IntoDatum>(query: &str, arguments: &[DatumWithOid]) -> Option<T> {
    BackgroundWorker::transaction(|| match Spi::get_one(HAS_EXTENSION) {
        Ok(Some(true)) => Spi::get_one_with_args(query, arguments).ok().flatten(),
        _ => None,
    })
}

/// The server calls this in the worker that it starts with itself, or when it is promoted.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_resume_moves(_argument: pg_sys::Datum) {
    handle_signals();
    BackgroundWorker::connect_worker_to_spi_by_oid(None, None);
    for (database, name) in BackgroundWorker::transaction(subscriptions) {
        if !start_in(database, &name) {
            log::move_failed(&name.to_string_lossy(), "no background worker is free");
        }
    }
}

/// Has the server start the worker that resumes moves. Only the postmaster may call this, while it preloads the library.
pub(crate) fn resume_with_the_server() {
    // SAFETY: the variable is set before any library is loaded.
    if unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        BackgroundWorkerBuilder::new("insta_ids: resume moves")
            .set_library("insta_ids")
            .set_function("insta_ids_resume_moves")
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .enable_spi_access()
            .load();
    }
}

/// The extension's subscriptions in all databases, which have the names of their moves, with the databases.
fn subscriptions() -> Vec<(pg_sys::Oid, CString)> {
    let mut found = Vec::new();
    // SAFETY: the catalog is shared, so it can be read without a database. Each tuple is one of it, and valid until the next.
    unsafe {
        let lock = pg_sys::AccessShareLock.cast_signed();
        let catalog = pg_sys::table_open(pg_sys::SubscriptionRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(catalog, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            #[allow(clippy::cast_ptr_alignment, reason = "the server aligns what is in a tuple")]
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_subscription>();
            let name = CStr::from_ptr(row.subname.data.as_ptr());
            if name.to_bytes().starts_with(b"insta_ids_") {
                found.push((row.subdbid, name.to_owned()));
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
    found
}

// SAFETY: declared as in tcop/tcopprot.h.
unsafe extern "C-unwind" {
    #[cfg(not(feature = "pg19"))]
    fn die(signal: c_int);
    #[cfg(feature = "pg19")]
    fn die(signal: c_int, info: *const pg_sys::pg_signal_info);
}

/// Has the worker end as a session does: at the next safe point. The server's own handler for workers ends it at once.
fn handle_signals() {
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

/// An error of a statement.
struct Failure {
    /// Its SQLSTATE.
    code: String,
    message: String,
}

/// Runs a CALL in transactions of its own. Unlike `Spi`, it lets the procedure commit.
fn call(statement: &CStr) -> Result<(), Failure> {
    PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: this process has no transaction.
        unsafe { call_in_portal(statement) };
        Ok(())
    }))
    .catch_others(|error| {
        // SAFETY: as at the top of the server's own loops. The transaction's end frees the portal, too.
        unsafe { pg_sys::AbortCurrentTransaction() };
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = error;
        // SAFETY: the text is static, and the next call overwrites it.
        let code = unsafe { CStr::from_ptr(pg_sys::unpack_sql_state(report.sql_error_code() as i32)) };
        Err(Failure { code: code.to_string_lossy().into_owned(), message: report.message().to_owned() })
    })
    .execute()
}

/// Does what [`call`] says, as far as it raises no error.
///
/// # Safety
/// The process is in no transaction.
unsafe fn call_in_portal(statement: &CStr) {
    // SAFETY: a procedure may only commit where a portal is active, which holds its snapshot and its memory. The server makes
    // one for each statement of a client, and this makes one like it. As it is active, a COMMIT leaves it alone.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, statement.as_ptr());
        pg_sys::StartTransactionCommand();
        let portal = pg_sys::CreateNewPortal();
        (*portal).visible = false;
        (*portal).status = pg_sys::PortalStatus::PORTAL_ACTIVE;
        pg_sys::ActivePortal = portal;
        pg_sys::PortalContext = (*portal).portalContext;
        pg_sys::EnsurePortalSnapshotExists();
        pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC.cast_signed());
        let options = pg_sys::SPIExecuteOptions { allow_nonatomic: true, ..Default::default() };
        pg_sys::SPI_execute_extended(statement.as_ptr(), &raw const options);
        pg_sys::SPI_finish();
        if !(*portal).portalSnapshot.is_null() {
            pg_sys::PopActiveSnapshot();
            (*portal).portalSnapshot = std::ptr::null_mut();
        }
        (*portal).status = pg_sys::PortalStatus::PORTAL_DONE;
        pg_sys::ActivePortal = std::ptr::null_mut();
        pg_sys::PortalContext = std::ptr::null_mut();
        pg_sys::PortalDrop(portal, false);
        pg_sys::CommitTransactionCommand();
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
    }
}
