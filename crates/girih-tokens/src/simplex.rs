//! Linear programs: the dual simplex method on a dense tableau, with upper bounds.
//!
//! ```text
//!  minimize  c x    with  A x <= b,  0 <= x <= u,  and c >= 0
//! ```
//!
//! No cost is negative, so that the basis of the slacks is dual feasible and the method begins there: it needs no
//! first phase. A variable that would go beyond its upper bound is replaced by what is left up to it. Ties go to
//! the lowest index; the iterations are bounded. Textbook: Chvatal, "Linear Programming", chapters 8 and 10.

/// A program. Numbers should be within some orders of magnitude of 1.
#[derive(Clone, Debug, Default)]
pub struct Lp {
    costs: Vec<f64>,
    uppers: Vec<f64>,
    rows: Vec<(Vec<(usize, f64)>, f64)>,
}

/// An optimum.
#[derive(Clone, PartialEq, Debug)]
pub struct Optimum {
    /// The variables.
    pub values: Vec<f64>,
    /// For each row, by how much the cost would fall if its right side were 1 larger.
    pub prices: Vec<f64>,
    /// What the variables cost.
    pub cost: f64,
}

/// Why there is no optimum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoOptimum {
    /// Nothing keeps all rows.
    Infeasible,
    /// The iterations ran out.
    TooHard,
}

/// What is smaller than this is taken for nothing where rows are judged, in units of the program.
const TOLERANCE: f64 = 1e-9;
/// A pivot is at least so large.
const PIVOT_MIN: f64 = 1e-8;

impl Lp {
    /// A variable with its cost, which is not negative, and its upper bound, which may be infinite.
    pub fn variable(&mut self, cost: f64, upper: f64) -> usize {
        self.costs.push(cost.max(0.0));
        self.uppers.push(upper.max(0.0));
        self.costs.len() - 1
    }

    /// A row: the sum of these terms is at most `most`. Terms of one variable add up.
    pub fn row(&mut self, terms: &[(usize, f64)], most: f64) -> usize {
        self.rows.push((terms.to_vec(), most));
        self.rows.len() - 1
    }

    /// Solves it.
    ///
    /// # Errors
    /// If nothing keeps all rows, or it takes more iterations than any such program should.
    pub fn solve(&self) -> Result<Optimum, NoOptimum> {
        let mut tableau = Tableau::new(self);
        let limit = 50 * (self.rows.len() + self.costs.len()) + 1000;
        for _ in 0..limit {
            if !tableau.pivot()? {
                return Ok(tableau.optimum(self));
            }
        }
        Err(NoOptimum::TooHard)
    }
}

/// Rows over the variables that are not in the basis. Variables are numbered with the slacks behind the others.
struct Tableau {
    /// Columns of the tableau, the right side last.
    width: usize,
    cells: Vec<f64>,
    /// Reduced costs, at least 0; last the cost, negative.
    costs: Vec<f64>,
    /// The variable of each row, and of each column.
    basis: Vec<usize>,
    outside: Vec<usize>,
    uppers: Vec<f64>,
    /// True for a variable that stands for what is left up to its upper bound.
    is_turned: Vec<bool>,
}

impl Tableau {
    fn new(lp: &Lp) -> Tableau {
        let (rows, columns) = (lp.rows.len(), lp.costs.len());
        let width = columns + 1;
        let mut cells = vec![0.0; rows * width];
        for (row, (terms, most)) in lp.rows.iter().enumerate() {
            for &(variable, factor) in terms {
                cells[row * width + variable] += factor;
            }
            cells[row * width + columns] = *most;
        }
        let mut uppers = lp.uppers.clone();
        uppers.resize(columns + rows, f64::INFINITY);
        let costs = lp.costs.iter().copied().chain([0.0]).collect();
        Tableau {
            width,
            cells,
            costs,
            basis: (columns..columns + rows).collect(),
            outside: (0..columns).collect(),
            uppers,
            is_turned: vec![false; columns + rows],
        }
    }

    fn right(&self, row: usize) -> f64 {
        self.cells[(row + 1) * self.width - 1]
    }

