//! Background workers that drive a move or a distribution, whatever becomes of the session that began it.
//!
//! The worker of a move calls `drive_move()` until the move has ended, and waits longer after each error. If a session waits for it,
//! it ends at the first error, which the session raises. The server starts it again if it dies. It does not survive a restart of the
//! server, so a server that preloads the library starts one more worker, which starts those of the moves that go on.
//!
//! The worker of a distribution calls `drive_distribution()` in the same way, as a session of the role that has asked for it.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::{fs, iter, ptr};

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::{Spi, pg_guard, pg_sys};

use super::worker;
use crate::pg::server::clock;
use crate::pg::types::text::c_string;

/// A worker that waits looks so often whether it is still to wait, in milliseconds.
const SLICE_MS: i64 = 1000;

// SAFETY: declared as in driver.c.
unsafe extern "C-unwind" {
    fn insta_ids_register_driver(database: pg_sys::Oid, first: i32, last: i32, is_awaited: bool) -> bool;
    fn insta_ids_report_to(queue: u32);
    fn insta_ids_call(statement: *const c_char, is_awaited: *mut bool) -> *mut pg_sys::ErrorData;
}

/// The first and the last shard of a move from a text like `2_5`, or `None` for any other text. The name of a move follows from
/// these two, so nothing else can come into the statements of a worker.
fn range_of(text: &str) -> Option<(i32, i32)> {
    let (first, last) = text.split_once('_')?;
    let number = |text: &str| text.parse().ok().filter(|shard| *shard >= 0);
    Some((number(first)?, number(last)?))
}

/// Whether the server has files of a database, in any tablespace. To connect to a database that was dropped is an error, after
/// which the server would start the worker again, and again.
fn has_files(database: u32) -> bool {
    let in_each = |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten();
    let versions = in_each("pg_tblspc".into()).flat_map(|space| in_each(space.path()));
    let name = database.to_string();
    iter::once("base".into())
        .chain(versions.map(|version| version.path()))
        .any(|place| place.join(&name).exists())
}

/// What a worker does until it has succeeded, or nobody wants it any more.
trait Task {
    /// How long to wait before the next attempt, in milliseconds. `None` if the worker is to end.
    fn next(&mut self) -> Option<i64>;

    /// The CALL of an attempt.
    fn call(&self) -> String;

    /// Records that an attempt has failed, and whether a session waits for this worker.
    fn failed(&self, code: String, message: String, is_awaited: bool);

    fn drive(mut self)
    where
        Self: Sized,
    {
        while let Some(wait) = self.next() {
            if wait > 0 {
                clock::wait_ms(wait.min(SLICE_MS));
                continue;
            }
            let Some((code, message, is_awaited)) = call(&c_string(self.call().as_bytes())) else { return };
            self.failed(code, message, is_awaited);
        }
    }
}

/// A move, and the id of the call that this worker serves, which is a UUID, or empty until it is known.
struct Move {
    name: String,
    id: String,
}

impl Task for Move {
    fn next(&mut self) -> Option<i64> {
        let next = "SELECT n.wait_ms, n.call FROM insta_ids_internal.next_attempt($1::pg_catalog.name, $2::pg_catalog.text) n";
        let arguments = [self.name.as_str().into(), self.id.as_str().into()];
        let (wait, id) =
            worker::in_extension(next, || Spi::get_two_with_args::<i64, String>(next, &arguments))?;
        self.id = id?;
        wait
    }

    fn call(&self) -> String {
        let Self { name, id } = self;
        format!("CALL insta_ids_internal.drive_move('{name}'::pg_catalog.name, '{id}'::pg_catalog.uuid)")
    }

