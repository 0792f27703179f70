//! Plain tables: a header, a rule, rows; the first column to the left, the others to the right.
//!
//! No table is wider than a terminal of 80 columns, and none leaves a fact out for that. Where the columns need
//! more, a column of text is broken into lines; where that is not enough, columns follow in a table below,
//! beside the first column again.

use std::borrow::Cow;

use girih_why::units::printable;

/// Characters of a line.
pub(crate) const WIDTH: usize = 80;
/// Characters between two columns.
const GAP: usize = 2;
/// A column that is wider than this is text: it may be broken into lines.
const TEXT: usize = 24;

/// Lays out rows under a header. Every row has as many cells as the header. What is in a cell may come from
/// anywhere: it is made [`printable`].
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<Cow<'_, str>> = header.iter().map(|cell| printable(cell)).collect();
    let header: Vec<&str> = header.iter().map(|cell| &**cell).collect();
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let mut widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([header[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    narrow(&mut widths);
    let rows: Vec<Vec<&str>> =
        rows.iter().map(|row| row.iter().map(|cell| &**cell).collect()).collect();
    let tables = parts(&widths).into_iter().map(|columns| {
        let mut text = row_of(&header, &columns, &widths);
        let width: usize = columns.iter().map(|&column| widths[column]).sum();
        text.push_str(&"-".repeat(width + GAP * (columns.len() - 1)));
        text.push('\n');
        text.extend(rows.iter().map(|row| row_of(row, &columns, &widths)));
        text
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Makes the widest column of text as narrow as the line needs, but no narrower than text can be read. No
/// column is left so wide that it does not fit beside the first.
fn narrow(widths: &mut [usize]) {
    let Some(widest) = (0..widths.len()).max_by_key(|&column| widths[column]) else { return };
    let others = widths.iter().sum::<usize>() - widths[widest];
    let left = WIDTH.saturating_sub(others + GAP * (widths.len() - 1));
    if widths[widest] > TEXT {
        widths[widest] = widths[widest].min(left.max(TEXT));
    }
    let Some((first, others)) = widths.split_first_mut() else { return };
    let rest = others.iter().copied().max().map_or(0, |other| (other + GAP).min(WIDTH / 2));
    *first = (*first).min(WIDTH - rest);
    for other in others {
        *other = (*other).min(WIDTH - GAP - *first);
    }
}

/// The columns of each table that is needed. All but the first come once.
fn parts(widths: &[usize]) -> Vec<Vec<usize>> {
    let mut parts = vec![vec![0]];
    let mut width = widths.first().copied().unwrap_or(0);
    for column in 1..widths.len() {
        if width + GAP + widths[column] > WIDTH {
            parts.push(vec![0]);
            width = widths[0];
        }
        width += GAP + widths[column];
        if let Some(part) = parts.last_mut() {
            part.push(column);
        }
    }
    parts
}

/// A row of some of its columns, of as many lines as its longest cell needs.
fn row_of(row: &[&str], columns: &[usize], widths: &[usize]) -> String {
    let cells: Vec<Vec<String>> =
        columns.iter().map(|&column| broken(row[column], widths[column])).collect();
    let lines = cells.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for line in 0..lines {
        let mut whole = String::new();
        for (place, &column) in columns.iter().enumerate() {
            let cell = cells[place].get(line).map_or("", String::as_str);
            let pad = " ".repeat(widths[column] - cell.chars().count());
            match place {
                0 => whole.push_str(&format!("{cell}{pad}")),
                _ => whole.push_str(&format!("{}{pad}{cell}", " ".repeat(GAP))),
            }
        }
        text.push_str(whole.trim_end());
        text.push('\n');
    }
    text
}

/// Text in lines of at most `width` characters: between words, and within one that is longer than a line.
pub(crate) fn broken(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        while line.chars().count() + usize::from(!line.is_empty()) + word.len() > width {
            if line.is_empty() {
                line.extend(word.drain(..width));
            }
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn numbers_stand_under_each_other() {
        let rows = [owned(&["native", "7"]), owned(&["x", "1234"])];
        assert_eq!(
            table(&["name", "n"], &rows),
            "name       n\n------------\nnative     7\nx       1234\n"
        );
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_before_it_is_measured() {
        let rows = [owned(&["\u{1b}[31mx\n", "7"])];
        assert_eq!(
            table(&["name", "n"], &rows),
            "name           n\n----------------\n\\u{1b}[31mx\\n  7\n"
        );
    }

    #[test]
    fn columns_that_do_not_fit_stand_below() {
        let header =
            ["which", "a number of bytes", "another", "a third that is long", "the last one"];
        let rows = [
            owned(&["one", "11", "22", "33", "44"]),
            owned(&["a longer name of it", "1", "2", "3", "4"]),
        ];
        assert_eq!(
            table(&header, &rows),
            "\
which                a number of bytes  another  a third that is long
---------------------------------------------------------------------
one                                 11       22                    33
a longer name of it                  1        2                     3

which                the last one
---------------------------------
one                            44
a longer name of it             4
"
        );
    }

    #[test]
    fn text_is_broken_between_words_and_a_long_word_anywhere() {
        let path = "x".repeat(70);
        let rows = [
            owned(&[
                "1",
                "a planner with so many settings that a line does not hold all of them at once",
            ]),
            owned(&["2", &path]),
        ];
        let text = table(&["try", "planner"], &rows);
        let without_space: String = text.split_whitespace().collect();
        assert!(without_space.contains(&"x".repeat(70)));
        assert!(text.contains("all of them"));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    /// Whatever is in it, nothing is lost and nothing is too wide.
    #[test]
    fn every_table_fits_and_has_all_of_its_cells() {
        arbtest::arbtest(|u| {
            let columns = u.int_in_range(1..=9)?;
            let cell = |u: &mut arbtest::arbitrary::Unstructured<'_>| {
                let letters = ["a", "bc ", "d e", "\u{e9}\u{e9}", "long-and-longer"];
                let count = u.int_in_range(0..=14)?;
                (0..count).map(|_| u.choose(&letters).copied()).collect::<Result<String, _>>()
            };
            let row = |u: &mut arbtest::arbitrary::Unstructured<'_>| {
                (0..columns).map(|_| cell(u)).collect::<Result<Vec<String>, _>>()
            };
            let header = row(u)?;
            let rows = [row(u)?, row(u)?];
            let words: Vec<&str> = header.iter().map(String::as_str).collect();
            let text = table(&words, &rows);
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            let mut letters = [0_usize, 0];
            for (place, text) in [(0, text), (1, [header, rows.concat()].concat().concat())] {
                letters[place] = text.chars().filter(|it| it.is_alphabetic()).count();
            }
            assert!(letters[0] >= letters[1], "{letters:?}");
            Ok(())
        })
        .budget_ms(500);
    }
}
