//! When the time is taken, when a step is planned, and what is remembered of it.

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
        steps.is_trying()
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
