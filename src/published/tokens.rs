//! Splits the text of a function into tokens, as PostgreSQL's lexer does.

use crate::shard::ddl::{comment, is_of_word, quoted};

/// A token of a text. A text is bytes, because a database can have any encoding. In all of them, characters outside of ASCII have
/// only bytes from 0x80 on.
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
    /// An operator or a punctuation mark.
    Symbol(&'a [u8]),
}

/// The length of the longest identifier that PostgreSQL does not truncate, in bytes.
const LONGEST_NAME: usize = 63;

/// Returns the tokens of a text, without blanks and comments. Returns `None` if it has a token that this module does not read.
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

/// Returns the first token of a text, and its length in bytes.
fn token(text: &[u8]) -> Option<(Token<'_>, usize)> {
    match text {
        [b'\'', ..] => {
            let (literal, length) = quoted(text, b'\'')?;
            // The meaning of a backslash depends on standard_conforming_strings.
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

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Returns the length of the number at the beginning of a text.
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

/// Returns whether the byte at this length is not part of a word.
fn ends_at(text: &[u8], length: usize) -> bool {
    !text.get(length).is_some_and(|&byte| is_of_word(byte))
}

/// Returns the length of the operator at the beginning of a text. A comment ends it. Only an operator with one of certain
/// characters may end with a sign.
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
