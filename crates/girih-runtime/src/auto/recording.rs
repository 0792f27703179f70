//! A recording as it is handed out to be planned, and the parts that it is made of.

use std::sync::Arc;

use girih_trace::{Action, Event, Mark, MarkKind, Origin, PoolId, StackId, Trace};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::device::Address;
use crate::lake::Live;

/// A block that came or went: what a plan is made from of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) block: Live,
    pub(super) is_alloc: bool,
}

impl Entry {
    /// Of an event that is an allocation or the completion of a free.
    #[inline]
    pub(super) fn of(event: &Event) -> Entry {
        let Event { address, size: requested, stream, action, .. } = *event;
        let block = Live { address, requested, stream };
        Entry { block, is_alloc: action == Action::Alloc }
    }

    fn event(self) -> Event {
        let Live { address, requested: size, stream } = self.block;
        let action = if self.is_alloc { Action::Alloc } else { Action::FreeCompleted };
        let (stack, pool) = (StackId::NONE, PoolId::DEFAULT);
        Event { address, size, time_us: 0, stack, stream, pool, action }
    }
}

/// What a part of a recording is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// What came before the first iteration.
    Opening,
    /// An iteration in which no plan was followed.
    Iteration,
    /// An iteration that did not fit its plan.
    Misfit,
}

/// A part of a recording.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) kind: Kind,
    /// What was left out before it, as far as it can still be seen: frees and then allocations.
    pub(super) seam: Vec<Entry>,
    /// What happened. It never changes: copies of the recording share it.
    pub(super) entries: Arc<[Entry]>,
    /// Marks, each before an entry.
    pub(super) marks: Arc<[(u32, MarkKind)]>,
}

impl Part {
    /// How many places of the window it takes.
    pub(super) fn len(&self) -> usize {
        self.seam.len() + self.entries.len() + self.marks.len()
    }
}

/// What entries come to, whatever happened between the first and the last: frees of what was there
/// before, and allocations of what is there after. By address.
pub(super) fn net(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    // Of each address: the block that was there before, and the one that is there after.
    let mut net: FxHashMap<Address, [Option<Live>; 2]> = FxHashMap::default();
    for Entry { block, is_alloc } in entries {
        let [gone, there] = net.entry(block.address).or_default();
        if is_alloc {
            *there = Some(block);
        } else if there.take().is_none() {
            *gone = Some(block);
        }
    }
    let changed = || net.values().filter(|[gone, there]| gone != there);
    let sorted = |place: usize| {
        let mut blocks: Vec<Live> = changed().filter_map(|pair| pair[place]).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.into_iter().map(move |block| Entry { block, is_alloc: place == 1 })
    };
    sorted(0).chain(sorted(1)).collect()
}

/// What a recorder had at one moment. It shares the entries with the recorder, which goes on.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) parts: Vec<Part>,
    /// It does not reach back to the first request.
    pub(super) is_late: bool,
}

impl Recording {
    /// The trace of it: a pass over all entries.
    pub(super) fn into_trace(self) -> Trace {
        let (events, marks) = self.events();
        let streams = events.iter().map(|event| event.stream.0).max().unwrap_or(0);
        Trace {
            events,
            marks,
            streams: (0..=u64::from(streams)).collect(),
            pools: vec![(0, 0)],
            origin: Origin {
                kind: "recording".to_owned(),
                warnings: Vec::new(),
                truncated: self.is_late,
            },
            ..Trace::default()
        }
    }

    /// The events with their marks, without blocks that a seam allocates and nothing frees: an iteration
    /// that seems to leave something behind would pass for a first one.
    fn events(&self) -> (Vec<Event>, Vec<Mark>) {
        let counts = self.parts.iter().map(|part| part.seam.len() + part.entries.len());
        let (mut events, mut marks) = (Vec::with_capacity(counts.sum()), Vec::new());
        for part in &self.parts {
            events.extend(part.seam.iter().map(|entry| entry.event()));
            let start = events.len() as u32;
            marks.extend(part.marks.iter().map(|&(before, kind)| Mark {
                before: start + before,
                time_us: 0,
                kind,
                name: String::new(),
            }));
            events.extend(part.entries.iter().map(|entry| entry.event()));
        }
        let mut freed = FxHashSet::default();
        let mut end = events.len();
        for part in self.parts.iter().rev() {
            let seam_end = end - part.entries.len();
            let start = seam_end - part.seam.len();
            for index in (start..end).rev() {
                let event = &mut events[index];
                if event.action == Action::FreeCompleted {
                    freed.insert(event.address);
                } else if !freed.remove(&event.address) && index < seam_end {
                    event.action = Action::Snapshot;
                }
            }
            end = start;
        }
        (events, marks)
    }
}
