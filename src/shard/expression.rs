//! Expressions as the catalog stores them: trees of nodes, written as text.
//!
//! A check compares the defaults, constraints and index expressions of a shard with those of the other shards. Equal
//! expressions are stored with other OIDs and other shard numbers in each shard.

/// A stored expression in a form that is the same in all shards if the expression is.
///
/// Each OID of an object is replaced by the name that `name_of` returns. Positions in the source text are left out. If a
/// function of `minting` is called with the constant `shard` as its first argument, that constant is left out.
///
/// Returns `None` if `name_of` does not know an OID, because two expressions cannot be compared then.
#[must_use]
pub fn normalized_expression<'a>(
    tree: &[u8],
    name_of: impl Fn(u32) -> Option<&'a [u8]>,
    minting: &[u32],
    shard: i32,
) -> Option<Vec<u8>> {
    let mut kept = Vec::with_capacity(tree.len());
    let mut rest = tree;
    // Whether what follows is the first argument of a function of `minting`.
    let mut is_call_that_mints = false;
    while let Some(&first) = rest.first() {
        let mut read = 0;
        if first == b'{' {
            if let Some(oid) = object_constant(rest) {
                kept.extend_from_slice(name_of(oid)?);
                read = node_length(rest);
            } else if is_call_that_mints && integer(rest) == Some(shard) {
                read = node_length(rest);
            }
            is_call_that_mints = called(rest).is_some_and(|function| minting.contains(&function));
        } else if let Some(field) = Field::at(rest) {
            if !field.is_position() {
                kept.extend_from_slice(field.name);
                kept.extend_from_slice(match field.oid() {
                    Some(oid) => name_of(oid)?,
                    None => field.value,
                });
            }
            read = field.length();
        } else if first == b' ' && users_oid(word(&rest[1..])).is_some() {
            // An OID in a list, such as one of operators.
            return None;
        }
        if read == 0 {
            // Up to where the next node, field or number can begin.
            read = 1 + rest[1..].iter().take_while(|byte| !matches!(byte, b' ' | b'{')).count();
            kept.extend_from_slice(&rest[..read]);
        }
        rest = &rest[read..];
    }
    Some(kept)
}

/// The first argument of each call of one of `functions` in a stored expression, if it is a constant of type `integer`. For
/// functions that mint, these are the shards.
#[must_use]
pub fn minted_shards(tree: &[u8], functions: &[u32]) -> Vec<i32> {
    let nodes = (0..tree.len()).filter(|&at| tree[at] == b'{').map(|at| &tree[at..]);
    nodes
        .filter(|node| called(node).is_some_and(|function| functions.contains(&function)))
        .filter_map(|node| integer(&node[1 + node[1..].iter().position(|&byte| byte == b'{')?..]))
        .collect()
}

/// A field of a node: ` :name value`.
struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Field<'a> {
    /// The field that a text begins with, and the first word of its value.
    fn at(text: &'a [u8]) -> Option<Self> {
        let name = word(text.strip_prefix(b" :")?);
        let name = &text[..2 + name.len()];
        let value = word(text[name.len()..].strip_prefix(b" ")?);
        Some(Self { name, value: &text[name.len()..name.len() + 1 + value.len()] })
    }

    fn length(&self) -> usize {
        self.name.len() + self.value.len()
    }

    /// Whether the field says where in the source text the node was.
    fn is_position(&self) -> bool {
        matches!(self.name, b" :location" | b" :stmt_location" | b" :stmt_len")
    }

    /// The field's value, if it is the OID of a user's object. A type's modifier can be as large, but is no OID.
    fn oid(&self) -> Option<u32> {
        if self.name.ends_with(b"typmod") { None } else { users_oid(&self.value[1..]) }
    }
}

/// The function that a node calls.
fn called(node: &[u8]) -> Option<u32> {
    str::from_utf8(word(node.strip_prefix(b"{FUNCEXPR :funcid ")?)).ok()?.parse().ok()
}

/// The OID of a user's object, if a node is a constant of type `regclass` or another type that holds OIDs.
fn object_constant(node: &[u8]) -> Option<u32> {
    /// `regproc`, `regprocedure`, `regoper`, `regoperator`, `regclass`, `regtype`, `regconfig`, `regdictionary`,
    /// `regnamespace`, `regrole`, `regcollation`.
    const TYPES: [&[u8]; 11] =
        [b"24", b"2202", b"2203", b"2204", b"2205", b"2206", b"3734", b"3769", b"4089", b"4096", b"4191"];
    let of_type = word(node.strip_prefix(b"{CONST :consttype ")?);
    let oid = if TYPES.contains(&of_type) { datum(node)?.cast_unsigned() } else { return None };
    (oid >= FIRST_USERS_OID).then_some(oid)
}

/// The value of a node, if it is a constant of type `integer`.
fn integer(node: &[u8]) -> Option<i32> {
    if node.starts_with(b"{CONST :consttype 23 ") { datum(node) } else { None }
}

/// The value of a constant of four bytes. The catalog stores the bytes in the order of the machine's memory, each as a signed
/// or unsigned number.
fn datum(node: &[u8]) -> Option<i32> {
    let node = str::from_utf8(&node[..node_length(node)]).ok()?;
    let (_, bytes) = node.split_once(":constvalue 4 [ ")?;
    let mut datum = [0; 8];
    for (byte, number) in datum.iter_mut().zip(bytes.split(' ')) {
        [*byte, ..] = number.parse::<i16>().ok()?.to_le_bytes();
    }
    i32::try_from(i64::from_ne_bytes(datum) << 32 >> 32).ok()
}

/// How many bytes a node has that contains no other nodes.
fn node_length(node: &[u8]) -> usize {
    node.iter().position(|&byte| byte == b'}').map_or(node.len(), |end| end + 1)
}

/// The bytes up to a space, a parenthesis or a brace.
fn word(text: &[u8]) -> &[u8] {
    &text[..text.iter().take_while(|&&byte| !matches!(byte, b' ' | b'(' | b')' | b'{' | b'}')).count()]
}

/// PostgreSQL's `FirstUnpinnedObjectId`. Objects with lower OIDs are PostgreSQL's own, and the same in all databases.
const FIRST_USERS_OID: u32 = 12_000;

/// The OID of a user's object, if the word is a number that can be one. Other numbers in a tree are smaller, except in the
/// fields that [`Field::oid`] leaves out.
fn users_oid(word: &[u8]) -> Option<u32> {
    let oid = str::from_utf8(word).ok()?.parse().ok()?;
    (oid >= FIRST_USERS_OID).then_some(oid)
}
