//! Plain tables: a header, a rule, rows; the first column to the left, the others to the right.

/// Lays out rows under a header. Every row has as many cells as the header.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([header[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[&str]| {
        let mut text = String::new();
        for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            match column {
                0 => text.push_str(&format!("{cell}{pad}")),
                _ => text.push_str(&format!("  {pad}{cell}")),
            }
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(header);
    text.push_str(&"-".repeat(widths.iter().sum::<usize>() + 2 * (header.len() - 1)));
    text.push('\n');
    for row in rows {
        text.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_each_other() {
        let rows = [vec!["native".to_owned(), "7".to_owned()], vec!["x".into(), "1234".into()]];
        assert_eq!(
            table(&["name", "n"], &rows),
            "name       n\n------------\nnative     7\nx       1234\n"
        );
    }
}
