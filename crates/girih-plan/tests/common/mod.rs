//! What the tests share: any problem, and every planner.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod pipeline;

use arbitrary::{Arbitrary, Result, Unstructured};
use girih_plan::portfolio::schedule;
use girih_plan::{Buffer, Planner, Problem};

/// Any valid problem of up to 40 buffers, with what hides mistakes in it: few distinct sizes and
/// times, so that edges touch; buffers of nothing; buffers that are always alive; rings and lines.
#[derive(Clone, Debug)]
pub(crate) struct AnyProblem(pub(crate) Problem);

impl<'a> Arbitrary<'a> for AnyProblem {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<AnyProblem> {
        let horizon = *u.choose(&[1, 2, 5, 12, 40])?;
        let period = if u.arbitrary()? { horizon } else { 0 };
        let alignment = *u.choose(&[1, 1, 2, 3, 512])?;
        let largest: u64 = *u.choose(&[1, 3, 7, 2000])?;
        let mut buffers = Vec::new();
        for _ in 0..u.int_in_range(0..=40)? {
            let lower = u.int_in_range(0..=horizon - 1)?;
            let life = u.int_in_range(1..=horizon)?;
            let upper = if period > 0 { lower + life } else { (lower + life).min(horizon) };
            buffers.push(Buffer { lower, upper, size: u.int_in_range(0..=largest)? });
        }
        Ok(AnyProblem(Problem { buffers, period, alignment }))
    }
}

/// Every planner of the portfolio with its known settings, and the first that it would explore.
pub(crate) fn planners() -> Vec<Planner> {
    schedule().take(24).collect()
}
