//! Problems and solutions as rows of text.
//!
//! ```text
//! id,lower,upper,size          id,lower,upper,size,offset
//! b1,0,4,1024                  b1,0,4,1024,0
//! b2,2,6,512                   b2,2,6,512,1024
//! ```
//!
//! This is the format of minimalloc and idealloc: lifetimes half-open, sizes in bytes. The columns
//! may be in any order if a header names them; without one they are as above. Offsets may be
//! there or not. Ticks may be larger than 32 bits hold; they are then numbered in their order,
//! which changes no overlap, and written back as they were.

use std::io::{self, BufRead, Read, Write};

use thiserror::Error;

use crate::problem::{Buffer, Problem, Solution};

/// A problem as a file had it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// What the file calls each buffer.
    pub ids: Vec<Box<str>>,
    /// The buffers in the order of the rows, on a line, without alignment.
    pub problem: Problem,
    /// The ticks of the file by the ticks of the problem; empty if they are the same.
    pub ticks: Vec<u64>,
    /// The offsets, if the file had them.
    pub offsets: Option<Vec<u64>>,
}

/// Why text is no table. Lines are counted from 1.
#[derive(Debug, Error)]
pub enum CsvError {
    /// The text could not be read.
    #[error("line {line} could not be read: {source}")]
    Io {
        /// The line.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line does not end where any would.
    #[error("give a table of numbers: line {line} is longer than {LINE_MAX} bytes")]
    TooLong {
        /// The line.
        line: u64,
    },
    /// A header names a column that is not known, or one twice, or lacks one.
    #[error(
        "name the columns id, lower, upper, size, and offset or not: the header in line {line} has \
         {problem} `{column}`"
    )]
    Header {
        /// The line.
        line: u64,
        /// What is wrong: `no column`, `two columns`, `an unknown column`.
        problem: &'static str,
        /// The name of the column.
        column: String,
    },
    /// A row has another number of columns than the first one.
    #[error("give line {line} the columns of a row, {expected}: it has {found}")]
    Columns {
        /// The line.
        line: u64,
        /// Columns of the header, or of the first row, or 4.
        expected: usize,
        /// Columns of the row.
        found: usize,
    },
    /// A cell is no number.
    #[error("write a whole number from 0 to 2^64 - 1 in line {line}: its {column} is `{text}`")]
    Number {
        /// The line.
        line: u64,
        /// The name of the column.
        column: &'static str,
        /// The cell, cut short if it is long.
        text: String,
    },
    /// A buffer is never alive.
    #[error(
        "make upper more than lower in line {line}: its buffer lives in [{lower}, {upper}), which is \
         never"
    )]
    Empty {
        /// The line.
        line: u64,
        /// Its birth.
        lower: u64,
        /// Its death.
        upper: u64,
    },
    /// More rows than can be planned.
    #[error(
        "split the problem before line {line}: at most {} buffers can be planned at once",
        Problem::MAX_BUFFERS
    )]
    TooMany {
        /// The line of the first one too many.
        line: u64,
    },
}

/// The names of the columns, in the order that a file without a header has them.
const COLUMNS: [&str; 5] = ["id", "lower", "upper", "size", "offset"];
const OFFSET: usize = 4;

/// Bytes that a line may have: a device that never ends one is no table.
const LINE_MAX: u64 = 1 << 16;

/// For each of [`COLUMNS`] the cell of a row that holds it.
struct Layout {
    cells: [Option<usize>; 5],
    width: usize,
}

/// Reads a table. Empty lines, and lines that begin with `#`, are passed over.
pub fn read(mut text: impl BufRead) -> Result<Table, CsvError> {
    let mut table = Table::default();
    table.problem.alignment = 1;
    let mut lives: Vec<(u64, u64)> = Vec::new();
    let mut offsets = Vec::new();
    let mut layout: Option<Layout> = None;

    let mut row = String::new();
    for line in 1.. {
        row.clear();
        let bytes = (&mut text).take(LINE_MAX).read_line(&mut row);
        let bytes = bytes.map_err(|source| CsvError::Io { line, source })?;
        if bytes == 0 {
            break;
        }
        if bytes as u64 == LINE_MAX {
            return Err(CsvError::TooLong { line });
        }
        let row = row.trim().trim_start_matches('\u{feff}');
        if row.is_empty() || row.starts_with('#') {
            continue;
        }
        let layout = match &layout {
            Some(layout) => layout,
            None if is_header(row) => {
                layout = Some(Layout::of_header(row, line)?);
                continue;
            }
            None => layout.insert(Layout::of_first_row(row, line)?),
        };
        if lives.len() == Problem::MAX_BUFFERS {
            return Err(CsvError::TooMany { line });
        }
        let (id, [lower, upper, size, offset]) = layout.parse(row, line)?;
        if lower >= upper {
            return Err(CsvError::Empty { line, lower, upper });
        }
        table.ids.push(id.into());
        lives.push((lower, upper));
        table.problem.buffers.push(Buffer { lower: 0, upper: 0, size });
        offsets.push(offset);
    }

    if layout.is_some_and(|layout| layout.cells[OFFSET].is_some()) {
        table.offsets = Some(offsets);
    }
    table.ticks = number_ticks(&lives, &mut table.problem.buffers);
    Ok(table)
}

