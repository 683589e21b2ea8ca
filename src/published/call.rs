//! Reads the call of `next_id` that a shard's function or default consists of, as the server prints it.

use super::tokens::{Token, tokens};
use crate::id::{Layout, Millis};

/// What `next_id` is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The shard.
    pub shard: Operand<i32>,
    /// The text that names the sequence.
    pub sequence: Operand<Vec<u8>>,
}

/// Where a call takes a value from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand<T> {
    /// The value is in the text.
    Constant(T),
    /// The value is an input argument of the function. The first argument has number 1.
    Argument(usize),
}

/// Returns the one call of `next_id` that a text consists of, after an optional RETURN. Returns `None` for any other text, and for
/// a call in another layout. The caller must look up in the catalog which `next_id` the text calls.
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

/// Takes this symbol if it comes next, and returns whether it did.
fn symbol(rest: &mut &[Token], symbol: &[u8]) -> bool {
    let is_next = rest.first().is_some_and(|token| *token == Token::Symbol(symbol));
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

/// Takes a name, which may be qualified, and returns its last part.
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

/// Takes a constant or an argument, which may have parentheses and casts.
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
