//! The server's clocks, and waiting for them.

use std::ffi::{c_int, c_long};

use pgrx::pg_sys;

use super::{log, pauses};
use crate::id::Millis;
use crate::mint::{Clock, Event, Reading};

/// A wait goes back to the loop after this long at the latest, so that a clock that was set meanwhile
/// is noticed. In milliseconds.
const LONGEST_WAIT_MS: i64 = 1000;

/// Two clocks are read together when they are read within this many microseconds; only a process that
/// is held up between them takes longer.
const TOGETHER_US: i64 = 200;

/// Where clocks are always that slow, the last reading must do.
const TRIES: u32 = 10;

/// The numbers of the clocks in time.h: the system's, and the one that nobody sets.
const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = if cfg!(target_os = "macos") { 6 } else { 1 };

/// `struct timespec` of time.h.
#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

// SAFETY: declared as in time.h; the standard library's steady clock cannot be compared between processes, and its
// system clock takes longer.
unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}

/// The system clock and the steady clock, waited for on the session's latch.
pub(crate) struct ServerClock;

impl Clock for ServerClock {
    fn now(&self) -> Millis {
        pauses::at("before the clock");
        let time = read(CLOCK_REALTIME);
        Millis::new(time.seconds * 1000 + time.nanoseconds / 1_000_000)
    }

    fn both(&self) -> Reading {
        pauses::at("before both clocks");
        let mut before = steady_us();
        let mut tries = 0;
        loop {
            let reading = Reading { system_us: system_us(), steady_us: steady_us() };
            tries += 1;
            if reading.steady_us - before <= TOGETHER_US || tries == TRIES {
                return reading;
            }
            before = reading.steady_us;
        }
    }

    /// Waits on the latch, so that a cancel, a timeout or a terminate ends the wait at once: it comes
    /// back from here as PostgreSQL's error.
    fn wait(&self, ms: i64) {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: `MyLatch` is the session's own latch, set before any function runs; the binding turns
        // an error raised inside into an unwind.
        unsafe {
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                events.cast_signed(),
                ms.clamp(1, LONGEST_WAIT_MS),
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }

    fn notify(&self, event: Event) {
        log::clock_event(event);
    }
}

/// Waits for so many milliseconds of the steady clock. `pg_sleep` goes by the system clock before PostgreSQL 17, and sleeps
/// as much longer as that is set back.
pub(crate) fn wait_ms(ms: i64) {
    let until = steady_ms().saturating_add(ms);
    loop {
        let left = until - steady_ms();
        if left <= 0 {
            return;
        }
        ServerClock.wait(left);
    }
}

/// The steady clock, in milliseconds.
pub(crate) fn steady_ms() -> i64 {
    steady_us() / 1000
}

/// The number of PostgreSQL's timer for `statement_timeout`.
const STATEMENT_TIMEOUT: c_int = 3;

// SAFETY: declared as in utils/timeout.h; neither raises an error.
unsafe extern "C" {
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// Cancels the statement that runs after so many milliseconds, or when `statement_timeout` does if that is earlier; 0 is never.
/// Without a number, `statement_timeout` alone holds again. The server forgets this at the end of the statement.
pub(crate) fn limit_statement(ms: Option<i32>) {
    // SAFETY: reads a setting and times of this session, and sets a timer that the server has made.
    unsafe {
        let own = (pg_sys::StatementTimeout > 0).then(|| {
            let begun_us = pg_sys::GetCurrentStatementStartTimestamp();
            let past_ms = (pg_sys::GetCurrentTimestamp() - begun_us) / 1000;
            i32::try_from(i64::from(pg_sys::StatementTimeout) - past_ms).unwrap_or(i32::MAX).max(1)
        });
        disable_timeout(STATEMENT_TIMEOUT, false);
        if ms == Some(0) {
            return;
        }
        if let Some(ms) = ms.map(|ms| ms.max(1)).into_iter().chain(own).min() {
            enable_timeout_after(STATEMENT_TIMEOUT, ms);
        }
    }
}

/// The system clock, in microseconds since the Unix epoch.
fn system_us() -> i64 {
    read(CLOCK_REALTIME).us()
}

/// A clock that nobody sets, the same in all processes of the machine, in microseconds.
fn steady_us() -> i64 {
    read(CLOCK_MONOTONIC).us()
}

/// The only place that reads a clock.
fn read(clock: c_int) -> Timespec {
    let mut time = Timespec::default();
    // SAFETY: `time` is ours to be written.
    unsafe { clock_gettime(clock, &raw mut time) };
    time
}

impl Timespec {
    fn us(&self) -> i64 {
        self.seconds * 1_000_000 + self.nanoseconds / 1000
    }
}
