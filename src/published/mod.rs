//! The published function: what a function in PL/pgSQL or SQL mints, if it does just that, and the text of one.
//!
//! A text is not run, but worked out with the clock, the sequence and the arguments left open. What comes out is an
//! id of the layout, or the function is left alone. This module knows no server: types and functions are told by
//! their names.
//!
//! # References
//! Mike Krieger, "Sharding & IDs at Instagram", Instagram Engineering, 2011.

mod error;
mod number;
mod reader;
mod shape;
mod tokens;

pub use error::Unreadable;

use crate::id::{Fields, Layout, readable};

/// What a function mints from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minting {
    /// The shard; 0 where the layout has none.
    pub shard: Operand<i32>,
    /// What `nextval` takes: a text that names a sequence.
    pub sequence: Operand<Vec<u8>>,
    /// Whether it calls `next_id`, and does not compute the id.
    pub native: bool,
}

/// Where a function has a value from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand<T> {
    /// It is written in the function.
    Constant(T),
    /// It is this one of the input arguments, the first of which is 1.
    Argument(usize),
}

/// The language of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// PL/pgSQL.
    PlPgSql,
    /// SQL: as text, or as `pg_get_function_sqlbody` has it.
    Sql,
}

/// A function as `pg_proc` has it.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Its language.
    pub language: Language,
    /// Its body, in the encoding of its database.
    pub source: &'a [u8],
    /// The names of its input arguments, which are empty where there is none.
    pub arguments: &'a [Vec<u8>],
    /// The name of its OUT argument, which must be the last: in PL/pgSQL, `$1` and so on count it, too.
    pub result: Option<&'a [u8]>,
}

/// What a function mints from, if what it returns is an id of the layout: the milliseconds of the clock since the
/// epoch, in the layout's unit, the shard, and the sequence's next value modulo what its field holds, each where
/// the layout has it. How wide its time is makes no difference.
///
/// # Errors
/// [`Unreadable`], if it is anything else, or cannot be told.
///
/// # Examples
/// ```
/// use insta_ids::id::Layout;
/// use insta_ids::published::{Function, Language, Operand, Unreadable, read};
///
/// let source = b"SELECT floor(extract(epoch from now()) * 1000)::bigint - 1314220021721 << 23
///     | (5 << 10) | nextval('insta5.table_id_seq') % 1024";
/// let function = Function { language: Language::Sql, source, arguments: &[], result: None };
/// let minting = read(&function, Layout::INSTAGRAM)?;
/// assert_eq!(minting.shard, Operand::Constant(5));
/// assert_eq!(minting.sequence, Operand::Constant(b"insta5.table_id_seq".to_vec()));
///
/// // Without the parentheses, the time is shifted twice.
/// let source = &source.iter().copied().filter(|byte| !b"()".contains(byte)).collect::<Vec<_>>()[..];
/// assert!(read(&Function { source, ..function }, Layout::INSTAGRAM).is_err());
/// # Ok::<(), Unreadable>(())
/// ```
pub fn read(function: &Function, layout: Layout) -> Result<Minting, Unreadable> {
    reader::result(function)?.minting(layout)
}

/// The body of a function in PL/pgSQL that mints ids of the layout into its OUT argument `result`, as the article
/// has it. The shard and the sequence are expressions: `5`, `'insta5.table_id_seq'`, or arguments.
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
        // Where an `int` would lose bits.
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

/// A name that is none of these expressions.
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

/// The first line of a text, as it can stand in a message.
fn quotation(text: &[u8]) -> String {
    let line = text.trim_ascii().split(|byte| b"\n\r".contains(byte)).next();
    readable(line.unwrap_or_default().trim_ascii())
}
