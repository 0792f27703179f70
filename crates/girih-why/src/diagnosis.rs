//! The whole of an answer, put together.

use std::sync::Arc;

use girih_plan::granted;
use girih_runtime::simulate::SimulateError;
use girih_trace::{Contradiction, Earlier, Iterations, Lifetimes, Phases, Tick, Trace};
use thiserror::Error;

use crate::advice;
use crate::batch;
use crate::capacity::{self, Capacity, Known};
use crate::category::{Categories, Category};
use crate::frames::Stacks;
use crate::groups::{By, Group, Grouping};
use crate::growth::{self, Growth};
use crate::moment::{self, Moment};
use crate::refusal::{self, OnDevice, Refusal, Replayed};
use crate::replays::{Case, Fit, SETTINGS, Setting};
use crate::spike::{Run, Spike};
use crate::steps;
use crate::verdict::{Facts, Idle, USUAL_IDLE, Verdict};

/// Which moment the tensors are listed of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum At {
    /// The refused request; without one, the peak.
    #[default]
    Error,
    /// The most that was alive.
    Peak,
    /// What was never freed.
    NeverFreed,
    /// The most that was alive in a step, from 0.
    Step(usize),
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Question {
    /// What is known beside the recording.
    pub known: Known,
    /// Which of the refused requests, from 0; None for the last, of which a run mostly dies.
    pub error: Option<usize>,
    /// Which moment the tensors are listed of.
    pub at: At,
    /// What they are put together by.
    pub by: By,
    /// True if only the tensors are asked for, and nothing is to be replayed.
    pub is_listing: bool,
}

impl Question {
    /// The same question without what takes replays.
    #[must_use]
    pub fn without_replays(self) -> Question {
        Question { is_listing: true, ..self }
    }
}

/// A recording and what was understood of it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// The recording.
    pub trace: &'a Trace,
    /// Its lifetimes.
    pub lives: &'a Lifetimes,
    /// Its iterations.
    pub iterations: &'a Iterations,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WhyError {
    /// There are not so many refused requests.
    #[error("{}: there is no refused request {wanted}", last_of(*.count, "--error ", "refused request"))]
    NoSuchError {
        /// The one that was asked about.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// There are not so many steps.
    #[error("{}: there is no step {wanted}", last_of(*.count, "--at step:", "step"))]
    NoSuchStep {
        /// The one that was asked about.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// A replay could not be carried out.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// What to ask about instead, where there are `count` of something.
fn last_of(count: usize, option: &str, what: &str) -> String {
    match count {
        0 => format!(
            "leave {} out, the recording has no {what}",
            option.trim_end_matches([':', ' '])
        ),
        1 => format!("use {option}0, the only {what} of the recording"),
        _ => format!("use {option}0 to {}, the {what}s of the recording", count - 1),
    }
}

/// A step of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The most that was alive in it, in bytes.
    pub peak: u64,
    /// Bytes asked for in it that are alive at the refused request.
    pub left: u64,
}

/// The refused request and all that is told of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// The request.
    pub refusal: Refusal,
    /// The line that asked, if stacks were recorded.
    pub line: Option<String>,
    /// What was alive and held.
    pub moment: Moment,
    /// Idle bytes by whose they are.
    pub idle: Idle,
    /// How much there was to have.
    pub capacity: Capacity,
    /// What stayed behind from step to step.
    pub growth: Option<Growth>,
    /// The line that left the most behind.
    pub growth_line: Option<String>,
    /// What one line made.
    pub spike: Option<Spike>,
    /// What others had of the card.
    pub others: u64,
    /// What would have fitted.
    pub would_fit: Vec<Fit>,
    /// Bytes alive of each category, those with the most first.
    pub categories: Vec<Group>,
    /// The largest share of the activations with which the run would have fitted as it was; None if
    /// that was not asked, or if none that was tried does.
    pub smaller: Option<f64>,
}

/// A device on which a run fits. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Of the device.
    pub capacity: u64,
    /// Of these, what PyTorch's allocator never had.
    pub spare: u64,
}

