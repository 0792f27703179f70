//! A policy around another one.
//!
//! ```text
//!  caller ─► Policy of the wrapper ─┬─ what it changes ─► its own method ─┐
//!                                   └─ all else ──────────────────────────┴─► run ─► inner policy
//! ```
//!
//! Whoever looks on, records or counts has to be a [`Policy`] itself, and hand on everything that
//! it has nothing to say to. A type that says which policy it has inside, [`Wrapper::inner`], is
//! one: it writes down what it changes, and no more. The list below is the only one of all methods. No
//! method of [`Policy`] has a body of its own, so that one that is missing here does not compile, and one
//! that is here is handed on by every wrapper.
//!
//! What stands for a policy is one: a box, a reference. So policies nest, known by type or not.
//!
//! Both traits have all methods: where both are in scope, a call on a wrapper, a box or a reference must
//! say which is meant. Callers need [`Policy`] alone.

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

        /// The names of all methods.
        #[cfg(test)]
        const METHODS: &[&str] =
            &[$(stringify!($look),)* $(stringify!($set),)* $(stringify!($run),)*];

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
        fn pool_users(pool: PoolId) -> u32;
        fn has_pool(pool: PoolId) -> bool;
        fn reserved_of_pool(pool: PoolId) -> Option<Counters>;
        fn limit(total: u64) -> Option<u64>;
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
        fn set_limit(limit: Option<u64>);
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

impl<P: Policy + ?Sized> Wrapper for Box<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        self
    }

    fn inner_mut(&mut self) -> &mut P {
        self
    }
}

impl<P: Policy + ?Sized> Wrapper for &mut P {
    type Inner = P;

    fn inner(&self) -> &P {
        self
    }

