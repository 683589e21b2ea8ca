//! Reading ids: their parts, the least and the greatest id of an instant, short codes, and masked ids.

use pgrx::datum::{JsonB, TimestampWithTimeZone};
use pgrx::prelude::*;
use serde::Serialize;

use crate::id::mask::{Key, Masked};
use crate::id::{Id, Layout, instant, shortcode};
use crate::pg::types::argument::Nth;
use crate::pg::types::layout::StoredLayout;
use crate::pg::types::timestamp::{millis_of, timestamp_of};
use crate::report::{NotAShortcode, NotMasked, SqlResult};

#[pg_extern(sql = false)]
fn id_time(id: Nth<0, i64>) -> TimestampWithTimeZone {
    timestamp_of(Layout::INSTAGRAM.time_of(Id::from_bits(id.0)))
}

#[pg_extern(sql = false)]
fn id_time_layout(id: i64, layout: StoredLayout) -> SqlResult<TimestampWithTimeZone> {
    Ok(timestamp_of(Layout::try_from(layout)?.time_of(Id::from_bits(id))))
}

#[pg_extern(sql = false)]
fn id_shard(id: Nth<0, i64>) -> i32 {
    Layout::INSTAGRAM.shard_of(Id::from_bits(id.0))
}

#[pg_extern(sql = false)]
fn id_shard_layout(id: i64, layout: StoredLayout) -> SqlResult<i32> {
    Ok(Layout::try_from(layout)?.shard_of(Id::from_bits(id)))
}

#[pg_extern(sql = false)]
fn id_seq(id: Nth<0, i64>) -> i32 {
    Layout::INSTAGRAM.seq_of(Id::from_bits(id.0))
}

#[pg_extern(sql = false)]
fn id_seq_layout(id: i64, layout: StoredLayout) -> SqlResult<i32> {
    Ok(Layout::try_from(layout)?.seq_of(Id::from_bits(id)))
}

#[pg_extern(sql = false)]
fn id_json(id: i64) -> JsonB {
    json(Layout::INSTAGRAM, Id::from_bits(id))
}

#[pg_extern(sql = false)]
fn id_json_layout(id: i64, layout: StoredLayout) -> SqlResult<JsonB> {
    Ok(json(layout.try_into()?, Id::from_bits(id)))
}

#[pg_extern(sql = false)]
fn id_min(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Layout::INSTAGRAM.min(millis_of(at))?.bits())
}

#[pg_extern(sql = false)]
fn id_min_layout(at: TimestampWithTimeZone, layout: StoredLayout) -> SqlResult<i64> {
    Ok(Layout::try_from(layout)?.min(millis_of(at))?.bits())
}

#[pg_extern(sql = false)]
fn id_max(at: TimestampWithTimeZone) -> SqlResult<i64> {
    Ok(Layout::INSTAGRAM.max(millis_of(at))?.bits())
}

#[pg_extern(sql = false)]
fn id_max_layout(at: TimestampWithTimeZone, layout: StoredLayout) -> SqlResult<i64> {
    Ok(Layout::try_from(layout)?.max(millis_of(at))?.bits())
}

#[pg_extern(sql = false)]
fn id_shortcode(id: i64) -> String {
    shortcode::encode(Id::from_bits(id))
}

#[pg_extern(sql = false)]
fn shortcode_id(code: &[u8]) -> SqlResult<i64> {
    Ok(shortcode::decode(code).map_err(|why| NotAShortcode { code, why })?.bits())
}

#[pg_extern(sql = false)]
fn id_mask(id: i64, key: &[u8]) -> SqlResult<String> {
    Ok(Key::new(key)?.mask(Id::from_bits(id))?.to_string())
}

#[pg_extern(sql = false)]
fn id_unmask(masked: &[u8], key: &[u8], null_if_invalid: bool) -> SqlResult<Option<i64>> {
    let key = Key::new(key)?;
    match Masked::parse(masked) {
        Ok(masked) => Ok(Some(key.unmask(masked)?.bits())),
        Err(_) if null_if_invalid => Ok(None),
        Err(why) => Err(NotMasked { masked, why }.into()),
    }
}

/// The parts of an id.
#[derive(Serialize)]
struct Parts {
    /// Text, because JavaScript's numbers lose digits beyond 2^53.
    id: String,
    /// Text in UTC, so it is the same in sessions of all time zones: `2013-06-20T17:15:45.376Z`.
    at: String,
    shard: i32,
    seq: i32,
}

fn json(layout: Layout, id: Id) -> JsonB {
    let parts = Parts {
        id: id.bits().to_string(),
        at: instant::format(layout.time_of(id)),
        shard: layout.shard_of(id),
        seq: layout.seq_of(id),
    };
    // Strings and numbers alone always have a JSON value.
    JsonB(serde_json::to_value(parts).unwrap_or_default())
}