/// The answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnosis {
    /// Why.
    pub verdict: Verdict,
    /// What is told of the refused request; None if there is none.
    pub told: Option<Told>,
    /// The device that was asked about, if the run fits on it.
    pub fits: Option<Room>,
    /// How many iterations begin before the refused request, or in all: `girih stats` counts these.
    pub iterations: usize,
    /// How many requests were refused.
    pub refused: usize,
    /// The tensors that were asked for, by place.
    pub lines: Vec<Group>,
    /// The steps up to the refused request, or all.
    pub steps: Vec<Step>,
    /// Bytes alive at the most.
    pub live_peak: u64,
    /// True if the recording lacks its beginning.
    pub is_cut: bool,
    /// True if what was held before it is inferred from its events, and so the least that it can
    /// have been.
    pub is_inferred: bool,
    /// Why what was held before it cannot be told, if so.
    pub contradiction: Option<String>,
    /// True if it has call stacks.
    pub has_stacks: bool,
}

/// Runs replays: gives what came of each setting, in their order. May do several at once.
pub type Try<'a> = &'a mut dyn FnMut(&Case, &[Setting]) -> Result<Vec<Fit>, SimulateError>;

/// Runs replays one after another.
///
/// # Errors
/// The first that cannot be carried out.
pub fn one_by_one(case: &Case, settings: &[Setting]) -> Result<Vec<Fit>, SimulateError> {
    settings.iter().map(|setting| case.try_setting(setting)).collect()
}

/// Answers why a run was refused memory. `replay` runs the replays ([`one_by_one`], or several at
/// once).
///
/// # Errors
/// If there is no such error or step, or if a replay cannot be carried out.
pub fn diagnose(
    recorded: Recorded<'_>,
    question: &Question,
    replay: Try<'_>,
) -> Result<Diagnosis, WhyError> {
    let Recorded { trace, lives, iterations } = recorded;
    let earlier = Arc::new(Earlier::of(trace, lives));
    let all = refusal::recorded(trace);
    let was_recorded = !all.is_empty();
    let (mut replayed, mut fits) = (None, None);
    let refusal = match (question.error, question.known.capacity) {
        (Some(wanted), _) => {
            let count = all.len();
            Some(*all.get(wanted).ok_or(WhyError::NoSuchError { wanted, count })?)
        }
        (None, Some(capacity)) if !was_recorded => {
            match refusal::on_a_device_of(trace, lives, &earlier, capacity)? {
                OnDevice::Fits(spare) => fits = Some(Room { capacity, spare }),
                OnDevice::Refuses(found) => replayed = Some(*found),
            }
            replayed.as_ref().map(|found| found.refusal)
        }
        (None, _) => all.last().copied(),
    };
    let end = refusal.map_or(Tick(trace.events.len() as u32), |refusal| refusal.tick);
    let stacks = Stacks::of(trace);
    let phases = Phases::of(trace, lives, iterations);
    let starts = steps::starts(trace, lives, iterations, &stacks, end);
    let categories = Categories::new(lives, &stacks, &phases, starts.first().copied(), end);
    let grouping = Grouping { trace, lives, stacks: &stacks, categories: &categories };
    let run = Run { trace, lives, stacks: &stacks, phases: &phases, starts: &starts };
    let looked = Looked { recorded, earlier: &earlier, grouping: &grouping, run: &run };
    let (live_peak, peak_at) = run.peak_between(Tick(0), Tick(trace.events.len() as u32));
    let requests = match (question.at, refusal) {
        (At::Error, Some(refusal)) => moment::alive(lives, refusal.tick),
        (At::NeverFreed, _) => never_freed(lives),
        (At::Step(wanted), _) => {
            let count = starts.len();
            let start = *starts.get(wanted).ok_or(WhyError::NoSuchStep { wanted, count })?;
            let next = starts.get(wanted + 1).copied().unwrap_or(end);
            moment::alive(lives, Tick(run.peak_between(start, next).1.0 + 1))
        }
        (At::Peak, _) | (At::Error, None) => moment::alive(lives, Tick(peak_at.0 + 1)),
    };
    let told = match refusal {
        Some(refusal) if !question.is_listing => {
            Some(looked.tell(refusal, replayed, &question.known, replay)?)
        }
        _ => None,
    };
    Ok(Diagnosis {
        verdict: told.as_ref().map_or(Verdict::None, |(verdict, _)| *verdict),
        told: told.map(|(_, told)| told),
        fits,
        iterations: iterations_before(iterations, end),
        refused: all.len(),
        lines: grouping.of(&requests, question.by),
        steps: looked.steps(end),
        live_peak,
        is_cut: trace.origin.truncated,
        is_inferred: trace.segments.is_empty(),
        contradiction: earlier.as_ref().as_ref().err().map(ToString::to_string),
        has_stacks: !stacks.is_empty(),
    })
}

