//! The mixed integer program of the paper, solved by HiGHS.
//!
//! ```text
//!  min M                                        M    the peak
//!  A_i + S_i <= M                               A_i  the offset of buffer i, S_i its size
//!  A_i + S_i <= A_j + z_ij M_cap                z_ij, for i and j that overlap in time:
//!  A_j + S_j <= A_i + (1 - z_ij) M_cap               0 if i lies below j, 1 if above
//!  0 <= M <= M_cap,  A_i >= 0
//! ```
//!
//! Three things are added, none of which excludes an optimum. `M` is at least the largest load:
//! without that the relaxation knows of no bound, and a solver does not know when it is done.
//! `M_cap` is the height of the start, which is also given to the solver as its first
//! solution. And what is always alive is left out and lies at the bottom.
//!
//! HiGHS computes in floating point, and a `z_ij` that is nearly 0 times a large `M_cap` is a gap of
//! many bytes. So nothing but the *order* of its offsets is believed: from below, each buffer is set
//! on top of the highest one below it that it overlaps with. That is right whatever the order, and
//! as low as the program's optimum if the order is that of one.

use highs::{HighsModelStatus, RowProblem, Sense};

use super::level::Solved;
use crate::bound::max_load;
use crate::instance::{Instance, Item};
use crate::problem::{Problem, ProblemError};

/// More pairs of buffers that overlap in time than this are left to greedy planners: with a binary
/// for each pair, HiGHS needs minutes for some thousand, and finds nothing in them for more.
pub const PAIRS_MAX: usize = 20_000;

/// Improves `start` by the program, within `seconds`.
pub(super) fn improve(
    problem: &Problem,
    start: Solved,
    seconds: f64,
) -> Result<Solved, ProblemError> {
    let instance = Instance::new(problem)?;
    let Some(program) = Program::new(problem, &instance, &start) else {
        return Ok(Solved { is_too_large: true, ..start });
    };
    let Some(answer) = program.solve(seconds) else { return Ok(start) };
    let layout = program.layout(&answer.offsets);
    let ends = layout.iter().zip(&instance.items).map(|(offset, item)| offset + item.size);
    let top = ends.max().unwrap_or(0);
    let height = instance.height(top);
    let nodes = answer.nodes;
    if height > start.solution.height {
        return Ok(Solved { nodes, ..start });
    }
    let solution = instance.solution(problem.buffers.len(), &layout, top, super::NAME);
    // What is above the optimum by less than half a unit is at it.
    let is_optimal = answer.is_optimal && top as f64 <= answer.peak + 0.5;
    Ok(Solved { solution, is_proven: is_optimal || height == start.least, nodes, ..start })
}

/// The program of an instance, in units of its alignment.
struct Program<'i> {
    items: &'i [Item],
    /// Pairs of items that overlap in time, the one of smaller index first.
    pairs: Vec<(usize, usize)>,
    /// The largest load, and `M_cap`.
    load: f64,
    capacity: f64,
    /// Offsets of the start.
    start: Vec<u64>,
}

/// What HiGHS has found.
struct Answer {
    offsets: Vec<f64>,
    peak: f64,
    is_optimal: bool,
    nodes: u64,
}

impl<'i> Program<'i> {
    /// None if there are too many pairs.
    fn new(problem: &Problem, instance: &'i Instance, start: &Solved) -> Option<Program<'i>> {
        let items = &instance.items[..];
        let pairs = pairs(instance)?;
        let start_layout = instance.layout(&start.solution)?;
        // Above what is always alive.
        let units = |bytes: u64| (bytes - instance.height(0)) / problem.alignment;
        let load = units(max_load(problem).ok()?.bytes) as f64;
        let capacity = units(start.solution.height) as f64;
        Some(Program { items, pairs, load, capacity, start: start_layout })
    }

    /// None if HiGHS refuses the program.
    fn solve(&self, seconds: f64) -> Option<Answer> {
        let mut program = RowProblem::default();
        let peak = program.add_column(1.0, self.load..=self.capacity);
        let offsets: Vec<_> = self.items.iter().map(|_| program.add_column(0.0, 0.0..)).collect();
        for (item, &offset) in self.items.iter().zip(&offsets) {
            program.add_row(..=-(item.size as f64), [(offset, 1.0), (peak, -1.0)]);
        }
        for &(i, j) in &self.pairs {
            let [below, above] = [offsets[i], offsets[j]];
            let [size_i, size_j] = [i, j].map(|item| self.items[item].size as f64);
            let z = program.add_integer_column(0.0, 0.0..=1.0);
            let capacity = self.capacity;
            program.add_row(..=-size_i, [(below, 1.0), (above, -1.0), (z, -capacity)]);
            program.add_row(..=capacity - size_j, [(above, 1.0), (below, -1.0), (z, capacity)]);
        }
        let mut model = program.try_optimise(Sense::Minimise).ok()?;
        model.make_quiet();
        model.try_set_option("time_limit", seconds.max(0.0)).ok()?;
        model.try_set_option("mip_rel_gap", 0.0).ok()?;
        model.try_set_option("threads", 1).ok()?;
        model.try_set_solution(Some(&self.first_solution()), None, None, None).ok()?;
        let solved = model.try_solve().ok()?;
        let values = solved.get_solution();
        let offsets = values.columns().get(1..=self.items.len())?.to_vec();
        let nodes = solved.int_info_value(c"mip_node_count").unwrap_or(0).max(0) as u64;
        let is_optimal = solved.status() == HighsModelStatus::Optimal;
        Some(Answer { offsets, peak: solved.objective_value(), is_optimal, nodes })
    }

    /// The start in the order of the columns.
    fn first_solution(&self) -> Vec<f64> {
        let order = |&(i, j): &(usize, usize)| f64::from(u8::from(self.start[i] > self.start[j]));
        let offsets = self.start.iter().map(|&offset| offset as f64);
        std::iter::once(self.capacity).chain(offsets).chain(self.pairs.iter().map(order)).collect()
    }

    /// Sets the items, from below in the order of `offsets`, on what lies below them.
    fn layout(&self, offsets: &[f64]) -> Vec<u64> {
        let mut meets = vec![Vec::new(); self.items.len()];
        for &(i, j) in &self.pairs {
            meets[i].push(j);
            meets[j].push(i);
        }
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by(|&a, &b| offsets[a].total_cmp(&offsets[b]).then(a.cmp(&b)));
        let mut layout: Vec<Option<u64>> = vec![None; self.items.len()];
        for item in order {
            let tops = meets[item].iter();
            let tops = tops.filter_map(|&other| Some(layout[other]? + self.items[other].size));
            layout[item] = Some(tops.max().unwrap_or(0));
        }
        layout.into_iter().flatten().collect()
    }
}

/// The pairs of items that overlap in time, or None if they are too many.
fn pairs(instance: &Instance) -> Option<Vec<(usize, usize)>> {
    if instance.items.len() > PAIRS_MAX {
        return None;
    }
    let lives: Vec<_> = instance.items.iter().map(|item| instance.pieces(item)).collect();
    let mut pairs = Vec::new();
    for (j, one) in lives.iter().enumerate() {
        for (i, other) in lives[..j].iter().enumerate() {
            let meets = one.iter().any(|a| other.iter().any(|b| a.0 < b.1 && b.0 < a.1));
            if meets && pairs.len() == PAIRS_MAX {
                return None;
            }
            if meets {
                pairs.push((i, j));
            }
        }
    }
    Some(pairs)
}
