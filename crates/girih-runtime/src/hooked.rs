//! A policy with somebody looking on: a function is called after each request and each mark.
//!
//! Tests drop plans in the middle of a run with it, and begin and end layers.

use girih_trace::Mark;

use crate::policy::{AllocError, Env, Granted, Policy, Request};
use crate::wrapper::Wrapper;

/// After what the function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// A request, served or not.
    Request,
    /// A mark.
    Mark,
}

/// `inner`, and what looks on.
pub(crate) struct Hooked<P, F> {
    pub(crate) inner: P,
    hook: F,
}

impl<P, F> Hooked<P, F>
where
    P: Policy,
    F: FnMut(&mut P, &mut Env<'_>, Moment) -> Result<(), AllocError> + Send,
{
    pub(crate) fn new(inner: P, hook: F) -> Hooked<P, F> {
        Hooked { inner, hook }
    }
}

impl<P, F> Wrapper for Hooked<P, F>
where
    P: Policy,
    F: FnMut(&mut P, &mut Env<'_>, Moment) -> Result<(), AllocError> + Send,
{
    type Inner = P;

    fn inner(&self) -> &P {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn allocate(&mut self, env: &mut Env<'_>, request: Request) -> Result<Granted, AllocError> {
        let granted = self.inner.allocate(env, request);
        (self.hook)(&mut self.inner, env, Moment::Request)?;
        granted
    }

    fn mark(&mut self, env: &mut Env<'_>, mark: &Mark) -> Result<(), AllocError> {
        self.inner.mark(env, mark)?;
        (self.hook)(&mut self.inner, env, Moment::Mark)
    }
}
