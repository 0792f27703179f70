//! Which units are taken in which sections: a segment tree of unions.
//!
//! A node of the tree stands for a range of sections, its children for the halves. A lifetime is
//! the disjoint union of O(log n) *canonical* nodes. Each node keeps two unions of address ranges:
//!
//! - `cover`: of the items that have this node among their canonical ones;
//! - `any`: of all items that live in a part of the node, wherever they were entered.
//!
//! ```text
//!        [0..8)               An item alive in [3, 6) is canonical at 3, [4..6).
//!       /      \              It may not touch  `any`   of those nodes,
//!    [0..4)   [4..8)          nor               `cover` of the nodes above them.
//!    /   \    /    \          It is entered in  `cover` and `any` of those nodes,
//!  [0,2)[2,4)[4,6)[6,8)       and in            `any`   of the nodes above them.
//! ```
//!
//! A union is a sorted vector of disjoint ranges, joined where they touch. Good packings touch, so
//! the unions stay short, and the graph of overlaps (10^9 edges for 3 x 10^5 buffers of a real run)
//! is never built. What is entered cannot be taken out again.
//!
//! An `any` is read only on behalf of items that have the node among their canonical ones. Each
//! node counts those that are still to come; when none is left, its `any` is no longer kept up.
//! Large items come first, so the wide unions near the root are soon done with. Where items are not
//! known beforehand, what may be asked is said instead ([`Occupancy::allow`]).

use crate::instance::{Instance, Item};

/// A half-open range of units.
type Span = (u64, u64);

/// No lifetime has more lists than this: two pieces, two sides, canonical and above, 31 levels.
const MAX_LISTS: usize = 2 * 2 * 2 * 32;

/// The tree. Node 1 is the root, the children of `v` are `2v` and `2v + 1`.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    /// Leaves, a power of two.
    leaves: u32,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    cover: Union,
    any: Union,
    /// Items still to be placed that have this node among their canonical ones.
    awaited: u32,
}

impl Occupancy {
    /// Empties the tree and makes it ready for the items of `instance`, each of which is then
    /// entered once.
    pub(crate) fn reset(&mut self, instance: &Instance) {
        self.leaves = instance.sections.max(1).next_power_of_two();
        for node in &mut self.nodes {
            node.cover.clear();
            node.any.clear();
            node.awaited = 0;
        }
        self.nodes.resize_with(2 * self.leaves as usize, Node::default);
        for item in &instance.items {
            for piece in instance.pieces(item) {
                self.canonical(piece, |nodes, v| nodes[v].awaited += 1);
            }
        }
    }

    /// Empties the tree and makes it ready for any items that live in `sections` sections. What may
    /// be asked about is then to be said by [`Occupancy::allow`], before anything is entered.
    pub(crate) fn clear(&mut self, sections: u32) {
        self.leaves = sections.max(1).next_power_of_two();
        for node in &mut self.nodes {
            node.cover.clear();
            node.any.clear();
            node.awaited = 0;
        }
        self.nodes.resize_with(2 * self.leaves as usize, Node::default);
    }

    /// From now on it may be asked, any number of times, what lives in one of the `pieces`.
    pub(crate) fn allow(&mut self, pieces: [(u32, u32); 2]) {
        for piece in pieces {
            self.canonical(piece, |nodes, v| nodes[v].awaited = u32::MAX);
        }
    }

    /// The lowest unit at which `item` touches nothing that was entered; `None` if its top would
    /// then reach `limit`.
    pub(crate) fn first_fit(&self, instance: &Instance, item: &Item, limit: u64) -> Option<u64> {
        let mut lists: [&[Span]; MAX_LISTS] = [&[]; MAX_LISTS];
        let mut count = 0;
        // Without [`Occupancy::gather`]: this is the innermost loop of all planners.
        let mut push = |list| {
            lists[count] = list;
            count += usize::from(!list.is_empty());
        };
        for piece in instance.pieces(item) {
            for_canonical(self.leaves, piece, |v| push(self.nodes[v].any.spans()));
            for_above(self.leaves, piece, |v| push(self.nodes[v].cover.spans()));
        }
        lowest_hole(&mut lists[..count], item.size, limit)
    }

    /// The lowest unit from which `size` units touch nothing that was entered in any of `trees`
    /// and lives in the sections given with it; `None` if their top would then reach `limit`.
    pub(crate) fn first_fit_among<'t>(
        trees: impl Iterator<Item = (&'t Occupancy, [(u32, u32); 2])>,
        size: u64,
        limit: u64,
    ) -> Option<u64> {
        let mut lists = Vec::with_capacity(MAX_LISTS);
        for (tree, pieces) in trees {
            tree.gather(pieces, |list| lists.push(list));
        }
        lowest_hole(&mut lists, size, limit)
    }

