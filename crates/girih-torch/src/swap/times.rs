//! How long the operators of a sequence take, and how the policies did that were planned for it.

use std::sync::Arc;

use girih_runtime::TimeStamp;
use girih_swap::Links;

use super::links::{Known, difference};
use super::policy::Policy;
use super::report::SequenceReport;
use super::tried::{Took, Tried};
use super::tuning::Tuning;

/// Steps of a sequence at most that are simulated as they were.
const CHECKED_MAX: u64 = 64;

/// Policies beside the one that is followed that are remembered: each with what it was made of.
const OTHERS_MAX: usize = 4;

/// How long the operators of a step took, and what came behind the last. Microseconds.
#[derive(Debug)]
pub(super) struct Taken {
    /// The operators at which the time was taken.
    pub(super) at: Vec<u32>,
    /// Without what was waited for.
    pub(super) us: Vec<f64>,
    /// And with it.
    pub(super) waited: Vec<f64>,
    /// The time was taken at few points, for nothing was to be planned.
    pub(super) is_coarse: bool,
}

/// How long the operators of a sequence take.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The operators at which the time was taken, and whether these were few.
    taken_at: Vec<u32>,
    is_coarse: bool,
    /// How a group's time is divided among its operators is as it was before it became shorter.
    is_scaled: bool,
    /// The shortest that was seen of each, in microseconds.
    us: Vec<f64>,
    /// Of steps whose plan has stayed: how many there were, and the shortest of them without waits.
    since: u32,
    whole: f64,
    /// The most bytes that were in use or away during each operator, in all steps.
    pub(super) load: Vec<u64>,
    /// The times with what was waited for, in the step that was seen last.
    waited: Vec<f64>,
    /// How often it was planned.
    plans: u32,
    /// The next plan leaves a part of the room free; and whether one did.
    is_roomy: bool,
    was_roomy: bool,
    /// The lake found no places for steps of one that leaves none.
    needs_room: bool,
    /// Plans in a row, up to the last, that made the step no shorter.
    in_vain: u32,
    /// No more are tried, for the views that they bring hold steps up; and whether one of them has come to rest since.
    is_enough: bool,
    has_rested: bool,
    /// One more is made, of the times that are seen at rest.
    is_due: bool,
    /// The links that the last plan was made with, and the sum of the times without waits.
    made_with: Option<(Links, f64)>,
    /// Plans that were made because these had changed, and for nothing else.
    again: u32,
    /// What has stayed so far: no policy at first.
    best: Tried,
    /// Others that were tried, no policy among them: [`OTHERS_MAX`] that may have the shortest steps.
    others: Vec<Tried>,
    /// The policy that is tried now.
    last: Option<Tried>,
    /// What a step took under the policy that had stayed when the last one was taken up; and what steps have taken more
    /// since, in all. Microseconds.
    against: f64,
    spent: f64,
    /// What the step that was seen last has followed.
    followed: Option<u32>,
    /// Steps in which nothing else was tried, since what has stayed was last compared with the other.
    stayed: u32,
    /// The lake found no places in which they come to rest.
    is_restless: bool,
    /// Steps in a row, up to the last, that had room for everything.
    fitting: u32,
    /// Steps whose times were read.
    steps: u64,
    /// Steps that were simulated as they were; what they took by that, and as measured.
    checked: u64,
    checked_us: [f64; 2],
    /// What a step takes under the policy with the shortest one, by the times that are known now: [`Policy::us`].
    promised: [f64; 3],
    /// And by these links.
    promised_by: Links,
}

impl Times {
    /// A step was seen. A coarse one says of groups of operators what they take together: of another that is known
    /// those groups become shorter that took less, each operator of one by the same part.
    pub(super) fn see(&mut self, taken: Taken) {
        let Taken { at: taken_at, us, waited, is_coarse } = taken;
        self.steps += 1;
        if is_coarse && !self.is_coarse && self.us.len() == us.len() {
            let whole = us.iter().sum();
            self.whole = if self.since > 0 { self.whole.min(whole) } else { whole };
            self.since = self.since.saturating_add(1);
            self.is_scaled |= scale(&mut self.us, &taken_at, &us, true);
            scale(&mut self.waited, &taken_at, &waited, false);
            return;
        }
        self.is_coarse = is_coarse;
        if self.taken_at == taken_at && !self.is_scaled {
            self.us.iter_mut().zip(&us).for_each(|(least, us)| *least = least.min(*us));
        } else {
            // Means over other operators: the shorter of two such would be the time of neither.
            (self.taken_at, self.us, self.is_scaled) = (taken_at, us, false);
        }
        self.waited = waited;
    }

