//! The server's clocks, and waiting for them. No other file reads a clock.

use std::ffi::{c_int, c_long};

use pgrx::pg_sys;

use super::{log, pauses};
use crate::id::Millis;
use crate::mint::{Clock, Event, Reading};

/// A wait returns to the mint loop after this time at the latest, in milliseconds. So the loop notices a clock that was set.
const LONGEST_WAIT_MS: i64 = 1000;

/// Two readings count as made together if they are at most so many microseconds apart. Only a process that is held up between
/// them takes longer.
const TOGETHER_US: i64 = 200;

/// How often both clocks are read at most. On a machine whose clocks are always slower, the last reading is used.
const TRIES: u32 = 10;

/// The numbers of the system clock and the steady clock in time.h.
const CLOCK_REALTIME: c_int = 0;
const CLOCK_MONOTONIC: c_int = if cfg!(target_os = "macos") { 6 } else { 1 };

/// `struct timespec` of time.h.
#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

// SAFETY: declared as in time.h. The standard library does not serve: its steady clock cannot be compared between
// processes, and its system clock takes longer.
unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
}

/// The clocks of this machine, for sessions of the server.
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

    /// Waits on the session's latch. So a cancelled statement, a timeout or a terminated session ends the wait at once, and
    /// this raises PostgreSQL's own error.
    fn wait(&self, ms: i64) {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: `MyLatch` is the session's own latch, which is set before any function runs. The binding turns an error
        // into an unwind.
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

/// Waits for `ms` milliseconds of the steady clock. `pg_sleep` goes by the system clock before PostgreSQL 17, so it sleeps too
/// long if that clock is set back.
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

/// The same, for remote.c.
#[unsafe(no_mangle)]
extern "C" fn insta_ids_steady_ms() -> i64 {
    steady_ms()
}

// SAFETY: declared as in process.c. It raises no error.
unsafe extern "C" {
    fn insta_ids_cancel_after(ms: c_int);
}

/// Makes the server cancel the running statement `ms` milliseconds from now, or when `statement_timeout` ends if that is
/// earlier. With 0 the statement is not cancelled. With `None` only `statement_timeout` holds again. The server forgets this
/// at the end of the statement.
pub(crate) fn limit_statement(ms: Option<i32>) {
    // SAFETY: reads a setting and times of this session, and sets a timer that the server has made.
    unsafe {
        let own = (pg_sys::StatementTimeout > 0).then(|| {
            let begun_us = pg_sys::GetCurrentStatementStartTimestamp();
            let past_ms = (pg_sys::GetCurrentTimestamp() - begun_us) / 1000;
            i32::try_from(i64::from(pg_sys::StatementTimeout) - past_ms).unwrap_or(i32::MAX).max(1)
        });
        let ms = match ms {
            Some(0) => None,
            ms => ms.map(|ms| ms.max(1)).into_iter().chain(own).min(),
        };
        insta_ids_cancel_after(ms.unwrap_or(-1));
    }
}

/// The system clock, in microseconds since the Unix epoch.
fn system_us() -> i64 {
    read(CLOCK_REALTIME).us()
}

/// The steady clock, in microseconds. It is the same in all processes of the machine, and cannot be set.
fn steady_us() -> i64 {
    read(CLOCK_MONOTONIC).us()
}

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
