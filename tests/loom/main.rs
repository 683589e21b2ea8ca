//! The mint loop in every interleaving of its sessions, by the model checker loom. It sees the very source
//! of src/mint, over loom's atomics.
#![allow(missing_docs, unreachable_pub, dead_code, unused_imports, clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

#[path = "../../src/id/mod.rs"]
mod id;

mod mint;

use id::{Id, Millis, Seq, Shard};
use mint::{Clock, Mint, SharedTime, Slot};

const NOW: i64 = 1_800_000_000_000;
const AHEAD_MS: i64 = 10;

/// One session's reading of the clock; no wait is needed for so few ids.
struct Reading(i64);

impl Clock for Reading {
    fn now(&self) -> Millis {
        Millis::new(self.0)
    }

    fn wait(&self, _: i64) {
        unreachable!("there is room ahead");
    }
}

struct Server {
    time: SharedTime,
    cell: AtomicU64,
}

impl Server {
    /// Mints with the one residue there is, in a session that reads `clock` and may not go before `earliest`.
    fn mint(&self, clock: i64, earliest: i64) -> Id {
        let (shard, seq) = (Shard::new(5).unwrap(), Seq::of(7).unwrap());
        let mint = Mint { clock: &Reading(clock), time: &self.time, max_ahead_ms: AHEAD_MS };
        mint.claim(Slot::new(&self.cell), Millis::new(earliest), shard, seq).unwrap()
    }
}

fn server() -> Arc<Server> {
    Arc::new(Server { time: SharedTime::new(), cell: AtomicU64::new(0) })
}

/// Sessions whose clocks and orders differ, each minting twice: above, below and between what is used.
#[test]
fn no_residue_is_used_twice_in_a_millisecond() {
    loom::model(|| {
        let server = server();
        let sessions: Vec<_> = [(NOW, NOW + 3), (NOW + 1, 0)]
            .into_iter()
            .map(|(clock, earliest)| {
                let server = server.clone();
                thread::spawn(move || [server.mint(clock, earliest), server.mint(clock, 0)])
            })
            .collect();
        let mut ids: Vec<Id> = sessions.into_iter().flat_map(|session| session.join().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    });
}

/// An id asked for after another was returned is at most `AHEAD_MS` older, though its session reads an
/// earlier clock.
#[test]
fn time_never_goes_back() {
    loom::model(|| {
        let server = server();
        let other = server.clone();
        let session = thread::spawn(move || other.mint(NOW + 100, 0));
        let concurrent = server.mint(NOW, 0);
        let first = session.join().unwrap();
        let second = server.mint(NOW, 0);
        assert!(second.at() >= first.at().plus(-AHEAD_MS));
        assert!(second.at() >= concurrent.at().plus(-AHEAD_MS));
        assert!(second != first && second != concurrent && first != concurrent);
    });
}
