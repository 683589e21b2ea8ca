//! Layouts as text: `time:41 shard:13 seq:10 epoch:1314220021721`, or the name of a preset.

use std::fmt;

use super::instant::{self, decimal};
use super::layout::{Fields, InvalidLayout};
use super::{Layout, Millis};

/// Why a text is no layout. Its text is a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// A word is no field.
    NotAField(String),
    /// A field occurs twice.
    Twice(&'static str),
    /// A required field is missing.
    Missing(&'static str),
    /// The shard or the sequence field comes before the time.
    TimeNotFirst,
    /// A field has an invalid value.
    Value {
        /// The field.
        field: &'static str,
        /// What its value can be.
        wants: &'static str,
    },
    /// The fields define no layout.
    Invalid(InvalidLayout),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAField(word) => write!(f, "\"{word}\" is neither a field nor the name of a layout."),
            Self::Twice(field) => write!(f, "\"{field}\" is there twice."),
            Self::Missing(field) => write!(f, "\"{field}\" is missing."),
            Self::TimeNotFirst => f.write_str(
                "\"time\" is the most significant field, so it comes before \"shard\" and \"seq\".",
            ),
            Self::Value { field, wants } => write!(f, "\"{field}\" needs {wants}."),
            Self::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

const EPOCH_WANTS: &str = "Unix milliseconds, or an instant like 2011-08-24T21:07:01.721Z";

impl Layout {
    /// Reads a layout: the name of a preset, or its fields, separated by spaces, from the most significant on. `epoch` and, if
    /// it is not 1 ms, `unit` can be anywhere among the fields. The epoch must not be after `now`.
    ///
    /// # Errors
    /// [`TextError`] (SQLSTATE 22P02).
    ///
    /// # Examples
    /// ```
    /// use insta_ids::id::{Layout, Millis};
    ///
    /// let parse = |text: &str| Layout::parse(text.as_bytes(), Millis::new(1_800_000_000_000));
    /// let layout = parse("time:39 seq:8 shard:16 epoch:2014-09-01 unit:10ms")?;
    /// assert_eq!(layout, parse("sonyflake")?);
    /// assert_eq!(layout.to_string(), "time:39 seq:8 shard:16 epoch:1409529600000 unit:10ms");
    /// assert!(parse("time:41 shard:13 seq:12 epoch:0").is_err()); // 66 bits
    /// # Ok::<(), insta_ids::id::TextError>(())
    /// ```
    pub fn parse(text: &[u8], now: Millis) -> Result<Self, TextError> {
        let text = text.trim_ascii();
        // In a database whose encoding is not UTF-8 the text may be no `str`. Then it is no layout either.
        let text = std::str::from_utf8(text).map_err(|_| TextError::NotAField(readable(text)))?;
        if let Some((_, layout)) = Self::PRESETS.iter().find(|(name, _)| *name == text) {
            return Ok(*layout);
        }
        let [mut time, mut shard, mut seq, mut epoch, mut unit] = [None; 5];
        let mut seq_above_shard = false;
        for word in text.split_ascii_whitespace() {
            let unknown = || TextError::NotAField(readable(word.as_bytes()));
            let (name, value) = word.split_once(':').ok_or_else(unknown)?;
            match name {
                "time" => set(&mut time, "time", bits("time", value)?)?,
                "shard" => set(&mut shard, "shard", bits("shard", value)?)?,
                "seq" => {
                    set(&mut seq, "seq", bits("seq", value)?)?;
                    seq_above_shard = shard.is_none();
                }
                "epoch" => set(&mut epoch, "epoch", millis(value)?)?,
                "unit" => set(&mut unit, "unit", unit_ms(value)?)?,
                _ => return Err(unknown()),
            }
            if time.is_none() && (shard.is_some() || seq.is_some()) {
                return Err(TextError::TimeNotFirst);
            }
        }
        let number = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
        Self::new(Fields {
            time_bits: number(time.ok_or(TextError::Missing("time"))?),
            epoch: Millis::new(epoch.ok_or(TextError::Missing("epoch"))?),
            unit_ms: number(unit.unwrap_or(1)),
            shard_bits: number(shard.unwrap_or(0)),
            seq_bits: number(seq.unwrap_or(0)),
            seq_above_shard,
        })
        .and_then(|layout| layout.begun(now))
        .map_err(TextError::Invalid)
    }
}

impl fmt::Display for Layout {
    /// Writes the fields, even if the layout has a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = self.fields();
        write!(f, "time:{time_bits}")?;
        let mut below = [("shard", shard_bits), ("seq", seq_bits)];
        if seq_above_shard {
            below.reverse();
        }
        for (name, bits) in below {
            if bits > 0 {
                write!(f, " {name}:{bits}")?;
            }
        }
        write!(f, " epoch:{}", epoch.get())?;
        if unit_ms != 1 {
            write!(f, " unit:{unit_ms}ms")?;
        }
        Ok(())
    }
}

fn set(field: &mut Option<i64>, name: &'static str, value: i64) -> Result<(), TextError> {
    if field.replace(value).is_some() { Err(TextError::Twice(name)) } else { Ok(()) }
}

fn bits(field: &'static str, value: &str) -> Result<i64, TextError> {
    match decimal(value) {
        Some(bits) if bits > 0 => Ok(bits),
        _ => Err(TextError::Value { field, wants: "a number of bits, 1 or more" }),
    }
}

fn millis(value: &str) -> Result<i64, TextError> {
    decimal(value)
        .or_else(|| instant::parse(value).map(Millis::get))
        .ok_or(TextError::Value { field: "epoch", wants: EPOCH_WANTS })
}

fn unit_ms(value: &str) -> Result<i64, TextError> {
    let ms = match value.strip_suffix("ms") {
        Some(ms) => decimal(ms),
        None => value.strip_suffix('s').and_then(decimal).map(|seconds| seconds.saturating_mul(1000)),
    };
    ms.ok_or(TextError::Value { field: "unit", wants: "milliseconds or seconds, like 10ms or 1s" })
}

/// A user's text, in any encoding, as an error message shows it. A text that is not UTF-8 is escaped. Of a longer text only
/// the first bytes are shown, escaped, so that no character is cut in two.
#[must_use]
pub fn readable(text: &[u8]) -> String {
    const LONGEST: usize = 60;
    if text.len() > LONGEST {
        return format!("{}...", text[..LONGEST].escape_ascii());
    }
    std::str::from_utf8(text).map_or_else(|_| text.escape_ascii().to_string(), str::to_owned)
}
