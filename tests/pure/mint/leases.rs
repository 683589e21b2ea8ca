//! The lease, crashes, and clocks that are reset.

use super::{AHEAD_MS, LAYOUT, Paper, START, Server, Still, TOLERANCE_MS, seq, shard, time};
use insta_ids::id::{Id, Millis};
use insta_ids::mint::{Clock, LEASE_MS, LeaseKey, Mint, MintError, SessionOrder, Slot, Stamp};
use std::sync::atomic::AtomicU64;

/// With the furthest lead that can be set, ids come as near to the end of a lease as they can.
#[test]
fn the_furthest_lead_beside_a_lease() {
    for step_ms in [0, 300_000] {
        let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
        let cell = AtomicU64::new(0);
        let seq = seq(0);
        server.mint(&clock, &paper, &mut SessionOrder::default(), 0);
        clock.step(-step_ms);
        for n in 0..10_000 {
            let mint = Mint { max_ahead_ms: 1000, ..server.with(&clock, &paper) };
            let minted =
                mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(5), seq).unwrap();
            assert_eq!(minted.until.at(), START.plus(n));
        }
        // Always near its end, it is renewed whenever somebody may.
        assert!(paper.writes.get() <= 101, "{} writes in 10 s", paper.writes.get());
    }
}

/// About once a second while ids are minted, and not at all while none are.
#[test]
fn a_lease_is_written_once_a_second() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    for value in 0..10_000 {
        clock.pass(1000);
        server.mint(&clock, &paper, &mut order, value);
        assert!(paper.until.get() > clock.now().get(), "an id beyond the lease");
    }
    assert!((9..=11).contains(&paper.writes.get()), "{} writes in 10 s", paper.writes.get());
    assert!(paper.until.get() <= clock.now().get() + LEASE_MS);
    clock.pass(3_600_000_000);
    server.mint(&clock, &paper, &mut order, 1);
    server.mint(&clock, &paper, &mut order, 2);
    assert!(paper.writes.get() <= 12);
}

/// Nobody renews early, and the server dies when the lease has run out to its last millisecond.
#[test]
fn the_end_of_a_lease_is_not_used() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.mint(&clock, &paper, &mut order, 0);
    paper.busy.set(true);
    clock.pass((LEASE_MS - 1) * 1000);
    let last = server.mint(&clock, &paper, &mut order, 7);
    assert_eq!((time(last).get(), paper.writes.get()), (paper.until.get() - 1, 1));
    let (dead, behind) = (Paper::default(), Still::at(START.plus(-60_000)));
    dead.until.set(paper.until.get());
    assert!(Server::new().mint(&behind, &dead, &mut SessionOrder::default(), 7) > last);
    clock.pass(1000);
    server.mint(&clock, &paper, &mut order, 8);
    assert_eq!(paper.writes.get(), 2);
}

/// After a crash only what was written down is known.
#[test]
fn a_new_server_goes_on_from_the_lease() {
    for behind_ms in [0, 500, 300_000, 3_540_000] {
        let (paper, mut order) = (Paper::default(), SessionOrder::default());
        let clock = Still::at(START);
        let last = Server::new().mint(&clock, &paper, &mut order, 7);
        let restarted = Still::at(START.plus(-behind_ms));
        let server = Server::new();
        let next = server.mint(&restarted, &paper, &mut SessionOrder::default(), 7);
        assert!(next > last);
        assert_eq!(time(next), START.plus(LEASE_MS));
        assert_eq!(restarted.told.borrow().len(), usize::from(behind_ms > 0));
    }
}

#[test]
fn a_lease_far_ahead_is_refused_and_spoils_nothing() {
    let (server, clock) = (Server::new(), Still::at(START));
    let (far, near) = (Paper::default(), Paper::default());
    far.until.set(START.get() + 10 * TOLERANCE_MS);
    let refused = server.try_mint(&clock, &far, &mut SessionOrder::default(), 0);
    assert_eq!(refused, Err(MintError::LeaseAhead { until: Millis::new(far.until.get()), clock: START }));
    assert_eq!(far.writes.get(), 0);
    assert_eq!(time(server.mint(&clock, &near, &mut SessionOrder::default(), 0)), START);
}

/// A dump that is restored under sessions that mint: it raises what is written.
#[test]
fn a_lease_that_was_raised_is_adopted() {
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    server.mint(&clock, &paper, &mut order, 0);
    paper.until.set(START.get() + 60_000);
    clock.pass(LEASE_MS * 1000);
    assert_eq!(time(server.mint(&clock, &paper, &mut order, 1)), START.plus(60_000));
    assert!(paper.until.get() > START.get() + 60_000);
}

