//! The order of a session's ids: those of one sequence and shard strictly increase.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::Key;
use crate::id::{Millis, Seq};

/// The last id of each sequence and shard that a session mints from.
///
/// Bounded by what the session can mint within the time that ids may run ahead: an entry from before
/// the server's time says nothing any more, and is dropped when the map would have to grow.
#[derive(Default)]
pub struct SessionOrder {
    last: HashMap<Key, (Millis, Seq), BuildHasherDefault<AsHashed>>,
}

impl SessionOrder {
    /// The first millisecond in which an id with this residue comes after the session's last one.
    #[must_use]
    pub fn earliest(&self, key: Key, seq: Seq) -> Millis {
        match self.last.get(&key) {
            Some(&(at, last)) if seq > last => at,
            Some(&(at, _)) => at.plus(1),
            None => Millis::new(0),
        }
    }

    /// Records the session's newest id. `now` is a time that no later id goes below.
    pub fn record(&mut self, key: Key, at: Millis, seq: Seq, now: Millis) {
        if self.last.len() == self.last.capacity() && !self.last.contains_key(&key) {
            self.last.retain(|_, &mut (at, _)| at >= now);
        }
        self.last.insert(key, (at, seq));
    }

    /// How many sequences and shards are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}

/// The hasher of keys, which are hashes already.
#[derive(Default)]
struct AsHashed(u64);

impl Hasher for AsHashed {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
