//! Schedules: bound <= optimum <= every method, and each passes the checker.

use crate::common::{generated, slow, small_step};
use arbtest::arbtest;
use girih_swap::bound::bound;
use girih_swap::check::check;
use girih_swap::exact::exact;
use girih_swap::{Answer, Budgets, Links, Method, Step, simulate};
use girih_trace::generate::Training;

/// A budget between the least that can be kept and the peak.
fn budget_of(step: &Step, part: u64) -> u64 {
    let (least, _) = step.least_budget();
    least + (step.peak() - least) * part / 4
}

#[test]
fn the_bound_is_below_the_optimum_and_the_optimum_below_every_method() {
    let (mut tight, mut met, mut close) = (0, 0, 0);
    arbtest(|u| {
        let step = small_step(u, 9, 4)?;
        let gpu = budget_of(&step, u.int_in_range(0..=4)?);
        let budgets = Budgets { gpu, host: None };
        let links = slow();
        let least = bound(&step, &links, gpu);
        let (best, us) = exact(&step, &links, &budgets).expect("all that is idle may go");
        check(&step, &links, &budgets, &best, &simulate(&step, &links, &best)).unwrap();
        assert!(least <= us + 1e-6, "bound {least}, optimum {us}: {step:?}, {gpu}");
        for method in Method::ALL {
            let answer = method.answer(&step, &links, &budgets).unwrap();
            let own = answer.run.step_us;
            assert!(!answer.fits || own >= us - 1e-6, "{method:?} {own} < {us}: {step:?}, {gpu}");
            if method == Method::Girih {
                assert!(answer.fits, "{step:?}, {gpu}");
                met += u32::from(own <= us + 1e-6);
            }
        }
        tight += 1;
        close += u32::from(us <= least * 1.03 + 1e-6);
        Ok(())
    })
    .budget_ms(3000);
    // The search is no proof, but on steps as small as these it seldom misses.
    assert!(met * 10 >= tight * 9, "{met} of {tight} optimal");
    assert!(
        close * 10 >= tight * 7,
        "the bound is within 3 % of the optimum in {close} of {tight}"
    );
}

#[test]
fn the_bound_is_below_the_optimum_on_links_that_differ_and_that_slow_each_other_down() {
    let (mut steps, mut close) = (0, 0);
    arbtest(|u| {
        // Both together may be slower than one alone.
        let [outward, inward] = [u.int_in_range(1..=6)?, u.int_in_range(1..=6)?].map(f64::from);
        let both = (outward + inward) * f64::from(u.int_in_range(1..=8)?) / 8.0;
        let links = Links { outward, inward, both };
        let step = small_step(u, 9, 4)?;
        let gpu = budget_of(&step, u.int_in_range(0..=3)?);
        let least = bound(&step, &links, gpu);
        let budgets = Budgets { gpu, host: None };
        let (_, us) = exact(&step, &links, &budgets).expect("all that is idle may go");
        assert!(least <= us + 1e-6, "bound {least}, optimum {us}: {step:?}, {gpu}, {links:?}");
        steps += 1;
        close += u32::from(us <= least * 1.03 + 1e-6);
        Ok(())
    })
    .budget_ms(3000);
    assert!(
        close * 10 >= steps * 6,
        "the bound is within 3 % of the optimum in {close} of {steps}"
    );
}

#[test]
fn a_host_budget_is_kept_where_it_can_be() {
    arbtest(|u| {
        let step = small_step(u, 9, 4)?;
        let gpu = budget_of(&step, u.int_in_range(0..=4)?);
        let host = u.int_in_range(0..=30u64)?;
        let budgets = Budgets { gpu, host: Some(host) };
        let answer = Method::Girih.answer(&step, &slow(), &budgets).unwrap();
        if answer.fits {
            assert!(exact(&step, &slow(), &budgets).is_some());
            assert!(answer.host_peak <= host);
        }
        Ok(())
    })
    .budget_ms(1000);
}

#[test]
fn what_fits_is_not_touched() {
    let steps = generated(&Training::default(), 1);
    let step = &steps.list[steps.model];
    for method in Method::ALL {
        let budgets = Budgets { gpu: step.peak(), host: Some(0) };
        let answer = method.answer(step, &Links::default(), &budgets).unwrap();
        assert!(answer.fits && answer.schedule.away.is_empty(), "{method:?}");
        assert!((answer.run.step_us - step.us()).abs() < 1e-6);
        assert!((answer.bound_us - step.us()).abs() < 1e-6);
    }
}

#[test]
fn a_generated_run_is_scheduled_near_its_bound() {
    for (params, operators) in [
        (Training::default(), false),
        (Training { stages: 1, microbatches: 1, layers: 24, ..Training::default() }, false),
        (Training { stages: 1, microbatches: 2, layers: 12, ..Training::default() }, true),
        (Training { stages: 4, microbatches: 8, ..Training::default() }, false),
    ] {
        let params = Training { operators, ..params };
        let steps = generated(&params, 3);
        assert_eq!(steps.assumed.uses, !operators);
        let step = &steps.list[steps.model];
        let (least, _) = step.least_budget();
        for part in [0.9, 0.7] {
            let gpu = ((step.peak() as f64 * part) as u64).max(least);
            let budgets = Budgets { gpu, host: None };
            let answer = Method::Girih.answer(step, &Links::default(), &budgets).unwrap();
            assert!(answer.fits);
            let over = answer.run.step_us / answer.bound_us;
            assert!(over < 1.15, "{over} over the bound at {part} of {params:?}");
        }
    }
}

#[test]
fn a_step_beyond_help_is_scheduled_within_the_least_there_is() {
    let steps = generated(&Training::default(), 1);
    let step = &steps.list[steps.model];
    let (least, op) = step.least_budget();
    let budgets = Budgets { gpu: least / 2, host: None };
    let answer = Method::Girih.answer(step, &Links::default(), &budgets).unwrap();
    assert!(!answer.fits);
    assert_eq!(answer.gpu_peak, least);
    assert!((op as usize) < step.ops.len());
}

#[test]
fn answers_are_the_same_every_time() {
    let steps = generated(&Training::default(), 5);
    let step = &steps.list[steps.model];
    let budgets = Budgets { gpu: step.least_budget().0, host: None };
    let answer = || {
        Answer::of(
            step,
            &Links::default(),
            &budgets,
            Method::Girih.schedule(step, &Links::default(), &budgets),
        )
    };
    assert_eq!(answer().unwrap(), answer().unwrap());
}
