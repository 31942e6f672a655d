//! A documented panic shows the caller's line, not a line in the crate.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The public functions in a file whose documentation has a section `# Panics`, but which lack the attribute. Async
/// functions cannot have it.
fn without_attribute(text: &str) -> Vec<&str> {
    let (mut found, mut panics, mut is_tracked) = (Vec::new(), false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("///") || line.starts_with("#[") {
            panics |= line == "/// # Panics";
            is_tracked |= line == "#[track_caller]";
            continue;
        }
        let is_function = line.starts_with("pub fn ") || line.starts_with("pub const fn ");
        if is_function && panics && !is_tracked {
            found.push(line);
        }
        (panics, is_tracked) = (false, false);
    }
    found
}

#[test]
fn documented_panics_name_the_caller() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "crates/admin/src",
        "crates/client/src",
        "crates/config/src",
        "crates/postgres/src",
        "crates/redis/src",
        "crates/dynamodb/src",
    ] {
        sources(&root.join(folder), &mut files);
    }
    let mut untracked = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        untracked.extend(without_attribute(&text).into_iter().map(|line| format!("{}: {line}", file.display())));
    }
    assert!(untracked.is_empty(), "{untracked:#?}");
    assert_eq!(without_attribute("/// # Panics\n///\n/// If.\npub fn new() {").len(), 1);
}
