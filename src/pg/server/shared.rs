//! The server's shared memory, which holds the guard, the shared time, the leases, the succession and the counters.
//!
//! From PostgreSQL 17 on, the first session that mints creates it as a named segment, which stays until the server stops.
//! Earlier servers give out shared memory at their start only, so the library must be in `shared_preload_libraries`.

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::AtomicI64;

use pgrx::pg_sys;

use super::clock::ServerClock;
use super::process::SessionLocal;
use super::settings;
use crate::id::WriterSlot;
use crate::mint::{Clock, Guard, Leases, SharedTime, Stats, Succession};

/// The first word of the region.
const MAGIC: u64 = u64::from_be_bytes(*b"insta_id");

/// The version of the region's contents. Whoever changes the meaning of its bytes changes this number.
const ABI: u64 = 9;

/// The size of the region. It is the same in all versions of the library, so that each finds the region and can read its
/// first two words.
const SIZE: usize = (8 << 20) + (128 << 10);

/// The bytes of a name, with the zero after it.
const NAME_SIZE: usize = pg_sys::NAMEDATALEN as usize;

const NAME: &std::ffi::CStr = c"insta_ids";

/// The region. Its contents are atomic, or are not written after the region was created.
#[repr(C)]
pub(crate) struct Shared {
    magic: u64,
    abi: u64,
    /// A random number that is hashed into each [`crate::mint::Key`]. It changes with each start of the server.
    pub(crate) seed: u64,
    /// The name of this server's node, with zeroes after it.
    node: [u8; NAME_SIZE],
    /// This server's writer slot, or [`WriterSlot::ALONE`] if the setting is invalid.
    writer: WriterSlot,
    /// Whether the setting was valid.
    has_writer: bool,
    /// When a writer last started a background worker, in milliseconds of the steady clock.
    pub(crate) worker_ms: AtomicI64,
    /// Written every millisecond, so it has a cache line of its own.
    pub(crate) time: CacheLine<SharedTime>,
    pub(crate) stats: CacheLine<Stats>,
    pub(crate) leases: CacheLine<Leases>,
    pub(crate) succession: CacheLine<Succession>,
    pub(crate) guard: CacheLine<Guard>,
}

const _: () = assert!(size_of::<Shared>() <= SIZE);
// Whoever moves a field changes ABI, because sessions with an older library may use the same region.
const _: () = assert!(
    offset_of!(Shared, time) == 128
        && offset_of!(Shared, stats) == 256
        && offset_of!(Shared, leases) == 37_376
        && offset_of!(Shared, succession) == 61_952
        && offset_of!(Shared, guard) == 127_616
        && size_of::<Shared>() == 8_516_224
);

impl Shared {
    /// The name of this server's node, as it was set when the region was created; empty if it was not set.
    pub(crate) fn node(&self) -> &[u8] {
        self.node.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// The writer slot of this server for minting. The check of the map refuses to mint unless the setting was valid and the
    /// database has taken this slot.
    pub(crate) fn writer(&self) -> WriterSlot {
        self.writer
    }

    /// The writer slot of this server, as it was set when the region was created. `None` if the setting was invalid.
    pub(crate) fn writer_slot(&self) -> Option<WriterSlot> {
        self.has_writer.then_some(self.writer)
    }
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// Why there is no shared memory to mint with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unavailable {
    /// The library was not loaded at server start, which this PostgreSQL requires.
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    NotPreloaded,
    /// Another version of the library has created the region, with another [`ABI`].
    OtherVersion,
}

/// The region's address in this process, once it was found to be of this ABI; before that, null.
static REGION: SessionLocal<Cell<*const Shared>> = SessionLocal::new(Cell::new(ptr::null()));

/// The server's shared state. From PostgreSQL 17 on, the first call creates it.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn attach() -> Result<&'static Shared, Unavailable> {
    attached().map_or_else(find, Ok)
}

/// The server's shared state, if this process has asked for it before.
pub(crate) fn attached() -> Option<&'static Shared> {
    // SAFETY: `find` has stored this address, or it is null. The region is mapped for the rest of the process, and `create`
    // of this ABI has made its contents.
    unsafe { REGION.get().as_ref() }
}

/// The name of this server's node that is in force; empty if it has none. On a server that was started without the library,
/// the setting as it is now.
///
/// # Errors
/// [`Unavailable::OtherVersion`].
pub(crate) fn this_node() -> Result<Vec<u8>, Unavailable> {
    in_force(|server| server.node().to_vec(), settings::node)
}

/// The writer slot of this server that is in force; `None` if the setting was invalid. On a server that was started without
/// the library, the setting as it is now.
///
/// # Errors
/// [`Unavailable::OtherVersion`].
pub(crate) fn writer_slot() -> Result<Option<WriterSlot>, Unavailable> {
    in_force(Shared::writer_slot, || settings::writer_slot().parse().ok())
}

#[cfg_attr(
    not(any(feature = "pg15", feature = "pg16")),
    expect(unused_variables, reason = "shared memory is always available")
)]
fn in_force<T>(kept: impl FnOnce(&Shared) -> T, set: impl FnOnce() -> T) -> Result<T, Unavailable> {
    match attach() {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        Err(Unavailable::NotPreloaded) => Ok(set()),
        server => server.map(kept),
    }
}

