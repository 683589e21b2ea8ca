//! Short codes: ids as they stand in Instagram's URLs, in base 64 with the digits of base64url.
//!
//! A code is not a secret: it is the id, in another notation.

use std::fmt;

use super::Id;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The digits of the greatest id.
const LONGEST: usize = 11;

/// What stands behind the code of a private post, and says nothing of its id.
const PRIVATE: usize = 28;

/// Why a text is no short code. As a text, a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortcodeError {
    /// No characters, more than an id has, or a number of them that no private post's code has.
    Length(usize),
    /// A character that is no digit.
    NotADigit(char),
    /// A code of an id beyond 2^63 - 1.
    TooLarge,
}

impl fmt::Display for ShortcodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => {
                write!(
                    f,
                    "It has {length} characters; short codes have 1 to {LONGEST}, or {PRIVATE} more for private posts."
                )
            }
            Self::NotADigit(other) => write!(f, "\"{other}\" is not among A-Z, a-z, 0-9, - and _."),
            Self::TooLarge => f.write_str("It stands for more than 9223372036854775807."),
        }
    }
}

impl std::error::Error for ShortcodeError {}

/// The short code of an id: 1 to 11 characters, no leading `A` but for id 0. `None` for a negative id.
///
/// # Examples
/// ```
/// use insta_ids::id::{Id, shortcode};
///
/// let id = Id::from_bits(1_455_920_561_485_265_648);
/// assert_eq!(shortcode::encode(id).as_deref(), Some("BQ0eAlwhDrw"));
/// assert_eq!(shortcode::decode("BQ0eAlwhDrw"), Ok(id));
/// assert!(shortcode::decode("BQ0eAlwh?").is_err());
/// ```
#[must_use]
pub fn encode(id: Id) -> Option<String> {
    let bits = u64::try_from(id.bits()).ok()?;
    let digits = bits.checked_ilog2().unwrap_or(0) / 6 + 1;
    Some((0..digits).rev().map(|place| char::from(DIGITS[(bits >> (6 * place) & 63) as usize])).collect())
}

/// The id of a short code. Leading `A`s are zeroes.
///
/// # Errors
/// [`ShortcodeError`] (SQLSTATE 22P02).
pub fn decode(code: &str) -> Result<Id, ShortcodeError> {
    if let Some(other) = code.chars().find(|&c| value(c).is_none()) {
        return Err(ShortcodeError::NotADigit(other));
    }
    let own = if code.len() > PRIVATE { code.len() - PRIVATE } else { code.len() };
    if !(1..=LONGEST).contains(&own) {
        return Err(ShortcodeError::Length(code.len()));
    }
    let bits = code[..own].chars().filter_map(value).fold(0, |bits, digit| bits << 6 | i128::from(digit));
    i64::try_from(bits).map(Id::from_bits).map_err(|_| ShortcodeError::TooLarge)
}

fn value(digit: char) -> Option<u8> {
    Some(match u8::try_from(digit).ok()? {
        upper @ b'A'..=b'Z' => upper - b'A',
        lower @ b'a'..=b'z' => lower - b'a' + 26,
        number @ b'0'..=b'9' => number - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}
