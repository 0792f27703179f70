//! The laboratory measures what torch 2.11 measured, and holds for programs that nobody wrote.

use arbitrary::{Arbitrary, Result, Unstructured};
use arbtest::arbtest;
use girih_runtime::lab::{self, CASES, Case, LabError, Operation, Size, Step, StepReport};
use girih_runtime::sim::Call;
use girih_runtime::{AllocError, Backing};
use girih_trace::BlockState;

const MIB: u64 = 1 << 20;

fn report(name: &str) -> Vec<StepReport<'static>> {
    let case = lab::find(name).expect("a case of that name");
    lab::run(case).expect("the cases of the laboratory run to their end")
}

/// MiB held after each step.
fn reserved(name: &str) -> Vec<u64> {
    report(name).iter().map(|step| step.reserved / MIB).collect()
}

/// The layout after a step, numbered from 1 as on the command line.
fn layout(name: &str, step: usize) -> Vec<String> {
    report(name)[step - 1].segments.iter().map(lab::SegmentLayout::draw).collect()
}

fn step(operation: Operation<'_>) -> Step<'_> {
    Step { operation, explanation: "", expected: None }
}

fn case<'a>(settings: &'a str, steps: &'a [Step<'a>]) -> Case<'a> {
    Case { name: "sample", title: "", settings, steps }
}

#[test]
fn reserved_memory_is_what_torch_reserved_after_every_step() {
    // Written down apart from the cases, so that no edit of their data can hide a change.
    for (name, expected) in [
        ("split-and-merge", &[32, 32, 32, 32, 32][..]),
        ("small-then-large", &[128, 128, 256]),
        ("large-then-small", &[128, 128, 128]),
        ("expandable-growth", &[20, 40, 60, 80, 80, 100, 120, 140]),
        ("expandable-small-then-large", &[140, 140, 140]),
        ("pinned-splits", &[80, 80, 100, 100, 100]),
        ("one-mib-loophole", &[20, 20, 22]),
        ("no-loophole", &[20, 20, 20]),
    ] {
        assert_eq!(reserved(name), expected, "{name}");
    }
}

#[test]
fn graphs_that_share_a_pool_hold_what_their_order_and_their_segments_make_of_it() {
    for (name, after_each) in [
        ("graphs-small-first", [64, 192, 448]),
        ("graphs-large-first", [256, 256, 256]),
        ("graphs-expandable", [80, 140, 260]),
        ("graphs-outputs-kept", [40, 80, 200]),
    ] {
        let reports = report(name);
        let ends = reports.iter().filter(|it| it.step.operation == Operation::EndCapture);
        let reserved: Vec<u64> = ends.map(|it| it.reserved / MIB).collect();
        assert_eq!(reserved, after_each, "{name}");
    }
    let kept = "large 200 MiB [8 MiB used | 24 MiB free | 2 MiB used | 32 MiB free | 4 MiB used \
                | 130 MiB free]";
    assert_eq!(layout("graphs-outputs-kept", 15), [kept]);
}

#[test]
fn pages_of_the_size_of_requests_leave_nothing_over() {
    assert_eq!(reserved("expandable-page-size"), [128, 128, 128]);
    assert!(report("expandable-page-size")[0].calls.contains(&(Call::Create, 8)));
}

#[test]
fn a_capture_in_a_capture_and_the_end_of_none_are_errors_that_name_the_step() {
    let (begin, end) = (step(Operation::Capture), step(Operation::EndCapture));
    for (steps, number) in [([begin, begin], 2), ([end, begin], 1)] {
        let error = lab::run(&case("", &steps)).expect_err("out of turn");
        assert_eq!(error, LabError::Turn { case: "sample".to_owned(), step: number });
    }
}

#[test]
fn every_number_of_the_article_is_met_and_every_case_of_its_own_has_one() {
    for case in CASES {
        let verdicts: Vec<_> = report(case.name).iter().filter_map(StepReport::is_equal).collect();
        // It speaks of graphs and of the size of pages without a program.
        let is_ours = case.name.starts_with("graphs-") || case.name == "expandable-page-size";
        assert_eq!(verdicts.is_empty(), is_ours, "{}", case.name);
        assert!(verdicts.iter().all(|equal| *equal), "{} differs: {verdicts:?}", case.name);
    }
}

#[test]
fn a_number_that_is_not_met_is_reported_as_different() {
    let operation = Operation::Allocate { count: 1, size: 16 * MIB };
    let steps = [Step { expected: Some(15 * MIB), ..step(operation) }];
    let reports = lab::run(&case("", &steps)).expect("one allocation succeeds");
    assert_eq!(reports[0].is_equal(), Some(false));
}

