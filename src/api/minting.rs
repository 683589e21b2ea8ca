//! Minting.

use std::cell::RefCell;

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::panic::{ErrorReport, ErrorReportable};
use pgrx::prelude::*;

use super::with_mint;
use crate::id::{Id, Seq, Shard};
use crate::mint::{Key, SessionOrder};
use crate::pg::pauses;
use crate::pg::sequence::{Sequence, database};
use crate::pg::shared;
use crate::pg::timestamp::millis_of;
use crate::report::{NegativeCount, SqlResult};

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
    let server = shared::attach()?;
    let seq = Seq::of(sequence.next()?)?;
    pauses::at("after nextval");
    let key = Key::new(server.seed, database(), sequence.oid(), shard);
    let slot = server.guard.0.slot(key, seq);
    ORDER.with_borrow_mut(|order| {
        let last = order.last(key, server.time.0.stamp());
        let minted = with_mint(server, |mint| mint.claim(slot, last.earliest(seq), shard, seq))?;
        last.record(minted.at, seq);
        pauses::at("claimed");
        Ok(minted.id)
    })
}
