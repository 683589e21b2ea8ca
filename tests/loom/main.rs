//! The mint loop in every interleaving of its sessions, by the model checker loom. It sees the very source
//! of src/mint, over loom's atomics.
#![allow(missing_docs, unreachable_pub, dead_code, unused_imports, clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use loom::thread;

#[path = "../../src/id/mod.rs"]
mod id;

mod mint;

use id::{Fields, Id, Layout, Millis, Seq, Shard};
use mint::{
    Clock, Event, LEASE_MS, LeaseKey, LeaseStore, Leases, Lock, Mint, Reading, SharedTime, Slot, Stamp, Stats,
};

const NOW: i64 = 1_800_000_000_000;
const LAYOUT: Layout = Layout::INSTAGRAM;
const AHEAD_MS: i64 = 10;

/// One session's reading of the clock; no wait is needed for so few ids.
struct At(i64);

impl Clock for At {
    fn now(&self) -> Millis {
        Millis::new(self.0)
    }

    fn both(&self) -> Reading {
        Reading { system_us: self.0 * 1000, steady_us: 0 }
    }

    fn wait(&self, _: i64) {
        unreachable!("there is room ahead");
    }

    fn notify(&self, _: Event) {}
}

/// What is written down, and the lock of who writes.
struct Paper {
    until: AtomicI64,
    held: AtomicBool,
}

impl LeaseStore for Paper {
    fn lock(&self, wait: bool) -> Lock {
        while self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if !wait {
                return Lock::Busy;
            }
            thread::yield_now();
        }
        Lock::Held
    }

    fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }

    fn read(&self) -> Millis {
        Millis::new(self.until.load(Ordering::Relaxed))
    }

    fn write(&self, until: Millis) {
        self.until.store(until.get(), Ordering::Relaxed);
    }
}

struct Server {
    time: SharedTime,
    leases: Leases,
    cell: AtomicU64,
    paper: Paper,
}

impl Server {
    /// Mints with the one residue there is, in a session that reads `clock`.
    fn mint(&self, clock: i64) -> Id {
        let (shard, seq) = (LAYOUT.shard(5).unwrap(), LAYOUT.seq(7).unwrap());
        let minted =
            self.with(&At(clock)).claim(LAYOUT, Slot::new(&self.cell, LAYOUT), Stamp::default(), shard, seq);
        minted.unwrap().id
    }

    fn with<'a>(&'a self, clock: &'a At) -> Mint<'a, At, Paper> {
        Mint {
            clock,
            store: &self.paper,
            time: &self.time,
            leases: &self.leases,
            stats: &Stats,
            database: LeaseKey::new(1, 3),
            session: 0,
            max_ahead_ms: AHEAD_MS,
            tolerance_ms: 3_600_000,
        }
    }
}

/// A server that starts after one that had leased until then.
fn server(leased: i64) -> Arc<Server> {
    Arc::new(Server {
        time: SharedTime::default(),
        leases: Leases::default(),
        cell: AtomicU64::new(0),
        paper: Paper { until: AtomicI64::new(leased), held: AtomicBool::new(false) },
    })
}

/// Every interleaving in which a session is interrupted at most three times.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

fn all_differ(mut ids: Vec<Id>) {
    let minted = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), minted);
}

/// Sessions whose clocks differ, each minting twice: above, below and between what is used.
#[test]
fn no_residue_is_used_twice_in_a_millisecond() {
    model(|| {
        let server = server(0);
        let first = server.mint(NOW);
        let sessions: Vec<_> = [NOW + 1, NOW + 3]
            .into_iter()
            .map(|clock| {
                let server = server.clone();
                thread::spawn(move || [server.mint(clock), server.mint(clock)])
            })
            .collect();
        let ids = sessions.into_iter().flat_map(|session| session.join().unwrap());
        all_differ(ids.chain([first]).collect());
    });
}

/// An id asked for after another was returned is at most `AHEAD_MS` older, though its session reads an
/// earlier clock.
#[test]
fn time_never_goes_back() {
    model(|| {
        let server = server(0);
        let first = server.mint(NOW);
        let other = server.clone();
        let session = thread::spawn(move || other.mint(NOW + 100));
        let concurrent = server.mint(NOW);
        let second = session.join().unwrap();
        let third = server.mint(NOW);
        assert!(LAYOUT.time_of(third) >= LAYOUT.time_of(second).plus(-AHEAD_MS));
        assert!(LAYOUT.time_of(third) >= LAYOUT.time_of(concurrent).plus(-AHEAD_MS));
        all_differ(vec![first, concurrent, second, third]);
    });
}

