//! Which shards a session may mint for: the map, the fences and the writer slot of its database, cached per session.
//!
//! A session reads the tables at its first id. It reads them again after another session has changed them: the server then
//! calls [`forget`]. Between changes, [`check`] costs one comparison while all shards are here, and one bit while some
//! are not.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;

use pgrx::pg_sys;

use crate::id::{Layout, Shard, WriterSlot};
use crate::pg::catalog::sequence::Sequence;
use crate::pg::catalog::tables::{Altered, relation, rows};
use crate::pg::server::process::{self, SessionLocal};
use crate::pg::server::shared::{self, Shared, Unavailable};
use crate::pg::server::{invalidation, pauses};
use crate::pg::types::layout::StoredLayout;
use crate::shard::placement::{Assignment, Fence, NotHere, Placement, shard_of_schema};

/// The table whose relcache entry is invalidated whenever the map, a fence or the writer slot changes.
const MAP: &CStr = c"map";

/// What the session's cache holds: [`NOTHING`], [`READING`], [`ALL_HERE`] or [`SOME_AWAY`].
static STATE: SessionLocal<Cell<u8>> = SessionLocal::new(Cell::new(NOTHING));
/// The tables must be read.
const NOTHING: u8 = 0;
/// The tables are being read.
const READING: u8 = 1;
/// All shards are on this node, and none is fenced.
const ALL_HERE: u8 = 2;
/// Some shards are on other nodes, or fenced.
const SOME_AWAY: u8 = 3;

/// In state [`SOME_AWAY`], the hash of the shards' layout.
static LAYOUT: SessionLocal<Cell<u64>> = SessionLocal::new(Cell::new(0));

/// In state [`SOME_AWAY`], one bit for each of the first 8192 shards: 1 if it is not here. So most calls need not look into
/// [`CACHE`].
static AWAY: SessionLocal<[Cell<u64>; 128]> = SessionLocal::new([const { Cell::new(0) }; 128]);

/// The OID of the table [`MAP`].
static MAP_OID: SessionLocal<Cell<u32>> = SessionLocal::new(Cell::new(0));

/// All transactions whose changes are in [`CACHE`] have lower numbers, and are not in [`Cache::running`].
static FILLED_BEFORE: SessionLocal<Cell<u32>> = SessionLocal::new(Cell::new(0));

static CACHE: SessionLocal<RefCell<Cache>> = SessionLocal::new(RefCell::new(Cache {
    layout: None,
    prefix: Vec::new(),
    placement: Placement::NOWHERE,
    running: Vec::new(),
}));

/// What the tables said when the session read them.
struct Cache {
    /// The layout of the shards' ids.
    layout: Option<Layout>,
    /// What the names of the shards' schemas begin with.
    prefix: Vec<u8>,
    placement: Placement,
    /// The transactions that were running then, in the order of their numbers.
    running: Vec<u32>,
}

/// Why a shard is not open to this session.
pub(crate) enum NotOpen {
    /// The shard is fenced here, or lives on another node.
    NotHere(NotHere),
    /// The server's writer slot is not the one that the database has taken.
    SlotNotTaken {
        /// The server's slot; `None` if the setting is invalid.
        slot: Option<WriterSlot>,
        /// The database's slot; `None` if the table holds an invalid one.
        taken: Option<WriterSlot>,
    },
    /// A table cannot be read.
    Altered(Altered),
    /// The name of this server's node, which the error tells, cannot be had.
    Unavailable(Unavailable),
}

impl From<Altered> for NotOpen {
    fn from(altered: Altered) -> Self {
        Self::Altered(altered)
    }
}

impl From<Unavailable> for NotOpen {
    fn from(why: Unavailable) -> Self {
        Self::Unavailable(why)
    }
}

/// Checks that this server may mint an id of a shard from a sequence.
///
/// The caller calls `nextval` first. Its lock on the sequence makes this session process earlier changes to the map.
///
/// # Errors
/// [`NotOpen`].
#[inline]
pub(crate) fn check(
    server: &Shared,
    layout: Layout,
    shard: Shard,
    sequence: Sequence,
) -> Result<(), NotOpen> {
    if is_here(layout, shard) { Ok(()) } else { look_up(server, layout, shard, sequence) }
}

/// Whether the session knows that this server may mint ids of the shard.
#[inline]
pub(crate) fn is_here(layout: Layout, shard: Shard) -> bool {
    match STATE.get() {
        ALL_HERE => true,
        SOME_AWAY => LAYOUT.get() == layout.hash64() && !may_be_away(shard.get()),
        _ => false,
    }
}

/// Whether the session knows that a shard of the map is on this server, and not fenced. Reads the map if it was not read yet.
pub(crate) fn is_known_here(shard: i32) -> bool {
    if !is_cached()
        && let Ok(server) = shared::attach()
    {
        // What cannot be read is not known.
        let _ = fill(server);
    }
    match STATE.get() {
        ALL_HERE => true,
        SOME_AWAY => u32::try_from(shard).is_ok_and(|shard| !may_be_away(shard)),
        _ => false,
    }
}

