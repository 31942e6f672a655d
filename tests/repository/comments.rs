//! Checks that comments fit into 120 columns, as the code does: rustfmt leaves comments alone.

use std::fs;
use std::path::Path;

const FOLDERS: &[&str] = &["src", "tests", "examples", "benches", "dynamodb", "models", "protocols", "fuzz"];

#[test]
fn no_comment_is_longer_than_120_columns() {
    let mut lines = 0;
    let mut long = Vec::new();
    for folder in FOLDERS {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut lines, &mut long);
    }
    assert!(lines > 10_000, "{lines} lines of comments: they were not found");
    assert!(long.is_empty(), "wrap these comments:\n{}", long.join("\n"));
}

/// Adds the long comments of all sources in a folder, except for programs, addresses and the rows of tables, which
/// cannot be wrapped.
fn check(folder: &Path, lines: &mut usize, long: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_dir() && name != "target" {
            check(&path, lines, long);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut is_program = false;
            for (number, line) in (1..).zip(text.lines()) {
                is_program ^= line.contains("```");
                let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
                *lines += 1;
                let comment = comment.trim_start_matches(['/', '!']).trim_start();
                let is_whole =
                    is_program || comment.starts_with('|') || !comment.contains(' ') || comment.contains("://");
                if line.chars().count() > 120 && !is_whole {
                    long.push(format!("{}:{number}", path.display()));
                }
            }
        }
    }
}
