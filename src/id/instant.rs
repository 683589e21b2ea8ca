//! Instants as text, in the form of ISO 8601 that ends in `Z`. The calendar is the Gregorian one, also before 1582. Years
//! before 1 are written as 0, -1 and so on.
//!
//! # References
//! Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil` and `civil_from_days`.

use super::Millis;

const DAY_MS: i64 = 86_400_000;

/// Days from 0000-03-01, where the count of years and their leap days begins, to 1970-01-01.
const TO_1970: i64 = 719_468;

/// Days of 400 years, after which the calendar repeats.
const CYCLE: i64 = 146_097;

/// The instant as `2013-06-20T17:15:45.376Z`.
#[must_use]
pub fn format(at: Millis) -> String {
    let (days, ms) = (at.get().div_euclid(DAY_MS), at.get().rem_euclid(DAY_MS));
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Reads an instant like `2013-06-20T17:15:45.376Z`, also with fewer digits after the point, without them, or without
/// seconds. A date alone, like `2013-06-20`, means its beginning. Returns `None` for other text, and for a date or time that
/// does not exist.
#[must_use]
pub fn parse(text: &str) -> Option<Millis> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, ms_of(time.strip_suffix('Z')?)?),
        None => (text, 0),
    };
    let mut parts = date.splitn(3, '-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let days = days_of(year, month, day);
    // A date that does not exist, such as February 30, would come back as another one.
    (date_of(days) == (year, month, day)).then(|| Millis::new(days * DAY_MS + time))
}

fn ms_of(time: &str) -> Option<i64> {
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let second = match parts.next() {
        Some(second) => number(second, 2)?,
        None if fraction == "0" => 0,
        None => return None,
    };
    let ms = match fraction.len() {
        1..=3 => number(fraction, fraction.len())? * [100, 10, 1][fraction.len() - 1],
        _ => return None,
    };
    (hour < 24 && minute < 60 && second < 60).then_some(((hour * 60 + minute) * 60 + second) * 1000 + ms)
}

/// The number in a text of exactly so many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    if text.len() == digits { decimal(text) } else { None }
}

/// The number in a text of digits. Returns `None` if the text has a sign, a space or anything else.
pub(super) fn decimal(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Here years begin in March, so that a leap day is the last day of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let (cycle, year) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    cycle * CYCLE + year * 365 + year / 4 - year / 100 + of_year - TO_1970
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + TO_1970;
    let (cycle, days) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    let year = (days - days / 1460 + days / 36_524 - days / (CYCLE - 1)) / 365;
    let of_year = days - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = cycle * 400 + year + i64::from(month <= 2);
    (year, month, day)
}
