//! Which events repeat what an earlier one said.
//!
//! An event with values of its own (address, size, stream, pool) is an *own* event; all
//! allocations are. A free has those of its allocation, and so the column `repeats` says for each
//! event where its values are:
//!
//! ```text
//!  0       they are its own: the next row of the `own.*` columns
//!  1       they are those of the event before it
//!  k + 1   they are those of the k-th own event back; 1 back is the nearest
//! ```
//!
//! A completed free follows its request at once, and is a 1.

use std::collections::HashMap;

use crate::event::{Action, Event, PoolId, StreamId};
use crate::seeded::Seeded;

/// What a free repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Own {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
}

impl Own {
    fn of(event: &Event) -> Own {
        let Event { address, size, stream, pool, .. } = *event;
        Own { address, size, stream, pool }
    }
}

/// The column `repeats`, and the own events.
pub(super) fn split(events: &[Event]) -> (Vec<u64>, Vec<Own>) {
    let mut repeats = Vec::with_capacity(events.len());
    let mut owns: Vec<Own> = Vec::new();
    let mut at_address: HashMap<u64, usize, Seeded> = HashMap::default();
    let mut before = None;
    for event in events {
        let own = Own::of(event);
        let may_repeat = matches!(
            event.action,
            Action::FreeRequested | Action::FreeCompleted | Action::Annotate
        );
        let known = at_address.get(&own.address).copied().filter(|&index| owns[index] == own);
        repeats.push(match known {
            _ if may_repeat && before == Some(own) => 1,
            Some(index) if may_repeat => (owns.len() - index + 1) as u64,
            _ => {
                at_address.insert(own.address, owns.len());
                owns.push(own);
                0
            }
        });
        before = Some(own);
    }
    (repeats, owns)
}

/// Follows the column `repeats` again: says of which earlier event the next one has the values.
#[derive(Default)]
pub(super) struct Followed {
    /// The own events so far, by their places among all events.
    owns: Vec<u32>,
}

/// Where the values of an event are.
pub(super) enum Source {
    /// The next row of the `own.*` columns.
    Own,
    /// The event of that index.
    Event(usize),
}

impl Followed {
    /// Where the values of event `index` are; none if `repeats` points at what is not there.
    #[inline]
    pub(super) fn next(&mut self, index: usize, repeats: u64) -> Option<Source> {
        if repeats == 0 {
            self.owns.push(index as u32);
            return Some(Source::Own);
        }
        let event = match usize::try_from(repeats - 1).ok()? {
            0 => index.checked_sub(1)?,
            back => self.owns[self.owns.len().checked_sub(back)?] as usize,
        };
        Some(Source::Event(event))
    }
}
