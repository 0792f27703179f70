//! A policy at work on a step, operator by operator, as an executor would do it: without times, and without knowing
//! what comes.
//!
//! A [`Director`] says what goes and what is fetched. Where that does not do, the executor helps itself, as in
//! Chameleon's Algorithm 3: what is on its way out is waited for, then tensors that lie idle go at once. What comes
//! out is a [`Schedule`], to be simulated and checked like any other.

use std::collections::VecDeque;

use crate::method::Budgets;
use crate::schedule::{Away, Schedule, Wasted};
use crate::simulate::Direction;
use crate::step::Step;

/// What decides.
pub trait Director {
    /// An operator is about to be run. Gaps whose tensors shall be fetched are added to `fetch`, and those whose
    /// tensors lie idle and shall go after all to `go`.
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, go: &mut Vec<u32>);

    /// The tensor of a gap was used for the last time before it. Whether it shall go, and if so, before which operator
    /// its bytes are let go of; none for as soon as they are needed.
    fn leaves(&mut self, gap: u32) -> Option<Leave>;

    /// Of tensors that lie idle where `need` bytes are missing, the one of the least rank goes.
    fn rank(&mut self, gap: u32, need: u64) -> i64;
}

/// That a tensor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Leave {
    /// The operator before which its bytes are let go of at the latest.
    pub release: Option<u32>,
}

/// Nobody decides: nothing goes but at the edge of out of memory, the tensor of the closest size first.
pub struct Passive<'a> {
    /// The step.
    pub step: &'a Step,
}

impl Director for Passive<'_> {
    fn begins(&mut self, _op: u32, _fetch: &mut Vec<u32>, _go: &mut Vec<u32>) {}

    fn leaves(&mut self, _gap: u32) -> Option<Leave> {
        None
    }

    fn rank(&mut self, gap: u32, need: u64) -> i64 {
        self.step.bytes(gap).abs_diff(need) as i64
    }
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Execution {
    /// What went.
    pub schedule: Schedule,
    /// Tensors that went because memory ran out.
    pub passive: u32,
    /// Tensors that were fetched only when they were used.
    pub demanded: u32,
    /// Tensors that were on their way out and stayed after all. Their copies are [`Wasted`].
    pub cancelled: u32,
    /// Tensors that were fetched too early, and went again before their use. What is on the host is still right, so
    /// nothing is copied out a second time; the copy in was [`Wasted`].
    pub refetched: u32,
    /// The most bytes above the GPU's budget that nothing could be done about.
    pub unmet: u64,
}

/// Where the tensor of a gap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    /// Not in its gap.
    InUse,
    Idle,
    /// On its way out: its entry, and when its bytes must be free.
    Going(u32, Option<u32>),
    Host(u32),
    /// Fetched, and not used yet: its entry.
    Back(u32),
}

/// Runs a step under a director.
pub fn execute(step: &Step, budgets: &Budgets, director: &mut dyn Director) -> Execution {
    let mut run = Executor::new(step, *budgets);
    let (mut wanted, mut go) = (Vec::new(), Vec::new());
    for op in 0..step.ops.len() as u32 {
        run.end_uses(op, director);
        director.begins(op, &mut wanted, &mut go);
        go.drain(..).for_each(|gap| run.send_late(op, gap));
        run.begin_uses(op);
        run.make_room(op, director);
        wanted.retain(|&gap| run.fetch(op, gap));
    }
    run.done()
}

struct Executor<'a> {
    step: &'a Step,
    budgets: Budgets,
    places: Vec<Where>,
    entries: Vec<Option<Away>>,
    going: VecDeque<u32>,
    idle: Vec<u32>,
    /// What was fetched and is not used yet.
    back: Vec<u32>,
    /// Gaps in order of their ends.
    ends: Vec<u32>,
    next_gap: usize,
    next_end: usize,
    /// Bytes that are free of those of [`Step::load`].
    gone: u64,
    host: u64,
    /// Whether the tensor of a gap has its place on the host.
    on_host: Vec<bool>,
    /// Bytes on the host that are given back before the next operator.
    landed: u64,
    result: Execution,
}

