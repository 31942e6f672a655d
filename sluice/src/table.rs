//! Tables of text.

use std::fmt::Write;

/// Writes rows. A column is as wide as its longest cell, plus two spaces.
pub(crate) fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            // A string is written to without an error.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
