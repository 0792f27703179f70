//! Swapping: what does not fit goes to the host and comes back.
//!
//! ```text
//!  autograd saves a tensor ──► a record in the table           (save)
//!  memory runs short       ──► the best of them go             (room)
//!  autograd wants it       ──► it comes, or it is there        (use)
//!
//!                 compute stream   ──op──op──op──op──wait──op──op──
//!                 lane out               └─copy out─┘  bytes are free from here on
//!                 lane in                                     └─copy in─┘
//! ```
//!
//! Besides, states of optimizers go between its steps: see `states.rs`.
//!
//! Only storages go whose owners are saved tensors alone, so nobody else reads them: see [`storages`]. Everything
//! happens under the lock of a heap, in calls of the allocator and of autograd's hooks. It needs no Python, and
//! nothing waits on the host: the order of copies and kernels is made of events.
//!
//! `table` has the records, `host` their bytes on the host (`ranges` of free ones, `pins` for the threads), `carry` makes the calls that a record's change of state
//! takes, `room` decides what goes, `ahead` what comes before it is asked for; `step` watches a step, `beside` is the thread that plans it, and `schedule`
//! follows what was planned for it (`policy`) with links that carry what they were measured to (`links`). Without a budget, `edge` says when all this begins, and `attention` calls for the
//! hooks that it needs.

mod ahead;
pub(crate) mod attention;
mod beside;
mod carry;
mod clearing;
pub(crate) mod edge;
mod host;
mod keys;
mod links;
mod machine;
mod observed;
mod owners;
mod pins;
mod policy;
mod ranges;
mod report;
mod room;
mod schedule;
mod settings;
pub(crate) mod states;
mod step;
pub mod storages;
mod table;
pub mod tensors;
#[cfg(test)]
mod tests;
mod times;
mod tried;
mod tuning;
mod waits;

use std::time::Duration;

use girih_runtime::{Address, AllocError, Request};
use girih_swap::record::{State as Place, Wish};
use girih_trace::{MarkKind, PoolId, StreamId};
use rustc_hash::FxHashMap;
use serde::Serialize;

pub(crate) use self::carry::Fail;
use self::clearing::Clearing;
use self::host::{Host, Slot};
use self::links::Measured;
use self::owners::InHand;
pub(crate) use self::pins::await_end;
pub(crate) use self::report::SwapReport;
pub use self::settings::SwapSettings;
use self::states::States;
use self::step::Steps;
use self::storages::Storages;
pub(crate) use self::table::RecordId;
use self::table::{Entry, Table};
use self::tuning::Tuning;
pub use self::waits::Shape;
use self::waits::Waits;
use crate::error::{Outcome, unknown};
use crate::heap::{Saved, State};
use crate::units::short;

/// Bytes from which on a storage is worth a record: smaller ones would cost more events than they give memory.
pub const LEAST: u64 = 1 << 20;
/// Records of a heap at most. Saved tensors beyond them stay on the GPU.
const RECORDS_MAX: usize = 1 << 16;

/// What swapping did so far. Bytes and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Copied to the host and back.
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// Copies.
    pub(crate) copies_out: u64,
    pub(crate) copies_in: u64,
    /// Tensors that went because a request needed their bytes at that moment.
    pub(crate) victims: u64,
    /// Requests that the GPU refused, and that were served once tensors had gone.
    pub(crate) averted: u64,
    /// Tensors that were copied in only when they were wanted.
    pub(crate) demanded: u64,
    /// Tensors that came too early and went again.
    pub(crate) sent_back: u64,
    /// Copies out that turned out not to be needed.
    pub(crate) kept: u64,
    /// Saved tensors that got no record: too many, or not of this heap's own memory.
    pub(crate) unseen: u64,
    /// The bytes of these.
    pub(crate) unseen_bytes: u64,
    /// Bytes in use of which there is no record, when memory was asked for last, and at most: what no hook sees, and
    /// can never go.
    pub(crate) without_record: u64,
    pub(crate) without_record_peak: u64,
    /// Tensors that did not go because somebody else had them, and because the host had no room.
    pub(crate) shared: u64,
    pub(crate) host_full: u64,
    /// Bytes of states of optimizers that were copied to the host and back, of those above.
    pub(crate) states_out: u64,
    pub(crate) states_in: u64,
    /// States that were on the host when they were wanted, and how often a program has asked for states between steps.
    pub(crate) states_late: u64,
    pub(crate) states_asked: u64,
    /// States that stayed when a step had ended: somebody else had them; and they were not of this heap's own memory, or
    /// the program captures graphs.
    pub(crate) states_shared: u64,
    pub(crate) states_unseen: u64,
}

