//! Errors as users see them: each with its SQLSTATE, message, DETAIL and HINT.
//!
//! No other file names an SQLSTATE. The other modules return errors of their own types, which this one converts. The types
//! here are errors that `api` finds in its arguments.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use crate::id::{
    self, InvalidLayout, Layout, Millis, ShortcodeError, TextError, Times, WriterSlot, mask, readable,
};
use crate::mint::MintError;
use crate::pg::catalog::Altered;
use crate::pg::fence::Refused;
use crate::pg::function::NotCalled;
use crate::pg::lease::NoLease;
use crate::pg::locks::NotLocked;
use crate::pg::map::NotMinted;
use crate::pg::owner::NotRun;
use crate::pg::parser::SyntaxError;
use crate::pg::relation::NoSuchRelation;
use crate::pg::rows::NotRead;
use crate::pg::settings;
use crate::pg::shared::Unavailable;
use crate::pg::timestamp::{duration, timestamp_of};
use crate::shard::placement::NotHere;

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

fails_with!(id::Error NoSuchRelation Unavailable NoLease MintError NotMinted);

/// A count of ids is below zero.
pub(crate) struct NegativeCount(pub(crate) i32);

/// A text is no layout.
pub(crate) struct NotALayout<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) why: TextError,
}

/// A text is no short code.
pub(crate) struct NotAShortcode<'a> {
    pub(crate) code: &'a [u8],
    pub(crate) why: ShortcodeError,
}

/// A text is no masked id.
pub(crate) struct NotMasked<'a> {
    pub(crate) masked: &'a [u8],
    pub(crate) why: mask::MaskError,
}

/// A number of shards is below one.
pub(crate) struct NoShards(pub(crate) i32);

/// A text names no lock mode.
pub(crate) struct NoLockMode<'a>(pub(crate) &'a [u8]);

/// The server's grammar refuses a text of DDL.
pub(crate) struct NotSql<'a> {
    pub(crate) ddl: &'a [u8],
    pub(crate) error: SyntaxError,
}

/// No ticket server has this name.
pub(crate) struct NoTicketServer<'a>(pub(crate) &'a [u8]);

/// The server's writer slot was set to a text that is no slot.
pub(crate) struct InvalidWriterSlot;

/// A text is no writer slot.
pub(crate) struct NotAWriterSlot<'a>(pub(crate) &'a [u8]);

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

impl From<NoSuchRelation> for ErrorReport {
    fn from(NoSuchRelation(oid): NoSuchRelation) -> Self {
        report(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE, format!("relation with OID {oid} does not exist"))
    }
}

impl From<NotRead> for ErrorReport {
    fn from(why: NotRead) -> Self {
        match why {
            NotRead::NoRelation(missing) => missing.into(),
            NotRead::NotInHeap { table, is } => report(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("rows of table {} are not in its heap", readable(&table)),
            )
            .set_detail(format!("It is a {is}.")),
        }
    }
}

impl From<NotLocked> for ErrorReport {
    fn from(why: NotLocked) -> Self {
        match why {
            NotLocked::NoRelation(missing) => missing.into(),
            NotLocked::OtherKind(name) => report(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                format!("\"{}\" is not a table or sequence", readable(&name)),
            ),
        }
    }
}

impl From<NoLockMode<'_>> for ErrorReport {
    fn from(NoLockMode(mode): NoLockMode<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("\"{}\" is not a lock mode", readable(mode)),
        )
        .set_detail("It can be SHARE UPDATE EXCLUSIVE, SHARE ROW EXCLUSIVE or ACCESS EXCLUSIVE.")
    }
}

impl From<NotRun> for ErrorReport {
    fn from(why: NotRun) -> Self {
        match why {
            NotRun::NoRelation(missing) => missing.into(),
            NotRun::Refused => report(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                "command cannot be run as the owner of a relation",
            )
            .set_detail("It begins or ends a transaction, or copies from or to the client."),
        }
    }
}

impl From<NotCalled> for ErrorReport {
    fn from(why: NotCalled) -> Self {
        match why {
            NotCalled::NoFunction(oid) => report(
                PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
                format!("function with OID {oid} does not exist"),
            ),
            NotCalled::OtherKind => report(
                PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                "function does not return one bigint for these arguments",
            ),
        }
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

impl From<NoLease> for ErrorReport {
    fn from(NoLease: NoLease) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "insta_ids has no lease in this database",
        )
        .set_detail(
            "The extension was dropped, or the table insta_ids_internal.lease is not part of it any more.",
        )
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

impl From<NotMinted> for ErrorReport {
    fn from(why: NotMinted) -> Self {
        let code = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match why {
            NotMinted::NotHere(not_here) => not_here.into(),
            NotMinted::Refused(refused) => refused.into(),
            NotMinted::SlotNotTaken { slot: Some(slot), taken } => {
                let taken = taken.map_or_else(|| "an invalid one".into(), |taken| taken.to_string());
                report(code, format!("writer slot {slot} has not been taken in this database"))
                    .set_detail(format!(
                        "The server has it by \"insta_ids.writer_slot\"; the database has {taken}."
                    ))
                    .set_hint(
                        "If no server has minted its ids yet: SELECT insta_ids.acquire_writer_slot('-infinity').",
                    )
            }
            NotMinted::SlotNotTaken { slot: None, .. } => InvalidWriterSlot.into(),
            NotMinted::Altered(altered) => altered.into(),
        }
    }
}

impl From<Refused> for ErrorReport {
    fn from(why: Refused) -> Self {
        match why {
            Refused::NotHere(not_here) => not_here.into(),
            Refused::OldSnapshot { shard } => report(
                PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("could not serialize access to shard {shard}"),
            )
            .set_detail(
                "Rows came to the shard from elsewhere after the snapshot of the transaction was taken.",
            )
            .set_hint("Roll back, and run the whole transaction again."),
            Refused::Altered(altered) => altered.into(),
            Refused::Unavailable(unavailable) => unavailable.into(),
            Refused::NoShard => report(
                PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                "only the trigger of a fence can call this function",
            ),
        }
    }
}

impl From<Altered> for ErrorReport {
    fn from(Altered { table, column }: Altered) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("table insta_ids_internal.{} is not as the extension made it", readable(&table)),
        )
        .set_detail(format!(
            "Column \"{}\" is missing, has another type, or holds a NULL.",
            readable(column.to_bytes())
        ))
        .set_hint("Undo the change of the column with ALTER TABLE.")
    }
}