    fn inner_mut(&mut self) -> &mut P {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use girih_trace::{Action, Event, Mark, MarkKind, PoolId, StreamId};

    use super::METHODS;
    use crate::caching::{Caching, Config};
    use crate::policy::{
        AllocError, BlockId, BlockView, Checkpoint, Env, Granted, Policy, PoolOptions, Request,
        Restored, SegmentView,
    };
    use crate::sim::SimDevice;
    use crate::stats::{Counters, Stats};

    /// Counts operations, and changes nothing.
    struct Counted<P> {
        inner: P,
        operations: u32,
    }

    impl<P: Policy> super::Wrapper for Counted<P> {
        type Inner = P;

        fn inner(&self) -> &P {
            &self.inner
        }

        fn inner_mut(&mut self) -> &mut P {
            &mut self.inner
        }

        fn run<T>(
            &mut self,
            env: &mut Env<'_>,
            operation: impl FnOnce(&mut P, &mut Env<'_>) -> T,
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
        policy.set_limit(Some(1 << 29));
        let request = Request { size: 3 << 20, stream, pool };
        let mut env = Env::new(&mut device, &mut log);
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
        assert_eq!((policy.pool_users(pool), policy.limit(1 << 30)), (1, Some(1 << 29)));
        assert_eq!(policy.reserved_of_pool(pool).unwrap().all().current, 20 << 20);
        policy.release_pool(&mut env, pool).unwrap();
        assert!(policy.has_pool(pool), "it holds a segment");
        policy.empty_pool(&mut env, PoolId::DEFAULT).unwrap();
        assert!(!policy.has_pool(pool), "nothing is left of it");
        policy.empty_cache(&mut env).unwrap();
        policy.check().unwrap();
        assert_eq!(policy.stats().reserved_bytes.all().current, 0);
        policy.reset_peak_stats();
        assert_eq!(policy.stats().reserved_bytes.all().peak, 0);
        assert_eq!(counted.operations, 9, "each operation has come by");
        assert!(log.iter().any(|event| event.action == Action::SegmentFree));
    }

    /// Notes what it is told, and holds nothing.
    #[derive(Default)]
    struct Told {
        methods: Arc<Mutex<Vec<&'static str>>>,
        stats: Stats,
    }

    impl Told {
        fn note<T>(&self, method: &'static str, answer: T) -> T {
            self.methods.lock().unwrap().push(method);
            answer
        }
    }

    const GRANTED: Granted = Granted { block: BlockId(7), address: 77, size: 777 };
    const UNKNOWN: AllocError = AllocError::UnknownBlock(BlockId(7));

    impl Policy for Told {
        fn name(&self) -> &'static str {
            self.note("name", "told")
        }
        fn allocate(&mut self, _: &mut Env<'_>, _: Request) -> Result<Granted, AllocError> {
            self.note("allocate", Ok(GRANTED))
        }
        fn has_room(&self, _: &Request) -> bool {
            self.note("has_room", true)
        }
        fn releasable(&self) -> u64 {
            self.note("releasable", 11)
        }
        fn free(&mut self, _: &mut Env<'_>, _: BlockId) -> Result<(), AllocError> {
            self.note("free", Err(UNKNOWN))
        }
        fn record_stream(
            &mut self,
            _: &mut Env<'_>,
            _: BlockId,
            _: StreamId,
        ) -> Result<(), AllocError> {
            self.note("record_stream", Err(UNKNOWN))
        }
        fn process_events(&mut self, _: &mut Env<'_>) -> Result<(), AllocError> {
            self.note("process_events", Err(UNKNOWN))
        }
        fn empty_cache(&mut self, _: &mut Env<'_>) -> Result<(), AllocError> {
            self.note("empty_cache", Err(UNKNOWN))
        }
        fn mark(&mut self, _: &mut Env<'_>, _: &Mark) -> Result<(), AllocError> {
            self.note("mark", Err(UNKNOWN))
        }
        fn create_pool(&mut self, _: PoolId) {
            self.note("create_pool", ());
        }
        fn set_pool_options(&mut self, _: PoolId, _: PoolOptions) {
            self.note("set_pool_options", ());
        }
        fn pool_users(&self, _: PoolId) -> u32 {
            self.note("pool_users", 13)
        }
        fn has_pool(&self, _: PoolId) -> bool {
            self.note("has_pool", true)
        }
        fn reserved_of_pool(&self, _: PoolId) -> Option<Counters> {
            self.note("reserved_of_pool", Some(Counters::default()))
        }
        fn begin_pool(&mut self, _: PoolId, _: bool) {
            self.note("begin_pool", ());
        }
        fn end_pool(&mut self, _: PoolId, _: bool) {
            self.note("end_pool", ());
        }
        fn release_pool(&mut self, _: &mut Env<'_>, _: PoolId) -> Result<(), AllocError> {
            self.note("release_pool", Err(UNKNOWN))
        }
        fn empty_pool(&mut self, _: &mut Env<'_>, _: PoolId) -> Result<(), AllocError> {
            self.note("empty_pool", Err(UNKNOWN))
        }
        fn set_limit(&mut self, _: Option<u64>) {
            self.note("set_limit", ());
        }
        fn limit(&self, total: u64) -> Option<u64> {
            self.note("limit", Some(total / 2))
        }
        fn max_split_size(&self) -> u64 {
            self.note("max_split_size", 14)
        }
        fn configure(&mut self, _: &mut Env<'_>, _: &Config) -> Result<(), AllocError> {
            self.note("configure", Err(UNKNOWN))
        }
        fn checkpoint(&self, _: PoolId) -> Result<Checkpoint, AllocError> {
            self.note("checkpoint", Err(UNKNOWN))
        }
        fn restore(&mut self, _: &mut Env<'_>, _: &Checkpoint) -> Result<Restored, AllocError> {
            self.note("restore", Err(UNKNOWN))
        }
        fn reset_peak_stats(&mut self) {
            self.note("reset_peak_stats", ());
        }
        fn stats(&self) -> &Stats {
            self.note("stats", &self.stats)
        }
        fn visit(&self, _: &mut dyn FnMut(SegmentView, &[BlockView])) {
            self.note("visit", ());
        }
        fn check(&self) -> Result<(), String> {
            self.note("check", Err("told".to_owned()))
        }
    }

    #[test]
    fn every_method_comes_through_every_kind_of_nest_and_so_does_the_answer() {
        let told = Told::default();
        let methods = Arc::clone(&told.methods);
        let boxed: Box<dyn Policy> = Box::new(told);
        let mut counted = Counted { inner: boxed, operations: 0 };
        let mut by_reference: &mut dyn Policy = &mut counted;
        let mut nest = Counted { inner: Box::new(&mut by_reference), operations: 0 };
        let policy: &mut dyn Policy = &mut nest;
        let (mut device, mut log) = (SimDevice::new(1 << 30), ());
        let mut env = Env::new(&mut device, &mut log);
        let (pool, stream, block) = (PoolId(1), StreamId(0), BlockId(7));
        let request = Request { size: 1, stream, pool };
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        let checkpoint = Checkpoint { pool, segments: Vec::new() };

        assert_eq!(policy.name(), "told");
        assert!(policy.has_room(&request) && policy.has_pool(pool));
        assert_eq!((policy.releasable(), policy.pool_users(pool)), (11, 13));
        assert_eq!(policy.reserved_of_pool(pool), Some(Counters::default()));
        assert_eq!((policy.limit(30), policy.max_split_size()), (Some(15), 14));
        assert_eq!(policy.checkpoint(pool), Err(UNKNOWN));
        assert_eq!(policy.stats(), &Stats::default());
        policy.visit(&mut |_, _| ());
        assert_eq!(policy.check(), Err("told".to_owned()));

        policy.create_pool(pool);
        policy.set_pool_options(pool, PoolOptions::default());
        policy.begin_pool(pool, true);
        policy.end_pool(pool, true);
        policy.set_limit(None);
        policy.reset_peak_stats();

        assert_eq!(policy.allocate(&mut env, request), Ok(GRANTED));
        assert_eq!(policy.free(&mut env, block), Err(UNKNOWN));
        assert_eq!(policy.record_stream(&mut env, block, stream), Err(UNKNOWN));
        assert_eq!(policy.process_events(&mut env), Err(UNKNOWN));
        assert_eq!(policy.empty_cache(&mut env), Err(UNKNOWN));
        assert_eq!(policy.mark(&mut env, &mark), Err(UNKNOWN));
        assert_eq!(policy.release_pool(&mut env, pool), Err(UNKNOWN));
        assert_eq!(policy.empty_pool(&mut env, pool), Err(UNKNOWN));
        assert_eq!(policy.configure(&mut env, &Config::default()), Err(UNKNOWN));
        assert_eq!(policy.restore(&mut env, &checkpoint), Err(UNKNOWN));

        assert_eq!(nest.operations, 10);
        assert_eq!(counted.operations, 10);
        let mut told = std::mem::take(&mut *methods.lock().unwrap());
        let mut all = METHODS.to_vec();
        told.sort_unstable();
        all.sort_unstable();
        assert_eq!(told, all, "each method once");
    }
}
