//! The plan synthesizer: a static plan, and for each group of dynamic requests the bytes that it leaves to them.
//!
//! A recording is parted by the flag of the paper. What is static is planned as if there was nothing else. Dynamic
//! requests that come in one run of a dynamic layer, *a*, and go in another, *b*, are a *HomoLayer group* (equation 2).
//! While they live, from the start of *a* to the end of *b*, the static plan occupies some of its bytes (equation 3);
//! the others of all that it has (4) are the group's *Dynamic Reusable Space* (5):
//!
//! ```text
//!  address of the plan                     a        b
//!     |  ssss                 sss          .        .         The space of (a, b) is what no s touches
//!     |  ssssssssssssssssssssssssss        ..........   <--   between the start of a and the end of b.
//!     |      ssssss               ssssssssssssss
//!     +----------------------------------------- time
//! ```
//!
//! What the paper leaves open:
//! - **Time** is counted in static requests here: between two of them the plan does not change. What the plan frees at
//!   the same point may still be there; at run time it is asked whether bytes are free.
//! - **A request that goes outside of every dynamic layer** has a group that ends when its last one goes.
//! - **Which group a request of a run belongs to** is told by its number in the layer's run, the only thing that a run
//!   and its profile share where sizes differ. One beyond those of the profile has the group of the layer that lasts
//!   longest.
//! - **Other iterations** have the spaces of the one that is planned. What comes before it has those of its own.

use std::collections::BTreeMap;

use girih_trace::{Action, Iterations, Lifetime, Lifetimes, Mark, Tick, Trace};

use super::dynamic::DynamicLayers;
use super::{Timeline, plan_as_released, temporary};
use crate::bound::max_load;
use crate::plan::{Plan, Role, Sequence, Tenancy, granted};
use crate::portfolio::{Budget, Outcome, solve};
use crate::problem::{Problem, ProblemError};
use crate::profile;
use crate::stweaver::StweaverError;

/// Ranges of bytes of a plan's arena, ascending, that do not meet.
pub type Space = Vec<(u64, u64)>;

/// What a run of a dynamic layer may use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayerSpaces {
    /// For each request of the profiled run, in order, an index into [`Synthesis::spaces`].
    pub requests: Vec<u32>,
    /// That of the group that lasts longest.
    pub longest: u32,
}

impl LayerSpaces {
    /// The space of the request of this number in a run, as an index into [`Synthesis::spaces`].
    pub fn of(&self, number: usize) -> usize {
        self.requests.get(number).copied().unwrap_or(self.longest) as usize
    }
}

/// What the synthesizer makes of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Synthesis {
    /// The plan of all static requests.
    pub plan: Plan,
    /// The Dynamic Reusable Space of each HomoLayer group.
    pub spaces: Vec<Space>,
    /// The runs of dynamic layers before the steady iteration, in order.
    pub opening: Vec<LayerSpaces>,
    /// Those of one round of the steady sequence ([`Plan::rounds`]).
    pub steady: Vec<LayerSpaces>,
    /// Entries of the opening to which the plan gives no place, by their index, each with where it begins, in bytes from
    /// the start of the pool: they lie over what is not in use yet.
    pub temporaries: Vec<(u32, u64)>,
}

impl Synthesis {
    /// Bytes of the pool: the arena, what stays above it, and what the opening needs beyond.
    pub fn pool_bytes(&self) -> u64 {
        let plan = self.plan.arena_bytes.saturating_add(self.plan.persistent_bytes);
        let opening = self.sequence(Role::Opening).map_or(&[][..], |it| &it.entries);
        let ends = self.temporaries.iter().filter_map(|&(index, offset)| {
            let size = granted(opening.get(index as usize)?.size_max);
            Some(offset.saturating_add(size))
        });
        ends.fold(plan, u64::max)
    }

    /// Plans the static requests of a recording with STWeaver's planner, and finds the spaces of the others.
    ///
    /// # Errors
    /// Those of [`profile::plan`].
    pub fn of(
        trace: &Trace,
        lives: &Lifetimes,
        layers: &DynamicLayers,
    ) -> Result<Synthesis, ProblemError> {
        let (fixed, fixed_lives) = static_part(trace, lives, layers);
        let iterations = Iterations::of(&fixed, &fixed_lives);
        let plan = static_plan(&fixed, &fixed_lives, &iterations)?;
        let temporaries = temporary::lay(&plan);
        let mut synthesis = Synthesis { plan, temporaries, ..Synthesis::default() };
        if layers.runs().is_empty() {
            return Ok(synthesis);
        }
        // The tick of the trace at which each static request is born.
        let births: Vec<u32> = (0..)
            .zip(&lives.requests)
            .filter(|(request, _)| !layers.is_dynamic(*request))
            .map(|(request, life)| if request < lives.older as u32 { 0 } else { life.birth.0 })
            .collect();
        let groups = Groups::of(lives, layers, &births);
        let model = iterations.model().filter(|_| synthesis.plan.steady().is_some());
        if let Some(model) = model {
            let requests = &iterations.list[model].requests;
            synthesis.find(Role::Steady, &groups, requests.start, requests.end);
        }
        let opening = synthesis.sequence(Role::Opening).map_or(0, |it| it.entries.len() as u32);
        synthesis.find(Role::Opening, &groups, 0, opening);
        Ok(synthesis)
    }

