//! Steps of a training run, done by the executor on streams with clocks.
//!
//! Each operator of a step is a kernel of its time. A tensor that lies idle is saved when its use ends and used where it
//! is used again; what is alive besides is one block that stays and one for each operator.

use std::sync::atomic::Ordering;

use girih_runtime::Address;
use girih_runtime::lake::Layings;
use girih_swap::{Gap, Step};
use girih_trace::MarkKind;

use super::program::{NEXT, Program, with};
use super::recorded::Recorded;
use super::timed::{Clock, RATES, Refused, Timed};
use crate::heap::{Heap, Saved};
use crate::swap::states::OtherStates;
use crate::swap::storages::StorageId;
use crate::swap::tuning::Tuning;
use crate::swap::{Shape, SwapReport};

/// The stream of the program.
const STREAM: u64 = 1;

fn saved(storage: u64, size: u64) -> Saved {
    let address = with(|all| all[&storage].1);
    Saved { storage: StorageId(storage), address, size, kind: size, shape: Shape::default() }
}

/// A tensor of the step while it lives.
#[derive(Clone, Copy)]
struct Alive {
    storage: u64,
    size: u64,
    /// Its record; none before it is saved, 0 without one.
    record: Option<u64>,
}

/// What happens in each operator of a step.
#[derive(Clone, Default)]
struct Laid {
    /// The tensors that are born and that end there, the gaps that begin and end there, and the bytes besides.
    born: Vec<Vec<u32>>,
    ends: Vec<Vec<u32>>,
    after: Vec<Vec<Gap>>,
    before: Vec<Vec<Gap>>,
    besides: Vec<u64>,
}

impl Laid {
    fn of(step: &Step) -> Laid {
        let count = step.ops.len();
        let (mut born, mut ends) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let mut held = vec![0_i64; count + 1];
        for (tensor, number) in step.tensors.iter().zip(0..) {
            born[tensor.born as usize].push(number);
            ends[tensor.last as usize].push(number);
            held[tensor.born as usize] += tensor.bytes as i64;
            held[tensor.last as usize + 1] -= tensor.bytes as i64;
        }
        let (mut after, mut before) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for gap in &step.gaps {
            after[gap.after as usize].push(*gap);
            before[gap.before as usize].push(*gap);
        }
        let held = held.iter().scan(0, |sum, change| {
            *sum += change;
            Some(*sum as u64)
        });
        let besides = step.load.iter().zip(held).map(|(load, held)| load.saturating_sub(held));
        Laid { born, ends, after, before, besides: besides.collect() }
    }
}

/// A program that does such steps, one after another.
pub(super) struct Run {
    heap: Heap,
    clock: Clock,
    step: Step,
    laid: Laid,
    stays: Option<Address>,
    /// Tensors are not told apart by their sizes.
    alike: bool,
    /// In the place of these, the requests of a recording.
    recorded: Option<Recorded>,
    alive: Vec<Option<Alive>>,
    /// States of an optimizer, which steps behind the last operator.
    states: Vec<Alive>,
    optimizer_us: f64,
    /// How long the driver had taken for memory when the last kernel was queued.
    waited_us: f64,
    pub(super) refused: u32,
}

impl Run {
    /// Within a budget of bytes.
    pub(super) fn new(step: &Step, budget: u64, tuning: Tuning) -> Run {
        Run::on(RATES, step, budget, tuning)
    }

    /// On links of these rates: out and in.
    pub(super) fn on(rates: [f64; 2], step: &Step, budget: u64, tuning: Tuning) -> Run {
        let (device, clock) = Timed::new(4 * step.peak().max(budget), rates);
        Run::over(device, clock, step, budget, tuning)
    }

    /// On a device that refuses something.
    pub(super) fn refusing(refused: Refused, step: &Step, budget: u64) -> Run {
        let (mut device, clock) = Timed::new(4 * step.peak().max(budget), RATES);
        device.refuse(refused);
        Run::over(device, clock, step, budget, Tuning::default())
    }

    /// With every request of a recording, as it came. The driver takes so many times the prices of the list for memory:
    /// a kernel is queued that much later, and begins so much later.
    pub(super) fn recorded(
        (step, recorded): &(Step, Recorded),
        budget: u64,
        dearness: f64,
        tuning: Tuning,
    ) -> Run {
        let (device, clock) = Timed::new(4 * step.peak().max(budget), RATES);
        let device = device.with_driver(dearness);
        let mut run = Run::in_mode("auto", device, clock, step, budget, tuning);
        let mut recorded = recorded.clone();
        if let Some(stays) = run.stays.take() {
            run.free(stays);
        }
        run.laid.besides.fill(0);
        recorded.begin(|size| run.allocate(size));
        run.recorded = Some(recorded);
        run
    }

