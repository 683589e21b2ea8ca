//! The published function: release writes its text, and adopt recognizes it. While a schema is a shard, one call of `next_id`
//! stands in its place, which is read here, too.
//!
//! Adopt calls functions with any other text instead of reading them. This module knows no server, so it identifies types and
//! functions by their names.
//!
//! # References
//! Mike Krieger, "Sharding & IDs at Instagram", Instagram Engineering, 2011.

mod call;
mod tokens;

pub use call::{Call, Operand, read_call};

use crate::id::{Fields, Layout};
use tokens::{Token, tokens};

/// A function in PL/pgSQL as `pg_proc` has it.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Its body, in the encoding of its database.
    pub source: &'a [u8],
    /// The names of its input arguments. An argument without a name has an empty one.
    pub arguments: &'a [Vec<u8>],
    /// The name of its OUT argument.
    pub result: Option<&'a [u8]>,
}

/// Returns whether the text of a function is the published one for this layout, with any epoch, shard and sequence. There are
/// three forms: the one that [`write()`] returns, the same with a `RETURN` instead of the OUT argument, and one that uses the
/// time of the transaction. Blanks, comments and capitals make no difference. All forms call only PostgreSQL's own functions.
///
/// # Examples
/// ```
/// use insta_ids::id::Layout;
/// use insta_ids::published::{Function, is_published, write};
///
/// let text = write(Layout::INSTAGRAM, b"5", b"'insta5.table_id_seq'");
/// let function = Function { source: &text, arguments: &[], result: Some(b"result") };
/// assert!(is_published(&function, Layout::INSTAGRAM));
/// assert!(!is_published(&Function { source: b"BEGIN result := 1; END", ..function }, Layout::INSTAGRAM));
/// ```
#[must_use]
pub fn is_published(function: &Function, layout: Layout) -> bool {
    let Some(text) = tokens(function.source) else { return false };
    let article = String::from_utf8_lossy(&write(layout, SHARD, SEQUENCE)).into_owned();
    let declared =
        article.replace("\nBEGIN", "\n result bigint;\nBEGIN").replace("END;", "RETURN result;\nEND;");
    let mut forms = vec![(article, true), (declared, false)];
    if Layout::INSTAGRAM.fields() == (Fields { epoch: Layout::INSTAGRAM.fields().epoch, ..layout.fields() }) {
        forms.push((BY_NOW.to_owned(), true));
    }
    forms.iter().any(|(form, has_result)| {
        *has_result == function.result.is_some()
            && tokens(form.as_bytes()).is_some_and(|form| is_of_form(function, &text, &form))
    })
}

/// The text of the PL/pgSQL function of this name in `sql/portable.sql`.
#[must_use]
pub fn portable_text(name: &str) -> Option<&'static str> {
    let (_, rest) = include_str!("../../sql/portable.sql").split_once(&format!("CREATE FUNCTION {name}("))?;
    rest.split("$$").nth(1)
}

/// The words that stand for the shard and the sequence in a form of the text.
const SHARD: &[u8] = b"the_shard";
const SEQUENCE: &[u8] = b"the_sequence";

/// The form that uses the time of the transaction.
const BY_NOW: &str = "
DECLARE
    epoch bigint := 0;
    seq_id bigint;
    now_ms bigint;
    shard_id bigint := the_shard;
BEGIN
    SELECT nextval(the_sequence) % 1024 INTO seq_id;
    now_ms := extract(epoch from now()) * 1000;
    result := (now_ms - epoch) << 23;
    result := result | (shard_id << 10);
    result := result | seq_id;
END;";

fn is_of_form(function: &Function, text: &[Token], form: &[Token]) -> bool {
    // The last semicolon may be absent.
    let without_end =
        |tokens: &[Token]| tokens.len() - usize::from(tokens.last() == Some(&Token::Symbol(b";")));
    let (text, form) = (&text[..without_end(text)], &form[..without_end(form)]);
    // In all forms, the epoch is the first number.
    let epoch = form.iter().position(|token| matches!(token, Token::Number(_)));
    let is_argument = |token: &Token| match token {
        Token::Parameter(_) => true,
        Token::Word(name) | Token::Quoted(name) => function.arguments.contains(name),
        _ => false,
    };
    text.len() == form.len()
        && text.iter().zip(form).enumerate().all(|(at, (token, expected))| match expected {
            Token::Word(word) if word == SHARD => matches!(token, Token::Number(_)) || is_argument(token),
            Token::Word(word) if word == SEQUENCE => matches!(token, Token::Literal(_)) || is_argument(token),
            Token::Number(_) if Some(at) == epoch => matches!(token, Token::Number(_)),
            Token::Word(word) if word == b"result" => match token {
                Token::Word(name) | Token::Quoted(name) => name == function.result.unwrap_or(b"result"),
                _ => false,
            },
            _ => token == expected,
        })
}

/// Returns the article's function for this layout: a PL/pgSQL body that mints into the OUT argument `result`. The shard and the
/// sequence are expressions, such as `5`, `'insta5.table_id_seq'` or `$1`.
#[must_use]
pub fn write(layout: Layout, shard: &[u8], sequence: &[u8]) -> Vec<u8> {
    let Fields { epoch, unit_ms, shard_bits, seq_bits, seq_above_shard, .. } = layout.fields();
    let [our_epoch, seq_id, now_millis, shard_id] =
        ["our_epoch", "seq_id", "now_millis", "shard_id"].map(|name| apart(name, &[shard, sequence]));
    let (time_shift, seq_shift) = (shard_bits + seq_bits, if seq_above_shard { shard_bits } else { 0 });
    let shard_shift = if seq_above_shard { 0 } else { seq_bits };

    let since = format!("({now_millis} - {our_epoch})");
    let time = if unit_ms == 1 { since } else { format!("({since} / {unit_ms})") };
    let shifted = |name: &str, bits| if bits == 0 { name.to_owned() } else { format!("{name} << {bits}") };
    let or = |name: &str, bits| format!("    result := result | ({});\n", shifted(name, bits));
    let seq = or(&seq_id, seq_shift);
    let (shard_declared, fields) = if shard_bits == 0 {
        (Vec::new(), seq)
    } else {
        // An `int` would lose bits of the shifted shard.
        let kind = if u64::from(layout.last_shard()) << shard_shift > 0x7fff_ffff { "bigint" } else { "int" };
        let declared = [format!("    {shard_id} {kind} := ").as_bytes(), shard, b";\n"].concat();
        let shard = or(&shard_id, shard_shift);
        (declared, if seq_above_shard { seq + &shard } else { shard + &seq })
    };
    let declared = format!(
        "\nDECLARE\n    {our_epoch} bigint := {};\n    {seq_id} bigint;\n    {now_millis} bigint;\n",
        epoch.get()
    );
    let rest = format!(
        ") % {} INTO {seq_id};\n\n    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO {now_millis};\n    \
         result := {};\n{fields}END;\n",
        layout.residues(),
        shifted(&time, time_shift),
    );
    let begin = b"BEGIN\n    SELECT nextval(";
    [declared.as_bytes(), &shard_declared, begin, sequence, rest.as_bytes()].concat()
}

/// Returns the name, with underscores added until it differs from all of these expressions.
fn apart(name: &str, expressions: &[&[u8]]) -> String {
    let mut name = name.to_owned();
    while expressions.iter().any(|expression| {
        let bare = expression.trim_ascii().strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        bare.unwrap_or(expression.trim_ascii()).eq_ignore_ascii_case(name.as_bytes())
    }) {
        name.push('_');
    }
    name
}
