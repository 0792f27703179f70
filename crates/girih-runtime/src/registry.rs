//! The allocators that can be simulated: a line for each.
//!
//! A policy joins with a file of its own and a line below: what it is, its name, what it wants, and how it
//! is put together. From these lines come the names on the command line and their help, what
//! [`simulate`](crate::simulate::simulate) runs, and what the suite and the fuzzers go through. What else a
//! simulation asks of a policy, the policy says itself: see `simulate::Simulated`.

use std::sync::Arc;

use girih_plan::Plan;

use crate::caching::{Caching, Config};
use crate::direct::Direct;
use crate::gmlake::{self, Gmlake};
use crate::lake::Lake;
use crate::policy::Policy;
use crate::simulate::learner::Learner;
use crate::simulate::planned::Planned;
use crate::simulate::woven::Woven;
use crate::simulate::{Run, Setup, SimulateError, Simulation};
use crate::stweaver::Stweaver;

/// What is known of an allocator before it is put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Property {
    /// It takes pages of the device, not segments.
    Pages,
    /// It follows a plan, which it has to be given.
    Plan,
    /// It trusts programs as PyTorch's allocator does: that they record every use of a block, tell of every
    /// capture, and destroy no stream.
    Trusting,
}

/// What a policy is put together from.
pub(crate) struct Parts<'a> {
    /// The settings, with pages if it takes them.
    config: Config,
    setup: &'a Setup,
    /// The driver's handle of each stream; none where they are not known.
    streams: &'a [u64],
}

impl Parts<'_> {
    /// PyTorch's allocator with the settings.
    fn caching(&self) -> Caching {
        self.caching_as(self.config.clone())
    }

    fn caching_as(&self, config: Config) -> Caching {
        let mut caching = Caching::new(config);
        caching.set_stream_handles(self.streams.to_vec());
        caching
    }

    /// The lake, as `stitch` and beneath a plan.
    pub(crate) fn lake(&self) -> Lake {
        let pools = self.caching_as(Config { own_order: true, ..self.config.clone() });
        Lake::new(self.setup.lake, pools)
    }

    /// The plan to follow.
    fn plan(&self) -> Result<Arc<Plan>, SimulateError> {
        self.setup.plan.clone().ok_or(SimulateError::NoPlan)
    }

    /// The lake with the plan that an earlier launch has kept, if that is one to rely on.
    fn lake_again(&self) -> Lake {
        match self.setup.kept.as_ref().filter(|plan| plan.is_reliable()) {
            Some(plan) => self.lake().with_plan(Arc::clone(plan)),
            None => self.lake(),
        }
    }
}

