//! The mint loop over any layouts, side by side in one server.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

use insta_ids::id::{Id, Layout, Millis};
use insta_ids::mint::{Key, LeaseKey, Leases, Mint, MintError, SessionOrder, SharedTime, Slot, Stamp, Stats};
use proptest::prelude::*;

use crate::mint::{AHEAD_MS, Paper, START, Step, Still, TOLERANCE_MS, mint, step};
use crate::properties::layout;

/// A server's memory: so few slots that all sequences are in each other's way, for each of the four grains that
/// slots count in.
#[derive(Default)]
struct Server {
    time: SharedTime,
    leases: Leases,
    stats: Stats,
    slots: [[AtomicU64; 16]; 4],
}

/// Which slots are for units of that length.
pub(crate) fn stretch(layout: Layout) -> usize {
    match layout.fields().unit_ms {
        0..8 => 0,
        8..64 => 1,
        64..512 => 2,
        _ => 3,
    }
}

impl Server {
    fn with<'a>(&'a self, clock: &'a Still, store: &'a Paper) -> Mint<'a, Still, Paper> {
        mint(clock, store, &self.time, &self.leases, &self.stats)
    }

    fn try_mint(
        &self,
        clock: &Still,
        store: &Paper,
        order: &mut SessionOrder,
        layout: Layout,
        value: i64,
    ) -> Result<Id, MintError> {
        let mint = self.with(clock, store);
        let (shard, seq) = (layout.shard(0).unwrap(), layout.seq(value).unwrap());
        let slot = Slot::new(&self.slots[stretch(layout)][seq.get() as usize % 16], layout);
        let last = order.last(Key::new(42, 1, 2, shard, layout), self.time.stamp());
        let minted = mint.claim(layout, slot, last.earliest(seq), shard, seq)?;
        last.record(minted.until, seq);
        Ok(minted.id)
    }
}

/// A layout whose ids can be of the time of these tests.
fn usable() -> impl Strategy<Value = Layout> {
    layout().prop_filter("its time is long enough", |layout| {
        layout.times().first < START.plus(-TOLERANCE_MS) && layout.times().last > START.plus(1 << 40)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 1 << 20, max_local_rejects: 1 << 20, ..ProptestConfig::with_cases(4_000) })]

    /// Whatever the layouts, the values of the sequence, wherever the clock goes, and whenever the server dies.
    #[test]
    fn promises_hold(
        layouts in prop::collection::vec(usable(), 1..4),
        steps in prop::collection::vec((step(), 0..4_usize), 1..300),
    ) {
        let (mut server, clock, paper) = (Server::default(), Still::at(START), Paper::default());
        let mut orders: [SessionOrder; 3] = Default::default();
        let mut last = [[None; 4]; 3];
        let mut minted = HashSet::new();
        let mut newest = Millis::new(0);
        let mut furthest_us = START.get() * 1000;
        for (step, which) in steps {
            match step {
                Step::Pass { us } => clock.pass(us),
                Step::Set { ms } => clock.step(ms),
                Step::Busy(busy) => paper.busy.set(busy),
                Step::Crash => {
                    server = Server::default();
                    orders = Default::default();
                    furthest_us = furthest_us.max(paper.until.get() * 1000 - clock.steady_us.get());
                }
                Step::Mint { session, value } => {
                    let layout = layouts[which % layouts.len()];
                    furthest_us = furthest_us.max(clock.system_us.get() - clock.steady_us.get());
                    let Ok(id) = server.try_mint(&clock, &paper, &mut orders[session], layout, value) else {
                        let clock = clock.system_us.get() / 1000;
                        prop_assert!(newest.get().max(paper.until.get()) > clock + TOLERANCE_MS);
                        continue;
                    };
                    prop_assert!(minted.insert((layout, id)), "{id:?} again in {layout}");
                    let before = last[session][which % layouts.len()].replace(id);
                    prop_assert!(before.is_none_or(|before| id > before), "order in a session");
                    let (begin, unit) = (layout.time_of(id), i64::from(layout.fields().unit_ms));
                    prop_assert!(begin.plus(unit - 1) >= newest.plus(-AHEAD_MS), "order across sessions");
                    prop_assert!(begin.plus(unit - 1).get() < paper.until.get(), "beyond the lease");
                    let come = Millis::new((clock.steady_us.get() + furthest_us) / 1000);
                    prop_assert!(begin <= come.plus(AHEAD_MS), "faster than time");
                    newest = newest.max(begin);
                }
            }
        }
    }
}

