//! Several policies at once: what was scheduled for each sequence of operators that is known (see
//! [`sequences`](crate::sequences)), and the tensors of a step by their names in it.

use rustc_hash::FxHashMap;

use crate::execute::{Director, Leave};
use crate::schedule::Schedule;
use crate::sequences::{Cursor, SEQUENCES_MAX, Sequences};
use crate::step::Step;

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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Policy {
    /// By [`Item::fetch`].
    items: Vec<Item>,
    by_name: FxHashMap<Name, u32>,
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

fn keys(step: &Step) -> Vec<u64> {
    step.ops.iter().map(|op| op.key).collect()
}

/// The policies that are known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    sequences: Sequences,
    /// By the number of the sequence.
    list: Vec<Policy>,
}

impl Policies {
    /// Keeps what was scheduled for a step. A sequence that is known gets the new schedule.
    pub fn learn(&mut self, step: &Step, schedule: &Schedule) {
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
        let number = self.sequences.learn(&keys(step));
        self.list.resize(SEQUENCES_MAX.min(self.list.len().max(number + 1)), Policy::default());
        self.list[number] = Policy { items, by_name };
    }

    /// True if a policy is for exactly this sequence.
    pub fn knows(&self, step: &Step) -> bool {
        self.sequences.find(&keys(step)).is_some()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sequences.count()
    }

    /// Follows a step.
    pub fn follow<'a>(&'a mut self, step: &'a Step) -> Follower<'a> {
        let cursor = self.sequences.begin();
        let (gaps, missed) = (FxHashMap::default(), Vec::new());
        let names = names(step);
        Follower { names, policies: self, step, cursor, op: 0, gaps, missed, is_lost: false }
    }
}

/// One step that is followed along the policies.
pub struct Follower<'a> {
    policies: &'a mut Policies,
    step: &'a Step,
    names: Vec<Name>,
    cursor: Cursor,
    op: u32,
    /// The gaps of tensors that went, by their names in the policy.
    gaps: FxHashMap<Name, u32>,
    /// What became idle while the place in the policies was not known.
    missed: Vec<u32>,
    is_lost: bool,
}

impl Follower<'_> {
    /// How often another policy, or another place of one, was taken up.
    pub fn changes(&self) -> u32 {
        self.cursor.changes()
    }

    /// Operators at which no policy was known.
    pub fn lost(&self) -> u32 {
        self.cursor.lost()
    }

    /// The name of a gap in the policy that is followed: as many operators back as its tensor is old.
    fn name(&self, gap: u32) -> Option<(usize, Name)> {
        let (policy, at) = self.cursor.place()?;
        let (born, nth, ordinal) = self.names[gap as usize];
        let born_there = at?.checked_sub(self.op.checked_sub(born)?)?;
        let keys = self.policies.sequences.keys(policy);
        let is_same = keys[born_there as usize] == self.step.ops[born as usize].key;
        is_same.then_some((policy, (born_there, nth, ordinal)))
    }
}

impl Director for Follower<'_> {
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, go: &mut Vec<u32>) {
        self.op = op;
        let key = self.step.ops[op as usize].key;
        let advanced = self.cursor.advance(&self.policies.sequences, key);
        self.is_lost = advanced.is_none();
        let Some((policy, over)) = advanced else { return };
        if op as usize + 1 == self.step.ops.len() {
            self.policies.sequences.note_use(policy);
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
