//! The order of a session's ids: the ids of one sequence, shard and layout strictly increase.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Key, Stamp};
use crate::id::Seq;

/// The last id of each sequence, shard and layout that a session mints from.
///
/// An entry from before the server's time has no effect any more. Such entries are dropped when the map would have to grow.
/// So the map holds as many entries as the session can mint ids within the time that ids may run ahead.
#[derive(Default)]
pub struct SessionOrder {
    last: HashMap<Key, Last, BuildHasherDefault<AsHashed>>,
}

/// A session's last id of one sequence, shard and layout. The default comes before all ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Last {
    /// The last millisecond of its unit of time.
    until: Stamp,
    seq: Seq,
}

impl Last {
    /// The first millisecond in which an id with this sequence field comes after the last id.
    #[must_use]
    pub fn earliest(self, seq: Seq) -> Stamp {
        if seq > self.seq { self.until } else { self.until.plus(1) }
    }

    /// Records a newer id, given by the last millisecond of its unit of time and its sequence field.
    pub fn record(&mut self, until: Stamp, seq: Seq) {
        *self = Self { until, seq };
    }
}

impl SessionOrder {
    /// The last id of a sequence, shard and layout. `now` is the server's time.
    pub fn last(&mut self, key: Key, now: Stamp) -> &mut Last {
        if self.last.len() == self.last.capacity() && !self.last.contains_key(&key) {
            self.last.retain(|_, last| last.until >= now);
        }
        self.last.entry(key).or_default()
    }

    /// How many entries are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether no entry is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}

/// A hasher that returns keys as they are, because they are hashes.
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
