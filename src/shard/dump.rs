//! The dump of a shard, as `pg_dump --schema-only -n insta5` prints it, as a migration.
//!
//! A dump qualifies every name. The migration keeps that: without schemas, a name could mean an object of `pg_catalog`, an alias or a
//! CTE. A name that no schema has, [`SHARD`], stands for the shard's schema until the migration is applied to a shard.

use super::ddl::{is_space, pieces, quoted};

/// The name in a migration that means the schema of the shard to which the migration is applied.
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

/// The table and the column to which a statement of a dump gives a default. A dump has it apart from CREATE TABLE if the table owns the
/// sequence that the default uses.
#[must_use]
pub fn default_of(statement: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let pieces = without_comments(statement);
    match words(&pieces)[..] {
        [
            b"ALTER",
            b"TABLE",
            b"ONLY",
            _,
            b".",
            table,
            b"ALTER",
            b"COLUMN",
            column,
            b"SET",
            b"DEFAULT",
            ..,
        ] => Some((name_of(table), name_of(column))),
        _ => None,
    }
}

/// A statement of the dump of a shard with this schema and number, with [`SHARD`] for the schema's name and without the CHECKs of IDs.
/// `defaults` is what [`default_of`] returns for the whole dump. Returns `None` if the statement creates, or is about, what each shard
/// has without a migration.
#[must_use]
pub fn migration_of(
    statement: &[u8],
    schema: &[u8],
    shard: i32,
    defaults: &[(Vec<u8>, Vec<u8>)],
) -> Option<Vec<u8>> {
    let pieces = without_comments(statement);
    if is_of_each_shard(&words(&pieces), schema) {
        return None;
    }
    let pieces = without_checks_of_ids(pieces, shard.to_string().as_bytes(), defaults)?;
    Some(with_schema(&pieces, schema, SHARD).trim_ascii().to_vec())
}

/// A migration with the name of a shard's schema for [`SHARD`].
#[must_use]
pub fn in_shard(migration: &[u8], schema: &[u8]) -> Vec<u8> {
    if migration.windows(SHARD.len()).any(|part| part.eq_ignore_ascii_case(SHARD)) {
        with_schema(&pieces(migration), SHARD, schema)
    } else {
        migration.to_vec()
    }
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

/// The pieces with another name for a schema: where it is an identifier before a dot, after SCHEMA or in a `search_path`, and where a literal
/// is cast to a type of names, such as regclass, or is in a `search_path`.
fn with_schema(pieces: &[&[u8]], schema: &[u8], other: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut before: &[u8] = b"";
    let mut in_path = false;
    for (at, &piece) in pieces.iter().enumerate() {
        in_path = is_name(piece, b"search_path") && before.eq_ignore_ascii_case(b"SET")
            || in_path
                && (is_space(piece)
                    || piece == b","
                    || is_name(before, b"search_path")
                    || before.eq_ignore_ascii_case(b"TO")
                    || matches!(before, b"=" | b","));
        let literal = literal(piece);
        let is_cast = is_cast_to_name(&pieces[at + 1..]);
        let is_before_dot = pieces.get(at + 1) == Some(&&b"."[..]);
        let is_identifier = is_before_dot || in_path || before.eq_ignore_ascii_case(b"SCHEMA");
        let object = literal.as_deref().and_then(|name| of_schema(name, schema)).filter(|_| is_cast);
        match (literal.as_deref(), object) {
            (None, _) if is_identifier && is_name(piece, schema) => text.extend(identifier(other)),
            (Some(name), _) if (is_cast || in_path) && name == schema => text.extend(in_quotes(other, b'\'')),
            (_, Some(rest)) => text.extend(in_quotes(&[&identifier(other), rest].concat(), b'\'')),
            _ => text.extend_from_slice(piece),
        }
        if !is_space(piece) {
            before = piece;
        }
    }
    text
}

/// A name as an identifier, in quotes if it needs them.
fn identifier(name: &[u8]) -> Vec<u8> {
    let is_plain = name.iter().all(|&byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && name.first().is_some_and(|byte| !byte.is_ascii_digit());
    if is_plain { name.to_vec() } else { in_quotes(name, b'"') }
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
fn without_checks_of_ids<'a>(
    mut pieces: Vec<&'a [u8]>,
    shard: &[u8],
    defaults: &[(Vec<u8>, Vec<u8>)],
) -> Option<Vec<&'a [u8]>> {
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
        let Some(column) = column_of_ids(&condition, shard).filter(|_| follows != b"NO") else { continue };
        // ALTER TABLE ... ADD CONSTRAINT has nothing else.
        let before = (0..begin).rev().find(|&at| !is_space(pieces[at]))?;
        if pieces[before] == b"ADD" {
            return None;
        }
        // On a column that is not filled by default, the CHECK is the user's.
        if !has_default(&words(&pieces), column, defaults) {
            continue;
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

/// The column of the condition `(id_shard(id) = 5)`, or `((id < 1000) OR (id_shard(id) = 5))`, with or without a schema and a layout.
/// Returns `None` for any other condition.
fn column_of_ids<'a>(words: &[&'a [u8]], shard: &[u8]) -> Option<&'a [u8]> {
    let [b"(", inner @ .., b")"] = words else { return None };
    let call = match inner {
        [_, b".", name, call @ ..] | [name, call @ ..] if is_name(name, b"id_shard") => call,
        [b"(", ..] => {
            let close = closing(inner)?;
            let is_since = inner[..close].contains(&&b"<"[..])
                && !inner[..close].iter().any(|word| is_name(word, b"id_shard"));
            return (is_since && inner.get(close + 1) == Some(&&b"OR"[..]))
                .then(|| column_of_ids(&inner[close + 2..], shard))?;
        }
        _ => return None,
    };
    let close = closing(call)?;
    (call[close + 1..] == [b"=", shard]).then(|| call.iter().copied().find(|&word| word != b"("))?
}

/// Whether a column has a default, according to the words of CREATE TABLE or to `defaults`.
fn has_default(words: &[&[u8]], column: &[u8], defaults: &[(Vec<u8>, Vec<u8>)]) -> bool {
    let column = name_of(column);
    let table = words.iter().position(|&word| word == b".").and_then(|at| words.get(at + 1));
    if table.is_some_and(|table| defaults.contains(&(name_of(table), column.clone()))) {
        return true;
    }
    let mut depth = 0;
    let mut is_of_column = false;
    words.windows(2).any(|pair| {
        depth += i32::from(pair[0] == b"(") - i32::from(pair[0] == b")");
        if depth == 1 && matches!(pair[0], b"(" | b",") {
            is_of_column = name_of(pair[1]) == column;
        }
        is_of_column && pair[1] == b"DEFAULT"
    })
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

/// Whether a piece is an identifier with this name. Without quotes, it is in lower case.
fn is_name(piece: &[u8], name: &[u8]) -> bool {
    piece.to_ascii_lowercase() == name || piece == in_quotes(name, b'"')
}

/// The name that a piece means as an identifier.
fn name_of(piece: &[u8]) -> Vec<u8> {
    if piece.first() == Some(&b'"') {
        quoted(piece, b'"').map_or_else(Vec::new, |(name, _)| name)
    } else {
        piece.to_vec()
    }
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
