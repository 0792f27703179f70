//! The log as sums: what was given was freed, what was taken was given back.

use girih_trace::{Action, Event};

use crate::policy::Log;

/// Bytes of all events, by what happened. It stays small however long a run is.
#[derive(Default)]
pub(super) struct Balance {
    given: u64,
    let_go: u64,
    freed: u64,
    /// Of the device.
    taken: u64,
    given_back: u64,
}

impl Log for Balance {
    fn record(&mut self, event: Event) {
        let sum = match event.action {
            Action::Alloc => &mut self.given,
            Action::FreeRequested => &mut self.let_go,
            Action::FreeCompleted => &mut self.freed,
            Action::SegmentAlloc | Action::SegmentMap => &mut self.taken,
            Action::SegmentFree | Action::SegmentUnmap => &mut self.given_back,
            _ => return,
        };
        *sum += event.size;
    }
}

impl Balance {
    /// Whether everything was freed and given back; in words if it was not.
    pub(super) fn check(&self) -> Result<(), String> {
        let Balance { given, let_go, freed, taken, given_back } = self;
        if given != let_go || given != freed {
            return Err(format!("the log: {given} bytes given, {let_go} let go, {freed} freed"));
        }
        if taken != given_back {
            return Err(format!(
                "the log: {taken} bytes taken from the device, {given_back} given back"
            ));
        }
        Ok(())
    }
}
