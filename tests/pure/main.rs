//! Tests of the pure code, with no server.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod balance;
mod ddl;
mod dump;
mod expression;
mod known_answers;
mod mask;
mod mint;
mod mint_layouts;
mod moves;
mod placement;
mod properties;
mod published;
mod resets;
mod texts;
mod writers;
