//! What a block is for: weights, gradients, states of the optimizer, activations, workspaces.
//!
//! A stack tells what the program was doing when it asked. What is asked for in a backward pass is
//! a gradient if it has the size of a weight and outlives what came with it, and otherwise goes
//! with the activations. Without stacks, the lives tell: what is older than the first step and
//! stays are weights; what comes later, stays, and has the size of a weight is a gradient, and
//! beyond as many gradients as weights, a state of the optimizer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use girih_trace::{Lifetime, Lifetimes, PhaseKind, Phases, Tick};

use crate::frames::{Doing, Stacks};

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Category {
    /// Parameters and buffers of the model.
    Weights,
    /// Gradients of parameters.
    Gradients,
    /// States of the optimizer, and what its step needs on the way.
    Optimizer,
    /// What a forward pass leaves for the backward pass, and what both need on the way.
    Activations,
    /// Workspaces of libraries.
    Workspaces,
    /// Nothing tells.
    Other,
}

impl Category {
    /// The name that tables and JSON print.
    pub fn name(self) -> &'static str {
        match self {
            Category::Weights => "weights",
            Category::Gradients => "gradients",
            Category::Optimizer => "optimizer",
            Category::Activations => "activations",
            Category::Workspaces => "workspaces",
            Category::Other => "other",
        }
    }
}

/// What tells categories apart.
pub struct Categories<'a> {
    lives: &'a Lifetimes,
    stacks: &'a Stacks,
    phases: &'a Phases,
    first_step: Option<Tick>,
    /// The moment that is asked about.
    end: Tick,
    /// How many weights there are of each size.
    weights: FxHashMap<u64, u32>,
}

