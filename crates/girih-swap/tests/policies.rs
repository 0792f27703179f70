//! Policies on steps that they were not learnt from.

use crate::common::{generated, slow, small_step};
use arbtest::arbtest;
use girih_swap::execute::{Passive, execute};
use girih_swap::policies::Policies;
use girih_swap::sequences::{SEQUENCES_MAX, WINDOW};
use girih_swap::{Answer, Budgets, Later, Links, Method, Step, Steps, capuchin, later};
use girih_trace::generate::{Change, ChangeKind, Training};

fn run() -> Training {
    Training { stages: 1, microbatches: 2, layers: 12, steps: 8, ..Training::default() }
}

/// A tenth of the bytes between the least and the peak of a step must go.
fn budgets(step: &Step) -> Budgets {
    let (least, _) = step.least_budget();
    Budgets { gpu: least.max(step.peak() - (step.peak() - least) / 2), host: None }
}

fn met(method: Method, steps: &Steps, budgets: &Budgets) -> Vec<Later> {
    let links = Links::default();
    let step = &steps.list[steps.model];
    let schedule = method.schedule(step, &links, budgets);
    let learnt = (steps.model, &schedule);
    later(method, &steps.list, learnt, &links, budgets, 6).expect("the checker agrees")
}

#[test]
fn a_known_sequence_is_swapped_as_it_was_learnt() {
    let steps = generated(&run(), 1);
    let step = &steps.list[steps.model];
    let (budgets, links) = (budgets(step), Links::default());
    let schedule = Method::Girih.schedule(step, &links, &budgets);
    assert!(schedule.away.len() > 5);
    let mut policies = Policies::default();
    policies.learn(step, &schedule);
    assert!(policies.knows(step));
    let mut follower = policies.follow(step);
    let execution = execute(step, &budgets, &mut follower);
    assert_eq!((follower.changes(), follower.lost()), (0, 0));
    assert_eq!((execution.passive, execution.demanded, execution.unmet), (0, 0, 0));
    assert_eq!(execution.schedule.bytes(step), schedule.bytes(step));
}

#[test]
fn an_operator_more_or_less_changes_nothing_for_girih_and_kills_capuchin() {
    let budgets = budgets(&{
        let steps = generated(&run(), 1);
        steps.list[steps.model].clone()
    });
    for kind in [ChangeKind::Extra(4096), ChangeKind::Missing] {
        let plain = generated(&run(), 1);
        // The steps before it are learnt from; it comes in the first layers.
        let step = plain.model as u32 + 1;
        let change = Some(Change { step, request: 6, kind });
        let mut steps = generated(&Training { change, ..run() }, 1);
        steps.model = plain.model;
        let girih = met(Method::Girih, &steps, &budgets);
        assert!(!girih[0].is_known);
        assert!(girih[0].answer.fits && girih[0].changes <= 2, "{:?}", girih[0].changes);
        assert!(girih[0].passive <= 2, "{} passive", girih[0].passive);
        let over = girih[0].answer.run.step_us / girih[0].answer.bound_us;
        assert!(over < 1.1, "{over}");
        let capuchin = met(Method::Capuchin, &steps, &budgets);
        assert!(capuchin[0].died_at.is_some() && !capuchin[0].answer.fits);
        assert!(capuchin[1].died_at.is_none(), "the next step is as the first");
    }
}

#[test]
fn a_step_that_was_seen_before_changes_the_policy_and_nothing_starts_over() {
    // Every second step has an evaluation behind it.
    let steps = generated(&Training { evaluate_every: 2, ..run() }, 1);
    let budgets = budgets(&steps.list[steps.model]);
    let girih = met(Method::Girih, &steps, &budgets);
    assert!(girih.iter().filter(|it| it.is_known).count() >= 3);
    for it in &girih {
        assert!(it.answer.fits);
        assert!(!it.is_known || it.passive == 0, "step {}: {} passive", it.step, it.passive);
    }
    // Chameleon warms up again and again: no two steps in a row are alike for long.
    let chameleon = met(Method::Chameleon, &steps, &budgets);
    let passive = |met: &[Later]| met.iter().map(|it| it.passive).sum::<u32>();
    assert!(passive(&girih) < passive(&chameleon));
}

#[test]
fn lengths_that_vary_follow_the_same_policy() {
    let steps = generated(&Training { jitter: 200, ..run() }, 1);
    let budgets = budgets(&steps.list[steps.model]);
    for it in met(Method::Girih, &steps, &budgets) {
        assert!(it.changes <= 2, "{} changes, known: {}", it.changes, it.is_known);
        let least = steps.list[it.step].least_budget().0;
        assert!(it.answer.fits || least > budgets.gpu);
    }
}

#[test]
fn whatever_is_run_under_whatever_policy_is_a_schedule_that_passes() {
    arbtest(|u| {
        let links = slow();
        let first = small_step(u, 12, 6)?;
        let second = small_step(u, 12, 6)?;
        let (least, _) = second.least_budget();
        let budgets = Budgets { gpu: least + u.int_in_range(0..=10u64)?, host: None };
        let mut policies = Policies::default();
        policies.learn(&first, &Method::Girih.schedule(&first, &links, &budgets));
        let capuchin = capuchin::Policy::of(&first, &links, &budgets);
        let executions = [
            execute(&second, &budgets, &mut policies.follow(&second)),
            execute(&second, &budgets, &mut Passive { step: &second }),
            capuchin.execute(&second, &budgets).0,
        ];
        for execution in executions {
            assert_eq!(execution.unmet, 0, "{second:?} {budgets:?}");
            let answer = Answer::of(&second, &links, &budgets, execution.schedule).unwrap();
            assert!(answer.fits);
        }
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn policies_that_are_too_many_go_by_their_last_use() {
    let mut policies = Policies::default();
    let step = |kind: u64| {
        let mut step = generated(&run(), 1).list[1].clone();
        step.ops.truncate(4 * WINDOW);
        step.ops.iter_mut().for_each(|op| op.key ^= kind << 20);
        step.gaps.clear();
        step
    };
    for kind in 0..12 {
        policies.learn(&step(kind), &girih_swap::Schedule::default());
    }
    assert_eq!(policies.count(), SEQUENCES_MAX);
    assert!(policies.knows(&step(11)) && !policies.knows(&step(0)));
}
