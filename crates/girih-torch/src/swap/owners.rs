//! Who has a record's tensor besides autograd: the threads that were given it, and the streams whose work has it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use girih_trace::StreamId;

use super::Swap;
use super::table::RecordId;
use crate::error::Outcome;
use crate::heap::State;

/// Threads whose last tensor is remembered, each for its own.
const THREADS: usize = 64;

/// A small number for each thread.
fn thread_number() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static OWN: Cell<u64> = const { Cell::new(u64::MAX) };
    }
    let own = OWN.get();
    if own != u64::MAX {
        return own as usize;
    }
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    OWN.set(own);
    own as usize
}

/// For each thread that runs a backward pass, the record that it was given last: its tensor may not have an owner yet.
pub(super) struct InHand([Option<RecordId>; THREADS]);

impl Default for InHand {
    fn default() -> InHand {
        InHand([None; THREADS])
    }
}

impl InHand {
    /// This thread has what it was given last in the hands of autograd by now.
    pub(super) fn let_go(&mut self) {
        if let Some(held) = self.0.get_mut(thread_number()) {
            *held = None;
        }
    }

    /// This thread is given a record's tensor. False if there are more threads than are told apart.
    fn note(&mut self, id: RecordId) -> bool {
        let Some(held) = self.0.get_mut(thread_number()) else { return false };
        *held = Some(id);
        true
    }

    /// True if a thread may have nothing else that owns the tensor.
    pub(super) fn has(&self, id: RecordId) -> bool {
        self.0.contains(&Some(id))
    }

    /// A record is gone.
    pub(super) fn forget(&mut self, id: RecordId) {
        self.0.iter_mut().filter(|held| **held == Some(id)).for_each(|held| *held = None);
    }
}

impl Swap {
    /// This thread is given a record's tensor.
    pub(super) fn note_in_hand(&mut self, id: RecordId) {
        if !self.in_hand.note(id) {
            // Nobody could tell when it has it no more: it never goes again.
            self.steps.pin(id);
        }
    }

    /// True if a stream can be asked later what it has done. The program may have destroyed others by then, and the
    /// driver crashes on the handle of one that is gone: a record's tensor that such a stream has never goes again.
    pub(super) fn can_be_named(
        &mut self,
        state: &State,
        id: Option<RecordId>,
        stream: StreamId,
    ) -> bool {
        let is_transient = state.is_transient(stream);
        if is_transient {
            id.into_iter().for_each(|id| self.steps.pin(id));
        }
        !is_transient
    }

    /// Somebody has a record's tensor from now on, in the work of this stream, and may write into it: what was known
    /// of its contents is not known any more. Whoever frees its bytes waits for the stream.
    pub(super) fn note_owner(
        &mut self,
        state: &mut State,
        id: RecordId,
        stream: StreamId,
    ) -> Outcome<()> {
        let Some(entry) = self.table.get_mut(id) else { return Ok(()) };
        entry.note_stream(stream);
        let (home, address) = (entry.stream, entry.address);
        let mut destroyed = Ok(());
        for event in entry.ready.drain(..) {
            destroyed = state.device.destroy_event(event).and(destroyed);
        }
        destroyed?;
        // What the program has said of the bytes is forgotten if these are others by now.
        if stream != home { state.add_use(address, stream) } else { Ok(()) }
    }
}