/// Makes [`Allocator`] of the lines of the registry: documentation, variant, name, properties, and what
/// puts the policy together.
macro_rules! registry {
    ($(
        $(#[doc = $about:literal])+
        $allocator:ident $name:literal [$($property:ident),*] $build:expr;
    )+) => {
        /// The allocators that can be simulated.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Allocator {
            $($(#[doc = $about])+ $allocator,)+
        }

        impl Allocator {
            /// Every allocator.
            pub const ALL: [Allocator; [$($name),+].len()] = [$(Allocator::$allocator),+];

            /// The name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self { $(Allocator::$allocator => $name,)+ }
            }

            /// What it is, in a sentence.
            pub fn about(self) -> &'static str {
                let text = match self { $(Allocator::$allocator => concat!($($about),+),)+ };
                text.trim().trim_end_matches('.')
            }

            fn properties(self) -> &'static [Property] {
                match self { $(Allocator::$allocator => &[$(Property::$property),*],)+ }
            }

            fn put_together(self, parts: &Parts<'_>) -> Result<Box<dyn Policy>, SimulateError> {
                match self {
                    $(Allocator::$allocator => {
                        let build: fn(&Parts<'_>) -> Result<_, SimulateError> = $build;
                        Ok(Box::new(build(parts)?))
                    })+
                }
            }

            /// Puts it together and runs it: each policy in code of its own, for a replay is hot.
            pub(crate) fn run(
                self,
                run: Run<'_>,
                parts: &Parts<'_>,
            ) -> Result<Simulation, SimulateError> {
                match self {
                    $(Allocator::$allocator => {
                        let build: fn(&Parts<'_>) -> Result<_, SimulateError> = $build;
                        run.of(build(parts)?)
                    })+
                }
            }
        }
    };
}

registry! {
    /// Each request straight to the device; private pools cached as by PyTorch.
    Direct "direct" [Trusting] |parts| Ok(Direct::new(parts.caching()));
    /// PyTorch's caching allocator.
    Native "native" [Trusting] |parts| Ok(parts.caching());
    /// PyTorch's caching allocator with expandable segments.
    Expandable "expandable" [Pages, Trusting] |parts| Ok(parts.caching());
    /// GMLake as its paper has it: blocks of 512 MiB and more, the default of its code, are split and stitched.
    Gmlake "gmlake" [Trusting] |parts| Ok(Gmlake::new(parts.setup.gmlake.clone(), parts.caching()));
    /// GMLake with the paper's example of a limit, 128 MiB, below which blocks are neither split nor stitched.
    Gmlake128 "gmlake-128" [Trusting] |parts| {
        Ok(Gmlake::new(gmlake::Config::paper_limit(), parts.caching()))
    };
    /// GMLake as its published code: requests below 512 MiB are not stitched, and new memory is never stitched to free.
    GmlakeCode "gmlake-code" [Trusting] |parts| {
        Ok(Gmlake::new(gmlake::Config::released(), parts.caching()))
    };
    /// STWeaver as published: its plan of the run itself, followed by number, and experts in what it leaves.
    Stweaver "stweaver" [Trusting] |parts| {
        Ok(Woven::new(Stweaver::new(parts.setup.stweaver, parts.caching())))
    };
    /// Expandable segments whose holes are stitched.
    Stitch "stitch" [Pages] |parts| Ok(parts.lake());
    /// Follows a plan; `stitch` serves what it does not cover.
    Planned "planned" [Pages, Plan] |parts| Ok(Planned::new(parts.lake(), parts.plan()?));
    /// Is `stitch`, and learns a plan for the next launch.
    Auto "auto" [Pages] |parts| Ok(Learner::new(parts.lake(), parts.setup));
    /// `auto` in a second launch: it follows the plan that the first one kept, if that is one to rely on.
    Again "again" [Pages] |parts| Ok(Learner::new(parts.lake_again(), parts.setup));
}

impl Allocator {
    /// Whether this is known of it.
    pub fn is(self, property: Property) -> bool {
        self.properties().contains(&property)
    }

    /// What it is put together from. `streams` are the driver's handles of the streams.
    pub(crate) fn parts<'a>(
        self,
        mut config: Config,
        setup: &'a Setup,
        streams: &'a [u64],
    ) -> Parts<'a> {
        config.expandable_segments |= self.is(Property::Pages);
        Parts { config, setup, streams }
    }

    /// A policy that holds nothing, with these settings of the caching allocator, to which expandable
    /// segments are added where it takes pages; of `setup`, the settings of the others and the plans.
    ///
    /// # Errors
    /// If it follows a plan and there is none.
    pub fn policy(self, config: &Config, setup: &Setup) -> Result<Box<dyn Policy>, SimulateError> {
        self.put_together(&self.parts(config.clone(), setup, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allocator_has_a_name_of_its_own_and_says_what_it_is() {
        for allocator in Allocator::ALL {
            let same = Allocator::ALL.iter().filter(|other| other.name() == allocator.name());
            assert_eq!(same.count(), 1);
            let about = allocator.about();
            assert!(
                about.len() > 10 && !about.starts_with(' ') && !about.ends_with('.'),
                "{about}"
            );
        }
    }

    #[test]
    fn every_allocator_is_put_together_and_one_that_follows_a_plan_only_with_one() {
        let (bare, config) = (Setup::default(), Config::default());
        let setup = Setup { plan: Some(Arc::default()), ..Setup::default() };
        for allocator in Allocator::ALL {
            let policy = allocator.policy(&config, &setup).expect("a policy");
            policy.check().expect("it holds nothing");
            let refused = matches!(allocator.policy(&config, &bare), Err(SimulateError::NoPlan));
            assert_eq!(refused, allocator.is(Property::Plan), "{}", allocator.name());
        }
    }
}
