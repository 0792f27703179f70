//! The records: one for each storage that autograd keeps for the backward pass, and for each state of an optimizer.
//!
//! An id is a place of the table with the number of its use, so that one of a record that is gone is told from
//! another's. Records are found by where they are, in the order in which they were saved: backward uses them in the
//! reverse. States have numbers above all saves: so they come after them in every list, the largest first.

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_runtime::{Address, StreamEvent};
use girih_swap::record::{Record, State};
use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use super::host::Slot;
use super::storages::StorageId;
use super::waits::Shape;
use crate::heap::Saved;

/// The numbers of states of optimizers, from here on.
const STATES: u64 = 1 << 63;
/// The bits of such a number that tell states of one size apart, and those behind them: MiB, the more the smaller.
const APART: u64 = u32::MAX as u64;
const SIZES_MAX: u64 = (1 << 31) - 1;

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
    /// The stream on which it was saved or used last, and the others on which it was since its bytes are there:
    /// whoever had it then reads or writes it there.
    pub(crate) last_on: StreamId,
    pub(crate) earlier: Vec<StreamId>,
    /// Once these have come its bytes are read and written, also by who had it besides autograd; none until nobody has.
    pub(crate) ready: Vec<StreamEvent>,
    /// The end of its copy out, and in.
    pub(crate) out: Option<StreamEvent>,
    pub(crate) back: Option<StreamEvent>,
    /// Its place on the host.
    pub(crate) slot: Option<Slot>,
    /// Its optimizer, or somebody who asked for it, has it: it stays.
    pub(crate) is_held: bool,
}

impl Entry {
    /// Of a storage that has its bytes, of a stream, and was used last on another: saved once, outside all operators and
    /// modules.
    pub(crate) fn of(saved: Saved, stream: StreamId, number: u64, last_on: StreamId) -> Entry {
        let Saved { storage, address, size, kind, shape } = saved;
        Entry {
            record: Record::default(),
            storage,
            size,
            kind,
            address,
            stream,
            saves: 1,
            number,
            shape,
            saved_at: 0,
            module: None,
            last_on,
            earlier: Vec::new(),
            ready: Vec::new(),
            out: None,
            back: None,
            slot: None,
            is_held: false,
        }
    }

    /// It is saved or used on a stream.
    pub(crate) fn note_stream(&mut self, stream: StreamId) {
        let before = std::mem::replace(&mut self.last_on, stream);
        if before != stream {
            self.earlier.retain(|known| *known != stream);
            self.earlier.push(before);
        }
    }

    /// Its bytes go: others that come are of its own stream, and nobody has had them.
    pub(crate) fn forget_streams(&mut self) {
        self.last_on = self.stream;
        self.earlier.clear();
    }

    /// True for a state of an optimizer, false for what autograd saves.
    pub(crate) fn is_state(&self) -> bool {
        self.number >= STATES
    }
}

/// Bytes by where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) here: u64,
    pub(crate) going: u64,
    pub(crate) away: u64,
    pub(crate) coming: u64,
}

impl Bytes {
    /// Those that are on the GPU.
    pub(crate) fn on_gpu(&self) -> u64 {
        self.here + self.going + self.coming
    }

    /// All.
    pub(crate) fn all(&self) -> u64 {
        self.on_gpu() + self.away
    }

    fn of(&mut self, state: State) -> Option<&mut u64> {
        match state {
            State::OnGpu => Some(&mut self.here),
            State::Going => Some(&mut self.going),
            State::OnHost => Some(&mut self.away),
            State::Coming => Some(&mut self.coming),
            State::Dropped => None,
        }
    }
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
    bytes_saved: Bytes,
    bytes_of_states: Bytes,
    saved: u64,
    /// States that were entered.
    states: u64,
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

    /// The number of a state of so many bytes that is entered next.
    pub(crate) fn next_number_of_state(&mut self, size: u64) -> u64 {
        let by_size = SIZES_MAX - (size >> 20).min(SIZES_MAX);
        loop {
            self.states += 1;
            let number = STATES | by_size << 32 | (self.states & APART);
            let shelves = [&self.here, &self.going, &self.away, &self.coming];
            if !shelves.iter().any(|shelf| shelf.contains_key(&number)) {
                return number;
            }
        }
    }

