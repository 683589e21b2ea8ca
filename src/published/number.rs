//! Numbers of which only a part is known: the clock, a sequence's value and arguments are left open.

/// A fraction in its lowest terms, whose denominator is positive. Neither has more than 120 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    over: i128,
    under: i128,
}

impl Fraction {
    pub(super) const ZERO: Self = Self::whole(0);
    pub(super) const ONE: Self = Self::whole(1);

    pub(super) const fn whole(number: i64) -> Self {
        Self { over: number as i128, under: 1 }
    }

    pub(super) fn new(over: i128, under: i128) -> Option<Self> {
        let (mut divisor, mut rest) = (over.checked_abs()?, under.checked_abs()?);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let divisor = if under < 0 { -divisor } else { divisor };
        let reduced = Self { over: over.checked_div(divisor)?, under: under.checked_div(divisor)? };
        (reduced.under > 0 && reduced.over.abs().max(reduced.under) < 1 << 120).then_some(reduced)
    }

    /// The number that is written, as `1000`, `.5` or `1e3`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse().ok()?),
            None => (text, 0_i32),
        };
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let exponent = exponent.checked_sub(i32::try_from(decimals.len()).ok()?)?;
        let number = format!("{whole}{decimals}").parse().ok()?;
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        if exponent < 0 { Self::new(number, power) } else { Self::new(number.checked_mul(power)?, 1) }
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let left = self.over.checked_mul(other.under)?;
        let right = other.over.checked_mul(self.under)?;
        Self::new(left.checked_add(right)?, self.under.checked_mul(other.under)?)
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        Self::new(self.over.checked_mul(other.over)?, self.under.checked_mul(other.under)?)
    }

    pub(super) fn divided_by(self, other: Self) -> Option<Self> {
        Self::new(self.over.checked_mul(other.under)?, self.under.checked_mul(other.over)?)
    }

    pub(super) fn to_whole(self) -> Option<i128> {
        (self.under == 1).then_some(self.over)
    }

    fn to_i64(self) -> Option<i64> {
        i64::try_from(self.to_whole()?).ok()
    }

    fn abs(self) -> Self {
        Self { over: self.over.abs(), ..self }
    }

    fn is_multiple_of(self, step: Self) -> bool {
        self.divided_by(step).is_some_and(|times| times.under == 1)
    }
}

/// The types of numbers, each before those that its numbers become beside theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Smallint,
    Integer,
    Bigint,
    Numeric,
    Double,
}

impl Kind {
    /// The greatest number of a type of whole ones.
    const fn greatest(self) -> Option<i64> {
        match self {
            Self::Smallint => Some(i16::MAX as i64),
            Self::Integer => Some(i32::MAX as i64),
            Self::Bigint => Some(i64::MAX),
            Self::Numeric | Self::Double => None,
        }
    }

    const fn is_whole(self) -> bool {
        self.greatest().is_some()
    }
}

/// The time: step × ⌊(rate × milliseconds + zero) ÷ step⌋, or without rounding where there is no step. That it may
/// be rounded otherwise than down makes no difference here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) rate: Fraction,
    pub(super) zero: Fraction,
    pub(super) step: Option<Fraction>,
}

impl Clock {
    fn times(self, factor: Fraction) -> Option<Self> {
        let step = match self.step {
            Some(step) => Some(step.times(factor.abs())?),
            None => None,
        };
        Some(Self { rate: self.rate.times(factor)?, zero: self.zero.times(factor)?, step })
    }

    fn rounded(self) -> Option<Self> {
        match self.step {
            Some(step) if step.under == 1 => Some(self),
            Some(step) if step.over != 1 => None,
            _ => Some(Self { step: Some(Fraction::ONE), ..self }),
        }
    }
}

/// The sequence's value: whole, or its remainder, times a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) modulus: Option<i64>,
    pub(super) factor: i64,
}

/// An argument times a factor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument {
    pub(super) number: usize,
    pub(super) factor: i64,
    /// The greatest that it can be without leaving the types that it goes through.
    pub(super) most: i64,
}

/// A sum of what is there, and a constant. Operations are `None` if what they give is no such sum, or leaves its
/// type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    pub(super) kind: Kind,
    pub(super) clock: Option<Clock>,
    pub(super) next: Option<Next>,
    pub(super) argument: Option<Argument>,
    pub(super) constant: Fraction,
}

impl Number {
    pub(super) const fn constant(constant: Fraction, kind: Kind) -> Self {
        Self { kind, clock: None, next: None, argument: None, constant }
    }

    /// The type of a number that is written is the first that has it.
    pub(super) fn literal(text: &[u8]) -> Option<Self> {
        let constant = Fraction::parse(text)?;
        let has = |kind: &Kind| {
            kind.greatest().is_none_or(|max| constant.over <= max.into())
                && text.iter().all(u8::is_ascii_digit)
        };
        let kind = [Kind::Integer, Kind::Bigint].into_iter().find(has).unwrap_or(Kind::Numeric);
        Some(Self::constant(constant, kind))
    }