/// Whether a row names columns: none of its cells after the first is a number.
fn is_header(row: &str) -> bool {
    row.split(',').skip(1).all(|cell| cell.trim().parse::<u64>().is_err())
        && row.split(',').any(|cell| COLUMNS.contains(&cell.trim()))
}

impl Layout {
    fn of_header(row: &str, line: u64) -> Result<Layout, CsvError> {
        let mut cells = [None; 5];
        let mut width = 0;
        let error = |problem, column: &str| {
            Err(CsvError::Header { line, problem, column: shorten(column) })
        };
        for (at, name) in row.split(',').map(str::trim).enumerate() {
            let Some(column) = COLUMNS.iter().position(|known| *known == name) else {
                return error("an unknown column", name);
            };
            if cells[column].replace(at).is_some() {
                return error("two columns", name);
            }
            width = at + 1;
        }
        match (0..OFFSET).find(|column| cells[*column].is_none()) {
            Some(missing) => error("no column", COLUMNS[missing]),
            None => Ok(Layout { cells, width }),
        }
    }

    fn of_first_row(row: &str, line: u64) -> Result<Layout, CsvError> {
        let width = row.split(',').count();
        let cells = [Some(0), Some(1), Some(2), Some(3), (width == 5).then_some(OFFSET)];
        match width {
            4 | 5 => Ok(Layout { cells, width }),
            found => Err(CsvError::Columns { line, expected: 4, found }),
        }
    }

    /// The id of a row, and its lower, upper, size and offset; an offset that is not there is 0.
    fn parse<'a>(&self, row: &'a str, line: u64) -> Result<(&'a str, [u64; 4]), CsvError> {
        let mut cells = [""; COLUMNS.len()];
        let mut found = 0;
        for cell in row.split(',') {
            if let Some(place) = cells.get_mut(found) {
                *place = cell.trim();
            }
            found += 1;
        }
        if found != self.width {
            return Err(CsvError::Columns { line, expected: self.width, found });
        }
        let mut numbers = [0; 4];
        for (number, column) in numbers.iter_mut().zip(1..) {
            let Some(cell) = self.cells[column] else { continue };
            *number = cells[cell].parse().map_err(|_| CsvError::Number {
                line,
                column: COLUMNS[column],
                text: shorten(cells[cell]),
            })?;
        }
        Ok((cells[self.cells[0].unwrap_or(0)], numbers))
    }
}

/// The first characters of a cell: an error is no place for a megabyte.
fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Gives `buffers` the lifetimes of `lives`: as they are if they fit into 32 bits, otherwise by
/// their rank. Returns the ticks by rank, or nothing.
fn number_ticks(lives: &[(u64, u64)], buffers: &mut [Buffer]) -> Vec<u64> {
    let fits = lives.iter().all(|life| u32::try_from(life.1).is_ok());
    let mut ticks = Vec::new();
    if !fits {
        ticks.extend(lives.iter().flat_map(|&(lower, upper)| [lower, upper]));
        ticks.sort_unstable();
        ticks.dedup();
    }
    let number = |tick| if fits { tick } else { ticks.partition_point(|t| *t < tick) as u64 };
    for (buffer, &(lower, upper)) in buffers.iter_mut().zip(lives) {
        (buffer.lower, buffer.upper) = (number(lower) as u32, number(upper) as u32);
    }
    ticks
}

impl Table {
    /// The offsets of the file as a solution, whose height is the end of the topmost buffer; `None`
    /// if the file has none. Not checked: that is for [`crate::check`].
    pub fn solution(&self) -> Option<Solution> {
        let offsets = self.offsets.clone()?;
        let ends = offsets.iter().zip(&self.problem.buffers);
        let height = ends.map(|(offset, buffer)| offset.saturating_add(buffer.size)).max();
        Some(Solution { offsets, height: height.unwrap_or(0), planner: "file" })
    }

    /// Writes the table with its header; with the offsets of `solution` if there is one.
    pub fn write(&self, mut out: impl Write, solution: Option<&Solution>) -> io::Result<()> {
        let tick = |tick: u32| self.ticks.get(tick as usize).copied().unwrap_or(u64::from(tick));
        let columns = if solution.is_some() { &COLUMNS[..] } else { &COLUMNS[..OFFSET] };
        writeln!(out, "{}", columns.join(","))?;
        for (index, (id, buffer)) in self.ids.iter().zip(&self.problem.buffers).enumerate() {
            let Buffer { lower, upper, size } = *buffer;
            write!(out, "{id},{},{},{size}", tick(lower), tick(upper))?;
            if let Some(offset) = solution.and_then(|solution| solution.offsets.get(index)) {
                write!(out, ",{offset}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A problem that came from no file: buffers are called by their index.
impl From<Problem> for Table {
    fn from(problem: Problem) -> Table {
        let ids = (0..problem.buffers.len()).map(|index| index.to_string().into()).collect();
        Table { ids, problem, ticks: Vec::new(), offsets: None }
    }
}
