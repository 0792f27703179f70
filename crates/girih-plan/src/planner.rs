//! Every planner with its settings, under one name, and one call to run any of them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::firstfit::{self, Order, first_fit};
use crate::fold::{self, fold};
use crate::gaps::Fit;
use crate::instance::{Instance, Item};
use crate::problem::{Problem, ProblemError, Solution};
use crate::skyline::{self, Key, skyline};
use crate::sweep::{self, Direction, sweep};

/// A planner with its settings. All of them are deterministic, work on lines and on rings, and
/// need memory linear in the number of buffers (first fit: times its logarithm at worst).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Planner {
    /// A walk through time that places each buffer at its birth ([`mod@crate::sweep`]).
    Sweep(Fit, Direction),
    /// First fit, the largest first ([`crate::firstfit`]).
    FirstFit(Order),
    /// What lives at least `2^long_log2` sections by a sweep, the rest by first fit
    /// ([`crate::firstfit`]).
    TwoPhase {
        /// The least life of the first phase is 2 to the power of this, in sections; at most 31.
        long_log2: u8,
        /// How the sweep of the first phase goes.
        sweep: (Fit, Direction),
        /// How the first fit of the second phase goes.
        order: Order,
    },
    /// The lowest valley of the skyline ([`mod@crate::skyline`]).
    Skyline(Key),
    /// What repeats once, and the rest around it (`fold`). It gives up where too little repeats.
    Folded,
}

impl Planner {
    /// The name of the kind, without settings: what [`Solution::planner`] says.
    pub fn name(self) -> &'static str {
        match self {
            Planner::Sweep(Fit::First, _) => "sweep first fit",
            Planner::Sweep(Fit::Best, _) => "sweep best fit",
            Planner::FirstFit(Order::Size) => "first fit by size",
            Planner::FirstFit(Order::Area) => "first fit by area",
            Planner::FirstFit(Order::Life) => "first fit by life",
            Planner::TwoPhase { .. } => "two-phase",
            Planner::Skyline(_) => "skyline",
            Planner::Folded => "folded",
        }
    }

    /// Solves `problem` by this planner alone; by a skyline where folding finds too little that
    /// repeats.
    pub fn plan(self, problem: &Problem) -> Result<Solution, ProblemError> {
        let instance = Instance::new(problem)?;
        let mut layout = vec![0; instance.items.len()];
        let mut scratch = Scratch::default();
        let skyline = Planner::Skyline(Key { size_weight: 20, noise: 0, seed: 0 });
        let solution = [self, skyline].into_iter().find_map(|planner| {
            let top = planner.run(&instance, Limit::none(), &mut scratch, &mut layout)?;
            Some(instance.solution(problem.buffers.len(), &layout, top, planner.name()))
        });
        Ok(solution
            .expect("no layout reaches the last unit, since all sizes together do not pass it"))
    }

    /// Writes the offset of every item to `layout` and returns the top that they reach; `None` as
    /// soon as they reach `limit`, and `layout` is then of no use.
    pub(crate) fn run(
        self,
        instance: &Instance,
        limit: Limit<'_>,
        scratch: &mut Scratch,
        layout: &mut [u64],
    ) -> Option<u64> {
        let Scratch {
            sweep: sweep_scratch,
            first_fit: fit_scratch,
            skyline: sky_scratch,
            fold: fold_scratch,
        } = scratch;
        match self {
            Planner::Sweep(fit, direction) => {
                sweep(instance, (fit, direction), |_| true, limit, sweep_scratch, layout)
            }
            Planner::FirstFit(order) => {
                first_fit(instance, order, |_, _| false, (0, limit), fit_scratch, layout)
            }
            Planner::TwoPhase { long_log2, sweep: settings, order } => {
                // A walk from the peak has no good place for what wraps; first fit has.
                let is_swept =
                    |item: &Item| settings.1 != Direction::FromPeak || !instance.wraps(item);
                let is_long = |item: &Item| item.life() >> long_log2.min(31) > 0 && is_swept(item);
                let top = sweep(instance, settings, is_long, limit, sweep_scratch, layout)?;
                let is_placed = |_: usize, item: &Item| is_long(item);
                first_fit(instance, order, is_placed, (top, limit), fit_scratch, layout)
            }
            Planner::Skyline(key) => skyline(instance, key, limit, sky_scratch, layout),
            Planner::Folded => fold(instance, limit, fold_scratch, layout),
        }
    }
}

/// Where a planner gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'a> {
    /// The height to beat, in units.
    top: u64,
    /// The number of this attempt, and of the first one that was proven best: what comes after that
    /// is in vain.
    order: Option<(usize, &'a AtomicUsize)>,
}

impl<'a> Limit<'a> {
    /// Nothing to beat.
    pub(crate) fn none() -> Limit<'static> {
        Limit { top: u64::MAX, order: None }
    }

    /// A height to beat, in units.
    pub(crate) fn below(top: u64) -> Limit<'static> {
        Limit { top, order: None }
    }

    /// A height to beat, in units, in the attempt of this number; `proven` is the number of the
    /// first one that was proven best.
    pub(crate) fn of_attempt(top: u64, number: usize, proven: &'a AtomicUsize) -> Limit<'a> {
        Limit { top, order: Some((number, proven)) }
    }

    /// The height at which to give up, in units: none can be beaten once all is in vain.
    #[inline]
    pub(crate) fn top(&self) -> u64 {
        match self.order {
            Some((number, proven)) if proven.load(Ordering::Relaxed) < number => 0,
            _ => self.top,
        }
    }
}

impl fmt::Display for Planner {
    /// The name with the settings, as tables show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            Planner::Sweep(_, direction) => write!(f, " {direction}"),
            Planner::FirstFit(_) | Planner::Folded => Ok(()),
            Planner::TwoPhase { long_log2, sweep: (fit, direction), order } => {
                let long = 1u64 << long_log2.min(31);
                write!(f, " (life >= {long}, {fit} {direction}, then by {order})")
            }
            Planner::Skyline(Key { size_weight, noise, seed }) => {
                write!(f, " (size {size_weight} %")?;
                if noise > 0 {
                    write!(f, ", noise {noise} %, seed {seed}")?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fit::First => "first fit",
            Fit::Best => "best fit",
        })
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Forward => "forward",
            Direction::Reversed => "reversed",
            Direction::FromPeak => "from the peak",
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Size => "size",
            Order::Area => "area",
            Order::Life => "life",
        })
    }
}

/// What the planners need beside the instance. One is enough for any number of runs, one after
/// another, and spares their allocations.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    sweep: sweep::Scratch,
    first_fit: firstfit::Scratch,
    skyline: skyline::Scratch,
    fold: fold::Scratch,
}