    fn failed(&self, code: String, message: String, is_awaited: bool) {
        let failed = "SELECT insta_ids_internal.move_failed($1::pg_catalog.name, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::pg_catalog.bool)::pg_catalog.text";
        let arguments = [
            self.name.as_str().into(),
            self.id.as_str().into(),
            code.into(),
            message.into(),
            is_awaited.into(),
        ];
        worker::in_extension(failed, || Spi::run_with_args(failed, &arguments));
        // If this fails, too, the next attempt is followed by another one.
        let end = format!("CALL insta_ids_internal.end_void_move('{}'::pg_catalog.name)", self.name);
        let _ = call(&c_string(end.as_bytes()));
    }
}

/// The distribution of this database.
struct Distribution;

impl Task for Distribution {
    fn next(&mut self) -> Option<i64> {
        let next = "SELECT insta_ids_internal.next_distribution()";
        worker::in_extension(next, || Spi::get_one(next))?
    }

    fn call(&self) -> String {
        "CALL insta_ids_internal.drive_distribution()".to_owned()
    }

    fn failed(&self, code: String, message: String, _is_awaited: bool) {
        let failed = "SELECT insta_ids_internal.distribution_failed($1::pg_catalog.text, $2::pg_catalog.text)::pg_catalog.text";
        worker::in_extension(failed, || Spi::run_with_args(failed, &[code.into(), message.into()]));
    }
}

/// The server calls this in the worker of a move. `argument` has the OID of a database, and above it the handle of a queue.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_drive_move(argument: pg_sys::Datum) {
    worker::begin();
    let (database, queue) = worker::halves(argument);
    if !has_files(database) {
        return;
    }
    worker::connect(database.into());
    // SAFETY: the worker is connected, and has no queue yet. The boundary turns a longjmp into an unwind.
    unsafe { pg_guard_ffi_boundary(|| insta_ids_report_to(queue)) };
    if let Some((first, last)) = range_of(BackgroundWorker::get_extra()) {
        Move { name: format!("insta_ids_{first}_{last}"), id: String::new() }.drive();
    }
}

/// The server calls this in the worker of a distribution. `argument` has the OID of a database, and above it that of a role.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_drive_distribution(argument: pg_sys::Datum) {
    worker::begin();
    let (database, role) = worker::halves(argument);
    worker::connect_as(database.into(), role.into());
    Distribution.drive();
}

/// The server calls this in the worker that it starts with itself, or when it is promoted.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn insta_ids_resume_moves(_argument: pg_sys::Datum) {
    worker::begin();
    BackgroundWorker::connect_worker_to_spi_by_oid(None, None);
    for (database, (first, last)) in BackgroundWorker::transaction(subscriptions) {
        // SAFETY: this is a worker, which may start others. The boundary turns a longjmp into an unwind.
        unsafe { pg_guard_ffi_boundary(|| insta_ids_register_driver(database, first, last, false)) };
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
fn subscriptions() -> Vec<(pg_sys::Oid, (i32, i32))> {
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
            let range = name.and_then(|name| range_of(name.strip_prefix("insta_ids_")?));
            found.extend(range.map(|range| (row.subdbid, range)));
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(catalog, lock);
    }
    found
}

/// Runs a CALL in transactions of its own, and reports its error. Returns the error's SQLSTATE and message, and whether a session
/// waits for this worker. Unlike `Spi`, it lets the procedure commit.
fn call(statement: &CStr) -> Option<(String, String, bool)> {
    let mut is_awaited = false;
    worker::show(Some(statement));
    // SAFETY: this process has no transaction. The boundary turns a longjmp into an unwind. The error is valid until the next call.
    let failure = unsafe {
        pg_guard_ffi_boundary(|| insta_ids_call(statement.as_ptr(), &raw mut is_awaited)).as_ref().map(
            |error| {
                // In a database of another encoding than UTF-8, this replaces what it cannot read.
                let readable =
                    |text| CStr::from_ptr(text).to_string_lossy().replace(char::REPLACEMENT_CHARACTER, "?");
                (readable(pg_sys::unpack_sql_state(error.sqlerrcode)), readable(error.message), is_awaited)
            },
        )
    };
    worker::show(None);
    failure
}