/// How many iterations begin before `end`.
fn iterations_before(iterations: &Iterations, end: Tick) -> usize {
    iterations.list.iter().filter(|iteration| iteration.ticks.start < end.0).count()
}

fn never_freed(lives: &Lifetimes) -> Vec<u32> {
    let all = 0..lives.requests.len() as u32;
    all.filter(|&index| lives.requests[index as usize].death == Tick::NEVER).collect()
}

/// What a step needs, in bytes.
struct Demand {
    /// The activations of a whole forward pass.
    activations: f64,
    /// The largest of them.
    largest: f64,
    /// What does not change with the batch.
    rest: f64,
}

impl Demand {
    /// With a batch of this share. The backward pass begins with the gradients of the largest
    /// activations, of what comes out and of what goes in.
    fn of(&self, share: f64) -> f64 {
        self.rest + (self.activations + 2.0 * self.largest) * share
    }
}

/// Bytes of weights, gradients and states of the optimizer.
fn by_category(sized: &[(Category, u64)]) -> [u64; 3] {
    [Category::Weights, Category::Gradients, Category::Optimizer].map(|wanted| {
        sized.iter().filter(|(category, _)| *category == wanted).map(|(_, size)| size).sum()
    })
}

/// A recording with all that was understood of it.
struct Looked<'a> {
    recorded: Recorded<'a>,
    earlier: &'a Arc<Result<Earlier, Contradiction>>,
    grouping: &'a Grouping<'a>,
    run: &'a Run<'a>,
}

