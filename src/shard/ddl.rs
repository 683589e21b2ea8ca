//! DDL statements as text.

/// The statement without its first CONCURRENTLY, for a shard whose tables no other session can use yet. CONCURRENTLY is a
/// reserved word, so outside of quotes and comments it has no other meaning.
#[must_use]
pub fn without_concurrently(statement: &[u8]) -> Vec<u8> {
    let pieces = pieces(statement);
    match pieces.iter().position(|piece| piece.eq_ignore_ascii_case(b"CONCURRENTLY")) {
        Some(at) => [pieces[..at].concat(), pieces[at + 1..].concat().trim_ascii_start().to_vec()].concat(),
        None => statement.to_vec(),
    }
}

/// The parts of a statement, which are the whole statement together: comments, blanks, words, what is in quotes with its quotes, and
/// other characters.
pub(crate) fn pieces(statement: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = statement;
    while !rest.is_empty() {
        let length = match rest {
            [b'-', b'-', ..] | [b'/', b'*', ..] => comment(rest),
            [b'\'', ..] if pieces.last().is_some_and(|piece: &&[u8]| piece.eq_ignore_ascii_case(b"E")) => {
                escaped(rest)
            }
            [quote @ (b'"' | b'\''), ..] => quoted(rest, *quote).map_or(rest.len(), |(_, length)| length),
            [byte, ..] if byte.is_ascii_whitespace() => {
                rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
            }
            _ => dollar_quoted(rest)
                .unwrap_or_else(|| rest.iter().take_while(|&&byte| is_of_word(byte)).count().max(1)),
        };
        let (piece, after) = rest.split_at(length);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// The text between the quotes with which a text begins, where a doubled quote stands for one, and its length with the quotes.
pub(crate) fn quoted(text: &[u8], quote: u8) -> Option<(Vec<u8>, usize)> {
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

/// How many bytes the rest of a literal has that began with E and that a text continues with its quote. A backslash escapes what follows.
fn escaped(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at..] {
            [b'\\', _, ..] | [b'\'', b'\'', ..] => at += 2,
            [b'\'', ..] => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// How many bytes the literal has that a text begins with, if it is one like `$tag$...$tag$`.
fn dollar_quoted(text: &[u8]) -> Option<usize> {
    let tag = text.strip_prefix(b"$")?;
    let length = tag.iter().position(|&byte| byte == b'$' || !is_of_word(byte))?;
    if tag[length] != b'$' || tag[0].is_ascii_digit() {
        return None;
    }
    let (quote, rest) = text.split_at(length + 2);
    Some(quote.len() + length_to(rest, quote))
}

/// Whether a piece is blank.
pub(crate) fn is_space(piece: &[u8]) -> bool {
    piece.iter().all(u8::is_ascii_whitespace)
}

/// Whether a byte can be part of a word of SQL. All bytes of characters beyond ASCII can.
pub(crate) fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// How many bytes of `text` there are up to the end of its first `end`, or in all if it has none.
fn length_to(text: &[u8], end: &[u8]) -> usize {
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
