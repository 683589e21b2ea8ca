//! The clock of ids and the server's counters.
#![expect(clippy::type_complexity, reason = "pgrx wants the columns spelt out where the function is")]

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::with_mint;
use crate::mint::Clock;
use crate::pg::catalog::sequence::{Sequence, refuse_if_read_only};
use crate::pg::minting::lease::LeaseTable;
use crate::pg::minting::succession;
use crate::pg::server::clock::{self, ServerClock};
use crate::pg::server::shared;
use crate::pg::types::timestamp::{millis_of, timestamp_of};
use crate::report::{self, SqlResult};

/// Returns the system clock, the time of ids, how far that is ahead, and the end of the database's lease (NULL before the
/// first id). It changes nothing. So on a standby it has no effect on the time after a promotion.
#[pg_extern(sql = false)]
fn clock() -> Result<
    TableIterator<
        'static,
        (
            name!(system_time, TimestampWithTimeZone),
            name!(id_time, TimestampWithTimeZone),
            name!(ahead, Interval),
            name!(lease, Option<TimestampWithTimeZone>),
        ),
    >,
    ErrorReport,
> {
    let server = shared::attach()?;
    let lease = LeaseTable::last()?;
    let system_time = ServerClock.now();
    let id_time = server.time.0.stamp().at().max(system_time);
    let ahead = Interval::from_micros((id_time.get() - system_time.get()) * 1000);
    Ok(TableIterator::once((
        timestamp_of(system_time),
        timestamp_of(id_time),
        ahead,
        lease.map(timestamp_of),
    )))
}

/// Raises the time of ids to `until`, so that later ids come after it. No crash undoes this.
#[pg_extern(sql = false)]
fn advance_clock(until: TimestampWithTimeZone) -> SqlResult<()> {
    refuse_if_read_only(c"advance_clock()");
    Ok(with_mint(shared::attach()?, |mint| mint.advance(millis_of(until)))?)
}

/// Sets the time of ids back to the system clock, and warns which times may be used again.
#[pg_extern(sql = false)]
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method itself is of one lifetime only")]
fn reset_clock() -> SqlResult<()> {
    refuse_if_read_only(c"reset_clock()");
    let used = with_mint(shared::attach()?, |mint| mint.reset())?;
    report::warn_of_reset(ServerClock.now(), used);
    Ok(())
}

/// Makes later ids of a sequence come after all that another one has given, and all that dropped sequences have.
#[pg_extern(sql = false)]
fn succeed(successor: Sequence, predecessor: Sequence) -> SqlResult<()> {
    Ok(succession::succeed(shared::attach()?, successor, predecessor)?)
}

/// Returns the server's counters since the last reset.
#[pg_extern(sql = false)]
fn stat_get_ids() -> Result<
    TableIterator<
        'static,
        (
            name!(ids, i64),
            name!(pushed, i64),
            name!(waits, i64),
            name!(wait_time, Interval),
            name!(step_backs, i64),
            name!(largest_step_back, Interval),
            name!(stats_reset, TimestampWithTimeZone),
        ),
    >,
    ErrorReport,
> {
    let statistics = shared::attach()?.stats.0.read();
    Ok(TableIterator::once((
        statistics.minted.cast_signed(),
        statistics.pushed.cast_signed(),
        statistics.waits.cast_signed(),
        Interval::from_micros(statistics.waited_us),
        statistics.step_backs.cast_signed(),
        Interval::from_micros(statistics.largest_step_back_us),
        timestamp_of(statistics.since),
    )))
}

/// Sets the server's counters to 0.
#[pg_extern(sql = false)]
fn stat_reset() -> SqlResult<()> {
    shared::attach()?.stats.0.reset(ServerClock.now());
    Ok(())
}

/// Waits for `ms` milliseconds of the steady clock.
#[pg_extern(sql = false)]
fn wait_ms(ms: i32) {
    clock::wait_ms(ms.into());
}

/// Returns the steady clock, in milliseconds.
#[pg_extern(sql = false)]
fn steady_ms() -> i64 {
    clock::steady_ms()
}

/// Limits the running statement to `ms` milliseconds from now. 0 removes all limits, and NULL restores `statement_timeout`.
#[pg_extern(sql = false)]
fn limit_statement(ms: Option<i32>) {
    clock::limit_statement(ms);
}
