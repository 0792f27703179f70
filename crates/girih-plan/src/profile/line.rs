//! The plan of a trace in which nothing repeats: one sequence, on a line.

use girih_trace::Tick;

use super::{Profile, solve_apart};
use crate::plan::{ALIGNMENT, Entry, Place, Plan, Role, Sequence, granted};
use crate::portfolio::Outcome;
use crate::problem::{Buffer, Problem};

impl Profile<'_> {
    /// The plan of a trace in which nothing repeats: one sequence, on a line.
    pub(super) fn without_steady(self, solve: impl FnOnce(&Problem) -> Outcome) -> Plan {
        let count = self.lives.requests.len() as u32;
        let mut persistent_bytes = 0;
        let mut problem = Problem { buffers: Vec::new(), period: 0, alignment: ALIGNMENT };
        let mut entries: Vec<Entry> = Vec::with_capacity(count as usize);
        for (index, request) in self.lives.requests.iter().enumerate() {
            let size = request.size;
            let lower = index as u32;
            let mut entry = Entry {
                size_min: size,
                size_max: size,
                stream: request.stream,
                place: Place::Outside,
                until: self.end(request).unwrap_or(count).max(lower + 1),
            };
            if request.death == Tick::NEVER {
                entry.place = Place::Persistent(persistent_bytes);
                persistent_bytes += granted(size);
            } else {
                let size = granted(size);
                problem.buffers.push(Buffer { lower, upper: entry.until, size });
            }
            entries.push(entry);
        }
        let streams = problem.buffers.iter().map(|buffer| entries[buffer.lower as usize].stream);
        let outcome = solve_apart(&problem, &streams.collect::<Vec<_>>(), solve);
        for (buffer, &offset) in problem.buffers.iter().zip(&outcome.solution.offsets) {
            entries[buffer.lower as usize].place = Place::Arena(offset);
        }
        let ticks = 0..self.trace.events.len() as u32;
        let boundaries = self.boundaries(&(0..count), &ticks);
        Plan {
            arena_bytes: outcome.solution.height,
            persistent_bytes,
            lower_bound: outcome.bound.bytes,
            peak: outcome.solution.height,
            proven: outcome.is_proven(),
            planner: outcome.solution.planner.to_owned(),
            requests: self.lives.born().len() as u64,
            iterations: 0,
            rounds: 1,
            rooms: Vec::new(),
            sequences: vec![Sequence { role: Role::Opening, entries, boundaries }],
        }
    }
}