/// The first calls after a start, made at once, with the clock behind what had been leased before.
#[test]
fn no_session_mints_before_the_lease_is_adopted() {
    model(|| {
        let leased = NOW + 60_000;
        let server = server(leased);
        let other = server.clone();
        let session = thread::spawn(move || other.mint(NOW));
        let ids = vec![server.mint(NOW), session.join().unwrap()];
        for id in &ids {
            assert!(LAYOUT.time_of(*id).get() >= leased);
            assert!(LAYOUT.time_of(*id).get() < server.paper.until.load(Ordering::Relaxed));
        }
        all_differ(ids);
    });
}

/// A renewal beside a mint: nothing is minted beyond what is written down, and that never goes back.
#[test]
fn no_id_is_beyond_the_lease() {
    model(|| {
        let server = server(0);
        server.mint(NOW);
        let renewer = server.clone();
        let session = thread::spawn(move || renewer.mint(NOW + LEASE_MS + 5));
        let ids = vec![server.mint(NOW + LEASE_MS - 1), session.join().unwrap()];
        let until = server.paper.until.load(Ordering::Relaxed);
        assert!(ids.iter().all(|id| LAYOUT.time_of(*id).get() < until));
        all_differ(ids);
    });
}

/// The server's time is set back while a session mints, whose clock was right again already: no id that it
/// is given afterwards is of the time that was given up, and what is written down covers them.
#[test]
fn a_reset_beside_a_mint() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    model(|| {
        let server = server(0);
        server.mint(NOW + YEAR_MS);
        let other = server.clone();
        let session = thread::spawn(move || {
            let (shard, seq) = (LAYOUT.shard(5).unwrap(), LAYOUT.seq(8).unwrap());
            let clock = At(NOW);
            let mint = Mint { tolerance_ms: 2 * YEAR_MS, ..other.with(&clock) };
            mint.claim(LAYOUT, Slot::new(&other.cell, LAYOUT), Stamp::default(), shard, seq).unwrap()
        });
        server.with(&At(NOW)).reset().unwrap();
        let concurrent = session.join().unwrap();
        let later = server.mint(NOW);
        assert!(LAYOUT.time_of(later).get() <= NOW + AHEAD_MS, "the time that was given up");
        assert!(LAYOUT.time_of(later).get() < server.paper.until.load(Ordering::Relaxed));
        assert!(concurrent.until.at() != LAYOUT.time_of(later), "both used the residue");
        let given_up = concurrent.until.at().get() >= NOW + YEAR_MS;
        assert!(given_up || concurrent.until.at().get() <= NOW + AHEAD_MS);
    });
}

/// Two sessions at a slot of a time that was given up, some units ahead, while the clock comes to where it was.
#[test]
fn a_slot_that_was_given_up() {
    let layout = Layout::new(Fields { unit_ms: 1000, epoch: Millis::new(0), ..LAYOUT.fields() }).unwrap();
    model(move || {
        let server = server(0);
        let mint = move |server: &Server, clock: i64| {
            let (shard, seq) = (layout.shard(5).unwrap(), layout.seq(7).unwrap());
            let clock = At(clock);
            let mint = Mint { max_ahead_ms: 1000, ..server.with(&clock) };
            mint.claim(layout, Slot::new(&server.cell, layout), Stamp::default(), shard, seq).unwrap().id
        };
        mint(&server, NOW + 10_000);
        server.with(&At(NOW)).reset().unwrap();
        let other = server.clone();
        let session = thread::spawn(move || mint(&other, NOW));
        let ids = vec![mint(&server, NOW), mint(&server, NOW + 10_000), session.join().unwrap()];
        all_differ(ids);
    });
}

/// Databases that take the room of others whose lease has run out.
#[test]
fn leases_change_hands() {
    model(|| {
        let server = server(0);
        server.mint(NOW);
        let sessions: Vec<_> = [2, 3]
            .into_iter()
            .map(|database| {
                let server = server.clone();
                thread::spawn(move || {
                    let paper = Paper { until: AtomicI64::new(0), held: AtomicBool::new(false) };
                    let (clock, cell) = (At(NOW + LEASE_MS + 1), AtomicU64::new(0));
                    let (shard, seq) = (LAYOUT.shard(5).unwrap(), LAYOUT.seq(7).unwrap());
                    let mint = server.with(&clock);
                    let mint = Mint { store: &paper, database: LeaseKey::new(database, 3), ..mint };
                    for _ in 0..2 {
                        let minted = mint
                            .claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard, seq)
                            .unwrap();
                        assert!(minted.until.at().get() < paper.until.load(Ordering::Relaxed));
                    }
                    // Its lease was found again: nothing of its own was adopted.
                    assert!(server.time.stamp().at().get() == NOW + LEASE_MS + 1);
                })
            })
            .collect();
        for session in sessions {
            session.join().unwrap();
        }
    });
}
