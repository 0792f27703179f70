//! When the time is taken, when a step is planned, and what is remembered of it.

use super::super::keys::{of_save, of_use};
use super::*;

/// A step of so many operators that save tensors, of which the last needs `peak` bytes. How often the time was taken.
fn step_of(steps: &mut Steps, operators: u64, peak: u64) -> usize {
    let mut taken = 0;
    for number in 0..operators {
        if steps.begin(of_save(number), peak) {
            steps.note_time(TimeStamp(number));
            taken += 1;
        }
    }
    steps.end(|from, to| Some((to.0 - from.0) as f64), &mut Vec::new());
    taken
}

#[test]
fn the_time_is_taken_at_each_operator_while_a_step_is_planned_and_at_few_where_none_is() {
    let mut steps = Steps::new(1 << 30, 1 << 30);
    let Tuning { stamps, stamps_settled, .. } = steps.tuning;
    let operators = 2048;
    assert!(operators < stamps && operators > 4 * stamps_settled);
    let mut of = |peak| step_of(&mut steps, operators as u64, peak);
    // What is read is a step old.
    assert_eq!([of(1), of(1)], [operators; 2], "nobody knows yet whether it fits");
    assert!((1..2 * stamps_settled).contains(&of(1)), "it has room");
    let _ = of(2 << 30);
    let _ = of(2 << 30);
    assert_eq!(of(2 << 30), operators, "and now it has none");
}

#[test]
fn nothing_is_tried_where_nothing_is_saved_or_all_of_it_has_room() {
    let mut steps = Steps::new(1 << 30, 1 << 30);
    let mut tries = |operators, peak| {
        step_of(&mut steps, operators, peak);
        steps.asked().is_trying
    };
    assert!(!tries(0, 0) && !tries(0, 0), "no hooks, as far from the edge");
    assert!(tries(9, 1), "it is not known yet whether it fits");
    assert!(!tries(9, 1), "it does");
    assert!(!tries(9, 2 << 30), "what is read is a step old");
    assert!(tries(9, 2 << 30), "now it is to be planned");
}

/// 13,000 operators: every other one in a step whose length is not known, and every third in those after it.
#[test]
fn a_long_step_is_planned_by_later_times_though_they_are_of_fewer_points() {
    let mut steps = Steps::new(1 << 30, 1 << 30);
    let (operators, peak) = (13_000, 2 << 30);
    let mut of = |us: f64| {
        for number in 0..operators {
            if steps.begin(of_save(number), peak) {
                steps.note_time(TimeStamp(number));
            }
        }
        steps.end(|from, to| Some(us * (to.0 - from.0) as f64), &mut Vec::new());
        steps.finish_planning();
        steps.times.values().next().map_or(f64::NAN, |times| times.us()[0])
    };
    // What is read is a step old: the first takes ten times as long as the others.
    assert!(of(10.0).is_nan());
    assert_eq!([of(10.0), of(1.0), of(1.0)], [10.0, 1.0, 1.0]);
}

#[test]
fn a_program_without_steps_is_not_watched_for_ever() {
    let mut steps = Steps::new(1 << 30, 1 << 30);
    let (stamps, mut taken) = (steps.tuning.stamps, 0);
    for number in 0..3 * OPERATORS_MAX as u64 {
        if steps.begin(of_save(number % 5), number) {
            steps.note_time(TimeStamp(number));
            taken += 1;
        }
        steps.saves(RecordId(number + 1), 1 << 20);
        steps.saw_load(number);
        steps.dropped(RecordId(number + 1));
    }
    let seen = &steps.now;
    assert!(seen.keys.len() <= OPERATORS_MAX && seen.load.len() <= OPERATORS_MAX);
    assert!(seen.seen.len() <= OPERATORS_MAX && seen.by_record.len() <= OPERATORS_MAX);
    assert!(seen.stamps.len() <= 2 * stamps, "{} points in time", seen.stamps.len());
    assert!(steps.shared.is_empty() && steps.live.is_empty());
    let mut forgotten = Vec::new();
    steps.end(|_, _| None, &mut forgotten);
    assert_eq!(steps.now.keys.len(), 0, "the next step begins anew");
    assert_eq!(forgotten.len(), taken, "and its points in time are given back");
    assert!(taken < 2 * stamps * 20, "{taken} points in time for a step of any length");
}

