//! The server's shared memory: where the guard, the shared time, the leases and the counters live.
//!
//! From PostgreSQL 17 on it is a named segment, made by the first session that mints and kept until the
//! server stops; before, it is asked for at server start, so the library must be in
//! `shared_preload_libraries`.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pgrx::pg_sys;

use super::clock::ServerClock;
use super::settings;
use crate::id::WriterSlot;
use crate::mint::{Clock, Guard, Leases, SharedTime, Stats};

/// Marks the region as ours.
const MAGIC: u64 = u64::from_be_bytes(*b"insta_id");

/// Changes when the meaning of the region's bytes does.
const ABI: u64 = 7;

/// The same in every version of the library, so that each finds the region and can read its header.
const SIZE: usize = (8 << 20) + (64 << 10);

/// The bytes of a name, with the zero after it.
const NAME_SIZE: usize = pg_sys::NAMEDATALEN as usize;

const NAME: &std::ffi::CStr = c"insta_ids";

/// The region. All that lies in it is atomic, or not written after it was made.
#[repr(C)]
pub(crate) struct Shared {
    magic: u64,
    abi: u64,
    /// Hashed into every [`crate::mint::Key`]; another at each start of the server.
    pub(crate) seed: u64,
    /// The name of this server's node, with zeroes after it.
    node: [u8; NAME_SIZE],
    /// This server's slot among those that mint for the same shards, if what is set is one.
    writer: WriterSlot,
    has_writer: bool,
    /// On a cache line of its own: it is written every millisecond.
    pub(crate) time: CacheLine<SharedTime>,
    pub(crate) stats: CacheLine<Stats>,
    pub(crate) leases: CacheLine<Leases>,
    pub(crate) guard: CacheLine<Guard>,
}

const _: () = assert!(size_of::<Shared>() <= SIZE);
// Who moves something gives it another ABI: sessions of an older library may be beside this one.
const _: () = assert!(
    offset_of!(Shared, time) == 128
        && offset_of!(Shared, stats) == 256
        && offset_of!(Shared, leases) == 37_376
        && offset_of!(Shared, guard) == 61_952
        && size_of::<Shared>() == 8_450_560
);

impl Shared {
    /// The name of this server's node, as it was set when the server started; empty if it was not.
    pub(crate) fn node(&self) -> &[u8] {
        self.node.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// The writer slot of this server, as it was set when the server started. Nothing is minted unless it is the one that
    /// the database has taken.
    pub(crate) fn writer(&self) -> WriterSlot {
        self.writer
    }

    /// The same, if what was set is one.
    pub(crate) fn writer_slot(&self) -> Option<WriterSlot> {
        self.has_writer.then_some(self.writer)
    }
}

/// A value that shares its cache lines with no other.
#[repr(C, align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// Why there is no shared memory to mint with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unavailable {
    /// The library was not loaded at server start, and this PostgreSQL needs that.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    NotPreloaded,
    /// Another version of the library made the region, and the server still runs.
    OtherVersion,
}

/// This process's address of the region, once it is known to be there and ours.
static REGION: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// The server's shared state.
///
/// # Errors
/// [`Unavailable`], each time anew: nothing of a failure is kept.
pub(crate) fn attach() -> Result<&'static Shared, Unavailable> {
    let known = REGION.load(Ordering::Relaxed);
    let region = if known.is_null() { find()? } else { known };
    // SAFETY: `find` returned it: mapped for the rest of the process, made by `create`, of this version.
    Ok(unsafe { &*region })
}

/// The name of this server's node, empty if it has none: the one in force or, where nothing can be minted, the one that
/// is set.
///
/// # Errors
/// [`Unavailable::OtherVersion`].
pub(crate) fn this_node() -> Result<Vec<u8>, Unavailable> {
    in_force(|server| server.node().to_vec(), settings::node)
}

/// The writer slot of this server, `None` if what is set is none; likewise.
///
/// # Errors
/// [`Unavailable::OtherVersion`].
pub(crate) fn writer_slot() -> Result<Option<WriterSlot>, Unavailable> {
    in_force(Shared::writer_slot, || settings::writer_slot().parse().ok())
}

#[cfg_attr(
    any(feature = "pg17", feature = "pg18"),
    expect(unused_variables, reason = "there is always one in force")
)]
fn in_force<T>(kept: impl FnOnce(&Shared) -> T, set: impl FnOnce() -> T) -> Result<T, Unavailable> {
    match attach() {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        Err(Unavailable::NotPreloaded) => Ok(set()),
        server => server.map(kept),
    }
}

