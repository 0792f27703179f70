//! The records of saved tensors: one for each storage that autograd keeps for the backward pass.
//!
//! An id is a place of the table with the number of its use, so that one of a record that is gone is told from
//! another's. Records are found by where they are, in the order in which they were saved: backward uses them in the
//! reverse.

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_runtime::{Address, StreamEvent};
use girih_swap::record::{Record, State};
use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::host::Slot;
use super::storages::StorageId;
use super::waits::Shape;

/// A record of the table. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RecordId(pub(crate) u64);

/// One storage, and what its record needs.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Where its bytes are.
    pub(crate) record: Record,
    pub(crate) storage: StorageId,
    /// Bytes of the storage.
    pub(crate) size: u64,
    /// What tensor it is, the same in every step.
    pub(crate) kind: u64,
    /// Where it is on the GPU; 0 while it is not.
    pub(crate) address: Address,
    /// The stream that its bytes are of.
    pub(crate) stream: StreamId,
    /// Tensors over it that autograd has saved.
    pub(crate) saves: u64,
    /// When it was saved first: the number of the save.
    pub(crate) number: u64,
    /// What a user knows it by: its shape, the operator of its step that saved it, and the module.
    pub(crate) shape: Shape,
    pub(crate) saved_at: u32,
    pub(crate) module: Option<Arc<str>>,
    /// The stream on which it was saved or used last: whoever had it then writes there, if at all.
    pub(crate) last_on: StreamId,
    /// Once this has come its bytes are written, also by who had it besides autograd; none until nobody has.
    pub(crate) ready: Option<StreamEvent>,
    /// The end of its copy out, and in.
    pub(crate) out: Option<StreamEvent>,
    pub(crate) back: Option<StreamEvent>,
    /// Its place on the host.
    pub(crate) slot: Option<Slot>,
}

/// All records.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Vec<(u32, Option<Entry>)>,
    vacant: Vec<u32>,
    by_storage: FxHashMap<StorageId, RecordId>,
    /// By where they are and when they were saved.
    here: BTreeMap<u64, RecordId>,
    going: BTreeMap<u64, RecordId>,
    away: BTreeMap<u64, RecordId>,
    coming: BTreeMap<u64, RecordId>,
    bytes_here: u64,
    bytes_coming: u64,
    bytes_going: u64,
    bytes_away: u64,
    saved: u64,
}

impl Table {
    /// The record of a storage.
    pub(crate) fn find(&self, storage: StorageId) -> Option<RecordId> {
        self.by_storage.get(&storage).copied()
    }

