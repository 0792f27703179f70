//! Chameleon as its paper has it ("Chameleon: Taming Dynamic Operator Sequences for Memory-Intensive LLM Training"),
//! to be measured beside ours.
//!
//! | paper | here |
//! |:--|:--|
//! | section 4: light mode, Algorithm 1 | [`stages`] |
//! | section 4: detailed mode | the step itself, of which the policy uses the operators, the tensors and the time of the iteration, never the times of operators |
//! | section 5.2, 5.3, Eq. 2: the two lists | [`lists`] |
//! | section 5.4, Eq. 1 and 3: logical layers, the simulator | [`layers`] |
//! | section 5.5: Algorithm 2 | [`generate`] |
//! | section 6.1, Appendix A: the match | [`matching`] |
//! | section 6.2: custom recordStream | [`Leave::release`](crate::execute::Leave) |
//! | section 6.3, Algorithm 3: out of memory | [`crate::execute`], with the closest size as the victim |
//!
//! Where the paper is silent: `C` is 1, no candidate is too small but those of less than 1/4096 of the peak, and there
//! are 32 logical layers to a pass (section 5.1 asks for at most as many as the model has).

pub mod layers;
pub mod lists;
pub mod matching;
pub mod stages;

use rustc_hash::FxHashMap;

use self::layers::Layers;
use self::lists::{candidates, reductions};
use self::matching::{Features, Matcher};
use self::stages::{Stage, Stages};
use crate::execute::{Director, Execution, Leave, Passive, execute};
use crate::links::Links;
use crate::method::Budgets;
use crate::schedule::Schedule;
use crate::simulate::simulate;
use crate::step::Step;

/// One tensor of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// The gap in the step that was profiled.
    pub gap: u32,
    /// The first operator of the logical layer in which the swap-in is triggered.
    pub fetch: u32,
    /// The first operator after the logical layer in which the swap-out is taken to be completed.
    pub release: u32,
}

/// Nothing more can be swapped, and memory is still above the limit (Algorithm 2, line 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no candidate is left, and {bytes} bytes are still above the limit at operator {op}")]
pub struct NoCandidate {
    /// The first operator above the limit.
    pub op: u32,
    /// Bytes above it.
    pub bytes: u64,
}

/// Algorithm 2: the policy of a step. What was found before an error is kept beside it.
pub fn generate(step: &Step, links: &Links, budget: u64) -> (Vec<Item>, Option<NoCandidate>) {
    let mut reduce = reductions(step, budget);
    let mut layers = Layers::of(step, links);
    let mut items: Vec<Item> = Vec::new();
    let mut chosen = vec![false; step.gaps.len()];
    while let Some(op) = reduce.iter().position(|&bytes| bytes > 0) {
        let list = candidates(step, &reduce, &chosen);
        if list.is_empty() {
            let error = NoCandidate { op: op as u32, bytes: reduce[op] };
            layers.set_free_times(step, &mut items);
            return (items, Some(error));
        }
        for gap in layers.simulate(step, &list, &mut reduce, &mut items) {
            chosen[gap as usize] = true;
        }
    }
    layers.set_free_times(step, &mut items);
    (items, None)
}

/// The schedule of a step under its own policy.
pub fn plan(step: &Step, links: &Links, budgets: &Budgets) -> Schedule {
    Policy::of(step, links, budgets.gpu).execute(step, budgets).schedule
}

/// A policy, ready to be matched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    matcher: Matcher,
    /// By features: what goes, in the order in which it is met, as (operators to the fetch, to the release).
    wanted: FxHashMap<Features, Vec<(u32, u32)>>,
}

impl Policy {
    /// Generates a policy from a step.
    pub fn of(step: &Step, links: &Links, budget: u64) -> Policy {
        let (mut items, _) = generate(step, links, budget);
        let matcher = Matcher::of(step);
        items.sort_by_key(|item| std::cmp::Reverse(item.gap));
        let mut wanted: FxHashMap<Features, Vec<(u32, u32)>> = FxHashMap::default();
        for item in items {
            let gap = step.gaps[item.gap as usize];
            let features = matcher.features(step, gap);
            wanted.entry(features).or_default().push((item.fetch, item.release));
        }
        Policy { matcher, wanted }
    }

    /// Runs a step under the policy, with Algorithm 3 where memory runs out.
    pub fn execute(&self, step: &Step, budgets: &Budgets) -> Execution {
        let wanted = self.wanted.clone();
        let mut director = Executor { policy: self, step, wanted, fetches: FxHashMap::default() };
        execute(step, budgets, &mut director)
    }
}

struct Executor<'a> {
    policy: &'a Policy,
    step: &'a Step,
    wanted: FxHashMap<Features, Vec<(u32, u32)>>,
    /// What is fetched before each operator.
    fetches: FxHashMap<u32, Vec<u32>>,
}

impl Director for Executor<'_> {
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, _go: &mut Vec<u32>) {
        fetch.extend(self.fetches.remove(&op).unwrap_or_default());
    }

    fn leaves(&mut self, gap: u32) -> Option<Leave> {
        let own = self.step.gaps[gap as usize];
        let features = self.policy.matcher.features(self.step, own);
        let (fetch, release) = self.wanted.get_mut(&features)?.pop()?;
        self.fetches.entry(fetch).or_default().push(gap);
        Some(Leave { release: Some(release.max(own.after + 1)) })
    }

    fn rank(&mut self, gap: u32, need: u64) -> i64 {
        self.step.bytes(gap).abs_diff(need) as i64
    }
}

/// A run: steps one after another, with the stages of Algorithm 1.
#[derive(Clone, Debug, Default)]
pub struct Session {
    stages: Stages,
    /// The policies of the GenPolicy stage, each with the time of the step that ran it.
    tried: Vec<(Policy, f64)>,
    /// The one that the next step runs.
    policy: Option<Policy>,
}

impl Session {
    /// Whether the next step runs a policy.
    pub fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Runs the next step, and the stage that comes after it.
    pub fn step(&mut self, step: &Step, links: &Links, budgets: &Budgets) -> (Execution, Stage) {
        let execution = match &self.policy {
            Some(policy) => policy.execute(step, budgets),
            None => execute(step, budgets, &mut Passive { step }),
        };
        if let Some(policy) = &self.policy
            && self.stages.stage() == Stage::GenPolicy
        {
            let us = simulate(step, links, &execution.schedule).step_us;
            self.tried.push((policy.clone(), us));
        }
        let keys: Vec<u64> = step.ops.iter().map(|op| op.key).collect();
        match self.stages.observe(&keys) {
            Stage::WarmUp => {
                self.policy = None;
                self.tried.clear();
            }
            Stage::GenPolicy => self.policy = Some(Policy::of(step, links, budgets.gpu)),
            Stage::Stable => {
                let fastest = self.tried.iter().min_by(|a, b| a.1.total_cmp(&b.1));
                if let Some((policy, _)) = fastest {
                    self.policy = Some(policy.clone());
                    self.tried.clear();
                }
            }
        }
        (execution, self.stages.stage())
    }
}
