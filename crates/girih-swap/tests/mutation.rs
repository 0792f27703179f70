//! The checker, mutated at: every wrong run is refused, for its own reason.

use crate::common::{generated, slow, step_of};
use girih_swap::check::{Fault, check};
use girih_swap::execute::{Director, Leave, execute};
use girih_swap::simulate::Direction;
use girih_swap::{Budgets, Links, Method, Run, Schedule, Step, simulate};
use girih_trace::generate::{Rng, Training};

struct Case {
    step: Step,
    links: Links,
    budgets: Budgets,
    schedule: Schedule,
    run: Run,
}

impl Case {
    /// Steps at budgets that make something go, each with a run that is right.
    fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for seed in 0..80 {
            let step = step_of(&mut Rng::new(seed), 14, 8);
            cases.extend(Case::of(step, slow()));
        }
        let steps = generated(&Training::default(), 1);
        cases.extend(Case::of(steps.list[steps.model].clone(), Links::default()));
        assert!(cases.len() > 20, "{}", cases.len());
        cases
    }

    fn of(step: Step, links: Links) -> Option<Case> {
        let budgets = Budgets { gpu: step.least_budget().0, host: Some(u64::MAX >> 1) };
        let schedule = Method::Girih.schedule(&step, &links, &budgets);
        let run = simulate(&step, &links, &schedule);
        let case = Case { step, links, budgets, schedule, run };
        assert_eq!(case.check(), Ok(()));
        (!case.schedule.away.is_empty()).then_some(case)
    }

    fn check(&self) -> Result<(), Fault> {
        check(&self.step, &self.links, &self.budgets, &self.schedule, &self.run)
    }
}

/// Every case with a mutation is refused, and `is_own` says that the reason is that of the mutation.
fn refused(mutate: impl Fn(&mut Case), is_own: impl Fn(&Fault) -> bool) {
    for mut case in Case::all() {
        mutate(&mut case);
        let fault = case.check().expect_err("a wrong run passed");
        assert!(is_own(&fault), "{fault}");
    }
}

#[test]
fn a_smaller_budget_of_the_gpu() {
    refused(|case| case.budgets.gpu -= 1, |fault| matches!(fault, Fault::Gpu { .. }));
}

#[test]
fn a_smaller_budget_of_the_host() {
    let shrink = |case: &mut Case| case.budgets.host = Some(0);
    refused(shrink, |fault| matches!(fault, Fault::Host { .. }));
}

#[test]
fn a_tensor_that_does_not_go() {
    let drop = |case: &mut Case| {
        case.schedule.away.pop();
    };
    refused(drop, |fault| matches!(fault, Fault::Shape(_)));
}

#[test]
fn a_piece_that_is_missing_or_belongs_to_nobody() {
    let missing = |case: &mut Case| {
        case.run.pieces.remove(0);
    };
    refused(missing, |fault| matches!(fault, Fault::Shape(_)));
    let lost = |case: &mut Case| case.run.pieces[0].away = u32::MAX;
    refused(lost, |fault| matches!(fault, Fault::Shape(_)));
}

#[test]
fn a_gap_that_goes_twice() {
    let twice = |case: &mut Case| {
        let away = case.schedule.away[0];
        case.schedule.away.push(away);
        case.run.times.push(case.run.times[0]);
        let count = case.run.pieces.len();
        for at in 0..count {
            if case.run.pieces[at].away == 0 {
                let piece = case.run.pieces[at];
                let away = case.schedule.away.len() as u32 - 1;
                case.run.pieces.push(girih_swap::simulate::Piece { away, ..piece });
            }
        }
    };
    refused(twice, |fault| matches!(fault, Fault::Shape(_)));
}

#[test]
fn an_operator_that_begins_before_the_last_one_ends() {
    let early = |case: &mut Case| {
        let last = case.run.starts_us.len() - 1;
        case.run.starts_us[last] = case.run.starts_us[last - 1];
    };
    refused(early, |fault| matches!(fault, Fault::Order(_)));
    refused(|case| case.run.step_us = 0.0, |fault| matches!(fault, Fault::Order(_)));
}

#[test]
fn bytes_that_are_let_go_of_before_they_are_copied() {
    let early = |case: &mut Case| case.run.times[0].released_us = -1.0;
    refused(early, |fault| matches!(fault, Fault::Copy { .. }));
}

#[test]
fn a_copy_in_before_its_own_copy_out_or_before_it_has_bytes() {
    let swapped = |case: &mut Case| {
        let first = case.run.pieces.iter().position(|piece| piece.direction == Direction::In);
        let first = first.expect("what goes comes back");
        let width = case.run.pieces[first].to_us - case.run.pieces[first].from_us;
        case.run.pieces[first].from_us = -2.0 * width;
        case.run.pieces[first].to_us = -width;
    };
    refused(swapped, |fault| matches!(fault, Fault::Copy { .. }));
    let late = |case: &mut Case| case.run.times[0].taken_us = case.run.step_us;
    refused(late, |fault| matches!(fault, Fault::Copy { .. }));
}

