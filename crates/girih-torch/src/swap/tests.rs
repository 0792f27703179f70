//! Swapping on a GPU whose streams run in any order that their events allow, and whose memory has contents.
//!
//! A program saves tensors and uses them; each use looks whether the bytes are those that were written. So whatever is
//! missing among the events (a copy that begins too early, bytes that are given away while they are read, a place on
//! the host that is written too soon) is seen as wrong bytes; and by its clocks, in whatever order the streams ran.

/// What a device does with others, and with other processes: it has none.
macro_rules! alone {
    () => {
        fn enable_peer(&mut self, _peer: i32) -> crate::error::Outcome<()> {
            Ok(())
        }

        fn export(
            &mut self,
            _address: girih_runtime::Address,
            _size: u64,
        ) -> crate::error::Outcome<crate::device::Exported> {
            Err(crate::error::unsupported("not here"))
        }

        fn import(&mut self, _description: &[u8]) -> crate::error::Outcome<girih_runtime::Address> {
            Err(crate::error::unsupported("not here"))
        }

        fn begin_close(
            &mut self,
            _address: girih_runtime::Address,
        ) -> crate::error::Outcome<crate::device::Closing> {
            Ok(crate::device::Closing::Unknown)
        }

        fn finish_close(
            &mut self,
            _address: girih_runtime::Address,
            _closing: u64,
        ) -> crate::error::Outcome<()> {
            Ok(())
        }
    };
}

mod ablation;
mod adversary;
mod changing;
mod clocks;
mod edge;
mod gone;
mod held_up;
mod links;
mod orders;
mod planned_states;
mod program;
mod recorded;
mod resting;
mod states;
mod timed;
mod trained;
mod views;

use self::adversary::{Adversary, Turns};
use self::program::{Program, Seed};

const MIB: u64 = 1 << 20;

/// A GPU of 64 MiB of which the program may use 24, and half as much again as it saves on the host.
fn settings(host: u64) -> crate::Settings {
    let json = format!(
        r#"{{"mode": "stitch", "gpu_budget": {}, "host_budget": {host}}}"#,
        (24 + 33) * MIB
    );
    crate::Settings::parse(&json).expect("right settings")
}

fn run(seed: u64, steps: u32, host: u64, fault: Option<u64>) -> program::Outcome {
    run_with(64 * MIB, &settings(host), seed, steps, fault)
}

/// Steps of a program on a GPU of so many bytes, of whose calls one may fail.
fn run_with(
    gpu: u64,
    settings: &crate::Settings,
    seed: u64,
    steps: u32,
    fault: Option<u64>,
) -> program::Outcome {
    Program::prepare();
    let (device, world) = Adversary::new(gpu, seed);
    if let Some(call) = fault {
        world.fail(call);
    }
    let heap = crate::Heap::over(Box::new(device), 0, settings);
    let mut program = Program::new(heap, world, Seed(seed));
    for _ in 0..steps {
        program.step();
    }
    program.end()
}

#[test]
fn what_comes_back_is_what_went_whatever_the_streams_do() {
    let (mut out, mut demanded, mut victims) = (0, 0, 0);
    for seed in 0..60 {
        let outcome = run(seed, 4, 256 * MIB, None);
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        assert_eq!(outcome.refused, 0, "seed {seed}: everything fits on both sides");
        let report = outcome.report.expect("it swaps");
        out += report.copies_out();
        demanded += report.demanded();
        victims += report.victims();
    }
    assert!(out > 1000 && victims > 100, "{out} copies, {victims} victims");
    assert!(demanded > 0, "some were not fetched before they were wanted");
}

#[test]
fn a_host_that_is_too_small_costs_requests_and_nothing_else() {
    let (mut refused, mut said) = (0, String::new());
    for seed in 0..30 {
        let outcome = run(seed, 3, 2 * MIB, None);
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        refused += outcome.refused;
        said = outcome.said.unwrap_or(said);
    }
    assert!(refused > 0, "what fits nowhere is refused");
    for part in
        ["Swapping has", "of 2.00 MiB that it may have there", "saved tensors that could go"]
    {
        assert!(said.contains(part), "{said}");
    }
}

/// The copies of tensors whose place on the host is in several parts are more than the tensors that went.
#[test]
fn what_lies_on_the_host_in_several_parts_comes_back_as_it_went() {
    let (mut parts, mut calls) = (0, 0);
    for seed in 0..40 {
        for fault in [None, Some(40 + 11 * seed)] {
            let outcome = run(seed, 4, 13 * MIB, fault);
            assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}, {fault:?}");
            let report = outcome.report.expect("it swaps");
            if fault.is_none() {
                parts += outcome.copies_out - report.copies_out();
                calls += outcome.copies_out;
            }
        }
    }
    assert!(parts > 20, "{parts} of {calls} copies were of further parts");
}

