//! Planning, as a piece of work that can be done on any thread.

use girih_plan::{Budget, Plan, profile, solve, verify};
use girih_trace::{Iterations, Lifetimes, Source, Tick, Trace};

use super::recording::Recording;
use crate::simulate::Setup;
use crate::simulate::trial::tried;

/// The live bytes at the beginnings of two iterations that are alike differ by at most one part in
/// so many of the peak.
const SAME_LOAD: u64 = 50;

/// A recording that is to be planned. It owns all it needs.
#[derive(Debug)]
pub struct Job {
    pub(super) recording: Recording,
}

impl Job {
    /// Plans the recording: finds its iterations, plans those that are alike, and checks the plan.
    /// If no two iterations are alike yet, the plan has no sequences; [`Auto::offer`] then goes on
    /// recording.
    ///
    /// Takes up to about a second for 100,000 requests an iteration.
    ///
    /// [`Auto::offer`]: super::Auto::offer
    pub fn run(self) -> Plan {
        let trace = self.recording.into_trace();
        let lives = Lifetimes::of(&trace);
        learn(&trace, &lives)
    }
}

/// The plan that `auto` makes of what it has recorded: of iterations that are alike. Without such, and where none can
/// be made, the plan has no sequences.
pub fn learn(trace: &Trace, lives: &Lifetimes) -> Plan {
    let iterations = Iterations::of(trace, lives);
    if !is_settled(&iterations, lives) {
        return Plan::default();
    }
    let options = profile::Options::default();
    let plan = profile::plan_as(trace, lives, &iterations, options, |problem| {
        solve(problem, Budget::interactive(problem.buffers.len()))
    });
    // No plan, or one that is wrong, is no reason to disturb the run.
    let plan = plan.ok().filter(|plan| verify(plan).is_ok()).unwrap_or_default();
    tried(plan, trace, lives, &Setup::default())
}

/// True if there are steady iterations to plan. Where they were found in the sequence alone they
/// must go on to the end of the recording, and begin with the same bytes alive: the layers of one
/// forward pass repeat too, but each leaves something behind.
fn is_settled(iterations: &Iterations, lives: &Lifetimes) -> bool {
    let members = iterations.members();
    let Some(&last) = members.last() else { return false };
    if iterations.source == Source::Marks {
        return true;
    }
    let end = &iterations.list[last].requests;
    if lives.requests.len() - end.end as usize > 2 * end.len() {
        return false;
    }
    let mut change = vec![0i64; lives.request_of.len() + 1];
    for request in &lives.requests {
        change[request.birth.index()] += request.size as i64;
        if request.death != Tick::NEVER {
            change[request.death.index()] -= request.size as i64;
        }
    }
    let sums = change.iter().scan(0, |load, change| Some(std::mem::replace(load, *load + change)));
    let loads: Vec<i64> = sums.collect();
    let peak = loads.iter().copied().max().unwrap_or(0) as u64;
    let starts = members.iter().map(|&k| loads[iterations.list[k].ticks.start as usize]);
    let (least, most) = (starts.clone().min().unwrap_or(0), starts.max().unwrap_or(0));
    (most - least) as u64 * SAME_LOAD <= peak
}