/// The swapping of one heap.
pub(crate) struct Swap {
    /// Bytes that may be in use on the GPU; [`u64::MAX`] as long as nobody knows.
    room: u64,
    /// There is no budget: see [`edge`].
    is_edge: bool,
    /// Bytes in use from which on memory of the host is pinned.
    pin_at: u64,
    /// Requests until hooks are asked for again, and between that and the time after.
    until_asked: u32,
    ask_every: u32,
    storages: &'static dyn Storages,
    table: Table,
    host: Host,
    out: StreamId,
    inward: StreamId,
    /// The streams of blocks that are large enough to be saved ones.
    streams: FxHashMap<Address, StreamId>,
    in_hand: InHand,
    /// The last that happened was a use: a backward pass is under way.
    is_backward: bool,
    /// Nothing more can go for the request that is served now, or `clearing` is due: the host may wait for the device
    /// rather than refuse it.
    is_last_try: bool,
    clearing: Clearing,
    steps: Steps,
    /// How long the driver's calls for memory had taken when the step began, and how many steps could not be laid out.
    driver: (Duration, u64),
    links: Measured,
    states: States,
    waits: Waits,
    tuning: Tuning,
    counts: Counts,
}

/// True if a refused request may be served once tensors have gone: it is no larger than all that can be had, and the
/// program has not asked for the error before anything is given back (`throw_on_cudamalloc_oom`).
#[cold]
fn can_be_averted(state: &mut State, request: Request, error: &AllocError) -> bool {
    matches!(error, AllocError::OutOfMemory { is_rejection: false, .. })
        && request.size <= state.obtainable()
}

impl Swap {
    /// The swapping that the settings ask for: within a budget, or at the edge of out of memory.
    ///
    /// # Errors
    /// Why it cannot be, in words for a user.
    pub(crate) fn open(
        settings: SwapSettings,
        storages: Option<&'static dyn Storages>,
        state: &mut State,
    ) -> Result<Box<Swap>, String> {
        let Some(storages) = storages else {
            return Err("Girih runs without its shim, which knows the storages of tensors".into());
        };
        let Some(copies) = state.device.copies() else {
            return Err("this device cannot copy to the host".into());
        };
        let said = |error: girih_runtime::DeviceError| error.to_string();
        let memory = copies.host_memory();
        let lanes = [copies.open_lane().map_err(said)?, copies.open_lane().map_err(said)?];
        let said = |error: Box<crate::error::HeapError>| error.to_string();
        let [out, inward] = lanes.map(|lane| state.stream(lane));
        let budget = settings
            .host_budget
            .unwrap_or_else(|| settings::host_of_the_machine(settings.local_ranks));
        let mut host = Host::new(memory, budget);
        let is_edge = settings.gpu_budget.is_none();
        let room = state.limit().filter(|_| !is_edge).map_or(u64::MAX, settings::room);
        if is_edge {
            attention::want_hooks();
        } else {
            // All of a budget that a user chose is wanted.
            host.hold_ready(settings.host_budget.map_or(host::AHEAD, |_| u64::MAX));
            host.pin_ahead();
        }
        Ok(Box::new(Swap {
            room,
            is_edge,
            pin_at: if is_edge { edge::pin_at(state.obtainable()) } else { u64::MAX },
            until_asked: 2,
            ask_every: 1,
            storages,
            table: Table::default(),
            host,
            out: out.map_err(said)?,
            inward: inward.map_err(said)?,
            streams: FxHashMap::default(),
            in_hand: InHand::default(),
            is_backward: false,
            is_last_try: false,
            clearing: Clearing::default(),
            steps: Steps::new(room, budget),
            driver: (state.device.memory_time(), 0),
            links: Measured::new(&Tuning::default()),
            states: States::open(),
            waits: Waits::default(),
            tuning: Tuning::default(),
            counts: Counts::default(),
        }))
    }

