//! Background workers.

pub(crate) mod driver;
pub(crate) mod worker;
