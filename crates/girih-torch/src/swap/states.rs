//! States of optimizers: they lie idle from the end of an optimizer's step to the beginning of its next.
//!
//! ```text
//!   optimizer's step ├─op──op──op── ... ──op──op──op──op──op──┤ optimizer's step
//!       offered ─────┘                                        └───── asked for
//!                     └─out─┘ bytes are free         └─in─┘
//! ```
//!
//! The program offers them when a step has ended, those that it can reach through their optimizer alone, and asks for
//! them before anybody reads them: then they are there, and their records are gone. In between they are records like
//! those of saved tensors, and any request may take them, without Python.
//!
//! As little as can be goes. A state is taken where no saved tensor is left to take, the largest first. As many bytes
//! as were taken so are `wanted` away from then on: copies out begin as soon as states are offered. They come back in
//! the backward pass, once so little else will be in use until the step that they have room, as the step before has
//! shown; what is still away then is waited for. Where a step has needed more so far than the one before did, as one of
//! longer sequences does, it is taken to need as many times more of all that is ahead: states that came by what a short
//! step has shown would have to go again, with every operator anew. What a program with room for all of it sends for
//! nothing is known after some steps ([`Tuning::remembered`](super::tuning::Tuning)), and stays from then on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use girih_runtime::Address;
use girih_swap::record::{State as Place, Wish};
use girih_trace::StreamId;

use super::step::OPERATORS_MAX;
use super::table::{Bytes, Entry, RecordId};
use super::{Fail, LEAST, RECORDS_MAX, Swap};
use crate::error::{Outcome, unsupported};
use crate::heap::{Saved, State};

/// Some heap swaps, and may want states.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// True once some heap of the process swaps: before, states need not be offered.
pub(crate) fn are_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// An operator of a step: its key, and the most bytes in use that are no states, during it or afterwards.
type Others = (u64, u64);

/// Large states that are not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OtherStates {
    /// Somebody besides their optimizer has them.
    pub shared: u64,
    /// They are tensors of which nobody can tell.
    pub unseen: u64,
}

/// What is known of the states of a heap.
#[derive(Debug, Default)]
pub(super) struct States {
    /// The program captures graphs, which have addresses of their own: states stay where they are.
    is_off: bool,
    /// An optimizer has its states: what is in use besides cannot be told from them.
    is_stepping: bool,
    /// Bytes that leave when they are offered.
    wanted: u64,
    now: Vec<Others>,
    before: Vec<Others>,
    /// How many times more this step has needed at some operator than the one before did from there on; less than one
    /// says nothing.
    times: f64,
    /// The most bytes of this step that were no states, on the GPU or away; of states; and in use, in the step before
    /// and in this.
    need: u64,
    total: u64,
    peak_before: u64,
    peak: u64,
    /// By how much the last steps would have gone over the room with all states there.
    excess: VecDeque<u64>,
}

impl States {
    /// Of a heap that swaps from now on.
    pub(super) fn open() -> States {
        IS_WANTED.store(true, Ordering::Relaxed);
        States::default()
    }

    /// An operator begins.
    pub(super) fn begin(&mut self, key: u64, others: u64) {
        if self.now.len() < OPERATORS_MAX {
            self.now.push((key, if self.is_stepping { 0 } else { others }));
        }
    }

    /// So many bytes are in use, of which `of_states` are states; and `away` of saved tensors are on the host.
    fn saw(&mut self, in_use: u64, of_states: Bytes, away: u64) {
        self.peak = self.peak.max(in_use);
        if self.is_stepping {
            return;
        }
        let others = in_use.saturating_sub(of_states.on_gpu());
        if let Some((key, most)) = self.now.last_mut() {
            *most = others.max(*most);
            let (key, most) = (*key, *most);
            if let Some(&(_, known)) = self.before.get(self.now.len() - 1).filter(|it| it.0 == key)
                && most > known
            {
                self.times = self.times.max(most as f64 / known.max(1) as f64);
            }
        }
        self.need = self.need.max(others + away);
        self.total = self.total.max(of_states.all());
    }

    /// States had to go for a request: so many bytes of them are away now.
    pub(super) fn took(&mut self, away: u64) {
        self.wanted = self.wanted.max(away);
    }

