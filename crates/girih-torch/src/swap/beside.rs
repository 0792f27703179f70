//! The thread on which steps are planned, beside the run.
//!
//! One at a time. Nobody waits for it: its answer is looked for at the end of each step. Without a thread, or if one
//! dies, the run goes on without a plan.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use girih_swap::{Budgets, Links, Step, girih};

use super::policy::{Policy, Whose, retime};
use crate::control::timed;

/// What was found.
pub(super) enum Found {
    Policy(Box<Policy>),
    /// What a step takes under the policy of this number on these links: see [`Policy::us`].
    Promise(u32, [f64; 3], Links),
    /// What a step that was measured takes by the simulator, and what it took. Microseconds.
    Checked(f64, f64),
}

/// What was found for a sequence of operators, and the seconds of a core that it took.
pub(super) struct Answer {
    pub(super) keys: Vec<u64>,
    pub(super) found: Found,
    pub(super) seconds: f64,
}

/// The thread, if there is work.
#[derive(Default)]
pub(super) struct Beside {
    answer: Option<Receiver<Answer>>,
    is_planning: bool,
}

impl Beside {
    /// True while something is worked at, and until its answer was looked for.
    pub(super) fn is_busy(&self) -> bool {
        self.answer.is_some()
    }

    /// True while that is a plan.
    pub(super) fn is_planning(&self) -> bool {
        self.is_busy() && self.is_planning
    }

    /// Plans a step within budgets, where `gpu` bytes may be in use. What its policy promises is by `us`, the times of its
    /// operators without waits.
    pub(super) fn plan(
        &mut self,
        keys: &[u64],
        mut step: (Step, Vec<Whose>),
        us: Vec<f64>,
        links: Links,
        budgets: Budgets,
        gpu: u64,
    ) {
        self.is_planning = true;
        self.begin(keys, move || {
            let schedule = girih::plan(&step.0, &links, &budgets);
            retime(&mut step.0, &us);
            Found::Policy(Box::new(Policy::of(step, schedule, &links, gpu)))
        });
    }

    /// Reckons what a step takes under a policy whose operators take `us`.
    pub(super) fn reckon(&mut self, keys: &[u64], policy: Arc<Policy>, us: Vec<f64>, links: Links) {
        self.is_planning = false;
        self.begin(keys, move || Found::Promise(policy.number, policy.reckon(&us, &links), links));
    }

    /// Simulates a step that followed a policy and took so many microseconds.
    pub(super) fn check(
        &mut self,
        keys: &[u64],
        policy: Arc<Policy>,
        step: (Step, Vec<Whose>),
        links: Links,
        us: f64,
    ) {
        self.is_planning = false;
        self.begin(keys, move || Found::Checked(policy.simulate(&step, &links), us));
    }

    fn begin(&mut self, keys: &[u64], find: impl FnOnce() -> Found + Send + 'static) {
        let (keys, (sender, receiver)) = (keys.to_vec(), channel());
        let work = move || {
            let (found, seconds) = timed(find);
            // Nobody waits for it if the process ends.
            let _ = sender.send(Answer { keys, found, seconds });
        };
        if thread::Builder::new().name("girih-swap".to_owned()).spawn(work).is_ok() {
            self.answer = Some(receiver);
        }
    }

    /// The answer, if there is one.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        let found = self.answer.as_ref()?.try_recv();
        if !matches!(found, Err(TryRecvError::Empty)) {
            self.answer = None;
        }
        found.ok()
    }

    /// The answer, waited for.
    #[cfg(test)]
    pub(super) fn wait(&mut self) -> Option<Answer> {
        self.answer.take()?.recv().ok()
    }
}
