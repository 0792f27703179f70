//! A program on one simulated device or two, each with a policy of its own.
//!
//! Each device is a harness and knows its own memory alone. What reaches over is the streams: one of the
//! other device may use a block that was recorded for it, and it is held, captured from and destroyed on both.
//! The order of its work is kept on each device apart, which is enough: no policy relies on another's waits.

use girih_trace::StreamId;

use super::Make;
use super::harness::{Harness, Stage as _};
use super::scenario::{Op, Scenario};
use super::streams::{NAMES_OF_ONE, device_of, id_for};
use crate::sim::{Fault, SimDevice};

/// Each device's policy at work. See the [module](self).
pub(super) struct Program {
    devices: Vec<Harness<SimDevice>>,
    /// The device whose stream asked for memory last.
    current: usize,
    /// For each device, the stream of the other from which a graph is captured, as it knows it.
    captured: Vec<Option<StreamId>>,
}

impl Program {
    /// The devices of a scenario, and a policy on each.
    pub(super) fn new(scenario: &Scenario, make: Make<'_>) -> Program {
        let devices = (0..scenario.devices).map(|_| {
            let mut device =
                SimDevice::with_granularity(scenario.device_bytes, scenario.granularity);
            device.check_order();
            if !scenario.maps_twice {
                device.map_once();
            }
            for foreign in NAMES_OF_ONE..2 * NAMES_OF_ONE {
                device.set_foreign(StreamId(foreign));
            }
            Harness::new(device, make(scenario.granularity))
        });
        let devices: Vec<_> = devices.collect();
        Program { captured: vec![None; devices.len()], devices, current: 0 }
    }

    /// Lets a call fail, numbered from 1, of one device after the other in turn.
    pub(super) fn fail(&mut self, call: u64) {
        let count = self.devices.len() as u64;
        let device = &mut self.devices[((call - 1) % count) as usize];
        device.stage.inject(Fault::nth((call - 1) / count + 1));
        device.fault = Some((call - 1) / count + 1);
    }

    /// Runs a scenario. How many calls may be numbered for [`Program::fail`].
    pub(super) fn run(mut self, scenario: &Scenario) -> u64 {
        for device in &mut self.devices {
            device.is_trusted = scenario.is_trusted;
        }
        for (index, op) in scenario.ops.iter().enumerate() {
            self.step(index as u64, *op);
            self.tell_captures();
            for device in &self.devices {
                device.check();
            }
        }
        for device in &mut self.devices {
            device.end_captures();
        }
        self.tell_captures();
        for device in &mut self.devices {
            device.finish();
        }
        let most = self.devices.iter().map(|device| device.stage.calls()).max().unwrap_or(0);
        most * self.devices.len() as u64
    }

    fn step(&mut self, index: u64, op: Op) {
        let devices = self.devices.len();
        match op {
            Op::Alloc { stream, .. } | Op::BeginScope { stream, .. } => {
                self.current = device_of(stream) % devices;
                self.step_on(self.current, index, op);
            }
            Op::Free { pick } => {
                if let Some((device, pick)) = self.pick(pick) {
                    self.step_on(device, index, Op::Free { pick });
                }
            }
            Op::RecordStream { pick, stream } => {
                let Some((device, pick)) = self.pick(pick) else { return };
                let id = self.devices[device].now(id_for(device, stream));
                // What a graph does is no work that a block could wait for.
                if self.captured[device] != Some(id) {
                    self.step_on(device, index, Op::RecordStream { pick, stream });
                }
            }
            Op::Borrow { pick, stream } => {
                // Of a use by another device's stream the policy must be told.
                let found = self.pick(pick).filter(|&(device, _)| device == device_of(stream));
                if let Some((device, pick)) = found {
                    self.step_on(device, index, Op::Borrow { pick, stream });
                }
            }
            Op::Hold(_) | Op::Resume(_) => {
                (0..devices).for_each(|device| self.step_on(device, index, op));
            }
            Op::DestroyStream(stream) => {
                let stays = |(device, harness): (usize, &Harness<SimDevice>)| {
                    harness.capturing().is_some() || harness.is_used_by(id_for(device, stream))
                };
                if !self.devices.iter().enumerate().any(stays) {
                    (0..devices).for_each(|device| self.destroy_on(device, index, stream));
                }
            }
            // The program waits for all work before, which it cannot while a graph is captured anywhere.
            Op::Restore if self.devices.iter().any(|device| device.capturing().is_some()) => {}
            Op::RawCapture(stream) => self.step_on(device_of(stream) % devices, index, op),
            _ => self.step_on(self.current, index, op),
        }
    }

    fn step_on(&mut self, device: usize, index: u64, op: Op) {
        self.devices[device].step(index, op.with_stream(|stream| id_for(device, stream)));
    }

    /// What takes a stream's place belongs to the same device.
    fn destroy_on(&mut self, device: usize, index: u64, stream: StreamId) {
        self.step_on(device, index, Op::DestroyStream(stream));
        let harness = &mut self.devices[device];
        if device_of(stream) != device {
            let next = harness.now(id_for(device, stream));
            harness.stage.set_foreign(next);
        }
    }

    /// The device of a block in use, and which it is there.
    fn pick(&self, pick: u16) -> Option<(usize, u16)> {
        let live: Vec<usize> = self.devices.iter().map(|device| device.live.len()).collect();
        let mut place = usize::from(pick).checked_rem(live.iter().sum())?;
        for (device, &count) in live.iter().enumerate() {
            if place < count {
                return Some((device, place as u16));
            }
            place -= count;
        }
        None
    }

    /// Lets each device know from which stream of the other a graph is captured.
    fn tell_captures(&mut self) {
        let capturing: Vec<_> = self.devices.iter().map(Harness::capturing).collect();
        for (device, harness) in self.devices.iter_mut().enumerate() {
            let others = capturing.iter().enumerate().filter(|(other, _)| *other != device);
            let mut now = others.filter_map(|(other, stream)| {
                // By its name, or by what has taken its place.
                stream.map(|stream| id_for(device, id_for(other, stream)))
            });
            let now = now.next();
            let before = std::mem::replace(&mut self.captured[device], now);
            if before != now {
                before.into_iter().for_each(|stream| harness.stage.capture(stream, false));
                now.into_iter().for_each(|stream| harness.stage.capture(stream, true));
            }
        }
    }
}
