//! Events, made once and used again.
//!
//! A slot is an event of the driver and lives as long as the device; what a caller holds is the slot
//! with the number of its use, so that an id of an earlier use is told from the present one. An event belongs
//! to the context that it was made in, and is recorded on streams of that one alone.

use girih_runtime::StreamEvent;

use crate::driver::types::{CuContext, CuEvent};

/// An event of the driver.
#[derive(Clone, Copy, Debug)]
struct Slot {
    event: CuEvent,
    context: CuContext,
    /// How often it was given.
    uses: u32,
    given: bool,
}

/// All events of a device.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl EventPool {
    /// An event of a context that is not in use, with its slot; nothing if all are.
    pub(crate) fn vacant(&self, context: CuContext) -> Option<(u32, CuEvent)> {
        let mut vacant = self.vacant.iter().rev().copied();
        let slot = vacant.find(|&slot| self.slots[slot as usize].context == context)?;
        Some((slot, self.slots[slot as usize].event))
    }

    /// Takes in an event that was just made. Its slot.
    pub(crate) fn add(&mut self, context: CuContext, event: CuEvent) -> u32 {
        let slot = self.slots.len() as u32;
        self.vacant.push(slot);
        self.slots.push(Slot { event, context, uses: 0, given: false });
        slot
    }

    /// Gives the vacant event of a slot.
    pub(crate) fn give(&mut self, index: u32) -> StreamEvent {
        // Nearly always the last.
        if let Some(place) = self.vacant.iter().rposition(|&vacant| vacant == index) {
            self.vacant.swap_remove(place);
        }
        let slot = &mut self.slots[index as usize];
        slot.uses = slot.uses.wrapping_add(1);
        slot.given = true;
        StreamEvent(u64::from(slot.uses) << 32 | u64::from(index))
    }

    fn slot(&self, id: StreamEvent) -> Option<usize> {
        let index = (id.0 & u64::from(u32::MAX)) as usize;
        let slot = self.slots.get(index)?;
        (slot.given && u64::from(slot.uses) == id.0 >> 32).then_some(index)
    }

    /// The event of an id that is in use.
    pub(crate) fn get(&self, id: StreamEvent) -> Option<CuEvent> {
        self.slot(id).map(|slot| self.slots[slot].event)
    }

    /// Takes an event back. False if the id is not in use.
    pub(crate) fn take_back(&mut self, id: StreamEvent) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        self.slots[slot].given = false;
        self.vacant.push(slot as u32);
        true
    }

    /// The number of events in use.
    pub(crate) fn given(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Every event, to be destroyed with the device.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = CuEvent> {
        self.vacant.clear();
        self.slots.drain(..).map(|slot| slot.event)
    }
}
