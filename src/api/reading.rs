//! Reading ids: their parts, the least and the greatest id of an instant, and short codes.

use pgrx::datum::{JsonB, TimestampWithTimeZone};
use pgrx::prelude::*;
use serde_json::Value;

use crate::id::{Id, Layout, instant, shortcode};
use crate::pg::argument::Nth;
use crate::pg::layout::StoredLayout;
use crate::pg::timestamp::{millis_of, timestamp_of};
use crate::report::{NotAShortcode, SqlResult};

#[pg_extern(immutable, strict, parallel_safe)]
fn id_time(id: Nth<0, i64>) -> TimestampWithTimeZone {
    timestamp_of(Layout::INSTAGRAM.time_of(Id::from_bits(id.0)))
}

#[pg_extern(name = "id_time", immutable, strict, parallel_safe)]
fn id_time_layout(id: i64, layout: StoredLayout) -> SqlResult<TimestampWithTimeZone> {
    Ok(timestamp_of(Layout::try_from(layout)?.time_of(Id::from_bits(id))))
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_shard(id: Nth<0, i64>) -> i32 {
    Layout::INSTAGRAM.shard_of(Id::from_bits(id.0))
}

#[pg_extern(name = "id_shard", immutable, strict, parallel_safe)]
fn id_shard_layout(id: i64, layout: StoredLayout) -> SqlResult<i32> {
    Ok(Layout::try_from(layout)?.shard_of(Id::from_bits(id)))
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_seq(id: Nth<0, i64>) -> i32 {
    Layout::INSTAGRAM.seq_of(Id::from_bits(id.0))
}

#[pg_extern(name = "id_seq", immutable, strict, parallel_safe)]
fn id_seq_layout(id: i64, layout: StoredLayout) -> SqlResult<i32> {
    Ok(Layout::try_from(layout)?.seq_of(Id::from_bits(id)))
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_json(id: i64) -> JsonB {
    json(Layout::INSTAGRAM, Id::from_bits(id))
}

#[pg_extern(name = "id_json", immutable, strict, parallel_safe)]
fn id_json_layout(id: i64, layout: StoredLayout) -> SqlResult<JsonB> {
    Ok(json(layout.try_into()?, Id::from_bits(id)))
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_min(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Layout::INSTAGRAM.min(millis_of(at))?.bits())
}

#[pg_extern(name = "id_min", immutable, strict, parallel_safe)]
fn id_min_layout(at: TimestampWithTimeZone, layout: StoredLayout) -> SqlResult<i64> {
    Ok(Layout::try_from(layout)?.min(millis_of(at))?.bits())
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_max(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Layout::INSTAGRAM.max(millis_of(at))?.bits())
}

#[pg_extern(name = "id_max", immutable, strict, parallel_safe)]
fn id_max_layout(at: TimestampWithTimeZone, layout: StoredLayout) -> SqlResult<i64> {
    Ok(Layout::try_from(layout)?.max(millis_of(at))?.bits())
}

#[pg_extern(immutable, strict, parallel_safe)]
fn id_shortcode(id: i64) -> String {
    shortcode::encode(Id::from_bits(id))
}

#[pg_extern(sql = false)]
fn shortcode_id(code: &[u8]) -> SqlResult<i64> {
    Ok(shortcode::decode(code).map_err(|why| NotAShortcode { code, why })?.bits())
}

/// The parts of an id. The id is text, because JavaScript's numbers lose digits beyond 2^53. The time is text in UTC, so it
/// is the same in sessions of all time zones.
fn json(layout: Layout, id: Id) -> JsonB {
    JsonB(Value::from_iter([
        ("id", Value::from(id.bits().to_string())),
        ("at", instant::format(layout.time_of(id)).into()),
        ("shard", layout.shard_of(id).into()),
        ("seq", layout.seq_of(id).into()),
    ]))
}