    /// A step had room for everything.
    pub(super) fn see_fitting(&mut self) {
        self.fitting = self.fitting.saturating_add(1);
    }

    /// True if no policy is followed: the last steps had room for everything.
    pub(super) fn rests(&self, tuning: &Tuning) -> bool {
        self.fitting >= tuning.remembered
    }

    /// So many bytes were in use or away during each operator, more than there is room for.
    pub(super) fn see_load(&mut self, load: &[u64]) {
        self.fitting = 0;
        self.load.resize(load.len(), 0);
        self.load.iter_mut().zip(load).for_each(|(most, load)| *most = (*most).max(*load));
    }

    /// The times that the next plan is made of. Every other one takes the waits of the last for work: copies begin
    /// earlier then. That lanes wait for each other, or a host falls behind, is in no plan's times.
    pub(super) fn next(&mut self, tuning: &Tuning, links: &Links) -> &[f64] {
        self.is_roomy = self.wants_room(tuning) || self.best.is_roomy();
        self.again += u32::from(self.is_exhausted(tuning) && !self.wants_room(tuning));
        self.was_roomy |= self.is_roomy;
        self.is_due = false;
        self.made_with = Some((*links, self.sum()));
        self.plans += 1;
        if self.plans.is_multiple_of(2) { &self.waited } else { &self.us }
    }

    /// What has stayed takes longer than it may, because views are made in each of its steps: with some room they may end.
    fn wants_room(&self, tuning: &Tuning) -> bool {
        let is_held_up = self.best.is_held_up(tuning.held_up);
        !self.was_roomy
            && !self.has_rested
            && self.last.is_none()
            && self.best.is_proven()
            && is_held_up
    }

    /// The part of the room that the plan leaves free that is made next, or now.
    pub(super) fn spare(&self, tuning: &Tuning, room: u64) -> u64 {
        if self.is_roomy { room / tuning.spare_part } else { 0 }
    }

    /// The shortest times of the operators without waits, and of what comes behind them. Microseconds.
    pub(super) fn us(&self) -> &[f64] {
        &self.us
    }

    /// The same of one step. Each operator was the shortest in another step, and clocks go up and down; so all of
    /// them together are shorter than any step. Once a plan has stayed they are what the shortest of its steps was.
    pub(super) fn told(&self, tuning: &Tuning) -> Vec<f64> {
        let sum = self.sum();
        let part = if sum > 0.0 { self.told_sum(tuning) / sum } else { 1.0 };
        self.us.iter().map(|us| us * part).collect()
    }

    fn told_sum(&self, tuning: &Tuning) -> f64 {
        match self.since >= tuning.steps_judged {
            true => self.whole.max(self.sum()),
            false => self.sum(),
        }
    }

    /// The step without waits.
    fn sum(&self) -> f64 {
        self.us.iter().sum()
    }

    /// A policy is taken up, unless what has stayed is at rest and the step is not said to become shorter: to try it has
    /// views made anew. False if it is not.
    pub(super) fn tries(&mut self, policy: &Arc<Policy>, tuning: &Tuning) -> bool {
        let at_rest = self.best.us().filter(|_| self.is_enough && self.best.is_proven());
        let is_held_up = self.best.is_held_up(tuning.held_up);
        let least = at_rest.filter(|_| !is_held_up).unwrap_or(f64::INFINITY);
        if policy.us[1] >= least * (1.0 - tuning.rested_gain) {
            return false;
        }
        (self.since, self.stayed, self.is_restless) = (0, 0, false);
        (self.against, self.spent) = (self.best.us().unwrap_or(f64::INFINITY), 0.0);
        self.last = Some(Tried::of(Arc::clone(policy), self.is_roomy));
        true
    }

    /// One more plan is wanted. True if the times of single operators are first to be seen at rest: while views held the
    /// steps up they were others.
    pub(super) fn waits_for_times(&mut self, tuning: &Tuning) -> bool {
        let is_held_up = self.best.is_held_up(tuning.held_up);
        self.is_due = self.is_enough && !is_held_up && self.last.is_none();
        self.is_due && self.is_scaled
    }

