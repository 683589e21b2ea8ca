//! Relations, functions and their rights: the extension's own tables, and those of users.

mod allowed;
pub(crate) mod function;
mod hashes;
pub(crate) mod held;
pub(crate) mod locks;
mod nodes;
pub(crate) mod owner;
pub(crate) mod parser;
pub(crate) mod relation;
pub(crate) mod rows;
mod scan;
pub(crate) mod sequence;
pub(crate) mod tables;
mod targets;