    /// The clock in seconds.
    pub(super) const fn seconds(kind: Kind) -> Self {
        let rate = Fraction { over: 1, under: 1000 };
        let clock = Clock { rate, zero: Fraction::ZERO, step: None };
        Self { clock: Some(clock), ..Self::constant(Fraction::ZERO, kind) }
    }

    pub(super) const fn next() -> Self {
        let next = Next { modulus: None, factor: 1 };
        Self { next: Some(next), ..Self::constant(Fraction::ZERO, Kind::Bigint) }
    }

    pub(super) const fn argument(number: usize) -> Self {
        let argument = Argument { number, factor: 1, most: i64::MAX };
        Self { argument: Some(argument), ..Self::constant(Fraction::ZERO, Kind::Bigint) }
    }

    /// The number, if nothing is left open.
    pub(super) fn known(self) -> Option<Fraction> {
        (self.clock.is_none() && self.is_without_fields()).then_some(self.constant)
    }

    fn is_without_fields(self) -> bool {
        self.next.is_none() && self.argument.is_none()
    }

    /// Counts what a constant adds to the time as the time's own, if it does not fall between two of its steps, and
    /// looks whether the type has room.
    fn settled(mut self) -> Option<Self> {
        if let Some(clock) = &mut self.clock
            && clock.step.is_none_or(|step| self.constant.is_multiple_of(step))
        {
            clock.zero = clock.zero.plus(self.constant)?;
            self.constant = Fraction::ZERO;
        }
        let Some(max) = self.kind.greatest() else { return Some(self) };
        let next = self.next.map_or(0, |next| next.factor.saturating_mul(next.modulus.unwrap_or(1) - 1));
        if let Some(argument) = &mut self.argument {
            argument.most = argument.most.min(max.checked_div(argument.factor.checked_abs()?).unwrap_or(max));
        }
        let constant = self.constant.to_i64()?.checked_abs()?;
        let has_room = constant <= max
            && next.checked_abs()? <= max
            && (self.kind == Kind::Bigint || self.clock.is_none());
        has_room.then_some(self)
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let is_told_apart = only_one(self.clock.as_ref(), other.clock.as_ref())
            && only_one(self.next.as_ref(), other.next.as_ref())
            && only_one(self.argument.as_ref(), other.argument.as_ref());
        let sum = Self {
            kind: self.kind.max(other.kind),
            clock: self.clock.or(other.clock),
            next: self.next.or(other.next),
            argument: self.argument.or(other.argument),
            constant: self.constant.plus(other.constant)?,
        };
        is_told_apart.then_some(sum)?.settled()
    }

    pub(super) fn negated(self) -> Option<Self> {
        self.scaled(Fraction::whole(-1), self.kind)
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        self.plus(other.negated()?)
    }

    pub(super) fn times(self, other: Self) -> Option<Self> {
        let kind = self.kind.max(other.kind);
        match other.known() {
            Some(factor) => self.scaled(factor, kind),
            None => other.scaled(self.known()?, kind),
        }
    }

    fn scaled(self, factor: Fraction, kind: Kind) -> Option<Self> {
        if factor == Fraction::ZERO {
            return Some(Self::constant(Fraction::ZERO, kind)).filter(|_| self.known().is_some());
        }
        let mut scaled = Self { kind, constant: self.constant.times(factor)?, ..self };
        if let Some(clock) = &mut scaled.clock {
            *clock = clock.times(factor)?;
        }
        if let Some(next) = &mut scaled.next {
            next.factor = next.factor.checked_mul(factor.to_i64()?)?;
        }
        if let Some(argument) = &mut scaled.argument {
            argument.factor = argument.factor.checked_mul(factor.to_i64()?)?;
        }
        scaled.settled()
    }

    pub(super) fn divided_by(self, other: Self) -> Option<Self> {
        let kind = self.kind.max(other.kind);
        let divisor = other.known()?;
        if !self.is_without_fields() || (self.clock.is_some() && self.constant != Fraction::ZERO) {
            return None;
        }
        if !kind.is_whole() {
            return self.scaled(Fraction::ONE.divided_by(divisor)?, kind);
        }
        if self.clock.is_some() {
            let exact = self.scaled(Fraction::ONE.divided_by(divisor)?, Kind::Numeric)?;
            return exact.rounded()?.of(kind);
        }
        let quotient = self.constant.to_whole()?.checked_div(divisor.to_whole()?)?;
        Self::constant(Fraction::new(quotient, 1)?, kind).settled()
    }

    pub(super) fn modulo(self, other: Self) -> Option<Self> {
        let kind = self.kind.max(other.kind);
        let modulus = other.known()?.to_i64()?;
        if let Some(constant) = self.known() {
            let remainder = constant.to_whole()?.checked_rem(modulus.into())?;
            return Some(Self::constant(Fraction::new(remainder, 1)?, kind));
        }
        let next = Next { modulus: Some(modulus), factor: 1 };
        (self.is_bare_next() && modulus > 0).then_some(Self { kind, next: Some(next), ..self })
    }