impl<'a> Categories<'a> {
    /// `first_step` is where the first step begins, if there are steps; what comes after `end` is
    /// no matter: an error that leaves functions frees much.
    pub fn new(
        lives: &'a Lifetimes,
        stacks: &'a Stacks,
        phases: &'a Phases,
        first_step: Option<Tick>,
        end: Tick,
    ) -> Categories<'a> {
        let weights = FxHashMap::default();
        let mut all = Categories { lives, stacks, phases, first_step, end, weights };
        let mut weights: FxHashMap<u64, u32> = FxHashMap::default();
        for (index, life) in lives.requests.iter().enumerate() {
            if life.death >= end && all.is_weight(index, life) {
                *weights.entry(life.size).or_default() += 1;
            }
        }
        all.weights = weights;
        all
    }

    /// The categories of these requests, which are alive at once, given in order of birth.
    pub fn of(&self, requests: &[u32]) -> Vec<Category> {
        let mut gradients: FxHashMap<u64, u32> = FxHashMap::default();
        let one = |&index: &u32| {
            self.one(index as usize, |life| {
                let so_far = gradients.entry(life.size).or_default();
                *so_far += 1;
                *so_far <= self.as_weights(life.size)
            })
        };
        requests.iter().map(one).collect()
    }

    /// The category of every request, the same for all its life. Of `moment`, requests that are alive
    /// at once, in order of birth, it is what [`Categories::of`] says; beside those there are at no
    /// moment more gradients of a size than weights.
    pub fn over_time(&self, moment: &[u32]) -> Vec<Category> {
        let settled: FxHashMap<u32, Category> =
            moment.iter().copied().zip(self.of(moment)).collect();
        let mut gradients: FxHashMap<u64, u32> = FxHashMap::default();
        let mut deaths: BinaryHeap<Reverse<(Tick, u64)>> = BinaryHeap::new();
        let one = |(index, life): (u32, &Lifetime)| {
            while let Some(&Reverse((death, size))) = deaths.peek() {
                if death > life.birth {
                    break;
                }
                deaths.pop();
                if let Some(alive) = gradients.get_mut(&size) {
                    *alive -= 1;
                }
            }
            let settled = settled.get(&index).copied();
            let category = settled.unwrap_or_else(|| {
                self.one(index as usize, |life| {
                    gradients.get(&life.size).copied().unwrap_or(0) < self.as_weights(life.size)
                })
            });
            if category == Category::Gradients {
                *gradients.entry(life.size).or_default() += 1;
                deaths.push(Reverse((life.death, life.size)));
            }
            category
        };
        (0..).zip(&self.lives.requests).map(one).collect()
    }

    /// How many weights there are of a size.
    fn as_weights(&self, size: u64) -> u32 {
        self.weights.get(&size).copied().unwrap_or(0)
    }

    /// The category of a request. `is_gradient` says whether there may be one more gradient like it.
    fn one(&self, index: usize, mut is_gradient: impl FnMut(&Lifetime) -> bool) -> Category {
        let life = &self.lives.requests[index];
        if self.is_weight(index, life) {
            return Category::Weights;
        }
        let mut is_gradient = || is_gradient(life);
        match self.stacks.doing(life.stack) {
            Doing::Workspace => Category::Workspaces,
            Doing::Optimizer => Category::Optimizer,
            Doing::Forward => Category::Activations,
            Doing::Backward if is_gradient() => Category::Gradients,
            Doing::Backward => Category::Activations,
            Doing::Building => Category::Other,
            Doing::Unknown if life.stack.is_some() => match self.first_step {
                Some(start) if life.birth >= start => Category::Activations,
                _ => Category::Other,
            },
            Doing::Unknown => self.by_life(life, is_gradient()),
        }
    }

    fn is_weight(&self, index: usize, life: &Lifetime) -> bool {
        if index < self.lives.older {
            return true;
        }
        match self.stacks.get(life.stack).map(|told| told.doing) {
            Some(Doing::Building) => true,
            Some(_) => false,
            None => {
                let is_early = self.first_step.is_some_and(|start| life.birth < start);
                is_early && life.death >= self.end
            }
        }
    }

    fn by_life(&self, life: &Lifetime, is_gradient: bool) -> Category {
        if self.first_step.is_none() {
            return Category::Other;
        }
        let phase = self.phases.index_of(life.birth).map(|index| self.phases.list[index].kind);
        match phase {
            Some(PhaseKind::Optimizer) => Category::Optimizer,
            Some(PhaseKind::Backward) if is_gradient => Category::Gradients,
            Some(PhaseKind::Forward | PhaseKind::Backward) => Category::Activations,
            _ if life.death >= self.end && self.weights.contains_key(&life.size) => {
                Category::Optimizer
            }
            _ => Category::Activations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;
    use girih_trace::Iterations;
    use girih_trace::generate::{Training, training};

    #[test]
    fn a_block_is_the_same_all_its_life_and_gradients_are_never_more_than_weights() {
        for seed in 0..6 {
            let trace = training(&Training::default(), seed);
            let lives = Lifetimes::of(&trace);
            let iterations = Iterations::of(&trace, &lives);
            let (stacks, end) = (Stacks::of(&trace), Tick(trace.events.len() as u32));
            let phases = Phases::of(&trace, &lives, &iterations);
            let starts = steps::starts(&trace, &lives, &iterations, &stacks, end);
            let of = Categories::new(&lives, &stacks, &phases, starts.first().copied(), end);
            let peak = lives.peak(|size| size).1;
            let moment = crate::moment::alive(&lives, Tick(peak.0 + 1));
            let all = of.over_time(&moment);
            let at_peak: Vec<Category> = moment.iter().map(|&at| all[at as usize]).collect();
            assert_eq!(at_peak, of.of(&moment));
            for at in (0..trace.events.len() as u32).step_by(211).map(Tick) {
                let mut more: FxHashMap<u64, i64> = FxHashMap::default();
                for index in crate::moment::alive(&lives, at) {
                    let size = lives.requests[index as usize].size;
                    // What is settled by the moment may come on top of what was alive before it.
                    if all[index as usize] == Category::Gradients && !moment.contains(&index) {
                        *more.entry(size).or_default() += 1;
                    }
                }
                for (size, count) in more {
                    assert!(count <= i64::from(of.as_weights(size)), "{count} of {size}");
                }
            }
            let gradients = all.iter().filter(|it| **it == Category::Gradients).count();
            let first = of.of(&(0..all.len() as u32).collect::<Vec<_>>());
            let at_once = first.iter().filter(|it| **it == Category::Gradients).count();
            assert!(gradients >= at_once, "every step has its gradients");
        }
    }
}
