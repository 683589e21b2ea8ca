//! Tests on real servers, with the extension as users get it. `make test` sets up what they need.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adoption;
mod attacks;
mod availability;
mod check;
mod clients;
mod databases;
mod distribute;
mod docs;
mod engines;
mod fleet;
mod fuzz;
mod installing;
mod map;
mod masking;
mod merging;
mod migrating;
mod migrations;
mod monitoring;
mod move_faults;
mod moves;
mod oracle;
mod ordinary;
mod pace;
mod partitions;
mod portable;
mod privileges;
mod reading;
mod regress;
mod resets;
mod rows;
mod shards;
mod tickets;
mod uniqueness;
mod updates;
mod writers;