/// Tensors of a step, and bytes of each.
const TENSORS: u64 = 32;
const EACH: u64 = 64 << 20;

/// A step that saves tensors and uses them in the other order, each of so many bytes. Before each operator, and in the
/// end, `look` sees how things stand.
fn save_and_use(steps: &mut Steps, each: u64, mut look: impl FnMut(u64, &Steps)) {
    let time = |steps: &mut Steps, number: u64| steps.note_time(TimeStamp(20_000 * number));
    for number in 0..TENSORS {
        look(number, steps);
        let id = RecordId(number + 1);
        if steps.begin(of_save(number), number * each) {
            time(steps, number);
        }
        steps.saves(id, each);
        steps.saw_load((number + 1) * each);
        if number > 0 {
            steps.is_idle_now(RecordId(number));
        }
    }
    for number in 0..TENSORS {
        look(TENSORS + number, steps);
        let id = RecordId(TENSORS - number);
        steps.is_idle_now(id);
        if steps.begin(of_use(TENSORS - 1 - number), (TENSORS - number) * each) {
            time(steps, TENSORS + number);
        }
        steps.uses(id);
        steps.dropped(id);
    }
    look(2 * TENSORS, steps);
    steps.end(|from, to| Some((to.0 - from.0) as f64), &mut Vec::new());
    steps.finish_planning();
}

#[test]
fn a_plan_for_a_larger_step_is_left_where_all_has_room_and_kept_where_it_has_not() {
    let mut steps = Steps::new(TENSORS * EACH * 3 / 4, u64::MAX >> 1);
    for _ in 0..4 {
        save_and_use(&mut steps, EACH, |_, _| {});
    }
    assert_eq!(steps.policies(), 1);
    let mut whole = Vec::new();
    save_and_use(&mut steps, EACH, |_, steps| whole.push(steps.needs_all()));
    assert!(whole.iter().all(|needs| *needs), "{whole:?}");
    // After all saves.
    let mut needs_all = |each: u64| {
        let mut needs = None;
        save_and_use(&mut steps, each, |number, steps| {
            needs = needs.or((number == TENSORS).then(|| steps.needs_all()));
        });
        needs
    };
    assert_eq!(needs_all(EACH / 2), Some(false), "two thirds of the room");
    assert_eq!(needs_all(EACH * 3 / 4), Some(true), "all of the room may be too little");
    // What such steps take says nothing of the plan.
    let before = steps.sequences()[0].measured_us;
    save_and_use(&mut steps, EACH / 2, |_, _| {});
    save_and_use(&mut steps, EACH / 2, |_, _| {});
    assert_eq!(steps.sequences()[0].measured_us, before);
}

#[test]
fn a_step_that_does_something_else_is_not_as_planned_to_its_end() {
    let mut steps = Steps::new(TENSORS * EACH * 3 / 4, u64::MAX >> 1);
    for _ in 0..4 {
        save_and_use(&mut steps, EACH, |_, _| {});
    }
    save_and_use(&mut steps, EACH, |number, steps| {
        assert!(number == 0 || steps.is_as_planned(), "operator {number}");
    });
    steps.begin(of_save(0), 0);
    assert!(steps.is_as_planned());
    for number in 2..TENSORS {
        steps.begin(of_save(number), 0);
    }
    assert!(steps.is_following() && !steps.is_as_planned(), "it is found, further on");
    steps.end(|_, _| None, &mut Vec::new());
    steps.begin(of_save(0), 0);
    assert!(steps.is_as_planned(), "another step is another");
}

#[test]
fn it_is_said_when_the_next_step_follows_another_schedule() {
    let mut steps = Steps::new(TENSORS * EACH * 3 / 4, u64::MAX >> 1);
    let (mut followed, mut others) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let mut number = NO_POLICY;
        save_and_use(&mut steps, EACH, |_, steps| number = steps.number_of_policy());
        followed.push(number);
        others.push(steps.asked().is_other);
    }
    let first = followed.iter().position(|number| *number != NO_POLICY).expect("it is planned");
    let changes = followed[first..].windows(2).map(|pair| pair[0] != pair[1]);
    let told = &others[first..others.len() - 1];
    assert!(changes.clone().any(|is_other| is_other), "{followed:?}");
    assert_eq!(told, changes.collect::<Vec<bool>>(), "{followed:?}");
}
