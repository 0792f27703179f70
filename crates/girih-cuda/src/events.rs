//! Events, made once and used again.
//!
//! A slot is an event of the driver and lives as long as the device; what a caller holds is the slot
//! with the number of its use, so that an id of an earlier use is told from the present one.

use girih_runtime::StreamEvent;

use crate::driver::types::CuEvent;

/// An event of the driver.
#[derive(Clone, Copy, Debug)]
struct Slot {
    event: CuEvent,
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
    /// The event that [`EventPool::give`] gives next; nothing if all are in use.
    pub(crate) fn next(&self) -> Option<CuEvent> {
        self.vacant.last().map(|&slot| self.slots[slot as usize].event)
    }

    /// Takes in an event that was just made.
    pub(crate) fn add(&mut self, event: CuEvent) {
        self.vacant.push(self.slots.len() as u32);
        self.slots.push(Slot { event, uses: 0, given: false });
    }

    /// Gives the event that [`EventPool::next`] named.
    pub(crate) fn give(&mut self) -> Option<StreamEvent> {
        let index = self.vacant.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.uses = slot.uses.wrapping_add(1);
        slot.given = true;
        Some(StreamEvent(u64::from(slot.uses) << 32 | u64::from(index)))
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
