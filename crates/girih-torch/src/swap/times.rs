//! How long the operators of a sequence take, and how the policies did that were planned for it.

use std::sync::Arc;

use girih_runtime::TimeStamp;

use super::step::Policy;

/// Steps of a policy before it is judged. The first does not count: what it finds is what another policy has left.
const STEPS_JUDGED: u32 = 3;

/// How long the operators of a sequence take.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The operators at which the time was taken.
    taken_at: Vec<u32>,
    /// The shortest that was seen of each, in microseconds.
    us: Vec<f64>,
    /// The most bytes that were in use or away during each operator, in all steps.
    pub(super) load: Vec<u64>,
    /// The times with what was waited for, in the step that was seen last.
    waited: Vec<f64>,
    /// How often it was planned.
    pub(super) plans: u32,
    /// What was planned, and how it did.
    tried: Vec<Tried>,
}

/// A policy that steps have followed.
#[derive(Debug)]
struct Tried {
    policy: Arc<Policy>,
    /// Steps that have followed it from their beginning to their end, and microseconds of the shortest but for the
    /// first.
    steps: u32,
    us: f64,
}

impl Times {
    /// A step was seen: where the time was taken, and microseconds of each operator without waits and with them.
    pub(super) fn see(&mut self, taken_at: Vec<u32>, us: Vec<f64>, waited: Vec<f64>) {
        if self.taken_at == taken_at {
            self.us.iter_mut().zip(&us).for_each(|(least, us)| *least = least.min(*us));
        } else {
            // Means over other operators: the shorter of two such would be the time of neither.
            (self.taken_at, self.us) = (taken_at, us);
        }
        self.waited = waited;
    }

    /// So many bytes were in use or away during each operator.
    pub(super) fn see_load(&mut self, load: &[u64]) {
        self.load.resize(load.len(), 0);
        self.load.iter_mut().zip(load).for_each(|(most, load)| *most = (*most).max(*load));
    }

    /// The times that the next plan is made of. Every other one takes the waits of the last for work: copies begin
    /// earlier then. That lanes wait for each other, or a host falls behind, is in no plan's times.
    pub(super) fn next(&mut self) -> &[f64] {
        self.plans += 1;
        if self.plans.is_multiple_of(2) { &self.waited } else { &self.us }
    }

    /// A policy is taken up.
    pub(super) fn tries(&mut self, policy: &Arc<Policy>) {
        self.tried.push(Tried { policy: Arc::clone(policy), steps: 0, us: f64::INFINITY });
    }

    /// A step that followed a policy took so long.
    pub(super) fn note(&mut self, number: u32, us: f64) {
        if let Some(tried) = self.tried.iter_mut().find(|tried| tried.policy.number == number) {
            tried.steps += 1;
            tried.us = if tried.steps > 1 { tried.us.min(us) } else { tried.us };
        }
    }

    /// True if nothing more is planned for it, and one has stayed.
    pub(super) fn is_settled(&self, plans_max: u32) -> bool {
        self.plans >= plans_max && self.is_judged()
    }

    /// True if the last policy was followed often enough to be judged.
    pub(super) fn is_judged(&self) -> bool {
        self.tried.last().is_none_or(|tried| tried.steps >= STEPS_JUDGED)
    }

    /// The policy with the shortest step.
    pub(super) fn best(&self) -> Option<&Arc<Policy>> {
        let best = self.tried.iter().min_by(|one, other| one.us.total_cmp(&other.us));
        best.map(|tried| &tried.policy)
    }
}

/// Microseconds of each of `count` operators without these waits, by the points in time that were taken; none if the
/// work is not done yet, or no time was taken.
pub(super) fn times_of(
    count: usize,
    stamps: &[(u32, TimeStamp)],
    waits: &[(u32, f64)],
    between: &mut dyn FnMut(TimeStamp, TimeStamp) -> Option<f64>,
) -> Option<Vec<f64>> {
    let mut us = vec![0.0; count];
    let (last, _) = *stamps.last()?;
    for pair in stamps.windows(2) {
        let [(from, begin), (to, end)] = *pair else { continue };
        let waits = waits.iter().filter(|(at, _)| (from..to).contains(at));
        let waited: f64 = waits.map(|(_, us)| us).sum();
        let each = (between(begin, end)? - waited).max(0.0) / f64::from((to - from).max(1));
        us[from as usize..to as usize].fill(each);
    }
    // What comes after the last point takes as long as an operator did in the mean.
    let mean = us.iter().sum::<f64>() / f64::from(last.max(1));
    us[last as usize..].fill(mean);
    Some(us)
}
