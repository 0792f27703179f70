//! Who used each cell of the arena last.
//!
//! The plan lets a stream use bytes that another one has used; then the later one waits
//! ([`order`](crate::order)). For that, each cell knows which stream's block was freed last in it, and as which
//! free.
//!
//! A cell of which only a part is used again counts as used whole. Nothing is lost by that: who used the part
//! came after whoever had used the rest, and so does who comes after him.
//!
//! The plan says which blocks come before one of another stream ([`fenced_entries`]): when one of those is freed
//! a fence is asked for, so that the wait is for no more than it must be. Where a block was given off the
//! plan, the fence is recorded when it is needed: later than it could be, and right all the same.

use girih_plan::{Plan, Role};
use girih_trace::StreamId;

use super::cells::Span;
use crate::order::{Order, Stamp};

/// The last use of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Use {
    stream: StreamId,
    freed: Stamp,
}

/// Nobody has used the cell.
const UNUSED: Use = Use { stream: StreamId(0), freed: 0 };
/// No entry.
const NONE: u32 = u32::MAX;

/// What was freed last in each cell. See the [module](self).
#[derive(Default)]
pub(super) struct LastUses {
    /// By cell. One that is taken keeps it until it is freed again. Empty until there is a second stream.
    last: Vec<Use>,
    /// The stream that blocks are allocated for, as long as there is one alone.
    only: Option<StreamId>,
    /// There have been several.
    has_several: bool,
}

impl LastUses {
    /// Notes that blocks are allocated for `stream`. With the second stream, all `cells` of the arena
    /// count as used by the first: until then nobody has kept a record.
    #[inline]
    pub(super) fn see(&mut self, stream: StreamId, cells: usize, order: &mut Order) {
        if !self.has_several && self.only != Some(stream) {
            self.add_stream(stream, cells, order);
        }
    }

    #[cold]
    fn add_stream(&mut self, stream: StreamId, cells: usize, order: &mut Order) {
        if let Some(first) = self.only.replace(stream) {
            self.has_several = true;
            self.last = vec![Use { stream: first, freed: order.free() }; cells];
        }
    }

    /// True if the program has used one stream at most: then all order is free.
    #[inline]
    pub(super) fn is_trivial(&self) -> bool {
        !self.has_several
    }

    /// A block of `stream` in the cells of `span` was let go of with the free `freed`.
    #[inline]
    pub(super) fn free(&mut self, span: Span, stream: StreamId, freed: Stamp) {
        if self.has_several {
            self.last[span.range()].fill(Use { stream, freed });
        }
    }

    /// The last free that `stream` must come after before it uses the cells of `span`: of blocks of other
    /// streams.
    #[inline]
    pub(super) fn latest(&self, span: Span, stream: StreamId) -> Stamp {
        let last = self.last.get(span.range()).unwrap_or_default();
        let others = last.iter().filter(|last| last.stream != stream);
        others.map(|last| last.freed).max().unwrap_or(0)
    }

    /// Begins anew for an arena of so many `cells`, of which none was used: the host has waited for
    /// everything.
    pub(super) fn restart(&mut self, cells: usize) {
        self.last.clear();
        if self.has_several {
            self.last.resize(cells, UNUSED);
        }
    }
}

/// For each entry of the plan, over all sequences in order: whether one of its cells is next used
/// by another stream, so that events are recorded when its block is freed. `spans` are the cells of
/// the entries in the arena, of which there are `cells`.
pub(super) fn fenced_entries(plan: &Plan, cells: usize, spans: &[Option<Span>]) -> Vec<bool> {
    let mut fenced = vec![false; spans.len()];
    let entries = plan.sequences.iter().flat_map(|sequence| &sequence.entries);
    let mut streams = entries.zip(spans).filter(|(_, span)| span.is_some()).map(|(e, _)| e.stream);
    let first = streams.next();
    if streams.all(|stream| Some(stream) == first) {
        return fenced;
    }
    let mut start = 0;
    for sequence in &plan.sequences {
        // On a ring the last users come before the first ones: twice round finds them.
        let rounds = if sequence.role == Role::Steady { 2 } else { 1 };
        let spans = &spans[start..start + sequence.entries.len()];
        let mut users = vec![NONE; cells];
        for _ in 0..rounds {
            for (index, (entry, span)) in sequence.entries.iter().zip(spans).enumerate() {
                let Some(span) = span else { continue };
                for run in users[span.range()].chunk_by_mut(|a, b| a == b) {
                    if let Some(last) = sequence.entries.get(run[0] as usize) {
                        fenced[start + run[0] as usize] |= last.stream != entry.stream;
                    }
                    run.fill(index as u32);
                }
            }
        }
        start += sequence.entries.len();
    }
    fenced
}
