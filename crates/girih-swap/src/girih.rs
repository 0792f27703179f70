//! Girih's own schedules.
//!
//! Which tensors go is searched for: several covers of what is above the budget, the best of them taken apart and
//! completed anew where it waits, until the step meets the bound or enough was tried. When they come back follows
//! from the room there is (`fetch`), when their bytes are free from who needs them
//! (`settle`). At the end whatever can stay without cost stays.
//!
//! A tensor that could not hide its own copies in its idle time is the last to be taken, so the last layers stay.

use girih_trace::generate::{Chance, Rng};

use crate::bound::bound;
use crate::coarse::Coarse;
use crate::cover::{By, Cover};
use crate::defer::defer;
use crate::fetch::{Fetches, freed};
use crate::links::Links;
use crate::method::Budgets;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::settle::{Item, Items, settle};
use crate::simulate::{simulate, starts_us};
use crate::step::Step;

/// A schedule within the budgets; within the least that can be kept, if the GPU's cannot.
pub fn plan(step: &Step, links: &Links, budgets: &Budgets) -> Schedule {
    plan_with(step, links, budgets, &Settings::default())
}

/// Likewise, by other numbers than the default ones.
pub fn plan_with(step: &Step, links: &Links, budgets: &Budgets, settings: &Settings) -> Schedule {
    plan_and_bound(step, links, budgets, settings).0
}

/// Likewise, with what [`bound`] says of the budget, or of the least that can be kept: a search asks for it.
pub(crate) fn plan_and_bound(
    step: &Step,
    links: &Links,
    budgets: &Budgets,
    settings: &Settings,
) -> (Schedule, f64) {
    let gpu = budgets.gpu.max(step.least_budget().0);
    if step.peak() <= gpu {
        return (Schedule::default(), step.us());
    }
    let budgets = Budgets { gpu, host: budgets.host };
    let bound_us = bound(step, links, gpu);
    let coarse = Coarse::of(step, |_| true);
    let planned = Search::new(&coarse.step, links, &budgets, settings, bound_us).run();
    let refine = |planned| coarse.refine(step, gpu, &planned);
    (planned.map_or_else(Schedule::default, refine), bound_us)
}

/// One choice of gaps, and what it costs.
#[derive(Clone)]
struct Choice {
    gaps: Vec<bool>,
    /// For each gap, how many times as fast its copy out is taken to be ([`Settings::hastes`]).
    hastes: Vec<f64>,
    /// When operators begin, as it was supposed to say when copies out have ended.
    starts: Vec<f64>,
    schedule: Schedule,
    /// Bytes above the host's budget, then microseconds, then bytes copied.
    cost: (u64, f64, u64),
}

impl Choice {
    /// No longer step is better. `level`: [`Settings::level`].
    fn us_max(&self, level: f64) -> f64 {
        if self.cost.0 > 0 { f64::INFINITY } else { self.cost.1 * level }
    }

    fn is_better_than(&self, other: &Choice, level: f64) -> bool {
        let ((host, us, bytes), (other_host, other_us, other_bytes)) = (self.cost, other.cost);
        let is_level = us <= other_us * level;
        host < other_host
            || host == other_host && (us * level < other_us || is_level && bytes < other_bytes)
    }
}

struct Search<'a> {
    step: &'a Step,
    links: &'a Links,
    budgets: &'a Budgets,
    settings: &'a Settings,
    bound_us: f64,
    starts: Vec<f64>,
    /// The gaps in order of their `before`.
    by_use: Vec<u32>,
    cover: Cover<'a>,
    /// Bytes that are kept free for what comes back: from none to all that could be free.
    headrooms: Vec<u64>,
    /// Of these every so many is tried at first: of long steps fewer, so that they are a part of the work.
    headrooms_apart: usize,
    rng: Rng,
    tries: u64,
    /// How often the first choice is gone on from.
    searches: u64,
}