    /// Serves a request, and makes room for it before if there is too little.
    pub(crate) fn allocate(&mut self, state: &mut State, request: Request) -> Outcome<Address> {
        let is_own = request.pool == PoolId::DEFAULT;
        if is_own {
            self.make_room(state, request)?;
        }
        let mut refusals = 0;
        self.is_last_try = false;
        loop {
            match self.take(state, request) {
                Ok(address) => {
                    if request.size >= LEAST && is_own {
                        self.streams.insert(address, request.stream);
                    }
                    self.note_load(state);
                    if refusals > 0 {
                        state.forgive_ooms(refusals);
                        self.note_averted(state);
                    }
                    return Ok(address);
                }
                Err(error) if can_be_averted(state, request, &error) => {
                    if !self.relieve(state, request, refusals)? {
                        state.forgive_ooms(refusals);
                        return Err(self.explain(state, request, error));
                    }
                    refusals += 1;
                }
                Err(error) => return Err(state.explain(request, error)),
            }
        }
    }

    /// Bytes for a request: what the policy can give at once, or, in the last try, after the host has waited for the
    /// device.
    fn take(&self, state: &mut State, request: Request) -> Result<Address, AllocError> {
        if self.is_last_try { state.take(request) } else { state.take_at_once(request) }
    }

    /// A request was refused, after so many `refusals` before. True if it may be served now: something has gone; or,
    /// where nothing more can go, in a last try, which comes first now and then (`clearing`), unless steps are laid out.
    fn relieve(&mut self, state: &mut State, request: Request, refusals: u64) -> Outcome<bool> {
        self.note_full(state);
        let may_clear = refusals == 0 && !self.is_last_try && !state.engine.layings().stands;
        if may_clear && self.clearing.is_due() {
            self.is_last_try = true;
            return Ok(true);
        }
        let goal = room::goal_after(refusals).min(request.size);
        let has_gone = self.make_more_room(state, request, goal)?;
        self.is_last_try = !has_gone && !self.is_last_try;
        Ok(has_gone || self.is_last_try)
    }

    /// The error of a request for which nothing more could go, with what stayed and why.
    #[cold]
    fn explain(
        &self,
        state: &mut State,
        request: Request,
        error: AllocError,
    ) -> Box<crate::error::HeapError> {
        let of = |is_idle: bool| -> u64 {
            let here = self.table.saved_here().filter(|&id| self.is_idle(id) == is_idle);
            here.filter_map(|id| self.table.get(id)).map(|entry| entry.size).sum()
        };
        let (idle, held) = (of(true), of(false));
        let (saved, states) = (self.table.bytes_saved(), self.table.bytes_of_states());
        let (used, _) = self.host.used();
        let records = saved.on_gpu() + states.on_gpu();
        let away = saved.away + states.away;
        if self.is_edge && records + away == 0 {
            // Swapping has no part in it.
            return state.explain(request, error);
        }
        let others = state.bytes_in_use().saturating_sub(records);
        let (idle, of_states) = (
            idle + states.here,
            match states.all() {
                0 => String::new(),
                _ => format!(" and {} of states of optimizers", short(states.away)),
            },
        );
        let lines = [
            format!(
                "Swapping has {} of saved tensors{of_states} on the host, of {} that it may have there. What is left:",
                short(saved.away),
                short(self.host.budget())
            ),
            format!(
                "  {:>14}  {} that could go, if the host had room",
                short(idle),
                match states.here {
                    0 => "saved tensors",
                    _ => "saved tensors and states",
                }
            ),
            format!("  {:>14}  saved tensors that the program holds too", short(held)),
            format!(
                "  {:>14}  {}",
                short(others),
                if self.is_edge {
                    "weights, states, temporaries, and what was saved before half of the GPU was in use"
                } else {
                    "not saved for backward: weights, states, temporaries"
                }
            ),
            if idle > 0 || self.host.budget() < used + request.size {
                "  - give the host more: host_budget".to_owned()
            } else if self.is_edge {
                "  - a smaller batch; or gpu_budget, which has tensors go from the first on"
                    .to_owned()
            } else {
                "  - give the GPU more: gpu_budget; or a smaller batch".to_owned()
            },
        ];
        state.explain_with(request, error, &lines)
    }