impl From<InvalidWriterSlot> for ErrorReport {
    fn from(InvalidWriterSlot: InvalidWriterSlot) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "this server has no writer slot",
        )
        .set_detail(format!(
            "\"insta_ids.writer_slot\" is \"{}\"; it must be like 0/2: a number from 0, and a power of two up to {} that is greater.",
            readable(settings::writer_slot().as_bytes()),
            WriterSlot::MAX_SLOTS
        ))
        .set_hint("Set it in postgresql.conf, and restart the server.")
    }
}

impl From<NotAWriterSlot<'_>> for ErrorReport {
    fn from(NotAWriterSlot(text): NotAWriterSlot<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("\"{}\" is not a writer slot", readable(text)),
        )
        .set_detail(format!(
            "A slot is like 0/2: a number from 0, and a power of two up to {} that is greater.",
            WriterSlot::MAX_SLOTS
        ))
    }
}

impl From<NotHere> for ErrorReport {
    fn from(NotHere { shard, is_fenced, is_in_doubt, to, node, here, version }: NotHere) -> Self {
        let code = PgSqlErrorCode::ERRCODE_READ_ONLY_SQL_TRANSACTION;
        let name = |node: &[u8]| format!("node \"{}\"", readable(node));
        let here = if here.is_empty() { "no node".into() } else { name(&here) };
        let on = node.as_deref().map_or_else(|| "no node".into(), name);
        let map = format!("By version {version} of the map it is on {on}; this is {here}.");
        match (is_fenced, to) {
            (true, Some(to)) if is_in_doubt => report(code, format!("shard {shard} is fenced"))
                .set_detail(format!(
                    "It was moving to {} when this server was promoted, and may be there. {map}",
                    name(&to)
                ))
                .set_hint("Finish or end the move: the view insta_ids.moves has the statement."),
            (true, Some(to)) => report(code, format!("shard {shard} is fenced"))
                .set_detail(format!("It moves to {}. {map}", name(&to)))
                .set_hint("Try again in a second, then by a newer map."),
            (true, None) => report(code, format!("shard {shard} is fenced")).set_detail(map),
            (false, _) => report(code, format!("shard {shard} is not on this node")).set_detail(map),
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

impl From<NegativeCount> for ErrorReport {
    fn from(NegativeCount(count): NegativeCount) -> Self {
        report(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count {count} is negative"))
    }
}

impl From<NoShards> for ErrorReport {
    fn from(NoShards(shards): NoShards) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("number of shards {shards} is less than 1"),
        )
    }
}

impl From<NotSql<'_>> for ErrorReport {
    fn from(NotSql { ddl, error }: NotSql<'_>) -> Self {
        let refused = report(error.code, error.message);
        match error.before {
            Some(before) => {
                let line = ddl[..before].split(|&byte| byte == b'\n').count();
                refused.set_detail(format!("It is in line {line} of the migration."))
            }
            None => refused,
        }
    }
}

impl From<NotALayout<'_>> for ErrorReport {
    fn from(NotALayout { text, why }: NotALayout<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
            format!("invalid input syntax for type id_layout: \"{}\"", readable(text)),
        )
        .set_detail(why.to_string())
        .set_hint(format!(
            "A layout is like \"{}\", or one of: {}.",
            Layout::INSTAGRAM,
            Layout::PRESETS.map(|(name, _)| name).join(", ")
        ))
    }
}

impl From<InvalidLayout> for ErrorReport {
    fn from(why: InvalidLayout) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_BINARY_REPRESENTATION,
            "incorrect binary data for type id_layout",
        )
        .set_detail(why.to_string())
    }
}

impl From<NotAShortcode<'_>> for ErrorReport {
    fn from(NotAShortcode { code, why }: NotAShortcode<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
            format!("invalid short code: \"{}\"", readable(code)),
        )
        .set_detail(why.to_string())
    }
}

impl From<NotMasked<'_>> for ErrorReport {
    fn from(NotMasked { masked, why }: NotMasked<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
            format!("invalid masked id: \"{}\"", readable(masked)),
        )
        .set_detail(why.to_string())
    }
}

// The key is not in the message, which is logged.
impl From<mask::NotAKey> for ErrorReport {
    fn from(why: mask::NotAKey) -> Self {
        report(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "invalid key for masked ids")
            .set_detail(why.to_string())
    }
}

impl From<mask::Refused> for ErrorReport {
    fn from(why: mask::Refused) -> Self {
        report(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, why.to_string())
    }
}

impl From<NoTicketServer<'_>> for ErrorReport {
    fn from(NoTicketServer(name): NoTicketServer<'_>) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("ticket server \"{}\" does not exist", readable(name)),
        )
        .set_hint("Make it with insta_ids.create_ticket_server().")
    }
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
