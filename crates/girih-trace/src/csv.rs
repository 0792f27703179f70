//! The planners' CSV: one buffer a row, `id,lower,upper,size`.
//!
//! minimalloc, idealloc and the planning contests exchange problems in this form. Lifetimes are
//! half-open, `[lower, upper)`; minimalloc's solutions have a further column `offset`. A header
//! line names the columns, in any order; without one they are in the order above.

use std::io::{self, Read, Write};

use thiserror::Error;

use crate::compress::{Input, Limits};

/// One row.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CsvBuffer {
    /// The row's name. Numbers mostly, but nothing says so.
    pub id: String,
    /// First point of time at which it is alive.
    pub lower: u64,
    /// First point of time at which it is no longer alive.
    pub upper: u64,
    /// Bytes.
    pub size: u64,
    /// Where it was placed, if the file is a solution. Bytes.
    pub offset: Option<u64>,
}

/// Why a CSV could not be read. Lines count from 1.
#[derive(Debug, Error)]
pub enum CsvError {
    /// It could not be read or decompressed.
    #[error("cannot read the CSV: {0}")]
    Io(#[from] io::Error),
    /// It is not text.
    #[error("line {line}: is not UTF-8; this is no CSV")]
    NotText {
        /// The line.
        line: usize,
    },
    /// The header lacks a column.
    #[error("line 1: the header has no column `{0}`")]
    MissingColumn(&'static str),
    /// A row lacks a field.
    #[error("line {line}: has no `{column}`")]
    MissingField {
        /// The line.
        line: usize,
        /// The column.
        column: &'static str,
    },
    /// A field is not a number.
    #[error("line {line}: `{column}` is {value:?}, wanted an integer of 0 .. 2^64")]
    NotANumber {
        /// The line.
        line: usize,
        /// The column.
        column: &'static str,
        /// The field, cut to 40 characters.
        value: String,
    },
    /// A lifetime ends before it begins.
    #[error("line {line}: `lower` {lower} is above `upper` {upper}")]
    Lifetime {
        /// The line.
        line: usize,
        /// Its `lower`.
        lower: u64,
        /// Its `upper`.
        upper: u64,
    },
}

/// The columns, in the order that they have without a header.
const NAMES: [&str; 5] = ["id", "lower", "upper", "size", "offset"];

/// Reads every row. Empty lines and further columns are passed over; the file may be gzipped.
///
/// # Errors
/// If `input` fails or a row is malformed; see [`CsvError`].
pub fn read(input: impl Read) -> Result<Vec<CsvBuffer>, CsvError> {
    let mut bytes = Vec::new();
    Input::new(input, Limits::default())?.read_to_end(&mut bytes)?;
    let mut places = [Some(0), Some(1), Some(2), Some(3), Some(4)];
    let mut buffers = Vec::new();
    for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
        let line = std::str::from_utf8(line).map_err(|_| CsvError::NotText { line: number })?;
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        if number == 1 && is_header(line) {
            places = read_header(line)?;
            continue;
        }
        buffers.push(read_row(line, number, &places)?);
    }
    Ok(buffers)
}

/// A header has no number where `lower` belongs.
fn is_header(line: &str) -> bool {
    line.split(',').nth(1).is_some_and(|field| field.trim().parse::<u64>().is_err())
}

/// Where each of [`NAMES`] stands; `begin` and `end` are other words for the bounds.
fn read_header(line: &str) -> Result<[Option<usize>; 5], CsvError> {
    let mut places = [None; 5];
    for (place, field) in line.split(',').enumerate() {
        let name = match field.trim() {
            "begin" | "start" => "lower",
            "end" => "upper",
            other => other,
        };
        if let Some(column) = NAMES.iter().position(|known| *known == name) {
            places[column] = Some(place);
        }
    }
    match (0..4).find(|&column| places[column].is_none()) {
        Some(column) => Err(CsvError::MissingColumn(NAMES[column])),
        None => Ok(places),
    }
}

fn read_row(line: &str, number: usize, places: &[Option<usize>; 5]) -> Result<CsvBuffer, CsvError> {
    let field = |column: usize| {
        let place = places[column]?;
        line.split(',').nth(place).map(str::trim)
    };
    let needed = |column: usize| {
        let missing = CsvError::MissingField { line: number, column: NAMES[column] };
        field(column).ok_or(missing)
    };
    let parse = |column: usize, text: &str| {
        text.parse().map_err(|_| CsvError::NotANumber {
            line: number,
            column: NAMES[column],
            value: text.chars().take(40).collect(),
        })
    };
    let id = needed(0)?.to_owned();
    let lower = parse(1, needed(1)?)?;
    let upper = parse(2, needed(2)?)?;
    let size = parse(3, needed(3)?)?;
    let offset = match field(4) {
        Some(text) if !text.is_empty() => Some(parse(4, text)?),
        _ => None,
    };
    if lower > upper {
        return Err(CsvError::Lifetime { line: number, lower, upper });
    }
    Ok(CsvBuffer { id, lower, upper, size, offset })
}

/// Writes a header and every row; the column `offset` only if some buffer has one. Commas and line
/// breaks in an id become spaces.
///
/// # Errors
/// Those of `output`.
pub fn write(buffers: &[CsvBuffer], mut output: impl Write) -> io::Result<()> {
    let has_offsets = buffers.iter().any(|buffer| buffer.offset.is_some());
    let columns = if has_offsets { &NAMES[..] } else { &NAMES[..4] };
    writeln!(output, "{}", columns.join(","))?;
    for CsvBuffer { id, lower, upper, size, offset } in buffers {
        let id = id.replace([',', '\n', '\r'], " ");
        write!(output, "{id},{lower},{upper},{size}")?;
        if has_offsets {
            let offset = offset.map_or_else(String::new, |offset| offset.to_string());
            write!(output, ",{offset}")?;
        }
        writeln!(output)?;
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(id: &str, lower: u64, upper: u64, size: u64, offset: Option<u64>) -> CsvBuffer {
        CsvBuffer { id: id.to_owned(), lower, upper, size, offset }
    }

    #[test]
    fn a_file_with_and_without_a_header_reads_the_same() {
        let rows = [buffer("7", 0, 3, 64, None), buffer("b", 1, 2, 8, None)];
        assert_eq!(read(&b"7,0,3,64\nb,1,2,8"[..]).unwrap(), rows);
        assert_eq!(read(&b"id,lower,upper,size\r\n7,0,3,64\r\n\r\nb,1,2,8\r\n"[..]).unwrap(), rows);
        assert_eq!(read(&b"size,x,upper,lower,id\n64,?,3,0,7\n8,?,2,1,b\n"[..]).unwrap(), rows);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for offset in [None, Some(128)] {
            let rows = vec![buffer("a", 0, 3, 64, offset), buffer("b", 1, 2, 8, None)];
            let mut text = Vec::new();
            write(&rows, &mut text).unwrap();
            assert_eq!(read(&text[..]).unwrap(), rows);
        }
    }

    #[test]
    fn an_error_names_the_line_and_the_column() {
        for (text, wanted) in [
            ("id,lower,upper,size\n1,0,3,x", "line 2: `size` is \"x\""),
            ("1,0,3,4\n\n2,0,3", "line 3: has no `size`"),
            ("1,0,3,4\n2,5,3,1", "line 2: `lower` 5 is above `upper` 3"),
            ("1,0,3,-4", "line 1: `size` is \"-4\""),
            ("id,lower,size\n", "line 1: the header has no column `upper`"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!(matches!(read(&b"1,0,1,1\n\xff"[..]), Err(CsvError::NotText { line: 2 })));
    }
}
