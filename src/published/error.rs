//! Why a function is not taken for the published one.

use std::fmt;

use crate::id::Layout;

/// Why a function is not taken for the published one. As a text, a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It mints, but in this layout.
    Layout(Layout),
    /// So many bytes are not read.
    TooLong(usize),
    /// Its expressions are nested too deeply.
    TooDeep,
    /// From here on, the text is not what can be read.
    NotUnderstood(String),
    /// It ends too early.
    CutOff,
    /// It has a statement that is not for minting.
    MoreThanMinting(String),
    /// It computes what is no part of an id.
    Computes(String),
    /// It joins by `|` what can have bits in common.
    Overlaps(String),
    /// It calls a function that is not for minting.
    Calls(String),
    /// It reads what is neither a variable nor an argument.
    UnknownName(String),
    /// It reads a variable that is NULL.
    Unassigned(String),
    /// It assigns to what is no variable, or what that cannot take.
    Assigns(String),
    /// It returns nothing.
    NoResult,
    /// What it returns is no number.
    NotANumber,
    /// It does not call `nextval`.
    NoNextval,
    /// It calls `nextval` more than once.
    NextvalTwice,
    /// The sequence's name is computed.
    Sequence(String),
    /// What it returns has no time.
    NoTime,
    /// What it returns has nothing of the sequence.
    NoSeq,
    /// It takes the sequence's value as a whole.
    NoModulus,
    /// It takes this remainder of the sequence's value.
    Modulus(i64),
    /// It multiplies the time by what is no power of two.
    TimeFactor(i128),
    /// The time is counted in fractions of milliseconds, or in none.
    Unit,
    /// The epoch is no millisecond of those that there are.
    Epoch,
    /// The fields cover each other, or leave a gap.
    Fields {
        /// By how many bits the time is shifted.
        time: u32,
        /// By how many bits the sequence is shifted.
        seq: u32,
        /// How many values the sequence field has.
        residues: i128,
    },
    /// An argument is not where the shard is in an id.
    ShardFactor {
        /// What it is multiplied by.
        factor: i64,
        /// What it would have to be multiplied by.
        expected: i64,
    },
    /// A constant is not where the shard is in an id.
    Constant(i128),
    /// The type that the shard is computed in is too small for the last.
    Narrow(u32),
    /// The shard is none of the layout.
    Shard {
        /// The shard.
        shard: i128,
        /// The last that there is.
        last: u32,
    },
    /// Its other fields leave no bits for a shard.
    NoShardField,
    /// The layout has no sequence field.
    NoSeqField,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout(layout) => write!(f, "It mints in layout \"{layout}\"."),
            Self::TooLong(bytes) => write!(f, "It has {bytes} bytes, and no more than 65536 are read."),
            Self::TooDeep => f.write_str("Its expressions are nested too deeply."),
            Self::NotUnderstood(text) => write!(f, "It is not understood from here on: \"{text}\"."),
            Self::CutOff => f.write_str("It ends before it is complete."),
            Self::MoreThanMinting(statement) => write!(f, "It does more than mint: \"{statement}\"."),
            Self::Computes(expression) => {
                write!(f, "It computes what is no part of an id: \"{expression}\".")
            }
            Self::Overlaps(expression) => {
                write!(f, "It joins what can have bits in common: \"{expression}\".")
            }
            Self::Calls(function) => {
                write!(f, "It calls a function that no id is made with: \"{function}\".")
            }
            Self::UnknownName(name) => {
                write!(f, "It reads what is neither a variable nor an argument: \"{name}\".")
            }
            Self::Unassigned(name) => write!(f, "It reads a variable that is NULL: \"{name}\"."),
            Self::Assigns(assignment) => {
                write!(f, "It assigns to what is no variable, or no variable for that: \"{assignment}\".")
            }
            Self::NoResult => f.write_str("It does not assign its result."),
            Self::NotANumber => f.write_str("Its result is no number."),
            Self::NoNextval => f.write_str("It does not call nextval."),
            Self::NextvalTwice => f.write_str("It calls nextval twice."),
            Self::Sequence(name) => {
                write!(f, "It computes the name of the sequence, or the shard: \"{name}\".")
            }
            Self::NoTime => f.write_str("Its result has no time."),
            Self::NoSeq => f.write_str("Its result has nothing of the sequence."),
            Self::NoModulus => f.write_str("It takes the whole value of nextval, and no remainder of it."),
            Self::Modulus(modulus) => {
                write!(f, "It takes nextval modulo {modulus}, which is no power of two.")
            }
            Self::TimeFactor(factor) => {
                write!(f, "It multiplies the time by {factor}, and no shift by a number of bits does.")
            }
            Self::Unit => {
                f.write_str("It counts its time in a unit that is not 1 to 1000 whole milliseconds.")
            }
            Self::Epoch => f.write_str("Its epoch is no whole millisecond from 1970 on."),
            Self::Fields { time, seq, residues } => write!(
                f,
                "It shifts the time by {time} bits and the sequence by {seq}, and takes nextval modulo {residues}, \
                 as no layout does."
            ),
            Self::ShardFactor { factor, expected } => {
                write!(f, "It multiplies the shard by {factor}, where its other fields ask for {expected}.")
            }
            Self::Constant(constant) => {
                write!(f, "It adds {constant}, which is no shard where its other fields leave room for it.")
            }
            Self::Narrow(last) => {
                write!(f, "It computes with the shard in a type that is too small for shard {last}.")
            }
            Self::Shard { shard, last } => {
                write!(f, "Its shard is {shard}, and shards are numbered from 0 to {last}.")
            }
            Self::NoShardField => f.write_str("Its other fields leave no room for the shard."),
            Self::NoSeqField => f.write_str("The layout has no field for what nextval returns."),
        }
    }
}

impl std::error::Error for Unreadable {}