    /// One step: the row that is violated most leaves. False if none is.
    fn pivot(&mut self) -> Result<bool, NoOptimum> {
        let mut worst = (TOLERANCE, usize::MAX, false);
        for row in 0..self.basis.len() {
            let value = self.right(row);
            let over = value - self.uppers[self.basis[row]];
            if -value > worst.0 {
                worst = (-value, row, false);
            }
            if over > worst.0 {
                worst = (over, row, true);
            }
        }
        let (_, row, is_over) = worst;
        if row == usize::MAX {
            return Ok(false);
        }
        if is_over {
            self.turn_row(row);
        }
        let cells = &self.cells[row * self.width..(row + 1) * self.width - 1];
        let mut best = (f64::INFINITY, 0.0, usize::MAX);
        for (column, &cell) in cells.iter().enumerate() {
            if cell >= -PIVOT_MIN || self.uppers[self.outside[column]] == 0.0 {
                continue;
            }
            let ratio = self.costs[column] / -cell;
            // Of those that are as good, the largest pivot.
            if ratio < best.0 - 1e-12 || (ratio < best.0 + 1e-12 && -cell > best.1) {
                best = (ratio, -cell, column);
            }
        }
        match best.2 {
            usize::MAX => Err(NoOptimum::Infeasible),
            column => {
                self.exchange(row, column);
                Ok(true)
            }
        }
    }

    /// Replaces the variable of a row by what is left of it up to its upper bound.
    fn turn_row(&mut self, row: usize) {
        let variable = self.basis[row];
        self.is_turned[variable] ^= true;
        let cells = &mut self.cells[row * self.width..(row + 1) * self.width];
        cells.iter_mut().for_each(|cell| *cell = -*cell);
        cells[self.width - 1] += self.uppers[variable];
    }

    fn exchange(&mut self, row: usize, column: usize) {
        let width = self.width;
        let pivot = self.cells[row * width + column];
        let own = &mut self.cells[row * width..(row + 1) * width];
        own.iter_mut().for_each(|cell| *cell /= pivot);
        own[column] = 1.0 / pivot;
        let own = own.to_vec();
        for other in (0..self.basis.len()).filter(|&other| other != row) {
            let cells = &mut self.cells[other * width..(other + 1) * width];
            eliminate(cells, &own, column);
        }
        eliminate(&mut self.costs, &own, column);
        // Costs that rounding made negative are nothing.
        let count = self.costs.len() - 1;
        self.costs[..count].iter_mut().for_each(|cost| *cost = cost.max(0.0));
        std::mem::swap(&mut self.basis[row], &mut self.outside[column]);
    }

    fn optimum(&self, lp: &Lp) -> Optimum {
        let columns = lp.costs.len();
        let mut all = vec![0.0; columns + lp.rows.len()];
        for (row, &variable) in self.basis.iter().enumerate() {
            all[variable] = self.right(row);
        }
        for (variable, value) in all.iter_mut().enumerate() {
            if self.is_turned[variable] {
                *value = self.uppers[variable] - *value;
            }
        }
        let mut prices = vec![0.0; lp.rows.len()];
        for (column, &variable) in self.outside.iter().enumerate() {
            if variable >= columns {
                prices[variable - columns] = self.costs[column];
            }
        }
        all.truncate(columns);
        let clean = |(value, &upper): (f64, &f64)| value.clamp(0.0, upper);
        let values: Vec<f64> = all.into_iter().zip(&lp.uppers).map(clean).collect();
        let cost = values.iter().zip(&lp.costs).map(|(value, cost)| value * cost).sum();
        Optimum { values, prices, cost }
    }
}

/// Takes a multiple of the pivot's row from another one, so that the pivot's column leaves it.
fn eliminate(cells: &mut [f64], own: &[f64], column: usize) {
    let factor = cells[column];
    if factor == 0.0 {
        return;
    }
    cells[column] = 0.0;
    for (cell, own) in cells.iter_mut().zip(own) {
        *cell -= factor * own;
    }
}
