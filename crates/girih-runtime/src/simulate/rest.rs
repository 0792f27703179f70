//! The rest of a run: a policy that notes what it has counted when its peaks are reset.

use crate::lake::Following;
use crate::policy::Policy;
use crate::wrapper::Wrapper;

/// `inner`, and what `count` gave when its peaks were last reset.
pub(super) struct Rest<P, T> {
    pub(super) inner: P,
    count: fn(&P) -> T,
    before: T,
}

impl<P: Policy, T: Copy + Default> Rest<P, T> {
    pub(super) fn of(inner: P, count: fn(&P) -> T) -> Rest<P, T> {
        Rest { inner, count, before: T::default() }
    }

    /// What it had counted at the reset, or nothing if there was none; and what it has counted now.
    pub(super) fn counted(&self) -> (T, T) {
        (self.before, (self.count)(&self.inner))
    }
}

impl<P: Policy, T: Copy + Send> Wrapper for Rest<P, T> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn reset_peak_stats(&mut self) {
        self.before = (self.count)(&self.inner);
        self.inner.reset_peak_stats();
    }
}

/// What came between two counts.
pub(super) fn since((before, now): (Following, Following)) -> Following {
    Following {
        hits: now.hits - before.hits,
        hit_bytes: now.hit_bytes - before.hit_bytes,
        misses: now.misses - before.misses,
        miss_bytes: now.miss_bytes - before.miss_bytes,
        refused_bytes: now.refused_bytes - before.refused_bytes,
        waits: now.waits - before.waits,
    }
}
