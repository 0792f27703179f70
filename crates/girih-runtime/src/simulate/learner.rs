//! `auto` in a simulation: it makes its plans itself, and tells the peaks before and after a change of
//! plans apart.

use girih_trace::Mark;

use super::{Learning, Setup, Simulated};
use crate::auto::Auto;
use crate::lake::{Following, Lake};
use crate::policy::{AllocError, Env, Granted, Policy, Request};
use crate::stats::Stats;
use crate::wrapper::Wrapper;

/// `auto`, and what it had counted at each change of plans.
pub(crate) struct Learner {
    auto: Auto,
    /// The counters at each change, after which their peaks began anew.
    earlier: Vec<Stats>,
    /// How plans were followed, and how many changes there were, when the peaks were last reset by others.
    before: (Following, usize),
}

impl Learner {
    /// `lake` holds nothing.
    pub(crate) fn new(lake: Lake, setup: &Setup) -> Learner {
        let mut auto = Auto::new(lake);
        auto.set_options(setup.judge);
        auto.set_planning(setup.planning());
        Learner { auto, earlier: Vec::new(), before: (Following::default(), 0) }
    }

    /// Takes the counters down if there was a change of plans.
    fn look(&mut self) {
        if self.auto.switches().len() > self.earlier.len() {
            self.earlier.push(Policy::stats(&self.auto).clone());
            Policy::reset_peak_stats(&mut self.auto);
        }
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

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let granted = Policy::allocate(&mut self.auto, env, request);
        self.look();
        granted
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        Policy::mark(&mut self.auto, env, mark)?;
        self.look();
        Ok(())
    }

    fn reset_peak_stats(&mut self) {
        self.before = (self.auto.lake().following(), self.auto.switches().len());
        Policy::reset_peak_stats(&mut self.auto);
    }
}

impl Simulated for Learner {
    fn rounded(&self, size: u64) -> u64 {
        self.auto.lake().rounded(size)
    }

    fn totals(&self) -> Stats {
        let mut stats = Policy::stats(&self.auto).clone();
        for before in &self.earlier[self.before.1..] {
            stats.raise_peaks(before);
        }
        stats
    }

    fn following(&self) -> Option<Following> {
        Some(self.auto.lake().following().since(self.before.0))
    }

    fn learning(&self) -> Option<Learning> {
        let peaks = |of: &Stats| (of.allocated_bytes.all().peak, of.reserved_bytes.all().peak);
        let now = Policy::stats(&self.auto);
        Some(Learning {
            switches: self.auto.switches().to_vec(),
            // What came before the first switch is left out.
            peaks: self.earlier.iter().chain([now]).skip(1).map(peaks).collect(),
        })
    }
}
