//! A first launch: what a run under `auto` leaves to the next one.
//!
//! A plan is kept after some seven steps at the earliest: three until it is made, one in which it comes, and three that
//! fit it. A recording is often shorter than that, and the run that it is of is longer. So the first launch goes on
//! with the steady iterations of the recording ([`prolonged`]) until it has [`ITERATIONS`]. A recording without steady
//! iterations is taken as it is.

use std::sync::Arc;

use girih_plan::Plan;
use girih_trace::bounds::check_held;
use girih_trace::parts::prolonged;
use girih_trace::{Iterations, Lifetimes, Trace};

use super::{Allocator, Setup, SimulateError, calls_max, check_calls, config, device};
use crate::auto::Auto;
use crate::hooked::Hooked;
use crate::policy::Env;
use crate::replay::{Options, replay};

/// Iterations of a first launch, if the recording has no more.
pub const ITERATIONS: usize = 16;

/// The plan that a first launch keeps, as it does under PyTorch: the last one that three iterations in a row have
/// fitted, unless one was given up after it. None if it keeps none.
///
/// # Errors
/// As [`simulate`](super::simulate).
pub fn first(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
    setup: &Setup,
) -> Result<Option<Arc<Plan>>, SimulateError> {
    let longer = prolonged(trace, lives, iterations, ITERATIONS);
    let (trace, lives) = longer.as_ref().map_or((trace, lives), |(trace, lives)| (trace, lives));
    check_held(lives)?;
    let parts = Allocator::Auto.parts(config(setup)?, setup, &trace.streams);
    let mut auto = Auto::new(parts.lake());
    auto.set_options(setup.judge);
    auto.set_planning(setup.planning());
    let (mut kept, mut given_up) = (None, 0);
    let mut policy = Hooked::new(auto, |auto: &mut Auto, _: &mut Env<'_>, _| {
        kept = auto.take_proven().or(kept.take());
        if auto.given_up() > given_up {
            (kept, given_up) = (None, auto.given_up());
        }
        Ok(())
    });
    let options = Options { calls_max: Some(calls_max(trace)), ..Options::default() };
    let replayed = replay(trace, lives, &mut policy, &mut device(setup), options)?;
    check_calls(Allocator::Auto, &replayed)?;
    drop(policy);
    Ok(kept)
}
