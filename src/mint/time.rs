//! The server's time for ids, shared by its sessions. It never goes back, though the clock may.

use super::atomic::{AtomicI64, AtomicU64, Ordering};
use super::{Clock, Reading};
use crate::id::{Error, Millis, Times};

/// A time of the server with its generation: how often an operator has reset the server's time since the server started. All
/// times of a generation come before all times of the next one. Both are in one word, so that they are read and written
/// together.
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

    /// How often the server's time can be reset. A slot of the guard has 12 bits for the generation plus 1.
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

    /// Another millisecond of the same generation. A time that 48 bits cannot hold becomes the nearest one that they can.
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

/// If the system clock has lost at least so many microseconds against the steady clock, it was set back. This is longer than
/// the time between two readings, and shorter than a millisecond.
const LEAST_STEP_US: i64 = 500;

/// The server's time for ids: the greatest reading of the clock, or the time that it was raised to. All zeroes is a valid
/// start.
///
/// While the clock is behind it, it goes on by the steady clock, as far as ids need. So it is never faster than real time.
#[repr(C)]
#[derive(Default)]
pub struct SharedTime {
    now: AtomicU64,
    /// The time minus the steady clock, when the time last followed the system clock or was raised.
    pace_us: AtomicI64,
    /// The system clock minus the steady clock, when they were last compared; 0 before.
    offset_us: AtomicI64,
}

/// The server's time, as a session finds it.
pub(super) struct Now {
    pub(super) stamp: Stamp,
    /// The clocks, if the system clock is behind the server's time.
    pub(super) behind: Option<Reading>,
    /// How far the clock was set back, in microseconds, if this session is the first to see it.
    pub(super) stepped_back_us: Option<i64>,
}

impl SharedTime {
    /// Reads the clock, raises the server's time to it, and returns that time.
    ///
    /// # Errors
    /// [`Error::TimeOutOfRange`] for a clock past the last of `times`. The server's time is not raised then, because only an
    /// operator could set it back.
    pub(super) fn now(&self, clock: &impl Clock, times: Times) -> Result<Now, Error> {
        // The time is read before the clock. So if the time is ahead of the reading, it is ahead of the clock.
        let stamp = self.stamp();
        let reading = clock.now();
        if reading == stamp.at() {
            // At full speed nearly all calls end here. What follows is done once per millisecond, not once per id.
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
            // This fails if another session has set the pace meanwhile. A session that was held up here must not undo that.
            let _ =
                self.pace_us.compare_exchange(pace, both.offset_us(), Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(Now { stamp: before.max(to), behind: None, stepped_back_us })
    }

    /// Raises the server's time to `at`, which ids have used or an operator asks for. It goes on from there by the steady
    /// clock.
    pub(super) fn raise_to(&self, at: Millis, clock: &impl Clock) {
        let to = self.stamp().with(at);
        if self.now.fetch_max(to.bits(), Ordering::Relaxed) < to.bits() {
            // The greatest pace wins, because readings of the clock may have set an earlier one meanwhile.
            self.pace_us.fetch_max(at.get() * 1000 - clock.both().steady_us, Ordering::Relaxed);
        }
    }

    /// The time by the steady clock. If that has reached `at`, the server's time is raised to `at`.
    pub(super) fn go_on(&self, now: Stamp, at: Millis, clock: Reading) -> Millis {
        let reached = Millis::new((clock.steady_us + self.pace_us.load(Ordering::Relaxed)).div_euclid(1000));
        if reached >= at {
            self.now.fetch_max(now.with(at).bits(), Ordering::Relaxed);
        }
        reached
    }

    /// Sets the server's time back to the clock, in a new generation. Returns `None` if no generation is left.
    pub(super) fn reset(&self, clock: Reading) -> Option<Stamp> {
        let stamp = self.stamp().next(clock.system())?;
        self.now.fetch_max(stamp.bits(), Ordering::Relaxed);
        self.pace_us.store(clock.offset_us(), Ordering::Relaxed);
        Some(stamp)
    }

    /// The server's time, without a look at the clock.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp::from_bits(self.now.load(Ordering::Relaxed))
    }

    /// Compares the clocks with their last comparison, when their difference was `known`. Returns how far the system clock
    /// was set back since, in microseconds, to the first session that sees it.
    fn observe(&self, known: i64, clock: Reading) -> Option<i64> {
        let offset = clock.offset_us();
        if offset == known {
            return None;
        }
        // Of all sessions that see the same step, one succeeds here, and reports it.
        let first =
            self.offset_us.compare_exchange(known, offset, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        (first && known != 0 && known - offset >= LEAST_STEP_US).then_some(known - offset)
    }
}
