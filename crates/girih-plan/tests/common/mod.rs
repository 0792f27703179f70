//! What the tests share: any problem, and every planner.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod jigsaw;
pub(crate) mod pipeline;

use std::fs::{self, File};
use std::path::Path;

use arbitrary::{Arbitrary, Result, Unstructured};
use girih_plan::portfolio::schedule;
use girih_plan::{Buffer, Planner, Problem};
use girih_trace::compress::Limits;
use girih_trace::{Trace, marks, open};

/// A recorded run with its marks, of those that a clone does not have. None, and it says so, where
/// they are missing.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn recorded(name: &str) -> Option<Trace> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    let Ok(file) = File::open(folder.join(format!("{name}.pickle.gz"))) else {
        eprintln!("skipped: {name} is not in {}", folder.display());
        return None;
    };
    let mut recording = open::detect_and_read(file, Limits::default()).expect("a recording");
    let mut trace = recording.traces.remove(0);
    let json = fs::read(folder.join(format!("{name}.marks.json.gz"))).expect("its marks");
    marks::apply(&mut trace, &json).expect("marks");
    Some(trace)
}

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

/// Every planner of the portfolio with its known settings, the first that it would explore, and
/// folding.
pub(crate) fn planners() -> Vec<Planner> {
    schedule().take(24).chain([Planner::Folded]).collect()
}
