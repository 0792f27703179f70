//! `girih compare --learn`: a plan of the first part of a recording, on the rest of it.
//!
//! The plan is made of the first part alone, and followed from the first request of the run on, as in a second launch
//! of the same program. Figures are of the rest: what a plan is worth on iterations that it was not made of.

use std::str::FromStr;
use std::sync::Arc;

use girih_plan::Plan;
use girih_runtime::auto;
use girih_runtime::sim::CallTotals;
use girih_runtime::simulate::{Allocator, Setup, Simulation, simulate};
use girih_trace::parts::first_part;
use girih_trace::{Iterations, Tick};
use serde::Serialize;

use super::row::{efficiency, unreliable};
use crate::load::Loaded;
use crate::table::table;
use crate::units::{bytes, count, milliseconds, percent};

/// Which part of a recording is learnt from: more than nothing, and less than all.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Share(f64);

impl FromStr for Share {
    type Err = String;

    /// Reads `50%` or `0.5`.
    fn from_str(text: &str) -> Result<Share, String> {
        let text = text.trim();
        let (number, unit) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 100.0),
            None => (text, 1.0),
        };
        let share = number.parse::<f64>().map_err(|_| format!("try 50%: {text} is no share"))?;
        let share = share / unit;
        if share > 0.0 && share < 1.0 {
            return Ok(Share(share));
        }
        let hint = match unit {
            1.0 if share > 1.0 && share < 100.0 => format!("{number}%"),
            _ => "50%".to_owned(),
        };
        Err(format!(
            "try {hint}: {text} is not between 0% and 100%, so that something is learnt from and \
             something left"
        ))
    }
}

impl Share {
    /// So many of `count` that they are no more than the share of them, and not all of them.
    fn of(self, count: usize) -> usize {
        // A share such as 0.29 is a little less than it says, and 29 of 100 are meant.
        ((self.0 * count as f64 + 1e-9) as usize).min(count.saturating_sub(1))
    }
}

/// A plan of the first part of a recording, and the rest of it under some allocators.
pub(crate) struct OutOfSample {
    share: Share,
    /// Iterations of the recording, and of the first part.
    iterations: usize,
    learnt: usize,
    /// Where the rest begins.
    from: Tick,
    /// None if nothing repeats in the first part.
    plan: Option<Arc<Plan>>,
    /// The names of the rows, and what they are.
    rows: Vec<(&'static str, Simulation)>,
}

/// Plans the first part, and simulates the run as `setup` says.
pub(crate) fn learn(loaded: &Loaded, share: Share, setup: &Setup) -> anyhow::Result<OutOfSample> {
    let Loaded { trace, lives, iterations: Iterations { list, .. }, .. } = loaded;
    let learnt = share.of(list.len());
    let from = Tick(list.get(learnt).map_or(0, |iteration| iteration.ticks.start));
    let (first, first_lives) = first_part(trace, lives, from);
    // In one iteration microbatches may be alike, and are no steps.
    let plan = (learnt >= 2).then(|| auto::learn(&first, &first_lives));
    let plan = plan.filter(|plan| plan.steady().is_some()).map(Arc::new);
    let setup = Setup {
        plan: plan.clone(),
        kept: plan.clone(),
        rest: Some(from),
        // The device's calls of the rest.
        iterations: Arc::new([from]),
        ..setup.clone()
    };
    let with_plan = if plan.is_some() { Allocator::Planned } else { Allocator::Stitch };
    let rows = [
        ("stitch", Allocator::Stitch),
        ("auto", Allocator::Auto),
        ("again", Allocator::Again),
        ("learnt", with_plan),
    ];
    let simulated = rows.into_iter().map(|(name, allocator)| {
        simulate(trace, lives, allocator, &setup).map(|simulation| (name, simulation))
    });
    let rows = simulated.collect::<Result<_, _>>()?;
    Ok(OutOfSample { share, iterations: list.len(), learnt, from, plan, rows })
}

impl OutOfSample {
    /// The table and what is to be said to it.
    pub(crate) fn text(&self, setup: &Setup) -> String {
        let mut columns =
            vec!["allocator", "allocated", "reserved", "efficiency", "calls", "cost", "hits"];
        if setup.capacity.is_some() {
            columns.insert(1, "fits");
        }
        let rows: Vec<Vec<String>> = (self.rows.iter())
            .map(|(name, simulation)| row(name, simulation, self.plan.is_some(), setup))
            .collect();
        let iterations = count(self.iterations as u64);
        let first = match (self.iterations, self.learnt) {
            (0, _) => "the whole run".to_owned(),
            (_, 0) => format!("the rest of the run, from the first of {iterations} iterations on"),
            (_, learnt) => format!(
                "the rest of the run, after the first {} of {iterations} iterations",
                count(learnt as u64),
            ),
        };
        format!("{first}\n{}\n{}\n", table(&columns, &rows), self.sentence())
    }

