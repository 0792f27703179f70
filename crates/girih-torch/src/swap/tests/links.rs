//! What links are measured to carry, on streams with clocks, and what is planned with it.

use girih_cuda::StreamHandle;
use girih_runtime::Copies;
use girih_swap::{Gap, Op, Step, Tensor};
use girih_trace::StreamId;

use super::timed::{Refused, Timed};
use super::trained::Run;
use crate::device::HeapDevice;
use crate::swap::links::{COPIES_MAX, Measured};
use crate::swap::tuning::Tuning;
use crate::swap::waits::Way;

const MIB: u64 = 1 << 20;
/// Bytes a microsecond out and in: cards on the slowest link that is met, on the usual one, and one with a lame way back.
const MACHINES: [[f64; 2]; 3] = [[12e3, 12e3], [55e3, 55e3], [24e3, 13e3]];

/// So much of what a step needs. Bytes.
fn part(step: &Step, share: f64) -> u64 {
    (step.peak() as f64 * share) as u64
}

/// A step that saves tensors and uses them: the operators that do, of each.
fn step_of(uses: &[(u32, u32)], bytes: u64, us: f64) -> Step {
    let count = 1 + uses.iter().map(|(_, last)| *last).max().unwrap_or(0);
    let ops = (0..u64::from(count)).map(|key| Op { key, us, ..Op::default() });
    let load = vec![64 * MIB; count as usize];
    let mut step = Step { ops: ops.collect(), load, ..Step::default() };
    for (&(born, last), number) in uses.iter().zip(0..) {
        // Sizes differ, as those of programs do.
        let bytes = bytes + u64::from(number % 3) * MIB;
        step.tensors.push(Tensor { request: number, bytes, born, last });
        step.gaps.push(Gap { tensor: number, after: born, before: last });
        step.load[born as usize..=last as usize].iter_mut().for_each(|load| *load += bytes);
    }
    step.gaps.sort_unstable_by_key(|gap| (gap.after, gap.tensor));
    step
}

/// Layers that are run forward and then back.
fn layered(layers: u32, bytes: u64, us: f64) -> Step {
    let uses: Vec<_> = (0..layers).map(|layer| (2 * layer, 4 * layers - 1 - 2 * layer)).collect();
    step_of(&uses, bytes, us)
}

/// The same of two batches, of which the second goes forward while the first comes back: both ways are busy at once.
fn in_turns(layers: u32, bytes: u64, us: f64) -> Step {
    let first = (0..layers).map(|layer| (2 * layer, 4 * layers - 2 - 2 * layer));
    let second = (0..layers).map(|layer| (2 * layers + 1 + 2 * layer, 6 * layers - 2 * layer));
    let uses: Vec<_> = first.chain(second).collect();
    step_of(&uses, bytes, us)
}

/// Steps until one plan stays, and four more. What was said then, and microseconds of the last step.
fn settled(mut run: Run) -> (serde_json::Value, f64) {
    let (mut left, mut us) = (4, 0.0);
    for _ in 0..60 {
        us = run.step();
        run.finish_planning();
        left -= i32::from(run.report().is_settled());
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "it settles");
    (serde_json::to_value(run.report()).expect("numbers"), us)
}

fn number(report: &serde_json::Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} of {report}"))
}

#[test]
fn what_is_measured_is_what_the_device_carries() {
    for rates in MACHINES {
        let step = in_turns(24, 96 * MIB, 100.0);
        let (report, _) = settled(Run::on(rates, &step, part(&step, 0.5), Tuning::default()));
        let [out, back] = rates.map(|rate| rate / 1e3);
        for (name, due) in [("links_out", out), ("links_in", back), ("links_both", out + back)] {
            let found = number(&report, name);
            assert!((found / due - 1.0).abs() < 1e-6, "{name}: {found}, {due} is right");
        }
    }
}

#[test]
fn a_plan_is_made_for_the_links_that_there_are_and_met() {
    let step = layered(24, 96 * MIB, 2000.0);
    let mut planned = Vec::new();
    for rates in MACHINES {
        let (report, us) = settled(Run::on(rates, &step, part(&step, 0.6), Tuning::default()));
        let due = number(&report, "step_us_swapped");
        assert!((us / due - 1.0).abs() < 0.05, "{rates:?}: {us} instead of {due}");
        assert!(number(&report, "step_us_bound") <= us * 1.000_001, "{rates:?}: {us}");
        planned.push(due);
    }
    assert!(planned[0] > 1.05 * planned[1], "slow links cost time: {planned:?}");
    // Without measuring, the same card promises what it does not keep.
    let blind = Tuning { links_least: u64::MAX, ..Tuning::default() };
    let mut run = Run::on(MACHINES[0], &step, part(&step, 0.6), blind);
    let mut steps = Vec::new();
    for _ in 0..6 {
        steps.push(run.step());
        run.finish_planning();
    }
    let report = serde_json::to_value(run.report()).expect("numbers");
    let (due, us) = (number(&report, "step_us_swapped"), steps[5]);
    assert!(us > 1.05 * due, "{us}, planned {due}: {steps:?}");
    assert!(report["links_out"].is_null(), "{report}");
}

