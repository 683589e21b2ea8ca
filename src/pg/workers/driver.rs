//! A background worker that drives a move, whatever becomes of the session that began it.
//!
//! It calls `insta_ids.move_shards()` until the move has ended, and waits longer after each error. The server starts it again
//! if it dies. It does not survive a restart of the server, so a server that preloads the library starts one more worker, which
//! starts those of the moves that go on.

use std::cell::Cell;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, iter, ptr};

use pgrx::PgTryBuilder;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::datum::{DatumWithOid, FromDatum, IntoDatum};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{Spi, pg_guard, pg_sys};

use super::worker;
use crate::pg::server::{clock, log, process};
use crate::pg::types::text::c_string;

/// After so long, the server starts a worker again that has died.
const RESTART: Duration = Duration::from_secs(10);

/// A worker that waits looks so often whether it is still to wait, in milliseconds.
const SLICE_MS: i64 = 1000;

/// A worker that finds an older one of its move waits so often for [`SLICE_MS`], because that one may be about to end.
const LOOKS: u32 = 5;

/// The range of shards that a move has. Its name follows from it, so nothing else can come into the statements of a worker.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) first: i32,
    pub(crate) last: i32,
}

impl Range {
    /// The range of two numbers with this character between them, or `None` for any other text.
    fn parse(text: &str, between: char) -> Option<Self> {
        let (first, last) = text.split_once(between)?;
        let number = |text: &str| text.parse().ok().filter(|shard| *shard >= 0);
        Some(Self { first: number(first)?, last: number(last)? })
    }

    fn name(self) -> String {
        format!("insta_ids_{}_{}", self.first, self.last)
    }
}

/// Starts the worker for the open move of this range in this database. Returns false if the server has no worker left.
pub(crate) fn start(range: Range) -> bool {
    start_in(process::database().into(), range)
}

fn start_in(database: pg_sys::Oid, range: Range) -> bool {
    let name = format!("insta_ids: {}", range.name());
    BackgroundWorkerBuilder::new(&name)
        .set_type(&name)
        .set_library("insta_ids")
        .set_function("insta_ids_drive_move")
        .set_argument(database.into_datum())
        .set_extra(&format!("{} {}", range.first, range.last))
        .set_restart_time(Some(RESTART))
        .enable_spi_access()
        .load_dynamic()
        .is_ok()
}

/// Whether the server has files of a database, in any tablespace. To connect to a database that was dropped is an error, after
/// which the server would start the worker again, and again.
fn has_files(database: pg_sys::Datum) -> bool {
    let in_each = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let versions = in_each("pg_tblspc".into()).flat_map(|space| in_each(space.path()));
    let name = database.value().to_string();
    iter::once("base".into())
        .chain(versions.map(|version| version.path()))
        .any(|place| place.join(&name).exists())
}

/// The server calls this in the worker of a move. `database` is an OID.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_drive_move(database: pg_sys::Datum) {
    worker::begin();
    if !has_files(database) {
        return;
    }
    worker::connect(database);
    let Some(range) = Range::parse(BackgroundWorker::get_extra(), ' ') else { return };
    let name = &*range.name();
    let drive = c_string(format!("CALL insta_ids_internal.drive_move('{name}'::pg_catalog.name)").as_bytes());
    for look in 0.. {
        if ask("SELECT insta_ids_internal.has_driver($1::pg_catalog.name)", &[name.into()]) != Some(true) {
            break;
        }
        if look == LOOKS {
            return;
        }
        clock::wait_ms(SLICE_MS);
    }
    // NULL if nobody is to drive it.
    while let Some(driver) =
        ask::<String>("SELECT insta_ids_internal.driver_of($1::pg_catalog.name)", &[name.into()])
    {
        let Err(error) = call(&drive) else { return };
        worker::show(None);
        log::move_failed(name, &error.message, error.detail, error.hint);
        let failed = "SELECT insta_ids_internal.move_failed($1::pg_catalog.name, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)";
        let arguments = [name.into(), driver.into(), error.code.into(), error.message.into()];
        let mut wait = ask::<i64>(failed, &arguments).unwrap_or(0);
        let waits = "SELECT insta_ids_internal.move_waits($1::pg_catalog.name)";
        while wait > 0 && ask(waits, &[name.into()]) == Some(true) {
            clock::wait_ms(wait.min(SLICE_MS));
            wait -= SLICE_MS;
        }
    }
}

/// The value of a query, or `None` if it is NULL, or if the database does not have the extension: a move may outlive it, because
/// its subscription does.
fn ask<T: FromDatum + IntoDatum>(query: &str, arguments: &[DatumWithOid]) -> Option<T> {
    worker::in_extension(query, || Spi::get_one_with_args(query, arguments)).flatten()
}

