//! The order of a session's ids: the ids of one sequence, shard and layout strictly increase.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Key, Stamp};
use crate::id::Seq;

/// The last id of each sequence, shard and layout that a session mints from.
///
/// An entry from before the server's time has no effect any more. Such entries are dropped when the map would have to grow.
/// So the map holds as many entries as the session can mint ids within the time that ids may run ahead.
pub struct SessionOrder {
    /// The keys that were asked for last, each in the place that its hash chooses. The map does not have them.
    recent: [(Key, Last); RECENT],
    older: HashMap<Key, Last, BuildHasherDefault<AsHashed>>,
}

/// A power of two. With 256 places, 16 keys are all found in theirs in two of three sessions.
const RECENT: usize = 256;

impl Default for SessionOrder {
    fn default() -> Self {
        Self::new()
    }
}

/// A session's last id of one sequence, shard and layout. The default comes before all ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Last {
    /// The last millisecond of its unit of time.
    until: Stamp,
    seq: Seq,
}

impl Last {
    const NONE: Self = Self { until: Stamp::from_bits(0), seq: Seq::FIRST };

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
    /// No ids.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            // The first key is one like others, and nothing was minted for it.
            recent: [(Key::FIRST, Last::NONE); RECENT],
            older: HashMap::with_hasher(BuildHasherDefault::new()),
        }
    }

    /// The last id of a sequence, shard and layout. `now` is the server's time.
    #[inline]
    pub fn last(&mut self, key: Key, now: Stamp) -> &mut Last {
        let place = key.low() % RECENT;
        if self.recent[place].0 != key {
            self.recall(place, key, now);
        }
        &mut self.recent[place].1
    }

    /// Puts a key into its place, and the one that had the place into the map.
    #[inline(never)]
    fn recall(&mut self, place: usize, key: Key, now: Stamp) {
        let last = self.older.remove(&key).unwrap_or_default();
        let (older, its_last) = std::mem::replace(&mut self.recent[place], (key, last));
        if its_last.until < now {
            return;
        }
        if self.older.len() == self.older.capacity() {
            self.older.retain(|_, last| last.until >= now);
        }
        self.older.insert(older, its_last);
    }

    /// How many entries the map has.
    #[must_use]
    pub fn older(&self) -> usize {
        self.older.len()
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
