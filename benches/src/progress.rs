//! Shows the current measurement.

use std::io::{IsTerminal as _, Write as _};

/// Shows a line in place of the last one, on a terminal. An empty one clears it.
pub fn progress(line: &str) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K{line}");
    } else if !line.is_empty() {
        let _ = writeln!(out, "{line}");
    }
}
