//! Several policies at once, told apart by rolling hashes of the sequence.
//!
//! A policy is what was scheduled for one sequence of operators. A later step is followed along it, operator by
//! operator. Where the step does something else (a validation, a skipped optimizer, another branch), the hash of the
//! last operators is looked up in all the policies that are known:
//!
//! ```text
//!  policy A   a b c d e f g h
//!  policy B   a b c x y z
//!  a step     a b c d e | x y z ...        lost at x; at z the hash of the window is B's: B is followed
//! ```
//!
//! A change of the sequence so changes the policy, in the middle of a step if need be; nothing starts over. Sizes
//! have no part in it: a step of another length is followed along the same policy.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::execute::{Director, Leave};
use crate::schedule::Schedule;
use crate::step::Step;

/// Operators of a window.
pub const WINDOW: usize = 16;
/// Policies that are kept; the one that was of use the longest ago goes first.
pub const POLICIES_MAX: usize = 8;
/// The base of the rolling hash; any odd number does.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A tensor of a policy: the operator that makes it, which one of those it makes, and which of its gaps.
type Name = (u32, u32, u32);

/// One tensor that goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Item {
    name: Name,
    before: u32,
    fetch: u32,
}

/// What was scheduled for one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Policy {
    keys: Vec<u64>,
    /// By [`Item::fetch`].
    items: Vec<Item>,
    by_name: FxHashMap<Name, u32>,
    /// The hash of the whole sequence.
    hash: u64,
    used: u64,
}

/// The names of a step's gaps.
fn names(step: &Step) -> Vec<Name> {
    let mut nth: FxHashMap<u32, u32> = FxHashMap::default();
    let mut tensors = Vec::with_capacity(step.tensors.len());
    for tensor in &step.tensors {
        let count = nth.entry(tensor.born).or_default();
        tensors.push((tensor.born, *count, 0));
        *count += 1;
    }
    let name = |gap: &crate::Gap| {
        let name = &mut tensors[gap.tensor as usize];
        let own = *name;
        name.2 += 1;
        own
    };
    step.gaps.iter().map(name).collect()
}

fn hash(keys: &[u64]) -> u64 {
    keys.iter().fold(0, |hash, &key| roll(hash, key, 0))
}

/// The hash with one more key, and without one that was `WINDOW` ago.
fn roll(hash: u64, key: u64, gone: u64) -> u64 {
    let power = BASE.wrapping_pow(WINDOW as u32);
    hash.wrapping_mul(BASE).wrapping_add(key).wrapping_sub(gone.wrapping_mul(power))
}

/// The policies that are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    list: Vec<Policy>,
    /// Where each window of operators ends, by its hash: policy and operator.
    windows: FxHashMap<u64, Vec<(u32, u32)>>,
    /// The one that was followed last.
    last: usize,
    clock: u64,
}

impl Policies {
    /// Keeps what was scheduled for a step. A sequence that is known gets the new schedule.
    pub fn learn(&mut self, step: &Step, schedule: &Schedule) {
        let keys: Vec<u64> = step.ops.iter().map(|op| op.key).collect();
        let names = names(step);
        let mut items: Vec<Item> = schedule
            .away
            .iter()
            .map(|away| Item {
                name: names[away.gap as usize],
                before: step.gaps[away.gap as usize].before,
                fetch: away.fetch,
            })
            .collect();
        items.sort_by_key(|item| (item.fetch, item.before));
        let by_name = items.iter().zip(0..).map(|(item, index)| (item.name, index)).collect();
        self.clock += 1;
        let hash = hash(&keys);
        let policy = Policy { keys, items, by_name, hash, used: self.clock };
        let known = self.list.iter().position(|other| other.hash == hash);
        let oldest = || (0..self.list.len()).min_by_key(|&at| self.list[at].used).unwrap_or(0);
        match known {
            Some(at) => self.list[at] = policy,
            None if self.list.len() < POLICIES_MAX => self.list.push(policy),
            None => {
                let oldest = oldest();
                self.list[oldest] = policy;
            }
        }
        self.last = self.list.iter().position(|policy| policy.hash == hash).unwrap_or(0);
        self.index();
    }

