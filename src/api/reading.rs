//! Reading.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use crate::id::Id;
use crate::pg::timestamp::{millis_of, timestamp_of};
use crate::report::SqlResult;

#[pg_extern(immutable, strict, parallel_safe)]
fn id_time(id: i64) -> TimestampWithTimeZone {
    timestamp_of(Id::from_bits(id).at())
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_shard(id: i64) -> i32 {
    Id::from_bits(id).shard().get().into()
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_seq(id: i64) -> i32 {
    Id::from_bits(id).seq().get().into()
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_min(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Id::min(millis_of(at))?.bits())
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_max(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Id::max(millis_of(at))?.bits())
}