    fn sequence(&self, role: Role) -> Option<&Sequence> {
        self.plan.sequences.iter().find(|sequence| sequence.role == role)
    }

    /// Finds the spaces of all runs that begin between the static requests `from` and `to`, where the sequence of
    /// this role begins at the former.
    fn find(&mut self, role: Role, groups: &Groups, from: u32, to: u32) {
        let Some(sequence) = self.sequence(role) else { return };
        let ring = if role == Role::Steady { sequence.entries.len() as u32 } else { 0 };
        let tenancies = self.plan.tenancies(sequence);
        let mut found = Vec::new();
        for run in groups.runs.iter().filter(|run| (from..to).contains(&run.start)) {
            let mut of_group = BTreeMap::new();
            let mut space = |end: u32, spaces: &mut Vec<Space>| {
                *of_group.entry(end).or_insert_with(|| {
                    let during = (run.start - from, end - from);
                    spaces.push(reusable(&tenancies, during, ring, self.plan.arena_bytes));
                    spaces.len() as u32 - 1
                })
            };
            let requests = run.ends.iter().map(|&end| space(end, &mut self.spaces)).collect();
            let latest = run.ends.iter().copied().max().unwrap_or(run.start);
            let longest = space(latest, &mut self.spaces);
            found.push(LayerSpaces { requests, longest });
        }
        match role {
            Role::Steady => self.steady = found,
            _ => self.opening = found,
        }
    }
}

/// The HomoLayer groups, run by run of the layer in which their requests come. Times are numbers of static requests.
struct Groups {
    runs: Vec<Run>,
}

/// A run of a dynamic layer.
struct Run {
    start: u32,
    /// For each of its requests, when its group ends.
    ends: Vec<u32>,
}

impl Groups {
    fn of(lives: &Lifetimes, layers: &DynamicLayers, births: &[u32]) -> Groups {
        let time = |tick: u32| births.partition_point(|&birth| birth < tick) as u32;
        let start = |run: &std::ops::Range<u32>| Run { start: time(run.start), ends: Vec::new() };
        let mut runs: Vec<Run> = layers.runs().iter().map(start).collect();
        let mut outside: BTreeMap<usize, u32> = BTreeMap::new();
        let mut ends: Vec<(usize, Option<u32>)> = Vec::new();
        for (request, life) in (0..).zip(&lives.requests) {
            let Some(run) = layers.run_of(request) else { continue };
            let last = if life.death == Tick::NEVER { u32::MAX } else { time(life.death.0) };
            match layers.run_at(life.death).filter(|_| life.death != Tick::NEVER) {
                Some(other) => ends.push((run, Some(time(layers.runs()[other].end)))),
                None => {
                    let latest = outside.entry(run).or_insert(0);
                    *latest = (*latest).max(last);
                    ends.push((run, None));
                }
            }
        }
        for (run, end) in ends {
            let end = end.unwrap_or_else(|| outside[&run]);
            let start = runs[run].start;
            runs[run].ends.push(end.max(start));
        }
        Groups { runs }
    }
}

/// Equations 3 to 5: the bytes of the arena that nobody has at any time of `during`, from a request on to before
/// another, in a sequence that is a ring of so many requests, or a line if that is 0.
fn reusable(tenancies: &[Tenancy], during: (u32, u32), ring: u32, arena: u64) -> Space {
    let (from, to) = (u64::from(during.0), u64::from(during.1));
    let period = u64::from(ring);
    // Who lives longer than the ring is there all the time.
    let is_all = ring > 0 && to - from >= period;
    let meets = |tenancy: &Tenancy| {
        let (lower, upper) = (u64::from(tenancy.lower), u64::from(tenancy.upper));
        let at = |shift: u64| lower + shift < to.max(from) && upper + shift > from;
        let back = |shift: u64| lower < to + shift && upper > from + shift;
        is_all || at(0) || (ring > 0 && (at(period) || back(period)))
    };
    let mut occupied: Vec<(u64, u64)> = tenancies
        .iter()
        .filter(|it| meets(it))
        .map(|it| (it.offset, it.offset + it.size))
        .collect();
    occupied.sort_unstable();
    let mut space = Vec::new();
    let mut free = 0;
    for (start, end) in occupied.into_iter().chain([(arena, arena)]) {
        if start > free {
            space.push((free, start));
        }
        free = free.max(end);
    }
    space
}

