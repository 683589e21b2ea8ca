//! The call of `next_id` that a managed function or default consists of, as the server prints it.

use super::tokens::{Token, tokens};
use crate::id::{Layout, Millis};

/// What `next_id` is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The shard.
    pub shard: Operand<i32>,
    /// The sequence: a text that names one.
    pub sequence: Operand<Vec<u8>>,
}

/// Where a call has a value from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand<T> {
    /// It is written there.
    Constant(T),
    /// It is this one of the function's input arguments, the first of which is 1.
    Argument(usize),
}

/// The call of `next_id` that a text consists of, besides a RETURN; `None` if it is anything else, or in another layout.
/// Which `next_id` it is, the catalog says.
///
/// # Examples
/// ```
/// use insta_ids::id::Layout;
/// use insta_ids::published::{Operand, read_call};
///
/// let text = b"RETURN ids.next_id(5, (seq_name)::regclass)";
/// let call = read_call(text, &[b"seq_name".to_vec()], Layout::INSTAGRAM).unwrap();
/// assert_eq!((call.shard, call.sequence), (Operand::Constant(5), Operand::Argument(1)));
/// assert_eq!(read_call(b"1 + next_id(5, 's')", &[], Layout::INSTAGRAM), None);
/// ```
#[must_use]
pub fn read_call(text: &[u8], arguments: &[Vec<u8>], layout: Layout) -> Option<Call> {
    let tokens = tokens(text)?;
    let mut rest = match &tokens[..] {
        [Token::Word(word), rest @ ..] if word == b"return" => rest,
        all => all,
    };
    if qualified_name(&mut rest)? != b"next_id" || !symbol(&mut rest, b"(") {
        return None;
    }
    let shard = match operand(&mut rest, arguments)? {
        Operand::Constant(shard) => {
            let number = std::str::from_utf8(&shard).ok()?.parse().ok()?;
            layout.shard(number).ok()?;
            Operand::Constant(number)
        }
        Operand::Argument(number) => Operand::Argument(number),
    };
    let sequence = symbol(&mut rest, b",").then(|| operand(&mut rest, arguments))??;
    let made = if symbol(&mut rest, b",") {
        let Operand::Constant(name) = operand(&mut rest, arguments)? else { return None };
        Layout::parse(&name, Millis::LAST).ok()?
    } else {
        Layout::INSTAGRAM
    };
    (symbol(&mut rest, b")") && rest.is_empty() && made == layout).then_some(Call { shard, sequence })
}

/// Takes this symbol, if it comes next.
fn symbol(rest: &mut &[Token], symbol: &[u8]) -> bool {
    let is_next = rest.first().is_some_and(|token| *token == Token::Symbol(symbol));
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

/// Takes a name that can have other names before it, and returns its last part.
fn qualified_name(rest: &mut &[Token]) -> Option<Vec<u8>> {
    loop {
        let (Token::Word(name) | Token::Quoted(name)) = rest.first()? else { return None };
        let name = name.clone();
        *rest = &rest[1..];
        if !symbol(rest, b".") {
            return Some(name);
        }
    }
}

/// Takes a constant or an argument, in parentheses and with casts or without.
fn operand(rest: &mut &[Token], arguments: &[Vec<u8>]) -> Option<Operand<Vec<u8>>> {
    let operand = if symbol(rest, b"(") {
        let inner = operand(rest, arguments)?;
        symbol(rest, b")").then_some(inner)?
    } else {
        let (first, after) = rest.split_first()?;
        *rest = after;
        match first {
            Token::Number(number) => Operand::Constant(number.to_vec()),
            Token::Literal(text) => Operand::Constant(text.clone()),
            Token::Parameter(number) => Operand::Argument(*number),
            Token::Word(name) | Token::Quoted(name) => {
                Operand::Argument(1 + arguments.iter().position(|argument| argument == name)?)
            }
            Token::Symbol(_) => return None,
        }
    };
    while symbol(rest, b"::") {
        qualified_name(rest)?;
    }
    Some(operand)
}
