//! Steps whose times were read: what is planned for those to come, and what they follow.

use std::sync::Arc;

use girih_swap::Budgets;

use super::super::beside::{Answer, Found};
use super::super::keys::hash_of;
use super::super::observed::Observation;
use super::super::policy::Policy;
use super::super::times::Taken;
use super::{SEQUENCES_MAX, Steps, peak_of};

impl Steps {
    /// A step took so long, operator by operator, and from its beginning to that of the next. Plans it if that is new, or
    /// the last plan was tried, until that brings nothing more.
    pub(super) fn saw_times(
        &mut self,
        seen: &Observation,
        loads: &[u64],
        taken: Taken,
        whole: Option<f64>,
    ) {
        let hash = hash_of(&seen.keys);
        if !self.times.contains_key(&hash) && self.times.len() >= SEQUENCES_MAX {
            self.times.clear();
        }
        let times = self.times.entry(hash).or_default();
        if let Some(us) = whole.filter(|_| !seen.is_mixed) {
            times.note(seen.followed, us, seen.driver_us, peak_of(loads));
        }
        let own_us = taken.us.clone();
        times.see(taken);
        times.see_load(loads);
        let is_judged = !self.beside.is_planning() && times.judge(&self.tuning, seen.is_restless);
        self.is_settled = is_judged && times.is_settled(&self.tuning, &self.links);
        self.is_anew = times.is_anew();
        let (policy, promised) = (times.policy().map(Arc::clone), times.promised());
        self.follow(&seen.keys, policy, promised);
        let is_free = !self.beside.is_busy();
        let Some(times) = self.times.get_mut(&hash).filter(|_| is_free) else { return };
        if self.is_settled || !is_judged || times.waits_for_times(&self.tuning) {
            let outdated =
                times.outdated(&self.tuning, &self.links.now).filter(|policy| policy.can_reckon());
            let followed = times.to_check(seen.followed).filter(|_| !seen.is_mixed);
            if let Some(policy) = outdated.filter(|_| is_judged).map(Arc::clone) {
                let us = times.told(&self.tuning);
                self.beside.reckon(&seen.keys, policy, us, self.links.now);
            } else if let Some((policy, us)) = followed.map(Arc::clone).zip(whole) {
                let step = seen.step(loads, &own_us);
                self.beside.check(&seen.keys, policy, step, self.links.now, us);
            }
            return;
        }
        // At rest they may have become others than those of the last plan.
        self.links.planned = self.links.now;
        let load = times.load.clone();
        let step = seen.step(&load, times.next(&self.tuning, &self.links.planned));
        let us = times.us().to_vec();
        let spare = times.spare(&self.tuning, self.room);
        let budgets = Budgets { gpu: self.room - spare, host: Some(self.host) };
        self.beside.plan(&seen.keys, step, us, self.links.planned, budgets, self.room);
    }

    /// A step had room for everything. What was planned for larger ones like it rests after some of them, until there is
    /// another.
    pub(super) fn saw_fitting(&mut self, seen: &Observation) {
        let Some(times) = self.times.get_mut(&hash_of(&seen.keys)) else { return };
        times.see_fitting();
        if times.rests(&self.tuning) {
            self.follow(&seen.keys, None, [0.0; 3]);
        }
    }

    /// A policy is followed for this sequence from now on, or none.
    fn follow(&mut self, keys: &[u64], policy: Option<Arc<Policy>>, promised: [f64; 3]) {
        if policy.is_some() {
            self.last_us = promised;
        }
        if let Some(number) = self.sequences.find(keys)
            && let Some(followed) = self.policies.get_mut(number)
        {
            *followed = policy;
        }
    }

    pub(super) fn take_up(&mut self, Answer { keys, found, seconds }: Answer) {
        self.seconds += seconds;
        let policy = match found {
            Found::Policy(policy) => *policy,
            Found::Checked(simulated, measured) => {
                if let Some(times) = self.times.get_mut(&hash_of(&keys)) {
                    times.checked(simulated, measured);
                }
                return;
            }
            Found::Promise(number, us, links) => {
                if let Some(times) = self.times.get_mut(&hash_of(&keys)) {
                    times.reckoned(number, us, links);
                }
                return;
            }
        };
        self.last_us = policy.us;
        self.planned += 1;
        let policy = Arc::new(Policy { number: self.planned, ..policy });
        let mut rests = false;
        if let Some(times) = self.times.get_mut(&hash_of(&keys)) {
            if !times.tries(&policy, &self.tuning) {
                return;
            }
            rests = times.rests(&self.tuning);
        }
        let number = self.sequences.learn(&keys);
        let count = SEQUENCES_MAX.min(self.policies.len().max(number + 1));
        self.policies.resize_with(count, || None);
        self.policies[number] = Some(policy).filter(|_| !rests);
    }
}