    /// Enters a storage that is on the GPU: saved just now, or a state of an optimizer.
    pub(crate) fn add(&mut self, entry: Entry) -> RecordId {
        let place = self.vacant.pop().unwrap_or(self.entries.len() as u32);
        if place as usize == self.entries.len() {
            self.entries.push((0, None));
        }
        let (uses, vacancy) = &mut self.entries[place as usize];
        *uses = uses.wrapping_add(1).max(1);
        let id = RecordId(u64::from(*uses) << 32 | u64::from(place));
        self.by_storage.insert(entry.storage, id);
        let (number, size, is_state) = (entry.number, entry.size, entry.is_state());
        *vacancy = Some(entry);
        self.here.insert(number, id);
        self.bytes_mut(is_state).here += size;
        if !is_state {
            self.saved = self.saved.max(number + 1);
        }
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
        let is_state = entry.is_state();
        if now == before {
            return;
        }
        self.leave_shelf(id, before);
        if let Some(shelf) = self.shelf(now) {
            shelf.insert(number, id);
        }
        self.count(now, is_state, |bytes| *bytes += size);
    }

    fn leave_shelf(&mut self, id: RecordId, state: State) {
        let Some(entry) = self.get(id) else { return };
        let (number, size, is_state) = (entry.number, entry.size, entry.is_state());
        if let Some(shelf) = self.shelf(state) {
            shelf.remove(&number);
        }
        self.count(state, is_state, |bytes| *bytes -= size);
    }

    fn shelf(&mut self, state: State) -> Option<&mut BTreeMap<u64, RecordId>> {
        match state {
            State::OnGpu => Some(&mut self.here),
            State::Going => Some(&mut self.going),
            State::OnHost => Some(&mut self.away),
            State::Coming => Some(&mut self.coming),
            State::Dropped => None,
        }
    }

    fn bytes_mut(&mut self, is_state: bool) -> &mut Bytes {
        if is_state { &mut self.bytes_of_states } else { &mut self.bytes_saved }
    }

    fn count(&mut self, state: State, is_state: bool, change: impl FnOnce(&mut u64)) {
        if let Some(bytes) = self.bytes_mut(is_state).of(state) {
            change(bytes);
        }
    }

    /// Those on the GPU and nowhere else: the first saved first, then states, the largest first.
    pub(crate) fn here(&self) -> impl DoubleEndedIterator<Item = RecordId> {
        self.here.values().copied()
    }

    /// The saved ones of these.
    pub(crate) fn saved_here(&self) -> impl DoubleEndedIterator<Item = RecordId> {
        self.here.range(..STATES).map(|(_, id)| *id)
    }

    /// The states among them.
    pub(crate) fn states_here(&self) -> impl Iterator<Item = RecordId> {
        self.here.range(STATES..).map(|(_, id)| *id)
    }

    /// All states, wherever they are.
    pub(crate) fn states_anywhere(&self) -> impl Iterator<Item = RecordId> {
        let shelves = [&self.here, &self.going, &self.away, &self.coming];
        shelves.into_iter().flat_map(|shelf| shelf.range(STATES..)).map(|(_, id)| *id)
    }

    /// Those on their way out, in the order in which they went: states, which go when a step ends, then the first
    /// saved first.
    pub(crate) fn going(&self) -> impl Iterator<Item = RecordId> {
        self.going.range(STATES..).chain(self.going.range(..STATES)).map(|(_, id)| *id)
    }

    /// Those on the host that were saved before the record of that number, the last saved first.
    pub(crate) fn away_before(&self, number: u64) -> impl Iterator<Item = RecordId> {
        self.away.range(..number.min(STATES)).rev().map(|(_, id)| *id)
    }

    /// A state that is on the host.
    pub(crate) fn state_away(&self) -> Option<RecordId> {
        self.away.range(STATES..).next().map(|(_, id)| *id)
    }

    /// Those on their way back: states, which are used last, then the first saved first.
    pub(crate) fn coming(&self) -> impl Iterator<Item = RecordId> {
        self.coming.range(STATES..).chain(self.coming.range(..STATES)).map(|(_, id)| *id)
    }

    /// Bytes of what autograd has saved.
    pub(crate) fn bytes_saved(&self) -> Bytes {
        self.bytes_saved
    }

    /// Bytes of states of optimizers.
    pub(crate) fn bytes_of_states(&self) -> Bytes {
        self.bytes_of_states
    }

    /// Bytes of both on the GPU: those that are there, going and coming.
    pub(crate) fn bytes_on_gpu(&self) -> u64 {
        self.bytes_saved.on_gpu() + self.bytes_of_states.on_gpu()
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
        if found != self.all().count() || found != self.len() {
            return Err(format!("{found} records are found of {}", self.len()));
        }
        for is_state in [false, true] {
            let mut bytes = Bytes::default();
            for entry in self.all().filter(|entry| entry.is_state() == is_state) {
                if let Some(bytes) = bytes.of(entry.record.state()) {
                    *bytes += entry.size;
                }
            }
            let counted = if is_state { self.bytes_of_states } else { self.bytes_saved };
            if bytes != counted {
                return Err(format!("there are {bytes:?} of records, {counted:?} were counted"));
            }
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
