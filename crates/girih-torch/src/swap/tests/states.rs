//! States of an optimizer, which reads and writes them in its steps and offers them in between, on a device whose
//! streams run in any order.

use std::sync::atomic::Ordering;

use girih_runtime::Address;
use girih_trace::MarkKind;
use serde_json::Value;

use super::MIB;
use super::adversary::{Adversary, Turns, World};
use super::program::{NEXT, Program, with};
use crate::heap::{Heap, Saved};
use crate::swap::Shape;
use crate::swap::states::OtherStates;
use crate::swap::storages::StorageId;
use crate::swap::tuning::Tuning;

const STREAMS: [u64; 2] = [1, 2];
/// Of the states, 16 MiB together.
const SIZES: [u64; 4] = [2 * MIB, 6 * MIB, 4 * MIB, 4 * MIB];

/// A tensor, with what was written to it last.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    storage: u64,
    size: u64,
    tag: u64,
    /// Of its record.
    id: u64,
}

/// A model that is trained.
struct Trainer {
    heap: Heap,
    world: World,
    states: Vec<Tensor>,
    next_tag: u64,
    refused: u32,
    said: String,
    wrong: Vec<String>,
}

/// What a step does.
#[derive(Clone, Copy)]
struct Work {
    layers: u64,
    /// Bytes of a temporary between forward and backward.
    temporary: u64,
    /// Of another in the middle of the backward pass.
    late: u64,
}

const REGULAR: Work = Work { layers: 5, temporary: 12 * MIB, late: 0 };

