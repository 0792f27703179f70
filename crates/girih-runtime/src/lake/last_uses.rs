//! Who used each cell of the window last.
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
pub(super) struct Use {
    /// None if there were several: everybody waits.
    pub(super) stream: Option<StreamId>,
    /// 0 if nobody has used it.
    pub(super) freed: Stamp,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// What was freed last in each cell. See the [module](self).
#[derive(Debug)]
pub(super) struct LastUses {
    /// By cell. One that is taken keeps it until it is freed again. Empty until there is a second stream.
    last: Vec<Use>,
    /// The stream that all cells belong to as long as there is no other.
    first: StreamId,
}

impl LastUses {
    /// Of cells that one stream alone has used.
    pub(super) fn of(first: StreamId) -> LastUses {
        LastUses { last: Vec::new(), first }
    }

    /// Notes that a block is given to `stream`. With the second stream, all `cells` count as used by the
    /// first: until then nobody has kept a record.
    #[inline]
    pub(super) fn see(&mut self, stream: StreamId, cells: usize, order: &mut Order) {
        if stream != self.first && self.is_trivial() {
            self.begin(cells, order.free());
        }
    }

    #[cold]
    fn begin(&mut self, cells: usize, freed: Stamp) {
        self.last = vec![Use { stream: Some(self.first), freed }; cells];
    }

    /// True if one stream at most has used the cells: then all order is free.
    #[inline]
    pub(super) fn is_trivial(&self) -> bool {
        self.last.is_empty()
    }

    /// A block of `stream` in the cells of `span` was let go of with the free `freed`.
    #[inline]
    pub(super) fn free(&mut self, span: Span, stream: StreamId, freed: Stamp) {
        if !self.is_trivial() {
            self.last[span.range()].fill(Use { stream: Some(stream), freed });
        }
    }

    /// The cells of `span`, of which there are `cells` in all, come back from elsewhere. `latest` is the last
    /// free of all.
    pub(super) fn set(&mut self, span: Span, last: Use, cells: usize, latest: Stamp) {
        if self.is_trivial() && last.stream != Some(self.first) {
            self.begin(cells, latest);
        }
        if !self.is_trivial() {
            self.last[span.range()].fill(last);
        }
    }

    /// The last uses of cells; none as long as there is one stream alone.
    pub(super) fn of_cells(&self, span: Span) -> Option<&[Use]> {
        self.last.get(span.range())
    }

    /// The last free that `stream` must come after before it uses the cells of `span`: of blocks of other
    /// streams.
    #[inline]
    pub(super) fn latest(&self, span: Span, stream: StreamId) -> Stamp {
        let last = self.last.get(span.range()).unwrap_or_default();
        let others = last.iter().filter(|last| last.stream != Some(stream));
        others.map(|last| last.freed).max().unwrap_or(0)
    }
}

/// For each entry of the plan, over all sequences in order: whether one of its cells is next used
/// by another stream, so that events are recorded when its block is freed. `spans` are the cells of
/// the entries in the window, of which there are `cells`.
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