/// Whether the running statement sees all that was committed before the session read the map.
pub(crate) fn is_within_snapshot() -> bool {
    let before = FILLED_BEFORE.get();
    // Numbers of transactions wrap around. If the map was read too long ago, all of them seem to be before.
    let is_before = |transaction: u32| transaction.wrapping_sub(before).cast_signed() < 0;
    // SAFETY: reads the stack of snapshots. One that is active stays valid meanwhile, with its array of running transactions.
    unsafe {
        if !pg_sys::ActiveSnapshotSet() {
            return true;
        }
        let snapshot = &*pg_sys::GetActiveSnapshot();
        if !is_before(snapshot.xmin.into_inner()) {
            return true;
        }
        let mut running = (0..snapshot.xcnt as usize).map(|n| (*snapshot.xip.add(n)).into_inner());
        !is_before(snapshot.xmax.into_inner())
            && running.all(|one| !is_before(one) || CACHE.borrow().running.binary_search(&one).is_ok())
    }
}

/// Whether the shard's bit is set, or the shard has no bit.
#[inline]
fn may_be_away(shard: u32) -> bool {
    let bits = AWAY.get((shard / 64) as usize).map_or(u64::MAX, Cell::get);
    bits >> (shard % 64) & 1 == 1
}

#[inline(never)]
fn look_up(server: &Shared, layout: Layout, shard: Shard, sequence: Sequence) -> Result<(), NotOpen> {
    if !is_cached() && !fill(server)? {
        return Ok(());
    }
    let cache = CACHE.borrow();
    let shard = if cache.layout == Some(layout) {
        i32::try_from(shard.get()).ok()
    } else {
        // In another layout the number does not mean a shard of the map. But the sequence may belong to one.
        sequence.schema().and_then(|schema| shard_of_schema(&schema, &cache.prefix))
    };
    match shard {
        Some(shard) if !cache.placement.is_here(shard) && !process::is_being_created(shard) => {
            Err(NotOpen::NotHere(cache.placement.why_not_here(shard)))
        }
        _ => Ok(()),
    }
}

/// Fills the cache. Returns `false` if there is no map, because the script of CREATE EXTENSION is running and has not created
/// it yet.
fn fill(server: &Shared) -> Result<bool, NotOpen> {
    invalidation::follow(forget);
    let mut cache = read(server)?;
    if let Some(cache) = &mut cache {
        // SAFETY: called in a transaction. The table is none of the catalogs, so the snapshot is new. It has so many
        // transactions.
        unsafe {
            let now = &*pg_sys::GetCatalogSnapshot(MAP_OID.get().into());
            cache.running = (0..now.xcnt as usize).map(|n| (*now.xip.add(n)).into_inner()).collect();
            FILLED_BEFORE.set(now.xmax.into_inner());
        }
        cache.running.sort_unstable();
    }
    let is_read = cache.is_some();
    if let Some(cache) = cache {
        CACHE.replace(cache);
    }
    Ok(is_read)
}

/// Checks that the database has taken the server's writer slot. The server's slot changes by a restart alone, so a session
/// checks this only when it reads the map.
fn check_writer(server: &Shared) -> Result<(), NotOpen> {
    let slot = server.writer_slot();
    let taken = match relation(c"writer") {
        Some(table) => rows(table, |row| {
            let [slot, slots] = [row.get::<i32>(c"slot")?, row.get(c"slots")?].map(u32::try_from);
            Ok(slot.ok().zip(slots.ok()).and_then(|(slot, slots)| WriterSlot::new(slot, slots)))
        })?,
        None => Vec::new(),
    };
    let taken = taken.first().copied().unwrap_or(Some(WriterSlot::ALONE));
    if slot.is_some() && slot == taken { Ok(()) } else { Err(NotOpen::SlotNotTaken { slot, taken }) }
}

/// The error for a shard that is fenced here, or on another node. `here` is the name of this server's node.
///
/// # Errors
/// [`Altered`] if the session must read the tables and cannot.
pub(crate) fn why_not_here(here: Vec<u8>, shard: i32, is_fenced: bool) -> Result<NotHere, Altered> {
    let why = if is_cached() {
        CACHE.borrow().placement.why_not_here(shard)
    } else {
        // This does not fill the cache, because minting also has to check the writer slot.
        load(here)?.map_or(Placement::NOWHERE, |cache| cache.placement).why_not_here(shard)
    };
    Ok(NotHere { is_fenced, ..why })
}

/// The shards that have a row in the table of fences now, each with its schema's name: those that are fenced, and those that
/// are offered to another node.
///
/// # Errors
/// [`Altered`].
pub(crate) fn fenced_schemas() -> Result<Vec<(i32, Vec<u8>)>, Altered> {
    let (Some(config), Some(fence)) = (relation(c"config"), relation(c"fence")) else {
        return Ok(Vec::new());
    };
    let shards = rows(fence, |row| row.get::<i32>(c"shard"))?;
    if shards.is_empty() {
        return Ok(Vec::new());
    }
    let prefix: Vec<u8> = rows(config, |row| row.get(c"prefix"))?.into_iter().next().unwrap_or_default();
    let schema = |shard: i32| [&prefix[..], shard.to_string().as_bytes()].concat();
    Ok(shards.into_iter().map(|shard| (shard, schema(shard))).collect())
}