    /// Visits the unions, none of them empty, of all that lives in one of the `pieces`.
    #[inline]
    fn gather<'t>(&'t self, pieces: [(u32, u32); 2], mut visit: impl FnMut(&'t [Span])) {
        let mut push = |list: &'t [Span]| {
            if !list.is_empty() {
                visit(list);
            }
        };
        for piece in pieces {
            for_canonical(self.leaves, piece, |v| push(self.nodes[v].any.spans()));
            for_above(self.leaves, piece, |v| push(self.nodes[v].cover.spans()));
        }
    }

    /// Whether `item` would touch nothing at `offset`.
    pub(crate) fn is_free(&self, instance: &Instance, item: &Item, offset: u64) -> bool {
        self.is_free_during(instance.pieces(item), (offset, offset + item.size))
    }

    /// Whether nothing that was entered and lives in one of the `pieces` touches `span`.
    pub(crate) fn is_free_during(&self, pieces: [(u32, u32); 2], span: Span) -> bool {
        let objects = |list: &[Span]| {
            let first = list.partition_point(|other| other.1 <= span.0);
            list.get(first).is_some_and(|other| other.0 < span.1)
        };
        let mut free = true;
        self.gather(pieces, |list| free &= !objects(list));
        free
    }

    /// Enters `item` at `offset`.
    pub(crate) fn enter(&mut self, instance: &Instance, item: &Item, offset: u64) {
        let span = (offset, offset + item.size);
        let leaves = self.leaves as usize;
        for piece in instance.pieces(item) {
            self.canonical(piece, |nodes, v| {
                let node = &mut nodes[v];
                // No less than 0 where the item was not announced, and never 0 from the maximum.
                node.awaited = node.awaited.saturating_sub(1);
                // Nothing lies below a leaf that would ask for its cover.
                if v < leaves {
                    node.cover.add(span);
                }
                if node.awaited > 0 {
                    node.any.add(span);
                }
            });
            let nodes = &mut self.nodes;
            for_above(self.leaves, piece, |v| {
                if nodes[v].awaited > 0 {
                    nodes[v].any.add(span);
                }
            });
        }
    }

    fn canonical(&mut self, piece: (u32, u32), mut visit: impl FnMut(&mut [Node], usize)) {
        let nodes = &mut self.nodes;
        for_canonical(self.leaves, piece, |v| visit(nodes, v));
    }
}

/// Visits the canonical nodes of the sections `[from, to)`.
fn for_canonical(leaves: u32, (from, to): (u32, u32), mut visit: impl FnMut(usize)) {
    let (mut left, mut right) = ((leaves + from) as usize, (leaves + to) as usize);
    while left < right {
        if left & 1 == 1 {
            visit(left);
            left += 1;
        }
        if right & 1 == 1 {
            right -= 1;
            visit(right);
        }
        (left, right) = (left / 2, right / 2);
    }
}

/// Visits each node above the canonical ones of `[from, to)` once: those that the range meets and
/// does not fill, which lie on the paths from its two ends to the root.
fn for_above(leaves: u32, (from, to): (u32, u32), mut visit: impl FnMut(usize)) {
    if from == to {
        return;
    }
    let (left, right) = ((leaves + from) as usize, (leaves + to) as usize);
    for level in 1..=leaves.trailing_zeros() {
        let is_cut = |end: usize| (end >> level) << level != end;
        let (on_left, on_right) = (left >> level, (right - 1) >> level);
        if is_cut(left) {
            visit(on_left);
        }
        if is_cut(right) && !(is_cut(left) && on_left == on_right) {
            visit(on_right);
        }
    }
}

/// The lowest unit from which `size` units are free in all `lists`; `None` if they would reach
/// `limit`. The lists are used up: each loses what lies below the place under trial.
#[inline]
fn lowest_hole(mut lists: &mut [&[Span]], size: u64, limit: u64) -> Option<u64> {
    let mut offset = 0;
    // Asks the lists in turn until all of them, one after another, have nothing against `offset`.
    let (mut turn, mut agreed) = (0, 0);
    while agreed < lists.len() {
        let before = offset;
        let mut list = skip(lists[turn], offset);
        while let Some((&(start, end), rest)) = list.split_first() {
            if offset + size <= start {
                break;
            }
            (offset, list) = (end, rest);
        }
        if offset + size >= limit {
            return None;
        }
        agreed = if offset == before { agreed + 1 } else { 1 };
        lists[turn] = list;
        turn += 1;
        if list.is_empty() {
            // It will never object again. The others keep their order, which `agreed` counts by.
            lists.copy_within(turn.., turn - 1);
            let rest = lists.len() - 1;
            lists = &mut lists[..rest];
            (turn, agreed) = (turn - 1, agreed - 1);
        }
        if turn >= lists.len() {
            turn = 0;
        }
    }
    (offset + size < limit).then_some(offset)
}

