//! The policies of the runtime on this device: what they ask is what the driver allows.
//!
//! Scenarios and rules are those of the runtime's own suite. What comes to them here: that what was
//! given is accessible, and that the driver has everything back.

use girih_runtime::caching::{Caching, Config};
use girih_runtime::registry::Allocator;
use girih_runtime::suite::{self, Scenario, Stage};
use girih_runtime::{Address, Device, DeviceError, Env, Policy, Request};
use girih_trace::{PoolId, StreamId};

use super::device_of;
use crate::device::CudaDevice;
use crate::driver::types::CuResult;
use crate::fake;
use crate::phantom::Phantom;
use crate::streams::StreamHandle;

/// A device on the fake driver.
struct Played<D> {
    device: D,
    /// A driver call was made to fail.
    fault: bool,
    /// What the device lacks when all was given back.
    missing: fn(&mut D) -> Option<String>,
}

impl<D: Device> Stage for Played<D> {
    fn device(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn hold(&mut self, stream: StreamId) {
        fake::hold(u64::from(stream.0));
    }

    fn resume(&mut self, stream: StreamId) {
        fake::resume(u64::from(stream.0));
    }

    fn begin_use(&mut self, address: Address, size: u64, _stream: StreamId) -> Result<(), String> {
        if fake::usable(0, address, size) {
            return Ok(());
        }
        Err(format!("{size} bytes at {address:#x} are not accessible"))
    }

    fn end_use(&mut self, address: Address, size: u64, streams: &[StreamId]) -> Result<(), String> {
        self.begin_use(address, size, streams[0])
    }

    /// The fake driver does no work that could be ordered.
    fn order(&mut self, _before: StreamId, _after: StreamId) {}

    fn capture(&mut self, stream: StreamId, begins: bool) {
        fake::capture_from(u64::from(stream.0), begins);
    }

    fn destroy(&mut self, stream: StreamId) {
        fake::destroy(u64::from(stream.0));
    }

    fn finish_all(&mut self) {
        fake::arrange(|state| state.held.clear());
    }

    fn is_intended(&self, error: &DeviceError) -> bool {
        self.fault && matches!(error, DeviceError::Driver { .. })
    }

    fn missing(&mut self) -> Option<String> {
        (self.missing)(&mut self.device)
    }
}

/// Settings of the allocators.
const SETTINGS: [&str; 2] = ["", "per_process_memory_fraction:0.7"];

/// Makes each policy of the registry with each of the settings; those that stitch do it whenever they can.
fn policies() -> impl Iterator<Item = impl Fn() -> Box<dyn Policy>> {
    let with = |allocator: Allocator| SETTINGS.map(|settings| (allocator, settings));
    Allocator::ALL.into_iter().flat_map(with).map(|(allocator, settings)| {
        let config = Config::parse(settings).expect("the settings are right");
        let setup = suite::eager(3);
        move || allocator.policy(&config, &setup).expect("it has a plan")
    })
}

/// A device on which stream `n` has the handle `n`. All may be destroyed.
fn device(scenario: &Scenario) -> CudaDevice {
    let mut device = device_of(scenario.device_bytes);
    for number in 0..256 {
        let stream = StreamHandle { device: 0, handle: u64::from(number), is_transient: true };
        device.set_stream(StreamId(number), stream);
    }
    device
}

/// What the fake driver has given and does not have back.
fn taken(device: &mut CudaDevice) -> Option<String> {
    let (counts, events) = (device.books.counts(), device.events_in_use());
    let is_clean = fake::is_empty() && counts == [0; 4];
    (!is_clean).then(|| format!("{counts:?} in the books, {events} events: {}", fake::picture()))
}

/// What of the phantom's memory is in use.
fn lost(phantom: &mut Phantom) -> Option<String> {
    let info = phantom.memory_info();
    (info.free != info.total).then(|| format!("{} of {} bytes are free", info.free, info.total))
}

#[test]
fn every_policy_works_on_the_driver_and_gives_everything_back() {
    for make in policies() {
        for seed in 0..12 {
            let scenario = Scenario::of_seed(seed).trusted();
            let stage = Played { device: device(&scenario), fault: false, missing: taken };
            let stage = suite::run_on(&scenario, stage, make());
            assert_eq!(stage.device.events_in_use(), 0);
        }
    }
}

#[test]
fn every_policy_survives_the_failure_of_any_driver_call() {
    for make in policies() {
        let scenario = Scenario::of_seed(5).trusted();
        for call in (1..2000).step_by(17) {
            let stage = Played { device: device(&scenario), fault: true, missing: taken };
            fake::fail(call, CuResult(999));
            suite::run_on(&scenario, stage, make());
            if !fake::fault_came() {
                break;
            }
        }
    }
}

#[test]
fn every_policy_works_on_a_phantom() {
    for make in policies() {
        let scenario = Scenario::of_seed(7).trusted();
        for solid in [0, 64 << 20] {
            let phantom = Phantom::new(device(&scenario), 64 << 30).expect("there is room");
            let phantom = phantom.with_solid(solid);
            let stage = Played { device: phantom, fault: false, missing: lost };
            suite::run_on(&scenario, stage, make());
        }
    }
}

#[test]
fn a_caching_policy_makes_no_driver_call_in_steady_state() {
    let mut device = device_of(1 << 30);
    let stream = device.add_stream(0);
    let mut policy = Caching::new(Config { expandable_segments: true, ..Config::default() });
    let mut log = ();
    let mut before = 0;
    for round in 0..4 {
        let mut blocks = Vec::new();
        for size in [512, 4 << 20, 70 << 20, 300 << 20] {
            let request = Request { size, stream, pool: PoolId::DEFAULT };
            let mut env = Env::new(&mut device, &mut log);
            blocks.push(policy.allocate(&mut env, request).expect("there is room").block);
        }
        for block in blocks {
            let mut env = Env::new(&mut device, &mut log);
            policy.free(&mut env, block).expect("it is in use");
        }
        let calls = device.calls().total();
        assert!(round == 0 || calls == before, "round {round}: {calls}, {before} before");
        before = calls;
    }
    assert!(before > 0);
}
