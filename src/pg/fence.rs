//! Writers at the fence of a shard: they pass, wait for `insta_ids.fence_wait`, or are refused.

use pgrx::{PgTrigger, pg_sys};

use super::catalog::{Altered, NotReadable, Row, relation, rows, rows_of_statement};
use super::clock::{steady_ms, wait_ms};
use super::shared::{self, Unavailable};
use super::{map, settings, worker};
use crate::shard::placement::NotHere;

/// How often a writer that waits reads the fence, in milliseconds.
const EVERY_MS: i64 = 5;

/// Why a writer is refused.
pub(crate) enum Refused {
    /// The shard is fenced, or has left this server.
    NotHere(NotHere),
    /// A table cannot be read.
    Altered(Altered),
    /// The name of this server's node, which the error tells, cannot be had.
    Unavailable(Unavailable),
    /// No trigger with the number of a shard has called.
    NoShard,
}

impl From<Altered> for Refused {
    fn from(altered: Altered) -> Self {
        Self::Altered(altered)
    }
}

impl From<Unavailable> for Refused {
    fn from(why: Unavailable) -> Self {
        Self::Unavailable(why)
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

/// Lets a writer of the shard pass, now or within `insta_ids.fence_wait`. Rows that come to this server were committed before
/// they are here. A statement that began before it has them all would not see them, so it does not pass.
///
/// # Errors
/// [`Refused`].
pub(crate) fn pass(shard: i32) -> Result<(), Refused> {
    let here = shared::this_node()?;
    let until = steady_ms() + settings::fence_wait_ms();
    let is_fenced = loop {
        match gate(shard, &here)? {
            Gate::Open if !was_coming(shard, &here)? => return Ok(()),
            Gate::Open | Gate::Coming => break true,
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
    Err(Refused::NotHere(map::why_not_here(here, shard, is_fenced)?))
}

/// The same for the call of a trigger, whose argument is the shard.
///
/// # Errors
/// [`Refused`].
pub(crate) fn pass_trigger(call: pg_sys::FunctionCallInfo) -> Result<(), Refused> {
    // SAFETY: the server passes a call to a function that it calls, and says whether a trigger calls.
    let trigger = unsafe { call.as_ref().and_then(|call| PgTrigger::from_fcinfo(call).ok()) };
    let arguments = trigger.and_then(|trigger| trigger.extra_args().ok());
    let shard = arguments.and_then(|arguments| arguments.first()?.parse().ok()).ok_or(Refused::NoShard)?;
    if map::is_known_here(shard) && map::is_within_snapshot() { Ok(()) } else { pass(shard) }
}

/// Whether the running statement sees the shard as coming to this server.
fn was_coming(shard: i32, here: &[u8]) -> Result<bool, Altered> {
    let Some(fence) = relation(c"fence") else { return Ok(false) };
    let fences =
        rows_of_statement(fence, |row| Ok(row.get::<i32>(c"shard")? == shard && is_coming(row, here)?))?;
    Ok(fences.contains(&true))
}

/// Whether the row of a fence is of a shard that comes to this server.
fn is_coming(row: &Row, here: &[u8]) -> Result<bool, NotReadable> {
    Ok(row.find::<Vec<u8>>(c"to_node")?.is_some_and(|node| node == here))
}

fn gate(shard: i32, here: &[u8]) -> Result<Gate, Altered> {
    let (Some(fence), Some(shards)) = (relation(c"fence"), relation(c"shard")) else {
        return Ok(Gate::Open);
    };
    // The fence is read first. The transaction that lets a shard go removes both rows, so a session that sees the fence gone
    // sees the shard gone, too.
    let fences = rows(fence, |row| {
        let (of, is_closed): (i32, bool) = (row.get(c"shard")?, row.get(c"is_closed")?);
        let (closed_ms, opens_ms) = (row.find::<i64>(c"closed_ms")?, row.find::<i64>(c"opens_ms")?);
        let is_own = row.find::<Vec<u8>>(c"timeline")? == map::timeline();
        // A restart of the machine sets the steady clock back.
        let is_past = |(closed, opens)| !(closed..opens).contains(&steady_ms());
        let is_over = is_own && closed_ms.zip(opens_ms).is_some_and(is_past);
        let gate = if is_coming(row, here)? { Gate::Coming } else { Gate::Fenced { is_over } };
        Ok((of == shard && is_closed).then_some(gate))
    })?;
    if let Some(fenced) = fences.into_iter().flatten().next() {
        return Ok(fenced);
    }
    let is_here = rows(shards, |row| row.get::<i32>(c"shard"))?.contains(&shard);
    Ok(if is_here { Gate::Open } else { Gate::Gone })
}
