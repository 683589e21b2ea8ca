//! Conversions between PostgreSQL's instants and the milliseconds of ids, and lengths of time as text.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys;

use crate::id::Millis;

/// Milliseconds from 1970-01-01, where Unix time begins, to 2000-01-01, where PostgreSQL's time begins.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

/// The millisecond that holds an instant. The infinities become times that no id can have.
pub(crate) fn millis_of(at: TimestampWithTimeZone) -> Millis {
    let micros: pg_sys::TimestampTz = at.into();
    Millis::new(micros.div_euclid(1000) + POSTGRES_EPOCH_MS)
}

/// The beginning of a millisecond. Becomes an infinity if PostgreSQL has no such instant.
pub(crate) fn timestamp_of(at: Millis) -> TimestampWithTimeZone {
    let micros = at.get().saturating_sub(POSTGRES_EPOCH_MS).saturating_mul(1000);
    TimestampWithTimeZone::try_from(micros).unwrap_or_else(|_| {
        if micros < 0 {
            TimestampWithTimeZone::negative_infinity()
        } else {
            TimestampWithTimeZone::positive_infinity()
        }
    })
}

/// A length of time in milliseconds, not negative, as an operator reads it: `1 h 59 min 3.250 s`.
pub(crate) fn duration(ms: i64) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let seconds = format!("{seconds}.{:03} s", ms % 1000);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes} min {seconds}"),
        (hours, minutes) => format!("{hours} h {minutes} min {seconds}"),
    }
}
