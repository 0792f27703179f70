//! A trial: a plan is tried on the run that it was made of before anyone follows it.
//!
//! A plan knows requests of steady iterations. What varies, what comes in between and what nobody planned takes its
//! places away or stands in their way, and then a run may hold more with the plan than without. The run that a plan
//! was made of is the best witness at hand: a plan with which that holds more is followed by nobody
//! ([`Plan::helps`]).

use std::sync::Arc;

use girih_plan::{Plan, Trial};
use girih_trace::{Lifetimes, Trace};

use super::{Allocator, Setup, simulate};

/// `plan`, which was made of `trace`, with what the run held in a replay with it and without, on a device of any size.
/// A run that cannot be replayed leaves it as it is.
pub fn tried(mut plan: Plan, trace: &Trace, lives: &Lifetimes, setup: &Setup) -> Plan {
    plan.trial = None;
    let shared = Arc::new(plan.clone());
    let setup = Setup { plan: Some(shared), capacity: None, rest: None, ..setup.clone() };
    let held = |allocator| {
        let simulation = simulate(trace, lives, allocator, &setup).ok()?;
        let held = simulation.stats.reserved_bytes.all().peak;
        simulation.replayed.stop.is_none().then_some(held)
    };
    plan.trial = held(Allocator::Planned)
        .zip(held(Allocator::Stitch))
        .map(|(with, without)| Trial { with, without });
    plan
}
