//! Who goes when memory runs short.
//!
//! In this order, until the request fits: what is free in the heap, stitched or given back if need be, which is the
//! policy's business; what is on its way out, for the end of whose copies the stream waits; then
//! the best of the saved tensors that lie idle; then states of optimizers, the largest first; then what came back and is
//! not wanted yet, which needs no copy.
//!
//! The best is the one that was saved first, as long as nothing better is known: backward wants it last.

use girih_runtime::Request;
use girih_swap::record::{State as Place, Wish};

use super::table::{Entry, RecordId};
use super::{Fail, LEAST, Swap};
use crate::error::Outcome;
use crate::heap::State;

/// Bytes that shall go for a request that was refused after so many refusals before. How much is missing is not known,
/// and is mostly little: what is held lies in pieces of which the ends are no use. So little goes first, and four times
/// as much each time.
pub(super) fn goal_after(refusals: u64) -> u64 {
    LEAST << (2 * refusals.min(20))
}

impl Swap {
    /// Makes room for a request, if more would be in use than may be.
    pub(super) fn make_room(&mut self, state: &mut State, request: Request) -> Outcome<()> {
        let in_use = state.bytes_in_use().saturating_add(request.size);
        if self.is_edge && request.size >= LEAST {
            self.watch_edge(in_use);
        }
        if in_use <= self.room {
            return self.go_ahead(state, request);
        }
        if state.device.is_capturing(request.stream)? {
            return Ok(());
        }
        while state.bytes_in_use().saturating_add(request.size) > self.room {
            if !self.send_one(state)? {
                break;
            }
        }
        Ok(())
    }

    /// Lets go of so many bytes because the device gave none. False if there is nothing to let go of.
    pub(super) fn make_more_room(
        &mut self,
        state: &mut State,
        request: Request,
        bytes: u64,
    ) -> Outcome<bool> {
        if state.device.is_capturing(request.stream)? {
            return Ok(false);
        }
        let before = state.bytes_in_use();
        while before - state.bytes_in_use().min(before) < bytes {
            if !self.send_one(state)? {
                break;
            }
        }
        Ok(state.bytes_in_use() < before)
    }

    /// Frees the bytes of one record. False if there is none.
    fn send_one(&mut self, state: &mut State) -> Outcome<bool> {
        let going = self.table.going().find(|&id| self.is_idle(id));
        if let Some(id) = going {
            self.carry(state, id, Wish::Release)?;
            return Ok(true);
        }
        let (mut first, mut is_host_full) = (0, false);
        while !is_host_full {
            // If all of these are others' too, those behind them may still do.
            let here = self.table.here().skip(first).take(self.tuning.looked_at);
            let mut candidates: Vec<RecordId> = here.collect();
            if candidates.is_empty() {
                break;
            }
            first += candidates.len();
            self.steps.order_victims(&mut candidates);
            for id in candidates {
                if !self.is_idle(id) {
                    self.counts.shared += 1;
                    continue;
                }
                match self.carry(state, id, Wish::Release) {
                    Ok(()) => {
                        self.steps.is_idle_now(id);
                        self.counts.victims += 1;
                        if self.table.get(id).is_some_and(Entry::is_state) {
                            let bytes = self.table.bytes_of_states();
                            self.states.took(bytes.going + bytes.away);
                        }
                        return Ok(true);
                    }
                    Err(Fail::Host(_)) => {
                        self.counts.host_full += 1;
                        is_host_full = true;
                    }
                    Err(fail) => return Err(fail.into()),
                }
            }
        }
        let unused = self.table.coming().find(|&id| self.is_idle(id));
        let Some(id) = unused else { return Ok(false) };
        self.carry(state, id, Wish::Release)?;
        self.counts.sent_back += 1;
        Ok(true)
    }

    /// True if nobody but autograd has the storage of a record, or the dictionary of an optimizer that nobody can
    /// reach, and no thread was given it just now.
    pub(super) fn is_idle(&self, id: RecordId) -> bool {
        let Some(entry) = self.table.get(id) else { return false };
        let is_held = entry.is_held || self.in_hand.has(id) || self.steps.is_pinned(id);
        let may_go = !entry.is_state() || self.states.may_go();
        !is_held && may_go && self.is_sole(entry)
    }

    /// A storage whose bytes somebody else has replaced meanwhile (`resize_`) is not the record's any more.
    fn is_sole(&self, entry: &Entry) -> bool {
        self.storages.owners(entry.storage) == entry.saves
            && self.storages.address(entry.storage) == entry.address
    }

    /// In a forward pass of which there is no plan, copies begin before their bytes are needed: else the request that
    /// needs them would wait for all of the copy.
    fn go_ahead(&mut self, state: &mut State, request: Request) -> Outcome<()> {
        let ahead = self.room / self.tuning.ahead_part;
        let in_use = state.bytes_in_use().saturating_add(request.size);
        let going = self.table.bytes_saved().going + self.table.bytes_of_states().going;
        let is_near = in_use > self.room - ahead && going < ahead;
        if !is_near || self.is_backward || self.steps.is_as_planned() || self.steps.fits() {
            return Ok(());
        }
        if state.device.is_capturing(request.stream)? {
            return Ok(());
        }
        let mut candidates: Vec<RecordId> =
            self.table.saved_here().take(self.tuning.looked_at).collect();
        self.steps.order_victims(&mut candidates);
        let first = candidates.into_iter().find(|&id| self.is_idle(id));
        let Some(id) = first else { return Ok(()) };
        match self.carry(state, id, Wish::Leave) {
            Ok(()) => {
                self.steps.is_idle_now(id);
                Ok(())
            }
            Err(Fail::Host(_)) => {
                self.counts.host_full += 1;
                Ok(())
            }
            Err(fail) => Err(fail.into()),
        }
    }

    /// A record's tensor is fetched if there is room for it. False if there is none.
    pub(super) fn fetch(&mut self, state: &mut State, id: RecordId) -> Outcome<bool> {
        let Some(entry) = self.table.get(id) else { return Ok(true) };
        let size = entry.size;
        if entry.record.state() != Place::OnHost {
            return Ok(true);
        }
        if state.bytes_in_use().saturating_add(size) > self.room {
            return Ok(false);
        }
        self.is_last_try = false;
        match self.carry(state, id, Wish::Fetch) {
            Ok(()) => Ok(true),
            Err(Fail::Gpu(_)) => {
                // Nobody has asked for it yet.
                state.forgive_ooms(1);
                Ok(false)
            }
            Err(fail) => Err(fail.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_more_go_however_many_there_were() {
        assert_eq!([0, 1, 2, 5].map(goal_after), [1 << 20, 4 << 20, 16 << 20, 1 << 30]);
        assert!((0..200).all(|refusals| goal_after(refusals + 1) >= goal_after(refusals)));
    }
}
