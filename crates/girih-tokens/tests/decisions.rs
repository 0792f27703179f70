//! Decisions: bound <= optimum, bound <= girih <= everybody else, and each passes both checkers.

use crate::common::{UNIT, budgets, each_of, problem};
use arbtest::arbtest;
use girih_tokens::decision::Pattern;
use girih_tokens::problem::Role;
use girih_tokens::recount::recount;
use girih_tokens::timeline::{peaks, run};
use girih_tokens::{Budgets, Method, baselines, program};

/// Times of answers differ by no more than rounding to bytes makes.
const CLOSE: f64 = 1e-5;

#[test]
fn every_answer_passes_both_checkers_and_is_above_the_bound() {
    arbtest(|u| {
        let problem = problem(u, 5)?;
        let budgets = budgets(u, &problem)?;
        for method in Method::ALL.into_iter().filter(|&method| method != Method::Exact) {
            let answer = method.answer(&problem, &budgets).unwrap();
            let (us, bound) = (answer.outcome.step_us, answer.bound_us);
            assert!(
                us >= bound * (1.0 - 1e-9),
                "{method:?}: {us} < {bound}: {problem:?} {budgets:?}"
            );
            assert_eq!(peaks(&problem, &answer.decision).0, answer.outcome.gpu_peak);
        }
        Ok(())
    })
    .budget_ms(3000);
}

