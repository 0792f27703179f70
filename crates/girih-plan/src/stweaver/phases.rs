//! The phases in which the buffers of a planning problem come and go.
//!
//! The paper's profiler records "the current computation phase (forward or backward pass)" and the
//! microbatch with each request (section 4). Here the marks of a recording say it, as
//! [`girih_trace::Phases`] reads them: passes, the optimizer, evaluation; what comes after a pass
//! and before the next belongs to the one before. Marks are in ticks of the trace. The problem that
//! is made of the recording ([`crate::profile`]) counts requests of the steady iteration, once or
//! twice round, with what may come in between. The [`Timeline`] takes the one to the other:
//!
//! ```text
//!  trace     F0         B0        F1        B1        O          ticks
//!  problem   0    1 2   3 4  5    6   7     8    9    10 11      requests
//! ```
//!
//! A phase begins with the first request in it. What is freed before the next phase has asked for
//! anything goes in the phase before: it meets nothing of the next one.
//!
//! Where no pass is marked, the found iteration is one phase. Passes could be guessed from what
//! repeats and from where most is alive, but they are then cut where the peak is, and the groups
//! that are made of them cost up to as much memory again.

use girih_trace::{Iterations, Lifetimes, Mark, MarkKind, PhaseKind, Phases, Trace};

use crate::plan::{Plan, Role};
use crate::problem::{Buffer, Problem};

/// The phases of a buffer, as numbers that stand for phases of one iteration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PhaseSpan {
    /// The phase in which it is allocated.
    pub birth: u32,
    /// The phase in which it is freed.
    pub death: u32,
}

/// Which phase goes on at each tick of a problem. The default has one phase.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    /// Where a phase begins or goes on, ascending, with its number.
    starts: Vec<(u32, u32)>,
}

impl Timeline {
    /// A timeline whose phases begin at these ticks, which ascend. The first phase, number 0, is
    /// what comes before; the others are numbered from 1.
    pub fn new(starts: &[u32]) -> Timeline {
        Timeline { starts: starts.iter().copied().zip(1..).collect() }
    }

    /// The timeline of the problem that [`crate::profile::plan`] asks its planner about when it
    /// makes `plan` of this recording, whichever planner it is: the steady iteration, or the whole
    /// recording where nothing repeats. What comes in between two places of the steady iteration
    /// (evaluation) is one phase each time.
    pub fn of(plan: &Plan, trace: &Trace, lives: &Lifetimes, iterations: &Iterations) -> Timeline {
        let is_pass = |mark: &Mark| matches!(mark.kind, MarkKind::Forward | MarkKind::ForwardStep);
        if !trace.marks.iter().any(is_pass) {
            return Timeline::default();
        }
        let phases = Phases::of(trace, lives, iterations);
        let starts: Vec<u32> = (phases.list.iter())
            .filter(|phase| phase.kind != PhaseKind::Other)
            .map(|phase| {
                let start = phase.ticks.start;
                lives.requests.partition_point(|request| request.birth.0 < start) as u32
            })
            .collect();
        let Some(model) = iterations.model().filter(|_| plan.steady().is_some()) else {
            return Timeline::new(&starts);
        };
        let model = &iterations.list[model].requests;
        let inside = starts.iter().filter(|start| model.contains(start));
        let one_round: Vec<u32> = inside.map(|start| start - model.start).collect();
        let places = model.end - model.start;
        let round = |round: u32| one_round.iter().map(move |start| start + round * places);
        let ring: Vec<u32> = (0..plan.rounds).flat_map(round).collect();
        Timeline::new(&ring).with_interludes(plan)
    }

