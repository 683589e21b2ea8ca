//! The published function: unadopt writes its text, and adopt recognizes it. While a schema is a shard, one call of `next_id`
//! stands in its place, which is read here, too.
//!
//! This module knows no server, so it identifies types and functions by their names.
//!
//! # References
//! Mike Krieger, "Sharding & IDs at Instagram", Instagram Engineering, 2011.

mod call;
mod tokens;

pub use call::{Call, Operand, read_call};

use std::str::FromStr;

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

/// What a published function mints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its shard and its sequence.
    pub call: Call,
    /// The beginning of its time, in Unix milliseconds.
    pub epoch: i64,
}

/// Reads the text of a function that is the published one for this layout, with any epoch, shard and sequence. Returns `None` for any
/// other text. There are three forms: the one that [`write()`] returns, the same with a `RETURN` instead of the OUT argument, and one
/// that uses the time of the transaction. Blanks, comments and capitals make no difference. All forms call only PostgreSQL's own
/// functions.
///
/// # Examples
/// ```
/// use insta_ids::id::Layout;
/// use insta_ids::published::{Function, Operand, read_published, write};
///
/// let text = write(Layout::INSTAGRAM, b"5", b"'insta5.table_id_seq'");
/// let function = Function { source: &text, arguments: &[], result: Some(b"result") };
/// let published = read_published(&function, Layout::INSTAGRAM).unwrap();
/// assert_eq!((published.call.shard, published.epoch), (Operand::Constant(5), 1_314_220_021_721));
/// assert_eq!(read_published(&Function { source: b"BEGIN result := 1; END", ..function }, Layout::INSTAGRAM), None);
/// ```
#[must_use]
pub fn read_published(function: &Function, layout: Layout) -> Option<Published> {
    let text = tokens(function.source)?;
    let article = String::from_utf8_lossy(&write(layout, SHARD, SEQUENCE)).into_owned();
    let declared =
        article.replace("\nBEGIN", "\n result bigint;\nBEGIN").replace("END;", "RETURN result;\nEND;");
    let mut forms = vec![(article, true), (declared, false)];
    if Layout::INSTAGRAM.fields() == (Fields { epoch: Layout::INSTAGRAM.fields().epoch, ..layout.fields() }) {
        forms.push((BY_NOW.to_owned(), true));
    }
    let mut forms = forms.iter().filter(|(_, has_result)| *has_result == function.result.is_some());
    forms.find_map(|(form, _)| read_form(function, &text, &tokens(form.as_bytes())?))
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

/// Reads a text that is one of this form, in which other tokens may stand for the shard, the sequence, the result and the epoch, which
/// is the first number of each form.
fn read_form(function: &Function, text: &[Token], form: &[Token]) -> Option<Published> {
    // The last semicolon may be absent.
    let without_end =
        |tokens: &[Token]| tokens.len() - usize::from(tokens.last() == Some(&Token::Symbol(b";")));
    let (text, form) = (&text[..without_end(text)], &form[..without_end(form)]);
    if text.len() != form.len() {
        return None;
    }
    let argument = |token: &Token| match token {
        Token::Parameter(number) => Some(*number),
        // A variable of the function hides an argument with its name.
        Token::Word(name) | Token::Quoted(name) if !form.contains(&Token::Word(name.clone())) => {
            Some(1 + function.arguments.iter().position(|argument| argument == name)?)
        }
        _ => None,
    };
    let (mut shard, mut sequence, mut epoch) = (Operand::Constant(0), None, None);
    for (token, expected) in text.iter().zip(form) {
        match expected {
            Token::Word(word) if word == SHARD => {
                shard = match argument(token) {
                    Some(place) => Operand::Argument(place),
                    None => Operand::Constant(number(token)?),
                };
            }
            Token::Word(word) if word == SEQUENCE => {
                sequence = match token {
                    Token::Literal(name) => Some(Operand::Constant(name.clone())),
                    _ => Some(Operand::Argument(argument(token)?)),
                };
            }
            Token::Number(_) if epoch.is_none() => epoch = Some(number(token)?),
            Token::Word(word) if word == b"result" => match token {
                Token::Word(name) | Token::Quoted(name) if name == function.result.unwrap_or(b"result") => (),
                _ => return None,
            },
            _ if token == expected => (),
            _ => return None,
        }
    }
    Some(Published { call: Call { shard, sequence: sequence? }, epoch: epoch? })
}

/// The value of a number without a point or an exponent.
fn number<T: FromStr>(token: &Token) -> Option<T> {
    let Token::Number(number) = token else { return None };
    std::str::from_utf8(number).ok()?.parse().ok()
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