/// Makes all sessions of the database read the map again, once the transaction has committed.
pub(crate) fn invalidate_everywhere() {
    if let Some(map) = relation(MAP) {
        // SAFETY: takes the OID of a relation, in a transaction.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(map) };
    }
}

/// The system identifier and the timeline of the server, and the OID of this database, like `7312345678901234567/1/5`, or
/// `None` on a standby.
pub(crate) fn timeline() -> Option<Vec<u8>> {
    // SAFETY: these functions read shared memory. The timeline is asked for after recovery has ended.
    let (server, timeline) = unsafe {
        if pg_sys::RecoveryInProgress() {
            return None;
        }
        (pg_sys::GetSystemIdentifier(), pg_sys::GetWALInsertionTimeLine())
    };
    Some(format!("{server}/{timeline}/{}", process::database()).into_bytes())
}

fn is_cached() -> bool {
    matches!(STATE.get(), ALL_HERE | SOME_AWAY)
}

/// Reads the tables, checks the writer slot, and sets the statics for the next calls. Returns `None` if there is no map.
fn read(server: &Shared) -> Result<Option<Cache>, NotOpen> {
    let Some(map) = relation(MAP) else { return Ok(None) };
    MAP_OID.set(map.to_u32());
    // After an error the state stays READING, so the next call reads again.
    STATE.set(READING);
    check_writer(server)?;
    let Some(cache) = load(server.node().to_vec())? else { return Ok(None) };
    for (shards, bits) in (0..).step_by(64).zip(&*AWAY) {
        let away = (0..64).filter(|n| !cache.placement.is_here(shards + n)).fold(0, |bits, n| bits | 1 << n);
        bits.set(away);
    }
    LAYOUT.set(cache.layout.map_or(0, Layout::hash64));
    let state = if cache.placement.is_complete() { ALL_HERE } else { SOME_AWAY };
    // If a change arrived meanwhile, the state is NOTHING, and the next call reads again. For this call the tables are new
    // enough: a fence locks the sequences of its shard, and `nextval` has locked this one.
    if STATE.get() == READING {
        STATE.set(state);
    }
    Ok(Some(cache))
}

/// What the tables say now, for a server whose node is `here`. Returns `None` if a table does not exist yet.
fn load(here: Vec<u8>) -> Result<Option<Cache>, Altered> {
    let tables = [MAP, c"config", c"assignment", c"fence"].map(relation);
    let [Some(map), Some(config), Some(assignment), Some(fence)] = tables else { return Ok(None) };
    let version = rows(map, |row| row.get(c"version"))?.first().copied().unwrap_or(0);
    let config = rows(config, |row| {
        Ok((row.get(c"shards")?, row.get(c"prefix")?, row.get::<StoredLayout>(c"layout")?))
    })?;
    let (shards, prefix, layout) = config.into_iter().next().map_or_else(
        || (0, Vec::new(), None),
        |(shards, prefix, layout)| (shards, prefix, Layout::try_from(layout).ok()),
    );
    let timeline = timeline();
    // Fences are read before assignments, and each table as it is at that moment. The transaction that lets a shard go
    // removes its fence and assigns it to the other node. If the session sees the fence gone, it sees the assignment, too.
    let fences = rows(fence, |row| {
        let (is_closed, offered_on): (bool, Option<Vec<u8>>) =
            (row.get(c"is_closed")?, row.find(c"timeline")?);
        // A promoted server begins a new timeline. It may lack the last transactions of its predecessor: the one that
        // closed this fence, after which the target took the shard. So may a server that restored a dump.
        let is_in_doubt = !is_closed && offered_on.is_some() && offered_on != timeline;
        let (shard, to) = (row.get(c"shard")?, row.find(c"to_node")?);
        Ok((is_closed || is_in_doubt).then_some(Fence { shard, to, is_in_doubt }))
    })?;
    // Without a node's name the map does not count, but shards that have left this server are still away.
    let table = if here.is_empty() { relation(c"departed_shard") } else { None };
    let departed = match table {
        Some(table) => rows(table, |row| {
            Ok(Fence { shard: row.get(c"shard")?, to: row.find(c"to_node")?, is_in_doubt: false })
        })?,
        None => Vec::new(),
    };
    pauses::at("fences read");
    let assignments = rows(assignment, |row| {
        Ok(Assignment { first: row.get(c"first")?, last: row.get(c"last")?, node: row.get(c"node")? })
    })?;
    let fences = fences.into_iter().flatten().chain(departed).collect();
    let placement = Placement::new(shards, here, version, assignments, fences);
    Ok(Some(Cache { layout, prefix, placement, running: Vec::new() }))
}

/// Makes this session read the tables again.
pub(crate) fn read_again() {
    STATE.set(NOTHING);
}

/// Called when a relation has changed, with its OID, or with an invalid OID if any may have.
fn forget(relation: pg_sys::Oid) {
    if relation == pg_sys::Oid::INVALID || relation.to_u32() == MAP_OID.get() {
        read_again();
    }
}
