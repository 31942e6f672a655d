//! Checks that no counterexample of the proofs is left out by the tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the functions that the counterexamples are for, written as `file: Type::function`.
fn functions() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("proofs/counterexamples.json")).unwrap();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    entries.iter().map(|entry| entry["function"].as_str().unwrap().to_owned()).collect()
}

/// Returns all Rust sources below a folder, joined.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

#[test]
fn each_counterexample_is_fed_to_the_code() {
    let text = sources(&root().join("src")) + &sources(&root().join("dynamodb/src"));
    let functions = functions();
    assert!(functions.len() > 20, "only {functions:?}");
    for function in functions {
        // A test of a few scripts names their folder once, and each file by itself.
        let (file, _) = function.split_once(": ").unwrap_or((&function, ""));
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        let is_script = name.ends_with(".lua");
        let is_fed =
            text.contains(&format!("each(\"{function}\"")) || is_script && text.contains(&format!("\"{name}\""));
        assert!(is_fed, "no test feeds the counterexamples for `{function}` to it");
        assert!(root().join(file).is_file(), "{file}");
    }
}
