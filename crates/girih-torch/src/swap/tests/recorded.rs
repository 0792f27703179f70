//! What a step of a recording asks for besides the tensors that may go: every request with its size and its place in the
//! order, so that holes come about as they did.
//!
//! Only of recordings without operators, where each request is one. All streams are one.

use girih_runtime::Address;
use girih_swap::{Step, Steps};
use girih_trace::{Iteration, Iterations, Lifetimes, Tick, Trace};
use rustc_hash::{FxHashMap, FxHashSet};

/// What a program does in an operator with a block that never goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// Asks for so many bytes, the block of that number.
    Ask(u32, u64),
    /// Frees the block of that number.
    Free(u32),
    /// Frees a block of so many bytes that is older than the step.
    FreeOlder(u64),
}

/// The requests of a step, and what is there before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    /// Bytes of the blocks that are there when the step begins.
    older: Vec<u64>,
    /// By operator: what is done before its kernel and after it.
    before: Vec<Vec<Act>>,
    after: Vec<Vec<Act>>,
    /// Where the blocks are of this step, and those that are older, with their bytes.
    places: Vec<Option<Address>>,
    here: Vec<(u64, Address)>,
}

impl Recorded {
    /// Of the step that stands for all of a recording.
    pub(super) fn of(trace: &Trace) -> Option<(Step, Recorded)> {
        let lives = Lifetimes::of(trace);
        let iterations = Iterations::of(trace, &lives);
        let mut steps = Steps::of(trace, &lives, &iterations, None).ok()?;
        let span = iterations.list.get(steps.model)?;
        if !trace.uses.is_empty() || steps.assumed.one_step {
            return None;
        }
        Some(Recorded::of_span(&lives, span, steps.list.swap_remove(steps.model)))
    }

    /// Of every step of a recording, in order.
    pub(super) fn all_of(trace: &Trace) -> Vec<(Step, Recorded)> {
        let lives = Lifetimes::of(trace);
        let iterations = Iterations::of(trace, &lives);
        match Steps::of(trace, &lives, &iterations, None) {
            Ok(steps) if trace.uses.is_empty() && !steps.assumed.one_step => {
                let each = iterations.list.iter().zip(steps.list);
                each.map(|(span, step)| Recorded::of_span(&lives, span, step)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn of_span(lives: &Lifetimes, span: &Iteration, step: Step) -> (Step, Recorded) {
        let (from, to) = (span.ticks.start, span.ticks.end);
        let go: FxHashSet<u32> = step.tensors.iter().map(|tensor| tensor.request).collect();
        let count = step.ops.len();
        let mut recorded = Recorded {
            before: vec![Vec::new(); count],
            after: vec![Vec::new(); count],
            ..Recorded::default()
        };
        let first = span.requests.start;
        // The operator of a tick: the last request at or before it.
        let births = &lives.requests[first as usize..span.requests.end as usize];
        let op_at = |tick: Tick| births.partition_point(|it| it.birth <= tick).saturating_sub(1);
        for (request, index) in lives.requests.iter().zip(0_u32..) {
            let is_within = (from..to).contains(&request.free_requested.0);
            if index < first {
                let is_there = request.free_requested.0 >= from;
                if is_there {
                    recorded.older.push(request.size);
                }
                if is_there && is_within {
                    let act = Act::FreeOlder(request.size);
                    recorded.after[op_at(request.free_requested)].push(act);
                }
            } else if index < span.requests.end && !go.contains(&index) {
                let number = recorded.places.len() as u32;
                recorded.places.push(None);
                let op = (index - first) as usize;
                recorded.before[op].push(Act::Ask(number, request.size));
                if is_within {
                    recorded.after[op_at(request.free_requested)].push(Act::Free(number));
                }
            }
        }
        (step, recorded)
    }

    /// Asks for all that is there before the first step.
    pub(super) fn begin(&mut self, mut ask: impl FnMut(u64) -> Option<Address>) {
        for &size in &self.older {
            self.here.extend(ask(size).map(|address| (size, address)));
        }
    }

    /// What is asked for before the kernel of an operator.
    pub(super) fn ask(&mut self, op: usize, mut ask: impl FnMut(u64) -> Option<Address>) {
        for act in &self.before[op] {
            if let Act::Ask(number, size) = *act {
                self.places[number as usize] = ask(size);
            }
        }
    }

    /// What is freed after it.
    pub(super) fn free(&mut self, op: usize, mut free: impl FnMut(Address)) {
        for act in &self.after[op] {
            let freed = match *act {
                Act::Ask(..) => None,
                Act::Free(number) => self.places[number as usize].take(),
                Act::FreeOlder(size) => {
                    let at = self.here.iter().rposition(|(bytes, _)| *bytes == size);
                    at.map(|at| self.here.remove(at).1)
                }
            };
            freed.into_iter().for_each(&mut free);
        }
    }

    /// Another step begins, with what is there of the one before; as much of it as is older than the other.
    pub(super) fn follow(&mut self, before: Recorded, mut ask: impl FnMut(u64) -> Option<Address>) {
        self.here = before.here;
        let mut wanted: FxHashMap<u64, usize> = FxHashMap::default();
        self.older.iter().for_each(|size| *wanted.entry(*size).or_default() += 1);
        for (size, _) in &self.here {
            if let Some(left) = wanted.get_mut(size) {
                *left = left.saturating_sub(1);
            }
        }
        for (size, count) in wanted {
            (0..count).for_each(|_| self.here.extend(ask(size).map(|address| (size, address))));
        }
    }

    /// The step ends: what is left of it is older than the next one. What no later step would free goes, but for
    /// what `next` begins with.
    pub(super) fn end(&mut self, next: Option<&Recorded>, mut free: impl FnMut(Address)) {
        let asked = self.before.iter().flatten().filter_map(|act| match *act {
            Act::Ask(number, size) => Some((number, size)),
            _ => None,
        });
        for (number, size) in asked {
            if let Some(address) = self.places[number as usize].take() {
                self.here.push((size, address));
            }
        }
        // As much is there as before the first step.
        let mut wanted: FxHashMap<u64, usize> = FxHashMap::default();
        let older = next.map_or(&self.older, |next| &next.older);
        older.iter().for_each(|size| *wanted.entry(*size).or_default() += 1);
        self.here.retain(|(size, address)| {
            let left = wanted.entry(*size).or_default();
            let stays = *left > 0;
            if stays {
                *left -= 1;
            } else {
                free(*address);
            }
            stays
        });
    }
}
