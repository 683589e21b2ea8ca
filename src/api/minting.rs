//! Minting.

use std::cell::RefCell;

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::panic::{ErrorReport, ErrorReportable};
use pgrx::prelude::*;

use crate::id::{Id, Seq, Shard};
use crate::mint::{Key, Mint, SessionOrder};
use crate::pg::clock::ServerClock;
use crate::pg::sequence::{Sequence, database};
use crate::pg::shared;
use crate::pg::timestamp::millis_of;
use crate::report::{NegativeCount, SqlResult};
use crate::settings;

thread_local! {
    static ORDER: RefCell<SessionOrder> = RefCell::default();
}

#[pg_extern(volatile, strict, parallel_unsafe)]
fn next_id(shard: i32, seq_name: Sequence) -> SqlResult<i64> {
    generate(Shard::new(shard)?, seq_name).map(Id::bits)
}

#[pg_extern(volatile, strict, parallel_unsafe)]
fn next_ids(shard: i32, seq_name: Sequence, count: i32) -> Result<SetOfIterator<'static, i64>, ErrorReport> {
    let shard = Shard::new(shard)?;
    if count < 0 {
        return Err(NegativeCount(count).into());
    }
    let id = move |_| generate(shard, seq_name).map(Id::bits).unwrap_or_report();
    Ok(SetOfIterator::new((0..count).map(id)))
}

#[pg_extern(immutable, strict, parallel_safe)]
fn make_id(at: TimestampWithTimeZone, shard: i32, seq: i64) -> SqlResult<i64> {
    Ok(Id::new(millis_of(at), Shard::new(shard)?, Seq::of(seq)?)?.bits())
}

/// The next id of a shard from a sequence: `nextval`, then the mint loop.
fn generate(shard: Shard, sequence: Sequence) -> SqlResult<Id> {
    let state = shared::attach()?;
    let seq = Seq::of(sequence.next()?)?;
    let key = Key::new(state.seed, database(), sequence.oid(), shard);
    let mint = Mint { clock: &ServerClock, time: &state.time.0, max_ahead_ms: settings::max_ahead_ms() };
    let earliest = ORDER.with_borrow(|order| order.earliest(key, seq));
    let id = mint.claim(state.guard.0.slot(key, seq), earliest, shard, seq)?;
    ORDER.with_borrow_mut(|order| order.record(key, id.at(), seq, id.at().plus(-mint.max_ahead_ms)));
    Ok(id)
}
