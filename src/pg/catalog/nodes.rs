//! Parse trees of the server.

use std::ffi::{CStr, c_char};
use std::slice;

use pgrx::pg_sys;

/// The node as a `T`.
///
/// # Safety
/// The node's tag says that it is a `T`, and the node outlives the result.
pub(crate) unsafe fn node<'a, T>(node: *mut pg_sys::Node) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*node.cast() }
}

/// The string, or `None` if it is null.
///
/// # Safety
/// The string is null, or outlives the result.
pub(crate) unsafe fn text<'a>(string: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
}

/// The elements of a list.
///
/// # Safety
/// The list is null, or holds pointers to `T` and outlives the result.
pub(crate) unsafe fn elements<'a, T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> + 'a {
    // SAFETY: a list has `length` cells, and an empty list is null.
    let cells = unsafe {
        match list.as_ref() {
            Some(list) => slice::from_raw_parts(list.elements, usize::try_from(list.length).unwrap_or(0)),
            None => &[],
        }
    };
    // SAFETY: the caller's promise.
    cells.iter().map(|cell| unsafe { cell.ptr_value.cast() })
}
