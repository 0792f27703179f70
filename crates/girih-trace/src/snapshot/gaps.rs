//! Signs that the oldest events of a recording are missing.
//!
//! PyTorch keeps its history in a ring: when it is full, the oldest entries are overwritten, and
//! no flag says so. A recording that began late lacks them too. What gives it away are frees of
//! blocks that no event allocated, and allocations in memory that no event took from the device.

use std::collections::HashMap;

use crate::event::{Action, Event};
use crate::ranges::Ranges;
use crate::seeded::Seeded;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Findings {
    /// Blocks that were freed or annotated, and that no event had allocated.
    pub(super) orphans: usize,
    /// Allocations in memory that no event had taken from the device.
    pub(super) uncovered: usize,
    /// Allocations at the address of a block that was not freed.
    pub(super) doubled: usize,
    /// Entries in all, if their number is one that rings have.
    pub(super) round_count: Option<usize>,
}

impl Findings {
    /// True if events are missing for certain.
    pub(super) fn is_truncated(&self) -> bool {
        self.orphans > 0 || self.uncovered > 0
    }

    /// What to tell the user.
    pub(super) fn sentences(&self) -> Vec<String> {
        let Findings { orphans, uncovered, doubled, round_count } = *self;
        let mut sentences = Vec::new();
        if orphans > 0 {
            sentences.push(format!(
                "{orphans} blocks were freed that no entry allocated: they were allocated before \
                 the recording began"
            ));
        }
        if uncovered > 0 {
            sentences.push(format!(
                "{uncovered} allocations lie in segments taken before the recording began"
            ));
        }
        if doubled > 0 {
            sentences.push(format!(
                "{doubled} blocks were allocated where another was not yet freed: the recording \
                 lacks frees"
            ));
        }
        match round_count {
            Some(count) if self.is_truncated() => sentences.push(format!(
                "there are exactly {count} entries: the recorder's ring was full and lost the \
                 oldest; record with a larger `max_entries`"
            )),
            Some(count) => sentences.push(format!(
                "there are exactly {count} entries: perhaps the recorder's ring was full and \
                 lost the oldest"
            )),
            None => {}
        }
        sentences
    }
}

/// Walks the events once.
pub(super) fn find(events: &[Event]) -> Findings {
    let round_count = Some(events.len()).filter(|&count| is_round(count));
    let mut findings = Findings { round_count, ..Findings::default() };
    let mut blocks = Blocks::default();
    // The memory that was taken from the device. A block of an expandable segment may span several
    // maps.
    let mut memory = Ranges::default();
    for event in events {
        let Event { address, size, action, .. } = *event;
        match action {
            Action::Alloc => match blocks.set(address, State::Live) {
                Some(State::Live) => findings.doubled += 1,
                // What lay in memory that was taken needs no second look.
                Some(State::Freed) if findings.uncovered == 0 => {}
                _ => findings.uncovered += usize::from(!memory.covers(address, address + size)),
            },
            Action::FreeRequested | Action::FreeCompleted => {
                findings.orphans += usize::from(blocks.set(address, State::Freed).is_none());
            }
            Action::Annotate => {
                findings.orphans += usize::from(blocks.set(address, State::Live).is_none());
            }
            Action::SegmentAlloc | Action::SegmentMap => memory.insert(address, address + size),
            Action::SegmentFree | Action::SegmentUnmap => memory.remove(address, address + size),
            Action::Oom | Action::Snapshot => {}
        }
    }
    findings
}

/// Sizes that people give a ring: 10000, 100000, 1 << 20 and their like.
fn is_round(count: usize) -> bool {
    count >= 10_000 && (count.is_multiple_of(10_000) || count.is_power_of_two())
}

/// Whether there is a block at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Freed,
}

/// Every address at which a block was seen. The last one is remembered, since a free is requested
/// and completed in one breath.
#[derive(Default)]
struct Blocks {
    seen: HashMap<u64, State, Seeded>,
    last: Option<(u64, State)>,
}

impl Blocks {
    /// Sets the state of an address, and returns what it was.
    fn set(&mut self, address: u64, state: State) -> Option<State> {
        if self.last == Some((address, state)) {
            return Some(state);
        }
        self.last = Some((address, state));
        self.seen.insert(address, state)
    }
}
