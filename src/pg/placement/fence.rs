//! Writers at the fence of a shard: they pass, wait for `insta_ids.fence_wait`, or are refused.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::{PgTrigger, pg_sys};

use super::map::{self, NotOpen};
use crate::id::{Layout, Shard};
use crate::pg::catalog::sequence::Sequence;
use crate::pg::catalog::tables::{Altered, AsOf, NotReadable, Row, relation, row_of};
use crate::pg::server::clock::{steady_ms, wait_ms};
use crate::pg::server::settings;
use crate::pg::server::shared::{self, Shared};
use crate::pg::workers::worker;

/// How often a writer that waits reads the fence, in milliseconds.
const EVERY_MS: i64 = 5;

/// Why a writer is refused.
pub(crate) enum Refused {
    NotOpen(NotOpen),
    /// Rows of the shard came here from elsewhere, or it was created, after the transaction had taken its snapshot.
    OldSnapshot {
        /// The shard.
        shard: i32,
    },
    /// No trigger with the number of a shard has called.
    NoShard,
}

impl<T: Into<NotOpen>> From<T> for Refused {
    fn from(why: T) -> Self {
        Self::NotOpen(why.into())
    }
}

/// What the tables say of a shard now.
enum Gate {
    Open,
    /// The shard is fenced, and leaves this server or stays. `is_over` tells whether [`worker::end_pauses`] would open it.
    Fenced {
        is_over: bool,
    },
    /// The shard is fenced, and comes to this server.
    Coming,
    Gone,
}

/// Checks what [`map::check`] does. If the shard is fenced, it waits as [`pass`] does.
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
    match map::check(server, layout, shard, sequence) {
        Err(NotOpen::NotHere(why)) if why.is_fenced && !why.is_in_doubt => {
            pass(why.shard)?;
            // The message that the fence is gone may not be here yet.
            map::read_again();
            map::check(server, layout, shard, sequence)
        }
        checked => checked,
    }
}

/// Lets a writer of the shard pass, now or within `insta_ids.fence_wait`.
///
/// # Errors
/// [`NotOpen`].
pub(crate) fn pass(shard: i32) -> Result<(), NotOpen> {
    let here = shared::this_node()?;
    let until = steady_ms() + settings::fence_wait_ms();
    let is_fenced = loop {
        match gate(shard, &here)? {
            Gate::Open => return Ok(()),
            Gate::Coming => break true,
            Gate::Fenced { is_over } => {
                if is_over && let Ok(server) = shared::attach() {
                    worker::end_pauses(server);
                }
                if steady_ms() >= until {
                    break true;
                }
                wait_ms(EVERY_MS);
            }
            Gate::Gone => break false,
        }
    };
    Err(NotOpen::NotHere(map::why_not_here(here, shard, is_fenced)?))
}

/// The same for the call of a trigger, whose argument is the shard. Rows that come here from another server, schema or table
/// were committed before. A statement with an older snapshot does not see them, so it does not pass.
///
/// # Errors
/// [`Refused`].
pub(crate) fn pass_trigger(call: pg_sys::FunctionCallInfo) -> Result<(), Refused> {
    // SAFETY: the server passes a call to a function that it calls, and says whether a trigger calls.
    let trigger = unsafe { call.as_ref().and_then(|call| PgTrigger::from_fcinfo(call).ok()) };
    let arguments = trigger.and_then(|trigger| trigger.extra_args().ok());
    let shard = arguments.and_then(|arguments| arguments.first()?.parse().ok()).ok_or(Refused::NoShard)?;
    if !map::is_known_here(shard) {
        pass(shard)?;
    } else if map::is_within_snapshot() {
        return Ok(());
    }
    let here = shared::this_node()?;
    // A shard that left and returned was filled again.
    let was_open = !matches!(gate_of(shard, &here, AsOf::Statement)?, Some(Gate::Coming))
        && filled_at(shard, AsOf::Statement)? == filled_at(shard, AsOf::Now)?;
    if was_open {
        return Ok(());
    }
    // SAFETY: reads a variable of this session.
    let keeps_snapshot = unsafe { pg_sys::XactIsoLevel } >= pg_sys::XACT_REPEATABLE_READ.cast_signed();
    Err(if keeps_snapshot {
        Refused::OldSnapshot { shard }
    } else {
        // The next statement of the transaction has another snapshot.
        NotOpen::NotHere(map::why_not_here(here, shard, true)?).into()
    })
}

/// Whether the row of a fence is of a shard that comes to this server.
fn is_coming(row: &Row, here: &[u8]) -> Result<bool, NotReadable> {
    Ok(row.find::<Vec<u8>>(c"to_node")?.is_some_and(|node| node == here))
}

fn gate(shard: i32, here: &[u8]) -> Result<Gate, Altered> {
    // The fence is read first. The transaction that lets a shard go removes both rows, so a session that sees the fence gone
    // sees the shard gone, too.
    match gate_of(shard, here, AsOf::Now)? {
        Some(fenced) => Ok(fenced),
        None if filled_at(shard, AsOf::Now)?.is_some() || relation(c"shard").is_none() => Ok(Gate::Open),
        None => Ok(Gate::Gone),
    }
}

/// The fence of a shard that is closed.
fn gate_of(shard: i32, here: &[u8], as_of: AsOf) -> Result<Option<Gate>, Altered> {
    let Some(fence) = relation(c"fence") else { return Ok(None) };
    let fenced = row_of(fence, shard, as_of, |row| {
        let is_closed: bool = row.get(c"is_closed")?;
        let (closed_ms, opens_ms) = (row.find::<i64>(c"closed_ms")?, row.find::<i64>(c"opens_ms")?);
        let is_own = row.find::<Vec<u8>>(c"timeline")? == map::timeline();
        // A restart of the machine sets the steady clock back.
        let is_past = |(closed, opens)| !(closed..opens).contains(&steady_ms());
        let is_over = is_own && closed_ms.zip(opens_ms).is_some_and(is_past);
        let gate = if is_coming(row, here)? { Gate::Coming } else { Gate::Fenced { is_over } };
        Ok(is_closed.then_some(gate))
    })?;
    Ok(fenced.flatten())
}

/// When the rows of the shard came here, or `None` if it is not here.
fn filled_at(shard: i32, as_of: AsOf) -> Result<Option<TimestampWithTimeZone>, Altered> {
    let Some(shards) = relation(c"shard") else { return Ok(None) };
    row_of(shards, shard, as_of, |row| row.get(c"filled_at"))
}