    /// A step ends.
    pub(super) fn end(&mut self, room: u64, remembered: u32) {
        let excess = self.need.saturating_add(self.total).saturating_sub(room);
        self.excess.push_back(excess);
        if self.excess.len() > remembered as usize {
            self.excess.pop_front();
        }
        let most = self.excess.iter().copied().max().unwrap_or(0);
        if self.excess.len() == remembered as usize {
            self.wanted = self.wanted.min(most);
        }
        (self.need, self.total, self.times) = (0, 0, 1.0);
        (self.peak_before, self.peak) = (self.peak, 0);
        self.before = std::mem::take(&mut self.now);
        let mut most = 0;
        for (_, others) in self.before.iter_mut().rev() {
            most = most.max(*others);
            *others = most;
        }
    }

    /// The most bytes besides states from the operator that runs until the next step of an optimizer, if the step
    /// does what the one before did, with as many times more bytes as it had so far.
    fn others_ahead(&self) -> Option<u64> {
        let (key, _) = self.now.last()?;
        let (known, others) = self.before.get(self.now.len() - 1)?;
        (known == key).then_some((*others as f64 * self.times.max(1.0)) as u64)
    }

    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> usize {
        let operators = self.now.capacity() + self.before.capacity();
        operators * size_of::<Others>() + self.excess.capacity() * size_of::<u64>()
    }

    /// True if a state may go.
    pub(super) fn may_go(&self) -> bool {
        !self.is_off
    }

    /// Bytes that leave when they are offered.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }
}

