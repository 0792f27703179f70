//! Without a budget: nothing goes before the GPU is full, and then what would have been refused is served.

use super::adversary::Adversary;
use super::program::{Outcome, Program, Seed};
use super::{MIB, run_with};

/// A GPU of so many bytes, all of which the program may use.
fn settings(host: u64, more: &str) -> crate::Settings {
    let json = format!(r#"{{"mode": "stitch", "host_budget": {host}{more}}}"#);
    crate::Settings::parse(&json).expect("right settings")
}

fn run(gpu: u64, seed: u64, steps: u32, host: u64, fault: Option<u64>) -> Outcome {
    run_with(gpu, &settings(host, ""), seed, steps, fault)
}

#[test]
fn a_program_that_would_end_in_out_of_memory_goes_on() {
    let (mut averted, mut left, mut alone, mut pinned) = (0, 0, 0, 0);
    let off = crate::Settings::parse(r#"{"mode": "stitch", "swap": "off"}"#).expect("right");
    for seed in 0..60 {
        let gpu = 40 * MIB;
        let outcome = run(gpu, seed, 4, 256 * MIB, None);
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        let report = outcome.report.expect("half of it was in use");
        averted += report.averted();
        assert_eq!(report.copies_out() > 0, report.averted() > 0, "seed {seed}");
        assert_eq!(report.averted() > 0, outcome.told == 1, "seed {seed}: told once, or never");
        pinned += report.host_pinned();
        assert_eq!(outcome.ooms, u64::from(outcome.refused), "seed {seed}: as the program sees it");
        let without = run_with(gpu, &off, seed, 4, None);
        assert!(without.report.is_none(), "nothing is swapped");
        alone += without.refused;
        left += outcome.refused;
    }
    assert!(averted > 40 && pinned > 0, "{averted}, {pinned}");
    assert!(left * 100 < alone, "{left} requests are refused, {alone} without swapping");
}

#[test]
fn a_program_with_room_enough_pays_neither_copies_nor_memory_of_the_host() {
    for seed in 0..20 {
        let outcome = run(160 * MIB, seed, 4, 256 * MIB, None);
        assert_eq!((outcome.refused, outcome.told), (0, 0));
        // Some of them fill half of it.
        if let Some(report) = outcome.report {
            assert_eq!((report.copies_out(), report.host_pinned()), (0, 0), "seed {seed}");
        }
    }
    let far = run(2048 * MIB, 1, 4, 256 * MIB, None);
    assert!(far.report.is_none(), "nothing is watched far from the edge");
}

#[test]
fn after_the_first_time_a_step_that_repeats_is_planned() {
    Program::prepare();
    let (device, world) = Adversary::new(40 * MIB, 1);
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB, ""));
    let mut program = Program::new(heap, world, Seed(1));
    for _ in 0..20 {
        program.regular_step();
    }
    let planned = program.report().expect("it swaps");
    assert!(planned.policies() > 0 && planned.averted() > 0, "{planned:?}");
    for _ in 0..10 {
        program.regular_step();
    }
    let later = program.report().expect("it swaps");
    assert_eq!(later.averted(), planned.averted(), "{later:?}");
    assert!(later.copies_out() > planned.copies_out());
    assert_eq!(program.end().wrong, Vec::<String>::new());
}

#[test]
fn whichever_call_of_the_device_fails_at_the_edge_nothing_is_lost() {
    let mut came = 0;
    for seed in 0..3 {
        for call in (1..500).step_by(7) {
            let outcome = run(40 * MIB, seed, 2, 256 * MIB, Some(call + seed));
            assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}, call {call}");
            came += u32::from(outcome.fault_came);
        }
    }
    assert!(came > 100, "{came} faults came");
}

#[test]
fn what_fits_on_neither_side_is_an_error_that_says_so() {
    let mut said = None;
    for seed in 0..20 {
        let outcome = run(40 * MIB, seed, 3, 2 * MIB, None);
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        said = outcome.said.or(said);
    }
    let said = said.expect("something was refused");
    for part in ["Swapping has", "saved before half of the GPU was in use", "host_budget"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_request_for_more_than_there_is_sends_nothing_away() {
    Program::prepare();
    let (device, world) = Adversary::new(64 * MIB, 1);
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB, ""));
    let mut program = Program::new(heap, world, Seed(1));
    let before = program.ask_too_much(65 * MIB);
    assert!(before.copies_out() == 0 && before.averted() == 0, "{before:?}");
    let outcome = program.end();
    assert_eq!((outcome.refused, outcome.ooms, outcome.wrong), (1, 1, Vec::new()));
}

#[test]
fn a_fraction_that_the_program_changes_is_the_edge_from_then_on() {
    Program::prepare();
    let (device, world) = Adversary::new(160 * MIB, 1);
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB, ""));
    let mut program = Program::new(heap, world, Seed(1));
    let mut copies = Vec::new();
    for fraction in [1.0, 0.25, 1.0, 0.25] {
        program.set_memory_fraction(fraction);
        for _ in 0..4 {
            program.regular_step();
        }
        copies.push(program.report().map_or(0, |report| report.copies_out()));
    }
    assert!(copies[0] == 0 && copies[1] > 0 && copies[3] > copies[2], "{copies:?}");
    assert_eq!(copies[2], copies[1], "there is room again");
    let outcome = program.end();
    assert_eq!((outcome.refused, outcome.ooms, outcome.wrong), (0, 0, Vec::new()));
}

#[test]
fn a_request_that_can_never_be_served_begins_nothing() {
    Program::prepare();
    let (device, _) = Adversary::new(160 * MIB, 1);
    let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB, ""));
    for size in [161 * MIB, 1 << 62, u64::MAX] {
        assert!(heap.allocate(size, 1, (0, 0)).is_err());
    }
    assert!(heap.with(|state| Ok(state.swap_report())).expect("it works").is_none());
    let address = heap.allocate(100 * MIB, 1, (0, 0)).expect("there is room");
    assert!(heap.with(|state| Ok(state.swap_report())).expect("it works").is_some());
    assert_eq!(heap.free(address).ok(), Some(true));
}

#[test]
fn a_budget_stays_whatever_share_of_the_device_the_program_sets_and_when() {
    let budget = 57 * MIB;
    for conf in ["", "per_process_memory_fraction:0.3", "per_process_memory_fraction:1.0"] {
        Program::prepare();
        let (device, world) = Adversary::new(160 * MIB, 1);
        let more = format!(r#", "gpu_budget": {budget}, "conf": "{conf}""#);
        let heap = crate::Heap::over(Box::new(device), 0, &settings(256 * MIB, &more));
        let limit = |program: &Program| program.limit().expect("there is one");
        let mut program = Program::new(heap, world, Seed(1));
        assert_eq!(limit(&program), if conf.contains("0.3") { 48 * MIB } else { budget });
        for (fraction, held) in [(1.0, budget), (0.5, budget), (0.3, 48 * MIB), (1.0, budget)] {
            program.set_memory_fraction(fraction);
            assert_eq!(limit(&program), held, "{fraction} after {conf}");
            let before = program.report().expect("it swaps").copies_out();
            program.regular_step();
            assert!(program.report().expect("it swaps").copies_out() > before, "{fraction}");
        }
        let outcome = program.end();
        assert_eq!((outcome.refused, outcome.ooms, outcome.wrong), (0, 0, Vec::new()), "{conf}");
    }
}
