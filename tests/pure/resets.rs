//! Between two resets of the server's time no id comes twice, and the ids of a session increase.
//!
//! The sessions are interleaved within the mint loop: while one of them reads a clock, waits or works on the lease, the
//! others mint, reset the time, or see the server die.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;

use insta_ids::id::{Fields, Id, Layout, Millis, Seq, Shard};
use insta_ids::mint::{
    Clock, Event, Key, LeaseKey, LeaseStore, Leases, Lock, Mint, Minted, Reading, SessionOrder, SharedTime,
    Slot, Stamp, Stats,
};
use proptest::prelude::*;

use crate::mint::{AHEAD_MS, START, TOLERANCE_MS};
use crate::mint_layouts::stretch;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A session mints `count` ids of consecutive sequence values.
    Mint { session: usize, layout: usize, value: i64, count: i64, hold: Hold },
    /// An operator of a database resets the server's time.
    Reset { database: usize, hold: Hold },
    /// An operator raises the server's time to `ms` milliseconds after the clock.
    Advance { database: usize, ms: i64, hold: Hold },
    /// Time passes, in microseconds.
    Pass(i64),
    /// The clock is set, by milliseconds.
    Set(i64),
    /// `max_ahead_ms` is changed.
    Ahead(i64),
    /// From now on a session that would renew a lease early finds another one at it, or finds none.
    Busy(bool),
    /// The server dies and starts anew.
    Crash,
}

/// Where a session is held up: when it has asked the clock and the lease `point` times, the next `steps` steps come
/// first. With no steps, it is stopped there instead, if it waits.
#[derive(Clone, Copy, Debug)]
struct Hold {
    point: u32,
    steps: u32,
}

const NEVER: Hold = Hold { point: 0, steps: 0 };

/// The end of all sessions.
struct Crashed;

/// The end of a statement that waits.
struct Cancelled;

/// A server's memory, with slots for each of the four grains that they count in.
struct Server {
    time: SharedTime,
    leases: Leases,
    stats: Stats,
    slots: [Vec<AtomicU64>; 4],
    sessions: [Session; 4],
    /// Each database's eras in this life, by the first instant of their generation of the server's time; the newest last.
    eras: [RefCell<Vec<(Stamp, usize)>>; 2],
}

#[derive(Default)]
struct Session {
    is_busy: Cell<bool>,
    order: RefCell<SessionOrder>,
    /// The last id of each layout, and its era.
    last: RefCell<[Option<(usize, Id)>; 3]>,
}

/// What outlives the server, and what the test knows.
struct World<'a> {
    layouts: &'a [Layout],
    steps: &'a [Step],
    /// How many of them are done.
    done: Cell<usize>,
    /// How many slots there are for each grain; if there are few, the residues are in each other's way.
    slots: usize,
    system_us: Cell<i64>,
    steady_us: Cell<i64>,
    max_ahead_ms: Cell<i64>,
    papers: [Paper; 2],
    is_busy: Cell<bool>,
    /// How many eras there were. An era is a database's time between two resets, also over a crash.
    eras: Cell<usize>,
    /// Each id with its era and layout.
    minted: RefCell<HashSet<(usize, usize, Id)>>,
    /// What was wrong with ids.
    faults: RefCell<Vec<String>>,
}

/// The lease that a database has written down, and whether a session has locked it.
#[derive(Default)]
struct Paper {
    until: Cell<i64>,
    is_held: Cell<bool>,
}

impl<'a> World<'a> {
    fn new(layouts: &'a [Layout], max_ahead_ms: i64, steps: &'a [Step]) -> Self {
        Self {
            layouts,
            steps,
            done: Cell::new(0),
            slots: 4,
            system_us: Cell::new(START.get() * 1000),
            steady_us: Cell::new(0),
            max_ahead_ms: Cell::new(max_ahead_ms),
            papers: <[Paper; 2]>::default(),
            is_busy: Cell::new(false),
            eras: Cell::new(0),
            minted: RefCell::default(),
            faults: RefCell::default(),
        }
    }

    /// Lives through all the steps. Returns what was wrong with ids.
    fn live(&self) -> Vec<String> {
        let mut eras = [0; 2].map(|_: usize| self.new_era());
        loop {
            let server = Server {
                time: SharedTime::default(),
                leases: Leases::default(),
                stats: Stats::default(),
                slots: [(); 4].map(|()| (0..self.slots).map(|_| AtomicU64::new(0)).collect()),
                sessions: <[Session; 4]>::default(),
                eras: eras.map(|era| RefCell::new(vec![(Stamp::default(), era)])),
            };
            let life = Life { world: self, server: &server };
            match catch_unwind(AssertUnwindSafe(|| while life.step() {})) {
                Ok(()) => return self.faults.take(),
                Err(end) if end.is::<Crashed>() => {
                    // The next life goes on in the era in which this one ended.
                    eras = [0, 1].map(|database| life.era(database, server.time.stamp()));
                    self.papers.iter().for_each(|paper| paper.is_held.set(false));
                }
                Err(end) => resume_unwind(end),
            }
        }
    }

