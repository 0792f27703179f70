//! A schedule with its times: three timelines, the compute stream and the two links.
//!
//! ```text
//!  compute  |op0|op1|op2|....wait....|op3|op4|op5|..wait..|op6|
//!  out            [ a      ][ b      ]
//!  in                                  [ a        ][ b     ]
//! ```
//!
//! Copies of one direction run one after another. Each direction has its own bandwidth alone and less while the
//! other is busy. A copy in waits for its own copy out.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::links::Links;
use crate::schedule::{Away, Schedule};
use crate::step::Step;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// To the host.
    Out,
    /// To the GPU.
    In,
}

/// A part of a copy at one rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Piece {
    /// The index in [`Schedule::away`].
    pub away: u32,
    /// Where it goes.
    pub direction: Direction,
    /// When it begins and ends, in microseconds of the step.
    pub from_us: f64,
    /// Its end.
    pub to_us: f64,
    /// Bytes copied.
    pub bytes: f64,
}

/// When the bytes of one tensor that goes are let go of and taken again, in microseconds of the step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Times {
    /// The source is let go of.
    pub released_us: f64,
    /// The destination is taken.
    pub taken_us: f64,
}

/// A wait of the compute stream for a copy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stall {
    /// The operator that waits.
    pub op: u32,
    /// The copy, as an index into [`Schedule::away`].
    pub away: u32,
    /// Its direction.
    pub direction: Direction,
    /// Microseconds.
    pub us: f64,
}

/// A schedule as it ran.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// When each operator begins, in microseconds of the step.
    pub starts_us: Vec<f64>,
    /// When the last operator ends.
    pub step_us: f64,
    /// The waits, in order. They add up to what the step takes longer.
    pub stalls: Vec<Stall>,
    /// What each link did, in order.
    pub pieces: Vec<Piece>,
    /// What it did for nothing, likewise: of the entries of [`Schedule::wasted`]. What is not done when the step ends is
    /// left out.
    pub wasted: Vec<Piece>,
    /// For each entry of the schedule, its times.
    pub times: Vec<Times>,
}

impl Run {
    /// Microseconds that operators waited for copies.
    pub fn stall_us(&self) -> f64 {
        self.stalls.iter().fold(0.0, |sum, stall| sum + stall.us)
    }
}

/// Runs a schedule. The schedule must be one of the step: `after <= leave < release <= fetch <= before` in each
/// entry; [`crate::check::check`] says whether it is.
pub fn simulate(step: &Step, links: &Links, schedule: &Schedule) -> Run {
    let order: Vec<u32> = (0..schedule.away.len() as u32).collect();
    let mut engine: Engine<'_, true> = Engine::new(step, *links, schedule, &order);
    engine.run_all();
    engine.run.step_us = engine.now_us;
    if !schedule.wasted.is_empty() {
        // Nobody has waited for them.
        engine.advance(engine.now_us);
    }
    engine.run
}

/// When each operator begins under a schedule, and last when the step ends: as [`simulate`] has it, without what else it
/// notes. A search asks for nothing else, some thousand times. `by_use`: the entries in the order in which they are fetched
/// and used, if that is known; else in any. None if operators wait for longer than `stall_max`.
pub(crate) fn starts_us(
    step: &Step,
    links: &Links,
    schedule: &Schedule,
    by_use: &[u32],
    stall_max: f64,
) -> Option<Vec<f64>> {
    let mut engine: Engine<'_, false> = Engine::new(step, *links, schedule, by_use);
    engine.stall_max = stall_max;
    engine.run_all().then(|| {
        engine.run.starts_us.push(engine.now_us);
        engine.run.starts_us
    })
}

/// What happens before which operator: entries of a schedule in order.
struct Agenda {
    /// The operator, what else the order goes by, the entry.
    list: Vec<(u32, u32, u32)>,
    next: usize,
}

impl Agenda {
    fn new(
        schedule: &Schedule,
        order: impl Iterator<Item = u32>,
        of: impl Fn(&Away) -> (u32, u32),
    ) -> Agenda {
        let entries = order.map(|index| {
            let (op, then) = of(&schedule.away[index as usize]);
            (op, then, index)
        });
        let mut list: Vec<(u32, u32, u32)> = entries.collect();
        if !list.is_sorted() {
            list.sort_unstable();
        }
        Agenda { list, next: 0 }
    }

    /// The operator of the next entry.
    fn op(&self) -> u32 {
        self.list.get(self.next).map_or(u32::MAX, |entry| entry.0)
    }

