//! DDL statements as text.

/// The statement without its first CONCURRENTLY, for a shard whose tables no other session can use yet. CONCURRENTLY is a
/// reserved word, so outside of quotes and comments it has no other meaning.
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

/// Whether a byte can be part of a word of SQL. All bytes of characters beyond ASCII can.
pub(crate) fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// How many bytes of `text` there are up to the end of its first `end`, or in all if it has none.
pub(crate) fn length_to(text: &[u8], end: &[u8]) -> usize {
    text.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| at + end.len())
}

/// How many bytes the comment has that a text begins with. A comment with `--` ends before the end of its line. Comments with
/// `/*` can nest, as SQL allows.
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