    fn new_era(&self) -> usize {
        self.eras.set(self.eras.get() + 1);
        self.eras.get()
    }
}

/// One life of the server.
#[derive(Clone, Copy)]
struct Life<'a> {
    world: &'a World<'a>,
    server: &'a Server,
}

impl Life<'_> {
    /// Does the next step. Returns whether there was one.
    fn step(self) -> bool {
        let world = self.world;
        let Some(step) = world.steps.get(world.done.get()) else { return false };
        world.done.set(world.done.get() + 1);
        match *step {
            Step::Mint { session, layout, value, count, hold } => {
                let is_busy = &self.server.sessions[session].is_busy;
                if !is_busy.replace(true) {
                    let layout = layout % world.layouts.len();
                    // The last session is another database's.
                    let held = Held::new(self, usize::from(session == 3), hold);
                    statement(|| (value..value + count).all(|value| held.mint(session, layout, value)));
                    is_busy.set(false);
                }
            }
            Step::Reset { database, hold } => {
                let held = Held { resets: true, ..Held::new(self, database, hold) };
                statement(|| held.with().reset());
            }
            Step::Advance { database, ms, hold } => {
                let until = Millis::new(world.system_us.get().div_euclid(1000) + ms);
                let held = Held::new(self, database, hold);
                statement(|| held.with().advance(until));
            }
            Step::Pass(us) => self.pass(us),
            Step::Set(ms) => world.system_us.set(world.system_us.get() + ms * 1000),
            Step::Ahead(ms) => world.max_ahead_ms.set(ms),
            Step::Busy(is_busy) => world.is_busy.set(is_busy),
            Step::Crash => resume_unwind(Box::new(Crashed)),
        }
        true
    }

    /// Time passes.
    fn pass(self, us: i64) {
        self.world.system_us.set(self.world.system_us.get() + us);
        self.world.steady_us.set(self.world.steady_us.get() + us);
    }

    /// A database's era at a time of the server.
    fn era(self, database: usize, at: Stamp) -> usize {
        let mut eras = self.server.eras[database].borrow_mut();
        if let Some((_, era)) = eras.iter().rfind(|(first, _)| *first == first_of(at)) {
            return *era;
        }
        let era = self.world.new_era();
        eras.push((first_of(at), era));
        era
    }
}

/// The first instant of the generation of a time.
fn first_of(at: Stamp) -> Stamp {
    at.plus(-at.at().get())
}

/// Runs a statement, which may be cancelled.
fn statement<T>(run: impl FnOnce() -> T) {
    if let Err(end) = catch_unwind(AssertUnwindSafe(run))
        && !end.is::<Cancelled>()
    {
        resume_unwind(end);
    }
}

/// A session's clock and lease, where it is held up.
struct Held<'a> {
    life: Life<'a>,
    database: usize,
    hold: Hold,
    asked: Cell<u32>,
    /// Whether what it writes down gives up what was written down before.
    resets: bool,
}

impl<'a> Held<'a> {
    fn new(life: Life<'a>, database: usize, hold: Hold) -> Self {
        Self { life, database, hold, asked: Cell::new(0), resets: false }
    }

