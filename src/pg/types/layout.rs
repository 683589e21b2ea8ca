//! The SQL type `id_layout`: 16 bytes, passed by reference.

use std::ptr;

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, FromDatum, Internal};
use pgrx::pg_sys;
use pgrx::pgrx_resolved_type;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

use super::argument::Plain;
use crate::id::{Fields, InvalidLayout, Layout, Millis};

/// A layout as an argument or a result. It is checked when it is converted to a [`Layout`]: a cast or a broken page can
/// contain a value that the type's input functions would refuse.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct StoredLayout(Stored);

/// The value in memory and on disk, in the byte order of the machine. CREATE TYPE declares its length of 16 bytes and its
/// alignment to 8. Equal layouts are equal byte by byte.
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
    /// An invalid layout in the place of a NULL. Functions that take layouts are strict, so they never see it.
    const NONE: Self = Self(Stored {
        epoch_ms: 0,
        unit_ms: 0,
        time_bits: 0,
        shard_bits: 0,
        seq_bits: 0,
        seq_above_shard: 0,
    });

    /// The binary format: the fields in the order in which they are stored, each with its most significant byte first.
    pub(crate) fn send(self) -> Vec<u8> {
        let Stored { epoch_ms, unit_ms, time_bits, shard_bits, seq_bits, seq_above_shard } = self.0;
        let bits = [time_bits, shard_bits, seq_bits, seq_above_shard];
        [&epoch_ms.to_be_bytes()[..], &unit_ms.to_be_bytes(), &bits].concat()
    }

    /// Reads the binary format from the argument of a receive function. Raises PostgreSQL's own error if that is too short.
    pub(crate) fn receive(mut message: Internal) -> Self {
        // SAFETY: SQL cannot make a value of type `internal`, so this is the message that the server gives to a receive
        // function. The bindings turn an error into an unwind.
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

    /// Whether values of a type have the length, alignment and passing of this one. The OID of `id_layout` differs between
    /// databases.
    pub(crate) fn is_like(of: pg_sys::Oid) -> bool {
        let (mut length, mut by_value, mut align) = (0, false, 0);
        // SAFETY: takes the OID of a type.
        unsafe { pg_sys::get_typlenbyvalalign(of, &raw mut length, &raw mut by_value, &raw mut align) };
        usize::try_from(length) == Ok(size_of::<Stored>()) && !by_value && align == b'd'.cast_signed()
    }
}

// SAFETY: as the extension's CREATE TYPE declares it.
unsafe impl SqlTranslatable for StoredLayout {
    const TYPE_IDENT: &'static str = pgrx_resolved_type!(StoredLayout);
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::ThisExtension;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::literal("id_layout"));
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> =
        Ok(ReturnsRef::One(SqlMappingRef::literal("id_layout")));
}

impl Plain for StoredLayout {
    unsafe fn of(datum: pg_sys::Datum) -> Self {
        // SAFETY: the caller passes an `id_layout`: a pointer to bytes with the alignment of the type. The pointer is
        // null only if a superuser has declared the function as not strict.
        unsafe { datum.cast_mut_ptr::<Stored>().as_ref() }.map_or(Self::NONE, |stored| Self(*stored))
    }
}

impl FromDatum for StoredLayout {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _: pg_sys::Oid) -> Option<Self> {
        // SAFETY: as for `Plain`.
        (!is_null).then(|| unsafe { Self::of(datum) })
    }
}

// SAFETY: as for `Plain`.
unsafe impl<'fcx> ArgAbi<'fcx> for StoredLayout {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the caller keeps what `ArgAbi` asks for.
        unsafe { arg.unbox_arg_using_from_datum() }.unwrap_or(Self::NONE)
    }
}

// SAFETY: the result is a pointer to bytes in the server's current memory context.
unsafe impl BoxRet for StoredLayout {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: `palloc` returns memory of this size with an alignment for any type, or raises an error.
        unsafe {
            let stored: *mut Stored = pg_sys::palloc(size_of::<Stored>()).cast();
            stored.write(self.0);
            fcinfo.return_raw_datum(pg_sys::Datum::from(stored))
        }
    }
}
