//! Uses: which operator used which block, and when.
//!
//! The events of a recording tell when a block was born and freed, not when it was worked on. A
//! recorder that sees operators says so beside the events:
//!
//! ```text
//!  events     +a          +b    +c -b          -a -c
//!  operators  | linear    | gelu     | backward
//!  uses         a           a b c      a c
//! ```
//!
//! An operator begins before an event, as a mark does, and lasts until the next one begins. PyTorch's own
//! recordings have none: what is assumed then is told in `girih-swap`.

use crate::event::{StreamId, Tick};
use crate::lifetimes::Lifetimes;

/// One operator that ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operator {
    /// Its name, as an index into [`Uses::names`].
    pub name: u32,
    /// It began before the event of this index; the number of events if it is the last.
    pub before: u32,
    /// Microseconds on the clock of the events at which it was dispatched.
    pub time_us: i64,
    /// Microseconds that it took on the device; 0 where that was not measured.
    pub duration_us: u32,
    /// The stream that it ran on.
    pub stream: StreamId,
}

/// An operator used a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Use {
    /// The operator, as an index into [`Uses::operators`].
    pub operator: u32,
    /// Device address of the block.
    pub address: u64,
}

/// The operators of a trace and what they used. Empty where none were recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// The operators, in order of [`Operator::before`].
    pub operators: Vec<Operator>,
    /// The distinct names of operators.
    pub names: Vec<String>,
    /// What was used, in order of [`Use::operator`].
    pub uses: Vec<Use>,
}

impl Uses {
    /// True if no operator was recorded.
    pub fn is_empty(&self) -> bool {
        self.operators.is_empty()
    }

    /// The ticks of each operator: from its first event to that of the next operator.
    pub fn ticks(&self, events: u32) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        let ends = self.operators.iter().skip(1).map(|next| next.before).chain([events]);
        self.operators.iter().zip(ends).map(|(operator, end)| operator.before..end)
    }

    /// For each operator, the requests whose blocks it used, without doubles. An address means the block that was
    /// alive there last, by the end of the operator: what it allocates itself included. A use of no block is left
    /// out. Linear in the events and the uses.
    pub fn by_operator(&self, lives: &Lifetimes) -> Vec<Vec<u32>> {
        let mut at: rustc_hash::FxHashMap<u64, u32> = rustc_hash::FxHashMap::default();
        let older = lives.requests[..lives.older].iter().zip(0..);
        at.extend(older.map(|(request, index)| (request.address, index)));
        let mut next_use = 0;
        let mut used = Vec::with_capacity(self.operators.len());
        let events = lives.request_of.len() as u32;
        for (operator, ticks) in self.ticks(events).enumerate() {
            let first = if operator == 0 { 0 } else { ticks.start };
            for tick in first..ticks.end {
                let request = lives.request_of[tick as usize];
                if request != Lifetimes::NONE
                    && lives.requests[request as usize].birth == Tick(tick)
                    && request as usize >= lives.older
                {
                    at.insert(lives.requests[request as usize].address, request);
                }
            }
            let mut own = Vec::new();
            while let Some(it) = self.uses.get(next_use).filter(|it| it.operator == operator as u32)
            {
                let request = at.get(&it.address).copied();
                let is_alive = |&index: &u32| {
                    let death = lives.requests[index as usize].death;
                    death == Tick::NEVER || death.0 > ticks.start
                };
                own.extend(request.filter(is_alive));
                next_use += 1;
            }
            own.sort_unstable();
            own.dedup();
            used.push(own);
        }
        used
    }

    /// The operators that began before event `end`, and what they used.
    pub fn first_part(&self, end: u32) -> Uses {
        let count = self.operators.partition_point(|operator| operator.before < end);
        let uses = self.uses.partition_point(|it| (it.operator as usize) < count);
        Uses {
            operators: self.operators[..count].to_vec(),
            names: self.names.clone(),
            uses: self.uses[..uses].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Action, Event, PoolId};
    use crate::trace::Trace;

    fn operator(before: u32) -> Operator {
        Operator { name: 0, before, time_us: 0, duration_us: 0, stream: StreamId(0) }
    }

    fn lives(events: &[(Action, u64)]) -> Lifetimes {
        let event = |&(action, address): &(Action, u64)| {
            Event::of(action, address, 8, StreamId(0), PoolId::DEFAULT)
        };
        let events = events.iter().map(event).collect();
        Lifetimes::of(&Trace { events, ..Trace::default() })
    }

    #[test]
    fn an_address_means_the_block_that_is_there_by_the_end_of_the_operator() {
        use Action::{Alloc, FreeCompleted};
        let lives = lives(&[(Alloc, 7), (FreeCompleted, 7), (Alloc, 7), (FreeCompleted, 9)]);
        // Block 0 of the requests is the older one at 9.
        let uses = |operator: u32, address| Use { operator, address };
        let all = Uses {
            operators: vec![operator(0), operator(1), operator(2), operator(4)],
            names: vec!["mm".to_owned()],
            uses: vec![uses(0, 7), uses(1, 9), uses(1, 9), uses(2, 7), uses(3, 9), uses(3, 7)],
        };
        assert_eq!(all.by_operator(&lives), [vec![1], vec![0], vec![2], vec![2]]);
        assert_eq!(all.first_part(2).uses.len(), 3);
    }
}
