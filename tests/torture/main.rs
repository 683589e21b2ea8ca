//! Promise: never the same id twice, whatever the clock, the crash or the promotion.
//!
//! Servers whose clock is libfaketime's, sessions that write down every id they are given outside of the
//! server, faults, and then a look at all that was written: duplicates, order, time. `make torture` runs it
//! at length, `make test` shortly. What it does is drawn from a seed, which it prints.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod copies;
mod crash;
mod lease;
mod moves;
mod portable;
mod provisioning;
mod standby;