    /// The next entry, if it is of this operator.
    fn pop(&mut self, op: u32) -> Option<u32> {
        let entry = self.list.get(self.next).filter(|entry| entry.0 == op)?;
        self.next += 1;
        Some(entry.2)
    }
}

/// One direction: what is queued, and how much of the first is left.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<u32>,
    left: f64,
}

/// With `NOTES` it notes all of a [`Run`], else no more than when operators begin.
struct Engine<'a, const NOTES: bool> {
    step: &'a Step,
    schedule: &'a Schedule,
    links: Links,
    leaves: Agenda,
    releases: Agenda,
    fetches: Agenda,
    uses: Agenda,
    out: Queue,
    inward: Queue,
    /// Bytes of each copy; wasted ones are numbered behind the others.
    bytes: Vec<f64>,
    is_out: Vec<bool>,
    is_in: Vec<bool>,
    /// How many of the wasted copies are queued.
    next_wasted: usize,
    /// For each wasted copy, the entry whose own copy out comes before it.
    own: Vec<Option<u32>>,
    links_us: f64,
    now_us: f64,
    /// How long operators have waited, and may.
    stall_us: f64,
    stall_max: f64,
    run: Run,
}

impl<'a, const NOTES: bool> Engine<'a, NOTES> {
    fn new(
        step: &'a Step,
        links: Links,
        schedule: &'a Schedule,
        by_use: &[u32],
    ) -> Engine<'a, NOTES> {
        let count = schedule.away.len();
        let before = |away: &Away| step.gaps[away.gap as usize].before;
        // Most schedules waste nothing, and none of those that are searched through.
        let known = if schedule.wasted.is_empty() { 0 } else { count };
        // The first entry of a gap, if there were several.
        let entries = (0..known).rev().map(|at| (schedule.away[at].gap, at as u32));
        let entry_of: FxHashMap<u32, u32> = entries.collect();
        let own = schedule.wasted.iter().map(|wasted| match wasted.direction {
            Direction::Out => None,
            Direction::In => entry_of.get(&wasted.gap).copied(),
        });
        let gaps = schedule.away.iter().map(|away| away.gap);
        let gaps = gaps.chain(schedule.wasted.iter().map(|wasted| wasted.gap));
        let all = count + schedule.wasted.len();
        let times = vec![Times::default(); if NOTES { count } else { 0 }];
        let by_use = || by_use.iter().copied();
        let starts_us = Vec::with_capacity(step.ops.len() + 1);
        Engine {
            step,
            schedule,
            links,
            leaves: Agenda::new(schedule, 0..count as u32, |away| (away.leave + 1, 0)),
            releases: Agenda::new(schedule, 0..count as u32, |away| (away.release, 0)),
            fetches: Agenda::new(schedule, by_use(), |away| (away.fetch, before(away))),
            uses: Agenda::new(schedule, by_use(), |away| (before(away), 0)),
            out: Queue::default(),
            inward: Queue::default(),
            bytes: gaps.map(|gap| step.bytes(gap) as f64).collect(),
            is_out: vec![false; all],
            is_in: vec![false; all],
            next_wasted: 0,
            own: own.collect(),
            links_us: 0.0,
            now_us: 0.0,
            stall_us: 0.0,
            stall_max: f64::INFINITY,
            run: Run { times, starts_us, ..Run::default() },
        }
    }

    /// False if operators wait for longer than they may.
    fn run_all(&mut self) -> bool {
        let mut next = self.next_op();
        for op in 0..self.step.ops.len() as u32 {
            if next <= op {
                self.prepare(op);
                next = self.next_op();
                if self.stall_us > self.stall_max {
                    return false;
                }
            }
            self.run.starts_us.push(self.now_us);
            self.now_us += self.step.ops[op as usize].us;
        }
        true
    }

    /// The operator before which something happens next.
    fn next_op(&self) -> u32 {
        let agendas = [&self.leaves, &self.releases, &self.fetches, &self.uses].map(Agenda::op);
        let wasted = self.schedule.wasted.get(self.next_wasted).map_or(u32::MAX, |it| it.at);
        agendas.into_iter().fold(wasted, u32::min)
    }

    /// True if a copy in may begin: its own copy out is over.
    fn may_begin(&self, copy: u32) -> bool {
        let own = match (copy as usize).checked_sub(self.schedule.away.len()) {
            None => Some(copy),
            Some(wasted) => self.own[wasted],
        };
        own.is_none_or(|own| self.is_out[own as usize])
    }

    /// Queues what turned out to be for nothing.
    fn enqueue_wasted(&mut self, op: u32) {
        while let Some(wasted) = self.schedule.wasted.get(self.next_wasted)
            && wasted.at <= op
        {
            self.advance(self.now_us);
            let copy = self.schedule.away.len() + self.next_wasted;
            self.enqueue(wasted.direction, copy as u32);
            self.next_wasted += 1;
        }
    }

    /// What happens before an operator.
    fn prepare(&mut self, op: u32) {
        if self.leaves.op().min(self.fetches.op()).min(self.releases.op()) == op {
            self.advance(self.now_us);
        }
        self.enqueue_wasted(op);
        while let Some(away) = self.leaves.pop(op) {
            self.enqueue(Direction::Out, away);
        }
        let released = self.releases.next;
        while let Some(away) = self.releases.pop(op) {
            self.wait(op, away, Direction::Out);
        }
        if NOTES {
            for at in released..self.releases.next {
                let (_, _, away) = self.releases.list[at];
                self.run.times[away as usize].released_us = self.now_us;
            }
        }
        while let Some(away) = self.fetches.pop(op) {
            if NOTES {
                self.run.times[away as usize].taken_us = self.now_us;
            }
            self.enqueue(Direction::In, away);
        }
        while let Some(away) = self.uses.pop(op) {
            self.wait(op, away, Direction::In);
        }
    }

    fn enqueue(&mut self, direction: Direction, away: u32) {
        let bytes = self.bytes[away as usize];
        let queue = match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.inward,
        };
        if queue.waiting.is_empty() {
            queue.left = bytes;
        }
        queue.waiting.push_back(away);
    }

    fn is_done(&self, away: u32, direction: Direction) -> bool {
        match direction {
            Direction::Out => self.is_out[away as usize],
            Direction::In => self.is_in[away as usize],
        }
    }

    fn wait(&mut self, op: u32, away: u32, direction: Direction) {
        self.advance(self.now_us);
        while !self.is_done(away, direction) {
            if !self.turn(f64::INFINITY) {
                // A schedule that is none: what is waited for was never queued.
                return;
            }
        }
        let us = self.links_us - self.now_us;
        if us > 0.0 {
            if NOTES {
                self.run.stalls.push(Stall { op, away, direction, us });
            }
            self.now_us = self.links_us;
            self.stall_us += us;
        }
    }

    /// Lets the links work until `until_us`.
    fn advance(&mut self, until_us: f64) {
        while self.links_us < until_us && self.turn(until_us) {}
        self.links_us = self.links_us.max(until_us);
    }

    /// Works up to the next end of a copy, but not beyond `until_us`. False if there is nothing to do.
    fn turn(&mut self, until_us: f64) -> bool {
        let goes_out = self.out.waiting.front().copied();
        // A copy in waits for its own copy out, and those behind it wait too.
        let comes_in = self.inward.waiting.front().copied();
        let comes_in = comes_in.filter(|&copy| self.may_begin(copy));
        let (out_rate, in_rate) = self.links.rates(goes_out.is_some(), comes_in.is_some());
        let out_us = goes_out.map_or(f64::INFINITY, |_| self.out.left / out_rate);
        let in_us = comes_in.map_or(f64::INFINITY, |_| self.inward.left / in_rate);
        let us = out_us.min(in_us);
        if us.is_infinite() {
            return false;
        }
        let cut = us.min(until_us - self.links_us);
        let to_us = self.links_us + cut;
        if let Some(away) = goes_out {
            self.piece(away, Direction::Out, to_us, out_rate * cut);
            self.out.left -= out_rate * cut;
            if out_us <= cut {
                self.is_out[away as usize] = true;
                self.out.waiting.pop_front();
                let next = self.out.waiting.front();
                self.out.left = next.map_or(0.0, |&next| self.bytes[next as usize]);
            }
        }
        if let Some(away) = comes_in {
            self.piece(away, Direction::In, to_us, in_rate * cut);
            self.inward.left -= in_rate * cut;
            if in_us <= cut {
                self.is_in[away as usize] = true;
                self.inward.waiting.pop_front();
                let next = self.inward.waiting.front();
                self.inward.left = next.map_or(0.0, |&next| self.bytes[next as usize]);
            }
        }
        self.links_us = to_us;
        true
    }

    fn piece(&mut self, away: u32, direction: Direction, to_us: f64, bytes: f64) {
        if !NOTES || bytes <= 0.0 {
            return;
        }
        let piece = Piece { away, direction, from_us: self.links_us, to_us, bytes };
        match away.checked_sub(self.schedule.away.len() as u32) {
            None => self.run.pieces.push(piece),
            Some(wasted) => self.run.wasted.push(Piece { away: wasted, ..piece }),
        }
    }
}
