//! Making a chosen call of the simulated device fail.

use super::cost::Call;
use crate::device::DeviceError;

/// Which call fails. Calls are counted from 1, over all fallible calls of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The call of this number, once.
    Nth(u64),
    /// The next call of this kind, once.
    Next(Call),
    /// Every call of this kind.
    Every(Call),
}

/// A failure to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which call fails.
    pub kind: FaultKind,
    /// True if it fails for want of memory, false if with [`DeviceError::Injected`].
    pub out_of_memory: bool,
}

impl Fault {
    /// The call of number `call`, from 1, fails with [`DeviceError::Injected`].
    pub fn nth(call: u64) -> Fault {
        Fault { kind: FaultKind::Nth(call), out_of_memory: false }
    }
}

/// The faults that wait, and the count of calls.
#[derive(Debug, Default)]
pub(super) struct Faults {
    calls: u64,
    waiting: Vec<Fault>,
}

impl Faults {
    pub(super) fn push(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Counts a call, and fails it if a fault matches.
    pub(super) fn enter(&mut self, call: Call, size: u64, free: u64) -> Result<(), DeviceError> {
        self.calls += 1;
        let matches = |fault: &Fault| match fault.kind {
            FaultKind::Nth(number) => number == self.calls,
            FaultKind::Next(kind) | FaultKind::Every(kind) => kind == call,
        };
        let Some(position) = self.waiting.iter().position(matches) else {
            return Ok(());
        };
        let fault = self.waiting[position];
        if !matches!(fault.kind, FaultKind::Every(_)) {
            self.waiting.remove(position);
        }
        if fault.out_of_memory {
            return Err(DeviceError::OutOfMemory { requested: size, free });
        }
        Err(DeviceError::Injected { call: self.calls, name: call.name() })
    }
}
