//! The dump of a shard, as `pg_dump --schema-only -n insta5` prints it, as a migration.

use super::ddl::{is_of_word, is_space, pieces};

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

/// A setting of a dump that changes what its statements create, for one migration. Returns `None` for other settings.
#[must_use]
pub fn setting(statement: &[u8]) -> Option<Vec<u8>> {
    let text = without_comments(statement).concat();
    let rest = text.trim_ascii().strip_prefix(b"SET ")?;
    let names: [&[u8]; 3] =
        [b"check_function_bodies ", b"default_tablespace ", b"default_table_access_method "];
    names.iter().any(|name| rest.starts_with(name)).then(|| [b"SET LOCAL ", rest].concat())
}

/// A statement of the dump of a shard with this schema and number, without the schema's name and the CHECKs of IDs. `command` is like
/// CREATE TABLE. Returns `None` if the statement creates, or is about, what each shard has without a migration.
#[must_use]
pub fn migration_of(statement: &[u8], command: &[u8], schema: &[u8], shard: i32) -> Option<Vec<u8>> {
    let pieces = without_comments(statement);
    let words = words(&pieces);
    let first = words.windows(3).find(|part| is_name(part[0], schema) && part[1] == b".").map(|part| part[2]);
    let is_grant = matches!(command, b"GRANT" | b"REVOKE");
    let is_of_each_shard =
        first.is_some_and(|name| name == b"table_id_seq" || name == b"next_id") && !is_grant;
    if is_of_each_shard || words.iter().any(|word| word.starts_with(b"insta_ids_fence")) {
        return None;
    }
    if first.is_none() && words.windows(2).any(|part| part[0] == b"SCHEMA" && is_name(part[1], schema)) {
        return is_grant.then(|| grant_on_schema(&pieces, schema));
    }
    let pieces = with_current_path(without_checks_of_ids(pieces, shard.to_string().as_bytes())?, schema);
    Some(without_schema(&pieces, schema).trim_ascii().to_vec())
}

/// A GRANT on the schema, on that of whichever shard the statement runs for.
fn grant_on_schema(pieces: &[&[u8]], schema: &[u8]) -> Vec<u8> {
    let format: Vec<Vec<u8>> = pieces
        .iter()
        .map(|piece| if is_name(piece, schema) { b"%I".to_vec() } else { doubled(piece, b'%') })
        .collect();
    [b"DO $do$ BEGIN EXECUTE format($sql$", format.concat().trim_ascii(), b"$sql$, current_schema); END $do$"]
        .concat()
}

/// The pieces without the schema's name before a dot, also at the beginning of literals.
fn without_schema(pieces: &[&[u8]], schema: &[u8]) -> Vec<u8> {
    let quoted = quoted(schema);
    let mut text = Vec::new();
    let mut at = 0;
    while at < pieces.len() {
        let piece = pieces[at];
        if is_name(piece, schema) && pieces.get(at + 1) == Some(&&b"."[..]) {
            at += 2;
            continue;
        }
        let inner = piece.strip_prefix(b"'");
        let rest = inner.and_then(|inner| {
            [schema, &quoted].iter().find_map(|name| inner.strip_prefix(*name)?.strip_prefix(b"."))
        });
        match rest {
            Some(rest) => text.extend([b"'", rest].concat()),
            None => text.extend_from_slice(piece),
        }
        at += 1;
    }
    text
}

/// The pieces with `SET search_path FROM CURRENT` instead of a list of schemas with the shard's.
fn with_current_path<'a>(pieces: Vec<&'a [u8]>, schema: &[u8]) -> Vec<&'a [u8]> {
    let literal = [b"'", schema, b"'"].concat();
    let begins = |at: usize| pieces[at..].starts_with(&[b"SET", b" ", b"search_path", b" ", b"TO", b" "]);
    let Some(begin) = (0..pieces.len()).find(|&at| begins(at)) else { return pieces };
    let list = begin + 6;
    let is_of_list = |piece: &&&[u8]| matches!(piece[0], b'\'' | b'"' | b',' | b' ') || is_of_word(piece[0]);
    let length = pieces[list..].iter().take_while(is_of_list).count();
    if !pieces[list..list + length].iter().any(|piece| is_name(piece, schema) || *piece == literal) {
        return pieces;
    }
    [&pieces[..begin], &[b"SET search_path FROM CURRENT"], &pieces[list + length..]].concat()
}

/// The pieces without constraints that are CHECKs of this shard's IDs. Returns `None` if nothing is left of the statement.
fn without_checks_of_ids<'a>(mut pieces: Vec<&'a [u8]>, shard: &[u8]) -> Option<Vec<&'a [u8]>> {
    let mut from = 0;
    while let Some(begin) = (from..pieces.len()).find(|&at| pieces[at] == b"CONSTRAINT") {
        from = begin + 1;
        let Some(open) = (begin..pieces.len()).find(|&at| pieces[at] == b"(") else { break };
        if !matches!(words(&pieces[begin..open])[..], [_, _, b"CHECK"]) {
            continue;
        }
        let mut depth = 0;
        let end = (open..pieces.len()).find(|&at| {
            depth += i32::from(pieces[at] == b"(") - i32::from(pieces[at] == b")");
            depth == 0
        })?;
        let inner = words(&pieces[open..=end]);
        let is_of_ids =
            inner.contains(&&b"id_shard"[..]) && inner.windows(3).any(|part| part == [b"=", shard, b")"]);
        if !is_of_ids {
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

/// Whether a piece is an identifier with this name. A dump quotes each name that is not in lower case.
fn is_name(piece: &[u8], name: &[u8]) -> bool {
    piece == name || piece == quoted(name)
}

fn quoted(name: &[u8]) -> Vec<u8> {
    [b"\"", &doubled(name, b'"')[..], b"\""].concat()
}

/// The text with each such byte twice.
fn doubled(text: &[u8], byte: u8) -> Vec<u8> {
    text.iter().flat_map(|&one| std::iter::repeat_n(one, if one == byte { 2 } else { 1 })).collect()
}

fn without_comments(statement: &[u8]) -> Vec<&[u8]> {
    let is_comment = |piece: &[u8]| piece.starts_with(b"--") || piece.starts_with(b"/*");
    pieces(statement).into_iter().filter(|piece| !is_comment(piece)).collect()
}

fn words<'a>(pieces: &[&'a [u8]]) -> Vec<&'a [u8]> {
    pieces.iter().copied().filter(|piece| !is_space(piece)).collect()
}