    /// A step that followed the policy of this number took so long, of which the driver took so much for memory, and
    /// had so many bytes in use or away at most. One that followed another than the step before it finds what that one has
    /// left, and does not count.
    pub(super) fn note(&mut self, number: u32, us: f64, driver_us: f64, peak: u64) {
        let counts = self.followed.replace(number) == Some(number);
        self.spent += us - self.against;
        let tried = std::iter::once(&mut self.best).chain(&mut self.last);
        if let Some(tried) = { tried }.find(|tried| tried.number() == number) {
            tried.note(counts.then_some(Took { us, driver_us }), peak);
        }
    }

    /// Judges the policy that is tried, once it was followed often enough. `is_restless` says that the lake found no places
    /// in which steps like the last come to rest. True if none is tried any more.
    pub(super) fn judge(&mut self, tuning: &Tuning, is_restless: bool) -> bool {
        if self.last.as_ref().is_some_and(|last| last.steps() < tuning.steps_judged) {
            return false;
        }
        if let Some(last) = self.last.take() {
            // What smaller or larger steps took says nothing of it; then the one that knows more of them stays.
            let is_like = !self.best.is_known() || self.best.is_like(&last);
            let (hope, least) = (last.hope_us(), self.best.hope_us());
            let is_better = is_like && hope < least * (1.0 - tuning.better);
            self.in_vain = if is_better { 0 } else { self.in_vain + 1 };
            // The same with a policy as without one is rather with it.
            if !is_like || hope <= least {
                let before = std::mem::replace(&mut self.best, last);
                self.promise();
                self.set_aside(before);
            } else {
                self.set_aside(last);
            }
            self.is_enough |=
                self.plans >= tuning.plans_held_up && self.best.is_held_up(tuning.held_up);
        }
        self.is_restless |= is_restless;
        self.prove(tuning);
        true
    }

    /// What was tried is not followed any more.
    fn set_aside(&mut self, tried: Tried) {
        if !tried.is_known() {
            return;
        }
        // What larger or smaller steps took is not compared with these.
        self.others.retain(|other| other.is_like(&tried));
        self.others.push(tried);
        self.others.sort_by(|one, other| one.hope_us().total_cmp(&other.hope_us()));
        self.others.truncate(OTHERS_MAX);
    }

    /// What has stayed must keep what it seemed to promise, now that nothing else is tried and the lake has had the time to
    /// come to rest: if its steps took longer than another's may take, the other is followed, and so on until one stands.
    ///
    /// Where it is held up all the same the lake does not come to rest, and need not under the others either. Then these are
    /// taken as they were, once it was tried what room does; so are those that leave none where one of them found no
    /// places. Where it is at rest the others would be too, and take more than was promised of them by the part by which it
    /// does, though not more than they took.
    fn prove(&mut self, tuning: &Tuning) {
        self.stayed = if self.is_exhausted(tuning) { self.stayed + 1 } else { 0 };
        let judged = tuning.steps_judged;
        let has_come_to_rest = self.is_enough
            && !self.best.is_proven()
            && self.best.is_at_rest(tuning.held_up, judged as usize);
        if has_come_to_rest {
            self.has_rested = true;
            self.best.forget_before(judged as usize);
        }
        let is_short = self.is_restless || has_come_to_rest || self.is_too_dear(tuning);
        if self.stayed <= if is_short { judged } else { tuning.steps_proven } {
            return;
        }
        self.needs_room |= self.is_restless && !self.best.is_roomy();
        (self.stayed, self.is_restless) = (0, false);
        self.best.prove();
        if self.wants_room(tuning) {
            return;
        }
        let is_held_up = self.best.is_held_up(tuning.held_up);
        let longer = self.best.us().zip(self.best.promised_us()).map_or(0.0, |(us, due)| us / due);
        let of = |other: &Tried| {
            let us = other.us().unwrap_or(f64::INFINITY);
            let at_rest = other.hope_us().max(longer * other.promised_us().unwrap_or(0.0));
            if is_held_up || self.needs_room && !other.is_roomy() { us } else { at_rest.min(us) }
        };
        let most = of(&self.best) / (1.0 + tuning.better);
        let likely = self.others.iter().enumerate();
        let likely = likely.filter(|(_, other)| other.is_like(&self.best) && of(other) < most);
        let shortest = likely.min_by(|(_, one), (_, other)| of(one).total_cmp(&of(other)));
        let Some(at) = shortest.map(|(at, _)| at) else {
            return self.others.clear();
        };
        self.against = f64::INFINITY;
        let other = self.others.remove(at);
        let before = std::mem::replace(&mut self.best, other);
        if self.best.is_proven() {
            self.others.clear();
        } else {
            self.set_aside(before);
        }
        self.best.begin_anew();
        self.promise();
    }

