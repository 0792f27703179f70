//! Swapping, as a heap does it: see [`swap`](crate::swap).

use girih_runtime::{Address, Request};
use girih_trace::StreamId;

use super::{Heap, State};
use crate::error::{Outcome, unknown};
use crate::settings::Settings;
use crate::swap::states::OtherStates;
use crate::swap::storages::{self, StorageId};
use crate::swap::{RecordId, Shape, Swap, SwapReport};

/// A tensor that autograd saves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Its storage.
    pub storage: StorageId,
    /// Where that begins on the GPU.
    pub address: Address,
    /// Bytes of the storage.
    pub size: u64,
    /// What tensor it is, the same in every step.
    pub kind: u64,
    /// Its shape, for who reads of it.
    pub shape: Shape,
}

impl Heap {
    /// Autograd saves a tensor, whose contents are there once what the stream of that handle does now is done. The id
    /// of its record; 0 if it stays on the GPU, for nothing is swapped, or it is small, or not of this heap.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn save(&self, saved: Saved, stream: u64) -> Outcome<u64> {
        self.with(|state| {
            let stream = state.stream(stream)?;
            let id = state.with_swap(|swap, state| swap.save(state, saved, stream))?;
            Ok(id.flatten().map_or(0, |id| id.0))
        })
    }

    /// Autograd is about to use a saved tensor on the stream of that handle. Afterwards its storage has its bytes.
    ///
    /// # Errors
    /// Out of memory; what the driver refused; or if there is no such record.
    pub fn use_saved(&self, id: u64, stream: u64) -> Outcome<()> {
        self.with(|state| {
            let stream = state.stream(stream)?;
            let used = state.with_swap(|swap, state| swap.use_saved(state, RecordId(id), stream));
            used?.ok_or_else(|| unknown("nothing is swapped on this device"))
        })
    }

    /// Autograd has given a saved tensor up; its storage is freed after this if it has no other owner.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn drop_saved(&self, id: u64) -> Outcome<()> {
        self.with(|state| {
            state.with_swap(|swap, state| swap.drop_saved(state, RecordId(id)))?;
            Ok(())
        })
    }

    /// An optimizer has stepped on the stream of that handle, and until they are asked for nobody can reach these
    /// states of it. For each the id of its record; 0 if it stays on the GPU.
    ///
    /// # Errors
    /// What the driver refused. Then none has a record.
    pub fn offer_states(
        &self,
        offered: &[Saved],
        others: OtherStates,
        stream: u64,
    ) -> Outcome<Vec<u64>> {
        self.with(|state| {
            let stream = state.stream(stream)?;
            let ids =
                state.with_swap(|swap, state| swap.offer_states(state, offered, others, stream))?;
            Ok(ids.unwrap_or_else(|| vec![0; offered.len()]))
        })
    }

    /// States are asked for, by the step of their optimizer (`is_step`) on the stream of that handle, or between steps.
    /// Afterwards their storages have their bytes, and they have no records any more.
    ///
    /// # Errors
    /// Out of memory; what the driver refused. Then they can be asked for again.
    pub fn use_states(&self, ids: &[u64], stream: u64, is_step: bool) -> Outcome<()> {
        let ids: Vec<RecordId> = ids.iter().copied().map(RecordId).collect();
        self.with(|state| {
            let stream = state.stream(stream)?;
            state.with_swap(|swap, state| swap.use_states(state, &ids, stream, is_step))?;
            Ok(())
        })
    }
}

impl State {
    /// Begins to swap within a budget, if the settings have one; says why not, if it cannot be.
    pub(super) fn open_swap(&mut self, settings: &Settings) {
        if settings.swap.gpu_budget.is_none() {
            return;
        }
        self.set_limit();
        let opened = Swap::open(settings.swap, storages::of_the_process(), self);
        match opened {
            Ok(swap) => self.swap = Some(swap),
            Err(reason) => self.warn(format!(
                "device {}: nothing is swapped, and requests above the budget are refused: {reason}",
                self.ordinal
            )),
        }
    }