/// `list` without the ranges that end at or below `offset`: doubling steps, then halving ones.
fn skip(list: &[Span], offset: u64) -> &[Span] {
    let mut step = 1;
    while step < list.len() && list[step - 1].1 <= offset {
        step *= 2;
    }
    let window = &list[step / 2..step.min(list.len())];
    &list[step / 2 + window.partition_point(|span| span.1 <= offset)..]
}

/// Disjoint ranges in order, joined where they touch. Most are a single one, which needs no
/// allocation of its own.
#[derive(Clone, Debug)]
enum Union {
    One([Span; 1]),
    Many(Vec<Span>),
}

impl Default for Union {
    fn default() -> Union {
        Union::Many(Vec::new())
    }
}

impl Union {
    #[inline]
    fn spans(&self) -> &[Span] {
        match self {
            Union::One(span) => span,
            Union::Many(spans) => spans,
        }
    }

    /// Empties it and keeps what it has allocated.
    fn clear(&mut self) {
        match self {
            Union::One(_) => *self = Union::default(),
            Union::Many(spans) => spans.clear(),
        }
    }

    /// Adds `span`, joining what it touches or overlaps.
    fn add(&mut self, span: Span) {
        match self {
            Union::Many(spans) if spans.capacity() == 0 => *self = Union::One([span]),
            Union::Many(spans) => unite(spans, span),
            Union::One([one]) if span.0 <= one.1 && one.0 <= span.1 => {
                *one = (one.0.min(span.0), one.1.max(span.1));
            }
            Union::One([one]) => {
                let mut spans = Vec::with_capacity(4);
                spans.extend([(*one).min(span), (*one).max(span)]);
                *self = Union::Many(spans);
            }
        }
    }
}

/// Adds `span` to `union`, joining what it touches or overlaps.
fn unite(union: &mut Vec<Span>, span: Span) {
    let first = union.partition_point(|other| other.1 < span.0);
    let joined = union[first..].iter().take_while(|other| other.0 <= span.1).count();
    if joined == 0 {
        union.insert(first, span);
        return;
    }
    let last = first + joined - 1;
    union[first] = (union[first].0.min(span.0), union[last].1.max(span.1));
    union.drain(first + 1..=last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Problem};

    #[test]
    fn unions_join_what_touches_and_nothing_else() {
        let mut union = Union::default();
        union.add((30, 40));
        union.add((38, 40));
        assert_eq!(union.spans(), [(30, 40)]);
        union.add((10, 20));
        union.add((50, 60));
        union.add((22, 25));
        assert_eq!(union.spans(), [(10, 20), (22, 25), (30, 40), (50, 60)]);
        union.add((20, 30));
        assert_eq!(union.spans(), [(10, 40), (50, 60)]);
        union.add((0, 70));
        assert_eq!(union.spans(), [(0, 70)]);
        union.clear();
        assert_eq!(union.spans(), []);
    }

    #[test]
    fn first_fit_finds_what_trying_every_unit_finds() {
        arbtest::arbtest(|u| {
            let period = u.int_in_range(0..=1)? * 16u32;
            let mut buffers = Vec::new();
            for _ in 0..u.int_in_range(1..=16)? {
                let (lower, life) = (u.int_in_range(0..=15)?, u.int_in_range(1..=16)?);
                let size = u.int_in_range(1..=5)?;
                buffers.push(Buffer { lower, upper: lower + life, size });
            }
            let problem = Problem { buffers, period, alignment: 1 };
            let instance = Instance::new(&problem).expect("valid");
            let mut tree = Occupancy::default();
            tree.reset(&instance);
            let mut entered: Vec<(Item, u64)> = Vec::new();
            for item in &instance.items {
                let meets = |other: &Item| {
                    let pieces = instance.pieces(other);
                    let mut mine = instance.pieces(item).into_iter();
                    mine.any(|(from, to)| pieces.iter().any(|p| from < p.1 && p.0 < to))
                };
                let fits = |at: u64| {
                    !entered.iter().any(|(other, offset)| {
                        at < offset + other.size && *offset < at + item.size && meets(other)
                    })
                };
                let lowest = (0..).find(|at| fits(*at)).expect("above everything is room");
                let top = lowest + item.size;
                assert_eq!(tree.first_fit(&instance, item, u64::MAX), Some(lowest));
                assert_eq!(tree.first_fit(&instance, item, top + 1), Some(lowest));
                assert_eq!(tree.first_fit(&instance, item, top), None);
                // Not always the lowest, so that holes arise.
                let offset = (lowest..).step_by(u.int_in_range(1..=3)?).nth(u.int_in_range(0..=2)?);
                let offset = offset.filter(|at| fits(*at)).unwrap_or(lowest);
                assert!(tree.is_free(&instance, item, offset));
                tree.enter(&instance, item, offset);
                entered.push((*item, offset));
            }
            Ok(())
        });
    }
}