    /// The steps of what has stayed were so much longer than those of the one before it that what it promises would not
    /// make that good for long.
    fn is_too_dear(&self, tuning: &Tuning) -> bool {
        let saved = self.best.promised_us().map_or(0.0, |us| (self.against - us).max(0.0));
        self.best.is_held_up(tuning.held_up) && self.spent > f64::from(tuning.made_good) * saved
    }

    /// What a step takes is what was promised when the policy that stays was planned.
    fn promise(&mut self) {
        self.promised = self.best.promised();
        self.promised_by = self.best.policy().map_or_else(Links::default, |policy| policy.links);
    }

    /// True if it is not planned again. Where the links turned out to be others than those of the last plan, or its
    /// operators to take less time, it is, some times at most: what is measured may go up and down for ever.
    pub(super) fn is_settled(&self, tuning: &Tuning, links: &Known) -> bool {
        self.last.is_none()
            && self.is_exhausted(tuning)
            && !(self.again < tuning.again_max && self.has_changed(tuning, links))
            && !self.wants_room(tuning)
    }

    /// What the last plan was made with is not what is known now, or what has stayed is not as good as can be. While views
    /// hold steps up nothing of that can be said.
    fn has_changed(&self, tuning: &Tuning, links: &Known) -> bool {
        let Some((own, us)) = &self.made_with else { return false };
        if self.is_enough && self.best.is_held_up(tuning.held_up) {
            return false;
        }
        if self.is_due {
            return true;
        }
        let is_shorter = self.sum() < us * (1.0 - tuning.times_differ);
        difference(&links.planned, own) > tuning.links_differ
            || is_shorter && self.may_gain(tuning, &links.now)
            || self.is_enough && self.is_far_from_bound(tuning, &links.now)
    }

    /// What has stayed is at rest, and takes longer than any schedule must, by what is known now.
    fn is_far_from_bound(&self, tuning: &Tuning, links: &Links) -> bool {
        let [_, _, bound] = self.promised;
        let is_told = self.outdated(tuning, links).is_none_or(|policy| !policy.can_reckon());
        let us = self.best.us().filter(|_| is_told && self.best.is_proven());
        us.is_some_and(|us| bound < us * (1.0 - tuning.rested_gain))
    }

    /// True if what has stayed has only just been taken up once more.
    pub(super) fn is_anew(&self) -> bool {
        self.last.is_none() && self.best.steps() == 0
    }

    /// False if the policy that has stayed is as good as any, by the times that are known now.
    fn may_gain(&self, tuning: &Tuning, links: &Links) -> bool {
        let [_, swapped, bound] = self.promised;
        let can_reckon = self.best.policy().is_some_and(|policy| policy.can_reckon());
        let is_told = can_reckon && self.outdated(tuning, links).is_none();
        // What is not told yet will be after the next step.
        !can_reckon || is_told && swapped > bound * (1.0 + tuning.better)
    }

    /// Further plans are no use, if the links are what they were.
    fn is_exhausted(&self, tuning: &Tuning) -> bool {
        self.is_enough || self.in_vain >= tuning.in_vain_max || self.plans >= tuning.plans_max
    }

    /// The policy that is tried, or else the one with the shortest step; none if steps without one are shorter.
    pub(super) fn policy(&self) -> Option<&Arc<Policy>> {
        self.last.as_ref().unwrap_or(&self.best).policy()
    }

    /// What a step takes under [`Times::policy`]: see [`Policy::us`].
    pub(super) fn promised(&self) -> [f64; 3] {
        let tried = self.last.as_ref().and_then(Tried::policy);
        tried.map_or(self.promised, |policy| policy.us)
    }

    /// The policy that has stayed, if its steps or the links are known by now to take other times than when it was promised
    /// what it is.
    pub(super) fn outdated(&self, tuning: &Tuning, links: &Links) -> Option<&Arc<Policy>> {
        let differs = (self.told_sum(tuning) - self.promised[0]).abs();
        let is_other = differs > self.promised[0] * tuning.times_told
            || difference(links, &self.promised_by) > tuning.times_told;
        self.best.policy().filter(|_| is_other && self.last.is_none())
    }

