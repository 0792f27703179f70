//! A policy around another one.
//!
//! ```text
//!  caller ─► Policy of the wrapper ─┬─ what it changes ─► its own method ─┐
//!                                   └─ all else ──────────────────────────┴─► run ─► inner policy
//! ```
//!
//! Whoever looks on, records or counts has to be a [`Policy`] itself, and hand on everything that
//! it has nothing to say to. A type that says which policy it has inside, [`Wrapper::inner`], is
//! one: it writes down what it changes, and no more. The list below is the only one of all methods,
//! and a method that is added to it is handed on by every wrapper.
//!
//! Both traits have all methods: where both are in scope, a call on the wrapper itself must say
//! which is meant. Callers need [`Policy`] alone.

use girih_trace::{Mark, PoolId, StreamId};

use crate::caching::Config;
use crate::policy::{
    AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
    Restored, SegmentView,
};
use crate::stats::{Counters, Stats};

/// Makes the trait [`Wrapper`], in which every method of [`Policy`] goes to the inner policy, and
/// makes a policy of every wrapper. Methods are of three kinds: those that look, those that set
/// something, and operations, which have a device to work on.
macro_rules! wrapper {
    (
        looks { $(fn $look:ident($($look_arg:ident: $look_type:ty),*) $(-> $seen:ty)?;)* }
        sets { $(fn $set:ident($($set_arg:ident: $set_type:ty),*);)* }
        operations { $(fn $run:ident($($run_arg:ident: $run_type:ty),*) -> $result:ty;)* }
    ) => {
        /// A policy around another one. See the [module](self).
        ///
        /// It is a [`Policy`] by this alone. What it does not write down goes to the inner policy.
        pub trait Wrapper: Send {
            /// The policy inside.
            type Inner: Policy + ?Sized;

            /// The policy inside.
            fn inner(&self) -> &Self::Inner;

            /// The policy inside.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            /// Runs an operation of the inner policy: each one that the wrapper does not write
            /// down comes by here, so that it may put something of its own into `env`.
            #[inline]
            fn run<T>(
                &mut self,
                env: &mut Env<'_>,
                operation: impl FnOnce(&mut Self::Inner, &mut Env<'_>) -> T,
            ) -> T {
                operation(self.inner_mut(), env)
            }

            $(
                #[doc = concat!("See [`Policy::", stringify!($look), "`].")]
                fn $look(&self $(, $look_arg: $look_type)*) $(-> $seen)? {
                    self.inner().$look($($look_arg),*)
                }
            )*
            $(
                #[doc = concat!("See [`Policy::", stringify!($set), "`].")]
                fn $set(&mut self $(, $set_arg: $set_type)*) {
                    self.inner_mut().$set($($set_arg),*);
                }
            )*
            $(
                #[doc = concat!("See [`Policy::", stringify!($run), "`].")]
                ///
                /// # Errors
                /// As there.
                #[inline]
                fn $run(&mut self, env: &mut Env<'_> $(, $run_arg: $run_type)*) -> $result {
                    self.run(env, |inner, env| inner.$run(env $(, $run_arg)*))
                }
            )*
        }

        impl<W: Wrapper> Policy for W {
            $(
                fn $look(&self $(, $look_arg: $look_type)*) $(-> $seen)? {
                    Wrapper::$look(self $(, $look_arg)*)
                }
            )*
            $(
                fn $set(&mut self $(, $set_arg: $set_type)*) {
                    Wrapper::$set(self $(, $set_arg)*);
                }
            )*
            $(
                #[inline]
                fn $run(&mut self, env: &mut Env<'_> $(, $run_arg: $run_type)*) -> $result {
                    Wrapper::$run(self, env $(, $run_arg)*)
                }
            )*
        }
    };
}

wrapper! {
    looks {
        fn name() -> &'static str;
        fn has_room(request: &Request) -> bool;
        fn releasable() -> u64;
        fn unmapped() -> u64;
        fn pool_users(pool: PoolId) -> u32;
        fn has_pool(pool: PoolId) -> bool;
        fn reserved_of_pool(pool: PoolId) -> Option<Counters>;
        fn memory_fraction() -> f64;
        fn max_split_size() -> u64;
        fn checkpoint(pool: PoolId) -> Result<Checkpoint, AllocError>;
        fn stats() -> &Stats;
        fn visit(visitor: &mut dyn FnMut(SegmentView, &[BlockView]));
        fn check() -> Result<(), String>;
    }
    sets {
        fn create_pool(pool: PoolId);
        fn set_pool_options(pool: PoolId, options: PoolOptions);
        fn begin_pool(pool: PoolId, captures: bool);
        fn end_pool(pool: PoolId, captures: bool);
        fn set_memory_fraction(fraction: f64);
        fn reset_peak_stats();
    }
    operations {
        fn allocate(request: Request) -> Result<Granted, AllocError>;
        fn free(block: BlockId) -> Result<(), AllocError>;
        fn record_stream(block: BlockId, stream: StreamId) -> Result<(), AllocError>;
        fn process_events() -> Result<(), AllocError>;
        fn empty_cache() -> Result<(), AllocError>;
        fn mark(mark: &Mark) -> Result<(), AllocError>;
        fn release_pool(pool: PoolId) -> Result<(), AllocError>;
        fn empty_pool(pool: PoolId) -> Result<(), AllocError>;
        fn configure(config: &Config) -> Result<(), AllocError>;
        fn restore(checkpoint: &Checkpoint) -> Result<Restored, AllocError>;
    }
}

/// A policy that is known by its trait alone is one too.
impl Wrapper for Box<dyn Policy> {
    type Inner = dyn Policy;

    fn inner(&self) -> &(dyn Policy + 'static) {
        &**self
    }

    fn inner_mut(&mut self) -> &mut (dyn Policy + 'static) {
        &mut **self
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::{Action, Event, MarkKind};

    use super::*;
    use crate::caching::Caching;
    use crate::sim::SimDevice;

    /// Counts operations, and changes nothing.
    struct Counted {
        inner: Caching,
        operations: u32,
    }

    impl Wrapper for Counted {
        type Inner = Caching;

        fn inner(&self) -> &Caching {
            &self.inner
        }

        fn inner_mut(&mut self) -> &mut Caching {
            &mut self.inner
        }

        fn run<T>(
            &mut self,
            env: &mut Env<'_>,
            operation: impl FnOnce(&mut Caching, &mut Env<'_>) -> T,
        ) -> T {
            self.operations += 1;
            operation(&mut self.inner, env)
        }
    }

    #[test]
    fn what_a_wrapper_does_not_write_down_is_the_inner_policys() {
        let mut device = SimDevice::new(1 << 30);
        let mut log: Vec<Event> = Vec::new();
        let mut counted = Counted { inner: Caching::new(Config::default()), operations: 0 };
        let policy: &mut dyn Policy = &mut counted;
        let (pool, stream) = (PoolId(1), StreamId(0));
        policy.create_pool(pool);
        policy.set_memory_fraction(0.5);
        let request = Request { size: 3 << 20, stream, pool };
        let mut env = Env { device: &mut device, log: &mut log };
        let granted = policy.allocate(&mut env, request).unwrap();
        let checkpoint = policy.checkpoint(pool).unwrap();
        let restored = policy.restore(&mut env, &checkpoint).unwrap();
        assert_eq!(restored.freed, [(granted.block, granted.address)]);
        policy.record_stream(&mut env, restored.allocated[0].block, StreamId(1)).unwrap();
        policy.free(&mut env, restored.allocated[0].block).unwrap();
        policy.process_events(&mut env).unwrap();
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        policy.mark(&mut env, &mark).unwrap();
        assert!(policy.has_room(&request), "what was freed would serve it");
        assert_eq!((policy.pool_users(pool), policy.memory_fraction()), (1, 0.5));
        assert_eq!(policy.reserved_of_pool(pool).unwrap().all.current, 20 << 20);
        policy.release_pool(&mut env, pool).unwrap();
        assert!(policy.has_pool(pool), "it holds a segment");
        policy.empty_pool(&mut env, PoolId::DEFAULT).unwrap();
        assert!(!policy.has_pool(pool), "nothing is left of it");
        policy.empty_cache(&mut env).unwrap();
        policy.check().unwrap();
        assert_eq!(policy.stats().reserved_bytes.all.current, 0);
        policy.reset_peak_stats();
        assert_eq!(policy.stats().reserved_bytes.all.peak, 0);
        assert_eq!(counted.operations, 9, "each operation has come by");
        assert!(log.iter().any(|event| event.action == Action::SegmentFree));
    }
}