/// A program is kept within so many bytes; 32 MiB and a hundredth more, and it is refused more.
fn settings(room: u64, host: u64) -> crate::Settings {
    let budget = (room + 32 * MIB) * 101 / 100;
    let json = format!(r#"{{"mode": "stitch", "gpu_budget": {budget}, "host_budget": {host}}}"#);
    crate::Settings::parse(&json).expect("right settings")
}

impl Trainer {
    fn new(gpu: u64, settings: &crate::Settings, seed: u64, fault: Option<u64>) -> Trainer {
        Program::prepare();
        let (device, world) = Adversary::new(gpu, seed);
        if let Some(call) = fault {
            world.fail(call);
        }
        let heap = Heap::over(Box::new(device), 0, settings);
        let (states, wrong) = (Vec::new(), Vec::new());
        let said = String::new();
        Trainer { heap, world, states, next_tag: 1, refused: 0, said, wrong }
    }

    fn within(room: u64) -> Trainer {
        Trainer::new(64 * MIB, &settings(room, 256 * MIB), 1, None)
    }

    fn address(&self, storage: u64) -> Address {
        with(|all| all[&storage].1)
    }

    fn write(&mut self, stream: u64, address: Address, size: u64) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.world.write(stream, address, size, tag);
        tag
    }

    fn request(&mut self, size: u64) -> Option<Address> {
        match self.heap.allocate(size, STREAMS[0], (0, 0)) {
            Ok(address) => Some(address),
            Err(error) => {
                self.refused += 1;
                self.said = error.to_string();
                None
            }
        }
    }

    fn tensor(&mut self, size: u64) -> Option<Tensor> {
        self.tensor_on(STREAMS[0], size)
    }

    fn tensor_on(&mut self, stream: u64, size: u64) -> Option<Tensor> {
        let address = match stream == STREAMS[0] {
            true => self.request(size)?,
            false => self.heap.allocate(size, stream, (0, 0)).ok()?,
        };
        let storage = NEXT.fetch_add(1, Ordering::Relaxed);
        with(|all| all.insert(storage, (1, address)));
        let tag = self.write(stream, address, size);
        Some(Tensor { storage, size, tag, id: 0 })
    }

    fn temporary(&mut self, size: u64) {
        if let Some(address) = self.request(size) {
            let tag = self.write(STREAMS[0], address, size);
            self.world.look(STREAMS[0], address, size, tag, "a temporary");
            self.world.turn(3);
            self.free(address);
        }
    }

    fn free(&mut self, address: Address) {
        // A fault may come here; then PyTorch's deleter warns, and the bytes are lost to the process.
        let freed = self.heap.free(address).or_else(|_| self.heap.free(address));
        if freed.ok() != Some(true) {
            self.wrong.push(format!("{address:#x} is freed, which is no block"));
        }
    }

    /// The last owner is gone.
    fn end_storage(&mut self, storage: u64) {
        let (_, address) = with(|all| all.remove(&storage).expect("it lives"));
        if address != 0 {
            self.free(address);
        }
    }

    fn described(&self, tensor: &Tensor) -> Saved {
        Saved {
            storage: StorageId(tensor.storage),
            address: self.address(tensor.storage),
            size: tensor.size,
            kind: tensor.size,
            shape: Shape::of(&[tensor.size / MIB, MIB]),
        }
    }

    /// Forward and backward.
    fn passes(&mut self, work: Work) {
        let mut saved = Vec::new();
        for _ in 0..work.layers {
            let Some(mut tensor) = self.tensor(MIB) else { continue };
            tensor.id = self.heap.save(self.described(&tensor), STREAMS[0]).unwrap_or(0);
            self.world.turn(2);
            saved.push(tensor);
        }
        self.temporary(work.temporary);
        while let Some(tensor) = saved.pop() {
            if tensor.id != 0 {
                let is_there = (0..2).any(|_| self.heap.use_saved(tensor.id, STREAMS[0]).is_ok());
                if is_there {
                    self.look_at(STREAMS[0], &tensor, "a saved tensor");
                }
                self.refused += u32::from(!is_there);
                let _ = self.heap.drop_saved(tensor.id);
            }
            self.end_storage(tensor.storage);
            self.temporary(MIB);
            if saved.len() as u64 == work.layers / 2 && work.late > 0 {
                self.temporary(work.late);
            }
        }
    }

    fn look_at(&mut self, stream: u64, tensor: &Tensor, whose: &str) {
        let address = self.address(tensor.storage);
        if address == 0 {
            self.wrong.push(format!("{whose} has no bytes when it is used"));
            return;
        }
        self.world.look(stream, address, tensor.size, tensor.tag, whose);
    }

    /// The states are asked for. True if they are there.
    fn ask(&mut self, stream: u64, is_step: bool) -> bool {
        let ids: Vec<u64> = self.states.iter().map(|state| state.id).collect();
        let is_there = (0..2).any(|_| match self.heap.use_states(&ids, stream, is_step) {
            Ok(()) => true,
            Err(error) => {
                self.said = error.to_string();
                false
            }
        });
        self.refused += u32::from(!is_there);
        if is_there {
            self.states.iter_mut().for_each(|state| state.id = 0);
        }
        is_there
    }

    /// A step of the optimizer, the first of which makes its states. Without them it does nothing.
    fn optimize(&mut self) {
        if self.states.is_empty() {
            self.states = SIZES.iter().filter_map(|&size| self.tensor(size)).collect();
        } else if self.ask(STREAMS[0], true) {
            for index in 0..self.states.len() {
                let state = self.states[index];
                self.look_at(STREAMS[0], &state, "a state");
                let address = self.address(state.storage);
                self.states[index].tag = self.write(STREAMS[0], address, state.size);
                self.world.turn(2);
            }
        }
        let _ = self.heap.mark(MarkKind::Step, "");
        self.offer();
    }

    fn offer(&mut self) {
        if self.states.iter().any(|state| state.id != 0) {
            return;
        }
        let offered: Vec<Saved> = self.states.iter().map(|state| self.described(state)).collect();
        let given = self.heap.offer_states(&offered, OtherStates::default(), STREAMS[0]);
        for (state, id) in self.states.iter_mut().zip(given.unwrap_or_default()) {
            state.id = id;
        }
    }

    fn step(&mut self, work: Work) {
        self.passes(work);
        self.optimize();
    }

    /// So many steps, and the plans that are made meanwhile.
    fn planned_steps(&mut self, work: Work, count: u32) {
        for _ in 0..count {
            self.step(work);
            let finished = self.heap.with(|state| {
                state.with_swap(|swap, _| {
                    swap.steps.finish_planning();
                    Ok(())
                })
            });
            finished.expect("it works");
        }
    }

    fn report(&self) -> Value {
        let report = self.heap.with(|state| Ok(state.swap_report())).expect("it works");
        serde_json::to_value(report).expect("numbers and texts")
    }

    fn number(&self, name: &str) -> u64 {
        self.report()[name].as_u64().unwrap_or_else(|| panic!("{name} in {}", self.report()))
    }

    /// The optimizer is gone, wherever its states are. What is wrong.
    fn end(mut self) -> Vec<String> {
        for state in std::mem::take(&mut self.states) {
            if state.id != 0 {
                let _ = self.heap.drop_saved(state.id);
            }
            self.end_storage(state.storage);
        }
        self.world.finish();
        let mut wrong = self.world.wrong();
        wrong.extend(std::mem::take(&mut self.wrong));
        if let Err(reason) = self.heap.check() {
            wrong.push(reason);
        }
        let report = self.report();
        for name in ["records", "host_used", "going", "away", "coming", "states", "states_bytes"] {
            if report[name] != 0 && !report.is_null() {
                wrong.push(format!("{name} is left: {report}"));
            }
        }
        wrong
    }
}

