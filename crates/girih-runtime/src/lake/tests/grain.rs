//! Pages that become larger where views are dear in every step.

use girih_trace::MarkKind;

use super::*;

/// A lake with twenty holes of 40 MiB, in which each step has a view that none before it had.
struct Steps {
    machine: Machine,
    kept: Vec<Granted>,
    time_us: i64,
}

impl Steps {
    /// One whose pages may become so many times as large after three steps.
    fn new(coarsest: u64) -> Steps {
        let options = Options { dear_steps: 3, ..Options::default() };
        let mut machine = Machine::of(options, config(), 64 * GIB);
        machine.lake.coarsen(coarsest);
        let kept = holes(&mut machine, 20);
        let mut steps = Steps { machine, kept, time_us: 0 };
        steps.end(0);
        steps
    }

    /// A step ends so many microseconds after the last one did.
    fn end(&mut self, passed: i64) {
        self.time_us += passed;
        let mark =
            Mark { before: 0, time_us: self.time_us, kind: MarkKind::Step, name: String::new() };
        self.machine.with(|lake, env| lake.mark(env, &mark)).unwrap();
    }

    /// A step with a view of so many bytes.
    fn step(&mut self, size: u64, passed: i64) {
        let before = self.machine.stats().num_stitches;
        let block = self.machine.used(size, MAIN);
        self.machine.free_used(block, MAIN);
        assert_eq!(self.machine.stats().num_stitches, before + 1);
        self.end(passed);
    }

    /// Pages of a request.
    fn pages_of(&mut self, size: u64) -> u64 {
        let before = self.machine.calls(Call::Create);
        let block = self.machine.used(size, MAIN);
        let pages = self.machine.calls(Call::Create) - before;
        self.machine.free_used(block, MAIN);
        pages
    }
}

/// Of so many microseconds an eighth is less than the driver takes for any of the views: 6 ms for the first, and at least
/// those of ten pages for one that is patched. Of 400 times as many it is more.
const SHORT: i64 = 1_000;

#[test]
fn once_views_are_dear_in_so_many_steps_free_pages_go_and_come_back_larger() {
    let mut steps = Steps::new(4);
    let held = steps.machine.reserved();
    for size in [400, 420, 440] {
        assert_eq!(steps.machine.reserved(), held);
        steps.step(size * MIB, SHORT);
    }
    assert_eq!(steps.machine.reserved(), held / 2, "what is in use stays");
    // A 32nd of 256 MiB are 8.
    assert_eq!(steps.pages_of(256 * MIB), 8);
    // Once in a run.
    let again = steps.machine.reserved();
    for _ in 0..8 {
        steps.end(1);
    }
    assert_eq!(steps.machine.reserved(), again);
    let kept = std::mem::take(&mut steps.kept);
    kept.into_iter().for_each(|block| steps.machine.free_used(block, MAIN));
}

#[test]
fn pages_stay_as_they_are_where_nobody_swaps_or_views_take_little_or_are_over_in_between() {
    let mut alone = Steps::new(1);
    let mut cheap = Steps::new(4);
    let mut over = Steps::new(4);
    for (number, size) in (0..12).zip((400..).step_by(20)) {
        alone.step(size * MIB, SHORT);
        cheap.step(size * MIB, 400 * SHORT);
        over.step(size * MIB, SHORT);
        if number % 2 == 1 {
            over.end(SHORT);
        }
    }
    for steps in [&alone, &cheap, &over] {
        assert_eq!(steps.machine.reserved(), 1600 * MIB);
        assert_eq!(steps.machine.lake.grain.times(), 1);
    }
}

#[test]
fn what_the_device_does_not_take_back_stays() {
    let mut steps = Steps::new(4);
    steps.step(400 * MIB, SHORT);
    steps.step(420 * MIB, SHORT);
    let block = steps.machine.used(440 * MIB, MAIN);
    steps.machine.free_used(block, MAIN);
    let held = steps.machine.reserved();
    let kind = FaultKind::Every(Call::Unmap);
    steps.machine.device.inject(Fault { kind, out_of_memory: false });
    steps.end(SHORT);
    assert_eq!(steps.machine.reserved(), held);
    assert_eq!(steps.machine.lake.grain.times(), 4, "new ones are larger all the same");
    let block = steps.machine.used(800 * MIB, MAIN);
    assert_eq!(steps.machine.reserved(), held, "and what is free serves");
    steps.machine.free_used(block, MAIN);
}