    /// A graph is about to be captured: states of optimizers are there from now on.
    pub(super) fn keep_states(&mut self) {
        let _ = self.with_swap(|swap, state| {
            swap.keep_states(state);
            Ok(())
        });
    }

    /// Without a budget: looks how far the GPU is from being full, and begins to keep records if it is near.
    #[cold]
    pub(super) fn look_at_edge(&mut self, request: Request) {
        // Not within a capture; what the driver refuses here, it refuses the request itself too.
        if self.device.is_capturing(request.stream).unwrap_or(true) {
            return;
        }
        let obtainable = self.obtainable();
        // One that can never be served says nothing of the program's need.
        if request.size > obtainable {
            return;
        }
        if self.edge.look(self.bytes_in_use().saturating_add(request.size), obtainable) {
            // Where it cannot be, the program runs as it would without: nobody has asked for it.
            let settings = self.edge.settings();
            self.swap = Swap::open(settings, storages::of_the_process(), self).ok();
        }
    }

    /// What can be had was changed by the program.
    pub(super) fn look_at_edge_again(&mut self) {
        self.edge.look_again();
        let limit = self.limit();
        if let Some(swap) = &mut self.swap {
            swap.look_again(limit);
        }
    }

    /// So many refusals of the policy are none to the program.
    pub(crate) fn forgive_ooms(&mut self, refusals: u64) {
        self.ooms_averted += refusals;
        self.baseline.num_ooms += refusals;
    }

    /// Bytes that the heap can hold at most as things stand: its limit, or what it has and the device could give.
    pub(crate) fn obtainable(&mut self) -> u64 {
        let info = self.device.memory_info();
        let policy = self.engine.policy();
        let held = policy.stats().reserved_bytes.all().current;
        policy.limit(info.total).unwrap_or(u64::MAX).min(held.saturating_add(info.free))
    }

    /// Runs `work` with the swapping, which is taken out meanwhile. None if there is none.
    pub(crate) fn with_swap<T>(
        &mut self,
        work: impl FnOnce(&mut Swap, &mut State) -> Outcome<T>,
    ) -> Outcome<Option<T>> {
        let Some(mut swap) = self.swap.take() else { return Ok(None) };
        let done = work(&mut swap, self);
        #[cfg(test)]
        swap.check().expect("the walk finds nothing wrong");
        self.swap = Some(swap);
        done.map(Some)
    }

    #[cold]
    pub(super) fn allocate_with_swap(&mut self, request: Request) -> Outcome<Address> {
        let given = self.with_swap(|swap, state| swap.allocate(state, request))?;
        given.ok_or_else(|| unknown("nothing is swapped on this device"))
    }

    pub(super) fn end_step_of_swap(&mut self) {
        // Nothing in it fails: what the device does not tell costs a plan.
        let _ = self.with_swap(|swap, state| {
            let asked = swap.end_step(state);
            if swap.has_swapped() {
                state.engine.expect(asked);
            }
            Ok(())
        });
    }

    /// Bytes that the program has in use.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        self.engine.policy().stats().allocated_bytes.all().current
    }

    /// Takes a block back that begins at `address`.
    pub(crate) fn let_go(&mut self, address: Address) -> Outcome<()> {
        match self.free(address)? {
            true => Ok(()),
            false => Err(unknown(format!("no block begins at {address:#x}"))),
        }
    }

    /// A stream of this device uses a block too, and whoever frees it waits for the stream; but not for one that may be
    /// gone by then, which the program has to wait for.
    pub(crate) fn add_use(&mut self, address: Address, stream: StreamId) -> Outcome<()> {
        if self.is_transient(stream) {
            return Ok(());
        }
        let Some((_, block)) = self.blocks.find(address) else { return Ok(()) };
        let (policy, mut env) = self.parts();
        Ok(policy.record_stream(&mut env, block, stream)?)
    }

    /// How swapping went; none if nothing is swapped.
    pub(crate) fn swap_report(&self) -> Option<SwapReport> {
        self.swap.as_ref().map(|swap| swap.report())
    }
}
