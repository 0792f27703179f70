//! `stweaver` in a simulation: it is profiled and planned on the recording that it is then run on, as its paper runs a
//! job once to plan it, and it is told which layer runs.

use std::sync::Arc;

use girih_plan::stweaver::{DynamicLayers, Synthesis};

use super::{Recorded, Simulated};
use crate::caching::Adopted;
use crate::lake::Following;
use crate::policy::{AllocError, Env, Granted, Policy, Request};
use crate::replay::Beginning;
use crate::sim::SimDevice;
use crate::stweaver::{Served, Stweaver};
use crate::wrapper::Wrapper;

/// STWeaver's allocator, and what the hooks of modules would tell it.
pub(crate) struct Woven {
    inner: Stweaver,
    layers: DynamicLayers,
    /// The next request, as the lifetimes of the recording number them.
    next: u32,
    /// What came before the peaks were last reset.
    before: Following,
}

impl Woven {
    /// `inner` holds nothing and has no plan yet.
    pub(crate) fn new(inner: Stweaver) -> Woven {
        Woven { inner, layers: DynamicLayers::default(), next: 0, before: Following::default() }
    }
}

impl Wrapper for Woven {
    type Inner = Stweaver;

    fn inner(&self) -> &Stweaver {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Stweaver {
        &mut self.inner
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let layer = self.layers.run_of(self.next).map(|run| run as u32);
        self.inner.set_layer(layer);
        self.next += 1;
        Policy::allocate(&mut self.inner, env, request)
    }

    fn reset_peak_stats(&mut self) {
        self.before = self.inner.following();
        Policy::reset_peak_stats(&mut self.inner);
    }
}

impl Simulated for Woven {
    fn begin(
        &mut self,
        recorded: &Recorded<'_>,
        _device: &mut SimDevice,
    ) -> Result<(Beginning, Option<Adopted>), AllocError> {
        let Recorded { trace, lives, .. } = *recorded;
        self.layers = DynamicLayers::of(trace, lives);
        let synthesis = Synthesis::of(trace, lives, &self.layers).map_err(|error| {
            AllocError::Unsupported { operation: "STWeaver's plan", reason: error.to_string() }
        })?;
        self.inner.set_plan(Arc::new(synthesis));
        Ok((Beginning::Requested, None))
    }

    fn rounded(&self, size: u64) -> u64 {
        Simulated::rounded(self.inner.inner().inner(), size)
    }

    fn following(&self) -> Option<Following> {
        Some(self.inner.following().since(self.before))
    }

    fn served(&self) -> Option<Served> {
        Some(self.inner.served())
    }
}
