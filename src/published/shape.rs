//! What a function returns, and whether it is an id.

use super::number::{Argument, Clock, Fraction, Kind, Next, Number};
use super::{Minting, Operand, Unreadable};
use crate::id::{Fields, Layout, Millis};

/// What a function returns: a number, and the sequence that it has taken a value of; or what `next_id` returns.
#[derive(Debug)]
pub(super) enum Shape {
    Computed { id: Number, sequence: Option<Operand<Vec<u8>>> },
    Native { shard: Operand<i128>, sequence: Operand<Vec<u8>>, layout: Layout },
}

impl Shape {
    /// What it is minted from, if it is an id of the layout.
    pub(super) fn minting(self, layout: Layout) -> Result<Minting, Unreadable> {
        let (made, shard, sequence, native) = match self {
            Self::Native { shard, sequence, layout } => (layout, shard, sequence, true),
            Self::Computed { id, sequence } => {
                let sequence = sequence.ok_or(Unreadable::NoNextval)?;
                if layout.fields().seq_bits == 0 {
                    return Err(Unreadable::NoSeqField);
                }
                let (made, shard) = taken_apart(id)?;
                (made, shard, sequence, false)
            }
        };
        let shard = match shard {
            Operand::Argument(number) => Operand::Argument(number),
            Operand::Constant(shard) => {
                let none = Unreadable::Shard { shard, last: made.last_shard() };
                let number = i32::try_from(shard).map_err(|_| none.clone())?;
                made.shard(number).map_err(|_| none)?;
                Operand::Constant(number)
            }
        };
        let of_any_time = |layout: Layout| Fields { time_bits: 0, ..layout.fields() };
        let is_same = if native { made == layout } else { of_any_time(made) == of_any_time(layout) };
        if is_same { Ok(Minting { shard, sequence, native }) } else { Err(Unreadable::Layout(made)) }
    }
}

/// The layout that a number is an id of, and the shard in it.
fn taken_apart(id: Number) -> Result<(Layout, Operand<i128>), Unreadable> {
    let id = id.of(Kind::Bigint).ok_or(Unreadable::NotANumber)?;
    let next = id.next.ok_or(Unreadable::NoSeq)?;
    let (time_shift, unit_ms, epoch) = time(id.clock.ok_or(Unreadable::NoTime)?)?;
    let (seq_shift, seq_bits) = seq(next)?;
    let fields = Unreadable::Fields { time: time_shift, seq: seq_shift, residues: 1 << seq_bits };
    let shard_bits = time_shift.checked_sub(seq_bits).ok_or_else(|| fields.clone())?;
    let seq_above_shard = seq_shift > 0;
    if seq_above_shard && seq_shift != shard_bits || seq_bits == 0 {
        return Err(fields);
    }
    let time_bits = 41.min(64 - time_shift);
    let made = Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard };
    let made = Layout::new(made).map_err(|_| fields)?;

    let shard_shift = if seq_above_shard { 0 } else { seq_bits };
    let constant = id.constant.to_whole().unwrap_or(0);
    let shard = match id.argument {
        None if constant & ((1 << shard_shift) - 1) == 0 => Operand::Constant(constant >> shard_shift),
        Some(argument) if constant == 0 => shard_argument(argument, shard_shift, made)?,
        _ => return Err(Unreadable::Constant(constant)),
    };
    Ok((made, shard))
}

/// By how many bits the time is shifted, its unit and its epoch.
fn time(clock: Clock) -> Result<(u32, u32, Millis), Unreadable> {
    let Clock { rate, zero, step } = clock;
    let step = step.ok_or(Unreadable::Unit)?;
    let factor = step.to_whole().ok_or(Unreadable::Unit)?;
    let unit = step.divided_by(rate).and_then(Fraction::to_whole).ok_or(Unreadable::Unit)?;
    let unit = u32::try_from(unit).ok().filter(|unit| (1..=1000).contains(unit)).ok_or(Unreadable::Unit)?;
    let shift = power_of_two(factor).filter(|&bits| bits < 64).ok_or(Unreadable::TimeFactor(factor))?;
    let epoch = zero.divided_by(rate).and_then(Fraction::to_whole).and_then(i128::checked_neg);
    let epoch = epoch.and_then(|epoch| i64::try_from(epoch).ok()).map(Millis::new);
    let epoch = epoch.filter(|epoch| (Millis::new(0)..=Millis::LAST).contains(epoch));
    Ok((shift, unit, epoch.ok_or(Unreadable::Epoch)?))
}

/// By how many bits the sequence is shifted, and how many it has.
fn seq(next: Next) -> Result<(u32, u32), Unreadable> {
    let modulus = next.modulus.ok_or(Unreadable::NoModulus)?;
    let bits = power_of_two(modulus.into()).filter(|&bits| bits < 64).ok_or(Unreadable::Modulus(modulus))?;
    let shift = power_of_two(next.factor.into()).filter(|&bits| bits < 64);
    Ok((shift.ok_or(Unreadable::NoSeq)?, bits))
}

fn shard_argument(argument: Argument, shift: u32, made: Layout) -> Result<Operand<i128>, Unreadable> {
    let Argument { number, factor, most } = argument;
    if made.last_shard() == 0 {
        Err(Unreadable::NoShardField)
    } else if factor != 1 << shift {
        Err(Unreadable::ShardFactor { factor, expected: 1 << shift })
    } else if most < i64::from(made.last_shard()) {
        Err(Unreadable::Narrow(made.last_shard()))
    } else {
        Ok(Operand::Argument(number))
    }
}

fn power_of_two(number: i128) -> Option<u32> {
    (number > 0 && number.cast_unsigned().is_power_of_two()).then(|| number.trailing_zeros())
}