#[test]
fn few_settled_steps_take_times_of_copies() {
    let step = layered(24, 96 * MIB, 2000.0);
    let mut run = Run::on(MACHINES[0], &step, part(&step, 0.6), Tuning::default());
    let mut counts = Vec::new();
    for _ in 0..40 {
        run.step();
        run.finish_planning();
        counts.push((run.report().is_settled(), run.timed_copies()));
    }
    assert!(counts[0].1 > 0, "{counts:?}");
    let again = Tuning::default().links_again as usize;
    let last = &counts[counts.len() - 2 * again..];
    assert!(last.iter().all(|(is_settled, _)| *is_settled), "{counts:?}");
    assert_eq!(last.iter().filter(|(_, timed)| *timed > 0).count(), 2, "{counts:?}");
}

/// Copies run beside views while schedules are tried, and links are slower for it than they are once nothing is mapped.
#[test]
fn what_a_settled_step_is_said_to_take_follows_the_links_and_nothing_is_planned_again() {
    let step = layered(24, 96 * MIB, 2000.0);
    for [before, after] in [[13e3, 18e3], [18e3, 13e3]] {
        let mut run = Run::on([before; 2], &step, part(&step, 0.6), Tuning::default());
        let steps = |run: &mut Run| (0..40).map(|_| (run.step(), run.finish_planning()).0).last();
        steps(&mut run);
        assert!(run.report().is_settled());
        let plans = number_of_plans(&run);
        run.change_links([after; 2]);
        let us = steps(&mut run).expect("it has steps");
        let report = serde_json::to_value(run.report()).expect("numbers");
        let (due, out) = (number(&report, "step_us_swapped"), number(&report, "links_out"));
        assert!((out / (after / 1e3) - 1.0).abs() < 0.01, "{out} GB/s");
        assert!((due / us - 1.0).abs() < 0.02, "{before} to {after}: {due} said, {us} taken");
        assert_eq!(plans, number_of_plans(&run), "it stays what it is");
    }
}

/// Of the kind of step with most steps.
fn number_of_plans(run: &Run) -> f64 {
    let report = serde_json::to_value(run.report()).expect("numbers");
    number(&report["sequences"][0], "plans")
}

/// A device with a lane for each way.
fn lanes() -> (Timed, [(StreamId, Way); 2]) {
    let (mut device, _) = Timed::new(1 << 30, [10e3, 20e3]);
    let ways = [Way::Out, Way::In].map(|way| {
        let handle = device.open_lane().expect("it has lanes");
        let stream = StreamId(handle as u16);
        device.set_stream(stream, StreamHandle { device: 0, handle, is_transient: false });
        (stream, way)
    });
    (device, ways)
}

fn copy(device: &mut Timed, measured: &mut Measured, (lane, way): (StreamId, Way), bytes: u64) {
    let begun = measured.begin(device, lane);
    let queued = match way {
        Way::Out => device.copy_out(lane, 0, 0, bytes),
        Way::In => device.copy_in(lane, 0, 0, bytes),
    };
    measured.end(device, (lane, way), queued.is_ok().then_some(bytes), begun);
}

#[test]
fn however_many_copies_there_are_few_points_in_time_are_held() {
    let (mut device, [out, _]) = lanes();
    let mut measured = Measured::new(&Tuning::default());
    for _ in 0..3 {
        for _ in 0..3 * COPIES_MAX {
            copy(&mut device, &mut measured, out, 5 * MIB);
            assert!(device.points() <= 4 * COPIES_MAX, "those of two steps");
        }
        measured.end_step(&mut device);
        assert!(device.points() <= 2 * COPIES_MAX);
    }
    // A device that never tells.
    device.refuse(Refused::Answers);
    for _ in 0..4 {
        (0..2 * COPIES_MAX).for_each(|_| copy(&mut device, &mut measured, out, 5 * MIB));
        measured.end_step(&mut device);
        assert!(device.points() <= 2 * COPIES_MAX);
    }
    device.refuse(Refused::Nothing);
    measured.end_step(&mut device);
    measured.end_step(&mut device);
    assert_eq!(device.points(), 0, "and all are given back");
}

#[test]
fn whichever_point_in_time_is_refused_no_copy_is_lost_and_none_is_mistaken() {
    for call in 0..24 {
        let (mut device, [out, back]) = lanes();
        let mut measured = Measured::new(&Tuning::default());
        device.refuse(Refused::Time(call));
        for _ in 0..6 {
            copy(&mut device, &mut measured, out, 64 * MIB);
            copy(&mut device, &mut measured, back, 64 * MIB);
        }
        assert_eq!(device.copied(), 12, "call {call}");
        measured.end_step(&mut device);
        measured.end_step(&mut device);
        assert_eq!(device.points(), 0, "call {call}: what was taken is given back");
        // The one that is not known ran beside those that are.
        assert_eq!(measured.gigabytes(), [None; 3], "call {call}");
    }
}

#[test]
fn a_run_is_the_same_whichever_time_of_a_copy_is_refused() {
    let step = layered(12, 96 * MIB, 500.0);
    let of = |refused: Refused| {
        let mut run = Run::refusing(refused, &step, part(&step, 0.5));
        (0..6).for_each(|_| _ = run.step());
        let report = run.report();
        (report.copies_out(), report.is_at_rest(), run.refused)
    };
    let usual = of(Refused::Nothing);
    assert!(usual.0 > 0 && usual.1 && usual.2 == 0);
    for call in 0..40 {
        assert_eq!(of(Refused::Time(call)), usual, "call {call}");
    }
}
