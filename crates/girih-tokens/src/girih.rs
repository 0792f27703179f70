//! The default method: the linear program under each of a few patterns of overlap, and the best of them.
//!
//! What others do are points of the same space, and they are tried too: the answer is never slower than the best of
//! them, and fits where any of them does. More of a budget is never slower: each program's optimum is monotone, and
//! the patterns are the same whatever the budgets.

use girih_swap::Budgets;

use crate::baselines;
use crate::decision::{Decision, Pattern};
use crate::memo;
use crate::problem::Problem;
use crate::program;
use crate::timeline::{peaks, run};

/// How far ahead copies out may be of the forward passes: nothing overlaps, one layer beside, two layers beside.
/// More in flight takes more of the GPU's memory and evens out layers that differ; what a link cannot carry in time
/// the program splits anyway.
const OUT_MOST: usize = 3;
/// How far ahead of their use copies in may begin: as many operators as two layers have.
const INWARD_MOST: usize = 4;

/// The patterns that are tried.
fn patterns() -> impl Iterator<Item = Pattern> {
    let pairs = (1..=OUT_MOST).flat_map(|out| (0..=INWARD_MOST).map(move |inward| (out, inward)));
    pairs.flat_map(|(out, inward)| {
        [false, true].map(|through_head| Pattern { out, inward, through_head })
    })
}

/// The best decision that keeps the budgets; the one with the fewest bytes on the GPU if none does.
pub(crate) fn plan(problem: &Problem, budgets: &Budgets) -> Decision {
    let fits = |decision: &Decision| {
        let (gpu, host) = peaks(problem, decision);
        gpu <= budgets.gpu && budgets.host.is_none_or(|budget| host <= budget)
    };
    let plain = Decision::plain(problem);
    if fits(&plain) {
        return plain;
    }
    let least = baselines::least(problem, budgets.host);
    if !fits(&least) {
        return least;
    }
    let others = [
        memo::plan(problem, budgets),
        baselines::recompute(problem),
        baselines::swap(problem),
        baselines::whole_tensors(problem, budgets),
        least.clone(),
    ];
    let programs = patterns().filter_map(|pattern| program::best(problem, budgets, pattern));
    let programs = programs.map(|best| best.decision);
    let timed = programs.chain(others).filter(fits).map(|decision| {
        let ran = run(problem, &decision);
        (ran.step_us, ran.bytes, decision)
    });
    let best = timed.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    best.map_or(least, |(_, _, decision)| decision)
}