    /// Bytes in use, those of records included that are on the host alone.
    fn load(&self, state: &State) -> u64 {
        state.bytes_in_use() + self.table.bytes_saved().away + self.table.bytes_of_states().away
    }

    /// Memory was given.
    fn note_load(&mut self, state: &State) {
        self.steps.saw_load(self.load(state));
        self.note_load_of_states(state);
        let without = state.bytes_in_use().saturating_sub(self.table.bytes_on_gpu());
        self.counts.without_record = without;
        self.counts.without_record_peak = without.max(self.counts.without_record_peak);
    }

    /// A tensor is saved that gets no record.
    fn note_unseen(&mut self, size: u64) {
        self.counts.unseen += 1;
        self.counts.unseen_bytes += size;
    }

    /// A block is free.
    pub(crate) fn freed(&mut self, address: Address) {
        self.streams.remove(&address);
    }

    /// Autograd saves a tensor, whose contents are there once what `stream` does now is done. The id of its record;
    /// none if it gets none.
    pub(crate) fn save(
        &mut self,
        state: &mut State,
        saved: Saved,
        stream: StreamId,
    ) -> Outcome<Option<RecordId>> {
        let Saved { storage, address, size, kind, .. } = saved;
        self.in_hand.let_go();
        self.is_backward = false;
        let known = self.table.find(storage);
        // Whoever saves a tensor has it; so its bytes are there, whatever became of an earlier save.
        if let Some(id) = known
            && self.table.get(id).is_some_and(|entry| entry.record.state() != Place::OnGpu)
        {
            self.bring(state, id, stream)?;
        }
        let home = known
            .and_then(|id| self.table.get(id))
            .map(|entry| entry.stream)
            .or_else(|| self.streams.get(&address).copied());
        let (Some(home), true) = (home, size >= LEAST) else {
            if size >= LEAST {
                self.note_unseen(size);
            }
            return Ok(None);
        };
        let is_named = !state.is_transient(home) && self.can_be_named(state, known, stream);
        if !is_named
            || known.is_none() && self.table.len() >= RECORDS_MAX
            || state.device.is_capturing(stream)?
        {
            self.note_unseen(size);
            return Ok(None);
        }
        let id = match known {
            Some(id) => {
                self.note_owner(state, id, stream)?;
                if let Some(entry) = self.table.get_mut(id) {
                    entry.saves += 1;
                }
                id
            }
            None => self.table.add(Entry {
                // The operator that begins with it.
                saved_at: self.steps.next_operator(),
                module: self.waits.module(),
                ..Entry::of(saved, home, self.table.next_number(), stream)
            }),
        };
        let begun = self.begin_operator(state, keys::of_save(kind), stream).and_then(|()| {
            self.steps.saves(id, size);
            self.do_what_is_due(state)
        });
        if let Err(error) = begun {
            // The program knows of no record: nobody would ever give it up.
            let _ = self.drop_saved(state, id);
            return Err(error);
        }
        Ok(Some(id))
    }

