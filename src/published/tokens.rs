//! What the text of a function is made of, as PostgreSQL's lexer has it.

use crate::shard::ddl::{comment, is_of_word, length_to};

/// A piece of a text. Bytes, as the text may be in any encoding of a database: in all of them, what is not ASCII has
/// bytes from 0x80 on only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A word without quotes, in lower case.
    Word(Vec<u8>),
    /// An identifier in quotes, without them.
    Quoted(Vec<u8>),
    /// A literal, without its quotes.
    Literal(Vec<u8>),
    /// A number as it is written.
    Number(&'a [u8]),
    /// `$1` and so on.
    Parameter(usize),
    /// An operator or a mark.
    Symbol(&'a [u8]),
}

/// The longest identifier that PostgreSQL does not cut off.
const LONGEST_NAME: usize = 63;

/// The tokens of a text without its blanks and comments; `None` for a text with a piece that is not read here.
pub(super) fn tokens(source: &[u8]) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        at += match rest {
            [b'-', b'-', ..] | [b'/', b'*', ..] => comment(rest),
            [byte, ..] if byte.is_ascii_whitespace() => 1,
            _ => {
                let (token, length) = token(rest)?;
                tokens.push(token);
                length
            }
        };
    }
    Some(tokens)
}

/// The token that a text begins with, and how many bytes it has.
fn token(text: &[u8]) -> Option<(Token<'_>, usize)> {
    match text {
        [b'\'', ..] => {
            let (literal, length) = quoted(text, b'\'')?;
            // What a backslash means depends on a setting.
            (!literal.contains(&b'\\')).then_some((Token::Literal(literal), length))
        }
        [b'"', ..] => {
            let (name, length) = quoted(text, b'"')?;
            (1..=LONGEST_NAME).contains(&name.len()).then_some((Token::Quoted(name), length))
        }
        [b'$', after @ ..] => {
            let length = 1 + digits(after);
            let number = std::str::from_utf8(&text[1..length]).ok()?.parse().ok()?;
            ends_at(text, length).then_some((Token::Parameter(number), length))
        }
        [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => {
            let length = number(text);
            ends_at(text, length).then_some((Token::Number(&text[..length]), length))
        }
        [byte, ..] if is_of_word(*byte) => {
            let length = text.iter().take_while(|&&byte| is_of_word(byte)).count();
            let word = text[..length].to_ascii_lowercase();
            let prefixes_literal = match &text[length..] {
                [b'\'', ..] => matches!(&word[..], b"e" | b"b" | b"x" | b"n"),
                [b'&', b'\'' | b'"', ..] => word == b"u",
                _ => false,
            };
            (length <= LONGEST_NAME && !prefixes_literal).then_some((Token::Word(word), length))
        }
        [b':', b':' | b'=', ..] => Some((Token::Symbol(&text[..2]), 2)),
        [b'(' | b')' | b'[' | b']' | b',' | b';' | b'.', ..] => Some((Token::Symbol(&text[..1]), 1)),
        _ => {
            let length = operator(text);
            (length > 0).then_some((Token::Symbol(&text[..length]), length))
        }
    }
}

/// What a text begins with between quotes, of which two stand for one, and how many bytes it has with them.
fn quoted(text: &[u8], quote: u8) -> Option<(Vec<u8>, usize)> {
    let mut inner = Vec::new();
    let mut at = 1;
    loop {
        let end = at + length_to(&text[at..], &[quote]);
        if text[at..end].last() != Some(&quote) {
            return None;
        }
        inner.extend_from_slice(&text[at..end - 1]);
        if text.get(end) != Some(&quote) {
            return Some((inner, end));
        }
        inner.push(quote);
        at = end + 1;
    }
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// How many bytes the number has that a text begins with.
fn number(text: &[u8]) -> usize {
    let mut length = digits(text);
    if text.get(length) == Some(&b'.') {
        length += 1 + digits(&text[length + 1..]);
    }
    let exponent = match &text[length..] {
        [b'e' | b'E', b'+' | b'-', rest @ ..] if digits(rest) > 0 => 2 + digits(rest),
        [b'e' | b'E', rest @ ..] if digits(rest) > 0 => 1 + digits(rest),
        _ => 0,
    };
    length + exponent
}

/// Whether no word goes on where a number ends.
fn ends_at(text: &[u8], length: usize) -> bool {
    !text.get(length).is_some_and(|&byte| is_of_word(byte))
}

/// How many bytes the operator has that a text begins with: as many as can be of one, up to a comment. Only with
/// certain characters in it does an operator end with a sign.
fn operator(text: &[u8]) -> usize {
    let is_part = |byte: &u8| b"+-*/<>=~!@#%^&|`?".contains(byte);
    let run = text.iter().take_while(|byte| is_part(byte)).count();
    let begins_comment = |pair: &[u8]| pair == b"--" || pair == b"/*";
    let mut length = text[..run].windows(2).position(begins_comment).unwrap_or(run);
    if !text[..length].iter().any(|byte| b"~!@#%^&|`?".contains(byte)) {
        while length > 1 && b"+-".contains(&text[length - 1]) {
            length -= 1;
        }
    }
    length
}
