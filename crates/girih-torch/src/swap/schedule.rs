//! What was planned, done when its time has come.

use girih_runtime::lake::Asked;
use girih_swap::record::{State as Place, Wish};
use girih_trace::StreamId;

use super::carry::mark_ready;
use super::table::RecordId;
use super::{Fail, Swap};
use crate::error::Outcome;
use crate::heap::State;

/// What becomes due with an operator.
struct Due {
    leave: Vec<RecordId>,
    release: Vec<RecordId>,
    fetch: Vec<RecordId>,
}

impl Swap {
    /// An operator begins on a stream: a save or a use, of that key.
    pub(super) fn begin_operator(
        &mut self,
        state: &mut State,
        key: u64,
        stream: StreamId,
    ) -> Outcome<()> {
        if self.steps.begin(key, self.load(state))
            && let Some(copies) = state.device.copies()
        {
            // A device that does not tell the time costs the plan, not the program.
            if let Ok(stamp) = copies.take_time(stream) {
                self.steps.note_time(stamp);
            }
        }
        let others = state.bytes_in_use().saturating_sub(self.table.bytes_of_states().on_gpu());
        self.states.begin(key, others);
        self.look_who_is_idle(state);
        Ok(())
    }

    /// Looks at those that somebody else had when they were saved. Whoever it was may have written into them until now,
    /// and autograd need not have been told (`tensor.data`, a kernel or a collective of its own): their bytes are what
    /// autograd would read only once that is done.
    fn look_who_is_idle(&mut self, state: &mut State) {
        let shared = std::mem::take(&mut self.steps.shared);
        let (idle, shared) = shared.into_iter().partition(|&id| self.is_idle(id));
        self.steps.shared = shared;
        let idle: Vec<RecordId> = idle;
        for id in idle {
            self.steps.is_idle_now(id);
            if let Some(entry) = self.table.get_mut(id)
                && entry.ready.is_empty()
            {
                // If the device refuses, the copy out asks again.
                let _ = mark_ready(&mut *state.device, entry);
            }
        }
    }

    fn due(&self) -> Due {
        // Who should have left by now leaves if it must.
        let leave = self.steps.needs_all().then(|| self.steps.due(false, |policy| &policy.leave));
        Due {
            leave: leave.unwrap_or_default(),
            release: self.steps.due(true, |policy| &policy.release),
            fetch: self.steps.due(true, |policy| &policy.fetch),
        }
    }

    /// Does what the plan of this step wants of the operator that begins.
    pub(super) fn do_what_is_due(&mut self, state: &mut State) -> Outcome<()> {
        let Due { leave, release, fetch } = self.due();
        for id in release {
            if self.place_of(id) == Some(Place::Going) && self.is_idle(id) {
                self.carry(state, id, Wish::Release)?;
            }
        }
        let mut late = std::mem::take(&mut self.steps.late);
        late.extend(leave);
        for id in late {
            if self.place_of(id) != Some(Place::OnGpu) {
                continue;
            }
            if !self.is_idle(id) {
                self.steps.late.push(id);
                continue;
            }
            match self.carry(state, id, Wish::Leave) {
                Ok(()) => {}
                Err(Fail::Host(_)) => self.counts.host_full += 1,
                Err(fail) => return Err(fail.into()),
            }
        }
        let mut wanted = std::mem::take(&mut self.steps.wanted);
        wanted.extend(fetch);
        for id in wanted {
            if !self.fetch(state, id)? {
                self.steps.wanted.push(id);
            }
        }
        Ok(())
    }

    fn place_of(&self, id: RecordId) -> Option<Place> {
        self.table.get(id).map(|entry| entry.record.state())
    }

    /// A step ends and the next begins. Says what the next will ask for.
    pub(crate) fn end_step(&mut self, state: &mut State) -> Asked {
        self.tell_refusal(state);
        let mut forgotten = Vec::new();
        let driver = state.device.memory_time();
        let refused = state.engine.layings().refused;
        let (driver_before, refused_before) =
            std::mem::replace(&mut self.driver, (driver, refused));
        let driver = driver.saturating_sub(driver_before);
        self.steps.note_driver(driver.as_secs_f64() * 1e6, refused > refused_before);
        self.clearing.end_step();
        let Some(copies) = state.device.copies() else { return Asked::default() };
        self.waits.read_all(copies, |at, us| self.steps.waited(at, us));
        self.links.end_step(copies);
        self.steps.set_links(self.links.links());
        // What the device does not tell costs the plan of a step.
        self.steps.end(|from, to| copies.time_between(from, to).ok().flatten(), &mut forgotten);
        forgotten.into_iter().for_each(|stamp| copies.forget_time(stamp));
        self.states.end(self.room, self.tuning.remembered);
        self.links.watch(self.steps.times_copies());
        self.steps.asked()
    }

    /// True once anything has gone to the host.
    pub(crate) fn has_swapped(&self) -> bool {
        self.counts.bytes_out > 0
    }
}