/// The server calls this in the worker that it starts with itself, or when it is promoted.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_resume_moves(_argument: pg_sys::Datum) {
    worker::begin();
    BackgroundWorker::connect_worker_to_spi_by_oid(None, None);
    for (database, range) in BackgroundWorker::transaction(subscriptions) {
        if !start_in(database, range) {
            log::move_failed(&range.name(), "no background worker is free", None, None);
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
fn subscriptions() -> Vec<(pg_sys::Oid, Range)> {
    let mut found = Vec::new();
    // SAFETY: the catalog is shared, so it can be read without a database. Each tuple is one of it, and valid until the next.
    unsafe {
        let lock = pg_sys::AccessShareLock.cast_signed();
        let catalog = pg_sys::table_open(pg_sys::SubscriptionRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(catalog, 0, ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            #[allow(clippy::cast_ptr_alignment, reason = "the server aligns what is in a tuple")]
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_subscription>();
            let name = CStr::from_ptr(row.subname.data.as_ptr()).to_str().ok();
            let range = name.and_then(|name| Range::parse(name.strip_prefix("insta_ids_")?, '_'));
            found.extend(range.map(|range| (row.subdbid, range)));
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
    found
}

/// An error of a statement.
struct Failure {
    /// Its SQLSTATE.
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

/// Runs a CALL in transactions of its own. Unlike `Spi`, it lets the procedure commit.
fn call(statement: &CStr) -> Result<(), Failure> {
    let portal = AssertUnwindSafe(Cell::new(ptr::null_mut()));
    PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: this process has no transaction.
        unsafe { call_in_portal(statement, &portal) };
        Ok(())
    }))
    .catch_others(|error| {
        // SAFETY: as at the top of the server's own loops. The portal is NULL or the one that was active.
        unsafe { abandon(portal.get()) };
        clock::limit_statement(Some(0));
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = error;
        // SAFETY: the text is static, and the next call overwrites it.
        let code = unsafe { CStr::from_ptr(pg_sys::unpack_sql_state(report.sql_error_code() as i32)) };
        // In a database of another encoding than UTF-8, pgrx has replaced what it could not read.
        let readable = |text: &str| text.replace(char::REPLACEMENT_CHARACTER, "?");
        Err(Failure {
            code: code.to_string_lossy().into_owned(),
            message: readable(report.message()),
            detail: report.detail().map(readable),
            hint: report.hint().map(readable),
        })
    })
    .execute()
}

/// Does what [`call`] says, as far as it raises no error. `running` gets the portal.
///
/// # Safety
/// The process is in no transaction.
unsafe fn call_in_portal(statement: &CStr, running: &Cell<pg_sys::Portal>) {
    // SAFETY: a procedure may only commit where a portal is active, which holds its snapshot and its memory. The server makes
    // one for each statement of a client, and this makes one like it. As it is active, a COMMIT leaves it alone.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        worker::show(Some(statement));
        pg_sys::StartTransactionCommand();
        // The portal of a call that has failed goes here.
        let portal = pg_sys::CreatePortal(c"".as_ptr(), true, true);
        (*portal).visible = false;
        (*portal).status = pg_sys::PortalStatus::PORTAL_ACTIVE;
        running.set(portal);
        pg_sys::ActivePortal = portal;
        pg_sys::PortalContext = (*portal).portalContext;
        pg_sys::MemoryContextSwitchTo(pg_sys::PortalContext);
        pg_sys::EnsurePortalSnapshotExists();
        pg_sys::SPI_connect_ext(pg_sys::SPI_OPT_NONATOMIC.cast_signed());
        let options = pg_sys::SPIExecuteOptions { allow_nonatomic: true, ..Default::default() };
        pg_sys::SPI_execute_extended(statement.as_ptr(), &raw const options);
        pg_sys::SPI_finish();
        if !(*portal).portalSnapshot.is_null() {
            pg_sys::PopActiveSnapshot();
            (*portal).portalSnapshot = ptr::null_mut();
        }
        (*portal).status = pg_sys::PortalStatus::PORTAL_DONE;
        pg_sys::ActivePortal = ptr::null_mut();
        pg_sys::PortalContext = ptr::null_mut();
        pg_sys::MemoryContextSwitchTo(pg_sys::TopTransactionContext);
        pg_sys::PortalDrop(portal, false);
        pg_sys::CommitTransactionCommand();
    }
}

/// Ends the transaction of a call that has failed. An active portal would outlive it with all its memory.
///
/// # Safety
/// The portal is NULL or was made by [`call_in_portal`] in its last run.
unsafe fn abandon(portal: pg_sys::Portal) {
    // SAFETY: the caller's promise; a portal that is done may be dropped already, and then no longer is the active one.
    unsafe {
        if !portal.is_null() && pg_sys::ActivePortal == portal {
            pg_sys::MarkPortalFailed(portal);
            (*portal).portalSnapshot = ptr::null_mut();
        }
        pg_sys::ActivePortal = ptr::null_mut();
        pg_sys::PortalContext = ptr::null_mut();
        pg_sys::AbortCurrentTransaction();
    }
}
