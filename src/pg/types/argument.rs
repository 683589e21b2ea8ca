//! Arguments of functions that are called for every row, read without pgrx's overhead.

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// Argument number `N`, counted from 0, read where the server has put it. pgrx's way to read an argument costs as much time as
/// decoding an id.
///
/// The function must be `strict`, because a NULL would be read as a value. All of its arguments must be `Nth`, because pgrx
/// does not count these when it reads others.
#[derive(Clone, Copy)]
pub(crate) struct Nth<const N: usize, T>(pub(crate) T);

/// A type whose values are read from a datum at once.
pub(crate) trait Plain {
    /// The value in a datum.
    ///
    /// # Safety
    /// The datum is of this type, and not NULL.
    unsafe fn of(datum: pg_sys::Datum) -> Self;
}

impl Plain for u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the server extends a narrower value to a datum")]
    unsafe fn of(datum: pg_sys::Datum) -> Self {
        datum.value() as Self
    }
}

impl Plain for i32 {
    unsafe fn of(datum: pg_sys::Datum) -> Self {
        // SAFETY: the caller keeps what `Plain::of` asks for.
        unsafe { u32::of(datum) }.cast_signed()
    }
}

impl Plain for i64 {
    unsafe fn of(datum: pg_sys::Datum) -> Self {
        (datum.value() as u64).cast_signed()
    }
}

// SAFETY: reads the argument that SQL declares at this place. pgrx skips arguments that it calls virtual.
unsafe impl<'fcx, const N: usize, T: Plain> ArgAbi<'fcx> for Nth<N, T> {
    unsafe fn unbox_arg_unchecked(arg: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the server passes as many arguments as SQL declares, which is as many as the Rust function has.
        unsafe {
            let call = pg_sys::FunctionCallInfo::unbox_arg_unchecked(arg);
            Self(T::of((*(*call).args.as_ptr().add(N)).value))
        }
    }

    fn is_virtual_arg() -> bool {
        true
    }
}

// SAFETY: in SQL it is the type `T` itself.
unsafe impl<const N: usize, T: SqlTranslatable> SqlTranslatable for Nth<N, T> {
    const TYPE_IDENT: &'static str = T::TYPE_IDENT;
    const TYPE_ORIGIN: TypeOrigin = T::TYPE_ORIGIN;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = T::ARGUMENT_SQL;
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = T::RETURN_SQL;
}