#[test]
fn a_split_block_merges_back_when_its_neighbour_is_freed() {
    assert_eq!(layout("split-and-merge", 3), ["large 32 MiB [16 MiB used | 16 MiB used]"]);
    assert_eq!(layout("split-and-merge", 4), ["large 32 MiB [16 MiB free | 16 MiB used]"]);
    assert_eq!(layout("split-and-merge", 5), ["large 32 MiB [32 MiB free]"]);
}

#[test]
fn free_blocks_of_different_segments_serve_no_larger_request() {
    let layout = layout("small-then-large", 3);
    let count = |line: &str| layout.iter().filter(|other| *other == line).count();
    assert_eq!(count("large 16 MiB [16 MiB free]"), 8);
    assert_eq!(count("large 32 MiB [32 MiB used]"), 4);
    assert_eq!(layout.len(), 12);
}

#[test]
fn a_live_block_keeps_the_free_blocks_beside_it_apart() {
    let freed =
        "large 80 MiB [16 MiB free | 16 MiB used | 16 MiB free | 16 MiB used | 16 MiB free]";
    assert_eq!(layout("pinned-splits", 2), [freed]);
    let grown = "large 100 MiB [16 MiB free | 16 MiB used | 16 MiB free | 16 MiB used \
                 | 32 MiB used | 4 MiB free]";
    assert_eq!(layout("pinned-splits", 3), [grown]);
    assert_eq!(layout("pinned-splits", 4), ["large 100 MiB [100 MiB free]"]);
}

#[test]
fn a_small_block_gets_a_segment_of_its_own_beside_a_free_large_one() {
    let mut layout = layout("one-mib-loophole", 3);
    layout.sort();
    assert_eq!(layout, ["large 20 MiB [20 MiB free]", "small 2 MiB [0.5 MiB used | 1.5 MiB free]"]);
}

#[test]
fn a_step_that_the_cache_serves_makes_no_device_call() {
    for (name, number) in [
        ("split-and-merge", 3),
        ("large-then-small", 3),
        ("expandable-growth", 5),
        ("expandable-small-then-large", 3),
        ("pinned-splits", 5),
        ("no-loophole", 3),
    ] {
        assert_eq!(report(name)[number - 1].calls, [], "{name}, step {number}");
    }
}

#[test]
fn a_growing_segment_reserves_addresses_once_and_maps_one_page_a_step() {
    let growth = report("expandable-growth");
    let page = [(Call::Create, 1), (Call::Map, 1), (Call::SetAccess, 1)];
    assert_eq!(growth[0].calls[0], (Call::Reserve, 1));
    assert_eq!(growth[0].calls[1..], page);
    assert_eq!(growth[1].calls, page);
}

#[test]
fn a_case_is_found_by_its_name_which_is_kebab_case_and_its_own() {
    for case in CASES {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(case.name.chars().all(is_plain), "{}", case.name);
        assert_eq!(lab::find(case.name), Some(case));
    }
    assert_eq!(lab::find("no-such-case"), None);
}

#[test]
fn settings_that_pytorch_refuses_are_an_error_that_names_the_case() {
    let error = lab::run(&case("expandable_segments:Maybe", &[])).expect_err("no such setting");
    assert!(matches!(&error, LabError::Settings { case, .. } if case == "sample"));
    assert!(
        error.to_string().starts_with("case sample: expandable_segments must be True or False")
    );
}

