//! A program that trains, as far as memory is concerned.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use girih_runtime::Address;
use girih_trace::MarkKind;
use girih_trace::generate::{Chance, Rng};

use super::adversary::{UNIT, World};
use crate::heap::{Heap, Saved};
use crate::swap::storages::{self, StorageId, Storages};
use crate::swap::{Shape, SwapReport};

/// Which program.
#[derive(Clone, Copy)]
pub(super) struct Seed(pub(super) u64);

/// Owners and address of every storage of this process: tests run beside each other, with storages of their own.
static STORAGES: Mutex<Option<HashMap<u64, (u64, Address)>>> = Mutex::new(None);
pub(super) static NEXT: AtomicU64 = AtomicU64::new(1);

pub(super) fn with<T>(body: impl FnOnce(&mut HashMap<u64, (u64, Address)>) -> T) -> T {
    let mut held = STORAGES.lock().unwrap_or_else(PoisonError::into_inner);
    body(held.get_or_insert_default())
}

struct OfTests;

impl Storages for OfTests {
    fn of_tensor(&self, _tensor: u64) -> Option<(StorageId, u64)> {
        None
    }

    fn owners(&self, storage: StorageId) -> u64 {
        with(|all| all[&storage.0].0)
    }

    fn address(&self, storage: StorageId) -> Address {
        with(|all| all[&storage.0].1)
    }

    fn take(&self, storage: StorageId) -> Address {
        with(|all| std::mem::take(&mut all.get_mut(&storage.0).expect("it lives").1))
    }

    fn give(&self, storage: StorageId, address: Address) {
        with(|all| all.get_mut(&storage.0).expect("it lives").1 = address);
    }
}

/// A tensor that autograd has saved, once or twice.
struct Tensor {
    storage: u64,
    size: u64,
    tag: u64,
    /// The stream that it was asked for on.
    stream: u64,
    /// Its saves: the ids of records, 0 without.
    saves: Vec<u64>,
    /// The program has it too.
    is_held: bool,
}

/// What came of a program.
pub(super) struct Outcome {
    pub(super) wrong: Vec<String>,
    /// Requests that were refused.
    pub(super) refused: u32,
    /// The error of the last of them.
    pub(super) said: Option<String>,
    /// None if nothing was ever near the edge.
    pub(super) report: Option<SwapReport>,
    /// Requests that were refused, as the heap counts them, and what a user was told.
    pub(super) ooms: u64,
    pub(super) told: usize,
    pub(super) fault_came: bool,
    /// Copies to the host, as the device was asked for them.
    pub(super) copies_out: u64,
}

pub(super) struct Program {
    heap: Heap,
    world: World,
    rng: Rng,
    tensors: Vec<Tensor>,
    next_tag: u64,
    refused: u32,
    said: Option<String>,
    wrong: Vec<String>,
    /// Backward uses what was saved in the reverse order; else some of it in another, as a graph of several branches.
    is_straight: bool,
}

/// The streams of the program.
const STREAMS: [u64; 2] = [1, 2];

impl Program {
    /// To be called before the heap of a program is made.
    pub(super) fn prepare() {
        storages::set(Box::new(OfTests));
    }

    pub(super) fn new(heap: Heap, world: World, seed: Seed) -> Program {
        let rng = Rng::new(seed.0.wrapping_mul(77).wrapping_add(5));
        let (tensors, wrong) = (Vec::new(), Vec::new());
        Program {
            heap,
            world,
            rng,
            tensors,
            next_tag: 1,
            refused: 0,
            said: None,
            wrong,
            is_straight: false,
        }
    }

    pub(super) fn report(&self) -> Option<SwapReport> {
        self.heap.with(|state| Ok(state.swap_report())).expect("it works")
    }

