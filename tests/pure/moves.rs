//! The protocol of a move, explored completely: two servers with one standby each, two fences, two writes, failovers of both
//! servers and the loss of the target. Without any one of the rules, the same search finds two writers, a lost write, or a move
//! that nobody can end.
//!
//! What drivers know and what is under way only grows: a message may be lost, late or doubled, from any number of drivers.

use std::collections::{HashMap, HashSet};

use Rule::*;
use Step::*;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Offered,
    Fenced,
    Released,
    Finished,
    Withdrawn,
    Copying,
    HandedOver,
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    // On the source.
    ReleaseOnlyTheFence,
    StandbysHaveTheFence,
    PromotedKeepsTheFence,
    ReleasedDoesNotOpen,
    OpenNeedsGiveUp,
    OpenByThisFence,
    WithdrawNeedsCancel,
    // On the target.
    HandOverNeedsRelease,
    HandOverAboveGivenUp,
    HandOverDrained,
    PromotedDoesNotHandOver,
    NoGiveUpAfterHandOver,
    NoCancelAfterHandOver,
    CancelIsFinal,
    StandbysHaveTheHandOver,
}
const RULES: [Rule; 15] = [
    ReleaseOnlyTheFence,
    StandbysHaveTheFence,
    PromotedKeepsTheFence,
    ReleasedDoesNotOpen,
    OpenNeedsGiveUp,
    OpenByThisFence,
    WithdrawNeedsCancel,
    HandOverNeedsRelease,
    HandOverAboveGivenUp,
    HandOverDrained,
    PromotedDoesNotHandOver,
    NoGiveUpAfterHandOver,
    NoCancelAfterHandOver,
    CancelIsFinal,
    StandbysHaveTheHandOver,
];

/// The row of a move on one server, with the shard's rows: bit i is write i. `fences` counts on the source; on the target it is
/// the newest fence that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Row {
    step: Step,
    fences: u8,
    data: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Server {
    row: Row,
    standby: Row,
    /// On the source: since its last fence. On the target: since the move began.
    is_promoted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    source: Server,
    target: Server,
    is_target_lost: bool,
    /// What the target has confirmed to the slot, which is lost when the source fails over.
    slot: Option<u8>,
    /// Releases that drivers know: bit 4 * fence + mark. They die with the target's sessions.
    releases: u16,
    /// Messages to the source: fences given up, a cancellation, the hand-over.
    given_up: u8,
    is_cancelled: bool,
    is_handed_over: bool,
    acknowledged: u8,
    writes: u8,
}

const FENCES: u8 = 2;
const WRITES: u8 = 2;

fn begin() -> State {
    let server = |step| {
        let row = Row { step, fences: 0, data: 0 };
        Server { row, standby: row, is_promoted: false }
    };
    State {
        source: server(Offered),
        target: server(Copying),
        is_target_lost: false,
        slot: Some(0),
        releases: 0,
        given_up: 0,
        is_cancelled: false,
        is_handed_over: false,
        acknowledged: 0,
        writes: 0,
    }
}

fn source_is_open(x: &State) -> bool {
    matches!(x.source.row.step, Offered | Withdrawn)
}
fn target_is_open(x: &State) -> bool {
    x.target.row.step == HandedOver && !x.is_target_lost
}

fn violation(x: &State) -> Option<&'static str> {
    let lacks = |row: Row| x.acknowledged & !row.data != 0;
    if source_is_open(x) && target_is_open(x) {
        Some("two writers")
    } else if source_is_open(x) && lacks(x.source.row) {
        Some("the source lacks a write")
    } else if target_is_open(x) && lacks(x.target.row) {
        Some("the target lacks a write")
    } else {
        None
    }
}

