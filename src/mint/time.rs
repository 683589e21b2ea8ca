//! The shared time: what ids are minted by. It never goes back, though the clock may.

use super::Clock;
use super::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::id::{Error, Millis, Times};

/// A time of the server, and the generation it belongs to: how often the server's time was set back by
/// hand since it started. Times of an earlier generation come before all of a later one. One word, so that
/// the two are read and written together.
///
/// ```text
/// bit  63             48                        0
///      |  generation   |  Unix milliseconds     |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Stamp {
    const AT_BITS: u32 = 48;
    const AT: u64 = (1 << Self::AT_BITS) - 1;

    /// How often the server's time can be reset: a slot of the guard has 12 bits for the generation, counted from 1.
    pub(super) const MAX_RESETS: u64 = (1 << 12) - 2;

    /// The millisecond.
    #[must_use]
    pub const fn at(self) -> Millis {
        Millis::new((self.0 & Self::AT).cast_signed())
    }

    /// The time `ms` later, of the same generation.
    #[must_use]
    pub fn plus(self, ms: i64) -> Self {
        self.with(self.at().plus(ms))
    }

    /// Another millisecond of the same generation: from the Unix epoch on, 48 bits of them.
    pub(super) fn with(self, at: Millis) -> Self {
        let at = at.get().clamp(0, Self::AT.cast_signed()).cast_unsigned();
        Self(self.0 & !Self::AT | at)
    }

    pub(super) const fn generation(self) -> u64 {
        self.0 >> Self::AT_BITS
    }

    /// The millisecond `at` of the next generation; `None` after [`Stamp::MAX_RESETS`].
    fn next(self, at: Millis) -> Option<Self> {
        let generation = self.generation() + 1;
        (generation <= Self::MAX_RESETS).then(|| Self(generation << Self::AT_BITS).with(at))
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The system clock, and a steady one that nobody sets and that starts anywhere, read at the same moment.
/// In microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The system clock, since the Unix epoch.
    pub system_us: i64,
    /// The steady clock.
    pub steady_us: i64,
}

impl Reading {
    pub(super) const fn system(self) -> Millis {
        Millis::new(self.system_us.div_euclid(1000))
    }

    const fn offset_us(self) -> i64 {
        self.system_us - self.steady_us
    }
}

/// A step back is told from how two clocks are read, from this many microseconds on: more than lie between
/// two readings, and less than a millisecond.
const LEAST_STEP_US: i64 = 500;

/// The server's time for ids: the greatest reading of the clock, or what it was raised to. All zeroes is a
/// valid start.
///
/// While the clock is behind it, it goes on by the steady clock, and only as far as ids need it to: at
/// most as fast as time runs.
#[repr(C)]
#[derive(Default)]
pub struct SharedTime {
    now: AtomicU64,
    /// What the time is ahead of the steady clock: system clock - steady clock, when the system clock was last
    /// not behind, or as much as the time was raised to.
    pace_us: AtomicI64,
    /// System clock - steady clock, when they were last compared; 0 before.
    offset_us: AtomicI64,
}

/// The server's time, as a session finds it.
pub(super) struct Now {
    pub(super) stamp: Stamp,
    /// The clock, when it is behind the server's time.
    pub(super) behind: Option<Reading>,
    /// By how much the clock was found to have been set back, in microseconds.
    pub(super) stepped_back_us: Option<i64>,
}

impl SharedTime {
    /// Reads the clock and takes it into account.
    ///
    /// # Errors
    /// [`Error::TimeOutOfRange`] for a clock past the last of these times, which is not taken into account: the
    /// server's time comes back from there by hand only.
    pub(super) fn now(&self, clock: &impl Clock, times: Times) -> Result<Now, Error> {
        // Before the clock: what is ahead of a reading made after it is ahead of the clock.
        let stamp = self.stamp();
        let reading = clock.now();
        if reading == stamp.at() {
            // Nearly always at full speed: what follows is done once a millisecond, not once an id.
            return Ok(Now { stamp, behind: None, stepped_back_us: None });
        }
        if reading > times.last {
            return Err(Error::TimeOutOfRange { at: reading, times });
        }
        let offset = self.offset_us.load(Ordering::Relaxed);
        let pace = self.pace_us.load(Ordering::Relaxed);
        let both = clock.both();
        let stepped_back_us = self.observe(offset, both);
        if both.system() < stamp.at() {
            return Ok(Now { stamp, behind: Some(both), stepped_back_us });
        }
        let to = stamp.with(both.system().min(times.last));
        let before = Stamp::from_bits(self.now.fetch_max(to.bits(), Ordering::Relaxed));
        if before < to {
            // Unless someone has set it meanwhile: a session that was held up here must not.
            let _ =
                self.pace_us.compare_exchange(pace, both.offset_us(), Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(Now { stamp: before.max(to), behind: None, stepped_back_us })
    }

    /// Raises the server's time to one that was used already, or that its operator asks for.
    pub(super) fn raise_to(&self, at: Millis, clock: &impl Clock) {
        let to = self.stamp().with(at);
        if self.now.fetch_max(to.bits(), Ordering::Relaxed) < to.bits() {
            // Whatever readings of the clock set meanwhile: the time goes on from here.
            self.pace_us.fetch_max(at.get() * 1000 - clock.both().steady_us, Ordering::Relaxed);
        }
    }

    /// Lets the server's time go on to `at`, if the steady clock has come there. Returns where that is.
    pub(super) fn go_on(&self, now: Stamp, at: Millis, clock: Reading) -> Millis {
        let come = Millis::new((clock.steady_us + self.pace_us.load(Ordering::Relaxed)).div_euclid(1000));
        if come >= at {
            self.now.fetch_max(now.with(at).bits(), Ordering::Relaxed);
        }
        come
    }

    /// Sets the server's time back to the clock, in a new generation. `None` when there is none left.
    pub(super) fn reset(&self, clock: Reading) -> Option<Stamp> {
        let stamp = self.stamp().next(clock.system())?;
        self.now.fetch_max(stamp.bits(), Ordering::Relaxed);
        self.pace_us.store(clock.offset_us(), Ordering::Relaxed);
        Some(stamp)
    }

    /// The server's time as it stands, without a look at the clock.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp::from_bits(self.now.load(Ordering::Relaxed))
    }

    /// Compares the two clocks with how they stood when they were `known` apart.
    fn observe(&self, known: i64, clock: Reading) -> Option<i64> {
        let offset = clock.offset_us();
        if offset == known {
            return None;
        }
        // Of all who see the same step, one wins, and reports it.
        let first =
            self.offset_us.compare_exchange(known, offset, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        (first && known != 0 && known - offset >= LEAST_STEP_US).then_some(known - offset)
    }
}