    /// Waits for the thread that plans.
    pub(super) fn finish_planning(&self) {
        let finished = self.heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.steps.finish_planning();
                Ok(())
            })
        });
        finished.expect("it works");
    }

    fn go_on(&mut self) {
        let turns = self.rng.below(6);
        self.world.turn(turns);
    }

    /// Memory with something in it. None if there is none.
    fn tensor(&mut self, size: u64, stream: u64) -> Option<(Address, u64)> {
        let address = match self.heap.allocate(size, stream, (0, 0)) {
            Ok(address) => address,
            Err(error) => {
                self.refused += 1;
                self.said = Some(error.to_string());
                return None;
            }
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.world.write(stream, address, size, tag);
        Some((address, tag))
    }

    /// An operator that saves what it makes, and needs some memory besides.
    fn forward(&mut self, size: u64, kind: u64, is_odd: bool) {
        let _ = self.heap.mark(MarkKind::ForwardIn, "block");
        self.forward_inside(size, kind, is_odd);
        let _ = self.heap.mark(MarkKind::ForwardOut, "block");
    }

    fn forward_inside(&mut self, size: u64, kind: u64, is_odd: bool) {
        let stream = STREAMS[usize::from(is_odd && self.rng.below(8) == 0)];
        let Some((address, tag)) = self.tensor(size, stream) else { return };
        let storage = NEXT.fetch_add(1, Ordering::Relaxed);
        with(|all| all.insert(storage, (1, address)));
        let saves = Vec::new();
        let mut tensor = Tensor { storage, size, tag, stream, saves, is_held: true };
        let times = if is_odd && self.rng.below(5) == 0 { 2 } else { 1 };
        for _ in 0..times {
            with(|all| all.get_mut(&storage).expect("it lives").0 += 1);
            let shape = Shape::of(&[size / UNIT, UNIT]);
            let saved = Saved { storage: StorageId(storage), address, size, kind, shape };
            // A refusal leaves the tensor without a record.
            let id = self.heap.save(saved, stream).unwrap_or(0);
            tensor.saves.push(id);
            self.go_on();
        }
        self.tensors.push(tensor);
        self.temporary(stream);
        // The program lets go of what it made two operators ago; some it keeps for long.
        let keeps = is_odd && self.rng.below(6) == 0;
        let older = self.tensors.len().checked_sub(2);
        if let Some(older) = older.filter(|_| !keeps) {
            self.let_go(older);
        }
    }

    fn temporary(&mut self, stream: u64) {
        let size = UNIT * (4 + self.rng.below(8));
        self.temporary_of(size, stream);
    }

    fn temporary_of(&mut self, size: u64, stream: u64) {
        if let Some((address, tag)) = self.tensor(size, stream) {
            self.world.look(stream, address, size, tag, "a temporary");
            self.go_on();
            assert!(self.heap.free(address).is_ok());
        }
    }

    fn let_go(&mut self, index: usize) {
        let tensor = &mut self.tensors[index];
        if std::mem::take(&mut tensor.is_held) {
            let storage = tensor.storage;
            self.disown(storage);
        }
    }

    /// One owner less; without any the storage frees its bytes.
    fn disown(&mut self, storage: u64) {
        let gone = with(|all| {
            let (owners, address) = all.get_mut(&storage).expect("it lives");
            *owners -= 1;
            (*owners == 0).then_some(*address)
        });
        if let Some(address) = gone {
            with(|all| all.remove(&storage));
            if address != 0 {
                // A fault may come here; then PyTorch's deleter warns, and the bytes are lost to the process.
                let freed = self.heap.free(address).or_else(|_| self.heap.free(address));
                if freed.ok() != Some(true) {
                    self.wrong.push(format!("storage {storage} frees what is not its own"));
                }
            }
        }
    }

    /// Autograd uses the tensor saved last, and gives it up; `uses` times.
    fn backward(&mut self, uses: u32) {
        if self.tensors.is_empty() {
            return;
        }
        let last = self.tensors.len() as u64 - 1;
        let index =
            if self.is_straight || self.rng.below(3) > 0 { last } else { self.rng.below(last + 1) };
        let mut tensor = self.tensors.remove(index as usize);
        let stream = STREAMS[0];
        if std::mem::take(&mut tensor.is_held) {
            self.disown(tensor.storage);
        }
        for id in tensor.saves {
            // A backward pass through the backward pass saves what it was given once more.
            if uses == 2 && id != 0 {
                with(|all| all.get_mut(&tensor.storage).expect("it lives").0 += 1);
                let (size, kind) = (tensor.size, tensor.size);
                let address = with(|all| all[&tensor.storage].1);
                let shape = Shape::default();
                let saved =
                    Saved { storage: StorageId(tensor.storage), address, size, kind, shape };
                if let Ok(again) = self.heap.save(saved, stream) {
                    assert_eq!(again, id, "views of a storage share a record");
                    let is_there = with(|all| all[&tensor.storage].1 != 0);
                    assert!(is_there, "whoever saves a tensor has it");
                    let _ = self.heap.drop_saved(again);
                }
                self.disown(tensor.storage);
            }
            for _ in 0..uses {
                let is_there = id == 0 || (0..2).any(|_| self.heap.use_saved(id, stream).is_ok());
                if !is_there {
                    self.refused += 1;
                    continue;
                }
                let address = with(|all| all[&tensor.storage].1);
                if id == 0 && stream != tensor.stream {
                    // Of what has no record the program says itself who uses it.
                    let _ = self.heap.record_stream(address, 0, stream);
                }
                let whose = format!("saved tensor of storage {}", tensor.storage);
                if address == 0 {
                    self.wrong.push(format!("{whose} has no bytes when it is used"));
                    continue;
                }
                // The kernel's output, asked for while the tensor is in the kernel's hands.
                with(|all| all.get_mut(&tensor.storage).expect("it lives").0 += 1);
                self.temporary(stream);
                self.world.look(stream, address, tensor.size, tensor.tag, &whose);
                with(|all| all.get_mut(&tensor.storage).expect("it lives").0 -= 1);
                self.go_on();
            }
            if id != 0 {
                let _ = self.heap.drop_saved(id);
            }
            self.disown(tensor.storage);
        }
    }

    /// The other stream waits for the first, as a program does that uses on one what another made. Here simply all of
    /// it is waited for.
    fn join(&mut self) {
        self.world.finish();
    }

    /// A step of anything: parts of the graph that are never run backward, some twice, two streams.
    pub(super) fn step(&mut self) {
        let _ = self.heap.mark(MarkKind::Step, "");
        let count = 12 + self.rng.below(12);
        for _ in 0..count {
            let size = UNIT * (4 + self.rng.below(12));
            self.forward(size, size, true);
            if self.rng.below(10) == 0 {
                self.join();
                self.backward(1);
            }
        }
        self.join();
        while !self.tensors.is_empty() {
            let uses = match self.rng.below(12) {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            self.backward(uses);
            // Backward may need more than forward did: then what was saved first goes once more.
            if self.rng.below(6) == 0 {
                self.temporary_of(UNIT * 40, STREAMS[0]);
            }
        }
    }

    /// A step that is the same each time.
    pub(super) fn regular_step(&mut self) {
        self.is_straight = true;
        let _ = self.heap.mark(MarkKind::Step, "");
        for layer in 0..24 {
            self.forward(UNIT * (6 + layer % 3), layer % 3, false);
        }
        while !self.tensors.is_empty() {
            self.backward(1);
        }
        // A plan is made on a thread of its own, and would come within a step that does not only pretend.
        self.finish_planning();
    }

    /// A step of three tensors, of which the GPU has room for two.
    pub(super) fn small_step(&mut self) {
        self.is_straight = true;
        let _ = self.heap.mark(MarkKind::Step, "");
        for kind in 0..3 {
            self.forward(UNIT * 32, kind, false);
        }
        while !self.tensors.is_empty() {
            self.backward(1);
        }
    }

    /// The tensor that went first is fetched for the other stream, and used by its own as well, which has not waited
    /// for the other one.
    pub(super) fn fetch_for_another(&mut self) {
        for kind in 0..3 {
            self.forward(UNIT * 32, kind, false);
        }
        self.let_go(0);
        let first = self.tensors.remove(0);
        for id in first.saves {
            for stream in [STREAMS[1], STREAMS[0]] {
                assert!(self.heap.use_saved(id, stream).is_ok());
                let address = with(|all| all[&first.storage].1);
                self.world.look(stream, address, first.size, first.tag, "a saved tensor");
            }
            self.join();
            assert!(self.heap.drop_saved(id).is_ok());
            self.disown(first.storage);
        }
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.heap.with(|state| Ok(state.limit())).expect("it works")
    }

    pub(super) fn set_memory_fraction(&self, fraction: f64) {
        let free =
            self.heap.empty_cache((0, 0)).and_then(|()| self.heap.set_memory_fraction(fraction));
        assert!(free.is_ok());
    }

    /// Asks for so many bytes, when some tensors are saved that could go. How swapping stands then.
    pub(super) fn ask_too_much(&mut self, size: u64) -> SwapReport {
        for kind in 0..6 {
            self.forward(UNIT * 32, kind, false);
        }
        self.temporary_of(size, STREAMS[0]);
        self.report().expect("more than half is in use")
    }

    /// Everything is given up.
    pub(super) fn end(mut self) -> Outcome {
        while !self.tensors.is_empty() {
            self.backward(0);
        }
        self.world.finish();
        let report = self.report();
        let mut wrong = self.wrong;
        wrong.extend(self.world.wrong());
        let fault_came = self.world.fault_came();
        if report.as_ref().is_some_and(|report| !report.is_at_rest()) {
            wrong.push(format!("something is left: {report:?}"));
        }
        if let Err(reason) = self.heap.check() {
            wrong.push(reason);
        }
        let ooms = self.heap.stats().expect("it works").num_ooms as u64;
        let told = self.heap.with(|state| Ok(state.warnings.len())).expect("it works");
        let copies_out = self.world.copies_out();
        let (refused, said) = (self.refused, self.said);
        Outcome { wrong, refused, said, report, ooms, told, fault_came, copies_out }
    }
}