fn find() -> Result<*mut Shared, Unavailable> {
    let region = locate()?;
    // SAFETY: `locate` returned a region of SIZE bytes that `create` of some version has finished; the
    // header's first two words are the same in all of them.
    let ours = unsafe { (*region).magic == MAGIC && (*region).abi == ABI };
    if !ours {
        return Err(Unavailable::OtherVersion);
    }
    REGION.store(region, Ordering::Relaxed);
    Ok(region)
}

/// Makes a fresh region at `region`. Raises no error, as it runs under a lock of the server.
///
/// # Safety
/// `region` is SIZE bytes, aligned for [`Shared`], that no other process uses yet.
unsafe fn create(region: *mut Shared) {
    let mut seed = [0; 8];
    // SAFETY: the caller's promise; zeroes are a valid `Shared`, and `seed` is 8 bytes long.
    unsafe {
        ptr::write_bytes(region.cast::<u8>(), 0, SIZE);
        // Without the system's entropy the seed is 0: slots are then shared by the same sequences
        // after each start, and nothing worse.
        pg_sys::pg_strong_random(seed.as_mut_ptr().cast(), seed.len());
        (*region).stats.0.reset(ServerClock.now());
        (*region).seed = u64::from_ne_bytes(seed);
        // As long as a name can be: the map's are cut off there, too.
        let node = settings::node();
        let length = node.len().min(NAME_SIZE - 1);
        ptr::copy_nonoverlapping(node.as_ptr(), (*region).node.as_mut_ptr(), length);
        let writer = settings::writer_slot().parse();
        (*region).has_writer = writer.is_ok();
        (*region).writer = writer.unwrap_or(WriterSlot::ALONE);
        (*region).abi = ABI;
        (*region).magic = MAGIC;
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
mod server {
    use std::ffi::c_void;

    use pgrx::pg_sys;

    use super::{NAME, SIZE, Shared, Unavailable, create};

    /// Nothing is needed at server start.
    pub(crate) fn prepare() {}

    /// Finds the named segment, and makes it if this is the first session to ask.
    #[expect(clippy::unnecessary_wraps, reason = "before PostgreSQL 17 it can be missing")]
    pub(super) fn locate() -> Result<*mut Shared, Unavailable> {
        let mut found = false;
        // SAFETY: the name is static; the callback keeps `create`'s terms, as the server calls it on a
        // new segment of SIZE bytes while it holds the registry's lock.
        let region =
            unsafe { pg_sys::GetNamedDSMSegment(NAME.as_ptr(), SIZE, Some(initialise), &raw mut found) };
        Ok(region.cast())
    }

    unsafe extern "C-unwind" fn initialise(region: *mut c_void) {
        // SAFETY: see `locate`; the server aligns what it gives out to 128 bytes at least.
        unsafe { create(region.cast()) }
    }
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
mod server {
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use pgrx::{pg_guard, pg_sys};

    use super::{NAME, SIZE, Shared, Unavailable, create};

    /// What the postmaster made, inherited by each session.
    static MADE: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

    static mut NEXT_REQUEST: pg_sys::shmem_request_hook_type = None;
    static mut NEXT_STARTUP: pg_sys::shmem_startup_hook_type = None;

    /// At server start, asks for the region; in a session it is too late, and nothing happens.
    pub(crate) fn prepare() {
        // SAFETY: `_PG_init` runs once in the postmaster, before any other process exists; the hooks
        // are chained as PostgreSQL asks.
        unsafe {
            if pg_sys::process_shared_preload_libraries_in_progress {
                NEXT_REQUEST = pg_sys::shmem_request_hook;
                pg_sys::shmem_request_hook = Some(request);
                NEXT_STARTUP = pg_sys::shmem_startup_hook;
                pg_sys::shmem_startup_hook = Some(startup);
            }
        }
    }

    #[pg_guard]
    unsafe extern "C-unwind" fn request() {
        // SAFETY: called by the server as a hook, where a request for shared memory is allowed.
        unsafe {
            if let Some(next) = NEXT_REQUEST {
                next();
            }
            pg_sys::RequestAddinShmemSpace(SIZE);
        }
    }

    #[pg_guard]
    unsafe extern "C-unwind" fn startup() {
        // SAFETY: called by the server as a hook, also after a crash, when shared memory is new and
        // `found` is false again; the postmaster alone runs.
        unsafe {
            if let Some(next) = NEXT_STARTUP {
                next();
            }
            let mut found = false;
            let region: *mut Shared = pg_sys::ShmemInitStruct(NAME.as_ptr(), SIZE, &raw mut found).cast();
            if !found {
                create(region);
            }
            MADE.store(region, Ordering::Relaxed);
        }
    }

    pub(super) fn locate() -> Result<*mut Shared, Unavailable> {
        let region = MADE.load(Ordering::Relaxed);
        if region.is_null() { Err(Unavailable::NotPreloaded) } else { Ok(region) }
    }
}

use server::locate;
pub(crate) use server::prepare;