fn find() -> Result<&'static Shared, Unavailable> {
    let region = locate()?;
    // SAFETY: `locate` returned a region of SIZE bytes that `create` of some version has finished. The first two words mean
    // the same in all versions.
    let ours = unsafe { (*region).magic == MAGIC && (*region).abi == ABI };
    if ours {
        REGION.set(region);
    }
    attached().ok_or(Unavailable::OtherVersion)
}

/// Creates the contents of a new region. Raises no error, because the server holds a lock while this runs.
///
/// # Safety
/// `region` has SIZE bytes and the alignment of [`Shared`], and no other process uses it yet.
unsafe fn create(region: *mut Shared) {
    let mut seed = [0; 8];
    // SAFETY: the caller's promise. Zeroes are a valid `Shared`, and `seed` has 8 bytes.
    unsafe {
        ptr::write_bytes(region.cast::<u8>(), 0, SIZE);
        // If the system has no entropy, the seed is 0. Then the same sequences share slots after each start.
        pg_sys::pg_strong_random(seed.as_mut_ptr().cast(), seed.len());
        (*region).stats.0.reset(ServerClock.now());
        (*region).seed = u64::from_ne_bytes(seed);
        // A longer name is truncated, as PostgreSQL truncates the names in the map.
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

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
mod server {
    use std::ffi::c_void;

    use pgrx::pg_sys;

    use super::{NAME, SIZE, Shared, Unavailable, create};

    /// Does nothing, because this PostgreSQL needs nothing at its start.
    pub(crate) fn prepare() {}

    /// The address of the named segment. The first session creates it.
    #[expect(clippy::unnecessary_wraps, reason = "before PostgreSQL 17 it can be missing")]
    pub(crate) fn locate() -> Result<*mut Shared, Unavailable> {
        let (name, mut found) = (NAME.as_ptr(), false);
        // SAFETY: the name is static. The server calls `initialise` on a new segment of SIZE bytes while it holds the
        // registry's lock, so no other process uses the segment.
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        let region = unsafe { pg_sys::GetNamedDSMSegment(name, SIZE, Some(initialise), &raw mut found) };
        // SAFETY: as above. `initialise` does not use its second argument.
        #[cfg(not(any(feature = "pg17", feature = "pg18")))]
        let region = unsafe {
            pg_sys::GetNamedDSMSegment(name, SIZE, Some(initialise), &raw mut found, std::ptr::null_mut())
        };
        Ok(region.cast())
    }

    /// From PostgreSQL 19 on, the server passes a second argument.
    unsafe extern "C-unwind" fn initialise(
        region: *mut c_void,
        #[cfg(not(any(feature = "pg17", feature = "pg18")))] _: *mut c_void,
    ) {
        // SAFETY: as `locate` says. The server aligns segments to at least 128 bytes.
        unsafe { create(region.cast()) }
    }
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
mod server {
    use std::cell::Cell;
    use std::ptr;

    use pgrx::{pg_guard, pg_sys};

    use super::{NAME, SIZE, SessionLocal, Shared, Unavailable, create};

    /// The region's address. The postmaster sets it, and sessions inherit it.
    static MADE: SessionLocal<Cell<*mut Shared>> = SessionLocal::new(Cell::new(ptr::null_mut()));

    static NEXT_REQUEST: SessionLocal<Cell<pg_sys::shmem_request_hook_type>> =
        SessionLocal::new(Cell::new(None));
    static NEXT_STARTUP: SessionLocal<Cell<pg_sys::shmem_startup_hook_type>> =
        SessionLocal::new(Cell::new(None));

    /// Requests the region at server start. Does nothing in a session, where it is too late.
    pub(crate) fn prepare() {
        // SAFETY: `_PG_init` runs once in the postmaster, before any other process exists. Each hook calls the next one.
        unsafe {
            if pg_sys::process_shared_preload_libraries_in_progress {
                NEXT_REQUEST.set(pg_sys::shmem_request_hook);
                pg_sys::shmem_request_hook = Some(request);
                NEXT_STARTUP.set(pg_sys::shmem_startup_hook);
                pg_sys::shmem_startup_hook = Some(startup);
            }
        }
    }

    #[pg_guard]
    unsafe extern "C-unwind" fn request() {
        // SAFETY: the server calls this hook when requests for shared memory are allowed.
        unsafe {
            if let Some(next) = NEXT_REQUEST.get() {
                next();
            }
            pg_sys::RequestAddinShmemSpace(SIZE);
        }
    }

    #[pg_guard]
    unsafe extern "C-unwind" fn startup() {
        // SAFETY: the server calls this hook in the postmaster before other processes exist. After a crash of a session it
        // calls the hook again, with new shared memory, so `found` is false.
        unsafe {
            if let Some(next) = NEXT_STARTUP.get() {
                next();
            }
            let mut found = false;
            let region: *mut Shared = pg_sys::ShmemInitStruct(NAME.as_ptr(), SIZE, &raw mut found).cast();
            if !found {
                create(region);
            }
            MADE.set(region);
        }
    }

    pub(crate) fn locate() -> Result<*mut Shared, Unavailable> {
        let region = MADE.get();
        if region.is_null() { Err(Unavailable::NotPreloaded) } else { Ok(region) }
    }
}

use server::locate;
pub(crate) use server::prepare;
