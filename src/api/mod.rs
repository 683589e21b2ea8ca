//! The functions of SQL, one file per chapter of docs/reference.md, where each is described. Thin: each turns
//! its arguments into the types of [`crate::id`], and errors into [`crate::report`]'s.

mod minting;
mod reading;
