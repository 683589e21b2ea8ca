//! Minting: `next_id`, `next_ids` and `make_id`.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use super::with_mint;
use crate::id::{Id, Instagram, Layout, Shard};
use crate::mint::{Claimed, Guard};
use crate::pg::catalog::sequence::Sequence;
use crate::pg::minting::order::{in_order, is_free};
use crate::pg::placement::fence;
use crate::pg::server::{pauses, shared};
use crate::pg::types::argument::Nth;
use crate::pg::types::layout::StoredLayout;
use crate::pg::types::timestamp::millis_of;
use crate::report::{Failure, NegativeCount, SqlResult};

/// `next_id`, from a sequence that the session does not hold yet. `src/pg/minting/entry.c` calls this.
#[pg_extern(sql = false)]
fn next_id(shard: Nth<0, i32>, seq_name: Nth<1, Sequence>) -> SqlResult<i64> {
    Ok(generate(Instagram, Layout::INSTAGRAM.shard(shard.0)?, seq_name.0)?.bits())
}

#[pg_extern(sql = false)]
fn next_id_layout(
    shard: Nth<0, i32>,
    seq_name: Nth<1, Sequence>,
    layout: Nth<2, StoredLayout>,
) -> SqlResult<i64> {
    let layout = Layout::try_from(layout.0)?;
    Ok(generate(layout, layout.shard(shard.0)?, seq_name.0)?.bits())
}

/// `next_id`, with a value that the sequence has given. `src/pg/minting/entry.c` calls this.
#[pg_extern(sql = false)]
fn next_id_of_value(shard: Nth<0, i32>, seq_name: Nth<1, Sequence>, value: Nth<2, i64>) -> SqlResult<i64> {
    Ok(generate_from(Instagram, Layout::INSTAGRAM.shard(shard.0)?, seq_name.0, value.0)?.bits())
}

#[pg_extern(sql = false)]
fn next_id_of_value_layout(
    shard: Nth<0, i32>,
    seq_name: Nth<1, Sequence>,
    layout: Nth<2, StoredLayout>,
    value: Nth<3, i64>,
) -> SqlResult<i64> {
    let layout = Layout::try_from(layout.0)?;
    Ok(generate_from(layout, layout.shard(shard.0)?, seq_name.0, value.0)?.bits())
}

/// The number of ids that `next_ids` returns, once its arguments are checked. `src/pg/minting/entry.c` calls this.
#[pg_extern(sql = false)]
fn next_ids_count(shard: Nth<0, i32>, count: Nth<1, i32>) -> SqlResult<i32> {
    checked_count(Layout::INSTAGRAM, shard.0, count.0)
}

#[pg_extern(sql = false)]
fn next_ids_count_layout(
    shard: Nth<0, i32>,
    count: Nth<1, i32>,
    layout: Nth<2, StoredLayout>,
) -> SqlResult<i32> {
    checked_count(layout.0.try_into()?, shard.0, count.0)
}

#[pg_extern(sql = false)]
fn make_id(at: TimestampWithTimeZone, shard: i32, seq: i64) -> SqlResult<i64> {
    compose(Layout::INSTAGRAM, at, shard, seq)
}

#[pg_extern(sql = false)]
fn make_id_layout(at: TimestampWithTimeZone, shard: i32, seq: i64, layout: StoredLayout) -> SqlResult<i64> {
    compose(layout.try_into()?, at, shard, seq)
}

fn checked_count(layout: Layout, shard: i32, count: i32) -> SqlResult<i32> {
    layout.shard(shard)?;
    if count < 0 { Err(NegativeCount(count).into()) } else { Ok(count) }
}

/// The id of an instant, a shard and a sequence's value.
fn compose(layout: Layout, at: TimestampWithTimeZone, shard: i32, seq: i64) -> SqlResult<i64> {
    Ok(layout.id(millis_of(at), layout.shard(shard)?, layout.seq(seq)?)?.bits())
}

/// The next id of a shard from a sequence: `nextval`, the check of the map, and the mint loop.
///
/// `typed` is [`Instagram`] or a [`Layout`]. For the former, the compiler computes all that depends on the layout.
///
/// # Errors
/// [`Failure`]: all errors of `nextval`, of the map, and of [`Mint::claim`](crate::mint::Mint::claim).
fn generate<L: Into<Layout> + Copy>(typed: L, shard: Shard, sequence: Sequence) -> Result<Id, Failure> {
    // Where there is none, no value is taken.
    shared::attach()?;
    let value = sequence.next()?;
    pauses::at("after nextval");
    generate_from(typed, shard, sequence, value)
}

/// How many values of a sequence are passed by at most before the session waits for the next unit of time. If another
/// sequence with such long units has used half of the slots, 1 id of 500 waits.
const PASSED_BY: i64 = 8;

/// The same, with a value that the sequence has given.
fn generate_from<L: Into<Layout> + Copy>(
    typed: L,
    shard: Shard,
    sequence: Sequence,
    mut value: i64,
) -> Result<Id, Failure> {
    let server = shared::attach()?;
    let layout: Layout = typed.into();
    fence::check(server, layout, shard, sequence)?;
    let passes = if Guard::passes_by(layout) { PASSED_BY } else { 0 };
    for _ in 0..passes {
        let seq = layout.seq_of_writer(value, server.writer())?;
        let mut is_taken = false;
        let id = in_order(server, typed, shard, sequence, seq, |slot, earliest| {
            match with_mint(server, |mint| mint.claim_now(typed, slot, earliest, shard, seq)) {
                Ok(Claimed::Id(minted)) => Ok(minted),
                Ok(Claimed::Nothing { is_used, .. }) => {
                    is_taken = is_used;
                    Err(None)
                }
                Err(failure) => Err(Some(failure)),
            }
        });
        match id {
            Ok(id) => return Ok(id),
            Err(Some(failure)) => return Err(failure),
            Err(None) => {}
        }
        // If the next residues are used, too, the sequence is probably at its full rate.
        let next = |n: i64| layout.seq_of_writer(value.wrapping_add(n), server.writer());
        let is_free = |n| next(n).is_ok_and(|seq| is_free(server, layout, shard, sequence, seq));
        if !is_taken || !(1..=PASSED_BY).any(is_free) {
            break;
        }
        value = sequence.next()?;
    }
    let seq = layout.seq_of_writer(value, server.writer())?;
    in_order(server, typed, shard, sequence, seq, |slot, earliest| {
        with_mint(server, |mint| mint.claim(typed, slot, earliest, shard, seq))
    })
}