impl Looked<'_> {
    /// `replayed` is what a replay held at the refusal, if the recorded run itself was not refused it.
    fn tell(
        &self,
        refusal: Refusal,
        replayed: Option<Replayed>,
        known: &Known,
        replay: Try<'_>,
    ) -> Result<(Verdict, Told), WhyError> {
        let Recorded { trace, lives, .. } = self.recorded;
        let was_recorded = replayed.is_none();
        let (moment, most_held) = match replayed {
            Some(Replayed { moment, most_held, .. }) => (moment, most_held),
            None => (
                moment::at(trace, lives, self.earlier, refusal.tick),
                moment::most_held(trace, self.earlier, refusal.tick),
            ),
        };
        let capacity = capacity::infer(&refusal, &moment, most_held, known);
        let growth = growth::find(lives, &moment.requests, self.run.starts);
        let spike = self.run.spike(&refusal, &moment.requests);
        let facts = Facts {
            refusal: &refusal,
            moment: &moment,
            capacity: &capacity,
            earlier_peak: self.earlier_peak(),
            most_held,
            growth: growth.as_ref(),
            spike: spike.as_ref(),
        };
        let (verdict, others) = (facts.verdict(), facts.taken_by_others());
        let case = Case::new(trace, lives, self.earlier, &refusal, capacity.bytes, was_recorded);
        let would_fit = replay(&case, &SETTINGS)?;
        let smaller = match verdict {
            Verdict::TooMuch | Verdict::OtherProcess => {
                self.smaller(&case, &moment, &refusal, capacity.bytes)?
            }
            _ => None,
        };
        let growth_line = growth.as_ref().and_then(|growth| {
            let groups = self.grouping.of(&growth.requests, By::Line);
            groups.into_iter().next().map(|group| group.place)
        });
        let line = self.grouping.stacks.get(refusal.stack).map(|told| told.line.clone());
        let told = Told {
            line,
            idle: Idle::of(&refusal, &moment),
            categories: self.grouping.of(&moment.requests, By::Category),
            refusal,
            moment,
            capacity,
            growth,
            growth_line,
            spike,
            others,
            would_fit,
            smaller,
        };
        Ok((verdict, told))
    }

    /// The most that was alive in the steps before the last, in blocks.
    fn earlier_peak(&self) -> Option<u64> {
        let (&last, earlier) = self.run.starts.split_last()?;
        let (_, at) = self.run.peak_between(*earlier.first()?, last);
        let alive = moment::alive(self.recorded.lives, Tick(at.0 + 1));
        Some(alive.iter().map(|&at| granted(self.recorded.lives.requests[at as usize].size)).sum())
    }

    /// The largest share of the activations with which the run would have got past the refused
    /// request under PyTorch's own allocator, and through its forward pass, as far as that can be
    /// told.
    fn smaller(
        &self,
        case: &Case,
        moment: &Moment,
        refusal: &Refusal,
        capacity: u64,
    ) -> Result<Option<f64>, SimulateError> {
        let lives = self.recorded.lives;
        let categories = self.grouping.categories.of(&moment.requests);
        let activations = moment.requests.iter().zip(&categories);
        let activations = activations.filter(|(_, of)| **of == Category::Activations);
        let activations = activations.map(|(&at, _)| lives.requests[at as usize].size);
        let (now, largest) =
            activations.fold((0, 0), |(all, most): (u64, u64), size| (all + size, most.max(size)));
        if now == 0 {
            return Ok(None);
        }
        let sizes = moment.requests.iter().map(|&at| lives.requests[at as usize].size);
        let sized: Vec<(Category, u64)> = categories.iter().copied().zip(sizes).collect();
        let (stacks, doing) = (self.grouping.stacks, self.grouping.stacks.doing(refusal.stack));
        let times = batch::still_to_come(lives, stacks, &moment.requests, &categories, doing);
        let [weights, gradients, states] = by_category(&sized);
        // From the second step on the states of the optimizer are there; of Adam two for each weight.
        let unmade = if states > 0 { 0.0 } else { 2.0 * weights as f64 };
        let demand = Demand {
            activations: (now + refusal.size) as f64 * times,
            largest: largest.max(refusal.size) as f64,
            rest: (moment.live - now) as f64 + unmade,
        };
        let there_is = (capacity - capacity / USUAL_IDLE) as f64;
        if advice::still_for_the_optimizer(&[weights, gradients, states]) as f64 > there_is {
            return Ok(None);
        }
        let every: Vec<u32> = (0..lives.requests.len() as u32).collect();
        let mut scaled: Vec<bool> = (self.grouping.categories.of(&every).iter())
            .map(|category| *category == Category::Activations)
            .collect();
        scaled.resize(case.refused() as usize, false);
        let of =
            |index: u32| scaled.get(index as usize).copied().unwrap_or(index == case.refused());
        for share in advice::SHARES.into_iter().filter(|&share| demand.of(share) <= there_is) {
            if case.fits_with(&SETTINGS[0], &of, share)? {
                return Ok(Some(share));
            }
        }
        Ok(None)
    }

    /// Each step up to `end`.
    fn steps(&self, end: Tick) -> Vec<Step> {
        let lives = self.recorded.lives;
        let starts = self.run.starts;
        let mut steps = vec![Step { peak: 0, left: 0 }; starts.len()];
        let mut live = 0_u64;
        let mut now = None;
        for index in 0..end.index().min(lives.request_of.len()) {
            if starts.get(now.map_or(0, |now| now + 1)).is_some_and(|start| start.index() <= index)
            {
                now = Some(now.map_or(0, |now| now + 1));
            }
            let request = lives.request_of[index];
            if index == 0 {
                let older = &lives.requests[..lives.older];
                live = older.iter().map(|life| life.size).sum();
            }
            if request != Lifetimes::NONE {
                let life = &lives.requests[request as usize];
                if life.birth.index() == index && request as usize >= lives.older {
                    live += life.size;
                    if life.death >= end
                        && let Some(now) = now
                    {
                        steps[now].left += life.size;
                    }
                } else if life.death.index() == index {
                    live = live.saturating_sub(life.size);
                }
            }
            if let Some(now) = now {
                steps[now].peak = steps[now].peak.max(live);
            }
        }
        steps
    }
}