    fn with(&self) -> Mint<'_, Self, Self> {
        let Server { time, leases, stats, .. } = self.life.server;
        Mint {
            clock: self,
            store: self,
            time,
            leases,
            stats,
            database: LeaseKey::new(u32::try_from(self.database).unwrap() + 1, 3),
            session: 0,
            max_ahead_ms: self.life.world.max_ahead_ms.get(),
            tolerance_ms: TOLERANCE_MS,
        }
    }

    /// Mints an id and looks whether it is right. Returns whether it was minted.
    fn mint(&self, session: usize, n: usize, value: i64) -> bool {
        let Life { world, server } = self.life;
        let Session { order, last, .. } = &server.sessions[session];
        let layout = world.layouts[n];
        let (shard, seq): (Shard, Seq) = (layout.shard(0).unwrap(), layout.seq(value).unwrap());
        let key = Key::new(42, u32::try_from(self.database).unwrap(), 2, shard, layout);
        let slot = Slot::new(&server.slots[stretch(layout)][seq.get() as usize % world.slots], layout);
        let mut order = order.borrow_mut();
        let known = order.last(key, server.time.stamp());
        let Ok(Minted { id, until }) = self.with().claim(layout, slot, known.earliest(seq), shard, seq)
        else {
            return false;
        };
        known.record(until, seq);
        let era = self.life.era(self.database, until);
        let before = last.borrow_mut()[n].replace((era, id));
        if !world.minted.borrow_mut().insert((era, n, id)) {
            world.faults.borrow_mut().push(format!("{id:?} of {layout} again in era {era}"));
        } else if before >= Some((era, id)) {
            world.faults.borrow_mut().push(format!("{id:?} of {layout} in era {era} after {before:?}"));
        }
        true
    }

    /// Here the session can be held up.
    fn point(&self) {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() == self.hold.point {
            for _ in 0..self.hold.steps {
                self.life.step();
            }
        }
    }

    fn paper(&self) -> &Paper {
        &self.life.world.papers[self.database]
    }
}

impl Clock for Held<'_> {
    fn now(&self) -> Millis {
        self.point();
        let now = Millis::new(self.life.world.system_us.get().div_euclid(1000));
        self.point();
        now
    }

    fn both(&self) -> Reading {
        self.point();
        let World { system_us, steady_us, .. } = self.life.world;
        let reading = Reading { system_us: system_us.get(), steady_us: steady_us.get() };
        self.point();
        reading
    }

    fn wait(&self, ms: i64) {
        assert!(ms > 0, "a wait of {ms} ms is a busy loop");
        self.point();
        if self.asked.get() == self.hold.point && self.hold.steps == 0 {
            resume_unwind(Box::new(Cancelled));
        }
        self.life.pass(ms * 1000);
    }

    fn notify(&self, _: Event) {}
}

impl LeaseStore for Held<'_> {
    fn lock(&self, wait: bool) -> Lock {
        self.point();
        if !wait && (self.life.world.is_busy.get() || self.paper().is_held.get()) {
            return Lock::Busy;
        }
        if self.paper().is_held.replace(true) {
            // Who has it is held up, so this session would wait for ever.
            resume_unwind(Box::new(Cancelled));
        }
        self.point();
        Lock::Held
    }

    fn unlock(&self) {
        self.point();
        self.paper().is_held.set(false);
        self.point();
    }

    fn read(&self) -> Millis {
        self.point();
        Millis::new(self.paper().until.get())
    }

    fn write(&self, until: Millis) {
        self.point();
        self.paper().until.set(until.get());
        if self.resets {
            let Life { world, server } = self.life;
            let first = first_of(server.time.stamp());
            server.eras[self.database].borrow_mut().push((first, world.new_era()));
        }
        self.point();
    }
}

fn hold() -> impl Strategy<Value = Hold> {
    prop_oneof![2 => Just(NEVER), 3 => (1..12_u32, 0..6_u32).prop_map(|(point, steps)| Hold { point, steps })]
}

fn ahead() -> impl Strategy<Value = i64> {
    prop_oneof![Just(AHEAD_MS), Just(0), 0..=1000_i64, 980..=1000_i64]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        24 => (0..4_usize, 0..3_usize, 0..8_i64, prop_oneof![Just(1), 1..30_i64], hold())
            .prop_map(|(session, layout, value, count, hold)| Step::Mint { session, layout, value, count, hold }),
        5 => (0..2_usize, hold()).prop_map(|(database, hold)| Step::Reset { database, hold }),
        5 => (0..2_usize, prop_oneof![0..20_i64, 900..1100_i64, 0..8000_i64, 0..=TOLERANCE_MS], hold())
            .prop_map(|(database, ms, hold)| Step::Advance { database, ms, hold }),
        5 => prop_oneof![0..3_000_i64, 900_000..1_100_000_i64, 0..8_000_000_i64].prop_map(Step::Pass),
        3 => prop_oneof![-50..50_i64, -3_000..3_000_i64, -500_000..500_000_i64, Just(2 * TOLERANCE_MS), Just(-2 * TOLERANCE_MS)]
            .prop_map(Step::Set),
        1 => ahead().prop_map(Step::Ahead),
        1 => any::<bool>().prop_map(Step::Busy),
        2 => Just(Step::Crash),
    ]
}

