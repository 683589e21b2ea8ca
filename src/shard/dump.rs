//! The dump of a shard, as `pg_dump --schema-only -n insta5` prints it, as a migration.
//!
//! A dump qualifies every name. The migration keeps that: without schemas, a name could mean an object of `pg_catalog`, an alias or a
//! CTE. A name that no schema has, [`SHARD`], stands for the shard's schema until the migration is applied to a shard.

use super::ddl::{is_space, pieces, quoted};

/// What stands in a migration for the schema of the shard to which it is applied.
pub const SHARD: &[u8] = b"insta_ids_shard";

/// Whether a text begins like a dump.
#[must_use]
pub fn is_dump(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"--\n-- PostgreSQL database dump\n")
}

/// The lines of psql's commands with which a dump begins and ends, as blanks. Between them, a line cannot be a command.
#[must_use]
pub fn without_restrict(text: &[u8]) -> Vec<u8> {
    let is_command = |line: &[u8]| line.starts_with(b"\\restrict ") || line.starts_with(b"\\unrestrict ");
    let lines: Vec<&[u8]> = text
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| if is_command(line) { &b"\n"[..] } else { line })
        .collect();
    lines.concat()
}

/// A setting of a dump that changes what its statements create, for one migration. Returns `None` for settings without such an effect. A
/// statement that changes the role stays as it is, and is refused as a setting of the session.
#[must_use]
pub fn setting(statement: &[u8]) -> Option<Vec<u8>> {
    let text = without_comments(statement).concat();
    let rest = text.trim_ascii().strip_prefix(b"SET ")?;
    if rest.starts_with(b"SESSION AUTHORIZATION ") {
        return Some(text);
    }
    let names: [&[u8]; 3] =
        [b"check_function_bodies ", b"default_tablespace ", b"default_table_access_method "];
    names.iter().any(|name| rest.starts_with(name)).then(|| [b"SET LOCAL ", rest].concat())
}

/// A statement of the dump of a shard with this schema and number, with [`SHARD`] for the schema's name and without the CHECKs of IDs.
/// Returns `None` if the statement creates, or is about, what each shard has without a migration.
#[must_use]
pub fn migration_of(statement: &[u8], schema: &[u8], shard: i32) -> Option<Vec<u8>> {
    let pieces = without_comments(statement);
    if is_of_each_shard(&words(&pieces), schema) {
        return None;
    }
    let pieces = without_checks_of_ids(pieces, shard.to_string().as_bytes())?;
    Some(of_any_shard(&pieces, schema).trim_ascii().to_vec())
}

/// A migration with the name of a shard's schema for [`SHARD`].
#[must_use]
pub fn in_shard(migration: &[u8], schema: &[u8]) -> Vec<u8> {
    if !migration.windows(SHARD.len()).any(|part| part == SHARD) {
        return migration.to_vec();
    }
    pieces(migration)
        .into_iter()
        .map(|piece| {
            if is_name(piece, SHARD) {
                return in_quotes(schema, b'"');
            }
            match literal(piece).as_deref().and_then(|inner| inner.strip_prefix(SHARD)) {
                Some(b"") => in_quotes(schema, b'\''),
                Some(rest @ [b'.', ..]) => in_quotes(&[&in_quotes(schema, b'"'), rest].concat(), b'\''),
                _ => piece.to_vec(),
            }
        })
        .collect::<Vec<_>>()
        .concat()
}

/// Whether a statement creates, or is about, the schema, its sequence and functions of IDs, or a trigger of the extension.
fn is_of_each_shard(words: &[&[u8]], schema: &[u8]) -> bool {
    if matches!(words.first(), Some(&(b"GRANT" | b"REVOKE"))) {
        return false;
    }
    if words.windows(2).any(|part| part[0] == b"TRIGGER" && part[1].starts_with(b"insta_ids_")) {
        return true;
    }
    let is_schema = |at: usize| words.get(at).is_some_and(|word| is_name(word, schema));
    let own_schema = match words {
        [b"CREATE", b"SCHEMA", _] | [b"ALTER", b"SCHEMA", _, b"OWNER", ..] => is_schema(2),
        [b"COMMENT", b"ON", b"SCHEMA", ..] => is_schema(3),
        _ => false,
    };
    let Some(first) = (0..words.len()).find(|&at| is_schema(at) && words.get(at + 1) == Some(&&b"."[..]))
    else {
        return own_schema;
    };
    match words[first + 2..] {
        [name, ..] if is_name(name, b"table_id_seq") => true,
        [name, b"(", b")", ..] => is_name(name, b"next_id") && words[first - 1] == b"FUNCTION",
        [name, b"(", argument, kind, b")", ..] => {
            is_name(name, b"next_id")
                && words[first - 1] == b"FUNCTION"
                && is_name(argument, b"seq_name")
                && is_name(kind, b"regclass")
        }
        _ => false,
    }
}

/// The pieces with [`SHARD`] for the schema's name: as an identifier before a dot or after SCHEMA, in a list of schemas, and in a literal
/// that is the name of an object.
fn of_any_shard(pieces: &[&[u8]], schema: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut before: &[u8] = b"";
    let mut in_path = false;
    for (at, &piece) in pieces.iter().enumerate() {
        let after = |offset: usize| pieces.get(at + offset).copied().unwrap_or_default();
        in_path = is_name(piece, b"search_path") && before == b"SET"
            || in_path
                && (is_space(piece)
                    || piece == b","
                    || is_name(before, b"search_path")
                    || matches!(before, b"TO" | b"=" | b","));
        let literal = literal(piece);
        let object = literal.as_deref().and_then(|inner| of_schema(inner, schema));
        if is_name(piece, schema) && (after(1) == b"." || before == b"SCHEMA" || in_path) {
            text.extend_from_slice(SHARD);
        } else if in_path && literal.as_deref() == Some(schema) {
            text.extend(in_quotes(SHARD, b'\''));
        } else if let Some(rest) = object.filter(|_| is_cast_to_name(&pieces[at + 1..])) {
            text.extend(in_quotes(&[SHARD, rest].concat(), b'\''));
        } else {
            text.extend_from_slice(piece);
        }
        if !is_space(piece) {
            before = piece;
        }
    }
    text
}

