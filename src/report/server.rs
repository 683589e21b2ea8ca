//! Errors of `pg`.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::report;
use crate::id::{WriterSlot, readable};
use crate::pg::catalog::function::NotCalled;
use crate::pg::catalog::locks::NotLocked;
use crate::pg::catalog::owner::NotRun;
use crate::pg::catalog::relation::NoSuchRelation;
use crate::pg::catalog::rows::NotRead;
use crate::pg::catalog::tables::Altered;
use crate::pg::minting::lease::NoLease;
use crate::pg::placement::fence::Refused;
use crate::pg::placement::map::NotOpen;
use crate::pg::server::settings;
use crate::pg::server::shared::Unavailable;
use crate::shard::placement::NotHere;

/// The server's writer slot was set to a text that is no slot.
pub(crate) struct InvalidWriterSlot;

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

impl From<NotOpen> for ErrorReport {
    fn from(why: NotOpen) -> Self {
        let code = PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match why {
            NotOpen::NotHere(not_here) => not_here.into(),
            NotOpen::SlotNotTaken { slot: Some(slot), taken } => {
                let taken = taken.map_or_else(|| "an invalid one".into(), |taken| taken.to_string());
                report(code, format!("writer slot {slot} has not been taken in this database"))
                    .set_detail(format!(
                        "The server has it by \"insta_ids.writer_slot\"; the database has {taken}."
                    ))
                    .set_hint(
                        "If no server has minted its ids yet: SELECT insta_ids.acquire_writer_slot('-infinity').",
                    )
            }
            NotOpen::SlotNotTaken { slot: None, .. } => InvalidWriterSlot.into(),
            NotOpen::Altered(altered) => altered.into(),
            NotOpen::Unavailable(unavailable) => unavailable.into(),
        }
    }
}

impl From<Refused> for ErrorReport {
    fn from(why: Refused) -> Self {
        match why {
            Refused::NotOpen(why) => why.into(),
            Refused::OldSnapshot { shard } => report(
                PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("could not serialize access to shard {shard}"),
            )
            .set_detail(
                "Rows came to the shard from elsewhere after the snapshot of the transaction was taken.",
            )
            .set_hint("Roll back, and run the whole transaction again."),
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
