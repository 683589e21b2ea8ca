//! Short codes: ids as Instagram's URLs show them, in base 64 with the digits of base64url.
//!
//! A code is no secret. It is the id in another notation.

use std::fmt;

use super::Id;

/// The digits of base64url, by value.
pub(super) const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// How many digits 64 bits need.
const LONGEST: usize = 11;

/// How many characters follow the code of a private post. They do not belong to the id.
const PRIVATE: usize = 28;

/// Why a text is no short code. Its text is a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortcodeError {
    /// Codes do not have this number of characters.
    Length(usize),
    /// The character at this place, counted from 1, is no digit.
    NotADigit(usize),
    /// The digits have more than 64 bits.
    TooLarge,
}

impl fmt::Display for ShortcodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(
                f,
                "It has {length} characters; short codes have 1 to {LONGEST}, or {PRIVATE} more for private posts."
            ),
            Self::NotADigit(place) => write!(f, "Character {place} is not among A-Z, a-z, 0-9, - and _."),
            Self::TooLarge => f.write_str("It has more than 64 bits."),
        }
    }
}

/// The short code of an id: 1 to 11 characters. Only the code of id 0 begins with an `A`. A negative id is read as an unsigned
/// number of 64 bits.
///
/// # Examples
/// ```
/// use insta_ids::id::{Id, shortcode};
///
/// let id = Id::from_bits(1_455_920_561_485_265_648);
/// assert_eq!(shortcode::encode(id), "BQ0eAlwhDrw");
/// assert_eq!(shortcode::decode(b"BQ0eAlwhDrw"), Ok(id));
/// assert!(shortcode::decode(b"BQ0eAlwh?").is_err());
/// ```
#[must_use]
pub fn encode(id: Id) -> String {
    let bits = id.bits().cast_unsigned();
    let digits = bits.checked_ilog2().unwrap_or(0) / 6 + 1;
    (0..digits).rev().map(|place| char::from(DIGITS[(bits >> (6 * place) & 63) as usize])).collect()
}

/// The id of a short code, given in any encoding that contains ASCII. An `A` is the digit 0, so leading `A`s have no effect.
///
/// # Errors
/// [`ShortcodeError`] (SQLSTATE 22P02).
pub fn decode(code: &[u8]) -> Result<Id, ShortcodeError> {
    let own = if code.len() > PRIVATE { code.len() - PRIVATE } else { code.len() };
    if let Some(at) = code.iter().position(|&byte| value(byte).is_none()) {
        return Err(ShortcodeError::NotADigit(at + 1));
    }
    if !(1..=LONGEST).contains(&own) {
        return Err(ShortcodeError::Length(code.len()));
    }
    let bits = code[..own]
        .iter()
        .filter_map(|&byte| value(byte))
        .fold(0, |bits, digit| bits << 6 | u128::from(digit));
    let bits = u64::try_from(bits).map_err(|_| ShortcodeError::TooLarge)?;
    Ok(Id::from_bits(bits.cast_signed()))
}

/// The value of a digit of base64url.
pub(super) fn value(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}