/// Each has what its fields have room for: so many ids in each unit of time, and then the next unit.
#[test]
fn one_session_uses_every_residue_of_every_unit() {
    for (text, units) in [
        ("twitter", 100),
        ("sonyflake", 100),
        ("js53", 1000),
        ("mastodon", 10),
        ("time:41 epoch:0", 1000),
        ("time:32 seq:4 epoch:0 unit:1s", 10),
    ] {
        let layout = Layout::parse(text.as_bytes(), START).unwrap();
        let unit = i64::from(layout.fields().unit_ms);
        let begin = layout.floor(START);
        let clock = mint_units(layout, units, AHEAD_MS);
        // No unit was waited for longer than it takes to come near.
        assert_eq!(clock.steady_us.get() / 1000, ((units - 1) * unit - AHEAD_MS).max(0), "{text}");
        assert_eq!(clock.system_us.get() / 1000 - begin.get(), clock.steady_us.get() / 1000);
    }
}

/// The unit that begins as far ahead as can be set ends further ahead than a lease reaches.
#[test]
fn the_furthest_lead_of_the_longest_unit() {
    mint_units(Layout::parse(b"time:32 epoch:0 unit:1s", START).unwrap(), 100, 1000);
}

/// The extension is dropped and made anew, with another record, and then the server dies, all within one unit.
#[test]
fn an_extension_made_anew_remembers_the_unit() {
    let layout = Layout::parse(b"time:32 epoch:0 unit:1s", START).unwrap();
    let (seq, shard) = (layout.seq(0).unwrap(), layout.shard(0).unwrap());
    let (clock, before, anew) = (Still::at(layout.floor(START)), Paper::default(), Paper::default());
    let claim = |mint: Mint<'_, Still, Paper>| {
        mint.claim(layout, Slot::new(&AtomicU64::new(0), layout), Stamp::default(), shard, seq).unwrap().id
    };
    let server = Server::default();
    let first = claim(server.with(&clock, &before));
    let database = LeaseKey::new(1, 4);
    Mint { database, ..server.with(&clock, &anew) }.advance(Millis::new(0)).unwrap();
    let server = Server::default();
    let second = claim(Mint { database, ..server.with(&clock, &anew) });
    assert!(second > first);
}

/// A session that mints steadily never finds the lease run out, how long its units may be.
#[test]
fn leases_are_renewed_early_for_long_units() {
    for unit in ["1ms", "10ms", "1s"] {
        let layout =
            Layout::parse(format!("time:40 seq:10 epoch:1700000000000 unit:{unit}").as_bytes(), START)
                .unwrap();
        let (server, clock, paper) = (Server::default(), Still::at(START), Paper::default());
        let mut order = SessionOrder::default();
        server.try_mint(&clock, &paper, &mut order, layout, 0).unwrap();
        // Who must have the lease would not come back.
        paper.must_not_wait.set(true);
        for value in 1..100_000 {
            clock.pass(100);
            server.try_mint(&clock, &paper, &mut order, layout, value).unwrap();
        }
    }
}

/// Mints all the ids of so many units of time, from one session. Returns its clock.
fn mint_units(layout: Layout, units: i64, max_ahead_ms: i64) -> Still {
    let begin = layout.floor(START);
    let (server, clock, paper) = (Server::default(), Still::at(begin), Paper::default());
    let mint = Mint { max_ahead_ms, ..server.with(&clock, &paper) };
    let mut order = SessionOrder::default();
    // A slot for each, so that none is in another's way.
    let cells: Vec<_> = (0..layout.residues()).map(|_| AtomicU64::new(0)).collect();
    let mut ids = Vec::new();
    for value in 0..i64::from(layout.residues()) * units {
        let (shard, seq) = (layout.shard(0).unwrap(), layout.seq(value).unwrap());
        let last = order.last(Key::new(42, 1, 2, shard, layout), server.time.stamp());
        let slot = Slot::new(&cells[seq.get() as usize], layout);
        let minted = mint.claim(layout, slot, last.earliest(seq), shard, seq).unwrap();
        last.record(minted.until, seq);
        ids.push(minted.id);
    }
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    let newest = layout.time_of(*ids.last().unwrap());
    assert_eq!(newest, begin.plus((units - 1) * i64::from(layout.fields().unit_ms)));
    clock
}
