//! Promise: never the same id twice, whatever the clock, the crash or the promotion.
//!
//! Servers whose clock is libfaketime's, sessions that write down every id they are given outside of the
//! server, faults, and then a look at all that was written: duplicates, order, time. `make torture` runs it
//! at length, `make test` shortly. What it does is drawn from a seed, which it prints.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../server/chance.rs"]
#[allow(dead_code, reason = "shared with tests/server")]
mod chance;
mod clock;
#[path = "../server/cluster.rs"]
#[allow(dead_code, reason = "shared with tests/server")]
mod cluster;
mod copies;
mod crash;
mod fault;
mod lease;
mod minters;
mod moves;
#[path = "../server/pair.rs"]
#[allow(dead_code, reason = "shared with tests/server")]
mod pair;
mod provisioning;
mod standby;
