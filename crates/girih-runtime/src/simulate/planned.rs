//! The lake with a plan, in a simulation: it says how well the plan was followed.

use std::sync::Arc;

use girih_plan::Plan;

use super::Simulated;
use crate::lake::{Following, Lake};
use crate::policy::Policy;
use crate::wrapper::Wrapper;

/// A lake that follows a plan from the first request on.
pub(crate) struct Planned {
    lake: Lake,
    /// What came before the peaks were last reset.
    before: Following,
}

impl Planned {
    /// `lake` holds nothing.
    pub(crate) fn new(lake: Lake, plan: Arc<Plan>) -> Planned {
        Planned { lake: lake.with_plan(plan), before: Following::default() }
    }
}

impl Wrapper for Planned {
    type Inner = Lake;

    fn inner(&self) -> &Lake {
        &self.lake
    }

    fn inner_mut(&mut self) -> &mut Lake {
        &mut self.lake
    }

    fn name(&self) -> &'static str {
        "planned"
    }

    fn reset_peak_stats(&mut self) {
        self.before = self.lake.following();
        Policy::reset_peak_stats(&mut self.lake);
    }
}

impl Simulated for Planned {
    fn rounded(&self, size: u64) -> u64 {
        self.lake.rounded(size)
    }

    fn following(&self) -> Option<Following> {
        Some(self.lake.following().since(self.before))
    }
}