    /// Another step of the recording is next.
    pub(super) fn go_on(&mut self, (step, recorded): &(Step, Recorded)) {
        let mut recorded = recorded.clone();
        if let Some(mut before) = self.recorded.take() {
            before.end(Some(&recorded), |address| self.free(address));
            recorded.follow(before, |size| self.allocate(size));
        }
        self.laid = Laid::of(step);
        self.laid.besides.fill(0);
        self.alive = vec![None; step.tensors.len()];
        (self.step, self.recorded, self.alike) = (step.clone(), Some(recorded), true);
    }

    /// So many bytes may be in use from now on, whatever the budget.
    pub(super) fn set_room(&mut self, room: u64) {
        let set = self.heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.room = room;
                swap.steps.set_room(room);
                Ok(())
            })
        });
        assert!(set.is_ok());
    }

    fn over(device: Timed, clock: Clock, step: &Step, budget: u64, tuning: Tuning) -> Run {
        Run::in_mode("stitch", device, clock, step, budget, tuning)
    }

    fn in_mode(
        mode: &str,
        device: Timed,
        clock: Clock,
        step: &Step,
        budget: u64,
        tuning: Tuning,
    ) -> Run {
        Program::prepare();
        let peak = step.peak().max(budget);
        let host = 4 * peak;
        let json =
            format!(r#"{{"mode": "{mode}", "gpu_budget": {budget}, "host_budget": {host}}}"#);
        let settings = crate::Settings::parse(&json).expect("right settings");
        let heap = Heap::over(Box::new(device), 0, &settings);
        let tuned = heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.tune(tuning);
                Ok(())
            })
        });
        assert_eq!(tuned.expect("it works"), Some(()), "it swaps");
        let laid = Laid::of(step);
        let alive = vec![None; step.tensors.len()];
        let step = step.clone();
        let (states, optimizer_us, refused) = (Vec::new(), 0.0, 0);
        let mut run = Run {
            heap,
            clock,
            step,
            laid,
            stays: None,
            alike: false,
            recorded: None,
            alive,
            states,
            optimizer_us,
            waited_us: 0.0,
            refused,
        };
        let stays = run.laid.besides.iter().copied().min().unwrap_or(0);
        if stays > 0 {
            run.stays = run.allocate(stays);
            run.laid.besides.iter_mut().for_each(|bytes| *bytes -= stays);
        }
        run
    }

    fn allocate(&mut self, size: u64) -> Option<Address> {
        let given = self.heap.allocate(size, STREAM, (0, 0)).ok();
        self.refused += u32::from(given.is_none());
        given
    }

    fn free(&mut self, address: Address) {
        assert_eq!(self.heap.free(address).ok(), Some(true));
    }

    fn with_recorded(&mut self, work: impl FnOnce(&mut Run, &mut Recorded)) {
        if let Some(mut recorded) = self.recorded.take() {
            work(self, &mut recorded);
            self.recorded = Some(recorded);
        }
    }

    /// Where the program's stream is. Microseconds.
    pub(super) fn now(&self) -> f64 {
        self.clock.now(STREAM)
    }

    /// How long the driver took for memory so far. Microseconds.
    pub(super) fn driver_us(&self) -> f64 {
        let driver = self.heap.with(|state| Ok(state.device.memory_time())).expect("it works");
        driver.as_secs_f64() * 1e6
    }

    /// While the driver works for it, the host queues no kernel.
    fn wait_for_driver(&mut self) {
        let driver_us = self.driver_us();
        let taken = driver_us - std::mem::replace(&mut self.waited_us, driver_us);
        self.clock.run(STREAM, taken);
    }

    /// Pages that were mapped so far.
    pub(super) fn mapped(&self) -> u64 {
        let calls = self.heap.with(|state| Ok(state.device.calls())).expect("it works");
        calls.iter().find(|(call, _)| *call == "map").map_or(0, |(_, count)| *count)
    }

    /// Steps that were to be laid out.
    pub(super) fn layings(&self) -> Layings {
        self.heap.with(|state| Ok(state.engine.layings())).expect("it works")
    }

    /// How often all that was free went back to the device for a request, and pages that did so.
    pub(super) fn retries(&self) -> (i64, u64) {
        let stats = self.heap.stats().expect("it works");
        let calls = self.heap.with(|state| Ok(state.device.calls())).expect("it works");
        let released = calls.iter().find(|(call, _)| *call == "release");
        (stats.num_alloc_retries, released.map_or(0, |(_, count)| *count))
    }

    /// An optimizer whose states have these sizes and whose step takes so long. To be called once, at the beginning.
    pub(super) fn optimize(&mut self, sizes: &[u64], us: f64) {
        self.optimizer_us = us;
        for &size in sizes {
            if let Some(address) = self.allocate(size) {
                let storage = NEXT.fetch_add(1, Ordering::Relaxed);
                with(|all| all.insert(storage, (1, address)));
                self.states.push(Alive { storage, size, record: None });
            }
        }
    }

    /// Copies of the step that runs whose time was taken.
    pub(super) fn timed_copies(&self) -> usize {
        let timed = self.heap.with(|state| state.with_swap(|swap, _| Ok(swap.links.timed())));
        timed.expect("it works").expect("it swaps")
    }

    /// Bytes that are alive besides in one operator.
    pub(super) fn load_besides(&self, op: usize) -> u64 {
        self.laid.besides[op]
    }

    /// More or less is alive besides from the next step on, in one operator.
    pub(super) fn change_load(&mut self, op: usize, bytes: u64) {
        self.laid.besides[op] = bytes;
    }

    /// An operator takes so many microseconds from the next step on.
    pub(super) fn change_time(&mut self, op: usize, us: f64) {
        self.step.ops[op].us = us;
    }

    /// The links carry so many bytes a microsecond from now on, out and in.
    pub(super) fn change_links(&mut self, rates: [f64; 2]) {
        self.clock.set_rates(rates);
    }

    fn offer(&mut self) {
        let described = |state: &Alive| saved(state.storage, state.size);
        let offered: Vec<Saved> = self.states.iter().map(described).collect();
        let ids = self.heap.offer_states(&offered, OtherStates::default(), STREAM);
        for (state, id) in self.states.iter_mut().zip(ids.expect("nothing fails")) {
            state.record = Some(id).filter(|id| *id != 0);
        }
    }

    fn step_optimizer(&mut self) {
        let ids: Vec<u64> =
            self.states.iter_mut().filter_map(|state| state.record.take()).collect();
        if !ids.is_empty() && self.heap.use_states(&ids, STREAM, true).is_err() {
            self.refused += 1;
        }
        self.clock.run(STREAM, self.optimizer_us);
    }

    /// One step. Microseconds that it took.
    pub(super) fn step(&mut self) -> f64 {
        let _ = self.heap.mark(MarkKind::Step, "");
        let begin = self.clock.now(STREAM);
        self.offer();
        for op in 0..self.step.ops.len() {
            for gap in self.laid.before[op].clone() {
                if let Some(Alive { record: Some(id), .. }) = self.alive[gap.tensor as usize]
                    && id != 0
                    && self.heap.use_saved(id, STREAM).is_err()
                {
                    self.refused += 1;
                }
            }
            for number in self.laid.born[op].clone() {
                let size = self.step.tensors[number as usize].bytes;
                if let Some(address) = self.allocate(size) {
                    let storage = NEXT.fetch_add(1, Ordering::Relaxed);
                    with(|all| all.insert(storage, (1, address)));
                    self.alive[number as usize] = Some(Alive { storage, size, record: None });
                }
            }
            self.with_recorded(|run, recorded| recorded.ask(op, |size| run.allocate(size)));
            let besides = match self.laid.besides[op] {
                0 => None,
                bytes => self.allocate(bytes),
            };
            self.wait_for_driver();
            self.clock.run(STREAM, self.step.ops[op].us);
            if let Some(address) = besides {
                self.free(address);
            }
            for gap in self.laid.after[op].clone() {
                self.save(gap.tensor as usize);
            }
            for number in self.laid.ends[op].clone() {
                self.end(number as usize);
            }
            self.with_recorded(|run, recorded| recorded.free(op, |address| run.free(address)));
        }
        self.with_recorded(|run, recorded| recorded.end(None, |address| run.free(address)));
        self.step_optimizer();
        self.clock.now(STREAM) - begin
    }

    /// From now on autograd alone has the tensor.
    fn save(&mut self, number: usize) {
        let Some(tensor) = &mut self.alive[number] else { return };
        if tensor.record.is_none() {
            let mut saved = saved(tensor.storage, tensor.size);
            saved.kind = if self.alike { 0 } else { saved.kind };
            tensor.record = Some(self.heap.save(saved, STREAM).unwrap_or(0));
        }
    }

    fn end(&mut self, number: usize) {
        let Some(tensor) = self.alive[number].take() else { return };
        if let Some(id) = tensor.record.filter(|&id| id != 0) {
            assert!(self.heap.drop_saved(id).is_ok());
        }
        let (_, address) = with(|all| all.remove(&tensor.storage)).expect("it lives");
        if address != 0 {
            self.free(address);
        }
    }

    pub(super) fn finish_planning(&self) {
        let finished = self.heap.with(|state| {
            state.with_swap(|swap, _| {
                swap.steps.finish_planning();
                Ok(())
            })
        });
        finished.expect("it works");
    }

    pub(super) fn report(&self) -> SwapReport {
        self.heap.with(|state| Ok(state.swap_report())).expect("it works").expect("it swaps")
    }
}
