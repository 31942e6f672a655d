//! Checks that comments fit into 120 columns, as the code does, because rustfmt leaves comments alone.

use crate::files::{read, sources};

const FOLDERS: &[&str] = &["src", "crates", "tests", "examples", "benches", "verify"];

/// Except for programs, addresses and table rows, which cannot be wrapped.
#[test]
fn no_comment_is_longer_than_120_columns() {
    let mut lines = 0;
    let mut long = Vec::new();
    for path in FOLDERS.iter().flat_map(|folder| sources(folder)) {
        let mut is_program = false;
        for (number, line) in (1..).zip(read(&path).lines()) {
            // An attribute may begin it, once for each feature set.
            is_program = line.contains("doc = \"```") || (is_program ^ line.contains("```"));
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            lines += 1;
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            let is_whole = is_program || comment.starts_with('|') || !comment.contains(' ') || comment.contains("://");
            if line.chars().count() > 120 && !is_whole {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(lines > 10_000, "{lines} lines of comments: they were not found");
    assert!(long.is_empty(), "wrap these comments:\n{}", long.join("\n"));
}
