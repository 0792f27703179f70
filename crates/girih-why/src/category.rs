//! What a block is for: weights, gradients, states of the optimizer, activations, workspaces.
//!
//! A stack tells what the program was doing when it asked. What is asked for in a backward pass is
//! a gradient if it has the size of a weight and outlives what came with it, and otherwise goes
//! with the activations. Without stacks, the lives tell: what is older than the first step and
//! stays are weights; what comes later, stays, and has the size of a weight is a gradient, and
//! beyond as many gradients as weights, a state of the optimizer.

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

    /// The categories of these requests, given in order of birth.
    pub fn of(&self, requests: &[u32]) -> Vec<Category> {
        let mut gradients: FxHashMap<u64, u32> = FxHashMap::default();
        let one = |&index: &u32| self.one(index as usize, &mut gradients);
        requests.iter().map(one).collect()
    }

    fn one(&self, index: usize, gradients: &mut FxHashMap<u64, u32>) -> Category {
        let life = &self.lives.requests[index];
        if self.is_weight(index, life) {
            return Category::Weights;
        }
        let as_weights = self.weights.get(&life.size).copied().unwrap_or(0);
        let mut is_gradient = || {
            let so_far = gradients.entry(life.size).or_default();
            *so_far += 1;
            *so_far <= as_weights
        };
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
