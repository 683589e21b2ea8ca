//! Statements of DDL as text.

/// A statement without its first CONCURRENTLY: what it does where there is nobody to wait for. The word is reserved,
/// so outside of quotes and comments it is nothing else.
#[must_use]
pub fn without_concurrently(statement: &[u8]) -> Vec<u8> {
    const WORD: &[u8] = b"CONCURRENTLY";
    let mut at = 0;
    while at < statement.len() {
        let rest = &statement[at..];
        let length = match rest {
            [b'-', b'-', ..] | [b'/', b'*', ..] => comment(rest),
            [quote @ (b'"' | b'\''), ..] => 1 + length_to(&rest[1..], &[*quote]),
            _ => rest.iter().take_while(|&&byte| is_of_word(byte)).count().max(1),
        };
        let (token, after) = rest.split_at(length);
        if token.eq_ignore_ascii_case(WORD) {
            return [&statement[..at], after.trim_ascii_start()].concat();
        }
        at += length;
    }
    statement.to_vec()
}

pub(crate) fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// The bytes up to the end of the first `end`, or all.
pub(crate) fn length_to(text: &[u8], end: &[u8]) -> usize {
    text.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| at + end.len())
}

/// The bytes of the comment that a text begins with: to the end of its line, which stays, or to its own end. In SQL, those
/// nest.
pub(crate) fn comment(text: &[u8]) -> usize {
    if text.starts_with(b"--") {
        return text.iter().take_while(|byte| !matches!(byte, b'\n' | b'\r')).count();
    }
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text[at..] {
            [b'/', b'*', ..] => 1,
            [b'*', b'/', ..] => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            break;
        }
    }
    at
}
