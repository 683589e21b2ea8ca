//! Promise: a shard is there entirely or not at all, and is like all the others; whoever else makes shards, whatever
//! they are called, and wherever the extension is.

mod alone;
mod copies;
mod dropping;
mod keys;
mod making;
mod names;
mod owners;
