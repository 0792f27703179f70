//! The copies of a swapping schedule as they are drawn: when each runs, when operators wait, and what
//! is on the GPU meanwhile.

use girih_swap::simulate::{Direction, Piece};
use girih_swap::{Answer, Pass, Step};

use crate::beside::{Copies, Copy};

/// Points that a curve has at most, and copies that are drawn.
const POINTS_MAX: usize = 4_000;
const COPIES_MAX: usize = 20_000;

impl Copies {
    /// What `answer` does to a step, `number` from 0, under a budget. `assumed` are sentences.
    pub fn of(
        answer: &Answer,
        step: &Step,
        (method, number, gpu_budget): (&'static str, usize, u64),
        assumed: Vec<String>,
    ) -> Copies {
        let run = &answer.run;
        let stalls = stalls(answer);
        let copy_us = run.pieces.iter().map(|piece| piece.to_us - piece.from_us).sum();
        let exposed: f64 = run.pieces.iter().map(|piece| overlap(piece, &stalls)).sum();
        let starts = step.starts();
        Copies {
            method,
            step: number,
            gpu_budget,
            fits: answer.fits,
            gpu_peak: answer.gpu_peak,
            gpu_peak_unswapped: step.peak(),
            host_peak: answer.host_peak,
            bytes_out: answer.bytes,
            step_us: step.us(),
            step_us_swapped: run.step_us,
            stall_us: run.stall_us(),
            hidden_us: copy_us - exposed,
            copy_us,
            copies: copies(answer, step),
            passes: passes(answer, step),
            stalls,
            gpu_bytes: thinned(&run.starts_us, &answer.schedule.held(step)),
            gpu_bytes_unswapped: thinned(&starts, &step.load),
            assumed,
        }
    }
}

/// Each copy from its first piece to its last.
fn copies(answer: &Answer, step: &Step) -> Vec<Copy> {
    let away = &answer.schedule.away;
    let mut found: Vec<Option<Copy>> = vec![None; 2 * away.len()];
    for piece in &answer.run.pieces {
        let is_out = piece.direction == Direction::Out;
        let gap = step.gaps[away[piece.away as usize].gap as usize];
        let tensor = step.tensors[gap.tensor as usize];
        let (from_us, to_us) = (piece.from_us, piece.to_us);
        let copy = found[2 * piece.away as usize + usize::from(is_out)].get_or_insert(Copy {
            is_out,
            from_us,
            to_us,
            bytes: tensor.bytes,
            request: tensor.request,
        });
        copy.from_us = copy.from_us.min(from_us);
        copy.to_us = copy.to_us.max(to_us);
    }
    let mut found: Vec<Copy> = found.into_iter().flatten().collect();
    found.sort_by(|a, b| a.from_us.total_cmp(&b.from_us));
    found.truncate(COPIES_MAX);
    found
}

/// From when on which pass runs.
fn passes(answer: &Answer, step: &Step) -> Vec<(f64, &'static str)> {
    let mut found: Vec<(f64, &'static str)> = Vec::new();
    for (&start, op) in answer.run.starts_us.iter().zip(&step.ops) {
        let name = match op.pass {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Optimizer => "optimizer",
        };
        if found.last().is_none_or(|&(_, last)| last != name) {
            found.push((start, name));
        }
    }
    found.truncate(POINTS_MAX);
    found
}

/// When operators wait: each right before it begins; waits for several copies follow one another.
fn stalls(answer: &Answer) -> Vec<(f64, f64)> {
    let mut found: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for stall in answer.run.stalls.iter().filter(|stall| stall.us > 0.0) {
        let end = answer.run.starts_us[stall.op as usize];
        match found.last_mut() {
            Some((from, _)) if last == Some(stall.op) => *from -= stall.us,
            _ => found.push((end - stall.us, end)),
        }
        last = Some(stall.op);
    }
    found
}

/// Of a piece's time, what operators waited through.
fn overlap(piece: &Piece, stalls: &[(f64, f64)]) -> f64 {
    let first = stalls.partition_point(|&(_, to)| to <= piece.from_us);
    let touched = stalls[first..].iter().take_while(|&&(from, _)| from < piece.to_us);
    touched.map(|&(from, to)| to.min(piece.to_us) - from.max(piece.from_us)).sum()
}

/// Bytes from when on; where there are too many points, the most of each stretch of them.
fn thinned(starts: &[f64], bytes: &[u64]) -> Vec<(f64, u64)> {
    let each = bytes.len().div_ceil(POINTS_MAX).max(1);
    (starts.chunks(each).zip(bytes.chunks(each)))
        .map(|(starts, bytes)| (starts[0], bytes.iter().copied().max().unwrap_or(0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_swap::{Budgets, Links, Method, Steps};
    use girih_trace::generate::{Training, training};
    use girih_trace::{Iterations, Lifetimes};

    #[test]
    fn copies_stand_within_the_step_and_what_is_not_waited_for_is_hidden() {
        let trace = training(&Training::default(), 11);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let steps = Steps::of(&trace, &lives, &iterations, Some(200_000.0)).expect("steps");
        let step = &steps.list[steps.model];
        let least = step.least_budget().0;
        let gpu = least + (step.peak() - least) / 2;
        let budgets = Budgets { gpu, host: None };
        let links = Links::of_gigabytes(55.0, 55.0, 101.0);
        let answer = Method::Girih.answer(step, &links, &budgets).expect("a schedule");
        let copies = Copies::of(&answer, step, ("girih", steps.model, gpu), Vec::new());
        assert_eq!(copies.copies.len(), 2 * answer.schedule.away.len());
        assert!(!copies.copies.is_empty() && copies.fits);
        let out = copies.copies.iter().filter(|copy| copy.is_out).map(|copy| copy.bytes);
        assert_eq!(out.sum::<u64>(), copies.bytes_out);
        assert!(copies.copies.iter().all(|it| it.from_us < it.to_us && it.from_us >= 0.0));
        let waited: f64 = copies.stalls.iter().map(|(from, to)| to - from).sum();
        assert!((waited - copies.stall_us).abs() < 1.0, "{waited} {}", copies.stall_us);
        assert!(copies.hidden_us >= -1e-3 && copies.hidden_us <= copies.copy_us + 1e-3);
        assert!(copies.passes.len() > 1 && copies.passes[0].1 == "forward", "{:?}", copies.passes);
        let most = copies.gpu_bytes.iter().map(|&(_, bytes)| bytes).max();
        assert_eq!(most, Some(copies.gpu_peak));
    }
}
