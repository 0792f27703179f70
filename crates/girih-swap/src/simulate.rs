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
    let mut engine = Engine::new(step, *links, schedule);
    for op in 0..step.ops.len() as u32 {
        engine.run(op);
    }
    engine.run.step_us = engine.now_us;
    if !schedule.wasted.is_empty() {
        // Nobody has waited for them.
        engine.advance(engine.now_us);
    }
    engine.run
}

/// What happens before each operator, as indices into the schedule.
struct Agenda {
    at: Vec<u32>,
    order: Vec<u32>,
}

impl Agenda {
    fn new(schedule: &Schedule, ops: usize, op_of: impl Fn(&Away) -> u32) -> Agenda {
        let mut at = vec![0u32; ops + 2];
        for away in &schedule.away {
            at[op_of(away) as usize + 1] += 1;
        }
        for op in 1..at.len() {
            at[op] += at[op - 1];
        }
        let mut next = at.clone();
        let mut order = vec![0; schedule.away.len()];
        for (index, away) in schedule.away.iter().enumerate() {
            let slot = &mut next[op_of(away) as usize];
            order[*slot as usize] = index as u32;
            *slot += 1;
        }
        Agenda { at, order }
    }

    /// Sorts what happens before one operator.
    fn sort(&mut self, key: impl Fn(&u32) -> u32) {
        for pair in self.at.windows(2) {
            self.order[pair[0] as usize..pair[1] as usize].sort_by_key(&key);
        }
    }

    fn of(&self, op: u32) -> &[u32] {
        &self.order[self.at[op as usize] as usize..self.at[op as usize + 1] as usize]
    }
}

/// One direction: what is queued, and how much of the first is left.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<u32>,
    left: f64,
}

struct Engine<'a> {
    step: &'a Step,
    schedule: &'a Schedule,
    links: Links,
    leaves: Agenda,
    releases: Agenda,
    fetches: Agenda,
    uses: Agenda,
    out: Queue,
    inward: Queue,
    is_out: Vec<bool>,
    is_in: Vec<bool>,
    /// How many of the wasted copies are queued; they are numbered behind the others.
    next_wasted: usize,
    /// For each wasted copy, the entry whose own copy out comes before it.
    own: Vec<Option<u32>>,
    links_us: f64,
    now_us: f64,
    run: Run,
}

impl<'a> Engine<'a> {
    fn new(step: &'a Step, links: Links, schedule: &'a Schedule) -> Engine<'a> {
        let (ops, count) = (step.ops.len(), schedule.away.len());
        let agenda = |op_of: &dyn Fn(&Away) -> u32| Agenda::new(schedule, ops, op_of);
        let mut fetches = agenda(&|away| away.fetch);
        let before = |away: u32| step.gaps[schedule.away[away as usize].gap as usize].before;
        fetches.sort(|away| before(*away));
        let entry = |gap: u32| (0..).zip(&schedule.away).find(|(_, away)| away.gap == gap);
        let own = schedule.wasted.iter().map(|wasted| match wasted.direction {
            Direction::Out => None,
            Direction::In => entry(wasted.gap).map(|(index, _)| index),
        });
        let own = own.collect();
        let all = count + schedule.wasted.len();
        Engine {
            step,
            schedule,
            links,
            leaves: agenda(&|away| away.leave + 1),
            releases: agenda(&|away| away.release),
            fetches,
            uses: agenda(&|away| step.gaps[away.gap as usize].before),
            out: Queue::default(),
            inward: Queue::default(),
            is_out: vec![false; all],
            is_in: vec![false; all],
            next_wasted: 0,
            own,
            links_us: 0.0,
            now_us: 0.0,
            run: Run { times: vec![Times::default(); count], ..Run::default() },
        }
    }

    fn bytes(&self, copy: u32) -> f64 {
        let (copy, count) = (copy as usize, self.schedule.away.len());
        let gap = match copy.checked_sub(count) {
            None => self.schedule.away[copy].gap,
            Some(wasted) => self.schedule.wasted[wasted].gap,
        };
        self.step.bytes(gap) as f64
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

    fn run(&mut self, op: u32) {
        let leaves = self.leaves.of(op).len() + self.fetches.of(op).len();
        if leaves + self.releases.of(op).len() > 0 {
            self.advance(self.now_us);
        }
        self.enqueue_wasted(op);
        for at in 0..self.leaves.of(op).len() {
            let away = self.leaves.of(op)[at];
            self.enqueue(Direction::Out, away);
        }
        for at in 0..self.releases.of(op).len() {
            let away = self.releases.of(op)[at];
            self.wait(op, away, Direction::Out);
        }
        for at in 0..self.releases.of(op).len() {
            let away = self.releases.of(op)[at];
            self.run.times[away as usize].released_us = self.now_us;
        }
        for at in 0..self.fetches.of(op).len() {
            let away = self.fetches.of(op)[at];
            self.run.times[away as usize].taken_us = self.now_us;
            self.enqueue(Direction::In, away);
        }
        for at in 0..self.uses.of(op).len() {
            let away = self.uses.of(op)[at];
            self.wait(op, away, Direction::In);
        }
        self.run.starts_us.push(self.now_us);
        self.now_us += self.step.ops[op as usize].us;
    }

    fn enqueue(&mut self, direction: Direction, away: u32) {
        let bytes = self.bytes(away);
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
            self.run.stalls.push(Stall { op, away, direction, us });
            self.now_us = self.links_us;
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
                self.out.left = self.out.waiting.front().map_or(0.0, |&next| self.bytes(next));
            }
        }
        if let Some(away) = comes_in {
            self.piece(away, Direction::In, to_us, in_rate * cut);
            self.inward.left -= in_rate * cut;
            if in_us <= cut {
                self.is_in[away as usize] = true;
                self.inward.waiting.pop_front();
                self.inward.left =
                    self.inward.waiting.front().map_or(0.0, |&next| self.bytes(next));
            }
        }
        self.links_us = to_us;
        true
    }

    fn piece(&mut self, away: u32, direction: Direction, to_us: f64, bytes: f64) {
        if bytes <= 0.0 {
            return;
        }
        let piece = Piece { away, direction, from_us: self.links_us, to_us, bytes };
        match away.checked_sub(self.schedule.away.len() as u32) {
            None => self.run.pieces.push(piece),
            Some(wasted) => self.run.wasted.push(Piece { away: wasted, ..piece }),
        }
    }
}