/// What follows the schema in a name like `insta5.photos`, with the dot.
fn of_schema<'a>(name: &'a [u8], schema: &[u8]) -> Option<&'a [u8]> {
    let rest = name.strip_prefix(&in_quotes(schema, b'"')[..]).or_else(|| name.strip_prefix(schema))?;
    rest.starts_with(b".").then_some(rest)
}

/// Whether the pieces after a literal cast it to a type of names, such as regclass.
fn is_cast_to_name(after: &[&[u8]]) -> bool {
    let [b":", b":", name, ..] = after else { return false };
    name.strip_prefix(b"\"").unwrap_or(name).starts_with(b"reg")
}

/// The pieces without constraints that are CHECKs of this shard's IDs. Returns `None` if nothing is left of the statement.
fn without_checks_of_ids<'a>(mut pieces: Vec<&'a [u8]>, shard: &[u8]) -> Option<Vec<&'a [u8]>> {
    if !matches!(words(&pieces)[..], [_, b"TABLE", ..] | [_, b"FOREIGN" | b"UNLOGGED", b"TABLE", ..]) {
        return Some(pieces);
    }
    let mut from = 0;
    while let Some(begin) = (from..pieces.len()).find(|&at| pieces[at] == b"CONSTRAINT") {
        from = begin + 1;
        let Some(open) = (begin..pieces.len()).find(|&at| pieces[at] == b"(") else { break };
        if !matches!(words(&pieces[begin..open])[..], [_, _, b"CHECK"]) {
            continue;
        }
        let end = open + closing(&pieces[open..])?;
        let condition = words(&pieces[open + 1..end]);
        let follows = words(&pieces[end + 1..]).first().copied().unwrap_or_default();
        if follows == b"NO" || !is_check_of_ids(&condition, shard) {
            continue;
        }
        // ALTER TABLE ... ADD CONSTRAINT has nothing else.
        let before = (0..begin).rev().find(|&at| !is_space(pieces[at]))?;
        if pieces[before] == b"ADD" {
            return None;
        }
        let after = (end + 1..pieces.len()).find(|&at| !is_space(pieces[at])).unwrap_or(pieces.len());
        if pieces[before] == b"," {
            pieces.drain(before..=end);
        } else {
            pieces.drain(begin..if pieces.get(after) == Some(&&b","[..]) { after + 1 } else { end + 1 });
        }
        from = before;
    }
    Some(pieces)
}

/// Whether the words are `(id_shard(id) = 5)`, or `((id < 1000) OR (id_shard(id) = 5))`, with or without a schema and a layout.
fn is_check_of_ids(words: &[&[u8]], shard: &[u8]) -> bool {
    let [b"(", inner @ .., b")"] = words else { return false };
    let call = match inner {
        [_, b".", name, call @ ..] | [name, call @ ..] if is_name(name, b"id_shard") => call,
        [b"(", ..] => {
            let Some(close) = closing(inner) else { return false };
            let is_since = inner[..close].contains(&&b"<"[..])
                && !inner[..close].iter().any(|word| is_name(word, b"id_shard"));
            return is_since
                && inner.get(close + 1) == Some(&&b"OR"[..])
                && is_check_of_ids(&inner[close + 2..], shard);
        }
        _ => return false,
    };
    closing(call).is_some_and(|close| call[close + 1..] == [b"=", shard])
}

/// The place of the parenthesis that closes the one with which the pieces begin.
fn closing(pieces: &[&[u8]]) -> Option<usize> {
    if pieces.first() != Some(&&b"("[..]) {
        return None;
    }
    let mut depth = 0;
    pieces.iter().position(|&piece| {
        depth += i32::from(piece == b"(") - i32::from(piece == b")");
        depth == 0
    })
}

/// Whether a piece is an identifier with this name. A dump quotes each name that is not in lower case.
fn is_name(piece: &[u8], name: &[u8]) -> bool {
    piece == name || piece == in_quotes(name, b'"')
}

/// The value of a piece that is a literal in single quotes.
fn literal(piece: &[u8]) -> Option<Vec<u8>> {
    if piece.first() == Some(&b'\'') { quoted(piece, b'\'').map(|(inner, _)| inner) } else { None }
}

/// The text in quotes, with each quote in it twice.
fn in_quotes(text: &[u8], quote: u8) -> Vec<u8> {
    let inner = text.iter().flat_map(|&one| std::iter::repeat_n(one, if one == quote { 2 } else { 1 }));
    std::iter::once(quote).chain(inner).chain([quote]).collect()
}

fn without_comments(statement: &[u8]) -> Vec<&[u8]> {
    let is_comment = |piece: &[u8]| piece.starts_with(b"--") || piece.starts_with(b"/*");
    pieces(statement).into_iter().filter(|piece| !is_comment(piece)).collect()
}

fn words<'a>(pieces: &[&'a [u8]]) -> Vec<&'a [u8]> {
    pieces.iter().copied().filter(|piece| !is_space(piece)).collect()
}
