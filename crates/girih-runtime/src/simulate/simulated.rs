//! What a simulation asks of a policy beyond [`Policy`].
//!
//! Most policies have nothing to say: they begin with nothing, and their statistics are all there is. What
//! one wants otherwise it says here, in its own file, so that a simulation need not know which it runs.

use std::sync::Arc;

use girih_trace::{Contradiction, Earlier, Lifetimes, Trace};

use crate::caching::Adopted;
use crate::lake::Following;
use crate::policy::{AllocError, Policy};
use crate::replay::Beginning;
use crate::sim::SimDevice;
use crate::stats::Stats;
use crate::stweaver::Served;

/// A recorded run, and what was held before it.
pub(crate) struct Recorded<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) lives: &'a Lifetimes,
    pub(super) earlier: Option<Arc<Result<Earlier, Contradiction>>>,
}

impl Recorded<'_> {
    /// What was held before the recording began, as far as it tells.
    pub(crate) fn earlier(&self) -> Arc<Result<Earlier, Contradiction>> {
        self.earlier.clone().unwrap_or_else(|| Arc::new(Earlier::of(self.trace, self.lives)))
    }
}

/// A policy that can be simulated.
pub(crate) trait Simulated: Policy {
    /// Holds what was held when the recording began, if it is of this policy's kind; others begin with
    /// nothing, and the requests that are older than the recording are made first.
    ///
    /// # Errors
    /// What the device refuses, other than memory that it has not.
    fn begin(
        &mut self,
        _recorded: &Recorded<'_>,
        _device: &mut SimDevice,
    ) -> Result<(Beginning, Option<Adopted>), AllocError> {
        Ok((Beginning::Requested, None))
    }

    /// Bytes that a request of so many is rounded up to, a small one or not.
    fn rounded(&self, size: u64) -> u64;

    /// Of its counters, the most bytes that were of use at once.
    fn used_peak(&self, stats: &Stats) -> u64 {
        stats.allocated_bytes.all().peak
    }

    /// How well a plan was followed; None of a policy that follows none.
    fn following(&self) -> Option<Following> {
        None
    }

    /// What served the requests; None of a policy that does not tell.
    fn served(&self) -> Option<Served> {
        None
    }
}