    /// What a step takes under the policy of this number, by the times that are known now and on these links.
    pub(super) fn reckoned(&mut self, number: u32, us: [f64; 3], links: Links) {
        if self.best.number() == number {
            (self.promised, self.promised_by) = (us, links);
        }
    }

    /// A step that followed a policy takes so long by the simulator, and as measured.
    pub(super) fn checked(&mut self, simulated: f64, measured: f64) {
        self.checked += 1;
        self.checked_us[0] += simulated;
        self.checked_us[1] += measured;
    }

    /// The policy of that number, if a step that follows it is to be simulated: another has followed it before, and not
    /// many of the sequence were.
    pub(super) fn to_check(&self, number: u32) -> Option<&Arc<Policy>> {
        let tried = self.last.as_ref().unwrap_or(&self.best);
        // Its first step finds what another has left.
        let is_known = tried.is_known() && tried.number() == number;
        let policy = tried.policy().filter(|policy| policy.can_reckon());
        policy.filter(|_| is_known && self.checked < CHECKED_MAX)
    }

    /// Of this sequence, for a report.
    pub(super) fn report(&self, tuning: &Tuning, links: &Known) -> SequenceReport {
        let [step_us, step_us_swapped, step_us_bound] = self.promised();
        SequenceReport {
            operators: self.us.len().saturating_sub(1) as u64,
            steps: self.steps,
            plans: u64::from(self.plans),
            has_policy: self.policy().is_some(),
            settled: self.is_settled(tuning, links),
            measured_us: self.best.us(),
            step_us,
            step_us_swapped,
            step_us_bound,
            checked: self.checked,
            checked_us: self.checked_us[0],
            checked_measured_us: self.checked_us[1],
        }
    }
}

/// Groups of operators take together what they take in `others`, that begin at `at` and end with the step: each operator
/// the same part of it as before. Only those that took less, or all. True if one took less.
fn scale(us: &mut [f64], at: &[u32], others: &[f64], only_shorter: bool) -> bool {
    let mut is_shorter = false;
    // Of the last group it is not known how much of it comes behind the last operator.
    let begins = [0].into_iter().chain(at.iter().map(|at| *at as usize)).chain([us.len()]);
    let begins: Vec<usize> = begins.map(|at| at.min(us.len())).collect();
    for pair in begins.windows(2).filter(|pair| pair[0] < pair[1]) {
        let group = pair[0]..pair[1];
        let (sum, other): (f64, f64) =
            (us[group.clone()].iter().sum(), others[group.clone()].iter().sum());
        is_shorter |= other < sum;
        if other < sum || !only_shorter {
            let each = other / group.len() as f64;
            let part = other / sum;
            us[group].iter_mut().for_each(|us| *us = if sum > 0.0 { *us * part } else { each });
        }
    }
    is_shorter
}

/// Microseconds of each of `count` operators without these waits, by the points in time that were taken; none if the
/// work is not done yet, or no time was taken.
pub(super) fn times_of(
    count: usize,
    stamps: &[(u32, TimeStamp)],
    waits: &[(u32, f64)],
    between: &mut dyn FnMut(TimeStamp, TimeStamp) -> Option<f64>,
) -> Option<Vec<f64>> {
    let (last, _) = *stamps.last()?;
    // Up to each operator.
    let mut waited = vec![0.0; count + 1];
    for &(at, us) in waits {
        waited[(at as usize + 1).min(count)] += us;
    }
    let mut sum = 0.0;
    for waited in &mut waited {
        sum += *waited;
        *waited = sum;
    }
    let mut us = vec![0.0; count];
    for pair in stamps.windows(2) {
        let [(from, begin), (to, end)] = *pair else { continue };
        let (first, last) = (from as usize, to as usize);
        let waited = waited[last] - waited[first];
        let each = (between(begin, end)? - waited).max(0.0) / f64::from((to - from).max(1));
        us[first..last].fill(each);
    }
    // What comes after the last point takes as long as an operator did in the mean.
    let mean = us.iter().sum::<f64>() / f64::from(last.max(1));
    us[last as usize..].fill(mean);
    Some(us)
}

#[cfg(test)]
mod tests;
