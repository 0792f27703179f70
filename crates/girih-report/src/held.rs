//! What was held of the device, and when: segments, and mapped runs of expandable ones.

use std::collections::BTreeMap;

use girih_trace::{Action, Contradiction, Earlier, PoolId, StreamId, Tick, Trace};

use crate::column::Column;
use crate::lanes::Lanes;

/// A run of addresses that was held for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Device address of its first byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Held after this event.
    pub birth: Tick,
    /// No longer held after this one; [`Tick::NEVER`] if it was held to the end.
    pub death: Tick,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool.
    pub pool: PoolId,
    /// True of pages of an expandable segment.
    pub is_expandable: bool,
    /// True if it was held when the recording began.
    pub is_older: bool,
}

/// Every run, in order of birth.
pub fn runs(trace: &Trace, earlier: &Result<Earlier, Contradiction>) -> Vec<Run> {
    let mut all = Runs::default();
    for segment in earlier.iter().flat_map(|earlier| &earlier.segments) {
        all.begin(Run {
            address: segment.address,
            size: segment.size,
            birth: Tick(0),
            death: Tick::NEVER,
            stream: segment.stream,
            pool: segment.pool,
            is_expandable: segment.is_expandable,
            is_older: true,
        });
    }
    for (index, event) in trace.events.iter().enumerate() {
        let tick = Tick(index as u32);
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => all.begin(Run {
                address: event.address,
                size: event.size,
                birth: tick,
                death: Tick::NEVER,
                stream: event.stream,
                pool: event.pool,
                is_expandable: event.action == Action::SegmentMap,
                is_older: false,
            }),
            Action::SegmentFree | Action::SegmentUnmap => {
                all.end(event.address, event.size, tick);
            }
            _ => {}
        }
    }
    all.list
}

#[derive(Default)]
struct Runs {
    list: Vec<Run>,
    /// Those that are held, by address.
    held: BTreeMap<u64, usize>,
}

impl Runs {
    fn begin(&mut self, run: Run) {
        // A recording that lost an event may take what it holds already: the older run has ended.
        self.end(run.address, run.size, run.birth);
        self.held.insert(run.address, self.list.len());
        self.list.push(run);
    }

    /// Ends what is held of a range; what sticks out goes on as runs of its own.
    fn end(&mut self, from: u64, size: u64, tick: Tick) {
        let to = from.saturating_add(size);
        let reaches = |list: &[Run], at: usize| list[at].address.saturating_add(list[at].size);
        let touched: Vec<usize> = (self.held.range(..to).rev())
            .map(|(_, &at)| at)
            .take_while(|&at| reaches(&self.list, at) > from)
            .collect();
        for at in touched {
            let run = self.list[at];
            self.list[at].death = tick;
            self.held.remove(&run.address);
            let end = run.address.saturating_add(run.size);
            let mut go_on = |address: u64, end: u64| {
                if address < end {
                    self.held.insert(address, self.list.len());
                    let is_older = false;
                    self.list.push(Run {
                        address,
                        size: end - address,
                        birth: tick,
                        is_older,
                        ..run
                    });
                }
            };
            go_on(run.address, from);
            go_on(to, end);
        }
    }
}

pub(crate) fn column(runs: &[Run], lanes: &Lanes) -> Column {
    let mut column = Column::default();
    column.push(runs.len() as u64);
    let mut last = 0;
    for run in runs {
        column.push(u64::from(run.birth.0.saturating_sub(last)));
        last = last.max(run.birth.0);
    }
    for run in runs {
        // 0 for ever, else how long and 1.
        column.push(match run.death {
            Tick::NEVER => 0,
            death => u64::from(death.0.saturating_sub(run.birth.0)) + 1,
        });
    }
    let mut last = 0;
    for run in runs {
        let offset = lanes.offset(run.address);
        column.push_change(last, offset);
        last = offset.saturating_add(run.size);
    }
    for run in runs {
        column.push(run.size);
        column.push(u64::from(run.stream.0));
        column.push(u64::from(run.pool.0));
        column.push(u64::from(run.is_expandable) | u64::from(run.is_older) << 1);
    }
    column
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::Event;

    #[test]
    fn pages_that_are_unmapped_leave_what_sticks_out() {
        let event =
            |action, address, size| Event::of(action, address, size, StreamId(0), PoolId(0));
        let trace = Trace {
            events: vec![
                event(Action::SegmentMap, 100, 60),
                event(Action::SegmentUnmap, 120, 20),
                event(Action::SegmentAlloc, 500, 10),
                event(Action::SegmentFree, 500, 10),
            ],
            ..Trace::default()
        };
        let runs = runs(
            &trace,
            &Ok(Earlier {
                segments: Vec::new(),
                evidence: girih_trace::Evidence::Inferred,
                untouched: 0,
            }),
        );
        let told: Vec<_> =
            runs.iter().map(|run| (run.address, run.size, run.birth.0, run.death.0)).collect();
        let never = Tick::NEVER.0;
        assert_eq!(
            told,
            [(100, 60, 0, 1), (100, 20, 1, never), (140, 20, 1, never), (500, 10, 2, 3)]
        );
    }
}
