//! Where shards are, as a session knows it: the map and the fences of its database.

use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use pgrx::pg_sys;

use super::catalog::{Altered, relation, rows, tell_of_changes};
use super::pauses;
use super::sequence::Sequence;
use super::shared::Shared;
use crate::id::{Layout, Shard, WriterSlot};
use crate::shard::placement::{Assignment, Elsewhere, Fence, Placement, shard_of_schema};

/// The table that is said to have changed whenever the map or a fence has.
const MAP: &CStr = c"map";

/// What the session knows: nothing, or that all shards are here, or that some are not; or it is about to.
static KNOWS: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const READING: u8 = 1;
const ALL_HERE: u8 = 2;
const SOME_AWAY: u8 = 3;

/// While some are not: the layout of the shards' ids, by its hash, and a bit for each of the first shards that is not here.
/// So most calls need no look at [`KNOWN`].
static LAYOUT: AtomicU64 = AtomicU64::new(0);
static AWAY: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// The OID of [`MAP`].
static RELATION: AtomicU32 = AtomicU32::new(0);

/// Whether this session is told of changes to relations.
static TOLD: AtomicBool = AtomicBool::new(false);

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

#[derive(Default)]
struct Known {
    /// The layout of the shards' ids.
    layout: Option<Layout>,
    /// What their schemas' names begin with.
    prefix: Vec<u8>,
    placement: Placement,
}

/// Why nothing is minted for a shard.
pub(crate) enum NotMinted {
    /// It is fenced here, or on another node.
    Elsewhere(Elsewhere),
    /// The server's writer slot is not the one that the database has taken.
    NotTaken {
        /// The one in force, `None` if what is set is none.
        slot: Option<WriterSlot>,
        /// The one that was taken; `None` if that is none, which only an edited table says.
        taken: Option<WriterSlot>,
    },
    /// It cannot be told.
    Altered(Altered),
}

impl From<Altered> for NotMinted {
    fn from(altered: Altered) -> Self {
        Self::Altered(altered)
    }
}

/// Refuses to mint for a shard that is fenced here or on another node, and for any by a writer slot that was not taken.
/// Called after `nextval`, whose lock has brought in what others changed before.
#[inline]
pub(crate) fn check(
    server: &Shared,
    layout: Layout,
    shard: Shard,
    sequence: Sequence,
) -> Result<(), NotMinted> {
    let is_here = match KNOWS.load(Ordering::Relaxed) {
        ALL_HERE => true,
        SOME_AWAY => LAYOUT.load(Ordering::Relaxed) == layout.hash64() && !is_away(shard),
        _ => false,
    };
    if is_here { Ok(()) } else { look_up(server, layout, shard, sequence) }
}

/// Whether a shard may be away, by its bit or because it has none.
#[inline]
fn is_away(shard: Shard) -> bool {
    let bits = AWAY.get((shard.get() / 64) as usize).map_or(u64::MAX, |bits| bits.load(Ordering::Relaxed));
    bits >> (shard.get() % 64) & 1 == 1
}

#[inline(never)]
fn look_up(server: &Shared, layout: Layout, shard: Shard, sequence: Sequence) -> Result<(), NotMinted> {
    if !is_known() {
        tell_of_changes(&TOLD, forget);
        match read(server)? {
            Some(known) => KNOWN.set(known),
            // While the script of CREATE EXTENSION runs, there is no map yet.
            None => return Ok(()),
        }
    }
    KNOWN.with_borrow(|known| {
        let shard = if known.layout == Some(layout) {
            i32::try_from(shard.get()).ok()
        } else {
            // The number means another shard, or none; but the sequence may be one of a shard.
            sequence.schema().and_then(|schema| shard_of_schema(&schema, &known.prefix))
        };
        match shard {
            Some(shard) if !known.placement.is_here(shard) => {
                Err(NotMinted::Elsewhere(known.placement.why(shard)))
            }
            _ => Ok(()),
        }
    })
}

/// What is in force changes by a restart alone, so a session looks when it reads the map.
fn check_writer(server: &Shared) -> Result<(), NotMinted> {
    let slot = server.writer_slot();
    let taken = match relation(c"writer") {
        Some(table) => rows(table, |row| {
            WriterSlot::new(row.integer(1)?.try_into().ok()?, row.integer(2)?.try_into().ok()?)
        })?,
        None => Vec::new(),
    };
    let taken = taken.first().copied().unwrap_or(Some(WriterSlot::ALONE));
    if slot.is_some() && slot == taken { Ok(()) } else { Err(NotMinted::NotTaken { slot, taken }) }
}

/// Why nothing is written to a shard here, whose node this is.
pub(crate) fn why(here: Vec<u8>, shard: i32) -> Result<Elsewhere, Altered> {
    let why = if is_known() {
        KNOWN.with_borrow(|known| known.placement.why(shard))
    } else {
        // Not kept: whoever mints has more to look at.
        load(here)?.unwrap_or_default().placement.why(shard)
    };
    Ok(Elsewhere { is_fenced: true, ..why })
}