impl<'a> Executor<'a> {
    fn new(step: &'a Step, budgets: Budgets) -> Executor<'a> {
        let mut ends: Vec<u32> = (0..step.gaps.len() as u32).collect();
        ends.sort_by_key(|&gap| step.gaps[gap as usize].before);
        Executor {
            step,
            budgets,
            places: vec![Where::InUse; step.gaps.len()],
            entries: Vec::new(),
            going: VecDeque::new(),
            idle: Vec::new(),
            back: Vec::new(),
            ends,
            next_gap: 0,
            next_end: 0,
            gone: 0,
            host: 0,
            on_host: vec![false; step.gaps.len()],
            landed: 0,
            result: Execution::default(),
        }
    }

    /// Tensors whose use ended with the operator before this one lie idle, or go.
    fn end_uses(&mut self, op: u32, director: &mut dyn Director) {
        self.host -= std::mem::take(&mut self.landed);
        while let Some(gap) = self.step.gaps.get(self.next_gap).filter(|gap| gap.after < op) {
            let index = self.next_gap as u32;
            self.next_gap += 1;
            self.places[index as usize] = Where::Idle;
            self.idle.push(index);
            if let Some(leave) = director.leaves(index) {
                let after = gap.after;
                self.send(index, after, leave.release);
            }
        }
    }

    /// Sends what was left idle.
    fn send_late(&mut self, op: u32, gap: u32) {
        if self.places[gap as usize] == Where::Idle {
            self.send(gap, op - 1, None);
        }
    }

    /// Queues a copy out, if the host has room. True if it has.
    fn send(&mut self, gap: u32, leave: u32, release: Option<u32>) -> bool {
        let bytes = self.step.bytes(gap);
        if self.budgets.host.is_some_and(|host| self.host + bytes > host) {
            return false;
        }
        self.host += bytes;
        self.on_host[gap as usize] = true;
        let entry = self.entries.len() as u32;
        self.entries.push(Some(Away { gap, leave, release: 0, fetch: 0 }));
        self.places[gap as usize] = Where::Going(entry, release);
        self.going.push_back(gap);
        self.idle.retain(|&other| other != gap);
        true
    }

    /// Tensors that this operator uses must be there.
    fn begin_uses(&mut self, op: u32) {
        while let Some(&gap) = self.ends.get(self.next_end) {
            if self.step.gaps[gap as usize].before != op {
                return;
            }
            self.next_end += 1;
            let is_going = matches!(self.places[gap as usize], Where::Going(..));
            if self.on_host[gap as usize] && !is_going {
                self.landed += self.step.bytes(gap);
            }
            match self.places[gap as usize] {
                Where::Going(..) => self.cancel(gap),
                Where::Host(_) => {
                    self.result.demanded += 1;
                    self.bring(op, gap);
                }
                Where::Idle | Where::InUse | Where::Back(_) => {}
            }
            self.back.retain(|&other| other != gap);
            self.idle.retain(|&other| other != gap);
            self.places[gap as usize] = Where::InUse;
        }
    }

    fn waste(&mut self, gap: u32, direction: Direction, at: u32) {
        self.result.schedule.wasted.push(Wasted { gap, direction, at });
    }

    fn cancel(&mut self, gap: u32) {
        if let Where::Going(entry, _) = self.places[gap as usize] {
            // A copy that is queued cannot be called back.
            if let Some(away) = self.entries[entry as usize].take() {
                self.waste(gap, Direction::Out, away.leave + 1);
            }
            self.going.retain(|&other| other != gap);
            self.on_host[gap as usize] = false;
            self.host -= self.step.bytes(gap);
            self.result.cancelled += 1;
            self.places[gap as usize] = Where::Idle;
        }
    }

    /// Takes bytes again and queues the copy in.
    fn bring(&mut self, op: u32, gap: u32) {
        if let Where::Host(entry) = self.places[gap as usize]
            && let Some(away) = &mut self.entries[entry as usize]
        {
            away.fetch = op;
            self.gone -= self.step.bytes(gap);
            self.places[gap as usize] = Where::Back(entry);
            self.back.push(gap);
        }
    }

    /// Of what was fetched and is not used yet, the one that is used last goes again. False if there is none.
    fn send_back(&mut self, op: u32) -> bool {
        let gaps = &self.step.gaps;
        let unused = self.back.iter().copied().filter(|&gap| gaps[gap as usize].before > op);
        let Some(gap) = unused.max_by_key(|&gap| (gaps[gap as usize].before, gap)) else {
            return false;
        };
        if let Where::Back(entry) = self.places[gap as usize] {
            if let Some(away) = self.entries[entry as usize] {
                self.waste(gap, Direction::In, away.fetch);
            }
            self.gone += self.step.bytes(gap);
            self.places[gap as usize] = Where::Host(entry);
            self.back.retain(|&other| other != gap);
            self.result.refetched += 1;
        }
        true
    }

    /// Lets go of what must be free now, and of as much as this operator needs.
    fn make_room(&mut self, op: u32, director: &mut dyn Director) {
        let due: Vec<u32> =
            self.going.iter().copied().filter(|&gap| self.is_due(op, gap)).collect();
        due.into_iter().for_each(|gap| self.release(op, gap));
        let load = self.step.load[op as usize];
        while load - self.gone > self.budgets.gpu {
            if let Some(&gap) = self.going.front() {
                self.release(op, gap);
                continue;
            }
            let need = load - self.gone - self.budgets.gpu;
            // Idle for this operator too, and with a whole operator to be away.
            let candidates = self.idle.iter().copied();
            let victim = candidates.min_by_key(|&gap| (director.rank(gap, need), gap));
            let is_sent = victim.is_some_and(|gap| self.send(gap, op - 1, Some(op)));
            if !is_sent && self.send_back(op) {
                continue;
            }
            if !is_sent {
                self.result.unmet = self.result.unmet.max(need);
                return;
            }
            self.result.passive += 1;
        }
    }

    fn is_due(&self, op: u32, gap: u32) -> bool {
        matches!(self.places[gap as usize], Where::Going(_, Some(release)) if release <= op)
    }

    fn release(&mut self, op: u32, gap: u32) {
        if let Where::Going(entry, _) = self.places[gap as usize]
            && let Some(away) = &mut self.entries[entry as usize]
        {
            away.release = op;
            self.gone += self.step.bytes(gap);
            self.places[gap as usize] = Where::Host(entry);
            self.going.retain(|&other| other != gap);
        }
    }

    /// Fetches a tensor if there is room. True if it is still to be fetched.
    fn fetch(&mut self, op: u32, gap: u32) -> bool {
        match self.places[gap as usize] {
            Where::Going(..) => {
                self.cancel(gap);
                self.idle.push(gap);
                false
            }
            Where::Host(_) => {
                let held = self.step.load[op as usize] - self.gone + self.step.bytes(gap);
                if held <= self.budgets.gpu {
                    self.bring(op, gap);
                }
                held > self.budgets.gpu
            }
            Where::Idle | Where::InUse | Where::Back(_) => false,
        }
    }

    fn done(mut self) -> Execution {
        let mut away: Vec<Away> = self.entries.iter().copied().flatten().collect();
        away.sort_by_key(|away| away.leave);
        self.result.schedule.away = away;
        self.result.schedule.wasted.sort_by_key(|wasted| wasted.at);
        self.result
    }
}