    /// True if a policy is for exactly this sequence.
    pub fn knows(&self, step: &Step) -> bool {
        let keys: Vec<u64> = step.ops.iter().map(|op| op.key).collect();
        self.list.iter().any(|policy| policy.hash == hash(&keys))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    fn index(&mut self) {
        self.windows.clear();
        for (number, policy) in (0u32..).zip(&self.list) {
            let mut hash = 0;
            for (at, &key) in policy.keys.iter().enumerate() {
                let gone = at.checked_sub(WINDOW).map_or(0, |at| policy.keys[at]);
                hash = roll(hash, key, gone);
                if at + 1 >= WINDOW {
                    self.windows.entry(hash).or_default().push((number, at as u32));
                }
            }
        }
    }

    /// Follows a step.
    pub fn follow<'a>(&'a mut self, step: &'a Step) -> Follower<'a> {
        let place = (!self.list.is_empty()).then_some((self.last, None));
        Follower {
            names: names(step),
            policies: self,
            step,
            place,
            window: VecDeque::with_capacity(WINDOW),
            hash: 0,
            op: 0,
            gaps: FxHashMap::default(),
            missed: Vec::new(),
            is_lost: false,
            changes: 0,
            lost: 0,
        }
    }
}

/// One step that is followed along the policies.
pub struct Follower<'a> {
    policies: &'a mut Policies,
    step: &'a Step,
    names: Vec<Name>,
    /// The policy, and the operator of it that ran last; none before its first.
    place: Option<(usize, Option<u32>)>,
    window: VecDeque<u64>,
    hash: u64,
    op: u32,
    /// The gaps of tensors that went, by their names in the policy.
    gaps: FxHashMap<Name, u32>,
    /// What became idle while the place in the policies was not known.
    missed: Vec<u32>,
    is_lost: bool,
    changes: u32,
    lost: u32,
}

impl Follower<'_> {
    /// How often another policy, or another place of one, was taken up.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Operators at which no policy was known.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Goes one operator further. The operators of the policy that are over with it.
    fn advance(&mut self, key: u64) -> Option<(usize, std::ops::RangeInclusive<u32>)> {
        let gone = match self.window.len() == WINDOW {
            true => self.window.pop_front().unwrap_or(0),
            false => 0,
        };
        self.window.push_back(key);
        self.hash = roll(self.hash, key, gone);
        if let Some((policy, at)) = self.place {
            let next = at.map_or(0, |at| at + 1);
            if self.policies.list[policy].keys.get(next as usize) == Some(&key) {
                self.place = Some((policy, Some(next)));
                return Some((policy, next..=next));
            }
        }
        let found = self.find()?;
        self.changes += 1;
        self.place = Some((found.0, Some(found.1)));
        Some((found.0, 0..=found.1))
    }

    /// Where the last operators are in a policy: in the one that was followed, the nearest that is further on; else
    /// in the one that was of use last. Where it is lost, the place that is known stays: the step may come back to it.
    fn find(&mut self) -> Option<(usize, u32)> {
        let places = self.policies.windows.get(&self.hash);
        let places = places.filter(|_| self.window.len() == WINDOW);
        let Some(places) = places else {
            self.lost += 1;
            return None;
        };
        let current = self.place.map(|(policy, at)| (policy as u32, at.unwrap_or(0)));
        let order = |&(policy, at): &(u32, u32)| match current {
            Some((own, from)) if own == policy && at > from => (0, u64::from(at - from)),
            Some((own, from)) if own == policy => (2, u64::from(from - at)),
            _ => (1, u64::MAX - self.policies.list[policy as usize].used),
        };
        places.iter().min_by_key(|place| order(place)).map(|&(policy, at)| (policy as usize, at))
    }

    /// The name of a gap in the policy that is followed: as many operators back as its tensor is old.
    fn name(&self, gap: u32) -> Option<(usize, Name)> {
        let (policy, at) = self.place?;
        let (born, nth, ordinal) = self.names[gap as usize];
        let born_there = at?.checked_sub(self.op.checked_sub(born)?)?;
        let keys = &self.policies.list[policy].keys;
        let is_same = keys[born_there as usize] == self.step.ops[born as usize].key;
        is_same.then_some((policy, (born_there, nth, ordinal)))
    }
}

impl Director for Follower<'_> {
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, go: &mut Vec<u32>) {
        self.op = op;
        let advanced = self.advance(self.step.ops[op as usize].key);
        self.is_lost = advanced.is_none();
        let Some((policy, over)) = advanced else { return };
        if op as usize + 1 == self.step.ops.len() {
            self.policies.clock += 1;
            self.policies.list[policy].used = self.policies.clock;
            self.policies.last = policy;
        }
        // What became idle while nobody knew where the step was.
        for gap in std::mem::take(&mut self.missed) {
            go.extend(self.leaves(gap).map(|_| gap));
        }
        let items = &self.policies.list[policy].items;
        let first = items.partition_point(|item| item.fetch < *over.start());
        let due = items[first..].iter().take_while(|item| item.fetch <= *over.end());
        fetch.extend(due.filter_map(|item| self.gaps.get(&item.name)));
    }

    fn leaves(&mut self, gap: u32) -> Option<Leave> {
        if self.is_lost {
            self.missed.push(gap);
            return None;
        }
        let (policy, name) = self.name(gap)?;
        self.policies.list[policy].by_name.get(&name)?;
        self.gaps.insert(name, gap);
        Some(Leave::default())
    }

    /// What is used last goes first, as far as the policy knows; else what has been idle longest.
    fn rank(&mut self, gap: u32, _need: u64) -> i64 {
        let known = self.name(gap).and_then(|(policy, name)| {
            let policy = &self.policies.list[policy];
            policy.by_name.get(&name).map(|&item| policy.items[item as usize].before)
        });
        match known {
            Some(before) => -i64::from(before),
            None => i64::from(self.step.gaps[gap as usize].after) - (1 << 40),
        }
    }
}
