//! Copies out that nobody waits for make way for copies in that somebody waits for.
//!
//! Both directions together are slower than twice one of them. A copy out that is queued as soon as its tensor lies idle
//! may take from a copy in for which an operator waits, and its own bytes be needed only much later. So it is queued
//! as late as its release allows:
//!
//! ```text
//!  out     [ a ][ b ]                        [ a ][ b ]
//!  in      [ c   ][ d   ]        ->   [ c ][ d ]
//!  waits    for c, for d               for c, for d     released: a, b
//! ```

use crate::links::Links;
use crate::schedule::Schedule;
use crate::simulate::{Run, simulate};
use crate::step::Step;

/// The schedule with copies out put off where that makes the step shorter; what is let go of and taken again stays as it
/// is. `parts_max`: [`Settings::put_off_parts`](crate::settings::Settings::put_off_parts).
pub(crate) fn defer(step: &Step, links: &Links, schedule: Schedule, parts_max: usize) -> Schedule {
    let mut best = schedule;
    let mut run = simulate(step, links, &best);
    let mut parts = 1;
    while parts <= parts_max {
        for part in 0..parts {
            let count = best.away.len();
            let range = count * part / parts..count * (part + 1) / parts;
            let latest = latest(step, links, &best, &run);
            let mut other = best.clone();
            let mut is_other = false;
            for (away, latest) in other.away[range.clone()].iter_mut().zip(&latest[range]) {
                is_other |= *latest > away.leave;
                away.leave = away.leave.max(*latest);
            }
            if is_other {
                let own = simulate(step, links, &other);
                if own.step_us < run.step_us {
                    (best, run) = (other, own);
                }
            }
        }
        parts *= 2;
    }
    best
}

/// For each entry the last operator after which its copy out can be queued so that all are over when their bytes are
/// let go of in this run, one after another in the order in which they are.
fn latest(step: &Step, links: &Links, schedule: &Schedule, run: &Run) -> Vec<u32> {
    let (rate, _) = links.rates(true, true);
    let mut order: Vec<usize> = (0..schedule.away.len()).collect();
    order.sort_by_key(|&at| (schedule.away[at].leave, at));
    let mut latest = vec![0; order.len()];
    let mut free_us = f64::INFINITY;
    for &at in order.iter().rev() {
        let away = schedule.away[at];
        let due_us = run.times[at].released_us.min(free_us);
        free_us = due_us - step.bytes(away.gap) as f64 / rate;
        // Queued before the operator that begins last until then, which is after the one before it.
        let begun = run.starts_us.partition_point(|&start| start <= free_us) as u32;
        latest[at] = begun.saturating_sub(2).min(away.release - 1);
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Away;
    use crate::step::{Gap, Op, Tensor};

    #[test]
    fn a_copy_out_that_nobody_waits_for_makes_way_for_one_in_that_is_waited_for() {
        // One tensor is to be back for operator 4; another lies idle from 3 on, and must be gone by 6.
        let gaps = [(0, 4, 8), (2, 9, 8)];
        let mut step = Step {
            ops: [4.0, 4.0, 1.0, 1.0, 9.0, 9.0, 1.0, 9.0, 9.0, 1.0]
                .map(|us| Op { us, ..Op::default() })
                .to_vec(),
            load: vec![20; 10],
            ..Step::default()
        };
        for (tensor, (after, before, bytes)) in (0..).zip(gaps) {
            step.tensors.push(Tensor { request: tensor, bytes, born: after, last: before });
            step.gaps.push(Gap { tensor, after, before });
        }
        let links = Links { outward: 2.0, inward: 2.0, both: 2.0 };
        let away = vec![
            Away { gap: 0, leave: 0, release: 2, fetch: 2 },
            Away { gap: 1, leave: 2, release: 6, fetch: 7 },
        ];
        let schedule = Schedule { away, ..Schedule::default() };
        let before = simulate(&step, &links, &schedule);
        let deferred = defer(&step, &links, schedule.clone(), 64);
        let after = simulate(&step, &links, &deferred);
        assert!(after.step_us < before.step_us - 0.5, "{} {}", after.step_us, before.step_us);
        assert!(deferred.away[1].leave > 2 && deferred.away[1].leave < 6);
        assert_eq!(deferred.held(&step), schedule.held(&step));
        // Where both directions are no slower together nothing is to be had, and all stays.
        let links = Links { both: 4.0, ..links };
        assert_eq!(defer(&step, &links, schedule.clone(), 64), schedule);
    }
}