/// The trace without its dynamic requests, and the lifetimes of the others. They are made of those of the whole: what
/// was held before the first event is known from all of a recording.
fn static_part(trace: &Trace, lives: &Lifetimes, layers: &DynamicLayers) -> (Trace, Lifetimes) {
    let is_kept = |tick: usize| {
        let is_of_a_block = matches!(
            trace.events[tick].action,
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted
        );
        let request = lives.request_of.get(tick).copied().unwrap_or(Lifetimes::NONE);
        !is_of_a_block || request == Lifetimes::NONE || !layers.is_dynamic(request)
    };
    let mut before = Vec::with_capacity(trace.events.len() + 1);
    let mut events = Vec::with_capacity(trace.events.len());
    for (tick, event) in trace.events.iter().enumerate() {
        before.push(events.len() as u32);
        if is_kept(tick) {
            events.push(*event);
        }
    }
    before.push(events.len() as u32);
    let after = |tick: u32| before[(tick as usize).min(trace.events.len())];
    let marks = trace.marks.iter().map(|mark| Mark { before: after(mark.before), ..mark.clone() });
    let later = |tick: Tick| if tick == Tick::NEVER { tick } else { Tick(after(tick.0)) };
    let mut number = vec![Lifetimes::NONE; lives.requests.len()];
    let mut requests = Vec::with_capacity(lives.requests.len());
    for (request, life) in (0..).zip(&lives.requests) {
        if layers.is_dynamic(request) {
            continue;
        }
        number[request as usize] = requests.len() as u32;
        requests.push(Lifetime {
            birth: later(life.birth),
            free_requested: later(life.free_requested),
            death: later(life.death),
            ..*life
        });
    }
    let kept = (0..trace.events.len()).filter(|&tick| is_kept(tick));
    let request_of = kept.map(|tick| {
        let request = lives.request_of.get(tick).copied().unwrap_or(Lifetimes::NONE);
        number.get(request as usize).copied().unwrap_or(Lifetimes::NONE)
    });
    let fixed_lives = Lifetimes {
        request_of: request_of.collect(),
        // Nothing older than the recording is dynamic.
        older: lives.older,
        unclosed: lives.unclosed,
        requests,
    };
    let fixed = Trace {
        device: trace.device,
        marks: marks.collect(),
        events,
        streams: trace.streams.clone(),
        pools: trace.pools.clone(),
        settings: trace.settings.clone(),
        origin: trace.origin.clone(),
        ..Trace::default()
    };
    (fixed, fixed_lives)
}

/// The plan of a trace by STWeaver's planner, the lowest that it makes.
fn static_plan(
    trace: &Trace,
    lives: &Lifetimes,
    iterations: &Iterations,
) -> Result<Plan, ProblemError> {
    // The shape of a plan tells the phases of its buffers, whichever planner made it.
    let shape = profile::plan_without_rooms(trace, lives, iterations, |problem| {
        solve(problem, Budget::attempts(1))
    })?;
    let timeline = Timeline::of(&shape, trace, lives, iterations);
    profile::plan_without_rooms(trace, lives, iterations, |problem: &Problem| {
        let solution = match plan_as_released(problem, &timeline.spans(problem)) {
            Ok(solution) => solution,
            Err(StweaverError::Problem(error)) => return Err(error),
            Err(StweaverError::Phases { .. }) => super::plan_by_size(problem)?,
        };
        let bound = max_load(problem)?;
        Ok(Outcome { solution, least: bound.bytes, bound, attempts: Vec::new(), nodes: 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_what_nobody_has_at_any_time_of_a_group() {
        let tenancy = |lower, upper, offset, size| Tenancy { lower, upper, offset, size };
        let all = [tenancy(0, 4, 0, 10), tenancy(2, 9, 20, 5), tenancy(6, 8, 30, 10)];
        assert_eq!(reusable(&all, (4, 6), 0, 50), [(0, 20), (25, 50)]);
        assert_eq!(reusable(&all, (3, 7), 0, 50), [(10, 20), (25, 30), (40, 50)]);
        // Between two static requests: who lives across.
        assert_eq!(reusable(&all, (4, 4), 0, 50), [(0, 20), (25, 50)]);
        assert_eq!(reusable(&all, (9, 9), 0, 50), [(0, 50)]);
    }

    #[test]
    fn on_a_ring_time_goes_round() {
        let tenancy = |lower, upper, offset, size| Tenancy { lower, upper, offset, size };
        let all = [tenancy(8, 12, 0, 10), tenancy(3, 4, 20, 5)];
        assert_eq!(reusable(&all, (0, 1), 10, 30), [(10, 30)]);
        assert_eq!(reusable(&all, (9, 14), 10, 30), [(10, 20), (25, 30)]);
        assert_eq!(reusable(&all, (5, 6), 10, 30), [(0, 30)]);
        assert_eq!(reusable(&all, (5, 15), 10, 30), [(10, 20), (25, 30)]);
    }
}