#[test]
fn a_free_of_what_is_not_in_use_is_an_error_that_names_step_and_block() {
    let one = step(Operation::Allocate { count: 1, size: MIB });
    let never_given = [one, step(Operation::Free(&[1]))];
    let freed_twice = [one, step(Operation::Free(&[0])), step(Operation::Free(&[0]))];
    for (steps, number, block) in [(&never_given[..], 2, 1), (&freed_twice, 3, 0)] {
        let error = lab::run(&case("", steps)).expect_err("the block is not in use");
        let expected = LabError::NotInUse { case: "sample".to_owned(), step: number, block };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_request_larger_than_the_device_is_refused_with_its_step() {
    let steps = [step(Operation::Allocate { count: 2, size: 6 << 30 })];
    let error = lab::run(&case("", &steps)).expect_err("12 GiB do not fit");
    let out_of_memory = |error: &AllocError| matches!(error, AllocError::OutOfMemory { requested, .. } if *requested == 6 << 30);
    assert!(
        matches!(&error, LabError::Refused { step: 1, error, .. } if out_of_memory(error)),
        "{error}"
    );
}

#[test]
fn operations_and_sizes_read_as_a_person_would_write_them() {
    let text = |operation: Operation<'_>| operation.to_string();
    assert_eq!(text(Operation::Allocate { count: 8, size: 16 * MIB }), "allocate 8 x 16 MiB");
    assert_eq!(text(Operation::Allocate { count: 1, size: MIB / 2 }), "allocate 0.5 MiB");
    assert_eq!(text(Operation::Free(&[0])), "free #0");
    assert_eq!(text(Operation::Free(&[0, 2])), "free #0 and #2");
    assert_eq!(text(Operation::Free(&[0, 2, 5])), "free #0, #2 and #5");
    assert_eq!(text(Operation::FreeAll), "free everything");
    assert_eq!(text(Operation::Capture), "capture a graph");
    assert_eq!(text(Operation::EndCapture), "end the capture");
    for (bytes, expected) in [
        (0, "0 MiB"),
        (512, "512 bytes"),
        (3 << 10, "3 KiB"),
        (MIB + 1, "1048577 bytes"),
        (MIB + MIB / 4, "1.25 MiB"),
        (u64::MAX, "18446744073709551615 bytes"),
    ] {
        assert_eq!(Size(bytes).to_string(), expected);
    }
}

/// A program that nobody wrote: requests of all size classes, single frees, frees of everything.
#[derive(Debug)]
struct Program {
    is_expandable: bool,
    operations: Vec<Drawn>,
}

/// An [`Operation`] that owns its block.
#[derive(Clone, Copy, Debug)]
enum Drawn {
    Allocate { count: u32, size: u64 },
    Free([usize; 1]),
    FreeAll,
}

impl<'a> Arbitrary<'a> for Program {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Program> {
        let is_expandable = u.arbitrary()?;
        let (mut live, mut given) = (Vec::new(), 0);
        let mut operations = Vec::new();
        for _ in 0..u.int_in_range(1..=24)? {
            operations.push(match u.int_in_range(0..=7)? {
                0 => {
                    live.clear();
                    Drawn::FreeAll
                }
                1..=3 if !live.is_empty() => {
                    Drawn::Free([live.swap_remove(u.choose_index(live.len())?)])
                }
                _ => {
                    let count = u.int_in_range(1..=4)?;
                    let most = *u.choose(&[4096, MIB, 10 * MIB, 40 * MIB])?;
                    live.extend(given..given + count as usize);
                    given += count as usize;
                    Drawn::Allocate { count, size: u.int_in_range(1..=most)? }
                }
            });
        }
        Ok(Program { is_expandable, operations })
    }
}

impl Program {
    /// Runs it, and everything is freed at the end.
    fn run(&self, check: impl Fn(&[StepReport<'_>])) {
        let mut steps: Vec<Step<'_>> = self.operations.iter().map(Drawn::step).collect();
        steps.push(step(Operation::FreeAll));
        let settings = if self.is_expandable {
            "expandable_segments:True"
        } else {
            "expandable_segments:False"
        };
        check(&lab::run(&case(settings, &steps)).expect("4 GiB at most fit the device"));
    }
}

impl Drawn {
    fn step(&self) -> Step<'_> {
        step(match self {
            Drawn::Allocate { count, size } => Operation::Allocate { count: *count, size: *size },
            Drawn::Free(block) => Operation::Free(block),
            Drawn::FreeAll => Operation::FreeAll,
        })
    }
}

#[test]
fn blocks_tile_their_segments_and_segments_are_all_that_is_reserved() {
    arbtest(|u| {
        Program::arbitrary(u)?.run(|reports| {
            for report in reports {
                for layout in &report.segments {
                    let mut end = layout.segment.address;
                    for block in &layout.blocks {
                        assert_eq!(block.address, end);
                        end += block.size;
                    }
                    assert_eq!(end, layout.segment.address + layout.segment.size);
                }
                let held: u64 = report.segments.iter().map(|layout| layout.segment.size).sum();
                assert_eq!(held, report.reserved);
            }
        });
        Ok(())
    });
}

#[test]
fn when_all_is_freed_every_segment_is_one_free_block() {
    arbtest(|u| {
        let program = Program::arbitrary(u)?;
        program.run(|reports| {
            let layouts =
                reports.iter().filter(|report| report.step.operation == Operation::FreeAll);
            for layout in layouts.flat_map(|report| &report.segments) {
                let [block] = &layout.blocks[..] else { panic!("not merged: {}", layout.draw()) };
                assert_eq!(block.state, BlockState::Inactive);
                let is_expandable = matches!(layout.segment.backing, Backing::Expandable { .. });
                assert_eq!(is_expandable, program.is_expandable);
            }
            let segments = &reports[reports.len() - 1].segments;
            assert!(!program.is_expandable || segments.len() <= 2, "one for each size class");
        });
        Ok(())
    });
}