    /// What the plan is of, and whether `again` follows it.
    fn sentence(&self) -> String {
        let Some(plan) = &self.plan else {
            let why = match (self.iterations, self.learnt) {
                (0, _) => "record more steps, for nothing in the recording repeats".to_owned(),
                (_, 0) => "record more steps, for none of them ends in the first part".to_owned(),
                (_, 1) => {
                    "record more steps, for the first part has one, and a plan needs two".to_owned()
                }
                (_, learnt) => {
                    format!("no two of the first {} iterations are alike", count(learnt as u64))
                }
            };
            return format!("learnt has no plan, and is stitch: {why}");
        };
        match unreliable(plan) {
            None => "learnt follows the plan of the first part; so does again, the second launch of auto"
                .to_owned(),
            Some(why) => format!(
                "learnt follows the plan of the first part; again, the second launch of auto, does not: {why}"
            ),
        }
    }
}

/// The share of the bytes requested that were given their place.
fn hit_share(simulation: &Simulation) -> Option<f64> {
    let following = simulation.following?;
    let bytes = following.hit_bytes + following.miss_bytes;
    (bytes > 0).then(|| following.hit_bytes as f64 / bytes as f64)
}

fn row(name: &str, simulation: &Simulation, has_plan: bool, setup: &Setup) -> Vec<String> {
    let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
    let (stats, calls) = (&simulation.stats, rest_calls(simulation));
    let hits = hit_share(simulation).filter(|_| has_plan && ["again", "learnt"].contains(&name));
    let mut row = vec![
        name.to_owned(),
        bytes(stats.allocated_bytes.all().peak),
        bytes(stats.reserved_bytes.all().peak),
        share(efficiency(simulation)),
        count(calls.0),
        milliseconds(calls.1),
        share(hits),
    ];
    if setup.capacity.is_some() {
        let fits = if simulation.replayed.stop.is_none() { "yes" } else { "no" };
        row.insert(1, fits.to_owned());
    }
    row
}

/// Calls of the device in the rest, and their cost in microseconds.
fn rest_calls(simulation: &Simulation) -> (u64, f64) {
    let calls = simulation.iterations.first().map(CallTotals::sum).unwrap_or_default();
    (calls.calls, calls.microseconds)
}

/// The same as `--json` gives it.
#[derive(Serialize)]
pub(crate) struct JsonOutOfSample {
    share: f64,
    iterations: usize,
    iterations_learnt: usize,
    /// The event with which the rest begins, from 0.
    event: u32,
    plan: Option<JsonLearntPlan>,
    rows: Vec<JsonRest>,
}

#[derive(Serialize)]
struct JsonLearntPlan {
    iterations: u32,
    iteration_requests: usize,
    tight: bool,
    varies: bool,
    helps: bool,
    followed_by_auto: bool,
}

#[derive(Serialize)]
struct JsonRest {
    allocator: &'static str,
    allocated_peak: u64,
    reserved_peak: u64,
    /// None for a run that stopped.
    efficiency: Option<f64>,
    device_calls: u64,
    device_microseconds: f64,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_hits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_hit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_misses: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_miss_bytes: Option<u64>,
}

impl JsonOutOfSample {
    pub(crate) fn new(learnt: &OutOfSample) -> JsonOutOfSample {
        let plan = learnt.plan.as_ref().map(|plan| JsonLearntPlan {
            iterations: plan.iterations,
            iteration_requests: plan.iteration_requests(),
            tight: plan.is_tight(),
            varies: plan.varies(),
            helps: plan.helps(),
            followed_by_auto: plan.is_reliable(),
        });
        JsonOutOfSample {
            share: learnt.share.0,
            iterations: learnt.iterations,
            iterations_learnt: learnt.learnt,
            event: learnt.from.0,
            plan,
            rows: learnt
                .rows
                .iter()
                .map(|(name, simulation)| JsonRest::new(name, simulation))
                .collect(),
        }
    }
}

impl JsonRest {
    fn new(allocator: &'static str, simulation: &Simulation) -> JsonRest {
        let (stats, following) = (&simulation.stats, simulation.following);
        let (device_calls, device_microseconds) = rest_calls(simulation);
        JsonRest {
            allocator,
            allocated_peak: stats.allocated_bytes.all().peak,
            reserved_peak: stats.reserved_bytes.all().peak,
            efficiency: efficiency(simulation),
            device_calls,
            device_microseconds,
            fits: simulation.replayed.stop.is_none(),
            planned_hits: following.map(|following| following.hits),
            planned_hit_bytes: following.map(|following| following.hit_bytes),
            planned_misses: following.map(|following| following.misses),
            planned_miss_bytes: following.map(|following| following.miss_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        for text in ["50%", "0.5", " 50 % ", ".5"] {
            assert_eq!(text.parse(), Ok(Share(0.5)), "{text}");
        }
        for (text, why) in [
            ("0%", "something is learnt from"),
            ("100%", "something left"),
            ("1", "something left"),
            ("-5%", "not between 0% and 100%"),
            ("50", "try 50%"),
            ("half", "is no share"),
            ("%", "is no share"),
            ("NaN", "not between"),
            ("inf%", "not between"),
        ] {
            let refused = text.parse::<Share>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_share_of_iterations_is_never_all_of_them() {
        let of = |share: &str, count| share.parse::<Share>().unwrap().of(count);
        assert_eq!([of("50%", 4), of("50%", 3), of("50%", 1), of("50%", 0)], [2, 1, 0, 0]);
        assert_eq!([of("0.29", 100), of("10%", 4), of("99.99999999999%", 4)], [29, 0, 3]);
    }
}