/// The shards that move or are fenced now, with their schemas.
pub(crate) fn fenced_schemas() -> Result<Vec<(i32, Vec<u8>)>, Altered> {
    let (Some(config), Some(fence)) = (relation(c"config"), relation(c"fence")) else {
        return Ok(Vec::new());
    };
    let shards = rows(fence, |row| row.integer(1))?;
    if shards.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = rows(config, |row| row.name(2))?.into_iter().flatten().next().unwrap_or_default();
    let schema = |shard: i32| [&prefix[..], shard.to_string().as_bytes()].concat();
    Ok(shards.into_iter().flatten().map(|shard| (shard, schema(shard))).collect())
}

/// Tells all sessions of the database, when the transaction commits, that the map or a fence has changed.
pub(crate) fn forget_everywhere() {
    if let Some(map) = relation(MAP) {
        // SAFETY: takes the OID of a relation, in a transaction.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(map) };
    }
}

/// The timeline that the server writes, `None` on a standby.
pub(crate) fn timeline() -> Option<i32> {
    // SAFETY: reads shared memory; the second is asked for when recovery has ended.
    unsafe { (!pg_sys::RecoveryInProgress()).then(|| pg_sys::GetWALInsertionTimeLine().cast_signed()) }
}

fn is_known() -> bool {
    matches!(KNOWS.load(Ordering::Relaxed), ALL_HERE | SOME_AWAY)
}

/// Reads the map for the calls to come, if there is one.
fn read(server: &Shared) -> Result<Option<Known>, NotMinted> {
    let Some(map) = relation(MAP) else { return Ok(None) };
    RELATION.store(map.to_u32(), Ordering::Relaxed);
    // If an error ends this, nothing is known.
    KNOWS.store(READING, Ordering::Relaxed);
    check_writer(server)?;
    let Some(known) = load(server.node().to_vec())? else { return Ok(None) };
    for (shards, bits) in (0..).step_by(64).zip(&AWAY) {
        let away = (0..64).filter(|n| !known.placement.is_here(shards + n)).fold(0, |bits, n| bits | 1 << n);
        bits.store(away, Ordering::Relaxed);
    }
    LAYOUT.store(known.layout.map_or(0, Layout::hash64), Ordering::Relaxed);
    let state = if known.placement.is_complete() { ALL_HERE } else { SOME_AWAY };
    // Unless a change came in meanwhile: then this is read again at the next call. It is new enough for this one: a fence
    // locks the sequences of its shard, and `nextval` has locked this one.
    let _ = KNOWS.compare_exchange(READING, state, Ordering::Relaxed, Ordering::Relaxed);
    Ok(Some(known))
}

/// What the tables say now.
fn load(here: Vec<u8>) -> Result<Option<Known>, Altered> {
    let tables = [MAP, c"config", c"assignment", c"fence"].map(relation);
    let [Some(map), Some(config), Some(assignment), Some(fence)] = tables else { return Ok(None) };
    let version = rows(map, |row| row.bigint(1))?.first().copied().flatten().unwrap_or(0);
    let config = rows(config, |row| Some((row.integer(1)?, row.name(2)?, row.layout(3)?)))?;
    let (shards, prefix, layout) = config.into_iter().flatten().next().map_or_else(
        || (0, Vec::new(), None),
        |(shards, prefix, layout)| (shards, prefix, Layout::try_from(layout).ok()),
    );
    // A server that is promoted begins a new timeline. It may lack what its predecessor did last: the fence, after which the
    // shards were handed over.
    let timeline = timeline();
    // Fences before assignments, as each is read as it is then: who lets a shard go takes its fence away and assigns it
    // elsewhere at once.
    let fences = rows(fence, |row| {
        let (is_closed, offered_on) = (row.boolean(2)?, row.integer(5));
        let is_in_doubt = !is_closed && offered_on.is_some() && offered_on != timeline;
        (is_closed || is_in_doubt).then_some(Fence { shard: row.integer(1)?, to: row.name(3), is_in_doubt })
    })?;
    // A server that has lost its name still knows which shards have left it.
    let moved = if here.is_empty() { relation(c"moved") } else { None };
    let left = match moved {
        Some(moved) => {
            rows(moved, |row| Some(Fence { shard: row.integer(1)?, to: row.name(3), is_in_doubt: false }))?
        }
        None => Vec::new(),
    };
    pauses::at("fences read");
    let assignments = rows(assignment, |row| {
        Some(Assignment { first: row.integer(1)?, last: row.integer(2)?, node: row.name(3)? })
    })?;
    let placement = Placement::new(
        shards,
        here,
        version,
        assignments.into_iter().flatten().collect(),
        fences.into_iter().chain(left).flatten().collect(),
    );
    Ok(Some(Known { layout, prefix, placement }))
}

/// Called by the server when a relation has changed, or all may have.
extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::Oid::INVALID || relation.to_u32() == RELATION.load(Ordering::Relaxed) {
        KNOWS.store(NOTHING, Ordering::Relaxed);
    }
}