    fn is_bare_next(self) -> bool {
        let is_bare = |next: Next| next.modulus.is_none() && next.factor == 1;
        self.next.is_some_and(is_bare)
            && self.clock.is_none()
            && self.argument.is_none()
            && self.constant == Fraction::ZERO
    }

    pub(super) fn is_bare_argument(self) -> bool {
        self.argument.is_some_and(|argument| argument.factor == 1)
            && self.clock.is_none()
            && self.next.is_none()
            && self.constant == Fraction::ZERO
    }

    /// Bitwise AND: of constants, or what takes a remainder.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let kind = self.whole_kind(other)?;
        if let (Some(left), Some(right)) = (self.known(), other.known()) {
            return Some(Self::constant(Fraction::new(left.to_whole()? & right.to_whole()?, 1)?, kind));
        }
        let (next, mask) = if self.known().is_some() { (other, self) } else { (self, other) };
        let modulus = mask.plus(Self::constant(Fraction::ONE, Kind::Bigint))?;
        let is_power = modulus.known()?.to_whole()?.cast_unsigned().is_power_of_two();
        next.modulo(modulus).filter(|_| is_power)
    }

    /// Bitwise OR: of constants, or of what has no bit in common, so that it is the sum. Of an argument, the time
    /// and the sequence that need not be looked at here: nothing but a factor for all of them is going to part
    /// them, so they have none in common if the result is an id.
    pub(super) fn or(self, other: Self) -> Option<Self> {
        let kind = self.whole_kind(other)?;
        let (left, right) = (self.constant.to_i64()?, other.constant.to_i64()?);
        if self.known().is_some() && other.known().is_some() {
            return Some(Self::constant(Fraction::whole(left | right), kind));
        }
        let constant = left.checked_add(right)?;
        let sum = self.plus(other)?;
        // Without a remainder it is never going to be an id.
        let of_next = sum.next.map_or(Some(0), |Next { modulus, factor }| {
            let residues = modulus.unwrap_or(1).cast_unsigned().checked_next_power_of_two()?;
            residues.cast_signed().checked_sub(1)?.checked_mul(factor)
        })?;
        let of_time = |clock: Clock| {
            clock.step.and_then(Fraction::to_whole).is_some_and(|step| i128::from(constant) < step)
        };
        let is_apart = left >= 0
            && right >= 0
            && left & right == 0
            && of_next & constant == 0
            && sum.argument.is_none()
            && sum.clock.is_none_or(of_time);
        (is_apart || (left == 0 && right == 0)).then_some(sum)
    }

    pub(super) fn shifted_left(self, bits: Self) -> Option<Self> {
        let bits = u32::try_from(bits.known()?.to_whole()?).ok().filter(|&bits| bits < 63)?;
        self.kind.is_whole().then(|| self.scaled(Fraction::whole(1 << bits), self.kind)).flatten()
    }

    pub(super) fn shifted_right(self, bits: Self) -> Option<Self> {
        let bits = u32::try_from(bits.known()?.to_whole()?).ok().filter(|&bits| bits < 63)?;
        let shifted = self.known()?.to_whole()?.checked_shr(bits)?;
        self.kind.is_whole().then_some(Self::constant(Fraction::new(shifted, 1)?, self.kind))
    }

    /// The type of what operators on bits make of two numbers.
    pub(super) fn whole_kind(self, other: Self) -> Option<Kind> {
        Some(self.kind.max(other.kind)).filter(|kind| kind.is_whole())
    }

    /// The whole number that it is rounded to: a constant must be one.
    pub(super) fn rounded(mut self) -> Option<Self> {
        let is_sum = !self.is_without_fields() || self.constant != Fraction::ZERO;
        if let Some(clock) = &mut self.clock {
            let step = clock.step.and_then(Fraction::to_whole);
            *clock = clock.rounded().filter(|_| step.is_some() || !is_sum)?;
        }
        self.constant.to_whole().map(|_| self)
    }

    /// As `floor` and its like return it: never in a type of whole numbers.
    pub(super) fn floored(self) -> Option<Self> {
        let kind = if self.kind.is_whole() { Kind::Double } else { self.kind };
        Some(Self { kind, ..self.rounded()? })
    }

    /// The number in another type.
    pub(super) fn of(self, kind: Kind) -> Option<Self> {
        let number = if kind.is_whole() { self.rounded()? } else { self };
        Self { kind, ..number }.settled()
    }

    /// Whether it has no decimals.
    pub(super) fn is_whole(self) -> bool {
        let is_stepped = |clock: Clock| clock.step.and_then(Fraction::to_whole).is_some();
        self.constant.under == 1 && self.clock.is_none_or(is_stepped)
    }
}

/// That only one of two numbers has something.
fn only_one<T>(left: Option<&T>, right: Option<&T>) -> bool {
    left.is_none() || right.is_none()
}