/// Nobody says what attention takes, and layers keep copies of their inputs: recomputation makes both again all the same, and
/// holds the inputs beside them.
#[test]
fn recomputation_keeps_inputs_alone_whatever_is_known_of_attention() {
    arbtest(|u| {
        let mut problem = problem(u, 5)?;
        let budgets = budgets(u, &problem)?;
        let without = Method::Recompute.answer(&problem, &budgets).unwrap();
        let more = u.int_in_range(0..=2)? * UNIT;
        for layer in &mut problem.layers {
            layer.copied = more;
            let attention = layer.kinds.iter_mut().filter(|kind| kind.role == Role::Attention);
            attention.for_each(|kind| kind.remake_us = None);
        }
        let answer = Method::Recompute.answer(&problem, &budgets).unwrap();
        assert_eq!(answer.decision.shares, without.decision.shares);
        let (held, before) = (answer.outcome.gpu_peak, without.outcome.gpu_peak);
        assert!((before..=before + more).contains(&held), "{held}, {before} without {more}");
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn the_bytes_that_are_counted_anew_are_those_that_are_said() {
    let (mut all, mut alike) = (0, 0);
    arbtest(|u| {
        let problem = problem(u, 6)?;
        let budgets = budgets(u, &problem)?;
        let answer = Method::Girih.answer(&problem, &budgets).unwrap();
        let count = recount(&problem, &answer.decision, &answer.outcome).unwrap();
        let said = answer.outcome.gpu_peak;
        assert!(
            (count.gpu..=count.gpu_at_once).contains(&said),
            "{count:?} {problem:?} {budgets:?}"
        );
        (all, alike) = (all + 1, alike + u32::from(count.gpu == count.gpu_at_once));
        Ok(())
    })
    .budget_ms(1500);
    // Where times leave it open, both are of one layer's bytes; mostly they do not.
    assert!(alike * 10 > all * 7, "{alike} of {all}");
}

#[test]
fn a_program_s_answer_takes_the_time_that_the_program_says() {
    let (mut all, mut waited) = (0, 0);
    arbtest(|u| {
        let problem = problem(u, 5)?;
        let budgets = budgets(u, &problem)?;
        let out = u.int_in_range(1..=4)?;
        let inward = u.int_in_range(0..=9)?;
        let pattern = Pattern { out, inward, through_head: u.arbitrary()? };
        if let Some(best) = program::best(&problem, &budgets, pattern) {
            let ran = run(&problem, &best.decision);
            let (said, took) = (problem.plain_us() + best.extra_us, ran.step_us);
            assert!(
                (said - took).abs() <= CLOSE * took,
                "{took}, {said} said: {problem:?} {pattern:?}"
            );
            (all, waited) = (all + 1, waited + u32::from(ran.stall_us > 0.1));
        }
        Ok(())
    })
    .budget_ms(2000);
    // However slow the machine is.
    assert!(waited > 0 && waited * 20 > all, "{waited} of {all}");
}

#[test]
fn what_is_wrong_with_an_answer_is_found() {
    let mut found = [0; 7];
    // As often as it takes, however slow the machine is.
    for _ in 0..16 {
        if found.iter().all(|&it| it > 50) {
            break;
        }
        arbtest(|u| {
            let problem = problem(u, 5)?;
            let budgets = budgets(u, &problem)?;
            let own = Method::Swap.answer(&problem, &budgets).unwrap();
            if own.outcome.bytes == 0 {
                return Ok(());
            }
            for (damage, found) in found.iter_mut().enumerate() {
                let (mut decision, mut ran) = (own.decision.clone(), own.outcome.clone());
                let last = ran.run.pieces.len() - 1;
                match damage {
                    // A byte that nobody has; an input that is computed again.
                    0 => decision.shares[0][0].swap += 1,
                    1 => {
                        let share = &mut decision.shares[0][0];
                        (share.keep, share.swap, share.remake) = (0, 0, share.keep + share.swap);
                    }
                    // A copy that begins before its layer has ended; one that ends after it is used; one too fast.
                    2 => ran.run.pieces[0].from_us = 0.0,
                    3 => ran.run.pieces[last].to_us = ran.step_us + 9.0,
                    4 => {
                        let pieces = ran.run.pieces.iter_mut();
                        let largest = pieces.max_by(|a, b| a.bytes.total_cmp(&b.bytes)).unwrap();
                        largest.from_us = largest.to_us - 1e-3;
                    }
                    // Bytes that are not said.
                    5 => ran.gpu_peak -= 1,
                    _ => ran.host_peak /= 2,
                }
                *found += u32::from(recount(&problem, &decision, &ran).is_err());
            }
            Ok(())
        })
        .budget_ms(1500);
    }
    assert!(found.iter().all(|&it| it > 50 && it == found[0]), "{found:?}");
}

#[test]
fn girih_fits_where_anybody_does_and_is_never_slower() {
    let mut tight = 0;
    // As often as it takes, however slow the machine is.
    for _ in 0..16 {
        if tight > 100 {
            break;
        }
        arbtest(|u| {
            let problem = problem(u, 6)?;
            let budgets = budgets(u, &problem)?;
            let own = Method::Girih.answer(&problem, &budgets).unwrap();
            assert_eq!(Method::Girih.fits(&problem, &budgets), Ok(own.fits));
            for method in Method::ALL.into_iter().filter(|&method| method != Method::Exact) {
                let other = method.answer(&problem, &budgets).unwrap();
                assert_eq!(method.fits(&problem, &budgets), Ok(other.fits), "{method:?}");
                if other.fits {
                    let (own_us, us) = (own.outcome.step_us, other.outcome.step_us);
                    assert!(own.fits, "{method:?} fits: {problem:?} {budgets:?}");
                    assert!(
                        own_us <= us + 1e-9,
                        "{method:?}: {us} < {own_us}: {problem:?} {budgets:?}"
                    );
                    tight += 1;
                }
            }
            Ok(())
        })
        .budget_ms(3000);
    }
    assert!(tight > 100);
}

#[test]
fn more_of_a_budget_is_never_slower() {
    arbtest(|u| {
        let problem = problem(u, 6)?;
        let less = budgets(u, &problem)?;
        let extra = crate::common::UNIT * u.int_in_range(0..=5)?;
        let host = less.host.map(|host| host + crate::common::UNIT * 2).filter(|_| u.is_empty());
        let more = Budgets { gpu: less.gpu + extra, host };
        let (a, b) = (Method::Girih.answer(&problem, &less), Method::Girih.answer(&problem, &more));
        let (a, b) = (a.unwrap(), b.unwrap());
        if a.fits {
            let (a, b) = (a.outcome.step_us, b.outcome.step_us);
            assert!(b <= a * (1.0 + CLOSE), "{b} > {a}: {problem:?} {less:?} {more:?}");
        }
        Ok(())
    })
    .budget_ms(3000);
}

#[test]
fn what_all_decisions_on_a_grid_give_is_above_the_bound_and_seldom_below_girih() {
    let (mut all, mut met, mut worst) = (0, 0, 1.0f64);
    // So many and these: a share of few that a clock allows says little.
    each_of(160, |u| {
        let problem = problem(u, 3)?;
        let budgets = budgets(u, &problem)?;
        let best = Method::Exact.answer(&problem, &budgets).unwrap();
        let own = Method::Girih.answer(&problem, &budgets).unwrap();
        assert!(own.fits || !best.fits);
        if best.fits {
            let (us, best) = (own.outcome.step_us, best.outcome.step_us);
            assert!(best >= own.bound_us * (1.0 - 1e-9), "{problem:?} {budgets:?}");
            all += 1;
            met += u32::from(us <= best * (1.0 + CLOSE));
            worst = worst.max(us / best);
        }
        Ok(())
    });
    assert!(all > 40, "{all} fit");
    // Nothing is proven of the few patterns that are tried; on steps as small as these they do.
    assert!(met * 10 >= all * 9, "{met} of {all}, at worst {worst}");
}

#[test]
fn what_fits_is_left_alone() {
    arbtest(|u| {
        let problem = problem(u, 5)?;
        let (gpu, _) = peaks(&problem, &girih_tokens::Decision::plain(&problem));
        let budgets = Budgets { gpu, host: Some(0) };
        let answer = Method::Girih.answer(&problem, &budgets).unwrap();
        assert!(answer.fits && answer.outcome.bytes == 0 && answer.outcome.remake_us == 0.0);
        assert!((answer.outcome.step_us - problem.plain_us()).abs() < 1e-6);
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn the_least_is_the_least() {
    arbtest(|u| {
        let problem = problem(u, 4)?;
        let budgets = budgets(u, &problem)?;
        let (least, _) = peaks(&problem, &baselines::least(&problem, budgets.host));
        for method in Method::ALL.into_iter().filter(|&method| method != Method::Exact) {
            let other = method.decide(&problem, &budgets).unwrap();
            let (gpu, host) = peaks(&problem, &other);
            assert_eq!(gpu, run(&problem, &other).gpu_peak);
            let is_within = budgets.host.is_none_or(|budget| host <= budget);
            assert!(!is_within || gpu >= least, "{method:?} {gpu} < {least}: {problem:?}");
        }
        Ok(())
    })
    .budget_ms(1500);
}
