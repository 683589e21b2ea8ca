//! Hashes of rows and of keys, and keys as text.

use std::ffi::CStr;

use pgrx::datum::FromDatum;
use pgrx::{PgTupleDesc, pg_sys};

/// A column of a key.
pub(crate) struct KeyColumn {
    number: pg_sys::AttrNumber,
    /// The hash function of the type's default operator class, if it has one.
    pub(crate) hash: Option<pg_sys::FmgrInfo>,
    collation: pg_sys::Oid,
    /// The output function of the column's type.
    output: pg_sys::FmgrInfo,
}

impl KeyColumn {
    /// The hash of a row's value, or `None` if it is NULL or has no hash.
    ///
    /// # Safety
    /// The row is one of the column's table.
    pub(crate) unsafe fn hash(
        &mut self,
        row: pg_sys::HeapTuple,
        columns: pg_sys::TupleDesc,
        seed: i64,
    ) -> Option<i64> {
        let function = self.hash.as_mut()?;
        let mut is_null = false;
        // SAFETY: the caller's promise. The value has the type whose function is called.
        unsafe {
            let value = pg_sys::heap_getattr(row, self.number.into(), columns, &mut is_null);
            let seed = pg_sys::Datum::from(seed);
            if is_null {
                return None;
            }
            i64::from_datum(pg_sys::FunctionCall2Coll(function, self.collation, value, seed), false)
        }
    }
}

/// The values of a row in some columns, as one text.
///
/// # Safety
/// The row is one of the columns' table.
pub(crate) unsafe fn text_of(
    key: &mut [KeyColumn],
    row: pg_sys::HeapTuple,
    columns: pg_sys::TupleDesc,
) -> Vec<u8> {
    let texts: Vec<_> = key
        .iter_mut()
        .map(|column| {
            let mut is_null = false;
            // SAFETY: the caller's promise. The value has the type whose output function is called.
            unsafe {
                let value = pg_sys::heap_getattr(row, column.number.into(), columns, &mut is_null);
                if is_null {
                    &b"NULL"[..]
                } else {
                    CStr::from_ptr(pg_sys::OutputFunctionCall(&raw mut column.output, value)).to_bytes()
                }
            }
        })
        .collect();
    texts.join(&b", "[..])
}

/// A column of a key, or `None` if it does not exist.
///
/// # Safety
/// The relation is open.
pub(crate) unsafe fn key_column(relation: pg_sys::Relation, name: &CStr) -> Option<KeyColumn> {
    // SAFETY: the caller's promise. The cache has an entry for each type, and each type an output function.
    unsafe {
        let number = pg_sys::get_attnum((*relation).rd_id, name.as_ptr());
        let columns = PgTupleDesc::from_pg_unchecked((*relation).rd_att);
        let column = columns.iter().find(|a| a.attnum == number && number > 0)?;
        let wanted = pg_sys::TYPECACHE_HASH_EXTENDED_PROC.cast_signed();
        let hash = (*pg_sys::lookup_type_cache(column.atttypid, wanted)).hash_extended_proc;
        Some(KeyColumn {
            number,
            hash: (hash != pg_sys::Oid::INVALID).then(|| function(hash)),
            collation: column.attcollation,
            output: output_of(column.atttypid),
        })
    }
}

/// The output function of a type.
///
/// # Safety
/// The type exists.
unsafe fn output_of(of: pg_sys::Oid) -> pg_sys::FmgrInfo {
    let (mut output, mut is_varlena) = (pg_sys::Oid::INVALID, false);
    // SAFETY: the caller's promise. Each type has an output function.
    unsafe {
        pg_sys::getTypeOutputInfo(of, &raw mut output, &raw mut is_varlena);
        function(output)
    }
}

/// A function that can be called.
///
/// # Safety
/// The function exists.
unsafe fn function(oid: pg_sys::Oid) -> pg_sys::FmgrInfo {
    let mut function = pg_sys::FmgrInfo::default();
    // SAFETY: the caller's promise.
    unsafe { pg_sys::fmgr_info(oid, &raw mut function) };
    function
}

/// A column whose values are hashed.
pub(crate) struct HashedColumn {
    /// The column's place in a row, counted from 0.
    place: usize,
    /// The output function of the column's type.
    output: pg_sys::FmgrInfo,
}

/// The columns that a table stores, in the order of their names.
///
/// # Safety
/// The relation is open.
pub(crate) unsafe fn columns_by_name(relation: pg_sys::Relation) -> Vec<HashedColumn> {
    /// `pg_attribute.attgenerated` of a virtual column. To read it would run an expression of the owner.
    const VIRTUAL: u8 = b'v';
    // SAFETY: the caller's promise. Each column has a type, and each type an output function.
    unsafe {
        let columns = PgTupleDesc::from_pg_unchecked((*relation).rd_att);
        let mut stored: Vec<_> = columns
            .iter()
            .enumerate()
            .filter(|(_, a)| !a.attisdropped && a.attgenerated.to_ne_bytes() != [VIRTUAL])
            .collect();
        stored.sort_by_key(|(_, a)| CStr::from_ptr(a.attname.data.as_ptr()));
        stored.into_iter().map(|(place, a)| HashedColumn { place, output: output_of(a.atttypid) }).collect()
    }
}

/// A hash of a row: PostgreSQL's hash of the texts of its values, each after its length.
///
/// # Safety
/// The values and NULLs are a row's. The current memory context can be reset after the call.
pub(crate) unsafe fn hash_of(
    columns: &mut [HashedColumn],
    values: &[pg_sys::Datum],
    nulls: &[bool],
    bytes: &mut Vec<u8>,
) -> i64 {
    /// After so many bytes, the hash of the bytes becomes the seed for those that follow.
    const BLOCK: usize = 1 << 20;
    let mut hash = 0;
    bytes.clear();
    for HashedColumn { place, output } in columns {
        if nulls[*place] {
            bytes.push(0);
        } else {
            // SAFETY: the value has the type whose output function is called. The text ends with a zero.
            let text =
                unsafe { CStr::from_ptr(pg_sys::OutputFunctionCall(output, values[*place])) }.to_bytes();
            bytes.push(1);
            bytes.extend_from_slice(&text.len().to_le_bytes());
            bytes.extend_from_slice(text);
        }
        if bytes.len() >= BLOCK {
            hash = hash_bytes(bytes, hash);
            bytes.clear();
        }
    }
    hash_bytes(bytes, hash)
}

fn hash_bytes(bytes: &[u8], seed: i64) -> i64 {
    let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: reads no more bytes than there are.
    unsafe { pg_sys::hash_bytes_extended(bytes.as_ptr(), length, seed.cast_unsigned()) }.cast_signed()
}
