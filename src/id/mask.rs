//! Masked ids: texts that tell nothing about the id to who lacks the key.
//!
//! A key permutes the numbers of 64 bits. So each id has one masked id, and each text of the right form is the masked id of
//! one id.
//!
//! # References
//! NIST SP 800-38G, "Recommendation for Block Cipher Modes of Operation: Methods for Format-Preserving Encryption": FF1 with
//! AES-256, 64 binary numerals, and no tweak. RFC 4648, section 5, for the text.

use std::fmt;

use aes::Aes256;
use fpe::ff1::{BinaryNumeralString, FF1};

use super::Id;
use super::shortcode::{DIGITS, value};

/// A masked id. Its text is its 8 bytes in base64url: 11 digits.
///
/// # Examples
/// ```
/// use insta_ids::id::Id;
/// use insta_ids::id::mask::{Key, Masked};
///
/// let (key, id) = (Key::new(&[7; 32]).unwrap(), Id::from_bits(1_455_920_561_485_265_648));
/// let masked = key.mask(id).unwrap();
/// assert_eq!(masked.to_string(), "SyVfc5ji_vc");
/// assert_eq!(Masked::parse(b"SyVfc5ji_vc"), Ok(masked));
/// assert_eq!(key.unmask(masked), Ok(id));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked(u64);

impl Masked {
    /// How many digits of 6 bits 64 bits need.
    const LENGTH: usize = 11;

    /// How many bits the digits have beyond 64. They are the last ones, and 0.
    const SURPLUS: u32 = 2;

    /// Reads the text of a masked id, in any encoding that contains ASCII.
    ///
    /// # Errors
    /// [`MaskError`] (SQLSTATE 22P02).
    pub fn parse(text: &[u8]) -> Result<Self, MaskError> {
        if text.len() != Self::LENGTH {
            return Err(MaskError::Length(text.len()));
        }
        let mut digits = 0;
        for (at, &digit) in text.iter().enumerate() {
            digits = digits << 6 | u128::from(value(digit).ok_or(MaskError::NotADigit(at + 1))?);
        }
        if digits.trailing_zeros() < Self::SURPLUS {
            return Err(MaskError::Surplus);
        }
        // 11 digits have 66 bits.
        u64::try_from(digits >> Self::SURPLUS).map(Self).map_err(|_| MaskError::Surplus)
    }
}

impl fmt::Display for Masked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = u128::from(self.0) << Self::SURPLUS;
        for place in (0..Self::LENGTH).rev() {
            write!(f, "{}", char::from(DIGITS[(digits >> (6 * place) & 63) as usize]))?;
        }
        Ok(())
    }
}

/// Why a text is no masked id. Its text is a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskError {
    /// The text has this number of bytes.
    Length(usize),
    /// The character at this place, counted from 1, is no digit.
    NotADigit(usize),
    /// The last digit has bits beyond the 64.
    Surplus,
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => {
                write!(f, "Its length is {length}; that of masked ids is {}.", Masked::LENGTH)
            }
            Self::NotADigit(place) => write!(f, "Character {place} is not among A-Z, a-z, 0-9, - and _."),
            Self::Surplus => f.write_str("Its last character is not among AEIMQUYcgkosw048."),
        }
    }
}

/// The cipher refused a number of 64 bits, which it does not do. Its text is a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cipher refused an id")
    }
}

/// A key that masks ids.
pub struct Key(FF1<Aes256>);

/// A key has this number of bytes, which is not what AES-256 needs. Its text is a sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey(pub usize);

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Its length is {}; that of keys is {}.", self.0, Key::LENGTH)
    }
}

impl Key {
    const LENGTH: usize = 32;

    /// A key of 32 bytes. They should be random.
    ///
    /// # Errors
    /// [`NotAKey`] (SQLSTATE 22023).
    pub fn new(key: &[u8]) -> Result<Self, NotAKey> {
        // The library panics at another length, and returns an error for no radix of a power of two.
        if key.len() != Self::LENGTH {
            return Err(NotAKey(key.len()));
        }
        FF1::new(key, 2).map(Self).map_err(|_| NotAKey(key.len()))
    }

    /// The masked id of an id.
    ///
    /// # Errors
    /// [`Refused`] (SQLSTATE XX000).
    pub fn mask(&self, id: Id) -> Result<Masked, Refused> {
        let masked = self.0.encrypt(&[], &numerals(id.bits().cast_unsigned())).map_err(|_| Refused)?;
        Ok(Masked(number(&masked)))
    }

    /// The id of a masked id. With another key than it was masked with, it is another id.
    ///
    /// # Errors
    /// [`Refused`] (SQLSTATE XX000).
    pub fn unmask(&self, masked: Masked) -> Result<Id, Refused> {
        let id = self.0.decrypt(&[], &numerals(masked.0)).map_err(|_| Refused)?;
        Ok(Id::from_bits(number(&id).cast_signed()))
    }
}

/// The bits of a number, the most significant first. The library takes those of a byte the other way round.
fn numerals(number: u64) -> BinaryNumeralString {
    BinaryNumeralString::from_bytes_le(&number.reverse_bits().to_le_bytes())
}

/// The number with these bits.
fn number(numerals: &BinaryNumeralString) -> u64 {
    numerals.to_bytes_le().iter().fold(0, |number, byte| number << 8 | u64::from(byte.reverse_bits()))
}
