//! Arguments of the functions that are called for every row.

use pgrx::callconv::{Arg, ArgAbi};
use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};

/// Argument number `N`, from 0 on, read where the server has put it. The way that pgrx has to an argument goes through
/// calls and memory, which costs as much as decoding an id does.
///
/// For functions that are `strict`, as a NULL would be read as a value, and of which every argument is one, as those that
/// pgrx reads by itself would be counted without these.
#[derive(Clone, Copy)]
pub(crate) struct Nth<const N: usize, T>(pub(crate) T);

/// What is passed as a value.
pub(crate) trait ByValue {
    fn of(datum: pg_sys::Datum) -> Self;
}

impl ByValue for u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the server has extended what is narrower")]
    fn of(datum: pg_sys::Datum) -> Self {
        datum.value() as Self
    }
}

impl ByValue for i32 {
    fn of(datum: pg_sys::Datum) -> Self {
        u32::of(datum).cast_signed()
    }
}

impl ByValue for i64 {
    fn of(datum: pg_sys::Datum) -> Self {
        (datum.value() as u64).cast_signed()
    }
}

// SAFETY: reads the argument that SQL declares in its place. pgrx passes over arguments that it calls virtual.
unsafe impl<'fcx, const N: usize, T: ByValue> ArgAbi<'fcx> for Nth<N, T> {
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

// SAFETY: the type itself, in SQL.
unsafe impl<const N: usize, T: SqlTranslatable> SqlTranslatable for Nth<N, T> {
    const TYPE_IDENT: &'static str = T::TYPE_IDENT;
    const TYPE_ORIGIN: TypeOrigin = T::TYPE_ORIGIN;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = T::ARGUMENT_SQL;
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = T::RETURN_SQL;
}
