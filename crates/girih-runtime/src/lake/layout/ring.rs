//! A step as a ring, and where to cut it open.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use girih_trace::StreamId;

/// Places at which cutting is tried.
const CUTS: u32 = 64;

/// A request of a step that comes again in the next.
#[derive(Clone, Copy, Debug)]
pub(in crate::lake) struct Item {
    /// Its number in the step.
    pub(in crate::lake) number: u32,
    /// Bytes.
    pub(in crate::lake) size: u64,
    /// So many requests come while it lives, itself among them: at least one, and no more than there are in a step.
    pub(in crate::lake) life: u32,
}

/// The requests of a step of which it is known how long they live.
#[derive(Clone, Debug)]
pub(in crate::lake) struct Ring {
    /// In order.
    pub(in crate::lake) items: Vec<Item>,
    /// Of which all of them are.
    pub(in crate::lake) stream: StreamId,
    /// Requests of a step, those among them that are not known.
    pub(in crate::lake) count: u32,
    /// Where it is cut open: what is alive when this request comes keeps its place from one step to the next.
    pub(in crate::lake) cut: u32,
}

impl Ring {
    /// So many requests after the cut an item comes.
    pub(super) fn birth(&self, item: &Item) -> u32 {
        (item.number + self.count - self.cut) % self.count
    }

    /// And that is freed which comes then.
    pub(super) fn until(&self, item: &Item) -> u32 {
        self.birth(item) + item.life
    }

    /// So many requests after the cut that one is freed which is alive at the cut; none if none is.
    pub(in crate::lake) fn left(&self, item: &Item) -> Option<u32> {
        self.until(item).checked_sub(self.count).filter(|&left| left > 0)
    }

    /// The items that come first after the cut, and those of the next step.
    pub(super) fn in_order(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.items.partition_point(|item| item.number < self.cut);
        (first..self.items.len()).chain(0..first)
    }

    /// Bytes of the items that are alive at the cut.
    pub(in crate::lake) fn alive(&self) -> u64 {
        let alive = self.items.iter().filter(|item| self.left(item).is_some());
        alive.map(|item| item.size).sum()
    }

    /// Cuts it where as few of its bytes as can be have no place among so many. It says how many.
    pub(in crate::lake) fn cut_for(&mut self, bytes: u64) -> u64 {
        let mut best = (u64::MAX, 0);
        for cut in (0..self.count).step_by(self.count.div_ceil(CUTS).max(1) as usize) {
            self.cut = cut;
            best = best.min((self.without_place(bytes), cut));
            if best.0 == 0 {
                break;
            }
        }
        self.cut = best.1;
        best.0
    }

    /// The bytes of items without a place, if bytes are all that counts: whatever is free until an item is freed serves it,
    /// and what is wanted soonest after that first.
    fn without_place(&self, bytes: u64) -> u64 {
        // Free bytes by when they are wanted, and those that are freed later.
        let mut free: BTreeMap<u32, u64> = BTreeMap::new();
        let mut frees: BinaryHeap<Reverse<(u32, u32, u64)>> = BinaryHeap::new();
        free.insert(u32::MAX, bytes.saturating_sub(self.alive()));
        for item in &self.items {
            if let Some(left) = self.left(item) {
                frees.push(Reverse((left, self.birth(item), item.size)));
            }
        }
        let mut without = 0;
        for item in self.in_order().map(|at| &self.items[at]) {
            if self.left(item).is_some() {
                continue;
            }
            let (birth, until) = (self.birth(item), self.until(item));
            while let Some(&Reverse((at, wanted, size))) = frees.peek()
                && at <= birth
            {
                frees.pop();
                *free.entry(wanted).or_default() += size;
            }
            let mut missing = item.size;
            while missing > 0
                && let Some((&wanted, size)) = free.range_mut(until..).next()
            {
                let taken = missing.min(*size);
                (missing, *size) = (missing - taken, *size - taken);
                if *size == 0 {
                    free.remove(&wanted);
                }
                frees.push(Reverse((until, wanted, taken)));
            }
            without += missing;
        }
        without
    }
}