impl Swap {
    /// An optimizer has stepped, on a stream, and nobody can reach these states of it before they are asked for. The ids
    /// of their records; 0 for those that stay.
    ///
    /// # Errors
    /// What the driver refused. Then none of them has a record.
    pub(crate) fn offer_states(
        &mut self,
        state: &mut State,
        offered: &[Saved],
        others: OtherStates,
        stream: StreamId,
    ) -> Outcome<Vec<u64>> {
        self.states.is_stepping = false;
        self.counts.states_shared += others.shared;
        self.counts.states_unseen += others.unseen;
        let is_capturing = state.device.is_capturing(stream)?;
        self.states.is_off |= is_capturing;
        if self.states.is_off || state.is_transient(stream) {
            self.counts.states_unseen += offered.len() as u64;
            return Ok(vec![0; offered.len()]);
        }
        let bytes = offered.iter().map(|saved| saved.size).sum();
        if !self.may_need_states(bytes) {
            return Ok(vec![0; offered.len()]);
        }
        // Of what an optimizer does on streams of its own, the copies come after what it has done there too.
        let mut homes: Vec<StreamId> =
            offered.iter().filter_map(|saved| self.streams.get(&saved.address).copied()).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|home| *home != stream && !state.is_transient(*home));
        for home in homes {
            let now = state.device.record_event(home)?;
            let waited = state.device.wait_event(self.out, now);
            state.device.destroy_event(now)?;
            waited?;
        }
        let ids = offered.iter().map(|saved| self.offer(state, *saved, stream)).collect();
        // What is planned comes with the first operator.
        if !self.steps.has_policy() {
            self.send_states(state);
        }
        Ok(ids)
    }

    /// At the edge: whether the steps may come near it, with these states. With a budget they are always offered.
    fn may_need_states(&self, bytes: u64) -> bool {
        let peak = self.states.peak_before.max(self.states.peak);
        let is_near = self.pin_at == u64::MAX || peak.saturating_add(bytes) > self.pin_at;
        !self.is_edge || self.room != u64::MAX || is_near
    }

    fn offer(&mut self, state: &State, saved: Saved, stream: StreamId) -> u64 {
        let Saved { storage, address, size, .. } = saved;
        let home = self.streams.get(&address).copied().filter(|home| !state.is_transient(*home));
        let is_known = self.table.find(storage).is_some() || self.table.len() >= RECORDS_MAX;
        let (Some(home), false, true) = (home, is_known, size >= LEAST) else {
            self.counts.states_unseen += 1;
            return 0;
        };
        if self.storages.owners(storage) != 1 || self.storages.address(storage) != address {
            self.counts.states_shared += 1;
            return 0;
        }
        let number = self.table.next_number_of_state(size);
        let id = self.table.add(Entry::of(saved, home, number, stream));
        self.steps.offers(id, size);
        id.0
    }

    /// Copies out begin of as many states as had to go before.
    fn send_states(&mut self, state: &mut State) {
        let here: Vec<RecordId> = self.table.states_here().collect();
        for id in here {
            let bytes = self.table.bytes_of_states();
            if bytes.going + bytes.away >= self.states.wanted {
                return;
            }
            match self.carry(state, id, Wish::Leave) {
                Ok(()) => {}
                Err(Fail::Host(_)) => {
                    self.counts.host_full += 1;
                    return;
                }
                // It is where it was. What the device refuses now it refuses the program too.
                Err(_) => return,
            }
        }
    }

    /// States are about to be used, by the step of their optimizer on a stream, or by whoever has asked for them
    /// between steps: afterwards they are there, and have no records any more. Those without one are left alone.
    ///
    /// In a step the stream waits for what is late. Between steps it is not known which streams will read them: there
    /// the host waits.
    ///
    /// # Errors
    /// Out of memory, or what the driver refused: then each of them is where it was, or there, and they can be asked
    /// for again.
    pub(crate) fn use_states(
        &mut self,
        state: &mut State,
        ids: &[RecordId],
        stream: StreamId,
        is_step: bool,
    ) -> Outcome<()> {
        self.states.is_stepping |= is_step;
        if !is_step {
            self.counts.states_asked += 1;
        }
        let gone = self.let_states_go(state, ids, Some(stream), !is_step);
        if is_step {
            self.steps.begin_stepping();
        }
        gone
    }

    /// The program begins to capture a graph, which will have addresses of its own: from now on all states stay.
    pub(crate) fn keep_states(&mut self, state: &mut State) {
        if std::mem::replace(&mut self.states.is_off, true) {
            return;
        }
        let ids: Vec<RecordId> = self.table.states_anywhere().collect();
        // Without room they stay away, and whoever asks for them is told.
        let _ = self.let_states_go(state, &ids, None, true);
    }

    /// Brings states back for a stream, or each for its own, and forgets their records.
    fn let_states_go(
        &mut self,
        state: &mut State,
        ids: &[RecordId],
        stream: Option<StreamId>,
        host_waits: bool,
    ) -> Outcome<()> {
        // None of them makes room for another.
        self.hold_states(ids, true);
        let brought = self.bring_states(state, ids, stream, host_waits);
        if brought.is_err() {
            self.hold_states(ids, false);
            return brought;
        }
        let mut dropped = Ok(());
        for &id in ids {
            dropped = self.drop_saved(state, id).and(dropped);
        }
        dropped
    }

    fn hold_states(&mut self, ids: &[RecordId], is_held: bool) {
        for &id in ids {
            if let Some(entry) = self.table.get_mut(id) {
                entry.is_held = is_held;
            }
        }
    }

    fn bring_states(
        &mut self,
        state: &mut State,
        ids: &[RecordId],
        stream: Option<StreamId>,
        host_waits: bool,
    ) -> Outcome<()> {
        let mut is_moving = false;
        for &id in ids {
            let Some(entry) = self.table.get(id) else { continue };
            let (home, place) = (entry.stream, entry.record.state());
            let user = stream.unwrap_or(home);
            if place != Place::OnGpu {
                if !is_moving && state.device.is_capturing(user)? {
                    return Err(unsupported(
                        "states of an optimizer are on the host, and cannot come back while a graph is captured: read \
                         `optimizer.state` before the capture begins",
                    ));
                }
                is_moving = true;
            }
            self.counts.states_late += u64::from(place == Place::OnHost);
            self.bring(state, id, user)?;
            if user != home
                && let Some(address) = self.address_of(id)
            {
                state.add_use(address, user)?;
            }
        }
        if is_moving && host_waits {
            state.device.synchronize_stream(self.inward)?;
        }
        Ok(())
    }

    fn address_of(&self, id: RecordId) -> Option<Address> {
        self.table.get(id).map(|entry| entry.address)
    }

    /// In a backward pass that nobody has planned: states come back for which there will be room from now on.
    pub(super) fn fetch_states(&mut self, state: &mut State) -> Outcome<()> {
        if self.steps.is_following() {
            return Ok(());
        }
        while let Some(id) = self.table.state_away() {
            let Some(size) = self.table.get(id).map(|entry| entry.size) else { return Ok(()) };
            let Some(others) = self.states.others_ahead() else { return Ok(()) };
            let here = self.table.bytes_of_states().on_gpu();
            let with_it = others.saturating_add(here).saturating_add(size);
            if with_it > self.room || !self.fetch(state, id)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Memory was given.
    pub(super) fn note_load_of_states(&mut self, state: &State) {
        let (of_states, away) = (self.table.bytes_of_states(), self.table.bytes_saved().away);
        self.states.saw(state.bytes_in_use(), of_states, away);
    }
}
