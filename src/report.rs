//! What users are told: each error's SQLSTATE, message, DETAIL and HINT. The only place with SQLSTATEs.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::id::{self, EPOCH, LAST, MAX_SHARD, Millis};
use crate::pg::sequence::NoSuchRelation;
use crate::pg::shared::Unavailable;
use crate::pg::timestamp::timestamp_of;

/// What every function that SQL calls returns.
pub(crate) type SqlResult<T> = Result<T, ErrorReport>;

/// A count of ids below zero.
pub(crate) struct NegativeCount(pub(crate) i32);

impl From<id::Error> for ErrorReport {
    fn from(error: id::Error) -> Self {
        match error {
            id::Error::ShardOutOfRange(shard) => report(
                PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("shard {shard} is out of range"),
            )
            .set_detail(format!("Shards are numbered from 0 to {MAX_SHARD}.")),
            id::Error::NegativeSequence(value) => report(
                PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
                format!("sequence value {value} is negative"),
            )
            .set_detail("An id holds the value modulo 1024, which is negative for a negative value.")
            .set_hint("Give the sequence a MINVALUE of 0 or more, and restart it there."),
            id::Error::BeforeEpoch(at) => time_out_of_range(at, "before the first id"),
            id::Error::PastLast(at) => time_out_of_range(at, "past the last id"),
        }
    }
}

impl From<NoSuchRelation> for ErrorReport {
    fn from(NoSuchRelation(oid): NoSuchRelation) -> Self {
        report(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, format!("relation with OID {oid} does not exist"))
    }
}

impl From<Unavailable> for ErrorReport {
    fn from(error: Unavailable) -> Self {
        let code = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match error {
            #[cfg(any(feature = "pg15", feature = "pg16"))]
            Unavailable::NotPreloaded => {
                report(code, "insta_ids must be loaded via \"shared_preload_libraries\"")
                    .set_detail("Before PostgreSQL 17, shared memory is given out at server start only.")
                    .set_hint(
                        "Set shared_preload_libraries = 'insta_ids' in postgresql.conf, \
                         beside what is listed there, and restart the server.",
                    )
            }
            Unavailable::OtherVersion => {
                report(code, "another version of insta_ids is in use by this server")
                    .set_detail("Its shared memory was made by a library that this one does not match.")
                    .set_hint("Restart the server.")
            }
        }
    }
}

impl From<NegativeCount> for ErrorReport {
    fn from(NegativeCount(count): NegativeCount) -> Self {
        report(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count {count} is negative"))
    }
}

fn time_out_of_range(at: Millis, place: &str) -> ErrorReport {
    report(PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW, format!("time {} is {place}", timestamp_of(at)))
        .set_detail(format!("Ids hold times from {} to {}.", timestamp_of(EPOCH), timestamp_of(LAST)))
}

#[track_caller]
fn report(code: PgSqlErrorCode, message: impl Into<String>) -> ErrorReport {
    ErrorReport::new(code, message.into(), "insta_ids")
}
