//! The repository's files.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a file below the root.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all Rust sources below a folder in the root, except build output.
pub(crate) fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the text of the log lines in all rooms, and in the files of limits. Joins strings that continue on the next
/// line.
pub(crate) fn log_lines() -> String {
    let is_log = |path: &PathBuf| path.ends_with("log.rs");
    let logs: Vec<_> = ["src", "crates/client/src", "crates/config/src", "crates/redis/src"]
        .into_iter()
        .flat_map(sources)
        .filter(is_log)
        .collect();
    assert!(logs.len() > 5, "the log lines were not found");
    let text: String = logs.iter().map(read).collect();
    text.split("\\\n").map(str::trim_start).collect()
}

/// Returns the text of all Rust sources below a folder.
pub(crate) fn text(folder: &str) -> String {
    sources(folder).iter().map(read).collect()
}
