//! What one line makes beyond all that went well before: a spike.
//!
//! Two kinds. The first step of an optimizer makes its states, once, when weights, gradients and
//! all else are there. And a line that earlier steps passed with less asks for much more than they
//! did: then most of what is needed beyond the earlier steps is its own, and it has grown more than
//! the rest.

use rustc_hash::FxHashMap;

use girih_trace::{Lifetimes, PhaseKind, Phases, Tick, Trace};

use crate::frames::{Doing, Stacks};
use crate::refusal::Refusal;

/// What made the spike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spike {
    /// Bytes that it made, the refused request with them.
    pub bytes: u64,
    /// The line; the optimizer's, if it is its first step.
    pub line: String,
    /// True of the first step of the optimizer.
    pub is_optimizer: bool,
}

/// A recording, and the steps of it.
pub struct Run<'a> {
    /// The recording.
    pub trace: &'a Trace,
    /// Its lifetimes.
    pub lives: &'a Lifetimes,
    /// Its stacks.
    pub stacks: &'a Stacks,
    /// Its phases.
    pub phases: &'a Phases,
    /// Where its steps begin.
    pub starts: &'a [Tick],
}

impl Run<'_> {
    fn line(&self, index: u32) -> Option<&str> {
        let life = &self.lives.requests[index as usize];
        self.stacks.get(life.stack).map(|told| told.line.as_str())
    }

    /// True if the optimizer asked for it.
    fn is_of_optimizer(&self, stack: girih_trace::StackId, birth: Tick) -> bool {
        match self.stacks.get(stack) {
            Some(told) => told.doing == Doing::Optimizer,
            None => {
                let phase = self.phases.index_of(birth).map(|at| self.phases.list[at].kind);
                phase == Some(PhaseKind::Optimizer)
            }
        }
    }

    /// The spike at a refusal, of what is alive then; None if there is none.
    pub fn spike(&self, refusal: &Refusal, alive: &[u32]) -> Option<Spike> {
        self.first_optimizer_step(refusal, alive)
            .or_else(|| self.beyond_earlier_steps(refusal, alive))
    }

    /// The first step of the optimizer: between its first request and the refused one nothing else
    /// was asked for.
    fn first_optimizer_step(&self, refusal: &Refusal, alive: &[u32]) -> Option<Spike> {
        if !self.is_of_optimizer(refusal.stack, refusal.tick) {
            return None;
        }
        let mut bytes = refusal.size;
        let mut first = None;
        for life in self.lives.born().iter().take_while(|life| life.birth < refusal.tick) {
            match (self.is_of_optimizer(life.stack, life.birth), first) {
                (true, None) => first = Some(life.birth),
                (false, Some(_)) => return None,
                _ => {}
            }
        }
        let since = first.unwrap_or(refusal.tick);
        for &index in alive {
            let life = &self.lives.requests[index as usize];
            if life.birth >= since && index as usize >= self.lives.older {
                bytes += life.size;
            }
        }
        let line = self.stacks.get(refusal.stack).map(|told| told.line.clone());
        let line = line.unwrap_or_else(|| "the optimizer".to_owned());
        Some(Spike { bytes, line, is_optimizer: true })
    }

    /// A line that asks for more than it did in any earlier step.
    fn beyond_earlier_steps(&self, refusal: &Refusal, alive: &[u32]) -> Option<Spike> {
        let (&last, earlier) = self.starts.split_last()?;
        let (peak, _) = self.peak_between(*earlier.first()?, last);
        let needed = self.sum(alive) + refusal.size;
        let excess = needed.checked_sub(peak).filter(|&excess| excess > 0)?;
        let mut now: FxHashMap<&str, u64> = FxHashMap::default();
        for &index in alive {
            let life = &self.lives.requests[index as usize];
            let is_of_this_step = life.birth >= last && index as usize >= self.lives.older;
            if let Some(line) = self.line(index).filter(|_| is_of_this_step) {
                *now.entry(line).or_default() += life.size;
            }
        }
        if let Some(told) = self.stacks.get(refusal.stack) {
            *now.entry(&told.line).or_default() += refusal.size;
        }
        let before = self.most_of_each_line(last);
        let was = |line: &str| before.get(line).copied().unwrap_or(0);
        let grown = now.iter().map(|(&line, &bytes)| (bytes.saturating_sub(was(line)), line));
        let (bytes, line) = grown.max()?;
        // Beyond the growth of everything: twice as much as all of it has grown.
        let stands_out = u128::from(now[line]) * u128::from(peak.max(1))
            > 2 * u128::from(was(line)) * u128::from(needed);
        let is_most = 2 * bytes >= excess;
        (is_most && stands_out).then(|| Spike { bytes, line: line.to_owned(), is_optimizer: false })
    }

    /// The most that each line had alive at once before a tick of what it had asked for in the
    /// step.
    fn most_of_each_line(&self, end: Tick) -> FxHashMap<&str, u64> {
        let mut most: FxHashMap<&str, u64> = FxHashMap::default();
        let mut live: FxHashMap<&str, u64> = FxHashMap::default();
        let mut step = 0;
        for index in 0..end.index().min(self.lives.request_of.len()) {
            if self.starts.get(step).is_some_and(|start| start.index() <= index) {
                step += 1;
                live.clear();
            }
            let request = self.lives.request_of[index];
            if request == Lifetimes::NONE || (request as usize) < self.lives.older {
                continue;
            }
            let Some(line) = self.line(request) else { continue };
            let life = &self.lives.requests[request as usize];
            let now = live.entry(line).or_default();
            if life.birth.index() == index {
                *now += life.size;
                let most = most.entry(line).or_default();
                *most = (*most).max(*now);
            } else if life.death.index() == index {
                *now = now.saturating_sub(life.size);
            }
        }
        most
    }

    fn sum(&self, requests: &[u32]) -> u64 {
        requests.iter().map(|&index| self.lives.requests[index as usize].size).sum()
    }

    /// The most that was alive between two ticks, and when that was first so.
    pub fn peak_between(&self, from: Tick, to: Tick) -> (u64, Tick) {
        let mut live = self.sum(&crate::moment::alive(self.lives, from));
        let (mut peak, mut at) = (live, from);
        for index in from.index()..to.index().min(self.lives.request_of.len()) {
            let request = self.lives.request_of[index];
            if request == Lifetimes::NONE {
                continue;
            }
            let life = &self.lives.requests[request as usize];
            if life.birth.index() == index && request as usize >= self.lives.older {
                live += life.size;
            } else if life.death.index() == index {
                live = live.saturating_sub(life.size);
            }
            if live > peak {
                (peak, at) = (live, Tick(index as u32));
            }
        }
        (peak, at)
    }
}
