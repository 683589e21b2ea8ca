//! What a shard is, without a server: the name of its schema, where it lives, the DDL that its migrations run, and the
//! expressions that its tables store.
//!
//! Pure functions over texts and values. This module knows neither PostgreSQL's bindings nor the extension's tables.

pub mod balance;
pub mod ddl;
pub mod dump;
pub mod expression;
pub mod placement;
