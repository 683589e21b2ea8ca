//! The type `id_layout` as the server stores it: 16 bytes, passed by reference.

use std::ptr;

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, FromDatum, Internal};
use pgrx::pg_sys;
use pgrx::pgrx_resolved_type;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

use crate::id::{Fields, InvalidLayout, Layout, Millis};

/// A layout as an argument or a result. What comes from the server is checked when it is used: nothing but
/// the type's own input makes it, but a cast or a broken page could.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredLayout(Stored);

/// In memory and on disk, in the byte order of the machine: as CREATE TYPE in sql/layouts.sql says, of 16 bytes,
/// aligned to 8. Equal layouts are equal byte by byte.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stored {
    epoch_ms: i64,
    unit_ms: u32,
    time_bits: u8,
    shard_bits: u8,
    seq_bits: u8,
    seq_above_shard: u8,
}

const _: () = assert!(size_of::<Stored>() == 16 && align_of::<Stored>() == 8);

impl From<Layout> for StoredLayout {
    fn from(layout: Layout) -> Self {
        let Fields { epoch, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = layout.fields();
        #[expect(clippy::cast_possible_truncation, reason = "64 at most")]
        Self(Stored {
            epoch_ms: epoch.get(),
            unit_ms,
            time_bits: time_bits as u8,
            shard_bits: shard_bits as u8,
            seq_bits: seq_bits as u8,
            seq_above_shard: seq_above_shard.into(),
        })
    }
}

impl TryFrom<StoredLayout> for Layout {
    type Error = InvalidLayout;

    fn try_from(StoredLayout(stored): StoredLayout) -> Result<Self, InvalidLayout> {
        Self::new(Fields {
            epoch: Millis::new(stored.epoch_ms),
            unit_ms: stored.unit_ms,
            time_bits: stored.time_bits.into(),
            shard_bits: stored.shard_bits.into(),
            seq_bits: stored.seq_bits.into(),
            seq_above_shard: stored.seq_above_shard != 0,
        })
    }
}

impl StoredLayout {
    /// No layout: what stands for NULL in a function that is strict, so never used.
    const NONE: Self = Self(Stored {
        epoch_ms: 0,
        unit_ms: 0,
        time_bits: 0,
        shard_bits: 0,
        seq_bits: 0,
        seq_above_shard: 0,
    });

    /// The binary format: the fields in the order in which they are stored, most significant byte first.
    pub(crate) fn send(self) -> Vec<u8> {
        let Stored { epoch_ms, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = self.0;
        let bits = [time_bits, shard_bits, seq_bits, seq_above_shard];
        [&epoch_ms.to_be_bytes()[..], &unit_ms.to_be_bytes(), &bits].concat()
    }

    /// Reads the binary format from the message that a receive function is given. Raises the server's own error
    /// if that is too short.
    pub(crate) fn receive(mut message: Internal) -> Self {
        // SAFETY: SQL cannot make a value of type `internal`, so it comes from the server, which gives a
        // receive function its message. The bindings turn an error raised inside into an unwind.
        unsafe {
            let message = message.get_mut::<pg_sys::StringInfoData>().map_or(ptr::null_mut(), ptr::from_mut);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a byte")]
            let byte = || pg_sys::pq_getmsgbyte(message) as u8;
            Self(Stored {
                epoch_ms: pg_sys::pq_getmsgint64(message),
                unit_ms: pg_sys::pq_getmsgint(message, 4),
                time_bits: byte(),
                shard_bits: byte(),
                seq_bits: byte(),
                seq_above_shard: byte(),
            })
        }
    }
}

// SAFETY: declared as sql/layouts.sql makes it.
unsafe impl SqlTranslatable for StoredLayout {
    const TYPE_IDENT: &'static str = pgrx_resolved_type!(StoredLayout);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::ThisExtension;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("id_layout"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("id_layout")));
}

impl StoredLayout {
    /// Whether a type has the same form. It has another OID in each database.
    pub(crate) fn is_like(of: pg_sys::Oid) -> bool {
        let (mut length, mut by_value, mut align) = (0, false, 0);
        // SAFETY: takes the OID of a type, which the caller has of a column.
        unsafe { pg_sys::get_typlenbyvalalign(of, &raw mut length, &raw mut by_value, &raw mut align) };
        usize::try_from(length) == Ok(size_of::<Stored>()) && !by_value && align == b'd'.cast_signed()
    }
}

impl FromDatum for StoredLayout {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the caller passes an `id_layout`: a pointer to its bytes, aligned as the type asks for.
        (!is_null).then(|| Self(unsafe { *datum.cast_mut_ptr::<Stored>() }))
    }
}

// SAFETY: as for `FromDatum`.
unsafe impl<'fcx> ArgAbi<'fcx> for StoredLayout {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller keeps what `ArgAbi` asks of it.
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Self::NONE)
    }
}

// SAFETY: the result is a pointer to bytes that the server's current memory context owns.
unsafe impl BoxRet for StoredLayout {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: `palloc` returns memory of that size, aligned for any type, or raises.
        unsafe {
            let stored: *mut Stored = pg_sys::palloc(size_of::<Stored>()).cast();
            stored.write(self.0);
            fcinfo.return_raw_datum(pg_sys::Datum::from(stored))
        }
    }
}