#[test]
fn a_clock_that_had_run_ahead_is_reset() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let (server, clock, paper, mut order) =
        (Server::new(), Still::at(START), Paper::default(), SessionOrder::default());
    clock.step(YEAR_MS);
    // Some residues are used a year ahead, the others never.
    for value in 0..500 {
        server.mint(&clock, &paper, &mut order, value);
    }
    clock.step(-YEAR_MS);
    assert!(server.try_mint(&clock, &paper, &mut order, 500).is_err());
    assert_eq!(server.with(&clock, &paper).reset(), Ok(START.plus(YEAR_MS + LEASE_MS)));
    assert_eq!(paper.until.get(), START.get() + LEASE_MS);
    let ids: Vec<Id> = (0..3000).map(|value| server.mint(&clock, &paper, &mut order, value)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(time(*ids.last().unwrap()), START.plus(2));
    // Another session that had minted then, and its order, are of a time that is no more.
    assert_eq!(time(server.mint(&clock, &paper, &mut SessionOrder::default(), 0)), START.plus(3));
    assert_eq!(
        server.with(&clock, &paper).reset().map(|used| used <= clock.now()),
        Ok(true),
        "nothing is ahead"
    );
}

/// One call is enough for all databases that had leased in the time that was given up, near or far; one that
/// holds a lease of another server refuses, or is adopted, as before.
#[test]
fn a_reset_is_for_all_databases() {
    for ahead_ms in [1_800_000, 365 * 86_400_000] {
        let (server, clock) = (Server::new(), Still::at(START));
        let papers = [Paper::default(), Paper::default(), Paper::default()];
        papers[2].until.set(START.get() + 600_000);
        let mint = |n: usize| {
            let mint = Mint {
                database: LeaseKey::new(1 + u32::try_from(n).unwrap(), 3),
                ..server.with(&clock, &papers[n])
            };
            let cell = AtomicU64::new(0);
            mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0))
                .map(|minted| minted.until.at())
        };
        clock.step(ahead_ms);
        assert_eq!((mint(0), mint(1)), (Ok(clock.now()), Ok(clock.now())));
        clock.step(-ahead_ms);
        server.with(&clock, &papers[0]).reset().unwrap();
        for n in [1, 0, 1] {
            assert_eq!(mint(n), Ok(START));
            assert_eq!(papers[n].until.get(), START.get() + LEASE_MS);
        }
        assert_eq!(mint(2), Ok(START.plus(600_000)));
    }
}

/// A slot has room for the number of 4095 generations.
#[test]
fn resets_that_could_not_be_told_apart_are_refused() {
    let (server, clock, paper) = (Server::new(), Still::at(START), Paper::default());
    let reset = || {
        server.with(&clock, &paper).advance(START.plus(60_000)).unwrap();
        server.with(&clock, &paper).reset()
    };
    for _ in 0..4094 {
        reset().unwrap();
        // Pushed on by those of the generations before, which are not far ahead.
        let id = server.mint(&clock, &paper, &mut SessionOrder::default(), 7);
        assert!(time(id) < START.plus(10_000));
    }
    assert_eq!(reset(), Err(MintError::TooManyResets));
    assert!(time(server.mint(&clock, &paper, &mut SessionOrder::default(), 7)) >= START.plus(60_000));
}

#[test]
fn the_time_can_be_raised_and_outlives_a_crash() {
    let (clock, paper) = (Still::at(START), Paper::default());
    let server = Server::new();
    assert_eq!(
        server.with(&clock, &paper).advance(START.plus(TOLERANCE_MS + 1)),
        Err(MintError::TooFarAhead { until: START.plus(TOLERANCE_MS + 1), clock: START })
    );
    server.with(&clock, &paper).advance(START.plus(60_000)).unwrap();
    assert_eq!(
        time(server.mint(&clock, &paper, &mut SessionOrder::default(), 0)),
        START.plus(60_000 + AHEAD_MS + 1)
    );
    assert!(time(Server::new().mint(&clock, &paper, &mut SessionOrder::default(), 0)) >= START.plus(60_000));
}

/// Databases beyond those that there is room for wait for one that has stopped.
#[test]
fn leases_that_ran_out_make_room() {
    let (server, clock) = (Server::new(), Still::at(START));
    let mint = |database: u32| {
        let paper = Paper::default();
        let cell = AtomicU64::new(0);
        let mint = Mint { database: LeaseKey::new(database, 3), ..server.with(&clock, &paper) };
        mint.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0))
            .map(|minted| minted.until.at())
    };
    for database in 1..=1024 {
        assert_eq!(mint(database), Ok(START));
    }
    // Refused before anything is written, which would be adopted by the next call.
    let paper = Paper::default();
    let one_more = Mint { database: LeaseKey::new(1025, 3), ..server.with(&clock, &paper) };
    let cell = AtomicU64::new(0);
    for _ in 0..3 {
        let minted = one_more.claim(LAYOUT, Slot::new(&cell, LAYOUT), Stamp::default(), shard(0), seq(0));
        assert_eq!(minted.map(|minted| minted.id), Err(MintError::TooManyLeases));
        assert_eq!((paper.writes.get(), server.time.stamp().at()), (0, START));
    }
    clock.pass((LEASE_MS + 1) * 1000);
    for database in 1025..3000 {
        assert_eq!(mint(database).is_ok(), database < 1025 + 1024, "{database}");
    }
}
