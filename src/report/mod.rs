//! Errors as users see them: each with its SQLSTATE, message, DETAIL and HINT.
//!
//! No other module names an SQLSTATE. The others return errors of their own types, which this one converts.

mod arguments;
mod server;

pub(crate) use arguments::{
    NegativeCount, NoLockMode, NoShards, NoTicketServer, NotALayout, NotAShortcode, NotAWriterSlot,
    NotMasked, NotOfAShard, NotSql,
};
pub(crate) use server::InvalidWriterSlot;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::id::{self, Millis, Times};
use crate::mint::MintError;
use crate::pg::catalog::relation::NoSuchRelation;
use crate::pg::minting::lease::NoLease;
use crate::pg::placement::map::NotOpen;
use crate::pg::server::settings;
use crate::pg::server::shared::Unavailable;
use crate::pg::types::timestamp::{duration, timestamp_of};

/// The result of a function that SQL calls.
pub(crate) type SqlResult<T> = Result<T, ErrorReport>;

/// An error on the way of an id, in one word. With it, `Result<Id, Failure>` stays in registers; [`SqlResult`] is returned
/// through memory.
pub(crate) struct Failure(Box<ErrorReport>);

impl From<Failure> for ErrorReport {
    fn from(Failure(report): Failure) -> Self {
        *report
    }
}

macro_rules! fails_with {
    ($($error:ty)*) => {
        $(impl From<$error> for Failure {
            #[cold]
            fn from(error: $error) -> Self {
                Self(Box::new(error.into()))
            }
        })*
    };
}

fails_with!(id::Error NoSuchRelation Unavailable NoLease MintError NotOpen);

impl From<id::Error> for ErrorReport {
    fn from(error: id::Error) -> Self {
        match error {
            id::Error::ShardOutOfRange { shard, last } => report(
                PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("shard {shard} is out of range"),
            )
            .set_detail(match last {
                0 => "The layout has no shard, so it must be 0.".into(),
                _ => format!("Shards are numbered from 0 to {last}."),
            }),
            id::Error::NegativeSequence(value) => report(
                PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("sequence value {value} is negative"),
            )
            .set_detail("An id holds a remainder of the value, which is negative for a negative value.")
            .set_hint("Give the sequence a MINVALUE of 0 or more, and restart it there."),
            id::Error::TooManyWriters { writer, residues } => report(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("layout has no room for writer slot {writer}"),
            )
            .set_detail(format!("Its sequence field has {residues} values.")),
            id::Error::TimeOutOfRange { at, times } => time_out_of_range(at, times),
        }
    }
}

impl From<MintError> for ErrorReport {
    fn from(refusal: MintError) -> Self {
        let not_now = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let full = PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED;
        match refusal {
            MintError::Id(error) => error.into(),
            MintError::ClockBehind { time, clock } => report(
                not_now,
                format!("clock is {} behind the time of ids", duration(time.get() - clock.get())),
            )
            .set_detail(format!(
                "The clock says {}; ids have reached {}. \"insta_ids.clock_tolerance\" is {}.",
                timestamp_of(clock),
                timestamp_of(time),
                duration(settings::clock_tolerance_ms())
            ))
            .set_hint(CLOCK_HINT),
            MintError::LeaseAhead { until, clock } => report(
                not_now,
                format!("clock is {} behind the lease of this database", duration(until.get() - clock.get())),
            )
            .set_detail(format!(
                "The clock says {}; ids of this database may have reached {}. \"insta_ids.clock_tolerance\" is {}.",
                timestamp_of(clock),
                timestamp_of(until),
                duration(settings::clock_tolerance_ms())
            ))
            .set_hint(CLOCK_HINT),
            MintError::TooFarAhead { until, clock } => report(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("time {} is too far ahead of the clock", timestamp_of(until)),
            )
            .set_detail(format!(
                "The clock says {}, and \"insta_ids.clock_tolerance\" is {}.",
                timestamp_of(clock),
                duration(settings::clock_tolerance_ms())
            )),
            MintError::LeaseGone => NoLease.into(),
            MintError::TooManyLeases => report(full, "too many databases mint ids at once")
                .set_detail("Each database that mints holds a lease in shared memory, for which there is room for 1024.")
                .set_hint("Try again in some seconds."),
            MintError::TooManyResets => report(full, "clock was reset too often")
                .set_detail("It can be reset 4094 times while the server runs.")
                .set_hint("Restart the server."),
        }
    }
}

const CLOCK_HINT: &str = "Correct the clock; ids then go on by themselves. If the clock is right and had run ahead \
    before, call insta_ids.reset_clock().";

/// Warns the caller of `reset_clock` which times may be used again: those from `clock` to `used`.
pub(crate) fn warn_of_reset(clock: Millis, used: Millis) {
    let message = if used > clock {
        format!("ids of times from {} to {} can be minted again", timestamp_of(clock), timestamp_of(used))
    } else {
        "clock was not ahead".into()
    };
    report(PgSqlErrorCode::ERRCODE_WARNING, message).report(PgLogLevel::WARNING);
}

fn time_out_of_range(at: Millis, times: Times) -> ErrorReport {
    let time = timestamp_of(at);
    let message = if at < times.first {
        format!("time {time} is before the first id")
    } else {
        format!("time {time} is past the last id")
    };
    report(PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW, message).set_detail(format!(
        "Ids hold times from {} to {}.",
        timestamp_of(times.first),
        timestamp_of(times.last)
    ))
}

/// A report without DETAIL and HINT. Its place in the source is the caller's.
#[track_caller]
fn report(code: PgSqlErrorCode, message: impl Into<String>) -> ErrorReport {
    ErrorReport::new(code, message.into(), "insta_ids")
}