const NOTHING: Vec<String> = Vec::new();

#[test]
fn states_that_come_back_are_what_went_whatever_the_streams_do() {
    let (mut out, mut late, mut asked) = (0, 0, 0);
    for seed in 0..60 {
        let mut trainer = Trainer::new(64 * MIB, &settings(24 * MIB, 256 * MIB), seed, None);
        for step in 0..6 {
            let layers = 3 + (seed + step) % 4;
            trainer.passes(Work { layers, temporary: (8 + (seed * step) % 5) * MIB, late: 0 });
            // A program that looks between the passes, on another stream, which it has wait first.
            if (seed + step) % 5 == 0 && !trainer.states.is_empty() {
                trainer.world.finish();
                assert!(trainer.ask(STREAMS[1], false));
                let states = trainer.states.clone();
                states.iter().for_each(|state| trainer.look_at(STREAMS[1], state, "what was read"));
                trainer.world.finish();
                if step % 2 == 0 {
                    trainer.offer();
                }
            }
            trainer.optimize();
        }
        assert_eq!(trainer.refused, 0, "seed {seed}: {}", trainer.said);
        out += trainer.number("states_out");
        late += trainer.number("states_late");
        asked += trainer.number("states_asked");
        assert_eq!(trainer.end(), NOTHING, "seed {seed}");
    }
    assert!(out > 1000 * MIB && late > 20 && asked > 20, "{out} bytes, {late} late, {asked} asked");
}

#[test]
fn whichever_call_of_the_device_fails_states_are_whole() {
    let mut came = 0;
    for seed in 0..3 {
        for call in 1..400 {
            let settings = settings(24 * MIB, 256 * MIB);
            let mut trainer = Trainer::new(64 * MIB, &settings, seed, Some(call));
            for _ in 0..3 {
                trainer.step(REGULAR);
            }
            came += u32::from(trainer.world.fault_came());
            assert_eq!(trainer.end(), NOTHING, "seed {seed}, call {call}");
        }
    }
    assert!(came > 400, "{came} faults came");
}

/// A state, and a request that needs its bytes: at each point the streams have done all that they can, or nothing.
fn run_small(turns: Turns, fault: Option<u64>) -> (Vec<String>, u32, u64, Option<Turns>) {
    let mut trainer = Trainer::new(64 * MIB, &settings(8 * MIB, 64 * MIB), 1, fault);
    trainer.world.take_turns(turns);
    trainer.states = trainer.tensor(4 * MIB).into_iter().collect();
    for _ in 0..2 {
        trainer.offer();
        trainer.temporary(6 * MIB);
        trainer.world.turn(1);
        trainer.optimize();
    }
    let (world, refused) = (trainer.world.clone(), trainer.refused);
    let out = trainer.number("states_out");
    let wrong = trainer.end();
    (wrong, refused, out, world.turns().expect("they were given").following())
}

#[test]
fn a_state_is_right_whatever_the_host_sees_of_the_streams() {
    let (mut turns, mut runs) = (Some(Turns::default()), 0);
    while let Some(now) = turns {
        let said = format!("{now:?}");
        let (wrong, refused, out, following) = run_small(now, None);
        assert_eq!((wrong, refused), (NOTHING, 0), "{said}");
        assert!(out >= 4 * MIB, "{said}");
        (turns, runs) = (following, runs + 1);
    }
    assert!(runs >= 1 << 6, "{runs} runs");
}

#[test]
fn a_state_is_whole_whichever_call_fails() {
    for call in 1..120 {
        let mut turns = Some(Turns::default());
        for _ in 0..16 {
            let Some(now) = turns else { break };
            let said = format!("call {call}, {now:?}");
            let (wrong, _, _, following) = run_small(now, Some(call));
            assert_eq!(wrong, NOTHING, "{said}");
            turns = following;
        }
    }
}