impl<'a> Search<'a> {
    fn new(
        step: &'a Step,
        links: &'a Links,
        budgets: &'a Budgets,
        settings: &'a Settings,
        bound_us: f64,
    ) -> Search<'a> {
        // What could be free where memory is short, if all that is idle were away.
        let rest = step.load.iter().zip(step.idle()).filter(|(load, _)| **load > budgets.gpu);
        let least = rest.map(|(load, idle)| load - idle).min().unwrap_or(budgets.gpu);
        let free = budgets.gpu.saturating_sub(least);
        let work = (step.ops.len() + step.gaps.len()).max(1) as u64;
        let mut by_use: Vec<u32> = (0..step.gaps.len() as u32).collect();
        by_use.sort_by_key(|&gap| step.gaps[gap as usize].before);
        let tries = settings.tries_max.min(settings.work_max / work);
        let searches = settings.work_max / (work * tries).max(1);
        let firsts = settings.headrooms.len() * By::ALL.len() * settings.hastes.len();
        let first_max = (settings.work_max / settings.firsts_part.max(1)).max(1);
        let apart = (work * firsts as u64).div_ceil(first_max).max(1);
        Search {
            step,
            links,
            budgets,
            settings,
            bound_us,
            starts: step.starts(),
            by_use,
            cover: Cover::new(step, links, budgets.gpu),
            headrooms: settings.headrooms.iter().map(|eighths| free / 8 * eighths).collect(),
            headrooms_apart: apart as usize,
            rng: Rng::new(1),
            tries,
            searches: searches.min(settings.searches_max),
        }
    }

    fn run(mut self) -> Option<Schedule> {
        let mut best: Option<Choice> = None;
        for &headroom in self.headrooms.iter().step_by(self.headrooms_apart) {
            for by in By::ALL {
                let mut gaps = vec![false; self.step.gaps.len()];
                self.cover.complete(&mut gaps, by, headroom, || 0.0);
                for &haste in &self.settings.hastes {
                    let hastes = vec![haste; gaps.len()];
                    self.keep(&mut best, self.judge(&gaps, &hastes, None));
                }
            }
        }
        let first = best?;
        let mut best = first.clone();
        for _ in 0..self.searches {
            let mut own = first.clone();
            for _ in 0..self.tries {
                if self.is_done(&own) {
                    break;
                }
                let (gaps, hastes) = self.neighbour(&own);
                if let Some(other) = self.judge(&gaps, &hastes, Some(&own)) {
                    own = other;
                }
            }
            if own.is_better_than(&best, self.settings.level) {
                best = own;
            }
            if self.is_done(&best) {
                break;
            }
        }
        let schedule = self.prune(best).schedule;
        let us = simulate(self.step, self.links, &schedule).step_us;
        Some(match us <= self.bound_us * self.settings.close {
            true => schedule,
            false => {
                // Each part takes two runs.
                let parts_max = self.tries / self.settings.put_off_part.max(1);
                let parts = (self.settings.put_off_parts as u64).min(parts_max);
                defer(self.step, self.links, schedule, parts as usize)
            }
        })
    }

    fn is_done(&self, choice: &Choice) -> bool {
        choice.cost.0 == 0 && choice.cost.1 <= self.bound_us * self.settings.close
    }

    /// Another choice: some of its gaps are left out, some others come in, and the rest is covered anew. Now and then there
    /// is more or less haste where that is.
    fn neighbour(&mut self, best: &Choice) -> (Vec<bool>, Vec<f64>) {
        let (mut gaps, mut hastes) = (best.gaps.clone(), best.hastes.clone());
        let haste = match self.rng.one_in(4) {
            true => Some(one_of(&mut self.rng, &self.settings.hastes)),
            false => None,
        };
        let us = self.us();
        let middle = us * self.rng.below(1 << 20) as f64 / (1 << 20) as f64;
        let width = us / (2 << self.rng.below(6)) as f64;
        let one_in = 1 + self.rng.below(8);
        for (index, gap) in self.step.gaps.iter().enumerate() {
            let begin = self.starts[gap.after as usize + 1];
            let end = self.starts[gap.before as usize];
            let is_near = (begin - middle).abs() < width || (end - middle).abs() < width;
            if is_near && let Some(haste) = haste {
                hastes[index] = haste;
            }
            if is_near && self.rng.one_in(one_in) {
                gaps[index] = !gaps[index] && self.rng.one_in(4);
            }
        }
        let by = one_of(&mut self.rng, &By::ALL);
        let noise = one_of(&mut self.rng, &self.settings.noises);
        let headroom = one_of(&mut self.rng, &self.headrooms);
        let rng = &mut self.rng;
        let noise = || noise * rng.below(1 << 20) as f64 / (1 << 20) as f64;
        self.cover.complete(&mut gaps, by, headroom, noise);
        (gaps, hastes)
    }

    /// What a choice costs. None if it does not keep the budget of the GPU, or if there is a `rival` and it is no better.
    /// The rival's times serve to say when copies out have ended: most of what is tried differs little from it.
    fn judge(&self, gaps: &[bool], hastes: &[f64], rival: Option<&Choice>) -> Option<Choice> {
        let chosen: Vec<u32> = (0..gaps.len() as u32).filter(|&gap| gaps[gap as usize]).collect();
        // By the times without waits: with them, what comes late would always seem to be in time.
        let fetches = Fetches::new(self.step, self.links, &chosen, &self.by_use, &self.starts);
        let stall_max =
            rival.map_or(f64::INFINITY, |rival| rival.us_max(self.settings.level) - self.us());
        let mut best: Option<Choice> = None;
        let mut starts = rival.map_or(&self.starts, |rival| &rival.starts).clone();
        for _ in 0..self.settings.rounds {
            let freed = freed(self.step, self.links, &chosen, hastes, &starts);
            let items = fetches.within(self.budgets.gpu, &freed);
            let Ok(schedule) = settle(self.step, self.budgets.gpu, &items) else { break };
            let by_use = by_use(&schedule, &items);
            let Some(own) = starts_us(self.step, self.links, &schedule, &by_use, stall_max) else {
                break;
            };
            let choice = self.choice(hastes, schedule, starts, own[self.step.ops.len()]);
            if rival.is_some_and(|rival| !choice.is_better_than(rival, self.settings.level)) {
                break;
            }
            let is_done = choice.cost.1 <= self.bound_us * self.settings.close;
            self.keep(&mut best, Some(choice));
            if is_done {
                break;
            }
            starts = own;
        }
        best
    }

    fn choice(&self, hastes: &[f64], schedule: Schedule, starts: Vec<f64>, us: f64) -> Choice {
        let bytes = schedule.bytes(self.step);
        // No more than all of it is on the host at a time.
        let host = self.budgets.host.filter(|&host| host < bytes);
        let above = host.map_or(0, |host| schedule.host_peak(self.step).saturating_sub(host));
        let mut gaps = vec![false; hastes.len()];
        schedule.away.iter().for_each(|away| gaps[away.gap as usize] = true);
        Choice { gaps, hastes: hastes.to_vec(), starts, schedule, cost: (above, us, bytes) }
    }

    /// Microseconds of the step when nothing waits.
    fn us(&self) -> f64 {
        self.starts[self.step.ops.len()]
    }

    fn keep(&self, best: &mut Option<Choice>, other: Option<Choice>) {
        let is_better = |it: &Choice, best: &Choice| it.is_better_than(best, self.settings.level);
        if let Some(other) = other
            && best.as_ref().is_none_or(|best| is_better(&other, best))
        {
            *best = Some(other);
        }
    }

    /// Lets stay what can stay: the largest first.
    fn prune(&self, mut best: Choice) -> Choice {
        let mut order: Vec<u32> = best.schedule.away.iter().map(|away| away.gap).collect();
        order.sort_by_key(|&gap| (std::cmp::Reverse(self.step.bytes(gap)), gap));
        for gap in order.into_iter().take((self.tries / self.settings.prune_part.max(1)) as usize) {
            let mut gaps = best.gaps.clone();
            gaps[gap as usize] = false;
            if let Some(other) = self.judge(&gaps, &best.hastes, Some(&best)) {
                best = other;
            }
        }
        best
    }
}

/// The entries of a schedule in the order in which what they were made of is used.
fn by_use(schedule: &Schedule, items: &Items) -> Vec<u32> {
    let mut entries = (0u32..).zip(&schedule.away).peekable();
    let entry = |item: &Item| entries.next_if(|(_, away)| away.gap == item.gap).map(|(at, _)| at);
    let entry_of: Vec<Option<u32>> = items.list.iter().map(entry).collect();
    items.order.iter().filter_map(|&at| entry_of[at as usize]).collect()
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}