#[test]
fn a_use_before_the_copy_in_has_ended() {
    let late = |case: &mut Case| {
        let step_us = case.run.step_us;
        for piece in &mut case.run.pieces {
            if piece.direction == Direction::In {
                (piece.from_us, piece.to_us) = (piece.from_us + step_us, piece.to_us + step_us);
            }
        }
    };
    refused(late, |fault| matches!(fault, Fault::Copy { .. }));
}

#[test]
fn a_link_that_is_faster_than_it_can_be() {
    refused(|case| case.links.outward /= 2.0, |fault| matches!(fault, Fault::Link(_)));
    refused(|case| case.links.inward /= 2.0, |fault| matches!(fault, Fault::Link(_)));
}

#[test]
fn both_links_together_faster_than_both_can_be() {
    // Only where both were busy at once there is something to see.
    let mut seen = 0;
    for mut case in Case::all() {
        let is_out = |direction| case.run.pieces.iter().filter(move |it| it.direction == direction);
        let overlaps = is_out(Direction::Out).any(|out| {
            is_out(Direction::In)
                .any(|other| other.from_us.max(out.from_us) + 0.1 < other.to_us.min(out.to_us))
        });
        case.links.both = case.links.outward;
        if overlaps {
            assert!(matches!(case.check(), Err(Fault::Link(_))), "{:?}", case.check());
            seen += 1;
        }
    }
    assert!(seen > 3, "{seen}");
}

/// Sends everything at once and has everything back at once, so that much of it is for nothing.
struct Restless<'a>(&'a Step);

impl Director for Restless<'_> {
    fn begins(&mut self, op: u32, fetch: &mut Vec<u32>, _go: &mut Vec<u32>) {
        let gaps = self.0.gaps.iter().zip(0..);
        fetch.extend(gaps.filter(|(gap, _)| gap.after + 2 < op && op < gap.before).map(|it| it.1));
    }

    fn leaves(&mut self, _gap: u32) -> Option<Leave> {
        Some(Leave::default())
    }

    fn rank(&mut self, gap: u32, _need: u64) -> i64 {
        i64::from(gap)
    }
}

#[test]
fn copies_for_nothing_are_on_the_links_and_checked() {
    let (mut outs, mut ins, mut slower, mut caught) = (0, 0, 0, 0);
    for seed in 0..300 {
        let step = step_of(&mut Rng::new(seed), 14, 8);
        let links = slow();
        let budgets = Budgets { gpu: step.least_budget().0, host: None };
        let ran = execute(&step, &budgets, &mut Restless(&step));
        let schedule = ran.schedule;
        let count = |direction| {
            schedule.wasted.iter().filter(|wasted| wasted.direction == direction).count() as u32
        };
        assert_eq!((count(Direction::Out), count(Direction::In)), (ran.cancelled, ran.refetched));
        (outs, ins) = (outs + ran.cancelled, ins + ran.refetched);
        let run = simulate(&step, &links, &schedule);
        let budgets = Budgets { gpu: schedule.gpu_peak(&step), ..budgets };
        assert_eq!(check(&step, &links, &budgets, &schedule, &run), Ok(()), "seed {seed}");
        let without = Schedule { wasted: Vec::new(), ..schedule.clone() };
        let free = simulate(&step, &links, &without);
        slower += u32::from(run.step_us > free.step_us + 1e-6);
        // A run that leaves them out is none of this schedule, unless the step has ended by then.
        let mut left_out = run.clone();
        left_out.wasted.clear();
        let busy = left_out.pieces.iter().map(|piece| piece.to_us).fold(0.0, f64::max);
        if !run.wasted.is_empty() && busy < run.step_us - 1.0 {
            let fault = check(&step, &links, &budgets, &schedule, &left_out);
            assert!(matches!(fault, Err(Fault::Shape(_))), "seed {seed}: {fault:?}");
            caught += 1;
        }
        let mut early = run.clone();
        for piece in &mut early.wasted {
            (piece.from_us, piece.to_us) = (piece.from_us - 1e9, piece.to_us - 1e9);
        }
        assert_eq!(
            check(&step, &links, &budgets, &schedule, &early).is_err(),
            !run.wasted.is_empty(),
            "seed {seed}"
        );
    }
    assert!(outs > 50 && ins > 20 && slower > 20 && caught > 20, "{outs} {ins} {slower} {caught}");
}