#[test]
fn whichever_call_of_the_device_fails_nothing_is_lost() {
    let mut came = 0;
    for seed in 0..4 {
        for call in (1..600).step_by(7) {
            let outcome = run(seed, 2, 256 * MIB, Some(call + seed));
            assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}, call {call}");
            came += u32::from(outcome.fault_came);
        }
    }
    assert!(came > 100, "{came} faults came");
}

#[test]
fn a_step_that_repeats_is_planned_and_then_nothing_is_fetched_too_late() {
    Program::prepare();
    let (device, world) = Adversary::new(64 * MIB, 1);
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB));
    let mut program = Program::new(heap, world, Seed(1));
    for _ in 0..40 {
        program.regular_step();
    }
    let planned = program.report().expect("it swaps");
    assert!(planned.policies() > 0, "{planned:?}");
    for _ in 0..10 {
        program.regular_step();
    }
    let later = program.report().expect("it swaps");
    assert_eq!(later.demanded(), planned.demanded(), "{later:?}");
    assert_eq!(later.victims(), planned.victims(), "{later:?}");
    assert!(later.copies_out() > planned.copies_out());
    assert_eq!(program.end().wrong, Vec::<String>::new());
}

/// A small program. At each of its points the streams have done all that they can, or nothing: as `turns` say. What
/// they could have done in between makes no difference to the host, and is judged by clocks. With the turns that follow.
fn run_small(turns: Turns, fault: Option<u64>) -> (program::Outcome, Option<Turns>) {
    Program::prepare();
    let (device, world) = Adversary::new(64 * MIB, 1);
    world.take_turns(turns);
    if let Some(call) = fault {
        world.fail(call);
    }
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB));
    let mut program = Program::new(heap, world.clone(), Seed(1));
    program.small_step();
    let outcome = program.end();
    (outcome, world.turns().expect("they were given").following())
}

#[test]
fn whoever_is_waited_for_is_named_with_what_it_is() {
    let (mut ways, mut measured) = (std::collections::BTreeSet::new(), 0.0);
    for seed in 0..20 {
        let outcome = run(seed, 4, 256 * MIB, None);
        let report = outcome.report.expect("it swaps");
        let json = serde_json::to_value(&report).expect("numbers and texts");
        let named = json["waited_for"].as_array().expect("a list");
        let number = |value: &serde_json::Value| value.as_f64().expect("a number");
        assert!(named.len() <= 5);
        assert!(named.is_sorted_by(|one, other| number(&one["us"]) >= number(&other["us"])));
        let together: f64 = named.iter().map(|one| number(&one["us"])).sum();
        assert!(together <= number(&json["waited_us"]) + 1e-6, "{json}");
        for one in named {
            let shape: f64 = one["shape"].as_array().expect("a list").iter().map(number).product();
            assert_eq!(shape, number(&one["size"]), "{one}");
            assert!(number(&one["measured"]) <= number(&one["waits"]), "{one}");
            assert!(number(&one["waited_at"]) >= number(&one["saved_at"]), "{one}");
            assert_eq!(one["module"], "block", "{one}");
            ways.insert(one["way"].as_str().expect("a word").to_owned());
        }
        measured += number(&json["waited_us"]);
    }
    assert_eq!(ways.into_iter().collect::<Vec<_>>(), ["in", "out"]);
    assert!(measured > 0.0, "the device tells the time");
}

#[test]
fn a_small_program_is_right_whatever_the_host_sees_of_the_streams() {
    let (mut turns, mut runs, mut out) = (Some(Turns::default()), 0, 0);
    while let Some(now) = turns {
        let said = format!("{now:?}");
        let (outcome, following) = run_small(now, None);
        assert_eq!(outcome.wrong, Vec::<String>::new(), "{said}");
        assert_eq!(outcome.refused, 0, "{said}");
        out += outcome.report.expect("it swaps").copies_out();
        (turns, runs) = (following, runs + 1);
    }
    assert!(runs >= 1 << 10, "{runs} runs");
    assert!(out >= runs, "{out} copies in {runs} runs");
}

#[test]
fn what_came_for_one_stream_is_in_order_for_its_own_too() {
    Program::prepare();
    let (device, world) = Adversary::new(64 * MIB, 1);
    world.take_turns(Turns::default());
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB));
    let mut program = Program::new(heap, world, Seed(1));
    program.fetch_for_another();
    let outcome = program.end();
    assert!(outcome.report.is_some_and(|report| report.copies_out() > 0), "one had to go");
    assert_eq!(outcome.wrong, Vec::<String>::new());
}

#[test]
fn a_small_program_loses_nothing_whichever_call_fails() {
    let all = Turns::default();
    let mut call = 1;
    while run_small(all.clone(), Some(call)).0.fault_came {
        // The last turns in every way, the others none.
        let mut turns = Some(all.clone());
        for _ in 0..32 {
            let Some(now) = turns else { break };
            let said = format!("call {call}, {now:?}");
            let (outcome, following) = run_small(now, Some(call));
            assert_eq!(outcome.wrong, Vec::<String>::new(), "{said}");
            turns = following;
        }
        call += 1;
    }
    assert!(call > 20, "{call} calls");
}
