//! `auto` in a simulation: it makes its plans itself.

use super::{Setup, Simulated};
use crate::auto::Auto;
use crate::lake::{Following, Lake};
use crate::policy::Policy;
use crate::wrapper::Wrapper;

/// `auto`, and how the plan that it began with was followed.
pub(crate) struct Learner {
    auto: Auto,
    /// What came before the peaks were last reset.
    before: Following,
}

impl Learner {
    /// `lake` holds nothing.
    pub(crate) fn new(lake: Lake, setup: &Setup) -> Learner {
        let mut auto = Auto::new(lake);
        auto.set_options(setup.judge);
        auto.set_planning(setup.planning());
        Learner { auto, before: Following::default() }
    }
}

impl Wrapper for Learner {
    type Inner = Auto;

    fn inner(&self) -> &Auto {
        &self.auto
    }

    fn inner_mut(&mut self) -> &mut Auto {
        &mut self.auto
    }

    fn reset_peak_stats(&mut self) {
        self.before = self.auto.lake().following();
        Policy::reset_peak_stats(&mut self.auto);
    }
}

impl Simulated for Learner {
    fn rounded(&self, size: u64) -> u64 {
        self.auto.lake().rounded(size)
    }

    fn following(&self) -> Option<Following> {
        Some(self.auto.lake().following().since(self.before))
    }
}
