//! Errors that `api` finds in its arguments.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::report;
use crate::id::{InvalidLayout, Layout, ShortcodeError, TextError, WriterSlot, mask, readable};
use crate::pg::catalog::parser::SyntaxError;

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

/// A text is a dump, and not that of one shard.
pub(crate) struct NotOfAShard<'a> {
    pub(crate) prefix: &'a [u8],
}

/// No ticket server has this name.
pub(crate) struct NoTicketServer<'a>(pub(crate) &'a [u8]);

/// A text is no writer slot.
pub(crate) struct NotAWriterSlot<'a>(pub(crate) &'a [u8]);

impl From<NegativeCount> for ErrorReport {
    fn from(NegativeCount(count): NegativeCount) -> Self {
        report(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, format!("count {count} is negative"))
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

impl From<NoShards> for ErrorReport {
    fn from(NoShards(shards): NoShards) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("number of shards {shards} is less than 1"),
        )
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

impl From<NotOfAShard<'_>> for ErrorReport {
    fn from(NotOfAShard { prefix }: NotOfAShard<'_>) -> Self {
        let prefix = readable(prefix);
        report(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "dump is not that of a shard")
            .set_detail(format!("It does not create a schema like \"{prefix}0\"."))
            .set_hint(format!("Dump one shard of an initialization with this prefix: pg_dump --schema-only --schema={prefix}0"))
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

impl From<InvalidLayout> for ErrorReport {
    fn from(why: InvalidLayout) -> Self {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_BINARY_REPRESENTATION,
            "incorrect binary data for type id_layout",
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
