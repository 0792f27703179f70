//! A long run at random, in which a call of the device fails now and then.
//!
//! The load rises and falls: at its highest there is not enough memory. Most sizes come again, as in
//! training. At the end everything is freed, and everything must be back at nothing.

use girih_trace::{PoolId, StreamId};

use super::harness::Harness;
use super::scenario::Op;
use crate::policy::Policy;
use crate::sim::{Fault, SimDevice};

const MIB: u64 = 1 << 20;
/// Operations between two steps of the program.
const STEP: u64 = 600;
/// Operations for which the load is aimed at one level.
const TIDE: u64 = 4_000;

/// A long run.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Operations.
    pub operations: u64,
    /// What happens depends on nothing else.
    pub seed: u64,
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Operations between two walks that check everything. Between them overlaps, the order of uses,
    /// and calls that break a rule are seen.
    pub check_every: u64,
    /// Calls of the device, on average, of which one fails.
    pub fault_every: u64,
}

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Soaked {
    /// Calls of the device that were made to fail.
    pub faults: u64,
    /// Requests that failed, nearly all of them for memory.
    pub failed: u64,
    /// The most bytes held.
    pub peak: u64,
    /// Views that were made.
    pub stitches: u64,
    /// Calls of the device.
    pub calls: u64,
}

/// Numbers without pattern.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) % bound
    }

    /// Bytes of a request.
    fn size(&mut self) -> u64 {
        match self.below(8) {
            0..3 => 1 + self.below(MIB),
            3 => 1 + self.below(40 * MIB),
            4 => 1 + self.below(8 * MIB),
            _ => {
                let at = self.below(10);
                (at + 1) * 4 * MIB + at * 77 * 512
            }
        }
    }

    /// The next operation. `is_full` if the program holds more than it aims at.
    fn op(&mut self, is_full: bool) -> Op {
        let stream = StreamId([0, 0, 0, 1, 2][self.below(5) as usize]);
        let pick = self.below(1 << 16) as u16;
        match self.below(200) {
            0..4 => Op::RecordStream { pick, stream },
            4 => Op::Hold(stream),
            5..8 => Op::Resume(stream),
            8 => Op::ProcessEvents,
            9 if self.below(20) == 0 => Op::EmptyCache,
            10..120 if is_full => Op::Free { pick },
            10..75 => Op::Free { pick },
            _ => {
                let pool = PoolId(if self.below(40) == 0 { 1 + self.below(2) as u16 } else { 0 });
                Op::Alloc { size: self.size(), stream, pool }
            }
        }
    }
}

/// Runs a policy for long.
///
/// # Panics
/// On the first rule that is broken, with the operation.
pub fn soak(soak: &Soak, policy: Box<dyn Policy>) -> Soaked {
    let mut device = SimDevice::new(soak.device_bytes);
    device.check_order();
    let mut harness = Harness::new(device, policy);
    let mut chance = Chance(soak.seed);
    let mut faults = 0;
    let mut aim = soak.device_bytes / 2;
    let (mut asked, mut given) = (0, 0);
    for index in 0..soak.operations {
        if index.is_multiple_of(TIDE) {
            // From a fifth of the device to more than it has.
            aim = soak.device_bytes / 10 * (2 + chance.below(10));
        }
        if harness.fault.is_none_or(|call| harness.stage.calls() >= call) {
            faults += u64::from(harness.fault.is_some());
            let call = harness.stage.calls() + 1 + chance.below(2 * soak.fault_every);
            harness.stage.inject(Fault::nth(call));
            harness.fault = Some(call);
        }
        let held = harness.policy.stats().allocated_bytes.all().current;
        let op = if index % STEP == 0 { Op::Step } else { chance.op(held > aim) };
        let before = harness.live.len();
        harness.step(index, op);
        if matches!(op, Op::Alloc { .. }) {
            (asked, given) = (asked + 1, given + (harness.live.len() - before) as u64);
        }
        if index.is_multiple_of(soak.check_every) {
            harness.check();
        }
    }
    let stats = harness.policy.stats();
    let (peak, stitches) = (stats.reserved_bytes.all().peak, stats.num_stitches);
    harness.finish();
    Soaked { faults, failed: asked - given, peak, stitches, calls: harness.stage.calls() }
}
