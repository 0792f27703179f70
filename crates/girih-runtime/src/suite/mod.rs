//! What every policy must do, whatever it decides.
//!
//! A [`Scenario`] is one device or two and a sequence of operations, made from bytes: property tests and
//! the fuzz target share this one generator.
//!
//! The harness runs it on simulated devices with the order checker on, each with a policy, and after each operation
//! asks: do blocks overlap, are they aligned and large enough, is memory used before the work on it
//! is done, do the policy's own books agree? At the end everything is freed, and the device must
//! have all of its memory back. Another device joins as a [`Stage`].
//!
//! A policy joins in a few lines:
//!
//! ```
//! use girih_runtime::caching::{Caching, Config};
//! use girih_runtime::{direct::Direct, suite};
//!
//! suite::check_policy(16, &mut |_| Box::new(Direct::new(Caching::new(Config::default()))));
//! ```

mod balance;
mod harness;
mod policies;
mod program;
mod scenario;
mod soak;
mod streams;

use girih_trace::{PoolId, StreamId};

use self::harness::Harness;
pub use self::harness::Stage;
pub use self::policies::{
    auto, dropping_its_plan, eager, every_policy, planned, reckless_plan, with_idle_places, woven,
};
use self::program::Program;
pub use self::scenario::{Op, Scenario};
pub use self::soak::{Soak, Soaked, soak};
use crate::policy::{AllocError, BlockId, Env, Policy};
use crate::sim::SimDevice;

/// Makes a fresh policy that holds nothing, for a device of this granularity in bytes.
pub type Make<'a> = &'a mut dyn FnMut(u64) -> Box<dyn Policy>;

/// Most calls that [`run_with_faults`] lets fail, one at a time.
const MAX_FAULTS: u64 = 400;

/// Runs everything of this file on `scenarios` scenarios from fixed seeds. Linear in them; 16 take
/// about a second.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn check_policy(scenarios: u64, make: Make<'_>) {
    check_on(scenarios, Scenario::of_seed, make);
}

/// The same for a policy that trusts programs as PyTorch's does ([`Scenario::trusted`]).
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn check_trusting_policy(scenarios: u64, make: Make<'_>) {
    check_on(scenarios, |seed| Scenario::of_seed(seed).trusted(), make);
}

fn check_on(scenarios: u64, scenario: impl Fn(u64) -> Scenario, make: Make<'_>) {
    for seed in 0..scenarios {
        let scenario = scenario(seed);
        run(&scenario, make);
        if seed % 4 == 0 {
            run_with_faults(&scenario, make);
        }
    }
    recovers_from_exhaustion(make);
    refuses_what_is_not_in_use(make);
}

/// Runs a scenario.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn run(scenario: &Scenario, make: Make<'_>) {
    Program::new(scenario, make).run(scenario);
}

/// Runs a scenario on another device than the simulated one, and returns it. Of two devices all streams are
/// its own.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn run_on<S: Stage>(scenario: &Scenario, stage: S, policy: Box<dyn Policy>) -> S {
    let mut harness = Harness::new(stage, policy);
    harness.run(&scenario.clone().on_one_device());
    harness.stage
}

/// Runs a scenario again and again, each time with another device call that fails, from the first
/// to the last (at most 400 of them, evenly spread).
///
/// # Panics
/// On the first rule that is broken, with the call that failed and the operation.
pub fn run_with_faults(scenario: &Scenario, make: Make<'_>) {
    let calls = Program::new(scenario, make).run(scenario);
    let step = calls.div_ceil(MAX_FAULTS).max(1);
    for call in (1..=calls).step_by(step as usize) {
        run_with_fault(scenario, call, make);
    }
}

/// Runs a scenario in which the device call of number `call`, from 1, fails. Of two devices every other
/// call is that of the second.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn run_with_fault(scenario: &Scenario, call: u64, make: Make<'_>) {
    let mut program = Program::new(scenario, make);
    program.fail(call);
    program.run(scenario);
}

/// Bytes of a device that is soon full.
const SMALL: u64 = 64 << 20;

/// A policy on such a device, and nothing done yet.
fn small(make: Make<'_>) -> Harness<SimDevice> {
    let mut device = SimDevice::with_granularity(SMALL, SimDevice::GRANULARITY);
    device.check_order();
    Harness::new(device, make(SimDevice::GRANULARITY))
}

/// Fills a small device until it has no more, frees everything, and asks for half of it at once.
///
/// # Panics
/// If the policy gives more than there is, fails otherwise than for memory, or does not recover.
pub fn recovers_from_exhaustion(make: Make<'_>) {
    let mut harness = small(make);
    for round in 0..3 {
        let size = 3 << (19 + round);
        let mut given = 0;
        while harness.alloc(size, StreamId(0), PoolId::DEFAULT) {
            given += size;
            assert!(given <= SMALL, "more was given than there is");
        }
        assert!(given > 0, "nothing of {size} bytes was given by an empty device");
        while !harness.live.is_empty() {
            harness.free(0);
        }
        let half = harness.alloc(SMALL / 2, StreamId(0), PoolId::DEFAULT);
        assert!(half, "half of the device cannot be had though all of it is free");
        harness.free(0);
    }
    harness.finish();
}

/// Frees a block twice, and one that never was.
///
/// # Panics
/// If the policy does not refuse with [`AllocError::UnknownBlock`].
pub fn refuses_what_is_not_in_use(make: Make<'_>) {
    let mut harness = small(make);
    assert!(harness.alloc(4096, StreamId(0), PoolId::DEFAULT));
    let block = harness.live[0].granted.block;
    harness.free(0);
    let Harness { stage, policy, log, .. } = &mut harness;
    let mut env = Env::new(stage, log);
    for id in [block, BlockId(u32::MAX), BlockId(7_777)] {
        assert_eq!(policy.free(&mut env, id), Err(AllocError::UnknownBlock(id)));
        let recorded = policy.record_stream(&mut env, id, StreamId(1));
        assert_eq!(recorded, Err(AllocError::UnknownBlock(id)));
    }
    harness.finish();
}
