//! Nothing lives for as long as a run unless it is bounded, and nothing that is done for the better fails
//! a request. What is kept on the host under a whole heap is in `girih-torch`'s tests of this name.

use std::sync::Arc;

use girih_plan::Plan;
use girih_runtime::auto::{Auto, Planning};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::lake::Lake;
use girih_runtime::sim::{Fault, FaultKind, LiveObjects, SimDevice};
use girih_runtime::{BlockId, Env, Policy, Request};
use girih_trace::{Event, Mark, MarkKind, PoolId, StreamId};

const MIB: u64 = 1 << 20;
/// Most calls that are made to fail, one at a time, evenly spread.
const FAULTS_MAX: u64 = 100;

fn expandable() -> Config {
    Config { expandable_segments: true, ..Config::default() }
}

/// A policy on a device with memory for everything. Whatever is asked of it must be done.
struct Machine<P> {
    policy: P,
    device: SimDevice,
    log: Vec<Event>,
    /// What is said when something fails.
    what: String,
}

impl<P: Policy> Machine<P> {
    fn new(policy: P) -> Machine<P> {
        let mut device = SimDevice::new(1 << 40);
        device.check_order();
        Machine { policy, device, log: Vec::new(), what: String::new() }
    }

    fn with<T, E: std::fmt::Debug>(
        &mut self,
        call: impl FnOnce(&mut P, &mut Env<'_>) -> Result<T, E>,
    ) -> T {
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = call(&mut self.policy, &mut env);
        self.policy.check().unwrap_or_else(|error| panic!("{}: {error}", self.what));
        result.unwrap_or_else(|error| panic!("{}: {error:?}", self.what))
    }

    fn alloc(&mut self, size: u64, stream: u16, pool: PoolId) -> BlockId {
        let request = Request { size, stream: StreamId(stream), pool };
        self.with(|policy, env| policy.allocate(env, request)).block
    }

    fn free(&mut self, block: BlockId) {
        self.with(|policy, env| policy.free(env, block));
    }

    fn mark(&mut self) {
        let mark = Mark { before: 0, time_us: 0, kind: MarkKind::Step, name: String::new() };
        self.with(|policy, env| policy.mark(env, &mark));
    }

    /// Forward and backward of a few layers, on two streams.
    fn microbatch(&mut self, length: u64) {
        let layers = 0..12u64;
        let kept: Vec<BlockId> = layers
            .map(|layer| self.alloc((layer + 1) * length, (layer % 2) as u16, PoolId::DEFAULT))
            .collect();
        for block in kept.into_iter().rev() {
            let gradient = self.alloc(3 * length, 0, PoolId::DEFAULT);
            self.free(block);
            self.free(gradient);
        }
    }

    /// A run that fits a plan, and then another, and then none; in which holes are stitched, and an evaluation takes
    /// the pages of the arena.
    fn program(&mut self) {
        // As much as the first plan has in use: it helps.
        let first = self.alloc(1110 * MIB, 0, PoolId::DEFAULT);
        self.free(first);
        let stays: Vec<BlockId> =
            (0..8).map(|k| self.alloc((3 + 5 * k) * MIB, 0, PoolId::DEFAULT)).collect();
        for length in [3, 3, 3, 3, 3, 7, 3, 7, 3, 11, 11, 11, 11, 11, 11, 11, 5, 2, 9, 4, 11] {
            self.mark();
            self.microbatch(4 * length * MIB);
            if length == 7 {
                let blocks =
                    [1200, 840, 360].map(|size| self.alloc(size * MIB, 1, PoolId::DEFAULT));
                blocks.into_iter().for_each(|block| self.free(block));
            }
        }
        // Another program: the plan does not fit, and goes.
        for length in [31, 33, 35, 37, 39, 41, 43, 45] {
            self.mark();
            self.microbatch(4 * length * MIB);
        }
        stays.into_iter().for_each(|block| self.free(block));
    }
}

fn auto(lake: Lake) -> Auto {
    let mut auto = Auto::new(lake);
    auto.set_planning(Planning::AtOnce);
    auto
}

/// A second launch, which begins with the plan `kept` by the first.
fn again(kept: &Arc<Plan>) -> Machine<Auto> {
    Machine::new(auto(Lake::of(expandable()).with_plan(Arc::clone(kept))))
}

#[test]
fn whichever_call_is_refused_of_what_is_for_the_better_no_request_and_no_mark_fails() {
    let mut first = Machine::new(auto(Lake::of(expandable())));
    first.program();
    let kept = first.policy.take_proven().expect("a plan that fits");
    let mut whole = again(&kept);
    whole.program();
    let (calls, stats) = (whole.device.calls(), whole.policy.stats().clone());
    assert!(whole.policy.lake().following().hits > 0, "a plan is followed");
    assert!(whole.policy.given_up() > 0, "and goes again");
    assert!(stats.num_stitches > 0, "{stats:?}");
    for call in (1..=calls).step_by(calls.div_ceil(FAULTS_MAX) as usize) {
        for out_of_memory in [false, true] {
            let mut machine = again(&kept);
            machine.what = format!("call {call} of {calls}, out of memory: {out_of_memory}");
            machine.device.inject(Fault { kind: FaultKind::Nth(call), out_of_memory });
            machine.program();
            machine.with(Policy::empty_cache);
            machine.with(Policy::empty_cache);
            assert_eq!(machine.device.live(), LiveObjects::default(), "{}", machine.what);
        }
    }
}

#[test]
fn private_pools_of_expandable_segments_that_come_and_go_leave_nothing_behind() {
    let policies: [Box<dyn Policy>; 2] =
        [Box::new(Caching::new(expandable())), Box::new(Lake::of(expandable()))];
    for policy in policies {
        let mut machine = Machine::new(policy);
        for round in 1..=300u16 {
            let pool = PoolId(round);
            machine.policy.create_pool(pool);
            // Two requests take pages, and all of it goes back in one call.
            let blocks = [30, 30].map(|size| machine.alloc(size * MIB, 0, pool));
            blocks.into_iter().for_each(|block| machine.free(block));
            machine.with(|policy, env| policy.release_pool(env, pool));
            assert!(machine.policy.checkpoint(pool).is_ok(), "it holds pages");
            machine.with(Policy::empty_cache);
            assert!(machine.policy.checkpoint(pool).is_err(), "pool {round} is still there");
            assert!(!machine.policy.has_pool(pool));
        }
        assert_eq!(machine.device.live(), LiveObjects::default());
        // One that was never used goes without being asked to.
        machine.policy.create_pool(PoolId(7));
        machine.with(|policy, env| policy.release_pool(env, PoolId(7)));
        assert!(!machine.policy.has_pool(PoolId(7)));
    }
}