    /// Autograd is about to use a saved tensor, on a stream: afterwards it is there.
    ///
    /// # Errors
    /// Out of memory; what the driver refused; or if there is no such record.
    pub(crate) fn use_saved(
        &mut self,
        state: &mut State,
        id: RecordId,
        stream: StreamId,
    ) -> Outcome<()> {
        self.in_hand.let_go();
        self.is_backward = true;
        let Some(entry) = self.table.get(id) else {
            return Err(unknown("a saved tensor has no record any more: it was freed already"));
        };
        let (kind, number) = (entry.kind, entry.number);
        self.note_in_hand(id);
        self.bring(state, id, stream)?;
        if self.can_be_named(state, Some(id), stream) {
            self.note_owner(state, id, stream)?;
        }
        self.begin_operator(state, keys::of_use(kind), stream)?;
        self.steps.uses(id);
        self.do_what_is_due(state)?;
        self.fetch_ahead(state, number)?;
        self.fetch_states(state)
    }

    /// A record's bytes are there for what `stream` does from now on.
    fn bring(&mut self, state: &mut State, id: RecordId, stream: StreamId) -> Outcome<()> {
        let Some(entry) = self.table.get(id) else { return Ok(()) };
        let request = Request { size: entry.size, stream: entry.stream, pool: PoolId::DEFAULT };
        match entry.record.state() {
            Place::OnHost => {
                self.counts.demanded += u64::from(!entry.is_state());
                self.make_room(state, request)?;
            }
            Place::Going => self.counts.kept += 1,
            _ => {}
        }
        let mut refusals = 0;
        self.is_last_try = false;
        loop {
            match self.carry_for(state, id, Wish::Use, stream) {
                Ok(()) => {
                    state.forgive_ooms(refusals);
                    return Ok(());
                }
                Err(Fail::Gpu(error)) => {
                    if !self.relieve(state, request, refusals)? {
                        state.forgive_ooms(refusals);
                        return Err(self.explain(state, request, error));
                    }
                    refusals += 1;
                }
                Err(fail) => return Err(fail.into()),
            }
        }
    }

    /// A saved tensor over a storage is gone; with the last of them the record is.
    pub(crate) fn drop_saved(&mut self, state: &mut State, id: RecordId) -> Outcome<()> {
        let Some(entry) = self.table.get_mut(id) else { return Ok(()) };
        entry.saves -= 1;
        if entry.saves > 0 {
            return Ok(());
        }
        // What is refused here is a wait for a copy that reads or writes the bytes. They are the storage's, which
        // frees them after this; so the error must be the program's.
        let dropped = self.carry(state, id, Wish::Drop);
        self.forget(state, id);
        dropped.map_err(Into::into)
    }

    fn forget(&mut self, state: &mut State, id: RecordId) {
        self.in_hand.forget(id);
        self.steps.dropped(id);
        if let Some(entry) = self.table.remove(id) {
            for event in entry.ready.into_iter().chain(entry.out).chain(entry.back) {
                // A refusal costs an event.
                let _ = state.device.destroy_event(event);
            }
            if let Some(slot) = entry.slot {
                self.host.give_back(&slot);
            }
        }
    }

    /// Other numbers than the usual ones.
    #[cfg(test)]
    fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.steps.tune(tuning);
        self.links.tune(&tuning);
    }

    /// The program has come to a point.
    pub(crate) fn mark(&mut self, kind: MarkKind, name: &str) {
        self.waits.mark(kind, name);
    }

    /// Walks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.table.check()?;
        self.host.check()?;
        let slots: u64 =
            self.table.all().filter_map(|entry| entry.slot.as_ref()).map(Slot::size).sum();
        if slots != self.host.used().0 {
            return Err(format!("records have {slots} bytes of the host, {:?}", self.host.used()));
        }
        Ok(())
    }
}