/// A layout of any unit, and of few residues or many.
fn layout() -> impl Strategy<Value = Layout> {
    let unit = prop_oneof![
        4 => Just(1),
        4 => prop::sample::select(vec![7, 8, 10, 63, 64, 100, 511, 512, 513, 999, 1000]),
        2 => 1..=1000_u32,
    ];
    let epoch = prop_oneof![Just(0), 0..START.get() - 2 * TOLERANCE_MS];
    (unit, epoch, 0..=12_u32, 0..=10_u32, any::<bool>()).prop_map(
        |(unit_ms, epoch, seq_bits, shard_bits, seq_above_shard)| {
            let epoch = Millis::new(epoch);
            Layout::new(Fields { epoch, unit_ms, time_bits: 42, shard_bits, seq_bits, seq_above_shard })
                .unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120_000))]

    #[test]
    fn no_id_comes_twice_in_an_era(
        layouts in prop::collection::vec(layout(), 1..=3),
        max_ahead_ms in ahead(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let faults = World::new(&layouts, max_ahead_ms, &steps).live();
        prop_assert!(faults.is_empty(), "{faults:?}");
    }
}

/// Advances the time by 6 s, lets a session mint, resets the time, and lets two others mint by turns. Returns how many ids
/// were wrong.
fn wrong_after_a_reset(layout: Layout, max_ahead_ms: i64, before: Step, after: &[Step]) -> usize {
    let mut steps = vec![
        Step::Advance { database: 0, ms: 6000, hold: NEVER },
        before,
        Step::Reset { database: 0, hold: NEVER },
    ];
    steps.extend_from_slice(after);
    let layouts = [layout];
    let world = World { slots: 1024, ..World::new(&layouts, max_ahead_ms, &steps) };
    let faults = world.live();
    assert!(world.minted.borrow().len() + faults.len() > 1500, "{layout}");
    faults.len()
}

/// Every residue was used in the time that was given up.
#[test]
fn slots_of_long_units_that_were_given_up() {
    let units = ["1s", "999ms", "512ms", "100ms", "10ms", "1ms"];
    let wrong = units.map(|unit| {
        let text = format!("time:42 shard:13 seq:8 epoch:0 unit:{unit}");
        let layout = Layout::parse(text.as_bytes(), START).unwrap();
        let mint = |session| Step::Mint { session, layout: 0, value: 0, count: 256, hold: NEVER };
        wrong_after_a_reset(layout, AHEAD_MS, mint(2), &[0, 1, 0, 1, 0, 1].map(mint))
    });
    assert_eq!(wrong, [0; 6], "units of {units:?}");
}

/// One residue was used in the time that was given up, and comes again when ids are nearly a second ahead of the clock.
#[test]
fn slots_of_milliseconds_that_were_given_up() {
    let leads = [0, AHEAD_MS, 980, 990, 1000];
    let wrong = leads.map(|max_ahead_ms| {
        let mint = |session, value, times| {
            vec![Step::Mint { session, layout: 0, value, count: 1, hold: NEVER }; times]
        };
        let [before] = mint(2, 7, 1).try_into().unwrap();
        // The first id after an advance is of the first millisecond that the advance has leased.
        let given_up = 6000 + max_ahead_ms + 1;
        let pass = Step::Pass((given_up - 1005) * 1000);
        let lead = usize::try_from(max_ahead_ms).unwrap() + 1;
        let after = [vec![pass], mint(0, 0, lead), mint(0, 7, 1), mint(1, 7, 2000)].concat();
        wrong_after_a_reset(Layout::INSTAGRAM, max_ahead_ms, before, &after)
    });
    assert_eq!(wrong, [0; 5], "leads of {leads:?} ms");
}

/// A session is held up with a slot of the time that was given up, until others have used the slot in that very time again.
#[test]
fn a_slot_that_comes_to_what_it_was() {
    for unit in ["1s", "512ms", "10ms", "1ms"] {
        let layout = Layout::parse(format!("time:42 seq:3 epoch:0 unit:{unit}").as_bytes(), START).unwrap();
        let mint = |session, hold| Step::Mint { session, layout: 0, value: 0, count: 1, hold };
        let steps = [
            Step::Pass(1),
            mint(0, NEVER),
            Step::Set(20_000),
            mint(0, NEVER),
            Step::Set(-20_000),
            Step::Reset { database: 0, hold: NEVER },
            // It has read the clock.
            mint(1, Hold { point: 2, steps: 3 }),
            mint(0, NEVER),
            Step::Pass(20_000_000),
            mint(0, NEVER),
        ];
        let layouts = [layout];
        let faults = World::new(&layouts, AHEAD_MS, &steps).live();
        assert!(faults.is_empty(), "{layout}: {faults:?}");
    }
}
