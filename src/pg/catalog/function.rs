//! Calls functions of users with the rights of another role.

use std::ffi::CString;
use std::{ptr, slice};

use pgrx::datum::FromDatum;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

use super::owner::restricted;

/// Why a function was not called.
pub(crate) enum NotCalled {
    /// No function has this OID.
    NoFunction(u32),
    /// The function does not return one `bigint`, or it takes other arguments.
    OtherKind,
}

/// Calls a function that returns a `bigint` as a role, and returns its result. All code that the call runs has the rights of that
/// role alone and cannot change the role, as in core's maintenance commands. The function is identified by its OID, because
/// another function can get its name meanwhile.
///
/// The user must be able to become the role, and the role must be allowed to call the function. Arguments are given as texts. An
/// argument of a user's type must be NULL, because reading its text would run code of the type's owner.
///
/// The caller must roll back what the function does with a subtransaction. The rollback discards work for the end of the
/// transaction, such as deferred triggers, and restores the user after an error.
///
/// # Errors
/// [`NotCalled`]. Raises PostgreSQL's own error if a privilege is missing, or if the function fails.
pub(crate) fn call_as(
    function: pg_sys::Oid,
    role: pg_sys::Oid,
    arguments: &[Option<CString>],
) -> Result<Option<i64>, NotCalled> {
    let types = signature(function)?;
    let is_own = |kind: pg_sys::Oid| kind.to_u32() < pg_sys::FirstNormalObjectId;
    let fits = |(kind, argument): (&pg_sys::Oid, &Option<CString>)| argument.is_none() || is_own(*kind);
    if types.len() != arguments.len() || !types.iter().zip(arguments).all(fits) {
        return Err(NotCalled::OtherKind);
    }
    require_rights(function, role);
    Ok(restricted(role, || {
        // SAFETY: the call has room for all arguments, all of them are written, and `called` belongs to the function. The
        // boundary turns a longjmp into an unwind, and nothing in the closure needs dropping.
        unsafe {
            let mut called = pg_sys::FmgrInfo::default();
            pg_sys::fmgr_info(function, &raw mut called);
            let size = size_of::<pg_sys::FunctionCallInfoBaseData>()
                + arguments.len() * size_of::<pg_sys::NullableDatum>();
            let call = pg_sys::palloc0(size).cast::<pg_sys::FunctionCallInfoBaseData>();
            (*call).flinfo = &raw mut called;
            (*call).fncollation = pg_sys::DEFAULT_COLLATION_OID;
            (*call).nargs = i16::try_from(arguments.len()).unwrap_or(0);
            let values = slice::from_raw_parts_mut((*call).args.as_mut_ptr(), arguments.len());
            for ((value, argument), &kind) in values.iter_mut().zip(arguments).zip(&types) {
                *value = read(kind, argument.as_ref());
            }
            let is_absent = called.fn_strict && arguments.iter().any(Option::is_none);
            let address = called.fn_addr.filter(|_| !is_absent)?;
            let result = pg_guard_ffi_boundary(|| address(call));
            i64::from_datum(result, (*call).isnull)
        }
    }))
}

/// Returns the types of a function's arguments.
///
/// # Errors
/// [`NotCalled`].
fn signature(function: pg_sys::Oid) -> Result<Vec<pg_sys::Oid>, NotCalled> {
    // SAFETY: get_func_name takes any OID, and the other functions get the OID of a function that exists.
    unsafe {
        if pg_sys::get_func_name(function).is_null() {
            return Err(NotCalled::NoFunction(function.to_u32()));
        }
        let (mut types, mut number) = (ptr::null_mut(), 0);
        let result = pg_sys::get_func_signature(function, &raw mut types, &raw mut number);
        let is_function = pg_sys::get_func_prokind(function).to_ne_bytes() == [pg_sys::PROKIND_FUNCTION];
        if !is_function || result != pg_sys::INT8OID || pg_sys::get_func_retset(function) {
            return Err(NotCalled::OtherKind);
        }
        let number = usize::try_from(number).unwrap_or(0);
        Ok(if number == 0 { Vec::new() } else { slice::from_raw_parts(types, number).to_vec() })
    }
}

/// Raises PostgreSQL's own error if the user cannot become a role, or the role may not call a function.
fn require_rights(function: pg_sys::Oid, role: pg_sys::Oid) {
    // SAFETY: the arguments are the OIDs of a role and of a function that exists.
    unsafe {
        let execute = pg_sys::AclMode::from(pg_sys::ACL_EXECUTE);
        #[cfg(feature = "pg15")]
        let privilege = {
            pg_sys::check_is_member_of_role(pg_sys::GetUserId(), role);
            pg_sys::pg_proc_aclcheck(function, role, execute)
        };
        #[cfg(not(feature = "pg15"))]
        let privilege = {
            pg_sys::check_can_set_role(pg_sys::GetUserId(), role);
            pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, role, execute)
        };
        if privilege != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(
                privilege,
                pg_sys::ObjectType::OBJECT_FUNCTION,
                pg_sys::get_func_name(function),
            );
        }
    }
}

/// Returns the value of one of PostgreSQL's own types that a text stands for.
///
/// # Safety
/// A type with this OID exists.
unsafe fn read(kind: pg_sys::Oid, text: Option<&CString>) -> pg_sys::NullableDatum {
    let Some(text) = text else {
        return pg_sys::NullableDatum { value: pg_sys::Datum::from(0), isnull: true };
    };
    let (mut input, mut parameter) = (pg_sys::Oid::INVALID, pg_sys::Oid::INVALID);
    // SAFETY: the caller promises that the type exists, and its input function does not change the string.
    let value = unsafe {
        pg_sys::getTypeInputInfo(kind, &raw mut input, &raw mut parameter);
        pg_sys::OidInputFunctionCall(input, text.as_ptr().cast_mut(), parameter, -1)
    };
    pg_sys::NullableDatum { value, isnull: false }
}