#[test]
fn what_had_to_go_leaves_with_the_end_of_a_step_and_is_back_before_the_next() {
    let mut trainer = Trainer::within(24 * MIB);
    let work = Work { layers: 2, temporary: 11 * MIB, late: 0 };
    trainer.planned_steps(work, 24);
    let before = ["victims", "states_late", "states_out"].map(|name| trainer.number(name));
    trainer.planned_steps(work, 6);
    let after = ["victims", "states_late", "states_out"].map(|name| trainer.number(name));
    assert_eq!(before[..2], after[..2], "nothing is taken, nothing is late: {}", trainer.report());
    let each = (after[2] - before[2]) / 6;
    assert_eq!(each, 6 * MIB, "the largest, and no more");
    assert_eq!(trainer.refused, 0);
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn nothing_comes_back_before_what_needs_its_bytes() {
    let mut trainer = Trainer::within(24 * MIB);
    let work = Work { layers: 2, temporary: 11 * MIB, late: 11 * MIB };
    trainer.planned_steps(work, 24);
    let names = ["sent_back", "states_late", "victims", "states_in"];
    let before = names.map(|name| trainer.number(name));
    trainer.planned_steps(work, 6);
    let after = names.map(|name| trainer.number(name));
    assert_eq!(before[..3], after[..3], "{}", trainer.report());
    assert_eq!(after[3] - before[3], 6 * 6 * MIB, "the largest, once in a step");
    assert_eq!(trainer.end(), NOTHING);
}

/// The first of long sequences after short ones: it needs more at each operator than the step before has shown.
#[test]
fn in_a_step_that_needs_more_than_the_one_before_states_do_not_come_and_go() {
    let mut trainer = Trainer::within(24 * MIB);
    let short = Work { layers: 2, temporary: 2 * MIB, late: 2 * MIB };
    trainer.planned_steps(short, 4);
    let names = ["sent_back", "states_in"];
    assert_eq!(names.map(|name| trainer.number(name)), [0, 0], "{}", trainer.report());
    trainer.step(Work { layers: 2, temporary: 11 * MIB, late: 11 * MIB });
    assert_eq!(names.map(|name| trainer.number(name)), [0, 6 * MIB], "{}", trainer.report());
    assert_eq!((trainer.refused, trainer.end()), (0, NOTHING));
}

#[test]
fn where_all_fits_nothing_goes_and_what_fits_again_stays() {
    let mut trainer = Trainer::within(40 * MIB);
    for _ in 0..6 {
        trainer.step(REGULAR);
    }
    assert_eq!((trainer.number("states_out"), trainer.number("states_wanted")), (0, 0));
    // One step needs them away, and those after it do not.
    trainer.step(Work { layers: 5, temporary: 26 * MIB, late: 0 });
    assert!(trainer.number("states_out") > 0);
    assert!(trainer.number("states_wanted") > 0);
    for _ in 0..4 + 2 * Tuning::default().remembered {
        trainer.step(REGULAR);
    }
    assert_eq!(trainer.number("states_wanted"), 0);
    let out = trainer.number("states_out");
    trainer.step(REGULAR);
    assert_eq!(trainer.number("states_out"), out);
    assert_eq!(trainer.number("policies"), 0, "what was planned rests");
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn saved_tensors_go_first_and_states_only_where_they_must() {
    let mut trainer = Trainer::within(28 * MIB);
    for _ in 0..4 {
        // 16 MiB of states and 10 that can go.
        trainer.step(Work { layers: 16, temporary: 2 * MIB, late: 0 });
    }
    assert!(trainer.number("victims") > 0);
    assert_eq!(trainer.number("states_out"), 0, "{}", trainer.report());
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn a_state_that_somebody_has_or_that_is_no_memory_of_the_heap_stays_and_is_counted() {
    let mut trainer = Trainer::within(24 * MIB);
    trainer.optimize();
    assert!(trainer.ask(STREAMS[0], true));
    let [first, second, ..] = trainer.states[..] else { panic!("four states") };
    with(|all| all.get_mut(&first.storage).expect("it lives").0 += 1);
    let mut offered: Vec<Saved> = [first, second].iter().map(|of| trainer.described(of)).collect();
    offered[1].address += MIB;
    let others = OtherStates { shared: 2, unseen: 3 };
    let ids = trainer.heap.offer_states(&offered, others, STREAMS[0]).expect("nothing is refused");
    assert_eq!(ids, [0, 0]);
    assert_eq!((trainer.number("states_shared"), trainer.number("states_unseen")), (3, 4));
    with(|all| all.get_mut(&first.storage).expect("it lives").0 -= 1);
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn a_host_without_room_costs_requests_and_the_error_speaks_of_states() {
    let mut trainer = Trainer::new(64 * MIB, &settings(24 * MIB, 7 * MIB), 1, None);
    for _ in 0..3 {
        trainer.step(Work { layers: 0, temporary: 48 * MIB, late: 0 });
    }
    assert!(trainer.refused > 0);
    for part in ["Swapping has", "of states of optimizers on the host", "saved tensors and states"]
    {
        assert!(trainer.said.contains(part), "{}", trainer.said);
    }
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn states_for_which_there_is_no_room_any_more_are_an_error_and_come_once_there_is() {
    let mut trainer = Trainer::within(24 * MIB);
    trainer.optimize();
    let held = trainer.request(48 * MIB).expect("states go for it");
    assert!(!trainer.ask(STREAMS[0], true));
    assert!(trainer.said.contains("of states of optimizers on the host"), "{}", trainer.said);
    assert!(trainer.said.contains("out of memory"), "{}", trainer.said);
    trainer.free(held);
    assert!(trainer.ask(STREAMS[0], true));
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn who_asks_between_steps_may_read_on_any_stream() {
    let mut trainer = Trainer::within(24 * MIB);
    trainer.step(REGULAR);
    trainer.temporary(20 * MIB);
    assert!(trainer.number("states_away") > 0);
    assert!(trainer.ask(STREAMS[0], false));
    // This one has waited for nothing since.
    let states = trainer.states.clone();
    states.iter().for_each(|state| trainer.look_at(STREAMS[1], state, "what was read"));
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn an_optimizer_that_works_on_a_stream_of_its_own_is_waited_for() {
    for seed in 0..8 {
        let mut trainer = Trainer::new(64 * MIB, &settings(24 * MIB, 256 * MIB), seed, None);
        trainer.states = trainer.tensor_on(STREAMS[1], 16 * MIB).into_iter().collect();
        trainer.offer();
        trainer.temporary(20 * MIB);
        assert!(trainer.number("states_out") > 0);
        assert!(trainer.ask(STREAMS[1], true));
        let state = trainer.states[0];
        trainer.look_at(STREAMS[1], &state, "a state");
        trainer.world.finish();
        assert_eq!(trainer.end(), NOTHING, "seed {seed}");
    }
}

#[test]
fn an_optimizer_that_dies_while_its_states_are_away_leaves_nothing() {
    for temporary in [4, 14, 22] {
        let mut trainer = Trainer::within(24 * MIB);
        trainer.step(REGULAR);
        trainer.passes(Work { layers: 2, temporary: temporary * MIB, late: 0 });
        trainer.offer();
        assert_eq!(trainer.number("states_away") > 0, temporary > 4);
        assert_eq!(trainer.end(), NOTHING);
    }
}

#[test]
fn a_program_that_captures_graphs_keeps_its_states() {
    let mut trainer = Trainer::within(24 * MIB);
    for _ in 0..3 {
        trainer.step(REGULAR);
    }
    assert!(trainer.number("states_wanted") > 0);
    trainer.heap.create_pool((1, 0)).expect("a pool");
    trainer.heap.begin_pool((1, 0), true).expect("a capture begins");
    assert_eq!(trainer.number("states"), 0, "they are there, without records");
    let states = trainer.states.clone();
    states.iter().for_each(|state| trainer.look_at(STREAMS[0], state, "a state in a capture"));
    trainer.heap.end_pool((1, 0), true).expect("it ends");
    let out = trainer.number("states_out");
    trainer.optimize();
    trainer.step(REGULAR);
    assert_eq!(trainer.number("states_out"), out);
    assert!(trainer.number("states_unseen") > 0);
    assert_eq!(trainer.end(), NOTHING);
}

#[test]
fn at_the_edge_states_go_where_nothing_else_can() {
    let json = format!(r#"{{"mode": "stitch", "host_budget": {}}}"#, 256 * MIB);
    let settings = crate::Settings::parse(&json).expect("right settings");
    for (gpu, is_averted) in [(28, true), (64, false)] {
        let mut trainer = Trainer::new(gpu * MIB, &settings, 1, None);
        // More than half is in use from the first on.
        for _ in 0..6 {
            trainer.step(Work { layers: 0, temporary: 20 * MIB, late: 0 });
        }
        assert_eq!(trainer.refused, 0, "{}", trainer.said);
        let report = trainer.report();
        let averted = report["averted"].as_u64().unwrap_or(0);
        assert_eq!(averted > 0, is_averted, "{report}");
        assert_eq!(report["states_out"].as_u64().unwrap_or(0) > 0, is_averted, "{report}");
        assert_eq!(trainer.end(), NOTHING);
    }
}

#[test]
fn what_is_kept_of_steps_of_any_length_is_bounded() {
    let mut states = crate::swap::states::States::open();
    for step in 0..3 {
        for key in 0..2 * crate::swap::step::OPERATORS_MAX as u64 {
            states.begin(key, step);
        }
        assert!(states.bytes_kept() <= 64 * crate::swap::step::OPERATORS_MAX, "step {step}");
        states.end(1, 4);
    }
}
