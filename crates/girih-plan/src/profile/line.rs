//! The plan of a trace in which nothing repeats: one sequence, on a line.

use super::{Profile, solve_apart};
use crate::plan::{ALIGNMENT, Entry, Place, Plan, Role, Sequence, granted};
use crate::portfolio::Outcome;
use crate::problem::{Buffer, Problem, ProblemError};

impl Profile<'_> {
    /// The plan of a trace in which nothing repeats: one sequence, on a line.
    pub(super) fn without_steady(
        self,
        solve: impl FnOnce(&Problem) -> Result<Outcome, ProblemError>,
    ) -> Result<Plan, ProblemError> {
        let count = self.lives.requests.len() as u32;
        let mut problem = Problem { buffers: Vec::new(), period: 0, alignment: ALIGNMENT };
        let mut entries: Vec<Entry> = Vec::with_capacity(count as usize);
        for (index, request) in self.lives.requests.iter().enumerate() {
            let size = request.size;
            let lower = index as u32;
            // What is never freed lives to the end. It has a place like all others: where a recording is
            // cut short, much is alive that does not stay, and the bytes under it were others' before.
            let until = self.end(request).unwrap_or(count).max(lower + 1);
            let (stream, place) = (request.stream, Place::Outside);
            entries.push(Entry { size_min: size, size_max: size, stream, place, until });
            problem.buffers.push(Buffer { lower, upper: until, size: granted(size) });
        }
        let streams = problem.buffers.iter().map(|buffer| entries[buffer.lower as usize].stream);
        let outcome = solve_apart(&problem, &streams.collect::<Vec<_>>(), solve)?;
        for (buffer, &offset) in problem.buffers.iter().zip(&outcome.solution.offsets) {
            entries[buffer.lower as usize].place = Place::Arena(offset);
        }
        let ticks = 0..self.trace.events.len() as u32;
        let boundaries = self.boundaries(&(0..count), &ticks);
        Ok(Plan {
            arena_bytes: outcome.solution.height,
            persistent_bytes: 0,
            lower_bound: outcome.bound.bytes,
            in_use: self.lives.peak(granted).0,
            peak: outcome.solution.height,
            proven: outcome.is_proven(),
            planner: outcome.solution.planner.to_owned(),
            requests: self.lives.born().len() as u64,
            iterations: 0,
            rounds: 1,
            trial: None,
            rooms: Vec::new(),
            sequences: vec![Sequence { role: Role::Opening, entries, boundaries }],
        })
    }
}