    /// Puts the interludes of `plan` in between phases of its ring. The phase that one comes into
    /// goes on after it.
    ///
    /// ```text
    ///  ring          phase 0 . . . . | phase 1 . . .
    ///  with one      phase 0 . . [ phase 2 ] . . | phase 1 . . .
    /// ```
    fn with_interludes(&self, plan: &Plan) -> Timeline {
        let interludes = plan.sequences.iter().filter_map(|sequence| match sequence.role {
            Role::Interlude(at) => Some((at, sequence.entries.len() as u32)),
            Role::Opening | Role::Steady | Role::Variant(_) => None,
        });
        let mut starts = Vec::new();
        let mut ring = self.starts.iter().copied().peekable();
        let (mut shift, mut phase) = (0, 0);
        for ((at, length), number) in interludes.zip(self.starts.len() as u32 + 1..) {
            while let Some((start, next)) = ring.next_if(|&(start, _)| start < at) {
                starts.push((start + shift, next));
                phase = next;
            }
            starts.push((at + shift, number));
            shift += length;
            starts.push((at + shift, phase));
        }
        starts.extend(ring.map(|(start, phase)| (start + shift, phase)));
        Timeline { starts }
    }

    /// The phase that goes on at `tick`.
    pub fn phase_at(&self, tick: u32) -> u32 {
        let begun = self.starts.partition_point(|&(start, _)| start <= tick);
        begun.checked_sub(1).map_or(0, |last| self.starts[last].1)
    }

    /// The phases of each buffer of `problem`. The phase in which a buffer is freed is that of the
    /// last tick at which it is alive; in the next round of a ring, phases have other numbers.
    pub fn spans(&self, problem: &Problem) -> Vec<PhaseSpan> {
        let numbers = self.starts.iter().map(|start| start.1).max().unwrap_or(0) + 1;
        let span = |buffer: &Buffer| {
            let last = buffer.upper - 1;
            let round = last.checked_div(problem.period).unwrap_or(0);
            let death = self.phase_at(last - round * problem.period) + round * numbers;
            PhaseSpan { birth: self.phase_at(buffer.lower), death }
        };
        problem.buffers.iter().map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Entry, Place, Sequence};

    fn plan_with(interludes: &[(u32, usize)]) -> Plan {
        let entry = Entry {
            size_min: 1,
            size_max: 1,
            stream: girih_trace::StreamId(0),
            place: Place::Outside,
            until: 0,
        };
        let sequence = |&(at, length): &(u32, usize)| Sequence {
            role: Role::Interlude(at),
            entries: vec![entry; length],
            boundaries: Vec::new(),
        };
        Plan {
            iterations: 2,
            rounds: 1,
            sequences: interludes.iter().map(sequence).collect(),
            ..Plan::default()
        }
    }

    fn phases(timeline: &Timeline, ticks: u32) -> Vec<u32> {
        (0..ticks).map(|tick| timeline.phase_at(tick)).collect()
    }

    #[test]
    fn a_phase_goes_on_until_the_next_begins() {
        assert_eq!(phases(&Timeline::new(&[2, 3, 3, 5]), 7), [0, 0, 1, 3, 3, 4, 4]);
        assert_eq!(phases(&Timeline::default(), 3), [0, 0, 0]);
    }

    #[test]
    fn an_interlude_is_a_phase_and_the_one_it_comes_into_goes_on_after_it() {
        let ring = Timeline::new(&[0, 3]);
        let inside = ring.with_interludes(&plan_with(&[(1, 2), (4, 1)]));
        assert_eq!(phases(&inside, 9), [1, 3, 3, 1, 1, 2, 4, 2, 2]);
        let between = ring.with_interludes(&plan_with(&[(3, 2)]));
        assert_eq!(phases(&between, 7), [1, 1, 1, 3, 3, 2, 2]);
        let around = ring.with_interludes(&plan_with(&[(0, 1), (0, 1), (5, 1)]));
        assert_eq!(phases(&around, 8), [3, 4, 1, 1, 1, 2, 2, 5]);
    }

    #[test]
    fn what_is_freed_as_a_phase_begins_goes_in_the_one_before() {
        let buffers = [(0, 3), (0, 4), (3, 9), (8, 11), (1, 11)];
        let buffers = buffers.map(|(lower, upper)| Buffer { lower, upper, size: 1 });
        let problem = Problem { buffers: buffers.to_vec(), period: 10, alignment: 1 };
        let spans = Timeline::new(&[0, 3, 7]).spans(&problem);
        let spans: Vec<_> = spans.iter().map(|span| (span.birth, span.death)).collect();
        // The phases 0 to 3 of the next round are 4 to 7.
        assert_eq!(spans, [(1, 1), (1, 2), (2, 3), (3, 5), (1, 5)]);
    }
}