/// What can happen next.
struct Next {
    from: State,
    without: Option<Rule>,
    all: Vec<(&'static str, State)>,
}

impl Next {
    fn holds(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn step(&mut self, name: &'static str, change: impl Fn(&mut State)) {
        let mut y = self.from;
        change(&mut y);
        // What no later step can use.
        if y.target.row.step == HandedOver || y.slot.is_none() && self.holds(HandOverDrained) {
            y.releases = 0;
        }
        if y != self.from {
            self.all.push((name, y));
        }
    }

    /// The source by itself, or told by its operator.
    fn source_alone(&mut self) {
        let x = self.from;
        let source = x.source.row;
        let open = |y: &mut State| y.source.row.step = Offered;
        if source.step == Fenced && (!x.source.is_promoted || !self.holds(PromotedKeepsTheFence))
            || source.step == Released && !self.holds(ReleasedDoesNotOpen)
        {
            self.step("open by itself", open);
        }
        if source.step == Offered || source.step == Released && !self.holds(WithdrawNeedsCancel) {
            self.step("withdraw", |y| y.source.row.step = Withdrawn);
        }
        if x.is_target_lost && source.step != Finished {
            self.step("operator: the target is lost", |y| y.source.row.step = Withdrawn);
        }
    }

    /// The source, asked by drivers.
    fn source_asked(&mut self) {
        let x = self.from;
        let source = x.source.row;
        let n = source.fences;
        let open = |y: &mut State| y.source.row.step = Offered;
        if !x.is_target_lost {
            if source.step == Offered && n < FENCES {
                self.step("fence", |y| {
                    y.source.row.step = Fenced;
                    y.source.row.fences += 1;
                    y.source.is_promoted = false;
                });
            }
            let is_known = x.source.standby == source || !self.holds(StandbysHaveTheFence);
            if source.step == Fenced && !x.source.is_promoted && is_known {
                self.step("release", |y| y.source.row.step = Released);
            }
            if source.step == Released
                || source.step == Fenced && !self.holds(HandOverNeedsRelease)
                || source.step == Offered && n > 0 && !self.holds(ReleaseOnlyTheFence)
            {
                self.step("tell the release", |y| y.releases |= 1 << (4 * n + source.data));
            }
        }
        if matches!(source.step, Fenced | Released) {
            let is_given_up = x.given_up >> n & 1 == 1
                || x.given_up != 0 && !self.holds(OpenByThisFence)
                || !self.holds(OpenNeedsGiveUp);
            if is_given_up {
                self.step("open", open);
            }
            if x.is_cancelled {
                self.step("withdraw by cancellation", |y| y.source.row.step = Withdrawn);
            }
            if x.is_handed_over {
                self.step("finish", |y| y.source.row.step = Finished);
            }
        }
    }

    /// The target.
    fn target(&mut self) {
        let x = self.from;
        let (source, target) = (x.source.row, x.target.row);
        let n = source.fences;
        let is_copying = target.step == Copying;
        if let (true, Some(confirmed)) = (is_copying, x.slot) {
            self.step("apply", |y| {
                y.target.row.data |= source.data & !confirmed;
                y.slot = Some(source.data);
            });
        }
        for release in (4..16).filter(|bit| x.releases >> bit & 1 == 1) {
            let (fence, mark) = (release / 4, release % 4);
            if (is_copying || target.step == Cancelled && !self.holds(CancelIsFinal))
                && (fence > target.fences || !self.holds(HandOverAboveGivenUp))
                && (x.slot.is_some_and(|confirmed| confirmed & mark == mark) || !self.holds(HandOverDrained))
                && (!x.target.is_promoted || !self.holds(PromotedDoesNotHandOver))
            {
                self.step("hand over", |y| {
                    y.target.row.step = HandedOver;
                });
            }
        }
        if (is_copying || target.step == HandedOver && !self.holds(NoGiveUpAfterHandOver)) && n > 0 {
            if target.fences < n {
                self.step("give up", |y| y.target.row.fences = n);
            } else {
                self.step("tell the give-up", |y| y.given_up |= 1 << n);
            }
        }
        if is_copying {
            self.step("cancel", |y| y.target.row.step = Cancelled);
        }
        if target.step == Cancelled || target.step == HandedOver && !self.holds(NoCancelAfterHandOver) {
            self.step("tell the cancellation", |y| y.is_cancelled = true);
        }
        if target.step == HandedOver
            && (x.target.standby.step == HandedOver || !self.holds(StandbysHaveTheHandOver))
        {
            self.step("tell the hand-over", |y| y.is_handed_over = true);
        }
    }

    /// The standbys receive what their servers have.
    fn standbys(&mut self) {
        let x = self.from;
        let (source, target) = (x.source.row, x.target.row);
        self.step("standby of the source", |y| y.source.standby = source);
        if !x.is_target_lost {
            self.step("standby of the target", |y| y.target.standby = target);
        }
    }

    /// Writers.
    fn writers(&mut self) {
        let x = self.from;
        if x.writes < WRITES {
            let write = move |y: &mut State| {
                y.acknowledged |= 1 << x.writes;
                y.writes += 1;
            };
            if source_is_open(&x) {
                self.step("write on the source", |y| {
                    write(y);
                    y.source.row.data |= 1 << x.writes;
                });
            }
            if target_is_open(&x) {
                self.step("write on the target", |y| {
                    write(y);
                    y.target.row.data |= 1 << x.writes;
                });
            }
        }
    }

    /// Failures. A write that only a failed server had is lost by the failover, not by the move.
    fn faults(&mut self) {
        let x = self.from;
        let source = x.source.row;
        if !x.source.is_promoted {
            self.step("the source fails over", |y| {
                y.source = Server { row: x.source.standby, standby: x.source.standby, is_promoted: true };
                y.slot = None;
                if !target_is_open(&x) {
                    y.acknowledged &= !(source.data & !y.source.row.data);
                }
            });
        }
        if !x.is_target_lost {
            if !x.target.is_promoted {
                self.step("the target fails over", |y| {
                    y.target = Server { row: x.target.standby, standby: x.target.standby, is_promoted: true };
                    y.releases = 0;
                    if target_is_open(&x) {
                        y.acknowledged &= y.target.row.data | source.data;
                    }
                });
            }
            self.step("the target is lost", |y| {
                y.is_target_lost = true;
                y.releases = 0;
                y.acknowledged &= source.data;
            });
        }
    }
}

/// All that can happen next. `quiet` leaves out writes and faults, as for a driver that is let alone.
fn next(x: &State, without: Option<Rule>, quiet: bool) -> Vec<(&'static str, State)> {
    let mut next = Next { from: *x, without, all: Vec::new() };
    next.source_alone();
    next.source_asked();
    if !x.is_target_lost {
        next.target();
    }
    next.standbys();
    if !quiet {
        next.writers();
        next.faults();
    }
    next.all
}

/// Returns whether steps without faults lead from `x` to a goal, for a driver that knows nothing and gets no old message.
fn can_reach(
    x: &State,
    without: Option<Rule>,
    goal: fn(&State) -> bool,
    known: &mut HashMap<State, bool>,
) -> bool {
    let fresh = State {
        releases: 0,
        given_up: 0,
        is_cancelled: false,
        is_handed_over: false,
        acknowledged: 0,
        writes: 0,
        ..*x
    };
    if let Some(&can) = known.get(&fresh) {
        return can;
    }
    let (mut seen, mut todo) = (HashSet::from([fresh]), vec![fresh]);
    let mut can = false;
    while let Some(y) = todo.pop() {
        if goal(&y) {
            can = true;
            break;
        }
        todo.extend(next(&y, without, true).into_iter().map(|(_, z)| z).filter(|z| seen.insert(*z)));
    }
    known.insert(fresh, can);
    can
}

/// Explores all states, breadth first. Returns their number, or a shortest way to the first one that is wrong.
fn explore(without: Option<Rule>) -> Result<usize, String> {
    let mut from = HashMap::from([(begin(), None)]);
    let (mut layer, mut ends) = (vec![begin()], HashMap::new());
    let failure = |from: &HashMap<State, Option<(State, &'static str)>>, what: &str, mut x: State| {
        let mut way = Vec::new();
        while let Some((before, name)) = from[&x] {
            way.push(name);
            x = before;
        }
        way.reverse();
        format!("{what}: {}", way.join(", "))
    };
    while !layer.is_empty() {
        let mut deeper = Vec::new();
        for x in layer {
            if let Some(what) = violation(&x) {
                return Err(failure(&from, what, x));
            }
            let alone = next(&x, without, true);
            let opens = |name: &str| alone.iter().any(|(n, y)| n.starts_with(name) && source_is_open(y));
            if x.source.row.step == Fenced && !x.source.is_promoted && !opens("open by itself") {
                return Err(failure(&from, "the source stays closed", x));
            }
            if x.is_target_lost && x.source.row.step != Finished && !source_is_open(&x) && !opens("operator")
            {
                return Err(failure(&from, "the operator cannot open the source", x));
            }
            if !x.is_target_lost && !can_reach(&x, without, has_ended, &mut ends) {
                return Err(failure(&from, "no driver can end the move", x));
            }
            for (name, y) in next(&x, without, false) {
                from.entry(y).or_insert_with(|| {
                    deeper.push(y);
                    Some((x, name))
                });
            }
        }
        layer = deeper;
    }
    Ok(from.len())
}

fn has_ended(x: &State) -> bool {
    match x.source.row.step {
        Finished => target_is_open(x),
        Withdrawn => x.target.row.step == Cancelled,
        _ => false,
    }
}

#[test]
fn a_move_is_safe_and_ends() {
    let states = explore(None);
    assert!(states.is_ok(), "{states:?}");
}

#[test]
fn each_rule_of_a_move_is_needed() {
    for rule in RULES {
        let way = explore(Some(rule)).expect_err(&format!("{rule:?} is not needed"));
        println!("without {rule:?}: {way}");
    }
}