    /// The number that the next save gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.saved
    }

    /// Enters a storage that was saved just now, on the GPU.
    pub(crate) fn add(&mut self, entry: Entry) -> RecordId {
        let place = self.vacant.pop().unwrap_or(self.entries.len() as u32);
        if place as usize == self.entries.len() {
            self.entries.push((0, None));
        }
        let (uses, vacancy) = &mut self.entries[place as usize];
        *uses = uses.wrapping_add(1).max(1);
        let id = RecordId(u64::from(*uses) << 32 | u64::from(place));
        self.by_storage.insert(entry.storage, id);
        self.here.insert(entry.number, id);
        self.bytes_here += entry.size;
        self.saved = self.saved.max(entry.number + 1);
        *vacancy = Some(entry);
        id
    }

    fn place(&self, id: RecordId) -> Option<usize> {
        let place = (id.0 & u64::from(u32::MAX)) as usize;
        let (uses, _) = self.entries.get(place)?;
        (u64::from(*uses) == id.0 >> 32).then_some(place)
    }

    /// The record of an id; none if it is gone.
    pub(crate) fn get(&self, id: RecordId) -> Option<&Entry> {
        self.entries[self.place(id)?].1.as_ref()
    }

    /// The same, to be changed, but for where it is: [`Table::note_state`].
    pub(crate) fn get_mut(&mut self, id: RecordId) -> Option<&mut Entry> {
        let place = self.place(id)?;
        self.entries[place].1.as_mut()
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, id: RecordId) -> Option<Entry> {
        let place = self.place(id)?;
        let state = self.entries[place].1.as_ref()?.record.state();
        self.leave_shelf(id, state);
        let entry = self.entries[place].1.take()?;
        self.by_storage.remove(&entry.storage);
        self.vacant.push(place as u32);
        Some(entry)
    }

    /// A record was in this state and may be in another now.
    pub(crate) fn note_state(&mut self, id: RecordId, before: State) {
        let Some(entry) = self.get(id) else { return };
        let (now, number, size) = (entry.record.state(), entry.number, entry.size);
        if now == before {
            return;
        }
        self.leave_shelf(id, before);
        match now {
            State::OnGpu => {
                self.here.insert(number, id);
                self.bytes_here += size;
            }
            State::Going => {
                self.going.insert(number, id);
                self.bytes_going += size;
            }
            State::OnHost => {
                self.away.insert(number, id);
                self.bytes_away += size;
            }
            State::Coming => {
                self.coming.insert(number, id);
                self.bytes_coming += size;
            }
            State::Dropped => {}
        }
    }

    fn leave_shelf(&mut self, id: RecordId, state: State) {
        let Some(entry) = self.get(id) else { return };
        let (number, size) = (entry.number, entry.size);
        match state {
            State::OnGpu => {
                self.here.remove(&number);
                self.bytes_here -= size;
            }
            State::Going => {
                self.going.remove(&number);
                self.bytes_going -= size;
            }
            State::OnHost => {
                self.away.remove(&number);
                self.bytes_away -= size;
            }
            State::Coming => {
                self.coming.remove(&number);
                self.bytes_coming -= size;
            }
            State::Dropped => {}
        }
    }

    /// Those on the GPU and nowhere else, the first saved first.
    pub(crate) fn here(&self) -> impl DoubleEndedIterator<Item = RecordId> {
        self.here.values().copied()
    }

    /// Those on their way out, the first saved first.
    pub(crate) fn going(&self) -> impl DoubleEndedIterator<Item = RecordId> {
        self.going.values().copied()
    }

    /// Those on the host that were saved before the record of that number, the last saved first.
    pub(crate) fn away_before(&self, number: u64) -> impl Iterator<Item = RecordId> {
        self.away.range(..number).rev().map(|(_, id)| *id)
    }

    /// Those on their way back, the first saved first: they are used last.
    pub(crate) fn coming(&self) -> impl DoubleEndedIterator<Item = RecordId> {
        self.coming.values().copied()
    }

    /// Bytes on their way out, on the host alone, and on their way back.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        (self.bytes_going, self.bytes_away, self.bytes_coming)
    }

    /// Bytes on the GPU: those that are there, going and coming.
    pub(crate) fn bytes_on_gpu(&self) -> u64 {
        self.bytes_here + self.bytes_going + self.bytes_coming
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_storage.len()
    }

    /// Every record.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter_map(|(_, entry)| entry.as_ref())
    }

    /// Walks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let shelves = [
            (State::OnGpu, &self.here),
            (State::Going, &self.going),
            (State::OnHost, &self.away),
            (State::Coming, &self.coming),
        ];
        let mut found = 0;
        for (state, shelf) in shelves {
            for (number, &id) in shelf {
                let entry = self.get(id).ok_or(format!("record {id:?} is gone"))?;
                if entry.record.state() != state || entry.number != *number {
                    return Err(format!("record {id:?} is not where it is looked for: {entry:?}"));
                }
                found += 1;
            }
        }
        let of = |shelf: &BTreeMap<u64, RecordId>| -> u64 {
            shelf.values().filter_map(|&id| self.get(id)).map(|entry| entry.size).sum()
        };
        let bytes = (of(&self.going), of(&self.away), of(&self.coming));
        if of(&self.here) != self.bytes_here {
            return Err(format!("{} bytes of records on the GPU were counted", self.bytes_here));
        }
        if found != self.all().count() || found != self.len() || bytes != self.bytes() {
            return Err(format!(
                "{found} records are found, {bytes:?} bytes of {:?}",
                self.bytes()
            ));
        }
        for entry in self.all() {
            let (has_gpu, has_host) = (entry.record.has_gpu(), entry.record.has_host());
            if has_gpu != (entry.address != 0) || has_host != entry.slot.is_some() {
                return Err(format!("a record lies elsewhere than it says: {entry:?}"));
            }
        }
        Ok(())
    }
}
